//! `state`: the states of stateless agents. The longer commands are in files of their own.

mod copy;
mod export;
mod put;

use self::copy::Copy;
use self::export::Export;
use self::put::Put;
use crate::agent_state::call::{Interrupt as StopRequest, TurnGate, TurnKey};
use crate::agent_state::{
    AGENT_STATE_KEY, AgentStateStore, DeleteOptions, DeleteSessionOptions, Expected, Fence, Json, StateForm, StateKey, StateSlot,
    StateVersion, StoreStates, list_text,
};
use crate::cli::args::at_least_one;
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::store::{escape_key, unescape_key};
use crate::{Error, ErrorKind};
use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::json;

/// The agent of a command without `--agent`.
const AGENT: &str = "default";

/// Read, write, export and remove the states of agents
///
/// A state is what a stateless agent knows of one session: the conversation, its summary, tasks and permissions. The commands work on
/// the states of --agent (`default`), --tenant and --user, or of the anonymous user with `--anonymous`.
#[derive(Debug, Subcommand)]
pub(crate) enum State {
    Ls(Ls),
    Show(Show),
    Get(Get),
    Put(Put),
    Copy(Copy),
    Export(Export),
    Interrupt(Interrupt),
    Rm(Rm),
}

/// Whose sessions a command works on.
#[derive(Debug, Args)]
pub(super) struct Whose {
    /// Use the sessions of the anonymous user instead of those of --user
    #[arg(long)]
    anonymous: bool,
}

/// List the sessions of a user, or the users
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold state ls
  treehold --user ada --agent helper state ls --limit 10
  treehold state ls --users --json")]
pub(crate) struct Ls {
    /// List the users that have states; in text, the anonymous one is a line without a name
    #[arg(long, conflicts_with = "anonymous")]
    users: bool,
    /// Print at most N entries
    #[arg(long, value_name = "N", default_value = "50", value_parser = at_least_one)]
    limit: usize,
    /// Continue after this cursor, which the previous list printed
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
    #[command(flatten)]
    whose: Whose,
}

/// List the keys of a session with their forms and versions
#[derive(Debug, Args)]
pub(crate) struct Show {
    /// Session
    #[arg(value_name = "ID")]
    id: String,
    #[command(flatten)]
    whose: Whose,
}

/// Print a state as it was saved
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold state get monday
  treehold state get monday notes --list --json")]
pub(crate) struct Get {
    /// Session
    #[arg(value_name = "ID")]
    id: String,
    /// Key
    #[arg(default_value = AGENT_STATE_KEY)]
    key: String,
    /// Print the list of this key, rather than the single value
    #[arg(long)]
    list: bool,
    #[command(flatten)]
    whose: Whose,
}

/// Interrupt the call of a session that runs now
///
/// The call ends at its next safe point with what it has so far. Calls that wait and later ones are not interrupted. If no call runs,
/// the exit code is 1.
#[derive(Debug, Args)]
#[command(after_long_help = "Example:
  treehold state interrupt monday --message 'stop, the tea is here'")]
pub(crate) struct Interrupt {
    /// Session
    #[arg(value_name = "ID")]
    id: String,
    /// What the person says who interrupts
    #[arg(long, value_name = "TEXT")]
    message: Option<String>,
    /// Interrupt as a runtime that shuts down: the call fails, and can be repeated
    #[arg(long)]
    system: bool,
    #[command(flatten)]
    whose: Whose,
}

/// Remove sessions with all their states, or one key of a session
///
/// Nothing is removed if one of the sessions does not exist. With `--if-version`, a key that changed meanwhile stays as it is, and the
/// exit code is 4. It is 4, too, if the turn of `--fence` was lost.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold state rm monday tuesday
  treehold state rm monday --key notes
  treehold state rm monday --key mood --if-version 2")]
pub(crate) struct Rm {
    /// Sessions to remove
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
    /// Remove only this key of each session
    #[arg(long)]
    key: Option<String>,
    /// Remove only the list of the key, not its single value
    #[arg(long, requires = "key")]
    list: bool,
    /// Fail unless the key has this version; removes the single value only, or the list with `--list`
    #[arg(long, value_name = "VERSION", requires = "key", conflicts_with = "force")]
    if_version: Option<u64>,
    /// Fail if the turn with this fencing token was lost; takes a single session
    #[arg(long, value_name = "TOKEN")]
    fence: Option<u64>,
    /// Ignore sessions that do not exist
    #[arg(short, long)]
    force: bool,
    #[command(flatten)]
    whose: Whose,
}

