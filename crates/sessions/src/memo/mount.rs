//! The trees of memory documents as a workspace mounts them.

use super::{session_memo, user_memo};
use std::sync::Arc;
use treehold_core::error::Result;
use treehold_store::{Namespace, Store};
use treehold_tree::backend::Backend;

/// Where a workspace mounts the documents of a user.
pub const USER_MOUNT: &str = "/memo/user";

/// Where a workspace mounts the documents and tool results of a session.
pub const SESSION_MOUNT: &str = "/memo/session";

/// A tree of memory documents for a workspace, with the namespace that reports its changes.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct MemoMount {
    /// The tree.
    pub tree: Arc<dyn Backend>,
    /// The namespace that each of its changes writes to, which a change feed watches.
    pub changes: Namespace,
}

impl MemoMount {
    /// Opens the documents of a user, for [`USER_MOUNT`].
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::ErrorKind::InvalidArgument) for an id that cannot name a tenant or user.
    pub fn of_user(store: Arc<dyn Store>, tenant: &str, user: &str) -> Result<Self> {
        let tree = user_memo(store, tenant, user)?;
        Ok(Self { changes: tree.namespace().clone(), tree: Arc::new(tree) })
    }

    /// Opens the documents and tool results of the session that has a name at the time of each call, for [`SESSION_MOUNT`]. The
    /// tree is empty if the user has no such session; every change is then `not_found`. No file is left behind that a later
    /// session with this id would show.
    ///
    /// Cost: one more round trip for each call.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::ErrorKind::InvalidArgument) for an id that cannot name a tenant, user or session.
    pub fn of_session(store: Arc<dyn Store>, tenant: &str, user: &str, session: &str) -> Result<Self> {
        let tree = session_memo(store, tenant, user, session)?;
        Ok(Self { changes: tree.changes().clone(), tree: Arc::new(tree) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sessions::Sessions;
    use treehold_core::ErrorKind;
    use treehold_store::MemoryStore;
    use treehold_tree::backend::BackendExt;

    #[tokio::test]
    async fn mounted_memo_takes_changes_only_while_the_users_session_exists() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let sessions = Sessions::new(store.clone());
        sessions.get_or_create("acme", "ada", "helper", Some("s")).await.expect("created");
        let of = |user: &str, session: &str| MemoMount::of_session(store.clone(), "acme", user, session).expect("legal ids").tree;
        let (ada, bob, other) = (of("ada", "s"), of("bob", "s"), of("ada", "none"));
        ada.write("/NOTES.md", "tea\n").await.expect("her session");
        for tree in [&bob, &other] {
            assert!(!tree.exists("/NOTES.md").await.expect("readable"));
            let refused = tree.write("/NOTES.md", "x").await.expect_err("no such session");
            assert_eq!((refused.kind(), refused.path().map(|path| path.as_str())), (ErrorKind::NotFound, Some("/NOTES.md")));
        }
        sessions.delete("acme", "s").await.expect("deleted");
        assert_eq!(ada.write("/NOTES.md", "late").await.expect_err("deleted").kind(), ErrorKind::NotFound);
        sessions.get_or_create("acme", "ada", "helper", Some("s")).await.expect("created");
        assert!(!ada.exists("/NOTES.md").await.expect("readable"));
    }
}
