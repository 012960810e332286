//! Overlays: a tree of pending changes over a lower tree, which stays unchanged until somebody decides about them.

mod applying;
mod changing;
mod differences;
mod discarding;
mod property;
mod races;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use treehold::backend::{
    OverlayApplied, OverlayApplyOptions, OverlayConflict, OverlayDiffOptions, OverlayDifference, OverlayDifferenceKind, OverlayStrategy,
};
#[cfg(all(feature = "filesystem", unix))]
use treehold::layer::{Fault, Layered};
use treehold::ops::{
    ApplyOptions, Capabilities, Change, Changed, GlobOptions, GrepOptions, LsOptions, Review, Sight, StatOptions, WriteMode,
};
use treehold::{Backend, BackendExt, ErrorKind, MemoryStore, Namespace, OverlayBackend, StateBackend, StoreBackend, VfsPath, VfsPathBuf};

fn path(text: &str) -> VfsPathBuf {
    VfsPathBuf::parse(text).unwrap()
}

fn rows() -> Arc<dyn Backend> {
    Arc::new(StoreBackend::new(Arc::new(MemoryStore::new()), Namespace::new(["overlay"]).unwrap()))
}

/// Returns a project, and an overlay over it.
async fn project() -> (Arc<StateBackend>, OverlayBackend) {
    let lower = Arc::new(StateBackend::new());
    for (file, content) in [
        ("/README.md", "a project\n"),
        ("/src/main.rs", "fn main() {}\n"),
        ("/src/lib.rs", "pub mod a;\n"),
        ("/src/a/one.rs", "one\n"),
        ("/src/a/two.rs", "two\n"),
        ("/docs/guide.md", "read me\n"),
    ] {
        lower.write(file, content).await.unwrap();
    }
    let overlay = OverlayBackend::new(lower.clone(), rows());
    (lower, overlay)
}

fn letter(kind: OverlayDifferenceKind) -> char {
    match kind {
        OverlayDifferenceKind::Added => '+',
        OverlayDifferenceKind::Changed => '~',
        OverlayDifferenceKind::Removed => '-',
    }
}

fn drawn(differences: &[OverlayDifference]) -> Vec<String> {
    let shown = |difference: &OverlayDifference| {
        let conflict = difference.conflict.map_or_else(String::new, |conflict| format!(" !{conflict}"));
        format!("{}{}{conflict}", letter(difference.kind), difference.path)
    };
    differences.iter().map(shown).collect()
}

async fn differences(overlay: &OverlayBackend) -> Vec<String> {
    drawn(&overlay.diff(&OverlayDiffOptions::new()).await.unwrap().differences)
}

/// Returns all files and directories of a tree, with content.
async fn whole(tree: &dyn Backend) -> Vec<(String, Option<String>)> {
    let mut all = Vec::new();
    for entry in tree.tree("/", 100, 10_000).await.unwrap().entries {
        let content = if entry.is_directory() { None } else { Some(tree.read_text(entry.path.as_str()).await.unwrap()) };
        all.push((entry.path.to_string(), content));
    }
    all
}

async fn applied(overlay: &OverlayBackend) -> OverlayApplied {
    overlay.apply_changes(&OverlayApplyOptions::new()).await.unwrap()
}

/// Asserts that only the turn is left in the upper tree.
async fn assert_is_empty(overlay: &OverlayBackend) {
    let left = overlay.upper().tree("/", 100, 10_000).await.unwrap().entries;
    let left: Vec<_> = left.iter().filter(|entry| !entry.is_directory()).map(|entry| entry.path.to_string()).collect();
    assert_eq!(left, ["/turn"]);
    assert_eq!(overlay.upper().ls(&path("/tree"), &LsOptions::new()).await.map_or(0, |listing| listing.entries.len()), 0);
}
