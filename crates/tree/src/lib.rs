//! File trees for agents: the [`Backend`](backend::Backend) trait, the tiers that keep files, what stands between them and a caller, and
//! checkpoints.
//!
//! [`backend`] has the trait and the tiers, [`composite`] routes each path to one of them by its longest prefix, [`layer`] wraps a tree
//! with rules, quotas and records, and [`checkpoint`] keeps the states of threads. `mirror` (feature `filesystem`) keeps a directory
//! of the host equal to a tree.
//!
//! Use it through [`treehold`](https://docs.rs/treehold), which re-exports all of it.

pub mod backend;
mod background;
pub mod checkpoint;
pub mod composite;
#[cfg(all(feature = "filesystem", unix))]
mod flock;
mod index;
pub mod layer;
#[cfg(all(feature = "filesystem", unix))]
pub mod mirror;
mod rows;
