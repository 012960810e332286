//! What an agent may call: ten file tools, each with typed arguments, a JSON Schema, and prose for a model; and beside them, in
//! [sets](ToolSet) of their own, the tools that models know from elsewhere, over the same operations.
//!
//! Text becomes a [`ToolCall`] once, by [`ToolCall::from_json`]; every door (MCP, HTTP, the CLI, a transcript) does so and
//! then runs the same call on the same [`Backend`]. A result is a [`ToolOutput`]: text of bounded size that says how to go on
//! where it was cut, and the same facts as data. An error is a result too, so that nothing escapes to the agent's loop.
//!
//! One file holds one tool: its arguments, its schema by derivation, its run and its rendering. To add a tool, write that file
//! and add a line to the list below. Rules that hold for all of the default set (the others answer as their makers say):
//!
//! - Paths are absolute; a trailing slash does not matter. `ls`, `glob`, `grep` and `search` start at `/` unless told.
//! - Results name paths as the caller's tree has them. A path that is not there is answered with near names.
//! - What the tool itself has to say stands after the content, on lines that start with the tool's name in brackets, such as
//!   `[read_file] ...`. Where the content has such lines of its own, the brackets are doubled, so a file cannot speak as the tool.
//! - An optional argument that is `null` counts as left out, and the names that other tool sets have taught models
//!   (`file_path`, `-i`, `head_limit`...) are understood.

use crate::backend::Backend;
use crate::error::{Error, ErrorRecord, Result};
use serde::Serialize;
use serde_json::Value;
use std::fmt;
use std::sync::LazyLock;

mod agent_toolset;
mod apply_patch;
mod arguments;
mod delete;
mod edit_file;
mod glob;
mod grep;
mod ls;
mod memory;
mod r#move;
mod outline;
mod patch;
mod read_file;
mod record;
mod render;
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
pub use delete::Delete;
pub use edit_file::{EditFile, Replacement};
pub use glob::Glob;
pub use grep::{Grep, GrepOutputMode};
pub use ls::Ls;
pub use memory::{Memory, MemoryCommand};
pub use r#move::Move;
pub use read_file::ReadFile;
pub(crate) use record::RecordedArguments;
#[cfg(feature = "mcp")]
pub(crate) use record::named_paths;
pub use schema::ToolFormat;
pub use search::Search;
pub use set::ToolSet;
pub use text_editor::{TextEditor, TextEditorCommand};
pub use transcript::{Transcript, TranscriptEvent};
pub use write_file::{WriteFile, WriteFileMode};

