//! Runs of one process: their beginning, their end, and their limits.

use crate::support::{SOON, asking, created, events, found, messages, on, runs, traces, user};
use async_trait::async_trait;
use std::sync::Arc;
use std::time::Duration;
use treehold_core::error::{ErrorKind, Result};
use treehold_traces::{
    Gate, NewMessage, RESULT_BYTES_MAX, RUN_ENDED, RunContext, RunRequest, RunResult, Runs, RunsOptions, ScriptedRunner, Step, TraceEvent,
    TraceRunner, TraceStatus, TraceStore, TraceUpdate, kinds,
};

/// A runner that does what the newest message says.
#[derive(Debug)]
struct Bad;

#[async_trait]
impl TraceRunner for Bad {
    async fn run(&self, _: &RunContext, request: RunRequest) -> Result<RunResult> {
        match request.messages[0].content.as_ref().unwrap().as_str() {
            r#""panic""# => panic!("a bug"),
            r#""error""# => Err(treehold_core::error::Error::new(ErrorKind::Unavailable, "the model is away")),
            r#""running""# => Ok(serde_json::from_str(r#"{"status": "running"}"#).unwrap()),
            r#""long""# => Ok(RunResult::failed("é".repeat(100_000))),
            _ => std::future::pending().await,
        }
    }
}

/// Returns the event that tells how the last run ended.
fn end(events: &[TraceEvent]) -> &TraceEvent {
    events.iter().rev().find(|event| event.event == RUN_ENDED).unwrap()
}

#[tokio::test]
async fn run_appends_the_messages_and_leaves_a_final_status_and_an_event() {
    let traces = traces();
    let trace = created(&traces, "t").await;
    let runs = runs(ScriptedRunner::new([Step::say("hello"), Step::say("done")]), &traces);
    let mut request = asking("hi");
    request.messages.push(NewMessage::text("user", "there"));
    let ended = runs.start(&trace, request).await.unwrap().wait(SOON).await.unwrap().unwrap();
    assert_eq!(ended, RunResult::completed("done"));
    let told: Vec<(String, Option<u64>)> = messages(&traces, &trace).await.into_iter().map(|(role, _, parent)| (role, parent)).collect();
    let expected = [("user", None), ("user", Some(1)), ("assistant", Some(2)), ("assistant", Some(3))];
    assert_eq!(told, expected.map(|(role, parent)| (role.to_owned(), parent)));
    let found = found(&traces, &trace).await;
    assert_eq!((found.status, found.head_sequence), (TraceStatus::Completed, 4));
    assert!(found.completed_at.is_some());
    let events = events(&traces, &trace).await;
    assert_eq!(events.last().unwrap().event, kinds::TRACE_COMPLETED);
    let data = &end(&events).data;
    assert_eq!((data["status"].as_str(), data["summary"].as_str()), (Some("completed"), Some("done")));
    // The trace is free, and the next run continues at the head.
    assert_eq!(runs.wait(&trace, SOON).await.unwrap(), Some(RunResult::completed("done")));
    runs.start(&trace, asking("more")).await.unwrap().wait(SOON).await.unwrap().unwrap();
    assert_eq!(messages(&traces, &trace).await[4].2, Some(4));
}

