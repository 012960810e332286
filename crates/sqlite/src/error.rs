//! Conversion of SQLite errors. SQL and host paths appear only in the source.

use rusqlite::ErrorCode;
use rusqlite::ffi;
use std::io;
use std::path::Path;
use treehold_core::error::{AtHost, Error, ErrorKind};

/// Converts an engine error.
pub(super) fn failed(error: rusqlite::Error) -> Error {
    let (kind, message) = describe(&error);
    Error::new(kind, message).with_source(error)
}

/// Makes the error for a row that contradicts what was stored.
pub(super) fn damaged(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("{what}; the database is damaged, restore it from a backup"))
}

/// Makes the error for a file of another program.
pub(super) fn foreign(path: &Path) -> Error {
    Error::new(ErrorKind::Corrupt, "the store's file is not a treehold store; name another file").with_source(AtHost::new(path))
}

/// Converts an error of the file system about the database file.
pub(super) fn unreachable_file(path: &Path, cause: io::Error) -> Error {
    let (kind, message) = match cause.kind() {
        io::ErrorKind::NotFound => (ErrorKind::NotFound, "the directory of the store's file does not exist; create it"),
        io::ErrorKind::PermissionDenied => {
            let message = "the store's file or its directory is not writable; change the permissions of both or name another file";
            (ErrorKind::PermissionDenied, message)
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            (ErrorKind::ReadOnly, "the store's file is on a read-only file system; name a file on another one")
        }
        io::ErrorKind::IsADirectory => {
            let message = "the path of the store's file is a directory; name a file, or name a directory of files as `sqlite:DIRECTORY/`";
            (ErrorKind::IsDirectory, message)
        }
        _ => (ErrorKind::Unavailable, "the store's file cannot be opened; check its disk and try again"),
    };
    Error::new(kind, message).with_source(AtHost::new(path).with_cause(cause))
}

/// Returns whether the error means that another connection holds a required lock.
pub(super) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

pub(super) fn describe(error: &rusqlite::Error) -> (ErrorKind, &'static str) {
    match error {
        rusqlite::Error::SqliteFailure(ffi::Error { code, .. }, _) => describe_code(*code),
        rusqlite::Error::FromSqlConversionFailure(..)
        | rusqlite::Error::IntegralValueOutOfRange(..)
        | rusqlite::Error::InvalidColumnType(..)
        | rusqlite::Error::Utf8Error(..) => {
            (ErrorKind::Corrupt, "a row of the database does not match what was stored; the database is damaged, restore it from a backup")
        }
        _ => (ErrorKind::Internal, "the database rejected a statement; this is a bug in the program"),
    }
}

fn describe_code(code: ErrorCode) -> (ErrorKind, &'static str) {
    match code {
        ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::FileLockingProtocolFailed => {
            (ErrorKind::Unavailable, "the database is busy with another process; try again")
        }
        ErrorCode::DiskFull => (ErrorKind::Unavailable, "the disk of the database is full; make room and try again"),
        ErrorCode::SystemIoFailure => {
            (ErrorKind::Unavailable, "the database file cannot be read or written now; check its disk and try again")
        }
        ErrorCode::CannotOpen => (ErrorKind::Unavailable, "the database file cannot be opened; check its directory and try again"),
        ErrorCode::OutOfMemory => (ErrorKind::Unavailable, "there is not enough memory for the database; try again"),
        ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => {
            (ErrorKind::Corrupt, "the database file is damaged; restore it from a backup")
        }
        ErrorCode::ReadOnly | ErrorCode::PermissionDenied => {
            (ErrorKind::PermissionDenied, "the database file is not writable; change its permissions or use another file")
        }
        ErrorCode::TooBig => (ErrorKind::TooLarge, "the content exceeds the size limit of a row; split it"),
        _ => (ErrorKind::Internal, "the database failed unexpectedly; this is a bug in the program"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engine_errors_map_to_kinds_that_callers_can_act_on() {
        for (code, kind) in [
            (ffi::SQLITE_BUSY, ErrorKind::Unavailable),
            (ffi::SQLITE_BUSY_SNAPSHOT, ErrorKind::Unavailable),
            (ffi::SQLITE_FULL, ErrorKind::Unavailable),
            (ffi::SQLITE_IOERR_FSYNC, ErrorKind::Unavailable),
            (ffi::SQLITE_CANTOPEN, ErrorKind::Unavailable),
            (ffi::SQLITE_CORRUPT, ErrorKind::Corrupt),
            (ffi::SQLITE_NOTADB, ErrorKind::Corrupt),
            (ffi::SQLITE_READONLY, ErrorKind::PermissionDenied),
            (ffi::SQLITE_TOOBIG, ErrorKind::TooLarge),
            (ffi::SQLITE_MISUSE, ErrorKind::Internal),
        ] {
            let error = failed(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None));
            assert_eq!(error.kind(), kind, "code {code}");
            assert!(std::error::Error::source(&error).is_some());
        }
    }
}
