//! Writes a session as files.

use super::{AGENTS, ARCHIVES, CHECKPOINT, MESSAGES, ORCHESTRATION, RESULTS, SESSION, SKILL_LOGS, SessionFiles, TRACE, name_of};
use crate::compact::{ArchiveRow, archive_id};
use crate::info::SessionRef;
use crate::memo::{MemoScope, is_no_such, memo_of, tool_result_path};
use crate::rows::{Head, Part};
use crate::sessions::Sessions;
use crate::window::missing;
use async_trait::async_trait;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::{Json, stored};
use treehold_core::ops::ReadOptions;
use treehold_core::path::VfsPathBuf;
use treehold_core::work;
use treehold_store::{Item, Namespace, NamespacesOptions, ScanEntry, ScanOptions};
use treehold_tree::backend::Backend;

/// Takes the files of a session, part by part.
#[async_trait]
pub(super) trait Sink: Send {
    /// Adds a part to the file of the call before if the paths are equal. Otherwise starts a file, instead of an earlier one
    /// of this path.
    async fn put(&mut self, path: &str, part: Bytes) -> Result<()>;
}

/// Holds the files in memory.
struct Collected<'a> {
    session: &'a str,
    files: BTreeMap<String, Vec<u8>>,
    last: String,
    size_bytes: usize,
    bytes_max: usize,
}

#[async_trait]
impl Sink for Collected<'_> {
    async fn put(&mut self, path: &str, part: Bytes) -> Result<()> {
        self.size_bytes = self.size_bytes.saturating_add(part.len());
        if self.size_bytes > self.bytes_max {
            let message = format!(
                "the session has over {} bytes, the most that one export holds; run `treehold session export {} --to DIR` on the host, \
                 which writes it part by part",
                self.bytes_max,
                self.session.escape_debug()
            );
            return Err(Error::new(ErrorKind::TooLarge, message));
        }
        if self.last != path {
            path.clone_into(&mut self.last);
            self.files.remove(path);
        }
        self.files.entry(path.to_owned()).or_default().extend_from_slice(&part);
        Ok(())
    }
}

impl Sessions {
    /// Returns a session as files of the host's directory layout; `None` for an unknown session. Messages appended during
    /// the export are not in it. [The module](crate::layout) says what is the same as in imported files.
    ///
    /// Cost: reads the whole session and holds it in memory. [`write_session`](crate::layout::write_session) holds only a part.
    ///
    /// # Errors
    /// [`TooLarge`](ErrorKind::TooLarge) for more than [`read_bytes_max`](crate::SessionsOptions::read_bytes_max) bytes,
    /// otherwise as [`Sessions::load`].
    pub async fn export_session(&self, session: &SessionRef) -> Result<Option<SessionFiles>> {
        let bytes_max = self.options.read_bytes_max;
        let mut collected = Collected { session: session.session(), files: BTreeMap::new(), last: String::new(), size_bytes: 0, bytes_max };
        let is_known = self.export_to(session, &mut collected).await?;
        Ok(is_known.then(|| collected.files.into_iter().map(|(path, content)| (path, content.into())).collect()))
    }

    /// Writes a session to a sink. Returns whether the session exists.
    pub(super) async fn export_to(&self, session: &SessionRef, sink: &mut dyn Sink) -> Result<bool> {
        let Some(opened) = self.open(session.tenant(), session.session()).await? else { return Ok(false) };
        let head = &opened.head;
        // These come first: they include the empty files of an import, which may have content by now.
        self.export_values(&head.part(Part::OtherFiles)?, str::to_owned, sink).await?;
        self.export_rows(head, Part::Events, 0..head.events_end, SESSION, sink).await?;
        if let Some(placeholder) = self.placeholder_of(head).await? {
            sink.put(MESSAGES, line_of(placeholder.json())).await?;
        }
        self.export_rows(head, Part::Messages, head.window.from..head.messages_end, MESSAGES, sink).await?;
        self.export_archives(head, sink).await?;
        self.export_memo(session, head, sink).await?;
        self.export_log(&head.part(Part::Trace)?, TRACE, sink).await?;
        self.export_log(&head.part(Part::Orchestration)?, ORCHESTRATION, sink).await?;
        self.export_values(&head.part(Part::Checkpoint)?, |_| CHECKPOINT.to_owned(), sink).await?;
        self.export_agents(head, sink).await?;
        self.export_values(&head.part(Part::SkillLogs)?, |name| format!("{SKILL_LOGS}{name}"), sink).await?;
        Ok(true)
    }

    /// Writes the archives that exist, up to the newest one of the head.
    async fn export_archives(&self, head: &Head, sink: &mut dyn Sink) -> Result<()> {
        let mut pages = Pages::of(head.part(Part::Archives)?);
        while let Some(items) = pages.next(self).await? {
            for item in items {
                let Some(number) = item.key.parse().ok().filter(|number: &u64| *number <= head.archives) else { continue };
                let archive: ArchiveRow = stored("archive", &item.value)?;
                let path = format!("{ARCHIVES}{}.jsonl", archive_id(number));
                let before = match archive.previous {
                    Some(before) => self.archive(head, before).await?.ok_or_else(|| missing(head, Part::Archives, before))?.placeholder,
                    None => None,
                };
                sink.put(&path, before.map_or_else(Bytes::new, |placeholder| line_of(placeholder.json()))).await?;
                self.export_rows(head, Part::Messages, archive.from..archive.to, &path, sink).await?;
            }
        }
        Ok(())
    }

