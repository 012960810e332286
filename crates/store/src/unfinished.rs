//! Files that get their names once they are complete, so that an interrupted writer leaves nothing under a name that somebody reads.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use treehold_core::random;

/// A file under a temporary name beside its final one. Dropping it removes the temporary name.
#[derive(Debug)]
pub struct UnfinishedFile {
    path: PathBuf,
}

impl UnfinishedFile {
    /// Creates an empty file beside `target`, for its owner only, and opens it for writing. Blocks.
    ///
    /// # Errors
    /// Those of the file system, such as for a missing directory.
    pub fn create(target: &Path) -> io::Result<(Self, File)> {
        let mut name = OsString::from(target);
        name.push(format!(".{:016x}.tmp", random::number()));
        let path = PathBuf::from(name);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(&path)?;
        Ok((Self { path }, file))
    }

    /// Returns the temporary path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for UnfinishedFile {
    fn drop(&mut self) {
        // A file that was renamed is not there any more.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Gives a complete file its name. The temporary name may stay until the [`UnfinishedFile`] is dropped. Blocks.
///
/// # Errors
/// `AlreadyExists` if the target exists and is not to be replaced. Otherwise those of the file system.
pub fn give_name(path: &Path, target: &Path, replace: bool) -> io::Result<()> {
    if !replace {
        match std::fs::hard_link(path, target) {
            Ok(()) => return Ok(()),
            // The file system has no hard links.
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists && !target.exists() => {}
            Err(error) => return Err(error),
        }
    }
    std::fs::rename(path, target)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn names(directory: &Path) -> Vec<OsString> {
        std::fs::read_dir(directory).expect("listed").map(|entry| entry.expect("read").file_name()).collect()
    }

    #[test]
    fn dropped_file_is_removed_unless_it_got_its_name() {
        let directory = tempfile::tempdir().expect("a directory");
        let target = directory.path().join("a.tar");
        drop(UnfinishedFile::create(&target).expect("created"));
        assert!(names(directory.path()).is_empty());
        for (content, replace) in [("one", false), ("two", true)] {
            let (unfinished, mut file) = UnfinishedFile::create(&target).expect("created");
            file.write_all(content.as_bytes()).expect("written");
            give_name(unfinished.path(), &target, replace).expect("named");
            drop(unfinished);
            assert_eq!(names(directory.path()), ["a.tar"]);
            assert_eq!(std::fs::read_to_string(&target).expect("read"), content);
        }
    }

    #[test]
    fn existing_file_is_kept_unless_it_is_to_be_replaced() {
        let directory = tempfile::tempdir().expect("a directory");
        let target = directory.path().join("a.tar");
        let (unfinished, _) = UnfinishedFile::create(&target).expect("created");
        std::fs::write(&target, "somebody's").expect("written");
        let error = give_name(unfinished.path(), &target, false).expect_err("it is there");
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        drop(unfinished);
        assert_eq!(names(directory.path()), ["a.tar"]);
        assert_eq!(std::fs::read_to_string(&target).expect("read"), "somebody's");
    }
}
