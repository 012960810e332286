//! Habits of other programs: `help COMMAND`, `head -5`, `find -name`. They are rewritten to what the command line declares, or answered with
//! a tip.

use crate::cli::args::Cli;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory};
use std::ffi::{OsStr, OsString};

/// The help of `-h`, one screen of 24 lines by 80 columns.
pub(crate) const SHORT_HELP: &str = "\
One file tree for AI agents, whose parts live in different tiers.

Usage: treehold [OPTIONS] COMMAND

  read       ls  tree  cat  head  stat  find  glob  grep  search  diff
  see        status  log  show  timeline  watch
  change     write  append  edit  patch  rm  mv  cp  mkdir
  go back    restore  undo  checkpoint  thread  overlay
  agents     run  shell  tools  memory  session  state  trace
  exchange   import  export  mirror  sync
  serve      mcp  serve  token
  set up     config  store  sweep  doctor  completions  man

  --thread ID     thread whose state is mounted at `/`
  --user ID       user on whose behalf to run
  --json          print results and errors as JSON
  --config FILE   configuration file

`treehold COMMAND -h` explains a command in short, `treehold help COMMAND` in
full. `treehold --help` lists all commands with what they do, and all options.
";

/// What users of other programs try, and what does it here.
const TIPS: &[(&str, &str, &str)] = &[
    ("", "tail", "`treehold cat PATH --offset N` skips the first N lines"),
    ("", "less", "`treehold cat PATH | less` shows a file in a pager"),
    ("", "more", "`treehold cat PATH | less` shows a file in a pager"),
    ("", "touch", "`treehold write PATH ''` creates an empty file"),
    ("", "echo", "`treehold write PATH TEXT` writes a file"),
    ("", "vi", "`treehold edit PATH` opens a file in your editor"),
    ("", "vim", "`treehold edit PATH` opens a file in your editor"),
    ("", "nano", "`treehold edit PATH` opens a file in your editor"),
    ("", "rg", "`treehold grep PATTERN PATH` searches files"),
    ("", "rmdir", "`treehold rm PATH` removes an empty directory"),
    ("", "commit", "every change is saved; `treehold checkpoint create --label TEXT` names a state"),
    ("", "checkout", "`treehold checkpoint restore CHECKPOINT` goes back to a saved state"),
    ("", "branch", "`treehold thread fork NEW` starts a thread from this one"),
    ("", "merge", "`treehold thread merge SOURCE` merges another thread into this one"),
    ("", "fork", "`treehold thread fork NEW` starts a thread from this one"),
    ("", "history", "`treehold log PATH` lists the versions of a file, `treehold checkpoint ls` those of the thread"),
    ("", "init", "nothing has to be set up; `treehold config init` writes a configuration to change"),
    ("", "cd", "paths start with `/` here; `treehold shell` has a current directory"),
    ("", "wc", "`treehold cat PATH | wc` counts lines, words and bytes"),
    ("", "version", "`treehold --version` prints the version"),
    ("checkpoint", "log", "`treehold checkpoint ls` lists checkpoints"),
    ("checkpoint create", "-m", "`--label TEXT` names the checkpoint, `--meta NAME=VALUE` adds a note"),
    ("thread", "create", "a thread begins with its first change: `treehold --thread NEW write PATH TEXT`"),
    ("thread", "new", "a thread begins with its first change: `treehold --thread NEW write PATH TEXT`"),
    ("thread", "switch", "`--thread ID` or `TREEHOLD_THREAD=ID` names the thread of a command"),
    ("ls", "-R", "`treehold tree` and `treehold find` descend into directories"),
    ("ls", "-t", "`treehold timeline PATH` lists changes by time"),
    ("cat", "-n", "`treehold grep '' PATH` numbers lines"),
    ("head", "-c", "`treehold cat PATH | head -c N` prints N bytes"),
    ("find", "--maxdepth", "`treehold tree --depth N` descends N levels"),
    ("find", "--exec", "pipe the paths to another command: `treehold find PATH | while read -r path; do …; done`"),
    ("find", "--size", "`--larger BYTES` and `--smaller BYTES` select by size"),
    ("find", "--mtime", "`treehold timeline PATH --since 7d` lists changes since a time"),
    ("find", "--newer", "`treehold timeline PATH --since TIME` lists changes since a time"),
    ("find", "--path", "`--name GLOB` compares the path if GLOB contains `/`"),
    ("find", "--delete", "`treehold rm PATH...` removes paths"),
    ("find", "--not", "`treehold glob` and `treehold grep -l` select in other ways"),
    ("grep", "-o", "matches are marked in colour; `--json` has their `ranges`"),
    ("diff", "-r", "`treehold checkpoint diff` compares whole states"),
    ("diff", "-u", "the output is a unified diff already"),
    ("diff", "--stat", "`treehold checkpoint diff --stat` counts lines per file between two states"),
    ("overlay diff", "--stat", "`treehold overlay diff --git | git apply --stat` counts lines per file"),
    ("log", "-p", "`treehold show PATH@VERSION` prints a version, `treehold diff PATH@v1 PATH@v2` what changed"),
    ("grep", "-P", "`-e` takes a regular expression, without look-around and back-references"),
];

