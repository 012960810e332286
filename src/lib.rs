//! One file tree for AI agents: conversation state, long-term memory and the local disk behind one set of file tools.
//!
//! The agent sees paths and ten file tools. Behind them a [`CompositeBackend`] routes each path, by its longest prefix, to
//! the tier that fits: the state of the conversation in memory ([`StateBackend`]), long-term rows in a [`Store`]
//! ([`StoreBackend`]), a directory of the host, confined to its root (`FilesystemBackend`). Every tier is a [`Backend`] and keeps
//! one contract: the same bytes, lines, globs, matches, versions and errors everywhere.
//!
//! A [`Workspace`] is the configuration of such a tree for every user and thread of a process. It opens a [`Session`] for a [`Scope`]; the
//! next session of the same thread finds its state again.
//!
//! ```
//! use std::sync::Arc;
//! use treehold::checkpoint::StoreCheckpointer;
//! use treehold::{BackendExt, MemoryStore, NamespaceTemplate, Scope, StoreBackend, ToolCall, Workspace};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> treehold::Result<()> {
//! let store = Arc::new(MemoryStore::new());
//! let memories = NamespaceTemplate::parse("{user}/memories")?;
//! let rows = store.clone();
//! let workspace = Workspace::builder()
//!     .mount("/memories", move |opening| {
//!         Ok(Arc::new(StoreBackend::new(rows.clone(), memories.fill(opening.scope())?)))
//!     })?
//!     .checkpointer(StoreCheckpointer::new(store))
//!     .build();
//!
//! let ada = Scope::new().with_user("ada");
//! let monday = workspace.session(ada.clone().with_thread("monday")).await?;
//! monday.backend().write("/memories/AGENTS.md", "The theme colour is #FD5108.\n").await?;
//! monday.backend().write("/scratch.md", "only this conversation's\n").await?;
//! monday.close().await?;
//!
//! // Another conversation of the same user finds the memory, here through a model's tool call, but not the scratch file.
//! let friday = workspace.session(ada.with_thread("friday")).await?;
//! let call = ToolCall::from_json("grep", serde_json::json!({"pattern": "colour"}))?;
//! assert_eq!(friday.call(call).await.text.trim_end(), "/memories/AGENTS.md:1:The theme colour is #FD5108.");
//! assert!(!friday.backend().exists("/scratch.md").await?);
//! # Ok(())
//! # }
//! ```
//!
//! A configuration file describes the same in a few lines: see [`config`]. Where to read on: [`path`] and [`ops`] are the vocabulary,
//! [`backend`], [`composite`] and [`layer`] the tree, [`store`] the rows, [`tools`] what a model calls, and
#![cfg_attr(feature = "conformance", doc = "[`conformance`] the contract as test cases, for a backend or store of your own.")]
#![cfg_attr(
    not(feature = "conformance"),
    doc = "`conformance` (a feature) the contract as test cases, for a backend or store of your own."
)]

#[cfg(feature = "conformance")]
pub use treehold_agent::tool_conformance;
pub use treehold_agent::{audit, feed, memory, retention, session, tools, workspace};
pub use treehold_agent_state as agent_state;
#[cfg(feature = "conformance")]
pub use treehold_conformance as conformance;
#[cfg(feature = "conformance")]
pub use treehold_conformance::{backend_conformance, checkpointer_conformance, store_conformance};
#[cfg(any(feature = "remote", feature = "serve"))]
pub use treehold_core::wire;
pub use treehold_core::{clock, error, file, lock_wait, ops, path, scope, search, text, trace};
#[cfg(feature = "mcp")]
pub use treehold_mcp as mcp;
#[cfg(feature = "remote")]
pub use treehold_remote as remote;
#[cfg(feature = "serve")]
pub use treehold_serve as serve;
pub use treehold_sessions as sessions;
pub use treehold_traces as traces;
#[cfg(all(feature = "filesystem", unix))]
pub use treehold_tree::mirror;
pub use treehold_tree::{checkpoint, composite, forward_backend, layer};

#[cfg(feature = "cli")]
pub mod cli;
pub mod config;

/// A file tree behind one root: the trait that every tier, layer and composite implements, and the tiers.
pub mod backend {
    #[cfg(feature = "remote")]
    pub use treehold_remote::{RemoteBackend, RemoteOptions};
    pub use treehold_tree::backend::*;
}

/// Namespaced rows: the trait behind everything durable, and its engines.
pub mod store {
    #[cfg(feature = "mysql")]
    pub use treehold_mysql::{MysqlOptions, MysqlStore};
    #[cfg(feature = "postgres")]
    pub use treehold_postgres::{PostgresOptions, PostgresStore};
    #[cfg(feature = "redis")]
    pub use treehold_redis::{RedisOptions, RedisStore};
    #[cfg(feature = "sled")]
    pub use treehold_sled::{SledOptions, SledStore};
    #[cfg(feature = "sqlite")]
    pub use treehold_sqlite::{SnapshotOptions, SnapshotProgress, SqliteDirectory, SqliteDirectoryOptions, SqliteOptions, SqliteStore};
    pub use treehold_store::*;
}

pub use audit::AuditLog;
pub use backend::{Backend, BackendExt, CacheOptions, CachedBackend, OverlayBackend, StateBackend, StoreBackend, Subtree, TreeNews};
#[cfg(all(feature = "filesystem", unix))]
pub use backend::{FilesystemBackend, FilesystemOptions, SyncMode};
#[cfg(feature = "remote")]
pub use backend::{RemoteBackend, RemoteOptions};
pub use checkpoint::{CheckpointId, Checkpointer, HistoryBackend, MemoryCheckpointer, StoreCheckpointer};
pub use clock::Clock;
pub use composite::CompositeBackend;
pub use error::{Error, ErrorKind, Result};
pub use feed::Feed;
#[cfg(all(feature = "filesystem", unix))]
pub use mirror::{Mirror, MirrorOptions};
pub use path::{InvalidPath, VfsPath, VfsPathBuf};
pub use scope::{NamespaceTemplate, Scope};
pub use session::{Session, ThreadDurability, Threads};
#[cfg(feature = "sled")]
pub use store::SledStore;
#[cfg(feature = "sqlite")]
pub use store::SqliteStore;
pub use store::{MemoryStore, Namespace, Store};
pub use tools::{Tool, ToolCall, ToolOutput};
pub use workspace::{Workspace, WorkspaceBuilder};

#[cfg(doctest)]
#[doc = include_str!("../docs/rust.md")]
struct RustPage;
