//! Removes unfinished files of an interrupted run that the engine would mistake for its own.
//!
//! Opening and creating a store write two files that the engine does not recognise as unfinished (sled 0.34.7):
//!
//! - `snap.LSN.generating`, the snapshot of the page table before it is renamed to `snap.LSN`. The engine reads the last file by name that
//!   starts with `snap.`, which is this one, and reports damage. The file is never needed: the previous snapshot is removed only after the
//!   rename, and a snapshot is only a shortcut to what the log holds.
//! - `conf`, written in two steps when a store is created. A partial one is refused as damage. It is never needed while the log is empty.
//!
//! All other files stay, so that real damage is still found: a `snap.LSN` that was renamed was complete and synced.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::Path;

/// The content of `conf` for the options that `open.rs` chooses, before four bytes of checksum.
const SETTINGS: &[u8] = b"segment_size: 524288\nuse_compression: false\nversion: 0.34\n";

/// The length of the checksum after the settings.
const CHECKSUM_BYTES: usize = 4;

/// Removes leftovers, unless another process has the store open. Returns whether it removed a snapshot.
pub(super) fn clear(directory: &Path) -> io::Result<bool> {
    clear_settings(directory)?;
    if !is_there(directory) {
        return Ok(false);
    }
    // The lock of the engine. While another process holds it, that process may be writing the snapshot.
    let log = match File::options().read(true).write(true).open(directory.join("db")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        log => log?,
    };
    match log.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(false),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    let mut cleared = false;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if is_unfinished(entry.file_name().as_encoded_bytes()) {
            fs::remove_file(entry.path())?;
            cleared = true;
        }
    }
    Ok(cleared)
}

/// Returns whether an unfinished snapshot is in the directory.
pub(super) fn is_there(directory: &Path) -> bool {
    let Ok(entries) = fs::read_dir(directory) else { return false };
    entries.flatten().any(|entry| is_unfinished(entry.file_name().as_encoded_bytes()))
}

/// Returns whether a name is that of an unfinished snapshot.
fn is_unfinished(name: &[u8]) -> bool {
    let lsn = name.strip_prefix(b"snap.").and_then(|rest| rest.strip_suffix(b".generating"));
    lsn.is_some_and(|lsn| lsn.len() == 16 && lsn.iter().all(u8::is_ascii_hexdigit))
}

