//! Redis: round trips, broken connections, processes that share a store, servers that refuse.

use super::namespace;
use crate::servers::proxy::{Break, Proxy};
use crate::servers::redis::{Prefix, prefix, proxy, server};
use redis::Commands;
use std::process::{Command, Stdio};
use std::time::Duration;
use treehold::ErrorKind;
use treehold::store::{
    Batch, Condition, Namespace, NamespacesOptions, RedisOptions, RedisStore, ScanEntry, ScanOptions, Store, StoreCapabilities, StoreExt,
};

/// Opens the store of a prefix through a proxy.
async fn proxied(prefix: &Prefix) -> (RedisStore, Proxy) {
    let (proxy, url) = proxy().await;
    let store = RedisStore::open_with(RedisOptions::new(url).with_prefix(&prefix.name)).await.unwrap();
    (store, proxy)
}

#[tokio::test]
#[ignore = "needs Redis: run scripts/servers.sh"]
async fn each_call_is_one_round_trip() {
    let prefix = prefix().await;
    let (store, proxy) = proxied(&prefix).await;
    let a = namespace();
    let mut batch = Batch::new();
    for number in 0..300 {
        batch = batch.put(&a, format!("d{}/{number:03}", number % 30), vec![b'x'; 200]);
    }
    // The first large request opens the second connection, and every script is known by then.
    store.scan(&a, ScanOptions::new().with_values(true)).await.unwrap();
    proxy.round_trips();
    store.commit(batch).await.unwrap();
    assert_eq!(proxy.round_trips(), 1, "a commit");
    let conditions = (0..20).fold(Batch::new(), |batch, number| batch.expect(&a, format!("none{number}"), Condition::Absent));
    store.commit(conditions.delete_prefix(&a, "d1/").put(&a, "k", "v")).await.unwrap();
    assert_eq!(proxy.round_trips(), 1, "a commit with conditions");
    let refused = store.commit(Batch::new().expect(&a, "k", Condition::Absent).put(&a, "k", "w")).await.unwrap_err();
    assert_eq!((refused.kind(), proxy.round_trips()), (ErrorKind::Conflict, 1), "a commit that is refused");
    assert!(store.get(&a, "k").await.unwrap().is_some());
    assert_eq!(proxy.round_trips(), 1, "a get");
    assert!(store.get_many(&a, &["k", "d0/000", "none"], true).await.unwrap()[1].is_some());
    assert_eq!(proxy.round_trips(), 1, "a get of many");
    assert_eq!(store.scan(&a, ScanOptions::new().with_values(true)).await.unwrap().entries.len(), 291);
    assert_eq!(proxy.round_trips(), 1, "a page with bodies");
    assert_eq!(store.scan(&a, ScanOptions::new().with_delimiter('/')).await.unwrap().entries.len(), 30);
    assert_eq!(proxy.round_trips(), 1, "a page of groups");
    assert_eq!(store.namespaces(NamespacesOptions::new()).await.unwrap().namespaces.len(), 1);
    assert_eq!(proxy.round_trips(), 1, "a page of namespaces");
    store.current_version(&a.partition()).await.unwrap();
    assert_eq!(proxy.round_trips(), 1, "the version");
}

#[tokio::test]
#[ignore = "needs Redis: run scripts/servers.sh"]
async fn commit_on_broken_connection_reports_its_possible_effect() {
    let prefix = prefix().await;
    let (store, proxy) = proxied(&prefix).await;
    let a = namespace();
    for (at, is_done) in [(Break::Request, false), (Break::Answer, true)] {
        let key = format!("{at:?}");
        proxy.break_next(at);
        let error = store.commit(Batch::new().put(&a, &key, "v")).await.unwrap_err();
        assert_eq!((error.kind(), error.may_have_effect()), (ErrorKind::Unavailable, true), "{error:?}");
        assert_eq!(store.get(&a, &key).await.unwrap().is_some(), is_done, "nothing is sent twice or lost");
    }
    assert_eq!(store.current_version(&a.partition()).await.unwrap().number(), 1);
    // A read is tried once more, and a second break is reported.
    proxy.break_next(Break::Answer);
    assert!(store.get(&a, "Answer").await.unwrap().is_some());
}

