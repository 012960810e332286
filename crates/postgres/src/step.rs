//! The statements of the writing side: the lock, and one for each batch, or for several together.
//!
//! A statement is assembled from what its batches contain: conditions, puts, deletes, prefixes, touches. All parts of it see the state
//! before the statement. [`Effect`] has already folded repeated changes of a batch to one row, and the batches of one statement do not
//! overlap, see [`part`](super::part).

use super::key::{Key, lower_bound, upper_bound};
use super::part::Part;
use super::script::Script;
use jiff::Timestamp;
use std::collections::BTreeSet;
use treehold_core::error::{Error, Result};
use treehold_store::effect::{Effect, PutEffect};
use treehold_store::{Batch, Condition, Namespace, Precondition, unvalidated};

/// The numbers for [`Condition::Absent`], [`Condition::Exists`] and a version that no row has, among wanted versions.
const ABSENT: i64 = -1;
const EXISTS: i64 = -2;
const NEVER: i64 = -3;

/// Begins the transaction of a group, in one request. The whole group is sent before the first answer arrives. If only the beginning were
/// refused, each following statement would take effect by itself. So the transaction sets a mark, which ends with it, and without the mark
/// no statement of a group finds the counter or does anything.
pub(super) const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL treehold.in_group = 'on'";

/// The condition that a statement runs within the transaction of a group.
const IS_WITHIN: &str = "current_setting('treehold.in_group', true) = 'on'";

/// Joins rows with an array of keys.
const MATCHES: &str = "i.namespace = d.namespace AND i.head = d.head AND i.tail_digest = d.digest";

/// Joins rows with an array of key ranges.
const LIES_IN: &str = "i.namespace = d.namespace AND i.head >= d.from_head AND (i.head > d.from_head OR i.tail >= d.from_tail)
    AND i.head <= d.to_head AND (i.head < d.to_head OR i.tail < d.to_tail)";

/// One statement of a group, for one part or several. For each part, in order, it returns the counter before it, the counter after the
/// statement, and with conditions the index of the first that fails and the version it found.
pub(super) struct Step<'g> {
    pub(super) script: Script<'g>,
    /// The batches of each part.
    pub(super) parts: Vec<&'g [Batch]>,
    pub(super) has_conditions: bool,
    /// Whether the statement needs no transaction.
    pub(super) is_alone: bool,
}

/// Locks the counter, and records for watches which namespaces may have changed since its current version.
pub(super) fn lock<'g>(schema: &str, group: &'g [Batch]) -> Script<'g> {
    let mut script = Script::default();
    script.push(&format!("WITH go AS (SELECT version FROM {schema}.version_counter WHERE id = 1 AND {IS_WITHIN} FOR UPDATE)"));
    push_told(&mut script, schema, group);
    script.push(" SELECT version FROM go");
    script
}

impl<'g> Step<'g> {
    /// Builds the statement of parts that go together. `is_all` says that the group has no others.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for a restored version that exceeds the engine's numbers.
    pub(super) fn of(schema: &str, parts: &[Part<'g>], is_all: bool, now: Timestamp) -> Result<Self> {
        let now = now.as_microsecond();
        let batches = parts.iter().map(|part| part.batches).collect();
        let has_conditions = parts.iter().any(|part| part.batches.iter().any(|batch| !batch.preconditions.is_empty()));
        let mut script = Script::default();
        if let [Part { batches: all, effect }] = parts
            && is_all
            && !has_conditions
            && only_puts(effect)
        {
            let numbers = script.parameter(number(effect.numbers)?);
            script.push(&format!(
                "WITH go AS (UPDATE {schema}.version_counter SET version = version + {numbers}::bigint WHERE id = 1
                 RETURNING 0 AS part, version - {numbers}::bigint AS version, version AS after)"
            ));
            push_told(&mut script, schema, all);
            push_puts(&mut script, schema, parts, now)?;
            script.push(" SELECT version, after FROM go");
            return Ok(Self { script, parts: batches, has_conditions, is_alone: true });
        }
        script.push(&format!("WITH base AS (SELECT version FROM {schema}.version_counter WHERE id = 1 AND {IS_WITHIN})"));
        if has_conditions {
            push_conditions(&mut script, schema, parts, now);
        }
        push_go(&mut script, parts, has_conditions)?;
        let removes = push_removals(&mut script, schema, parts);
        push_touches(&mut script, schema, parts, now);
        push_puts(&mut script, schema, parts, now)?;
        let bumps = push_bump(&mut script, schema, parts, &removes)?;
        script.push(" SELECT COALESCE(g.version, b.version)");
        script.push(if bumps { ", COALESCE((SELECT version FROM bumped), b.version)" } else { ", b.version" });
        script.push(if has_conditions { ", f.index, f.met" } else { "" });
        script.push(" FROM base b CROSS JOIN parts p LEFT JOIN go g ON g.part = p.part");
        script.push(if has_conditions { " LEFT JOIN failing f ON f.part = p.part" } else { "" });
        script.push(" ORDER BY p.part");
        Ok(Self { script, parts: batches, has_conditions, is_alone: false })
    }
}