    /// Writes the memory documents and tool results, which agents may have written as bytes of any kind.
    async fn export_memo(&self, session: &SessionRef, head: &Head, sink: &mut dyn Sink) -> Result<()> {
        let tree = memo_of(self.store.clone(), head)?;
        let documents = MemoScope::Session.documents().iter().map(|name| (*name).to_owned());
        let mut paths: Vec<String> = documents.collect();
        match self.list_tool_result_ids(session).await {
            Ok(calls) => {
                for call in calls {
                    paths.push(format!("{RESULTS}{}", tool_result_path(&call)?.name()));
                }
            }
            // An agent made a file of this name.
            Err(error) if error.kind() == ErrorKind::NotADirectory => {}
            Err(error) => return Err(error),
        }
        for path in paths {
            if let Some(content) = content_of(&tree, &path).await? {
                sink.put(&path, content).await?;
            }
        }
        Ok(())
    }

    async fn export_agents(&self, head: &Head, sink: &mut dyn Sink) -> Result<()> {
        let path = |agent: &str, file: &str| format!("{AGENTS}{}/{file}", name_of(agent));
        for (part, file) in [(Part::MailboxStates, "mailbox-state.json"), (Part::Histories, "history.json")] {
            self.export_values(&head.part(part)?, |agent| path(agent, file), sink).await?;
        }
        let beneath = head.user_rows().mailboxes(&head.data)?;
        let mut options = NamespacesOptions::new().with_beneath(beneath);
        loop {
            let page = self.store.namespaces(options.clone()).await?;
            for namespace in &page.namespaces {
                self.export_log(namespace, &path(&last_component(namespace), "mailbox.jsonl"), sink).await?;
            }
            match page.namespaces.last() {
                Some(last) if page.more => options = options.with_start_after(last.clone()),
                _ => return Ok(()),
            }
        }
    }

    /// Writes the rows of a range of positions as lines.
    async fn export_rows(&self, head: &Head, part: Part, range: Range<u64>, path: &str, sink: &mut dyn Sink) -> Result<()> {
        let mut next = range.start;
        while next < range.end {
            let items = self.read_page(head, part, next..range.end, true).await?;
            next += items.len() as u64;
            sink.put(path, lines_of(items).await?).await?;
        }
        Ok(())
    }

    /// Writes the rows of a namespace as lines of one file.
    async fn export_log(&self, log: &Namespace, path: &str, sink: &mut dyn Sink) -> Result<()> {
        let mut pages = Pages::of(log.clone());
        while let Some(items) = pages.next(self).await? {
            sink.put(path, lines_of(items).await?).await?;
        }
        Ok(())
    }

    /// Writes the rows of a namespace as files.
    async fn export_values(&self, rows: &Namespace, path: impl Fn(&str) -> String + Send, sink: &mut dyn Sink) -> Result<()> {
        let mut pages = Pages::of(rows.clone());
        while let Some(items) = pages.next(self).await? {
            for item in items {
                sink.put(&path(&item.key), item.value).await?;
            }
        }
        Ok(())
    }
}

/// Reads the rows of a namespace page by page.
struct Pages {
    rows: Namespace,
    /// The options of the next page; `None` after the last one.
    next: Option<ScanOptions>,
}

impl Pages {
    fn of(rows: Namespace) -> Self {
        Self { rows, next: Some(ScanOptions::new().with_values(true)) }
    }

    /// Reads the next page that has rows.
    async fn next(&mut self, sessions: &Sessions) -> Result<Option<Vec<Item>>> {
        while let Some(mut options) = self.next.take() {
            let page = sessions.store.scan(&self.rows, options.clone()).await?;
            if page.next.is_some() {
                options.start_after = page.next;
                self.next = Some(options);
            }
            let items: Vec<Item> = page.entries.into_iter().filter_map(item_of).collect();
            if !items.is_empty() {
                return Ok(Some(items));
            }
        }
        Ok(None)
    }
}

fn item_of(entry: ScanEntry) -> Option<Item> {
    match entry {
        ScanEntry::Item(item) => Some(item),
        ScanEntry::Group { .. } | ScanEntry::LeftOut { .. } => None,
    }
}

/// Returns the content of a file of a tree; `None` for a missing one and for a directory.
pub(super) async fn content_of(tree: &dyn Backend, path: &str) -> Result<Option<Bytes>> {
    match tree.read(&VfsPathBuf::parse(format!("/{path}"))?, &ReadOptions::new().with_bytes_max(u64::MAX)).await {
        Ok(file) => Ok(Some(file.content)),
        Err(error) if is_no_such(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn last_component(namespace: &Namespace) -> String {
    namespace.components().next_back().map(|component| component.into_owned()).unwrap_or_default()
}

/// Joins rows of JSON as lines, on a blocking thread if there is much to do.
async fn lines_of(items: Vec<Item>) -> Result<Bytes> {
    let size_bytes = items.iter().map(|item| item.value.len() as u64).sum();
    let lines = move |_: &work::Stop| -> Result<Bytes> {
        let mut lines = String::new();
        for item in &items {
            let corrupt = |error| Error::new(ErrorKind::Corrupt, format!("the stored row {} cannot be read", item.key)).with_source(error);
            push_line(&mut lines, &Json::from_bytes(&item.value).map_err(corrupt)?);
        }
        Ok(lines.into())
    };
    work::run(size_bytes, lines).await?
}

fn line_of(json: &Json) -> Bytes {
    let mut line = String::new();
    push_line(&mut line, json);
    line.into()
}

fn push_line(lines: &mut String, json: &Json) {
    lines.push_str(&json.on_one_line());
    lines.push('\n');
}
