//! SQL as text: names of tables, conditions on keys, and the one function that puts bytes into a statement.
//!
//! What a user named or wrote enters a statement as a parameter of the binary protocol, through [`literal`] or through
//! [`text_literal`], and in no other way. The first is hexadecimal digits, so nothing in it can end it; the second doubles what
//! could, and is for contents, which digits would make twice as long.

use super::key::{HEAD_BYTES, KeyRange, Parts};
use crate::store::Namespace;
use std::collections::BTreeMap;
use std::fmt::Display;

/// A statement that names many keys is cut into several of about this many bytes.
pub(super) const STATEMENT_BYTES: usize = 256 << 10;

/// The most keys of one list. MariaDB turns lists of 1,000 into joins with temporary tables.
const KEYS_MAX: usize = 500;

/// Holds for rows whose time is not over; with `{now}` put in.
pub(super) fn live(now: impl Display) -> String {
    format!("(expires_at IS NULL OR expires_at > {now})")
}

/// The names of the tables, quoted.
#[derive(Debug, Clone)]
pub(super) struct Tables {
    pub(super) prefix: String,
    /// The number of the schema.
    pub(super) schema: String,
    /// The version of the newest commit, in the row that writers lock.
    pub(super) counter: String,
    /// Rows without their bodies.
    pub(super) items: String,
    /// Bodies under the key of their row; every row has one, which may be empty.
    pub(super) bodies: String,
    /// Every namespace that has a row, with the version of the newest commit in it; and under [`TRIMMED`](super::plan::TRIMMED)
    /// the version that the store had when one was taken out, as it had no row any more.
    pub(super) namespaces: String,
}

impl Tables {
    /// Names the tables; the prefix is letters, digits and `_`.
    pub(super) fn new(prefix: &str) -> Self {
        let name = |table: &str| format!("`{prefix}{table}`");
        Self {
            prefix: prefix.to_owned(),
            schema: name("schema"),
            counter: name("counter"),
            items: name("items"),
            bodies: name("bodies"),
            namespaces: name("namespaces"),
        }
    }
}

/// Appends bytes as a literal of a binary string.
pub(super) fn literal(sql: &mut Vec<u8>, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    sql.reserve(bytes.len() * 2 + 3);
    sql.extend_from_slice(b"x'");
    for byte in bytes {
        sql.extend_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    }
    sql.push(b'\'');
}

/// Appends bytes as a literal of a binary string that is hardly longer than they are.
///
/// A quote is doubled, which stands for one in every `sql_mode`. So is a backslash, which stands for one in the mode that
/// each connection is set to; in the other it would be two, and end the literal as little. The server reads statements as bytes,
/// and even where it took them for UTF-8 neither would be a part of another character.
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

/// Returns bytes as a literal.
pub(super) fn quoted(bytes: &[u8]) -> String {
    let mut sql = Vec::new();
    literal(&mut sql, bytes);
    String::from_utf8(sql).expect("digits are text")
}

/// Returns a number, or NULL.
pub(super) fn number_or_null(number: Option<i64>) -> String {
    number.map_or_else(|| "NULL".to_owned(), |number| number.to_string())
}

/// Returns the condition that a row lies in a range of keys of a namespace. Where a bound is longer than a head, the tail
/// decides among the rows of that head. The names of columns stand behind `of`.
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

/// Returns conditions that together hold for just the rows of these keys, each short enough for a statement. The names of columns
/// stand behind `of`.
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

/// Joins parts to texts that are short enough for a statement.
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
    fn a_literal_is_digits_whatever_the_bytes_are() {
        assert_eq!(quoted(b"' OR 1 -- \0\xFF\\"), "x'27204F522031202D2D2000FF5C'");
        assert_eq!(quoted(b""), "x''");
    }

    #[test]
    fn what_could_end_a_literal_is_doubled() {
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
    fn keys_are_found_by_their_parts() {
        let a = Namespace::parse("a").expect("a legal namespace");
        let long = "l".repeat(HEAD_BYTES + 1);
        let conditions = in_keys("", [(&a, "k"), (&a, long.as_str()), (&a, "j"), (&a, "k")]);
        assert_eq!(conditions[0], "namespace = x'612F' AND digest = x'' AND head IN (x'6A', x'6B')");
        assert!(conditions.len() == 2 && conditions[1].contains("digest = x'") && !conditions[1].contains(" OR "));
        let many: Vec<String> = (0..1_200).map(|number| format!("{number}")).collect();
        assert_eq!(in_keys("", many.iter().map(|key| (&a, key.as_str()))).len(), 3);
    }

    #[test]
    fn long_bounds_are_decided_by_tails() {
        let a = Namespace::parse("a").expect("a legal namespace");
        assert_eq!(in_range("", &a, &KeyRange::of_prefix("k")), "namespace = x'612F' AND head >= x'6B' AND head < x'6C'");
        let sql = in_range("", &a, &KeyRange::of_prefix(&"l".repeat(HEAD_BYTES + 1)));
        assert!(sql.contains("tail >= x'6C'") && sql.contains("tail < x'6D'"), "{sql}");
    }
}
