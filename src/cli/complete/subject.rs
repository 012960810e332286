//! What the value of each argument names.

use clap::builder::ValueParser;
use clap::{Arg, Command, ValueHint};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use std::ffi::OsStr;
use std::sync::Arc;

/// What the value of an argument names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject {
    /// A path of the tree.
    Path,
    /// A directory of the tree.
    Directory,
    /// A path of the tree, or `PATH@MOMENT`.
    Versioned,
    /// A moment of the past: a checkpoint of the thread, a time or a version.
    Moment,
    /// A checkpoint of the thread.
    Checkpoint,
    /// A checkpoint of the thread, or a path of the tree.
    CheckpointOrPath,
    /// A saved thread.
    Thread,
    /// A session of an agent host.
    Session,
    /// A token of the server.
    Token,
    /// A store of the configuration.
    Store,
    /// A route of the configuration.
    Route,
    /// A command of the command line.
    Command,
    /// A file or directory of the host.
    HostFile,
    /// A directory of the host.
    HostDirectory,
    /// Anything else.
    Other,
}

impl Subject {
    /// Returns whether values are paths of the tree, which a shell of the tree takes relative to its current directory.
    pub(crate) fn is_path(self) -> bool {
        matches!(self, Self::Path | Self::Directory | Self::Versioned)
    }
}

/// Returns what the value of an argument names; `None` if nobody decided it yet.
pub(crate) fn subject(command: &[&str], argument: &Arg) -> Option<Subject> {
    let name = argument.get_value_names().and_then(<[_]>::first).map(|name| name.as_str());
    let name = name.map_or_else(|| argument.get_id().as_str().to_uppercase(), str::to_owned);
    Some(match (command, &*name) {
        ([], "ID") => match argument.get_id().as_str() {
            "thread" => Subject::Thread,
            "session" => Subject::Session,
            _ => Subject::Other,
        },
        (["cd"], _) => Subject::Directory,
        (["exit"], _) | (["shell"], "COMMANDS") => Subject::Other,
        (["diff"], "A" | "B") | (["cat" | "head"], "PATH") => Subject::Versioned,
        (["mv" | "cp"], "FROM" | "TO") => Subject::Path,
        (["serve"], "PREFIX") => Subject::Path,
        (["man"], "COMMAND") => Subject::Command,
        (["checkpoint", "diff"], "OLD" | "NEW") | (["show"], "WHAT") => Subject::CheckpointOrPath,
        (["thread", "rm"], "ID") | (["thread", "merge"], "SOURCE") => Subject::Thread,
        (["session", ..], "ID") => Subject::Session,
        (["token", "revoke"], "ID") => Subject::Token,
        (["store", "copy"], "FROM" | "TO") | (["store", ..], "STORE") => Subject::Store,
        (["store", ..], "NAME") if argument.get_id() == "name" => Subject::Store,
        (_, "PATH") => Subject::Path,
        (_, "ROUTE") => Subject::Route,
        (_, "MOMENT") => Subject::Moment,
        (_, "CHECKPOINT") => Subject::Checkpoint,
        (_, "THREAD") => Subject::Thread,
        (_, "FILE") => Subject::HostFile,
        (_, "DIR") => Subject::HostDirectory,
        // Identifiers of rows, which are not listed.
        (["state" | "trace", ..], "ID") => Subject::Other,
        (["state", "copy"], "FROM" | "TO") => Subject::Other,
        (["thread", "fork" | "copy"], "NEW") => Subject::Other,
        (["edit"], "OLD" | "NEW") => Subject::Other,
        (["session", "compact"], "COMMAND") => Subject::Other,
        (_, "N" | "BYTES" | "COUNT" | "TOKENS" | "SHARE" | "VERSION" | "POSITION" | "SEQUENCE" | "EVENT" | "CURSOR" | "TOKEN") => {
            Subject::Other
        }
        (_, "TIME" | "DURATION") => Subject::Other,
        (_, "TEXT" | "PATTERN" | "QUERY" | "GLOB" | "TYPE" | "JSON" | "TASK" | "ROLE" | "GOAL" | "STATUS" | "LABEL") => Subject::Other,
        (_, "NAMESPACE" | "KEY" | "KEYS" | "VALUE" | "NAME=VALUE" | "PATH=STRATEGY" | "ARCHIVE" | "NAME" | "ID" | "USER") => Subject::Other,
        (_, "ADDRESS" | "HOST" | "ORIGIN" | "URL" | "ACCESS" | "WHO" | "TOOLS" | "SET" | "CALLS") => Subject::Other,
        _ => return None,
    })
}

/// Returns the candidates for the value of an argument, given the part that is written.
pub(crate) type Look = Arc<dyn Fn(Subject, &str) -> Vec<CompletionCandidate> + Send + Sync>;

/// Adds to each argument of a command what completes its value.
pub(crate) fn with_completers(command: Command, look: &Look) -> Command {
    each_argument(command, &mut Vec::new(), &|subject, argument| match subject {
        Subject::Other => argument,
        Subject::HostFile => argument.value_hint(ValueHint::AnyPath),
        Subject::HostDirectory => argument.value_hint(ValueHint::DirPath),
        subject => {
            let look = look.clone();
            argument.add(ArgValueCompleter::new(move |current: &OsStr| match current.to_str() {
                // An option, in the place of a positional argument.
                Some(current) if !current.starts_with('-') => look(subject, current),
                _ => Vec::new(),
            }))
        }
    })
}

