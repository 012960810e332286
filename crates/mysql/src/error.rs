//! Conversion of MySQL and MariaDB errors. SQL, hosts and users appear only in the source.

use std::sync::Arc;
pub(crate) use treehold_core::error::{Error, ErrorKind};

/// A failure that ends the work on a connection.
#[derive(Debug)]
pub(super) enum Fault {
    /// The server reported an error, or the connection was lost.
    Engine(mysql_async::Error),
    /// The server's data contradicts what was stored.
    Stored(Error),
    /// The server did not answer in time.
    Silent,
}

impl From<mysql_async::Error> for Fault {
    fn from(error: mysql_async::Error) -> Self {
        Self::Engine(error)
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Stored(error)
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Engine(error) => failed(error),
            Fault::Stored(error) => error,
            Fault::Silent => silent(),
        }
    }
}

impl Fault {
    /// Returns whether the connection was lost, so that a retry on another one may succeed.
    pub(super) fn is_lost(&self) -> bool {
        matches!(self, Self::Engine(error) if is_lost(error))
    }

    /// Returns whether a read may succeed when it is repeated on another connection.
    pub(super) fn is_passing(&self) -> bool {
        matches!(self, Self::Engine(error) if is_lost(error) || is_busy(error) || is_apart(error))
    }
}

/// Converts an engine error.
pub(super) fn failed(error: mysql_async::Error) -> Error {
    let (kind, message) = describe(&error);
    Error::new(kind, message).with_source(error)
}

/// Makes the error for an answer that did not come in time.
pub(super) fn silent() -> Error {
    Error::new(ErrorKind::Unavailable, "the server of the store did not answer in time; check the server and the network, and try again")
}

/// Converts an engine error that several batches share.
pub(super) fn failed_together(error: &Arc<mysql_async::Error>) -> Error {
    let (kind, message) = describe(error);
    Error::new(kind, message).with_source(error.clone())
}

/// Makes the error for a row that contradicts what was stored.
pub(super) fn damaged(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("{what}; the store's tables are damaged, restore them from a backup"))
}

/// Returns whether the connection was lost or the server is shutting down, so that the statement was not answered.
pub(super) fn is_lost(error: &mysql_async::Error) -> bool {
    match error {
        mysql_async::Error::Server(error) => {
            matches!(error.code, SHUTDOWN | ABORTED | INTERRUPTED | CONNECTION_KILLED | IDLE | IDLE_TRANSACTION)
        }
        error => error.is_fatal(),
    }
}

/// Returns whether the transaction lost to a concurrent one and may succeed when repeated.
pub(super) fn is_busy(error: &mysql_async::Error) -> bool {
    matches!(error, mysql_async::Error::Server(error) if matches!(error.code, LOCK_WAIT_TIMEOUT | DEADLOCK))
}

/// Makes the error of a transaction that a node of a Galera cluster rolled back without reporting it.
pub(super) fn rolled_back() -> mysql_async::Error {
    let message = "the transaction was rolled back for one of another node".to_owned();
    mysql_async::Error::Server(mysql_async::ServerError { code: DEADLOCK, message, state: "40001".to_owned() })
}

/// Returns whether the server rolled the transaction back because of a concurrent one.
pub(super) fn is_deadlock(error: &mysql_async::Error) -> bool {
    matches!(error, mysql_async::Error::Server(error) if error.code == DEADLOCK)
}

/// Returns whether the server is a node of a Galera cluster that is not part of it at present. It refuses every statement that reads or
/// writes tables, and every commit, before it does anything.
pub(super) fn is_apart(error: &mysql_async::Error) -> bool {
    matches!(error, mysql_async::Error::Server(error) if error.code == APART)
}

/// Returns whether a node of a Galera cluster sent a commit to the others and lost them before it learned the outcome.
pub(super) fn is_undecided(error: &mysql_async::Error) -> bool {
    matches!(error, mysql_async::Error::Server(error) if error.code == UNDECIDED)
}

/// Returns whether a table does not exist.
pub(super) fn is_no_such_table(error: &mysql_async::Error) -> bool {
    matches!(error, mysql_async::Error::Server(error) if error.code == NO_SUCH_TABLE)
}

/// MariaDB: `WSREP has not yet prepared node for application use`.
const APART: u16 = 1047;
const SHUTDOWN: u16 = 1053;
const NO_SUCH_TABLE: u16 = 1146;
const ABORTED: u16 = 1152;
const UNDECIDED: u16 = 1180;
const LOCK_WAIT_TIMEOUT: u16 = 1205;
const DEADLOCK: u16 = 1213;
const INTERRUPTED: u16 = 1317;
const CONNECTION_KILLED: u16 = 1927;
/// MySQL: the server disconnected the client because of inactivity.
const IDLE: u16 = 4031;
/// MariaDB: a transaction was idle for too long.
const IDLE_TRANSACTION: u16 = 4042;

