//! The states of one agent, as rows of a store.

use crate::bundle::remove_session;
use crate::contract::{
    AgentStateStore, DeleteOptions, DeleteSessionOptions, Fence, FenceFallen, SaveOptions, SessionIdPage, StateCapabilities, StateConflict,
    StateForm, StateKey, StateVersion, UserPage, VersionedState,
};
use crate::log::{COMMIT_BYTES_MAX, COMMIT_ROWS_MAX, Plan, plan};
use crate::proofs::{NeededProof, SessionProofs};
use crate::rows::{
    Due, FLOOR_TIME, Floor, Form, HeadMeta, Owner, SESSIONS, SessionRow, Task, corrupt, floor_key, head_key, heads_prefix, new_id,
    position_key, read_head_key, sealed_row, session_floor_key, session_key, unsealed_row, user_of_key, users_of,
};
use crate::slot::StateSlot;
use crate::states::AgentStates;
use crate::value::{Body, Digest, Given, NO_MESSAGES, Segment, chain, hex, message_json};
use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::Json;
use treehold_core::ops::Version;
use treehold_core::retry::Attempts;
use treehold_core::scope::check_id;
use treehold_core::work;
use treehold_store::proof::Proof;
use treehold_store::{Batch, Condition, Item, Namespace, ScanEntry, ScanOptions, Store};

/// How many users a listing checks at the same time.
const USERS_AT_ONCE: usize = 16;

/// How long a large save may take.
const STAGE_TIME: Duration = Duration::from_secs(60 * 60);

/// The most rows of a log that are read at once.
const PAGE_ROWS: u64 = 1_000;

/// A page of the messages that a value ever had.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct HistoryPage {
    /// The messages, oldest first.
    pub entries: Vec<HistoryEntry>,
    /// Where the next page starts; `None` at the end.
    pub next: Option<u64>,
}

/// A message that a value has or had.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct HistoryEntry {
    /// Its position. Positions grow in the order in which messages were first saved, with gaps.
    pub position: u64,
    /// The message.
    pub message: Json,
    /// Whether the value has it now.
    pub is_current: bool,
}

/// The states of one agent of a tenant, over any [`Store`].
///
/// The messages of a value with a `context` are kept as a log: a save writes those that are new, and the head. Costs below count round
/// trips to the store.
#[derive(Debug, Clone)]
pub struct StoreStates {
    pub(crate) states: AgentStates,
    tenant: Arc<str>,
    agent: Arc<str>,
}

/// A session and the head of a value, as one read found them.
pub(crate) struct Seen {
    pub(crate) session: Option<SeenSession>,
    pub(crate) head: Option<SeenHead>,
    /// The version after which the value's versions continue if there is no head.
    floor: u64,
    /// The proofs that exist, for a save.
    proofs: Vec<Item>,
}

pub(crate) struct SeenSession {
    pub(crate) row: SessionRow,
    pub(crate) version: Version,
    expires_at: Option<Timestamp>,
}

pub(crate) struct SeenHead {
    pub(crate) meta: HeadMeta,
    pub(crate) version: Version,
    pub(crate) value: Bytes,
}

impl SeenSession {
    fn read(item: &Item) -> Result<Self> {
        Ok(Self { row: unsealed_row("session", &item.meta)?, version: item.version, expires_at: item.expires_at })
    }
}

impl SeenHead {
    fn read(item: Item) -> Result<Self> {
        Ok(Self { meta: unsealed_row("state", &item.meta)?, version: item.version, value: item.value })
    }

    fn is_of(&self, session: Option<&SeenSession>) -> bool {
        session.is_some_and(|session| session.row.data == self.meta.data)
    }

    pub(crate) fn state_version(&self) -> Result<StateVersion> {
        StateVersion::new(self.meta.version).ok_or_else(|| corrupt("version of a state"))
    }
}

impl Seen {
    /// Returns the head if it belongs to the session.
    pub(crate) fn live(&self) -> Option<&SeenHead> {
        self.head.as_ref().filter(|head| head.is_of(self.session.as_ref()))
    }

    fn current(&self) -> Result<Option<StateVersion>> {
        self.live().map(SeenHead::state_version).transpose()
    }

    /// Returns the version of the next save. After a deletion the versions continue.
    fn next_version(&self) -> Result<u64> {
        let last = self.head.as_ref().map_or(0, |head| head.meta.version).max(if self.live().is_some() { 0 } else { self.floor });
        last.checked_add(1).ok_or_else(|| corrupt("version of a state"))
    }
}

impl AgentStates {
    /// Returns the states of an agent of a tenant.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for an id that cannot name a tenant or agent,
    /// [`PermissionDenied`](ErrorKind::PermissionDenied) for a tenant that is not accessible.
    pub fn for_agent(&self, tenant: &str, agent: &str) -> Result<StoreStates> {
        check_id("tenant", tenant)?;
        check_id("agent", agent)?;
        if !self.admits_some_of(tenant) {
            return Err(Error::new(ErrorKind::PermissionDenied, format!("the states of the tenant `{tenant}` are not accessible here")));
        }
        Ok(StoreStates { states: self.clone(), tenant: tenant.into(), agent: agent.into() })
    }
}

impl StoreStates {
    /// Returns the tenant.
    pub fn tenant(&self) -> &str {
        &self.tenant
    }

