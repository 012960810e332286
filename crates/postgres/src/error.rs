//! Conversion of errors of the server and the connection. SQL, hosts and names stay in the source.

use deadpool_postgres::{PoolError, TimeoutType};
use std::error::Error as _;
use tokio_postgres::error::{DbError, SqlState};
use treehold_core::error::{Error, ErrorKind};

/// Converts an error of a statement, or of the connection under it.
pub(super) fn failed(error: tokio_postgres::Error) -> Error {
    let (kind, message) = describe(&error);
    Error::new(kind, message).with_source(error)
}

/// Converts a failure to get a connection. Nothing was sent to the server yet.
pub(super) fn no_connection(error: PoolError) -> Error {
    let error = match error {
        PoolError::Backend(error) => not_connected(error),
        PoolError::Timeout(TimeoutType::Wait) => busy(),
        PoolError::Timeout(_) => silent(),
        error => Error::new(ErrorKind::Internal, "the pool of connections failed; this is a bug in the program").with_source(error),
    };
    error.without_effect()
}

/// Converts a failure to connect.
pub(super) fn not_connected(error: tokio_postgres::Error) -> Error {
    // The client distinguishes these kinds only by their text.
    let (kind, message) = match error.to_string().as_str() {
        "error performing TLS handshake" => (
            ErrorKind::Unavailable,
            "the database's certificate is not trusted, or it offers no TLS; set `sslrootcert` to its root, or choose another `sslmode`",
        ),
        "authentication error" | "invalid configuration" => (ErrorKind::PermissionDenied, DENIED),
        _ => describe(&error),
    };
    Error::new(kind, message).with_source(error).without_effect()
}

/// Returns the error for connections that others did not give back in time.
pub(super) fn busy() -> Error {
    Error::new(ErrorKind::Unavailable, "all connections to the database are in use; raise `connections_max` or try again")
}

/// Returns the error for a server that accepts connections but does not answer.
pub(super) fn silent() -> Error {
    Error::new(ErrorKind::Unavailable, "the database did not answer in time; check the server and try again")
}

/// Returns the error for a row that contradicts what was stored.
pub(super) fn damaged(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("{what}; the database is damaged, restore it from a backup"))
}

/// Returns whether the connection is gone, and not just a statement refused.
pub(super) fn is_lost(error: &tokio_postgres::Error) -> bool {
    error.as_db_error().is_none_or(|error| error.parsed_severity().is_some_and(is_fatal))
}

/// Returns whether a transaction gave way to another one, so that it had no effect and may be restarted.
pub(super) fn gave_way(error: &tokio_postgres::Error) -> bool {
    matches!(error.code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE | &SqlState::T_R_DEADLOCK_DETECTED))
}

/// Returns whether one batch alone may have caused the failure of a group. Missing resources, cancellations and lock timeouts would hit
/// each batch separately too.
pub(super) fn is_of_one(error: &tokio_postgres::Error) -> bool {
    !gave_way(error) && error.code().is_some_and(is_of_one_code)
}

fn is_of_one_code(code: &SqlState) -> bool {
    ![SqlState::LOCK_NOT_AVAILABLE, SqlState::QUERY_CANCELED].contains(code) && !code.code().starts_with("53")
}

/// Returns whether a failed commit certainly had no effect: the server refused it, and did not just stop.
pub(super) fn is_refusal(error: &tokio_postgres::Error) -> bool {
    let unknown = |code: &SqlState| {
        *code == SqlState::T_R_STATEMENT_COMPLETION_UNKNOWN || ["08", "57", "58", "XX"].iter().any(|class| code.code().starts_with(class))
    };
    error.as_db_error().is_some_and(|error| !unknown(error.code()) && !error.parsed_severity().is_some_and(is_fatal))
}

fn is_fatal(severity: tokio_postgres::error::Severity) -> bool {
    matches!(severity, tokio_postgres::error::Severity::Fatal | tokio_postgres::error::Severity::Panic)
}

fn describe(error: &tokio_postgres::Error) -> (ErrorKind, &'static str) {
    match error.code() {
        Some(code) if is_of_standby(code, error.as_db_error().and_then(DbError::routine)) => READ_ONLY,
        Some(code) => describe_code(code),
        None if is_unreadable(error) => {
            (ErrorKind::Corrupt, "a row of the database does not match what was stored; the database is damaged, restore it from a backup")
        }
        None => (ErrorKind::Unavailable, "the database cannot be reached; check the server and the network, and try again"),
    }
}

/// Returns whether a value was not of its column's type.
fn is_unreadable(error: &tokio_postgres::Error) -> bool {
    error.source().is_some_and(|source| source.is::<tokio_postgres::types::WrongType>())
}

/// Returns whether a standby refused to begin a writing transaction. It reports `feature not supported`, as an old server does for an
/// unknown statement; the name of the server function that refused, which is not translated, tells them apart.
fn is_of_standby(code: &SqlState, routine: Option<&str>) -> bool {
    *code == SqlState::FEATURE_NOT_SUPPORTED && matches!(routine, Some("call_bool_check_hook" | "call_enum_check_hook"))
}

const READ_ONLY: (ErrorKind, &str) =
    (ErrorKind::ReadOnly, "the database is read-only, by its settings or as a standby; name the primary server");

