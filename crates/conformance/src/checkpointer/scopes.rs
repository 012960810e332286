//! Scopes are isolated from each other.

use super::*;

/// Scopes that a careless concatenation of ids would confuse.
fn near_scopes() -> Vec<Scope> {
    let ids = [None, Some("-"), Some("--"), Some("---"), Some("a"), Some("a/b"), Some("b"), Some("default")];
    let mut scopes = Vec::new();
    for (tenant, user) in ids.iter().flat_map(|tenant| ids.iter().map(move |user| (*tenant, *user))) {
        let mut scope = Scope::new().with_thread("t");
        (scope.tenant, scope.user) = (tenant.map(str::to_owned), user.map(str::to_owned));
        scopes.push(scope);
    }
    let named = |tenant: &str, user: &str, thread: &str| Scope::new().with_tenant(tenant).with_user(user).with_thread(thread);
    let others = [("a", "b/t", "x"), ("a/b", "t", "x"), ("a", "b", "t/x"), ("a", "b", "x"), ("a%2Fb", "c", "x"), ("A", "b", "x")];
    scopes.extend(others.map(|(tenant, user, thread)| named(tenant, user, thread)));
    scopes.extend(["-", "--", "t/", "t\u{fffd}", "heads", "T", " t", "t-", "t%01"].map(|thread| named("a", "b", thread)));
    scopes
}

pub(super) async fn scopes_are_isolated(subject: Subject) {
    let scopes = near_scopes();
    let mut made = Vec::new();
    for (number, scope) in scopes.iter().enumerate() {
        assert_eq!(subject.get(scope, At::Latest).await.expect("nothing fails"), None, "{scope:?} met another");
        made.push(put(&subject, scope, &state(&[("/a", &number.to_string())]).await, None).await.checkpoint.id);
    }
    for (number, scope) in scopes.iter().enumerate() {
        let opened = subject.open(scope, At::Latest).await.expect("it exists").expect("it exists");
        assert_eq!(opened.checkpoint.id, made[number]);
        assert_files(&read(&opened.state).await, &[("/a", &number.to_string())]);
        assert_eq!(subject.list(scope, &ListOptions::new()).await.expect("listed").checkpoints.len(), 1, "{scope:?}");
        let of_next = made[(number + 1) % made.len()];
        assert_eq!(subject.get(scope, of_next.into()).await.expect("nothing fails"), None);
    }
    for (number, scope) in scopes.iter().enumerate() {
        subject.delete(scope).await.expect("it exists");
        subject.sweep(scope, false).await.expect("swept");
        if let Some(next) = scopes.get(number + 1) {
            let opened = subject.open(next, At::Latest).await.expect("it exists").expect("it exists");
            assert_files(&read(&opened.state).await, &[("/a", &(number + 1).to_string())]);
        }
    }
}

pub(super) async fn threads_of_other_users_are_not_listed(subject: Subject) {
    let scopes = near_scopes();
    for scope in &scopes {
        put(&subject, scope, &StateSnapshot::new(), None).await;
    }
    for scope in &scopes {
        let is_same = |other: &&Scope| (&other.tenant, &other.user) == (&scope.tenant, &scope.user);
        let mut expected: Vec<&str> = scopes.iter().filter(is_same).filter_map(|other| other.thread.as_deref()).collect();
        expected.sort_unstable();
        let listed = threads(&subject, scope, 4).await;
        assert_eq!(listed.iter().map(|info| info.thread.as_str()).collect::<Vec<_>>(), expected, "{scope:?}");
    }
}

pub(super) async fn agent_does_not_affect_threads(subject: Subject) {
    let made = put(&subject, &scope("t").with_agent("coder"), &state(&[("/a", "one")]).await, None).await;
    assert_eq!(subject.get(&scope("t"), At::Latest).await.expect("it exists"), Some(made.clone()));
    assert_eq!(subject.get(&scope("t").with_agent("reviewer"), At::Latest).await.expect("it exists"), Some(made));
}

pub(super) async fn invalid_scope_ids_are_rejected(subject: Subject) {
    put_files(&subject, "t", &[("/a", "one")]).await;
    let long = "x".repeat(treehold_core::scope::SCOPE_ID_BYTES_MAX + 1);
    for bad in ["", "a\u{1}b", "a\0", "\n", &long] {
        let scopes = [scope("t").with_tenant(bad), scope("t").with_user(bad), scope(bad)];
        for scope in &scopes {
            refused(subject.put(scope, &StateSnapshot::new(), &PutOptions::new()).await, ErrorKind::InvalidArgument);
            refused(subject.get(scope, At::Latest).await, ErrorKind::InvalidArgument);
            refused(subject.open(scope, At::Latest).await.map(drop), ErrorKind::InvalidArgument);
            refused(subject.list(scope, &ListOptions::new()).await, ErrorKind::InvalidArgument);
            refused(subject.delete(scope).await, ErrorKind::InvalidArgument);
            refused(subject.sweep(scope, true).await, ErrorKind::InvalidArgument);
        }
        refused(subject.fork(&scope("t"), At::Latest, bad, &PutOptions::new()).await, ErrorKind::InvalidArgument);
        refused(subject.copy(&scope("t"), bad).await, ErrorKind::InvalidArgument);
    }
    let longest = "x".repeat(treehold_core::scope::SCOPE_ID_BYTES_MAX);
    let scope = Scope::new().with_tenant(&longest).with_user(&longest).with_thread(&longest);
    let made = put(&subject, &scope, &StateSnapshot::new(), None).await;
    assert_eq!(subject.get(&scope, made.checkpoint.id.into()).await.expect("it exists"), Some(made));
}

pub(super) async fn scope_without_thread_is_rejected(subject: Subject) {
    let made = put_files(&subject, "t", &[("/a", "one")]).await;
    let mut scope = scope("t");
    scope.thread = None;
    refused(subject.put(&scope, &StateSnapshot::new(), &PutOptions::new()).await, ErrorKind::InvalidArgument);
    refused(subject.get(&scope, At::Latest).await, ErrorKind::InvalidArgument);
    refused(subject.open(&scope, made.id.into()).await.map(drop), ErrorKind::InvalidArgument);
    refused(subject.list(&scope, &ListOptions::new()).await, ErrorKind::InvalidArgument);
    refused(subject.restore(&scope, made.id, &PutOptions::new()).await, ErrorKind::InvalidArgument);
    refused(subject.fork(&scope, At::Latest, "u", &PutOptions::new()).await, ErrorKind::InvalidArgument);
    refused(subject.copy(&scope, "u").await, ErrorKind::InvalidArgument);
    refused(subject.delete(&scope).await, ErrorKind::InvalidArgument);
    refused(subject.prune(&scope, &PruneOptions::new()).await, ErrorKind::InvalidArgument);
    assert_eq!(subject.sweep(&scope, true).await.expect("the sweep needs no bodies").bodies, 0);
    assert_eq!(threads(&subject, &scope, 9).await.len(), 1, "the sweep needs no bodies");
}
