//! PostgreSQL: a separate schema for each fresh store, removed at the end.

use super::proxy::Proxy;
use super::{OnServer, absent, url};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::OnceCell;
use tokio_postgres::{Client, NoTls};
use treehold::clock::Clock;
use treehold::store::{PostgresOptions, PostgresStore};

const VARIABLE: &str = "TREEHOLD_TEST_POSTGRES_URL";

/// How long the server may take to accept a connection. An absent one refuses at once.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

/// Returns the URL of the server.
pub(crate) fn server() -> String {
    url(VARIABLE, "postgres://postgres@127.0.0.1/postgres")
}

/// Makes a fresh store on the server.
pub(crate) async fn fresh() -> OnServer {
    let schema = schema().await;
    let store = PostgresStore::open_with(schema.options()).await.unwrap();
    schema.distribute().await;
    (Arc::new(store), Box::new(schema))
}

/// Makes a fresh store on the server that takes the time from `clock`.
pub(crate) async fn fresh_with(clock: Clock) -> OnServer {
    let schema = schema().await;
    let store = PostgresStore::open_with(schema.options().with_clock(clock)).await.unwrap();
    schema.distribute().await;
    (Arc::new(store), Box::new(schema))
}

/// Names a fresh schema.
///
/// # Panics
/// If no server answers.
pub(crate) async fn schema() -> Schema {
    static PROBE: OnceCell<Result<(), String>> = OnceCell::const_new();
    PROBE.get_or_init(probe).await.clone().unwrap_or_else(|reason| panic!("{reason}"));
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let started = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos();
    let name = format!("test {}-{started}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    Schema { name, url: server() }
}

/// Names a fresh schema, and makes and distributes its tables if the server is the coordinator of a Citus cluster.
pub(crate) async fn distributed_schema() -> Schema {
    let schema = schema().await;
    if std::env::var_os("TREEHOLD_TEST_CITUS").is_some() {
        drop(PostgresStore::open_with(schema.options()).await.unwrap());
        schema.distribute().await;
    }
    schema
}

async fn probe() -> Result<(), String> {
    let connected = tokio::time::timeout(PATIENCE, connect(&server())).await;
    let error: &dyn std::fmt::Display = match &connected {
        Ok(Ok(_)) => return Ok(()),
        Ok(Err(error)) => error,
        Err(_) => &"it is silent",
    };
    Err(absent("postgres", VARIABLE, error))
}

/// Connects without the store's own code.
pub(crate) async fn connect(url: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(async move { drop(connection.await) });
    Ok(client)
}

/// A unique schema, removed on drop.
pub(crate) struct Schema {
    pub(crate) name: String,
    pub(crate) url: String,
}

impl Schema {
    /// Opens a store in it.
    pub(crate) fn options(&self) -> PostgresOptions {
        PostgresOptions::new(&self.url).with_schema(&self.name)
    }

    /// Spreads the tables of the store in it over the nodes, if the server is the coordinator of a Citus cluster, as docs/scale.md says.
    pub(crate) async fn distribute(&self) {
        if std::env::var_os("TREEHOLD_TEST_CITUS").is_some() {
            for table in ["partitions", "namespaces", "rows"] {
                let with = if table == "partitions" { "none".to_owned() } else { format!("\"{}\".partitions", self.name) };
                self.run(&format!("SELECT create_distributed_table('{{s}}.{table}', 'partition', colocate_with => '{with}')")).await;
            }
        }
    }

    /// Runs statements in which `{s}` stands for the schema.
    pub(crate) async fn run(&self, sql: &str) {
        let client = connect(&self.url).await.unwrap();
        client.batch_execute(&sql.replace("{s}", &format!("\"{}\"", self.name))).await.unwrap();
    }
}

impl Drop for Schema {
    fn drop(&mut self) {
        let (name, url) = (self.name.clone(), self.url.clone());
        // A failing test drops this within a runtime, where another runtime cannot block.
        let removal = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let client = connect(&url).await?;
                client.batch_execute(&format!("DROP SCHEMA IF EXISTS \"{name}\" CASCADE")).await
            })
        });
        // Ignore failures: a schema that stays has the name of its test.
        drop(removal.join());
    }
}

/// Starts a proxy of the server; returns the URL through the proxy.
pub(crate) async fn proxied(schema: &Schema) -> (Proxy, String) {
    let (before, rest) = schema.url.split_once('@').unwrap();
    let place = rest.split('/').next().unwrap();
    let place_and_port = if place.contains(':') { place.to_owned() } else { format!("{place}:5432") };
    let address = tokio::net::lookup_host(place_and_port).await.unwrap().next().unwrap();
    let proxy = Proxy::start(address).await;
    let url = format!("{before}@127.0.0.1:{}{}?sslmode=disable", proxy.port, &rest[place.len()..]);
    (proxy, url)
}
