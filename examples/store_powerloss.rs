//! The program under test in power loss simulations: it writes durable batches, and checks what is left of them.
//!
//! `store_powerloss writer ENGINE DIR SEED BATCHES` commits batches of a mark and three rows that change together (most
//! put the rows, others restore them, or delete them by key or prefix) and prints each batch's number once it is
//! acknowledged. `store_powerloss check ENGINE DIR ACKED` opens what is left and prints `OK lost=N torn=N`:
//! acknowledged batches that are missing, and batches that are only partly there. The harness records the writer's
//! system calls, and reconstructs possible disk states at any moment, assuming that only `fsync` and related calls make
//! bytes durable. `VAL` sets the size of a body; by default every seventh has 64 KiB and the others 4 KiB.
//!
//! `store_powerloss endure ENGINE DIR SEED BATCHES` continues after failed commits. `scripts/faults.sh` fails and kills
//! it at its system calls. It prints one line per event: `opened` (then it waits for a line on standard input),
//! `acknowledged N`, `failed N`, and `shown N` for the batch that a read returns after a failure. `store_powerloss
//! account ENGINE DIR FILE` opens what is left and compares it with those lines: every batch that was acknowledged or
//! shown must be there, whole. `store_powerloss show ENGINE DIR` opens a store and reads all of it. Then it prints
//! `shown N` for each batch and `ended`, and waits for a line on standard input. It closes no file, which would sync it.
//!
//! ENGINE is `sqlite`, `sqlite-directory` or `sled`. In `sqlite-directory` the batches are spread over the files of eight
//! partitions, of which one is open at a time. With `-past`, as in `sqlite-past`, the rows are files of a tree that keeps
//! their past, and what is left of the past must be whole too: each content that the log of a file calls kept can be
//! read, and is that of an earlier batch.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

use bytes::Bytes;
use jiff::Timestamp;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use treehold::backend::HistoryPolicy;
use treehold::ops::{ApplyOptions, Change, Moment, ReadOptions, Version, WriteMode};
use treehold::store::{Batch, Item, Namespace, Partition, Store, StoreExt};
use treehold::{Backend, ErrorKind, StoreBackend, VfsPathBuf};

/// The number of slots; later batches overwrite earlier ones.
const SLOTS: u64 = 16;

const ROWS: [&str; 3] = ["x", "y", "z"];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["writer", engine, directory, seed, batches] => {
            runtime.block_on(write(engine, directory, seed.parse().unwrap(), batches.parse().unwrap()));
        }
        ["check", engine, directory, acknowledged] => match runtime.block_on(check(engine, directory, acknowledged.parse().unwrap())) {
            Ok((lost, torn)) => println!("OK lost={lost} torn={torn}"),
            Err(error) => println!("ERR {error:?}"),
        },
        ["endure", engine, directory, seed, batches] => {
            runtime.block_on(endure(engine, directory, seed.parse().unwrap(), batches.parse().unwrap()));
        }
        ["show", engine, directory] => runtime.block_on(show(engine, directory)),
        ["account", engine, directory, lines] => {
            let lines = std::fs::read_to_string(lines).unwrap();
            match runtime.block_on(account(engine, directory, &lines)) {
                Ok((lost, torn)) => println!("OK lost={lost} torn={torn}"),
                Err(error) => println!("ERR {error:?}"),
            }
        }
        _ => panic!(
            "usage: store_powerloss writer|endure ENGINE DIR SEED BATCHES | check ENGINE DIR ACKED | show ENGINE DIR | account ENGINE DIR FILE"
        ),
    }
}

/// What is written and checked: rows of a store, or files of a tree with their past.
struct Subject {
    store: Arc<dyn Store>,
    /// Where the slots are. Each place has an equal share of them.
    places: Vec<Place>,
}

/// A namespace, and the tree in it.
struct Place {
    rows: Namespace,
    tree: Option<StoreBackend>,
}

impl Subject {
    /// Opens a store that keeps one file of a directory open.
    fn open(engine: &str, directory: &str) -> treehold::Result<Self> {
        Self::open_with(engine, directory, 1)
    }

