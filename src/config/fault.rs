//! Faults of a configuration: their location, and what was probably intended.

use super::ConfigBase;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};
use treehold_core::error::{Error, ErrorKind};

/// A fault in a configuration: file, line, column, and the probably intended key or value.
///
/// Displayed like a compiler error: ``treehold.toml:3:1: unknown key `rout`; did you mean `routes`?``
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConfigFault {
    /// The file; `None` if the text is not from a file.
    pub file: Option<PathBuf>,
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// What is wrong.
    pub message: String,
    /// What was probably intended, or what to do.
    pub hint: Option<String>,
}

impl fmt::Display for ConfigFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            Some(file) => write!(f, "{}", file.display())?,
            None => f.write_str("configuration")?,
        }
        write!(f, ":{}:{}: {}", self.line, self.column, self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ConfigFault {}

impl From<ConfigFault> for Error {
    fn from(fault: ConfigFault) -> Self {
        Self::invalid_argument(fault.to_string()).with_source(fault)
    }
}

/// A fault identified by its keys, before its line is known.
#[derive(Debug)]
pub(super) struct Broken {
    keys: Vec<String>,
    message: String,
    hint: Option<String>,
}

impl Broken {
    /// Reports the value under `keys`. Trailing keys that are not in the text are ignored when it is located.
    pub(super) fn new(keys: &[&str], message: impl Into<String>) -> Self {
        Self::under(keys.iter().map(|key| (*key).to_owned()), message)
    }

    /// Reports the value under `keys`, some of which may be list indexes.
    pub(super) fn under(keys: impl IntoIterator<Item = String>, message: impl Into<String>) -> Self {
        Self { keys: keys.into_iter().collect(), message: message.into(), hint: None }
    }

    /// Adds a hint.
    pub(super) fn with_hint(mut self, hint: Option<String>) -> Self {
        self.hint = hint;
        self
    }

    /// Returns the fault as an error, for a value that was set after parsing.
    pub(super) fn into_error(self) -> Error {
        Error::invalid_argument(self.message)
    }

    /// Determines the line and column.
    pub(super) fn locate(self, text: &str, base: &ConfigBase) -> ConfigFault {
        let start = spans_of(text, &self.keys).last().map_or(0, |span| span.start);
        let (line, column) = line_and_column(text, start);
        ConfigFault { file: base.file.clone(), line, column, message: self.message, hint: self.hint }
    }
}

/// Converts an error of the deserializer.
pub(super) fn of_toml(error: &toml::de::Error, text: &str, base: &ConfigBase) -> ConfigFault {
    let (line, column) = line_and_column(text, error.span().map_or(text.len(), |span| span.start));
    let (message, hint) = explain(error.message());
    ConfigFault { file: base.file.clone(), line, column, message, hint }
}

/// Returns the error for a file that cannot be read.
pub(super) fn of_reading(file: &Path, error: std::io::Error) -> Error {
    let kind = match error.kind() {
        std::io::ErrorKind::NotFound => ErrorKind::NotFound,
        std::io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
        std::io::ErrorKind::InvalidData | std::io::ErrorKind::IsADirectory => ErrorKind::InvalidArgument,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, format!("the configuration `{}` cannot be read: {error}", file.display())).with_source(error)
}

/// Suggests the name in `known` most similar to `name`, if one is similar enough.
pub(crate) fn did_you_mean<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    known
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(name, candidate), candidate))
        .filter(|(likeness, _)| *likeness > 0.75)
        .max_by(|one, other| one.0.total_cmp(&other.0))
        .map(|(_, candidate)| format!("did you mean `{candidate}`?"))
}

/// Rephrases a message of the deserializer. From ``unknown field `a`, expected one of `b`, `c` `` it derives a hint: the most similar known
/// name, or all of them.
fn explain(message: &str) -> (String, Option<String>) {
    let quoted = |text: &str| text.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    for (prefix, what) in [("unknown field ", "key"), ("unknown variant ", "value")] {
        let Some((name, expected)) = message.strip_prefix(prefix).and_then(|rest| rest.split_once(", ")) else { continue };
        let known = quoted(expected);
        let name = name.trim_matches('`');
        let hint = did_you_mean(name, known.iter().map(String::as_str))
            .or_else(|| Some(format!("use one of {}", known.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "))));
        return (format!("unknown {what} `{name}`"), hint);
    }
    if let Some(name) = message.strip_prefix("missing field ") {
        return (format!("the key {name} is missing"), None);
    }
    for prefix in ["invalid type: ", "invalid value: "] {
        let Some((found, expected)) = message.strip_prefix(prefix).and_then(|rest| rest.split_once(", expected ")) else { continue };
        let found = match found {
            "map" => "a table".to_owned(),
            "sequence" => "a list".to_owned(),
            found => found.trim_start_matches("boolean ").replacen("string", "text", 1).replacen("floating point", "number", 1),
        };
        let expected = if found.starts_with("integer `-") { "a whole number that is not negative" } else { written(expected) };
        return (format!("the value is {found}"), Some(format!("write {expected}")));
    }
    (message.trim_end_matches('\n').replace('\n', ", "), None)
}

/// Returns what to write for what the deserializer expects, which may be a type of this program.
fn written(expected: &str) -> &str {
    match expected {
        "a string" | "path string" | "a path" | "a borrowed string" => "text in quotes",
        "a boolean" => "`true` or `false`",
        "a sequence" => "a list in brackets, such as `[\"a\", \"b\"]`",
        "a map" => "a table",
        expected if expected.starts_with("struct ") => "a table, such as `{ key = \"value\" }`",
        expected
            if expected.trim_start_matches("nonzero ").starts_with(['u', 'i'])
                && expected.ends_with(|last: char| last.is_ascii_digit()) =>
        {
            "a whole number"
        }
        "usize" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        expected => expected,
    }
}

/// Returns the spans of `keys`, up to the last one that the text contains.
///
/// The span of a table or list is that of its key; that of a plain value is its own.
fn spans_of(text: &str, keys: &[String]) -> Vec<Range<usize>> {
    let Ok(document) = DeTable::parse(text) else { return Vec::new() };
    let document = DeValue::Table(document.into_inner());
    let mut spans = Vec::new();
    let mut level = &document;
    for key in keys {
        let found = match level {
            DeValue::Table(table) => table.iter().find(|(name, _)| name.get_ref() == key).map(|(name, value)| (name.span(), value)),
            DeValue::Array(values) => key.parse().ok().and_then(|index: usize| values.get(index)).map(|value| (value.span(), value)),
            _ => None,
        };
        let Some((key_span, value)) = found else { break };
        let is_plain = !matches!(value.get_ref(), DeValue::Table(_) | DeValue::Array(_));
        spans.push(if is_plain { value.span() } else { key_span });
        level = value.get_ref();
    }
    spans
}

/// Returns the line, counted from 1, of the value under `keys`, if the text sets it.
pub(super) fn line_of(text: &str, keys: &[String]) -> Option<usize> {
    let spans = spans_of(text, keys);
    (spans.len() == keys.len()).then(|| line_and_column(text, spans.last().map_or(0, |span| span.start)).0)
}

fn line_and_column(text: &str, offset: usize) -> (usize, usize) {
    let before = &text[..text.floor_char_boundary(offset)];
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}
