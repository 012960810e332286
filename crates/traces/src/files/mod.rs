//! Traces as files, read-only.
//!
//! ```text
//! /{trace}/meta.json                        the trace, without its goals
//! /{trace}/goal.json                        its goals
//! /{trace}/events.jsonl                     its events, one on each line
//! /{trace}/messages/{sequence}-{role}.json  each message, its sequence padded to eight digits
//! /{trace}/path.md                          the end of the main path, as text to read
//! ```
//!
//! The JSON is that of the original's directories. A name has `%2F` for a `/` of a qualified id, and `%25` for a `%`. `path.md` holds the
//! last [`PATH_MESSAGES_MAX`] messages of the main path and at most [`PATH_BYTES_MAX`] bytes; it says if earlier messages are missing.
//!
//! [`TraceFiles`] is a [`Backend`] over any [`TraceStore`], so it shows what that store returns to its user, and nothing else.

mod events;
mod find;
mod place;
mod recall;
mod render;
mod transcript;

pub use transcript::{PATH_BYTES_MAX, PATH_MESSAGES_MAX};

use crate::contract::{ForeignTrace, MessageRef, PathQuery, TraceStore, TracesQuery, UnknownAgent};
use crate::id::TraceAddress;
use crate::model::{Message, Trace};
use async_trait::async_trait;
use events::EventFiles;
use find::{MESSAGES_AT_ONCE, glob, grep};
use jiff::Timestamp;
use place::{File, Place, is_shown, message_name, sequence_before, trace_name};
use recall::Recalled;
use render::{Rendered, time_of};
use std::error::Error as _;
use std::fmt;
use std::sync::Arc;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{
    ApplyOptions, Capabilities, Change, Changed, Entry, FileRead, GlobOptions, GlobResult, GrepOptions, GrepResult, Listing, LsOptions, Op,
    ReadOptions, Review, SearchOptions, SearchResult, Sight, StatOptions,
};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_tree::backend::{Backend, search_by_reading};

/// The most traces that one call lists. Each trace can still be addressed by its path.
const TRACES_MAX: usize = 100_000;

/// The traces of a user as files. Clones share what they know about the sizes of events.
///
/// The version of a message, of the goals, and of a trace follows from the content, that of the events from the id of the last one.
///
/// Cost: a listing of the root pages through all traces, 100 in a round trip. A message is one round trip, or one for many in a listing or
/// search. The first access to the events of a trace reads all of them, because their size is a part of every listing; later ones read only
/// what was added.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use treehold_store::MemoryStore;
/// use treehold_traces::{AddOptions, NewMessage, NewTrace, TraceStore, Traces};
/// use treehold_traces::files::TraceFiles;
/// use treehold_tree::backend::BackendExt;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold_core::Result<()> {
/// let traces = Arc::new(Traces::new(Arc::new(MemoryStore::new())).for_user("acme", "ada")?);
/// let trace = traces.create_trace(NewTrace::new("make tea").with_id("t1".parse::<treehold_traces::TraceAddress>()?)).await?;
/// traces.add_messages(&trace.trace_id, vec![NewMessage::text("user", "Green tea, please.")], &AddOptions::new()).await?;
/// let files = TraceFiles::new(traces);
/// assert!(files.read_text("/t1/messages/00000001-user.json").await?.contains("Green tea"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct TraceFiles {
    traces: Arc<dyn TraceStore>,
    events: Arc<EventFiles>,
}

impl TraceFiles {
    /// Shows the traces of a store.
    pub fn new(traces: Arc<dyn TraceStore>) -> Self {
        Self { traces, events: Arc::default() }
    }

    /// Returns a trace; `None` if there is none that the user may see.
    async fn trace(&self, address: &TraceAddress) -> Result<Option<Trace>> {
        visible(self.traces.get_trace(address).await).map(Option::flatten)
    }

    /// Returns all traces by the names of their directories, in order.
    async fn listed(&self) -> Result<Vec<Listed>> {
        let mut query = TracesQuery { limit: 100, ..TracesQuery::default() };
        let mut listed: Vec<Listed> = Vec::new();
        loop {
            let page = self.traces.list_traces(&query).await?;
            listed.extend(page.traces.into_iter().filter_map(|trace| {
                let name = trace_name(&trace.trace_id)?;
                Some(Listed { name, created_at: trace.created_at.as_deref().and_then(time_of), address: trace.trace_id })
            }));
            if listed.len() > TRACES_MAX {
                let message = format!("there are over {TRACES_MAX} traces, the most that are listed here; address a trace by its id");
                return Err(Error::new(ErrorKind::TooLarge, message));
            }
            match page.next {
                // A cursor that stays would be followed for ever.
                Some(next) if query.cursor.as_ref() != Some(&next) => query.cursor = Some(next),
                _ => break,
            }
        }
        listed.sort_by(|one, other| one.name.cmp(&other.name));
        listed.dedup_by(|one, other| one.name == other.name);
        Ok(listed)
    }