    /// Returns the agent.
    pub fn agent(&self) -> &str {
        &self.agent
    }

    /// Returns the states of all agents, with the same restriction of access.
    pub fn all(&self) -> &AgentStates {
        &self.states
    }

    pub(crate) fn store(&self) -> &dyn Store {
        &*self.states.store
    }

    /// Returns whose rows those of a user are, if they are accessible.
    fn owner(&self, user: Option<&str>) -> Result<Owner> {
        self.states.check_owner(&self.tenant, user)?;
        let owner = Owner { tenant: self.tenant.to_string(), user: user.map(str::to_owned), agent: self.agent.to_string() };
        owner.check()?;
        Ok(owner)
    }

    fn check_key(&self, key: &str) -> Result<()> {
        let max = self.states.options.key_bytes_max;
        if key.is_empty() {
            return Err(Error::invalid_argument("the key of a state is empty; name one"));
        }
        if key.len() > max {
            return Err(Error::invalid_argument(format!(
                "the key of a state has {} bytes and at most {max} are allowed; shorten it",
                key.len()
            )));
        }
        Ok(())
    }

    /// Reads a session, the head of a value and, for a save, where its versions continue and which of its proofs exist. Cost: one round trip.
    pub(crate) async fn look(&self, owner: &Owner, slot: &StateSlot, form: Form, key: &str, look: Look<'_>) -> Result<Seen> {
        let session = slot.session();
        let mut keys = vec![session_key(session), head_key(session, form, key)];
        if let Look::ToSave(proofs) = look {
            keys.extend([session_floor_key(session), floor_key(session, form, key)]);
            keys.extend(proofs.all().map(|proof| proof.key().to_owned()));
        }
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let found = self.store().get_many(&owner.states()?, &keys, !matches!(look, Look::ForVersion)).await?;
        let mut found = found.into_iter();
        let session = found.next().flatten().map(|item| SeenSession::read(&item)).transpose()?;
        let head = found.next().flatten().map(SeenHead::read).transpose()?;
        let mut floor = 0;
        for item in found.by_ref().take(2).flatten() {
            floor = unsealed_row::<Floor>("last version of a state", &item.value)?.version.max(floor);
        }
        Ok(Seen { session, head, floor, proofs: found.flatten().collect() })
    }

    async fn put(&self, slot: &StateSlot, key: &str, given: Given<'_>, options: &SaveOptions) -> Result<Option<StateVersion>> {
        self.check_key(key)?;
        let owner = self.owner(slot.user())?;
        let prepared = given.prepare(&self.states.options).await?;
        let (content, digests) = (given.content(&prepared), &prepared.digests);
        let (mut attempts, mut missing_at) = (Attempts::new(), None);
        loop {
            let time_to_live = self.states.options.expiry.time_to_live(slot);
            let expires_at = time_to_live.map(|time_to_live| self.due_at(time_to_live));
            let proofs = SessionProofs::new(&owner, self.states.now(), expires_at)?;
            let seen = self.look(&owner, slot, content.form(), key, Look::ToSave(&proofs)).await?;
            let current = seen.current()?;
            if !options.expected.admits(current) {
                return Err(StateConflict::new(slot, key, options.expected, current).into_error());
            }
            let data = seen.session.as_ref().map_or_else(new_id, |session| session.row.data.clone());
            let before = match seen.live() {
                Some(head) => Some(decoded(head).await?),
                None => None,
            };
            let mut kept = None;
            if let (Some(before), Some(digests), Some(head)) = (&before, digests, seen.live())
                && let Some(window) = &before.window
                && !digests.start_with(window)
            {
                kept = self.read_digests(&owner, &data, before).await?;
                if kept.is_none() {
                    // Another writer replaced the window meanwhile, unless the head is still the same.
                    if missing_at.replace(head.version) == Some(head.version) {
                        return Err(corrupt("log of a state"));
                    }
                    attempts.lost().await?;
                    continue;
                }
            }
            let plan = plan(before.as_ref(), &content, digests.as_ref(), kept.as_deref())?;
            let save = Save { owner: &owner, slot, key, form: content.form(), seen: &seen, data: &data, time_to_live, proofs: &proofs };
            let version = seen.next_version()?;
            if self.write(&save, plan, version, options).await? {
                return Ok(StateVersion::new(version));
            }
            attempts.lost().await?;
        }
    }

