//! The context of a state as a log.

use crate::cases::support::{KEY, Staged, Step, due, json, load, messages, partition, save, slot, state, states, states_with, sweep_later};
use std::sync::Arc;
use std::time::Duration;
use treehold_agent_state::{
    AgentStateStore, AgentStatesOptions, DeleteSessionOptions, Expected, JSON_DEPTH_MAX, Json, SaveOptions, StateKey, StoreStates,
    list_text,
};
use treehold_core::error::ErrorKind;
use treehold_store::Store;

/// Returns the messages that a value had, and whether it has them now.
async fn history(states: &StoreStates, limit: usize) -> Vec<(String, bool)> {
    let (mut all, mut from) = (Vec::new(), 0);
    loop {
        let page = states.history(&slot(), &StateKey::Single(KEY.to_owned()), from, limit).await.unwrap();
        assert!(page.entries.len() <= limit);
        assert!(page.entries.iter().all(|entry| entry.position >= from));
        all.extend(page.entries.into_iter().map(|entry| (entry.message.as_str().to_owned(), entry.is_current)));
        match page.next {
            Some(next) => {
                assert!(next > from, "pages advance");
                from = next;
            }
            None => return all,
        }
    }
}

/// A save that adds messages writes them and the head, and reads the head, however long the history is.
pub(crate) async fn save_writes_new_messages_and_the_head(store: Arc<dyn Store>) {
    let counting = Staged::counting(&store);
    let states = states(&(counting.clone() as Arc<dyn Store>));
    save(&states, &state(0..1_000)).await;
    counting.counts();
    for end in 1_001..1_004 {
        save(&states, &state(0..end)).await;
        let (round_trips, rows, bytes) = counting.counts();
        assert_eq!((round_trips, rows), (2, 2));
        assert!(bytes < 1_000, "{bytes}");
    }
    assert_eq!(load(&states).await, Some(state(0..1_003)));
    let (round_trips, ..) = counting.counts();
    assert!(round_trips <= 3, "{round_trips}");
    save(&states, &state(0..1_003)).await;
    assert_eq!(counting.counts().1, 1, "an unchanged state writes the head only");
}

/// A compaction writes its summary; the messages that it keeps stay where they are, and those that it removes stay in the history.
pub(crate) async fn compaction_writes_the_summary_and_keeps_the_history(store: Arc<dyn Store>) {
    let counting = Staged::counting(&store);
    let states = states(&(counting.clone() as Arc<dyn Store>));
    save(&states, &state(0..100)).await;
    counting.counts();
    let compacted = state([1_000].into_iter().chain(80..102));
    save(&states, &compacted).await;
    let (_, rows, bytes) = counting.counts();
    assert_eq!(rows, 1 + 3, "the head, the summary and two new messages");
    assert!(bytes < 1_500, "{bytes}");
    assert_eq!(load(&states).await, Some(compacted));
    let all = history(&states, 7).await;
    assert_eq!(all.len(), 103);
    let current: Vec<&str> = all.iter().filter(|(_, is_current)| *is_current).map(|(message, _)| message.as_str()).collect();
    assert_eq!(current.len(), 23);
    assert!(!all[79].1 && all[80].1 && all[100].1);
}

/// Every kind of change keeps the exact text: added, edited, removed, moved and repeated messages, other white space, other members.
pub(crate) async fn any_change_keeps_the_exact_text(store: Arc<dyn Store>) {
    let states = states(&store);
    let texts = [
        r#"{"context":[1,2,3]}"#,
        r#"{"context":[1,2,3,4,5]}"#,
        r#"{"context":[1, 2, 3, 4, 5, 6]}"#,
        r#"{"context":[9,3, 4, 5]}"#,
        r#"{"context":[9,3,4,5],"x":1}"#,
        r#"{"x":2,"context":[5,4,3,9]}"#,
        r#"{"context":[3,3,3,3]}"#,
        r#"{"context":[]}"#,
        r#"{"context":[ ]}"#,
        r#"{"context":[1]}"#,
        r#"{"context":null}"#,
        r#"{"context":[1,2]}"#,
        "7",
        r#"{"context":[ {"a": [1, 2]},{"a": [1, 2]} ]}"#,
    ];
    for (index, text) in texts.iter().enumerate() {
        assert_eq!(save(&states, &json(text)).await, index as u64 + 1);
        assert_eq!(load(&states).await.unwrap().as_str(), *text);
    }
}

