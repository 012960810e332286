//! Predicts what a fleet of servers can do, and compares such predictions with runs of a real store.
//!
//! `fleet` prints predictions for 10^6 threads, 10^9 files and 1,000 servers, from costs that were measured on one machine. `--seed N`
//! chooses another run, and `--quick` simulates fewer commits.
//!
//! `fleet compare ENGINE URL…` measures a store, fits the costs of the model to four of the runs, predicts the others, and prints the
//! errors. ENGINE is `postgres`, `mysql`, `redis` or `sqlite`. Each further URL is the same store on one node more. `--seconds N` is the
//! length of each run, by default 3, and `--connections N` how many groups the process has under way at once, by default 4. It writes to
//! partitions `fleet/…` and leaves the rows there.

#![allow(missing_docs, clippy::print_stdout)]

use measure::{Measured, measure};
use model::{Costs, Fleet, GROUPED, Grouping, Load, Outcome, Random, SINGLE, run};
use treehold::config::{OpenStoreOptions, open_store};
use treehold::{Error, ErrorKind, Result};

mod measure;
mod model;

/// Fitted to PostgreSQL 15 on two processors that it shared with the writers, over loopback: `docs/scale.md` has the runs.
const POSTGRES: Costs = Costs { group: 3.4e-4, batch: 8.7e-6, read: 6.8e-5, flush: 1.1e-5, round_trip: 2.8e-6 };

/// Threads, and the users who own them: a partition each.
const THREADS: usize = 1_000_000;
const USERS: usize = 100_000;
const FILES: f64 = 1e9;
const SERVERS: usize = 1_000;

/// The connections for writes of each server.
const CONNECTIONS: usize = 4;

/// The reads before each commit, in a run with reads.
const READS: usize = 4;

/// The runs of a store: writers, partitions and reads.
const RUNS: [(usize, usize, usize); 9] =
    [(1, 1, 0), (16, 1, 0), (16, 2, 0), (16, 4, 0), (16, 8, 0), (16, 16, 0), (1, 1, READS), (16, 1, READS), (16, 16, READS)];

/// The runs on one node that the costs of commits are fitted to, and the one that the cost of a read is fitted to afterwards.
const FITTED: [(usize, usize, usize); 3] = [(1, 1, 0), (16, 1, 0), (16, 16, 0)];
const FITTED_READS: (usize, usize, usize) = (16, 16, READS);

/// The longest time in seconds that 99 of 100 commits may take at the capacity.
const PATIENCE: f64 = 0.05;

/// The bytes of a row of 1 KiB with a key of 40 characters in PostgreSQL 15, by `pg_total_relation_size` of 100,000 such rows. Indexes for
/// searches and the past of files come on top.
const FILE_BYTES: f64 = 1_510.0;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |name: &str| -> Result<Option<f64>> {
        let Some(at) = arguments.iter().position(|argument| argument == name) else { return Ok(None) };
        let number = arguments.get(at + 1).and_then(|text| text.parse().ok());
        number.map(Some).ok_or_else(|| Error::invalid_argument(format!("write a number after `{name}`")))
    };
    let (seed, seconds, connections) = (number("--seed")?, number("--seconds")?, number("--connections")?);
    if arguments.first().is_none_or(|first| first.starts_with("--")) {
        let batches = if arguments.iter().any(|argument| argument == "--quick") { 20_000.0 } else { 200_000.0 };
        predict(seed.unwrap_or(1.0) as u64, batches);
        return Ok(());
    }
    let plain: Vec<&str> = arguments.iter().map(String::as_str).take_while(|argument| !argument.starts_with("--")).collect();
    let ["compare", engine, urls @ ..] = &plain[..] else {
        return Err(Error::invalid_argument("write `fleet`, or `fleet compare ENGINE URL…`"));
    };
    let grouping = if *engine == "redis" { SINGLE } else { GROUPED };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|source| Error::new(ErrorKind::Internal, "the program cannot run tasks").with_source(source))?;
    runtime.block_on(compare(grouping, urls, seconds.unwrap_or(3.0), connections.unwrap_or(4.0) as usize, seed.unwrap_or(1.0) as u64))
}

