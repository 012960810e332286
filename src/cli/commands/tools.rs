//! `tools`: the tools for an agent, in the format of its API.

use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::tools::{ToolFormat, ToolSet};
use clap::{Args, ValueEnum};

/// Print the tool definitions in the format of a model API
#[derive(Debug, Args)]
#[command(after_long_help = "Example:
  treehold tools --format openai > tools.json
  treehold tools --set memory")]
pub(crate) struct Tools {
    /// Format of the definitions
    #[arg(long, value_enum, default_value = "anthropic")]
    format: Format,
    /// Tool set to print
    #[arg(long, value_enum, default_value = "default")]
    set: Set,
}

/// The tool sets to choose from.
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
        let tools = context.registry.tools().export(self.set.tools(), format);
        match tools.as_array() {
            Some(tools) => context.out.json_list(tools)?,
            None => context.out.json(&tools)?,
        }
        Ok(Outcome::Done)
    }
}
