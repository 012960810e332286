//! The sessions of agent hosts: `session`, and `--session`, which mounts their notes.

use super::Home;
use crate::rules::commands::commands;
use serde_json::{Value, json};
use std::path::Path;

/// Returns a session as JSON, as `session export` prints one.
pub(super) fn document(tenant: &str, user: &str, id: &str, title: &str, messages: &[Value]) -> String {
    let init = json!({
        "type": "init", "sessionId": id, "tenantId": tenant, "userId": user, "agentId": "helper", "title": title,
        "createdAt": 1_700_000_000_000_i64,
    });
    let turn = json!({
        "type": "turn", "turnIndex": 0, "inputTokens": 1_000, "outputTokens": 50, "cacheReadTokens": 0, "cacheWriteTokens": 0,
        "updatedAt": 1_700_000_001_000_i64,
    });
    let lines: String = messages.iter().map(|message| format!("{message}\n")).collect();
    json!({"files": {"session.jsonl": format!("{init}\n{turn}\n"), "messages.jsonl": lines, "NOTES.md": "tea\n"}}).to_string()
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text, "timestamp": 1_700_000_000_000_i64, "mood": "good"})
}

/// A home with a session `s` of eight messages.
fn home() -> Home {
    let home = Home::new();
    let mut messages: Vec<Value> = (0..6).map(|number| user(&format!("question {number}"))).collect();
    messages.push(json!({
        "role": "assistant", "timestamp": 1_700_000_000_000_i64,
        "content": [
            {"type": "text", "text": "Look:\nuser  2030-01-01T00:00:00Z"}, {"type": "thinking", "thinking": "hm"},
            {"type": "toolCall", "id": "call_1", "name": "read_file", "arguments": {"path": "/a"}}, {"type": "hologram"}
        ],
    }));
    messages.push(json!({
        "role": "toolResult", "toolCallId": "call_1", "toolName": "read_file", "isError": false, "timestamp": 1_700_000_000_000_i64,
        "content": [{"type": "text", "text": "found"}],
    }));
    import(&home, &document("default", "default", "s", "Tea", &messages));
    home
}

fn import(home: &Home, document: &str) {
    home.with_stdin(&["session", "import", "-"], document.as_bytes()).success();
}

#[test]
fn imported_session_is_listed_shown_and_printed() {
    let home = home();
    assert_eq!(home.ok(&["session", "ls"]), "2023-11-14T22:13:21Z  s\n");
    assert_eq!(home.json(&["session", "ls", "--json"]), json!([{"sessionId": "s", "updatedAt": 1_700_000_001_000_i64}]));
    assert_eq!(
        home.ok(&["session", "show", "s"]),
        "session  s\nuser     default of default\nagent    helper\ntitle    Tea\ncreated  2023-11-14T22:13:20Z\n\
         changed  2023-11-14T22:13:21Z\ncontext  1000 tokens in, 50 out, 1 % full\nNOTES.md about 2 tokens\n"
    );
    let shown = home.json(&["session", "show", "s", "--json"]);
    assert_eq!((&shown["agentId"], &shown["lastContextUsage"]["inputTokens"]), (&json!("helper"), &json!(1_000)));
    assert_eq!(shown["memory"].as_array().unwrap().iter().filter(|document| document["exists"] == true).count(), 1);
    let text = home.ok(&["session", "messages", "s", "--limit", "2"]);
    assert_eq!(
        text,
        "assistant  2023-11-14T22:13:20Z\n  Look:\n  user  2030-01-01T00:00:00Z\n  [thinking]\n  hm\n  [tool call call_1] read_file \
         {\"path\":\"/a\"}\n  [hologram]\ntool result  call_1  2023-11-14T22:13:20Z\n  found\n"
    );
    let turns = home.json(&["session", "turns", "s", "--json"]);
    assert_eq!((turns.as_array().unwrap().len(), &turns[0]["outputTokens"]), (1, &json!(50)));
    assert_eq!(home.ok(&["session", "turns", "s"]), "     0  2023-11-14T22:13:21Z      1000       50        0        0\n");
    home.run(&["session", "ls", "--user", "nobody"], 1);
    home.ok(&["session", "rm", "s"]);
    home.error(&["session", "rm", "s"], 3);
    assert_eq!(home.ok(&["session", "rm", "s", "--force", "--json"]), "[]\n");
}

