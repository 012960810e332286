//! Lists the children of a directory, one page at a time.

use super::directory::{each_name, is_unfinished};
use super::meta::Meta;
use super::root::Root;
use rustix::fs::{AtFlags, statat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use treehold_core::error::{Error, ErrorKind, ErrorRecord, Result};
use treehold_core::ops::{Failure, Listing, LsOptions};
use treehold_core::path::{VfsPath, VfsPathBuf};

/// The most failures one result reports.
pub(super) const FAILURES_MAX: usize = 100;

/// Lists a directory. Cost: reads and sorts all names, but looks up only the nodes on the page.
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
            // It was removed since the names were read.
            Err(Errno::NOENT) => None,
            Err(errno) => Some(Err(root.fault(&child, errno))),
        }
    });
    // One extra entry tells whether there is another page.
    let entries = entries.take(options.limit.saturating_add(1)).collect::<Result<Vec<_>>>()?;
    let mut listing = Listing::from_sorted(entries, options);
    listing.failures = failures;
    Ok(listing)
}

/// Returns the closest valid path for a host name that no path can express, and the error to report at it.
pub(super) fn unnameable(parent: &VfsPath, name: &[u8]) -> (VfsPathBuf, Error) {
    let shown: String =
        String::from_utf8_lossy(name).chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect();
    let path = parent.child(&shown).unwrap_or_else(|_| parent.to_owned());
    let message =
        format!("a name in `{parent}` is not UTF-8, contains a control character, or makes the path too long; rename it on the host");
    let error = Error::new(ErrorKind::InvalidPath, message).at(&path);
    (path, error)
}
