//! Killed processes whose tool calls have rows of an embedder. The test binary starts itself; the environment selects its role.

#![allow(clippy::print_stdout, reason = "child processes report what was answered")]

use super::{scope, write};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use treehold::checkpoint::StoreCheckpointer;
use treehold::session::{CallNotes, Threads};
use treehold::store::{Batch, Outbox, SqliteStore};
use treehold::{BackendExt, Namespace, Store, StoreBackend, Workspace};

const PATH: &str = "TREEHOLD_TEST_OUTBOX";
const FIRST: &str = "TREEHOLD_TEST_OUTBOX_FIRST";
const ROUNDS: usize = 8;

fn journal() -> Namespace {
    Namespace::parse("acme/ada/journal").unwrap()
}

fn opened(path: &Path) -> (Arc<dyn Store>, Threads) {
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(path).unwrap());
    let rows = store.clone();
    let workspace = Workspace::builder()
        .mount("/memories", move |_| Ok(Arc::new(StoreBackend::new(rows.clone(), Namespace::parse("acme/ada/memories")?))))
        .unwrap()
        .checkpointer(StoreCheckpointer::new(store.clone()))
        .build();
    (store, Threads::new(workspace))
}

/// Returns the file that call `number` writes: in the state, or in rows of the store.
fn file(number: usize) -> String {
    format!("{}/{number}", if number.is_multiple_of(3) { "/memories" } else { "" })
}

/// Calls tools forever. The journal has a row for each call.
async fn call_tools(path: &Path, first: usize) {
    let (store, threads) = opened(path);
    for number in first.. {
        let mut outbox = Outbox::new();
        outbox.push_rows(store.clone(), Batch::new().put(&journal(), number.to_string(), "done").writes);
        let output = threads.call_with(&scope("t"), write(&file(number), "x"), CallNotes::new().with_extension(outbox)).await;
        assert!(!output.is_error, "{}", output.text);
        println!("answered {number}");
        std::io::stdout().flush().unwrap();
    }
}

/// Checks that each call up to the first missing one has both its file and its row, and that later ones have neither. Returns the number of
/// calls.
async fn check(path: &Path, answered: usize) -> usize {
    let (store, threads) = opened(path);
    let tree = threads.session(&scope("t")).await.unwrap().backend();
    let mut calls = 0;
    for number in 0..answered + 10 {
        let has_row = store.get(&journal(), &number.to_string()).await.unwrap().is_some();
        assert_eq!(has_row, tree.exists(&file(number)).await.unwrap(), "the row and the file of call {number}");
        assert!(has_row || number >= answered, "call {number} was answered");
        calls += usize::from(has_row);
    }
    calls
}

#[tokio::test]
async fn killed_process_leaves_both_the_row_and_the_change_of_a_call_or_neither() {
    if let Some(path) = std::env::var_os(PATH) {
        let first = std::env::var(FIRST).unwrap().parse().unwrap();
        return call_tools(path.as_ref(), first).await;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rows.db");
    let mut calls = 0;
    for round in 0..ROUNDS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "threads::outbox::killed_process_leaves_both_the_row_and_the_change_of_a_call_or_neither", "--nocapture"])
            .env(PATH, &path)
            .env(FIRST, calls.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let number = |line: String| line.rsplit_once("answered ")?.1.parse::<usize>().ok();
        let last = lines.by_ref().filter_map(number).take(1 + round * 5).last().expect("a call was answered");
        child.kill().unwrap();
        child.wait().unwrap();
        // Lines that the process printed before it died count too.
        let last = lines.filter_map(number).last().unwrap_or(last);
        calls = check(&path, last + 1).await;
    }
}
