//! A configuration opened: each route becomes a mount, each layer stands where its order has meaning.

use super::stores::Stores;
use super::{Config, DEFAULT_STORE, RouteConfig, RouteType};
use crate::backend::{Backend, StoreBackend};
use crate::checkpoint::{RESERVED_NAMESPACE, StoreThreads};
use crate::error::{Error, Result};
use crate::layer::{Layered, ReadOnly};
use crate::scope::{NamespaceTemplate, Scope, Template};
use crate::store::Namespace;
use crate::workspace::{Opening, Workspace};
use std::path::PathBuf;
use std::sync::Arc;

impl Config {
    /// Returns who calls when nobody is named.
    pub fn scope(&self) -> Scope {
        let scope = Scope::new().with_tenant(&self.scope.tenant).with_user(&self.scope.user).with_thread(&self.scope.thread);
        match &self.scope.agent {
            Some(agent) => scope.with_agent(agent),
            None => scope,
        }
    }

    /// Returns the stores, each opened by its first call.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a URL that was set after the configuration was read and is none.
    pub fn stores(&self) -> Result<Stores> {
        Stores::new(self)
    }

    /// Makes the workspace. Stores are opened by the first call that needs them, directories by the first session.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for what was set after the configuration was read and is not sound.
    pub fn workspace(&self) -> Result<Workspace> {
        self.workspace_on(&self.stores()?)
    }

    /// Makes the workspace on stores that are open already.
    ///
    /// # Errors
    /// As [`Config::workspace`], and [`NotFound`](crate::ErrorKind::NotFound) for a store that is not among them.
    pub fn workspace_on(&self, stores: &Stores) -> Result<Workspace> {
        let mut workspace = Workspace::builder();
        if self.threads.save {
            workspace = workspace.threads(StoreThreads::new(stores.get(&self.threads.store)?));
        }
        for (path, route) in &self.routes {
            let open = self.tier(route, stores)?;
            let read_only = route.read_only;
            workspace = workspace.mount(path, move |opening| {
                let tree = open(opening)?;
                Ok(if read_only { Arc::new(Layered::new(ReadOnly::new(), tree)) } else { tree })
            })?;
        }
        Ok(workspace.build())
    }

    /// Returns the directory of the host that stands at a route for a scope; none when the route is of another type.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a scope that the root cannot be filled with.
    pub fn filesystem_root(&self, path: &str, scope: &Scope) -> Result<Option<PathBuf>> {
        let Some(root) = self.routes.get(path).and_then(|route| route.root.as_deref()) else { return Ok(None) };
        filled_root(&Template::parse(root)?, scope).map(|text| Some(self.resolve(&text)))
    }

    /// Returns what opens the tier of a route.
    fn tier(&self, route: &RouteConfig, stores: &Stores) -> Result<OpenTier> {
        match route.tier {
            RouteType::State => Ok(Box::new(|opening| Ok(opening.state()))),
            RouteType::Store => {
                let store = stores.get(route.store.as_deref().unwrap_or(DEFAULT_STORE))?;
                let template = NamespaceTemplate::parse(route.namespace.as_deref().unwrap_or_default())?;
                let reserved = Namespace::new([RESERVED_NAMESPACE])?;
                Ok(Box::new(move |opening| {
                    let namespace = template.fill(opening.scope())?;
                    if namespace.starts_with(&reserved) {
                        return Err(Error::invalid_argument(format!(
                            "the namespace `{namespace}` is where threads are saved; start the template `{template}` with another name"
                        )));
                    }
                    Ok(Arc::new(StoreBackend::new(store.clone(), namespace)))
                }))
            }
            RouteType::Filesystem => self.filesystem(route),
        }
    }

    #[cfg(all(feature = "filesystem", unix))]
    fn filesystem(&self, route: &RouteConfig) -> Result<OpenTier> {
        use super::RouteSync;
        use crate::backend::{FilesystemBackend, FilesystemOptions, SyncMode};

        let template = Template::parse(route.root.as_deref().unwrap_or_default())?;
        let options = FilesystemOptions::new()
            .with_create_root(route.create_root.unwrap_or_default())
            .with_cross_mounts(route.cross_mounts.unwrap_or_default())
            .with_sync(match route.sync.unwrap_or_default() {
                RouteSync::None => SyncMode::None,
                RouteSync::File => SyncMode::File,
                RouteSync::Full => SyncMode::Full,
            });
        let config = self.clone();
        Ok(Box::new(move |opening| {
            let root = filled_root(&template, opening.scope()).map(|text| config.resolve(&text))?;
            let tree = FilesystemBackend::open(&root, options.clone()).map_err(|error| {
                let message = format!("the directory `{}` cannot be opened: {}", root.display(), error.message());
                error.with_message(message)
            })?;
            Ok(Arc::new(tree))
        }))
    }

    #[cfg(not(all(feature = "filesystem", unix)))]
    fn filesystem(&self, _route: &RouteConfig) -> Result<OpenTier> {
        Err(Error::unsupported("this program was built without `filesystem`; build it with that feature or leave its routes out"))
    }

    /// Makes the path of a store absolute: `{data}` is the data directory.
    pub(super) fn store_path(&self, text: &str) -> PathBuf {
        match text.strip_prefix("{data}") {
            Some(rest) => self.data.join(rest.trim_start_matches('/')),
            None => self.resolve(text),
        }
    }
}

type OpenTier = Box<dyn Fn(&Opening<'_>) -> Result<Arc<dyn Backend>> + Send + Sync>;

/// Fills a root with the scope. An id must be one name of a directory there: it never leads up, down or elsewhere.
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
