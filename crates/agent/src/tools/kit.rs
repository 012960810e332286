//! The rules of an added [`Tool`] as test cases, for the crate that brings it (feature `conformance`).
//!
//! [`tool_conformance!`](crate::tool_conformance) creates one test for each case:
//!
//! ```no_run
//! # use async_trait::async_trait;
//! # use serde_json::{Value, json};
//! # use treehold_agent::tools::{Tool, ToolContext, ToolInfo, ToolOutput};
//! # #[derive(Debug)]
//! # struct WordCounter;
//! # #[async_trait]
//! # impl Tool for WordCounter {
//! #     fn info(&self) -> &ToolInfo { unimplemented!() }
//! #     async fn run(&self, _: &Value, _: &ToolContext<'_>) -> treehold_core::Result<ToolOutput> { unimplemented!() }
//! # }
//! use treehold_agent::tools::kit::ToolSubject;
//!
//! fn subject() -> ToolSubject {
//!     ToolSubject::new(WordCounter).with_file("/notes.md", "one two three").with_call(json!({"path": "/notes.md"}))
//! }
//!
//! treehold_agent::tool_conformance!(word_counter, subject);
//! ```

use super::{CustomCall, Tool, ToolCall, ToolContext, ToolRegistry};
use bytes::Bytes;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use treehold_core::error::{ErrorKind, Result};
use treehold_core::ops::GlobOptions;
use treehold_core::path::VfsPath;
use treehold_tree::backend::{Backend, BackendExt, StateBackend};
use treehold_tree::layer::{Operations, Permissions, Rule};

/// A tool, the files that it works on, and calls of it that succeed on them.
#[derive(Debug)]
pub struct ToolSubject {
    tool: Arc<dyn Tool>,
    files: Vec<(String, Bytes)>,
    calls: Vec<Value>,
}

impl ToolSubject {
    /// Tests a tool on an empty tree. Give it at least one call.
    pub fn new(tool: impl Tool + 'static) -> Self {
        Self { tool: Arc::new(tool), files: Vec::new(), calls: Vec::new() }
    }

    /// Adds a file to the tree.
    #[must_use]
    pub fn with_file(mut self, path: impl Into<String>, content: impl Into<Bytes>) -> Self {
        self.files.push((path.into(), content.into()));
        self
    }

    /// Adds the arguments of a call that succeeds. Each call gets a fresh tree.
    #[must_use]
    pub fn with_call(mut self, arguments: Value) -> Self {
        self.calls.push(arguments);
        self
    }

    async fn tree(&self) -> StateBackend {
        let tree = StateBackend::new();
        for (path, content) in &self.files {
            tree.write(path, content.clone()).await.unwrap_or_else(|error| panic!("{path} cannot be written: {error}"));
        }
        tree
    }

    fn decoded(&self, arguments: &Value) -> Result<CustomCall> {
        CustomCall::decode(&self.tool, arguments.clone())
    }

    fn calls(&self) -> Vec<CustomCall> {
        assert!(!self.calls.is_empty(), "a subject needs a call that succeeds");
        self.calls.iter().map(|call| self.decoded(call).unwrap_or_else(|error| panic!("{call} is refused: {error}"))).collect()
    }

    fn properties(&self) -> Map<String, Value> {
        self.tool.info().input_schema["properties"].as_object().cloned().unwrap_or_default()
    }
}

/// Returns everything in a tree: each path, with the content of files.
async fn dump(tree: &dyn Backend) -> BTreeMap<String, Option<Bytes>> {
    let all = GlobOptions::new("**").with_hidden(true).with_ignored(true).with_directories(true);
    let entries = tree.glob(VfsPath::ROOT, &all).await.expect("a state tree can be searched").entries;
    let mut content = BTreeMap::new();
    for entry in entries {
        let bytes =
            if entry.is_directory() { None } else { Some(tree.read_bytes(entry.path.as_str()).await.expect("a state tree can be read")) };
        content.insert(entry.path.to_string(), bytes);
    }
    content
}

/// The description is complete and the same every time, and a registry accepts the tool.
pub async fn description_is_complete(subject: ToolSubject) {
    assert_eq!(subject.tool.info(), subject.tool.info());
    let tool = Shared(subject.tool.clone());
    if let Err(error) = ToolRegistry::new().with_tool(tool) {
        panic!("{error}");
    }
}

