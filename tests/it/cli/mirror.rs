//! `mirror`: two processes and a sandbox that change the same files.

use super::{Home, binary};
use serde_json::Value;
use std::io::{BufRead, BufReader, Lines};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

/// A running `mirror` of a path in `out`, killed on drop.
struct Mirroring {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    directory: PathBuf,
}

impl Mirroring {
    fn start(home: &Home, path: &str, args: &[&str]) -> Self {
        Self::run(home, &[&["mirror", path, "../out"], args].concat())
    }

    fn run(home: &Home, args: &[&str]) -> Self {
        let mut command = Command::new(binary());
        command.arg("--jsonl").args(args).current_dir(home.work());
        command.env("TREEHOLD_DATA", home.data()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines, directory: home.work().join("../out") }
    }

    /// Waits until something was done at a path.
    fn until(&mut self, action: &str, path: &str) -> Value {
        for line in self.lines.by_ref() {
            let event: Value = serde_json::from_str(&line.unwrap()).unwrap();
            if event["action"] == action && event["path"] == path {
                return event;
            }
        }
        panic!("the mirror ended before `{path}` was {action}");
    }

    fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.directory.join(file)).unwrap()
    }

    fn put(&self, file: &str, content: &str) {
        std::fs::write(self.directory.join(file), content).unwrap();
    }

    /// Interrupts the mirror as Ctrl-C does, and waits for its end.
    fn end(mut self) -> i32 {
        let process = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(process, rustix::process::Signal::INT).unwrap();
        self.child.wait().unwrap().code().unwrap()
    }
}

