//! Runs in the background, and the tool by which agents start each other.

#![allow(missing_docs, clippy::unwrap_used)]

mod hosting;
mod processes;
mod support;
#[cfg(feature = "tool")]
mod tool;
