//! Finding files and lines of traces, in path order.

use super::place::{NAMES, Place, message_name, sequence_of};
use super::render::{self, Rendered, time_of};
use super::{Node, TraceFiles};
use crate::id::TraceAddress;
use crate::model::Trace;
use bytes::Bytes;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::vec;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{Entry, GlobOptions, GlobResult, GrepOptions, GrepResult};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::search::{FileOutcome, GrepCollector, GrepMatcher, PathFilter};
use treehold_core::work;

/// How many messages a listing or search reads in one round trip.
pub(super) const MESSAGES_AT_ONCE: usize = 500;

/// The most bytes of events that one trace may have to be searched.
const EVENTS_BYTES_MAX: u64 = 64 << 20;

/// Finds paths by pattern.
pub(super) async fn glob(files: &TraceFiles, path: &VfsPath, options: &GlobOptions) -> Result<GlobResult> {
    let filter = PathFilter::for_glob(path, options)?;
    check_directory(files, path).await?;
    let cursor = options.start_after.as_deref();
    let mut walk = Walk::new(files, path, filter, cursor).await?;
    let mut entries: Vec<Entry> = Vec::new();
    // One more shows that there is more.
    while entries.len() <= options.limit {
        let Some(found) = walk.next().await? else { break };
        for (path, node) in found {
            entries.push(files.entry(&path, &node).await?);
        }
    }
    Ok(GlobResult::from_sorted(entries, options))
}

/// Finds lines by pattern.
pub(super) async fn grep(files: &TraceFiles, path: &VfsPath, options: &GrepOptions) -> Result<GrepResult> {
    let matcher = Arc::new(GrepMatcher::compile(options)?);
    let filter = PathFilter::for_grep(path, options)?;
    let mut collector = GrepCollector::new(options);
    let node = files.node(path).await?;
    if !matches!(node, Node::Directory(_)) {
        let _ = collector.push(path, search(files, &matcher, path, node).await?);
        return Ok(collector.finish());
    }
    let cursor = options.start_after.as_ref().map(|cursor| &*cursor.path);
    let mut walk = Walk::new(files, path, filter, cursor).await?;
    while let Some(found) = walk.next().await? {
        for (path, node) in found {
            let outcome = search(files, &matcher, &path, node).await?;
            if let ControlFlow::Break(()) = collector.push(path, outcome) {
                return Ok(collector.finish());
            }
        }
    }
    Ok(collector.finish())
}

async fn check_directory(files: &TraceFiles, path: &VfsPath) -> Result<()> {
    match files.node(path).await? {
        Node::Directory(_) => Ok(()),
        Node::File(_) | Node::Events(_) => Err(Error::not_a_directory(path)),
    }
}

async fn search(files: &TraceFiles, matcher: &Arc<GrepMatcher>, path: &VfsPath, node: Node) -> Result<FileOutcome> {
    let content: Bytes = match node {
        Node::Directory(_) => return Ok(FileOutcome::Gone),
        Node::File(Rendered { content, .. }) => content,
        Node::Events(trace) => {
            let file = files.events.of(&*files.traces, &trace).await?;
            if file.size_bytes() > EVENTS_BYTES_MAX {
                return Ok(FileOutcome::TooLarge);
            }
            match file.content(&*files.traces, &trace).await {
                Ok(content) => content,
                Err(error) if error.kind() == ErrorKind::Conflict => return Ok(FileOutcome::Gone),
                Err(error) => return Err(error),
            }
        }
    };
    let (matcher, path) = (matcher.clone(), path.to_owned());
    work::run(content.len() as u64, move |_| matcher.search(&path, &content).detached()).await
}

/// The traces that are still to be visited.
enum Traces {
    /// Those of a listing, by the names of their directories.
    Listed(vec::IntoIter<(VfsPathBuf, TraceAddress)>),
    /// The only one that can hold a result.
    One(Option<(VfsPathBuf, TraceAddress)>),
}

impl Iterator for Traces {
    type Item = (VfsPathBuf, TraceAddress);

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::Listed(listed) => listed.next(),
            Self::One(one) => one.take(),
        }
    }
}

/// The trace that is visited.
struct Open {
    directory: VfsPathBuf,
    trace: Trace,
    /// The names in its directory that are still to be visited.
    names: vec::IntoIter<&'static str>,
    /// The sequence after which its messages continue, while they are visited.
    messages: Option<u64>,
}

/// A walk through the files that a filter selects, in path order.
struct Walk<'a> {
    files: &'a TraceFiles,
    root: &'a VfsPath,
    filter: PathFilter,
    cursor: Option<&'a VfsPath>,
    traces: Traces,
    open: Option<Open>,
}

