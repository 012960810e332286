//! The store engines and layers that a configuration can name, and the tools. Programs add their own.

use super::LayerSettings;
use super::fault::did_you_mean;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use treehold_agent::tools::{Tool, ToolRegistry, ToolSet};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::scope::Scope;
use treehold_store::engine::{InvalidStoreUrl, MemoryEngine, StoreEngine, StoreLocation, StoreUrl, without_password};
use treehold_store::migrate::TellMigrate;
use treehold_store::{MigrateOptions, MigrateOutcome, MigrateReport, Store, check_user_rows, move_user_rows};
use treehold_tree::backend::Backend;
use treehold_tree::layer::{Layer, Layered};

/// Wraps the tree of a session in a layer.
pub type WrapTree = Arc<dyn Fn(Arc<dyn Backend>, &Scope) -> Arc<dyn Backend> + Send + Sync>;

/// Makes a layer from its settings.
type MakeLayer = Arc<dyn Fn(&LayerSettings) -> Result<WrapTree> + Send + Sync>;

/// Everything that a configuration can name, engines by the schemes of their URLs and layers by name, and the tools that
/// models may call.
///
/// [`Registry::builtin`] has the engines that this crate was built with. A program adds an engine, a layer or a tool in one
/// line each, and reads its configuration, or runs the whole command line, with the result. Of two engines with one scheme,
/// or two layers of one name, the one added later counts.
///
/// # Examples
/// ```
/// use serde::Deserialize;
/// use treehold::config::{ConfigBase, Registry};
/// use treehold::layer::Limit;
///
/// #[derive(Deserialize)]
/// #[serde(deny_unknown_fields)]
/// struct Turns {
///     at_once: usize,
/// }
///
/// let registry = Registry::builtin().with_layer("turns", |settings| Ok(Limit::new(settings.parse::<Turns>()?.at_once)));
/// let base = ConfigBase::new("/srv/agent", "/var/lib/treehold");
/// let config = registry.parse_config("[[layers.custom]]\nname = \"turns\"\nat_once = 4\n", &base)?;
/// assert_eq!(config.layers.custom.len(), 1);
///
/// let fault = registry.parse_config("[[layers.custom]]\nname = \"turn\"\n", &base).unwrap_err();
/// assert_eq!(fault.hint.as_deref(), Some("did you mean `turns`?"));
/// # Ok::<(), treehold::config::ConfigFault>(())
/// ```
#[derive(Clone)]
pub struct Registry {
    engines: Arc<Vec<Arc<dyn StoreEngine>>>,
    /// The schemes of engines that this program was built without, each with the feature that it needs.
    absent: Arc<Vec<(&'static str, &'static str)>>,
    layers: Arc<Vec<(String, MakeLayer)>>,
    tools: ToolRegistry,
    /// The machines that are connected to this process.
    #[cfg(feature = "remote")]
    tunnels: treehold_remote::Tunnels,
}

/// Registers a built-in engine, or, in a build without it, a stand-in that reports its absence.
macro_rules! engine {
    ($registry:ident, $feature:literal, $schemes:expr, $form:literal, $engine:path) => {
        #[cfg(feature = $feature)]
        let $registry = $registry.with_engine($engine);
        #[cfg(not(feature = $feature))]
        let $registry = $registry.without_engine(absent::Absent { feature: $feature, schemes: &$schemes, form: $form });
    };
}

static BUILTIN: LazyLock<Registry> = LazyLock::new(|| {
    let registry = Registry {
        engines: Arc::default(),
        absent: Arc::default(),
        layers: Arc::default(),
        tools: ToolRegistry::new(),
        #[cfg(feature = "remote")]
        tunnels: treehold_remote::Tunnels::default(),
    };
    let registry = registry.with_engine(MemoryEngine);
    engine!(registry, "sqlite", ["sqlite"], "sqlite:FILE", treehold_sqlite::SqliteEngine);
    engine!(registry, "sled", ["sled"], "sled:DIRECTORY", treehold_sled::SledEngine);
    engine!(registry, "postgres", ["postgres", "postgresql"], "postgres://…", treehold_postgres::PostgresEngine);
    engine!(registry, "mysql", ["mysql", "mariadb"], "mysql://…", treehold_mysql::MysqlEngine);
    engine!(registry, "redis", ["redis", "rediss", "redis+cluster", "rediss+cluster"], "redis://…", treehold_redis::RedisEngine);
    registry
});

