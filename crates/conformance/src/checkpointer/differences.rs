//! Differences between checkpoints: by content, not by what was written.

use super::*;

async fn diffed(subject: &Subject, older: (&str, CheckpointId), newer: (&str, CheckpointId)) -> Diff {
    let (older, newer) = (open(subject, older.0, older.1).await.state, open(subject, newer.0, newer.1).await.state);
    diff(&older, &newer, None, usize::MAX).await.unwrap_or_else(|error| panic!("diff: {error:?}"))
}

fn shown(diff: &Diff) -> Vec<String> {
    let sign = |change| match change {
        ChangeKind::Added => '+',
        ChangeKind::Changed => '~',
        ChangeKind::Removed => '-',
    };
    let show = |size: Option<u64>, is_directory: bool| {
        size.map_or_else(|| if is_directory { "/".into() } else { ".".into() }, |size| size.to_string())
    };
    let of = |path: &treehold_tree::checkpoint::PathDiff| {
        let (old, new) = (show(path.old_size_bytes, path.was_directory), show(path.new_size_bytes, path.is_directory));
        format!("{}{} {old} {new}", sign(path.change), path.path)
    };
    diff.paths.iter().map(of).collect()
}

pub(super) async fn diff_reports_added_changed_and_removed_paths(subject: Subject) {
    let first = put_files(&subject, "t", &[("/a", "1"), ("/b", "22"), ("/d/c", "3"), ("/d/same", "4")]).await;
    let tree = StateBackend::from_snapshot(&open(&subject, "t", At::Latest).await.state);
    write(&tree, &[("/b", "two"), ("/e/f", "6")]).await;
    tree.delete("/a").await.expect("deleted");
    tree.rename("/d/c", "/d/e").await.expect("moved");
    let second = put(&subject, &scope("t"), &tree.snapshot(), head(&subject, "t").await).await.checkpoint;
    let forth = diffed(&subject, ("t", first.id), ("t", second.id)).await;
    assert_eq!(shown(&forth), ["-/a 1 .", "~/b 2 3", "-/d/c 1 .", "+/d/e . 1", "+/e . /", "+/e/f . 1"]);
    let back = diffed(&subject, ("t", second.id), ("t", first.id)).await;
    assert_eq!(shown(&back), ["+/a . 1", "~/b 3 2", "+/d/c . 1", "-/d/e 1 .", "-/e / .", "-/e/f 1 ."]);
    assert_eq!((forth.next, back.next), (None, None));
    let from_nothing = diff(&StateSnapshot::new(), &open(&subject, "t", first.id).await.state, None, 100).await.expect("read");
    assert_eq!(from_nothing.paths.len(), 5);
}

pub(super) async fn diff_of_checkpoint_with_itself_is_empty(subject: Subject) {
    let files: Vec<(String, String)> = (0..300).map(|index| (format!("/d{}/f{index}", index % 7), index.to_string())).collect();
    let files: Vec<(&str, &str)> = files.iter().map(|(path, content)| (path.as_str(), content.as_str())).collect();
    let first = put_files(&subject, "t", &files).await;
    let forked = subject.fork(&scope("t"), At::Latest, "u", &PutOptions::new()).await.expect("forked").checkpoint;
    let changed = change(&subject, "t", &[("/d0/f0", "x")]).await;
    let restored = subject.restore(&scope("t"), first.id, &PutOptions::new()).await.expect("restored").checkpoint;
    assert_eq!(shown(&diffed(&subject, ("t", first.id), ("t", first.id)).await), [""; 0]);
    assert_eq!(shown(&diffed(&subject, ("t", first.id), ("u", forked.id)).await), [""; 0]);
    assert_eq!(shown(&diffed(&subject, ("u", forked.id), ("t", restored.id)).await), [""; 0]);
    assert_eq!(shown(&diffed(&subject, ("u", forked.id), ("t", changed.id)).await), ["~/d0/f0 1 1"]);
}

