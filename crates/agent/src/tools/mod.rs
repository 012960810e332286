//! The tools that an agent calls: ten file tools, each with typed arguments, a JSON Schema and answers worded for a
//! model. Further [sets](ToolSet) offer tools that models know from elsewhere, over the same operations.
//!
//! [`ToolCall::from_json`] parses a call once; every entry point (MCP, HTTP, the CLI, a transcript) uses it and runs the call on a
//! [`Backend`]. A [`ToolRegistry`] also parses calls of [tools that a program adds](Tool). The result is a [`ToolOutput`]: text of bounded
//! size that says how to continue where it was truncated, and the same facts as data. Errors are results too, so they cannot break the
//! agent's loop.
//!
//! Each tool is one file: its arguments with their derived schema, its execution and its rendering. To add a tool,
//! write that file and add a line to the list below. Rules for the default set (the other sets answer as their vendors
//! define):
//!
//! - Paths are absolute; a trailing slash does not matter. `ls`, `glob`, `grep` and `search` start at `/` by default.
//! - Results use the caller's paths. A `not_found` error suggests similar paths.
//! - The tool's own remarks follow the content, on lines that start with its name in brackets, such as `[read_file]
//!   ...`. If the content has such lines, the brackets are doubled, so a file cannot impersonate the tool.
//! - A `null` optional argument counts as absent, and argument names that models know from other tools (`file_path`,
//!   `-i`, `head_limit`...) are accepted.

use serde::Serialize;
use serde_json::Value;
use std::borrow::Cow;
use std::fmt;
use std::sync::LazyLock;
use treehold_core::error::{Error, ErrorRecord, Result};
use treehold_tree::backend::Backend;

mod agent_toolset;
mod apply_patch;
mod arguments;
pub mod consent;
mod custom;
mod delete;
mod edit_file;
mod glob;
mod grep;
#[cfg(feature = "conformance")]
pub mod kit;
mod ls;
mod memory;
mod r#move;
mod outline;
mod patch;
mod read_file;
mod record;
mod registry;
pub(crate) mod render;
mod revise;
pub mod schema;
mod search;
mod set;
#[cfg(test)]
mod shipped;
#[cfg(test)]
mod stage;
mod suggest;
mod text_editor;
pub mod transcript;
mod write_file;

pub use agent_toolset::{AgentEdit, AgentGlob, AgentGrep, AgentRead, AgentWrite};
pub use apply_patch::ApplyPatch;
pub use custom::{Confirmation, CustomCall, Tool, ToolContext};
pub use delete::Delete;
pub use edit_file::{EditFile, Replacement};
pub use glob::Glob;
pub use grep::{Grep, GrepOutputMode};
pub use ls::Ls;
pub use memory::{Memory, MemoryCommand};
pub use r#move::Move;
pub use read_file::ReadFile;
pub use record::RecordedArguments;
pub use record::named_paths;
pub use registry::ToolRegistry;
pub use schema::ToolFormat;
pub use search::Search;
pub use set::ToolSet;
pub use suggest::with_near_paths;
pub use text_editor::{TextEditor, TextEditorCommand};
pub use transcript::{Transcript, TranscriptEvent};
pub use write_file::{WriteFile, WriteFileMode};

