//! `diff`: compares two files as a unified diff.

use crate::cli::args::When;
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::cli::output::{Output, Style};
use crate::file::is_binary;
use crate::{BackendExt, VfsPath, VfsPathBuf};
use clap::Args;
use serde::Serialize;
use similar::TextDiff;

/// Compare two files
///
/// Prints a unified diff from A to B, which git and patch(1) can apply. With `--at`, A is read as of that checkpoint and B as of
/// now. Exits with 0 if the files are equal and 1 if they differ.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold diff /workspace/plan.md /memories/plan.md
  treehold diff /plan.md --at ~1    # changes since the previous checkpoint")]
pub(crate) struct Diff {
    /// Old file
    a: String,
    /// New file [default with `--at`: A]
    #[arg(required_unless_present = "at")]
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
        let (a, b) = (VfsPathBuf::parse(&self.a)?, VfsPathBuf::parse(self.b.as_ref().unwrap_or(&self.a))?);
        let (then, tree) = (context.tree_at(&self.when).await?, context.tree().await?);
        let (before, after) = (then.read_bytes(a.as_str()).await?, tree.read_bytes(b.as_str()).await?);
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