fn only_puts(effect: &Effect<'_>) -> bool {
    let Effect { deletes, prefixes, touches, numbers, floor, .. } = effect;
    *numbers > 0 && *floor == 0 && deletes.is_empty() && prefixes.is_empty() && touches.is_empty()
}

/// Numbers the parts, as the arrays of a statement refer to them.
fn numbered<'p, 'g>(parts: &'p [Part<'g>]) -> impl Iterator<Item = (i32, &'p Part<'g>)> {
    (0..).zip(parts)
}

/// Records which namespaces a group writes to.
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

/// Adds `parts`, all parts with the number of versions that they take, and `go`, those whose conditions hold, each with its initial
/// counter.
fn push_go(script: &mut Script<'_>, parts: &[Part<'_>], has_conditions: bool) -> Result<()> {
    let indexes = script.parameter(numbered(parts).map(|(index, _)| index).collect::<Vec<_>>());
    let numbers = script.parameter(parts.iter().map(|part| number(part.effect.numbers)).collect::<Result<Vec<_>>>()?);
    let holds = if has_conditions { "WHERE NOT EXISTS (SELECT 1 FROM failing f WHERE f.part = p.part)" } else { "" };
    script.push(&format!(
        ", parts AS (SELECT p.part, p.numbers FROM unnest({indexes}::int[], {numbers}::bigint[]) AS p(part, numbers))
         , go AS (SELECT p.part, p.numbers, b.version + COALESCE(sum(p.numbers) OVER (
                ORDER BY p.part ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0)::bigint AS version
             FROM base b CROSS JOIN parts p {holds})"
    ));
    Ok(())
}

/// Adds `bumped`, which raises the counter, if the parts can raise it at all. Returns whether it did. Only a separate part takes no number
/// or has a floor.
fn push_bump(script: &mut Script<'_>, schema: &str, parts: &[Part<'_>], removes: &[&'static str]) -> Result<bool> {
    if parts.iter().any(|part| part.effect.numbers > 0) {
        let floor = script.parameter(number(parts.iter().map(|part| part.effect.floor).max().unwrap_or(0))?);
        script.push(&format!(
            ", bumped AS (UPDATE {schema}.version_counter c SET version = greatest(c.version + g.numbers, {floor}::bigint)
             FROM (SELECT sum(numbers)::bigint AS numbers FROM go HAVING count(*) > 0) g WHERE c.id = 1 RETURNING c.version)"
        ));
        return Ok(true);
    }
    if !removes.is_empty() {
        let removed = removes.iter().map(|part| format!("EXISTS (SELECT 1 FROM {part})")).collect::<Vec<_>>().join(" OR ");
        script.push(&format!(
            ", bumped AS (UPDATE {schema}.version_counter c SET version = c.version + 1 FROM go WHERE c.id = 1 AND ({removed}) RETURNING c.version)"
        ));
    }
    Ok(!removes.is_empty())
}

