//! What a save writes, by the length of the history. `benches/agent_state` measures times, too.

use crate::cases::support::{KEY, Staged, slot, states, states_with};
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;
use treehold_agent_state::{
    AgentStateStore, AgentStates, AgentStatesOptions, DeleteSessionOptions, Expiry, Json, SaveOptions, StateKey, StateSlot,
};
use treehold_core::scope::Scope;
use treehold_core::work::{self, Owner};
use treehold_store::{MemoryStore, Store};

/// Makes a state of messages of about 400 bytes.
fn state(messages: usize) -> Json {
    let text = "some words of a conversation about tea, ".repeat(8);
    let message = |number: usize| {
        format!(r#"{{"id":"m{number}","name":"agent","role":"USER","content":[{{"type":"text","text":"{text}"}}],"metadata":{{}}}}"#)
    };
    let context: Vec<String> = (0..messages).map(message).collect();
    Json::parse(&format!(r#"{{"session_id":"s1","summary":"","context":[{}],"cur_iter":0}}"#, context.join(","))).unwrap()
}

#[tokio::test]
async fn save_of_a_turn_writes_as_much_after_10_000_messages_as_after_one() {
    for count in [1, 10, 100, 1_000, 10_000] {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let counting = Staged::counting(&store);
        let states = states(&(counting.clone() as Arc<dyn Store>));
        states.save(&slot(), KEY, &state(count), SaveOptions::new()).await.unwrap();
        counting.counts();
        let next = state(count + 2);
        states.save(&slot(), KEY, &next, SaveOptions::new()).await.unwrap();
        let (round_trips, rows, bytes) = counting.counts();
        assert_eq!((round_trips, rows), (2, 3));
        assert!(bytes < 1_800, "{count}: {bytes}");
    }
}

/// Returns whether an operation waits for a thread that does large work, all of which are taken.
async fn waits<T>(owner: &Owner, operation: impl Future<Output = T>) -> bool {
    let operation = pin!(work::as_owner(owner.clone(), None, operation));
    futures::poll!(operation).is_pending()
}

/// Reading and hashing megabytes takes long, so it must not run on a thread of the runtime.
#[tokio::test]
async fn large_values_are_read_and_hashed_on_threads_for_large_work() {
    let all = AgentStates::in_memory();
    let states = all.for_agent("acme", "helper").unwrap();
    let (small, large) = (state(1), state(10_000));
    let slots = ["small", "large"].map(|session| StateSlot::new(None, session).unwrap());
    for (slot, value, count) in [(&slots[0], &small, 1), (&slots[1], &large, 10_000)] {
        states.save(slot, KEY, value, SaveOptions::new()).await.unwrap();
        states.save_list(slot, KEY, &vec![small.clone(); count], SaveOptions::new()).await.unwrap();
    }
    // Refuses values before it asks the store.
    let strict = all.with_options(AgentStatesOptions::new().with_message_bytes_max(100)).for_agent("acme", "helper").unwrap();
    let owner = Owner::from(&Scope::new().with_tenant("acme"));
    let taken: Vec<Sender<()>> = (0..work::cores())
        .map(|_| {
            let (taken, until_dropped) = channel();
            tokio::spawn(work::as_owner(owner.clone(), None, work::run(work::LARGE, move |_| until_dropped.recv().is_ok())));
            taken
        })
        .collect();
    tokio::task::yield_now().await;
    let key = StateKey::Single(KEY.to_owned());
    for (slot, value, count, is_large) in [(&slots[0], &small, 1, false), (&slots[1], &large, 10_000, true)] {
        assert_eq!(waits(&owner, strict.save(slot, KEY, value, SaveOptions::new())).await, is_large);
        let list = vec![small.clone(); count];
        assert_eq!(waits(&owner, strict.save_list(slot, KEY, &list, SaveOptions::new())).await, is_large);
        assert_eq!(waits(&owner, states.get(slot, KEY)).await, is_large);
        assert_eq!(waits(&owner, states.get_list(slot, KEY)).await, is_large);
        assert_eq!(waits(&owner, states.history(slot, &key, 0, 1_000)).await, is_large);
    }
    drop(taken);
}

/// The round trips of saves and deletions, which their docstrings state. Calls at the same time count one by one here.
#[tokio::test]
async fn entries_in_other_partitions_cost_only_the_first_of_a_user() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let counting = Staged::counting(&store);
    let day = Duration::from_secs(24 * 60 * 60);
    let options = AgentStatesOptions::new().with_expiry(Expiry::never().with_prefix("guest-", Some(day)));
    let states = states_with(&(counting.clone() as Arc<dyn Store>), options);
    let save = async |session: &str| {
        let slot = StateSlot::new(Some("ada"), session).unwrap();
        states.save(&slot, KEY, &state(1), SaveOptions::new()).await.unwrap();
        counting.counts().0
    };
    let delete = async |session: &str| {
        let slot = StateSlot::new(Some("ada"), session).unwrap();
        states.delete_session(&slot, DeleteSessionOptions::new()).await.unwrap();
        counting.counts().0
    };
    // An intent and an entry more, and a look for what nobody visits.
    assert_eq!(save("s1").await, 2 + 3, "the user's first session");
    assert_eq!([save("s1").await, save("s2").await, save("s2").await], [2; 3]);
    assert_eq!(save("guest-1").await, 2 + 2, "the first that expires");
    assert_eq!([save("guest-1").await, save("guest-2").await], [2; 2]);
    let first_deletion = delete("s1").await;
    assert_eq!(delete("guest-1").await, first_deletion - 2, "the sweep is scheduled");
    assert_eq!(delete("nothing").await, 2);
    delete("guest-2").await;
    // The directory's entry and proof are read and removed, with a look at intents and sessions.
    assert_eq!(delete("s2").await, first_deletion - 2 + 6, "the last session");
    assert_eq!(first_deletion, 8 + 1 + 2, "one log");
}
