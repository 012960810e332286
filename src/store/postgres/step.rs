//! The statements of the writing side: the lock, and one for each batch, or for several that go together.
//!
//! A statement is put together from parts, so that a batch pays for what it has: conditions, puts, deletes, prefixes, touches.
//! All parts see the state before the statement; what a batch does twice to one row was folded by [`Effect`] before.

use super::key::{Key, lower_bound, upper_bound};
use super::script::Script;
use crate::error::{Error, Result};
use crate::store::effect::{Effect, PutEffect};
use crate::store::{Batch, BatchWrite, Condition, Namespace, Precondition};
use jiff::Timestamp;
use std::collections::BTreeSet;

/// What [`Condition::Absent`], [`Condition::Exists`] and a version that no row has are among wanted versions.
const ABSENT: i64 = -1;
const EXISTS: i64 = -2;
const NEVER: i64 = -3;

/// The columns that a key is found by, of an array of them.
const MATCHES: &str = "i.namespace = d.namespace AND i.head = d.head AND i.tail_digest = d.digest";

/// The range of keys of an array of such.
const LIES_IN: &str = "i.namespace = d.namespace AND i.head >= d.from_head AND (i.head > d.from_head OR i.tail >= d.from_tail)
    AND i.head <= d.to_head AND (i.head < d.to_head OR i.tail < d.to_tail)";

/// One statement of a group. It returns the counter before and after it, and with conditions the index of the first that does not
/// hold and the version that it met.
pub(super) struct Step<'g> {
    pub(super) script: Script<'g>,
    pub(super) batches: &'g [Batch],
    pub(super) has_conditions: bool,
    /// It needs no transaction around it.
    pub(super) is_alone: bool,
}

/// Tells whether a batch may be written by one statement with others before and behind it. A restore may not: the counter has to be
/// beyond its version before the next put.
pub(super) fn goes_with_others(batch: &Batch) -> bool {
    batch.preconditions.is_empty() && !batch.writes.iter().any(|write| matches!(write, BatchWrite::Restore { .. }))
}

/// Locks the counter, and notes for those who watch which namespaces may have changed since the version that it has then.
pub(super) fn lock<'g>(schema: &str, group: &'g [Batch]) -> Script<'g> {
    let mut script = Script::default();
    script.push(&format!("WITH go AS (SELECT version FROM {schema}.counter WHERE id = 1 FOR UPDATE)"));
    push_told(&mut script, schema, group);
    script.push(" SELECT version FROM go");
    script
}

impl<'g> Step<'g> {
    /// Writes the statement of batches that go together, or of one. `is_all` says that there is no other in the group.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) for a restored version that the engine's numbers cannot hold.
    pub(super) fn of(schema: &str, batches: &'g [Batch], is_all: bool, now: Timestamp) -> Result<Self> {
        let effect = Effect::of(batches.iter().flat_map(|batch| &batch.writes), now);
        let conditions = batches.first().map_or(&[][..], |batch| &batch.preconditions);
        let only_puts = effect.numbers > 0 && effect.deletes.is_empty() && effect.prefixes.is_empty() && effect.touches.is_empty();
        let is_alone = is_all && only_puts && effect.floor == 0 && conditions.is_empty();
        let now = now.as_microsecond();
        let mut script = Script::default();
        if is_alone {
            let numbers = script.parameter(number(effect.numbers)?);
            script.push(&format!(
                "WITH go AS (UPDATE {schema}.counter SET version = version + {numbers}::bigint WHERE id = 1
                 RETURNING version - {numbers}::bigint AS version, version AS after)"
            ));
            push_told(&mut script, schema, batches);
            push_puts(&mut script, schema, &effect, now)?;
            script.push(" SELECT version, after FROM go");
            return Ok(Self { script, batches, has_conditions: false, is_alone });
        }
        script.push(&format!("WITH base AS (SELECT version FROM {schema}.counter WHERE id = 1)"));
        push_conditions(&mut script, schema, conditions, now);
        script.push(", go AS (SELECT version FROM base");
        script.push(if conditions.is_empty() { ")" } else { " WHERE NOT EXISTS (SELECT 1 FROM failing))" });
        let removes = push_removals(&mut script, schema, &effect);
        push_touches(&mut script, schema, &effect, now);
        push_puts(&mut script, schema, &effect, now)?;
        let bumps = effect.numbers > 0 || !removes.is_empty();
        if effect.numbers > 0 {
            let numbers = script.parameter(number(effect.numbers)?);
            let floor = script.parameter(number(effect.floor)?);
            script.push(&format!(
                ", bumped AS (UPDATE {schema}.counter c SET version = greatest(c.version + {numbers}::bigint, {floor}::bigint)
                 FROM go WHERE c.id = 1 RETURNING c.version)"
            ));
        } else if bumps {
            let removed = removes.iter().map(|part| format!("EXISTS (SELECT 1 FROM {part})")).collect::<Vec<_>>().join(" OR ");
            script.push(&format!(
                ", bumped AS (UPDATE {schema}.counter c SET version = c.version + 1 FROM go WHERE c.id = 1 AND ({removed}) RETURNING c.version)"
            ));
        }
        script.push(" SELECT b.version");
        script.push(if bumps { ", COALESCE((SELECT version FROM bumped), b.version)" } else { ", b.version" });
        script.push(if conditions.is_empty() { " FROM base b" } else { ", f.index, f.met FROM base b LEFT JOIN failing f ON true" });
        Ok(Self { script, batches, has_conditions: !conditions.is_empty(), is_alone })
    }
}

