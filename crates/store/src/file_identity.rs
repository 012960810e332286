//! Detection of database files that were removed or replaced while open.
//!
//! A file that was removed or replaced still accepts writes, but they are lost when its last handle closes. So an
//! embedded store checks before it acknowledges a commit that its file is still at its path.

use std::fs::Metadata;
use std::io;
use std::path::{Path, PathBuf};
use treehold_core::error::{AtHost, Error, ErrorKind, Result};

/// A path and the identity of the file found there at open.
#[derive(Debug)]
pub struct FileIdentity {
    path: PathBuf,
    identity: Identity,
}

/// The device and inode of a file; empty on systems without them.
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

impl FileIdentity {
    /// Records which file is at a path.
    ///
    /// # Errors
    /// Those of the system when the file cannot be examined.
    pub fn of(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), identity: identity(&std::fs::metadata(path)?) })
    }

    /// Fails if the file is no longer at its path. Cost: one `stat`, about 1 µs.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) when the file is gone or another one took its place.
    pub fn check(&self) -> Result<()> {
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
    fn removed_replaced_or_moved_file_fails_the_check_also_through_links() {
        let directory = tempfile::tempdir().expect("a directory");
        let (file, link) = (directory.path().join("file"), directory.path().join("link"));
        std::fs::write(&file, "a").expect("written");
        std::os::unix::fs::symlink(&file, &link).expect("linked");
        let places = [FileIdentity::of(&file).expect("it exists"), FileIdentity::of(&link).expect("it exists")];
        std::fs::write(&file, "b").expect("written");
        assert!(places.iter().all(|place| place.check().is_ok()), "the path still names the same file");
        let aside = directory.path().join("aside");
        std::fs::rename(&file, &aside).expect("moved");
        assert!(places.iter().all(|place| place.check().is_err()), "the file was moved");
        std::fs::write(&file, "b").expect("written");
        assert!(places.iter().all(|place| place.check().is_err()), "another file took its place");
        std::fs::rename(&aside, &file).expect("moved");
        assert!(places.iter().all(|place| place.check().is_ok()), "it is back");
    }
}
