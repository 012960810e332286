//! The restriction of the reference tools to the directories of `--allow`, with links that lead out of them.

use super::http::Served;
use super::{Client, Era};
use crate::cli::Home;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Text that only files outside contain.
const SECRET: &str = "xyzzysecret";

/// Paths in the allowed directory that lead out of it.
const OUT: [&str; 8] = [
    "/workspace/ok/file_link",
    "/workspace/ok/directory_link",
    "/workspace/ok/directory_link/s.txt",
    "/workspace/ok/directory_link/new.txt",
    "/workspace/ok/chain",
    "/workspace/ok/dangling",
    "/workspace/ok/dangling_directory/new.txt",
    "/workspace/ok/inner_link/../directory_link/s.txt",
];

fn home() -> Home {
    let home = Home::new();
    home.put("secret/s.txt", format!("{SECRET} of a file\n"));
    home.put("ok/a.txt", "mine\n");
    home.put("ok/inner/b.txt", "mine too\n");
    let links = [
        ("file_link", "../secret/s.txt"),
        ("directory_link", "../secret"),
        ("chain", "file_link"),
        ("dangling", "../secret/new.txt"),
        ("dangling_directory", "../secret/new"),
        ("inner_link", "inner"),
        ("a_link", "inner_link/../a.txt"),
    ];
    for (link, target) in links {
        symlink(target, home.work().join("ok").join(link)).unwrap();
    }
    home
}

fn dump(directory: &Path, all: &mut BTreeMap<PathBuf, Vec<u8>>) {
    for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            dump(&entry.path(), all);
        }
        let content = if kind.is_file() { std::fs::read(entry.path()).unwrap() } else { Vec::new() };
        all.insert(entry.path(), content);
    }
}

/// Returns arguments that satisfy a tool's schema, with `path` for every path except the one named `own`.
fn arguments(tool: &Value, path: &str, own: Option<&str>) -> Value {
    let mut arguments = json!({});
    for (name, schema) in tool["inputSchema"]["properties"].as_object().into_iter().flatten() {
        let at = if own == Some(name) { "/workspace/ok/a.txt" } else { path };
        arguments[name] = match (name.as_str(), schema["type"].as_str()) {
            ("path" | "source" | "destination", _) => json!(at),
            ("paths", _) => json!([at]),
            ("pattern", _) => json!("**"),
            ("edits", _) => json!([{"oldText": SECRET, "newText": "edited"}]),
            ("content", _) => json!("overwritten"),
            // Other arguments have defaults.
            (_, Some("boolean" | "number" | "integer" | "array")) | (_, None) => continue,
            ("sortBy", _) => continue,
            (other, _) => panic!("say here what `{other}` of `{}` is", tool["name"]),
        };
    }
    arguments
}

/// Regression: only the text of a path was checked, so read, edit, write, list and move followed links out of the directory.
#[test]
fn reference_tools_follow_no_link_out_of_allowed_directories() {
    let home = home();
    let mut client = Client::start(&home, Era::Modern, &["mcp", "--tools", "reference", "--allow", "/workspace/ok"]);
    let tools = client.result("tools/list", json!({}))["tools"].as_array().unwrap().clone();
    assert_eq!(tools.len(), 14);
    let state = || {
        let mut all = BTreeMap::new();
        dump(&home.work(), &mut all);
        all
    };
    let before = state();
    for tool in &tools {
        let name = tool["name"].as_str().unwrap();
        for out in OUT {
            for own in [None, Some("source"), Some("destination")] {
                let arguments = arguments(tool, out, own);
                let result = client.call(name, arguments.clone());
                let said = result.to_string();
                assert!(!said.contains(SECRET) && !said.contains("s.txt\\n"), "{name} {arguments}: {said}");
                let refuses = arguments.get("path").is_some() || arguments.get("source").is_some();
                assert!(!refuses || result["isError"] == true, "{name} {arguments}: {said}");
                assert!(arguments.get("paths").is_none() || said.contains("Access denied"), "{name} {arguments}: {said}");
                assert_eq!(state(), before, "{name} {arguments}: {said}");
            }
        }
    }
    // A search from inside finds the links and follows none.
    let found = client.call("search_files", json!({"path": "/workspace/ok", "pattern": "**"})).to_string();
    assert!(found.contains("inner_link") && !found.contains("directory_link") && !found.contains("s.txt"), "{found}");
    let tree = client.call("directory_tree", json!({"path": "/workspace/ok"})).to_string();
    assert!(!tree.contains("s.txt"), "{tree}");
}

#[test]
fn link_within_allowed_directories_is_followed() {
    let home = home();
    symlink("ok", home.work().join("ok_link")).unwrap();
    for allowed in ["/workspace/ok", "/workspace/ok_link"] {
        let mut client = Client::start(&home, Era::Modern, &["mcp", "--tools", "reference", "--allow", allowed]);
        for path in ["inner_link/b.txt", "inner/b.txt"] {
            let read = client.call("read_text_file", json!({"path": format!("{allowed}/{path}")}));
            assert_eq!(read["structuredContent"]["content"], "mine too\n", "{allowed} {path}: {read}");
        }
        let wrote = client.call("write_file", json!({"path": format!("{allowed}/inner_link/{}.txt", allowed.len()), "content": "x"}));
        assert_ne!(wrote["isError"], true, "{wrote}");
        assert!(home.work().join(format!("ok/inner/{}.txt", allowed.len())).exists());
        let edited =
            client.call("edit_file", json!({"path": format!("{allowed}/a_link"), "edits": [{"oldText": "mine", "newText": "mine"}]}));
        assert_ne!(edited["isError"], true, "{edited}");
        assert!(home.work().join("ok/a_link").is_symlink());
        let outside = client.call("read_text_file", json!({"path": "/workspace/secret/s.txt"}));
        assert_eq!(outside["isError"], true, "{outside}");
    }
}

/// Regression: a directory of one thread had to exist in the thread `default` for the server to start.
#[test]
fn allowed_directory_of_a_thread_is_checked_in_the_thread_of_each_call() {
    let home = Home::new();
    home.ok(&["--thread", "docs", "write", "/docs/a.txt", "text of the thread"]);
    let served = Served::start(&home, &["--tools", "reference", "--allow", "/docs"]);
    let call = |thread: &str, tool: &str, arguments: Value| {
        let (status, answer) = served.call(&format!("/mcp/t/{thread}"), &[], tool, arguments);
        assert_eq!(status, 200, "{answer}");
        answer["result"]["content"][0]["text"].as_str().unwrap().to_owned()
    };
    assert!(call("docs", "read_text_file", json!({"path": "/docs/a.txt"})).contains("text of the thread"));
    assert!(call("docs", "read_text_file", json!({"path": "/other"})).contains("Access denied"));
    // A thread without the directory lacks it, until a call creates it.
    assert!(call("empty", "list_directory", json!({"path": "/docs"})).contains("ENOENT"));
    assert!(call("empty", "write_file", json!({"path": "/docs/b.txt", "content": "x"})).contains("ENOENT"));
    assert!(call("empty", "create_directory", json!({"path": "/docs"})).contains("Successfully created"));
    assert!(call("empty", "write_file", json!({"path": "/docs/b.txt", "content": "new"})).contains("Successfully wrote"));
    assert_eq!(home.ok(&["--thread", "empty", "cat", "/docs/b.txt"]), "new");
}
