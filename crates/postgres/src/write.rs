//! The writing side: a group of batches of one partition is one transaction and one round trip.
//!
//! The row of the partition in the table `partitions` has its counter, and orders all writers of it: each transaction locks it first. Later
//! statements begin once the lock is held, so they see everything that earlier holders committed. Conditions are therefore checked against
//! the newest state, versions become visible in order, and nothing is rolled back because of another writer. Writers of different partitions
//! share no lock, and each group has a connection of its own.
//!
//! Independent batches are written by one statement, see `part.rs`. A group that only puts needs no transaction: its one statement raises
//! the counter, which waits for the lock, and its puts replace the newest rows whatever they are.

use super::connect::{Connections, TIMEOUT_MAX, run};
use super::error::{damaged, failed, gave_way, is_lost, is_of_one, is_refusal, silent};
use super::part::statements;
use super::read::{self, version};
use super::schema::Tables;
use super::script::Script;
use super::step::{BEGIN, BEGIN_SHARDED, Step, lock};
use async_trait::async_trait;
use deadpool_postgres::ClientWrapper;
use futures::future::maybe_done;
use jiff::Timestamp;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use treehold_core::backoff::Backoff;
use treehold_core::clock::Clock;
use treehold_core::error::{Error, Result};
use treehold_core::ops::Version;
use treehold_store::combiner::GroupWriter;
use treehold_store::watch::Watches;
use treehold_store::{Batch, BatchWrite, Partition, precondition_failed, whole_microseconds};

/// How often a transaction that gave way is restarted. Only distributed engines make one give way.
const RESTARTS_MAX: u32 = 12;

/// The pause before such a restart.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(4), Duration::from_millis(500));

/// A connection that was idle for this long is tested before anything is written on it.
const IDLE: Duration = Duration::from_secs(5);

/// Writes on connections of its own.
#[derive(Debug)]
pub(super) struct PostgresWriter {
    pub(super) connections: Connections,
    /// Connections that nobody writes on, and since when.
    pub(super) idle: Mutex<Vec<(ClientWrapper, Instant)>>,
    pub(super) watches: Arc<Watches>,
    pub(super) clock: Clock,
    pub(super) tables: Tables,
    pub(super) timeout: Duration,
}

#[async_trait]
impl GroupWriter for PostgresWriter {
    async fn write(&self, partition: &Partition, group: &[Batch]) -> Vec<Result<Vec<Version>>> {
        // One deadline for the whole group, so that the waiting batches know how long they wait.
        let deadline = Instant::now() + self.timeout.min(TIMEOUT_MAX);
        match self.write_together(partition, group, deadline).await {
            Ok(answers) => answers,
            // One of them caused an engine error, and the group had no effect: try each batch separately.
            Err(Fault { is_of_one: true, .. }) if group.len() > 1 => {
                let mut answers = Vec::with_capacity(group.len());
                for batch in group {
                    match self.write_together(partition, std::slice::from_ref(batch), deadline).await {
                        Ok(alone) => answers.extend(alone),
                        // The rest would fail in the same way.
                        Err(Fault { error, is_of_one: false }) if error.is_without_effect() => {
                            answers.extend(refuse(group.len() - answers.len(), error));
                            break;
                        }
                        Err(Fault { error, .. }) => answers.push(Err(error)),
                    }
                }
                answers
            }
            Err(Fault { error, .. }) => refuse(group.len(), error),
        }
    }
}

/// Why a group was not written.
struct Fault {
    error: Error,
    /// Whether a statement was refused, without effect, for a reason that may apply to one batch only.
    is_of_one: bool,
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self { error, is_of_one: false }
    }
}

