//! Every implementation crossed with every case of its contract.

#![allow(missing_docs, clippy::unwrap_used)]

#[path = "conformance/backend_rows.rs"]
mod backend;
#[path = "conformance/checkpointer_rows.rs"]
mod checkpointer;
#[path = "conformance/indexed_trees.rs"]
mod indexed_trees;
#[path = "conformance/layer_rows.rs"]
mod layer;
#[path = "conformance/layer_trees.rs"]
mod layer_trees;
#[cfg(all(feature = "remote", feature = "serve"))]
#[path = "conformance/remote_rows.rs"]
mod remote;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
mod servers;
#[path = "conformance/store_rows.rs"]
mod store;
#[path = "conformance/trees.rs"]
mod trees;
