//! Stores the events, checkpoints, mailboxes and histories of an orchestration.

use super::claim::Claim;
use super::event::{MailboxEvent, MailboxState, MailboxStateFields, OrchestrationEvent};
use super::recover::{RecoveredState, recover, replay};
use super::snapshot::{Snapshot, SnapshotFields};
use crate::info::SessionRef;
use crate::live::{LiveSession, Unreadable};
use crate::once::{KeyUse, Once};
use crate::rows::{Head, Part};
use crate::sessions::Sessions;
use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Serialize;
use std::borrow::Cow;
use std::time::Duration;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::Json;
use treehold_core::ops::Version;
use treehold_core::scope::check_id;
use treehold_store::Batch;

/// The key of the checkpoint.
const CHECKPOINT: &str = "checkpoint";

/// The names of rows in messages.
const EVENT: &str = "event of an orchestration";
const MAIL: &str = "event of a mailbox";

/// An event with its position.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "{T}Entry")]
#[non_exhaustive]
pub struct OrchestrationEntry<T> {
    /// Its position: positions rise, and are never used twice.
    pub position: Version,
    /// The event.
    pub event: T,
}

/// A page of events.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "{T}Page")]
#[non_exhaustive]
pub struct OrchestrationPage<T> {
    /// The events in order.
    pub entries: Vec<OrchestrationEntry<T>>,
    /// Whether more follow.
    pub more: bool,
}

impl<T> OrchestrationPage<T> {
    fn of(entries: Vec<(Version, T)>, more: bool) -> Self {
        let entries = entries.into_iter().map(|(position, event)| OrchestrationEntry { position, event }).collect();
        Self { entries, more }
    }
}

/// Rows to write in one commit.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct OrchestrationCommit {
    /// Events, in order.
    pub events: Vec<OrchestrationEvent>,
    /// The state that includes them.
    pub checkpoint: Option<Snapshot>,
    /// Events of mailboxes, each with its agent.
    pub mailbox_events: Vec<(String, MailboxEvent)>,
    /// The states of mailboxes, each with its agent.
    pub mailbox_states: Vec<(String, MailboxState)>,
    /// The histories of agents, each with its agent.
    pub histories: Vec<(String, Vec<Json>)>,
    /// The claim that must still hold.
    pub claim: Option<Claim>,
}

impl OrchestrationCommit {
    /// Starts an empty commit.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an event.
    #[must_use]
    pub fn with_event(mut self, event: OrchestrationEvent) -> Self {
        self.events.push(event);
        self
    }

    /// Sets the checkpoint.
    #[must_use]
    pub fn with_checkpoint(mut self, checkpoint: Snapshot) -> Self {
        self.checkpoint = Some(checkpoint);
        self
    }

    /// Adds an event of a mailbox.
    #[must_use]
    pub fn with_mailbox_event(mut self, agent: impl Into<String>, event: MailboxEvent) -> Self {
        self.mailbox_events.push((agent.into(), event));
        self
    }

    /// Sets the state of a mailbox.
    #[must_use]
    pub fn with_mailbox_state(mut self, agent: impl Into<String>, state: MailboxState) -> Self {
        self.mailbox_states.push((agent.into(), state));
        self
    }

    /// Sets the history of an agent.
    #[must_use]
    pub fn with_history(mut self, agent: impl Into<String>, messages: Vec<Json>) -> Self {
        self.histories.push((agent.into(), messages));
        self
    }

    /// Returns the agents that it names.
    fn agents(&self) -> impl Iterator<Item = &str> {
        let of_events = self.events.iter().flat_map(|event| event.kind.agents());
        let of_checkpoint = self.checkpoint.iter().flat_map(|checkpoint| checkpoint.agent_ids());
        let of_mail = self.mailbox_events.iter().flat_map(|(agent, event)| [agent.as_str()].into_iter().chain(event.agent()));
        let of_states = self.mailbox_states.iter().map(|(agent, _)| agent.as_str());
        let of_histories = self.histories.iter().map(|(agent, _)| agent.as_str());
        of_events.chain(of_checkpoint).chain(of_mail).chain(of_states).chain(of_histories)
    }

