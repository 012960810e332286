//! Random operations by several writers against a map.

use crate::cases::support::{due, messages, state, sweep_later, visits};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use treehold_agent_state::{
    AgentStateStore, AgentStates, AgentStatesOptions, CachedStates, DeleteOptions, DeleteSessionOptions, Expected, Json, SaveOptions,
    StateConflict, StateKey, StateSlot, StateVersion,
};
use treehold_core::error::ErrorKind;
use treehold_store::{MemoryStore, Store};

const USERS: [Option<&str>; 2] = [Some("ada"), None];
const SESSIONS: [&str; 2] = ["s", "s1"];
const KEYS: [&str; 2] = ["k", "k2"];
const WRITERS: usize = 3;

#[derive(Debug, Clone)]
enum Operation {
    /// Saves what the version that the writer saw last allows.
    SaveSeen(Vec<u8>),
    Save(Vec<u8>),
    Create(Vec<u8>),
    /// Saves a value without messages.
    SaveWhole(u8),
    SaveList(Vec<u8>),
    Load,
    Delete,
    DeleteSession,
    Sweep,
}

fn operation() -> impl Strategy<Value = (usize, usize, usize, Operation)> {
    let messages = || prop::collection::vec(0_u8..5, 0..6);
    let kinds = prop_oneof![
        4 => messages().prop_map(Operation::SaveSeen),
        2 => messages().prop_map(Operation::Save),
        1 => messages().prop_map(Operation::Create),
        1 => any::<u8>().prop_map(Operation::SaveWhole),
        2 => messages().prop_map(Operation::SaveList),
        3 => Just(Operation::Load),
        1 => Just(Operation::Delete),
        1 => Just(Operation::DeleteSession),
        1 => Just(Operation::Sweep),
    ];
    (0..WRITERS, 0..USERS.len() * SESSIONS.len(), 0..KEYS.len(), kinds)
}

/// What the model knows: values with their versions, and the last versions of deleted ones.
#[derive(Default)]
struct Model {
    values: BTreeMap<(usize, StateKey), (Vec<Json>, u64)>,
    floors: BTreeMap<(usize, StateKey), u64>,
    session_floors: BTreeMap<usize, u64>,
}

impl Model {
    fn version(&self, place: &(usize, StateKey)) -> Option<StateVersion> {
        self.values.get(place).and_then(|(_, version)| StateVersion::new(*version))
    }

    fn put(&mut self, place: (usize, StateKey), value: Vec<Json>) -> u64 {
        let floor = self.floors.get(&place).max(self.session_floors.get(&place.0)).copied().unwrap_or_default();
        let version = self.values.get(&place).map_or(floor, |(_, version)| *version) + 1;
        self.values.insert(place, (value, version));
        version
    }

    fn delete(&mut self, place: &(usize, StateKey)) {
        if let Some((_, version)) = self.values.remove(place) {
            self.floors.insert(place.clone(), version);
        }
    }

    fn delete_session(&mut self, slot: usize) {
        let last = self.values.iter().filter(|((owner, _), _)| *owner == slot).map(|(_, (_, version))| *version).max();
        if let Some(last) = last {
            self.session_floors.insert(slot, last);
        }
        self.values.retain(|(owner, _), _| *owner != slot);
    }
}

fn numbers(numbers: &[u8]) -> Json {
    state(numbers.iter().map(|number| u64::from(*number)))
}

