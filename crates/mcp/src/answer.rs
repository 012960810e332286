//! Converts the output of a tool to the protocol's result, and prepares long results.

use rmcp::RoleServer;
use rmcp::model::{CallToolResult, ContentBlock, MetaObject};
use rmcp::service::RequestContext;
use serde::Serialize;
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

/// Prepares a result to be sent: over HTTP, a long one is then written on a blocking thread. Every handler whose result may be long returns
/// it through this; over standard input and output the transport itself does this.
#[cfg_attr(not(feature = "http"), expect(unused_variables, reason = "other transports look at the message"))]
pub(super) fn ready<T: Serialize>(context: &RequestContext<RoleServer>, result: T) -> T {
    #[cfg(feature = "http")]
    super::long::LongAnswer::mark(context, &result);
    result
}
