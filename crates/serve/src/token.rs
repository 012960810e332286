//! Tokens: secrets that identify a caller and their rights, stored as hashes.
//!
//! | namespace | key | value |
//! | --- | --- | --- |
//! | `_treehold/tokens` | token id | record as JSON, including the hash of the token |
//! | `_treehold/tokens/used` | token id | when it was last used, to the minute (RFC 3339) |
//!
//! A token is written `thd_ID_SECRET`, both parts in hexadecimal: 76 random bits for the id, 244 for the secret. The text is shown once,
//! when the token is created. The secret is random and long, so one pass of BLAKE3 suffices: a slow hash only helps secrets that can be
//! guessed.

use super::rights::Rights;
use jiff::Timestamp;
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::scope::Scope;
use treehold_mcp::REMEMBERED_FOR;
use treehold_store::{Batch, Condition, Item, Namespace, ScanEntry, ScanOptions, Store};
use uuid::Uuid;

/// The namespace that token namespaces lie beneath.
pub const TOKENS_NAMESPACE: [&str; 2] = treehold_core::reserved::TOKENS;

/// The prefix of every token in a [`TokenBook`].
const PREFIX: &str = "thd_";

/// The prefix of tokens that a [`TokenBook`] made under the former name. Stores that were migrated hold them.
const FORMER_PREFIX: &str = "sfs_";

/// The minimum interval at which a server records the use of a token.
const NOTED_EVERY: Duration = Duration::from_secs(60);

/// The most tokens to cache.
const READ_MAX: usize = 10_000;

/// How many rows a list reads at once.
const PAGE_ROWS: usize = if cfg!(test) { 2 } else { 1_000 };

/// A secret that requests must send. Only its hash is kept, and it is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(blake3::Hash);

impl Token {
    /// The minimum length of a token in bytes; shorter ones can be guessed.
    pub const BYTES_MIN: usize = 16;

    /// Takes a token. Trailing line breaks, as at the end of a file, are removed.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for text that is too short or contains anything but visible ASCII.
    pub fn new(text: &str) -> Result<Self> {
        let text = text.trim_end_matches(['\n', '\r']);
        if text.len() < Self::BYTES_MIN || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            let message = format!("a token must have at least {} characters, all of them visible ASCII", Self::BYTES_MIN);
            return Err(Error::invalid_argument(message));
        }
        Ok(Self(blake3::hash(text.as_bytes())))
    }

    /// Returns whether the text is the token. Compares hashes in constant time.
    pub(super) fn is(&self, text: &[u8]) -> bool {
        self.0 == blake3::hash(text)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// The record of a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct TokenRecord {
    /// The id, which is not secret.
    pub id: String,
    /// The scope of its calls: tenant and user, and the thread of calls that name none.
    pub scope: Scope,
    /// What its caller may do.
    pub rights: Rights,
    /// Its purpose, as described by whoever created it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// When it was last used, to the minute. Only a list reports it; absent if the token has not been used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_at: Option<Timestamp>,
}

/// A record as stored.
#[derive(Serialize, Deserialize)]
struct Row {
    #[serde(flatten)]
    record: TokenRecord,
    /// The BLAKE3 hash of the whole token, in hexadecimal.
    hash: String,
}

/// The tokens of a store.
pub struct TokenBook {
    store: Arc<dyn Store>,
    namespace: Namespace,
    /// The times of last use. They have rows of their own, so that recording a use never conflicts with revoking the token.
    used: Namespace,
    read: Arc<Mutex<HashMap<String, Read>>>,
    /// When each token's use was last recorded.
    noted: Mutex<HashMap<String, Instant>>,
    /// Counts the changes of tokens that the store has reported.
    changes: watch::Sender<u64>,
    /// Whether a task is watching the store. It runs as long as there are receivers.
    is_told: Arc<Mutex<bool>>,
}

/// When a token was looked up, and the result.
type Read = (Instant, Option<Arc<Known>>);

/// A token that was read from the store.
struct Known {
    record: TokenRecord,
    hash: blake3::Hash,
}

