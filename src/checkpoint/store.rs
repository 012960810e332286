//! Saved threads as rows of a store: one row a thread, so that a save is one conditional put.

use super::{SavedThread, ThreadInfo, ThreadPage, Threads, record};
use crate::backend::StateSnapshot;
use crate::error::{Error, ErrorKind, Result};
use crate::ops::Version;
use crate::scope::Scope;
use crate::store::{Batch, Condition, Item, Namespace, ScanEntry, ScanOptions, Store};
use async_trait::async_trait;
use std::fmt;
use std::sync::Arc;

/// The first component of the namespaces that threads are saved in: nothing else may be kept beneath it.
pub const RESERVED_NAMESPACE: &str = "threads";

/// Threads saved in a [`Store`], in the namespace `threads/{tenant}/{user}`, under their id.
///
/// A scope without a tenant or user has `-` in its place; an id that starts with `-` is kept with one more in front, so the
/// two never meet.
#[derive(Debug, Clone)]
pub struct StoreThreads {
    store: Arc<dyn Store>,
}

impl StoreThreads {
    /// Keeps threads in a store.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store }
    }
}

#[async_trait]
impl Threads for StoreThreads {
    async fn load(&self, scope: &Scope) -> Result<Option<SavedThread>> {
        let (namespace, thread) = place(scope)?;
        let Some(item) = self.store.get(&namespace, thread).await? else { return Ok(None) };
        Ok(Some(SavedThread { state: record::read(&item.value)?, version: item.version }))
    }

    async fn save(&self, scope: &Scope, state: &StateSnapshot, expected: Option<Version>) -> Result<Version> {
        let (namespace, thread) = place(scope)?;
        let condition = expected.map_or(Condition::Absent, Condition::Version);
        let batch = Batch::new().expect(&namespace, thread, condition).put_with_meta(
            &namespace,
            thread,
            record::summary(state)?,
            record::write(state)?,
        );
        let versions = self.store.commit(batch).await.map_err(|error| match error.kind() {
            ErrorKind::Conflict => saved_meanwhile(thread, &error),
            _ => error,
        })?;
        versions.first().copied().ok_or_else(|| Error::new(ErrorKind::Internal, "a batch of one put returned no version"))
    }

    async fn list(&self, scope: &Scope, start_after: Option<&str>, limit: usize) -> Result<ThreadPage> {
        let mut options = ScanOptions::new().with_limit(limit);
        options.start_after = start_after.map(str::to_owned);
        let scan = self.store.scan(&namespace(scope)?, options).await?;
        let threads = scan
            .entries
            .into_iter()
            .filter_map(|entry| match entry {
                ScanEntry::Item(item) => Some(info(item)),
                ScanEntry::Group { .. } => None,
            })
            .collect::<Result<_>>()?;
        Ok(ThreadPage { threads, next: scan.next })
    }

    async fn delete(&self, scope: &Scope) -> Result<()> {
        let (namespace, thread) = place(scope)?;
        let batch = Batch::new().expect(&namespace, thread, Condition::Exists).delete(&namespace, thread);
        self.store.commit(batch).await.map(drop).map_err(|error| match error.kind() {
            ErrorKind::Conflict => {
                Error::new(ErrorKind::NotFound, format!("no thread `{thread}` is saved; `stratafs thread ls` lists them"))
            }
            _ => error,
        })
    }
}

impl fmt::Display for StoreThreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Threads({})", self.store)
    }
}

fn place(scope: &Scope) -> Result<(Namespace, &str)> {
    let thread = scope.thread.as_deref().ok_or_else(|| Error::invalid_argument("the scope names no thread; set one"))?;
    Ok((namespace(scope)?, thread))
}

fn namespace(scope: &Scope) -> Result<Namespace> {
    scope.validate()?;
    Namespace::new([RESERVED_NAMESPACE, &component(scope.tenant.as_deref()), &component(scope.user.as_deref())])
}

fn component(id: Option<&str>) -> String {
    match id {
        None => "-".to_owned(),
        Some(id) if id.starts_with('-') => format!("-{id}"),
        Some(id) => id.to_owned(),
    }
}

fn info(item: Item) -> Result<ThreadInfo> {
    let summary = record::read_summary(&item.meta)?;
    Ok(ThreadInfo {
        thread: item.key,
        version: item.version,
        entries: summary.entries,
        size_bytes: summary.size_bytes,
        created_at: item.created_at,
        saved_at: item.modified_at,
    })
}

