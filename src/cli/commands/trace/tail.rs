//! `trace tail`: the events of a trace as they come.

use super::Reached;
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::cli::output::{Output, Style};
use crate::cli::terminal::one_line;
use crate::traces::{PAGE_MAX, TraceAddress, TraceEvent};
use clap::Args;
use futures::StreamExt;

/// Print the events of a trace, and follow it until interrupted
///
/// Prints first the events that there are, then new ones as they come. With `--json`, each line is a JSON value.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold trace tail @laptop/abc-123
  treehold trace tail abc-123 --since 12 --once --jsonl")]
pub(crate) struct Tail {
    /// Trace
    #[arg(value_name = "ID")]
    id: TraceAddress,
    /// Only events after this one
    #[arg(long, value_name = "EVENT", default_value = "0")]
    since: u64,
    /// Print the events that there are, and end
    #[arg(long)]
    once: bool,
}

impl Tail {
    pub(super) async fn run(self, context: &mut Context, reached: &Reached) -> Result<Outcome, Failure> {
        reached.find(&self.id).await?;
        if self.once {
            return self.replay(context, reached).await;
        }
        let mut events = reached.traces.watch(&self.id, self.since).await?;
        context.out.detail(format_args!("following the trace `{}` after event {}", self.id, self.since));
        while let Some(event) = events.next().await {
            print(&mut context.out, &event?)?;
            // A reader of the pipe waits for this line.
            context.out.flush()?;
        }
        Ok(Outcome::Done)
    }

    async fn replay(&self, context: &mut Context, reached: &Reached) -> Result<Outcome, Failure> {
        let (mut since, mut any) = (self.since, false);
        loop {
            let page = reached.traces.get_events(&self.id, since, PAGE_MAX).await?;
            for event in &page.events {
                print(&mut context.out, event)?;
                (since, any) = (event.event_id, true);
            }
            if !page.more || page.events.is_empty() {
                return Ok(Outcome::found(any));
            }
        }
    }
}

fn print(out: &mut Output, event: &TraceEvent) -> Result<(), Failure> {
    if !out.is_text() {
        return out.json_line(event);
    }
    let number = out.paint(Style::Faint, format!("{:>6}", event.event_id)).to_string();
    let mut line = format!("{number}  {}  {}", one_line(event.ts.as_deref().unwrap_or("-")), one_line(&event.event));
    for (name, value) in &event.data {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        line.push_str(&format!("  {}", out.paint(Style::Faint, format_args!("{}={}", one_line(name), one_line(&value)))));
    }
    out.line(line)
}