impl Registry {
    /// Returns the engines and tools that this crate was built with, and no layer.
    pub fn builtin() -> Self {
        let registry = BUILTIN.clone();
        #[cfg(feature = "remote")]
        let registry = registry.with_tunnels(treehold_remote::Tunnels::default());
        registry
    }

    /// Sets the machines that are connected to this process, which configurations name as `reverse` peers. A server accepts them into the
    /// same ones (`ServeOptions::with_tunnels`).
    #[cfg(feature = "remote")]
    #[must_use]
    pub fn with_tunnels(mut self, tunnels: treehold_remote::Tunnels) -> Self {
        self.tunnels = tunnels;
        self
    }

    /// Returns the machines that are connected to this process.
    #[cfg(feature = "remote")]
    pub fn tunnels(&self) -> &treehold_remote::Tunnels {
        &self.tunnels
    }

    /// Adds a store engine. Configurations and commands can then name its URLs.
    #[must_use]
    pub fn with_engine(mut self, engine: impl StoreEngine + 'static) -> Self {
        let engine = Arc::new(engine);
        Arc::make_mut(&mut self.absent).retain(|(scheme, _)| !engine.schemes().contains(scheme));
        Arc::make_mut(&mut self.engines).push(engine);
        self
    }

    /// Adds the stand-in of an engine.
    #[cfg(not(all(feature = "mysql", feature = "postgres", feature = "redis", feature = "sled", feature = "sqlite")))]
    fn without_engine(self, engine: absent::Absent) -> Self {
        let absent: Vec<_> = engine.schemes.iter().map(|scheme| (*scheme, engine.feature)).collect();
        let mut registry = self.with_engine(engine);
        Arc::make_mut(&mut registry.absent).extend(absent);
        registry
    }

