//! Opens a configuration: routes become mounts, and layers are applied in their fixed order.

use super::per_scope::PerScope;
use super::stores::Stores;
use super::{
    Config, DEFAULT_STORE, HistoryConfig, OVERLAY_NAMESPACE, PermissionConfig, PermissionEffect, QuotaConfig, RouteConfig, RouteIndex,
    RouteType, check,
};
use parking_lot::Mutex;
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use treehold_agent::audit::AuditLog;
use treehold_agent::feed::Feed;
use treehold_agent::memory::{MemorySettings, PromptOptions};
use treehold_agent::workspace::{Opening, Workspace, WorkspaceBuilder};
use treehold_core::error::{AtHost, Error, ErrorKind, Result};
use treehold_core::path::VfsPathBuf;
use treehold_core::scope::{NamespaceTemplate, Scope, ScopeField, Template};
use treehold_core::shared::Shared;
use treehold_store::Namespace;
use treehold_tree::backend::{Backend, StoreBackend};
use treehold_tree::checkpoint::StoreCheckpointer;
use treehold_tree::layer::{
    Audit, JsonLinesSink, Layered, Limit, Operations, Permissions, Quota, QuotaLimits, ReadOnly, Retry, Rule, SinkFailure, Timeout,
};

impl Config {
    /// Returns the default scope.
    pub fn scope(&self) -> Scope {
        let scope = Scope::new().with_tenant(&self.scope.tenant).with_user(&self.scope.user).with_thread(&self.scope.thread);
        match &self.scope.agent {
            Some(agent) => scope.with_agent(agent),
            None => scope,
        }
    }

    /// Returns the stores. Each is opened by its first call.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for a malformed URL, which is possible if it was set after parsing.
    pub fn stores(&self) -> Result<Stores> {
        Stores::new(self)
    }

    /// Builds the workspace. Stores and directories are opened by the first call that needs them.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for an invalid setting, which is possible if it was set after parsing.
    pub fn workspace(&self) -> Result<Workspace> {
        self.workspace_on(&self.stores()?)
    }

    /// Builds the workspace on existing stores.
    ///
    /// # Errors
    /// As [`Config::workspace`], and [`NotFound`](treehold_core::error::ErrorKind::NotFound) for a store that is not in `stores`.
    pub fn workspace_on(&self, stores: &Stores) -> Result<Workspace> {
        let mut workspace = Workspace::builder()
            .durability(self.threads.durability)
            .threads_bytes_max(self.threads.memory_bytes_max)
            .tools(self.registry().tools().clone());
        if self.threads.save {
            workspace = workspace.checkpointer(StoreCheckpointer::new(stores.get(&self.threads.store)?));
            if self.threads.audit {
                workspace = workspace.audit_log(AuditLog::new(stores.get(&self.threads.store)?));
            }
        }
        if self.events.save {
            let keep = check::kept_for(&self.events.keep)?;
            workspace = workspace.feed(Feed::new(stores.get(&self.events.store)?).with_keep(keep));
        }
        workspace = workspace.memory(self.memory_settings()?);
        for (path, route) in &self.routes {
            let files = (route.tier != RouteType::State).then(|| self.opener(path, route, stores)).transpose()?;
            let open = with_quota(tier(files.clone()), route.quota);
            let read_only = route.read_only;
            workspace = workspace.mount(path, move |opening| {
                let (_, tree) = open(opening)?;
                Ok(if read_only { Arc::new(Layered::new(ReadOnly::new(), tree)) } else { tree })
            })?;
            if route.history.as_ref().and_then(HistoryConfig::policy).is_some() {
                let (mount, config, path, stores) = (path, self.clone(), path.clone(), stores.clone());
                let missing = || Error::new(ErrorKind::Internal, "a route with a history is not one of rows");
                let tree = move |scope: &Scope| config.store_tree(&path, &stores, scope)?.ok_or_else(missing);
                workspace = workspace.with_history(mount, tree)?;
            }
            workspace = match route.tier {
                RouteType::State => workspace.with_state_mount(path)?,
                // An overlay shows two trees, which no single watch covers.
                RouteType::Store if route.overlay.is_none() => {
                    let store = stores.get(route.store.as_deref().unwrap_or(DEFAULT_STORE))?;
                    let template = NamespaceTemplate::parse(route.namespace.as_deref().unwrap_or_default())?;
                    workspace.with_change_source(path, move |scope| Ok((store.clone(), template.fill(scope)?)))?
                }
                // A checkpoint never changes.
                RouteType::History | RouteType::Past => workspace,
                RouteType::Traces => {
                    let changes = self.trace_changes(stores)?;
                    workspace.with_change_source(path, changes)?
                }
                RouteType::Store | RouteType::Filesystem | RouteType::Remote => {
                    let files = files.expect("only the state of the thread has no files");
                    workspace.with_event_log(path, move |scope| files(scope)?.0.log())?
                }
            };
        }
        for (mount, live) in self.past()? {
            workspace = workspace.past(mount.as_str(), live.as_str())?;
        }
        let workspace = self.with_memo(workspace, stores)?;
        Ok(self.with_meaning(self.layered(workspace)?, stores)?.build())
    }