/// Calls of the subject succeed with an answer of bounded size.
pub async fn calls_succeed(subject: ToolSubject) {
    for call in subject.calls() {
        let shown = call.arguments().to_string();
        let output = ToolCall::Custom(call).run(&subject.tree().await).await;
        assert!(!output.is_error, "{shown}: {}", output.text);
        assert!(!output.text.is_empty(), "{shown}: the model gets no text");
        assert!(!output.text.ends_with("ask for less"), "{shown}: the answer is too long; page it");
    }
}

/// Wrong arguments are refused by name, as `invalid_argument` or `invalid_path`, before the tool runs.
pub async fn wrong_arguments_are_refused(subject: ToolSubject) {
    let refused = |arguments: Value, kind: ErrorKind, why: &str| {
        let error = subject.decoded(&arguments).map(drop).expect_err(why);
        assert_eq!(error.kind(), kind, "{why}: {arguments}: {error}");
    };
    let good = subject.calls[0].as_object().cloned().expect("arguments are an object");
    refused(json!([]), ErrorKind::InvalidArgument, "a list is not an object of arguments");
    refused(json!({"no_such_argument": 1}), ErrorKind::InvalidArgument, "an unknown argument");
    let required = subject.tool.info().input_schema["required"].as_array().cloned().unwrap_or_default();
    for (name, property) in subject.properties() {
        let wrong = if property["type"] == "object" { json!([]) } else { json!({"not": "this"}) };
        let with = |value: Value| {
            let mut arguments = good.clone();
            arguments.insert(name.clone(), value);
            Value::Object(arguments)
        };
        refused(with(wrong), ErrorKind::InvalidArgument, &name);
        if required.contains(&json!(name)) {
            let mut arguments = good.clone();
            arguments.remove(&name);
            refused(Value::Object(arguments), ErrorKind::InvalidArgument, &name);
        }
        if subject.tool.info().path_arguments.iter().any(|path| *path == name) {
            refused(with(json!("relative.md")), ErrorKind::InvalidPath, &name);
            refused(with(json!("/a/../b")), ErrorKind::InvalidPath, &name);
        }
    }
}

/// A tool that declares `read_only` changes nothing, also on a tree that would let it.
pub async fn read_only_tool_changes_nothing(subject: ToolSubject) {
    if !subject.tool.info().read_only {
        return;
    }
    for call in subject.calls() {
        let tree = subject.tree().await;
        let before = dump(&tree).await;
        let _answer = subject.tool.run(call.arguments(), &ToolContext::new(&tree)).await;
        assert_eq!(dump(&tree).await, before, "{} changed the tree", call.arguments());
    }
}

/// Repeating a call of a tool that declares `idempotent` leaves the tree as the first call did.
pub async fn idempotent_tool_may_be_repeated(subject: ToolSubject) {
    if !subject.tool.info().idempotent {
        return;
    }
    for call in subject.calls() {
        let tree = subject.tree().await;
        let shown = call.arguments().to_string();
        let call = ToolCall::Custom(call);
        call.run(&tree).await;
        let after = dump(&tree).await;
        call.run(&tree).await;
        assert_eq!(dump(&tree).await, after, "{shown} had a further effect");
    }
}

/// Asking what a person must confirm changes nothing.
pub async fn confirmation_changes_nothing(subject: ToolSubject) {
    for call in subject.calls() {
        let tree = subject.tree().await;
        let before = dump(&tree).await;
        let asked = call.confirmation(&ToolContext::new(&tree)).await;
        assert_eq!(dump(&tree).await, before, "asking about {} changed the tree", call.arguments());
        if let Ok(Some(asked)) = asked {
            assert!(!asked.doing.trim().is_empty() && !asked.doing.ends_with('.'), "{asked:?} is empty or ends with a full stop");
        }
    }
}

/// What the rules of a tree hide from the caller, the tool does not show, and nothing there changes.
pub async fn hidden_files_stay_hidden(subject: ToolSubject) {
    for call in subject.calls() {
        let shown = call.arguments().to_string();
        let tree = Arc::new(subject.tree().await);
        let before = dump(&tree).await;
        let rule = Rule::deny(Operations::ALL, ["/**"]).expect("a legal rule");
        let output = ToolCall::Custom(call).run(&Permissions::new([rule], tree.clone())).await;
        let answer = format!("{} {}", output.text, output.data.unwrap_or_default());
        for (path, content) in &subject.files {
            let content = String::from_utf8_lossy(content);
            // Short content may be part of any answer.
            let leaked = content.lines().map(str::trim).find(|line| line.len() >= 8 && answer.contains(*line));
            assert_eq!(leaked, None, "{shown} shows `{path}`, which is hidden: {answer}");
        }
        assert_eq!(dump(&tree).await, before, "{shown} changed what is hidden");
    }
}

