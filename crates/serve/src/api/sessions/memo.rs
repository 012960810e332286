//! Memory documents and full tool results, as texts.

use super::super::exchange::{Answer, Asked, json, nothing};
use super::{At, Own, page};
use crate::etag::{self, Tags};
use crate::problem::Failed;
use crate::rights::Access;
use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{Version, WriteMode};
use treehold_core::work;
use treehold_sessions::{MemoFile, MemoScope, MemoryIndexEntry, Sessions};

/// The memory documents of a session and its user.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct MemoryIndex {
    /// The documents, whether or not they exist.
    documents: Vec<MemoryIndexEntry>,
}

pub(super) async fn index(asked: Asked) -> Answer {
    let at = asked.named(Access::Read)?;
    let documents = at.sessions.memory_index(at.tenant(), at.id()).await?;
    json(StatusCode::OK, MemoryIndex { documents }).await
}

/// A memory document of a session or user.
struct Document {
    sessions: Sessions,
    tenant: String,
    owner: String,
    scope: MemoScope,
    name: String,
}

impl Document {
    /// Returns the document that a request names. A session must exist.
    async fn of(asked: &Asked, scope: MemoScope, access: Access) -> Result<Self> {
        let name = asked.param("name").to_owned();
        if !scope.documents().contains(&name.as_str()) {
            let names = scope.documents().join("`, `");
            let message = format!("there is no memory document `{}` here; use one of `{names}`", name.escape_debug());
            asked.caller.rights.need_sessions(access)?;
            return Err(Error::invalid_argument(message));
        }
        Ok(match scope {
            MemoScope::Session => {
                let at = asked.at(access).await?;
                Self { tenant: at.tenant().to_owned(), owner: at.id().to_owned(), sessions: at.sessions, scope, name }
            }
            MemoScope::User => {
                let Own { sessions, tenant, user } = asked.own(access)?;
                Self { sessions, tenant, owner: user, scope, name }
            }
        })
    }

    fn absent(&self) -> Error {
        Error::new(ErrorKind::NotFound, format!("there is no `{}` yet; a PUT or POST creates it", self.name))
    }

    async fn read(&self, asked: &Asked) -> Answer {
        let found = self.sessions.read_memory_file(&self.tenant, &self.owner, self.scope, &self.name).await?;
        sent(asked, found.ok_or_else(|| self.absent())?)
    }

    async fn write(&self, asked: &mut Asked) -> Answer {
        let present = async || self.sessions.read_memory_file(&self.tenant, &self.owner, self.scope, &self.name).await;
        let mode = mode(asked, present).await?;
        let content = text(asked).await?;
        written(mode, self.sessions.write_memory_file(&self.tenant, &self.owner, self.scope, &self.name, content, mode).await)
    }

    async fn append(&self, asked: &mut Asked) -> Answer {
        let content = text(asked).await?;
        self.sessions.append_memory_document(&self.tenant, &self.owner, self.scope, &self.name, &content).await?;
        Ok(nothing(StatusCode::NO_CONTENT))
    }
}

pub(super) async fn read(asked: Asked) -> Answer {
    Document::of(&asked, MemoScope::Session, Access::Read).await?.read(&asked).await
}

pub(super) async fn write(mut asked: Asked) -> Answer {
    Document::of(&asked, MemoScope::Session, Access::Write).await?.write(&mut asked).await
}

pub(super) async fn append(mut asked: Asked) -> Answer {
    Document::of(&asked, MemoScope::Session, Access::Write).await?.append(&mut asked).await
}

pub(super) async fn read_user(asked: Asked) -> Answer {
    Document::of(&asked, MemoScope::User, Access::Read).await?.read(&asked).await
}

pub(super) async fn write_user(mut asked: Asked) -> Answer {
    Document::of(&asked, MemoScope::User, Access::Write).await?.write(&mut asked).await
}

pub(super) async fn append_user(mut asked: Asked) -> Answer {
    Document::of(&asked, MemoScope::User, Access::Write).await?.append(&mut asked).await
}

/// A page of tool calls.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ToolResultsQuery {
    /// The most ids. Default 100.
    limit: Option<usize>,
    /// Where the previous page ended: its `cursor`.
    cursor: Option<String>,
}

