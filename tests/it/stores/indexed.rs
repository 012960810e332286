//! The indexes of a tree: what a killed process leaves of them, and rows that bypass the tree. `TREEHOLD_KILLS` sets how often the writer
//! is killed.

use super::wrapped::{Wrapped, Wrapper};
use std::collections::BTreeMap;
use std::sync::Arc;
use treehold::backend::IndexKind;
use treehold::ops::{GrepOptions, SearchOptions};
use treehold::path::VfsPath;
use treehold::store::{CopyOptions, MemoryStore, copy};
use treehold::{Backend, BackendExt, ErrorKind, Namespace, Store, StoreBackend};

fn tree(store: &Arc<dyn Store>) -> StoreBackend {
    StoreBackend::new(store.clone(), Namespace::new(["ada", "notes"]).unwrap())
}

fn indexed(store: &Arc<dyn Store>) -> StoreBackend {
    IndexKind::ALL.into_iter().fold(tree(store), StoreBackend::with_index)
}

async fn build(tree: &StoreBackend) {
    for kind in IndexKind::ALL {
        assert!(tree.build_index(kind, |_| {}).await.unwrap().is_complete);
    }
}

/// Asserts that searches find what is in the files, with and without the indexes. The words stand alone, and occur in no path.
async fn check(tree: &StoreBackend, words: &[String]) {
    let verified = tree.verify(|_| {}).await.unwrap();
    assert_eq!(verified.failures, []);
    let mut files = Vec::new();
    for path in tree.glob(VfsPath::ROOT, &treehold::ops::GlobOptions::new("**").with_limit(usize::MAX)).await.unwrap().entries {
        files.push((path.path.to_string(), tree.read_text(path.path.as_str()).await.unwrap()));
    }
    for word in words {
        let counted = files.iter().map(|(path, text)| (path.as_str(), text.matches(word).count() as u32));
        let expected: BTreeMap<&str, u32> = counted.filter(|(_, count)| *count > 0).collect();
        let found = tree.grep(VfsPath::ROOT, &GrepOptions::new(word.as_str())).await.unwrap();
        assert!(found.files.iter().map(|file| file.path.as_str()).eq(expected.keys().copied()), "{word}");
        let recalled = tree.search(VfsPath::ROOT, &SearchOptions::new(word.as_str()).with_limit(10_000)).await.unwrap();
        let recalled: BTreeMap<&str, u32> = recalled.hits.iter().map(|hit| (hit.path.as_str(), hit.frequencies[0])).collect();
        assert_eq!(recalled, expected, "{word}");
    }
}

#[tokio::test]
async fn reopened_tree_keeps_its_options_and_finds_indexes_that_were_added_since() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let opened = tree(&store).with_file_bytes_max(10);
    opened.write("/kept", "needle").await.unwrap();
    let grep = async |tree: &StoreBackend| {
        assert_eq!(tree.grep(VfsPath::ROOT, &GrepOptions::new("needle")).await.unwrap().files.len(), 1);
        tree.capabilities().indexed
    };
    assert!(!grep(&opened).await);
    build(&indexed(&store)).await;
    assert!(!grep(&opened).await, "it has looked before");
    let reopened = opened.reopened();
    assert!(grep(&reopened).await);
    assert_eq!(reopened.write("/long", "12345678901").await.unwrap_err().kind(), ErrorKind::TooLarge);
}

/// Returns a tree with indexes that holds one file, and another store with another file of the same tree.
async fn two_stores() -> (Arc<dyn Store>, Arc<dyn Store>) {
    let (one, other): (Arc<dyn Store>, Arc<dyn Store>) = (Arc::new(MemoryStore::new()), Arc::new(MemoryStore::new()));
    indexed(&one).write("/kept", "the needle").await.unwrap();
    tree(&other).write("/brought", "another needle").await.unwrap();
    (one, other)
}