#[tokio::test]
async fn second_run_of_a_trace_is_refused_while_the_first_one_works() {
    let (traces, gate) = (traces(), Gate::new());
    let trace = created(&traces, "t").await;
    let runs = runs(ScriptedRunner::new([Step::Pause(gate.clone()), Step::say("done")]), &traces);
    let first = runs.start(&trace, asking("one")).await.unwrap();
    gate.arrived(1).await;
    assert_eq!(found(&traces, &trace).await.status, TraceStatus::Running);
    assert_eq!(first.wait(Duration::ZERO).await.unwrap(), None);
    assert_eq!(runs.start(&trace, asking("two")).await.unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(messages(&traces, &trace).await.len(), 1);
    gate.open();
    assert_eq!(first.wait(SOON).await.unwrap(), Some(RunResult::completed("done")));
    runs.start(&trace, asking("two")).await.unwrap().wait(SOON).await.unwrap().unwrap();
}

#[tokio::test]
async fn run_after_a_sequence_rewinds_the_trace() {
    let traces = traces();
    let trace = created(&traces, "t").await;
    let runs = runs(ScriptedRunner::new([Step::SayPath]), &traces);
    runs.start(&trace, asking("a")).await.unwrap().wait(SOON).await.unwrap();
    let mut request = asking("b");
    request.after_sequence = Some(1);
    let ended = runs.start(&trace, request).await.unwrap().wait(SOON).await.unwrap().unwrap();
    assert_eq!(ended, RunResult::completed(r#"2 messages, asked: "b""#));
    assert_eq!(messages(&traces, &trace).await[2].2, Some(1));
    // A new path, and a rewind without a message.
    let mut request = asking("c");
    request.after_sequence = Some(0);
    let ended = runs.start(&trace, request).await.unwrap().wait(SOON).await.unwrap().unwrap();
    assert_eq!(ended, RunResult::completed(r#"1 messages, asked: "c""#));
    let mut request = RunRequest::default();
    request.after_sequence = Some(2);
    let ended = runs.start(&trace, request).await.unwrap().wait(SOON).await.unwrap().unwrap();
    assert_eq!(ended, RunResult::completed(r#"2 messages, asked: "a""#));
}

#[tokio::test]
async fn refused_request_leaves_the_trace_as_it_was_and_free() {
    let traces = traces();
    let trace = created(&traces, "t").await;
    traces.update_trace(&trace, TraceUpdate::new().with_status(TraceStatus::Completed)).await.unwrap();
    let runs = runs(ScriptedRunner::new([]), &traces);
    let before = found(&traces, &trace).await;
    let mut unknown = asking("a");
    unknown.after_sequence = Some(7);
    let mut second_bad = asking("a");
    second_bad.messages.push(NewMessage::text("user", "b").with_parent(9));
    let mut two_places = asking("a");
    (two_places.after_sequence, two_places.messages[0].parent_sequence) = (Some(0), Some(1));
    let mut rewind = RunRequest::default();
    rewind.after_sequence = Some(7);
    for request in [unknown, second_bad, two_places, rewind] {
        let error = runs.start(&trace, request.clone()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{request:?}");
        assert_eq!(found(&traces, &trace).await, before);
    }
    assert_eq!(runs.start(&"@laptop/t".parse().unwrap(), asking("a")).await.unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(runs.start(&"unknown".parse().unwrap(), asking("a")).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(runs.wait(&"unknown".parse().unwrap(), SOON).await.unwrap_err().kind(), ErrorKind::NotFound);
    runs.start(&trace, asking("a")).await.unwrap().wait(SOON).await.unwrap().unwrap();
}

#[tokio::test]
async fn stopped_run_leaves_its_trace_stopped_and_free() {
    let (traces, gate) = (traces(), Gate::new());
    let trace = created(&traces, "t").await;
    let runs = runs(ScriptedRunner::new([]).with_script("wait", [Step::Pause(gate.clone())]), &traces);
    assert!(!runs.stop(&trace).await.unwrap());
    let run = runs.start(&trace, asking("wait")).await.unwrap();
    gate.arrived(1).await;
    assert!(runs.stop(&trace).await.unwrap());
    assert_eq!(run.wait(Duration::ZERO).await.unwrap(), Some(RunResult::stopped("the run was stopped")));
    assert_eq!(found(&traces, &trace).await.status, TraceStatus::Stopped);
    assert_eq!(runs.wait(&trace, SOON).await.unwrap(), Some(RunResult::stopped("the run was stopped")));
    assert!(!runs.stop(&trace).await.unwrap());
    runs.start(&trace, asking("go")).await.unwrap().wait(SOON).await.unwrap().unwrap();
    assert_eq!(found(&traces, &trace).await.status, TraceStatus::Completed);
}

#[tokio::test]
async fn runner_that_panics_or_fails_leaves_its_trace_failed_and_free() {
    let traces = traces();
    let trace = created(&traces, "t").await;
    let runs = runs(Bad, &traces);
    for (asked, error) in [
        ("panic", "the runner failed unexpectedly"),
        ("error", "the model is away"),
        ("running", "the runner returned while its run was not over"),
    ] {
        let ended = runs.start(&trace, asking(asked)).await.unwrap().wait(SOON).await.unwrap().unwrap();
        assert_eq!(ended, RunResult::failed(error));
        assert_eq!(found(&traces, &trace).await.status, TraceStatus::Failed, "{asked}");
        let events = events(&traces, &trace).await;
        assert_eq!(events.last().unwrap().event, kinds::TRACE_FAILED);
        assert_eq!(end(&events).data["error"], error);
    }
    let ended = runs.start(&trace, asking("long")).await.unwrap().wait(SOON).await.unwrap().unwrap();
    assert!(ended.error.as_ref().is_some_and(|error| error.len() <= RESULT_BYTES_MAX + '…'.len_utf8()), "{ended:?}");
    assert_eq!(runs.wait(&trace, SOON).await.unwrap(), Some(ended));
}

#[tokio::test(start_paused = true)]
async fn late_run_is_ended_at_its_deadline() {
    let traces = traces();
    let trace = created(&traces, "t").await;
    let options = RunsOptions::new().with_deadline(Duration::from_secs(100));
    let runs = on(&Runs::with_options(Arc::new(Bad), options), &traces);
    let ended = runs.start(&trace, asking("hang")).await.unwrap().wait(Duration::from_secs(101)).await.unwrap().unwrap();
    assert_eq!(ended, RunResult::failed("the run took longer than 100s and was ended"));
    let found = found(&traces, &trace).await;
    assert_eq!((found.status, found.total_duration_ms / 1_000), (TraceStatus::Failed, 100));
}

#[tokio::test]
async fn runs_are_limited_in_all_and_for_each_user() {
    let (traces, gate) = (traces(), Gate::new());
    let runs = Runs::with_options(Arc::new(ScriptedRunner::new([Step::Pause(gate.clone())])), RunsOptions::new().with_runs_max(3, 2));
    let (ada, bob) = (on(&runs, &traces), runs.on((Some("acme".to_owned()), Some("bob".to_owned())), Arc::new(traces.clone())));
    let mut addresses = Vec::new();
    for id in ["a", "b", "c", "d"] {
        addresses.push(created(&traces, id).await);
    }
    let mut handles = Vec::new();
    for address in &addresses[..2] {
        handles.push(ada.start(address, asking("x")).await.unwrap());
    }
    let error = ada.start(&addresses[2], asking("x")).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && error.message().contains("your runs"), "{error}");
    handles.push(bob.start(&addresses[2], asking("x")).await.unwrap());
    let error = bob.start(&addresses[3], asking("x")).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && error.is_without_effect(), "{error}");
    assert_eq!((runs.count(), messages(&traces, &addresses[3]).await.len()), (3, 0));
    gate.open();
    for handle in handles {
        handle.wait(SOON).await.unwrap().unwrap();
    }
    assert_eq!(runs.count(), 0);
    bob.start(&addresses[3], asking("x")).await.unwrap().wait(SOON).await.unwrap().unwrap();
}

#[tokio::test]
async fn shutdown_stops_all_runs_and_refuses_further_ones() {
    let (traces, gate) = (traces(), Gate::new());
    let runs = Runs::new(Arc::new(ScriptedRunner::new([Step::Pause(gate.clone())])));
    let (one, two) = (created(&traces, "one").await, created(&traces, "two").await);
    for trace in [&one, &two] {
        on(&runs, &traces).start(trace, asking("x")).await.unwrap();
    }
    gate.arrived(2).await;
    assert!(runs.shutdown(SOON).await);
    for trace in [&one, &two] {
        assert_eq!(found(&traces, trace).await.status, TraceStatus::Stopped);
    }
    assert_eq!(on(&runs, &traces).start(&one, asking("x")).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!((runs.count(), messages(&traces, &one).await.len()), (0, 1));
}

#[tokio::test]
async fn run_goes_on_when_its_caller_leaves() {
    let (traces, gate) = (traces(), Gate::new());
    let trace = created(&traces, "t").await;
    let runs = runs(ScriptedRunner::new([Step::Pause(gate.clone()), Step::say("done")]), &traces);
    drop(runs.start(&trace, asking("x")).await.unwrap());
    gate.open();
    assert_eq!(runs.wait(&trace, SOON).await.unwrap(), Some(RunResult::completed("done")));
}

#[tokio::test]
async fn removed_trace_ends_its_run_without_an_error() {
    let (traces, gate) = (traces(), Gate::new());
    let trace = created(&traces, "t").await;
    let runs = Runs::new(Arc::new(ScriptedRunner::new([Step::Pause(gate.clone())])));
    let run = runs.on(user(), Arc::new(traces.clone())).start(&trace, asking("x")).await.unwrap();
    gate.arrived(1).await;
    traces.delete_trace(&trace).await.unwrap();
    gate.open();
    run.wait(SOON).await.unwrap().unwrap();
    assert_eq!(runs.count(), 0);
}

#[tokio::test]
async fn repeated_start_with_the_same_key_is_the_same_run() {
    let (traces, gate) = (traces(), Gate::new());
    let trace = created(&traces, "t").await;
    let runs = runs(ScriptedRunner::new([Step::Pause(gate.clone()), Step::say("done")]), &traces);
    let key = || Some("k1".to_owned());
    runs.start_once(&trace, asking("x"), key()).await.unwrap();
    gate.arrived(1).await;
    let again = runs.start_once(&trace, asking("x"), key()).await.unwrap();
    gate.open();
    assert_eq!(again.wait(SOON).await.unwrap(), Some(RunResult::completed("done")));
    let after = runs.start_once(&trace, asking("x"), key()).await.unwrap();
    assert_eq!(after.wait(SOON).await.unwrap(), Some(RunResult::completed("done")));
    assert_eq!(messages(&traces, &trace).await.len(), 2);
}
