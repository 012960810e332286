//! The location of each row, and the head of a session.
//!
//! Every row of a user is in the user's own partition. Three small directories are elsewhere: the tenants, the user of each session of a
//! tenant, and the data that remains to be removed. [Intents](treehold_store::intent) keep them in step.
//! `docs/design/sessions.md` has the map.

use crate::usage::UsageTotals;
use serde::{Deserialize, Serialize};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::{row, stored};
use treehold_core::reserved::{RESERVED_ROOT, SESSIONS};
use treehold_store::intent::Intent;
use treehold_store::{Batch, Condition, Namespace, Partition, Store};
use uuid::Uuid;

/// The tenants: a key for each.
pub(crate) fn tenants() -> Namespace {
    Namespace::new(SESSIONS).expect("two plain components")
}

/// The sessions of a tenant: the user of each. It is in the partition of the tenant, and an entry may be left without a session.
pub(crate) fn directory(tenant: &str) -> Result<Namespace> {
    Partition::new([tenant])?.namespace(SESSIONS)
}

/// The data that remains to be removed, and imports in progress. No tenant can have this name.
pub(crate) fn removals() -> Namespace {
    Namespace::new(SESSIONS.into_iter().chain([RESERVED_ROOT, "removals"])).expect("four plain components")
}

/// A user of a tenant, with everything of the user beneath.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct UserRows {
    pub(crate) tenant: String,
    pub(crate) user: String,
}

impl UserRows {
    pub(crate) fn new(tenant: &str, user: &str) -> Self {
        Self { tenant: tenant.to_owned(), user: user.to_owned() }
    }

    /// The partition of the user.
    fn partition(&self) -> Result<Partition> {
        Partition::new([&self.tenant, &self.user])
    }

    fn beneath<const N: usize>(&self, components: [&str; N]) -> Result<Namespace> {
        self.partition()?.namespace(SESSIONS.into_iter().chain(components))
    }

    /// Sessions that are about to be created or deleted, and imports in progress.
    pub(crate) fn intents(&self) -> Result<Namespace> {
        self.beneath(["intents"])
    }

    /// The head of each session.
    pub(crate) fn sessions(&self) -> Result<Namespace> {
        self.beneath(["sessions"])
    }

    /// The sessions by time, newest first.
    pub(crate) fn recent(&self) -> Result<Namespace> {
        self.beneath(["recent"])
    }

    /// The user's memory documents, as files.
    pub(crate) fn memo(&self) -> Result<Namespace> {
        self.beneath(["memo"])
    }

    /// A row that every change of a session's files replaces. Whoever knows only the name of a session watches it.
    pub(crate) fn memo_changes(&self, session: &str) -> Result<Namespace> {
        self.beneath(["memo", session])
    }

    /// The memory documents and tool results of one session, as files.
    pub(crate) fn session_memo(&self, data: &str) -> Result<Namespace> {
        self.beneath(["data", data, "memo"])
    }

    /// Everything of one session.
    pub(crate) fn data(&self, data: &str) -> Result<Namespace> {
        self.beneath(["data", data])
    }

    /// One kind of a session's rows.
    pub(crate) fn part(&self, data: &str, part: Part) -> Result<Namespace> {
        self.beneath(["data", data, part.name()])
    }

    /// The sessions whose trace has an error, by their data, so that one read finds those of many sessions.
    pub(crate) fn trace_errors(&self) -> Result<Namespace> {
        self.beneath(["trace-errors"])
    }

    /// The state of the consolidation of the user's memory.
    pub(crate) fn consolidation(&self) -> Result<Namespace> {
        self.beneath(["consolidation"])
    }

    /// The mailboxes of a session's agents, one beneath for each.
    pub(crate) fn mailboxes(&self, data: &str) -> Result<Namespace> {
        self.beneath(["data", data, "mailboxes"])
    }

    /// The mailbox of an agent.
    pub(crate) fn mailbox(&self, data: &str, agent: &str) -> Result<Namespace> {
        self.beneath(["data", data, "mailboxes", agent])
    }
}

/// The kinds of a session's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// Messages by position.
    Messages,
    /// The events `init`, `turn` and `update`, by position.
    Events,
    /// Archives by number.
    Archives,
    /// The position of the message that made each tool call.
    Calls,
    /// What was written under each idempotency key.
    Keys,
    /// Envelopes of the trace, a log.
    Trace,
    /// Orchestration events, a log.
    Orchestration,
    /// Where each orchestration event is in the log, by a digest of its id.
    EventPositions,
    /// The checkpoint of the orchestration.
    Checkpoint,
    /// The claim and the lease of the manager that runs the orchestration.
    Manager,
    /// The state of each mailbox.
    MailboxStates,
    /// The history of each agent.
    Histories,
    /// Logs of skills.
    SkillLogs,
    /// Imported files that are not part of the layout.
    OtherFiles,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Self::Messages => "messages",
            Self::Events => "events",
            Self::Archives => "archives",
            Self::Calls => "calls",
            Self::Keys => "keys",
            Self::Trace => "trace",
            Self::Orchestration => "orchestration",
            Self::EventPositions => "event-positions",
            Self::Checkpoint => "checkpoint",
            Self::Manager => "manager",
            Self::MailboxStates => "mailbox-states",
            Self::Histories => "histories",
            Self::SkillLogs => "skill-logs",
            Self::OtherFiles => "other-files",
        }
    }
}

