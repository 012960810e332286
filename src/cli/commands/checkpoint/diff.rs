//! `checkpoint diff`: the differences between two checkpoints.

use super::{calls, history, parent_of};
use crate::audit::AuditRow;
use crate::backend::StateSnapshot;
use crate::checkpoint::{ChangeKind, Checkpoint, Opened, PathDiff, open_checkpoint};
use crate::cli::commands::diff::{print as print_patch, unified};
use crate::cli::commands::overlay_patch::{GitPatch, Left};
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::cli::git_patch::Mode;
use crate::cli::output::{Format, Progress, Style, counted};
use crate::file::is_binary;
use crate::ops::ReadOptions;
use crate::{Backend, BackendExt, CheckpointId, Checkpointer, Error, ErrorKind, Scope, Session, VfsPath, VfsPathBuf};
use clap::Args;
use serde::Serialize;
use similar::{ChangeTag, TextDiff};

/// List the paths that were added, changed or removed between two checkpoints
///
/// An argument that starts with `/` is PATH. Exits with 1 if nothing differs.
///
/// `--git` prints one patch for `git apply`, with binary files and deletions. Its paths start at `/`. It exits with 5 if a rule hides
/// the content of a change, and with 2 if git refuses a path; the patch then has the other changes.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold checkpoint diff
  treehold checkpoint diff ~5 --stat
  treehold checkpoint diff before after /notes --patch
  treehold checkpoint diff before --calls
  treehold --thread tuesday checkpoint diff --with monday    # compare two threads")]
pub(crate) struct Diff {
    /// Older checkpoint [default: the parent of NEW]
    #[arg(value_name = "OLD")]
    old: Option<String>,
    /// Newer checkpoint [default: latest]
    #[arg(value_name = "NEW")]
    new: Option<String>,
    /// Compare only paths at or beneath PATH
    #[arg(value_name = "PATH")]
    path: Option<String>,
    /// Look up OLD in this thread; OLD then defaults to its latest checkpoint
    #[arg(long, value_name = "THREAD")]
    with: Option<String>,
    /// Print a unified diff of each text file
    #[arg(long)]
    patch: bool,
    /// Print one patch of all changes for `git apply`
    #[arg(long, conflicts_with_all = ["patch", "stat", "calls", "json", "jsonl"])]
    git: bool,
    /// Print the number of added and removed lines per file
    #[arg(long, conflicts_with = "patch")]
    stat: bool,
    /// Also print the tool calls between OLD and NEW
    #[arg(long)]
    calls: bool,
    /// Print N lines of context around each difference
    #[arg(short = 'U', long, value_name = "N", default_value_t = 3)]
    unified: usize,
}

/// The most differences to request at a time.
const PAGE: usize = 10_000;

/// All differences between two states.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Differences {
    pub(crate) added: usize,
    pub(crate) changed: usize,
    pub(crate) removed: usize,
    pub(crate) paths: Vec<PathDiff>,
}

impl Differences {
    /// Compares two states, optionally only beneath a path.
    pub(crate) async fn of(
        session: &Session,
        older: &StateSnapshot,
        newer: &StateSnapshot,
        beneath: Option<&VfsPath>,
        progress: &Progress,
    ) -> Result<Self, Error> {
        let mut all = Self::default();
        let mut after: Option<VfsPathBuf> = None;
        loop {
            let page = session.diff(older, newer, after.as_deref(), PAGE).await?;
            for difference in page.paths.into_iter().filter(|one| beneath.is_none_or(|beneath| one.path.starts_with(beneath))) {
                match difference.change {
                    ChangeKind::Added => all.added += 1,
                    ChangeKind::Changed => all.changed += 1,
                    ChangeKind::Removed => all.removed += 1,
                }
                all.paths.push(difference);
            }
            progress.tell(all.paths.len() as u64, "differences");
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(all),
            }
        }
    }

    /// Describes the number of differences of each kind.
    pub(crate) fn counts(&self) -> String {
        format!("{} added, {} changed, {} removed", self.added, self.changed, self.removed)
    }
}

/// The differences between two checkpoints as JSON.
#[derive(Debug, Serialize)]
struct Shown<'a> {
    /// `None` if `new` is compared with the empty state, as the first checkpoint has no parent.
    old: Option<CheckpointId>,
    new: CheckpointId,
    added: usize,
    changed: usize,
    removed: usize,
    paths: Vec<ShownPath<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    calls: Option<Vec<AuditRow>>,
}

/// A difference as JSON.
#[derive(Debug, Serialize)]
pub(crate) struct ShownPath<'a> {
    #[serde(flatten)]
    difference: &'a PathDiff,
    #[serde(flatten)]
    text: Option<Text>,
}

impl<'a> ShownPath<'a> {
    pub(crate) fn new(difference: &'a PathDiff, text: Option<Text>) -> Self {
        Self { difference, text }
    }
}

/// How much of each difference is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Detail {
    /// The paths.
    Names,
    /// The paths with the number of added and removed lines.
    Counts,
    /// Unified diffs with this many lines of context.
    Patches(usize),
}

