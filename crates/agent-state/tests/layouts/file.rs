//! AgentScope's directory of JSON files.

use super::support::{assert_refused, each_operation, each_operation_on_slot, json, slot};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;
use treehold_agent_state::layouts::{JsonFileStates, JsonFileStatesOptions};
use treehold_agent_state::{AgentStateStore, DeleteOptions, DeleteSessionOptions, Fence, Json, SaveOptions, StateKey, StateSlot};
use treehold_core::error::ErrorKind;
use treehold_core::ops::Version;
use treehold_store::Namespace;

/// A state as AgentScope writes it on one line.
const STATE: &str = r#"{"session_id":"s1","user_id":"ada","summary":"","context":[{"id":"m1","name":"user","role":"USER","content":[{"type":"text","text":"Grüße 😀\n"}],"metadata":{},"timestamp":"2026-01-02 03:04:05.006","usage":null}],"reply_id":"0","cur_iter":0,"shutdown_interrupted":false,"permission_context":{"mode":"default","working_directories":{},"allow_rules":{}},"tasks_context":{"tasks":[]}}"#;

async fn fresh_states() -> (Arc<dyn AgentStateStore>, TempDir) {
    let (states, directory) = fresh().await;
    (Arc::new(states), directory)
}

state_store_cases!(contract, super::fresh_states);

async fn fresh() -> (JsonFileStates, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    (JsonFileStates::open(directory.path().join("states")).await.unwrap(), directory)
}

/// Returns the files beneath a directory with their contents.
fn files(directory: &Path) -> BTreeMap<String, String> {
    let (mut found, mut open) = (BTreeMap::new(), vec![directory.to_owned()]);
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(directory).unwrap().to_str().unwrap().to_owned();
            match path.symlink_metadata().unwrap() {
                meta if meta.is_dir() => open.push(path),
                meta if meta.is_symlink() => drop(found.insert(name, format!("-> {}", fs::read_link(&path).unwrap().display()))),
                _ => drop(found.insert(name, fs::read_to_string(&path).unwrap())),
            }
        }
    }
    found
}

async fn save(states: &JsonFileStates, slot: &StateSlot, key: &str, text: &str) {
    assert_eq!(states.save(slot, key, &json(text), SaveOptions::new()).await.unwrap(), None);
}

#[tokio::test]
async fn files_have_the_names_and_the_text_of_agentscope() {
    let (states, directory) = fresh().await;
    save(&states, &slot("ada", "s1"), "agent_state", r#"{"a":[],"b":{"c":[1,{"d":"é\u00e9"}]}}"#).await;
    save(&states, &slot(None, "telegram:17/a"), "_sandbox_state", "{}").await;
    save(&states, &slot("Zoë K", "v1.0_x-y"), "agent_state", "null").await;
    let list = [json("{\"id\": 1}"), json("[ ]")];
    states.save_list(&slot("ada", "s1"), "memory_messages", &list, SaveOptions::new()).await.unwrap();
    let mut found = files(&directory.path().join("states"));
    let hash = found.remove("ada/s1/memory_messages.hash").unwrap();
    assert!(hash.starts_with("text:") && !hash.contains('\n'), "{hash}");
    let expected = [
        ("Wm_DqyBL/v1.0_x-y/agent_state.json", "null"),
        ("__anon__/dGVsZWdyYW06MTcvYQ/_sandbox_state.json", "{ }"),
        ("ada/s1/agent_state.json", "{\n  \"a\" : [ ],\n  \"b\" : {\n    \"c\" : [ 1, {\n      \"d\" : \"éé\"\n    } ]\n  }\n}"),
        ("ada/s1/memory_messages.jsonl", "{\"id\":1}\n[]\n"),
    ];
    assert_eq!(found, expected.map(|(name, text)| (name.to_owned(), text.to_owned())).into());

    assert_eq!(states.users(None, 10).await.unwrap().users, [None, Some("Zoë K".to_owned()), Some("ada".to_owned())]);
    assert_eq!(states.session_ids(None, None, 10).await.unwrap().sessions, ["telegram:17/a"]);
    let keys = [StateKey::Single("agent_state".to_owned()), StateKey::List("memory_messages".to_owned())];
    assert_eq!(states.keys(&slot("ada", "s1")).await.unwrap(), keys);
}

#[tokio::test]
async fn value_that_agentscope_wrote_is_read_as_it_is_and_saved_to_the_same_bytes() {
    let (states, directory) = fresh().await;
    let path = directory.path().join("states/ada/s1/agent_state.json");
    save(&states, &slot("ada", "s1"), "agent_state", STATE).await;
    let first = fs::read_to_string(&path).unwrap();
    let read = states.get(&slot("ada", "s1"), "agent_state").await.unwrap().unwrap();
    assert_eq!((read.value.as_str(), read.version), (first.as_str(), None));
    states.save(&slot("ada", "s1"), "agent_state", &read.value, SaveOptions::new()).await.unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), first);
}