/// Notes which namespaces a group writes to.
fn push_told<'g>(script: &mut Script<'g>, schema: &str, batches: &'g [Batch]) {
    let written: BTreeSet<&'g str> = batches.iter().flat_map(Batch::written).map(Namespace::encoded).collect();
    if written.is_empty() {
        return;
    }
    let written = script.parameter(written.into_iter().collect::<Vec<_>>());
    script.push(&format!(
        ", told AS (INSERT INTO {schema}.touched(namespace, version)
             SELECT w.namespace, go.version + 1 FROM go CROSS JOIN unnest({written}::text[]) AS w(namespace)
             ON CONFLICT (namespace) DO UPDATE SET version = excluded.version)"
    ));
}

/// Adds `failing`: the first condition that does not hold, and what it met.
fn push_conditions<'g>(script: &mut Script<'g>, schema: &str, conditions: &'g [Precondition], now: i64) {
    if conditions.is_empty() {
        return;
    }
    let mut keys = KeyArrays::default();
    let mut ranges = RangeArrays::default();
    let (mut indexes, mut wanted, mut range_indexes, mut since) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (index, Precondition { namespace, key, condition }) in conditions.iter().enumerate() {
        let index = i64::try_from(index).unwrap_or(i64::MAX);
        let newer_than = match condition {
            Condition::NoneBeneath => -1,
            Condition::NoneBeneathSince(version) => i64::try_from(version.number()).unwrap_or(i64::MAX),
            Condition::Absent | Condition::Exists | Condition::Version(_) => {
                wanted.push(match condition {
                    Condition::Absent => ABSENT,
                    Condition::Version(version) => i64::try_from(version.number()).unwrap_or(NEVER),
                    _ => EXISTS,
                });
                indexes.push(index);
                // No key is empty, and none holds NUL, which the engine takes in no text: both are absent.
                keys.push(namespace, if key.contains('\0') { "" } else { key });
                continue;
            }
        };
        if !key.contains('\0') {
            range_indexes.push(index);
            since.push(newer_than);
            ranges.push(namespace, format!("{key}\u{1}"), upper_bound(key));
        }
    }
    let now = script.parameter(now);
    script.push(", failing AS (SELECT f.index, f.met FROM (");
    let indexes = script.parameter(indexes);
    let wanted = script.parameter(wanted);
    let keys = keys.parameters(script);
    script.push(&format!(
        "SELECT d.index, i.version AS met FROM unnest({indexes}::bigint[], {wanted}::bigint[], {keys}) AS d(index, wanted, namespace, head, digest)
         LEFT JOIN {schema}.items i ON {MATCHES} AND (i.expires_at IS NULL OR i.expires_at > {now}::bigint)
         WHERE CASE d.wanted WHEN {ABSENT} THEN i.version IS NOT NULL WHEN {EXISTS} THEN i.version IS NULL
               ELSE i.version IS NULL OR i.version <> d.wanted END"
    ));
    if !range_indexes.is_empty() {
        let indexes = script.parameter(range_indexes);
        let since = script.parameter(since);
        let ranges = ranges.parameters(script);
        script.push(&format!(
            " UNION ALL SELECT d.index, n.version
              FROM unnest({indexes}::bigint[], {since}::bigint[], {ranges}) AS d(index, since, namespace, from_head, from_tail, to_head, to_tail)
              CROSS JOIN LATERAL (
                SELECT i.version FROM {schema}.items i
                WHERE {LIES_IN} AND i.version > d.since AND (i.expires_at IS NULL OR i.expires_at > {now}::bigint)
                ORDER BY i.head, i.tail LIMIT 1) n"
        ));
    }
    script.push(") f ORDER BY f.index LIMIT 1)");
}

