//! Prunes and sweeps: what is removed, and what never is.

use super::*;

/// Puts a checkpoint for each content, each on top of the one before.
async fn history(subject: &Subject, thread: &str, count: usize) -> Vec<CheckpointId> {
    let mut made = Vec::new();
    for number in 0..count {
        made.push(change(subject, thread, &[("/a", &format!("{thread} {number}")), ("/same", "same")]).await.id);
    }
    made
}

pub(super) async fn prune_keeps_newest(subject: Subject) {
    let made = history(&subject, "t", 9).await;
    history(&subject, "u", 3).await;
    let pruned = prune(&subject, "t", PruneOptions::new().with_keep_last(20)).await;
    assert_eq!((pruned.removed, pruned.kept), (0, 9));
    let pruned = prune(&subject, "t", PruneOptions::new().with_keep_last(4)).await;
    assert_eq!((pruned.removed, pruned.kept), (5, 4));
    let left: Vec<CheckpointId> = made[5..].iter().rev().copied().collect();
    assert_eq!(ids(&list_all(&subject, "t", ListOptions::new()).await), left);
    assert_eq!(subject.get(&scope("t"), made[4].into()).await.expect("nothing fails"), None);
    for (number, id) in made.iter().enumerate().skip(5) {
        assert_holds(&subject, "t", *id, &[("/a", &format!("t {number}")), ("/same", "same")]).await;
    }
    assert_eq!(list_all(&subject, "u", ListOptions::new()).await.len(), 3, "a prune is of one thread");
}

pub(super) async fn prune_never_removes_head(subject: Subject) {
    let made = history(&subject, "t", 5).await;
    for options in [PruneOptions::new().with_keep_last(0), PruneOptions::new(), PruneOptions::new().with_older_than(Duration::ZERO)] {
        prune(&subject, "t", options).await;
        assert_holds(&subject, "t", At::Latest, &[("/a", "t 4"), ("/same", "same")]).await;
    }
    assert_eq!(ids(&list_all(&subject, "t", ListOptions::new()).await), [made[4]]);
    change(&subject, "t", &[("/a", "on")]).await;
    assert_holds(&subject, "t", At::Latest, &[("/a", "on"), ("/same", "same")]).await;
}

pub(super) async fn prune_keeps_young_and_labelled_checkpoints(subject: Subject) {
    let now = Timestamp::now();
    let mut head = None;
    let mut made = Vec::new();
    for (number, hours) in [90, 50, 30, 20, 10].into_iter().enumerate() {
        let id = CheckpointId::new(now - jiff::SignedDuration::from_hours(hours), None);
        let mut options = PutOptions::new().with_id(id).with_head(head);
        if number % 2 == 1 {
            options = options.with_label("kept");
        }
        head = put_as(&subject, &scope("t"), &state(&[("/a", &hours.to_string())]).await, options).await.head;
        made.push(id);
    }
    let hours = |hours: u64| Duration::from_secs(hours * 3_600);
    let dry = |options: PruneOptions| prune(&subject, "t", options.with_dry_run(true));
    assert_eq!(dry(PruneOptions::new().with_older_than(hours(100))).await.removed, 0);
    assert_eq!(dry(PruneOptions::new().with_older_than(hours(25))).await.removed, 3);
    assert_eq!(dry(PruneOptions::new().with_older_than(hours(1))).await.removed, 4);
    assert_eq!(dry(PruneOptions::new().with_older_than(hours(25)).with_keep_last(4)).await.removed, 1);
    assert_eq!(dry(PruneOptions::new().with_older_than(hours(25)).with_keep_labelled(true)).await.removed, 2);
    assert_eq!(dry(PruneOptions::new().with_keep_labelled(true)).await.removed, 2);
    let pruned = prune(&subject, "t", PruneOptions::new().with_older_than(hours(25)).with_keep_labelled(true)).await;
    assert_eq!((pruned.removed, pruned.kept), (2, 3));
    assert_eq!(ids(&list_all(&subject, "t", ListOptions::new()).await), [made[4], made[3], made[1]]);
    sweep(&subject, false).await;
    assert_holds(&subject, "t", made[1], &[("/a", "50")]).await;
}

