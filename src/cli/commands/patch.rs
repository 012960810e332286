//! `patch`: changes several files with one patch, like the tool `apply_patch`.

use crate::cli::context::{self, Context};
use crate::cli::exit::{Failure, Outcome, error_of};
use crate::tools::ApplyPatch;
use crate::{Error, ErrorKind};
use clap::Args;

/// Apply a patch in `apply_patch` format, all or nothing
///
/// The patch starts with `*** Begin Patch`, ends with `*** End Patch`, and may change several files. Unified diffs are not
/// supported.
#[derive(Debug, Args)]
#[command(after_long_help = "Example:
  treehold patch <<'EOF'
  *** Begin Patch
  *** Update File: /memories/todo.md
  @@
  -buy milk
  +buy oat milk
  *** End Patch
  EOF")]
pub(crate) struct Patch {
    /// Patch file on the host, or `-` for standard input [default: -]
    file: Option<String>,
}

impl Patch {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let patch = match self.file.as_deref() {
            Some(file) if file != "-" => std::fs::read(file).map_err(|error| context::unread(file, error))?,
            _ => context::content(None).await?,
        };
        let patch = String::from_utf8(patch)
            .map_err(|error| Error::new(ErrorKind::InvalidArgument, "the patch is not UTF-8 text").with_source(error))?;
        if let Some(error) = of_unified(&patch) {
            return Err(error.into());
        }
        let output = context
            .lasting(async |context| {
                let output = context.session().await?.call(ApplyPatch::new(patch.clone()).into()).await;
                match &output.error {
                    Some(record) => Err(error_of(record).into()),
                    None => Ok(output),
                }
            })
            .await?;
        match context.out.is_text() {
            true => context.out.text(format_args!("{}\n", output.text))?,
            false => context.out.json(&output.data)?,
        }
        Ok(Outcome::Done)
    }
}

/// Returns the error for a unified diff, as `git diff` and `diff -u` print it.
fn of_unified(patch: &str) -> Option<Error> {
    let starts = |line: &&str| ["diff --git ", "--- ", "Index: "].iter().any(|start| line.starts_with(start));
    let is_unified = patch.lines().find(|line| !line.trim().is_empty()).as_ref().is_some_and(starts)
        && patch.lines().any(|line| line.starts_with("+++ ") || line.starts_with("@@ -") || line.starts_with("GIT binary patch"));
    let message = "this is a unified diff, and the command takes the `apply_patch` format; apply it with patch(1) or `git apply` to a \
        directory that `treehold export` wrote, bring that back with `treehold import --force`, or change one file with `treehold edit`";
    is_unified.then(|| Error::invalid_argument(message))
}