/// Generates the enum of calls and its dispatch from the list of tools.
macro_rules! tools {
    ($($(#[$doc:meta])* $variant:ident($arguments:ty),)+) => {
        /// A call of one tool, with checked arguments.
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum ToolCall {
            $($(#[$doc])* $variant($arguments),)+
            /// Calls a tool that a program added.
            Custom(CustomCall),
        }

        /// Every tool of every set, in the order in which agents see them.
        static TABLE: LazyLock<Vec<Row>> = LazyLock::new(|| vec![$(Row::of::<$arguments>(),)+]);

        impl ToolCall {
            /// Returns the name of the tool.
            pub fn name(&self) -> &str {
                match self {
                    $(Self::$variant(_) => <$arguments as FileTool>::NAME,)+
                    Self::Custom(call) => &call.tool().info().name,
                }
            }

            /// Returns the arguments as JSON, defaults included.
            pub fn arguments(&self) -> Value {
                match self {
                    $(Self::$variant(arguments) => serde_json::to_value(arguments).expect("arguments always serialize"),)+
                    Self::Custom(call) => call.arguments().clone(),
                }
            }

            /// Returns the set that the tool belongs to. An added tool belongs to the default set.
            pub fn set(&self) -> ToolSet {
                match self {
                    $(Self::$variant(_) => <$arguments as FileTool>::SET,)+
                    Self::Custom(_) => ToolSet::Default,
                }
            }

            async fn attempt(&self, context: &ToolContext<'_>) -> Result<ToolOutput> {
                match self {
                    $(Self::$variant(arguments) => arguments.run(context.tree).await,)+
                    Self::Custom(call) => call.run(context).await,
                }
            }
        }

        $(impl From<$arguments> for ToolCall {
            fn from(arguments: $arguments) -> Self {
                Self::$variant(arguments)
            }
        })+
    };
}

tools! {
    /// Lists a directory.
    Ls(Ls),
    /// Reads a window of a text file.
    ReadFile(ReadFile),
    /// Writes a whole file, or appends to it.
    WriteFile(WriteFile),
    /// Replaces text within one file.
    EditFile(EditFile),
    /// Changes several files by a patch, atomically.
    ApplyPatch(ApplyPatch),
    /// Finds files by name.
    Glob(Glob),
    /// Finds lines by content.
    Grep(Grep),
    /// Ranks files by relevance to a query.
    Search(Search),
    /// Removes a file or directory.
    Delete(Delete),
    /// Moves or renames a file or directory.
    Move(Move),
    /// The memory tool: six commands within `/memories`.
    Memory(Memory),
    /// The text editor: four commands on any file.
    TextEditor(TextEditor),
    /// Reads a file, as the agent toolset does.
    AgentRead(AgentRead),
    /// Writes a file, as the agent toolset does.
    AgentWrite(AgentWrite),
    /// Edits a file, as the agent toolset does.
    AgentEdit(AgentEdit),
    /// Finds files by name, as the agent toolset does.
    AgentGlob(AgentGlob),
    /// Finds lines by content, as the agent toolset does.
    AgentGrep(AgentGrep),
}

impl ToolCall {
    /// Parses a call from a tool's name and JSON arguments.
    ///
    /// The tools of [`ToolSet::Agent`] are parsed only by [`ToolSet::decode`], because two of their names mean other
    /// tools here.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for an unknown tool, with similar names, or for a wrong
    /// argument, with what is allowed. [`InvalidPath`](treehold_core::error::ErrorKind::InvalidPath) for a relative or invalid path.
    ///
    /// ```
    /// use treehold_agent::tools::ToolCall;
    /// use serde_json::json;
    ///
    /// let call = ToolCall::from_json("read_file", json!({"path": "/notes.md", "limit": 20}))?;
    /// assert_eq!(call.name(), "read_file");
    /// let error = ToolCall::from_json("read_file", json!({"path": "/notes.md", "limit": "all"})).unwrap_err();
    /// assert!(error.message().contains("`limit`"));
    /// # Ok::<(), treehold_core::Error>(())
    /// ```
    pub fn from_json(name: &str, arguments: Value) -> Result<Self> {
        decode(|set| set != ToolSet::Agent, name, arguments)
    }

    /// Returns the description and behaviour of the tool.
    pub fn info(&self) -> &ToolInfo {
        if let Self::Custom(call) = self {
            return call.tool().info();
        }
        let (set, name) = (self.set(), self.name());
        let row = TABLE.iter().find(|row| row.set == set && row.info.name == name);
        &row.expect("every tool that is not an added one is in the table").info
    }

    /// Runs the call on a tree. A failure becomes an output with `is_error`, whose text starts with `error [code]: `; tools
    /// outside the default set use the wording of their vendors.
    pub async fn run(&self, backend: &dyn Backend) -> ToolOutput {
        self.run_in(&ToolContext::new(backend)).await
    }

    /// Runs the call like [`ToolCall::run`], and passes the caller to an added tool.
    pub async fn run_in(&self, context: &ToolContext<'_>) -> ToolOutput {
        match self.attempt(context).await {
            Ok(output) => output,
            Err(error) if self.set() == ToolSet::Default => ToolOutput::from_error(&suggest::with_near_paths(context.tree, error).await),
            Err(error) => ToolOutput::from_error_verbatim(&error),
        }
    }
}

/// Formats the call for people: the tool's name and the arguments that differ from their defaults.
///
/// ```
/// use treehold_agent::tools::ToolCall;
///
/// let call = ToolCall::from_json("read_file", serde_json::json!({"path": "/a.md/", "offset": 0, "limit": 5}))?;
/// assert_eq!(call.to_string(), r#"read_file {"limit":5,"path":"/a.md"}"#);
/// # Ok::<(), treehold_core::Error>(())
/// ```
impl fmt::Display for ToolCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let properties = &self.info().input_schema["properties"];
        let mut arguments = self.arguments();
        if let Value::Object(object) = &mut arguments {
            object.retain(|name, value| properties[name].get("default") != Some(value));
        }
        write!(f, "{} {arguments}", self.name())
    }
}

/// Returns every tool of the default set, in a fixed order.
pub fn tools() -> &'static [ToolInfo] {
    ToolSet::Default.tools()
}

/// The description and behaviour of a tool, for models and clients.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ToolInfo {
    /// The name that calls use.
    pub name: Cow<'static, str>,
    /// The name shown to people.
    pub title: Cow<'static, str>,
    /// What the tool does and how to use it.
    pub description: Cow<'static, str>,
    /// The JSON Schema of its arguments.
    pub input_schema: Value,
    /// The tool changes nothing.
    pub read_only: bool,
    /// The tool may remove or replace existing content.
    pub destructive: bool,
    /// Repeating the same call has no further effect.
    pub idempotent: bool,
    /// The tool reaches beyond the tree, such as to the network.
    pub open_world: bool,
    /// The text arguments that are paths of the tree. They are checked before the tool runs, and recorded.
    pub path_arguments: Vec<Cow<'static, str>>,
}

