//! The result of work on a thread, which keeps the answer of the work apart from a failure to save it.

use treehold_core::error::{Error, Result};

/// The result of work on a thread.
#[derive(Debug)]
#[must_use = "`unsaved` says whether the changes are durable"]
pub struct Done<T> {
    /// The answer of the work itself.
    pub answer: T,
    /// The reason why its changes to the thread are not saved. The thread in process memory has them.
    pub unsaved: Option<Error>,
}

impl<T> Done<T> {
    /// The result of work whose changes, if any, are saved.
    pub fn saved(answer: T) -> Self {
        Self { answer, unsaved: None }
    }

    /// Returns the answer, or the reason why the changes are not saved.
    ///
    /// # Errors
    /// `unsaved`. Its `may_have_effect` is set.
    pub fn into_saved(self) -> Result<T> {
        match self.unsaved {
            None => Ok(self.answer),
            Some(error) => Err(error),
        }
    }

    /// Converts the answer.
    pub fn map<U>(self, convert: impl FnOnce(T) -> U) -> Done<U> {
        Done { answer: convert(self.answer), unsaved: self.unsaved }
    }
}
