//! `trace show` and `trace messages`.

use super::{Reached, no_trace, print};
use crate::cli::args::at_least_one;
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::cli::output::Output;
use crate::cli::terminal::one_line;
use crate::traces::{GoalTree, Message, MessagesQuery, PAGE_MAX, PathQuery, Trace, TraceAddress, TraceStore};
use crate::{Error, ErrorKind};
use clap::Args;
use serde::Serialize;

/// Print a trace: what is known about it, its goals, and its main path
///
/// The main path leads from the first message to the head. Rewound messages and side branches are not on it; `trace messages` prints all.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold trace show abc-123
  treehold trace show @laptop/abc-123 --limit 5 --json")]
pub(crate) struct Show {
    /// Trace
    #[arg(value_name = "ID")]
    id: TraceAddress,
    /// Print at most N messages, those at the end of the path
    #[arg(long, value_name = "N", default_value = "50", value_parser = at_least_one)]
    limit: usize,
    /// Print the path to this sequence [default: the head]
    #[arg(long, value_name = "SEQUENCE")]
    head: Option<u64>,
}

/// Print all messages of a trace in the order of their sequences
///
/// Rewound messages, summarised messages and side branches are among them. With `--json`, each message is printed as it was stored.
#[derive(Debug, Args)]
#[command(after_long_help = "Example:
  treehold trace messages abc-123 --since 50 --jsonl")]
pub(crate) struct Messages {
    /// Trace
    #[arg(value_name = "ID")]
    id: TraceAddress,
    /// Only messages after this sequence
    #[arg(long, value_name = "SEQUENCE")]
    since: Option<u64>,
    /// Only messages of this goal
    #[arg(long, value_name = "GOAL")]
    goal: Option<String>,
    /// Print at most N messages
    #[arg(long, value_name = "N", default_value = "50", value_parser = at_least_one)]
    limit: usize,
}

/// A trace with its goals and main path.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    trace: &'a Trace,
    goal_tree: &'a GoalTree,
    main_path: &'a [Message],
}

impl Show {
    pub(super) async fn run(self, context: &mut Context, reached: &Reached) -> Result<Outcome, Failure> {
        let trace = reached.find(&self.id).await?;
        let goals = reached.traces.get_goal_tree(&self.id).await?;
        let (path, more) = self.path(&*reached.traces).await?;
        let out = &mut context.out;
        if !out.is_text() {
            out.json(&Shown { trace: &trace, goal_tree: &goals, main_path: &path })?;
        } else {
            print_trace(out, &trace)?;
            print::goals(out, &goals)?;
            path.iter().try_for_each(|message| print::message(out, message))?;
        }
        if let Some(head) = more {
            out.notice(format_args!("the path is longer; raise `--limit`, or print the part before with `--head {head}`"));
        }
        Ok(Outcome::Done)
    }

    /// Returns the end of the path, and the sequence at which the part before it ends.
    async fn path(&self, traces: &dyn TraceStore) -> Result<(Vec<Message>, Option<u64>), Error> {
        let mut pages = Vec::new();
        let (mut count, mut head) = (0, self.head);
        loop {
            let mut query = PathQuery::default();
            (query.head_sequence, query.limit) = (head, Some((self.limit - count).min(PAGE_MAX)));
            let page = traces.get_main_path(&self.id, &query).await?;
            count += page.messages.len();
            head = page.earlier;
            pages.push(page.messages);
            if head.is_none() || count >= self.limit {
                return Ok((pages.into_iter().rev().flatten().collect(), head));
            }
        }
    }
}

fn print_trace(out: &mut Output, trace: &Trace) -> Result<(), Failure> {
    let Trace { trace_id, mode, status, total_messages, total_tokens, total_cost, head_sequence, .. } = trace;
    out.line(format_args!("trace    {trace_id}"))?;
    out.line(format_args!("status   {status}{}", if trace.stale { ", as last seen: its owner does not answer" } else { "" }))?;
    out.line(format_args!("mode     {mode}"))?;
    let parent = trace.parent_trace_id.as_ref().map(ToString::to_string);
    let texts = [("task", &trace.task), ("parent", &parent), ("agent", &trace.agent_type), ("created", &trace.created_at)];
    for (name, text) in texts.into_iter().chain([("ended", &trace.completed_at)]) {
        if let Some(text) = text {
            out.line(format_args!("{name:<8} {}", one_line(text)))?;
        }
    }
    out.line(format_args!("messages {total_messages}, {total_tokens} tokens, cost {total_cost}, head {head_sequence}"))
}

impl Messages {
    pub(super) async fn run(self, context: &mut Context, reached: &Reached) -> Result<Outcome, Failure> {
        let mut query = MessagesQuery::default();
        (query.since_sequence, query.goal_id) = (self.since, self.goal);
        let (mut count, mut more) = (0, true);
        while more && count < self.limit {
            query.limit = (self.limit - count).min(PAGE_MAX);
            let page = match reached.traces.get_messages(&self.id, &query).await {
                Err(error) if error.kind() == ErrorKind::NotFound => return Err(no_trace(&self.id).into()),
                page => page?,
            };
            for message in &page.messages {
                match context.out.is_text() {
                    true => print::message(&mut context.out, message)?,
                    false => context.out.json_element(count, message)?,
                }
                count += 1;
            }
            more = page.more;
            query.since_sequence = page.messages.last().map(|message| message.sequence).or(query.since_sequence);
        }
        if !context.out.is_text() {
            context.out.json_end(count)?;
        }
        if let Some(since) = query.since_sequence.filter(|_| more) {
            context.out.notice(format_args!("there are more messages; raise `--limit`, or continue with `--since {since}`"));
        }
        Ok(Outcome::found(count > 0))
    }
}
