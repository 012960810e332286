//! Archives: an import restores exactly what was exported, and refuses everything else.

use jiff::Timestamp;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::collections::BTreeSet;
use std::io::{self, Cursor, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use treehold::ops::Version;
use treehold::store::{
    ArchiveReport, Batch, CopyOptions, ExportOptions, ImportOptions, MemoryStore, Namespace, NamespacesOptions, Partition,
    RESERVED_NAMESPACES, ReservedRows, ScanOptions, Store, StoreExt, Withheld, copy, export, import,
};
use treehold::{Error, ErrorKind, Result};

/// A writer that keeps what is written.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

async fn exported(store: &dyn Store) -> (Vec<u8>, ArchiveReport) {
    let kept = Kept::default();
    let report = export(store, kept.clone(), &ExportOptions::new(), |_| {}).await.unwrap();
    let bytes = kept.0.lock().unwrap().clone();
    (bytes, report)
}

async fn imported(archive: impl Into<Vec<u8>>) -> Result<MemoryStore> {
    let store = MemoryStore::new();
    import(&store, Cursor::new(archive.into()), &ImportOptions::new(), |_| {}).await?;
    Ok(store)
}

async fn refused(archive: impl Into<Vec<u8>>) -> Error {
    imported(archive).await.unwrap_err()
}

/// Returns every row of every namespace, page by page.
async fn rows(store: &dyn Store) -> Vec<String> {
    let namespaces = store.namespaces(NamespacesOptions::new().with_limit(usize::MAX)).await.unwrap().namespaces;
    let mut all = Vec::new();
    for namespace in namespaces {
        let options = ScanOptions::new().with_values(true).with_limit(usize::MAX).with_bytes_max(usize::MAX);
        let page = store.scan(&namespace, options).await.unwrap();
        all.extend(page.entries.iter().map(|entry| format!("{namespace} {entry:?}")));
    }
    all
}

fn space(text: &str) -> Namespace {
    Namespace::parse(text).unwrap()
}

/// Returns the version of each partition with rows.
async fn versions(store: &dyn Store) -> Vec<(Partition, Version)> {
    let namespaces = store.namespaces(NamespacesOptions::new().with_limit(usize::MAX)).await.unwrap().namespaces;
    let partitions: BTreeSet<Partition> = namespaces.iter().map(Namespace::partition).collect();
    let mut versions = Vec::new();
    for partition in partitions {
        let version = store.current_version(&partition).await.unwrap();
        versions.push((partition, version));
    }
    versions
}

/// Asserts that no version of a partition is used again for another row.
async fn assert_continues(store: &dyn Store, source: &dyn Store) {
    for (partition, version) in versions(source).await {
        assert!(store.current_version(&partition).await.unwrap() >= version, "{partition}");
    }
}

/// Returns the newest version of all partitions.
async fn newest(store: &dyn Store) -> Version {
    versions(store).await.into_iter().map(|(_, version)| version).max().unwrap()
}

/// Commits writes, one batch for each partition.
async fn commit_all(store: &dyn Store, batch: Batch) {
    for (_, part) in Batch::by_partition(batch.writes) {
        store.commit(part).await.unwrap();
    }
}

async fn filled() -> MemoryStore {
    let store = MemoryStore::new();
    let large = vec![7; 100_000];
    let batch = Batch::new()
        .put(&space("a"), "text", "one\n")
        .put(&space("a"), "empty", "")
        .put(&space("a"), "bytes\u{1}\u{7f}", vec![0, 255, 1])
        .put_with_meta(&space("a/b%2F"), "é", vec![9; 3_000], large.clone())
        .put(&space("a/b%2F"), "twin", large)
        .put(&space("z"), "edge", vec![b'x'; 4 << 10])
        .put(&space("z"), "over", vec![b'x'; (4 << 10) + 1])
        .put_for(&space("z"), "mortal", "v", Duration::from_secs(3_600));
    commit_all(&store, batch).await;
    store.commit(Batch::new().put(&space("a"), "gone", "")).await.unwrap();
    store.commit(Batch::new().delete(&space("a"), "gone")).await.unwrap();
    store
}

#[tokio::test]
async fn import_restores_what_was_exported() {
    let store = filled().await;
    let (archive, report) = exported(&store).await;
    let other = imported(archive.clone()).await.unwrap();
    assert_eq!(rows(&other).await, rows(&store).await);
    assert_continues(&other, &store).await;
    assert_eq!((report.rows, report.version), (8, newest(&store).await));
    assert_eq!(exported(&other).await.1.digest, report.digest);
    let copied = copy(&store, &MemoryStore::new(), &CopyOptions::new(), |_| {}).await.unwrap();
    assert_eq!(copied.digest, Some(report.digest), "the hash is the same for an archive and a copy");
    // An empty store too. A partition without rows counts anew.
    let empty = MemoryStore::new();
    empty.commit(Batch::new().put(&space("a"), "k", "")).await.unwrap();
    empty.commit(Batch::new().delete_prefix(&space("a"), "")).await.unwrap();
    let other = imported(exported(&empty).await.0).await.unwrap();
    assert_eq!(rows(&other).await.len(), 0);
    assert_eq!(other.current_version(&space("a").partition()).await.unwrap(), Version::new(0));
}

/// Imports into a server, exports from it, imports into another store there, and exports again: all archives are equal.
#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
async fn check_on_server(fresh: impl AsyncFn() -> crate::servers::OnServer) {
    let [(one, _keep), (other, _keep_other)] = [fresh().await, fresh().await];
    let source = filled().await;
    let (mut archive, report) = exported(&source).await;
    for store in [&one, &other] {
        let imported = import(&**store, Cursor::new(archive), &ImportOptions::new(), |_| {}).await.unwrap();
        assert_eq!((imported.rows, imported.value_bytes, imported.digest), (report.rows, report.value_bytes, report.digest.clone()));
        assert_eq!(rows(&**store).await, rows(&source).await);
        assert_continues(&**store, &source).await;
        assert!(store.check().await.unwrap().is_empty());
        let out;
        (archive, out) = exported(&**store).await;
        assert_eq!((out.rows, out.value_bytes, &out.digest), (report.rows, report.value_bytes, &report.digest));
        assert_eq!(out.version, newest(&**store).await);
    }
    // A store that is not empty is refused by default, and a truncated archive is detected after its rows.
    let error = import(&*one, Cursor::new(archive.clone()), &ImportOptions::new(), |_| {}).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error:?}");
    archive.truncate(archive.len() - 2_048);
    let error = import(&*one, Cursor::new(archive), &ImportOptions::new().with_onto(true), |_| {}).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
    assert_eq!(rows(&*one).await, rows(&source).await);
}