    /// Returns a file of a trace other than its events.
    async fn rendered(&self, trace: &Trace, file: File) -> Result<Option<Rendered>> {
        let address = &trace.trace_id;
        match file {
            File::Meta => render::meta(trace).map(Some),
            File::Goal => match visible(self.traces.get_goal_tree(address).await)? {
                Some(goals) => render::goals(trace, &goals).map(Some),
                None => Ok(None),
            },
            File::Path => {
                let query = PathQuery { head_sequence: Some(trace.head_sequence), limit: Some(PATH_MESSAGES_MAX) };
                let page = match trace.head_sequence {
                    0 => Some(Default::default()),
                    _ => visible(self.traces.get_main_path(address, &query).await)?,
                };
                Ok(page.map(|page| transcript::of(trace, &page)))
            }
        }
    }

    /// Returns the message of a file.
    async fn message(&self, address: &TraceAddress, sequence: u64, name: &str) -> Result<Option<Message>> {
        let found = visible(self.traces.get_message(address, &MessageRef::Sequence(sequence)).await)?.flatten();
        Ok(found.filter(|message| message_name(message) == name))
    }

    /// Returns what is at a path.
    async fn node(&self, path: &VfsPath) -> Result<Node> {
        let missing = || Error::not_found(path);
        let place = Place::of(path).ok_or_else(missing)?;
        let Some(address) = place.trace() else { return Ok(Node::Directory(None)) };
        if let Place::Message(address, sequence, name) = &place {
            return match self.message(address, *sequence, name).await? {
                Some(message) => render::message(&message).map(Node::File),
                None => Err(missing()),
            };
        }
        let trace = self.trace(address).await?.ok_or_else(missing)?;
        match &place {
            Place::Trace(_) | Place::Messages(_) => Ok(Node::Directory(trace.created_at.as_deref().and_then(time_of))),
            Place::Events(_) => Ok(Node::Events(Box::new(trace))),
            Place::File(_, file) => Ok(Node::File(self.rendered(&trace, *file).await?.ok_or_else(missing)?)),
            Place::Beneath(above, _) => match Box::pin(self.node(above)).await? {
                Node::Directory(_) => Err(missing()),
                Node::File(_) | Node::Events(_) => Err(beneath_a_file(path)),
            },
            Place::Root | Place::Message(..) => Err(missing()),
        }
    }

    async fn entry(&self, path: &VfsPath, node: &Node) -> Result<Entry> {
        Ok(match node {
            Node::Directory(created_at) => directory(path.to_owned(), *created_at),
            Node::File(rendered) => rendered.entry(path.to_owned()),
            Node::Events(trace) => self.events.of(&*self.traces, trace).await?.entry(path.to_owned()),
        })
    }

    /// Lists the files of a trace. One that disappears meanwhile is left out.
    async fn ls_trace(&self, path: &VfsPath, trace: &Trace, options: &LsOptions) -> Result<Listing> {
        let mut entries = Vec::new();
        for name in place::NAMES {
            if options.start_after.as_deref().is_some_and(|after| name <= after) {
                continue;
            }
            // One more shows that the listing is truncated.
            if entries.len() > options.limit {
                break;
            }
            let child = path.child(name)?;
            let node = match Place::of(&child) {
                Some(Place::Events(_)) => Node::Events(Box::new(trace.clone())),
                Some(Place::File(_, file)) => match self.rendered(trace, file).await? {
                    Some(rendered) => Node::File(rendered),
                    None => continue,
                },
                _ => Node::Directory(trace.created_at.as_deref().and_then(time_of)),
            };
            entries.push(self.entry(&child, &node).await?);
        }
        Ok(Listing::from_sorted(entries, options))
    }

    async fn ls_messages(&self, path: &VfsPath, address: &TraceAddress, options: &LsOptions) -> Result<Listing> {
        let mut entries = Vec::new();
        let mut since = options.start_after.as_deref().map_or(0, sequence_before);
        while entries.len() <= options.limit {
            let most = options.limit.saturating_sub(entries.len()).saturating_add(1);
            let page = self.page(address, since, most.min(MESSAGES_AT_ONCE)).await?;
            for message in &page.messages {
                let name = message_name(message);
                if options.start_after.as_deref().is_none_or(|after| name.as_str() > after) {
                    entries.push(render::message(message)?.entry(path.child(&name)?));
                }
            }
            match page.next {
                Some(next) => since = next,
                None => break,
            }
        }
        Ok(Listing::from_sorted(entries, options))
    }

