//! All file commands, on every tier, byte for byte.

use super::Home;

const AWKWARD: &[u8] = b"\xef\xbb\xbfone\r\ntwo\0\xff\xfe\nno end";

#[test]
fn bytes_round_trip_on_every_tier() {
    let home = Home::new();
    for path in ["/bytes", "/memories/bytes", "/workspace/bytes"] {
        home.with_stdin(&["write", path], AWKWARD).code(0).stdout("");
        home.run(&["cat", path], 0).stdout(AWKWARD);
        home.with_stdin(&["append", path, "-"], b"\n").code(0);
        home.run(&["cat", path], 0).stdout([AWKWARD, b"\n"].concat());
        home.with_stdin(&["write", path], b"").code(0);
        home.run(&["cat", path], 0).stdout("");
    }
    assert_eq!(std::fs::read(home.work().join("bytes")).unwrap(), b"");
}

#[test]
fn write_takes_content_from_argument_or_standard_input() {
    let home = Home::new();
    home.ok(&["write", "/a", "text"]);
    assert_eq!(home.ok(&["cat", "/a"]), "text");
    home.ok(&["append", "/a", " and more"]);
    assert_eq!(home.ok(&["cat", "/a", "/a"]), "text and moretext and more");
    home.ok(&["write", "/a", "--", "-dash"]);
    assert_eq!(home.ok(&["cat", "/a"]), "-dash");
    home.with_stdin(&["write", "/a", "-"], b"stdin").code(0);
    assert_eq!(home.ok(&["cat", "--", "/a"]), "stdin");
}

#[test]
fn large_file_is_printed_in_full() {
    let home = Home::new();
    let content: Vec<u8> = (0..20_000_000_u32).map(|index| (index % 251) as u8).collect();
    home.put("large", &content);
    let assert = home.run(&["cat", "/workspace/large"], 0);
    assert!(assert.get_output().stdout == content);
}

#[test]
fn cat_and_head_print_windows_of_lines() {
    let home = Home::new();
    let text: String = (1..=30).map(|line| format!("line {line}\r\n")).collect();
    home.with_stdin(&["write", "/a"], text.as_bytes()).code(0);
    assert_eq!(home.ok(&["head", "-n", "2", "/a"]), "line 1\r\nline 2\r\n");
    assert_eq!(home.ok(&["head", "/a"]).lines().count(), 10);
    assert_eq!(home.ok(&["cat", "/a", "--offset", "28"]), "line 29\r\nline 30\r\n");
    assert_eq!(home.ok(&["cat", "/a", "--offset", "1", "--limit", "1"]), "line 2\r\n");
    let read = home.json(&["--json", "cat", "/a", "--offset", "1", "--limit", "1"]);
    assert_eq!((&read[0]["content"], &read[0]["window"]["total_lines"]), (&"line 2\r\n".into(), &30.into()));
}

#[test]
fn listings_show_every_tier() {
    let home = Home::new();
    home.put("src/main.rs", "fn main() {}\n");
    home.ok(&["write", "/notes/a.md", "a"]);
    home.ok(&["write", "/memories/b.md", "bb"]);
    home.ok(&["mkdir", "/empty"]);
    assert_eq!(home.ok(&["ls"]), "empty/\nmemories/\nnotes/\nworkspace/\n");
    assert_eq!(home.ok(&["ls", "/memories"]), "b.md\n");
    let long = home.ok(&["ls", "--long", "/memories"]);
    assert!(long.starts_with("-          2 20") && long.ends_with("Z b.md\n"), "{long}");
    assert_eq!(
        home.ok(&["tree"]),
        "/\n├── empty/\n├── memories/\n│   └── b.md\n├── notes/\n│   └── a.md\n└── workspace/\n    └── src/\n        └── main.rs\n\n\
         5 directories, 3 files\n"
    );
    assert_eq!(home.ok(&["tree", "-L", "1", "/notes"]), "/notes\n└── a.md\n\n0 directories, 1 file\n");
    let listing = home.json(&["--json", "ls", "/notes"]);
    assert_eq!(listing["entries"][0]["path"], "/notes/a.md");
    let lines = home.ok(&["--jsonl", "ls"]);
    assert_eq!(lines.lines().count(), 4);
    for line in lines.lines() {
        assert_eq!(serde_json::from_str::<serde_json::Value>(line).unwrap()["kind"], "directory");
    }
    let cut = home.run(&["ls", "--limit", "2"], 0).stdout("empty/\nmemories/\n");
    assert!(String::from_utf8_lossy(&cut.get_output().stderr).contains("--limit"));
    home.run(&["-q", "ls", "--limit", "2"], 0).stderr("");
}

