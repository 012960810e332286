//! JSON items for applications: a thin, typed face over any [`Store`].
//!
//! The words are those of LangGraph's `BaseStore` (namespaces, keys, values, filters, time to live), and so are the rules where
//! they are sound. Where they are not, this differs: a namespace is matched whole unless [`JsonSearch::with_beneath`] asks for
//! what lies beneath it, pages go on by key and not by offset, a put keeps the creation time, every item has a version and a
//! put can expect one. Items are ordinary rows, so `stratafs store` and every engine serve them.
//!
//! Start with [`JsonStore`]; `filter.rs` holds what a filter matches, `search.rs` the search, `namespaces.rs` the listing.

use super::{Batch, Condition, Item, Namespace, Store};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::ops::Version;
use bytes::Bytes;
use futures::StreamExt as _;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

mod filter;
mod namespaces;
mod search;

pub use filter::JsonFilter;
pub use namespaces::{JsonNamespacePage, NamespaceSearch};
pub use search::{JsonCursor, JsonFound, JsonPage, JsonSearch};

/// How every meta of an item starts. Rows without a meta are items too if they hold JSON.
const MARK: &str = "json";

/// How often an update is tried when others change the item meanwhile.
const UPDATE_ATTEMPTS_MAX: u32 = 32;

/// Of an item whose time to live counts from its last read: a read within the first tenth of it does not write.
const REFRESH_AFTER: u32 = 10;

/// How many ends are moved at the same time.
const REFRESHES_AT_ONCE: usize = 16;

/// JSON items in a store.
///
/// # Examples
/// ```
/// use serde_json::{Value, json};
/// use std::sync::Arc;
/// use stratafs::store::{Condition, JsonFilter, JsonSearch, JsonStore, MemoryStore, Namespace};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> stratafs::Result<()> {
/// let items = JsonStore::new(Arc::new(MemoryStore::new()));
/// let tasks = Namespace::new(["ada", "tasks"])?;
/// let version = items.put(&tasks, "walk", &json!({"dog": "Rex", "minutes": 30})).await?;
/// items.put(&tasks, "feed", &json!({"dog": "Rex", "minutes": 5})).await?;
///
/// let long = JsonSearch::new().with_filter(JsonFilter::parse(&json!({"minutes": {"$gte": 10}}))?);
/// let found = items.search::<Value>(&tasks, &long).await?.items;
/// assert_eq!(found.iter().map(|item| &*item.key).collect::<Vec<_>>(), ["walk"]);
///
/// // A put that expects what was read is refused once somebody else was faster.
/// items.put_if(&tasks, "walk", &json!({"done": true}), Condition::Version(version)).await?;
/// assert!(items.put_if(&tasks, "walk", &json!({"done": false}), Condition::Version(version)).await.is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct JsonStore {
    store: Arc<dyn Store>,
    time_to_live: Option<Duration>,
    refreshes: bool,
    clock: Clock,
}

/// An item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct JsonItem<T> {
    /// The key.
    pub key: String,
    /// The value.
    pub value: T,
    /// The version of the put that wrote it, for [`JsonStore::put_if`].
    pub version: Version,
    /// When the key first appeared.
    pub created_at: Timestamp,
    /// When it was last put.
    pub modified_at: Timestamp,
    /// When it becomes absent by itself. Of an item that this read let live longer, as it was before.
    pub expires_at: Option<Timestamp>,
}

