//! The status as text.

use super::{Changes, Report, RoutePart};
use crate::checkpoint::{ChangeKind, PathDiff};
use crate::cli::commands::config::kept_history;
use crate::cli::commands::thread::kept;
use crate::cli::context::Context;
use crate::cli::exit::Failure;
use crate::cli::ids::ShortIds;
use crate::cli::output::{Output, Style, counted};
use crate::cli::table::{Cell, Column, Table};
use crate::cli::time::{ago, exact};
use crate::config::{EffectiveRoute, Sharing};
use jiff::Timestamp;

const COLUMNS: [Column; 5] = [
    Column::new("route"),
    Column::new("tier"),
    Column::new("shared by").optional(1),
    Column::new("history").optional(2),
    Column::new("place").cut_to(24),
];

/// Prints the thread, the routes, the overlays, and what cannot be reached.
pub(super) async fn print(context: &mut Context, report: &Report) -> Result<(), Failure> {
    print_thread(context, report).await?;
    let out = &mut context.out;
    out.empty_line()?;
    print_routes(out, &report.routes)?;
    let overlays: Vec<_> = report.routes.iter().filter_map(|part| Some((&part.route.path, part.overlay_changes.as_ref()?))).collect();
    if !overlays.is_empty() {
        out.empty_line()?;
    }
    for (path, changes) in overlays {
        match changes.count {
            0 => out.line(format_args!("overlay   {path}  no changes"))?,
            count => {
                let count = at_least(count, changes.more);
                out.line(format_args!("overlay   {path}  {count} changed; `treehold overlay diff {path}` lists them"))?;
            }
        }
    }
    let faults: Vec<_> = report.routes.iter().filter_map(|part| Some((&part.route.path, part.error.as_ref()?))).collect();
    if !faults.is_empty() {
        out.empty_line()?;
    }
    for (path, fault) in faults {
        let failed = out.paint(Style::Removed, "failed").to_string();
        out.line(format_args!("{failed}    {path}  {}", fault.0.message()))?;
    }
    Ok(())
}

async fn print_thread(context: &mut Context, report: &Report) -> Result<(), Failure> {
    let scope = &report.scope;
    let ids = match (context.out.width(), &report.thread.checkpoint) {
        (Some(_), Some(_)) => Some(ShortIds::of(&*kept(context)?, &context.scope()?).await?),
        _ => None,
    };
    let out = &mut context.out;
    let mut line = format!("thread    {}", scope.thread);
    let others = [("user", Some(&scope.user)), ("tenant", Some(&scope.tenant)), ("agent", scope.agent.as_ref())];
    for (name, id) in others.into_iter().chain([("session", report.session.as_ref())]) {
        if let Some(id) = id.filter(|id| *id != "default") {
            line.push_str(&format!("  {}", out.paint(Style::Faint, format_args!("{name}={}", id.escape_debug()))));
        }
    }
    out.line(line)?;
    let thread = &report.thread;
    match (&thread.error, &thread.checkpoint) {
        (Some(fault), _) => {
            let failed = out.paint(Style::Removed, "failed").to_string();
            out.line(format_args!("{failed}    {}", fault.0.message()))?;
        }
        (None, _) if !thread.is_saved => out.line("saved     no: `save = false` under `[threads]` of the configuration")?,
        (None, None) => out.line("saved     never: the thread is new")?,
        (None, Some(checkpoint)) => {
            let id = ids.as_ref().map_or_else(|| checkpoint.id.to_string(), |ids| ids.text(out, checkpoint.id));
            let label = checkpoint.label.as_ref().map_or_else(String::new, |label| format!("  [{}]", out.paint(Style::Path, label)));
            out.line(format_args!("saved     {}  {id}{label}", time(out, checkpoint.created_at)))?;
        }
    }
    match &thread.changes {
        Some(changes) => print_changes(out, changes),
        None => Ok(()),
    }
}

