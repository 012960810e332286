//! Request headers that may occur only once.
//!
//! If such a header occurs twice, a proxy may use a different host, token, length or condition than this server. So the request is refused,
//! even if the values are equal. Headers that are lists may have several lines
//! ([RFC 9110, section 5.3](https://www.rfc-editor.org/rfc/rfc9110#section-5.3)), and their parsers read all of them.

use axum::extract::Request;
use axum::http::{HeaderName, header};

/// Headers that are not lists. A repeated `traceparent` starts a new trace instead of failing, as [Trace
/// Context](https://www.w3.org/TR/trace-context/) requires.
const SINGLE: [HeaderName; 14] = [
    header::AUTHORIZATION,
    header::CONTENT_LENGTH,
    header::CONTENT_TYPE,
    header::HOST,
    header::IF_MODIFIED_SINCE,
    header::IF_RANGE,
    header::IF_UNMODIFIED_SINCE,
    header::ORIGIN,
    header::RANGE,
    HeaderName::from_static("idempotency-key"),
    HeaderName::from_static("last-event-id"),
    HeaderName::from_static("x-agentscope-admin-operator"),
    HeaderName::from_static("x-agentscope-admin-token"),
    HeaderName::from_static("x-builder-internal-token"),
];

/// Prefixes of further headers that are not lists: those of MCP and our own.
const SINGLE_PREFIXES: [&str; 2] = ["mcp-", "treehold-"];

/// Returns whether a header may occur only once.
fn is_single(name: &HeaderName) -> bool {
    SINGLE.contains(name) || SINGLE_PREFIXES.iter().any(|prefix| name.as_str().starts_with(prefix))
}

/// Checks that every such header occurs at most once, and that the target names no other host than `Host`
/// ([RFC 9112, section 3.2](https://www.rfc-editor.org/rfc/rfc9112#section-3.2)). The error is a message for the client.
pub fn check_single(request: &Request) -> Result<(), String> {
    let headers = request.headers();
    if headers.len() > headers.keys_len()
        && let Some(name) = headers.keys().find(|name| is_single(name) && headers.get_all(*name).iter().nth(1).is_some())
    {
        return Err(format!("the request has the header `{name}` more than once; send it once"));
    }
    match (headers.get(header::HOST), request.uri().authority()) {
        (Some(host), Some(authority)) if !host.as_bytes().eq_ignore_ascii_case(authority.as_str().as_bytes()) => {
            Err("the request names its host more than once; send one `Host` header".to_owned())
        }
        _ => Ok(()),
    }
}
