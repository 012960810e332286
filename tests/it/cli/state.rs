//! The states of agents: `state`.

use super::Home;
use serde_json::{Value, json};
use std::sync::Arc;
use treehold::SqliteStore;
use treehold::agent_state::StateSlot;
use treehold::agent_state::call::{TurnAnswer, TurnGate, TurnKey, TurnRequest};

const STATE: &str =
    "{\n  \"summary\" : \"tea\", \"context\":[ {\"role\":\"USER\",\"content\":\"Hello\\u001b[31m\\n# forged\",\"x\":1.0} ]\n}";

fn put(home: &Home, args: &[&str], state: &str) {
    home.with_stdin(&[&["state", "put"], args].concat(), state.as_bytes()).success();
}

#[test]
fn state_is_saved_listed_printed_and_removed() {
    let home = Home::new();
    home.run(&["state", "ls"], 1);
    put(&home, &["s"], STATE);
    home.ok(&["state", "put", "s", "mood", "\"good\""]);
    home.ok(&["state", "put", "s", "notes", "[1.0, {\"a\":  2}]", "--list"]);
    home.ok(&["state", "put", "other", "k", "1"]);
    assert_eq!(home.ok(&["state", "ls"]), "other\ns\n");
    assert_eq!(home.json(&["state", "ls", "--json"]), json!(["other", "s"]));
    assert_eq!(home.ok(&["state", "get", "s"]), format!("{STATE}\n"), "it is printed as it was saved");
    assert_eq!(home.ok(&["state", "get", "s", "notes", "--list"]), "[1.0,{\"a\":  2}]\n");
    assert_eq!(home.json(&["state", "get", "s", "mood", "--json"]), json!({"key": "mood", "version": 1, "value": "good"}));
    assert_eq!(home.ok(&["state", "show", "s"]), "       1  single  agent_state\n       1  single  mood\n       1  list    notes\n");
    let keys = home.json(&["state", "show", "s", "--json"]);
    assert_eq!(keys[2], json!({"key": "notes", "form": "list", "version": 1}));
    // Each agent and user has states of its own, and so has the anonymous user.
    for args in [&["--agent", "helper"][..], &["--user", "ada"], &["--tenant", "acme"]] {
        home.error(&[args, &["state", "get", "s"]].concat(), 3);
    }
    home.error(&["state", "get", "s", "--anonymous"], 3);
    home.ok(&["state", "put", "s", "k", "\"anonymous\"", "--anonymous"]);
    home.ok(&["--user", "ada", "state", "put", "s", "k", "\"of ada\""]);
    assert_eq!(home.ok(&["state", "get", "s", "k", "--anonymous"]), "\"anonymous\"\n");
    assert_eq!(home.json(&["state", "ls", "--users", "--json"]), json!([null, "ada", "default"]));
    assert_eq!(home.ok(&["state", "ls", "--users"]), "\nada\ndefault\n");
    for args in [&["get", "none"][..], &["get", "s", "none"], &["show", "none"], &["export", "none"], &["rm", "none"]] {
        let said = home.error(&[&["state"], args].concat(), 3);
        assert!(said.contains("`treehold state "), "{args:?} names what to do: {said}");
    }
    home.error(&["state", "rm", "s", "none"], 3);
    home.ok(&["state", "rm", "s", "--key", "mood"]);
    assert_eq!(home.json(&["state", "show", "s", "--json"]).as_array().unwrap().len(), 2);
    assert_eq!(home.json(&["state", "rm", "s", "none", "--force", "--json"]), json!(["s"]));
    assert_eq!(home.ok(&["state", "ls"]), "other\n");
    assert_eq!(home.ok(&["state", "get", "s", "k", "--anonymous"]), "\"anonymous\"\n");
}

