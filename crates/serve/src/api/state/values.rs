//! The values of a session: reads, saves with conditions, removals.

use super::super::exchange::{Answer, Asked, json, nothing};
use super::At;
use crate::etag::{self, Tags};
use crate::problem::Failed;
use crate::rights::Access;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use treehold_agent_state::call::TurnGate;
use treehold_agent_state::{
    AgentStateStore, DeleteOptions, Expected, Fence, Json, SaveOptions, StateConflict, StateForm, StateVersion, list_text,
};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::retry::Attempts;
use treehold_core::work;

/// Which value of a key.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ValueQuery {
    /// The agent. Default `default`.
    agent: Option<String>,
    /// The form of the value. Default `single`.
    form: StateForm,
}

/// Which value to save, and on whose behalf.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct SaveQuery {
    /// The agent. Default `default`.
    agent: Option<String>,
    /// The form of the value. Default `single`.
    form: StateForm,
    /// The fencing token of the turn that saves: its `fence`. The save is refused if the turn was lost.
    fence: Option<u64>,
}

/// What to remove of a key, and on whose behalf.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RemoveQuery {
    /// The agent. Default `default`.
    agent: Option<String>,
    /// The form of the value. Default both, or `single` with a condition.
    form: Option<StateForm>,
    /// The fencing token of the turn that removes: its `fence`. The removal is refused if the turn was lost.
    fence: Option<u64>,
}

/// Returns a value as it was saved.
pub(super) async fn get(asked: Asked) -> Answer {
    let query: ValueQuery = asked.query()?;
    let at = asked.state(query.agent.as_deref(), Access::Read)?;
    let key = asked.param("key");
    let known = Tags::<StateVersion>::of(&asked.head.headers, &header::IF_NONE_MATCH, true)?;
    if let Some(known) = known
        && let Some(version) = at.version(query.form, key).await?
        && known.holds(version)
    {
        let mut response = nothing(StatusCode::NOT_MODIFIED);
        response.headers_mut().insert(header::ETAG, etag::of_state(version));
        return Ok(response);
    }
    match query.form {
        StateForm::Single => {
            let found = at.states.get(&at.slot, key).await?.ok_or_else(|| absent(&at, key))?;
            Ok(value(&found.value, found.version))
        }
        StateForm::List => list(&at, key).await,
    }
}

/// Returns the version of a value.
pub(super) async fn head(asked: Asked) -> Answer {
    let query: ValueQuery = asked.query()?;
    let at = asked.state(query.agent.as_deref(), Access::Read)?;
    let key = asked.param("key");
    let version = at.version(query.form, key).await?.ok_or_else(|| absent(&at, key))?;
    let mut response = nothing(StatusCode::OK);
    response.headers_mut().insert(header::ETAG, etag::of_state(version));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// A saved value.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct SavedState {
    /// The version that this save gave the value.
    version: Option<u64>,
}

/// Saves a value.
pub(super) async fn put(mut asked: Asked) -> Answer {
    let query: SaveQuery = asked.query()?;
    let at = asked.state(query.agent.as_deref(), Access::Write)?;
    let key = asked.param("key").to_owned();
    let wanted = Wanted::of(&asked.head.headers)?;
    let fence = at.fence(query.fence)?;
    let change = match query.form {
        StateForm::Single => Change::Save(asked.json_value().await?),
        StateForm::List => Change::SaveList(asked.json_value().await?),
    };
    let version = match change.apply(&at, &key, &wanted, fence.as_ref()).await {
        Ok(version) => version,
        Err(error) if error.kind() == ErrorKind::Conflict => return Ok(refused(error)),
        Err(error) => return Err(error.into()),
    };
    let mut response = json(StatusCode::OK, SavedState { version: version.map(StateVersion::number) }).await?;
    if let Some(version) = version {
        response.headers_mut().insert(header::ETAG, etag::of_state(version));
    }
    Ok(response)
}

/// Removes a value.
pub(super) async fn delete(asked: Asked) -> Answer {
    let query: RemoveQuery = asked.query()?;
    let at = asked.state(query.agent.as_deref(), Access::Write)?;
    let key = asked.param("key");
    let wanted = Wanted::of(&asked.head.headers)?;
    let fence = at.fence(query.fence)?;
    match Change::Delete(query.form).apply(&at, key, &wanted, fence.as_ref()).await {
        Ok(_) => Ok(nothing(StatusCode::NO_CONTENT)),
        Err(error) if error.kind() == ErrorKind::Conflict => Ok(refused(error)),
        Err(error) => Err(error.into()),
    }
}

impl At {
    /// Returns the version of a value without reading it.
    async fn version(&self, form: StateForm, key: &str) -> Result<Option<StateVersion>> {
        match form {
            StateForm::Single => self.states.version(&self.slot, key).await,
            StateForm::List => self.states.list_version(&self.slot, key).await,
        }
    }

