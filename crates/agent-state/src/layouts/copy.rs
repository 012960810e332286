//! Copies states between two stores.

use super::text::compact;
use crate::contract::{AgentStateStore, Expected, SaveOptions, StateKey, StateVersion};
use crate::slot::StateSlot;
use serde::{Deserialize, Serialize};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::Json;

/// How many sessions or users are listed at once.
const PAGE: usize = 500;

/// How many problems a report lists. The rest are counted.
const PROBLEMS_MAX: usize = 1_000;

/// How often one value is read again because the target changed meanwhile.
const ATTEMPTS_MAX: usize = 5;

/// What happens to a value that the target has with another content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Existing {
    /// It is replaced if it is an earlier state of the same conversation: its messages are the first ones of the source's. Otherwise it
    /// stays, and is reported as a conflict.
    #[default]
    ReplaceEarlier,
    /// It stays, and is reported as a conflict.
    Keep,
    /// It is replaced.
    Replace,
}

/// The session that a copy has reached: copies go through the users in the order of [`AgentStateStore::users`], and through the sessions
/// of each in the order of their ids.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyPosition {
    /// The user; `None` is the anonymous one.
    pub user: Option<String>,
    /// The session.
    pub session: String,
}

/// Options for [`copy_states`].
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct CopyOptions {
    /// Whether to write nothing and only report what would be done. Default `false`.
    pub dry_run: bool,
    /// What happens to values that differ. Default [`Existing::ReplaceEarlier`].
    pub existing: Existing,
    /// Whether to leave out reading each written value back. Default `false`.
    pub unverified: bool,
    /// The user to copy; `Some(None)` is the anonymous one. Default: all.
    pub user: Option<Option<String>>,
    /// The only session to copy. Needs [`CopyOptions::user`].
    pub session: Option<String>,
    /// Where an interrupted copy goes on: after this session.
    pub after: Option<CopyPosition>,
}

impl CopyOptions {
    /// Copies everything.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether to write nothing.
    #[must_use]
    pub fn with_dry_run(mut self, dry_run: bool) -> Self {
        self.dry_run = dry_run;
        self
    }

    /// Sets what happens to values that differ.
    #[must_use]
    pub fn with_existing(mut self, existing: Existing) -> Self {
        self.existing = existing;
        self
    }

    /// Sets whether to leave out reading each written value back.
    #[must_use]
    pub fn with_unverified(mut self, unverified: bool) -> Self {
        self.unverified = unverified;
        self
    }

    /// Copies one user; `None` is the anonymous one.
    #[must_use]
    pub fn with_user(mut self, user: Option<String>) -> Self {
        self.user = Some(user);
        self
    }

    /// Copies one session of the user.
    #[must_use]
    pub fn with_session(mut self, session: impl Into<String>) -> Self {
        self.session = Some(session.into());
        self
    }

    /// Goes on after a session.
    #[must_use]
    pub fn with_after(mut self, after: Option<CopyPosition>) -> Self {
        self.after = after;
        self
    }
}

/// How far a copy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CopyProgress<'a> {
    /// The session that is done.
    pub position: &'a CopyPosition,
    /// How many sessions are done.
    pub sessions: u64,
    /// How many values were copied.
    pub copied: u64,
}

/// A value or session that was not copied.
#[derive(Debug)]
#[non_exhaustive]
pub struct CopyProblem {
    /// The session.
    pub position: CopyPosition,
    /// The key; `None` if the session could not be copied at all.
    pub key: Option<StateKey>,
    /// Why: a [`Conflict`](ErrorKind::Conflict) if the target has another value, otherwise what one of the stores answered.
    pub error: Error,
}

/// What a copy did, or would do in a dry run.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct CopyReport {
    /// How many sessions were looked at.
    pub sessions: u64,
    /// How many values and lists were copied.
    pub copied: u64,
    /// How many of those replaced another value.
    pub replaced: u64,
    /// How many were equal already.
    pub unchanged: u64,
    /// The bytes of the JSON that was copied.
    pub bytes: u64,
    /// How many were left as they were because the target has another value.
    pub conflicts: u64,
    /// How many were left out because one of the stores refused them.
    pub skipped: u64,
    /// The first 1,000 conflicts and skipped values.
    pub problems: Vec<CopyProblem>,
}

impl CopyReport {
    fn problem(&mut self, position: &CopyPosition, key: Option<StateKey>, error: Error) {
        match error.kind() {
            ErrorKind::Conflict => self.conflicts += 1,
            _ => self.skipped += 1,
        }
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(CopyProblem { position: position.clone(), key, error });
        }
    }
}