impl ToolInfo {
    /// Describes a tool that may do anything: change, remove, and reach beyond the tree.
    ///
    /// The schema is that of an object, in the plain subset that [`schema::faults`] checks.
    pub fn new(
        name: impl Into<Cow<'static, str>>,
        title: impl Into<Cow<'static, str>>,
        description: impl Into<Cow<'static, str>>,
        input_schema: Value,
    ) -> Self {
        Self {
            name: name.into(),
            title: title.into(),
            description: description.into(),
            input_schema,
            read_only: false,
            destructive: true,
            idempotent: false,
            open_world: true,
            path_arguments: Vec::new(),
        }
    }

    /// Describes a tool like [`ToolInfo::new`], with the schema of a type: the doc comments of its fields become the descriptions. Fields
    /// with `#[serde(default)]` are optional. Deny unknown fields.
    pub fn for_arguments<T: schemars::JsonSchema>(
        name: impl Into<Cow<'static, str>>,
        title: impl Into<Cow<'static, str>>,
        description: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::new(name, title, description, schema::of_arguments::<T>())
    }

    /// Declares that the tool changes nothing.
    #[must_use]
    pub fn with_read_only(mut self) -> Self {
        (self.read_only, self.destructive, self.idempotent) = (true, false, true);
        self
    }

    /// Sets whether the tool may remove or replace existing content.
    #[must_use]
    pub fn with_destructive(mut self, destructive: bool) -> Self {
        self.destructive = destructive;
        self
    }

    /// Sets whether repeating a call has no further effect.
    #[must_use]
    pub fn with_idempotent(mut self, idempotent: bool) -> Self {
        self.idempotent = idempotent;
        self
    }

    /// Sets whether the tool reaches beyond the tree.
    #[must_use]
    pub fn with_open_world(mut self, open_world: bool) -> Self {
        self.open_world = open_world;
        self
    }

    /// Sets which arguments are paths of the tree.
    #[must_use]
    pub fn with_path_arguments<N: Into<Cow<'static, str>>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.path_arguments = names.into_iter().map(Into::into).collect();
        self
    }

    /// Converts checked arguments to a type.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for arguments that the schema allows and the type does not.
    pub fn parse<T: serde::de::DeserializeOwned>(&self, arguments: &Value) -> Result<T> {
        T::deserialize(arguments).map_err(|error| Error::invalid_argument(format!("the arguments of `{}` are wrong: {error}", self.name)))
    }
}

