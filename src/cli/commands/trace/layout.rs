//! `trace export` and `trace import`: traces as the directories of the original.

use super::Reached;
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome, message};
use crate::cli::output::counted;
use crate::error::ErrorRecord;
use crate::traces::TraceId;
use crate::traces::layout::{ExportOptions, ImportOptions, export_directory, import_directory};
use crate::{Error, ErrorKind};
use clap::Args;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Write traces to a directory `.trace`
///
/// Writes `{id}/meta.json`, `goal.json`, `events.jsonl` and `messages/`: all traces of the user, or only the named ones. What was imported
/// and has not changed is written with the same bytes. A trace that cannot be written is reported, and the others are written.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold trace export --to .trace
  treehold trace export abc-123 --to backup")]
pub(crate) struct Export {
    /// Traces [default: all of the user]
    #[arg(value_name = "ID", value_parser = local_id)]
    ids: Vec<TraceId>,
    /// Directory to write to; files that it has already are replaced or kept
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
}

/// Take traces from a directory `.trace`
///
/// Files that cannot be read are kept and reported, and the exit code is 6. A trace that exists already with other files is not changed, and
/// the exit code is 4. Traces of other users are left out, except with `--any-user`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold trace import --from .trace
  treehold trace import abc-123 --from .trace --any-user")]
pub(crate) struct Import {
    /// Traces [default: all in the directory]
    #[arg(value_name = "ID", value_parser = local_id)]
    ids: Vec<TraceId>,
    /// Directory with a directory for each trace
    #[arg(long, value_name = "DIR")]
    from: PathBuf,
    /// Import traces of other users too, as the user's own
    #[arg(long)]
    any_user: bool,
}

/// Parses the id of a trace that lives here.
fn local_id(text: &str) -> Result<TraceId, Error> {
    TraceId::new(text)
}

impl Export {
    pub(super) async fn run(self, context: &mut Context, reached: &Reached) -> Result<Outcome, Failure> {
        let mut options = ExportOptions::new();
        if !self.ids.is_empty() {
            options = options.with_among(self.ids);
        }
        let progress = context.progress("exporting");
        progress.wait();
        let report = export_directory(&reached.local()?, &self.to, &options).await?;
        drop(progress);
        let out = &mut context.out;
        if out.is_text() {
            let (count, files) = (report.traces.len(), report.traces.iter().map(|trace| trace.written).sum::<u64>());
            out.line(format_args!("{} exported, {} written", counted(count, "trace", "traces"), counted(files as usize, "file", "files")))?;
            for (id, error) in &report.failures {
                out.line(format_args!("failed {id}: {}", message(error)))?;
            }
        } else {
            let traces: Vec<Value> = report.traces.iter().map(|trace| json!({"id": trace.id.as_str(), "written": trace.written})).collect();
            let failures = report.failures.iter().map(|(id, error)| (id.to_string(), error));
            out.json(&json!({"traces": traces, "failures": failed(failures)}))?;
        }
        Ok(match report.failures.first() {
            Some((_, error)) => Outcome::Failed(error.kind()),
            None => Outcome::found(!report.traces.is_empty()),
        })
    }
}

impl Import {
    pub(super) async fn run(self, context: &mut Context, reached: &Reached) -> Result<Outcome, Failure> {
        let mut options = ImportOptions::new().with_any_user(self.any_user);
        if !self.ids.is_empty() {
            options = options.with_among(self.ids);
        }
        let progress = context.progress("importing");
        progress.wait();
        let report = import_directory(&reached.local()?, &self.from, &options).await?;
        drop(progress);
        let out = &mut context.out;
        if out.is_text() {
            for trace in &report.traces {
                let (messages, events) = (counted(trace.messages as usize, "message", "messages"), trace.events as usize);
                let repeated = if trace.repeated { ", as before" } else { "" };
                out.line(format_args!("{}  {messages}, {}{repeated}", trace.id, counted(events, "event", "events")))?;
                for damage in &trace.damages {
                    let line = damage.line.map_or_else(String::new, |line| format!(":{line}"));
                    out.line(format_args!("  damaged {}{line}: {}", damage.path, damage.reason))?;
                }
            }
            for (path, error) in &report.failures {
                out.line(format_args!("failed {path}: {}", message(error)))?;
            }
        } else {
            let failures = report.failures.iter().map(|(path, error)| (path.clone(), error));
            out.json(&json!({"traces": report.traces, "failures": failed(failures), "left_out": report.left_out}))?;
        }
        if report.left_out > 0 {
            out.notice(format_args!("traces of other users left out: {}; add `--any-user` to import them too", report.left_out));
        }
        Ok(match report.failures.first() {
            Some((_, error)) => Outcome::Failed(error.kind()),
            None if report.traces.iter().any(|trace| trace.damages_count > 0) => Outcome::Failed(ErrorKind::Corrupt),
            None => Outcome::found(!report.traces.is_empty()),
        })
    }
}

/// Returns failures as JSON.
fn failed<'a>(failures: impl Iterator<Item = (String, &'a Error)>) -> Vec<Value> {
    failures.map(|(path, error)| json!({"path": path, "error": ErrorRecord::from(error)})).collect()
}
