//! The bases of merges: each file as it was last mirrored.

use super::plan::{Known, KnownFile};
use super::state::{failed, names, read, write};
use blake3::Hash;
use rustix::fs::{AtFlags, renameat, unlinkat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use treehold_core::error::{Error, Result};
use treehold_core::path::{VfsPath, VfsPathBuf};

/// The files as they were last mirrored.
#[derive(Debug)]
pub(super) struct Bases {
    handle: File,
    /// The path of the directory, for messages.
    host: PathBuf,
}

/// The first line of a base.
#[derive(Debug, Serialize, Deserialize)]
struct Header {
    path: VfsPathBuf,
    /// The hash of the content; `None` for a directory.
    hash: Option<String>,
}

impl Bases {
    pub(super) fn new(handle: File, host: PathBuf) -> Self {
        Self { handle, host }
    }

    /// Keeps a file, or a directory if there is no content.
    pub(super) fn put(&self, path: &VfsPath, content: Option<(&[u8], Hash)>) -> Result<()> {
        let header = Header { path: path.to_owned(), hash: content.map(|(_, hash)| hash.to_hex().to_string()) };
        let mut head = serde_json::to_vec(&header).expect("a header has only text");
        head.push(b'\n');
        let name = name_of(path);
        let unfinished = format!("{name}.tmp");
        write(&self.handle, &unfinished, &[&head, content.map_or(&[][..], |(content, _)| content)])
            .and_then(|()| Ok(renameat(&self.handle, &unfinished, &self.handle, &name)?))
            .map_err(|error| self.failed(path, error))
    }

    /// Returns the content of a file; `None` if there is none, or another one than expected.
    pub(super) fn get(&self, path: &VfsPath, hash: Hash) -> Result<Option<Vec<u8>>> {
        let content = match read(&self.handle, name_of(path)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            content => content.map_err(|error| self.failed(path, error))?,
        };
        let start = content.iter().position(|byte| *byte == b'\n').map_or(content.len(), |end| end + 1);
        Ok(Some(content[start..].to_vec()).filter(|content| blake3::hash(content) == hash))
    }

    /// Forgets a file or directory.
    pub(super) fn remove(&self, path: &VfsPath) -> Result<()> {
        match unlinkat(&self.handle, name_of(path), AtFlags::empty()) {
            Err(errno) if errno != Errno::NOENT => Err(self.failed(path, errno.into())),
            _ => Ok(()),
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&self) -> Result<()> {
        let fault = |error| self.failed(VfsPath::ROOT, error);
        for name in names(&self.handle).map_err(fault)? {
            match unlinkat(&self.handle, &name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(fault(errno.into())),
            }
        }
        Ok(())
    }

    /// Returns everything that an earlier mirror kept. Damaged and unfinished bases are removed: without one, both sides count as added.
    pub(super) fn all(&self) -> Result<BTreeMap<VfsPathBuf, Known>> {
        let fault = |error| self.failed(VfsPath::ROOT, error);
        let mut all = BTreeMap::new();
        for name in names(&self.handle).map_err(fault)? {
            let content = read(&self.handle, &name).map_err(fault)?;
            match base(&content).filter(|(path, _)| name == *name_of(path)) {
                Some((path, known)) => drop(all.insert(path, known)),
                None => unlinkat(&self.handle, &name, AtFlags::empty()).map_err(|errno| fault(errno.into()))?,
            }
        }
        Ok(all)
    }

    fn failed(&self, path: &VfsPath, error: io::Error) -> Error {
        failed("cannot be used", &self.host, error).at(path)
    }
}

/// Returns the name of a path's base.
fn name_of(path: &VfsPath) -> String {
    blake3::hash(path.as_str().as_bytes()).to_hex().to_string()
}

/// Reads a base; `None` for one that is damaged.
fn base(content: &[u8]) -> Option<(VfsPathBuf, Known)> {
    let end = content.iter().position(|byte| *byte == b'\n')?;
    let header: Header = serde_json::from_slice(&content[..end]).ok()?;
    let hash = blake3::hash(&content[end + 1..]);
    let known = match &header.hash {
        None => Known::Directory,
        Some(kept) if *kept == hash.to_hex().as_str() => {
            Known::File(KnownFile { hash, size_bytes: (content.len() - end - 1) as u64, tree: None, host: None })
        }
        Some(_) => return None,
    };
    Some((header.path, known))
}