impl PostgresWriter {
    /// Writes a group, unless the deadline comes first.
    async fn write_together(&self, partition: &Partition, group: &[Batch], deadline: Instant) -> Result<Vec<Result<Vec<Version>>>, Fault> {
        let now = whole_microseconds(self.clock.now());
        let steps = self.steps(partition, group, now)?;
        let mut is_second = false;
        for attempt in 0.. {
            let kept = self.idle.lock().pop();
            let connected = timeout_at(deadline, self.connection(kept)).await;
            let connection = connected.unwrap_or_else(|_| Err(silent().without_effect()))?;
            if Instant::now() >= deadline {
                self.put_back(connection);
                return Err(silent().without_effect().into());
            }
            let done = timeout_at(deadline, self.transact(&connection, &steps, partition, group)).await;
            let Ok(done) = done else { return Err(silent().with_unknown_effect().into()) };
            match done {
                Ok(Some(rows)) => {
                    self.put_back(connection);
                    return self.answers(group, &steps, &rows).map_err(|error| error.with_unknown_effect().into());
                }
                // There is no such partition, and nothing was done. Where another process makes it meanwhile, the second attempt finds it.
                Ok(None) => {
                    let adds = group.iter().any(|batch| batch.adds() && batch.expect_absent().is_ok());
                    let asked = timeout_at(deadline, self.has_rows_or_make(&connection, partition, adds)).await;
                    let has_rows = asked.unwrap_or_else(|_| Err(silent())).map_err(Error::without_effect)?;
                    self.put_back(connection);
                    if is_second && (has_rows || adds) {
                        return Err(damaged("the version counter of a partition is missing").without_effect().into());
                    }
                    if !adds && !has_rows {
                        return Ok(group.iter().map(|batch| batch.expect_absent().map(|()| Vec::new())).collect());
                    }
                    is_second = true;
                }
                Err(broken) => {
                    let (is_lost, gave_way) = (is_lost(&broken.error), gave_way(&broken.error));
                    let is_of_one = is_of_one(&broken.error) && !is_lost && !broken.may_have_effect;
                    if !is_lost {
                        self.put_back(connection);
                    }
                    if gave_way && attempt < RESTARTS_MAX {
                        BACKOFF.wait(attempt).await;
                        continue;
                    }
                    let error = failed(broken.error);
                    let error = if broken.may_have_effect { error.with_unknown_effect() } else { error.without_effect() };
                    return Err(Fault { error, is_of_one });
                }
            }
        }
        Err(silent().without_effect().into())
    }

    /// Returns whether a partition without a counter has rows. If it has none, `makes` says to make its counter; any number of processes may
    /// do so at once.
    async fn has_rows_or_make(&self, connection: &ClientWrapper, partition: &Partition, makes: bool) -> Result<bool> {
        let rows = run(connection, &read::has_rows(&self.tables.schema, partition)).await.map_err(failed)?;
        if !rows.is_empty() || !makes {
            return Ok(!rows.is_empty());
        }
        let mut script = Script::new(format!("INSERT INTO {}.partitions(partition, version) VALUES (", self.tables.schema));
        let (at, first_version) = (script.parameter(partition.encoded()), script.parameter(self.tables.first_version));
        script.push(&format!("{at}, {first_version}) ON CONFLICT (partition) DO NOTHING"));
        run(connection, &script).await.map(|_| false).map_err(failed)
    }

    /// Keeps a working connection for the next group.
    fn put_back(&self, connection: ClientWrapper) {
        self.idle.lock().push((connection, Instant::now()));
    }

    /// Returns a working connection: the existing one, unless it is closed, or was idle and does not answer.
    async fn connection(&self, kept: Option<(ClientWrapper, Instant)>) -> Result<ClientWrapper> {
        if let Some((connection, used)) = kept
            && !connection.is_closed()
            && (used.elapsed() < IDLE || self.answers_still(&connection).await)
        {
            return Ok(connection);
        }
        self.connections.make().await
    }

    /// Tests a connection, for a part of the available time: a new one must be made in the rest.
    async fn answers_still(&self, connection: &ClientWrapper) -> bool {
        matches!(tokio::time::timeout(self.timeout / 4, connection.simple_query("")).await, Ok(Ok(_)))
    }

