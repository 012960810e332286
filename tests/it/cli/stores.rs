//! `store`: the rows beneath.

use super::Home;

#[test]
fn rows_are_listed_read_put_and_removed() {
    let home = Home::new();
    home.ok(&["write", "/memories/a.md", "one"]);
    home.ok(&["write", "/memories/d/b.md", "two"]);
    assert_eq!(home.ok(&["store", "ls"]), "default/default/memories\n");
    let keys = home.ok(&["store", "ls", "default/default/memories"]);
    assert_eq!(keys.lines().count(), 3, "two files and a directory: {keys}");
    for key in keys.lines().filter(|key| key.contains(".md")) {
        assert!(["one", "two"].contains(&home.ok(&["store", "get", "default/default/memories", key]).as_str()));
    }
    home.with_stdin(&["store", "put", "own/rows", "k%25y", "-"], b"\0\xff").code(0);
    home.run(&["store", "get", "own/rows", "k%25y"], 0).stdout(&b"\0\xff"[..]);
    assert_eq!(home.ok(&["store", "ls", "own/rows", "--prefix", "k"]), "k%25y\n");
    assert!(home.error(&["store", "put", "default/default/memories", keys.lines().next().unwrap(), "x"], 2).contains("stratafs write"));
    home.run(&["store", "rm", "own/rows", "k%25y", "absent"], 3);
    home.ok(&["store", "rm", "own/rows", "k%25y"]);
    home.run(&["store", "get", "own/rows", "k%25y"], 3);
    home.ok(&["store", "rm", "default/default/memories", "--all"]);
    assert_eq!(home.ok(&["store", "ls"]), "");
    home.run(&["store", "ls", "nowhere"], 1).stdout("");
    home.run(&["store", "ls", "--store", "none"], 3);
    home.run(&["store", "ls", "a//b"], 2);
}

#[test]
fn stats_count_rows_and_bytes() {
    let home = Home::new();
    home.ok(&["store", "put", "own", "k", "12345"]);
    let stats = home.json(&["--json", "store", "stats"]);
    assert_eq!((&stats["namespaces"], &stats["rows"], &stats["bytes"]), (&1.into(), &1.into(), &5.into()));
    assert!(home.ok(&["store", "stats"]).contains("rows        1\n"));
}