#[tokio::test]
async fn list_is_extended_replaced_and_emptied() {
    let (states, directory) = fresh().await;
    let (here, root) = (slot("ada", "s1"), directory.path().join("states/ada/s1"));
    let lists: [&[&str]; 6] = [&["1", "2"], &["1", "2", "3"], &["1", "2", "3"], &["1", "9", "3"], &[], &["4"]];
    let mut hashes = Vec::new();
    for list in lists {
        let values: Vec<Json> = list.iter().map(|text| json(text)).collect();
        states.save_list(&here, "memory_messages", &values, SaveOptions::new()).await.unwrap();
        assert_eq!(states.get_list(&here, "memory_messages").await.unwrap(), values);
        let lines: String = list.iter().map(|text| format!("{text}\n")).collect();
        assert_eq!(fs::read_to_string(root.join("memory_messages.jsonl")).unwrap(), lines);
        hashes.push(fs::read_to_string(root.join("memory_messages.hash")).unwrap());
    }
    assert_eq!(hashes[1], hashes[2]);
    assert_eq!(hashes[4], "empty:0");
    assert_eq!(states.keys(&here).await.unwrap(), [StateKey::List("memory_messages".to_owned())]);
}

/// AgentScope extends a list if the hash of the first elements in its memory is the stored one. It must not find the hash that it
/// stored itself beside a list of ours.
#[tokio::test]
async fn changed_list_loses_the_hash_of_agentscope_and_unchanged_list_keeps_it() {
    let (states, directory) = fresh().await;
    let (here, root) = (slot("ada", "s1"), directory.path().join("states/ada/s1"));
    let hash_after = async |lines: &str, values: &[Json]| {
        fs::create_dir_all(&root).unwrap();
        fs::write(root.join("l.jsonl"), lines).unwrap();
        fs::write(root.join("l.hash"), "7c3f1a2b").unwrap();
        states.save_list(&here, "l", values, SaveOptions::new()).await.unwrap();
        fs::read_to_string(root.join("l.hash")).unwrap()
    };
    assert_eq!(hash_after("1\n2\n", &[json("1"), json("2")]).await, "7c3f1a2b");
    for values in [&["1", "3"][..], &["1", "2", "3"], &["1"], &["2", "1"], &["1", "2 ", "2"]] {
        let values: Vec<Json> = values.iter().map(|text| json(text)).collect();
        let hash = hash_after("1\n2\n", &values).await;
        assert!(hash.starts_with("text:"), "{values:?}: {hash}");
    }
}

