//! The paths that an overlay changed beneath a directory, collected for one search.

use super::OverlayBackend;
use super::merge::{Pages, absent, of_upper};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use treehold_core::error::Result;
use treehold_core::ops::{Entry, PathGuard};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::search::ignore::IGNORE_FILE_NAMES;

/// The most changed paths that a search collects. With more, the merged tree is walked, because most of it may be changed.
const PATHS_MAX: usize = 100_000;

/// The paths that do not show exactly what the lower tree has.
#[derive(Debug, Default)]
pub(super) struct Touched {
    /// The directories of the upper tree; nothing was changed beneath others.
    pub(super) directories: HashSet<VfsPathBuf>,
    /// The upper tree's children of each of them, as entries of the overlay, in order.
    pub(super) children: HashMap<VfsPathBuf, Vec<Entry>>,
    names: Arc<Names>,
}

#[derive(Debug, Default)]
struct Names {
    /// The paths of the upper tree, and whether a directory is there.
    upper: HashMap<VfsPathBuf, bool>,
    /// The paths with marks.
    marked: HashSet<VfsPathBuf>,
}

impl Touched {
    /// Collects, as of one moment, what was changed at and beneath a directory that the lower tree shows. Returns `None` if the lower tree
    /// does not show it, if ignore files apply and the lower tree's differ from the merged tree's, or if over [`PATHS_MAX`] paths changed.
    pub(super) async fn beneath(overlay: &OverlayBackend, path: &VfsPath, wants_ignore_files: bool) -> Result<Option<Self>> {
        overlay.steady(|| Box::pin(Self::gather(overlay, path, wants_ignore_files))).await
    }

    async fn gather(overlay: &OverlayBackend, path: &VfsPath, wants_ignore_files: bool) -> Result<Option<Self>> {
        let look = overlay.look(path).await?;
        if !look.shows_lower() || !look.lower.as_ref().is_some_and(Entry::is_directory) {
            return Ok(None);
        }
        if wants_ignore_files {
            for above in path.ancestors() {
                for name in IGNORE_FILE_NAMES {
                    let Ok(file) = above.child(name) else { continue };
                    let look = overlay.look(&file).await?;
                    if look.upper.is_some() || look.marked {
                        return Ok(None);
                    }
                }
            }
        }
        let mut touched = Self::default();
        let mut names = Names::default();
        let mut stack = Vec::new();
        if look.upper.as_ref().is_some_and(Entry::is_directory) {
            stack.push(path.to_owned());
        }
        while let Some(directory) = stack.pop() {
            let marked = overlay.marked_names(&directory).await?;
            let mut children = Vec::new();
            let mut pages = Pages::new(&overlay.tree, &directory, None);
            while let Some(entry) = absent(pages.next().await)?.flatten() {
                if entry.is_directory() {
                    stack.push(entry.path.clone());
                }
                names.upper.insert(entry.path.clone(), entry.is_directory());
                // A search for lines needs no times; one for paths shows them.
                children.push(if marked.contains(entry.name()) { overlay.shown_upper(entry, true).await? } else { of_upper(entry) });
            }
            let is_ignore_file = |name: &str| IGNORE_FILE_NAMES.contains(&name);
            let changes_rules = children.iter().map(Entry::name).chain(marked.iter().map(String::as_str)).any(is_ignore_file);
            if (changes_rules && wants_ignore_files) || names.upper.len() + names.marked.len() > PATHS_MAX {
                return Ok(None);
            }
            for name in marked {
                names.marked.insert(directory.child(&name)?);
            }
            touched.directories.insert(directory.clone());
            touched.children.insert(directory, children);
        }
        touched.names = Arc::new(names);
        Ok(Some(touched))
    }

    /// Returns whether nothing of the lower tree shows at a path.
    pub(super) fn is_hidden(&self, path: &VfsPath) -> bool {
        self.names.marked.contains(path) || path.ancestors().any(|above| self.names.marked.contains(above))
    }

    /// Returns a guard for the lower tree that excludes paths which the overlay changes, and those that another guard refuses.
    pub(super) fn guard(&self, other: Option<&PathGuard>) -> PathGuard {
        let names = self.names.clone();
        let guard = PathGuard::new(move |path, is_directory| {
            // Paths beneath an excluded one are never visited.
            !names.marked.contains(path) && names.upper.get(path).is_none_or(|is_upper_directory| *is_upper_directory && is_directory)
        });
        other.map_or_else(|| guard.clone(), |other| other.and(&guard))
    }
}
