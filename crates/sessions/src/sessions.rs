//! Creates, describes, lists and deletes sessions.

use crate::events::{InitEvent, TurnEvent, UpdateEvent};
use crate::info::{SessionDescription, SessionInfo, SessionMeta, SessionPage, SessionRef, TurnPage};
use crate::options::SessionsOptions;
use crate::rows::{self, Head, Opened, Part, Registration, Removal, UserRows, Window, position_key, removals};
use crate::usage::{SessionContextUsage, UsageTotals};
use jiff::Timestamp;
use std::fmt;
use std::sync::Arc;
use treehold_core::clock::Clock;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::{Json, row, stored};
use treehold_core::ops::Version;
use treehold_core::retry::Attempts;
use treehold_core::scope::check_id;
use treehold_store::intent::Intent;
use treehold_store::{Batch, Namespace, ScanEntry, ScanOptions, Store};
use uuid::Uuid;

/// Generates ids of sessions and of their data.
#[derive(Clone)]
pub struct Ids(Arc<dyn Fn() -> String + Send + Sync>);

impl Ids {
    /// Makes random UUIDs (version 4).
    pub fn random() -> Self {
        Self::from_fn(|| Uuid::new_v4().to_string())
    }

    /// Calls a function, which must never return the same id twice.
    pub fn from_fn(next: impl Fn() -> String + Send + Sync + 'static) -> Self {
        Self(Arc::new(next))
    }

    pub(crate) fn next(&self) -> String {
        (self.0)()
    }
}

impl fmt::Debug for Ids {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ids")
    }
}

/// The sessions of all tenants and users of a store.
///
/// Idle sessions use no process memory, and any number of processes may serve the same
/// sessions. Clones share the store.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use treehold_sessions::{AppendOptions, Message, Sessions};
/// use treehold_store::MemoryStore;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold_core::Result<()> {
/// let sessions = Sessions::new(Arc::new(MemoryStore::new()));
/// let session = sessions.get_or_create("acme", "ada", "helper", None).await?;
/// let id = &session.session_id;
/// sessions.append("acme", id, &[Message::user("hello", 1)], &AppendOptions::new()).await?;
/// assert_eq!(sessions.load_all("acme", id).await?[0].text(), "hello");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Sessions {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) options: SessionsOptions,
    pub(crate) clock: Clock,
    ids: Ids,
    reach: Reach,
}

/// Whose sessions are accessible.
#[derive(Debug, Clone)]
enum Reach {
    /// Those of all users.
    All,
    /// Those of the users of a tenant.
    Tenant(Arc<str>),
    /// Those of a user.
    User(Arc<UserRows>),
}

/// A session that [`Sessions::get_or_create`] found or created.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct SessionHandle {
    /// The id.
    pub session_id: String,
    /// The same session with its tenant, as one text.
    pub session_ref: SessionRef,
    /// Whether this call created it.
    #[serde(skip)]
    pub created: bool,
}

