//! What happens in the runs of a session: its trace, its orchestration and the logs of its skills.

use super::super::exchange::{Answer, Asked, json, nothing};
use super::{At, keys, page};
use crate::rights::Access;
use axum::http::{Method, StatusCode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use treehold_core::error::{Error, Result};
use treehold_core::ops::Version;
use treehold_sessions::orchestration::{
    Claim, MailboxEvent, MailboxState, OrchestrationCommit, OrchestrationEvent, OrchestrationPersistence, Snapshot, StoredOrchestration,
};
use treehold_sessions::trace::Envelope;
use treehold_sessions::{Json, SessionTraceStore, SkillLog};

/// A page of a log.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct LogQuery {
    /// Only entries after this position.
    after: Option<Version>,
    /// The most entries. Default 100.
    limit: Option<usize>,
}

impl LogQuery {
    fn limit(&self) -> Result<usize> {
        page(self.limit, 100)
    }
}

pub(super) async fn trace(asked: Asked) -> Answer {
    let query: LogQuery = asked.query()?;
    let limit = query.limit()?;
    let At { sessions, session } = asked.at(Access::Read).await?;
    json(StatusCode::OK, sessions.trace(session).page(query.after, limit).await?).await
}

/// An envelope to append.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AppendEnvelope {
    /// The envelope.
    envelope: Envelope,
}

/// An envelope that was appended.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct AppendedEnvelope {
    /// Its position; `null` for a kind of event that is never stored, such as the parts of an answer while a model writes it.
    position: Option<Version>,
}

pub(super) async fn append_envelope(mut asked: Asked) -> Answer {
    let At { sessions, session } = asked.at(Access::Write).await?;
    let AppendEnvelope { envelope } = asked.json().await?;
    let trace = sessions.trace(session);
    match keys::of(&asked) {
        None => json(StatusCode::OK, AppendedEnvelope { position: trace.append_envelope(&envelope).await? }).await,
        Some(key) => {
            let appended = trace.append_once(&envelope, &key).await.map_err(keys::refused)?;
            let mut response = json(StatusCode::OK, AppendedEnvelope { position: appended.position }).await?;
            keys::tell(&mut response, appended.key.repeated, appended.key.expires_at);
            Ok(response)
        }
    }
}

/// The request header that names the claim under which an orchestration is written.
pub(in crate::api) const CLAIM_HEADER: &str = treehold_core::wire::CLAIM_HEADER;

/// Returns the claim that a request names.
fn claim_of(asked: &Asked) -> Result<Option<Claim>> {
    let Some(given) = asked.head.headers.get(CLAIM_HEADER) else { return Ok(None) };
    let version = given.to_str().ok().and_then(|text| text.parse().ok());
    let invalid = || Error::invalid_argument(format!("`{CLAIM_HEADER}` is not a claim; send the one that was returned"));
    Ok(Some(Claim::new(version.ok_or_else(invalid)?)))
}

/// Writes an orchestration under the claim and the idempotency key of the request.
async fn write(asked: &Asked, orchestration: &StoredOrchestration, mut commit: OrchestrationCommit) -> Answer {
    commit.claim = claim_of(asked)?;
    let mut response = nothing(StatusCode::NO_CONTENT);
    match keys::of(asked).filter(|_| asked.head.method == Method::POST) {
        None => orchestration.commit(&commit).await?,
        Some(key) => {
            let used = orchestration.commit_once(&commit, &key).await.map_err(keys::refused)?;
            keys::tell(&mut response, used.repeated, used.expires_at);
        }
    }
    Ok(response)
}

async fn orchestration(asked: &Asked, access: Access) -> Result<StoredOrchestration> {
    let At { sessions, session } = asked.at(access).await?;
    Ok(sessions.orchestration(session))
}

pub(super) async fn events(asked: Asked) -> Answer {
    let query: LogQuery = asked.query()?;
    let limit = query.limit()?;
    json(StatusCode::OK, orchestration(&asked, Access::Read).await?.event_page(query.after, limit).await?).await
}

