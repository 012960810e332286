//! Copies of whole stores through the library: exact, resumable, following changes, and verified.

use super::wrapped::{Wrapped, Wrapper};
use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use treehold::ops::Version;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
use treehold::store::verify;
use treehold::store::{
    Batch, BatchWrite, COPY_NAMESPACE, CopyOptions, CopyReport, Item, MemoryStore, Namespace, NamespacesOptions, Partition, Reserved,
    ReservedRows, Scan, ScanEntry, ScanOptions, Store, copy,
};
use treehold::{Error, ErrorKind, Result};

fn space(text: &str) -> Namespace {
    Namespace::parse(text).unwrap()
}

/// Returns every live row of every namespace, as all kinds of reads show them.
async fn rows(store: &dyn Store) -> Vec<(Namespace, Item)> {
    let namespaces = store.namespaces(NamespacesOptions::new().with_limit(usize::MAX)).await.unwrap().namespaces;
    let mut all = Vec::new();
    for namespace in namespaces {
        let page =
            store.scan(&namespace, ScanOptions::new().with_values(true).with_limit(usize::MAX).with_bytes_max(usize::MAX)).await.unwrap();
        for entry in page.entries {
            let ScanEntry::Item(item) = entry else { panic!("no delimiter was given") };
            assert_eq!(store.get(&namespace, &item.key).await.unwrap().as_ref(), Some(&item));
            all.push((namespace.clone(), item));
        }
    }
    all
}

async fn copied(source: &dyn Store, target: &dyn Store) -> CopyReport {
    copy(source, target, &CopyOptions::new(), |_| {}).await.unwrap()
}

async fn refused(source: &dyn Store, target: &dyn Store) -> Error {
    copy(source, target, &CopyOptions::new(), |_| {}).await.unwrap_err()
}

/// A store with some namespaces and rows, one of which expires.
async fn filled(count: usize) -> MemoryStore {
    let store = MemoryStore::new();
    for number in 0..count {
        let namespace = space(["a", "a/b", "z"][number % 3]);
        let batch = Batch::new().put_with_meta(&namespace, format!("k{number:03}"), format!("meta {number}"), "body ".repeat(number));
        store.commit(batch).await.unwrap();
    }
    store.commit(Batch::new().put_for(&space("mortal"), "k", "v", Duration::from_secs(3_600))).await.unwrap();
    store.commit(Batch::new().put(&space("a"), "gone", "")).await.unwrap();
    store.commit(Batch::new().delete(&space("a"), "gone")).await.unwrap();
    store
}

async fn assert_same(source: &dyn Store, target: &dyn Store) {
    let expected = rows(source).await;
    assert_eq!(rows(target).await, expected);
    let partitions: BTreeSet<Partition> = expected.iter().map(|(namespace, _)| namespace.partition()).collect();
    for partition in partitions {
        assert_continues(source, target, &partition).await;
    }
}

/// Asserts that no version of a partition is used again for another row.
async fn assert_continues(source: &dyn Store, target: &dyn Store, partition: &Partition) {
    let (before, after) = (source.current_version(partition).await.unwrap(), target.current_version(partition).await.unwrap());
    assert!(after >= before, "{after} after {before} in {partition}");
}

#[cfg(all(feature = "sled", feature = "sqlite"))]
#[tokio::test]
async fn every_engine_copies_to_every_engine() {
    let directory = tempfile::tempdir().unwrap();
    let open = |name: String| -> Vec<Arc<dyn Store>> {
        vec![
            Arc::new(MemoryStore::new()),
            Arc::new(treehold::SledStore::open(directory.path().join(format!("{name}.sled"))).unwrap()),
            Arc::new(treehold::SqliteStore::open(directory.path().join(format!("{name}.db"))).unwrap()),
        ]
    };
    let first = filled(50).await;
    let mut digests = Vec::new();
    for (number, source) in open("source".to_owned()).into_iter().enumerate() {
        copied(&first, &*source).await;
        for target in open(format!("target{number}")) {
            let report = copied(&*source, &*target).await;
            assert!(report.settled && !report.resumed && report.sent == report.rows, "{report:?}");
            assert_eq!((report.rows, report.namespaces), (51, 4));
            assert_same(&first, &*target).await;
            digests.push(report.digest.unwrap());
            let version = target.commit(Batch::new().put(&space("a"), "new", "")).await.unwrap()[0];
            assert!(version > first.current_version(&space("a").partition()).await.unwrap());
        }
    }
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");
}

