//! The patch format of coding agents: how its text is read, and how its chunks find their place in a file. Pure, no I/O.
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
//! The grammar and the order in which matches are tried are those of the `apply_patch` tool of OpenAI's Codex
//! (<https://github.com/openai/codex/tree/main/codex-rs/apply-patch>), since that is what models were taught; its messages for
//! malformed patches are kept too. In four places this is kinder: lines of context keep the file's own bytes even where they
//! matched only loosely, lines that come take the line endings of those they replace or follow, a chunk of added lines beneath a header is put
//! right beneath that header (there, at the end of the file), and ranges as in `@@ -1,2 +1,3 @@` are passed over.

mod miss;
mod parse;
mod place;

pub(in crate::tools) use parse::parse;
pub(in crate::tools) use place::update;

/// What a patch asks of one file. Paths are as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::tools) enum Section {
    /// Creates a file, or replaces one that is there.
    Add { path: String, content: String },
    /// Removes a file.
    Delete { path: String },
    /// Changes a file, and perhaps moves it.
    Update { path: String, target: Option<String>, chunks: Vec<Chunk> },
}

/// One run of lines of an update.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::tools) struct Chunk {
    /// Lines to find first, each after the one before.
    headers: Vec<String>,
    lines: Vec<Line>,
    /// The lines are the last of the file.
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

    /// Returns the text that comes.
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
