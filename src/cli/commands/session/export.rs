//! `session export`: sessions as JSON, or as a directory of the host.

use super::{Owned, no_session};
use crate::Error;
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome, message};
use crate::cli::output::{as_text, counted};
use crate::error::ErrorRecord;
use crate::sessions::layout::{ExportReport, SessionFiles, write_directory, write_sessions};
use crate::sessions::{InspectorDataSource, SessionRef};
use clap::Args;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Export sessions as JSON or as the directory of an agent host
///
/// A session as JSON is one object, `files`, that maps the paths of the host's layout to their contents. With `--to`, the files are
/// written to a directory, part by part: all sessions of the user and the notes about the user, or only the named sessions. A
/// session that cannot be written is reported, and the others are written. Other files that an agent created beneath /memo/session
/// are not part of the layout and are left out.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold session export monday > monday.json
  treehold session export --to ~/.agentrail
  treehold session export monday tuesday --to backup")]
pub(crate) struct Export {
    /// Sessions; without `--to` exactly one
    #[arg(value_name = "ID", required_unless_present = "to")]
    ids: Vec<String>,
    /// Directory to write to; files that it has already are replaced or kept
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
    /// Export the sessions of all tenants and users
    #[arg(long, requires = "to", conflicts_with = "ids")]
    all_users: bool,
}

impl Export {
    pub(super) async fn run(self, context: &mut Context, owned: &Owned) -> Result<Outcome, Failure> {
        let Some(to) = &self.to else { return self.print(context, owned).await };
        let progress = context.progress("exporting");
        progress.wait();
        let report = match (&self.ids[..], self.all_users) {
            ([], true) => all_users(context, to).await?,
            ([], false) => write_directory(&owned.sessions, to, &owned.tenant, &owned.user).await?,
            (ids, _) => some(owned, ids, to).await?,
        };
        drop(progress);
        tell(context, &report)
    }

    async fn print(&self, context: &mut Context, owned: &Owned) -> Result<Outcome, Failure> {
        let [id] = &self.ids[..] else {
            return Err(Error::invalid_argument("several sessions need a directory; name one with `--to`").into());
        };
        let session = SessionRef::new(owned.tenant.as_str(), id.as_str())?;
        let files = owned.sessions.export_session(&session).await?.ok_or_else(|| no_session(id))?;
        context.out.json(&json!({"files": shown(&files)}))?;
        Ok(Outcome::Done)
    }
}

/// Returns the files as JSON: texts as they are, other contents as base64.
fn shown(files: &SessionFiles) -> Map<String, Value> {
    let shown = files.iter().map(|(path, content)| {
        let value = match as_text(content) {
            (text, "utf-8") => text.into(),
            (value, encoding) => json!({"value": value, "encoding": encoding}),
        };
        (path.clone(), value)
    });
    shown.collect()
}

/// Prints the report. The exit code is that of the first failure.
fn tell(context: &mut Context, report: &ExportReport) -> Result<Outcome, Failure> {
    let (out, count) = (&mut context.out, report.sessions.len());
    if out.is_text() {
        out.line(format_args!("{} exported", counted(count, "session", "sessions")))?;
        for (directory, error) in &report.failures {
            out.line(format_args!("failed {directory}: {}", message(error)))?;
        }
    } else {
        let failures: Vec<Value> =
            report.failures.iter().map(|(path, error)| json!({"path": path, "error": ErrorRecord::from(error)})).collect();
        out.json(&json!({"sessions": count, "failures": failures}))?;
    }
    Ok(match report.failures.first() {
        Some((_, error)) => Outcome::Failed(error.kind()),
        None => Outcome::found(count > 0),
    })
}

/// Exports the named sessions, all of which must exist.
async fn some(owned: &Owned, ids: &[String], to: &Path) -> Result<ExportReport, Error> {
    for id in ids {
        owned.describe(id).await?;
    }
    let ids: BTreeSet<&String> = ids.iter().collect();
    let among: Vec<SessionRef> =
        ids.into_iter().map(|id| SessionRef::new(owned.tenant.as_str(), id.as_str())).collect::<Result<_, Error>>()?;
    write_sessions(&owned.sessions, to, &among).await
}

/// Exports the sessions of all users that have any.
async fn all_users(context: &Context, to: &Path) -> Result<ExportReport, Error> {
    let sessions = context.sessions()?;
    let found = sessions.list_sessions().await?;
    let users: BTreeSet<(String, String)> = found.into_iter().filter_map(|session| Some((session.tenant_id, session.user_id?))).collect();
    let mut report = ExportReport::default();
    for (tenant, user) in users {
        report.extend(write_directory(&sessions, to, &tenant, &user).await?);
    }
    Ok(report)
}
