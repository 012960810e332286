//! Which configuration files a person has looked at and trusts: what a file says is done with that person's rights.
//!
//! A file that is named (`--config`) is trusted by that. One that lies about, in the directory that a command happens to run in, may have
//! come with an archive or have been written by an agent; it counts only once its content was trusted. Each trust is a file of its
//! own, `trusted/HASH` in the directory of the book, whose name is the hash of the path and the content, and whose content is the path: a
//! file that changes, or is moved, is another.

use crate::error::{AtHost, Error, ErrorKind, Result};
use std::io::{ErrorKind as Io, Write as _};
use std::path::{Path, PathBuf};

/// The files that are trusted, kept in a directory that no tree should reach.
#[derive(Debug, Clone)]
pub struct TrustBook {
    directory: PathBuf,
}

/// What is known of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trust {
    /// Its content was trusted.
    Given,
    /// It was trusted with another content.
    Changed,
    /// It was never trusted.
    Unknown,
}

impl TrustBook {
    /// Keeps the book in a data directory.
    pub fn new(data: &Path) -> Self {
        Self { directory: data.join("trusted") }
    }

    /// Returns where the book is kept.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Tells whether a file with a content is trusted.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) when the book cannot be read.
    pub fn of(&self, file: &Path, content: &[u8]) -> Result<Trust> {
        let file = own_path(file)?;
        if self.directory.join(hash(&file, content)).is_file() {
            return Ok(Trust::Given);
        }
        Ok(if self.list()?.contains(&file) { Trust::Changed } else { Trust::Unknown })
    }

    /// Trusts a file with the content it was shown with. Another content of the file is trusted no more.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) when the book cannot be written.
    pub fn trust(&self, file: &Path, content: &[u8]) -> Result<()> {
        let file = own_path(file)?;
        let unwritten = |cause| unusable("written", &self.directory, cause);
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(&self.directory).map_err(unwritten)?;
        let kept = self.directory.join(hash(&file, content));
        let mut options = std::fs::File::options();
        options.write(true).create(true).truncate(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut note = options.open(&kept).map_err(unwritten)?;
        note.write_all(file.as_os_str().as_encoded_bytes()).and_then(|()| note.sync_all()).map_err(unwritten)?;
        self.remove(|path, other| other == file && path != kept).map(drop)
    }

    /// Takes the trust in a file back, whatever its content. Returns whether there was any.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) when the book cannot be written.
    pub fn revoke(&self, file: &Path) -> Result<bool> {
        let file = own_path(file)?;
        self.remove(|_, other| other == file)
    }

    /// Returns the files that are trusted with some content, in order.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) when the book cannot be read.
    pub fn list(&self) -> Result<Vec<PathBuf>> {
        let mut files: Vec<PathBuf> = self.notes()?.into_iter().map(|(_, file)| file).collect();
        files.sort();
        files.dedup();
        Ok(files)
    }

    fn remove(&self, is_one: impl Fn(&Path, &Path) -> bool) -> Result<bool> {
        let mut removed = false;
        for (path, file) in self.notes()? {
            if is_one(&path, &file) {
                match std::fs::remove_file(&path) {
                    Err(cause) if cause.kind() != Io::NotFound => return Err(unusable("written", &self.directory, cause)),
                    _ => removed = true,
                }
            }
        }
        Ok(removed)
    }

    /// Returns the notes there are, and the file that each is about.
    fn notes(&self) -> Result<Vec<(PathBuf, PathBuf)>> {
        let unread = |cause| unusable("read", &self.directory, cause);
        let entries = match std::fs::read_dir(&self.directory) {
            Err(cause) if cause.kind() == Io::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(unread)?,
        };
        let mut notes = Vec::new();
        for entry in entries {
            let path = entry.map_err(unread)?.path();
            // A note that is passed over would go on being trusted after it is taken back.
            let file = std::fs::read(&path).map_err(unread)?;
            notes.push((path, named_by(file)));
        }
        Ok(notes)
    }
}

/// Returns the path that a note holds, which need not be UTF-8.
#[cfg(unix)]
fn named_by(bytes: Vec<u8>) -> PathBuf {
    <std::ffi::OsString as std::os::unix::ffi::OsStringExt>::from_vec(bytes).into()
}

#[cfg(not(unix))]
fn named_by(bytes: Vec<u8>) -> PathBuf {
    String::from_utf8_lossy(&bytes).into_owned().into()
}

/// Returns the path of a file without links on the way: where it lies, and not how somebody came there.
fn own_path(file: &Path) -> Result<PathBuf> {
    let unknown = |cause| Error::new(ErrorKind::Unavailable, format!("`{}` cannot be resolved", file.display())).with_source(cause);
    let absolute = std::path::absolute(file).map_err(unknown)?;
    let (Some(directory), Some(name)) = (absolute.parent(), absolute.file_name()) else { return Ok(absolute) };
    Ok(directory.canonicalize().unwrap_or_else(|_| directory.to_owned()).join(name))
}

fn hash(file: &Path, content: &[u8]) -> String {
    let mut hasher = blake3::Hasher::new();
    for part in [file.as_os_str().as_encoded_bytes(), content] {
        // With its length before it, no part can pass for two.
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hasher.finalize().to_hex().to_string()
}

fn unusable(doing: &str, directory: &Path, cause: std::io::Error) -> Error {
    let message = format!("the list of trusted configuration files cannot be {doing}; look at `trusted` in the data directory");
    Error::new(ErrorKind::Unavailable, message).with_source(AtHost::new(directory).with_cause(cause))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trust_holds_for_one_content_at_one_path() {
        let directory = tempfile::tempdir().expect("a directory");
        let book = TrustBook::new(&directory.path().join("data"));
        let (file, other) = (directory.path().join("treehold.toml"), directory.path().join("other.toml"));
        assert_eq!(book.of(&file, b"a").expect("read"), Trust::Unknown);
        book.trust(&file, b"a").expect("kept");
        assert_eq!(book.of(&file, b"a").expect("read"), Trust::Given);
        assert_eq!(book.of(&file, b"b").expect("read"), Trust::Changed);
        assert_eq!(book.of(&other, b"a").expect("read"), Trust::Unknown, "the same text elsewhere is another file");
        book.trust(&file, b"b").expect("kept");
        assert_eq!(book.of(&file, b"a").expect("read"), Trust::Changed, "only what was trusted last");
        assert_eq!(book.list().expect("read").len(), 1);
        assert!(book.revoke(&file).expect("taken back") && !book.revoke(&file).expect("nothing left"));
        assert_eq!(book.of(&file, b"b").expect("read"), Trust::Unknown);
    }
}
