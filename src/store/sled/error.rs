//! What sled reports, or panics with, as the crate's errors. Host paths stay in the source.

use crate::error::{Error, ErrorKind, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Converts a failure of the engine.
pub(super) fn failed(error: ::sled::Error) -> Error {
    let (kind, message) = match &error {
        ::sled::Error::Io(_) => {
            (ErrorKind::Unavailable, "the files of the store cannot be read or written now; look at their disk and try again")
        }
        ::sled::Error::Corruption { .. } => (ErrorKind::Corrupt, "the files of the store are damaged; restore them from a backup"),
        ::sled::Error::Unsupported(_) => (ErrorKind::Unsupported, "the files of the store are of another version of the engine; upgrade"),
        ::sled::Error::CollectionNotFound(_) | ::sled::Error::ReportableBug(_) => {
            (ErrorKind::Internal, "the engine of the store failed in a way that is a fault of the program")
        }
    };
    Error::new(kind, message).with_source(error)
}

/// Makes the error of a row that cannot be what was stored.
pub(super) fn damaged(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("{what}; the store is damaged, restore it from a backup"))
}

/// Calls the engine, which panics at some damages that it meets: that is an error like others.
pub(super) fn guarded<T>(call: impl FnOnce() -> Result<T>) -> Result<T> {
    // What a panic may leave behind is in the engine, whose state is behind its own locks, and in values that end here.
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let reason = match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
            (Some(text), _) => (*text).to_owned(),
            (None, Some(text)) => text.clone(),
            (None, None) => "a panic without a text".to_owned(),
        };
        Err(damaged("the engine of the store broke off").with_source(reason))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_the_engine_is_corrupt() {
        let error = guarded::<()>(|| panic!("cannot find pid {}", 7)).expect_err("it panicked");
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert_eq!(std::error::Error::source(&error).expect("the reason").to_string(), "cannot find pid 7");
    }
}
