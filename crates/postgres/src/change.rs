//! The conditions and the changes of rows in the statements of a step.

use super::arrays::{KeyArrays, PlaceArrays, RangeArrays};
use super::key::{Key, lower_bound, upper_bound};
use super::part::Part;
use super::script::Script;
use super::step::{Change, Writing, number, numbered, puts};
use treehold_core::error::Result;
use treehold_store::effect::PutEffect;
use treehold_store::{Batch, Condition, Precondition, unvalidated};

/// The numbers for [`Condition::Absent`], [`Condition::Exists`] and a version that no row has, among wanted versions.
const ABSENT: i64 = -1;
const EXISTS: i64 = -2;
const NEVER: i64 = -3;

/// Joins rows with keys `d`, in a partition that the planner does not know: so it looks up each key, instead of comparing each row of the
/// partition with each key.
const MATCHES: &str = "i.partition = d.partition AND i.name = d.name AND i.head = d.head AND i.tail_digest = d.digest";

/// Joins rows of a partition with key ranges `d`.
const IN_RANGE: &str = "i.name = d.name AND i.head >= d.from_head AND (i.head > d.from_head OR i.tail >= d.from_tail)
    AND i.head <= d.to_head AND (i.head < d.to_head OR i.tail < d.to_tail)";

impl<'g> Writing<'_, 'g> {
    /// Adds `failing`: for each part, the first condition that fails, and the version it found.
    pub(super) fn push_conditions(&self, script: &mut Script<'g>, at: &str) {
        let schema = self.schema;
        let mut keys = KeyArrays::default();
        let mut ranges = RangeArrays::default();
        let (mut places, mut wanted) = (PlaceArrays::default(), Vec::new());
        let (mut range_places, mut since) = (PlaceArrays::default(), Vec::new());
        let all = numbered(self.parts).flat_map(|(part, Part { batches, .. })| {
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
        let now = script.parameter(self.now);
        script.push(", failing AS MATERIALIZED (SELECT DISTINCT ON (f.part) f.part, f.index, f.met FROM (");
        let places = places.parameters(script);
        let wanted = script.parameter(wanted);
        let keys = keys.parameters(script);
        // `OFFSET 0` keeps the subquery as it is: one lookup for each key.
        script.push(&format!(
            "SELECT d.part, d.index, i.version AS met
             FROM unnest({places}, {wanted}::bigint[], {keys}) AS d(part, index, wanted, name, head, digest)
             LEFT JOIN LATERAL (
               SELECT i.version FROM {schema}.rows i
               WHERE i.partition = {at}::text AND i.name = d.name AND i.head = d.head AND i.tail_digest = d.digest
                 AND (i.expires_at IS NULL OR i.expires_at > {now}::bigint) OFFSET 0) i ON true
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
                    AS d(part, index, since, name, from_head, from_tail, to_head, to_tail)
                  CROSS JOIN LATERAL (
                    SELECT i.version FROM {schema}.rows i
                    WHERE i.partition = {at}::text AND {IN_RANGE} AND i.version > d.since AND (i.expires_at IS NULL OR i.expires_at > {now}::bigint)
                    ORDER BY i.head, i.tail LIMIT 1) n"
            ));
        }
        script.push(") f ORDER BY f.part, f.index)");
    }

    pub(super) fn push_deletes(&self, script: &mut Script<'g>, at: &str) {
        let mut keys = KeyArrays::default();
        let mut indexes = Vec::new();
        let deletes = numbered(self.parts).flat_map(|(index, part)| part.effect.deletes.iter().map(move |at| (index, at)));
        for (index, (namespace, key)) in deletes.filter(|(_, (_, key))| !key.contains('\0')) {
            indexes.push(index);
            keys.push(namespace, key);
        }
        let indexes = script.parameter(indexes);
        let keys = keys.parameters(script);
        script.push(&format!(
            ", keys AS MATERIALIZED (
                 SELECT {at}::text AS partition, u.* FROM unnest({indexes}::int4[], {keys}) AS u(part, name, head, digest)
               ), deleted AS (DELETE FROM {}.rows i USING go, keys d WHERE d.part = go.part AND {}{MATCHES} RETURNING 1 AS one)",
            self.schema,
            self.on_one_node(at)
        ));
    }

    /// Adds the removals by prefix of a separate part.
    pub(super) fn push_clears(&self, script: &mut Script<'g>, at: &str) {
        let mut ranges = RangeArrays::default();
        let mut kept = KeyArrays::default();
        let prefixes = self.parts.iter().flat_map(|part| part.effect.prefixes.iter().map(move |at| (&part.effect, at)));
        for (effect, (namespace, prefix)) in prefixes.filter(|(_, (_, prefix))| !prefix.contains('\0')) {
            ranges.push(namespace, lower_bound(prefix).into_owned(), upper_bound(prefix));
            // The puts are in order, so those beneath a prefix follow each other.
            let first = effect.puts.partition_point(|put| (put.namespace, put.key) < (*namespace, *prefix));
            let puts = effect.puts[first..].iter().take_while(|put| put.namespace == *namespace && put.key.starts_with(prefix));
            puts.for_each(|put| kept.push(put.namespace, put.key));
        }
        let ranges = ranges.parameters(script);
        script.push(&format!(
            ", ranges AS MATERIALIZED (
                 SELECT {at}::text AS partition, u.* FROM unnest({ranges}) AS u(name, from_head, from_tail, to_head, to_tail)
               ), cleared AS (DELETE FROM {}.rows i USING go, ranges d WHERE {}i.partition = d.partition AND {IN_RANGE}",
            self.schema,
            self.on_one_node(at)
        ));
        if !kept.is_empty() {
            let kept = kept.parameters(script);
            script.push(&format!(
                " AND (i.name, i.head, i.tail_digest) NOT IN (SELECT k.name, k.head, k.digest FROM unnest({kept}) AS k(name, head, digest))"
            ));
        }
        script.push(" RETURNING 1 AS one)");
    }

    /// Adds the touches of a separate part.
    pub(super) fn push_touches(&self, script: &mut Script<'g>, at: &str) {
        let mut keys = KeyArrays::default();
        let mut ends = Vec::new();
        let touches = self.parts.iter().flat_map(|part| &part.effect.touches);
        for (namespace, key, expires_at) in touches.filter(|(_, key, _)| !key.contains('\0')) {
            keys.push(namespace, key);
            ends.push(*expires_at);
        }
        let keys = keys.parameters(script);
        let ends = script.parameter(ends);
        let now = script.parameter(self.now);
        script.push(&format!(
            ", keys AS MATERIALIZED (
                 SELECT {at}::text AS partition, u.* FROM unnest({keys}, {ends}::bigint[]) AS u(name, head, digest, expires_at)
               ), kept_alive AS (UPDATE {}.rows i SET expires_at = d.expires_at
                 FROM go, keys d WHERE {}{MATCHES} AND (i.expires_at IS NULL OR i.expires_at > {now}::bigint) RETURNING 1 AS one)",
            self.schema,
            self.on_one_node(at)
        ));
    }

    /// Adds puts with a rule for the creation time of a row that is there. Keys are never empty. A row appended to a log has no key yet; the
    /// server derives it from the version.
    pub(super) fn push_puts(&self, script: &mut Script<'g>, at: &str, change: Change, created_at: &str) -> Result<()> {
        let mut keys = KeyArrays::default();
        let of_parts = numbered(self.parts).flat_map(|(index, part)| puts(&part.effect, change).map(move |put| (index, put)));
        let (indexes, puts): (Vec<i32>, Vec<&PutEffect<'g>>) = of_parts.unzip();
        let indexes = script.parameter(indexes);
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
        let (schema, name) = (self.schema, change.name());
        script.push(&format!(
            ", {name} AS (INSERT INTO {schema}.rows AS i
                   (partition, name, head, tail, tail_digest, version, created_at, modified_at, expires_at, size, meta, body)
                 SELECT {at}::text, d.name, CASE d.head WHEN '' THEN lpad((go.version + 1 + d.number)::text, 20, '0') ELSE d.head END, d.tail,
                        d.digest, COALESCE(d.version, go.version + 1 + d.number), d.created_at, d.modified_at,
                        d.expires_at, octet_length(d.body), d.meta, d.body
                 FROM go JOIN unnest({indexes}::int4[], {tails}::text[], {keys}, {numbers}::bigint[], {versions}::bigint[], {created}::bigint[],
                   {modified}::bigint[], {ends}::bigint[], {metas}::bytea[], {bodies}::bytea[])
                   AS d(part, tail, name, head, digest, number, version, created_at, modified_at, expires_at, meta, body)
                   ON d.part = go.part
                 ON CONFLICT (partition, name, head, tail_digest) DO UPDATE SET
                   version = excluded.version, created_at = {created_at}, modified_at = excluded.modified_at,
                   expires_at = excluded.expires_at, size = excluded.size, meta = excluded.meta, body = excluded.body)"
        ));
        Ok(())
    }
}