/// Without retention, messages that leave the window are removed at once. A reader that comes too late for them reads the new window.
pub(crate) async fn reader_overtaken_by_a_compaction_reads_the_new_state(store: Arc<dyn Store>) {
    let options = AgentStatesOptions::new().with_retention(Some(Duration::ZERO));
    let writer = states_with(&store, options.clone());
    save(&writer, &state(0..10)).await;
    let other = writer.clone();
    let staged = Staged::before(&store, Step::Scan, 0, move || async move {
        save(&other, &state([100])).await;
    });
    let reader = states_with(&(staged.clone() as Arc<dyn Store>), options);
    assert_eq!(load(&reader).await, Some(state([100])));
    assert!(staged.has_run());
    assert_eq!(history(&writer, 100).await, [(r#"{"id":100}"#.to_owned(), true)]);
    assert_eq!(messages(&store).await, 1);
}

/// A save that compacts while another one compacts too, and removes the messages, is planned again.
pub(crate) async fn save_overtaken_by_a_compaction_is_planned_again(store: Arc<dyn Store>) {
    let options = AgentStatesOptions::new().with_retention(Some(Duration::ZERO));
    let writer = states_with(&store, options.clone());
    for step in [Step::Scan, Step::Commit] {
        save(&writer, &state(0..10)).await;
        let other = writer.clone();
        let staged = Staged::before(&store, step, 0, move || async move {
            save(&other, &state([100])).await;
        });
        let late = states_with(&(staged.clone() as Arc<dyn Store>), options.clone());
        save(&late, &state([200, 8, 9])).await;
        assert!(staged.has_run(), "{step:?}");
        assert_eq!(load(&writer).await, Some(state([200, 8, 9])), "{step:?}");
    }
}

/// A save over the limits of one commit takes effect as a whole, and the next ones add to it.
pub(crate) async fn large_save_takes_effect_as_a_whole(store: Arc<dyn Store>) {
    let states = states(&store);
    let many = state(0..4_500);
    save(&states, &many).await;
    assert_eq!(load(&states).await, Some(many));
    save(&states, &state(0..4_501)).await;
    assert_eq!(load(&states).await, Some(state(0..4_501)));
    // One that replaces everything.
    let other = state(10_000..14_500);
    save(&states, &other).await;
    save(&states, &state(10_000..14_502)).await;
    assert_eq!(load(&states).await, Some(state(10_000..14_502)));
    let all = history(&states, 1_000).await;
    assert_eq!((all.len(), all.iter().filter(|(_, is_current)| *is_current).count()), (9_003, 4_502));
    assert_eq!(due(&store).await, 0, "nothing remains to be done");
}

/// A large save that fails at any of its commits leaves the state as it was, or took effect as a whole. A sweep removes the rest.
pub(crate) async fn large_save_that_fails_leaves_the_old_state_or_the_new(store: Arc<dyn Store>) {
    let writer = states(&store);
    let (before, after) = (state([1, 2]), state(100..2_200));
    for after_effect in [false, true] {
        for commit in 0.. {
            writer.delete_session(&slot(), DeleteSessionOptions::new()).await.unwrap();
            save(&writer, &before).await;
            let staged = Staged::failing_from(&store, commit, after_effect);
            let failing = states(&(staged.clone() as Arc<dyn Store>));
            let saved = failing.save(&slot(), KEY, &after, SaveOptions::new()).await;
            if !staged.has_run() {
                saved.unwrap();
                assert!(commit >= 3, "the save has several commits");
                break;
            }
            let error = saved.unwrap_err();
            let found = load(&writer).await;
            assert!(found.as_ref() == Some(&before) || (after_effect && found.as_ref() == Some(&after)), "{commit} {after_effect}");
            assert!(error.may_have_effect() || found.as_ref() == Some(&before), "{commit}");
            // The sweep of the next day removes what the save left, and nothing else.
            sweep_later(&store).await;
            assert_eq!((load(&writer).await, due(&store).await), (found.clone(), 0), "{commit} {after_effect}");
            let expected = if found.as_ref() == Some(&before) { 2 } else { 2 + 2_100 };
            assert_eq!(messages(&store).await, expected, "{commit} {after_effect}");
        }
    }
}

/// A large save whose messages a sweep removed meanwhile fails without an effect.
pub(crate) async fn large_save_that_a_sweep_ended_writes_nothing(store: Arc<dyn Store>) {
    let writer = states(&store);
    save(&writer, &state([1])).await;
    // After those that schedule the sweep and list the save: the two that stage messages, and the one that writes the head.
    for commit in [3, 4, 5] {
        let swept = store.clone();
        let staged = Staged::before(&store, Step::Commit, commit, move || async move {
            assert_eq!(sweep_later(&swept).await, 1);
        });
        let late = states(&(staged.clone() as Arc<dyn Store>));
        // The save starts again where it only lost its messages.
        let saved = late.save(&slot(), KEY, &state(100..2_200), SaveOptions::new()).await;
        assert!(staged.has_run());
        match saved {
            Ok(_) => assert_eq!((load(&writer).await, commit), (Some(state(100..2_200)), 5)),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Deadline);
                assert_eq!(load(&writer).await, Some(state([1])));
                assert!(commit < 5);
            }
        }
        assert_eq!(due(&store).await, 0);
        save(&writer, &state([1])).await;
    }
}

/// Of two large saves that expect the same version, one wins, and the other leaves no messages.
pub(crate) async fn large_save_that_loses_a_race_leaves_no_messages(store: Arc<dyn Store>) {
    let states = states_with(&store, AgentStatesOptions::new().with_retention(Some(Duration::ZERO)));
    let create = SaveOptions::new().with_expected(Expected::Absent);
    let (one, two) = (state(0..2_100), state(5_000..7_100));
    let slot = slot();
    let (first, second) = tokio::join!(states.save(&slot, KEY, &one, create.clone()), states.save(&slot, KEY, &two, create.clone()));
    let (won, lost) = if first.is_ok() { (one, second) } else { (two, first) };
    assert_eq!(lost.unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(load(&states).await, Some(won));
    assert_eq!((messages(&store).await, due(&store).await), (2_100, 0));
}

/// Lists are logs, too.
pub(crate) async fn list_writes_only_new_elements(store: Arc<dyn Store>) {
    let counting = Staged::counting(&store);
    let states = states(&(counting.clone() as Arc<dyn Store>));
    let values: Vec<Json> = (0..300).map(|number| json(&number.to_string())).collect();
    states.save_list(&slot(), "l", &values[..299], SaveOptions::new()).await.unwrap();
    counting.counts();
    states.save_list(&slot(), "l", &values, SaveOptions::new()).await.unwrap();
    assert_eq!(counting.counts().1, 2);
    assert_eq!(states.get_list(&slot(), "l").await.unwrap(), values);
}

/// Values over the limits are refused before anything is written.
pub(crate) async fn values_over_the_limits_are_refused_and_write_nothing(store: Arc<dyn Store>) {
    let options = AgentStatesOptions::new().with_value_bytes_max(1_000).with_message_bytes_max(100).with_keys_max(2).with_key_bytes_max(3);
    let states = states_with(&store, options);
    save_key(&states, "a", "1").await;
    let version = store.current_version(&partition()).await.unwrap();
    let long = format!("\"{}\"", "x".repeat(100));
    let refused = [
        ("a", format!("\"{}\"", "x".repeat(1_000))),
        ("a", format!(r#"{{"context":[1,{long}]}}"#)),
        ("a", format!(r#"{{"context":[{}]}}"#, vec!["1"; 500].join(","))),
    ];
    for (key, text) in &refused {
        let error = states.save(&slot(), key, &json(text), SaveOptions::new()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLarge, "{text}");
    }
    let error = states.save_list(&slot(), "a", &[json(&long)], SaveOptions::new()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    let error = states.save(&slot(), "long", &json("1"), SaveOptions::new()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert_eq!(store.current_version(&partition()).await.unwrap(), version);
    save_key(&states, "b", "1").await;
    let error = states.save(&slot(), "c", &json("1"), SaveOptions::new()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    assert_eq!(states.keys(&slot()).await.unwrap().len(), 2);
    save_key(&states, "b", "2").await;
}

/// A list is also read as one array, which nests one level deeper than its elements.
pub(crate) async fn list_whose_array_would_nest_too_deep_is_refused(store: Arc<dyn Store>) {
    let states = states(&store);
    let nested = |depth: usize| json(&format!("{}{}", "[".repeat(depth), "]".repeat(depth)));
    states.save_list(&slot(), "k", &[json("1"), nested(JSON_DEPTH_MAX - 1)], SaveOptions::new()).await.unwrap();
    let version = store.current_version(&partition()).await.unwrap();
    let error = states.save_list(&slot(), "k", &[json("1"), nested(JSON_DEPTH_MAX)], SaveOptions::new()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().starts_with("element 1 of the list nests deeper than 99 levels"), "{error}");
    assert_eq!(store.current_version(&partition()).await.unwrap(), version);
    let found = states.get_list(&slot(), "k").await.unwrap();
    assert_eq!(list_text(&found).unwrap().as_str(), format!("[1,{}]", nested(JSON_DEPTH_MAX - 1)));
    // A single value is not put into an array.
    states.save(&slot(), "k", &nested(JSON_DEPTH_MAX), SaveOptions::new()).await.unwrap();
}

async fn save_key(states: &StoreStates, key: &str, text: &str) {
    states.save(&slot(), key, &json(text), SaveOptions::new()).await.unwrap();
}