#[test]
fn messages_are_selected_and_unknown_fields_are_kept() {
    let home = home();
    let ask = |args: &[&str]| {
        let messages = home.json(&[&["session", "messages", "s", "--json"], args].concat());
        messages.as_array().unwrap().iter().map(|message| message["content"].to_string()).collect::<Vec<_>>()
    };
    assert_eq!(ask(&["--limit", "3"]).len(), 3);
    assert_eq!(ask(&[]).len(), 8);
    assert_eq!(ask(&["--full"]).len(), 8);
    assert_eq!(ask(&["--from", "1", "--limit", "2"]), ["\"question 1\"", "\"question 2\""]);
    assert_eq!(ask(&["--budget", "1"]).len(), 2, "a tool result comes with its call");
    let lines = home.ok(&["session", "messages", "s", "--from", "0", "--limit", "1", "--jsonl"]);
    assert_eq!(serde_json::from_str::<Value>(&lines).unwrap(), user("question 0"));
    let notice = home.command(&["session", "messages", "s", "--from", "0", "--limit", "3"]).output().unwrap().stderr;
    assert!(String::from_utf8_lossy(&notice).contains("--from 3"));
    home.run(&["session", "messages", "s", "--from", "8"], 1);
    home.run(&["session", "messages", "s", "--archive", "0001"], 1);
}

#[test]
fn sessions_and_turns_continue_after_a_cursor() {
    let home = Home::new();
    for id in ["a", "b/c", "d e", "é"] {
        import(&home, &document("default", "default", id, "", &[]));
    }
    let mut found = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let mut args = vec!["session", "ls", "--limit", "1", "--json"];
        args.extend(after.iter().flat_map(|after| ["--after", after]));
        let output = home.command(&args).output().unwrap();
        let page: Value = serde_json::from_slice(&output.stdout).unwrap();
        found.extend(page.as_array().unwrap().iter().map(|session| session["sessionId"].as_str().unwrap().to_owned()));
        let notice = String::from_utf8_lossy(&output.stderr).into_owned();
        match notice.split_once("--after '") {
            Some((_, rest)) => after = Some(rest.split('\'').next().unwrap().to_owned()),
            None => break,
        }
    }
    found.sort_unstable();
    assert_eq!(found, ["a", "b/c", "d e", "é"]);
}

#[test]
fn compaction_takes_its_summary_from_a_command_or_a_file() {
    let home = home();
    let plan = home.json(&["session", "compact", "s", "--plan", "--json"]);
    assert_eq!((&plan["count"], plan["messages"].as_array().unwrap().len()), (&json!(4), 4));
    home.put("plan.json", plan.to_string());
    home.put("summary.txt", "Four questions.\n");
    assert_eq!(home.json(&["session", "messages", "s", "--json"]).as_array().unwrap().len(), 8, "a plan changes nothing");
    for (args, code) in [(&["--", "false"][..], 6), (&["--", "no-such-program"], 6), (&["--", "true"], 2), (&["--summary", "none"], 3)] {
        home.error(&[&["session", "compact", "s"], args].concat(), code);
    }
    let done = home.json(&["session", "compact", "s", "--of", "plan.json", "--summary", "summary.txt", "--json"]);
    assert_eq!((&done["archiveId"], &done["messages"]), (&json!("0001"), &json!(4)));
    let window = home.ok(&["session", "messages", "s"]);
    assert!(window.starts_with("user") && window.contains("\n  Four questions.\n") && !window.contains("question 3"), "{window}");
    assert_eq!(home.json(&["session", "messages", "s", "--archive", "0001", "--json"]).as_array().unwrap().len(), 4);
    assert_eq!(home.json(&["session", "messages", "s", "--full", "--json"]).as_array().unwrap().len(), 8);
    // The plan is of the window before.
    assert!(
        home.error(&["session", "compact", "s", "--of", "plan.json", "--summary", "summary.txt"], 4).contains("plan the compaction again")
    );
    home.run(&["session", "compact", "s", "--plan"], 1);
    import(&home, &document("default", "default", "long", "", &(0..9).map(|number| user(&number.to_string())).collect::<Vec<_>>()));
    let printed = home.ok(&["session", "compact", "long", "--fraction", "0.4", "--", "sh", "-c", "grep -c question || echo of-a-command"]);
    assert!(printed.starts_with("3 messages are in archive 0001"), "{printed}");
    assert!(home.ok(&["session", "messages", "long"]).contains("of-a-command"));
    // A command that prints without end is stopped.
    import(&home, &document("default", "default", "endless", "", &(0..9).map(|number| user(&number.to_string())).collect::<Vec<_>>()));
    assert!(home.error(&["session", "compact", "endless", "--", "yes"], 2).contains("262144 bytes"));
}

