//! What the durable record of a call keeps: its arguments without file content.

use super::ToolCall;
use serde_json::{Map, Value, json};
use treehold_core::path::VfsPathBuf;

/// The text arguments that are kept: paths, patterns and choices. For all others only the size is recorded.
const KEPT: [&str; 20] = [
    "path",
    "file_path",
    "from",
    "to",
    "source",
    "destination",
    "sortBy",
    "checkpoint",
    "old_path",
    "new_path",
    "base",
    "command",
    "glob",
    "pattern",
    "query",
    "since",
    "before",
    "cursor",
    "mode",
    "output_mode",
];

/// The arguments of any tool that are paths in the tree.
const PATH_ARGUMENTS: [&str; 8] = ["path", "file_path", "from", "to", "source", "destination", "old_path", "new_path"];

/// The arguments of a call as recorded.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedArguments {
    /// The arguments without file content.
    pub(crate) kept: Value,
    /// The BLAKE3 hash of all arguments as JSON, in hexadecimal.
    pub(crate) digest: String,
    /// The size of all arguments as JSON, in bytes.
    pub(crate) bytes: u64,
}

impl RecordedArguments {
    /// Records the arguments of a tool that is not a [`ToolCall`].
    pub fn of(arguments: &Map<String, Value>) -> Self {
        Self::new(arguments_without_contents(arguments), &Value::Object(arguments.clone()))
    }

    fn new(kept: Value, all: &Value) -> Self {
        let all = all.to_string();
        Self { kept, digest: blake3::hash(all.as_bytes()).to_hex().to_string(), bytes: all.len() as u64 }
    }
}

/// The longest text that is kept, in bytes.
const TEXT_BYTES_MAX: usize = 4096;

/// The most paths of a patch that are kept.
const PATHS_MAX: usize = 100;

impl ToolCall {
    /// Returns the paths that the call names; `None` if it names none or one is invalid.
    pub fn named_paths(&self) -> Option<Vec<VfsPathBuf>> {
        match (self, self.arguments()) {
            (Self::ApplyPatch(patch), _) => {
                let base = patch.base.as_str();
                let absolute = |path: String| if path.starts_with('/') { path } else { format!("{base}/{path}") };
                let paths: Vec<String> = patch.paths().into_iter().map(absolute).collect();
                parsed(paths.iter().map(String::as_str))
            }
            // An added tool may change other paths than those it is given.
            (Self::Custom(_), _) => None,
            (_, Value::Object(arguments)) => named_paths(&arguments),
            _ => None,
        }
    }

    /// Returns what is recorded about the arguments.
    pub(crate) fn recorded(&self) -> RecordedArguments {
        RecordedArguments::new(self.arguments_without_contents(), &self.arguments())
    }

    /// Returns the arguments as JSON without file content. A long text, or one that may be content, becomes `{"bytes":
    /// n}`, a list of them `{"count": n, "bytes": n}`. Patches also get the `paths` they change. Arguments with default
    /// values are omitted.
    pub fn arguments_without_contents(&self) -> Value {
        let Value::Object(arguments) = self.arguments() else { return Value::Null };
        let info = self.info();
        let properties = &info.input_schema["properties"];
        let is_custom = matches!(self, Self::Custom(_));
        let mut kept: Map<String, Value> = arguments
            .into_iter()
            .filter(|(name, value)| !value.is_null() && properties[name].get("default") != Some(value))
            .map(|(name, value)| {
                // The names of an added tool's arguments say nothing about their content.
                let is_kept = if is_custom { info.path_arguments.iter().any(|path| *path == name) } else { KEPT.contains(&name.as_str()) };
                (name, without_content(value, is_kept))
            })
            .collect();
        if let Self::ApplyPatch(patch) = self {
            let mut paths = patch.paths();
            paths.truncate(PATHS_MAX);
            kept.insert("paths".to_owned(), paths.into());
        }
        Value::Object(kept)
    }
}

/// Returns the paths that the arguments of a tool name; `None` if they name none or one is invalid.
pub fn named_paths(arguments: &Map<String, Value>) -> Option<Vec<VfsPathBuf>> {
    parsed(PATH_ARGUMENTS.iter().filter_map(|name| arguments.get(*name)?.as_str()))
}

