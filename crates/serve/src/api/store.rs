//! Items of an application: JSON values in namespaces of the caller's own, with the semantics of [`JsonStore`].
//!
//! The namespaces in a request lie in the partition of the caller's tenant and user, beneath `_treehold/items`, so requests cannot reach the
//! items of others.

use super::exchange::{Answer, Asked, json, nothing};
use crate::etag::{self, Tags};
use crate::problem::Failed;
use crate::rights::Access;
use axum::http::{StatusCode, header};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::time::Duration;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Version;
use treehold_store::{Condition, JsonCursor, JsonFilter, JsonSearch, JsonStore, Namespace, NamespaceSearch, refuse_reserved};

/// The namespace that item namespaces lie beneath.
pub(crate) const ITEMS_NAMESPACE: [&str; 2] = treehold_core::reserved::ITEMS;

/// The most items of a page.
const PAGE_MAX: usize = 1_000;

/// Identifies one item.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ItemQuery {
    /// The components of the namespace.
    namespace: Vec<String>,
    /// The key.
    key: String,
    /// For a PUT: the time to live in seconds. Default never expires.
    #[serde(default)]
    ttl_seconds: Option<u64>,
}

/// An item.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ItemRecord {
    /// The components of the namespace.
    namespace: Vec<String>,
    /// The key.
    key: String,
    /// The value.
    value: Value,
    /// The version of the last put.
    version: Version,
    /// When the key was first put.
    created_at: Timestamp,
    /// When it was last put.
    modified_at: Timestamp,
    /// When it expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<Timestamp>,
}

/// The result of a put.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ItemVersion {
    /// The version of the item.
    version: Version,
}

pub(super) async fn get(asked: Asked) -> Answer {
    let query: ItemQuery = asked.query()?;
    let space = Space::of(&asked, Access::Read)?;
    let namespace = space.namespace(&query.namespace)?;
    let item = space.items.get::<Value>(&namespace, &query.key).await?.ok_or_else(|| absent(&query))?;
    let version = item.version;
    if Tags::of(&asked.head.headers, &header::IF_NONE_MATCH, true)?.is_some_and(|known| known.holds(version)) {
        let mut response = nothing(StatusCode::NOT_MODIFIED);
        response.headers_mut().insert(header::ETAG, etag::header(version));
        return Ok(response);
    }
    let record = ItemRecord {
        namespace: query.namespace,
        key: item.key,
        value: item.value,
        version,
        created_at: item.created_at,
        modified_at: item.modified_at,
        expires_at: item.expires_at,
    };
    let mut response = json(StatusCode::OK, record).await?;
    response.headers_mut().insert(header::ETAG, etag::header(version));
    Ok(response)
}

pub(super) async fn put(mut asked: Asked) -> Answer {
    let query: ItemQuery = asked.query()?;
    let space = Space::of(&asked, Access::Write)?;
    let namespace = space.namespace(&query.namespace)?;
    let condition = condition(&asked)?;
    let value: Value = asked.json().await?;
    let items = match query.ttl_seconds {
        Some(0) => return Err(Error::invalid_argument("the time to live is 0 seconds; delete the item, or leave `ttl_seconds` out").into()),
        ttl => space.items.with_time_to_live(ttl.map(Duration::from_secs)),
    };
    let is_conditional = condition.is_some();
    let put = match condition {
        Some(condition) => items.put_if(&namespace, &query.key, &value, condition).await,
        None => items.put(&namespace, &query.key, &value).await,
    };
    let version = put.map_err(|error| conditional(error, is_conditional))?;
    let mut response = json(StatusCode::OK, ItemVersion { version }).await?;
    response.headers_mut().insert(header::ETAG, etag::header(version));
    Ok(response)
}

