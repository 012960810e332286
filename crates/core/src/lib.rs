//! The vocabulary that every part of treehold shares: paths, operations, errors, scopes, namespaces, text and search.
//!
//! Nothing here does I/O. [`path`] and [`ops`] define the requests, [`error`] the failures. [`text`] and [`search`] are the pure rules that
//! every tier follows: how lines are counted, edited and merged, what a pattern matches, how results are truncated. [`work`] bounds the
//! work of a request. [`wire`] defines how all of these are sent between machines.
//!
//! Use it through [`treehold`](https://docs.rs/treehold), which re-exports what a program needs.

pub mod backoff;
pub mod checkpoint_id;
pub mod clock;
pub mod error;
pub mod escape;
pub mod file;
pub mod json;
mod kind;
pub mod lock_wait;
pub mod namespace;
pub mod ops;
pub mod path;
pub mod random;
pub mod recent;
pub mod reserved;
pub mod retry;
pub mod scope;
pub mod search;
pub mod shared;
pub mod shares;
pub mod text;
pub mod tokens;
pub mod trace;
mod version;
pub mod wire;
pub mod work;

pub use checkpoint_id::{CheckpointId, InvalidCheckpointId};
pub use clock::Clock;
pub use error::{Error, ErrorKind, Result};
pub use namespace::{Namespace, Partition};
pub use path::{InvalidPath, VfsPath, VfsPathBuf};
pub use scope::{NamespaceTemplate, Scope};
