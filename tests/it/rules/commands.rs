//! Every command, as `--help` lists them, under configured rules that hide and protect paths.
//!
//! A new command fails here until [`invocations`] defines how it accesses a path.

use crate::cli::Home;
use std::collections::BTreeMap;

/// Text that only hidden files contain, and text that only their names contain.
pub(crate) const SECRET: &str = "xyzzysecret";
pub(crate) const NAME: &str = "hiddenname";

const ROUTES: &str = r#"
[routes."/"]
type = "state"
quota = { bytes_max = 24000 }
[routes."/workspace"]
type = "filesystem"
root = "repo"
[routes."/workspace".overlay]
[routes."/past"]
type = "history"
at = "old"
[events]
save = true
"#;

const RULES: &str = r#"
[[layers.permissions]]
effect = "deny"
operations = ["all"]
paths = ["/secret", "/workspace/secret"]
[[layers.permissions]]
effect = "deny"
operations = ["write"]
paths = ["/locked", "/workspace/locked"]
"#;

/// A home whose threads and overlay hold hidden and protected files, past and present.
pub(crate) fn home() -> Home {
    let home = Home::new();
    home.put("open.toml", ROUTES);
    home.put("ruled.toml", format!("{ROUTES}{RULES}"));
    for (file, text) in [("secret/s", format!("{SECRET} below\n")), ("locked/l", "below\n".to_owned()), ("open/a", "below\n".to_owned())] {
        home.put(&format!("repo/{file}"), text);
    }
    let open = |args: &[&str]| home.ok(&[&["--config", "open.toml"], args].concat());
    let files = |thread: &str, word: &str| {
        for (file, text) in [
            (format!("/secret/{NAME}"), format!("{SECRET} {word}\n")),
            ("/locked/l".into(), format!("{word}\n")),
            ("/open/a".into(), format!("{word}\n")),
        ] {
            open(&["--thread", thread, "write", &file, &text]);
        }
    };
    files("default", "old");
    open(&["checkpoint", "create", "--label", "old"]);
    open(&["thread", "fork", "other"]);
    files("other", "other");
    files("default", "now");
    open(&["thread", "fork", "fine"]);
    for (file, text) in [("secret/s", format!("{SECRET} above\n")), ("locked/l", "above\n".to_owned()), ("open/a", "above\n".to_owned())] {
        open(&["write", &format!("/workspace/{file}"), &text]);
    }
    home
}

/// Returns everything that is withheld from the caller: in the state of each thread, in the overlay, and in its lower tree.
pub(crate) fn protected(home: &Home) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for thread in ["default", "other", "fine", "made", "copied"] {
        for file in [&format!("/secret/{NAME}"), "/locked/l", "/secret/new", "/locked/new", "/workspace/secret/s", "/workspace/locked/l"] {
            let ran = home.command(&["--config", "open.toml", "--thread", thread, "cat", file]).output().unwrap();
            all.insert(format!("{thread} {file}"), String::from_utf8_lossy(&ran.stdout).into_owned());
        }
    }
    for file in ["secret/s", "locked/l"] {
        all.insert(file.to_owned(), std::fs::read_to_string(home.work().join("repo").join(file)).unwrap());
    }
    all
}

/// Returns the subcommands of a command, from its help.
pub(crate) fn commands(home: &Home, above: &[&str]) -> Vec<Vec<String>> {
    let help = home.ok(&[above, &["--help"]].concat());
    let Some((_, list)) = help.split_once("\nCommands:\n") else { return vec![above.iter().map(|word| (*word).to_owned()).collect()] };
    let names = list
        .lines()
        .take_while(|line| line.starts_with("  "))
        .filter(|line| !line.starts_with("   "))
        .map(|line| line.split_whitespace().next().unwrap());
    let mut all = Vec::new();
    for name in names.filter(|name| *name != "help") {
        all.extend(commands(home, &[above, &[name]].concat()));
    }
    all
}

/// An editor that prints what it is given, and overwrites it.
const EDITOR: &str = r#"sh -c 'cat "$1" 2>&1; echo overwritten > "$1"' editor"#;

