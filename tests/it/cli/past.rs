//! `log`, `cat --at`, `diff`, `restore` and `undo` of files with a history, and what cannot go back.

use super::Home;

fn contents(home: &Home) {
    for content in ["one\n", "two\n", "three\n"] {
        home.ok(&["write", "/memories/notes.md", content]);
    }
}

#[test]
fn versions_of_memory_are_listed_read_compared_and_restored() {
    let home = Home::new();
    contents(&home);
    let log = home.json(&["--json", "log", "/memories/notes.md"]);
    let told: Vec<_> =
        log.as_array().unwrap().iter().map(|one| (one["number"].as_u64().unwrap(), one["size_bytes"].as_u64().unwrap())).collect();
    assert_eq!(told, [(3, 6), (2, 4), (1, 4)]);
    assert!(log.as_array().unwrap().iter().all(|one| one["author"]["thread"] == "default" && one["operation"] == "write"), "{log}");
    assert!(home.ok(&["log", "/memories/notes.md", "--limit", "1"]).starts_with("v3 "));
    for (of, expected) in [("@v1", "one\n"), ("@~1", "two\n"), ("@latest", "three\n"), ("", "three\n")] {
        assert_eq!(home.ok(&["cat", &format!("/memories/notes.md{of}")]), expected, "{of}");
    }
    let headed = home.ok(&["head", "-1", "/memories/notes.md@v1", "/memories/notes.md"]);
    assert_eq!(headed, "==> /memories/notes.md@v1 <==\none\n\n==> /memories/notes.md <==\nthree\n");
    // A file of that name comes first, and a name without a file and a moment is one that does not exist.
    home.ok(&["write", "/memories/notes.md@v1", "its own"]);
    assert_eq!(home.ok(&["cat", "/memories/notes.md@v1"]), "its own");
    home.ok(&["rm", "/memories/notes.md@v1"]);
    assert!(home.error(&["cat", "/memories/me@host.md"], 3).contains("`/memories/me@host.md` does not exist"));
    for (at, meant) in
        [("yesterday", "write `1d`"), ("1 hour ago", "write `1h`"), ("HEAD~1", "write `~1`"), ("nowhere", "an age such as `2h`")]
    {
        for command in ["cat", "restore"] {
            let error = home.error(&[command, "/memories/notes.md", "--at", at], 3);
            assert!(error.contains("names no moment") && error.contains(meant), "{command} {at}: {error}");
        }
    }
    for (at, expected) in [("latest", "three\n"), ("~1", "two\n"), ("~2", "one\n"), ("v1", "one\n"), ("0s", "three\n")] {
        assert_eq!(home.ok(&["cat", "/memories/notes.md", "--at", at]), expected, "{at}");
    }
    let first = log[2]["at"].as_str().unwrap();
    assert_eq!(home.ok(&["cat", "/memories/notes.md", "--at", first]), "one\n");
    assert_eq!(home.ok(&["ls", "/memories", "--at", first]).trim_end(), "notes.md");
    home.error(&["cat", "/memories/notes.md", "--at", "v9"], 3);
    home.error(&["cat", "/memories/notes.md", "--at", "2001-01-01"], 3);
    assert!(home.error(&["ls", "/memories", "--at", "~1"], 2).contains("name a file, or a time"));

    let diff = home.run(&["diff", "/memories/notes.md@v1", "/memories/notes.md@v2"], 1);
    assert!(String::from_utf8_lossy(&diff.get_output().stdout).contains("-one\n+two\n"));
    home.run(&["diff", "/memories/notes.md@~1"], 1);
    home.run(&["diff", "/memories/notes.md@latest"], 0);
    assert!(home.error(&["diff", "/memories/notes.md"], 2).contains("a version of this one: `/memories/notes.md@~1`"));
    home.put("here.txt", "of the host");
    assert!(home.error(&["diff", "/workspace/here.txt"], 2).contains("no versions of this one are kept"));

    home.ok(&["restore", "/memories/notes.md", "--at", "v1"]);
    assert_eq!(home.ok(&["cat", "/memories/notes.md"]), "one\n");
    let log = home.json(&["--json", "log", "/memories/notes.md"]);
    assert_eq!((log[0]["number"].as_u64(), log[0]["author"]["tool"].as_str()), (Some(4), Some("restore")));
    home.ok(&["rm", "/memories/notes.md"]);
    let error = home.error(&["cat", "/memories/notes.md"], 3);
    assert!(error.contains("does not exist; its versions are kept: `treehold log /memories/notes.md`"), "{error}");
    assert!(!home.error(&["cat", "/memories/never.md"], 3).contains("versions"));
    assert_eq!(home.ok(&["cat", "/memories/notes.md", "--at", "~1"]), "one\n");
    home.ok(&["restore", "/memories/notes.md", "--at", "~1"]);
    assert_eq!(home.ok(&["cat", "/memories/notes.md"]), "one\n");
}

