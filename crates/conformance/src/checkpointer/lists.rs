//! Lists of checkpoints and threads.

use super::*;

/// Puts checkpoints one minute apart, the first an hour ago, with repeating labels and metadata. Returns them, newest first.
async fn made(subject: &Subject, thread: &str, count: i64) -> Vec<Checkpoint> {
    let start = Timestamp::now() - jiff::SignedDuration::from_hours(1);
    let mut made: Vec<Checkpoint> = Vec::new();
    let mut head = None;
    for number in 0..count {
        let id = CheckpointId::new(start + jiff::SignedDuration::from_mins(number), None);
        let mut options = PutOptions::new().with_id(id).with_head(head).with_metadata("parity", (number % 2).to_string());
        if number % 3 == 0 {
            options = options.with_label(format!("label {}", number % 2));
        }
        if number % 5 == 0 {
            options = options.with_metadata("fifth", "yes");
        }
        let saved = put_as(subject, &scope(thread), &StateSnapshot::new(), options).await;
        head = saved.head;
        made.push(saved.checkpoint);
    }
    made.reverse();
    made
}

pub(super) async fn checkpoints_are_listed_newest_first(subject: Subject) {
    let made = made(&subject, "t", 9).await;
    made_elsewhere(&subject).await;
    let page = subject.list(&scope("t"), &ListOptions::new()).await.expect("listed");
    assert_eq!((page.checkpoints, page.next), (made.clone(), None));
    assert!(made.is_sorted_by(|one, next| one.id > next.id && one.created_at > next.created_at));
}

/// Adds threads with similar names.
async fn made_elsewhere(subject: &Subject) {
    for thread in ["s", "t ", "t!", "tt", "T", "t/"] {
        put_files(subject, thread, &[("/a", "other")]).await;
    }
}

pub(super) async fn checkpoint_list_pages_add_up_to_whole(subject: Subject) {
    let made = made(&subject, "t", 11).await;
    made_elsewhere(&subject).await;
    for limit in [1, 2, 3, 10, 11, 12, usize::MAX] {
        assert_eq!(list_all(&subject, "t", ListOptions::new().with_limit(limit)).await, made, "limit {limit}");
    }
    let page = subject.list(&scope("t"), &ListOptions::new().with_limit(11)).await.expect("listed");
    assert_eq!((page.checkpoints.len(), page.next), (11, None), "the last page has no cursor");
    let page = subject.list(&scope("t"), &ListOptions::new().with_limit(4)).await.expect("listed");
    assert_eq!((page.checkpoints.len(), page.next), (4, Some(made[3].id)));
    let behind = ListOptions::new().with_start_after(CheckpointId::new(made[5].created_at, Some(made[5].id)));
    assert_eq!(list_all(&subject, "t", behind).await[..], made[5..], "a cursor need not be there");
}

pub(super) async fn checkpoint_list_filters_by_label_and_metadata(subject: Subject) {
    let made = made(&subject, "t", 12).await;
    let listed = async |options: ListOptions| list_all(&subject, "t", options).await;
    let expected = |keep: &dyn Fn(&Checkpoint) -> bool| made.iter().filter(|made| keep(made)).cloned().collect::<Vec<_>>();
    let by_label = listed(ListOptions::new().with_label("label 1")).await;
    assert_eq!(by_label, expected(&|made| made.label.as_deref() == Some("label 1")));
    assert_eq!(by_label.len(), 2);
    assert_eq!(listed(ListOptions::new().with_label("label")).await, [], "a label is matched whole");
    let odd = listed(ListOptions::new().with_metadata("parity", "1")).await;
    assert_eq!(odd, expected(&|made| made.metadata["parity"] == "1"));
    let both = listed(ListOptions::new().with_metadata("parity", "1").with_metadata("fifth", "yes")).await;
    assert_eq!(both, expected(&|made| made.metadata["parity"] == "1" && made.metadata.contains_key("fifth")));
    assert_eq!(listed(ListOptions::new().with_metadata("fifth", "no")).await, []);
    assert_eq!(listed(ListOptions::new().with_metadata("none", "")).await, []);
}

pub(super) async fn checkpoint_list_filters_by_time(subject: Subject) {
    let made = made(&subject, "t", 10).await;
    let smallest = jiff::SignedDuration::from_micros(1);
    for at in [&made[0], &made[4], &made[9]].map(|made| made.created_at) {
        for time in [at - smallest, at, at + smallest, at - smallest * 2_000, at + smallest * 2_000] {
            let since = list_all(&subject, "t", ListOptions::new().with_since(time)).await;
            assert_eq!(since, made.iter().filter(|made| made.created_at >= time).cloned().collect::<Vec<_>>());
            let until = list_all(&subject, "t", ListOptions::new().with_until(time)).await;
            assert_eq!(until, made.iter().filter(|made| made.created_at < time).cloned().collect::<Vec<_>>());
        }
    }
    let between = ListOptions::new().with_since(made[6].created_at).with_until(made[2].created_at);
    assert_eq!(list_all(&subject, "t", between).await[..], made[3..=6]);
    let (least, most) = (Timestamp::MIN, Timestamp::MAX);
    assert_eq!(list_all(&subject, "t", ListOptions::new().with_since(least).with_until(most)).await, made);
    assert_eq!(list_all(&subject, "t", ListOptions::new().with_since(most)).await, []);
    assert_eq!(list_all(&subject, "t", ListOptions::new().with_until(least)).await, []);
    // A checkpoint is found by its own time, whatever the clock does.
    let now = put_files(&subject, "u", &[("/a", "1")]).await;
    let next = put_files(&subject, "u", &[("/a", "2")]).await;
    for time in [now.created_at, next.created_at, next.created_at + smallest] {
        let since = list_all(&subject, "u", ListOptions::new().with_since(time)).await;
        let expected: Vec<Checkpoint> = [&next, &now].into_iter().filter(|made| made.created_at >= time).cloned().collect();
        assert_eq!(since, expected);
        let until = list_all(&subject, "u", ListOptions::new().with_until(time)).await;
        assert_eq!(until.len() + since.len(), 2);
    }
}

