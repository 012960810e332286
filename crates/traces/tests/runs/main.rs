//! Runs in the background, and the tool by which agents start each other.

#![allow(missing_docs, clippy::unwrap_used)]

mod hosting;
mod processes;
#[path = "../cases/support.rs"]
#[allow(dead_code, reason = "only some of the helpers of the cases are used here")]
mod staged;
mod support;
#[cfg(feature = "tool")]
mod tool;