/// The states that a command works on.
pub(super) struct Owned {
    tenant: String,
    user: Option<String>,
    states: StoreStates,
}

impl Owned {
    fn open(context: &Context, whose: &Whose) -> Result<Self, Error> {
        let scope = context.config()?.scope;
        let user = (!whose.anonymous).then_some(scope.user);
        let agent = scope.agent.unwrap_or_else(|| AGENT.to_owned());
        let states = context.agent_states()?.for_user(&scope.tenant, user.as_deref())?.for_agent(&scope.tenant, &agent)?;
        Ok(Self { tenant: scope.tenant, user, states })
    }

    fn slot(&self, session: &str) -> Result<StateSlot, Error> {
        StateSlot::new(self.user.as_deref(), session)
    }

    /// Returns whose turn it is when a session is used.
    fn turn(&self, slot: &StateSlot) -> Result<TurnKey, Error> {
        TurnKey::new(&self.tenant, self.states.agent(), slot)
    }

    /// Returns the fence of the turn with a fencing token.
    fn fence(&self, slot: &StateSlot, token: Option<u64>) -> Result<Option<Fence>, Error> {
        token.map(|token| Ok(TurnGate::fence(&self.turn(slot)?, token))).transpose()
    }
}

fn no_session(slot: &StateSlot) -> Error {
    Error::new(ErrorKind::NotFound, format!("the {slot} has no states; `treehold state ls` lists the sessions that have"))
}

fn no_key(slot: &StateSlot, key: &str) -> Error {
    let message = format!("the {slot} has no state `{}`; `treehold state show` lists its keys", key.escape_debug());
    Error::new(ErrorKind::NotFound, message)
}

impl State {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        match self {
            Self::Ls(ls) => ls.run(context).await,
            Self::Show(show) => show.run(context).await,
            Self::Get(get) => get.run(context).await,
            Self::Put(put) => put.run(context).await,
            Self::Copy(copy) => copy.run(context).await,
            Self::Export(export) => export.run(context).await,
            Self::Interrupt(interrupt) => interrupt.run(context).await,
            Self::Rm(rm) => rm.run(context).await,
        }
    }
}

impl Ls {
    async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let mut after = self.after.as_deref().map(unescape_key).transpose()?;
        let mut count = 0;
        loop {
            let limit = self.limit - count;
            let (entries, next) = match self.users {
                true => {
                    let config = context.config()?;
                    let agent = config.scope.agent.unwrap_or_else(|| AGENT.to_owned());
                    let tenant = config.scope.tenant;
                    let states = context.agent_states()?.for_tenant(&tenant)?.for_agent(&tenant, &agent)?;
                    let page = states.users(after.as_deref(), limit).await?;
                    (page.users, page.next)
                }
                false => {
                    let owned = Owned::open(context, &self.whose)?;
                    let page = owned.states.session_ids(owned.user.as_deref(), after.as_deref(), limit).await?;
                    (page.sessions.into_iter().map(Some).collect(), page.next)
                }
            };
            for entry in entries {
                match context.out.is_text() {
                    true => context.out.line(entry.unwrap_or_default())?,
                    false => context.out.json_element(count, &entry)?,
                }
                count += 1;
            }
            after = next;
            if count >= self.limit || after.is_none() {
                break;
            }
        }
        if !context.out.is_text() {
            context.out.json_end(count)?;
        }
        if let Some(after) = after {
            let after = escape_key(&after);
            context.out.notice(format_args!("there may be more; raise `--limit`, or continue with `--after '{after}'`"));
        }
        Ok(Outcome::found(count > 0))
    }
}

/// A key with the form and version of its value.
#[derive(Serialize)]
struct Shown {
    key: String,
    form: StateForm,
    version: u64,
}

impl Show {
    async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let owned = Owned::open(context, &self.whose)?;
        let slot = owned.slot(&self.id)?;
        let keys: Vec<Shown> = owned.states.keys_with_versions(&slot).await?.into_iter().map(shown).collect();
        if keys.is_empty() {
            return Err(no_session(&slot).into());
        }
        if !context.out.is_text() {
            context.out.json_list(&keys)?;
            return Ok(Outcome::Done);
        }
        for Shown { key, form, version } in keys {
            let form = match form {
                StateForm::Single => "single",
                StateForm::List => "list",
            };
            context.out.line(format_args!("{version:>8}  {form:<6}  {}", escape_key(&key)))?;
        }
        Ok(Outcome::Done)
    }
}

