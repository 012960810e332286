//! Imports directories of the original.

use super::host::{HostDirectory, blocking};
use super::lines::{LINE_BYTES_MAX, Lines};
use super::merge::Fields;
use super::paths::Paths;
use super::survey::{
    ENTRIES_MAX, EVENTS, Found, GAPS_MAX, GOAL, MESSAGE_BYTES_MAX, MESSAGES, META, Survey, file_name, hash_of, short, survey,
};
use super::{ImportReport, ImportedTrace, missing, read, render};
use crate::id::TraceId;
use crate::model::Message;
use crate::stored::{Ending, Insert, ORIGINAL_BYTES, Originals, StoredTraces, check_event};
use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::Json;

/// How many messages are read from the host at once.
const MESSAGES_AT_ONCE: usize = 64;

/// The most bytes of messages that are read from the host at once. The last one may exceed it.
const BYTES_AT_ONCE: usize = 8 << 20;

/// Options of [`import_directory`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImportOptions {
    /// The traces to import; by default all.
    pub among: Option<Vec<TraceId>>,
    /// Whether traces of other users are imported as well, and become the user's. Default false: they are left out.
    pub any_user: bool,
}

impl ImportOptions {
    /// Imports all traces of the user.
    pub fn new() -> Self {
        Self::default()
    }

    /// Imports only some traces.
    #[must_use]
    pub fn with_among(mut self, among: impl IntoIterator<Item = TraceId>) -> Self {
        self.among = Some(among.into_iter().collect());
        self
    }

    /// Sets whether traces of other users become the user's.
    #[must_use]
    pub fn with_any_user(mut self, any_user: bool) -> Self {
        self.any_user = any_user;
        self
    }
}

/// Imports the traces of a host's directory. [The module](crate::layout) says what is taken. Traces that cannot be imported are reported,
/// and the others are imported.
///
/// Links are not followed, and nothing outside of the directory is read. Traces that belong to nobody become the user's.
///
/// Cost: reads every file twice. Holds a few messages, and about 100 bytes for each message, in memory.
///
/// # Errors
/// Those of the host when the directory itself cannot be listed, and transient errors of the store. Calling it again continues: traces that
/// are there already are not imported twice.
pub async fn import_directory(traces: &StoredTraces, root: &Path, options: &ImportOptions) -> Result<ImportReport> {
    let path = root.to_owned();
    let (root, names) = blocking(move || {
        let root = HostDirectory::open(&path)?;
        let names = root.names(ENTRIES_MAX)?;
        Ok((root, names))
    })
    .await?;
    let mut report = ImportReport::default();
    let is_asked = |name: &str| options.among.as_ref().is_none_or(|among| among.iter().any(|id| id.as_str() == name));
    let unread = names.files.into_iter().map(|name| (name, "only directories of traces are imported".to_owned())).chain(names.refused);
    for (name, reason) in unread.filter(|(name, _)| is_asked(name)) {
        report.failures.push((root.shown(&name), Error::new(ErrorKind::Unsupported, reason)));
    }
    for name in names.directories.iter().filter(|name| is_asked(name)) {
        match import_trace(traces, &root, name, options).await {
            Ok(Some(imported)) => report.traces.push(imported),
            Ok(None) => report.left_out += 1,
            Err(error) if error.kind().is_transient() => return Err(error),
            Err(error) => report.failures.push((root.shown(name), error)),
        }
    }
    for id in options.among.iter().flatten().filter(|id| !names.directories.iter().any(|name| name == id.as_str())) {
        let shown = root.shown(id.as_str());
        if !report.failures.iter().any(|(path, _)| *path == shown) {
            report.failures.push((shown, Error::new(ErrorKind::NotFound, "the directory has no trace with this id")));
        }
    }
    Ok(report)
}

