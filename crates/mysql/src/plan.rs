//! Translation of batches into statements, without I/O.
//!
//! Consecutive batches are folded into one effect, so a group of many costs as many statements as one. The counter was
//! read under its lock, so versions appear as literal numbers. Only if nothing is put does the server decide whether
//! the counter grows, by the number of rows removed.

use super::key::{KeyRange, Parts};
use super::sql::{STATEMENT_BYTES, Tables, in_keys, in_range, literal, number_or_null, quoted, text_literal};
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use treehold_store::effect::{Effect, PutEffect};
use treehold_store::{Namespace, Partition};

/// Bodies of at least this size are sent separately, as parameters instead of literals.
const LONG_BODY_BYTES: usize = 128 << 10;

/// One step of a transaction.
#[derive(Debug)]
pub(super) enum Action<'b> {
    /// A statement without result rows.
    Statement(Vec<u8>),
    /// The body of a row, sent as a statement parameter.
    Body { sql: String, namespace: &'b Namespace, parts: Parts<'b>, body: &'b [u8] },
}

/// The counter after a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum After {
    /// This value.
    Known(u64),
    /// This value, plus one if any row was removed.
    Counted(u64),
}

/// The statements of a transaction, without its beginning and end.
#[derive(Debug)]
pub(super) struct Plan<'b> {
    tables: Tables,
    partition: &'b Partition,
    actions: Vec<Action<'b>>,
    after: After,
    /// The namespaces written to, and whether each may end up empty.
    written: BTreeMap<&'b str, bool>,
    removes: bool,
    /// The number that stands in the counter until the end.
    mark: Option<u64>,
}

impl<'b> Plan<'b> {
    /// Starts a transaction in a partition whose final counter is `after`.
    pub(super) fn new(tables: &Tables, partition: &'b Partition, after: After) -> Self {
        Self { tables: tables.clone(), partition, actions: Vec::new(), after, written: BTreeMap::new(), removes: false, mark: None }
    }

    /// Expects a number in the counter that only this transaction can have put there. Then the update of the counter is the last
    /// statement, and changes no row if the number is not there.
    #[must_use]
    pub(super) fn marked(mut self, mark: Option<u64>) -> Self {
        self.mark = mark;
        self
    }

    /// Adds an effect whose numbers start above `counter`.
    pub(super) fn add(&mut self, effect: &Effect<'b>, counter: u64, now: Timestamp) {
        for (namespace, prefix) in &effect.prefixes {
            self.delete_prefix(namespace, prefix);
            self.written.insert(namespace.encoded(), true);
        }
        for keys in in_keys("", effect.deletes.iter().copied()) {
            self.statement(remove_keys(&self.tables.bodies, &keys));
            self.delete_items(remove_keys(&self.tables.items, &keys));
        }
        self.puts(&effect.puts, counter);
        self.touches(effect, now);
        self.written.extend(effect.deletes.iter().map(|(namespace, _)| (namespace.encoded(), true)));
        self.written.extend(effect.puts.iter().map(|put| (put.namespace.encoded(), false)));
    }