/// Adds `failing`: for each part, the first condition that fails, and the version it found.
fn push_conditions<'g>(script: &mut Script<'g>, schema: &str, parts: &[Part<'g>], now: i64) {
    let mut keys = KeyArrays::default();
    let mut ranges = RangeArrays::default();
    let (mut places, mut wanted, mut range_places, mut since) = (PlaceArrays::default(), Vec::new(), PlaceArrays::default(), Vec::new());
    let all = numbered(parts).flat_map(|(part, Part { batches, .. })| {
        let batches: &'g [Batch] = batches;
        batches.iter().flat_map(|batch| &batch.preconditions).zip(0..).map(move |(condition, index)| ((part, index), condition))
    });
    for (place, Precondition { namespace, key, condition }) in all {
        let newer_than = match condition {
            Condition::NoneBeneath => -1,
            Condition::NoneBeneathSince(version) => i64::try_from(version.number()).unwrap_or(i64::MAX),
            Condition::Absent | Condition::Exists | Condition::Version(_) => {
                wanted.push(match condition {
                    Condition::Absent => ABSENT,
                    Condition::Version(version) => i64::try_from(version.number()).unwrap_or(NEVER),
                    _ => EXISTS,
                });
                places.push(place);
                // Keys are never empty, and none contains NUL, which the engine does not accept in text: both count as absent.
                keys.push(namespace, if key.contains('\0') { "" } else { key });
                continue;
            }
            _ => unvalidated(),
        };
        if !key.contains('\0') {
            range_places.push(place);
            since.push(newer_than);
            ranges.push(namespace, format!("{key}\u{1}"), upper_bound(key));
        }
    }
    let now = script.parameter(now);
    script.push(", failing AS (SELECT DISTINCT ON (f.part) f.part, f.index, f.met FROM (");
    let places = places.parameters(script);
    let wanted = script.parameter(wanted);
    let keys = keys.parameters(script);
    script.push(&format!(
        "SELECT d.part, d.index, i.version AS met
         FROM unnest({places}, {wanted}::bigint[], {keys}) AS d(part, index, wanted, namespace, head, digest)
         LEFT JOIN {schema}.rows i ON {MATCHES} AND (i.expires_at IS NULL OR i.expires_at > {now}::bigint)
         WHERE CASE d.wanted WHEN {ABSENT} THEN i.version IS NOT NULL WHEN {EXISTS} THEN i.version IS NULL
               ELSE i.version IS NULL OR i.version <> d.wanted END"
    ));
    if !ranges.is_empty() {
        let places = range_places.parameters(script);
        let since = script.parameter(since);
        let ranges = ranges.parameters(script);
        script.push(&format!(
            " UNION ALL SELECT d.part, d.index, n.version
              FROM unnest({places}, {since}::bigint[], {ranges})
                AS d(part, index, since, namespace, from_head, from_tail, to_head, to_tail)
              CROSS JOIN LATERAL (
                SELECT i.version FROM {schema}.rows i
                WHERE {LIES_IN} AND i.version > d.since AND (i.expires_at IS NULL OR i.expires_at > {now}::bigint)
                ORDER BY i.head, i.tail LIMIT 1) n"
        ));
    }
    script.push(") f ORDER BY f.part, f.index)");
}

/// Adds the removals, by key and by prefix, of a separate part. Returns their names.
fn push_removals<'g>(script: &mut Script<'g>, schema: &str, parts: &[Part<'g>]) -> Vec<&'static str> {
    let mut removes = Vec::new();
    let mut keys = KeyArrays::default();
    let mut indexes = Vec::new();
    let deletes = numbered(parts).flat_map(|(index, part)| part.effect.deletes.iter().map(move |at| (index, at)));
    // A key with NUL does not exist.
    for (index, (namespace, key)) in deletes.filter(|(_, (_, key))| !key.contains('\0')) {
        indexes.push(index);
        keys.push(namespace, key);
    }
    if !keys.is_empty() {
        let indexes = script.parameter(indexes);
        let keys = keys.parameters(script);
        script.push(&format!(
            ", deleted AS (DELETE FROM {schema}.rows i USING go, unnest({indexes}::int[], {keys}) AS d(part, namespace, head, digest)
                 WHERE d.part = go.part AND {MATCHES} RETURNING 1 AS one)"
        ));
        removes.push("deleted");
    }
    let mut ranges = RangeArrays::default();
    let mut kept = KeyArrays::default();
    let prefixes = parts.iter().flat_map(|part| part.effect.prefixes.iter().map(move |at| (&part.effect, at)));
    for (effect, (namespace, prefix)) in prefixes.filter(|(_, (_, prefix))| !prefix.contains('\0')) {
        ranges.push(namespace, lower_bound(prefix).into_owned(), upper_bound(prefix));
        // The puts are in order, so those beneath a prefix follow each other.
        let first = effect.puts.partition_point(|put| (put.namespace, put.key) < (*namespace, *prefix));
        let puts = effect.puts[first..].iter().take_while(|put| put.namespace == *namespace && put.key.starts_with(prefix));
        puts.for_each(|put| kept.push(put.namespace, put.key));
    }
    if !ranges.is_empty() {
        let ranges = ranges.parameters(script);
        script.push(&format!(
            ", cleared AS (DELETE FROM {schema}.rows i
                 USING go, unnest({ranges}) AS d(namespace, from_head, from_tail, to_head, to_tail) WHERE {LIES_IN}"
        ));
        if !kept.is_empty() {
            let kept = kept.parameters(script);
            script.push(&format!(
                " AND (i.namespace, i.head, i.tail_digest) NOT IN (SELECT k.namespace, k.head, k.digest FROM unnest({kept}) AS k(namespace, head, digest))"
            ));
        }
        script.push(" RETURNING 1 AS one)");
        removes.push("cleared");
    }
    removes
}

