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
//! shown must be there, whole. `store_powerloss show ENGINE DIR` opens a store and prints `shown N` for each batch it
//! reads, then `ended`, and waits for a line on standard input.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

use bytes::Bytes;
use jiff::Timestamp;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use treehold::ops::Version;
use treehold::store::{Batch, Item, Namespace, Store, StoreExt};

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

fn open(engine: &str, directory: &str) -> treehold::Result<Arc<dyn Store>> {
    let directory = Path::new(directory);
    Ok(match engine {
        #[cfg(feature = "sqlite")]
        "sqlite" => Arc::new(treehold::store::SqliteStore::open(directory.join("store.db"))?),
        #[cfg(feature = "sled")]
        "sled" => Arc::new(treehold::store::SledStore::open(directory.join("store.sled"))?),
        _ => panic!("no engine `{engine}` in this build"),
    })
}

async fn write(engine: &str, directory: &str, seed: u64, batches: u64) {
    std::fs::create_dir_all(directory).unwrap();
    let store = open(engine, directory).unwrap();
    let rows = Namespace::new(["rows"]).unwrap();
    for number in 1..=batches {
        store.commit(batch(&rows, number, seed)).await.unwrap();
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
    let store = match open(engine, directory) {
        Ok(store) => store,
        Err(error) => return say(format_args!("not opened {error:?}")),
    };
    say(format_args!("opened"));
    std::io::stdin().read_line(&mut String::new()).unwrap();
    let rows = Namespace::new(["rows"]).unwrap();
    let first = first_free(&*store, &rows).await.unwrap_or(1);
    for number in first..first + batches {
        match store.commit(batch(&rows, number, seed)).await {
            Ok(_) => say(format_args!("acknowledged {number}")),
            Err(error) => {
                say(format_args!("failed {number} {error:?}"));
                for slot in 0..SLOTS {
                    if let Ok(Some(item)) = store.get(&rows, &mark(slot)).await {
                        say(format_args!("shown {}", number_of_mark(&item)));
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
async fn first_free(store: &dyn Store, rows: &Namespace) -> treehold::Result<u64> {
    let mut first = 1;
    for slot in 0..SLOTS {
        if let Some(item) = store.get(rows, &mark(slot)).await? {
            first = first.max(number_of_mark(&item) + 1);
        }
    }
    Ok(first)
}

fn number_of_mark(item: &Item) -> u64 {
    item.value[..].try_into().map_or(u64::MAX, u64::from_le_bytes)
}

async fn show(engine: &str, directory: &str) {
    let store = open(engine, directory).unwrap();
    let rows = Namespace::new(["rows"]).unwrap();
    for slot in 0..SLOTS {
        if let Some(item) = store.get(&rows, &mark(slot)).await.unwrap() {
            println!("shown {}", number_of_mark(&item));
        }
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
    let store = open(engine, directory)?;
    let rows = Namespace::new(["rows"]).unwrap();
    let (mut lost, mut torn) = (0, 0);
    for slot in 0..SLOTS {
        let mark = store.get(&rows, &mark(slot)).await?;
        let number = mark.map(|item| number_of_mark(&item)).unwrap_or_default();
        let left = (number != 0 && !matches!(number % 6, 3 | 4)).then_some(number);
        let mut is_torn = false;
        for row in ROWS {
            let stored = store.get(&rows, &key(slot, row)).await?;
            is_torn |= stored.map(|item| number_of(&item.value)) != left.map(Some);
        }
        torn += u64::from(is_torn);
        lost += u64::from(number < newest(slot));
    }
    if let Some(damage) = store.check().await?.into_iter().next() {
        return Err(damage);
    }
    // The store must accept new commits.
    store.commit(Batch::new().put(&rows, "after", "the loss")).await?;
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