impl Sessions {
    /// Opens the sessions of a store with the default settings.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store, options: SessionsOptions::default(), clock: Clock::system(), ids: Ids::random(), reach: Reach::All }
    }

    /// Sets limits and other settings.
    #[must_use]
    pub fn with_options(mut self, options: SessionsOptions) -> Self {
        self.options = options;
        // A page without entries would end no list.
        self.options.page_max = self.options.page_max.max(1);
        self
    }

    /// Sets the source of times.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Sets the source of ids.
    #[must_use]
    pub fn with_ids(mut self, ids: Ids) -> Self {
        self.ids = ids;
        self
    }

    /// Restricts access to the sessions and memory documents of one user. Those of other users appear not to exist. Entry points
    /// use it, so that no method needs a check of its own; it also saves a round trip.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for an id that cannot name a tenant or user.
    pub fn for_user(&self, tenant: &str, user: &str) -> Result<Self> {
        check_id("tenant", tenant)?;
        check_id("user", user)?;
        Ok(Self { reach: Reach::User(Arc::new(UserRows::new(tenant, user))), ..self.clone() })
    }

    /// Restricts access to the sessions and memory documents of the users of one tenant. Otherwise as [`Sessions::for_user`].
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for an id that cannot name a tenant.
    pub fn for_tenant(&self, tenant: &str) -> Result<Self> {
        check_id("tenant", tenant)?;
        Ok(Self { reach: Reach::Tenant(tenant.into()), ..self.clone() })
    }

    /// Returns whether the data of a user is accessible.
    pub(crate) fn admits(&self, tenant: &str, user: &str) -> bool {
        match &self.reach {
            Reach::All => true,
            Reach::Tenant(own) => **own == *tenant,
            Reach::User(own) => own.tenant == tenant && own.user == user,
        }
    }

    /// Returns whether the data of any user of a tenant is accessible.
    pub(crate) fn admits_some_of(&self, tenant: &str) -> bool {
        match &self.reach {
            Reach::All => true,
            Reach::Tenant(own) => **own == *tenant,
            Reach::User(own) => own.tenant == tenant,
        }
    }

    /// Returns the beginning of the keys of the accessible users in the directory of removals.
    pub(crate) fn removals_prefix(&self) -> String {
        match &self.reach {
            Reach::All => String::new(),
            Reach::Tenant(own) => Removal::prefix(own, None),
            Reach::User(own) => Removal::prefix(&own.tenant, Some(&own.user)),
        }
    }

    /// Returns the user if only one is accessible.
    pub(crate) fn only_user(&self) -> Option<&UserRows> {
        match &self.reach {
            Reach::User(own) => Some(own),
            Reach::All | Reach::Tenant(_) => None,
        }
    }

    /// Returns the tenant if only one is accessible.
    pub(crate) fn only_tenant(&self) -> Option<&str> {
        match &self.reach {
            Reach::All => None,
            Reach::Tenant(own) => Some(own),
            Reach::User(own) => Some(&own.tenant),
        }
    }

    /// Refuses the data of a user that is not accessible.
    pub(crate) fn check_owner(&self, tenant: &str, user: &str) -> Result<()> {
        if self.admits(tenant, user) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::PermissionDenied, format!("the sessions of the user `{user}` are not accessible here")))
    }

    /// Returns the store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Returns the settings.
    pub fn options(&self) -> &SessionsOptions {
        &self.options
    }

    /// Returns the time.
    pub(crate) fn time(&self) -> Timestamp {
        self.clock.now()
    }

    /// Returns the time in milliseconds since 1970.
    pub(crate) fn now(&self) -> i64 {
        self.time().as_millisecond()
    }

    /// Returns a session, and creates it if it does not exist. Without an id, creates one with a new id. An existing session
    /// keeps its agent, title, times and messages.
    ///
    /// Cost: one round trip for an existing session; for a new one four reads and three commits, and another commit for the first of a tenant.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for an id that cannot be kept exactly,
    /// [`PermissionDenied`](ErrorKind::PermissionDenied) for a session of another user, and errors of the store.
    pub async fn get_or_create(&self, tenant: &str, user: &str, agent: &str, session: Option<&str>) -> Result<SessionHandle> {
        for (what, id) in [("tenant", tenant), ("user", user), ("agent", agent)] {
            check_id(what, id)?;
        }
        self.check_owner(tenant, user)?;
        let session_id = session.map_or_else(|| self.ids.next(), str::to_owned);
        let session_ref = SessionRef::new(tenant, &session_id)?;
        let mut attempts = Attempts::new();
        loop {
            if self.exists(&UserRows::new(tenant, user), &session_id).await? {
                return Ok(SessionHandle { session_id, session_ref, created: false });
            }
            if self.owner(tenant, &session_id).await?.is_some_and(|owner| owner != user) {
                return Err(owned_by_another(&session_id));
            }
            let head = self.new_head(&session_ref, user, agent);
            let batch = self.put_init(rows::create(&head)?, &head)?;
            match self.register(&head).await? {
                Registration::Intended(intent) => {
                    if rows::commit(&*self.store, intent.fulfil(batch)).await?.is_some() {
                        return Ok(SessionHandle { session_id, session_ref, created: true });
                    }
                    intent.withdraw(&*self.store).await;
                }
                Registration::Taken => return Err(owned_by_another(&session_id)),
                Registration::Lost => {}
            }
            attempts.lost().await?;
        }
    }

    pub(crate) fn new_head(&self, session: &SessionRef, user: &str, agent: &str) -> Head {
        let now = self.now();
        Head {
            tenant_id: session.tenant().to_owned(),
            user_id: user.to_owned(),
            agent_id: agent.to_owned(),
            session_id: session.session().to_owned(),
            title: None,
            created_at: now,
            updated_at: now,
            data: self.ids.next(),
            messages_end: 0,
            events_end: 1,
            turns: 0,
            archives: 0,
            window: Window::default(),
            totals: UsageTotals::default(),
            last_turn: None,
            notes_pending: None,
        }
    }

    /// Adds the event `init` at position 0.
    fn put_init(&self, batch: Batch, head: &Head) -> Result<Batch> {
        let init = InitEvent {
            session_id: head.session_id.clone(),
            tenant_id: head.tenant_id.clone(),
            user_id: head.user_id.clone(),
            agent_id: head.agent_id.clone(),
            title: None,
            created_at: head.created_at,
        };
        Ok(batch.put(&head.part(Part::Events)?, position_key(0), row(&init)))
    }

    /// Describes a session; `None` if it does not exist. Cost: two round trips.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for an id that no session can have,
    /// [`Corrupt`](ErrorKind::Corrupt) for a session whose row is damaged, and errors of the store.
    pub async fn info(&self, tenant: &str, session: &str) -> Result<Option<SessionInfo>> {
        Ok(self.open(tenant, session).await?.map(|opened| info_of(&opened.head)))
    }

    /// Describes a session with its last turn and its version; `None` if it does not exist. Cost: as [`Sessions::info`].
    ///
    /// # Errors
    /// As [`Sessions::info`].
    pub async fn describe(&self, tenant: &str, session: &str) -> Result<Option<SessionDescription>> {
        Ok(self.open(tenant, session).await?.map(|opened| SessionDescription {
            info: info_of(&opened.head),
            last_context_usage: opened.head.last_turn.as_ref().map(SessionContextUsage::from),
            version: opened.version(),
        }))
    }

    /// Returns how full the model's context was at the last turn; `None` before the first turn.
    ///
    /// # Errors
    /// As [`Sessions::info`].
    pub async fn last_context_usage(&self, tenant: &str, session: &str) -> Result<Option<SessionContextUsage>> {
        Ok(self.open(tenant, session).await?.and_then(|opened| opened.head.last_turn.as_ref().map(SessionContextUsage::from)))
    }

    /// Sets or removes the title.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) for an unknown session, [`TooLarge`](ErrorKind::TooLarge) for a title over 4 KiB,
    /// otherwise as [`Sessions::info`].
    pub async fn set_title(&self, tenant: &str, session: &str, title: Option<&str>) -> Result<()> {
        self.set_title_if(tenant, session, title, None).await
    }

    /// Sets or removes the title if the session has one of some versions, see [`Sessions::describe`].
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict), without an effect, if it has another version, otherwise as [`Sessions::set_title`].
    pub async fn set_title_if(&self, tenant: &str, session: &str, title: Option<&str>, versions: Option<&[Version]>) -> Result<()> {
        if title.is_some_and(|title| title.len() > 4_096) {
            return Err(Error::new(ErrorKind::TooLarge, "the title is over 4096 bytes; shorten it"));
        }
        let mut attempts = Attempts::new();
        loop {
            let opened = self.open_existing(tenant, session).await?;
            if versions.is_some_and(|versions| !versions.contains(&opened.version())) {
                let error = Error::new(ErrorKind::Conflict, format!("the session `{session}` has changed; read it again"));
                return Err(error.with_current_version(Some(opened.version())).without_effect());
            }
            let mut next = opened.head.clone();
            next.title = title.map(str::to_owned);
            next.updated_at = next.updated_at.max(self.now());
            let event = UpdateEvent { title: next.title.clone(), updated_at: next.updated_at };
            let batch = Batch::new().put(&next.part(Part::Events)?, position_key(next.events_end), row(&event));
            next.events_end += 1;
            if rows::commit(&*self.store, opened.replace(batch, &next)?).await?.is_some() {
                return Ok(());
            }
            attempts.lost().await?;
        }
    }

    /// Returns the events of a session (`init`, `turn`, `update`) in order, as they were recorded; empty for an unknown
    /// session.
    ///
    /// # Errors
    /// As [`Sessions::info`].
    pub async fn load_events(&self, tenant: &str, session: &str) -> Result<Vec<Json>> {
        let Some(opened) = self.open(tenant, session).await? else { return Ok(Vec::new()) };
        let events = scan_all(&*self.store, &opened.head.part(Part::Events)?).await?;
        events.into_iter().map(|item| Json::from_bytes(&item.value)).collect()
    }

    /// Returns a page of a session's turns, oldest first; `None` for an unknown session. `after` is the `next` of the page
    /// before. A page may have fewer turns than the limit, or none, and still be followed by another one.
    ///
    /// Cost: one round trip more than [`Sessions::info`].
    ///
    /// # Errors
    /// As [`Sessions::info`].
    pub async fn turns(&self, tenant: &str, session: &str, after: Option<u64>, limit: usize) -> Result<Option<TurnPage>> {
        let Some(opened) = self.open(tenant, session).await? else { return Ok(None) };
        let mut options = ScanOptions::new().with_values(true).with_limit(limit.min(self.options.page_max));
        options.start_after = Some(position_key(after.unwrap_or(0)));
        let page = self.store.scan(&opened.head.part(Part::Events)?, options).await?;
        let mut turns = Vec::new();
        for entry in page.entries {
            let ScanEntry::Item(item) = entry else { continue };
            let event = Json::from_bytes(&item.value)?;
            if TurnEvent::is(&event) {
                turns.push(event);
            }
        }
        let next = page.next.and_then(|key| key.parse().ok());
        Ok(Some(TurnPage { turns, next }))
    }

    /// Lists a page of a user's sessions, newest first. A session that is appended to while pages are read moves to the
    /// front, so it may be missing from later pages.
    ///
    /// Cost: one round trip for each page.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for an id that cannot name a tenant or user, and errors of the store.
    pub async fn list(&self, tenant: &str, user: &str, limit: usize, after: Option<&str>) -> Result<SessionPage> {
        check_id("tenant", tenant)?;
        check_id("user", user)?;
        self.check_owner(tenant, user)?;
        let recent = UserRows::new(tenant, user).recent()?;
        let mut options = ScanOptions::new().with_limit(limit.min(self.options.page_max)).with_values(true);
        options.start_after = after.map(str::to_owned);
        let page = self.store.scan(&recent, options).await?;
        let mut sessions = Vec::with_capacity(page.entries.len());
        for entry in page.entries {
            if let ScanEntry::Item(item) = entry {
                match stored::<SessionMeta>("list of sessions", &item.value) {
                    Ok(meta) => sessions.push(meta),
                    Err(error) => tracing::warn!(%error, tenant, user, key = item.key, "skipping a session that cannot be listed"),
                }
            }
        }
        Ok(SessionPage { sessions, next: page.next })
    }

    /// Lists all of a user's sessions, newest first.
    ///
    /// # Errors
    /// As [`Sessions::list`].
    pub async fn list_all(&self, tenant: &str, user: &str) -> Result<Vec<SessionMeta>> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let page = self.list(tenant, user, self.options.page_max, after.as_deref()).await?;
            all.extend(page.sessions);
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(all),
            }
        }
    }

    /// Deletes a session with everything that belongs to it, and returns whether it existed. The session is gone with one
    /// commit; its rows are removed afterwards. If that fails or is interrupted, [`Sessions::sweep`] finishes it.
    ///
    /// # Errors
    /// As [`Sessions::info`].
    pub async fn delete(&self, tenant: &str, session: &str) -> Result<bool> {
        let mut attempts = Attempts::new();
        loop {
            let Some(opened) = self.open(tenant, session).await? else { return Ok(false) };
            let removal = Removal::of(&opened.head);
            let key = rows::new_key(&removal.deletions());
            let intent = Intent::put(&*self.store, &opened.head.user_rows().intents()?, key, self.time()).await?;
            self.store.commit(Batch::new().put(&removals(), removal.key(), row(&removal))).await?;
            if rows::commit(&*self.store, intent.fulfil(opened.delete()?)).await?.is_some() {
                // The session is gone, whatever happens to its rows.
                if let Err(error) = self.remove(&removal, None).await {
                    tracing::warn!(%error, session, "the rows of a deleted session remain until the next sweep");
                }
                return Ok(true);
            }
            intent.withdraw(&*self.store).await;
            attempts.lost().await?;
        }
    }

    /// Reads the head of a session after checking the ids.
    pub(crate) async fn open(&self, tenant: &str, session: &str) -> Result<Option<Opened>> {
        check_id("tenant", tenant)?;
        check_id("session", session)?;
        match &self.reach {
            Reach::Tenant(own) if **own != *tenant => Ok(None),
            Reach::User(own) if own.tenant != tenant => Ok(None),
            Reach::User(own) => rows::open_of(&*self.store, own, session).await,
            Reach::All | Reach::Tenant(_) => rows::open(&*self.store, tenant, session).await,
        }
    }

    /// Reads the head of a session that must exist.
    pub(crate) async fn open_existing(&self, tenant: &str, session: &str) -> Result<Opened> {
        self.open(tenant, session).await?.ok_or_else(|| rows::no_session(session))
    }

    /// Checks the size of one value.
    pub(crate) fn check_size(&self, what: &str, size_bytes: usize) -> Result<()> {
        let max = self.options.item_bytes_max;
        if size_bytes <= max {
            return Ok(());
        }
        let message = format!("the {what} has {size_bytes} bytes and at most {max} are allowed; shorten it");
        Err(Error::new(ErrorKind::TooLarge, message))
    }
}

