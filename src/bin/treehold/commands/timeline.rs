//! `timeline` and `watch`: past and new changes.

use crate::args::{at_least_one, time};
use crate::context::Context;
use crate::exit::{Failure, Outcome};
use crate::output::{Output, Style};
use clap::Args;
use jiff::Timestamp;
use std::sync::Arc;
use treehold::feed::{Feed, FeedEvent, FeedView};
use treehold::ops::Version;
use treehold::{Error, VfsPath};

/// The most events to request at a time.
const PAGE: usize = 500;

/// Whose changes, and where.
#[derive(Debug, Args)]
struct Which {
    /// Directory or file that the changes are at or beneath
    #[arg(default_value = "/")]
    path: String,
    /// Show the changes of `/` in every thread of the user, not in this one alone
    #[arg(long)]
    all_threads: bool,
}

/// Print what changed, the newest first
///
/// Prints position, time, what was done, and the path; then where a rename or copy led, the version of the file, the thread and who acted.
/// Changes that other programs make to a directory of the host are not seen. Events are kept as long as `[events] keep` of the configuration
/// says.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold timeline
  treehold timeline /memories --since 7d --limit 20
  treehold timeline --all-threads --jsonl")]
pub(crate) struct Timeline {
    #[command(flatten)]
    which: Which,
    /// Only what happened since TIME: a date or time of UTC, or how long ago, such as `7d`
    #[arg(long, value_name = "TIME", value_parser = time)]
    since: Option<Timestamp>,
    /// Only what happened before this position
    #[arg(long, value_name = "POSITION")]
    before: Option<Version>,
    /// Print at most N changes
    #[arg(long, value_name = "N", default_value = "50", value_parser = at_least_one)]
    limit: usize,
}

/// Print changes as they come, by whatever process
///
/// Prints a line for each as `timeline` does, until it is interrupted. With `--json` each is one line of JSON too.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold watch
  treehold watch /memories --jsonl
  treehold watch --after 1f --limit 1")]
pub(crate) struct Watch {
    #[command(flatten)]
    which: Which,
    /// Begin with what happened after this position [default: now]
    #[arg(long, value_name = "POSITION")]
    after: Option<Version>,
    /// End after N changes
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
        loop {
            let page = feed.before(&view, before, self.since, PAGE.min(self.limit.saturating_sub(count))).await?;
            for event in &page.events {
                match context.out.is_text() {
                    true => print(&mut context.out, event)?,
                    false => context.out.json_element(count, event)?,
                }
                count += 1;
            }
            before = Some(page.position);
            if count >= self.limit && page.more {
                context.out.notice(format_args!("there may be more; raise `--limit`, or go on with `--before {}`", page.position));
            }
            if count >= self.limit || !page.more {
                break;
            }
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
            None => feed.position().await?,
        };
        let mut tail = feed.follow(view, after).await?;
        context.out.detail(format_args!("following after position {after}"));
        for _ in 0..self.limit.unwrap_or(usize::MAX) {
            let event = tail.next().await?;
            if context.out.is_text() {
                print(&mut context.out, &event)?;
            } else {
                let line = serde_json::to_string(&event)
                    .map_err(|error| Error::new(treehold::ErrorKind::Internal, "an event cannot be written as JSON").with_source(error))?;
                context.out.line(line)?;
            }
            // A reader of the pipe waits for this line.
            context.out.flush()?;
        }
        Ok(Outcome::Done)
    }
}

fn print(out: &mut Output, event: &FeedEvent) -> Result<(), Failure> {
    let time = event.at.strftime("%Y-%m-%dT%H:%M:%SZ");
    let position = out.paint(Style::Faint, event.position);
    let mut line = format!("{position}  {time}  {:<10}  {}", event.operation, event.path);
    if let Some(target) = &event.target {
        line.push_str(&format!(" -> {target}"));
    }
    let version = event.version.map(|version| version.to_string());
    for (name, value) in [("version", &version), ("thread", &event.thread), ("actor", &event.actor)] {
        if let Some(value) = value {
            line.push_str(&format!("  {}", out.paint(Style::Faint, format_args!("{name}={}", value.escape_debug()))));
        }
    }
    out.line(line)
}
