//! `session`: the conversations of agent hosts. The longer commands are in files of their own.

mod compact;
mod export;
mod import;
mod messages;

use self::compact::Compact;
use self::export::Export;
use self::import::Import;
use self::messages::Messages;
use crate::cli::args::at_least_one;
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::cli::output::{Output, Style};
use crate::cli::table::{Cell, Column, Table};
use crate::cli::time::{ago, exact};
use crate::sessions::{Json, MemoryIndexEntry, SessionDescription, Sessions};
use crate::store::{escape_key, unescape_key};
use crate::{Error, ErrorKind};
use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Read, compact, move and remove the sessions of agent hosts
///
/// A session is one conversation of a user with an agent: messages, turns, notes and tool results. The commands work on the
/// sessions of --user and --tenant; another user's session is not found. `--session ID` of other commands mounts a session's notes
/// and tool results at `/memo`.
#[derive(Debug, Subcommand)]
pub(crate) enum Session {
    Ls(Ls),
    Show(Show),
    Messages(Messages),
    Turns(Turns),
    Compact(Compact),
    Export(Export),
    Import(Import),
    Rm(Rm),
}

/// List sessions, newest first
///
/// Prints the id and the time of the last change of each.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold session ls
  treehold --user ada session ls --limit 10 --json")]
pub(crate) struct Ls {
    /// Print at most N sessions
    #[arg(long, value_name = "N", default_value = "50", value_parser = at_least_one)]
    limit: usize,
    /// Continue after this cursor, which the previous list printed
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
}

/// Print what is known about a session
///
/// Prints its agent, title and times, how full the model's context was at the last turn, and its memory documents.
#[derive(Debug, Args)]
pub(crate) struct Show {
    /// Session
    #[arg(value_name = "ID")]
    id: String,
}

/// List the turns of a session, oldest first
///
/// Prints the index and time of each turn, and its tokens: input, output, read from a cache, written to a cache.
#[derive(Debug, Args)]
#[command(after_long_help = "Example:
  treehold session turns monday --jsonl")]
pub(crate) struct Turns {
    /// Session
    #[arg(value_name = "ID")]
    id: String,
    /// Print at most N turns
    #[arg(long, value_name = "N", default_value = "50", value_parser = at_least_one)]
    limit: usize,
    /// Continue after this cursor, which the previous list printed
    #[arg(long, value_name = "CURSOR")]
    after: Option<u64>,
}

/// Remove sessions with everything that belongs to them
///
/// Messages, turns, traces, notes and tool results are removed. Nothing is removed if one of the sessions does not exist.
#[derive(Debug, Args)]
pub(crate) struct Rm {
    /// Sessions to remove
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
    /// Ignore sessions that do not exist
    #[arg(short, long)]
    force: bool,
}

/// The tenant whose sessions a command works on, and the sessions of its user.
struct Owned {
    tenant: String,
    user: String,
    sessions: Sessions,
}

impl Owned {
    fn open(context: &Context) -> Result<Self, Error> {
        let scope = context.config()?.scope;
        let sessions = context.sessions()?.for_user(&scope.tenant, &scope.user)?;
        Ok(Self { tenant: scope.tenant, user: scope.user, sessions })
    }

    async fn describe(&self, id: &str) -> Result<SessionDescription, Error> {
        self.sessions.describe(&self.tenant, id).await?.ok_or_else(|| no_session(id))
    }
}

fn no_session(id: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("no session `{id}` belongs to this user; `treehold session ls` lists them"))
}

impl Session {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let owned = Owned::open(context)?;
        match self {
            Self::Ls(ls) => ls.run(context, &owned).await,
            Self::Show(show) => show.run(context, &owned).await,
            Self::Messages(messages) => messages.run(context, &owned).await,
            Self::Turns(turns) => turns.run(context, &owned).await,
            Self::Compact(compact) => compact.run(context, &owned).await,
            Self::Export(export) => export.run(context, &owned).await,
            Self::Import(import) => import.run(context, &owned).await,
            Self::Rm(rm) => rm.run(context, &owned).await,
        }
    }
}

impl Ls {
    async fn run(self, context: &mut Context, owned: &Owned) -> Result<Outcome, Failure> {
        let mut after = self.after.as_deref().map(unescape_key).transpose()?;
        let mut count = 0;
        let mut table = Table::on_terminal(&context.out, &[Column::new("session"), Column::new("changed")]);
        loop {
            let page = owned.sessions.list(&owned.tenant, &owned.user, self.limit - count, after.as_deref()).await?;
            for session in &page.sessions {
                match &mut table {
                    Some(table) => {
                        let changed = Timestamp::from_millisecond(session.updated_at).map(|time| ago(time, Timestamp::now()));
                        table.row([Cell::new(&session.session_id), Cell::new(changed.unwrap_or_default())]);
                    }
                    None if context.out.is_text() => {
                        context.out.line(format_args!("{}  {}", time(session.updated_at), session.session_id))?
                    }
                    None => context.out.json_element(count, session)?,
                }
                count += 1;
            }
            table.iter_mut().try_for_each(|table| table.flush(&mut context.out))?;
            after = page.next;
            if count >= self.limit || after.is_none() {
                break;
            }
        }
        if !context.out.is_text() {
            context.out.json_end(count)?;
        }
        if let Some(after) = after {
            let after = escape_key(&after);
            context.out.notice(format_args!("there may be more sessions; raise `--limit`, or continue with `--after '{after}'`"));
        }
        Ok(Outcome::found(count > 0))
    }
}

