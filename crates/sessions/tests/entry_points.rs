//! Bad input at every public method that takes ids or content: it gets a typed error and leaves nothing half done.
//!
//! The table lists every such method. A new one fails the first test until the table has it.

#![allow(missing_docs, clippy::unwrap_used)]

use futures::future::BoxFuture;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use treehold_core::ops::Version;
use treehold_core::{Error, ErrorKind, Result};
use treehold_sessions::layout::{self, SessionFiles};
use treehold_sessions::orchestration::{
    Agent, AgentRuntime, AgentSpawn, Claim, Delivery, InputEnvelope, MailboxEvent, MailboxState, ManagerOptions, OrchestrationCommit,
    OrchestrationEvent, OrchestrationManager, OrchestrationPersistence, RunStatus, Snapshot, StoredOrchestration, WaitKind,
    WaitRegistration,
};
use treehold_sessions::trace::{Envelope, SessionTraceStore};
use treehold_sessions::{
    AppendOptions, CompactOptions, ConsolidationOptions, Consolidator, InspectorDataSource, Json, MemoMount, MemoScope, MemorySummarizer,
    Message, MessagesView, NOTES, SandboxMemoProvider, SessionRef, SessionStore, SessionWindow, Sessions, SideWrites, SkillLog,
    SummarizeWith, TODO, USER, Usage, UserSessionLister, session_memo, user_memo,
};
use treehold_store::{MemoryStore, Partition, Store, SweepCount};

/// Text that only the session of the test's owner holds.
const SECRET: &str = "xyzzysecret";

/// The ids and the content of a call.
#[derive(Debug, Clone)]
struct Given {
    tenant: String,
    user: String,
    agent: String,
    session: String,
    call: String,
    text: String,
    directory: std::path::PathBuf,
}

impl Given {
    fn new(directory: &Path) -> Self {
        let [tenant, user, agent, session, call] = ["acme", "ada", "helper", "s", "call_1"].map(str::to_owned);
        Self { tenant, user, agent, session, call, text: "x".to_owned(), directory: directory.to_owned() }
    }

    fn id(&mut self, id: Id) -> &mut String {
        match id {
            Id::Tenant => &mut self.tenant,
            Id::User => &mut self.user,
            Id::Agent => &mut self.agent,
            Id::Session => &mut self.session,
            Id::Call => &mut self.call,
        }
    }

    fn session(&self) -> Result<SessionRef> {
        SessionRef::new(self.tenant.as_str(), self.session.as_str())
    }

    fn message(&self) -> Message {
        Message::user(&self.text, 1)
    }

    fn files(&self) -> SessionFiles {
        let init = json!({
            "type": "init", "sessionId": self.session, "tenantId": self.tenant, "userId": self.user, "agentId": self.agent, "createdAt": 1,
        });
        SessionFiles::from([("session.jsonl".to_owned(), init.to_string().into())])
    }

    fn event(&self) -> Result<OrchestrationEvent> {
        OrchestrationEvent::parse(&json!({"eventId": "e", "occurredAt": self.text, "runId": "r", "type": "noted"}).to_string())
    }

    fn mail(&self) -> Result<MailboxEvent> {
        let agent = &self.agent;
        MailboxEvent::parse(
            &json!({"eventId": "e", "agentId": agent, "occurredAt": self.text, "type": "input_enqueued", "inputId": "i"}).to_string(),
        )
    }

    fn mail_state(&self) -> Result<MailboxState> {
        MailboxState::parse(&json!({"processedEventCount": 0, "closeRequested": {"reason": self.text}}).to_string())
    }

    fn envelope(&self) -> Result<Envelope> {
        Envelope::parse(
            &json!({"id": "e", "timestamp": self.text, "sequence": 1, "source": "host", "event": {"type": "error"}}).to_string(),
        )
    }

    fn snapshot(&self) -> Result<Snapshot> {
        Snapshot::parse(&json!({"runs": {}, "tasks": {}, "agents": {}, "waits": {}, "queuedInputs": [], "note": self.text}).to_string())
    }

    fn skill_log(&self) -> SkillLog {
        SkillLog {
            skill_name: self.agent.clone(),
            task: self.text.clone(),
            input: String::new(),
            system_prompt: String::new(),
            messages: Vec::new(),
            result_text: String::new(),
            started_at: 1,
            finished_at: 2,
        }
    }