/// Returns how long ago a time was for a terminal, otherwise the time.
fn time(out: &Output, time: Timestamp) -> String {
    if out.width().is_some() { ago(time, Timestamp::now()) } else { exact(time) }
}

fn print_changes(out: &mut Output, changes: &Changes) -> Result<(), Failure> {
    let since = match changes.since.as_ref().and_then(|since| Some((since.label.as_ref()?, since.created_at))) {
        Some((label, at)) => format!("since [{}], {}", out.paint(Style::Path, label), time(out, at)),
        None => "in the last checkpoint".to_owned(),
    };
    let counts = match changes.count() {
        0 => "none".to_owned(),
        _ => {
            let counts = [(changes.added, "added"), (changes.changed, "changed"), (changes.removed, "removed")];
            let counts: Vec<String> =
                counts.into_iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
            format!("{}{}", counts.join(", "), if changes.more { " or more" } else { "" })
        }
    };
    out.line(format_args!("changes   {counts} {since}"))?;
    changes.paths.iter().try_for_each(|path| print_path(out, path))?;
    let rest = changes.count() - changes.paths.len();
    if rest == 0 {
        return Ok(());
    }
    let command = match changes.since.as_ref().filter(|since| since.label.is_some()) {
        Some(since) => format!("treehold checkpoint diff {}", since.id),
        None => "treehold checkpoint diff".to_owned(),
    };
    out.line(format_args!("  and {} more; `{command}` lists all", at_least_number(rest, changes.more)))
}

fn print_path(out: &mut Output, path: &PathDiff) -> Result<(), Failure> {
    let (mark, style) = match path.change {
        ChangeKind::Added => ("A", Style::Added),
        ChangeKind::Changed => ("M", Style::Path),
        ChangeKind::Removed => ("D", Style::Removed),
    };
    let is_directory = if path.change == ChangeKind::Removed { path.was_directory } else { path.is_directory };
    let mark = out.paint(style, mark).to_string();
    out.line(format_args!("  {mark}  {}{}", path.path, if is_directory { "/" } else { "" }))
}

fn print_routes(out: &mut Output, routes: &[RoutePart]) -> Result<(), Failure> {
    if let Some(mut table) = Table::on_terminal(out, &COLUMNS) {
        for RoutePart { route, .. } in routes {
            table.row([
                Cell::styled(Style::Directory, &route.path),
                Cell::new(tier(route)),
                Cell::new(route.sharing),
                Cell::new(kept_history(route).unwrap_or_else(|| "none".to_owned())),
                Cell::styled(Style::Faint, place(route)),
            ]);
        }
        return table.flush(out);
    }
    for RoutePart { route, .. } in routes {
        let history = kept_history(route).unwrap_or_else(|| "none".to_owned());
        let by = if route.sharing == Sharing::OtherServer { "" } else { "by " };
        let (path, tier, place) = (&route.path, tier(route), place(route));
        let line = format!("route     {path}  {tier}  shared {by}{}  history: {history}  {place}", route.sharing);
        out.line(line.trim_end())?;
    }
    Ok(())
}

fn tier(route: &EffectiveRoute) -> String {
    let read_only = if route.read_only { ", read-only" } else { "" };
    let overlay = if route.overlay.is_some() { ", overlay" } else { "" };
    format!("{}{overlay}{read_only}", route.tier.name())
}

/// Returns where the files of a route are.
fn place(route: &EffectiveRoute) -> String {
    let store = || route.store.as_ref().map(|store| format!("{} ({})", store.name, store.location));
    route.location.clone().or_else(store).unwrap_or_default()
}

fn at_least_number(count: usize, more: bool) -> String {
    if more { format!("at least {count}") } else { count.to_string() }
}

fn at_least(count: usize, more: bool) -> String {
    format!("{}{}", if more { "at least " } else { "" }, counted(count, "path", "paths"))
}
