//! Conversion of MySQL and MariaDB errors. SQL, hosts and users are only in the source.

use mysql_async::DriverError;
use treehold_core::error::{Error, ErrorKind};

/// Why a transaction ended.
pub(super) enum Fault {
    Engine(mysql_async::Error),
    Refused(Error),
}

impl From<mysql_async::Error> for Fault {
    fn from(error: mysql_async::Error) -> Self {
        Self::Engine(error)
    }
}

/// Returns whether a transaction lost to a concurrent one and may succeed when repeated: a duplicate row, a wait, a deadlock.
pub(super) fn is_lost_race(code: u16) -> bool {
    matches!(code, 1062 | 1205 | 1213)
}

/// Converts an error of the server. SQL, hosts and users are only in the source.
pub(super) fn failed(error: mysql_async::Error) -> Error {
    let (kind, message) = match &error {
        mysql_async::Error::Server(server) => match server.code {
            1044 | 1045 | 1142 | 1143 | 1227 | 1698 => {
                (ErrorKind::PermissionDenied, "the database server rejects the user; check the name, the password and the privileges")
            }
            1049 | 1146 => (ErrorKind::NotFound, "the database or table of the states does not exist; create it, or write `?create=true`"),
            1153 | 1301 | 1406 => (ErrorKind::TooLarge, "the value is too large for the database server; raise `max_allowed_packet`"),
            1366 => (ErrorKind::InvalidArgument, "the table cannot hold a character of the value; convert it to utf8mb4"),
            1036 | 1290 | 1792 | 1836 => (ErrorKind::ReadOnly, "the database server is read-only; name the one that accepts writes"),
            1021 | 1114 => (ErrorKind::Unavailable, "the disk of the database server is full; make room there and try again"),
            1040 | 1203 | 1205 | 1213 | 1226 | 1047 | 1053 | 1152 | 1317 | 1927 | 3024 | 4031 => {
                (ErrorKind::Unavailable, "the database server does not accept the statement now; try again")
            }
            1665 => (ErrorKind::Unsupported, "the server's binary log is statement-based; set `binlog_format` to ROW or MIXED"),
            1054 => (ErrorKind::Unsupported, "the table of the states lacks a column; it is not one of AgentScope's"),
            _ => (ErrorKind::Internal, "the database server rejected a statement; this is a bug in the program"),
        },
        mysql_async::Error::Url(_) => (ErrorKind::InvalidArgument, "the URL cannot be used; write `mysql://USER@HOST/DATABASE`"),
        mysql_async::Error::Driver(DriverError::PacketTooLarge) => {
            (ErrorKind::TooLarge, "the value is too large for the database server; raise `max_allowed_packet`")
        }
        mysql_async::Error::Driver(DriverError::FromValue { .. } | DriverError::FromRow { .. }) => {
            (ErrorKind::Corrupt, "a row of the table is not one that AgentScope writes; restore the table")
        }
        _ => (ErrorKind::Unavailable, "the database server does not answer; check the server and the network, and try again"),
    };
    Error::new(kind, message).with_source(error)
}

/// Makes the error for an operation that took too long.
pub(super) fn timed_out() -> Error {
    Error::new(ErrorKind::Unavailable, "the database server did not answer in time; try again")
}
