//! The traces of an organisation: one store for all of its agents, and other places by HTTP.
//!
//! Local traces are rows of one store, separated by tenant and user. The members of the organisation, which are the callers of one tenant,
//! may share the traces of one user there, and they alone reach other places: whatever is asked there is asked with the organisation's keys.

#[cfg(feature = "remote")]
use crate::cached::{CacheOptions, CachedTraces, TraceCopies};
use crate::contract::TraceStore;
use crate::hybrid::HybridTraces;
use crate::id::Location;
#[cfg(feature = "remote")]
use crate::peers::Peers;
#[cfg(feature = "remote")]
use crate::remote::RemoteTraces;
use crate::stored::Traces;
use std::sync::Arc;
use treehold_core::error::Result;

/// The traces that the callers of a server or command reach. Clones share connections and cache.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use treehold_store::MemoryStore;
/// use treehold_traces::{NewTrace, OrganizationTraces, TraceStore, Traces};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold_core::Result<()> {
/// let traces = OrganizationTraces::new(Traces::new(Arc::new(MemoryStore::new())), "acme").with_owner(None, Some("agents".to_owned()));
/// let trace = traces.for_user("acme", "ada")?.create_trace(NewTrace::new("make tea")).await?;
/// assert!(traces.for_user("acme", "bob")?.get_trace(&trace.trace_id).await?.is_some(), "agents of one organisation share their traces");
/// assert!(traces.for_user("other", "eve")?.get_trace(&trace.trace_id).await?.is_none());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct OrganizationTraces {
    local: Traces,
    members: String,
    owner: (Option<String>, Option<String>),
    own: Option<Location>,
    #[cfg(feature = "remote")]
    external: Option<External>,
}

/// The places outside.
#[cfg(feature = "remote")]
#[derive(Debug, Clone)]
struct External {
    peers: Peers,
    traces: Arc<dyn TraceStore>,
}

impl OrganizationTraces {
    /// Makes the traces of an organisation whose members are the callers of a tenant.
    pub fn new(local: Traces, members: impl Into<String>) -> Self {
        Self {
            local,
            members: members.into(),
            owner: (None, None),
            own: None,
            #[cfg(feature = "remote")]
            external: None,
        }
    }

    /// Sets the tenant and the user in the store whose traces the members share. By default each has their own.
    #[must_use]
    pub fn with_owner(mut self, tenant: Option<String>, user: Option<String>) -> Self {
        self.owner = (tenant, user);
        self
    }

    /// Sets the location under which others know this place, whose ids are local. Call it before
    /// [`with_peers`](OrganizationTraces::with_peers).
    #[must_use]
    pub fn with_own_location(mut self, location: Location) -> Self {
        self.own = Some(location);
        self
    }

    /// Lets the members reach other places, with a cache if there are options for one, which keeps copies if there is a place for them.
    #[cfg(feature = "remote")]
    #[must_use]
    pub fn with_peers(mut self, peers: Peers, cache: Option<CacheOptions>, copies: Option<TraceCopies>) -> Self {
        let remote = RemoteTraces::new(peers.clone());
        let remote = self.own.iter().cloned().fold(remote, RemoteTraces::with_own_location);
        let traces: Arc<dyn TraceStore> = match cache {
            Some(options) => {
                let cached = CachedTraces::new(Arc::new(remote), options).with_peers(peers.clone());
                Arc::new(copies.into_iter().fold(cached, CachedTraces::with_copies))
            }
            None => Arc::new(remote),
        };
        self.external = Some(External { peers, traces });
        self
    }

    /// Returns the location under which others know this place.
    pub fn own_location(&self) -> Option<&Location> {
        self.own.as_ref()
    }

    /// Returns the local traces of all tenants and users.
    pub fn local(&self) -> &Traces {
        &self.local
    }

    /// Returns the tenant and the user in the store whose traces a caller has.
    pub fn owner_of<'a>(&'a self, tenant: &'a str, user: &'a str) -> (&'a str, &'a str) {
        match self.is_member(tenant) {
            true => (self.owner.0.as_deref().unwrap_or(tenant), self.owner.1.as_deref().unwrap_or(user)),
            false => (tenant, user),
        }
    }

    /// Returns the other places that a caller of a tenant reaches.
    #[cfg(feature = "remote")]
    pub fn peers(&self, tenant: &str) -> Option<&Peers> {
        self.external.as_ref().filter(|_| self.is_member(tenant)).map(|external| &external.peers)
    }

    /// Opens the traces of a caller.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for a malformed id of the tenant or user.
    pub fn for_user(&self, tenant: &str, user: &str) -> Result<Arc<dyn TraceStore>> {
        let (owner, owner_user) = self.owner_of(tenant, user);
        let local: Arc<dyn TraceStore> = Arc::new(self.local.for_user(owner, owner_user)?);
        Ok(self.with_elsewhere(local, tenant))
    }

    #[cfg(feature = "remote")]
    fn with_elsewhere(&self, local: Arc<dyn TraceStore>, tenant: &str) -> Arc<dyn TraceStore> {
        match self.external.as_ref().filter(|_| self.is_member(tenant)) {
            Some(external) => self.hybrid(local, external.traces.clone()),
            None => self.alone(local),
        }
    }

    #[cfg(not(feature = "remote"))]
    fn with_elsewhere(&self, local: Arc<dyn TraceStore>, _: &str) -> Arc<dyn TraceStore> {
        self.alone(local)
    }

    /// Without other places, the local store refuses every id that is not local.
    fn alone(&self, local: Arc<dyn TraceStore>) -> Arc<dyn TraceStore> {
        if self.own.is_some() { self.hybrid(local.clone(), local) } else { local }
    }

    fn hybrid(&self, local: Arc<dyn TraceStore>, elsewhere: Arc<dyn TraceStore>) -> Arc<dyn TraceStore> {
        let hybrid = HybridTraces::new(local, elsewhere);
        Arc::new(self.own.iter().cloned().fold(hybrid, HybridTraces::with_own_location))
    }

    fn is_member(&self, tenant: &str) -> bool {
        self.members == tenant
    }
}