/// The answer to a tool call.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct ToolOutput {
    /// The answer for the model, of bounded size.
    pub text: String,
    /// Whether the call failed.
    pub is_error: bool,
    /// The answer as data; file content is in the text only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
    /// The error as data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorRecord>,
    /// Why the changes of the call to its thread are not saved, if they are not. The call is then an error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unsaved: Option<ErrorRecord>,
}

impl ToolOutput {
    /// Makes the answer of a successful call.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_error: false, data: None, error: None, unsaved: None }
    }

    /// Adds the answer as data.
    #[must_use]
    pub fn with_data(mut self, data: Value) -> Self {
        self.data = Some(data);
        self
    }

    /// Makes the answer of a failed call.
    pub fn from_error(error: &Error) -> Self {
        Self {
            text: format!("error [{}]: {}", error.kind(), error.message()),
            is_error: true,
            data: None,
            error: Some(ErrorRecord::from(error)),
            unsaved: None,
        }
    }

    /// Makes the answer of a call whose thread could not be saved: an error, followed by the call's own answer.
    #[must_use]
    pub(crate) fn with_unsaved(self, error: &Error) -> Self {
        let failed = Self::from_error(error);
        // If the call itself failed too, report its error, since its changes are not saved either.
        let mut record = self.error.or_else(|| failed.error.clone());
        if let Some(record) = &mut record {
            record.may_have_effect = true;
        }
        let text = format!("{}\n\nthe call itself answered:\n{}", failed.text, self.text);
        Self { text, is_error: true, data: self.data, error: record, unsaved: failed.error }
    }

    /// Makes the answer of a failed call whose text is only the error message.
    fn from_error_verbatim(error: &Error) -> Self {
        Self { text: error.message().to_owned(), ..Self::from_error(error) }
    }
}

/// A built-in tool: its arguments and everything known about it. The doc comments of the fields become the schema's
/// descriptions.
trait FileTool: serde::de::DeserializeOwned + Serialize + schemars::JsonSchema {
    const NAME: &'static str;
    const TITLE: &'static str;
    const DESCRIPTION: &'static str;
    const HINTS: Hints;
    /// The set in which the tool is shown.
    const SET: ToolSet = ToolSet::Default;
    /// The arguments that are paths.
    const PATHS: &'static [&'static str];
    /// Alternative argument names, each with the name it replaces.
    const ALIASES: &'static [(&'static str, &'static str)] = &[];

    async fn run(&self, backend: &dyn Backend) -> Result<ToolOutput>;
}

/// How a tool behaves.
enum Hints {
    /// The tool changes nothing.
    ReadOnly,
    /// The tool changes the tree.
    Writes { idempotent: bool },
}

struct Row {
    set: ToolSet,
    info: ToolInfo,
    decode: fn(&ToolInfo, Value) -> Result<ToolCall>,
}

impl Row {
    fn of<T: FileTool + Into<ToolCall>>() -> Self {
        let (read_only, idempotent) = match T::HINTS {
            Hints::ReadOnly => (true, true),
            Hints::Writes { idempotent } => (false, idempotent),
        };
        let info = ToolInfo {
            read_only,
            destructive: !read_only,
            idempotent,
            open_world: false,
            path_arguments: T::PATHS.iter().copied().map(Cow::Borrowed).collect(),
            ..ToolInfo::for_arguments::<T>(T::NAME, T::TITLE, T::DESCRIPTION)
        };
        Self { set: T::SET, info, decode: |info, arguments| arguments::decode::<T>(info, arguments).map(Into::into) }
    }
}

/// Parses a call of a tool in one of the selected sets.
fn decode(asked: impl Fn(ToolSet) -> bool, name: &str, arguments: Value) -> Result<ToolCall> {
    match TABLE.iter().filter(|row| asked(row.set)).find(|row| row.info.name == name) {
        Some(row) => (row.decode)(&row.info, arguments),
        None => Err(unknown_tool(name, TABLE.iter().filter(|row| asked(row.set)).map(|row| &*row.info.name).collect())),
    }
}