/// Sets a flag when the caller is gone.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Imports one trace; `None` if it belongs to another user.
async fn import_trace(traces: &StoredTraces, root: &HostDirectory, name: &str, options: &ImportOptions) -> Result<Option<ImportedTrace>> {
    let id = TraceId::new(name)?;
    let stop = StopOnDrop(Arc::default());
    let (of, limits, flag, root) = (id.clone(), traces.options().clone(), stop.0.clone(), root.clone());
    let (directory, survey) = blocking(move || {
        let gone = || Error::new(ErrorKind::NotFound, "the directory disappeared");
        let directory = root.subdirectory(of.as_str())?.ok_or_else(gone)?;
        let survey = survey(&directory, &of, &limits, &flag)?;
        Ok((directory, survey))
    })
    .await?;
    let is_foreign = survey.trace.uid.as_deref().is_some_and(|uid| uid != traces.user());
    if is_foreign && !options.any_user {
        return Ok(None);
    }
    if traces.has(&id).await? && traces.inserted(&id).await?.is_some_and(|inserted| inserted.digest == survey.digest) {
        return Ok(Some(ImportedTrace { repeated: true, ..survey.report }));
    }
    let report = survey.report.clone();
    let mut import = Import { insert: traces.insert(&id).await?, traces, id: &id, directory, survey, report, paths: Paths::default() };
    match import.write().await {
        Ok(()) => Ok(Some(import.report)),
        Err(error) => {
            import.insert.abandon().await;
            Err(error)
        }
    }
}

/// An import in progress.
struct Import<'t> {
    insert: Insert<'t>,
    traces: &'t StoredTraces,
    id: &'t TraceId,
    directory: HostDirectory,
    survey: Survey,
    report: ImportedTrace,
    paths: Paths,
}

