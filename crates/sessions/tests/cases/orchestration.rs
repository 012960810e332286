//! The stored events, checkpoints, mailboxes and histories of an orchestration.

use super::support::{SESSION, TENANT, USER, reference, version, with_session};
use std::sync::Arc;
use treehold_core::ErrorKind;
use treehold_sessions::orchestration::{
    MailboxEvent, MailboxState, OrchestrationCommit, OrchestrationEvent, OrchestrationPersistence, Snapshot, recover,
};
use treehold_sessions::trace::{Envelope, SessionTraceStore};
use treehold_sessions::{InspectorDataSource, Json, SessionRef, SessionsOptions};
use treehold_store::Store;

fn event(number: usize, rest: &str) -> OrchestrationEvent {
    OrchestrationEvent::parse(&format!(r#"{{"eventId":"e{number}","occurredAt":"t{number}","runId":"r",{rest}}}"#)).unwrap()
}

fn events() -> Vec<OrchestrationEvent> {
    let rest = [
        r#""type":"run_started","initialTask":{"id":"k","kind":"chat","input":{}}"#,
        r#""type":"agent_spawned","agent":{"id":"a","role":"scout"}"#,
        r#""type":"agent_input_queued","input":{"id":"i1","agentId":"a","payload":{"n":1}}"#,
        r#""type":"agent_input_queued","input":{"id":"i2","agentId":"a","payload":{"n":2}}"#,
        r#""type":"something_new","detail":{"z":1,"a":2}"#,
        r#""type":"agent_input_removed","inputId":"i1","agentId":"a","reason":"delivered""#,
        r#""type":"wait_registered","wait":{"id":"w","agentId":"a","kind":"agent-idle","description":"d","match":"all"}"#,
        r#""type":"agent_closed","close":{"id":"c","agentId":"a"}"#,
    ];
    rest.iter().enumerate().map(|(number, rest)| event(number, rest)).collect()
}

fn mailbox_event(number: usize) -> MailboxEvent {
    let text = format!(
        r#"{{"eventId":"m{number}","type":"input_enqueued","agentId":"a","occurredAt":"t","inputId":"i{number}","payload":{{"z":1}}}}"#
    );
    MailboxEvent::parse(&text).unwrap()
}

/// Recovery gives the state of the whole log, whatever event the checkpoint ends at.
pub(crate) async fn state_recovers_from_any_checkpoint_and_the_events_after_it(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    let orchestration = sessions.orchestration(reference());
    assert!(orchestration.load_events().await.unwrap().is_empty());
    assert_eq!(orchestration.load_snapshot().await.unwrap(), None);
    let events = events();
    for (number, event) in events.iter().enumerate() {
        orchestration.append_event(event).await.unwrap();
        let model = recover(None, &events[..=number]);
        assert_eq!(orchestration.recover_state().await.unwrap(), model, "after {number} without a new checkpoint");
        if number % 3 == 0 {
            orchestration.write_checkpoint(&Snapshot::of_state(&model.snapshot).unwrap()).await.unwrap();
            // A handle that located the session later recovers the same state.
            assert_eq!(sessions.orchestration(reference()).recover_state().await.unwrap(), model, "after {number}");
        }
    }
    let loaded = orchestration.load_events().await.unwrap();
    assert!(loaded.iter().zip(&events).all(|(loaded, event)| loaded.json() == event.json()) && loaded.len() == events.len());
}

/// A checkpoint that cannot be read is ignored, and the whole log is replayed.
pub(crate) async fn damaged_checkpoint_is_ignored(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    let orchestration = sessions.orchestration(reference());
    orchestration.append_event(&events()[0]).await.unwrap();
    orchestration.write_checkpoint(&Snapshot::of_state(&recover(None, &events()[..1]).snapshot).unwrap()).await.unwrap();
    let namespaces = store.namespaces(treehold_store::NamespacesOptions::new()).await.unwrap().namespaces;
    let checkpoints = namespaces.iter().find(|namespace| namespace.to_string().ends_with("/checkpoint")).expect("a checkpoint");
    store.commit(treehold_store::Batch::new().put(checkpoints, "checkpoint", "{\"runs\":")).await.unwrap();
    assert_eq!(orchestration.load_snapshot().await.unwrap(), None);
    assert_eq!(orchestration.recover_state().await.unwrap(), recover(None, &events()[..1]));
}

/// A mailbox keeps its events in order, and its state as it was written.
pub(crate) async fn mailboxes_keep_events_and_counts_for_each_agent(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    let orchestration = sessions.orchestration(reference());
    let nothing = orchestration.load_mailbox_state("a").await.unwrap();
    assert_eq!(nothing.json().as_str(), r#"{"processedEventCount":0,"closeRequested":null}"#);
    for number in 0..3 {
        orchestration.append_mailbox_event("a", &mailbox_event(number)).await.unwrap();
    }
    orchestration.append_mailbox_event("a/b", &mailbox_event(9)).await.unwrap();
    let loaded = orchestration.load_mailbox_events("a").await.unwrap();
    assert_eq!(loaded.iter().map(|event| event.event_id.as_str()).collect::<Vec<_>>(), ["m0", "m1", "m2"]);
    assert_eq!(loaded[0].json(), mailbox_event(0).json());
    let text = r#"{"closeRequested":{"occurredAt":"t","reason":"r"},"processedEventCount":2,"later":1}"#;
    orchestration.write_mailbox_state("a", &MailboxState::parse(text).unwrap()).await.unwrap();
    let state = orchestration.load_mailbox_state("a").await.unwrap();
    assert_eq!((state.json().as_str(), state.processed_event_count), (text, 2));
    assert_eq!(orchestration.load_mailbox_state("a/b").await.unwrap().processed_event_count, 0);
    for bad in ["", ".", "a\n"] {
        assert_eq!(orchestration.load_mailbox_events(bad).await.unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(orchestration.append_mailbox_event(bad, &mailbox_event(0)).await.unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
}

/// A commit of events, mailbox states and a checkpoint takes effect as a whole or not at all.
pub(crate) async fn commit_with_a_bad_part_writes_nothing(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    let orchestration = sessions.orchestration(reference());
    let state = MailboxState::parse(r#"{"processedEventCount":1,"closeRequested":null}"#).unwrap();
    let before = version(&store).await.number();
    let commit = OrchestrationCommit::new()
        .with_event(events()[5].clone())
        .with_mailbox_state("a", state)
        .with_mailbox_event("a", mailbox_event(1))
        .with_checkpoint(Snapshot::of_state(&recover(None, &events()[..6]).snapshot).unwrap());
    orchestration.commit(&commit).await.unwrap();
    assert_eq!(version(&store).await.number(), before + 5, "the event has a row for its position");
    // One bad part refuses the whole commit.
    let bad = commit.with_mailbox_event("..", mailbox_event(2));
    assert_eq!(orchestration.commit(&bad).await.unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(version(&store).await.number(), before + 5);
    let unknown = sessions.orchestration(SessionRef::new(TENANT, "unknown").unwrap());
    assert_eq!(unknown.append_event(&events()[0]).await.unwrap_err().kind(), ErrorKind::NotFound);
    // A recreated session starts with an empty log, also for handles that were opened before.
    sessions.delete(TENANT, SESSION).await.unwrap();
    assert_eq!(orchestration.append_event(&events()[0]).await.unwrap_err().kind(), ErrorKind::NotFound);
    sessions.get_or_create(TENANT, USER, "helper", Some(SESSION)).await.unwrap();
    orchestration.append_event(&events()[1]).await.unwrap();
    assert_eq!(orchestration.load_events().await.unwrap().len(), 1);
}

/// An agent id that names no mailbox is refused wherever it is written. Kinds that this version does not know stay as they are.
pub(crate) async fn agent_ids_that_no_call_takes_are_refused_in_every_part(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    let orchestration = sessions.orchestration(reference());
    let before = version(&store).await;
    let long = "x".repeat(256);
    for bad in ["", ".", "..", r"a/b\u0000", r"a\nb", "_treehold", &long] {
        let named = [
            format!(r#""type":"agent_spawned","agent":{{"id":"{bad}","role":"scout"}}"#),
            format!(r#""type":"agent_input_queued","input":{{"id":"i","agentId":"{bad}"}}"#),
            format!(r#""type":"agent_input_removed","inputId":"i","agentId":"{bad}","reason":"delivered""#),
            format!(r#""type":"agent_status_changed","agentId":"{bad}","status":"idle""#),
            format!(r#""type":"agent_job_started","agentId":"{bad}","jobId":"j""#),
            format!(r#""type":"agent_job_completed","agentId":"{bad}","job":{{"jobId":"j","outcome":"completed"}}"#),
            format!(r#""type":"agent_job_failed","agentId":"{bad}","job":{{"jobId":"j","outcome":"failed"}}"#),
            format!(r#""type":"wait_registered","wait":{{"id":"w","agentId":"{bad}","kind":"agent-idle"}}"#),
            format!(r#""type":"wait_registered","wait":{{"id":"w","agentId":"a","agentIds":["a","{bad}"],"kind":"agent-idle"}}"#),
            format!(r#""type":"agent_closed","close":{{"id":"c","agentId":"{bad}"}}"#),
        ];
        for rest in named {
            let error = orchestration.append_event(&event(0, &rest)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{rest}");
        }
        let agent = r#""runId":"r","taskId":"k","role":"scout","status":"idle","createdAt":"t","updatedAt":"t""#;
        let wait = r#""kind":"agent-idle","status":"pending","registeredAt":"t""#;
        let snapshots = [
            format!(r#"{{"agents":{{"{bad}":{{"id":"a",{agent}}}}}}}"#),
            format!(r#"{{"agents":{{"a":{{"id":"{bad}",{agent}}}}}}}"#),
            format!(r#"{{"waits":{{"w":{{"id":"w","agentId":"{bad}",{wait}}}}}}}"#),
            format!(r#"{{"waits":{{"w":{{"id":"w","agentId":"a","agentIds":["{bad}"],{wait}}}}}}}"#),
            format!(r#"{{"queuedInputs":[{{"id":"i","agentId":"{bad}","queuedAt":"t"}}]}}"#),
        ];
        for snapshot in snapshots {
            let error = orchestration.write_checkpoint(&Snapshot::parse(&snapshot).unwrap()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{snapshot}");
        }
        let mail = |kind: &str| {
            let text = format!(r#"{{"eventId":"m","agentId":"{bad}","occurredAt":"t","type":"{kind}","inputId":"i"}}"#);
            MailboxEvent::parse(&text).unwrap()
        };
        for kind in ["input_enqueued", "agent_close_requested"] {
            let error = orchestration.append_mailbox_event("a", &mail(kind)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{bad} {kind}");
            let commit = OrchestrationCommit::new().with_mailbox_event("a", mail(kind));
            assert_eq!(orchestration.commit_once(&commit, "key").await.unwrap_err().kind(), ErrorKind::InvalidArgument);
        }
        assert_eq!(version(&store).await, before, "{bad}");
    }
    orchestration.append_event(&event(1, r#""type":"agent_praised","agentId":"..","agent":{"id":".."}"#)).await.unwrap();
    let noted = MailboxEvent::parse(r#"{"eventId":"m","agentId":"..","occurredAt":"t","type":"noted"}"#).unwrap();
    orchestration.append_mailbox_event("a", &noted).await.unwrap();
}

/// A checkpoint whose last event is not in the log does not belong to it, whenever it was written. One whose last event follows
/// later belongs to it from then on.
pub(crate) async fn checkpoint_of_another_log_is_dropped(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    let orchestration = sessions.orchestration(reference());
    let events = events();
    let mut foreign = recover(None, &events[..3]).snapshot;
    foreign.last_event_id = Some("elsewhere".to_owned());
    foreign.agents.clear();
    orchestration.write_checkpoint(&Snapshot::of_state(&foreign).unwrap()).await.unwrap();
    assert_eq!(orchestration.recover_state().await.unwrap().snapshot, foreign, "without events it is all there is");
    for event in &events[..4] {
        orchestration.append_event(event).await.unwrap();
    }
    assert_eq!(orchestration.recover_state().await.unwrap(), recover(None, &events[..4]));
    let early = recover(None, &events[..6]).snapshot;
    orchestration.write_checkpoint(&Snapshot::of_state(&early).unwrap()).await.unwrap();
    assert_eq!(orchestration.recover_state().await.unwrap(), recover(None, &events[..4]));
    // The last event of the checkpoint and the one after it in one commit.
    let rest = events[4..].iter().fold(OrchestrationCommit::new(), |commit, event| commit.with_event(event.clone()));
    orchestration.commit(&rest).await.unwrap();
    assert_eq!(orchestration.recover_state().await.unwrap(), recover(None, &events));
    // Its log moves with a session, and its positions with it.
    let files = sessions.export_session(&reference()).await.unwrap().unwrap();
    sessions.delete(TENANT, SESSION).await.unwrap();
    sessions.import_session(&reference(), &files).await.unwrap();
    let bounded = sessions.clone().with_options(SessionsOptions::new().with_read_bytes_max(300));
    let moved = bounded.orchestration(reference());
    assert_eq!(moved.recover_state().await.unwrap(), recover(None, &events), "the events after the checkpoint are few");
    assert_eq!(moved.load_events().await.unwrap_err().kind(), ErrorKind::TooLarge);
}

/// A row of a log that cannot be read is left out by an inspector. Everyone else fails.
pub(crate) async fn inspector_skips_rows_that_cannot_be_read(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    let orchestration = sessions.orchestration(reference());
    let envelope = Envelope::parse(r#"{"id":"i","timestamp":"t","sequence":1,"source":"host","event":{"type":"error"}}"#).unwrap();
    orchestration.append_event(&events()[0]).await.unwrap();
    sessions.trace(reference()).append_envelope(&envelope).await.unwrap();
    let namespaces = store.namespaces(treehold_store::NamespacesOptions::new()).await.unwrap().namespaces;
    for log in namespaces.iter().filter(|log| ["/orchestration", "/trace"].iter().any(|end| log.to_string().ends_with(end))) {
        store.commit(treehold_store::Batch::new().append(log, "{", None)).await.unwrap();
    }
    orchestration.append_event(&events()[1]).await.unwrap();
    assert_eq!(orchestration.load_events().await.unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(orchestration.recover_state().await.unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(sessions.load_orchestration_events(&reference()).await.unwrap(), events()[..2]);
    assert_eq!(sessions.load_orchestration_state(&reference()).await.unwrap(), recover(None, &events()[..2]));
    assert_eq!(sessions.load_trace_envelopes(&reference()).await.unwrap(), [envelope]);
}

/// A history keeps the text of its messages, and a second write replaces it.
pub(crate) async fn agent_history_survives_byte_for_byte(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    let orchestration = sessions.orchestration(reference());
    assert!(orchestration.load_agent_history("a").await.unwrap().is_empty());
    let history = [r#"{"role":"user","content":"x","n":1.0}"#, r#"{"z":1,"a":2}"#].map(|text| Json::parse(text).unwrap());
    orchestration.write_agent_history("a", &history).await.unwrap();
    assert_eq!(orchestration.load_agent_history("a").await.unwrap(), history);
    orchestration.write_agent_history("a", &[]).await.unwrap();
    assert!(orchestration.load_agent_history("a").await.unwrap().is_empty());
}
