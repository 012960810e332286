//! What a configuration means, route by route: where files live, who shares them, and what becomes of changes.

use super::{
    Config, HistoryConfig, HistoryLimits, PermissionConfig, PermissionEffect, RouteConfig, RouteSync, RouteType, ScopeConfig, Stores,
};
use serde::Serialize;
use std::fmt;
use treehold_core::error::Result;
use treehold_core::ops::Durability;
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::scope::{NamespaceTemplate, ScopeField, Template};
use treehold_core::search::Glob;
use treehold_store::Store;
use treehold_store::engine::without_password;

/// Who has the same files at a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Sharing {
    /// One thread of one user.
    Thread,
    /// All threads of one user.
    User,
    /// All users of one tenant.
    Tenant,
    /// Everyone who uses this configuration.
    Everyone,
    /// Whoever the other server lets in.
    OtherServer,
}

impl Sharing {
    /// Returns who shares what has these fields in its name.
    fn of(fields: impl Iterator<Item = ScopeField>) -> Self {
        let shared = fields.filter_map(|field| match field {
            ScopeField::Thread => Some(Self::Thread),
            ScopeField::User => Some(Self::User),
            ScopeField::Tenant => Some(Self::Tenant),
            ScopeField::Agent => None,
        });
        shared.min().unwrap_or(Self::Everyone)
    }
}

impl fmt::Display for Sharing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Thread => "one thread",
            Self::User => "all threads of a user",
            Self::Tenant => "all users of a tenant",
            Self::Everyone => "everyone",
            Self::OtherServer => "as the other server says",
        })
    }
}

/// A store that a route uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct EffectiveStore {
    /// The name in the configuration.
    pub name: String,
    /// Where it is, without passwords.
    pub location: String,
    /// What an acknowledged change survives.
    pub durability: Durability,
}

/// What an overlay does to a route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct EffectiveOverlay {
    /// Where changes are kept until they are applied or discarded.
    pub store: EffectiveStore,
    /// The template of who has the same changes.
    pub namespace: String,
    /// Who has the same changes.
    pub sharing: Sharing,
}

/// What a route means.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct EffectiveRoute {
    /// The path.
    pub path: VfsPathBuf,
    /// The tier.
    pub tier: RouteType,
    /// The store of the files or of their history; `None` if no store is involved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<EffectiveStore>,
    /// For a store route: the template of the namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// For a store route: the namespace of the configured scope, if that has all fields of the template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filled_namespace: Option<String>,
    /// The directory of the host, or the URL of another server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub location: Option<String>,
    /// Who has the same files.
    pub sharing: Sharing,
    /// What an acknowledged change survives; `None` if another server decides, or if nothing can be changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub durability: Option<Durability>,
    /// Whether each change is saved as a checkpoint to which one can go back.
    pub checkpoints: bool,
    /// For a store route: how much of the past of its files is kept; `None` if nothing is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history: Option<HistoryLimits>,
    /// For the state of threads: what is kept of it, as `[retention]` says. Empty if everything is.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub retention: Vec<String>,
    /// How long the timeline keeps the events of changes; `None` if they are not recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events_kept: Option<String>,
    /// Whether changes are refused.
    pub read_only: bool,
    /// Limits on what the tree may hold, as the configuration writes them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub quota: Vec<String>,
    /// Where changes are kept apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overlay: Option<EffectiveOverlay>,
    /// The rules that may apply to paths at or beneath it, in order: the first that matches decides.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<String>,
}

/// What the id of a tree says about a route.
#[derive(Debug, Serialize)]
struct RouteId<'a> {
    path: VfsPathBuf,
    tier: RouteType,
    #[serde(skip_serializing_if = "Option::is_none")]
    store: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    location: Option<String>,
    /// For a remote route through a peer: its URL.
    #[serde(skip_serializing_if = "Option::is_none")]
    peer: Option<String>,
    /// For a remote route: the thread there.
    #[serde(skip_serializing_if = "Option::is_none")]
    thread: Option<&'a str>,
    /// The store and the namespace of an overlay.
    #[serde(skip_serializing_if = "Option::is_none")]
    overlay: Option<(String, String)>,
    /// Who calls, if the namespace or location does not say that.
    #[serde(skip_serializing_if = "Option::is_none")]
    scope: Option<ScopeConfig>,
}