/// What a walk selects.
type Found = Vec<(VfsPathBuf, Node)>;

impl<'a> Walk<'a> {
    async fn new(files: &'a TraceFiles, root: &'a VfsPath, filter: PathFilter, cursor: Option<&'a VfsPath>) -> Result<Self> {
        let traces = match filter.bound().map(|bound| (Place::of(&bound), bound)) {
            None | Some((None, _)) => Traces::One(None),
            Some((Some(Place::Root), _)) => {
                let listed = files.listed().await?.into_iter();
                let directories = listed.filter_map(|trace| Some((VfsPath::ROOT.child(&trace.name).ok()?, trace.address)));
                Traces::Listed(directories.collect::<Vec<_>>().into_iter())
            }
            Some((Some(place), bound)) => {
                let directory = bound.ancestors().chain([&*bound]).find(|above| above.depth() == 1).map(ToOwned::to_owned);
                Traces::One(directory.zip(place.trace().cloned()))
            }
        };
        Ok(Self { files, root, filter, cursor, traces, open: None })
    }

    /// Returns the next files, perhaps none; `None` at the end.
    async fn next(&mut self) -> Result<Option<Found>> {
        work::step().await;
        let Some(open) = &mut self.open else { return self.next_trace().await };
        if let Some(since) = open.messages {
            return self.next_messages(since).await.map(Some);
        }
        let Some(name) = open.names.next() else {
            self.open = None;
            return Ok(Some(Found::new()));
        };
        let path = open.directory.child(name)?;
        self.visit(path).await.map(Some)
    }

    /// Opens the next trace that may have results.
    async fn next_trace(&mut self) -> Result<Option<Found>> {
        let Some((directory, address)) = self.traces.next() else { return Ok(None) };
        let is_selected = self.is_beneath_root(&directory) && self.filter.selects(&directory, true);
        if !is_selected && !self.enters(&directory) {
            return Ok(Some(Found::new()));
        }
        let Some(trace) = self.files.trace(&address).await? else { return Ok(Some(Found::new())) };
        let created_at = trace.created_at.as_deref().and_then(time_of);
        if self.enters(&directory) {
            self.open = Some(Open { directory: directory.clone(), trace, names: NAMES.to_vec().into_iter(), messages: None });
        }
        Ok(Some(if is_selected { vec![(directory, Node::Directory(created_at))] } else { Found::new() }))
    }

    /// Visits a file or directory of the open trace.
    async fn visit(&mut self, path: VfsPathBuf) -> Result<Found> {
        let Some(open) = &self.open else { return Ok(Found::new()) };
        let is_directory = matches!(Place::of(&path), Some(Place::Messages(_)));
        let is_selected = self.is_beneath_root(&path) && self.filter.selects(&path, is_directory);
        if is_directory {
            let created_at = open.trace.created_at.as_deref().and_then(time_of);
            if self.enters(&path) {
                let since = self.cursor.filter(|cursor| cursor.parent() == Some(&*path)).and_then(|cursor| sequence_of(cursor.name()));
                if let Some(open) = &mut self.open {
                    // The message of the cursor itself may have more lines.
                    open.messages = Some(since.map_or(0, |sequence| sequence - 1));
                }
            }
            return Ok(if is_selected { vec![(path, Node::Directory(created_at))] } else { Found::new() });
        }
        if !is_selected {
            return Ok(Found::new());
        }
        let node = match Place::of(&path) {
            Some(Place::Events(_)) => Some(Node::Events(Box::new(open.trace.clone()))),
            Some(Place::File(_, file)) => self.files.rendered(&open.trace, file).await?.map(Node::File),
            _ => None,
        };
        Ok(node.map(|node| (path, node)).into_iter().collect())
    }

    /// Visits the next messages of the open trace.
    async fn next_messages(&mut self, since: u64) -> Result<Found> {
        let Some(open) = &mut self.open else { return Ok(Found::new()) };
        let page = self.files.page(&open.trace.trace_id, since, MESSAGES_AT_ONCE).await?;
        open.messages = page.next;
        let directory = open.directory.child("messages")?;
        let mut found = Found::new();
        for message in &page.messages {
            let path = directory.child(&message_name(message))?;
            if self.is_beneath_root(&path) && self.filter.selects(&path, false) {
                found.push((path, Node::File(render::message(message)?)));
            }
        }
        Ok(found)
    }

    fn is_beneath_root(&self, path: &VfsPath) -> bool {
        path.starts_with(self.root) && *path != *self.root
    }

    /// Returns whether a directory is visited: those above the searched one lead to it.
    fn enters(&self, directory: &VfsPath) -> bool {
        if self.is_beneath_root(directory) { self.filter.enters(directory) } else { self.root.starts_with(directory) }
    }
}