    /// Writes what a save planned. Returns false, without an effect, if another writer was faster.
    async fn write(&self, save: &Save<'_>, plan: Plan<'_>, version: u64, options: &SaveOptions) -> Result<bool> {
        let (states, head_key) = (save.owner.states()?, head_key(save.slot.session(), save.form, save.key));
        let mut batch = fenced(save.owner, options.fence.as_ref())?;
        let head_condition = save.seen.head.as_ref().map_or(Condition::Absent, |head| Condition::Version(head.version));
        batch = batch.expect(&states, &head_key, head_condition);
        let (batch_of_session, mut proofs) = self.put_session(batch, save)?;
        batch = batch_of_session;
        let log = plan.body.log.as_ref().map(|log| log.id.clone());
        let leaving = self.leaving(save, &plan)?;
        let (leaving_now, leaving_later) = leaving.split_at(leaving.len().min(COMMIT_ROWS_MAX));
        batch = self.retire(batch, leaving_now);
        if let (Some(log), Some(retention), false) = (&log, self.states.options.retention, plan.dropped.is_empty()) {
            let visit = save.owner.visit_for(self.states.now(), self.due_at(retention));
            for segment in &plan.dropped {
                let due = save.due(Task::RemoveSegment(log.clone(), segment.clone()));
                batch = batch.put(&save.owner.due()?, due.key(visit), sealed_row(&due));
            }
            proofs.push(self.states.needed_visit(save.owner, visit).await?);
        }
        let stage = match (&log, &plan.staged) {
            (Some(log), Some(segment)) => Some(self.stage(save, log, segment, &plan).await?),
            (Some(log), None) => {
                let rows = save.owner.log_of(save.data, log, plan.segments.last().and_then(Segment::id))?;
                for (position, digest, text) in &plan.rows {
                    batch = batch.put_with_meta(&rows, position_key(*position), digest.to_vec(), (*text).to_owned());
                }
                None
            }
            _ => None,
        };
        if let Some(stage) = &stage {
            let due = save.owner.due()?;
            batch = batch.expect(&due, stage, Condition::Exists).delete(&due, stage);
        }
        let meta = HeadMeta { version, data: save.data.to_owned(), log };
        batch = batch.put_with_meta(&states, head_key, sealed_row(&meta), plan.body.encode());
        let committed = self.commit_with(save.owner, batch, &proofs, options.fence.is_some()).await;
        match (&committed, stage) {
            (Ok(true), _) => self.retire_later(leaving_later).await,
            // After any other error the save may have taken effect; a sweep finds out.
            (Ok(false), Some(stage)) => self.states.abandon(save.owner, &stage).await,
            (Err(error), Some(stage)) if !error.may_have_effect() => self.states.abandon(save.owner, &stage).await,
            _ => {}
        }
        committed
    }

    /// Writes the messages of a large save, before its head. Returns the key of the row that says so.
    async fn stage(&self, save: &Save<'_>, log: &str, segment: &str, plan: &Plan<'_>) -> Result<String> {
        let due = save.due(Task::EndStage(log.to_owned(), segment.to_owned()));
        let visit = save.owner.visit_for(self.states.now(), self.due_at(STAGE_TIME));
        let (owner, stage) = (save.owner, due.key(visit));
        let mut attempts = Attempts::new();
        loop {
            let proofs = [self.states.needed_visit(owner, visit).await?];
            let staged = Batch::new().put(&owner.due()?, &stage, sealed_row(&due));
            if self.commit_with(owner, staged, &proofs, false).await? {
                break;
            }
            attempts.lost().await?;
        }
        let staged = self.stage_rows(&owner.due()?, &owner.segment(save.data, log, segment)?, &stage, plan).await;
        if let Err(error) = staged {
            self.states.abandon(owner, &stage).await;
            return Err(error);
        }
        Ok(stage)
    }

    async fn stage_rows(&self, due: &Namespace, rows: &Namespace, stage: &str, plan: &Plan<'_>) -> Result<()> {
        let start = || Batch::new().expect(due, stage, Condition::Exists);
        let (mut batch, mut bytes) = (start(), 0);
        for (position, digest, text) in &plan.rows {
            batch = batch.put_with_meta(rows, position_key(*position), digest.to_vec(), (*text).to_owned());
            bytes += text.len();
            if bytes >= COMMIT_BYTES_MAX || batch.writes.len() >= COMMIT_ROWS_MAX {
                self.store().commit(std::mem::replace(&mut batch, start())).await.map_err(staging_ended)?;
                bytes = 0;
            }
        }
        if batch.is_empty() { Ok(()) } else { self.store().commit(batch).await.map(drop).map_err(staging_ended) }
    }

    /// Returns the rows of the messages that leave the window.
    fn leaving(&self, save: &Save<'_>, plan: &Plan<'_>) -> Result<Vec<(Namespace, String)>> {
        let Some(log) = plan.body.log.as_ref().filter(|_| self.states.options.retention.is_some()) else { return Ok(Vec::new()) };
        let spaces: Vec<Namespace> =
            plan.segments.iter().map(|segment| save.owner.log_of(save.data, &log.id, segment.id())).collect::<Result<_>>()?;
        let row = |(segment, position): &(usize, u64)| (spaces[*segment].clone(), position_key(*position));
        Ok(plan.leaving.iter().map(row).collect())
    }

    /// Lets messages expire after the retention.
    fn retire(&self, batch: Batch, rows: &[(Namespace, String)]) -> Batch {
        let Some(retention) = self.states.options.retention else { return batch };
        rows.iter().fold(batch, |batch, (namespace, key)| match retention.is_zero() {
            true => batch.delete(namespace, key),
            false => batch.touch(namespace, key, Some(retention)),
        })
    }

    /// Lets the messages of a large compaction expire. If this fails, they stay as long as the session.
    async fn retire_later(&self, rows: &[(Namespace, String)]) {
        for rows in rows.chunks(COMMIT_ROWS_MAX) {
            if let Err(error) = self.store().commit(self.retire(Batch::new(), rows)).await {
                tracing::warn!(%error, "messages that left a state stay as long as their session");
                return;
            }
        }
    }

