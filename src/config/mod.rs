//! Typed configuration: the contents of `treehold.toml`, the built-in defaults, and opening a [`Workspace`](treehold_agent::workspace::Workspace) from them.
//!
//! [`Config::parse`] parses a text; a fault names the file, line and column, and suggests the intended key. [`Config::builtin`] is the
//! configuration without a file. [`Config::workspace`] opens it. Only this module names every backend, store and layer. A store is opened
//! by the first call that needs it, and only once, however many routes name it.
//!
//! Relative paths are resolved against the directory of the file. `{data}` in the URL of a store is replaced by the data directory.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use treehold_agent::memory::{MemorySettings, PromptOptions};
use treehold_agent::session::ThreadDurability;
use treehold_core::error::{Error, Result};
use treehold_core::path::VfsPath;
use treehold_core::scope::ScopeField;

mod check;
#[cfg(any(feature = "remote", all(feature = "filesystem", unix)))]
mod deferred;
mod fault;
mod history;
mod migrate_store;
#[cfg(any(feature = "sled", feature = "sqlite"))]
mod once;
mod once_server;
mod open;
mod open_store;
mod overlay;
mod protected;
mod remote;
mod route_index;
mod serve;
mod settings;
mod stores;
mod trust;
mod url;

pub use fault::ConfigFault;
pub use migrate_store::migrate_store;
pub use open_store::{OpenStoreOptions, open_store, sqlite_file};
pub use protected::ProtectedConfig;
pub use route_index::RouteIndex;
pub use serve::ServeConfig;
pub use settings::{Origin, Setting};
pub use stores::Stores;
pub use trust::{Trust, TrustBook};
pub use url::without_password;

/// The default store of routes and threads.
pub const DEFAULT_STORE: &str = "default";

/// The namespace that overlay namespaces lie beneath.
pub const OVERLAY_NAMESPACE: [&str; 2] = treehold_core::reserved::OVERLAYS;

/// The default namespace template of an overlay.
const OVERLAY_TEMPLATE: &str = "{tenant}/{user}/{thread}";

/// The default thread and checkpoint of a history route.
const HISTORY_THREAD: &str = "{thread}";
const HISTORY_AT: &str = "latest";

/// A commented configuration file that shows every key with its default.
pub const TEMPLATE: &str = include_str!("template.toml");

/// The contents of a configuration file, with defaults filled in.
///
/// ```
/// use treehold::config::{Config, Place};
///
/// let place = Place::new("/srv/agent", "/var/lib/treehold");
/// let config = Config::parse("[routes.\"/notes\"]\ntype = \"store\"\nnamespace = \"{user}/notes\"\n", &place)?;
/// assert_eq!(config.routes.len(), 2, "the thread's state stands at `/` by itself");
///
/// let fault = Config::parse("[routs]\n", &place).unwrap_err();
/// assert_eq!((fault.line, fault.column), (1, 2));
/// assert_eq!(fault.hint.as_deref(), Some("did you mean `routes`?"));
/// # Ok::<(), treehold::config::ConfigFault>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Config {
    /// The directory of durable data. Default `data` of the [`Place`]; for the command, a directory such as `~/.local/share/treehold`.
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
    /// Which files form the prompt memory.
    #[serde(default)]
    pub memory: MemoryConfig,
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
    /// The limits of a server.
    #[serde(default)]
    pub serve: ServeConfig,
    /// Where the text came from.
    #[serde(skip)]
    place: Place,
    /// The text, to find the lines of settings.
    #[serde(skip)]
    text: String,
    /// The settings that the caller overrode, by keys, with the origin of each.
    #[serde(skip)]
    callers: BTreeMap<Vec<String>, String>,
    /// Host files that govern the trees, beyond those in the text, with the reason for each.
    #[serde(skip)]
    governing: Vec<(PathBuf, String)>,
}

/// The default scope: the values of its fields.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct ScopeConfig {
    /// The tenant. Default `default`.
    pub tenant: String,
    /// The user. Default `default`.
    pub user: String,
    /// The agent. None by default; then a template with `{agent}` fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The thread. Default `default`.
    pub thread: String,
}