fn unknown_tool(name: &str, names: Vec<&str>) -> Error {
    let near = suggest::nearest(name, names.iter().copied());
    Error::invalid_argument(format!("there is no tool `{name}`{}; the tools are {}", suggest::did_you_mean(&near), names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;
    use treehold_core::error::ErrorKind;

    #[test]
    fn tools_are_listed_in_a_fixed_order() {
        let names: Vec<&str> = tools().iter().map(|info| &*info.name).collect();
        assert_eq!(names, ["ls", "read_file", "write_file", "edit_file", "apply_patch", "glob", "grep", "search", "delete", "move"]);
    }

    #[test]
    fn unknown_tool_is_refused_with_similar_names() {
        let error = ToolCall::from_json("read", json!({})).expect_err("no such tool");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().starts_with("there is no tool `read`; did you mean `read_file`?"), "{error}");
    }

    #[test]
    fn call_and_its_future_are_send() {
        fn is_send<T: Send>(_: &T) {}
        let backend = treehold_tree::backend::StateBackend::new();
        let call = ToolCall::from_json("ls", json!({})).expect("all arguments are optional");
        is_send(&call.run(&backend));
    }

    #[test]
    fn arguments_include_defaults() {
        let call = ToolCall::from_json("ls", json!({"path": "/a/"})).expect("a legal call");
        assert_eq!(call.arguments(), json!({"path": "/a", "limit": 1000, "cursor": ""}));
        assert_eq!(ToolCall::from_json("ls", call.arguments()).expect("the same call"), call);
    }

    #[test]
    fn every_call_round_trips_through_its_arguments() {
        for (name, arguments) in [
            ("ls", json!({"path": "/a", "limit": 3, "cursor": "x"})),
            ("read_file", json!({"path": "/a", "offset": 1, "limit": 2, "column": 3, "line_numbers": true})),
            ("write_file", json!({"path": "/a", "content": "x", "mode": "append"})),
            ("edit_file", json!({"path": "/a", "old_string": "x", "new_string": "", "replace_all": true})),
            ("edit_file", json!({"path": "/a", "edits": [{"old_string": "x", "new_string": "y"}]})),
            ("apply_patch", json!({"patch": "x", "base": "/a"})),
            ("glob", json!({"pattern": "*", "hidden": true, "ignored": true, "directories": true})),
            ("grep", json!({"pattern": "x", "glob": "*", "output_mode": "count", "regex": true, "before": 1, "after": 2})),
            ("delete", json!({"path": "/a", "recursive": true})),
            ("move", json!({"from": "/a", "to": "/b", "overwrite": true})),
            ("memory", json!({"command": "view", "path": "/memories/a", "view_range": [2, -1]})),
            ("memory", json!({"command": "rename", "old_path": "/memories/a", "new_path": "/memories/b"})),
            ("str_replace_based_edit_tool", json!({"command": "insert", "path": "/a", "insert_line": 0, "insert_text": "x"})),
        ] {
            let call = ToolCall::from_json(name, arguments).expect("a legal call");
            assert_eq!(call.info().name, name);
            assert_eq!(ToolCall::from_json(name, call.arguments()).expect("the same call"), call);
        }
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let text =
            prop_oneof![Just("/a".to_owned()), Just("*** Begin Patch\n*** Update File: a\n-x\n+y\n*** End Patch".to_owned()), ".{0,12}"];
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            text.prop_map(Value::from)
        ];
        leaf.prop_recursive(3, 16, 4, |inner| {
            let name = prop_oneof![Just("old_string".to_owned()), Just("new_string".to_owned()), "[a-z]{1,3}"];
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map(name, inner, 0..4).prop_map(|map| Value::Object(map.into_iter().collect()))
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn arbitrary_arguments_never_panic(
            tool in 0..TABLE.len(),
            asked in proptest::collection::vec(proptest::option::of(any_value()), 20),
        ) {
            let Row { set, info, .. } = &TABLE[tool];
            let names = info.input_schema["properties"].as_object().expect("arguments").keys();
            let arguments = names.zip(asked).filter_map(|(name, value)| Some((name.clone(), value?))).collect();
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            let answer = runtime.block_on(async {
                let backend = stage::tree(&[("/a", "x\n")]).await;
                match set.decode(&info.name, Value::Object(arguments)) {
                    Ok(call) => call.run(&backend).await.error,
                    Err(error) => Some(ErrorRecord::from(&error)),
                }
            });
            prop_assert_ne!(answer.map(|error| error.code), Some(ErrorKind::Internal.code().to_owned()));
        }
    }
}
