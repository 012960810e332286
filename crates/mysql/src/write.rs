//! The writing side: groups of batches of one partition, each a transaction serialized by the counter row of the partition.
//!
//! A group takes two round trips. The first opens the transaction, locks the counter and reads what the preconditions
//! need. The second writes the combined effect of the batches whose preconditions hold, raises the counter and commits.
//! Writers in all processes hold the lock from their first read to their commit. So no commit becomes visible with a
//! version at or below one that was already read from the counter, and writers never wait for each other's rows.
//!
//! The nodes of a Galera cluster do not share locks. There, every transaction writes the counter's row, and of those that began on the
//! same number the cluster commits one. The others fail and start again. But a node that rolls a transaction back for another node may
//! report it one statement too late (seen with MariaDB 10.11): it acknowledges what it did not do, a commit too, or goes on outside the
//! transaction. Only the last statement of a round trip is reliable. So
//!
//! - a transaction begins by adding [`MARK`] to the counter, which no other transaction sees, and ends by replacing the sum. If it is not
//!   there, the transaction was rolled back;
//! - `autocommit` is off meanwhile, so what was written outside the transaction is rolled back too;
//! - the commit is a round trip of its own, and so is the end of the session's setting.

use super::decide::{Read, Run, decide_all};
use super::error::{Fault, damaged, failed_together, is_apart, is_busy, is_lost, is_undecided, rolled_back, silent};
use super::key::KeyRange;
use super::plan::{Action, After, Plan};
use super::pool::{Connection, Loan, Pool, ROLLBACK, column};
use super::schema::run_repeatable;
use super::sql::{NEW, Tables, in_keys, in_range, live, partition_range, quoted};
use async_trait::async_trait;
use jiff::Timestamp;
use mysql_async::Row;
use mysql_async::prelude::Queryable;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::timeout_at;
use treehold_core::clock::Clock;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Version;
use treehold_store::combiner::GroupWriter;
use treehold_store::effect::Effect;
use treehold_store::watch::Watches;
use treehold_store::{Batch, BatchWrite, Condition, Partition, Precondition, unvalidated, whole_microseconds};

/// How long a group is retried while other writers interfere.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// The pause before a group is retried that lost to other writers.
const BUSY_PAUSE: Duration = Duration::from_millis(5);

/// The pause before a group is retried on a node that is not part of its cluster.
const APART_PAUSE: Duration = Duration::from_millis(100);

/// What stands in the counter during a transaction on a node of a Galera cluster, added to its number. No store has made as many commits.
const MARK: u64 = 1 << 62;

/// What follows a commit on a node of a Galera cluster.
const AFTER_COMMIT: &str = "SELECT @v; SET SESSION autocommit = 1";

/// Runs writes on pooled connections.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) pool: Arc<Pool>,
    pub(super) tables: Tables,
    pub(super) clock: Clock,
    pub(super) watches: Arc<Watches>,
    /// The most bytes of statements per round trip.
    pub(super) text_bytes_max: usize,
}

/// The outcome of a transaction.
enum Outcome {
    /// The answers of these batches, by index in the group. The other batches are still to be done.
    Done(Vec<(usize, Result<Vec<Version>>)>),
    /// The first `count` batches hit an engine error.
    Failed { count: usize, failure: Failure },
}

/// Why a transaction was not committed, or may not have been.
struct Failure {
    source: FailureSource,
    /// Whether the commit was sent.
    is_sent: bool,
    /// Whether the commit was sent and its outcome is unknown.
    is_open: bool,
}

enum FailureSource {
    Engine(Arc<mysql_async::Error>),
    Stored(Error),
    Silent,
}

impl Failure {
    fn of(fault: Fault, is_sent: bool) -> Self {
        let (source, is_open) = match fault {
            Fault::Engine(error) => {
                let is_open = is_sent && (is_lost(&error) || is_undecided(&error));
                (FailureSource::Engine(Arc::new(error)), is_open)
            }
            Fault::Stored(error) => (FailureSource::Stored(error), is_sent),
            Fault::Silent => (FailureSource::Silent, is_sent),
        };
        Self { source, is_sent, is_open }
    }