impl Config {
    /// Identifies the files at and beneath a path for the configured scope: by the path and the stores, namespaces, directories and servers
    /// of the routes there. Has no passwords. Opens no store and connects to no server.
    ///
    /// Whoever shares a tree has the same id for it. Stores have no identity beyond their location, so an id does not show that a store was
    /// replaced by another at the same place.
    ///
    /// ```
    /// use treehold::{VfsPath, VfsPathBuf};
    /// use treehold::config::{Config, ConfigBase};
    /// use treehold::scope::ScopeField;
    ///
    /// let ada = Config::builtin(&ConfigBase::new("/srv/agent", "/var/lib/treehold"));
    /// let (mut carl, mut later) = (ada.clone(), ada.clone());
    /// carl.set_scope(ScopeField::User, "carl", "a test")?;
    /// later.set_scope(ScopeField::Thread, "later", "a test")?;
    /// let memories = VfsPathBuf::parse("/memories")?;
    /// assert_ne!(ada.tree_id(&memories)?, carl.tree_id(&memories)?);
    /// assert_eq!(ada.tree_id(&memories)?, later.tree_id(&memories)?);
    /// assert_ne!(ada.tree_id(VfsPath::ROOT)?, later.tree_id(VfsPath::ROOT)?);
    /// # Ok::<(), treehold::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Config::effective_routes`].
    pub fn tree_id(&self, path: &VfsPath) -> Result<String> {
        let stores = self.stores()?;
        let own = self.route_of(path)?.map(|(key, _)| key);
        let mut routes = Vec::new();
        for (key, route) in &self.routes {
            if own == Some(key.as_str()) || VfsPathBuf::parse(key)?.starts_with(path) {
                routes.push(self.route_id(key, route, &stores)?);
            }
        }
        // The memory documents of a session are mounted without a route.
        let memo = match &self.sessions.mounted {
            Some(session) => {
                let location = self.effective_store(&self.sessions.store, &stores)?.location;
                Some((session, location, &self.scope.tenant, &self.scope.user))
            }
            None => None,
        };
        Ok(serde_json::to_string(&(path, routes, memo)).expect("a route has only text"))
    }

