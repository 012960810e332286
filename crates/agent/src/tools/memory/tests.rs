//! Tests of every message of the memory tool, and of the tool against a model of the SDK's helper.

use super::super::stage::{call, tree};
use super::super::{ToolCall, ToolSet};
use super::*;
use proptest::prelude::*;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use treehold_store::{MemoryStore, Namespace};
use treehold_tree::backend::{StateBackend, StoreBackend};

async fn answer(backend: &dyn Backend, arguments: Value) -> (String, bool) {
    let output = call(backend, "memory", arguments).await;
    assert_eq!(output.is_error, output.error.is_some());
    (output.text, output.is_error)
}

fn ok(text: &str) -> (String, bool) {
    (text.to_owned(), false)
}

fn refused(text: &str) -> (String, bool) {
    (text.to_owned(), true)
}

#[tokio::test]
async fn every_message_matches_the_sdk() {
    let long = "x\n".repeat(1_000_000);
    let backend = tree(&[
        ("/memories/notes.txt", "one\ntwo\nthree\nfour\nfive\nsix\n"),
        ("/memories/no_end", "a\nb"),
        ("/memories/twice", "Hello\nMiddle\nHello"),
        ("/memories/crlf", "a\r\nb\r\n"),
        ("/memories/empty", ""),
        ("/memories/long", &long),
        ("/memories/d/inner.md", &"x".repeat(5632)),
        ("/memories/d/e/deep.md", "x"),
        ("/memories/d/e/f/deepest.md", "x"),
        ("/memories/.hidden/a", "x"),
        ("/memories/node_modules/a/b", "x"),
    ])
    .await;
    backend.write("/memories/image", &b"\0\xff"[..]).await.expect("bytes");
    let view = |path: &str| json!({"command": "view", "path": path});
    let listing = "Here're the files and directories up to 2 levels deep in /memories, excluding hidden items and node_modules:\n\
        4K\t/memories\n4K\t/memories/d/\n4K\t/memories/d/e/\n5.5K\t/memories/d/inner.md\n0B\t/memories/empty\n2B\t/memories/image\n";
    let snippet = "The memory file has been edited. Here is the snippet showing the change (with line numbers):\n";
    for (arguments, expected) in [
        (
            view("/memories/notes.txt"),
            ok(
                "Here's the content of /memories/notes.txt with line numbers:\n     1\tone\n     2\ttwo\n     3\tthree\n     4\tfour\n     5\tfive\n     6\tsix\n     7\t",
            ),
        ),
        (
            json!({"command": "view", "path": "/memories/notes.txt", "view_range": [2, 3]}),
            ok("Here's the content of /memories/notes.txt with line numbers:\n     2\ttwo\n     3\tthree"),
        ),
        (
            json!({"command": "view", "path": "/memories/no_end", "view_range": [-4, -1]}),
            ok("Here's the content of /memories/no_end with line numbers:\n     1\ta\n     2\tb"),
        ),
        (view("/memories/crlf"), ok("Here's the content of /memories/crlf with line numbers:\n     1\ta\r\n     2\tb\r\n     3\t")),
        (view("/memories/empty"), ok("Here's the content of /memories/empty with line numbers:\n     1\t")),
        (view("/memories/long"), refused("File /memories/long exceeds maximum line limit of 999,999 lines.")),
        (view("/memories/image"), refused("Unsupported file type for /memories/image")),
        (view("/memories/none"), refused("The path /memories/none does not exist. Please provide a valid path.")),
        (view("/memories/empty/none"), refused("The path /memories/empty/none does not exist. Please provide a valid path.")),
        (view("/memories_old"), refused("Path must start with /memories, got: /memories_old")),
        (view("/memories/../a"), refused("Path /memories/../a would escape /memories directory")),
        (view("/memories/%2e%2e/a"), refused("Path /memories/%2e%2e/a would escape /memories directory")),
        (
            json!({"command": "create", "path": "/memories/new/a.md", "file_text": "x"}),
            ok("File created successfully at: /memories/new/a.md"),
        ),
        (json!({"command": "create", "path": "/memories/new/a.md", "file_text": "y"}), refused("File /memories/new/a.md already exists")),
        (json!({"command": "create", "path": "/memories/new", "file_text": "y"}), refused("File /memories/new already exists")),
        (json!({"command": "create", "path": "/memories/", "file_text": "y"}), refused("File /memories/ already exists")),
        (json!({"command": "create", "path": "/memories/a"}), refused("Parameter `file_text` is required for this command.")),
        (
            json!({"command": "str_replace", "path": "/memories/notes.txt", "old_str": "four", "new_str": "4\n4b"}),
            ok(&format!("{snippet}     2\ttwo\n     3\tthree\n     4\t4\n     5\t4b\n     6\tfive")),
        ),
        (
            json!({"command": "str_replace", "path": "/memories/notes.txt", "old_str": "one\n", "new_str": "1\n"}),
            ok(&format!("{snippet}     1\t1\n     2\ttwo\n     3\tthree")),
        ),
        (json!({"command": "str_replace", "path": "/memories/no_end", "old_str": "b"}), ok(&format!("{snippet}     1\ta\n     2\t"))),
        (
            json!({"command": "str_replace", "path": "/memories/notes.txt", "old_str": "nine", "new_str": "9"}),
            refused("No replacement was performed, old_str `nine` did not appear verbatim in /memories/notes.txt."),
        ),
        (
            json!({"command": "str_replace", "path": "/memories/twice", "old_str": "Hello", "new_str": "9"}),
            refused("No replacement was performed. Multiple occurrences of old_str `Hello` in lines: 1, 3. Please ensure it is unique"),
        ),
        (
            json!({"command": "str_replace", "path": "/memories/none", "old_str": "a", "new_str": "b"}),
            refused("The path /memories/none does not exist. Please provide a valid path."),
        ),
        (
            json!({"command": "str_replace", "path": "/memories/d", "old_str": "a", "new_str": "b"}),
            refused("The path /memories/d is not a file."),
        ),
        (
            json!({"command": "insert", "path": "/memories/no_end", "insert_line": 1, "insert_text": "x\n\n"}),
            ok("The file /memories/no_end has been edited."),
        ),
        (
            json!({"command": "insert", "path": "/memories/no_end", "insert_line": 10, "insert_text": "x"}),
            refused("Invalid `insert_line` parameter: 10. It should be within the range [0, 2]."),
        ),
        (
            json!({"command": "insert", "path": "/memories/no_end", "insert_line": -1, "insert_text": "x"}),
            refused("Invalid `insert_line` parameter: -1. It should be within the range [0, 2]."),
        ),
        (
            json!({"command": "insert", "path": "/memories/none", "insert_line": 0, "insert_text": "x"}),
            refused("The path /memories/none does not exist. Please provide a valid path."),
        ),
        (
            json!({"command": "insert", "path": "/memories/d", "insert_line": 0, "insert_text": "x"}),
            refused("The path /memories/d is not a file."),
        ),
        (
            json!({"command": "rename", "old_path": "/memories/new/a.md", "new_path": "/memories/deep/er/b.md"}),
            ok("Successfully renamed /memories/new/a.md to /memories/deep/er/b.md"),
        ),
        (
            json!({"command": "rename", "old_path": "/memories/none", "new_path": "/memories/other"}),
            refused("The path /memories/none does not exist"),
        ),
        (
            json!({"command": "rename", "old_path": "/memories/crlf", "new_path": "/memories/empty"}),
            refused("The destination /memories/empty already exists"),
        ),
        (
            json!({"command": "rename", "old_path": "/memories/crlf", "new_path": "/memories/d"}),
            refused("The destination /memories/d already exists"),
        ),
        (
            json!({"command": "rename", "old_path": "/memories/crlf", "new_path": "/memories/crlf"}),
            refused("The destination /memories/crlf already exists"),
        ),
        (
            json!({"command": "rename", "old_path": "/memories/d/..", "new_path": "/memories/other"}),
            refused("Cannot rename the /memories directory itself"),
        ),
        (json!({"command": "delete", "path": "/memories/new"}), ok("Successfully deleted /memories/new")),
        (json!({"command": "delete", "path": "/memories/deep"}), ok("Successfully deleted /memories/deep")),
        (json!({"command": "delete", "path": "/memories/none"}), refused("The path /memories/none does not exist")),
        (json!({"command": "delete", "path": "/memories/"}), refused("Cannot delete the /memories directory itself")),
        (json!({"command": "delete", "path": "/memories/d/.."}), refused("Cannot delete the /memories directory itself")),
        (json!({"command": "delete", "path": "/memories/long"}), ok("Successfully deleted /memories/long")),
        (json!({"command": "delete", "path": "/memories/crlf"}), ok("Successfully deleted /memories/crlf")),
        (view("/memories"), ok(&format!("{listing}4B\t/memories/no_end\n26B\t/memories/notes.txt\n18B\t/memories/twice"))),
        (
            view("/memories/d/"),
            ok("Here're the files and directories up to 2 levels deep in /memories/d/, excluding hidden items and node_modules:\n\
                4K\t/memories/d/\n4K\t/memories/d/e/\n1B\t/memories/d/e/deep.md\n4K\t/memories/d/e/f/\n5.5K\t/memories/d/inner.md"),
        ),
    ] {
        assert_eq!(answer(&backend, arguments.clone()).await, expected, "{arguments}");
    }
    assert_eq!(backend.read_text("/memories/no_end").await.expect("the file"), "a\nx\n");
}