pub(super) async fn delete(asked: Asked) -> Answer {
    let query: ItemQuery = asked.query()?;
    let space = Space::of(&asked, Access::Write)?;
    let namespace = space.namespace(&query.namespace)?;
    match condition(&asked)? {
        Some(condition) => {
            space.items.delete_if(&namespace, &query.key, condition).await.map_err(|error| conditional(error, true))?;
        }
        None => space.items.delete(&namespace, &query.key).await?,
    }
    Ok(nothing(StatusCode::NO_CONTENT))
}

/// Which items to find.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ItemSearch {
    /// The components of the namespace.
    namespace: Vec<String>,
    /// Only items whose values match, such as `{"status": {"$eq": "open"}}`. Default all.
    #[serde(default)]
    filter: Option<Value>,
    /// Only keys that start with this.
    #[serde(default)]
    prefix: String,
    /// Whether to include namespaces beneath. Default false.
    #[serde(default)]
    beneath: bool,
    /// Where the previous page ended: its `next`.
    #[serde(default)]
    cursor: Option<ItemCursor>,
    /// The most items. Default 100.
    #[serde(default)]
    limit: Option<usize>,
}

/// A position between two items.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ItemCursor {
    /// The components of the namespace.
    namespace: Vec<String>,
    /// The key.
    key: String,
}

/// A page of items.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ItemPage {
    /// The items, ordered by namespace and key.
    items: Vec<ItemRecord>,
    /// The cursor of the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<ItemCursor>,
}

pub(super) async fn search(mut asked: Asked) -> Answer {
    let request: ItemSearch = asked.json().await?;
    let space = Space::of(&asked, Access::Read)?;
    let namespace = space.namespace(&request.namespace)?;
    let mut search = JsonSearch::new().with_prefix(request.prefix).with_beneath(request.beneath).with_limit(page(request.limit)?);
    if let Some(filter) = &request.filter {
        search = search.with_filter(JsonFilter::parse(filter)?);
    }
    if let Some(cursor) = request.cursor {
        search = search.with_start_after(JsonCursor::new(&space.namespace(&cursor.namespace)?, cursor.key));
    }
    asked.api.hold_answer(&asked.caller).await?;
    let found = space.items.search::<Value>(&namespace, &search).await?;
    let items = found.items.into_iter().map(|found| ItemRecord {
        namespace: space.shown(&found.namespace),
        key: found.item.key,
        value: found.item.value,
        version: found.item.version,
        created_at: found.item.created_at,
        modified_at: found.item.modified_at,
        expires_at: found.item.expires_at,
    });
    let items = items.collect();
    let next = match found.next {
        Some(cursor) => Some(ItemCursor { namespace: space.shown(&Namespace::parse(&cursor.namespace)?), key: cursor.key }),
        None => None,
    };
    json(StatusCode::OK, ItemPage { items, next }).await
}

/// Which namespaces to list.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NamespacesQuery {
    /// Only namespaces that start with these components; `*` matches any one. Default all.
    #[serde(default)]
    prefix: Vec<String>,
    /// Only namespaces that end with these components; `*` matches any one. Default all.
    #[serde(default)]
    suffix: Vec<String>,
    /// Where the previous page ended: the components of its `next`.
    #[serde(default)]
    cursor: Vec<String>,
    /// Truncates namespaces to this many components and removes duplicates.
    #[serde(default)]
    depth_max: Option<usize>,
    /// The most namespaces. Default 100.
    #[serde(default)]
    limit: Option<usize>,
}

/// Namespaces that hold items.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct NamespacesReply {
    /// The components of each namespace.
    namespaces: Vec<Vec<String>>,
    /// Whether there may be more.
    truncated: bool,
    /// The `cursor` of the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<Vec<String>>,
}

