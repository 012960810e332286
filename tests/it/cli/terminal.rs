//! Stored text on a terminal: shown, and never obeyed.

use super::Home;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};

/// What stored text may hold: C0 with a title, colours, DEL, C1 as UTF-8, and a reordering of what follows.
const HOSTILE: &str = "a\u{1b}]0;owned\u{7}b\u{1b}[31mc\u{7f}d\u{9b}2Je\u{202e}f\rg";

/// A home whose every text is hostile.
fn hostile() -> Home {
    let home = Home::new();
    let config = "[routes.\"/\"]\ntype = \"state\"\n[routes.\"/memories\"]\ntype = \"store\"\nnamespace = \"{user}/m\"\n[routes.\"/host\"]\ntype = \
         \"filesystem\"\nroot = \".\"\noverlay = {}\n[memory]\nsources = [\"/memories/AGENTS.md\"]\n";
    home.put("stratafs.toml", config);
    home.put("plain.md", format!("{HOSTILE}\n"));
    let write = |path: &str, text: String| home.with_stdin(&["write", path, "-"], text.as_bytes()).success();
    write("/a.md", format!("one\n{HOSTILE} needle\n"));
    write("/b.md", format!("two\n{HOSTILE} needle\n"));
    write("/n\u{202e}ame.md", "x\n".to_owned());
    write("/memories/AGENTS.md", format!("{HOSTILE} needle\n"));
    write("/host/over.md", format!("{HOSTILE} needle\n"));
    home.ok(&["checkpoint", "create", "--label", "a\u{202e}b"]);
    home.ok(&["checkpoint", "create", "--meta", &format!("k{HOSTILE}=v{HOSTILE}")]);
    home.ok(&["thread", "fork", "other"]);
    home.with_stdin(&["write", "/a.md", "-"], format!("mine {HOSTILE}\n").as_bytes()).success();
    home.with_stdin(&["write", "/a.md", "-", "--thread", "other"], format!("theirs {HOSTILE}\n").as_bytes()).success();
    home.with_stdin(&["store", "put", "rows", "key"], HOSTILE.as_bytes()).success();
    home.ok(&["token", "create", "--label", HOSTILE]);
    home
}

/// Runs a command with its output on a terminal, and returns what the terminal gets.
fn on_terminal(home: &Home, args: &[&str], stdin: &[u8]) -> Vec<u8> {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let control = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&control).unwrap();
    unlockpt(&control).unwrap();
    let name = ptsname(&control, Vec::new()).unwrap().into_string().unwrap();
    let line = || File::options().read(true).write(true).open(&name).unwrap();
    let mut modes = rustix::termios::tcgetattr(line()).unwrap();
    modes.make_raw();
    rustix::termios::tcsetattr(line(), rustix::termios::OptionalActions::Now, &modes).unwrap();
    let path = home.work().join("../stdin");
    std::fs::write(&path, stdin).unwrap();
    let mut command = Command::new(super::binary());
    command.args(args).current_dir(home.work()).env_clear().env("STRATAFS_DATA", home.data()).env("TERM", "xterm");
    command.stdin(File::open(&path).unwrap()).stdout(Stdio::from(line())).stderr(Stdio::from(line()));
    let mut child = command.spawn().unwrap();
    drop(command);
    let reader = std::thread::spawn(move || {
        let mut shown = Vec::new();
        // The end of a terminal whose other side is closed is an error.
        let _ = File::from(control).read_to_end(&mut shown);
        shown
    });
    let status = child.wait().unwrap();
    assert!(status.code().is_some_and(|code| code <= 6), "{args:?}: {status}");
    reader.join().unwrap()
}