impl Default for ScopeConfig {
    fn default() -> Self {
        Self { tenant: "default".to_owned(), user: "default".to_owned(), agent: None, thread: "default".to_owned() }
    }
}

/// Where and when the state of threads is saved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct ThreadsConfig {
    /// Whether a thread's state is saved at all. Default true.
    pub save: bool,
    /// The store for checkpoints. Default `default`.
    pub store: String,
    /// When the state is saved automatically: `sync` after each change, `step` after each tool call (the default), `exit` at the end.
    pub durability: ThreadDurability,
    /// Whether tool calls are recorded in the audit log, without content, in the same store. Default true.
    pub audit: bool,
    /// About how many bytes of state a process keeps in memory. Beyond it, idle threads are saved and unloaded. Default 256 MiB.
    pub memory_bytes_max: u64,
}

impl Default for ThreadsConfig {
    fn default() -> Self {
        Self {
            save: true,
            store: DEFAULT_STORE.to_owned(),
            durability: ThreadDurability::default(),
            audit: true,
            memory_bytes_max: treehold_agent::workspace::THREADS_BYTES_MAX,
        }
    }
}

/// Where events are kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct EventsConfig {
    /// Whether to record each change as an event. Default true.
    pub save: bool,
    /// The store for events. Files and threads in the same store commit their events atomically with the change. Default `default`.
    pub store: String,
    /// How long events are kept. Default `7d`.
    pub keep: String,
}

impl Default for EventsConfig {
    fn default() -> Self {
        Self { save: true, store: DEFAULT_STORE.to_owned(), keep: "7d".to_owned() }
    }
}

/// Which files form the prompt memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct MemoryConfig {
    /// The files in prompt order. Default `/memories/AGENTS.md` and `/workspace/AGENTS.md`.
    pub sources: Vec<String>,
    /// The most tokens of the prompt memory, by estimate. Default 8,000.
    pub tokens_max: usize,
}

impl Default for MemoryConfig {
    fn default() -> Self {
        Self { sources: MemorySettings::SOURCES.map(str::to_owned).to_vec(), tokens_max: PromptOptions::TOKENS_MAX }
    }
}

/// A store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct StoreConfig {
    /// The engine and its location: `sqlite:FILE`, `sled:DIRECTORY`, `postgres://…`, `mysql://…`, `redis://…`, `memory:`, or `env:VARIABLE`
    /// for a URL in an environment variable.
    pub url: String,
    /// How often a process that has the store open removes expired rows: a duration such as `30s`, or `never`. Default `1m`.
    #[serde(default = "sweep_every")]
    pub sweep_every: String,
}

impl StoreConfig {
    /// Configures the store at a URL.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), sweep_every: sweep_every() }
    }
}

/// The default interval between sweeps.
fn sweep_every() -> String {
    "1m".to_owned()
}

/// Another treehold server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct PeerConfig {
    /// The URL: `https://HOST:PORT`, optionally with the path of a directory in its tree.
    pub url: String,
    /// Where the token is: `env:VARIABLE` or `file:PATH`. By default no token is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// Whether to allow `http` to another host, which sends content and token unencrypted. Default false.
    #[serde(default)]
    pub plain_http: bool,
}

impl PeerConfig {
    /// Configures the server at a URL.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), token: None, plain_http: false }
    }
}

/// The tier of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum RouteType {
    /// The state of the thread.
    State,
    /// Rows of a store.
    Store,
    /// A directory of the host.
    Filesystem,
    /// The state of a thread at a checkpoint, read-only.
    History,
    /// The tree of another server.
    Remote,
}

impl RouteType {
    /// Returns the name in a configuration file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::State => "state",
            Self::Store => "store",
            Self::Filesystem => "filesystem",
            Self::History => "history",
            Self::Remote => "remote",
        }
    }
}

/// When a filesystem route flushes changes to disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum RouteSync {
    /// When the host chooses to.
    #[default]
    None,
    /// The content of a file, before its change is acknowledged.
    File,
    /// Content and name, before a change is acknowledged: it survives power loss.
    Full,
}

