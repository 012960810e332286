//! `show`: one checkpoint, or one version of a file, in full.

use super::cat::print_whole;
use super::checkpoint::{Detail, Found, ShownPath};
use super::diff::split;
use super::log::author_notes;
use super::thread::kept;
use crate::checkpoint::{Checkpoint, find_checkpoint};
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::cli::ids::ShortIds;
use crate::cli::output::{Style, as_text};
use crate::cli::time::{ago, exact};
use crate::ops::{Moment, ReadOptions, Revision, StatOptions};
use crate::{Backend, Error, ErrorKind, VfsPath, VfsPathBuf};
use clap::Args;
use jiff::Timestamp;
use serde::Serialize;
use std::sync::Arc;

/// Show a checkpoint with its changes, or a version of a file with its content
///
/// For a checkpoint, prints when and by whom it was made, and a unified diff of each file that changed since its parent. For
/// PATH@VERSION, prints who made that version, when and by which call, and then its content; without a version, the newest one.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold show                         # the latest checkpoint
  treehold show ~1 --stat
  treehold show before
  treehold show /memories/notes.md@v2
  treehold show /plan.md@before")]
pub(crate) struct Show {
    /// Checkpoint (id or start of an id, label, `latest` or `~N`), or `PATH@VERSION`
    #[arg(value_name = "WHAT", default_value = "latest")]
    what: String,
    /// Of a checkpoint, print the number of added and removed lines per file
    #[arg(long)]
    stat: bool,
    /// Of a checkpoint, print N lines of context around each difference [default: 3]
    #[arg(short = 'U', long, value_name = "N", conflicts_with = "stat")]
    unified: Option<usize>,
}

/// The lines of context around a difference.
const CONTEXT: usize = 3;

/// A checkpoint as JSON.
#[derive(Debug, Serialize)]
struct ShownCheckpoint<'a> {
    #[serde(flatten)]
    checkpoint: &'a Checkpoint,
    /// The changes since its parent, or `None` if the parent was pruned.
    changes: Option<ShownChanges<'a>>,
}

#[derive(Debug, Serialize)]
struct ShownChanges<'a> {
    added: usize,
    changed: usize,
    removed: usize,
    paths: Vec<ShownPath<'a>>,
}

/// A version of a file as JSON.
#[derive(Debug, Serialize)]
struct ShownVersion<'a> {
    path: &'a VfsPath,
    #[serde(flatten)]
    revision: &'a Revision,
    /// `None` if the version removed the file or its content is not kept.
    content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    encoding: Option<&'static str>,
}

impl Show {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        if !self.what.starts_with('/') {
            return self.checkpoint(context).await;
        }
        if self.stat || self.unified.is_some() {
            let message = "`--stat` and `--unified` are about the changes of a checkpoint; leave them out for a file";
            return Err(Error::invalid_argument(message).into());
        }
        show_version(context, &self.what).await
    }

    async fn checkpoint(&self, context: &mut Context) -> Result<Outcome, Failure> {
        let found = Found::open(context, &self.what).await?;
        let detail = if self.stat { Detail::Counts } else { Detail::Patches(self.unified.unwrap_or(CONTEXT)) };
        let changes = found.changes.as_ref().zip(found.older.as_ref());
        if context.out.is_text() {
            found.print(context).await?;
            if let Some((changes, older)) = changes {
                for difference in &changes.paths {
                    let text = detail.text(older, &found.newer, difference).await?;
                    detail.print(context, difference, text)?;
                }
            }
            return Ok(Outcome::Done);
        }
        let changes = match changes {
            Some((changes, older)) => {
                let mut paths = Vec::with_capacity(changes.paths.len());
                for difference in &changes.paths {
                    paths.push(ShownPath::new(difference, detail.text(older, &found.newer, difference).await?));
                }
                Some(ShownChanges { added: changes.added, changed: changes.changed, removed: changes.removed, paths })
            }
            None => None,
        };
        context.out.json(&ShownCheckpoint { checkpoint: &found.checkpoint, changes })?;
        Ok(Outcome::Done)
    }
}

