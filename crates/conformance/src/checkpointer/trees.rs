//! The state of a checkpoint, read back as a whole and in parts.

use super::*;
use treehold_core::ops::StatOptions;

/// Asserts that both states have the same nodes, versions and times.
async fn assert_same(state: &StateSnapshot, expected: &StateSnapshot) {
    let nodes = async |state: &StateSnapshot| {
        let nodes = state.nodes(None, usize::MAX).await.unwrap_or_else(|error| panic!("nodes: {error:?}"));
        let facts = |(path, node): (VfsPathBuf, Arc<treehold_tree::backend::StateNode>)| {
            let entry = node.entry(path.clone());
            (path, entry, node.version())
        };
        nodes.into_iter().map(facts).collect::<Vec<_>>()
    };
    assert_eq!(nodes(state).await, nodes(expected).await);
    assert_eq!(read(state).await, read(expected).await);
    assert_eq!(state.version(), expected.version());
    assert_eq!(state.totals().await.expect("it exists"), expected.totals().await.expect("it is in memory"));
}

pub(super) async fn saved_files_are_preserved_byte_for_byte(subject: Subject) {
    let tree = StateBackend::new();
    let contents: [&[u8]; 9] =
        [b"", b"\0", b"a\r\nb", b"\xef\xbb\xbfbom\n", b"\xff\xfe", b"no newline", "日本 é\n".as_bytes(), b"\n", &[7; 100_000]];
    for (index, content) in contents.iter().enumerate() {
        tree.write(&format!("/d{}/f {index}", index % 3), content.to_vec()).await.expect("written");
    }
    for name in ["foo..bar", "[...slug]", ".dot", "é", "日本", "a-b", "a.b", "a", "*"] {
        tree.write(&format!("/names/{name}"), name.to_owned()).await.expect("written");
    }
    tree.write("/large", noise(1, 3 << 20)).await.expect("written");
    put(&subject, &scope("t"), &tree.snapshot(), None).await;
    assert_same(&open(&subject, "t", At::Latest).await.state, &tree.snapshot()).await;
}

pub(super) async fn versions_and_times_are_preserved(subject: Subject) {
    let micros = Arc::new(std::sync::atomic::AtomicI64::new(-5_000_000));
    let source = micros.clone();
    let clock = Clock::from_fn(move || {
        let now = source.fetch_add(1_234_567, std::sync::atomic::Ordering::Relaxed);
        Timestamp::from_microsecond(now).expect("within the calendar")
    });
    let tree = StateBackend::with_clock(&StateSnapshot::new(), clock);
    write(&tree, &[("/a", "1"), ("/d/b", "2"), ("/a", "3"), ("/d/c", "4")]).await;
    tree.rename("/d/c", "/e").await.expect("moved");
    put(&subject, &scope("t"), &tree.snapshot(), None).await;
    let opened = open(&subject, "t", At::Latest).await.state;
    assert_same(&opened, &tree.snapshot()).await;
    assert_eq!(
        opened.stat(&path("/a"), &StatOptions::new()).await.expect("a file"),
        tree.stat(&path("/a"), &StatOptions::new()).await.expect("a file")
    );
    let again = StateBackend::from_snapshot(&opened);
    let version = again.write("/a", "5").await.expect("written").version.expect("a file has one");
    assert!(version > tree.version(), "a version is not given out again");
}

pub(super) async fn empty_thread_is_preserved(subject: Subject) {
    let saved = put(&subject, &scope("t"), &StateSnapshot::new(), None).await;
    assert_eq!((saved.checkpoint.entries, saved.checkpoint.size_bytes), (0, 0));
    let opened = open(&subject, "t", At::Latest).await.state;
    assert_eq!(read(&opened).await, Files::new());
    assert_eq!(opened.ls(VfsPath::ROOT, &LsOptions::new()).await.expect("the root is there").entries, []);
    refused(opened.read(&path("/a"), &ReadOptions::new()).await, ErrorKind::NotFound);
    change(&subject, "t", &[("/a/b", "one")]).await;
    let tree = StateBackend::from_snapshot(&open(&subject, "t", At::Latest).await.state);
    tree.delete_all("/a").await.expect("deleted");
    put(&subject, &scope("t"), &tree.snapshot(), head(&subject, "t").await).await;
    assert_eq!(read(&open(&subject, "t", At::Latest).await.state).await, Files::new());
}

