//! The host location of an error, for the operator: the source of an error whose message names no host path.

use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};

/// A host path, and the system's error about it.
#[derive(Debug)]
pub struct AtHost {
    path: PathBuf,
    cause: Option<Box<dyn Error + Send + Sync>>,
}

impl AtHost {
    /// Names the path that an error is about.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), cause: None }
    }

    /// Sets the system's error.
    #[must_use]
    pub fn with_cause(mut self, cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.cause = Some(cause.into());
        self
    }
}

impl fmt::Display for AtHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at `{}`", self.path.display())
    }
}

impl Error for AtHost {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.cause.as_deref().map(|cause| cause as &(dyn Error + 'static))
    }
}