pub(super) async fn diff_ignores_rewrites_of_same_content(subject: Subject) {
    let first = put_files(&subject, "t", &[("/a", "1"), ("/b", "2"), ("/d/c", "3"), ("/none", "")]).await;
    let second = change(&subject, "t", &[("/a", "1"), ("/none", ""), ("/b", "3")]).await;
    assert_eq!(shown(&diffed(&subject, ("t", first.id), ("t", second.id)).await), ["~/b 1 1"]);
    let tree = StateBackend::from_snapshot(&open(&subject, "t", At::Latest).await.state);
    tree.delete_all("/d").await.expect("deleted");
    write(&tree, &[("/d/c", "3"), ("/b", "2")]).await;
    let third = put(&subject, &scope("t"), &tree.snapshot(), head(&subject, "t").await).await.checkpoint;
    assert_eq!(shown(&diffed(&subject, ("t", first.id), ("t", third.id)).await), [""; 0]);
    let anew = put_files(&subject, "u", &[("/a", "1"), ("/b", "2"), ("/d/c", "3"), ("/none", "")]).await;
    assert_eq!(shown(&diffed(&subject, ("t", first.id), ("u", anew.id)).await), [""; 0], "of different origin");
}

pub(super) async fn diff_reports_change_of_kind(subject: Subject) {
    let first = put_files(&subject, "t", &[("/d/x/y", "1"), ("/f", "22")]).await;
    let second = put_files(&subject, "t", &[("/d/x", "333"), ("/f/g/h", "4")]).await;
    let forth = diffed(&subject, ("t", first.id), ("t", second.id)).await;
    assert_eq!(shown(&forth), ["~/d/x / 3", "-/d/x/y 1 .", "~/f 2 /", "+/f/g . /", "+/f/g/h . 1"]);
}

pub(super) async fn diff_pages_add_up_to_whole(subject: Subject) {
    let files: Vec<(String, String)> = (0..150).map(|index| (format!("/d{}/f{index:03}", index % 7), index.to_string())).collect();
    let files: Vec<(&str, &str)> = files.iter().map(|(path, content)| (path.as_str(), content.as_str())).collect();
    let first = put_files(&subject, "t", &files).await;
    let changed: Vec<(&str, &str)> =
        files.iter().enumerate().map(|(index, (path, content))| (*path, if index % 3 == 0 { "changed" } else { *content })).collect();
    let second = change(&subject, "t", &changed).await;
    let (older, newer) = (open(&subject, "t", first.id).await.state, open(&subject, "t", second.id).await.state);
    let whole = diff(&older, &newer, None, usize::MAX).await.expect("read");
    assert_eq!((whole.paths.len(), &whole.next), (50, &None));
    for limit in [1, 7, 49, 50, 51] {
        let (mut paths, mut after) = (Vec::new(), None::<VfsPathBuf>);
        loop {
            let page = diff(&older, &newer, after.as_deref(), limit).await.expect("read");
            assert!(page.paths.len() <= limit);
            paths.extend(page.paths);
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        assert_eq!(paths, whole.paths, "limit {limit}");
    }
}

/// Two forks that continue at the same instant use the same versions. Their contents distinguish what they wrote.
pub(super) async fn diff_of_forks_reports_simultaneous_writes(subject: Subject) {
    put_files(&subject, "t", &[("/a", "base"), ("/b", "base")]).await;
    subject.fork(&scope("t"), At::Latest, "u", &PutOptions::new()).await.expect("forked");
    let now = Timestamp::now() + jiff::SignedDuration::from_hours(1);
    let mut heads = Vec::new();
    for (thread, content) in [("t", "mine"), ("u", "his!")] {
        let opened = open(&subject, thread, At::Latest).await;
        let tree = StateBackend::with_clock(&opened.state, Clock::from_fn(move || now));
        write(&tree, &[("/a", content), ("/b", "both")]).await;
        tree.create_dir(&format!("/{thread}")).await.expect("made");
        heads.push((thread, put(&subject, &scope(thread), &tree.snapshot(), opened.head).await.checkpoint.id, tree.snapshot()));
    }
    let saved = diffed(&subject, (heads[0].0, heads[0].1), (heads[1].0, heads[1].1)).await;
    assert_eq!(shown(&saved), ["~/a 4 4", "-/t / .", "+/u . /"]);
    let in_memory = diff(&heads[0].2, &heads[1].2, None, 10).await.expect("it is in memory");
    assert_eq!(shown(&in_memory), ["~/a 4 4", "-/t / .", "+/u . /"]);
}
