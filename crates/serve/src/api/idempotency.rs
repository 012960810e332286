//! Idempotency keys: a change with the header `Idempotency-Key` is made once, and a retry receives the first response.
//!
//! The first request with a key stores a mark, which the response replaces when the request ends. Mark and response are kept for a day,
//! or as [`ServeOptions::idempotency_time`](crate::ServeOptions::idempotency_time) says; during that time the key admits nothing else. Of a response too large to store, only its status, headers and size are
//! kept. The request runs to its end even if the client disconnects, and its mark is renewed while it runs. If renewals stop, the server
//! has died and the effect of the request is unknown.
//!
//! A key is specific to the token that sent it and the rights of that token. A request that may not make changes is refused before it
//! leaves a mark. A request that only reads leaves none. One that was refused without effect removes its mark. The keys of one user are
//! bounded by [`KEYS_MAX`] and [`KEYS_BYTES_MAX`].
//!
//! This follows [the IETF draft](https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/).

use super::{Api, routes};
use crate::caller::Caller;
use crate::problem::{self, Failed, MayHaveEffect, tell_key};
use axum::body::{Body, to_bytes};
use axum::extract::{MatchedPath, Request};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use jiff::Timestamp;
use parking_lot::Mutex;
use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use treehold_agent::tools::{ToolRegistry, ToolSet};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::scope::Scope;
use treehold_core::trace;
use treehold_core::wire::{CLAIM_HEADER, KeyRecord, KeyState, RequestFault, TENANT_HEADER, USER_HEADER};
use treehold_core::work;
use treehold_store::{Batch, Condition, Item, Namespace, ScanEntry, ScanOptions};
use uuid::Uuid;

/// The namespace that response namespaces lie beneath.
pub(crate) const ANSWERS_NAMESPACE: [&str; 2] = treehold_core::reserved::ANSWERS;

/// How often the mark of a running request is renewed, and how long after a renewal its server counts as alive.
const RENEWED_EVERY: Duration = Duration::from_secs(15);
const ALIVE_FOR: Duration = Duration::from_secs(60);

/// The largest response that is stored in full.
const ANSWER_BYTES_MAX: usize = 256 << 10;

/// The most keys of one tenant and user, and the most bytes of their responses.
const KEYS_MAX: u64 = 10_000;
const KEYS_BYTES_MAX: u64 = 64 << 20;

/// How long the count of a user's keys is cached, if there is room and if there is none. What this server adds meanwhile is included.
const COUNTED_FOR: Duration = Duration::from_secs(60);
const FULL_FOR: Duration = Duration::from_secs(5);

/// How many users' counts are cached.
const COUNTS_MAX: usize = 10_000;

/// How many keys one scan returns.
const PAGE: usize = 1_000;

/// The message for a key whose first request is still running.
const STILL_RUNS: &str = "the first request with this key is still running; send this request again for its answer";

/// The header of a response that answers a retry.
pub(super) const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// The state that a server keeps about keys in memory.
#[derive(Debug)]
pub(super) struct Keys {
    /// An id that distinguishes the marks of this server process from all others.
    server: String,
    /// The requests that run on this server.
    running: Mutex<HashSet<MarkKey>>,
    /// What the keys of each user use.
    counts: Mutex<HashMap<Namespace, Count>>,
}

impl Keys {
    pub(super) fn new() -> Self {
        Self { server: Uuid::new_v4().to_string(), running: Mutex::default(), counts: Mutex::default() }
    }
}

/// The namespace and key of a mark.
type MarkKey = (Namespace, String);

/// The number and size of a user's keys.
#[derive(Debug, Clone, Copy)]
struct Count {
    keys: u64,
    bytes: u64,
    at: Instant,
}

/// The stored record of a request.
#[derive(Serialize, Deserialize)]
struct Kept {
    /// The hash of the request's content.
    asked: String,
    /// The id of the request that left the mark.
    #[serde(default)]
    request: String,
    /// The server that runs it.
    #[serde(default)]
    server: String,
    /// Until when the server counts as alive.
    #[serde(default)]
    alive_until: Timestamp,
    /// The response, or `None` while the request runs.
    answer: Option<KeptAnswer>,
}

