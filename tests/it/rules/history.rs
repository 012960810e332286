//! A thread's history cannot bypass a rule or a quota: restores, merges, forks, diffs and past states.

use std::sync::Arc;
use treehold::backend::{OverlayApplyOptions, OverlayDiffOptions, OverlayStrategy};
use treehold::checkpoint::{At, Checkpoint, MergeOptions, MergeStrategy, PutOptions, StoreCheckpointer};
use treehold::layer::{Layered, Operations, Permissions, Quota, QuotaLimits, ReadOnly, Rule};
use treehold::ops::{GlobOptions, OpKind};
use treehold::{
    Backend, BackendExt, Error, ErrorKind, MemoryStore, Namespace, OverlayBackend, Scope, Session, StateBackend, StoreBackend, VfsPath,
    VfsPathBuf, Workspace, WorkspaceBuilder,
};

fn path(text: &str) -> VfsPathBuf {
    VfsPathBuf::parse(text).unwrap()
}

fn scope(thread: &str) -> Scope {
    Scope::new().with_user("ada").with_thread(thread)
}

fn on(store: &Arc<MemoryStore>) -> WorkspaceBuilder {
    Workspace::builder().checkpointer(StoreCheckpointer::new(store.clone()))
}

fn ruled(store: &Arc<MemoryStore>, rules: Vec<Rule>) -> Workspace {
    on(store).layer(move |tree, _| Arc::new(Permissions::new(rules.clone(), tree))).build()
}

fn deny(operations: impl Into<Operations>, pattern: &str) -> Rule {
    Rule::deny(operations, [pattern]).unwrap()
}

/// Creates a thread with a past, in a workspace without rules.
async fn past(store: &Arc<MemoryStore>) -> (Session, Checkpoint) {
    let session = on(store).build().session(scope("main")).await.unwrap();
    for (file, text) in [("/secret/s", "old secret\n"), ("/locked/l", "old lock\n"), ("/open/a", "old\n")] {
        session.backend().write(file, text).await.unwrap();
    }
    let old = session.checkpoint(PutOptions::new().with_label("old")).await.unwrap();
    for (file, text) in [("/secret/s", "new secret\n"), ("/locked/l", "new lock\n"), ("/open/a", "new\n")] {
        session.backend().write(file, text).await.unwrap();
    }
    session.save().await.unwrap();
    (session, old)
}

async fn whole(tree: &dyn Backend) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for entry in tree.glob(VfsPath::ROOT, &GlobOptions::new("**")).await.unwrap().entries {
        all.push((entry.path.to_string(), tree.read_text(entry.path.as_str()).await.unwrap()));
    }
    all
}

fn refused(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    assert!(!error.message().contains("/secret/s"), "a hidden path is not named: {error}");
}

#[tokio::test]
async fn restore_is_refused_where_a_rule_denies_writes() {
    for rules in [vec![deny(Operations::WRITE, "/locked")], vec![deny(Operations::ALL, "/secret")], vec![deny(OpKind::Write, "/**/l")]] {
        let store = Arc::default();
        let (session, old) = past(&store).await;
        let before = whole(&*session.backend()).await;
        let limited = ruled(&store, rules).session(scope("main")).await.unwrap();
        refused(&limited.restore(old.id, PutOptions::new()).await.unwrap_err());
        session.reload().await.unwrap();
        assert_eq!(whole(&*session.backend()).await, before);
    }
    let store = Arc::default();
    let (session, old) = past(&store).await;
    let limited = ruled(&store, vec![deny(Operations::WRITE, "/elsewhere")]).session(scope("main")).await.unwrap();
    limited.restore(old.id, PutOptions::new()).await.unwrap();
    session.reload().await.unwrap();
    assert_eq!(session.backend().read_text("/locked/l").await.unwrap(), "old lock\n");
}

