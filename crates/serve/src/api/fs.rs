//! Files as resources: GET reads, PUT writes, POST appends, PATCH replaces text and DELETE removes.
//!
//! The tag of a file is its version ([`etag`](crate::etag)). The tree itself checks `If-Match` when it applies the change, so of two
//! writers with the same tag one gets 412.

use super::body::digest;
use super::exchange::{Answer, Asked, json, nothing};
use super::range::{self, Ranged};
use crate::etag::{self, Tags};
use crate::problem::Failed;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimePrinter;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use treehold_core::error::{Error, ErrorKind};
use treehold_core::file::PART_BYTES;
use treehold_core::ops::{Change, Changed, Edit, FileRead, OpKind, ReadOptions, ReadRange, StatOptions, Version, WriteMode};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::wire::{MODIFIED_HEADER, ReadRequest, SIZE_HEADER, WINDOW_HEADER};
use treehold_tree::backend::{Backend, ContentStream, StreamOptions};

/// About how many headers a response with a file has.
const FILE_HEADERS: usize = 16;

/// Handles GET and HEAD.
pub(super) async fn get(asked: Asked) -> Answer {
    let path = asked.path()?;
    let tree = asked.tree().await?;
    match read(&asked, tree.clone(), &path).await {
        Err(failed) if asked.head.method == Method::GET && !is_of_treehold(&asked.head.headers) => {
            Err(failed.with_near_paths(&*tree).await)
        }
        answer => answer,
    }
}

/// Returns whether a tree that mounts this one asks. It suggests paths of its own, and needs no others.
fn is_of_treehold(headers: &HeaderMap) -> bool {
    headers.get(header::USER_AGENT).is_some_and(|agent| agent.as_bytes().starts_with(b"treehold/"))
}

/// Responds with the content at a path of a tree.
pub(super) async fn read(asked: &Asked, tree: Arc<dyn Backend>, path: &VfsPath) -> Answer {
    let request: ReadRequest = asked.query()?;
    let options = request.options()?;
    let headers = &asked.head.headers;
    let known = Tags::of(headers, &header::IF_NONE_MATCH, true)?;
    let needed = Tags::of(headers, &header::IF_MATCH, false)?;
    let is_head = asked.head.method == Method::HEAD;
    if is_head || known.is_some() || needed.is_some() {
        let entry = tree.stat(path, &StatOptions::new().with_refuse_links(options.refuse_links)).await?;
        if entry.is_directory() {
            return Err(Error::is_directory(path).during(OpKind::Read).into());
        }
        if let Some(version) = entry.version {
            if needed.is_some_and(|needed| !needed.holds(version)) {
                return Err(Failed::precondition(Error::conflict(path, Some(version))));
            }
            if known.is_some_and(|known| known.holds(version)) {
                let mut response = nothing(StatusCode::NOT_MODIFIED);
                response.headers_mut().insert(header::ETAG, etag::header(version));
                return Ok(response);
            }
        }
        if is_head {
            let mut response = nothing(StatusCode::OK);
            let headers = response.headers_mut();
            described(headers, path, entry.version, entry.size_bytes, entry.modified_at);
            headers.insert(header::CONTENT_LENGTH, entry.size_bytes.into());
            return Ok(response);
        }
    }
    if options.range == ReadRange::Whole
        && let Some(ranged) = range::of(headers)
    {
        return ranged_read(tree, path, ranged, headers, options.refuse_links).await;
    }
    let wants_digest = headers.get("want-content-digest").is_some_and(|value| value.to_str().is_ok_and(|text| text.contains("sha-256")));
    if options.range == ReadRange::Whole && request.bytes_max.is_none() && !wants_digest {
        return whole(tree, path, options.refuse_links).await;
    }
    // A window of lines and a digest need the content in one piece.
    asked.api.hold_answer(&asked.caller).await?;
    let file = tree.read(path, &options).await?;
    let mut response = Response::new(Body::from(file.content.clone()));
    describe(response.headers_mut(), path, &file);
    if wants_digest {
        response.headers_mut().insert("content-digest", digest(&file.content));
    }
    if let Some(window) = file.window {
        let text = format!("{},{},{}", window.offset, window.lines, window.total_lines);
        response.headers_mut().insert(WINDOW_HEADER, HeaderValue::from_str(&text).expect("digits and commas are visible ASCII"));
    }
    Ok(response)
}

