//! Entries in other partitions: of a user in the directory of the tenant, and of what is due in the schedule of sweeps. No commit changes
//! them together with the rows of a user, so these tests fail and interrupt operations at every step.

use crate::cases::support::{KEY, Staged, Step, clock, directory, due, json, messages, rows, state, states, states_with, visits};
use std::sync::Arc;
use std::time::Duration;
use treehold_agent_state::{
    AgentStateStore, AgentStates, AgentStatesOptions, DeleteOptions, DeleteSessionOptions, Expiry, SaveOptions, StateSlot, StoreStates,
};
use treehold_core::ErrorKind;
use treehold_core::error::Result;
use treehold_sqlite::SqliteStore;
use treehold_store::{Batch, MemoryStore, Namespace, Store};

/// Guests are absent a day after their last save.
fn options() -> AgentStatesOptions {
    AgentStatesOptions::new().with_expiry(Expiry::never().with_prefix("guest-", Some(Duration::from_secs(24 * 60 * 60))))
}

fn agent(store: &Arc<dyn Store>) -> StoreStates {
    states_with(store, options())
}

fn slot(session: &str) -> StateSlot {
    StateSlot::new(Some("ada"), session).unwrap()
}

/// What changes the rows of a user.
#[derive(Debug, Clone, Copy)]
enum Operation {
    Save(&'static str),
    SaveLarge,
    /// The process dies after it has written some messages.
    DieInSaveLarge,
    DeleteSession(&'static str),
    DeleteLastValue,
    /// After a number of hours.
    Sweep(i64),
}

impl Operation {
    const ALL: [Self; 8] = [
        Self::Save("kept"),
        Self::Save("guest-1"),
        Self::Save("guest-2"),
        Self::SaveLarge,
        Self::DeleteSession("guest-1"),
        Self::DeleteLastValue,
        // When data of deletions is due, and when the guests are.
        Self::Sweep(5),
        Self::Sweep(40),
    ];

    async fn run(self, store: &Arc<dyn Store>) -> Result<()> {
        let states = agent(store);
        match self {
            Self::Save(session) => states.save(&slot(session), KEY, &state(0..2), SaveOptions::new()).await.map(drop),
            Self::SaveLarge => states.save(&slot("kept"), KEY, &state(5..2_010), SaveOptions::new()).await.map(drop),
            Self::DieInSaveLarge => {
                let failing: Arc<dyn Store> = Staged::failing_from(store, 4, false);
                Box::pin(Self::SaveLarge.run(&failing)).await.unwrap_err();
                Ok(())
            }
            Self::DeleteSession(session) => states.delete_session(&slot(session), DeleteSessionOptions::new()).await,
            Self::DeleteLastValue => states.delete(&slot("kept"), KEY, DeleteOptions::new()).await,
            Self::Sweep(hours) => {
                let all = AgentStates::new(store.clone()).with_clock(clock(hours)).with_options(options());
                all.sweep(100).await.map(drop)
            }
        }
    }
}

/// What a user has when an operation starts.
const BEFORE: [&[Operation]; 5] = [
    &[],
    &[Operation::Save("kept")],
    &[Operation::Save("guest-1")],
    &[Operation::Save("kept"), Operation::DieInSaveLarge],
    &[Operation::Save("kept"), Operation::Save("guest-1"), Operation::DeleteSession("guest-1"), Operation::Save("guest-2")],
];

fn memory() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new())
}

fn schedule() -> Namespace {
    Namespace::parse("_treehold/agent-state/_treehold/due").unwrap()
}

/// Asserts that every due row has its visit, and that the directory has the user of every session.
async fn assert_listed(store: &Arc<dyn Store>, at: &str) {
    let rows = rows(store).await;
    let is_in = |namespace: &Namespace, last: &str| namespace.components().last().is_some_and(|component| component == last);
    for (namespace, item) in &rows {
        if is_in(namespace, "due") && *namespace != schedule() {
            let visit = format!("{}\u{1}acme\u{1}uada\u{1}helper", &item.key[..20]);
            let is_scheduled = rows.iter().any(|(space, row)| *space == schedule() && row.key == visit);
            assert!(is_scheduled, "{at}: no visit is scheduled for {:?}", item.key);
        }
        if is_in(namespace, "states") && item.key.starts_with("s\u{1}") {
            let is_listed = rows.iter().any(|(space, user)| is_in(space, "helper") && user.key == "uada");
            assert!(is_listed, "{at}: {:?} is not in the directory", item.key);
        }
    }
}