#[tokio::test]
async fn files_copied_onto_a_tree_with_an_index_are_found() {
    let needle = ["needle".to_owned()];
    let (one, other) = two_stores().await;
    copy(&*other, &*one, &CopyOptions::new().with_onto(true), |_| {}).await.unwrap();
    check(&tree(&one), &needle).await;
    // The other way round: no copied index covers what only the target has.
    let (one, other) = two_stores().await;
    copy(&*one, &*other, &CopyOptions::new().with_onto(true), |_| {}).await.unwrap();
    check(&tree(&other), &needle).await;
    build(&indexed(&other)).await;
    check(&tree(&other), &needle).await;
    // A copy into an empty store shows one moment, and keeps the index.
    let empty: Arc<dyn Store> = Arc::new(MemoryStore::new());
    copy(&*other, &*empty, &CopyOptions::new(), |_| {}).await.unwrap();
    for kind in IndexKind::ALL {
        assert!(tree(&empty).index_state(kind).await.unwrap().is_some_and(|state| state.is_complete));
    }
    check(&tree(&empty), &needle).await;
}

/// A store that accepts bodies of up to 4 KiB.
struct Narrow;

impl Wrapper for Narrow {
    fn value_bytes_max(&self) -> Option<u64> {
        Some(4_096)
    }
}

/// The row of its words would be longer than the content.
#[tokio::test]
async fn file_with_too_many_words_for_a_row_is_read_by_every_search() {
    let inner: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let narrow: Arc<dyn Store> = Arc::new(Wrapped::new(inner.clone(), Narrow));
    let tree = indexed(&narrow);
    let pairs = ('a'..='z').flat_map(|one| ('a'..='z').chain('0'..='9').map(move |other| format!("{one}{other} ")));
    let dense: String = pairs.chain((0..300).map(|number| format!("{number:03} "))).collect();
    assert!(dense.len() <= 4_096);
    tree.write("/dense", dense).await.unwrap();
    tree.write("/plain", "q7 needle").await.unwrap();
    // It is recorded as a file that every search reads, because its words are not indexed.
    let tails = Namespace::new(["ada", "notes", "_treehold", "indexes"]).unwrap();
    let row = async |key: &str| inner.get(&tails, key).await.unwrap().unwrap().value.len();
    assert!(row("cdense").await < 16 && row("cplain").await > 8, "{} {}", row("cdense").await, row("cplain").await);
    for (words, found) in [("q7", &["/dense", "/plain"][..]), ("needle", &["/plain"]), ("zz", &["/dense"]), ("absent", &[])] {
        let hits = tree.search(VfsPath::ROOT, &SearchOptions::new(words)).await.unwrap().hits;
        let mut paths: Vec<&str> = hits.iter().map(|hit| hit.path.as_str()).collect();
        paths.sort_unstable();
        assert_eq!(paths, found, "{words}");
    }
    assert_eq!(tree.verify(|_| {}).await.unwrap().failures, []);
    // Once the content is short enough, its words are indexed normally.
    tree.write("/dense", "needle").await.unwrap();
    assert!(row("cdense").await > 8);
    assert_eq!(tree.search(VfsPath::ROOT, &SearchOptions::new("zz")).await.unwrap().hits, []);
}

#[cfg(feature = "archive")]
#[tokio::test]
async fn files_imported_into_a_tree_with_an_index_are_found() {
    use std::io::{Read, Seek};
    use treehold::store::{ExportOptions, ImportOptions, export, import};

    let (one, other) = two_stores().await;
    for (from, to) in [(&other, &one), (&one, &other)] {
        let mut file = tempfile::tempfile().unwrap();
        export(&**from, file.try_clone().unwrap(), &ExportOptions::new(), |_| {}).await.unwrap();
        file.rewind().unwrap();
        let mut archive = Vec::new();
        file.read_to_end(&mut archive).unwrap();
        import(&**to, std::io::Cursor::new(archive.clone()), &ImportOptions::new().with_onto(true), |_| {}).await.unwrap();
        check(&tree(to), &["needle".to_owned()]).await;
        // Its pages show several moments, so it contains no index.
        let empty: Arc<dyn Store> = Arc::new(MemoryStore::new());
        import(&*empty, std::io::Cursor::new(archive), &ImportOptions::new(), |_| {}).await.unwrap();
        for kind in IndexKind::ALL {
            assert!(tree(&empty).index_state(kind).await.unwrap().is_none());
        }
    }
}