    /// Adds the row of the session to the batch of a save: creates it, counts a new head, or renews its expiry. Returns the proofs that the
    /// batch then needs, too.
    fn put_session(&self, batch: Batch, save: &Save<'_>) -> Result<(Batch, Vec<NeededProof>)> {
        let Save { owner, slot, seen, time_to_live, proofs, .. } = *save;
        let (states, session_key) = (owner.states()?, session_key(slot.session()));
        let condition = seen.session.as_ref().map_or(Condition::Absent, |session| Condition::Version(session.version));
        let mut batch = batch.expect(&states, &session_key, condition);
        let is_new_head = seen.live().is_none();
        let row = seen.session.as_ref().map(|session| &session.row);
        let next = SessionRow {
            data: save.data.to_owned(),
            keys: row.map_or(0, |row| row.keys) + u64::from(is_new_head),
            due: row.is_some_and(|row| row.due) || time_to_live.is_some(),
        };
        if is_new_head && next.keys > self.states.options.keys_max as u64 {
            let max = self.states.options.keys_max;
            return Err(Error::new(
                ErrorKind::TooLarge,
                format!("a session may have at most {max} keys; delete some or use another session"),
            ));
        }
        let mut needed = Vec::new();
        if row.is_none() {
            needed.push(&proofs.directory);
        }
        if let Some((visit, proof)) = &proofs.expiry
            && !row.is_some_and(|row| row.due)
        {
            let due = save.due(Task::Expire);
            batch = batch.put(&owner.due()?, due.key(*visit), sealed_row(&due));
            needed.push(proof);
        }
        let found = |proof: &Proof| seen.proofs.iter().find(|found| found.key == proof.key());
        let needed = needed.into_iter().map(|proof| self.states.needed(proof.clone(), found(proof))).collect();
        if row != Some(&next) {
            batch = batch.put_item(&states, session_key, sealed_row(&next), Bytes::new(), time_to_live);
        } else if time_to_live.is_some() || seen.session.as_ref().is_some_and(|session| session.expires_at.is_some()) {
            batch = batch.touch(&states, session_key, time_to_live);
        }
        Ok((batch, needed))
    }

    /// Returns when a time to live that starts now ends, in milliseconds since 1970.
    pub(crate) fn due_at(&self, time_to_live: Duration) -> i64 {
        self.states.now().saturating_add(i64::try_from(time_to_live.as_millis()).unwrap_or(i64::MAX))
    }

    /// Commits a batch, whose first condition is the fence if there is one. Returns whether it was applied; it was not if another writer
    /// was faster.
    async fn commit(&self, batch: Batch, is_fenced: bool) -> Result<bool> {
        applied(self.store().commit(batch).await, is_fenced)
    }

    /// Commits a batch that needs proofs, as [`AgentStates::commit_with`]. Otherwise as [`StoreStates::commit`].
    async fn commit_with(&self, owner: &Owner, batch: Batch, proofs: &[NeededProof], is_fenced: bool) -> Result<bool> {
        applied(self.states.commit_with(owner, batch, proofs).await, is_fenced)
    }