/// Deletes what is left. Then sweeps leave nothing behind.
async fn assert_ends_empty(store: &Arc<dyn Store>, at: &str) {
    for session in ["kept", "guest-1", "guest-2"] {
        Operation::DeleteSession(session).run(store).await.unwrap();
    }
    for hours in [60, 66] {
        Operation::Sweep(hours).run(store).await.unwrap();
    }
    let left = (messages(store).await, due(store).await, visits(store).await, directory(store).await);
    assert_eq!((left, proofs(store).await), ((0, 0, 0, 0), 0), "{at}");
}

async fn proofs(store: &Arc<dyn Store>) -> usize {
    rows(store).await.iter().filter(|(_, item)| item.key.starts_with("p\u{1}")).count()
}

/// Lets an operation fail at one of its commits. Returns whether it has so many.
async fn fails_at(store: Arc<dyn Store>, first: &[Operation], operation: Operation, commit: usize, after_effect: bool) -> bool {
    let at = format!("{first:?} {operation:?} {commit} {after_effect}");
    for step in first {
        step.run(&store).await.unwrap();
    }
    let staged = Staged::failing_from(&store, commit, after_effect);
    let failing: Arc<dyn Store> = staged.clone();
    let done = operation.run(&failing).await;
    assert_listed(&store, &at).await;
    if staged.has_run() {
        // A save that died may leave a user without sessions in the directory, who leaves it with the next session.
        Operation::Save("kept").run(&store).await.unwrap();
    } else {
        done.unwrap();
    }
    assert_ends_empty(&store, &at).await;
    staged.has_run()
}

/// A failure at any commit, without its effect or after it, leaves no due row without a visit and no session without its user in the
/// directory.
#[tokio::test]
async fn failed_operation_leaves_every_row_scheduled_and_listed() {
    for first in BEFORE {
        for operation in Operation::ALL {
            for after_effect in [false, true] {
                let mut commit = 0;
                while fails_at(memory(), first, operation, commit, after_effect).await {
                    commit += 1;
                }
            }
        }
    }
    // The file is slow, so it is tried with the longest beginning only.
    for operation in Operation::ALL {
        let directory = tempfile::tempdir().unwrap();
        let file = |commit| Arc::new(SqliteStore::open(directory.path().join(format!("{commit}.db"))).unwrap());
        let mut commit = 0;
        while fails_at(file(commit), BEFORE[4], operation, commit, false).await {
            commit += 1;
        }
    }
}

/// Lets another operation come before one of the steps of an operation. Returns whether it has so many.
async fn is_overtaken_at(first: &[Operation], operation: Operation, other: Operation, step: Step, number: usize) -> bool {
    let at = format!("{first:?} {operation:?} {other:?} {step:?} {number}");
    let store = memory();
    for step in first {
        step.run(&store).await.unwrap();
    }
    let there = store.clone();
    let staged = Staged::before(&store, step, number, move || async move { other.run(&there).await.unwrap() });
    let late: Arc<dyn Store> = staged.clone();
    match operation.run(&late).await {
        Ok(()) => {}
        // A sweep of a later time ended the save.
        Err(error) => assert_eq!(error.kind(), ErrorKind::Deadline, "{at}: {error}"),
    }
    assert_listed(&store, &at).await;
    assert_ends_empty(&store, &at).await;
    staged.has_run()
}

/// Another process that comes between any two steps leaves no due row without a visit and no session without its user in the directory.
#[tokio::test]
async fn overtaken_operation_leaves_every_row_scheduled_and_listed() {
    let mut overtaken = 0;
    for first in BEFORE {
        // Large saves take long. After one that died, only sweeps do something else than otherwise.
        let has_stage = first.iter().any(|step| matches!(step, Operation::DieInSaveLarge));
        let is_worth_it = |operation: &Operation| match operation {
            Operation::Sweep(_) => true,
            Operation::SaveLarge => first.len() == BEFORE[4].len(),
            _ => !has_stage,
        };
        for operation in Operation::ALL.into_iter().filter(is_worth_it) {
            for other in Operation::ALL.into_iter().filter(|other| !matches!(other, Operation::SaveLarge)) {
                for step in Step::ALL {
                    for number in 0.. {
                        if !is_overtaken_at(first, operation, other, step, number).await {
                            break;
                        }
                        overtaken += 1;
                    }
                }
            }
        }
    }
    assert!(overtaken > 1_000, "{overtaken}");
}