#[cfg(feature = "mysql")]
#[tokio::test]
#[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
async fn archive_round_trips_through_mysql() {
    check_on_server(crate::servers::mysql::fresh).await;
}

#[cfg(feature = "postgres")]
#[tokio::test]
#[ignore = "needs PostgreSQL: run scripts/servers.sh"]
async fn archive_round_trips_through_postgres() {
    check_on_server(crate::servers::postgres::fresh).await;
}

#[cfg(feature = "redis")]
#[tokio::test]
#[ignore = "needs Redis: run scripts/servers.sh"]
async fn archive_round_trips_through_redis() {
    check_on_server(crate::servers::redis::fresh).await;
}

#[cfg(feature = "redis")]
#[tokio::test]
#[ignore = "needs a Redis Cluster: run scripts/servers.sh"]
async fn archive_round_trips_through_redis_cluster() {
    check_on_server(crate::servers::redis::fresh_in_cluster).await;
}

#[tokio::test]
async fn import_into_nonempty_store_requires_onto() {
    let (archive, _) = exported(&filled().await).await;
    let store = MemoryStore::new();
    store.commit(Batch::new().put(&space("a"), "own", "stays").put(&space("a"), "text", "older")).await.unwrap();
    let before = rows(&store).await;
    let error = import(&store, Cursor::new(archive.clone()), &ImportOptions::new(), |_| {}).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
    assert_eq!(rows(&store).await, before);
    import(&store, Cursor::new(archive), &ImportOptions::new().with_onto(true), |_| {}).await.unwrap();
    assert_eq!(store.get(&space("a"), "own").await.unwrap().unwrap().value, "stays");
    assert_eq!(store.get(&space("a"), "text").await.unwrap().unwrap().value, "one\n");
    assert_eq!(rows(&store).await.len(), 9);
}

