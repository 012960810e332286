//! Random archives imported into an empty store: invalid ones fail with an error, and valid ones export unchanged.
//!
//! Archives are random bytes, or forged exports of small stores: entries are changed, and the headers rewritten,
//! because checksums would reject blind changes.

#![no_main]

use arbitrary::{Arbitrary, Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{Cursor, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use treehold_core::{Clock, ErrorKind, Namespace};
use treehold_store::{
    ARCHIVE_FORMAT, ArchiveReport, Batch, ExportOptions, ImportOptions, MemoryStore, NamespacesOptions, ScanOptions, Store, StoreExt,
    export, import,
};

/// The memory that an import may use beyond a multiple of the archive's size: buffers and one page.
const MEMORY_BYTES_MAX: usize = 16 << 20;

const ROWS_MAX: usize = 12;
const CHANGES_MAX: usize = 8;

/// The end of restorable versions; no store counts that far by itself.
const VERSION_END: u64 = 1 << 52;

/// The size of a tar block.
const BLOCK: usize = 512;

const NAMESPACES: [&str; 6] = ["a", "a/b", "a/b%2F", "ab", "é", "z"];

const NAMES: [&str; 10] = [
    "treehold.json",
    "end.json",
    "items/00000001.jsonl",
    "items/00000002.jsonl",
    "items/../00000001.jsonl",
    "blobs/",
    "blobs/0000000000000000000000000000000000000000000000000000000000000000",
    "../../etc/passwd",
    "",
    "\u{85}\"\n",
];

const PIECES: [&str; 24] = [
    "{",
    "}",
    "[",
    "]",
    "\"",
    ",",
    ":",
    "\n",
    "0",
    "1",
    "-1",
    "1e9",
    "null",
    "\\u0000",
    "\\ud800",
    "%2F",
    "/",
    "18446744073709551615",
    "4503599627370496",
    "9999-12-31T23:59:59.999999Z",
    ",\"value\":\"x\"",
    ",\"blob\":\"",
    "\u{85}",
    "{\"format\":2}",
];

/// Tracks allocated bytes and their maximum.
struct Counted;

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: delegates to the system allocator and only adds two counters.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        MOST.fetch_max(NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counted = Counted;

thread_local! {
    static RUNTIME: Runtime = Builder::new_current_thread().build().expect("a runtime");
}

fuzz_target!(|input: &[u8]| {
    let Some((kind, input)) = input.split_first() else { return };
    RUNTIME.with(|runtime| {
        runtime.block_on(async {
            let archive = match kind {
                b'a' => input.to_vec(),
                _ => {
                    let mut input = Unstructured::new(input);
                    let Ok(forgery) = Forgery::arbitrary(&mut input) else { return };
                    forgery.archive().await
                }
            };
            check(archive).await;
        });
    });
});

async fn check(archive: Vec<u8>) {
    let length = archive.len();
    let is_of_this_format = is_of_this_format(&archive);
    let before = NOW.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    let store = fresh();
    let imported = import(&store, Cursor::new(archive), &ImportOptions::new(), |_| {}).await;
    let taken = MOST.load(Ordering::Relaxed).saturating_sub(before);
    assert!(taken <= MEMORY_BYTES_MAX + 64 * length, "{taken} bytes of memory were used for an archive of {length}");
    let report = match imported {
        Ok(report) => report,
        Err(error) => {
            assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::TooLarge | ErrorKind::Unsupported), "{error:?}");
            return;
        }
    };
    let stats = store.stats().await.expect("a store in memory reports its size");
    assert!(stats.items <= report.rows && stats.value_bytes <= report.value_bytes);
    let (archive, exported) = exported(&store).await;
    // Expired rows are gone. In a former format, the digest is over the namespaces that the rows had then.
    assert!(exported.rows < report.rows || !is_of_this_format || exported.digest == report.digest);
    assert!(exported.version >= report.version);
    if exported.version.number() >= VERSION_END {
        return;
    }
    let other = fresh();
    let again = import(&other, Cursor::new(archive), &ImportOptions::new(), |_| {}).await.expect("its own export is accepted");
    assert_eq!(again, exported);
    assert_eq!(rows(&other).await, rows(&store).await);
}

/// Returns whether the head of an archive, which is its first entry, names the present format.
fn is_of_this_format(archive: &[u8]) -> bool {
    let head = String::from_utf8_lossy(&archive[archive.len().min(BLOCK)..archive.len().min(2 * BLOCK)]).into_owned();
    let after = head.split_once("\"format\":").map_or("", |(_, after)| after);
    after.trim_start().starts_with(&format!("{ARCHIVE_FORMAT},"))
}

/// The clock stands still, so that nothing expires between two reads.
fn fresh() -> MemoryStore {
    MemoryStore::with_clock(Clock::from_fn(|| "2026-01-01T00:00:00Z".parse().expect("a time")))
}

async fn rows(store: &MemoryStore) -> Vec<String> {
    let mut all = Vec::new();
    for namespace in store.namespaces(NamespacesOptions::new().with_limit(usize::MAX)).await.expect("listed").namespaces {
        let options = ScanOptions::new().with_values(true).with_limit(usize::MAX).with_bytes_max(usize::MAX);
        let page = store.scan(&namespace, options).await.expect("scanned");
        all.extend(page.entries.iter().map(|entry| format!("{namespace} {entry:?}")));
    }
    all
}

#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("the lock is not poisoned").write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

async fn exported(store: &MemoryStore) -> (Vec<u8>, ArchiveReport) {
    let kept = Kept::default();
    let report = export(store, kept.clone(), &ExportOptions::new(), |_| {}).await.expect("a store in memory is exported");
    let bytes = std::mem::take(&mut *kept.0.lock().expect("the lock is not poisoned"));
    (bytes, report)
}

/// A modified export of a store.
struct Forgery {
    rows: Vec<Row>,
    changes: Vec<Change>,
}

impl<'a> Arbitrary<'a> for Forgery {
    fn arbitrary(input: &mut Unstructured<'a>) -> Result<Self> {
        let rows = (0..input.int_in_range(0..=ROWS_MAX)?).map(|_| input.arbitrary()).collect::<Result<_>>()?;
        let mut changes = Vec::new();
        while !input.is_empty() && changes.len() < CHANGES_MAX {
            changes.push(input.arbitrary()?);
        }
        Ok(Self { rows, changes })
    }
}

#[derive(Debug, Arbitrary)]
struct Row {
    namespace: u8,
    key: String,
    meta: Vec<u8>,
    byte: u8,
    size: u16,
    ends_in: Option<u16>,
}

/// A modification of an archive. Indices wrap around.
#[derive(Debug, Arbitrary)]
enum Change {
    Remove(u8),
    Repeat(u8),
    Swap(u8, u8),
    Rename(u8, u8),
    Kind(u8, u8),
    Declare(u8, u64),
    Truncate(u8, u16),
    Flip(u8, u16, u8),
    Insert(u8, u16, u8),
    Replace(u8, u16, u8),
    RepeatLine(u8, u8),
    Cut(u16),
    FlipByte(u16, u8),
}

struct Entry {
    name: Vec<u8>,
    kind: u8,
    declared: Option<u64>,
    content: Vec<u8>,
}

impl Forgery {
    async fn archive(&self) -> Vec<u8> {
        let store = fresh();
        for row in &self.rows {
            let namespace = Namespace::parse(NAMESPACES[usize::from(row.namespace) % NAMESPACES.len()]).expect("a legal namespace");
            let ends_in = row.ends_in.map(|seconds| Duration::from_secs(seconds.into()));
            let batch = Batch::new().put_item(&namespace, &row.key, row.meta.clone(), vec![row.byte; row.size.into()], ends_in);
            // A key may be empty.
            let _ = store.commit(batch).await;
        }
        let mut entries = entries(&exported(&store).await.0);
        let mut at_the_end = Vec::new();
        for change in &self.changes {
            match change {
                Change::Cut(..) | Change::FlipByte(..) => at_the_end.push(change),
                _ => change.apply(&mut entries),
            }
        }
        let mut bytes = written(&entries);
        for change in at_the_end {
            match change {
                Change::Cut(at) => bytes.truncate(place(*at, bytes.len())),
                Change::FlipByte(at, by) => {
                    let at = place(*at, bytes.len());
                    bytes.get_mut(at).into_iter().for_each(|byte| *byte ^= by);
                }
                _ => {}
            }
        }
        bytes
    }
}

impl Change {
    fn apply(&self, entries: &mut Vec<Entry>) {
        if entries.is_empty() {
            return;
        }
        let at = |index: &u8| usize::from(*index) % entries.len();
        match self {
            Self::Remove(index) => drop(entries.remove(at(index))),
            Self::Repeat(index) => {
                let Entry { name, kind, declared, content } = &entries[at(index)];
                let twin = Entry { name: name.clone(), kind: *kind, declared: *declared, content: content.clone() };
                entries.insert(at(index), twin);
            }
            Self::Swap(one, other) => {
                let (one, other) = (at(one), at(other));
                entries.swap(one, other);
            }
            Self::Rename(index, name) => {
                let index = at(index);
                entries[index].name = NAMES[usize::from(*name) % NAMES.len()].into();
            }
            Self::Kind(index, kind) => {
                let index = at(index);
                entries[index].kind = *kind;
            }
            Self::Declare(index, size) => {
                let index = at(index);
                entries[index].declared = Some(*size);
            }
            Self::Truncate(index, length) => {
                let index = at(index);
                let length = place(*length, entries[index].content.len());
                entries[index].content.truncate(length);
            }
            Self::Flip(index, offset, by) => {
                let index = at(index);
                let offset = place(*offset, entries[index].content.len());
                entries[index].content.get_mut(offset).into_iter().for_each(|byte| *byte ^= by);
            }
            Self::Insert(index, offset, piece) => {
                let index = at(index);
                let offset = place(*offset, entries[index].content.len());
                entries[index].content.splice(offset..offset, PIECES[usize::from(*piece) % PIECES.len()].bytes());
            }
            // The number at the offset, or the next one after it.
            Self::Replace(index, offset, piece) => {
                let index = at(index);
                let content = &mut entries[index].content;
                let offset = place(*offset, content.len());
                let Some(start) = content[offset..].iter().position(u8::is_ascii_digit).map(|found| offset + found) else { return };
                let length = content[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                content.splice(start..start + length, PIECES[usize::from(*piece) % PIECES.len()].bytes());
            }
            Self::RepeatLine(index, line) => {
                let index = at(index);
                let content = &mut entries[index].content;
                let lines: Vec<Vec<u8>> = content.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
                if !lines.is_empty() {
                    content.extend_from_slice(&lines[usize::from(*line) % lines.len()]);
                }
            }
            Self::Cut(..) | Self::FlipByte(..) => {}
        }
    }
}

/// Maps an offset into the available length, including its end.
fn place(offset: u16, length: usize) -> usize {
    usize::from(offset) * (length + 1) / (1 << 16)
}

/// Splits an export into its entries.
fn entries(mut archive: &[u8]) -> Vec<Entry> {
    let mut entries = Vec::new();
    while archive.len() >= BLOCK && archive[0] != 0 {
        let (header, rest) = archive.split_at(BLOCK);
        let name = header[..100].split(|byte| *byte == 0).next().unwrap_or_default().to_vec();
        let size = std::str::from_utf8(&header[124..135]).expect("octal digits");
        let size = usize::from_str_radix(size, 8).expect("octal digits");
        entries.push(Entry { name, kind: b'0', declared: None, content: rest[..size].to_vec() });
        archive = &rest[size.next_multiple_of(BLOCK)..];
    }
    entries
}

/// Writes an archive with valid headers.
fn written(entries: &[Entry]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for Entry { name, kind, declared, content } in entries {
        let size = declared.unwrap_or(content.len() as u64);
        let mut header = [0; BLOCK];
        header[..name.len()].copy_from_slice(name);
        header[100..107].copy_from_slice(b"0000600");
        if size < 1 << 33 {
            header[124..136].copy_from_slice(format!("{size:011o}\0").as_bytes());
        } else {
            header[124] = 0x80;
            header[128..136].copy_from_slice(&size.to_be_bytes());
        }
        header[148..156].fill(b' ');
        header[156] = *kind;
        header[257..265].copy_from_slice(b"ustar\x0000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        bytes.extend_from_slice(&header);
        bytes.extend_from_slice(content);
        bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
    }
    bytes.resize(bytes.len() + 2 * BLOCK, 0);
    bytes
}
