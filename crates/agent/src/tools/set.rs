//! Sets of tools: our own, and those that models know from elsewhere.

use super::schema::{self, ToolFormat};
use super::{Row, TABLE, ToolCall, ToolInfo, decode};
use serde_json::{Value, json};
use std::fmt;
use std::sync::LazyLock;
use treehold_core::error::{Error, Result};

/// A group of tools offered to a model together.
///
/// ```
/// use treehold_agent::tools::{ToolFormat, ToolSet};
///
/// let memory = ToolSet::Memory.export(ToolFormat::Anthropic);
/// assert_eq!(memory, serde_json::json!([{"type": "memory_20250818", "name": "memory"}]));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ToolSet {
    /// The ten file tools of this crate.
    Default,
    /// `memory`, Anthropic's memory tool (`memory_20250818`).
    Memory,
    /// `str_replace_based_edit_tool`, Anthropic's text editor (`text_editor_20250728`).
    TextEditor,
    /// `read`, `write`, `edit`, `glob` and `grep`, as Anthropic's `agent_toolset_20260401` names them.
    Agent,
}

impl ToolSet {
    /// Every set.
    pub const ALL: [Self; 4] = [Self::Default, Self::Memory, Self::TextEditor, Self::Agent];

    /// Returns the name used on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Memory => "memory",
            Self::TextEditor => "text-editor",
            Self::Agent => "agent",
        }
    }

    /// Returns the tools, in a fixed order.
    pub fn tools(self) -> &'static [ToolInfo] {
        static INFOS: LazyLock<[Vec<ToolInfo>; ToolSet::ALL.len()]> = LazyLock::new(|| ToolSet::ALL.map(infos));
        let place = Self::ALL.iter().position(|set| *set == self).expect("`ALL` lists every set");
        &INFOS[place]
    }

    /// Parses a call of a tool of this set from its name and JSON arguments.
    ///
    /// # Errors
    /// As [`ToolCall::from_json`].
    pub fn decode(self, name: &str, arguments: Value) -> Result<ToolCall> {
        decode(|set| set == self, name, arguments)
    }

    /// Returns the tools as a JSON array in the format of an API. Tools that the API defines itself are given by their
    /// type.
    ///
    /// For OpenAI `strict` is false: strict schemas require every argument, and ours have defaults.
    pub fn export(self, format: ToolFormat) -> Value {
        let kind = match (self, format) {
            (Self::Memory, ToolFormat::Anthropic) => Some("memory_20250818"),
            (Self::TextEditor, ToolFormat::Anthropic) => Some("text_editor_20250728"),
            _ => None,
        };
        let shape = |info: &ToolInfo| kind.map_or_else(|| schema::shaped(info, format), |kind| json!({"type": kind, "name": info.name}));
        self.tools().iter().map(shape).collect()
    }
}

fn infos(set: ToolSet) -> Vec<ToolInfo> {
    TABLE.iter().filter(|row: &&Row| row.set == set).map(|row| row.info.clone()).collect()
}

impl fmt::Display for ToolSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for ToolSet {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|set| set.name() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            Error::invalid_argument(format!("there is no tool set `{text}`; the tool sets are {names}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_belongs_to_one_set_that_decodes_it() {
        let names: Vec<(ToolSet, &str)> = ToolSet::ALL.iter().flat_map(|set| set.tools().iter().map(|info| (*set, &*info.name))).collect();
        assert_eq!(names.len(), TABLE.len());
        for (place, (set, name)) in names.iter().enumerate() {
            assert!(!names[..place].contains(&(*set, name)), "{name} is twice in {set}");
            assert_eq!(set.name().parse::<ToolSet>().expect("its own name"), *set);
        }
        let call = ToolSet::Agent.decode("grep", json!({"pattern": "x"})).expect("a legal call");
        assert_eq!((call.name(), call.set()), ("grep", ToolSet::Agent));
        let call = ToolCall::from_json("grep", json!({"pattern": "x"})).expect("a legal call");
        assert_eq!((call.name(), call.set()), ("grep", ToolSet::Default));
        assert!(ToolSet::Agent.decode("ls", json!({})).is_err());
    }

    #[test]
    fn exports_match_snapshots_in_every_format() {
        for set in [ToolSet::Memory, ToolSet::TextEditor, ToolSet::Agent] {
            for format in ToolFormat::ALL {
                insta::assert_json_snapshot!(format!("export_{set}_{format}"), set.export(format));
            }
        }
    }
}