/// A row that cannot be done pins its own visit, and neither the later ones of its owner nor those of others.
#[tokio::test]
async fn row_that_cannot_be_done_keeps_its_own_visit_only() {
    let store = memory();
    Operation::Save("guest-1").run(&store).await.unwrap();
    let (namespace, item) = rows(&store).await.into_iter().find(|(_, item)| item.key.contains("expire")).unwrap();
    store.commit(Batch::new().put(&namespace, &item.key, "damaged")).await.unwrap();
    for hours in [0, 6, 12, 18] {
        let states = AgentStates::new(store.clone()).with_clock(clock(hours)).for_agent("acme", "helper").unwrap();
        states.save(&slot("kept"), KEY, &state(0..2), SaveOptions::new()).await.unwrap();
        states.delete_session(&slot("kept"), DeleteSessionOptions::new()).await.unwrap();
    }
    assert_eq!(visits(&store).await, 5);
    for hours in [40, 41] {
        Operation::Sweep(hours).run(&store).await.unwrap_err();
        assert_eq!((visits(&store).await, due(&store).await), (1, 1));
    }
}

/// The user's rows come from another store, whose lists stay there. A day later at the latest, the next session lists them here.
#[tokio::test]
async fn user_who_moved_from_another_store_is_listed_again() {
    let store = memory();
    for session in ["kept", "guest-1"] {
        Operation::Save(session).run(&store).await.unwrap();
    }
    Operation::DeleteSession("guest-1").run(&store).await.unwrap();
    Operation::Save("guest-2").run(&store).await.unwrap();
    let is_list = |namespace: &Namespace| {
        namespace.components().next().is_some_and(|tenant| tenant != "acme")
            || namespace.components().nth(1).is_some_and(|user| user != "ada")
    };
    for (namespace, item) in rows(&store).await.into_iter().filter(|(namespace, _)| is_list(namespace)) {
        store.commit(Batch::new().delete(&namespace, &item.key)).await.unwrap();
    }
    assert_eq!((visits(&store).await, directory(&store).await), (0, 0));
    assert_eq!(proofs(&store).await, 3, "of the directory, of the guests and of the deletion");
    for (hours, is_listed) in [(1, false), (25, true)] {
        let states = AgentStates::new(store.clone()).with_clock(clock(hours)).for_agent("acme", "helper").unwrap();
        states.save(&slot(&format!("new-{hours}")), KEY, &state(0..2), SaveOptions::new()).await.unwrap();
        assert_eq!((visits(&store).await, directory(&store).await), if is_listed { (2, 1) } else { (0, 0) });
    }
    assert_listed(&store, "a user who moved").await;
    for hours in [1, 25] {
        agent(&store).delete_session(&slot(&format!("new-{hours}")), DeleteSessionOptions::new()).await.unwrap();
    }
    assert_ends_empty(&store, "a user who moved").await;
}

/// What fails does not count as work of a sweep, so it takes no turn from the others, however much it is.
#[tokio::test]
async fn rows_that_cannot_be_done_take_no_turn_from_others() {
    let store = memory();
    let users: Vec<String> = (0..12).map(|number| format!("u{number}")).chain(["zoe".to_owned()]).collect();
    for (number, user) in users.iter().enumerate() {
        let hours = if number < 12 { 0 } else { 10 };
        let of = |store: Arc<dyn Store>| AgentStates::new(store).with_clock(clock(hours)).for_agent("acme", "helper").unwrap();
        let slot = StateSlot::new(Some(user), "s").unwrap();
        of(store.clone()).save(&slot, KEY, &state(0..2), SaveOptions::new()).await.unwrap();
        of(Staged::failing_from(&store, 3, false)).delete_session(&slot, DeleteSessionOptions::new()).await.unwrap();
    }
    assert_eq!((due(&store).await, messages(&store).await), (13, 26), "each process died after the commit that decides");
    for (namespace, item) in rows(&store).await {
        let is_due = namespace.components().last().is_some_and(|last| last == "due") && namespace != schedule();
        if is_due && namespace.components().nth(1).is_some_and(|user| user != "zoe") {
            store.commit(Batch::new().put(&namespace, &item.key, "damaged")).await.unwrap();
        }
    }
    AgentStates::new(store.clone()).with_clock(clock(40)).sweep(1).await.unwrap_err();
    assert_eq!((due(&store).await, messages(&store).await), (12, 24));
}