async fn run(operations: &[(usize, usize, usize, Operation)], retention: Option<Duration>) {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let options = AgentStatesOptions::new().with_retention(retention).with_page_max(2);
    let all = AgentStates::new(store.clone()).with_options(options);
    let direct = all.for_agent("acme", "helper").unwrap();
    let cached = CachedStates::new(direct.clone()).with_entries_max(3);
    let writers: [&dyn AgentStateStore; WRITERS] = [&direct, &cached, &direct];
    let slots: Vec<StateSlot> =
        USERS.iter().flat_map(|user| SESSIONS.iter().map(|session| StateSlot::new(*user, *session).unwrap())).collect();
    let mut model = Model::default();
    let mut seen: BTreeMap<(usize, usize, usize), Option<StateVersion>> = BTreeMap::new();
    for (writer, slot, key, operation) in operations {
        let (states, at, name) = (writers[*writer], &slots[*slot], KEYS[*key]);
        let single = (*slot, StateKey::Single(name.to_owned()));
        let list = (*slot, StateKey::List(name.to_owned()));
        let known = seen.entry((*writer, *slot, *key)).or_default();
        let (value, expected) = match operation {
            Operation::SaveSeen(messages) => (Some(numbers(messages)), known.map_or(Expected::Absent, Expected::Version)),
            Operation::Save(messages) => (Some(numbers(messages)), Expected::Any),
            Operation::Create(messages) => (Some(numbers(messages)), Expected::Absent),
            Operation::SaveWhole(number) => (Some(Json::of(number).unwrap()), Expected::Any),
            _ => (None, Expected::Any),
        };
        match operation {
            Operation::SaveSeen(_) | Operation::Save(_) | Operation::Create(_) | Operation::SaveWhole(_) => {
                let value = value.unwrap();
                let current = model.version(&single);
                match states.save(at, name, &value, SaveOptions::new().with_expected(expected)).await {
                    Ok(version) => {
                        assert!(expected.admits(current), "{operation:?}");
                        assert_eq!(version, StateVersion::new(model.put(single.clone(), vec![value])));
                        *known = version;
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Conflict);
                        assert_eq!(StateConflict::of(&error).unwrap().current, current);
                        assert!(!expected.admits(current), "{operation:?}");
                    }
                }
            }
            Operation::SaveList(values) => {
                let values: Vec<Json> = values.iter().map(|value| Json::of(value).unwrap()).collect();
                let version = states.save_list(at, name, &values, SaveOptions::new()).await.unwrap();
                assert_eq!(version, StateVersion::new(model.put(list.clone(), values)));
            }
            Operation::Load => {
                let found = states.get(at, name).await.unwrap();
                *known = found.and_then(|found| found.version);
            }
            Operation::Delete => {
                states.delete(at, name, DeleteOptions::new()).await.unwrap();
                model.delete(&single);
                model.delete(&list);
            }
            Operation::DeleteSession => {
                states.delete_session(at, DeleteSessionOptions::new()).await.unwrap();
                model.delete_session(*slot);
            }
            Operation::Sweep => drop(all.sweep(100).await.unwrap()),
        }
        // Every writer sees what the model has.
        let found = states.get(at, name).await.unwrap();
        assert_eq!(found.as_ref().and_then(|found| found.version), model.version(&single));
        assert_eq!(found.map(|found| vec![found.value]), model.values.get(&single).map(|(value, _)| value.clone()));
        assert_eq!(states.version(at, name).await.unwrap(), model.version(&single));
        assert_eq!(states.get_list(at, name).await.unwrap(), model.values.get(&list).map(|(value, _)| value.clone()).unwrap_or_default());
        let keys: Vec<StateKey> = model.values.keys().filter(|(owner, _)| owner == slot).map(|(_, key)| key.clone()).collect();
        assert_eq!(states.exists(at).await.unwrap(), !keys.is_empty());
        assert_eq!(states.keys(at).await.unwrap(), keys);
    }
    for (index, user) in USERS.iter().enumerate() {
        let lives = |slot: &usize| model.values.keys().any(|(owner, _)| owner == slot);
        let slots = index * SESSIONS.len()..(index + 1) * SESSIONS.len();
        let live: Vec<String> = slots.filter(lives).map(|slot| SESSIONS[slot % SESSIONS.len()].to_owned()).collect();
        assert_eq!(direct.session_ids(*user, None, 10).await.unwrap().sessions, live);
    }
    assert_eq!(due(&store).await, 0, "every deletion has removed its rows");
    sweep_later(&store).await;
    assert_eq!(visits(&store).await, 0, "nothing is left to do");
    if retention == Some(Duration::ZERO) {
        // Only messages of present values remain.
        let state_messages = |value: &Json| {
            let value: serde_json::Value = value.view().unwrap();
            value.get("context").and_then(|context| context.as_array()).map_or(0, Vec::len)
        };
        let expected: usize = model
            .values
            .iter()
            .map(|((_, key), (value, _))| match key {
                StateKey::Single(_) => value.iter().map(state_messages).sum(),
                StateKey::List(_) => value.len(),
            })
            .sum();
        assert_eq!(messages(&store).await, expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn operations_of_several_writers_match_the_model(
        operations in prop::collection::vec(operation(), 1..60),
        without_retention in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(run(&operations, without_retention.then_some(Duration::ZERO)));
    }
}
