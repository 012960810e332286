//! Lists the mirrored tree.

use super::plan::TreeNode;
use crate::backend::Backend;
use futures::stream::{self, StreamExt};
use std::collections::BTreeMap;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{Entry, EntryKind, LsOptions, OnFailure, StatOptions};
use treehold_core::path::{VfsPath, VfsPathBuf};

/// How many entries of a directory are listed at once.
const LS_LIMIT: usize = 1_000;

/// The files and directories of a tree at and beneath a path, except its root.
#[derive(Debug, Default)]
pub(super) struct TreeScan {
    pub(super) nodes: BTreeMap<VfsPathBuf, TreeNode>,
    /// Paths with unknown content: they could not be read, or cannot be mirrored.
    pub(super) unknown: Vec<(VfsPathBuf, Error)>,
}

/// Lists a tree at and beneath a path.
///
/// Cost: a `stat`, and the listings of all directories, `parallel` at once.
///
/// # Errors
/// [`TooLarge`](ErrorKind::TooLarge) for more than `nodes_max` files and directories.
pub(super) async fn scan(tree: &dyn Backend, base: &VfsPath, nodes_max: usize, parallel: usize) -> Result<TreeScan> {
    let mut scan = TreeScan::default();
    let mut directories = Vec::new();
    if base.is_root() {
        directories.push(base.to_owned());
    } else {
        match tree.stat(base, &StatOptions::new()).await {
            Ok(entry) => scan.add(entry, &mut directories),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            Err(error) => scan.unknown.push((base.to_owned(), error)),
        }
    }
    while !directories.is_empty() {
        let listed = stream::iter(std::mem::take(&mut directories)).map(|directory| async {
            let listed = list(tree, &directory, nodes_max).await;
            (directory, listed)
        });
        let mut listed = listed.buffer_unordered(parallel);
        while let Some((directory, listed)) = listed.next().await {
            match listed {
                Ok((entries, failures)) => {
                    entries.into_iter().for_each(|entry| scan.add(entry, &mut directories));
                    scan.unknown.extend(failures);
                }
                // It was removed meanwhile.
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) && !directory.is_root() => {
                    scan.nodes.remove(&directory);
                }
                Err(error) => scan.unknown.push((directory, error)),
            }
            if scan.nodes.len() > nodes_max {
                let message = format!("the tree has over {nodes_max} files and directories; mirror a part of it, or raise the limit");
                return Err(Error::new(ErrorKind::TooLarge, message).at(base));
            }
        }
    }
    Ok(scan)
}

type Listed = (Vec<Entry>, Vec<(VfsPathBuf, Error)>);

async fn list(tree: &dyn Backend, directory: &VfsPath, nodes_max: usize) -> Result<Listed> {
    let (mut entries, mut failures) = (Vec::new(), Vec::new());
    let mut options = LsOptions::new().with_limit(LS_LIMIT).with_on_failure(OnFailure::Partial);
    loop {
        let page = tree.ls(directory, &options).await?;
        entries.extend(page.entries);
        failures.extend(page.failures.iter().map(|failure| (failure.path.clone(), Error::from(&failure.error))));
        match page.truncated {
            Some(truncation) if entries.len() <= nodes_max => {
                options.start_after = Some(truncation.next_after(options.start_after.as_ref())?);
            }
            _ => return Ok((entries, failures)),
        }
    }
}

impl TreeScan {
    fn add(&mut self, entry: Entry, directories: &mut Vec<VfsPathBuf>) {
        match entry.kind {
            EntryKind::File => {
                let node = TreeNode::File { version: entry.version, size_bytes: entry.size_bytes };
                self.nodes.insert(entry.path, node);
            }
            EntryKind::Directory => {
                directories.push(entry.path.clone());
                self.nodes.insert(entry.path, TreeNode::Directory);
            }
            EntryKind::Symlink | EntryKind::Other => {
                let message = format!("`{}` is a {} of the tree, which is not mirrored", entry.path, entry.kind);
                let error = Error::unsupported(message).at(&entry.path);
                self.unknown.push((entry.path, error));
            }
        }
    }
}