/// Copies into a server, with an interruption on the way, into another store there, and back.
#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
async fn check_on_server(fresh: impl AsyncFn() -> crate::servers::OnServer) {
    let [(one, _keep), (other, _keep_other)] = [fresh().await, fresh().await];
    let source = filled(50).await;
    let options = CopyOptions::new().with_batch_bytes(300);
    for after_effect in [false, true] {
        let failing = Wrapped::new(one.clone(), FailingAfter { commits: AtomicUsize::new(20), after_effect });
        let error = copy(&source, &failing, &options, |_| {}).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    }
    let report = copy(&source, &*one, &options, |_| {}).await.unwrap();
    assert!(report.settled && report.resumed && report.sent < report.rows, "{report:?}");
    assert_eq!((report.rows, report.namespaces), (51, 4));
    assert_same(&source, &*one).await;
    let report = copied(&*one, &*other).await;
    assert!(report.settled && !report.resumed && report.sent == report.rows, "{report:?}");
    assert_same(&source, &*other).await;
    let back = MemoryStore::new();
    assert_eq!(copied(&*other, &back).await.digest, report.digest);
    assert_same(&source, &back).await;
    for store in [one, other] {
        let found = verify(&*store, |_, _| Ok(()), |_| {}).await.unwrap();
        assert_eq!((found.rows, found.versions_shared, found.faults_count), (51, 0, 0), "{:?}", found.faults);
        let version = store.commit(Batch::new().put(&space("a"), "new", "")).await.unwrap()[0];
        assert!(version > source.current_version(&space("a").partition()).await.unwrap());
    }
}

/// Spellings of one URL share one opening of the store, and a store is not copied onto itself under any spelling.
#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
async fn check_spellings(same: [String; 3], apart: String) {
    use treehold::config::{OpenStoreOptions, open_store};
    let open = async |url: &str| open_store(url, &OpenStoreOptions::new()).await.unwrap();
    let first = open(&same[0]).await;
    first.commit(Batch::new().put(&space("a"), "k", "v")).await.unwrap();
    let before = rows(&*first).await;
    for url in &same {
        assert!(std::sync::Arc::ptr_eq(&first, &open(url).await), "{url}");
    }
    let second = open(&apart).await;
    assert!(!std::sync::Arc::ptr_eq(&first, &second), "other settings open the store separately");
    for target in [&first, &second] {
        for onto in [false, true] {
            let error = copy(&*first, &**target, &CopyOptions::new().with_onto(onto), |_| {}).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            assert!(error.message().contains("are the same store"), "{error}");
        }
    }
    assert_eq!(rows(&*first).await, before);
}

/// Returns a URL with further parameters.
#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
fn with_parameters(url: &str, parameters: &str) -> String {
    format!("{url}{}{parameters}", if url.contains('?') { '&' } else { '?' })
}

#[cfg(feature = "mysql")]
#[tokio::test]
#[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
async fn every_mysql_url_of_a_store_names_the_same_store() {
    let database = crate::servers::mysql::database().await;
    let of = |parameters: &str| with_parameters(&database.url, parameters);
    let alias = of("timeout=9&prefix=p%5F").replacen("mysql://", "mariadb://", 1);
    check_spellings([of("prefix=p_&timeout=9"), of("timeout=9&prefix=p_"), alias], of("prefix=p_&timeout=8")).await;
}

#[cfg(feature = "postgres")]
#[tokio::test]
#[ignore = "needs PostgreSQL: run scripts/servers.sh"]
async fn every_postgres_url_of_a_store_names_the_same_store() {
    let schema = crate::servers::postgres::schema().await;
    let of = |parameters: &str| with_parameters(&schema.url, &parameters.replace("{s}", &schema.name.replace(' ', "%20")));
    let alias = of("connections_max=3&schema={s}").replacen("postgres://", "postgresql://", 1);
    let same = [of("schema={s}&connections_max=3"), of("connections_max=3&schema={s}"), alias];
    check_spellings(same, of("schema={s}&connections_max=2")).await;
}

#[cfg(feature = "redis")]
#[tokio::test]
#[ignore = "needs Redis: run scripts/servers.sh"]
async fn every_redis_url_of_a_store_names_the_same_store() {
    let prefix = crate::servers::redis::prefix().await;
    let server = prefix.url.split('?').next().unwrap().trim_end_matches("/0").trim_end_matches('/');
    let of = |server: &str| format!("{server}?prefix={}", prefix.name);
    let other =
        if server.contains("127.0.0.1") { server.replace("127.0.0.1", "localhost") } else { server.replace("localhost", "127.0.0.1") };
    check_spellings([of(server), of(&format!("{server}/0")), of(&format!("{server}/"))], of(&other)).await;
}

