//! What a tool answered, as the protocol's result.

use crate::tools::ToolOutput;
use rmcp::model::{CallToolResult, ContentBlock, MetaObject};

/// What `_meta` calls the facts of an answer, for programs.
const DATA: &str = "treehold/data";

/// What `_meta` calls the error of an answer, for programs.
const ERROR: &str = "treehold/error";

/// Makes a result of an output: its text, and in `_meta` what a program may want of it.
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