/// Makes the enum of calls and what is done alike for each of them, from the one list of tools.
macro_rules! tools {
    ($($(#[$doc:meta])* $variant:ident($arguments:ty),)+) => {
        /// One call of a tool, with its arguments checked.
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum ToolCall {
            $($(#[$doc])* $variant($arguments),)+
        }

        /// Every tool of every set, in the order that agents are shown them.
        static TABLE: LazyLock<Vec<Row>> = LazyLock::new(|| vec![$(Row::of::<$arguments>(),)+]);

        impl ToolCall {
            /// Returns the name of the tool.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$variant(_) => <$arguments as Tool>::NAME,)+
                }
            }

            /// Returns the arguments as JSON, defaults included.
            pub fn arguments(&self) -> Value {
                match self {
                    $(Self::$variant(arguments) => serde_json::to_value(arguments).expect("arguments are plain values"),)+
                }
            }

            fn row(&self) -> &'static Row {
                let (set, name) = match self {
                    $(Self::$variant(_) => (<$arguments as Tool>::SET, <$arguments as Tool>::NAME),)+
                };
                TABLE.iter().find(|row| row.set == set && row.info.name == name).expect("every call is of a tool in the table")
            }

            async fn attempt(&self, backend: &dyn Backend) -> Result<ToolOutput> {
                match self {
                    $(Self::$variant(arguments) => arguments.run(backend).await,)+
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
    /// Writes a whole file, or adds to its end.
    WriteFile(WriteFile),
    /// Replaces text within one file.
    EditFile(EditFile),
    /// Changes several files by a patch, all or none.
    ApplyPatch(ApplyPatch),
    /// Finds files by name.
    Glob(Glob),
    /// Finds lines by content.
    Grep(Grep),
    /// Recalls files by what they are about.
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
    /// Reads a call from a tool's name and its JSON arguments.
    ///
    /// The tools of [`ToolSet::Agent`] are read by [`ToolSet::decode`] alone: two of them have names of ours, and mean something else.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for an unknown tool (near names are given) or a wrong argument (it is
    /// named, with what is allowed), [`InvalidPath`](crate::ErrorKind::InvalidPath) for a path that is relative or not legal.
    ///
    /// ```
    /// use stratafs::tools::ToolCall;
    /// use serde_json::json;
    ///
    /// let call = ToolCall::from_json("read_file", json!({"path": "/notes.md", "limit": 20}))?;
    /// assert_eq!(call.name(), "read_file");
    /// let error = ToolCall::from_json("read_file", json!({"path": "/notes.md", "limit": "all"})).unwrap_err();
    /// assert!(error.message().contains("`limit`"));
    /// # Ok::<(), stratafs::Error>(())
    /// ```
    pub fn from_json(name: &str, arguments: Value) -> Result<Self> {
        decode(|set| set != ToolSet::Agent, name, arguments)
    }

    /// Returns what the tool is and how it behaves.
    pub fn info(&self) -> &'static ToolInfo {
        &self.row().info
    }

    /// Returns the set that the tool is of.
    pub fn set(&self) -> ToolSet {
        self.row().set
    }

    /// Runs the call. An error becomes an output with `is_error`, whose text starts with `error [code]: `; tools beside the default
    /// set say it in the words that their makers gave them.
    pub async fn run(&self, backend: &dyn Backend) -> ToolOutput {
        match self.attempt(backend).await {
            Ok(output) => output,
            Err(error) if self.set() == ToolSet::Default => ToolOutput::from_error(&suggest::with_near_paths(backend, error).await),
            Err(error) => ToolOutput::from_error_verbatim(&error),
        }
    }
}

/// Prints the call as a person would write it: the tool's name and the arguments that are not as by default.
///
/// ```
/// use stratafs::tools::ToolCall;
///
/// let call = ToolCall::from_json("read_file", serde_json::json!({"path": "/a.md/", "offset": 0, "limit": 5}))?;
/// assert_eq!(call.to_string(), r#"read_file {"limit":5,"path":"/a.md"}"#);
/// # Ok::<(), stratafs::Error>(())
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

/// Returns every tool of the default set, always in the same order.
pub fn tools() -> &'static [ToolInfo] {
    ToolSet::Default.tools()
}

/// What a tool is and how it behaves, as it is told to a model.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ToolInfo {
    /// The name a call gives.
    pub name: &'static str,
    /// The name a person is shown.
    pub title: &'static str,
    /// What it does and how to use it.
    pub description: &'static str,
    /// The JSON Schema of its arguments.
    pub input_schema: Value,
    /// It changes nothing.
    pub read_only: bool,
    /// It may remove or replace what is there.
    pub destructive: bool,
    /// The same call again has no further effect.
    pub idempotent: bool,
}

/// What a tool answered.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct ToolOutput {
    /// The answer for a model, of bounded size.
    pub text: String,
    /// Whether the call failed.
    pub is_error: bool,
    /// The answer for a program; file content stands in the text alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
    /// The error for a program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorRecord>,
    /// Whether the thread that the call changed could not be saved: `error` says why.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unsaved: bool,
}

impl ToolOutput {
    /// Makes the answer of a call that succeeded.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_error: false, data: None, error: None, unsaved: false }
    }

    /// Adds the same facts for a program.
    #[must_use]
    pub fn with_data(mut self, data: Value) -> Self {
        self.data = Some(data);
        self
    }

    /// Makes the answer of a call that failed.
    pub fn from_error(error: &Error) -> Self {
        Self {
            text: format!("error [{}]: {}", error.kind(), error.message()),
            is_error: true,
            data: None,
            error: Some(ErrorRecord::from(error)),
            unsaved: false,
        }
    }

    /// Makes the answer of a call whose thread could not be saved: an error, with what the call itself answered beneath it.
    #[must_use]
    pub(crate) fn with_unsaved(self, error: &Error) -> Self {
        let failed = Self::from_error(error);
        let mut record = failed.error;
        if self.error.is_some() {
            // The call failed by itself, and what it left is not saved either.
            record = self.error;
        }
        if let Some(record) = &mut record {
            record.may_have_effect = true;
        }
        let text = format!("{}\n\nthe call itself answered:\n{}", failed.text, self.text);
        Self { text, is_error: true, data: self.data, error: record, unsaved: true }
    }

    /// Makes the answer of a call that failed, with nothing but the error's own words.
    fn from_error_verbatim(error: &Error) -> Self {
        Self { text: error.message().to_owned(), ..Self::from_error(error) }
    }
}