#[cfg(feature = "mysql")]
#[tokio::test]
#[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
async fn copy_round_trips_through_mysql() {
    check_on_server(crate::servers::mysql::fresh).await;
}

#[cfg(feature = "postgres")]
#[tokio::test]
#[ignore = "needs PostgreSQL: run scripts/servers.sh"]
async fn copy_round_trips_through_postgres() {
    check_on_server(crate::servers::postgres::fresh).await;
}

#[cfg(feature = "redis")]
#[tokio::test]
#[ignore = "needs Redis: run scripts/servers.sh"]
async fn copy_round_trips_through_redis() {
    check_on_server(crate::servers::redis::fresh).await;
}

#[cfg(feature = "redis")]
#[tokio::test]
#[ignore = "needs a Redis Cluster: run scripts/servers.sh"]
async fn copy_round_trips_through_redis_cluster() {
    check_on_server(crate::servers::redis::fresh_in_cluster).await;
}

#[tokio::test]
async fn copy_keeps_the_counter_of_each_partition_with_rows() {
    let (source, target) = (MemoryStore::new(), MemoryStore::new());
    let item = Item::new("k", Bytes::new(), Bytes::new(), Version::new(900), now(), now());
    source.commit(Batch::new().put(&space("a"), "kept", "").restore(&space("a"), item.clone())).await.unwrap();
    source.commit(Batch::new().delete(&space("a"), "k")).await.unwrap();
    source.commit(Batch::new().put(&space("b"), "k", "")).await.unwrap();
    let report = copied(&source, &target).await;
    assert_eq!((report.rows, report.namespaces), (2, 2));
    assert_same(&source, &target).await;
    assert_eq!(report.version, source.current_version(&space("a").partition()).await.unwrap());
    // One that has lost all its rows is not copied.
    let (source, target) = (MemoryStore::new(), MemoryStore::new());
    source.commit(Batch::new().restore(&space("a"), item)).await.unwrap();
    source.commit(Batch::new().delete(&space("a"), "k")).await.unwrap();
    let report = copied(&source, &target).await;
    assert_eq!((report.rows, report.namespaces, report.version), (0, 0, Version::new(0)));
    assert_eq!(target.current_version(&space("a").partition()).await.unwrap(), Version::new(0));
    // Nor is there anything to copy from a store that was never written to.
    let (source, target) = (MemoryStore::new(), MemoryStore::new());
    assert!(copied(&source, &target).await.settled);
    assert_same(&source, &target).await;
}

fn now() -> Timestamp {
    Timestamp::from_microsecond(1_700_000_000_000_000).unwrap()
}

#[tokio::test]
async fn nonempty_target_is_refused_unchanged() {
    let (source, target) = (filled(3).await, filled(2).await);
    let before = rows(&target).await;
    let error = refused(&source, &target).await;
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert!(error.message().contains("--onto") && error.message().contains("`a`"), "{error}");
    assert_eq!(rows(&target).await, before);
    // A store is distinguished from a whole copy of itself, whose rows have the same versions.
    let error = refused(&source, &source).await;
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("are the same store"), "{error}");
    let twin = MemoryStore::new();
    copied(&source, &twin).await;
    let before = rows(&twin).await;
    assert_eq!(refused(&source, &twin).await.kind(), ErrorKind::AlreadyExists);
    assert_eq!(rows(&twin).await, before);
}

#[tokio::test]
async fn onto_replaces_common_rows_and_keeps_the_rest() {
    let (source, target) = (filled(3).await, MemoryStore::new());
    target.commit(Batch::new().put(&space("a"), "k000", "older").put(&space("a"), "own", "stays")).await.unwrap();
    target.commit(Batch::new().put(&space("y"), "own", "")).await.unwrap();
    let options = CopyOptions::new().with_onto(true);
    let report = copy(&source, &target, &options, |_| {}).await.unwrap();
    assert_eq!((report.settled, report.rows, report.left, report.removed), (true, 4, 2, 0));
    let mut there = rows(&target).await;
    there.retain(|(_, item)| item.key != "own");
    assert_eq!(there, rows(&source).await);
    assert_eq!(target.get(&space("a"), "own").await.unwrap().unwrap().value, "stays");
}

