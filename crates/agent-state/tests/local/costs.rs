//! What a save writes, by the length of the history. `benches/agent_state.rs` measures times, too.

use crate::cases::support::{KEY, Staged, slot, states};
use std::sync::Arc;
use treehold_agent_state::{AgentStateStore, Json, SaveOptions};
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