    /// Returns the settings of the prompt memory.
    fn memory_settings(&self) -> Result<MemorySettings> {
        let paths = |texts: &[String]| texts.iter().map(VfsPathBuf::parse).collect::<Result<Vec<_>, _>>();
        let (sources, index) = (paths(&self.memory.sources)?, paths(&self.memory.index)?);
        let prompt = PromptOptions::new().with_tokens_max(self.memory.tokens_max).with_index_tokens_max(self.memory.index_tokens_max);
        Ok(MemorySettings::new().with_sources(sources).with_index(index).with_prompt(prompt))
    }

    /// Returns the path of each history route with the path of the current state, and of each past route with that of the current files.
    fn past(&self) -> Result<Vec<(VfsPathBuf, VfsPathBuf)>> {
        let of = |tier: RouteType| self.routes.iter().filter(move |(_, route)| route.tier == tier).map(|(path, _)| VfsPathBuf::parse(path));
        let mut states = of(RouteType::State).collect::<Result<Vec<_>, _>>()?;
        if !self.routes.contains_key("/") {
            states.push(VfsPathBuf::root());
        }
        let mut past = Vec::new();
        for (path, route) in self.routes.iter().filter(|(_, route)| route.tier == RouteType::Past) {
            past.push((VfsPathBuf::parse(path)?, VfsPathBuf::parse(route.of.as_deref().unwrap_or_default())?));
        }
        for history in of(RouteType::History) {
            let history = history?;
            past.extend(states.iter().map(|state| (history.clone(), state.clone())));
        }
        Ok(past)
    }

    /// Adds the layers around the whole tree, the innermost first. All sessions share their state.
    fn layered(&self, mut workspace: WorkspaceBuilder) -> Result<WorkspaceBuilder> {
        let layers = &self.layers;
        if let Some(running_max) = layers.running_max {
            let limit = Limit::new(running_max);
            let limit = Arc::new(match layers.waiting_max {
                Some(waiting_max) => limit.with_waiting_max(waiting_max),
                None => limit,
            });
            workspace = workspace.layer(move |tree, _| Arc::new(Layered::new(limit.clone(), tree)));
        }
        if let Some(attempts_max) = layers.attempts_max.filter(|attempts| *attempts > 1) {
            let retry = Retry::new(attempts_max);
            workspace = workspace.layer(move |tree, _| Arc::new(Layered::new(retry.clone(), tree)));
        }
        if let Some(text) = &layers.timeout {
            let timeout = Timeout::new(check::duration(text)?);
            workspace = workspace.layer(move |tree, _| Arc::new(Layered::new(timeout.clone(), tree)));
        }
        // The first in the file is the outermost.
        for layer in layers.custom.iter().rev() {
            let wrap = self.registry.layer(&layer.name, &layer.settings)?;
            workspace = workspace.layer(move |tree, scope| wrap(tree, scope));
        }
        if !layers.permissions.is_empty() {
            let rules = layers.permissions.iter().map(rule).collect::<Result<Vec<_>>>()?;
            let past = self.past()?;
            workspace = workspace.layer(move |tree, _| Arc::new(Permissions::new(rules.clone(), tree).with_past(past.clone())));
        }
        if let Some(file) = &layers.audit {
            let sink = Arc::new(JsonLinesSink::new(open_log(&self.resolve(file))?));
            let on_failure = if layers.audit_required { SinkFailure::Refuse } else { SinkFailure::Continue };
            workspace = workspace.layer(move |tree, scope| {
                let audit = Audit::new(sink.clone()).with_sink_failure(on_failure).with_scope(scope.clone());
                Arc::new(Layered::new(audit, tree))
            });
        }
        Ok(workspace)
    }

