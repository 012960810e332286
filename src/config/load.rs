//! Reading configurations: the text, where it came from, and the defaults.

use super::{
    AgentStateConfig, Config, ConfigFault, DEFAULT_STORE, EventsConfig, LayersConfig, MemoryConfig, ProtectedConfig, Registry, RouteConfig,
    ScopeConfig, ServeConfig, SessionsConfig, StoreConfig, ThreadsConfig, TracesConfig, check, fault,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use treehold_core::error::{Error, Result};
use treehold_core::path::VfsPath;

/// The origin of a configuration, and what it is relative to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ConfigBase {
    /// The file that faults name; `None` if the text is not from a file.
    pub file: Option<PathBuf>,
    /// The directory that relative paths are resolved against.
    pub directory: PathBuf,
    /// The data directory if the text names none.
    pub data: PathBuf,
}

impl ConfigBase {
    /// Returns the base of a text that is not from a file.
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
    /// threads, and the directory of `base` at `/workspace`.
    pub fn builtin(base: &ConfigBase) -> Self {
        Registry::builtin().config(base)
    }

    /// Returns the configuration without a file, with the engines and layers of a registry.
    fn without_file(base: &ConfigBase, registry: &Registry) -> Self {
        let mut config = Self {
            data: PathBuf::new(),
            scope: ScopeConfig::default(),
            threads: ThreadsConfig::default(),
            events: EventsConfig::default(),
            retention: Default::default(),
            memory: MemoryConfig::default(),
            stores: BTreeMap::new(),
            peers: BTreeMap::new(),
            routes: BTreeMap::new(),
            protected: ProtectedConfig::default(),
            layers: LayersConfig::default(),
            sessions: SessionsConfig::default(),
            embeddings: None,
            agent_state: AgentStateConfig::default(),
            traces: TracesConfig::default(),
            serve: ServeConfig::default(),
            base: base.clone(),
            text: String::new(),
            callers: BTreeMap::new(),
            governing: Vec::new(),
            registry: registry.clone(),
        };
        config.fill_in();
        config
    }

    /// Parses a configuration.
    ///
    /// # Errors
    /// The first fault, with its line, column and, if possible, the intended key or value.
    pub fn parse(text: &str, base: &ConfigBase) -> Result<Self, ConfigFault> {
        Registry::builtin().parse_config(text, base)
    }

    fn parse_with(text: &str, base: &ConfigBase, registry: &Registry) -> Result<Self, ConfigFault> {
        let mut config: Self = toml::from_str(text).map_err(|error| fault::of_toml(&error, text, base))?;
        config.base = base.clone();
        config.text = text.to_owned();
        config.registry = registry.clone();
        check::check(&config).map_err(|broken| broken.locate(text, base))?;
        config.fill_in();
        let located = |url: &str| config.registry.located(url, &|path| config.store_path(path));
        check::check_places(&config, located).map_err(|broken| broken.locate(text, base))?;
        Ok(config)
    }

    /// Reads a configuration file. Relative paths in it are resolved against its directory.
    ///
    /// # Errors
    /// [`NotFound`](treehold_core::error::ErrorKind::NotFound) if the file does not exist, [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for a
    /// fault in it, with the [`ConfigFault`] as its source.
    pub fn load(file: &Path, data: &Path) -> Result<Self> {
        Registry::builtin().load_config(file, data)
    }

    /// Parses the text of a configuration file that was already read. Use it after a check of the text, such as for trust, so that the
    /// checked text is the one that takes effect.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for a fault in it, with the [`ConfigFault`] as its source.
    pub fn load_text(file: &Path, text: &str, data: &Path) -> Result<Self> {
        Registry::builtin().load_config_text(file, text, data)
    }

    /// Fills in the defaults.
    fn fill_in(&mut self) {
        if self.data.as_os_str().is_empty() {
            self.data = self.base.data.clone();
        } else {
            self.data = self.resolve(&self.data.to_string_lossy());
        }
        let everything = self.only_store().unwrap_or(DEFAULT_STORE).to_owned();
        self.name_stores(&everything);
        if self.routes.is_empty() {
            self.routes.insert("/memories".to_owned(), RouteConfig::store(&everything, "{tenant}/{user}/memories"));
            self.routes.insert("/workspace".to_owned(), RouteConfig::filesystem("."));
        }
        if !self.routes.keys().any(|path| VfsPath::parse(path).is_ok_and(|path| path.is_root())) {
            self.routes.insert("/".to_owned(), RouteConfig::state());
        }
        self.routes.iter_mut().for_each(|(path, route)| route.fill_in(path, &everything));
        if everything == DEFAULT_STORE || self.names_store(DEFAULT_STORE) {
            self.stores.entry(DEFAULT_STORE.to_owned()).or_insert_with(|| StoreConfig::new("sqlite:{data}/treehold.db"));
        }
    }

    /// Returns the name of the store that the text names, if there is exactly one.
    fn only_store(&self) -> Option<&str> {
        let mut names = self.stores.keys();
        names.next().filter(|_| names.next().is_none()).map(String::as_str)
    }