    /// Reads a value and puts it together; `None` if it is absent.
    async fn read<T: Send + 'static>(
        &self,
        slot: &StateSlot,
        form: Form,
        key: &str,
        make: fn(&Body, &[Bytes]) -> Result<T>,
    ) -> Result<Option<(T, StateVersion)>> {
        self.check_key(key)?;
        let owner = self.owner(slot.user())?;
        let (mut attempts, mut missing_at) = (Attempts::new(), None);
        loop {
            let seen = self.look(&owner, slot, form, key, Look::ToRead).await?;
            let Some(head) = seen.live() else { return Ok(None) };
            let body = decoded(head).await?;
            if let Some(items) = self.read_window(&owner, &head.meta.data, &body, true).await? {
                let bytes = items.iter().fold(head.value.len(), |bytes, item| bytes.saturating_add(item.value.len()));
                let value = work::run(bytes as u64, move |_| make(&body, &messages_of(&body, items)?)).await??;
                return Ok(Some((value, head.state_version()?)));
            }
            // Another writer replaced the window meanwhile, unless the head is still the same.
            if missing_at.replace(head.version) == Some(head.version) {
                return Err(corrupt("log of a state"));
            }
            attempts.lost().await?;
        }
    }

    /// Reads the digests of the messages of a window; `None` if one is missing.
    async fn read_digests(&self, owner: &Owner, data: &str, body: &Body) -> Result<Option<Vec<Digest>>> {
        let Some(window) = &body.window else { return Ok(Some(Vec::new())) };
        let Some(items) = self.read_window(owner, data, body, false).await? else { return Ok(None) };
        let digests: Vec<Digest> = items.iter().map(digest_in).collect::<Result<_>>()?;
        let digest = digests.iter().fold(NO_MESSAGES, |digest, next| chain(&digest, next));
        if hex(&digest) == window.digest { Ok(Some(digests)) } else { Err(corrupt("log of a state")) }
    }

    /// Reads the rows of a window; `None` if one is missing. Cost: one round trip for each run, or more for long ones.
    async fn read_window(&self, owner: &Owner, data: &str, body: &Body, with_values: bool) -> Result<Option<Vec<Item>>> {
        let (Some(window), Some(log)) = (&body.window, &body.log) else { return Ok(Some(Vec::new())) };
        let mut items = Vec::new();
        for run in &window.runs {
            let rows = owner.log_of(data, &log.id, log.segments.get(run.segment).and_then(Segment::id))?;
            let mut next = run.from;
            while next < run.to {
                let limit = (run.to - next).min(PAGE_ROWS) as usize;
                let mut options = ScanOptions::new().with_values(with_values).with_limit(limit);
                options.start_after = next.checked_sub(1).map(position_key);
                let page = self.store().scan(&rows, options).await?;
                let before = next;
                for entry in page.entries {
                    let ScanEntry::Item(item) = entry else { continue };
                    if item.key != position_key(next) {
                        return Ok(None);
                    }
                    items.push(item);
                    next += 1;
                }
                if next == before {
                    return Ok(None);
                }
            }
        }
        Ok(Some(items))
    }

    /// Returns a page of all messages that a value ever had, oldest first: those that it has, and those that left it less than the
    /// [retention](crate::AgentStatesOptions::retention) ago. `from` is the first position, and the `next` of the page before. A page may
    /// have fewer messages than the limit, or none, and still be followed by another one.
    ///
    /// Cost: two round trips.
    ///
    /// # Errors
    /// As [`AgentStateStore::get`].
    pub async fn history(&self, slot: &StateSlot, key: &StateKey, from: u64, limit: usize) -> Result<HistoryPage> {
        let (form, key) = match key {
            StateKey::Single(key) => (Form::Single, key.as_str()),
            StateKey::List(key) => (Form::List, key.as_str()),
        };
        self.check_key(key)?;
        let owner = self.owner(slot.user())?;
        let seen = self.look(&owner, slot, form, key, Look::ToRead).await?;
        let mut history = HistoryPage::default();
        let Some(head) = seen.live() else { return Ok(history) };
        let body = decoded(head).await?;
        let Some(log) = &body.log else { return Ok(history) };
        let index = log.segments.iter().rposition(|segment| segment.start <= from).unwrap_or(0);
        let rows = owner.log_of(&head.meta.data, &log.id, log.segments.get(index).and_then(Segment::id))?;
        let mut options = ScanOptions::new().with_values(true).with_limit(self.page_limit(limit));
        options.start_after = from.checked_sub(1).map(position_key);
        let page = self.store().scan(&rows, options).await?;
        let last = page.next.and_then(|key| key.parse::<u64>().ok());
        history.next = match last {
            Some(last) => last.checked_add(1),
            None => log.segments.get(index + 1).map(|segment| segment.start.max(from.saturating_add(1))),
        };
        let items: Vec<Item> =
            page.entries.into_iter().filter_map(|entry| if let ScanEntry::Item(item) = entry { Some(item) } else { None }).collect();
        let bytes = items.iter().fold(0_usize, |bytes, item| bytes.saturating_add(item.value.len()));
        let entries = work::run(bytes as u64, move |_| items.iter().map(|item| history_entry(&body, index, item)).collect::<Result<_>>());
        history.entries = entries.await??;
        Ok(history)
    }

    /// Reads the rows of a session's heads without their values, those of earlier sessions of the same name included.
    async fn heads(&self, owner: &Owner, session: &str) -> Result<Vec<(Form, String, Item)>> {
        let (states, prefix) = (owner.states()?, heads_prefix(session));
        let mut options = ScanOptions::new().with_prefix(prefix.clone());
        let mut heads = Vec::new();
        loop {
            let page = self.store().scan(&states, options.clone()).await?;
            for entry in page.entries {
                let ScanEntry::Item(item) = entry else { continue };
                let (form, key) = read_head_key(item.key.strip_prefix(&prefix).unwrap_or_default())?;
                heads.push((form, key, item));
            }
            match page.next {
                Some(next) => options.start_after = Some(next),
                None => return Ok(heads),
            }
        }
    }

    async fn session(&self, owner: &Owner, session: &str) -> Result<Option<SeenSession>> {
        let found = self.store().get(&owner.states()?, &session_key(session)).await?;
        found.map(|item| SeenSession::read(&item)).transpose()
    }
}

/// What a read of a head is for.
#[derive(Clone, Copy)]
pub(crate) enum Look<'a> {
    ToSave(&'a SessionProofs),
    ToRead,
    ForVersion,
}

#[async_trait]
impl AgentStateStore for StoreStates {
    fn capabilities(&self) -> StateCapabilities {
        StateCapabilities::new().with_shared(self.states.is_shared()).with_versions(true).with_list_versions(true).with_fences(true)
    }

    /// Cost: two round trips. Two more for the first session of a user, and for a new one of a user again a day later; and for a new session
    /// that expires unless a sweep is scheduled near that time. A save of several commits takes one read and these commits more, and one
    /// whose messages leave a segment one read. More if another writer was faster.
    async fn save(&self, slot: &StateSlot, key: &str, value: &Json, options: SaveOptions) -> Result<Option<StateVersion>> {
        self.put(slot, key, Given::Single(value), &options).await
    }

    /// Cost: as [`AgentStateStore::save`].
    async fn save_list(&self, slot: &StateSlot, key: &str, values: &[Json], options: SaveOptions) -> Result<Option<StateVersion>> {
        self.put(slot, key, Given::List(values), &options).await
    }

