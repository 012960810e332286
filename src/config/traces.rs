//! `[traces]`: where the traces of agents are stored, who shares them, their limits, and the other places that ids may name.

use super::check::positive_time;
use super::fault::Broken;
use super::remote::{TokenPlace, check_url};
use super::stores::Stores;
use super::{Config, DEFAULT_STORE};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use treehold_core::error::Result;
use treehold_core::scope::check_id;
use treehold_traces::{Location, OrganizationTraces, Traces, TracesOptions};

/// The name, among the stores, of the store at `internal.url`.
pub(super) const INTERNAL_STORE: &str = "traces";

/// Where the traces of agents are stored, who shares them, their limits, and the other places that ids may name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct TracesConfig {
    /// The store of the traces. Default: the only one configured, or `default`.
    pub store: String,
    /// The tenant in the store whose traces the callers of the configured tenant have. Default: their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The user in the store whose traces all callers of the configured tenant share. Default: each has their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The largest message in bytes. Default 1 MiB.
    pub message_bytes_max: usize,
    /// The most bytes of the messages of one append. Default 16 MiB.
    pub batch_bytes_max: usize,
    /// The largest event in bytes. Default 64 KiB.
    pub event_bytes_max: usize,
    /// The most messages or events of one page. Default 1,000.
    pub page_max: usize,
    /// How long a repeated append with the same idempotency key is recognised. Default `24h`.
    pub idempotency_time: String,
    /// The file that names agents as `agents: {NAME: {url, api_key, type}}`. By default only `peers` are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agents_file: Option<String>,
    /// The id under which others know this place: `@AGENT` or `agent://HOST`. By default it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub own_location: Option<String>,
    /// Whether ids may name hosts that are not registered: by `https`, without a key, and only public addresses. Default false.
    pub allow_unregistered_hosts: bool,
    /// Whether such a host may have a private address. Default false.
    pub allow_private_hosts: bool,
    /// The most bytes of traces of other places that are cached in memory. By default nothing is cached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_bytes_max: Option<usize>,
    /// How long a cached trace that ended is served before its owner is asked again. Default `30s`.
    pub cache_final_for: String,
    /// How long a copy of a cached trace is kept in the store after its last change, such as `7d`. By default no copy is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_copies_for: Option<String>,
    /// The store within the organisation by its URL, in place of `store`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub internal: Option<InternalTraces>,
    /// Agents of other organisations, besides `peers`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external: Option<ExternalTraces>,
}

/// The store within an organisation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct InternalTraces {
    /// The kind: `database`.
    #[serde(rename = "type")]
    pub kind: InternalKind,
    /// The URL of the store, as in `stores`.
    pub url: String,
}

/// The kinds of stores within an organisation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum InternalKind {
    /// A store that all agents of the organisation share.
    Database,
}

/// Agents of other organisations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ExternalTraces {
    /// The kind: `remote`.
    #[serde(rename = "type")]
    pub kind: ExternalKind,
    /// The agents.
    pub agents: Vec<ExternalAgent>,
}

/// The ways to reach other organisations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ExternalKind {
    /// Over HTTP.
    Remote,
}

/// An agent of another organisation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ExternalAgent {
    /// The URL of its server: `https://HOST:PORT`. Ids name it as `agent://HOST:PORT/ID`.
    pub url: String,
    /// Where its API key is: `env:VARIABLE` or `file:PATH`. By default no key is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<String>,
}

impl Default for TracesConfig {
    fn default() -> Self {
        let TracesOptions { message_bytes_max, batch_bytes_max, event_bytes_max, page_max, .. } = TracesOptions::default();
        Self {
            store: DEFAULT_STORE.to_owned(),
            tenant: None,
            user: None,
            message_bytes_max,
            batch_bytes_max,
            event_bytes_max,
            page_max,
            idempotency_time: "24h".to_owned(),
            agents_file: None,
            own_location: None,
            allow_unregistered_hosts: false,
            allow_private_hosts: false,
            cache_bytes_max: None,
            cache_final_for: "30s".to_owned(),
            keep_copies_for: None,
            internal: None,
            external: None,
        }
    }
}

