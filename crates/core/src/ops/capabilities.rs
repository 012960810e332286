//! What a backend declares about itself.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What an acknowledged change survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// Nothing: it lives in the memory of this process.
    None,
    /// The end of the process, including a crash.
    Process,
    /// A power loss.
    Power,
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::None => "none",
            Self::Process => "process",
            Self::Power => "power",
        })
    }
}

/// What a backend offers beyond the common contract.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Capabilities {
    /// Whether a batch takes effect as a whole or not at all. Otherwise a batch is applied in order up to its first
    /// failure.
    pub atomic_batch: bool,
    /// Whether changes are accepted.
    pub writable: bool,
    /// What an acknowledged change survives.
    pub durability: Durability,
    /// The largest file in bytes; `None` if there is no limit.
    pub file_bytes_max: Option<u64>,
    /// Whether entries may be symbolic links of the host.
    pub symlinks: bool,
    /// Whether an index may preselect the files that a grep reads; the counts then cover those files only.
    pub indexed: bool,
}

impl Capabilities {
    /// Declares a writable tree with atomic batches, without durability or limits.
    pub fn new() -> Self {
        Self { atomic_batch: true, writable: true, durability: Durability::None, file_bytes_max: None, symlinks: false, indexed: false }
    }

    /// Declares what holds in two trees that are mounted in one: the weaker promises of both, and the links and indexes of either.
    #[must_use]
    pub fn merged_with(self, other: Self) -> Self {
        Self {
            atomic_batch: self.atomic_batch && other.atomic_batch,
            writable: self.writable || other.writable,
            durability: self.durability.min(other.durability),
            file_bytes_max: self.file_bytes_max.into_iter().chain(other.file_bytes_max).min(),
            symlinks: self.symlinks || other.symlinks,
            indexed: self.indexed || other.indexed,
        }
    }

    /// Sets whether batches are atomic.
    #[must_use]
    pub fn with_atomic_batch(mut self, atomic_batch: bool) -> Self {
        self.atomic_batch = atomic_batch;
        self
    }

    /// Sets whether changes are accepted.
    #[must_use]
    pub fn with_writable(mut self, writable: bool) -> Self {
        self.writable = writable;
        self
    }

    /// Sets what an acknowledged change survives.
    #[must_use]
    pub fn with_durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Sets the largest file in bytes.
    #[must_use]
    pub fn with_file_bytes_max(mut self, file_bytes_max: Option<u64>) -> Self {
        self.file_bytes_max = file_bytes_max;
        self
    }

    /// Sets whether entries may be symbolic links.
    #[must_use]
    pub fn with_symlinks(mut self, symlinks: bool) -> Self {
        self.symlinks = symlinks;
        self
    }

    /// Sets whether an index may preselect the files that a grep reads.
    #[must_use]
    pub fn with_indexed(mut self, indexed: bool) -> Self {
        self.indexed = indexed;
        self
    }
}

impl Default for Capabilities {
    fn default() -> Self {
        Self::new()
    }
}
