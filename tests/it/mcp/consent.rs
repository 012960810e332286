//! Destructive calls ask a person, if the client supports it.

use super::{Client, Era, text};
use crate::cli::Home;
use serde_json::{Value, json};

fn can_ask() -> Value {
    json!({"elicitation": {"form": {}}})
}

fn build(home: &Home) {
    for name in ["a", "b/c"] {
        home.put(&format!("tree/{name}"), "x");
    }
}

const REMOVE: &str = r#"{"path": "/workspace/tree", "recursive": true}"#;

fn remove() -> Value {
    serde_json::from_str(REMOVE).unwrap()
}

/// Makes a call and repeats it with a reply and the state of the question.
fn answered(client: &mut Client, tool: &str, arguments: &Value, answer: Value) -> (String, Value) {
    let params = json!({"name": tool, "arguments": arguments});
    let asked = client.result("tools/call", params.clone());
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    let mut again = params;
    again["inputResponses"] = json!({"confirm": answer});
    again["requestState"] = asked["requestState"].clone();
    let question = asked["inputRequests"]["confirm"]["params"]["message"].as_str().unwrap().to_owned();
    (question, client.result("tools/call", again))
}

fn yes() -> Value {
    json!({"action": "accept", "content": {"confirm": true}})
}

#[test]
fn modern_client_gets_question_as_result_and_repeats_the_call() {
    let home = Home::new();
    build(&home);
    let mut client = Client::start_with(&home, Era::Modern, &["mcp"], can_ask());
    let asked = client.result("tools/call", json!({"name": "delete", "arguments": remove()}));
    assert_eq!(asked["resultType"], "input_required");
    let question = &asked["inputRequests"]["confirm"];
    assert_eq!(question["method"], "elicitation/create");
    assert_eq!(question["params"]["message"], "Remove `/workspace/tree` and the 3 entries in it?");
    assert_eq!(question["params"]["requestedSchema"]["properties"]["confirm"]["type"], "boolean");
    for answer in [
        json!({"action": "decline"}),
        json!({"action": "cancel"}),
        json!({"action": "accept"}),
        json!({"action": "accept", "content": {"confirm": false}}),
        json!({"action": "accept", "content": {"confirm": "true"}}),
        json!("yes"),
    ] {
        let (_, refused) = answered(&mut client, "delete", &remove(), answer);
        assert!(text(&refused).starts_with("error [permission_denied]: the user did not agree"), "{refused}");
    }
    assert!(home.work().join("tree/b/c").exists());
    let (_, removed) = answered(&mut client, "delete", &remove(), yes());
    assert_eq!(text(&removed), "Deleted /workspace/tree and the 3 entries in it");
    assert!(!home.work().join("tree").exists());
}

#[test]
fn consent_requires_the_state_of_its_own_question() {
    let home = Home::new();
    build(&home);
    home.put("other/x", "x");
    let mut client = Client::start_with(&home, Era::Modern, &["mcp"], can_ask());
    let call = |path: &str, state: Option<&Value>| {
        let arguments = json!({"path": path, "recursive": true});
        let mut params = json!({"name": "delete", "arguments": arguments, "inputResponses": {"confirm": yes()}});
        if let Some(state) = state {
            params["requestState"] = state.clone();
        }
        params
    };
    // A client that invents the reply is still asked.
    let asked = client.result("tools/call", call("/workspace/tree", None));
    assert_eq!(asked["resultType"], "input_required");
    let state = &asked["requestState"];
    for (path, state) in [("/workspace/other", state), ("/workspace/tree", &json!("forged"))] {
        assert_eq!(client.error("tools/call", call(path, Some(state)))["code"], -32602);
    }
    // The consent did not cover files added since.
    home.put("tree/more", "x");
    let again = client.result("tools/call", call("/workspace/tree", Some(state)));
    assert_eq!(again["inputRequests"]["confirm"]["params"]["message"], "Remove `/workspace/tree` and the 4 entries in it?");
    assert!(home.work().join("tree/b/c").exists() && home.work().join("other/x").exists());
    text(&client.result("tools/call", call("/workspace/tree", Some(&again["requestState"]))));
    assert!(!home.work().join("tree").exists());
    // A consent is accepted once.
    build(&home);
    home.put("tree/more", "x");
    let spent = client.result("tools/call", call("/workspace/tree", Some(&again["requestState"])));
    assert_eq!(spent["resultType"], "input_required", "{spent}");
}

