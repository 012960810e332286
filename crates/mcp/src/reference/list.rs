//! Listing and searching: directories, trees, names by pattern, and metadata of one path.

use super::arguments::Arguments;
use super::minimatch::{self, Pattern};
use super::names;
use super::paths::Allowed;
use super::{Answer, Refused, failed, text};
use futures::future::BoxFuture;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::Serialize;
use treehold_core::ops::{Entry, EntryKind, LsOptions, OnFailure, StatOptions};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_tree::backend::Backend;

/// The size that host file systems report for a directory.
const DIRECTORY_BYTES: u64 = 4096;

/// The most entries of a whole tree. A larger one is an error, not truncated.
const ENTRIES_MAX: usize = 100_000;

async fn children(tree: &dyn Backend, path: &VfsPath) -> Result<Vec<Entry>, Refused> {
    let mut options = LsOptions::new().with_on_failure(OnFailure::Partial);
    let mut entries = Vec::new();
    loop {
        let listing = tree.ls(path, &options).await.map_err(|error| failed(&error, "scandir", path))?;
        entries.extend(listing.entries);
        match listing.truncated {
            Some(truncation) if entries.len() < ENTRIES_MAX => options.start_after = Some(truncation.cursor),
            Some(_) => return Err(Refused(format!("'{path}' holds over {ENTRIES_MAX} entries"))),
            None => return Ok(entries),
        }
    }
}

fn marker(entry: &Entry) -> &'static str {
    if entry.is_directory() { "[DIR]" } else { "[FILE]" }
}

pub(super) async fn directory(tree: &dyn Backend, allowed: &Allowed, arguments: &Arguments) -> Answer {
    let path = allowed.path(tree, arguments.text("path")).await?;
    let lines: Vec<String> = children(tree, &path).await?.iter().map(|entry| format!("{} {}", marker(entry), entry.name())).collect();
    Ok(vec![text(lines.join("\n"))])
}

pub(super) async fn directory_with_sizes(tree: &dyn Backend, allowed: &Allowed, arguments: &Arguments) -> Answer {
    let path = allowed.path(tree, arguments.text("path")).await?;
    let mut entries = children(tree, &path).await?;
    let bytes = |entry: &Entry| if entry.is_directory() { DIRECTORY_BYTES } else { entry.size_bytes };
    if arguments.text("sortBy") == "size" {
        entries.sort_by_key(|entry| std::cmp::Reverse(bytes(entry)));
    } else {
        entries.sort_by(|one, other| names::compare(one.name(), other.name()));
    }
    let mut lines: Vec<String> = entries
        .iter()
        .map(|entry| {
            let size = if entry.is_directory() { String::new() } else { format!("{:>10}", size(entry.size_bytes)) };
            // Names are padded by UTF-16 code units, as the reference server counts them.
            let padding = " ".repeat(30_usize.saturating_sub(entry.name().encode_utf16().count()));
            format!("{} {}{padding} {size}", marker(entry), entry.name())
        })
        .collect();
    let files = || entries.iter().filter(|entry| !entry.is_directory());
    let total: u64 = files().map(|entry| entry.size_bytes).sum();
    lines.push(String::new());
    lines.push(format!("Total: {} files, {} directories", files().count(), entries.len() - files().count()));
    lines.push(format!("Combined size: {}", size(total)));
    Ok(vec![text(lines.join("\n"))])
}

/// Formats a size: whole bytes, or a larger unit with two decimals.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KB", "MB", "GB", "TB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.2} {}", UNITS[unit])
}

/// A node of the tree in JSON. The order of the fields matters.
#[derive(Debug, Serialize)]
struct Node {
    name: String,
    r#type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    children: Option<Vec<Node>>,
}

pub(super) async fn directory_tree(tree: &dyn Backend, allowed: &Allowed, arguments: &Arguments) -> Answer {
    let path = allowed.path(tree, arguments.text("path")).await?;
    let mut excluded = Vec::new();
    for pattern in arguments.texts("excludePatterns") {
        excluded.push(Pattern::new(pattern)?);
        // A pattern without a star excludes the name at any depth, with everything beneath.
        if !pattern.contains('*') {
            excluded.push(Pattern::new(&format!("**/{pattern}"))?);
            excluded.push(Pattern::new(&format!("**/{pattern}/**"))?);
        }
    }
    let mut left = ENTRIES_MAX;
    let nodes = nodes(tree, &path, &path, &excluded, &mut left).await?;
    let shown = serde_json::to_string_pretty(&nodes).map_err(|error| Refused(error.to_string()))?;
    Ok(vec![text(shown)])
}