pub(super) async fn dry_prune_only_counts(subject: Subject) {
    history(&subject, "t", 6).await;
    let before = list_all(&subject, "t", ListOptions::new()).await;
    let options = PruneOptions::new().with_keep_last(2);
    let dry = prune(&subject, "t", options.clone().with_dry_run(true)).await;
    assert_eq!(list_all(&subject, "t", ListOptions::new()).await, before);
    assert_eq!(prune(&subject, "t", options).await, dry);
    assert_eq!((dry.removed, dry.kept), (4, 2));
}

pub(super) async fn prune_of_missing_thread_is_not_found(subject: Subject) {
    history(&subject, "u", 2).await;
    refused(subject.prune(&scope("t"), &PruneOptions::new()).await, ErrorKind::NotFound);
}

pub(super) async fn sweep_removes_unreferenced_contents_once(subject: Subject) {
    assert_eq!(sweep(&subject, false).await, Swept::default(), "nothing is kept yet");
    history(&subject, "t", 8).await;
    let swept = sweep(&subject, false).await;
    assert_eq!((swept.bodies, swept.packs, swept.bodies_kept), (0, 0, 9));
    prune(&subject, "t", PruneOptions::new().with_keep_last(3)).await;
    let swept = sweep(&subject, false).await;
    assert_eq!((swept.bodies, swept.body_bytes, swept.bodies_kept), (5, 15, 4));
    let again = sweep(&subject, false).await;
    assert_eq!((again.bodies, again.body_bytes, again.packs, again.bodies_kept), (0, 0, 0, 4));
    for (number, made) in list_all(&subject, "t", ListOptions::new()).await.into_iter().enumerate() {
        assert_holds(&subject, "t", made.id, &[("/a", &format!("t {}", 7 - number)), ("/same", "same")]).await;
    }
    subject.delete(&scope("t")).await.expect("it exists");
    let swept = sweep(&subject, false).await;
    assert_eq!((swept.bodies, swept.bodies_kept), (4, 0));
}

pub(super) async fn dry_sweep_counts_what_sweep_would_remove(subject: Subject) {
    history(&subject, "t", 20).await;
    history(&subject, "u", 20).await;
    prune(&subject, "t", PruneOptions::new().with_keep_last(4)).await;
    subject.delete(&scope("u")).await.expect("it exists");
    let dry = sweep(&subject, true).await;
    assert_eq!(sweep(&subject, true).await, dry, "it removed nothing");
    assert_eq!(sweep(&subject, false).await, dry);
    assert_eq!((dry.bodies, dry.bodies_kept), (16 + 20, 5));
    assert_eq!(sweep(&subject, true).await.bodies, 0);
}

pub(super) async fn sweep_keeps_contents_of_forks_and_copies(subject: Subject) {
    let made = history(&subject, "t", 6).await;
    subject.fork(&scope("t"), made[1].into(), "fork", &PutOptions::new()).await.expect("forked");
    prune(&subject, "t", PruneOptions::new().with_keep_last(3)).await;
    subject.copy(&scope("t"), "copy").await.expect("copied");
    subject.restore(&scope("t"), made[3], &PutOptions::new()).await.expect("restored");
    prune(&subject, "t", PruneOptions::new()).await;
    assert_eq!(sweep(&subject, false).await.bodies, 2, "the contents of the first and the third checkpoint");
    assert_holds(&subject, "fork", At::Latest, &[("/a", "t 1"), ("/same", "same")]).await;
    assert_holds(&subject, "t", At::Latest, &[("/a", "t 3"), ("/same", "same")]).await;
    for (number, id) in made.iter().enumerate().skip(3) {
        assert_holds(&subject, "copy", *id, &[("/a", &format!("t {number}")), ("/same", "same")]).await;
    }
    subject.delete(&scope("copy")).await.expect("it exists");
    assert_eq!(sweep(&subject, false).await.bodies, 2);
    subject.delete(&scope("t")).await.expect("it exists");
    assert_eq!(sweep(&subject, false).await.bodies, 1);
    assert_holds(&subject, "fork", At::Latest, &[("/a", "t 1"), ("/same", "same")]).await;
}

