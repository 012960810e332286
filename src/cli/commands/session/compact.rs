//! `session compact`: replaces the oldest messages of a window with their summary.

use super::messages::print_all;
use super::{Owned, no_session};
use crate::cli::context::{Context, content, unread};
use crate::cli::exit::{Failure, Outcome};
use crate::sessions::{CompactOptions, CompactionPlan, Message, SUMMARY_BYTES_MAX, SessionWindow};
use crate::{Error, ErrorKind};
use clap::Args;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read, Write};
use std::process::{Command, Stdio};

/// Replace the oldest messages of a session's window with their summary
///
/// The messages are kept in an archive. The summary comes from a file, or from a command that receives the messages as JSON lines
/// on standard input and prints the summary. Messages that are appended meanwhile stay in the window. If another compaction was
/// faster, nothing is changed and the exit code is 4.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold session compact monday -- ./summarize.sh
  treehold session compact monday --plan --json > plan.json
  treehold session compact monday --of plan.json --summary summary.txt")]
pub(crate) struct Compact {
    /// Session
    #[arg(value_name = "ID")]
    id: String,
    /// Print the messages that would be compacted, and change nothing
    #[arg(long, conflicts_with_all = ["summary", "command", "of"])]
    plan: bool,
    /// File with the summary; `-` reads standard input
    #[arg(long, value_name = "FILE", conflicts_with = "command")]
    summary: Option<String>,
    /// Plan that the summary was made of, as `--plan --json` printed it [default: plan now]
    #[arg(long, value_name = "FILE", requires = "summary", conflicts_with_all = ["fraction", "trigger"])]
    of: Option<String>,
    /// Share of the messages to compact, from 0 to 1
    #[arg(long, value_name = "SHARE", default_value = "0.5")]
    fraction: f64,
    /// Compact only if the window has at least this many tokens, by estimate
    #[arg(long, value_name = "TOKENS", default_value = "0")]
    trigger: u64,
    /// Program that makes the summary, with its arguments
    #[arg(last = true, value_name = "COMMAND", required_unless_present_any = ["plan", "summary"])]
    command: Vec<String>,
}

/// A plan as JSON.
#[derive(Serialize)]
struct Plan<'a> {
    window: &'a SessionWindow,
    count: usize,
    tokens: u64,
    messages: &'a [Message],
}

/// What an earlier plan compacts.
#[derive(Deserialize)]
struct Planned {
    window: SessionWindow,
    count: u64,
}

impl Compact {
    pub(super) async fn run(self, context: &mut Context, owned: &Owned) -> Result<Outcome, Failure> {
        owned.describe(&self.id).await?;
        let (planned, messages) = match &self.of {
            Some(file) => (read_plan(file)?, Vec::new()),
            None => {
                let options = CompactOptions::new().with_compact_fraction(self.fraction).with_trigger_tokens(self.trigger);
                let Some(plan) = owned.sessions.plan_compaction(&owned.tenant, &self.id, &options).await? else {
                    context.out.notice("nothing to compact: the window is too short");
                    return Ok(Outcome::Nothing);
                };
                if self.plan {
                    return print_plan(context, &plan);
                }
                let count = plan.messages.len() as u64;
                (Planned { window: plan.window, count }, plan.messages)
            }
        };
        let summary = match &self.summary {
            Some(file) => read_summary(file).await?,
            None => summarize(self.command, messages).await?,
        };
        if summary.trim().is_empty() {
            return Err(Error::invalid_argument("the summary is empty; nothing was compacted").into());
        }
        let done = owned.sessions.apply_compaction(&owned.tenant, &self.id, &planned.window, planned.count, summary.trim_end(), None);
        let done = done.await.map_err(|error| if error.kind() == ErrorKind::NotFound { no_session(&self.id) } else { error })?;
        match context.out.is_text() {
            true => context.out.line(format_args!(
                "{} messages are in archive {}; the window has about {} tokens instead of {}",
                done.messages, done.archive_id, done.tokens_after, done.tokens_before
            ))?,
            false => context.out.json(&done)?,
        }
        Ok(Outcome::Done)
    }
}