#[test]
fn directory_is_restored_to_a_time() {
    let home = Home::new();
    home.ok(&["write", "/memories/a/one.md", "one"]);
    home.ok(&["write", "/memories/a/two.md", "two"]);
    let log = home.json(&["--json", "log", "/memories/a/two.md"]);
    let then = log[0]["at"].as_str().unwrap().to_owned();
    home.ok(&["write", "/memories/a/one.md", "changed"]);
    home.ok(&["rm", "/memories/a/two.md"]);
    home.ok(&["write", "/memories/a/new/three.md", "three"]);
    let preview = home.run(&["restore", "/memories/a", "--at", &then, "--dry-run"], 0).get_output().clone();
    let planned = "remove   /memories/a/new/three.md\nrestore  /memories/a/one.md\nrestore  /memories/a/two.md\n";
    assert_eq!(String::from_utf8(preview.stdout).unwrap(), planned);
    assert_eq!(String::from_utf8(preview.stderr).unwrap(), "treehold: dry run: 2 restored, 1 removed\n");
    assert_eq!(home.ok(&["cat", "/memories/a/one.md"]), "changed");
    let restored = home.run(&["restore", "/memories/a", "--at", &then], 0).get_output().clone();
    assert_eq!(String::from_utf8(restored.stderr).unwrap(), "treehold: 2 restored, 1 removed\n");
    assert_eq!(home.ok(&["cat", "/memories/a/one.md", "/memories/a/two.md"]), "onetwo");
    home.error(&["cat", "/memories/a/new/three.md"], 3);
    let again = home.run(&["restore", "/memories/a", "--at", &then], 0);
    assert!(String::from_utf8_lossy(&again.get_output().stderr).contains("nothing differs"));
}

/// A dry run plans what the restore does: it counts the same files and directories, and is refused as the restore is.
#[test]
fn dry_run_of_a_restore_foretells_it() {
    let home = Home::new();
    home.ok(&["write", "/memories/first.md", "1"]);
    home.ok(&["write", "/memories/place", "a file"]);
    let then = home.json(&["--json", "log", "/memories/place"])[0]["at"].as_str().unwrap().to_owned();
    for file in ["/memories/big/one.md", "/memories/big/in/two.md"] {
        home.ok(&["write", file, "new"]);
    }
    home.ok(&["rm", "/memories/place"]);
    home.ok(&["write", "/memories/place/inner.md", "a directory"]);
    let run = |path: &str, options: &[&str]| home.command(&[&["restore", path, "--at", &then], options].concat()).output().unwrap();
    let both = |path: &str| (run(path, &["--dry-run"]), run(path, &[]));
    let (dry, done) = both("/memories/place");
    assert_eq!((dry.status.code(), &dry.stderr), (done.status.code(), &done.stderr));
    assert_eq!(home.ok(&["cat", "/memories/place/inner.md"]), "a directory");
    let (dry, done) = both("/memories/big");
    let removed = ["", "/in", "/in/two.md", "/one.md"].map(|path| format!("remove   /memories/big{path}\n")).concat();
    assert_eq!(String::from_utf8(dry.stdout).unwrap(), removed);
    assert_eq!(String::from_utf8(dry.stderr).unwrap().replace("dry run: ", ""), String::from_utf8(done.stderr).unwrap());
    home.error(&["ls", "/memories/big"], 3);
}

