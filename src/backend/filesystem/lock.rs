//! Who may change a directory now: one writer at a time, among threads and among processes.
//!
//! A change reads, checks and renames under an exclusive lock of the directory that holds the name. Between processes that is a
//! `flock` of the directory's handle, released when it closes however the process ends. Within the process a turn is taken
//! first, so that threads queue instead of asking the kernel again and again; it also stands alone on filesystems
//! without `flock` on directories (NFS), where writers in other processes are then not held off.
//!
//! Only writers that use this crate, or `flock` themselves, are held off; readers never wait.

use super::Cancel;
use super::meta::FileId;
use crate::error::{Error, ErrorKind, Result};
use crate::path::VfsPath;
use parking_lot::{Mutex, MutexGuard};
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::time::{Duration, Instant};

/// How long a change waits for others before it gives up.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// How long a waiting writer sleeps at first, and at most, before it asks again.
const PAUSE: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(2));

/// Turns are spread over this many queues, which is all that the process keeps, however many directories there were; two
/// directories in one queue only wait for each other.
const QUEUES: usize = 64;

static TURNS: [Mutex<()>; QUEUES] = [const { Mutex::new(()) }; QUEUES];

/// The right to change one or two directories, until dropped.
#[derive(Debug)]
pub(super) struct Lock {
    // Dropped in this order: the next thread in turn then finds the directory free.
    _flocks: Vec<Flock>,
    _turns: Vec<MutexGuard<'static, ()>>,
}

/// One directory locked among processes, through a handle of its own.
#[derive(Debug)]
struct Flock(OwnedFd);

impl Drop for Flock {
    fn drop(&mut self) {
        // Closing would do, unless a child of this process was forked with the handle and has not yet run its program.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

impl Lock {
    /// Waits for the right to change directories: each by a handle of its own, in any order; the same one twice is one.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) when another writer kept it for 10 seconds.
    pub(super) fn take(mut directories: Vec<(FileId, OwnedFd)>, path: &VfsPath, cancel: &Cancel) -> Result<Self> {
        // One order for all writers, so that two of them never wait for each other.
        directories.sort_by_key(|(id, _)| *id);
        directories.dedup_by_key(|(id, _)| *id);
        let mut queues: Vec<usize> = directories.iter().map(|(id, _)| queue_of(*id)).collect();
        queues.sort_unstable();
        queues.dedup();
        let until = Instant::now() + WAIT_MAX;
        let turns =
            queues.into_iter().map(|queue| TURNS[queue].try_lock_until(until).ok_or_else(|| busy(path))).collect::<Result<Vec<_>>>()?;
        let flocks = directories.into_iter().filter_map(|(_, handle)| flock_until(handle, until, path, cancel).transpose());
        Ok(Self { _flocks: flocks.collect::<Result<Vec<_>>>()?, _turns: turns })
    }
}

fn flock_until(handle: OwnedFd, until: Instant, path: &VfsPath, cancel: &Cancel) -> Result<Option<Flock>> {
    let mut pause = PAUSE.0;
    loop {
        match flock(&handle, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Some(Flock(handle))),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) => {
                cancel.check(path)?;
                if Instant::now() >= until {
                    return Err(busy(path));
                }
                std::thread::sleep(pause);
                pause = (pause * 2).min(PAUSE.1);
            }
            // The filesystem has no such locks; the turn holds off the threads of this process.
            Err(_) => return Ok(None),
        }
    }
}

fn queue_of(id: FileId) -> usize {
    // Neighbours in the inode table go to different queues.
    (id.inode ^ id.device.rotate_left(17)) as usize % QUEUES
}

fn busy(path: &VfsPath) -> Error {
    let message = format!("another writer has kept the directory of `{path}` locked for {} s; try again", WAIT_MAX.as_secs());
    Error::new(ErrorKind::Unavailable, message).at(path)
}