pub(super) async fn filtered_list_pages_add_up_to_whole(subject: Subject) {
    let made = made(&subject, "t", 20).await;
    let expected: Vec<Checkpoint> = made
        .iter()
        .filter(|one| one.metadata["parity"] == "0" && one.created_at >= made[15].created_at && one.created_at < made[1].created_at)
        .cloned()
        .collect();
    for limit in [1, 2, 3, 6, 7, 8] {
        let options = ListOptions::new().with_metadata("parity", "0").with_since(made[15].created_at).with_until(made[1].created_at);
        assert_eq!(list_all(&subject, "t", options.with_limit(limit)).await, expected, "limit {limit}");
    }
}

pub(super) async fn checkpoint_list_of_missing_thread_is_empty(subject: Subject) {
    made_elsewhere(&subject).await;
    assert_eq!(list_all(&subject, "t", ListOptions::new()).await, []);
}

pub(super) async fn threads_are_listed_in_pages(subject: Subject) {
    let mut names = ["b", "a", "a/b", "a b", "é", "-", "--", "Z", "日本", "a%2Fb", "1"];
    for name in names {
        put_files(&subject, name, &[("/a", name)]).await;
    }
    names.sort_unstable();
    for limit in [1, 2, 3, 11, 12, 1_000] {
        let listed = threads(&subject, &scope("-"), limit).await;
        assert_eq!(listed.iter().map(|info| info.thread.as_str()).collect::<Vec<_>>(), names, "limit {limit}");
    }
    let page = subject.threads(&scope("-"), Some("a/"), 1).await.expect("listed");
    assert_eq!(page.threads[0].thread, "a/b", "a cursor need not be there");
    assert_eq!(subject.threads(&scope("-"), Some("\u{10FFFF}"), 9).await.expect("listed"), Default::default());
}

pub(super) async fn list_with_limit_zero_reports_whether_there_is_more(subject: Subject) {
    let made = made(&subject, "t", 3).await;
    made_elsewhere(&subject).await;
    let none = ListOptions::new().with_limit(0);
    let page = subject.list(&scope("t"), &none).await.expect("listed");
    assert_eq!(page.checkpoints, []);
    let all = ListOptions::new().with_start_after(page.next.expect("there is more"));
    assert_eq!(list_all(&subject, "t", all).await, made);
    let page = subject.list(&scope("t"), &none.clone().with_start_after(made[0].id)).await.expect("listed");
    assert_eq!((page.checkpoints.len(), page.next), (0, Some(made[0].id)));
    let page = subject.list(&scope("t"), &none.with_start_after(made[2].id)).await.expect("listed");
    assert_eq!((page.checkpoints.len(), page.next), (0, None));
    let page = subject.threads(&scope("-"), None, 0).await.expect("listed");
    assert_eq!(page.threads, []);
    let start = page.next.expect("there is more");
    let all = threads(&subject, &scope("-"), 100).await;
    assert_eq!(subject.threads(&scope("-"), Some(&start), 1).await.expect("listed").threads, all[..1]);
    let page = subject.threads(&scope("-"), Some("t"), 0).await.expect("listed");
    assert_eq!((page.threads.len(), page.next.as_deref()), (0, Some("t")));
    assert_eq!(subject.threads(&scope("-"), Some("tt"), 0).await.expect("listed"), Default::default());
    let (older, newer) = (StateSnapshot::new(), open(&subject, "s", At::Latest).await.state);
    let page = diff(&older, &newer, None, 0).await.expect("read");
    assert_eq!(page.paths, []);
    let start = page.next.expect("there is more");
    assert_eq!(diff(&older, &newer, Some(&start), 10).await.expect("read").paths.len(), 1);
    assert_eq!(diff(&older, &newer, Some(&path("/a")), 0).await.expect("read"), Diff::default());
}

pub(super) async fn thread_entry_reflects_its_head(subject: Subject) {
    let first = put_files(&subject, "t", &[("/a", "123")]).await;
    let second = put_files(&subject, "t", &[("/d/a", "12345")]).await;
    subject.fork(&scope("t"), first.id.into(), "fork", &PutOptions::new()).await.expect("forked");
    subject.copy(&scope("t"), "copy").await.expect("copied");
    let listed = threads(&subject, &scope("-"), 10).await;
    let shown: Vec<_> = listed.iter().map(|info| (info.thread.as_str(), info.entries, info.size_bytes)).collect();
    assert_eq!(shown, [("copy", 2, 5), ("fork", 1, 3), ("t", 2, 5)]);
    assert_eq!((listed[0].head, listed[2].head), (second.id, second.id));
    for info in [&listed[0], &listed[2]] {
        assert_eq!((info.created_at, info.saved_at), (first.created_at, second.created_at), "{}", info.thread);
    }
}
