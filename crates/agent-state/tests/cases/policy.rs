//! What saves do about conflicts, over any state store with versions.

use std::sync::Arc;
use treehold_agent_state::{
    AgentStateStore, CachedStates, ConflictPolicy, DeleteOptions, DeleteSessionOptions, Expected, FoundState, Json, LEGACY_MESSAGES_KEY,
    LEGACY_TOOL_GROUPS_KEY, LoadedState, SaveOptions, StateConflict, StateSaver, StateSlot, StateVersion, load_with_legacy,
};
use treehold_core::error::ErrorKind;

type States = Arc<dyn AgentStateStore>;

const KEY: &str = "agent_state";

fn json(text: &str) -> Json {
    Json::parse(text).unwrap()
}

fn slot(user: Option<&str>) -> StateSlot {
    StateSlot::new(user, "s").unwrap()
}

async fn put(states: &States, slot: &StateSlot, text: &str) {
    states.save(slot, KEY, &json(text), SaveOptions::new()).await.unwrap();
}

async fn loaded(states: &States, slot: &StateSlot) -> LoadedState {
    LoadedState::of(states.get(slot, KEY).await.unwrap().as_ref())
}

async fn text(states: &States, slot: &StateSlot) -> Option<String> {
    states.get(slot, KEY).await.unwrap().map(|found| kept(states, found.value.as_str()))
}

/// Returns a text in the form in which it is compared: without white space if the store does not keep it.
fn kept(states: &States, text: &str) -> String {
    if states.capabilities().exact_text { text.to_owned() } else { value(text).to_string() }
}

fn value(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}

