//! The state at `/`: it lasts between commands of one thread, and stays within the thread.

use super::Home;

#[test]
fn state_is_visible_only_in_its_own_thread() {
    let home = Home::new();
    home.ok(&["write", "/plan.md", "mine"]);
    home.ok(&["--thread", "t2", "write", "/plan.md", "other"]);
    assert_eq!(home.ok(&["cat", "/plan.md"]), "mine");
    assert_eq!(home.ok(&["cat", "/plan.md", "--thread", "t2"]), "other");
    home.run(&["--thread", "t3", "cat", "/plan.md"], 3);
    home.run(&["--user", "ada", "cat", "/plan.md"], 3);
    home.run(&["--tenant", "acme", "cat", "/plan.md"], 3);
    let by_environment = home.command(&["cat", "/plan.md"]).env("TREEHOLD_THREAD", "t2").assert();
    by_environment.code(0).stdout("other");
    assert_eq!(home.ok(&["--agent", "coder", "cat", "/plan.md"]), "mine", "agents of one user share a thread");
}

#[test]
fn memories_are_shared_by_threads_and_not_by_users() {
    let home = Home::new();
    home.ok(&["--thread", "t1", "write", "/memories/a.md", "ours"]);
    assert_eq!(home.ok(&["--thread", "t2", "cat", "/memories/a.md"]), "ours");
    home.run(&["--user", "ada", "cat", "/memories/a.md"], 3);
    // An id is one component, whatever characters it contains.
    home.run(&["--tenant", "default/default", "cat", "/memories/a.md"], 3);
}

#[test]
fn threads_are_listed_and_removed() {
    let home = Home::new();
    assert_eq!(home.ok(&["thread", "ls"]), "");
    home.ok(&["--thread", "b", "write", "/d/a", "12345"]);
    home.ok(&["--thread", "a", "write", "/a", "1"]);
    home.ok(&["--thread", "looked-at", "ls"]);
    let list = home.ok(&["thread", "ls"]);
    let ids: Vec<&str> = list.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(ids, ["a", "b"], "a thread that was only read is not saved");
    let list = home.json(&["--json", "thread", "ls"]);
    assert_eq!((&list[1]["entries"], &list[1]["size_bytes"]), (&2.into(), &5.into()));
    assert_eq!(home.ok(&["thread", "ls", "--user", "ada"]), "");
    home.ok(&["thread", "rm", "a", "b"]);
    home.run(&["thread", "rm", "a"], 3);
    home.run(&["--thread", "a", "cat", "/a"], 3);
}

/// Regression: without a permission rule anywhere, a thread was removed although its tree is read-only.
#[test]
fn thread_in_read_only_tree_is_not_removed_with_or_without_rules() {
    let home = Home::new();
    home.ok(&["--thread", "a", "write", "/a", "1"]);
    // Its past still holds a file.
    home.ok(&["--thread", "emptied", "write", "/a", "1"]);
    home.ok(&["--thread", "emptied", "rm", "/a"]);
    let read_only = "[routes.\"/\"]\ntype = \"state\"\nread_only = true\n";
    let rule = "[[layers.permissions]]\neffect = \"deny\"\noperations = [\"write\"]\npaths = [\"/zzz\"]\n";
    for config in [read_only.to_owned(), format!("{read_only}{rule}")] {
        home.put("treehold.toml", &config);
        assert!(home.error(&["thread", "rm", "a"], 5).contains("read-only"), "{config}");
        assert_eq!(home.ok(&["--thread", "a", "cat", "/a"]), "1", "{config}");
        assert!(home.error(&["thread", "rm", "emptied"], 5).contains("read-only"), "{config}");
        home.error(&["thread", "rm", "missing"], 3);
    }
    home.put("treehold.toml", read_only.replace("true", "false"));
    home.ok(&["thread", "rm", "a"]);
    home.ok(&["thread", "rm", "emptied"]);
}

#[test]
fn unchanged_thread_is_not_saved() {
    let home = Home::new();
    home.ok(&["write", "/a", "one"]);
    let before = home.json(&["--json", "thread", "ls"]);
    home.ok(&["cat", "/a"]);
    home.ok(&["ls"]);
    home.run(&["write", "--new", "/a", "two"], 4);
    home.ok(&["write", "/memories/b", "two"]);
    assert_eq!(home.json(&["--json", "thread", "ls"]), before);
}

#[test]
fn unreadable_thread_is_an_error() {
    let home = Home::new();
    home.ok(&["write", "/a", "one"]);
    home.ok(&["store", "rm", "default/default/_treehold/threads/heads", "default"]);
    home.with_stdin(&["store", "put", "default/default/_treehold/threads/heads", "default"], b"\x01damaged").code(0);
    for args in [&["cat", "/a"][..], &["ls", "/"], &["write", "/b", "two"]] {
        assert!(home.error(args, 6).contains("cannot be read"));
    }
    assert_eq!(home.ok(&["store", "get", "default/default/_treehold/threads/heads", "default"]), "\u{1}damaged", "left as it is");
    home.ok(&["write", "/memories/b", "the other tiers are there"]);
    // Nobody knows its paths, so it goes only where no rule could refuse one.
    let (route, rules) = ("[routes.\"/\"]\ntype = \"state\"\n", "[[layers.permissions]]\neffect = \"deny\"\npaths = [\"/kept\"]\n");
    for (operation, is_refused) in [("delete", true), ("write", true), ("read", true), ("append", false)] {
        home.put("treehold.toml", format!("{route}{rules}operations = [\"{operation}\"]\n"));
        match is_refused {
            true => assert!(home.error(&["thread", "rm", "default"], 5).contains("cannot be read"), "{operation}"),
            false => drop(home.ok(&["thread", "rm", "default"])),
        }
    }
    home.error(&["thread", "rm", "default"], 3);
}

#[test]
fn configuration_selects_where_threads_are_saved() {
    let home = Home::new();
    let config = home.put("one.toml", "[threads]\nstore = \"own\"\n[stores.own]\nurl = \"sqlite:own.db\"\n");
    let config = config.to_str().unwrap();
    home.ok(&["--config", config, "write", "/a", "one"]);
    assert_eq!(home.ok(&["--config", config, "cat", "/a"]), "one");
    assert!(home.work().join("own.db").exists());
    home.run(&["cat", "/a"], 3);
    let nowhere = home.put("two.toml", "[threads]\nsave = false\n");
    let nowhere = nowhere.to_str().unwrap();
    home.ok(&["--config", nowhere, "write", "/a", "one"]);
    home.run(&["--config", nowhere, "cat", "/a"], 3);
    home.run(&["--config", nowhere, "thread", "ls"], 2);
}
