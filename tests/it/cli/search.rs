//! `glob`, `find` and `grep` across the tiers.

use super::Home;

fn filled() -> Home {
    let home = Home::new();
    home.put("src/main.rs", "fn main() {\n    todo();\n}\n");
    home.put("target/out.rs", "todo\n");
    home.put(".gitignore", "target/\n");
    home.put("blob.bin", b"todo\0\n");
    home.ok(&["write", "/memories/plan.md", "a\nTodo: tea\nb\nc\nd\ntodo: cake\ne\n"]);
    home.ok(&["write", "/scratch.md", "nothing\n"]);
    home
}

#[test]
fn globs_cross_mounts_and_skip_hidden_files() {
    let home = filled();
    assert_eq!(home.ok(&["glob", "*.md"]), "/memories/plan.md\n/scratch.md\n");
    assert_eq!(home.ok(&["glob", "**/*.rs"]), "/workspace/src/main.rs\n");
    assert_eq!(home.ok(&["glob", "--ignored", "**/*.rs"]), "/workspace/src/main.rs\n/workspace/target/out.rs\n");
    assert_eq!(home.ok(&["glob", "{memories,nowhere}/*.md"]), "/memories/plan.md\n");
    assert_eq!(home.ok(&["glob", "s*", "/workspace", "--dirs"]), "/workspace/src\n");
    home.run(&["glob", "*.none"], 1).stdout("").stderr("");
    home.run(&["glob", "[", "/"], 2);
    home.run(&["glob", "*", "/missing"], 3);
    assert_eq!(home.ok(&["glob", "--limit", "1", "*.md"]), "/memories/plan.md\n");
}

#[test]
fn find_lists_hidden_and_ignored_entries() {
    let home = filled();
    assert_eq!(
        home.ok(&["find", "/workspace"]),
        "/workspace/.gitignore\n/workspace/blob.bin\n/workspace/src\n/workspace/src/main.rs\n/workspace/target\n/workspace/target/out.rs\n"
    );
    assert_eq!(home.ok(&["find", "--kind", "directory"]), "/memories\n/workspace\n/workspace/src\n/workspace/target\n");
    assert_eq!(home.ok(&["find", "/", "--name", "*.md", "--larger", "10"]), "/memories/plan.md\n");
    assert_eq!(home.ok(&["find", "/workspace", "--smaller", "6"]), "/workspace/target/out.rs\n");
    home.run(&["find", "/", "--name", "*.none"], 1);
}

#[test]
fn grep_prints_path_line_and_text() {
    let home = filled();
    assert_eq!(home.ok(&["grep", "todo"]), "/memories/plan.md:6:todo: cake\n/workspace/src/main.rs:2:    todo();\n");
    assert_eq!(home.ok(&["grep", "-i", "todo", "/memories"]), "/memories/plan.md:2:Todo: tea\n/memories/plan.md:6:todo: cake\n");
    assert_eq!(home.ok(&["grep", "-rni", "todo", "/memories/plan.md"]).lines().count(), 2);
    assert_eq!(home.ok(&["grep", "-S", "Todo", "/memories"]), "/memories/plan.md:2:Todo: tea\n");
    assert_eq!(home.ok(&["grep", "-l", "todo"]), "/memories/plan.md\n/workspace/src/main.rs\n");
    assert_eq!(home.ok(&["grep", "-ic", "todo"]), "/memories/plan.md:2\n/workspace/src/main.rs:1\n");
    assert_eq!(home.ok(&["grep", "--regex", "^t\\w+: c", "/"]), "/memories/plan.md:6:todo: cake\n");
    assert_eq!(home.ok(&["grep", "-e", "t.do\\(", "/"]), "/workspace/src/main.rs:2:    todo();\n");
    home.run(&["grep", "-F", "t.do", "/"], 1).stdout("");
    assert_eq!(home.ok(&["grep", "-x", "nothing"]), "/scratch.md:1:nothing\n");
    home.run(&["grep", "-w", "tod", "/"], 1);
    assert_eq!(home.ok(&["grep", "-v", "e", "/memories"]).lines().count(), 4, "a, b, c and d");
    assert_eq!(home.ok(&["grep", "todo", "-g", "*.rs"]), "/workspace/src/main.rs:2:    todo();\n");
    assert_eq!(home.ok(&["grep", "todo", "-g", "!*.rs"]), "/memories/plan.md:6:todo: cake\n");
    assert_eq!(home.ok(&["grep", "todo", "-t", "rust"]), "/workspace/src/main.rs:2:    todo();\n");
    home.run(&["grep", "--", "-x", "/memories"], 1).stdout("");
}

