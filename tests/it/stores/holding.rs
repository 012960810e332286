//! A grep over engines that search bodies before sending them equals one over the in-memory store, which sends every body.

use super::wrapped::{Wrapped, Wrapper};
use crate::servers::{mysql, postgres};
use async_trait::async_trait;
use bytes::Bytes;
use mysql_async::prelude::Queryable;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use treehold::ops::{ApplyOptions, CaseMode, Change, Encoding, GrepCursor, GrepOptions, GrepOutput, GrepResult, WriteMode};
use treehold::store::{MemoryStore, MysqlStore, Namespace, PostgresStore, Scan, ScanEntry, ScanOptions, Store, StoreExt};
use treehold::{Backend, Result, StoreBackend, VfsPath, VfsPathBuf};

/// More than fit on the first page, which is read without bodies.
const FILES: usize = 300;

/// Counts the bodies that were omitted.
#[derive(Default)]
struct LeftOut(Arc<AtomicUsize>);

#[async_trait]
impl Wrapper for LeftOut {
    fn filters(&self) -> bool {
        true
    }

    async fn scan_holding(&self, inner: &dyn Store, namespace: &Namespace, options: ScanOptions, text: &Bytes) -> Result<Scan> {
        let page = inner.scan_holding(namespace, options, text).await?;
        let left_out = page.entries.iter().filter(|entry| matches!(entry, ScanEntry::LeftOut { .. })).count();
        self.0.fetch_add(left_out, Ordering::Relaxed);
        Ok(page)
    }
}

fn counted(store: impl Store + 'static) -> (Arc<dyn Store>, Arc<AtomicUsize>) {
    let left_out = LeftOut::default();
    let count = left_out.0.clone();
    (Arc::new(Wrapped::new(Arc::new(store), left_out)), count)
}

fn path(number: usize) -> VfsPathBuf {
    VfsPathBuf::parse(format!("/d{:02}/file-{number:03}.txt", number / 25)).unwrap()
}

async fn filled(store: Arc<dyn Store>, components: &[&str], contents: &[Bytes]) -> StoreBackend {
    let tree = StoreBackend::new(store, Namespace::new(components).unwrap());
    let write = |number: usize| Change::Write {
        path: path(number),
        content: contents[number % contents.len()].clone(),
        mode: WriteMode::Overwrite,
    };
    tree.apply(&(0..FILES).map(write).collect::<Vec<_>>(), &ApplyOptions::new()).await.unwrap();
    tree
}

async fn grep(tree: &StoreBackend, options: &GrepOptions) -> GrepResult {
    tree.grep(VfsPath::ROOT, options).await.unwrap()
}

/// Texts that overlap each other, and their surroundings.
const PARTS: &[&[u8]] = &[
    b"needle",
    b"_in_it",
    b"needle_in_",
    b"NEEDLE_IN_IT",
    b"in",
    b"\n",
    b"\r\n",
    b" ",
    b"\xff\xfe",
    b"\xd0\xb8\xd0\xb3\xd0",
    b"%\\'",
    b"\0",
];

const LITERALS: &[&str] = &["needle", "needle_in_it", "_in_it", "in", "x", "needle\nin", "иг", "%\\'", "\0", "", "says nothing"];

const REGEXES: &[&str] = &["needle|says", r"needle_\w+_it", r"(?-u:\xff\xfe)", "(needle)+_in", "n.*_it$", "^in", "a{2,}", r"needle\s+in"];

/// Contents around the size from which the engines search them, and beyond the one from which they store them out of line. Some have a NUL
/// within the part that identifies binary content, some after it.
fn content() -> impl Strategy<Value = Bytes> {
    let size = prop_oneof![1 => Just(0_usize), 2 => 1_000..1_050_usize, 3 => 1_050..4_000_usize, 1 => 8_180..9_000_usize, 2 => 16_360..18_000_usize];
    let parts = vec((select(PARTS), any::<prop::sample::Index>()), 0..4);
    (size, parts, any::<bool>()).prop_map(|(size, parts, ends_with_nul)| {
        let mut content: Vec<u8> = b"a line of text that says nothing\n".iter().copied().cycle().take(size).collect();
        for (part, at) in parts {
            let at = at.index(content.len() + 1);
            content.splice(at..at, part.iter().copied());
        }
        if ends_with_nul {
            content.push(0);
        }
        Bytes::from(content)
    })
}