const DENIED: &str = "the database rejects the user or password; correct the URL";

fn describe_code(code: &SqlState) -> (ErrorKind, &'static str) {
    match *code {
        SqlState::INVALID_PASSWORD | SqlState::INVALID_AUTHORIZATION_SPECIFICATION => (ErrorKind::PermissionDenied, DENIED),
        SqlState::INSUFFICIENT_PRIVILEGE => {
            (ErrorKind::PermissionDenied, "the user lacks a privilege in the database; grant those that `docs/stores.md` lists")
        }
        SqlState::INVALID_CATALOG_NAME => (ErrorKind::NotFound, "the database that the URL names does not exist; create it"),
        SqlState::READ_ONLY_SQL_TRANSACTION => READ_ONLY,
        SqlState::DISK_FULL => (ErrorKind::Unavailable, "the disk of the database is full; make room and try again"),
        SqlState::OUT_OF_MEMORY => (ErrorKind::Unavailable, "the database does not have enough memory; try again"),
        SqlState::TOO_MANY_CONNECTIONS => (
            ErrorKind::Unavailable,
            "the database has too many connections; lower `connections_max` of its users or raise its own limit, and try again",
        ),
        SqlState::LOCK_NOT_AVAILABLE => (ErrorKind::Unavailable, "another writer of the database did not finish in time; try again"),
        SqlState::T_R_SERIALIZATION_FAILURE | SqlState::T_R_DEADLOCK_DETECTED => {
            (ErrorKind::Unavailable, "the database is busy with other writers; try again")
        }
        SqlState::QUERY_CANCELED => {
            (ErrorKind::Unavailable, "the database cancelled the statement, by its time limit or at an operator's request; try again")
        }
        SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT => {
            (ErrorKind::Unavailable, "the database ended a transaction that was idle for too long; try again")
        }
        SqlState::DATA_CORRUPTED | SqlState::INDEX_CORRUPTED => {
            (ErrorKind::Corrupt, "the database found its own files damaged; restore it from a backup")
        }
        SqlState::UNDEFINED_TABLE | SqlState::UNDEFINED_COLUMN | SqlState::INVALID_SCHEMA_NAME => {
            (ErrorKind::Corrupt, "the store's tables are missing or belong to another program; name another schema or open the store again")
        }
        SqlState::PROGRAM_LIMIT_EXCEEDED => (
            ErrorKind::TooLarge,
            "the content exceeds what the database accepts in \
            one statement; split it",
        ),
        ref code => describe_class(code.code()),
    }
}

fn describe_class(code: &str) -> (ErrorKind, &'static str) {
    match &code[..2] {
        "08" | "57" => (ErrorKind::Unavailable, "the database closed the connection or is starting or stopping; try again"),
        "53" => (ErrorKind::Unavailable, "the database has run out of a resource; check the server and try again"),
        "58" => (ErrorKind::Unavailable, "the database cannot read or write its files; check its disk and try again"),
        "0A" => (ErrorKind::Unsupported, "the database does not support a statement of this program; upgrade the database"),
        _ => (ErrorKind::Internal, "the database rejected a statement; this is a bug in the program"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_resources_are_not_blamed_on_one_batch() {
        for (code, expected) in [("23514", true), ("54000", true), ("42601", true), ("55P03", false), ("57014", false), ("53100", false)] {
            assert_eq!(is_of_one_code(&SqlState::from_code(code)), expected, "{code}");
        }
    }

    #[test]
    fn standby_refusal_is_read_only_but_an_old_servers_is_not() {
        for (code, routine, expected) in [
            ("0A000", Some("call_bool_check_hook"), true),
            ("0A000", Some("call_enum_check_hook"), true),
            ("0A000", Some("transformOnConflictClause"), false),
            ("0A000", None, false),
            ("22023", Some("call_bool_check_hook"), false),
        ] {
            assert_eq!(is_of_standby(&SqlState::from_code(code), routine), expected, "{code} of {routine:?}");
        }
    }

    #[test]
    fn server_codes_map_to_actionable_error_kinds() {
        for (code, kind) in [
            ("28P01", ErrorKind::PermissionDenied),
            ("28000", ErrorKind::PermissionDenied),
            ("42501", ErrorKind::PermissionDenied),
            ("3D000", ErrorKind::NotFound),
            ("25006", ErrorKind::ReadOnly),
            ("53100", ErrorKind::Unavailable),
            ("53300", ErrorKind::Unavailable),
            ("55P03", ErrorKind::Unavailable),
            ("40001", ErrorKind::Unavailable),
            ("57P01", ErrorKind::Unavailable),
            ("57P03", ErrorKind::Unavailable),
            ("57014", ErrorKind::Unavailable),
            ("08006", ErrorKind::Unavailable),
            ("58030", ErrorKind::Unavailable),
            ("XX001", ErrorKind::Corrupt),
            ("42P01", ErrorKind::Corrupt),
            ("54000", ErrorKind::TooLarge),
            ("0A000", ErrorKind::Unsupported),
            ("42601", ErrorKind::Internal),
        ] {
            assert_eq!(describe_code(&SqlState::from_code(code)).0, kind, "{code}");
        }
    }
}