#[test]
fn exported_session_is_imported_byte_for_byte() {
    let home = home();
    home.with_stdin(&["--session", "s", "write", "/memo/session/TODO.md", "-"], b"\xff\0binary").success();
    home.with_stdin(&["--session", "s", "write", "/memo/session/tool-results/call_1.txt", "-"], b"all of it\n").success();
    let exported = home.ok(&["session", "export", "s"]);
    let files: Value = serde_json::from_str(&exported).unwrap();
    assert_eq!(files["files"]["TODO.md"], json!({"value": "/wBiaW5hcnk=", "encoding": "base64"}));
    home.error_with_stdin(&["session", "import"], exported.as_bytes(), 4);
    home.ok(&["session", "rm", "s"]);
    import(&home, &exported);
    assert_eq!(home.ok(&["session", "export", "s"]), exported);
    let to = home.work().join("host");
    assert_eq!(home.ok(&["session", "export", "--to", "host"]), "1 session exported\n");
    let messages = std::fs::read_to_string(to.join("tenants/default/sessions/s/messages.jsonl")).unwrap();
    assert_eq!(files["files"]["messages.jsonl"], messages);
    home.ok(&["session", "rm", "s"]);
    assert_eq!(home.ok(&["session", "import", "--from", "host"]), "s  8 messages, 2 events\n");
    assert_eq!(home.ok(&["session", "export", "s"]), exported);
}