    /// Returns the feature that the engine of a URL needs, if this program was built without it.
    pub(super) fn absent_engine(&self, url: &str) -> Option<&'static str> {
        let named = url.strip_prefix("env:").map(|variable| std::env::var(variable).unwrap_or_default());
        let scheme = named.as_deref().unwrap_or(url).split(':').next().unwrap_or_default();
        self.absent.iter().find(|(absent, _)| *absent == scheme).map(|(_, feature)| *feature)
    }

    /// Adds a layer that is one function ([`Layer`]). `make` checks the settings and makes the layer, which all sessions
    /// share; it also runs when a configuration is only checked, so it opens nothing.
    ///
    /// A configuration then adds it by `[[layers.custom]]` with `name` and the settings.
    #[must_use]
    pub fn with_layer<L: Layer + 'static>(
        self,
        name: impl Into<String>,
        make: impl Fn(&LayerSettings) -> Result<L> + Send + Sync + 'static,
    ) -> Self {
        self.with_wrapper(name, move |settings| {
            let layer = Arc::new(make(settings)?);
            Ok(Arc::new(move |tree, _: &Scope| Arc::new(Layered::new(layer.clone(), tree)) as Arc<dyn Backend>))
        })
    }

    /// Adds a layer that is a backend around a backend, such as one that changes results or depends on the scope.
    /// `make` is as for [`with_layer`](Self::with_layer).
    #[must_use]
    pub fn with_wrapper(
        mut self,
        name: impl Into<String>,
        make: impl Fn(&LayerSettings) -> Result<WrapTree> + Send + Sync + 'static,
    ) -> Self {
        Arc::make_mut(&mut self.layers).push((name.into(), Arc::new(make)));
        self
    }

    /// Adds a tool to the default set. Every workspace that a configuration of this registry opens has it, and so do
    /// the command line and the servers.
    ///
    /// # Errors
    /// Those of [`ToolRegistry::with_tool`].
    pub fn with_tool(mut self, tool: impl Tool + 'static) -> Result<Self> {
        self.tools = self.tools.with_tool(tool)?;
        Ok(self)
    }

    /// Returns the tools.
    pub fn tools(&self) -> &ToolRegistry {
        &self.tools
    }

    /// Returns the schemes of the engines, in the order in which they were added.
    pub fn schemes(&self) -> impl Iterator<Item = &str> {
        self.engines.iter().flat_map(|engine| engine.schemes()).copied()
    }

    /// Returns the names of the layers.
    pub fn layers(&self) -> impl Iterator<Item = &str> {
        self.layers.iter().map(|(name, _)| name.as_str())
    }

    /// Returns a store URL without its secrets, to be shown.
    pub fn shown_url(&self, url: &str) -> String {
        let scheme = url.split(':').next().unwrap_or_default();
        self.engine(scheme).map_or_else(|| without_password(url), |engine| engine.shown(url))
    }

    /// Makes a layer from its settings.
    pub(super) fn layer(&self, name: &str, settings: &LayerSettings) -> Result<WrapTree> {
        let (_, make) = self.layers.iter().rev().find(|(known, _)| known == name).ok_or_else(|| {
            let names = self.layers().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
            let known = if names.is_empty() { "this program has none of its own".to_owned() } else { format!("this program has {names}") };
            Error::invalid_argument(format!("no layer is named `{name}`; {known}"))
        })?;
        make(settings)
    }

    fn engine(&self, scheme: &str) -> Option<&Arc<dyn StoreEngine>> {
        self.engines.iter().rev().find(|engine| engine.schemes().contains(&scheme))
    }

    /// Checks a store URL without reading environment variables.
    pub(super) fn check_url(&self, url: &str, resolve: &(dyn Fn(&str) -> PathBuf + Sync)) -> Result<(), InvalidStoreUrl> {
        self.parsed(url, resolve).map(drop)
    }

    /// Finds the store that a URL names without reading environment variables; `None` for one that is there, and for a malformed URL.
    pub(super) fn located(&self, url: &str, resolve: &(dyn Fn(&str) -> PathBuf + Sync)) -> Option<Located> {
        match self.parsed(url, resolve) {
            Ok(Parsed::Located(located)) => Some(located),
            Ok(Parsed::Variable(_)) | Err(_) => None,
        }
    }

    /// Finds the store that a URL names.
    pub(super) fn locate(&self, url: &str, resolve: &(dyn Fn(&str) -> PathBuf + Sync)) -> Result<Located> {
        match self.parsed(url, resolve)? {
            Parsed::Located(located) => Ok(located),
            Parsed::Variable(variable) => {
                let url = from_variable(variable)?;
                match self.parsed(&url, resolve)? {
                    Parsed::Located(located) => Ok(located),
                    Parsed::Variable(_) => {
                        let variable = without_password(variable);
                        let message = format!("the variable `{variable}` refers to another variable; put the URL itself into it");
                        Err(Error::invalid_argument(message))
                    }
                }
            }
        }
    }

    fn parsed<'u>(&self, url: &'u str, resolve: &(dyn Fn(&str) -> PathBuf + Sync)) -> Result<Parsed<'u>, InvalidStoreUrl> {
        let Some(parts) = StoreUrl::new(url, resolve) else {
            return Err(InvalidStoreUrl::new(format!("`{}` names no engine", without_password(url))).with_hint(self.forms()));
        };
        match (parts.scheme(), parts.location().is_empty()) {
            ("env", true) => return Err(InvalidStoreUrl::new(format!("`{url}` names no location")).with_hint(self.forms())),
            ("env", false) => return Ok(Parsed::Variable(&url["env:".len()..])),
            _ => {}
        }
        let Some(engine) = self.engine(parts.scheme()) else {
            let scheme = parts.scheme();
            let hint = did_you_mean(scheme, self.schemes().chain(["env"])).unwrap_or_else(|| self.forms());
            return Err(InvalidStoreUrl::new(format!("no store engine is named `{scheme}`")).with_hint(hint));
        };
        let location = engine.locate(&parts).map_err(|invalid| match invalid.hint {
            Some(_) => invalid,
            None => invalid.with_hint(format!("write `{}`", engine.url_form())),
        })?;
        Ok(Parsed::Located(Located { engine: engine.schemes()[0].to_owned(), location }))
    }

    /// Returns the forms of URLs that a store may have, for messages.
    fn forms(&self) -> String {
        let forms = self.engines.iter().flat_map(|engine| engine.url_forms()).filter(|form| *form != "memory:");
        let forms: Vec<String> = forms.chain(["env:VARIABLE"]).map(|form| format!("`{form}`")).collect();
        format!("use {} or `memory:`", forms.join(", "))
    }
}

