//! The file of a trace's events, which is read page by page.

use super::render::{self, time_of, version_of};
use super::visible;
use crate::contract::{PAGE_MAX, TraceStore};
use crate::id::TraceAddress;
use crate::model::{Trace, TraceEvent};
use bytes::Bytes;
use jiff::Timestamp;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use treehold_core::error::{Error, Result};
use treehold_core::ops::{Entry, FileRead, ReadOptions, ReadRange, Version, Window};
use treehold_core::path::VfsPathBuf;
use treehold_core::text::{LineCutter, check_whole, checked_offset};

/// The number of traces whose sizes are known at a time.
const TRACES_KNOWN: usize = 1_024;

/// The positions in the events of recently accessed traces. Events never change, so only new ones are read again.
#[derive(Debug, Default)]
pub(super) struct EventFiles(Mutex<HashMap<TraceAddress, Arc<EventFile>>>);

/// A position between two events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Mark {
    /// The id of the event before it.
    event_id: u64,
    /// The bytes before it.
    offset: u64,
    /// The lines before it.
    lines: usize,
}

/// The events of a trace up to one of them, as a file.
#[derive(Debug, Clone)]
pub(super) struct EventFile {
    /// When the trace was created: another trace may get its id.
    created_at: Option<String>,
    /// Positions in order, about a page apart: the first at the start, the last at the end.
    marks: Vec<Mark>,
    /// When the last event happened.
    modified_at: Option<Timestamp>,
}

impl EventFiles {
    /// Returns the events up to the last one of the trace as it was read.
    ///
    /// Cost: one round trip for 1,000 events that were not read before.
    pub(super) async fn of(&self, traces: &dyn TraceStore, trace: &Trace) -> Result<Arc<EventFile>> {
        let known = self.0.lock().get(&trace.trace_id).filter(|known| known.created_at == trace.created_at).cloned();
        if let Some(known) = known.as_ref().filter(|known| known.end().event_id == trace.last_event_id) {
            return Ok(known.clone());
        }
        let mut file = match known {
            Some(known) => EventFile::clone(&known),
            None => EventFile { created_at: trace.created_at.clone(), marks: vec![Mark::default()], modified_at: None },
        };
        file.marks.retain(|mark| mark.event_id <= trace.last_event_id);
        file.extend(traces, trace).await?;
        let file = Arc::new(file);
        let mut known = self.0.lock();
        if known.len() >= TRACES_KNOWN && !known.contains_key(&trace.trace_id) {
            known.clear();
        }
        known.insert(trace.trace_id.clone(), file.clone());
        Ok(file)
    }

    /// Reads a part of the events.
    pub(super) async fn read(&self, traces: &dyn TraceStore, trace: &Trace, options: &ReadOptions) -> Result<FileRead> {
        let file = self.of(traces, trace).await?;
        let (content, window) = match options.range {
            ReadRange::Whole => {
                check_whole(file.end().offset, options)?;
                (file.bytes(traces, trace, 0, file.end().offset).await?, None)
            }
            ReadRange::Bytes { offset, limit } => {
                let start = checked_offset(offset, file.end().offset)?;
                let end = start.saturating_add(limit.min(options.bytes_max)).min(file.end().offset);
                (file.bytes(traces, trace, start, end).await?, None)
            }
            ReadRange::Lines { offset, limit } => {
                let (content, window) = file.lines(traces, trace, offset, limit, options.bytes_max).await?;
                (content, Some(window))
            }
        };
        let mut read = FileRead::new(content, file.version(), file.modified_at);
        (read.size_bytes, read.window) = (file.end().offset, window);
        Ok(read)
    }
}

impl EventFile {
    pub(super) fn entry(&self, path: VfsPathBuf) -> Entry {
        Entry::file(path, self.end().offset, self.version()).with_times(self.created_at.as_deref().and_then(time_of), self.modified_at)
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.end().offset
    }

    /// Returns the events as lines.
    pub(super) async fn content(&self, traces: &dyn TraceStore, trace: &Trace) -> Result<Bytes> {
        self.bytes(traces, trace, 0, self.end().offset).await
    }

    fn version(&self) -> Version {
        let Mark { event_id, offset, .. } = self.end();
        version_of(format!("{:?} {event_id} {offset}", self.created_at).as_bytes())
    }