    /// Returns the host directory of a filesystem route for a scope, or `None` for other routes.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) if the scope lacks a field of the root, or an id cannot be a directory name.
    pub fn filesystem_root(&self, path: &str, scope: &Scope) -> Result<Option<PathBuf>> {
        let Some(root) = self.routes.get(path).and_then(|route| route.root.as_deref()) else { return Ok(None) };
        filled_root(&Template::parse(root)?, scope).map(|text| Some(self.resolve(&text)))
    }

    /// Returns the tree of a store route for a scope, without its layers, or `None` for other routes.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) if the scope lacks a field of the namespace,
    /// [`NotFound`](treehold_core::error::ErrorKind::NotFound) for a store that is not in `stores`.
    pub fn store_tree(&self, path: &str, stores: &Stores, scope: &Scope) -> Result<Option<StoreBackend>> {
        let Some(route) = self.routes.get(path).filter(|route| route.tier == RouteType::Store) else { return Ok(None) };
        let store = stores.get(route.store.as_deref().unwrap_or(DEFAULT_STORE))?;
        let namespace = NamespaceTemplate::parse(route.namespace.as_deref().unwrap_or_default())?.fill(scope)?;
        Ok(Some(configured(StoreBackend::new(store, namespace), route)))
    }

    /// Returns the opener of a route other than the thread's state.
    fn opener(&self, path: &str, route: &RouteConfig, stores: &Stores) -> Result<OpenFiles> {
        let open = self.files(path, route, stores)?;
        match &route.overlay {
            Some(overlay) => self.overlaid(path, overlay, stores, open),
            None => Ok(open),
        }
    }

    /// Returns the opener of a route other than the thread's state, without its overlay.
    pub(super) fn files(&self, path: &str, route: &RouteConfig, stores: &Stores) -> Result<OpenFiles> {
        match route.tier {
            RouteType::Filesystem => return self.filesystem(path, route),
            RouteType::History => return self.history(path, route, stores),
            RouteType::Past => return self.past_files(path, route, stores),
            RouteType::Remote => return self.remote(path, route),
            RouteType::Traces => return self.trace_files(path, stores),
            RouteType::State | RouteType::Store => {}
        }
        let name: Arc<str> = route.store.as_deref().unwrap_or(DEFAULT_STORE).into();
        let store = stores.get(&name)?;
        let template = NamespaceTemplate::parse(route.namespace.as_deref().unwrap_or_default())?;
        let path = path.to_owned();
        let route = route.clone();
        let trees = PerScope::by(template.fields());
        Ok(Arc::new(move |scope| {
            let (place, tree): (TreeId, Arc<StoreBackend>) = trees.get_or_make(scope, || {
                check_fields(&path, &template, template.fields(), scope)?;
                let namespace = template.fill(scope)?;
                let place = TreeId::Rows(name.clone(), namespace.clone());
                Ok((place, Arc::new(configured(StoreBackend::new(store.clone(), namespace), &route))))
            })?;
            // Another process may have added an index since, so each session looks again.
            Ok((place, Box::new(move || Arc::new(tree.reopened()))))
        }))
    }

    #[cfg(all(feature = "filesystem", unix))]
    fn filesystem(&self, path: &str, route: &RouteConfig) -> Result<OpenFiles> {
        use super::RouteSync;
        use super::directories::{Directories, Directory};
        use treehold_tree::backend::{FilesystemBackend, FilesystemOptions, SyncMode};

        let template = Template::parse(route.root.as_deref().unwrap_or_default())?;
        let options = FilesystemOptions::new()
            .with_create_root(route.create_root.unwrap_or_default())
            .with_cross_mounts(route.cross_mounts.unwrap_or_default())
            .with_sync(match route.sync.unwrap_or_default() {
                RouteSync::None => SyncMode::None,
                RouteSync::File => SyncMode::File,
                RouteSync::Full => SyncMode::Full,
            });
        let capabilities = options.capabilities();
        let open = {
            let (config, path) = (self.clone(), path.to_owned());
            move |directory: &Path| -> Result<Arc<dyn Backend>> {
                match FilesystemBackend::open(directory, options.clone()) {
                    Ok(tree) => Ok(Arc::new(treehold_tree::layer::Protected::new(config.protections(&path, directory)?, tree))),
                    Err(error) => Err(unopened(&path, error)),
                }
            }
        };
        let directories = Arc::new(Directories::new(capabilities, open));
        let (config, path) = (self.clone(), path.to_owned());
        let roots = PerScope::by(template.fields());
        Ok(Arc::new(move |scope| {
            let root: PathBuf = roots.get_or_make(scope, || {
                check_fields(&path, &template, template.fields(), scope)?;
                filled_root(&template, scope).map(|text| config.resolve(&text))
            })?;
            let tree = Arc::new(Directory::new(directories.clone(), root.clone()));
            Ok((TreeId::Directory(root), Box::new(move || tree)))
        }))
    }

