//! Who a request comes from: its token, and the thread that it is about by its path or by a header.

use super::Token;
use crate::mcp::McpCaller;
use crate::scope::Scope;
use axum::extract::{RawPathParams, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;

/// The header that names the thread of a request.
pub const THREAD_HEADER: &str = "stratafs-thread";

/// What is asked of requests.
#[derive(Debug)]
pub(super) struct Doorkeeper {
    scope: Scope,
    token: Option<Token>,
}

impl Doorkeeper {
    pub(super) fn new(scope: Scope, token: Option<Token>) -> Self {
        Self { scope, token }
    }

    fn admits(&self, headers: &HeaderMap) -> bool {
        let Some(token) = &self.token else { return true };
        let given = headers.get(header::AUTHORIZATION).and_then(|value| {
            let (scheme, token) = value.as_bytes().split_at_checked("Bearer ".len())?;
            scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token)
        });
        given.is_some_and(|given| token.is(given))
    }

    /// Returns who calls; a thread that the path or a header names is the only one of the request.
    fn caller(&self, in_path: Option<&str>, headers: &HeaderMap) -> Result<McpCaller, &'static str> {
        let in_header = match headers.get(THREAD_HEADER) {
            Some(value) => Some(value.to_str().map_err(|_| "the thread in the header is not visible ASCII")?),
            None => None,
        };
        let thread = match (in_path, in_header) {
            (Some(path), Some(header)) if path != header => return Err("path and header name two threads"),
            (path, header) => path.or(header),
        };
        let Some(thread) = thread else { return Ok(McpCaller::new(self.scope.clone())) };
        let scope = self.scope.clone().with_thread(thread);
        scope.validate().map_err(|_| "the thread's name is not legal")?;
        Ok(McpCaller::new(scope).with_thread_fixed())
    }
}

/// Lets a request in, and notes who it comes from.
pub(super) async fn admit(State(doorkeeper): State<Arc<Doorkeeper>>, params: RawPathParams, mut request: Request, next: Next) -> Response {
    if !doorkeeper.admits(request.headers()) {
        let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
        return (StatusCode::UNAUTHORIZED, challenge, "this server asks for a token\n").into_response();
    }
    let in_path = params.iter().find_map(|(name, value)| (name == "thread").then_some(value));
    match doorkeeper.caller(in_path, request.headers()) {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(message) => (StatusCode::BAD_REQUEST, format!("{message}\n")).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(header::HeaderName::from_static(name), header::HeaderValue::from_static(value))])
    }

    #[test]
    fn a_token_is_asked_for_where_there_is_one() {
        let open = Doorkeeper::new(Scope::new(), None);
        assert!(open.admits(&HeaderMap::new()));
        let closed = Doorkeeper::new(Scope::new(), Token::new("0123456789abcdef").ok());
        for (value, admitted) in [
            ("Bearer 0123456789abcdef", true),
            ("bearer 0123456789abcdef", true),
            ("Bearer 0123456789abcdeX", false),
            ("Basic 0123456789abcdef", false),
            ("0123456789abcdef", false),
            ("", false),
        ] {
            assert_eq!(closed.admits(&headers("authorization", value)), admitted, "{value}");
        }
        assert!(!closed.admits(&HeaderMap::new()));
    }

    #[test]
    fn path_and_header_name_the_only_thread() {
        let doorkeeper = Doorkeeper::new(Scope::new().with_user("ada").with_thread("own"), None);
        let any = doorkeeper.caller(None, &HeaderMap::new()).expect("no thread");
        assert_eq!((any.scope.thread.as_deref(), any.thread_fixed), (Some("own"), false));
        for caller in [
            doorkeeper.caller(Some("t"), &HeaderMap::new()),
            doorkeeper.caller(None, &headers(THREAD_HEADER, "t")),
            doorkeeper.caller(Some("t"), &headers(THREAD_HEADER, "t")),
        ] {
            let caller = caller.expect("a thread");
            assert_eq!((caller.scope.thread.as_deref(), caller.thread_fixed), (Some("t"), true));
            assert_eq!(caller.scope.user.as_deref(), Some("ada"));
        }
        assert!(doorkeeper.caller(Some("t"), &headers(THREAD_HEADER, "u")).is_err());
        assert!(doorkeeper.caller(Some("a\nb"), &HeaderMap::new()).is_err());
        assert!(doorkeeper.caller(None, &headers(THREAD_HEADER, "")).is_err());
    }
}
