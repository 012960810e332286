//! Locks.

use super::support::{kind, look_alike_owners, owner, partition};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use treehold_agent_state::locks::{LOCK_TTL, LOCK_TTL_MAX, LockHolder, LockOptions, Locks};
use treehold_core::ErrorKind;
use treehold_store::Store;

fn locks(store: &Arc<dyn Store>) -> Locks {
    Locks::new(store.clone(), owner())
}

pub(crate) async fn lock_has_one_holder_and_growing_fencing_tokens(store: Arc<dyn Store>) {
    let locks = locks(&store);
    assert_eq!(locks.peek("l").await.unwrap(), None);
    locks.acquire("another", &LockOptions::new()).await.unwrap();
    let mut last = 0;
    for round in 0..3 {
        let holder = format!("process {round}");
        let held = locks.acquire("l", &LockOptions::new().with_holder(&*holder)).await.unwrap();
        assert!(held.fencing_token > last, "{} after {last}", held.fencing_token);
        last = held.fencing_token;
        let error = locks.acquire("l", &LockOptions::new()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
        let source = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<LockHolder>()).unwrap();
        assert_eq!((&*source.holder, source.fencing_token), (&*holder, last));
        assert_eq!(locks.peek("l").await.unwrap().as_ref(), Some(source));
        locks.release("l", &held.owner_token).await.unwrap();
    }
    for owner in look_alike_owners().into_iter().filter(|other| *other != owner()) {
        Locks::new(store.clone(), owner.clone())
            .acquire("another", &LockOptions::new())
            .await
            .unwrap_or_else(|error| panic!("{owner}: {error}"));
    }
}

pub(crate) async fn renewal_keeps_the_fencing_token(store: Arc<dyn Store>) {
    let locks = locks(&store);
    let held = locks.acquire("l", &LockOptions::new().with_time_to_live(LOCK_TTL / 2)).await.unwrap();
    let renewed = locks.renew("l", &held.owner_token, LOCK_TTL).await.unwrap();
    assert_eq!((renewed.fencing_token, &renewed.owner_token), (held.fencing_token, &held.owner_token));
    assert!(renewed.expires_at > held.expires_at);
    let shown = locks.peek("l").await.unwrap().unwrap();
    assert!(shown.expires_at > held.expires_at, "the row itself lives longer");
    let fence = locks.fence(&held).unwrap();
    let row = store.get(&fence.namespace, &fence.key).await.unwrap().unwrap();
    assert_eq!(row.version, fence.version, "a renewal does not bring down the fence");
}

pub(crate) async fn only_the_owner_releases_a_lock(store: Arc<dyn Store>) {
    let locks = locks(&store);
    let held = locks.acquire("l", &LockOptions::new()).await.unwrap();
    locks.release("l", "another token").await.unwrap();
    assert_eq!(kind(locks.renew("l", "another token", LOCK_TTL).await), ErrorKind::Conflict);
    assert!(locks.peek("l").await.unwrap().is_some());
    locks.release("l", &held.owner_token).await.unwrap();
    locks.release("l", &held.owner_token).await.unwrap();
    assert_eq!(kind(locks.renew("l", &held.owner_token, LOCK_TTL).await), ErrorKind::Conflict);
    let next = locks.acquire("l", &LockOptions::new()).await.unwrap();
    locks.release("l", &held.owner_token).await.unwrap();
    assert_eq!(locks.peek("l").await.unwrap().unwrap().fencing_token, next.fencing_token, "an old owner releases nothing");
    assert!(!format!("{next:?}").contains(&next.owner_token), "the token is not printed");
}

pub(crate) async fn waiter_acquires_a_released_lock(store: Arc<dyn Store>) {
    let locks = locks(&store);
    let held = locks.acquire("l", &LockOptions::new()).await.unwrap();
    let waiter = tokio::spawn({
        let locks = locks.clone();
        async move { locks.acquire("l", &LockOptions::new().with_wait(Duration::from_secs(30))).await }
    });
    tokio::task::yield_now().await;
    assert!(!waiter.is_finished());
    locks.release("l", &held.owner_token).await.unwrap();
    let next = waiter.await.unwrap().unwrap();
    assert!(next.fencing_token > held.fencing_token);
}

pub(crate) async fn concurrent_holders_never_overlap(store: Arc<dyn Store>) {
    let (inside, served) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let tasks = (0..6).map(|_| {
        let (locks, inside, served) = (locks(&store), inside.clone(), served.clone());
        tokio::spawn(async move {
            for _ in 0..3 {
                let guard = locks.hold("l", &LockOptions::new().with_wait(Duration::from_secs(600))).await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two hold the lock");
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                served.fetch_add(1, Ordering::SeqCst);
                guard.release().await.unwrap();
            }
        })
    });
    for task in futures::future::join_all(tasks).await {
        task.unwrap();
    }
    assert_eq!(served.load(Ordering::SeqCst), 18);
}

pub(crate) async fn guard_releases_its_lock(store: Arc<dyn Store>) {
    let locks = locks(&store);
    let guard = locks.hold("l", &LockOptions::new()).await.unwrap();
    assert!(!guard.is_lost());
    assert_eq!(guard.fence(), &locks.fence(guard.lock()).unwrap());
    drop(guard);
    let again = locks.hold("l", &LockOptions::new().with_wait(Duration::from_secs(30))).await.unwrap();
    again.release().await.unwrap();
    assert_eq!(locks.peek("l").await.unwrap(), None);
}

pub(crate) async fn bad_arguments_of_locks_are_refused(store: Arc<dyn Store>) {
    let locks = locks(&store);
    let before = store.current_version(&partition()).await.unwrap();
    let long = "l".repeat(600);
    for name in ["", "  ", "a\nb", &long] {
        assert_eq!(kind(locks.acquire(name, &LockOptions::new()).await), ErrorKind::InvalidArgument);
        assert_eq!(kind(locks.renew(name, "t", LOCK_TTL).await), ErrorKind::InvalidArgument);
        assert_eq!(kind(locks.release(name, "t").await), ErrorKind::InvalidArgument);
        assert_eq!(kind(locks.peek(name).await), ErrorKind::InvalidArgument);
    }
    for time_to_live in [Duration::ZERO, Duration::from_millis(999), LOCK_TTL_MAX + Duration::from_secs(1)] {
        assert_eq!(kind(locks.acquire("l", &LockOptions::new().with_time_to_live(time_to_live)).await), ErrorKind::InvalidArgument);
    }
    assert_eq!(kind(locks.acquire("l", &LockOptions::new().with_holder(&*long)).await), ErrorKind::InvalidArgument);
    assert_eq!(store.current_version(&partition()).await.unwrap(), before);
}