    /// Cost: one round trip.
    async fn get(&self, slot: &StateSlot, key: &str) -> Result<Option<VersionedState>> {
        let found = self.read(slot, Form::Single, key, Body::assemble).await?;
        Ok(found.map(|(value, version)| VersionedState::new(value, Some(version))))
    }

    /// Cost: as [`AgentStateStore::get`].
    async fn get_list(&self, slot: &StateSlot, key: &str) -> Result<Vec<Json>> {
        Ok(self.read(slot, Form::List, key, Body::elements).await?.map_or_else(Vec::new, |(elements, _)| elements))
    }

    /// Cost: one round trip, which reads no values.
    async fn version(&self, slot: &StateSlot, key: &str) -> Result<Option<StateVersion>> {
        self.check_key(key)?;
        let owner = self.owner(slot.user())?;
        self.look(&owner, slot, Form::Single, key, Look::ForVersion).await?.current()
    }

    /// Cost: as [`AgentStateStore::version`].
    async fn list_version(&self, slot: &StateSlot, key: &str) -> Result<Option<StateVersion>> {
        self.check_key(key)?;
        let owner = self.owner(slot.user())?;
        self.look(&owner, slot, Form::List, key, Look::ForVersion).await?.current()
    }

    /// Cost: one round trip.
    async fn exists(&self, slot: &StateSlot) -> Result<bool> {
        let owner = self.owner(slot.user())?;
        Ok(self.session(&owner, slot.session()).await?.is_some())
    }

    /// Cost: as [`StoreStates::keys_with_versions`].
    async fn keys(&self, slot: &StateSlot) -> Result<Vec<StateKey>> {
        Ok(self.keys_with_versions(slot).await?.into_iter().map(|(key, _)| key).collect())
    }

    /// The session is gone with one commit, and with it what a bundle of the same owner keeps of it: transcript, inbox, events, tasks and
    /// tool runs. What a bundle keeps of a session without states is removed, too. The logs are removed afterwards; if that fails or is
    /// interrupted, a sweep finishes it. A damaged session can be deleted, too.
    ///
    /// Cost: eight round trips, six more if the user has no other session, and one for each log. Two more unless a sweep is scheduled for
    /// deletions of the user, as it is for up to 4.6 hours after one. Two for a session without states.
    async fn delete_session(&self, slot: &StateSlot, options: DeleteSessionOptions) -> Result<()> {
        let owner = self.owner(slot.user())?;
        let (states, session_key) = (owner.states()?, session_key(slot.session()));
        let mut attempts = Attempts::new();
        loop {
            let mut batch = remove_session(fenced(&owner, options.fence.as_ref())?, &owner.bundle()?, slot.session())?;
            let Some(session) = self.store().get(&states, &session_key).await? else {
                if self.commit(batch.expect(&states, &session_key, Condition::Absent), options.fence.is_some()).await? {
                    return Ok(());
                }
                attempts.lost().await?;
                continue;
            };
            batch = batch.expect(&states, &session_key, Condition::Version(session.version)).delete(&states, &session_key);
            let mut floor = 0;
            let mut data: BTreeSet<String> = SeenSession::read(&session).map(|session| session.row.data).into_iter().collect();
            for (form, key, item) in self.heads(&owner, slot.session()).await? {
                let key = head_key(slot.session(), form, &key);
                batch = batch.expect(&states, &key, Condition::Version(item.version)).delete(&states, key);
                // Versions of rows grow faster than those of states.
                let row_version = item.version.number();
                let meta = SeenHead::read(item).map(|head| head.meta);
                floor = meta.as_ref().map_or(row_version, |meta| meta.version).max(floor);
                data.extend(meta.map(|meta| meta.data));
            }
            if data.is_empty() {
                // All that named the data is damaged. The removal still looks whether this was the user's last session.
                data.insert(new_id());
            }
            batch = batch.put_for(&states, session_floor_key(slot.session()), sealed_row(&Floor { version: floor }), FLOOR_TIME);
            let due = |data| Due { owner: owner.clone(), session: slot.session().to_owned(), data, task: Task::RemoveData };
            if self.commit_removal(&owner, batch, data.into_iter().map(due).collect(), options.fence.is_some()).await? {
                return Ok(());
            }
            attempts.lost().await?;
        }
    }

    /// Both forms of a key are gone with one commit. The last value takes the session along, but not what a bundle keeps of it.
    ///
    /// Cost: two round trips. For a value with a log seven or eight, and two more unless a sweep is scheduled for deletions. As
    /// [`AgentStateStore::delete_session`] for the last value.
    async fn delete(&self, slot: &StateSlot, key: &str, options: DeleteOptions) -> Result<()> {
        self.check_key(key)?;
        let owner = self.owner(slot.user())?;
        let mut attempts = Attempts::new();
        while !self.delete_forms(&owner, slot, key, &options).await? {
            attempts.lost().await?;
        }
        Ok(())
    }