#[tokio::test]
async fn view_without_memories_shows_an_empty_directory() {
    let backend = StateBackend::new();
    let nothing =
        "Here're the files and directories up to 2 levels deep in /memories, excluding hidden items and node_modules:\n4K\t/memories";
    assert_eq!(answer(&backend, json!({"command": "view", "path": "/memories"})).await, ok(nothing));
    assert!(!answer(&backend, json!({"command": "create", "path": "/memories/a", "file_text": "x"})).await.1);
}

#[tokio::test]
async fn edit_in_crlf_file_matches_and_keeps_line_endings() {
    let backend = tree(&[("/memories/crlf", "a\r\nb\r\nc\r\n")]).await;
    assert!(!answer(&backend, json!({"command": "str_replace", "path": "/memories/crlf", "old_str": "a\nb", "new_str": "x\ny"})).await.1);
    assert_eq!(backend.read_text("/memories/crlf").await.expect("the file"), "x\r\ny\r\nc\r\n");
}

#[tokio::test]
async fn long_view_is_cut_and_says_how_to_continue() {
    let lines: Vec<String> = (1..=3000).map(|number| format!("{number} {}", "é".repeat(60))).collect();
    let backend = tree(&[("/memories/long", &lines.join("\n")), ("/memories/wide", &"w".repeat(120_000))]).await;
    let (mut first, mut seen) = (1, Vec::new());
    loop {
        let output = call(&backend, "memory", json!({"command": "view", "path": "/memories/long", "view_range": [first, -1]})).await;
        let (content, remark) =
            output.text.split_once("\n\n[memory] ").map_or((&*output.text, None), |(content, remark)| (content, Some(remark)));
        assert!(content.chars().count() <= render::TEXT_CHARS_MAX + 1);
        seen.extend(content.lines().skip(1).map(|line| line.split_once('\t').expect("a number").1.to_owned()));
        match remark {
            Some(remark) => {
                let next = remark.rsplit_once("view_range=[").and_then(|(_, rest)| rest.strip_suffix(", -1]")).expect("how to continue");
                first = next.parse().expect("a line");
            }
            None => break,
        }
    }
    assert_eq!(seen, lines);
    let (wide, _) = answer(&backend, json!({"command": "view", "path": "/memories/wide"})).await;
    assert!(wide.ends_with("\n\n[memory] line 1 is cut after 50,000 characters") && wide.len() < 51_000, "{}", wide.len());
}

