//! The change feed of another server's tree, relative to a directory.

use super::client::PeerClient;
use super::question::path_of;
use super::stream::{ServerEvent, StreamNews};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use serde::Deserialize;
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_tree::backend::TreeNews;

/// Follows the changes below a directory of the remote tree.
pub(super) fn follow(client: &PeerClient, base: VfsPathBuf) -> BoxStream<'static, TreeNews> {
    let mut query = vec![("prefix", base.as_str())];
    query.extend(client.options().thread.as_deref().map(|thread| ("thread", thread)));
    let feed = client.stream(&path_of(["events"], &query));
    feed.flat_map(move |news| {
        stream::iter(match news {
            StreamNews::Live => vec![TreeNews::Live],
            StreamNews::Lost => vec![TreeNews::Lost],
            StreamNews::Event(event) => seen(&base, &event),
            StreamNews::Refused(_) => Vec::new(),
        })
    })
    .boxed()
}

/// Returns what an event reports about the tree at `base`.
fn seen(base: &VfsPath, event: &ServerEvent) -> Vec<TreeNews> {
    match event.name.as_str() {
        "reset" => vec![TreeNews::Reset],
        "change" => match serde_json::from_str::<ChangeEvent>(&event.data) {
            Ok(change) => {
                let changed = std::iter::once(&change.path).chain(&change.target);
                changed.filter_map(|path| seen_from(base, path)).map(TreeNews::Changed).collect()
            }
            // Something unknown changed.
            Err(_) => vec![TreeNews::Reset],
        },
        // Progress marks, and events that later servers may add.
        _ => Vec::new(),
    }
}

/// Maps a changed path of the remote tree to the tree at `base`. A change above the base maps to the root.
fn seen_from(base: &VfsPath, changed: &VfsPath) -> Option<VfsPathBuf> {
    match changed.strip_prefix(base) {
        Some(path) => Some(path.to_owned()),
        None if base.starts_with(changed) => Some(VfsPathBuf::root()),
        None => None,
    }
}

/// The relevant fields of a change event.
#[derive(Debug, Deserialize)]
struct ChangeEvent {
    path: VfsPathBuf,
    #[serde(default)]
    target: Option<VfsPathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_paths_are_mapped_relative_to_the_base() {
        let path = |text: &str| VfsPathBuf::parse(text).expect("a legal path");
        let base = path("/w/x");
        for (changed, seen) in
            [("/w/x/a", Some("/a")), ("/w/x", Some("/")), ("/w", Some("/")), ("/", Some("/")), ("/w/y", None), ("/w/xx", None)]
        {
            assert_eq!(seen_from(&base, &path(changed)), seen.map(path), "{changed}");
        }
    }
}