/// Returns the invocations by which a command accesses hidden and protected paths, one per line, or the reason why no rule applies to the
/// command.
fn invocations(command: &str) -> Result<Vec<String>, &'static str> {
    let paths = ["/secret", "/secret/hiddenname", "/secret/new", "/locked/l", "/locked/new", "/workspace/secret/s", "/workspace/locked/l"];
    let shown = ["/secret", "/secret/hiddenname", "/past/secret/hiddenname", "/workspace/secret/s", "/past", "/"];
    let each = |paths: &[&str], make: &dyn Fn(&str) -> String| Ok(paths.iter().map(|path| make(path)).collect());
    let lines = |lines: &[&str]| Ok(lines.iter().map(|line| (*line).to_owned()).collect());
    match command {
        "tree" | "stat" => each(&shown, &|path| format!("{command} {path}")),
        "ls" => Ok(shown.iter().flat_map(|path| [format!("ls {path}"), format!("ls -ld /open {path}")]).collect()),
        "cat" | "head" => {
            Ok(shown.iter().flat_map(|path| ["", "@old", "@latest"].map(|moment| format!("{command} {path}{moment}"))).collect())
        }
        "find" => each(&shown, &|path| format!("find {path}")),
        "glob" => each(&shown, &|path| format!("glob ** {path}")),
        "grep" => each(&shown, &|path| format!("grep now {path}")),
        "search" => each(&shown, &|path| format!("search now {path}")),
        "diff" => each(&shown, &|path| format!("diff /open/a {path}")),
        "write" | "append" => each(&paths, &|path| format!("{command} {path} overwritten")),
        "edit" => Ok(paths.iter().flat_map(|path| [format!("edit {path} now edited --all"), format!("edit {path} --editor")]).collect()),
        "patch" => lines(&["patch change.patch"]),
        "rm" => each(&paths, &|path| format!("rm -r {path}")),
        "mkdir" => each(&paths, &|path| format!("mkdir {path}")),
        "mv" | "cp" => {
            Ok(paths.iter().flat_map(|path| [format!("{command} /open/a {path}"), format!("{command} {path} /open/taken")]).collect())
        }
        "log" => each(&shown, &|path| format!("log {path}")),
        "show" => Ok(["show", "show old", "show ~1 --stat", "--json show", "--json show old"]
            .iter()
            .map(|line| (*line).to_owned())
            .chain(shown.iter().flat_map(|path| [format!("show {path}"), format!("show {path}@old"), format!("--json show {path}@latest")]))
            .collect()),
        "status" => lines(&["status", "--json status"]),
        "restore" => Ok(paths
            .iter()
            .map(|path| format!("restore {path} --at old"))
            .chain(shown.iter().map(|path| format!("restore {path} --at old --dry-run")))
            .collect()),
        "undo" => lines(&["undo", "undo 3", "undo --of-user"]),
        "import" => each(&paths, &|path| format!("import repo {path} --force")),
        "export" => each(&shown, &|path| format!("export {path} exported")),
        "timeline" => lines(&["timeline", "timeline --all-threads", "timeline /secret", "--json timeline"]),
        "mirror" => lines(&[
            "mirror / mirrored --once",
            "mirror /secret hidden --once --write-back",
            "mirror /locked locked --once --write-back",
            "mirror /past past --once",
        ]),
        "sync" => lines(&["sync synced /", "sync repo /locked", "sync hidden /secret", "sync repo /open/repo"]),
        "run" => lines(&["run calls.jsonl"]),
        // The words of the shell are separated by tabs here.
        "shell" => each(&shown, &|path| format!("shell -c cd\t{path};ls;cat\t{path};write\t/locked/l\tx;overlay\tdiff\t--git")),
        "checkpoint ls" => lines(&["checkpoint ls", "--json checkpoint ls"]),
        "checkpoint create" => lines(&["checkpoint create --label mine"]),
        "checkpoint show" => lines(&["checkpoint show", "checkpoint show old --calls", "--json checkpoint show"]),
        "checkpoint restore" => lines(&["checkpoint restore old", "checkpoint restore ~1"]),
        "checkpoint diff" => lines(&[
            "checkpoint diff old",
            "checkpoint diff old --patch",
            "checkpoint diff old --git",
            "checkpoint diff old --stat",
            "checkpoint diff --with other --patch",
            "--json checkpoint diff old --patch",
        ]),
        "thread ls" => lines(&["thread ls", "--json thread ls"]),
        "thread fork" => lines(&["thread fork made --at old"]),
        "thread merge" => lines(&[
            "thread merge other",
            "thread merge other --dry-run",
            "thread merge other --strategy theirs",
            "thread merge other --strategy ours",
            "thread merge other --strategy union",
            "thread merge other --strategy markers --dry-run",
            "--json thread merge other",
            "thread merge default --into other --strategy theirs",
        ]),
        "thread rm" => lines(&["thread rm default", "thread rm other fine"]),
        "overlay diff" => lines(&[
            "overlay diff",
            "overlay diff --patch",
            "overlay diff --git",
            "overlay diff /workspace/secret --patch",
            "--json overlay diff --patch",
        ]),
        "overlay apply" => {
            lines(&["overlay apply", "overlay apply --dry-run", "overlay apply /workspace/locked", "overlay apply --strategy ours"])
        }
        "overlay discard" => lines(&["overlay discard --yes", "overlay discard /workspace/locked", "overlay discard /workspace/secret/s"]),
        "memory show" => lines(&["memory show", "memory show /secret/hiddenname"]),
        "thread copy" => Err("the copy holds what the thread holds, past and present, behind the same rules"),
        "checkpoint prune" | "checkpoint sweep" | "sweep" => Err("removes checkpoints and changes no file"),
        "watch" => Err("tells what the timeline tells, and does not end"),
        "tools" | "mcp" | "serve" => Err("asked by itself, tool by tool and route by route"),
        "store ls" | "store get" | "store put" | "store rm" | "store search" | "store compact" | "store copy" | "store export"
        | "store import" | "store index" | "store migrate" | "store snapshot" | "store stats" | "store sweep" | "store verify" => {
            Err("works on the rows of a store, for whoever has the store")
        }
        "session ls" | "session show" | "session messages" | "session turns" | "session compact" | "session export" | "session import"
        | "session rm" => Err("works on the sessions of the user in a store, not on paths"),
        "trace ls" | "trace show" | "trace messages" | "trace tail" | "trace create" | "trace continue" | "trace export"
        | "trace import" | "trace rm" => {
            Err("works on the traces of the user in a store and on layouts of the host, not on paths of the tree")
        }
        "state ls" | "state show" | "state get" | "state put" | "state export" | "state interrupt" | "state rm" => {
            Err("works on the states of the user in a store, not on paths")
        }
        "state copy" => Err("works on the states of the user in a store and on a layout of the host, not on paths of the tree"),
        "token create" | "token ls" | "token revoke" => Err("works on the tokens of a store, for whoever has the store"),
        "config show" | "config check" | "config init" | "config trust" => Err("works on the configuration file"),
        "doctor" | "completions" | "man" => Err("is about the program"),
        other => panic!("add calls of `{other}` for a path here"),
    }
}

