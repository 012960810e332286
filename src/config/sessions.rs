//! `[sessions]`: where the sessions of agent hosts are stored, their limits, and the session whose memory documents are mounted.

use super::check::positive_time;
use super::fault::Broken;
use super::stores::Stores;
use super::{Config, DEFAULT_STORE};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use treehold_agent::workspace::WorkspaceBuilder;
use treehold_core::error::{Error, Result};
use treehold_core::scope::{Scope, ScopeField};
use treehold_sessions::{MemoMount, SESSION_MOUNT, Sessions, SessionsOptions, USER_MOUNT, check_id};

/// Where the sessions of agent hosts are stored, their limits, and the session whose memory documents are mounted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct SessionsConfig {
    /// The store of the sessions. Default: the only one configured, or `default`.
    pub store: String,
    /// The session whose notes, tasks and tool results are mounted at `/memo/session`, with the notes about its user at `/memo/user`.
    /// None by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mounted: Option<String>,
    /// The largest message, event or other single value in bytes. Default 1 MiB.
    pub item_bytes_max: usize,
    /// The most messages of one append. Default 1,000.
    pub batch_max: usize,
    /// The largest append in bytes. Default 16 MiB.
    pub batch_bytes_max: usize,
    /// The most entries of one page. Default 1,000.
    pub page_max: usize,
    /// How long a repeated append with the same idempotency key is recognised. Default `24h`.
    pub idempotency_time: String,
}

impl Default for SessionsConfig {
    fn default() -> Self {
        let SessionsOptions { item_bytes_max, batch_max, batch_bytes_max, page_max, .. } = SessionsOptions::default();
        let store = DEFAULT_STORE.to_owned();
        Self { store, mounted: None, item_bytes_max, batch_max, batch_bytes_max, page_max, idempotency_time: "24h".to_owned() }
    }
}

impl SessionsConfig {
    /// Returns the settings of the library.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for a malformed duration.
    pub fn options(&self) -> Result<SessionsOptions> {
        Ok(SessionsOptions::new()
            .with_item_bytes_max(self.item_bytes_max)
            .with_batch_max(self.batch_max)
            .with_batch_bytes_max(self.batch_bytes_max)
            .with_page_max(self.page_max)
            .with_idempotency_time(self.idempotency_time()?))
    }

    fn idempotency_time(&self) -> Result<Duration> {
        positive_time(&self.idempotency_time, "a duration", "write it as `24h` or `90m`")
    }

    /// Checks each value.
    pub(super) fn check(&self) -> Result<(), Broken> {
        let counts = [
            ("item_bytes_max", self.item_bytes_max),
            ("batch_max", self.batch_max),
            ("batch_bytes_max", self.batch_bytes_max),
            ("page_max", self.page_max),
        ];
        for (key, count) in counts {
            if count == 0 {
                let hint = Some("set at least 1".to_owned());
                return Err(Broken::new(&["sessions", key], format!("`{key}` is 0, which allows nothing")).with_hint(hint));
            }
        }
        self.idempotency_time().map_err(|error| Broken::new(&["sessions", "idempotency_time"], error.message()))?;
        match self.mounted.as_ref().map(|session| check_id("session", session)) {
            Some(Err(error)) => Err(Broken::new(&["sessions", "mounted"], error.message())),
            _ => Ok(()),
        }
    }
}

impl Config {
    /// Opens the sessions of agent hosts with the configured limits.
    ///
    /// # Errors
    /// [`NotFound`](treehold_core::error::ErrorKind::NotFound) for a store that is not in `stores`, and
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for a malformed duration, which is possible if it was set
    /// after parsing.
    pub fn sessions(&self, stores: &Stores) -> Result<Sessions> {
        Ok(Sessions::new(stores.get(&self.sessions.store)?).with_options(self.sessions.options()?))
    }

    /// Mounts the memory documents of a session. `by` names the origin, which [`Origin::Caller`](super::Origin::Caller) shows.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for an id that no session can have, and if a route takes the
    /// path of a mount.
    pub fn set_session(&mut self, session: &str, by: impl Into<String>) -> Result<()> {
        check_id("session", session)?;
        self.sessions.mounted = Some(session.to_owned());
        self.callers.insert(vec!["sessions".to_owned(), "mounted".to_owned()], by.into());
        match self.routes.keys().find(|path| is_memo_mount(path)) {
            Some(path) => Err(Error::invalid_argument(taken(path))),
            None => Ok(()),
        }
    }

    /// Checks that no route takes the path of a memo mount.
    pub(super) fn check_memo_mounts(&self) -> Result<(), Broken> {
        match self.routes.keys().find(|path| is_memo_mount(path)) {
            Some(path) if self.sessions.mounted.is_some() => Err(Broken::new(&["routes", path], taken(path))),
            _ => Ok(()),
        }
    }

    /// Mounts the memory documents of the configured session and of its user.
    pub(super) fn with_memo(&self, workspace: WorkspaceBuilder, stores: &Stores) -> Result<WorkspaceBuilder> {
        let Some(session) = self.sessions.mounted.clone() else { return Ok(workspace) };
        let store = stores.get(&self.sessions.store)?;
        let of_user = store.clone();
        let workspace = mounted(workspace, USER_MOUNT, move |tenant, user| MemoMount::of_user(of_user.clone(), tenant, user), &store)?;
        let of_session = store.clone();
        let open = move |tenant: &str, user: &str| MemoMount::of_session(of_session.clone(), tenant, user, &session);
        mounted(workspace, SESSION_MOUNT, open, &store)
    }
}

/// Mounts a tree that depends on the tenant and user, with the namespace that reports its changes.
fn mounted(
    workspace: WorkspaceBuilder,
    path: &'static str,
    open: impl Fn(&str, &str) -> Result<MemoMount> + Clone + Send + Sync + 'static,
    store: &std::sync::Arc<dyn treehold_store::Store>,
) -> Result<WorkspaceBuilder> {
    let open = move |scope: &Scope| {
        let field = |field: ScopeField| {
            scope.field(field).ok_or_else(|| Error::invalid_argument(format!("`{path}` belongs to a user, but no {field} is set")))
        };
        open(field(ScopeField::Tenant)?, field(ScopeField::User)?)
    };
    let (changes, store) = (open.clone(), store.clone());
    workspace
        .mount(path, move |opening| Ok(open(opening.scope())?.tree))?
        .with_change_source(path, move |scope| Ok((store.clone(), changes(scope)?.changes)))
}

fn is_memo_mount(path: &str) -> bool {
    [USER_MOUNT, SESSION_MOUNT].contains(&path.trim_end_matches('/'))
}

fn taken(path: &str) -> String {
    format!("`{path}` is where the memory documents of a session are mounted; choose another path for this route")
}
