//! `diff`: compares two files as a unified diff.

use crate::cli::args::When;
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::cli::output::{Output, Style};
use crate::file::is_binary;
use crate::{Backend, BackendExt, Error, ErrorKind, VfsPath, VfsPathBuf};
use clap::Args;
use serde::Serialize;
use similar::TextDiff;
use std::sync::Arc;

/// Compare two files
///
/// Prints a unified diff from A to B, which git and patch(1) can apply. `PATH@MOMENT` names an earlier version of a file. With `--at`,
/// A is read as of that moment and B as of now. Exits with 0 if the files are equal and 1 if they differ.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold diff /workspace/plan.md /memories/plan.md
  treehold diff /plan.md --at ~1                            # changes since the previous checkpoint
  treehold diff /memories/notes.md@v1 /memories/notes.md@v2
  treehold diff /memories/notes.md@2h                       # changes of the last two hours")]
pub(crate) struct Diff {
    /// Old file, or `PATH@MOMENT`
    a: String,
    /// New file, or `PATH@MOMENT` [default if A is of the past: A as of now]
    b: Option<String>,
    /// Print N lines of context around each difference
    #[arg(short = 'U', long, value_name = "N", default_value_t = 3)]
    unified: usize,
    #[command(flatten)]
    when: When,
}

/// A diff as JSON.
#[derive(Debug, Serialize)]
struct Difference<'a> {
    a: &'a VfsPath,
    b: &'a VfsPath,
    same: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    diff: Option<String>,
}

impl Diff {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let tree = context.tree().await?;
        let (a, of_a) = named(context, &tree, &self.a).await?;
        let (b, of_b) = match &self.b {
            Some(b) => named(context, &tree, b).await?,
            None if of_a.is_some() || self.when.at.is_some() => (a.clone(), None),
            None => return Err(no_second(context, &a)?.into()),
        };
        let then = match of_a {
            Some(of_a) => of_a,
            None => context.tree_at(&self.when).await?,
        };
        let now = of_b.unwrap_or(tree);
        let (before, after) = (then.read_bytes(a.as_str()).await?, now.read_bytes(b.as_str()).await?);
        let same = before == after;
        let binary = is_binary(&before) || is_binary(&after);
        let diff = (!same && !binary).then(|| unified(&before, &after, a.as_str(), b.as_str(), self.unified));
        let out = &mut context.out;
        if !out.is_text() {
            let diff = diff.map(|diff| String::from_utf8_lossy(&diff).into_owned());
            out.json(&Difference { a: &a, b: &b, same, diff })?;
        } else if let Some(diff) = diff {
            print(out, &diff)?;
        } else if !same {
            out.line(format_args!("binary files {a} and {b} differ"))?;
        }
        Ok(Outcome::found(same))
    }
}

/// Returns the error for one file without a version of it to compare with. It suggests only what the path's mount can do.
fn no_second(context: &mut Context, path: &VfsPath) -> Result<Error, Error> {
    let config = context.config()?;
    let mount = config.route_of(path)?.map(|(_, route)| route);
    let is_overlay = mount.as_ref().is_some_and(|mount| config.overlays().any(|(route, _)| route == mount.as_str()));
    let has_past =
        !mount.is_some_and(|mount| context.workspace().is_ok_and(|workspace| workspace.mounts_without_past().any(|one| *one == *mount)));
    let what = match (is_overlay, has_past) {
        (true, _) => format!("name one, or write `treehold overlay diff {path} --patch` for its changes in the overlay"),
        (false, true) => format!("name one, or a version of this one: `{path}@~1`, or `--at ~1`"),
        (false, false) => "name one; no versions of this one are kept".to_owned(),
    };
    Ok(Error::invalid_argument(format!("no second file is given; {what}")))
}

/// Parses `PATH` or `PATH@MOMENT`. Returns the path, and the tree of that moment if one is named. A path that exists as written names no
/// moment.
///
/// # Errors
/// [`NotFound`](ErrorKind::NotFound) for the whole text if the part after the last `@` names no moment and the part before it no file.
pub(crate) async fn named(
    context: &mut Context,
    tree: &Arc<dyn Backend>,
    text: &str,
) -> Result<(VfsPathBuf, Option<Arc<dyn Backend>>), Error> {
    let (path, moment) = match split(&**tree, text).await? {
        (path, Some(moment)) => (path, moment),
        (path, None) => return Ok((path, None)),
    };
    match context.tree_as_of(moment).await {
        Err(error) if error.kind() == ErrorKind::NotFound && !tree.exists(path.as_str()).await? => {
            Err(VfsPathBuf::parse(text).map_or(error, |whole| Error::not_found(&whole)))
        }
        then => Ok((path, Some(then?))),
    }
}

/// Splits `PATH` or `PATH@MOMENT`. A path that exists as written names no moment.
pub(crate) async fn split<'t>(tree: &dyn Backend, text: &'t str) -> Result<(VfsPathBuf, Option<&'t str>), Error> {
    let Some((path, moment)) = text.rsplit_once('@').filter(|(_, moment)| !moment.is_empty() && !moment.contains('/')) else {
        return Ok((VfsPathBuf::parse(text)?, None));
    };
    match VfsPathBuf::parse(text) {
        Ok(whole) if tree.exists(whole.as_str()).await? => Ok((whole, None)),
        _ => Ok((VfsPathBuf::parse(path)?, Some(moment))),
    }
}

/// Prints a unified diff in colour.
pub(crate) fn print(out: &mut Output, diff: &[u8]) -> Result<(), Failure> {
    for line in diff.split_inclusive(|byte| *byte == b'\n') {
        match line.first() {
            Some(b'+') => out.painted_content(Style::Added, line)?,
            Some(b'-') => out.painted_content(Style::Removed, line)?,
            Some(b'@') => out.painted_content(Style::Faint, line)?,
            _ => out.content(line)?,
        }
    }
    Ok(())
}

/// Compares two texts line by line. `a` and `b` are the names in the header.
pub(crate) fn unified(before: &[u8], after: &[u8], a: &str, b: &str, context: usize) -> Vec<u8> {
    let diff = TextDiff::from_lines(before, after);
    let mut text = Vec::new();
    diff.unified_diff().context_radius(context).header(a, b).to_writer(&mut text).expect("writing to a vector cannot fail");
    text
}