fn parsed<'a>(paths: impl Iterator<Item = &'a str>) -> Option<Vec<VfsPathBuf>> {
    let paths: Option<Vec<VfsPathBuf>> = paths.map(|path| VfsPathBuf::parse(path).ok()).collect();
    paths.filter(|paths| !paths.is_empty())
}

/// Like [`ToolCall::arguments_without_contents`], for a tool that is not a [`ToolCall`]. Lists of paths are kept.
fn arguments_without_contents(arguments: &Map<String, Value>) -> Value {
    let kept = arguments.iter().filter(|(_, value)| !value.is_null()).map(|(name, value)| {
        let value = match value {
            Value::Array(paths) if name == "paths" && text_bytes(value) <= TEXT_BYTES_MAX => {
                paths.iter().filter(|path| path.is_string()).take(PATHS_MAX).cloned().collect()
            }
            value => without_content(value.clone(), KEPT.contains(&name.as_str())),
        };
        (name.clone(), value)
    });
    Value::Object(kept.collect())
}

fn without_content(value: Value, is_kept: bool) -> Value {
    match value {
        Value::String(text) if !is_kept || text.len() > TEXT_BYTES_MAX => json!({"bytes": text.len()}),
        Value::Array(list) => json!({"count": list.len(), "bytes": list.iter().map(text_bytes).sum::<usize>()}),
        Value::Object(_) => json!({"bytes": text_bytes(&value)}),
        value => value,
    }
}

/// Returns the total size of all texts in a value.
fn text_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(list) => list.iter().map(text_bytes).sum(),
        Value::Object(object) => object.values().map(text_bytes).sum(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::ToolSet;

    fn recorded(tool: &str, arguments: Value) -> Value {
        ToolCall::from_json(tool, arguments).expect("a legal call").arguments_without_contents()
    }

    #[test]
    fn record_contains_only_the_size_of_contents() {
        let write = recorded("write_file", json!({"path": "/a.md", "content": "secret"}));
        assert_eq!((&write["path"], &write["content"]), (&json!("/a.md"), &json!({"bytes": 6})));
        let edit = recorded("edit_file", json!({"path": "/a.md", "old_string": "secret", "new_string": "s"}));
        assert_eq!((&edit["old_string"], &edit["new_string"]), (&json!({"bytes": 6}), &json!({"bytes": 1})));
        let edits = json!([{"old_string": "secret", "new_string": "s"}, {"old_string": "b", "new_string": ""}]);
        assert_eq!(recorded("edit_file", json!({"path": "/a.md", "edits": edits}))["edits"], json!({"count": 2, "bytes": 8}));
        let patch =
            "*** Begin Patch\n*** Add File: /b.md\n+secret\n*** Update File: /a.md\n*** Move to: /c.md\n@@\n-secret\n+s\n*** End Patch";
        let patch = recorded("apply_patch", json!({"patch": patch}));
        assert_eq!(patch["paths"], json!(["/b.md", "/a.md", "/c.md"]));
        assert!(![write, edit, patch].iter().any(|kept| kept.to_string().contains("secret")));
        let grep = recorded("grep", json!({"pattern": "a b", "path": "/d", "ignore_case": true}));
        assert_eq!((&grep["pattern"], &grep["path"], &grep["ignore_case"]), (&json!("a b"), &json!("/d"), &json!(true)));
        assert_eq!(recorded("grep", json!({"pattern": "a".repeat(5_000)}))["pattern"], json!({"bytes": 5_000}));
    }

    /// A new text argument must be classified as content or not before it can be kept.
    #[test]
    fn every_text_argument_is_classified_as_kept_or_content() {
        for info in ToolSet::ALL.iter().flat_map(|set| set.tools()) {
            let properties = info.input_schema["properties"].as_object().expect("a schema of an object");
            for (name, property) in properties.iter().filter(|(_, property)| property["type"] == "string") {
                let is_content = ["content", "old_string", "new_string", "patch", "file_text", "old_str", "new_str", "insert_text"]
                    .contains(&name.as_str());
                assert!(is_content != KEPT.contains(&name.as_str()), "decide about `{name}` of `{}`: {property}", info.name);
            }
        }
    }
}
