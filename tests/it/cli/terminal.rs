//! Control sequences in stored text must not reach a terminal.

use super::Home;
use super::sessions::document;
use serde_json::json;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};

/// Dangerous stored text: C0 with a title sequence, colours, DEL, C1 as UTF-8, and a bidirectional override.
const HOSTILE: &str = "a\u{1b}]0;owned\u{7}b\u{1b}[31mc\u{7f}d\u{9b}2Je\u{202e}f\rg";

/// A session whose id reorders text.
const SESSION: &str = "s\u{202e}";

/// A trace whose id reorders text.
const TRACE: &str = "t\u{202e}";

/// A home where every text is hostile.
fn hostile() -> Home {
    let home = Home::new();
    let config = "[routes.\"/\"]\ntype = \"state\"\n[routes.\"/memories\"]\ntype = \"store\"\nnamespace = \"{user}/m\"\n[routes.\"/host\"]\ntype = \
         \"filesystem\"\nroot = \".\"\noverlay = {}\n[memory]\nsources = [\"/memories/AGENTS.md\"]\n";
    home.put("treehold.toml", config);
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
    let call = json!({"type": "toolCall", "id": HOSTILE, "name": HOSTILE, "arguments": {"path": HOSTILE}});
    let messages = [
        json!({"role": "user", "content": format!("{HOSTILE}\nforged"), "timestamp": 1}),
        json!({"role": "assistant", "content": [{"type": "text", "text": HOSTILE}, {"type": HOSTILE}, call], "timestamp": 1}),
        json!({"role": "toolResult", "toolCallId": HOSTILE, "content": HOSTILE, "timestamp": 1}),
    ];
    let messages = [&messages[..], &[0; 6].map(|_| messages[0].clone())].concat();
    let session = document("default", "default", SESSION, &format!("{HOSTILE}\nforged"), &messages);
    home.with_stdin(&["session", "import"], session.as_bytes()).success();
    let state = json!({"summary": format!("{HOSTILE}\nforged"), "context": [
        {"role": HOSTILE, "name": format!("{HOSTILE}\nforged"), "timestamp": HOSTILE, "content": format!("{HOSTILE}\nforged")},
        {"role": "ASSISTANT", "content": [{"type": HOSTILE}, {"type": "tool_use", "id": HOSTILE, "name": HOSTILE, "input": {"path": HOSTILE}}]},
    ]});
    // JSON has escapes for control characters, but others can be literal.
    home.with_stdin(&["state", "put", SESSION], state.to_string().as_bytes()).success();
    home.with_stdin(&["state", "put", SESSION, HOSTILE], b"7").success();
    home.ok(&["trace", "create", "--id", TRACE, &format!("{HOSTILE}\nforged")]);
    home.ok(&["trace", "continue", "--no-run", TRACE, &format!("{HOSTILE}\nforged")]);
    home
}

/// Runs a command with its output on a terminal without a pager. Returns the bytes that the terminal receives.
fn on_terminal(home: &Home, args: &[&str], stdin: &[u8]) -> Vec<u8> {
    on_terminal_of(home, 80, &[("TREEHOLD_PAGER", "")], args, stdin)
}

/// Runs a command with its output on a terminal of some width, with environment variables. Returns the bytes that the terminal receives.
pub(super) fn on_terminal_of(home: &Home, width: u16, variables: &[(&str, &str)], args: &[&str], stdin: &[u8]) -> Vec<u8> {
    let path = home.work().join("../stdin");
    std::fs::write(&path, stdin).unwrap();
    run_on_terminal(home, width, variables, args, Some(File::open(&path).unwrap()), |_| {}).0
}

/// Runs a command whose input and output are both a terminal. Returns the bytes that the terminal receives, and the exit code.
pub(super) fn at_terminal(home: &Home, variables: &[(&str, &str)], args: &[&str]) -> (String, i32) {
    at_terminal_watched(home, variables, args, |_| {})
}

/// Runs a command as [`at_terminal`] does. `watch` gets what the terminal shows so far, whenever there is more.
pub(super) fn at_terminal_watched(
    home: &Home,
    variables: &[(&str, &str)],
    args: &[&str],
    mut watch: impl FnMut(&str) + Send + 'static,
) -> (String, i32) {
    let variables = [&[("NO_COLOR", "1"), ("TREEHOLD_PAGER", "")], variables].concat();
    let watch = move |shown: &[u8]| watch(&String::from_utf8_lossy(shown));
    let (shown, code) = run_on_terminal(home, 80, &variables, args, None, watch);
    (String::from_utf8(shown).unwrap(), code)
}

