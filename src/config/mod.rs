//! A configuration file, typed: what stands in `treehold.toml`, what holds when nothing stands there, and the
//! [`Workspace`](crate::Workspace) that comes of it.
//!
//! [`Config::parse`] reads a text and names file, line and column of a fault, with the key that was meant;
//! [`Config::builtin`] is what holds without a file; [`Config::workspace`] opens it. This is the one room that knows every
//! backend, store and layer by name. Stores are opened when the first call needs them, each once, however many routes name it.
//!
//! Relative paths are resolved against the directory of the file. `{data}` in a store's URL stands for the data directory.

use crate::error::{Error, Result};
use crate::memory::{MemorySettings, PromptOptions};
use crate::path::VfsPath;
use crate::scope::ScopeField;
use crate::session::ThreadDurability;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

mod check;
#[cfg(any(feature = "remote", all(feature = "filesystem", unix)))]
mod deferred;
mod fault;
mod history;
mod migrate_store;
#[cfg(any(feature = "sled", feature = "sqlite"))]
mod once;
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

/// The name of the store that routes and thread saves use unless they name another.
pub const DEFAULT_STORE: &str = "default";

/// What the namespaces of overlays lie beneath.
pub const OVERLAY_NAMESPACE: [&str; 2] = crate::store::reserved::OVERLAYS;

/// Who shares the changes of an overlay whose route says nothing else.
const OVERLAY_TEMPLATE: &str = "{tenant}/{user}/{thread}";

/// The thread and the checkpoint of a history route that says nothing else.
const HISTORY_THREAD: &str = "{thread}";
const HISTORY_AT: &str = "latest";

/// A commented configuration file that sets every key to what holds without it.
pub const TEMPLATE: &str = include_str!("template.toml");

/// What a configuration file says, with the defaults filled in.
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
    /// The directory of durable data. Default: the caller's, such as `~/.local/share/treehold` for the command.
    #[serde(default)]
    pub data: PathBuf,
    /// Who calls when a command names nobody.
    #[serde(default)]
    pub scope: ScopeConfig,
    /// Where the state of threads is saved.
    #[serde(default)]
    pub threads: ThreadsConfig,
    /// Where changes are kept, for those who follow them.
    #[serde(default)]
    pub events: EventsConfig,
    /// Which files are memory, told to agents at the start.
    #[serde(default)]
    pub memory: MemoryConfig,
    /// The stores, by the name that routes use.
    #[serde(default)]
    pub stores: BTreeMap<String, StoreConfig>,
    /// Other servers, by the name that routes use.
    #[serde(default)]
    pub peers: BTreeMap<String, PeerConfig>,
    /// What stands where in the tree, by path. A file that names any route names all of them but `/`.
    #[serde(default)]
    pub routes: BTreeMap<String, RouteConfig>,
    /// Which files of the host no tree changes.
    #[serde(default)]
    pub protected: ProtectedConfig,
    /// What stands around the whole tree.
    #[serde(default)]
    pub layers: LayersConfig,
    /// What bounds a server of the tree.
    #[serde(default)]
    pub serve: ServeConfig,
    /// Where the text came from.
    #[serde(skip)]
    place: Place,
    /// The text, to say where a setting stands.
    #[serde(skip)]
    text: String,
    /// What the caller set over the text, by its keys, and who it was.
    #[serde(skip)]
    callers: BTreeMap<Vec<String>, String>,
    /// What of the host governs the trees beside what the text names, and why.
    #[serde(skip)]
    governing: Vec<(PathBuf, String)>,
}

/// Who calls when nobody is named: the values of a scope's fields.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct ScopeConfig {
    /// The tenant. Default `default`.
    pub tenant: String,
    /// The user. Default `default`.
    pub user: String,
    /// The agent. None by default: a template that names `{agent}` then fails.
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

/// Where the state of threads is saved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct ThreadsConfig {
    /// Whether a thread's state is saved at all. Default true.
    pub save: bool,
    /// The store it is saved in. Default `default`.
    pub store: String,
    /// When it is saved by itself: `sync` after each change, `step` after each tool call (the default), `exit` at the end.
    pub durability: ThreadDurability,
    /// Whether each tool call is recorded beside the checkpoints, without contents. Default true.
    pub audit: bool,
    /// How many bytes of state a process keeps in memory, about; idle threads are saved and put down. Default 256 MiB.
    pub memory_bytes_max: u64,
}

