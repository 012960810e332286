//! Checks of answers before anything of them is used. The other server may be faulty or hostile.

use super::Place;
use super::ids::is_of_sender;
use crate::contract::{Added, MessagesPage, MessagesQuery, PAGE_MAX, PathQuery, TracePage, TracesQuery};
use crate::id::TraceId;
use crate::model::{EventsPage, Message, Trace};
use std::collections::HashSet;
use treehold_core::error::{Error, ErrorKind, Result};

/// The longest cursor of a page, in bytes.
const CURSOR_BYTES_MAX: usize = 4 << 10;

impl Place {
    /// Makes the error for an invalid answer. Its content is not repeated, because it may contain anything.
    pub(super) fn invalid(&self, what: &str) -> Error {
        Error::new(ErrorKind::Corrupt, format!("`{}` answered with {what}; is it a treehold server of this version?", self.client.name()))
    }

    pub(super) fn check_trace(&self, trace: &Trace, expected: Option<&TraceId>) -> Result<()> {
        match is_of_sender(&trace.trace_id, expected) {
            true if trace.head_sequence <= trace.last_sequence => Ok(()),
            true => Err(self.invalid("a head beyond the last message")),
            false => Err(self.invalid("another trace")),
        }
    }

    pub(super) fn check_traces(&self, page: &TracePage, query: &TracesQuery) -> Result<()> {
        if page.traces.len() > query.limit.max(1) {
            return Err(self.invalid("more traces than requested"));
        }
        page.traces.iter().try_for_each(|trace| self.check_trace(trace, None))?;
        let ids: HashSet<_> = page.traces.iter().map(|trace| &trace.trace_id).collect();
        if ids.len() < page.traces.len() {
            return Err(self.invalid("a trace twice on one page"));
        }
        match &page.next {
            Some(_) if page.traces.is_empty() => Err(self.invalid("an empty page that claims to have a next one")),
            Some(next) if next.len() > CURSOR_BYTES_MAX => Err(self.invalid("a cursor that is too long")),
            Some(next) if query.cursor.as_ref() == Some(next) => Err(self.invalid("a cursor that does not advance")),
            _ => Ok(()),
        }
    }

    pub(super) fn check_message(&self, message: &Message) -> Result<()> {
        if !is_of_sender(&message.trace_id, Some(&self.id)) {
            return Err(self.invalid("a message of another trace"));
        }
        if message.sequence == 0 || message.parent_sequence.is_some_and(|parent| parent == 0 || parent >= message.sequence) {
            return Err(self.invalid("a message before its parent"));
        }
        Ok(())
    }

    pub(super) fn check_page(&self, page: &MessagesPage, query: &MessagesQuery) -> Result<()> {
        if page.messages.len() > query.limit {
            return Err(self.invalid("more messages than requested"));
        }
        let mut last = query.since_sequence.unwrap_or(0);
        for message in &page.messages {
            self.check_message(message)?;
            if message.sequence <= last {
                return Err(self.invalid("sequences that do not advance"));
            }
            if query.goal_id.is_some() && message.goal_id != query.goal_id {
                return Err(self.invalid("a message of another goal"));
            }
            last = message.sequence;
        }
        if page.more && page.messages.is_empty() {
            return Err(self.invalid("an empty page that claims to have a next one"));
        }
        Ok(())
    }

    pub(super) fn check_path(&self, page: &MessagesPage, query: &PathQuery) -> Result<()> {
        if page.messages.len() > query.limit.unwrap_or(PAGE_MAX) {
            return Err(self.invalid("more messages than requested"));
        }
        page.messages.iter().try_for_each(|message| self.check_message(message))?;
        if page.messages.windows(2).any(|pair| pair[1].parent_sequence != Some(pair[0].sequence)) {
            return Err(self.invalid("a path whose messages do not follow each other"));
        }
        let end = page.messages.last().map(|message| message.sequence);
        match query.head_sequence {
            Some(0) if end.is_some() => return Err(self.invalid("another path")),
            Some(head) if head > 0 && end != Some(head) => return Err(self.invalid("another path")),
            _ => {}
        }
        // The parent of a message has a smaller sequence, so paging back always ends.
        if page.earlier != page.messages.first().and_then(|message| message.parent_sequence) {
            return Err(self.invalid("a page that does not continue its path"));
        }
        Ok(())
    }

    pub(super) fn check_added(&self, added: &Added, count: usize) -> Result<()> {
        if added.messages.len() != count {
            return Err(self.invalid("other messages than were appended"));
        }
        added.messages.iter().try_for_each(|message| self.check_message(message))?;
        if added.messages.windows(2).any(|pair| pair[0].sequence.checked_add(1) != Some(pair[1].sequence)) {
            return Err(self.invalid("sequences that do not advance"));
        }
        Ok(())
    }

    pub(super) fn check_events(&self, page: &EventsPage, since_event_id: u64, limit: usize) -> Result<()> {
        if page.events.len() > limit {
            return Err(self.invalid("more events than requested"));
        }
        let mut last = since_event_id;
        for event in &page.events {
            if event.event_id <= last {
                return Err(self.invalid("event ids that do not advance"));
            }
            last = event.event_id;
        }
        if page.more && page.events.is_empty() {
            return Err(self.invalid("an empty page that claims to have a next one"));
        }
        Ok(())
    }
}