    /// Sets the store of each section whose text names none.
    fn name_stores(&mut self, everything: &str) {
        let sections = [
            ("threads", &mut self.threads.store),
            ("events", &mut self.events.store),
            ("sessions", &mut self.sessions.store),
            ("agent_state", &mut self.agent_state.store),
            ("traces", &mut self.traces.store),
        ];
        let embeddings = self.embeddings.iter_mut().map(|embeddings| ("embeddings", &mut embeddings.store));
        for (section, store) in sections.into_iter().chain(embeddings) {
            if fault::line_of(&self.text, &[section.to_owned(), "store".to_owned()]).is_none() {
                everything.clone_into(store);
            }
        }
    }

    /// Returns whether a section, route or overlay names a store.
    fn names_store(&self, name: &str) -> bool {
        let sections = [&self.threads.store, &self.events.store, &self.sessions.store, &self.agent_state.store, &self.traces.store];
        let of_routes =
            self.routes.values().flat_map(|route| [&route.store, route.overlay.as_ref().map_or(&None, |overlay| &overlay.store)]);
        let embeddings = self.embeddings.iter().map(|embeddings| &embeddings.store);
        sections.into_iter().chain(embeddings).chain(of_routes.flatten()).any(|store| store == name)
    }

    /// Returns the name of the store that is meant where none is named: the only one of the configuration, or `default`.
    ///
    /// ```
    /// use treehold::config::{Config, ConfigBase};
    ///
    /// let base = ConfigBase::new("/srv/agent", "/var/lib/treehold");
    /// let config = Config::parse("[stores.main]\nurl = \"memory:\"\n", &base)?;
    /// assert_eq!((config.default_store(), &*config.threads.store), ("main", "main"));
    /// # Ok::<(), treehold::config::ConfigFault>(())
    /// ```
    pub fn default_store(&self) -> &str {
        self.only_store().unwrap_or(DEFAULT_STORE)
    }

    /// Returns whether the text names several stores, none of which is `default`. What names no store is then in the built-in one.
    #[cfg(feature = "cli")]
    pub(crate) fn leaves_default_store_open(&self) -> bool {
        self.stores.len() > 2
            && self.stores.contains_key(DEFAULT_STORE)
            && fault::line_of(&self.text, &["stores".to_owned(), DEFAULT_STORE.to_owned()]).is_none()
    }

    /// Checks that this program has the engine of every store, and that no two stores overlap. An `env:` URL is checked if its variable is
    /// set.
    ///
    /// # Errors
    /// The place of the first URL whose engine this program was built without, or whose place overlaps that of another.
    pub fn check_engines(&self) -> Result<(), ConfigFault> {
        for (name, store) in &self.stores {
            let Some(feature) = self.registry.absent_engine(&store.url) else { continue };
            let broken = fault::Broken::new(&["stores", name, "url"], format!("this program was built without `{feature}`"))
                .with_hint(Some("build it with that feature, or name another engine".to_owned()));
            return Err(broken.locate(&self.text, &self.base));
        }
        let located = |url: &str| self.locate(url).ok();
        check::check_places(self, located).map_err(|broken| broken.locate(&self.text, &self.base))
    }

    /// Makes a path absolute: `~/` is the user's home, and a relative path lies beneath the file's directory.
    pub(super) fn resolve(&self, text: &str) -> PathBuf {
        match text.strip_prefix("~/").and_then(|rest| Some(std::env::home_dir()?.join(rest))) {
            Some(home) => home,
            // `components` removes the `.` of `./x`, so the path is shown as a person would write it.
            None => self.base.directory.join(text).components().collect(),
        }
    }
}

/// Configurations that can name what this registry holds.
impl Registry {
    /// Returns the configuration without a file, see [`Config::builtin`].
    pub fn config(&self, base: &ConfigBase) -> Config {
        Config::without_file(base, self)
    }

    /// Parses a configuration, see [`Config::parse`].
    ///
    /// # Errors
    /// As [`Config::parse`].
    pub fn parse_config(&self, text: &str, base: &ConfigBase) -> Result<Config, ConfigFault> {
        Config::parse_with(text, base, self)
    }

    /// Reads a configuration file, see [`Config::load`].
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn load_config(&self, file: &Path, data: &Path) -> Result<Config> {
        let text = std::fs::read_to_string(file).map_err(|error| fault::of_reading(file, error))?;
        self.load_config_text(file, &text, data)
    }

    /// Parses the text of a configuration file that was already read, see [`Config::load_text`].
    ///
    /// # Errors
    /// As [`Config::load_text`].
    pub fn load_config_text(&self, file: &Path, text: &str, data: &Path) -> Result<Config> {
        let absolute = std::path::absolute(file).map_err(|error| fault::of_reading(file, error))?;
        let directory = absolute.parent().map_or_else(PathBuf::new, Path::to_owned);
        let base = ConfigBase::new(directory, data).with_file(file);
        self.parse_config(text, &base).map_err(Error::from)
    }
}
