//! Overlays of a configuration: changes beneath a route, kept in rows of a store.

use super::open::{OpenFiles, Place, check_fields};
use super::{Config, DEFAULT_STORE, OVERLAY_NAMESPACE, OVERLAY_TEMPLATE, OverlayConfig, RouteConfig, Stores};
use crate::backend::{OverlayBackend, StoreBackend};
use crate::error::{Error, Result};
use crate::path::VfsPathBuf;
use crate::scope::{NamespaceTemplate, Scope};
use crate::store::Namespace;
use std::sync::Arc;

impl Config {
    /// Returns the overlay that stands at a route for a scope, without the layers around it; none when the route is no overlay.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a scope that a template of the route cannot be filled with,
    /// [`NotFound`](crate::ErrorKind::NotFound) for a store that is not among `stores`.
    pub fn overlay(&self, path: &str, stores: &Stores, scope: &Scope) -> Result<Option<OverlayBackend>> {
        let Some((path, route)) = self.routes.get_key_value(path) else { return Ok(None) };
        let Some(overlay) = &route.overlay else { return Ok(None) };
        let (_, lower) = self.files(path, route, stores)?(scope)?;
        let (_, upper) = self.changes(path, overlay, stores, scope)?;
        let overlay = OverlayBackend::new(lower, Arc::new(upper));
        Ok(Some(match self.filesystem_root(path, scope)? {
            Some(root) => overlay.with_guard(Arc::new(self.protections(path, &root)?)),
            None => overlay,
        }))
    }

    /// Returns the rows that keep what is changed beneath a route for a scope, as a tree; none when the route is no overlay.
    ///
    /// # Errors
    /// As [`Config::overlay`].
    pub fn overlay_rows(&self, path: &str, stores: &Stores, scope: &Scope) -> Result<Option<StoreBackend>> {
        let Some(overlay) = self.routes.get(path).and_then(|route| route.overlay.as_ref()) else { return Ok(None) };
        self.changes(path, overlay, stores, scope).map(|(_, rows)| Some(rows))
    }

    /// Lays the changes of a route over what opens it.
    pub(super) fn overlaid(&self, path: &str, overlay: &OverlayConfig, stores: &Stores, open: OpenFiles) -> Result<OpenFiles> {
        let (config, stores) = (self.clone(), stores.clone());
        let (path, overlay) = (path.to_owned(), overlay.clone());
        Ok(Box::new(move |scope| {
            let (place, lower) = open(scope)?;
            let (namespace, upper) = config.changes(&path, &overlay, &stores, scope)?;
            let store = overlay.store.as_deref().unwrap_or(DEFAULT_STORE).to_owned();
            Ok((Place::Overlay(store, namespace, Box::new(place)), Arc::new(OverlayBackend::new(lower, Arc::new(upper)))))
        }))
    }

    /// Returns the rows that keep what is changed beneath a route: beneath `_treehold/overlays`, the scope's, and the route's own.
    fn changes(&self, path: &str, overlay: &OverlayConfig, stores: &Stores, scope: &Scope) -> Result<(Namespace, StoreBackend)> {
        let store = stores.get(overlay.store.as_deref().unwrap_or(DEFAULT_STORE))?;
        let template = NamespaceTemplate::parse(overlay.namespace.as_deref().unwrap_or(OVERLAY_TEMPLATE))?;
        check_fields(path, &template, template.fields(), scope)?;
        let shared = template.fill(scope)?;
        // One component, so that no scope and route together look like another scope and route.
        let route = VfsPathBuf::parse(path)?;
        let components: Vec<String> = shared.components().map(Into::into).collect();
        let all = OVERLAY_NAMESPACE.map(str::to_owned).into_iter().chain(components).chain([route.into_string()]);
        let namespace = Namespace::new(all)?;
        Ok((namespace.clone(), StoreBackend::new(store, namespace)))
    }

    /// Returns the routes that are overlays, by path.
    pub fn overlays(&self) -> impl Iterator<Item = (&str, &RouteConfig)> {
        self.routes.iter().filter(|(_, route)| route.overlay.is_some()).map(|(path, route)| (path.as_str(), route))
    }

    /// Returns the route that a path belongs to: the longest whose path it starts with.
    ///
    /// # Errors
    /// [`InvalidPath`](crate::ErrorKind::InvalidPath) for a route that was set after the configuration was read and has no legal path.
    pub fn route_of(&self, path: &crate::path::VfsPath) -> Result<Option<(&str, VfsPathBuf)>> {
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
