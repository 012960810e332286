//! The parts of requests and answers that every handler needs: queries, bodies, JSON.

use super::Api;
use super::problem::Failed;
use crate::error::{Error, ErrorKind, Result};
use crate::path::VfsPathBuf;
use crate::serve::caller::Caller;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use futures::StreamExt;
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;

/// How much of a body that is too large is taken before it is refused.
const LINGER_BYTES: usize = 32 << 20;

/// What a handler answers.
pub(super) type Answer = std::result::Result<Response, Failed>;

/// One request, with who it comes from.
pub(super) struct Asked {
    pub(super) api: Arc<Api>,
    pub(super) caller: Caller,
    /// What stands in the path for its parameters, decoded.
    pub(super) params: Vec<(String, String)>,
    pub(super) head: Parts,
    body: Mutex<Body>,
}

impl Asked {
    pub(super) fn new(api: Arc<Api>, caller: Caller, params: Vec<(String, String)>, request: Request) -> Self {
        let (head, body) = request.into_parts();
        Self { api, caller, params, head, body: Mutex::new(body) }
    }

    /// Returns a parameter of the path.
    pub(super) fn param(&self, name: &str) -> &str {
        self.params.iter().find(|(own, _)| own == name).map_or("", |(_, value)| value)
    }

    /// Returns the path of the tree that the request is about.
    pub(super) fn path(&self) -> Result<VfsPathBuf> {
        Ok(VfsPathBuf::parse(format!("/{}", self.param("path")))?)
    }

    /// Reads the query.
    pub(super) fn query<T: DeserializeOwned>(&self) -> Result<T> {
        serde_html_form::from_str(self.head.uri.query().unwrap_or_default())
            .map_err(|error| Error::invalid_argument(format!("the query cannot be used: {error}")).with_source(error))
    }

    /// Reads the body.
    pub(super) async fn body(&mut self) -> Result<Bytes> {
        let limit = self.api.limits.body_bytes_max;
        let announced = self.head.headers.get(header::CONTENT_LENGTH).and_then(|text| text.to_str().ok()?.parse::<usize>().ok());
        let too_large = || {
            let message = format!("the body is over {limit} bytes, the most that this server takes; send it in parts by appending");
            Error::new(ErrorKind::TooLarge, message).without_effect()
        };
        if announced.is_some_and(|bytes| bytes > limit) {
            // A client that still sends when it is answered loses the answer with the connection: what is a little too large is taken first.
            let mut rest = std::mem::replace(self.body.get_mut(), Body::empty()).into_data_stream();
            let mut taken = 0;
            while let Some(Ok(part)) = rest.next().await {
                taken += part.len();
                if taken > LINGER_BYTES {
                    break;
                }
            }
            return Err(too_large());
        }
        // What is not announced may be as large as the limit.
        let _held = self.api.hold(announced.unwrap_or(limit)).await?;
        let body = std::mem::replace(self.body.get_mut(), Body::empty());
        to_bytes(body, limit).await.map_err(|error| {
            let is_limit = std::error::Error::source(&error).is_some_and(|source| source.to_string().contains("length limit"));
            if is_limit {
                too_large()
            } else {
                Error::invalid_argument("the body ended before it was whole").without_effect().with_source(error)
            }
        })
    }

    /// Reads the body as JSON.
    pub(super) async fn json<T: DeserializeOwned>(&mut self) -> Result<T> {
        if let Some(given) = self.head.headers.get(header::CONTENT_TYPE) {
            let essence = given.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
            if essence != "application/json" && !essence.ends_with("+json") {
                return Err(Error::invalid_argument(format!("the body is `{essence}`; send `application/json`")));
            }
        }
        let body = self.body().await?;
        let body = if body.is_empty() { Bytes::from_static(b"{}") } else { body };
        serde_json::from_slice(&body)
            .map_err(|error| Error::invalid_argument(format!("the body cannot be used: {error}")).with_source(error))
    }

    /// Reads what is asked for: the query of a GET, else the body.
    pub(super) async fn words<T: DeserializeOwned>(&mut self) -> Result<T> {
        if self.head.method == axum::http::Method::GET || self.head.method == axum::http::Method::HEAD {
            self.query()
        } else {
            self.json().await
        }
    }
}

/// Answers with JSON.
pub(super) fn json<T: Serialize>(status: StatusCode, value: &T) -> Answer {
    let body = serde_json::to_vec(value)
        .map_err(|error| Error::new(ErrorKind::Internal, "the answer cannot be written as JSON").with_source(error))?;
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// Answers with nothing but a status.
pub(super) fn nothing(status: StatusCode) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}
