//! The names in one directory, and which of them are ours.

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, openat, statat};
use rustix::io::Result;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use uuid::Uuid;

/// How a name of an unfinished write starts and ends; 32 hexadecimal digits stand between.
const UNFINISHED: (&str, &str) = (".stratafs-", ".tmp");

/// One name in a directory.
#[derive(Debug)]
pub(super) struct Child {
    pub(super) name: OsString,
    /// What it was when the directory was read; [`FileType::Unknown`] where the filesystem does not say.
    pub(super) file_type: FileType,
}

/// Reads all names of a directory, in no order, without those of unfinished writes.
///
/// Cost: grows with the names; nothing is looked at beyond them.
pub(super) fn children(directory: impl AsFd) -> Result<Vec<Child>> {
    let mut children = all_children(directory)?;
    children.retain(|child| !is_unfinished(child.name.as_bytes()));
    Ok(children)
}

/// Reads all names of a directory, those of unfinished writes among them.
pub(super) fn all_children(directory: impl AsFd) -> Result<Vec<Child>> {
    let mut children = Vec::new();
    each_name(directory, |name, file_type| children.push(Child { name: OsStr::from_bytes(name).to_owned(), file_type }))?;
    Ok(children)
}

/// Calls a function for each name of a directory but `.` and `..`. The handle's position moves: give one of its own.
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

/// Calls a function for each name of a directory but `.` and `..`.
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

/// How many bytes of names are fetched at a time: some 800 names.
#[cfg(any(target_os = "linux", target_os = "android"))]
const NAMES_BUFFER_BYTES: usize = 32 << 10;

/// Opens a directory anew, with a position of its own.
pub(super) fn reopen(directory: impl AsFd) -> Result<OwnedFd> {
    openat(directory, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Returns what a child is now, without following a link, asking the host only where the directory did not say.
pub(super) fn type_of(directory: impl AsFd, child: &Child) -> Result<FileType> {
    match child.file_type {
        FileType::Unknown => Ok(FileType::from_raw_mode(statat(directory, &child.name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode)),
        known => Ok(known),
    }
}

/// Makes a name for an unfinished write.
pub(super) fn unfinished_name() -> String {
    // The time in front makes leftovers of one crash stand together; the random half keeps writers apart.
    format!("{}{}{}", UNFINISHED.0, Uuid::now_v7().simple(), UNFINISHED.1)
}

/// Tells whether a name is that of an unfinished write.
pub(super) fn is_unfinished(name: &[u8]) -> bool {
    name.strip_prefix(UNFINISHED.0.as_bytes())
        .and_then(|rest| rest.strip_suffix(UNFINISHED.1.as_bytes()))
        .is_some_and(|id| id.len() == 32 && id.iter().all(u8::is_ascii_hexdigit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_its_own_names() {
        assert!(is_unfinished(unfinished_name().as_bytes()));
        for name in ["", ".stratafs-.tmp", ".stratafs-notes.tmp", "a.tmp", ".stratafs"] {
            assert!(!is_unfinished(name.as_bytes()), "{name}");
        }
    }
}