#[tokio::test]
async fn store_cannot_be_copied_onto_itself() {
    let store = filled(3).await;
    let before = rows(&store).await;
    let error = copy(&store, &store.clone(), &CopyOptions::new().with_onto(true), |_| {}).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert_eq!(rows(&store).await, before);
}

/// Fails every commit after so many, before the commit or after it.
struct FailingAfter {
    commits: AtomicUsize,
    after_effect: bool,
}

#[async_trait]
impl Wrapper for FailingAfter {
    async fn commit(&self, inner: &dyn Store, batch: Batch) -> Result<Vec<Version>> {
        let lost = || Error::new(ErrorKind::Unavailable, "the connection is lost");
        match self.commits.load(Ordering::Relaxed) {
            0 => Err(lost()),
            left => {
                self.commits.store(left - 1, Ordering::Relaxed);
                let committed = inner.commit(batch).await;
                if left == 1 && self.after_effect { Err(lost()) } else { committed }
            }
        }
    }
}

/// Returns whether a namespace is that of the note of a copy, or of a fence.
fn is_note(namespace: &Namespace) -> bool {
    Reserved::of(namespace).is_some_and(|reserved| reserved.rows == ReservedRows::Note)
}

/// Interrupted after any commit, before or after its effect, a copy resumes, and sends again only what no note says.
#[tokio::test]
async fn interrupted_copy_resumes() {
    let source = filled(30).await;
    let options = CopyOptions::new().with_batch_bytes(300);
    for after_effect in [false, true] {
        for commits in 0.. {
            let target = Arc::new(MemoryStore::new());
            let failing = Wrapped::new(target.clone(), FailingAfter { commits: AtomicUsize::new(commits), after_effect });
            let Err(error) = copy(&source, &failing, &options, |_| {}).await else {
                assert!(commits > 12, "there are many batches: {commits}");
                break;
            };
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            let note = Namespace::new(COPY_NAMESPACE).unwrap();
            let is_half = target.get(&note, "note").await.unwrap().is_some();
            let there = rows(&*target).await.iter().filter(|(namespace, _)| !is_note(namespace)).count() as u64;
            if there == 31 && !is_half {
                // The note is gone, so the copy was complete. Only fences may be left, which expire.
                let mut left = rows(&*target).await;
                left.retain(|(namespace, _)| !is_note(namespace));
                assert_eq!(left, rows(&source).await);
                continue;
            }
            let report = copy(&source, &*target, &options, |_| {}).await.unwrap();
            assert_eq!((report.settled, report.rows), (true, 31), "after {commits}: {report:?}");
            // The rows since the last note are sent again: at most those of a batch, and the first ones have few bytes.
            assert!((31 - there..31 - there + 14).contains(&report.sent), "after {commits}, with {there} there: {report:?}");
            assert_eq!(report.resumed, is_half);
            assert_same(&source, &*target).await;
        }
    }
}

#[tokio::test]
async fn unfinished_copy_cannot_be_source_or_target_of_another() {
    let source = filled(30).await;
    let half = Arc::new(MemoryStore::new());
    let options = CopyOptions::new().with_batch_bytes(300);
    let failing = Wrapped::new(half.clone(), FailingAfter { commits: AtomicUsize::new(5), after_effect: false });
    copy(&source, &failing, &options, |_| {}).await.unwrap_err();
    let error = refused(&*half, &MemoryStore::new()).await;
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    struct Named;
    impl Wrapper for Named {
        fn name(&self) -> Option<&str> {
            Some("sqlite:other.db")
        }
    }
    let other = Wrapped::new(Arc::new(filled(4).await), Named);
    let error = refused(&other, &*half).await;
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert!(error.message().contains("`memory`") && error.message().contains("`sqlite:other.db`"), "{error}");
}

/// Changes the inner store during one of its scans of each kind.
struct Meddling {
    store: MemoryStore,
    /// Changes it at this read of a page with bodies, counted down.
    with_values: AtomicUsize,
    /// Changes it at each of so many reads of pages without bodies.
    without_values: AtomicUsize,
}

impl Meddling {
    fn new(store: &MemoryStore, with_values: usize, without_values: usize) -> Self {
        Self { store: store.clone(), with_values: AtomicUsize::new(with_values), without_values: AtomicUsize::new(without_values) }
    }
}