/// Runs a command on a terminal of some width. Its standard input is a file, or that terminal.
fn run_on_terminal(
    home: &Home,
    width: u16,
    variables: &[(&str, &str)],
    args: &[&str],
    stdin: Option<File>,
    mut watch: impl FnMut(&[u8]) + Send + 'static,
) -> (Vec<u8>, i32) {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let control = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&control).unwrap();
    unlockpt(&control).unwrap();
    let name = ptsname(&control, Vec::new()).unwrap().into_string().unwrap();
    let line = || File::options().read(true).write(true).open(&name).unwrap();
    let mut modes = rustix::termios::tcgetattr(line()).unwrap();
    modes.make_raw();
    rustix::termios::tcsetattr(line(), rustix::termios::OptionalActions::Now, &modes).unwrap();
    let size = rustix::termios::Winsize { ws_row: 24, ws_col: width, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(line(), size).unwrap();
    let stdin = stdin.unwrap_or_else(line);
    let mut command = Command::new(super::binary());
    command.args(args).current_dir(home.work()).env_clear().env("TREEHOLD_DATA", home.data()).env("TERM", "xterm");
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("HOME", home.root.path());
    command.env("TREEHOLD_EDITOR", "true").envs(variables.iter().copied());
    command.stdin(stdin).stdout(Stdio::from(line())).stderr(Stdio::from(line()));
    let mut child = command.spawn().unwrap();
    drop(command);
    let reader = std::thread::spawn(move || {
        let mut shown = Vec::new();
        let (mut control, mut part) = (File::from(control), [0; 4096]);
        // Reading fails once the other side of the terminal is closed.
        while let Ok(count @ 1..) = control.read(&mut part) {
            shown.extend_from_slice(&part[..count]);
            watch(&shown);
        }
        shown
    });
    let status = child.wait().unwrap();
    let code = status.code().filter(|code| *code <= 6).unwrap_or_else(|| panic!("{args:?}: {status}"));
    (reader.join().unwrap(), code)
}

/// Returns the first sequence in some output that a terminal would interpret, except the command's own colours.
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

/// Every command that prints text written by others, and those that print none: together, all commands.
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
    &["log", "/memories/AGENTS.md"],
    &["log", "/none\u{202e}"],
    &["restore", "/none\u{202e}", "--at", "v1\u{1b}[31m"],
    &["restore", "/", "--at", "~1", "--dry-run"],
    &["cat", "/a.md@none\u{1b}[31m"],
    &["ls", "-ld", "/a.md", "/"],
    &["status"],
    &["show", "latest"],
    &["show", "latest", "--stat"],
    &["show", "/memories/AGENTS.md@v1"],
    &["show", "/a.md@none\u{1b}[31m"],
    &["edit", "/a.md", "--editor"],
    &["timeline"],
    &["watch", "--after", "0", "--limit", "5"],
    &["run", "-"],
    &["shell", "-c", "ls; cat a.md; cat none\u{202e}; cd none\u{202e}"],
    &["checkpoint", "create", "--label", "again\u{1b}[31m"],
    &["checkpoint", "ls"],
    &["checkpoint", "show", "latest"],
    &["checkpoint", "diff", "--patch"],
    &["checkpoint", "diff", "--git"],
    &["checkpoint", "restore", "none\u{1b}[31m"],
    &["checkpoint", "prune", "--keep-last", "100"],
    &["checkpoint", "sweep"],
    &["thread", "ls"],
    &["thread", "merge", "other"],
    &["thread", "fork", "third"],
    &["thread", "copy", "fourth"],
    &["thread", "rm", "fourth"],
    &["overlay", "diff", "--patch"],
    &["overlay", "diff", "--git"],
    &["overlay", "apply", "--dry-run"],
    &["overlay", "discard", "/host/none\u{202e}"],
    &["memory", "show"],
    &["store", "ls"],
    &["store", "ls", "rows"],
    &["store", "get", "rows", "key"],
    &["store", "put", "rows\u{1b}", "key"],
    &["store", "rm", "rows", "none\u{1b}[31m"],
    &["store", "search", "rows"],
    &["store", "migrate", "--dry-run"],
    &["store", "stats"],
    &["store", "verify"],
    &["store", "sweep"],
    &["store", "compact"],
    &["sweep"],
    &["sweep", "--dry-run"],
    &["store", "export", "out\u{1b}.archive"],
    &["store", "import", "none\u{1b}[31m"],
    &["store", "snapshot", "snapshot\u{1b}[31m"],
    &["store", "copy", "default", "none\u{1b}[31m"],
    &["store", "index", "/memories", "--status"],
    &["import", "none\u{1b}[31m", "/x"],
    &["export", "/", "exported\u{1b}[31m"],
    &["mirror", "/", "mirrored\u{1b}[31m", "--once"],
    &["sync", "synced\u{1b}[31m", "/"],
    &["session", "ls"],
    &["session", "show", SESSION],
    &["session", "messages", SESSION],
    &["session", "turns", SESSION],
    &["session", "compact", SESSION, "--plan"],
    &["session", "export", SESSION],
    &["session", "import", "none\u{1b}[31m"],
    &["session", "rm", "none\u{202e}"],
    &["trace", "ls"],
    &["trace", "show", TRACE],
    &["trace", "messages", TRACE],
    &["trace", "tail", "--once", TRACE],
    &["trace", "create", "--id", "u\u{202e}", "x\u{1b}[31m"],
    &["trace", "continue", "--no-run", "none\u{202e}", "x\u{1b}[31m"],
    &["trace", "export", "--to", "traces\u{1b}[31m"],
    &["trace", "import", "--from", "none\u{1b}[31m"],
    &["trace", "rm", "none\u{202e}"],
    &["state", "ls"],
    &["state", "ls", "--users"],
    &["state", "show", SESSION],
    &["state", "get", SESSION],
    &["state", "get", SESSION, "none\u{1b}[31m"],
    &["state", "put", "s\u{1b}", "k", "1"],
    &["state", "put", SESSION, "k\u{1b}[31m", "x\u{1b}[31m"],
    &["state", "copy", "store", "files:copied\u{1b}[31m"],
    &["state", "copy", "files:none\u{1b}[31m", "store"],
    &["state", "export", SESSION],
    &["state", "export", SESSION, "--markdown"],
    &["state", "interrupt", SESSION, "--message", "x\u{1b}[31m"],
    &["state", "rm", "none\u{202e}"],
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
    &["undo"],
];

