//! `session import`: sessions from JSON, or from a directory of the host.

use super::Owned;
use crate::cli::context::{Context, content, unread};
use crate::cli::exit::{Failure, Outcome, message};
use crate::cli::output::counted;
use crate::error::ErrorRecord;
use crate::sessions::SessionRef;
use crate::sessions::layout::{DirectoryReport, ImportReport, SessionFiles, owner_of, read_directory, read_directory_of};
use crate::{Error, ErrorKind};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use clap::Args;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Import sessions from JSON or from the directory of an agent host
///
/// Takes what `session export` prints or writes. Lines that cannot be read are skipped and reported, and the exit code is 6. A
/// session that exists already is not changed, and the exit code is 4. Sessions of other users are left out, except with
/// `--all-users`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold session import monday.json
  treehold session import --from ~/.agentrail --all-users")]
pub(crate) struct Import {
    /// JSON file; `-` reads standard input [default: -]
    #[arg(value_name = "FILE", conflicts_with = "from")]
    file: Option<String>,
    /// Directory of an agent host, which contains `tenants`
    #[arg(long, value_name = "DIR")]
    from: Option<PathBuf>,
    /// Import the sessions of all tenants and users
    #[arg(long, requires = "from")]
    all_users: bool,
}

/// A session as JSON.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    files: BTreeMap<String, Content>,
}

/// The content of a file as JSON.
#[derive(Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Encoded { value: String, encoding: String },
}

impl Import {
    pub(super) async fn run(self, context: &mut Context, owned: &Owned) -> Result<Outcome, Failure> {
        let progress = context.progress("importing");
        progress.wait();
        let report = match &self.from {
            Some(from) if !from.is_dir() => {
                let message = format!("`{}` is not a directory", from.display());
                return Err(Error::new(ErrorKind::NotFound, message).into());
            }
            Some(from) if self.all_users => read_directory(&context.sessions()?, from).await?,
            Some(from) => read_directory_of(&owned.sessions, from, &owned.tenant, &owned.user).await?,
            None => {
                let mut report = DirectoryReport::default();
                report.sessions.push(self.one(owned).await?);
                report
            }
        };
        drop(progress);
        tell(context, &report)
    }

    /// Imports one session from JSON.
    async fn one(&self, owned: &Owned) -> Result<(SessionRef, ImportReport), Error> {
        let text = match self.file.as_deref().filter(|file| *file != "-") {
            Some(file) => std::fs::read(file).map_err(|error| unread(file, error))?,
            None => content(None).await?,
        };
        let files = parsed(&text)?;
        let (session, user) = owner_of(&files)?;
        if (session.tenant(), user.as_str()) != (owned.tenant.as_str(), owned.user.as_str()) {
            let message = format!(
                "the session belongs to the user `{user}` of the tenant `{}`; name them with `--user` and `--tenant`",
                session.tenant()
            );
            return Err(Error::new(ErrorKind::PermissionDenied, message));
        }
        let report = owned.sessions.import_session(&session, &files).await?;
        Ok((session, report))
    }
}

fn parsed(text: &[u8]) -> Result<SessionFiles, Error> {
    let document: Document = serde_json::from_slice(text).map_err(|error| {
        let message = format!("this is not a session as JSON: {error}; `treehold session export ID` prints one");
        Error::invalid_argument(message).with_source(error)
    })?;
    let mut files = SessionFiles::new();
    for (path, content) in document.files {
        let bytes = match content {
            Content::Text(text) => text.into_bytes(),
            Content::Encoded { value, encoding } if encoding == "base64" => BASE64
                .decode(value)
                .map_err(|error| Error::invalid_argument(format!("the content of `{path}` is not base64: {error}")).with_source(error))?,
            Content::Encoded { encoding, .. } => {
                return Err(Error::invalid_argument(format!("the encoding `{encoding}` of `{path}` is unknown; use `base64`")));
            }
        };
        files.insert(path, bytes.into());
    }
    Ok(files)
}

/// Prints the report. The exit code is that of the first failure.
fn tell(context: &mut Context, report: &DirectoryReport) -> Result<Outcome, Failure> {
    let out = &mut context.out;
    if out.is_text() {
        for (session, imported) in &report.sessions {
            let (messages, events) = (counted(imported.messages as usize, "message", "messages"), imported.events);
            out.line(format_args!("{}  {messages}, {}", session.session(), counted(events as usize, "event", "events")))?;
            for damaged in &imported.damaged {
                let line = damaged.line.map_or_else(String::new, |line| format!(":{line}"));
                out.line(format_args!("  skipped {}{line}: {}", damaged.file, damaged.reason))?;
            }
        }
        for (path, error) in &report.failures {
            out.line(format_args!("failed {path}: {}", message(error)))?;
        }
    } else {
        let sessions: Vec<Value> = report
            .sessions
            .iter()
            .map(|(session, imported)| json!({"tenant": session.tenant(), "session": session.session(), "report": imported}))
            .collect();
        let failures: Vec<Value> =
            report.failures.iter().map(|(path, error)| json!({"path": path, "error": ErrorRecord::from(error)})).collect();
        out.json(&json!({"sessions": sessions, "failures": failures, "left_out": report.left_out}))?;
    }
    if report.left_out > 0 {
        out.notice(format_args!("sessions of other users left out: {}; add `--all-users` to import them too", report.left_out));
    }
    let is_damaged = report.sessions.iter().any(|(_, imported)| !imported.damaged.is_empty());
    Ok(match report.failures.first() {
        Some((_, error)) => Outcome::Failed(error.kind()),
        None if is_damaged => Outcome::Failed(ErrorKind::Corrupt),
        None => Outcome::found(!report.sessions.is_empty()),
    })
}