/// Returns the first thing in some output that a terminal would obey, but for colours of the command's own.
fn obeyed(output: &[u8], own: &[&str]) -> Option<String> {
    let mut text = String::from_utf8_lossy(output).into_owned();
    own.iter().for_each(|code| text = text.replace(&format!("\u{1b}[{code}m"), ""));
    text = text.replace("\r\n", "\n");
    let is_obeyed = |character: char| {
        (character.is_control() && !matches!(character, '\t' | '\n'))
            || matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let at = text.find(is_obeyed)?;
    let start = text.floor_char_boundary(at.saturating_sub(40));
    Some(format!("{:?}", &text[start..text.ceil_char_boundary((at + 40).min(text.len()))]))
}

/// Every command that prints something that others wrote, and those that print nothing of the kind: together, all there are.
const SHOWING: &[&[&str]] = &[
    &["ls", "/"],
    &["ls", "-l", "/"],
    &["tree", "/"],
    &["cat", "/a.md"],
    &["head", "/a.md", "/b.md"],
    &["stat", "/n\u{202e}ame.md"],
    &["find", "/"],
    &["glob", "**"],
    &["grep", "needle", "/"],
    &["grep", "-c", "needle", "/"],
    &["search", "needle", "/"],
    &["diff", "/a.md", "/b.md"],
    &["write", "/memories/\u{202e}new", "text"],
    &["append", "/\u{202e}", "text"],
    &["edit", "/a.md", "none\u{1b}[31m", "x"],
    &["patch", "-"],
    &["rm", "/none\u{202e}"],
    &["mv", "/none\u{202e}", "/x"],
    &["cp", "/none\u{202e}", "/x"],
    &["mkdir", "/a.md/\u{202e}"],
    &["timeline"],
    &["run", "-"],
    &["checkpoint", "create", "--label", "again\u{1b}[31m"],
    &["checkpoint", "ls"],
    &["checkpoint", "show", "latest"],
    &["checkpoint", "diff", "--patch"],
    &["checkpoint", "restore", "none\u{1b}[31m"],
    &["checkpoint", "prune", "--keep-last", "100"],
    &["checkpoint", "sweep"],
    &["thread", "ls"],
    &["thread", "merge", "other"],
    &["thread", "fork", "third"],
    &["thread", "copy", "fourth"],
    &["thread", "rm", "fourth"],
    &["overlay", "diff", "--patch"],
    &["overlay", "apply", "--dry-run"],
    &["overlay", "discard", "/host/none\u{202e}"],
    &["memory", "show"],
    &["store", "ls"],
    &["store", "ls", "rows"],
    &["store", "get", "rows", "key"],
    &["store", "put", "rows\u{1b}", "key"],
    &["store", "rm", "rows", "none\u{1b}[31m"],
    &["store", "search", "rows"],
    &["store", "stats"],
    &["store", "verify"],
    &["store", "sweep"],
    &["store", "export", "out\u{1b}.archive"],
    &["store", "import", "none\u{1b}[31m"],
    &["store", "snapshot", "snapshot\u{1b}[31m"],
    &["store", "copy", "default", "none\u{1b}[31m"],
    &["store", "index", "/memories", "--status"],
    &["token", "ls"],
    &["token", "revoke", "none\u{1b}[31m"],
    &["token", "create", "--label", "x\u{1b}[31m"],
    &["config", "show"],
    &["config", "check", "none\u{1b}[31m"],
    &["config", "trust", "--show"],
    &["config", "trust", "none\u{1b}[31m"],
    &["config", "init", "none\u{1b}[31m/x"],
    &["doctor"],
    &["tools"],
    &["man", "none\u{1b}[31m"],
];

/// Commands that serve a protocol or wait, and one whose output is a script of the shell.
const OTHERS: &[&str] = &["watch", "mcp", "serve", "completions"];

#[test]
fn no_command_lets_a_terminal_obey_stored_text() {
    let home = hostile();
    let calls = format!(
        "{{\"tool\": \"read_file\", \"args\": {{\"path\": \"/a.md\"}}}}\n{{\"tool\": \"read_file\", \"args\": {{\"path\": \"/{}\"}}}}\n",
        "n\\u202eone"
    );
    let own = ["0", "1;34", "35", "32", "1;31", "31", "2", "1", "33", "4"];
    for args in SHOWING {
        let stdin = if args[0] == "run" { calls.as_bytes() } else { HOSTILE.as_bytes() };
        let plain: Vec<&str> = args.iter().copied().chain(["--color", "never"]).collect();
        let shown = on_terminal(&home, &plain, stdin);
        assert_eq!(obeyed(&shown, &[]), None, "{args:?}");
        // A program that reads the output may show it on a terminal: text for people holds no control characters there either.
        let output = home.command(&plain).write_stdin(stdin).output().unwrap();
        assert_eq!(obeyed(String::from_utf8_lossy(&output.stderr).replace('\u{202e}', "").as_bytes(), &[]), None, "{args:?}");
        for format in ["--json", "--jsonl"] {
            let args: Vec<&str> = args.iter().copied().chain([format]).collect();
            let shown = on_terminal(&home, &args, stdin);
            assert_eq!(obeyed(&shown, &[]), None, "{args:?}");
        }
    }
    for args in [&["ls", "/"][..], &["grep", "needle", "/"], &["thread", "merge", "other"], &["diff", "/a.md", "/b.md"]] {
        let args: Vec<&str> = args.iter().copied().chain(["--color", "always"]).collect();
        let shown = on_terminal(&home, &args, b"");
        // The text holds a colour of its own, so the codes of the command are those that end.
        assert_eq!(obeyed(&shown, &own), None, "{args:?}");
        assert!(!String::from_utf8_lossy(&shown).contains("b\u{1b}[31mc"), "{args:?}");
    }
}

#[test]
fn content_for_another_program_is_byte_for_byte() {
    let home = hostile();
    for (args, expected) in
        [(&["cat", "/memories/AGENTS.md"][..], format!("{HOSTILE} needle\n")), (&["store", "get", "rows", "key"], HOSTILE.to_owned())]
    {
        assert_eq!(home.ok(args), expected, "{args:?}");
    }
}

/// The list above names every command that there is.
#[test]
fn every_command_is_looked_at() {
    let home = Home::new();
    let names = |args: &[&str]| -> Vec<String> {
        let help = home.ok(&[args, &["--help"]].concat());
        let Some((_, commands)) = help.split_once("Commands:\n") else { return Vec::new() };
        commands
            .lines()
            .take_while(|line| !line.is_empty())
            .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
            .filter_map(|line| line.split_whitespace().next())
            .map(str::to_owned)
            .collect()
    };
    let mut missing = BTreeSet::new();
    for command in names(&[]) {
        let inner = names(&[&command]);
        if inner.is_empty() && !OTHERS.contains(&&*command) && !SHOWING.iter().any(|args| args[0] == command) {
            missing.insert(command);
            continue;
        }
        for name in inner {
            if !SHOWING.iter().any(|args| args[0] == command && args.get(1) == Some(&&*name)) {
                missing.insert(format!("{command} {name}"));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:?}");
}

/// An option that changes nothing is an error: each command reads the configuration that is named, or refuses to be given one.
#[test]
fn every_command_uses_the_configuration_that_is_named_or_refuses_it() {
    let home = hostile();
    for args in SHOWING {
        let output = home.command(args).args(["--config", "none.toml"]).write_stdin("").output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        let is_refused = output.status.code() == Some(2) && told.contains("does not use --config");
        let is_used = !output.status.success() && told.contains("none.toml");
        // An argument that is wrong in itself is told of before a file is read.
        let is_wrong = told.contains("none\\u{1b}") || told.contains("\u{202e}") || told.contains("\\u{202e}");
        assert!(is_refused || is_used || is_wrong || args[0] == "doctor", "{args:?}: {output:?}");
    }
}
