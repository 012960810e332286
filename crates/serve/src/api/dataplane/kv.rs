//! Items by namespace and key.

use super::super::exchange::{Answer, Asked, json, nothing};
use super::{AgentQuery, conflict, not_found};
use crate::rights::Access;
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use treehold_agent_state::Json;
use treehold_agent_state::kv::{KeyValues, KvItem, KvSearch};
use treehold_core::error::{Error, ErrorKind};

/// Separates the components of a namespace in answers.
const SEPARATOR: &str = "\u{1f}";

/// Identifies an item.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct KvQuery {
    /// The agent.
    agent_name: Option<String>,
    /// The namespace of the agent. Default `default`.
    namespace: Option<String>,
    /// The components of the item's namespace.
    ns: Vec<String>,
    /// The key.
    key: String,
}

/// An item.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct KvReply {
    /// The key.
    key: String,
    /// The value, a JSON object.
    value: Json,
    /// The version: 1 for a new item, one more for each change.
    version: u64,
    /// The components of the item's namespace, separated by U+001F.
    #[serde(skip_serializing_if = "String::is_empty")]
    ns_path: String,
}

impl From<KvItem> for KvReply {
    fn from(item: KvItem) -> Self {
        Self { key: item.key, value: item.value, version: item.version, ns_path: item.namespace.join(SEPARATOR) }
    }
}

pub(super) async fn get(asked: Asked) -> Answer {
    let query: KvQuery = asked.query()?;
    let (store, owner) = asked.bundle_of_query(Access::Read)?;
    let item = KeyValues::new(store, owner).get(&query.ns, &query.key).await?;
    json(StatusCode::OK, KvReply::from(item.ok_or_else(|| not_found(format!("there is no item `{}`", query.key.escape_debug())))?)).await
}

/// The item to write.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PutKv {
    /// The agent.
    agent_name: Option<String>,
    /// The namespace of the agent. Default `default`.
    namespace: Option<String>,
    /// The components of the item's namespace.
    namespace_segments: Option<Vec<String>>,
    /// The components of the item's namespace, if `namespaceSegments` has none.
    ns: Option<Vec<String>>,
    /// The key.
    key: String,
    /// The value, a JSON object of at most 1 MiB. Default `{}`.
    value: Option<Json>,
    /// The version that the item must have; 0 creates it. Default any.
    expected_version: Option<i64>,
}

/// The result of a write.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct KvVersion {
    /// The new version.
    version: u64,
}

/// The answer to a write that expected another version.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct OtherVersion {
    error: &'static str,
    current_version: u64,
}

pub(super) async fn put(mut asked: Asked) -> Answer {
    let PutKv { agent_name, namespace, namespace_segments, ns, key, value, expected_version } = asked.json().await?;
    let (store, owner) = asked.bundle(AgentQuery { agent_name, namespace }, Access::Write)?;
    let components = namespace_segments.filter(|segments| !segments.is_empty()).or(ns).unwrap_or_default();
    let value = match value {
        Some(value) if value.as_str() != "null" => value,
        _ => Json::parse("{}")?,
    };
    let items = KeyValues::new(store, owner);
    let written = match expected_version {
        None => items.put(&components, &key, &value).await,
        Some(expected) => {
            let expected =
                u64::try_from(expected).map_err(|_| Error::invalid_argument("`expectedVersion` is negative; use 0 to create the item"))?;
            items.put_if_version(&components, &key, &value, expected).await
        }
    };
    match written {
        Ok(version) => json(StatusCode::OK, KvVersion { version }).await,
        Err(error) if error.kind() == ErrorKind::Conflict => {
            let current_version = error.current_version().map_or(0, |version| version.number());
            conflict(OtherVersion { error: "conflict", current_version }).await
        }
        Err(error) => Err(error.into()),
    }
}

pub(super) async fn delete(asked: Asked) -> Answer {
    let query: KvQuery = asked.query()?;
    let (store, owner) = asked.bundle_of_query(Access::Write)?;
    KeyValues::new(store, owner).delete(&query.ns, &query.key).await?;
    Ok(nothing(StatusCode::NO_CONTENT))
}

/// Which items to find.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct KvSearchQuery {
    /// The agent.
    agent_name: Option<String>,
    /// The namespace of the agent. Default `default`.
    namespace: Option<String>,
    /// The components of the namespace. Items of namespaces beneath it are found too.
    ns: Vec<String>,
    /// Whether to leave out namespaces beneath. Default false.
    exact: bool,
    /// The most items, from 1 to 1,000. Default 100.
    limit: Option<i64>,
    /// How many items to skip, at most 10,000.
    offset: Option<i64>,
    /// Where the previous page ended: its `next`.
    cursor: Option<String>,
}

/// A page of items.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct KvItems {
    /// The items, ordered by namespace and key.
    items: Vec<KvReply>,
    /// The `cursor` of the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

pub(super) async fn search(asked: Asked) -> Answer {
    let query: KvSearchQuery = asked.query()?;
    let (store, owner) = asked.bundle_of_query(Access::Read)?;
    let limit = match query.limit {
        Some(limit) if limit < 1 => return Err(Error::invalid_argument(format!("the limit {limit} is not between 1 and 1000")).into()),
        Some(limit) => usize::try_from(limit).unwrap_or(usize::MAX),
        None => 100,
    };
    let offset = query.offset.and_then(|offset| usize::try_from(offset).ok()).unwrap_or_default();
    let unread = |error| Error::invalid_argument("the cursor cannot be read; use the `next` of the last page").with_source(error);
    let after = query.cursor.as_deref().map(serde_json::from_str).transpose().map_err(unread)?;
    let search = KvSearch::new(query.ns).with_exact(query.exact).with_after(after);
    let search = search.with_limit(limit).with_offset(offset);
    let page = KeyValues::new(store, owner).search(&search).await?;
    let next = page.next.map(|next| Json::of(&next).map(|next| next.as_str().to_owned())).transpose()?;
    json(StatusCode::OK, KvItems { items: page.items.into_iter().map(KvReply::from).collect(), next }).await
}