    /// Reads the messages with greater sequences, in order. A trace that disappeared has none.
    async fn page(&self, address: &TraceAddress, since_sequence: u64, limit: usize) -> Result<MessagePage> {
        let query = crate::contract::MessagesQuery { since_sequence: Some(since_sequence), limit, ..Default::default() };
        let page = visible(self.traces.get_messages(address, &query).await)?.unwrap_or_default();
        let last = page.messages.last().map(|message| message.sequence);
        // A page that does not advance would be followed for ever.
        let next = last.filter(|last| page.more && *last > since_sequence && is_shown(*last));
        let messages =
            page.messages.into_iter().filter(|message| message.sequence > since_sequence && is_shown(message.sequence)).collect();
        Ok(MessagePage { messages, next })
    }
}

/// A trace in a listing.
struct Listed {
    name: String,
    address: TraceAddress,
    created_at: Option<Timestamp>,
}

/// Some messages, and the sequence after which more follow.
struct MessagePage {
    messages: Vec<Message>,
    next: Option<u64>,
}

/// What is at a path.
enum Node {
    /// A directory, with its creation time if known.
    Directory(Option<Timestamp>),
    File(Rendered),
    /// The events of a trace, which are read part by part.
    Events(Box<Trace>),
}

fn directory(path: VfsPathBuf, created_at: Option<Timestamp>) -> Entry {
    Entry::directory(path).with_times(created_at, None)
}

fn beneath_a_file(path: &VfsPath) -> Error {
    Error::new(ErrorKind::NotADirectory, format!("`{path}` lies beneath a file; name a path in a directory")).at(path)
}

/// Converts the errors of a trace that the user may not see, and of one that does not exist, to `None`.
fn visible<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) if error.source().is_some_and(|source| source.is::<ForeignTrace>() || source.is::<UnknownAgent>()) => Ok(None),
        Err(error) => Err(error),
    }
}

impl fmt::Debug for TraceFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceFiles").field("traces", &self.traces).finish_non_exhaustive()
    }
}

impl fmt::Display for TraceFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Traces")
    }
}

#[async_trait]
impl Backend for TraceFiles {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new().with_writable(false)
    }

    async fn stat(&self, path: &VfsPath, _options: &StatOptions) -> Result<Entry> {
        let stat = async { self.entry(path, &self.node(path).await?).await };
        stat.await.map_err(|error| error.at(path))
    }

    async fn read(&self, path: &VfsPath, options: &ReadOptions) -> Result<FileRead> {
        let read = async {
            match self.node(path).await? {
                Node::Directory(_) => Err(Error::is_directory(path)),
                Node::File(rendered) => rendered.read(options).await,
                Node::Events(trace) => self.events.read(&*self.traces, &trace, options).await,
            }
        };
        read.await.map_err(|error| error.at(path))
    }

    async fn ls(&self, path: &VfsPath, options: &LsOptions) -> Result<Listing> {
        let ls = async {
            match Place::of(path) {
                Some(Place::Root) => {
                    let listed = self.listed().await?.into_iter();
                    let rest = listed.filter(|trace| options.start_after.as_deref().is_none_or(|after| trace.name.as_str() > after));
                    let entries = rest.filter_map(|trace| Some(directory(path.child(&trace.name).ok()?, trace.created_at)));
                    Ok(Listing::from_sorted(entries, options))
                }
                Some(Place::Trace(address)) => {
                    let trace = self.trace(&address).await?.ok_or_else(|| Error::not_found(path))?;
                    self.ls_trace(path, &trace, options).await
                }
                Some(Place::Messages(address)) => {
                    self.trace(&address).await?.ok_or_else(|| Error::not_found(path))?;
                    self.ls_messages(path, &address, options).await
                }
                _ => match self.node(path).await? {
                    Node::Directory(_) => Err(Error::not_found(path)),
                    Node::File(_) | Node::Events(_) => Err(Error::not_a_directory(path)),
                },
            }
        };
        ls.await.map_err(|error| error.at(path))
    }

    async fn glob(&self, path: &VfsPath, options: &GlobOptions) -> Result<GlobResult> {
        glob(self, path, options).await.map_err(|error| error.at(path))
    }

    async fn grep(&self, path: &VfsPath, options: &GrepOptions) -> Result<GrepResult> {
        grep(self, path, options).await.map_err(|error| error.at(path))
    }

    async fn search(&self, path: &VfsPath, options: &SearchOptions) -> Result<SearchResult> {
        search_by_reading(&Recalled::new(self), path, options).await
    }

    async fn apply(&self, changes: &[Change], _options: &ApplyOptions) -> Result<Vec<Changed>> {
        if changes.is_empty() {
            return Ok(Vec::new());
        }
        let op = Op::apply(changes);
        Err(Error::read_only(op.path).during(op.kind).in_batch(0, 0))
    }

    async fn review(&self, review: &Review) -> Result<Vec<Sight>> {
        Ok(review.open())
    }
}
