//! A directory listing two levels deep, in the format of Anthropic's memory tool and text editor.

use super::memory;
use super::render::{self, Page};
use serde_json::{Value, json};
use treehold_core::error::{ErrorKind, Result};
use treehold_core::ops::{Entry, EntryKind, GlobOptions, OnFailure, ReadOptions};
use treehold_core::path::VfsPath;
use treehold_tree::backend::Backend;

/// The size shown for directories, which have none here. Models know this size from ordinary disks.
const DIRECTORY_SIZE: &str = "4K";

/// Renders a directory as text and data. `shown` is its path as the caller wrote it. For memories, links that lead
/// outside are omitted.
///
/// Cost: one glob, and one read per link that it finds.
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

/// Returns the size of an entry and the suffix of its name. Returns `None` for entries other than files, directories
/// and links to one of these within the tree.
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

/// Formats a size like the helpers of Anthropic's SDKs: without a decimal if it is a whole number of its unit, else
/// with one.
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
    fn sizes_are_formatted_like_the_sdk_helpers() {
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
