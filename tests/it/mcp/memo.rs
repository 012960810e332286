//! The memory documents of a session as resources.

use super::{Client, ERAS, Era};
use crate::cli::Home;
use serde_json::{Value, json};

/// A home with the session `s` of the default user.
fn home() -> Home {
    let home = Home::new();
    let init = r#"{"type":"init","sessionId":"s","tenantId":"default","userId":"default","agentId":"a","createdAt":1}"#;
    let document = json!({"files": {"session.jsonl": init, "NOTES.md": "tea\n", "tool-results/call_1.txt": "long result\n"}});
    home.command(&["session", "import"]).write_stdin(document.to_string()).assert().success();
    home
}

fn read(client: &mut Client, uri: &str) -> String {
    client.result("resources/read", json!({"uri": uri}))["contents"][0]["text"].as_str().unwrap().to_owned()
}

#[test]
fn memory_documents_of_the_session_are_listed_and_read() {
    let home = home();
    for era in ERAS {
        let mut client = Client::start(&home, era, &["mcp", "--session", "s"]);
        let listed = client.result("resources/list", json!({}))["resources"].to_string();
        assert!(listed.contains("vfs:///memo/session") && listed.contains("vfs:///memo/user"), "{listed}");
        let templates = client.result("resources/templates/list", json!({}))["resourceTemplates"].to_string();
        assert!(templates.contains("vfs:///memo/session/{+path}"), "{templates}");
        assert_eq!(read(&mut client, "vfs:///memo/session/NOTES.md"), "tea\n");
        assert_eq!(read(&mut client, "vfs:///memo/session"), "NOTES.md\ntool-results/\n");
        assert_eq!(read(&mut client, "vfs:///memo/session/tool-results/call_1.txt"), "long result\n");
        client.error("resources/read", json!({"uri": "vfs:///memo/user/USER.md"}));
        let text = client.text("grep", json!({"pattern": "tea", "path": "/memo"}));
        assert!(text.contains("/memo/session/NOTES.md:1:tea"), "{text}");
        client.close();
    }
    let mut client = Client::start(&home, Era::Modern, &["mcp"]);
    client.error("resources/read", json!({"uri": "vfs:///memo/session/NOTES.md"}));
    client.close();
}

#[test]
fn subscriber_is_notified_when_another_process_changes_the_memory_documents() {
    let home = home();
    let mut client = Client::start(&home, Era::Modern, &["mcp", "--session", "s"]);
    let watched = ["vfs:///memo/session/NOTES.md", "vfs:///memo/user/USER.md", "vfs:///memo/session/tool-results"];
    client.ask("subscriptions/listen", json!({"notifications": {"resourceSubscriptions": watched}}));
    let mut hear = |wanted: &dyn Fn(&Value) -> bool| while !wanted(&client.next()) {};
    hear(&|message| message["method"] == "notifications/subscriptions/acknowledged");
    for (path, uri) in
        [("/memo/session/NOTES.md", watched[0]), ("/memo/user/USER.md", watched[1]), ("/memo/session/tool-results/call_2.txt", watched[2])]
    {
        home.ok(&["--session", "s", "append", path, "milk\n"]);
        hear(&|message| message["params"]["uri"] == uri);
    }
    client.close();
}

#[test]
fn server_for_an_unknown_session_does_not_start() {
    let home = home();
    for args in [&["mcp", "--session", "none"][..], &["mcp", "--session", "s", "--user", "bob"]] {
        let output = home.command(args).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(3) && said.contains("has no session"), "{said}");
    }
    assert_eq!(home.command(&["mcp", "--session", ".."]).output().unwrap().status.code(), Some(2));
}
