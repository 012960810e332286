//! `undo`: reverts the newest changes.

use crate::cli::args::at_least_one;
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::cli::output::Style;
use crate::session::{UndoOf, Undone};
use crate::{Error, ErrorKind};
use clap::Args;

/// Undo the last change of the thread, or the last N
///
/// Reverts one tool call or command: the files that it changed in routes with `history`, and the thread's state. Each undo goes one
/// change further back, and undone changes can be restored by `treehold restore`. Host directories and other routes that keep no past
/// stay as they are; if the last change was there, nothing is undone.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold undo
  treehold undo 3
  treehold undo --of-user        # the user's last change of /memories, from any thread")]
pub(crate) struct Undo {
    /// How many changes to undo
    #[arg(value_name = "N", default_value = "1", value_parser = at_least_one)]
    count: usize,
    /// Undo changes of files by all threads of the user
    #[arg(long = "of-user")]
    of_user: bool,
    /// Undo the change before, if the last one is of files of which no past is kept
    #[arg(long, conflicts_with = "of_user")]
    skip_unkept: bool,
}

impl Undo {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        context.check_mounted_session().await?;
        let of = if self.of_user { UndoOf::User } else { UndoOf::Thread };
        if of == UndoOf::Thread && !self.skip_unkept {
            let session = context.session().await?;
            if let Some(last) = session.newest_without_past().await? {
                let mount = context.workspace()?.mount_of(&last.path).to_owned();
                let message = format!(
                    "`{}` was changed last, and no past is kept of `{mount}`; nothing was undone; `treehold undo --skip-unkept` undoes the \
                        change before it",
                    last.path
                );
                return Err(Error::new(ErrorKind::Conflict, message).at(&last.path).into());
            }
        }
        for index in 0..self.count {
            let (threads, scope) = (context.threads()?, context.scope()?);
            let undone = context.until_saved(threads.undo(&scope, of)).await?;
            match context.out.is_text() {
                true => print(context, &undone)?,
                false => context.out.json_element(index, &undone)?,
            }
        }
        if !context.out.is_text() {
            context.out.json_end(self.count)?;
        }
        Ok(Outcome::Done)
    }
}

fn print(context: &mut Context, undone: &Undone) -> Result<(), Failure> {
    let out = &mut context.out;
    let mut line = format!("undone  {}", undone.at.strftime("%Y-%m-%dT%H:%M:%SZ"));
    let author = &undone.author;
    for (name, value) in
        [("tool", &author.tool), ("tool_call_id", &author.tool_call_id), ("actor", &author.actor), ("thread", &author.thread)]
    {
        if let Some(value) = value {
            line.push_str(&format!("  {}", out.paint(Style::Faint, format_args!("{name}={}", value.escape_debug()))));
        }
    }
    out.line(line)?;
    for changed in &undone.files {
        out.line(format_args!("  {:<7}  {}", changed.operation, changed.path))?;
    }
    if let Some(checkpoint) = &undone.checkpoint {
        out.line(format_args!("  state    checkpoint {}", checkpoint.id))?;
    }
    Ok(())
}
