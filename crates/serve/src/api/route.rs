//! A route: the handler and description of one method of one path.

use super::Api;
use super::exchange::{Answer, Asked};
use crate::caller::Caller;
use crate::problem;
use crate::rights::Access;
use axum::Extension;
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{RawPathParams, Request, State};
use axum::http::Method;
use axum::response::IntoResponse;
use axum::routing::{MethodFilter, MethodRouter, on};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use std::sync::Arc;
use treehold_core::error::Error;

/// Generates a schema.
pub(super) type Schemas = fn(&mut SchemaGenerator) -> Schema;

/// The content of a request or response body.
#[derive(Clone, Copy)]
pub(super) enum Content {
    /// No body.
    None,
    /// The bytes of a file.
    Bytes,
    /// UTF-8 text.
    Text,
    /// JSON.
    Json(Schemas),
    /// Server-sent events; the schema is that of the data of change events.
    Events(Schemas),
}

/// One method of one path.
pub(super) struct Route {
    pub(super) method: Method,
    pub(super) path: &'static str,
    /// The operation id, which names the method in generated clients.
    pub(super) id: &'static str,
    pub(super) summary: &'static str,
    pub(super) query: Option<Schemas>,
    pub(super) body: Content,
    pub(super) status: u16,
    pub(super) reply: Content,
    /// The minimum access that its changes need, or `None` if it only reads.
    pub(super) changes: Option<Access>,
    /// Whether its body may be as large as a file.
    pub(super) uploads: bool,
    /// Whether its handler processes idempotency keys itself.
    pub(super) keyed: bool,
    /// Whether its answer may be large, so that it waits for a slot before it is computed.
    pub(super) large: bool,
    /// Whether its change depends on `If-Match`.
    pub(super) if_match: bool,
    /// Whether its change depends on `If-None-Match: *`.
    pub(super) if_none_match: bool,
    pub(super) handler: MethodRouter<Arc<Api>>,
}

fn schema<T: JsonSchema>() -> Schemas {
    |generator| generator.subschema_for::<T>()
}

/// The schema with its properties inline, for queries.
fn fields<T: JsonSchema>() -> Schemas {
    |generator| T::json_schema(generator)
}

/// Makes a route.
pub(super) fn route<F, Fut>(method: Method, path: &'static str, id: &'static str, summary: &'static str, handle: F) -> Route
where
    F: Fn(Asked) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Answer> + Send + 'static,
{
    let filter = MethodFilter::try_from(method.clone()).expect("routes use standard methods only");
    let handler = on(
        filter,
        move |State(api): State<Arc<Api>>,
              Extension(caller): Extension<Caller>,
              params: Result<RawPathParams, RawPathParamsRejection>,
              request: Request| {
            let handle = handle.clone();
            async move {
                let Ok(params) = params else {
                    return problem::response(&Error::new(
                        treehold_core::error::ErrorKind::InvalidPath,
                        "the path is not UTF-8, percent-encoded",
                    ));
                };
                let params = params.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
                match handle(Asked::new(api, caller, params, request)).await {
                    Ok(response) => response,
                    Err(failed) => failed.into_response(),
                }
                .into_response()
            }
        },
    );
    Route {
        method,
        path,
        id,
        summary,
        query: None,
        body: Content::None,
        status: 200,
        reply: Content::None,
        changes: None,
        uploads: false,
        keyed: false,
        large: false,
        if_match: false,
        if_none_match: false,
        handler,
    }
}

impl Route {
    pub(super) fn query<T: JsonSchema>(mut self) -> Self {
        self.query = Some(fields::<T>());
        self
    }

    pub(super) fn takes<T: JsonSchema>(mut self) -> Self {
        self.body = Content::Json(schema::<T>());
        self
    }

    pub(super) fn takes_bytes(mut self) -> Self {
        self.body = Content::Bytes;
        self.uploads()
    }

    pub(super) fn takes_text(mut self) -> Self {
        self.body = Content::Text;
        self.uploads()
    }

    pub(super) fn gives_text(mut self) -> Self {
        self.reply = Content::Text;
        self
    }

    /// Marks a route whose body may be as large as a file.
    pub(super) fn uploads(mut self) -> Self {
        self.uploads = true;
        self
    }

    /// Marks a route whose handler processes idempotency keys itself.
    pub(super) fn keyed(mut self) -> Self {
        self.keyed = true;
        self
    }

    /// Marks a route whose answer may have megabytes.
    pub(super) fn large(mut self) -> Self {
        self.large = true;
        self
    }

    /// Marks a change that checks `If-Match`. A change without this mark refuses the header.
    pub(super) fn if_match(mut self) -> Self {
        self.if_match = true;
        self
    }

    /// Marks a change that checks `If-None-Match: *`. A change without this mark refuses the header.
    pub(super) fn if_none_match(mut self) -> Self {
        self.if_none_match = true;
        self
    }

    pub(super) fn gives<T: JsonSchema>(mut self) -> Self {
        self.reply = Content::Json(schema::<T>());
        self
    }

    pub(super) fn gives_events<T: JsonSchema>(mut self) -> Self {
        self.reply = Content::Events(schema::<T>());
        self
    }

    pub(super) fn gives_bytes(mut self) -> Self {
        self.reply = Content::Bytes;
        self
    }

    /// Marks a route that makes changes: idempotency keys apply, and callers with less access are refused up front.
    pub(super) fn changes(mut self, access: Access) -> Self {
        self.changes = Some(access);
        self
    }

    pub(super) fn with_status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }
}
