//! What Redis and the way to it report, as the crate's errors. Hosts stay in the source.

use crate::error::{Error, ErrorKind};
use ::redis::{ErrorKind as Kind, RedisError, ServerErrorKind};

/// How far a request came that failed.
#[derive(Debug, Clone)]
pub(super) enum Fault {
    /// It was not sent.
    Unsent(RedisError),
    /// The server answered that it does not do it.
    Refused(RedisError),
    /// It was sent, and whether the server did it is not known.
    Lost(RedisError),
}

impl Fault {
    /// Makes the error of a read.
    pub(super) fn of_read(self) -> Error {
        match self {
            Self::Unsent(error) => unsent(error),
            Self::Refused(error) => refused(error).0,
            Self::Lost(error) => lost(error),
        }
    }

    /// Makes the error of a write, which says whether it may have had an effect.
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

/// Makes the error of a row that cannot be what was stored.
pub(super) fn damaged(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("{what}; the database is damaged, restore it from a backup"))
}

/// Makes the error of an answer that no script gives.
pub(super) fn unexpected() -> Error {
    Error::new(ErrorKind::Internal, "the server gave an answer that the store did not ask for; this is a fault of the program")
}

/// Makes the error of a store that is not there, or of another schema, though it was when it was opened.
pub(super) fn of_schema(schema: &[u8]) -> Error {
    if schema.is_empty() {
        return Error::new(
            ErrorKind::Corrupt,
            "the store is gone from its server, which was emptied or lost its data; restore it, or open it again to begin anew",
        )
        .without_effect();
    }
    Error::unsupported("another version of this program has changed the store meanwhile; use that version, or restore the data")
        .without_effect()
}

fn unsent(error: RedisError) -> Error {
    match error.kind() {
        Kind::Io | Kind::ClusterConnectionNotFound => {
            Error::new(ErrorKind::Unavailable, "the redis server cannot be reached; look whether it runs and try again").with_source(error)
        }
        _ => refused(error).0,
    }
}

fn lost(error: RedisError) -> Error {
    let message = match error.is_timeout() {
        true => "the redis server did not answer in time; try again",
        false => "the connection to the redis server broke before it answered; try again",
    };
    Error::new(ErrorKind::Unavailable, message).with_source(error)
}

/// Converts a refusal; tells whether the server did nothing for certain: an error out of the middle of a script leaves it open.
fn refused(error: RedisError) -> (Error, bool) {
    let text = error.to_string();
    let code = error.code().unwrap_or_default().to_owned();
    let is_login = ["WRONGPASS", "NOAUTH"].contains(&code.as_str())
        || text.contains("invalid password")
        || text.contains("invalid username-password")
        || text.contains("without any password configured");
    let (kind, message, is_certain) = match (error.kind(), code.as_str()) {
        _ if is_login => {
            (ErrorKind::PermissionDenied, "the redis server does not accept the user or password; correct them in the URL", true)
        }
        (Kind::AuthenticationFailed, _) => {
            (ErrorKind::PermissionDenied, "the redis server does not accept the user or password; correct them in the URL", true)
        }
        (Kind::Server(ServerErrorKind::NoPerm), _) => (
            ErrorKind::PermissionDenied,
            "the user of the redis server may not do this; grant the commands and keys that the store needs",
            !text.contains("script:"),
        ),
        (_, "OOM") => (ErrorKind::Unavailable, "the redis server has no memory left; make room or raise `maxmemory` and try again", true),
        (_, "MISCONF") => (ErrorKind::Unavailable, "the redis server cannot write to its disk; look at its log and try again", true),
        (_, "NOREPLICAS") => (ErrorKind::Unavailable, "the redis server has too few replicas to take writes; try again", true),
        (_, "BUSY") => (ErrorKind::Unavailable, "the redis server is busy with a script; try again", true),
        (Kind::Server(ServerErrorKind::ReadOnly), _) => (
            ErrorKind::Unavailable,
            "the redis server is a replica and takes no writes; name the primary or try again after the failover",
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
        ) => (ErrorKind::Unavailable, "the redis server is not ready, or its data is moving to another node; try again", true),
        (Kind::RESP3NotSupported, _) => (ErrorKind::Unsupported, "the redis server is too old; use version 6.2 or newer", true),
        _ if text.contains("cluster support disabled") => {
            (ErrorKind::Unsupported, "the redis server is not part of a cluster; write `redis://` instead of `redis+cluster://`", true)
        }
        _ if text.contains("DB index is out of range") => {
            (ErrorKind::NotFound, "the redis server has no database of that number; correct it in the URL", true)
        }
        _ if text.contains("max number of clients") => {
            (ErrorKind::Unavailable, "the redis server takes no more connections; raise `maxclients` or try again", true)
        }
        (_, "WRONGTYPE") => (
            ErrorKind::InvalidArgument,
            "other data stands at the keys of the store on this redis server; choose another `?prefix=NAME`",
            false,
        ),
        // Not the server's own words: half an answer, or another's.
        (Kind::Server(_) | Kind::Extension | Kind::InvalidClientConfig, _) => {
            (ErrorKind::Internal, "the redis server refused a request in a way that is a fault of the program", false)
        }
        _ => (ErrorKind::Unavailable, "the connection to the redis server broke before it answered; try again", false),
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
    fn refusals_have_the_kind_that_a_caller_can_act_on() {
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
    fn what_was_lost_on_the_way_may_have_had_an_effect() {
        let broken = || RedisError::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        assert!(Fault::Lost(broken()).of_write().may_have_effect());
        assert!(Fault::Unsent(broken()).of_write().is_without_effect());
        assert_eq!(Fault::Lost(broken()).of_read().kind(), ErrorKind::Unavailable);
    }
}
