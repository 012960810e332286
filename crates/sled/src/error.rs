//! Conversion of sled's errors and panics. Host paths appear only in the source.

use std::panic::{AssertUnwindSafe, catch_unwind};
use treehold_core::error::{Error, ErrorKind, Result};

/// Converts an engine error.
pub(super) fn failed(error: ::sled::Error) -> Error {
    let (kind, message) = match &error {
        ::sled::Error::Io(_) => {
            (ErrorKind::Unavailable, "the files of the store cannot be read or written now; check their disk and try again")
        }
        ::sled::Error::Corruption { .. } => (ErrorKind::Corrupt, "the files of the store are damaged; restore them from a backup"),
        ::sled::Error::Unsupported(_) => {
            (ErrorKind::Unsupported, "the files of the store belong to another version of the engine; upgrade this program")
        }
        ::sled::Error::CollectionNotFound(_) | ::sled::Error::ReportableBug(_) => {
            (ErrorKind::Internal, "the store's engine failed unexpectedly; this is a bug in the program")
        }
    };
    Error::new(kind, message).with_source(error)
}

/// Makes the error for a row that contradicts what was stored.
pub(super) fn damaged(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("{what}; the store is damaged, restore it from a backup"))
}

/// Calls the engine and converts its panics, which it raises for some kinds of damage, into errors.
pub(super) fn guarded<T>(call: impl FnOnce() -> Result<T>) -> Result<T> {
    // A panic can leave inconsistent state only in the engine, which guards it with its own locks, and in values
    // dropped here.
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let reason = match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
            (Some(text), _) => (*text).to_owned(),
            (None, Some(text)) => text.clone(),
            (None, None) => "a panic without a message".to_owned(),
        };
        Err(damaged("the store's engine panicked").with_source(reason))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engine_panic_becomes_a_corrupt_error() {
        let error = guarded::<()>(|| panic!("cannot find pid {}", 7)).expect_err("it panicked");
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert_eq!(std::error::Error::source(&error).expect("the reason").to_string(), "cannot find pid 7");
    }
}
