//! The reading side: each read is one statement, so it shows one moment of the store and costs one round trip.

use super::error::{damaged, failed};
use super::key::{Key, lower_bound, upper_bound};
use super::schema::Tables;
use super::script::Script;
use bytes::Bytes;
use jiff::Timestamp;
use std::collections::HashMap;
use std::ops::Range;
use tokio_postgres::Row;
use treehold_core::error::Result;
use treehold_core::file::BINARY_PROBE_BYTES;
use treehold_core::ops::Version;
use treehold_store::holding::sought;
use treehold_store::page::{PageBuilder, PageRow, Step};
use treehold_store::within;
use treehold_store::{Item, ItemPart, Namespace, NamespacePage, NamespacesOptions, Partition, Scan, ScanOptions};

/// The shortest body in bytes that the server searches. Sending a shorter one takes no longer.
const TESTED_BYTES_MIN: u32 = 1 << 10;

/// The columns of an item, in the order in which they are read.
const COLUMNS: &str = "i.head, i.tail, i.version, i.created_at, i.modified_at, i.expires_at, i.size, i.meta";

/// The most rows that the first step of a walk takes, and the first after a group, the next one, and all others.
const CHUNKS: [i64; 3] = [2, 16, 256];

/// Selects one item.
pub(super) fn get<'p>(schema: &str, namespace: &'p Namespace, key: &str, now: i64) -> Script<'p> {
    let script = Script::new(format!("SELECT {COLUMNS}, i.body FROM {schema}.rows i WHERE "));
    of_key(script, namespace, key, now)
}

/// Selects one item with a part of its body. For an uncompressed body the engine reads only the pages that hold the part.
pub(super) fn get_part<'p>(schema: &str, namespace: &'p Namespace, key: &str, range: &Range<u64>, now: i64) -> Script<'p> {
    // No body reaches this limit, and the engine adds start and length as 32-bit numbers.
    let clamped = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX).min((1 << 30) - 1);
    let mut script = Script::new(format!("SELECT {COLUMNS}, substring(i.body FROM "));
    let start = script.parameter(clamped(range.start) + 1);
    let length = script.parameter(clamped(range.end.saturating_sub(range.start)));
    script.push(&format!("{start}::bigint::int FOR {length}::bigint::int) FROM {schema}.rows i WHERE "));
    of_key(script, namespace, key, now)
}

/// Completes a query for one item.
fn of_key<'p>(mut script: Script<'p>, namespace: &'p Namespace, key: &str, now: i64) -> Script<'p> {
    let key = Key::of(key);
    let namespace = script.lies_in(namespace);
    let head = script.parameter(key.head.to_owned());
    let digest = script.parameter(key.digest());
    let now = script.parameter(now);
    script
        .push(&format!("{namespace} AND i.head = {head} AND i.tail_digest = {digest} AND (i.expires_at IS NULL OR i.expires_at > {now})"));
    script
}

/// Selects several items.
///
/// `OFFSET 0` keeps the subquery as it is: one lookup by the whole key for each requested item. For a plain join, while the table was small
/// or without statistics, the planner chose a walk over the namespace that compares each row with each key, and prepared statements keep
/// their plan: 13 s instead of 0.13 s for 2,000 keys of 20,000.
pub(super) fn get_many<'p>(schema: &str, namespace: &'p Namespace, keys: &[&'p str], with_values: bool, now: i64) -> Script<'p> {
    // The engine accepts no NUL in text, and no key contains one.
    let cut: Vec<Key<'p>> = keys.iter().filter(|key| !key.contains('\0')).map(|key| Key::of(key)).collect();
    let body = if with_values { ", i.body" } else { "" };
    let mut script = Script::new(format!("SELECT {COLUMNS}{body} FROM unnest("));
    let heads = script.parameter(cut.iter().map(|key| key.head).collect::<Vec<_>>());
    let digests = script.parameter(cut.iter().map(Key::digest).collect::<Vec<_>>());
    let namespace = script.lies_in(namespace);
    let now = script.parameter(now);
    script.push(&format!(
        "{heads}::text[], {digests}::bytea[]) AS w(head, digest) CROSS JOIN LATERAL (
           SELECT {COLUMNS}{body} FROM {schema}.rows i
           WHERE {namespace} AND i.head = w.head AND i.tail_digest = w.digest
             AND (i.expires_at IS NULL OR i.expires_at > {now}) OFFSET 0) i"
    ));
    script
}