/// A route: the tier at one path of the tree, with its settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct RouteConfig {
    /// The tier.
    #[serde(rename = "type")]
    pub tier: RouteType,
    /// For a store route: the store. Default `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// For a store route: the namespace template of the rows, such as `{tenant}/{user}/memories`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// For a store route: the indexes of its files. Default `none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<RouteIndex>,
    /// For a filesystem route: the directory, optionally with scope fields, such as `/srv/{tenant}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
    /// For a filesystem route: when changes are flushed to disk. Default `none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync: Option<RouteSync>,
    /// For a filesystem route: whether to enter other file systems mounted beneath the root. Default false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cross_mounts: Option<bool>,
    /// For a filesystem route: whether to create a missing root. Default false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub create_root: Option<bool>,
    /// For a history route: the thread, optionally with scope fields. Default `{thread}`, the caller's own. For a remote route: the thread
    /// on the other server. Default that server's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// For a history route: the checkpoint, by id, label, or number of steps back such as `~1`. Default `latest`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// For a remote route: `agent://PEER/PATH` for one of `peers`, or the URL of a server that requires no token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// For a remote route: how many bytes of read content to cache. By default nothing is cached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_bytes_max: Option<usize>,
    /// For a remote route with a cache: whether to serve cached content while the server is unreachable. Default false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serve_stale: Option<bool>,
    /// Whether changes are refused. Default false; a history route is always read-only.
    #[serde(default)]
    pub read_only: bool,
    /// Limits on what the tree may hold. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<QuotaConfig>,
    /// For a filesystem or store route: where changes are kept until they are applied or discarded. By default changes take effect at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlay: Option<OverlayConfig>,
}

/// Where an overlay keeps changes to a route.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct OverlayConfig {
    /// The store. Default `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// Who shares the changes. The rows lie beneath `_treehold/overlays`, separate for each route. Default `{tenant}/{user}/{thread}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// Limits on the tree of a route. They apply to each tree separately, so per user if the template contains `{user}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct QuotaConfig {
    /// The most bytes of all files together; a directory counts as 4,096.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_max: Option<u64>,
    /// The most files and directories.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files_max: Option<u64>,
    /// The most bytes of one file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_bytes_max: Option<u64>,
}

/// The layers around the whole tree of each session. From the outside in: audit, permissions, timeout, retry, limit.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct LayersConfig {
    /// A file to which a record of every operation is appended, as JSON Lines. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit: Option<String>,
    /// Whether to refuse an operation whose record cannot be written. Default false.
    #[serde(default)]
    pub audit_required: bool,
    /// How long an operation may take, such as `30s`. Default no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
    /// How many attempts a transiently failing operation gets in total, if repeating it is safe. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts_max: Option<usize>,
    /// How many operations of the process run concurrently; others wait. Default no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running_max: Option<usize>,
    /// How many operations may wait; others are refused. Default no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_max: Option<usize>,
    /// Permission rules; the first that matches an operation decides. Operations without a matching rule are allowed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub permissions: Vec<PermissionConfig>,
}

/// The effect of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum PermissionEffect {
    /// Allows the operation.
    Allow,
    /// Refuses the operation. Paths that may not be read appear not to exist.
    Deny,
    /// Asks an approver, if the workspace has one. Refuses the operation if nobody can be asked, as on the command line.
    Ask,
}

/// A permission rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct PermissionConfig {
    /// The effect.
    pub effect: PermissionEffect,
    /// The operations that it applies to: `read`, `write`, `all`, or individual names.
    pub operations: Vec<String>,
    /// The paths that it applies to, including everything beneath them: absolute globs.
    pub paths: Vec<String>,
    /// Whether paths match in any letter case. Default false.
    #[serde(default)]
    pub ignore_case: bool,
}

impl RouteConfig {
    /// Returns a route to the thread's state.
    pub fn state() -> Self {
        Self {
            tier: RouteType::State,
            store: None,
            namespace: None,
            index: None,
            root: None,
            sync: None,
            cross_mounts: None,
            create_root: None,
            thread: None,
            at: None,
            url: None,
            cache_bytes_max: None,
            serve_stale: None,
            read_only: false,
            quota: None,
            overlay: None,
        }
    }

