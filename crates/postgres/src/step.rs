//! The statements of the writing side: the lock, and for each batch, or for several together, one statement or more.
//!
//! All rows of a group lie in one partition, whose row in the table `partitions` has the counter. A statement is assembled from what its
//! batches contain: conditions, removals, touches, puts. All parts of it see the state before the statement. It changes no table twice,
//! which distributed engines refuse, so further changes of rows are in statements of their own that follow it. They find in the column
//! `starts` of the counter which batches they are for. No part of a statement reads what another part writes, except by `RETURNING`: not all
//! engines run the parts at one moment. [`Effect`] has already folded repeated changes of a batch to one row, and the batches
//! of one statement do not overlap, see [`part`](super::part), so the order of the changes does not matter.

use super::part::Part;
use super::schema::Tables;
use super::script::Script;
use jiff::Timestamp;
use std::collections::BTreeSet;
use treehold_core::error::{Error, Result};
use treehold_store::effect::{Effect, PutEffect};
use treehold_store::{Batch, Namespace, Partition};

/// Begins the transaction of a group, in one request. The whole group is sent before the first answer arrives. If only the beginning were
/// refused, each following statement would take effect by itself. If the lock found no row, a later statement might find one that another
/// process has made meanwhile. So the lock sets a mark, which ends with its transaction, and without the mark no statement of a group finds
/// the counter or does anything.
pub(super) const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";

/// Begins it in a Citus cluster, where other nodes run the statements: the mark is passed on to them. The lock cannot set it there, and
/// fails if it finds no row.
pub(super) const BEGIN_SHARDED: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL citus.propagate_set_commands = 'local'; \
                                        SET LOCAL treehold.in_group = 'on'";

/// The condition that a statement runs within the transaction of a group that holds the lock.
const IS_WITHIN: &str = "current_setting('treehold.in_group', true) = 'on'";

/// One or more statements of a group, for one part or several.
///
/// The first returns for each part, in order, the counter before it, the counter after the statement, and with conditions the index of the
/// first that fails and the version it found. Each further one returns the counter after it.
pub(super) struct Step<'g> {
    pub(super) scripts: Vec<Script<'g>>,
    /// The batches of each part.
    pub(super) parts: Vec<&'g [Batch]>,
    pub(super) has_conditions: bool,
    /// Whether the statement needs no transaction.
    pub(super) is_alone: bool,
}

/// Locks the counter, and lists the namespaces that are written to. If there is no such partition yet it finds no row, or in a Citus cluster
/// divides by zero.
pub(super) fn lock<'g>(tables: &Tables, partition: &'g Partition, group: &'g [Batch]) -> Script<'g> {
    let Tables { schema, is_sharded, .. } = tables;
    let mut script = Script::default();
    let at = script.parameter(partition.encoded());
    let within = if *is_sharded { format!(" AND {IS_WITHIN}") } else { String::new() };
    script.push(&format!(
        "WITH go AS MATERIALIZED (SELECT version FROM {schema}.partitions WHERE partition = {at}::text{within} FOR UPDATE)"
    ));
    push_listed(&mut script, schema, &at, group);
    script.push(if *is_sharded { " SELECT 1 / count(*) FROM go" } else { " SELECT set_config('treehold.in_group', 'on', true) FROM go" });
    script
}

impl<'g> Step<'g> {
    /// Builds the statements of parts that go together. `is_all` says that the group has no others.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for a restored version that exceeds the engine's numbers.
    pub(super) fn of(tables: &Tables, partition: &'g Partition, parts: &[Part<'g>], is_all: bool, now: Timestamp) -> Result<Self> {
        let batches = parts.iter().map(|part| part.batches).collect();
        let has_conditions = parts.iter().any(|part| part.batches.iter().any(|batch| !batch.preconditions.is_empty()));
        let changes = changes(parts);
        let Tables { schema, is_sharded, .. } = tables;
        let writing = Writing { schema, is_sharded: *is_sharded, partition, parts, now: now.as_microsecond() };
        if let ([Part { batches: all, effect }], [change]) = (parts, &changes[..])
            && is_all
            && !has_conditions
            && only_puts(effect)
        {
            let scripts = vec![writing.alone(all, effect, *change)?];
            return Ok(Self { scripts, parts: batches, has_conditions, is_alone: true });
        }
        let (first, others) = changes.split_first().map_or((None, &[][..]), |(first, others)| (Some(*first), others));
        let mut scripts = vec![writing.first(first, !others.is_empty(), has_conditions)?];
        for change in others {
            scripts.push(writing.next(*change)?);
        }
        Ok(Self { scripts, parts: batches, has_conditions, is_alone: false })
    }
}

