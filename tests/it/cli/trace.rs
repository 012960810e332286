//! The traces of agents: `trace`.

use super::Home;
use serde_json::{Value, json};

/// Creates a trace with two messages, the second of which a terminal would obey.
fn filled(home: &Home) {
    assert_eq!(home.ok(&["trace", "create", "compare\nthe offers", "--id", "t"]), "t\n");
    assert_eq!(home.ok(&["trace", "continue", "t", "which is cheapest?"]), "appended message 1\n");
    home.ok(&["trace", "continue", "t", "the second\u{1b}[31m\nnot a message", "--role", "assistant"]);
}

fn sequences(messages: &Value) -> Vec<u64> {
    messages.as_array().unwrap().iter().map(|message| message["sequence"].as_u64().unwrap()).collect()
}

#[test]
fn trace_is_created_continued_rewound_shown_and_removed() {
    let home = Home::new();
    home.run(&["trace", "ls"], 1);
    filled(&home);
    assert_eq!(home.json(&["trace", "continue", "t", "again", "--after", "1", "--json"])["sequence"], 3);
    let shown = home.json(&["trace", "show", "t", "--json"]);
    assert_eq!((&shown["head_sequence"], &shown["total_messages"], &shown["goal_tree"]["goals"]), (&json!(3), &json!(3), &json!([])));
    assert_eq!(sequences(&shown["main_path"]), [1, 3]);
    assert_eq!(sequences(&home.json(&["trace", "show", "t", "--head", "2", "--json"])["main_path"]), [1, 2]);
    assert_eq!(sequences(&home.json(&["trace", "show", "t", "--limit", "1", "--json"])["main_path"]), [3]);
    assert_eq!(sequences(&home.json(&["trace", "messages", "t", "--since", "1", "--json"])), [2, 3]);
    let list = home.json(&["trace", "ls", "--json"]);
    assert_eq!((list.as_array().unwrap().len(), &list[0]["trace_id"]), (1, &json!("t")));
    home.run(&["trace", "ls", "--status", "failed"], 1);
    // Another user's trace is neither listed nor read.
    home.run(&["--user", "bob", "trace", "ls"], 1);
    home.error(&["--user", "bob", "trace", "show", "t"], 5);
    home.error(&["--tenant", "other", "trace", "show", "t"], 3);
    assert_eq!(home.json(&["trace", "rm", "t", "--json"]), json!(["t"]));
    home.error(&["trace", "rm", "t"], 3);
    assert_eq!(home.json(&["trace", "rm", "t", "--force", "--json"]), json!([]));
}

#[test]
fn text_of_a_trace_neither_controls_the_terminal_nor_imitates_other_lines() {
    let home = Home::new();
    filled(&home);
    let shown = home.ok(&["trace", "show", "t"]);
    assert!(!shown.contains('\u{1b}') && shown.contains("\\u{1b}[31m"), "{shown}");
    assert!(shown.contains("task     compare\\nthe offers\n") && shown.contains("\n        not a message\n"), "{shown}");
    assert_eq!(home.ok(&["trace", "ls"]).lines().count(), 1);
}

#[test]
fn events_are_replayed_after_a_position() {
    let home = Home::new();
    filled(&home);
    let events = |args: &[&str]| -> Vec<Value> {
        let printed = home.ok(&[&["trace", "tail", "t", "--once", "--jsonl"], args].concat());
        printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let kinds: Vec<Value> = events(&[]).iter().map(|event| event["event"].clone()).collect();
    assert_eq!(kinds, ["trace_created", "message_added", "message_added"]);
    assert_eq!(events(&["--since", "2"])[0]["event_id"], 3);
    home.run(&["trace", "tail", "t", "--once", "--since", "3"], 1);
    home.error(&["trace", "tail", "unknown", "--once"], 3);
}

#[test]
fn wrong_ids_and_places_are_refused() {
    let home = Home::new();
    filled(&home);
    for (args, code) in [
        (&["show", "unknown"][..], 3),
        (&["show", "agent://host"], 2),
        (&["show", "@nobody/t"], 2),
        (&["show", "agent://nobody.example/t"], 2),
        (&["continue", "t", "x", "--after", "9"], 2),
        (&["continue", "t", "x", "--wait", "1s"], 2),
        (&["continue", "unknown", "x"], 3),
        (&["create", "x", "--id", "t"], 4),
        (&["create", "x", "--id", "a/b"], 2),
        (&["messages", "unknown"], 3),
    ] {
        home.error(&[&["trace"], args].concat(), code);
    }
    assert_eq!(home.json(&["trace", "show", "t", "--json"])["total_messages"], 2);
}

#[cfg(unix)]
#[test]
fn exported_traces_are_imported_with_the_same_messages() {
    let home = Home::new();
    filled(&home);
    let before = home.json(&["trace", "messages", "t", "--json"]);
    let exported = home.json(&["trace", "export", "--to", ".trace", "--json"]);
    assert_eq!((&exported["traces"][0]["id"], &exported["failures"]), (&json!("t"), &json!([])));
    assert!(home.work().join(".trace/t/meta.json").exists());
    home.ok(&["trace", "rm", "t"]);
    let imported = home.json(&["trace", "import", "--from", ".trace", "--json"]);
    assert_eq!((&imported["traces"][0]["messages"], &imported["failures"]), (&json!(2), &json!([])));
    let after = home.json(&["trace", "messages", "t", "--json"]);
    assert_eq!((sequences(&after), &after[1]["content"]), (sequences(&before), &before[1]["content"]));
    home.error(&["trace", "import", "--from", "missing"], 3);
    home.run(&["trace", "export", "unknown", "--to", "out"], 3);
}