impl Drop for Mirroring {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn mirror_follows_another_process_and_writes_edits_back() {
    let home = Home::new();
    home.ok(&["write", "/memories/a.md", "one\n"]);
    let mut mirror = Mirroring::start(&home, "/memories", &["--write-back"]);
    mirror.until("mirrored", "/a.md");
    home.ok(&["write", "/memories/d/b.md", "1\n2\n3\n"]);
    mirror.until("mirrored", "/d/b.md");
    assert_eq!(mirror.read("d/b.md"), "1\n2\n3\n");
    mirror.put("new.md", "from the sandbox\n");
    mirror.until("written_back", "/new.md");
    assert_eq!(home.ok(&["cat", "/memories/new.md"]), "from the sandbox\n");
    home.ok(&["mv", "/memories/a.md", "/memories/c.md"]);
    mirror.until("removed", "/a.md");
    assert_eq!(mirror.read("c.md"), "one\n");
    // The last edit is written back when the mirror ends.
    mirror.put("d/b.md", "1\n2\nlast\n");
    let directory = mirror.directory.clone();
    assert_eq!(mirror.end(), 0);
    assert_eq!(home.ok(&["cat", "/memories/d/b.md"]), "1\n2\nlast\n");
    assert!(!directory.exists());
    assert_eq!(std::fs::read_dir(home.work().join("..")).unwrap().count(), 2, "nothing is left beside the data and the work");
}

#[test]
fn killed_mirror_loses_no_edit_and_the_next_one_merges_it() {
    let home = Home::new();
    home.ok(&["write", "/memories/a.md", "1\n2\n3\n4\n5\n"]);
    let mut mirror = Mirroring::start(&home, "/memories", &["--write-back"]);
    mirror.until("mirrored", "/a.md");
    mirror.child.kill().unwrap();
    mirror.child.wait().unwrap();
    mirror.put("a.md", "1\n2\n3\n4\nsandbox\n");
    home.ok(&["write", "/memories/a.md", "agent\n2\n3\n4\n5\n"]);
    drop(mirror);
    let mut mirror = Mirroring::start(&home, "/memories", &["--write-back"]);
    mirror.until("merged", "/a.md");
    assert_eq!(home.ok(&["cat", "/memories/a.md"]), "agent\n2\n3\n4\nsandbox\n");
    assert_eq!(mirror.read("a.md"), "agent\n2\n3\n4\nsandbox\n");
    assert_eq!(mirror.end(), 0);
    // What a read-only mirror left is cleared.
    let mut mirror = Mirroring::start(&home, "/memories", &[]);
    mirror.until("mirrored", "/a.md");
    mirror.child.kill().unwrap();
    mirror.child.wait().unwrap();
    drop(mirror);
    home.ok(&["mv", "/memories/a.md", "/memories/b.md"]);
    let mut mirror = Mirroring::start(&home, "/memories", &[]);
    mirror.until("mirrored", "/b.md");
    assert!(!mirror.directory.join("a.md").exists());
    assert_eq!(mirror.end(), 0);
}

#[test]
fn mirror_of_the_state_follows_the_saved_thread_and_saves_edits() {
    let home = Home::new();
    home.ok(&["write", "/plan.md", "1. ask\n"]);
    let mut mirror = Mirroring::start(&home, "/", &["--write-back"]);
    mirror.until("mirrored", "/plan.md");
    home.ok(&["write", "/next.md", "2. measure\n"]);
    mirror.until("mirrored", "/next.md");
    mirror.put("plan.md", "1. edited\n");
    mirror.until("written_back", "/plan.md");
    assert_eq!(home.ok(&["cat", "/plan.md"]), "1. edited\n");
    assert_eq!(mirror.end(), 0);
}

#[test]
fn mirror_shows_and_writes_only_what_the_rules_admit() {
    let home = Home::new();
    home.put(
        "treehold.toml",
        "[stores.own]\nurl = \"sqlite:own.db\"\n[routes.\"/\"]\ntype = \"store\"\nstore = \"own\"\nnamespace = \"files\"\n\
         [[layers.permissions]]\neffect = \"deny\"\noperations = [\"all\"]\npaths = [\"/secret\"]\n\
         [[layers.permissions]]\neffect = \"deny\"\noperations = [\"write\"]\npaths = [\"/locked\"]\n",
    );
    let open = home.put(
        "../open.toml",
        "[stores.own]\nurl = \"sqlite:work/own.db\"\n[routes.\"/\"]\ntype = \"store\"\nstore = \"own\"\nnamespace = \"files\"\n",
    );
    let open = open.to_str().unwrap();
    for file in ["/secret/s", "/locked/l", "/open"] {
        home.ok(&["--config", open, "write", file, "before\n"]);
    }
    let mut mirror = Mirroring::start(&home, "/", &["--write-back"]);
    mirror.until("mirrored", "/open");
    assert!(!mirror.directory.join("secret").exists());
    mirror.put("locked/l", "edited\n");
    mirror.until("refused", "/locked/l");
    assert_eq!(mirror.read("locked/l"), "before\n");
    std::fs::create_dir(mirror.directory.join("secret")).unwrap();
    mirror.put("secret/s", "planted\n");
    mirror.until("refused", "/secret/s");
    mirror.put("open", "edited\n");
    mirror.until("written_back", "/open");
    assert_eq!(mirror.end(), 0);
    let cat = |file| home.ok(&["--config", open, "cat", file]);
    assert_eq!((cat("/secret/s"), cat("/locked/l"), cat("/open")), ("before\n".into(), "before\n".into(), "edited\n".into()));
}

#[test]
fn mirror_refuses_a_directory_with_content_or_within_the_tree() {
    let home = Home::new();
    home.ok(&["write", "/memories/a.md", "one\n"]);
    home.put("../precious/file", "mine");
    assert!(home.error(&["mirror", "/memories", "../precious"], 4).contains("must be empty or missing"));
    assert_eq!(std::fs::read_to_string(home.work().join("../precious/file")).unwrap(), "mine");
    assert!(home.error(&["mirror", "/workspace", "inner"], 2).contains("lies in the tree"));
    assert!(home.error(&["mirror", "/memories/a.md", "../out"], 2).contains("not a directory"));
    home.error(&["mirror", "/missing", "../out"], 3);
    home.error(&["mirror", "/memories", "../out", "--read-only", "--write-back"], 2);
    assert!(!home.work().join("../out").exists() && !home.work().join("inner").exists());
}

#[test]
fn mirror_once_leaves_the_files_and_ends() {
    let home = Home::new();
    home.ok(&["write", "/memories/a.md", "one\n"]);
    assert_eq!(home.ok(&["mirror", "/memories", "../out", "--once"]), "mirrored           /a.md\n");
    home.ok(&["write", "/memories/a.md", "two\n"]);
    home.ok(&["mirror", "/memories", "../out", "--once"]);
    assert_eq!(std::fs::read_to_string(home.work().join("../out/a.md")).unwrap(), "two\n");
}

#[test]
fn sync_keeps_a_directory_of_notes_and_one_of_the_tree_equal() {
    let home = Home::new();
    home.put("../out/mine.md", "mine\n");
    home.put("../out/both.md", "host\n");
    home.ok(&["write", "/memories/notes/agent.md", "agent\n"]);
    home.ok(&["write", "/memories/notes/both.md", "tree\n"]);
    let done = home.ok(&["sync", "../out", "/memories/notes"]);
    assert!(done.contains("written_back       /mine.md\n") && done.contains("mirrored           /agent.md\n"), "{done}");
    assert!(done.contains("conflict           /both.md"), "{done}");
    let names: Vec<String> = home.ok(&["ls", "/memories/notes"]).lines().map(str::to_owned).collect();
    assert!(names.iter().any(|name| name.contains("both.conflict-")), "{names:?}");
    // What is done between two runs is carried over by the second.
    home.ok(&["rm", "/memories/notes/mine.md"]);
    std::fs::remove_file(home.work().join("../out/agent.md")).unwrap();
    let done = home.ok(&["sync", "../out", "/memories/notes"]);
    assert!(done.contains("removed            /mine.md\n") && done.contains("removed_from_tree  /agent.md\n"), "{done}");
    assert_eq!(home.ok(&["sync", "../out", "/memories/notes"]), "");
    // It follows both sides until it is interrupted, and leaves the files.
    let mut syncing = Mirroring::run(&home, &["sync", "../out", "/memories/notes", "--watch"]);
    home.ok(&["write", "/memories/notes/later.md", "from the agent\n"]);
    syncing.until("mirrored", "/later.md");
    syncing.put("new.md", "from the editor\n");
    syncing.until("written_back", "/new.md");
    assert_eq!(home.ok(&["cat", "/memories/notes/new.md"]), "from the editor\n");
    assert_eq!(syncing.read("later.md"), "from the agent\n");
    let directory = syncing.directory.clone();
    assert_eq!(syncing.end(), 0);
    assert!(directory.join("later.md").exists());
}

#[test]
fn sync_creates_what_is_missing_and_refuses_what_governs_the_tree() {
    let home = Home::new();
    home.put("../out/a.md", "a\n");
    home.ok(&["sync", "../out", "/memories/new/place"]);
    assert_eq!(home.ok(&["cat", "/memories/new/place/a.md"]), "a\n");
    home.ok(&["sync", "../made", "/memories/new"]);
    assert_eq!(std::fs::read_to_string(home.work().join("../made/place/a.md")).unwrap(), "a\n");
    let data = home.data().to_str().unwrap().to_owned();
    assert!(home.error(&["sync", &data, "/memories/new"], 2).contains("may not be written"));
    // What the first attempt left beside the directory is not taken for a mirror of it.
    for _ in 0..2 {
        assert!(home.error(&["sync", "inner", "/workspace"], 2).contains("lies in the tree"));
    }
    home.error(&["sync", "../out", "/memories/new/place/a.md"], 2);
}

#[test]
fn sync_and_mirror_of_another_path_user_or_store_remove_nothing() {
    let home = Home::new();
    let has = |file: &str| home.work().join(file).exists();
    home.put("../out/a.md", "a\n");
    home.put("../out/b.md", "b\n");
    let sync = ["sync", "../out", "/memories/x"];
    let carl = [&["--user", "carl"][..], &sync].concat();
    let runs: [&[&str]; 3] = [&sync, &["sync", "../out", "/memories/y"], &carl];
    for args in runs {
        let done = home.ok(args);
        assert!(done.contains("written_back       /a.md\n") && !done.contains("removed"), "{args:?}: {done}");
        assert!(has("../out/a.md") && has("../out/b.md"), "{args:?}");
    }
    // A file that is missing in DIR stays in the tree of another user.
    assert_eq!(home.ok(&sync), "");
    std::fs::remove_file(home.work().join("../out/a.md")).unwrap();
    assert_eq!(home.ok(&carl), "mirrored           /a.md\n");
    assert_eq!(home.ok(&["--user", "carl", "cat", "/memories/x/a.md"]), "a\n");
    let mirror = ["mirror", "/memories/x", "../copy", "--once", "--write-back"];
    home.ok(&mirror);
    std::fs::remove_file(home.work().join("../copy/a.md")).unwrap();
    let refused = home.error(&[&["--user", "carl"][..], &mirror].concat(), 4);
    assert!(refused.contains("a mirror of another path, user, thread or store"), "{refused}");
    assert_eq!(home.ok(&["--user", "carl", "cat", "/memories/x/a.md"]), "a\n");
    assert_eq!(home.ok(&mirror), "removed_from_tree  /a.md\n");
    // The directory of the stores is moved away, so a new one is created.
    assert_eq!(home.ok(&carl), "");
    std::fs::rename(home.data(), home.work().join("../moved")).unwrap();
    let done = home.ok(&carl);
    assert!(done.contains("written_back       /a.md\n") && !done.contains("removed"), "{done}");
    assert!(has("../out/a.md") && has("../out/b.md"));
}
