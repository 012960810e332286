//! `mkdir`: creates empty directories, which every tier supports.

use crate::commands::write::apply_all;
use crate::context::Context;
use crate::exit::{Failure, Outcome};
use clap::Args;
use treehold::VfsPathBuf;
use treehold::ops::Change;

/// Make directories
///
/// Parents appear by themselves; a directory that exists is left as it is.
#[derive(Debug, Args)]
pub(crate) struct Mkdir {
    /// Directories
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<String>,
    /// Accepted for habit: parents appear anyway
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