impl fmt::Display for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sessions({})", self.store)
    }
}

/// Makes the error for a session that another user has.
pub(crate) fn owned_by_another(session: &str) -> Error {
    let message = format!("the session `{session}` belongs to another user; choose another id");
    Error::new(ErrorKind::PermissionDenied, message)
}

pub(crate) fn info_of(head: &Head) -> SessionInfo {
    SessionInfo {
        session_id: head.session_id.clone(),
        tenant_id: head.tenant_id.clone(),
        user_id: head.user_id.clone(),
        agent_id: head.agent_id.clone(),
        title: head.title.clone(),
        created_at: head.created_at,
        updated_at: head.updated_at,
    }
}

/// Reads all rows of a namespace, page by page.
pub(crate) async fn scan_all(store: &dyn Store, namespace: &Namespace) -> Result<Vec<treehold_store::Item>> {
    scan_within(store, namespace, usize::MAX).await
}

/// Reads all rows of a namespace, page by page.
///
/// # Errors
/// [`TooLarge`](ErrorKind::TooLarge) for rows of over `bytes_max` bytes.
pub(crate) async fn scan_within(store: &dyn Store, namespace: &Namespace, bytes_max: usize) -> Result<Vec<treehold_store::Item>> {
    let (mut all, mut options) = (Vec::new(), ScanOptions::new().with_values(true));
    let mut read = ReadBytes::new(bytes_max);
    loop {
        let page = store.scan(namespace, options.clone()).await?;
        for entry in page.entries {
            if let ScanEntry::Item(item) = entry {
                read.add(item.value.len())?;
                all.push(item);
            }
        }
        match page.next {
            Some(next) => options.start_after = Some(next),
            None => return Ok(all),
        }
    }
}

/// Counts what a call reads.
pub(crate) struct ReadBytes {
    sum: usize,
    max: usize,
}

impl ReadBytes {
    pub(crate) fn new(max: usize) -> Self {
        Self { sum: 0, max }
    }

    /// Counts some bytes.
    ///
    /// # Errors
    /// [`TooLarge`](ErrorKind::TooLarge) beyond the bound.
    pub(crate) fn add(&mut self, bytes: usize) -> Result<()> {
        self.sum = self.sum.saturating_add(bytes);
        if self.sum <= self.max {
            return Ok(());
        }
        Err(Error::new(ErrorKind::TooLarge, format!("this has over {} bytes, the most read at once; read it in pages", self.max)))
    }
}
