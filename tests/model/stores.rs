//! Random histories of stores, compared with a plain list of rows.

use bytes::Bytes;
use jiff::Timestamp;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;
use treehold::ErrorKind;
use treehold::ops::Version;
use treehold::store::{
    Batch, BatchWrite, Condition, Item, MemoryStore, Namespace, NamespacesOptions, Partition, ScanEntry, ScanOptions, Store, StoreExt,
    log_key,
};

/// The namespaces of each partition: a user, the tenant, users whose names or tenants begin alike, and one that is shared.
const NAMESPACES: [[&str; 4]; 5] = [
    ["a/b/c", "a/b", "a/b/c/d", "a/b/cd"],
    ["a//b", "a", "a//b/c", "a//bc"],
    ["a/bc", "a/bc/c", "a/bc/d", "a/bc/c/d"],
    ["ab/b/c", "ab/b", "ab/b/c/d", "ab/b/d"],
    ["b//b", "b", "b//c", "b//b/c"],
];

/// One step, whose keys and versions are chosen from the present rows when it runs.
#[derive(Debug, Clone)]
enum Step {
    /// With `strays`, the batch may be over two partitions.
    Commit {
        partition: usize,
        strays: bool,
        conditions: Vec<(usize, String, Kind)>,
        writes: Vec<Write>,
    },
    Get {
        namespace: usize,
        keys: Vec<String>,
        with_values: bool,
    },
    Scan {
        namespace: usize,
        options: ScanOptions,
    },
    Namespaces {
        beneath: Option<usize>,
        start_after: Option<usize>,
        limit: usize,
    },
    Stats,
    Sweep,
}

/// A condition, whose version is chosen when it is used.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Absent,
    Exists,
    CurrentVersion,
    StaleVersion,
    NoneBeneath,
    NoneBeneathSince(u8),
}

#[derive(Debug, Clone)]
enum Write {
    Put { namespace: usize, key: String, meta: u8, size: usize, time_to_live: Option<Duration> },
    Append { size: usize, time_to_live: Option<Duration> },
    Restore { namespace: usize, key: String, size: usize, version: RestoredVersion, ends: Option<bool> },
    Touch { namespace: usize, key: String, time_to_live: Option<Duration> },
    Delete { namespace: usize, key: String },
    DeletePrefix { namespace: usize, prefix: String },
}

/// The version of an item that is restored.
#[derive(Debug, Clone, Copy)]
enum RestoredVersion {
    /// A version that was assigned before, if any.
    Given(u8),
    /// A version this far above the counter; 0 is the counter itself.
    Above(u8),
    /// A version this far below the counter.
    Below(u8),
}

fn namespace_index() -> impl Strategy<Value = usize> {
    let first_of_any = (0..NAMESPACES.len()).prop_map(|partition| partition * NAMESPACES[0].len());
    prop_oneof![3 => Just(0_usize), 2 => first_of_any, 1 => 0..NAMESPACES.as_flattened().len()]
}

/// Few letters, so that keys collide and are prefixes of each other.
fn text(min: usize) -> impl Strategy<Value = String> {
    vec(select(vec!["a", "b", "/", "\u{1}", "é", "\u{10FFFF}"]), min..=4).prop_map(|pieces| pieces.concat())
}

fn write() -> impl Strategy<Value = Write> {
    let size = prop_oneof![4 => 0..20_usize, 1 => select(vec![6_399, 6_400, 6_401, 20_000])];
    let time_to_live = || prop_oneof![4 => Just(None), 1 => Just(Some(Duration::ZERO)), 1 => Just(Some(Duration::from_secs(3_600)))];
    let version = prop_oneof![
        any::<u8>().prop_map(RestoredVersion::Given),
        (0..5_u8).prop_map(RestoredVersion::Above),
        (0..5_u8).prop_map(RestoredVersion::Below),
    ];
    // Expired long ago, or expires in an hour.
    let ends = prop_oneof![3 => Just(None), 1 => any::<bool>().prop_map(Some)];
    let restore = (namespace_index(), text(1), 0..20_usize, version, ends);
    let touch = (namespace_index(), text(1), time_to_live());
    let append = (0..20_usize, time_to_live());
    let put = (namespace_index(), text(1), any::<u8>(), size, time_to_live());
    prop_oneof![
        6 => put.prop_map(|(namespace, key, meta, size, time_to_live)| Write::Put { namespace, key, meta, size, time_to_live }),
        1 => append.prop_map(|(size, time_to_live)| Write::Append { size, time_to_live }),
        1 => restore.prop_map(|(namespace, key, size, version, ends)| Write::Restore { namespace, key, size, version, ends }),
        1 => touch.prop_map(|(namespace, key, time_to_live)| Write::Touch { namespace, key, time_to_live }),
        2 => (namespace_index(), text(1)).prop_map(|(namespace, key)| Write::Delete { namespace, key }),
        1 => (namespace_index(), text(0)).prop_map(|(namespace, prefix)| Write::DeletePrefix { namespace, prefix }),
    ]
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        1 => Just(Kind::Absent),
        1 => Just(Kind::Exists),
        2 => Just(Kind::CurrentVersion),
        1 => Just(Kind::StaleVersion),
        1 => Just(Kind::NoneBeneath),
        1 => any::<u8>().prop_map(Kind::NoneBeneathSince),
    ]
}

