//! What every handler needs of requests and responses: queries, bodies, JSON.

use super::Api;
use super::body::Received;
use super::objects::Objects;
use crate::caller::Caller;
use crate::problem::Failed;
use axum::body::Body;
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use treehold_core::error::{Error, Result};
use treehold_core::path::{self, InvalidPath, VfsPathBuf};
use treehold_core::work;

/// The result of a handler.
pub(super) type Answer = std::result::Result<Response, Failed>;

/// A request with its caller.
pub(super) struct Asked {
    pub(super) api: Arc<Api>,
    pub(super) caller: Caller,
    /// The decoded path parameters.
    pub(super) params: Vec<(String, String)>,
    pub(super) head: Parts,
    body: Mutex<Body>,
    received: Option<Received>,
    /// Where objects are due in a JSON body.
    objects: Option<Arc<Objects>>,
}

impl Asked {
    pub(super) fn new(api: Arc<Api>, caller: Caller, params: Vec<(String, String)>, request: Request) -> Self {
        let (head, body) = request.into_parts();
        Self { api, caller, params, head, body: Mutex::new(body), received: None, objects: None }
    }

    /// Sets where objects are due in a JSON body.
    pub(super) fn with_objects(mut self, objects: Arc<Objects>) -> Self {
        self.objects = Some(objects);
        self
    }

    /// Returns a path parameter.
    pub(super) fn param(&self, name: &str) -> &str {
        self.params.iter().find(|(own, _)| own == name).map_or("", |(_, value)| value)
    }

    /// Returns the tree path that the request names.
    pub(super) fn path(&self) -> Result<VfsPathBuf> {
        Ok(VfsPathBuf::parse(format!("/{}", self.param("path")))?)
    }

    /// Parses the query.
    pub(super) fn query<T: DeserializeOwned>(&self) -> Result<T> {
        let query = self.head.uri.query().unwrap_or_default();
        path::reading(|| serde_html_form::from_str(query)).map_err(|(error, invalid)| unusable("query", error, invalid))
    }

    /// Receives the whole body. Its memory stays reserved until the request ends.
    pub(super) async fn body(&mut self) -> Result<Bytes> {
        let received = match self.head.extensions.remove::<Received>() {
            Some(received) => received,
            None => {
                let body = std::mem::replace(self.body.get_mut(), Body::empty());
                self.api.receive(&self.head, body, |_| {}).await?
            }
        };
        Ok(self.received.insert(received).bytes.clone())
    }

    /// Parses the body as JSON. An empty body is an empty object. An array where the description of the route has an object is refused.
    pub(super) async fn json<T: DeserializeOwned + Send + 'static>(&mut self) -> Result<T> {
        self.parsed(Bytes::from_static(b"{}")).await
    }

    /// Parses the body as JSON, which must not be empty.
    pub(super) async fn json_value<T: DeserializeOwned + Send + 'static>(&mut self) -> Result<T> {
        self.parsed(Bytes::new()).await
    }

    async fn parsed<T: DeserializeOwned + Send + 'static>(&mut self, instead_of_empty: Bytes) -> Result<T> {
        if let Some(given) = self.head.headers.get(header::CONTENT_TYPE) {
            let essence = given.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
            if essence != "application/json" && !essence.ends_with("+json") {
                return Err(Error::invalid_argument(format!("the body is `{essence}`; send `application/json`")));
            }
        }
        let body = self.body().await?;
        let body = if body.is_empty() { instead_of_empty } else { body };
        let objects = self.objects.clone();
        // A body of small elements costs many times more work to parse than its size suggests.
        let read = work::run(body.len() as u64, move |_| {
            work::check_json_values(&body)?;
            if let Some(objects) = objects {
                objects.check(&body)?;
            }
            Ok::<_, Error>(path::reading(|| serde_json::from_slice(&body)))
        });
        read.await??.map_err(|(error, invalid)| unusable("body", error, invalid))
    }

    /// Parses the arguments: the query of a GET or HEAD, otherwise the body.
    pub(super) async fn words<T: DeserializeOwned + Send + 'static>(&mut self) -> Result<T> {
        if self.head.method == axum::http::Method::GET || self.head.method == axum::http::Method::HEAD {
            self.query()
        } else {
            self.json().await
        }
    }
}

/// Returns the error for a query or body that cannot be parsed. For an invalid path it is the same as for a path in the URL.
fn unusable(what: &str, error: impl std::error::Error + Send + Sync + 'static, invalid: Option<InvalidPath>) -> Error {
    match invalid {
        Some(invalid) => Error::from(invalid).without_effect(),
        None => Error::invalid_argument(format!("the {what} cannot be used: {error}")).with_source(error),
    }
}

/// Responds with JSON. A long answer is written on a blocking thread, as the runtime's threads serve every caller.
pub(super) async fn json<T: Serialize + Send + 'static>(status: StatusCode, value: T) -> Answer {
    let body = work::to_json(value).await?;
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// Responds with a status and no body.
pub(super) fn nothing(status: StatusCode) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}