fn options() -> impl Strategy<Value = GrepOptions> {
    let pattern = prop_oneof![
        3 => select(LITERALS).prop_map(GrepOptions::new),
        2 => select(REGEXES).prop_map(GrepOptions::regex),
    ];
    let case = select(vec![CaseMode::Sensitive, CaseMode::Sensitive, CaseMode::Smart, CaseMode::Insensitive]);
    let output = select(vec![GrepOutput::Content, GrepOutput::Files, GrepOutput::Counts]);
    let limits = (prop_oneof![2 => Just(100_000_usize), 1 => 0..400_usize], prop::option::of(500..5_000_u64), prop::option::of(0..FILES));
    (pattern, case, output, limits, any::<u8>()).prop_map(|(pattern, case, output, (matches_max, size_max, cursor), flags)| {
        let on = |bit: u8| flags >> bit & 3 == 0;
        let mut options = pattern.with_case(case).with_output(output).with_matches_max(matches_max);
        options = options.with_invert(on(0)).with_binary(on(1)).with_multiline(on(2)).with_word(on(3)).with_whole_line(on(4));
        options.size_max_bytes = size_max.filter(|_| on(5));
        options.start_after = cursor.filter(|_| on(6)).map(|number| GrepCursor { path: path(number), line: number % 3 });
        if flags == 0xFF {
            options.encoding = Encoding::Auto;
        }
        options
    })
}

/// Compares searches of random trees over a store with those over the in-memory store.
fn agrees(runtime: &tokio::runtime::Runtime, store: impl Store + 'static) {
    let (store, left_out) = counted(store);
    let trees = AtomicUsize::new(0);
    let cases = ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(cases, |(contents in vec(content(), 1..20), searches in vec(options(), 1..12))| {
        runtime.block_on(async {
            let tree = trees.fetch_add(1, Ordering::Relaxed).to_string();
            let ours = filled(store.clone(), &["trees", &tree], &contents).await;
            let theirs = filled(Arc::new(MemoryStore::new()), &["tree"], &contents).await;
            for options in &searches {
                // A malformed pattern is malformed on both sides.
                if let Ok(expected) = theirs.grep(VfsPath::ROOT, options).await {
                    assert!(grep(&ours, options).await == expected, "{options:?}");
                }
            }
        });
    });
    assert!(left_out.load(Ordering::Relaxed) > 0, "the engine left nothing out");
}

#[test]
#[ignore = "needs PostgreSQL: run scripts/servers.sh"]
fn grep_over_postgres_equals_grep_in_memory() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let schema = runtime.block_on(postgres::schema());
    agrees(&runtime, runtime.block_on(PostgresStore::open_with(schema.options())).unwrap());
}

#[test]
#[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
fn grep_over_mysql_equals_grep_in_memory() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let database = runtime.block_on(mysql::database());
    agrees(&runtime, runtime.block_on(MysqlStore::open(&database.url)).unwrap());
    drop(database);
}

/// Searches a tree of files without a match, of which two have damaged bodies: first in one of them, so that nothing else reveals its page.
async fn names_the_damaged(store: Arc<dyn Store>, left_out: &AtomicUsize, damage: impl AsyncFn(usize)) {
    let tree = filled(store, &["rows"], &[Bytes::from("a line of text that says nothing\n".repeat(500))]).await;
    let options = GrepOptions::new("needle_in_it");
    for damaged in 0..=2 {
        if damaged > 0 {
            damage(damaged - 1).await;
        }
        left_out.store(0, Ordering::Relaxed);
        let found = grep(&tree, &options).await;
        let named: Vec<VfsPathBuf> = found.failures.iter().map(|failure| failure.path.clone()).collect();
        assert_eq!(named, [path(200), path(201)][..damaged]);
        assert_eq!((found.files_searched, found.failures_count), (FILES - damaged, damaged));
        assert!(damaged > 0 || left_out.load(Ordering::Relaxed) > FILES / 2, "most bodies are left out");
    }
}

const DAMAGED: [&str; 2] = ["d08\u{1}file-200.txt", "d08\u{1}file-201.txt"];

#[tokio::test]
#[ignore = "needs PostgreSQL: run scripts/servers.sh"]
async fn grep_over_postgres_reports_damaged_body() {
    let schema = postgres::schema().await;
    let (store, left_out) = counted(PostgresStore::open_with(schema.options()).await.unwrap());
    names_the_damaged(store, &left_out, async |number| {
        let body = ["body || body", "substring(body from 10)"][number];
        schema.run(&format!("UPDATE {{s}}.rows SET body = {body} WHERE head = '{}'", DAMAGED[number])).await;
    })
    .await;
}

#[tokio::test]
#[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
async fn grep_over_mysql_reports_damaged_body() {
    let database = mysql::database().await;
    let (store, left_out) = counted(MysqlStore::open(&database.url).await.unwrap());
    names_the_damaged(store, &left_out, async |number| {
        let sql = ["UPDATE treehold_bodies SET body = CONCAT(body, body)", "DELETE FROM treehold_bodies"][number];
        let mut connection = mysql_async::Conn::from_url(&database.url).await.unwrap();
        connection.query_drop(format!("{sql} WHERE head = '{}'", DAMAGED[number])).await.unwrap();
        connection.disconnect().await.unwrap();
    })
    .await;
}