    /// Returns whether a single batch may have caused the failure, so that the others may succeed without it.
    fn may_be_of_one(&self) -> bool {
        let is_refusal = matches!(&self.source, FailureSource::Engine(error) if !is_lost(error) && !is_busy(error) && !is_apart(error));
        is_refusal && !self.is_open
    }

    fn is(&self, test: fn(&mysql_async::Error) -> bool) -> bool {
        matches!(&self.source, FailureSource::Engine(error) if test(error))
    }

    /// Makes the error for one of the batches.
    fn error(&self) -> Error {
        let error = match &self.source {
            FailureSource::Engine(error) => failed_together(error),
            FailureSource::Stored(error) => Error::new(error.kind(), error.message()),
            FailureSource::Silent => silent(),
        };
        if self.is_open { error.with_unknown_effect() } else { error.without_effect() }
    }
}

#[async_trait]
impl GroupWriter for Writer {
    async fn write(&self, partition: &Partition, group: &[Batch]) -> Vec<Result<Vec<Version>>> {
        let until = Instant::now() + PATIENCE;
        let mut answers: Vec<Option<Result<Vec<Version>>>> = group.iter().map(|_| None).collect();
        let mut left: VecDeque<usize> = (0..group.len()).collect();
        // After a failure that one of the batches may have caused, each runs on its own.
        let mut is_alone = false;
        while !left.is_empty() {
            let size = if is_alone { 1 } else { left.len() };
            let places: Vec<usize> = left.iter().take(size).copied().collect();
            match self.transaction(partition, group, &places, until).await {
                Outcome::Done(done) => {
                    left.drain(..done.len());
                    for (place, answer) in done {
                        answers[place] = Some(answer);
                    }
                }
                Outcome::Failed { count, failure } if count > 1 && failure.may_be_of_one() => {
                    is_alone = true;
                }
                Outcome::Failed { count, failure } => {
                    for place in left.drain(..count) {
                        answers[place] = Some(Err(failure.error()));
                    }
                }
            }
        }
        answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(unanswered()))).collect()
    }
}

impl Writer {
    /// Runs as many of the first batches in one transaction as can be decided without the server. Retries while other
    /// writers interfere.
    async fn transaction(&self, partition: &Partition, group: &[Batch], places: &[usize], until: Instant) -> Outcome {
        let mut is_again = false;
        loop {
            let mut loan = match self.pool.take().await {
                Ok(loan) => loan,
                Err(error) => {
                    let failure = Failure { source: FailureSource::Stored(error), is_sent: false, is_open: false };
                    return Outcome::Failed { count: places.len(), failure };
                }
            };
            let failed = match self.attempt(loan.connection(), partition, group, places).await {
                Ok(done) => {
                    loan.give_back();
                    return Outcome::Done(done);
                }
                Err(failed) => failed,
            };
            let (count, failure) = failed;
            let failure = self.after_failure(loan, failure).await;
            if failure.is_open {
                return Outcome::Failed { count, failure };
            }
            if failure.is(is_busy) && Instant::now() < until {
                tokio::time::sleep(BUSY_PAUSE).await;
            } else if failure.is(is_apart) && Instant::now() < until {
                self.pool.clear();
                tokio::time::sleep(APART_PAUSE).await;
            } else if failure.is(is_lost) && !is_again {
                is_again = true;
                self.pool.clear();
            } else {
                return Outcome::Failed { count, failure };
            }
        }
    }

    /// Ends the work on a connection after a failure, which rolls its transaction back.
    ///
    /// In a Galera cluster a lost race is the usual failure, so its connection is reused. A node that loses its cluster while a commit is
    /// under way may report a lost race too, although the other nodes have made the commit. So the effect is known only if the cluster
    /// has kept its members.
    async fn after_failure(&self, mut loan: Loan, mut failure: Failure) -> Failure {
        // Closing the connection rolls the transaction back.
        if !failure.is(is_busy) || !loan.connection().is_of_cluster() {
            return failure;
        }
        let asked = tokio::time::timeout(self.pool.timeout(), loan.connection().roll_back_in_cluster()).await;
        match asked {
            Ok(Ok(true)) => loan.give_back(),
            _ => failure.is_open = failure.is_sent,
        }
        failure
    }