impl Import<'_> {
    async fn write(&mut self) -> Result<()> {
        for (name, content) in [(META, Some(self.survey.meta.clone())), (GOAL, self.survey.goal.clone())] {
            if let Some(content) = content {
                self.original(Originals::Files, name, content).await?;
            }
        }
        if let Some(goals) = self.survey.goals.take() {
            match self.insert.goals(goals).await {
                Err(error) if error.kind() == ErrorKind::TooLarge => self.report.damage(GOAL, None, error.message()),
                written => written?,
            }
        }
        let main_end = self.messages().await?;
        let last_event_id = self.events().await?;
        for (path, hash) in std::mem::take(&mut self.survey.others) {
            self.other(&path, hash).await?;
        }
        self.finish(main_end, last_event_id).await
    }

    /// Writes the messages. Returns the last one that is not part of a side branch.
    async fn messages(&mut self) -> Result<u64> {
        let mut main_end = 0;
        let mut found = std::mem::take(&mut self.survey.messages).into_iter().peekable();
        while found.peek().is_some() {
            let directory = self.directory.clone();
            let directory = blocking(move || directory.subdirectory(MESSAGES)?.ok_or_else(changed)).await?;
            let wanted: Vec<Found> = found.by_ref().take(MESSAGES_AT_ONCE).collect();
            let mut rest = wanted.into_iter().peekable();
            while rest.peek().is_some() {
                let (from, wanted) = (directory.clone(), rest);
                let (read, left) = blocking(move || read_messages(&from, wanted)).await?;
                for (found, content) in read {
                    let message = self.message(&found, &content).await?;
                    if message.branch_type.is_none() {
                        main_end = message.sequence;
                    }
                }
                rest = left;
            }
        }
        self.fill_to(self.survey.last_sequence).await?;
        Ok(main_end)
    }

    /// Writes a message, and placeholders for those that are missing before it.
    async fn message(&mut self, found: &Found, content: &Bytes) -> Result<Message> {
        let (message, _) = read::message(self.id, &found.name, content)?;
        self.fill_to(message.sequence - 1).await?;
        let path = self.paths.add(message.parent_sequence);
        self.insert.message(&message, &path).await?;
        self.report.messages += 1;
        if render::content(&render::message(&message)?).as_bytes() != &content[..] {
            self.original(Originals::Messages, &message.message_id, content.clone()).await?;
        }
        Ok(message)
    }

    /// Writes placeholders up to a sequence.
    async fn fill_to(&mut self, last: u64) -> Result<()> {
        while self.paths.len() < last {
            let message = missing::message(self.id, self.paths.len() + 1)?;
            let path = self.paths.add(None);
            self.insert.message(&message, &path).await?;
        }
        Ok(())
    }

    /// Writes the events. Returns the id of the last one, placeholders included. There is at least one.
    async fn events(&mut self) -> Result<u64> {
        let (mut last, mut gaps) = (0_u64, 0_u64);
        if let Some(expected) = self.survey.events {
            let directory = self.directory.clone();
            let file = blocking(move || directory.file(EVENTS)).await?.ok_or_else(changed)?;
            let (file, mut hasher, mut lines) = (Arc::new(file), blake3::Hasher::new(), Lines::default());
            for number in 0.. {
                let from = file.clone();
                let part = blocking(move || from.part()).await?;
                hasher.update(&part);
                let is_end = part.is_empty();
                let ended = if is_end { std::mem::take(&mut lines).finish().into_iter().collect() } else { lines.push(&part) };
                for (line, text) in ended {
                    self.event(line, text.as_deref(), &mut last, &mut gaps).await?;
                }
                if is_end && number > 0 {
                    break;
                }
                self.insert.original(Originals::Files, EVENTS, number, part).await?;
                if is_end {
                    break;
                }
            }
            check_unchanged(short(&hasher.finalize()), expected)?;
        }
        let known = self.survey.trace.last_event_id.max(1);
        let missing = known.saturating_sub(last);
        if gaps + missing <= GAPS_MAX {
            self.fill_events(last, known).await?;
            last = last.max(known);
        } else {
            self.report.damage(META, None, format!("the last event id {known} is far beyond the last event, which is {last}"));
            self.fill_events(last, 1).await?;
            last = last.max(1);
        }
        Ok(last)
    }

    /// Writes the event of a line.
    async fn event(&mut self, line: u64, text: Option<&[u8]>, last: &mut u64, gaps: &mut u64) -> Result<()> {
        let Some(text) = text else {
            self.report.damage(EVENTS, Some(line), format!("it has over {LINE_BYTES_MAX} bytes, the most of a line"));
            return Ok(());
        };
        if text.trim_ascii().is_empty() {
            return Ok(());
        }
        let event = read::event(*last, text).and_then(|event| {
            check_event(self.traces.options(), &event)?;
            Ok(event)
        });
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                self.report.damage(EVENTS, Some(line), error.message());
                return Ok(());
            }
        };
        let missing = event.event_id - *last - 1;
        if *gaps + missing > GAPS_MAX {
            self.report.damage(
                EVENTS,
                Some(line),
                format!("its event id {} comes after over {GAPS_MAX} ids without an event", event.event_id),
            );
            return Ok(());
        }
        if missing > 0 {
            self.report.damage(EVENTS, Some(line), format!("{missing} event ids before {} have no event", event.event_id));
        }
        *gaps += missing;
        self.fill_events(*last, event.event_id - 1).await?;
        *last = event.event_id;
        self.report.events += 1;
        self.insert.event(&event).await
    }

    /// Writes placeholders for the events after one up to another.
    async fn fill_events(&mut self, after: u64, last: u64) -> Result<()> {
        for event_id in after + 1..=last {
            self.insert.event(&missing::event(event_id)?).await?;
        }
        Ok(())
    }

    /// Keeps a file that is not part of the layout.
    async fn other(&mut self, path: &str, expected: u64) -> Result<()> {
        let (directory, of) = (self.directory.clone(), path.to_owned());
        let file = blocking(move || {
            let (above, name) = of.rsplit_once('/').map_or((None, of.as_str()), |(above, name)| (Some(above), name));
            let mut directory = directory;
            for component in above.iter().flat_map(|above| above.split('/')) {
                directory = directory.subdirectory(component)?.ok_or_else(changed)?;
            }
            directory.file(name)?.ok_or_else(changed)
        });
        let (file, mut hasher) = (Arc::new(file.await?), blake3::Hasher::new());
        for number in 0.. {
            let from = file.clone();
            let part = blocking(move || from.part()).await?;
            hasher.update(&part);
            let is_end = part.is_empty();
            if !is_end || number == 0 {
                self.insert.original(Originals::Files, path, number, part).await?;
            }
            if is_end {
                break;
            }
        }
        check_unchanged(short(&hasher.finalize()), expected)
    }

    /// Keeps the content of a file.
    async fn original(&mut self, of: Originals, name: &str, content: Bytes) -> Result<()> {
        if content.is_empty() {
            return self.insert.original(of, name, 0, content).await;
        }
        for number in 0..content.len().div_ceil(ORIGINAL_BYTES) {
            let end = content.len().min((number + 1) * ORIGINAL_BYTES);
            self.insert.original(of, name, number, content.slice(number * ORIGINAL_BYTES..end)).await?;
        }
        Ok(())
    }

    async fn finish(&mut self, main_end: u64, last_event_id: u64) -> Result<()> {
        let mut trace = self.survey.trace.clone();
        let head = match trace.head_sequence {
            0 => 0,
            head if head <= self.paths.len() => head,
            head => {
                self.report.damage(META, None, format!("no message has the sequence {head} of the head; the head is {main_end} here"));
                main_end
            }
        };
        // A trace without the field is older than the field: its main path ends with its last message.
        let fields: Fields = Json::from_bytes(&self.survey.meta)?.view()?;
        let has_head = fields.get("head_sequence").is_some_and(|head| head.as_str() != "null");
        let head = if head == 0 && !has_head { main_end } else { head };
        let mut time = |name: &str, text: Option<&String>| {
            let time = text.map(|text| render::time_of(text).ok_or(text));
            match time {
                Some(Err(text)) => {
                    self.report.damage(META, None, format!("`{name}` is not a time: {}", text.escape_debug()));
                    None
                }
                time => time.and_then(Result::ok),
            }
        };
        let created_at = time("created_at", trace.created_at.as_ref());
        let completed_at = time("completed_at", trace.completed_at.as_ref());
        (trace.last_sequence, trace.last_event_id) = (self.paths.len(), last_event_id);
        // These tell how a trace was read, and are no part of it.
        (trace.remote, trace.stale) = (false, false);
        trace.other.remove("goal_tree");
        let (path, digest) = (self.paths.to(head), self.survey.digest.clone());
        self.insert.finish(Ending { trace, created_at, completed_at, path, digest }).await.map(drop)
    }
}

/// Messages in the order in which they are written.
type Wanted = std::iter::Peekable<std::vec::IntoIter<Found>>;

/// Reads the next messages of a directory. Returns those that did not fit as well. Blocks.
fn read_messages(directory: &HostDirectory, mut wanted: Wanted) -> Result<(Vec<(Found, Bytes)>, Wanted)> {
    let (mut read, mut bytes) = (Vec::new(), 0);
    while bytes < BYTES_AT_ONCE
        && let Some(found) = wanted.next()
    {
        let content = directory.read(&file_name(&found.name), MESSAGE_BYTES_MAX)?.ok_or_else(changed)?;
        check_unchanged(hash_of(&content), found.hash)?;
        bytes += content.len();
        read.push((found, content));
    }
    Ok((read, wanted))
}

fn check_unchanged(hash: u64, expected: u64) -> Result<()> {
    if hash == expected { Ok(()) } else { Err(changed()) }
}

/// The error for a file that another process changes.
fn changed() -> Error {
    Error::new(ErrorKind::Conflict, "a file changed while it was imported; import the trace again").without_effect()
}
