//! The choices of tools, and what each does differently from the default.

use super::{Client, ERAS, Era, text};
use crate::cli::Home;
use serde_json::{Value, json};

fn names(client: &mut Client) -> Vec<String> {
    let listed = client.result("tools/list", json!({}));
    listed["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn tools_that_are_not_offered_cannot_be_called() {
    let home = Home::new();
    for (tools, missing) in [("ro", "write_file"), ("memory", "ls"), ("default", "restore"), ("rw", "restore")] {
        let mut client = Client::start(&home, Era::Modern, &["mcp", "--tools", tools]);
        assert!(!names(&mut client).contains(&missing.to_owned()));
        assert_eq!(client.error("tools/call", json!({"name": missing, "arguments": {}}))["code"], -32602, "{tools}");
    }
    let said = home.command(&["mcp", "--tools", "all"]).assert().code(2).get_output().stderr.clone();
    assert!(String::from_utf8(said).unwrap().contains("default, reference, memory, ro, rw, admin"));
}

#[test]
fn instructions_for_read_only_tools_do_not_mention_writing() {
    let home = Home::new();
    home.put("AGENTS.md", "Answer in French.\n".repeat(1_000));
    for (tools, told, not_told) in
        [("ro", "You cannot change it here", "edit the file"), ("default", "edit the file", "You cannot change it")]
    {
        let mut client = Client::start(&home, Era::Modern, &["mcp", "--tools", tools]);
        let instructions = client.result("server/discover", json!({}))["instructions"].as_str().unwrap().to_owned();
        assert!(instructions.contains(told) && !instructions.contains(not_told), "{instructions}");
        assert!(instructions.contains("Answer in French.") && instructions.chars().count() <= 4_200, "{}", instructions.len());
    }
}

#[test]
fn reference_tools_ignore_thread_argument() {
    let home = Home::new();
    let mut client = Client::start(&home, Era::Modern, &["mcp", "--tools", "reference", "--allow", "/"]);
    let arguments = json!({"path": "/own.md", "content": "one", "thread_id": "other"});
    client.result("tools/call", json!({"name": "write_file", "arguments": arguments}));
    let read = client.result("tools/call", json!({"name": "read_text_file", "arguments": {"path": "/own.md"}}));
    assert_eq!(read["structuredContent"]["content"], "one", "{read}");
}

#[test]
fn memory_tool_uses_the_messages_its_clients_expect() {
    let home = Home::new();
    for era in ERAS {
        let mut client = Client::start(&home, era, &["mcp", "--tools", "memory"]);
        let created = client.text("memory", json!({"command": "create", "path": "/memories/a.md", "file_text": "one\n"}));
        assert_eq!(created, "File created successfully at: /memories/a.md");
        let again = client.failure("memory", json!({"command": "create", "path": "/memories/a.md", "file_text": "two\n"}));
        assert_eq!(again, "File /memories/a.md already exists");
        client.text("memory", json!({"command": "delete", "path": "/memories/a.md"}));
    }
}

#[test]
fn admin_tools_restore_a_checkpoint() {
    let home = Home::new();
    let mut client = Client::start(&home, Era::Modern, &["mcp", "--tools", "admin"]);
    assert_eq!(client.text("history", json!({})), "[history] this conversation has no checkpoint yet");
    client.text("write_file", json!({"path": "/a.md", "content": "one"}));
    client.text("checkpoint", json!({"label": "before"}));
    client.text("write_file", json!({"path": "/a.md", "content": "two"}));
    let history = client.text("history", json!({"limit": 2}));
    assert!(history.lines().nth(1).unwrap().ends_with("[before]"), "{history}");
    client.text("restore", json!({"checkpoint": "before"}));
    assert_eq!(client.text("read_file", json!({"path": "/a.md"})), "one");
    client.text("restore", json!({"checkpoint": "~1"}));
    assert_eq!(home.ok(&["cat", "/a.md"]), "two");
    assert!(client.failure("restore", json!({"checkpoint": "none"})).starts_with("error [not_found]: "));
    assert!(client.failure("restore", json!({})).starts_with("error [invalid_argument]: "));
    assert!(client.failure("history", json!({"limit": 0})).starts_with("error [invalid_argument]: "));
    assert_eq!(client.text("history", json!({"thread_id": "another"})), "[history] this conversation has no checkpoint yet");
}

/// The results of the reference server; `scripts/mcp-reference.sh` compares all of them with the server itself.
#[test]
fn reference_tools_answer_like_the_reference_server() {
    let home = Home::new();
    home.put("a.txt", "one\ntwo\nthree\n");
    home.put("sub/b.md", "x");
    let mut client = Client::start(&home, Era::Legacy, &["mcp", "--tools", "reference", "--allow", "/workspace"]);
    insta::assert_json_snapshot!("reference_tools", client.result("tools/list", json!({}))["tools"]);
    let mut said = |tool: &str, arguments: Value| {
        let result = client.call(tool, arguments);
        let shown = result["content"][0]["text"].as_str().unwrap().to_owned();
        match result["isError"] == true {
            true => format!("error: {shown}"),
            false => {
                assert_eq!(result["structuredContent"]["content"], shown.as_str(), "{tool}");
                shown
            }
        }
    };
    let edit = |old: &str, new: &str| json!({"path": "/workspace/a.txt", "edits": [{"oldText": old, "newText": new}]});
    let answers = [
        said("read_text_file", json!({"path": "/workspace/a.txt", "head": 2})),
        said("read_text_file", json!({"path": "/workspace/none"})),
        said("read_text_file", json!({"path": "/memories/x"})),
        said("read_file", json!({"path": 7})),
        said("read_multiple_files", json!({"paths": ["/workspace/a.txt", "/workspace/sub"]})),
        said("list_directory", json!({"path": "/workspace"})),
        said("list_directory_with_sizes", json!({"path": "/workspace"})),
        said("directory_tree", json!({"path": "/workspace"})),
        said("search_files", json!({"path": "/workspace", "pattern": "**/*.md"})),
        said("edit_file", edit("two", "2")),
        said("edit_file", edit("two", "2")),
        said("move_file", json!({"source": "/workspace/a.txt", "destination": "/workspace/sub"})),
        said("move_file", json!({"source": "/workspace/a.txt", "destination": "/workspace/c.txt"})),
        said("create_directory", json!({"path": "/workspace/c.txt"})),
        said("list_allowed_directories", json!({})),
        said("fly", json!({})),
    ];
    insta::assert_snapshot!("reference_answers", answers.join("\n----\n"));
}

#[test]
fn concurrent_edits_by_reference_tools_lose_nothing() {
    const EDITS: usize = 20;
    let home = Home::new();
    let lines: String = (0..2 * EDITS).map(|line| format!("line {line}.\n")).collect();
    home.put("a.txt", lines);
    std::thread::scope(|scope| {
        for half in 0..2 {
            let mut client = Client::start(&home, Era::Modern, &["mcp", "--tools", "reference"]);
            scope.spawn(move || {
                for number in 0..EDITS {
                    let line = half * EDITS + number;
                    let edit = json!([{"oldText": format!("line {line}."), "newText": format!("done {line}.")}]);
                    let result = client.call("edit_file", json!({"path": "/workspace/a.txt", "edits": edit}));
                    assert_ne!(result["isError"], true, "{result}");
                }
            });
        }
    });
    let left = home.ok(&["cat", "/workspace/a.txt"]);
    assert_eq!(left.lines().filter(|line| line.starts_with("done")).count(), 2 * EDITS, "{left}");
}

#[test]
fn oversized_result_is_moved_to_a_file() {
    let home = Home::new();
    let long: String = (0..240).map(|line| format!("needle {line} {}\n", "x".repeat(300))).collect();
    home.put("long.txt", &long);
    let mut client = Client::start(&home, Era::Modern, &["mcp"]);
    let answer = client.text("grep", json!({"pattern": "needle", "path": "/workspace"}));
    assert!(answer.len() < 5_000 && answer.starts_with("/workspace/long.txt:1:needle 0 "), "{answer}");
    let path = answer.split('`').nth(1).unwrap().to_owned();
    assert!(path.starts_with("/.large_tool_results/grep-"), "{answer}");
    let whole = home.ok(&["cat", &path]);
    assert!(whole.lines().nth(200).unwrap().starts_with("/workspace/long.txt:201:needle 200 "));
    // Without a tool that writes, nothing is written, and a file is read unchanged.
    let mut reader = Client::start(&home, Era::Modern, &["--thread", "reader", "mcp", "--tools", "ro"]);
    assert!(reader.text("grep", json!({"pattern": "needle", "path": "/workspace"})).len() > 40_000);
    assert!(!reader.text("ls", json!({})).contains("large_tool_results"));
    let read = client.call("read_file", json!({"path": "/workspace/long.txt"}));
    assert!(text(&read).starts_with(&long[..50_000]));
}
