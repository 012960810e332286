//! Tools that a program adds to the built-in ones.

use super::{ToolInfo, ToolOutput, arguments, render};
use async_trait::async_trait;
use serde_json::{Map, Value};
use std::fmt;
use std::sync::Arc;
use treehold_core::error::Result;
use treehold_core::path::VfsPathBuf;
use treehold_core::scope::Scope;
use treehold_tree::backend::Backend;
use treehold_tree::layer::{Layered, ReadOnly};

/// A tool that a program adds to the default set, with [`ToolRegistry::with_tool`](super::ToolRegistry::with_tool) or
/// [`WorkspaceBuilder::tool`](crate::workspace::WorkspaceBuilder::tool).
///
/// It appears wherever the built-in tools do: in exported schemas, over MCP and HTTP, and on the command line. Its calls are saved,
/// recorded and limited like theirs.
///
/// - The arguments of a call match [`ToolInfo::input_schema`] and include its defaults; paths are absolute and valid. Wrong arguments never
///   reach the tool.
/// - The tree is that of the caller, behind all layers. A tool that declares [`ToolInfo::read_only`] gets a tree that refuses changes,
///   because callers who may only read can call it.
/// - A failure becomes an output with `is_error`. An output longer than 100,000 characters is truncated.
/// - If another writer saves the same thread first, the call may run again on the fresh state. Effects outside the tree should therefore
///   be safe to repeat.
///
/// `treehold::tools::kit` checks a tool against these rules (feature `conformance`).
///
/// ```
/// use async_trait::async_trait;
/// use schemars::JsonSchema;
/// use serde::Deserialize;
/// use serde_json::{Value, json};
/// use treehold_agent::tools::{Tool, ToolContext, ToolInfo, ToolOutput};
/// use treehold_agent::workspace::Workspace;
/// use treehold_core::{Result, Scope, VfsPathBuf};
/// use treehold_tree::backend::BackendExt;
///
/// /// The arguments of `count_words`.
/// #[derive(Deserialize, JsonSchema)]
/// #[serde(deny_unknown_fields)]
/// struct CountWords {
///     /// The file.
///     path: VfsPathBuf,
/// }
///
/// #[derive(Debug)]
/// struct WordCounter(ToolInfo);
///
/// #[async_trait]
/// impl Tool for WordCounter {
///     fn info(&self) -> &ToolInfo {
///         &self.0
///     }
///
///     async fn run(&self, arguments: &Value, context: &ToolContext<'_>) -> Result<ToolOutput> {
///         let CountWords { path } = self.0.parse(arguments)?;
///         let words = context.tree.read_text(path.as_str()).await?.split_whitespace().count();
///         Ok(ToolOutput::new(format!("{words} words")).with_data(json!({"words": words})))
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// let info = ToolInfo::for_arguments::<CountWords>("count_words", "Count words", "Counts the words of a text file.")
///     .with_read_only()
///     .with_open_world(false)
///     .with_path_arguments(["path"]);
/// let workspace = Workspace::builder().tool(WordCounter(info))?.build();
/// let session = workspace.session(Scope::new().with_thread("monday")).await?;
/// session.backend().write("/a.md", "one two").await?;
/// let call = workspace.tools().from_json("count_words", json!({"path": "/a.md"}))?;
/// assert_eq!(session.call(call).await.text, "2 words");
/// # Ok(())
/// # }
/// ```
#[async_trait]
pub trait Tool: Send + Sync + fmt::Debug {
    /// Returns the description and behaviour of the tool, the same for every call.
    fn info(&self) -> &ToolInfo;

    /// Runs a call.
    ///
    /// # Errors
    /// Any error that the model should see; its kind becomes the code in the answer.
    async fn run(&self, arguments: &Value, context: &ToolContext<'_>) -> Result<ToolOutput>;

    /// Returns what a person must confirm before the call, where clients can ask one; `None` by default. It is called only for tools that
    /// are not read-only, and must change nothing.
    ///
    /// # Errors
    /// Those of reading the tree. They end the call.
    async fn confirmation(&self, arguments: &Value, context: &ToolContext<'_>) -> Result<Option<Confirmation>> {
        let _ = (arguments, context);
        Ok(None)
    }
}

/// What a call runs on, and who called.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct ToolContext<'a> {
    /// The caller's tree.
    pub tree: &'a dyn Backend,
    /// The caller's scope, if a session makes the call.
    pub scope: Option<&'a Scope>,
    /// The actor, if the caller named one.
    pub actor: Option<&'a str>,
    /// The id of the call, as assigned by the model's API.
    pub tool_call_id: Option<&'a str>,
}

