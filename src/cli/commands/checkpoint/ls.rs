//! `checkpoint ls`: the checkpoints of a thread, newest first.

use super::{history, pair};
use crate::checkpoint::{Checkpoint, ListOptions, find_checkpoint};
use crate::cli::args::{at_least_one, time};
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::cli::ids::ShortIds;
use crate::cli::output::Style;
use crate::cli::table::{Cell, Column, Table};
use crate::cli::time::{ago, exact};
use crate::session::{ACTOR, CALL, TOOL, TOOL_CALL_ID};
use clap::Args;
use jiff::Timestamp;

/// List the checkpoints of the thread, newest first
///
/// Prints the id, time, number of entries, size in bytes, label and metadata of each. The metadata starts with the command or tool
/// call that led to the checkpoint: tool, call id and actor. On a terminal, an id is short, and its marked start names the checkpoint. Exits
/// with 1 if there is no checkpoint.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold checkpoint ls --limit 10
  treehold checkpoint ls --since 2h
  treehold checkpoint ls --meta tool=write_file --since 2026-11-01")]
pub(crate) struct Ls {
    /// Show only checkpoints with this label
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
    /// Show only checkpoints with this metadata
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    meta: Vec<(String, String)>,
    /// Show only checkpoints from TIME on: a time or date (UTC), or an age such as `2h`
    #[arg(long, value_name = "TIME", value_parser = time)]
    since: Option<Timestamp>,
    /// Show only checkpoints from before TIME
    #[arg(long, value_name = "TIME", value_parser = time)]
    until: Option<Timestamp>,
    /// Print at most N checkpoints
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    limit: Option<usize>,
    /// Continue a list after this checkpoint, the last one that was printed
    #[arg(long, value_name = "CHECKPOINT")]
    start_after: Option<String>,
}

/// The most checkpoints to request at a time.
const PAGE: usize = 1_000;

const COLUMNS: [Column; 6] = [
    Column::new("id"),
    Column::new("saved"),
    Column::new("entries").right().optional(1),
    Column::new("bytes").right().optional(2),
    Column::new("label").cut(),
    Column::new("notes").cut().optional(3),
];

impl Ls {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let (checkpointer, scope) = history(context)?;
        let mut options = ListOptions::new();
        options.label = self.label;
        options.metadata.extend(self.meta);
        (options.since, options.until) = (self.since, self.until);
        if let Some(name) = &self.start_after {
            options.start_after = Some(match name.parse() {
                Ok(id) => id,
                Err(_) => find_checkpoint(&*checkpointer, &scope, name).await?.id,
            });
        }
        let session = context.session().await?;
        let mut table = Table::on_terminal(&context.out, &COLUMNS);
        let ids = match &table {
            Some(_) => Some(ShortIds::of(&*checkpointer, &scope).await?),
            None => None,
        };
        let mut count = 0;
        loop {
            options.limit = self.limit.map_or(PAGE, |limit| (limit - count).min(PAGE));
            let page = checkpointer.list(&scope, &options).await?;
            let shown = session.shown_all(page.checkpoints).await?;
            for checkpoint in &shown {
                match (&mut table, &ids) {
                    (Some(table), Some(ids)) => table.row(cells(context, ids, checkpoint)),
                    _ if context.out.is_text() => print(context, checkpoint)?,
                    _ => context.out.json_element(count, checkpoint)?,
                }
                count += 1;
            }
            table.iter_mut().try_for_each(|table| table.flush(&mut context.out))?;
            match page.next {
                Some(next) if self.limit.is_some_and(|limit| count >= limit) => {
                    context.out.notice(format_args!("there are more checkpoints; continue with `--start-after {next}`"));
                    break;
                }
                Some(next) => options.start_after = Some(next),
                None => break,
            }
        }
        if !context.out.is_text() {
            context.out.json_end(count)?;
        }
        Ok(Outcome::found(count > 0))
    }
}

fn cells(context: &Context, ids: &ShortIds, checkpoint: &Checkpoint) -> [Cell; 6] {
    [
        ids.cell(&context.out, checkpoint.id),
        Cell::new(ago(checkpoint.created_at, Timestamp::now())),
        Cell::new(checkpoint.entries),
        Cell::new(checkpoint.size_bytes),
        Cell::styled(Style::Path, checkpoint.label.as_deref().unwrap_or_default()),
        Cell::styled(Style::Faint, notes(checkpoint).unwrap_or_default()),
    ]
}

fn print(context: &mut Context, checkpoint: &Checkpoint) -> Result<(), Failure> {
    let time = exact(checkpoint.created_at);
    let id = context.out.paint(Style::Line, checkpoint.id).to_string();
    let mut line = format!("{id} {time} {:>6} {:>10}", checkpoint.entries, checkpoint.size_bytes);
    if let Some(label) = &checkpoint.label {
        line.push_str(&format!("  [{}]", context.out.paint(Style::Path, label)));
    }
    if let Some(notes) = notes(checkpoint) {
        line.push_str(&format!("  {}", context.out.paint(Style::Faint, notes)));
    }
    context.out.line(line)
}

/// Formats the metadata of a checkpoint, the call that made it first.
pub(super) fn notes(checkpoint: &Checkpoint) -> Option<String> {
    let known = [TOOL, TOOL_CALL_ID, ACTOR];
    let first = known.iter().filter_map(|name| checkpoint.metadata.get_key_value(*name));
    // The id of a call links what it changed, and tells a person nothing.
    let rest = checkpoint.metadata.iter().filter(|(name, _)| !known.contains(&name.as_str()) && *name != CALL);
    let notes: Vec<String> = first.chain(rest).map(|(name, value)| format!("{name}={}", value.escape_debug())).collect();
    (!notes.is_empty()).then(|| notes.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::SignedDuration;

    #[test]
    fn time_parses_rfc_3339_dates_and_ages() {
        let noon = "2026-11-21T12:00:00Z".parse::<Timestamp>();
        assert_eq!(time("2026-11-21T13:00:00+01:00").ok(), noon.clone().ok());
        assert_eq!(time("2026-11-21T12:00:00").ok(), noon.clone().ok());
        assert_eq!(time("2026-11-21").ok(), noon.ok().map(|noon| noon - SignedDuration::from_hours(12)));
        let hour_ago = Timestamp::now() - SignedDuration::from_hours(1);
        assert!(time("1h").is_ok_and(|time| time <= Timestamp::now() - SignedDuration::from_mins(59) && time >= hour_ago));
        assert!(["soon", "", "2026-13-01", "99999999999h"].into_iter().all(|text| time(text).is_err()));
    }
}
