//! Requests that are sent again: with the header `Idempotency-Key` a change is made once, and asked again it is answered as it was.
//!
//! The first request with a key leaves a mark in the store, and its answer in place of the mark when it ends, for a day. It runs to its end
//! though its client goes away. A replica that dies in between leaves the mark, for [`RUNNING_FOR`]: nobody knows then what was done.
//! Another request with its key is told 409 `request_running` until then, and one that asks something else 422 `key_reused`.
//! (After [the draft of the IETF](https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/).)

use super::Api;
use super::problem::{self, Failed, MayHaveEffect};
use crate::error::{Error, ErrorKind, Result};
use crate::scope::Scope;
use crate::serve::caller::Caller;
use crate::store::{Batch, Condition, Namespace};
use crate::trace;
use crate::wire::RequestFault;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// The first component of the namespaces of answers, which no route has.
pub(crate) const ANSWERS_NAMESPACE: &str = crate::store::reserved::ANSWERS;

/// How long an answer is kept.
const KEPT_FOR: Duration = Duration::from_secs(24 * 60 * 60);

/// How long the mark of a request that runs is kept.
const RUNNING_FOR: Duration = Duration::from_secs(5 * 60);

/// The largest answer that is kept.
const ANSWER_BYTES_MAX: usize = 256 << 10;

/// What is kept of a request.
#[derive(Serialize, Deserialize)]
struct Kept {
    /// The hash of what was asked.
    asked: String,
    /// The answer; none while it runs.
    answer: Option<KeptAnswer>,
}

#[derive(Serialize, Deserialize)]
struct KeptAnswer {
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
}

/// Answers a request that has a key, once.
pub(super) async fn once(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    let key = request.headers().get("idempotency-key").map(|key| key.to_str().map(str::to_owned));
    let changes = !matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    let caller = request.extensions().get::<Caller>().map(|caller| caller.scope.clone());
    match (key, caller) {
        (Some(Ok(key)), Some(scope)) if changes => match keyed(&api, scope, key, request, next).await {
            Ok(response) => response,
            Err(failed) => failed.into_response(),
        },
        (Some(Err(_)), _) => problem::response(&Error::invalid_argument("the header `Idempotency-Key` is not visible ASCII")),
        _ => next.run(request).await,
    }
}

async fn keyed(api: &Arc<Api>, scope: Scope, key: String, request: Request, next: Next) -> Result<Response, Failed> {
    if key.is_empty() || key.len() > 255 {
        return Err(Error::invalid_argument("an idempotency key has 1 to 255 bytes; a UUID is a good one").without_effect().into());
    }
    let owner = [ANSWERS_NAMESPACE, scope.tenant.as_deref().unwrap_or("-"), scope.user.as_deref().unwrap_or("-")];
    let namespace = Namespace::new(owner)?;
    let (mut parts, body) = request.into_parts();
    let mut hasher = blake3::Hasher::new();
    hasher.update(format!("{} {}\n{}\n", parts.method, parts.uri, scope.thread.as_deref().unwrap_or_default()).as_bytes());
    let received = api.receive(&parts, body, |part| _ = hasher.update(part)).await?;
    // The handler finds it whole, with the room that it takes.
    parts.extensions.insert(received);
    let asked = hasher.finalize().to_hex().to_string();
    let mark = encoded(&Kept { asked: asked.clone(), answer: None })?;
    let begun = Batch::new().expect(&namespace, &*key, Condition::Absent).put_for(&namespace, &*key, mark, RUNNING_FOR);
    match api.store.commit(begun).await {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::Conflict => return again(api, &namespace, &key, &asked).await,
        Err(error) => return Err(error.without_effect().into()),
    }
    // To its end, though the client goes away: it may ask again.
    let api = api.clone();
    let run = tokio::spawn(trace::carried(async move {
        let response = next.run(Request::from_parts(parts, Body::empty())).await;
        settle(&api, &namespace, &key, asked, response).await
    }));
    Ok(run.await.map_err(|error| Error::new(ErrorKind::Internal, "the request was stopped").with_unknown_effect().with_source(error))?)
}

/// Answers as the first request with the key was answered.
async fn again(api: &Api, namespace: &Namespace, key: &str, asked: &str) -> Result<Response, Failed> {
    let runs = |message: &str| Err(Failed::of_request(RequestFault::RequestRunning, message));
    let Some(row) = api.store.get(namespace, key).await? else {
        return runs("the request with this key ended just now; send it again");
    };
    let kept: Kept = serde_json::from_slice(&row.value)
        .map_err(|error| Error::new(ErrorKind::Corrupt, "what is kept of this key cannot be read; take another").with_source(error))?;
    if kept.asked != asked {
        return Err(Failed::of_request(RequestFault::KeyReused, "this idempotency key was used for another request; take a new one"));
    }
    let Some(answer) = kept.answer else {
        return runs("the first request with this key still runs; ask again for its answer");
    };
    let body = BASE64.decode(answer.body).unwrap_or_default();
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::OK);
    for (name, value) in answer.headers {
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), value.parse::<HeaderValue>()) {
            response.headers_mut().insert(name, value);
        }
    }
    response.headers_mut().insert("idempotency-replayed", HeaderValue::from_static("true"));
    Ok(response)
}

/// Keeps an answer; what failed without an effect may be tried again under the same key.
async fn settle(api: &Api, namespace: &Namespace, key: &str, asked: String, response: Response) -> Response {
    let (parts, body) = response.into_parts();
    let may_have_effect = parts.extensions.get::<MayHaveEffect>().is_some_and(|effect| effect.0);
    let Ok(body) = to_bytes(body, usize::MAX).await else {
        return problem::response(&Error::new(ErrorKind::Internal, "the answer broke off").with_unknown_effect());
    };
    let batch = if parts.status.is_server_error() && !may_have_effect || body.len() > ANSWER_BYTES_MAX {
        Batch::new().delete(namespace, key)
    } else {
        let headers = parts.headers.iter().filter_map(|(name, value)| Some((name.to_string(), value.to_str().ok()?.to_owned())));
        let answer = KeptAnswer { status: parts.status.as_u16(), headers: headers.collect(), body: BASE64.encode(&body) };
        match encoded(&Kept { asked, answer: Some(answer) }) {
            Ok(value) => Batch::new().put_for(namespace, key, value, KEPT_FOR),
            Err(_) => Batch::new().delete(namespace, key),
        }
    };
    if let Err(error) = api.store.commit(batch).await {
        tracing::warn!(%error, "the answer of a request with a key was not kept; asked again it is told that it still runs");
    }
    Response::from_parts(parts, Body::from(body))
}

fn encoded(kept: &Kept) -> Result<Vec<u8>> {
    serde_json::to_vec(kept).map_err(|error| Error::new(ErrorKind::Internal, "an answer cannot be kept").with_source(error))
}
