//! Walks a directory in path order, for searches.
//!
//! Every directory and file is opened by name from the handle of its parent, without following links. Walkers that join paths and
//! open those (`ignore`, `walkdir`) follow a directory that is swapped for a link between listing and opening it. This one stops
//! there, so no swap leads it out of the root.
//!
//! In path order, the names in a directory are sorted and everything beneath a name comes before the next one. So results need no
//! sorting, a limit ends the walk, and a cursor skips whole directories.

use super::Cancel;
use super::directory::{each_name, is_unfinished};
use super::list::unnameable;
use super::root::Root;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, statat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::sync::Arc;
use treehold_core::error::{Error, Result};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::search::{IgnoreFiles, PathFilter, ignore::IGNORE_FILE_NAMES};
use treehold_core::work;

/// The largest ignore file that is read, in bytes. A larger file is hardly an ignore file.
const IGNORE_FILE_BYTES_MAX: u64 = 4 << 20;

/// What a walk meets.
#[derive(Debug)]
pub(super) enum Met {
    /// A path that the filter selects.
    Selected(Selected),
    /// A path that could not be inspected.
    Failed(VfsPathBuf, Error),
}

/// A path that the filter selects, with a handle on its parent.
#[derive(Debug)]
pub(super) struct Selected {
    pub(super) directory: Arc<OwnedFd>,
    pub(super) path: VfsPathBuf,
    pub(super) file_type: FileType,
}

/// A walk in progress.
pub(super) struct Walk<'a> {
    root: &'a Root,
    filter: &'a PathFilter,
    cancel: &'a Cancel,
    ignore_files: IgnoreFiles,
    stack: Vec<Level>,
    /// Failures to be returned next.
    failed: Vec<(VfsPathBuf, Error)>,
}

/// A directory being walked.
struct Level {
    handle: Arc<OwnedFd>,
    path: VfsPathBuf,
    /// The remaining names, the next one last.
    names: Vec<Name>,
}

struct Name {
    bytes: Box<[u8]>,
    file_type: FileType,
}

impl<'a> Walk<'a> {
    /// Starts a walk beneath `path`, at the deepest directory that contains everything the filter can select.
    ///
    /// # Errors
    /// Errors of opening `path`. If a directory between `path` and the start is missing, the walk is merely empty.
    pub(super) fn start(root: &'a Root, path: &VfsPath, filter: &'a PathFilter, cancel: &'a Cancel) -> Result<Self> {
        let top = Arc::new(root.open_directory(path)?);
        let mut walk = Self { root, filter, cancel, ignore_files: IgnoreFiles::new(), stack: Vec::new(), failed: Vec::new() };
        if let Some(bound) = filter.bound() {
            walk.read_ignore_files_above(path);
            walk.descend(top, path, &bound);
        }
        Ok(walk)
    }

    /// Descends from the searched directory to the one where the patterns lead, and lists it.
    fn descend(&mut self, top: Arc<OwnedFd>, path: &VfsPath, bound: &VfsPath) {
        let mut handle = top;
        let below = bound.strip_prefix(path).unwrap_or(VfsPath::ROOT);
        let steps: Vec<&VfsPath> = below.ancestors().skip(1).chain((!below.is_root()).then_some(below)).collect();
        let mut at = path.to_owned();
        for step in steps {
            let contents = IGNORE_FILE_NAMES.map(|name| self.ignore_file(&handle, name));
            self.insert_ignore_files(&at, contents);
            at = path.concat(step);
            if self.ignore_files.excludes(&at, true) {
                return;
            }
            match self.root.open_child_directory(handle.as_fd(), OsStr::new(at.name())) {
                Ok(child) => handle = Arc::new(child),
                Err(errno) => return self.note(&at, errno),
            }
        }
        self.enter(handle, at);
    }

    /// Lists a directory and makes it the one being walked.
    fn enter(&mut self, handle: Arc<OwnedFd>, path: VfsPathBuf) {
        let mut names = Vec::new();
        let mut ignores = [false; 2];
        let listed = each_name(&*handle, |bytes, file_type| {
            if !is_unfinished(bytes) {
                for (name, met) in IGNORE_FILE_NAMES.iter().zip(&mut ignores) {
                    *met |= bytes == name.as_bytes();
                }
                names.push(Name { bytes: bytes.into(), file_type });
            }
        });
        if let Err(errno) = listed {
            return self.note(&path, errno);
        }
        let contents = [0, 1].map(|index| if ignores[index] { self.ignore_file(&handle, IGNORE_FILE_NAMES[index]) } else { None });
        self.insert_ignore_files(&path, contents);
        names.sort_unstable_by(|one, other| other.bytes.cmp(&one.bytes));
        // Close directories without remaining names first, so that a deep and narrow tree needs few handles.
        while self.stack.last().is_some_and(|level| level.names.is_empty()) {
            self.stack.pop();
        }
        self.stack.push(Level { handle, path, names });
    }

