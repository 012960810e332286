//! A route: the handler and description of one method of one path.

use super::Api;
use super::exchange::{Answer, Asked};
use super::objects::Objects;
use crate::caller::Caller;
use crate::problem::{self, Failed};
use crate::rights::Access;
use axum::Extension;
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{RawPathParams, Request, State};
use axum::http::Method;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter, on};
use futures::future::BoxFuture;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use std::sync::Arc;
use treehold_core::error::{Error, ErrorKind};
use treehold_core::wire::RequestFault;

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
    handler: Handler,
}

/// What answers a request.
pub(super) type Handler = Arc<dyn Fn(Asked) -> BoxFuture<'static, Answer> + Send + Sync>;

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
    let handler: Handler = Arc::new(move |asked| Box::pin(handle(asked)));
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
    /// Returns the handler, which also knows where the body must have objects.
    pub(super) fn handler(&self) -> Handler {
        let handler = self.handler.clone();
        let Content::Json(schema) = self.body else { return handler };
        let Some(objects) = Objects::of(schema).map(Arc::new) else { return handler };
        Arc::new(move |asked| handler(asked.with_objects(objects.clone())))
    }

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

/// Splits the path of a route into the pattern that the router matches and the action after it: `/v1/state/{user}/{session}:export` is the
/// action `export` of `/v1/state/{user}/{session}`.
pub(super) fn pattern(path: &str) -> (&str, Option<&str>) {
    match path.rsplit_once("}:") {
        Some((before, action)) => (&path[..before.len() + 1], Some(action)),
        None => (path, None),
    }
}

/// The handlers of one method of one pattern.
#[derive(Clone, Default)]
pub(super) struct Choice {
    /// The handler of the resource itself.
    pub(super) plain: Option<Handler>,
    /// Those of its actions.
    pub(super) actions: Vec<(&'static str, Handler)>,
    /// The actions of every method. A segment that ends with one of them names the action, whatever the method.
    pub(super) known: Vec<&'static str>,
}

impl Choice {
    /// Returns the handler for the last segment of a path, as it was sent, and the action that the segment names. The colon of an action is
    /// literal; in an id it is encoded.
    fn of(&self, raw_path: &str) -> Option<(&Handler, Option<&'static str>)> {
        let segment = raw_path.rsplit('/').next().unwrap_or_default();
        let named = segment.rsplit_once(':').and_then(|(_, last)| self.known.iter().find(|known| **known == last));
        match named {
            Some(named) => self.actions.iter().find(|(own, _)| own == named).map(|(own, handler)| (handler, Some(*own))),
            None => self.plain.as_ref().map(|handler| (handler, None)),
        }
    }

    /// Makes the method of a router.
    pub(super) fn on(self, method: &Method) -> MethodRouter<Arc<Api>> {
        let filter = MethodFilter::try_from(method.clone()).expect("routes use standard methods only");
        let choice = Arc::new(self);
        let handle = move |State(api): State<Arc<Api>>,
                           Extension(caller): Extension<Caller>,
                           params: Result<RawPathParams, RawPathParamsRejection>,
                           request: Request| {
            let choice = choice.clone();
            async move { choice.answer(api, caller, params, request).await }
        };
        on(filter, handle)
    }

    async fn answer(
        &self,
        api: Arc<Api>,
        caller: Caller,
        params: Result<RawPathParams, RawPathParamsRejection>,
        request: Request,
    ) -> Response {
        let Ok(params) = params else {
            return problem::response(&Error::new(ErrorKind::InvalidPath, "the path is not UTF-8, percent-encoded"));
        };
        let mut params: Vec<(String, String)> = params.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let Some((handler, action)) = self.of(request.uri().path()) else {
            let known: Vec<String> = self.actions.iter().map(|(action, _)| format!("`:{action}`")).collect();
            let message = match known.is_empty() {
                true => format!("`{}` is no action of this method here; `GET /openapi.json` lists the actions", request.method()),
                false => format!("`{}` needs an action here, one of {}", request.method(), known.join(", ")),
            };
            return Failed::of_request(RequestFault::NoSuchRoute, message).into_response();
        };
        if let (Some(action), Some((_, last))) = (action, params.last_mut()) {
            // What follows the last literal colon is not encoded, so it has the same length in both forms.
            last.truncate(last.len().saturating_sub(action.len() + 1));
        }
        match handler(Asked::new(api, caller, params, request)).await {
            Ok(response) => response,
            Err(failed) => failed.into_response(),
        }
        .into_response()
    }
}