pub(super) async fn empty_files_and_directories_are_preserved(subject: Subject) {
    let tree = StateBackend::new();
    tree.create_dir("/d/empty").await.expect("made");
    tree.create_dir("/e").await.expect("made");
    write(&tree, &[("/d/none", ""), ("/none", "")]).await;
    put(&subject, &scope("t"), &tree.snapshot(), None).await;
    let opened = open(&subject, "t", At::Latest).await.state;
    assert_same(&opened, &tree.snapshot()).await;
    let files = read(&opened).await;
    assert_eq!(files.keys().collect::<Vec<_>>(), ["/d", "/d/empty", "/d/none", "/e", "/none"]);
    assert_eq!(files["/none"], Some(Bytes::new()));
    sweep(&subject, false).await;
    assert_same(&open(&subject, "t", At::Latest).await.state, &tree.snapshot()).await;
}

pub(super) async fn older_checkpoints_do_not_change(subject: Subject) {
    let tree = StateBackend::new();
    let mut made = Vec::new();
    for round in 0..12_u64 {
        for file in 0..6 {
            tree.write(&format!("/d{}/f{file}", round % 4), noise(round * 10 + file, 50)).await.expect("written");
        }
        if round % 3 == 2 {
            tree.delete_all(&format!("/d{}", (round + 2) % 4)).await.expect("deleted");
            tree.rename(&format!("/d{}/f1", round % 4), &format!("/d{}/moved{round}", round % 4)).await.expect("moved");
        }
        let id = put(&subject, &scope("t"), &tree.snapshot(), head(&subject, "t").await).await.checkpoint.id;
        made.push((id, tree.snapshot()));
    }
    for (id, state) in &made {
        assert_same(&open(&subject, "t", *id).await.state, state).await;
    }
}

pub(super) async fn large_saved_tree_can_be_read_listed_and_searched(subject: Subject) {
    let tree = StateBackend::new();
    for index in 0..2_000 {
        let content = if index % 400 == 7 { format!("needle {index}\n") } else { format!("hay {index}\n") };
        tree.write(&format!("/d{:02}/s{}/f{index}", index % 20, index % 3), content).await.expect("written");
    }
    put(&subject, &scope("t"), &tree.snapshot(), None).await;
    let looks = async |state: &dyn Backend| {
        let listing = state.ls(&path("/d07/s0"), &LsOptions::new().with_limit(7).with_start_after("f147")).await.expect("listed");
        let found = state.grep(VfsPath::ROOT, &GrepOptions::new("needle")).await.expect("searched");
        let globbed = state.glob(&path("/d07"), &GlobOptions::new("s1/f*7")).await.expect("searched");
        let all = state.glob(VfsPath::ROOT, &GlobOptions::new("**").with_limit(5_000)).await.expect("searched");
        (listing, found, globbed, all)
    };
    let (listing, found, globbed, all) = looks(&tree).await;
    assert_eq!((listing.entries.len(), found.files.len(), all.entries.len()), (7, 5, 2_000));
    // Each runs on a tree that is not loaded yet.
    for _ in 0..2 {
        let opened = open(&subject, "t", At::Latest).await.state;
        assert_eq!(looks(&opened).await, (listing.clone(), found.clone(), globbed.clone(), all.clone()));
    }
    let opened = open(&subject, "t", At::Latest).await.state;
    assert_eq!(opened.grep(VfsPath::ROOT, &GrepOptions::new("needle")).await.expect("searched"), found);
    assert_same(&open(&subject, "t", At::Latest).await.state, &tree.snapshot()).await;
}

pub(super) async fn deep_paths_and_long_names_are_preserved(subject: Subject) {
    let tree = StateBackend::new();
    let deepest = "/d".repeat(treehold_core::path::PATH_BYTES_MAX / 2);
    let long = format!("/{}", vec!["n".repeat(255); 15].join("/"));
    write(&tree, &[(&deepest, "deep"), (&long, "long"), (&format!("{}2", &long[..long.len() - 1]), "beside")]).await;
    put(&subject, &scope("t"), &tree.snapshot(), None).await;
    assert_same(&open(&subject, "t", At::Latest).await.state, &tree.snapshot()).await;
    change(&subject, "t", &[(&deepest, "deeper"), (&long, "longer")]).await;
    let opened = open(&subject, "t", At::Latest).await.state;
    assert_eq!(opened.read_text(&deepest).await.expect("it exists"), "deeper");
    assert_eq!(opened.read_text(&long).await.expect("it exists"), "longer");
}

