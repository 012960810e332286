//! Embedded stores whose migration is killed.

use super::{Layout, assert_same, expected, migrated, put_sled, put_sqlite, rows_of};
use std::path::Path;
use std::process::{Command, Stdio};
use treehold::config::{OpenStoreOptions, open_store};
use treehold::store::{MigrateOptions, MigrateOutcome, OldLayout, SledOptions, SledStore, SqliteOptions, SqliteStore, StoreExt};

/// The environment of a child process: which store it migrates, and after how many reported steps it kills itself.
#[cfg(unix)]
const KILLED_URL: &str = "TREEHOLD_TEST_KILLED_URL";
#[cfg(unix)]
const KILLED_AFTER: &str = "TREEHOLD_TEST_KILLED_AFTER";

/// Migrates an embedded store in child processes, each of which is killed at a later step than the one before, and checks that the next
/// migration completes. The test binary starts itself; the environment tells a child what to do.
#[cfg(unix)]
async fn killed_migration_is_completed(test: &str, engine: &str, put: impl Fn(Layout, &Path)) {
    use std::os::unix::process::ExitStatusExt;
    if let Some(url) = std::env::var_os(KILLED_URL) {
        let mut left: usize = std::env::var(KILLED_AFTER).unwrap().parse().unwrap();
        let mut tell = move |_| match left.checked_sub(1) {
            Some(less) => left = less,
            None => rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap(),
        };
        let path = url.to_str().unwrap().split_once(':').unwrap().1;
        // The engine's own call: it reports each step on this thread.
        match engine {
            "sqlite" => SqliteStore::migrate(&SqliteOptions::new(path), &MigrateOptions::new(), &mut tell).unwrap(),
            _ => SledStore::migrate(&SledOptions::new(path), &MigrateOptions::new(), &mut tell).unwrap(),
        };
        return;
    }
    for layout in Layout::ALL {
        let expected = expected(layout).rows;
        for steps in 0.. {
            let directory = tempfile::tempdir().unwrap();
            let place = directory.path().join("old");
            put(layout, &place);
            let url = format!("{engine}:{}", place.display());
            let status = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", &format!("stores::migrate::killed::{test}")])
                .env(KILLED_URL, &url)
                .env(KILLED_AFTER, steps.to_string())
                .stdout(Stdio::null())
                .status()
                .unwrap();
            if status.success() {
                assert!(steps > 5, "only {steps} steps reported progress");
                break;
            }
            assert_eq!(status.signal(), Some(9), "{layout:?}, killed after {steps} steps");
            let refused = open_store(&url, &OpenStoreOptions::new()).await.unwrap_err();
            assert!(OldLayout::is_source_of(&refused), "{refused}");
            assert_eq!(migrated(&url, MigrateOptions::new()).await.unwrap().outcome, MigrateOutcome::Migrated);
            let store = open_store(&url, &OpenStoreOptions::new()).await.unwrap();
            assert_same(&rows_of(&*store).await, &expected);
            assert_eq!(store.check().await.unwrap().len(), 0, "{layout:?}, killed after {steps} steps");
        }
    }
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn killed_migration_of_a_sqlite_store_is_completed_by_the_next_one() {
    killed_migration_is_completed("killed_migration_of_a_sqlite_store_is_completed_by_the_next_one", "sqlite", put_sqlite).await;
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn killed_migration_of_a_sled_store_is_completed_by_the_next_one() {
    killed_migration_is_completed("killed_migration_of_a_sled_store_is_completed_by_the_next_one", "sled", put_sled).await;
}