fn saved_meanwhile(thread: &str, conflict: &Error) -> Error {
    let now = match conflict.current_version() {
        Some(version) => format!("it was saved by another session meanwhile, as version `{version}`"),
        None => "it was removed meanwhile".to_owned(),
    };
    let message =
        format!("thread `{thread}` is not saved: {now}; do the changes again on the thread as it is, or save them as another thread");
    Error::new(ErrorKind::Conflict, message).with_current_version(conflict.current_version())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{Backend, BackendExt, StateBackend};
    use crate::ops::ReadOptions;
    use crate::path::VfsPath;
    use crate::store::MemoryStore;

    fn threads() -> (StoreThreads, Arc<MemoryStore>) {
        let store = Arc::new(MemoryStore::new());
        (StoreThreads::new(store.clone()), store)
    }

    fn scope(thread: &str) -> Scope {
        Scope::new().with_tenant("acme").with_user("ada").with_thread(thread)
    }

    #[tokio::test]
    async fn a_state_comes_back_whole() {
        let (threads, _) = threads();
        let tree = StateBackend::new();
        tree.write("/bytes", &b"\xff\0\r\n"[..]).await.expect("written");
        tree.write("/d/empty", "").await.expect("written");
        tree.create_dir("/hollow").await.expect("made");
        let state = tree.snapshot();
        let version = threads.save(&scope("t"), &state, None).await.expect("saved");
        let saved = threads.load(&scope("t")).await.expect("read").expect("it was saved");
        assert_eq!(saved.version, version);
        assert_eq!(saved.state.version(), state.version());
        assert_eq!(saved.state.changes_since(&state).count(), 0);
        assert_eq!(saved.state.read_bytes("/bytes").await.expect("a file"), &b"\xff\0\r\n"[..]);
        let path = VfsPath::parse("/d/empty").expect("a legal path");
        let (was, is) = (state.read(&path, &ReadOptions::new()).await, saved.state.read(&path, &ReadOptions::new()).await);
        assert_eq!(was.expect("a file"), is.expect("a file"), "version and time as well");
    }

    #[tokio::test]
    async fn the_second_saver_is_told_and_overwrites_nothing() {
        let (threads, _) = threads();
        let (one, other) = (StateBackend::new(), StateBackend::new());
        one.write("/a", "one").await.expect("written");
        other.write("/a", "other").await.expect("written");
        let first = threads.save(&scope("t"), &one.snapshot(), None).await.expect("saved");
        let error = threads.save(&scope("t"), &other.snapshot(), None).await.expect_err("saved already");
        assert_eq!((error.kind(), error.current_version()), (ErrorKind::Conflict, Some(first)));
        assert!(error.message().contains("do the changes again"), "{error}");
        threads.save(&scope("t"), &other.snapshot(), Some(first)).await.expect("knowing of the first");
        threads.delete(&scope("t")).await.expect("deleted");
        let error = threads.save(&scope("t"), &one.snapshot(), Some(first)).await.expect_err("removed");
        assert_eq!((error.kind(), error.current_version()), (ErrorKind::Conflict, None));
    }

    #[tokio::test]
    async fn scopes_do_not_meet() {
        let (threads, _) = threads();
        let empty = StateSnapshot::new();
        let absent = Scope::new().with_thread("t");
        let dash = Scope::new().with_tenant("-").with_user("-").with_thread("t");
        threads.save(&scope("t"), &empty, None).await.expect("saved");
        threads.save(&absent, &empty, None).await.expect("saved");
        threads.save(&dash, &empty, None).await.expect("saved: not the one without tenant and user");
        threads.save(&scope("t").with_user("a/da"), &empty, None).await.expect("saved");
        let page = threads.list(&scope("any"), None, 10).await.expect("listed");
        assert_eq!(page.threads.len(), 1);
        assert_eq!(threads.load(&Scope::new()).await.expect_err("no thread").kind(), ErrorKind::InvalidArgument);
    }

    #[tokio::test]
    async fn lists_by_page_without_content_and_deletes() {
        let (threads, _) = threads();
        let tree = StateBackend::new();
        tree.write("/d/a", "12345").await.expect("written");
        for id in ["b", "a", "c"] {
            threads.save(&scope(id), &tree.snapshot(), None).await.expect("saved");
        }
        let page = threads.list(&scope("-"), None, 2).await.expect("listed");
        let ids = |page: &ThreadPage| page.threads.iter().map(|info| info.thread.clone()).collect::<Vec<_>>();
        assert_eq!(ids(&page), ["a", "b"]);
        assert_eq!((page.threads[0].entries, page.threads[0].size_bytes), (2, 5));
        let rest = threads.list(&scope("-"), page.next.as_deref(), 2).await.expect("listed");
        assert_eq!((ids(&rest), rest.next), (vec!["c".to_owned()], None));
        threads.delete(&scope("b")).await.expect("deleted");
        assert!(threads.load(&scope("b")).await.expect("read").is_none());
        assert_eq!(threads.delete(&scope("b")).await.expect_err("gone").kind(), ErrorKind::NotFound);
    }

    #[tokio::test]
    async fn what_cannot_be_read_is_no_empty_thread() {
        let (threads, store) = threads();
        let tree = StateBackend::new();
        tree.write("/a", "one").await.expect("written");
        threads.save(&scope("t"), &tree.snapshot(), None).await.expect("saved");
        let namespace = namespace(&scope("t")).expect("a legal namespace");
        let item = store.get(&namespace, "t").await.expect("read").expect("a row");
        for damage in [&item.value[..item.value.len() / 2], b"", b"\0", b"\x02later"] {
            store.commit(Batch::new().put(&namespace, "t", damage.to_vec())).await.expect("damaged");
            assert_eq!(threads.load(&scope("t")).await.expect_err("unreadable").kind(), ErrorKind::Corrupt, "{damage:?}");
        }
    }
}