/// The server ends an idle connection, as it does when it restarts: the next request was not sent, and uses a new one.
#[tokio::test]
#[ignore = "needs Redis: run scripts/servers.sh"]
async fn connection_ended_by_the_server_is_replaced() {
    let prefix = prefix().await;
    let (store, proxy) = proxied(&prefix).await;
    let a = namespace();
    let mut admin = prefix.connect().unwrap();
    for round in 0..5 {
        for port in proxy.ports() {
            let _: redis::RedisResult<u64> =
                redis::cmd("CLIENT").arg("KILL").arg("ADDR").arg(format!("127.0.0.1:{port}")).query(&mut admin);
        }
        proxy.all_ended().await;
        store.commit(Batch::new().put(&a, "k", format!("{round}"))).await.unwrap();
    }
    assert_eq!(store.get(&a, "k").await.unwrap().unwrap().value, "4");
}

/// The connection of a runtime that is not driven would never answer.
#[test]
#[ignore = "needs Redis: run scripts/servers.sh"]
fn store_works_from_several_runtimes() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (first, second) = (runtime(), runtime());
    let prefix = first.block_on(prefix());
    let store = first.block_on(prefix.open());
    for _ in 0..3 {
        for runtime in [&first, &second] {
            runtime.block_on(async {
                store.commit(Batch::new().put(&namespace(), "k", "v")).await.unwrap();
                assert!(store.get(&namespace(), "k").await.unwrap().is_some());
            });
        }
    }
    drop(first);
    second.block_on(async { assert!(store.get(&namespace(), "k").await.unwrap().is_some()) });
    runtime().block_on(async { assert!(store.get(&namespace(), "k").await.unwrap().is_some()) });
}

#[tokio::test]
#[ignore = "needs Redis: run scripts/servers.sh"]
async fn failure_to_open_is_reported() {
    let prefix = prefix().await;
    let (scheme, rest) = prefix.url.split_once("://").unwrap();
    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host).split(['/', '?']).next().unwrap();
    for (url, kind) in [
        (format!("{scheme}://nobody:s3cret@{host}"), ErrorKind::PermissionDenied),
        (format!("{scheme}://{rest}/987654321"), ErrorKind::NotFound),
        ("redis://127.0.0.1:1".to_owned(), ErrorKind::Unavailable),
        ("redis+cluster://127.0.0.1:1,127.0.0.1:2".to_owned(), ErrorKind::Unavailable),
        (format!("redis+cluster://{rest}"), ErrorKind::Unsupported),
        ("redis://host?prefix={x}".to_owned(), ErrorKind::InvalidArgument),
    ] {
        let options = RedisOptions::new(&url);
        let options = if url.contains("prefix") { options } else { options.with_prefix(&prefix.name) };
        let error = RedisStore::open_with(options).await.unwrap_err();
        assert_eq!((error.kind(), error.may_have_effect()), (kind, false), "{url}: {error:?}");
        assert!(!error.message().contains("s3cret") && !error.message().contains("127.0.0.1"), "{error}");
    }
}