/// A session with its memory documents.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    session: &'a SessionDescription,
    memory: &'a [MemoryIndexEntry],
}

impl Show {
    async fn run(self, context: &mut Context, owned: &Owned) -> Result<Outcome, Failure> {
        let session = owned.describe(&self.id).await?;
        let memory = owned.sessions.memory_index(&owned.tenant, &self.id).await?;
        let out = &mut context.out;
        if !out.is_text() {
            out.json(&Shown { session: &session, memory: &memory })?;
            return Ok(Outcome::Done);
        }
        let info = &session.info;
        out.line(format_args!("session  {}", info.session_id))?;
        out.line(format_args!("user     {} of {}", info.user_id, info.tenant_id))?;
        out.line(format_args!("agent    {}", info.agent_id))?;
        if let Some(title) = &info.title {
            out.line(format_args!("title    {title}"))?;
        }
        out.line(format_args!("created  {}", time(info.created_at)))?;
        out.line(format_args!("changed  {}", time(info.updated_at)))?;
        if let Some(usage) = &session.last_context_usage {
            let (input, output, percent) = (usage.input_tokens, usage.output_tokens, usage.budget_used_pct);
            out.line(format_args!("context  {input} tokens in, {output} out, {percent} % full"))?;
        }
        memory.iter().filter(|document| document.exists).try_for_each(|document| print_document(out, document))?;
        Ok(Outcome::Done)
    }
}

fn print_document(out: &mut Output, document: &MemoryIndexEntry) -> Result<(), Failure> {
    let summary = document.summary.as_ref().map_or_else(String::new, |summary| format!(": {summary}"));
    out.line(format_args!("{:<8} about {} tokens{summary}", document.name, document.size_tokens_approx))
}

/// What the text output shows of a turn. The other fields may hold anything, so they are not read.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct TurnLine {
    turn_index: u64,
    updated_at: i64,
    input_tokens: u64,
    output_tokens: u64,
    cache_read_tokens: u64,
    cache_write_tokens: u64,
}

impl Turns {
    async fn run(self, context: &mut Context, owned: &Owned) -> Result<Outcome, Failure> {
        let (mut count, mut after) = (0, self.after);
        loop {
            let page = owned.sessions.turns(&owned.tenant, &self.id, after, self.limit - count).await?;
            let page = page.ok_or_else(|| no_session(&self.id))?;
            for turn in &page.turns {
                match context.out.is_text() {
                    true => print_turn(&mut context.out, turn)?,
                    false => context.out.json_element(count, turn)?,
                }
                count += 1;
            }
            after = page.next;
            if count >= self.limit || after.is_none() {
                break;
            }
        }
        if !context.out.is_text() {
            context.out.json_end(count)?;
        }
        if let Some(after) = after {
            context.out.notice(format_args!("there may be more turns; raise `--limit`, or continue with `--after {after}`"));
        }
        Ok(Outcome::found(count > 0))
    }
}

fn print_turn(out: &mut Output, turn: &Json) -> Result<(), Failure> {
    let TurnLine { turn_index, updated_at, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens } = turn.view()?;
    let tokens = format!("{input_tokens:>8} {output_tokens:>8} {cache_read_tokens:>8} {cache_write_tokens:>8}");
    let index = out.paint(Style::Faint, format!("{turn_index:>6}")).to_string();
    out.line(format_args!("{index}  {}  {tokens}", time(updated_at)))
}

impl Rm {
    async fn run(self, context: &mut Context, owned: &Owned) -> Result<Outcome, Failure> {
        let mut removed = Vec::new();
        if !self.force {
            for id in &self.ids {
                owned.describe(id).await?;
            }
        }
        for id in self.ids {
            if owned.sessions.delete(&owned.tenant, &id).await? {
                context.out.detail(format_args!("removed session `{id}`"));
                removed.push(id);
            }
        }
        if !context.out.is_text() {
            context.out.json_list(&removed)?;
        }
        Ok(Outcome::Done)
    }
}

/// Formats a number of milliseconds since 1970.
fn time(milliseconds: i64) -> String {
    match Timestamp::from_millisecond(milliseconds) {
        Ok(time) => exact(time),
        Err(_) => milliseconds.to_string(),
    }
}