/// Changes each argument that takes a value, except those with a fixed set of values, by what the value names.
pub(crate) fn each_argument(command: Command, names: &mut Vec<String>, change: &dyn Fn(Subject, Arg) -> Arg) -> Command {
    let path: Vec<&str> = names.iter().map(String::as_str).collect();
    let command = command.mut_args(|argument| match subject(&path, &argument) {
        Some(subject) if takes_free_value(&argument) => change(subject, argument),
        _ => argument,
    });
    command.mut_subcommands(|inner| {
        names.push(inner.get_name().to_owned());
        let inner = each_argument(inner, names, change);
        names.pop();
        inner
    })
}

/// Returns whether an argument takes a value of no fixed set.
fn takes_free_value(argument: &Arg) -> bool {
    let parser: &ValueParser = argument.get_value_parser();
    argument.get_action().takes_values() && parser.possible_values().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::Cli;
    use clap::CommandFactory;
    use std::ffi::OsString;

    /// Calls `visit` with the names of each command and the command.
    fn each_command(command: &Command, names: &mut Vec<String>, visit: &mut impl FnMut(&[&str], &Command)) {
        visit(&names.iter().map(String::as_str).collect::<Vec<_>>(), command);
        for inner in command.get_subcommands() {
            names.push(inner.get_name().to_owned());
            each_command(inner, names, visit);
            names.pop();
        }
    }

    /// Every argument with its command, its subject and the words before its value.
    fn arguments() -> Vec<(String, Subject, Vec<String>)> {
        let (mut all, mut undecided) = (Vec::new(), Vec::new());
        each_command(&Cli::command(), &mut Vec::new(), &mut |names, command| {
            let mut earlier: Vec<String> = Vec::new();
            for argument in command.get_arguments().filter(|argument| argument.get_action().takes_values()) {
                let name = format!("{} {}", names.join(" "), argument.get_id());
                let mut words: Vec<String> = std::iter::once("treehold").chain(names.iter().copied()).map(str::to_owned).collect();
                match (argument.get_long(), argument.get_short()) {
                    (Some(long), _) => words.push(format!("--{long}")),
                    (None, Some(short)) => words.push(format!("-{short}")),
                    (None, None) if argument.is_last_set() => words.extend(earlier.iter().cloned().chain(["--".to_owned()])),
                    (None, None) => {
                        words.extend(earlier.clone());
                        earlier.push("/x".to_owned());
                    }
                }
                match subject(names, argument) {
                    _ if !takes_free_value(argument) => {}
                    Some(subject) => all.push((name, subject, words)),
                    None => undecided.push(name),
                }
            }
        });
        assert!(undecided.is_empty(), "decide in `subject` what completes the values of {undecided:?}");
        all
    }

    fn candidates(words: &[String], current: &str) -> Vec<String> {
        let look: Look = Arc::new(|subject, current| vec![CompletionCandidate::new(format!("{current}<{subject:?}>"))]);
        let mut words: Vec<OsString> = words.iter().map(OsString::from).collect();
        words.push(current.into());
        let mut command = with_completers(Cli::command(), &look);
        let index = words.len() - 1;
        let host = tempfile::tempdir().expect("a directory");
        std::fs::write(host.path().join("host-file"), "").expect("written");
        std::fs::create_dir(host.path().join("host-directory")).expect("made");
        let found = clap_complete::engine::complete(&mut command, words, index, Some(host.path())).expect("completed");
        found.into_iter().map(|candidate| candidate.get_value().to_string_lossy().into_owned()).collect()
    }

    /// A new argument is in this table by its definition.
    #[test]
    fn every_argument_is_completed_by_what_it_names() {
        let all = arguments();
        let paths = all.iter().filter(|(_, subject, _)| subject.is_path()).count();
        assert!(all.len() > 200 && paths > 35, "{} arguments, {paths} paths", all.len());
        for (name, subject, words) in all {
            let current = if matches!(subject, Subject::HostFile | Subject::HostDirectory) { "host-" } else { "/me" };
            let found = candidates(&words, current);
            match subject {
                Subject::Other => assert_eq!(found, Vec::<String>::new(), "{name}"),
                Subject::HostFile => assert_eq!(found, ["host-directory/", "host-file"], "{name}"),
                Subject::HostDirectory => assert_eq!(found, ["host-directory/"], "{name}"),
                subject => assert_eq!(found, [format!("/me<{subject:?}>")], "{name}"),
            }
        }
    }

    #[test]
    fn value_after_an_equals_sign_keeps_the_option() {
        let words = ["treehold", "cat"].map(str::to_owned);
        assert_eq!(candidates(&words, "--thread=mo"), ["--thread=mo<Thread>"]);
        assert_eq!(candidates(&words, "--at=be"), ["--at=be<Moment>"]);
    }
}
