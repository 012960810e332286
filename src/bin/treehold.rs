//! The program `treehold`: the [command line](treehold::cli) with the engines that are compiled in.

use std::process::ExitCode;

fn main() -> ExitCode {
    treehold::cli::run(treehold::config::Registry::builtin())
}