impl Default for ThreadsConfig {
    fn default() -> Self {
        Self {
            save: true,
            store: DEFAULT_STORE.to_owned(),
            durability: ThreadDurability::default(),
            audit: true,
            memory_bytes_max: crate::workspace::THREADS_BYTES_MAX,
        }
    }
}

/// Where changes are kept, for those who follow them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct EventsConfig {
    /// Whether each change is kept as an event. Default true.
    pub save: bool,
    /// The store they are kept in; the events of files and threads that are kept there too are committed with them. Default `default`.
    pub store: String,
    /// How long they are kept. Default `7d`.
    pub keep: String,
}

impl Default for EventsConfig {
    fn default() -> Self {
        Self { save: true, store: DEFAULT_STORE.to_owned(), keep: "7d".to_owned() }
    }
}

/// Which files are memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct MemoryConfig {
    /// The files, in the order they are told. Default `/memories/AGENTS.md` and `/workspace/AGENTS.md`.
    pub sources: Vec<String>,
    /// The most tokens they take in a prompt, estimated. Default 8,000.
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
    /// Which engine, and where: `sqlite:FILE`, `sled:DIRECTORY`, `postgres://…`, `mysql://…`, `redis://…`, `memory:`, or
    /// `env:VARIABLE` for a URL that the environment holds.
    pub url: String,
    /// How often rows whose time is over are removed, while a process has the store open: a time such as `30s`, or `never`. Default `1m`.
    #[serde(default = "sweep_every")]
    pub sweep_every: String,
}

impl StoreConfig {
    /// Names a store by its URL.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), sweep_every: sweep_every() }
    }
}

/// How often a store is swept whose configuration says nothing.
fn sweep_every() -> String {
    "1m".to_owned()
}

/// Another treehold server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct PeerConfig {
    /// Where it is: `https://HOST:PORT`, with a path to mean a directory of its tree.
    pub url: String,
    /// Where its token is: `env:VARIABLE` or `file:PATH`. Default none is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// Allows `http` to another host, where content and token go in the clear. Default false.
    #[serde(default)]
    pub plain_http: bool,
}

impl PeerConfig {
    /// Names a server by its URL.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), token: None, plain_http: false }
    }
}

/// The tier that a route leads to.
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
    /// The state of a thread as it was at a checkpoint, read-only.
    History,
    /// The tree of another server.
    Remote,
}

impl RouteType {
    /// Returns the name that stands in a file.
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

/// When a filesystem route has what it wrote carried to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum RouteSync {
    /// When the host sees fit.
    #[default]
    None,
    /// The content of a file before its change is acknowledged.
    File,
    /// Content and name before a change is acknowledged: it survives the loss of power.
    Full,
}

/// What stands at one path of the tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct RouteConfig {
    /// The tier.
    #[serde(rename = "type")]
    pub tier: RouteType,
    /// Of a store route: the store. Default `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// Of a store route: the namespace of the rows, such as `{tenant}/{user}/memories`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Of a store route: the indexes that it keeps of its files. Default `none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<RouteIndex>,
    /// Of a filesystem route: the directory, which may hold scope fields, such as `/srv/{tenant}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
    /// Of a filesystem route: when changes are carried to the disk. Default `none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync: Option<RouteSync>,
    /// Of a filesystem route: whether other file systems mounted beneath the root are entered. Default false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cross_mounts: Option<bool>,
    /// Of a filesystem route: whether a missing root is made. Default false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub create_root: Option<bool>,
    /// Of a history route: the thread, which may hold scope fields. Default `{thread}`, the caller's own. Of a remote route: the
    /// thread of the far side. Default its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// Of a history route: the checkpoint, by its id, its label, or how far it lies back, such as `~1`. Default `latest`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// Of a remote route: `agent://PEER/PATH` for a server among `peers`, or the URL of one that asks for no token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Of a remote route: how many bytes of what is read are kept near. Default nothing is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_bytes_max: Option<usize>,
    /// Of a remote route that keeps what is read: whether that is served while the far side is away. Default false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serve_stale: Option<bool>,
    /// Whether changes are refused. Default false; a history route is always read-only.
    #[serde(default)]
    pub read_only: bool,
    /// What the tree may hold. Default no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<QuotaConfig>,
    /// Of a filesystem or store route: where changes are kept until somebody applies or discards them. Default none: they
    /// are made at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlay: Option<OverlayConfig>,
}

