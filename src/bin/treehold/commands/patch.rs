//! `patch`: changes several files with one patch, like the tool `apply_patch`.

use crate::context::{self, Context};
use crate::exit::{Failure, Outcome, error_of};
use clap::Args;
use treehold::tools::ApplyPatch;
use treehold::{Error, ErrorKind};

/// Apply a patch in the format of `apply_patch` (not a unified diff), all or none
///
/// It may change several files, and runs from `*** Begin Patch` to `*** End Patch`. It is read from FILE of the
/// host, or from standard input.
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
    /// File of the host; `-` or none reads standard input
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
