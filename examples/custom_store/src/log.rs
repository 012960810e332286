//! The file: consecutive records, each with its length and a checksum.
//!
//! A crash can tear only the last record, which was never acknowledged; opening the file cuts it off. A record that does not
//! match its checksum and is followed by others is damage.

use crate::failed;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};
use treehold::{Error, ErrorKind, Result};

/// The start of every log.
const MAGIC: &[u8; 8] = b"rowlog\x001";

/// The length and the checksum before each record.
const HEAD_BYTES: usize = 16;

/// How long a lock is waited for. A process that is being started holds the files of its parent for a moment.
const LOCK_WAIT: Duration = Duration::from_secs(5);

/// Locks a log. Blocks for up to [`LOCK_WAIT`].
fn lock(file: &File) -> Result<()> {
    let deadline = Instant::now() + LOCK_WAIT;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => std::thread::sleep(LOCK_WAIT / 250),
            Err(TryLockError::WouldBlock) => {
                return Err(Error::new(ErrorKind::Unavailable, "another process has the store open; close it there"));
            }
            Err(TryLockError::Error(cause)) => return Err(failed(cause)),
        }
    }
}

/// An open log, at whose end records are appended.
pub(crate) struct Log {
    file: File,
    end: u64,
    is_broken: bool,
}

impl Log {
    /// Opens or creates a log and calls `apply` with each record and its offset.
    pub(crate) fn open(path: &Path, mut apply: impl FnMut(&[u8], u64) -> Result<()>) -> Result<Self> {
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(failed)?;
        lock(&file)?;
        let length = file.metadata().map_err(failed)?.len();
        if length < MAGIC.len() as u64 {
            file.set_len(0).and_then(|()| file.write_all(MAGIC)).and_then(|()| file.sync_all()).map_err(failed)?;
            // The name of a new file survives once its directory is flushed.
            let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
            File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed)?;
            return Ok(Self { file, end: MAGIC.len() as u64, is_broken: false });
        }
        let mut magic = [0; MAGIC.len()];
        file.read_exact(&mut magic).map_err(failed)?;
        if magic != *MAGIC {
            return Err(Error::new(ErrorKind::Corrupt, "the file is not a log of rows; name another one"));
        }
        let mut log = Self { file, end: MAGIC.len() as u64, is_broken: false };
        while let Some((record, end)) = log.record(length)? {
            apply(&record, log.end + HEAD_BYTES as u64)?;
            log.end = end;
        }
        log.file.set_len(log.end).map_err(failed)?;
        Ok(log)
    }

    /// Reads the record at the present end; `None` after the last record, or at a torn one.
    fn record(&self, length: u64) -> Result<Option<(Vec<u8>, u64)>> {
        if length - self.end < HEAD_BYTES as u64 {
            return Ok(None);
        }
        let head = self.read(self.end, HEAD_BYTES as u64).map_err(failed)?;
        let number = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
        let start = self.end + HEAD_BYTES as u64;
        let Some(end) = start.checked_add(number(0)).filter(|end| *end <= length) else { return Ok(None) };
        let record = self.read(start, number(0)).map_err(failed)?;
        match checksum(&record) == number(8) {
            true => Ok(Some((record, end))),
            false if end == length => Ok(None),
            false => Err(failed(io::ErrorKind::InvalidData.into())),
        }
    }

    /// Appends a record and returns its offset once it survives a power failure.
    pub(crate) fn append(&mut self, record: &[u8]) -> io::Result<u64> {
        if self.is_broken {
            return Err(io::Error::other("an earlier write failed; open the store again"));
        }
        let mut bytes = Vec::with_capacity(HEAD_BYTES + record.len());
        bytes.extend((record.len() as u64).to_le_bytes());
        bytes.extend(checksum(record).to_le_bytes());
        bytes.extend(record);
        let written =
            self.file.seek(SeekFrom::Start(self.end)).and_then(|_| self.file.write_all(&bytes)).and_then(|()| self.file.sync_data());
        if let Err(cause) = written {
            // The state of the disk is unknown, so nothing may be appended.
            self.is_broken = true;
            return Err(cause);
        }
        let at = self.end + HEAD_BYTES as u64;
        self.end += bytes.len() as u64;
        Ok(at)
    }

    /// Reads bytes at an offset.
    pub(crate) fn read(&self, at: u64, length: u64) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
        self.file.read_exact_at(&mut bytes, at)?;
        Ok(bytes)
    }
}

/// FNV-1a: detects torn writes, not forgery.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}
