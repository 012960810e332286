//! Searches paths and lines. A [`Walk`] yields what the filter selects, in path order; the shared rules of
//! [`search`](treehold_core::search) do the rest.
//!
//! A glob inspects only what matched. A grep reads files on several threads while the walk goes on; each file takes an open, a
//! stat, a read and a close, into a buffer that the thread reuses. A large file is searched in windows, on several threads if its
//! lines can be searched independently. If matches may span lines, the file is read whole.

use super::Cancel;
use super::content::{read_into, read_more, read_range};
use super::list::FAILURES_MAX;
use super::meta::Meta;
use super::part;
use super::root::{OpenFile, Root};
use super::walk::{Met, Selected, Walk, is_gone};
use bytes::{Bytes, BytesMut};
use rustix::fd::AsFd;
use rustix::fs::{AtFlags, FileType, statat};
use rustix::io::{Errno, Result as Host};
use std::cell::Cell;
use std::ffi::OsStr;
use std::mem::take;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use treehold_core::error::{Error, ErrorKind, ErrorRecord, Result};
use treehold_core::file::BINARY_PROBE_BYTES;
use treehold_core::ops::{Failure, GlobOptions, GlobResult, GrepOptions, GrepResult};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::search::{Decoded, FileOutcome, GrepCollector, GrepMatcher, PathFilter, Seeker, Unread, Windows, parallel};
use treehold_core::work::Memory;

/// The largest file, in bytes, that is searched for matches across lines.
const SEARCH_BYTES_MAX: u64 = 1 << 30;

/// Files up to this size, in bytes, are read at once. Of a larger file the start is checked first, as most large files are
/// binary.
const AT_ONCE_BYTES: u64 = 64 << 10;

/// The most bytes of whole files that all searches together hold in memory. A larger file is held alone. Files that fit a
/// thread's buffer do not count.
const WHOLE_BYTES_MAX: u64 = 64 << 20;

static WHOLE: Memory = Memory::new(WHOLE_BYTES_MAX);

/// The largest buffer, in bytes, that a thread keeps for its next file. A larger file is searched in windows.
const BUFFER_BYTES_MAX: usize = 1 << 20;

/// How much of a large file is read and searched at a time, in bytes. Small enough to stay in the processor's cache.
const WINDOW_BYTES: usize = 256 << 10;

/// The smallest file, in bytes, that is searched on several threads.
const SHARED_BYTES: u64 = 8 << 20;

/// The most threads that search one file. More would only compete for memory bandwidth.
const SHARED_WORKERS_MAX: usize = 4;

thread_local! {
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Finds paths that match a pattern.
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
        // Links, devices and pipes are not files. They are reported only if directories are too.
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

/// Finds lines that match a pattern.
pub(super) fn grep(root: &Root, path: &VfsPath, options: &GrepOptions, workers: usize, cancel: &Cancel) -> Result<GrepResult> {
    let filter = PathFilter::for_grep(path, options)?;
    let matcher = GrepMatcher::compile(options)?;
    let mut collector = GrepCollector::new(options);
    let search = Search { root, matcher: &matcher, cancel, workers, shares: AtomicBool::new(false), over: AtomicBool::new(false) };
    match root.open_file(path) {
        Ok(file) => {
            let outcome = search.file(path, file);
            let _ = collector.push(path.to_owned(), outcome);
        }
        Err(error) if error.kind() == ErrorKind::IsDirectory => {
            let walk = Walk::start(root, path, &filter, cancel)?.filter(|met| match met {
                Met::Selected(selected) => selected.file_type == FileType::RegularFile,
                Met::Failed(..) => true,
            });
            parallel::ordered(
                walk,
                workers,
                |met| search.met(met),
                |(path, outcome)| {
                    let flow = collector.push(path, outcome);
                    search.over.store(flow.is_break(), Ordering::Relaxed);
                    flow
                },
            );
        }
        Err(error) => return Err(error),
    }
    cancel.check(path)?;
    Ok(collector.finish())
}

/// The context that search threads share.
struct Search<'a> {
    root: &'a Root,
    matcher: &'a GrepMatcher,
    cancel: &'a Cancel,
    workers: usize,
    /// Whether a file is being searched on several threads. Only one is at a time.
    shares: AtomicBool,
    /// Whether a limit was reached, so that threads abandon large files.
    over: AtomicBool,
}

