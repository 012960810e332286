//! Every layer around the state tier: a tree like any other.
//!
//! A layer that refuses (read-only) is left out: it has no tree that could be filled.

use std::time::Duration;
use stratafs::conformance::Fresh;
use stratafs::conformance::backend::Tree;
use stratafs::layer::{
    Audit, Fault, Layered, Limit, MemorySink, Operations, Permissions, Quota, QuotaLimits, Retry, Rule, SinkFailure, Timeout,
};
use stratafs::{BackendExt, StateBackend, backend_conformance};

async fn fresh_audit() -> Fresh<Tree> {
    let audit = Audit::new(MemorySink::new(100)).with_sink_failure(SinkFailure::Refuse);
    Tree::new(Layered::new(audit, StateBackend::new())).fresh()
}

backend_conformance!(layer_audit, fresh_audit);

async fn fresh_limit() -> Fresh<Tree> {
    Tree::new(Layered::new(Limit::new(2), StateBackend::new())).fresh()
}

backend_conformance!(layer_limit, fresh_limit);

/// A tree that holds more than what is seen of it, with rules that reach everywhere.
async fn fresh_permissions() -> Fresh<Tree> {
    let state = StateBackend::new();
    for path in ["/0-unseen", "/a.unseen/x", "/.unseen/x"] {
        state.write(path, "fn main() { hello needle }").await.unwrap();
    }
    let rules = [Rule::deny(Operations::ALL, ["/**/*{-,.}unseen"]).unwrap(), Rule::deny(Operations::WRITE, ["/**/*.sealed"]).unwrap()];
    Tree::new(Permissions::new(rules, state)).fresh()
}

backend_conformance!(layer_permissions, fresh_permissions);

/// Limits that nothing reaches, but that everything is counted for.
async fn fresh_quota() -> Fresh<Tree> {
    let limits = QuotaLimits::new().with_bytes_max(1 << 40).with_files_max(1 << 40).with_file_bytes_max(1 << 40);
    Tree::new(Quota::new(limits, StateBackend::new())).fresh()
}

backend_conformance!(layer_quota, fresh_quota);

/// Half of all calls fail before they take effect, and none of it is seen.
async fn fresh_retry() -> Fresh<Tree> {
    let faulty = Layered::new(Fault::random(1, 0.5).stated(), StateBackend::new());
    let retry = Retry::new(200).with_jitter(|_| Duration::ZERO);
    Tree::new(Layered::new(retry, faulty)).fresh()
}

backend_conformance!(layer_retry, fresh_retry);

async fn fresh_timeout() -> Fresh<Tree> {
    Tree::new(Layered::new(Timeout::new(Duration::from_secs(600)), StateBackend::new())).fresh()
}

backend_conformance!(layer_timeout, fresh_timeout);

/// All of them, in the order that suits most trees.
async fn fresh_stack() -> Fresh<Tree> {
    let limited = Layered::new(Limit::new(8), StateBackend::new());
    let timed = Layered::new(Timeout::new(Duration::from_secs(600)), Layered::new(Retry::new(3), limited));
    let quota = Quota::new(QuotaLimits::new().with_bytes_max(1 << 40), timed);
    let permissions = Permissions::new([Rule::deny(Operations::ALL, ["/**/*.sealed"]).unwrap()], quota);
    let stack = Layered::new(Audit::new(MemorySink::new(100)), permissions);
    assert_eq!(stack.to_string(), "Audit(Permissions(1 rule, Quota(bytes 1099511627776, Timeout(600s, Retry(3, Limit(8, State))))))");
    Tree::new(stack).fresh()
}

backend_conformance!(layer_stack, fresh_stack);