impl JsonStore {
    /// Keeps items in `store`; they live for good.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store, time_to_live: None, refreshes: true, clock: Clock::system() }
    }

    /// Sets where the time comes from that decides whether a read moves an item's end: that of the store.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Sets how long an item lives after it was put, or after it was last read (see
    /// [`with_refresh_on_read`](Self::with_refresh_on_read)). Items that are there already keep theirs.
    #[must_use]
    pub fn with_time_to_live(mut self, time_to_live: Option<Duration>) -> Self {
        self.time_to_live = time_to_live;
        self
    }

    /// Sets whether a read lets an item with a time to live begin it anew. Default true. It is a write of the end alone, which
    /// leaves the version as it is, and is left out while the item was put or read within the last tenth of its time.
    #[must_use]
    pub fn with_refresh_on_read(mut self, refreshes: bool) -> Self {
        self.refreshes = refreshes;
        self
    }

    /// Returns the store beneath.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Tells whether a row can be an item, by its meta: one that was put by other means has none, and what has another is a file
    /// or a part of a thread.
    pub fn is_item(row: &Item) -> bool {
        row.meta.is_empty() || row.meta.starts_with(MARK.as_bytes())
    }

    /// Returns one item, or none.
    ///
    /// Cost: one round trip, and a second one when its end is moved.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) when the row holds no JSON, or none of that type; the store's own as in
    /// [`Store::get`].
    pub async fn get<T: DeserializeOwned>(&self, namespace: &Namespace, key: &str) -> Result<Option<JsonItem<T>>> {
        let Some(row) = self.store.get(namespace, key).await? else { return Ok(None) };
        let item = item_of(namespace, &row)?;
        self.refresh(&[(namespace, &row)]).await;
        Ok(Some(item))
    }

    /// Puts an item: creates it, or replaces it whole and keeps its creation time. Returns its version.
    ///
    /// Cost: one round trip.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a value that is no JSON (a map with keys that are no text, say) and the
    /// store's own as in [`Store::commit`].
    pub async fn put<T: Serialize + ?Sized>(&self, namespace: &Namespace, key: &str, value: &T) -> Result<Version> {
        self.write(Batch::new(), namespace, key, value, self.time_to_live).await
    }

    /// Puts an item that lives for `time_to_live`, or for good, whatever is set for the others.
    ///
    /// # Errors
    /// As [`JsonStore::put`].
    pub async fn put_for<T: Serialize + ?Sized>(
        &self,
        namespace: &Namespace,
        key: &str,
        value: &T,
        time_to_live: Option<Duration>,
    ) -> Result<Version> {
        self.write(Batch::new(), namespace, key, value, time_to_live).await
    }

    /// Puts an item if a condition holds for what is there: `Absent` creates only, `Version` replaces only what was read.
    ///
    /// Cost: one round trip.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) when it does not hold, with the version met; as [`JsonStore::put`].
    pub async fn put_if<T: Serialize + ?Sized>(
        &self,
        namespace: &Namespace,
        key: &str,
        value: &T,
        condition: Condition,
    ) -> Result<Version> {
        self.write(Batch::new().expect(namespace, key, condition), namespace, key, value, self.time_to_live).await
    }

    /// Replaces the value of an item by what `change` makes of it, and starts over when somebody else put it meanwhile, so that no
    /// update is lost. Returns its new version. `change` gets none where there is no item, and may be called several times.
    ///
    /// Cost: two round trips for each attempt.
    ///
    /// # Errors
    /// Those of `change`; [`Conflict`](ErrorKind::Conflict) when others are faster 32 times in a row; as [`JsonStore::get`] and
    /// [`JsonStore::put`].
    pub async fn update<T: Serialize + DeserializeOwned>(
        &self,
        namespace: &Namespace,
        key: &str,
        mut change: impl FnMut(Option<T>) -> Result<T>,
    ) -> Result<Version> {
        let mut attempts = 1;
        loop {
            let row = self.store.get(namespace, key).await?;
            let condition = row.as_ref().map_or(Condition::Absent, |row| Condition::Version(row.version));
            let value = row.as_ref().map(|row| item_of(namespace, row)).transpose()?.map(|item: JsonItem<T>| item.value);
            // An item keeps the time to live it was put with.
            let time_to_live = row.as_ref().map_or(self.time_to_live, time_to_live_of);
            let batch = Batch::new().expect(namespace, key, condition);
            match self.write(batch, namespace, key, &change(value)?, time_to_live).await {
                Err(error) if error.kind() == ErrorKind::Conflict && attempts < UPDATE_ATTEMPTS_MAX => attempts += 1,
                written => return written,
            }
        }
    }

    /// Removes an item; one that is absent is no error.
    ///
    /// # Errors
    /// As [`Store::commit`].
    pub async fn delete(&self, namespace: &Namespace, key: &str) -> Result<()> {
        self.store.commit(Batch::new().delete(namespace, key)).await.map(drop)
    }

    /// Removes an item if a condition holds for it.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) when it does not hold; as [`Store::commit`].
    pub async fn delete_if(&self, namespace: &Namespace, key: &str, condition: Condition) -> Result<()> {
        self.store.commit(Batch::new().expect(namespace, key, condition).delete(namespace, key)).await.map(drop)
    }

    async fn write<T: Serialize + ?Sized>(
        &self,
        batch: Batch,
        namespace: &Namespace,
        key: &str,
        value: &T,
        time_to_live: Option<Duration>,
    ) -> Result<Version> {
        let bytes = serde_json::to_vec(value)
            .map_err(|source| Error::invalid_argument(format!("the value of `{key}` is no JSON: {source}")).with_source(source))?;
        let batch = batch.put_item(namespace, key, meta_of(time_to_live), bytes, time_to_live);
        let versions = self.store.commit(batch).await?;
        versions.first().copied().ok_or_else(|| Error::new(ErrorKind::Internal, "a store returned no version for a put"))
    }

    /// Lets items that were read live on, those of which a good part of their time has gone. What fails here is not the reader's:
    /// the value that was read is right all the same.
    async fn refresh(&self, rows: &[(&Namespace, &Item)]) {
        if !self.refreshes {
            return;
        }
        let now = self.clock.now();
        // Owned before anything is awaited, so that the future may move between threads.
        let mut touches = Vec::new();
        for (namespace, row) in rows {
            let (Some(time_to_live), Some(expires_at)) = (time_to_live_of(row), row.expires_at) else { continue };
            let begun = expires_at.checked_sub(time_to_live).unwrap_or(row.modified_at);
            let is_young = begun.checked_add(time_to_live / REFRESH_AFTER).is_ok_and(|until| now < until);
            // The version keeps a touch away from an item that was put anew meanwhile.
            let batch = Batch::new().expect(namespace, &*row.key, Condition::Version(row.version));
            if !is_young {
                touches.push(self.store.commit(batch.touch(namespace, &*row.key, Some(time_to_live))));
            }
        }
        // A few at a time: they share the store's commits, and a long page does not crowd out those who write.
        let mut touched = futures::stream::iter(touches).buffer_unordered(REFRESHES_AT_ONCE);
        while let Some(touched) = touched.next().await {
            if let Err(error) = touched
                && error.kind() != ErrorKind::Conflict
            {
                tracing::warn!(%error, "the end of an item that was read could not be moved");
            }
        }
    }
}