/// A change of rows that one statement can make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// Removals by key.
    Delete,
    /// Removals by prefix.
    Clear,
    Touch,
    /// Puts that keep the creation time of the row they replace, and appends to logs, which replace none.
    Put,
    /// Puts that set the creation time.
    PutAnew,
}

impl Change {
    /// The name in the statement for the rows it changed.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Delete => "deleted",
            Self::Clear => "cleared",
            Self::Touch => "kept_alive",
            Self::Put => "put_keeping",
            Self::PutAnew => "put_setting",
        }
    }

    fn removes(self) -> bool {
        matches!(self, Self::Delete | Self::Clear)
    }
}

/// Returns the changes that the parts need, removals first.
fn changes(parts: &[Part<'_>]) -> Vec<Change> {
    let any = |is_there: &dyn Fn(&Effect<'_>) -> bool| parts.iter().any(|part| is_there(&part.effect));
    let is_text = |text: &str| !text.contains('\0');
    let needed = [
        // The engine accepts no NUL in text, and no key contains one.
        (Change::Delete, any(&|effect| effect.deletes.iter().any(|(_, key)| is_text(key)))),
        (Change::Clear, any(&|effect| effect.prefixes.iter().any(|(_, prefix)| is_text(prefix)))),
        (Change::Touch, any(&|effect| effect.touches.iter().any(|(_, key, _)| is_text(key)))),
        (Change::Put, any(&|effect| puts(effect, Change::Put).next().is_some())),
        (Change::PutAnew, any(&|effect| puts(effect, Change::PutAnew).next().is_some())),
    ];
    needed.into_iter().filter_map(|(change, is_needed)| is_needed.then_some(change)).collect()
}

/// Returns the puts that one of the two kinds makes.
pub(super) fn puts<'e, 'g>(effect: &'e Effect<'g>, change: Change) -> impl Iterator<Item = &'e PutEffect<'g>> {
    let is_anew = change == Change::PutAnew;
    let appends = effect.appends.iter().filter(move |_| !is_anew);
    effect.puts.iter().filter(move |put| put.created_at.is_some() == is_anew).chain(appends)
}

/// The parts of a step, and where they are written.
pub(super) struct Writing<'w, 'g> {
    pub(super) schema: &'w str,
    pub(super) is_sharded: bool,
    pub(super) partition: &'g Partition,
    pub(super) parts: &'w [Part<'g>],
    pub(super) now: i64,
}

impl<'g> Writing<'_, 'g> {
    /// Returns the condition that tells the coordinator of a cluster on which node the rows are. Other planners must not know it.
    pub(super) fn on_one_node(&self, at: &str) -> String {
        if self.is_sharded { format!("i.partition = {at}::text AND ") } else { String::new() }
    }

    /// Builds the statement of a group that only puts. Raising the counter waits for the lock.
    fn alone(&self, batches: &'g [Batch], effect: &Effect<'g>, change: Change) -> Result<Script<'g>> {
        let schema = self.schema;
        let mut script = Script::default();
        let at = script.parameter(self.partition.encoded());
        let numbers = script.parameter(number(effect.numbers)?);
        script.push(&format!(
            "WITH go AS (UPDATE {schema}.partitions SET version = version + {numbers}::bigint WHERE partition = {at}::text
             RETURNING 0 AS part, version - {numbers}::bigint AS version, version AS after)"
        ));
        push_listed(&mut script, schema, &at, batches);
        self.push_change(&mut script, &at, change)?;
        script.push(" SELECT version, after FROM go");
        Ok(script)
    }

    /// Builds the statement that checks the conditions, raises the counter and makes the first change. `has_others` says that more changes
    /// follow.
    fn first(&self, change: Option<Change>, has_others: bool, has_conditions: bool) -> Result<Script<'g>> {
        let Self { schema, parts, .. } = self;
        let mut script = Script::default();
        let at = script.parameter(self.partition.encoded());
        script.push(&format!(
            "WITH base AS MATERIALIZED (SELECT version FROM {schema}.partitions WHERE partition = {at}::text AND {IS_WITHIN})"
        ));
        if has_conditions {
            self.push_conditions(&mut script, &at);
        }
        push_go(&mut script, parts, has_conditions)?;
        if let Some(change) = change {
            self.push_change(&mut script, &at, change)?;
        }
        let bumps = self.push_bump(&mut script, &at, change, has_others)?;
        script.push(" SELECT COALESCE(g.version, b.version)");
        script.push(if bumps { ", COALESCE((SELECT version FROM bumped), b.version)" } else { ", b.version" });
        script.push(if has_conditions { ", f.index, f.met" } else { "" });
        script.push(" FROM base b CROSS JOIN parts p LEFT JOIN go g ON g.part = p.part");
        script.push(if has_conditions { " LEFT JOIN failing f ON f.part = p.part" } else { "" });
        script.push(" ORDER BY p.part");
        Ok(script)
    }

    /// Builds a statement that makes another change, after [`first`](Self::first).
    fn next(&self, change: Change) -> Result<Script<'g>> {
        let schema = self.schema;
        let mut script = Script::default();
        let at = script.parameter(self.partition.encoded());
        let indexes = script.parameter(numbered(self.parts).map(|(index, _)| index).collect::<Vec<_>>());
        script.push(&format!(
            "WITH go AS MATERIALIZED (SELECT p.part, c.starts[p.part + 1] AS version
             FROM {schema}.partitions c CROSS JOIN unnest({indexes}::int4[]) AS p(part)
             WHERE c.partition = {at}::text AND c.starts[p.part + 1] IS NOT NULL AND {IS_WITHIN})"
        ));
        self.push_change(&mut script, &at, change)?;
        // Only a part of its own takes no number.
        if change.removes() && self.parts.iter().all(|part| part.effect.numbers == 0) {
            script.push(&format!(
                ", bumped AS (UPDATE {schema}.partitions c SET version = greatest(c.version, c.starts[1] + 1)
                 WHERE c.partition = {at}::text AND EXISTS (SELECT 1 FROM {}) RETURNING c.version)
                 SELECT COALESCE((SELECT version FROM bumped), c.version) FROM {schema}.partitions c WHERE c.partition = {at}::text",
                change.name()
            ));
        } else {
            script.push(&format!(" SELECT c.version FROM {schema}.partitions c WHERE c.partition = {at}::text"));
        }
        Ok(script)
    }

    /// Adds `bumped`, which raises the counter, if the statement can raise it at all, and keeps the starts of the parts for the statements
    /// that follow. Returns whether it did. Only a separate part takes no number or has a floor.
    fn push_bump(&self, script: &mut Script<'_>, at: &str, change: Option<Change>, has_others: bool) -> Result<bool> {
        let (schema, parts) = (self.schema, self.parts);
        let takes_numbers = parts.iter().any(|part| part.effect.numbers > 0);
        let removed = change.filter(|change| change.removes()).map(|change| format!("EXISTS (SELECT 1 FROM {})", change.name()));
        let grown = if takes_numbers {
            let floor = script.parameter(number(parts.iter().map(|part| part.effect.floor).max().unwrap_or(0))?);
            format!("greatest(c.version + g.numbers, {floor}::bigint)")
        } else {
            match &removed {
                Some(removed) => format!("c.version + CASE WHEN {removed} THEN 1 ELSE 0 END"),
                None => "c.version".to_owned(),
            }
        };
        if has_others {
            script.push(&format!(
                ", bumped AS (UPDATE {schema}.partitions c
                 SET version = CASE WHEN g.count > 0 THEN {grown} ELSE c.version END, starts = g.starts
                 FROM (SELECT COALESCE(sum(g.numbers), 0)::bigint AS numbers, count(g.part) AS count, array_agg(g.version ORDER BY p.part) AS starts
                       FROM parts p LEFT JOIN go g ON g.part = p.part) g
                 WHERE c.partition = {at}::text AND EXISTS (SELECT 1 FROM base) RETURNING c.version)"
            ));
        } else if takes_numbers {
            script.push(&format!(
                ", bumped AS (UPDATE {schema}.partitions c SET version = {grown}
                 FROM (SELECT sum(numbers)::bigint AS numbers FROM go HAVING count(*) > 0) g WHERE c.partition = {at}::text RETURNING c.version)"
            ));
        } else if let Some(removed) = &removed {
            script.push(&format!(
                ", bumped AS (UPDATE {schema}.partitions c SET version = c.version + 1 FROM go WHERE c.partition = {at}::text AND {removed}
                 RETURNING c.version)"
            ));
        }
        Ok(has_others || takes_numbers || removed.is_some())
    }

    fn push_change(&self, script: &mut Script<'g>, at: &str, change: Change) -> Result<()> {
        match change {
            Change::Delete => self.push_deletes(script, at),
            Change::Clear => self.push_clears(script, at),
            Change::Touch => self.push_touches(script, at),
            Change::Put => {
                let now = script.parameter(self.now);
                let created_at = format!(
                    "CASE WHEN i.expires_at IS NULL OR i.expires_at > {now}::bigint THEN i.created_at ELSE excluded.created_at END"
                );
                return self.push_puts(script, at, change, &created_at);
            }
            Change::PutAnew => return self.push_puts(script, at, change, "excluded.created_at"),
        }
        Ok(())
    }
}

