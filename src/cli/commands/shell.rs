//! `shell`: commands without the name of the program, in a current directory of the tree.

use clap::Args;

/// Run commands in a directory of the tree, one after another
///
/// Each line has commands as on the command line, without `treehold` and separated by `;`. Paths start at the current directory of the
/// tree, which `cd` changes and `pwd` prints. Words are quoted as in other shells; there are no variables, patterns, pipes or
/// redirections. `exit` and Ctrl-D end the shell, Ctrl-C ends a running command. The exit code is that of the last command.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold shell
  treehold shell -c 'cd /memories; ls; cat notes.md'
  treehold --thread monday shell -e < script")]
pub(crate) struct Shell {
    /// Run these commands and exit
    #[arg(short, value_name = "COMMANDS", allow_hyphen_values = true)]
    pub(crate) commands: Option<String>,
    /// Stop at the first command that does not exit with 0
    #[arg(short = 'e', long)]
    pub(crate) stop: bool,
}