/// Regression: `--at` showed the current content of every mount other than the state, and exited with 0.
#[test]
fn moment_is_refused_where_no_past_is_kept() {
    let home = Home::new();
    home.put("here.txt", "of the host");
    home.ok(&["write", "/plan.md", "1. ask\n"]);
    home.ok(&["write", "/memories/notes.md", "old"]);
    home.ok(&["checkpoint", "create", "--label", "before"]);
    home.ok(&["write", "/plan.md", "2. act\n"]);
    home.ok(&["write", "/memories/notes.md", "new"]);
    for at in ["before", "0s", "latest", "~1"] {
        for command in ["cat", "stat"] {
            let error = home.error(&[command, "/workspace/here.txt", "--at", at], 2);
            assert!(error.contains("keeps no history"), "{command} {at}: {error}");
        }
    }
    assert_eq!(home.ok(&["cat", "/plan.md", "--at", "before"]), "1. ask\n");
    assert_eq!(home.ok(&["cat", "/memories/notes.md", "--at", "before"]), "old");
    assert!(home.error(&["cat", "/memories/notes.md", "--at", "nowhere"], 3).contains("nowhere"));
    assert!(home.error(&["log", "/workspace/here.txt"], 2).contains("keeps no past"));
    let found = home.run(&["grep", "of the host", "/", "--at", "before"], 2);
    assert!(String::from_utf8_lossy(&found.get_output().stderr).contains("keeps no history"));
}

#[test]
fn versions_of_the_state_are_those_of_its_checkpoints() {
    let home = Home::new();
    home.ok(&["write", "/plan.md", "1. ask\n"]);
    home.ok(&["write", "/other.md", "x"]);
    home.ok(&["edit", "/plan.md", "1", "2"]);
    home.ok(&["rm", "/plan.md"]);
    let log = home.json(&["--json", "log", "/plan.md"]);
    let log = log.as_array().unwrap();
    assert_eq!(log.len(), 3, "{log:?}");
    assert_eq!((log[0]["operation"].as_str(), log[0].get("version")), (Some("delete"), None));
    let second = log[1]["checkpoint"].as_str().unwrap();
    assert_eq!(home.ok(&["cat", "/plan.md", "--at", second]), "2. ask\n");
    home.ok(&["restore", "/plan.md", "--at", second]);
    assert_eq!(home.ok(&["cat", "/plan.md", "/other.md"]), "2. ask\nx");
    home.error(&["log", "/nowhere.md"], 3);
    let author = &log[1]["author"];
    assert_eq!((author["thread"].as_str(), author["user"].as_str()), (Some("default"), Some("default")), "{log:?}");
    assert!(home.ok(&["log", "/plan.md"]).contains("thread=default"));
}

/// Regression: what was removed before the history began looked absent, so the restore removed today's file.
#[test]
fn restore_of_a_directory_to_before_its_history_began_removes_nothing() {
    let home = Home::new();
    let route = |more: &str| format!("[routes.\"/memories\"]\ntype = \"store\"\nnamespace = \"{{tenant}}/{{user}}/memories\"\n{more}");
    home.put("treehold.toml", route("history = false\n"));
    for file in ["kept", "gone"] {
        home.ok(&["write", &format!("/memories/d/{file}.md"), "old"]);
    }
    home.ok(&["write", "/plan.md", "1"]);
    home.ok(&["checkpoint", "create", "--label", "before"]);
    home.ok(&["rm", "/memories/d/gone.md"]);
    home.put("treehold.toml", route(""));
    home.ok(&["write", "/memories/d/new.md", "new"]);
    home.ok(&["write", "/memories/d/gone.md", "again"]);
    for path in ["/memories/d", "/memories", "/memories/d/gone.md"] {
        let said = home.error(&["restore", path, "--at", "before"], 3);
        assert!(said.contains("does not reach back"), "{path}: {said}");
    }
    assert_eq!(home.ok(&["cat", "/memories/d/gone.md", "/memories/d/new.md"]), "againnew");
    assert_eq!(home.ok(&["cat", "/memories/d/kept.md", "--at", "before"]), "old");
}

#[test]
fn undo_goes_back_change_by_change_over_all_tiers() {
    let home = Home::new();
    home.error(&["undo"], 3);
    home.ok(&["write", "/memories/a.md", "a1"]);
    home.ok(&["write", "/plan.md", "p1"]);
    home.ok(&["write", "/memories/a.md", "a2"]);
    home.ok(&["write", "/plan.md", "p2"]);
    home.ok(&["rm", "/memories/a.md"]);
    let shown = || -> Vec<Option<String>> {
        let read = |path| {
            let output = home.command(&["cat", path]).output().unwrap();
            output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
        };
        ["/memories/a.md", "/plan.md"].map(read).to_vec()
    };
    let text = |text: &str| Some(text.to_owned());
    home.run(&["undo"], 0).stderr("");
    assert_eq!(shown(), [text("a2"), text("p2")]);
    home.ok(&["undo"]);
    assert_eq!(shown(), [text("a2"), text("p1")]);
    home.ok(&["undo"]);
    assert_eq!(shown(), [text("a1"), text("p1")]);
    // A new change is the next to be undone, and the others follow.
    home.ok(&["write", "/plan.md", "p3"]);
    let undone = home.json(&["--json", "undo", "3"]);
    assert_eq!(undone.as_array().unwrap().len(), 3);
    assert_eq!(shown(), [None, None]);
    assert!(home.error(&["undo"], 3).contains("no change that can be undone"));
}