/// Puts the rows of [`get_many`] into the requested order.
pub(super) fn in_order(rows: &[Row], keys: &[&str], with_values: bool) -> Result<Vec<Option<Item>>> {
    let mut found = HashMap::with_capacity(rows.len());
    for row in rows {
        let item = item(row, with_values)?;
        found.insert(item.key.clone(), item);
    }
    Ok(keys.iter().map(|key| found.get(*key).cloned()).collect())
}

/// Selects the rows of a page, and one extra row that shows that more follow. Returns `None` if the page must be empty.
///
/// Without a delimiter this is one range of the index. With one, a walk follows the index in steps within the engine: each takes some rows
/// up to the first that lies in a group, and the next begins after that group. A step takes more rows than the one before it, see
/// [`CHUNKS`], and few again after a group, so that few rows are read unnecessarily, whether the namespace holds mostly items or mostly
/// groups. Their numbers are parameters: not every engine takes a limit from a column.
pub(super) fn scan<'p>(
    tables: &Tables,
    namespace: &'p Namespace,
    options: &ScanOptions,
    holding: Option<&[u8]>,
    now: i64,
) -> Option<Script<'p>> {
    let start = PageBuilder::new(options.clone()).start()?;
    if options.prefix.contains('\0') {
        return None;
    }
    let start = lower_bound(&start);
    // One extra row shows whether there is more.
    let rows = i64::try_from(options.limit).unwrap_or(i64::MAX).saturating_add(1);
    let mut script = Script::default();
    let body = if options.with_values { ", i.body" } else { "" };
    let column = if options.with_values { ", body" } else { "" };
    if options.with_values {
        script.push("SELECT head, tail, version, created_at, modified_at, expires_at, size, meta, CASE WHEN n = 1 OR before < ");
        let bytes_max = i64::try_from(options.bytes_max).unwrap_or(i64::MAX);
        let bytes_max = script.parameter(bytes_max);
        let sent = match holding {
            Some(text) => body_holding(&mut script, text),
            None => "body".to_owned(),
        };
        let length = match holding {
            Some(_) => format!(", CASE WHEN n = 1 OR before < {bytes_max}::bigint THEN octet_length(body)::bigint END"),
            None => String::new(),
        };
        // The row after the one that fills the page shows that there is more, without its body.
        script.push(&format!(
            "{bytes_max}::bigint THEN {sent} END AS body{length} FROM (
               SELECT p.*, row_number() OVER w AS n,
                      COALESCE(sum(counted) OVER (w ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before,
                      COALESCE(sum(counted) OVER (w ROWS BETWEEN UNBOUNDED PRECEDING AND 2 PRECEDING), 0) AS before_last
               FROM ("
        ));
        push_rows(&mut script, tables, namespace, options, &start, rows, now, body, column);
        script.push(&format!(
            ") p WINDOW w AS (ORDER BY head, tail)) q WHERE n <= 2 OR before_last < {bytes_max}::bigint ORDER BY head, tail"
        ));
    } else {
        push_rows(&mut script, tables, namespace, options, &start, rows, now, body, column);
    }
    Some(script)
}

/// Adds the expression for a body that may be omitted. A body stored out of line is fetched once for all uses of it: the subquery fetches
/// it whole, and `OFFSET` keeps the engine from inlining it.
fn body_holding(script: &mut Script<'_>, text: &[u8]) -> String {
    let text = script.parameter(sought(text).to_vec());
    format!(
        "CASE WHEN size < {TESTED_BYTES_MIN} THEN body ELSE (SELECT CASE WHEN position({text}::bytea in b) > 0 \
         OR position('\\x00'::bytea in substring(b from 1 for {BINARY_PROBE_BYTES})) > 0 THEN b END \
         FROM (SELECT substring(q.body from 1) AS b OFFSET 0) whole) END"
    )
}

#[expect(clippy::too_many_arguments, reason = "it is one statement, written in two places")]
fn push_rows<'p>(
    script: &mut Script<'p>,
    tables: &Tables,
    namespace: &'p Namespace,
    options: &ScanOptions,
    start: &str,
    rows: i64,
    now: i64,
    body: &str,
    column: &str,
) {
    let Tables { schema, collation, .. } = tables;
    let end = treehold_store::page::prefix_end(&options.prefix);
    let Some(delimiter) = options.delimiter.filter(|delimiter| *delimiter != '\0') else {
        let counted = if body.is_empty() { "" } else { ", i.size AS counted" };
        script.push(&format!("SELECT {COLUMNS}{body}{counted} FROM {schema}.rows i WHERE "));
        let namespace = script.lies_in(namespace);
        script.push(&namespace);
        script.push_from(start);
        if let Some(end) = end {
            script.push_until(&end);
        }
        let now = script.parameter(now);
        let rows = script.parameter(rows);
        script.push(&format!(" AND (i.expires_at IS NULL OR i.expires_at > {now}) ORDER BY i.head, i.tail LIMIT {rows}"));
        return;
    };
    let null_body = if body.is_empty() { "" } else { ", NULL::bytea" };
    let walked_body = if body.is_empty() { "" } else { ", c.body" };
    let step_body = if body.is_empty() { "" } else { ", r.body" };
    let start = script.parameter(start.to_owned());
    let namespace = script.lies_in(namespace);
    let now = script.parameter(now);
    let (page, rows) = (rows, script.parameter(rows));
    let skipped = script.parameter(i32::try_from(options.prefix.chars().count()).unwrap_or(i32::MAX));
    let shown = script.parameter(delimiter.to_string());
    let behind = script.parameter(behind(delimiter));
    let until = end.map(|end| script.until(&end)).unwrap_or_default();
    // No step needs more rows than the page.
    let counts = CHUNKS.map(|count| script.parameter(count.min(page)));
    // Of these, a step runs only the one that is meant.
    let chunk = |(number, count): (usize, &String)| {
        format!(
            "(SELECT {COLUMNS}{body}, strpos(substr(i.head || i.tail, {skipped} + 1), {shown}::text) AS cut
               FROM {schema}.rows i
               WHERE walk.chunk = {number} AND {namespace} AND i.head >= left(walk.next, 384)
                 AND (i.head > left(walk.next, 384) OR i.tail >= substr(walk.next, 385)){until}
                 AND (i.expires_at IS NULL OR i.expires_at > {now})
               ORDER BY i.head, i.tail LIMIT {count})"
        )
    };
    let chunks = counts.iter().enumerate().map(chunk).collect::<Vec<_>>().join(" UNION ALL ");
    let [few, some, many] = counts;
    script.push(&format!(
        "WITH RECURSIVE walk(head, tail, version, created_at, modified_at, expires_at, size, meta{column}, is_group, next, chunk, found) AS (
           SELECT ''::text{collation}, ''::text{collation}, 0::bigint, 0::bigint, 0::bigint, NULL::bigint, 0::bigint, NULL::bytea{null_body},
                  false, {start}::text{collation}, 0, 0::bigint
         UNION ALL
           SELECT r.head, r.tail, r.version, r.created_at, r.modified_at, r.expires_at, r.size, r.meta{step_body}, r.cut > 0,
                  CASE WHEN r.cut > 0 THEN left(r.head || r.tail, {skipped} + r.cut - 1) || {behind}::text
                       WHEN r.n = CASE walk.chunk WHEN 0 THEN {few} WHEN 1 THEN {some} ELSE {many} END THEN r.head || r.tail || chr(1) END,
                  CASE WHEN r.cut > 0 THEN 0 ELSE least(walk.chunk + 1, 2) END,
                  walk.found + r.n
           FROM walk CROSS JOIN LATERAL (
             SELECT c.head, c.tail, c.version, c.created_at, c.modified_at, c.expires_at, c.size, c.meta{walked_body}, c.cut,
                    row_number() OVER w AS n,
                    COALESCE(max(c.cut) OVER (w ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS cut_before
             FROM ({chunks}) c
             WINDOW w AS (ORDER BY c.head, c.tail)) r
           WHERE walk.next IS NOT NULL AND walk.found < {rows} AND r.cut_before = 0)"
    ));
    let counted = if body.is_empty() { "" } else { ", CASE WHEN is_group THEN 0 ELSE size END AS counted" };
    script.push(&format!(
        " SELECT head, tail, version, created_at, modified_at, expires_at, size, meta{column}{counted} FROM walk WHERE meta IS NOT NULL
         ORDER BY head, tail LIMIT {rows}"
    ));
}

/// Returns the replacement for a group's delimiter in the first key after the group.
fn behind(delimiter: char) -> String {
    treehold_store::page::prefix_end(delimiter.encode_utf8(&mut [0; 4])).unwrap_or_else(|| upper_bound(&delimiter.to_string()))
}

/// Assembles a page. `may_leave_out` says that the rows are those of a scan with `holding`.
pub(super) fn page(rows: Vec<Row>, options: ScanOptions, may_leave_out: bool) -> Result<Scan> {
    let mut page = PageBuilder::new(options);
    let mut rows = rows.iter().map(|row| Ok((key(row)?, row))).collect::<Result<Vec<_>>>()?;
    // The rows are already sorted, but without `ORDER BY` SQL guarantees no order.
    rows.sort_by(|(one, _), (other, _)| one.cmp(other));
    for (key, row) in rows {
        if page
            .offer(&key, |with_value| if may_leave_out && with_value { page_row(row) } else { item(row, with_value).map(PageRow::from) })?
            == Step::End
        {
            break;
        }
    }
    Ok(page.finish())
}

/// Selects one row, of any that a partition has.
pub(super) fn has_rows<'p>(schema: &str, partition: &'p Partition) -> Script<'p> {
    let mut script = Script::new(format!("SELECT 1 FROM {schema}.rows WHERE partition = "));
    let at = script.parameter(partition.encoded());
    script.push(&format!("{at} LIMIT 1"));
    script
}