/// The tool calls whose full results are kept.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ToolResultsReply {
    /// The ids of the calls.
    ids: Vec<String>,
    /// The cursor of the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<String>,
}

pub(super) async fn results(asked: Asked) -> Answer {
    let query: ToolResultsQuery = asked.query()?;
    let limit = page(query.limit, 100)?;
    let At { sessions, session } = asked.at(Access::Read).await?;
    let page = sessions.tool_results(&session, query.cursor.as_deref(), limit).await?;
    json(StatusCode::OK, ToolResultsReply { ids: page.ids, cursor: page.next }).await
}

pub(super) async fn read_result(asked: Asked) -> Answer {
    let At { sessions, session } = asked.at(Access::Read).await?;
    let id = asked.param("tool_call");
    let absent = || Error::new(ErrorKind::NotFound, format!("the result of the tool call `{}` is not kept", id.escape_debug()));
    sent(&asked, sessions.read_tool_result_file(&session, id).await?.ok_or_else(absent)?)
}

pub(super) async fn write_result(mut asked: Asked) -> Answer {
    let At { sessions, session } = asked.at(Access::Write).await?;
    let id = asked.param("tool_call").to_owned();
    let mode = mode(&asked, async || sessions.read_tool_result_file(&session, &id).await).await?;
    let content = text(&mut asked).await?;
    written(mode, sessions.write_tool_result_file(&session, &id, content, mode).await)
}

/// Receives the body as text.
async fn text(asked: &mut Asked) -> Result<String> {
    let body = asked.body().await?;
    let read = work::run(body.len() as u64, move |_| String::from_utf8(body.into())).await?;
    read.map_err(|error| Error::invalid_argument("the body is not UTF-8 text").without_effect().with_source(error))
}

/// Responds with a text, or with 304 if the client has it.
fn sent(asked: &Asked, file: MemoFile) -> Answer {
    let known = Tags::of(&asked.head.headers, &header::IF_NONE_MATCH, true)?;
    let mut response = match known.is_some_and(|known| known.holds(file.version)) {
        true => nothing(StatusCode::NOT_MODIFIED),
        false => Response::new(Body::from(file.text)),
    };
    let headers = response.headers_mut();
    headers.insert(header::ETAG, etag::header(file.version));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    // Browsers must not execute content that an agent wrote.
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    Ok(response)
}

/// Returns the condition in the headers of a write. `present` reads the file, if its version decides.
async fn mode(asked: &Asked, present: impl AsyncFnOnce() -> Result<Option<MemoFile>>) -> std::result::Result<WriteMode, Failed> {
    let headers = &asked.head.headers;
    match (Tags::of(headers, &header::IF_MATCH, false)?, Tags::<Version>::of(headers, &header::IF_NONE_MATCH, true)?) {
        (None, None) => Ok(WriteMode::Overwrite),
        (None, Some(Tags::Any)) => Ok(WriteMode::CreateNew),
        (Some(Tags::Versions(versions)), None) if versions.len() <= 1 => {
            Ok(WriteMode::IfVersion(versions.first().copied().unwrap_or(Version::new(0))))
        }
        (Some(tags), None) => match present().await?.map(|file| file.version) {
            Some(version) if tags.holds(version) => Ok(WriteMode::IfVersion(version)),
            version => {
                let message = "no tag in `If-Match` is that of the text; read it again";
                Err(Failed::precondition(Error::new(ErrorKind::Conflict, message).with_current_version(version).without_effect()))
            }
        },
        _ => Err(Error::invalid_argument("a condition must be `If-Match`, or `If-None-Match: *`").into()),
    }
}

/// Responds with the outcome of a write.
fn written(mode: WriteMode, written: Result<Option<Version>>) -> Answer {
    let version = written.map_err(|error| {
        let is_condition = matches!(error.kind(), ErrorKind::Conflict | ErrorKind::AlreadyExists | ErrorKind::NotFound);
        if mode != WriteMode::Overwrite && is_condition { Failed::precondition(error) } else { error.into() }
    })?;
    let mut response = nothing(StatusCode::NO_CONTENT);
    if let Some(version) = version {
        response.headers_mut().insert(header::ETAG, etag::header(version));
    }
    Ok(response)
}