/// Where what is changed beneath a route is kept apart from it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct OverlayConfig {
    /// The store. Default `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// Who shares the changes. The rows stand beneath `overlays`, apart for each route. Default `{tenant}/{user}/{thread}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// What the tree of a route may hold: each tree for itself, so that of each user where the template names one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct QuotaConfig {
    /// The most bytes all files together may have; a directory counts 4,096.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_max: Option<u64>,
    /// The most files and directories there may be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files_max: Option<u64>,
    /// The most bytes one file may have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_bytes_max: Option<u64>,
}

/// What stands around the whole tree of each session; from the outside in: audit, permissions, timeout, retry, limit.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct LayersConfig {
    /// A file that a record of every call is appended to, as JSON Lines. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit: Option<String>,
    /// Whether a call whose record cannot be kept is refused. Default false: it goes on.
    #[serde(default)]
    pub audit_required: bool,
    /// How long a call may take, such as `30s`. Default no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
    /// How often a call that failed in passing is tried in all, where that is safe. Default once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts_max: Option<usize>,
    /// How many calls of the process run at once; others wait. Default no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running_max: Option<usize>,
    /// How many calls may wait; others are refused. Default no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_max: Option<usize>,
    /// Rules about paths; the first that is about a call decides. What no rule is about is allowed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub permissions: Vec<PermissionConfig>,
}

/// What a rule does with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum PermissionEffect {
    /// Lets it go on.
    Allow,
    /// Refuses it; a path that may not be read is not there.
    Deny,
    /// Asks an approver, which the workspace is given; where nobody can be asked, as on the command line, it is refused.
    Ask,
}

/// A rule about paths.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct PermissionConfig {
    /// What it does.
    pub effect: PermissionEffect,
    /// The operations it is about: `read`, `write`, `all`, or by their names.
    pub operations: Vec<String>,
    /// The paths it is about, and all that lies beneath them: absolute globs.
    pub paths: Vec<String>,
    /// Whether letters of either case are the same. Default false.
    #[serde(default)]
    pub ignore_case: bool,
}

impl RouteConfig {
    /// Makes a route to the thread's state.
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

    /// Makes a route to rows of a store.
    pub fn store(store: impl Into<String>, namespace: impl Into<String>) -> Self {
        Self {
            tier: RouteType::Store,
            store: Some(store.into()),
            namespace: Some(namespace.into()),
            index: Some(RouteIndex::default()),
            ..Self::state()
        }
    }

    /// Makes a route to the tree of another server.
    pub fn remote(url: impl Into<String>) -> Self {
        Self { tier: RouteType::Remote, url: Some(url.into()), ..Self::state() }
    }

    /// Makes a route to a directory of the host.
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

/// Where a configuration comes from and what it is relative to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Place {
    /// The file, as faults name it; none for a text that is not a file's.
    pub file: Option<PathBuf>,
    /// What relative paths are resolved against.
    pub directory: PathBuf,
    /// The data directory of a text that names none.
    pub data: PathBuf,
}

impl Place {
    /// Makes the place of a text that is not a file's.
    pub fn new(directory: impl Into<PathBuf>, data: impl Into<PathBuf>) -> Self {
        Self { file: None, directory: directory.into(), data: data.into() }
    }

    /// Sets the file, as faults name it.
    #[must_use]
    pub fn with_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.file = Some(file.into());
        self
    }
}

impl Config {
    /// Returns what holds without a file: the thread's state at `/`, one SQLite file in the data directory behind
    /// `/memories` and the thread saves, and the directory of `place` at `/workspace`.
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

    /// Reads a configuration text.
    ///
    /// # Errors
    /// The first fault, with its line and column and the key or value that was meant.
    pub fn parse(text: &str, place: &Place) -> Result<Self, ConfigFault> {
        let mut config: Self = toml::from_str(text).map_err(|error| fault::of_toml(&error, text, place))?;
        config.place = place.clone();
        config.text = text.to_owned();
        check::check(&config).map_err(|broken| broken.locate(text, place))?;
        config.fill_in();
        Ok(config)
    }

    /// Reads a configuration file; what is relative in it is relative to its directory.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound) without the file, [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for
    /// a fault in it: the source is then the [`ConfigFault`].
    pub fn load(file: &Path, data: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(file).map_err(|error| fault::of_reading(file, error))?;
        Self::load_text(file, &text, data)
    }