    /// `open_max` is how many files of a directory stay open.
    #[cfg_attr(not(feature = "sqlite"), expect(unused_variables, reason = "no other store has several files"))]
    fn open_with(engine: &str, directory: &str, open_max: usize) -> treehold::Result<Self> {
        let directory = Path::new(directory);
        let (name, keeps_past) = engine.strip_suffix("-past").map_or((engine, false), |name| (name, true));
        let store: Arc<dyn Store> = match name {
            #[cfg(feature = "sqlite")]
            "sqlite" => Arc::new(treehold::store::SqliteStore::open(directory.join("store.db"))?),
            #[cfg(feature = "sqlite")]
            "sqlite-directory" => {
                let options = treehold::store::SqliteDirectoryOptions::new(directory.join("store")).with_open_max(open_max);
                Arc::new(treehold::store::SqliteDirectory::open_with(options)?)
            }
            #[cfg(feature = "sled")]
            "sled" => Arc::new(treehold::store::SledStore::open(directory.join("store.sled"))?),
            _ => panic!("no engine `{name}` in this build"),
        };
        let place = |rows: Namespace| {
            let policy = HistoryPolicy::new().with_keep_last(3);
            let tree = keeps_past.then(|| StoreBackend::new(store.clone(), rows.clone()).with_history(policy));
            Place { rows, tree }
        };
        let places = namespaces(name)?.into_iter().map(place).collect();
        Ok(Self { store, places })
    }

    fn place(&self, slot: u64) -> &Place {
        &self.places[(slot * self.places.len() as u64 / SLOTS) as usize]
    }

    async fn commit(&self, number: u64, seed: u64) -> treehold::Result<()> {
        let slot = number % SLOTS;
        let Place { rows, tree } = self.place(slot);
        match tree {
            Some(tree) => {
                let has_rows = self.get(slot, &key(slot, ROWS[0])).await?.is_some();
                tree.apply(&changes(number, seed, has_rows), &ApplyOptions::new()).await.map(drop)
            }
            None => self.store.commit(batch(rows, number, seed)).await.map(drop),
        }
    }

    /// Reads what is at a key of a slot.
    async fn get(&self, slot: u64, key: &str) -> treehold::Result<Option<Bytes>> {
        let Place { rows, tree } = self.place(slot);
        match tree {
            Some(tree) => present(tree.read(&file(key), &ReadOptions::new()).await.map(|read| read.content)),
            None => Ok(self.store.get(rows, key).await?.map(|item| item.value)),
        }
    }

    /// Returns the number of the batch that a slot shows.
    async fn number(&self, slot: u64) -> treehold::Result<Option<u64>> {
        Ok(self.get(slot, &mark(slot)).await?.map(|mark| mark[..].try_into().map_or(u64::MAX, u64::from_le_bytes)))
    }

    /// Returns whether the past of a slot is whole: every content that is kept can be read, and is older than the one after it.
    async fn has_whole_past(&self, slot: u64, newest: u64) -> treehold::Result<bool> {
        let Some(tree) = &self.place(slot).tree else { return Ok(true) };
        for row in ROWS {
            let path = file(&key(slot, row));
            let mut last = newest + 1;
            for revision in present(tree.log(&path).await)?.unwrap_or_default() {
                let past = tree.at(Moment::Number(revision.number))?;
                let content = present(past.read(&path, &ReadOptions::new()).await.map(|read| read.content));
                match (revision.version, content) {
                    (None, Ok(None)) => {}
                    (Some(_), Ok(Some(content))) => match number_of(&content).filter(|number| *number < last && number % SLOTS == slot) {
                        Some(number) => last = number,
                        None => return Ok(false),
                    },
                    (Some(_), Err(_)) if !revision.is_kept => {}
                    _ => return Ok(false),
                }
            }
        }
        Ok(true)
    }
}

/// Returns the namespaces of an engine's rows. In a directory, they are in partitions of tenants and of users, whose files have names of
/// every kind: plain, escaped and replaced by a hash.
fn namespaces(engine: &str) -> treehold::Result<Vec<Namespace>> {
    if engine != "sqlite-directory" {
        return Ok(vec![Namespace::new(["rows"])?]);
    }
    let long = "long".repeat(30);
    let long = long.as_str();
    let owners: [&[&str]; 8] =
        [&["acme", "ada"], &[long, "Ada"], &["globex"], &["acme", long], &["acme"], &["globex", "ada"], &[long], &["acme", "bob"]];
    owners.into_iter().map(|owner| Partition::new(owner)?.namespace(["rows"])).collect()
}

