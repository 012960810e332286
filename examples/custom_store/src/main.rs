//! The whole command line, with one more engine: `custom_store store put --store log:notes.log ...`.

use custom_store::LogEngine;
use std::process::ExitCode;
use treehold::config::Registry;

fn main() -> ExitCode {
    treehold::cli::run(Registry::builtin().with_engine(LogEngine))
}
