//! Compaction: replaces the oldest messages of a window with a summary.
//!
//! Compaction rewrites and deletes nothing. The messages stay where they are, an archive names their range, and the window
//! starts after them. Making a summary takes time, so the window is replaced only if no other compaction changed it
//! meanwhile. Messages that were appended meanwhile stay in the window.
//!
//! [`view`] has two layers that change what a model is shown and leave the stored messages as they are.

mod cut;
mod placeholder;
mod start;
pub mod view;

pub use placeholder::{Placeholder, notes_entry};
pub(crate) use placeholder::{archive_id, archive_number, archive_of_placeholder, iso_of_millisecond};
pub use start::SessionWindow;

use crate::message::Message;
use crate::numbers::following;
use crate::rows::{self, Head, Opened, Part, Window, position_key};
use crate::sessions::Sessions;
use async_trait::async_trait;
use cut::safe_cut;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::row;
use treehold_core::retry::Attempts;
use treehold_store::Batch;

/// The fewest messages of a window that is compacted.
pub const COMPACT_MESSAGES_MIN: u64 = 6;

/// The longest summary, and the longest listing of a workspace, in bytes.
pub const SUMMARY_BYTES_MAX: usize = 256 << 10;

/// Makes a summary of messages, usually by asking a model.
#[async_trait]
pub trait Summarizer: Send + Sync {
    /// Returns the summary.
    ///
    /// # Errors
    /// Any: the compaction fails with it and changes nothing.
    async fn summarize(&self, messages: &[Message]) -> Result<String>;
}

/// A function as a [`Summarizer`].
#[derive(Debug, Clone)]
pub struct SummarizeWith<F>(pub F);

#[async_trait]
impl<F, R> Summarizer for SummarizeWith<F>
where
    F: Fn(Vec<Message>) -> R + Send + Sync,
    R: Future<Output = Result<String>> + Send,
{
    async fn summarize(&self, messages: &[Message]) -> Result<String> {
        (self.0)(messages.to_vec()).await
    }
}

/// Options of a compaction.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct CompactOptions {
    /// The estimate at which a window is compacted. Default 80,000 tokens.
    pub trigger_tokens: u64,
    /// The share of the messages to compact, from 0 to 1. Default 0.5.
    pub compact_fraction: f64,
    /// A listing of the sandbox's files, to be included in the summary.
    pub workspace_snapshot: Option<String>,
}

impl Default for CompactOptions {
    fn default() -> Self {
        Self { trigger_tokens: 80_000, compact_fraction: 0.5, workspace_snapshot: None }
    }
}

impl CompactOptions {
    /// Starts from the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the estimate at which a window is compacted.
    #[must_use]
    pub fn with_trigger_tokens(mut self, tokens: u64) -> Self {
        self.trigger_tokens = tokens;
        self
    }

    /// Sets the share of the messages that is compacted.
    #[must_use]
    pub fn with_compact_fraction(mut self, fraction: f64) -> Self {
        self.compact_fraction = fraction;
        self
    }

    /// Adds a listing of the sandbox's files to the summary.
    #[must_use]
    pub fn with_workspace_snapshot(mut self, listing: impl Into<String>) -> Self {
        self.workspace_snapshot = Some(listing.into());
        self
    }
}

/// The result of a compaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Compaction {
    /// The archive, such as `0001`.
    pub archive_id: String,
    /// How many messages the summary replaces.
    pub messages: u64,
    /// The estimate of the window before.
    pub tokens_before: u64,
    /// The estimate of the window after.
    pub tokens_after: u64,
}

/// The row of an archive: a range of the messages, and the summary that took their place.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ArchiveRow {
    /// The archive whose summary was first in the window.
    pub(crate) previous: Option<u64>,
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) messages: u64,
    pub(crate) summary: String,
    pub(crate) compacted_at: String,
    /// The summary; `None` for an imported archive, whose placeholder is a message of its own.
    pub(crate) placeholder: Option<Message>,
}

/// What to compact: the messages to summarise, and the window that begins with them.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CompactionPlan {
    /// The window, as it was read.
    pub window: SessionWindow,
    /// The messages: the summary at the beginning of the window, if it has one, and those after it.
    pub messages: Vec<Message>,
    /// The estimate of the messages.
    pub tokens: u64,
}

/// A window with the number of messages that a summary replaces.
#[derive(Debug, Clone, Copy)]
struct Cut {
    window: Window,
    /// The position that the window will begin at.
    to: u64,
    messages: u64,
    tokens: u64,
}

impl Sessions {
    /// Compacts the window if its estimate is at least [`trigger_tokens`](CompactOptions::trigger_tokens) and it has six
    /// messages. Returns the result, or `None` if there was nothing to do or the session does not exist. If another compaction is
    /// faster, this one has no effect, and the new window is checked again.
    ///
    /// Cost: two round trips if nothing is to be done. Otherwise it reads the messages that are compacted and writes the
    /// summary.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a fraction outside 0 to 1, [`TooLarge`](ErrorKind::TooLarge) for
    /// a summary over [`SUMMARY_BYTES_MAX`], otherwise those of the summariser and of [`Sessions::load`].
    pub async fn compact_if_needed(
        &self,
        tenant: &str,
        session: &str,
        summarizer: &dyn Summarizer,
        options: &CompactOptions,
    ) -> Result<Option<Compaction>> {
        self.compact_from(tenant, session, summarizer, options, options.trigger_tokens).await
    }

