//! Reads a session from files.

use super::place::{Place, conflict_of, is_path, place_of};
use super::{SESSION, SessionFiles};
use crate::append::{MessageMeta, put_messages};
use crate::compact::ArchiveRow;
use crate::events::{InitEvent, SessionEvent};
use crate::info::SessionRef;
use crate::kept::Kept;
use crate::memo::{MEMO_FILE_BYTES_MAX, memo_of_import};
use crate::message::Message;
use crate::numbers::{check_number, check_time, following};
use crate::orchestration::{MailboxEvent, MailboxState, MailboxStateFields, OrchestrationEvent, Snapshot, put_event};
use crate::rows::{self, Head, Part, Registration, Removal, position_key, removals};
use crate::sessions::{Sessions, owned_by_another};
use crate::trace::{Envelope, mark_error};
use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::{Json, row};
use treehold_core::retry::Attempts;
use treehold_core::scope::check_id;
use treehold_store::intent::{INTENT_LIFE, time_row};
use treehold_store::{Batch, Condition, Namespace};
use treehold_tree::backend::BackendExt;

/// How many rows are written in one commit.
const ROWS: usize = 500;

/// What an import read, and what it could not read.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ImportReport {
    /// How many messages it read, including those of archives.
    pub messages: u64,
    /// How many events, envelopes and events of mailboxes it read.
    pub events: u64,
    /// The lines and files that it could not read.
    pub damaged: Vec<DamagedLine>,
}

/// A line, or a file, that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DamagedLine {
    /// The file beneath the directory of the session.
    pub file: String,
    /// The line, from 1; `None` for the whole file.
    pub line: Option<usize>,
    /// The error.
    pub reason: String,
}

/// An import in progress.
struct Import<'a> {
    sessions: &'a Sessions,
    head: Head,
    report: ImportReport,
    batch: Batch,
    /// The position of the message that made each call.
    calls: HashMap<String, u64>,
    /// The skipped events of each mailbox, by their number from 0.
    mail_lost: HashMap<String, Vec<u64>>,
    mailbox_states: HashMap<String, MailboxState>,
    /// In milliseconds since 1970.
    began_at: i64,
    /// Whether the row of the import may have been put, on which all its commits depend.
    is_begun: bool,
}

impl Sessions {
    /// Creates a session from files of the host's directory layout. Lines that cannot be read are skipped and reported.
    /// The session appears with the last commit. The rows of a failed import are removed; [`Sessions::sweep`] removes those of an
    /// interrupted one.
    ///
    /// Files that are not part of the layout are stored as they are, and exported again. Skipped are also files whose path is
    /// not that of a file, and values that a session cannot continue from: times outside the years 0 to 9999, and indexes of
    /// turns, numbers of archives and counts of mailboxes over 1,000,000,000.
    ///
    /// A session that was changed later than now counts as changed now. Otherwise it would stay the first in every list.
    ///
    /// # Errors
    /// [`AlreadyExists`](ErrorKind::AlreadyExists) for a session that exists, [`Corrupt`](ErrorKind::Corrupt) without an
    /// event `init`, [`InvalidArgument`](ErrorKind::InvalidArgument) for an event `init` of another session or with a time out
    /// of range and for a path beneath that of a file, [`TooLarge`](ErrorKind::TooLarge) for a document or tool result over
    /// [`MEMO_FILE_BYTES_MAX`], [`PermissionDenied`](ErrorKind::PermissionDenied) for a user that is not accessible,
    /// [`Conflict`](ErrorKind::Conflict) if a sweep ended the import, and errors of the store.
    pub async fn import_session(&self, session: &SessionRef, files: &SessionFiles) -> Result<ImportReport> {
        if let Some(user) = self.owner(session.tenant(), session.session()).await? {
            if !self.admits(session.tenant(), &user) {
                return Err(owned_by_another(session.session()));
            }
            let message = format!(
                "the session `{}` exists already; delete it first, as its files cannot be imported under another id",
                session.session()
            );
            return Err(Error::new(ErrorKind::AlreadyExists, message));
        }
        let init = init_of(session, files)?;
        if !self.admits(session.tenant(), &init.user_id) {
            return Err(owned_by_another(session.session()));
        }
        let mut head = self.new_head(session, &init.user_id, &init.agent_id);
        (head.title, head.created_at, head.updated_at, head.events_end) = (init.title, init.created_at, init.created_at, 0);
        let mut import = Import {
            sessions: self,
            head,
            report: ImportReport::default(),
            batch: Batch::new(),
            calls: HashMap::new(),
            mail_lost: HashMap::new(),
            mailbox_states: HashMap::new(),
            began_at: self.now(),
            is_begun: false,
        };
        let files = &import.plain(files);
        check_files(files)?;
        match import.write(files).await {
            Ok(()) => Ok(import.report),
            Err(error) => {
                if import.is_begun {
                    self.abandon(&import.record()).await;
                }
                Err(error)
            }
        }
    }
}

