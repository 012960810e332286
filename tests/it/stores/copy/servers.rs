//! Copies between servers, and the URLs that name one store on a server.

use super::{FailingAfter, assert_same, copied, filled, rows, space};
use crate::stores::wrapped::Wrapped;
use std::sync::atomic::AtomicUsize;
use treehold::ErrorKind;
use treehold::store::{Batch, CopyOptions, MemoryStore, Store, copy, verify};

/// Copies into a server, with an interruption on the way, into another store there, and back.
async fn check_on_server(fresh: impl AsyncFn() -> crate::servers::OnServer) {
    let [(one, _keep), (other, _keep_other)] = [fresh().await, fresh().await];
    let source = filled(50).await;
    let options = CopyOptions::new().with_batch_bytes(300);
    for after_effect in [false, true] {
        let failing = Wrapped::new(one.clone(), FailingAfter { commits: AtomicUsize::new(20), after_effect });
        let error = copy(&source, &failing, &options, |_| {}).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    }
    let report = copy(&source, &*one, &options, |_| {}).await.unwrap();
    assert!(report.settled && report.resumed && report.sent < report.rows, "{report:?}");
    assert_eq!((report.rows, report.namespaces), (51, 4));
    assert_same(&source, &*one).await;
    let report = copied(&*one, &*other).await;
    assert!(report.settled && !report.resumed && report.sent == report.rows, "{report:?}");
    assert_same(&source, &*other).await;
    let back = MemoryStore::new();
    assert_eq!(copied(&*other, &back).await.digest, report.digest);
    assert_same(&source, &back).await;
    for store in [one, other] {
        let found = verify(&*store, |_, _| Ok(()), |_| {}).await.unwrap();
        assert_eq!((found.rows, found.versions_shared, found.faults_count), (51, 0, 0), "{:?}", found.faults);
        let version = store.commit(Batch::new().put(&space("a"), "new", "")).await.unwrap()[0];
        assert!(version > source.current_version(&space("a").partition()).await.unwrap());
    }
}

/// Spellings of one URL share one opening of the store, and a store is not copied onto itself under any spelling.
async fn check_spellings(same: [String; 3], apart: String) {
    use treehold::config::{OpenStoreOptions, open_store};
    let open = async |url: &str| open_store(url, &OpenStoreOptions::new()).await.unwrap();
    let first = open(&same[0]).await;
    first.commit(Batch::new().put(&space("a"), "k", "v")).await.unwrap();
    let before = rows(&*first).await;
    for url in &same {
        assert!(std::sync::Arc::ptr_eq(&first, &open(url).await), "{url}");
    }
    let second = open(&apart).await;
    assert!(!std::sync::Arc::ptr_eq(&first, &second), "other settings open the store separately");
    for target in [&first, &second] {
        for onto in [false, true] {
            let error = copy(&*first, &**target, &CopyOptions::new().with_onto(onto), |_| {}).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            assert!(error.message().contains("are the same store"), "{error}");
        }
    }
    assert_eq!(rows(&*first).await, before);
}

/// Returns a URL with further parameters.
fn with_parameters(url: &str, parameters: &str) -> String {
    format!("{url}{}{parameters}", if url.contains('?') { '&' } else { '?' })
}

#[cfg(feature = "mysql")]
#[tokio::test]
#[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
async fn every_mysql_url_of_a_store_names_the_same_store() {
    let database = crate::servers::mysql::database().await;
    let of = |parameters: &str| with_parameters(&database.url, parameters);
    let alias = of("timeout=9&prefix=p%5F").replacen("mysql://", "mariadb://", 1);
    check_spellings([of("prefix=p_&timeout=9"), of("timeout=9&prefix=p_"), alias], of("prefix=p_&timeout=8")).await;
}

#[cfg(feature = "postgres")]
#[tokio::test]
#[ignore = "needs PostgreSQL: run scripts/servers.sh"]
async fn every_postgres_url_of_a_store_names_the_same_store() {
    let schema = crate::servers::postgres::schema().await;
    let of = |parameters: &str| with_parameters(&schema.url, &parameters.replace("{s}", &schema.name.replace(' ', "%20")));
    let alias = of("connections_max=3&schema={s}").replacen("postgres://", "postgresql://", 1);
    let same = [of("schema={s}&connections_max=3"), of("connections_max=3&schema={s}"), alias];
    check_spellings(same, of("schema={s}&connections_max=2")).await;
}

#[cfg(feature = "redis")]
#[tokio::test]
#[ignore = "needs Redis: run scripts/servers.sh"]
async fn every_redis_url_of_a_store_names_the_same_store() {
    let prefix = crate::servers::redis::prefix().await;
    let server = prefix.url.split('?').next().unwrap().trim_end_matches("/0").trim_end_matches('/');
    let of = |server: &str| format!("{server}?prefix={}", prefix.name);
    let other =
        if server.contains("127.0.0.1") { server.replace("127.0.0.1", "localhost") } else { server.replace("localhost", "127.0.0.1") };
    check_spellings([of(server), of(&format!("{server}/0")), of(&format!("{server}/"))], of(&other)).await;
}

#[cfg(feature = "mysql")]
#[tokio::test]
#[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
async fn copy_round_trips_through_mysql() {
    check_on_server(crate::servers::mysql::fresh).await;
}

#[cfg(feature = "postgres")]
#[tokio::test]
#[ignore = "needs PostgreSQL: run scripts/servers.sh"]
async fn copy_round_trips_through_postgres() {
    check_on_server(crate::servers::postgres::fresh).await;
}

#[cfg(feature = "redis")]
#[tokio::test]
#[ignore = "needs Redis: run scripts/servers.sh"]
async fn copy_round_trips_through_redis() {
    check_on_server(crate::servers::redis::fresh).await;
}

#[cfg(feature = "redis")]
#[tokio::test]
#[ignore = "needs a Redis Cluster: run scripts/servers.sh"]
async fn copy_round_trips_through_redis_cluster() {
    check_on_server(crate::servers::redis::fresh_in_cluster).await;
}
