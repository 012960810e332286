//! The rules of the trait `AgentStateStore`.

use super::changes::{Change, Shown, assert_complete, shown};
use std::collections::BTreeSet;
use std::sync::Arc;
use treehold_agent_state::{
    AgentStateStore, DeleteOptions, DeleteSessionOptions, Expected, Fence, Json, SaveOptions, StateConflict, StateForm, StateKey,
    StateSlot, StateVersion,
};
use treehold_core::error::ErrorKind;
use treehold_core::ops::Version;
use treehold_store::Namespace;

type States = Arc<dyn AgentStateStore>;

fn json(text: &str) -> Json {
    Json::parse(text).unwrap()
}

fn slot(user: Option<&str>, session: &str) -> StateSlot {
    StateSlot::new(user, session).unwrap()
}

fn ada(session: &str) -> StateSlot {
    slot(Some("ada"), session)
}

fn expecting(expected: Expected) -> SaveOptions {
    SaveOptions::new().with_expected(expected)
}

fn version(number: u64) -> Option<StateVersion> {
    StateVersion::new(number)
}

async fn save(states: &States, slot: &StateSlot, key: &str, text: &str) -> Option<StateVersion> {
    states.save(slot, key, &json(text), SaveOptions::new()).await.unwrap()
}

async fn text(states: &States, slot: &StateSlot, key: &str) -> Option<String> {
    states.get(slot, key).await.unwrap().map(|found| found.value.as_str().to_owned())
}

async fn list(states: &States, slot: &StateSlot, key: &str) -> Vec<String> {
    states.get_list(slot, key).await.unwrap().iter().map(|value| value.as_str().to_owned()).collect()
}

/// Returns texts in the form in which they are compared: as they are if the store keeps the text of values.
fn comparable<T: AsRef<str>>(states: &States, texts: impl IntoIterator<Item = T>) -> Vec<String> {
    let exact = states.capabilities().exact_text;
    let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap().to_string();
    texts.into_iter().map(|text| if exact { text.as_ref().to_owned() } else { value(text.as_ref()) }).collect()
}

/// What does not exist is absent in every operation, and deleting it is not an error.
pub(crate) async fn absent_values_are_absent_in_every_operation(states: States) {
    let nowhere = ada("nowhere");
    assert_eq!(states.get(&nowhere, "k").await.unwrap(), None);
    assert_eq!(states.get_list(&nowhere, "k").await.unwrap(), []);
    assert_eq!(states.version(&nowhere, "k").await.unwrap(), None);
    assert!(!states.exists(&nowhere).await.unwrap());
    assert_eq!(states.keys(&nowhere).await.unwrap(), []);
    states.delete(&nowhere, "k", DeleteOptions::new()).await.unwrap();
    states.delete_session(&nowhere, DeleteSessionOptions::new()).await.unwrap();
    assert_eq!(states.session_ids(Some("ada"), None, 10).await.unwrap().sessions, Vec::<String>::new());
    assert_eq!(states.session_ids(None, None, 10).await.unwrap().sessions, Vec::<String>::new());
    assert_eq!(states.users(None, 10).await.unwrap().users, []);
    assert!(!states.exists(&nowhere).await.unwrap());
}

/// The text of a value comes back as it was saved: white space, order, numbers and escapes included.
pub(crate) async fn values_survive_byte_for_byte(states: States) {
    let texts = [
        r#"{"context":[]}"#,
        r#"{ "session_id" : "s", "context" : [ {"a":1.0}, {"b":1e2} ] , "z":"\u00e9é" }"#,
        "{\n  \"summary\": \"\",\n  \"context\": [\n    {\n      \"x\": []\n    },\n    {}\n  ]\n}",
        r#"{"context":[1,2,  3]}"#,
        r#"{"context":[{"context":[{}]}],"other":{"context":[4]}}"#,
        r#"{"context":{"not":"an array"}}"#,
        r#"{"a":12345678901234567890123,"b":-0.0}"#,
        r#"[1,[2]]"#,
        "null",
        r#""text with \u0000 and \n""#,
    ];
    for (index, value) in texts.iter().enumerate() {
        let key = format!("k{index}");
        save(&states, &ada("s"), &key, value).await;
        let same = comparable(&states, [value]);
        assert_eq!(comparable(&states, text(&states, &ada("s"), &key).await), same);
        // The same key takes every other form, too.
        save(&states, &ada("s"), "one", value).await;
        assert_eq!(comparable(&states, text(&states, &ada("s"), "one").await), same);
    }
}