/// A session that was renewed costs as much as one that is removed, so a sweep looks at a bounded number of them, and the next one goes on.
#[tokio::test]
async fn sweep_looks_at_a_bounded_number_of_renewed_sessions() {
    let store = memory();
    for number in 0..12 {
        agent(&store).save(&slot(&format!("guest-{number}")), KEY, &state(0..2), SaveOptions::new()).await.unwrap();
    }
    let rows_of_due =
        async || rows(&store).await.into_iter().filter(|(namespace, _)| namespace.components().last().is_some_and(|last| last == "due"));
    let first = rows_of_due().await.find(|(namespace, _)| *namespace != schedule()).unwrap().1.key[..20].to_owned();
    for left in [2, 0] {
        let all = AgentStates::new(store.clone()).with_clock(clock(40)).with_options(options());
        assert_eq!(all.sweep(1).await.unwrap(), 0);
        let waiting = rows_of_due().await.filter(|(namespace, item)| *namespace != schedule() && item.key.starts_with(&first)).count();
        assert_eq!((waiting, due(&store).await), (left, 12));
        assert_listed(&store, "renewed sessions").await;
    }
    assert_eq!(visits(&store).await, 1);
}

/// A row in the form of an earlier version, which had one list for all owners.
fn former(time: i64, session: &str, data: &str, task: &str) -> (String, Vec<u8>) {
    let key = format!("{time:020}\u{1}acme\u{1}uada\u{1}helper\u{1}{session}\u{1}{data}\u{1}task");
    let owner = r#"{"tenant":"acme","user":"ada","agent":"helper"}"#;
    let value = format!(r#"{{"owner":{owner},"session":"{session}","data":"{data}","task":{task}}}"#);
    let sum = blake3::hash(value.as_bytes()).to_hex();
    (key, [&sum.as_bytes()[..16], value.as_bytes()].concat())
}

/// What an earlier version listed goes to its owner at its time, and is done soon after.
#[tokio::test]
async fn rows_of_an_earlier_version_are_done_soon_after_their_time() {
    let of = |name: &str| Namespace::parse(&format!("acme/ada/_treehold/agent-state/agents/helper/data/{name}")).unwrap();
    let now = clock(0).now().as_millisecond();
    for task in [r#""expire""#, r#""removeData""#, r#"{"removeLog":"l"}"#, r#"{"endStage":["l","g"]}"#, r#"{"removeSegment":["l","g"]}"#] {
        let store = memory();
        store.commit(Batch::new().put(&of("d/l/g"), "00000000000000000000", "1").put(&of("e/l"), "x", "1")).await.unwrap();
        let (later, due_now) = (former(now + 1, "s", "d", task), former(now, "s", "d", task));
        store.commit(Batch::new().put(&schedule(), later.0.clone(), later.1)).await.unwrap();
        states(&store).all().sweep(9).await.unwrap();
        assert_eq!((messages(&store).await, visits(&store).await, due(&store).await), (2, 1, 0), "{task}: it is not due");
        store.commit(Batch::new().delete(&schedule(), later.0).put(&schedule(), due_now.0, due_now.1)).await.unwrap();
        states(&store).all().sweep(9).await.unwrap();
        assert_eq!((messages(&store).await, visits(&store).await, due(&store).await), (2, 1, 1), "{task}: it is the owner's");
        assert_listed(&store, task).await;
        let soon = AgentStates::new(store.clone()).with_clock(clock(1));
        assert_eq!(soon.sweep(9).await.unwrap(), 1, "{task}");
        assert_eq!((messages(&store).await, visits(&store).await, due(&store).await), (1, 0, 0), "{task}: other data stays");
    }
    // A session that has not expired.
    let store = memory();
    let states = agent(&store);
    states.save(&slot("guest-1"), KEY, &json("1"), SaveOptions::new()).await.unwrap();
    let session = rows(&store).await.into_iter().find(|(_, item)| item.key.starts_with("s\u{1}")).unwrap().1;
    let data: serde_json::Value = serde_json::from_slice(&session.meta[16..]).unwrap();
    let (key, value) = former(now, "guest-1", data["data"].as_str().unwrap(), r#""expire""#);
    store.commit(Batch::new().put(&schedule(), key, value)).await.unwrap();
    for hours in [0, 1] {
        Operation::Sweep(hours).run(&store).await.unwrap();
        assert!(states.exists(&slot("guest-1")).await.unwrap() && due(&store).await > 0);
        assert_listed(&store, "a session that has not expired").await;
    }
    assert_ends_empty(&store, "a session that has not expired").await;
}
