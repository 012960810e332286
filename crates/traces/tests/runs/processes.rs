//! Runs of several processes that share a store.

use crate::staged::{Stage, Staged};
use crate::support::{SOON, asking, created, found, messages, on, user};
use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use treehold_core::clock::Clock;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_store::{MemoryStore, Store};
use treehold_traces::{
    ClaimRuns, Gate, HeldRun, RunResult, Runs, RunsOptions, ScriptedRunner, Step, StoredTraces, TraceId, TraceStatus, TraceStore, Traces,
};

/// A clock that a test moves.
#[derive(Clone)]
struct Hands(Arc<Mutex<Timestamp>>);

impl Hands {
    fn new() -> Self {
        Self(Arc::new(Mutex::new("2026-01-01T00:00:00Z".parse().unwrap())))
    }

    fn clock(&self) -> Clock {
        let hands = self.0.clone();
        Clock::from_fn(move || *hands.lock())
    }

    fn advance(&self, by: SignedDuration) {
        *self.0.lock() += by;
    }
}

fn traces_of(store: &Arc<dyn Store>) -> StoredTraces {
    Traces::new(store.clone()).for_user("acme", "ada").unwrap()
}

#[tokio::test]
async fn two_processes_never_run_a_trace_at_the_same_time() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let (traces, gate) = (traces_of(&store), Gate::new());
    let trace = created(&traces, "t").await;
    let processes = [(); 2].map(|()| Runs::new(Arc::new(ScriptedRunner::new([Step::Pause(gate.clone()), Step::say("done")]))));
    let run = on(&processes[0], &traces).start(&trace, asking("one")).await.unwrap();
    let other = on(&processes[1], &traces_of(&store));
    assert_eq!(other.start(&trace, asking("two")).await.unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!((messages(&traces, &trace).await.len(), processes[1].count()), (1, 0));
    // The other process sees how the run ends, and can run the trace then.
    let waiting = tokio::spawn({
        let (other, trace) = (other.clone(), trace.clone());
        async move { other.wait(&trace, SOON).await }
    });
    gate.open();
    assert_eq!(waiting.await.unwrap().unwrap(), Some(RunResult::completed("done")));
    run.wait(SOON).await.unwrap().unwrap();
    other.start(&trace, asking("two")).await.unwrap().wait(SOON).await.unwrap().unwrap();
}