fn print_plan(context: &mut Context, plan: &CompactionPlan) -> Result<Outcome, Failure> {
    let CompactionPlan { window, messages, tokens, .. } = plan;
    if !context.out.is_text() {
        context.out.json(&Plan { window, count: messages.len(), tokens: *tokens, messages })?;
        return Ok(Outcome::Done);
    }
    print_all(&mut context.out, 0, messages)?;
    context.out.notice(format_args!("{} messages, about {tokens} of {} tokens, would be compacted", messages.len(), window.tokens));
    Ok(Outcome::Done)
}

fn read_plan(file: &str) -> Result<Planned, Error> {
    let text = std::fs::read(file).map_err(|error| unread(file, error))?;
    serde_json::from_slice(&text).map_err(|error| {
        let message = format!("`{file}` is not a plan of a compaction: {error}; `treehold session compact ID --plan --json` prints one");
        Error::invalid_argument(message).with_source(error)
    })
}

async fn read_summary(file: &str) -> Result<String, Error> {
    let bytes = match file {
        "-" => content(None).await?,
        file => {
            let mut bytes = Vec::new();
            let read = File::open(file).and_then(|opened| opened.take(SUMMARY_BYTES_MAX as u64 + 1).read_to_end(&mut bytes));
            read.map_err(|error| unread(file, error))?;
            bytes
        }
    };
    text_of(bytes)
}

fn text_of(bytes: Vec<u8>) -> Result<String, Error> {
    if bytes.len() > SUMMARY_BYTES_MAX {
        return Err(Error::new(ErrorKind::TooLarge, format!("the summary has over {SUMMARY_BYTES_MAX} bytes; make it shorter")));
    }
    String::from_utf8(bytes).map_err(|error| Error::invalid_argument("the summary is not UTF-8").with_source(error))
}

/// Runs a program that reads the messages and prints their summary, on a separate thread, so that it does not delay signals.
async fn summarize(command: Vec<String>, messages: Vec<Message>) -> Result<String, Error> {
    let run = tokio::task::spawn_blocking(move || run_program(&command, &messages));
    let cut_off = |error| Error::new(ErrorKind::Internal, "the output of the command cannot be read").with_source(error);
    text_of(run.await.map_err(cut_off)??)
}

fn run_program(command: &[String], messages: &[Message]) -> Result<Vec<u8>, Error> {
    let (program, arguments) = command.split_first().ok_or_else(|| Error::invalid_argument("no command is given after `--`"))?;
    let failed = |error: io::Error| {
        Error::new(ErrorKind::Unavailable, format!("the command `{program}` cannot be run: {error}; nothing was compacted"))
            .with_source(error)
    };
    let mut child = Command::new(program).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)?;
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let mut output = Vec::new();
    let read = std::thread::scope(|scope| {
        scope.spawn(move || stdin.map(|stdin| write_lines(stdin, messages)));
        let read = stdout.map_or(Ok(0), |stdout| stdout.take(SUMMARY_BYTES_MAX as u64 + 1).read_to_end(&mut output));
        if read.is_err() || output.len() > SUMMARY_BYTES_MAX {
            // It may have ended already.
            let _ = child.kill();
        }
        read
    });
    let status = child.wait().and_then(|status| read.map(|_| status)).map_err(failed)?;
    if !status.success() && output.len() <= SUMMARY_BYTES_MAX {
        let message = format!("the command `{program}` failed with {status}; nothing was compacted");
        return Err(Error::new(ErrorKind::Unavailable, message));
    }
    Ok(output)
}

/// Writes messages as lines. A program that needs no more of them closes its input.
fn write_lines(mut stdin: impl Write, messages: &[Message]) -> io::Result<()> {
    for message in messages {
        writeln!(stdin, "{}", message.json().on_one_line())?;
    }
    stdin.flush()
}