#[tokio::test]
#[ignore = "needs Redis: run scripts/servers.sh"]
async fn missing_or_newer_store_is_an_error_not_an_empty_store() {
    let prefix = prefix().await;
    let store = prefix.open().await;
    let a = namespace();
    store.commit(Batch::new().put(&a, "k", "v")).await.unwrap();
    let mut admin = prefix.connect().unwrap();
    let () = admin.hset(prefix.key("rows"), ".schema", "2").unwrap();
    let refused = async |kind| {
        let batch = Batch::new().put(&a, "k", "w");
        let errors = [
            store.get(&a, "k").await.unwrap_err(),
            store.scan(&a, ScanOptions::new()).await.unwrap_err(),
            store.namespaces(NamespacesOptions::new()).await.unwrap_err(),
            store.current_version(&a.partition()).await.unwrap_err(),
            store.commit(batch).await.unwrap_err(),
            store.sweep(1).await.unwrap_err(),
            store.stats().await.unwrap_err(),
            store.check().await.unwrap_err(),
        ];
        for error in errors {
            assert_eq!((error.kind(), error.may_have_effect()), (kind, false), "{error:?}");
        }
    };
    refused(ErrorKind::Unsupported).await;
    let error = RedisStore::open_with(RedisOptions::new(&prefix.url).with_prefix(&prefix.name)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert_eq!(admin.hget::<_, _, String>(prefix.key("rows"), ".version").unwrap(), "1", "it is untouched");
    let () = admin.del(&["rows", "keys", "expiries", "changes"].map(|part| prefix.key(part))[..]).unwrap();
    refused(ErrorKind::Corrupt).await;
}

/// A newer schema was extended by keys and fields that it need not have.
#[tokio::test]
#[ignore = "needs Redis: run scripts/servers.sh"]
async fn store_of_a_newer_schema_is_left_unchanged() {
    let prefix = prefix().await;
    let mut admin = prefix.connect().unwrap();
    let () = admin.hset(prefix.key("rows"), ".schema", "2").unwrap();
    let error = RedisStore::open_with(RedisOptions::new(&prefix.url).with_prefix(&prefix.name)).await.unwrap_err();
    assert_eq!((error.kind(), error.may_have_effect()), (ErrorKind::Unsupported, false), "{error:?}");
    let fields: Vec<(String, String)> = admin.hgetall(prefix.key("rows")).unwrap();
    assert_eq!(fields, [(".schema".to_owned(), "2".to_owned())]);
    let others: u64 = admin.exists(&["keys", "expiries", "changes"].map(|part| prefix.key(part))[..]).unwrap();
    assert_eq!(others, 0);
}

#[tokio::test]
#[ignore = "needs Redis: run scripts/servers.sh"]
async fn damage_is_found() {
    let prefix = prefix().await;
    let store = prefix.open().await;
    let a = namespace();
    let batch = Batch::new().put(&a, "k", "1").put(&a, "l", "22").put_for(&a, "m", "3", Duration::from_secs(60)).put(&a, "n", "");
    store.commit(batch).await.unwrap();
    assert!(store.check().await.unwrap().is_empty());
    let mut admin = prefix.connect().unwrap();
    let row = |key: &str| format!("rows//\0{key}");
    let () = admin.hdel(prefix.key("rows"), format!("b{}", row("k"))).unwrap();
    let () = admin.hdel(prefix.key("rows"), format!("r{}", row("n"))).unwrap();
    let () = admin.zrem(prefix.key("expiries"), row("m")).unwrap();
    let () = admin.zrem(prefix.key("keys"), row("l")).unwrap();
    let found: Vec<String> = store.check().await.unwrap().iter().map(|error| error.message().to_owned()).collect();
    for part in ["without a record (1)", "without a body (1)", "whose expiry differs", "without a row"] {
        assert!(found.iter().any(|message| message.contains(part)), "{part}: {found:?}");
    }
    let error = store.get(&a, "k").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

/// A page of more rows than one script reads is assembled from several: a batch between them must not show partially.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis: run scripts/servers.sh"]
async fn long_page_never_shows_a_partial_batch() {
    const ROWS: usize = 21_000;
    let prefix = prefix().await;
    let store = prefix.open().await;
    let a = namespace();
    for from in (0..ROWS).step_by(3_000) {
        let batch = (from..from + 3_000).fold(Batch::new(), |batch, number| batch.put(&a, format!("{number:05}"), "0"));
        store.commit(batch).await.unwrap();
    }
    let ends = ["00000".to_owned(), format!("{:05}", ROWS - 1)];
    let writer = tokio::spawn({
        let (store, a, ends) = (store.clone(), a.clone(), ends.clone());
        async move {
            for number in 1.. {
                let batch = ends.iter().fold(Batch::new(), |batch, key| batch.put(&a, key, format!("{number}")));
                store.commit(batch).await.unwrap();
            }
        }
    });
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..20 {
        let page = store.scan(&a, ScanOptions::new().with_limit(usize::MAX).with_values(true)).await.unwrap();
        let (Some(ScanEntry::Item(first)), Some(ScanEntry::Item(last))) = (page.entries.first(), page.entries.last()) else { panic!() };
        assert_eq!((page.entries.len(), page.next, &first.value), (ROWS, None, &last.value));
        seen.insert(first.version);
    }
    assert!(seen.len() > 1, "nothing was written meanwhile");
    writer.abort();
}

/// The server serves nobody else while it writes a batch.
#[tokio::test]
#[ignore = "needs Redis: run scripts/servers.sh"]
async fn batch_that_would_block_others_for_long_is_too_large() {
    let prefix = prefix().await;
    let store = prefix.open().await;
    let body = bytes::Bytes::from(vec![0; 65 << 20]);
    let error = store.commit(Batch::new().put(&namespace(), "k", body.clone()).put(&namespace(), "l", body)).await.unwrap_err();
    assert_eq!((error.kind(), error.is_without_effect()), (ErrorKind::TooLarge, true), "{error:?}");
}

/// Regression: a page was retried forever, with more and more rows at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis: run scripts/servers.sh"]
async fn page_that_is_always_disturbed_fails() {
    let prefix = prefix().await;
    // The last attempt reads 320 rows at once.
    let options = RedisOptions::new(&prefix.url).with_prefix(&prefix.name).with_rows_at_once(40);
    let store = RedisStore::open_with(options).await.unwrap();
    let spaces: Vec<_> = (0..600).map(|number| Namespace::new([format!("{number:03}")]).unwrap()).collect();
    let rows = (0..2_000).fold(Batch::new(), |batch, number| batch.put(&namespace(), format!("{number:04}"), "0"));
    store.commit(rows).await.unwrap();
    for space in &spaces {
        store.commit(Batch::new().put(space, "k", "0")).await.unwrap();
    }
    let writer = tokio::spawn({
        let store = store.clone();
        async move {
            loop {
                store.commit(Batch::new().put(&namespace(), "0000", "1")).await.unwrap();
            }
        }
    });
    let (mut scans, mut lists) = (0, 0);
    for _ in 0..100 {
        let page = store.scan(&namespace(), ScanOptions::new().with_limit(200)).await.unwrap();
        assert_eq!(page.entries.len(), 200, "a page that one script reads never fails");
        match store.scan(&namespace(), ScanOptions::new().with_limit(usize::MAX)).await {
            Ok(page) => assert_eq!(page.entries.len(), 2_000),
            Err(error) => scans += assert_shorter_page_is_advised(&error),
        }
        match store.namespaces(NamespacesOptions::new().with_limit(usize::MAX)).await {
            Ok(page) => assert_eq!(page.namespaces.len(), 601),
            Err(error) => lists += assert_shorter_page_is_advised(&error),
        }
        if scans > 0 && lists > 0 {
            break;
        }
    }
    writer.abort();
    assert!(scans > 0 && lists > 0, "no scan or no listing failed in 100 rounds");
}

fn assert_shorter_page_is_advised(error: &treehold::Error) -> usize {
    assert!(error.kind() == ErrorKind::Unavailable && error.message().contains("request a shorter page"), "{error:?}");
    1
}

const PREFIX: &str = "TREEHOLD_TEST_REDIS_PREFIX";

fn start(test: &str, prefix: &Prefix) -> std::process::Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--include-ignored", "--exact", &format!("stores::redis::{test}")])
        .env(PREFIX, &prefix.name)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Opens the store that another process of this test named.
async fn of_other_process() -> Option<RedisStore> {
    let name = std::env::var(PREFIX).ok()?;
    Some(RedisStore::open_with(RedisOptions::new(server()).with_prefix(name)).await.unwrap())
}

#[tokio::test]
#[ignore = "needs Redis: run scripts/servers.sh"]
async fn two_processes_see_each_others_writes() {
    let a = namespace();
    if let Some(store) = of_other_process().await {
        assert_eq!(store.get(&a, "ping").await.unwrap().unwrap().value, "1");
        store.commit(Batch::new().put(&a, "pong", "2")).await.unwrap();
        return;
    }
    let prefix = prefix().await;
    let store = prefix.open().await;
    store.commit(Batch::new().put(&a, "ping", "1")).await.unwrap();
    let mut watch = store.watch(&a).await.unwrap();
    let mut beside = store.watch(&Namespace::new(["beside"]).unwrap()).await.unwrap();
    let mut child = start("two_processes_see_each_others_writes", &prefix);
    let told = tokio::time::timeout(Duration::from_secs(120), watch.changed()).await.expect("the watch is notified").unwrap();
    assert_eq!(told.number(), 2);
    assert_eq!(store.get(&a, "pong").await.unwrap().unwrap().value, "2");
    assert!(child.wait().unwrap().success());
    assert!(futures::poll!(Box::pin(beside.changed())).is_pending(), "a watch of another namespace was woken");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs Redis: run scripts/servers.sh"]
async fn store_is_created_once_by_concurrent_openers() {
    if let Some(store) = of_other_process().await {
        store.commit(Batch::new().put(&namespace(), format!("{}", std::process::id()), "")).await.unwrap();
        return;
    }
    let prefix = prefix().await;
    let children: Vec<_> = (0..4).map(|_| start("store_is_created_once_by_concurrent_openers", &prefix)).collect();
    let openings: Vec<_> = (0..8)
        .map(|number| {
            let options = RedisOptions::new(&prefix.url).with_prefix(&prefix.name);
            tokio::spawn(async move {
                let store = RedisStore::open_with(options).await.unwrap();
                store.commit(Batch::new().put(&namespace(), format!("task {number}"), "")).await.unwrap();
            })
        })
        .collect();
    for opening in openings {
        opening.await.unwrap();
    }
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let store = prefix.open().await;
    assert_eq!(store.current_version(&namespace().partition()).await.unwrap().number(), 12);
    assert_eq!(store.stats().await.unwrap().items, 12);
    assert!(store.check().await.unwrap().is_empty());
}

#[tokio::test]
#[ignore = "needs Redis: run scripts/servers.sh"]
async fn description_names_the_server() {
    let prefix = prefix().await;
    let store = prefix.open().await;
    let description = store.describe().await.unwrap();
    assert!(description.engine.starts_with("Redis ") || description.engine.starts_with("Valkey "), "{description:?}");
    assert_eq!(description.schema, Some(5));
    assert_eq!(store.to_string(), server().split('?').next().unwrap());
    let StoreCapabilities { shared, value_bytes_max, .. } = store.capabilities();
    assert!(shared && value_bytes_max.is_some_and(|max| max <= 128 << 20));
}

/// A proxy that ends each connection once so many bytes were returned over it.
async fn cut_after(limit: std::sync::Arc<std::sync::atomic::AtomicUsize>) -> u16 {
    use std::sync::atomic::Ordering;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let client = redis::Client::open(server()).unwrap();
    let redis::ConnectionAddr::Tcp(host, port) = client.get_connection_info().addr().clone() else { panic!("the server is on TCP") };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let own = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (host, mut left) = (host.clone(), limit.load(Ordering::SeqCst));
            tokio::spawn(async move {
                let server = tokio::net::TcpStream::connect((host.as_str(), port)).await.unwrap();
                let ((mut from_client, mut to_client), (mut from_server, mut to_server)) = (client.into_split(), server.into_split());
                let requests = tokio::spawn(async move { drop(tokio::io::copy(&mut from_client, &mut to_server).await) });
                let mut part = vec![0; 1 << 16];
                while let Ok(count @ 1..) = from_server.read(&mut part).await {
                    let count = count.min(left);
                    left -= count;
                    if to_client.write_all(&part[..count]).await.is_err() || left == 0 {
                        break;
                    }
                }
                requests.abort();
            });
        }
    });
    own
}

