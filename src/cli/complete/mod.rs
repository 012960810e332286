//! Completion of command lines in shells.
//!
//! The script that `treehold completions` prints runs the program with [`shells::VARIABLE`] in the environment and the words on the line as
//! arguments. The program prints candidates instead of running a command. It prints no errors, creates nothing, and does not wait for
//! stores and servers longer than [`WAIT`].
//!
//! [`subject`] says what the value of each argument names, [`lookup`] lists it, and [`shells`] quotes it.

mod lookup;
mod shells;
mod subject;

pub(crate) use self::lookup::{Place, look_up};
pub(crate) use self::shells::script;
pub(crate) use self::subject::{Look, Subject, each_argument, with_completers};

use self::shells::{Asked, VARIABLE};
use crate::cli::args::{Cli, Global, When, duration};
use crate::cli::context::Context;
use crate::config::Registry;
use clap::{ArgMatches, CommandFactory, FromArgMatches, ValueEnum};
use clap_complete::Shell;
use clap_complete::engine::{CompletionCandidate, complete};
use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// How long the candidates of one value are waited for, unless `TREEHOLD_COMPLETE_WAIT` says otherwise.
pub(crate) const WAIT: Duration = Duration::from_millis(300);

/// Returns the shell that asks for candidates, if one does.
pub(crate) fn asking() -> Option<Shell> {
    let name = std::env::var_os(VARIABLE)?;
    let name = Path::new(&name).file_stem()?.to_str()?;
    Shell::from_str(if name == "pwsh" { "powershell" } else { name }, true).ok()
}

/// Prints the candidates that a shell asks for. Never fails: without candidates, it prints nothing.
pub(crate) fn answer(shell: Shell, arguments: impl IntoIterator<Item = OsString>, registry: Registry) -> u8 {
    // A bug must not write into the line that the user is editing.
    std::panic::set_hook(Box::new(|_| {}));
    let asked = Asked::read(shell, arguments);
    let wait = std::env::var("TREEHOLD_COMPLETE_WAIT").ok().and_then(|text| duration(&text).ok()).unwrap_or(WAIT);
    let (global, when, path) = typed(&asked.words);
    let look: Look = Arc::new(move |subject, current| {
        let (send, receive) = mpsc::sync_channel(1);
        let (global, registry, current) = (global.clone(), registry.clone(), current.to_owned());
        let place = Place { directory: None, when: when.clone(), path: path.clone() };
        // A thread of its own, so that a store or server that hangs does not keep the shell waiting.
        std::thread::spawn(move || {
            let _ = send.send(looked_up(global, registry, &place, subject, &current));
        });
        receive.recv_timeout(wait).unwrap_or_default()
    });
    let candidates = candidates(with_completers(Cli::command(), &look), asked.words.clone());
    let _ = std::io::stdout().write_all(asked.answer(&candidates).as_bytes());
    0
}

/// Looks up the candidates of one value. The stores are closed again.
fn looked_up(global: Global, registry: Registry, place: &Place, subject: Subject, current: &str) -> Vec<CompletionCandidate> {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return Vec::new() };
    let mut context = Context::new(Global { quiet: true, verbose: false, ..global }, registry);
    context.create_nothing();
    let found = runtime.block_on(look_up(&mut context, place, subject, current)).unwrap_or_default();
    drop(context);
    found
}

/// Returns the candidates for the last of some words.
pub(crate) fn candidates(mut command: clap::Command, mut words: Vec<OsString>) -> Vec<CompletionCandidate> {
    // `help COMMAND` is another way to write `COMMAND --help`.
    if words.len() > 2 && words[1] == "help" {
        words.remove(1);
    }
    let Some(index) = words.len().checked_sub(1) else { return Vec::new() };
    let wants_option = words[index].to_str().is_some_and(|word| word.starts_with('-'));
    let host = std::env::current_dir().ok();
    let mut found = complete(&mut command, words, index, host.as_deref()).unwrap_or_default();
    let is_option = |candidate: &CompletionCandidate| candidate.get_value().to_str().is_some_and(|value| value.starts_with('-'));
    // Options are offered to who starts one, or where nothing else is possible.
    if !wants_option && !found.iter().all(is_option) {
        found.retain(|candidate| !is_option(candidate));
    }
    found
}

/// Returns the global options, the moment and the first path that the words before the last one give.
fn typed(words: &[OsString]) -> (Global, When, Option<String>) {
    let before = &words[..words.len().saturating_sub(1)];
    let matches = parsed(before).or_else(|| parsed(&["treehold".into()]));
    let global = matches.as_ref().and_then(|matches| Global::from_arg_matches(matches).ok()).unwrap_or_default();
    (global, When { at: matches.as_ref().and_then(moment) }, matches.as_ref().and_then(path))
}

fn parsed(words: &[OsString]) -> Option<ArgMatches> {
    Cli::command().ignore_errors(true).try_get_matches_from(words).ok()
}

/// Returns the first path that a command is about.
pub(crate) fn path(matches: &ArgMatches) -> Option<String> {
    let mut inner = matches;
    while let Some((_, of_name)) = inner.subcommand() {
        inner = of_name;
    }
    let first = |name| inner.try_get_many::<String>(name).ok().flatten()?.next().cloned();
    ["path", "paths", "a"].into_iter().find_map(first)
}

/// Returns the moment at which a command reads the tree.
pub(crate) fn moment(matches: &ArgMatches) -> Option<String> {
    let mut names = Vec::new();
    let mut inner = matches;
    while let Some((name, of_name)) = inner.subcommand() {
        names.push(name);
        inner = of_name;
    }
    // `thread fork --at` names a checkpoint to start from.
    if names.first() == Some(&"thread") {
        return None;
    }
    inner.try_get_one::<String>("at").ok().flatten().cloned()
}
