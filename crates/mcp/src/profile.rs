//! The choices of tools that a server offers.

use std::fmt;
use treehold_core::error::{Error, Result};

/// A choice of tools that a server offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum McpTools {
    /// The ten file tools.
    #[default]
    Default,
    /// The fourteen tools of the reference filesystem server, with its exact results.
    Reference,
    /// Only the memory tool.
    Memory,
    /// The file tools that change nothing.
    ReadOnly,
    /// The file tools and the memory tool.
    ReadWrite,
    /// All tools except those of the reference server, including those that list, create and restore checkpoints.
    Admin,
}

impl McpTools {
    /// Every choice.
    pub const ALL: [Self; 6] = [Self::Default, Self::Reference, Self::Memory, Self::ReadOnly, Self::ReadWrite, Self::Admin];

    /// Returns the name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Reference => "reference",
            Self::Memory => "memory",
            Self::ReadOnly => "ro",
            Self::ReadWrite => "rw",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for McpTools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for McpTools {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|tools| tools.name() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            Error::invalid_argument(format!("there is no tool set `{text}`; the tool sets are {names}"))
        })
    }
}