#[test]
fn destructive_moves_patches_and_restores_require_consent() {
    let home = Home::new();
    let mut client = Client::start_with(&home, Era::Modern, &["mcp", "--tools", "admin"], can_ask());
    for name in ["a", "b", "c", "d"] {
        client.text("write_file", json!({"path": format!("/{name}"), "content": format!("{name}\n")}));
    }
    // These calls destroy nothing, so no consent is needed.
    client.text("move", json!({"from": "/d", "to": "/e", "overwrite": true}));
    let patch = |body: &str| json!({"patch": format!("*** Begin Patch\n{body}\n*** End Patch")});
    client.text("apply_patch", patch("*** Update File: /e\n*** Move to: /d\n-d\n+D\n*** Add File: /f\n+f"));
    assert!(client.failure("apply_patch", patch("*** Delete File: /none")).contains("not_found"));

    let shown = |client: &mut Client| client.text("glob", json!({"pattern": "/*"}));
    let before = shown(&mut client);
    let arguments = json!({"from": "/a", "to": "/b", "overwrite": true});
    let (question, refused) = answered(&mut client, "move", &arguments, json!({"action": "decline"}));
    assert_eq!(question, "Move `/a` to `/b` and replace the file that is there?");
    assert!(text(&refused).ends_with("nothing was changed"), "{refused}");
    let changes = patch("*** Delete File: /a\n*** Add File: /b\n+new\n*** Update File: /c\n*** Move to: /z\n-c\n+C\n*** Delete File: /z");
    let (question, _) = answered(&mut client, "apply_patch", &changes, json!({"action": "decline"}));
    assert_eq!(question, "Apply a patch that removes `/a` and `/c` and replaces `/b`?");
    assert_eq!(shown(&mut client), before);
    let (_, moved) = answered(&mut client, "move", &arguments, yes());
    assert_eq!(text(&moved), "Moved /a to /b");

    client.text("checkpoint", json!({"label": "good"}));
    assert_eq!(client.result("tools/call", json!({"name": "restore", "arguments": {"checkpoint": "good"}}))["resultType"], "complete");
    client.text("write_file", json!({"path": "/b", "content": "worse"}));
    let (question, restored) = answered(&mut client, "restore", &json!({"checkpoint": "good"}), yes());
    assert!(question.starts_with("Restore the files of this conversation to the checkpoint `"), "{question}");
    assert!(question.ends_with("entries, `good`); their current state is kept as a checkpoint?"), "{question}");
    assert!(text(&restored).starts_with("Restored "));
    assert_eq!(client.text("read_file", json!({"path": "/b"})), "a\n");
}

#[test]
fn legacy_client_is_asked_during_the_call() {
    let home = Home::new();
    build(&home);
    let mut client = Client::start_with(&home, Era::Legacy, &["mcp"], can_ask());
    for (answer, remains) in [(json!({"action": "decline"}), true), (json!({"action": "accept", "content": {"confirm": true}}), false)] {
        let id = client.ask("tools/call", json!({"name": "delete", "arguments": remove()}));
        let question = client.next();
        assert_eq!(question["method"], "elicitation/create");
        client.send(json!({"jsonrpc": "2.0", "id": question["id"], "result": answer}));
        let result = client.answer(id)["result"].take();
        assert_eq!((result["isError"] == true, home.work().join("tree").exists()), (remains, remains), "{result}");
    }
}

#[test]
fn small_deletions_and_clients_without_elicitation_need_no_consent() {
    let home = Home::new();
    build(&home);
    std::fs::create_dir(home.work().join("hollow")).unwrap();
    let mut client = Client::start_with(&home, Era::Modern, &["mcp"], can_ask());
    client.text("delete", json!({"path": "/workspace/tree/a"}));
    client.text("delete", json!({"path": "/workspace/hollow", "recursive": true}));
    assert!(client.failure("delete", json!({"path": "/workspace/none", "recursive": true})).contains("not_found"));
    let mut silent = Client::start(&home, Era::Modern, &["mcp"]);
    silent.text("delete", remove());
    assert!(!home.work().join("tree").exists());
}

#[test]
fn memory_deletions_require_consent_like_file_deletions() {
    let home = Home::new();
    let mut client = Client::start_with(&home, Era::Modern, &["mcp", "--tools", "rw"], can_ask());
    for name in ["a.md", "b/c.md"] {
        client.text("memory", json!({"command": "create", "path": format!("/memories/notes/{name}"), "file_text": "x"}));
    }
    let remove = |path: &str| json!({"name": "memory", "arguments": {"command": "delete", "path": path}});
    let asked = client.result("tools/call", remove("/memories/notes"));
    let question = &asked["inputRequests"]["confirm"]["params"]["message"];
    assert_eq!(question, "Remove `/memories/notes` and the 3 entries in it?", "{asked}");
    assert_eq!(text(&client.result("tools/call", remove("/memories/notes/a.md"))), "Successfully deleted /memories/notes/a.md");
    // The spelling of the path does not matter.
    for path in ["/memories/notes/", "/memories/x/../notes"] {
        assert_eq!(client.result("tools/call", remove(path))["resultType"], "input_required", "{path}");
    }
    let (_, removed) = answered(&mut client, "memory", &json!({"command": "delete", "path": "/memories/notes"}), yes());
    assert_eq!(text(&removed), "Successfully deleted /memories/notes");
}

