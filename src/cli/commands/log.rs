//! `log`: the versions of a file.

use crate::cli::args::at_least_one;
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::cli::output::{Output, Style};
use crate::ops::{Author, Revision};
use crate::{Error, VfsPathBuf};
use clap::Args;

/// Print the versions of a file, newest first
///
/// A file of a store route with `history` has every recorded version, named `v1`, `v2` and so on. A file of the thread's state has
/// those of its checkpoints. A deleted file keeps its versions.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold log /memories/notes.md
  treehold diff /memories/notes.md@v1 /memories/notes.md@v2
  treehold cat /memories/notes.md --at ~1
  treehold restore /memories/notes.md --at v1")]
pub(crate) struct Log {
    /// Path of the file
    path: String,
    /// Print at most N versions
    #[arg(long, value_name = "N", default_value = "50", value_parser = at_least_one)]
    limit: usize,
}

impl Log {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let path = VfsPathBuf::parse(&self.path).map_err(Error::from)?;
        let log = context.session().await?.log(&path, self.limit).await?;
        if context.out.is_text() {
            log.revisions.iter().try_for_each(|revision| print(&mut context.out, revision))?;
        } else {
            context.out.json_list(&log.revisions)?;
        }
        if log.more {
            context.out.notice("there may be more versions; raise `--limit`");
        }
        Ok(Outcome::Done)
    }
}

/// Returns what is known about the author of a version, by name.
pub(crate) fn author_notes(author: &Author) -> impl Iterator<Item = (&'static str, &str)> {
    let notes = [("thread", &author.thread), ("actor", &author.actor), ("tool", &author.tool), ("tool_call_id", &author.tool_call_id)];
    notes.into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?)))
}

fn print(out: &mut Output, revision: &Revision) -> Result<(), Failure> {
    let name = revision.checkpoint.map_or_else(|| format!("v{}", revision.number), |checkpoint| checkpoint.to_string());
    let time = revision.at.strftime("%Y-%m-%dT%H:%M:%SZ");
    let size = if revision.exists() { revision.size_bytes.to_string() } else { "-".to_owned() };
    let mut line = format!("{name:<5}  {time}  {:<7}  {size:>9}", revision.operation);
    if let Some(other) = &revision.other {
        line.push_str(&if revision.exists() { format!("  <- {other}") } else { format!("  -> {other}") });
    }
    let version = revision.version.map(|version| version.to_string());
    for (name, value) in version.as_deref().map(|version| ("version", version)).into_iter().chain(author_notes(&revision.author)) {
        line.push_str(&format!("  {}", out.paint(Style::Faint, format_args!("{name}={}", value.escape_debug()))));
    }
    if !revision.is_kept {
        line.push_str("  (content not kept)");
    } else if !revision.is_recorded {
        line.push_str("  (not recorded)");
    }
    out.line(line)
}