    /// Reads the text of a configuration file that was read before: what was looked at is what holds.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a fault in it: the source is then the [`ConfigFault`].
    pub fn load_text(file: &Path, text: &str, data: &Path) -> Result<Self> {
        let absolute = std::path::absolute(file).map_err(|error| fault::of_reading(file, error))?;
        let directory = absolute.parent().map_or_else(PathBuf::new, Path::to_owned);
        let place = Place::new(directory, data).with_file(file);
        Self::parse(text, &place).map_err(Error::from)
    }

    /// Returns where the configuration came from.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Sets the data directory, whatever the file says; `by` is who says so, as [`Origin::Caller`] shows it.
    pub fn set_data(&mut self, data: impl Into<PathBuf>, by: impl Into<String>) {
        self.data = data.into();
        self.callers.insert(vec!["data".to_owned()], by.into());
    }

    /// Sets who calls, whatever the file says; `by` is who says so, as [`Origin::Caller`] shows it.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for an id that is not legal.
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

    /// Puts the defaults where nothing was said.
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

    /// Makes a path of the configuration absolute: `~/` is the user's home, a relative one lies beneath the file's directory.
    fn resolve(&self, text: &str) -> PathBuf {
        match text.strip_prefix("~/").and_then(|rest| Some(std::env::home_dir()?.join(rest))) {
            Some(home) => home,
            // `components` drops the `.` of `./x`, so that what is shown is what one would write.
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
    fn a_route_keeps_the_indexes_that_it_names() {
        let index = |index: &str| {
            let config = parsed(&format!("[routes.\"/m\"]\ntype = \"store\"\nnamespace = \"m\"\n{index}"));
            config.routes["/m"].index.clone().expect("a store route says which").kinds().to_vec()
        };
        use crate::backend::IndexKind::{Trigram, Words};
        assert_eq!((index(""), index("index = \"none\""), index("index = []")), (vec![], vec![], vec![]));
        assert_eq!((index("index = \"trigram\""), index("index = [\"words\"]")), (vec![Trigram], vec![Words]));
        assert_eq!(index("index = [\"words\", \"trigram\", \"words\"]"), [Trigram, Words]);
    }

    #[test]
    fn names_line_column_and_what_was_meant() {
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
    fn refuses_two_routes_of_one_path_and_a_second_state() {
        let fault = |text: &str| Config::parse(text, &place()).expect_err("a fault").to_string();
        let text = "[routes.\"/a\"]\ntype = \"filesystem\"\nroot = \".\"\n[routes.\"/a/\"]\ntype = \"filesystem\"\nroot = \".\"\n";
        assert_eq!(fault(text), "treehold.toml:4:9: `/a/` and `/a` are the same path; keep one of them");
        let text = "[routes.\"/\"]\ntype = \"state\"\n[routes.\"/a\"]\ntype = \"state\"\n";
        assert_eq!(fault(text), "treehold.toml:4:8: the thread's state stands at `/` already; a thread has one state; write beneath it");
        let text = "[routes.\"/a\"]\ntype = \"state\"\n";
        assert!(fault(text).contains("add `[routes.\"/\"]`"));
    }

    #[test]
    fn an_empty_file_is_the_builtin() {
        let builtin = Config::builtin(&place());
        assert_eq!(parsed("").routes, builtin.routes);
        assert_eq!(builtin.routes.keys().collect::<Vec<_>>(), ["/", "/memories", "/workspace"]);
        assert_eq!(builtin.data, Path::new("/var/lib/treehold"));
    }

    #[test]
    fn the_template_says_what_holds_without_it() {
        let written = parsed(TEMPLATE);
        let builtin = Config::builtin(&place());
        assert_eq!((written.routes, written.stores, written.scope), (builtin.routes, builtin.stores, builtin.scope));
    }

    #[test]
    fn every_key_of_the_template_is_one() {
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
        // And every setting stands in it, so that no key is left out of the template.
        for setting in config.settings() {
            assert!(matches!(setting.origin, Origin::File { .. }), "`{}` is not in the template", setting.keys.join("."));
        }
    }

    #[test]
    fn paths_are_relative_to_the_file() {
        assert_eq!(parsed("data = \"state/db\"").data, Path::new("/etc/agent/state/db"));
        assert_eq!(parsed("data = \"/srv/db\"").data, Path::new("/srv/db"));
        assert_eq!(parsed("").resolve("."), Path::new("/etc/agent"));
    }

    #[test]
    fn settings_say_where_they_come_from_and_parse_again() {
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
