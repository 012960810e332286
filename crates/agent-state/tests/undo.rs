//! Undo and redo against a model, and with saves that fail at any point.

use proptest::prelude::*;
use treehold_agent_state::undo::{REDO_KEY, UNDO_KEY, UNDO_MAX, redo, remember, undo};
use treehold_agent_state::{AGENT_STATE_KEY, AgentStateStore, AgentStates, Fence, Json, SaveOptions, StateSlot, StoreStates};
use treehold_core::ErrorKind;
use treehold_core::ops::Version;
use treehold_store::Namespace;

fn states() -> (StoreStates, StateSlot) {
    let states = AgentStates::in_memory().for_agent("acme", "helper").expect("plain ids");
    (states, StateSlot::new(Some("ada"), "s").expect("a plain id"))
}

fn state(number: u32) -> Json {
    Json::parse(&format!("{{\"context\": [{{\"id\": \"{number}\"}}], \"summary\": \"{number}\"}}")).expect("JSON")
}

async fn save(states: &StoreStates, slot: &StateSlot, number: u32) {
    states.save(slot, AGENT_STATE_KEY, &state(number), SaveOptions::new()).await.expect("saved");
}

async fn present(states: &StoreStates, slot: &StateSlot) -> Json {
    states.get(slot, AGENT_STATE_KEY).await.expect("read").expect("a state").value
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// A change that is remembered.
    Change,
    /// A turn, which is not.
    Turn,
    Undo,
    Redo,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![3 => Just(Step::Change), 1 => Just(Step::Turn), 3 => Just(Step::Undo), 2 => Just(Step::Redo)];
    prop::collection::vec(step, 1..60)
}

fn bounded(list: &mut Vec<u32>, number: u32) {
    list.push(number);
    let excess = list.len().saturating_sub(UNDO_MAX);
    list.drain(..excess);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn undo_and_redo_move_along_remembered_states(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let (states, slot) = states();
            save(&states, &slot, 0).await;
            let (mut now, mut next, mut undos, mut redos) = (0, 1, Vec::new(), Vec::new());
            for step in steps {
                match step {
                    Step::Change | Step::Turn => {
                        if matches!(step, Step::Change) {
                            assert!(remember(&states, &slot, None).await.expect("kept"));
                            bounded(&mut undos, now);
                        }
                        redos.clear();
                        save(&states, &slot, next).await;
                        (now, next) = (next, next + 1);
                    }
                    Step::Undo | Step::Redo => {
                        let is_undo = matches!(step, Step::Undo);
                        let outcome = if is_undo { undo(&states, &slot, None).await } else { redo(&states, &slot, None).await };
                        let outcome = outcome.expect("done");
                        let (from, to) = if is_undo { (&mut undos, &mut redos) } else { (&mut redos, &mut undos) };
                        let found = from.pop();
                        if let Some(found) = found {
                            bounded(to, now);
                            now = found;
                        }
                        assert_eq!((outcome.restored, outcome.undo_depth, outcome.redo_depth), (found.is_some(), undos.len(), redos.len()));
                    }
                }
                assert_eq!(present(&states, &slot).await, state(now));
            }
        });
    }
}

#[tokio::test]
async fn step_without_a_state_or_under_a_fallen_fence_changes_nothing() {
    let (states, slot) = states();
    for step in [undo(&states, &slot, None).await, redo(&states, &slot, None).await] {
        assert_eq!(step.expect_err("no state").kind(), ErrorKind::NotFound);
    }
    assert_eq!(remember(&states, &slot, None).await.expect_err("no state").kind(), ErrorKind::NotFound);
    save(&states, &slot, 0).await;
    remember(&states, &slot, None).await.expect("kept");
    save(&states, &slot, 1).await;
    let namespace = Namespace::parse("acme/ada/_treehold/agent-state/turns").expect("plain");
    let fence = Fence { namespace, key: "holder".to_owned(), version: Version::new(7) };
    for fenced in [undo(&states, &slot, Some(&fence)).await.err(), remember(&states, &slot, Some(&fence)).await.err()] {
        assert_eq!(fenced.expect("the fence fell").kind(), ErrorKind::Conflict);
    }
    assert_eq!(present(&states, &slot).await, state(1));
    assert!(undo(&states, &slot, None).await.expect("undone").restored);
    assert_eq!(present(&states, &slot).await, state(0));
}

/// A process that dies between the commits of a step leaves an entry too many, which the next step skips.
#[tokio::test]
async fn interrupted_step_is_finished_by_the_next_one() {
    let (states, slot) = states();
    save(&states, &slot, 0).await;
    remember(&states, &slot, None).await.expect("kept");
    save(&states, &slot, 1).await;
    remember(&states, &slot, None).await.expect("kept");
    save(&states, &slot, 2).await;
    // The lists as they were before the step, with the state that it restored.
    let before = states.get_list(&slot, UNDO_KEY).await.expect("read");
    assert!(undo(&states, &slot, None).await.expect("undone").restored);
    states.save_list(&slot, UNDO_KEY, &before, SaveOptions::new()).await.expect("saved");
    let outcome = undo(&states, &slot, None).await.expect("undone");
    assert_eq!((outcome.restored, outcome.undo_depth, outcome.redo_depth), (true, 0, 2));
    assert_eq!(present(&states, &slot).await, state(0));
    // The list to redo was written, and the state was not.
    let redos = states.get_list(&slot, REDO_KEY).await.expect("read");
    save(&states, &slot, 5).await;
    assert_eq!(states.get_list(&slot, REDO_KEY).await.expect("read"), redos);
    assert!(!redo(&states, &slot, None).await.expect("nothing").restored, "the state has changed since");
    assert_eq!(present(&states, &slot).await, state(5));
}