    /// Processes one name.
    fn meet(&mut self, name: &Name) -> Option<Selected> {
        let level = self.stack.last()?;
        let Some(path) = std::str::from_utf8(&name.bytes).ok().and_then(|name| level.path.child(name).ok()) else {
            self.note_unnameable(name);
            return None;
        };
        let file_type = match name.file_type {
            FileType::Unknown => match statat(&level.handle, path.name(), AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                Err(errno) => {
                    self.note(&path, errno);
                    return None;
                }
            },
            known => known,
        };
        let is_directory = file_type == FileType::Directory;
        let (selects, enters) = (self.filter.selects(&path, is_directory), is_directory && self.filter.enters(&path));
        if !(selects || enters) || self.ignore_files.excludes(&path, is_directory) {
            return None;
        }
        let directory = Arc::clone(&level.handle);
        if enters {
            match self.root.open_child_directory(directory.as_fd(), OsStr::new(path.name())) {
                Ok(handle) => self.enter(Arc::new(handle), path.clone()),
                Err(errno) => self.note(&path, errno),
            }
        }
        selects.then_some(Selected { directory, path, file_type })
    }

    /// Records a failure, unless the path was removed or replaced meanwhile.
    fn note(&mut self, path: &VfsPath, errno: Errno) {
        if !is_gone(errno) {
            self.failed.push((path.to_owned(), self.root.fault(path, errno)));
        }
    }

    /// Records a name that no path can express, unless the filter would skip it anyway.
    fn note_unnameable(&mut self, name: &Name) {
        let Some(level) = self.stack.last() else { return };
        let (path, error) = unnameable(&level.path, &name.bytes);
        let is_directory = name.file_type == FileType::Directory;
        if self.filter.selects(&path, is_directory) || (is_directory && self.filter.enters(&path)) {
            self.failed.push((path, error));
        }
    }

    fn read_ignore_files_above(&mut self, path: &VfsPath) {
        for above in path.ancestors() {
            let contents = match self.root.open_directory(above) {
                Ok(handle) => IGNORE_FILE_NAMES.map(|name| self.ignore_file(&handle, name)),
                Err(_) => [None, None],
            };
            self.insert_ignore_files(above, contents);
        }
    }

    fn insert_ignore_files(&mut self, directory: &VfsPath, contents: [Option<Vec<u8>>; 2]) {
        if contents.iter().any(Option::is_some) {
            self.ignore_files.insert(directory, contents.each_ref().map(Option::as_deref));
        }
    }

    /// Reads an ignore file of a directory. Returns `None` if it is not a regular file or cannot be read.
    fn ignore_file(&self, directory: &OwnedFd, name: &str) -> Option<Vec<u8>> {
        if !self.filter.respects_ignore_files() {
            return None;
        }
        let file = self.root.open_child_file(directory.as_fd(), OsStr::new(name)).ok()??;
        let size_bytes = file.meta.size_bytes;
        if size_bytes > IGNORE_FILE_BYTES_MAX {
            None
        } else {
            super::content::read_up_to(&file.handle, size_bytes, IGNORE_FILE_BYTES_MAX).ok()
        }
    }
}

impl Iterator for Walk<'_> {
    type Item = Met;

    fn next(&mut self) -> Option<Met> {
        loop {
            if let Some((path, error)) = self.failed.pop() {
                return Some(Met::Failed(path, error));
            }
            if self.cancel.is_set() {
                return None;
            }
            match self.stack.last_mut()?.names.pop() {
                Some(name) => {
                    work::advance(ENTRY_BYTES);
                    if let Some(selected) = self.meet(&name) {
                        return Some(Met::Selected(selected));
                    }
                }
                None => drop(self.stack.pop()),
            }
        }
    }
}

/// The cost of visiting one name, in searched bytes.
const ENTRY_BYTES: usize = 4 << 10;

/// Returns whether an error number means that a path was removed or replaced since it was listed.
pub(super) fn is_gone(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::LOOP)
}
