//! Locks on files and directories between processes.

use rustix::fd::AsFd;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// A file or directory that this process has locked, until it is dropped or the process ends, however it ends.
#[derive(Debug)]
pub(crate) struct Flock<F: AsFd>(F);

impl<F: AsFd> Flock<F> {
    /// Locks a file through a handle of its own, without waiting.
    ///
    /// # Errors
    /// [`WOULDBLOCK`](Errno::WOULDBLOCK) if another handle has the lock, and others on filesystems without such locks. The handle is
    /// given back.
    pub(crate) fn try_take(file: F) -> std::result::Result<Self, (F, Errno)> {
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self(file)),
                Err(Errno::INTR) => {}
                Err(errno) => return Err((file, errno)),
            }
        }
    }

    /// Returns the file that is locked.
    pub(crate) fn file(&self) -> &F {
        &self.0
    }
}

impl<F: AsFd> Drop for Flock<F> {
    fn drop(&mut self) {
        // Closing is not enough while a process that this one is starting has copies of its handles.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn lock_is_free_although_a_starting_process_has_a_copy_of_the_handle() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let handle = || File::open(file.path()).expect("opened");
        let locked = Flock::try_take(handle()).expect("locked");
        let copy = locked.file().try_clone().expect("copied");
        let (_, errno) = Flock::try_take(handle()).expect_err("it is locked");
        assert_eq!(errno, Errno::WOULDBLOCK);
        drop(locked);
        Flock::try_take(handle()).map(drop).expect("it is free");
        drop(copy);
    }
}
