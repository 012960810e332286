//! `completions` and `man`: the command line described for shells and readers.

use crate::cli::args::Cli;
use crate::cli::complete::script;
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use clap::{Args, CommandFactory};
use clap_complete::Shell;

/// Print a completion script for a shell
///
/// The script asks `treehold` for candidates: commands, options, paths of the tree, threads, checkpoints, sessions, stores and routes.
/// Completion follows the options and environment variables of the line, creates nothing, and waits at most 0.3 seconds.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold completions bash > ~/.local/share/bash-completion/completions/treehold
  treehold completions zsh > ~/.zfunc/_treehold
  treehold completions fish > ~/.config/fish/completions/treehold.fish")]
pub(crate) struct Completions {
    /// Shell to print the script for
    shell: Shell,
}

/// Print a manual page
///
/// Without a command, prints the page of `treehold` itself.
#[derive(Debug, Args)]
#[command(after_long_help = "Example:
  treehold man grep | man -l -")]
pub(crate) struct Man {
    /// Command, such as `grep` or `config show`
    #[arg(value_name = "COMMAND")]
    command: Vec<String>,
}

impl Completions {
    pub(crate) fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let unknown = || crate::Error::new(crate::ErrorKind::Unsupported, format!("there is no completion for {}", self.shell));
        context.out.content(script(self.shell).ok_or_else(unknown)?.as_bytes())?;
        Ok(Outcome::Done)
    }
}

impl Man {
    pub(crate) fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let mut root = Cli::command();
        root.build();
        let mut command = &root;
        for name in &self.command {
            command = command.find_subcommand(name).ok_or_else(|| {
                crate::Error::new(crate::ErrorKind::NotFound, format!("there is no command `{name}`; `treehold --help` lists them"))
            })?;
        }
        let mut page = Vec::new();
        clap_mangen::Man::new(command.clone()).render(&mut page)?;
        context.out.content(&page)?;
        Ok(Outcome::Done)
    }
}