    /// Returns a route to rows of a store.
    pub fn store(store: impl Into<String>, namespace: impl Into<String>) -> Self {
        Self {
            tier: RouteType::Store,
            store: Some(store.into()),
            namespace: Some(namespace.into()),
            index: Some(RouteIndex::default()),
            ..Self::state()
        }
    }

    /// Returns a route to the tree of another server.
    pub fn remote(url: impl Into<String>) -> Self {
        Self { tier: RouteType::Remote, url: Some(url.into()), ..Self::state() }
    }

    /// Returns a route to a directory of the host.
    pub fn filesystem(root: impl Into<String>) -> Self {
        Self {
            tier: RouteType::Filesystem,
            root: Some(root.into()),
            sync: Some(RouteSync::default()),
            cross_mounts: Some(false),
            create_root: Some(false),
            ..Self::state()
        }
    }
}

/// The origin of a configuration, and what it is relative to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Place {
    /// The file that faults name; `None` if the text is not from a file.
    pub file: Option<PathBuf>,
    /// The directory that relative paths are resolved against.
    pub directory: PathBuf,
    /// The data directory if the text names none.
    pub data: PathBuf,
}

impl Place {
    /// Returns the place of a text that is not from a file.
    pub fn new(directory: impl Into<PathBuf>, data: impl Into<PathBuf>) -> Self {
        Self { file: None, directory: directory.into(), data: data.into() }
    }

    /// Sets the file that faults name.
    #[must_use]
    pub fn with_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.file = Some(file.into());
        self
    }
}

impl Config {
    /// Returns the configuration without a file: the thread's state at `/`, one SQLite file in the data directory for `/memories` and
    /// threads, and the directory of `place` at `/workspace`.
    pub fn builtin(place: &Place) -> Self {
        let mut config = Self {
            data: PathBuf::new(),
            scope: ScopeConfig::default(),
            threads: ThreadsConfig::default(),
            events: EventsConfig::default(),
            memory: MemoryConfig::default(),
            stores: BTreeMap::new(),
            peers: BTreeMap::new(),
            routes: BTreeMap::new(),
            protected: ProtectedConfig::default(),
            layers: LayersConfig::default(),
            serve: ServeConfig::default(),
            place: place.clone(),
            text: String::new(),
            callers: BTreeMap::new(),
            governing: Vec::new(),
        };
        config.fill_in();
        config
    }

    /// Parses a configuration.
    ///
    /// # Errors
    /// The first fault, with its line, column and, if possible, the intended key or value.
    pub fn parse(text: &str, place: &Place) -> Result<Self, ConfigFault> {
        let mut config: Self = toml::from_str(text).map_err(|error| fault::of_toml(&error, text, place))?;
        config.place = place.clone();
        config.text = text.to_owned();
        check::check(&config).map_err(|broken| broken.locate(text, place))?;
        config.fill_in();
        Ok(config)
    }

    /// Reads a configuration file. Relative paths in it are resolved against its directory.
    ///
    /// # Errors
    /// [`NotFound`](treehold_core::error::ErrorKind::NotFound) if the file does not exist, [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for a
    /// fault in it, with the [`ConfigFault`] as its source.
    pub fn load(file: &Path, data: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(file).map_err(|error| fault::of_reading(file, error))?;
        Self::load_text(file, &text, data)
    }

    /// Parses the text of a configuration file that was already read. Use it after a check of the text, such as for trust, so that the
    /// checked text is the one that takes effect.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for a fault in it, with the [`ConfigFault`] as its source.
    pub fn load_text(file: &Path, text: &str, data: &Path) -> Result<Self> {
        let absolute = std::path::absolute(file).map_err(|error| fault::of_reading(file, error))?;
        let directory = absolute.parent().map_or_else(PathBuf::new, Path::to_owned);
        let place = Place::new(directory, data).with_file(file);
        Self::parse(text, &place).map_err(Error::from)
    }

