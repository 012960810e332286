//! Listing a directory: its backend's entries, and the mounts within it.

use super::router::{Node, Resolved};
use super::{CompositeBackend, Target, is_absence, mount_failure, of_mount};
use futures::StreamExt;
use futures::stream;
use treehold_core::error::{Error, Result};
use treehold_core::ops::{Entry, Failure, Listing, LsOptions, OnFailure, StatOptions, Truncation, TruncationReason};
use treehold_core::path::VfsPath;

impl CompositeBackend {
    /// Lists a directory.
    pub(super) async fn list(&self, path: &VfsPath, options: &LsOptions) -> Result<Listing> {
        let place = self.router.find(path);
        let target = self.target(place, path)?;
        match place.node.filter(|node| self.router.node(*node).is_above_mounts()) {
            Some(node) => self.list_with_mounts(node, place, target, options).await,
            None => match target.backend.ls(target.rest, options).await {
                Ok(listing) => Ok(target.outward().listing(listing)),
                Err(error) => Err(self.read_error(error, target, path).await),
            },
        }
    }

    async fn list_with_mounts(&self, node: usize, place: Resolved, target: Target<'_>, options: &LsOptions) -> Result<Listing> {
        let points = Points::after(self, node, options);
        let (held, shown) = futures::join!(self.list_held(node, place, target, options), self.show_points(&points.nodes));
        let mut failures = Vec::new();
        let mut settle = |prefix: &VfsPath, error: Error| match options.on_failure {
            OnFailure::Fail => Err(of_mount(prefix, error)),
            OnFailure::Partial => {
                failures.push(mount_failure(prefix, &error));
                Ok(())
            }
        };
        let held = match held {
            Ok(listing) => listing,
            Err(error) => settle(target.prefix, error).map(|()| Listing::default())?,
        };
        let mut entries = held.entries;
        entries.retain(|entry| self.is_visible_in(node, entry));
        for (point, shown) in points.nodes.iter().zip(shown) {
            match shown {
                Ok(entry) => entries.extend(entry),
                Err(error) => settle(point.path(), error)?,
            }
        }
        // For a directory that leads to mounts, the backend's own entry is first and is kept, because it may have
        // times.
        entries.sort_by(|one, other| one.name().cmp(other.name()));
        entries.dedup_by(|next, kept| next.name() == kept.name());
        failures.extend(held.failures);
        Ok(cut(entries, failures, options, [held.truncated, points.truncated]))
    }

    /// Lists the backend's own entries, with room for those that mounts will hide.
    async fn list_held(&self, node: usize, place: Resolved, target: Target<'_>, options: &LsOptions) -> Result<Listing> {
        let hidden = self.router.node(node).children().len();
        let options = options.clone().with_limit(options.limit.saturating_add(hidden));
        match target.backend.ls(target.rest, &options).await {
            Ok(listing) => Ok(target.outward().listing(listing)),
            Err(error) if self.is_virtual(place) && is_absence(&error) => Ok(Listing::default()),
            Err(error) => Err(target.outward().error(error, &[target.rest])),
        }
    }

    /// Returns whether an entry of the backend is visible among the mounts of the directory.
    fn is_visible_in(&self, node: usize, entry: &Entry) -> bool {
        match self.router.child(node, entry.name()) {
            None => true,
            Some(point) => point.mount().is_none() && entry.is_directory(),
        }
    }

    /// Makes entries for mounts and for directories that lead to mounts. Only file mounts require a query, to see
    /// whether the file exists.
    async fn show_points(&self, points: &[&Node]) -> Vec<Result<Option<Entry>>> {
        stream::iter(points.iter().map(|point| self.show_point(point)).collect::<Vec<_>>()).buffered(self.concurrency).collect().await
    }

    async fn show_point(&self, point: &Node) -> Result<Option<Entry>> {
        match point.mount() {
            Some(mount) if self.router.mount(mount).is_file => self.show_file(mount).await,
            _ => Ok(Some(Entry::directory(point.path()))),
        }
    }

    /// Makes the entry of a file mount, if the file exists.
    pub(super) async fn show_file(&self, mount: usize) -> Result<Option<Entry>> {
        let prefix = self.router.prefix(mount);
        let target = Target { backend: &*self.router.mount(mount).backend, prefix, rest: VfsPath::ROOT };
        match target.backend.stat(target.rest, &StatOptions::new()).await {
            Ok(entry) if entry.is_directory() => Ok(None),
            Ok(entry) => Ok(Some(entry.with_path(prefix))),
            Err(error) if is_absence(&error) => Ok(None),
            Err(error) => Err(target.outward().error(error, &[target.rest])),
        }
    }
}

/// The mounts in a directory, and the directories that lead to mounts, that fit on one page.
struct Points<'a> {
    nodes: Vec<&'a Node>,
    truncated: Option<Truncation>,
}

impl<'a> Points<'a> {
    fn after(composite: &'a CompositeBackend, node: usize, options: &LsOptions) -> Self {
        let mut all = composite.router.children_after(node, options.start_after.as_deref());
        let nodes: Vec<&Node> = all.by_ref().take(options.limit).collect();
        let truncated = all.next().map(|_| {
            let last = nodes.last().map(|node| node.path().name());
            Truncation { reason: TruncationReason::Limit, cursor: cursor(last, options) }
        });
        Self { nodes, truncated }
    }
}

/// Truncates sorted entries where the first of their sources was truncated, and at the limit.
fn cut(mut entries: Vec<Entry>, failures: Vec<Failure>, options: &LsOptions, cuts: [Option<Truncation>; 2]) -> Listing {
    let mut truncated = cuts.into_iter().flatten().min_by(|one, other| one.cursor.cmp(&other.cursor));
    if let Some(cut) = &truncated {
        entries.retain(|entry| entry.name() <= cut.cursor.as_str());
    }
    if entries.len() > options.limit {
        entries.truncate(options.limit);
        truncated = Some(Truncation { reason: TruncationReason::Limit, cursor: cursor(entries.last().map(Entry::name), options) });
    }
    Listing::new(entries, truncated, failures)
}

/// Returns the cursor of a page: its last name, or the start of an empty page.
fn cursor(last: Option<&str>, options: &LsOptions) -> String {
    last.or(options.start_after.as_deref()).unwrap_or_default().to_owned()
}