#[test]
fn long_listings_are_complete() {
    let home = Home::new();
    let directory = home.work().join("many");
    std::fs::create_dir(&directory).unwrap();
    for index in 0..10_500 {
        std::fs::write(directory.join(format!("f{index:05}")), "").unwrap();
    }
    assert_eq!(home.ok(&["ls", "/workspace/many"]).lines().count(), 10_500);
    assert_eq!(home.ok(&["glob", "f*", "/workspace/many"]).lines().count(), 10_500);
    assert_eq!(home.ok(&["find", "/workspace/many", "--limit", "3"]).lines().count(), 3);
}

#[test]
fn edits_replace_exact_text() {
    let home = Home::new();
    home.ok(&["write", "/memories/a.md", "one two one\n"]);
    assert!(home.error(&["edit", "/memories/a.md", "one", "1"], 4).contains("occurs 2 times (line 1)"));
    home.ok(&["edit", "/memories/a.md", "two", "2"]);
    home.ok(&["edit", "--all", "/memories/a.md", "one", "1"]);
    assert_eq!(home.ok(&["cat", "/memories/a.md"]), "1 2 1\n");
    home.ok(&["edit", "/memories/a.md", "1 2 1", "-5"]);
    home.ok(&["edit", "/memories/a.md", "-5", "--six"]);
    assert_eq!(home.ok(&["cat", "/memories/a.md"]), "--six\n");
}

#[test]
fn stale_version_refuses_the_change() {
    let home = Home::new();
    let changed = home.json(&["--json", "write", "/memories/a", "one"]);
    let version = changed["version"].as_str().unwrap().to_owned();
    assert_eq!(changed["created"], true);
    home.run(&["write", "--new", "/memories/a", "two"], 4);
    home.ok(&["write", "--if-version", &version, "/memories/a", "two"]);
    for stale in [
        &["write", "--if-version", &version, "/memories/a", "three"][..],
        &["edit", "--if-version", &version, "/memories/a", "two", "three"],
        &["rm", "--if-version", &version, "/memories/a"],
    ] {
        home.run(stale, 4);
    }
    let now = home.json(&["--json", "stat", "/memories/a"]);
    home.ok(&["rm", "--if-version", now[0]["version"].as_str().unwrap(), "/memories/a"]);
    home.run(&["cat", "/memories/a"], 3);
}

#[test]
fn moves_and_copies_within_and_across_tiers() {
    let home = Home::new();
    home.ok(&["write", "/a.md", "text"]);
    home.ok(&["mv", "/a.md", "/memories/"]);
    assert_eq!(home.ok(&["cat", "/memories/a.md"]), "text");
    home.run(&["cat", "/a.md"], 3);
    home.ok(&["cp", "/memories/a.md", "/workspace/deep/b.md"]);
    assert_eq!(std::fs::read_to_string(home.work().join("deep/b.md")).unwrap(), "text");
    home.ok(&["cp", "/workspace/deep", "/copied"]);
    assert_eq!(home.ok(&["cat", "/copied/b.md"]), "text");
    home.ok(&["write", "/copied/b.md", "newer"]);
    home.run(&["mv", "/copied/b.md", "/memories/a.md"], 4);
    home.ok(&["mv", "--force", "/copied/b.md", "/memories/a.md"]);
    assert_eq!(home.ok(&["cat", "/memories/a.md"]), "newer");
}

#[test]
fn rm_removes_named_paths_and_refuses_mounts() {
    let home = Home::new();
    for path in ["/d/a", "/d/b", "/c"] {
        home.ok(&["write", path, ""]);
    }
    assert!(home.error(&["rm", "/d"], 2).contains("add `-r`"));
    home.ok(&["rm", "-r", "/d", "/c"]);
    home.run(&["rm", "/d"], 3);
    home.ok(&["rm", "-f", "/d", "/c"]);
    assert_eq!(home.ok(&["ls"]), "memories/\nworkspace/\n");
    for mount in ["/", "/memories", "/workspace"] {
        assert!(!home.error(&["rm", "-r", mount], 2).is_empty());
    }
    assert!(home.work().exists());
}

#[test]
fn patch_changes_files_on_several_tiers() {
    let home = Home::new();
    home.ok(&["write", "/a.md", "one\ntwo\n"]);
    let patch = "*** Begin Patch\n*** Update File: /a.md\n@@\n one\n-two\n+2\n*** Add File: /memories/b.md\n+new\n*** End Patch\n";
    home.with_stdin(&["patch"], patch.as_bytes()).code(0);
    assert_eq!(home.ok(&["cat", "/a.md", "/memories/b.md"]), "one\n2\nnew\n");
    let file = home.put("again.patch", patch);
    home.run(&["patch", file.to_str().unwrap()], 4);
    home.run(&["patch", "missing.patch"], 3);
    home.with_stdin(&["patch", "-"], b"no patch").code(2);
}