impl TracesConfig {
    /// Returns the settings of the library.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for a malformed duration.
    pub fn options(&self) -> Result<TracesOptions> {
        Ok(TracesOptions::new()
            .with_message_bytes_max(self.message_bytes_max)
            .with_batch_bytes_max(self.batch_bytes_max)
            .with_event_bytes_max(self.event_bytes_max)
            .with_page_max(self.page_max)
            .with_idempotency_time(time(&self.idempotency_time)?))
    }

    /// Returns the name of the store.
    fn store(&self) -> &str {
        if self.internal.is_some() { INTERNAL_STORE } else { &self.store }
    }

    fn own_location(&self) -> Result<Option<Location>> {
        self.own_location.as_deref().map(str::parse).transpose()
    }

    /// Checks each value.
    fn check_values(&self) -> Result<(), Broken> {
        let counts = [
            ("message_bytes_max", self.message_bytes_max),
            ("batch_bytes_max", self.batch_bytes_max),
            ("event_bytes_max", self.event_bytes_max),
            ("page_max", self.page_max),
            ("cache_bytes_max", self.cache_bytes_max.unwrap_or(1)),
        ];
        for (key, count) in counts {
            if count == 0 {
                let hint = Some("set at least 1".to_owned());
                return Err(Broken::new(&["traces", key], format!("`{key}` is 0, which allows nothing")).with_hint(hint));
            }
        }
        for (key, text) in [("idempotency_time", &self.idempotency_time), ("cache_final_for", &self.cache_final_for)] {
            time(text).map_err(|error| Broken::new(&["traces", key], error.message()))?;
        }
        if let Some(text) = &self.keep_copies_for {
            age(text).map_err(|error| Broken::new(&["traces", "keep_copies_for"], error.message()))?;
            if self.cache_bytes_max.is_none() {
                let message = "`keep_copies_for` keeps copies of cached traces, and nothing is cached";
                let hint = Some("set `cache_bytes_max` too".to_owned());
                return Err(Broken::new(&["traces", "keep_copies_for"], message).with_hint(hint));
            }
        }
        if self.allow_private_hosts && !self.allow_unregistered_hosts {
            let message = "`allow_private_hosts` is about hosts that are not registered, and those are refused";
            let hint = Some("set `allow_unregistered_hosts` too, or leave it out".to_owned());
            return Err(Broken::new(&["traces", "allow_private_hosts"], message).with_hint(hint));
        }
        for (key, id) in [("tenant", &self.tenant), ("user", &self.user)] {
            let checked = id.as_deref().map_or(Ok(()), |id| check_id(key, id));
            checked.map_err(|error| Broken::new(&["traces", key], error.message()))?;
        }
        self.own_location().map(drop).map_err(|error| Broken::new(&["traces", "own_location"], error.message()))
    }

    fn check_external(&self) -> Result<(), Broken> {
        let agents = self.external.iter().flat_map(|external| &external.agents);
        for (index, agent) in agents.enumerate() {
            let keys = |key: &str| ["traces", "external", "agents", &index.to_string(), key].map(str::to_owned);
            check_url(&agent.url, false).map_err(|error| Broken::under(keys("url"), error.message()))?;
            if let Some(key) = &agent.api_key {
                TokenPlace::parse(key).map(drop).map_err(|error| Broken::under(keys("api_key"), error.message()))?;
            }
        }
        Ok(())
    }
}

fn time(text: &str) -> Result<Duration> {
    positive_time(text, "a duration", "write it as `24h` or `30s`")
}

fn age(text: &str) -> Result<Duration> {
    positive_time(text, "an age", "write it as `7d` or `12h`")
}

impl Config {
    /// Checks `[traces]`, without contacting anybody and without reading files.
    pub(super) fn check_traces(&self) -> Result<(), Broken> {
        self.traces.check_values()?;
        if let Some(internal) = &self.traces.internal {
            if self.stores.contains_key(INTERNAL_STORE) {
                let message = format!("`internal` makes a store `{INTERNAL_STORE}`, and `stores` has one of that name");
                let hint = Some(format!("leave `internal` out and write `store = \"{INTERNAL_STORE}\"`"));
                return Err(Broken::new(&["traces", "internal"], message).with_hint(hint));
            }
            let checked = self.registry.check_url(&internal.url, &|path| self.store_path(path));
            checked.map_err(|invalid| Broken::new(&["traces", "internal", "url"], invalid.message).with_hint(invalid.hint))?;
        }
        self.traces.check_external()
    }