impl<'a> ToolContext<'a> {
    /// Creates the context of a call without a session.
    pub fn new(tree: &'a dyn Backend) -> Self {
        Self { tree, scope: None, actor: None, tool_call_id: None }
    }

    /// Sets the scope.
    #[must_use]
    pub fn with_scope(mut self, scope: &'a Scope) -> Self {
        self.scope = Some(scope);
        self
    }

    /// Sets the actor and the id of the call.
    #[must_use]
    pub fn with_call(mut self, actor: Option<&'a str>, tool_call_id: Option<&'a str>) -> Self {
        (self.actor, self.tool_call_id) = (actor, tool_call_id);
        self
    }
}

/// A question to a person about one call.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Confirmation {
    /// What the call would do, in lower case and without a full stop, to be used within a sentence: "remove the table `/a.csv`".
    pub doing: String,
    /// The path that the call concerns, if any.
    pub path: Option<VfsPathBuf>,
}

impl Confirmation {
    /// Creates a question about what a call would do.
    pub fn new(doing: impl Into<String>) -> Self {
        Self { doing: doing.into(), path: None }
    }

    /// Sets the path.
    #[must_use]
    pub fn with_path(mut self, path: impl Into<VfsPathBuf>) -> Self {
        self.path = Some(path.into());
        self
    }
}

/// A call of an added tool, with checked arguments.
#[derive(Debug, Clone)]
pub struct CustomCall {
    tool: Arc<dyn Tool>,
    arguments: Value,
}

impl CustomCall {
    /// Checks the arguments against the schema of the tool, and adds its defaults.
    ///
    /// # Errors
    /// As [`ToolCall::from_json`](super::ToolCall::from_json).
    pub(super) fn decode(tool: &Arc<dyn Tool>, arguments: Value) -> Result<Self> {
        let info = tool.info();
        let mut arguments = arguments::checked(info, &[], arguments)?;
        if let Value::Object(given) = &mut arguments {
            add_defaults(given, &info.input_schema);
            normalize_paths(given, info);
        }
        Ok(Self { tool: tool.clone(), arguments })
    }

    /// Returns the tool.
    pub fn tool(&self) -> &Arc<dyn Tool> {
        &self.tool
    }

    /// Returns the arguments, defaults included.
    pub fn arguments(&self) -> &Value {
        &self.arguments
    }

    /// Returns what a person must confirm before the call.
    ///
    /// # Errors
    /// Those of [`Tool::confirmation`].
    pub async fn confirmation(&self, context: &ToolContext<'_>) -> Result<Option<Confirmation>> {
        if self.tool.info().read_only {
            return Ok(None);
        }
        self.tool.confirmation(&self.arguments, context).await
    }

    pub(super) async fn run(&self, context: &ToolContext<'_>) -> Result<ToolOutput> {
        let output = if self.tool.info().read_only {
            let tree = Layered::new(ReadOnly::new(), context.tree);
            self.tool.run(&self.arguments, &ToolContext { tree: &tree, ..*context }).await?
        } else {
            self.tool.run(&self.arguments, context).await?
        };
        Ok(bounded(output, &self.tool.info().name))
    }
}

/// Calls are equal if they are calls of the same instance of a tool with the same arguments.
impl PartialEq for CustomCall {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.tool, &other.tool) && self.arguments == other.arguments
    }
}

impl Eq for CustomCall {}

fn add_defaults(arguments: &mut Map<String, Value>, schema: &Value) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        if let Some(default) = property.get("default")
            && !arguments.contains_key(name)
        {
            arguments.insert(name.clone(), default.clone());
        }
    }
}

/// Normalizes paths, as tools of the default set do.
fn normalize_paths(arguments: &mut Map<String, Value>, info: &ToolInfo) {
    for name in &info.path_arguments {
        if let Some(Value::String(text)) = arguments.get_mut(&**name)
            && let Ok(path) = VfsPathBuf::parse(&*text)
        {
            *text = path.to_string();
        }
    }
}

