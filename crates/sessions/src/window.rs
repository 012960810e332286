//! Reads conversations: the newest messages, the messages within a budget, the window, archives, and the full history.

use crate::append::MessageMeta;
use crate::compact::{ArchiveRow, SessionWindow, archive_number, archive_of_placeholder};
use crate::message::Message;
use crate::rows::{Head, Part, position_key};
use crate::sessions::{ReadBytes, Sessions};
use std::ops::Range;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::stored;
use treehold_core::work;
use treehold_store::{Item, ScanEntry, ScanOptions};

/// The default budget of [`Sessions::load_with_budget`] in tokens.
pub const BUDGET_TOKENS: u64 = 100_000;

/// How many rows the search for a window reads first; each further read takes twice as many.
const FIRST_ROWS: u64 = 64;

/// How many rows the search for a window reads at most at once.
const ROWS_MAX: u64 = 1_024;

/// Which messages of a session to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MessagesView<'a> {
    /// The newest messages of the window, up to this number; `None` for the whole window.
    Recent(Option<usize>),
    /// The longest tail of the window that a budget in tokens allows, see [`Sessions::load_with_budget`].
    Budget(u64),
    /// Every message, see [`Sessions::load_full`].
    Full,
    /// The messages of an archive (`None` for the newest), up to this number, see [`Sessions::load_compacted`].
    Archive(Option<&'a str>, Option<usize>),
    /// A page of the log: at most `limit` messages from a position on, whether or not they were compacted. The log of an
    /// imported session also has the summaries that its files held.
    Log {
        /// The position of the first message.
        from: u64,
        /// The most messages.
        limit: usize,
    },
}

/// Messages of a session, and its window at that moment.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct MessagesRead {
    /// The messages, oldest first.
    pub messages: Vec<Message>,
    /// The window.
    pub window: SessionWindow,
    /// The position where the next page of the log starts; `None` at its end and for other views.
    pub next: Option<u64>,
}

impl Sessions {
    /// Returns the most recent `limit` messages of the window, oldest first. Without a limit it returns the whole window.
    /// An unknown session has no messages. A limit may cut a tool result from its call;
    /// [`Sessions::load_with_budget`] never does.
    ///
    /// Cost: three or four round trips and the messages that are returned, independent of the length of the session.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for an id that no session can have,
    /// [`Corrupt`](ErrorKind::Corrupt) for rows that are missing or damaged, and errors of the store.
    pub async fn load(&self, tenant: &str, session: &str, limit: Option<usize>) -> Result<Vec<Message>> {
        self.read_of(tenant, session, MessagesView::Recent(limit)).await
    }

    /// Returns the window: the summary of the compacted messages, then every message since. An unknown session has none.
    ///
    /// # Errors
    /// As [`Sessions::load`].
    pub async fn load_all(&self, tenant: &str, session: &str) -> Result<Vec<Message>> {
        self.read_of(tenant, session, MessagesView::Recent(None)).await
    }

    /// Returns the longest tail of the window that is within a budget and separates no tool result from its call. If no
    /// such tail is within the budget, returns the shortest one: the newest message or, if that is a tool result, the
    /// messages from its call on.
    ///
    /// Cost: as [`Sessions::load`]; a few more bytes for each message that is considered.
    ///
    /// # Errors
    /// As [`Sessions::load`].
    pub async fn load_with_budget(&self, tenant: &str, session: &str, budget_tokens: u64) -> Result<Vec<Message>> {
        self.read_of(tenant, session, MessagesView::Budget(budget_tokens)).await
    }

    /// Returns every message that was ever appended, in order: the window with each summary replaced by its messages.
    ///
    /// # Errors
    /// As [`Sessions::load`].
    pub async fn load_full(&self, tenant: &str, session: &str) -> Result<Vec<Message>> {
        self.read_of(tenant, session, MessagesView::Full).await
    }

    /// Returns the messages of an archive, with those of the archives within it, oldest first: all, or the first `limit`.
    /// Without an id it is the newest archive. An unknown session or archive has none.
    ///
    /// # Errors
    /// As [`Sessions::load`].
    pub async fn load_compacted(
        &self,
        tenant: &str,
        session: &str,
        archive_id: Option<&str>,
        limit: Option<usize>,
    ) -> Result<Vec<Message>> {
        self.read_of(tenant, session, MessagesView::Archive(archive_id, limit)).await
    }

