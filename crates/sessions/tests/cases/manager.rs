//! The manager of an orchestration.

use super::support::{reference, version, with_session};
use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Semaphore;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_sessions::orchestration::{
    Agent, AgentRuntime, AgentSpawn, AgentStatus, Delivery, InputEnvelope, JobOutcome, MailboxEvent, ManagerOptions, OrchestrationCommit,
    OrchestrationManager, OrchestrationPersistence, RunStatus, WaitKind, WaitMatch, WaitRegistration, recover,
};
use treehold_sessions::{Ids, Sessions, SideWrites};
use treehold_store::{Batch, Condition, NamespacesOptions, Store};

/// Agents that record their inputs, and take a permit for each answer.
struct Scripted {
    got: Mutex<Vec<(String, Value)>>,
    may_answer: Semaphore,
}

impl Scripted {
    fn new(answers: usize) -> Arc<Self> {
        Arc::new(Self { got: Mutex::default(), may_answer: Semaphore::new(answers) })
    }

    fn got_by(&self, agent: &str) -> Vec<Value> {
        self.got.lock().iter().filter(|(to, _)| to == agent).map(|(_, payload)| payload.clone()).collect()
    }
}

#[async_trait]
impl AgentRuntime for Scripted {
    async fn attach(&self, _: &Agent) -> Result<()> {
        Ok(())
    }

    async fn deliver(&self, agent: &Agent, input: &InputEnvelope) -> Result<Delivery> {
        self.got.lock().push((agent.id.clone(), input.payload.clone()));
        // A closed semaphore represents a process that ended: it never answers.
        match self.may_answer.acquire().await {
            Ok(permit) => permit.forget(),
            Err(_) => std::future::pending().await,
        }
        match input.payload["fail"].as_bool() {
            Some(true) => Err(Error::new(ErrorKind::Unavailable, "the model is away")),
            _ => Ok(Delivery::completed(format!("done {}", input.payload["n"]))),
        }
    }

    async fn detach(&self, _: &Agent) {}
}

/// Opens the manager of one host, which takes over at once after a restart.
async fn open(sessions: &Sessions, runtime: &Arc<Scripted>) -> OrchestrationManager {
    open_as("host", sessions, runtime).await.unwrap()
}

