//! Headers that a request may bring once.
//!
//! With two of them, a proxy may go by another one than this server: by another host, token, length or condition. So a request
//! that repeats such a header is refused, whatever the two say. Headers that are lists may come in several lines
//! ([RFC 9110, section 5.3](https://www.rfc-editor.org/rfc/rfc9110#section-5.3)): their readers take all lines.

use crate::trace::TRACEPARENT;
use axum::extract::Request;
use axum::http::{HeaderName, header};

/// Headers of a request that are no lists.
const SINGLE: [HeaderName; 12] = [
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
    HeaderName::from_static(TRACEPARENT),
];

/// What the names of further headers begin with that are no lists: those of the protocol for models, and our own.
const SINGLE_PREFIXES: [&str; 2] = ["mcp-", "treehold-"];

/// Returns whether a request may bring a header only once.
fn is_single(name: &HeaderName) -> bool {
    SINGLE.contains(name) || SINGLE_PREFIXES.iter().any(|prefix| name.as_str().starts_with(prefix))
}

/// Checks that a request says once what it can say only once, its host included, which its target may name too
/// ([RFC 9112, section 3.2](https://www.rfc-editor.org/rfc/rfc9112#section-3.2)). The fault is a message for the client.
pub(crate) fn check_single(request: &Request) -> Result<(), String> {
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