#[test]
fn diff_prints_unified_differences() {
    let home = Home::new();
    home.ok(&["write", "/a", "one\ntwo\nthree\n"]);
    home.ok(&["write", "/memories/b", "one\n2\nthree\n"]);
    home.run(&["diff", "/a", "/memories/b"], 1).stdout("--- /a\n+++ /memories/b\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n");
    home.run(&["diff", "/a", "/a"], 0).stdout("");
    home.with_stdin(&["write", "/c"], b"\0\xff").code(0);
    home.run(&["diff", "/a", "/c"], 1).stdout("binary files /a and /c differ\n");
    home.run(&["diff", "/a", "/missing"], 3);
    let difference = home.run(&["--json", "diff", "/a", "/memories/b"], 1);
    let difference: serde_json::Value = serde_json::from_slice(&difference.get_output().stdout).unwrap();
    assert_eq!(difference["same"], false);
}

#[test]
fn commands_report_changes_only_with_verbose() {
    let home = Home::new();
    home.run(&["write", "/a", "one"], 0).stdout("").stderr("");
    let told = home.run(&["-v", "write", "/a", "one"], 0).stdout("");
    assert!(String::from_utf8_lossy(&told.get_output().stderr).starts_with("treehold: write `/a`: 3 bytes, version "));
}

#[test]
fn json_output_is_one_document_for_any_number_of_paths() {
    let home = Home::new();
    home.ok(&["write", "/a", "one"]);
    home.with_stdin(&["write", "/b"], AWKWARD).code(0);
    let read = home.json(&["--json", "cat", "/a", "/b"]);
    assert_eq!((&read[0]["content"], &read[0]["encoding"]), (&"one".into(), &"utf-8".into()));
    assert_eq!((&read[1]["content"], &read[1]["encoding"]), (&"77u/b25lDQp0d28A//4Kbm8gZW5k".into(), &"base64".into()));
    for args in [&["cat", "/a"][..], &["head", "/a"], &["stat", "/a"], &["mkdir", "/d"], &["rm", "/d"]] {
        let json: Vec<&str> = ["--json"].iter().chain(args).copied().collect();
        assert_eq!(home.json(&json).as_array().unwrap().len(), 1, "{args:?}");
    }
    assert_eq!(home.json(&["--json", "stat", "/a", "/b"]).as_array().unwrap().len(), 2);
    assert_eq!(home.json(&["--json", "rm", "-f", "/none"]), serde_json::json!([]));
    assert_eq!(home.json(&["--json", "rm", "/a", "/b"]).as_array().unwrap().len(), 2);
    assert_eq!(home.ok(&["--jsonl", "mkdir", "/d", "/e"]).lines().count(), 2);
    for key in ["k1", "k2"] {
        home.with_stdin(&["store", "put", "own", key, "-"], b"\xff").code(0);
    }
    assert_eq!(home.json(&["--json", "store", "ls", "own"]).as_array().unwrap().len(), 2);
    assert_eq!(home.json(&["--json", "store", "get", "own", "k1"])["value"], "/w==");
    assert_eq!(home.json(&["--json", "store", "rm", "own", "k1"])["keys"], serde_json::json!(["k1"]));
}

#[test]
fn head_of_several_files_prints_their_names() {
    let home = Home::new();
    home.ok(&["write", "/a", "1\n2\n"]);
    home.ok(&["write", "/b", "3\n"]);
    assert_eq!(home.ok(&["head", "-n", "1", "/a", "/b"]), "==> /a <==\n1\n\n==> /b <==\n3\n");
    assert_eq!(home.ok(&["head", "-n", "1", "/a"]), "1\n");
}

#[test]
fn limit_of_zero_is_refused() {
    let home = Home::new();
    for args in [&["ls", "--limit", "0"][..], &["glob", "*", "--limit", "0"], &["grep", "x", "--limit", "0"], &["find", "--limit", "0"]] {
        assert!(home.error(args, 2).contains("must be at least 1"), "{args:?}");
    }
}

#[cfg(unix)]
#[test]
fn unreadable_directory_is_not_shown_as_empty() {
    use std::os::unix::fs::PermissionsExt;
    let home = Home::new();
    home.put("shut/a", "x");
    home.put("open/b", "x");
    let shut = home.work().join("shut");
    std::fs::set_permissions(&shut, std::fs::Permissions::from_mode(0o000)).unwrap();
    // A process with all privileges can list it anyway.
    let code = if std::fs::read_dir(&shut).is_ok() { 0 } else { 5 };
    let drawn = home.run(&["tree", "/workspace"], code);
    std::fs::set_permissions(&shut, std::fs::Permissions::from_mode(0o700)).unwrap();
    let stdout = String::from_utf8_lossy(&drawn.get_output().stdout).into_owned();
    assert!(stdout.contains("b\n"), "{stdout}");
    assert_eq!(stdout.contains("shut/ [permission denied]\n"), code == 5, "{stdout}");
}

