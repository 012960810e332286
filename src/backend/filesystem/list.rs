//! The children of one directory, a page at a time.

use super::directory::{each_name, is_unfinished};
use super::meta::Meta;
use super::root::Root;
use crate::error::{Error, ErrorKind, ErrorRecord, Result};
use crate::ops::{Failure, Listing, LsOptions};
use crate::path::{VfsPath, VfsPathBuf};
use rustix::fs::{AtFlags, statat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// How many failures one result names at most.
pub(super) const FAILURES_MAX: usize = 100;

/// Lists a directory. All names are read and sorted; only those of the page are looked at one by one.
pub(super) fn list(root: &Root, path: &VfsPath, options: &LsOptions) -> Result<Listing> {
    let directory = root.open_directory(path)?;
    let after = options.start_after.as_deref().unwrap_or_default().as_bytes();
    let mut names: Vec<Box<[u8]>> = Vec::new();
    each_name(&directory, |name, _| {
        if name > after && !is_unfinished(name) {
            names.push(name.into());
        }
    })
    .map_err(|errno| root.fault(path, errno))?;
    names.sort_unstable();
    let mut failures = Vec::new();
    let entries = names.iter().filter_map(|name| {
        let child = match std::str::from_utf8(name).ok().and_then(|name| path.child(name).ok()) {
            Some(child) => child,
            None => {
                if failures.len() < FAILURES_MAX {
                    let (path, error) = unnameable(path, name);
                    failures.push(Failure { path, error: ErrorRecord::from(&error) });
                }
                return None;
            }
        };
        match statat(&directory, OsStr::from_bytes(name), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Some(Ok(Meta::from(stat).entry(&child))),
            // It went away since the names were read.
            Err(Errno::NOENT) => None,
            Err(errno) => Some(Err(root.fault(&child, errno))),
        }
    });
    // One more than asked for tells whether there is more.
    let entries = entries.take(options.limit.saturating_add(1)).collect::<Result<Vec<_>>>()?;
    let mut listing = Listing::from_sorted(entries, options);
    listing.failures = failures;
    Ok(listing)
}

/// Tells of a name on the host that no path of this tree can hold, in the nearest words that one can.
pub(super) fn unnameable(parent: &VfsPath, name: &[u8]) -> (VfsPathBuf, Error) {
    let shown: String =
        String::from_utf8_lossy(name).chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect();
    let path = parent.child(&shown).unwrap_or_else(|_| parent.to_owned());
    let message = format!("a name in `{parent}` is not UTF-8, holds a control character, or makes too long a path; rename it on the host");
    let error = Error::new(ErrorKind::InvalidPath, message).at(&path);
    (path, error)
}
