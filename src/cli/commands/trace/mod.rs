//! `trace`: the traces of agents, here and elsewhere. The longer commands are in files of their own.

mod go_on;
#[cfg(unix)]
mod layout;
mod print;
mod show;
mod tail;

use self::go_on::Continue;
#[cfg(unix)]
use self::layout::{Export, Import};
use self::show::{Messages, Show};
use self::tail::Tail;
use crate::cli::args::at_least_one;
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::cli::output::Style;
use crate::cli::table::{Cell, Column, Table};
use crate::cli::terminal::one_line;
use crate::traces::{NewTrace, OrganizationTraces, StoredTraces, Trace as TraceInfo, TraceAddress, TraceStatus, TraceStore, TracesQuery};
use crate::{Error, ErrorKind};
use clap::{Args, Subcommand};
use std::sync::Arc;

/// Read, continue, move and remove the traces of agents
///
/// A trace is one run of an agent: its messages, goals and events. The commands work on the traces of --user and --tenant, and on traces
/// of registered places: an id is local (`abc-123`) or names where its trace lives (`@laptop/abc-123`, `agent://host:8000/abc-123`).
#[derive(Debug, Subcommand)]
pub(crate) enum Trace {
    Ls(Ls),
    Show(Show),
    Messages(Messages),
    Tail(Tail),
    Create(Create),
    Continue(Continue),
    #[cfg(unix)]
    Export(Export),
    #[cfg(unix)]
    Import(Import),
    Rm(Rm),
}

/// List the traces that live here, newest first
///
/// Prints the id, status, number of messages and task of each.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold trace ls
  treehold trace ls --status running --json")]
pub(crate) struct Ls {
    /// Only traces with this status: running, completed, failed or stopped
    #[arg(long, value_name = "STATUS")]
    status: Option<TraceStatus>,
    /// Print at most N traces
    #[arg(long, value_name = "N", default_value = "50", value_parser = at_least_one)]
    limit: usize,
    /// Continue after this cursor, which the previous list printed
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
}

/// Create a trace without messages, and print its id
///
/// A qualified id creates the trace in that place.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold trace create 'compare the offers'
  treehold trace create 'read the logs' --id @laptop/logs-1")]
pub(crate) struct Create {
    /// Task of the agent
    #[arg(value_name = "TASK")]
    task: String,
    /// Id [default: a random one]
    #[arg(long, value_name = "ID")]
    id: Option<TraceAddress>,
}

/// Remove traces with everything that belongs to them
///
/// Nothing is removed if one of the traces does not exist.
#[derive(Debug, Args)]
pub(crate) struct Rm {
    /// Traces to remove
    #[arg(required = true, value_name = "ID")]
    ids: Vec<TraceAddress>,
    /// Ignore traces that do not exist
    #[arg(short, long)]
    force: bool,
}

/// The traces that a command reaches.
struct Reached {
    tenant: String,
    user: String,
    organization: OrganizationTraces,
    traces: Arc<dyn TraceStore>,
}

impl Reached {
    fn open(context: &Context) -> Result<Self, Error> {
        let scope = context.config()?.scope;
        let organization = context.traces()?;
        let traces = organization.for_user(&scope.tenant, &scope.user)?;
        Ok(Self { tenant: scope.tenant, user: scope.user, organization, traces })
    }

    /// Returns the traces that live here.
    fn local(&self) -> Result<StoredTraces, Error> {
        let (tenant, user) = self.organization.owner_of(&self.tenant, &self.user);
        self.organization.local().for_user(tenant, user)
    }

    async fn find(&self, id: &TraceAddress) -> Result<TraceInfo, Error> {
        self.traces.get_trace(id).await?.ok_or_else(|| no_trace(id))
    }
}

fn no_trace(id: &TraceAddress) -> Error {
    let list = if id.is_local() { "; `treehold trace ls` lists those that live here" } else { "" };
    Error::new(ErrorKind::NotFound, format!("there is no trace `{id}`{list}"))
}

impl Trace {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let reached = Reached::open(context)?;
        match self {
            Self::Ls(ls) => ls.run(context, &reached).await,
            Self::Show(show) => show.run(context, &reached).await,
            Self::Messages(messages) => messages.run(context, &reached).await,
            Self::Tail(tail) => tail.run(context, &reached).await,
            Self::Create(create) => create.run(context, &reached).await,
            Self::Continue(go_on) => go_on.run(context, &reached).await,
            #[cfg(unix)]
            Self::Export(export) => export.run(context, &reached).await,
            #[cfg(unix)]
            Self::Import(import) => import.run(context, &reached).await,
            Self::Rm(rm) => rm.run(context, &reached).await,
        }
    }
}

const COLUMNS: [Column; 4] =
    [Column::new("trace"), Column::new("status"), Column::new("messages").right().optional(1), Column::new("task").cut().optional(2)];

impl Ls {
    async fn run(self, context: &mut Context, reached: &Reached) -> Result<Outcome, Failure> {
        let mut query = TracesQuery::default();
        (query.status, query.cursor) = (self.status, self.after);
        let mut count = 0;
        let mut table = Table::on_terminal(&context.out, &COLUMNS);
        loop {
            query.limit = (self.limit - count).min(100);
            let page = reached.traces.list_traces(&query).await?;
            for trace in &page.traces {
                match &mut table {
                    Some(table) => table.row([
                        Cell::new(&trace.trace_id),
                        Cell::new(trace.status),
                        Cell::new(trace.total_messages),
                        Cell::styled(Style::Faint, trace.task.as_deref().unwrap_or_default()),
                    ]),
                    None if context.out.is_text() => {
                        let task = one_line(trace.task.as_deref().unwrap_or_default()).into_owned();
                        let line = format!("{:<9}  {:>5}  {}  {task}", trace.status, trace.total_messages, trace.trace_id);
                        context.out.line(line.trim_end())?;
                    }
                    None => context.out.json_element(count, trace)?,
                }
                count += 1;
            }
            table.iter_mut().try_for_each(|table| table.flush(&mut context.out))?;
            query.cursor = page.next;
            if count >= self.limit || query.cursor.is_none() {
                break;
            }
        }
        if !context.out.is_text() {
            context.out.json_end(count)?;
        }
        if let Some(cursor) = query.cursor {
            context.out.notice(format_args!("there may be more traces; raise `--limit`, or continue with `--after '{cursor}'`"));
        }
        Ok(Outcome::found(count > 0))
    }
}

impl Create {
    async fn run(self, context: &mut Context, reached: &Reached) -> Result<Outcome, Failure> {
        let mut new = NewTrace::new(self.task);
        new.trace_id = self.id;
        let trace = reached.traces.create_trace(new).await?;
        match context.out.is_text() {
            true => context.out.line(&trace.trace_id)?,
            false => context.out.json(&trace)?,
        }
        Ok(Outcome::Done)
    }
}

impl Rm {
    async fn run(self, context: &mut Context, reached: &Reached) -> Result<Outcome, Failure> {
        if !self.force {
            for id in &self.ids {
                reached.find(id).await?;
            }
        }
        let mut removed = Vec::new();
        for id in self.ids {
            if reached.traces.delete_trace(&id).await? {
                context.out.detail(format_args!("removed trace `{id}`"));
                removed.push(id);
            }
        }
        if !context.out.is_text() {
            context.out.json_list(&removed)?;
        }
        Ok(Outcome::Done)
    }
}