    #[cfg(not(all(feature = "filesystem", unix)))]
    fn filesystem(&self, _path: &str, _route: &RouteConfig) -> Result<OpenFiles> {
        Err(Error::unsupported("this program was built without `filesystem`; build it with that feature or leave its routes out"))
    }

    /// Makes the path of a store absolute. `{data}` is the data directory.
    pub(super) fn store_path(&self, text: &str) -> PathBuf {
        match text.strip_prefix("{data}") {
            Some(rest) => self.data.join(rest.trim_start_matches('/')),
            None => self.resolve(text),
        }
    }
}

/// Adds the indexes and the history of a route to its tree.
pub(super) fn configured(tree: StoreBackend, route: &RouteConfig) -> StoreBackend {
    let kinds = route.index.as_ref().map_or(&[][..], RouteIndex::kinds);
    let tree = kinds.iter().fold(tree, |tree, kind| tree.with_index(*kind));
    match route.history.as_ref().and_then(HistoryConfig::policy) {
        Some(policy) => tree.with_history(policy),
        None => tree,
    }
}

/// Returns the error for a route whose directory cannot be opened. The route lacks something, not the caller's path, so this must not read
/// as not found.
#[cfg(all(feature = "filesystem", unix))]
fn unopened(path: &str, error: Error) -> Error {
    let message = format!("the directory of the route `{path}` cannot be opened: {}", error.message());
    let kind = match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => ErrorKind::Unavailable,
        kind => kind,
    };
    error.with_message(message).with_kind(kind)
}

/// Checks that a scope has the fields of a route's template. The error explains how to set a missing one.
pub(super) fn check_fields(
    path: &str,
    template: &impl fmt::Display,
    mut fields: impl Iterator<Item = ScopeField>,
    scope: &Scope,
) -> Result<()> {
    let Some(field) = fields.find(|field| scope.field(*field).is_none()) else { return Ok(()) };
    let flag = field.name().to_uppercase();
    Err(Error::invalid_argument(format!(
        "the route `{path}` leads to `{template}`, but no {field} is set; set it with `--{field}`, `TREEHOLD_{flag}`, or `{field}` under \
            `[scope]` of the configuration"
    )))
}

/// Returns where a route leads for a scope, and the function that opens the tree there. It is independent of the session's state.
pub(super) type OpenFiles = Arc<dyn Fn(&Scope) -> Result<(TreeId, OpenTree)> + Send + Sync>;

pub(super) type OpenTree = Box<dyn FnOnce() -> Arc<dyn Backend>>;

type OpenTier = Box<dyn Fn(&Opening<'_>) -> Result<(TreeId, Arc<dyn Backend>)> + Send + Sync>;

/// Identifies the tree that a route leads to for a scope.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum TreeId {
    State(Scope),
    /// A namespace, with the name of its store.
    Rows(Arc<str>, Namespace),
    #[cfg(all(feature = "filesystem", unix))]
    Directory(PathBuf),
    /// A checkpoint by name, of the thread of a scope.
    History(Scope, String),
    /// A directory of another server: peer and URL, the thread there, and the actor.
    #[cfg(feature = "remote")]
    Remote(String, Option<String>, Option<String>),
    /// The files in these rows as they were at a time.
    Past(Box<TreeId>, String),
    /// The traces of a tenant and user.
    Traces(String, String),
    /// The changes in these rows, over another tree.
    Overlay(String, Namespace, Box<TreeId>),
}

impl TreeId {
    /// Returns whether it includes the state of a thread, which depends on the session that opened it.
    fn holds_state(&self) -> bool {
        match self {
            Self::State(_) => true,
            Self::Overlay(_, _, lower) => lower.holds_state(),
            _ => false,
        }
    }