/// Adds the removals, by key and by prefix; returns the names of the parts.
fn push_removals<'g>(script: &mut Script<'g>, schema: &str, effect: &Effect<'g>) -> Vec<&'static str> {
    let mut parts = Vec::new();
    let mut keys = KeyArrays::default();
    // What holds NUL is not there.
    effect.deletes.iter().filter(|(_, key)| !key.contains('\0')).for_each(|(namespace, key)| keys.push(namespace, key));
    if !keys.is_empty() {
        let keys = keys.parameters(script);
        script.push(&format!(
            ", deleted AS (DELETE FROM {schema}.items i USING go, unnest({keys}) AS d(namespace, head, digest) WHERE {MATCHES} RETURNING 1 AS one)"
        ));
        parts.push("deleted");
    }
    let mut ranges = RangeArrays::default();
    let mut kept = KeyArrays::default();
    for (namespace, prefix) in effect.prefixes.iter().filter(|(_, prefix)| !prefix.contains('\0')) {
        ranges.push(namespace, lower_bound(prefix).into_owned(), upper_bound(prefix));
        let puts = effect.puts.iter().filter(|put| put.namespace == *namespace && put.key.starts_with(prefix));
        puts.for_each(|put| kept.push(put.namespace, put.key));
    }
    if !ranges.is_empty() {
        let ranges = ranges.parameters(script);
        script.push(&format!(
            ", cleared AS (DELETE FROM {schema}.items i
                 USING go, unnest({ranges}) AS d(namespace, from_head, from_tail, to_head, to_tail) WHERE {LIES_IN}"
        ));
        if !kept.is_empty() {
            let kept = kept.parameters(script);
            script.push(&format!(
                " AND (i.namespace, i.head, i.tail_digest) NOT IN (SELECT k.namespace, k.head, k.digest FROM unnest({kept}) AS k(namespace, head, digest))"
            ));
        }
        script.push(" RETURNING 1 AS one)");
        parts.push("cleared");
    }
    parts
}

fn push_touches<'g>(script: &mut Script<'g>, schema: &str, effect: &Effect<'g>, now: i64) {
    let mut keys = KeyArrays::default();
    let mut ends = Vec::new();
    for (namespace, key, expires_at) in effect.touches.iter().filter(|(_, key, _)| !key.contains('\0')) {
        keys.push(namespace, key);
        ends.push(*expires_at);
    }
    if keys.is_empty() {
        return;
    }
    let keys = keys.parameters(script);
    let ends = script.parameter(ends);
    let now = script.parameter(now);
    script.push(&format!(
        ", kept_alive AS (UPDATE {schema}.items i SET expires_at = d.expires_at
             FROM go, unnest({keys}, {ends}::bigint[]) AS d(namespace, head, digest, expires_at)
             WHERE {MATCHES} AND (i.expires_at IS NULL OR i.expires_at > {now}::bigint) RETURNING 1 AS one)"
    ));
}

/// Adds the puts: those that keep the creation time of what they replace, and those that set it.
fn push_puts<'g>(script: &mut Script<'g>, schema: &str, effect: &Effect<'g>, now: i64) -> Result<()> {
    let (setting, keeping): (Vec<_>, Vec<_>) = effect.puts.iter().partition(|put| put.created_at.is_some());
    if !keeping.is_empty() {
        let now = script.parameter(now);
        let created_at =
            format!("CASE WHEN i.expires_at IS NULL OR i.expires_at > {now}::bigint THEN i.created_at ELSE excluded.created_at END");
        push_put_part(script, schema, "put_keeping", &keeping, &created_at)?;
    }
    if !setting.is_empty() {
        push_put_part(script, schema, "put_setting", &setting, "excluded.created_at")?;
    }
    Ok(())
}