    fn route_id<'a>(&self, key: &str, route: &'a RouteConfig, stores: &Stores) -> Result<RouteId<'a>> {
        let meant = self.effective(key, route, stores)?;
        let overlay = match meant.overlay {
            Some(overlay) => {
                let filled = NamespaceTemplate::parse(&overlay.namespace)?.fill(&self.scope()).ok();
                Some((overlay.store.location, filled.map_or(overlay.namespace, |namespace| namespace.to_string())))
            }
            None => None,
        };
        let name = route.url.as_deref().and_then(|url| url.strip_prefix("agent://")?.split('/').next());
        let scope = match route.tier {
            RouteType::Store | RouteType::Filesystem => None,
            // The threads of a user do not depend on the agent.
            RouteType::State => Some(ScopeConfig { agent: None, ..self.scope.clone() }),
            _ => Some(self.scope.clone()),
        };
        Ok(RouteId {
            path: meant.path,
            tier: meant.tier,
            store: meant.store.map(|store| store.location),
            namespace: meant.filled_namespace.or(meant.namespace),
            location: meant.location,
            peer: name.and_then(|name| self.peers.get(name)).map(|peer| without_password(&peer.url)),
            thread: route.thread.as_deref(),
            overlay,
            scope,
        })
    }

    /// Describes every route, in path order. Opens no store and connects to no server.
    ///
    /// ```
    /// use treehold::config::{Config, ConfigBase, Sharing};
    ///
    /// let config = Config::builtin(&ConfigBase::new("/srv/agent", "/var/lib/treehold"));
    /// let routes = config.effective_routes()?;
    /// let shared: Vec<_> = routes.iter().map(|route| (route.path.as_str(), route.sharing)).collect();
    /// assert_eq!(shared, [("/", Sharing::Thread), ("/memories", Sharing::User), ("/workspace", Sharing::Everyone)]);
    /// # Ok::<(), treehold::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for a store whose `env:` URL names a variable that is not set.
    pub fn effective_routes(&self) -> Result<Vec<EffectiveRoute>> {
        let stores = self.stores()?;
        let mut routes = self.routes.iter().map(|(path, route)| self.effective(path, route, &stores)).collect::<Result<Vec<_>>>()?;
        routes.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(routes)
    }

    fn effective(&self, path: &str, route: &RouteConfig, stores: &Stores) -> Result<EffectiveRoute> {
        let path = VfsPathBuf::parse(path)?;
        let threads = || self.threads.save.then_some(self.threads.store.as_str());
        let mut filled_namespace = None;
        let (store, namespace, location, sharing, durability) = match route.tier {
            RouteType::State => {
                let store = threads().map(|name| self.effective_store(name, stores)).transpose()?;
                let durability = store.as_ref().map_or(Durability::None, |store| store.durability);
                (store, None, None, Sharing::Thread, Some(durability))
            }
            RouteType::Store => {
                let store = self.effective_store(route.store.as_deref().unwrap_or(self.default_store()), stores)?;
                let text = route.namespace.clone().unwrap_or_default();
                let template = NamespaceTemplate::parse(&text)?;
                filled_namespace = template.fill(&self.scope()).ok().map(|namespace| namespace.to_string());
                let (sharing, durability) = (Sharing::of(template.fields()), store.durability);
                (Some(store), Some(text), None, sharing, Some(durability))
            }
            RouteType::Filesystem => {
                let root = route.root.clone().unwrap_or_default();
                let sharing = Sharing::of(Template::parse(&root)?.fields());
                let durability = match route.sync.unwrap_or_default() {
                    RouteSync::Full => Durability::Power,
                    _ => Durability::Process,
                };
                let root =
                    self.filesystem_root(path.as_str(), &self.scope()).ok().flatten().map_or(root, |root| root.display().to_string());
                (None, None, Some(root), sharing, Some(durability))
            }
            RouteType::History => {
                let thread = route.thread.as_deref().unwrap_or("{thread}");
                let store = threads().map(|name| self.effective_store(name, stores)).transpose()?;
                let shared = Sharing::of(Template::parse(thread)?.fields()).min(Sharing::User);
                (store, None, Some(format!("{thread} at {}", route.at.as_deref().unwrap_or("latest"))), shared, None)
            }
            RouteType::Past => {
                let of = route.of.as_deref().unwrap_or_default();
                let shown = self.routes.get(of);
                let name = shown.and_then(|shown| shown.store.as_deref()).unwrap_or(self.default_store());
                let template = NamespaceTemplate::parse(shown.and_then(|shown| shown.namespace.as_deref()).unwrap_or_default())?;
                let at = route.at.as_deref().unwrap_or_default();
                (Some(self.effective_store(name, stores)?), None, Some(format!("{of} at {at}")), Sharing::of(template.fields()), None)
            }
            RouteType::Traces => {
                let store = self.traces.internal.is_none().then(|| self.effective_store(&self.traces.store, stores)).transpose()?;
                (store, None, None, Sharing::User, None)
            }
            RouteType::Remote => {
                let url = route.url.as_deref().map(without_password);
                (None, None, url, Sharing::OtherServer, None)
            }
        };
        let overlay = match &route.overlay {
            Some(overlay) => {
                let namespace = overlay.namespace.clone().unwrap_or_default();
                let sharing = Sharing::of(NamespaceTemplate::parse(&namespace)?.fields());
                let store = self.effective_store(overlay.store.as_deref().unwrap_or(self.default_store()), stores)?;
                Some(EffectiveOverlay { store, namespace, sharing })
            }
            None => None,
        };
        let changes = !route.read_only;
        Ok(EffectiveRoute {
            tier: route.tier,
            store,
            namespace,
            filled_namespace,
            location,
            sharing,
            durability: durability.filter(|_| changes),
            checkpoints: route.tier == RouteType::State && self.threads.save,
            history: match &route.history {
                Some(HistoryConfig::Kept(limits)) => Some(limits.clone()),
                _ => None,
            },
            retention: if route.tier == RouteType::State && self.threads.save { self.retention.described() } else { Vec::new() },
            events_kept: (self.events.save && changes).then(|| self.events.keep.clone()),
            read_only: route.read_only,
            quota: quota(route),
            overlay,
            rules: self.layers.permissions.iter().filter(|rule| may_concern(rule, &path)).map(shown_rule).collect(),
            path,
        })
    }

    fn effective_store(&self, name: &str, stores: &Stores) -> Result<EffectiveStore> {
        let store = stores.get(name)?;
        Ok(EffectiveStore { name: name.to_owned(), location: store.to_string(), durability: store.capabilities().durability })
    }
}

fn quota(route: &RouteConfig) -> Vec<String> {
    let Some(quota) = &route.quota else { return Vec::new() };
    let limits = [("bytes_max", quota.bytes_max), ("files_max", quota.files_max), ("file_bytes_max", quota.file_bytes_max)];
    limits.into_iter().filter_map(|(key, limit)| Some(format!("{key} = {}", limit?))).collect()
}

/// Returns whether a rule may match a path at or beneath a route. A rule with a wildcard at its start may match everywhere.
fn may_concern(rule: &PermissionConfig, route: &VfsPath) -> bool {
    let is_beneath =
        |path: &str, above: &str| above.is_empty() || path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let route = route.as_str().trim_start_matches('/');
    rule.paths.iter().any(|glob| {
        let glob = glob.trim_matches('/');
        let is_path = !glob.contains(['*', '?', '[', '{', '\\']);
        let compiled = Glob::parse(glob, false).ok();
        let prefix = if is_path { glob } else { compiled.as_ref().map_or("", Glob::literal_prefix) };
        is_beneath(prefix, route) || is_beneath(route, prefix)
    })
}

fn shown_rule(rule: &PermissionConfig) -> String {
    let effect = match rule.effect {
        PermissionEffect::Allow => "allow",
        PermissionEffect::Deny => "deny",
        PermissionEffect::Ask => "ask",
    };
    format!("{effect} {} {}", rule.operations.join(", "), rule.paths.join(", "))
}
