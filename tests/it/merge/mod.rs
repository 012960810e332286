//! Threads that diverge and are merged again, over both checkpointers.

mod history;
mod property;
mod sessions;
mod situations;

use std::collections::BTreeMap;
use std::sync::Arc;
use treehold::checkpoint::{At, CheckpointId, Checkpointer, MergeOptions, MergeOutcome, PutOptions, merge};
use treehold::ops::EntryKind;
use treehold::{BackendExt, MemoryCheckpointer, MemoryStore, Result, Scope, StateBackend, StoreCheckpointer, VfsPathBuf};

/// The content of a tree by path; the name of a directory ends with `/`.
type Files = BTreeMap<String, String>;

/// One edit: a file with its content, a directory (`/d/`), or a removal.
type Edit<'e> = (&'e str, Option<&'e str>);

/// Threads of one user.
#[derive(Clone)]
struct Threads(Arc<dyn Checkpointer>);

/// One of each kind of checkpointer.
fn all() -> [Threads; 2] {
    let store = StoreCheckpointer::new(Arc::new(MemoryStore::new()));
    [Threads(Arc::new(MemoryCheckpointer::new())), Threads(Arc::new(store))]
}

fn path(text: &str) -> VfsPathBuf {
    VfsPathBuf::parse(text).unwrap()
}

fn scope(thread: &str) -> Scope {
    Scope::new().with_user("ada").with_thread(thread)
}

impl Threads {
    /// Edits the newest state of a thread and makes a checkpoint of it.
    async fn edit(&self, thread: &str, edits: &[Edit<'_>]) -> CheckpointId {
        let opened = self.0.open(&scope(thread), At::Latest).await.unwrap();
        let (state, head) = opened.map_or_else(Default::default, |opened| (opened.state, opened.head));
        let tree = StateBackend::from_snapshot(&state);
        for (path, content) in edits {
            match content {
                None => drop(tree.delete_all(path).await.unwrap()),
                Some(_) if path.ends_with('/') => drop(tree.create_dir(path).await.unwrap()),
                Some(content) => drop(tree.write(path, (*content).to_owned()).await.unwrap()),
            }
        }
        let options = PutOptions::new().with_head(head);
        self.0.put(&scope(thread), &tree.snapshot(), &options).await.unwrap().checkpoint.id
    }

    async fn fork(&self, thread: &str, other: &str) {
        self.0.fork(&scope(thread), At::Latest, other, &PutOptions::new()).await.unwrap();
    }

    async fn merge(&self, source: &str, into: &str, options: &MergeOptions) -> Result<MergeOutcome> {
        merge(&*self.0, &scope(into), (source, At::Latest), options).await
    }

    async fn files(&self, thread: &str) -> Files {
        let state = self.0.open(&scope(thread), At::Latest).await.unwrap().unwrap().state;
        let mut files = Files::new();
        for (path, node) in state.nodes(None, usize::MAX).await.unwrap() {
            match node.entry(path.clone()).kind {
                EntryKind::Directory => drop(files.insert(format!("{path}/"), String::new())),
                _ => drop(files.insert(path.to_string(), state.read_text(path.as_str()).await.unwrap())),
            }
        }
        files
    }

    async fn count(&self, thread: &str) -> usize {
        self.0.list(&scope(thread), &Default::default()).await.unwrap().checkpoints.len()
    }
}

fn files(list: &[(&str, &str)]) -> Files {
    list.iter().map(|(path, content)| ((*path).to_owned(), (*content).to_owned())).collect()
}