/// Prints what many nodes and servers can do.
fn predict(seed: u64, batches: f64) {
    println!("{THREADS} threads of {USERS} users, {SERVERS} servers, PostgreSQL-compatible nodes of 2 processors");
    println!();
    println!(
        "| nodes | commits/s with a p99 below {} ms | p50 and p99 at half of that | a node is lost for 3 s: p99, longest | a user with 5 % of all: commits/s | {READS} reads before each: commits/s |",
        PATIENCE * 1e3
    );
    println!("| ---: | ---: | ---: | ---: | ---: | ---: |");
    for nodes in [1, 2, 3, 10, 30] {
        let fleet = Fleet {
            costs: POSTGRES,
            grouping: GROUPED,
            nodes,
            processors: 2,
            servers: SERVERS,
            connections: CONNECTIONS,
            partitions: USERS,
            load: Load::Writers(0),
            reads: 0,
            lost: None,
            seconds: 1.0,
            seed,
        };
        let capacity = capacity(&fleet, 0.0, batches);
        let half = arrivals(&fleet, capacity / 2.0, 0.0, batches);
        let lost = run(&Fleet {
            lost: Some((0, 1.0, 4.0)),
            seconds: 6.0,
            load: Load::Arrivals { per_second: (capacity / 2.0).min(batches / 6.0), hot: 0.0 },
            ..fleet.clone()
        });
        let hot = self::capacity(&fleet, 0.05, batches);
        let reading = self::capacity(&Fleet { reads: READS, ..fleet }, 0.0, batches);
        let ms = |seconds: f64| format!("{:.1} ms", seconds * 1e3);
        println!(
            "| {nodes} | {capacity:.0} | {}, {} | {}, {:.1} s | {hot:.0} | {reading:.0} |",
            ms(half.p50),
            ms(half.p99),
            ms(lost.p99),
            lost.longest
        );
    }
    println!();
    println!("bytes: {:.1} TB for {FILES:.0e} files of 1 KiB", FILES * FILE_BYTES / 1e12);
    println!("connections: {} from {SERVERS} servers of 8, so a pooler stands before the nodes", SERVERS * 8);
}

/// Finds the most batches a second with which 99 of 100 are answered in time.
fn capacity(fleet: &Fleet, hot: f64, batches: f64) -> f64 {
    let is_in_time = |per_second: f64| {
        let outcome = arrivals(fleet, per_second, hot, batches);
        outcome.p99 <= PATIENCE
    };
    let (mut low, mut high) = (10.0, 20_000.0 * fleet.nodes as f64);
    for _ in 0..12 {
        let middle = (low + high) / 2.0;
        if is_in_time(middle) { low = middle } else { high = middle }
    }
    low
}

fn arrivals(fleet: &Fleet, per_second: f64, hot: f64, batches: f64) -> Outcome {
    let seconds = (batches / per_second).clamp(0.5, 20.0);
    run(&Fleet { load: Load::Arrivals { per_second, hot }, seconds, ..fleet.clone() })
}

