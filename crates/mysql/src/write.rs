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

use super::error::{Fault, damaged, failed_together, is_apart, is_busy, is_lost, is_undecided, rolled_back, silent};
use super::key::KeyRange;
use super::overlay::{Met, Overlay};
use super::plan::{Action, After, Plan, PlannedKeys};
use super::pool::{Connection, Loan, Pool, ROLLBACK, column};
use super::schema::run_repeatable;
use super::sql::{NEW, Tables, in_keys, in_range, live, partition_of, partition_range, quoted};
use async_trait::async_trait;
use jiff::Timestamp;
use mysql_async::Row;
use mysql_async::prelude::Queryable;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::timeout_at;
use treehold_core::clock::Clock;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Version;
use treehold_store::combiner::GroupWriter;
use treehold_store::effect::Effect;
use treehold_store::watch::Watches;
use treehold_store::{
    Batch, BatchWrite, Condition, Namespace, Partition, Precondition, log_key, precondition_failed, unvalidated, whole_microseconds,
};

/// How long a group is retried while other writers interfere.
const PATIENCE: Duration = Duration::from_secs(20);

/// The pause before a group is retried that lost to other writers.
const BUSY_PAUSE: Duration = Duration::from_millis(5);

/// The pause before a group is retried on a node that is not part of its cluster.
const APART_PAUSE: Duration = Duration::from_millis(100);

/// What stands in the counter during a transaction on a node of a Galera cluster, added to its number. No store has made as many commits.
const MARK: u64 = 1 << 62;

/// What follows a commit on a node of a Galera cluster.
const AFTER_COMMIT: &str = "SELECT @v; SET SESSION autocommit = 1";

/// How many rows a sweep removes per transaction.
const SWEEP_ROWS: usize = 1_000;

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
            Err(Fault::from(damaged("the version counter of a partition that has rows is missing")))
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
    async fn begin(
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

    /// Removes up to `limit` expired rows.
    pub(super) async fn sweep(&self, limit: usize) -> Result<usize> {
        let until = Instant::now() + PATIENCE;
        let mut swept = 0;
        while swept < limit {
            let rows = (limit - swept).min(SWEEP_ROWS);
            let mut loan = self.pool.take().await?;
            match self.sweep_within(loan.connection(), rows).await {
                Ok(count) => {
                    loan.give_back();
                    swept += count;
                    if count < rows {
                        break;
                    }
                }
                Err(Fault::Engine(error)) if is_busy(&error) && Instant::now() < until => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                Err(fault) if swept == 0 && fault.is_lost() && Instant::now() < until => {
                    // Expired rows already count as absent, so removing them twice does no harm.
                    self.pool.clear();
                    drop(loan);
                    let mut loan = self.pool.take().await?;
                    swept += self.sweep_within(loan.connection(), rows).await?;
                    loan.give_back();
                }
                Err(fault) => return Err(fault.into()),
            }
        }
        Ok(swept)
    }

    async fn sweep_within(&self, connection: &mut Connection, limit: usize) -> Result<usize, Fault> {
        tokio::time::timeout(self.pool.timeout(), self.sweep_some(connection, limit)).await.unwrap_or(Err(Fault::Silent))
    }

    async fn sweep_some(&self, connection: &mut Connection, limit: usize) -> Result<usize, Fault> {
        let over = self.clock.now().as_microsecond();
        let Tables { items, partitions, .. } = &self.tables;
        // The rows of a partition whose counter is missing stay: without them it would look new, and use versions again.
        let read = format!(
            "SELECT i.namespace, i.head, i.tail FROM {items} i FORCE INDEX (by_expiry) WHERE i.expires_at <= {over} \
             AND EXISTS (SELECT 1 FROM {partitions} p WHERE p.partition_name = {}) ORDER BY i.expires_at LIMIT {limit}",
            partition_of("i.namespace")
        );
        let mut partitions = BTreeMap::<Partition, PlannedKeys>::new();
        for keys in planned_keys(connection.run(read).await?.into_iter().flatten())? {
            partitions.entry(keys.0.partition()).or_default().push(keys.0, keys.1);
        }
        let mut swept = 0;
        for (partition, keys) in &partitions {
            swept += self.sweep_partition(connection, partition, keys, over).await?;
        }
        Ok(swept)
    }

    /// Removes these rows of a partition if they are still expired.
    async fn sweep_partition(
        &self,
        connection: &mut Connection,
        partition: &Partition,
        keys: &PlannedKeys,
        over: i64,
    ) -> Result<usize, Fault> {
        let items = &self.tables.items;
        let still = |keys: String| format!("SELECT namespace, head, tail FROM {items} WHERE {keys} AND expires_at <= {over}");
        let reads = keys.conditions().into_iter().map(still).collect();
        let missing = || damaged("the version counter of a partition that has rows is missing");
        let (version, sets) = self.begin(connection, partition, reads).await?.ok_or_else(missing)?;
        let mut keys = PlannedKeys::default();
        for (namespace, key) in planned_keys(sets.into_iter().flatten())? {
            keys.push(namespace, key);
        }
        if keys.len() == 0 {
            connection.run(ROLLBACK).await?;
            return Ok(0);
        }
        let mut text = String::new();
        for statement in keys.deletes(&self.tables, partition, version, mark(connection, version)) {
            if !text.is_empty() && text.len() + statement.len() > self.text_bytes_max {
                connection.run(std::mem::take(&mut text)).await?;
            }
            text += if text.is_empty() { "" } else { "; " };
            text += &statement;
        }
        if connection.is_of_cluster() {
            connection.run(text).await?;
            commit_in_cluster(connection, &mut false).await?;
        } else {
            connection.run(text + "; COMMIT").await?;
        }
        Ok(keys.len())
    }
}