#[async_trait]
impl Wrapper for Meddling {
    async fn scan(&self, inner: &dyn Store, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
        let page = inner.scan(namespace, options.clone()).await?;
        let meddles = match options.with_values {
            true => self.with_values.fetch_sub(1, Ordering::Relaxed) == 1,
            false => self.without_values.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok(),
        };
        if meddles {
            let batch = Batch::new()
                .put(&space("a"), "k003", "changed")
                .put(&space("A/early"), "new", "a namespace before all others")
                .delete(&space("a"), "k006")
                .touch(&space("a"), "k009", Some(Duration::from_secs(7_200)))
                .delete_prefix(&space("mortal"), "");
            for (_, part) in Batch::by_partition(batch.writes) {
                self.store.commit(part).await?;
            }
        }
        Ok(page)
    }
}

/// A change happens at each page of each stage, one after the other, so what the copy read before is outdated.
#[tokio::test]
async fn concurrent_changes_are_copied() {
    for page in 1..40 {
        let store = filled(30).await;
        let source = Wrapped::new(Arc::new(store.clone()), Meddling::new(&store, page, 0));
        let target = MemoryStore::new();
        let options = CopyOptions::new().with_batch_bytes(300);
        let report = copy(&source, &target, &options, |_| {}).await.unwrap();
        assert!(report.settled, "{report:?}");
        assert_same(&store, &target).await;
    }
}

/// A touch is not a commit, so the counter does not show it.
#[tokio::test]
async fn expiry_changed_meanwhile_is_copied() {
    struct Touching(MemoryStore, AtomicUsize);
    #[async_trait]
    impl Wrapper for Touching {
        async fn scan(&self, inner: &dyn Store, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
            let page = inner.scan(namespace, options).await?;
            if self.1.fetch_sub(1, Ordering::Relaxed) == 1 {
                self.0.commit(Batch::new().touch(&space("mortal"), "k", Some(Duration::from_secs(9)))).await?;
            }
            Ok(page)
        }
    }
    for page in 1..9 {
        let store = filled(3).await;
        let source = Wrapped::new(Arc::new(store.clone()), Touching(store.clone(), AtomicUsize::new(page)));
        let target = MemoryStore::new();
        let report = copied(&source, &target).await;
        assert!(report.settled);
        // A change after the comparison cannot be detected.
        if report.passes > 0 || page <= 4 {
            assert_same(&store, &target).await;
        }
    }
}

#[tokio::test]
async fn constantly_changing_source_is_reported_and_copy_can_continue() {
    let store = filled(30).await;
    let target = MemoryStore::new();
    let source = Wrapped::new(Arc::new(store.clone()), Meddling::new(&store, 2, usize::MAX));
    let report = copied(&source, &target).await;
    assert_eq!((report.settled, report.passes, report.digest), (false, CopyOptions::new().passes_max, None));
    let report = copied(&store, &target).await;
    assert!(report.settled && report.resumed, "{report:?}");
    assert_same(&store, &target).await;
}

struct Limited(u64);

impl Wrapper for Limited {
    fn value_bytes_max(&self) -> Option<u64> {
        Some(self.0)
    }
}

#[tokio::test]
async fn body_over_the_limit_is_reported_before_any_write() {
    let source = filled(30).await;
    let target = Arc::new(MemoryStore::new());
    let error = refused(&source, &Wrapped::new(target.clone(), Limited(100))).await;
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    assert!(error.message().contains("the row `k021` in `a`") && error.message().contains("105 bytes"), "{error}");
    for namespace in [space("a"), space("a/b"), space("z"), space("mortal"), Namespace::new(COPY_NAMESPACE).unwrap()] {
        let version = target.current_version(&namespace.partition()).await.unwrap();
        assert_eq!(version, Version::new(0), "nothing was written to {namespace}");
    }
    copied(&source, &Wrapped::new(target.clone(), Limited(145))).await;
    assert_same(&source, &*target).await;
}

/// A store that corrupts what it receives.
struct Spoiling(Spoil);

type Spoil = fn(&mut Item);

#[async_trait]
impl Wrapper for Spoiling {
    async fn commit(&self, inner: &dyn Store, mut batch: Batch) -> Result<Vec<Version>> {
        for write in &mut batch.writes {
            if let BatchWrite::Restore { item, .. } = write
                && item.key == "k007"
            {
                (self.0)(item);
            }
        }
        inner.commit(batch).await
    }
}

