//! The effective settings, each with its origin.

use super::{Config, fault};
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;

/// The origin of a setting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "from")]
#[non_exhaustive]
pub enum Origin {
    /// The built-in default.
    Default,
    /// A configuration file.
    File {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// A flag or environment variable.
    Caller {
        /// Its name.
        name: String,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { file, line } => write!(f, "{}:{line}", file.display()),
            Self::Caller { name } => f.write_str(name),
        }
    }
}

/// One effective setting.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Setting {
    /// The keys, from the outermost table inwards.
    pub keys: Vec<String>,
    /// The value.
    pub value: toml::Value,
    /// The origin.
    pub origin: Origin,
}

impl Setting {
    /// Returns the table of the setting as a TOML header writes it, or `None` for a top-level setting.
    pub fn table(&self) -> Option<String> {
        let (_, tables) = self.keys.split_last()?;
        (!tables.is_empty()).then(|| tables.iter().map(|key| quoted(key)).collect::<Vec<_>>().join("."))
    }

    /// Returns the last key as TOML writes it.
    pub fn key(&self) -> String {
        self.keys.last().map(|key| quoted(key)).unwrap_or_default()
    }
}

impl Config {
    /// Returns every effective setting: top-level ones first, then table by table.
    ///
    /// Written out with their tables, they parse to the same configuration.
    pub fn settings(&self) -> Vec<Setting> {
        let table = toml::Table::try_from(self).expect("a configuration always serializes");
        let mut settings = Vec::new();
        self.flatten(&table, &mut Vec::new(), &mut settings);
        settings
    }

    fn flatten(&self, table: &toml::Table, keys: &mut Vec<String>, settings: &mut Vec<Setting>) {
        let (tables, values): (Vec<_>, Vec<_>) = table.iter().partition(|(_, value)| value.is_table());
        for (key, value) in values {
            let keys: Vec<String> = keys.iter().chain([key]).cloned().collect();
            settings.push(Setting { value: value.clone(), origin: self.origin(&keys), keys });
        }
        for (key, value) in tables {
            keys.push(key.clone());
            if let Some(table) = value.as_table() {
                self.flatten(table, keys, settings);
            }
            keys.pop();
        }
    }

    fn origin(&self, keys: &[String]) -> Origin {
        if let Some(name) = self.callers.get(keys) {
            return Origin::Caller { name: name.clone() };
        }
        match fault::line_of(&self.text, keys) {
            Some(line) => Origin::File { file: self.base.file.clone().unwrap_or_else(|| "configuration".into()), line },
            None => Origin::Default,
        }
    }
}

/// Formats a key as TOML does: bare if possible, otherwise quoted.
fn quoted(key: &str) -> String {
    let bare = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
    if bare { key.to_owned() } else { toml::Value::from(key).to_string() }
}
