//! The round trips and bytes that the docs state, measured at the store.

use super::watched::Watched;
use super::{checkpointer, is_saved, scope, workspace, write};
use treehold::checkpoint::{At, Checkpointer, PutOptions};
use treehold::ops::{GlobOptions, GrepOptions, LsOptions};
use treehold::{Backend, BackendExt, ErrorKind, StateBackend, ThreadDurability, VfsPath, VfsPathBuf};

/// Saves a thread of `count` files, each named by its number and with different content.
async fn saved(store: &Watched, count: usize, name: impl Fn(usize) -> String) {
    let tree = StateBackend::new();
    for number in 0..count {
        tree.write(&name(number), format!("content {number}\n")).await.unwrap();
    }
    checkpointer(store).put(&scope("t"), &tree.snapshot(), &PutOptions::new()).await.unwrap();
    store.seen();
}

fn among_directories(number: usize) -> String {
    format!("/src/d{:02}/part {}/file-{number}.rs", number % 50, number % 4)
}

async fn opened(store: &Watched) -> StateBackend {
    StateBackend::from_snapshot(&checkpointer(store).open(&scope("t"), At::Latest).await.unwrap().unwrap().state)
}

/// Regression: every file of the thread was read on each turn.
#[tokio::test]
async fn opening_a_thread_of_thousands_of_files_reads_only_one() {
    let store = Watched::default();
    saved(&store, 5_000, among_directories).await;
    let session = workspace(&store, ThreadDurability::Step).session(scope("t")).await.unwrap();
    assert_eq!(session.backend().read_text(&among_directories(4_321)).await.unwrap(), "content 4321\n");
    let seen = store.seen();
    assert!(seen.rows.len() <= 6, "{:?}", seen.rows);
    assert_eq!((seen.rows_of("heads"), seen.rows_of("bodies")), (1, 1));
    assert!(seen.batches.is_empty());
    assert!(session.backend().read_text(&among_directories(4_321)).await.is_ok());
    assert_eq!(store.seen().reads, 0, "a second read takes no round trip");
    assert!(!session.backend().exists("/src/d07/none").await.unwrap());
    assert!(store.seen().rows.len() <= 4);
}

/// A content that a sweep has removed is not read from memory, and a dry run removes nothing from it.
#[tokio::test]
async fn swept_content_is_forgotten() {
    let store = Watched::default();
    let checkpointer = checkpointer(&store);
    let tree = StateBackend::new();
    tree.write("/a", "text").await.unwrap();
    checkpointer.put(&scope("t"), &tree.snapshot(), &PutOptions::new()).await.unwrap();
    let mut held = Vec::new();
    for _ in 0..2 {
        held.push(StateBackend::from_snapshot(&checkpointer.open(&scope("t"), At::Latest).await.unwrap().unwrap().state));
    }
    checkpointer.delete(&scope("t")).await.unwrap();
    assert_eq!(checkpointer.sweep(&scope("t"), true).await.unwrap().bodies, 1);
    store.seen();
    assert_eq!(held[0].read_text("/a").await.unwrap(), "text");
    assert_eq!(store.seen().rows_of("bodies"), 0);
    assert_eq!(checkpointer.sweep(&scope("t"), false).await.unwrap().bodies, 1);
    assert_eq!(held[1].read_text("/a").await.unwrap_err().kind(), ErrorKind::Corrupt);
}

#[tokio::test]
async fn showing_and_listing_checkpoints_reads_no_tree() {
    let store = Watched::default();
    saved(&store, 2_000, among_directories).await;
    let checkpointer = checkpointer(&store);
    checkpointer.get(&scope("t"), At::Latest).await.unwrap().unwrap();
    checkpointer.list(&scope("t"), &Default::default()).await.unwrap();
    checkpointer.fork(&scope("t"), At::Latest, "u", &PutOptions::new()).await.unwrap();
    let head = checkpointer.get(&scope("u"), At::Latest).await.unwrap().unwrap().checkpoint;
    checkpointer.restore(&scope("u"), head.id, &PutOptions::new()).await.unwrap();
    let seen = store.seen();
    assert_eq!((seen.rows_of("pages"), seen.rows_of("bodies"), seen.batches.len()), (0, 0, 2), "{:?}", seen.rows);
    assert!(seen.batches.iter().all(|bytes| *bytes < 1_024), "{:?}", seen.batches);
}