    /// Compacts the window, however small its estimate. Otherwise as [`Sessions::compact_if_needed`].
    ///
    /// # Errors
    /// As [`Sessions::compact_if_needed`].
    pub async fn compact(
        &self,
        tenant: &str,
        session: &str,
        summarizer: &dyn Summarizer,
        options: &CompactOptions,
    ) -> Result<Option<Compaction>> {
        self.compact_from(tenant, session, summarizer, options, 0).await
    }

    async fn compact_from(
        &self,
        tenant: &str,
        session: &str,
        summarizer: &dyn Summarizer,
        options: &CompactOptions,
        trigger_tokens: u64,
    ) -> Result<Option<Compaction>> {
        let is_forced = trigger_tokens == 0;
        let options = options.clone().with_trigger_tokens(trigger_tokens);
        loop {
            let Some(opened) = self.open(tenant, session).await? else { return Ok(None) };
            self.try_pending_notes(&opened).await;
            let Some(plan) = self.plan_compaction(tenant, session, &options).await? else { return Ok(None) };
            let summary = summarizer.summarize(&plan.messages).await?;
            let count = plan.messages.len() as u64;
            match self.apply_compaction(tenant, session, &plan.window, count, &summary, options.workspace_snapshot.as_deref()).await {
                // A forced compaction that lost the race is satisfied by the other one.
                Err(error) if error.kind() == ErrorKind::Conflict && is_forced => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
                applied => return applied.map(Some),
            }
        }
    }

    /// Plans a compaction for callers that make the summary elsewhere; [`Sessions::apply_compaction`] completes it. Returns
    /// `None` if there is nothing to do or the session does not exist. A trigger of 0 plans the compaction of any window.
    ///
    /// Cost: two round trips if nothing is to be done. Otherwise it reads the messages that are to be compacted.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a fraction outside 0 to 1, otherwise as [`Sessions::load`].
    pub async fn plan_compaction(&self, tenant: &str, session: &str, options: &CompactOptions) -> Result<Option<CompactionPlan>> {
        if !(0.0..=1.0).contains(&options.compact_fraction) {
            let message = format!("the fraction {} is not between 0 and 1", options.compact_fraction);
            return Err(Error::invalid_argument(message));
        }
        let Some(opened) = self.open(tenant, session).await? else { return Ok(None) };
        let head = &opened.head;
        let len = head.window_len();
        if head.window.tokens < options.trigger_tokens || len < COMPACT_MESSAGES_MIN {
            return Ok(None);
        }
        let window = head.window;
        let metas = self.read_metas(head, window.from..head.messages_end).await?;
        // The summary counts as a message and is always compacted. It is neither a result nor a call.
        let summaries = usize::from(window.archive.is_some());
        let wanted = ((len as f64 * options.compact_fraction).floor() as usize).max(1 + summaries) - summaries;
        let Some(cut) = safe_cut(&metas, window.from, wanted) else { return Ok(None) };
        let mut messages: Vec<Message> = self.placeholder_of(head).await?.into_iter().collect();
        messages.extend(self.read_messages(head, window.from..window.from + cut as u64).await?);
        let tokens = messages.iter().map(Message::tokens).sum();
        Ok(Some(CompactionPlan { window: SessionWindow::of(head), messages, tokens }))
    }

    /// Replaces the first `count` messages of a window with their summary. The window must still start as it did when it was
    /// read; messages that were appended since then stay.
    ///
    /// Cost: four to six round trips, and a few bytes for each message of the window.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) if another compaction was faster, [`NotFound`](ErrorKind::NotFound) for an unknown
    /// session, [`InvalidArgument`](ErrorKind::InvalidArgument) for a count that leaves no message, compacts none, or separates
    /// a tool result from its call, [`TooLarge`](ErrorKind::TooLarge) for a summary over [`SUMMARY_BYTES_MAX`], and errors of
    /// the store.
    pub async fn apply_compaction(
        &self,
        tenant: &str,
        session: &str,
        window: &SessionWindow,
        count: u64,
        summary: &str,
        workspace_snapshot: Option<&str>,
    ) -> Result<Compaction> {
        for (what, text) in [("summary", Some(summary)), ("listing of the workspace", workspace_snapshot)] {
            let size_bytes = text.map_or(0, str::len);
            if size_bytes > SUMMARY_BYTES_MAX {
                let message = format!("the {what} has {size_bytes} bytes and at most {SUMMARY_BYTES_MAX} are allowed");
                return Err(Error::new(ErrorKind::TooLarge, message));
            }
        }
        let now = self.clock.now();
        let mut cut = None;
        let mut attempts = Attempts::new();
        loop {
            let opened = self.open_existing(tenant, session).await?;
            let head = &opened.head;
            if !SessionWindow::of(head).starts_like(window) {
                let message = "the window was compacted meanwhile; plan the compaction again";
                return Err(Error::new(ErrorKind::Conflict, message));
            }
            let cut = match cut {
                Some(cut) => cut,
                None => *cut.insert(self.cut_at(head, count).await?),
            };
            if let Some(done) = self.replace_window(&opened, cut, now, summary, workspace_snapshot).await? {
                return Ok(done);
            }
            attempts.lost().await?;
        }
    }

