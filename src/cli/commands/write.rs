//! `write` and `append`: content from an argument or standard input.

use crate::cli::context::{self, Context};
use crate::cli::exit::{Failure, Outcome};
use crate::ops::{Change, Changed, Version, WriteMode};
use crate::{Backend, VfsPathBuf};
use clap::Args;

/// Write a file, replacing its content
///
/// Creates the file and its parents if needed. Writes the content unchanged and adds no line break.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold write /memories/todo.md 'water the plants'
  git diff | treehold write /diff.txt
  treehold write --new /lock mine                            # fails if it exists")]
pub(crate) struct Write {
    /// Path of the file
    path: String,
    /// Content, or `-` to read standard input [default: -]
    text: Option<String>,
    /// Fail if the file exists
    #[arg(long, conflicts_with = "if_version")]
    new: bool,
    /// Fail unless the file has this version
    #[arg(long, value_name = "VERSION")]
    if_version: Option<Version>,
}

/// Append to a file
///
/// Creates the file and its parents if needed. Adds no line break.
#[derive(Debug, Args)]
#[command(after_long_help = "Example:
  date | treehold append /memories/visits.log")]
pub(crate) struct Append {
    /// Path of the file
    path: String,
    /// Content, or `-` to read standard input [default: -]
    text: Option<String>,
}

impl Write {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let path = VfsPathBuf::parse(&self.path)?;
        let mode = match self.if_version {
            Some(version) => WriteMode::IfVersion(version),
            None if self.new => WriteMode::CreateNew,
            None => WriteMode::Overwrite,
        };
        let content = context::content(self.text).await?.into();
        apply(context, &[Change::Write { path, content, mode }]).await
    }
}

impl Append {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let path = VfsPathBuf::parse(&self.path)?;
        let content = context::content(self.text).await?.into();
        apply(context, &[Change::Append { path, content }]).await
    }
}

/// Applies changes as one batch, saves the thread, and only then reports success.
///
/// A batch over several tiers is applied in order up to the first failure. Changes before it remain and are saved.
pub(crate) async fn apply(context: &mut Context, changes: &[Change]) -> Result<Outcome, Failure> {
    let applied = context.lasting(async |context| attempt(context, changes).await).await?;
    tell_one(context, &applied)
}

/// Reports the result of a command with one change.
pub(crate) fn tell_one(context: &mut Context, applied: &[Changed]) -> Result<Outcome, Failure> {
    if !context.out.is_text() {
        applied.iter().try_for_each(|changed| context.out.json(changed))?;
    }
    applied.iter().for_each(|changed| tell(context, changed));
    Ok(Outcome::Done)
}

/// Applies the changes of a command that takes several paths, and reports them as one list. `make` is called again for each attempt.
pub(crate) async fn apply_all(
    context: &mut Context,
    mut make: impl AsyncFnMut(&mut Context) -> Result<Vec<Change>, Failure>,
) -> Result<Outcome, Failure> {
    let work = async |context: &mut Context| {
        let changes = make(context).await?;
        attempt(context, &changes).await
    };
    let applied = context.lasting(work).await?;
    if !context.out.is_text() {
        context.out.json_list(&applied)?;
    }
    applied.iter().for_each(|changed| tell(context, changed));
    Ok(Outcome::Done)
}

/// Applies changes once.
pub(crate) async fn attempt(context: &mut Context, changes: &[Change]) -> Result<Vec<Changed>, Failure> {
    let options = context.change_options().with_allow_partial(true);
    Ok(context.tree().await?.apply(changes, &options).await?)
}

/// Reports what a change did, with `--verbose`.
fn tell(context: &mut Context, changed: &Changed) {
    let out = &mut context.out;
    if !out.is_text() {
        return;
    }
    let version = changed.version.map_or_else(String::new, |version| format!(", version {version}"));
    let what = match changed.replacements {
        0 => format!("{} bytes", changed.size_bytes),
        count => format!("{count} replaced, {} bytes", changed.size_bytes),
    };
    out.detail(format_args!("{} `{}`: {what}{version}", changed.operation, changed.path));
}
