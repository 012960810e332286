//! Restores, forks, copies and deletes.

use super::*;

pub(super) async fn restore_creates_new_head_with_old_tree(subject: Subject) {
    let first = put_files(&subject, "t", &[("/a", "one"), ("/d/b", "1")]).await;
    let second = put_files(&subject, "t", &[("/a", "two")]).await;
    let options = PutOptions::new().with_label("back").with_metadata("why", "a test");
    let restored = subject.restore(&scope("t"), first.id, &options).await.expect("restored");
    let parent = restored.checkpoint.parent.clone().expect("the parent is the head");
    assert_eq!((parent.id, parent.thread, parent.restored), (second.id, None, Some(first.id)));
    assert_eq!((restored.checkpoint.entries, restored.checkpoint.size_bytes), (first.entries, first.size_bytes));
    assert_eq!((restored.checkpoint.label.as_deref(), restored.checkpoint.metadata["why"].as_str()), (Some("back"), "a test"));
    assert_eq!(subject.get(&scope("t"), At::Latest).await.expect("it exists"), Some(restored));
    assert_holds(&subject, "t", At::Latest, &[("/a", "one"), ("/d/b", "1")]).await;
}

pub(super) async fn restore_keeps_other_checkpoints(subject: Subject) {
    let first = put_files(&subject, "t", &[("/a", "one")]).await;
    let second = put_files(&subject, "t", &[("/a", "two")]).await;
    let third = subject.restore(&scope("t"), first.id, &PutOptions::new()).await.expect("restored").checkpoint;
    let fourth = subject.restore(&scope("t"), second.id, &PutOptions::new()).await.expect("restored").checkpoint;
    let of_head = subject.restore(&scope("t"), fourth.id, &PutOptions::new()).await.expect("restored").checkpoint;
    let listed = list_all(&subject, "t", ListOptions::new()).await;
    assert_eq!(ids(&listed), [of_head.id, fourth.id, third.id, second.id, first.id]);
    for (id, content) in [(first.id, "one"), (second.id, "two"), (third.id, "one"), (fourth.id, "two"), (of_head.id, "two")] {
        assert_holds(&subject, "t", id, &[("/a", content)]).await;
    }
}

pub(super) async fn restore_with_outdated_head_conflicts(subject: Subject) {
    let first = put(&subject, &scope("t"), &state(&[("/a", "one")]).await, None).await;
    let second = put(&subject, &scope("t"), &state(&[("/a", "two")]).await, first.head).await;
    let options = PutOptions::new().with_head(first.head);
    let error = refused(subject.restore(&scope("t"), first.checkpoint.id, &options).await, ErrorKind::Conflict);
    assert_eq!(error.current_version(), second.head.map(|head| head.version));
    assert_holds(&subject, "t", At::Latest, &[("/a", "two")]).await;
    let options = PutOptions::new().with_head(second.head);
    subject.restore(&scope("t"), first.checkpoint.id, &options).await.expect("restored");
    assert_holds(&subject, "t", At::Latest, &[("/a", "one")]).await;
}

pub(super) async fn restore_of_unknown_checkpoint_is_not_found(subject: Subject) {
    let made = put_files(&subject, "t", &[("/a", "one")]).await;
    put_files(&subject, "u", &[("/a", "two")]).await;
    refused(subject.restore(&scope("u"), made.id, &PutOptions::new()).await, ErrorKind::NotFound);
    refused(subject.restore(&scope("none"), made.id, &PutOptions::new()).await, ErrorKind::NotFound);
    assert_eq!(list_all(&subject, "u", ListOptions::new()).await.len(), 1);
    assert_eq!(head(&subject, "none").await, None);
}

pub(super) async fn restored_thread_accepts_puts(subject: Subject) {
    let first = put_files(&subject, "t", &[("/a", "one"), ("/b", "1")]).await;
    change(&subject, "t", &[("/a", "two")]).await;
    let stale = head(&subject, "t").await;
    subject.restore(&scope("t"), first.id, &PutOptions::new()).await.expect("restored");
    let options = PutOptions::new().with_head(stale);
    refused(subject.put(&scope("t"), &StateSnapshot::new(), &options).await, ErrorKind::Conflict);
    change(&subject, "t", &[("/c", "3")]).await;
    assert_holds(&subject, "t", At::Latest, &[("/a", "one"), ("/b", "1"), ("/c", "3")]).await;
}