/// The last change is the one that its user means.
#[test]
fn undo_does_nothing_if_no_past_is_kept_of_the_last_change() {
    let home = Home::new();
    home.ok(&["write", "/memories/keep.md", "precious"]);
    for change in [&["write", "/workspace/f.txt", "oops"][..], &["mv", "/workspace/f.txt", "/workspace/g.txt"]] {
        home.ok(change);
        let error = home.error(&["undo"], 4);
        assert!(error.contains("no past is kept of `/workspace`; nothing was undone") && error.contains("--skip-unkept"), "{error}");
    }
    assert_eq!(home.ok(&["cat", "/memories/keep.md"]), "precious");
    // Another thread's changes of the directory are not this thread's last one.
    home.ok(&["--thread", "two", "write", "/memories/two.md", "2"]);
    home.ok(&["write", "/workspace/f.txt", "again"]);
    home.ok(&["--thread", "two", "undo"]);
    home.error(&["cat", "/memories/two.md"], 3);
    let undone = home.json(&["--json", "undo", "--skip-unkept"]);
    assert_eq!(undone[0]["unkept"], "/workspace/f.txt", "{undone}");
    home.error(&["cat", "/memories/keep.md"], 3);
    // The undo is the last change now.
    home.error(&["undo"], 3);
}

#[test]
fn command_of_many_changes_is_undone_as_one() {
    let home = Home::new();
    for number in 0..600 {
        home.put(&format!("many/{number:03}/f"), number.to_string());
    }
    home.ok(&["write", "/memories/first.md", "1"]);
    home.ok(&["import", "many", "/memories/many"]);
    assert_eq!(home.json(&["--json", "undo"]).as_array().unwrap().len(), 1);
    assert_eq!(home.ok(&["find", "/memories", "--kind", "file"]), "/memories/first.md\n");
    home.ok(&["write", "/other.md", "o"]);
    home.ok(&["import", "many", "/many"]);
    home.ok(&["undo"]);
    assert_eq!(home.ok(&["ls", "/"]), "memories/\nother.md\nworkspace/\n");
    // A removal of many files, and a move from the state into the store.
    home.ok(&["import", "many", "/memories/many"]);
    home.ok(&["rm", "-r", "/memories/many"]);
    home.ok(&["undo"]);
    assert_eq!(home.ok(&["cat", "/memories/many/599/f"]), "599");
    for (from, to) in [("/other.md", "/memories/moved.md"), ("/memories/first.md", "/back.md")] {
        home.ok(&["mv", from, to]);
        home.ok(&["undo"]);
        home.ok(&["cat", from]);
        home.error(&["cat", to], 3);
    }
    assert_eq!(home.json(&["--json", "log", "/memories/many/599/f"])[0]["author"]["tool"], "undo");
}

/// What is not known is not absent.
#[test]
fn restore_of_an_unknown_moment_removes_nothing() {
    let home = Home::new();
    contents(&home);
    home.ok(&["write", "/plan.md", "measure"]);
    home.ok(&["write", "/plans/a.md", "measure"]);
    for path in ["/memories/notes.md", "/memories", "/plan.md", "/plans"] {
        for at in ["v99", "~50", "~18446744073709551615", "v18446744073709551615", "2001-01-01", "9000d"] {
            let output = home.command(&["restore", path, "--at", at]).output().unwrap();
            assert!(!output.status.success(), "{path} {at}: {output:?}");
        }
    }
    assert_eq!(home.ok(&["cat", "/memories/notes.md", "/plan.md", "/plans/a.md"]), "three\nmeasuremeasure");
}

