//! What an agent and its host use: tools that a model calls, sessions of threads, the workspace that opens them, events and memory.
//!
//! Use it through [`treehold`](https://docs.rs/treehold), which re-exports all of it.

pub mod audit;
pub mod feed;
mod live;
pub mod memory;
pub mod retention;
pub mod session;
pub mod tools;
pub mod workspace;
