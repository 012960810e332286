//! A remote server with malicious answers: every command ends with a typed error and without a panic.

use super::Home;
use crate::far::{FarSide, Fate, Reply, small_tree};

/// The server's answer, by the end of the requested path.
const ANSWERS: &[(&str, &str)] = &[
    (
        "search",
        r#"{"words": ["x"], "hits": [{"path": "/a", "score": 1.0, "size_bytes": 1, "version": "1", "words": 1, "frequencies": [1],
        "snippets": [{"line": 1, "text": "é", "ranges": [[1, 900]]}]}], "corpus": {"files": 1, "words": 1, "files_with": [1]}}"#,
    ),
    (
        "search",
        r#"{"words": ["x"], "hits": [{"path": "/a", "score": 1.0, "size_bytes": 1, "version": "1", "words": 1, "frequencies": [1],
        "snippets": [{"line": 1, "text": "abc", "ranges": [[2, 1]]}]}], "corpus": {"files": 1, "words": 1, "files_with": [1]}}"#,
    ),
    (
        "grep",
        r#"{"files": [{"path": "/a", "count": 1, "lines": [{"line": 1, "byte_offset": 0, "text": "x", "ranges": [[7, 9]], "is_match": true}]}]}"#,
    ),
    ("grep", r#"{"files": [], "files_searched": 18446744073709551615, "failures_count": 18446744073709551615}"#),
    ("grep", r#"{"files": [], "truncated": {"reason": "limit", "cursor": "/a:1"}}"#),
    ("ls", r#"{"entries": [], "truncated": {"reason": "limit", "cursor": "a"}}"#),
    ("ls", r#"{"entries": [{"path": "/b", "kind": "file", "size_bytes": 1}, {"path": "/a", "kind": "file", "size_bytes": 1}]}"#),
    ("ls", r#"{"entries": [{"path": "/a", "kind": "directory", "size_bytes": 18446744073709551615}]}"#),
    ("ls", r#"{"entries": [{"path": "/d/x", "kind": "directory", "size_bytes": 0}]}"#),
    ("glob", r#"{"entries": [], "truncated": {"reason": "limit", "cursor": "/a"}}"#),
    ("glob", r#"{"entries": [{"path": "/a", "kind": "file", "size_bytes": 1}], "truncated": {"reason": "size", "cursor": "/a"}}"#),
];

#[tokio::test(flavor = "multi_thread")]
async fn commands_on_a_hostile_server_end_with_typed_errors() {
    let commands: &[&[&str]] = &[
        &["ls", "/far"],
        &["tree", "/far"],
        &["find", "/far"],
        &["glob", "**", "/far"],
        &["grep", "x", "/far"],
        &["search", "x", "/far"],
        &["ls", "/"],
        &["find", "/"],
    ];
    for (operation, answer) in ANSWERS {
        let reply = Reply::new(200, "application/json", *answer);
        let far = FarSide::serve(small_tree().await, move |request| match request.path.ends_with(operation) {
            true => Fate::Answered(reply.clone()),
            false => Fate::Served,
        })
        .await;
        let config = format!("[routes.\"/far\"]\ntype = \"remote\"\nurl = \"{}\"\n", far.url());
        let url = far.url();
        let answer = *answer;
        tokio::task::spawn_blocking(move || {
            let home = Home::new();
            let config = home.put("far.toml", config);
            for args in commands {
                let output = home.command(args).arg("--config").arg(&config).output().unwrap();
                let told = String::from_utf8_lossy(&output.stderr).into_owned();
                let code = output.status.code();
                assert!(matches!(code, Some(0..=6)) && !told.contains("panicked"), "{args:?} on {answer}: {code:?} {told}");
                assert!(code != Some(6) || told.contains(&url), "{args:?} on {answer} names no peer: {told}");
            }
        })
        .await
        .unwrap();
        assert!(far.take().len() < 200, "{answer}");
    }
}