#[test]
fn target_that_is_a_directory_suggests_a_path_within() {
    let home = Home::new();
    home.ok(&["write", "/a.md", "one"]);
    for directory in ["/d", "/memories/d", "/workspace/d"] {
        home.ok(&["mkdir", directory]);
        for verb in ["cp", "mv"] {
            let told = home.error(&[verb, "-f", "/a.md", directory], 4);
            assert!(told.contains(&format!("write `{directory}/` to put it into the directory")), "{told}");
        }
        home.ok(&["cp", "/a.md", &format!("{directory}/")]);
        assert_eq!(home.ok(&["cat", &format!("{directory}/a.md")]), "one");
    }
}

#[cfg(unix)]
#[test]
fn glob_skips_links_and_pipes_and_copies_refuse_them() {
    let home = Home::new();
    home.put("d/a.md", "one");
    std::os::unix::fs::symlink("a.md", home.work().join("d/link.md")).unwrap();
    std::os::unix::fs::symlink("circle.md", home.work().join("d/circle.md")).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(home.work().join("d/pipe.md")).status().unwrap().success());
    assert_eq!(home.ok(&["glob", "*.md", "/workspace"]), "/workspace/d/a.md\n");
    let all = home.json(&["--json", "find", "/workspace/d"]);
    let kinds: Vec<&str> = all["entries"].as_array().unwrap().iter().map(|entry| entry["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["file", "symlink", "symlink", "other"]);
    assert!(home.error(&["cat", "/workspace/d/circle.md"], 5).contains("leads in a circle"));
    for verb in ["cp", "mv"] {
        let told = home.error(&[verb, "/workspace/d", "/memories/d"], 2);
        assert!(told.contains("/workspace/d/") && told.contains("nothing was copied"), "{told}");
        home.run(&["ls", "/memories/d"], 3);
    }
    assert_eq!(std::fs::read_dir(home.work().join("d")).unwrap().count(), 4);
}

#[test]
fn large_file_is_read_as_one_version_during_overwrites() {
    let home = Home::new();
    let content = |byte: u8| vec![byte; 12 << 20];
    home.with_stdin(&["write", "/memories/large"], &content(b'a')).code(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..6 {
                home.with_stdin(&["write", "/memories/large"], &content(b'a' + round % 2)).code(0);
            }
        });
        for _ in 0..6 {
            let read = home.run(&["cat", "/memories/large"], 0);
            let read = &read.get_output().stdout;
            assert!(read.len() == 12 << 20 && read.iter().all(|byte| *byte == read[0]));
        }
    });
}

#[test]
fn move_out_of_a_read_only_tree_changes_nothing() {
    let home = Home::new();
    home.put("treehold.toml", "[routes.\"/fixed\"]\ntype = \"filesystem\"\nroot = \".\"\nread_only = true\n");
    home.put("a.md", "one");
    home.ok(&["mkdir", "/d"]);
    assert!(home.error(&["mv", "/fixed/a.md", "/b.md"], 5).contains("nothing was moved"));
    home.run(&["cat", "/b.md"], 3);
    assert!(home.error(&["mv", "-f", "/fixed/a.md", "/d"], 4).contains("write `/d/`"));
    assert_eq!(home.ok(&["cat", "/fixed/a.md"]), "one");
}

#[test]
fn tree_reports_directories_denied_by_a_rule() {
    let home = Home::new();
    home.put("treehold.toml", "[[layers.permissions]]\neffect = \"deny\"\noperations = [\"ls\"]\npaths = [\"/workspace/shut\"]\n");
    home.put("shut/a", "x");
    home.put("open/b", "x");
    let drawn = home.run(&["tree", "/workspace"], 5);
    let output = drawn.get_output();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(stdout.contains("shut/ [permission denied]\n") && stdout.contains("b\n"), "{stdout}");
    assert!(stderr.contains("`/workspace/shut`"), "{stderr}");
    let drawn = home.run(&["--json", "tree", "/workspace"], 5);
    let tree: serde_json::Value = serde_json::from_slice(&drawn.get_output().stdout).unwrap();
    assert_eq!(tree["failures"][0]["path"], "/workspace/shut");
}

/// Regression: `rm -rf` failed on a path that another one of its paths had removed.
#[test]
fn forced_removal_takes_paths_that_contain_each_other_or_repeat() {
    let home = Home::new();
    for top in ["/d", "/memories/d"] {
        let inner = format!("{top}/e/file");
        for paths in [[top, &inner, top], [&inner, top, &inner], [&inner, &inner, top]] {
            home.ok(&["write", &inner, "x"]);
            home.ok(&[&["rm", "-rf"][..], &paths].concat());
            home.error(&["ls", top], 3);
        }
    }
}
