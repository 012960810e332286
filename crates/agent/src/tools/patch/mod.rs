//! The patch format of coding agents: parsing, and locating its chunks in a file. No I/O.
//!
//! ```text
//! *** Begin Patch
//! *** Add File: docs/a.md
//! +every line of the new file
//! *** Update File: src/b.rs
//! *** Move to: src/c.rs
//! @@ fn main() {
//!  a line that stays
//! -a line that goes
//! +a line that comes
//! *** Delete File: src/d.rs
//! *** End Patch
//! ```
//!
//! The grammar and the order of match attempts are those of the `apply_patch` tool of OpenAI's Codex
//! (<https://github.com/openai/codex/tree/main/codex-rs/apply-patch>), which models were trained on. So are its
//! messages for malformed patches. This implementation differs in four ways: context lines that matched only loosely
//! keep the file's own bytes; added lines take the line endings of those they replace or follow; a chunk of only added
//! lines goes directly below its header instead of to the end of the file; and ranges such as `@@ -1,2 +1,3 @@` are
//! ignored.

mod miss;
mod parse;
mod place;

pub(in crate::tools) use parse::parse;
pub(in crate::tools) use place::update;

/// The change of a patch to one file. Paths are as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::tools) enum Section {
    /// Creates a file, or replaces one that is there.
    Add { path: String, content: String },
    /// Removes a file.
    Delete { path: String },
    /// Changes a file, and moves it if there is a target.
    Update { path: String, target: Option<String>, chunks: Vec<Chunk> },
}

/// A run of lines in an update.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::tools) struct Chunk {
    /// Lines to find first, each after the one before.
    pub(in crate::tools) headers: Vec<String>,
    lines: Vec<Line>,
    /// Whether the lines are the last of the file.
    at_end: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Line {
    Context(String),
    Remove(String),
    Add(String),
}

impl Line {
    /// Returns the text that must be in the file.
    fn old(&self) -> Option<&str> {
        match self {
            Self::Context(text) | Self::Remove(text) => Some(text),
            Self::Add(_) => None,
        }
    }

    /// Returns the text that is added.
    fn added(&self) -> Option<&str> {
        match self {
            Self::Add(text) => Some(text),
            Self::Context(_) | Self::Remove(_) => None,
        }
    }

    fn is_context(&self) -> bool {
        matches!(self, Self::Context(_))
    }
}
