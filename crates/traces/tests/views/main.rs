//! Other views of stored traces: the original's directories, and files of a tree.

#![cfg(all(feature = "filesystem", unix))]
#![allow(missing_docs, clippy::unwrap_used)]

mod files;
mod gate;
mod hostile;
mod kills;
mod layout;
mod made;