fn describe(error: &mysql_async::Error) -> (ErrorKind, &'static str) {
    match error {
        mysql_async::Error::Server(error) => describe_code(error.code),
        mysql_async::Error::Url(_) => {
            (ErrorKind::InvalidArgument, "the URL of the store cannot be used; write `mysql://USER@HOST/DATABASE`")
        }
        mysql_async::Error::Driver(mysql_async::DriverError::FromValue { .. } | mysql_async::DriverError::FromRow { .. }) => {
            (ErrorKind::Corrupt, "a row does not match what was stored; the store's tables are damaged, restore them from a backup")
        }
        mysql_async::Error::Driver(mysql_async::DriverError::PacketTooLarge) => (ErrorKind::TooLarge, TOO_LARGE),
        mysql_async::Error::Driver(mysql_async::DriverError::NoClientSslFlagFromServer) => {
            (ErrorKind::Unsupported, "the server of the store does not offer TLS; enable it there or remove `require_ssl` from the URL")
        }
        mysql_async::Error::Io(mysql_async::IoError::Tls(_)) => (
            ErrorKind::Unavailable,
            "no trusted connection to the server of the store could be established; check its certificate and the URL",
        ),
        _ => (ErrorKind::Unavailable, "the server of the store does not answer; check the server and the network, and try again"),
    }
}

const TOO_LARGE: &str = "the content exceeds the server's packet size; split it or raise `max_allowed_packet`";

fn describe_code(code: u16) -> (ErrorKind, &'static str) {
    match code {
        1040 | 1203 | 1226 => (
            ErrorKind::Unavailable,
            "the server of the store has no free connection; raise its limit or lower `connections_max`, and try again",
        ),
        1044 | 1045 | 1142 | 1143 | 1227 | 1251 | 1698 | 3118 => {
            (ErrorKind::PermissionDenied, "the server of the store rejects the user; check the name, the password and the privileges")
        }
        1049 => (ErrorKind::NotFound, "the database of the store does not exist; create it"),
        NO_SUCH_TABLE | 1054 => {
            (ErrorKind::Corrupt, "the store's tables are missing or were changed; restore them from a backup or open the store again")
        }
        LOCK_WAIT_TIMEOUT | DEADLOCK => (ErrorKind::Unavailable, "the store is busy with other writers; try again"),
        1021 | 1114 => (ErrorKind::Unavailable, "the disk of the server is full; make room there and try again"),
        1030 | 1037 | 1038 | 1041 => {
            (ErrorKind::Unavailable, "the server of the store is short of memory or disk space; check it and try again")
        }
        1153 | 1301 => (ErrorKind::TooLarge, TOO_LARGE),
        1036 | 1290 | 1792 | 1836 | 1874 => (ErrorKind::ReadOnly, "the server of the store is read-only; name the one that accepts writes"),
        1034 | 1194 | 1195 | 1712 => (ErrorKind::Corrupt, "a table of the store is damaged; restore it from a backup"),
        APART => (
            ErrorKind::Unavailable,
            "the server of the store is not part of its cluster at present; wait until it has joined, or name another node, and try again",
        ),
        UNDECIDED => {
            (ErrorKind::Unavailable, "the server of the store lost its cluster during a commit; read what was written, and try again")
        }
        3032 | SHUTDOWN | ABORTED | 1158..=1161 | INTERRUPTED | CONNECTION_KILLED | 1969 | 3024 | IDLE | IDLE_TRANSACTION => {
            (ErrorKind::Unavailable, "the server of the store ended the connection or the statement; try again")
        }
        1665 => {
            (ErrorKind::Unsupported, "the server's binary log is statement-based, which loses changes; set `binlog_format` to ROW or MIXED")
        }
        1071 | 1118 | 1709 => {
            (ErrorKind::Unsupported, "the server cannot hold the store's keys; it needs InnoDB with pages of 16 KiB or more")
        }
        _ => (ErrorKind::Internal, "the server rejected a statement; this is a bug in the program"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(code: u16) -> mysql_async::Error {
        mysql_async::Error::Server(mysql_async::ServerError { code, message: "secret".to_owned(), state: "HY000".to_owned() })
    }

    #[test]
    fn server_errors_map_to_kinds_that_callers_can_act_on() {
        for (code, kind) in [
            (1040, ErrorKind::Unavailable),
            (1045, ErrorKind::PermissionDenied),
            (1049, ErrorKind::NotFound),
            (1146, ErrorKind::Corrupt),
            (1153, ErrorKind::TooLarge),
            (1205, ErrorKind::Unavailable),
            (1213, ErrorKind::Unavailable),
            (1036, ErrorKind::ReadOnly),
            (1290, ErrorKind::ReadOnly),
            (1792, ErrorKind::ReadOnly),
            (1836, ErrorKind::ReadOnly),
            (1874, ErrorKind::ReadOnly),
            (1047, ErrorKind::Unavailable),
            (1180, ErrorKind::Unavailable),
            (3032, ErrorKind::Unavailable),
            (1114, ErrorKind::Unavailable),
            (1071, ErrorKind::Unsupported),
            (1064, ErrorKind::Internal),
        ] {
            let error = failed(server(code));
            assert_eq!(error.kind(), kind, "code {code}");
            assert!(std::error::Error::source(&error).is_some() && !error.message().contains("secret"));
        }
        assert!(is_busy(&server(1213)) && !is_lost(&server(1213)));
        assert!(is_busy(&rolled_back()) && is_apart(&server(1047)) && is_undecided(&server(1180)) && !is_lost(&server(1180)));
        assert!(is_lost(&server(1927)) && is_lost(&mysql_async::DriverError::ConnectionClosed.into()));
    }
}
