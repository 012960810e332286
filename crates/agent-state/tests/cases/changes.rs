//! Every operation that changes states, so that a rule about changes is checked for each of them.

use std::collections::BTreeSet;
use treehold_agent_state::{
    AgentStateStore, DeleteOptions, DeleteSessionOptions, Expected, Fence, Json, SaveOptions, StateForm, StateKey, StateSlot, StateVersion,
};
use treehold_core::error::Result;

/// The operations of the trait that change nothing.
const READS: [&str; 9] = ["capabilities", "exists", "get", "get_list", "keys", "list_version", "session_ids", "users", "version"];

/// An operation that changes states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Save,
    SaveList,
    Delete(Option<StateForm>),
    DeleteSession,
}

impl Change {
    pub(crate) const ALL: [Self; 6] = [
        Self::Save,
        Self::SaveList,
        Self::Delete(None),
        Self::Delete(Some(StateForm::Single)),
        Self::Delete(Some(StateForm::List)),
        Self::DeleteSession,
    ];

    fn method(self) -> &'static str {
        match self {
            Self::Save => "save",
            Self::SaveList => "save_list",
            Self::Delete(_) => "delete",
            Self::DeleteSession => "delete_session",
        }
    }

    /// Returns the form whose version the change may expect; `None` if it takes no expectation.
    pub(crate) fn form(self) -> Option<StateForm> {
        match self {
            Self::Save | Self::Delete(None | Some(StateForm::Single)) => Some(StateForm::Single),
            Self::SaveList | Self::Delete(Some(StateForm::List)) => Some(StateForm::List),
            Self::DeleteSession => None,
        }
    }

    pub(crate) fn is_deletion(self) -> bool {
        matches!(self, Self::Delete(_) | Self::DeleteSession)
    }

    /// Makes the change. Saves write `"changed"`.
    pub(crate) async fn make(
        self,
        states: &dyn AgentStateStore,
        slot: &StateSlot,
        key: &str,
        expected: Expected,
        fence: Option<&Fence>,
    ) -> Result<()> {
        let value = Json::of("changed").unwrap();
        let save = SaveOptions::new().with_expected(expected).with_fence(fence.cloned());
        match self {
            Self::Save => states.save(slot, key, &value, save).await.map(drop),
            Self::SaveList => states.save_list(slot, key, &[value], save).await.map(drop),
            Self::Delete(form) => {
                let options = DeleteOptions::new().with_form(form).with_expected(expected).with_fence(fence.cloned());
                states.delete(slot, key, options).await
            }
            Self::DeleteSession => states.delete_session(slot, DeleteSessionOptions::new().with_fence(fence.cloned())).await,
        }
    }
}

/// A value of a session: its key, its texts, and its version.
pub(crate) type Shown = (StateKey, Vec<String>, Option<StateVersion>);

/// Returns all that a session has.
pub(crate) async fn shown(states: &dyn AgentStateStore, slot: &StateSlot) -> Vec<Shown> {
    let mut shown = Vec::new();
    for key in states.keys(slot).await.unwrap() {
        let (values, version) = match &key {
            StateKey::Single(name) => {
                let found = states.get(slot, name).await.unwrap().unwrap();
                (vec![found.value], found.version)
            }
            StateKey::List(name) => (states.get_list(slot, name).await.unwrap(), states.list_version(slot, name).await.unwrap()),
        };
        shown.push((key, values.iter().map(|value| value.as_str().to_owned()).collect(), version));
    }
    shown
}

/// Asserts that the table has every operation of the trait that changes states. A new operation fails here until it is in the table or
/// among the reads.
pub(crate) fn assert_complete() {
    let source = include_str!("../../src/contract.rs");
    let (_, methods) = source.split_once("pub trait AgentStateStore").unwrap();
    let methods: BTreeSet<&str> =
        methods.lines().filter_map(|line| line.trim().trim_start_matches("async ").strip_prefix("fn ")?.split('(').next()).collect();
    let known: BTreeSet<&str> = Change::ALL.into_iter().map(Change::method).chain(READS).collect();
    assert_eq!(methods, known);
}
