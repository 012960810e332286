//! What batches come to as statements: pure.
//!
//! The counter is a variable of the connection, `@v`, so that versions that hang on how many rows a delete found need no round
//! trip. `@b0`, `@b1` and so on keep it as it was before each batch.

use super::key::{KeyRange, Parts};
use super::sql::{STATEMENT_BYTES, Tables, in_keys, in_range, literal, number_or_null, quoted};
use crate::store::Namespace;
use crate::store::effect::{Effect, PutEffect};
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// A body from this size on is sent by itself, as it is and not as a literal.
const LONG_BODY_BYTES: usize = 128 << 10;

/// One step of a transaction.
#[derive(Debug)]
pub(super) enum Action<'b> {
    /// A statement without rows.
    Statement(String),
    /// The body of a row, as parameters of a statement.
    Body { sql: String, namespace: &'b Namespace, parts: Parts<'b>, body: &'b [u8] },
    /// The last statements: the one that has rows, and the commit.
    Commit(String),
}

/// The statements of a transaction, batch by batch.
#[derive(Debug)]
pub(super) struct Plan<'b> {
    tables: Tables,
    actions: Vec<Action<'b>>,
    batches: usize,
}

impl<'b> Plan<'b> {
    /// Starts at what the counter is.
    pub(super) fn new(tables: &Tables, counter: u64) -> Self {
        Self { tables: tables.clone(), actions: vec![Action::Statement(format!("SET @v = {counter}"))], batches: 0 }
    }

    /// Adds a batch; returns its place among those that were added.
    pub(super) fn batch(&mut self, effect: &Effect<'b>, now: Timestamp) -> usize {
        let place = self.batches;
        self.batches += 1;
        let counts = effect.numbers == 0;
        self.statement(format!("SET @b{place} = @v, @r = 0"));
        for (namespace, prefix) in &effect.prefixes {
            self.delete_prefix(namespace, prefix, counts);
        }
        for keys in in_keys("", effect.deletes.iter().copied()) {
            self.statement(format!("DELETE FROM {} WHERE {keys}", self.tables.bodies));
            self.statement(format!("DELETE FROM {} WHERE {keys}", self.tables.items));
            self.count_removed(counts);
        }
        self.puts(&effect.puts);
        self.touches(effect, now);
        self.statement(if counts {
            "SET @v = @v + IF(@r > 0, 1, 0)".to_owned()
        } else {
            format!("SET @v = GREATEST(@v + {}, {})", effect.numbers, effect.floor)
        });
        place
    }