impl TokenBook {
    /// Opens the tokens of a store.
    pub fn new(store: Arc<dyn Store>) -> Self {
        let namespace = Namespace::new(TOKENS_NAMESPACE).expect("the components are valid constants");
        let used = Namespace::new(TOKENS_NAMESPACE.into_iter().chain(["used"])).expect("the components are valid constants");
        Self {
            store,
            namespace,
            used,
            read: Arc::default(),
            noted: Mutex::default(),
            changes: watch::Sender::new(0),
            is_told: Arc::default(),
        }
    }

    /// Creates a token. Returns its record and its text, which is not stored.
    ///
    /// Cost: one conditional put.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for an invalid scope, and errors of the store.
    pub async fn create(
        &self,
        scope: Scope,
        rights: Rights,
        label: Option<String>,
        expires_at: Option<Timestamp>,
    ) -> Result<(TokenRecord, String)> {
        scope.validate()?;
        let id = Uuid::new_v4().simple().to_string()[..20].to_owned();
        let secret = format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
        let text = format!("{PREFIX}{id}_{secret}");
        let record = TokenRecord { id: id.clone(), scope, rights, label, created_at: Timestamp::now(), expires_at, used_at: None };
        let row = Row { record: record.clone(), hash: blake3::hash(text.as_bytes()).to_hex().to_string() };
        let value =
            serde_json::to_vec(&row).map_err(|error| Error::new(ErrorKind::Internal, "a token cannot be encoded").with_source(error))?;
        self.store.commit(Batch::new().expect(&self.namespace, &*id, Condition::Absent).put(&self.namespace, &*id, value)).await?;
        Ok((record, text))
    }

    /// Returns all tokens, ordered by id.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) for a malformed row, and errors of the store.
    pub async fn list(&self) -> Result<Vec<TokenRecord>> {
        let mut records = Vec::new();
        for row in self.rows(&self.namespace).await? {
            records.push(known(&row.value)?.record);
        }
        let used: HashMap<String, Timestamp> = self.rows(&self.used).await?.into_iter().filter_map(used_at).collect();
        records.iter_mut().for_each(|record| record.used_at = used.get(record.id.as_str()).copied());
        Ok(records)
    }

    /// Reads all rows of a namespace.
    async fn rows(&self, namespace: &Namespace) -> Result<Vec<Item>> {
        let mut options = ScanOptions::new().with_limit(PAGE_ROWS).with_values(true);
        let mut rows = Vec::new();
        loop {
            let page = self.store.scan(namespace, options.clone()).await?;
            rows.extend(page.entries.into_iter().filter_map(|entry| if let ScanEntry::Item(item) = entry { Some(item) } else { None }));
            match page.next {
                Some(next) => options.start_after = Some(next),
                None => return Ok(rows),
            }
        }
    }

    /// Records the use of a token in the background, at most once a minute. A failed write is dropped.
    fn note_use(&self, id: &str) {
        let mut noted = self.noted.lock();
        if noted.get(id).is_some_and(|at| at.elapsed() < NOTED_EVERY) {
            return;
        }
        if noted.len() >= READ_MAX {
            noted.clear();
        }
        noted.insert(id.to_owned(), Instant::now());
        drop(noted);
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        // The condition skips the write if the token was revoked meanwhile.
        let batch = Batch::new().expect(&self.namespace, id, Condition::Exists).put(&self.used, id, now.into_bytes());
        let store = self.store.clone();
        tokio::spawn(async move {
            if let Err(error) = store.commit(batch).await {
                tracing::debug!(%error, "the use of a token was not recorded");
            }
        });
    }

    /// Revokes a token. Servers refuse it within a second.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) if there is no such token, and errors of the store.
    pub async fn revoke(&self, id: &str) -> Result<()> {
        let batch = Batch::new().expect(&self.namespace, id, Condition::Exists).delete(&self.namespace, id).delete(&self.used, id);
        self.read.lock().remove(id);
        match self.store.commit(batch).await {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == ErrorKind::Conflict => {
                Err(Error::new(ErrorKind::NotFound, format!("there is no token `{id}`; list the tokens for a valid id")))
            }
            Err(error) => Err(error),
        }
    }