#[test]
fn no_command_shows_or_changes_what_a_rule_withholds() {
    let home = home();
    home.put("change.patch", "--- /locked/l\n+++ /locked/l\n@@ -1 +1 @@\n-now\n+patched\n");
    let calls = ["/secret/hiddenname", "/locked/l"].map(|path| {
        format!(
            "{{\"id\": \"1\", \"tool\": \"write_file\", \"args\": {{\"path\": \"{path}\", \"content\": \"x\"}}}}\n\
             {{\"id\": \"2\", \"tool\": \"read_file\", \"args\": {{\"path\": \"/past{path}\"}}}}"
        )
    });
    home.put("calls.jsonl", calls.join("\n"));
    let before = protected(&home);
    assert!(before["default /locked/l"] == "now\n" && before["default /workspace/locked/l"] == "above\n", "{before:?}");
    let all = commands(&home, &[]);
    assert!(all.len() > 50, "{all:?}");
    let mut asked = 0;
    for command in all {
        let Ok(lines) = invocations(&command.join(" ")) else { continue };
        for line in lines {
            let words: Vec<&str> = line.split(' ').collect();
            let ran = home
                .command(&[&["--config", "ruled.toml"], &words[..]].concat())
                .env("TREEHOLD_EDITOR", EDITOR)
                .env("TMPDIR", home.work())
                .output()
                .unwrap();
            let said = format!("{}{}", String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
            assert!(!said.contains(SECRET), "{line}: {said}");
            assert!(said.contains(NAME) <= (line.contains(NAME) || line.starts_with("run")), "{line}: {said}");
            asked += 1;
        }
        assert_eq!(protected(&home), before, "{command:?}");
    }
    assert!(asked > 90, "{asked}");
}

/// Regression: restoring a checkpoint from before the quota, or merging one, stored eight times what it allows.
#[test]
fn restore_and_merge_obey_the_quota_of_the_route() {
    let home = home();
    home.put("free.toml", ROUTES.replace("bytes_max = 24000", "bytes_max = 4000000"));
    for number in 0..9 {
        home.ok(&["--config", "free.toml", "write", &format!("/open/{number}"), &"now ".repeat(1_000)]);
    }
    home.ok(&["--config", "free.toml", "checkpoint", "create", "--label", "large"]);
    home.ok(&["--config", "free.toml", "thread", "fork", "big"]);
    home.ok(&["--config", "free.toml", "checkpoint", "restore", "old"]);
    for number in 10..16 {
        home.ok(&["--config", "free.toml", "--thread", "big", "write", &format!("/open/{number}"), &"now ".repeat(1_000)]);
    }
    for line in [
        "checkpoint restore large",
        "thread fork made --at large",
        "thread merge big --strategy theirs",
        "thread merge big --strategy theirs --dry-run",
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let ran = home.command(&[&["--config", "open.toml"], &words[..]].concat()).output().unwrap();
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.code() == Some(5) && said.contains("of 24000 bytes"), "{line}: {said}");
    }
}
