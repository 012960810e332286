//! Fresh trees: every layer around the state tier, and around rows of a store.
//!
//! A layer that only refuses (read-only) is left out, as no tree behind it could be filled. Around rows, a layer must pass on the outbox
//! of a change.

use crate::trees::{partition, rows_in};
use std::sync::Arc;
use std::time::Duration;
use treehold::conformance::Fresh;
use treehold::conformance::backend::Tree;
use treehold::layer::{
    Audit, Fault, Layered, Limit, MemorySink, Operations, Permissions, Protected, Protections, Quota, QuotaLimits, Retry, Rule,
    SinkFailure, Timeout,
};
use treehold::{Backend, BackendExt, MemoryStore, StateBackend, Store, VfsPath, VfsPathBuf};

/// Declares for each layer a tree around the state tier and one around rows.
macro_rules! layers {
    ($($layer:ident => ($state:ident, $rows:ident),)+) => {$(
        pub(crate) async fn $state() -> Fresh<Tree> {
            Tree::new($layer(Arc::new(StateBackend::new())).await).fresh()
        }

        #[allow(dead_code, reason = "random histories run around the state tier only")]
        pub(crate) async fn $rows() -> Fresh<Tree> {
            let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
            Tree::new($layer(Arc::new(rows_in(&store))).await).with_store(store, partition()).fresh()
        }
    )+};
}

layers! {
    audit => (layer_audit, layer_audit_rows),
    limit => (layer_limit, layer_limit_rows),
    permissions => (layer_permissions, layer_permissions_rows),
    protected => (layer_protected, layer_protected_rows),
    quota => (layer_quota, layer_quota_rows),
    retry => (layer_retry, layer_retry_rows),
    timeout => (layer_timeout, layer_timeout_rows),
    stack => (layer_stack, layer_stack_rows),
}

async fn audit(tree: Arc<dyn Backend>) -> impl Backend {
    let audit = Audit::new(MemorySink::new(100)).with_sink_failure(SinkFailure::Refuse);
    Layered::new(audit, tree)
}

async fn limit(tree: Arc<dyn Backend>) -> impl Backend {
    Layered::new(Limit::new(2), tree)
}

/// A tree that holds more than its callers may see, with rules that reach everywhere.
async fn permissions(tree: Arc<dyn Backend>) -> impl Backend {
    for path in ["/0-unseen", "/a.unseen/x", "/.unseen/x"] {
        tree.write(path, "fn main() { hello needle }").await.unwrap();
    }
    let rules = [Rule::deny(Operations::ALL, ["/**/*{-,.}unseen"]).unwrap(), Rule::deny(Operations::WRITE, ["/**/*.sealed"]).unwrap()];
    Permissions::new(rules, tree)
}

/// Every path is checked, and nothing that the cases write is protected.
async fn protected(tree: Arc<dyn Backend>) -> impl Backend {
    let sealed = VfsPathBuf::parse("/never.sealed").unwrap();
    let protections = Protections::new(VfsPath::ROOT).without(["/"]).unwrap().with_governing(&sealed, "it is sealed");
    Protected::new(protections, tree)
}

/// Limits that no case reaches, so that everything is counted.
async fn quota(tree: Arc<dyn Backend>) -> impl Backend {
    let limits = QuotaLimits::new().with_bytes_max(1 << 40).with_files_max(1 << 40).with_file_bytes_max(1 << 40);
    Quota::new(limits, tree)
}

/// Half of all calls fail before they take effect, and retries hide all of these failures.
async fn retry(tree: Arc<dyn Backend>) -> impl Backend {
    let faulty = Layered::new(Fault::random(1, 0.5).stated(), tree);
    let retry = Retry::new(200).with_jitter(|_| Duration::ZERO);
    Layered::new(retry, faulty)
}

async fn timeout(tree: Arc<dyn Backend>) -> impl Backend {
    Layered::new(Timeout::new(Duration::from_secs(600)), tree)
}

/// All layers, in the order that suits most trees.
async fn stack(tree: Arc<dyn Backend>) -> impl Backend {
    let bottom = tree.to_string();
    let limited = Layered::new(Limit::new(8), tree);
    let timed = Layered::new(Timeout::new(Duration::from_secs(600)), Layered::new(Retry::new(3), limited));
    let quota = Quota::new(QuotaLimits::new().with_bytes_max(1 << 40), timed);
    let permissions = Permissions::new([Rule::deny(Operations::ALL, ["/**/*.sealed"]).unwrap()], quota);
    let stack = Layered::new(Audit::new(MemorySink::new(100)), permissions);
    let shown = format!("Audit(Permissions(1 rule, Quota(bytes 1099511627776, Timeout(600s, Retry(3, Limit(8, {bottom}))))))");
    assert_eq!(stack.to_string(), shown);
    stack
}
