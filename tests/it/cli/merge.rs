//! Merging a fork back after both threads have continued.

use super::Home;

#[test]
fn fork_is_compared_and_merged_back() {
    let home = Home::new();
    home.ok(&["write", "/plan.md", "1. measure\n2. cut\n3. sand\n"]);
    home.ok(&["thread", "fork", "try"]);
    home.ok(&["edit", "/plan.md", "1. measure", "1. measure twice"]);
    home.ok(&["--thread", "try", "edit", "/plan.md", "3. sand", "3. sand and oil"]);
    home.ok(&["--thread", "try", "write", "/oil.md", "linseed"]);
    let changes = "changed   /plan.md\nadded     /oil.md\n";
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&home.ok(&["thread", "merge", "try", "--dry-run"])), sorted(changes));
    home.run(&["cat", "/oil.md"], 3);
    assert_eq!(sorted(&home.ok(&["thread", "merge", "try"])), sorted(changes));
    assert_eq!(home.ok(&["cat", "/plan.md"]), "1. measure twice\n2. cut\n3. sand and oil\n");
    let again = home.run(&["thread", "merge", "try"], 0);
    assert!(String::from_utf8_lossy(&again.get_output().stderr).contains("is up to date"));
    home.ok(&["thread", "merge", "default", "--into", "try"]);
    assert_eq!(home.ok(&["--thread", "try", "cat", "/plan.md"]), home.ok(&["cat", "/plan.md"]));
}

#[test]
fn merge_conflict_shows_both_sides_until_resolved() {
    let home = Home::new();
    home.ok(&["write", "/a.md", "one\n"]);
    home.ok(&["write", "/b.md", "one\n"]);
    home.ok(&["thread", "fork", "try"]);
    for file in ["/a.md", "/b.md"] {
        home.ok(&["write", file, "ours\n"]);
        home.ok(&["--thread", "try", "write", file, "theirs\n"]);
    }
    let ended = home.run(&["thread", "merge", "try"], 4);
    let text = String::from_utf8_lossy(&ended.get_output().stdout).into_owned();
    assert!(text.starts_with("conflict  /a.md  (both changed it)\n@@ line 1 @@\n-ours\n+theirs\nconflict  /b.md"), "{text}");
    assert!(String::from_utf8_lossy(&ended.get_output().stderr).contains("2 conflicts are undecided, nothing was merged"));
    assert_eq!(home.ok(&["cat", "/a.md"]), "ours\n");
    let ended = home.run(&["--json", "thread", "merge", "try"], 4);
    let told: serde_json::Value = serde_json::from_slice(&ended.get_output().stdout).unwrap();
    assert_eq!((&told["status"], &told["undecided"]), (&"conflict".into(), &2.into()));
    assert_eq!(told["conflicts"][0]["hunks"][0]["theirs"]["text"], "theirs\n");
    home.run(&["thread", "merge", "try", "--resolve", "/a.md"], 2);
    home.run(&["thread", "merge", "try", "--resolve", "/c.md=ours", "--strategy", "ours"], 2);
    home.ok(&["thread", "merge", "try", "--resolve", "/a.md=theirs", "--strategy", "union"]);
    assert_eq!(home.ok(&["cat", "/a.md", "/b.md"]), "theirs\nours\ntheirs\n");
    let error = home.error(&["thread", "merge", "tri"], 3);
    assert!(error.contains("there is no thread `tri`; did you mean `try`?"), "{error}");
    assert!(home.error(&["thread", "merge", "none"], 3).contains("`treehold thread ls` lists them"));
}

#[test]
fn conflict_says_which_thread_did_what() {
    let home = Home::new();
    home.ok(&["write", "/a.md", "one\n"]);
    home.ok(&["write", "/b.md", "one\n"]);
    home.ok(&["thread", "fork", "try"]);
    home.ok(&["rm", "/a.md"]);
    home.ok(&["--thread", "try", "write", "/a.md", "theirs\n"]);
    home.ok(&["write", "/b.md", "ours\n"]);
    home.ok(&["--thread", "try", "rm", "/b.md"]);
    let ended = home.run(&["thread", "merge", "try"], 4).get_output().clone();
    let text = String::from_utf8(ended.stdout).unwrap();
    assert!(text.contains("conflict  /a.md  (`default` removed it, `try` changed it)"), "{text}");
    assert!(text.contains("conflict  /b.md  (`default` changed it, `try` removed it)"), "{text}");
    assert!(String::from_utf8(ended.stderr).unwrap().contains("`union` (both texts) or `markers`"));
}