    /// Runs a transaction once. The error says how many of the batches it concerns.
    async fn attempt(
        &self,
        connection: &mut Connection,
        partition: &Partition,
        group: &[Batch],
        places: &[usize],
    ) -> Result<Vec<(usize, Result<Vec<Version>>)>, (usize, Failure)> {
        let until = tokio::time::Instant::now() + self.pool.timeout();
        let now = whole_microseconds(self.clock.now());
        let batches: Vec<&Batch> = places.iter().map(|&place| &group[place]).collect();
        let all = |fault: Fault| (places.len(), Failure::of(fault, false));
        let locking = async {
            for _ in 0..2 {
                if let Some(locked) = self.lock(connection, partition, &batches, now).await? {
                    return Ok(Some(locked));
                }
                // There is no such partition. Where another process makes it meanwhile, the second attempt finds it.
                let has_rows = self.has_rows(connection, partition).await?;
                let adds = batches.iter().any(|batch| batch.adds() && batch.expect_absent().is_ok());
                if !has_rows && !adds {
                    return Ok(None);
                }
                if !has_rows {
                    self.make_partition(connection, partition).await?;
                }
            }
            Err(Fault::from(damaged("the version counter of a partition is missing, or that of new partitions")))
        };
        let locked = timeout_at(until, locking).await.unwrap_or(Err(Fault::Silent)).map_err(all)?;
        let Some((counter, read)) = locked else {
            return Ok(places.iter().map(|&place| (place, group[place].expect_absent().map(|()| Vec::new()))).collect());
        };
        let decided = decide_all(&batches, counter, &read, now);
        let failed = |fault: Fault, is_sent: bool| (decided.answers.len(), Failure::of(fault, is_sent));
        if decided.runs.is_empty() {
            let undone = timeout_at(until, connection.run(ROLLBACK)).await.map_err(|_| Fault::Silent);
            undone.and_then(|undone| Ok(undone?)).map_err(|fault| failed(fault, false))?;
            return Ok(places.iter().copied().zip(decided.answers).collect());
        }
        let after = if decided.numbers > 0 { After::Known(decided.counter) } else { After::Counted(counter) };
        let mut plan = Plan::new(&self.tables, partition, after).marked(mark(connection, counter));
        let keyed: Vec<Vec<Cow<'_, BatchWrite>>> = decided.runs.iter().map(Run::keyed).collect();
        for (run, writes) in decided.runs.iter().zip(&keyed) {
            plan.add(&Effect::of(writes.iter().map(Cow::as_ref), now), run.counter, now);
        }
        let mut is_sent = false;
        let writing = timeout_at(until, self.write_plan(connection, plan.finish(), after, &mut is_sent)).await;
        let version = writing.unwrap_or(Err(Fault::Silent)).map_err(|fault| failed(fault, is_sent))?;
        decided.runs.iter().flat_map(|run| &run.batches).for_each(|batch| self.watches.notify_batch(batch, Version::new(version)));
        Ok(places.iter().copied().zip(decided.answers).collect())
    }

    async fn has_rows(&self, connection: &mut Connection, partition: &Partition) -> Result<bool, Fault> {
        let sql = format!("SELECT 1 FROM {} i WHERE {} LIMIT 1", self.tables.items, partition_range(partition));
        Ok(!connection.run(sql).await?.concat().is_empty())
    }

    /// Makes the counter of a partition without rows; any number of processes may do so at once.
    async fn make_partition(&self, connection: &mut Connection, partition: &Partition) -> Result<(), Fault> {
        let partitions = &self.tables.partitions;
        let sql = format!(
            "INSERT IGNORE INTO {partitions} SELECT {}, n.version FROM {partitions} n WHERE n.partition_name = {}",
            quoted(partition.encoded().as_bytes()),
            quoted(NEW.as_bytes())
        );
        Ok(run_repeatable(connection, &sql).await.map(drop)?)
    }