/// What to write where a required argument is missing.
const MISSING: &[(&str, &str)] = &[
    ("restore", "`treehold restore PATH --at MOMENT`; MOMENT is an age such as `2h`, a date, `~1` or `v3` of a file, or a checkpoint"),
    (
        "log",
        "`treehold log PATH` lists the versions of a file, `treehold checkpoint ls` those of the thread, `treehold timeline` all changes",
    ),
];

/// Rewrites the arguments of a program, whose own name is the first of them.
pub(crate) fn rewritten(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = arguments.into_iter().collect();
    let Some(at) = command_at(&Cli::command(), &arguments) else { return arguments };
    let of_command = arguments.split_off(at + 1);
    match arguments[at].to_str() {
        Some("help") => {
            arguments.pop();
            arguments.extend(of_command);
            arguments.push("--help".into());
        }
        Some("head") => arguments.extend(of_command.into_iter().flat_map(head)),
        Some("find") => arguments.extend(of_command.into_iter().flat_map(find)),
        Some("ls") => arguments.extend(ls(of_command)),
        Some("grep") => arguments.extend(grep(of_command)),
        _ => arguments.extend(of_command),
    }
    arguments
}

/// Returns whether arguments ask for the short help of the program itself, with `-h` or no argument at all.
pub(crate) fn asks_short_help(arguments: &[OsString]) -> bool {
    command_at(&Cli::command(), arguments).is_none() && (arguments.len() <= 1 || arguments.iter().any(|argument| argument == "-h"))
}

/// Returns the index of the name of the command: the first argument that is neither a global option nor the value of one.
fn command_at(root: &Command, arguments: &[OsString]) -> Option<usize> {
    let takes_value = |option: &str| {
        root.get_arguments().any(|argument| argument.get_action().takes_values() && argument.get_long().is_some_and(|long| long == option))
    };
    let mut at = 1;
    while let Some(argument) = arguments.get(at) {
        match argument.to_str() {
            Some("--") => return None,
            Some(option) if option.starts_with('-') => {
                at += if option.strip_prefix("--").is_some_and(takes_value) { 2 } else { 1 };
            }
            _ => return Some(at),
        }
    }
    None
}

/// Rewrites `-5` to `-n 5`.
fn head(argument: OsString) -> Vec<OsString> {
    match argument.to_str().and_then(|text| text.strip_prefix('-')) {
        Some(count) if !count.is_empty() && count.bytes().all(|byte| byte.is_ascii_digit()) => vec!["-n".into(), count.into()],
        _ => vec![argument],
    }
}

