//! Reads sessions for an inspector. Nothing here writes.

use crate::compact::iso_of_millisecond;
use crate::info::SessionRef;
use crate::live::Unreadable;
use crate::message::Message;
use crate::orchestration::{OrchestrationEvent, RecoveredState};
use crate::rows::{self, DirectoryRow, Head, UserRows};
use crate::sessions::{ReadBytes, Sessions, scan_within};
use crate::trace::Envelope;
use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use treehold_core::error::{Error, Result};
use treehold_core::escape::{escape, unescape};
use treehold_core::json::stored;
use treehold_core::scope::check_id;
use treehold_store::{Item, ScanEntry, ScanOptions};

/// One session as an inspector lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct InspectedSession {
    /// The tenant.
    pub tenant_id: String,
    /// The session.
    pub session_id: String,
    /// The user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_id: Option<String>,
    /// When it was last appended to, as an ISO 8601 text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_active: Option<String>,
    /// How many turns it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turns: Option<u64>,
    /// The tokens of all prompts and answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Whether its trace has an error.
    pub status: InspectedStatus,
}

/// The state of a session as an inspector shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum InspectedStatus {
    /// The trace has no error.
    Idle,
    /// The trace has an error.
    Error,
}

/// A page of sessions as an inspector lists them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct InspectedPage {
    /// The sessions.
    pub sessions: Vec<InspectedSession>,
    /// Where the next page starts; `None` at the end.
    pub next: Option<String>,
}

/// The data of an inspector. No method changes anything.
#[async_trait]
pub trait InspectorDataSource: Send + Sync {
    /// Lists the sessions of all tenants, newest first, then by id and tenant. Damaged sessions are left out.
    ///
    /// # Errors
    /// Those of the implementation.
    async fn list_sessions(&self) -> Result<Vec<InspectedSession>>;

    /// Returns the window of a session; empty for an unknown one.
    ///
    /// # Errors
    /// Those of the implementation.
    async fn load_messages(&self, session: &SessionRef) -> Result<Vec<Message>>;

    /// Returns the trace of a session; empty for an unknown one.
    ///
    /// # Errors
    /// Those of the implementation.
    async fn load_trace_envelopes(&self, session: &SessionRef) -> Result<Vec<Envelope>>;

    /// Returns the state of a session's orchestration.
    ///
    /// # Errors
    /// Those of the implementation.
    async fn load_orchestration_state(&self, session: &SessionRef) -> Result<RecoveredState>;

    /// Returns the events of a session's orchestration; empty for an unknown one.
    ///
    /// # Errors
    /// Those of the implementation.
    async fn load_orchestration_events(&self, session: &SessionRef) -> Result<Vec<OrchestrationEvent>>;
}

#[async_trait]
impl InspectorDataSource for Sessions {
    /// Cost: two round trips for each user and for each 1,000 sessions of a user, and one for each 1,000 sessions of a tenant. The
    /// sessions of one user cost the same, however many others there are.
    ///
    /// # Errors
    /// [`TooLarge`](treehold_core::ErrorKind::TooLarge) for more than one call may read, and errors of the store.
    async fn list_sessions(&self) -> Result<Vec<InspectedSession>> {
        let mut found = Vec::new();
        let mut read = ReadBytes::new(self.options.read_bytes_max);
        for user in self.users().await? {
            self.inspect_all(&user, &mut found, &mut read).await?;
        }
        found.sort_by(|a, b| (b.0, &a.1.session_id, &a.1.tenant_id).cmp(&(a.0, &b.1.session_id, &b.1.tenant_id)));
        Ok(found.into_iter().map(|(_, session)| session).collect())
    }

    async fn load_messages(&self, session: &SessionRef) -> Result<Vec<Message>> {
        self.load_all(session.tenant(), session.session()).await
    }

    async fn load_trace_envelopes(&self, session: &SessionRef) -> Result<Vec<Envelope>> {
        self.trace(session.clone()).envelopes(Unreadable::Skip).await
    }

    async fn load_orchestration_state(&self, session: &SessionRef) -> Result<RecoveredState> {
        self.orchestration(session.clone()).recovered(Unreadable::Skip).await
    }

    async fn load_orchestration_events(&self, session: &SessionRef) -> Result<Vec<OrchestrationEvent>> {
        self.orchestration(session.clone()).events(Unreadable::Skip).await
    }
}

