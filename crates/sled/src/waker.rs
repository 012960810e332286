//! Waking what waits in the engine for a write that has failed.
//!
//! The engine writes a full buffer once the last change to it has ended (`Log::exit_reservation` of sled 0.34.7). If that write fails, it
//! records the failure but does not wake the threads that wait for the write, and they would wait for ever. A flush after a failure writes
//! nothing, and wakes them.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use treehold_core::error::{Error, ErrorKind, Result};

/// How often failures are looked for.
const INTERVAL: Duration = Duration::from_millis(250);

/// A thread that looks for failures of an open store until this is dropped.
#[derive(Debug)]
pub(super) struct Waker {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    process: u32,
}

impl Waker {
    /// Starts the thread for a store that was opened with `config`.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) when the thread cannot be spawned.
    pub(super) fn start(rows: ::sled::Db, config: ::sled::Config) -> Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let run = move || {
            while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                if config.global_error().is_err() {
                    // It returns the failure, which the woken threads return too.
                    let _ = rows.flush();
                }
            }
        };
        let started = thread::Builder::new().name("treehold-sled-waker".to_owned()).spawn(run);
        let thread = started
            .map_err(|error| Error::new(ErrorKind::Unavailable, "the store's waking thread cannot be started").with_source(error))?;
        Ok(Self { stop: Some(stop), thread: Some(thread), process: std::process::id() })
    }
}

impl Drop for Waker {
    fn drop(&mut self) {
        drop(self.stop.take());
        let Some(thread) = self.thread.take() else { return };
        // In a forked process the thread does not exist, so joining it would block forever.
        if self.process == std::process::id() {
            let _ = thread.join();
        }
    }
}