/// The difference of a file's text.
#[derive(Debug, Serialize)]
pub(crate) struct Text {
    /// Whether either side is binary or too large to compare.
    binary: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    lines_added: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lines_removed: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<String>,
    #[serde(skip)]
    bytes: Vec<u8>,
}

/// The two states to compare.
struct Sides {
    old: Option<Checkpoint>,
    older: StateSnapshot,
    new: Checkpoint,
    newer: StateSnapshot,
}

impl Diff {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let (checkpointer, scope) = history(context)?;
        let (names, path) = self.names()?;
        let session = context.session().await?;
        let progress = context.progress("comparing");
        let sides = Sides::open(&*checkpointer, &scope, &names, self.with.as_deref()).await?;
        let differences = Differences::of(&session, &sides.older, &sides.newer, path.as_deref(), &progress).await?;
        drop(progress);
        if self.git {
            return self.print_git(context, &sides, &differences.paths).await;
        }
        let detail = match (self.patch, self.stat) {
            (true, _) => Detail::Patches(self.unified),
            (_, true) => Detail::Counts,
            _ => Detail::Names,
        };
        let mut shown = Vec::new();
        for difference in &differences.paths {
            let text = detail.text(&sides.older, &sides.newer, difference).await?;
            if context.out.is_text() {
                detail.print(context, difference, text)?;
            } else {
                shown.push(ShownPath::new(difference, text));
            }
        }
        let calls = if self.calls {
            let after = sides.old.as_ref().filter(|old| self.with.is_none() && sides.is_own(old)).map(|old| old.id);
            Some(calls::between(context, after, sides.new.id).await?)
        } else {
            None
        };
        let Differences { added, changed, removed, ref paths } = differences;
        if !context.out.is_text() {
            let old = sides.old.as_ref().map(|old| old.id);
            match context.out.format() {
                Format::JsonLines => {
                    context.out.json_list(&shown)?;
                    context.out.json_list(calls.as_deref().unwrap_or_default())?;
                }
                _ => context.out.json(&Shown { old, new: sides.new.id, added, changed, removed, paths: shown, calls })?,
            }
        } else {
            if self.stat && !paths.is_empty() {
                context.out.line(differences.counts())?;
            }
            if let Some(calls) = calls {
                context.out.empty_line()?;
                context.out.line(format_args!("calls     {}", calls.len()))?;
                context.out.empty_line()?;
                calls::print(context, &calls)?;
            }
        }
        Ok(Outcome::found(!paths.is_empty()))
    }

    /// Prints the differences as a patch of git.
    async fn print_git(&self, context: &mut Context, sides: &Sides, paths: &[PathDiff]) -> Result<Outcome, Failure> {
        let mut patch = GitPatch::new(self.unified);
        for difference in paths {
            let (had, has) = (difference.old_size_bytes.is_some(), difference.new_size_bytes.is_some());
            if !(had || has) {
                patch.directory(&difference.path, difference.is_directory);
            } else if !difference.is_readable {
                patch.leave_out(Left::Hidden);
            } else {
                let whole = ReadOptions::new().with_bytes_max(u64::MAX);
                let before = if had { Some(sides.older.read(&difference.path, &whole).await?.content) } else { None };
                let after = if has { Some(sides.newer.read(&difference.path, &whole).await?.content) } else { None };
                let side = |content: &Option<bytes::Bytes>| content.clone().map(|content| (Mode::File, content));
                patch.file(context, &difference.path, side(&before), side(&after))?;
            }
        }
        patch.finish(context, !paths.is_empty())
    }

    /// Separates the names of checkpoints from the path.
    fn names(&self) -> Result<(Vec<&str>, Option<VfsPathBuf>), Error> {
        let mut names: Vec<&str> = [&self.old, &self.new, &self.path].into_iter().flatten().map(String::as_str).collect();
        let path = match names.last() {
            Some(last) if last.starts_with('/') || names.len() == 3 => names.pop().map(VfsPathBuf::parse).transpose()?,
            _ => None,
        };
        Ok((names, path))
    }
}

impl Detail {
    /// Compares the texts at one path. Returns `None` for directories, for what the caller may not read, and if only names are shown.
    pub(crate) async fn text(self, older: &StateSnapshot, newer: &StateSnapshot, difference: &PathDiff) -> Result<Option<Text>, Error> {
        let (had, has) = (difference.old_size_bytes.is_some(), difference.new_size_bytes.is_some());
        if !(had || has) || !difference.is_readable || self == Self::Names {
            return Ok(None);
        }
        let path = difference.path.as_str();
        let binary = || Text { binary: true, lines_added: None, lines_removed: None, patch: None, bytes: Vec::new() };
        let before = content(older, path, had).await?;
        let after = content(newer, path, has).await?;
        let (Some(before), Some(after)) = (before, after) else { return Ok(Some(binary())) };
        if is_binary(&before) || is_binary(&after) {
            return Ok(Some(binary()));
        }
        let Self::Patches(context) = self else {
            let compared = TextDiff::from_lines(&before[..], &after[..]);
            let count = |tag| compared.iter_all_changes().filter(|change| change.tag() == tag).count();
            let (added, removed) = (count(ChangeTag::Insert), count(ChangeTag::Delete));
            return Ok(Some(Text {
                binary: false,
                lines_added: Some(added),
                lines_removed: Some(removed),
                patch: None,
                bytes: Vec::new(),
            }));
        };
        let name = |is_there: bool| if is_there { path } else { "/dev/null" };
        let mut bytes = unified(&before, &after, name(had), name(has), context);
        if bytes.is_empty() {
            // An empty file has no differing lines, so show only the header.
            bytes = format!("--- {}\n+++ {}\n", name(had), name(has)).into_bytes();
        }
        let patch = String::from_utf8_lossy(&bytes).into_owned();
        Ok(Some(Text { binary: false, lines_added: None, lines_removed: None, patch: Some(patch), bytes }))
    }