/// Changes every byte of an archive, one at a time, and truncates it to every length: what is refused changes nothing.
#[tokio::test]
async fn damaged_archive_changes_nothing() {
    let source = MemoryStore::new();
    let large = vec![b'x'; 5_000];
    commit_all(&source, Batch::new().put(&space("a"), "1", "one").put(&space("b"), "2", large).put(&space("c"), "3", "three")).await;
    let (sound, _) = exported(&source).await;
    let mut refusals = 0;
    let flipped = (0..sound.len()).step_by(7).map(|at| {
        let mut bytes = sound.clone();
        bytes[at] ^= 0x11;
        bytes
    });
    let cut = (0..sound.len() - 1_024).step_by(61).map(|length| sound[..length].to_vec());
    for archive in flipped.chain(cut) {
        let store = MemoryStore::new();
        store.commit(Batch::new().put(&space("own"), "k", "v")).await.unwrap();
        let before = (rows(&store).await, versions(&store).await);
        if import(&store, Cursor::new(archive), &ImportOptions::new().with_onto(true), |_| {}).await.is_err() {
            refusals += 1;
            assert_eq!((rows(&store).await, versions(&store).await), before);
        }
    }
    assert!(refusals > 300, "{refusals} refused");
}

/// Every reserved namespace and one of a user: which rows are included by default, and which only on explicit request.
#[tokio::test]
async fn withheld_rows_move_only_when_included() {
    let store = MemoryStore::new();
    let reserved = RESERVED_NAMESPACES.iter().filter(|reserved| reserved.rows != ReservedRows::Note);
    let places: Vec<(Namespace, ReservedRows)> = reserved
        .flat_map(|reserved| {
            let beside = |before: &[&str]| Namespace::new([before, reserved.components].concat()).unwrap();
            let own = Namespace::new(reserved.components.iter().copied().chain(["t", "u"])).unwrap();
            let short = Namespace::parse(&format!("t//{}", reserved.components.join("/"))).unwrap();
            [own, beside(&["t", "u"]), short].map(|namespace| (namespace, reserved.rows))
        })
        .chain([(space("t/u/memories"), ReservedRows::Data), (space("x/tokens"), ReservedRows::Data)])
        .collect();
    for (namespace, _) in &places {
        store.commit(Batch::new().put(namespace, "k", "theirs")).await.unwrap();
    }
    let every = |rows: &ReservedRows| matches!(rows, ReservedRows::Data | ReservedRows::Withheld(_));
    let plain = |rows: &ReservedRows| *rows == ReservedRows::Data;
    let has = async |store: &MemoryStore, wanted: &dyn Fn(&ReservedRows) -> bool, how: &str| {
        for (namespace, rows) in &places {
            assert_eq!(store.get(namespace, "k").await.unwrap().is_some(), wanted(rows), "{namespace}, {how}");
        }
    };
    let all_out = Withheld::ALL.iter().fold(ExportOptions::new(), |options, name| options.with_include(*name));
    let all_in = Withheld::ALL.iter().fold(ImportOptions::new(), |options, name| options.with_include(*name));
    let all_copied = Withheld::ALL.iter().fold(CopyOptions::new(), |options, name| options.with_include(*name));
    for (exporting, importing, wanted, left_out, how) in [
        (ExportOptions::new(), all_in.clone(), &plain as &dyn Fn(&ReservedRows) -> bool, 0, "exported without"),
        (all_out.clone(), ImportOptions::new(), &plain, 6, "imported without"),
        (all_out.clone(), all_in, &every, 0, "both with"),
        (
            all_out,
            ImportOptions::new().with_include(Withheld::Answers),
            &|rows| plain(rows) || *rows == ReservedRows::Withheld(Withheld::Answers),
            3,
            "answers alone",
        ),
    ] {
        let kept = Kept::default();
        export(&store, kept.clone(), &exporting, |_| {}).await.unwrap();
        let archive = kept.0.lock().unwrap().clone();
        let target = MemoryStore::new();
        let report = import(&target, Cursor::new(archive), &importing, |_| {}).await.unwrap();
        has(&target, wanted, how).await;
        assert_eq!(report.left_out.values().sum::<u64>(), left_out, "{how}");
    }
    // A copy includes indexes, because both sides are equal afterwards.
    let copied = MemoryStore::new();
    let report = copy(&store, &copied, &CopyOptions::new(), |_| {}).await.unwrap();
    assert!(report.settled);
    has(&copied, &|rows| !matches!(rows, ReservedRows::Withheld(_)), "copied").await;
    let copied = MemoryStore::new();
    assert!(copy(&store, &copied, &all_copied, |_| {}).await.unwrap().settled);
    has(&copied, &|_| true, "copied with all").await;
    // A server's own tokens do not prevent the import, and stay.
    let server = MemoryStore::new();
    server
        .commit(Batch::new().put(&space("_treehold/tokens"), "k", "ours").put(&space("_treehold/tokens/t/u"), "k", "ours"))
        .await
        .unwrap();
    let (archive, _) = exported(&store).await;
    import(&server, Cursor::new(archive), &ImportOptions::new(), |_| {}).await.unwrap();
    assert_eq!(server.get(&space("_treehold/tokens/t/u"), "k").await.unwrap().unwrap().value, "ours");
    let server = MemoryStore::new();
    server.commit(Batch::new().put(&space("_treehold/tokens"), "k", "ours")).await.unwrap();
    assert!(copy(&store, &server, &CopyOptions::new(), |_| {}).await.unwrap().settled);
    assert_eq!(server.get(&space("_treehold/tokens"), "k").await.unwrap().unwrap().value, "ours");
}