impl Search<'_> {
    fn met(&self, met: Met) -> (VfsPathBuf, FileOutcome) {
        match met {
            Met::Failed(path, error) => (path, FileOutcome::Failed(error)),
            Met::Selected(Selected { directory, path, .. }) => {
                let outcome = match self.root.open_child_file(directory.as_fd(), OsStr::new(path.name())) {
                    Ok(Some(file)) => self.file(&path, file),
                    // It is not a regular file any more.
                    Ok(None) => FileOutcome::Gone,
                    Err(errno) if is_gone(errno) => FileOutcome::Gone,
                    Err(errno) => FileOutcome::Failed(self.root.fault(&path, errno)),
                };
                (path, outcome)
            }
        }
    }

    fn file(&self, path: &VfsPath, file: OpenFile) -> FileOutcome {
        let size_bytes = file.meta.size_bytes;
        if self.matcher.is_too_large(size_bytes) {
            return FileOutcome::TooLarge;
        }
        let read = if size_bytes > BUFFER_BYTES_MAX as u64 && self.matcher.supports_windows() {
            self.in_windows(path, &file)
        } else {
            self.whole(path, &file)
        };
        read.unwrap_or_else(|errno| FileOutcome::Failed(self.root.fault(path, errno)))
    }

    fn whole(&self, path: &VfsPath, file: &OpenFile) -> Host<FileOutcome> {
        if file.meta.size_bytes > SEARCH_BYTES_MAX {
            return Ok(FileOutcome::TooLarge);
        }
        let size_bytes = file.meta.size_bytes;
        let held = (size_bytes > BUFFER_BYTES_MAX as u64).then(|| WHOLE.hold(size_bytes, || self.is_cancelled()));
        let Some(_held) = held.map_or(Some(None), |held| held.map(Some)) else { return Ok(FileOutcome::Gone) };
        let mut content = BUFFER.take();
        content.clear();
        if !self.read(file, &mut content)? {
            keep_buffer(content);
            return Ok(FileOutcome::Binary);
        }
        let content = Bytes::from(content);
        let outcome = self.matcher.search(path, &content).detached();
        if let Ok(buffer) = content.try_into_mut() {
            keep_buffer(emptied(buffer));
        }
        Ok(outcome)
    }

    /// Reads a file. Returns false if its start shows that it is a binary file to be skipped.
    fn read(&self, file: &OpenFile, content: &mut Vec<u8>) -> Host<bool> {
        let size_bytes = file.meta.size_bytes;
        if size_bytes > AT_ONCE_BYTES {
            content.reserve(BINARY_PROBE_BYTES);
            read_into(&file.handle, content, size_bytes, BINARY_PROBE_BYTES as u64)?;
            if self.matcher.skips_undecoded(content) {
                return Ok(false);
            }
        }
        content.reserve((size_bytes as usize).saturating_sub(content.len()));
        read_into(&file.handle, content, size_bytes, SEARCH_BYTES_MAX)?;
        Ok(true)
    }

    /// Searches a large file in windows, on several threads if its windows can be searched independently.
    fn in_windows(&self, path: &VfsPath, file: &OpenFile) -> Host<FileOutcome> {
        let Some(seeker) = self.matcher.seek(|| path) else { return Ok(FileOutcome::Gone) };
        let size_bytes = file.meta.size_bytes;
        if size_bytes < SHARED_BYTES || self.workers == 1 || !seeker.supports_parts() {
            return self.in_turn(file, seeker);
        }
        let start = read_range(&file.handle, 0, BINARY_PROBE_BYTES as u64)?;
        if self.matcher.starts_with_mark(&start) || self.shares.swap(true, Ordering::Relaxed) {
            return self.in_turn(file, seeker);
        }
        let outcome = if self.matcher.skips(&start) { Ok(FileOutcome::Binary) } else { self.in_parts(file, seeker) };
        self.shares.store(false, Ordering::Relaxed);
        outcome
    }

    /// Reads and searches one window after another.
    fn in_turn(&self, file: &OpenFile, mut seeker: Seeker<'_>) -> Host<FileOutcome> {
        let mut text = Decoded::new(|buffer| read_more(&file.handle, buffer), self.matcher.encoding());
        let mut windows = Windows::new(|buffer| text.read(buffer), WINDOW_BYTES, self.matcher.window_context());
        if self.matcher.skips(windows.probe()?) {
            return Ok(FileOutcome::Binary);
        }
        let mut buffer = BUFFER.take();
        while !self.is_cancelled() {
            let window = match windows.next(take(&mut buffer)) {
                Ok(Some(window)) => window,
                Ok(None) => break,
                Err(unread) => return outcome_of(unread),
            };
            if self.matcher.is_beyond_one_call(&window.content) {
                return Ok(FileOutcome::TooLarge);
            }
            let flow = seeker.push(&window);
            buffer = window.into_buffer().unwrap_or_default();
            if flow.is_break() {
                break;
            }
        }
        keep_buffer(buffer);
        Ok(seeker.finish())
    }

    /// Reads and searches the parts of a file on several threads. Each part is read by the thread that searches it, so it is in
    /// that core's cache.
    fn in_parts(&self, file: &OpenFile, mut seeker: Seeker<'_>) -> Host<FileOutcome> {
        let parts = (0..file.meta.size_bytes.div_ceil(WINDOW_BYTES as u64)).take_while(|_| !self.is_cancelled());
        let mut unread = None;
        let find = |number| {
            let window = part::read(&file.handle, number, WINDOW_BYTES, BUFFER.take())?;
            if self.matcher.is_beyond_one_call(&window.content) {
                return Err(Unread::TooLong);
            }
            let found = self.matcher.find(&window);
            keep_buffer(window.into_buffer().unwrap_or_default());
            Ok(found)
        };
        parallel::ordered(parts, self.workers.min(SHARED_WORKERS_MAX), find, |found| match found {
            Ok(found) => seeker.push_found(found),
            Err(error) => {
                unread = Some(error);
                ControlFlow::Break(())
            }
        });
        unread.map_or_else(|| Ok(seeker.finish()), outcome_of)
    }

    fn is_cancelled(&self) -> bool {
        self.cancel.is_set() || self.over.load(Ordering::Relaxed)
    }
}

fn outcome_of(unread: Unread<Errno>) -> Host<FileOutcome> {
    match unread {
        Unread::TooLong => Ok(FileOutcome::TooLarge),
        Unread::Failed(errno) => Err(errno),
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
