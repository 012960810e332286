//! Reads of one file, without more of its body in memory than is asked for.
//!
//! The first part of a body comes with its row, in one round trip, and most files end with it. Of a longer file a range of bytes is read as
//! it is asked for; a window of lines is cut while all of the body passes by, part by part.

use super::rows::{self, file_key};
use super::{StoreBackend, pause};
use crate::backend::Backend;
use crate::error::{Error, ErrorKind, Result};
use crate::file::{FileRecord, PART_BYTES, part_bytes};
use crate::ops::{FileRead, ReadOptions, ReadRange, Window};
use crate::path::VfsPath;
use crate::store::{Item, ItemPart};
use crate::text::{self, LineCutter};
use bytes::Bytes;
use std::ops::Range;

/// How often a window of lines is begun again when the file was changed meanwhile.
const ATTEMPTS_MAX: u32 = 16;

/// Reads what `options` ask for of a file.
///
/// Cost: one round trip for up to 4 MiB and for a range of bytes. A larger file that is asked for whole takes a second one, and a window of its lines
/// one for each 4 to 16 MiB of it.
pub(super) async fn read(tree: &StoreBackend, path: &VfsPath, options: &ReadOptions) -> Result<FileRead> {
    let first = match options.range {
        ReadRange::Bytes { offset, limit } => offset..offset.saturating_add(limit.min(options.bytes_max)),
        ReadRange::Whole | ReadRange::Lines { .. } => 0..PART_BYTES,
    };
    for attempt in 0..ATTEMPTS_MAX {
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
        // Parts of two versions are no file.
        pause(attempt).await;
    }
    let message = format!("`{path}` was changed {ATTEMPTS_MAX} times while it was read; read it again, or read a range of bytes");
    Err(Error::new(ErrorKind::Unavailable, message).at(path))
}

/// Cuts a window of lines out of a body of which the first part was read; none when the file has changed since.
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

/// Returns the record of a file, once its body is as long as it says.
fn checked(path: &VfsPath, part: &ItemPart) -> Result<FileRecord> {
    let record = rows::record(path, &part.item)?;
    if record.size_bytes == part.value_bytes { Ok(record) } else { Err(rows::torn(path, &record, part.value_bytes)) }
}

/// Makes the error of a path where no file is.
async fn absent(tree: &StoreBackend, path: &VfsPath) -> Error {
    match tree.stat(path).await {
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
