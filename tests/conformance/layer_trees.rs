//! Fresh trees: every layer around the state tier.
//!
//! A layer that only refuses (read-only) is left out, as no tree behind it could be filled.

use std::time::Duration;
use treehold::conformance::Fresh;
use treehold::conformance::backend::Tree;
use treehold::layer::{
    Audit, Fault, Layered, Limit, MemorySink, Operations, Permissions, Protected, Protections, Quota, QuotaLimits, Retry, Rule,
    SinkFailure, Timeout,
};
use treehold::{BackendExt, StateBackend, VfsPath, VfsPathBuf};

pub(crate) async fn layer_audit() -> Fresh<Tree> {
    let audit = Audit::new(MemorySink::new(100)).with_sink_failure(SinkFailure::Refuse);
    Tree::new(Layered::new(audit, StateBackend::new())).fresh()
}

pub(crate) async fn layer_limit() -> Fresh<Tree> {
    Tree::new(Layered::new(Limit::new(2), StateBackend::new())).fresh()
}

/// A tree that holds more than what is seen of it, with rules that reach everywhere.
pub(crate) async fn layer_permissions() -> Fresh<Tree> {
    let state = StateBackend::new();
    for path in ["/0-unseen", "/a.unseen/x", "/.unseen/x"] {
        state.write(path, "fn main() { hello needle }").await.unwrap();
    }
    let rules = [Rule::deny(Operations::ALL, ["/**/*{-,.}unseen"]).unwrap(), Rule::deny(Operations::WRITE, ["/**/*.sealed"]).unwrap()];
    Tree::new(Permissions::new(rules, state)).fresh()
}

/// Everything is looked at, and nothing that the cases write is protected.
pub(crate) async fn layer_protected() -> Fresh<Tree> {
    let sealed = VfsPathBuf::parse("/never.sealed").unwrap();
    let protections = Protections::new(VfsPath::ROOT).without(["/"]).unwrap().with_governing(&sealed, "it is sealed");
    Tree::new(Protected::new(protections, StateBackend::new())).fresh()
}

/// Limits that nothing reaches, but that everything is counted for.
pub(crate) async fn layer_quota() -> Fresh<Tree> {
    let limits = QuotaLimits::new().with_bytes_max(1 << 40).with_files_max(1 << 40).with_file_bytes_max(1 << 40);
    Tree::new(Quota::new(limits, StateBackend::new())).fresh()
}

/// Half of all calls fail before they take effect, and none of it is seen.
pub(crate) async fn layer_retry() -> Fresh<Tree> {
    let faulty = Layered::new(Fault::random(1, 0.5).stated(), StateBackend::new());
    let retry = Retry::new(200).with_jitter(|_| Duration::ZERO);
    Tree::new(Layered::new(retry, faulty)).fresh()
}

pub(crate) async fn layer_timeout() -> Fresh<Tree> {
    Tree::new(Layered::new(Timeout::new(Duration::from_secs(600)), StateBackend::new())).fresh()
}

/// All of them, in the order that suits most trees.
pub(crate) async fn layer_stack() -> Fresh<Tree> {
    let limited = Layered::new(Limit::new(8), StateBackend::new());
    let timed = Layered::new(Timeout::new(Duration::from_secs(600)), Layered::new(Retry::new(3), limited));
    let quota = Quota::new(QuotaLimits::new().with_bytes_max(1 << 40), timed);
    let permissions = Permissions::new([Rule::deny(Operations::ALL, ["/**/*.sealed"]).unwrap()], quota);
    let stack = Layered::new(Audit::new(MemorySink::new(100)), permissions);
    assert_eq!(stack.to_string(), "Audit(Permissions(1 rule, Quota(bytes 1099511627776, Timeout(600s, Retry(3, Limit(8, State))))))");
    Tree::new(stack).fresh()
}