#[derive(Serialize, Deserialize)]
struct KeptAnswer {
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
}

/// A request with a key, and where its mark is stored.
struct Keyed {
    api: Arc<Api>,
    place: MarkKey,
    asked: String,
    /// An id that distinguishes this request from others with the same key, on any server.
    request: String,
}

/// A request that runs on this server, until this is dropped.
struct Running(Arc<Keyed>);

impl Running {
    /// Starts a request, unless one with its key already runs on this server.
    fn begin(keyed: &Arc<Keyed>) -> Option<Self> {
        let is_first = keyed.api.keys.running.lock().insert(keyed.place.clone());
        is_first.then(|| Self(keyed.clone()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.api.keys.running.lock().remove(&self.0.place);
    }
}

/// Handles a request with a key once.
pub(super) async fn once(api: &Arc<Api>, request: Request, next: Next) -> Response {
    let Some(given) = request.headers().get("idempotency-key") else { return next.run(request).await };
    let Some(caller) = request.extensions().get::<Caller>().cloned() else { return next.run(request).await };
    // Unknown routes and reads are handled as if there were no key.
    let Some(needed) = needed(&request, caller.door.threads().workspace().tools()) else { return next.run(request).await };
    let key = match given.to_str() {
        Ok(key) if (1..=255).contains(&key.len()) => key.to_owned(),
        _ => {
            let message = "an idempotency key must be 1 to 255 bytes of visible ASCII; use a UUID";
            return problem::response(&Error::invalid_argument(message).without_effect());
        }
    };
    if let Err(refused) = caller.rights.need(needed) {
        return problem::response(&refused.without_effect());
    }
    let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str).unwrap_or_default();
    if routes::is_keyed(request.method(), route) {
        return next.run(request).await;
    }
    match keyed(api.clone(), &caller, &key, request, next).await {
        Ok(response) => response,
        Err(failed) => failed.into_response(),
    }
}

/// Returns the access that the changes of a request need, or `None` if it changes nothing.
fn needed(request: &Request, tools: &ToolRegistry) -> Option<crate::rights::Access> {
    let path = request.extensions().get::<MatchedPath>()?;
    let needed = routes::changes(request.method(), path.as_str())?;
    if path.as_str().ends_with("/tools/{name}") {
        let name = request.uri().path().rsplit('/').next().unwrap_or_default();
        let name = percent_decode_str(name).decode_utf8_lossy();
        let writes = |set: ToolSet| tools.infos(set).any(|tool| tool.name == name && !tool.read_only);
        return ToolSet::ALL.into_iter().any(writes).then_some(needed);
    }
    Some(needed)
}

/// Returns where the mark of a caller's key is stored. The same key from another token, or after the token's rights changed, is a different
/// key.
fn place(caller: &Caller, key: &str) -> Result<MarkKey> {
    let Scope { tenant, user, .. } = &caller.scope;
    let namespace = {
        let owner = [tenant.as_deref().unwrap_or("-"), user.as_deref().unwrap_or("-")];
        Namespace::new(ANSWERS_NAMESPACE.into_iter().chain(owner))?
    };
    let mut hasher = blake3::Hasher::new();
    let rights = serde_json::to_vec(&caller.rights).unwrap_or_default();
    let credential = caller.credential.as_deref().unwrap_or_default();
    for part in [credential.as_bytes(), &rights, key.as_bytes()] {
        hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
    }
    Ok((namespace, hasher.finalize().to_hex().to_string()))
}

async fn keyed(api: Arc<Api>, caller: &Caller, key: &str, request: Request, next: Next) -> Result<Response, Failed> {
    let place = place(caller, key)?;
    let (mut parts, body) = request.into_parts();
    let mut hasher = blake3::Hasher::new();
    let thread = caller.scope.thread.as_deref().unwrap_or_default();
    hasher.update(format!("{} {}\n{thread}\n", parts.method, parts.uri).as_bytes());
    // These headers also determine what is done, or on which condition.
    let owner = [TENANT_HEADER, USER_HEADER, CLAIM_HEADER].map(HeaderName::from_static);
    for name in [header::IF_MATCH, header::IF_NONE_MATCH, header::CONTENT_TYPE].into_iter().chain(owner) {
        for value in parts.headers.get_all(&name) {
            hasher.update(name.as_str().as_bytes()).update(b": ").update(value.as_bytes()).update(b"\n");
        }
    }
    let received = api.receive(&parts, body, |part| _ = hasher.update(part)).await?;
    // The handler finds the received body, with its reserved memory.
    parts.extensions.insert(received);
    let request = Uuid::new_v4().to_string();
    let keyed = Arc::new(Keyed { api, place, asked: hasher.finalize().to_hex().to_string(), request });
    if let Err(full) = keyed.make_room().await {
        // An existing response is still replayed.
        return match keyed.row().await? {
            Some(row) => keyed.again(&row),
            None => Err(full.into()),
        };
    }
    let Some(running) = Running::begin(&keyed) else {
        return match keyed.row().await? {
            Some(row) => keyed.again(&row),
            None => Err(Failed::of_request(RequestFault::RequestRunning, STILL_RUNS)),
        };
    };
    // Mark it and run it to the end even if the client disconnects, since it may retry.
    let places = parts.extensions.get::<super::Places>().cloned();
    let run = tokio::spawn(work::carried(trace::carried(async move {
        let answer = keyed.begin(running, parts, next).await;
        drop(places);
        answer
    })));
    run.await.map_err(|error| Error::new(ErrorKind::Internal, "the request was interrupted").with_unknown_effect().with_source(error))?
}

impl Keyed {
    /// Stores the mark and runs the request, unless another request has the key.
    async fn begin(&self, running: Running, parts: Parts, next: Next) -> Result<Response, Failed> {
        match self.put(Some(Condition::Absent), None).await {
            Ok(()) => {
                if let Some(count) = self.api.keys.counts.lock().get_mut(&self.place.0) {
                    count.keys += 1;
                }
            }
            Err(error) if error.kind() == ErrorKind::Conflict => {
                drop(running);
                return match self.row().await? {
                    Some(row) => self.again(&row),
                    None => {
                        Err(Failed::of_request(RequestFault::RequestRunning, "the request with this key has just ended; send it again"))
                    }
                };
            }
            Err(error) => {
                // The commit may have left the mark, although nothing was done. If the mark cannot be removed, a retry is answered that
                // the effect is unknown.
                if error.may_have_effect()
                    && let Err(error) = self.take_back().await
                {
                    tracing::warn!(%error, "the mark of a request that never started may have been left behind");
                }
                return Err(error.without_effect().into());
            }
        }
        let response = self.run(parts, next).await;
        drop(running);
        Ok(response)
    }

