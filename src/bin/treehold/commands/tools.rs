//! `tools`: the tools for an agent, in the format of its API.

use crate::context::Context;
use crate::exit::{Failure, Outcome};
use clap::{Args, ValueEnum};
use treehold::tools::{ToolFormat, ToolSet};

/// Print the tools with their JSON Schemas, as a model's API takes them
#[derive(Debug, Args)]
#[command(after_long_help = "Example:
  treehold tools --format openai > tools.json
  treehold tools --set memory")]
pub(crate) struct Tools {
    /// Whose shape
    #[arg(long, value_enum, default_value = "anthropic")]
    format: Format,
    /// Which tools
    #[arg(long, value_enum, default_value = "default")]
    set: Set,
}

/// Which tools are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Set {
    /// The ten file tools
    Default,
    /// `memory`, the memory tool of the Anthropic API
    Memory,
    /// `str_replace_based_edit_tool`, the text editor of the Anthropic API
    TextEditor,
    /// `read`, `write`, `edit`, `glob` and `grep` of Anthropic's agent toolset
    Agent,
}

impl Set {
    pub(crate) fn tools(self) -> ToolSet {
        match self {
            Self::Default => ToolSet::Default,
            Self::Memory => ToolSet::Memory,
            Self::TextEditor => ToolSet::TextEditor,
            Self::Agent => ToolSet::Agent,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// `tools` of the Anthropic Messages API
    Anthropic,
    /// `tools` of the OpenAI Chat Completions API
    #[value(name = "openai")]
    OpenAi,
    /// `tools` of an MCP `tools/list` result
    Mcp,
}

impl Tools {
    pub(crate) fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let format = match self.format {
            Format::Anthropic => ToolFormat::Anthropic,
            Format::OpenAi => ToolFormat::OpenAi,
            Format::Mcp => ToolFormat::Mcp,
        };
        let tools = self.set.tools().export(format);
        match tools.as_array() {
            Some(tools) => context.out.json_list(tools)?,
            None => context.out.json(&tools)?,
        }
        Ok(Outcome::Done)
    }
}
