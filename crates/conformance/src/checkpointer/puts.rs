//! Puts: what can be read back, and what is rejected.

use super::*;

pub(super) async fn unsaved_thread_has_no_checkpoint(subject: Subject) {
    assert_eq!(subject.get(&scope("t"), At::Latest).await.expect("nothing fails"), None);
    assert!(subject.open(&scope("t"), At::Latest).await.expect("nothing fails").is_none());
    assert_eq!(threads(&subject, &scope("t"), 10).await, []);
}

pub(super) async fn put_becomes_latest_and_is_found_by_id(subject: Subject) {
    let saved = put(&subject, &scope("t"), &state(&[("/a", "one")]).await, None).await;
    assert_eq!(saved.checkpoint.parent, None);
    for at in [At::Latest, At::Id(saved.checkpoint.id)] {
        assert_eq!(subject.get(&scope("t"), at).await.expect("it exists"), Some(saved.clone()));
        let opened = open(&subject, "t", at).await;
        assert_eq!((&opened.checkpoint, opened.head), (&saved.checkpoint, saved.head));
        assert_files(&read(&opened.state).await, &[("/a", "one")]);
    }
}

pub(super) async fn unknown_id_is_not_found(subject: Subject) {
    let made = put_files(&subject, "t", &[("/a", "one")]).await;
    for id in [CheckpointId::new(Timestamp::UNIX_EPOCH, None), CheckpointId::new(Timestamp::now(), Some(made.id))] {
        assert_eq!(subject.get(&scope("t"), id.into()).await.expect("nothing fails"), None);
        assert!(subject.open(&scope("t"), id.into()).await.expect("nothing fails").is_none());
    }
}

pub(super) async fn id_of_another_thread_is_not_found(subject: Subject) {
    let made = put_files(&subject, "t", &[("/a", "one")]).await;
    put_files(&subject, "u", &[("/a", "two")]).await;
    assert_eq!(subject.get(&scope("u"), made.id.into()).await.expect("nothing fails"), None);
    assert!(subject.open(&scope("u"), made.id.into()).await.expect("nothing fails").is_none());
}

pub(super) async fn put_follows_expected_head(subject: Subject) {
    let mut saved = put(&subject, &scope("t"), &state(&[("/a", "0")]).await, None).await;
    for round in 1..5 {
        let next = put(&subject, &scope("t"), &state(&[("/a", &round.to_string())]).await, saved.head).await;
        let parent = next.checkpoint.parent.as_ref().expect("the checkpoint has a parent");
        assert_eq!((parent.id, &parent.thread, parent.restored), (saved.checkpoint.id, &None, None));
        saved = next;
    }
    assert_holds(&subject, "t", At::Latest, &[("/a", "4")]).await;
}

pub(super) async fn put_on_outdated_head_conflicts_and_names_current_head(subject: Subject) {
    let first = put(&subject, &scope("t"), &state(&[("/a", "one")]).await, None).await;
    let second = put(&subject, &scope("t"), &state(&[("/a", "two")]).await, first.head).await;
    let late = state(&[("/a", "three")]).await;
    let error = refused(subject.put(&scope("t"), &late, &PutOptions::new().with_head(first.head)).await, ErrorKind::Conflict);
    assert_eq!(error.current_version(), second.head.map(|head| head.version));
    assert!(!error.may_have_effect(), "{error:?}");
    assert_holds(&subject, "t", At::Latest, &[("/a", "two")]).await;
    put(&subject, &scope("t"), &late, second.head).await;
}

pub(super) async fn first_put_to_saved_thread_conflicts(subject: Subject) {
    let first = put(&subject, &scope("t"), &state(&[("/a", "one")]).await, None).await;
    let error = refused(subject.put(&scope("t"), &StateSnapshot::new(), &PutOptions::new()).await, ErrorKind::Conflict);
    assert_eq!(error.current_version(), first.head.map(|head| head.version));
    assert_holds(&subject, "t", At::Latest, &[("/a", "one")]).await;
}

pub(super) async fn put_with_head_to_unsaved_thread_conflicts(subject: Subject) {
    let first = put(&subject, &scope("t"), &state(&[("/a", "one")]).await, None).await;
    subject.delete(&scope("t")).await.expect("it exists");
    let options = PutOptions::new().with_head(first.head);
    let error = refused(subject.put(&scope("t"), &state(&[("/a", "two")]).await, &options).await, ErrorKind::Conflict);
    assert_eq!(error.current_version(), None);
    assert_eq!(head(&subject, "t").await, None);
}

pub(super) async fn rejected_put_leaves_nothing(subject: Subject) {
    put_files(&subject, "t", &[("/a", "one")]).await;
    let before = (list_all(&subject, "t", ListOptions::new()).await, sweep(&subject, true).await);
    let late = state(&[("/a", "two"), ("/b", "three")]).await;
    refused(subject.put(&scope("t"), &late, &PutOptions::new()).await, ErrorKind::Conflict);
    let options = PutOptions::new().with_label("x".repeat(LABEL_BYTES_MAX + 1));
    refused(subject.put(&scope("u"), &late, &options).await, ErrorKind::InvalidArgument);
    assert_eq!((list_all(&subject, "t", ListOptions::new()).await, sweep(&subject, true).await), before);
    assert_eq!(head(&subject, "u").await, None);
}

pub(super) async fn checkpoint_counts_its_files_and_bytes(subject: Subject) {
    let made = put_files(&subject, "t", &[("/a", "123"), ("/d/b", "4567"), ("/d/e/c", "")]).await;
    assert_eq!((made.entries, made.size_bytes), (5, 7));
    let made = change(&subject, "t", &[("/a", "1")]).await;
    assert_eq!((made.entries, made.size_bytes), (5, 5));
    assert_eq!(open(&subject, "t", At::Latest).await.state.totals().await.expect("it exists"), (5, 5));
}