/// Regression: such a call was approved for its removals and then refused for its changes.
#[test]
fn call_with_two_reasons_asks_once_and_runs_after_consent() {
    let patch = "*** Begin Patch\n*** Delete File: /workspace/plain\n*** Add File: /workspace/sub/.envrc\n+x\n*** End Patch";
    let git = "where git runs hooks, filters and commands that lie there or are named there";
    let direnv = "where direnv runs it when a shell enters the directory";
    let calls = [
        (
            "delete",
            json!({"path": "/workspace/.git/hooks", "recursive": true}),
            format!("Remove `/workspace/.git/hooks` and the 1 entry in it, and change `/workspace/.git/hooks`, {git}?"),
            ".git/hooks/x",
        ),
        (
            "move",
            json!({"from": "/workspace/plain", "to": "/workspace/.envrc", "overwrite": true}),
            format!(
                "Move `/workspace/plain` to `/workspace/.envrc` and replace the file that is there, and change `/workspace/.envrc`, {direnv}?"
            ),
            "plain",
        ),
        (
            "apply_patch",
            json!({"patch": patch}),
            format!("Apply a patch that removes `/workspace/plain`, and change `/workspace/sub/.envrc`, {direnv}?"),
            "plain",
        ),
    ];
    for (tool, arguments, expected, goes) in &calls {
        let home = Home::new();
        for file in [".git/hooks/x", "plain", ".envrc"] {
            home.put(file, "x");
        }
        let mut client = Client::start_with(&home, Era::Modern, &["mcp"], can_ask());
        let (question, refused) = answered(&mut client, tool, arguments, json!({"action": "decline"}));
        assert_eq!(question, *expected);
        assert!(text(&refused).contains("did not agree"), "{refused}");
        assert!(home.work().join(goes).exists());
        let (_, done) = answered(&mut client, tool, arguments, yes());
        assert_ne!(done["isError"], true, "{done}");
        assert!(!home.work().join(goes).exists(), "{done}");
        client.close();
        // This client cannot ask a person.
        home.put(goes, "x");
        home.put(".envrc", "x");
        let mut silent = Client::start(&home, Era::Modern, &["mcp"]);
        assert!(silent.failure(tool, arguments.clone()).contains("permission_denied"), "{tool}");
        silent.close();
    }
}

/// Writing files that run code requires consent, and is refused if the client cannot ask a person. Reading them requires none.
#[test]
fn file_that_runs_code_is_written_only_with_consent() {
    let home = Home::new();
    home.put(".git/config", "[core]\n");
    let arguments = json!({"path": "/workspace/.git/hooks/pre-commit", "content": "#!/bin/sh\n"});
    for era in super::ERAS {
        let mut client = Client::start(&home, era, &["mcp"]);
        let refused = client.failure("write_file", arguments.clone());
        assert!(
            refused.starts_with("error [permission_denied]: `/workspace/.git/hooks/pre-commit` may not be written: git runs"),
            "{refused}"
        );
        assert!(client.text("read_file", json!({"path": "/workspace/.git/config"})).contains("[core]"));
        client.close();
    }
    let mut client = Client::start_with(&home, Era::Modern, &["mcp"], can_ask());
    let (question, refused) = answered(&mut client, "write_file", &arguments, json!({"action": "decline"}));
    assert!(question.starts_with("Change `/workspace/.git/hooks/pre-commit`, where git runs"), "{question}");
    assert!(text(&refused).contains("did not agree"), "{refused}");
    assert!(!home.work().join(".git/hooks").exists());
    let (_, written) = answered(&mut client, "write_file", &arguments, yes());
    assert_ne!(written["isError"], true, "{written}");
    assert_eq!(std::fs::read_to_string(home.work().join(".git/hooks/pre-commit")).unwrap(), "#!/bin/sh\n");
    // The consent was for one call.
    let again = client.result("tools/call", json!({"name": "write_file", "arguments": {"path": "/workspace/.git/config", "content": ""}}));
    assert_eq!(again["resultType"], "input_required", "{again}");
    // For files that govern the tree there is no question, only a refusal.
    let cage = client.failure("write_file", json!({"path": "/workspace/treehold.toml", "content": ""}));
    assert!(cage.contains("cannot be changed through this tree"), "{cage}");
    client.close();
}