/// Checks, before the first write, what would otherwise fail after it, or in an export to a directory.
fn check_files(files: &SessionFiles) -> Result<()> {
    for (path, content) in files {
        if let Some(conflict) = conflict_of(path, files) {
            return Err(Error::invalid_argument(conflict));
        }
        if place_of(path) == Place::Memo && content.len() > MEMO_FILE_BYTES_MAX {
            let message = format!("`{path}` has {} bytes and at most {MEMO_FILE_BYTES_MAX} are allowed; shorten it", content.len());
            return Err(Error::new(ErrorKind::TooLarge, message));
        }
    }
    Ok(())
}

/// Returns the session that some files belong to, and its user.
///
/// # Errors
/// [`Corrupt`](ErrorKind::Corrupt) without an event `init`, and [`InvalidArgument`](ErrorKind::InvalidArgument) for ids that
/// cannot be kept.
pub fn owner_of(files: &SessionFiles) -> Result<(SessionRef, String)> {
    let init = init_in(files).ok_or_else(|| Error::new(ErrorKind::Corrupt, "corrupted session: it has no `init` event"))?;
    check_id("user", &init.user_id)?;
    Ok((SessionRef::new(init.tenant_id, init.session_id)?, init.user_id))
}

fn init_in(files: &SessionFiles) -> Option<InitEvent> {
    files.get(SESSION)?.split(|byte| *byte == b'\n').find_map(|line| InitEvent::of(&Json::from_bytes(line).ok()?))
}

/// Returns the first event of a session.
fn init_of(session: &SessionRef, files: &SessionFiles) -> Result<InitEvent> {
    let corrupt = || Error::new(ErrorKind::Corrupt, format!("corrupted session `{}`: it has no `init` event", session.session()));
    let init = init_in(files).ok_or_else(corrupt)?;
    if (init.tenant_id.as_str(), init.session_id.as_str()) != (session.tenant(), session.session()) {
        let message = format!(
            "the files are those of the session `{}` of the tenant `{}` and can only be imported as that; name it instead of `{}` of `{}`",
            init.session_id,
            init.tenant_id,
            session.session(),
            session.tenant()
        );
        return Err(Error::invalid_argument(message));
    }
    check_id("user", &init.user_id)?;
    check_id("agent", &init.agent_id)?;
    check_time("createdAt", init.created_at)?;
    Ok(init)
}

