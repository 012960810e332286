//! Global options that a command does not use. Such an option on the command line is an error rather than ignored, because its author
//! expected an effect.

use crate::cli::args::Cli;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory};

/// The options that decide which tree a command works on.
const SCOPE: [&str; 5] = ["thread", "user", "tenant", "agent", "session"];

/// Returns the ids of the global options that a command ignores, or `None` for an unknown command.
///
/// `--color`, `--no-pager`, `--quiet` and `--verbose` apply to all commands. So do `--json` and `--jsonl`, unless the output is text in another format.
fn ignored(command: &[&str]) -> Option<Vec<&'static str>> {
    let but_for = |used: &[&str]| SCOPE.into_iter().filter(|option| !used.contains(option)).collect();
    let more = |others: &[&'static str]| SCOPE.iter().chain(others).copied().collect();
    Some(match command {
        ["ls" | "tree" | "cat" | "head" | "stat" | "find" | "glob" | "grep" | "search" | "diff"] => Vec::new(),
        ["write" | "append" | "edit" | "patch" | "rm" | "mv" | "cp" | "mkdir"] => Vec::new(),
        ["status" | "log" | "show" | "restore" | "undo"] => Vec::new(),
        ["timeline" | "watch" | "import" | "export" | "mirror" | "sync" | "run" | "shell" | "mcp" | "serve" | "doctor"] => Vec::new(),
        ["memory", "show"] | ["overlay", "diff" | "apply" | "discard"] => Vec::new(),
        ["checkpoint", "create" | "restore"] => Vec::new(),
        ["checkpoint", "ls" | "show" | "diff" | "prune"] => but_for(&["thread", "user", "tenant"]),
        ["checkpoint", "sweep"] => but_for(&["user", "tenant"]),
        ["thread", "ls" | "rm"] => but_for(&["user", "tenant"]),
        ["thread", "fork" | "merge" | "copy"] => but_for(&["thread", "user", "tenant"]),
        ["session", "ls" | "show" | "messages" | "turns" | "compact" | "export" | "import" | "rm"] => but_for(&["user", "tenant"]),
        ["trace", "ls" | "show" | "messages" | "tail" | "create" | "continue" | "export" | "import" | "rm"] => but_for(&["user", "tenant"]),
        ["state", "ls" | "show" | "get" | "put" | "rm" | "export" | "interrupt"] => but_for(&["user", "tenant", "agent"]),
        ["state", "copy"] => but_for(&["tenant", "agent"]),
        ["store", "index"] => but_for(&["thread", "user", "tenant", "agent"]),
        [
            "store",
            "ls" | "get" | "put" | "rm" | "search" | "compact" | "copy" | "export" | "import" | "migrate" | "snapshot" | "stats" | "sweep"
            | "verify",
        ] => SCOPE.to_vec(),
        ["sweep"] => SCOPE.to_vec(),
        ["token", "create"] => but_for(&["user", "tenant", "agent"]),
        ["token", "ls" | "revoke"] => SCOPE.to_vec(),
        ["config", "show" | "check"] => Vec::new(),
        ["config", "init" | "trust"] => more(&["config"]),
        ["tools"] => more(&["config", "data"]),
        ["completions" | "man"] => more(&["config", "data", "json", "jsonl"]),
        _ => return None,
    })
}

/// Returns what to write instead.
fn instead(command: &[&str], option: &str) -> &'static str {
    match (command, option) {
        (["token", "create"], "thread") => "; --for-thread names a thread that the token reaches",
        (["thread", "rm"], "thread") => "; name the threads as arguments",
        (["session", "ls" | "import"], "session") => "; leave it out",
        (["session", ..], "session") => "; name the session as an argument",
        (["state", "ls"], "session") => "; leave it out",
        (["state", "copy"], "session") => "; --of-session copies one session",
        (["state", "copy"], "user") => "; --of copies the sessions of one user",
        (["state", ..], "session") => "; name the session as an argument",
        (["config", "trust"], "config") => "; name the file as an argument",
        (["config", "init"], "config") => "; name the file as an argument",
        _ => "; leave it out",
    }
}

