//! Pattern matching: globs, ignore rules, file selection and lines. Pure, and the same for every tier.
//!
//! A tier walks its own tree. It asks a [`PathFilter`] which directories to enter and which files to select, and maintains
//! [`IgnoreFiles`] on the way. It passes content to a [`GrepMatcher`], several files at a time with [`parallel::ordered`], and
//! the outcomes in path order to a [`GrepCollector`], which ends the walk at the limit. So defaults, limits, cursors and counts
//! are the same for all tiers.
//!
//! User-visible rules are documented where they are implemented: patterns in [`Glob`], hidden names and excluded directories in
//! [`PathFilter`], lines, line breaks and the empty pattern in [`GrepMatcher::compile`], pages in [`GrepCollector`].

mod collect;
mod encoding;
mod expression;
pub mod filter;
pub mod glob;
#[cfg(test)]
mod glob_laws;
pub mod grep;
mod hits;
pub mod ignore;
#[cfg(test)]
mod line_laws;
pub mod literal;
mod name;
mod near;
mod page;
pub mod parallel;
mod pattern;
pub mod rank;
mod seeker;
pub mod trigram;
mod window;
pub mod words;

pub use collect::GrepCollector;
pub use collect::Yield;
pub use encoding::Decoded;
pub use filter::PathFilter;
pub use glob::Glob;
pub use grep::{FileOutcome, GrepMatcher};
pub use ignore::IgnoreFiles;
pub use seeker::Seeker;
pub use window::{TOGETHER_BYTES_MAX, Unread, Window, Windows};
