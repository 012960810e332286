//! Which configuration files a person has reviewed and trusts. A configuration acts with that person's rights.
//!
//! A file named with `--config` is trusted thereby. A file that happens to be in the working directory of a command may have come with an
//! archive or have been written by an agent, so it is used only after its content was trusted. Each trust is a file `trusted/HASH` in the
//! data directory. `HASH` is the hash of path and content, and the file contains the path. A changed or moved file is therefore not
//! trusted.

use std::io::{ErrorKind as Io, Write as _};
use std::path::{Path, PathBuf};
use treehold_core::error::{AtHost, Error, ErrorKind, Result};

/// The trusted files, recorded in a directory that no tree should reach.
#[derive(Debug, Clone)]
pub struct TrustBook {
    directory: PathBuf,
}

/// Whether a file is trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trust {
    /// Its content is trusted.
    Given,
    /// It is trusted with different content.
    Changed,
    /// It is not trusted.
    Unknown,
}

impl TrustBook {
    /// Opens the records in a data directory.
    pub fn new(data: &Path) -> Self {
        Self { directory: data.join("trusted") }
    }

    /// Returns the directory of the records.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns whether a file with this content is trusted.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) if the records cannot be read.
    pub fn of(&self, file: &Path, content: &[u8]) -> Result<Trust> {
        let file = own_path(file)?;
        if self.directory.join(hash(&file, content)).is_file() {
            return Ok(Trust::Given);
        }
        Ok(if self.list()?.contains(&file) { Trust::Changed } else { Trust::Unknown })
    }

    /// Trusts a file with this content. Trust in other content of the same file ends.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) if the records cannot be written.
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

    /// Revokes trust in a file with any content. Returns whether there was any.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) if the records cannot be written.
    pub fn revoke(&self, file: &Path) -> Result<bool> {
        let file = own_path(file)?;
        self.remove(|_, other| other == file)
    }

    /// Returns the files that are trusted with some content, in order.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) if the records cannot be read.
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

    /// Returns each record with the file it is about.
    fn notes(&self) -> Result<Vec<(PathBuf, PathBuf)>> {
        let unread = |cause| unusable("read", &self.directory, cause);
        let entries = match std::fs::read_dir(&self.directory) {
            Err(cause) if cause.kind() == Io::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(unread)?,
        };
        let mut notes = Vec::new();
        for entry in entries {
            let path = entry.map_err(unread)?.path();
            // Fail on an unreadable record: skipping it would keep its file trusted after trust is revoked.
            let file = std::fs::read(&path).map_err(unread)?;
            notes.push((path, named_by(file)));
        }
        Ok(notes)
    }
}

/// Returns the path in a record, which need not be UTF-8.
#[cfg(unix)]
fn named_by(bytes: Vec<u8>) -> PathBuf {
    <std::ffi::OsString as std::os::unix::ffi::OsStringExt>::from_vec(bytes).into()
}

#[cfg(not(unix))]
fn named_by(bytes: Vec<u8>) -> PathBuf {
    String::from_utf8_lossy(&bytes).into_owned().into()
}

/// Returns the path of a file with the links in its directory resolved, so that it does not depend on how it was reached.
fn own_path(file: &Path) -> Result<PathBuf> {
    let unknown = |cause| Error::new(ErrorKind::Unavailable, format!("`{}` cannot be resolved", file.display())).with_source(cause);
    let absolute = std::path::absolute(file).map_err(unknown)?;
    let (Some(directory), Some(name)) = (absolute.parent(), absolute.file_name()) else { return Ok(absolute) };
    Ok(directory.canonicalize().unwrap_or_else(|_| directory.to_owned()).join(name))
}

fn hash(file: &Path, content: &[u8]) -> String {
    let mut hasher = blake3::Hasher::new();
    for part in [file.as_os_str().as_encoded_bytes(), content] {
        // Length prefixes keep adjacent parts distinct.
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hasher.finalize().to_hex().to_string()
}

fn unusable(doing: &str, directory: &Path, cause: std::io::Error) -> Error {
    let message = format!("the list of trusted configuration files cannot be {doing}; check `trusted` in the data directory");
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
        assert_eq!(book.of(&file, b"a").expect("read"), Trust::Changed, "only the content that was trusted last is trusted");
        assert_eq!(book.list().expect("read").len(), 1);
        assert!(book.revoke(&file).expect("the trust is revoked") && !book.revoke(&file).expect("nothing left"));
        assert_eq!(book.of(&file, b"b").expect("read"), Trust::Unknown);
    }
}