/// Refuses command-line options that the command would ignore. Environment variables are for all commands and never refused.
pub(crate) fn refuse(matches: &ArgMatches) -> Result<(), clap::Error> {
    let mut names = Vec::new();
    let mut inner = matches;
    while let Some((name, of_name)) = inner.subcommand() {
        names.push(name);
        inner = of_name;
    }
    for option in ignored(&names).unwrap_or_default() {
        if inner.value_source(option) == Some(ValueSource::CommandLine) {
            let instead = instead(&names, option);
            let message = format!("the command `{}` does not use --{option}{instead}", names.join(" "));
            return Err(Cli::command().error(ErrorKind::ArgumentConflict, message));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Command;

    /// Calls `visit` with the names of every command without subcommands.
    fn leaves(command: &Command, names: &mut Vec<String>, visit: &mut impl FnMut(&[&str])) {
        let inner: Vec<&Command> = command.get_subcommands().collect();
        if inner.is_empty() {
            visit(&names.iter().map(String::as_str).collect::<Vec<_>>());
        }
        for command in inner {
            names.push(command.get_name().to_owned());
            leaves(command, names, visit);
            names.pop();
        }
    }

    #[test]
    fn every_command_uses_or_refuses_each_global_option() {
        let root = Cli::command();
        let options: Vec<_> = root.get_arguments().filter(|argument| argument.is_global_set()).cloned().collect();
        assert_eq!(options.len(), 13, "an option was added: decide which commands ignore it");
        leaves(&root, &mut Vec::new(), &mut |names| {
            let ignored = ignored(names).unwrap_or_else(|| panic!("it is not decided which options `{}` ignores", names.join(" ")));
            for option in &options {
                let long = option.get_long().expect("each has a long name");
                for before in [true, false] {
                    let mut given = vec![format!("--{long}")];
                    if option.get_action().takes_values() {
                        given.push("auto".to_owned());
                    }
                    let names = names.iter().map(|name| (*name).to_owned());
                    let program = std::iter::once("treehold".to_owned());
                    let args: Vec<String> = match before {
                        true => program.chain(given).chain(names).collect(),
                        false => program.chain(names).chain(given).collect(),
                    };
                    // Missing required arguments do not matter here.
                    let matches = Cli::command().ignore_errors(true).try_get_matches_from(&args).expect("errors are ignored");
                    let refused = refuse(&matches);
                    assert_eq!(refused.is_err(), ignored.contains(&option.get_id().as_str()), "{args:?}");
                    if let Err(error) = refused {
                        assert!(error.use_stderr() && error.to_string().contains(&format!("--{long}")), "{error}");
                    }
                }
            }
        });
    }

    #[test]
    fn no_command_has_an_option_with_the_name_of_a_global_one() {
        let root = Cli::command();
        let global: Vec<_> =
            root.get_arguments().filter(|argument| argument.is_global_set()).map(|argument| argument.get_id().clone()).collect();
        let mut commands = vec![root];
        while let Some(command) = commands.pop() {
            for argument in command.get_arguments().filter(|argument| !argument.is_global_set()) {
                // `grep` repeats `--verbose` without its short form, and means the same by it.
                if (command.get_name(), argument.get_id().as_str()) == ("grep", "verbose") {
                    continue;
                }
                assert!(
                    !global.contains(argument.get_id()),
                    "`{}` would get the global value of `{}`",
                    command.get_name(),
                    argument.get_id()
                );
            }
            commands.extend(command.get_subcommands().cloned());
        }
    }

    #[test]
    fn environment_variables_are_never_refused() {
        let matches = Cli::command().try_get_matches_from(["treehold", "token", "ls"]).expect("legal");
        refuse(&matches).expect("nothing was given");
    }
}