    fn window(&self) -> SessionWindow {
        serde_json::from_value(json!({"log": "none", "from": 0, "end": 9, "tokens": 9})).unwrap()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Id {
    Tenant,
    User,
    Agent,
    Session,
    Call,
}

/// A public method with the ids that it takes.
struct Entry {
    name: &'static str,
    takes: &'static [Id],
    call: fn(Sessions, Given) -> BoxFuture<'static, Result<String>>,
}

macro_rules! entries {
    ($($name:literal [$($id:ident)*] |$sessions:ident, $given:ident| $body:expr;)*) => {
        vec![$(Entry {
            name: $name,
            takes: &[$(Id::$id),*],
            call: |$sessions, $given| Box::pin(async move {
                let _ = &$given;
                Ok(format!("{:?}", $body?))
            }),
        }),*]
    };
}

struct Model;

#[async_trait::async_trait]
impl MemorySummarizer for Model {
    async fn summarize_session(&self, _: &[Message]) -> Result<String> {
        Ok("short".to_owned())
    }

    async fn consolidate(&self, _: Option<&str>, _: &[String]) -> Result<String> {
        Ok("all".to_owned())
    }
}

struct Idle;

#[async_trait::async_trait]
impl AgentRuntime for Idle {
    async fn attach(&self, _: &Agent) -> Result<()> {
        Ok(())
    }

    async fn deliver(&self, _: &Agent, _: &InputEnvelope) -> Result<Delivery> {
        Ok(Delivery::completed("done"))
    }

    async fn detach(&self, _: &Agent) {}
}

fn orchestration(sessions: &Sessions, given: &Given) -> Result<StoredOrchestration> {
    Ok(sessions.orchestration(given.session()?))
}

async fn manager(sessions: &Sessions, given: &Given) -> Result<OrchestrationManager> {
    let persistence = Arc::new(orchestration(sessions, given)?);
    let options = ManagerOptions::new().with_holder("test");
    let manager = OrchestrationManager::open(given.session.as_str(), persistence, Arc::new(Idle), options).await?;
    manager.start_run(Some("r"), None).await?;
    Ok(manager)
}

/// Returns the version of the partition of the user.
async fn version(sessions: &Sessions) -> Result<Version> {
    sessions.store().current_version(&Partition::new(["acme", "ada"])?).await
}

fn spawn(id: &str) -> AgentSpawn {
    AgentSpawn { id: id.to_owned(), run_id: None, task_id: None, display_name: None, role: "subagent".to_owned() }
}

fn wait(agent: &str) -> WaitRegistration {
    WaitRegistration {
        id: "w".to_owned(),
        agent_id: agent.to_owned(),
        agent_ids: None,
        kind: WaitKind::AgentIdle,
        description: String::new(),
        matching: None,
        timeout_at: None,
    }
}

fn consolidator(sessions: Sessions) -> Consolidator {
    Consolidator::new(sessions, ConsolidationOptions::default())
}

fn memo_scope() -> MemoScope {
    MemoScope::Session
}

#[rustfmt::skip]
fn entries() -> Vec<Entry> {
    entries![
        "Sessions::get_or_create" [Tenant User Agent Session] |s, g| s.get_or_create(&g.tenant, &g.user, &g.agent, Some(&g.session)).await;
        "Sessions::info" [Tenant Session] |s, g| s.info(&g.tenant, &g.session).await;
        "Sessions::describe" [Tenant Session] |s, g| s.describe(&g.tenant, &g.session).await;
        "Sessions::last_context_usage" [Tenant Session] |s, g| s.last_context_usage(&g.tenant, &g.session).await;
        "Sessions::set_title_if" [Tenant Session] |s, g| s.set_title_if(&g.tenant, &g.session, Some(&g.text), None).await;
        "Sessions::set_title" [Tenant Session] |s, g| s.set_title(&g.tenant, &g.session, Some(&g.text)).await;
        "Sessions::load_events" [Tenant Session] |s, g| s.load_events(&g.tenant, &g.session).await;
        "Sessions::turns" [Tenant Session] |s, g| s.turns(&g.tenant, &g.session, None, 9).await;
        "Sessions::list" [Tenant User] |s, g| s.list(&g.tenant, &g.user, 9, None).await;
        "Sessions::list_all" [Tenant User] |s, g| s.list_all(&g.tenant, &g.user).await;
        "Sessions::delete" [Tenant Session] |s, g| s.delete(&g.tenant, &g.session).await;
        "Sessions::sweep" [Tenant User] |s, g| s.sweep(&g.tenant, &g.user).await;
        "Sessions::sweep_some" [] |s, _g| s.sweep_some(9).await;
        "Sessions::sweep_counting" [] |s, _g| s.sweep_counting(9, &SweepCount::new()).await;
        "Sessions::for_user" [Tenant User] |s, g| s.for_user(&g.tenant, &g.user);
        "Sessions::append" [Tenant Session] |s, g| s.append(&g.tenant, &g.session, &[g.message()], &AppendOptions::new()).await;
        "Sessions::record_turn" [Tenant Session] |s, g| s.record_turn(&g.tenant, &g.session, &Usage::parse(&json!({"note": g.text}).to_string())?).await;
        "Sessions::load" [Tenant Session] |s, g| s.load(&g.tenant, &g.session, Some(9)).await;
        "Sessions::load_all" [Tenant Session] |s, g| s.load_all(&g.tenant, &g.session).await;
        "Sessions::load_with_budget" [Tenant Session] |s, g| s.load_with_budget(&g.tenant, &g.session, 9).await;
        "Sessions::load_full" [Tenant Session] |s, g| s.load_full(&g.tenant, &g.session).await;
        "Sessions::load_compacted" [Tenant Session] |s, g| s.load_compacted(&g.tenant, &g.session, Some("0001"), None).await;
        "Sessions::read_messages_of" [Tenant Session] |s, g| s.read_messages_of(&g.tenant, &g.session, MessagesView::Full).await;
        "Sessions::compact" [Tenant Session] |s, g| s.compact(&g.tenant, &g.session, &SummarizeWith(|_| async { Ok(g.text.clone()) }), &CompactOptions::new()).await;
        "Sessions::compact_if_needed" [Tenant Session] |s, g| s.compact_if_needed(&g.tenant, &g.session, &SummarizeWith(|_| async { Ok(g.text.clone()) }), &CompactOptions::new().with_trigger_tokens(1)).await;
        "Sessions::plan_compaction" [Tenant Session] |s, g| s.plan_compaction(&g.tenant, &g.session, &CompactOptions::new()).await;
        "Sessions::apply_compaction" [Tenant Session] |s, g| s.apply_compaction(&g.tenant, &g.session, &g.window(), 2, &g.text, None).await;
        "Sessions::read_memory_document" [Tenant Session] |s, g| s.read_memory_document(&g.tenant, &g.session, memo_scope(), NOTES).await;
        "Sessions::write_memory_document" [Tenant Session] |s, g| s.write_memory_document(&g.tenant, &g.session, memo_scope(), NOTES, &g.text).await;
        "Sessions::append_memory_document" [Tenant Session] |s, g| s.append_memory_document(&g.tenant, &g.session, memo_scope(), NOTES, &g.text).await;
        "Sessions::read_memory_file" [Tenant User] |s, g| s.read_memory_file(&g.tenant, &g.user, MemoScope::User, USER).await;
        "Sessions::write_memory_file" [Tenant Session] |s, g| s.write_memory_file(&g.tenant, &g.session, memo_scope(), TODO, g.text.clone(), treehold_core::ops::WriteMode::Overwrite).await;
        "Sessions::memory_index" [Tenant Session] |s, g| s.memory_index(&g.tenant, &g.session).await;
        "Sessions::read_tool_result" [Tenant Session Call] |s, g| s.read_tool_result(&g.session()?, &g.call).await;
        "Sessions::read_tool_result_file" [Tenant Session Call] |s, g| s.read_tool_result_file(&g.session()?, &g.call).await;
        "Sessions::write_tool_result" [Tenant Session Call] |s, g| s.write_tool_result(&g.session()?, &g.call, &g.text).await;
        "Sessions::write_tool_result_file" [Tenant Session Call] |s, g| s.write_tool_result_file(&g.session()?, &g.call, g.text.clone(), treehold_core::ops::WriteMode::Overwrite).await;
        "Sessions::list_tool_result_ids" [Tenant Session] |s, g| s.list_tool_result_ids(&g.session()?).await;
        "Sessions::tool_results" [Tenant Session] |s, g| s.tool_results(&g.session()?, None, 9).await;
        "Sessions::persist_skill_log" [Tenant Session] |s, g| s.persist_skill_log(&g.session()?, &g.skill_log()).await;
        "Sessions::load_skill_logs" [Tenant Session] |s, g| s.load_skill_logs(&g.session()?).await;
        "Sessions::export_session" [Tenant Session] |s, g| s.export_session(&g.session()?).await;
        "Sessions::import_session" [Tenant User Agent Session] |s, g| s.import_session(&g.session()?, &g.files()).await;
        "TodoStorage::read" [Tenant Session] |s, g| s.todo_storage(g.session()?).read().await;
        "TodoStorage::write" [Tenant Session] |s, g| s.todo_storage(g.session()?).write(&g.text).await;
        "MemoMount::of_user" [Tenant User] |s, g| MemoMount::of_user(s.store().clone(), &g.tenant, &g.user).map(drop);
        "MemoMount::of_session" [Tenant User Session] |s, g| MemoMount::of_session(s.store().clone(), &g.tenant, &g.user, &g.session).map(drop);
        "user_memo" [Tenant User] |s, g| user_memo(s.store().clone(), &g.tenant, &g.user).map(drop);
        "session_memo" [Tenant User Session] |s, g| session_memo(s.store().clone(), &g.tenant, &g.user, &g.session).map(drop);
        "write_directory" [Tenant User] |s, g| layout::write_directory(&s, &g.directory, &g.tenant, &g.user).await;
        "write_session" [Tenant Session] |s, g| layout::write_session(&s, &g.directory, &g.session()?).await;
        "write_sessions" [Tenant Session] |s, g| layout::write_sessions(&s, &g.directory, &[g.session()?]).await;
        "read_directory" [] |s, g| layout::read_directory(&s, &g.directory).await.map(drop);
        "read_directory_of" [Tenant User] |s, g| layout::read_directory_of(&s, &g.directory, &g.tenant, &g.user).await.map(drop);
        "owner_of" [Tenant User Session] |_s, g| layout::owner_of(&g.files());
        "Consolidator::state" [Tenant User] |s, g| consolidator(s).state(&g.tenant, &g.user).await;
        "Consolidator::request" [Tenant User] |s, g| consolidator(s).request(&g.tenant, &g.user).await;
        "Consolidator::run" [Tenant User] |s, g| consolidator(s).run(&g.tenant, &g.user, &Model).await;
        "StoredTrace::page" [Tenant Session] |s, g| s.trace(g.session()?).page(None, 9).await;
        "StoredTrace::append_once" [Tenant Session] |s, g| s.trace(g.session()?).append_once(&g.envelope()?, "key").await.map(|appended| appended.position);
        "SessionTraceStore::append_envelope" [Tenant Session] |s, g| s.trace(g.session()?).append_envelope(&g.envelope()?).await;
        "SessionTraceStore::load_envelopes" [Tenant Session] |s, g| s.trace(g.session()?).load_envelopes().await;
        "StoredOrchestration::event_page" [Tenant Session] |s, g| orchestration(&s, &g)?.event_page(None, 9).await.map(|page| page.entries.len());
        "StoredOrchestration::mailbox_page" [Tenant Session Agent] |s, g| orchestration(&s, &g)?.mailbox_page(&g.agent, None, 9).await.map(|page| page.entries.len());
        "OrchestrationPersistence::append_event" [Tenant Session] |s, g| orchestration(&s, &g)?.append_event(&g.event()?).await;
        "OrchestrationPersistence::load_events" [Tenant Session] |s, g| orchestration(&s, &g)?.load_events().await;
        "OrchestrationPersistence::load_snapshot" [Tenant Session] |s, g| orchestration(&s, &g)?.load_snapshot().await;
        "OrchestrationPersistence::write_checkpoint" [Tenant Session] |s, g| orchestration(&s, &g)?.write_checkpoint(&g.snapshot()?).await;
        "OrchestrationPersistence::recover_state" [Tenant Session] |s, g| orchestration(&s, &g)?.recover_state().await.map(|state| format!("{:?}", state.snapshot));
        "OrchestrationPersistence::append_mailbox_event" [Tenant Session Agent] |s, g| orchestration(&s, &g)?.append_mailbox_event(&g.agent, &g.mail()?).await;
        "OrchestrationPersistence::load_mailbox_events" [Tenant Session Agent] |s, g| orchestration(&s, &g)?.load_mailbox_events(&g.agent).await;
        "OrchestrationPersistence::load_mailbox_state" [Tenant Session Agent] |s, g| orchestration(&s, &g)?.load_mailbox_state(&g.agent).await;
        "OrchestrationPersistence::write_mailbox_state" [Tenant Session Agent] |s, g| orchestration(&s, &g)?.write_mailbox_state(&g.agent, &g.mail_state()?).await;
        "OrchestrationPersistence::load_agent_history" [Tenant Session Agent] |s, g| orchestration(&s, &g)?.load_agent_history(&g.agent).await;
        "OrchestrationPersistence::write_agent_history" [Tenant Session Agent] |s, g| orchestration(&s, &g)?.write_agent_history(&g.agent, &[Json::of(&g.text)?]).await;
        "OrchestrationPersistence::commit" [Tenant Session Agent] |s, g| orchestration(&s, &g)?.commit(&OrchestrationCommit::new().with_mailbox_event(g.agent.as_str(), g.mail()?)).await;
        "StoredOrchestration::commit_once" [Tenant Session Agent] |s, g| orchestration(&s, &g)?.commit_once(&OrchestrationCommit::new().with_mailbox_event(g.agent.as_str(), g.mail()?), "another key").await.map(|used| used.repeated);
        "OrchestrationPersistence::claim" [Tenant Session] |s, g| orchestration(&s, &g)?.claim("test", Duration::from_secs(9)).await.map(drop);
        "OrchestrationPersistence::renew" [Tenant Session] |s, g| orchestration(&s, &g)?.renew(Claim::new(version(&s).await?), "test", Duration::from_secs(9)).await.or_else(lost);
        "OrchestrationPersistence::release" [Tenant Session] |s, g| orchestration(&s, &g)?.release(Claim::new(version(&s).await?)).await;
        "OrchestrationManager::open" [Tenant Session] |s, g| manager(&s, &g).await;
        "OrchestrationManager::close" [Tenant Session] |s, g| manager(&s, &g).await?.close().await;
        "OrchestrationManager::snapshot" [Tenant Session] |s, g| Ok::<_, Error>(manager(&s, &g).await?.snapshot().await);
        "OrchestrationManager::start_run" [Tenant Session] |s, g| manager(&s, &g).await?.start_run(None, None).await;
        "OrchestrationManager::complete_run" [Tenant Session] |s, g| async { let m = manager(&s, &g).await?; m.start_run(Some("done"), None).await?; m.complete_run("done", RunStatus::Completed, Some(g.text.clone())).await }.await;
        "OrchestrationManager::spawn_agent" [Tenant Session] |s, g| manager(&s, &g).await?.spawn_agent("r", spawn("b")).await;
        "OrchestrationManager::send_input" [Tenant Session] |s, g| async { let m = manager(&s, &g).await?; m.spawn_agent("r", spawn("b")).await?; m.send_input("b", json!(g.text)).await }.await;
        "OrchestrationManager::close_agent" [Tenant Session] |s, g| async { let m = manager(&s, &g).await?; m.spawn_agent("r", spawn("b")).await?; m.close_agent("b", Some(g.text.clone())).await }.await;
        "OrchestrationManager::wait" [Tenant Session] |s, g| async { let m = manager(&s, &g).await?; m.spawn_agent("r", spawn("b")).await?; m.wait(wait("b")).await }.await;
        "Sessions::follow" [Tenant Session] |s, g| s.follow(&g.session()?, None).await;
        "SessionFollower::next" [Tenant Session] |s, g| async {
            let Some(mut follower) = s.follow(&g.session()?, None).await? else { return Ok(None) };
            s.set_title(&g.tenant, &g.session, None).await?;
            follower.next().await
        }.await;
        "SessionStore::get_or_create" [Tenant User Agent Session] |s, g| SessionStore::get_or_create(&s, &g.tenant, &g.user, &g.agent, Some(&g.session)).await;
        "SessionStore::load_messages" [Tenant Session] |s, g| SessionStore::load_messages(&s, &g.tenant, &g.session, None).await;
        "SessionStore::load_messages_with_budget" [Tenant Session] |s, g| s.load_messages_with_budget(&g.tenant, &g.session, 9).await;
        "SessionStore::load_all_messages" [Tenant Session] |s, g| s.load_all_messages(&g.tenant, &g.session).await;
        "SessionStore::append_messages" [Tenant Session] |s, g| s.append_messages(&g.tenant, &g.session, &[g.message()]).await;
        "SessionStore::record_turn" [Tenant Session] |s, g| SessionStore::record_turn(&s, &g.tenant, &g.session, &Usage::parse(&json!({"note": g.text}).to_string())?).await;
        "SessionStore::compact_if_needed" [Tenant Session] |s, g| SessionStore::compact_if_needed(&s, &g.tenant, &g.session, &SummarizeWith(|_| async { Ok(g.text.clone()) }), &CompactOptions::new().with_trigger_tokens(1)).await;
        "SessionStore::ping" [] |s, g| s.ping().await;
        "UserSessionLister::list_sessions_by_user" [Tenant User] |s, g| s.list_sessions_by_user(&g.tenant, &g.user).await;
        "Sessions::inspect_page" [] |s, g| s.inspect_page(9, None).await.map(|page| page.sessions.len());
        "InspectorDataSource::list_sessions" [] |s, g| s.list_sessions().await;
        "InspectorDataSource::load_messages" [Tenant Session] |s, g| InspectorDataSource::load_messages(&s, &g.session()?).await;
        "InspectorDataSource::load_trace_envelopes" [Tenant Session] |s, g| s.load_trace_envelopes(&g.session()?).await;
        "InspectorDataSource::load_orchestration_state" [Tenant Session] |s, g| s.load_orchestration_state(&g.session()?).await.map(|state| format!("{:?}", state.snapshot));
        "InspectorDataSource::load_orchestration_events" [Tenant Session] |s, g| s.load_orchestration_events(&g.session()?).await;
        "SandboxMemoProvider::read_memory_document" [Tenant User] |s, g| SandboxMemoProvider::read_memory_document(&s, &g.tenant, &g.user, MemoScope::User, USER).await;
        "SandboxMemoProvider::write_memory_document" [Tenant User] |s, g| SandboxMemoProvider::write_memory_document(&s, &g.tenant, &g.user, MemoScope::User, USER, &g.text).await;
        "SandboxMemoProvider::append_memory_document" [Tenant Session] |s, g| SandboxMemoProvider::append_memory_document(&s, &g.tenant, &g.session, memo_scope(), NOTES, &g.text).await;
        "SandboxMemoProvider::read_tool_result_artifact" [Tenant Session Call] |s, g| s.read_tool_result_artifact(&g.session()?, &g.call).await;
        "SandboxMemoProvider::write_tool_result_artifact" [Tenant Session Call] |s, g| s.write_tool_result_artifact(&g.session()?, &g.call, &g.text).await;
        "SandboxMemoProvider::list_tool_result_artifact_ids" [Tenant Session] |s, g| s.list_tool_result_artifact_ids(&g.session()?).await;
        "SideWrites::readiness" [] |s, g| Ok::<_, Error>(SideWrites::default().readiness(&s).await);
    ]
}

/// Passes the error of a claim that does not hold, which a renewal expects.
fn lost(error: Error) -> Result<()> {
    if error.kind() == ErrorKind::Conflict { Ok(()) } else { Err(error) }
}

/// The traits that hosts implement, whose methods this crate calls, and mirrors, whose tests need directories of the host.
const OTHERS: &[&str] = &["Summarizer", "MemorySummarizer", "AgentRuntime", "MemoMirrors"];

/// Returns the public asynchronous methods in the source of this crate.
fn methods(directory: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            methods(&path, found);
            continue;
        }
        let source = std::fs::read_to_string(&path).unwrap();
        let source = source.split("#[cfg(test)]").next().unwrap();
        let (mut owner, mut is_trait) = (String::new(), false);
        for line in source.lines() {
            if let Some(rest) = line.strip_prefix("impl ").or_else(|| line.strip_prefix("pub trait ")) {
                is_trait = line.starts_with("pub");
                owner = rest.split(|character: char| !character.is_alphanumeric()).next().unwrap().to_owned();
            } else if line == "}" {
                owner.clear();
                is_trait = false;
            }
            let is_listed = !OTHERS.contains(&owner.as_str());
            let name = line.trim_start().strip_prefix("pub async fn ").or(line.strip_prefix("    async fn ").filter(|_| is_trait));
            if let Some(name) = name.filter(|_| is_listed).and_then(|rest| rest.split(['(', '<']).next()) {
                found.insert(if owner.is_empty() { name.to_owned() } else { format!("{owner}::{name}") });
            }
        }
    }
}