/// Copies the states of one store to another. Both may be in use meanwhile.
///
/// A value that is equal is left alone, so that a copy can be repeated: it then takes over what is new. Values are compared as JSON, without
/// white space. In a target with versions a value is replaced by compare-and-set, so that a write that comes between is not lost.
/// Nothing is deleted. What one of the stores refuses is reported, and the copy goes on.
///
/// Cost: one read of each value in both stores, one write and one read of each copied one. Holds one value of each store in memory.
///
/// # Errors
/// [`InvalidArgument`](ErrorKind::InvalidArgument) for a session without its user. Transient errors, and those of the lists of users and
/// sessions; [`CopyOptions::after`] goes on from the last position that `progress` was told.
pub async fn copy_states(
    from: &dyn AgentStateStore,
    to: &dyn AgentStateStore,
    options: &CopyOptions,
    mut progress: impl FnMut(CopyProgress<'_>),
) -> Result<CopyReport> {
    let mut copy = Copy { from, to, options, report: CopyReport::default() };
    match (&options.user, &options.session) {
        (None, Some(_)) => return Err(Error::invalid_argument("a session to copy needs its user")),
        (Some(user), Some(session)) => copy.session(&CopyPosition { user: user.clone(), session: session.clone() }, &mut progress).await?,
        (Some(user), None) => copy.user(user.as_deref(), &mut progress).await?,
        (None, None) => copy.users(&mut progress).await?,
    }
    Ok(copy.report)
}

struct Copy<'a> {
    from: &'a dyn AgentStateStore,
    to: &'a dyn AgentStateStore,
    options: &'a CopyOptions,
    report: CopyReport,
}

/// A value or a list.
#[derive(Debug, PartialEq, Eq)]
enum Content {
    Single(Json),
    List(Vec<Json>),
}

