//! The names of the operations.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The name of an operation, as used by rules, audit rows and errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OpKind {
    /// Returns the entry of one path.
    Stat,
    /// Reads content.
    Read,
    /// Lists the children of a directory.
    Ls,
    /// Finds paths by pattern.
    Glob,
    /// Finds lines by pattern.
    Grep,
    /// Ranks files by relevance to a query.
    Search,
    /// Writes a whole file.
    Write,
    /// Appends to a file.
    Append,
    /// Replaces text within a file.
    Edit,
    /// Creates a directory.
    CreateDir,
    /// Removes a file or directory.
    Delete,
    /// Moves a file or directory.
    Rename,
    /// Copies a file or directory.
    Copy,
    /// Applies several changes as one batch.
    Apply,
}

impl OpKind {
    /// Every operation.
    pub const ALL: [Self; 14] = [
        Self::Stat,
        Self::Read,
        Self::Ls,
        Self::Glob,
        Self::Grep,
        Self::Search,
        Self::Write,
        Self::Append,
        Self::Edit,
        Self::CreateDir,
        Self::Delete,
        Self::Rename,
        Self::Copy,
        Self::Apply,
    ];

    /// Returns whether the operation changes the tree.
    pub const fn writes(self) -> bool {
        !matches!(self, Self::Stat | Self::Read | Self::Ls | Self::Glob | Self::Grep | Self::Search)
    }

    /// Returns the stable name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stat => "stat",
            Self::Read => "read",
            Self::Ls => "ls",
            Self::Glob => "glob",
            Self::Grep => "grep",
            Self::Search => "search",
            Self::Write => "write",
            Self::Append => "append",
            Self::Edit => "edit",
            Self::CreateDir => "create_dir",
            Self::Delete => "delete",
            Self::Rename => "rename",
            Self::Copy => "copy",
            Self::Apply => "apply",
        }
    }
}

impl fmt::Display for OpKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_lists_every_operation_once() {
        let schema = schemars::schema_for!(OpKind).to_value();
        let named: Vec<&str> =
            schema["oneOf"].as_array().expect("one schema a kind").iter().filter_map(|kind| kind["const"].as_str()).collect();
        assert_eq!(named, OpKind::ALL.map(OpKind::name));
    }
}