    /// Returns a receiver that is notified of each change of a token by any process, until it is dropped.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        let mut is_told = self.is_told.lock();
        let told = self.changes.subscribe();
        if !std::mem::replace(&mut *is_told, true) {
            let (store, namespace, read) = (self.store.clone(), self.namespace.clone(), self.read.clone());
            tokio::spawn(tell(store, namespace, read, self.changes.clone(), self.is_told.clone()));
        }
        told
    }

    /// Looks a token up by its text, as [`TokenBook::find`] does, and records the use.
    ///
    /// # Errors
    /// Errors of the store.
    pub(super) async fn used(&self, text: &[u8]) -> Result<Option<TokenRecord>> {
        let found = self.find(text).await?;
        if let Some(record) = &found {
            self.note_use(&record.id);
        }
        Ok(found)
    }

    /// Looks a token up by its text. Returns `None` if it is unknown or expired. A lookup is cached for a second.
    ///
    /// # Errors
    /// Errors of the store.
    pub(super) async fn find(&self, text: &[u8]) -> Result<Option<TokenRecord>> {
        let Some(id) = id_of(text) else { return Ok(None) };
        let read = self.read.lock().get(id).filter(|(at, _)| at.elapsed() < REMEMBERED_FOR).map(|(_, known)| known.clone());
        let known = match read {
            Some(known) => known,
            None => {
                let row = self.store.get(&self.namespace, id).await?;
                let known = row.map(|row| known(&row.value)).transpose()?.map(Arc::new);
                let mut read = self.read.lock();
                if read.len() >= READ_MAX {
                    read.clear();
                }
                read.insert(id.to_owned(), (Instant::now(), known.clone()));
                known
            }
        };
        // Hashes are compared in constant time. Whether an id exists is not secret.
        let found = known.filter(|known| known.hash == blake3::hash(text));
        Ok(found.map(|known| known.record.clone()).filter(|record| record.expires_at.is_none_or(|end| Timestamp::now() < end)))
    }
}

/// Reports changes of tokens and clears the cache on each, until there are no receivers.
async fn tell(
    store: Arc<dyn Store>,
    namespace: Namespace,
    read: Arc<Mutex<HashMap<String, Read>>>,
    changes: watch::Sender<u64>,
    is_told: Arc<Mutex<bool>>,
) {
    let mut watched = store.watch(&namespace).await;
    loop {
        let changed = async {
            match &mut watched {
                Ok(watch) => watch.changed().await.map(drop).map_err(|error| error.message().to_owned()),
                Err(error) => Err(error.message().to_owned()),
            }
        };
        tokio::select! {
            changed = changed => {
                if let Err(error) = changed {
                    // Receivers also poll at intervals, and the next caller of `changes` starts a new task.
                    tracing::debug!(%error, "the store reported no changes of tokens");
                    *is_told.lock() = false;
                    return;
                }
                read.lock().clear();
                changes.send_modify(|count| *count += 1);
            }
            () = changes.closed() => {
                let mut is_told = is_told.lock();
                if changes.receiver_count() == 0 {
                    *is_told = false;
                    return;
                }
            }
        }
    }
}

impl fmt::Debug for TokenBook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenBook").field("store", &self.store).finish_non_exhaustive()
    }
}

/// Returns the id in a token's text, if it has the format of a [`TokenBook`] token.
fn id_of(text: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(text).ok()?;
    let rest = text.strip_prefix(PREFIX).or_else(|| text.strip_prefix(FORMER_PREFIX))?;
    let (id, secret) = rest.split_once('_')?;
    let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    (id.len() == 20 && secret.len() == 64 && is_hex(id) && is_hex(secret)).then_some(id)
}

/// Returns the id of a token and when it was used last, from the row of its use.
fn used_at(row: Item) -> Option<(String, Timestamp)> {
    let at = std::str::from_utf8(&row.value).ok()?.parse().ok()?;
    Some((row.key, at))
}