    /// Opens a transaction, locks the counter, and reads what preconditions need. One round trip, unless the keys
    /// exceed one packet. Returns `None`, without a transaction, if there is no such partition.
    async fn lock(
        &self,
        connection: &mut Connection,
        partition: &Partition,
        batches: &[&Batch],
        now: Timestamp,
    ) -> Result<Option<(u64, Read)>, Fault> {
        let live = live(now.as_microsecond());
        let items = &self.tables.items;
        let conditions = || {
            batches
                .iter()
                .enumerate()
                .flat_map(|(batch, of)| of.preconditions.iter().enumerate().map(move |(index, of)| ((batch, index), of)))
        };
        let is_of_key = |of: &Precondition| matches!(of.condition, Condition::Absent | Condition::Exists | Condition::Version(_));
        let keys = conditions().filter(|(_, of)| is_of_key(of)).map(|(_, of)| (&of.namespace, of.key.as_str()));
        let of_keys = in_keys("", keys);
        let of_key = |keys| format!("SELECT namespace, head, tail, version FROM {items} WHERE {keys} AND {live}");
        let mut statements: Vec<String> = of_keys.iter().map(of_key).collect();
        let mut beneath = Vec::new();
        for (place, of) in conditions() {
            let since = match of.condition {
                Condition::NoneBeneath => None,
                Condition::NoneBeneathSince(version) => Some(version.number()),
                Condition::Absent | Condition::Exists | Condition::Version(_) => continue,
                _ => unvalidated(),
            };
            let range = KeyRange::beneath(&of.key);
            let newer = since.map_or_else(String::new, |since| format!("AND version > {since} "));
            statements.push(format!(
                "SELECT version FROM {items} FORCE INDEX (PRIMARY) WHERE {} {newer}AND {live} ORDER BY namespace, head, digest LIMIT 1",
                in_range("", &of.namespace, &range)
            ));
            beneath.push(place);
        }
        let Some((counter, sets)) = self.begin(connection, partition, statements).await? else { return Ok(None) };
        let mut sets = sets.into_iter();
        let mut read = Read::default();
        for mut row in sets.by_ref().take(of_keys.len()).flatten() {
            let namespace = column::<String>(&mut row, 0)?;
            let key = super::key::join(column(&mut row, 1)?, &column::<Vec<u8>>(&mut row, 2)?)?;
            read.keys.insert((namespace, key), column(&mut row, 3)?);
        }
        for (place, rows) in beneath.into_iter().zip(sets) {
            if let Some(mut row) = rows.into_iter().next() {
                read.beneath.insert(place, column(&mut row, 0)?);
            }
        }
        Ok(Some((counter, read)))
    }

    /// Opens a transaction, locks the counter, and runs reads. Returns the counter and the rows of each read; `None`, without a transaction,
    /// if there is no such partition.
    pub(super) async fn begin(
        &self,
        connection: &mut Connection,
        partition: &Partition,
        reads: Vec<String>,
    ) -> Result<Option<(u64, VecDeque<Vec<Row>>)>, Fault> {
        let is_of_cluster = connection.is_of_cluster();
        let partitions = &self.tables.partitions;
        let name = quoted(partition.encoded().as_bytes());
        let locking = format!("SELECT version FROM {partitions} WHERE partition_name = {name} FOR UPDATE");
        let (mut text, last) = if is_of_cluster {
            // The counter is read last: if the mark is there, all reads were made in the transaction.
            let marking = format!("UPDATE {partitions} SET version = version + {MARK} WHERE partition_name = {name}");
            (format!("START TRANSACTION; SET SESSION autocommit = 0; {marking}"), Some(locking))
        } else {
            (format!("START TRANSACTION; {locking}"), None)
        };
        let mut sets = Vec::new();
        for statement in reads.into_iter().chain(last) {
            if text.len() + statement.len() > self.text_bytes_max {
                sets.extend(connection.run(std::mem::take(&mut text)).await?);
            }
            text += if text.is_empty() { "" } else { "; " };
            text += &statement;
        }
        sets.extend(connection.run(text).await?);
        // Skip the results of statements that are no reads.
        let mut sets: VecDeque<Vec<Row>> = sets.into_iter().skip(if is_of_cluster { 3 } else { 1 }).collect();
        let rows = if is_of_cluster { sets.pop_back() } else { sets.pop_front() };
        let Some(mut counter) = rows.and_then(|mut rows| rows.pop()) else {
            connection.run(ROLLBACK).await?;
            return Ok(None);
        };
        let counter: u64 = column(&mut counter, 0)?;
        match counter.checked_sub(MARK) {
            _ if !is_of_cluster => Ok(Some((counter, sets))),
            Some(counter) => Ok(Some((counter, sets))),
            None => Err(Fault::Engine(rolled_back())),
        }
    }