/// Rewrites the expressions of find(1), which have one dash.
fn find(argument: OsString) -> Vec<OsString> {
    let known = |option: &str| vec![OsString::from(option)];
    match argument.to_str() {
        Some("-name") => known("--name"),
        Some("-iname") => vec!["--ignore-case".into(), "--name".into()],
        Some("-type") => known("--kind"),
        Some("-print") => Vec::new(),
        Some("-maxdepth" | "-exec" | "-size" | "-mtime" | "-newer" | "-path" | "-delete" | "-not") => {
            let mut option = OsString::from("-");
            option.push(&argument);
            vec![option]
        }
        _ => vec![argument],
    }
}

/// Leaves out the `-h` of ls(1), sizes for people, beside other options of it. Alone, `-h` asks for help.
fn ls(arguments: Vec<OsString>) -> Vec<OsString> {
    let letters = |argument: &OsString| -> Option<String> {
        let letters = argument.to_str()?.strip_prefix('-')?;
        (!letters.is_empty() && letters.bytes().all(|letter| b"laA1dh".contains(&letter))).then(|| letters.to_owned())
    };
    if !arguments.iter().filter_map(letters).any(|letters| letters != "h") {
        return arguments;
    }
    let without = |argument: OsString| match letters(&argument).map(|letters| letters.replace('h', "")) {
        Some(letters) if letters.is_empty() => None,
        Some(letters) => Some(OsString::from(format!("-{letters}"))),
        None => Some(argument),
    };
    arguments.into_iter().filter_map(without).collect()
}

/// Rewrites the `-E` of grep(1) to `-e`, unless an encoding follows, as it does in ripgrep.
fn grep(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let is_encoding = |text: &str| matches!(text, "auto" | "none");
    for at in 0..arguments.len() {
        let next = arguments.get(at + 1).and_then(|next| next.to_str()).unwrap_or_default().to_owned();
        let Some(letters) = arguments[at].to_str().and_then(|text| text.strip_prefix('-')) else { continue };
        if letters == "-" {
            break;
        }
        let Some((before, after)) = letters.split_once('E') else { continue };
        let value = if after.is_empty() { &next } else { after.trim_start_matches('=') };
        // An option before it takes the rest as its value.
        if letters.starts_with('-') || before.contains(['g', 't', 'C', 'A', 'B', 'm']) || is_encoding(value) {
            continue;
        }
        arguments[at] = format!("-{before}e{after}").into();
    }
    arguments
}

/// Returns the names of the command and its subcommands on a line, such as `overlay diff`.
fn names(arguments: &[OsString]) -> String {
    let mut command = Cli::command();
    let mut names = Vec::new();
    let Some(at) = command_at(&command, arguments) else { return String::new() };
    for name in arguments[at..].iter().filter_map(|argument| argument.to_str()).filter(|argument| !argument.starts_with('-')) {
        let Some(inner) = command.find_subcommand(name).cloned() else { break };
        names.push(inner.get_name().to_owned());
        command = inner;
    }
    names.join(" ")
}