    /// Returns messages and the window; `None` for an unknown session.
    ///
    /// Cost: as the method that the view names.
    ///
    /// # Errors
    /// [`TooLarge`](ErrorKind::TooLarge) for more than [`read_bytes_max`](crate::SessionsOptions::read_bytes_max) bytes, except
    /// for a page of the log, which ends early instead. Otherwise as [`Sessions::load`].
    pub async fn read_messages_of(&self, tenant: &str, session: &str, view: MessagesView<'_>) -> Result<Option<MessagesRead>> {
        let Some(opened) = self.open(tenant, session).await? else { return Ok(None) };
        match self.read_whole(&opened.head, view).await {
            // The session may have been deleted meanwhile.
            Err(error) if error.kind() == ErrorKind::Corrupt => match self.open(tenant, session).await? {
                Some(now) if now.head.data == opened.head.data => Err(error),
                Some(now) => self.read_whole(&now.head, view).await.map(Some),
                None => Ok(None),
            },
            read => read.map(Some),
        }
    }

    async fn read_of(&self, tenant: &str, session: &str, view: MessagesView<'_>) -> Result<Vec<Message>> {
        Ok(self.read_messages_of(tenant, session, view).await?.map_or_else(Vec::new, |read| read.messages))
    }

    async fn read_whole(&self, head: &Head, view: MessagesView<'_>) -> Result<MessagesRead> {
        let window = SessionWindow::of(head);
        if let MessagesView::Log { from, limit } = view {
            let messages = self.read_log(head, from, limit).await?;
            let next = from.saturating_add(messages.len() as u64);
            return Ok(MessagesRead { messages, window, next: Some(next).filter(|next| *next < head.messages_end) });
        }
        Ok(MessagesRead { messages: self.read_by(head, view).await?, window, next: None })
    }

    /// Reads a page of the log, which the store may end early.
    async fn read_log(&self, head: &Head, from: u64, limit: usize) -> Result<Vec<Message>> {
        let wanted = head.messages_end.saturating_sub(from).min(limit.min(self.options.page_max) as u64);
        if wanted == 0 {
            return Ok(Vec::new());
        }
        messages_of(self.read_page(head, Part::Messages, from..from + wanted, true).await?).await
    }

    async fn read_by(&self, head: &Head, view: MessagesView<'_>) -> Result<Vec<Message>> {
        let end = head.messages_end;
        match view {
            MessagesView::Log { from, limit } => self.read_log(head, from, limit).await,
            MessagesView::Recent(limit) => {
                let rows = end - head.window.from;
                let limit = limit.map_or(u64::MAX, |limit| limit as u64);
                self.read_cut(head, Cut { from: end - limit.min(rows), with_placeholder: limit > rows }).await
            }
            MessagesView::Budget(budget_tokens) => {
                let cut = self.find_suffix(head, budget_tokens).await?;
                self.read_cut(head, cut).await
            }
            MessagesView::Full => {
                let window = self.read_cut(head, Cut { from: head.window.from, with_placeholder: true }).await?;
                self.expand(head, Summarized::of(window, head.window.archive, head.archives)).await
            }
            MessagesView::Archive(id, limit) => {
                let newest = Some(head.archives).filter(|number| *number > 0);
                let Some(number) = id.map_or(newest, archive_number) else { return Ok(Vec::new()) };
                let Some(archive) = self.archive(head, number).await? else { return Ok(Vec::new()) };
                let archived = self.summarized(head, number, &archive).await?;
                let mut messages = self.expand(head, archived).await?;
                messages.truncate(limit.unwrap_or(usize::MAX));
                Ok(messages)
            }
        }
    }

    /// Reads the end of the window that begins at a cut.
    async fn read_cut(&self, head: &Head, cut: Cut) -> Result<Vec<Message>> {
        let mut messages = Vec::new();
        if cut.with_placeholder {
            messages.extend(self.placeholder_of(head).await?);
        }
        messages.extend(self.read_messages(head, cut.from..head.messages_end).await?);
        Ok(messages)
    }

    /// Reads messages by position.
    pub(crate) async fn read_messages(&self, head: &Head, range: Range<u64>) -> Result<Vec<Message>> {
        messages_of(self.read_rows(head, Part::Messages, range, true).await?).await
    }

