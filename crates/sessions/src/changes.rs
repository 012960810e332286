//! Follows what changes in a session.
//!
//! A [`SessionFollower`] compares a [`SessionPosition`] with the rows. A position is short and outlives the process, so a reader that was
//! disconnected continues from the last one that it saw, at any server of the store, and is told once of everything that changed since.

use crate::compact::archive_id;
use crate::info::SessionRef;
use crate::memo::{MemoScope, memo_of, user_memo};
use crate::rows::{Head, Opened, Part};
use crate::sessions::Sessions;
use futures::future::select_all;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{StatOptions, Version};
use treehold_store::{Namespace, ScanOptions, Watch, log_key};
use treehold_tree::backend::{Backend, StoreBackend};

/// Something that changed in a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum SessionChange {
    /// Messages were appended.
    #[schemars(title = "MessagesChange")]
    Messages {
        /// The position of the first one.
        from: u64,
        /// The position after the last one.
        end: u64,
    },
    /// Turns were recorded.
    #[schemars(title = "TurnsChange")]
    Turns {
        /// The index of the first one.
        from: u64,
        /// The index after the last one.
        end: u64,
    },
    /// The window was compacted.
    #[schemars(title = "CompactionChange")]
    Compaction {
        /// The newest archive, such as `0001`.
        archive_id: String,
    },
    /// The description changed, such as the title.
    #[schemars(title = "DescriptionChange")]
    Description,
    /// Envelopes were appended to the trace.
    #[schemars(title = "TraceChange")]
    Trace {
        /// The position after which they stand.
        after: Version,
    },
    /// Events were appended to the orchestration.
    #[schemars(title = "OrchestrationChange")]
    Orchestration {
        /// The position after which they stand.
        after: Version,
    },
    /// A memory document was written.
    #[schemars(title = "MemoChange")]
    Memo {
        /// Its name.
        name: String,
    },
    /// Full tool results may have been written.
    #[schemars(title = "ToolResultsChange")]
    ToolResults,
    /// The session was deleted. Nothing follows.
    #[schemars(title = "DeletedChange")]
    Deleted,
}

/// Up to where a session was followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionPosition {
    log: String,
    head: Version,
    messages: u64,
    turns: u64,
    archives: u64,
    /// The version of the partition up to which logs and documents were seen.
    rows: Version,
}

impl fmt::Display for SessionPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}.{}.{}.{}", self.log, self.head, self.messages, self.turns, self.archives, self.rows)
    }
}

impl FromStr for SessionPosition {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = || Error::invalid_argument("this is not a position of a session; leave it out, and read everything again");
        let parts: Vec<&str> = text.split('.').collect();
        let [log, head, messages, turns, archives, rows] = parts.as_slice() else { return Err(bad()) };
        let number = |text: &str| text.parse::<u64>().map_err(|_| bad());
        let version = |text: &str| text.parse::<Version>().map_err(|_| bad());
        Ok(Self {
            log: (*log).to_owned(),
            head: version(head)?,
            messages: number(messages)?,
            turns: number(turns)?,
            archives: number(archives)?,
            rows: version(rows)?,
        })
    }
}

impl SessionPosition {
    fn of(opened: &Opened, rows: Version) -> Self {
        let head = &opened.head;
        Self {
            log: head.data.clone(),
            head: opened.version(),
            messages: head.messages_end,
            turns: head.turns,
            archives: head.archives,
            rows,
        }
    }
}

/// What a watch is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    Head,
    Trace,
    Orchestration,
    SessionMemo,
    UserMemo,
}

impl Subject {
    const ALL: [Self; 5] = [Self::Head, Self::Trace, Self::Orchestration, Self::SessionMemo, Self::UserMemo];

    fn namespace(self, head: &Head) -> Result<Namespace> {
        let user = head.user_rows();
        match self {
            Self::Head => user.sessions(),
            Self::Trace => head.part(Part::Trace),
            Self::Orchestration => head.part(Part::Orchestration),
            Self::SessionMemo => user.session_memo(&head.data),
            Self::UserMemo => user.memo(),
        }
    }
}

/// Reports the changes of a session as they occur.
#[derive(Debug)]
pub struct SessionFollower {
    sessions: Sessions,
    session: SessionRef,
    head: Head,
    position: SessionPosition,
    /// Whether anything may have changed since the position.
    is_stale: bool,
    /// Whether tool results may have been written since the position.
    may_have_results: bool,
    watches: Vec<(Subject, Watch)>,
    /// Changes that were found and not reported yet.
    found: VecDeque<SessionChange>,
    is_over: bool,
}

