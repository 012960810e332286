//! What the tests of all layouts share.

use treehold_agent_state::{AgentStateStore, DeleteOptions, DeleteSessionOptions, Json, SaveOptions, StateSlot};
use treehold_core::error::{Error, ErrorKind};

pub(crate) fn json(text: &str) -> Json {
    Json::parse(text).unwrap()
}

pub(crate) fn slot(user: impl Into<Option<&'static str>>, session: &str) -> StateSlot {
    StateSlot::new(user.into(), session).unwrap()
}

/// Calls every operation of a store on a slot and a key. Returns the name and the result of each.
pub(crate) async fn each_operation(states: &dyn AgentStateStore, slot: &StateSlot, key: &str) -> Vec<(&'static str, Result<(), Error>)> {
    let any = SaveOptions::new;
    vec![
        ("save", states.save(slot, key, &json("{}"), any()).await.map(drop)),
        ("save_list", states.save_list(slot, key, &[json("{}")], any()).await.map(drop)),
        ("get", states.get(slot, key).await.map(drop)),
        ("get_list", states.get_list(slot, key).await.map(drop)),
        ("version", states.version(slot, key).await.map(drop)),
        ("list_version", states.list_version(slot, key).await.map(drop)),
        ("delete", states.delete(slot, key, DeleteOptions::new()).await.map(drop)),
    ]
}

/// Calls every operation of a store on a slot.
pub(crate) async fn each_operation_on_slot(states: &dyn AgentStateStore, slot: &StateSlot) -> Vec<(&'static str, Result<(), Error>)> {
    let mut results = each_operation(states, slot, "agent_state").await;
    results.push(("exists", states.exists(slot).await.map(drop)));
    results.push(("keys", states.keys(slot).await.map(drop)));
    results.push(("delete_session", states.delete_session(slot, DeleteSessionOptions::new()).await));
    results
}

/// Asserts that every operation is refused as a bad argument.
pub(crate) fn assert_refused(what: &str, results: Vec<(&'static str, Result<(), Error>)>) {
    for (operation, result) in results {
        let error = result.expect_err(&format!("{operation} of {what} must be refused"));
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{operation} of {what}: {error}");
    }
}
