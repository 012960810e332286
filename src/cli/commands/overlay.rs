//! `overlay`: changes in an overlay that nobody has applied or discarded.

use super::{diff, overlay_patch};
use crate::backend::{OverlayApplied, OverlayApplyOptions, OverlayDiffOptions, OverlayDifference, OverlayDifferenceKind, OverlayStrategy};
use crate::cli::context::Context;
use crate::cli::exit::{self, Failure, Outcome};
use crate::cli::output::{Style, counted};
use crate::file::is_binary;
use crate::ops::{EntryKind, StatOptions};
use crate::tools::with_near_paths;
use crate::{BackendExt, Error, ErrorKind, OverlayBackend, VfsPath, VfsPathBuf};
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;

/// Show, apply or discard the changes in an overlay
///
/// A route with an `overlay` in the configuration keeps changes apart from the files beneath it. Agents see their changes, and
/// the files stay unchanged until `apply` writes the changes or `discard` drops them.
#[derive(Debug, Subcommand)]
#[command(after_long_help = "Example, after `[routes.\"/workspace\".overlay]` in treehold.toml:
  treehold overlay diff --patch
  treehold overlay apply
  treehold overlay discard /workspace/notes")]
pub(crate) enum Overlay {
    Diff(Diff),
    Apply(Apply),
    Discard(Discard),
}

/// List the paths that the overlay adds, changes or removes
///
/// Marks a path as a conflict if the file beneath also changed since the overlay first touched it. Exits with 1 if the overlay is
/// empty.
///
/// `--git` prints one patch for `git apply`, with binary files, modes and deletions. Its paths start at the route. It exits with 5 if a
/// rule hides the content of a change, and with 2 if git refuses a path; the patch then has the other changes.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold overlay diff
  treehold overlay diff --git | git -C ~/project apply --index")]
pub(crate) struct Diff {
    /// Show only changes at or beneath PATH
    #[arg(default_value = "/")]
    path: String,
    /// Print a unified diff of each text file
    #[arg(long)]
    patch: bool,
    /// Print one patch of all changes for `git apply`
    #[arg(long, conflicts_with_all = ["patch", "json", "jsonl"])]
    git: bool,
    /// Print N lines of context around each difference
    #[arg(short = 'U', long, value_name = "N", default_value_t = 3)]
    unified: usize,
}

/// Write changes to the files beneath and remove them from the overlay
///
/// A file that changed since the overlay first touched it is a conflict. If there is one, this command lists it, writes nothing
/// and exits with 4, unless `--strategy` decides it. Exits with 1 if there is nothing to apply.
#[derive(Debug, Args)]
pub(crate) struct Apply {
    /// Apply only changes at or beneath these paths
    #[arg(value_name = "PATH")]
    paths: Vec<String>,
    /// Only print what would be done
    #[arg(long)]
    dry_run: bool,
    /// Side that wins a conflict: `ours` is the overlay, `theirs` the files beneath
    #[arg(long, value_enum, value_name = "SIDE", hide_possible_values = true)]
    strategy: Option<Strategy>,
}

/// Discard changes, so that the files beneath are visible again
///
/// Exits with 1 if there is nothing to discard.
#[derive(Debug, Args)]
pub(crate) struct Discard {
    /// Discard only changes at or beneath these paths; without a path, `--yes` is required
    #[arg(value_name = "PATH")]
    paths: Vec<String>,
    /// Confirm that everything is to be discarded
    #[arg(short, long)]
    yes: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Strategy {
    Ours,
    Theirs,
}

/// An overlay with the requested paths.
pub(super) struct Asked {
    /// The path of the route.
    pub(super) route: VfsPathBuf,
    pub(super) overlay: OverlayBackend,
    /// Paths within it, or empty for all of it.
    pub(super) paths: Vec<VfsPathBuf>,
}

impl Overlay {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        match self {
            Self::Diff(diff) => diff.run(context).await,
            Self::Apply(apply) => apply.run(context).await,
            Self::Discard(discard) => discard.run(context).await,
        }
    }
}