/// Edits files in several parts of the tree, each with a checkpoint.
async fn edits_cost(count: usize, name: impl Fn(usize) -> String, bytes_max: usize) {
    let store = Watched::default();
    saved(&store, count, &name).await;
    let session = workspace(&store, ThreadDurability::Step).session(scope("t")).await.unwrap();
    for round in 0..40 {
        let number = round * 7_919 % count;
        let content = format!("{round} ").repeat(1 + round * 53 % 2_000);
        assert!(is_saved(&session, write(&name(number), &content)).await);
        let seen = store.seen();
        assert_eq!((seen.batches.len(), seen.bodies), (1, 1), "one batch with one content");
        let beside = seen.batches[0] - content.len();
        assert!(beside <= bytes_max, "{beside} bytes beside the content, of {count} files");
    }
}

#[tokio::test]
async fn edit_among_few_files_writes_one_small_batch() {
    edits_cost(100, among_directories, 4 << 10).await;
}

#[tokio::test]
async fn edit_among_many_files_writes_one_small_batch() {
    edits_cost(10_000, among_directories, 4 << 10).await;
    edits_cost(10_000, |number| format!("/f{number}"), 4 << 10).await;
}

#[tokio::test]
async fn edit_deep_in_the_tree_writes_one_small_batch() {
    let deep = |number: usize| {
        let directories: String = (0..12).map(|level| format!("/directory-{level}-{}", number % (level + 2))).collect();
        format!("{directories}/file-{number}.rs")
    };
    edits_cost(1_000, deep, 4 << 10).await;
}

#[tokio::test]
async fn listing_reads_only_its_own_pages() {
    let store = Watched::default();
    saved(&store, 5_000, among_directories).await;
    let tree = opened(&store).await;
    store.seen();
    let path = VfsPathBuf::parse("/src/d07/part 1").unwrap();
    let listing = tree.ls(&path, &LsOptions::new()).await.unwrap();
    assert_eq!(listing.entries.len(), (0..5_000).filter(|number| among_directories(*number).starts_with("/src/d07/part 1/")).count());
    let seen = store.seen();
    assert!(seen.rows.len() <= 20 && seen.rows_of("bodies") == 0, "{:?}", seen.rows);
    let found = tree.glob(VfsPath::ROOT, &GlobOptions::new("src/d31/**/file-*.rs")).await.unwrap();
    assert_eq!(found.entries.len(), 100);
    let seen = store.seen();
    assert!(seen.rows.len() <= 30 && seen.rows_of("bodies") == 0, "{} rows", seen.rows.len());
}

#[tokio::test]
async fn grep_over_a_saved_tree_reads_each_file_once_in_few_round_trips() {
    let store = Watched::default();
    saved(&store, 2_000, among_directories).await;
    let tree = opened(&store).await;
    store.seen();
    let found = tree.grep(VfsPath::ROOT, &GrepOptions::new("content 1999")).await.unwrap();
    assert_eq!(found.files.len(), 1);
    let seen = store.seen();
    assert_eq!(seen.rows_of("bodies"), 2_000);
    assert!(seen.reads <= 60, "{} round trips", seen.reads);
    let found = tree.grep(VfsPath::ROOT, &GrepOptions::new("content").with_include("/src/d31/**")).await.unwrap();
    assert_eq!(found.files.len(), 40);
    assert!(store.seen().rows_of("bodies") <= 60, "files that are left out are not read");
}

#[tokio::test]
async fn changes_to_an_unloaded_tree_read_only_what_they_touch() {
    let store = Watched::default();
    saved(&store, 5_000, among_directories).await;
    let session = workspace(&store, ThreadDurability::Exit).session(scope("t")).await.unwrap();
    let tree = session.backend();
    tree.edit(&among_directories(4_321), "content", "CONTENT").await.unwrap();
    let seen = store.seen();
    assert!(seen.rows.len() <= 8 && seen.rows_of("bodies") == 1, "{:?}", seen.rows);
    // A recursive delete reads the pages at its edges, and counts the others from the metadata of their parents.
    assert_eq!(tree.delete_all("/src/d12").await.unwrap().entries, 105 - 2);
    let seen = store.seen();
    assert!(seen.rows.len() <= 20 && seen.rows_of("bodies") == 0, "{:?}", seen.rows);
    session.save().await.unwrap();
    store.seen();
    tree.rename("/src/d31", "/moved").await.unwrap();
    session.save().await.unwrap();
    let seen = store.seen();
    assert_eq!((seen.batches.len(), seen.bodies), (1, 0), "contents that moved are not written again");
    assert!(seen.batches[0] <= 40 << 10, "{} bytes for 100 files that moved", seen.batches[0]);
    let again = opened(&store).await;
    assert_eq!(again.read_text("/moved/part 3/file-31.rs").await.unwrap(), "content 31\n");
    assert_eq!(again.read_text(&among_directories(4_321)).await.unwrap(), "CONTENT 4321\n");
    assert!(!again.exists("/src/d12").await.unwrap() && !again.exists("/src/d31").await.unwrap());
}