fn nodes<'a>(
    tree: &'a dyn Backend,
    root: &'a VfsPath,
    path: &'a VfsPath,
    excluded: &'a [Pattern],
    left: &'a mut usize,
) -> BoxFuture<'a, Result<Vec<Node>, Refused>> {
    Box::pin(async move {
        let mut shown = Vec::new();
        for entry in children(tree, path).await? {
            let relative = beneath(&entry.path, root);
            if excluded.iter().any(|pattern| pattern.matches(relative)) {
                continue;
            }
            *left = left.checked_sub(1).ok_or_else(|| Refused(format!("'{root}' holds over {ENTRIES_MAX} entries")))?;
            let is_directory = entry.is_directory();
            let children = match is_directory {
                true => Some(nodes(tree, root, &entry.path, excluded, left).await?),
                false => None,
            };
            shown.push(Node { name: entry.name().to_owned(), r#type: if is_directory { "directory" } else { "file" }, children });
        }
        Ok(shown)
    })
}

fn beneath<'a>(path: &'a VfsPath, root: &VfsPath) -> &'a str {
    path.strip_prefix(root).map_or("", |rest| rest.as_str().trim_start_matches('/'))
}

pub(super) async fn search_files(tree: &dyn Backend, allowed: &Allowed, arguments: &Arguments) -> Answer {
    let path = allowed.path(tree, arguments.text("path")).await?;
    let wanted = Pattern::new(arguments.text("pattern"))?;
    let excluded = minimatch::all(&arguments.texts("excludePatterns"))?;
    let mut found = Vec::new();
    let mut looked_at = 0;
    let mut entries = children(tree, &path).await?;
    entries.reverse();
    // The next entry is the last on the stack. Children are pushed in reverse, so the walk is in name order.
    while let Some(entry) = entries.pop() {
        looked_at += 1;
        if looked_at > ENTRIES_MAX {
            return Err(Refused(format!("'{path}' holds over {ENTRIES_MAX} entries")));
        }
        let relative = beneath(&entry.path, &path);
        if excluded.iter().any(|pattern| pattern.matches(relative)) {
            continue;
        }
        if entry.is_directory() {
            // Skip directories that cannot be listed.
            let mut children = children(tree, &entry.path).await.unwrap_or_default();
            children.reverse();
            entries.extend(children);
        }
        // The reference server skips links that lead out of the allowed directories.
        let is_reached = entry.kind != EntryKind::Symlink || allowed.path(tree, entry.path.as_str()).await.is_ok();
        if is_reached && wanted.matches(relative) {
            found.push(entry.path);
        }
    }
    let lines: Vec<&str> = found.iter().map(|path: &VfsPathBuf| path.as_str()).collect();
    Ok(vec![text(if lines.is_empty() { "No matches found".to_owned() } else { lines.join("\n") })])
}

pub(super) async fn file_info(tree: &dyn Backend, allowed: &Allowed, arguments: &Arguments) -> Answer {
    let path = allowed.path(tree, arguments.text("path")).await?;
    let entry = tree.stat(&path, &StatOptions::new()).await.map_err(|error| failed(&error, "stat", &path))?;
    let is_directory = entry.is_directory();
    let modified = entry.modified_at.unwrap_or(Timestamp::UNIX_EPOCH);
    let created = entry.created_at.unwrap_or(modified);
    let facts = [
        ("size", if is_directory { DIRECTORY_BYTES } else { entry.size_bytes }.to_string()),
        ("created", date(created)),
        ("modified", date(modified)),
        ("accessed", date(modified)),
        ("isDirectory", is_directory.to_string()),
        ("isFile", (!is_directory).to_string()),
        ("permissions", if is_directory { "755" } else { "644" }.to_owned()),
    ];
    let lines: Vec<String> = facts.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    Ok(vec![text(lines.join("\n"))])
}

/// Formats a time as JavaScript does, in UTC.
fn date(time: Timestamp) -> String {
    time.to_zoned(TimeZone::UTC).strftime("%a %b %d %Y %H:%M:%S GMT+0000 (Coordinated Universal Time)").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_dates_are_formatted_like_the_reference_server() {
        assert_eq!([0, 1023, 1024, 1536, 1 << 20, 5 << 40].map(size), ["0 B", "1023 B", "1.00 KB", "1.50 KB", "1.00 MB", "5.00 TB"]);
        let time = Timestamp::from_second(1_700_000_000).expect("a time");
        assert_eq!(date(time), "Tue Nov 14 2023 22:13:20 GMT+0000 (Coordinated Universal Time)");
    }
}