#[cfg(feature = "sqlite")]
mod killed {
    use super::{build, check, indexed, tree};
    use std::io::{BufRead, BufReader, Write};
    use std::path::Path;
    use std::process::{Command, Stdio};
    use std::sync::Arc;
    use treehold::backend::IndexKind;
    use treehold::ops::{ApplyOptions, Change, WriteMode};
    use treehold::path::VfsPathBuf;
    use treehold::store::{SqliteStore, StoreExt};
    use treehold::{Backend, BackendExt, Store};

    const PATH: &str = "TREEHOLD_TEST_INDEXED";
    const FIRST: &str = "TREEHOLD_TEST_INDEXED_FIRST";
    const FILES: usize = 300;

    fn open(path: &Path) -> Arc<dyn Store> {
        Arc::new(SqliteStore::open(path).unwrap())
    }

    fn word(batch: usize) -> String {
        format!("batch{batch:05}")
    }

    /// Writes batches of many files, so that the tail is settled and segments are merged all the time. In between moves and removes
    /// directories, occasionally rebuilds the index, and prints the number of each batch that was written.
    async fn write(store: Arc<dyn Store>, first: usize) {
        let tree = indexed(&store);
        for batch in first.. {
            let change = |file: usize| Change::Write {
                path: VfsPathBuf::parse(format!("/d{}/{}", batch % 7, (batch * 170 + file) % 1_000)).unwrap(),
                content: format!("{} file {file}\n", word(batch)).repeat(1 + file % 9 * (batch % 3)).into(),
                mode: WriteMode::Overwrite,
            };
            tree.apply(&(0..FILES).map(change).collect::<Vec<_>>(), &ApplyOptions::new()).await.unwrap();
            match batch % 9 {
                3 => drop(tree.delete_all(format!("/d{}", batch % 5).as_str()).await),
                5 => {
                    let (from, to) = (format!("/d{}", batch % 7), format!("/moved{}", batch % 2));
                    drop(tree.delete_all(to.as_str()).await);
                    drop(tree.rename(from.as_str(), to.as_str()).await);
                }
                // Alternates between the two.
                7 => tree.remove_index(IndexKind::ALL[batch / 9 % 2]).await.unwrap(),
                8 => build(&tree).await,
                _ => {}
            }
            let mut out = std::io::stdout();
            writeln!(out, "written {batch}").unwrap();
            out.flush().unwrap();
        }
    }

    #[test]
    fn index_is_correct_after_every_kill() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        if let Some(path) = std::env::var_os(PATH) {
            let first = std::env::var(FIRST).unwrap().parse().unwrap();
            return runtime.block_on(write(open(path.as_ref()), first));
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store.db");
        let kills: usize = std::env::var("TREEHOLD_KILLS").map_or(10, |kills| kills.parse().unwrap());
        let mut next = 0;
        for round in 0..kills {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "stores::indexed::killed::index_is_correct_after_every_kill", "--nocapture"])
                .env(PATH, &path)
                .env(FIRST, next.to_string())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
            let mut written = lines.by_ref().filter_map(|line| line.rsplit_once("written ")?.1.parse::<usize>().ok());
            next = 1 + written.by_ref().take(1 + round * 5 % 7).last().expect("the writer wrote");
            // Kills some right after a batch was acknowledged, others during the next one or a merge.
            (0..round % 4 * 300).for_each(|_| std::thread::yield_now());
            child.kill().unwrap();
            child.wait().unwrap();
            next = lines.filter_map(|line| line.rsplit_once("written ")?.1.parse::<usize>().ok()).last().map_or(next, |last| last + 1);
            let words: Vec<String> = (next.saturating_sub(4)..=next).map(word).collect();
            runtime.block_on(async {
                let store = open(&path);
                check(&tree(&store), &words).await;
                assert!(store.check().await.unwrap().is_empty());
            });
        }
        runtime.block_on(async {
            let tree = indexed(&open(&path));
            build(&tree).await;
            check(&tree, &[word(next - 1)]).await;
        });
    }
}