#[test]
fn save_that_expects_another_version_changes_nothing() {
    let home = Home::new();
    let put = |value: &str, version: &str| home.command(&["state", "put", "s", "k", value, "--if-version", version]).output().unwrap();
    assert!(put("1", "0").status.success());
    for version in ["0", "2"] {
        let output = put("2", version);
        assert_eq!(output.status.code(), Some(4), "{version}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("version 1 is stored") && said.contains("load it again"), "{said}");
    }
    assert!(put("2", "1").status.success());
    assert_eq!(home.json(&["state", "get", "s", "k", "--json"]), json!({"key": "k", "version": 2, "value": 2}));
    for wrong in [&["x"][..], &["{}", "--list"], &[""], &["1", "--if-version", "x"]] {
        home.error(&[&["state", "put", "s", "k"], wrong].concat(), 2);
    }
    home.error(&["state", "put", "..", "k", "1"], 2);
    assert_eq!(home.ok(&["state", "get", "s", "k"]), "2\n");
}

#[test]
fn removal_that_expects_another_version_changes_nothing() {
    let home = Home::new();
    let forms = || home.ok(&["state", "show", "s"]);
    for _ in 0..2 {
        home.ok(&["state", "put", "s", "k", "1"]);
        home.ok(&["state", "put", "s", "k", "[1]", "--list"]);
    }
    let all = forms();
    let rm = |args: &[&str]| home.command(&[&["state", "rm", "s"], args].concat()).output().unwrap();
    for form in [&[][..], &["--list"]] {
        for version in ["0", "1", "3"] {
            let output = rm(&[&["--key", "k", "--if-version", version], form].concat());
            assert_eq!(output.status.code(), Some(4), "{form:?} {version}");
            assert!(String::from_utf8_lossy(&output.stderr).contains("version 2 is stored"), "{form:?} {version}");
            assert_eq!(forms(), all, "{form:?} {version}");
        }
    }
    assert!(rm(&["--key", "k", "--if-version", "2"]).status.success());
    assert_eq!(forms(), "       2  list    k\n", "the list stays");
    home.error(&["state", "rm", "s", "--key", "k", "--if-version", "2", "--json"], 4);
    home.ok(&["state", "put", "s", "k", "1"]);
    assert!(rm(&["--key", "k", "--list"]).status.success());
    assert_eq!(forms(), "       3  single  k\n");
    home.error(&["state", "rm", "s", "--key", "k", "--list"], 3);
    for wrong in [&["--if-version", "1"][..], &["--list"], &["--key", "k", "--if-version", "x"], &["t", "--fence", "1"], &["--fence", "x"]]
    {
        home.error(&[&["state", "rm", "s"], wrong].concat(), 2);
    }
    home.error(&["state", "rm", "s", "--key", "k", "--if-version", "3", "--force"], 2);
    assert_eq!(forms(), "       3  single  k\n");
}

/// The fencing token of a turn that another process takes.
#[test]
fn change_with_the_fence_of_a_lost_turn_changes_nothing() {
    let home = Home::new();
    home.ok(&["state", "put", "s", "k", "1"]);
    let all = home.ok(&["state", "show", "s"]);
    let changes = [&["put", "s", "k", "2"][..], &["put", "s", "k", "[2]", "--list"], &["rm", "s", "--key", "k"], &["rm", "s"]];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let fence = runtime.block_on(async {
        let slot = StateSlot::new(Some("default"), "s").unwrap();
        let key = TurnKey::new("default", "default", &slot).unwrap();
        let gate = TurnGate::new(Arc::new(SqliteStore::open(home.data().join("treehold.db")).unwrap()));
        match gate.request(&key, TurnRequest::new("test").with_try(true)).await.unwrap() {
            TurnAnswer::Granted(turn) => turn.fence.to_string(),
            TurnAnswer::Waiting { .. } => panic!("the session is free"),
        }
    });
    for change in changes {
        for lost in ["1", "999999999"] {
            let output = home.command(&[&["state"], change, &["--fence", lost]].concat()).output().unwrap();
            assert_eq!(output.status.code(), Some(4), "{change:?} {lost}");
            assert!(String::from_utf8_lossy(&output.stderr).contains("nothing was changed"), "{change:?} {lost}");
            assert_eq!(home.ok(&["state", "show", "s"]), all, "{change:?} {lost}");
        }
    }
    for change in changes {
        home.ok(&[&["state"], change, &["--fence", &fence]].concat());
        home.ok(&["state", "put", "s", "k", "1"]);
    }
}

#[test]
fn session_is_exported_as_json_or_markdown() {
    let home = Home::new();
    put(&home, &["s"], STATE);
    home.ok(&["state", "put", "s", "notes", "[1]", "--list"]);
    let export: Value = serde_json::from_str(&home.ok(&["state", "export", "s"])).unwrap();
    assert_eq!((&export["session"], &export["user"], &export["agent"]), (&json!("s"), &json!("default"), &json!("default")));
    assert_eq!(export["entries"][1], json!({"key": "notes", "form": "list", "version": 1, "value": [1]}));
    let markdown = home.ok(&["state", "export", "s", "--markdown"]);
    assert!(markdown.starts_with("# Session s\n\n## Summary\n\n> tea\n") && markdown.contains("\n> # forged\n"), "{markdown}");
    home.ok(&["state", "put", "odd", "agent_state", "7"]);
    home.error(&["state", "export", "odd", "--markdown"], 6);
}

#[test]
fn sessions_continue_after_a_cursor() {
    let home = Home::new();
    for id in ["a", "b/c", "d e", "é"] {
        home.ok(&["state", "put", id, "k", "1"]);
    }
    let (mut found, mut after): (Vec<String>, Option<String>) = (Vec::new(), None);
    loop {
        let mut args = vec!["state", "ls", "--limit", "1", "--json"];
        args.extend(after.iter().flat_map(|after| ["--after", after]));
        let output = home.command(&args).output().unwrap();
        let page: Value = serde_json::from_slice(&output.stdout).unwrap();
        found.extend(page.as_array().unwrap().iter().map(|session| session.as_str().unwrap().to_owned()));
        let notice = String::from_utf8_lossy(&output.stderr).into_owned();
        match notice.split_once("--after '") {
            Some((_, rest)) => after = Some(rest.split('\'').next().unwrap().to_owned()),
            None => break,
        }
    }
    assert_eq!(found, ["a", "b/c", "d e", "é"]);
}

#[test]
fn interrupt_says_whether_it_hit_a_running_call() {
    let home = Home::new();
    home.run(&["state", "interrupt", "s"], 1);
    let printed = home.command(&["state", "interrupt", "s", "--message", "stop", "--json"]).output().unwrap();
    assert_eq!(printed.status.code(), Some(1));
    assert_eq!(serde_json::from_slice::<Value>(&printed.stdout).unwrap(), json!({"hit": false}));
}

#[test]
fn states_are_copied_to_the_files_of_agentscope_and_back() {
    let home = Home::new();
    put(&home, &["s"], STATE);
    home.ok(&["state", "put", "s", "notes", "[1, 2]", "--list"]);
    let dry = home.json(&["state", "copy", "store", "files:moved", "--dry-run", "--json"]);
    assert_eq!((&dry["dry_run"], &dry["sessions"], &dry["copied"]), (&json!(true), &json!(1), &json!(2)));
    let copied = home.json(&["state", "copy", "store", "files:moved", "--json"]);
    assert_eq!((&copied["copied"], &copied["unchanged"], &copied["problems"]), (&json!(2), &json!(0), &json!([])));
    let again = home.json(&["state", "copy", "store", "files:moved", "--json"]);
    assert_eq!((&again["copied"], &again["unchanged"]), (&json!(0), &json!(2)), "a copy can be repeated");
    home.ok(&["--agent", "second", "state", "copy", "files:moved", "store"]);
    let value = |agent: &str| home.json(&["--agent", agent, "state", "get", "s", "--json"])["value"].clone();
    assert_eq!(value("second"), value("default"));
    assert_eq!(home.ok(&["--agent", "second", "state", "get", "s", "notes", "--list"]), "[1,2]\n");
    // A value of the target that is no earlier state of the source's stays.
    home.ok(&["--agent", "second", "state", "put", "s", "agent_state", r#"{"context": [{"role": "USER", "content": "own"}]}"#]);
    home.run(&["--agent", "second", "state", "copy", "files:moved", "store"], 4);
    assert_ne!(value("second"), value("default"));
    home.ok(&["--agent", "second", "state", "copy", "files:moved", "store", "--replace"]);
    assert_eq!(value("second"), value("default"));
    home.error(&["state", "copy", "nowhere:x", "store"], 2);
}