    /// Returns the log for its events, or `None` if the tree records its own or never changes.
    fn log(&self) -> Result<Option<Namespace>> {
        match self {
            Self::State(_) | Self::History(..) | Self::Past(..) | Self::Traces(..) => Ok(None),
            Self::Rows(store, rows) => Feed::log("rows of", &format!("{store}\n{rows}")).map(Some),
            #[cfg(all(feature = "filesystem", unix))]
            Self::Directory(root) => Feed::log("directory", &root.to_string_lossy()).map(Some),
            #[cfg(feature = "remote")]
            Self::Remote(peer, thread, _) => Feed::log("peer", &format!("{peer}\n{}", thread.as_deref().unwrap_or_default())).map(Some),
            Self::Overlay(store, rows, _) => {
                // The name from before overlays moved to the partition of their owner, so that the log goes on. There was no partition of
                // one component with a longer name then.
                let owner = rows.partition();
                let name: Vec<_> = rows.name().skip(OVERLAY_NAMESPACE.len()).collect();
                let rows = if owner.components().count() == 1 && name.len() > 1 {
                    rows.to_string()
                } else {
                    Namespace::new(std::iter::once(OVERLAY_NAMESPACE[1].into()).chain(owner.components()).chain(name))?.to_string()
                };
                Feed::log("overlay", &format!("{store}\n{rows}")).map(Some)
            }
        }
    }
}

/// Returns the opener of a route: of its files, or of the thread's state.
fn tier(files: Option<OpenFiles>) -> OpenTier {
    match files {
        Some(files) => Box::new(move |opening| {
            let (place, open) = files(opening.scope())?;
            Ok((place, open()))
        }),
        None => Box::new(|opening| {
            let mut scope = opening.scope().clone();
            scope.agent = None;
            Ok((TreeId::State(scope), opening.state()))
        }),
    }
}

/// Adds a quota to a tree. All sessions of the same tree share one count. The state of a thread may be open several times, each time with
/// its own count.
fn with_quota(open: OpenTier, quota: Option<QuotaConfig>) -> OpenTier {
    let Some(quota) = quota else { return open };
    let mut limits = QuotaLimits::new();
    limits.bytes_max = quota.bytes_max;
    limits.files_max = quota.files_max;
    limits.file_bytes_max = quota.file_bytes_max;
    let counted: Mutex<Shared<(TreeId, Option<usize>), dyn Backend>> = Mutex::default();
    Box::new(move |opening| {
        let (place, tree) = open(opening)?;
        // The past does not count towards the current state, and takes no changes.
        if opening.is_past() && matches!(place, TreeId::State(_)) {
            return Ok((place, tree));
        }
        let key = (place.clone(), place.holds_state().then(|| opening.state_id()));
        let tree = counted.lock().get_or_insert(key, || {
            let quota = Arc::new(Quota::new(limits, tree));
            if let TreeId::State(_) = place {
                opening.recount_on_reload(&quota);
            }
            quota
        });
        Ok((place, tree))
    })
}

fn rule(rule: &PermissionConfig) -> Result<Rule> {
    let operations = rule.operations.iter().map(|name| Operations::named(name)).reduce(|one, other| Ok(one? | other?));
    let operations = operations.unwrap_or_else(|| Err(Error::invalid_argument("a rule names no operation; name `all` for every one")))?;
    let made = match rule.effect {
        PermissionEffect::Allow => Rule::allow(operations, &rule.paths)?,
        PermissionEffect::Deny => Rule::deny(operations, &rule.paths)?,
        PermissionEffect::Ask => Rule::ask(operations, &rule.paths)?,
    };
    if rule.ignore_case { made.ignoring_case() } else { Ok(made) }
}