/// Regression: the undo of a file that two routes show was made once for each, and so failed although it was done.
#[test]
fn undo_of_a_file_that_two_routes_show_succeeds_whichever_is_read_only() {
    for (first, second, read_only) in [("/aw", "/ro", "/ro"), ("/ro", "/rw", "/ro"), ("/aw", "/bw", "")] {
        let home = Home::new();
        let route = |path: &str| {
            let is_read_only = path == read_only;
            format!(
                "[routes.\"{path}\"]\ntype = \"store\"\nnamespace = \"{{tenant}}//handbook\"\nhistory = {{}}\nread_only = {is_read_only}\n"
            )
        };
        home.put("treehold.toml", format!("{}{}", route(first), route(second)));
        let writable = if first == read_only { second } else { first };
        let file = format!("{writable}/a.md");
        for content in ["one", "two"] {
            home.ok(&["write", &file, content]);
        }
        let undone = home.json(&["--json", "undo"]);
        assert_eq!(undone[0]["files"].as_array().map(Vec::len), Some(1), "{undone}");
        for path in [first, second] {
            assert_eq!(home.ok(&["cat", &format!("{path}/a.md")]), "one", "{path}");
        }
        home.ok(&["undo"]);
        home.error(&["cat", &file], 3);
        home.error(&["undo"], 3);
    }
}

/// Regression: a rule about one of the routes refused the undo, and the restore of both paths, though another route allowed it.
#[test]
fn undo_and_restore_of_a_file_that_two_routes_show_need_one_that_the_rules_allow() {
    const ROUTES: [&str; 2] = ["/a", "/b"];
    let undo = &["undo"][..];
    let restores = [&["/a/f"][..], &["/b/f"], &["/a/f", "/b/f"]];
    for denied in [&[][..], &["/a"], &["/b"], &["/a", "/b"]] {
        for named in [None].into_iter().chain(restores.map(Some)) {
            let case = format!("{denied:?} {named:?}");
            let home = Home::new();
            let route =
                |path: &str| format!("[routes.\"{path}\"]\ntype = \"store\"\nnamespace = \"{{tenant}}//handbook\"\nhistory = {{}}\n");
            let routes = ROUTES.map(route).concat();
            home.put("treehold.toml", &routes);
            for content in ["one", "two"] {
                home.ok(&["write", "/a/f", content]);
            }
            let rule = |path: &&str| format!("[[layers.permissions]]\neffect = \"deny\"\noperations = [\"write\"]\npaths = [\"{path}\"]\n");
            home.put("treehold.toml", format!("{routes}{}", denied.iter().map(rule).collect::<String>()));
            let args = named.map_or(undo.to_vec(), |named| [&["restore"], named, &["--at", "v1"]].concat());
            // A restore is made by a path that it names, an undo by any.
            let is_allowed =
                ROUTES.iter().any(|path| !denied.contains(path) && named.is_none_or(|named| named.contains(&&*format!("{path}/f"))));
            match is_allowed {
                true => drop(home.ok(&args)),
                false => assert!(home.error(&args, 5).contains("forbids"), "{case}"),
            }
            let expected = if is_allowed { "one" } else { "two" };
            for path in ["/a/f", "/b/f"] {
                assert_eq!(home.ok(&["cat", path]), expected, "{case} {path}");
            }
        }
    }
}

#[test]
fn undo_of_the_user_counts_in_the_thread_that_made_the_change() {
    let home = Home::new();
    home.ok(&["--thread", "b", "write", "/memories/a.md", "one"]);
    home.ok(&["--thread", "b", "write", "/memories/a.md", "two"]);
    home.ok(&["--thread", "a", "undo", "--of-user"]);
    assert_eq!(home.ok(&["cat", "/memories/a.md"]), "one");
    home.ok(&["--thread", "b", "undo"]);
    home.error(&["cat", "/memories/a.md"], 3);
}

#[test]
fn undo_is_refused_for_a_file_that_changed_since() {
    let home = Home::new();
    home.ok(&["write", "/memories/a.md", "mine"]);
    home.ok(&["--thread", "other", "write", "/memories/a.md", "theirs"]);
    let error = home.error(&["undo"], 4);
    assert!(error.contains("`/memories/a.md` changed since"), "{error}");
    assert_eq!(home.ok(&["cat", "/memories/a.md"]), "theirs");
    home.ok(&["undo", "--of-user"]);
    assert_eq!(home.ok(&["cat", "/memories/a.md"]), "mine");
    home.ok(&["undo"]);
    home.error(&["cat", "/memories/a.md"], 3);
}

