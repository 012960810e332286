//! Runs of one process: their beginning, their end, and their limits.

use crate::support::{SOON, asking, created, events, found, messages, on, runs, traces, user};
use async_trait::async_trait;
use std::sync::Arc;
use std::time::Duration;
use treehold_core::error::{ErrorKind, Result};
use treehold_store::MemoryStore;
use treehold_traces::{
    AddOptions, Gate, NewMessage, PathQuery, REFLECTION, RESULT_BYTES_MAX, RUN_ENDED, RunContext, RunRequest, RunResult, Runs, RunsOptions,
    ScriptedRunner, Step, TraceEvent, TraceRunner, TraceStatus, TraceStore, TraceUpdate, Traces, kinds,
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

/// The answer of a key is that of its own run, whatever happened to the trace since.
#[tokio::test]
async fn repeated_start_reports_its_own_run_and_not_a_later_one() {
    let traces = traces();
    let trace = created(&traces, "t").await;
    let runs = runs(ScriptedRunner::new([Step::say("first")]).with_script("two", [Step::Fail("second".to_owned())]), &traces);
    let start = async |text: &str, key: Option<&str>| {
        let run = runs.start_once(&trace, asking(text), key.map(str::to_owned)).await.unwrap();
        run.wait(SOON).await.unwrap().unwrap()
    };
    assert_eq!(start("one", Some("k")).await, RunResult::completed("first"));
    assert_eq!(start("two", None).await, RunResult::failed("second"));
    assert_eq!(start("one", Some("k")).await, RunResult::completed("first"));
    assert_eq!(found(&traces, &trace).await.status, TraceStatus::Failed, "nothing was run again");
    assert_eq!(messages(&traces, &trace).await.len(), 3);
}

/// One process hosts the runs of all users, and a guessed key opens none of them.
#[tokio::test]
async fn runs_of_another_user_are_refused_by_every_method() {
    let (all, gate) = (Traces::new(Arc::new(MemoryStore::new())), Gate::new());
    let of = |user: &str| all.for_user("acme", user).unwrap();
    let host = Runs::new(Arc::new(ScriptedRunner::new([Step::Pause(gate.clone()), Step::say("secret")])));
    let trace = created(&of("ada"), "t").await;
    let key = || Some("k".to_owned());
    let run = on(&host, &of("ada")).start_once(&trace, asking("x"), key()).await.unwrap();
    gate.arrived(1).await;
    let bob = on(&host, &of("bob"));
    let denied = [
        bob.start(&trace, asking("x")).await.map(drop).unwrap_err(),
        bob.start_once(&trace, asking("x"), key()).await.map(drop).unwrap_err(),
        bob.wait(&trace, SOON).await.map(drop).unwrap_err(),
        bob.stop(&trace).await.map(drop).unwrap_err(),
    ];
    for error in denied {
        assert_eq!((error.kind(), error.message()), (ErrorKind::PermissionDenied, "Cannot access other user's trace"));
    }
    assert_eq!(found(&of("ada"), &trace).await.total_messages, 1);
    gate.open();
    assert_eq!(run.wait(SOON).await.unwrap(), Some(RunResult::completed("secret")));
}

fn beside(text: &str) -> RunRequest {
    let mut request = asking(text);
    request.branch_type = Some(REFLECTION.to_owned());
    request
}

#[tokio::test]
async fn run_on_a_side_branch_leaves_the_head_and_the_status() {
    let traces = traces();
    let trace = created(&traces, "t").await;
    let runner = ScriptedRunner::new([Step::SayPath]).with_script("reflect", [Step::SayPath, Step::say("be brief")]);
    let runs = runs(runner, &traces);
    let first = runs.start(&trace, asking("one")).await.unwrap().wait(SOON).await.unwrap().unwrap();
    let before = found(&traces, &trace).await;
    let mut request = beside("reflect");
    request.config = Some(treehold_core::json::Json::of(&1).unwrap());
    let ended = runs.start(&trace, request).await.unwrap().wait(SOON).await.unwrap().unwrap();
    assert_eq!(ended, RunResult::completed("be brief"));
    let after = found(&traces, &trace).await;
    let kept = |trace: &treehold_traces::Trace| (trace.status, trace.completed_at.clone(), trace.head_sequence, trace.run_config.clone());
    assert_eq!((kept(&after), after.total_messages), (kept(&before), 5));
    // The branch continues itself, and the runner saw the path to its end.
    let page = traces.get_messages(&trace, &Default::default()).await.unwrap();
    let branch: Vec<_> = page.messages[2..].iter().map(|message| (message.parent_sequence, message.branch_type.as_deref())).collect();
    assert_eq!(branch, [(Some(2), Some("reflection")), (Some(3), Some("reflection")), (Some(4), Some("reflection"))]);
    assert!(page.messages[3].content.as_ref().unwrap().as_str().contains("3 messages, asked: \\\"reflect\\\""), "{page:?}");
    let path = traces.get_main_path(&trace, &PathQuery::new()).await.unwrap();
    assert_eq!(path.messages.iter().map(|message| message.sequence).collect::<Vec<_>>(), [1, 2]);
    let events = events(&traces, &trace).await;
    assert_eq!(end(&events).data["branch_type"], "reflection");
    assert!(!events[before.last_event_id as usize..].iter().any(|event| event.event == kinds::TRACE_RESUMED), "{events:?}");
    // The result of the trace is still that of its main path, which continues as if nothing had happened.
    assert_eq!(runs.wait(&trace, SOON).await.unwrap(), Some(first));
    let next = runs.start(&trace, asking("two")).await.unwrap().wait(SOON).await.unwrap().unwrap();
    assert_eq!(next, RunResult::completed(r#"3 messages, asked: "two""#));
}

/// A runner that does what it must not on a side branch.
#[derive(Debug)]
struct Pushy;

#[async_trait]
impl TraceRunner for Pushy {
    async fn run(&self, context: &RunContext, _: RunRequest) -> Result<RunResult> {
        let (traces, trace) = (context.traces(), &context.trace);
        let own = traces.add_messages(trace, vec![NewMessage::text("assistant", "own")], &AddOptions::new()).await?;
        let refused = traces.update_trace(trace, TraceUpdate::new().with_head(1)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
        let late = AddOptions::new().with_expected_head(own.head_sequence - 1);
        let conflict = traces.add_messages(trace, vec![NewMessage::text("assistant", "late")], &late).await.unwrap_err();
        assert_eq!(conflict.kind(), ErrorKind::Conflict, "{conflict}");
        let at_end = AddOptions::new().with_expected_head(own.head_sequence);
        let next = traces.add_messages(trace, vec![NewMessage::text("assistant", "next")], &at_end).await?;
        assert_eq!(next.messages[0].parent_sequence, Some(own.head_sequence));
        Ok(RunResult::completed(next.head_sequence.to_string()))
    }
}

#[tokio::test]
async fn run_on_a_side_branch_begins_anywhere_and_never_moves_the_head() {
    let traces = traces();
    let trace = created(&traces, "t").await;
    let runs = runs(Pushy, &traces);
    let texts = ["one", "two", "three"].map(|text| NewMessage::text("user", text));
    traces.add_messages(&trace, texts.to_vec(), &AddOptions::new()).await.unwrap();
    let mut request = RunRequest::default();
    (request.after_sequence, request.branch_type) = (Some(2), Some("evaluation".to_owned()));
    let ended = runs.start(&trace, request.clone()).await.unwrap().wait(SOON).await.unwrap().unwrap();
    assert_eq!(ended, RunResult::completed("5"));
    let parents: Vec<_> = messages(&traces, &trace).await.into_iter().map(|(_, _, parent)| parent).collect();
    assert_eq!(parents, [None, Some(1), Some(2), Some(2), Some(4)]);
    assert_eq!(found(&traces, &trace).await.head_sequence, 3);
    let before = (found(&traces, &trace).await, messages(&traces, &trace).await);
    for (after, kind) in [(Some(99), "reflection"), (None, ""), (None, "a\nb"), (Some(99), "")] {
        (request.after_sequence, request.branch_type) = (after, Some(kind.to_owned()));
        for messages in [Vec::new(), vec![NewMessage::text("user", "x")]] {
            request.messages = messages;
            let refused = runs.start(&trace, request.clone()).await.map(drop).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{after:?} {kind:?}: {refused}");
        }
    }
    assert_eq!((found(&traces, &trace).await, messages(&traces, &trace).await), before);
}

#[tokio::test]
async fn run_on_a_side_branch_is_the_only_run_and_repeated_by_its_key() {
    let (traces, gate) = (traces(), Gate::new());
    let trace = created(&traces, "t").await;
    let runs = runs(ScriptedRunner::new([Step::Pause(gate.clone()), Step::say("insight")]), &traces);
    let key = || Some("k".to_owned());
    let run = runs.start_once(&trace, beside("x"), key()).await.unwrap();
    gate.arrived(1).await;
    assert_eq!(runs.start(&trace, asking("y")).await.map(drop).unwrap_err().kind(), ErrorKind::Conflict);
    gate.open();
    assert_eq!(run.wait(SOON).await.unwrap(), Some(RunResult::completed("insight")));
    let again = runs.start_once(&trace, beside("x"), key()).await.unwrap().wait(SOON).await.unwrap();
    assert_eq!(again, Some(RunResult::completed("insight")));
    assert_eq!(messages(&traces, &trace).await.len(), 2, "nothing was run again");
}