#[tokio::test]
async fn ids_that_share_a_name_or_lead_elsewhere_are_refused_and_stored_data_stays() {
    let (states, directory) = fresh().await;
    // The directories that the refused ids would have.
    for (user, session) in [("__anon__", "s1"), ("YTpi", "s1"), ("ada", "YTpi"), ("ada", "s1")] {
        let path = directory.path().join("states").join(user).join(session);
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("agent_state.json"), "{\"kept\":true}").unwrap();
    }
    fs::write(directory.path().join("outside.json"), "{\"kept\":true}").unwrap();
    let before = files(directory.path());

    let long = "x:".repeat(96);
    for (user, session) in [
        (Some("__anon__"), "s1"),
        (Some(" "), "s1"),
        (Some("YTpi"), "s1"),
        (Some(&long[..]), "s1"),
        (Some("ada"), "YTpi"),
        (Some("ada"), "\u{2003}"),
        (Some("ada"), &long),
    ] {
        let slot = StateSlot::new(user, session).unwrap();
        assert_refused(&format!("{slot}"), each_operation_on_slot(&states, &slot).await);
    }
    for user in ["__anon__", " ", "YTpi", ".", ".."] {
        assert_eq!(states.session_ids(Some(user), None, 10).await.unwrap_err().kind(), ErrorKind::InvalidArgument, "{user}");
    }
    let long_key = "k".repeat(250);
    for key in ["", " ", "a/b", "../../../outside", "/etc/x", "a\0b", "a\nb", &long_key] {
        assert_refused(key, each_operation(&states, &slot("ada", "s1"), key).await);
    }
    assert_eq!(files(directory.path()), before);
    // The encoded names are the ids that they stand for.
    assert_eq!(states.users(None, 10).await.unwrap().users, [None, Some("a:b".to_owned()), Some("ada".to_owned())]);
    assert_eq!(states.session_ids(Some("ada"), None, 10).await.unwrap().sessions, ["a:b", "s1"]);
    assert!(states.get(&slot("ada", "a:b"), "agent_state").await.unwrap().is_some());
}

#[tokio::test]
async fn legal_ids_of_all_kinds_have_names_of_their_own() {
    let (states, directory) = fresh().await;
    let ids =
        ["a", "A", "a:b", "a/b", "a b", "ab", ".hidden", "...", "~removed-x", "é", "__anon", "anon__", "YTpi=", "-", "_", "a\\b", "😀"];
    for user in ids {
        for session in ids {
            let slot = StateSlot::new(Some(user), session).unwrap();
            save(&states, &slot, "agent_state", &format!("{{\"slot\":{:?}}}", format!("{user} {session}"))).await;
        }
    }
    for user in ids {
        for session in ids {
            let slot = StateSlot::new(Some(user), session).unwrap();
            let found: serde_json::Value = states.get(&slot, "agent_state").await.unwrap().unwrap().value.view().unwrap();
            assert_eq!(found["slot"], format!("{user} {session}"));
        }
    }
    let mut sorted = ids.map(str::to_owned).to_vec();
    sorted.sort();
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let page = states.session_ids(Some("é"), after.as_deref(), 4).await.unwrap();
        assert!(page.sessions.len() <= 4);
        seen.extend(page.sessions);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(seen, sorted);
    assert_eq!(states.users(None, 100).await.unwrap().users, sorted.into_iter().map(Some).collect::<Vec<_>>());
    assert_eq!(files(directory.path()).len(), ids.len() * ids.len());
}