    fn end(&self) -> Mark {
        *self.marks.last().expect("the first mark stays")
    }

    /// Returns the last position that is not behind one by the given measure.
    fn mark_before(&self, is_before: impl Fn(&Mark) -> bool) -> Mark {
        self.marks[self.marks.partition_point(is_before).saturating_sub(1)]
    }

    /// Adds the events that are missing.
    async fn extend(&mut self, traces: &dyn TraceStore, trace: &Trace) -> Result<()> {
        let mut pages = Pages { traces, address: &trace.trace_id, after: self.end().event_id, last: trace.last_event_id };
        while let Some(events) = pages.next().await? {
            let mut mark = self.end();
            for event in &events {
                mark.offset += render::event(event)?.len() as u64;
                mark.event_id = event.event_id;
                mark.lines += 1;
                self.modified_at = event.ts.as_deref().and_then(time_of).or(self.modified_at);
            }
            // Marks closer than half a page are merged.
            let is_near = self.marks.iter().nth_back(1).is_some_and(|before| mark.lines - before.lines < PAGE_MAX / 2);
            if is_near {
                self.marks.pop();
            }
            self.marks.push(mark);
        }
        // Ids without events may follow the last event. Without this, they would be looked for again.
        if let Some(end) = self.marks.last_mut().filter(|end| end.lines > 0) {
            end.event_id = trace.last_event_id;
        }
        Ok(())
    }

    /// Returns a range of bytes.
    async fn bytes(&self, traces: &dyn TraceStore, trace: &Trace, start: u64, end: u64) -> Result<Bytes> {
        let mark = self.mark_before(|mark| mark.offset <= start);
        let (mut at, mut content) = (mark.offset, Vec::new());
        let mut pages = Pages { traces, address: &trace.trace_id, after: mark.event_id, last: self.end().event_id };
        while at < end {
            let Some(events) = pages.next().await? else { return Err(removed()) };
            for event in &events {
                let line = render::event(event)?;
                let next = at + line.len() as u64;
                let within = |position: u64| position.clamp(at, next) - at;
                content.extend_from_slice(&line.as_bytes()[within(start) as usize..within(end) as usize]);
                at = next;
            }
        }
        Ok(content.into())
    }

    /// Returns a window of lines.
    async fn lines(&self, traces: &dyn TraceStore, trace: &Trace, offset: usize, limit: usize, bytes_max: u64) -> Result<(Bytes, Window)> {
        let end = self.end();
        let mark = self.mark_before(|mark| mark.lines <= offset);
        let mut cutter = LineCutter::new(offset - mark.lines.min(offset), limit, bytes_max);
        let mut at = mark.lines;
        let mut pages = Pages { traces, address: &trace.trace_id, after: mark.event_id, last: end.event_id };
        while at < end.lines.min(offset.saturating_add(limit)) {
            let Some(events) = pages.next().await? else { return Err(removed()) };
            for event in &events {
                cutter.push(render::event(event)?.as_bytes())?;
            }
            at += events.len();
        }
        if offset > end.lines {
            return Err(Error::invalid_argument(format!("line offset {offset} is past the end: the file has {} lines", end.lines)));
        }
        let (content, window) = cutter.finish()?;
        Ok((content, Window { offset, lines: window.lines, total_lines: end.lines }))
    }
}

/// The trace was removed while its events were read.
fn removed() -> Error {
    Error::new(treehold_core::error::ErrorKind::Conflict, "the events changed while they were read; read them again")
}

/// Reads events up to a last one, page by page.
struct Pages<'a> {
    traces: &'a dyn TraceStore,
    address: &'a TraceAddress,
    after: u64,
    last: u64,
}

impl Pages<'_> {
    /// Returns the next events; `None` at the end and for a trace that disappeared.
    async fn next(&mut self) -> Result<Option<Vec<TraceEvent>>> {
        if self.after >= self.last {
            return Ok(None);
        }
        let Some(mut page) = visible(self.traces.get_events(self.address, self.after, PAGE_MAX).await)? else { return Ok(None) };
        page.events.retain(|event| event.event_id > self.after && event.event_id <= self.last);
        match page.events.last() {
            Some(last) => self.after = last.event_id,
            None => return Ok(None),
        }
        if !page.more {
            self.last = self.after;
        }
        Ok(Some(page.events))
    }
}
