//! The tools of a program: the built-in sets, and those that it adds.

use super::custom::{CustomCall, Tool};
use super::schema::{self, ToolFormat};
use super::{ToolCall, ToolInfo, ToolSet, unknown_tool};
use serde_json::Value;
use std::sync::Arc;
use treehold_core::error::{Error, Result};

/// The names of tools that entry points offer beside the sets.
const RESERVED: [&str; 4] = ["history", "checkpoint", "restore", "undo"];

/// The longest name, which every model's API accepts.
const NAME_BYTES_MAX: usize = 64;

/// The tools that calls are resolved with: the built-in sets, and the tools that a program added to the default set. Clones share them.
///
/// ```
/// use treehold_agent::tools::{ToolRegistry, ToolSet};
///
/// let tools = ToolRegistry::new();
/// assert_eq!(tools.infos(ToolSet::Default).count(), 10);
/// let call = tools.from_json("ls", serde_json::json!({"path": "/memories"}))?;
/// assert_eq!(call.name(), "ls");
/// # Ok::<(), treehold_core::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct ToolRegistry {
    added: Vec<Arc<dyn Tool>>,
}

impl ToolRegistry {
    /// Returns the built-in tools alone.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tool to the default set, after those that it has.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for a name that is taken or that some API refuses, an empty
    /// title or description, or a schema outside the plain subset that every client understands ([`schema::faults`]).
    pub fn with_tool(mut self, tool: impl Tool + 'static) -> Result<Self> {
        let info = tool.info();
        check(info)?;
        if self.added.iter().any(|added| added.info().name == info.name) {
            return Err(Error::invalid_argument(format!("the tool `{}` is added twice; rename one", info.name)));
        }
        self.added.push(Arc::new(tool));
        Ok(self)
    }

    /// Returns the tools of a set: the built-in ones, then the added ones, in a fixed order.
    pub fn infos(&self, set: ToolSet) -> impl Iterator<Item = &ToolInfo> {
        set.tools().iter().chain(self.added_to(set).map(|tool| tool.info()))
    }

    /// Parses a call of a tool of a set from its name and JSON arguments.
    ///
    /// # Errors
    /// As [`ToolCall::from_json`].
    pub fn decode(&self, set: ToolSet, name: &str, arguments: Value) -> Result<ToolCall> {
        match self.added_to(set).find(|tool| tool.info().name == name) {
            Some(tool) => CustomCall::decode(tool, arguments).map(ToolCall::Custom),
            None if self.infos(set).any(|info| info.name == name) => set.decode(name, arguments),
            None => Err(unknown_tool(name, self.infos(set).map(|info| &*info.name).collect())),
        }
    }

    /// Parses a call like [`ToolCall::from_json`], also of an added tool.
    ///
    /// # Errors
    /// As [`ToolCall::from_json`].
    pub fn from_json(&self, name: &str, arguments: Value) -> Result<ToolCall> {
        let sets = || ToolSet::ALL.into_iter().filter(|set| *set != ToolSet::Agent);
        match sets().find(|set| self.infos(*set).any(|info| info.name == name)) {
            Some(set) => self.decode(set, name, arguments),
            None => Err(unknown_tool(name, sets().flat_map(|set| self.infos(set)).map(|info| &*info.name).collect())),
        }
    }

    /// Returns the tools of a set as a JSON array in the format of an API, like [`ToolSet::export`].
    pub fn export(&self, set: ToolSet, format: ToolFormat) -> Value {
        let mut tools = set.export(format);
        if let Value::Array(tools) = &mut tools {
            tools.extend(self.added_to(set).map(|tool| schema::shaped(tool.info(), format)));
        }
        tools
    }

    /// Returns whether a tool of any set has this name.
    pub(super) fn knows(&self, name: &str) -> bool {
        ToolSet::ALL.into_iter().any(|set| self.infos(set).any(|info| info.name == name))
    }

    fn added_to(&self, set: ToolSet) -> impl Iterator<Item = &Arc<dyn Tool>> {
        self.added.iter().filter(move |_| set == ToolSet::Default)
    }
}

fn check(info: &ToolInfo) -> Result<()> {
    let name = &*info.name;
    let refused = |message: String| Err(Error::invalid_argument(message));
    let is_legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_legal) {
        return refused(format!("`{name}` is not a valid tool name; use 1 to {NAME_BYTES_MAX} lower-case letters, digits and `_`"));
    }
    if RESERVED.contains(&name) || ToolRegistry::new().knows(name) {
        return refused(format!("`{name}` is the name of a built-in tool; choose another"));
    }
    for (what, text) in [("title", &info.title), ("description", &info.description)] {
        if text.trim().is_empty() {
            return refused(format!("the tool `{name}` has no {what}, by which models and people know it"));
        }
    }
    if info.input_schema["type"] != "object" {
        return refused(format!("the schema of the tool `{name}` must be that of an object"));
    }
    if let Some(fault) = schema::faults(&info.input_schema).first() {
        return refused(format!("the schema of the tool `{name}` is not plain enough for every client: {fault}"));
    }
    for path in &info.path_arguments {
        if info.input_schema["properties"][&**path]["type"] != "string" {
            return refused(format!("`{path}` is not a text argument of the tool `{name}`, so it cannot be a path"));
        }
    }
    Ok(())
}