    /// Runs the steps as one transaction, sending all of them before waiting for the first answer. Returns `None` if there is no such
    /// partition.
    async fn transact(
        &self,
        connection: &ClientWrapper,
        steps: &[Step<'_>],
        partition: &Partition,
        group: &[Batch],
    ) -> Result<Option<Vec<Vec<Row>>>, Broken> {
        if let [Step { scripts, is_alone: true, .. }] = steps
            && let [script] = &scripts[..]
        {
            return match run(connection, script).await {
                Ok(rows) => Ok((!rows.is_empty()).then(|| vec![rows])),
                Err(error) => Err(Broken { may_have_effect: !is_refusal(&error), error }),
            };
        }
        let unsent = |error| Broken { error, may_have_effect: false };
        let lock = lock(&self.tables, partition, group);
        let scripts: Vec<&Script<'_>> = std::iter::once(&lock).chain(steps.iter().flat_map(|step| &step.scripts)).collect();
        let mut statements = Vec::with_capacity(scripts.len());
        for script in &scripts {
            statements.push(connection.prepare_cached(&script.sql).await.map_err(unsent)?);
        }
        let parameters: Vec<_> = scripts.iter().map(|script| script.parameters()).collect();
        let begin = connection.batch_execute(if self.tables.is_sharded { BEGIN_SHARDED } else { BEGIN });
        let queries = statements.iter().zip(&parameters).map(|(statement, parameters)| connection.query(statement, parameters));
        let commit = connection.batch_execute("COMMIT");
        // The client sends a request when it is first polled. So the requests go out in this order, and then the answers arrive.
        let mut begin = Box::pin(maybe_done(begin));
        let mut queries: Vec<_> = queries.map(|query| Box::pin(maybe_done(query))).collect();
        let mut commit = Box::pin(maybe_done(commit));
        let _ = futures::poll!(begin.as_mut());
        for query in &mut queries {
            let _ = futures::poll!(query.as_mut());
        }
        let _ = futures::poll!(commit.as_mut());
        begin.as_mut().await;
        let mut refused = begin.as_mut().take_output().and_then(Result::err);
        let mut rows = Vec::with_capacity(queries.len());
        for mut query in queries {
            query.as_mut().await;
            match query.as_mut().take_output() {
                Some(Ok(found)) => rows.push(found),
                Some(Err(error)) => refused = refused.or(Some(error)),
                None => {}
            }
        }
        commit.as_mut().await;
        let committed = commit.as_mut().take_output().unwrap_or(Ok(()));
        match (refused, committed) {
            // The lock found no row, which rolled everything back.
            (Some(error), _) if self.tables.is_sharded && error.code() == Some(&SqlState::DIVISION_BY_ZERO) => Ok(None),
            // The first refusal rolled everything back, as the server reported. If the connection broke, the outcome is unknown.
            (Some(error), _) => Err(Broken { may_have_effect: error.as_db_error().is_none(), error }),
            (None, Err(error)) => Err(Broken { may_have_effect: !is_refusal(&error), error }),
            (None, Ok(())) => {
                let locked = rows.remove(0);
                Ok((!locked.is_empty()).then_some(rows))
            }
        }
    }

    /// Builds the statements of a group.
    fn steps<'g>(&self, partition: &'g Partition, group: &'g [Batch], now: Timestamp) -> Result<Vec<Step<'g>>> {
        let statements = statements(group, now);
        statements.iter().map(|parts| Step::of(&self.tables, partition, parts, statements.len() == 1, now)).collect()
    }

    /// Decodes the results of the statements, and notifies the watches.
    fn answers(&self, group: &[Batch], steps: &[Step<'_>], rows: &[Vec<Row>]) -> Result<Vec<Result<Vec<Version>>>> {
        let mut answers = Vec::with_capacity(group.len());
        let mut rows = rows.iter();
        for step in steps {
            let first = rows.next().filter(|rows| rows.len() == step.parts.len());
            let first = first.ok_or_else(|| damaged("the version counter of a partition is missing"))?;
            let mut after = Version::new(0);
            for row in first.iter().chain(rows.by_ref().take(step.scripts.len() - 1).flatten()) {
                // The counter after a statement is in the second column of the first one, and the only one of the others.
                after = after.max(version(row.try_get(usize::from(row.len() > 1)).map_err(failed)?)?);
            }
            for (batches, row) in step.parts.iter().zip(first) {
                self.answer(batches, step.has_conditions, row, after, &mut answers)?;
            }
        }
        Ok(answers)
    }

    /// Decodes the result of one part. `after` is the counter after all statements of its step.
    fn answer(
        &self,
        batches: &[Batch],
        has_conditions: bool,
        row: &Row,
        after: Version,
        answers: &mut Vec<Result<Vec<Version>>>,
    ) -> Result<()> {
        let before = version(row.try_get(0).map_err(failed)?)?;
        let failing: Option<i64> = if has_conditions { row.try_get(2).map_err(failed)? } else { None };
        if let Some(index) = failing.and_then(|index| usize::try_from(index).ok()) {
            let met = row.try_get::<_, Option<i64>>(3).map_err(failed)?.map(version).transpose()?;
            answers.push(Err(precondition_failed(index, &batches[0].preconditions[index], met)));
            return Ok(());
        }
        let mut number = before.number();
        for batch in batches {
            let mut versions = Vec::new();
            for write in &batch.writes {
                number += u64::from(matches!(write, BatchWrite::Put { .. } | BatchWrite::Append { .. } | BatchWrite::Restore { .. }));
                if matches!(write, BatchWrite::Put { .. } | BatchWrite::Append { .. }) {
                    versions.push(Version::new(number));
                }
            }
            answers.push(Ok(versions));
            if after > before {
                self.watches.notify_batch(batch, after);
            }
        }
        Ok(())
    }
}

/// A transaction that did not complete.
struct Broken {
    error: tokio_postgres::Error,
    may_have_effect: bool,
}

/// Answers a group with the same failure.
fn refuse(answers: usize, error: Error) -> Vec<Result<Vec<Version>>> {
    let (kind, message, may_have_effect) = (error.kind(), error.message().to_owned(), error.may_have_effect());
    let source = Arc::new(error);
    let again = || {
        let error = Error::new(kind, message.clone()).with_source(source.clone());
        Err(if may_have_effect { error.with_unknown_effect() } else { error.without_effect() })
    };
    std::iter::repeat_with(again).take(answers).collect()
}