/// An archive truncated anywhere is refused, until its end is complete.
#[tokio::test]
async fn truncated_archive_is_refused() {
    let (archive, _) = exported(&filled().await).await;
    // The last entry is followed by two blocks of zeros.
    let whole = archive.len() - 1_024;
    let cuts = (0..whole).step_by(97).chain((0..whole).step_by(512)).chain([whole - 1]);
    for cut in cuts {
        let error = refused(&archive[..cut]).await;
        assert_eq!(error.kind(), ErrorKind::Corrupt, "at {cut}: {error}");
    }
    imported(&archive[..whole]).await.unwrap();
}

/// A flipped byte never results in different rows.
#[tokio::test]
async fn damaged_archive_never_yields_different_rows() {
    let store = MemoryStore::new();
    commit_all(&store, Batch::new().put(&space("a"), "text", "one\n").put(&space("b"), "over", vec![b'x'; 4_100])).await;
    let (archive, _) = exported(&store).await;
    let expected = rows(&store).await;
    let mut refusals = 0;
    for at in (0..archive.len()).step_by(3) {
        let mut damaged = archive.clone();
        damaged[at] ^= 0x15;
        match imported(damaged).await {
            Ok(other) => assert_eq!(rows(&other).await, expected, "byte {at}"),
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::TooLarge | ErrorKind::Unsupported), "byte {at}: {error:?}");
                refusals += 1;
            }
        }
    }
    assert!(refusals > archive.len() / 6, "{refusals} of {}", archive.len());
}

/// An entry: its name, its content, its type, and its declared size.
struct Entry(Vec<u8>, Vec<u8>, u8, u64);

