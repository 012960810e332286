//! The command line: the file tree of an agent, in the shell.
//!
//! It parses arguments, calls the library and prints: data to standard output, everything else to standard error. Each command is in the
//! file of its name in `commands`. `context` opens what a command needs and nothing else, `output` prints through `terminal`, and `exit`
//! defines the exit codes.

mod args;
mod commands;
mod context;
mod exit;
#[cfg(feature = "serve")]
mod log;
#[cfg(feature = "serve")]
mod open_files;
mod output;
#[cfg(any(feature = "mcp", unix))]
mod signal;
mod terminal;
mod unused;

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
    let parsed = Cli::command().try_get_matches().and_then(|matches| {
        unused::refuse(&matches)?;
        Cli::from_arg_matches(&matches)
    });
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => return exit::usage(&error),
    };
    cli.global.color.write_global();
    let mut builder = match cli.command {
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
    let code = match runtime.block_on(context::until_interrupted(&mut context, cli.command)) {
        Ok(outcome) => outcome.into(),
        Err(failure) => exit::report(&failure, &cli.global),
    };
    // Dropping the stores completes pending writes. A thread that reads standard input is not waited for.
    drop(context);
    runtime.shutdown_background();
    code
}
