//! Typed configuration: the contents of `treehold.toml`, the built-in defaults, and opening a [`Workspace`](treehold_agent::workspace::Workspace) from them.
//!
//! [`Config::parse`] parses a text; a fault names the file, line and column, and suggests the intended key. [`Config::builtin`] is the
//! configuration without a file. [`Config::workspace`] opens it. Only this module names every backend, store and layer. A store is opened
//! by the first call that needs it, and only once, however many routes name it.
//!
//! Relative paths are resolved against the directory of the file. `{data}` in the URL of a store is replaced by the data directory.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use treehold_core::error::Result;
use treehold_core::scope::ScopeField;

mod agent_state;
mod check;
mod custom_layer;
#[cfg(feature = "remote")]
mod deferred;
mod dial;
#[cfg(all(feature = "filesystem", unix))]
mod directories;
mod effective;
mod embeddings;
mod fault;
mod history;
mod layers;
mod load;
mod migrate_store;
mod open;
mod open_store;
mod overlap;
mod overlay;
mod per_scope;
mod protected;
mod registry;
mod remote;
mod retention;
mod route_history;
mod route_index;
mod routes;
mod sections;
mod serve;
mod sessions;
mod settings;
mod stores;
mod trace_files;
mod traces;
mod trust;

pub use agent_state::AgentStateConfig;
pub use custom_layer::{CustomLayerConfig, LayerSettings};
pub use effective::{EffectiveOverlay, EffectiveRoute, EffectiveStore, Sharing};
pub use embeddings::EmbeddingsConfig;
pub use fault::ConfigFault;
#[cfg(feature = "cli")]
pub(crate) use fault::did_you_mean;
pub use layers::{LayersConfig, PermissionConfig, PermissionEffect};
pub use load::ConfigBase;
pub use migrate_store::migrate_store;
pub use open_store::{OpenStoreOptions, open_store, sqlite_file};
pub use protected::ProtectedConfig;
pub use registry::{Registry, WrapTree};
pub use retention::{KeepCalls, KeepCheckpoints, RetentionClassConfig, RetentionConfig};
pub use route_history::{HistoryConfig, HistoryLimits};
pub use route_index::RouteIndex;
pub use routes::{OverlayConfig, QuotaConfig, RouteConfig, RouteSync, RouteType};
pub use sections::{EventsConfig, MemoryConfig, PeerConfig, ScopeConfig, StoreConfig, ThreadsConfig};
pub use serve::{DialConfig, ServeConfig};
pub use sessions::SessionsConfig;
pub use settings::{Origin, Setting};
pub use stores::Stores;
pub use traces::{ExternalAgent, ExternalKind, ExternalTraces, InternalKind, InternalTraces, TracesConfig};
pub use treehold_store::engine::without_password;
pub use trust::{Trust, TrustBook};

/// The default store of routes and threads.
pub const DEFAULT_STORE: &str = "default";

/// The namespace that overlay namespaces lie beneath.
pub const OVERLAY_NAMESPACE: [&str; 2] = treehold_core::reserved::OVERLAYS;

/// A commented configuration file that shows every key with its default.
pub const TEMPLATE: &str = include_str!("template.toml");

/// The contents of a configuration file, with defaults filled in.
///
/// ```
/// use treehold::config::{Config, ConfigBase};
///
/// let base = ConfigBase::new("/srv/agent", "/var/lib/treehold");
/// let config = Config::parse("[routes.\"/notes\"]\ntype = \"store\"\nnamespace = \"{user}/notes\"\n", &base)?;
/// assert_eq!(config.routes.len(), 2, "the thread's state is mounted at `/` by default");
///
/// let fault = Config::parse("[routs]\n", &base).unwrap_err();
/// assert_eq!((fault.line, fault.column), (1, 2));
/// assert_eq!(fault.hint.as_deref(), Some("did you mean `routes`?"));
/// # Ok::<(), treehold::config::ConfigFault>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Config {
    /// The directory of durable data. Default: the user's data directory, such as `~/.local/share/treehold`; in Rust, `data` of the
    /// [`ConfigBase`].
    #[serde(default)]
    pub data: PathBuf,
    /// The default scope of calls.
    #[serde(default)]
    pub scope: ScopeConfig,
    /// Where and when the state of threads is saved.
    #[serde(default)]
    pub threads: ThreadsConfig,
    /// Where events are kept.
    #[serde(default)]
    pub events: EventsConfig,
    /// What is kept of threads.
    #[serde(default)]
    pub retention: RetentionConfig,
    /// Which files form the prompt memory.
    #[serde(default)]
    pub memory: MemoryConfig,
    /// The model by whose vectors a search also finds by meaning. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embeddings: Option<EmbeddingsConfig>,
    /// The stores, by the name that routes use.
    #[serde(default)]
    pub stores: BTreeMap<String, StoreConfig>,
    /// Other servers, by the name that routes use.
    #[serde(default)]
    pub peers: BTreeMap<String, PeerConfig>,
    /// The routes by path. A file that names any route replaces all default routes except `/`.
    #[serde(default)]
    pub routes: BTreeMap<String, RouteConfig>,
    /// Which host files no tree may change.
    #[serde(default)]
    pub protected: ProtectedConfig,
    /// The layers around the whole tree.
    #[serde(default)]
    pub layers: LayersConfig,
    /// The sessions of agent hosts.
    #[serde(default)]
    pub sessions: SessionsConfig,
    /// The states of agents.
    #[serde(default)]
    pub agent_state: AgentStateConfig,
    /// The traces of agents, here and elsewhere.
    #[serde(default)]
    pub traces: TracesConfig,
    /// The limits of a server.
    #[serde(default)]
    pub serve: ServeConfig,
    /// Where the text came from.
    #[serde(skip)]
    base: ConfigBase,
    /// The text, to find the lines of settings.
    #[serde(skip)]
    text: String,
    /// The settings that the caller overrode, by keys, with the origin of each.
    #[serde(skip)]
    callers: BTreeMap<Vec<String>, String>,
    /// Host files that govern the trees, beyond those in the text, with the reason for each.
    #[serde(skip)]
    governing: Vec<(PathBuf, String)>,
    /// The engines and layers that it can name.
    #[serde(skip)]
    registry: Registry,
}

impl Config {
    /// Returns the engines and layers that the configuration can name.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Returns the machines that are connected to this process, through which `reverse` peers are reached: those of its registry.
    #[cfg(feature = "remote")]
    pub fn tunnels(&self) -> &treehold_remote::Tunnels {
        self.registry.tunnels()
    }

    /// Returns the origin of the configuration.
    pub fn base(&self) -> &ConfigBase {
        &self.base
    }

    /// Overrides the data directory. `by` names the origin, which [`Origin::Caller`] shows.
    pub fn set_data(&mut self, data: impl Into<PathBuf>, by: impl Into<String>) {
        self.data = data.into();
        self.callers.insert(vec!["data".to_owned()], by.into());
    }

    /// Overrides a field of the default scope. `by` names the origin, which [`Origin::Caller`] shows.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for an invalid id.
    pub fn set_scope(&mut self, field: ScopeField, id: &str, by: impl Into<String>) -> Result<()> {
        let id = id.to_owned();
        match field {
            ScopeField::Tenant => self.scope.tenant = id,
            ScopeField::User => self.scope.user = id,
            ScopeField::Agent => self.scope.agent = Some(id),
            ScopeField::Thread => self.scope.thread = id,
        }
        self.callers.insert(vec!["scope".to_owned(), field.name().to_owned()], by.into());
        self.scope().validate()
    }
}

#[cfg(test)]
mod tests;
