//! The command line: the file tree of an agent, in the shell.
//!
//! It parses arguments, calls the library and prints: data to standard output, everything else to standard error. Each command is in the
//! file of its name in `commands`. `context` opens what a command needs and nothing else, `output` prints through `terminal`, and `exit`
//! defines the exit codes.

mod advice;
mod args;
mod commands;
mod complete;
mod context;
mod exit;
mod git_patch;
mod habits;
mod ids;
#[cfg(feature = "serve")]
mod log;
#[cfg(feature = "serve")]
mod open_files;
mod output;
mod pager;
mod shell;
mod shell_path;
mod signal;
mod table;
mod terminal;
mod time;
mod unused;
mod waiting;
mod words;

use crate::config::Registry;
use args::Cli;
use clap::{CommandFactory, FromArgMatches};
use context::Context;
use exit::Failure;
use std::process::ExitCode;

/// Runs the command that the arguments of this process name, and returns its exit code.
///
/// `registry` has the engines and layers that configurations and store URLs can name, and the tools. A program with its own engine offers
/// all of `treehold` in one line:
///
/// ```no_run
/// use std::process::ExitCode;
/// use treehold::config::Registry;
///
/// fn main() -> ExitCode {
///     treehold::cli::run(Registry::builtin())
/// }
/// ```
pub fn run(registry: Registry) -> ExitCode {
    ExitCode::from(run_with(registry, std::env::args_os()))
}

/// Runs the command line with the arguments of another program, whose own name is the first of them. Returns the exit code.
pub fn run_with(registry: Registry, arguments: impl IntoIterator<Item = std::ffi::OsString>) -> u8 {
    if let Some(shell) = complete::asking() {
        return complete::answer(shell, arguments, registry);
    }
    let arguments = habits::rewritten(arguments);
    if habits::asks_short_help(&arguments) {
        return exit::short_help(arguments.len() > 1);
    }
    let parsed = Cli::command().try_get_matches_from(&arguments).and_then(|matches| {
        unused::refuse(&matches)?;
        let name = matches.subcommand_name().unwrap_or_default().to_owned();
        Ok((name, Cli::from_arg_matches(&matches)?))
    });
    let (name, cli) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return exit::usage(&habits::with_tip(error, &arguments)),
    };
    cli.global.color.write_global();
    let command = match cli.command {
        args::Command::Shell(options) => return shell::run(options, cli.global, registry),
        command => command,
    };
    waiting::begin(&cli.global, &command);
    let mut builder = match command {
        // A server handles many clients concurrently; every other command does one thing.
        #[cfg(feature = "serve")]
        args::Command::Serve(_) => tokio::runtime::Builder::new_multi_thread(),
        _ => tokio::runtime::Builder::new_current_thread(),
    };
    let runtime = match builder.enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return exit::report(&Failure::from(error), &cli.global),
    };
    let mut context = Context::new(cli.global.clone(), registry);
    context.begin(&name);
    let ended = runtime.block_on(async {
        match context::until_interrupted(&mut context, command).await {
            Err(failure) => Err(advice::advised(&context, &name, failure).await),
            ended => ended,
        }
    });
    let closed = context.out.close();
    let code = match ended.and_then(|outcome| closed.map(|()| outcome)) {
        Ok(outcome) => outcome.into(),
        Err(failure) => exit::report(&failure, &cli.global),
    };
    // Dropping the stores completes pending writes. A thread that reads standard input is not waited for.
    drop(context);
    runtime.shutdown_background();
    code
}