#[test]
fn tool_call_on_several_tiers_is_undone_as_one() {
    let home = Home::new();
    moved(&home);
    let log = home.json(&["--json", "log", "/memories/final.md"]);
    assert_eq!(log[0]["author"]["tool"], "move", "{log}");
    home.ok(&["undo"]);
    assert_eq!(home.ok(&["cat", "/draft.md"]), "text");
    home.error(&["cat", "/memories/final.md"], 3);
}

/// A thread in which one tool call moved a file from the state to the memories.
fn moved(home: &Home) {
    home.ok(&["write", "/draft.md", "text"]);
    let call = r#"{"tool": "move", "args": {"from": "/draft.md", "to": "/memories/final.md"}, "id": "call-7"}"#;
    home.with_stdin(&["run", "-"], format!("{call}\n").as_bytes()).success();
    assert_eq!(home.ok(&["cat", "/memories/final.md"]), "text");
}

#[test]
fn undo_of_the_user_leaves_the_state_to_the_thread() {
    let home = Home::new();
    moved(&home);
    home.ok(&["--thread", "other", "undo", "--of-user"]);
    home.error(&["cat", "/memories/final.md"], 3);
    home.error(&["cat", "/draft.md"], 3);
    home.ok(&["undo"]);
    assert_eq!(home.ok(&["cat", "/draft.md"]), "text");
}

#[test]
fn undo_that_cannot_return_the_state_says_what_it_did_and_never_goes_on_to_an_older_call() {
    let home = Home::new();
    home.ok(&["write", "/memories/older.md", "kept"]);
    moved(&home);
    home.ok(&["checkpoint", "prune", "--keep-last", "1"]);
    let undo = || home.command(&["undo"]).output().unwrap();
    let first = undo();
    let said = String::from_utf8(first.stderr).unwrap();
    assert!(!first.status.success() && said.contains("the thread's state is not"), "{said}");
    home.error(&["cat", "/memories/final.md"], 3);
    let again = undo();
    assert!(!again.status.success(), "{again:?}");
    assert_eq!(home.ok(&["cat", "/memories/older.md"]), "kept");
}

#[test]
fn checkpoint_restore_says_what_it_does_not_touch() {
    let home = Home::new();
    home.ok(&["write", "/plan.md", "1"]);
    home.ok(&["write", "/plan.md", "2"]);
    let restored = home.run(&["checkpoint", "restore", "~1"], 0);
    let told = String::from_utf8_lossy(&restored.get_output().stderr).into_owned();
    assert!(told.contains("`/memories`, `/workspace` did not change"), "{told}");
}

#[test]
fn past_of_denied_files_is_not_shown() {
    let home = Home::new();
    home.ok(&["write", "/memories/secret.md", "old"]);
    home.ok(&["write", "/memories/secret.md", "new"]);
    let rule = |effect: &str, operations: &str| {
        let text =
            format!("[[layers.permissions]]\neffect = \"{effect}\"\noperations = [{operations}]\npaths = [\"/memories/secret.md\"]\n");
        home.put("treehold.toml", text);
    };
    rule("deny", "\"read\"");
    for args in
        [&["log", "/memories/secret.md"][..], &["cat", "/memories/secret.md", "--at", "~1"], &["undo"], &["diff", "/memories/secret.md@~1"]]
    {
        let output = home.command(args).output().unwrap();
        assert!(matches!(output.status.code(), Some(3 | 5)), "{args:?} {output:?}");
        assert!(!String::from_utf8_lossy(&output.stdout).contains("old"), "{args:?}");
    }
    rule("deny", "\"write\"");
    assert_eq!(home.ok(&["cat", "/memories/secret.md", "--at", "~1"]), "old");
    home.error(&["restore", "/memories/secret.md", "--at", "~1"], 5);
    home.error(&["undo"], 5);
    assert_eq!(home.ok(&["cat", "/memories/secret.md"]), "new");
}