    /// Returns the texts that make it up, without the claim.
    fn texts(&self) -> Result<Vec<Cow<'_, str>>> {
        let mut texts = vec![Cow::Borrowed("orchestration")];
        for event in &self.events {
            texts.extend(["event", event.json().as_str()].map(Cow::Borrowed));
        }
        if let Some(checkpoint) = &self.checkpoint {
            texts.extend(["checkpoint", checkpoint.json().as_str()].map(Cow::Borrowed));
        }
        for (agent, event) in &self.mailbox_events {
            texts.extend(["mail", agent, event.json().as_str()].map(Cow::Borrowed));
        }
        for (agent, state) in &self.mailbox_states {
            texts.extend(["mailbox", agent, state.json().as_str()].map(Cow::Borrowed));
        }
        for (agent, messages) in &self.histories {
            texts.extend(["history", agent].map(Cow::Borrowed));
            texts.push(Cow::Owned(Json::of(messages)?.as_str().to_owned()));
        }
        Ok(texts)
    }

    /// Makes the commit depend on a claim.
    #[must_use]
    pub fn with_claim(mut self, claim: Claim) -> Self {
        self.claim = Some(claim);
        self
    }
}

/// The eleven methods with which an agent host stores an orchestration, one that combines several, and three by which at
/// most one manager runs it.
#[async_trait]
pub trait OrchestrationPersistence: Send + Sync {
    /// Appends an event.
    ///
    /// # Errors
    /// Those of the implementation.
    async fn append_event(&self, event: &OrchestrationEvent) -> Result<()>;

    /// Returns all events in order; empty for an unknown session.
    ///
    /// # Errors
    /// Those of the implementation.
    async fn load_events(&self) -> Result<Vec<OrchestrationEvent>>;

    /// Returns the last checkpoint; `None` also for one that cannot be read.
    ///
    /// # Errors
    /// Those of the implementation.
    async fn load_snapshot(&self) -> Result<Option<Snapshot>>;

    /// Replaces the checkpoint.
    ///
    /// # Errors
    /// Those of the implementation.
    async fn write_checkpoint(&self, snapshot: &Snapshot) -> Result<()>;

    /// Recovers the state from the checkpoint and the events, see [`recover`].
    ///
    /// # Errors
    /// Those of the implementation.
    async fn recover_state(&self) -> Result<RecoveredState>;

    /// Appends an event to the mailbox of an agent.
    ///
    /// # Errors
    /// Those of the implementation.
    async fn append_mailbox_event(&self, agent: &str, event: &MailboxEvent) -> Result<()>;

    /// Returns all events of a mailbox in order.
    ///
    /// # Errors
    /// Those of the implementation.
    async fn load_mailbox_events(&self, agent: &str) -> Result<Vec<MailboxEvent>>;

    /// Returns the processed part of a mailbox: empty by default, and if the stored row cannot be read.
    ///
    /// # Errors
    /// Those of the implementation.
    async fn load_mailbox_state(&self, agent: &str) -> Result<MailboxState>;

    /// Replaces the processed part of a mailbox.
    ///
    /// # Errors
    /// Those of the implementation.
    async fn write_mailbox_state(&self, agent: &str, state: &MailboxState) -> Result<()>;

    /// Returns the history of an agent: a list of messages, empty by default.
    ///
    /// # Errors
    /// Those of the implementation.
    async fn load_agent_history(&self, agent: &str) -> Result<Vec<Json>>;

    /// Replaces the history of an agent.
    ///
    /// # Errors
    /// Those of the implementation.
    async fn write_agent_history(&self, agent: &str, history: &[Json]) -> Result<()>;

    /// Writes events, checkpoint and mailboxes in one commit: all or none.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) if the commit depends on a claim that another one replaced, otherwise those of the
    /// implementation.
    async fn commit(&self, commit: &OrchestrationCommit) -> Result<()>;