    /// Reads the stored facts about messages.
    pub(crate) async fn read_metas(&self, head: &Head, range: Range<u64>) -> Result<Vec<MessageMeta>> {
        let items = self.read_rows(head, Part::Messages, range, false).await?;
        items.iter().map(|item| stored("message", &item.meta)).collect()
    }

    /// Reads the rows of a range of positions, all of which must exist.
    pub(crate) async fn read_rows(&self, head: &Head, part: Part, range: Range<u64>, with_values: bool) -> Result<Vec<Item>> {
        let mut items: Vec<Item> = Vec::new();
        let mut read = ReadBytes::new(self.options.read_bytes_max);
        let mut next = range.start;
        while next < range.end {
            let page = self.read_page(head, part, next..range.end, with_values).await?;
            next += page.len() as u64;
            page.iter().try_for_each(|item| read.add(item.value.len() + item.meta.len()))?;
            items.extend(page);
        }
        Ok(items)
    }

    /// Reads the first rows of a range of positions: at least one, and as many as the store returns at once.
    pub(crate) async fn read_page(&self, head: &Head, part: Part, range: Range<u64>, with_values: bool) -> Result<Vec<Item>> {
        let limit = (range.end - range.start).min(ROWS_MAX) as usize;
        let mut options = ScanOptions::new().with_values(with_values).with_limit(limit);
        options.start_after = range.start.checked_sub(1).map(position_key);
        let page = self.store.scan(&head.part(part)?, options).await?;
        let mut items = Vec::with_capacity(page.entries.len());
        for entry in page.entries {
            let ScanEntry::Item(item) = entry else { continue };
            let position = range.start + items.len() as u64;
            if item.key != position_key(position) {
                return Err(missing(head, part, position));
            }
            items.push(item);
        }
        if items.is_empty() { Err(missing(head, part, range.start)) } else { Ok(items) }
    }

    /// Returns the summary that is first in the window.
    pub(crate) async fn placeholder_of(&self, head: &Head) -> Result<Option<Message>> {
        let Some(number) = head.window.archive else { return Ok(None) };
        let archive = self.archive(head, number).await?.ok_or_else(|| missing(head, Part::Archives, number))?;
        Ok(archive.placeholder)
    }

    /// Reads the row of an archive.
    pub(crate) async fn archive(&self, head: &Head, number: u64) -> Result<Option<ArchiveRow>> {
        let found = self.store.get(&head.part(Part::Archives)?, &position_key(number)).await?;
        found.map(|item| stored("archive", &item.value)).transpose()
    }

    /// Returns the messages of an archive as they were in the window: the summary of the archive before, then messages.
    pub(crate) async fn archived(&self, head: &Head, archive: &ArchiveRow) -> Result<Vec<Message>> {
        let mut messages = Vec::new();
        if let Some(before) = archive.previous {
            let before = self.archive(head, before).await?.ok_or_else(|| missing(head, Part::Archives, before))?;
            messages.extend(before.placeholder);
        }
        messages.extend(self.read_messages(head, archive.from..archive.to).await?);
        Ok(messages)
    }

    /// Replaces the summary at the beginning of a list by the messages of its archive, and so on. A summary whose archive is
    /// missing stays.
    async fn expand(&self, head: &Head, mut list: Summarized) -> Result<Vec<Message>> {
        let mut read = ReadBytes::new(self.options.read_bytes_max);
        let mut newest_first = Vec::new();
        loop {
            list.messages.iter().try_for_each(|message| read.add(message.json().as_str().len()))?;
            let archive = match list.archive {
                Some(number) => self.archive(head, number).await?.map(|archive| (number, archive)),
                None => None,
            };
            let Some((number, archive)) = archive else { break };
            list.messages.remove(0);
            newest_first.push(list.messages);
            list = self.summarized(head, number, &archive).await?;
        }
        newest_first.push(list.messages);
        Ok(newest_first.into_iter().rev().flatten().collect())
    }

    /// Reads the messages of an archive and what the first one stands for. An archive holds only earlier archives.
    async fn summarized(&self, head: &Head, number: u64, archive: &ArchiveRow) -> Result<Summarized> {
        let messages = self.archived(head, archive).await?;
        Ok(Summarized::of(messages, archive.previous, number - 1))
    }