/// Regression of a peer: changes of a fork were written to the thread it came from.
pub(super) async fn fork_and_source_are_independent(subject: Subject) {
    let files: Vec<(String, String)> = (0..100).map(|index| (format!("/d{}/f{index}", index % 5), index.to_string())).collect();
    let files: Vec<(&str, &str)> = files.iter().map(|(path, content)| (path.as_str(), content.as_str())).collect();
    let base = put_files(&subject, "t", &files).await;
    let options = PutOptions::new().with_label("branch");
    let forked = subject.fork(&scope("t"), At::Latest, "u", &options).await.expect("forked");
    let parent = forked.checkpoint.parent.clone().expect("the fork has a parent");
    assert_eq!((parent.id, parent.thread.as_deref(), parent.restored), (base.id, Some("t"), None));
    assert_eq!((forked.checkpoint.label.as_deref(), forked.checkpoint.entries), (Some("branch"), base.entries));
    assert_eq!(forked.head, head(&subject, "u").await);
    assert!(forked.checkpoint.id > base.id);
    assert_holds(&subject, "u", At::Latest, &files).await;
    for round in 0..5 {
        change(&subject, "t", &[("/d0/f0", &format!("mine {round}")), ("/of-t", "t")]).await;
        change(&subject, "u", &[("/d0/f0", &format!("his {round}")), ("/of-u", "u")]).await;
    }
    let tree = StateBackend::from_snapshot(&open(&subject, "u", At::Latest).await.state);
    tree.delete_all("/d1").await.expect("deleted");
    put(&subject, &scope("u"), &tree.snapshot(), head(&subject, "u").await).await;
    let expected = |of_f0: &'static str, own: (&'static str, &'static str), has_d1: bool| {
        let kept = files.iter().filter(move |(path, _)| has_d1 || !path.starts_with("/d1/"));
        kept.map(move |(path, content)| (*path, if *path == "/d0/f0" { of_f0 } else { *content })).chain([own]).collect::<Vec<_>>()
    };
    assert_holds(&subject, "t", At::Latest, &expected("mine 4", ("/of-t", "t"), true)).await;
    assert_holds(&subject, "u", At::Latest, &expected("his 4", ("/of-u", "u"), false)).await;
    assert_holds(&subject, "t", base.id, &files).await;
    assert_holds(&subject, "u", forked.checkpoint.id, &files).await;
}

pub(super) async fn fork_can_start_at_any_checkpoint(subject: Subject) {
    let first = put_files(&subject, "t", &[("/a", "one")]).await;
    put_files(&subject, "t", &[("/a", "two")]).await;
    let forked = subject.fork(&scope("t"), first.id.into(), "u", &PutOptions::new()).await.expect("forked").checkpoint;
    assert_eq!(forked.parent.expect("the fork has a parent").id, first.id);
    assert_eq!(list_all(&subject, "u", ListOptions::new()).await.len(), 1, "a fork has no history of its own");
    assert_holds(&subject, "u", At::Latest, &[("/a", "one")]).await;
    change(&subject, "u", &[("/b", "three")]).await;
    assert_holds(&subject, "u", At::Latest, &[("/a", "one"), ("/b", "three")]).await;
    assert_holds(&subject, "t", At::Latest, &[("/a", "two")]).await;
}

pub(super) async fn fork_of_fork_is_independent(subject: Subject) {
    put_files(&subject, "t", &[("/a", "one")]).await;
    subject.fork(&scope("t"), At::Latest, "u", &PutOptions::new()).await.expect("forked");
    change(&subject, "u", &[("/b", "two")]).await;
    subject.fork(&scope("u"), At::Latest, "v", &PutOptions::new()).await.expect("forked");
    change(&subject, "v", &[("/c", "three")]).await;
    for gone in ["t", "u"] {
        subject.delete(&scope(gone)).await.expect("it exists");
        sweep(&subject, false).await;
    }
    assert_holds(&subject, "v", At::Latest, &[("/a", "one"), ("/b", "two"), ("/c", "three")]).await;
    let first = list_all(&subject, "v", ListOptions::new()).await.pop().expect("the fork");
    assert_holds(&subject, "v", first.id, &[("/a", "one"), ("/b", "two")]).await;
}

