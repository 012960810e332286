//! Every layer around the state tier and around rows of a store: one row each.

use crate::layer_trees;
use std::sync::Arc;
use treehold::StateBackend;
use treehold::backend_conformance;
use treehold::conformance::Fresh;
use treehold::conformance::backend::Tree;
use treehold::layer::{EmbeddedKind, Embedder, VectorRecall};

backend_conformance!(layer_audit, layer_trees::layer_audit);
backend_conformance!(layer_audit_rows, layer_trees::layer_audit_rows);
backend_conformance!(layer_limit, layer_trees::layer_limit);
backend_conformance!(layer_limit_rows, layer_trees::layer_limit_rows);
backend_conformance!(layer_permissions, layer_trees::layer_permissions);
backend_conformance!(layer_permissions_rows, layer_trees::layer_permissions_rows);
backend_conformance!(layer_protected, layer_trees::layer_protected);
backend_conformance!(layer_protected_rows, layer_trees::layer_protected_rows);
backend_conformance!(layer_quota, layer_trees::layer_quota);
backend_conformance!(layer_quota_rows, layer_trees::layer_quota_rows);
backend_conformance!(layer_retry, layer_trees::layer_retry);
backend_conformance!(layer_retry_rows, layer_trees::layer_retry_rows);
backend_conformance!(layer_timeout, layer_trees::layer_timeout);
backend_conformance!(layer_timeout_rows, layer_trees::layer_timeout_rows);
backend_conformance!(layer_stack, layer_trees::layer_stack);
backend_conformance!(layer_stack_rows, layer_trees::layer_stack_rows);
backend_conformance!(layer_vector_recall, layer_vector_recall);

/// An embedding model that finds no similarity, so that only words rank.
#[derive(Debug)]
struct Meaningless;

#[async_trait::async_trait]
impl Embedder for Meaningless {
    fn model(&self) -> &str {
        "meaningless"
    }

    async fn embed(&self, texts: &[&str], _: EmbeddedKind) -> treehold::Result<Vec<Vec<f32>>> {
        Ok(vec![vec![0.0; 3]; texts.len()])
    }
}

async fn layer_vector_recall() -> Fresh<Tree> {
    Tree::new(VectorRecall::new(Arc::new(Meaningless), StateBackend::new())).fresh()
}