#[test]
fn process_that_died_is_replaced_when_its_lease_ends() {
    let hands = Hands::new();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::with_clock(hands.clock()));
    let traces = traces_of(&store);
    let gate = Gate::new();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let dead = runtime();
    let trace = dead.block_on(async {
        let trace = created(&traces, "t").await;
        let runs = Runs::new(Arc::new(ScriptedRunner::new([Step::say("begun"), Step::Pause(gate.clone())])));
        on(&runs, &traces).start(&trace, asking("one")).await.unwrap();
        gate.arrived(1).await;
        trace
    });
    // Its tasks go without a chance to write anything.
    drop(dead);
    runtime().block_on(async {
        assert_eq!(found(&traces, &trace).await.status, TraceStatus::Running);
        let runs = on(&Runs::new(Arc::new(ScriptedRunner::new([Step::SayPath]))), &traces);
        assert_eq!(runs.start(&trace, asking("two")).await.unwrap_err().kind(), ErrorKind::Conflict);
        hands.advance(SignedDuration::from_secs(31));
        let ended = runs.start(&trace, asking("two")).await.unwrap().wait(SOON).await.unwrap().unwrap();
        assert_eq!(ended, RunResult::completed(r#"3 messages, asked: "two""#));
        assert_eq!(found(&traces, &trace).await.status, TraceStatus::Completed);
    });
}

/// The store fails at each commit of a run in turn, before or after it takes effect, and the process dies. The call that repeats it with its
/// key, in another process, appends the messages once and reports the end of its own run, not of the one before.
#[test]
fn start_repeated_after_a_failure_at_any_commit_reports_its_own_run() {
    let runner = || ScriptedRunner::new([Step::say("first")]).with_script("again", [Step::say("second")]);
    let key = || Some("k".to_owned());
    let (mut failed_starts, mut reached) = (0, 0);
    for is_unanswered in [false, true] {
        for at in 0.. {
            let hands = Hands::new();
            let store: Arc<dyn Store> = Arc::new(MemoryStore::with_clock(hands.clock()));
            let stage = if is_unanswered { Stage::Unanswered } else { Stage::Dead };
            let staged = Staged::new(&store, at, stage);
            let traces = traces_of(&store);
            let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
            let dead = runtime();
            let trace = dead.block_on(async {
                let trace = created(&traces, "t").await;
                on(&Runs::new(Arc::new(runner())), &traces).start(&trace, asking("one")).await.unwrap().wait(SOON).await.unwrap().unwrap();
                let dying: Arc<dyn Store> = staged.clone();
                let runs = on(&Runs::new(Arc::new(runner())), &traces_of(&dying));
                match runs.start_once(&trace, asking("again"), key()).await {
                    Ok(run) => drop(run.wait(SOON).await),
                    Err(_) => failed_starts += 1,
                }
                trace
            });
            drop(dead);
            hands.advance(SignedDuration::from_secs(31));
            runtime().block_on(async {
                let runs = on(&Runs::new(Arc::new(runner())), &traces);
                let ended = runs.start_once(&trace, asking("again"), key()).await.unwrap().wait(SOON).await.unwrap().unwrap();
                assert_eq!(ended, RunResult::completed("second"), "commit {at}, answered: {}", !is_unanswered);
                let said = messages(&traces, &trace).await;
                assert_eq!(said.iter().filter(|(role, text, _)| role == "user" && text == r#""again""#).count(), 1, "{said:?}");
                assert_eq!(found(&traces, &trace).await.status, TraceStatus::Completed);
            });
            if !staged.was_reached() {
                break;
            }
            reached += 1;
        }
    }
    assert!(failed_starts >= 4 && reached >= 10, "{failed_starts} {reached}");
}

#[tokio::test]
async fn run_is_stopped_from_another_process() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let (traces, gate) = (traces_of(&store), Gate::new());
    let trace = created(&traces, "t").await;
    let runner = ScriptedRunner::new([]).with_script("wait", [Step::Pause(gate.clone())]);
    let here = Runs::new(Arc::new(runner.clone()));
    let other = on(&Runs::new(Arc::new(runner)), &traces_of(&store));
    assert!(!other.stop(&trace).await.unwrap(), "no run works on it");
    for round in 1..=2 {
        let run = on(&here, &traces).start(&trace, asking("wait")).await.unwrap();
        gate.arrived(round).await;
        assert!(other.stop(&trace).await.unwrap());
        assert_eq!(run.wait(SOON).await.unwrap(), Some(RunResult::stopped("the run was stopped")));
        assert_eq!(found(&traces, &trace).await.status, TraceStatus::Stopped);
    }
    // A run on a side branch, of which the status says nothing.
    let mut beside = asking("wait");
    beside.branch_type = Some("reflection".to_owned());
    let run = on(&here, &traces).start(&trace, beside).await.unwrap();
    gate.arrived(3).await;
    assert!(other.stop(&trace).await.unwrap());
    assert_eq!(run.wait(SOON).await.unwrap(), Some(RunResult::stopped("the run was stopped")));
    // Earlier requests to stop do not end a later run.
    let ended = other.start(&trace, asking("go")).await.unwrap().wait(SOON).await.unwrap();
    assert_eq!(ended.unwrap().status, TraceStatus::Completed);
    assert_eq!(other.stop(&"unknown".parse().unwrap()).await.unwrap_err().kind(), ErrorKind::NotFound);
}

/// Claims that another process takes at the first renewal.
#[derive(Debug)]
struct Taken;

#[async_trait]
impl ClaimRuns for Taken {
    async fn claim(&self, _: &TraceId, _: Duration) -> Result<Box<dyn HeldRun>> {
        Ok(Box::new(Self))
    }
}

#[async_trait]
impl HeldRun for Taken {
    fn traces(&self) -> Option<Arc<dyn TraceStore>> {
        None
    }

    async fn renew(&self, _: Duration) -> Result<()> {
        Err(Error::new(ErrorKind::Conflict, "taken"))
    }

    async fn release(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn run_whose_claim_is_lost_is_ended_and_leaves_the_trace_to_the_other_process() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let (traces, gate) = (traces_of(&store), Gate::new());
    let trace = created(&traces, "t").await;
    let runs =
        Runs::with_options(Arc::new(ScriptedRunner::new([Step::Pause(gate)])), RunsOptions::new().with_lease(Duration::from_secs(3)));
    let runs = runs.on(user(), Arc::new(traces.clone())).with_claims(Arc::new(Taken));
    let run = runs.start(&trace, asking("x")).await.unwrap();
    let ended = run.wait(Duration::from_secs(60)).await.unwrap().unwrap();
    assert_eq!(ended.status, TraceStatus::Stopped);
    assert_eq!(found(&traces, &trace).await.status, TraceStatus::Running);
}

#[tokio::test]
async fn writes_of_a_run_are_refused_after_another_process_took_its_trace() {
    let hands = Hands::new();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::with_clock(hands.clock()));
    let (traces, gate) = (traces_of(&store), Gate::new());
    let trace = created(&traces, "t").await;
    let late = Runs::new(Arc::new(ScriptedRunner::new([Step::Pause(gate.clone()), Step::say("late")])));
    let late = on(&late, &traces).start(&trace, asking("one")).await.unwrap();
    gate.arrived(1).await;
    hands.advance(SignedDuration::from_secs(31));
    let runs = on(&Runs::new(Arc::new(ScriptedRunner::new([Step::say("taken over")]))), &traces);
    runs.start(&trace, asking("two")).await.unwrap().wait(SOON).await.unwrap().unwrap();
    gate.open();
    assert_eq!(late.wait(SOON).await.unwrap().unwrap().status, TraceStatus::Failed);
    let texts: Vec<String> = messages(&traces, &trace).await.into_iter().map(|(_, text, _)| text).collect();
    assert_eq!(texts, [r#""one""#, r#""two""#, r#"{"text":"taken over"}"#]);
    assert_eq!(found(&traces, &trace).await.status, TraceStatus::Completed);
}