pub(super) async fn fork_to_existing_thread_is_rejected(subject: Subject) {
    put_files(&subject, "t", &[("/a", "one")]).await;
    put_files(&subject, "u", &[("/a", "two")]).await;
    for thread in ["u", "t"] {
        let error = refused(subject.fork(&scope("t"), At::Latest, thread, &PutOptions::new()).await, ErrorKind::AlreadyExists);
        assert!(!error.may_have_effect());
    }
    assert_holds(&subject, "u", At::Latest, &[("/a", "two")]).await;
    assert_eq!(list_all(&subject, "u", ListOptions::new()).await.len(), 1);
}

pub(super) async fn fork_of_missing_thread_is_not_found(subject: Subject) {
    refused(subject.fork(&scope("t"), At::Latest, "u", &PutOptions::new()).await, ErrorKind::NotFound);
    refused(subject.copy(&scope("t"), "u").await, ErrorKind::NotFound);
    put_files(&subject, "t", &[("/a", "one")]).await;
    let unknown = CheckpointId::new(Timestamp::UNIX_EPOCH, None);
    refused(subject.fork(&scope("t"), unknown.into(), "u", &PutOptions::new()).await, ErrorKind::NotFound);
    assert_eq!(head(&subject, "u").await, None);
}

pub(super) async fn copy_has_all_checkpoints_and_is_independent(subject: Subject) {
    put_files(&subject, "t", &[("/a", "one")]).await;
    let second = change(&subject, "t", &[("/b", "two")]).await;
    subject.restore(&scope("t"), second.id, &PutOptions::new().with_label("back")).await.expect("restored");
    assert_eq!(subject.copy(&scope("t"), "u").await.expect("copied"), 3);
    let (of_t, of_u) = (list_all(&subject, "t", ListOptions::new()).await, list_all(&subject, "u", ListOptions::new()).await);
    assert_eq!(of_t, of_u);
    change(&subject, "u", &[("/a", "three")]).await;
    change(&subject, "t", &[("/c", "four")]).await;
    subject.delete(&scope("t")).await.expect("it exists");
    sweep(&subject, false).await;
    assert_holds(&subject, "u", At::Latest, &[("/a", "three"), ("/b", "two")]).await;
    assert_holds(&subject, "u", of_u[2].id, &[("/a", "one")]).await;
    assert_eq!(list_all(&subject, "u", ListOptions::new()).await.len(), 4);
}

pub(super) async fn copy_to_existing_thread_is_rejected(subject: Subject) {
    put_files(&subject, "t", &[("/a", "one")]).await;
    put_files(&subject, "u", &[("/a", "two")]).await;
    for thread in ["u", "t"] {
        refused(subject.copy(&scope("t"), thread).await, ErrorKind::AlreadyExists);
    }
    assert_holds(&subject, "u", At::Latest, &[("/a", "two")]).await;
}

pub(super) async fn delete_removes_only_that_thread(subject: Subject) {
    let names = ["t", "t/", "t ", "tt", "s", "t\u{10FFFF}"];
    for name in names {
        put_files(&subject, name, &[("/a", name)]).await;
        change(&subject, name, &[("/b", "same")]).await;
    }
    let made = list_all(&subject, "t", ListOptions::new()).await;
    subject.delete(&scope("t")).await.expect("it exists");
    refused(subject.delete(&scope("t")).await, ErrorKind::NotFound);
    sweep(&subject, false).await;
    assert_eq!(subject.get(&scope("t"), At::Latest).await.expect("nothing fails"), None);
    assert_eq!(subject.get(&scope("t"), made[0].id.into()).await.expect("nothing fails"), None);
    assert_eq!(list_all(&subject, "t", ListOptions::new()).await, []);
    for name in &names[1..] {
        assert_holds(&subject, name, At::Latest, &[("/a", name), ("/b", "same")]).await;
        assert_eq!(list_all(&subject, name, ListOptions::new()).await.len(), 2);
    }
}

pub(super) async fn deleted_thread_can_start_anew(subject: Subject) {
    put_files(&subject, "t", &[("/a", "one")]).await;
    let old = head(&subject, "t").await;
    subject.delete(&scope("t")).await.expect("it exists");
    let first = put_files(&subject, "t", &[("/b", "two")]).await;
    assert_eq!(ids(&list_all(&subject, "t", ListOptions::new()).await), [first.id]);
    assert_ne!(head(&subject, "t").await.map(|head| head.version), old.map(|head| head.version), "a version is not used again");
    let options = PutOptions::new().with_head(old);
    refused(subject.put(&scope("t"), &StateSnapshot::new(), &options).await, ErrorKind::Conflict);
    assert_holds(&subject, "t", At::Latest, &[("/b", "two")]).await;
}