impl Default for Registry {
    fn default() -> Self {
        Self::builtin()
    }
}

/// Registries are equal if they have the same names.
impl PartialEq for Registry {
    fn eq(&self, other: &Self) -> bool {
        let tools = |registry: &Self| registry.tools.infos(ToolSet::Default).map(|info| info.name.to_string()).collect::<Vec<_>>();
        self.schemes().eq(other.schemes()) && self.layers().eq(other.layers()) && tools(self) == tools(other)
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry")
            .field("schemes", &self.schemes().collect::<Vec<_>>())
            .field("layers", &self.layers().collect::<Vec<_>>())
            .field("tools", &self.tools)
            .finish()
    }
}

/// A parsed URL.
enum Parsed<'u> {
    Located(Located),
    /// `env:VARIABLE`: the URL is in that environment variable, so that no secret is in the file.
    Variable(&'u str),
}

/// A store that a URL names.
#[derive(Debug, Clone)]
pub(super) struct Located {
    engine: String,
    pub(super) location: Arc<dyn StoreLocation>,
}

impl Located {
    /// Returns the first scheme of the engine.
    pub(super) fn engine(&self) -> &str {
        &self.engine
    }

    /// Returns the path of an embedded store.
    pub(super) fn path(&self) -> Option<&Path> {
        self.location.path()
    }

    /// Returns the file of a SQLite store; `None` for one with a file for each partition.
    pub(super) fn sqlite_file(&self) -> Option<PathBuf> {
        let is_file = self.engine == "sqlite" && !self.to_string().ends_with('/');
        self.path().filter(|_| is_file).map(Path::to_owned)
    }

    pub(super) async fn open(&self) -> Result<Arc<dyn Store>> {
        let store = self.location.open().await?;
        match check_user_rows(&*store).await {
            // Whoever reads those rows is told. The others are not affected: their files are whole, or their nodes are up.
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::PermissionDenied | ErrorKind::Unavailable) => {
                tracing::warn!(%error, store = %self, "whether rows of an earlier layout are left could not be checked");
                Ok(store)
            }
            checked => checked.map(|()| store),
        }
    }

    /// Migrates the store to the present layout.
    pub(super) async fn migrate(&self, how: &MigrateOptions, tell: TellMigrate<'_>) -> Result<MigrateReport> {
        let mut report = self.location.migrate(how, tell).await?;
        if report.outcome == MigrateOutcome::Planned {
            return Ok(report);
        }
        match move_user_rows(&*self.location.open().await?, how, tell).await {
            // The damaged parts are named all the same.
            Err(error) if report.faults_count > 0 => {
                report.add_fault(&error);
                Ok(report)
            }
            moved => moved.map(|moved| report.and(moved)),
        }
    }
}

impl fmt::Display for Located {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.location.fmt(f)
    }
}