/// Opens the audit log for appending. It is created for its owner only, since it records who did what to which paths.
fn open_log(file: &Path) -> Result<File> {
    let mut options = File::options();
    options.create(true).append(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(file).map_err(|error| {
        let kind = match error.kind() {
            std::io::ErrorKind::NotFound => ErrorKind::NotFound,
            std::io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
            _ => ErrorKind::Unavailable,
        };
        let message = "the audit log cannot be opened; check `layers.audit` in the configuration and the permissions of its directory";
        Error::new(kind, message).with_source(AtHost::new(file).with_cause(error))
    })
}

/// Fills in the template of a root. Each id must be a single directory name, so that it cannot lead elsewhere.
fn filled_root(template: &Template, scope: &Scope) -> Result<String> {
    scope.validate()?;
    for field in template.fields() {
        if let Some(id) = scope.field(field)
            && !is_directory_name(id)
        {
            return Err(Error::invalid_argument(format!(
                "the {field} id `{id}` cannot be a directory of `{template}`; use letters, digits, `-`, `_` and `.`"
            )));
        }
    }
    template.fill(scope)
}

fn is_directory_name(id: &str) -> bool {
    !matches!(id, "." | "..") && !id.contains(['/', '\\', '~'])
}

#[cfg(test)]
mod tests {
    use super::super::ConfigBase;
    use super::*;
    use treehold_tree::backend::{BackendExt, IndexKind};

    /// Regression: the quota still counted content that a reload had dropped.
    #[tokio::test]
    async fn quota_recounts_reloaded_state() {
        let text = "[stores.default]\nurl = \"memory:\"\n[routes.\"/\"]\ntype = \"state\"\nquota = { bytes_max = 10 }";
        let config = Config::parse(text, &ConfigBase::new("/etc/agent", "/var/lib/treehold")).expect("a sound configuration");
        let workspace = config.workspace().expect("a workspace");
        let session = workspace.session(config.scope()).await.expect("opened");
        session.backend().write("/a", "123456").await.expect("fits");
        session.save().await.expect("saved");
        session.backend().write("/b", "1234").await.expect("fits");
        session.reload().await.expect("as it was saved");
        session.backend().write("/c", "1234").await.expect("discarded changes do not count towards the quota");
        let error = session.backend().write("/d", "1").await.expect_err("one byte too many");
        assert_eq!(error.kind(), ErrorKind::QuotaExceeded);
    }

    #[tokio::test]
    async fn session_finds_an_index_that_was_added_after_another_looked() {
        let text =
            "[stores.default]\nurl = \"memory:\"\n[routes.\"/notes\"]\ntype = \"store\"\nnamespace = \"{user}/notes\"\nindex = \"none\"";
        let config = Config::parse(text, &ConfigBase::new("/etc/agent", "/var/lib/treehold")).expect("a sound configuration");
        let stores = config.stores().expect("the stores");
        let workspace = config.workspace_on(&stores).expect("a workspace");
        let is_indexed = async || {
            let session = workspace.session(config.scope()).await.expect("opened");
            let options = treehold_core::ops::GrepOptions::new("needle");
            session.backend().grep(treehold_core::path::VfsPath::ROOT, &options).await.expect("searched");
            session.backend().capabilities().indexed
        };
        assert!(!is_indexed().await);
        let tree = config.store_tree("/notes", &stores, &config.scope()).expect("opened").expect("a route of rows");
        tree.with_index(IndexKind::Trigram).build_index(IndexKind::Trigram, |_| {}).await.expect("built");
        assert!(is_indexed().await);
    }

    /// The rule makes its layer ask for the capabilities of the whole tree, which must not open a directory either.
    #[cfg(all(feature = "filesystem", unix))]
    #[tokio::test]
    async fn session_opens_a_directory_only_for_calls_that_reach_it() {
        let home = tempfile::tempdir().expect("a directory");
        let text = "[stores.default]\nurl = \"memory:\"\n[routes.\"/files\"]\ntype = \"filesystem\"\nroot = \"{thread}\"\ncreate_root = true\nsync = \"full\"\n\
            [[layers.permissions]]\neffect = \"deny\"\noperations = [\"write\"]\npaths = [\"/files/.secret\"]";
        let config = Config::parse(text, &ConfigBase::new(home.path(), home.path())).expect("a sound configuration");
        let workspace = config.workspace().expect("a workspace");
        let [monday, tuesday] = ["monday", "tuesday"].map(|thread| config.scope().with_thread(thread));
        let session = workspace.session(monday.clone()).await.expect("opened");
        session.backend().write("/plan.md", "1. ask\n").await.expect("written");
        assert_eq!(session.backend().read_text("/plan.md").await.expect("read"), "1. ask\n");
        let before = (session.backend().to_string(), session.backend().capabilities());
        assert!(!home.path().join("monday").exists());
        session.backend().write("/files/a.md", "a").await.expect("written");
        assert_eq!(std::fs::read_to_string(home.path().join("monday/a.md")).expect("read"), "a");
        assert_eq!((session.backend().to_string(), session.backend().capabilities()), before);
        let other = workspace.session(tuesday).await.expect("opened");
        assert!(!other.backend().exists("/files/a.md").await.expect("looked up"), "each thread has a directory of its own");
        let again = workspace.session(monday).await.expect("opened");
        assert_eq!(again.backend().read_text("/files/a.md").await.expect("read"), "a");
    }
}
