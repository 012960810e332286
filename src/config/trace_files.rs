//! Routes to traces: those of the caller's tenant and user, as files.

use super::open::{OpenFiles, TreeId, check_fields};
use super::{Config, Stores};
use std::sync::Arc;
use treehold_core::error::{Error, Result};
use treehold_core::scope::{NamespaceTemplate, Scope, ScopeField};
use treehold_store::{Namespace, Store};
use treehold_traces::files::TraceFiles;
use treehold_traces::{OrganizationTraces, StoredTraces};

/// The fields of a scope that say whose traces a route shows.
const OWNER: &str = "{tenant}/{user}";

/// Returns the store, and the rows in which everything that a mount shows for a scope changes.
type Changes = Box<dyn Fn(&Scope) -> Result<(Arc<dyn Store>, Namespace)> + Send + Sync>;

impl Config {
    /// Returns the opener of a route to traces. It shows only those that live here, and asks no peer.
    pub(super) fn trace_files(&self, path: &str, stores: &Stores) -> Result<OpenFiles> {
        let (traces, template, path) = (self.local_traces(stores)?, NamespaceTemplate::parse(OWNER)?, path.to_owned());
        Ok(Box::new(move |scope| {
            check_fields(&path, &template, template.fields(), scope)?;
            let own = traces_of(&traces, scope)?;
            let place = TreeId::Traces(own.tenant().to_owned(), own.user().to_owned());
            Ok((place, Arc::new(TraceFiles::new(Arc::new(own)))))
        }))
    }

    /// Returns what reports changes of the traces of a scope.
    pub(super) fn trace_changes(&self, stores: &Stores) -> Result<Changes> {
        let traces = self.local_traces(stores)?;
        Ok(Box::new(move |scope| Ok((traces.local().store().clone(), traces_of(&traces, scope)?.changes()?))))
    }

    /// Opens the traces that live here, without those of other places.
    fn local_traces(&self, stores: &Stores) -> Result<OrganizationTraces> {
        let traces = OrganizationTraces::new(self.traces(stores)?, &self.scope.tenant);
        Ok(traces.with_owner(self.traces.tenant.clone(), self.traces.user.clone()))
    }
}

/// Opens the traces of a scope.
fn traces_of(traces: &OrganizationTraces, scope: &Scope) -> Result<StoredTraces> {
    let field = |field: ScopeField| {
        let missing = || Error::invalid_argument(format!("traces belong to a user, but no {field} is set"));
        scope.field(field).ok_or_else(missing)
    };
    let (tenant, user) = traces.owner_of(field(ScopeField::Tenant)?, field(ScopeField::User)?);
    traces.local().for_user(tenant, user)
}
