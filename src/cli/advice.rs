//! Errors of the library in the words of the command line: flags instead of arguments, and paths that were probably meant.

use crate::cli::context::Context;
use crate::cli::exit::Failure;
use crate::tools::with_near_paths;
use crate::{Error, ErrorKind};

/// What the library advises, and the same for a command.
///
/// An empty command stands for all.
const PHRASES: &[(&str, &str, &str)] = &[
    ("", "the path is not absolute; start it with `/`", "a path of the tree starts with `/`; `treehold ls /` lists what there is"),
    ("edit", "or replace all", "or add `--all`"),
    ("rm", "delete it recursively", "add `-r` to remove it with its content"),
    ("write", "choose another name or overwrite it", "choose another name, or leave `--new` out to replace it"),
    ("mv", "choose another name or overwrite it", "choose another name, or add `--force` to replace it"),
    ("cp", "choose another name or overwrite it", "choose another name, or add `--force` to replace it"),
    ("cat", "is a directory; name a file", "is a directory; `treehold ls` lists it"),
    ("head", "is a directory; name a file", "is a directory; `treehold ls` lists it"),
];

/// Returns a failure of a command with advice for its user.
pub(crate) async fn advised(context: &Context, command: &str, failure: Failure) -> Failure {
    let Failure::Library(error) = failure else { return failure };
    let mut error = in_flags(command, error);
    if error.kind() == ErrorKind::NotFound
        && let Some(tree) = context.tree_read()
    {
        error = with_near_paths(&*tree, error).await;
    }
    Failure::Library(error)
}

fn in_flags(command: &str, error: Error) -> Error {
    let phrase = PHRASES.iter().find(|(of, phrase, _)| (of.is_empty() || *of == command) && error.message().contains(phrase));
    match phrase {
        Some((_, phrase, flags)) => {
            let message = error.message().replace(phrase, flags);
            error.with_message(message)
        }
        None => error,
    }
}
