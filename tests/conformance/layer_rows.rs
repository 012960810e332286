//! Every layer around the state tier: a tree like any other.
//!
//! A layer that refuses (read-only) is left out: it has no tree that could be filled.

use std::time::Duration;
use stratafs::conformance::Fresh;
use stratafs::conformance::backend::Tree;
use stratafs::layer::{Audit, Fault, Layered, Limit, MemorySink, Quota, QuotaLimits, Retry, SinkFailure, Timeout};
use stratafs::{StateBackend, backend_conformance};

async fn fresh_audit() -> Fresh<Tree> {
    let audit = Audit::new(MemorySink::new(100)).with_sink_failure(SinkFailure::Refuse);
    Tree::new(Layered::new(audit, StateBackend::new())).fresh()
}

backend_conformance!(layer_audit, fresh_audit);

async fn fresh_limit() -> Fresh<Tree> {
    Tree::new(Layered::new(Limit::new(2), StateBackend::new())).fresh()
}

backend_conformance!(layer_limit, fresh_limit);

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
