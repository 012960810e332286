//! Locks directories, so that one writer at a time changes each, across threads and processes.
//!
//! A change reads, checks and renames while it holds an exclusive lock on the directory that contains the name. Between processes
//! this is a `flock` on a directory handle, which is released when the process ends, however it ends. Within the process a mutex
//! is taken first, so that threads queue instead of polling the kernel. On filesystems without `flock` on directories (NFS) only
//! the mutex remains, so writers in other processes are not excluded.
//!
//! The lock excludes writers that use this crate or `flock` themselves. Readers never wait.

use super::Cancel;
use super::meta::FileId;
use crate::flock::Flock;
use parking_lot::{Mutex, MutexGuard};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::time::{Duration, Instant};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::lock_wait::LockWait;
use treehold_core::path::VfsPath;

/// How long a change waits for the lock before it fails.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// The initial and the longest pause between two attempts to lock.
const PAUSE: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(2));

/// The number of mutexes, fixed however many directories there are. Two directories that share one merely wait for each other.
const QUEUES: usize = 64;

static TURNS: [Mutex<()>; QUEUES] = [const { Mutex::new(()) }; QUEUES];

/// Exclusive locks on one or two directories, held until dropped.
#[derive(Debug)]
pub(super) struct Lock {
    // Fields drop in this order, so that the next thread to get the mutex finds the directory unlocked.
    _flocks: Vec<Flock<OwnedFd>>,
    _turns: Vec<MutexGuard<'static, ()>>,
}

impl Lock {
    /// Locks directories, each given by a handle of its own, in any order. Duplicates are locked once.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) if another writer holds a lock for 10 seconds.
    pub(super) fn take(mut directories: Vec<(FileId, OwnedFd)>, path: &VfsPath, cancel: &Cancel) -> Result<Self> {
        // Lock in a fixed order to prevent deadlocks.
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

fn flock_until(mut handle: OwnedFd, until: Instant, path: &VfsPath, cancel: &Cancel) -> Result<Option<Flock<OwnedFd>>> {
    let (mut pause, mut wait) = (PAUSE.0, LockWait::begin());
    loop {
        match Flock::try_take(handle) {
            Ok(locked) => return Ok(Some(locked)),
            Err((unlocked, Errno::WOULDBLOCK)) => {
                handle = unlocked;
                cancel.check(path)?;
                if Instant::now() >= until {
                    return Err(busy(path));
                }
                // The name only: the rest of the path starts at the mount, which the reader of the report does not know.
                wait.still(format_args!("the directory of `{}`", path.name()));
                std::thread::sleep(pause);
                pause = (pause * 2).min(PAUSE.1);
            }
            // The filesystem has no such locks. The mutex still excludes the threads of this process.
            Err(_) => return Ok(None),
        }
    }
}

fn queue_of(id: FileId) -> usize {
    // Spread neighbours in the inode table over different mutexes.
    (id.inode ^ id.device.rotate_left(17)) as usize % QUEUES
}

fn busy(path: &VfsPath) -> Error {
    let message = format!("another writer has kept the directory of `{path}` locked for {} s; try again", WAIT_MAX.as_secs());
    Error::new(ErrorKind::Unavailable, message).at(path)
}