#[test]
fn grep_prints_context() {
    let home = filled();
    assert_eq!(
        home.ok(&["grep", "-i", "-C", "1", "todo", "/memories"]),
        "/memories/plan.md-1-a\n/memories/plan.md:2:Todo: tea\n/memories/plan.md-3-b\n--\n\
         /memories/plan.md-5-d\n/memories/plan.md:6:todo: cake\n/memories/plan.md-7-e\n"
    );
    assert_eq!(home.ok(&["grep", "-A", "1", "todo", "/memories"]), "/memories/plan.md:6:todo: cake\n/memories/plan.md-7-e\n");
    assert_eq!(home.ok(&["grep", "-B", "1", "todo", "/memories"]), "/memories/plan.md-5-d\n/memories/plan.md:6:todo: cake\n");
}

#[test]
fn grep_supports_json_and_quiet_output() {
    let home = filled();
    let found = home.json(&["--json", "grep", "todo"]);
    assert_eq!(found["files"].as_array().unwrap().len(), 2);
    assert_eq!(found["files"][0]["lines"][0]["ranges"], serde_json::json!([[0, 4]]));
    let lines = home.ok(&["--jsonl", "grep", "todo"]);
    let first: serde_json::Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    assert_eq!((&first["path"], &first["line"]), (&"/memories/plan.md".into(), &6.into()));
    home.run(&["grep", "-q", "todo"], 0).stdout("").stderr("");
    home.run(&["grep", "-q", "absent"], 1).stdout("").stderr("");
}

#[test]
fn grep_colors_only_terminal_output() {
    let home = filled();
    assert!(!home.ok(&["grep", "todo"]).contains('\u{1b}'));
    assert!(home.ok(&["--color", "always", "grep", "todo"]).contains("\u{1b}[1;31mtodo\u{1b}[0m"));
    let no_color = home.command(&["grep", "todo"]).env("NO_COLOR", "1").env("CLICOLOR_FORCE", "1").assert();
    assert!(!String::from_utf8_lossy(&no_color.get_output().stdout).contains('\u{1b}'));
}

#[test]
fn binary_files_are_searched_on_request() {
    let home = filled();
    let told = home.run(&["grep", "todo", "/workspace", "-g", "*.bin"], 1).stdout("");
    assert!(String::from_utf8_lossy(&told.get_output().stderr).contains("--binary"));
    home.run(&["grep", "--binary", "todo", "/workspace", "-g", "*.bin"], 0).stdout(&b"/workspace/blob.bin:1:todo\0\n"[..]);
}

#[test]
fn many_matches_are_printed_completely() {
    let home = Home::new();
    let text: String = (0..25_000).map(|line| format!("hit {line}\n")).collect();
    home.put("many.txt", &text);
    let expected: String = (0..25_000).map(|line| format!("/workspace/many.txt:{}:hit {line}\n", line + 1)).collect();
    assert!(home.ok(&["grep", "hit"]) == expected);
    assert_eq!(home.ok(&["grep", "hit", "--limit", "12000"]).lines().count(), 12_000);
    assert_eq!(home.ok(&["grep", "hit", "-m", "3"]).lines().count(), 3);
}
