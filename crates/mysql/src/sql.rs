//! SQL text: table names, key conditions and the functions that quote bytes.
//!
//! User data enters statements only as parameters of the binary protocol, through [`literal`] or through
//! [`text_literal`]. The first writes hexadecimal digits, which cannot end the literal. The second doubles the
//! characters that could, and is meant for bodies, which hexadecimal would double in size.

use super::key::{HEAD_BYTES, KeyRange, LAST, Parts, successor};
use std::collections::BTreeMap;
use std::fmt::Display;
use treehold_store::{Namespace, Partition};

/// Statements with many keys are split into statements of about this many bytes.
pub(super) const STATEMENT_BYTES: usize = 256 << 10;

/// The most keys in one list. MariaDB turns lists of 1,000 into joins with temporary tables.
const KEYS_MAX: usize = 500;

/// Returns the condition for rows that are live at `now`.
pub(super) fn live(now: impl Display) -> String {
    format!("(expires_at IS NULL OR expires_at > {now})")
}

/// The quoted table names.
#[derive(Debug, Clone)]
pub(super) struct Tables {
    pub(super) prefix: String,
    /// The schema version.
    pub(super) schema: String,
    /// The version of the newest commit in each partition, in the row that its writers lock. The row [`NEW`] has the version that new
    /// partitions start at.
    pub(super) partitions: String,
    /// Rows without bodies.
    pub(super) items: String,
    /// Bodies, under the key of their row. Every row has one, possibly empty.
    pub(super) bodies: String,
    /// Every namespace that has a row.
    pub(super) namespaces: String,
}

impl Tables {
    /// Makes the table names. The prefix consists of letters, digits and `_`.
    pub(super) fn new(prefix: &str) -> Self {
        let name = |table: &str| format!("`{prefix}{table}`");
        Self {
            prefix: prefix.to_owned(),
            schema: name("schema"),
            partitions: name("partitions"),
            items: name("rows"),
            bodies: name("bodies"),
            namespaces: name("namespaces"),
        }
    }
}

/// The name of the row for new partitions. No partition has this name.
pub(super) const NEW: &str = "";

/// Returns the expression for the partition of the namespace in a column.
pub(super) fn partition_of(column: &str) -> String {
    format!("CONCAT(SUBSTRING_INDEX({column}, '/', 2), '/')")
}

/// Appends bytes as a binary string literal in hexadecimal.
pub(super) fn literal(sql: &mut Vec<u8>, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    sql.reserve(bytes.len() * 2 + 3);
    sql.extend_from_slice(b"x'");
    for byte in bytes {
        sql.extend_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    }
    sql.push(b'\'');
}

/// Appends bytes as a binary string literal hardly longer than the bytes.
///
/// Doubled quotes are safe in every `sql_mode`. Doubled backslashes stand for one in the mode that each connection
/// sets; in the other mode they would stand for two but still not end the literal. The server reads statements as
/// bytes, and even in UTF-8 neither character can be part of another.
pub(super) fn text_literal(sql: &mut Vec<u8>, bytes: &[u8]) {
    sql.reserve(bytes.len() + bytes.len() / 64 + 16);
    sql.extend_from_slice(b"_binary'");
    let mut from = 0;
    for at in memchr::memchr2_iter(b'\'', b'\\', bytes) {
        sql.extend_from_slice(&bytes[from..=at]);
        from = at;
    }
    sql.extend_from_slice(&bytes[from..]);
    sql.push(b'\'');
}

/// Returns bytes as a hexadecimal literal.
pub(super) fn quoted(bytes: &[u8]) -> String {
    let mut sql = Vec::new();
    literal(&mut sql, bytes);
    String::from_utf8(sql).expect("a hexadecimal literal is ASCII")
}

/// Returns a number as SQL, or NULL.
pub(super) fn number_or_null(number: Option<i64>) -> String {
    number.map_or_else(|| "NULL".to_owned(), |number| number.to_string())
}

/// Returns the condition that a row lies in a key range of a namespace. If a bound is longer than a head, the tail
/// decides among the rows of that head. Column names are preceded by `of`.
pub(super) fn in_range(of: &str, namespace: &Namespace, range: &KeyRange) -> String {
    let mut sql = format!("{of}namespace = {}", quoted(namespace.encoded().as_bytes()));
    let (head, tail) = range.start.split_at(range.start.len().min(HEAD_BYTES));
    let head = quoted(head);
    sql += &format!(" AND {of}head >= {head}");
    if !tail.is_empty() {
        sql += &format!(" AND ({of}head > {head} OR {of}tail >= {})", quoted(tail));
    }
    let (head, tail) = range.end.split_at(range.end.len().min(HEAD_BYTES));
    let head = quoted(head);
    if tail.is_empty() {
        sql += &format!(" AND {of}head < {head}");
    } else {
        sql += &format!(" AND {of}head <= {head} AND ({of}head < {head} OR {of}tail < {})", quoted(tail));
    }
    sql
}

