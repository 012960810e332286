//! Servers, schemas and rows that the store refuses, and what it says about itself.

use super::{open, put, value};
use crate::servers::postgres::{connect, schema};
use crate::stores::namespace;
use std::time::Duration;
use tokio::net::TcpListener;
use treehold::ErrorKind;
use treehold::ops::Durability;
use treehold::store::{PostgresOptions, PostgresStore, ScanOptions, Store, StoreExt};

/// A root that signed no server's certificate.
const ANOTHER_ROOT: &str = "-----BEGIN CERTIFICATE-----
MIIBfDCCASGgAwIBAgIUYZhUkrA4Drbe18UMpvHPZL8nB9QwCgYIKoZIzj0EAwIw
EjEQMA4GA1UEAwwHYW5vdGhlcjAgFw0yNjExMjExMjQxMzRaGA8yMTI2MTAyODEy
NDEzNFowEjEQMA4GA1UEAwwHYW5vdGhlcjBZMBMGByqGSM49AgEGCCqGSM49AwEH
A0IABHrwxkfCBv2SPIQIUwxG4xP0XQ80ijov2gynkwwfyRPfliJYxkV/sErUIT0o
CGANGnSgyzsjyn4Ki7o27WD7TBmjUzBRMB0GA1UdDgQWBBRd+Zhnhlvvjam6tnTT
yZDNt4NxNTAfBgNVHSMEGDAWgBRd+Zhnhlvvjam6tnTTyZDNt4NxNTAPBgNVHRMB
Af8EBTADAQH/MAoGCCqGSM49BAMCA0kAMEYCIQDU+PeQ1RWRmA2B6UFzEM69XIOw
rQTcs4vlDxjXyTX+CQIhAMc4QZ37NNjRdo2zjwXTPsVKt9p3FRE9DVe5faPa9wO9
-----END CERTIFICATE-----
";