/// Adds a tip to the error of a command line that another program would understand, or that lacks what the command requires.
pub(crate) fn with_tip(mut error: clap::Error, arguments: &[OsString]) -> clap::Error {
    let command = names(arguments);
    let kind = match error.kind() {
        ErrorKind::InvalidSubcommand => ContextKind::InvalidSubcommand,
        ErrorKind::UnknownArgument => ContextKind::InvalidArg,
        ErrorKind::MissingRequiredArgument => {
            if let Some((_, tip)) = MISSING.iter().find(|(of, _)| *of == command) {
                error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![(*tip).into()]));
            }
            return error;
        }
        _ => return error,
    };
    let Some(ContextValue::String(given)) = error.get(kind) else { return error };
    let tip = TIPS.iter().find(|(of, written, _)| *of == command && OsStr::new(written) == OsStr::new(given));
    if let Some((_, _, tip)) = tip {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![(*tip).into()]));
        error.remove(ContextKind::SuggestedSubcommand);
        error.remove(ContextKind::SuggestedArg);
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        std::iter::once("treehold").chain(line.split_whitespace()).map(OsString::from).collect()
    }

    #[test]
    fn habits_are_rewritten_after_global_options() {
        for (typed, meant) in [
            ("help", "--help"),
            ("help checkpoint ls", "checkpoint ls --help"),
            ("--thread t help ls", "--thread t ls --help"),
            ("--thread=t -q head -5 /a", "--thread=t -q head -n 5 /a"),
            ("head -n 5 -20 /a", "head -n 5 -n 20 /a"),
            ("find / -name *.md -type f -print", "find / --name *.md --kind f"),
            ("find / -iname *.MD", "find / --ignore-case --name *.MD"),
            ("find / -maxdepth 2", "find / --maxdepth 2"),
            ("--thread head cat -5", "--thread head cat -5"),
            ("grep help /", "grep help /"),
            ("ls -lh /a", "ls -l /a"),
            ("ls -l -h /a", "ls -l /a"),
            ("ls -h", "ls -h"),
            ("ls --help", "ls --help"),
            ("grep -E a|b /", "grep -e a|b /"),
            ("grep -rnE a|b", "grep -rne a|b"),
            ("grep -E none a", "grep -E none a"),
            ("grep -Eauto a", "grep -Eauto a"),
            ("grep -gE a", "grep -gE a"),
            ("grep -i -- -E", "grep -i -- -E"),
            ("-- help", "-- help"),
        ] {
            assert_eq!(rewritten(words(typed)), words(meant), "{typed}");
        }
    }

    #[test]
    fn every_tip_answers_an_error() {
        let missing = MISSING.iter().map(|(command, tip)| (command, &"", tip));
        for (command, given, tip) in TIPS.iter().map(|(command, given, tip)| (command, given, tip)).chain(missing) {
            let line = words(&format!("{command} {given}"));
            let error = Cli::command().try_get_matches_from(&line).expect_err(tip);
            assert!(with_tip(error, &line).to_string().contains(tip), "{command} {given}");
        }
    }

    #[test]
    fn short_help_is_one_screen_that_names_every_command() {
        let lines: Vec<&str> = SHORT_HELP.lines().collect();
        assert!(lines.len() <= 24 && lines.iter().all(|line| line.chars().count() <= 80), "{SHORT_HELP}");
        let named: Vec<&str> = lines
            .iter()
            .filter(|line| line.starts_with("  ") && !line.trim().starts_with('-'))
            .flat_map(|line| line[13..].split_whitespace())
            .collect();
        let root = Cli::command();
        let commands: Vec<&str> = root.get_subcommands().filter(|command| !command.is_hide_set()).map(Command::get_name).collect();
        for command in &commands {
            assert!(named.contains(command), "`{command}` is not in the short help");
        }
        // Builds without servers have fewer commands.
        let others = ["mcp", "serve", "token", "import", "export", "mirror", "sync"];
        for name in &named {
            assert!(commands.contains(name) || others.contains(name), "`{name}` is no command");
        }
        for (arguments, asks) in [("-h", true), ("", true), ("--json -h", true), ("ls -h", false), ("--help", false), ("--json", false)] {
            assert_eq!(asks_short_help(&words(arguments)), asks, "{arguments}");
        }
    }

    #[test]
    fn short_help_of_every_command_fits_a_screen() {
        let mut root = Cli::command().term_width(100);
        root.build();
        let mut commands: Vec<Command> = root.get_subcommands().cloned().collect();
        while let Some(mut command) = commands.pop() {
            commands.extend(command.get_subcommands().cloned());
            let help = command.render_help().to_string();
            assert!(help.lines().count() <= 40, "{} lines: {help}", help.lines().count());
        }
    }
}