/// Selects the namespaces of a page: of those that are listed, the ones with a live item. One seek for each.
pub(super) fn namespaces<'p>(tables: &Tables, options: &NamespacesOptions, prefix: &str, now: i64) -> Script<'p> {
    let mut start = prefix.to_owned();
    if let Some(after) = &options.start_after {
        start = start.max(format!("{}\u{1}", after.encoded()));
    }
    let (schema, barrier) = (&tables.schema, tables.barrier());
    let mut script = Script::new(format!("SELECT n.partition, n.name FROM {schema}.namespaces n WHERE (n.partition, n.name) >= "));
    let bound = |script: &mut Script<'p>, text: &str| {
        let (partition, name) = split(text);
        format!("({}, {})", script.parameter(partition.to_owned()), script.parameter(name.to_owned()))
    };
    let (start, end) = (bound(&mut script, &start), bound(&mut script, &upper_bound(prefix)));
    let now = script.parameter(now);
    let rows = script.parameter(i64::try_from(options.limit).unwrap_or(i64::MAX).saturating_add(1));
    script.push(&format!(
        "{start} AND (n.partition, n.name) < {end} AND EXISTS (
           SELECT 1 FROM {schema}.rows i WHERE i.partition = n.partition AND i.name = n.name AND (i.expires_at IS NULL OR i.expires_at > {now}){barrier})
         ORDER BY n.partition, n.name LIMIT {rows}"
    ));
    script
}