/// Cuts a text that is longer than that of any built-in tool.
fn bounded(mut output: ToolOutput, name: &str) -> ToolOutput {
    if let Some((end, _)) = output.text.char_indices().nth(render::TEXT_CHARS_MAX) {
        output.text.truncate(end);
        let limit = render::thousands(render::TEXT_CHARS_MAX as u64);
        output.text.push_str(&format!("\n[{name}] the answer is cut after {limit} characters; ask for less"));
    }
    output
}

#[cfg(test)]
mod tests {
    use super::super::{ToolCall, ToolFormat, ToolRegistry, ToolSet};
    use super::*;
    use serde_json::json;
    use treehold_core::error::{Error, ErrorKind};
    use treehold_tree::backend::{BackendExt, StateBackend};

    /// A tool that does what its arguments say.
    #[derive(Debug)]
    struct Probe(ToolInfo);

    #[async_trait]
    impl Tool for Probe {
        fn info(&self) -> &ToolInfo {
            &self.0
        }

        async fn run(&self, arguments: &Value, context: &ToolContext<'_>) -> Result<ToolOutput> {
            match arguments["does"].as_str() {
                Some("writes") => {
                    context.tree.write(arguments["path"].as_str().unwrap_or_default(), "written").await?;
                    Ok(ToolOutput::new("written"))
                }
                Some("talks") => Ok(ToolOutput::new("é".repeat(render::TEXT_CHARS_MAX + 1))),
                Some("fails") => Err(Error::invalid_argument("it fails")),
                _ => Ok(ToolOutput::new(arguments.to_string())),
            }
        }
    }

    fn schema() -> Value {
        json!({
            "type": "object",
            "properties": {
                "does": {"type": "string", "description": "What to do.", "default": "echoes"},
                "path": {"type": "string", "description": "A path.", "default": "/a"},
            },
            "additionalProperties": false,
        })
    }

    fn probe(name: &'static str) -> ToolInfo {
        ToolInfo::new(name, "Probe", "Does what it is told.", schema()).with_path_arguments(["path"])
    }

    fn registry(info: ToolInfo) -> ToolRegistry {
        ToolRegistry::new().with_tool(Probe(info)).expect("a legal tool")
    }

    async fn called(registry: &ToolRegistry, tree: &StateBackend, arguments: Value) -> ToolOutput {
        registry.from_json("probe", arguments).expect("legal arguments").run(tree).await
    }

