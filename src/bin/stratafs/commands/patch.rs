//! `patch`: changes to several files by one patch, as the tool `apply_patch` makes them.

use crate::context::{self, Context};
use crate::exit::{Failure, Outcome, error_of};
use clap::Args;
use stratafs::tools::ApplyPatch;
use stratafs::{Error, ErrorKind};

/// Apply a patch to several files, all or none
///
/// The patch is in the format of the tool `apply_patch`, from `*** Begin Patch` to `*** End Patch`. It is read from FILE of the
/// host, or from standard input.
#[derive(Debug, Args)]
#[command(after_long_help = "Example:
  stratafs patch <<'EOF'
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
        let session = context.session().await?;
        let output = session.call(ApplyPatch::new(patch).into()).await;
        let saved = context.save().await;
        if let Some(record) = &output.error {
            return Err(error_of(record).into());
        }
        saved?;
        match context.out.is_text() {
            true => context.out.line(output.text)?,
            false => context.out.json(&output.data)?,
        }
        Ok(Outcome::Done)
    }
}