impl Sessions {
    /// Lists a page of the accessible sessions. `after` is the `next` of the page before. The sessions of one user come newest first,
    /// those of several by tenant and id. A page may have fewer sessions than the limit, or none, and still be followed by another
    /// one. Damaged sessions are left out.
    ///
    /// Cost: three round trips for one user, otherwise at most four for each session of the page.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::ErrorKind::InvalidArgument) for a text that is not the `next` of a page, and errors of the store.
    pub async fn inspect_page(&self, limit: usize, after: Option<&str>) -> Result<InspectedPage> {
        let limit = limit.clamp(1, self.options.page_max);
        match self.only_user() {
            Some(user) => self.inspect_recent(user, limit, after).await,
            None => self.inspect_directories(limit, after).await,
        }
    }

    async fn inspect_recent(&self, user: &UserRows, limit: usize, after: Option<&str>) -> Result<InspectedPage> {
        let page = self.list(&user.tenant, &user.user, limit, after).await?;
        let ids: Vec<&str> = page.sessions.iter().map(|session| session.session_id.as_str()).collect();
        let sessions = self.inspect(user, self.heads_of(user, &ids).await?).await?;
        Ok(InspectedPage { sessions: sessions.into_iter().map(|(_, session)| session).collect(), next: page.next })
    }

    async fn inspect_directories(&self, limit: usize, after: Option<&str>) -> Result<InspectedPage> {
        let mut at = after.map(DirectoryCursor::parse).transpose()?.unwrap_or_default();
        let (mut sessions, mut found) = (Vec::new(), 0);
        // A tenant without sessions counts too, so the work of a page is bounded.
        while found < limit {
            let Some(tenant) = self.tenant_at(&at).await? else { return Ok(InspectedPage { sessions, next: None }) };
            let mut options = ScanOptions::new().with_values(true).with_limit(limit - found);
            options.start_after = at.session.filter(|_| at.tenant == tenant);
            let page = self.store.scan(&rows::directory(&tenant)?, options).await?;
            found += page.entries.len().max(1);
            sessions.extend(self.inspect_entries(&tenant, page.entries).await?);
            at = DirectoryCursor { is_done: page.next.is_none(), tenant, session: page.next };
        }
        Ok(InspectedPage { sessions, next: Some(at.to_string()) })
    }

    /// Returns the tenant that a page continues with.
    async fn tenant_at(&self, at: &DirectoryCursor) -> Result<Option<String>> {
        if !at.is_done && !at.tenant.is_empty() {
            return Ok(Some(at.tenant.clone()).filter(|tenant| self.admits_some_of(tenant)));
        }
        if let Some(only) = self.only_tenant() {
            return Ok((!at.is_done).then(|| only.to_owned()));
        }
        let mut options = ScanOptions::new().with_limit(1);
        options.start_after = Some(at.tenant.clone()).filter(|tenant| !tenant.is_empty());
        let page = self.store.scan(&rows::tenants(), options).await?;
        Ok(page.entries.first().map(|entry| entry.key().to_owned()))
    }

    /// Describes the sessions of a tenant that a page of its directory has, in the order of their ids.
    async fn inspect_entries(&self, tenant: &str, entries: Vec<ScanEntry>) -> Result<Vec<InspectedSession>> {
        let mut sessions_of: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (session, user) in directory_rows(tenant, entries) {
            sessions_of.entry(user).or_default().push(session);
        }
        let mut found = Vec::new();
        for (user, ids) in sessions_of {
            let (user, ids) = (UserRows::new(tenant, &user), ids.iter().map(String::as_str).collect::<Vec<_>>());
            found.extend(self.inspect(&user, self.heads_of(&user, &ids).await?).await?.into_iter().map(|(_, session)| session));
        }
        found.sort_by(|a, b| a.session_id.cmp(&b.session_id));
        Ok(found)
    }

    /// Returns the users whose sessions are accessible.
    async fn users(&self) -> Result<Vec<UserRows>> {
        if let Some(user) = self.only_user() {
            return Ok(vec![user.clone()]);
        }
        let bytes_max = self.options.read_bytes_max;
        let tenants = match self.only_tenant() {
            Some(only) => vec![only.to_owned()],
            None => scan_within(&*self.store, &rows::tenants(), bytes_max).await?.into_iter().map(|item| item.key).collect(),
        };
        let mut users = Vec::new();
        for tenant in tenants {
            let entries = scan_within(&*self.store, &rows::directory(&tenant)?, bytes_max).await?.into_iter().map(ScanEntry::Item);
            let of_tenant: BTreeSet<String> = directory_rows(&tenant, entries).map(|(_, user)| user).collect();
            users.extend(of_tenant.iter().map(|user| UserRows::new(&tenant, user)));
        }
        Ok(users)
    }

