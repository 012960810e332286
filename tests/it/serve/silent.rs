//! A store that does not answer: what a request waits for before its handler.

use super::{Served, workspace};
use async_trait::async_trait;
use std::fmt;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;
use treehold::ops::Version;
use treehold::serve::{Access, Rights};
use treehold::store::{
    Batch, Item, ItemPart, Namespace, NamespacePage, NamespacesOptions, Partition, RESERVED_ROOT, Scan, ScanOptions, Store,
    StoreCapabilities, StoreExtensions, Watch,
};
use treehold::{MemoryStore, Result};

/// Only a request without a deadline takes this long.
const NEVER: Duration = Duration::from_secs(60);

/// A store that never answers a read of a token.
#[derive(Debug, Default)]
struct Silent(MemoryStore);

impl fmt::Display for Silent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("silent")
    }
}

#[async_trait]
impl Store for Silent {
    fn capabilities(&self) -> StoreCapabilities {
        self.0.capabilities()
    }

    fn extensions(&self) -> StoreExtensions<'_> {
        self.0.extensions().without_reads()
    }

    async fn get(&self, namespace: &Namespace, key: &str) -> Result<Option<Item>> {
        if *namespace == Namespace::new([RESERVED_ROOT, "tokens"])? {
            std::future::pending::<()>().await;
        }
        self.0.get(namespace, key).await
    }

    async fn get_part(&self, namespace: &Namespace, key: &str, range: Range<u64>) -> Result<Option<ItemPart>> {
        self.0.get_part(namespace, key, range).await
    }

    async fn get_many(&self, namespace: &Namespace, keys: &[&str], with_values: bool) -> Result<Vec<Option<Item>>> {
        self.0.get_many(namespace, keys, with_values).await
    }

    async fn scan(&self, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
        self.0.scan(namespace, options).await
    }

    async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage> {
        self.0.namespaces(options).await
    }

    async fn commit(&self, batch: Batch) -> Result<Vec<Version>> {
        self.0.commit(batch).await
    }

    async fn current_version(&self, partition: &Partition) -> Result<Version> {
        self.0.current_version(partition).await
    }

    async fn watch(&self, namespace: &Namespace) -> Result<Watch> {
        self.0.watch(namespace).await
    }
}

/// Sends a request and returns what is answered.
fn asked(served: &Served, path: &str, token: &str) -> String {
    let host = served.base.trim_start_matches("http://");
    let mut stream = TcpStream::connect(host).unwrap();
    stream.set_read_timeout(Some(NEVER)).unwrap();
    let head = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

/// The deadline began only after the caller was known, and at `/mcp` and `/metrics` there was none.
#[test]
fn request_whose_token_cannot_be_looked_up_ends_at_the_deadline() {
    let store: Arc<dyn Store> = Arc::new(Silent::default());
    let limited = workspace(&store);
    let served =
        Served::of(Runtime::new().unwrap(), limited, store, |options| options.with_tokens(true).with_deadline(Duration::from_millis(100)));
    let token = served.token("acme", "ada", Rights::new(Access::Admin));
    for path in ["/v1/fs/a", "/v1/sessions", "/mcp", "/mcp/t/one", "/v1/connect", "/metrics"] {
        let answer = asked(&served, path, &token);
        assert!(answer.starts_with("HTTP/1.1 504 "), "{path}: {answer}");
        assert!(answer.contains("\"code\":\"deadline\"") && answer.contains("the token could not be looked up"), "{path}: {answer}");
    }
    // No store is asked.
    assert!(asked(&served, "/v1/fs/a", "thd_none").starts_with("HTTP/1.1 401 "));
}
