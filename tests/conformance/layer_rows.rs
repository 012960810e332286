//! Every layer around the state tier, a tree like any other: one row each.

use crate::layer_trees;
use stratafs::backend_conformance;

backend_conformance!(layer_audit, layer_trees::layer_audit);
backend_conformance!(layer_limit, layer_trees::layer_limit);
backend_conformance!(layer_permissions, layer_trees::layer_permissions);
backend_conformance!(layer_quota, layer_trees::layer_quota);
backend_conformance!(layer_retry, layer_trees::layer_retry);
backend_conformance!(layer_timeout, layer_trees::layer_timeout);
backend_conformance!(layer_stack, layer_trees::layer_stack);
