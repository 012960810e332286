//! Lists the names in a directory, apart from those of unfinished writes.

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, openat, statat};
use rustix::io::Result;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use uuid::Uuid;

/// The prefix and suffix of an unfinished write's name. 32 hexadecimal digits stand between them.
const UNFINISHED: (&str, &str) = (".treehold-", ".tmp");

/// A name in a directory.
#[derive(Debug)]
pub(super) struct Child {
    pub(super) name: OsString,
    /// Its type when the directory was read; [`FileType::Unknown`] if the filesystem does not report types.
    pub(super) file_type: FileType,
}

/// Reads the names in a directory, in no particular order, without those of unfinished writes.
///
/// Cost: proportional to the number of names; the nodes themselves are not looked up.
pub(super) fn children(directory: impl AsFd) -> Result<Vec<Child>> {
    let mut children = all_children(directory)?;
    children.retain(|child| !is_unfinished(child.name.as_bytes()));
    Ok(children)
}

/// Reads the names in a directory, including those of unfinished writes.
pub(super) fn all_children(directory: impl AsFd) -> Result<Vec<Child>> {
    let mut children = Vec::new();
    each_name(directory, |name, file_type| children.push(Child { name: OsStr::from_bytes(name).to_owned(), file_type }))?;
    Ok(children)
}

/// Calls `each` for every name in a directory except `.` and `..`. This moves the position of the handle, so pass one that is not
/// shared.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn each_name(directory: impl AsFd, mut each: impl FnMut(&[u8], FileType)) -> Result<()> {
    let mut buffer = Vec::with_capacity(NAMES_BUFFER_BYTES);
    let mut names = rustix::fs::RawDir::new(directory, buffer.spare_capacity_mut());
    while let Some(entry) = names.next() {
        let entry = match entry {
            Ok(entry) => entry,
            Err(rustix::io::Errno::INTR) => continue,
            Err(errno) => return Err(errno),
        };
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            each(name, entry.file_type());
        }
    }
    Ok(())
}

/// Calls `each` for every name in a directory except `.` and `..`.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn each_name(directory: impl AsFd, mut each: impl FnMut(&[u8], FileType)) -> Result<()> {
    for entry in rustix::fs::Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            each(name, entry.file_type());
        }
    }
    Ok(())
}

/// The size of the buffer for names in bytes. It holds about 800 names.
#[cfg(any(target_os = "linux", target_os = "android"))]
const NAMES_BUFFER_BYTES: usize = 32 << 10;

/// Opens a directory again, with an independent position.
pub(super) fn reopen(directory: impl AsFd) -> Result<OwnedFd> {
    openat(directory, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Returns the type of a child without following links. Asks the host only if the directory did not report it.
pub(super) fn type_of(directory: impl AsFd, child: &Child) -> Result<FileType> {
    match child.file_type {
        FileType::Unknown => Ok(FileType::from_raw_mode(statat(directory, &child.name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode)),
        known => Ok(known),
    }
}

/// Creates a unique name for an unfinished write.
pub(super) fn unfinished_name() -> String {
    // The leading timestamp sorts the leftovers of one crash together; the random half keeps writers apart.
    format!("{}{}{}", UNFINISHED.0, Uuid::now_v7().simple(), UNFINISHED.1)
}

/// Returns whether a name is that of an unfinished write.
pub(super) fn is_unfinished(name: &[u8]) -> bool {
    name.strip_prefix(UNFINISHED.0.as_bytes())
        .and_then(|rest| rest.strip_suffix(UNFINISHED.1.as_bytes()))
        .is_some_and(|id| id.len() == 32 && id.iter().all(u8::is_ascii_hexdigit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_unfinished_accepts_only_generated_names() {
        assert!(is_unfinished(unfinished_name().as_bytes()));
        for name in ["", ".treehold-.tmp", ".treehold-notes.tmp", "a.tmp", ".treehold"] {
            assert!(!is_unfinished(name.as_bytes()), "{name}");
        }
    }
}