    /// Prints one difference.
    pub(crate) fn print(self, context: &mut Context, difference: &PathDiff, text: Option<Text>) -> Result<(), Failure> {
        let is_patch = matches!(self, Self::Patches(_));
        match text {
            Some(text) if text.binary && is_patch => {
                context.out.line(format_args!("binary file {} differs ({})", difference.path, sizes(difference)))
            }
            Some(text) if is_patch => print_patch(&mut context.out, &text.bytes),
            Some(Text { lines_added: Some(added), lines_removed: Some(removed), .. }) => {
                context.out.line(format_args!("{:<7}  {}  +{added} -{removed}", kind(difference), difference.path))
            }
            Some(_) => context.out.line(format_args!("{:<7}  {}  binary, {}", kind(difference), difference.path, sizes(difference))),
            None => print_line(context, difference),
        }
    }
}

/// Returns the content of a file: empty if it does not exist, `None` if it is too large to compare.
async fn content(state: &StateSnapshot, path: &str, is_there: bool) -> Result<Option<Vec<u8>>, Error> {
    if !is_there {
        return Ok(Some(Vec::new()));
    }
    match state.read_bytes(path).await {
        Ok(content) => Ok(Some(content.to_vec())),
        Err(error) if error.kind() == ErrorKind::TooLarge => Ok(None),
        Err(error) => Err(error),
    }
}

fn kind(difference: &PathDiff) -> &'static str {
    match difference.change {
        ChangeKind::Added => "added",
        ChangeKind::Changed => "changed",
        ChangeKind::Removed => "removed",
    }
}

/// Describes the size before and after.
fn sizes(difference: &PathDiff) -> String {
    match (difference.old_size_bytes, difference.new_size_bytes) {
        (Some(old), Some(new)) => format!("{old} -> {new} bytes"),
        (old, new) => counted(usize::try_from(old.or(new).unwrap_or(0)).unwrap_or(usize::MAX), "byte", "bytes"),
    }
}

/// Prints one line for a difference.
pub(super) fn print_line(context: &mut Context, difference: &PathDiff) -> Result<(), Failure> {
    let style = match difference.change {
        ChangeKind::Added => Style::Added,
        ChangeKind::Changed => Style::Path,
        ChangeKind::Removed => Style::Removed,
    };
    let is_directory = if difference.change == ChangeKind::Removed { difference.was_directory } else { difference.is_directory };
    let slash = if is_directory { "/" } else { "" };
    let kind = context.out.paint(style, format_args!("{:<7}", kind(difference))).to_string();
    context.out.line(format_args!("{kind}  {}{slash}", difference.path))
}

impl Sides {
    /// Returns whether the older checkpoint is of the same thread, rather than the one that it was forked from.
    fn is_own(&self, old: &Checkpoint) -> bool {
        self.new.parent.as_ref().is_none_or(|parent| parent.id != old.id || parent.thread.is_none())
    }

    async fn open(checkpointer: &dyn Checkpointer, scope: &Scope, names: &[&str], with: Option<&str>) -> Result<Self, Error> {
        let Opened { checkpoint: new, state: newer, .. } =
            open_checkpoint(checkpointer, scope, names.get(1).copied().unwrap_or("latest")).await?;
        if let Some(name) = names.first().copied().or(with.map(|_| "latest")) {
            let scope = with.map_or_else(|| scope.clone(), |thread| scope.clone().with_thread(thread));
            let Opened { checkpoint: old, state: older, .. } = open_checkpoint(checkpointer, &scope, name).await?;
            return Ok(Self { old: Some(old), older, new, newer });
        }
        match (parent_of(checkpointer, scope, &new).await?, &new.parent) {
            (Some((old, older)), _) => Ok(Self { old: Some(old), older, new, newer }),
            (None, None) => Ok(Self { old: None, older: StateSnapshot::default(), new, newer }),
            (None, Some(parent)) => {
                let message =
                    format!("the parent `{}` of checkpoint `{}` was pruned; name the checkpoint to compare with", parent.id, new.id);
                Err(Error::new(ErrorKind::NotFound, message))
            }
        }
    }
}