#[tokio::test]
#[ignore = "needs Redis: run scripts/servers.sh"]
async fn answer_truncated_at_any_byte_is_unavailable() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    let prefix = prefix().await;
    let limit = std::sync::Arc::new(AtomicUsize::new(usize::MAX));
    let port = cut_after(limit.clone()).await;
    let whole = RedisStore::open_with(RedisOptions::new(server()).with_prefix(&prefix.name)).await.unwrap();
    let user = server().split_once("://").unwrap().1.rsplit_once('@').map(|(user, _)| format!("{user}@")).unwrap_or_default();
    let options = || RedisOptions::new(format!("redis://{user}127.0.0.1:{port}")).with_prefix(&prefix.name);
    let (mut cut, mut opened, mut written) = (1, 0, 0);
    // Cut at every byte of the answers to connecting and writing a batch, then at some of the longer answers.
    while written < 20 {
        limit.store(cut, Ordering::SeqCst);
        let key = format!("{cut}");
        match RedisStore::open_with(options()).await {
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "after {cut} bytes: {error:?}"),
            Ok(store) => {
                opened += 1;
                match store.commit(Batch::new().put(&namespace(), &key, "v")).await {
                    Ok(_) => written += 1,
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Unavailable, "after {cut} bytes: {error:?}");
                        let is_there = whole.get(&namespace(), &key).await.unwrap().is_some();
                        assert!(error.may_have_effect() || !is_there, "after {cut} bytes: {error:?}");
                    }
                }
                if let Err(error) = store.get(&namespace(), "nothing").await {
                    assert_eq!(error.kind(), ErrorKind::Unavailable, "after {cut} bytes: {error:?}");
                }
            }
        }
        cut += if cut < 600 || opened > 0 { 1 } else { 37 };
    }
}