pub(super) async fn saved_tree_can_be_changed_without_loading_it(subject: Subject) {
    let model = StateBackend::new();
    for index in 0..600 {
        model.write(&format!("/d{:02}/f{index}", index % 30), format!("{index}")).await.expect("written");
    }
    put(&subject, &scope("t"), &model.snapshot(), None).await;
    let act = async |tree: &StateBackend| {
        tree.edit("/d03/f33", "33", "thirty-three").await.expect("edited");
        tree.append("/d03/f63", "!").await.expect("appended");
        tree.rename("/d04", "/moved/d04").await.expect("moved");
        tree.copy("/d05", "/copied").await.expect("copied");
        assert_eq!(tree.delete_all("/d06").await.expect("deleted").entries, 21);
        tree.delete("/d07/f7").await.expect("deleted");
        tree.write("/d08/x/y/new", "new").await.expect("written");
    };
    act(&model).await;
    let tree = StateBackend::from_snapshot(&open(&subject, "t", At::Latest).await.state);
    act(&tree).await;
    assert_eq!(read(&tree.snapshot()).await, read(&model.snapshot()).await);
    put(&subject, &scope("t"), &tree.snapshot(), head(&subject, "t").await).await;
    assert_same(&open(&subject, "t", At::Latest).await.state, &tree.snapshot()).await;
}

/// A fork into another user's threads, or a move to another store: pages that are not in memory are read there and stored here.
pub(super) async fn state_saved_elsewhere_is_stored_completely(subject: Subject) {
    let files: Vec<(String, String)> = (0..200).map(|index| (format!("/d{}/f{index}", index % 7), format!("content {index}"))).collect();
    let files: Vec<(&str, &str)> = files.iter().map(|(path, content)| (path.as_str(), content.as_str())).collect();
    put_files(&subject, "t", &files).await;
    let bob = scope("t").with_user("bob");
    let opened = open(&subject, "t", At::Latest).await.state;
    put(&subject, &bob, &opened, None).await;
    let other: Subject = Arc::new(treehold_tree::checkpoint::MemoryCheckpointer::new());
    put(&other, &scope("u"), &open(&subject, "t", At::Latest).await.state, None).await;
    subject.delete(&scope("t")).await.expect("it exists");
    sweep(&subject, false).await;
    let of_bob = subject.open(&bob, At::Latest).await.expect("it exists").expect("it exists").state;
    assert_files(&read(&of_bob).await, &files);
    assert_holds(&other, "u", At::Latest, &files).await;
    // And back again.
    put(&subject, &scope("back"), &open(&other, "u", At::Latest).await.state, None).await;
    assert_holds(&subject, "back", At::Latest, &files).await;
}

/// A state whose checkpoints are all gone: if everything is in memory, the put succeeds, else it fails. An acknowledged state is complete.
pub(super) async fn state_of_removed_checkpoint_is_stored_completely_or_rejected(subject: Subject) {
    let files: Vec<(String, String)> = (0..200).map(|index| (format!("/d{}/f{index}", index % 7), format!("content {index}"))).collect();
    let files: Vec<(&str, &str)> = files.iter().map(|(path, content)| (path.as_str(), content.as_str())).collect();
    let in_memory = state(&files).await;
    put(&subject, &scope("t"), &in_memory, None).await;
    let unloaded = open(&subject, "t", At::Latest).await.state;
    put_files(&subject, "t", &[("/other", "now")]).await;
    prune(&subject, "t", PruneOptions::new()).await;
    sweep(&subject, false).await;
    let again = put(&subject, &scope("t"), &in_memory, head(&subject, "t").await).await.checkpoint;
    assert_holds(&subject, "t", again.id, &files).await;
    subject.delete(&scope("t")).await.expect("it exists");
    sweep(&subject, false).await;
    let aside = put(&subject, &scope("aside"), &in_memory, None).await.checkpoint;
    assert_holds(&subject, "aside", aside.id, &files).await;
    subject.delete(&scope("aside")).await.expect("it exists");
    sweep(&subject, false).await;
    match subject.put(&scope("u"), &unloaded, &PutOptions::new()).await {
        Ok(_) => assert_holds(&subject, "u", At::Latest, &files).await,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
            assert_eq!(head(&subject, "u").await, None);
        }
    }
}
