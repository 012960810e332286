//! Bad input gets a typed error and changes nothing.

use super::support::{SESSION, TENANT, USER, append, calls, result, sessions, user, version, with_session};
use std::sync::Arc;
use treehold_core::ErrorKind;
use treehold_sessions::{AppendOptions, Message, SessionsOptions, Usage};
use treehold_store::Store;

/// Ids come back exactly as given, and similar ids never collide. An id that cannot be kept is refused before any write.
pub(crate) async fn ids_are_kept_exactly_or_refused(store: Arc<dyn Store>) {
    let sessions = sessions(&store);
    let long = "x".repeat(300);
    for bad in ["", ".", "..", "a\nb", "a\u{0}b", "_treehold", long.as_str()] {
        for (tenant, user, agent, session) in
            [(bad, USER, "a", "s"), (TENANT, bad, "a", "s"), (TENANT, USER, bad, "s"), (TENANT, USER, "a", bad)]
        {
            let error = sessions.get_or_create(tenant, user, agent, Some(session)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{bad:?}");
        }
        assert_eq!(sessions.load_all(TENANT, bad).await.unwrap_err().kind(), ErrorKind::InvalidArgument, "{bad:?}");
        assert_eq!(sessions.list_all(bad, USER).await.unwrap_err().kind(), ErrorKind::InvalidArgument, "{bad:?}");
    }
    assert_eq!(version(&store).await.number(), 0, "nothing was written");
    // Ids that would collide if they were joined by `:` or `/`.
    let ids = ["a", "a:b", "b", "b:c", "c", "a/b", "b/c", "a%2Fb", "%", "é", "...", "A"];
    for tenant in ids {
        for session in ids {
            sessions.get_or_create(tenant, "u/1", "helper", Some(session)).await.unwrap();
            let own = Message::user(&format!("{tenant} {session}"), 1);
            sessions.append(tenant, session, &[own], &AppendOptions::new()).await.unwrap();
        }
    }
    for tenant in ids {
        assert_eq!(sessions.list_all(tenant, "u/1").await.unwrap().len(), ids.len());
        for session in ids {
            let loaded = sessions.load_all(tenant, session).await.unwrap();
            assert_eq!((loaded.len(), loaded[0].text()), (1, format!("{tenant} {session}")));
            let info = sessions.info(tenant, session).await.unwrap().unwrap();
            assert_eq!((info.tenant_id.as_str(), info.session_id.as_str(), info.user_id.as_str()), (tenant, session, "u/1"));
        }
    }
}

/// An append over a limit, or with a result whose call is missing, is refused as a whole.
pub(crate) async fn refused_append_writes_nothing(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await.with_options(SessionsOptions::new().with_batch_max(10).with_batch_bytes_max(2 << 20));
    let before = version(&store).await;
    let big = Message::user(&"x".repeat(10 << 20), 1);
    let half = Message::user(&"x".repeat(900 << 10), 1);
    for (messages, kind) in [
        (vec![user(0), big], ErrorKind::TooLarge),
        (vec![half.clone(), half.clone(), half], ErrorKind::TooLarge),
        ((0..11).map(user).collect(), ErrorKind::InvalidArgument),
        (vec![user(0), result("nobody")], ErrorKind::InvalidArgument),
        // A result before its call.
        (vec![result("a"), calls(&["a"])], ErrorKind::InvalidArgument),
    ] {
        let error = sessions.append(TENANT, SESSION, &messages, &AppendOptions::new()).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{}", error.message());
    }
    for key in ["", &"k".repeat(256)] {
        let options = AppendOptions::new().with_idempotency_key(key);
        let error = sessions.append(TENANT, SESSION, &[user(0)], &options).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
    assert_eq!(version(&store).await, before);
    // The call may be in an earlier append, and its id may hold any character.
    append(&sessions, &[calls(&["a/b%c"])]).await;
    append(&sessions, &[result("a/b%c"), result("a/b%c")]).await;
    let lenient = sessions.clone().with_options(SessionsOptions::new().with_accept_orphan_results(true));
    append(&lenient, &[result("nobody")]).await;
    assert_eq!(sessions.load_all(TENANT, SESSION).await.unwrap().len(), 4);
    assert_eq!(sessions.load_with_budget(TENANT, SESSION, 1).await.unwrap().len(), 4, "a tail never starts with a result");
}

/// No method reaches a session of another tenant or user.
pub(crate) async fn session_is_hidden_from_other_users_and_tenants(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    append(&sessions, &[user(1)]).await;
    let error = sessions.get_or_create(TENANT, "bob", "helper", Some(SESSION)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert!(sessions.list_all(TENANT, "bob").await.unwrap().is_empty());
    assert!(sessions.list_all("other", USER).await.unwrap().is_empty());
    assert!(sessions.load_all("other", SESSION).await.unwrap().is_empty());
    assert!(!sessions.delete("other", SESSION).await.unwrap());
    let error = sessions.record_turn("other", SESSION, &Usage::of_tokens(1, 1).unwrap()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    // Sessions of two tenants may have the same id.
    assert!(sessions.get_or_create("other", "bob", "helper", Some(SESSION)).await.unwrap().created);
    assert!(sessions.load_all("other", SESSION).await.unwrap().is_empty());
}

/// A key repeats exactly one append: the same messages and the same usage.
pub(crate) async fn idempotency_key_of_another_append_is_refused(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    let once = AppendOptions::new().with_idempotency_key("k");
    sessions.append(TENANT, SESSION, &[user(1)], &once).await.unwrap();
    for (messages, options) in
        [(vec![user(2)], once.clone()), (vec![], once.clone()), (vec![user(1)], once.clone().with_usage(Usage::of_tokens(1, 1).unwrap()))]
    {
        let error = sessions.append(TENANT, SESSION, &messages, &options).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
    assert_eq!(sessions.load_all(TENANT, SESSION).await.unwrap(), [user(1)]);
}