/// The key, beneath a session's data, of the row that exists as long as the session.
pub(crate) const LIVE: &str = "live";

/// The key of the row that changes of a session's files replace.
pub(crate) const CHANGED: &str = "changed";

/// Returns the key of a session's summary among the rows of the consolidation.
pub(crate) fn summary_key(session: &str) -> String {
    format!("summary/{session}")
}

/// What came of entering a session into the directory of its tenant.
pub(crate) enum Registration {
    /// It is entered. The commit that creates it fulfils the intent.
    Intended(Intent),
    /// Another writer was faster; try again.
    Lost,
    /// Another user has a session with this id, or is about to create it.
    Taken,
}

/// Returns the beginning of the keys of intents to create a session. No id contains the separator.
pub(crate) fn creations(session: &str) -> String {
    format!("create\u{1}{session}\u{1}")
}

/// Makes a key of an intent, which no other has.
pub(crate) fn new_key(prefix: &str) -> String {
    format!("{prefix}{}", Uuid::new_v4().simple())
}

/// The data of a deleted session, or of an import in progress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Removal {
    pub(crate) tenant_id: String,
    pub(crate) user_id: String,
    pub(crate) session_id: String,
    pub(crate) data: String,
    /// When the import that writes the data began; `None` for the data of a session.
    pub(crate) import_at: Option<i64>,
}

impl Removal {
    /// Describes the data of a session that is to be removed.
    pub(crate) fn of(head: &Head) -> Self {
        Self {
            tenant_id: head.tenant_id.clone(),
            user_id: head.user_id.clone(),
            session_id: head.session_id.clone(),
            data: head.data.clone(),
            import_at: None,
        }
    }

    /// Returns the beginning of the keys of a user, or of all users of a tenant. No id contains the separator.
    pub(crate) fn prefix(tenant: &str, user: Option<&str>) -> String {
        user.map_or_else(|| format!("{tenant}\u{1}"), |user| format!("{tenant}\u{1}{user}\u{1}"))
    }

    /// Returns the beginning of the keys of intents to delete the session.
    pub(crate) fn deletions(&self) -> String {
        format!("delete\u{1}{}\u{1}", self.data)
    }

    /// Returns the key, among the user's intents, of the row that every commit of the import depends on and renews.
    pub(crate) fn import_key(&self) -> String {
        format!("import\u{1}{}", self.data)
    }

    /// Returns the key. An import has another one than the deletion of its session.
    pub(crate) fn key(&self) -> String {
        let kind = if self.import_at.is_some() { "import" } else { "removal" };
        format!("{}{kind}\u{1}{}", Self::prefix(&self.tenant_id, Some(&self.user_id)), self.data)
    }

    pub(crate) fn user_rows(&self) -> UserRows {
        UserRows::new(&self.tenant_id, &self.user_id)
    }
}

/// The row of a session in its tenant's directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DirectoryRow {
    pub(crate) user_id: String,
}

/// The window of a conversation: the summary of what an archive holds, then the messages from a position on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Window {
    /// The archive whose placeholder is the first message.
    pub(crate) archive: Option<u64>,
    /// The position of the first message after it.
    pub(crate) from: u64,
    /// The estimate of the whole window.
    pub(crate) tokens: u64,
}

/// The head of a session: one small row that every change of the conversation replaces, on the condition of the version
/// that it was planned on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Head {
    pub(crate) tenant_id: String,
    pub(crate) user_id: String,
    pub(crate) agent_id: String,
    pub(crate) session_id: String,
    pub(crate) title: Option<String>,
    pub(crate) created_at: i64,
    pub(crate) updated_at: i64,
    /// The component above the session's data. A session that is created again after its deletion gets another one.
    pub(crate) data: String,
    /// The position that the next message gets.
    pub(crate) messages_end: u64,
    /// The position that the next event gets.
    pub(crate) events_end: u64,
    /// The number of turns, and the index of the next one.
    pub(crate) turns: u64,
    /// The number of the newest archive.
    pub(crate) archives: u64,
    pub(crate) window: Window,
    pub(crate) totals: UsageTotals,
    pub(crate) last_turn: Option<UsageTotals>,
    /// The first archive whose summary is still to be added to the notes; those after it are too.
    pub(crate) notes_pending: Option<u64>,
}

impl Head {
    pub(crate) fn user_rows(&self) -> UserRows {
        UserRows::new(&self.tenant_id, &self.user_id)
    }