/// Reads the keys of rows.
fn planned_keys(rows: impl Iterator<Item = Row>) -> Result<Vec<(Namespace, String)>, Fault> {
    let key = |mut row: Row| {
        let namespace = Namespace::from_encoded(&column::<String>(&mut row, 0)?)?;
        Ok((namespace, super::key::join(column(&mut row, 1)?, &column::<Vec<u8>>(&mut row, 2)?)?))
    };
    rows.map(key).collect()
}

/// Returns what [`Writer::begin`] left in the counter on a node of a Galera cluster.
fn mark(connection: &Connection, counter: u64) -> Option<u64> {
    connection.is_of_cluster().then_some(counter + MARK)
}

/// Commits a transaction on a node of a Galera cluster, if its last statement has found the mark. Sets `is_sent` just before the commit is
/// sent. Returns the variable `@v`.
async fn commit_in_cluster(connection: &mut Connection, is_sent: &mut bool) -> Result<Option<u64>, Fault> {
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

/// The decisions on the batches of a transaction.
#[derive(Default)]
struct Decided<'g> {
    /// The answers, up to the first batch that must wait for the next transaction.
    answers: Vec<Result<Vec<Version>>>,
    runs: Vec<Run<'g>>,
    /// How many numbers the batches take from the counter.
    numbers: u64,
    /// The counter after them, if they take any.
    counter: u64,
}

/// Batches written as one.
struct Run<'g> {
    batches: Vec<&'g Batch>,
    /// The counter before them.
    counter: u64,
    /// Whether the run restores items. Then the counter ends above their versions rather than above the run's numbers.
    restores: bool,
}

impl<'g> Run<'g> {
    /// Returns the writes. Appends to logs get their keys here, since the versions are known.
    fn keyed(&self) -> Vec<Cow<'g, BatchWrite>> {
        let mut number = self.counter;
        let writes = self.batches.iter().flat_map(|batch| &batch.writes);
        let keyed = writes.map(|write| {
            number += u64::from(matches!(write, BatchWrite::Put { .. } | BatchWrite::Append { .. } | BatchWrite::Restore { .. }));
            match write {
                BatchWrite::Append { namespace, meta, value, time_to_live } => Cow::Owned(BatchWrite::Put {
                    namespace: namespace.clone(),
                    key: log_key(Version::new(number)),
                    meta: meta.clone(),
                    value: value.clone(),
                    time_to_live: *time_to_live,
                    created_at: None,
                }),
                write => Cow::Borrowed(write),
            }
        });
        keyed.collect()
    }
}

/// What was read for the preconditions.
#[derive(Debug, Default)]
struct Read {
    /// The versions of live rows, by namespace and key.
    keys: HashMap<(String, String), u64>,
    /// The versions found below prefixes, by batch and index of the condition.
    beneath: HashMap<(usize, usize), u64>,
}

enum Decision {
    Holds,
    Refused(Error),
    /// The batch depends on an earlier batch's writes in a way that only the server can decide.
    Waits,
}

/// Decides batches in order. Every put or restore takes a number from the counter; if the batches have none, a removal advances it by one.
fn decide_all<'g>(batches: &[&'g Batch], counter: u64, read: &Read, now: Timestamp) -> Decided<'g> {
    let mut decided = Decided { counter, ..Decided::default() };
    let mut overlay = Overlay::default();
    for (index, &batch) in batches.iter().enumerate() {
        match decide(&overlay, read, index, batch) {
            Decision::Waits => break,
            Decision::Refused(error) => decided.answers.push(Err(error)),
            Decision::Holds => {
                if batches[index + 1..].iter().any(|later| !later.preconditions.is_empty()) {
                    overlay.add(&Effect::of(&batch.writes, now), decided.counter, now);
                }
                decided.accept(batch);
            }
        }
    }
    decided
}

