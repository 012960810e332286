//! Changes beyond a single file: batches, copies, moves and tool calls.

use super::exchange::{Answer, Asked, json};
use crate::problem::Failed;
use crate::rights::Access;
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use treehold_agent::session::Session;
use treehold_agent::tools::{ToolInfo, ToolOutput, ToolSet};
use treehold_core::error::{Error, ErrorKind};
use treehold_core::ops::{ApplyOptions, CHANGES_MAX, Change};
use treehold_core::path::VfsPathBuf;
use treehold_core::wire::{ApplyReply, ApplyRequest, ChangeRecord};

pub(super) async fn apply(mut asked: Asked) -> Answer {
    let request: ApplyRequest = asked.json().await?;
    if request.changes.len() > CHANGES_MAX {
        let message = format!("the batch has {} changes and may have at most {CHANGES_MAX}; send it in parts", request.changes.len());
        return Err(Error::new(ErrorKind::TooLarge, message).without_effect().into());
    }
    let changes = request.changes.into_iter().map(ChangeRecord::into_change).collect::<Result<Vec<_>, Error>>()?;
    let options = ApplyOptions::new().with_allow_partial(request.allow_partial).with_refuse_links(request.refuse_links);
    json(StatusCode::OK, ApplyReply::new(asked.apply(changes, options).await?)).await
}

/// What to copy or move, and the destination.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TransferRequest {
    /// The source path.
    from: VfsPathBuf,
    /// The destination path.
    to: VfsPathBuf,
    /// Whether to replace an existing file. Default false.
    #[serde(default)]
    overwrite: bool,
}

pub(super) async fn copy(mut asked: Asked) -> Answer {
    let TransferRequest { from, to, overwrite } = asked.json().await?;
    json(StatusCode::OK, asked.change(Change::Copy { from, to, overwrite }).await?).await
}

pub(super) async fn rename(mut asked: Asked) -> Answer {
    let TransferRequest { from, to, overwrite } = asked.json().await?;
    json(StatusCode::OK, asked.change(Change::Rename { from, to, overwrite }).await?).await
}

/// Selects a tool set.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ToolQuery {
    /// The set: `default`, `memory`, `text-editor` or `agent`. Default `default`.
    set: Option<String>,
}

impl ToolQuery {
    fn set(&self) -> Result<ToolSet, Error> {
        let name = self.set.as_deref().unwrap_or("default");
        ToolSet::ALL.into_iter().find(|set| set.name() == name).ok_or_else(|| {
            let names = ToolSet::ALL.map(ToolSet::name).join(", ");
            Error::invalid_argument(format!("there is no tool set `{name}`; the tool sets are {names}"))
        })
    }
}

/// A tool, as described to a model.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ToolRecord {
    /// The name by which it is called.
    name: String,
    /// What it does and how to use it.
    description: String,
    /// The JSON Schema of its arguments.
    input_schema: Value,
    /// Whether it changes nothing.
    read_only: bool,
    /// Whether it may remove or replace existing content.
    destructive: bool,
}

impl From<&ToolInfo> for ToolRecord {
    fn from(info: &ToolInfo) -> Self {
        let ToolInfo { name, description, input_schema, read_only, destructive, .. } = info;
        let (name, description) = (name.to_string(), description.to_string());
        Self { name, description, input_schema: input_schema.clone(), read_only: *read_only, destructive: *destructive }
    }
}

pub(super) async fn tools(asked: Asked) -> Answer {
    let query: ToolQuery = asked.query()?;
    let records: Vec<ToolRecord> = asked.caller.door.threads().workspace().tools().infos(query.set()?).map(ToolRecord::from).collect();
    json(StatusCode::OK, records).await
}

/// Calls a tool. A failed call returns status 200 with `is_error`, as elsewhere. So does a call with invalid arguments, since a model wrote
/// them.
pub(super) async fn call(mut asked: Asked) -> Answer {
    let query: ToolQuery = asked.query()?;
    let name = asked.param("name").to_owned();
    let set = query.set()?;
    if !asked.caller.door.threads().workspace().tools().infos(set).any(|tool| tool.name == name) {
        let error = Error::new(treehold_core::error::ErrorKind::NotFound, format!("there is no tool `{name}`; `GET /v1/tools` lists them"));
        return Err(Failed::from(error));
    }
    let arguments: Value = asked.json().await?;
    if !arguments.is_object() {
        return Err(Error::invalid_argument("the arguments of a tool must be a JSON object; send `{}` if it takes none")
            .without_effect()
            .into());
    }
    let call = match asked.caller.door.threads().workspace().tools().decode(set, &name, arguments) {
        Ok(call) => call,
        Err(error) => return json(StatusCode::OK, ToolOutput::from_error(&error)).await,
    };
    if !call.info().read_only {
        asked.caller.rights.need(Access::Write)?;
    }
    json(StatusCode::OK, asked.caller.door.threads().call(&asked.caller.scope, call).await).await
}

impl Asked {
    /// Opens the caller's tree.
    pub(super) async fn tree(&self) -> Result<std::sync::Arc<dyn treehold_tree::backend::Backend>, Error> {
        Ok(self.session().await?.backend())
    }

    /// Opens a session of the caller's thread.
    pub(super) async fn session(&self) -> Result<Session, Error> {
        self.caller.door.threads().session(&self.caller.scope).await
    }

    /// Applies one change and saves the thread.
    pub(super) async fn change(&self, change: Change) -> Result<treehold_core::ops::Changed, Error> {
        let mut changed = self.apply(vec![change], ApplyOptions::new()).await?;
        changed.pop().ok_or_else(|| Error::new(treehold_core::error::ErrorKind::Internal, "a batch of one change returned no result"))
    }

    /// Applies a batch of changes and saves the thread.
    pub(super) async fn apply(&self, changes: Vec<Change>, options: ApplyOptions) -> Result<Vec<treehold_core::ops::Changed>, Error> {
        self.caller.rights.need(Access::Write)?;
        self.caller.door.threads().apply(&self.caller.scope, &changes, &options).await?.into_saved()
    }
}
