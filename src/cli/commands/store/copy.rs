//! `store copy`: copies everything from one store to another.

use super::{Included, open_any, tell_faults};
use crate::ErrorKind;
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::cli::output::counted;
use crate::store::{CopyOptions, copy};
use clap::Args;

/// Copy a whole store to another, of any engine
///
/// Keeps versions, times and expiry. The target must be empty or hold part of the same copy; run an interrupted copy again to continue it.
/// Changes made in the source meanwhile are copied too, and at the end every row of both sides is compared. Tokens, and answers kept for
/// repeated requests, are left out unless `--include` names them.
#[derive(Debug, Args)]
pub(crate) struct Copy {
    /// Store to copy: a name of the configuration, or a URL such as `sqlite:FILE`, `sled:DIRECTORY`, `postgres://…`
    from: String,
    /// Store to copy to: a name of the configuration, or a URL
    to: String,
    /// Copy over existing rows: replace rows that both stores have, keep rows that only TO has
    #[arg(long)]
    onto: bool,
    #[command(flatten)]
    included: Included,
}

impl Copy {
    pub(super) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let source = open_any(context, &self.from, false).await?;
        let target = open_any(context, &self.to, true).await?;
        let progress = context.progress("copying");
        let options = CopyOptions::new().with_onto(self.onto).with_source_id(source_id(&self.from));
        let options = self.included.all().fold(options, CopyOptions::with_include);
        let report = copy(&*source, &*target, &options, |at| {
            progress.share(at.rows, at.rows_total, format_args!("{}: {} rows, {} bytes", at.stage, at.rows, at.bytes));
        })
        .await?;
        drop(progress);
        let is_compared = report.settled || report.rows > 0;
        if !is_compared && report.faults_count == 0 {
            context.out.notice(format_args!(
                "`{source}` was written to during each of {}; stop its writers and run the command again to continue",
                counted(report.passes as usize, "pass", "passes")
            ));
        }
        if !context.out.is_text() {
            context.out.json(&report)?;
        } else if is_compared {
            let out = &mut context.out;
            out.line(format_args!("namespaces  {}", report.namespaces))?;
            out.line(format_args!("rows        {}", report.rows))?;
            out.line(format_args!("bytes       {}", report.value_bytes))?;
            if self.onto {
                out.line(format_args!("left        {}", report.left))?;
            }
            if let Some(digest) = &report.digest {
                out.line(format_args!("digest      {digest}"))?;
            }
        }
        if report.faults_count > 0 {
            let outcome = tell_faults(context, &report.faults, report.faults_count);
            context.out.notice("the copy is not whole; repair these parts or remove them, and run the command again to continue");
            return Ok(outcome);
        }
        Ok(if report.settled { Outcome::Done } else { Outcome::Failed(ErrorKind::Conflict) })
    }
}

/// Returns an id that distinguishes stores which look alike: the name or URL without credentials, since they may change between two runs.
fn source_id(name: &str) -> String {
    let Some((scheme, rest)) = name.split_once(':') else { return format!("name {name}") };
    let Some(server) = rest.strip_prefix("//") else {
        let path = std::path::absolute(rest).map_or_else(|_| rest.to_owned(), |path| path.to_string_lossy().into_owned());
        return format!("{scheme}:{path}");
    };
    let (server, query) = server.split_once('?').unwrap_or((server, ""));
    // The user who reads is not part of the source.
    let place = server.rsplit_once('@').map_or(server, |(_, place)| place);
    let parameters: Vec<_> = query.split('&').filter(|pair| !pair.starts_with("password=") && !pair.starts_with("user=")).collect();
    format!("{scheme}://{place}?{}", parameters.join("&"))
}

#[cfg(test)]
mod tests {
    use super::source_id;

    #[test]
    fn source_id_depends_on_prefix_and_not_on_password() {
        let id = source_id("redis://ada:one@host/0?prefix=a");
        assert_eq!(id, source_id("redis://ada:two@host/0?prefix=a"));
        assert_ne!(id, source_id("redis://ada:one@host/0?prefix=b"));
        assert_eq!(source_id("postgres://db/x?password=one&schema=s"), source_id("postgres://db/x?schema=s"));
        assert_ne!(source_id("sqlite:a/x.db"), source_id("sqlite:b/x.db"));
    }
}