    /// Claims the orchestration for a manager. Nobody else can claim it until the lease ends. The same holder can: a host
    /// that restarts under its old name continues at once, and commits of its earlier claim are refused.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable), without an effect, during the lease of another holder, otherwise those of
    /// the implementation.
    async fn claim(&self, holder: &str, lease: Duration) -> Result<Claim>;

    /// Renews the lease of a claim, from now on.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) if another claim replaced it, otherwise those of the implementation.
    async fn renew(&self, claim: Claim, holder: &str, lease: Duration) -> Result<()>;

    /// Ends the lease of a claim. Does nothing if another claim replaced it.
    ///
    /// # Errors
    /// Those of the implementation.
    async fn release(&self, claim: Claim) -> Result<()>;
}

/// The orchestration of one session in the store of [`Sessions`]. It caches the location of the session's rows.
///
/// Every write costs one round trip once the session was found. A write fails with
/// [`NotFound`](ErrorKind::NotFound) for an unknown session, [`TooLarge`](ErrorKind::TooLarge) for a value over the limit,
/// and [`InvalidArgument`](ErrorKind::InvalidArgument) for an id of an agent that cannot be kept exactly. A read of an
/// unknown session finds nothing.
#[derive(Debug)]
pub struct StoredOrchestration {
    pub(super) live: LiveSession,
}

impl Sessions {
    /// Opens the orchestration of a session. Hosts keep it for as long as they serve the session.
    pub fn orchestration(&self, session: SessionRef) -> StoredOrchestration {
        StoredOrchestration { live: LiveSession::new(self.clone(), session) }
    }
}

impl StoredOrchestration {
    async fn get(&self, part: Part, key: &str) -> Result<Option<treehold_store::Item>> {
        match self.live.find().await? {
            Some(head) => self.live.sessions().store.get(&head.part(part)?, key).await,
            None => Ok(None),
        }
    }

    /// Returns a page of the events after a position.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) for a row that cannot be read, and errors of the store.
    pub async fn event_page(&self, after: Option<Version>, limit: usize) -> Result<OrchestrationPage<OrchestrationEvent>> {
        let (entries, more) = self.live.log_page(EVENT, |head| head.part(Part::Orchestration), after, limit).await?;
        Ok(OrchestrationPage::of(entries, more))
    }

    /// Returns a page of an agent's mailbox after a position.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for an id that no agent can have, otherwise as
    /// [`StoredOrchestration::event_page`].
    pub async fn mailbox_page(&self, agent: &str, after: Option<Version>, limit: usize) -> Result<OrchestrationPage<MailboxEvent>> {
        check_id("agent", agent)?;
        let (entries, more) = self.live.log_page(MAIL, |head| head.user_rows().mailbox(&head.data, agent), after, limit).await?;
        Ok(OrchestrationPage::of(entries, more))
    }

    /// Commits once for an idempotency key. A host that lost the answer repeats the call with the same key; the repetition does nothing,
    /// even if another manager has taken over meanwhile.
    ///
    /// # Errors
    /// As [`OrchestrationPersistence::commit`]; [`InvalidArgument`](ErrorKind::InvalidArgument) for a key that is empty, longer than
    /// [`IDEMPOTENCY_KEY_BYTES_MAX`](crate::IDEMPOTENCY_KEY_BYTES_MAX), or used for another write (the source is
    /// [`KeyReused`](crate::KeyReused)).
    pub async fn commit_once(&self, commit: &OrchestrationCommit, key: &str) -> Result<KeyUse> {
        let texts = commit.texts()?;
        let once = Once::new(key, texts.iter().map(|text| &**text))?;
        self.check(commit)?;
        let earlier = self.commit_under(commit.claim, Some(&once), |batch, head| planned(batch, head, commit)).await?;
        Ok(earlier.map_or_else(|| Once::used(self.live.sessions()), |earlier| earlier.key_use()))
    }

    /// Returns all events in order.
    ///
    /// # Errors
    /// Those of [`LiveSession::whole_log`].
    pub(crate) async fn events(&self, unreadable: Unreadable) -> Result<Vec<OrchestrationEvent>> {
        self.live.whole_log(EVENT, |head| head.part(Part::Orchestration), unreadable).await
    }