/// Removes settings that were cut off while the store was created. Two processes that create it concurrently write the same.
fn clear_settings(directory: &Path) -> io::Result<()> {
    let is_absent = |error: &io::Error| matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::IsADirectory);
    let path = directory.join("conf");
    let settings = match fs::read(&path) {
        Err(error) if is_absent(&error) => return Ok(()),
        settings => settings?,
    };
    let log_bytes = match fs::metadata(directory.join("db")) {
        Err(error) if is_absent(&error) => 0,
        metadata => metadata?.len(),
    };
    let is_cut = settings.len() < SETTINGS.len() + CHECKSUM_BYTES
        && settings[..settings.len().min(SETTINGS.len())] == SETTINGS[..settings.len().min(SETTINGS.len())];
    if is_cut && log_bytes == 0 { fs::remove_file(&path) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::super::{SledOptions, open};
    use super::*;
    use std::time::Duration;

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(directory)
            .expect("a directory")
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
            .collect();
        names.sort();
        names
    }

    /// Waits as long as the threads of a store that was just closed need on a slow machine.
    fn options(directory: &tempfile::TempDir) -> SledOptions {
        SledOptions::new(directory.path()).with_lock_timeout(Duration::from_secs(60))
    }

    fn created() -> tempfile::TempDir {
        let directory = tempfile::tempdir().expect("a directory");
        drop(open::open(&options(&directory)).expect("created"));
        directory
    }

    #[test]
    fn expected_settings_match_those_written_by_the_engine() {
        let directory = created();
        let settings = fs::read(directory.path().join("conf")).expect("settings");
        assert_eq!(settings.len(), SETTINGS.len() + CHECKSUM_BYTES);
        assert!(settings.starts_with(SETTINGS), "{}", String::from_utf8_lossy(&settings));
    }

    #[test]
    fn store_opens_after_a_snapshot_was_truncated_at_any_length() {
        let directory = created();
        drop(open::open(&options(&directory)).expect("opened"));
        let snapshot = names(directory.path()).into_iter().rfind(|name| name.starts_with("snap.")).expect("a snapshot");
        let whole = fs::read(directory.path().join(&snapshot)).expect("read");
        for cut in [0, 1, 12, 13, whole.len() - 1, whole.len()] {
            // The engine would read the one with the highest position.
            for name in [format!("{snapshot}.generating"), "snap.00000FFFFFFFFFFF.generating".to_owned()] {
                fs::write(directory.path().join(&name), &whole[..cut]).expect("written");
                let opened = open::open(&options(&directory)).expect("opened");
                assert!(!is_there(directory.path()), "{name} cut to {cut}");
                drop(opened);
            }
        }
    }

    #[test]
    fn store_is_created_after_its_settings_were_truncated_at_any_length() {
        for cut in 0..SETTINGS.len() + CHECKSUM_BYTES {
            let directory = tempfile::tempdir().expect("a directory");
            fs::create_dir(directory.path().join("blobs")).expect("created");
            let settings = [SETTINGS, &[0; CHECKSUM_BYTES]].concat();
            fs::write(directory.path().join("conf"), &settings[..cut]).expect("written");
            clear(directory.path()).expect("cleared");
            assert_eq!(names(directory.path()), ["blobs"], "cut to {cut}");
        }
        let directory = tempfile::tempdir().expect("a directory");
        fs::write(directory.path().join("conf"), &SETTINGS[..30]).expect("written");
        fs::create_dir(directory.path().join("blobs")).expect("created");
        drop(open::open(&options(&directory)).expect("created"));
    }

    #[test]
    fn damaged_and_foreign_files_are_kept() {
        let directory = created();
        for name in ["snap.generating", "snap.XYZ.generating", "notes.generating", "snap.0000000000000001.generating.bak"] {
            assert!(!is_unfinished(name.as_bytes()), "{name}");
        }
        // Once the log has rows, incomplete settings count as damaged.
        fs::write(directory.path().join("conf"), &SETTINGS[..30]).expect("written");
        open::open(&options(&directory)).map(drop).expect_err("damaged");
        assert_eq!(fs::read(directory.path().join("conf")).expect("read"), &SETTINGS[..30]);

        let directory = created();
        drop(open::open(&options(&directory)).expect("opened"));
        let snapshot = names(directory.path()).into_iter().rfind(|name| name.starts_with("snap.")).expect("a snapshot");
        let whole = fs::read(directory.path().join(&snapshot)).expect("read");
        fs::write(directory.path().join(&snapshot), &whole[..whole.len() - 1]).expect("written");
        let error = open::open(&options(&directory)).map(drop).expect_err("a snapshot is damaged");
        assert_eq!(error.kind(), treehold_core::error::ErrorKind::Corrupt);
    }

    #[test]
    fn unfinished_snapshot_is_kept_while_the_store_is_open() {
        let directory = created();
        let opened = open::open(&options(&directory)).expect("opened");
        let name = "snap.00000FFFFFFFFFFF.generating";
        fs::write(directory.path().join(name), b"half").expect("written");
        assert!(!clear(directory.path()).expect("the directory can be read"));
        let error = open::open(&options(&directory).with_lock_timeout(Duration::ZERO)).map(drop).expect_err("it is open");
        assert_eq!(error.kind(), treehold_core::error::ErrorKind::Unavailable);
        assert!(is_there(directory.path()));
        drop(opened);
        drop(open::open(&options(&directory)).expect("opened"));
        assert!(!is_there(directory.path()));
    }
}