fn push_put_part<'g>(script: &mut Script<'g>, schema: &str, part: &str, puts: &[&PutEffect<'g>], created_at: &str) -> Result<()> {
    let mut keys = KeyArrays::default();
    puts.iter().for_each(|put| keys.push(put.namespace, put.key));
    let tails = script.parameter(puts.iter().map(|put| Key::of(put.key).tail).collect::<Vec<_>>());
    let keys = keys.parameters(script);
    let numbers = script.parameter(puts.iter().map(|put| number(put.number)).collect::<Result<Vec<_>>>()?);
    let versions = script.parameter(puts.iter().map(|put| put.version.map(number).transpose()).collect::<Result<Vec<_>>>()?);
    let created = script.parameter(puts.iter().map(|put| put.created_at.unwrap_or(put.modified_at)).collect::<Vec<_>>());
    let modified = script.parameter(puts.iter().map(|put| put.modified_at).collect::<Vec<_>>());
    let ends = script.parameter(puts.iter().map(|put| put.expires_at).collect::<Vec<_>>());
    let metas = script.parameter(puts.iter().map(|put| put.meta).collect::<Vec<_>>());
    let bodies = script.parameter(puts.iter().map(|put| put.value).collect::<Vec<_>>());
    script.push(&format!(
        ", {part} AS (INSERT INTO {schema}.items AS i
               (namespace, head, tail, tail_digest, version, created_at, modified_at, expires_at, size, meta, body)
             SELECT d.namespace, d.head, d.tail, d.digest, COALESCE(d.version, go.version + 1 + d.number), d.created_at, d.modified_at,
                    d.expires_at, octet_length(d.body), d.meta, d.body
             FROM go CROSS JOIN unnest({tails}::text[], {keys}, {numbers}::bigint[], {versions}::bigint[], {created}::bigint[],
               {modified}::bigint[], {ends}::bigint[], {metas}::bytea[], {bodies}::bytea[])
               AS d(tail, namespace, head, digest, number, version, created_at, modified_at, expires_at, meta, body)
             ON CONFLICT (namespace, head, tail_digest) DO UPDATE SET
               version = excluded.version, created_at = {created_at}, modified_at = excluded.modified_at,
               expires_at = excluded.expires_at, size = excluded.size, meta = excluded.meta, body = excluded.body)"
    ));
    Ok(())
}

/// Converts a number of the counter.
fn number(number: u64) -> Result<i64> {
    let over = |_| Error::invalid_argument("a restored version is over what the database can keep").without_effect();
    i64::try_from(number).map_err(over)
}

/// Keys as the arrays that a statement takes: namespace, head, digest.
#[derive(Default)]
struct KeyArrays<'g> {
    namespaces: Vec<&'g str>,
    heads: Vec<&'g str>,
    digests: Vec<Vec<u8>>,
}

impl<'g> KeyArrays<'g> {
    fn push(&mut self, namespace: &'g Namespace, key: &'g str) {
        let key = Key::of(key);
        self.namespaces.push(namespace.encoded());
        self.heads.push(key.head);
        self.digests.push(key.digest());
    }

    fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    fn parameters(self, script: &mut Script<'g>) -> String {
        let (namespaces, heads) = (script.parameter(self.namespaces), script.parameter(self.heads));
        format!("{namespaces}::text[], {heads}::text[], {}::bytea[]", script.parameter(self.digests))
    }
}

/// Ranges of keys as arrays: namespace, and head and tail of the first key in it and the first behind it.
#[derive(Default)]
struct RangeArrays<'g> {
    namespaces: Vec<&'g str>,
    starts: Vec<String>,
    ends: Vec<String>,
}

impl<'g> RangeArrays<'g> {
    fn push(&mut self, namespace: &'g Namespace, start: String, end: String) {
        self.namespaces.push(namespace.encoded());
        self.starts.push(start);
        self.ends.push(end);
    }

    fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    fn parameters(self, script: &mut Script<'g>) -> String {
        let heads = |bounds: &[String]| bounds.iter().map(|bound| Key::of(bound).head.to_owned()).collect::<Vec<_>>();
        let tails = |bounds: &[String]| bounds.iter().map(|bound| Key::of(bound).tail.to_owned()).collect::<Vec<_>>();
        let namespaces = script.parameter(self.namespaces);
        let (from_heads, from_tails) = (script.parameter(heads(&self.starts)), script.parameter(tails(&self.starts)));
        let (to_heads, to_tails) = (script.parameter(heads(&self.ends)), script.parameter(tails(&self.ends)));
        format!("{namespaces}::text[], {from_heads}::text[], {from_tails}::text[], {to_heads}::text[], {to_tails}::text[]")
    }
}