fn scan_options() -> impl Strategy<Value = ScanOptions> {
    let delimiter = option::of(select(vec!['/', '\u{1}', 'é']));
    let bytes_max = prop_oneof![3 => Just(8_usize << 20), 1 => 0..40_usize];
    (text(0), delimiter, option::of(text(0)), 0..6_usize, any::<bool>(), bytes_max).prop_map(
        |(prefix, delimiter, start_after, limit, with_values, bytes_max)| {
            let mut options = ScanOptions::new().with_prefix(prefix).with_limit(limit).with_values(with_values).with_bytes_max(bytes_max);
            options.delimiter = delimiter;
            options.start_after = start_after;
            options
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let partition = prop_oneof![1 => Just(0_usize), 1 => 0..NAMESPACES.len()];
    let strays = prop_oneof![15 => Just(false), 1 => Just(true)];
    let commit = (partition, strays, vec((namespace_index(), text(0), kind()), 0..2), vec(write(), 0..5));
    prop_oneof![
        6 => commit
            .prop_map(|(partition, strays, conditions, writes)| Step::Commit { partition, strays, conditions, writes }),
        2 => (namespace_index(), vec(text(1), 0..12), any::<bool>())
            .prop_map(|(namespace, keys, with_values)| Step::Get { namespace, keys, with_values }),
        5 => (namespace_index(), scan_options()).prop_map(|(namespace, options)| Step::Scan { namespace, options }),
        1 => (option::of(namespace_index()), option::of(namespace_index()), 0..5_usize)
            .prop_map(|(beneath, start_after, limit)| Step::Namespaces { beneath, start_after, limit }),
        1 => Just(Step::Stats),
        1 => Just(Step::Sweep),
    ]
}

/// The expected content of the store.
#[derive(Default)]
struct Model {
    rows: BTreeMap<(Namespace, String), Row>,
    /// Every version that was ever returned, by partition.
    versions: BTreeMap<Partition, Vec<Version>>,
}

#[derive(Clone)]
struct Row {
    meta: Bytes,
    value: Bytes,
    version: Version,
    is_live: bool,
}

fn namespace(index: usize) -> Namespace {
    Namespace::parse(NAMESPACES.as_flattened()[index]).unwrap()
}

impl Model {
    /// Returns every version that was ever returned for the partition of a namespace.
    fn given(&self, namespace: &Namespace) -> &[Version] {
        self.versions.get(&namespace.partition()).map_or(&[][..], Vec::as_slice)
    }

    fn give(&mut self, namespace: &Namespace, version: Version) {
        let given = self.versions.entry(namespace.partition()).or_default();
        assert!(given.last().is_none_or(|last| version > *last), "{version:?} is not newer");
        given.push(version);
    }

    fn live(&self, namespace: &Namespace, key: &str) -> Option<&Row> {
        self.rows.get(&(namespace.clone(), key.to_owned())).filter(|row| row.is_live)
    }

    fn live_in(&self, namespace: &Namespace) -> impl Iterator<Item = (&str, &Row)> {
        self.rows.iter().filter(move |((space, _), row)| space == namespace && row.is_live).map(|((_, key), row)| (key.as_str(), row))
    }

    fn condition(&self, namespace: &Namespace, key: &str, kind: Kind) -> Condition {
        match kind {
            Kind::Absent => Condition::Absent,
            Kind::Exists => Condition::Exists,
            Kind::CurrentVersion => Condition::Version(self.live(namespace, key).map_or(Version::new(0), |row| row.version)),
            Kind::StaleVersion => Condition::Version(self.given(namespace).first().copied().unwrap_or(Version::new(7))),
            Kind::NoneBeneath => Condition::NoneBeneath,
            Kind::NoneBeneathSince(index) => {
                let given = self.given(namespace);
                let index = usize::from(index) * given.len() / 256;
                Condition::NoneBeneathSince(given.get(index).copied().unwrap_or(Version::new(0)))
            }
        }
    }

    fn holds(&self, namespace: &Namespace, key: &str, condition: &Condition) -> bool {
        let mut beneath = self.live_in(namespace).filter(|(other, _)| other.starts_with(key) && *other != key);
        match condition {
            Condition::Absent => self.live(namespace, key).is_none(),
            Condition::Exists => self.live(namespace, key).is_some(),
            Condition::Version(version) => self.live(namespace, key).is_some_and(|row| row.version == *version),
            Condition::NoneBeneath => beneath.next().is_none(),
            Condition::NoneBeneathSince(version) => !beneath.any(|(_, row)| row.version > *version),
            other => panic!("the model does not know {other:?}"),
        }
    }

    fn apply(&mut self, writes: &[BatchWrite], versions: &[Version]) {
        let mut versions = versions.iter();
        for write in writes {
            match write {
                BatchWrite::Put { namespace, key, meta, value, time_to_live, .. } => {
                    let version = *versions.next().expect("a version for each put");
                    self.give(namespace, version);
                    let is_live = *time_to_live != Some(Duration::ZERO);
                    let row = Row { meta: meta.clone(), value: value.clone(), version, is_live };
                    self.rows.insert((namespace.clone(), key.clone()), row);
                }
                BatchWrite::Append { namespace, meta, value, time_to_live } => {
                    let version = *versions.next().expect("a version for each append");
                    self.give(namespace, version);
                    let is_live = *time_to_live != Some(Duration::ZERO);
                    let row = Row { meta: meta.clone(), value: value.clone(), version, is_live };
                    self.rows.insert((namespace.clone(), log_key(version)), row);
                }
                BatchWrite::Restore { namespace, item } => {
                    let is_live = item.expires_at.is_none_or(|at| Timestamp::now() < at);
                    let row = Row { meta: item.meta.clone(), value: item.value.clone(), version: item.version, is_live };
                    self.rows.insert((namespace.clone(), item.key.clone()), row);
                }
                BatchWrite::Touch { namespace, key, time_to_live } => {
                    if let Some(row) = self.rows.get_mut(&(namespace.clone(), key.clone())) {
                        row.is_live &= *time_to_live != Some(Duration::ZERO);
                    }
                }
                BatchWrite::Delete { namespace, key } => drop(self.rows.remove(&(namespace.clone(), key.clone()))),
                BatchWrite::DeletePrefix { namespace, prefix } => {
                    self.rows.retain(|(space, key), _| space != namespace || !key.starts_with(prefix));
                }
                other => panic!("the model does not know {other:?}"),
            }
        }
        assert_eq!(versions.next(), None, "one version for each put");
    }

    /// All entries of a scan without cursor and limits: the key or name, the row, and whether it is a group.
    fn entries(&self, namespace: &Namespace, options: &ScanOptions) -> BTreeMap<String, (Option<Row>, bool)> {
        let mut entries: BTreeMap<String, (Option<Row>, bool)> = BTreeMap::new();
        for (key, row) in self.live_in(namespace) {
            let Some(rest) = key.strip_prefix(&options.prefix) else { continue };
            match options.delimiter.and_then(|delimiter| rest.split_once(delimiter).map(|(inner, _)| (inner, delimiter))) {
                Some((inner, delimiter)) => {
                    let name = format!("{}{inner}{delimiter}", options.prefix);
                    let group = entries.entry(name.clone()).or_insert((None, true));
                    if name == key {
                        group.0 = Some(row.clone());
                    }
                }
                None => drop(entries.insert(key.to_owned(), (Some(row.clone()), false))),
            }
        }
        entries
    }
}

fn assert_item(item: &Item, key: &str, row: &Row, with_value: bool) {
    assert_eq!((item.key.as_str(), &item.meta, item.version), (key, &row.meta, row.version));
    assert!(if with_value { item.value == row.value } else { item.value.is_empty() }, "the body of {key:?}");
}

async fn run(store: &dyn Store, steps: Vec<Step>) {
    let mut model = Model::default();
    for step in steps {
        match step {
            Step::Commit { partition, strays, conditions, writes } => {
                let namespaces = NAMESPACES[partition];
                let place =
                    |index: usize| if strays { namespace(index) } else { Namespace::parse(namespaces[index % namespaces.len()]).unwrap() };
                // In a separate namespace: a batch that appends to a log cannot remove from it by prefix.
                let log = namespace(partition * namespaces.len()).beneath(["log"]).unwrap();
                let of = if strays { &NAMESPACES[..] } else { &NAMESPACES[partition..=partition] };
                commit(store, &mut model, of, place, &log, conditions, writes).await;
            }
            Step::Get { namespace: index, keys, with_values } => {
                let namespace = namespace(index);
                let wanted: Vec<&str> = keys.iter().map(String::as_str).collect();
                let found = store.get_many(&namespace, &wanted, with_values).await.unwrap();
                assert_eq!(found.len(), keys.len());
                for (key, item) in keys.iter().zip(found) {
                    match (item, model.live(&namespace, key)) {
                        (Some(item), Some(row)) => assert_item(&item, key, row, with_values),
                        (item, row) => assert!(item.is_none() && row.is_none(), "{key:?} in {namespace}"),
                    }
                    assert_eq!(store.get(&namespace, key).await.unwrap().is_some(), model.live(&namespace, key).is_some());
                }
            }
            Step::Scan { namespace: index, options } => scan(store, &model, &namespace(index), options).await,
            Step::Namespaces { beneath, start_after, limit } => {
                let mut options = NamespacesOptions::new().with_limit(limit);
                options.beneath = beneath.map(namespace);
                options.start_after = start_after.map(namespace);
                let is_listed = |found: &Namespace| {
                    options.beneath.as_ref().is_none_or(|beneath| found.starts_with(beneath))
                        && options.start_after.as_ref().is_none_or(|after| found > after)
                };
                let mut all: Vec<Namespace> =
                    model.rows.iter().filter(|(_, row)| row.is_live).map(|((space, _), _)| space.clone()).collect();
                all.dedup();
                all.retain(is_listed);
                let page = store.namespaces(options.clone()).await.unwrap();
                assert_eq!((page.namespaces, page.more), (all.iter().take(limit).cloned().collect(), all.len() > limit), "{options:?}");
            }
            Step::Stats => stats(store, &model).await,
            Step::Sweep => {
                let over = model.rows.values().filter(|row| !row.is_live).count();
                assert_eq!(store.sweep(usize::MAX).await.unwrap(), over);
                model.rows.retain(|_, row| row.is_live);
            }
        }
    }
    stats(store, &model).await;
    for (partition, version) in counters(store, &NAMESPACES).await {
        let given = model.versions.get(&partition).and_then(|given| given.last());
        assert!(given.is_none_or(|given| version >= *given), "{version:?} of {partition} after {given:?}");
    }
    let damage = store.check().await.unwrap();
    assert!(damage.is_empty(), "{damage:?}");
}

async fn stats(store: &dyn Store, model: &Model) {
    let stats = store.stats().await.unwrap();
    let live: Vec<(&Namespace, &Row)> =
        model.rows.iter().filter(|(_, row)| row.is_live).map(|((namespace, _), row)| (namespace, row)).collect();
    let namespaces: BTreeSet<&Namespace> = live.iter().map(|(namespace, _)| *namespace).collect();
    assert_eq!((stats.namespaces, stats.items), (namespaces.len() as u64, live.len() as u64));
    assert_eq!(stats.meta_bytes, live.iter().map(|(_, row)| row.meta.len() as u64).sum::<u64>());
    assert_eq!(stats.value_bytes, live.iter().map(|(_, row)| row.value.len() as u64).sum::<u64>());
    assert_eq!(stats.expired, (model.rows.len() - live.len()) as u64);
}

/// Returns the counter of each partition, given by its namespaces. They may all be one.
async fn counters(store: &dyn Store, of: &[[&str; 4]]) -> BTreeMap<Partition, Version> {
    let mut counters = BTreeMap::new();
    for namespaces in of {
        let partition = Namespace::parse(namespaces[0]).unwrap().partition();
        let counter = store.current_version(&partition).await.unwrap();
        counters.insert(partition, counter);
    }
    counters
}

async fn commit(
    store: &dyn Store,
    model: &mut Model,
    of: &[[&str; 4]],
    namespace: impl Fn(usize) -> Namespace,
    log: &Namespace,
    conditions: Vec<(usize, String, Kind)>,
    writes: Vec<Write>,
) {
    let mut batch = Batch::new();
    let mut failing = None;
    for (index, (space, key, kind)) in conditions.into_iter().enumerate() {
        let namespace = namespace(space);
        let condition = model.condition(&namespace, &key, kind);
        if failing.is_none() && !model.holds(&namespace, &key, &condition) {
            failing = Some(index);
        }
        batch = batch.expect(&namespace, key, condition);
    }
    let before = counters(store, of).await;
    let mut floor = Version::new(0);
    for write in writes {
        batch.writes.push(match write {
            Write::Restore { namespace: space, key, size, version, ends } => {
                let namespace = namespace(space);
                let (counter, given) = (before[&namespace.partition()].number(), model.given(&namespace));
                let version = match version {
                    RestoredVersion::Given(index) if !given.is_empty() => given[usize::from(index) % given.len()],
                    RestoredVersion::Given(index) | RestoredVersion::Above(index) => Version::new(counter.max(1) + u64::from(index)),
                    // No store assigns version 0.
                    RestoredVersion::Below(index) => Version::new(counter.saturating_sub(u64::from(index)).max(1)),
                };
                floor = floor.max(version);
                let at = Timestamp::from_second(1_000_000).unwrap();
                let ends = ends.map(|is_over| if is_over { at } else { Timestamp::now() + Duration::from_secs(3_600) });
                let item = Item::new(key, Bytes::new(), vec![7; size].into(), version, at, at).with_expires_at(ends);
                BatchWrite::Restore { namespace, item }
            }
            Write::Append { size, time_to_live } => {
                BatchWrite::Append { namespace: log.clone(), meta: Bytes::new(), value: vec![9; size].into(), time_to_live }
            }
            Write::Touch { namespace: space, key, time_to_live } => BatchWrite::Touch { namespace: namespace(space), key, time_to_live },
            Write::Put { namespace: space, key, meta, size, time_to_live } => BatchWrite::Put {
                namespace: namespace(space),
                key,
                meta: vec![meta; usize::from(meta) * 8].into(),
                value: vec![meta; size].into(),
                time_to_live,
                created_at: None,
            },
            Write::Delete { namespace: space, key } => BatchWrite::Delete { namespace: namespace(space), key },
            Write::DeletePrefix { namespace: space, prefix } => BatchWrite::DeletePrefix { namespace: namespace(space), prefix },
        });
    }
    let is_restoring = batch.writes.iter().any(|write| matches!(write, BatchWrite::Restore { .. }));
    let answer = store.commit(batch.clone()).await;
    let after = counters(store, of).await;
    let mut partitions: BTreeSet<Partition> = batch.namespaces().map(Namespace::partition).collect();
    if partitions.len() > 1 {
        assert_eq!(answer.expect_err("a batch over two partitions").kind(), ErrorKind::Unsupported);
        assert_eq!(after, before);
        return;
    }
    assert!(after.iter().all(|(partition, counter)| *counter >= before[partition]), "{after:?} after {before:?}");
    let partition = partitions.pop_first().unwrap_or_else(|| log.partition());
    let (before, after) = (before[&partition], after[&partition]);
    match (answer, failing) {
        (Ok(versions), None) => {
            assert!(versions.first().is_none_or(|version| *version > before));
            assert!(versions.last().is_none_or(|version| *version == after || (is_restoring && *version < after)));
            assert!(after >= floor, "the counter is behind what was restored");
            let count = model.rows.len();
            model.apply(&batch.writes, &versions);
            let is_changed = is_restoring || !versions.is_empty() || model.rows.len() != count;
            assert_eq!(after > before, is_changed, "{after:?} after {before:?}, of {batch:?}");
        }
        (Err(error), Some(index)) => {
            assert_eq!((error.kind(), error.change(), after), (ErrorKind::Conflict, Some(index), before), "{error:?}");
        }
        (answer, failing) => panic!("{answer:?}, and condition {failing:?} fails in the model, of {batch:?}"),
    }
}

async fn scan(store: &dyn Store, model: &Model, namespace: &Namespace, options: ScanOptions) {
    let page = store.scan(namespace, options.clone()).await.unwrap();
    let entries = model.entries(namespace, &options);
    let mut rest = entries.iter().filter(|(key, _)| options.start_after.as_ref().is_none_or(|after| *key > after)).peekable();
    let mut bytes = 0;
    let mut last = options.start_after.clone().unwrap_or_default();
    let mut found = page.entries.iter();
    for count in 0.. {
        let is_full = count >= options.limit || (options.with_values && count > 0 && bytes >= options.bytes_max);
        let Some((key, (row, is_group))) = (if is_full { None } else { rest.next() }) else { break };
        match found.next() {
            Some(ScanEntry::Item(item)) if !is_group => {
                assert_item(item, key, row.as_ref().unwrap(), options.with_values);
                bytes += item.value.len();
            }
            Some(ScanEntry::Group { name, item }) if *is_group => {
                assert_eq!((name, item.is_some()), (key, row.is_some()));
                item.iter().zip(row).for_each(|(item, row)| assert_item(item, key, row, false));
            }
            entry => panic!("{entry:?} where the model has {key:?}, of {options:?}"),
        }
        last.clone_from(key);
    }
    assert_eq!(found.next(), None, "{options:?}");
    assert_eq!(page.next, rest.peek().map(|_| last), "{options:?}");
}

/// Runs histories on fresh stores of one kind; `TREEHOLD_MODEL_CASES` sets how many.
fn histories<S: Store>(cases: u32, fresh: impl Fn(&Path) -> S) {
    let cases = std::env::var("TREEHOLD_MODEL_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(cases);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let config = ProptestConfig { cases, failure_persistence: None, max_shrink_iters: 4_000, ..ProptestConfig::default() };
    proptest!(config, |(steps in vec(step(), 1..40))| {
        let directory = tempfile::tempdir().unwrap();
        runtime.block_on(run(&fresh(&directory.path().join("store")), steps));
    });
}

#[test]
fn memory() {
    histories(256, |_| MemoryStore::new());
}

// The commits of the next stores wait for a disk, so they run fewer histories.

#[cfg(feature = "sqlite")]
#[test]
fn sqlite() {
    histories(24, |path| treehold::store::SqliteStore::open(path).unwrap());
}

#[cfg(feature = "sqlite")]
#[test]
fn sqlite_directory() {
    let options = |path: &Path| treehold::store::SqliteDirectoryOptions::new(path).with_open_max(1);
    histories(24, |path| treehold::store::SqliteDirectory::open_with(options(path)).unwrap());
}

#[cfg(feature = "sled")]
#[test]
fn sled() {
    histories(24, |path| treehold::store::SledStore::open(path).unwrap());
}

/// Runs histories on fresh stores of a server, where there is one.
#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
fn histories_on<F: Future<Output = crate::servers::OnServer>>(cases: u32, fresh: impl Fn() -> F) {
    let cases = std::env::var("TREEHOLD_MODEL_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(cases);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let config = ProptestConfig { cases, failure_persistence: None, max_shrink_iters: 4_000, ..ProptestConfig::default() };
    proptest!(config, |(steps in vec(step(), 1..40))| {
        runtime.block_on(async {
            let (store, keep) = fresh().await;
            run(&store, steps).await;
            drop((store, keep));
        });
    });
}

#[cfg(feature = "mysql")]
#[test]
#[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
fn mysql() {
    histories_on(32, crate::servers::mysql::fresh);
}

#[cfg(feature = "postgres")]
#[test]
#[ignore = "needs PostgreSQL: run scripts/servers.sh"]
fn postgres() {
    histories_on(16, crate::servers::postgres::fresh);
}

#[cfg(feature = "redis")]
#[test]
#[ignore = "needs Redis: run scripts/servers.sh"]
fn redis() {
    histories_on(32, crate::servers::redis::fresh);
}

#[cfg(feature = "redis")]
#[test]
#[ignore = "needs a Redis Cluster: run scripts/servers.sh"]
fn redis_cluster() {
    histories_on(32, crate::servers::redis::fresh_in_cluster);
}

#[cfg(feature = "mysql")]
#[test]
#[ignore = "needs a MariaDB Galera cluster: run scripts/galera.sh"]
fn galera() {
    histories_on(8, crate::servers::galera::fresh);
}
