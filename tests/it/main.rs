//! End to end, as one binary.

#![allow(missing_docs, clippy::unwrap_used)]

#[cfg(all(feature = "cli", feature = "remote", feature = "serve"))]
mod cli;
mod composite;
#[cfg(all(feature = "cli", feature = "serve"))]
mod edits;
#[cfg(all(feature = "remote", feature = "serve", feature = "sqlite"))]
mod elsewhere;
#[cfg(feature = "remote")]
#[path = "../far/mod.rs"]
mod far;
#[cfg(all(feature = "filesystem", unix))]
mod filesystem;
mod layers;
#[cfg(all(feature = "cli", feature = "remote", feature = "serve"))]
mod mcp;
mod merge;
mod overlay;
#[cfg(feature = "remote")]
mod remote;
mod rules;
#[cfg(feature = "serve")]
mod serve;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
#[path = "../servers/mod.rs"]
mod servers;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod sessions;
mod threads;
mod tiers;
#[cfg(feature = "serve")]
mod traces;
#[cfg(all(feature = "cli", feature = "serve", feature = "sqlite", unix))]
mod tunnel;

mod stores;

/// Counts the bytes in use, for tests that bound them in a process of their own. The resident size also counts what the allocator keeps.
#[global_allocator]
static MEMORY: cap::Cap<std::alloc::System> = cap::Cap::new(std::alloc::System, usize::MAX);