/// Responds with a whole file, streamed in parts if it is large. If the file changes meanwhile, the connection is aborted, so a response
/// never mixes two versions.
async fn whole(tree: Arc<dyn Backend>, path: &VfsPath, refuse_links: bool) -> Answer {
    let mut stream = ContentStream::open(tree, path, &StreamOptions::new().with_refuse_links(refuse_links)).await?;
    let mut response = Response::new(Body::empty());
    described(response.headers_mut(), path, Some(stream.version()), stream.size_bytes(), stream.modified_at());
    if stream.is_read() {
        *response.body_mut() = Body::from(stream.next().await?.unwrap_or_default());
        return Ok(response);
    }
    response.headers_mut().insert(header::CONTENT_LENGTH, stream.size_bytes().into());
    *response.body_mut() = Body::from_stream(stream.into_stream());
    Ok(response)
}

/// Responds with a range of bytes.
async fn ranged_read(tree: Arc<dyn Backend>, path: &VfsPath, ranged: Ranged, headers: &HeaderMap, refuse_links: bool) -> Answer {
    let (offset, limit) = match ranged {
        Ranged::From { first, last } => (first, last.map_or(u64::MAX, |last| last - first + 1)),
        Ranged::Last(bytes) => {
            let size = tree.stat(path, &StatOptions::new().with_refuse_links(refuse_links)).await?.size_bytes;
            (size.saturating_sub(bytes), bytes)
        }
    };
    // At most one part: a client requests the rest, as it must after any range shorter than requested.
    let file = tree.read(path, &ReadOptions::bytes(offset, limit.min(PART_BYTES)).with_refuse_links(refuse_links)).await?;
    let stale = match headers.get(header::IF_RANGE) {
        Some(tag) => *tag != etag::header(file.version),
        None => false,
    };
    if stale {
        return whole(tree, path, refuse_links).await;
    }
    if file.content.is_empty() {
        let error = Error::invalid_argument(format!(
            "the range begins at byte {offset}, but the file has {} bytes; request an earlier \
            range",
            file.size_bytes
        ))
        .at(path);
        let mut response = Failed::with_status(error, StatusCode::RANGE_NOT_SATISFIABLE).into_response();
        let text = format!("bytes */{}", file.size_bytes);
        response.headers_mut().insert(header::CONTENT_RANGE, HeaderValue::from_str(&text).expect("ASCII"));
        return Ok(response);
    }
    let text = format!("bytes {offset}-{}/{}", offset + file.content.len() as u64 - 1, file.size_bytes);
    let mut response = Response::new(Body::from(file.content.clone()));
    *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    describe(response.headers_mut(), path, &file);
    response.headers_mut().insert(header::CONTENT_RANGE, HeaderValue::from_str(&text).expect("ASCII"));
    Ok(response)
}

fn describe(headers: &mut HeaderMap, path: &VfsPath, file: &FileRead) {
    described(headers, path, Some(file.version), file.size_bytes, file.modified_at);
}

fn described(headers: &mut HeaderMap, path: &VfsPath, version: Option<Version>, size_bytes: u64, modified_at: Option<Timestamp>) {
    // Room for these and those that the layers add, so that the table does not grow step by step.
    headers.reserve(FILE_HEADERS);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type(path)));
    // Browsers must not execute content that an agent wrote.
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox; default-src 'none'"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(SIZE_HEADER, size_bytes.into());
    if let Some(version) = version {
        headers.insert(header::ETAG, etag::header(version));
    }
    if let Some(at) = modified_at {
        if let Ok(text) = DateTimePrinter::new().timestamp_to_rfc9110_string(&at)
            && let Ok(value) = HeaderValue::from_str(&text)
        {
            headers.insert(header::LAST_MODIFIED, value);
        }
        headers.insert(MODIFIED_HEADER, HeaderValue::from_str(&at.to_string()).expect("a timestamp is visible ASCII"));
    }
}

/// Returns the media type of a file by its extension. Types that a browser would execute are served as text.
fn media_type(path: &VfsPath) -> &'static str {
    let extension = path.name().rsplit_once('.').map_or("", |(_, extension)| extension).to_ascii_lowercase();
    match extension.as_str() {
        "md" | "markdown" => "text/markdown; charset=utf-8",
        "json" => "application/json",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "pdf" => "application/pdf",
        "txt" | "log" | "csv" | "rs" | "py" | "ts" | "js" | "toml" | "yaml" | "yml" | "sh" | "html" | "css" => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

/// Options of a PUT.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PutQuery {
    /// Whether to create a directory, including its parents. Default false.
    directory: bool,
}

