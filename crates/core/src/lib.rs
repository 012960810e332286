//! The words that every part of treehold shares: paths, operations, errors, scopes, namespaces, text and search.
//!
//! Nothing here does I/O. [`path`] and [`ops`] name what is asked, [`error`] what can go wrong. [`text`] and [`search`] are the pure rules
//! that every tier follows: how lines are counted, edited and merged, what a pattern matches, how results are cut. [`work`] bounds what
//! callers ask for. [`wire`] is the form in which all of it travels between machines.
//!
//! Use it through [`treehold`](https://docs.rs/treehold), which re-exports what a program needs.

pub mod clock;
pub mod error;
pub mod escape;
pub mod file;
pub mod namespace;
pub mod ops;
pub mod path;
pub mod pause;
pub mod reserved;
pub mod scope;
pub mod search;
pub mod shared;
pub mod shares;
pub mod text;
pub mod trace;
pub mod wire;
pub mod work;

pub use clock::Clock;
pub use error::{Error, ErrorKind, Result};
pub use namespace::Namespace;
pub use path::{InvalidPath, VfsPath, VfsPathBuf};
pub use scope::{NamespaceTemplate, Scope};