fn shown((key, version): (StateKey, StateVersion)) -> Shown {
    let (key, form) = match key {
        StateKey::Single(key) => (key, StateForm::Single),
        StateKey::List(key) => (key, StateForm::List),
    };
    Shown { key, form, version: version.number() }
}

impl Get {
    async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let owned = Owned::open(context, &self.whose)?;
        let slot = owned.slot(&self.id)?;
        let (value, version) = match self.list {
            true => {
                let version = owned.states.list_version(&slot, &self.key).await?.ok_or_else(|| no_key(&slot, &self.key))?;
                (list_text(&owned.states.get_list(&slot, &self.key).await?)?, Some(version))
            }
            false => {
                let found = owned.states.get(&slot, &self.key).await?.ok_or_else(|| no_key(&slot, &self.key))?;
                (found.value, found.version)
            }
        };
        let version = version.map(StateVersion::number);
        if context.out.is_text() {
            context.out.content(value.as_str().as_bytes())?;
            context.out.content(b"\n")?;
            if let Some(version) = version {
                context.out.detail(format_args!("version {version}"));
            }
            return Ok(Outcome::Done);
        }
        // The value may have been stored with line breaks.
        let value = Json::parse(&value.on_one_line())?;
        context.out.json(&Printed { key: &self.key, version, value: &value })?;
        Ok(Outcome::Done)
    }
}

/// A state as JSON.
#[derive(Serialize)]
struct Printed<'a> {
    key: &'a str,
    version: Option<u64>,
    value: &'a Json,
}

impl Interrupt {
    async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let owned = Owned::open(context, &self.whose)?;
        let slot = owned.slot(&self.id)?;
        let message = self.message.as_deref().map(Json::of).transpose()?;
        let request = if self.system { StopRequest::system() } else { StopRequest::user() };
        let gate = TurnGate::new(owned.states.all().store().clone());
        let hit = gate.interrupt(&owned.turn(&slot)?, request.with_message(message)).await?;
        match context.out.is_text() {
            true if hit => context.out.detail(format_args!("interrupted the call of the {slot}")),
            true => context.out.notice(format_args!("no call of the {slot} runs")),
            false => context.out.json(&json!({"hit": hit}))?,
        }
        Ok(Outcome::found(hit))
    }
}

impl Rm {
    async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let owned = Owned::open(context, &self.whose)?;
        if self.fence.is_some() && self.ids.len() > 1 {
            let message = "a turn belongs to one session, so `--fence` removes only one; run the command for each session";
            return Err(Error::invalid_argument(message).into());
        }
        let slots = self.ids.iter().map(|id| owned.slot(id)).collect::<Result<Vec<_>, Error>>()?;
        let mut present = Vec::new();
        for slot in &slots {
            let exists = match &self.key {
                Some(key) => owned.states.keys(slot).await?.iter().any(|known| self.removes(known, key)),
                None => owned.states.exists(slot).await?,
            };
            match (exists, &self.key) {
                (true, _) => present.push(slot),
                (false, _) if self.force => {}
                (false, Some(key)) => return Err(no_key(slot, key).into()),
                (false, None) => return Err(no_session(slot).into()),
            }
        }
        let mut removed = Vec::new();
        for slot in present {
            let fence = owned.fence(slot, self.fence)?;
            match &self.key {
                Some(key) => {
                    let options = DeleteOptions::new().with_form(self.form()).with_expected(expected(self.if_version));
                    owned.states.delete(slot, key, options.with_fence(fence)).await?;
                }
                None => owned.states.delete_session(slot, DeleteSessionOptions::new().with_fence(fence)).await?,
            }
            context.out.detail(format_args!("removed the {slot}"));
            removed.push(slot.session());
        }
        if !context.out.is_text() {
            context.out.json_list(&removed)?;
        }
        Ok(Outcome::Done)
    }

    /// Returns the only form to remove.
    fn form(&self) -> Option<StateForm> {
        self.list.then_some(StateForm::List)
    }

    /// Returns whether a known key is one to remove.
    fn removes(&self, known: &StateKey, key: &str) -> bool {
        let (StateKey::Single(own) | StateKey::List(own)) = known;
        own == key && (!self.list || matches!(known, StateKey::List(_)))
    }
}

/// Returns what a change with `--if-version` expects.
fn expected(if_version: Option<u64>) -> Expected {
    match if_version {
        None => Expected::Any,
        Some(version) => StateVersion::new(version).map_or(Expected::Absent, Expected::Version),
    }
}