    /// Opens the traces of agents that live here, with the configured limits.
    ///
    /// # Errors
    /// [`NotFound`](treehold_core::error::ErrorKind::NotFound) for a store that is not in `stores`, and
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for a malformed duration, which is possible if it was set after
    /// parsing.
    pub fn traces(&self, stores: &Stores) -> Result<Traces> {
        Ok(Traces::new(stores.get(self.traces.store())?).with_options(self.traces.options()?))
    }

    /// Opens the traces that callers reach: those that live here, and, for callers of the configured tenant, those of `peers`, of the file of
    /// agents, and of `external`. Contacts nobody.
    ///
    /// # Errors
    /// As [`Config::traces`]; those of a file of agents that is invalid or cannot be read;
    /// [`AlreadyExists`](treehold_core::error::ErrorKind::AlreadyExists) for two agents with one name.
    pub fn trace_stores(&self, stores: &Stores) -> Result<OrganizationTraces> {
        let traces = OrganizationTraces::new(self.traces(stores)?, &self.scope.tenant);
        let traces = traces.with_owner(self.traces.tenant.clone(), self.traces.user.clone());
        let traces = self.traces.own_location()?.into_iter().fold(traces, OrganizationTraces::with_own_location);
        self.with_peers(traces, stores)
    }

    #[cfg(not(feature = "remote"))]
    fn with_peers(&self, traces: OrganizationTraces, _: &Stores) -> Result<OrganizationTraces> {
        Ok(traces)
    }
}

#[cfg(feature = "remote")]
mod opened {
    use super::{age, time};
    use crate::config::{Config, Stores};
    use std::sync::Arc;
    use treehold_core::error::Result;
    use treehold_traces::{ApiKey, CacheOptions, OrganizationTraces, Peer, Peers, PeersOptions, TraceCopies};

    impl Config {
        pub(super) fn with_peers(&self, traces: OrganizationTraces, stores: &Stores) -> Result<OrganizationTraces> {
            let config = &self.traces;
            let cache = match config.cache_bytes_max {
                Some(bytes_max) => {
                    let options = CacheOptions::new().with_bytes_max(bytes_max);
                    Some(options.with_final_age_max(time(&config.cache_final_for)?))
                }
                None => None,
            };
            let copies = match &config.keep_copies_for {
                Some(kept) => {
                    let copies = TraceCopies::new(stores.get(config.store())?, &self.scope.tenant)?;
                    Some(copies.with_lives_for(age(kept)?))
                }
                None => None,
            };
            Ok(traces.with_peers(self.trace_peers()?, cache, copies))
        }

        /// Returns the registry of the places that ids of traces may name. Keys are read when they are needed.
        ///
        /// # Errors
        /// Those of a file of agents that is invalid or cannot be read; [`AlreadyExists`](treehold_core::error::ErrorKind::AlreadyExists) for
        /// two agents with one name.
        pub fn trace_peers(&self) -> Result<Peers> {
            let config = &self.traces;
            let mut peers = Vec::new();
            for (name, peer) in &self.peers {
                let registered = match peer.reverse {
                    true => Peer::dialling_in(name)?,
                    false => Peer::new(name, &peer.url, peer.plain_http)?,
                };
                peers.push(self.keyed(registered, peer.token.as_deref()));
            }
            for agent in config.external.iter().flat_map(|external| &external.agents) {
                peers.push(self.keyed(Peer::of_host(&agent.url)?, agent.api_key.as_deref()));
            }
            if let Some(file) = &config.agents_file {
                peers.extend(Peers::agents_of_file(&self.resolve(file))?);
            }
            let (tunnels, tenant) = (self.tunnels().clone(), self.scope.tenant.clone());
            let options = PeersOptions::new()
                .with_unregistered_hosts(config.allow_unregistered_hosts)
                .with_private_hosts(config.allow_private_hosts)
                .with_tunnels(Arc::new(move |name| tunnels.transport(Some(&tenant), name)));
            Peers::new(peers, options)
        }

        fn keyed(&self, peer: Peer, place: Option<&str>) -> Peer {
            let Some(place) = place.map(str::to_owned) else { return peer };
            let config = self.clone();
            peer.with_key(ApiKey::from_fn(move || config.token(&place)))
        }
    }
}