#[tokio::test]
async fn target_that_stores_something_else_is_detected() {
    let spoils: [(Spoil, &str); 4] = [
        (|item| item.value = Bytes::from_static(b"other"), "another body"),
        (|item| item.meta = Bytes::new(), "another meta"),
        (|item| item.modified_at = now(), "other times"),
        (|item| item.version = Version::new(1_000), "another version"),
    ];
    for (spoil, what) in spoils {
        let source = filled(10).await;
        let target = Wrapped::new(Arc::new(MemoryStore::new()), Spoiling(spoil));
        match copy(&source, &target, &CopyOptions::new(), |_| {}).await {
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt);
                assert!(error.message().contains("the row `k007` in `a/b`") && error.message().contains(what), "{error}");
            }
            // A difference that is visible without the body is sent again and again.
            Ok(report) => assert!(!report.settled && what != "another body", "{what}: {report:?}"),
        }
    }
}

#[tokio::test]
async fn two_copies_into_one_store_do_not_mix() {
    let (source, target) = (filled(30).await, MemoryStore::new());
    let options = CopyOptions::new().with_batch_bytes(300);
    let (one, other) = tokio::join!(copy(&source, &target, &options, |_| {}), copy(&source, &target, &options, |_| {}));
    let errors: Vec<Error> = [one, other].into_iter().filter_map(std::result::Result::err).collect();
    assert!(errors.iter().all(|error| matches!(error.kind(), ErrorKind::Conflict | ErrorKind::AlreadyExists)), "{errors:?}");
    if target.get(&Namespace::new(COPY_NAMESPACE).unwrap(), "note").await.unwrap().is_some() {
        copied(&source, &target).await;
    }
    assert_same(&source, &target).await;
}

/// Holds one commit back until it is told to go on.
struct Stalling {
    commits: AtomicUsize,
    reached: tokio::sync::Notify,
    goes_on: tokio::sync::Notify,
}

#[async_trait]
impl Wrapper for Stalling {
    async fn commit(&self, inner: &dyn Store, batch: Batch) -> Result<Vec<Version>> {
        if self.commits.fetch_sub(1, Ordering::Relaxed) == 0 {
            self.reached.notify_one();
            self.goes_on.notified().await;
        }
        inner.commit(batch).await
    }
}

/// A copy stalls at any of its commits, and another one finishes meanwhile. The first then writes nothing that it read before.
#[tokio::test]
async fn copy_that_was_taken_over_writes_nothing_more() {
    let options = CopyOptions::new().with_batch_bytes(300);
    let mut refusals = 0;
    for commits in 0.. {
        let (source, target) = (filled(30).await, Arc::new(MemoryStore::new()));
        let stalling = Stalling { commits: AtomicUsize::new(commits), reached: Default::default(), goes_on: Default::default() };
        let stalled = Wrapped::new(target.clone(), stalling);
        let mut first = Box::pin(copy(&source, &stalled, &options, |_| {}));
        tokio::select! {
            biased;
            () = stalled.wrapper().reached.notified() => {}
            done = &mut first => {
                assert!(done.unwrap().settled && commits > 25, "there are many commits: {commits}");
                break;
            }
        }
        source.commit(Batch::new().put(&space("a"), "k000", "newer").delete(&space("a"), "k003")).await.unwrap();
        source.commit(Batch::new().put(&space("z"), "k002", "newer").put(&space("z"), "k999", "new")).await.unwrap();
        let second = copy(&source, &*target, &options, |_| {}).await;
        stalled.wrapper().goes_on.notify_one();
        let Ok(second) = second else {
            // Only fences were left to remove.
            assert_eq!(second.unwrap_err().kind(), ErrorKind::AlreadyExists, "after {commits}");
            assert!(first.await.unwrap().settled, "after {commits}");
            continue;
        };
        assert!(second.settled, "after {commits}: {second:?}");
        match first.await {
            Ok(report) => assert!(report.settled, "after {commits}: {report:?}"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Conflict, "after {commits}: {error}");
                refusals += 1;
            }
        }
        let mut there = rows(&*target).await;
        there.retain(|(namespace, _)| !is_note(namespace));
        assert_eq!(there, rows(&source).await, "after {commits}");
    }
    assert!(refusals > 15, "most are refused: {refusals}");
}