#[test]
fn every_public_method_is_in_the_table() {
    let mut found = BTreeSet::new();
    methods(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
    let listed: BTreeSet<String> = entries().iter().map(|entry| entry.name.to_owned()).collect();
    let missing: Vec<_> = found.difference(&listed).collect();
    assert!(missing.is_empty() && found.len() > 70, "add them to the table: {missing:?} of {}", found.len());
}

/// A store with the session `s` of a user, which holds a secret.
async fn opened() -> Sessions {
    let sessions = Sessions::new(Arc::new(MemoryStore::new()) as Arc<dyn Store>);
    sessions.get_or_create("acme", "ada", "helper", Some("s")).await.unwrap();
    let given = Given { text: SECRET.to_owned(), ..Given::new(Path::new("")) };
    for number in 0..8 {
        sessions.append("acme", "s", &[Message::user(&format!("{SECRET} {number}"), 1)], &AppendOptions::new()).await.unwrap();
    }
    sessions.set_title("acme", "s", Some(SECRET)).await.unwrap();
    for (scope, owner, name) in [(MemoScope::Session, "s", NOTES), (MemoScope::User, "ada", USER)] {
        sessions.write_memory_document("acme", owner, scope, name, SECRET).await.unwrap();
    }
    let session = given.session().unwrap();
    sessions.write_tool_result(&session, "call_1", SECRET).await.unwrap();
    sessions.persist_skill_log(&session, &given.skill_log()).await.unwrap();
    sessions.trace(session.clone()).append_envelope(&given.envelope().unwrap()).await.unwrap();
    let orchestration = sessions.orchestration(session);
    orchestration.append_event(&given.event().unwrap()).await.unwrap();
    orchestration.append_mailbox_event("helper", &given.mail().unwrap()).await.unwrap();
    orchestration.write_agent_history("helper", &[Json::of(SECRET).unwrap()]).await.unwrap();
    sessions
}

#[tokio::test]
async fn every_entry_point_refuses_bad_ids_and_writes_nothing() {
    let (sessions, directory) = (opened().await, tempfile::tempdir().unwrap());
    let before = version(&sessions).await.unwrap();
    let (long, longest) = ("x".repeat(300), "x".repeat(513));
    let bad_ids = ["", ".", "..", "_treehold", "a\nb", "a\u{0}b", "\u{7f}", "\u{9b}x", long.as_str()];
    let mut asked = 0;
    for entry in entries() {
        for id in entry.takes {
            let bad_ids: &[&str] = if *id == Id::Call { &["", "a\u{0}b", &longest] } else { &bad_ids };
            for bad in bad_ids {
                let mut given = Given::new(directory.path());
                if entry.name == "Sessions::import_session" {
                    // An import into an existing session is refused before the files are read.
                    given.session = "new".to_owned();
                }
                *given.id(*id) = (*bad).to_owned();
                let error = (entry.call)(sessions.clone(), given).await.expect_err(entry.name);
                assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{} {id:?} {bad:?}: {error}", entry.name);
                asked += 1;
            }
        }
    }
    assert_eq!(version(&sessions).await.unwrap(), before);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    assert!(asked > 1_000, "{asked}");
}

#[tokio::test]
async fn no_entry_point_reaches_the_session_of_another_user_or_tenant() {
    let directory = tempfile::tempdir().unwrap();
    let sessions = opened().await;
    let exported = sessions.export_session(&SessionRef::new("acme", "s").unwrap()).await.unwrap();
    let bob = sessions.for_user("acme", "bob").unwrap();
    for entry in entries().iter().filter(|entry| entry.takes.contains(&Id::Tenant)) {
        let given = Given::new(directory.path());
        // Another tenant with the same ids, another user of the tenant, and a session that does not exist.
        let cases = [
            (sessions.for_user("other", "ada").unwrap(), Given { tenant: "other".to_owned(), ..given.clone() }),
            (sessions.clone(), Given { tenant: "other".to_owned(), user: "bob".to_owned(), ..given.clone() }),
            (bob.clone(), Given { user: "bob".to_owned(), ..given.clone() }),
            (bob.clone(), given.clone()),
        ];
        for (index, (caller, given)) in cases.into_iter().enumerate() {
            // These take a store, not a caller.
            let is_of_store = ["MemoMount", "user_memo", "session_memo"].iter().any(|name| entry.name.starts_with(name));
            let shown = match (entry.call)(caller, given).await {
                Ok(shown) => shown,
                Err(error) => {
                    // Other methods have created such a session of the caller's own.
                    let of_import = if entry.name == "Sessions::import_session" { ErrorKind::AlreadyExists } else { ErrorKind::NotFound };
                    let kinds = [ErrorKind::NotFound, ErrorKind::PermissionDenied, of_import];
                    assert!(kinds.contains(&error.kind()), "{} {index}: {error}", entry.name);
                    error.to_string()
                }
            };
            assert!(is_of_store || !shown.contains(SECRET), "{} {index}: {shown}", entry.name);
        }
    }
    assert_eq!(sessions.export_session(&SessionRef::new("acme", "s").unwrap()).await.unwrap(), exported);
    let text = sessions.read_memory_document("acme", "ada", MemoScope::User, USER).await.unwrap();
    assert_eq!(text.as_deref(), Some(SECRET));
}

#[tokio::test]
async fn ids_joined_by_a_separator_are_never_mixed_up() {
    let directory = tempfile::tempdir().unwrap();
    let sessions = Sessions::new(Arc::new(MemoryStore::new()) as Arc<dyn Store>);
    let owners = [("a:b", "c"), ("a", "b:c"), ("a/b", "c"), ("a", "b/c"), ("a%2Fb", "c"), ("a", "b%2Fc"), ("a\u{1f4a9}", "c")];
    for (tenant, session) in owners {
        let text = format!("{tenant} {session}");
        let given = Given { tenant: tenant.to_owned(), session: session.to_owned(), text, ..Given::new(directory.path()) };
        sessions.get_or_create(tenant, "ada", "helper", Some(session)).await.unwrap();
        for entry in entries().iter().filter(|entry| entry.takes.starts_with(&[Id::Tenant, Id::Session])) {
            if entry.name.ends_with("::delete") {
                continue;
            }
            let done = (entry.call)(sessions.clone(), given.clone()).await;
            // A plan of no window is a conflict, and so is the claim of a manager that another call has replaced.
            assert!(done.as_ref().map_or_else(|error| error.kind() == ErrorKind::Conflict, |_| true), "{} {done:?}", entry.name);
        }
    }
    for (tenant, session) in owners {
        let own = format!("{tenant} {session}");
        let files = sessions.export_session(&SessionRef::new(tenant, session).unwrap()).await.unwrap().unwrap();
        let all: String = files.iter().map(|(path, content)| format!("{path}\n{}\n", String::from_utf8_lossy(content))).collect();
        assert!(all.matches(&own).count() > 8, "{own}: {all}");
        for (tenant, session) in owners {
            let other = format!("{tenant} {session}");
            assert!(own == other || !all.contains(&format!("\"{other}\"")), "{own} has {other}: {all}");
        }
    }
}

/// How many bytes of text each method refuses; all others take no text.
const TOO_LARGE: &[(&str, usize)] = &[
    ("Sessions::set_title", 4_097),
    ("Sessions::set_title_if", 4_097),
    ("Sessions::append", 10 << 20),
    ("Sessions::record_turn", 1 << 20),
    ("Sessions::compact", (256 << 10) + 1),
    ("Sessions::compact_if_needed", (256 << 10) + 1),
    ("Sessions::apply_compaction", (256 << 10) + 1),
    ("Sessions::write_memory_document", (64 << 20) + 1),
    ("Sessions::append_memory_document", (64 << 20) + 1),
    ("Sessions::write_memory_file", (64 << 20) + 1),
    ("Sessions::write_tool_result", (64 << 20) + 1),
    ("Sessions::write_tool_result_file", (64 << 20) + 1),
    ("Sessions::persist_skill_log", 16 << 20),
    ("TodoStorage::write", (64 << 20) + 1),
    ("SessionTraceStore::append_envelope", 10 << 20),
    ("OrchestrationPersistence::append_event", 10 << 20),
    ("OrchestrationPersistence::append_mailbox_event", 10 << 20),
    ("OrchestrationPersistence::write_mailbox_state", 10 << 20),
    ("OrchestrationPersistence::commit", 10 << 20),
    ("SessionStore::append_messages", 10 << 20),
    ("SandboxMemoProvider::append_memory_document", (64 << 20) + 1),
];

#[tokio::test]
async fn content_over_a_limit_is_refused_and_nothing_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let sessions = opened().await;
    let before = version(&sessions).await.unwrap();
    let entries = entries();
    for (name, bytes) in TOO_LARGE {
        let entry = entries.iter().find(|entry| entry.name == *name).expect(name);
        let given = Given { text: "x".repeat(*bytes), ..Given::new(directory.path()) };
        let error = (entry.call)(sessions.clone(), given).await.expect_err(name);
        assert_eq!(error.kind(), ErrorKind::TooLarge, "{name}: {}", error.message());
        assert_eq!(version(&sessions).await.unwrap(), before, "{name}");
    }
}