fn known(value: &[u8]) -> Result<Known> {
    let corrupt = || Error::new(ErrorKind::Corrupt, "the record of a token cannot be read; revoke it and create another");
    let row: Row = serde_json::from_slice(value).map_err(|error| corrupt().with_source(error))?;
    let hash = blake3::Hash::from_hex(&row.hash).map_err(|error| corrupt().with_source(error))?;
    Ok(Known { record: row.record, hash })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Access;
    use treehold_store::MemoryStore;

    #[test]
    fn token_is_compared_whole_and_not_printed() {
        let token = Token::new("0123456789abcdef\n").expect("long enough");
        assert!(token.is(b"0123456789abcdef"));
        assert!(!token.is(b"0123456789abcdeg") && !token.is(b"") && !token.is(b"0123456789abcdef\n"));
        assert_eq!(format!("{token:?}"), "Token(..)");
        for text in ["short", "0123456789abcde f", "0123456789abcdeü"] {
            assert_eq!(Token::new(text).expect_err("no token").kind(), ErrorKind::InvalidArgument);
        }
    }

    #[tokio::test]
    async fn token_is_found_by_whole_text_until_revoked() {
        let store = Arc::new(MemoryStore::new());
        let book = TokenBook::new(store.clone());
        let scope = Scope::new().with_tenant("acme").with_user("ada");
        let rights = Rights::new(Access::Write);
        let (record, text) = book.create(scope.clone(), rights.clone(), Some("laptop".to_owned()), None).await.expect("made");
        let found = book.used(text.as_bytes()).await.expect("read").expect("there");
        assert_eq!((&found, &found.scope, &found.rights), (&record, &scope, &rights));
        // The use is recorded in the background.
        let mut listed = book.list().await.expect("listed");
        while listed[0].used_at.is_none() {
            tokio::task::yield_now().await;
            listed = book.list().await.expect("listed");
        }
        let age = Timestamp::now().duration_since(listed[0].used_at.take().expect("used"));
        assert!(age.as_secs() < 60, "{age:?}");
        assert_eq!(listed, std::slice::from_ref(&record));
        let used = Namespace::new(TOKENS_NAMESPACE.into_iter().chain(["used"])).expect("legal");
        let version = async || store.get(&used, &record.id).await.expect("read").expect("there").version;
        let first = version().await;
        for _ in 0..100 {
            book.used(text.as_bytes()).await.expect("read").expect("there");
            tokio::task::yield_now().await;
        }
        assert_eq!(version().await, first, "a minute has one note");
        let row = store.get(&Namespace::new(TOKENS_NAMESPACE).expect("legal"), &record.id).await.expect("read").expect("there");
        let secret = text.rsplit('_').next().expect("three parts");
        assert!(!String::from_utf8_lossy(&row.value).contains(secret), "the row does not contain the secret");
        let mut wrong = text.clone().into_bytes();
        let last = wrong.last_mut().expect("not empty");
        *last = if *last == b'0' { b'1' } else { b'0' };
        for none in [&wrong[..], b"", b"thd_", &text.as_bytes()[..text.len() - 1], secret.as_bytes()] {
            assert_eq!(book.find(none).await.expect("read"), None);
        }
        book.revoke(&record.id).await.expect("revoked");
        assert!(store.get(&used, &record.id).await.expect("read").is_none(), "the record of use is removed with the token");
        assert_eq!(book.find(text.as_bytes()).await.expect("read"), None);
        assert_eq!(book.revoke(&record.id).await.expect_err("gone").kind(), ErrorKind::NotFound);
    }

    #[tokio::test]
    async fn list_of_several_pages_holds_every_token_with_its_use() {
        let book = TokenBook::new(Arc::new(MemoryStore::new()));
        let mut made = Vec::new();
        for _ in 0..3 * PAGE_ROWS {
            let (record, text) = book.create(Scope::new(), Rights::new(Access::Read), None, None).await.expect("made");
            book.used(text.as_bytes()).await.expect("read").expect("there");
            made.push(record.id);
        }
        made.sort_unstable();
        loop {
            let listed = book.list().await.expect("listed");
            assert_eq!(listed.iter().map(|record| &record.id).collect::<Vec<_>>(), made.iter().collect::<Vec<_>>());
            // Uses are recorded in the background.
            if listed.iter().all(|record| record.used_at.is_some()) {
                break;
            }
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn expired_token_is_not_found() {
        let book = TokenBook::new(Arc::new(MemoryStore::new()));
        let ended = Some(Timestamp::now() - jiff::SignedDuration::from_secs(1));
        let (_, text) = book.create(Scope::new(), Rights::new(Access::Read), None, ended).await.expect("made");
        assert_eq!(book.find(text.as_bytes()).await.expect("read"), None);
    }
}