pub(super) async fn label_and_metadata_are_preserved(subject: Subject) {
    let label = "L".repeat(LABEL_BYTES_MAX);
    let options = PutOptions::new().with_label(&label).with_metadata("actor", "coder").with_metadata("é", "").with_metadata("n", "a\nb");
    let made = put_as(&subject, &scope("t"), &StateSnapshot::new(), options.clone()).await.checkpoint;
    assert_eq!((made.label.as_ref(), &made.metadata), (Some(&label), &options.metadata));
    assert_eq!(open(&subject, "t", At::Latest).await.checkpoint, made);
    assert_eq!(list_all(&subject, "t", ListOptions::new()).await, [made]);
    let next = put(&subject, &scope("t"), &StateSnapshot::new(), head(&subject, "t").await).await.checkpoint;
    assert_eq!((next.label, next.metadata.len()), (None, 0), "a label is not handed down");
}

pub(super) async fn labels_and_metadata_are_validated(subject: Subject) {
    let state = StateSnapshot::new();
    for label in [String::new(), "x".repeat(LABEL_BYTES_MAX + 1), "a\nb".to_owned(), "\u{1}".to_owned()] {
        let options = PutOptions::new().with_label(label);
        refused(subject.put(&scope("t"), &state, &options).await, ErrorKind::InvalidArgument);
    }
    let full = PutOptions::new().with_metadata("name", "v".repeat(METADATA_BYTES_MAX - 4));
    let saved = put_as(&subject, &scope("t"), &state, full.clone()).await;
    let over = full.with_metadata("m", "");
    let next = over.clone().with_head(saved.head);
    refused(subject.put(&scope("t"), &state, &next).await, ErrorKind::InvalidArgument);
    refused(subject.restore(&scope("t"), saved.checkpoint.id, &over).await, ErrorKind::InvalidArgument);
    refused(subject.fork(&scope("t"), At::Latest, "u", &over).await, ErrorKind::InvalidArgument);
    assert_eq!(list_all(&subject, "t", ListOptions::new()).await, [saved.checkpoint]);
    assert_eq!(head(&subject, "u").await, None);
}

/// Whatever the clock does: some rows of the kit stop it or turn it back.
pub(super) async fn ids_and_versions_grow_with_each_put(subject: Subject) {
    let tree = StateBackend::new();
    let mut saved: Vec<Saved> = Vec::new();
    for round in 0..40 {
        write(&tree, &[("/a", &round.to_string())]).await;
        let last = saved.last().and_then(|last| last.head);
        saved.push(put(&subject, &scope("t"), &tree.snapshot(), last).await);
    }
    assert!(saved.is_sorted_by(|one, next| one.checkpoint.id < next.checkpoint.id));
    let versions: Vec<_> = saved.iter().map(|saved| saved.head.expect("it was the head").version).collect();
    assert!(versions.is_sorted_by(|one, next| one < next), "{versions:?}");
    for (round, saved) in saved.iter().enumerate() {
        assert_holds(&subject, "t", saved.checkpoint.id, &[("/a", &round.to_string())]).await;
    }
    let restored = subject.restore(&scope("t"), saved[3].checkpoint.id, &PutOptions::new()).await.expect("it exists");
    assert!(restored.checkpoint.id > saved[39].checkpoint.id);
}

pub(super) async fn requested_id_is_used_if_newer_than_head(subject: Subject) {
    let hour_ago = Timestamp::now() - jiff::SignedDuration::from_hours(1);
    let id = CheckpointId::new(hour_ago, None);
    let first = put_as(&subject, &scope("t"), &StateSnapshot::new(), PutOptions::new().with_id(id)).await;
    assert_eq!(first.checkpoint.id, id);
    let options = PutOptions::new().with_id(id).with_head(first.head);
    let second = put_as(&subject, &scope("t"), &StateSnapshot::new(), options).await;
    assert!(second.checkpoint.id > id, "an id that is not newer is not given again");
    assert_eq!(ids(&list_all(&subject, "t", ListOptions::new()).await), [second.checkpoint.id, id]);
}

pub(super) async fn only_head_is_opened_as_head(subject: Subject) {
    let first = put_files(&subject, "t", &[("/a", "one")]).await;
    let second = put_files(&subject, "t", &[("/a", "two")]).await;
    let of = async |id: CheckpointId| subject.get(&scope("t"), id.into()).await.expect("it exists").expect("it exists").head;
    assert_eq!(of(first.id).await, None);
    assert_eq!(of(second.id).await, head(&subject, "t").await);
    assert_eq!(open(&subject, "t", first.id).await.head, None);
}

pub(super) async fn confirm_returns_checkpoint_as_read(subject: Subject) {
    let confirm = async |thread: &str, id| subject.confirm(&scope(thread), id).await.unwrap_or_else(|error| panic!("confirm: {error:?}"));
    let first = put_files(&subject, "t", &[("/a", "one")]).await;
    let second = put_files(&subject, "t", &[("/a", "two")]).await;
    for id in [first.id, second.id, second.id] {
        let read = subject.get(&scope("t"), id.into()).await.expect("it exists");
        assert!(read.is_some());
        assert_eq!(confirm("t", id).await, read);
    }
    assert_eq!(confirm("u", first.id).await, None);
    let unknown = CheckpointId::new(Timestamp::now(), Some(second.id));
    assert_eq!(confirm("t", unknown).await, None);
    assert_holds(&subject, "t", first.id, &[("/a", "one")]).await;
    change(&subject, "t", &[("/a", "three")]).await;
    prune(&subject, "t", PruneOptions::new().with_keep_last(1)).await;
    assert_eq!(confirm("t", first.id).await, None);
}
