//! `mkdir`: creates empty directories, which every tier supports.

use crate::VfsPathBuf;
use crate::cli::commands::write::apply_all;
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::ops::Change;
use clap::Args;

/// Create directories
///
/// Creates missing parents. A directory that exists is left unchanged.
#[derive(Debug, Args)]
pub(crate) struct Mkdir {
    /// Directories to create
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<String>,
    /// Accepted for compatibility; parents are always created
    #[arg(short, hide = true)]
    _parents: bool,
}

impl Mkdir {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let changes = async |_: &mut Context| {
            self.paths.iter().map(|path| Ok(Change::CreateDir { path: VfsPathBuf::parse(path)? })).collect::<Result<Vec<_>, Failure>>()
        };
        apply_all(context, changes).await
    }
}