/// Returns the condition that a row `i` lies in a partition.
pub(super) fn partition_range(partition: &Partition) -> String {
    let start = partition.encoded().as_bytes();
    let end = successor(start).unwrap_or_else(|| LAST.to_vec());
    format!("i.namespace >= {} AND i.namespace < {}", quoted(start), quoted(&end))
}

/// Returns conditions that together select exactly the rows of these keys, each short enough for one statement. Column
/// names are preceded by `of`.
pub(super) fn in_keys<'k>(of: &str, keys: impl IntoIterator<Item = (&'k Namespace, &'k str)>) -> Vec<String> {
    let mut of_namespaces: BTreeMap<&Namespace, Vec<&str>> = BTreeMap::new();
    for (namespace, key) in keys {
        of_namespaces.entry(namespace).or_default().push(key);
    }
    let mut conditions = Vec::new();
    for (namespace, mut keys) in of_namespaces {
        keys.sort_unstable();
        keys.dedup();
        let namespace = quoted(namespace.encoded().as_bytes());
        let (short, long): (Vec<&str>, Vec<&str>) = keys.into_iter().partition(|key| key.len() <= HEAD_BYTES);
        let short = short.into_iter().map(|key| quoted(key.as_bytes()));
        conditions
            .extend(joined(short, ", ").map(|heads| format!("{of}namespace = {namespace} AND {of}digest = x'' AND {of}head IN ({heads})")));
        let long = long.into_iter().map(|key| {
            let parts = Parts::of(key);
            format!("({of}head = {} AND {of}digest = {})", quoted(parts.head), quoted(parts.digest()))
        });
        conditions.extend(joined(long, " OR ").map(|keys| format!("{of}namespace = {namespace} AND ({keys})")));
    }
    conditions
}

/// Joins parts into texts short enough for one statement.
fn joined(parts: impl Iterator<Item = String>, between: &'static str) -> impl Iterator<Item = String> {
    let mut parts = parts.peekable();
    std::iter::from_fn(move || {
        let mut text = parts.next()?;
        let mut count = 1;
        while let Some(part) = parts.next_if(|part| count < KEYS_MAX && text.len() + part.len() < STATEMENT_BYTES) {
            text += between;
            text += &part;
            count += 1;
        }
        Some(text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_contains_only_hexadecimal_digits() {
        assert_eq!(quoted(b"' OR 1 -- \0\xFF\\"), "x'27204F522031202D2D2000FF5C'");
        assert_eq!(quoted(b""), "x''");
    }

    #[test]
    fn text_literal_doubles_quotes_and_backslashes() {
        for (bytes, sql) in [
            (&b""[..], &b"_binary''"[..]),
            (b"a'b", b"_binary'a''b'"),
            (b"'\\", b"_binary'''\\\\'"),
            (b"\xC3'\0\\x", b"_binary'\xC3''\0\\\\x'"),
        ] {
            let mut literal = Vec::new();
            text_literal(&mut literal, bytes);
            assert_eq!(literal, sql, "{bytes:?}");
        }
    }

    #[test]
    fn keys_are_selected_by_head_and_digest() {
        let a = Namespace::parse("a").expect("a legal namespace");
        let long = "l".repeat(HEAD_BYTES + 1);
        let conditions = in_keys("", [(&a, "k"), (&a, long.as_str()), (&a, "j"), (&a, "k")]);
        assert_eq!(conditions[0], "namespace = x'612F2F' AND digest = x'' AND head IN (x'6A', x'6B')");
        assert!(conditions.len() == 2 && conditions[1].contains("digest = x'") && !conditions[1].contains(" OR "));
        let many: Vec<String> = (0..1_200).map(|number| format!("{number}")).collect();
        assert_eq!(in_keys("", many.iter().map(|key| (&a, key.as_str()))).len(), 3);
    }

    #[test]
    fn range_bounds_longer_than_a_head_compare_tails() {
        let a = Namespace::parse("a").expect("a legal namespace");
        assert_eq!(in_range("", &a, &KeyRange::of_prefix("k")), "namespace = x'612F2F' AND head >= x'6B' AND head < x'6C'");
        let sql = in_range("", &a, &KeyRange::of_prefix(&"l".repeat(HEAD_BYTES + 1)));
        assert!(sql.contains("tail >= x'6C'") && sql.contains("tail < x'6D'"), "{sql}");
    }
}