    /// Writes and commits. One round trip, three on a node of a Galera cluster, plus one per long body, and more if
    /// statements exceed one packet. Returns the counter afterwards; sets `is_sent` just before the commit is sent.
    async fn write_plan(
        &self,
        connection: &mut Connection,
        actions: Vec<Action<'_>>,
        after: After,
        is_sent: &mut bool,
    ) -> Result<u64, Fault> {
        let mut text = Vec::new();
        for action in actions {
            match action {
                Action::Statement(statement) => {
                    if !text.is_empty() && text.len() + statement.len() > self.text_bytes_max {
                        connection.run(std::mem::take(&mut text)).await?;
                    }
                    text.extend_from_slice(if text.is_empty() { b"" } else { b"; " });
                    text.extend_from_slice(&statement);
                }
                Action::Body { sql, parts, namespace, body } => {
                    if !text.is_empty() {
                        connection.run(std::mem::take(&mut text)).await?;
                    }
                    let parameters = (namespace.encoded().as_bytes(), parts.head, parts.digest(), body);
                    connection.conn.exec_drop(sql, parameters).await?;
                }
            }
        }
        // The plan ends with an update, so the text is not empty.
        if connection.is_of_cluster() {
            connection.run(text).await?;
            let counted = commit_in_cluster(connection, is_sent).await?;
            return Ok(match after {
                After::Known(version) => version,
                After::Counted(before) => counted.unwrap_or(before + 1),
            });
        }
        text.extend_from_slice(if matches!(after, After::Counted(_)) { b"; SELECT @v; COMMIT" } else { b"; COMMIT" });
        *is_sent = true;
        let sets = connection.run(text).await?;
        match after {
            After::Known(version) => Ok(version),
            After::Counted(_) => {
                let mut row = sets.into_iter().flatten().next().ok_or_else(|| damaged("the counter of a commit is missing"))?;
                column(&mut row, 0)
            }
        }
    }
}

/// Returns what [`Writer::begin`] left in the counter on a node of a Galera cluster.
pub(super) fn mark(connection: &Connection, counter: u64) -> Option<u64> {
    connection.is_of_cluster().then_some(counter + MARK)
}

/// Commits a transaction on a node of a Galera cluster, if its last statement has found the mark. Sets `is_sent` just before the commit is
/// sent. Returns the variable `@v`.
pub(super) async fn commit_in_cluster(connection: &mut Connection, is_sent: &mut bool) -> Result<Option<u64>, Fault> {
    if connection.conn.affected_rows() != 1 {
        return Err(Fault::Engine(rolled_back()));
    }
    *is_sent = true;
    connection.run("COMMIT").await?;
    // What fails now concerns the session, not the commit.
    match connection.run(AFTER_COMMIT).await {
        Ok(sets) => sets.into_iter().flatten().next().map(|mut row| column(&mut row, 0)).transpose().map(Option::flatten),
        Err(_) => {
            connection.is_spent = true;
            Ok(None)
        }
    }
}

fn unanswered() -> Error {
    Error::new(ErrorKind::Internal, "a batch was not answered; this is a bug in the program").with_unknown_effect()
}
