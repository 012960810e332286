//! End to end, as one binary.

#![allow(missing_docs, clippy::unwrap_used)]

mod composite;
#[cfg(all(feature = "filesystem", unix))]
mod filesystem;
mod layers;
mod tiers;