/// Splits a bound of namespaces' texts into one of partitions and one of names. No partition's text starts with another's, so both together
/// sort like the whole; a bound that ends within a partition's text is one of partitions.
pub(super) fn split(text: &str) -> (&str, &str) {
    let end = text.match_indices('/').nth(1).map_or(text.len(), |(at, slash)| at + slash.len());
    text.split_at(end)
}

/// Assembles a page of namespaces.
pub(super) fn namespace_page(rows: &[Row], limit: usize) -> Result<NamespacePage> {
    let mut found = rows.iter().map(namespace).collect::<Result<Vec<_>>>()?;
    found.sort();
    let more = found.len() > limit;
    found.truncate(limit);
    Ok(NamespacePage::new(found, more))
}

/// Decodes a namespace from the first two columns.
pub(super) fn namespace(row: &Row) -> Result<Namespace> {
    let (partition, name): (&str, &str) = (row.try_get(0).map_err(failed)?, row.try_get(1).map_err(failed)?);
    Namespace::from_encoded(&[partition, name].concat())
}

/// Decodes a version, which is never negative.
pub(super) fn version(number: i64) -> Result<Version> {
    u64::try_from(number).map(Version::new).map_err(|_| damaged("a version is negative"))
}

fn key(row: &Row) -> Result<String> {
    let head: &str = row.try_get(0).map_err(failed)?;
    let tail: &str = row.try_get(1).map_err(failed)?;
    Ok([head, tail].concat())
}