#[test]
fn session_that_cannot_be_written_is_reported_and_the_others_are_exported() {
    let home = home();
    import(&home, &document("default", "default", "other", "", &[]));
    let to = home.work().join("host/tenants/default/sessions");
    std::fs::create_dir_all(&to).unwrap();
    std::fs::write(to.join("other"), "in the way").unwrap();
    let output = home.command(&["session", "export", "--to", "host"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!output.status.success() && text.starts_with("1 session exported\nfailed "), "{text}");
    assert!(text.contains("sessions/other: ") && to.join("s/messages.jsonl").is_file(), "{text}");
}

#[test]
fn turns_with_usage_of_any_shape_are_listed() {
    let home = Home::new();
    let init = json!({"type": "init", "sessionId": "s", "tenantId": "default", "userId": "default", "agentId": "a", "createdAt": 1});
    let turn = r#"{"type":"turn","turnIndex":0,"inputTokens":7,"updatedAt":2,"cost":"much","usage":{"x":"\ud800"},"x":"\ud800"}"#;
    import(&home, &json!({"files": {"session.jsonl": format!("{init}\n{turn}\n")}}).to_string());
    assert!(home.ok(&["session", "turns", "s"]).contains("       7        0        0        0"));
}

#[test]
fn directory_of_several_users_is_imported_for_one_or_for_all() {
    let home = home();
    for (tenant, owner, id) in [("default", "bob", "of-bob"), ("acme", "default", "of-acme")] {
        let document = document(tenant, owner, id, "", &[user("hello")]);
        home.with_stdin(&["--tenant", tenant, "--user", owner, "session", "import"], document.as_bytes()).success();
        home.with_stdin(&["session", "import"], document.as_bytes()).code(5);
    }
    assert_eq!(home.json(&["session", "export", "--to", "all", "--all-users", "--json"]), json!({"sessions": 3, "failures": []}));
    assert_eq!(home.json(&["session", "export", "--to", "one", "--json"]), json!({"sessions": 1, "failures": []}));
    assert!(home.work().join("all/tenants/acme/sessions/of-acme").is_dir() && !home.work().join("one/tenants/acme").exists());
    let other = Home::new();
    std::fs::rename(home.work().join("all"), other.work().join("all")).unwrap();
    let report = other.json(&["session", "import", "--from", "all", "--json"]);
    assert_eq!((report["sessions"].as_array().unwrap().len(), &report["left_out"]), (1, &json!(2)));
    let assert = other.run(&["session", "import", "--from", "all", "--all-users", "--json"], 4);
    let report: Value = serde_json::from_slice(&assert.get_output().stdout).unwrap();
    assert_eq!(report["sessions"].as_array().unwrap().len(), 2);
    assert_eq!(report["failures"][0]["error"]["code"], "already_exists");
    other.ok(&["--user", "bob", "session", "show", "of-bob"]);
}

#[test]
fn damaged_lines_are_reported_and_the_rest_is_imported() {
    let home = Home::new();
    let mut document: Value = serde_json::from_str(&document("default", "default", "s", "", &[user("one")])).unwrap();
    document["files"]["messages.jsonl"] = format!("{}\n{{\"role\": \"oracle\"}}\nhalf a li", user("one")).into();
    let output = home.with_stdin(&["session", "import"], document.to_string().as_bytes()).code(6).get_output().stdout.clone();
    let text = String::from_utf8(output).unwrap();
    assert!(text.contains("s  1 message") && text.contains("messages.jsonl:2: ") && text.contains("messages.jsonl:3: "), "{text}");
    assert_eq!(home.json(&["session", "messages", "s", "--json"]).as_array().unwrap().len(), 1);
    for (text, code) in [("", 2), ("[]", 2), ("{\"files\": {\"session.jsonl\": 3}}", 2), ("{\"files\": {}}", 6), ("{\"file\": {}}", 2)] {
        home.error_with_stdin(&["session", "import"], text.as_bytes(), code);
    }
    home.error(&["session", "import", "--from", "none"], 3);
}

/// Returns the commands about one session, from the help of the program, each with the arguments that it needs.
fn of_one_session(home: &Home, id: &str) -> Vec<Vec<String>> {
    let all = commands(home, &["session"]).into_iter().filter_map(|words| {
        let more: &[&str] = match words[1].as_str() {
            "ls" | "import" => return None,
            "show" | "messages" | "turns" | "export" | "rm" => &[],
            "compact" => &["--plan"],
            other => panic!("say here how `session {other}` names its session"),
        };
        let id = [if id.starts_with('-') { format!("./{id}") } else { id.to_owned() }];
        Some([&words[..], &id, &more.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>()].concat())
    });
    let all: Vec<_> = all.collect();
    assert!(all.len() >= 6, "{all:?}");
    all
}

#[test]
fn session_of_another_user_or_tenant_is_not_found_by_any_command() {
    let home = home();
    let before = home.ok(&["session", "export", "s"]);
    for caller in [["--user", "bob"], ["--tenant", "acme"]] {
        for words in of_one_session(&home, "s") {
            let words: Vec<&str> = caller.iter().copied().chain(words.iter().map(String::as_str)).collect();
            let said = home.error(&words, 3);
            assert!(!said.contains("question") && !said.contains("Tea"), "{words:?}: {said}");
        }
        let said = home.error(&[&caller[..], &["--session", "s", "ls", "/memo/session"]].concat(), 3);
        assert!(!said.contains("NOTES"), "{said}");
    }
    assert_eq!(home.ok(&["session", "export", "s"]), before);
}

#[test]
fn bad_session_ids_are_refused_by_every_command_and_nothing_is_stored() {
    let home = home();
    let long = "x".repeat(300);
    let before = home.ok(&["store", "ls"]);
    for id in ["", ".", "..", "_treehold", "a\nb", "a\u{1b}b", "\u{7f}", &long] {
        for words in of_one_session(&home, id) {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            assert!(home.error(&words, 2).contains("id"), "{words:?}");
        }
        home.error(&["--session", id, "ls", "/"], 2);
        home.error_with_stdin(&["session", "import"], document("default", "default", id, "", &[]).as_bytes(), 2);
        home.error_with_stdin(&["session", "import"], document("default", id, "new", "", &[]).as_bytes(), 2);
    }
    // Unusual ids that can be kept are kept exactly, and none is taken for another.
    let unusual = ["a/b", "a:b", "a%2Fb", "%", "a b", "...", "é", "S"];
    for id in unusual {
        for words in of_one_session(&home, id) {
            home.error(&words.iter().map(String::as_str).collect::<Vec<_>>(), 3);
        }
        assert_eq!(home.ok(&["store", "ls"]), before);
    }
    for id in unusual {
        import(&home, &document("default", "default", id, id, &[user(id)]));
    }
    for id in unusual {
        assert_eq!(home.json(&["session", "show", id, "--json"])["title"], id);
        assert_eq!(home.json(&["session", "messages", id, "--json"])[0]["content"], id);
    }
    home.ok(&["--tenant", "a:b", "--user", "c", "config", "check"]);
    for (tenant, owner) in [("a:b", "c"), ("a", "b:c")] {
        let document = document(tenant, owner, "same", &format!("{tenant} {owner}"), &[]);
        home.with_stdin(&["--tenant", tenant, "--user", owner, "session", "import"], document.as_bytes()).success();
    }
    for (tenant, owner) in [("a:b", "c"), ("a", "b:c")] {
        let shown = home.json(&["--tenant", tenant, "--user", owner, "session", "show", "same", "--json"]);
        assert_eq!(shown["title"], format!("{tenant} {owner}"));
    }
}

#[test]
fn file_commands_and_tools_work_on_the_notes_of_the_mounted_session() {
    let home = home();
    let with = |args: &[&str]| home.ok(&[&["--session", "s"], args].concat());
    assert_eq!(with(&["cat", "/memo/session/NOTES.md"]), "tea\n");
    with(&["append", "/memo/session/NOTES.md", "and milk\n"]);
    with(&["write", "/memo/user/USER.md", "likes tea\n"]);
    assert!(with(&["grep", "tea", "/memo"]).contains("/memo/user/USER.md:1:likes tea"));
    assert!(home.ok(&["session", "show", "s"]).contains("USER.md"));
    assert!(with(&["timeline"]).contains("/memo/session/NOTES.md"));
    home.put(
        "calls.jsonl",
        "{\"tool\": \"read_file\", \"args\": {\"path\": \"/memo/session/NOTES.md\"}}\n{\"user\": \"bob\"}\n\
         {\"tool\": \"write_file\", \"args\": {\"path\": \"/memo/session/NOTES.md\", \"content\": \"x\"}}\n\
         {\"tool\": \"ls\", \"args\": {\"path\": \"/memo/session\"}}\n",
    );
    let played = home.command(&["--session", "s", "run", "calls.jsonl"]).output().unwrap();
    let text = String::from_utf8_lossy(&played.stdout).into_owned();
    assert!(text.contains("and milk") && text.contains("error [not_found]") && played.status.code() == Some(3), "{text}");
    assert_eq!(text.matches("NOTES.md").count(), 2, "the other user sees no file: {text}");
    assert_eq!(with(&["cat", "/memo/session/NOTES.md"]), "tea\nand milk\n");
    // A route cannot hide the mount, and rules hold for it.
    home.put("taken.toml", "[routes.\"/memo/session\"]\ntype = \"filesystem\"\nroot = \".\"\n");
    assert!(home.error(&["--config", "taken.toml", "--session", "s", "ls", "/"], 2).contains("/memo/session"));
    home.put(
        "ruled.toml",
        "[sessions]\nmounted = \"s\"\n[[layers.permissions]]\neffect = \"deny\"\noperations = [\"write\"]\npaths = [\"/memo/user\"]\n",
    );
    home.error(&["--config", "ruled.toml", "write", "/memo/user/USER.md", "no"], 5);
    assert_eq!(home.ok(&["--config", "ruled.toml", "cat", "/memo/session/NOTES.md"]), "tea\nand milk\n");
    home.error(&["--session", "none", "ls", "/"], 3);
    home.ok(&["session", "rm", "s"]);
    home.error(&["--session", "s", "ls", "/"], 3);
    assert!(Path::new(&home.data()).exists());
}
