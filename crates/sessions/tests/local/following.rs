//! Followers that continue where they stopped.

use crate::cases::support::{SESSION, TENANT, append, reference, user, with_session};
use std::sync::Arc;
use treehold_sessions::{MemoScope, NOTES, SessionChange};
use treehold_store::{MemoryStore, Store};

/// Every follower with a position began with tool results, although none was written.
#[tokio::test]
async fn follower_that_continues_from_the_present_reports_only_what_follows() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let sessions = with_session(&store).await;
    append(&sessions, &[user(1)]).await;
    let present = sessions.follow(&reference(), None).await.unwrap().unwrap().position().clone();
    let mut follower = sessions.follow(&reference(), Some(present)).await.unwrap().unwrap();
    append(&sessions, &[user(2)]).await;
    assert_eq!(follower.next().await.unwrap(), Some(SessionChange::Messages { from: 1, end: 2 }));
    sessions.write_memory_document(TENANT, SESSION, MemoScope::Session, NOTES, "tea").await.unwrap();
    let notes = Some(SessionChange::Memo { name: NOTES.to_owned() });
    loop {
        let change = follower.next().await.unwrap();
        assert_ne!(change, Some(SessionChange::ToolResults), "none was written");
        if change == notes {
            break;
        }
    }
    sessions.write_tool_result(&reference(), "call", "text").await.unwrap();
    while follower.next().await.unwrap() != Some(SessionChange::ToolResults) {}
}
