//! `edit`: replaces text within a file, or opens the file in an editor.

mod editor;

use crate::cli::commands::write::{apply, attempt, tell_one};
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::cli::output::{stdin_is_terminal, stdout_is_terminal};
use crate::file::is_binary;
use crate::ops::{Change, Edit as Replacement, FileRead, ReadOptions, Version, WriteMode};
use crate::{Backend, Error, ErrorKind, VfsPath, VfsPathBuf};
use clap::Args;
use editor::Draft;
use serde_json::json;

/// The largest file that is opened in an editor: 16 MiB.
const EDITOR_BYTES_MAX: u64 = 16 << 20;

/// Replace text in a file, or open it in an editor
///
/// OLD must occur exactly once unless `--all` is given. It is literal text, not a pattern.
///
/// With `--editor`, or without OLD and NEW on a terminal, opens the file in the editor that TREEHOLD_EDITOR, VISUAL or EDITOR names, by
/// default `vi`. The edited text is written when the editor ends, unless the file changed meanwhile: then it stays in the file that the
/// error names. Nothing is written if the editor fails or changes nothing. A file that does not exist is created.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold edit /memories/todo.md 'buy milk' 'buy oat milk'
  treehold edit --all /workspace/main.rs old_name new_name
  treehold edit /memories/todo.md                            # in your editor
  TREEHOLD_EDITOR='code --wait' treehold edit /plan.md --editor")]
pub(crate) struct Edit {
    /// Path of the file
    path: String,
    /// Text to replace
    #[arg(allow_hyphen_values = true, requires = "new")]
    old: Option<String>,
    /// Replacement text
    #[arg(allow_hyphen_values = true)]
    new: Option<String>,
    /// Replace every occurrence
    #[arg(short, long, requires = "old")]
    all: bool,
    /// Open the file in an editor
    #[arg(short, long, conflicts_with_all = ["old", "new", "all"])]
    editor: bool,
    /// Fail unless the file has this version
    #[arg(long, value_name = "VERSION")]
    if_version: Option<Version>,
}

impl Edit {
    /// Returns whether an editor of the user runs. It gets the interrupts of the terminal too, and they are meant for it.
    pub(crate) fn opens_editor(&self) -> bool {
        self.old.is_none()
    }

    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let path = VfsPathBuf::parse(&self.path)?;
        let (Some(old), Some(new)) = (self.old, self.new) else {
            let is_for_person = context.out.is_text() && stdin_is_terminal() && stdout_is_terminal();
            if !self.editor && !is_for_person {
                let message = "no text to replace is given; name OLD and NEW, or open the file in an editor with `--editor`";
                return Err(Error::invalid_argument(message).into());
            }
            return in_editor(context, &path, self.if_version).await;
        };
        let edits = vec![if self.all { Replacement::all(old, new) } else { Replacement::new(old, new) }];
        apply(context, &[Change::Edit { path, edits, expect: self.if_version }]).await
    }
}

/// Opens a file in the user's editor, and writes what was edited if the file is still the one that was read.
async fn in_editor(context: &mut Context, path: &VfsPath, expected: Option<Version>) -> Result<Outcome, Failure> {
    let before = read(context, path, expected).await?;
    let mut draft = Draft::create(path, before.as_ref().map(|read| &*read.content))?;
    context.out.flush()?;
    draft.edit()?;
    let Some(content) = draft.content(EDITOR_BYTES_MAX)? else {
        return match before {
            Some(_) => Err(Error::new(ErrorKind::Unavailable, "the editor removed the file; nothing was written").at(path).into()),
            None => tell_unchanged(context, path),
        };
    };
    let mode = match before {
        Some(before) if before.content == content => return tell_unchanged(context, path),
        Some(before) => WriteMode::IfVersion(before.version),
        None => WriteMode::CreateNew,
    };
    let change = [Change::Write { path: path.to_owned(), content: content.into(), mode }];
    match context.lasting(async |context| attempt(context, &change).await).await {
        Ok(applied) => tell_one(context, &applied),
        Err(failure) => Err(kept(draft, failure)),
    }
}

/// Reads the file to edit; `None` if there is none yet.
async fn read(context: &mut Context, path: &VfsPath, expected: Option<Version>) -> Result<Option<FileRead>, Failure> {
    let options = ReadOptions::new().with_bytes_max(EDITOR_BYTES_MAX);
    let read = match context.tree().await?.read(path, &options).await {
        Ok(read) => read,
        Err(error) if error.kind() == ErrorKind::NotFound && expected.is_none() => return Ok(None),
        Err(error) if error.kind() == ErrorKind::TooLarge => {
            let message =
                format!("`{path}` is larger than {EDITOR_BYTES_MAX} bytes, the most that is opened in an editor; name OLD and NEW");
            return Err(error.with_message(message).into());
        }
        Err(error) => return Err(error.into()),
    };
    if let Some(expected) = expected.filter(|expected| *expected != read.version) {
        let message = format!("`{path}` has version {}, not {expected}; nothing was opened", read.version);
        return Err(Error::new(ErrorKind::Conflict, message).at(path).into());
    }
    if is_binary(&read.content) {
        return Err(Error::invalid_argument(format!("`{path}` is binary, and an editor could damage it; use `write`")).at(path).into());
    }
    Ok(Some(read))
}

fn tell_unchanged(context: &mut Context, path: &VfsPath) -> Result<Outcome, Failure> {
    match context.out.is_text() {
        true => context.out.notice(format_args!("`{path}` is unchanged; nothing was written")),
        false => context.out.json(&json!({"path": path, "unchanged": true}))?,
    }
    Ok(Outcome::Done)
}

/// Keeps the edited text, which could not be written, and adds where it is to the error.
fn kept(draft: Draft, failure: Failure) -> Failure {
    let file = draft.keep();
    match failure {
        Failure::Library(error) => {
            let message = format!("{}; the edited text is kept in `{}`", error.message(), file.display());
            error.with_message(message).into()
        }
        other => other,
    }
}
