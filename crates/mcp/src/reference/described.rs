//! The descriptions of the tools: names, arguments and hints of the reference server, in our own words.

use rmcp::model::{Tool, ToolAnnotations};
use serde_json::{Value, json};
use std::sync::Arc;

/// The behaviour of a tool, as the reference server declares it.
#[derive(Clone, Copy)]
enum Hints {
    Reads,
    Writes { idempotent: bool, destructive: bool },
}

/// Returns the fourteen tools in the order of the reference server.
pub(crate) fn tools() -> Vec<Tool> {
    use Hints::{Reads, Writes};
    let path = || json!({"type": "string"});
    let of_path = || object(json!({"path": path()}), &["path"]);
    let lines = || {
        let head = json!({"type": "number", "description": "Return only this many lines from the start"});
        let tail = json!({"type": "number", "description": "Return only this many lines from the end"});
        object(json!({"path": path(), "tail": tail, "head": head}), &["path"])
    };
    let patterns = || json!({"type": "array", "items": {"type": "string"}, "default": []});
    let edit = json!({
        "type": "object",
        "properties": {
            "oldText": {"type": "string", "description": "The lines to replace; only the first occurrence is changed"},
            "newText": {"type": "string", "description": "The replacement lines"},
        },
        "required": ["oldText", "newText"],
    });
    let sort = json!({"type": "string", "enum": ["name", "size"], "default": "name", "description": "The sort order of the list"});
    let many = json!({"type": "array", "items": {"type": "string"}, "minItems": 1, "description": "The files to read, at least one"});
    vec![
        tool(
            "read_file",
            "Read File (Deprecated)",
            "Reads a text file. Kept for older prompts; use read_text_file instead.",
            lines(),
            Reads,
        ),
        tool("read_text_file", "Read Text File", "Reads a text file: all of it, or its first (head) or last (tail) lines.", lines(), Reads),
        media(of_path()),
        tool(
            "read_multiple_files",
            "Read Multiple Files",
            "Reads several text files. Returns each with its path, and the reason for each that cannot be read.",
            object(json!({"paths": many}), &["paths"]),
            Reads,
        ),
        tool(
            "write_file",
            "Write File",
            "Writes a text file, replacing existing content.",
            object(json!({"path": path(), "content": {"type": "string"}}), &["path", "content"]),
            Writes { idempotent: true, destructive: true },
        ),
        tool(
            "edit_file",
            "Edit File",
            "Replaces lines of a text file and returns the difference; with dryRun, nothing is written.",
            object(
                json!({
                    "path": path(),
                    "edits": {"type": "array", "items": edit},
                    "dryRun": {"type": "boolean", "default": false, "description": "Return the difference without writing anything"},
                }),
                &["path", "edits"],
            ),
            Writes { idempotent: false, destructive: true },
        ),
        tool(
            "create_directory",
            "Create Directory",
            "Creates a directory and its parents; an existing directory is not an error.",
            of_path(),
            Writes { idempotent: true, destructive: false },
        ),
        tool("list_directory", "List Directory", "Lists a directory; each name follows [FILE] or [DIR].", of_path(), Reads),
        tool(
            "list_directory_with_sizes",
            "List Directory with Sizes",
            "Lists a directory with the sizes of its files, and their sum.",
            object(json!({"path": path(), "sortBy": sort}), &["path"]),
            Reads,
        ),
        tool(
            "directory_tree",
            "Directory Tree",
            "Returns everything beneath a directory as JSON with name, type and children.",
            object(json!({"path": path(), "excludePatterns": patterns()}), &["path"]),
            Reads,
        ),
        tool(
            "move_file",
            "Move File",
            "Moves or renames a file or directory; the destination must not exist.",
            object(json!({"source": path(), "destination": path()}), &["source", "destination"]),
            Writes { idempotent: false, destructive: true },
        ),
        tool(
            "search_files",
            "Search Files",
            "Finds files and directories whose path beneath the start matches a glob pattern such as **/*.md.",
            object(json!({"path": path(), "pattern": {"type": "string"}, "excludePatterns": patterns()}), &["path", "pattern"]),
            Reads,
        ),
        tool("get_file_info", "Get File Info", "Returns the size, times, kind and permissions of a file or directory.", of_path(), Reads),
        tool(
            "list_allowed_directories",
            "List Allowed Directories",
            "Lists the directories that these tools can access.",
            json!({"type": "object", "properties": {}}),
            Reads,
        ),
    ]
}

fn object(properties: Value, required: &[&str]) -> Value {
    json!({"type": "object", "properties": properties, "required": required})
}

fn closed(properties: Value, required: &[&str]) -> Value {
    let mut schema = object(properties, required);
    schema["additionalProperties"] = false.into();
    schema
}

fn tool(name: &'static str, title: &str, description: &'static str, input: Value, hints: Hints) -> Tool {
    let annotations = match hints {
        Hints::Reads => ToolAnnotations::new().read_only(true),
        Hints::Writes { idempotent, destructive } => {
            ToolAnnotations::new().read_only(false).idempotent(idempotent).destructive(destructive)
        }
    };
    Tool::new(name, description, schema(input))
        .with_title(title)
        .with_annotations(annotations.open_world(false))
        .with_raw_output_schema(schema(closed(json!({"content": {"type": "string"}}), &["content"])))
}

fn media(input: Value) -> Tool {
    let bytes = closed(
        json!({"type": {"type": "string", "enum": ["image", "audio"]}, "data": {"type": "string"}, "mimeType": {"type": "string"}}),
        &["type", "data", "mimeType"],
    );
    let resource = closed(json!({"uri": {"type": "string"}, "mimeType": {"type": "string"}, "blob": {"type": "string"}}), &["uri", "blob"]);
    let other = closed(json!({"type": {"type": "string", "const": "resource"}, "resource": resource}), &["type", "resource"]);
    let content = json!({"type": "array", "items": {"anyOf": [bytes, other]}});
    let description = "Reads an image or audio file, and any other file as a binary resource.";
    tool("read_media_file", "Read Media File", description, input, Hints::Reads)
        .with_raw_output_schema(schema(closed(json!({"content": content}), &["content"])))
}

fn schema(schema: Value) -> Arc<serde_json::Map<String, Value>> {
    Arc::new(schema.as_object().cloned().unwrap_or_default())
}
