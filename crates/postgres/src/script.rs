//! A statement under construction, with its parameters.

use super::key::Key;
use std::fmt::Write;
use tokio_postgres::types::ToSql;
use treehold_store::Namespace;

/// A parameter of a statement.
pub(super) type Parameter<'p> = Box<dyn ToSql + Send + Sync + 'p>;

/// A statement and its parameters. The text depends only on the shape of the query, never on its values, so a connection prepares it once.
#[derive(Debug, Default)]
pub(super) struct Script<'p> {
    pub(super) sql: String,
    parameters: Vec<Parameter<'p>>,
}

impl<'p> Script<'p> {
    /// Starts with text.
    pub(super) fn new(sql: impl Into<String>) -> Self {
        Self { sql: sql.into(), parameters: Vec::new() }
    }

    /// Adds text.
    pub(super) fn push(&mut self, sql: &str) {
        self.sql.push_str(sql);
    }

    /// Adds a parameter and returns its placeholder.
    pub(super) fn parameter(&mut self, value: impl ToSql + Send + Sync + 'p) -> String {
        self.parameters.push(Box::new(value));
        format!("${}", self.parameters.len())
    }

    /// Adds parameters for a namespace: those of its partition and of its name in it. Returns the condition for rows `i` in it.
    pub(super) fn lies_in(&mut self, namespace: &'p Namespace) -> String {
        let (partition, name) = namespace.encoded_parts();
        format!("i.partition = {} AND i.name = {}", self.parameter(partition), self.parameter(name))
    }

    /// Adds the condition that a row's key is not before `start`.
    pub(super) fn push_from(&mut self, start: &str) {
        let Key { head, tail } = Key::of(start);
        let head_at = self.parameter(head.to_owned());
        // A head that is not before a short bound suffices, with any tail.
        if tail.is_empty() {
            let _ = write!(self.sql, " AND i.head >= {head_at}");
        } else {
            let tail_at = self.parameter(tail.to_owned());
            let _ = write!(self.sql, " AND i.head >= {head_at} AND (i.head > {head_at} OR i.tail >= {tail_at})");
        }
    }

    /// Adds the condition that a row's key is before `end`.
    pub(super) fn push_until(&mut self, end: &str) {
        let until = self.until(end);
        self.sql.push_str(&until);
    }

    /// Adds parameters for the end of a range, and returns the condition that a row's key is before it.
    pub(super) fn until(&mut self, end: &str) -> String {
        let Key { head, tail } = Key::of(end);
        let head_at = self.parameter(head.to_owned());
        if tail.is_empty() {
            return format!(" AND i.head < {head_at}");
        }
        let tail_at = self.parameter(tail.to_owned());
        format!(" AND i.head <= {head_at} AND (i.head < {head_at} OR i.tail < {tail_at})")
    }

    /// Returns the parameters in the form that the client takes.
    pub(super) fn parameters(&self) -> Vec<&(dyn ToSql + Sync)> {
        self.parameters.iter().map(|parameter| &**parameter as &(dyn ToSql + Sync)).collect()
    }
}