/// What every tool's arguments know of their tool. The descriptions of the fields are the schema's.
trait Tool: serde::de::DeserializeOwned + Serialize + schemars::JsonSchema {
    const NAME: &'static str;
    const TITLE: &'static str;
    const DESCRIPTION: &'static str;
    const HINTS: Hints;
    /// The set that it is shown in.
    const SET: ToolSet = ToolSet::Default;
    /// The arguments that are paths.
    const PATHS: &'static [&'static str];
    /// Other names of arguments, each before the name it stands for.
    const ALIASES: &'static [(&'static str, &'static str)] = &[];

    async fn run(&self, backend: &dyn Backend) -> Result<ToolOutput>;
}

/// How a tool behaves.
enum Hints {
    /// It changes nothing.
    ReadOnly,
    /// It changes the tree.
    Writes { idempotent: bool },
}

struct Row {
    set: ToolSet,
    info: ToolInfo,
    decode: fn(&ToolInfo, Value) -> Result<ToolCall>,
}

impl Row {
    fn of<T: Tool + Into<ToolCall>>() -> Self {
        let (read_only, idempotent) = match T::HINTS {
            Hints::ReadOnly => (true, true),
            Hints::Writes { idempotent } => (false, idempotent),
        };
        let info = ToolInfo {
            name: T::NAME,
            title: T::TITLE,
            description: T::DESCRIPTION,
            input_schema: schema::of_arguments::<T>(),
            read_only,
            destructive: !read_only,
            idempotent,
        };
        Self { set: T::SET, info, decode: |info, arguments| arguments::decode::<T>(info, arguments).map(Into::into) }
    }
}

/// Reads a call of a tool in one of the sets that are asked for.
fn decode(asked: impl Fn(ToolSet) -> bool, name: &str, arguments: Value) -> Result<ToolCall> {
    match TABLE.iter().filter(|row| asked(row.set)).find(|row| row.info.name == name) {
        Some(row) => (row.decode)(&row.info, arguments),
        None => Err(unknown_tool(name, TABLE.iter().filter(|row| asked(row.set)).map(|row| row.info.name).collect())),
    }
}

fn unknown_tool(name: &str, names: Vec<&str>) -> Error {
    let near = suggest::nearest(name, names.iter().copied());
    Error::invalid_argument(format!("there is no tool `{name}`{}; the tools are {}", suggest::did_you_mean(&near), names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn the_order_of_the_tools_is_fixed() {
        let names: Vec<&str> = tools().iter().map(|info| info.name).collect();
        assert_eq!(names, ["ls", "read_file", "write_file", "edit_file", "apply_patch", "glob", "grep", "search", "delete", "move"]);
    }

    #[test]
    fn an_unknown_tool_is_answered_with_near_names() {
        let error = ToolCall::from_json("read", json!({})).expect_err("no such tool");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().starts_with("there is no tool `read`; did you mean `read_file`?"), "{error}");
    }

    #[test]
    fn a_call_and_its_future_move_between_threads() {
        fn is_send<T: Send>(_: &T) {}
        let backend = crate::backend::StateBackend::new();
        let call = ToolCall::from_json("ls", json!({})).expect("all arguments are optional");
        is_send(&call.run(&backend));
    }

    #[test]
    fn arguments_are_shown_with_their_defaults() {
        let call = ToolCall::from_json("ls", json!({"path": "/a/"})).expect("a legal call");
        assert_eq!(call.arguments(), json!({"path": "/a", "limit": 1000, "cursor": ""}));
        assert_eq!(ToolCall::from_json("ls", call.arguments()).expect("the same call"), call);
    }

    #[test]
    fn every_call_is_read_back_from_its_own_arguments() {
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
        fn whatever_is_asked_is_answered(
            tool in 0..TABLE.len(),
            asked in proptest::collection::vec(proptest::option::of(any_value()), 20),
        ) {
            let Row { set, info, .. } = &TABLE[tool];
            let names = info.input_schema["properties"].as_object().expect("arguments").keys();
            let arguments = names.zip(asked).filter_map(|(name, value)| Some((name.clone(), value?))).collect();
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            let answer = runtime.block_on(async {
                let backend = stage::tree(&[("/a", "x\n")]).await;
                match set.decode(info.name, Value::Object(arguments)) {
                    Ok(call) => call.run(&backend).await.error,
                    Err(error) => Some(ErrorRecord::from(&error)),
                }
            });
            prop_assert_ne!(answer.map(|error| error.code), Some(ErrorKind::Internal.code().to_owned()));
        }
    }
}