    /// Finds the tail of the window that a budget allows, without reading texts.
    async fn find_suffix(&self, head: &Head, budget_tokens: u64) -> Result<Cut> {
        let from = head.window.from;
        let mut search = Search { sum: 0, earliest_call: u64::MAX, within: None };
        let (mut end, mut rows) = (head.messages_end, FIRST_ROWS);
        while end > from {
            let start = end.saturating_sub(rows).max(from);
            let metas = self.read_metas(head, start..end).await?;
            for (index, meta) in metas.iter().enumerate().rev() {
                let position = start + index as u64;
                if let Some(found) = search.step(position, meta, from, budget_tokens) {
                    return Ok(Cut { from: found, with_placeholder: false });
                }
            }
            (end, rows) = (start, (rows * 2).min(ROWS_MAX));
        }
        // The whole window, with the summary if the budget allows it or if no shorter tail is whole.
        let Some(number) = head.window.archive else { return Ok(Cut { from: search.within.unwrap_or(from), with_placeholder: false }) };
        let archive = self.archive(head, number).await?.ok_or_else(|| missing(head, Part::Archives, number))?;
        let placeholder_tokens = archive.placeholder.map_or(0, |placeholder| placeholder.tokens());
        let is_within = search.sum.saturating_add(placeholder_tokens) <= budget_tokens;
        Ok(match search.within {
            Some(within) if !is_within => Cut { from: within, with_placeholder: false },
            _ => Cut { from, with_placeholder: true },
        })
    }
}

/// A window or the messages of an archive. The first message may be the summary of an earlier archive.
struct Summarized {
    messages: Vec<Message>,
    /// The archive that the first message is the summary of.
    archive: Option<u64>,
}

impl Summarized {
    /// `known` is the archive whose stored summary is the first message. Imported archives and windows hold their summary as
    /// a message, so without a known archive the text of the first message names it, up to number `newest`. Any other message
    /// may look like a summary and is none.
    fn of(messages: Vec<Message>, known: Option<u64>, newest: u64) -> Self {
        let named = messages.first().and_then(archive_of_placeholder);
        let archive = named.filter(|number| *number <= newest && known.is_none_or(|known| known == *number));
        Self { messages, archive }
    }
}

/// Where a window begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cut {
    from: u64,
    with_placeholder: bool,
}

/// A walk over a window from its newest message back.
struct Search {
    /// The estimate of the passed messages.
    sum: u64,
    /// The earliest call that the passed results answer.
    earliest_call: u64,
    /// The start of the longest tail so far that is within the budget and whole.
    within: Option<u64>,
}

impl Search {
    /// Passes a message. Returns where the window begins once it is known.
    fn step(&mut self, position: u64, meta: &MessageMeta, window_from: u64, budget_tokens: u64) -> Option<u64> {
        self.sum = self.sum.saturating_add(meta.tokens);
        if self.sum > budget_tokens
            && let Some(within) = self.within
        {
            return Some(within);
        }
        // The call was compacted or never existed, so it need not be in the window.
        if let Some(call) = meta.call.filter(|call| *call >= window_from) {
            self.earliest_call = self.earliest_call.min(call);
        }
        if meta.is_result || self.earliest_call < position {
            return None;
        }
        self.within = Some(position);
        // This is the shortest whole tail and it is over the budget, so no longer one fits.
        (self.sum > budget_tokens).then_some(position)
    }
}

/// Parses messages, on a blocking thread if there is much to parse.
async fn messages_of(items: Vec<Item>) -> Result<Vec<Message>> {
    let size_bytes = items.iter().map(|item| item.value.len() as u64).sum();
    work::run(size_bytes, move |_| items.iter().map(message_of).collect()).await?
}

fn message_of(item: &Item) -> Result<Message> {
    let text = std::str::from_utf8(&item.value).ok();
    text.and_then(|text| Message::parse(text).ok())
        .ok_or_else(|| Error::new(ErrorKind::Corrupt, format!("the stored message {} cannot be read", item.key)))
}

pub(crate) fn missing(head: &Head, part: Part, position: u64) -> Error {
    let message = format!("the session `{}` lacks number {position} of its {part:?}", head.session_id);
    Error::new(ErrorKind::Corrupt, message)
}