    /// Recovers the state from the checkpoint and the events after it. The whole log is read only if the checkpoint is not one of it.
    ///
    /// # Errors
    /// Those of [`LiveSession::log_after`].
    pub(crate) async fn recovered(&self, unreadable: Unreadable) -> Result<RecoveredState> {
        // Read the checkpoint first: the events read afterwards then include its last one.
        let checkpoint = self.load_snapshot().await?.map(Snapshot::into_view);
        let last = checkpoint.as_ref().and_then(|checkpoint| checkpoint.last_event_id.as_deref());
        let position = match last {
            Some(last) => self.get(Part::EventPositions, &position_key(last)).await?.map(|item| item.version),
            None => None,
        };
        if position.is_none() {
            return Ok(recover(checkpoint, &self.events(unreadable).await?));
        }
        let events = self.live.log_after(EVENT, |head| head.part(Part::Orchestration), position, unreadable).await?;
        Ok(replay(checkpoint.unwrap_or_default(), &events))
    }

    fn check(&self, commit: &OrchestrationCommit) -> Result<()> {
        let sessions = self.live.sessions();
        commit.agents().try_for_each(|agent| check_id("agent", agent))?;
        for (agent, messages) in &commit.histories {
            let size_bytes: usize = messages.iter().map(|message| message.as_str().len() + 1).sum();
            if size_bytes > sessions.options.batch_bytes_max {
                return Err(Error::new(ErrorKind::TooLarge, format!("the history of the agent `{agent}` is too large; compact it")));
            }
        }
        let texts = commit
            .events
            .iter()
            .map(|event| ("event", event.json()))
            .chain(commit.checkpoint.iter().map(|checkpoint| ("checkpoint", checkpoint.json())))
            .chain(commit.mailbox_events.iter().map(|(_, event)| ("event", event.json())))
            .chain(commit.mailbox_states.iter().map(|(_, state)| ("state of a mailbox", state.json())));
        texts.into_iter().try_for_each(|(what, json)| {
            // A checkpoint covers many events, so its limit is larger than that of one event.
            let allowed = if what == "checkpoint" { json.as_str().len() / 16 } else { json.as_str().len() };
            sessions.check_size(what, allowed)
        })
    }
}

#[async_trait]
impl OrchestrationPersistence for StoredOrchestration {
    async fn append_event(&self, event: &OrchestrationEvent) -> Result<()> {
        self.commit(&OrchestrationCommit::new().with_event(event.clone())).await
    }

    async fn load_events(&self) -> Result<Vec<OrchestrationEvent>> {
        self.events(Unreadable::Refuse).await
    }

    async fn load_snapshot(&self) -> Result<Option<Snapshot>> {
        let found = self.get(Part::Checkpoint, CHECKPOINT).await?;
        Ok(found.and_then(|item| match Json::from_bytes(&item.value).and_then(Snapshot::from_json) {
            Ok(snapshot) => Some(snapshot),
            Err(error) => {
                tracing::warn!(%error, "ignoring an orchestration checkpoint that cannot be read");
                None
            }
        }))
    }

    async fn write_checkpoint(&self, snapshot: &Snapshot) -> Result<()> {
        self.commit(&OrchestrationCommit::new().with_checkpoint(snapshot.clone())).await
    }

    /// Cost: three round trips and one for each page of events after the checkpoint, however long the log is.
    async fn recover_state(&self) -> Result<RecoveredState> {
        self.recovered(Unreadable::Refuse).await
    }

    async fn append_mailbox_event(&self, agent: &str, event: &MailboxEvent) -> Result<()> {
        self.commit(&OrchestrationCommit::new().with_mailbox_event(agent, event.clone())).await
    }

    async fn load_mailbox_events(&self, agent: &str) -> Result<Vec<MailboxEvent>> {
        check_id("agent", agent)?;
        self.live.whole_log(MAIL, |head| head.user_rows().mailbox(&head.data, agent), Unreadable::Refuse).await
    }