/// Returns `None` for what does not exist.
fn present<T>(found: treehold::Result<T>) -> treehold::Result<Option<T>> {
    match found {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        found => found.map(Some),
    }
}

fn file(key: &str) -> VfsPathBuf {
    // The name of a slot's directory is not that of its mark.
    let name = if key.contains('/') { format!("/rows/{key}") } else { format!("/marks/{key}") };
    VfsPathBuf::parse(name).unwrap()
}

/// Makes the changes of a batch to files: those of `batch`, with a write instead of a restored row. Files that are not there cannot be
/// removed.
fn changes(number: u64, seed: u64, has_rows: bool) -> Vec<Change> {
    let slot = number % SLOTS;
    let write = |key: &str, content: Bytes| Change::Write { path: file(key), content, mode: WriteMode::Overwrite };
    let delete = |key: &str| Change::Delete { path: file(key), recursive: false, expect: None };
    let mut changes = vec![write(&mark(slot), number.to_le_bytes().to_vec().into())];
    match number % 6 {
        3 | 4 if !has_rows => {}
        3 => changes.extend(ROWS.map(|row| delete(&key(slot, row)))),
        4 => changes.push(Change::Delete { path: file(&key(slot, ROWS[0])).parent().unwrap().to_owned(), recursive: true, expect: None }),
        _ => changes.extend(ROWS.map(|row| write(&key(slot, row), body(number, seed)))),
    }
    changes
}

async fn write(engine: &str, directory: &str, seed: u64, batches: u64) {
    std::fs::create_dir_all(directory).unwrap();
    let subject = Subject::open(engine, directory).unwrap();
    for number in 1..=batches {
        subject.commit(number, seed).await.unwrap();
        let mut out = std::io::stdout();
        out.write_all(format!("{number}\n").as_bytes()).unwrap();
        out.flush().unwrap();
    }
}

/// Makes a batch: its slot's mark identifies it, and the three rows are put, restored or removed.
fn batch(rows: &Namespace, number: u64, seed: u64) -> Batch {
    let slot = number % SLOTS;
    let batch = Batch::new().put(rows, mark(slot), number.to_le_bytes().to_vec());
    let now = Timestamp::UNIX_EPOCH;
    match number % 6 {
        3 => ROWS.iter().fold(batch, |batch, row| batch.delete(rows, key(slot, row))),
        4 => batch.delete_prefix(rows, format!("{slot:02}/")),
        5 => ROWS.iter().fold(batch, |batch, row| {
            batch.restore(rows, Item::new(key(slot, row), Bytes::new(), body(number, seed), Version::new(100 * number), now, now))
        }),
        _ => ROWS.iter().fold(batch, |batch, row| batch.put(rows, key(slot, row), body(number, seed))),
    }
}

/// Prints a line for the harness.
fn say(line: std::fmt::Arguments<'_>) {
    let mut out = std::io::stdout();
    // If even this fails, the batch was not acknowledged.
    if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
        std::process::exit(3);
    }
}

async fn endure(engine: &str, directory: &str, seed: u64, batches: u64) {
    std::fs::create_dir_all(directory).unwrap();
    let subject = match Subject::open(engine, directory) {
        Ok(subject) => subject,
        Err(error) => return say(format_args!("not opened {error:?}")),
    };
    say(format_args!("opened"));
    std::io::stdin().read_line(&mut String::new()).unwrap();
    // A read may be what fails. Numbers that go back would look like a torn past.
    let first = match first_free(&subject).await {
        Ok(first) => Ok(first),
        Err(_) => first_free(&subject).await,
    };
    let first = match first {
        Ok(first) => first,
        Err(error) => return say(format_args!("not read {error:?}")),
    };
    for number in first..first + batches {
        match subject.commit(number, seed).await {
            Ok(()) => say(format_args!("acknowledged {number}")),
            Err(error) => {
                say(format_args!("failed {number} {error:?}"));
                for slot in 0..SLOTS {
                    if let Ok(Some(number)) = subject.number(slot).await {
                        say(format_args!("shown {number}"));
                    }
                }
            }
        }
    }
    say(format_args!("ended"));
    // Half of the runs end without closing the store.
    if seed.is_multiple_of(2) {
        std::process::exit(0);
    }
}