pub(super) async fn content_put_again_after_sweep_is_kept(subject: Subject) {
    let tree = StateBackend::new();
    let put_now = async || put(&subject, &scope("t"), &tree.snapshot(), head(&subject, "t").await).await;
    write(&tree, &[("/a", "comes and goes"), ("/b", "stays")]).await;
    put_now().await;
    for round in 0..3 {
        tree.delete("/a").await.expect("deleted");
        put_now().await;
        prune(&subject, "t", PruneOptions::new()).await;
        if round != 1 {
            assert_eq!(sweep(&subject, false).await.bodies, 1);
        }
        write(&tree, &[("/a", "comes and goes")]).await;
        put_now().await;
        sweep(&subject, false).await;
        assert_holds(&subject, "t", At::Latest, &[("/a", "comes and goes"), ("/b", "stays")]).await;
    }
}

pub(super) async fn equal_contents_are_stored_once(subject: Subject) {
    let files: Vec<(String, &str)> = (0..50).map(|index| (format!("/f{index}"), "one and the same")).collect();
    let files: Vec<(&str, &str)> = files.iter().map(|(path, content)| (path.as_str(), *content)).collect();
    put_files(&subject, "t", &files).await;
    put_files(&subject, "u", &[("/other", "one and the same"), ("/none", "")]).await;
    assert_eq!(sweep(&subject, true).await.bodies_kept, 1);
    subject.delete(&scope("t")).await.expect("it exists");
    assert_eq!(sweep(&subject, false).await.bodies, 0);
    assert_holds(&subject, "u", At::Latest, &[("/other", "one and the same"), ("/none", "")]).await;
}

/// A session continues with what it opened or saved, while others remove checkpoints that it no longer needs.
pub(super) async fn put_restores_swept_contents_that_session_still_holds(subject: Subject) {
    let files: Vec<(String, String)> = (0..120).map(|index| (format!("/d{}/f{index}", index % 7), format!("content {index}"))).collect();
    let mut files: Vec<(&str, &str)> = files.iter().map(|(path, content)| (path.as_str(), content.as_str())).collect();
    put_files(&subject, "t", &files).await;
    let opened = open(&subject, "t", At::Latest).await;
    let (tree, mut head) = (StateBackend::from_snapshot(&opened.state), opened.head);
    files.sort_unstable();
    for round in ["one", "two", "three"] {
        write(&tree, &[(files[3].0, round), (files[90].0, round)]).await;
        (files[3].1, files[90].1) = (round, round);
        head = put(&subject, &scope("t"), &tree.snapshot(), head).await.head;
        prune(&subject, "t", PruneOptions::new()).await;
        sweep(&subject, false).await;
        assert_holds(&subject, "t", At::Latest, &files).await;
    }
    // Another session continues from the head, and the older checkpoint is removed; then the first session saves its state
    // elsewhere.
    put_files(&subject, "t", &[("/other", "now")]).await;
    prune(&subject, "t", PruneOptions::new()).await;
    sweep(&subject, false).await;
    write(&tree, &[(files[3].0, "four")]).await;
    files[3].1 = "four";
    match subject.put(&scope("aside"), &tree.snapshot(), &PutOptions::new()).await {
        Ok(_) => assert_holds(&subject, "aside", At::Latest, &files).await,
        // Parts that were never loaded are gone: this is an error, and nothing incomplete is kept.
        Err(error) => assert_eq!((error.kind(), self::head(&subject, "aside").await), (ErrorKind::Corrupt, None), "{error:?}"),
    }
}

pub(super) async fn sweep_affects_only_one_user(subject: Subject) {
    put_files(&subject, "t", &[("/a", "shared text")]).await;
    let bob = scope("t").with_user("bob");
    put(&subject, &bob, &state(&[("/a", "shared text")]).await, None).await;
    subject.delete(&bob).await.expect("it exists");
    assert_eq!(sweep(&subject, false).await.bodies, 0);
    assert_eq!(subject.sweep(&bob, false).await.expect("swept").bodies, 1);
    assert_holds(&subject, "t", At::Latest, &[("/a", "shared text")]).await;
}
