//! What tools keep about a session.

use super::entries::Entries;
use super::text;
use super::wire::{only_from_objects, only_objects, or_default};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;
use treehold_core::error::{Error, Result};

/// A sub-agent that the session started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub struct SpawnEntry {
    /// The key of the entry.
    #[serde(default)]
    pub key: Option<String>,
    /// The agent.
    #[serde(default)]
    pub agent_id: Option<String>,
    /// The agent's session.
    #[serde(default)]
    pub session_id: Option<String>,
    /// A name to show.
    #[serde(default)]
    pub label: Option<String>,
    /// How many agents are above it.
    #[serde(default, deserialize_with = "or_default")]
    pub depth: i32,
}

/// What tools keep: limits of the cache of read files, the active tool groups, and the sub-agents. The cached files are never stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Fields")]
pub struct ToolContext {
    max_cache_files: i32,
    #[serde(serialize_with = "as_double")]
    max_cache_bytes: f64,
    /// The active groups of tools.
    pub activated_groups: Vec<String>,
    /// The sub-agents by key.
    pub spawn_registry: Entries<SpawnEntry>,
}

#[derive(Deserialize)]
#[serde(remote = "Self")]
struct Fields {
    max_cache_files: Option<i32>,
    max_cache_bytes: Option<f64>,
    #[serde(default, deserialize_with = "or_default")]
    activated_groups: Vec<String>,
    #[serde(default)]
    spawn_registry: Entries<SpawnEntry>,
}

impl ToolContext {
    /// The default of [`ToolContext::max_cache_files`].
    pub const MAX_CACHE_FILES: i32 = 100;

    /// The default of [`ToolContext::max_cache_bytes`].
    pub const MAX_CACHE_BYTES: f64 = 25_000.0;

    /// Returns how many files the cache of read files holds.
    pub fn max_cache_files(&self) -> i32 {
        self.max_cache_files
    }

    /// Sets how many files the cache holds.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::ErrorKind::InvalidArgument) unless it is over 1.
    pub fn set_max_cache_files(&mut self, files: i32) -> Result<()> {
        if files <= 1 {
            return Err(Error::invalid_argument(format!("`max_cache_files` is {files}; it must be over 1")));
        }
        self.max_cache_files = files;
        Ok(())
    }

    /// Returns the size of the cache of read files. AgentScope counts it in KiB, in spite of its name.
    pub fn max_cache_bytes(&self) -> f64 {
        self.max_cache_bytes
    }

    /// Sets the size of the cache.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::ErrorKind::InvalidArgument) unless it is a number over 10,000.
    pub fn set_max_cache_bytes(&mut self, size: f64) -> Result<()> {
        if !size.is_finite() || size <= 10_000.0 {
            return Err(Error::invalid_argument(format!("`max_cache_bytes` is {size}; it must be over 10000")));
        }
        self.max_cache_bytes = size;
        Ok(())
    }
}

impl Default for ToolContext {
    fn default() -> Self {
        Self {
            max_cache_files: Self::MAX_CACHE_FILES,
            max_cache_bytes: Self::MAX_CACHE_BYTES,
            activated_groups: Vec::new(),
            spawn_registry: Entries::new(),
        }
    }
}

impl TryFrom<Fields> for ToolContext {
    type Error = String;

    fn try_from(fields: Fields) -> Result<Self, String> {
        let mut context = Self { activated_groups: fields.activated_groups, spawn_registry: fields.spawn_registry, ..Self::default() };
        let message = |error: Error| error.message().to_owned();
        fields.max_cache_files.map_or(Ok(()), |files| context.set_max_cache_files(files)).map_err(message)?;
        fields.max_cache_bytes.map_or(Ok(()), |size| context.set_max_cache_bytes(size)).map_err(message)?;
        Ok(context)
    }
}

/// Writes a number as Java does.
pub(crate) fn as_double<S: Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    match RawValue::from_string(text::double(*number)) {
        Ok(raw) => raw.serialize(serializer),
        Err(_) => Err(serde::ser::Error::custom("JSON has only finite numbers")),
    }
}

only_objects!(SpawnEntry);
only_from_objects!(Fields);