    async fn inspect_all(&self, user: &UserRows, found: &mut Vec<(i64, InspectedSession)>, read: &mut ReadBytes) -> Result<()> {
        let mut options = ScanOptions::new().with_values(true);
        loop {
            let page = self.store.scan(&user.sessions()?, options.clone()).await?;
            let mut items = Vec::with_capacity(page.entries.len());
            for entry in page.entries {
                let ScanEntry::Item(item) = entry else { continue };
                read.add(item.value.len())?;
                items.push(item);
            }
            found.extend(self.inspect(user, items).await?);
            match page.next {
                Some(next) => options.start_after = Some(next),
                None => return Ok(()),
            }
        }
    }

    /// Reads the heads of some sessions of a user.
    async fn heads_of(&self, user: &UserRows, ids: &[&str]) -> Result<Vec<Item>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        Ok(self.store.get_many(&user.sessions()?, ids, true).await?.into_iter().flatten().collect())
    }

    /// Describes the sessions with some heads, and returns when each was last appended to.
    async fn inspect(&self, user: &UserRows, items: Vec<Item>) -> Result<Vec<(i64, InspectedSession)>> {
        let heads = items.into_iter().filter_map(|item| match stored::<Head>("session", &item.value) {
            Ok(head) => Some(head),
            Err(error) => {
                tracing::warn!(%error, tenant = user.tenant, session = item.key, "skipping a damaged session");
                None
            }
        });
        let heads: Vec<Head> = heads.collect();
        let data: Vec<&str> = heads.iter().map(|head| head.data.as_str()).collect();
        let errors = if data.is_empty() { Vec::new() } else { self.store.get_many(&user.trace_errors()?, &data, false).await? };
        let errors: Vec<bool> = errors.iter().map(Option::is_some).collect();
        Ok(heads.into_iter().zip(errors).map(|(head, has_error)| (head.updated_at, inspected(head, has_error))).collect())
    }
}

fn inspected(head: Head, has_error: bool) -> InspectedSession {
    InspectedSession {
        last_active: Some(iso_of_millisecond(head.updated_at)),
        turns: Some(head.turns),
        tokens: Some(head.totals.input_tokens.saturating_add(head.totals.output_tokens)),
        tenant_id: head.tenant_id,
        session_id: head.session_id,
        user_id: Some(head.user_id),
        status: if has_error { InspectedStatus::Error } else { InspectedStatus::Idle },
    }
}

/// Reads rows of a tenant's directory: sessions and their users.
fn directory_rows(tenant: &str, entries: impl IntoIterator<Item = ScanEntry>) -> impl Iterator<Item = (String, String)> {
    entries.into_iter().filter_map(move |entry| {
        let ScanEntry::Item(item) = entry else { return None };
        match stored::<DirectoryRow>("directory of sessions", &item.value) {
            Ok(row) => Some((item.key, row.user_id)),
            Err(error) => {
                tracing::warn!(%error, tenant, session = item.key, "skipping a damaged session");
                None
            }
        }
    })
}

/// A position in the directories of the tenants.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct DirectoryCursor {
    /// The tenant; empty before the first.
    tenant: String,
    /// The session before the position; `None` at the end of the tenant.
    session: Option<String>,
    /// Whether the position is at the end of the tenant.
    is_done: bool,
}

impl DirectoryCursor {
    /// Reads a cursor as its `Display` wrote it.
    fn parse(text: &str) -> Result<Self> {
        let bad =
            || Error::invalid_argument(format!("the cursor `{}` is not one of a page; leave it out to start again", text.escape_debug()));
        let part = |part: &str| unescape(part).map(Cow::into_owned).filter(|id| check_id("cursor", id).is_ok()).ok_or_else(bad);
        match text.split_once(':') {
            Some((tenant, session)) => Ok(Self { tenant: part(tenant)?, session: Some(part(session)?), is_done: false }),
            None => Ok(Self { tenant: part(text)?, session: None, is_done: true }),
        }
    }
}

impl fmt::Display for DirectoryCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |id: &str| escape(id, |character| character == ':');
        f.write_str(&part(&self.tenant))?;
        self.session.iter().try_for_each(|session| write!(f, ":{}", part(session)))
    }
}