fn only_puts(effect: &Effect<'_>) -> bool {
    let Effect { deletes, prefixes, touches, numbers, floor, .. } = effect;
    *numbers > 0 && *floor == 0 && deletes.is_empty() && prefixes.is_empty() && touches.is_empty()
}

/// Numbers the parts, as the arrays of a statement refer to them.
pub(super) fn numbered<'p, 'g>(parts: &'p [Part<'g>]) -> impl Iterator<Item = (i32, &'p Part<'g>)> {
    (0..).zip(parts)
}

/// Lists the namespaces that a group writes to.
fn push_listed<'g>(script: &mut Script<'g>, schema: &str, at: &str, batches: &'g [Batch]) {
    let written: BTreeSet<&'g str> = batches.iter().flat_map(Batch::written).map(name).collect();
    if written.is_empty() {
        return;
    }
    let written = script.parameter(written.into_iter().collect::<Vec<_>>());
    script.push(&format!(
        ", listed AS (INSERT INTO {schema}.namespaces(partition, name)
             SELECT {at}::text, w.name FROM go CROSS JOIN unnest({written}::text[]) AS w(name) ON CONFLICT (partition, name) DO NOTHING)"
    ));
}

/// Adds `parts`, all parts with the number of versions that they take, and `go`, those whose conditions hold, each with its initial
/// counter.
fn push_go(script: &mut Script<'_>, parts: &[Part<'_>], has_conditions: bool) -> Result<()> {
    let indexes = script.parameter(numbered(parts).map(|(index, _)| index).collect::<Vec<_>>());
    let numbers = script.parameter(parts.iter().map(|part| number(part.effect.numbers)).collect::<Result<Vec<_>>>()?);
    let holds = if has_conditions { "WHERE NOT EXISTS (SELECT 1 FROM failing f WHERE f.part = p.part)" } else { "" };
    script.push(&format!(
        ", parts AS (SELECT p.part, p.numbers FROM unnest({indexes}::int4[], {numbers}::bigint[]) AS p(part, numbers))
         , go AS MATERIALIZED (SELECT p.part, p.numbers, b.version + COALESCE(sum(p.numbers) OVER (
                ORDER BY p.part ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0)::bigint AS version
             FROM base b CROSS JOIN parts p {holds})"
    ));
    Ok(())
}

/// Returns the text of a namespace within its partition.
pub(super) fn name(namespace: &Namespace) -> &str {
    namespace.encoded_parts().1
}

/// Converts a number of the counter.
pub(super) fn number(number: u64) -> Result<i64> {
    let over = |_| Error::invalid_argument("the version of the item to restore exceeds what the database can keep").without_effect();
    i64::try_from(number).map_err(over)
}