#[tokio::test]
async fn concurrent_edits_are_all_kept() {
    let store: Arc<MemoryStore> = Arc::default();
    let backend: Arc<dyn Backend> = Arc::new(StoreBackend::new(store, Namespace::new(["m"]).expect("a legal name")));
    backend.write("/memories/log", "start\n").await.expect("a legal file");
    let writers = (0..8).map(|writer| {
        let backend = backend.clone();
        tokio::spawn(async move {
            for round in 0..10 {
                let insert = Memory::insert("/memories/log", 1, format!("mark {writer} {round};"));
                assert!(!ToolCall::from(insert).run(&*backend).await.is_error);
                let replace = Memory::str_replace("/memories/log", format!("mark {writer} {round};"), format!("done {writer} {round};"));
                let output = ToolCall::from(replace).run(&*backend).await;
                assert!(!output.is_error && output.text.contains(&format!("done {writer} {round};")), "{}", output.text);
            }
        })
    });
    for writer in futures::future::join_all(writers).await {
        writer.expect("every writer ended");
    }
    let log = backend.read_text("/memories/log").await.expect("the file");
    assert_eq!(log.lines().count(), 81, "{log}");
    for writer in 0..8 {
        for round in 0..10 {
            assert_eq!(log.matches(&format!("done {writer} {round};")).count(), 1, "{writer} {round}");
        }
    }
}