/// Adds the touches of a separate part.
fn push_touches<'g>(script: &mut Script<'g>, schema: &str, parts: &[Part<'g>], now: i64) {
    let mut keys = KeyArrays::default();
    let mut ends = Vec::new();
    for (namespace, key, expires_at) in parts.iter().flat_map(|part| &part.effect.touches).filter(|(_, key, _)| !key.contains('\0')) {
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
        ", kept_alive AS (UPDATE {schema}.rows i SET expires_at = d.expires_at
             FROM go, unnest({keys}, {ends}::bigint[]) AS d(namespace, head, digest, expires_at)
             WHERE {MATCHES} AND (i.expires_at IS NULL OR i.expires_at > {now}::bigint) RETURNING 1 AS one)"
    ));
}

/// Adds the puts: those that keep the creation time of the row they replace, and those that set it. Keys are never empty. A row appended to
/// a log has no key yet; the server derives it from the version.
fn push_puts<'g>(script: &mut Script<'g>, schema: &str, parts: &[Part<'g>], now: i64) -> Result<()> {
    let puts = numbered(parts).flat_map(|(index, part)| part.effect.puts.iter().chain(&part.effect.appends).map(move |put| (index, put)));
    let (setting, keeping): (Vec<_>, Vec<_>) = puts.partition(|(_, put)| put.created_at.is_some());
    if !keeping.is_empty() {
        let now = script.parameter(now);
        let created_at =
            format!("CASE WHEN i.expires_at IS NULL OR i.expires_at > {now}::bigint THEN i.created_at ELSE excluded.created_at END");
        push_puts_as(script, schema, "put_keeping", &keeping, &created_at)?;
    }
    if !setting.is_empty() {
        push_puts_as(script, schema, "put_setting", &setting, "excluded.created_at")?;
    }
    Ok(())
}

fn push_puts_as<'g>(script: &mut Script<'g>, schema: &str, name: &str, puts: &[(i32, &PutEffect<'g>)], created_at: &str) -> Result<()> {
    let mut keys = KeyArrays::default();
    let indexes = script.parameter(puts.iter().map(|(index, _)| *index).collect::<Vec<_>>());
    let puts: Vec<_> = puts.iter().map(|(_, put)| *put).collect();
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
        ", {name} AS (INSERT INTO {schema}.rows AS i
               (namespace, head, tail, tail_digest, version, created_at, modified_at, expires_at, size, meta, body)
             SELECT d.namespace, CASE d.head WHEN '' THEN lpad((go.version + 1 + d.number)::text, 20, '0') ELSE d.head END, d.tail, d.digest,
                    COALESCE(d.version, go.version + 1 + d.number), d.created_at, d.modified_at,
                    d.expires_at, octet_length(d.body), d.meta, d.body
             FROM go JOIN unnest({indexes}::int[], {tails}::text[], {keys}, {numbers}::bigint[], {versions}::bigint[], {created}::bigint[],
               {modified}::bigint[], {ends}::bigint[], {metas}::bytea[], {bodies}::bytea[])
               AS d(part, tail, namespace, head, digest, number, version, created_at, modified_at, expires_at, meta, body)
               ON d.part = go.part
             ON CONFLICT (namespace, head, tail_digest) DO UPDATE SET
               version = excluded.version, created_at = {created_at}, modified_at = excluded.modified_at,
               expires_at = excluded.expires_at, size = excluded.size, meta = excluded.meta, body = excluded.body)"
    ));
    Ok(())
}

/// Converts a number of the counter.
fn number(number: u64) -> Result<i64> {
    let over = |_| Error::invalid_argument("the version of the item to restore exceeds what the database can keep").without_effect();
    i64::try_from(number).map_err(over)
}

/// Keys as the arrays of a statement: namespace, head, digest.
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

/// The positions of conditions as arrays: the part, and the index within it.
#[derive(Default)]
struct PlaceArrays {
    parts: Vec<i32>,
    indexes: Vec<i64>,
}

impl PlaceArrays {
    fn push(&mut self, (part, index): (i32, i64)) {
        self.parts.push(part);
        self.indexes.push(index);
    }

    fn parameters(self, script: &mut Script<'_>) -> String {
        let (parts, indexes) = (script.parameter(self.parts), script.parameter(self.indexes));
        format!("{parts}::int[], {indexes}::bigint[]")
    }
}

/// Ranges of keys as arrays: namespace, and head and tail of the first key within it and of the first after it.
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
