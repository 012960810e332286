//! A session as files of the layout that agent hosts keep by default.

use super::super::exchange::{Answer, Asked, json};
use super::{At, absent};
use crate::rights::Access;
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use treehold_core::error::{Error, ErrorKind};

/// The files of a session.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SessionFilesRecord {
    /// Contents by path beneath the directory of the session.
    files: BTreeMap<String, String>,
}

pub(super) async fn export(asked: Asked) -> Answer {
    let At { sessions, session } = asked.named(Access::Read)?;
    let files = sessions.export_session(&session).await?.ok_or_else(|| absent(session.session()))?;
    let text = |(path, content): (String, bytes::Bytes)| match String::from_utf8(content.into()) {
        Ok(text) => Ok((path, text)),
        Err(error) => {
            let message = format!("`{path}` is not UTF-8; export the session with `treehold session export`");
            Err(Error::new(ErrorKind::Unsupported, message).with_source(error))
        }
    };
    let files = files.into_iter().map(text).collect::<Result<_, Error>>()?;
    json(StatusCode::OK, SessionFilesRecord { files }).await
}

pub(super) async fn import(mut asked: Asked) -> Answer {
    let At { sessions, session } = asked.named(Access::Write)?;
    let SessionFilesRecord { files } = asked.json().await?;
    let files = files.into_iter().map(|(path, text)| (path, text.into())).collect();
    let report = sessions.import_session(&session, &files).await.map_err(|error| match error.kind() {
        // The files are damaged, not the store.
        ErrorKind::Corrupt => Error::invalid_argument(error.message().to_owned()).with_source(error),
        _ => error,
    })?;
    json(StatusCode::CREATED, report).await
}
