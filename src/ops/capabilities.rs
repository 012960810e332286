//! What a backend declares.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What an acknowledged change survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// Nothing: it lives in this process.
    None,
    /// The end of the process, however it ends.
    Process,
    /// The loss of power.
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

/// What a backend offers beyond the contract that all keep.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Capabilities {
    /// A batch takes effect as a whole or not at all. Without it a batch is applied in order up to the first failure.
    pub atomic_batch: bool,
    /// Changes are accepted.
    pub writable: bool,
    /// What an acknowledged change survives.
    pub durability: Durability,
    /// The largest file in bytes, where there is a limit.
    pub file_bytes_max: Option<u64>,
    /// Directory entries may be symbolic links of the host.
    pub symlinks: bool,
    /// An index may name the files that a grep has to read; its counts are of those alone.
    pub indexed: bool,
}

impl Capabilities {
    /// Declares a writable tree with atomic batches, no durability and no limit.
    pub fn new() -> Self {
        Self { atomic_batch: true, writable: true, durability: Durability::None, file_bytes_max: None, symlinks: false, indexed: false }
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

    /// Sets what a change survives.
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

    /// Sets whether an index may name the files that a grep reads.
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
