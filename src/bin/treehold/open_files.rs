//! How many files the process may have open.

/// What some systems let a process open where they name no hard limit.
#[cfg(unix)]
const WITHOUT_LIMIT: u64 = 10_240;

/// Raises the soft limit of open files, which shells keep low for old programs, to the hard one, and returns what holds then. Returns none
/// where the system has no such limit.
#[cfg(unix)]
pub(crate) fn raise() -> Option<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.unwrap_or(WITHOUT_LIMIT);
    if limit.current.is_some_and(|current| current < wanted) {
        // A system that refuses it keeps the limit that it has.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum });
    }
    getrlimit(Resource::Nofile).current
}

/// Returns none: there is no such limit.
#[cfg(not(unix))]
pub(crate) fn raise() -> Option<u64> {
    None
}