    async fn row(&self) -> Result<Option<Item>> {
        let (namespace, key) = &self.place;
        self.api.store.get(namespace, key).await.map_err(Error::without_effect)
    }

    /// Stores the mark, or replaces it with the response.
    async fn put(&self, condition: Option<Condition>, answer: Option<KeptAnswer>) -> Result<()> {
        let (namespace, key) = &self.place;
        let alive_until = Timestamp::now().checked_add(ALIVE_FOR).unwrap_or(Timestamp::MAX);
        let (asked, request, server) = (self.asked.clone(), self.request.clone(), self.api.keys.server.clone());
        let kept = Kept { asked, request, server, alive_until, answer };
        let value = serde_json::to_vec(&kept);
        let value = value.map_err(|error| Error::new(ErrorKind::Internal, "an answer cannot be kept").with_source(error))?;
        let batch = match condition {
            Some(condition) => Batch::new().expect(namespace, key, condition),
            None => Batch::new(),
        };
        // The size is stored as metadata, so counting does not read bodies.
        let size = value.len();
        self.api.store.commit(batch.put_item(namespace, key, size.to_string(), value, Some(self.api.limits.idempotency_time))).await?;
        if let Some(count) = self.api.keys.counts.lock().get_mut(namespace) {
            count.bytes += size as u64;
        }
        Ok(())
    }

