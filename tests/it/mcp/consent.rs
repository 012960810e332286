//! A person is asked before a directory goes with all in it, where the client can ask.

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

#[test]
fn a_client_of_today_is_asked_by_the_answer_and_asks_again_with_the_decision() {
    let home = Home::new();
    build(&home);
    let mut client = Client::start_with(&home, Era::Modern, &["mcp"], can_ask());
    let call = |answer: Option<Value>| {
        let mut params = json!({"name": "delete", "arguments": remove()});
        if let Some(answer) = answer {
            params["inputResponses"] = json!({"confirm": answer});
        }
        params
    };
    let asked = client.result("tools/call", call(None));
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
        let refused = client.result("tools/call", call(Some(answer)));
        assert!(text(&refused).starts_with("error [permission_denied]: the user did not agree"), "{refused}");
    }
    assert!(home.work().join("tree/b/c").exists());
    let removed = client.result("tools/call", call(Some(json!({"action": "accept", "content": {"confirm": true}}))));
    assert_eq!(text(&removed), "Deleted /workspace/tree and the 3 entries in it");
    assert!(!home.work().join("tree").exists());
}

#[test]
fn a_client_of_the_older_era_is_asked_while_it_waits() {
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
fn nobody_is_asked_about_little_or_where_the_client_cannot_ask() {
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
fn memories_are_asked_about_as_files_are() {
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
    let mut call = remove("/memories/notes");
    call["inputResponses"] = json!({"confirm": {"action": "accept", "content": {"confirm": true}}});
    assert_eq!(text(&client.result("tools/call", call)), "Successfully deleted /memories/notes");
}