/// Decodes an item from [`COLUMNS`], with the body after them if requested.
fn item(row: &Row, with_value: bool) -> Result<Item> {
    let number = |column| row.try_get::<_, i64>(column).map_err(failed);
    let (created_at, modified_at) = (time(number(3)?)?, time(number(4)?)?);
    let expires_at = row.try_get::<_, Option<i64>>(5).map_err(failed)?.map(time).transpose()?;
    let meta = Bytes::copy_from_slice(row.try_get(7).map_err(failed)?);
    let value = if with_value {
        let body: Option<&[u8]> = row.try_get(8).map_err(failed)?;
        let size = number(6)?;
        body.filter(|body| body.len() as i64 == size).map(Bytes::copy_from_slice).ok_or_else(|| damaged("a row has lost its body"))?
    } else {
        Bytes::new()
    };
    Ok(Item::new(key(row)?, meta, value, version(number(2)?)?, created_at, modified_at).with_expires_at(expires_at))
}

/// Decodes the row of [`get_part`].
pub(super) fn part(row: &Row, range: &Range<u64>) -> Result<ItemPart> {
    let mut item = item(row, false)?;
    let size = u64::try_from(row.try_get::<_, i64>(6).map_err(failed)?).map_err(|_| damaged("a row has lost its body"))?;
    let part: Option<&[u8]> = row.try_get(8).map_err(failed)?;
    let within = within(range, size);
    let part = part.filter(|part| part.len() as u64 == within.end - within.start);
    item.value = part.map(Bytes::copy_from_slice).ok_or_else(|| damaged("a row has lost its body"))?;
    Ok(ItemPart::new(item, size))
}

/// Decodes an item whose body may have been omitted: its length follows.
fn page_row(row: &Row) -> Result<PageRow> {
    let body: Option<&[u8]> = row.try_get(8).map_err(failed)?;
    let length: Option<i64> = row.try_get(9).map_err(failed)?;
    match length.map(u64::try_from) {
        Some(Ok(length)) if body.is_none() && row.try_get::<_, i64>(6).map_err(failed)?.unsigned_abs() == length => {
            Ok(PageRow::without_body(item(row, false)?, length))
        }
        _ => item(row, true).map(PageRow::from),
    }
}

fn time(microseconds: i64) -> Result<Timestamp> {
    Timestamp::from_microsecond(microseconds).map_err(|_| damaged("a row has a time outside the calendar"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pairs sort as their texts do, those of bounds too. Otherwise pages would skip namespaces.
    #[test]
    fn bounds_sort_as_their_texts() {
        let names = ["a/b/x", "a/b/x/y", "a/b-/x", "a/bb/x", "a//x", "ab/c/x", "a-/b/x", "_treehold/sessions/x"];
        let mut texts = names.map(|name| Namespace::parse(name).expect("legal").encoded().to_owned()).to_vec();
        for text in texts.clone() {
            texts.extend((0..text.len()).filter_map(|end| text.get(..end)).map(str::to_owned));
            texts.push(format!("{text}\u{1}"));
        }
        texts.sort();
        texts.dedup();
        assert!(texts.is_sorted_by(|before, after| split(before) < split(after)), "{texts:?}");
        assert_eq!(split("acme/ada/x/y"), ("acme/ada/", "x/y"));
        assert_eq!(split("acme/ad"), ("acme/ad", ""));
    }
}