    pub(crate) fn part(&self, part: Part) -> Result<Namespace> {
        self.user_rows().part(&self.data, part)
    }

    /// Returns the number of messages in the window, the placeholder included.
    pub(crate) fn window_len(&self) -> u64 {
        self.messages_end - self.window.from + u64::from(self.window.archive.is_some())
    }

    /// Returns the key of the session among the user's sessions by time.
    fn recent_key(&self) -> String {
        format!("{:020}{}", i64::MAX - self.updated_at.max(0), self.session_id)
    }
}

/// A head as it was read, with its version.
#[derive(Debug, Clone)]
pub(crate) struct Opened {
    pub(crate) head: Head,
    version: treehold_core::ops::Version,
}

impl Opened {
    /// Returns the version of the head, which every change of the conversation replaces.
    pub(crate) fn version(&self) -> treehold_core::ops::Version {
        self.version
    }

    /// Adds the replacement of this head by `next` to a batch, on the condition that no other writer replaced it first.
    pub(crate) fn replace(&self, batch: Batch, next: &Head) -> Result<Batch> {
        let sessions = next.user_rows().sessions()?;
        let batch = batch.expect(&sessions, &next.session_id, Condition::Version(self.version)).put(&sessions, &next.session_id, row(next));
        self.move_recent(batch, next)
    }

    fn move_recent(&self, batch: Batch, next: &Head) -> Result<Batch> {
        if self.head.recent_key() == next.recent_key() {
            return Ok(batch);
        }
        let recent = next.user_rows().recent()?;
        Ok(put_recent(batch.delete(&recent, self.head.recent_key()), &recent, next))
    }

    /// Returns a batch that removes the session. What it leaves is removed afterwards.
    pub(crate) fn delete(&self) -> Result<Batch> {
        let (head, rows) = (&self.head, self.head.user_rows());
        let sessions = rows.sessions()?;
        Ok(Batch::new()
            .expect(&sessions, &head.session_id, Condition::Version(self.version))
            .delete(&sessions, &head.session_id)
            .delete(&rows.recent()?, head.recent_key())
            .delete(&rows.data(&head.data)?, LIVE)
            .delete(&rows.memo_changes(&head.session_id)?, CHANGED)
            .delete(&rows.consolidation()?, summary_key(&head.session_id)))
    }
}

fn put_recent(batch: Batch, recent: &Namespace, head: &Head) -> Batch {
    let meta = crate::info::SessionMeta { session_id: head.session_id.clone(), updated_at: head.updated_at };
    batch.put(recent, head.recent_key(), row(&meta))
}

/// Returns a batch that creates a session, unless the user has one with this id.
pub(crate) fn create(head: &Head) -> Result<Batch> {
    let (rows, sessions) = (head.user_rows(), head.user_rows().sessions()?);
    // Check before the first write that the longest names that the session will need are allowed.
    let changes = rows.memo_changes(&head.session_id)?;
    head.part(Part::MailboxStates)?;
    let batch = Batch::new()
        .expect(&sessions, &head.session_id, Condition::Absent)
        .put(&rows.data(&head.data)?, LIVE, "")
        .put(&changes, CHANGED, "")
        .put(&sessions, &head.session_id, row(head));
    Ok(put_recent(batch, &rows.recent()?, head))
}

/// Returns the user that the directory names for a session, which may be gone or not yet there.
pub(crate) async fn user_of(store: &dyn Store, tenant: &str, session: &str) -> Result<Option<String>> {
    let found = store.get(&directory(tenant)?, session).await?;
    found.map(|item| stored::<DirectoryRow>("directory of sessions", &item.value).map(|row| row.user_id)).transpose()
}

/// Reads the head of a session. Cost: two round trips.
pub(crate) async fn open(store: &dyn Store, tenant: &str, session: &str) -> Result<Option<Opened>> {
    match user_of(store, tenant, session).await? {
        Some(user) => open_of(store, &UserRows::new(tenant, &user), session).await,
        None => Ok(None),
    }
}

/// Reads the head of a session whose user is known.
pub(crate) async fn open_of(store: &dyn Store, rows: &UserRows, session: &str) -> Result<Option<Opened>> {
    let found = store.get(&rows.sessions()?, session).await?;
    found.map(|item| Ok(Opened { head: stored("session", &item.value)?, version: item.version })).transpose()
}

/// Commits a batch. Returns the versions, or `None` where a condition did not hold.
pub(crate) async fn commit(store: &dyn Store, batch: Batch) -> Result<Option<Vec<treehold_core::ops::Version>>> {
    match store.commit(batch).await {
        Ok(versions) => Ok(Some(versions)),
        Err(error) if error.kind() == ErrorKind::Conflict => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the key of a position.
pub(crate) fn position_key(position: u64) -> String {
    format!("{position:020}")
}

/// Makes the error for a session that does not exist.
pub(crate) fn no_session(session: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("the session `{session}` does not exist; create it first"))
}