/// As above, but the first copy wakes while the second stalls at one of its commits. Whichever of them says that it is done has copied all.
#[tokio::test]
async fn copies_that_stall_in_turn_do_not_mix() {
    let options = CopyOptions::new().with_batch_bytes(300);
    let stalling = |target: &Arc<MemoryStore>, commits: usize| {
        let wrapper = Stalling { commits: AtomicUsize::new(commits), reached: Default::default(), goes_on: Default::default() };
        Wrapped::new(target.clone(), wrapper)
    };
    let (mut firsts, mut seconds) = (0, 0);
    let mut is_over = false;
    for commits in (0..).step_by(3) {
        for later in 0.. {
            let what = format!("after {commits} and {later}");
            let (source, target) = (filled(30).await, Arc::new(MemoryStore::new()));
            let (one, other) = (stalling(&target, commits), stalling(&target, later));
            let mut first = Box::pin(copy(&source, &one, &options, |_| {}));
            is_over = tokio::select! {
                biased;
                () = one.wrapper().reached.notified() => false,
                done = &mut first => done.unwrap().settled,
            };
            if is_over {
                break;
            }
            let before = rows(&source).await;
            source.commit(Batch::new().put(&space("a"), "k000", "newer").delete(&space("a"), "k003")).await.unwrap();
            source.commit(Batch::new().put(&space("z"), "k002", "newer").put(&space("z"), "k999", "new")).await.unwrap();
            let now = rows(&source).await;
            let there = async || {
                let mut there = rows(&*target).await;
                there.retain(|(namespace, _)| !is_note(namespace));
                there
            };
            let mut second = Box::pin(copy(&source, &other, &options, |_| {}));
            tokio::select! {
                biased;
                () = other.wrapper().reached.notified() => {}
                // It is over before it stalls.
                done = &mut second => {
                    drop(done.map_err(|error| assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{what}")));
                    break;
                }
            }
            one.wrapper().goes_on.notify_one();
            let mut settled = 0;
            match first.await {
                // It may have compared both sides before the change.
                Ok(report) => {
                    assert!(report.settled && [&before, &now].contains(&&there().await), "{what}: {report:?}");
                    (settled, firsts) = (settled + 1, firsts + 1);
                }
                Err(error) => assert!(matches!(error.kind(), ErrorKind::Conflict | ErrorKind::AlreadyExists), "{what}: {error}"),
            }
            other.wrapper().goes_on.notify_one();
            match second.await {
                Ok(report) => {
                    assert!(report.settled && there().await == now, "{what}: {report:?}");
                    (settled, seconds) = (settled + 1, seconds + 1);
                }
                Err(error) => assert!(matches!(error.kind(), ErrorKind::Conflict | ErrorKind::AlreadyExists), "{what}: {error}"),
            }
            if settled == 0 {
                copied(&source, &*target).await;
                assert_eq!(there().await, now, "{what}");
            }
        }
        if is_over {
            break;
        }
    }
    assert!(firsts > 5 && seconds > 50, "{firsts} and {seconds}");
}

/// Batches of writes: for each its kind, namespace, key and size.
type History = Vec<Vec<(u8, u8, u8, u16)>>;

/// Batches of writes of any kind to few keys.
fn batches() -> impl Strategy<Value = History> {
    prop::collection::vec(prop::collection::vec((0..6_u8, 0..5_u8, 0..20_u8, 0..3_000_u16), 1..8), 0..30)
}

fn batch_of(writes: &[(u8, u8, u8, u16)]) -> Batch {
    writes.iter().fold(Batch::new(), |batch, (kind, namespace, key, size)| {
        let namespace = space(["a", "a/b", "é%2F", "z", "_treehold2/other"][usize::from(*namespace)]);
        let key = format!("k\u{1}{key}");
        let value = Bytes::from(vec![*size as u8; usize::from(*size)]);
        match kind {
            0 | 1 => batch.put_with_meta(&namespace, key, size.to_le_bytes().to_vec(), value),
            2 => batch.put_for(&namespace, key, value, Duration::from_secs(u64::from(*size) * 1_000_000)),
            3 => batch.touch(&namespace, key, Some(Duration::from_secs(u64::from(*size)))),
            4 => batch.delete(&namespace, key),
            _ => batch.delete_prefix(&namespace, &key[..2]),
        }
    })
}

/// A copy of any store equals it, in every read, after any history.
#[test]
fn copy_of_any_store_equals_it() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut runner = TestRunner::new(Config { cases: 48, ..Config::default() });
    let property = |(histories, batch_bytes): (History, usize)| {
        runtime.block_on(async {
            let clock = treehold::Clock::from_fn(now);
            let source = MemoryStore::with_clock(clock.clone());
            for writes in &histories {
                for (_, batch) in Batch::by_partition(batch_of(writes).writes) {
                    source.commit(batch).await.unwrap();
                }
            }
            let directory = tempfile::tempdir().unwrap();
            let mut targets: Vec<Arc<dyn Store>> = vec![Arc::new(MemoryStore::with_clock(clock.clone()))];
            #[cfg(feature = "sqlite")]
            {
                let options = treehold::store::SqliteOptions::new(directory.path().join("store.db")).with_clock(clock.clone());
                targets.push(Arc::new(treehold::SqliteStore::open_with(options).unwrap()));
            }
            #[cfg(feature = "sled")]
            {
                let options = treehold::store::SledOptions::new(directory.path().join("store.sled")).with_clock(clock.clone());
                targets.push(Arc::new(treehold::SledStore::open_with(options).unwrap()));
            }
            let mut from: Arc<dyn Store> = Arc::new(source.clone());
            for target in targets {
                copy(&*from, &*target, &CopyOptions::new().with_batch_bytes(batch_bytes), |_| {}).await.unwrap();
                assert_same(&source, &*target).await;
                from = target;
            }
        });
        Ok(())
    };
    runner.run(&(batches(), 1..20_000_usize), property).unwrap();
}

/// With `onto`, rows that were sent and then lost by the source are removed from the target, while the target's own rows stay, even if the
/// copy is interrupted in between.
#[tokio::test]
async fn onto_removes_sent_rows_that_the_source_lost() {
    for commits in 1..16 {
        let (source, target) = (filled(30).await, Arc::new(MemoryStore::new()));
        for kept in ["a", "0"] {
            target.commit(Batch::new().put(&space(kept), "own", "stays")).await.unwrap();
        }
        let options = CopyOptions::new().with_batch_bytes(300).with_onto(true);
        let failing = Wrapped::new(target.clone(), FailingAfter { commits: AtomicUsize::new(commits), after_effect: true });
        if copy(&source, &failing, &options, |_| {}).await.is_ok() {
            panic!("there are more batches than {commits}");
        }
        for lost in ["a", "mortal"] {
            source.commit(Batch::new().delete_prefix(&space(lost), "")).await.unwrap();
        }
        let report = copy(&source, &*target, &options, |_| {}).await.unwrap();
        assert!(report.settled && report.resumed && report.left == 2, "after {commits}: {report:?}");
        let mut there = rows(&*target).await;
        there.retain(|(_, item)| item.key != "own");
        assert_eq!(there, rows(&source).await, "after {commits}");
    }
}

#[tokio::test]
async fn resumed_copy_must_keep_its_mode() {
    let source = filled(30).await;
    for onto in [false, true] {
        let target = Arc::new(MemoryStore::new());
        let options = CopyOptions::new().with_batch_bytes(300).with_onto(onto).with_source_id("redis://host?prefix=a");
        let failing = Wrapped::new(target.clone(), FailingAfter { commits: AtomicUsize::new(5), after_effect: false });
        copy(&source, &failing, &options, |_| {}).await.unwrap_err();
        let before = rows(&*target).await;
        let error = copy(&source, &*target, &options.clone().with_onto(!onto), |_| {}).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().contains("--onto"), "{error}");
        let error = copy(&source, &*target, &options.clone().with_source_id("redis://host?prefix=b"), |_| {}).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        assert_eq!(rows(&*target).await, before);
        assert!(copy(&source, &*target, &options, |_| {}).await.unwrap().settled);
    }
}

/// A touch, which no counter shows, happens at the last page that the comparison reads.
#[tokio::test]
async fn expiry_changed_during_the_comparison_is_copied() {
    struct TouchingReads(MemoryStore, AtomicUsize);
    #[async_trait]
    impl Wrapper for TouchingReads {
        async fn scan(&self, inner: &dyn Store, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
            let page = inner.scan(namespace, options.clone()).await?;
            if options.with_values && *namespace == space("mortal") && self.1.fetch_add(1, Ordering::Relaxed) == 1 {
                self.0.commit(Batch::new().touch(&space("mortal"), "k", Some(Duration::from_secs(9)))).await?;
            }
            Ok(page)
        }
    }
    let store = filled(3).await;
    let source = Wrapped::new(Arc::new(store.clone()), TouchingReads(store.clone(), AtomicUsize::new(0)));
    let target = MemoryStore::new();
    assert!(copied(&source, &target).await.settled);
    assert_same(&store, &target).await;
}