/// An event of an orchestration to append.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AppendEvent {
    /// The event.
    event: OrchestrationEvent,
}

pub(super) async fn append_event(mut asked: Asked) -> Answer {
    let orchestration = orchestration(&asked, Access::Write).await?;
    let AppendEvent { event } = asked.json().await?;
    write(&asked, &orchestration, OrchestrationCommit::new().with_event(event)).await
}

/// The checkpoint of an orchestration.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct CheckpointReply {
    /// The checkpoint; `null` before the first.
    snapshot: Option<Snapshot>,
}

pub(super) async fn checkpoint(asked: Asked) -> Answer {
    let snapshot = orchestration(&asked, Access::Read).await?.load_snapshot().await?;
    json(StatusCode::OK, CheckpointReply { snapshot }).await
}

/// A checkpoint to write.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WriteCheckpoint {
    /// The checkpoint.
    snapshot: Snapshot,
}

pub(super) async fn write_checkpoint(mut asked: Asked) -> Answer {
    let orchestration = orchestration(&asked, Access::Write).await?;
    let WriteCheckpoint { snapshot } = asked.json().await?;
    write(&asked, &orchestration, OrchestrationCommit::new().with_checkpoint(snapshot)).await
}

pub(super) async fn state(asked: Asked) -> Answer {
    json(StatusCode::OK, orchestration(&asked, Access::Read).await?.recover_state().await?).await
}

/// Rows of an orchestration to write in one commit.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CommitRequest {
    /// Events, in order.
    #[serde(default)]
    events: Vec<OrchestrationEvent>,
    /// The state that includes them.
    #[serde(default)]
    checkpoint: Option<Snapshot>,
    /// Events of mailboxes.
    #[serde(default)]
    mailbox_events: Vec<MailboxEventOf>,
    /// The states of mailboxes.
    #[serde(default)]
    mailbox_states: Vec<MailboxStateOf>,
    /// The histories of agents.
    #[serde(default)]
    histories: Vec<HistoryOf>,
}

/// An event of an agent's mailbox.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct MailboxEventOf {
    /// The agent.
    agent: String,
    /// The event.
    event: MailboxEvent,
}

/// The history of an agent.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct HistoryOf {
    /// The agent.
    agent: String,
    /// Its messages.
    messages: Vec<Json>,
}

/// The state of an agent's mailbox.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct MailboxStateOf {
    /// The agent.
    agent: String,
    /// The state.
    state: MailboxState,
}

pub(super) async fn commit(mut asked: Asked) -> Answer {
    let orchestration = orchestration(&asked, Access::Write).await?;
    let request: CommitRequest = asked.json().await?;
    let mut commit = OrchestrationCommit::new();
    commit.events = request.events;
    commit.checkpoint = request.checkpoint;
    commit.mailbox_events = request.mailbox_events.into_iter().map(|of| (of.agent, of.event)).collect();
    commit.mailbox_states = request.mailbox_states.into_iter().map(|of| (of.agent, of.state)).collect();
    commit.histories = request.histories.into_iter().map(|of| (of.agent, of.messages)).collect();
    write(&asked, &orchestration, commit).await
}

/// A claim on an orchestration.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ClaimRequest {
    /// The name of the manager: 1 to 255 bytes without control characters. A manager with the same name can claim again.
    holder: String,
    /// How long nobody else can claim it, in seconds: 1 to 3,600. Default 30.
    #[serde(default = "lease_seconds")]
    lease_seconds: u64,
}

fn lease_seconds() -> u64 {
    30
}

impl ClaimRequest {
    fn lease(&self) -> Result<Duration> {
        match self.lease_seconds {
            1..=LEASE_SECONDS_MAX => Ok(Duration::from_secs(self.lease_seconds)),
            seconds => Err(Error::invalid_argument(format!("a lease of {seconds} seconds is not between 1 and {LEASE_SECONDS_MAX}"))),
        }
    }
}

/// The longest lease. A manager that runs longer renews it.
const LEASE_SECONDS_MAX: u64 = 3_600;