/// A missing file is a typed error or an answer, never a panic.
pub async fn empty_tree_causes_no_panic(subject: ToolSubject) {
    for call in subject.calls() {
        let shown = call.arguments().to_string();
        let output = ToolCall::Custom(call).run(&StateBackend::new()).await;
        assert_eq!(output.is_error, output.error.is_some(), "{shown}: an error has a code");
        assert!(!output.text.is_empty(), "{shown}: the model gets no text");
    }
}

/// Runs a case on a separate runtime.
#[doc(hidden)]
pub fn run(case: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(case);
}

/// A tool that is shared with a registry.
#[derive(Debug)]
struct Shared(Arc<dyn Tool>);

#[async_trait::async_trait]
impl Tool for Shared {
    fn info(&self) -> &super::ToolInfo {
        self.0.info()
    }

    async fn run(&self, arguments: &Value, context: &ToolContext<'_>) -> Result<super::ToolOutput> {
        self.0.run(arguments, context).await
    }
}

/// Creates a module of tests, one for each rule of an added tool: `tool_conformance!(name, subject)`, where `subject` is a function that
/// returns a [`ToolSubject`](crate::tools::kit::ToolSubject).
#[macro_export]
macro_rules! tool_conformance {
    ($name:ident, $subject:expr) => {
        mod $name {
            use super::*;

            $crate::tool_conformance! { @cases $subject;
                description_is_complete,
                calls_succeed,
                wrong_arguments_are_refused,
                read_only_tool_changes_nothing,
                idempotent_tool_may_be_repeated,
                confirmation_changes_nothing,
                hidden_files_stay_hidden,
                empty_tree_causes_no_panic,
            }
        }
    };
    (@cases $subject:expr; $($case:ident,)+) => {
        $(
            #[test]
            fn $case() {
                $crate::tools::kit::run($crate::tools::kit::$case($subject()));
            }
        )+
    };
}

#[cfg(test)]
mod tests {
    use super::super::{Confirmation, ToolInfo, ToolOutput};
    use super::*;

    /// A tool that appends to a file, whatever it declares.
    #[derive(Debug)]
    struct Appends(ToolInfo);

    #[async_trait::async_trait]
    impl Tool for Appends {
        fn info(&self) -> &ToolInfo {
            &self.0
        }

        async fn run(&self, arguments: &Value, context: &ToolContext<'_>) -> Result<ToolOutput> {
            let path = arguments["path"].as_str().unwrap_or_default();
            context.tree.append(path, "more").await?;
            Ok(ToolOutput::new("appended"))
        }

        async fn confirmation(&self, _: &Value, context: &ToolContext<'_>) -> Result<Option<Confirmation>> {
            if self.0.title == "Asks badly" {
                context.tree.write("/asked", "yes").await?;
            }
            Ok(Some(Confirmation::new("append to a file")))
        }
    }

    fn info(title: &'static str) -> ToolInfo {
        let properties = json!({"path": {"type": "string", "description": "The file."}});
        let schema = json!({"type": "object", "properties": properties, "required": ["path"], "additionalProperties": false});
        ToolInfo::new("append", title, "Appends to a file.", schema).with_path_arguments(["path"])
    }

    fn appends(info: ToolInfo) -> ToolSubject {
        ToolSubject::new(Appends(info)).with_file("/a", "text").with_call(json!({"path": "/a"}))
    }

    fn honest() -> ToolSubject {
        appends(info("Append"))
    }

    crate::tool_conformance!(honest_tool, honest);

    #[tokio::test]
    #[should_panic(expected = "changed the tree")]
    async fn tool_that_writes_but_declares_read_only_is_reported() {
        read_only_tool_changes_nothing(appends(info("Append").with_read_only())).await;
    }

    #[tokio::test]
    #[should_panic(expected = "had a further effect")]
    async fn tool_that_falsely_declares_idempotence_is_reported() {
        idempotent_tool_may_be_repeated(appends(info("Append").with_idempotent(true))).await;
    }

    #[tokio::test]
    #[should_panic(expected = "changed the tree")]
    async fn tool_that_writes_before_confirmation_is_reported() {
        confirmation_changes_nothing(appends(info("Asks badly"))).await;
    }

    #[tokio::test]
    #[should_panic(expected = "no title")]
    async fn tool_without_a_title_is_reported() {
        description_is_complete(appends(info(" "))).await;
    }
}
