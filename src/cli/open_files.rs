//! The limit on open files of the process.

/// The limit to request if the system reports no hard limit; some systems refuse more.
#[cfg(unix)]
const WITHOUT_LIMIT: u64 = 10_240;

/// Raises the soft limit on open files, which is low for the sake of old programs, to the hard limit. Returns the effective limit, or
/// `None` if there is none.
#[cfg(unix)]
pub(crate) fn raise() -> Option<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.unwrap_or(WITHOUT_LIMIT);
    if limit.current.is_some_and(|current| current < wanted) {
        // If the system refuses, the current limit stays.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum });
    }
    getrlimit(Resource::Nofile).current
}

/// Returns `None`: there is no such limit.
#[cfg(not(unix))]
pub(crate) fn raise() -> Option<u64> {
    None
}