    /// Cost: one round trip.
    async fn session_ids(&self, user: Option<&str>, after: Option<&str>, limit: usize) -> Result<SessionIdPage> {
        user.map_or(Ok(()), |user| check_id("user", user))?;
        let owner = self.owner(user)?;
        let mut options = ScanOptions::new().with_prefix(SESSIONS).with_limit(self.page_limit(limit));
        options.start_after = after.map(session_key);
        let page = self.store().scan(&owner.states()?, options).await?;
        let id = |key: &str| key.strip_prefix(SESSIONS).unwrap_or_default().to_owned();
        let sessions = page.entries.iter().map(|entry| id(entry.key())).collect();
        Ok(SessionIdPage { sessions, next: page.next.as_deref().map(id) })
    }

    /// A page may have fewer users than the limit, or none, and still be followed by another one.
    ///
    /// Cost: one round trip, and one for each user.
    async fn users(&self, after: Option<&str>, limit: usize) -> Result<UserPage> {
        let directory = users_of(&self.tenant, &self.agent)?;
        let mut options = ScanOptions::new().with_limit(self.page_limit(limit));
        options.start_after = after.map(str::to_owned);
        let page = self.store().scan(&directory, options).await?;
        let mut accessible = Vec::with_capacity(page.entries.len());
        for entry in &page.entries {
            let user = user_of_key(entry.key()).ok_or_else(|| corrupt("list of users"))?;
            if self.states.admits(&self.tenant, user.as_deref()) {
                accessible.push(user);
            }
        }
        let checked = stream::iter(accessible).map(|user| async move {
            let has_states = self.states.has_sessions(&self.owner(user.as_deref())?).await?;
            Ok::<_, Error>(has_states.then_some(user))
        });
        let users: Vec<Option<Option<String>>> = checked.buffered(USERS_AT_ONCE).try_collect().await?;
        Ok(UserPage { users: users.into_iter().flatten().collect(), next: page.next })
    }
}

impl StoreStates {
    /// Returns the keys of a session with their versions, in order.
    ///
    /// Cost: two round trips, which read no values.
    ///
    /// # Errors
    /// As [`AgentStateStore::keys`].
    pub async fn keys_with_versions(&self, slot: &StateSlot) -> Result<Vec<(StateKey, StateVersion)>> {
        let owner = self.owner(slot.user())?;
        let mut attempts = Attempts::new();
        loop {
            let Some(session) = self.session(&owner, slot.session()).await? else { return Ok(Vec::new()) };
            let heads = self.heads(&owner, slot.session()).await?;
            let mut keys = Vec::with_capacity(heads.len());
            for (form, key, item) in heads {
                let head = SeenHead::read(item)?;
                if !head.is_of(Some(&session)) {
                    continue;
                }
                let version = head.state_version()?;
                keys.push(match form {
                    Form::Single => (StateKey::Single(key), version),
                    Form::List => (StateKey::List(key), version),
                });
            }
            if keys.len() as u64 == session.row.keys {
                keys.sort();
                return Ok(keys);
            }
            let now = self.session(&owner, slot.session()).await?;
            if now.is_some_and(|now| now.version == session.version) {
                return Err(corrupt("list of a session's states"));
            }
            attempts.lost().await?;
        }
    }

    fn page_limit(&self, limit: usize) -> usize {
        limit.clamp(1, self.states.options.page_max.max(1))
    }

    /// Deletes forms of a key. Returns false if another writer was faster.
    async fn delete_forms(&self, owner: &Owner, slot: &StateSlot, key: &str, options: &DeleteOptions) -> Result<bool> {
        let (states, session_key) = (owner.states()?, session_key(slot.session()));
        let forms: &[Form] = match options.only_form() {
            None => &Form::ALL,
            Some(StateForm::Single) => &[Form::Single],
            Some(StateForm::List) => &[Form::List],
        };
        let mut keys = vec![session_key.clone()];
        keys.extend(forms.iter().map(|form| head_key(slot.session(), *form, key)));
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let mut found = self.store().get_many(&states, &keys, false).await?.into_iter();
        let session = found.next().flatten().map(|item| SeenSession::read(&item)).transpose()?;
        let mut heads = Vec::with_capacity(forms.len());
        for (form, item) in forms.iter().zip(found) {
            let head = item.map(SeenHead::read).transpose()?.filter(|head| head.is_of(session.as_ref()));
            heads.extend(head.map(|head| (*form, head)));
        }
        let current = heads.first().map(|(_, head)| head.state_version()).transpose()?;
        if !options.expected.admits(current) {
            return Err(StateConflict::new(slot, key, options.expected, current).into_error());
        }
        let (batch, is_fenced) = (fenced(owner, options.fence.as_ref())?, options.fence.is_some());
        let Some(session) = session.filter(|_| !heads.is_empty()) else {
            return if is_fenced { self.commit(batch, true).await } else { Ok(true) };
        };
        let mut batch = batch.expect(&states, &session_key, Condition::Version(session.version));
        let due = |task| Due { owner: owner.clone(), session: slot.session().to_owned(), data: session.row.data.clone(), task };
        let mut dues = Vec::new();
        for (form, head) in &heads {
            let (head_key, floor) = (head_key(slot.session(), *form, key), Floor { version: head.meta.version });
            batch = batch.expect(&states, &head_key, Condition::Version(head.version)).delete(&states, head_key).put_for(
                &states,
                floor_key(slot.session(), *form, key),
                sealed_row(&floor),
                FLOOR_TIME,
            );
            dues.extend(head.meta.log.clone().map(|log| due(Task::RemoveLog(log))));
        }
        let keys = session.row.keys.saturating_sub(heads.len() as u64);
        if keys == 0 {
            batch = batch.delete(&states, session_key);
            dues = vec![due(Task::RemoveData)];
        } else {
            let row = SessionRow { keys, ..session.row.clone() };
            let time_to_live = self.states.options.expiry.time_to_live(slot);
            batch = batch.put_item(&states, session_key, sealed_row(&row), Bytes::new(), time_to_live);
        }
        self.commit_removal(owner, batch, dues, is_fenced).await
    }