/// A model of the SDK's helper: a map of files, without empty directories.
#[derive(Debug, Default)]
struct Helper(BTreeMap<String, String>);

impl Helper {
    fn is_directory(&self, path: &str) -> bool {
        path == ROOT || self.0.keys().any(|file| file.strip_prefix(path).is_some_and(|rest| rest.starts_with('/')))
    }

    /// Returns whether a path lies below a file.
    fn is_beneath_file(&self, path: &str) -> bool {
        self.0.keys().any(|file| path.strip_prefix(file.as_str()).is_some_and(|rest| rest.starts_with('/')))
    }

    /// Answers as the helper does; `None` where the helper fails with a host error.
    fn call(&mut self, memory: &Memory) -> Option<(String, bool)> {
        let text = |text: &Option<String>| text.clone().expect("the model gets all arguments");
        let path = memory.path.clone().unwrap_or_default();
        let missing = refused(&format!("The path {path} does not exist. Please provide a valid path."));
        Some(match memory.command {
            MemoryCommand::Create => {
                if self.0.contains_key(&path) || self.is_directory(&path) {
                    return Some(refused(&format!("File {path} already exists")));
                }
                if self.is_beneath_file(&path) {
                    return None;
                }
                self.0.insert(path.clone(), text(&memory.file_text));
                ok(&format!("File created successfully at: {path}"))
            }
            MemoryCommand::View if self.is_directory(&path) => return None,
            MemoryCommand::View => {
                let Some(content) = self.0.get(&path) else { return Some(missing) };
                let mut shown = format!("Here's the content of {path} with line numbers:");
                for (index, line) in content.split('\n').enumerate() {
                    let _ = write!(shown, "\n{:>6}\t{line}", index + 1);
                }
                ok(&shown)
            }
            MemoryCommand::StrReplace | MemoryCommand::Insert if self.is_directory(&path) => {
                refused(&format!("The path {path} is not a file."))
            }
            MemoryCommand::StrReplace => {
                let (old, new) = (text(&memory.old_str), text(&memory.new_str));
                let Some(content) = self.0.get_mut(&path) else { return Some(missing) };
                let lines: Vec<String> = (0..content.len())
                    .filter(|at| content[*at..].starts_with(&old))
                    .map(|at| (content[..at].matches('\n').count() + 1).to_string())
                    .collect();
                match content.matches(&old).count() {
                    0 => refused(&format!("No replacement was performed, old_str `{old}` did not appear verbatim in {path}.")),
                    1 => {
                        let line = content[..content.find(&old)?].matches('\n').count();
                        *content = content.replacen(&old, &new, 1);
                        let shown = content.split('\n').enumerate().skip(line.saturating_sub(2)).take(line.min(2) + 3);
                        let shown: Vec<String> = shown.map(|(index, line)| format!("{:>6}\t{line}", index + 1)).collect();
                        ok(&format!(
                            "The memory file has been edited. Here is the snippet showing the change (with line numbers):\n{}",
                            shown.join("\n")
                        ))
                    }
                    _ => refused(&format!(
                        "No replacement was performed. Multiple occurrences of old_str `{old}` in lines: {}. Please ensure it is unique",
                        lines.join(", ")
                    )),
                }
            }
            MemoryCommand::Insert => {
                let Some(content) = self.0.get_mut(&path) else { return Some(missing) };
                let mut lines: Vec<&str> = content.split('\n').collect();
                lines.pop_if(|last| last.is_empty());
                let line = memory.insert_line.expect("a line");
                if line < 0 || line as usize > lines.len() {
                    let count = lines.len();
                    return Some(refused(&format!("Invalid `insert_line` parameter: {line}. It should be within the range [0, {count}].")));
                }
                let inserted = text(&memory.insert_text);
                lines.insert(line as usize, inserted.trim_end_matches('\n'));
                let mut after = lines.join("\n");
                if !after.ends_with('\n') {
                    after.push('\n');
                }
                *content = after;
                ok(&format!("The file {path} has been edited."))
            }
            MemoryCommand::Delete if path == ROOT => refused("Cannot delete the /memories directory itself"),
            MemoryCommand::Delete => {
                if !self.0.contains_key(&path) && !self.is_directory(&path) {
                    return Some(refused(&format!("The path {path} does not exist")));
                }
                self.0.retain(|file, _| *file != path && !file.strip_prefix(&path).is_some_and(|rest| rest.starts_with('/')));
                ok(&format!("Successfully deleted {path}"))
            }
            MemoryCommand::Rename => {
                let (old, new) = (text(&memory.old_path), text(&memory.new_path));
                if old == ROOT {
                    return Some(refused("Cannot rename the /memories directory itself"));
                }
                let is_there = self.0.contains_key(&old) || self.is_directory(&old);
                if self.0.contains_key(&new) || self.is_directory(&new) {
                    return Some(refused(&format!("The destination {new} already exists")));
                }
                if !is_there {
                    return Some(refused(&format!("The path {old} does not exist")));
                }
                if self.is_beneath_file(&new) || new.starts_with(&format!("{old}/")) {
                    return None;
                }
                let moved: Vec<String> =
                    self.0.keys().filter(|file| **file == old || file.starts_with(&format!("{old}/"))).cloned().collect();
                for file in moved {
                    if let Some(content) = self.0.remove(&file) {
                        self.0.insert(format!("{new}{}", &file[old.len()..]), content);
                    }
                }
                ok(&format!("Successfully renamed {old} to {new}"))
            }
        })
    }
}