    #[tokio::test]
    async fn arguments_are_checked_and_get_defaults_before_the_tool_runs() {
        let (tools, tree) = (registry(probe("probe")), StateBackend::new());
        let output = called(&tools, &tree, json!({"path": "/b//c/"})).await;
        assert_eq!(output.text, r#"{"does":"echoes","path":"/b/c"}"#);
        for (arguments, kind) in [
            (json!({"path": 7}), ErrorKind::InvalidArgument),
            (json!({"other": "x"}), ErrorKind::InvalidArgument),
            (json!([]), ErrorKind::InvalidArgument),
            (json!({"path": "b"}), ErrorKind::InvalidPath),
        ] {
            assert_eq!(tools.from_json("probe", arguments.clone()).expect_err("wrong").kind(), kind, "{arguments}");
        }
        let output = called(&tools, &tree, json!({"does": "fails"})).await;
        assert!(output.is_error && output.text == "error [invalid_argument]: it fails", "{}", output.text);
    }

    #[tokio::test]
    async fn one_text_is_accepted_where_a_list_of_texts_may_stand() {
        let list = json!({"type": "array", "items": {"type": "string"}, "description": "Names."});
        let schema = json!({"type": "object", "properties": {"names": list}, "additionalProperties": false});
        let (tools, tree) = (registry(ToolInfo::new("probe", "Probe", "Does what it is told.", schema)), StateBackend::new());
        for (names, read) in [(json!("a"), r#"{"names":["a"]}"#), (json!(["a", "b"]), r#"{"names":["a","b"]}"#)] {
            assert_eq!(called(&tools, &tree, json!({"names": names})).await.text, read);
        }
        for names in [json!(1), json!([1]), json!({})] {
            let error = tools.from_json("probe", json!({"names": names})).expect_err("no text");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{names}");
        }
    }

    #[tokio::test]
    async fn tool_that_declares_read_only_cannot_write() {
        let tree = StateBackend::new();
        let output = called(&registry(probe("probe").with_read_only()), &tree, json!({"does": "writes"})).await;
        assert_eq!(output.error.expect("refused").code, "read_only");
        assert!(!tree.exists("/a").await.expect("asked"));
        let output = called(&registry(probe("probe")), &tree, json!({"does": "writes"})).await;
        assert!(!output.is_error && tree.exists("/a").await.expect("asked"), "{}", output.text);
    }

    #[tokio::test]
    async fn overlong_answer_is_cut_and_says_so() {
        let output = called(&registry(probe("probe")), &StateBackend::new(), json!({"does": "talks"})).await;
        let (text, remark) = output.text.rsplit_once('\n').expect("a remark");
        assert_eq!(text.chars().count(), render::TEXT_CHARS_MAX);
        assert_eq!(remark, "[probe] the answer is cut after 100,000 characters; ask for less");
    }

    #[test]
    fn invalid_tools_are_refused_by_the_registry() {
        let open = json!({"type": "object", "properties": {"a": {"type": "string", "description": "x"}}});
        for (info, says) in [
            (probe("grep"), "built-in"),
            (probe("restore"), "built-in"),
            (probe("No Name"), "letters"),
            (probe(""), "letters"),
            (ToolInfo::new("probe", "", "Does.", schema()), "title"),
            (ToolInfo::new("probe", "Probe", " ", schema()), "description"),
            (ToolInfo::new("probe", "Probe", "Does.", open), "additionalProperties"),
            (ToolInfo::new("probe", "Probe", "Does.", json!({"type": "string"})), "object"),
            (probe("probe").with_path_arguments(["where"]), "`where`"),
        ] {
            let error = ToolRegistry::new().with_tool(Probe(info.clone())).expect_err("refused");
            assert!(error.kind() == ErrorKind::InvalidArgument && error.message().contains(says), "{info:?}: {error}");
        }
        let error = registry(probe("probe")).with_tool(Probe(probe("probe"))).expect_err("twice");
        assert!(error.message().contains("twice"), "{error}");
    }

    #[test]
    fn added_tools_follow_the_default_set_in_every_listing() {
        let tools = registry(probe("probe"));
        for set in ToolSet::ALL {
            let names: Vec<&str> = tools.infos(set).map(|info| &*info.name).collect();
            let built_in: Vec<&str> = set.tools().iter().map(|info| &*info.name).collect();
            let added = if set == ToolSet::Default { &["probe"][..] } else { &[] };
            assert_eq!(names, [&built_in[..], added].concat(), "{set}");
            for format in ToolFormat::ALL {
                assert_eq!(tools.export(set, format).as_array().map(Vec::len), Some(names.len()), "{set} as {format}");
                assert_eq!(ToolRegistry::new().export(set, format), set.export(format));
            }
            assert_eq!(tools.decode(set, "probe", json!({})).is_ok(), set == ToolSet::Default, "{set}");
        }
        let call = tools.from_json("probe", json!({"does": "x"})).expect("legal");
        assert_eq!((call.name(), call.set(), call.to_string().as_str()), ("probe", ToolSet::Default, r#"probe {"does":"x"}"#));
        assert_eq!(tools.from_json("ls", json!({})).expect("legal"), ToolCall::from_json("ls", json!({})).expect("legal"));
        let error = tools.from_json("prob", json!({})).expect_err("no such tool");
        assert!(error.message().contains("did you mean `probe`?"), "{error}");
    }

    /// Only names, paths and sizes of an unknown tool's arguments may be recorded.
    #[test]
    fn record_of_an_added_tool_keeps_its_paths_and_no_other_text() {
        let call = registry(probe("probe")).from_json("probe", json!({"does": "secret", "path": "/b"})).expect("legal");
        assert_eq!(call.arguments_without_contents(), json!({"does": {"bytes": 6}, "path": "/b"}));
        assert_eq!(call.named_paths(), None, "it may change any path");
    }
}