/// Returns the overlays that contain the paths or lie beneath them, or all overlays if there are no paths.
async fn asked(context: &mut Context, paths: &[String]) -> Result<Vec<Asked>, Error> {
    let config = context.config()?;
    let (stores, scope) = (context.stores()?, config.scope());
    let mut asked: Vec<Asked> = Vec::new();
    for (key, _) in config.overlays() {
        let Some(overlay) = config.overlay(key, &stores, &scope)? else { continue };
        let route = VfsPathBuf::parse(key)?;
        // The rules of the tree also hold for changes that are applied, discarded or shown without it.
        let overlay = overlay.with_mounted_tree(context.tree().await?, route.clone());
        asked.push(Asked { route, overlay, paths: Vec::new() });
    }
    if asked.is_empty() {
        return Err(Error::invalid_argument("no route is an overlay; add `[routes.\"/workspace\".overlay]` to the configuration"));
    }
    if paths.is_empty() {
        return Ok(asked);
    }
    let mut wanted = vec![false; asked.len()];
    let mut wholly = vec![false; asked.len()];
    for text in paths {
        let path = VfsPathBuf::parse(text)?;
        let route = config.route_of(&path)?.map(|(_, route)| route);
        let mut is_met = false;
        for (index, one) in asked.iter_mut().enumerate() {
            if one.route.starts_with(&path) {
                (is_met, wanted[index], wholly[index]) = (true, true, true);
            } else if route.as_ref() == Some(&one.route)
                && let Some(rest) = path.strip_prefix(&one.route)
            {
                (is_met, wanted[index]) = (true, true);
                one.paths.push(rest.to_owned());
            }
        }
        if !is_met {
            let routes: Vec<String> = asked.iter().map(|one| format!("`{}`", one.route)).collect();
            let message = format!("`{path}` is not in an overlay; there is one at {}", routes.join(", "));
            return Err(Error::invalid_argument(message).at(&path));
        }
    }
    let chosen = asked.into_iter().zip(wanted.into_iter().zip(wholly)).filter(|(_, (wanted, _))| *wanted);
    Ok(chosen.map(|(one, (_, wholly))| if wholly { Asked { paths: Vec::new(), ..one } } else { one }).collect())
}

/// Converts a difference to paths of the whole tree.
fn outward(route: &VfsPath, mut difference: OverlayDifference) -> OverlayDifference {
    difference.path = route.concat(&difference.path);
    for entry in [&mut difference.before, &mut difference.after].into_iter().flatten() {
        entry.path = route.concat(&entry.path);
    }
    difference
}

/// A difference as JSON, optionally with a patch.
#[derive(Debug, Serialize)]
struct Shown {
    #[serde(flatten)]
    difference: OverlayDifference,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<String>,
}

impl Diff {
    async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        if self.git {
            let asked = asked(context, std::slice::from_ref(&self.path)).await?;
            return overlay_patch::print(context, asked, self.unified).await;
        }
        let mut all = Vec::new();
        let mut is_empty = true;
        for Asked { route, overlay, paths } in asked(context, std::slice::from_ref(&self.path)).await? {
            let mut options = OverlayDiffOptions::new().with_path(paths.first().cloned().unwrap_or_else(VfsPathBuf::root));
            loop {
                let page = overlay.diff(&options).await.map_err(|error| error.rebased(&route, &[]))?;
                for difference in page.differences {
                    is_empty = false;
                    let patch = if self.patch && difference.is_readable {
                        self.patch_of(&route, &overlay, &difference).await.map_err(|error| error.rebased(&route, &[]))?
                    } else {
                        None
                    };
                    let difference = outward(&route, difference);
                    if context.out.is_text() {
                        match patch {
                            Some(patch) => diff::print(&mut context.out, &patch)?,
                            None => print(context, &difference)?,
                        }
                    } else {
                        all.push(Shown { difference, patch: patch.map(|patch| String::from_utf8_lossy(&patch).into_owned()) });
                    }
                }
                match page.truncated {
                    Some(cut) => options.start_after = Some(cut.next_after(options.start_after.as_ref())?),
                    None => break,
                }
            }
        }
        if !context.out.is_text() {
            context.out.json_list(&all)?;
        }
        if is_empty {
            // A path without changes may be one that never was.
            let path = VfsPathBuf::parse(&self.path)?;
            let tree = context.tree().await?;
            match tree.stat(&path, &StatOptions::new()).await {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    let error = with_near_paths(&*tree, error).await;
                    context.out.notice(error.message());
                }
                _ => {}
            }
        }
        Ok(Outcome::found(!is_empty))
    }

    /// Returns the diff of two texts, or `None` for directories and binary files.
    async fn patch_of(&self, route: &VfsPath, overlay: &OverlayBackend, difference: &OverlayDifference) -> Result<Option<Vec<u8>>, Error> {
        let is_file = |entry: &Option<crate::ops::Entry>| entry.as_ref().is_some_and(|entry| entry.kind == EntryKind::File);
        let (had, has) = (is_file(&difference.before), is_file(&difference.after));
        if !(had || has) {
            return Ok(None);
        }
        let before = if had { overlay.lower().read_bytes(difference.path.as_str()).await? } else { Default::default() };
        let after = if has { overlay.read_bytes(difference.path.as_str()).await? } else { Default::default() };
        if is_binary(&before) || is_binary(&after) {
            return Ok(None);
        }
        let path = route.concat(&difference.path);
        let name = |is_there: bool| if is_there { path.as_str() } else { "/dev/null" };
        let text = diff::unified(&before, &after, name(had), name(has), self.unified);
        Ok((!text.is_empty()).then_some(text))
    }
}

/// Prints one line for a difference.
fn print(context: &mut Context, difference: &OverlayDifference) -> Result<(), Failure> {
    let style = match difference.kind {
        OverlayDifferenceKind::Added => Style::Added,
        OverlayDifferenceKind::Changed => Style::Path,
        OverlayDifferenceKind::Removed => Style::Removed,
    };
    let entry = difference.after.as_ref().or(difference.before.as_ref());
    let slash = if entry.is_some_and(|entry| entry.is_directory()) { "/" } else { "" };
    let conflict = difference.conflict.map_or_else(String::new, |conflict| format!("  (conflict: {conflict} beneath)"));
    let kind = context.out.paint(style, format_args!("{:<7}", difference.kind)).to_string();
    context.out.line(format_args!("{kind}  {}{slash}{conflict}", difference.path))
}