    async fn load_mailbox_state(&self, agent: &str) -> Result<MailboxState> {
        check_id("agent", agent)?;
        let found = self.get(Part::MailboxStates, agent).await?;
        let read = found.and_then(|item| match Json::from_bytes(&item.value).and_then(MailboxState::from_json) {
            Ok(state) => Some(state),
            Err(error) => {
                tracing::warn!(%error, agent, "ignoring the state of a mailbox that cannot be read");
                None
            }
        });
        read.map_or_else(|| MailboxState::of(MailboxStateFields::default()), Ok)
    }

    async fn write_mailbox_state(&self, agent: &str, state: &MailboxState) -> Result<()> {
        self.commit(&OrchestrationCommit::new().with_mailbox_state(agent, state.clone())).await
    }

    async fn load_agent_history(&self, agent: &str) -> Result<Vec<Json>> {
        check_id("agent", agent)?;
        let Some(item) = self.get(Part::Histories, agent).await? else { return Ok(Vec::new()) };
        Json::from_bytes(&item.value).and_then(|history| history.view()).map_err(|error| {
            Error::new(ErrorKind::Corrupt, format!("the history of the agent `{agent}` cannot be read")).with_source(error)
        })
    }

    async fn write_agent_history(&self, agent: &str, history: &[Json]) -> Result<()> {
        self.commit(&OrchestrationCommit::new().with_history(agent, history.to_vec())).await
    }

    async fn commit(&self, commit: &OrchestrationCommit) -> Result<()> {
        self.check(commit)?;
        self.commit_under(commit.claim, None, |batch, head| planned(batch, head, commit)).await.map(drop)
    }

    async fn claim(&self, holder: &str, lease: Duration) -> Result<Claim> {
        check_id("holder", holder)?;
        self.put_claim(holder, lease).await
    }

    async fn renew(&self, claim: Claim, holder: &str, lease: Duration) -> Result<()> {
        check_id("holder", holder)?;
        self.put_lease(claim, holder, lease).await
    }

    async fn release(&self, claim: Claim) -> Result<()> {
        self.delete_lease(claim).await
    }
}

/// Adds an event to a batch, and then the row of its position. The version of that row lies between those of the event and of the next
/// event, so a scan of the log after it starts with the next event.
pub(crate) fn put_event(batch: Batch, head: &Head, event: &OrchestrationEvent) -> Result<Batch> {
    let batch = batch.append(&head.part(Part::Orchestration)?, event.json().as_str().to_owned(), None);
    Ok(batch.put(&head.part(Part::EventPositions)?, position_key(&event.event_id), ""))
}

/// Returns the key of an event's position. Ids of events may be longer than a key.
fn position_key(event_id: &str) -> String {
    blake3::hash(event_id.as_bytes()).to_hex()[..32].to_owned()
}

/// Adds the rows of a commit to a batch.
fn planned(mut batch: Batch, head: &Head, commit: &OrchestrationCommit) -> Result<Batch> {
    let text = |json: &Json| json.as_str().to_owned();
    for event in &commit.events {
        batch = put_event(batch, head, event)?;
    }
    if let Some(checkpoint) = &commit.checkpoint {
        batch = batch.put(&head.part(Part::Checkpoint)?, CHECKPOINT, text(checkpoint.json()));
    }
    for (agent, event) in &commit.mailbox_events {
        batch = batch.append(&head.user_rows().mailbox(&head.data, agent)?, text(event.json()), None);
    }
    for (agent, state) in &commit.mailbox_states {
        batch = batch.put(&head.part(Part::MailboxStates)?, agent, text(state.json()));
    }
    for (agent, messages) in &commit.histories {
        batch = batch.put(&head.part(Part::Histories)?, agent, text(&Json::of(messages)?));
    }
    Ok(batch)
}

impl Snapshot {
    /// Makes a checkpoint of a state.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for a state that cannot be written as JSON.
    pub fn of_state(state: &SnapshotFields) -> Result<Self> {
        Self::of(state.clone())
    }
}