    /// Commits a deletion, and then removes what remains. Otherwise as [`StoreStates::commit`].
    async fn commit_removal(&self, owner: &Owner, mut batch: Batch, dues: Vec<Due>, is_fenced: bool) -> Result<bool> {
        let visit = owner.visit_for_deletion(self.states.now());
        for due in &dues {
            batch = batch.put(&owner.due()?, due.key(visit), sealed_row(due));
        }
        let proofs = if dues.is_empty() { Vec::new() } else { vec![self.states.needed_visit(owner, visit).await?] };
        if !self.commit_with(owner, batch, &proofs, is_fenced).await? {
            return Ok(false);
        }
        for due in &dues {
            // The state is gone, whatever happens to its log.
            if let Err(error) = self.states.remove(due, &due.key(visit)).await {
                tracing::warn!(%error, session = due.session, "the messages of a deleted state remain until the next sweep");
            }
        }
        Ok(true)
    }
}

/// A save: what it writes, and what it found.
struct Save<'a> {
    owner: &'a Owner,
    slot: &'a StateSlot,
    key: &'a str,
    form: Form,
    seen: &'a Seen,
    data: &'a str,
    time_to_live: Option<Duration>,
    proofs: &'a SessionProofs,
}

impl Save<'_> {
    fn due(&self, task: Task) -> Due {
        Due { owner: self.owner.clone(), session: self.slot.session().to_owned(), data: self.data.to_owned(), task }
    }
}

/// Returns whether a commit was applied, whose first condition is the fence if there is one.
fn applied<T>(committed: Result<T>, is_fenced: bool) -> Result<bool> {
    match committed {
        Ok(_) => Ok(true),
        Err(error) if error.kind() != ErrorKind::Conflict => Err(error),
        Err(error) if is_fenced && error.change() == Some(0) => Err(FenceFallen.into_error()),
        Err(_) => Ok(false),
    }
}

/// Starts a batch with its fence as the first condition.
fn fenced(owner: &Owner, fence: Option<&Fence>) -> Result<Batch> {
    let Some(fence) = fence else { return Ok(Batch::new()) };
    if !fence.namespace.shares_partition(&owner.states()?) {
        let (theirs, own) = (fence.namespace.partition(), owner.states()?.partition());
        let message = format!(
            "the fence is in the partition `{theirs}` and the states are in `{own}`; use a turn of the session, or a lock of the same partition"
        );
        return Err(Error::new(ErrorKind::Unsupported, message).without_effect());
    }
    Ok(Batch::new().expect(&fence.namespace, &fence.key, Condition::Version(fence.version)))
}

/// Decodes a head, on another thread if it is large.
async fn decoded(head: &SeenHead) -> Result<Body> {
    let value = head.value.clone();
    work::run(value.len() as u64, move |_| Body::decode(&value)).await?
}

/// Returns the messages of a window, after checking that they are those that were saved.
fn messages_of(body: &Body, items: Vec<Item>) -> Result<Vec<Bytes>> {
    let Some(window) = &body.window else { return Ok(Vec::new()) };
    let mut digest = NO_MESSAGES;
    let mut messages = Vec::with_capacity(items.len());
    for item in items {
        digest = chain(&digest, blake3::hash(&item.value).as_bytes());
        messages.push(item.value);
    }
    if hex(&digest) == window.digest { Ok(messages) } else { Err(corrupt("log of a state")) }
}

/// Reads a message that a value has or had from its row. `segment` is the index of the one that holds the row.
fn history_entry(body: &Body, segment: usize, item: &Item) -> Result<HistoryEntry> {
    let position: u64 = item.key.parse().map_err(|_| corrupt("log of a state"))?;
    if digest_in(item)? != *blake3::hash(&item.value).as_bytes() {
        return Err(corrupt("message"));
    }
    let runs = body.window.as_ref().map_or(&[][..], |window| &window.runs);
    let is_current = runs.iter().any(|run| run.segment == segment && (run.from..run.to).contains(&position));
    Ok(HistoryEntry { position, message: message_json(&item.value)?, is_current })
}

/// Reads the digest of a message from its row.
fn digest_in(item: &Item) -> Result<Digest> {
    Digest::try_from(&item.meta[..]).map_err(|_| corrupt("message"))
}

/// The error of a save whose messages a sweep removed because it took too long.
fn staging_ended(error: Error) -> Error {
    if error.kind() != ErrorKind::Conflict {
        return error;
    }
    Error::new(ErrorKind::Deadline, "the save took over an hour, so nothing was saved; try again").without_effect().with_source(error)
}

impl fmt::Display for StoreStates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AgentStates({})", self.store())
    }
}
