//! Options for opening the directory.

#[cfg(doc)]
use crate::layouts::JsonFileStates;
use crate::layouts::VALUE_BYTES_MAX;

/// Options for [`JsonFileStates`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct JsonFileStatesOptions {
    /// Whether other machines use the same directory, as on a network volume. Default `false`.
    pub shared: bool,
    /// The largest value, and the largest list, in bytes. Default [`VALUE_BYTES_MAX`].
    pub value_bytes_max: usize,
}

impl Default for JsonFileStatesOptions {
    fn default() -> Self {
        Self { shared: false, value_bytes_max: VALUE_BYTES_MAX }
    }
}

impl JsonFileStatesOptions {
    /// Uses the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether other machines use the same directory.
    #[must_use]
    pub fn with_shared(mut self, shared: bool) -> Self {
        self.shared = shared;
        self
    }

    /// Sets the largest value and list, in bytes.
    #[must_use]
    pub fn with_value_bytes_max(mut self, value_bytes_max: usize) -> Self {
        self.value_bytes_max = value_bytes_max;
        self
    }
}