#[tokio::test]
async fn links_and_special_files_are_never_followed() {
    let (states, directory) = fresh().await;
    let (root, outside) = (directory.path().join("states"), directory.path().join("outside"));
    fs::create_dir_all(outside.join("s1")).unwrap();
    fs::write(outside.join("s1/agent_state.json"), "{\"secret\":true}").unwrap();
    fs::create_dir_all(root.join("bob/s2")).unwrap();
    symlink(&outside, root.join("ada")).unwrap();
    symlink(outside.join("s1"), root.join("bob/s1")).unwrap();
    symlink(outside.join("s1/agent_state.json"), root.join("bob/s2/agent_state.json")).unwrap();
    let before = files(&outside);
    for slot in [slot("ada", "s1"), slot("bob", "s1")] {
        for (operation, result) in each_operation_on_slot(&states, &slot).await {
            if matches!(operation, "version" | "list_version") {
                continue; // They read nothing.
            }
            assert_eq!(result.expect_err(operation).kind(), ErrorKind::PermissionDenied, "{operation} of {slot}");
        }
    }
    assert_eq!(states.get(&slot("bob", "s2"), "agent_state").await.unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert!(states.users(None, 10).await.unwrap().users.iter().all(|user| user.as_deref() != Some("ada")));
    assert_eq!(states.session_ids(Some("bob"), None, 10).await.unwrap().sessions, ["s2"]);
    // A save replaces a link by a file, and a deletion removes the link.
    save(&states, &slot("bob", "s2"), "agent_state", "{}").await;
    symlink(&outside, root.join("bob/s2/more")).unwrap();
    states.delete_session(&slot("bob", "s2"), DeleteSessionOptions::new()).await.unwrap();
    assert!(!root.join("bob/s2").exists());
    assert_eq!(files(&outside), before);

    fs::create_dir_all(root.join("cyd/s1")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, root.join("cyd/s1/agent_state.json"), rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    assert_eq!(states.get(&slot("cyd", "s1"), "agent_state").await.unwrap_err().kind(), ErrorKind::PermissionDenied);
}

#[tokio::test]
async fn damaged_files_are_corrupt_and_stay_as_they_are() {
    let (states, directory) = fresh().await;
    let root = directory.path().join("states/ada/s1");
    fs::create_dir_all(&root).unwrap();
    let deep = format!("{}{}", "[".repeat(101), "]".repeat(101));
    for damaged in [&b""[..], b"{", b"{} {}", b"\xff", b"{\"a\":}", deep.as_bytes()] {
        fs::write(root.join("agent_state.json"), damaged).unwrap();
        let error = states.get(&slot("ada", "s1"), "agent_state").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{damaged:?}");
        assert!(error.message().contains("agent_state") && error.message().contains("ada"), "{error}");
        assert_eq!(fs::read(root.join("agent_state.json")).unwrap(), damaged);
        if damaged.is_empty() {
            continue; // An empty list.
        }
        fs::write(root.join("l.jsonl"), [b"1\n", damaged].concat()).unwrap();
        assert_eq!(states.get_list(&slot("ada", "s1"), "l").await.unwrap_err().kind(), ErrorKind::Corrupt, "{damaged:?}");
    }
    fs::remove_file(root.join("agent_state.json")).unwrap();
    fs::create_dir(root.join("agent_state.json")).unwrap();
    let error = states.get(&slot("ada", "s1"), "agent_state").await.unwrap_err();
    assert!(error.kind() != ErrorKind::NotFound, "{error}");
}

#[tokio::test]
async fn blank_lines_and_a_missing_line_feed_are_read_as_agentscope_reads_them() {
    let (states, directory) = fresh().await;
    let root = directory.path().join("states/ada/s1");
    fs::create_dir_all(&root).unwrap();
    fs::write(root.join("l.jsonl"), "1\n\n  \r\n{\"a\": 2}\r\n3").unwrap();
    assert_eq!(states.get_list(&slot("ada", "s1"), "l").await.unwrap(), [json("1"), json("{\"a\": 2}"), json("3")]);
}

#[tokio::test]
async fn values_over_the_limit_and_fences_are_refused_and_nothing_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let options = JsonFileStatesOptions::new().with_value_bytes_max(10).with_shared(true);
    let states = JsonFileStates::open_with(directory.path(), options).await.unwrap();
    assert!(states.capabilities().shared && !states.capabilities().versions && !states.capabilities().fences);
    let (here, large) = (slot("ada", "s1"), json("\"12345678901\""));
    assert_eq!(states.save(&here, "k", &large, SaveOptions::new()).await.unwrap_err().kind(), ErrorKind::TooLarge);
    assert_eq!(
        states.save_list(&here, "k", &[json("12345"), json("67890")], SaveOptions::new()).await.unwrap_err().kind(),
        ErrorKind::TooLarge
    );
    let fence = Fence { namespace: Namespace::new(["turns"]).unwrap(), key: "k".to_owned(), version: Version::new(1) };
    let fenced = || SaveOptions::new().with_fence(Some(fence.clone()));
    assert_eq!(states.save(&here, "k", &json("1"), fenced()).await.unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(states.save_list(&here, "k", &[], fenced()).await.unwrap_err().kind(), ErrorKind::Unsupported);
    assert!(files(directory.path()).is_empty());
    fs::create_dir_all(directory.path().join("ada/s1")).unwrap();
    fs::write(directory.path().join("ada/s1/k.json"), "1".repeat(21)).unwrap();
    assert_eq!(states.get(&here, "k").await.unwrap_err().kind(), ErrorKind::TooLarge);
}

#[tokio::test]
async fn deleted_session_and_deleted_keys_leave_nothing() {
    let (states, directory) = fresh().await;
    let here = slot("ada", "s1");
    save(&states, &here, "a", "1").await;
    states.save_list(&here, "l", &[json("1")], SaveOptions::new()).await.unwrap();
    fs::write(directory.path().join("states/ada/s1/agent_state.json.tmp"), "left by a crash").unwrap();
    states.delete(&here, "l", DeleteOptions::new()).await.unwrap();
    states.delete(&here, "absent", DeleteOptions::new()).await.unwrap();
    assert_eq!(states.keys(&here).await.unwrap(), [StateKey::Single("a".to_owned())]);
    // What an interrupted removal left goes with the next one.
    fs::create_dir_all(directory.path().join("states/~removed-1/x")).unwrap();
    assert_eq!(states.users(None, 10).await.unwrap().users, [Some("ada".to_owned())]);
    states.delete_session(&here, DeleteSessionOptions::new()).await.unwrap();
    states.delete_session(&here, DeleteSessionOptions::new()).await.unwrap();
    assert!(!states.exists(&here).await.unwrap());
    assert!(states.session_ids(Some("ada"), None, 10).await.unwrap().sessions.is_empty());
    assert!(states.users(None, 10).await.unwrap().users.is_empty());
    assert!(!directory.path().join("states/~removed-1").exists());
    assert!(files(directory.path()).is_empty());
}

/// Readers see whole values while several writers save and delete.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_writers_never_show_half_a_value() {
    let (states, directory) = fresh().await;
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let states = states.clone();
            tokio::spawn(async move {
                let here = slot("ada", "s1");
                for round in 0..30 {
                    let fill = format!("{writer}").repeat(5_000);
                    states.save(&here, "agent_state", &json(&format!("[\"{fill}\",\"{fill}\"]")), SaveOptions::new()).await.unwrap();
                    let values: Vec<Json> = (0..20).map(|_| json(&format!("\"{writer}\""))).collect();
                    states.save_list(&here, "l", &values, SaveOptions::new()).await.unwrap();
                    if round % 10 == writer {
                        states.delete_session(&here, DeleteSessionOptions::new()).await.unwrap();
                    }
                    if let Some(found) = states.get(&here, "agent_state").await.unwrap() {
                        let texts: Vec<String> = found.value.view().unwrap();
                        assert_eq!(texts[0], texts[1]);
                    }
                    let list = states.get_list(&here, "l").await.unwrap();
                    assert!(list.iter().all(|value| Some(value) == list.first()) && matches!(list.len(), 0 | 20), "{list:?}");
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    let names: Vec<String> = files(directory.path()).into_keys().collect();
    assert!(names.iter().all(|name| !name.ends_with(".tmp") && !name.contains('~')), "{names:?}");
}