#[test]
fn history_is_configured_for_each_route() {
    let home = Home::new();
    let route = |path: &str, history: &str| format!("[routes.\"{path}\"]\ntype = \"store\"\nnamespace = \"{{user}}{path}\"\n{history}\n");
    home.put("treehold.toml", route("/memories", "history = false") + &route("/notes", "history = { keep_last = 2 }"));
    for content in ["1", "2", "3", "4"] {
        home.ok(&["write", "/memories/a", content]);
        home.ok(&["write", "/notes/a", content]);
    }
    home.error(&["log", "/memories/a"], 2);
    assert_eq!(home.ok(&["log", "/notes/a"]).lines().count(), 3);
    assert_eq!(home.ok(&["cat", "/notes/a", "--at", "~2"]), "2");
    home.error(&["cat", "/notes/a", "--at", "~3"], 3);
    // A quota does not count the past, so it is kept only if the configuration says so.
    for (history, code) in [("", 2), ("history = {}", 0)] {
        home.put("treehold.toml", route("/memories", &format!("quota = {{ files_max = 9 }}\n{history}")));
        home.ok(&["write", "/memories/a", history]);
        home.run(&["log", "/memories/a"], code);
    }
    for (history, said) in [
        ("history = { keep_last = 0 }", "`keep_last` is 0"),
        ("history = { older_than = \"soon\" }", "`soon`"),
        ("history = 3", "`false`, or a table"),
    ] {
        home.put("treehold.toml", route("/notes", history));
        let output = home.command(&["config", "check", "treehold.toml"]).output().unwrap();
        let told = format!("{}{}", String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
        assert!(told.contains(said), "{told}");
    }
}

/// A route of type `past` shows a whole namespace at a moment, read-only, and rules about the files hold for their past too.
#[test]
fn route_mounts_the_past_of_another_route() {
    let home = Home::new();
    contents(&home);
    home.ok(&["write", "/memories/private/key.md", "hush\n"]);
    let log = home.json(&["--json", "log", "/memories/notes.md"]);
    let then = log[1]["at"].as_str().unwrap().to_owned();
    let routes = "[routes.\"/memories\"]\ntype = \"store\"\nnamespace = \"{tenant}/{user}/memories\"\n";
    let past = |at: &str, more: &str| format!("{routes}[routes.\"/before\"]\ntype = \"past\"\nof = \"/memories\"\nat = \"{at}\"\n{more}");
    home.put("treehold.toml", past(&then, ""));
    assert_eq!(home.ok(&["cat", "/before/notes.md", "/memories/notes.md"]), "two\nthree\n");
    assert_eq!(home.ok(&["glob", "/before/**"]), "/before/notes.md\n");
    assert_eq!(home.ok(&["grep", "two", "/before", "--files"]), "/before/notes.md\n");
    assert!(home.error(&["write", "/before/notes.md", "x"], 5).contains("read-only"));
    home.put(
        "treehold.toml",
        past("0s", "[[layers.permissions]]\neffect = \"deny\"\noperations = [\"all\"]\npaths = [\"/memories/private\"]\n"),
    );
    assert_eq!(home.ok(&["glob", "/before/**"]), "/before/notes.md\n");
    home.error(&["cat", "/before/private/key.md"], 3);
    let said = home.ok(&["config", "show", "--effective"]);
    assert!(said.contains("/memories at 0s"), "{said}");
    for (text, message) in [
        (past("~1", ""), "4:6"),
        (format!("{routes}[routes.\"/before\"]\ntype = \"past\"\nat = \"1d\"\n"), "has no `of`"),
        (format!("{routes}[routes.\"/before\"]\ntype = \"past\"\nof = \"/memories\"\n"), "has no `at`"),
        (format!("{routes}[routes.\"/before\"]\ntype = \"past\"\nof = \"/memorys\"\nat = \"1d\"\n"), "did you mean `/memories`?"),
        (format!("{routes}history = false\n[routes.\"/before\"]\ntype = \"past\"\nof = \"/memories\"\nat = \"1d\"\n"), "keeps no history"),
        (
            "[routes.\"/before\"]\ntype = \"past\"\nof = \"/\"\nat = \"1d\"\n[routes.\"/\"]\ntype = \"state\"\n".to_owned(),
            "is a state route",
        ),
        (past("1d", "[routes.\"/before\".quota]\nbytes_max = 1\n"), "a past route is read-only"),
        (past("1d", "[routes.\"/before\".overlay]\n"), "takes no overlay"),
    ] {
        home.put("treehold.toml", &text);
        let said = home.error(&["config", "check"], 2);
        assert!(said.contains(message) || message == "4:6" && said.contains("~1"), "{text}: {said}");
    }
}
