//! Conversion of errors from Redis and its connections. Hosts appear only in the source.

use ::redis::{ErrorKind as Kind, RedisError, ServerErrorKind};
use treehold_core::error::{Error, ErrorKind};

/// How far a failed request got.
#[derive(Debug, Clone)]
pub(super) enum Fault {
    /// The request was not sent.
    Unsent(RedisError),
    /// The server rejected the request.
    Refused(RedisError),
    /// The request was sent; whether it took effect is unknown.
    Lost(RedisError),
}

impl Fault {
    /// Makes the error for a read.
    pub(super) fn of_read(self) -> Error {
        match self {
            Self::Unsent(error) => unsent(error),
            Self::Refused(error) => refused(error).0,
            Self::Lost(error) => lost(error),
        }
    }

    /// Makes the error for a write, including whether it may have taken effect.
    pub(super) fn of_write(self) -> Error {
        match self {
            Self::Unsent(error) => unsent(error).without_effect(),
            Self::Refused(error) => match refused(error) {
                (error, true) => error.without_effect(),
                (error, false) => error.with_unknown_effect(),
            },
            Self::Lost(error) => lost(error).with_unknown_effect(),
        }
    }
}

/// Makes the error for a row that contradicts what was stored.
pub(super) fn damaged(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("{what}; the database is damaged, restore it from a backup"))
}

/// The source of an error about keys that do not exist.
#[derive(Debug)]
struct Gone;

impl std::fmt::Display for Gone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the keys of the store do not exist")
    }
}

impl std::error::Error for Gone {}

/// Returns whether an error says that the keys do not exist.
pub(super) fn is_gone(error: &Error) -> bool {
    std::error::Error::source(error).is_some_and(|source| source.downcast_ref::<Gone>().is_some())
}

/// Makes the error for an answer that no script returns.
pub(super) fn unexpected() -> Error {
    Error::new(ErrorKind::Internal, "the server sent an unexpected answer; this is a bug in the program")
}

/// Makes the error for a store that was valid when opened and has since vanished or changed its schema.
pub(super) fn of_schema(schema: &[u8]) -> Error {
    if schema.is_empty() {
        return Error::new(
            ErrorKind::Corrupt,
            "the store is gone: its server was emptied or lost its data; restore it, or open the store again to start empty",
        )
        .with_source(Gone)
        .without_effect();
    }
    Error::unsupported("another version of this program has changed the store meanwhile; use that version, or restore the data")
        .without_effect()
}

fn unsent(error: RedisError) -> Error {
    match error.kind() {
        Kind::Io | Kind::ClusterConnectionNotFound => {
            Error::new(ErrorKind::Unavailable, "the Redis server cannot be reached; check that it is running and try again")
                .with_source(error)
        }
        _ => refused(error).0,
    }
}

fn lost(error: RedisError) -> Error {
    let message = match error.is_timeout() {
        true => "the Redis server did not answer in time; try again",
        false => "the connection to the Redis server broke before an answer arrived; try again",
    };
    Error::new(ErrorKind::Unavailable, message).with_source(error)
}