    /// Runs the request and renews its mark meanwhile.
    async fn run(&self, parts: Parts, next: Next) -> Response {
        let mut handled = std::pin::pin!(next.run(Request::from_parts(parts, Body::empty())));
        let response = loop {
            match tokio::time::timeout(RENEWED_EVERY, handled.as_mut()).await {
                Ok(response) => break response,
                Err(_) => {
                    // The request continues during the renewal. The renewal must end before the response replaces the mark.
                    let mut renewal = std::pin::pin!(self.put(None, None));
                    let (renewed, response) = tokio::select! {
                        renewed = renewal.as_mut() => (renewed, None),
                        response = handled.as_mut() => (renewal.await, Some(response)),
                    };
                    if let Err(error) = renewed {
                        tracing::warn!(%error, "the mark of a request with a key was not renewed");
                    }
                    if let Some(response) = response {
                        break response;
                    }
                }
            }
        };
        self.settle(response).await
    }

    /// Stores the response. A request refused without effect may be retried with the same key, so its mark is removed.
    async fn settle(&self, response: Response) -> Response {
        let (mut parts, body) = response.into_parts();
        let may_have_effect = parts.extensions.get::<MayHaveEffect>().is_some_and(|effect| effect.0);
        let Ok(body) = to_bytes(body, usize::MAX).await else {
            return problem::response(&Error::new(ErrorKind::Internal, "the answer was interrupted").with_unknown_effect());
        };
        // A failed condition is an outcome to keep: the same request must not succeed later. One that asks to try again is none.
        let is_conflict = matches!(parts.status, StatusCode::CONFLICT | StatusCode::PRECONDITION_FAILED);
        let is_decided = is_conflict && !parts.headers.contains_key(header::RETRY_AFTER);
        let is_kept = !(parts.status.is_client_error() || parts.status.is_server_error()) || may_have_effect || is_decided;
        let mut settled = Ok(());
        for pause_ms in [0, 50, 500] {
            if pause_ms > 0 {
                tokio::time::sleep(Duration::from_millis(pause_ms)).await;
            }
            settled = match is_kept {
                true => self.put(None, Some(kept_answer(&parts, &body))).await,
                false => self.take_back().await,
            };
            if settled.is_ok() {
                break;
            }
        }
        match settled {
            Ok(()) if is_kept => tell_key(&mut parts.headers, KeyRecord::new(KeyState::Done, self.api.limits.idempotency_time.as_secs())),
            Ok(()) => {}
            Err(error) => {
                tracing::warn!(%error, "the answer of a request with a key was not saved; a repetition will report an unknown outcome")
            }
        }
        Response::from_parts(parts, Body::from(body))
    }

    /// Removes the mark if this request left it. If that is unknown, the row may be the mark or the response of another request.
    async fn take_back(&self) -> Result<()> {
        let (namespace, key) = &self.place;
        let Some(row) = self.row().await? else { return Ok(()) };
        let is_own = |kept: Kept| kept.request == self.request;
        if !serde_json::from_slice(&row.value).is_ok_and(is_own) {
            return Ok(());
        }
        let batch = Batch::new().expect(namespace, key, Condition::Version(row.version)).delete(namespace, key);
        match self.api.store.commit(batch).await {
            Err(error) if error.kind() == ErrorKind::Conflict => return Ok(()),
            removed => removed?,
        };
        if let Some(count) = self.api.keys.counts.lock().get_mut(namespace) {
            count.keys = count.keys.saturating_sub(1);
        }
        Ok(())
    }

