//! Mirrors of a tree in a host directory.

#![cfg(all(feature = "filesystem", unix))]
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "mirror/changes.rs"]
mod changes;
#[path = "mirror/directories.rs"]
mod directories;
#[path = "mirror/ends.rs"]
mod ends;
#[path = "mirror/exclusions.rs"]
mod exclusions;
#[path = "mirror/existing.rs"]
mod existing;
#[path = "mirror/listings.rs"]
mod listings;
#[path = "mirror/other_trees.rs"]
mod other_trees;
#[path = "mirror/property.rs"]
mod property;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use treehold_core::ops::{GlobOptions, ReadOptions};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_tree::backend::{Backend, BackendExt, StateBackend};
use treehold_tree::checkpoint::MergeConflictKind;
use treehold_tree::mirror::{Mirror, MirrorAction, MirrorEvent, MirrorOptions, MirrorReport, MirrorSide};

struct Place {
    parent: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self { parent: tempfile::tempdir().unwrap() }
    }

    fn directory(&self) -> PathBuf {
        self.parent.path().join("sandbox")
    }

    fn at(&self, path: &str) -> PathBuf {
        self.directory().join(path.trim_start_matches('/'))
    }

    fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.at(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        if let Some(parent) = self.at(path).parent() {
            std::fs::create_dir_all(parent).unwrap();
        }
        std::fs::write(self.at(path), content).unwrap();
    }

    fn has(&self, path: &str) -> bool {
        std::fs::symlink_metadata(self.at(path)).is_ok()
    }

    /// The names beside the directory.
    fn beside(&self) -> Vec<String> {
        std::fs::read_dir(self.parent.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

/// A mirror that compares only when a test calls it.
fn still() -> MirrorOptions {
    let never = Duration::from_secs(1 << 20);
    MirrorOptions::new().with_look_every(never).with_validate_every(never)
}

fn written_back() -> MirrorOptions {
    still().with_write_back(true)
}

async fn tree_of(files: &[(&str, &str)]) -> Arc<StateBackend> {
    let tree = Arc::new(StateBackend::new());
    for (path, content) in files {
        tree.write(path, content.to_string()).await.unwrap();
    }
    tree
}

async fn open(tree: &Arc<StateBackend>, place: &Place, options: MirrorOptions) -> Mirror {
    Mirror::open(tree.clone(), None, place.directory(), options).await.unwrap()
}

fn path(text: &str) -> VfsPathBuf {
    VfsPathBuf::parse(text).unwrap()
}

/// All files on the host, with their content.
fn host_files(directory: &Path) -> BTreeMap<String, String> {
    fn walk(root: &Path, directory: &Path, files: &mut BTreeMap<String, String>) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                walk(root, &entry.path(), files);
            } else {
                let name = format!("/{}", entry.path().strip_prefix(root).unwrap().display());
                files.insert(name, String::from_utf8_lossy(&std::fs::read(entry.path()).unwrap()).into_owned());
            }
        }
    }
    let mut files = BTreeMap::new();
    walk(directory, directory, &mut files);
    files
}

/// All files of a tree, with their content.
async fn tree_files(tree: &dyn Backend) -> BTreeMap<String, String> {
    let found = tree.glob(VfsPath::ROOT, &GlobOptions::new("**/*").with_hidden(true)).await.unwrap();
    let mut files = BTreeMap::new();
    for entry in found.entries.iter().filter(|entry| !entry.is_directory()) {
        files.insert(entry.path.to_string(), tree.read(&entry.path, &ReadOptions::new()).await.unwrap().text_lossy().into_owned());
    }
    files
}

fn conflicts(report: &MirrorReport) -> Vec<(&str, MergeConflictKind, MirrorSide)> {
    report.conflicts.iter().map(|event| (event.path.as_str(), event.conflict.unwrap(), event.kept.unwrap())).collect()
}

fn failures(report: &MirrorReport) -> Vec<(&str, &str)> {
    report.failures.iter().map(|event| (event.path.as_str(), event.error.as_ref().unwrap().code.as_str())).collect()
}

/// Waits for an event. The mirror's own task makes it.
async fn event(events: &mut tokio::sync::mpsc::UnboundedReceiver<MirrorEvent>, action: MirrorAction, at: &str) {
    loop {
        let event = events.recv().await.unwrap();
        if event.action == action && event.path.as_str() == at {
            return;
        }
    }
}