    /// Returns the fence of the turn with a fencing token.
    pub(super) fn fence(&self, token: Option<u64>) -> Result<Option<Fence>> {
        token.map(|token| Ok(TurnGate::fence(&self.turn()?, token))).transpose()
    }
}

/// Returns a list with a version that the list had while it was read; an absent list is empty.
async fn list(at: &At, key: &str) -> Answer {
    let mut attempts = Attempts::new();
    loop {
        let before = at.version(StateForm::List, key).await?;
        let elements = at.states.get_list(&at.slot, key).await?;
        if before == at.version(StateForm::List, key).await? {
            let size_bytes = elements.iter().map(|element| element.as_str().len() as u64).sum();
            let text = work::run(size_bytes, move |_| list_text(&elements)).await??;
            return Ok(value(&text, before));
        }
        attempts.lost().await?;
    }
}

/// The condition of a save or removal.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    /// One that the store decides.
    Expected(Expected),
    /// Any version.
    Present,
    /// One of these versions. There are none if no tag of the header names a version.
    OneOf(Vec<StateVersion>),
}

impl Wanted {
    fn of(headers: &HeaderMap) -> Result<Self> {
        match (Tags::of(headers, &header::IF_MATCH, false)?, Tags::<StateVersion>::of(headers, &header::IF_NONE_MATCH, true)?) {
            (None, None) => Ok(Self::Expected(Expected::Any)),
            (None, Some(Tags::Any)) => Ok(Self::Expected(Expected::Absent)),
            (Some(Tags::Any), None) => Ok(Self::Present),
            (Some(Tags::Versions(versions)), None) => Ok(match versions.as_slice() {
                [version] => Self::Expected(Expected::Version(*version)),
                _ => Self::OneOf(versions),
            }),
            _ => Err(Error::invalid_argument("a condition must be `If-Match` with a tag or `*`, or `If-None-Match: *`")),
        }
    }
}

/// A change of a key.
enum Change {
    Save(Json),
    SaveList(Vec<Json>),
    /// Of one form, or of both.
    Delete(Option<StateForm>),
}

impl Change {
    /// Returns the form that a condition is about.
    fn form(&self) -> StateForm {
        match self {
            Self::Save(_) => StateForm::Single,
            Self::SaveList(_) => StateForm::List,
            Self::Delete(form) => form.unwrap_or_default(),
        }
    }

    /// Makes the change under a condition. If the condition admits several versions, the change expects the present one, and starts again
    /// if that changes meanwhile.
    async fn apply(&self, at: &At, key: &str, wanted: &Wanted, fence: Option<&Fence>) -> Result<Option<StateVersion>> {
        if let Wanted::Expected(expected) = wanted {
            return self.once(at, key, *expected, fence).await;
        }
        let mut attempts = Attempts::new();
        loop {
            let current = at.version(self.form(), key).await?;
            let admitted = match (wanted, current) {
                (Wanted::Present, current) => current,
                (Wanted::OneOf(versions), Some(current)) => Some(current).filter(|current| versions.contains(current)),
                _ => None,
            };
            let Some(version) = admitted else {
                let message = "the state has none of the versions of `If-Match`; load it again";
                return Err(Error::new(ErrorKind::Conflict, message).without_effect().with_source(StateConflict::new(
                    &at.slot,
                    key,
                    Expected::Any,
                    current,
                )));
            };
            match self.once(at, key, Expected::Version(version), fence).await {
                Err(error) if StateConflict::of(&error).is_some() => attempts.lost().await?,
                changed => return changed,
            }
        }
    }

    async fn once(&self, at: &At, key: &str, expected: Expected, fence: Option<&Fence>) -> Result<Option<StateVersion>> {
        let options = SaveOptions::new().with_expected(expected).with_fence(fence.cloned());
        match self {
            Self::Save(value) => at.states.save(&at.slot, key, value, options).await,
            Self::SaveList(values) => at.states.save_list(&at.slot, key, values, options).await,
            Self::Delete(form) => {
                let options = DeleteOptions::new().with_form(*form).with_expected(expected).with_fence(fence.cloned());
                at.states.delete(&at.slot, key, options).await.map(|()| None)
            }
        }
    }
}

/// Responds that a condition did not hold: 412 with the present version as tag, or 409 if the turn was lost.
fn refused(error: Error) -> Response {
    let Some(conflict) = StateConflict::of(&error) else { return Failed::from(error).into_response() };
    let current = conflict.current;
    // Versions of states are decimal numbers everywhere in the API; the field of the problem is for versions of files.
    let mut response = Failed::precondition(error.with_current_version(None)).into_response();
    if let Some(version) = current {
        response.headers_mut().insert(header::ETAG, etag::of_state(version));
    }
    response
}

/// Responds with a value.
fn value(value: &Json, version: Option<StateVersion>) -> Response {
    let mut response = Response::new(Body::from(value.as_str().to_owned()));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(version) = version {
        response.headers_mut().insert(header::ETAG, etag::of_state(version));
    }
    response
}

fn absent(at: &At, key: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("the {} has no state `{}`", at.slot, key.escape_debug())).without_effect()
}
