//! Edits keep line endings whole at every entry point. One table of cases covers them all.

use crate::cli::Home;
use crate::mcp::{Client, Era};
use crate::serve::Served;
use serde_json::{Value, json};
use treehold::conformance::backend::LINE_ENDING_EDITS;
use treehold::tools::ToolSet;
use treehold::{Backend, BackendExt, StateBackend};

/// One row of the table.
struct Row {
    content: &'static str,
    old: &'static str,
    new: &'static str,
    all: bool,
    expected: &'static str,
}

fn rows() -> impl Iterator<Item = Row> {
    LINE_ENDING_EDITS.iter().map(|(content, old, new, all, expected)| Row { content, old, new, all: *all, expected })
}

/// A tool: its set, its name, whether it can replace all occurrences, and the arguments that make an edit of `/memories/a`.
type Tool = (ToolSet, &'static str, bool, fn(&Row) -> Value);

const TOOLS: &[Tool] = &[
    (
        ToolSet::Default,
        "edit_file",
        true,
        |row| json!({"path": "/memories/a", "old_string": row.old, "new_string": row.new, "replace_all": row.all}),
    ),
    (
        ToolSet::Default,
        "edit_file",
        true,
        |row| json!({"path": "/memories/a", "edits": [{"old_string": row.old, "new_string": row.new, "replace_all": row.all}]}),
    ),
    (
        ToolSet::Memory,
        "memory",
        false,
        |row| json!({"command": "str_replace", "path": "/memories/a", "old_str": row.old, "new_str": row.new}),
    ),
    (
        ToolSet::TextEditor,
        "str_replace_based_edit_tool",
        false,
        |row| json!({"command": "str_replace", "path": "/memories/a", "old_str": row.old, "new_str": row.new}),
    ),
    (
        ToolSet::Agent,
        "edit",
        true,
        |row| json!({"file_path": "/memories/a", "old_string": row.old, "new_string": row.new, "replace_all": row.all}),
    ),
];

#[tokio::test]
async fn edits_by_every_tool_take_line_endings_as_units() {
    let tree = StateBackend::new();
    for (set, name, replaces_all, arguments) in TOOLS {
        for row in rows().filter(|row| *replaces_all || !row.all) {
            tree.write("/memories/a", row.content).await.unwrap();
            let output = set.decode(name, arguments(&row)).unwrap().run(&tree as &dyn Backend).await;
            assert!(!output.is_error, "{name}: {:?} in {:?}: {}", row.old, row.content, output.text);
            let left = tree.read_text("/memories/a").await.unwrap();
            assert_eq!(left, row.expected, "{name}: {:?} to {:?} in {:?}", row.old, row.new, row.content);
        }
    }
}

#[tokio::test]
async fn ambiguous_edits_by_every_tool_count_occurrences_of_either_ending() {
    let row = Row { content: "a\r\nb\nx\na\nb\r\n", old: "a\nb", new: "c", all: false, expected: "" };
    let tree = StateBackend::new();
    tree.write("/memories/a", row.content).await.unwrap();
    for (set, name, _, arguments) in TOOLS {
        let output = set.decode(name, arguments(&row)).unwrap().run(&tree as &dyn Backend).await;
        let said = ["occurs 2 times (lines 1, 4)", "in lines: 1, 4.", "Found 2 matches", "appears 2 times"];
        assert!(said.iter().any(|said| output.text.contains(said)), "{name}: {}", output.text);
    }
    assert_eq!(tree.read_text("/memories/a").await.unwrap(), row.content);
}

#[test]
fn edits_by_command_keep_line_endings_on_disk_and_in_a_store() {
    let home = Home::new();
    for row in rows() {
        for path in ["/workspace/a", "/memories/a"] {
            home.ok(&["write", path, row.content]);
            let mut args = vec!["edit", path, row.old, row.new];
            if row.all {
                args.insert(1, "--all");
            }
            home.ok(&args);
            assert_eq!(home.ok(&["cat", path]), row.expected, "{path}: {:?} to {:?} in {:?}", row.old, row.new, row.content);
        }
    }
}

#[test]
fn edits_over_http_keep_line_endings() {
    let served = Served::start();
    for row in rows() {
        let edit = json!({"old": row.old, "new": row.new, "replace_all": row.all});
        let change = json!({"changes": [{"operation": "edit", "path": "/memories/a", "edits": [edit.clone()]}]});
        let tool = json!({"path": "/memories/a", "old_string": row.old, "new_string": row.new, "replace_all": row.all});
        let requests = [
            ("PATCH", "/v1/fs/memories/a", json!({"edits": [edit.clone()]})),
            ("POST", "/v1/apply", change),
            ("POST", "/v1/tools/edit_file", tool),
        ];
        for (method, path, body) in requests {
            served.put("/v1/fs/memories/a", row.content.as_bytes());
            let answer = served.send(method, path, &[("content-type", "application/json")], body.to_string().as_bytes());
            let status = answer.status;
            assert_eq!(status, 200, "{method} {path}: {}", answer.text());
            let left = served.get("/v1/fs/memories/a").text();
            assert_eq!(left, row.expected, "{method} {path}: {:?} to {:?} in {:?}", row.old, row.new, row.content);
        }
    }
}

/// Makes the tool call for an edit; `None` if the tool has no such edit.
type ToolCallOf = fn(&Row) -> Option<(&'static str, Value)>;

#[test]
fn edits_over_mcp_keep_line_endings_in_every_profile() {
    let home = Home::new();
    let profiles: [(&str, ToolCallOf); 2] = [
        ("default", |row| {
            let edit = json!({"path": "/workspace/a", "old_string": row.old, "new_string": row.new, "replace_all": row.all});
            Some(("edit_file", edit))
        }),
        ("reference", |row| {
            let edit = json!({"path": "/workspace/a", "edits": [{"oldText": row.old, "newText": row.new}]});
            (!row.all).then_some(("edit_file", edit))
        }),
    ];
    for (profile, call) in profiles {
        let mut client = Client::start(&home, Era::Modern, &["mcp", "--tools", profile]);
        for row in rows() {
            let Some((tool, arguments)) = call(&row) else { continue };
            let file = home.put("a", row.content);
            let result = client.call(tool, arguments);
            assert_ne!(result["isError"], true, "{profile}: {result}");
            let left = std::fs::read_to_string(file).unwrap();
            assert_eq!(left, row.expected, "{profile}: {:?} to {:?} in {:?}", row.old, row.new, row.content);
        }
    }
}