/// Measures a store, and prints how far predictions are from it.
async fn compare(grouping: Grouping, urls: &[&str], seconds: f64, connections: usize, seed: u64) -> Result<()> {
    let mut runs = Vec::new();
    for (index, url) in urls.iter().enumerate() {
        let store = open_store(url, &OpenStoreOptions::new()).await?;
        for numbers in RUNS {
            let measured = measure(&store, numbers, seconds).await?;
            println!("measured: {} nodes, {measured:?}", index + 1);
            runs.push((index + 1, measured));
        }
    }
    let fleet = |costs: Costs, nodes: usize, measured: &Measured| Fleet {
        costs,
        grouping,
        nodes,
        processors: if grouping == SINGLE { 1 } else { 2 },
        servers: 1,
        connections,
        partitions: measured.partitions,
        load: Load::Writers(measured.writers),
        reads: measured.reads,
        lost: None,
        seconds: 1.0,
        seed,
    };
    let numbers = |measured: &Measured| (measured.writers, measured.partitions, measured.reads);
    let of_one_node = |wanted: (usize, usize, usize)| {
        let found = runs.iter().find(|(nodes, measured)| *nodes == 1 && numbers(measured) == wanted).map(|(_, measured)| measured);
        found.ok_or_else(|| Error::invalid_argument("write the URL of a store"))
    };
    let given = FITTED.into_iter().map(of_one_node).collect::<Result<Vec<_>>>()?;
    let ratio = |costs: Costs, measured: &Measured| run(&fleet(costs, 1, measured)).commits_per_second / measured.commits_per_second;
    let fault = |costs: Costs| -> f64 { given.iter().map(|measured| ratio(costs, measured).ln().powi(2)).sum() };
    let reading = of_one_node(FITTED_READS)?;
    let costs = fit_read(fit(fault, seed), |costs| ratio(costs, reading) > 1.0);
    println!("{costs:?}");
    println!("| nodes | partitions | writers | reads | measured commits/s | predicted | error | measured p99 | predicted |");
    println!("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    for (nodes, measured) in &runs {
        let predicted = run(&fleet(costs, *nodes, measured));
        let error = predicted.commits_per_second / measured.commits_per_second - 1.0;
        let is_fitted = *nodes == 1 && (FITTED.contains(&numbers(measured)) || numbers(measured) == FITTED_READS);
        let note = if is_fitted { " (fitted)" } else { "" };
        println!(
            "| {nodes} | {} | {} | {} | {:.0} | {:.0} | {:+.0} %{note} | {:.1} ms | {:.1} ms |",
            measured.partitions,
            measured.writers,
            measured.reads,
            measured.commits_per_second,
            predicted.commits_per_second,
            error * 100.0,
            measured.p99 * 1e3,
            predicted.p99 * 1e3
        );
    }
    Ok(())
}

/// Finds the cost of a read, by halving a range. `is_too_fast` says whether a fleet with these costs commits more than was measured.
fn fit_read(costs: Costs, is_too_fast: impl Fn(Costs) -> bool) -> Costs {
    let (mut low, mut high) = (0.0, 0.01);
    for _ in 0..30 {
        let read = (low + high) / 2.0;
        if is_too_fast(Costs { read, ..costs }) { low = read } else { high = read }
    }
    Costs { read: (low + high) / 2.0, ..costs }
}

/// Finds costs of commits with a small fault, by steps at random from those of several usual servers.
fn fit(fault: impl Fn(Costs) -> f64, seed: u64) -> Costs {
    let mut random = Random::new(seed);
    let starts = [2e-4, 2e-5].into_iter().flat_map(|group| [1e-3, 1e-4, 1e-5].map(|flush| (group, flush)));
    let found = starts.map(|(group, flush)| {
        let mut best = Costs { group, batch: group / 10.0, read: 0.0, flush, round_trip: group };
        let mut least = fault(best);
        for step in 0..500 {
            let reach = 3.0 / (1.0 + f64::from(step) / 50.0);
            let mut vary = |cost: f64| cost * (reach * (random.part() - 0.5)).exp();
            let (group, batch) = (vary(best.group), vary(best.batch));
            let tried = Costs { group, batch, flush: vary(best.flush), round_trip: vary(best.round_trip), ..best };
            let tried_fault = fault(tried);
            if tried_fault < least {
                (best, least) = (tried, tried_fault);
            }
        }
        (best, least)
    });
    found.min_by(|(_, one), (_, other)| one.total_cmp(other)).expect("there are starts").0
}
