//! Exports traces as directories of the original.

use super::host::{HostDirectory, NewFile, blocking};
use super::merge::{is_same, merged};
use super::survey::{EVENTS, GOAL, MESSAGES, META, file_name};
use super::{missing, read, render};
use crate::contract::{MessagesQuery, PAGE_MAX, TraceStore, TracesQuery};
use crate::id::{TraceAddress, TraceId};
use crate::model::{GoalTree, Message, Trace};
use crate::stored::{Inserted, Originals, StoredTraces};
use bytes::Bytes;
use std::path::Path;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::Json;

/// How many messages are written at once.
const MESSAGES_AT_ONCE: usize = 200;

/// Options of [`export_directory`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExportOptions {
    /// The traces to export; by default all of the user.
    pub among: Option<Vec<TraceId>>,
    /// Whether each trace is flushed to the device before its `meta.json` appears. Default true.
    pub sync: bool,
}

impl Default for ExportOptions {
    fn default() -> Self {
        Self { among: None, sync: true }
    }
}

impl ExportOptions {
    /// Exports all traces of the user.
    pub fn new() -> Self {
        Self::default()
    }

    /// Exports only some traces.
    #[must_use]
    pub fn with_among(mut self, among: impl IntoIterator<Item = TraceId>) -> Self {
        self.among = Some(among.into_iter().collect());
        self
    }

    /// Sets whether traces are flushed to the device.
    #[must_use]
    pub fn with_sync(mut self, sync: bool) -> Self {
        self.sync = sync;
        self
    }
}

/// The result of exporting traces.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct ExportReport {
    /// The traces that were written.
    pub traces: Vec<ExportedTrace>,
    /// The traces that were not written, or only in part, each with its error.
    pub failures: Vec<(TraceId, Error)>,
}

/// A trace that was exported.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExportedTrace {
    /// The id.
    pub id: TraceId,
    /// How many files were written. Files that had their content already are not among them.
    pub written: u64,
}

/// Exports traces into a directory of the host, which is created if it is missing. [The module](crate::layout) says what is written. Traces
/// that cannot be written are reported, and the others are written.
///
/// A file appears with its whole content, and `meta.json` is the last one of its trace. So an interrupted export can be repeated, which
/// continues: files that are there already are not written again. Files that the traces do not have stay. Links are replaced, not followed.
/// Messages that are added during the export are not in it.
///
/// Cost: two round trips for 200 messages, and two more for those of an imported trace. Holds 200 messages, or a part of a file, in memory.
///
/// # Errors
/// Those of the host when the directory cannot be opened, those of [`TraceStore::list_traces`], and transient errors of the store.
pub async fn export_directory(traces: &StoredTraces, root: &Path, options: &ExportOptions) -> Result<ExportReport> {
    let path = root.to_owned();
    let root = blocking(move || HostDirectory::open_or_new(&path)).await?;
    let mut report = ExportReport::default();
    let mut query = TracesQuery { limit: 100, ..TracesQuery::default() };
    loop {
        let (ids, next) = match &options.among {
            Some(among) => (among.clone(), None),
            None => {
                let page = traces.list_traces(&query).await?;
                (page.traces.into_iter().map(|trace| trace.trace_id.id().clone()).collect(), page.next)
            }
        };
        for id in ids {
            match export_trace(traces, &root, &id, options).await {
                Ok(written) => report.traces.push(ExportedTrace { id, written }),
                Err(error) if error.kind().is_transient() => return Err(error),
                Err(error) => report.failures.push((id, error)),
            }
        }
        match next {
            Some(next) => query.cursor = Some(next),
            None => return Ok(report),
        }
    }
}

/// Writes one trace. Returns how many files were written.
async fn export_trace(traces: &StoredTraces, root: &HostDirectory, id: &TraceId, options: &ExportOptions) -> Result<u64> {
    let address = TraceAddress::local(id.clone());
    let trace = read_trace(traces, &address).await?;
    let inserted = traces.inserted(id).await?;
    let (root, name) = (root.clone(), id.clone());
    let (directory, messages) = blocking(move || {
        let directory = root.subdirectory_or_new(name.as_str())?;
        let messages = directory.subdirectory_or_new(MESSAGES)?;
        directory.sweep()?;
        messages.sweep()?;
        Ok((directory, messages))
    })
    .await?;
    let mut export = Export { traces, address: &address, trace, inserted, directory, messages, written: 0 };
    export.others().await?;
    export.messages().await?;
    export.events().await?;
    export.goals().await?;
    export.meta(options.sync).await?;
    Ok(export.written)
}

