//! Overlays in a configuration: changes to a route, kept in rows of a store.

use super::open::{OpenFiles, OpenTree, TreeId, check_fields};
use super::routes::OVERLAY_TEMPLATE;
use super::{Config, DEFAULT_STORE, OVERLAY_NAMESPACE, OverlayConfig, RouteConfig, Stores};
use std::sync::Arc;
use treehold_core::error::{Error, Result};
use treehold_core::path::VfsPathBuf;
use treehold_core::reserved::beside;
use treehold_core::scope::{NamespaceTemplate, Scope};
use treehold_store::Namespace;
use treehold_tree::backend::{OverlayBackend, StoreBackend};

impl Config {
    /// Returns the overlay of a route for a scope, without the layers around it, or `None` if the route has none.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) if the scope lacks a field of a template,
    /// [`NotFound`](treehold_core::error::ErrorKind::NotFound) for a store that is not in `stores`.
    pub fn overlay(&self, path: &str, stores: &Stores, scope: &Scope) -> Result<Option<OverlayBackend>> {
        let Some((path, route)) = self.routes.get_key_value(path) else { return Ok(None) };
        let Some(overlay) = &route.overlay else { return Ok(None) };
        let (_, open_lower) = self.files(path, route, stores)?(scope)?;
        let (_, upper) = self.changes(path, overlay, stores, scope)?;
        let overlay = OverlayBackend::new(open_lower(), Arc::new(upper));
        Ok(Some(match self.filesystem_root(path, scope)? {
            Some(root) => overlay.with_guard(Arc::new(self.protections(path, &root)?)),
            None => overlay,
        }))
    }

    /// Returns the changes to a route for a scope as a tree, or `None` if the route has no overlay.
    ///
    /// # Errors
    /// As [`Config::overlay`].
    pub fn overlay_rows(&self, path: &str, stores: &Stores, scope: &Scope) -> Result<Option<StoreBackend>> {
        let Some(overlay) = self.routes.get(path).and_then(|route| route.overlay.as_ref()) else { return Ok(None) };
        self.changes(path, overlay, stores, scope).map(|(_, rows)| Some(rows))
    }

    /// Adds the overlay of a route to its opener.
    pub(super) fn overlaid(&self, path: &str, overlay: &OverlayConfig, stores: &Stores, open: OpenFiles) -> Result<OpenFiles> {
        let (config, stores) = (self.clone(), stores.clone());
        let (path, overlay) = (path.to_owned(), overlay.clone());
        Ok(Arc::new(move |scope| {
            let (place, open_lower) = open(scope)?;
            let (namespace, upper) = config.changes(&path, &overlay, &stores, scope)?;
            let store = overlay.store.as_deref().unwrap_or(DEFAULT_STORE).to_owned();
            let open: OpenTree = Box::new(|| Arc::new(OverlayBackend::new(open_lower(), Arc::new(upper))));
            Ok((TreeId::Overlay(store, namespace, Box::new(place)), open))
        }))
    }

    /// Returns the rows for changes to a route. Their namespace is in the partition of the filled template: `_treehold/overlays`, then the
    /// template's name there, then the route.
    fn changes(&self, path: &str, overlay: &OverlayConfig, stores: &Stores, scope: &Scope) -> Result<(Namespace, StoreBackend)> {
        let store = stores.get(overlay.store.as_deref().unwrap_or(DEFAULT_STORE))?;
        let template = NamespaceTemplate::parse(overlay.namespace.as_deref().unwrap_or(OVERLAY_TEMPLATE))?;
        check_fields(path, &template, template.fields(), scope)?;
        let shared = template.fill(scope)?;
        // The route is a single component, so that different pairs of scope and route never share a namespace.
        let route = VfsPathBuf::parse(path)?;
        let namespace = beside(&shared, OVERLAY_NAMESPACE)?.beneath([route.as_str()])?;
        Ok((namespace.clone(), StoreBackend::new(store, namespace)))
    }

    /// Returns the routes with an overlay, by path.
    pub fn overlays(&self) -> impl Iterator<Item = (&str, &RouteConfig)> {
        self.routes.iter().filter(|(_, route)| route.overlay.is_some()).map(|(path, route)| (path.as_str(), route))
    }

    /// Returns the route of a path: the longest that is a prefix of it.
    ///
    /// # Errors
    /// [`InvalidPath`](treehold_core::error::ErrorKind::InvalidPath) for a route with an invalid path, which is possible if it was set after parsing.
    pub fn route_of(&self, path: &treehold_core::path::VfsPath) -> Result<Option<(&str, VfsPathBuf)>> {
        let mut found: Option<(&str, VfsPathBuf)> = None;
        for key in self.routes.keys() {
            let prefix = VfsPathBuf::parse(key).map_err(Error::from)?;
            let is_longer = found.as_ref().is_none_or(|(_, known)| known.as_str().len() < prefix.as_str().len());
            if path.starts_with(&prefix) && is_longer {
                found = Some((key, prefix));
            }
        }
        Ok(found)
    }
}
