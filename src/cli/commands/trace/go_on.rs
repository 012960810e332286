//! `trace continue`: a message for an agent, here or elsewhere.

use super::Reached;
use crate::Error;
#[cfg(feature = "remote")]
use crate::ErrorKind;
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::clock::parse_age;
use crate::traces::{AddOptions, NewMessage, TraceAddress, TraceStatus};
use clap::Args;
use serde::Serialize;
use std::time::Duration;
use uuid::Uuid;

/// Append a message to a trace, and run its agent where the trace lives
///
/// The trace continues at its head, or after another message, which rewinds it. If its owner is another server with a runner of agents,
/// that one runs; otherwise the message is only appended.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold trace continue @laptop/abc-123 'now compare the two'
  treehold trace continue @laptop/abc-123 'summarise' --wait 10m
  treehold trace continue abc-123 'try another way' --after 4")]
pub(crate) struct Continue {
    /// Trace
    #[arg(value_name = "ID")]
    id: TraceAddress,
    /// Message
    #[arg(value_name = "TEXT")]
    text: String,
    /// Continue after this sequence: rewind the trace; 0 begins a new path
    #[arg(long, value_name = "SEQUENCE")]
    after: Option<u64>,
    /// Role of the message
    #[arg(long, value_name = "ROLE", default_value = "user")]
    role: String,
    /// Append the message, and run no agent
    #[arg(long)]
    no_run: bool,
    /// Wait for the end of the run, for at most this long, such as `90s` or `10m`, and print its summary
    #[arg(long, value_name = "TIME", value_parser = parse_age, conflicts_with = "no_run")]
    wait: Option<Duration>,
}

/// What a command did.
#[derive(Serialize)]
struct Continued {
    trace_id: TraceAddress,
    status: TraceStatus,
    /// The sequence of the message, if no agent runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    sequence: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    summary: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl Continue {
    pub(super) async fn run(self, context: &mut Context, reached: &Reached) -> Result<Outcome, Failure> {
        let trace = reached.find(&self.id).await?;
        if let Some(outcome) = self.run_elsewhere(context, reached).await? {
            return Ok(outcome);
        }
        if self.wait.is_some() {
            let message =
                format!("no agent runs on the trace `{}`: its owner has no runner; leave out `--wait` to append the message", self.id);
            return Err(Error::unsupported(message).into());
        }
        let options = AddOptions::new().with_idempotency_key(Uuid::new_v4().to_string());
        let added = reached.traces.add_messages(&self.id, vec![self.message()], &options).await?;
        let sequence = added.messages.last().map(|message| message.sequence);
        match context.out.is_text() {
            true => context.out.line(format_args!("appended message {}", sequence.unwrap_or_default()))?,
            false => {
                let continued = Continued { trace_id: self.id, status: trace.status, sequence, summary: None, error: None };
                context.out.json(&continued)?;
            }
        }
        Ok(Outcome::Done)
    }

    fn message(&self) -> NewMessage {
        let message = NewMessage::text(self.role.as_str(), &self.text);
        self.after.into_iter().fold(message, NewMessage::with_parent)
    }

    #[cfg(not(feature = "remote"))]
    async fn run_elsewhere(&self, _: &mut Context, _: &Reached) -> Result<Option<Outcome>, Failure> {
        Ok(None)
    }

    /// Runs the agent at the owner of the trace. Returns `None` if that is this place, or has no runner.
    #[cfg(feature = "remote")]
    async fn run_elsewhere(&self, context: &mut Context, reached: &Reached) -> Result<Option<Outcome>, Failure> {
        use crate::traces::{PeerRuns, RunRequest};

        let peers = reached.organization.peers(&reached.tenant).filter(|_| !self.no_run && !self.id.is_local());
        let Some(peers) = peers else { return Ok(None) };
        let runs = PeerRuns::new(peers.clone(), reached.traces.clone());
        let mut request = RunRequest::default();
        request.messages.push(self.message());
        match runs.start(&self.id, &request).await {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Unsupported => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        let ended = match self.wait {
            Some(limit) => runs.wait(&self.id, limit).await?,
            None => None,
        };
        let (status, summary, error) = match ended {
            Some(result) => (result.status, result.summary, result.error),
            None => (TraceStatus::Running, None, None),
        };
        let outcome = match status {
            TraceStatus::Failed | TraceStatus::Stopped => Outcome::Failed(ErrorKind::Internal),
            _ => Outcome::Done,
        };
        if context.out.is_text() {
            context.out.line(status)?;
            if let Some(text) = summary.as_ref().or(error.as_ref()) {
                text.lines().try_for_each(|line| context.out.line(format_args!("  {line}")))?;
            }
        } else {
            context.out.json(&Continued { trace_id: self.id.clone(), status, sequence: None, summary, error })?;
        }
        if status == TraceStatus::Running {
            context.out.notice(format_args!("the agent runs; `treehold trace tail '{}'` follows it", self.id));
        }
        Ok(Some(outcome))
    }
}