pub(super) async fn namespaces(asked: Asked) -> Answer {
    let query: NamespacesQuery = asked.query()?;
    let space = Space::of(&asked, Access::Read)?;
    let mut search = NamespaceSearch::new().with_prefix(space.own.iter().chain(&query.prefix)).with_limit(page(query.limit)?);
    search = search.with_suffix(&query.suffix);
    if !query.cursor.is_empty() {
        search = search.with_start_after(space.namespace(&query.cursor)?);
    }
    if let Some(depth) = query.depth_max {
        search = search.with_depth_max(space.own.len().saturating_add(depth));
    }
    let page = space.items.namespaces(&search).await?;
    // The suffix matches the components that the caller sees, not those before them.
    let is_shown = |shown: &Vec<String>| !shown.is_empty() && (query.depth_max.is_some() || shown.len() >= query.suffix.len());
    let namespaces = page.namespaces.iter().map(|namespace| space.shown(namespace)).filter(is_shown).collect();
    let next = page.next.map(|next| space.shown(&next));
    json(StatusCode::OK, NamespacesReply { namespaces, truncated: next.is_some(), next }).await
}

/// The items of one caller.
struct Space {
    items: JsonStore,
    own: Vec<String>,
}

impl Space {
    fn of(asked: &Asked, access: Access) -> Result<Self> {
        asked.caller.rights.need_history(access)?;
        let scope = &asked.caller.scope;
        let (Some(tenant), Some(user)) = (&scope.tenant, &scope.user) else {
            return Err(Error::invalid_argument(
                "items belong to a tenant and a user, and this caller has none; name them in the configuration",
            ));
        };
        // A component `*` would be literal here but a wildcard in a search.
        if [tenant, user].iter().any(|name| *name == "*") {
            return Err(Error::invalid_argument("a tenant or user named `*` has no items"));
        }
        let own = [tenant.as_str(), user.as_str()].into_iter().chain(ITEMS_NAMESPACE).map(str::to_owned).collect();
        Ok(Self { items: JsonStore::new(asked.api.store.clone()), own })
    }

    fn namespace(&self, components: &[String]) -> Result<Namespace> {
        if components.is_empty() {
            return Err(Error::invalid_argument("name at least one component of the namespace"));
        }
        // It would lie beneath the caller's own namespace, but such a request aims at rows that no request may reach.
        refuse_reserved(&Namespace::new(components)?)?;
        Namespace::new(self.own.iter().chain(components))
    }

    fn shown(&self, namespace: &Namespace) -> Vec<String> {
        namespace.components().skip(self.own.len()).map(|component| component.into_owned()).collect()
    }
}

fn absent(query: &ItemQuery) -> Failed {
    Error::new(ErrorKind::NotFound, format!("there is no item `{}` in `{}`", query.key, query.namespace.join("/"))).into()
}

/// Returns the condition in the headers of a request.
fn condition(asked: &Asked) -> Result<Option<Condition>> {
    let headers = &asked.head.headers;
    match (Tags::of(headers, &header::IF_MATCH, false)?, Tags::<Version>::of(headers, &header::IF_NONE_MATCH, true)?) {
        (None, None) => Ok(None),
        (Some(Tags::Any), None) => Ok(Some(Condition::Exists)),
        (Some(Tags::Versions(versions)), None) => match versions.as_slice() {
            [] => Ok(Some(Condition::Version(Version::new(0)))),
            [version] => Ok(Some(Condition::Version(*version))),
            _ => Err(Error::invalid_argument("`If-Match` of an item must be a single tag")),
        },
        (None, Some(Tags::Any)) => Ok(Some(Condition::Absent)),
        _ => Err(Error::invalid_argument("a condition must be `If-Match` with a tag or `*`, or `If-None-Match: *`")),
    }
}

fn conditional(error: Error, asked: bool) -> Failed {
    if asked && error.kind() == ErrorKind::Conflict { Failed::precondition(error) } else { error.into() }
}

fn page(limit: Option<usize>) -> Result<usize> {
    match limit {
        None => Ok(100),
        Some(limit) if (1..=PAGE_MAX).contains(&limit) => Ok(limit),
        Some(limit) => Err(Error::invalid_argument(format!("the limit {limit} is not between 1 and {PAGE_MAX}"))),
    }
}