    /// Ends with the updates of the counter and of the namespaces table. A counted counter is in the variable `@v`
    /// afterwards.
    pub(super) fn finish(mut self) -> Vec<Action<'b>> {
        let version = match self.after {
            After::Known(version) => version.to_string(),
            After::Counted(before) => {
                self.statement(format!("SET @v = {before}{}", if self.removes { " + IF(@r > 0, 1, 0)" } else { "" }));
                "@v".to_owned()
            }
        };
        if self.mark.is_none() {
            self.statement(set_counter(&self.tables, self.partition, &version, None));
        }
        let rows = self.written.keys().map(|namespace| format!("({})", quoted(namespace.as_bytes())).into_bytes()).collect();
        self.insert(&format!("INSERT INTO {} (namespace) VALUES ", self.tables.namespaces), rows, LISTED_ALREADY);
        let emptied = self.written.iter().filter(|(_, is_emptied)| **is_emptied).map(|(namespace, _)| *namespace).collect();
        for sql in trims(&self.tables, &emptied) {
            self.statement(sql);
        }
        if self.mark.is_some() {
            self.statement(set_counter(&self.tables, self.partition, &version, self.mark));
        }
        self.actions
    }

    fn statement(&mut self, sql: String) {
        self.actions.push(Action::Statement(sql.into_bytes()));
    }

    fn delete_items(&mut self, sql: String) {
        let is_counted = matches!(self.after, After::Counted(_));
        if is_counted && !self.removes {
            self.statement("SET @r = 0".to_owned());
        }
        self.removes = true;
        self.statement(sql);
        if is_counted {
            self.statement("SET @r = @r + ROW_COUNT()".to_owned());
        }
    }

    fn delete_prefix(&mut self, namespace: &Namespace, prefix: &str) {
        let range = KeyRange::of_prefix(prefix);
        let Tables { items, bodies, .. } = &self.tables;
        let (items, bodies, in_range_of_items) = (items.clone(), bodies.clone(), in_range("", namespace, &range));
        if range.is_of_heads() {
            self.counted(&bodies, &in_range_of_items);
            self.statement(REMOVE_COUNTED.to_owned());
        } else {
            // The table of bodies has no tails.
            self.statement(format!(
                "DELETE b FROM {bodies} b JOIN {items} i ON i.namespace = b.namespace AND i.head = b.head AND i.digest = b.digest WHERE {}",
                in_range("i.", namespace, &range)
            ));
        }
        self.counted(&items, &in_range_of_items);
        self.delete_items(REMOVE_COUNTED.to_owned());
    }

    /// Prepares the removal of the rows of a table in a range, and counts them. Without their number, the server would look for the end of the
    /// range in the row behind it, which may be of another partition, and wait for its writer.
    fn counted(&mut self, table: &str, range: &str) {
        let removal = format!("DELETE FROM {table} WHERE {range} ORDER BY namespace, head, digest LIMIT ?");
        self.statement(format!("SELECT COUNT(*) INTO @n FROM {table} WHERE {range}"));
        self.statement(format!("PREPARE sf_remove FROM '{}'", removal.replace('\'', "''")));
    }

    fn puts(&mut self, puts: &[PutEffect<'b>], counter: u64) {
        let (mut keeping, mut setting, mut bodies) = (Vec::new(), Vec::new(), Vec::new());
        for put in puts {
            let parts = Parts::of(put.key);
            let row = row(put, &parts, counter);
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

    /// Inserts or updates rows, in statements of bounded length.
    fn insert(&mut self, insert: &str, rows: Vec<Vec<u8>>, update: &str) {
        let mut sql = Vec::new();
        let mut rows = rows.into_iter().peekable();
        while let Some(row) = rows.next() {
            sql.extend_from_slice(if sql.is_empty() { insert.as_bytes() } else { b", " });
            sql.extend_from_slice(&row);
            if rows.peek().is_none_or(|next| sql.len() + next.len() > STATEMENT_BYTES) {
                sql.extend_from_slice(b" ON DUPLICATE KEY UPDATE ");
                sql.extend_from_slice(update.as_bytes());
                self.actions.push(Action::Statement(std::mem::take(&mut sql)));
            }
        }
    }

    fn touches(&mut self, effect: &Effect<'b>, now: Timestamp) {
        let mut of_ends: BTreeMap<Option<i64>, Vec<(&Namespace, &str)>> = BTreeMap::new();
        for &(namespace, key, expires_at) in &effect.touches {
            of_ends.entry(expires_at).or_default().push((namespace, key));
        }
        let live = super::sql::live(now.as_microsecond());
        for (expires_at, keys) in of_ends {
            let end = number_or_null(expires_at);
            for keys in in_keys("", keys) {
                self.statement(format!(
                    "UPDATE {} FORCE INDEX (PRIMARY) SET expires_at = {end} WHERE {keys} AND {live}",
                    self.tables.items
                ));
            }
        }
    }
}

/// Returns the statement that removes the rows of some keys. In a small table the server would read all rows, and wait for the writers of
/// other partitions; only this form of the statement takes an index.
fn remove_keys(table: &str, keys: &str) -> String {
    format!("DELETE removed FROM {table} removed FORCE INDEX (PRIMARY) WHERE {keys}")
}

/// Removes as many rows as [`Plan::counted`] has counted.
const REMOVE_COUNTED: &str = "EXECUTE sf_remove USING @n";

/// Returns the statement that sets the counter, if the mark is there.
fn set_counter(tables: &Tables, partition: &Partition, version: &str, mark: Option<u64>) -> String {
    let marked = mark.map_or_else(String::new, |mark| format!(" AND version = {mark}"));
    let name = quoted(partition.encoded().as_bytes());
    format!("UPDATE {} SET version = {version} WHERE partition_name = {name}{marked}", tables.partitions)
}

/// Returns the statements that take empty namespaces off the list.
fn trims(tables: &Tables, emptied: &BTreeSet<&str>) -> Vec<String> {
    let Tables { items, namespaces, .. } = tables;
    let names: Vec<String> = emptied.iter().map(|namespace| quoted(namespace.as_bytes())).collect();
    let trim = |names: &[String]| {
        format!(
            "DELETE FROM {namespaces} WHERE namespace IN ({}) \
             AND NOT EXISTS (SELECT 1 FROM {items} i WHERE i.namespace = {namespaces}.namespace)",
            names.join(", ")
        )
    };
    names.chunks(100).map(trim).collect()
}

const UPDATE_ITEM: &str = "version = VALUES(version), modified_at = VALUES(modified_at), expires_at = VALUES(expires_at), \
                           size = VALUES(size), meta = VALUES(meta)";

const UPDATE_BODY: &str = "body = VALUES(body)";

const LISTED_ALREADY: &str = "namespace = VALUES(namespace)";

/// Returns the column values of a row, without its body.
fn row(put: &PutEffect<'_>, parts: &Parts<'_>, counter: u64) -> Vec<u8> {
    let mut row = key(put, parts);
    literal(&mut row, parts.tail);
    let version = put.version.unwrap_or(counter + put.number + 1);
    let (created_at, expires_at) = (put.created_at.unwrap_or(put.modified_at), number_or_null(put.expires_at));
    write!(row, ", {version}, {created_at}, {}, {expires_at}, {}, ", put.modified_at, put.value.len())
        .expect("writing to a vector cannot fail");
    text_literal(&mut row, put.meta);
    row.push(b')');
    row
}

/// Returns the column values of a body.
fn body(put: &PutEffect<'_>, parts: &Parts<'_>) -> Vec<u8> {
    let mut row = key(put, parts);
    text_literal(&mut row, put.value);
    row.push(b')');
    row
}

fn key(put: &PutEffect<'_>, parts: &Parts<'_>) -> Vec<u8> {
    let mut row = vec![b'('];
    for bytes in [put.namespace.encoded().as_bytes(), parts.head, parts.digest()] {
        literal(&mut row, bytes);
        row.extend_from_slice(b", ");
    }
    row
}

/// The keys of rows to delete.
#[derive(Debug, Default)]
pub(super) struct PlannedKeys {
    keys: Vec<(Namespace, String)>,
}

impl PlannedKeys {
    /// Adds a row.
    pub(super) fn push(&mut self, namespace: Namespace, key: String) {
        self.keys.push((namespace, key));
    }

    /// Returns how many keys there are.
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns the conditions that select the rows.
    pub(super) fn conditions(&self) -> Vec<String> {
        in_keys("", self.keys.iter().map(|(namespace, key)| (namespace, key.as_str())))
    }

    /// Returns the statements that delete the rows, which lie in a partition, and remove the namespaces that are empty afterwards from their
    /// table. The last one sets the counter if there is a mark, as in [`Plan::marked`].
    pub(super) fn deletes(&self, tables: &Tables, partition: &Partition, version: u64, mark: Option<u64>) -> Vec<String> {
        let conditions = self.conditions();
        let deletes = conditions.iter().flat_map(|keys| [remove_keys(&tables.bodies, keys), remove_keys(&tables.items, keys)]);
        let emptied = self.keys.iter().map(|(namespace, _)| namespace.encoded()).collect();
        let counter = mark.map(|_| set_counter(tables, partition, &version.to_string(), mark));
        deletes.chain(trims(tables, &emptied)).chain(counter).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use treehold_store::Batch;

    fn texts(plan: Plan<'_>) -> Vec<String> {
        let text = |action| match action {
            Action::Statement(sql) => String::from_utf8(sql).expect("the contents are text"),
            Action::Body { .. } => "body".to_owned(),
        };
        plan.finish().into_iter().map(text).collect()
    }

    #[test]
    fn many_puts_become_four_statements_with_literal_versions() {
        let a = Namespace::parse("a").expect("a legal namespace");
        let partition = a.partition();
        let now = Timestamp::from_microsecond(1_000).expect("a time");
        let batches: Vec<Batch> = (0..16).map(|number| Batch::new().put(&a, format!("{number:02}"), "it's")).collect();
        let mut plan = Plan::new(&Tables::new("t_"), &partition, After::Known(26));
        plan.add(&Effect::of(batches.iter().flat_map(|batch| &batch.writes), now), 10, now);
        let texts = texts(plan);
        assert_eq!(texts.len(), 4, "{texts:#?}");
        assert!(
            texts[0].starts_with("INSERT INTO `t_rows`") && texts[0].contains("x'3135', x'', x'', 26, 1000, 1000, NULL, 4, _binary'')")
        );
        assert!(texts[1].starts_with("INSERT INTO `t_bodies`") && texts[1].contains("(x'612F2F', x'3030', x'', _binary'it''s'), "));
        assert_eq!(texts[2], "UPDATE `t_partitions` SET version = 26 WHERE partition_name = x'612F2F'");
        assert!(texts[3].starts_with("INSERT INTO `t_namespaces` (namespace) VALUES (x'612F2F') ON"));
    }

    #[test]
    fn delete_advances_the_counter_by_count_only_without_puts() {
        let a = Namespace::parse("a").expect("a legal namespace");
        let partition = a.partition();
        let now = Timestamp::from_microsecond(1_000).expect("a time");
        let (removal, touch) = (Batch::new().delete(&a, "k").delete_prefix(&a, "d/"), Batch::new().touch(&a, "k", None));
        let statements = |batch: &Batch, after| {
            let mut plan = Plan::new(&Tables::new(""), &partition, after);
            plan.add(&Effect::of(&batch.writes, now), 10, now);
            texts(plan)
        };
        let counted = statements(&removal, After::Counted(10));
        assert!(counted.contains(&"SET @v = 10 + IF(@r > 0, 1, 0)".to_owned()), "{counted:#?}");
        assert_eq!(counted.iter().filter(|sql| sql.contains("ROW_COUNT()")).count(), 2, "{counted:#?}");
        assert!(counted.iter().any(|sql| sql.starts_with("DELETE FROM `namespaces`")), "the namespace may be empty now");
        let touched = statements(&touch, After::Counted(10));
        assert!(touched.contains(&"SET @v = 10".to_owned()) && !touched.iter().any(|sql| sql.contains("`namespaces`")), "{touched:#?}");
        let mut marked = Plan::new(&Tables::new(""), &partition, After::Counted(10)).marked(Some(70));
        marked.add(&Effect::of(&removal.writes, now), 10, now);
        let marked = texts(marked);
        assert_eq!(
            marked.last().expect("a statement"),
            "UPDATE `partitions` SET version = @v WHERE partition_name = x'612F2F' AND version = 70"
        );
        assert_eq!(marked.iter().filter(|sql| sql.contains("`partitions` SET version")).count(), 1);
        let together = statements(&removal.put(&a, "l", ""), After::Known(11));
        // The rows of the prefix are counted to remove so many, not for the counter.
        let is_counted = |sql: &String| ["@v", "@r", "ROW_COUNT"].iter().any(|part| sql.contains(part));
        assert!(!together.iter().any(|sql| is_counted(sql) || sql.starts_with("DELETE FROM `namespaces`")), "{together:#?}");
    }
}