impl<'g> Decided<'g> {
    /// Accepts a batch whose preconditions hold, and records its answer.
    fn accept(&mut self, batch: &'g Batch) {
        let (before, mut floor, mut versions) = (self.counter, None, Vec::new());
        for write in &batch.writes {
            match write {
                BatchWrite::Put { .. } | BatchWrite::Append { .. } => versions.push(Version::new(self.counter + 1)),
                BatchWrite::Restore { item, .. } => floor = floor.max(Some(item.version.number())),
                BatchWrite::Touch { .. } | BatchWrite::Delete { .. } | BatchWrite::DeletePrefix { .. } => continue,
                _ => unvalidated(),
            }
            self.counter += 1;
            self.numbers += 1;
        }
        self.counter = self.counter.max(floor.unwrap_or(0));
        self.answers.push(Ok(versions));
        let restores = floor.is_some();
        match self.runs.last_mut() {
            _ if batch.is_empty() => {}
            Some(run) if !run.restores && !restores => run.batches.push(batch),
            _ => self.runs.push(Run { batches: vec![batch], counter: before, restores }),
        }
    }
}

/// Decides a batch by what was read and what earlier batches write.
fn decide(overlay: &Overlay<'_>, read: &Read, place: usize, batch: &Batch) -> Decision {
    for (index, precondition) in batch.preconditions.iter().enumerate() {
        let Precondition { namespace, key, condition } = precondition;
        let met = match condition {
            Condition::NoneBeneath | Condition::NoneBeneathSince(_) if overlay.is_beneath(namespace, key) => return Decision::Waits,
            Condition::NoneBeneath | Condition::NoneBeneathSince(_) => read.beneath.get(&(place, index)).copied(),
            Condition::Absent | Condition::Exists | Condition::Version(_) => match overlay.met(namespace, key) {
                Some(Met::Version(version)) => Some(version),
                Some(Met::Absent) => None,
                None => read.keys.get(&(namespace.encoded().to_owned(), key.clone())).copied(),
            },
            _ => unvalidated(),
        };
        let met = met.map(Version::new);
        if !condition.holds(met) {
            return Decision::Refused(precondition_failed(index, precondition, met));
        }
    }
    Decision::Holds
}

fn unanswered() -> Error {
    Error::new(ErrorKind::Internal, "a batch was not answered; this is a bug in the program").with_unknown_effect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use treehold_store::Item;

    #[test]
    fn batches_merge_into_one_write_up_to_a_restore() {
        let a = Namespace::parse("a").expect("a legal namespace");
        let now = Timestamp::from_microsecond(1_000).expect("a time");
        let item = Item::new("r", Bytes::new(), Bytes::new(), Version::new(70), now, now);
        let batches = [
            Batch::new().put(&a, "k", "").put(&a, "k", ""),
            Batch::new().delete_prefix(&a, "d/"),
            Batch::new().expect(&a, "k", Condition::Version(Version::new(12))).put(&a, "l", ""),
            Batch::new(),
            Batch::new().expect(&a, "k", Condition::Version(Version::new(11))).put(&a, "never", ""),
            Batch::new().restore(&a, item).put(&a, "m", ""),
            Batch::new().put(&a, "n", ""),
            Batch::new().expect(&a, "d/", Condition::NoneBeneath),
            Batch::new().put(&a, "never", ""),
        ];
        let decided = decide_all(&batches.iter().collect::<Vec<_>>(), 10, &Read::default(), now);
        let answers: Vec<Option<Vec<u64>>> = decided
            .answers
            .iter()
            .map(|answer| answer.as_ref().ok().map(|versions| versions.iter().map(|version| version.number()).collect()))
            .collect();
        let expected = [Some(vec![11, 12]), Some(vec![]), Some(vec![13]), Some(vec![]), None, Some(vec![15]), Some(vec![71])];
        assert_eq!(answers, expected, "the last but one depends on a removed prefix and waits");
        let runs: Vec<(usize, u64)> = decided.runs.iter().map(|run| (run.batches.len(), run.counter)).collect();
        assert_eq!((runs, decided.counter, decided.numbers), (vec![(3, 10), (1, 13), (1, 70)], 71, 6));
    }
}