/// Returns the URL in an environment variable.
fn from_variable(variable: &str) -> Result<String> {
    std::env::var(variable).ok().filter(|url| !url.is_empty()).ok_or_else(|| {
        // Someone may have written `env:` before the URL itself.
        let variable = without_password(variable);
        Error::invalid_argument(format!("the variable `{variable}` is not set; put the URL of the store into it"))
    })
}

/// Engines that this program was built without.
#[cfg(not(all(feature = "mysql", feature = "postgres", feature = "redis", feature = "sled", feature = "sqlite")))]
mod absent {
    use async_trait::async_trait;
    use std::fmt;
    use std::sync::Arc;
    use treehold_core::error::{Error, Result};
    use treehold_core::ops::Durability;
    use treehold_store::engine::{InvalidStoreUrl, StoreEngine, StoreLocation, StoreUrl, without_password};
    use treehold_store::{MigrateOptions, MigrateProgress, MigrateReport, Store, StoreCapabilities};

    /// An engine that this program was built without. Its URLs are recognised but cannot be opened.
    #[derive(Debug)]
    pub(super) struct Absent {
        pub(super) feature: &'static str,
        pub(super) schemes: &'static [&'static str],
        pub(super) form: &'static str,
    }

    impl StoreEngine for Absent {
        fn schemes(&self) -> &[&str] {
            self.schemes
        }

        fn url_form(&self) -> &str {
            self.form
        }

        fn locate(&self, url: &StoreUrl<'_>) -> Result<Arc<dyn StoreLocation>, InvalidStoreUrl> {
            Ok(Arc::new(Unreachable { feature: self.feature, shown: without_password(url.as_str()) }))
        }

        fn shown(&self, url: &str) -> String {
            without_password(url)
        }
    }

    #[derive(Debug)]
    struct Unreachable {
        feature: &'static str,
        shown: String,
    }

    impl Unreachable {
        fn error(&self) -> Error {
            let feature = self.feature;
            Error::unsupported(format!("this program was built without `{feature}`; build it with that feature or name another engine"))
        }
    }

    impl fmt::Display for Unreachable {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(&self.shown)
        }
    }

    #[async_trait]
    impl StoreLocation for Unreachable {
        fn capabilities(&self) -> StoreCapabilities {
            StoreCapabilities::new(Durability::None)
        }

        async fn open(&self) -> Result<Arc<dyn Store>> {
            Err(self.error())
        }

        async fn migrate(&self, _: &MigrateOptions, _: &mut (dyn FnMut(MigrateProgress) + Send)) -> Result<MigrateReport> {
            Err(self.error())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(feature = "sqlite")]
    use crate::config::open_store;
    use crate::config::{ConfigBase, OpenStoreOptions};
    use treehold_agent::tools::{ToolContext, ToolInfo, ToolOutput};
    use treehold_store::{MemoryStore, Partition};
    use treehold_tree::backend::BackendExt;
    use treehold_tree::layer::ReadOnly;

    fn resolve(text: &str) -> PathBuf {
        PathBuf::from("/srv").join(text)
    }

    /// An engine of another crate.
    #[derive(Debug)]
    struct Outside;

    impl StoreEngine for Outside {
        fn schemes(&self) -> &[&str] {
            &["outside", "memory"]
        }

        fn url_form(&self) -> &str {
            "outside:"
        }

        fn locate(&self, url: &StoreUrl<'_>) -> Result<Arc<dyn StoreLocation>, InvalidStoreUrl> {
            match url.location() {
                "" => MemoryEngine.locate(url),
                place => Err(InvalidStoreUrl::new(format!("`{place}` is nowhere"))),
            }
        }
    }

    /// Opening the store looks at this partition.
    #[cfg(feature = "sqlite")]
    #[tokio::test]
    async fn partition_of_sessions_that_cannot_be_read_affects_no_other() {
        let directory = tempfile::tempdir().expect("a directory");
        let url = format!("sqlite:{}/", directory.path().display());
        let open = async || open_store(&url, &OpenStoreOptions::new()).await;
        let namespace = |text: &str| treehold_store::Namespace::parse(text).expect("legal");
        let (memories, sessions) = (namespace("acme/ada/memories"), namespace("_treehold/sessions"));
        let put = |space: &treehold_store::Namespace| treehold_store::Batch::new().put(space, "k", "v");
        let store = open().await.expect("opened");
        for space in [&memories, &sessions] {
            store.commit(put(space)).await.expect("put");
        }
        drop(store);
        let file = directory.path().join("_treehold/sessions.db");
        assert!(file.is_file());
        for suffix in ["-wal", "-shm"] {
            let _ = std::fs::remove_file(directory.path().join(format!("_treehold/sessions.db{suffix}")));
        }
        std::fs::write(&file, vec![b'x'; 8_192]).expect("damaged");
        let store = open().await.expect("the other partitions are whole");
        assert!(store.get(&memories, "k").await.expect("read").is_some());
        assert_eq!(store.get(&sessions, "k").await.expect_err("it is reported").kind(), ErrorKind::Corrupt);
        drop(store);
        std::fs::remove_file(&file).expect("removed");
        std::fs::create_dir(&file).expect("something else is in its place");
        let store = open().await.expect("the other partitions are there");
        assert!(store.get(&memories, "k").await.expect("read").is_some());
        assert_eq!(store.get(&sessions, "k").await.expect_err("it is reported").kind(), ErrorKind::Unavailable);
    }

    #[tokio::test]
    async fn engine_of_another_crate_is_named_like_a_built_in_one() {
        let registry = Registry::builtin().with_engine(Outside);
        let base = ConfigBase::new("/srv/agent", "/var/lib/treehold");
        let config = registry.parse_config("[stores.default]\nurl = \"outside:\"\n", &base).expect("a sound configuration");
        let store = config.stores().expect("stores").get("default").expect("it is named");
        assert_eq!((store.to_string().as_str(), store.capabilities()), ("memory:", MemoryStore::offers()));
        let partition = Partition::new(["acme"]).expect("a legal partition");
        assert_eq!(store.current_version(&partition).await.expect("opened").number(), 0);
        assert_eq!(store.to_string(), "memory");
        registry.open_store("outside:", &OpenStoreOptions::new()).await.expect("opened");
        let fault = registry.parse_config("[stores.default]\nurl = \"outside:x\"\n", &base).expect_err("a fault");
        assert_eq!(fault.to_string(), "configuration:2:7: `x` is nowhere; write `outside:`");
        let fault = registry.parse_config("[stores.default]\nurl = \"outsid:\"\n", &base).expect_err("a fault");
        assert_eq!(fault.hint.as_deref(), Some("did you mean `outside`?"));
        let error = registry.open_store("x", &OpenStoreOptions::new()).await.expect_err("no engine");
        assert!(error.message().contains("`outside:`, `env:VARIABLE` or `memory:`"), "{error}");
        // A later engine replaces an earlier one with the same scheme.
        let error = registry.open_store("memory:x", &OpenStoreOptions::new()).await.expect_err("a place");
        assert_eq!(error.message(), "`x` is nowhere; write `outside:`");
    }

    #[test]
    fn url_of_an_engine_that_is_not_built_in_is_refused_by_the_check() {
        let mut registry = Registry::builtin();
        Arc::make_mut(&mut registry.absent).push(("postgres", "postgres"));
        let base = ConfigBase::new("/srv", "/data");
        let text = "[stores.default]\nurl = \"memory:\"\n[stores.main]\nurl = \"postgres://host/db\"\n";
        let fault = registry.parse_config(text, &base).expect("it is only read").check_engines().expect_err("it cannot be opened");
        assert_eq!((fault.line, &*fault.message), (4, "this program was built without `postgres`"));
        assert!(Registry::builtin().parse_config("[stores.a]\nurl = \"memory:\"\n", &base).expect("sound").check_engines().is_ok());
        // An engine of the program with the same scheme takes its place.
        let own = registry.with_engine(MemoryEngine);
        assert_eq!(own.absent_engine("postgres://host/db"), Some("postgres"));
        assert_eq!(own.absent_engine("memory:"), None);
    }

    #[test]
    fn built_in_engines_know_their_urls() {
        let registry = Registry::builtin();
        for url in
            ["postgres://h/d", "postgresql://h/d", "mariadb://h/d", "rediss+cluster://h", "env:DATABASE_URL", "memory:", "sqlite:a:b"]
        {
            assert_eq!(registry.check_url(url, &resolve), Ok(()), "{url}");
        }
        for url in ["env:", "memory:x", "a.db"] {
            assert!(registry.check_url(url, &resolve).is_err(), "{url}");
        }
        let invalid = registry.check_url("postgre://ada:s3cret@db", &resolve).expect_err("no such engine");
        assert!(!invalid.to_string().contains("s3cret"));
        assert_eq!(registry.shown_url("postgres:ada:s3cret@db/x"), "postgres://ada:***@db/x");
        assert_eq!(registry.shown_url("postgre:s3cret"), "postgre:***");
    }

    #[tokio::test]
    async fn layer_of_another_crate_wraps_every_session() {
        let registry = Registry::builtin().with_layer("frozen", |settings| {
            settings.parse::<std::collections::BTreeMap<String, bool>>()?;
            Ok(ReadOnly::new())
        });
        let base = ConfigBase::new("/srv/agent", "/var/lib/treehold");
        let stores = "[stores.default]\nurl = \"memory:\"\n[routes.\"/\"]\ntype = \"state\"\n";
        let text = format!("{stores}[[layers.custom]]\nname = \"frozen\"\nwhole = true\n");
        let config = registry.parse_config(&text, &base).expect("a sound configuration");
        let session = config.workspace().expect("a workspace").session(config.scope()).await.expect("opened");
        assert_eq!(session.backend().write("/a", "x").await.expect_err("frozen").kind(), ErrorKind::ReadOnly);
        for (custom, fault) in [
            ("name = \"frosen\"", "configuration:6:8: no layer is named `frosen`; did you mean `frozen`?"),
            ("name = \"frozen\"\nwhole = 3", "invalid type: integer `3`, expected a boolean"),
        ] {
            let text = format!("{stores}[[layers.custom]]\n{custom}\n");
            let found = registry.parse_config(&text, &base).expect_err("a fault").to_string();
            assert!(found.contains(fault), "{found}");
        }
        let fault = Registry::builtin().parse_config(&text, &base).expect_err("no such layer");
        assert!(fault.to_string().contains("this program has none of its own"), "{fault}");
    }

    /// A tool of another crate.
    #[derive(Debug)]
    struct Echo(ToolInfo);

    #[async_trait::async_trait]
    impl Tool for Echo {
        fn info(&self) -> &ToolInfo {
            &self.0
        }

        async fn run(&self, _: &serde_json::Value, _: &ToolContext<'_>) -> Result<ToolOutput> {
            Ok(ToolOutput::new("echo"))
        }
    }

    #[tokio::test]
    async fn tool_of_another_crate_is_called_in_every_workspace() {
        let schema = serde_json::json!({"type": "object", "properties": {}, "additionalProperties": false});
        let echo = Echo(ToolInfo::new("echo", "Echo", "Answers with its name.", schema).with_read_only());
        let registry = Registry::builtin().with_tool(echo).expect("a sound tool");
        let base = ConfigBase::new("/srv/agent", "/var/lib/treehold");
        let text = "[stores.default]\nurl = \"memory:\"\n[routes.\"/\"]\ntype = \"state\"\n";
        let config = registry.parse_config(text, &base).expect("a sound configuration");
        let workspace = config.workspace().expect("a workspace");
        let call = workspace.tools().from_json("echo", serde_json::json!({})).expect("a known tool");
        let session = workspace.session(config.scope()).await.expect("opened");
        assert_eq!(session.call(call).await.text, "echo");
        assert_ne!(registry, Registry::builtin());
    }
}