/// Makes the meta of an item: the mark, and the time to live that a read begins anew.
fn meta_of(time_to_live: Option<Duration>) -> Bytes {
    match time_to_live {
        Some(duration) => format!("{MARK};ttl={}", duration.as_micros()).into(),
        None => Bytes::from_static(MARK.as_bytes()),
    }
}

/// Returns the time to live that an item was put with.
fn time_to_live_of(row: &Item) -> Option<Duration> {
    let text = std::str::from_utf8(&row.meta).ok()?;
    let micros = text.strip_prefix(MARK)?.strip_prefix(";ttl=")?.parse().ok()?;
    Some(Duration::from_micros(micros))
}

/// Reads the item of a row.
fn item_of<T: DeserializeOwned>(namespace: &Namespace, row: &Item) -> Result<JsonItem<T>> {
    if !JsonStore::is_item(row) {
        let message = format!("the row `{}` of `{namespace}` is no JSON item but a part of a file tree or thread", shown(&row.key));
        return Err(Error::invalid_argument(message));
    }
    let value = serde_json::from_slice(&row.value).map_err(|source| {
        let message = format!("the row `{}` of `{namespace}` is not the JSON that was asked for: {source}", shown(&row.key));
        Error::invalid_argument(message).with_source(source)
    })?;
    Ok(with_value(row, value))
}

fn with_value<T>(row: &Item, value: T) -> JsonItem<T> {
    let Item { key, version, created_at, modified_at, expires_at, .. } = row.clone();
    JsonItem { key, value, version, created_at, modified_at, expires_at }
}

fn shown(key: &str) -> String {
    key.escape_debug().collect()
}

#[cfg(test)]
mod tests;
