//! Runs in the background, and the tool by which agents start each other.

mod hosting;
mod processes;
mod support;
#[cfg(feature = "tool")]
mod tool;