impl Copy<'_> {
    async fn users(&mut self, progress: &mut impl FnMut(CopyProgress<'_>)) -> Result<()> {
        let mut after = None;
        loop {
            let page = self.from.users(after.as_deref(), PAGE).await?;
            for user in page.users {
                // Cursors of pages are the store's own, so that an interrupted copy lists the users again.
                if self.options.after.as_ref().is_none_or(|position| user >= position.user) {
                    self.user(user.as_deref(), progress).await?;
                }
            }
            after = page.next;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    async fn user(&mut self, user: Option<&str>, progress: &mut impl FnMut(CopyProgress<'_>)) -> Result<()> {
        let mut after = match &self.options.after {
            Some(position) if position.user.as_deref() == user => Some(position.session.clone()),
            _ => None,
        };
        loop {
            let page = self.from.session_ids(user, after.as_deref(), PAGE).await?;
            for session in page.sessions {
                self.session(&CopyPosition { user: user.map(str::to_owned), session }, progress).await?;
            }
            after = page.next;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    async fn session(&mut self, position: &CopyPosition, progress: &mut impl FnMut(CopyProgress<'_>)) -> Result<()> {
        let slot = StateSlot::new(position.user.as_deref(), position.session.as_str())?;
        match self.from.keys(&slot).await {
            Ok(keys) => {
                for key in keys {
                    match self.value(&slot, &key).await {
                        Ok(()) => {}
                        Err(error) if error.kind().is_transient() => return Err(error),
                        Err(error) => self.report.problem(position, Some(key), error),
                    }
                }
            }
            Err(error) if error.kind().is_transient() => return Err(error),
            Err(error) => self.report.problem(position, None, error),
        }
        self.report.sessions += 1;
        progress(CopyProgress { position, sessions: self.report.sessions, copied: self.report.copied });
        Ok(())
    }

    /// Copies one value. Reads both sides again if the target changed meanwhile.
    async fn value(&mut self, slot: &StateSlot, key: &StateKey) -> Result<()> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let Some(content) = read(self.from, slot, key).await?.0 else { return Ok(()) };
            // The version is read before the list: one that is saved between the reads is not replaced unseen.
            let list_version = match key {
                StateKey::List(name) => self.to.list_version(slot, name).await?,
                StateKey::Single(_) => None,
            };
            let (there, version) = read(self.to, slot, key).await?;
            if there.as_ref().is_some_and(|there| same(there, &content)) {
                self.report.unchanged += 1;
                return Ok(());
            }
            if let Some(there) = &there {
                self.check_replacement(there, &content)?;
            }
            if !self.options.dry_run {
                match self.write(slot, key, &content, version.or(list_version)).await {
                    Err(error) if error.kind() == ErrorKind::Conflict && attempts < ATTEMPTS_MAX => continue,
                    written => written?,
                }
                if !self.options.unverified {
                    self.verify(slot, key, &content).await?;
                }
            }
            self.report.copied += 1;
            self.report.replaced += u64::from(there.is_some());
            self.report.bytes += bytes_of(&content);
            return Ok(());
        }
    }

    fn check_replacement(&self, there: &Content, content: &Content) -> Result<()> {
        let (is_earlier, is_later) = (begins(there, content), begins(content, there));
        match self.options.existing {
            Existing::Replace => Ok(()),
            Existing::ReplaceEarlier if is_earlier => Ok(()),
            _ => {
                let message = match (is_earlier, is_later) {
                    (true, _) => "the target has an earlier state of the conversation; allow it to be replaced",
                    (_, true) => "the target has a later state of the conversation; keep it, or replace it explicitly",
                    _ => "the target has another state that is not the beginning of the source's; compare them, or replace it explicitly",
                };
                Err(Error::new(ErrorKind::Conflict, message))
            }
        }
    }

    async fn write(&self, slot: &StateSlot, key: &StateKey, content: &Content, version: Option<StateVersion>) -> Result<()> {
        let (StateKey::Single(name) | StateKey::List(name)) = key;
        let capabilities = self.to.capabilities();
        let is_versioned = match key {
            StateKey::Single(_) => capabilities.versions,
            StateKey::List(_) => capabilities.list_versions,
        };
        let expected = match version {
            _ if !is_versioned => Expected::Any,
            Some(version) => Expected::Version(version),
            None => Expected::Absent,
        };
        let options = SaveOptions::new().with_expected(expected);
        match content {
            Content::Single(value) => self.to.save(slot, name, value, options).await.map(drop),
            Content::List(values) => self.to.save_list(slot, name, values, options).await.map(drop),
        }
    }

    /// Reads a written value back. Another writer may have replaced it already, but never by an earlier state.
    async fn verify(&self, slot: &StateSlot, key: &StateKey, content: &Content) -> Result<()> {
        match read(self.to, slot, key).await? {
            (Some(there), _) if same(&there, content) || begins(content, &there) => Ok(()),
            _ => Err(Error::new(ErrorKind::Corrupt, "the target returns another value than the one that was written; check the target")),
        }
    }
}

/// Reads a value; a single one with its version.
async fn read(states: &dyn AgentStateStore, slot: &StateSlot, key: &StateKey) -> Result<(Option<Content>, Option<StateVersion>)> {
    match key {
        StateKey::Single(key) => {
            let found = states.get(slot, key).await?;
            let version = found.as_ref().and_then(|found| found.version);
            Ok((found.map(|found| Content::Single(found.value)), version))
        }
        StateKey::List(key) => {
            let values = states.get_list(slot, key).await?;
            // An empty list and none are the same to their readers.
            Ok(((!values.is_empty()).then_some(Content::List(values)), None))
        }
    }
}

fn same(a: &Content, b: &Content) -> bool {
    match (a, b) {
        (Content::Single(a), Content::Single(b)) => compact(a) == compact(b),
        (Content::List(a), Content::List(b)) => a.len() == b.len() && is_start(a, b),
        _ => false,
    }
}

/// Returns whether a state comes before another one in the same conversation: it has fewer messages, and the other one begins with them.
fn begins(earlier: &Content, later: &Content) -> bool {
    let (earlier, later) = (messages(earlier), messages(later));
    earlier.zip(later).is_some_and(|(earlier, later)| earlier.len() < later.len() && is_start(&earlier, &later))
}

fn is_start(start: &[Json], whole: &[Json]) -> bool {
    start.iter().zip(whole).all(|(a, b)| compact(a) == compact(b))
}

/// Returns the messages of a state; `None` for a value that has none.
fn messages(content: &Content) -> Option<Vec<Json>> {
    #[derive(Deserialize)]
    struct Conversation {
        context: Vec<Json>,
    }
    match content {
        // An array would be read as the fields of the struct.
        Content::Single(value) if value.as_str().starts_with('{') => value.view::<Conversation>().ok().map(|state| state.context),
        Content::Single(_) => None,
        Content::List(values) => Some(values.clone()),
    }
}

fn bytes_of(content: &Content) -> u64 {
    match content {
        Content::Single(value) => value.as_str().len() as u64,
        Content::List(values) => values.iter().map(|value| value.as_str().len() as u64).sum(),
    }
}