    /// Checks the number of messages that a compaction replaces.
    async fn cut_at(&self, head: &Head, count: u64) -> Result<Cut> {
        let window = head.window;
        let placeholder = self.placeholder_of(head).await?;
        let summaries = u64::from(placeholder.is_some());
        let metas = self.read_metas(head, window.from..head.messages_end).await?;
        let before = count.checked_sub(summaries).filter(|before| *before > 0 && *before < metas.len() as u64);
        let Some(before) = before else {
            let message = format!("{count} of {} messages cannot be compacted; leave at least one", head.window_len());
            return Err(Error::invalid_argument(message));
        };
        if safe_cut(&metas, window.from, before as usize) != Some(before as usize) {
            let message = format!("after {count} messages a tool result would lose its call; compact as many as the plan says");
            return Err(Error::invalid_argument(message));
        }
        let summary_tokens = placeholder.map_or(0, |placeholder| placeholder.tokens());
        let tokens = metas[..before as usize].iter().fold(summary_tokens, |sum, meta| sum.saturating_add(meta.tokens));
        Ok(Cut { window, to: window.from + before, messages: count, tokens })
    }

    /// Replaces the window. Returns `None` if the head changed meanwhile.
    async fn replace_window(
        &self,
        opened: &Opened,
        cut: Cut,
        now: Timestamp,
        summary: &str,
        workspace_snapshot: Option<&str>,
    ) -> Result<Option<Compaction>> {
        let head = &opened.head;
        let number = following("archive", head.archives)?;
        let placeholder =
            Placeholder { compacted_at: now, archive: number, messages: cut.messages, tokens: cut.tokens, summary, workspace_snapshot };
        let message = placeholder.message();
        let archive = ArchiveRow {
            previous: cut.window.archive,
            from: cut.window.from,
            to: cut.to,
            messages: cut.messages,
            summary: summary.to_owned(),
            compacted_at: placeholder.time(),
            placeholder: Some(message.clone()),
        };
        let mut next = head.clone();
        next.archives = number;
        let tokens = head.window.tokens.saturating_sub(cut.tokens).saturating_add(message.tokens());
        next.window = Window { archive: Some(number), from: cut.to, tokens };
        next.notes_pending = head.notes_pending.or(Some(number));
        let batch = Batch::new().put(&head.part(Part::Archives)?, position_key(number), row(&archive));
        if rows::commit(&*self.store, opened.replace(batch, &next)?).await?.is_none() {
            return Ok(None);
        }
        // The compaction took effect, whatever happens to the notes.
        match self.open(&next.tenant_id, &next.session_id).await {
            Ok(Some(opened)) => self.try_pending_notes(&opened).await,
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, session = next.session_id, "the next compaction adds the summary to the notes"),
        }
        Ok(Some(Compaction {
            archive_id: archive_id(number),
            messages: cut.messages,
            tokens_before: head.window.tokens,
            tokens_after: tokens,
        }))
    }

    /// Adds the summaries that the notes lack. If that fails, the next compaction does it: the notes may be a directory, which only
    /// the user can mend.
    async fn try_pending_notes(&self, opened: &Opened) {
        if let Err(error) = self.add_pending_notes(opened).await {
            let session = &opened.head.session_id;
            tracing::warn!(%error, session, "the summary of a compaction is missing from the notes; the next compaction adds it");
        }
    }

    /// Adds the summaries that the notes lack: of the archive that is recorded, and of those after it.
    async fn add_pending_notes(&self, opened: &Opened) -> Result<()> {
        let head = &opened.head;
        let Some(first) = head.notes_pending else { return Ok(()) };
        for number in first..=head.archives {
            if let Some(archive) = self.archive(head, number).await? {
                let entry = notes_entry(&archive_id(number), archive.messages, &archive.compacted_at, &archive.summary);
                self.append_notes_once(head, &entry).await?;
            }
        }
        let mut attempts = Attempts::new();
        loop {
            let Some(opened) = self.open(&head.tenant_id, &head.session_id).await? else { return Ok(()) };
            if opened.head.data != head.data || opened.head.notes_pending != Some(first) {
                return Ok(());
            }
            let newer = (opened.head.archives > head.archives).then_some(head.archives + 1);
            let next = Head { notes_pending: newer, ..opened.head.clone() };
            if rows::commit(&*self.store, opened.replace(Batch::new(), &next)?).await?.is_some() {
                return Ok(());
            }
            attempts.lost().await?;
        }
    }
}