#[test]
fn json_of_another_shape_is_refused_by_every_type() {
    type Parse = fn(&str) -> Result<()>;
    let types: [(&str, Parse); 8] = [
        ("message", |text| Message::parse(text).map(drop)),
        ("usage", |text| Usage::parse(text).map(drop)),
        ("envelope", |text| Envelope::parse(text).map(drop)),
        ("event", |text| OrchestrationEvent::parse(text).map(drop)),
        ("mailbox event", |text| MailboxEvent::parse(text).map(drop)),
        ("mailbox state", |text| MailboxState::parse(text).map(drop)),
        ("snapshot", |text| Snapshot::parse(text).map(drop)),
        ("reference", |text| text.parse::<SessionRef>().map(drop)),
    ];
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let deep_field = format!(r#"{{"role":"user","content":"x","more":{}{}}}"#, r#"{"a":"#.repeat(200), "1".to_owned() + &"}".repeat(200));
    for (name, parse) in types {
        for text in
            ["", " ", "null", "3", "\"x\"", "[", "{", "{]", "\u{0}", "{\"a\":1}{\"b\":2}", "nul", "{\"\\ud800\":", &deep, &deep_field]
        {
            let error = parse(text).expect_err(&format!("{name} {text:.40}"));
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{name} {text:.40}");
        }
    }
    let messages = [
        json!({"role": "oracle", "content": "x"}),
        json!({"role": 3, "content": "x"}),
        json!({"content": "x"}),
        json!({"role": "user"}),
        json!({"role": "user", "content": 3}),
        json!({"role": "user", "content": {"text": "x"}}),
        json!({"role": "user", "content": ["x"]}),
        json!({"role": "user", "content": [{"type": "text"}]}),
        json!({"role": "user", "content": [{"type": "text", "text": 3}]}),
        json!({"role": "user", "content": [{"type": "toolCall", "id": "c", "name": "t"}]}),
        json!({"role": "user", "content": "x", "timestamp": "now"}),
        json!({"role": "assistant", "content": [{"type": "toolCall", "name": "t"}]}),
        json!({"role": "assistant", "content": [{"type": "toolCall", "id": "", "name": "t"}]}),
        json!({"role": "assistant", "content": vec![json!({"type": "toolCall", "id": "c"}); 65]}),
        json!({"role": "toolResult", "content": "x"}),
        json!({"role": "toolResult", "content": "x", "toolCallId": ""}),
        json!({"role": "toolResult", "content": "x", "toolCallId": 3}),
        json!({"role": "toolResult", "content": "x", "toolCallId": "x".repeat(513)}),
    ];
    let shapes: [(Parse, &[Value]); 5] = [
        (types[0].1, &messages),
        (types[1].1, &[json!({"inputTokens": "many"}), json!({"outputTokens": -1}), json!({"cost": 3})]),
        (
            types[2].1,
            &[json!({}), json!({"id": 3}), json!({"id": "e", "timestamp": "t", "sequence": "1", "source": "host", "event": {"type": "x"}})],
        ),
        (
            types[4].1,
            &[json!({}), json!({"eventId": "e"}), json!({"eventId": "e", "agentId": 3, "occurredAt": "t", "type": "input_enqueued"})],
        ),
        (types[5].1, &[json!({"processedEventCount": -1}), json!({"processedEventCount": "1"})]),
    ];
    for (parse, values) in shapes {
        for value in values {
            let error = parse(&value.to_string()).expect_err(&value.to_string());
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{value}");
        }
    }
}