impl Import<'_> {
    /// Writes the rows of all files, and creates the session.
    async fn write(&mut self, files: &SessionFiles) -> Result<()> {
        self.read(files).await?;
        self.lower_counts()?;
        self.head.updated_at = self.head.updated_at.min(self.sessions.now());
        self.flush().await?;
        for (path, content) in files.iter().filter(|(path, _)| place_of(path) == Place::Memo) {
            let tree = memo_of_import(self.sessions.store.clone(), &self.head, &self.record(), self.sessions.time())?;
            tree.write(&format!("/{path}"), content.clone()).await.map_err(|error| self.ended(error))?;
        }
        self.create().await
    }

    /// Creates the session whose rows are written.
    async fn create(&self) -> Result<()> {
        let (sessions, record) = (self.sessions, self.record());
        let (intents, key) = (self.head.user_rows().intents()?, record.import_key());
        let Head { tenant_id, session_id, .. } = &self.head;
        let taken = || Err(Error::new(ErrorKind::AlreadyExists, format!("the session `{session_id}` was created meanwhile")));
        let mut attempts = Attempts::new();
        loop {
            match sessions.register(&self.head).await? {
                Registration::Taken => return taken(),
                Registration::Lost => {}
                Registration::Intended(intent) => {
                    let batch = rows::create(&self.head)?.expect(&intents, &key, Condition::Exists).delete(&intents, &key);
                    if rows::commit(&*sessions.store, intent.fulfil(batch)).await?.is_some() {
                        // A sweep removes the record if this fails.
                        if let Err(error) = sessions.store.commit(Batch::new().delete(&removals(), record.key())).await {
                            tracing::debug!(%error, session = session_id, "the record of a completed import stays until the next sweep");
                        }
                        return Ok(());
                    }
                    intent.withdraw(&*sessions.store).await;
                }
            }
            if sessions.owner(tenant_id, session_id).await?.is_some() {
                return taken();
            }
            if sessions.store.get_part(&intents, &key, 0..0).await?.is_none() {
                return Err(self.swept());
            }
            attempts.lost().await?;
        }
    }

    /// Returns the record of the import, by which a sweep finds its rows.
    fn record(&self) -> Removal {
        Removal { import_at: Some(self.began_at), ..Removal::of(&self.head) }
    }

    fn swept(&self) -> Error {
        let message = format!("the import of `{}` paused for too long and its rows were removed; import it again", self.head.session_id);
        Error::new(ErrorKind::Conflict, message).without_effect()
    }

    /// Returns the error of a write to the tree of the import, which has no owner once the import was swept.
    fn ended(&self, error: Error) -> Error {
        if error.kind() == ErrorKind::NotFound { self.swept().with_source(error) } else { error }
    }

    /// Skips and reports files whose path is not valid.
    fn plain(&mut self, files: &SessionFiles) -> SessionFiles {
        let mut plain = SessionFiles::new();
        for (path, content) in files {
            if is_path(path) {
                plain.insert(path.clone(), content.clone());
            } else {
                self.damaged(path, None, &Error::invalid_argument("its path is not that of a file"));
            }
        }
        plain
    }

    /// Lowers the processed count of each mailbox by the skipped events that it counts. Otherwise later inputs would count as
    /// processed.
    fn lower_counts(&mut self) -> Result<()> {
        for (agent, lost) in std::mem::take(&mut self.mail_lost) {
            let Some(state) = self.mailbox_states.get(&agent) else { continue };
            let processed = state.processed_event_count;
            let counted = lost.iter().filter(|number| **number < processed).count() as u64;
            if counted == 0 {
                continue;
            }
            let mut fields: MailboxStateFields = (**state).clone();
            fields.processed_event_count = processed - counted;
            let states = self.head.part(Part::MailboxStates)?;
            self.put(&states, agent, MailboxState::of(fields)?.json().as_str().to_owned());
        }
        Ok(())
    }

    async fn read(&mut self, files: &SessionFiles) -> Result<()> {
        // Messages were appended in this order: the archives by number, then the window.
        let mut archives: BTreeMap<u64, (&String, &Bytes)> = BTreeMap::new();
        for (path, content) in files {
            let Place::Archive(number) = place_of(path) else { continue };
            match check_number("archive", number) {
                Ok(()) => drop(archives.insert(number, (path, content))),
                Err(error) => self.damaged(path, None, &error),
            }
        }
        for (number, (path, content)) in archives {
            self.read_archive(number, path, content).await?;
        }
        self.head.window.from = self.head.messages_end;
        self.head.window.tokens = 0;
        for (path, content) in files {
            self.read_file(path, content).await?;
        }
        Ok(())
    }

    async fn read_file(&mut self, path: &str, content: &Bytes) -> Result<()> {
        match place_of(path) {
            Place::Session => {
                let read = |json: Json| SessionEvent::of(&json).map(|event| (json, event));
                for (json, event) in self.parsed(path, content, read)?.0 {
                    self.put_event(&json, event)?;
                    self.flush_if_full().await?;
                }
            }
            Place::Messages => self.read_messages(path, content).await?,
            Place::Trace => {
                let log = self.head.part(Part::Trace)?;
                for envelope in self.parsed::<Envelope>(path, content, Envelope::from_json)?.0 {
                    if envelope.event.kind == "error" {
                        self.batch = mark_error(std::mem::take(&mut self.batch), &self.head)?;
                    }
                    self.append(&log, envelope.json()).await?;
                }
            }
            Place::Orchestration => {
                for event in self.parsed::<OrchestrationEvent>(path, content, Kept::from_json)?.0 {
                    self.batch = put_event(std::mem::take(&mut self.batch), &self.head, &event)?;
                    self.report.events += 1;
                    self.flush_if_full().await?;
                }
            }
            Place::Checkpoint => drop(self.put_json(path, content, Snapshot::from_json, Part::Checkpoint, "checkpoint")?),
            Place::Mailbox(agent) => {
                let log = self.head.user_rows().mailbox(&self.head.data, &agent)?;
                let (events, lost) = self.parsed::<MailboxEvent>(path, content, Kept::from_json)?;
                self.mail_lost.insert(agent, lost);
                for event in events {
                    self.append(&log, event.json()).await?;
                }
            }
            Place::MailboxState(agent) => {
                let read = |json: Json| {
                    let state = MailboxState::from_json(json)?;
                    check_number("processedEventCount", state.processed_event_count)?;
                    Ok(state)
                };
                if let Some(state) = self.put_json(path, content, read, Part::MailboxStates, &agent)? {
                    self.mailbox_states.insert(agent, state);
                }
            }
            Place::History(agent) => {
                self.put_json(path, content, |json| json.view::<Vec<Json>>(), Part::Histories, &agent)?;
            }
            Place::SkillLog(name) => {
                let logs = self.head.part(Part::SkillLogs)?;
                self.put(&logs, name, content.clone());
            }
            Place::Other => self.put_other(path, content.clone())?,
            // Archives were read before, and memory documents are read after the rows.
            Place::Archive(_) | Place::Memo => {}
        }
        self.flush_if_full().await
    }

    /// Stores a file that is one JSON value, with its text. Returns what `read` made of it, unless it is damaged.
    fn put_json<T>(&mut self, path: &str, content: &Bytes, read: impl Fn(Json) -> Result<T>, part: Part, key: &str) -> Result<Option<T>> {
        match Json::from_bytes(content).and_then(read) {
            Ok(value) => {
                self.put(&self.head.part(part)?, key, content.clone());
                Ok(Some(value))
            }
            Err(error) => {
                self.damaged(path, None, &error);
                Ok(None)
            }
        }
    }

    /// Stores a file as it is. An export begins with these files, so one of the layout is replaced once it has content.
    fn put_other(&mut self, path: &str, content: Bytes) -> Result<()> {
        self.put(&self.head.part(Part::OtherFiles)?, path, content);
        Ok(())
    }

    fn put(&mut self, rows: &Namespace, key: impl Into<String>, value: impl Into<Bytes>) {
        self.batch = std::mem::take(&mut self.batch).put(rows, key, value);
    }

    async fn read_archive(&mut self, number: u64, path: &str, content: &Bytes) -> Result<()> {
        let from = self.head.messages_end;
        self.read_messages(path, content).await?;
        let to = self.head.messages_end;
        let archive = ArchiveRow {
            previous: None,
            from,
            to,
            messages: to - from,
            summary: String::new(),
            compacted_at: String::new(),
            placeholder: None,
        };
        let archives = self.head.part(Part::Archives)?;
        self.put(&archives, position_key(number), row(&archive));
        self.head.archives = self.head.archives.max(number);
        Ok(())
    }

    async fn read_messages(&mut self, path: &str, content: &Bytes) -> Result<()> {
        for message in self.parsed::<Message>(path, content, Message::from_json)?.0 {
            let call = message.answers().and_then(|id| self.calls.get(id).copied());
            let meta = MessageMeta { tokens: message.tokens(), is_result: message.answers().is_some(), call };
            self.calls.extend(message.tool_call_ids().iter().map(|id| (id.clone(), self.head.messages_end)));
            self.batch = put_messages(std::mem::take(&mut self.batch), &mut self.head, &[message], &[meta])?;
            self.report.messages += 1;
            self.flush_if_full().await?;
        }
        Ok(())
    }

    fn put_event(&mut self, json: &Json, event: SessionEvent) -> Result<()> {
        let head = &mut self.head;
        match event {
            SessionEvent::Turn(turn) => {
                let usage = turn.totals();
                head.totals.add(&usage);
                head.last_turn = Some(usage);
                head.turns = head.turns.max(following("turn", turn.turn_index)?);
                head.updated_at = head.updated_at.max(turn.updated_at);
            }
            SessionEvent::Update { title, updated_at } => {
                if let Some(title) = title {
                    head.title = title;
                }
                head.updated_at = head.updated_at.max(updated_at);
            }
            SessionEvent::Other => {}
        }
        let (events, position) = (head.part(Part::Events)?, head.events_end);
        head.events_end = following("event", position)?;
        self.put(&events, position_key(position), json.as_str().to_owned());
        self.report.events += 1;
        Ok(())
    }

    async fn append(&mut self, log: &Namespace, json: &Json) -> Result<()> {
        self.batch = std::mem::take(&mut self.batch).append(log, json.as_str().to_owned(), None);
        self.report.events += 1;
        self.flush_if_full().await
    }

    /// Reads the lines of a file. Returns the values, and the numbers of the skipped ones from 0. A file without any stays
    /// empty.
    fn parsed<T>(&mut self, path: &str, content: &Bytes, parse: impl Fn(Json) -> Result<T>) -> Result<(Vec<T>, Vec<u64>)> {
        let (mut found, mut lost) = (Vec::new(), Vec::new());
        for (index, line) in content.split(|byte| *byte == b'\n').enumerate() {
            if line.trim_ascii().is_empty() {
                continue;
            }
            match Json::from_bytes(line).and_then(&parse) {
                Ok(value) => found.push(value),
                Err(error) => {
                    self.damaged(path, Some(index + 1), &error);
                    lost.push((found.len() + lost.len()) as u64);
                }
            }
        }
        if found.is_empty() {
            self.put_other(path, Bytes::new())?;
        }
        Ok((found, lost))
    }

    fn damaged(&mut self, file: &str, line: Option<usize>, error: &Error) {
        self.report.damaged.push(DamagedLine { file: file.to_owned(), line, reason: error.message().to_owned() });
    }

    async fn flush_if_full(&mut self) -> Result<()> {
        let is_full = self.batch.writes.len() >= ROWS || self.batch.size_bytes() >= self.sessions.options.batch_bytes_max;
        if is_full { self.flush().await } else { Ok(()) }
    }

    /// Commits what was read. Every commit depends on the row of the import and renews it.
    async fn flush(&mut self) -> Result<()> {
        let batch = std::mem::take(&mut self.batch);
        if batch.is_empty() && self.is_begun {
            return Ok(());
        }
        self.begin().await?;
        let (intents, key) = (self.head.user_rows().intents()?, self.record().import_key());
        let batch = batch.expect(&intents, &key, Condition::Exists).put(&intents, &key, time_row(self.sessions.time()));
        match rows::commit(&*self.sessions.store, batch).await? {
            Some(_) => Ok(()),
            None => Err(self.swept()),
        }
    }

    /// Puts the row of the import, and then the record by which a sweep finds it.
    async fn begin(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.is_begun, true) {
            return Ok(());
        }
        let (intents, record, store) = (self.head.user_rows().intents()?, self.record(), &*self.sessions.store);
        store.commit(Batch::new().put_for(&intents, record.import_key(), time_row(self.sessions.time()), INTENT_LIFE)).await?;
        store.commit(Batch::new().put(&removals(), record.key(), row(&record))).await.map(drop)
    }
}