#[tokio::test]
async fn restore_is_refused_where_a_rule_denies_deletes_and_in_a_read_only_tree() {
    let store = Arc::default();
    let session = on(&store).build().session(scope("main")).await.unwrap();
    let empty = session.checkpoint(PutOptions::new()).await.unwrap();
    session.backend().write("/keep/a", "kept").await.unwrap();
    session.save().await.unwrap();
    let limited = ruled(&store, vec![deny(OpKind::Delete, "/keep")]).session(scope("main")).await.unwrap();
    refused(&limited.restore(empty.id, PutOptions::new()).await.unwrap_err());
    let shut = on(&store).layer(|tree, _| Arc::new(Layered::new(ReadOnly::new(), tree))).build();
    let error = shut.session(scope("main")).await.unwrap().restore(empty.id, PutOptions::new()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
    refused(&ruled(&store, vec![deny(OpKind::Delete, "/keep")]).delete_thread(&scope("main")).await.unwrap_err());
    ruled(&store, vec![deny(OpKind::Delete, "/other")]).delete_thread(&scope("main")).await.unwrap();
}

/// Regression: a dry run returned the content of a hidden file.
#[tokio::test]
async fn merge_is_refused_if_it_involves_a_hidden_or_protected_path() {
    for strategy in [None, Some(MergeStrategy::Theirs), Some(MergeStrategy::Union)] {
        for (file, rules) in [
            ("/secret/s", vec![deny(Operations::ALL, "/secret")]),
            ("/secret/new", vec![deny(Operations::ALL, "/secret")]),
            ("/locked/l", vec![deny(Operations::WRITE, "/locked")]),
        ] {
            let store = Arc::default();
            let (session, _) = past(&store).await;
            session.fork(At::Latest, "other", &PutOptions::new()).await.unwrap();
            let other = on(&store).build().session(scope("other")).await.unwrap();
            other.backend().write(file, "theirs\n").await.unwrap();
            other.save().await.unwrap();
            if file == "/secret/s" {
                session.backend().write(file, "ours\n").await.unwrap();
                session.save().await.unwrap();
            }
            let before = whole(&*session.backend()).await;
            let limited = ruled(&store, rules).session(scope("main")).await.unwrap();
            for dry_run in [true, false] {
                let mut options = MergeOptions::new().with_dry_run(dry_run);
                options.strategy = strategy;
                refused(&limited.merge("other", At::Latest, options).await.unwrap_err());
            }
            session.reload().await.unwrap();
            assert_eq!(whole(&*session.backend()).await, before, "{file}");
        }
    }
}

#[tokio::test]
async fn conflict_in_unreadable_file_is_reported_without_its_lines() {
    let store = Arc::default();
    let (session, _) = past(&store).await;
    session.fork(At::Latest, "other", &PutOptions::new()).await.unwrap();
    let other = on(&store).build().session(scope("other")).await.unwrap();
    for (session, text) in [(&session, "ours\n"), (&other, "theirs\n")] {
        session.backend().write("/open/a", text).await.unwrap();
        session.save().await.unwrap();
    }
    let limited = ruled(&store, vec![deny(OpKind::Read, "/open")]).session(scope("main")).await.unwrap();
    let outcome = limited.merge("other", At::Latest, MergeOptions::new()).await.unwrap();
    let conflict = &outcome.conflicts[0];
    assert_eq!((conflict.path.as_str(), conflict.hunks.len(), conflict.hunks_total), ("/open/a", 0, 0));
    let sides = [&conflict.base, &conflict.ours, &conflict.theirs];
    assert!(sides.into_iter().flatten().all(|side| side.hash.is_none()), "{conflict:?}");
}

#[tokio::test]
async fn conflict_counts_only_visible_paths_beneath_it() {
    let store = Arc::default();
    let session = on(&store).build().session(scope("main")).await.unwrap();
    for file in ["/d/a", "/d/b", "/d/hidden"] {
        session.backend().write(file, "base").await.unwrap();
    }
    session.save().await.unwrap();
    session.fork(At::Latest, "other", &PutOptions::new()).await.unwrap();
    let other = on(&store).build().session(scope("other")).await.unwrap();
    for file in ["/d/a", "/d/b", "/d/hidden"] {
        other.backend().write(file, "theirs").await.unwrap();
    }
    other.save().await.unwrap();
    session.backend().delete_all("/d").await.unwrap();
    session.backend().write("/d", "a file").await.unwrap();
    session.save().await.unwrap();
    let limited = ruled(&store, vec![deny(Operations::ALL, "/d/hidden")]).session(scope("main")).await.unwrap();
    for (session, beneath) in [(&session, 3), (&limited, 2)] {
        let outcome = session.merge("other", At::Latest, MergeOptions::new().with_dry_run(true)).await.unwrap();
        let conflicts: Vec<_> = outcome.conflicts.iter().map(|conflict| (conflict.path.as_str(), conflict.beneath)).collect();
        assert_eq!(conflicts, [("/d", beneath)]);
    }
}

/// Regression: without a layer around the tree, a mount that refuses changes was not asked, and the thread was removed.
#[tokio::test]
async fn thread_of_a_read_only_mount_is_not_removed() {
    let store = Arc::default();
    let (session, _) = past(&store).await;
    let before = whole(&*session.backend()).await;
    let shut = on(&store).mount("/", |opening| Ok(Arc::new(Layered::new(ReadOnly::new(), opening.state())))).unwrap();
    let shut = shut.with_state_mount("/").unwrap().build();
    let error = shut.delete_thread(&scope("main")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
    assert_eq!(shut.delete_thread(&scope("none")).await.unwrap_err().kind(), ErrorKind::NotFound);
    session.reload().await.unwrap();
    assert_eq!(whole(&*session.backend()).await, before);
    on(&store).build().delete_thread(&scope("main")).await.unwrap();
}

/// Regression: what an overlay shows already was counted again when it was applied.
#[tokio::test]
async fn quota_around_an_overlay_does_not_count_its_changes_again() {
    for limits in [QuotaLimits::new().with_bytes_max(20), QuotaLimits::new().with_files_max(4)] {
        let lower = Arc::new(StateBackend::new());
        lower.write("/old", "12345").await.unwrap();
        let upper = Arc::new(StoreBackend::new(Arc::new(MemoryStore::new()), Namespace::new(["overlay"]).unwrap()));
        let overlay = OverlayBackend::new(lower.clone(), upper);
        let bounded = Arc::new(Quota::new(limits, overlay.clone()));
        let overlay = overlay.with_mounted_tree(bounded.clone(), VfsPathBuf::root());
        for file in ["/a", "/b", "/c"] {
            bounded.write(file, "12345").await.unwrap();
        }
        let usage = bounded.recount().await.unwrap();
        for dry_run in [true, false] {
            let done = overlay.apply_changes(&OverlayApplyOptions::new().with_dry_run(dry_run)).await.unwrap();
            assert_eq!((done.applied.len(), done.failure), (3, None), "{limits}");
        }
        assert_eq!(whole(&*lower).await.len(), 4);
        assert_eq!(bounded.recount().await.unwrap(), usage);
        assert_eq!(bounded.write("/d", "12345").await.unwrap_err().kind(), ErrorKind::QuotaExceeded, "{limits}");
    }
}

/// What is dropped makes the lower tree's content show again, which counts.
#[tokio::test]
async fn quota_around_an_overlay_counts_what_shows_again() {
    let lower = Arc::new(StateBackend::new());
    lower.write("/a", "1").await.unwrap();
    let upper = Arc::new(StoreBackend::new(Arc::new(MemoryStore::new()), Namespace::new(["overlay"]).unwrap()));
    let overlay = OverlayBackend::new(lower.clone(), upper);
    let bounded = Arc::new(Quota::new(QuotaLimits::new().with_bytes_max(20), overlay.clone()));
    let overlay = overlay.with_mounted_tree(bounded.clone(), VfsPathBuf::root());
    bounded.write("/a", "2").await.unwrap();
    lower.write("/a", "x".repeat(30)).await.unwrap();
    let theirs = OverlayApplyOptions::new().with_strategy(OverlayStrategy::Theirs);
    assert_eq!(overlay.apply_changes(&theirs).await.unwrap_err().kind(), ErrorKind::QuotaExceeded);
    assert_eq!(overlay.discard(&[]).await.unwrap_err().kind(), ErrorKind::QuotaExceeded);
    assert_eq!(bounded.read_text("/a").await.unwrap(), "2");
    let ours = OverlayApplyOptions::new().with_strategy(OverlayStrategy::Ours);
    assert_eq!(overlay.apply_changes(&ours).await.unwrap().applied.len(), 1);
    assert_eq!(lower.read_text("/a").await.unwrap(), "2");
}

#[tokio::test]
async fn quota_beneath_an_overlay_bounds_what_is_applied() {
    let lower = Arc::new(Quota::new(QuotaLimits::new().with_files_max(1), StateBackend::new()));
    lower.write("/a", "1").await.unwrap();
    let upper = Arc::new(StoreBackend::new(Arc::new(MemoryStore::new()), Namespace::new(["overlay"]).unwrap()));
    let overlay = OverlayBackend::new(lower.clone(), upper);
    overlay.write("/b", "2").await.unwrap();
    let overlay = overlay.clone().with_mounted_tree(Arc::new(overlay), VfsPathBuf::root());
    let done = overlay.apply_changes(&OverlayApplyOptions::new()).await.unwrap();
    assert_eq!(done.failure.map(|failure| failure.error.code).as_deref(), Some("quota_exceeded"));
    assert!(!lower.exists("/b").await.unwrap());
}

/// What another mount hides at one route of the state is there for nobody: only the rules of a route that has it count.
#[tokio::test]
async fn route_at_which_a_mount_hides_the_state_permits_nothing_of_it() {
    // The state's own `/memories/x` is `/s/memories/x`; at `/memories/x` is a file of the store.
    for (denied, is_allowed) in [("/s/memories", false), ("/s", false), ("/memories", true), ("/s/else", true)] {
        let with_rules = |store: &Arc<MemoryStore>, rules: Vec<Rule>| {
            on(store)
                .mount("/s", |opening| Ok(opening.state()))
                .unwrap()
                .with_state_mount("/s")
                .unwrap()
                .backend("/memories", Arc::new(StateBackend::new()))
                .unwrap()
                .layer(move |tree, _| Arc::new(Permissions::new(rules.clone(), tree)))
                .build()
        };
        let store = Arc::default();
        let open = with_rules(&store, Vec::new());
        let session = open.session(scope("main")).await.unwrap();
        let mut old = None;
        for text in ["old", "new"] {
            session.backend().write("/s/memories/x", text).await.unwrap();
            old = old.or(Some(session.checkpoint(PutOptions::new()).await.unwrap()));
        }
        let old = old.unwrap();
        session.save().await.unwrap();
        let limited = with_rules(&store, vec![deny(Operations::ALL, denied)]).session(scope("main")).await.unwrap();

        let states = async |at: At| open.checkpointer().unwrap().open(&scope("main"), at).await.unwrap().unwrap().state;
        let (older, newer) = (states(At::Id(old.id)).await, states(At::Latest).await);
        let shown = limited.diff(&older, &newer, None, 10).await.unwrap().paths;
        assert_eq!(shown.len(), usize::from(is_allowed), "{denied}");
        let restored = limited.restore(old.id, PutOptions::new()).await;
        assert_eq!(restored.is_ok(), is_allowed, "{denied}: {restored:?}");
        session.reload().await.unwrap();
        let expected = if is_allowed { "old" } else { "new" };
        assert_eq!(session.backend().read_text("/s/memories/x").await.unwrap(), expected, "{denied}");
        restored.err().iter().for_each(refused);
    }
}

/// Regression: what replaces a state had to be allowed by every route that shows it, also by a read-only one.
#[tokio::test]
async fn state_that_two_routes_show_is_replaced_and_shown_where_one_of_them_allows_it() {
    const ROUTES: [&str; 2] = ["/one", "/two"];
    // For each limit: the denied operations, the path beneath the route, and whether a change, a removal, and a look remain allowed.
    let limits = [
        (None, "", [true, true, true]),
        (Some(Operations::WRITE), "", [false, false, true]),
        (Some(Operations::WRITE), "/x", [false, false, true]),
        (Some(OpKind::Write.into()), "/y", [false, true, true]),
        (Some(OpKind::Delete.into()), "", [true, false, true]),
        (Some(OpKind::Read.into()), "", [true, true, true]),
        (Some(Operations::ALL), "", [false, false, false]),
        (Some(Operations::WRITE), "/elsewhere", [true, true, true]),
    ];
    let with_rules = |store: &Arc<MemoryStore>, rules: Vec<Rule>| {
        let mut builder = on(store).mount("/", |_| Ok(Arc::new(StateBackend::new()))).unwrap();
        for route in ROUTES {
            builder = builder.mount(route, |opening| Ok(opening.state())).unwrap().with_state_mount(route).unwrap();
        }
        builder.layer(move |tree, _| Arc::new(Permissions::new(rules.clone(), tree))).build()
    };
    for (one, other) in limits.iter().flat_map(|one| limits.iter().map(move |other| (one, other))) {
        let denied =
            [one, other].into_iter().zip(ROUTES).filter_map(|((operations, at, _), route)| Some(((*operations)?, format!("{route}{at}"))));
        let rules: Vec<Rule> = denied.map(|(operations, at)| deny(operations, &at)).collect();
        let allows = |what: usize| one.2[what] || other.2[what];
        let case = format!("{rules:?}");
        let store = Arc::default();
        let open = with_rules(&store, Vec::new());
        let session = open.session(scope("main")).await.unwrap();
        let mut old = None;
        for text in ["old", "new"] {
            for file in ["/one/x", "/one/y"] {
                session.backend().write(file, text).await.unwrap();
            }
            old = old.or(Some(session.checkpoint(PutOptions::new()).await.unwrap()));
        }
        let old = old.unwrap();
        session.save().await.unwrap();
        let ruled = with_rules(&store, rules);
        let limited = ruled.session(scope("main")).await.unwrap();

        let states = async |at: At| open.checkpointer().unwrap().open(&scope("main"), at).await.unwrap().unwrap().state;
        let (older, newer) = (states(At::Id(old.id)).await, states(At::Latest).await);
        let shown = limited.diff(&older, &newer, None, 10).await.unwrap().paths;
        assert_eq!(shown.len(), if allows(2) { 2 } else { 0 }, "{case}");

        let forked = limited.fork(At::Id(old.id), "fork", &PutOptions::new()).await;
        assert_eq!(forked.is_ok(), allows(0), "{case}: {forked:?}");
        let restored = limited.restore(old.id, PutOptions::new()).await;
        assert_eq!(restored.is_ok(), allows(0), "{case}: {restored:?}");
        session.reload().await.unwrap();
        let expected = if allows(0) { "old" } else { "new" };
        assert_eq!(session.backend().read_text("/two/x").await.unwrap(), expected, "{case}");
        let removed = ruled.delete_thread(&scope("main")).await;
        assert_eq!(removed.is_ok(), allows(1), "{case}: {removed:?}");
        for error in [forked.err(), restored.err(), removed.err()].into_iter().flatten() {
            refused(&error);
        }
    }
}

/// Regression: restores and merges stored 792,001 bytes under a quota of 100,000.
#[tokio::test]
async fn restore_merge_and_fork_obey_a_quota() {
    for limits in
        [QuotaLimits::new().with_bytes_max(1_000), QuotaLimits::new().with_files_max(3), QuotaLimits::new().with_file_bytes_max(100)]
    {
        let store = Arc::default();
        let session = on(&store).build().session(scope("main")).await.unwrap();
        session.backend().write("/a", "small").await.unwrap();
        session.save().await.unwrap();
        session.fork(At::Latest, "other", &PutOptions::new()).await.unwrap();
        for number in 0..9 {
            session.backend().write(&format!("/{number}"), "x".repeat(400)).await.unwrap();
        }
        let large = session.checkpoint(PutOptions::new()).await.unwrap();
        for number in 0..9 {
            session.backend().delete(&format!("/{number}")).await.unwrap();
        }
        session.save().await.unwrap();
        session.fork(large.id.into(), "large", &PutOptions::new()).await.unwrap();
        let bounded = on(&store)
            .mount("/", move |opening| {
                let quota = Arc::new(Quota::new(limits, opening.state()));
                opening.recount_on_reload(&quota);
                Ok(quota)
            })
            .unwrap()
            .build();
        let main = bounded.session(scope("main")).await.unwrap();
        let other = bounded.session(scope("other")).await.unwrap();
        for refused in [
            main.restore(large.id, PutOptions::new()).await.err(),
            main.fork(large.id.into(), "another", &PutOptions::new()).await.err(),
            other.merge("large", At::Latest, MergeOptions::new()).await.err(),
            other.merge("large", At::Latest, MergeOptions::new().with_dry_run(true)).await.err(),
        ] {
            assert_eq!(refused.expect("too large").kind(), ErrorKind::QuotaExceeded, "{limits}");
        }
        for session in [&main, &other] {
            assert_eq!(whole(&*session.backend()).await, [("/a".to_owned(), "small".to_owned())]);
            session.backend().write("/b", "fits").await.unwrap();
        }
        // Shrinking is always allowed.
        let large = on(&store).build().session(scope("large")).await.unwrap();
        large.backend().delete("/0").await.unwrap();
        large.save().await.unwrap();
        let head = bounded.session(scope("large")).await.unwrap();
        head.fork(At::Latest, "same", &PutOptions::new()).await.unwrap();
    }
}

#[tokio::test]
async fn fork_of_an_old_checkpoint_cannot_bring_back_protected_files() {
    let store = Arc::default();
    let (_, old) = past(&store).await;
    for rules in [vec![deny(Operations::WRITE, "/locked")], vec![deny(Operations::ALL, "/secret")]] {
        let limited = ruled(&store, rules).session(scope("main")).await.unwrap();
        refused(&limited.fork(old.id.into(), "back", &PutOptions::new()).await.unwrap_err());
        limited.fork(At::Latest, "now", &PutOptions::new()).await.unwrap();
        assert!(
            on(&store)
                .build()
                .session(scope("back"))
                .await
                .unwrap()
                .backend()
                .ls(VfsPath::ROOT, &Default::default())
                .await
                .unwrap()
                .entries
                .is_empty()
        );
        on(&store).build().delete_thread(&scope("now")).await.unwrap();
    }
}

#[tokio::test]
async fn diff_omits_hidden_paths_and_fills_its_pages() {
    let store = Arc::default();
    let (session, old) = past(&store).await;
    let checkpointer = on(&store).build().checkpointer().unwrap().clone();
    let older = checkpointer.open(&scope("main"), old.id.into()).await.unwrap().unwrap().state;
    let newer = checkpointer.open(&scope("main"), At::Latest).await.unwrap().unwrap().state;
    let limited =
        ruled(&store, vec![deny(Operations::ALL, "/secret"), deny(OpKind::Read, "/locked")]).session(scope("main")).await.unwrap();
    let (mut after, mut found) = (None, Vec::new());
    loop {
        let page = limited.diff(&older, &newer, after.as_deref(), 1).await.unwrap();
        assert!(page.paths.len() == 1 || page.next.is_none());
        found.extend(page.paths.iter().map(|path| (path.path.to_string(), path.is_readable)));
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    assert_eq!(found, [("/locked/l".to_owned(), false), ("/open/a".to_owned(), true)]);
    assert_eq!(session.diff(&older, &newer, None, 9).await.unwrap().paths.len(), 3);
    for (after, next) in [(None, Some("/")), (Some("/locked/l"), Some("/locked/l")), (Some("/open/a"), None)] {
        let page = limited.diff(&older, &newer, after.map(path).as_deref(), 0).await.unwrap();
        assert_eq!(
            (page.paths.len(), page.next),
            (0, next.map(path)),
            "after {after:?} only hidden paths follow, so there is no next page"
        );
    }
}

#[tokio::test]
async fn past_states_obey_the_rules() {
    let store = Arc::default();
    let (session, old) = past(&store).await;
    let limited = ruled(&store, vec![deny(Operations::ALL, "/secret")]).session(scope("main")).await.unwrap();
    let then = limited.history(old.id.into()).await.unwrap();
    assert_eq!(then.read_text("/open/a").await.unwrap(), "old\n");
    assert_eq!(then.read_text("/secret/s").await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(session.history(old.id.into()).await.unwrap().read_text("/secret/s").await.unwrap(), "old secret\n");
    // Sizes would reveal something about hidden files.
    let told = limited.shown(old.clone()).await.unwrap();
    assert_eq!((told.entries, told.size_bytes, told.id), (0, 0, old.id));
    assert_eq!(session.shown(old.clone()).await.unwrap(), old);
    assert_eq!(limited.checkpoint(PutOptions::new()).await.unwrap().entries, 0);
}

#[tokio::test]
async fn overlay_is_applied_and_dropped_only_as_the_surrounding_tree_allows() {
    let lower = Arc::new(StateBackend::new());
    let upper = Arc::new(StoreBackend::new(Arc::new(MemoryStore::new()), Namespace::new(["overlay"]).unwrap()));
    let overlay = OverlayBackend::new(lower.clone(), upper);
    for file in ["/secret/s", "/locked/l", "/open/a"] {
        lower.write(file, "below").await.unwrap();
        overlay.write(file, "above").await.unwrap();
    }
    let tree = treehold::CompositeBackend::builder(Arc::new(StateBackend::new())).route("/w", Arc::new(overlay.clone())).unwrap();
    let rules = [deny(Operations::ALL, "/w/secret"), deny(Operations::WRITE, "/w/locked"), deny(OpKind::Read, "/w/locked")];
    let limited = overlay.clone().with_mounted_tree(Arc::new(Permissions::new(rules, tree.build().unwrap())), path("/w"));
    for limit in [1, 9] {
        let (mut options, mut found) = (OverlayDiffOptions::new().with_limit(limit), Vec::new());
        loop {
            let page = limited.diff(&options).await.unwrap();
            found.extend(page.differences.iter().map(|difference| (difference.path.to_string(), difference.is_readable)));
            let Some(cut) = page.truncated else { break };
            options.start_after = Some(path(&cut.cursor));
        }
        assert_eq!(found, [("/locked/l".to_owned(), false), ("/open/a".to_owned(), true)]);
    }
    for (limit, after, cursor) in [(2, "/", None), (1, "/locked/l", None), (0, "/open/a", None), (0, "/locked", Some("/locked"))] {
        let page = limited.diff(&OverlayDiffOptions::new().with_limit(limit).with_start_after(path(after))).await.unwrap();
        assert_eq!(
            page.truncated.map(|cut| cut.cursor).as_deref(),
            cursor,
            "{limit} after {after}: a hidden path does not count as a further difference"
        );
    }
    for paths in [vec![], vec![path("/locked")], vec![path("/secret")], vec![path("/open"), path("/secret/s")]] {
        let mut options = OverlayApplyOptions::new();
        options.paths.clone_from(&paths);
        for dry_run in [true, false] {
            refused(&limited.apply_changes(&options.clone().with_dry_run(dry_run)).await.unwrap_err());
        }
        refused(&limited.discard(&paths).await.unwrap_err());
    }
    assert_eq!(overlay.diff(&OverlayDiffOptions::new()).await.unwrap().differences.len(), 3);
    limited.apply_changes(&OverlayApplyOptions::new().with_path(path("/open"))).await.unwrap();
    assert_eq!((lower.read_text("/open/a").await.unwrap(), lower.read_text("/locked/l").await.unwrap()), ("above".into(), "below".into()));
}