/// Commands that serve a protocol or wait, and one that prints a shell script.
const OTHERS: &[&str] = &["mcp", "serve", "completions"];

#[test]
fn control_sequences_of_stored_text_never_reach_a_terminal() {
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
        // Other programs may show the output on a terminal, so text for people contains no control characters there
        // either.
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
        // The text contains a colour code itself, so count the command's colours by their reset codes.
        assert_eq!(obeyed(&shown, &own), None, "{args:?}");
        assert!(!String::from_utf8_lossy(&shown).contains("b\u{1b}[31mc"), "{args:?}");
    }
}

/// Names and notes that would start a new line if printed verbatim.
#[test]
fn stored_names_and_notes_begin_no_line_of_their_own() {
    let home = hostile();
    for (end, line) in [("\n", "forged one"), ("\r", "forged two"), ("\r\n", "forged three")] {
        let text = format!("x{end}{line}");
        home.ok(&["token", "create", "--label", &text]);
        home.ok(&["checkpoint", "create", "--meta", &format!("k{text}=v{text}")]);
        home.with_stdin(&["store", "put", "rows", &text], b"\"needle\"").success();
        home.with_stdin(&["store", "put", &format!("n{text}"), "key"], b"\"needle\"").success();
        for wrong in [&["rm"][..], &["checkpoint", "show"], &["store", "get", "rows"], &["token", "revoke"], &["thread", "merge"]] {
            let output = home.command(&[wrong, &[&text]].concat()).output().unwrap();
            assert_no_line(&output.stderr, line, wrong);
        }
    }
    for args in SHOWING {
        let output = home.command(args).write_stdin("").output().unwrap();
        assert_no_line(&[output.stdout, output.stderr].concat(), "forged", args);
    }
}

/// Fails if some output has a line that begins with a text.
fn assert_no_line(output: &[u8], start: &str, args: &[&str]) {
    let text = String::from_utf8_lossy(output);
    let found = text.split(['\n', '\r']).find(|line| line.starts_with(start));
    assert_eq!(found, None, "{args:?}: {text}");
}

#[test]
fn usage_errors_and_help_use_the_requested_colors() {
    let home = Home::new();
    for args in [&["no-such-command"][..], &["ls", "--no-such-option"], &["--help"], &["ls", "--limit", "x"]] {
        for (color, is_colored) in [(&["--color", "never"][..], false), (&["--color=never"], false), (&["--color", "always"], true)] {
            let args = [color, args].concat();
            let output = home.command(&args).output().unwrap();
            assert_eq!([output.stdout, output.stderr].concat().contains(&0x1b), is_colored, "{args:?}");
            assert_eq!(on_terminal(&home, &args, b"").contains(&0x1b), is_colored, "{args:?} on a terminal");
        }
    }
}

#[test]
fn piped_content_is_byte_for_byte() {
    let home = hostile();
    for (args, expected) in
        [(&["cat", "/memories/AGENTS.md"][..], format!("{HOSTILE} needle\n")), (&["store", "get", "rows", "key"], HOSTILE.to_owned())]
    {
        assert_eq!(home.ok(args), expected, "{args:?}");
    }
}

/// The list above names every command.
#[test]
fn every_command_is_covered() {
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

/// An ignored option is an error: each command uses the named configuration or refuses the option.
#[test]
fn every_command_uses_or_refuses_a_named_configuration() {
    let home = hostile();
    for args in SHOWING {
        let output = home.command(args).args(["--config", "none.toml"]).write_stdin("").output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        let is_refused = output.status.code() == Some(2) && told.contains("does not use --config");
        let is_used = !output.status.success() && told.contains("none.toml");
        // An invalid argument is reported before any file is read.
        let is_wrong = told.contains("none\\u{1b}") || told.contains("\u{202e}") || told.contains("\\u{202e}");
        assert!(is_refused || is_used || is_wrong || args[0] == "doctor", "{args:?}: {output:?}");
    }
}
