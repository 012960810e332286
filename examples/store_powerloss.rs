//! What a simulation of power loss drives: it writes durable batches, and checks what is left of them.
//!
//! `store_powerloss writer ENGINE DIR SEED BATCHES` commits batches of a mark and three rows that move together (most put the
//! rows, others restore them, or delete them by key or by prefix) and prints the number of each once it is acknowledged. `store_powerloss check ENGINE DIR ACKED` opens what the loss left and prints
//! `OK lost=N torn=N`: acknowledged batches that are missing, and batches that are there in part. The harness records the
//! system calls of the first and rebuilds from them what a disk may hold at a moment, where only `fsync` and its kin make
//! bytes stable. `VAL` sets the size of a body; without it every seventh has 64 KiB and the others 4 KiB.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

use bytes::Bytes;
use jiff::Timestamp;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use stratafs::ops::Version;
use stratafs::store::{Batch, Item, Namespace, Store};

/// Rows are overwritten after this many batches.
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
        _ => panic!("usage: store_powerloss writer ENGINE DIR SEED BATCHES | check ENGINE DIR ACKED"),
    }
}

fn open(engine: &str, directory: &str) -> stratafs::Result<Arc<dyn Store>> {
    let directory = Path::new(directory);
    Ok(match engine {
        #[cfg(feature = "sqlite")]
        "sqlite" => Arc::new(stratafs::store::SqliteStore::open(directory.join("store.db"))?),
        #[cfg(feature = "sled")]
        "sled" => Arc::new(stratafs::store::SledStore::open(directory.join("store.sled"))?),
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

/// Makes a batch: the mark of its slot says which it is, and the three rows are put, restored or removed.
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

async fn check(engine: &str, directory: &str, acknowledged: u64) -> stratafs::Result<(u64, u64)> {
    let store = open(engine, directory)?;
    let rows = Namespace::new(["rows"]).unwrap();
    let (mut lost, mut torn) = (0, 0);
    for slot in 0..SLOTS {
        let mark = store.get(&rows, &mark(slot)).await?;
        let number = mark.map(|item| item.value[..].try_into().map_or(u64::MAX, u64::from_le_bytes)).unwrap_or_default();
        let left = (number != 0 && !matches!(number % 6, 3 | 4)).then_some(number);
        let mut is_torn = false;
        for row in ROWS {
            let stored = store.get(&rows, &key(slot, row)).await?;
            is_torn |= stored.map(|item| number_of(&item.value)) != left.map(Some);
        }
        let newest = (1..=acknowledged).rev().find(|number| number % SLOTS == slot).unwrap_or_default();
        torn += u64::from(is_torn);
        lost += u64::from(number < newest);
    }
    if let Some(damage) = store.check().await?.into_iter().next() {
        return Err(damage);
    }
    // The store goes on from here.
    store.commit(Batch::new().put(&rows, "after", "the loss")).await?;
    Ok((lost, torn))
}

fn mark(slot: u64) -> String {
    format!("{slot:02}")
}

fn key(slot: u64, row: &str) -> String {
    format!("{slot:02}/{row}")
}

/// A body that says which batch it is of, and which nothing else resembles.
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

/// Returns the batch that a body is of; none when it is not a body that was written.
fn number_of(stored: &[u8]) -> Option<u64> {
    let number = u64::from_le_bytes(stored.get(..8)?.try_into().ok()?);
    let seed = u64::from_le_bytes(stored.get(8..16)?.try_into().ok()?);
    (body(number, seed) == stored).then_some(number)
}