/// Without another writer every policy saves, and the next save of the turn expects what the last one made.
pub(crate) async fn policy_saves_a_state_that_nobody_changed(states: States) {
    for policy in [ConflictPolicy::Overwrite, ConflictPolicy::Fail, ConflictPolicy::AppendMerge] {
        let saver = StateSaver::new(policy);
        let mut base = loaded(&states, &slot(None)).await;
        for number in 0..3 {
            let value = json(&format!(r#"{{"context":[{number}]}}"#));
            let saved = saver.save(&*states, &slot(None), KEY, &value, &base, None).await.unwrap();
            assert_eq!(saved.merged, None);
            base = saved.loaded;
            assert_eq!(base.messages(), 1);
            assert_eq!(text(&states, &slot(None)).await, Some(kept(&states, value.as_str())));
        }
        assert_eq!(saver.conflicts(), 0);
        states.delete(&slot(None), KEY, DeleteOptions::new()).await.unwrap();
    }
}

/// A policy that overwrites replaces what the other writer saved, and counts it.
pub(crate) async fn overwriting_policy_replaces_and_counts_the_conflict(states: States) {
    if !states.capabilities().versions {
        return;
    }
    let saver = StateSaver::new(ConflictPolicy::Overwrite);
    let base = loaded(&states, &slot(None)).await;
    put(&states, &slot(None), r#"{"context":["theirs"]}"#).await;
    let saved = saver.clone().save(&*states, &slot(None), KEY, &json(r#"{"context":["mine"]}"#), &base, None).await.unwrap();
    assert_eq!(saved.loaded.version(), states.version(&slot(None), KEY).await.unwrap());
    assert_eq!(text(&states, &slot(None)).await.as_deref(), Some(r#"{"context":["mine"]}"#));
    assert_eq!(saver.conflicts(), 1);
}

/// A policy that fails writes nothing; its error has the words that callers of AgentScope know.
pub(crate) async fn failing_policy_writes_nothing_and_names_the_state(states: States) {
    if !states.capabilities().versions {
        return;
    }
    let saver = StateSaver::new(ConflictPolicy::Fail);
    for (user, name) in [(None, "null"), (Some("ada"), "ada")] {
        let slot = slot(user);
        let absent = loaded(&states, &slot).await;
        put(&states, &slot, "1").await;
        let first = loaded(&states, &slot).await;
        put(&states, &slot, "2").await;
        let version = first.version().unwrap();
        for (base, number) in [(absent, 0), (first, version.number())] {
            let error = saver.save(&*states, &slot, KEY, &json("3"), &base, None).await.unwrap_err();
            let expected =
                format!("Concurrent modification of session state (userId={name}, sessionId=s, key=agent_state, expectedVersion={number})");
            assert_eq!((error.kind(), error.message()), (ErrorKind::Conflict, expected.as_str()));
            let conflict = StateConflict::of(&error).unwrap();
            assert_eq!((conflict.user.as_deref(), conflict.session.as_str(), conflict.key.as_str()), (user, "s", KEY));
            assert_eq!(conflict.to_string(), expected);
        }
        assert_eq!(text(&states, &slot).await.as_deref(), Some("2"));
    }
    assert_eq!(saver.conflicts(), 4);
}

/// A merge keeps the other writer's state, adds the messages of the turn, and takes the permissions of the turn.
pub(crate) async fn merging_policy_adds_the_messages_of_the_turn(states: States) {
    if !states.capabilities().versions {
        return;
    }
    let permissions = r#""permission_context":{"mode":"bypass"}"#;
    for (base, theirs, mine, merged) in [
        (
            r#"{"context":[1]}"#,
            r#"{"context":[1,2],"x":1}"#,
            r#"{"context":[1,3,4],"x":2}"#,
            Some(r#"{"context":[1,2,3,4],"x":1}"#.to_owned()),
        ),
        (r#"{"context":[]}"#, r#"{ "context": [ 2 ] }"#, r#"{"context":[3]}"#, Some(r#"{ "context": [ 2,3 ] }"#.to_owned())),
        (r#"{"context":[1]}"#, r#"{"context":[1, 2]}"#, r#"{"context":[1,3]}"#, Some(r#"{"context":[1, 2, 3]}"#.to_owned())),
        (r#"{"context":[1]}"#, r#"{"context":[1,2, 5]}"#, r#"{"context":[1,3]}"#, Some(r#"{"context":[1,2, 5,3]}"#.to_owned())),
        (r#"{"context":[1]}"#, r#"{"context":[]}"#, r#"{"context":[1,3]}"#, Some(r#"{"context":[3]}"#.to_owned())),
        // The permissions of the turn replace the others, or are added.
        (
            r#"{"context":[1]}"#,
            r#"{"permission_context":{"mode":"default"},"context":[1,2]}"#,
            &format!(r#"{{"context":[1],{permissions}}}"#),
            Some(format!(r#"{{{permissions},"context":[1,2]}}"#)),
        ),
        (
            r#"{"context":[1]}"#,
            r#"{"context":[1,2]}"#,
            &format!(r#"{{"context":[1,3],{permissions}}}"#),
            Some(format!(r#"{{"context":[1,2,3],{permissions}}}"#)),
        ),
        // A turn that compacted or edited what it loaded, or whose state has no messages, is refused.
        (r#"{"context":[1,2]}"#, r#"{"context":[1,2,3]}"#, r#"{"context":["summary",2,4]}"#, None),
        (r#"{"context":[1,2]}"#, r#"{"context":[1,2,3]}"#, r#"{"context":[1]}"#, None),
        (r#"{"context":[1]}"#, "7", r#"{"context":[1,2]}"#, None),
        (r#"{"context":[1]}"#, r#"{"context":[1,2]}"#, "7", None),
    ] {
        let saver = StateSaver::new(ConflictPolicy::AppendMerge);
        put(&states, &slot(None), base).await;
        let before = loaded(&states, &slot(None)).await;
        put(&states, &slot(None), theirs).await;
        let saved = saver.save(&*states, &slot(None), KEY, &json(mine), &before, None).await;
        assert_eq!(saver.conflicts(), 1);
        match merged {
            Some(merged) => {
                let saved = saved.unwrap();
                assert_eq!(saved.merged.map(|merged| kept(&states, merged.as_str())), Some(kept(&states, &merged)));
                assert_eq!(text(&states, &slot(None)).await, Some(kept(&states, &merged)));
                assert_eq!(saved.loaded, loaded(&states, &slot(None)).await, "the turn goes on from the merged state");
            }
            None => {
                let error = saved.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Conflict, "{mine}");
                assert!(error.message().starts_with("Concurrent modification of session state"), "{error}");
                assert_eq!(text(&states, &slot(None)).await, Some(kept(&states, theirs)));
            }
        }
    }
}

/// A merge of a state that was deleted meanwhile is refused: it would bring back what someone deleted.
pub(crate) async fn merge_with_a_deleted_state_is_refused(states: States) {
    if !states.capabilities().versions {
        return;
    }
    put(&states, &slot(None), r#"{"context":[1]}"#).await;
    let base = loaded(&states, &slot(None)).await;
    states.delete_session(&slot(None), DeleteSessionOptions::new()).await.unwrap();
    for policy in [ConflictPolicy::Fail, ConflictPolicy::AppendMerge] {
        let saver = StateSaver::new(policy);
        let error = saver.save(&*states, &slot(None), KEY, &json(r#"{"context":[1,2]}"#), &base, None).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
        assert!(!states.exists(&slot(None)).await.unwrap());
    }
}

/// Turns that merge at the same time lose no message: each is saved or fails.
pub(crate) async fn concurrent_merges_lose_no_message(states: States) {
    if !states.capabilities().versions {
        return;
    }
    put(&states, &slot(None), r#"{"context":[0]}"#).await;
    let base = loaded(&states, &slot(None)).await;
    let turns: Vec<_> = (1..=6)
        .map(|number| {
            let (states, base) = (states.clone(), base.clone());
            tokio::spawn(async move {
                let saver = StateSaver::new(ConflictPolicy::AppendMerge);
                let mine = json(&format!(r#"{{"context":[0,{number}]}}"#));
                (number, saver.save(&*states, &slot(None), KEY, &mine, &base, None).await)
            })
        })
        .collect();
    let mut saved = vec![0];
    for turn in turns {
        let (number, outcome) = turn.await.unwrap();
        match outcome {
            Ok(_) => saved.push(number),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict),
        }
    }
    let stored: serde_json::Value = states.get(&slot(None), KEY).await.unwrap().unwrap().value.view().unwrap();
    let mut stored: Vec<i32> = serde_json::from_value(stored["context"].clone()).unwrap();
    stored.sort_unstable();
    saved.sort_unstable();
    assert_eq!(stored, saved);
    assert!(saved.len() >= 2);
}

/// A cache answers as the store does, whoever else saves or deletes.
pub(crate) async fn cache_never_hides_the_save_of_another_process(states: States) {
    let cached = CachedStates::new(states.clone()).with_entries_max(2);
    let capabilities = (cached.capabilities(), cached.inner().capabilities());
    assert_eq!(capabilities.0, capabilities.1);
    for number in 0..4 {
        let value = json(&format!(r#"{{"context":[{number}]}}"#));
        states.save(&slot(None), KEY, &value, SaveOptions::new()).await.unwrap();
        for _ in 0..2 {
            assert_eq!(cached.get(&slot(None), KEY).await.unwrap(), states.get(&slot(None), KEY).await.unwrap());
        }
        let value = json(&format!(r#"{{"context":[{number},1]}}"#));
        let version = cached.save(&slot(None), KEY, &value, SaveOptions::new()).await.unwrap();
        let found = cached.get(&slot(None), KEY).await.unwrap().unwrap();
        assert_eq!((kept(&states, found.value.as_str()), found.version), (kept(&states, value.as_str()), version));
    }
    for by_cache in [true, false] {
        cached.save(&slot(None), KEY, &json("1"), SaveOptions::new()).await.unwrap();
        let deleter: &dyn AgentStateStore = if by_cache { &cached } else { &*states };
        deleter.delete_session(&slot(None), DeleteSessionOptions::new()).await.unwrap();
        assert_eq!(cached.get(&slot(None), KEY).await.unwrap(), None);
        assert!(!cached.exists(&slot(None)).await.unwrap());
    }
    if states.capabilities().versions {
        let stale = SaveOptions::new().with_expected(Expected::Version(StateVersion::new(77).unwrap()));
        assert_eq!(cached.save(&slot(None), KEY, &json("1"), stale).await.unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!(cached.get(&slot(None), KEY).await.unwrap(), None);
    }
}

/// What earlier versions stored is read while the present key is absent, and no longer once it exists.
pub(crate) async fn legacy_keys_are_read_until_the_present_one_exists(states: States) {
    assert_eq!(load_with_legacy(&*states, &slot(None)).await.unwrap(), None);
    for (messages, groups) in
        [(&["{\"a\": 1}", "2"][..], None), (&[], Some(r#"{"activeGroups":[]}"#)), (&["1"], Some(r#"{"activeGroups":["x"]}"#))]
    {
        let messages: Vec<Json> = messages.iter().map(|message| json(message)).collect();
        states.save_list(&slot(None), LEGACY_MESSAGES_KEY, &messages, SaveOptions::new()).await.unwrap();
        if let Some(groups) = groups {
            states.save(&slot(None), LEGACY_TOOL_GROUPS_KEY, &json(groups), SaveOptions::new()).await.unwrap();
        }
        let Some(FoundState::Legacy(legacy)) = load_with_legacy(&*states, &slot(None)).await.unwrap() else { panic!("it is there") };
        let kept_all = |messages: &[Json]| messages.iter().map(|message| kept(&states, message.as_str())).collect::<Vec<_>>();
        assert_eq!(kept_all(&legacy.messages), kept_all(&messages));
        assert_eq!(legacy.activated_groups.is_some(), groups.is_some());
        let folded = legacy.to_json(&slot(None)).unwrap();
        states.save(&slot(None), KEY, &folded, SaveOptions::new()).await.unwrap();
        let Some(FoundState::Current(found)) = load_with_legacy(&*states, &slot(None)).await.unwrap() else { panic!("it was saved") };
        assert_eq!(kept(&states, found.value.as_str()), kept(&states, folded.as_str()));
        states.delete_session(&slot(None), DeleteSessionOptions::new()).await.unwrap();
    }
    states.save(&slot(None), LEGACY_TOOL_GROUPS_KEY, &json("[1]"), SaveOptions::new()).await.unwrap();
    assert_eq!(load_with_legacy(&*states, &slot(None)).await.unwrap_err().kind(), ErrorKind::Corrupt);
}
