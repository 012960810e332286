//! Whether an open file is still the one at its path.
//!
//! A file that was removed or replaced takes writes as before, and all of them go with the last handle on it. An embedded store
//! asks before it acknowledges a commit, so that nothing is acknowledged that nobody will find again.

use crate::error::{AtHost, Error, ErrorKind, Result};
use std::fs::Metadata;
use std::io;
use std::path::{Path, PathBuf};

/// A path, and which file was there when it was opened.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    identity: Identity,
}

/// The device and the number of a file; nothing where the system has none.
#[cfg(unix)]
type Identity = (u64, u64);
#[cfg(not(unix))]
type Identity = ();

#[cfg(unix)]
fn identity(metadata: &Metadata) -> Identity {
    use std::os::unix::fs::MetadataExt;
    (metadata.dev(), metadata.ino())
}

#[cfg(not(unix))]
fn identity(_: &Metadata) -> Identity {}

impl Place {
    /// Remembers which file is at a path.
    ///
    /// # Errors
    /// Those of the system when there is none.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), identity: identity(&std::fs::metadata(path)?) })
    }

    /// Refuses when the file is not at its path any more. Cost: one look at the directory, about 1 µs.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) when there is none, or another.
    pub(super) fn check(&self) -> Result<()> {
        let cause = match std::fs::metadata(&self.path) {
            Ok(metadata) if identity(&metadata) == self.identity => return Ok(()),
            Ok(_) => io::Error::other("another file is there"),
            Err(cause) => cause,
        };
        let message =
            "the store's file was removed or replaced while it was open, and what is written now would be lost; put it back and restart";
        Err(Error::new(ErrorKind::Unavailable, message).with_source(AtHost::new(&self.path).with_cause(cause)))
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn removed_replaced_and_moved_files_are_refused_and_links_are_followed() {
        let directory = tempfile::tempdir().expect("a directory");
        let (file, link) = (directory.path().join("file"), directory.path().join("link"));
        std::fs::write(&file, "a").expect("written");
        std::os::unix::fs::symlink(&file, &link).expect("linked");
        let places = [Place::of(&file).expect("it is there"), Place::of(&link).expect("it is there")];
        std::fs::write(&file, "b").expect("written");
        assert!(places.iter().all(|place| place.check().is_ok()), "its content changes");
        let aside = directory.path().join("aside");
        std::fs::rename(&file, &aside).expect("moved");
        assert!(places.iter().all(|place| place.check().is_err()), "it is elsewhere");
        std::fs::write(&file, "b").expect("written");
        assert!(places.iter().all(|place| place.check().is_err()), "it is another");
        std::fs::rename(&aside, &file).expect("moved");
        assert!(places.iter().all(|place| place.check().is_ok()), "it is back");
    }
}