/// Handles PUT: creates a file, replaces its content, or creates a directory.
pub(super) async fn put(mut asked: Asked) -> Answer {
    let path = asked.path()?;
    let query: PutQuery = asked.query()?;
    let headers = asked.head.headers.clone();
    if query.directory {
        if [header::IF_MATCH, header::IF_NONE_MATCH].iter().any(|name| headers.contains_key(name)) {
            return Err(Error::invalid_argument("a directory has no version; leave `If-Match` and `If-None-Match` out").into());
        }
        let changed = asked.change(Change::CreateDir { path }).await?;
        return done(changed).await;
    }
    let content = asked.body().await?;
    let needed = Tags::of(&headers, &header::IF_MATCH, false)?;
    let absent = Tags::<Version>::of(&headers, &header::IF_NONE_MATCH, true)?;
    let mode = match (&needed, &absent) {
        (Some(_), Some(_)) => {
            return Err(Error::invalid_argument("`If-Match` and `If-None-Match` exclude each other here; leave one out").into());
        }
        (None, Some(Tags::Any)) => WriteMode::CreateNew,
        (None, Some(Tags::Versions(_))) => {
            return Err(Error::invalid_argument(
                "`If-None-Match` of a PUT must be `*`, which means to \
            create only",
            )
            .into());
        }
        (Some(_), None) => WriteMode::IfVersion(expected(&asked, &path, needed.as_ref()).await?.unwrap_or(Version::new(0))),
        (None, None) => WriteMode::Overwrite,
    };
    let conditional = mode != WriteMode::Overwrite;
    match asked.change(Change::Write { path, content, mode }).await {
        Ok(changed) => done(changed).await,
        Err(error) => Err(refused(error, conditional)),
    }
}

/// Handles POST: appends to a file.
pub(super) async fn append(mut asked: Asked) -> Answer {
    let path = asked.path()?;
    let content = asked.body().await?;
    done(asked.change(Change::Append { path, content }).await?).await
}

/// Text replacements within one file.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PatchRequest {
    /// The replacements, in order. Either all are applied or none.
    edits: Vec<Edit>,
}

/// Handles PATCH: replaces text within a file.
pub(super) async fn patch(mut asked: Asked) -> Answer {
    let path = asked.path()?;
    let needed = Tags::of(&asked.head.headers, &header::IF_MATCH, false)?;
    let PatchRequest { edits } = asked.json().await?;
    let expect = expected(&asked, &path, needed.as_ref()).await?;
    match asked.change(Change::Edit { path, edits, expect }).await {
        Ok(changed) => done(changed).await,
        Err(error) => Err(refused(error, needed.is_some())),
    }
}

/// Options of a DELETE.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct DeleteQuery {
    /// Whether to remove a directory with its content. Default false.
    recursive: bool,
}

/// Handles DELETE.
pub(super) async fn delete(asked: Asked) -> Answer {
    let path = asked.path()?;
    let query: DeleteQuery = asked.query()?;
    let needed = Tags::of(&asked.head.headers, &header::IF_MATCH, false)?;
    let expect = expected(&asked, &path, needed.as_ref()).await?;
    match asked.change(Change::Delete { path, recursive: query.recursive, expect }).await {
        Ok(changed) => done(changed).await,
        Err(error) => Err(refused(error, needed.is_some())),
    }
}

/// Returns the version that a change is conditional on. Of several tags, it is the current version of the file; if that is not among them,
/// the change is refused here.
async fn expected(asked: &Asked, path: &VfsPathBuf, needed: Option<&Tags>) -> std::result::Result<Option<Version>, Failed> {
    match needed {
        None => Ok(None),
        Some(Tags::Versions(versions)) if versions.len() == 1 => Ok(versions.first().copied()),
        Some(tags) => {
            let current = match asked.tree().await?.stat(path, &StatOptions::new()).await {
                Ok(entry) => entry.version,
                Err(error) if error.kind() == ErrorKind::NotFound => None,
                Err(error) => return Err(error.into()),
            };
            match current {
                Some(version) if tags.holds(version) => Ok(Some(version)),
                current => Err(Failed::precondition(Error::conflict(path, current).without_effect())),
            }
        }
    }
}

/// Returns the response for a refused change: 412 if the request was conditional.
fn refused(error: Error, conditional: bool) -> Failed {
    match error.kind() {
        ErrorKind::Conflict | ErrorKind::AlreadyExists if conditional => Failed::precondition(error),
        ErrorKind::NotFound if conditional && error.operation() != Some(OpKind::Edit) => Failed::precondition(error),
        _ => error.into(),
    }
}

/// Responds with the outcome of a change.
async fn done(changed: Changed) -> Answer {
    let status = if changed.created { StatusCode::CREATED } else { StatusCode::OK };
    let version = changed.version;
    let mut response = json(status, changed).await?;
    if let Some(version) = version {
        response.headers_mut().insert(header::ETAG, etag::header(version));
    }
    Ok(response)
}