async fn open_as(holder: &str, sessions: &Sessions, runtime: &Arc<Scripted>) -> Result<OrchestrationManager> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let ids = Ids::from_fn(|| format!("m-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
    let persistence = Arc::new(sessions.orchestration(reference()));
    OrchestrationManager::open("s-1", persistence, runtime.clone(), ManagerOptions::new().with_holder(holder).with_ids(ids)).await
}

/// Ends the lease of a manager before its time.
async fn expire_lease(store: &Arc<dyn Store>) {
    let namespaces = store.namespaces(NamespacesOptions::new()).await.unwrap().namespaces;
    let rows = namespaces.iter().find(|namespace| namespace.to_string().ends_with("/manager")).expect("a claim");
    store.commit(Batch::new().expect(rows, "lease", Condition::Exists).delete(rows, "lease")).await.unwrap();
}

fn agent(id: &str) -> AgentSpawn {
    AgentSpawn { id: id.to_owned(), run_id: None, task_id: None, display_name: None, role: "scout".to_owned() }
}

fn wait(id: &str, agents: &[&str], kind: WaitKind, matching: WaitMatch) -> WaitRegistration {
    WaitRegistration {
        id: id.to_owned(),
        agent_id: agents[0].to_owned(),
        agent_ids: Some(agents.iter().map(|agent| (*agent).to_owned()).collect()),
        kind,
        description: "for a test".to_owned(),
        matching: Some(matching),
        timeout_at: None,
    }
}

const RUN: &str = "orchestration:s-1";

/// Each agent processes its inputs first in, first out, and the log always recovers to the state.
pub(crate) async fn agents_process_queued_inputs_in_order(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    let runtime = Scripted::new(1_000);
    let manager = open(&sessions, &runtime).await;
    let run = manager.start_run(None, None).await.unwrap();
    assert_eq!((run.id.as_str(), run.initial_task_id.as_str()), (RUN, "task:s-1:root"));
    assert_eq!(manager.start_run(None, None).await.unwrap(), run);
    for id in ["a", "b"] {
        let spawned = manager.spawn_agent(RUN, agent(id)).await.unwrap();
        assert_eq!(manager.spawn_agent(RUN, agent(id)).await.unwrap(), spawned);
    }
    let other = AgentSpawn { role: "critic".to_owned(), ..agent("a") };
    assert_eq!(manager.spawn_agent(RUN, other).await.unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(manager.spawn_agent("nowhere", agent("c")).await.unwrap_err().kind(), ErrorKind::NotFound);
    let payloads: Vec<Value> = (0..10).map(|number| json!({"n": number, "fail": number == 3})).collect();
    for payload in &payloads {
        manager.send_input("a", payload.clone()).await.unwrap();
        manager.send_input("b", payload.clone()).await.unwrap();
    }
    let ended = manager.wait(wait("w", &["a", "b"], WaitKind::AgentIdle, WaitMatch::All)).await.unwrap();
    assert_eq!((&ended["status"], &ended["resolvedAgentIds"]), (&json!("resolved"), &json!(["a", "b"])));
    assert_eq!(ended["job"]["outputText"], json!("done 9"));
    assert_eq!((runtime.got_by("a"), runtime.got_by("b")), (payloads.clone(), payloads));
    let orchestration = sessions.orchestration(reference());
    let events = orchestration.load_events().await.unwrap();
    let state = manager.snapshot().await;
    assert_eq!(recover(None, &events).snapshot, state);
    assert_eq!(orchestration.recover_state().await.unwrap().snapshot, state);
    let failed = events.iter().filter(|event| event.json().as_str().contains("agent_job_failed")).count();
    assert_eq!((failed, state.queued_inputs.len()), (2, 0));
    assert_eq!(orchestration.load_mailbox_state("a").await.unwrap().processed_event_count, 10);
    // A wait that has ended returns its result again.
    assert_eq!(manager.wait(wait("w", &["a"], WaitKind::AgentIdle, WaitMatch::Any)).await.unwrap(), ended);
}

/// A manager that stops between delivery and answer leaves the input to the next one.
pub(crate) async fn unanswered_inputs_are_delivered_again_after_a_restart(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    let mut answered = 0;
    let mut first = true;
    let mut delivered: Vec<Value> = Vec::new();
    // Each manager answers two inputs and stops while it works on the third.
    while answered < 9 {
        let runtime = Scripted::new(2);
        let manager = open(&sessions, &runtime).await;
        if std::mem::take(&mut first) {
            manager.start_run(None, None).await.unwrap();
            manager.spawn_agent(RUN, agent("a")).await.unwrap();
            for number in 0..9 {
                manager.send_input("a", json!({"n": number})).await.unwrap();
            }
        }
        let goal = 9 - (answered + 2).min(9);
        while manager.snapshot().await.queued_inputs.len() > goal || (goal > 0 && runtime.got_by("a").len() < 3) {
            tokio::task::yield_now().await;
        }
        answered = 9 - goal;
        drop(manager);
        runtime.may_answer.close();
        delivered.extend(runtime.got_by("a"));
    }
    let mut once = delivered.clone();
    once.dedup();
    assert_eq!(once, (0..9).map(|number| json!({"n": number})).collect::<Vec<_>>(), "in order, none lost: {delivered:?}");
}

/// Inputs that are only in a mailbox are queued at the start, and requests to close are carried out.
pub(crate) async fn unprocessed_mailbox_events_are_applied_at_the_start(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    let runtime = Scripted::new(1_000);
    let manager = open(&sessions, &runtime).await;
    manager.start_run(None, None).await.unwrap();
    for id in ["a", "b"] {
        manager.spawn_agent(RUN, agent(id)).await.unwrap();
    }
    drop(manager);
    let orchestration = sessions.orchestration(reference());
    let mail =
        |id: &str, rest: &str| MailboxEvent::parse(&format!(r#"{{"eventId":"x","agentId":"{id}","occurredAt":"t",{rest}}}"#)).unwrap();
    orchestration.append_mailbox_event("a", &mail("a", r#""type":"input_enqueued","inputId":"i","payload":{"n":7}"#)).await.unwrap();
    orchestration.append_mailbox_event("b", &mail("b", r#""type":"input_enqueued","inputId":"j","payload":{"n":8}"#)).await.unwrap();
    orchestration.append_mailbox_event("b", &mail("b", r#""type":"agent_close_requested","reason":"enough""#)).await.unwrap();
    let manager = open(&sessions, &runtime).await;
    manager.wait(wait("w", &["a"], WaitKind::AgentIdle, WaitMatch::All)).await.unwrap();
    let state = manager.snapshot().await;
    assert_eq!((runtime.got_by("a"), runtime.got_by("b")), (vec![json!({"n": 7})], vec![]));
    assert_eq!((&state.agents["b"].status, state.queued_inputs.len()), (&AgentStatus::Closed, 0));
    assert_eq!(orchestration.load_mailbox_state("b").await.unwrap().processed_event_count, 2);
    assert_eq!(manager.send_input("b", json!({})).await.unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(manager.send_input("nobody", json!({})).await.unwrap_err().kind(), ErrorKind::NotFound);
}

/// An agent finishes its current input before it closes. A wait ends at its deadline.
pub(crate) async fn closing_agent_drops_queued_inputs_and_overdue_wait_times_out(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    let runtime = Scripted::new(0);
    let manager = open(&sessions, &runtime).await;
    manager.start_run(None, None).await.unwrap();
    for id in ["a", "b"] {
        manager.spawn_agent(RUN, agent(id)).await.unwrap();
        manager.send_input(id, json!({"n": 1})).await.unwrap();
        manager.send_input(id, json!({"n": 2})).await.unwrap();
    }
    let overdue = WaitRegistration {
        timeout_at: Some("2020-01-01T00:00:00Z".to_owned()),
        ..wait("late", &["a"], WaitKind::AgentIdle, WaitMatch::All)
    };
    let ended = manager.wait(overdue).await.unwrap();
    assert_eq!((&ended["status"], &ended["pendingAgentIds"]), (&json!("timed_out"), &json!(["a"])));
    let bad = WaitRegistration { timeout_at: Some("soon".to_owned()), ..wait("bad", &["a"], WaitKind::AgentIdle, WaitMatch::All) };
    assert_eq!(manager.wait(bad).await.unwrap_err().kind(), ErrorKind::InvalidArgument);
    // The agent waits for a permit for its first input. It closes after that answer, and the second input is dropped.
    let mut events = manager.subscribe();
    while runtime.got_by("a").is_empty() {
        events.recv().await.unwrap();
        tokio::task::yield_now().await;
    }
    manager.close_agent("a", Some("enough".to_owned())).await.unwrap();
    assert_eq!(manager.snapshot().await.agents["a"].status, AgentStatus::Closing);
    assert!(manager.send_input("a", json!({})).await.is_err());
    runtime.may_answer.add_permits(1_000);
    let ended = manager.wait(wait("w", &["a", "b"], WaitKind::AgentClosed, WaitMatch::Any)).await.unwrap();
    assert_eq!((&ended["resolvedAgentIds"], &ended["match"]), (&json!(["a"]), &json!("any")));
    assert_eq!(runtime.got_by("a"), [json!({"n": 1})]);
    manager.wait(wait("idle", &["b"], WaitKind::AgentIdle, WaitMatch::All)).await.unwrap();
    manager.complete_run(RUN, RunStatus::Completed, None).await.unwrap();
    let recovered = sessions.orchestration(reference()).recover_state().await.unwrap();
    assert_eq!((recovered.active_agents.len(), recovered.pending_waits.len()), (0, 0));
}

/// At most one manager runs an orchestration. Another one is refused during the lease and takes over when it ends; then the
/// first one changes nothing more.
pub(crate) async fn second_manager_takes_over_only_when_the_lease_ends(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    let (one, other) = (Scripted::new(0), Scripted::new(1_000));
    let first = open_as("one", &sessions, &one).await.unwrap();
    first.start_run(None, None).await.unwrap();
    first.spawn_agent(RUN, agent("a")).await.unwrap();
    first.send_input("a", json!({"n": 1})).await.unwrap();
    while one.got_by("a").is_empty() {
        tokio::task::yield_now().await;
    }
    let refused = open_as("other", &sessions, &other).await.unwrap_err();
    assert_eq!((refused.kind(), refused.is_without_effect()), (ErrorKind::Unavailable, true), "{refused}");
    // A manager whose lease ended continues as long as nobody took over.
    expire_lease(&store).await;
    first.send_input("a", json!({"n": 2})).await.unwrap();
    let waiting = tokio::spawn({
        let first = first.clone();
        async move { first.wait(wait("w", &["a"], WaitKind::AgentIdle, WaitMatch::All)).await }
    });
    while first.snapshot().await.waits.is_empty() {
        tokio::task::yield_now().await;
    }
    let second = open_as("other", &sessions, &other).await.unwrap();
    assert_eq!(first.send_input("a", json!({"n": 9})).await.unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(waiting.await.unwrap().unwrap_err().kind(), ErrorKind::Conflict, "a wait does not outlive its manager");
    // The answer that the first one receives now is not recorded.
    one.may_answer.add_permits(1_000);
    second.send_input("a", json!({"n": 3})).await.unwrap();
    let ended = second.wait(wait("w", &["a"], WaitKind::AgentIdle, WaitMatch::All)).await.unwrap();
    assert_eq!(ended["status"], json!("resolved"));
    second.wait(wait("w2", &["a"], WaitKind::AgentIdle, WaitMatch::All)).await.unwrap();
    assert_eq!(other.got_by("a"), [1, 2, 3].map(|number| json!({"n": number})));
    assert_eq!(one.got_by("a"), [json!({"n": 1})]);
    let orchestration = sessions.orchestration(reference());
    assert_eq!(orchestration.recover_state().await.unwrap().snapshot, second.snapshot().await);
    assert_eq!(orchestration.load_mailbox_state("a").await.unwrap().processed_event_count, 3);
    // Its end does not release the lease of the second one.
    drop(first);
    assert_eq!(open_as("one", &sessions, &one).await.unwrap_err().kind(), ErrorKind::Unavailable);
}

/// A manager that is closed hands its orchestration over at once, and one that is dropped does so soon.
pub(crate) async fn closed_manager_hands_over_at_once(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    let runtime = Scripted::new(1_000);
    let first = open_as("one", &sessions, &runtime).await.unwrap();
    first.start_run(None, None).await.unwrap();
    first.close().await.unwrap();
    first.close().await.unwrap();
    assert_eq!(first.spawn_agent(RUN, agent("a")).await.unwrap_err().kind(), ErrorKind::Conflict);
    let second = open_as("other", &sessions, &runtime).await.unwrap();
    second.spawn_agent(RUN, agent("a")).await.unwrap();
    // The lease now belongs to the second one, so the first one cannot end it.
    first.close().await.unwrap();
    assert_eq!(open_as("one", &sessions, &runtime).await.unwrap_err().kind(), ErrorKind::Unavailable);
    drop(second);
    loop {
        match open_as("one", &sessions, &runtime).await {
            Ok(third) => return assert!(third.snapshot().await.agents.contains_key("a")),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable),
        }
        tokio::task::yield_now().await;
    }
}

/// Of several concurrent claims, one holds. A commit under an earlier claim writes nothing, and does not count as a failed side write.
pub(crate) async fn commit_under_a_replaced_claim_writes_nothing(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    let orchestration = sessions.orchestration(reference());
    let lease = std::time::Duration::from_secs(600);
    let holders: Vec<String> = (0..8).map(|number| format!("h-{number}")).collect();
    let claims = futures::future::join_all(holders.iter().map(|holder| orchestration.claim(holder, lease))).await;
    let (held, refused): (Vec<_>, Vec<_>) = holders.iter().zip(claims).partition(|(_, claim)| claim.is_ok());
    assert_eq!((held.len(), refused.len()), (1, 7));
    assert!(refused.into_iter().all(|(_, claim)| claim.unwrap_err().kind() == ErrorKind::Unavailable));
    let (holder, earlier) = held.into_iter().next().map(|(holder, claim)| (holder, claim.unwrap())).unwrap();
    orchestration.renew(earlier, holder, lease).await.unwrap();
    // The same holder claims again, as after a restart.
    let claim = orchestration.claim(holder, lease).await.unwrap();
    let mail = MailboxEvent::parse(r#"{"eventId":"m","type":"input_enqueued","agentId":"a","occurredAt":"t","inputId":"i"}"#).unwrap();
    let commit = OrchestrationCommit::new().with_mailbox_event("a", mail);
    let before = version(&store).await;
    let side = SideWrites::new();
    let swallowing = side.orchestration(sessions.orchestration(reference()));
    for error in [
        orchestration.commit(&commit.clone().with_claim(earlier)).await.unwrap_err(),
        swallowing.commit(&commit.clone().with_claim(earlier)).await.unwrap_err(),
        orchestration.renew(earlier, holder, lease).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    }
    orchestration.release(earlier).await.unwrap();
    assert_eq!((version(&store).await, side.failed_orchestration_writes()), (before, 0));
    orchestration.commit(&commit.clone().with_claim(claim)).await.unwrap();
    assert_eq!(orchestration.load_mailbox_events("a").await.unwrap().len(), 1);
    for bad in ["", "a\n", &"x".repeat(256)] {
        assert_eq!(orchestration.claim(bad, lease).await.unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    // The claim on a session that was recreated is another one.
    sessions.delete(super::support::TENANT, super::support::SESSION).await.unwrap();
    assert_eq!(orchestration.commit(&commit.clone().with_claim(claim)).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(orchestration.claim("h", lease).await.unwrap_err().kind(), ErrorKind::NotFound);
    with_session(&store).await;
    assert_eq!(orchestration.commit(&commit.with_claim(claim)).await.unwrap_err().kind(), ErrorKind::Conflict);
    orchestration.claim("h", lease).await.unwrap();
}

/// Inputs that a closed agent never got leave the queue for that reason, and a cancelled job counts as failed.
pub(crate) async fn log_tells_dropped_inputs_and_cancelled_jobs(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    let runtime = Recording::new();
    let manager = runtime.open(&sessions).await;
    manager.start_run(None, None).await.unwrap();
    manager.spawn_agent(RUN, agent("a")).await.unwrap();
    let mut inputs = Vec::new();
    for number in 0..3 {
        inputs.push(manager.send_input("a", json!({"n": number})).await.unwrap());
    }
    while runtime.delivered.lock().is_empty() {
        tokio::task::yield_now().await;
    }
    manager.close_agent("a", Some("enough".to_owned())).await.unwrap();
    runtime.may_answer.add_permits(1);
    manager.wait(wait("w", &["a"], WaitKind::AgentClosed, WaitMatch::All)).await.unwrap();
    let events = sessions.orchestration(reference()).load_events().await.unwrap();
    let events: Vec<Value> = events.iter().map(|event| serde_json::from_str(event.json().as_str()).unwrap()).collect();
    let of = |kind: &str| events.iter().filter(|event| event["type"] == kind).collect::<Vec<_>>();
    let removed: Vec<_> = of("agent_input_removed").into_iter().map(|event| (&event["inputId"], &event["reason"])).collect();
    let reasons = ["delivered", "agent_closed", "agent_closed"].map(Value::from);
    assert_eq!(removed, inputs.into_iter().map(Value::from).collect::<Vec<_>>().iter().zip(&reasons).collect::<Vec<_>>());
    let failed = of("agent_job_failed");
    assert_eq!((failed.len(), &failed[0]["job"]["outcome"]), (1, &json!("cancelled")));
    let state = manager.snapshot().await;
    assert_eq!(state.agents["a"].last_job.as_ref().map(|job| &job.outcome), Some(&JobOutcome::Cancelled));
}

/// After a restart, every active agent is attached once. The inputs of one that cannot be attached wait, and the others work.
pub(crate) async fn agents_are_attached_after_a_restart(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    let runtime = Recording::new();
    let manager = runtime.open(&sessions).await;
    manager.start_run(None, None).await.unwrap();
    for id in ["a", "b", "closed"] {
        manager.spawn_agent(RUN, agent(id)).await.unwrap();
    }
    assert_eq!(*runtime.attached.lock(), ["a", "b", "closed"]);
    manager.close_agent("closed", None).await.unwrap();
    manager.close().await.unwrap();
    let mail = |id: &str| {
        let text =
            format!(r#"{{"eventId":"x","agentId":"{id}","occurredAt":"t","type":"input_enqueued","inputId":"to {id}","payload":{{}}}}"#);
        MailboxEvent::parse(&text).unwrap()
    };
    let orchestration = sessions.orchestration(reference());
    for id in ["a", "b"] {
        orchestration.append_mailbox_event(id, &mail(id)).await.unwrap();
    }
    let restarted = Recording::new();
    *restarted.refused.lock() = Some("a".to_owned());
    restarted.may_answer.add_permits(10);
    let manager = restarted.open(&sessions).await;
    assert_eq!(*restarted.attached.lock(), ["a", "b"]);
    manager.send_input("a", json!({})).await.unwrap();
    manager.wait(wait("w", &["b"], WaitKind::AgentIdle, WaitMatch::All)).await.unwrap();
    assert_eq!(*restarted.delivered.lock(), ["b"]);
    let state = manager.snapshot().await;
    assert_eq!((state.queued_inputs.len(), state.queued_inputs[0].id.as_str()), (2, "to a"));
    // The next restart attaches it, and its inputs are delivered.
    manager.close().await.unwrap();
    *restarted.refused.lock() = None;
    let manager = restarted.open(&sessions).await;
    manager.wait(wait("w2", &["a"], WaitKind::AgentIdle, WaitMatch::All)).await.unwrap();
    assert_eq!(*restarted.delivered.lock(), ["b", "a", "a"]);
}

/// An id names one agent: the same role with another task or another name is refused.
pub(crate) async fn agent_is_not_spawned_again_with_another_task_or_name(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    let manager = open(&sessions, &Scripted::new(0)).await;
    manager.start_run(None, None).await.unwrap();
    let given = AgentSpawn { task_id: Some("k".to_owned()), display_name: Some("Ann".to_owned()), ..agent("a") };
    let spawned = manager.spawn_agent(RUN, given.clone()).await.unwrap();
    let before = sessions.orchestration(reference()).load_events().await.unwrap().len();
    for other in [
        AgentSpawn { task_id: Some("l".to_owned()), ..given.clone() },
        AgentSpawn { task_id: None, ..given.clone() },
        AgentSpawn { display_name: Some("Bob".to_owned()), ..given.clone() },
        AgentSpawn { display_name: None, ..given.clone() },
        AgentSpawn { role: "critic".to_owned(), ..given.clone() },
    ] {
        let error = manager.spawn_agent(RUN, other.clone()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{other:?}");
    }
    assert_eq!(manager.spawn_agent(RUN, given).await.unwrap(), spawned);
    // The task of an agent without one is that of its run.
    let plain = manager.spawn_agent(RUN, agent("b")).await.unwrap();
    let named = AgentSpawn { task_id: Some("task:s-1:root".to_owned()), ..agent("b") };
    assert_eq!(manager.spawn_agent(RUN, named).await.unwrap(), plain);
    assert_eq!(sessions.orchestration(reference()).load_events().await.unwrap().len(), before + 1);
}

/// Agents that record what they are asked, and cancel each job once they have a permit for it.
struct Recording {
    attached: Mutex<Vec<String>>,
    delivered: Mutex<Vec<String>>,
    refused: Mutex<Option<String>>,
    may_answer: Semaphore,
}

impl Recording {
    fn new() -> Arc<Self> {
        Arc::new(Self { attached: Mutex::default(), delivered: Mutex::default(), refused: Mutex::default(), may_answer: Semaphore::new(0) })
    }

    async fn open(self: &Arc<Self>, sessions: &Sessions) -> OrchestrationManager {
        let persistence = Arc::new(sessions.orchestration(reference()));
        OrchestrationManager::open("s-1", persistence, self.clone(), ManagerOptions::new()).await.unwrap()
    }
}

#[async_trait]
impl AgentRuntime for Recording {
    async fn attach(&self, agent: &Agent) -> Result<()> {
        self.attached.lock().push(agent.id.clone());
        match self.refused.lock().as_ref() == Some(&agent.id) {
            true => Err(Error::new(ErrorKind::Unavailable, "the sandbox is away")),
            false => Ok(()),
        }
    }

    async fn deliver(&self, agent: &Agent, _: &InputEnvelope) -> Result<Delivery> {
        self.delivered.lock().push(agent.id.clone());
        if let Ok(permit) = self.may_answer.acquire().await {
            permit.forget();
        }
        let mut delivery = Delivery::failed("stopped");
        delivery.outcome = JobOutcome::Cancelled;
        Ok(delivery)
    }

    async fn detach(&self, _: &Agent) {}
}