impl Sessions {
    /// Follows a session from a position, or from now on; `None` for an unknown session. A position of a session that was deleted since
    /// and created again, or of another store, is ignored.
    ///
    /// # Errors
    /// As [`Sessions::info`].
    pub async fn follow(&self, session: &SessionRef, after: Option<SessionPosition>) -> Result<Option<SessionFollower>> {
        // The head must not be older than the version, and only the head says of which partition the version is. The watches begin before
        // the version, so that they report all that follows it.
        let (newest, opened, watches) = loop {
            let Some(found) = self.open(session.tenant(), session.session()).await? else { return Ok(None) };
            let partition = found.head.user_rows().sessions()?.partition();
            let mut watches = Vec::new();
            for subject in Subject::ALL {
                watches.push((subject, self.store.watch(&subject.namespace(&found.head)?).await?));
            }
            let newest = self.store.current_version(&partition).await?;
            let Some(opened) = self.open(session.tenant(), session.session()).await? else { return Ok(None) };
            if opened.head.data == found.head.data && opened.head.user_rows().sessions()?.partition() == partition {
                break (newest, opened, watches);
            }
        };
        let now = SessionPosition::of(&opened, newest);
        // A position beyond the newest version is from another store.
        let after = after.filter(|after| after.log == now.log && after.rows <= newest);
        let is_stale = after.as_ref().is_some_and(|after| *after != now);
        Ok(Some(SessionFollower {
            sessions: self.clone(),
            session: session.clone(),
            head: opened.head,
            position: after.unwrap_or(now),
            is_stale,
            may_have_results: is_stale,
            watches,
            found: VecDeque::new(),
            is_over: false,
        }))
    }
}

impl SessionFollower {
    /// Returns the position up to which all changes were reported, unless [`SessionFollower::has_more`].
    pub fn position(&self) -> &SessionPosition {
        &self.position
    }

    /// Returns whether changes up to the position are still to be reported.
    pub fn has_more(&self) -> bool {
        !self.found.is_empty()
    }

    /// Returns the next change, and waits for it; `None` after the deletion of the session. Cancel-safe.
    ///
    /// Cost: some round trips for each commit to the followed rows.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) once the store is closed, otherwise as [`Sessions::info`].
    pub async fn next(&mut self) -> Result<Option<SessionChange>> {
        loop {
            if let Some(change) = self.found.pop_front() {
                self.is_over = change == SessionChange::Deleted;
                return Ok(Some(change));
            }
            if self.is_over {
                return Ok(None);
            }
            if !self.is_stale {
                let changed =
                    self.watches.iter_mut().map(|(subject, watch)| Box::pin(async move { watch.changed().await.map(|_| *subject) }));
                let (subject, _, _) = select_all(changed).await;
                self.may_have_results |= subject? == Subject::SessionMemo;
                self.is_stale = true;
            }
            self.compare().await?;
        }
    }

    /// Finds what changed since the position, and advances it.
    async fn compare(&mut self) -> Result<()> {
        let newest = self.sessions.store().current_version(&self.head.user_rows().sessions()?.partition()).await?;
        let opened = self.sessions.open(self.session.tenant(), self.session.session()).await?;
        let Some(opened) = opened.filter(|opened| opened.head.data == self.head.data) else {
            self.is_stale = false;
            self.found.push_back(SessionChange::Deleted);
            return Ok(());
        };
        let mut found = Vec::new();
        let (old, new) = (&self.position, SessionPosition::of(&opened, newest));
        if old.messages < new.messages {
            found.push(SessionChange::Messages { from: old.messages, end: new.messages });
        }
        if old.turns < new.turns {
            found.push(SessionChange::Turns { from: old.turns, end: new.turns });
        }
        if old.archives < new.archives {
            found.push(SessionChange::Compaction { archive_id: archive_id(new.archives) });
        }
        if found.is_empty() && old.head != new.head {
            found.push(SessionChange::Description);
        }
        // The new position covers every kind of row, so each is compared, whichever watch reported.
        let after = old.rows;
        if self.has_entry(Part::Trace, after).await? {
            found.push(SessionChange::Trace { after });
        }
        if self.has_entry(Part::Orchestration, after).await? {
            found.push(SessionChange::Orchestration { after });
        }
        let (Head { tenant_id, user_id, .. }, store) = (&self.head, self.sessions.store());
        let documents = changed(&memo_of(store.clone(), &self.head)?, MemoScope::Session, after).await?;
        // Tool results are too many to compare each.
        if self.may_have_results && documents.is_empty() {
            found.push(SessionChange::ToolResults);
        }
        found.extend(documents);
        found.extend(changed(&user_memo(store.clone(), tenant_id, user_id)?, MemoScope::User, after).await?);
        // Only now, so that a comparison that is dropped is made again.
        (self.is_stale, self.may_have_results) = (false, false);
        self.position = new;
        self.found.extend(found);
        Ok(())
    }

    async fn has_entry(&self, part: Part, after: Version) -> Result<bool> {
        let options = ScanOptions::new().with_limit(1).with_start_after(log_key(after));
        Ok(!self.sessions.store().scan(&self.head.part(part)?, options).await?.entries.is_empty())
    }
}

/// Returns the documents of a tree that were written after a version of the store.
async fn changed(tree: &StoreBackend, scope: MemoScope, after: Version) -> Result<Vec<SessionChange>> {
    let mut found = Vec::new();
    for name in scope.documents() {
        match tree.stat(&scope.path(name)?, &StatOptions::new()).await {
            Ok(entry) if entry.version.is_some_and(|version| version > after) => {
                found.push(SessionChange::Memo { name: (*name).to_owned() });
            }
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(found)
}
