//! Reads of one file that keep no more of its body in memory than necessary.
//!
//! The first part of a body comes with its row in one round trip, which is enough for most files. From a longer file, a byte
//! range is read directly; a window of lines is cut while the whole body streams through in parts.

use super::StoreBackend;
use crate::backend::Backend;
use crate::rows::{self, file_key};
use bytes::Bytes;
use std::ops::Range;
use treehold_core::backoff::LostRaces;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::file::{FileRecord, PART_BYTES, part_bytes};
use treehold_core::ops::{FileRead, ReadOptions, ReadRange, StatOptions, Window};
use treehold_core::path::VfsPath;
use treehold_core::text::{self, LineCutter};
use treehold_store::{Item, ItemPart};

/// How often a read is started. Each may transfer the whole file.
const STARTS_MAX: u32 = 16;

/// Reads the part of a file that `options` select.
///
/// Cost: one round trip for a byte range and for files of up to 4 MiB. For a larger file, one more to read it whole, or one for
/// each 4 to 16 MiB to cut a window of lines.
pub(super) async fn read(tree: &StoreBackend, path: &VfsPath, options: &ReadOptions) -> Result<FileRead> {
    let first = match options.range {
        ReadRange::Bytes { offset, limit } => offset..offset.saturating_add(limit.min(options.bytes_max)),
        ReadRange::Whole | ReadRange::Lines { .. } => 0..PART_BYTES,
    };
    let mut races = LostRaces::at_most(STARTS_MAX);
    loop {
        let Some(part) = get(tree, path, first.clone()).await? else { return Err(absent(tree, path).await) };
        let record = checked(path, &part)?;
        let cut = match options.range {
            ReadRange::Bytes { offset, .. } => {
                text::checked_offset(offset, part.value_bytes).map_err(|error| error.at(path))?;
                Some((part.item.value.clone(), None))
            }
            _ if part.is_whole() => Some(text::cut(&part.item.value, options).map_err(|error| error.at(path))?),
            ReadRange::Whole => {
                text::check_whole(part.value_bytes, options).map_err(|error| error.at(path))?;
                let whole = get(tree, path, 0..part.value_bytes).await?;
                whole.filter(|whole| whole.item.version == part.item.version).map(|whole| (whole.item.value, None))
            }
            ReadRange::Lines { offset, limit } => {
                let cutter = LineCutter::new(offset, limit, options.bytes_max);
                lines(tree, path, &part, cutter).await?.map(|(content, window)| (content, Some(window)))
            }
        };
        if let Some((content, window)) = cut {
            return Ok(file(&record, &part.item, content, window));
        }
        // Parts of different versions do not make a file.
        if !races.lost().await {
            break;
        }
    }
    let message = format!("`{path}` was changed {STARTS_MAX} times while it was read; read it again, or read a range of bytes");
    Err(Error::new(ErrorKind::Unavailable, message).at(path))
}

/// Cuts a window of lines out of a body whose first part was read. Returns `None` if the file has changed since.
async fn lines(tree: &StoreBackend, path: &VfsPath, first: &ItemPart, mut cutter: LineCutter) -> Result<Option<(Bytes, Window)>> {
    cutter.push(&first.item.value).map_err(|error| error.at(path))?;
    let mut at = first.item.value.len() as u64;
    while at < first.value_bytes {
        let Some(part) = get(tree, path, at..at + part_bytes(first.value_bytes)).await? else { return Ok(None) };
        if part.item.version != first.item.version || part.item.value.is_empty() {
            return Ok(None);
        }
        cutter.push(&part.item.value).map_err(|error| error.at(path))?;
        at += part.item.value.len() as u64;
    }
    cutter.finish().map(Some).map_err(|error| error.at(path))
}

async fn get(tree: &StoreBackend, path: &VfsPath, range: Range<u64>) -> Result<Option<ItemPart>> {
    tree.store.get_part(&tree.namespace, &file_key(path), range).await.map_err(|error| error.at(path))
}

/// Returns the record of a file after checking it against the length of the body.
fn checked(path: &VfsPath, part: &ItemPart) -> Result<FileRecord> {
    let record = rows::record(path, &part.item)?;
    if record.size_bytes == part.value_bytes { Ok(record) } else { Err(rows::size_mismatch(path, &record, part.value_bytes)) }
}

/// Creates the error for a path without a file.
async fn absent(tree: &StoreBackend, path: &VfsPath) -> Error {
    match tree.stat(path, &StatOptions::new()).await {
        Ok(entry) if entry.is_directory() => Error::is_directory(path),
        Ok(_) => Error::not_found(path),
        Err(error) => error,
    }
}

fn file(record: &FileRecord, item: &Item, content: Bytes, window: Option<Window>) -> FileRead {
    let mut read = FileRead::new(content, item.version, Some(rows::modified_at(record, item)));
    read.size_bytes = record.size_bytes;
    read.window = window;
    read
}