    /// Ends with the commit.
    pub(super) fn finish(mut self, written: &[&Namespace]) -> Vec<Action<'b>> {
        self.statement(format!("UPDATE {} SET version = @v WHERE id = 1", self.tables.counter));
        let written: BTreeSet<&str> = written.iter().map(|namespace| namespace.encoded()).collect();
        let rows = written.into_iter().map(|namespace| format!("({}, @v)", quoted(namespace.as_bytes()))).collect();
        self.insert(&format!("INSERT INTO {} (namespace, version) VALUES ", self.tables.namespaces), rows, UPDATE_NAMESPACE);
        let counters: String = (0..self.batches).map(|place| format!("@b{place}, ")).collect();
        self.actions.push(Action::Commit(format!("SELECT {counters}@v; COMMIT")));
        self.actions
    }

    fn statement(&mut self, sql: String) {
        self.actions.push(Action::Statement(sql));
    }

    fn count_removed(&mut self, counts: bool) {
        if counts {
            self.statement("SET @r = @r + ROW_COUNT()".to_owned());
        }
    }

    fn delete_prefix(&mut self, namespace: &Namespace, prefix: &str, counts: bool) {
        let range = KeyRange::of_prefix(prefix);
        let Tables { items, bodies, .. } = &self.tables;
        let of_bodies = if range.is_of_heads() {
            format!("DELETE FROM {bodies} WHERE {}", in_range("", namespace, &range))
        } else {
            // Bodies have no tails.
            format!(
                "DELETE b FROM {bodies} b JOIN {items} i ON i.namespace = b.namespace AND i.head = b.head AND i.digest = b.digest WHERE {}",
                in_range("i.", namespace, &range)
            )
        };
        let of_items = format!("DELETE FROM {items} WHERE {}", in_range("", namespace, &range));
        self.statement(of_bodies);
        self.statement(of_items);
        self.count_removed(counts);
    }

    fn puts(&mut self, puts: &[PutEffect<'b>]) {
        let (mut keeping, mut setting, mut bodies) = (Vec::new(), Vec::new(), Vec::new());
        for put in puts {
            let parts = Parts::of(put.key);
            let row = row(put, &parts);
            if put.created_at.is_some() {
                setting.push(row)
            } else {
                keeping.push(row)
            }
            if put.value.len() < LONG_BODY_BYTES {
                bodies.push(body(put, &parts));
            }
        }
        let insert = format!(
            "INSERT INTO {} (namespace, head, digest, tail, version, created_at, modified_at, expires_at, size, meta) VALUES ",
            self.tables.items
        );
        self.insert(
            &insert,
            keeping,
            &format!(
                "created_at = IF(expires_at IS NULL OR expires_at > VALUES(modified_at), created_at, VALUES(created_at)), {UPDATE_ITEM}"
            ),
        );
        self.insert(&insert, setting, &format!("created_at = VALUES(created_at), {UPDATE_ITEM}"));
        let insert = format!("INSERT INTO {} (namespace, head, digest, body) VALUES ", self.tables.bodies);
        self.insert(&insert, bodies, UPDATE_BODY);
        for put in puts.iter().filter(|put| put.value.len() >= LONG_BODY_BYTES) {
            let sql = format!("{insert}(?, ?, ?, ?) ON DUPLICATE KEY UPDATE {UPDATE_BODY}");
            self.actions.push(Action::Body { sql, namespace: put.namespace, parts: Parts::of(put.key), body: put.value });
        }
    }

    /// Inserts rows, or changes those that are there, in statements that are short enough.
    fn insert(&mut self, insert: &str, rows: Vec<String>, update: &str) {
        let mut sql = String::new();
        for row in rows {
            if !sql.is_empty() && sql.len() + row.len() > STATEMENT_BYTES {
                self.statement(format!("{sql} ON DUPLICATE KEY UPDATE {update}"));
                sql.clear();
            }
            sql += if sql.is_empty() { insert } else { ", " };
            sql += &row;
        }
        if !sql.is_empty() {
            self.statement(format!("{sql} ON DUPLICATE KEY UPDATE {update}"));
        }
    }

    fn touches(&mut self, effect: &Effect<'b>, now: Timestamp) {
        let mut of_ends: BTreeMap<Option<i64>, Vec<(&Namespace, &str)>> = BTreeMap::new();
        for &(namespace, key, expires_at) in &effect.touches {
            of_ends.entry(expires_at).or_default().push((namespace, key));
        }
        let live = super::sql::live(now.as_microsecond());
        for (expires_at, keys) in of_ends {
            let mut end = String::new();
            number_or_null(&mut end, expires_at);
            for keys in in_keys("", keys) {
                self.statement(format!("UPDATE {} SET expires_at = {end} WHERE {keys} AND {live}", self.tables.items));
            }
        }
    }
}

const UPDATE_ITEM: &str = "version = VALUES(version), modified_at = VALUES(modified_at), expires_at = VALUES(expires_at), \
                           size = VALUES(size), meta = VALUES(meta)";

const UPDATE_BODY: &str = "body = VALUES(body)";

const UPDATE_NAMESPACE: &str = "version = VALUES(version)";

/// Returns the values of a row.
fn row(put: &PutEffect<'_>, parts: &Parts<'_>) -> String {
    let mut row = String::from("(");
    key(&mut row, put, parts);
    literal(&mut row, parts.tail);
    match put.version {
        Some(version) => write!(row, ", {version}"),
        None => write!(row, ", @v + {}", put.number + 1),
    }
    .and_then(|()| write!(row, ", {}, {}, ", put.created_at.unwrap_or(put.modified_at), put.modified_at))
    .expect("a string takes what is written");
    number_or_null(&mut row, put.expires_at);
    row += &format!(", {}, ", put.value.len());
    literal(&mut row, put.meta);
    row.push(')');
    row
}

/// Returns the values of a body's row.
fn body(put: &PutEffect<'_>, parts: &Parts<'_>) -> String {
    let mut row = String::with_capacity(put.value.len() * 2 + 256);
    row.push('(');
    key(&mut row, put, parts);
    literal(&mut row, put.value);
    row.push(')');
    row
}

fn key(row: &mut String, put: &PutEffect<'_>, parts: &Parts<'_>) {
    for bytes in [put.namespace.encoded().as_bytes(), parts.head, parts.digest()] {
        literal(row, bytes);
        row.push_str(", ");
    }
}

/// Rows that go, by their keys.
#[derive(Debug, Default)]
pub(super) struct PlannedKeys {
    keys: Vec<(Namespace, String)>,
}

impl PlannedKeys {
    /// Adds a row.
    pub(super) fn push(&mut self, namespace: Namespace, key: String) {
        self.keys.push((namespace, key));
    }

    /// Returns how many there are.
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns the statements that remove them.
    pub(super) fn deletes(&self, tables: &Tables) -> Vec<String> {
        let conditions = in_keys("", self.keys.iter().map(|(namespace, key)| (namespace, key.as_str())));
        let of = |table: &str, keys: &String| format!("DELETE FROM {table} WHERE {keys}");
        conditions.iter().flat_map(|keys| [of(&tables.bodies, keys), of(&tables.items, keys)]).collect()
    }
}
