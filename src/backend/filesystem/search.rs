//! Finding paths and lines: a [`Walk`] gives what the filter selects, in path order, and the shared rules of
//! [`search`](crate::search) do the rest.
//!
//! A glob looks at what matched, and at nothing else. A grep reads on several threads while the walk goes on; a file costs an open, a
//! look, a read and a close, into a buffer that each thread keeps.

use super::Cancel;
use super::content::read_into;
use super::list::FAILURES_MAX;
use super::meta::Meta;
use super::root::{OpenFile, Root};
use super::walk::{Met, Selected, Walk, is_gone};
use crate::error::{Error, ErrorKind, ErrorRecord, Result};
use crate::file::{BINARY_PROBE_BYTES, is_binary};
use crate::ops::{Failure, GlobOptions, GlobResult, GrepOptions, GrepResult};
use crate::path::{VfsPath, VfsPathBuf};
use crate::search::{FileOutcome, GrepCollector, GrepMatcher, PathFilter, parallel};
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use rustix::fd::AsFd;
use rustix::fs::{AtFlags, FileType, statat};
use rustix::io::Errno;
use std::cell::Cell;
use std::ffi::OsStr;

/// The largest file that is searched: its content is held in memory.
const SEARCH_BYTES_MAX: u64 = 1 << 30;

/// Up to this size a file is read at once; of a larger one the start is looked at first, as most large files are binary.
const AT_ONCE_BYTES: u64 = 64 << 10;

/// Of files over this size one is held in memory at a time, whatever the number of threads and searches.
const ALONE_BYTES: u64 = 32 << 20;

static ALONE: Mutex<()> = Mutex::new(());

/// The largest buffer that a thread keeps for its next file.
const BUFFER_BYTES_MAX: usize = 1 << 20;

thread_local! {
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Finds paths by pattern.
pub(super) fn glob(root: &Root, path: &VfsPath, options: &GlobOptions, cancel: &Cancel) -> Result<GlobResult> {
    let filter = PathFilter::for_glob(path, options)?;
    let mut failures = Vec::new();
    let mut fail = |path: VfsPathBuf, error: &Error| {
        if failures.len() < FAILURES_MAX {
            failures.push(Failure { path, error: ErrorRecord::from(error) });
        }
    };
    let found = Walk::start(root, path, &filter, cancel)?.filter_map(|met| match met {
        Met::Failed(path, error) => {
            fail(path, &error);
            None
        }
        // Links, devices and pipes are no files; they are found where more than files is asked for.
        Met::Selected(selected) if !options.directories && selected.file_type != FileType::RegularFile => None,
        Met::Selected(Selected { directory, path, .. }) => match statat(&directory, path.name(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Some(Meta::from(stat).entry(&path)),
            Err(errno) if is_gone(errno) => None,
            Err(errno) => {
                let error = root.fault(&path, errno);
                fail(path, &error);
                None
            }
        },
    });
    let mut result = GlobResult::from_sorted(found, options);
    result.failures = failures;
    cancel.check(path)?;
    Ok(result)
}

/// Finds lines by pattern.
pub(super) fn grep(root: &Root, path: &VfsPath, options: &GrepOptions, workers: usize, cancel: &Cancel) -> Result<GrepResult> {
    let filter = PathFilter::for_grep(path, options)?;
    let matcher = GrepMatcher::compile(options)?;
    let mut collector = GrepCollector::new(options);
    let search = Search { root, options, matcher: &matcher };
    match root.open_file(path) {
        Ok(file) => {
            let outcome = search.file(path, &file);
            let _ = collector.push(path.to_owned(), outcome);
        }
        Err(error) if error.kind() == ErrorKind::IsDirectory => {
            let walk = Walk::start(root, path, &filter, cancel)?.filter(|met| match met {
                Met::Selected(selected) => selected.file_type == FileType::RegularFile,
                Met::Failed(..) => true,
            });
            parallel::ordered(walk, workers, |met| search.met(met), |(path, outcome)| collector.push(path, outcome));
        }
        Err(error) => return Err(error),
    }
    cancel.check(path)?;
    Ok(collector.finish())
}

/// What each thread needs to search a file.
struct Search<'a> {
    root: &'a Root,
    options: &'a GrepOptions,
    matcher: &'a GrepMatcher,
}

impl Search<'_> {
    fn met(&self, met: Met) -> (VfsPathBuf, FileOutcome) {
        match met {
            Met::Failed(path, error) => (path, FileOutcome::Failed(error)),
            Met::Selected(Selected { directory, path, .. }) => {
                let outcome = match self.root.open_child_file(directory.as_fd(), OsStr::new(path.name())) {
                    Ok(Some(file)) => self.file(&path, &file),
                    // It is no regular file any more.
                    Ok(None) => FileOutcome::Gone,
                    Err(errno) if is_gone(errno) => FileOutcome::Gone,
                    Err(errno) => FileOutcome::Failed(self.root.fault(&path, errno)),
                };
                (path, outcome)
            }
        }
    }

    fn file(&self, path: &VfsPath, file: &OpenFile) -> FileOutcome {
        let max = self.options.size_max_bytes.unwrap_or(SEARCH_BYTES_MAX).min(SEARCH_BYTES_MAX);
        if file.meta.size_bytes > max {
            return FileOutcome::TooLarge;
        }
        let _alone = (file.meta.size_bytes > ALONE_BYTES).then(|| ALONE.lock());
        let mut content = BUFFER.take();
        content.clear();
        match self.read(file, &mut content) {
            Ok(true) => {}
            Ok(false) => {
                keep_buffer(content);
                return FileOutcome::Binary;
            }
            Err(errno) => return FileOutcome::Failed(self.root.fault(path, errno)),
        }
        let content = Bytes::from(content);
        let outcome = self.matcher.search(path, &content).detached();
        if let Ok(buffer) = content.try_into_mut() {
            keep_buffer(emptied(buffer));
        }
        outcome
    }

    /// Reads a file; tells false when its start showed that it is binary and not searched.
    fn read(&self, file: &OpenFile, content: &mut Vec<u8>) -> Result<bool, Errno> {
        let size_bytes = file.meta.size_bytes;
        if size_bytes > AT_ONCE_BYTES {
            content.reserve(BINARY_PROBE_BYTES);
            read_into(&file.handle, content, size_bytes, BINARY_PROBE_BYTES as u64)?;
            if !self.options.binary && is_binary(content) {
                return Ok(false);
            }
        }
        content.reserve((size_bytes as usize).saturating_sub(content.len()));
        read_into(&file.handle, content, size_bytes, SEARCH_BYTES_MAX)?;
        Ok(true)
    }
}

fn emptied(mut buffer: BytesMut) -> Vec<u8> {
    buffer.clear();
    Vec::from(buffer)
}

fn keep_buffer(buffer: Vec<u8>) {
    if buffer.capacity() <= BUFFER_BYTES_MAX {
        BUFFER.set(buffer);
    }
}