/// The versions of a key are 1, 2, 3 and so on; each save returns its own.
pub(crate) async fn versions_count_from_one_for_each_key(states: States) {
    if !states.capabilities().versions {
        assert_eq!(save(&states, &ada("s"), "k", "1").await, None);
        assert_eq!(states.version(&ada("s"), "k").await.unwrap(), None);
        return;
    }
    for number in 1..=3 {
        assert_eq!(save(&states, &ada("s"), "k", &number.to_string()).await, version(number));
        assert_eq!(states.version(&ada("s"), "k").await.unwrap(), version(number));
        assert_eq!(states.get(&ada("s"), "k").await.unwrap().unwrap().version, version(number));
    }
    assert_eq!(save(&states, &ada("s"), "other", "1").await, version(1));
    assert_eq!(save(&states, &ada("s2"), "k", "1").await, version(1));
    let expected = expecting(Expected::Version(version(3).unwrap()));
    assert_eq!(states.save(&ada("s"), "k", &json("4"), expected).await.unwrap(), version(4));
}

/// A save that expects another version fails with the stored version, and writes nothing.
pub(crate) async fn save_with_a_wrong_expectation_writes_nothing(states: States) {
    if !states.capabilities().versions {
        return;
    }
    save(&states, &ada("s"), "k", "1").await;
    save(&states, &ada("s"), "k", "2").await;
    for number in [1, 3, u64::MAX] {
        let expected = Expected::Version(version(number).unwrap());
        let error = states.save(&ada("s"), "k", &json("9"), expecting(expected)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{number}");
        assert_eq!(error.current_version().map(|current| current.number()), Some(2), "{number}");
        let conflict = StateConflict::of(&error).unwrap();
        assert_eq!((conflict.expected, conflict.current), (expected, version(2)));
    }
    let missing = expecting(Expected::Version(version(1).unwrap()));
    for (session, key) in [("s", "missing"), ("missing", "k")] {
        let error = states.save(&ada(session), key, &json("9"), missing.clone()).await.unwrap_err();
        assert_eq!((error.kind(), error.current_version()), (ErrorKind::Conflict, None));
        assert_eq!(text(&states, &ada(session), key).await, None);
    }
    assert!(!states.exists(&ada("missing")).await.unwrap());
    assert_eq!(text(&states, &ada("s"), "k").await.as_deref(), Some("2"));
}

/// A save that expects nothing creates a value, and never replaces one.
pub(crate) async fn create_only_save_is_refused_where_a_value_exists(states: States) {
    if !states.capabilities().versions {
        return;
    }
    let create = expecting(Expected::Absent);
    assert_eq!(states.save(&ada("s"), "k", &json("1"), create.clone()).await.unwrap(), version(1));
    let error = states.save(&ada("s"), "k", &json("2"), create).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert_eq!(text(&states, &ada("s"), "k").await.as_deref(), Some("1"));
}

/// A key with a value and a list, where a store can keep both, and another key that keeps the session.
async fn filled(states: &States, form: StateForm) -> (StateSlot, &'static str) {
    let (here, key) = (ada("s"), "k");
    states.delete_session(&here, DeleteSessionOptions::new()).await.unwrap();
    save(states, &here, "other", "1").await;
    let separate = states.capabilities().separate_forms;
    for number in ["1", "2"] {
        if separate || form == StateForm::Single {
            save(states, &here, key, number).await;
        }
        if separate || form == StateForm::List {
            states.save_list(&here, key, &[json(number)], SaveOptions::new()).await.unwrap();
        }
    }
    (here, key)
}

/// Every change that expects a version is made if that version is stored. Otherwise it fails with the stored version, and changes nothing.
/// Where lists have no versions, such a change of a list is refused; a store without versions makes it.
pub(crate) async fn every_change_checks_the_version_that_it_expects(states: States) {
    assert_complete();
    let capabilities = states.capabilities();
    for change in Change::ALL {
        let Some(form) = change.form() else { continue };
        let decides = match form {
            StateForm::Single => capabilities.versions,
            StateForm::List => capabilities.list_versions,
        };
        for case in ["right", "older", "newer", "absent", "missing", "missing and absent"] {
            let (here, key) = filled(&states, form).await;
            let before = shown(&*states, &here).await;
            let current = match form {
                StateForm::Single => states.version(&here, key).await.unwrap(),
                StateForm::List => states.list_version(&here, key).await.unwrap(),
            };
            let number = current.map_or(2, StateVersion::number);
            let (key, current) = if case.starts_with("missing") { ("missing", None) } else { (key, current) };
            let expected = match case {
                "absent" | "missing and absent" => Expected::Absent,
                "older" => Expected::Version(version(number - 1).unwrap()),
                "newer" => Expected::Version(version(number + 1).unwrap()),
                _ => Expected::Version(version(number).unwrap()),
            };
            let what = format!("{change:?} {case}");
            let made = change.make(&*states, &here, key, expected, None).await;
            let after = shown(&*states, &here).await;
            if !decides {
                let kind = made.as_ref().err().map(|error| error.kind());
                assert_eq!(kind, capabilities.versions.then_some(ErrorKind::Unsupported), "{what}");
                assert!(!capabilities.versions || after == before, "{what}: {after:?}");
                continue;
            }
            if expected.admits(current) {
                made.unwrap_or_else(|error| panic!("{what}: {error:?}"));
                // The other form of the key, and other keys, stay as they are.
                let is_changed = |(known, ..): &Shown| match known {
                    StateKey::Single(name) => name == key && form == StateForm::Single,
                    StateKey::List(name) => name == key && form == StateForm::List,
                };
                let kept: Vec<&Shown> = before.iter().filter(|entry| !is_changed(entry)).collect();
                assert_eq!(after.iter().filter(|entry| !is_changed(entry)).collect::<Vec<_>>(), kept, "{what}");
                assert_eq!(after.iter().any(is_changed), !change.is_deletion(), "{what}");
                continue;
            }
            let error = made.expect_err(&what);
            let conflict = StateConflict::of(&error).unwrap_or_else(|| panic!("{what}: {error:?}"));
            assert_eq!((error.kind(), conflict.expected, conflict.current), (ErrorKind::Conflict, expected, current), "{what}");
            assert!(error.is_without_effect() && conflict.key == key && conflict.session == "s", "{what}: {error:?}");
            assert_eq!(after, before, "{what}");
        }
    }
}

/// A store that cannot check a fence in the commit of a change refuses every change with one, also of what does not exist.
pub(crate) async fn every_change_with_a_fence_is_refused_where_none_can_be_checked(states: States) {
    if states.capabilities().fences {
        return;
    }
    let fence = Fence { namespace: Namespace::parse("turns/s").unwrap(), key: "holder".to_owned(), version: Version::new(1) };
    for form in [StateForm::Single, StateForm::List] {
        for change in Change::ALL {
            let (here, key) = filled(&states, form).await;
            let before = shown(&*states, &here).await;
            for (slot, key) in [(&here, key), (&here, "missing"), (&ada("missing"), key)] {
                let error = change.make(&*states, slot, key, Expected::Any, Some(&fence)).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{change:?}");
            }
            assert_eq!(shown(&*states, &here).await, before, "{change:?}");
            assert!(!states.exists(&ada("missing")).await.unwrap(), "{change:?}");
        }
    }
}

/// Of saves and deletions that expect the same version, one wins in each round.
pub(crate) async fn one_of_many_saves_and_deletions_of_a_version_wins(states: States) {
    if !states.capabilities().versions {
        return;
    }
    for round in 0..5 {
        let first = save(&states, &ada("s"), "k", r#"{"context":[{"n":1}]}"#).await.unwrap();
        let changes = (0..8).map(|number| {
            let states = states.clone();
            let change = if number % 2 == 0 { Change::Save } else { Change::Delete(None) };
            tokio::spawn(async move { (change, change.make(&*states, &ada("s"), "k", Expected::Version(first), None).await) })
        });
        let mut winners = Vec::new();
        for change in changes.collect::<Vec<_>>() {
            match change.await.unwrap() {
                (change, Ok(())) => winners.push(change),
                (_, Err(error)) => assert!(StateConflict::of(&error).is_some(), "{error:?}"),
            }
        }
        let [winner] = winners[..] else { panic!("{round}: {winners:?}") };
        assert_eq!(text(&states, &ada("s"), "k").await.is_some(), winner == Change::Save, "{round}");
    }
}

/// A list is replaced as a whole: by a longer, shorter, changed and an empty one.
pub(crate) async fn list_replaces_the_whole_list_and_an_empty_one_empties_it(states: States) {
    let lists: [&[&str]; 7] = [&["1", "2"], &["1", "2", "3"], &["1", "9", "3"], &[r#"{"a": 1}"#], &[], &["1"], &["0", "1"]];
    for values in lists {
        let jsons: Vec<Json> = values.iter().map(|value| json(value)).collect();
        states.save_list(&ada("s"), "l", &jsons, SaveOptions::new()).await.unwrap();
        assert_eq!(comparable(&states, list(&states, &ada("s"), "l").await), comparable(&states, values), "{values:?}");
    }
}

/// A single value and a list may have the same key. A store that cannot keep both refuses the second one.
pub(crate) async fn single_and_list_of_one_key_are_distinct(states: States) {
    save(&states, &ada("s"), "k", r#"{"one":1}"#).await;
    assert_eq!(list(&states, &ada("s"), "k").await, Vec::<String>::new());
    if !states.capabilities().separate_forms {
        for values in [&[json("1"), json("2")][..], &[]] {
            let error = states.save_list(&ada("s"), "k", values, SaveOptions::new()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            states.save_list(&ada("s"), "l", values, SaveOptions::new()).await.unwrap();
            let error = states.save(&ada("s"), "l", &json("1"), SaveOptions::new()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert_eq!(text(&states, &ada("s"), "l").await, None);
            assert_eq!(list(&states, &ada("s"), "l").await.len(), values.len());
        }
        assert_eq!(text(&states, &ada("s"), "k").await.as_deref(), Some(r#"{"one":1}"#));
        assert_eq!(states.keys(&ada("s")).await.unwrap(), [StateKey::Single("k".to_owned()), StateKey::List("l".to_owned())]);
        return;
    }
    states.save_list(&ada("s"), "k", &[json("1"), json("2")], SaveOptions::new()).await.unwrap();
    assert_eq!(comparable(&states, text(&states, &ada("s"), "k").await), [r#"{"one":1}"#]);
    assert_eq!(list(&states, &ada("s"), "k").await, ["1", "2"]);
    let keys = states.keys(&ada("s")).await.unwrap();
    assert_eq!(keys, [StateKey::Single("k".to_owned()), StateKey::List("k".to_owned())]);
}

/// No two users, sessions or keys share a value, however similar their names; the anonymous user is nobody else.
pub(crate) async fn users_sessions_and_keys_do_not_leak_into_each_other(states: States) {
    let names = ["a", "a-b", "A", "a.b", "ab", "__anon", "b", "a_b", "aa"];
    let mut saved = Vec::new();
    for user in names.iter().map(|name| Some(*name)).chain([None]) {
        for session in &names[..4] {
            for key in &names[..4] {
                let slot = slot(user, session);
                let value = format!("{:?}", format!("{user:?} {session} {key}"));
                // Some layouts cannot keep every name; they refuse it.
                match states.save(&slot, key, &json(&value), SaveOptions::new()).await {
                    Ok(_) => saved.push((slot, *key, value)),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error:?}"),
                }
            }
        }
    }
    assert!(saved.len() > 75, "{}", saved.len());
    for (slot, key, value) in &saved {
        assert_eq!(text(&states, slot, key).await.as_ref(), Some(value), "{slot} {key}");
    }
    let slots: BTreeSet<&StateSlot> = saved.iter().map(|(slot, ..)| slot).collect();
    for gone in slots {
        states.delete_session(gone, DeleteSessionOptions::new()).await.unwrap();
        saved.iter().filter(|(slot, ..)| slot == gone).for_each(drop);
        assert!(!states.exists(gone).await.unwrap(), "{gone}");
        let later = saved.iter().find(|(slot, ..)| slot > gone);
        if let Some((slot, key, value)) = later {
            assert_eq!(text(&states, slot, key).await.as_ref(), Some(value), "{slot} {key}");
        }
    }
}

/// Deleting a key removes it, as a single value and as a list, and nothing else. A session without keys does not exist.
pub(crate) async fn delete_of_a_key_leaves_the_others(states: States) {
    // Where a key has one form at a time, lists have keys of their own.
    let list_keys = if states.capabilities().separate_forms { ["a", "b"] } else { ["la", "lb"] };
    for (key, list_key) in ["a", "b"].into_iter().zip(list_keys) {
        save(&states, &ada("s"), key, "1").await;
        states.save_list(&ada("s"), list_key, &[json("1")], SaveOptions::new()).await.unwrap();
    }
    states.delete(&ada("s"), "a", DeleteOptions::new()).await.unwrap();
    states.delete(&ada("s"), list_keys[0], DeleteOptions::new()).await.unwrap();
    assert_eq!(text(&states, &ada("s"), "a").await, None);
    assert_eq!(list(&states, &ada("s"), list_keys[0]).await, Vec::<String>::new());
    assert_eq!(text(&states, &ada("s"), "b").await.as_deref(), Some("1"));
    assert_eq!(list(&states, &ada("s"), list_keys[1]).await, ["1"]);
    assert!(states.exists(&ada("s")).await.unwrap());
    assert_eq!(states.keys(&ada("s")).await.unwrap(), [StateKey::Single("b".to_owned()), StateKey::List(list_keys[1].to_owned())]);
    states.delete(&ada("s"), "b", DeleteOptions::new()).await.unwrap();
    states.delete(&ada("s"), list_keys[1], DeleteOptions::new()).await.unwrap();
    assert_eq!(states.keys(&ada("s")).await.unwrap(), []);
    save(&states, &ada("s"), "a", "2").await;
    assert_eq!(text(&states, &ada("s"), "a").await.as_deref(), Some("2"));
}

/// Deleting a session removes all its keys, and no other session. It can be created again, and is then empty.
pub(crate) async fn delete_of_a_session_leaves_the_others(states: States) {
    for session in ["s", "s1"] {
        save(&states, &ada(session), "k", r#"{"context":[{"n":1}]}"#).await;
        save(&states, &ada(session), "k2", "2").await;
        states.save_list(&ada(session), "l", &[json("1")], SaveOptions::new()).await.unwrap();
    }
    states.delete_session(&ada("s"), DeleteSessionOptions::new()).await.unwrap();
    assert!(!states.exists(&ada("s")).await.unwrap());
    assert_eq!(states.keys(&ada("s")).await.unwrap(), []);
    assert_eq!(text(&states, &ada("s"), "k").await, None);
    assert_eq!(list(&states, &ada("s"), "l").await, Vec::<String>::new());
    assert_eq!(states.session_ids(Some("ada"), None, 10).await.unwrap().sessions, ["s1"]);
    assert_eq!(comparable(&states, text(&states, &ada("s1"), "k").await), [r#"{"context":[{"n":1}]}"#]);
    save(&states, &ada("s"), "k2", "3").await;
    assert_eq!(states.keys(&ada("s")).await.unwrap(), [StateKey::Single("k2".to_owned())]);
    assert_eq!(text(&states, &ada("s"), "k2").await.as_deref(), Some("3"));
}

/// Pages list every session of a user once, in the order of the ids.
pub(crate) async fn sessions_are_listed_in_pages_in_order(states: States) {
    let ids: BTreeSet<String> = (0..7).map(|number| format!("s{}", number * 7 % 10)).collect();
    for id in &ids {
        save(&states, &ada(id), "k", "1").await;
        save(&states, &slot(None, id), "k", "1").await;
    }
    for user in [Some("ada"), None] {
        for limit in [1, 2, 3, 7, 100] {
            let (mut listed, mut after) = (Vec::new(), None);
            loop {
                let page = states.session_ids(user, after.as_deref(), limit).await.unwrap();
                assert!(page.sessions.len() <= limit);
                listed.extend(page.sessions);
                match page.next {
                    Some(next) => after = Some(next),
                    None => break,
                }
            }
            assert_eq!(listed, ids.iter().cloned().collect::<Vec<_>>(), "{user:?} {limit}");
        }
    }
}

/// Pages list every user that has a state once: the anonymous one first, then the others by their ids.
pub(crate) async fn users_are_listed_after_the_anonymous_one(states: States) {
    for user in [Some("eve"), Some("ada"), None, Some("bob")] {
        save(&states, &slot(user, "s"), "k", "1").await;
    }
    save(&states, &slot(Some("gone"), "s"), "k", "1").await;
    states.delete_session(&slot(Some("gone"), "s"), DeleteSessionOptions::new()).await.unwrap();
    let all = [None, Some("ada".to_owned()), Some("bob".to_owned()), Some("eve".to_owned())];
    for limit in [1, 2, 100] {
        let (mut listed, mut after) = (Vec::new(), None);
        loop {
            let page = states.users(after.as_deref(), limit).await.unwrap();
            assert!(page.users.len() <= limit);
            listed.extend(page.users);
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        assert_eq!(listed, all, "{limit}");
    }
}

/// Ids and keys that cannot be kept are refused before anything is written.
pub(crate) async fn bad_ids_and_keys_are_refused_and_write_nothing(states: States) {
    let long = "x".repeat(256);
    for bad in ["", ".", "..", "a\nb", "\u{0}", long.as_str()] {
        assert_eq!(StateSlot::new(Some("ada"), bad).unwrap_err().kind(), ErrorKind::InvalidArgument, "{bad:?}");
        assert_eq!(StateSlot::new(Some(bad), "s").unwrap_err().kind(), ErrorKind::InvalidArgument, "{bad:?}");
        assert_eq!(states.session_ids(Some(bad), None, 1).await.unwrap_err().kind(), ErrorKind::InvalidArgument, "{bad:?}");
    }
    let (one, slot) = ([json("1")], ada("s"));
    for bad in ["", long.as_str()] {
        let kinds = [
            states.save(&slot, bad, &one[0], SaveOptions::new()).await.unwrap_err().kind(),
            states.save_list(&slot, bad, &one, SaveOptions::new()).await.unwrap_err().kind(),
            states.get(&slot, bad).await.unwrap_err().kind(),
            states.get_list(&slot, bad).await.unwrap_err().kind(),
            states.version(&slot, bad).await.unwrap_err().kind(),
            states.list_version(&slot, bad).await.unwrap_err().kind(),
            states.delete(&slot, bad, DeleteOptions::new()).await.unwrap_err().kind(),
        ];
        assert_eq!(kinds, [ErrorKind::InvalidArgument; 7], "{bad:?}");
    }
    assert!(!states.exists(&slot).await.unwrap());
}

/// Every unconditional save returns its own version, never another writer's.
pub(crate) async fn each_of_many_concurrent_saves_gets_its_own_version(states: States) {
    if !states.capabilities().versions {
        return;
    }
    let saves = (0..20).map(|number| {
        let states = states.clone();
        tokio::spawn(async move { (save(&states, &ada("s"), "k", &number.to_string()).await.unwrap(), number) })
    });
    let mut saved = Vec::new();
    for save in saves.collect::<Vec<_>>() {
        saved.push(save.await.unwrap());
    }
    saved.sort_unstable();
    let versions: Vec<u64> = saved.iter().map(|(version, _)| version.number()).collect();
    assert_eq!(versions, (1..=20).collect::<Vec<_>>());
    assert_eq!(text(&states, &ada("s"), "k").await, saved.last().map(|(_, number)| number.to_string()));
}

/// Of many saves that expect the same version, one wins in each round.
pub(crate) async fn one_of_many_concurrent_compare_and_sets_wins(states: States) {
    if !states.capabilities().versions {
        return;
    }
    for round in 0..5_u64 {
        let expected = version(round).map_or(Expected::Absent, Expected::Version);
        let saves = (0..8).map(|number| {
            let states = states.clone();
            tokio::spawn(async move {
                let value = json(&format!(r#"{{"context":[{round},{number}]}}"#));
                states.save(&ada("s"), "k", &value, expecting(expected)).await.map(|version| (version, value))
            })
        });
        let mut winners = Vec::new();
        for save in saves.collect::<Vec<_>>() {
            match save.await.unwrap() {
                Ok(won) => winners.push(won),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict, "{error:?}"),
            }
        }
        assert_eq!(winners.len(), 1);
        let (won, value) = winners.remove(0);
        assert_eq!(won, version(round + 1));
        assert_eq!(comparable(&states, text(&states, &ada("s"), "k").await), comparable(&states, [value.as_str()]));
    }
}