/// A claim that holds.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ClaimReply {
    /// The claim: the value of the header `Treehold-Claim` of the writes that depend on it.
    claim: Version,
}

pub(super) async fn claim(mut asked: Asked) -> Answer {
    let orchestration = orchestration(&asked, Access::Write).await?;
    let request: ClaimRequest = asked.json().await?;
    let claim = orchestration.claim(&request.holder, request.lease()?).await?;
    json(StatusCode::OK, ClaimReply { claim: claim.version() }).await
}

/// Returns the claim that a request must name.
fn claim_needed(asked: &Asked) -> Result<Claim> {
    claim_of(asked)?.ok_or_else(|| Error::invalid_argument(format!("the request names no claim; send it as `{CLAIM_HEADER}`")))
}

pub(super) async fn renew(mut asked: Asked) -> Answer {
    let orchestration = orchestration(&asked, Access::Write).await?;
    let claim = claim_needed(&asked)?;
    let request: ClaimRequest = asked.json().await?;
    orchestration.renew(claim, &request.holder, request.lease()?).await?;
    Ok(nothing(StatusCode::NO_CONTENT))
}

pub(super) async fn release(asked: Asked) -> Answer {
    let orchestration = orchestration(&asked, Access::Write).await?;
    orchestration.release(claim_needed(&asked)?).await?;
    Ok(nothing(StatusCode::NO_CONTENT))
}

pub(super) async fn mail(asked: Asked) -> Answer {
    let query: LogQuery = asked.query()?;
    let limit = query.limit()?;
    let page = orchestration(&asked, Access::Read).await?.mailbox_page(asked.param("agent"), query.after, limit).await?;
    json(StatusCode::OK, page).await
}

/// An event of a mailbox to append.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AppendMail {
    /// The event.
    event: MailboxEvent,
}

pub(super) async fn append_mail(mut asked: Asked) -> Answer {
    let orchestration = orchestration(&asked, Access::Write).await?;
    let AppendMail { event } = asked.json().await?;
    let agent = asked.param("agent").to_owned();
    write(&asked, &orchestration, OrchestrationCommit::new().with_mailbox_event(agent, event)).await
}

/// The state of a mailbox.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct MailboxStateRecord {
    /// The state.
    state: MailboxState,
}

pub(super) async fn mailbox_state(asked: Asked) -> Answer {
    let state = orchestration(&asked, Access::Read).await?.load_mailbox_state(asked.param("agent")).await?;
    json(StatusCode::OK, MailboxStateRecord { state }).await
}

pub(super) async fn write_mailbox_state(mut asked: Asked) -> Answer {
    let orchestration = orchestration(&asked, Access::Write).await?;
    let MailboxStateRecord { state } = asked.json().await?;
    let agent = asked.param("agent").to_owned();
    write(&asked, &orchestration, OrchestrationCommit::new().with_mailbox_state(agent, state)).await
}

/// The history of an agent.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct HistoryRecord {
    /// Its messages.
    messages: Vec<Json>,
}

pub(super) async fn history(asked: Asked) -> Answer {
    let messages = orchestration(&asked, Access::Read).await?.load_agent_history(asked.param("agent")).await?;
    json(StatusCode::OK, HistoryRecord { messages }).await
}

pub(super) async fn write_history(mut asked: Asked) -> Answer {
    let orchestration = orchestration(&asked, Access::Write).await?;
    let HistoryRecord { messages } = asked.json().await?;
    let agent = asked.param("agent").to_owned();
    write(&asked, &orchestration, OrchestrationCommit::new().with_history(agent, messages)).await
}

/// A log of a skill that was stored.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct SkillLogReply {
    /// Its name.
    name: String,
}

pub(super) async fn store_skill_log(mut asked: Asked) -> Answer {
    let At { sessions, session } = asked.at(Access::Write).await?;
    let log: SkillLog = asked.json().await?;
    let name = sessions.persist_skill_log(&session, &log).await?;
    json(StatusCode::CREATED, SkillLogReply { name }).await
}