    /// Replays the response to the first request with the key.
    fn again(&self, row: &Item) -> Result<Response, Failed> {
        let kept: Kept = serde_json::from_slice(&row.value).map_err(|error| {
            Error::new(
                ErrorKind::Corrupt,
                "the record of this idempotency key cannot be read; use another \
                key",
            )
            .with_source(error)
        })?;
        if kept.asked != self.asked {
            let message = "this idempotency key was used for another request; use a new one";
            return Err(Failed::of_request(RequestFault::KeyReused, message));
        }
        let Some(answer) = kept.answer else {
            let is_own = kept.server == self.api.keys.server;
            let runs = if is_own { self.api.keys.running.lock().contains(&self.place) } else { Timestamp::now() < kept.alive_until };
            if runs {
                let failed = Failed::of_request(RequestFault::RequestRunning, STILL_RUNS);
                return Err(failed.with_key(record_of(KeyState::Running, row)));
            }
            let message = "the server ended before it saved the answer of the first request with this key, so the outcome is unknown; \
                check what was done, and use a new key for what is missing";
            return Err(Failed::of_request(RequestFault::OutcomeUnknown, message).with_key(record_of(KeyState::Unknown, row)));
        };
        let body = BASE64.decode(answer.body).unwrap_or_default();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::OK);
        for (name, value) in answer.headers {
            if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), value.parse::<HeaderValue>()) {
                response.headers_mut().insert(name, value);
            }
        }
        response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
        tell_key(response.headers_mut(), record_of(KeyState::Done, row));
        Ok(response)
    }

    /// Checks that the user may have another key.
    async fn make_room(&self) -> Result<()> {
        let (namespace, _) = &self.place;
        let known = self.api.keys.counts.lock().get(namespace).copied();
        let is_full = |count: &Count| count.keys >= KEYS_MAX || count.bytes >= KEYS_BYTES_MAX;
        // At the limit, do not recount for every request.
        let holds_for = |count: &Count| if is_full(count) { FULL_FOR } else { COUNTED_FOR };
        let count = match known.filter(|count| count.at.elapsed() < holds_for(count)) {
            Some(count) => count,
            None => self.count().await.map_err(Error::without_effect)?,
        };
        let full = is_full(&count);
        let mut counts = self.api.keys.counts.lock();
        if counts.len() >= COUNTS_MAX {
            counts.clear();
        }
        counts.insert(namespace.clone(), count);
        if !full {
            return Ok(());
        }
        let message = format!(
            "{} idempotency keys of this user with {} bytes are stored, the most allowed; each expires {} after its request: send \
                this one without a key, or later",
            count.keys,
            count.bytes,
            told(self.api.limits.idempotency_time)
        );
        Err(Error::new(ErrorKind::QuotaExceeded, message).without_effect())
    }

    /// Counts the user's keys and their size.
    async fn count(&self) -> Result<Count> {
        let (namespace, _) = &self.place;
        let (mut keys, mut bytes) = (0, 0);
        let mut options = ScanOptions::new().with_limit(PAGE);
        loop {
            let page = self.api.store.scan(namespace, options.clone()).await?;
            for entry in page.entries {
                if let ScanEntry::Item(item) = entry {
                    keys += 1;
                    bytes += std::str::from_utf8(&item.meta).ok().and_then(|size| size.parse::<u64>().ok()).unwrap_or_default();
                }
            }
            match page.next {
                Some(next) if keys < KEYS_MAX => options.start_after = Some(next),
                _ => return Ok(Count { keys, bytes, at: Instant::now() }),
            }
        }
    }
}

/// Returns the stored form of a response. If it is too large, that is its status, its headers and a note of its size.
fn kept_answer(parts: &axum::http::response::Parts, body: &[u8]) -> KeptAnswer {
    let status = parts.status.as_u16();
    let headers = parts.headers.iter().filter_map(|(name, value)| Some((name.to_string(), value.to_str().ok()?.to_owned())));
    if body.len() <= ANSWER_BYTES_MAX {
        return KeptAnswer { status, headers: headers.collect(), body: BASE64.encode(body) };
    }
    let is_of_body = |name: &str| name.starts_with("content-") || name == "transfer-encoding";
    let mut headers: Vec<(String, String)> = headers.filter(|(name, _)| !is_of_body(name)).collect();
    headers.push((header::CONTENT_TYPE.to_string(), "application/json".to_owned()));
    let message = "the request was done once, with this status; its answer was too large to be stored";
    let short = serde_json::json!({"code": "answer_too_large", "message": message, "size_bytes": body.len()});
    KeptAnswer { status, headers, body: BASE64.encode(short.to_string()) }
}

/// Returns a time as a person says it.
fn told(time: Duration) -> String {
    match time.as_secs() {
        86_400 => "a day".to_owned(),
        seconds if seconds % 3_600 == 0 => format!("{} hours", seconds / 3_600),
        seconds => format!("{} minutes", seconds / 60),
    }
}

/// Describes the key of a row.
fn record_of(state: KeyState, row: &Item) -> KeyRecord {
    let left = row.expires_at.map_or(0, |end| end.duration_since(Timestamp::now()).as_secs());
    KeyRecord::new(state, u64::try_from(left).unwrap_or_default())
}
