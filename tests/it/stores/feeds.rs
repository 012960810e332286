//! The feed of changes over a shared store: each process has its own store, workspace and feed.

use crate::servers;
use std::collections::BTreeMap;
use std::sync::Arc;
use treehold::checkpoint::StoreCheckpointer;
use treehold::feed::{FeedEvent, FeedPosition};
use treehold::store::{
    MysqlOptions, MysqlStore, Namespace, PostgresStore, RedisOptions, RedisStore, SqliteDirectory, SqliteOptions, SqliteStore, Store,
};
use treehold::{Feed, Scope, StoreBackend, ToolCall, Workspace};

const PROCESSES: usize = 3;
const CALLS: usize = 15;

fn scope(thread: &str) -> Scope {
    Scope::new().with_tenant("acme").with_user("ada").with_thread(thread)
}

/// Returns the workspace of one process.
fn workspace(store: &Arc<dyn Store>) -> Workspace {
    let (rows, of_watch) = (store.clone(), store.clone());
    let namespace = || Namespace::parse("memories");
    Workspace::builder()
        .mount("/memories", move |_| Ok(Arc::new(StoreBackend::new(rows.clone(), namespace()?))))
        .unwrap()
        .with_change_source("/memories", move |_| Ok((of_watch.clone(), namespace()?)))
        .unwrap()
        .checkpointer(StoreCheckpointer::new(store.clone()))
        .feed(Feed::new(store.clone()))
        .build()
}

/// Several processes write, and one reader in each follows the feed: all receive every change once, those
/// of one partition in the same order.
async fn assert_all_receive_the_same_events(stores: Vec<Arc<dyn Store>>) {
    let workspaces: Vec<Workspace> = stores.iter().map(workspace).collect();
    let mut followers = Vec::new();
    for workspace in &workspaces {
        let feed = workspace.feed().unwrap().clone();
        let mut tail = feed.follow(workspace.feed_view(&scope("any")).unwrap(), FeedPosition::start()).await.unwrap();
        followers.push(tokio::spawn(async move {
            let mut received: Vec<FeedEvent> = Vec::new();
            while received.len() < 2 * PROCESSES * CALLS {
                received.push(tail.next().await.unwrap());
            }
            received
        }));
    }
    let writers = workspaces.iter().enumerate().map(|(number, workspace)| {
        let workspace = workspace.clone();
        tokio::spawn(async move {
            let session = workspace.session(scope(&format!("t{number}"))).await.unwrap();
            for call in 0..CALLS {
                for path in [format!("/memories/{number}/{call}"), format!("/{call}")] {
                    let write = ToolCall::from_json("write_file", serde_json::json!({"path": path, "content": "x"})).unwrap();
                    let output = session.call(write).await;
                    assert!(!output.is_error, "{}", output.text);
                }
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    let mut first: Option<[Vec<FeedEvent>; 2]> = None;
    for follower in followers {
        let (memories, state): (Vec<_>, Vec<_>) =
            follower.await.unwrap().into_iter().partition(|event| event.path.as_str().starts_with("/memories"));
        for (received, is_state) in [(&memories, false), (&state, true)] {
            assert!(received.windows(2).all(|pair| pair[0].position < pair[1].position));
            let mut by_thread: BTreeMap<String, Vec<String>> = BTreeMap::new();
            for event in received {
                by_thread.entry(event.thread.clone().unwrap()).or_default().push(event.path.to_string());
            }
            assert_eq!(by_thread.len(), PROCESSES);
            for (number, paths) in by_thread.values().enumerate() {
                let path = |call: usize| if is_state { format!("/{call}") } else { format!("/memories/{number}/{call}") };
                assert_eq!(paths, &(0..CALLS).map(path).collect::<Vec<_>>(), "each writer's changes in their order");
            }
        }
        let received = [memories, state];
        assert_eq!(first.get_or_insert_with(|| received.clone()), &received);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_processes_receive_the_same_events() {
    let directory = tempfile::tempdir().unwrap();
    // A writer may wait for several commits of others, and each of them for the disk.
    let options = SqliteOptions::new(directory.path().join("s.db")).with_busy_timeout(std::time::Duration::from_secs(120));
    let open = || Arc::new(SqliteStore::open_with(options.clone()).unwrap()) as Arc<dyn Store>;
    assert_all_receive_the_same_events((0..PROCESSES).map(|_| open()).collect()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_of_a_sqlite_directory_receive_the_same_events() {
    let directory = tempfile::tempdir().unwrap();
    let open = || Arc::new(SqliteDirectory::open(directory.path().join("store")).unwrap()) as Arc<dyn Store>;
    assert_all_receive_the_same_events((0..PROCESSES).map(|_| open()).collect()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: run scripts/servers.sh"]
async fn postgres_processes_receive_the_same_events() {
    let schema = servers::postgres::schema().await;
    let mut stores: Vec<Arc<dyn Store>> = Vec::new();
    for _ in 0..PROCESSES {
        stores.push(Arc::new(PostgresStore::open_with(schema.options()).await.unwrap()));
    }
    assert_all_receive_the_same_events(stores).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
async fn mysql_processes_receive_the_same_events() {
    let database = servers::mysql::database().await;
    let mut stores: Vec<Arc<dyn Store>> = Vec::new();
    for _ in 0..PROCESSES {
        stores.push(Arc::new(MysqlStore::open_with(MysqlOptions::new(&database.url)).await.unwrap()));
    }
    assert_all_receive_the_same_events(stores).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: run scripts/servers.sh"]
async fn redis_processes_receive_the_same_events() {
    let prefix = servers::redis::prefix().await;
    let mut stores: Vec<Arc<dyn Store>> = Vec::new();
    for _ in 0..PROCESSES {
        stores.push(Arc::new(RedisStore::open_with(RedisOptions::new(&prefix.url).with_prefix(&prefix.name)).await.unwrap()));
    }
    assert_all_receive_the_same_events(stores).await;
}