    /// Returns the origin of the configuration.
    pub fn place(&self) -> &Place {
        &self.place
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

    /// Fills in the defaults.
    fn fill_in(&mut self) {
        if self.data.as_os_str().is_empty() {
            self.data = self.place.data.clone();
        } else {
            self.data = self.resolve(&self.data.to_string_lossy());
        }
        if self.routes.is_empty() {
            self.routes.insert("/memories".to_owned(), RouteConfig::store(DEFAULT_STORE, "{tenant}/{user}/memories"));
            self.routes.insert("/workspace".to_owned(), RouteConfig::filesystem("."));
        }
        if !self.routes.keys().any(|path| VfsPath::parse(path).is_ok_and(|path| path.is_root())) {
            self.routes.insert("/".to_owned(), RouteConfig::state());
        }
        for route in self.routes.values_mut() {
            if let Some(overlay) = &mut route.overlay {
                overlay.store.get_or_insert_with(|| DEFAULT_STORE.to_owned());
                overlay.namespace.get_or_insert_with(|| OVERLAY_TEMPLATE.to_owned());
            }
            match route.tier {
                RouteType::State => {}
                RouteType::Remote => {
                    if route.cache_bytes_max.is_some() {
                        route.serve_stale.get_or_insert(false);
                    }
                }
                RouteType::History => {
                    route.thread.get_or_insert_with(|| HISTORY_THREAD.to_owned());
                    route.at.get_or_insert_with(|| HISTORY_AT.to_owned());
                    route.read_only = true;
                }
                RouteType::Store => {
                    route.store.get_or_insert_with(|| DEFAULT_STORE.to_owned());
                    route.index.get_or_insert_default();
                }
                RouteType::Filesystem => {
                    route.sync.get_or_insert_default();
                    route.cross_mounts.get_or_insert(false);
                    route.create_root.get_or_insert(false);
                }
            }
        }
        self.stores.entry(DEFAULT_STORE.to_owned()).or_insert_with(|| StoreConfig::new("sqlite:{data}/treehold.db"));
    }

    /// Makes a path absolute: `~/` is the user's home, and a relative path lies beneath the file's directory.
    fn resolve(&self, text: &str) -> PathBuf {
        match text.strip_prefix("~/").and_then(|rest| Some(std::env::home_dir()?.join(rest))) {
            Some(home) => home,
            // `components` removes the `.` of `./x`, so the path is shown as a person would write it.
            None => self.place.directory.join(text).components().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> Place {
        Place::new("/etc/agent", "/var/lib/treehold").with_file("treehold.toml")
    }

    fn parsed(text: &str) -> Config {
        Config::parse(text, &place()).expect("a sound configuration")
    }

    #[test]
    fn route_keeps_the_indexes_it_names() {
        let index = |index: &str| {
            let config = parsed(&format!("[routes.\"/m\"]\ntype = \"store\"\nnamespace = \"m\"\n{index}"));
            config.routes["/m"].index.clone().expect("a store route says which").kinds().to_vec()
        };
        use treehold_tree::backend::IndexKind::{Trigram, Words};
        assert_eq!((index(""), index("index = \"none\""), index("index = []")), (vec![], vec![], vec![]));
        assert_eq!((index("index = \"trigram\""), index("index = [\"words\"]")), (vec![Trigram], vec![Words]));
        assert_eq!(index("index = [\"words\", \"trigram\", \"words\"]"), [Trigram, Words]);
    }

    #[test]
    fn fault_names_line_column_and_intended_key() {
        let table = [
            ("dta = \"x\"", "treehold.toml:1:1: unknown key `dta`; did you mean `data`?"),
            ("\n[routs]", "treehold.toml:2:2: unknown key `routs`; did you mean `routes`?"),
            ("[scope]\nusr = \"ada\"", "treehold.toml:2:1: unknown key `usr`; did you mean `user`?"),
            ("data = 3", "treehold.toml:1:8: invalid type: integer `3`, expected path string"),
            ("data = ", "treehold.toml:1:8: string values must be quoted, expected literal string"),
            ("[stores.a]\nurl = \"sqlit:a.db\"", "treehold.toml:2:7: no store engine is named `sqlit`; did you mean `sqlite`?"),
            (
                "[stores.a]\nurl = \"a.db\"",
                "treehold.toml:2:7: `a.db` names no engine; use `sqlite:FILE`, `sled:DIRECTORY`, `postgres://…`, `mysql://…`, `redis://…`, `env:VARIABLE` or `memory:`",
            ),
            ("[stores.a]", "treehold.toml:1:1: the key `url` is missing"),
            ("[threads]\nstore = \"defalt\"", "treehold.toml:2:9: no store is named `defalt`; did you mean `default`?"),
            (
                "[routes.\"/m\"]\ntype = \"store\"\nnamespace = \"m\"\nindex = \"word\"",
                "treehold.toml:4:9: unknown value `word`; did you mean `words`?",
            ),
            (
                "[routes.\"/m\"]\ntype = \"store\"\nnamespace = \"m\"\nindex = 3",
                "treehold.toml:4:9: invalid type: integer `3`, expected `none`, a kind of index, or a list of them",
            ),
            (
                "[routes.\"/m\"]\ntype = \"store\"\nnamespace = \"m\"\nindex = [\"none\"]",
                "treehold.toml:4:9: `none` stands alone: write `index = \"none\"`, or leave it out of the list",
            ),
            ("[routes.\"/m\"]\ntype = \"stor\"", "treehold.toml:2:8: unknown value `stor`; did you mean `store`?"),
            (
                "[routes.\"/m\"]\ntype = \"store\"",
                "treehold.toml:1:9: the route `/m` names no `namespace`; write `namespace = \"{tenant}/{user}/memories\"`",
            ),
            (
                "[routes.\"/m\"]\ntype = \"store\"\nnamespace = \"{usr}/m\"",
                "treehold.toml:3:13: the template `{usr}` names `{usr}`; the fields are {tenant}, {user}, {agent} and {thread}",
            ),
            (
                "[routes.\"/w\"]\ntype = \"filesystem\"\nroot = \".\"\nnamespace = \"a\"",
                "treehold.toml:4:13: `namespace` belongs to a route of type `store` and this one is `filesystem`",
            ),
            ("[routes.\"m\"]\ntype = \"state\"", "treehold.toml:1:9: the path is not absolute; start it with `/`"),
            ("[layers]\ntimeout = \"soon\"", "treehold.toml:2:11: `soon` is no time that a call may take; write it as `30s` or `500ms`"),
            (
                "[layers]\nrunning_max = 0",
                "treehold.toml:2:15: `running_max` is 0, which lets no call through; name at least 1, or leave it out",
            ),
            (
                "[[layers.permissions]]\neffect = \"deny\"\noperations = [\"fly\"]\npaths = [\"/\"]",
                "treehold.toml:3:1: `fly` is no operation of a rule; name `read`, `write`, `all` or one of stat, read, ls, glob, grep, search, \
                 write, append, edit, create_dir, delete, rename, copy",
            ),
            (
                "[routes.\"/m\"]\ntype = \"store\"\nat = \"latest\"\nnamespace = \"m\"",
                "treehold.toml:3:6: `at` belongs to a route of type `history` and this one is `store`",
            ),
            (
                "[routes.\"/b\"]\ntype = \"history\"\nat = \"~x\"",
                "treehold.toml:3:6: `~x` does not say how far back; write `~1` for the checkpoint before the latest",
            ),
            (
                "[routes.\"/b\"]\ntype = \"history\"\nthread = \"{thred}\"",
                "treehold.toml:3:10: the template `{thred}` names `{thred}`; the fields are {tenant}, {user}, {agent} and {thread}",
            ),
            (
                "[threads]\nsave = false\n[routes.\"/b\"]\ntype = \"history\"",
                "treehold.toml:4:8: threads are not saved, so they have no history; set `save = true` under `[threads]`",
            ),
            (
                "[routes.\"/b\"]\ntype = \"history\"\nquota = { files_max = 3 }",
                "treehold.toml:3:1: `quota` bounds what is written, and a history route is read-only; leave it out",
            ),
            ("[serve]\nhead_timeout = \"0s\"", "treehold.toml:2:16: `0s` is no time to wait for a client; write it as `30s` or `2m`"),
            ("[serve]\nconnections_max = 0", "treehold.toml:2:19: `connections_max` is 0, which lets nothing through; name at least 1"),
            ("[scope]\nuser = \"\"", "treehold.toml:2:8: the user id is empty; leave it out or name one"),
        ];
        for (text, fault) in table {
            assert_eq!(Config::parse(text, &place()).expect_err(text).to_string(), fault, "{text}");
        }
    }

    #[test]
    fn duplicate_route_and_second_state_are_refused() {
        let fault = |text: &str| Config::parse(text, &place()).expect_err("a fault").to_string();
        let text = "[routes.\"/a\"]\ntype = \"filesystem\"\nroot = \".\"\n[routes.\"/a/\"]\ntype = \"filesystem\"\nroot = \".\"\n";
        assert_eq!(fault(text), "treehold.toml:4:9: `/a/` and `/a` are the same path; keep one of them");
        let text = "[routes.\"/\"]\ntype = \"state\"\n[routes.\"/a\"]\ntype = \"state\"\n";
        assert_eq!(fault(text), "treehold.toml:4:8: the thread's state stands at `/` already; a thread has one state; write beneath it");
        let text = "[routes.\"/a\"]\ntype = \"state\"\n";
        assert!(fault(text).contains("add `[routes.\"/\"]`"));
    }

    #[test]
    fn empty_file_equals_builtin() {
        let builtin = Config::builtin(&place());
        assert_eq!(parsed("").routes, builtin.routes);
        assert_eq!(builtin.routes.keys().collect::<Vec<_>>(), ["/", "/memories", "/workspace"]);
        assert_eq!(builtin.data, Path::new("/var/lib/treehold"));
    }

    #[test]
    fn template_shows_the_defaults() {
        let written = parsed(TEMPLATE);
        let builtin = Config::builtin(&place());
        assert_eq!((written.routes, written.stores, written.scope), (builtin.routes, builtin.stores, builtin.scope));
    }

    #[test]
    fn template_contains_every_key() {
        let all: String = TEMPLATE
            .lines()
            .map(|line| match line.strip_prefix('#') {
                Some(key) if key.starts_with(|first: char| first.is_ascii_lowercase() || first == '[') => key,
                _ => line,
            })
            .flat_map(|line| [line, "\n"])
            .collect();
        let config = parsed(&all);
        assert_eq!(config.scope.agent.as_deref(), Some("coder"));
        // Every setting must also appear in the template.
        for setting in config.settings() {
            assert!(matches!(setting.origin, Origin::File { .. }), "`{}` is not in the template", setting.keys.join("."));
        }
    }

    #[test]
    fn paths_are_resolved_against_the_file() {
        assert_eq!(parsed("data = \"state/db\"").data, Path::new("/etc/agent/state/db"));
        assert_eq!(parsed("data = \"/srv/db\"").data, Path::new("/srv/db"));
        assert_eq!(parsed("").resolve("."), Path::new("/etc/agent"));
    }

    #[test]
    fn settings_have_an_origin_and_round_trip() {
        let config = parsed("[scope]\nuser = \"ada\"\n[routes.\"/w\"]\ntype = \"filesystem\"\nroot = \".\"\n");
        let settings = config.settings();
        let origin = |keys: &[&str]| {
            settings.iter().find(|setting| setting.keys == keys).map(|setting| setting.origin.to_string()).unwrap_or_default()
        };
        assert_eq!(origin(&["scope", "user"]), "treehold.toml:2");
        assert_eq!(origin(&["scope", "tenant"]), "default");
        assert_eq!(origin(&["routes", "/w", "root"]), "treehold.toml:5");
        assert_eq!(origin(&["routes", "/w", "sync"]), "default");
        let mut text = String::new();
        let mut table = None;
        for setting in &settings {
            if setting.table() != table {
                table = setting.table();
                text.push_str(&format!("[{}]\n", table.as_deref().unwrap_or_default()));
            }
            text.push_str(&format!("{} = {}\n", setting.key(), setting.value));
        }
        assert_eq!(parsed(&text).routes, config.routes, "{text}");
    }
}
