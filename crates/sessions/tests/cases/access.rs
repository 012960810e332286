//! Restricted access, bounded reads and followers: what entry points use.

use super::support::{SESSION, TENANT, USER, append, reference, user, with_session};
use std::sync::Arc;
use treehold_core::error::ErrorKind;
use treehold_sessions::{
    CompactOptions, ConsolidationOptions, Consolidator, MemoScope, MessagesView, NOTES, SessionChange, SessionPosition, Sessions,
    USER as USER_DOCUMENT,
};
use treehold_store::Store;

/// Sessions restricted to a user show and change nothing of other users; those restricted to a tenant nothing of other tenants.
pub(crate) async fn restricted_sessions_hide_those_of_others(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    append(&sessions, &[user(1)]).await;
    sessions.write_memory_document(TENANT, USER, MemoScope::User, USER_DOCUMENT, "secret").await.unwrap();
    let of_user = |sessions: &Sessions| sessions.for_user(TENANT, USER).unwrap();
    for own in [of_user(&sessions), sessions.for_tenant(TENANT).unwrap()] {
        assert_eq!(own.load_all(TENANT, SESSION).await.unwrap().len(), 1);
        assert!(own.get_or_create(TENANT, USER, "helper", Some(SESSION)).await.is_ok());
    }
    let others = [sessions.for_user(TENANT, "bob"), sessions.for_user("other", USER), sessions.for_tenant("other")];
    for other in others.map(Result::unwrap) {
        assert_eq!(other.info(TENANT, SESSION).await.unwrap(), None);
        assert!(other.load_full(TENANT, SESSION).await.unwrap().is_empty());
        assert!(other.plan_compaction(TENANT, SESSION, &CompactOptions::new()).await.unwrap().is_none());
        assert!(other.follow(&reference(), None).await.unwrap().is_none());
        assert_eq!(other.export_session(&reference()).await.unwrap(), None);
        assert_eq!(other.read_memory_document(TENANT, USER, MemoScope::User, USER_DOCUMENT).await.unwrap(), None);
        assert!(!other.delete(TENANT, SESSION).await.unwrap());
        for refused in [
            other.set_title(TENANT, SESSION, Some("x")).await,
            other.write_memory_document(TENANT, SESSION, MemoScope::Session, NOTES, "x").await,
            other.write_tool_result(&reference(), "call", "x").await,
        ] {
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::NotFound);
        }
        let created = other.get_or_create(TENANT, USER, "helper", Some("new")).await;
        assert_eq!(created.unwrap_err().kind(), ErrorKind::PermissionDenied);
        assert_eq!(other.list(TENANT, USER, 10, None).await.unwrap_err().kind(), ErrorKind::PermissionDenied);
        let consolidator = Consolidator::new(other.clone(), ConsolidationOptions::default());
        for refused in [consolidator.state(TENANT, USER).await.map(drop), consolidator.request(TENANT, USER).await] {
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::PermissionDenied);
        }
    }
    let files = sessions.export_session(&reference()).await.unwrap().unwrap();
    let bob = sessions.for_user(TENANT, "bob").unwrap();
    assert_eq!(bob.import_session(&reference(), &files).await.unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert!(sessions.delete(TENANT, SESSION).await.unwrap());
    assert_eq!(bob.import_session(&reference(), &files).await.unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert!(of_user(&sessions).import_session(&reference(), &files).await.is_ok());
}

/// A read beyond the limit fails, and the log can still be read by page.
pub(crate) async fn reads_beyond_the_limit_are_refused(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    append(&sessions, &(0..9).map(user).collect::<Vec<_>>()).await;
    let options = sessions.options().clone().with_read_bytes_max(300);
    let bounded = sessions.clone().with_options(options);
    for view in [MessagesView::Recent(None), MessagesView::Full, MessagesView::Budget(1_000)] {
        assert_eq!(bounded.read_messages_of(TENANT, SESSION, view).await.unwrap_err().kind(), ErrorKind::TooLarge, "{view:?}");
    }
    let (mut all, mut from) = (Vec::new(), Some(0));
    while let Some(position) = from {
        let page = bounded.read_messages_of(TENANT, SESSION, MessagesView::Log { from: position, limit: 2 }).await.unwrap().unwrap();
        all.extend(page.messages);
        from = page.next;
    }
    assert_eq!(all, sessions.load_all(TENANT, SESSION).await.unwrap());
    let end = bounded.read_messages_of(TENANT, SESSION, MessagesView::Log { from: 9, limit: 2 }).await.unwrap().unwrap();
    assert!(end.messages.is_empty() && end.next.is_none());
}

/// A summary replaces only the window that was planned, cut where no tool result loses its call.
pub(crate) async fn planned_compaction_applies_to_its_window_only(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    append(&sessions, &(0..8).map(user).collect::<Vec<_>>()).await;
    let options = CompactOptions::new().with_trigger_tokens(0);
    let plan = sessions.plan_compaction(TENANT, SESSION, &options).await.unwrap().unwrap();
    assert_eq!(plan.messages.len(), 4);
    append(&sessions, &[super::support::calls(&["a"]), super::support::result("a")]).await;
    let apply = async |count| sessions.apply_compaction(TENANT, SESSION, &plan.window, count, "short", None).await;
    for (count, kind) in [(0, ErrorKind::InvalidArgument), (9, ErrorKind::InvalidArgument), (10, ErrorKind::InvalidArgument)] {
        assert_eq!(apply(count).await.unwrap_err().kind(), kind, "{count}");
    }
    assert_eq!(apply(4).await.unwrap().archive_id, "0001");
    assert_eq!(apply(4).await.unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(sessions.load_all(TENANT, SESSION).await.unwrap().len(), 7);
}

/// A follower reports each kind of change, and one that starts at an earlier position reports what it missed.
pub(crate) async fn follower_reports_changes_since_its_position(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    let mut follower = sessions.follow(&reference(), None).await.unwrap().unwrap();
    let start: SessionPosition = follower.position().to_string().parse().unwrap();
    append(&sessions, &[user(1), user(2)]).await;
    assert_eq!(follower.next().await.unwrap(), Some(SessionChange::Messages { from: 0, end: 2 }));
    sessions.write_memory_document(TENANT, SESSION, MemoScope::Session, NOTES, "tea").await.unwrap();
    let notes = SessionChange::Memo { name: NOTES.to_owned() };
    while follower.next().await.unwrap() != Some(notes.clone()) {}
    let mut late = sessions.follow(&reference(), Some(start.clone())).await.unwrap().unwrap();
    assert_eq!(late.next().await.unwrap(), Some(SessionChange::Messages { from: 0, end: 2 }));
    assert_eq!(late.next().await.unwrap(), Some(notes));
    assert_eq!(late.position().to_string().split('.').next(), start.to_string().split('.').next());
    sessions.delete(TENANT, SESSION).await.unwrap();
    while follower.next().await.unwrap() != Some(SessionChange::Deleted) {}
    assert_eq!(follower.next().await.unwrap(), None);
    sessions.get_or_create(TENANT, USER, "helper", Some(SESSION)).await.unwrap();
    let again = sessions.follow(&reference(), Some(start.clone())).await.unwrap().unwrap();
    assert_ne!(*again.position(), start, "the position is that of a deleted session");
}