async fn read_trace(traces: &StoredTraces, address: &TraceAddress) -> Result<Trace> {
    let unknown = || Error::new(ErrorKind::NotFound, format!("the trace `{address}` does not exist; list the traces"));
    traces.get_trace(address).await?.ok_or_else(unknown)
}

/// An export in progress.
struct Export<'t> {
    traces: &'t StoredTraces,
    address: &'t TraceAddress,
    /// The trace when the export began. What was added later is not exported.
    trace: Trace,
    inserted: Option<Inserted>,
    directory: HostDirectory,
    messages: HostDirectory,
    written: u64,
}

impl Export<'_> {
    /// Writes the files that are not part of the layout.
    async fn others(&mut self) -> Result<()> {
        if self.inserted.is_none() {
            return Ok(());
        }
        let mut after: Option<String> = None;
        loop {
            let names = self.traces.original_files(self.address.id(), after.as_deref()).await?;
            let Some(last) = names.last() else { return Ok(()) };
            after = Some(last.clone());
            for path in names.iter().filter(|path| ![META, GOAL, EVENTS].contains(&path.as_str())) {
                let (directory, of) = (self.directory.clone(), path.clone());
                let (directory, name) = blocking(move || {
                    let mut directory = directory;
                    let mut components: Vec<&str> = of.split('/').collect();
                    let name = components.pop().unwrap_or_default().to_owned();
                    for component in components {
                        directory = directory.subdirectory_or_new(component)?;
                    }
                    Ok((directory, name))
                })
                .await?;
                self.copy(directory, name, path).await?;
            }
        }
    }

    /// Writes a file as it was imported.
    async fn copy(&mut self, directory: HostDirectory, name: String, path: &str) -> Result<()> {
        let first = self.part(path, 0).await?.ok_or_else(changed)?;
        let Some(second) = self.part(path, 1).await? else {
            return self.replace(directory, vec![(name, first)]).await;
        };
        let of = directory.clone();
        let mut new = blocking(move || of.new_file()).await?;
        let (mut number, mut next) = (2, Some(second));
        new = pushed(new, first).await?;
        while let Some(part) = next {
            new = pushed(new, part).await?;
            next = self.part(path, number).await?;
            number += 1;
        }
        self.written += 1;
        blocking(move || new.rename(&name)).await
    }

    async fn part(&self, path: &str, number: usize) -> Result<Option<Bytes>> {
        self.traces.original_part(self.address.id(), Originals::Files, path, number).await
    }

    async fn messages(&mut self) -> Result<()> {
        let mut since = 0;
        while since < self.trace.last_sequence {
            let query = MessagesQuery { since_sequence: Some(since), limit: MESSAGES_AT_ONCE, ..MessagesQuery::default() };
            let mut messages = self.traces.get_messages(self.address, &query).await?.messages;
            messages.retain(|message| message.sequence > since && message.sequence <= self.trace.last_sequence);
            since = messages.last().ok_or_else(changed)?.sequence;
            messages.retain(|message| !missing::is_placeholder(message));
            let originals = match self.inserted {
                Some(_) => {
                    let ids: Vec<&str> = messages.iter().map(|message| message.message_id.as_str()).collect();
                    self.traces.original_messages(self.address.id(), &ids).await?
                }
                None => vec![None; messages.len()],
            };
            let mut files = Vec::with_capacity(messages.len());
            for (message, first) in messages.iter().zip(originals) {
                let original = match first {
                    Some(first) => Some(self.whole(&message.message_id, first).await?),
                    None => None,
                };
                files.push((file_name(&message.message_id), self.message(message, original)?));
            }
            self.replace(self.messages.clone(), files).await?;
        }
        Ok(())
    }

    /// Returns the file of a message as it was imported, given its first part.
    async fn whole(&self, message_id: &str, first: Bytes) -> Result<Bytes> {
        let mut content = Vec::from(first);
        for number in 1.. {
            match self.traces.original_part(self.address.id(), Originals::Messages, message_id, number).await? {
                Some(part) => content.extend_from_slice(&part),
                None => break,
            }
        }
        Ok(content.into())
    }

    /// Returns the content of a message's file.
    fn message(&self, message: &Message, original: Option<Bytes>) -> Result<Bytes> {
        let now = render::message(message)?;
        let Some(original) = original else { return Ok(render::content(&now).into()) };
        match read::message(self.address.id(), &message.message_id, &original) {
            Ok((base, _)) => changed_file(original, &render::message(&base)?, &now),
            Err(_) => Ok(render::content(&now).into()),
        }
    }

    /// Writes the events: those that were imported with all lines of their file, and those that were added.
    async fn events(&mut self) -> Result<()> {
        let first = match self.inserted {
            Some(_) => self.part(EVENTS, 0).await?,
            None => None,
        };
        let mut since = self.inserted.as_ref().map_or(0, |inserted| inserted.trace.last_event_id);
        if first.is_none() && since >= self.trace.last_event_id {
            return Ok(());
        }
        let directory = self.directory.clone();
        let mut new = blocking(move || directory.new_file()).await?;
        let (mut part, mut number, mut is_ended) = (first, 1, true);
        while let Some(content) = part {
            is_ended = content.last().map_or(is_ended, |byte| *byte == b'\n');
            new = pushed(new, content).await?;
            part = self.part(EVENTS, number).await?;
            number += 1;
        }
        while since < self.trace.last_event_id {
            let mut events = self.traces.get_events(self.address, since, PAGE_MAX).await?.events;
            events.retain(|event| event.event_id > since && event.event_id <= self.trace.last_event_id);
            since = events.last().ok_or_else(changed)?.event_id;
            let mut lines = if is_ended { String::new() } else { "\n".to_owned() };
            is_ended = true;
            for event in &events {
                lines.push_str(&render::event(event)?);
            }
            new = pushed(new, lines.into()).await?;
        }
        self.written += 1;
        blocking(move || new.rename(EVENTS)).await
    }

    async fn goals(&mut self) -> Result<()> {
        let tree = self.traces.get_goal_tree(self.address).await?;
        let original = match self.inserted {
            Some(_) => self.original(GOAL).await?,
            None => None,
        };
        let content = match (original, &self.inserted) {
            (Some(original), Some(inserted)) => changed_file(original, &render::goals(&inserted.goals)?, &render::goals(&tree)?)?,
            (None, Some(inserted)) if is_same(&render::goals(&inserted.goals)?, &render::goals(&tree)?) => return Ok(()),
            _ if tree == GoalTree::default() => return Ok(()),
            _ => render::content(&render::goals(&tree)?).into(),
        };
        self.replace(self.directory.clone(), vec![(GOAL.to_owned(), content)]).await
    }

    /// Writes `meta.json`, which completes the trace.
    async fn meta(&mut self, sync: bool) -> Result<()> {
        let now = render::trace(&self.trace)?;
        let content = match (self.inserted.as_ref(), self.original_of_meta().await?) {
            (Some(inserted), Some(original)) => changed_file(original, &render::trace(&inserted.trace)?, &now)?,
            _ => render::content(&now).into(),
        };
        // Rows of a trace that was deleted and created again meanwhile do not belong together.
        if read_trace(self.traces, self.address).await?.created_at != self.trace.created_at {
            return Err(changed());
        }
        if sync {
            let directory = self.directory.clone();
            blocking(move || directory.flush()).await?;
        }
        self.replace(self.directory.clone(), vec![(META.to_owned(), content)]).await?;
        let directory = self.directory.clone();
        if sync { blocking(move || directory.flush()).await } else { Ok(()) }
    }

    async fn original_of_meta(&self) -> Result<Option<Bytes>> {
        match self.inserted {
            Some(_) => self.original(META).await,
            None => Ok(None),
        }
    }

    /// Returns a file as it was imported.
    async fn original(&self, name: &str) -> Result<Option<Bytes>> {
        let Some(first) = self.part(name, 0).await? else { return Ok(None) };
        let mut content = Vec::from(first);
        for number in 1.. {
            match self.part(name, number).await? {
                Some(part) => content.extend_from_slice(&part),
                None => break,
            }
        }
        Ok(Some(content.into()))
    }

    /// Writes the files of a directory that have another content or are missing.
    async fn replace(&mut self, directory: HostDirectory, files: Vec<(String, Bytes)>) -> Result<()> {
        let replace = move || {
            let mut written = 0;
            for (name, content) in files {
                written += u64::from(directory.replace(&name, &content)?);
            }
            Ok(written)
        };
        self.written += blocking(replace).await?;
        Ok(())
    }
}

/// Returns the content of a file that was imported: as it was if its value is still the one that was read from it.
fn changed_file(original: Bytes, base: &Json, now: &Json) -> Result<Bytes> {
    if is_same(base, now) {
        return Ok(original);
    }
    match Json::from_bytes(&original) {
        Ok(original) => Ok(render::content(&merged(&original, base, now)?).into()),
        Err(_) => Ok(render::content(now).into()),
    }
}

async fn pushed(mut new: NewFile, part: Bytes) -> Result<NewFile> {
    blocking(move || {
        new.push(&part)?;
        Ok(new)
    })
    .await
}

fn changed() -> Error {
    Error::new(ErrorKind::Conflict, "the trace changed while it was exported; export it again").without_effect()
}