async fn show_version(context: &mut Context, what: &str) -> Result<Outcome, Failure> {
    let tree = context.tree().await?;
    let (path, moment) = split(&*tree, what).await?;
    let revision = revision_at(context, &path, moment.unwrap_or("latest")).await?;
    let then = match revision.exists() && revision.is_kept {
        true => Some(tree_of(context, &revision).await?),
        false => None,
    };
    if !context.out.is_text() {
        let read = match &then {
            Some(then) => Some(as_text(&then.read(&path, &ReadOptions::new()).await?.content)),
            None => None,
        };
        let (content, encoding) = read.unzip();
        context.out.json(&ShownVersion { path: &path, revision: &revision, content, encoding })?;
        return Ok(Outcome::Done);
    }
    print_header(context, &path, &revision).await?;
    if let Some(then) = then {
        context.out.empty_line()?;
        print_whole(context, &*then, &path).await?;
    }
    Ok(Outcome::Done)
}

/// Returns the version of a file that was there at a moment.
async fn revision_at(context: &mut Context, path: &VfsPath, name: &str) -> Result<Revision, Failure> {
    let session = context.session().await?;
    let moment = Moment::parse(name, Timestamp::now());
    let is_newest = moment.as_ref().is_ok_and(|moment| *moment == Moment::Back(0));
    let log = session.log(path, if is_newest { 1 } else { usize::MAX }).await?;
    let is_state = log.revisions.iter().any(|revision| revision.checkpoint.is_some());
    let mut revisions = log.revisions.into_iter();
    let found = match moment {
        _ if is_newest => revisions.next(),
        Ok(Moment::Time(time)) => revisions.find(|revision| revision.at <= time),
        _ if is_state => {
            let (checkpointer, scope) = (kept(context)?, context.scope()?);
            let id = find_checkpoint(&*checkpointer, &scope, name).await?.id;
            revisions.find(|revision| revision.checkpoint.is_some_and(|checkpoint| checkpoint <= id))
        }
        Ok(Moment::Number(number)) => revisions.find(|revision| revision.number == number),
        Ok(Moment::Back(back)) => revisions.nth(usize::try_from(back).unwrap_or(usize::MAX)),
        // The name of a checkpoint: the version of the file at that time.
        Err(_) => {
            let version = context.tree_as_of(name).await?.stat(path, &StatOptions::new()).await?.version;
            revisions.find(|revision| revision.exists() && revision.version == version)
        }
    };
    let message = format!("`{path}` has no version `{name}`; `treehold log {path}` lists those that are kept");
    found.ok_or_else(|| Error::new(ErrorKind::NotFound, message).at(path).into())
}

/// Returns the tree with the content of a version.
async fn tree_of(context: &mut Context, revision: &Revision) -> Result<Arc<dyn Backend>, Error> {
    let name = revision.checkpoint.map_or_else(|| format!("v{}", revision.number), |checkpoint| checkpoint.to_string());
    context.tree_as_of(&name).await
}

async fn print_header(context: &mut Context, path: &VfsPathBuf, revision: &Revision) -> Result<(), Failure> {
    let is_terminal = context.out.width().is_some();
    let version = match revision.checkpoint {
        Some(id) if is_terminal => {
            let (checkpointer, scope) = (kept(context)?, context.scope()?);
            format!("of checkpoint {}", ShortIds::of(&*checkpointer, &scope).await?.text(&context.out, id))
        }
        Some(id) => format!("of checkpoint {id}"),
        None => format!("v{}", revision.number),
    };
    let out = &mut context.out;
    out.line(format_args!("path      {path}"))?;
    out.line(format_args!("version   {version}"))?;
    let when = match is_terminal {
        true => format!("  {}", out.paint(Style::Faint, ago(revision.at, Timestamp::now()))),
        false => String::new(),
    };
    out.line(format_args!("changed   {}{when}", exact(revision.at)))?;
    let other = match (&revision.other, revision.exists()) {
        (Some(other), true) => format!(" from {other}"),
        (Some(other), false) => format!(" to {other}"),
        (None, _) => String::new(),
    };
    out.line(format_args!("by        {}{other}", revision.operation))?;
    let notes: Vec<String> = author_notes(&revision.author).map(|(name, value)| format!("{name}={}", value.escape_debug())).collect();
    if !notes.is_empty() {
        out.line(format_args!("noted     {}", notes.join(" ")))?;
    }
    match (revision.exists(), revision.is_kept) {
        (false, _) => out.line("size      removed"),
        (true, true) => out.line(format_args!("size      {}", revision.size_bytes)),
        (true, false) => out.line(format_args!("size      {} (content not kept)", revision.size_bytes)),
    }
}
