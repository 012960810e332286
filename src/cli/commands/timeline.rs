//! `timeline` and `watch`: past and new changes.

use crate::cli::args::{at_least_one, time};
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::cli::output::{Output, Style};
use crate::cli::table::{Cell, Column, Table};
use crate::cli::time::{ago, exact};
use crate::feed::{Feed, FeedEvent, FeedPosition, FeedView};
use crate::{Error, VfsPath};
use clap::Args;
use jiff::Timestamp;
use serde::Serialize;
use std::sync::Arc;

/// The most events to request at a time.
const PAGE: usize = 500;

const COLUMNS: [Column; 6] = [
    Column::new("position").right().optional(2),
    Column::new("when"),
    Column::new("operation"),
    Column::new("thread").cut().optional(4),
    Column::new("actor").cut().optional(3),
    Column::new("path"),
];

/// Whose changes, and where.
#[derive(Debug, Args)]
struct Which {
    /// Show only changes at or beneath this path
    #[arg(default_value = "/")]
    path: String,
    /// Show the changes of all threads of the user, not only this one
    #[arg(long)]
    all_threads: bool,
}

/// Print changes, newest first
///
/// Prints the position, time, operation and path of each change, and where known its target, version, thread and actor. Changes
/// that other programs make in a host directory are not recorded. `[events] keep` of the configuration limits how far back the
/// timeline reaches.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold timeline
  treehold timeline /memories --since 7d --limit 20
  treehold timeline --all-threads --jsonl")]
pub(crate) struct Timeline {
    #[command(flatten)]
    which: Which,
    /// Show only changes since TIME: a date or time (UTC), or an age such as `7d`
    #[arg(long, value_name = "TIME", value_parser = time)]
    since: Option<Timestamp>,
    /// Show only changes before this position
    #[arg(long, value_name = "POSITION")]
    before: Option<FeedPosition>,
    /// Print at most N changes
    #[arg(long, value_name = "N", default_value = "50", value_parser = at_least_one)]
    limit: usize,
}

/// Print changes of all processes as they happen
///
/// Prints lines as `timeline` does until interrupted. With `--json`, each change is one line of JSON, whose `resume` is the `--after` that
/// continues after it.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold watch
  treehold watch /memories --jsonl
  treehold watch --after 1f --limit 1")]
pub(crate) struct Watch {
    #[command(flatten)]
    which: Which,
    /// Start with the changes after this position [default: now]
    #[arg(long, value_name = "POSITION")]
    after: Option<FeedPosition>,
    /// Stop after N changes
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    limit: Option<usize>,
}

impl Which {
    fn view(&self, context: &mut Context) -> Result<(Arc<Feed>, FeedView), Error> {
        let scope = context.scope()?;
        let workspace = context.workspace()?;
        let feed = workspace
            .feed()
            .cloned()
            .ok_or_else(|| Error::invalid_argument("changes are not kept here; set `save = true` under `[events]` of the configuration"))?;
        let view = workspace.feed_view(&scope)?.with_prefix(&VfsPath::parse(&self.path)?);
        Ok((feed, if self.all_threads { view } else { view.with_threads(scope.thread) }))
    }
}

impl Timeline {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let (feed, view) = self.which.view(context)?;
        let (mut count, mut before) = (0, self.before);
        let mut table = Table::on_terminal(&context.out, &COLUMNS);
        loop {
            let page = feed.before(&view, before.as_ref(), self.since, PAGE.min(self.limit.saturating_sub(count))).await?;
            for event in &page.events {
                match &mut table {
                    Some(table) => table.row(cells(event)),
                    None if context.out.is_text() => print(&mut context.out, event)?,
                    None => context.out.json_element(count, event)?,
                }
                count += 1;
            }
            table.iter_mut().try_for_each(|table| table.flush(&mut context.out))?;
            if count >= self.limit && page.more {
                context
                    .out
                    .notice(format_args!("there may be more changes; raise `--limit`, or continue with `--before {}`", page.position));
            }
            if count >= self.limit || !page.more {
                break;
            }
            before = Some(page.position);
        }
        if !context.out.is_text() {
            context.out.json_end(count)?;
        }
        Ok(Outcome::found(count > 0))
    }
}

impl Watch {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let (feed, view) = self.which.view(context)?;
        let after = match self.after {
            Some(after) => after,
            None => feed.position(&view).await?,
        };
        context.out.detail(format_args!("following after position {after}"));
        let mut tail = feed.follow(view, after).await?;
        for _ in 0..self.limit.unwrap_or(usize::MAX) {
            let event = tail.next().await?;
            if context.out.is_text() {
                print(&mut context.out, &event)?;
            } else {
                context.out.json_line(&Watched { event: &event, resume: tail.position() })?;
            }
            // A reader of the pipe waits for this line.
            context.out.flush()?;
        }
        context.out.detail(format_args!("continue with `--after {}`", tail.position()));
        Ok(Outcome::Done)
    }
}

/// An event, and the position that continues after it.
#[derive(Serialize)]
struct Watched<'e> {
    #[serde(flatten)]
    event: &'e FeedEvent,
    resume: &'e FeedPosition,
}

/// Returns the path of an event, and where it went.
fn places(event: &FeedEvent) -> String {
    match &event.target {
        Some(target) => format!("{} -> {target}", event.path),
        None => event.path.to_string(),
    }
}

fn cells(event: &FeedEvent) -> [Cell; 6] {
    let faint = |text: &Option<String>| Cell::styled(Style::Faint, text.as_deref().unwrap_or_default());
    [
        Cell::styled(Style::Faint, event.position),
        Cell::new(ago(event.at, Timestamp::now())),
        Cell::new(event.operation),
        faint(&event.thread),
        faint(&event.actor),
        Cell::new(places(event)),
    ]
}

fn print(out: &mut Output, event: &FeedEvent) -> Result<(), Failure> {
    let time = exact(event.at);
    let position = out.paint(Style::Faint, event.position);
    let mut line = format!("{position}  {time}  {:<10}  {}", event.operation, places(event));
    let version = event.version.map(|version| version.to_string());
    for (name, value) in [("version", &version), ("thread", &event.thread), ("actor", &event.actor)] {
        if let Some(value) = value {
            line.push_str(&format!("  {}", out.paint(Style::Faint, format_args!("{name}={}", value.escape_debug()))));
        }
    }
    out.line(line)
}