/// Converts a rejection. Returns whether the server certainly did nothing; an error from the middle of a script leaves
/// that open.
fn refused(error: RedisError) -> (Error, bool) {
    let text = error.to_string();
    let code = error.code().unwrap_or_default().to_owned();
    let is_login = ["WRONGPASS", "NOAUTH"].contains(&code.as_str())
        || text.contains("invalid password")
        || text.contains("invalid username-password")
        || text.contains("without any password configured");
    let (kind, message, is_certain) = match (error.kind(), code.as_str()) {
        _ if is_login => (ErrorKind::PermissionDenied, "the Redis server rejects the user or password; correct them in the URL", true),
        (Kind::AuthenticationFailed, _) => {
            (ErrorKind::PermissionDenied, "the Redis server rejects the user or password; correct them in the URL", true)
        }
        (Kind::Server(ServerErrorKind::NoPerm), _) => (
            ErrorKind::PermissionDenied,
            "the user lacks permissions on the Redis server; grant the commands and keys that the store needs",
            !text.contains("script:"),
        ),
        (_, "OOM") => (ErrorKind::Unavailable, "the Redis server is out of memory; make room or raise `maxmemory` and try again", true),
        (_, "MISCONF") => (ErrorKind::Unavailable, "the Redis server cannot write to its disk; check its log and try again", true),
        (_, "NOREPLICAS") => (ErrorKind::Unavailable, "the Redis server has too few replicas to accept writes; try again", true),
        (_, "BUSY") => (ErrorKind::Unavailable, "the Redis server is busy with a script; try again", true),
        (Kind::Server(ServerErrorKind::ReadOnly), _) => (
            ErrorKind::Unavailable,
            "the Redis server is a replica and does not accept writes; name the primary or try again after the failover",
            true,
        ),
        (
            Kind::Server(
                ServerErrorKind::BusyLoading
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::MasterDown
                | ServerErrorKind::TryAgain
                | ServerErrorKind::Moved
                | ServerErrorKind::Ask,
            ),
            _,
        ) => (ErrorKind::Unavailable, "the Redis server is not ready, or its data is moving to another node; try again", true),
        (Kind::RESP3NotSupported, _) => (ErrorKind::Unsupported, "the Redis server is too old; use version 6.2 or newer", true),
        _ if text.contains("cluster support disabled") => {
            (ErrorKind::Unsupported, "the Redis server is not part of a cluster; write `redis://` instead of `redis+cluster://`", true)
        }
        _ if text.contains("DB index is out of range") => {
            (ErrorKind::NotFound, "the Redis server has no database with that number; correct it in the URL", true)
        }
        _ if text.contains("max number of clients") => {
            (ErrorKind::Unavailable, "the Redis server accepts no more connections; raise `maxclients` or try again", true)
        }
        (_, "WRONGTYPE") => {
            (ErrorKind::InvalidArgument, "the keys of the store hold other data on this Redis server; choose another `?prefix=NAME`", false)
        }
        // Errors of the client library: a malformed answer, or one to another request.
        (Kind::Server(_) | Kind::Extension | Kind::InvalidClientConfig, _) => {
            (ErrorKind::Internal, "the Redis server rejected a request unexpectedly; this is a bug in the program", false)
        }
        _ => (ErrorKind::Unavailable, "the connection to the Redis server broke before an answer arrived; try again", false),
    };
    (Error::new(kind, message).with_source(error), is_certain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(text: &str) -> RedisError {
        let value = ::redis::parse_redis_value(format!("-{text}\r\n").as_bytes()).expect("an answer");
        value.extract_error().expect_err("an error")
    }

    #[test]
    fn server_errors_map_to_kinds_that_callers_can_act_on() {
        for (text, kind, is_open) in [
            ("OOM command not allowed when used memory > 'maxmemory'.", ErrorKind::Unavailable, false),
            ("MISCONF Redis is configured to save RDB snapshots", ErrorKind::Unavailable, false),
            ("NOREPLICAS Not enough good replicas to write.", ErrorKind::Unavailable, false),
            ("READONLY You can't write against a read only replica.", ErrorKind::Unavailable, false),
            ("LOADING Redis is loading the dataset in memory", ErrorKind::Unavailable, false),
            ("CLUSTERDOWN The cluster is down", ErrorKind::Unavailable, false),
            ("MASTERDOWN Link with MASTER is down", ErrorKind::Unavailable, false),
            ("TRYAGAIN Multiple keys request during rehashing of slot", ErrorKind::Unavailable, false),
            ("BUSY Redis is busy running a script.", ErrorKind::Unavailable, false),
            ("NOAUTH Authentication required.", ErrorKind::PermissionDenied, false),
            ("WRONGPASS invalid username-password pair or user is disabled.", ErrorKind::PermissionDenied, false),
            ("NOPERM this user has no permissions to run the 'evalsha' command", ErrorKind::PermissionDenied, false),
            ("ERR DB index is out of range", ErrorKind::NotFound, false),
            ("ERR max number of clients reached", ErrorKind::Unavailable, false),
            ("ERR user_script:9: attempt to index a nil value script: 1, on @user_script:9.", ErrorKind::Internal, true),
        ] {
            let error = Fault::Refused(answer(text)).of_write();
            assert_eq!((error.kind(), error.may_have_effect()), (kind, is_open), "{text}");
            assert!(std::error::Error::source(&error).is_some());
        }
    }

    #[test]
    fn lost_request_has_unknown_effect() {
        let broken = || RedisError::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        assert!(Fault::Lost(broken()).of_write().may_have_effect());
        assert!(Fault::Unsent(broken()).of_write().is_without_effect());
        assert_eq!(Fault::Lost(broken()).of_read().kind(), ErrorKind::Unavailable);
    }
}
