//! Calls of stateless agents in several processes, some of which are killed or stalled. See `turns/mod.rs`.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]
#![cfg(all(feature = "sqlite", unix))]

mod servers;

#[path = "turns/history.rs"]
mod history;
#[path = "turns/process.rs"]
mod process;
#[path = "turns/run.rs"]
mod run;

use process::Place;

/// The body of a process that runs calls. The runs start it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the body of a process that the runs start"]
async fn process_that_runs_calls() {
    process::serve().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_sessions_survive_killed_and_stalled_processes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.db");
    run::run(&Place { engine: "sqlite", url: String::new(), name: path.to_str().unwrap().to_owned() }).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL: run scripts/servers.sh"]
async fn postgres_sessions_survive_killed_and_stalled_processes() {
    let schema = servers::postgres::schema().await;
    run::run(&Place { engine: "postgres", url: schema.url.clone(), name: schema.name.clone() }).await;
}

#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis: run scripts/servers.sh"]
async fn redis_sessions_survive_killed_and_stalled_processes() {
    let prefix = servers::redis::prefix().await;
    run::run(&Place { engine: "redis", url: prefix.url.clone(), name: prefix.name.clone() }).await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
async fn mysql_sessions_survive_killed_and_stalled_processes() {
    let database = servers::mysql::database().await;
    run::run(&Place { engine: "mysql", url: database.url.clone(), name: String::new() }).await;
}