impl Apply {
    async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let asked = asked(context, &self.paths).await?;
        let options = |one: &Asked| {
            let mut options = OverlayApplyOptions::new();
            options.paths = one.paths.clone();
            options.strategy = self.strategy.map(|strategy| match strategy {
                Strategy::Ours => OverlayStrategy::Ours,
                Strategy::Theirs => OverlayStrategy::Theirs,
            });
            options
        };
        // Of several overlays, apply none if any has a conflict.
        let mut planned = OverlayApplied::default();
        for one in &asked {
            let plan = one.overlay.apply_changes(&options(one).with_dry_run(true)).await;
            join(&mut planned, &one.route, plan.map_err(|error| error.rebased(&one.route, &[]))?);
        }
        let mut done = planned;
        if !self.dry_run && done.conflicts.is_empty() {
            done = OverlayApplied::default();
            for one in &asked {
                let applied = one.overlay.apply_changes(&options(one)).await;
                join(&mut done, &one.route, applied.map_err(|error| error.rebased(&one.route, &[]))?);
                if done.failure.is_some() || !done.conflicts.is_empty() {
                    break;
                }
            }
        }
        self.tell(context, &done)
    }

    fn tell(&self, context: &mut Context, done: &OverlayApplied) -> Result<Outcome, Failure> {
        if !context.out.is_text() {
            context.out.json(done)?;
        } else if !done.conflicts.is_empty() {
            done.conflicts.iter().try_for_each(|difference| print(context, difference))?;
        } else if self.dry_run {
            done.applied.iter().try_for_each(|difference| print(context, difference))?;
        }
        if !done.conflicts.is_empty() {
            let paths = counted(done.conflicts.len(), "path", "paths");
            let message = format!(
                "{paths} changed in the lower tree too, nothing was applied; review the conflicts, or decide with `--strategy ours` or \
                    `theirs`"
            );
            context.out.flush()?;
            exit::tell(&Error::new(ErrorKind::Conflict, message), &context.global);
            return Ok(Outcome::Failed(ErrorKind::Conflict));
        }
        let changes = counted(done.applied.len(), "change", "changes");
        if let Some(failure) = &done.failure {
            let error = exit::error_of(&failure.error);
            let message = format!("{changes} were applied, then: {}; apply again for the rest", error.message());
            context.out.flush()?;
            exit::tell(&Error::new(error.kind(), message).at(&failure.path), &context.global);
            return Ok(Outcome::Failed(error.kind()));
        }
        if done.applied.is_empty() && done.dropped.is_empty() {
            context.out.notice("there is nothing to apply");
            return Ok(Outcome::Nothing);
        }
        let verb = if self.dry_run { "would be applied" } else { "applied" };
        match done.dropped.len() {
            0 => context.out.notice(format_args!("{changes} {verb}")),
            dropped => context.out.notice(format_args!("{changes} {verb}, {dropped} dropped")),
        }
        Ok(Outcome::Done)
    }
}

/// Adds the outcome of one overlay to the total.
fn join(all: &mut OverlayApplied, route: &VfsPath, one: OverlayApplied) {
    let outward = |differences: Vec<OverlayDifference>| differences.into_iter().map(|difference| outward(route, difference));
    all.applied.extend(outward(one.applied));
    all.dropped.extend(outward(one.dropped));
    all.conflicts.extend(outward(one.conflicts));
    if let Some(mut failure) = one.failure {
        failure.path = route.concat(&failure.path);
        failure.error = failure.error.rebased(route);
        all.failure = Some(failure);
    }
}

impl Discard {
    async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let asked = asked(context, &self.paths).await?;
        let is_whole = asked.iter().any(|one| one.paths.is_empty());
        if is_whole && !self.yes {
            let mut count = 0;
            for one in &asked {
                let options = OverlayDiffOptions::new().with_limit(usize::MAX);
                let diff = one.overlay.diff(&options).await.map_err(|error| error.rebased(&one.route, &[]))?;
                count += diff.differences.len();
            }
            let message = format!("this discards {} permanently; add `--yes`, or name paths", counted(count, "change", "changes"));
            return Err(Error::invalid_argument(message).into());
        }
        let mut dropped = Vec::new();
        for one in &asked {
            let of_one = one.overlay.discard(&one.paths).await.map_err(|error| error.rebased(&one.route, &[]))?;
            dropped.extend(of_one.into_iter().map(|difference| outward(&one.route, difference)));
        }
        if !context.out.is_text() {
            context.out.json_list(&dropped)?;
        }
        match dropped.len() {
            0 => context.out.notice("there is nothing to discard"),
            count => context.out.notice(format_args!("dropped {}", counted(count, "change", "changes"))),
        }
        Ok(Outcome::found(!dropped.is_empty()))
    }
}