fn file(name: &str, content: impl AsRef<[u8]>) -> Entry {
    let content = content.as_ref().to_vec();
    let size = content.len() as u64;
    Entry(name.as_bytes().to_vec(), content, b'0', size)
}

fn archive(entries: &[Entry]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for Entry(name, content, kind, size) in entries {
        let mut header = tar_header(name, *size, *kind);
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        bytes.extend_from_slice(&header);
        bytes.extend_from_slice(content);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    }
    bytes.resize(bytes.len() + 1_024, 0);
    bytes
}

fn tar_header(name: &[u8], size: u64, kind: u8) -> [u8; 512] {
    let mut header = [0; 512];
    header[..name.len()].copy_from_slice(name);
    header[100..107].copy_from_slice(b"0000600");
    match size < 1 << 33 {
        true => header[124..136].copy_from_slice(format!("{size:011o}\0").as_bytes()),
        // Larger numbers are stored in binary.
        false => {
            header[124] = 0x80;
            header[128..136].copy_from_slice(&size.to_be_bytes());
        }
    }
    header[148..156].fill(b' ');
    header[156] = kind;
    header[257..265].copy_from_slice(b"ustar\x0000");
    header
}

/// Sessions, traces and states of agents of an archive that was written before they moved are in the partitions of their users.
#[tokio::test]
async fn archive_of_the_format_before_has_its_rows_with_their_users() {
    let store = MemoryStore::new();
    let places = [
        ("_treehold/sessions", "_treehold/sessions"),
        ("_treehold/sessions/_treehold/history/acme/ada/memo", "acme/ada/_treehold/history/_treehold/sessions/memo"),
        ("_treehold/sessions/_treehold/removals", "_treehold/sessions/_treehold/removals"),
        ("_treehold/sessions/acme", "acme//_treehold/sessions"),
        ("_treehold/sessions/acme/ada/recent", "acme/ada/_treehold/sessions/recent"),
        ("_treehold/traces/acme/ada/traces", "acme/ada/_treehold/traces/traces"),
        ("_treehold/agent-state/_treehold/due", "_treehold/agent-state/_treehold/due"),
        ("_treehold/agent-state/acme/users/ada/agents/helper/states", "acme/ada/_treehold/agent-state/agents/helper/states"),
        ("_treehold/agent-state/acme/anonymous/agents/helper/states", "acme//_treehold/agent-state/anonymous/agents/helper/states"),
        ("acme/ada/memories", "acme/ada/memories"),
    ];
    for (former, _) in places {
        store.commit(Batch::new().put_with_meta(&space(former), "key", "meta", former)).await.unwrap();
    }
    let (archive, _) = exported(&store).await;
    let name = archive.windows(8).position(|bytes| bytes == br#""format""#).unwrap();
    let number = name + archive[name..].iter().position(u8::is_ascii_digit).unwrap();
    let mut former = archive;
    former[number] = b'3';
    let imported = imported(former).await.unwrap();
    for (former, place) in places {
        let item = imported.get(&space(place), "key").await.unwrap().expect(place);
        assert_eq!(item, store.get(&space(former), "key").await.unwrap().unwrap());
    }
    assert_eq!(rows(&imported).await.len(), places.len());
}

const HEAD: &str = r#"{"format":4,"engine":"x","version":9,"exported_at":"2026-11-21T12:00:00Z"}"#;

fn line(key: &str, rest: &str) -> String {
    format!(
        r#"{{"namespace":"a","key":"{key}","version":1,"created_at":"2026-11-21T12:00:00Z","modified_at":"2026-11-21T12:00:00Z",{rest}}}"#
    ) + "\n"
}

#[tokio::test]
async fn invalid_archive_is_refused_naming_its_entry() {
    let head = || file("treehold.json", HEAD);
    let page = |lines: &str| file("items/00000001.jsonl", lines);
    let sound = line("k", r#""size":1,"value":"v""#);
    let hash = blake3::hash(b"content").to_hex().to_string();
    let blob = || file(&format!("blobs/{hash}"), "content");
    let declared = |mut entry: Entry, size| {
        entry.3 = size;
        entry
    };
    let kind = |mut entry: Entry, kind| {
        entry.2 = kind;
        entry
    };
    let deep = line("k", &format!(r#""size":1,"value":{}"#, "[".repeat(100_000)));
    let table: Vec<(Vec<Entry>, ErrorKind, &str)> = vec![
        (vec![], ErrorKind::Corrupt, "this is not an export"),
        (vec![head()], ErrorKind::Corrupt, "`end.json` is missing"),
        (vec![page(&sound)], ErrorKind::Corrupt, "an export begins with `treehold.json`"),
        (vec![file("../../etc/passwd", "x")], ErrorKind::Corrupt, "`../../etc/passwd`"),
        (vec![head(), file("/etc/passwd", "x")], ErrorKind::Corrupt, "`/etc/passwd` of the archive is wrong: it is unknown"),
        (vec![head(), file("items/../00000001.jsonl", &sound)], ErrorKind::Corrupt, "it is unknown or out of order"),
        (vec![head(), file("blobs/../../x", "x")], ErrorKind::Corrupt, "named by its BLAKE3 hash"),
        (vec![head(), file(&format!("blobs/{}", hash.to_uppercase()), "content")], ErrorKind::Corrupt, "named by its BLAKE3 hash"),
        (vec![head(), kind(file("items/00000001.jsonl", ""), b'2')], ErrorKind::Corrupt, "not a plain file"),
        (vec![head(), kind(file("././@LongLink", "x"), b'L')], ErrorKind::Corrupt, "not a plain file"),
        (vec![kind(file("pax", "x"), b'x')], ErrorKind::Corrupt, "not a plain file"),
        (vec![head(), head()], ErrorKind::Corrupt, "out of order"),
        (
            vec![head(), file("items/00000002.jsonl", &sound)],
            ErrorKind::Corrupt,
            "expected `items/00000001.jsonl`, its contents or `end.json`",
        ),
        (vec![file("treehold.json", HEAD.replace(":4,", ":5,"))], ErrorKind::Unsupported, "format 5"),
        (vec![head(), page(&sound.replace(r#""a""#, r#""t//_treehold/indexes""#))], ErrorKind::Corrupt, "never exported"),
        (vec![head(), page(&sound.replace(r#""a""#, r#""_treehold/copy""#))], ErrorKind::Corrupt, "never exported"),
        (vec![head(), page(&sound.replace(r#""a""#, r#""_treehold/later""#))], ErrorKind::Corrupt, "does not know it"),
        (
            vec![file("stratafs.json", HEAD.replace(":4,", ":1,")), page(&sound.replace(r#""a""#, r#""_treehold/x""#))],
            ErrorKind::Corrupt,
            "which is reserved now",
        ),
        (vec![file("treehold.json", HEAD.replace(":4,", ":0,"))], ErrorKind::Corrupt, "format is 0"),
        (vec![file("treehold.json", HEAD.replace("engine", "motor"))], ErrorKind::Corrupt, "unknown field `motor`"),
        (vec![declared(head(), 1 << 40)], ErrorKind::TooLarge, "`treehold.json`"),
        (vec![head(), declared(blob(), 1 << 50)], ErrorKind::TooLarge, "has 1125899906842624 bytes"),
        (vec![head(), declared(blob(), 1 << 29)], ErrorKind::Corrupt, "cut off in `blobs/"),
        (vec![head(), declared(page(&sound), 1 << 40)], ErrorKind::TooLarge, "its lines exceed"),
        (vec![head(), blob(), blob()], ErrorKind::Corrupt, "it occurs twice"),
        (vec![head(), file(&format!("blobs/{hash}"), "other")], ErrorKind::Corrupt, "does not match the hash that names it"),
        (vec![head(), blob(), page(&sound)], ErrorKind::Corrupt, "no row of the page after it names it"),
        (vec![head(), page("")], ErrorKind::Corrupt, "at least one row"),
        (vec![head(), page(sound.trim_end())], ErrorKind::Corrupt, "line 1` of the archive is wrong: it does not end"),
        (vec![head(), page(&"x".repeat(300_000))], ErrorKind::Corrupt, "it does not end within"),
        (vec![head(), page(&deep)], ErrorKind::Corrupt, "line 1"),
        (
            vec![head(), page(&[&sound[..], &sound].concat())],
            ErrorKind::Corrupt,
            "line 2` of the archive is wrong: the row is not after the one before it",
        ),
        (vec![head(), page(&line("k", r#""size":1"#))], ErrorKind::Corrupt, "the size is 1 and the content has 0 bytes"),
        (vec![head(), page(&line("k", r#""size":1,"value":"v","value_base64":"dg==""#))], ErrorKind::Corrupt, "more than one of"),
        (vec![head(), page(&line("k", r#""size":1,"value_base64":"?""#))], ErrorKind::Corrupt, "`value_base64` is not Base64"),
        (vec![head(), page(&line("k", &format!(r#""size":7,"blob":"{hash}""#)))], ErrorKind::Corrupt, "does not precede it"),
        (vec![head(), page(&line("k", r#""size":0,"more":1"#))], ErrorKind::Corrupt, "unknown field `more`"),
        (vec![head(), page(&line("", r#""size":0"#))], ErrorKind::Corrupt, "the key is empty"),
        (vec![head(), page(&line("\\u0000", r#""size":0"#))], ErrorKind::Corrupt, "holds NUL"),
        (vec![head(), page(&sound.replace(r#""a""#, r#""a///b""#))], ErrorKind::Corrupt, "the namespace is invalid"),
        // Formats before partitions had no such namespace.
        (
            vec![file("treehold.json", HEAD.replace(":4,", ":2,")), page(&sound.replace(r#""a""#, r#""a//b""#))],
            ErrorKind::Corrupt,
            "the namespace is invalid",
        ),
        (vec![head(), page(&sound.replace(r#""a""#, r#""%61""#))], ErrorKind::Corrupt, "not in its canonical form"),
        (vec![head(), page(&sound.replace(":1,", ":0,"))], ErrorKind::Corrupt, "the version is not between"),
        (vec![head(), page(&sound.replace(":1,", ":18446744073709551615,"))], ErrorKind::Corrupt, "the version is not between"),
        // The reader accepted it, and the store refused it.
        (vec![head(), page(&sound.replace(":1,", ":4503599627370496,"))], ErrorKind::Corrupt, "the version is not between"),
        (vec![head(), page(&sound.replace("12:00:00Z", "12:00:00.0000001Z"))], ErrorKind::Corrupt, "whole microseconds"),
        (vec![head(), page(&sound.replace("2026-11", "2026-13"))], ErrorKind::Corrupt, "it is not a row"),
        (vec![head(), file("items/00000001.jsonl", [sound.as_bytes(), b"\xff\n"].concat())], ErrorKind::Corrupt, "line 2"),
        (vec![head(), Entry(b"\xff\xfe".to_vec(), vec![], b'0', 0)], ErrorKind::Corrupt, "of the archive is wrong"),
        (vec![head(), page(&sound), file("end.json", "{}")], ErrorKind::Corrupt, "`end.json` of the archive is wrong"),
        (
            vec![head(), page(&sound), file("end.json", r#"{"pages":1,"rows":1,"value_bytes":1,"version":1,"digest":""}"#)],
            ErrorKind::Corrupt,
            "does not match the totals at its end",
        ),
    ];
    for (entries, expected, message) in table {
        let error = refused(archive(&entries)).await;
        assert_eq!(error.kind(), expected, "{message}: {error:?}");
        assert!(error.message().contains(message), "{message}: {error}");
        assert!(error.message().len() < 500, "{error}");
    }
    for noise in [&b"no archive at all"[..], &[0xff; 2_000], &[b'a'; 512]] {
        assert_eq!(refused(noise).await.kind(), ErrorKind::Corrupt);
    }
}

#[tokio::test]
async fn entries_after_the_end_are_refused() {
    let (mut bytes, _) = exported(&filled().await).await;
    bytes.truncate(bytes.len() - 1_024);
    bytes.extend(archive(&[file("more", "x")]));
    let error = refused(bytes).await;
    assert!(error.message().contains("`more` of the archive is wrong: it comes after `end.json`"), "{error}");
}

/// A small archive whose rows all refer to one large content.
#[tokio::test]
async fn small_archive_does_not_expand_into_large_store() {
    let content = vec![b'x'; 1 << 20];
    let hash = blake3::hash(&content).to_hex().to_string();
    let lines: String = (0..900).map(|number| line(&format!("{number:03}"), &format!(r#""size":1048576,"blob":"{hash}""#))).collect();
    let entries = [file("treehold.json", HEAD), file(&format!("blobs/{hash}"), &content), file("items/00000001.jsonl", lines)];
    let store = MemoryStore::new();
    let error = import(&store, Cursor::new(archive(&entries)), &ImportOptions::new(), |_| {}).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
    assert_eq!(store.current_version(&space("a").partition()).await.unwrap(), Version::new(0));
    // A legitimate store with many equal contents passes.
    let equal = MemoryStore::new();
    let batch = (0..30).fold(Batch::new(), |batch, number| batch.put(&space("a"), format!("{number:02}"), content.clone()));
    equal.commit(batch).await.unwrap();
    let other = imported(exported(&equal).await.0).await.unwrap();
    assert_eq!(other.stats().await.unwrap().value_bytes, 30 << 20);
}

#[tokio::test]
async fn failed_write_is_reported_and_leaves_no_end() {
    struct Full(Kept, usize);
    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.0.0.lock().unwrap().len() > self.1 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.0.write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let store = filled().await;
    let whole = exported(&store).await.0.len();
    // The last entry is the last 2,048 bytes, including the end of the tar.
    for room in (0..whole - 2_100).step_by(1_000) {
        let kept = Kept::default();
        let error = export(&store, Full(kept.clone(), room), &ExportOptions::new(), |_| {}).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.message().contains("disk"), "{error}");
        let written = kept.0.lock().unwrap().clone();
        assert_eq!(refused(written).await.kind(), ErrorKind::Corrupt);
    }
}

/// A namespace, a key, a body with its repetitions, and an expiry in seconds.
type Written = (String, String, Vec<u8>, usize, Option<u32>);

/// An archive restores any store exactly, also with many pages.
#[test]
fn archive_of_any_store_restores_it() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut runner = TestRunner::new(Config { cases: 64, ..Config::default() });
    let puts = prop::collection::vec(
        ("[a-c]{1,2}", "\\PC{1,8}", prop::collection::vec(any::<u8>(), 0..40), 0..3_000_usize, any::<Option<u32>>()),
        0..60,
    );
    let property = |puts: Vec<Written>| {
        runtime.block_on(async {
            let clock = treehold::Clock::from_fn(|| Timestamp::from_microsecond(1_700_000_000_123_456).unwrap());
            let (store, other) = (MemoryStore::with_clock(clock.clone()), MemoryStore::with_clock(clock));
            for (namespace, key, value, repeated, seconds) in puts {
                let value = value.repeat(repeated / 8);
                let namespace = space(&namespace);
                let batch = match seconds {
                    Some(seconds) => Batch::new().put_for(&namespace, key, value, Duration::from_secs(seconds.into())),
                    None => Batch::new().put_with_meta(&namespace, key, value[..value.len().min(50)].to_vec(), value),
                };
                store.commit(batch).await.unwrap();
            }
            let (archive, report) = exported(&store).await;
            let imported = import(&other, Cursor::new(archive), &ImportOptions::new(), |_| {}).await.unwrap();
            assert_eq!(imported, report);
            assert_eq!(rows(&other).await, rows(&store).await);
        });
        Ok(())
    };
    runner.run(&puts, property).unwrap();
}
