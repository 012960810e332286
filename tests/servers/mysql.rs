//! MySQL or MariaDB: a separate database for each fresh store, dropped at the end.

use super::proxy::Proxy;
use super::{OnServer, absent, url};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::OnceCell;
use treehold::store::{MysqlOptions, MysqlStore, Store};

const VARIABLE: &str = "TREEHOLD_TEST_MYSQL_URL";

/// How long the server may take. An absent one refuses at once, and a stalled disk delays each change of a database.
const PATIENCE: Duration = Duration::from_secs(60);

/// A database that is dropped with this.
pub(crate) struct Database {
    /// The URL of the database for a store.
    pub(crate) url: String,
    pub(crate) name: String,
}

/// Returns the URL of the server, with its administration database.
pub(crate) fn server_url() -> String {
    url(VARIABLE, "mysql://root@127.0.0.1:3306/test")
}

fn options() -> Opts {
    let url = server_url().replacen("mariadb://", "mysql://", 1);
    OptsBuilder::from_opts(Opts::from_url(&url).unwrap()).prefer_socket(false).into()
}

/// Runs statements as the administrator.
pub(crate) async fn administer(sql: &str) -> Result<Vec<mysql_async::Row>, String> {
    let run = async {
        let mut connection = Conn::new(options()).await?;
        let rows = connection.query(sql).await?;
        connection.disconnect().await?;
        Ok::<_, mysql_async::Error>(rows)
    };
    match tokio::time::timeout(PATIENCE, run).await {
        Ok(rows) => rows.map_err(|error| error.to_string()),
        Err(_) => Err("no answer in time".to_owned()),
    }
}

/// Makes an empty database. Probes the server once per process.
///
/// # Panics
/// If no server answers.
pub(crate) async fn database() -> Database {
    static SERVER: OnceCell<Result<(), String>> = OnceCell::const_new();
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    SERVER
        .get_or_init(|| async { administer("SELECT 1").await.map(drop) })
        .await
        .clone()
        .unwrap_or_else(|error| panic!("{}", absent("mysql", VARIABLE, &error)));
    let name = format!("treehold_test_{}_{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    administer(&format!("DROP DATABASE IF EXISTS `{name}`")).await.unwrap();
    administer(&format!("CREATE DATABASE `{name}`")).await.unwrap();
    let server = server_url();
    let (server, query) = server.split_once('?').map_or((server.as_str(), String::new()), |(server, query)| (server, format!("?{query}")));
    let (server, _) = server.rsplit_once('/').unwrap();
    Database { url: format!("{server}/{name}{query}"), name }
}

/// Makes a fresh store.
pub(crate) async fn fresh() -> OnServer {
    let database = database().await;
    let store = MysqlStore::open_with(MysqlOptions::new(&database.url)).await.unwrap();
    (Arc::new(store) as Arc<dyn Store>, Box::new(database))
}

impl Drop for Database {
    fn drop(&mut self) {
        let sql = format!("DROP DATABASE IF EXISTS `{}`", self.name);
        // Use a separate thread and runtime: the test's runtime may be ending.
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(administer(&sql))
        });
        // If the server is gone, so is the database.
        let _ = dropped.join();
    }
}

/// Starts a proxy of the server of a database; returns the URL of the database through the proxy.
pub(crate) async fn proxied(url: &str) -> (Proxy, String) {
    let opts = Opts::from_url(url).unwrap();
    let address = tokio::net::lookup_host((opts.ip_or_hostname(), opts.tcp_port())).await.unwrap().next().unwrap();
    let proxy = Proxy::start(address).await;
    let (user, rest) = url.rsplit_once('@').unwrap();
    let url = format!("{user}@127.0.0.1:{}/{}", proxy.port, rest.split_once('/').unwrap().1);
    (proxy, url)
}

/// Runs the statements of a dump in a database. Rows between two definitions are committed together: a dump has hundreds.
pub(crate) async fn load(database: &Database, dump: &str) {
    let url = database.url.replacen("mariadb://", "mysql://", 1);
    let options = OptsBuilder::from_opts(Opts::from_url(&url).unwrap()).prefer_socket(false);
    let mut connection = Conn::new(Opts::from(options)).await.unwrap();
    connection.query_drop("SET autocommit = 0").await.unwrap();
    for statement in dump.split(";\n").map(str::trim).filter(|statement| !statement.is_empty()) {
        connection.query_drop(statement).await.unwrap();
    }
    connection.query_drop("COMMIT").await.unwrap();
    connection.disconnect().await.unwrap();
}