fn any_command() -> impl Strategy<Value = Memory> {
    let path = || prop_oneof![9 => "/memories/[ab](/[ab])?", 1 => Just("/memories".to_owned())];
    let text = || "[xy\n]{0,6}";
    prop_oneof![
        path().prop_map(Memory::view),
        (path(), text()).prop_map(|(path, text)| Memory::create(path, text)),
        (path(), "[xy\n]{1,2}", text()).prop_map(|(path, old, new)| Memory::str_replace(path, old, new)),
        (path(), -1..4_i64, text()).prop_map(|(path, line, text)| Memory::insert(path, line, text)),
        path().prop_map(Memory::delete),
        (path(), path()).prop_map(|(old, new)| Memory::rename(old, new)),
    ]
}

/// Returns every file below `/memories`, and removes directories left empty, which the model does not keep.
async fn files(backend: &dyn Backend) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    let entries = backend.tree("/", 9, 1000).await.expect("a tree").entries;
    for entry in entries.iter().rev() {
        match entry.is_directory() {
            true if entry.path != ROOT => drop(backend.delete(entry.path.as_str()).await),
            true => {}
            false => drop(files.insert(entry.path.to_string(), backend.read_text(entry.path.as_str()).await.expect("text"))),
        }
    }
    files
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn answers_equal_those_of_the_sdk_helper(commands in proptest::collection::vec(any_command(), 1..12)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let (backend, mut helper) = (StateBackend::new(), Helper::default());
            for memory in commands {
                let before = helper.0.clone();
                let expected = helper.call(&memory);
                let output = ToolCall::from(memory.clone()).run(&backend).await;
                match expected {
                    Some(expected) => prop_assert_eq!((output.text, output.is_error), expected, "{:?}", memory),
                    None => prop_assert_eq!(output.is_error, memory.command != MemoryCommand::View, "{:?}: {}", memory, output.text),
                }
                prop_assert_eq!(files(&backend).await, helper.0.clone(), "after {:?} on {:?}", memory, before);
            }
            Ok(())
        })?;
    }
}

#[test]
fn client_arguments_are_parsed() {
    let call = ToolSet::Memory.decode("memory", json!({"command": "view", "path": "/memories", "view_range": null})).expect("a legal call");
    assert_eq!(call, Memory::view("/memories").into());
    assert_eq!(call.to_string(), r#"memory {"command":"view","path":"/memories"}"#);
    let error = ToolCall::from_json("memory", json!({"command": "append", "path": "/memories/a"})).expect_err("no such command");
    assert!(error.message().contains("one of view, create, str_replace, insert, delete, rename"), "{error}");
}
