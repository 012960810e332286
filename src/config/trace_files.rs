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
        Ok(Arc::new(move |scope| {
            check_fields(&path, &template, template.fields(), scope)?;
            let own = traces_of(&traces, scope)?;
            let place = TreeId::Traces(own.tenant().to_owned(), own.user().to_owned());
            Ok((place, Box::new(|| Arc::new(TraceFiles::new(Arc::new(own))))))
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

#[cfg(test)]
mod tests {
    use super::super::ConfigBase;
    use super::*;
    use treehold_core::error::ErrorKind;
    use treehold_traces::{NewTrace, TraceStore, Traces};
    use treehold_tree::backend::BackendExt;

    fn config(more: &str) -> Config {
        let text = format!(
            "[stores.default]\nurl = \"memory:\"\n[routes.\"/\"]\ntype = \"state\"\n[routes.\"/traces\"]\ntype = \"traces\"\n{more}"
        );
        Config::parse(&text, &ConfigBase::new("/etc/agent", "/var/lib/treehold")).expect("a sound configuration")
    }

    async fn add(traces: &Traces, tenant: &str, user: &str, id: &str) {
        let id = id.parse::<treehold_traces::TraceAddress>().expect("an id");
        traces.for_user(tenant, user).expect("an owner").create_trace(NewTrace::new("make tea").with_id(id)).await.expect("created");
    }

    #[tokio::test]
    async fn traces_route_shows_the_traces_of_the_caller_only() {
        let config = config("");
        let stores = config.stores().expect("stores");
        let traces = config.traces(&stores).expect("traces");
        let workspace = config.workspace_on(&stores).expect("a workspace");
        for (tenant, user, id) in [("acme", "ada", "a"), ("acme", "bob", "b"), ("other", "ada", "c")] {
            add(&traces, tenant, user, id).await;
        }
        for (tenant, user, own, others) in
            [("acme", "ada", "a", ["b", "c"]), ("acme", "bob", "b", ["a", "c"]), ("other", "ada", "c", ["a", "b"])]
        {
            let session = workspace.session(Scope::new().with_tenant(tenant).with_user(user).with_thread("t")).await.expect("opened");
            let tree = session.backend();
            let listed = tree.tree("/traces", 1, 100).await.expect("listed").entries;
            assert_eq!(listed.iter().map(|entry| entry.name()).collect::<Vec<_>>(), [own]);
            assert!(tree.read_text(&format!("/traces/{own}/meta.json")).await.expect("readable").contains("make tea"));
            for other in others {
                assert_eq!(tree.read_text(&format!("/traces/{other}/meta.json")).await.expect_err("hidden").kind(), ErrorKind::NotFound);
            }
            assert_eq!(tree.write(&format!("/traces/{own}/x"), "x").await.expect_err("read-only").kind(), ErrorKind::ReadOnly);
        }
    }

    #[tokio::test]
    async fn traces_route_shows_the_shared_traces_of_an_organisation() {
        let config = config("[traces]\nuser = \"agents\"\n[scope]\ntenant = \"acme\"");
        let stores = config.stores().expect("stores");
        add(&config.traces(&stores).expect("traces"), "acme", "agents", "shared").await;
        let workspace = config.workspace_on(&stores).expect("a workspace");
        for (tenant, count) in [("acme", 1), ("other", 0)] {
            let session = workspace.session(Scope::new().with_tenant(tenant).with_user("ada").with_thread("t")).await.expect("opened");
            assert_eq!(session.backend().tree("/traces", 1, 100).await.expect("listed").entries.len(), count, "{tenant}");
        }
    }

    #[test]
    fn settings_that_a_traces_route_cannot_have_are_refused() {
        for (more, message) in [
            ("quota = { bytes_max = 1 }", "`quota` bounds what is written, and a traces route is read-only"),
            ("overlay = {}", "a traces route is read-only and takes no overlay"),
            ("store = \"default\"", "`store` belongs to a route of type `store` and this one is `traces`"),
        ] {
            let text = format!("[routes.\"/traces\"]\ntype = \"traces\"\n{more}");
            let error = Config::parse(&text, &ConfigBase::new("/etc/agent", "/var/lib/treehold")).expect_err(more);
            assert!(error.message.contains(message), "{}", error.message);
        }
    }
}