#[tokio::test]
#[ignore = "needs PostgreSQL: run scripts/servers.sh"]
async fn foreign_or_newer_schema_is_refused_unchanged() {
    let schema = schema().await;
    schema.run("CREATE SCHEMA {s}; CREATE TABLE {s}.rows(a int); INSERT INTO {s}.rows VALUES (1)").await;
    let error = PostgresStore::open_with(schema.options()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
    assert!(error.message().contains("another program"), "{error}");
    let client = connect(&schema.url).await.unwrap();
    let tables = "SELECT string_agg(tablename, ',') FROM pg_tables WHERE schemaname = $1::text";
    assert_eq!(client.query_one(tables, &[&schema.name]).await.unwrap().get::<_, &str>(0), "rows");

    let newer = crate::servers::postgres::schema().await;
    drop(open(&newer).await);
    newer.run("UPDATE {s}.schema_version SET version = 99").await;
    let error = PostgresStore::open_with(newer.options()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
    assert!(error.message().contains("newer version"), "{error}");
}

#[tokio::test]
#[ignore = "needs PostgreSQL: run scripts/servers.sh"]
async fn refusing_and_missing_servers_are_distinguished() {
    let schema = schema().await;
    let (scheme, rest) = schema.url.split_once("://").unwrap();
    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    let place = host.split(['/', '?']).next().unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let absent = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap()
    };
    let of_silent = silent.local_addr().unwrap().to_string();
    let open = |url: String| {
        // The others answer, but a busy machine may take a while.
        let timeout = if url.contains(&of_silent) { Duration::from_millis(500) } else { Duration::from_secs(60) };
        PostgresStore::open_with(PostgresOptions::new(url).with_timeout(timeout))
    };
    for (url, kind) in [
        (format!("{scheme}://nobody_of_that_name:s3cret@{host}"), ErrorKind::PermissionDenied),
        (schema.url.replace(host, &format!("{place}/no_database_of_that_name")), ErrorKind::NotFound),
        (format!("{scheme}://ada:s3cret@{absent}/x"), ErrorKind::Unavailable),
        (format!("{scheme}://ada:s3cret@{of_silent}/x?sslmode=disable"), ErrorKind::Unavailable),
        (format!("{scheme}://ada:s3cret@{host}?unknown=1"), ErrorKind::InvalidArgument),
        (format!("{scheme}://ada:s3cret@{place}/x?sslmode=sometimes"), ErrorKind::InvalidArgument),
        (format!("{scheme}://ada:s3cret@{place}/x?connections_max=1"), ErrorKind::InvalidArgument),
        (format!("{scheme}://ada:s3cret@{place}/x?sslrootcert=/absent"), ErrorKind::PermissionDenied),
        (format!("{scheme}://ada:s3cret@{place}/x?sslmode=verify-full&sslrootcert=/absent"), ErrorKind::InvalidArgument),
    ] {
        let error = open(url.clone()).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{url}: {error:?}");
        assert!(!error.message().contains("s3cret") && !error.message().contains("127.0.0.1"), "{error}");
    }
    let named = PostgresOptions::new(format!("{scheme}://ada:s3cret@{host}"));
    assert!(!format!("{named:?}").contains("s3cret"));
}

#[tokio::test]
#[ignore = "needs PostgreSQL: run scripts/servers.sh"]
async fn display_name_contains_no_secrets() {
    let schema = schema().await;
    let url = format!("{}?schema={}&application_name=named", schema.url, schema.name.replace(' ', "%20"));
    let store = PostgresStore::open(&url).await.unwrap();
    assert!(!store.to_string().contains(['@', '?']), "{store}");
    assert_eq!(format!("{store:?}"), format!("PostgresStore({:?})", store.to_string()));
    put(&store, "k", "v").await;
    assert_eq!(value(&open(&schema).await, "k").await.as_deref(), Some("v"), "the URL named the same schema");
}

#[tokio::test]
#[ignore = "needs PostgreSQL: run scripts/servers.sh"]
async fn durability_follows_the_session() {
    let schema = schema().await;
    assert_eq!(open(&schema).await.describe().await.unwrap().schema, Some(4));
    let url = format!("{}?options=-c%20synchronous_commit%3Doff", schema.url);
    let store = PostgresStore::open_with(PostgresOptions::new(url).with_schema(&schema.name)).await.unwrap();
    let description = store.describe().await.unwrap();
    assert_eq!((store.capabilities().durability, description.durability), (Durability::None, Durability::None));
    assert!(description.notices.iter().any(|notice| notice.contains("synchronous_commit")), "{description:?}");
    assert!(description.engine.contains(' '), "{description:?}");
}

#[tokio::test]
#[ignore = "needs PostgreSQL with TLS: run scripts/servers.sh"]
async fn encryption_follows_sslmode() {
    let schema = schema().await;
    let client = connect(&schema.url).await.unwrap();
    let ssl = client.query_one("SHOW ssl", &[]).await.unwrap();
    assert_eq!(ssl.get::<_, &str>(0), "on", "the server offers no TLS; set `ssl = on`");
    for (mode, is_encrypted) in [("disable", false), ("prefer", true), ("require", true)] {
        let name = format!("{}-{mode}", schema.name);
        let options = PostgresOptions::new(format!("{}?sslmode={mode}&application_name={}", schema.url, name.replace(' ', "%20")));
        let _store = PostgresStore::open_with(options.with_schema(&schema.name)).await.unwrap();
        let sql = "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = left($1::text, 63)";
        assert_eq!(client.query_one(sql, &[&name]).await.unwrap().get::<_, Option<bool>>(0), Some(is_encrypted), "{mode}");
    }
    // With a named root, `require` verifies as libpq does.
    let root = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(root.path(), ANOTHER_ROOT).unwrap();
    for mode in ["require", "verify-ca", "verify-full"] {
        let url = format!("{}?sslmode={mode}&sslrootcert={}", schema.url, root.path().display());
        let error = PostgresStore::open(url).await.unwrap_err();
        assert!(error.kind() == ErrorKind::Unavailable && error.message().contains("certificate"), "{mode}: {error:?}");
    }
}

#[tokio::test]
#[ignore = "needs PostgreSQL: run scripts/servers.sh"]
async fn damage_is_reported_and_never_read_as_absent() {
    let schema = schema().await;
    let store = open(&schema).await;
    put(&store, "k", "body").await;
    put(&store, "sound", "body").await;
    schema.run("UPDATE {s}.rows SET body = 'bod' WHERE head = 'k'; UPDATE {s}.partitions SET version = 1").await;
    assert_eq!(store.get(&namespace(), "k").await.unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(value(&store, "sound").await.as_deref(), Some("body"));
    assert_eq!(store.scan(&namespace(), ScanOptions::new()).await.unwrap().entries.len(), 2, "a scan without bodies succeeds");
    let found = store.check().await.unwrap();
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found.iter().all(|error| error.kind() == ErrorKind::Corrupt));
    schema.run("DROP TABLE {s}.rows").await;
    assert_eq!(store.get(&namespace(), "k").await.unwrap_err().kind(), ErrorKind::Corrupt);
}
