//! Converts the output of a tool to the protocol's result.

use rmcp::model::{CallToolResult, ContentBlock, MetaObject};
use treehold_agent::tools::ToolOutput;

/// The `_meta` key of the structured data, for programs.
const DATA: &str = "treehold/data";

/// The `_meta` key of the structured error, for programs.
const ERROR: &str = "treehold/error";

/// Converts an output to a result: its text as content, and its data and error in `_meta`.
pub(super) fn result(output: ToolOutput) -> CallToolResult {
    let content = vec![ContentBlock::text(output.text)];
    let mut result = if output.is_error { CallToolResult::error(content) } else { CallToolResult::success(content) };
    let mut meta = MetaObject::new();
    if let Some(data) = output.data {
        meta.insert(DATA.to_owned(), data);
    }
    if let Some(error) = output.error {
        meta.insert(ERROR.to_owned(), serde_json::json!(error));
    }
    result.meta = (!meta.is_empty()).then_some(meta);
    result
}
