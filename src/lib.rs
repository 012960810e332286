//! One file tree for AI agents, whose parts live in different tiers.

pub mod clock;
pub mod error;
pub mod path;

pub mod file;
pub mod ops;
pub mod scope;
pub mod search;
pub mod store;
pub mod text;

pub mod backend;
pub mod checkpoint;
pub mod composite;
pub mod layer;
pub mod tools;

pub mod session;
pub mod workspace;

pub mod config;

#[cfg(feature = "conformance")]
pub mod conformance;

pub use backend::{Backend, BackendExt, StateBackend, StoreBackend, Subtree};
#[cfg(all(feature = "filesystem", unix))]
pub use backend::{FilesystemBackend, FilesystemOptions, SyncMode};
pub use clock::Clock;
pub use composite::CompositeBackend;
pub use error::{Error, ErrorKind, Result};
pub use path::{InvalidPath, VfsPath, VfsPathBuf};
pub use scope::{NamespaceTemplate, Scope};
pub use session::Session;
pub use store::{MemoryStore, Namespace, Store};
pub use tools::{ToolCall, ToolOutput};
pub use workspace::{Workspace, WorkspaceBuilder};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
