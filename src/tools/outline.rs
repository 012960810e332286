//! A directory two levels deep, as Anthropic's memory tool and text editor show it.

use super::memory;
use super::render::{self, Page};
use crate::backend::Backend;
use crate::error::{ErrorKind, Result};
use crate::ops::{Entry, EntryKind, GlobOptions, OnFailure, ReadOptions};
use crate::path::VfsPath;
use serde_json::{Value, json};

/// A directory has no size here. It is shown with the one that it takes on a usual disk, which is what models were shown.
const DIRECTORY_SIZE: &str = "4K";

/// Puts a directory into words and data; `shown` is its path as the caller wrote it. Of memories, links that lead out of there are left out.
///
/// Cost: one glob, and one look at each link that it finds.
///
/// # Errors
/// Those of [`Backend::glob`].
pub(super) async fn outline(
    backend: &dyn Backend,
    path: &VfsPath,
    shown: &str,
    tool: &'static str,
    is_memory: bool,
) -> Result<(String, Value)> {
    let options = GlobOptions::new("/{*,*/*}").with_directories(true).with_ignored(true).with_on_failure(OnFailure::Partial);
    let found = backend.glob(path, &options).await?;
    let mut page = Page::new(tool);
    let _ = page.push(&format!(
        "Here're the files and directories up to 2 levels deep in {shown}, excluding hidden items and node_modules:\n{DIRECTORY_SIZE}\t{shown}"
    ));
    let base = shown.trim_end_matches('/');
    let (mut entries, mut full) = (Vec::new(), false);
    for entry in &found.entries {
        let Some(name) = entry.path.strip_prefix(path).filter(|name| name.segments().all(|segment| segment != "node_modules")) else {
            continue;
        };
        if is_memory && entry.kind == EntryKind::Symlink && memory::placed(backend, entry.path.as_str(), true).await.is_err() {
            continue;
        }
        let Some((size, mark)) = sized(backend, entry).await else { continue };
        if !page.push(&format!("\n{size}\t{base}{name}{mark}")) {
            full = true;
            break;
        }
        entries.push(json!({"path": entry.path, "kind": entry.kind, "size_bytes": entry.size_bytes}));
    }
    let is_cut = full || found.truncated.is_some();
    if is_cut {
        page.note(format!("{} shown, there are more; view a directory beneath it", render::counted(entries.len(), "entry")));
    }
    page.note_failures(&found.failures, found.failures.len());
    Ok((page.finish(), json!({"path": path, "entries": entries, "is_cut": is_cut})))
}

/// Returns the size of an entry and what its name ends with; none for what is neither a file nor a directory, and for a link that
/// does not lead to one within the tree.
async fn sized(backend: &dyn Backend, entry: &Entry) -> Option<(String, &'static str)> {
    match entry.kind {
        EntryKind::Directory => Some((DIRECTORY_SIZE.to_owned(), "/")),
        EntryKind::File => Some((size(entry.size_bytes), "")),
        EntryKind::Symlink => match backend.read(&entry.path, &ReadOptions::bytes(0, 0)).await {
            Ok(read) => Some((size(read.size_bytes), "")),
            Err(error) if error.kind() == ErrorKind::IsDirectory => Some((DIRECTORY_SIZE.to_owned(), "/")),
            Err(_) => None,
        },
        EntryKind::Other => None,
    }
}

/// Writes a size as the helpers of the SDKs do: a whole number of its unit without a decimal, any other with one.
fn size(bytes: u64) -> String {
    let unit = (bytes.checked_ilog2().unwrap_or(0) / 10).min(3);
    let value = bytes as f64 / 1024_f64.powi(unit as i32);
    let letter = ["B", "K", "M", "G"][unit as usize];
    if value.fract() == 0.0 { format!("{value:.0}{letter}") } else { format!("{value:.1}{letter}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_written_as_the_helpers_do() {
        for (bytes, text) in [
            (0, "0B"),
            (1, "1B"),
            (1023, "1023B"),
            (1024, "1K"),
            (1025, "1.0K"),
            (5632, "5.5K"),
            ((1 << 20) - 1, "1024.0K"),
            (1 << 20, "1M"),
            (3 << 29, "1.5G"),
            (5 << 40, "5120G"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }
}