/// Returns the first number above those of all batches that are there.
async fn first_free(subject: &Subject) -> treehold::Result<u64> {
    let mut first = 1;
    for slot in 0..SLOTS {
        if let Some(number) = subject.number(slot).await? {
            first = first.max(number + 1);
        }
    }
    Ok(first)
}

async fn show(engine: &str, directory: &str) {
    let subject = Subject::open_with(engine, directory, SLOTS as usize).unwrap();
    let mut shown = Vec::new();
    for slot in 0..SLOTS {
        shown.extend(subject.number(slot).await.unwrap());
    }
    for number in shown {
        println!("shown {number}");
    }
    println!("ended");
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

async fn account(engine: &str, directory: &str, lines: &str) -> treehold::Result<(u64, u64)> {
    let numbers = |word: &str| -> Vec<u64> {
        let of = lines.lines().filter_map(|line| line.strip_prefix(word)?.split_whitespace().next()?.parse().ok());
        of.collect()
    };
    let promised = [numbers("acknowledged "), numbers("shown ")].concat();
    held(engine, directory, |slot| promised.iter().copied().filter(|number| number % SLOTS == slot).max().unwrap_or_default()).await
}

async fn check(engine: &str, directory: &str, acknowledged: u64) -> treehold::Result<(u64, u64)> {
    let newest = |slot| (1..=acknowledged).rev().find(|number| number % SLOTS == slot).unwrap_or_default();
    held(engine, directory, newest).await
}

/// Opens a store. Counts the slots with an older batch than the newest promised one, and those with only a part of one.
async fn held(engine: &str, directory: &str, newest: impl Fn(u64) -> u64) -> treehold::Result<(u64, u64)> {
    let subject = Subject::open(engine, directory)?;
    let (mut lost, mut torn) = (0, 0);
    for slot in 0..SLOTS {
        let number = subject.number(slot).await?.unwrap_or_default();
        let left = (number != 0 && !matches!(number % 6, 3 | 4)).then_some(number);
        let mut is_torn = false;
        for row in ROWS {
            let stored = subject.get(slot, &key(slot, row)).await?;
            is_torn |= stored.map(|content| number_of(&content)) != left.map(Some);
        }
        is_torn |= !subject.has_whole_past(slot, number).await?;
        torn += u64::from(is_torn);
        lost += u64::from(number < newest(slot));
    }
    if let Some(damage) = subject.store.check().await?.into_iter().next() {
        return Err(damage);
    }
    // Every partition must accept new commits.
    for Place { rows, .. } in &subject.places {
        subject.store.commit(Batch::new().put(rows, "after", "the loss")).await?;
    }
    Ok((lost, torn))
}

fn mark(slot: u64) -> String {
    format!("{slot:02}")
}

fn key(slot: u64, row: &str) -> String {
    format!("{slot:02}/{row}")
}

/// A body that identifies its batch and resembles nothing else.
fn body(number: u64, seed: u64) -> Bytes {
    let size = match std::env::var("VAL") {
        Ok(size) => size.parse().unwrap(),
        Err(_) if number.is_multiple_of(7) => 65_536,
        Err(_) => 4_096,
    };
    let mut body = [number.to_le_bytes(), seed.to_le_bytes()].concat();
    let mut state = number ^ seed.rotate_left(32) ^ 0x9E37_79B9_7F4A_7C15;
    while body.len() < size {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        body.extend(state.to_le_bytes());
    }
    body.into()
}

/// Returns the batch that a body belongs to; `None` if it was never written.
fn number_of(stored: &[u8]) -> Option<u64> {
    let number = u64::from_le_bytes(stored.get(..8)?.try_into().ok()?);
    let seed = u64::from_le_bytes(stored.get(8..16)?.try_into().ok()?);
    (body(number, seed) == stored).then_some(number)
}
