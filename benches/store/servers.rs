//! The servers: PostgreSQL, MySQL or MariaDB, and Redis, each compared with its usual client.

use crate::files::bench_grep;
use crate::partitions::bench_partitions;
use crate::raw::{Raw, Row, Writer, bench_raw};
use crate::work::{WRITERS, bench_store};
use ::redis::AsyncCommands;
use criterion::BenchmarkGroup;
use criterion::measurement::WallTime;
use mysql_async::prelude::Queryable;
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls};
use treehold::store::{MysqlStore, PostgresStore, RedisStore, Store};

const POSTGRES: (&str, &str) = ("TREEHOLD_TEST_POSTGRES_URL", "postgres://postgres@127.0.0.1:5432/postgres");
const MYSQL: (&str, &str) = ("TREEHOLD_TEST_MYSQL_URL", "mysql://root@127.0.0.1:3306/test");
const REDIS: (&str, &str) = ("TREEHOLD_TEST_REDIS_URL", "redis://127.0.0.1:6379");

pub(crate) fn bench(group: &mut BenchmarkGroup<'_, WallTime>, runtime: &Arc<Runtime>) {
    let name = format!("treehold_bench_{}", std::process::id());
    let table = |part: &str| format!("{name}_{part}");
    let postgres = url(POSTGRES);
    match runtime.block_on(PostgresStore::open(with_parameter(&postgres, "schema", &name))) {
        Ok(store) => {
            let store = Arc::new(store);
            bench_store(group, runtime, "postgres", || store.clone());
            let store: Arc<dyn Store> = store;
            bench_grep(group, runtime, "postgres", &store);
            bench_partitions(group, runtime, "postgres", &store);
            // A connection for each writer, as the raw writers have.
            let wide = with_parameter(&with_parameter(&postgres, "schema", &name), "connections_max", "32");
            let wide: Arc<dyn Store> = Arc::new(runtime.block_on(PostgresStore::open(wide)).unwrap());
            bench_partitions(group, runtime, "postgres_of_32_connections", &wide);
            bench_raw(group, runtime, "postgres_raw", |part| RawPostgres::open(runtime, &postgres, &table(part)));
            let drop =
                format!("DROP SCHEMA {name} CASCADE; DROP TABLE IF EXISTS {}; DROP TABLE IF EXISTS {}", table("raw"), table("listed"));
            runtime.block_on(async { postgres_client(&postgres).await.batch_execute(&drop).await }).unwrap();
        }
        Err(error) => println!("PostgreSQL is omitted: {error}"),
    }
    let mysql = url(MYSQL);
    match runtime.block_on(MysqlStore::open(with_parameter(&mysql, "prefix", &table("")))) {
        Ok(store) => {
            let store = Arc::new(store);
            bench_store(group, runtime, "mysql", || store.clone());
            let store: Arc<dyn Store> = store;
            bench_grep(group, runtime, "mysql", &store);
            bench_partitions(group, runtime, "mysql", &store);
            let wide = with_parameter(&with_parameter(&mysql, "prefix", &table("")), "connections_max", "16");
            let wide: Arc<dyn Store> = Arc::new(runtime.block_on(MysqlStore::open(wide)).unwrap());
            bench_partitions(group, runtime, "mysql_of_16_connections", &wide);
            // Over TCP, like the store.
            let raw = with_parameter(&mysql, "prefer_socket", "false");
            bench_raw(group, runtime, "mysql_raw", |part| RawMysql::open(runtime, &raw, &table(part)));
            runtime.block_on(drop_tables(&mysql, &name));
        }
        Err(error) => println!("MySQL is omitted: {error}"),
    }
    let redis = url(REDIS);
    match runtime.block_on(RedisStore::open(with_parameter(&redis, "prefix", &name))) {
        Ok(store) => {
            bench_store(group, runtime, "redis", || Arc::new(store));
            bench_raw(group, runtime, "redis_raw", |part| RawRedis::open(runtime, &redis, &table(part)));
            runtime.block_on(drop_keys(&redis, &name));
        }
        Err(error) => println!("Redis is omitted: {error}"),
    }
}

fn url((variable, usual): (&str, &str)) -> String {
    std::env::var(variable).unwrap_or_else(|_| usual.to_owned())
}

fn with_parameter(url: &str, name: &str, value: &str) -> String {
    format!("{url}{}{name}={value}", if url.contains('?') { '&' } else { '?' })
}

/// Gives each of many writers its own connection.
fn lent<C: Send + 'static, F: Future<Output = C> + Send + 'static>(
    connections: Vec<C>,
    put: impl Fn(C, Row) -> F + Clone + Send + Sync + 'static,
) -> Writer {
    let idle = Arc::new(Mutex::new(connections));
    Arc::new(move |row| {
        let (idle, put) = (idle.clone(), put.clone());
        Box::pin(async move {
            let connection = idle.lock().pop().expect("a connection for each writer");
            let connection = put(connection, row).await;
            idle.lock().push(connection);
        })
    })
}

async fn postgres_client(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

const POSTGRES_PUT: &str = "INSERT INTO {} AS old (key, value, number) VALUES ($1, $2, 0)
    ON CONFLICT (key) DO UPDATE SET value = excluded.value";

struct RawPostgres {
    runtime: Arc<Runtime>,
    url: String,
    client: Client,
    get: tokio_postgres::Statement,
    put: tokio_postgres::Statement,
    swap: tokio_postgres::Statement,
    keys: tokio_postgres::Statement,
    rows: tokio_postgres::Statement,
    table: String,
}

impl RawPostgres {
    fn open(runtime: &Arc<Runtime>, url: &str, table: &str) -> Self {
        let opened = runtime.block_on(async {
            let client = postgres_client(url).await;
            let create = format!(
                "CREATE TABLE {table}(key TEXT COLLATE \"C\" PRIMARY KEY, value BYTEA NOT NULL, number BIGINT NOT NULL);
                 ALTER TABLE {table} ALTER value SET STORAGE EXTERNAL"
            );
            client.batch_execute(&create).await.unwrap();
            let prepare = async |sql: &str| client.prepare(&sql.replace("{}", table)).await.unwrap();
            (
                prepare("SELECT value FROM {} WHERE key = $1").await,
                prepare(POSTGRES_PUT).await,
                prepare("UPDATE {} SET value = $2, number = number + 1 WHERE key = $1 AND number = $3").await,
                prepare("SELECT key FROM {} WHERE key >= $1 AND key < $2 ORDER BY key").await,
                prepare("SELECT key, value FROM {} WHERE key >= $1 AND key < $2 ORDER BY key").await,
                client,
            )
        });
        let (get, put, swap, keys, rows, client) = opened;
        Self { runtime: runtime.clone(), url: url.to_owned(), client, get, put, swap, keys, rows, table: table.to_owned() }
    }
}

impl Raw for RawPostgres {
    fn get(&self, key: &str) -> Option<Vec<u8>> {
        self.runtime.block_on(self.client.query_opt(&self.get, &[&key])).unwrap().map(|row| row.get(0))
    }

    fn put(&mut self, rows: &[Row]) {
        self.runtime.block_on(async {
            let [(key, value)] = rows else {
                let transaction = self.client.transaction().await.unwrap();
                let puts = rows.iter().map(|(key, value)| {
                    let (transaction, put) = (&transaction, &self.put);
                    async move { transaction.execute(put, &[key, value]).await.unwrap() }
                });
                futures::future::join_all(puts).await;
                return transaction.commit().await.unwrap();
            };
            self.client.execute(&self.put, &[key, value]).await.unwrap();
        });
    }

    fn compare_and_swap(&mut self, key: &str, number: u64, value: Vec<u8>) {
        let swapped = self.runtime.block_on(self.client.execute(&self.swap, &[&key, &value, &(number as i64)])).unwrap();
        assert_eq!(swapped, 1);
    }

    fn scan(&self, prefix: &str, with_values: bool) -> usize {
        let statement = if with_values { &self.rows } else { &self.keys };
        let end = format!("{prefix}\u{10FFFF}");
        let rows = self.runtime.block_on(self.client.query(statement, &[&prefix, &end])).unwrap();
        rows.iter().map(|row| row.get::<_, &str>(0).len() + if with_values { row.get::<_, Vec<u8>>(1).len() } else { 0 }).sum()
    }

    fn writer(&mut self, runtime: &Runtime) -> Writer {
        let connect = || async {
            let client = postgres_client(&self.url).await;
            let put = client.prepare(&POSTGRES_PUT.replace("{}", &self.table)).await.unwrap();
            (client, put)
        };
        let connections = runtime.block_on(futures::future::join_all((0..WRITERS).map(|_| connect())));
        lent(connections, |(client, put): (Client, tokio_postgres::Statement), (key, value)| async move {
            client.execute(&put, &[&key, &value]).await.unwrap();
            (client, put)
        })
    }
}

const MYSQL_PUT: &str = "INSERT INTO {} (k, v, n) VALUES (?, ?, 0) ON DUPLICATE KEY UPDATE v = VALUES(v)";

struct RawMysql {
    runtime: Arc<Runtime>,
    url: String,
    connection: Mutex<mysql_async::Conn>,
    table: String,
}

async fn mysql_connection(url: &str) -> mysql_async::Conn {
    mysql_async::Conn::from_url(url).await.unwrap()
}

async fn drop_tables(url: &str, name: &str) {
    let mut connection = mysql_connection(url).await;
    let tables: Vec<String> = connection.query("SHOW TABLES").await.unwrap();
    for table in tables.iter().filter(|table| table.starts_with(name)) {
        connection.query_drop(format!("DROP TABLE {table}")).await.unwrap();
    }
    connection.disconnect().await.unwrap();
}

impl RawMysql {
    fn open(runtime: &Arc<Runtime>, url: &str, table: &str) -> Self {
        let connection = runtime.block_on(async {
            let mut connection = mysql_connection(url).await;
            let create =
                format!("CREATE TABLE {table}(k VARBINARY(512) PRIMARY KEY, v LONGBLOB NOT NULL, n BIGINT NOT NULL) ENGINE = InnoDB");
            connection.query_drop(create).await.unwrap();
            connection
        });
        Self { runtime: runtime.clone(), url: url.to_owned(), connection: Mutex::new(connection), table: table.to_owned() }
    }

    fn sql(&self, sql: &str) -> String {
        sql.replace("{}", &self.table)
    }
}

impl Raw for RawMysql {
    fn get(&self, key: &str) -> Option<Vec<u8>> {
        let sql = self.sql("SELECT v FROM {} WHERE k = ?");
        self.runtime.block_on(self.connection.lock().exec_first(sql, (key,))).unwrap()
    }

    fn put(&mut self, rows: &[Row]) {
        // A single statement with several rows is fastest on this server.
        let values = vec!["(?, ?, 0)"; rows.len()].join(", ");
        let sql = self.sql(&MYSQL_PUT.replace("(?, ?, 0)", &values));
        let parameters: Vec<mysql_async::Value> = rows.iter().flat_map(|(key, value)| [key.into(), value.into()]).collect();
        self.runtime.block_on(self.connection.lock().exec_drop(sql, parameters)).unwrap();
    }

    fn compare_and_swap(&mut self, key: &str, number: u64, value: Vec<u8>) {
        let sql = self.sql("UPDATE {} SET v = ?, n = n + 1 WHERE k = ? AND n = ?");
        let mut connection = self.connection.lock();
        self.runtime.block_on(connection.exec_drop(sql, (value, key, number))).unwrap();
        assert_eq!(connection.affected_rows(), 1);
    }

    fn scan(&self, prefix: &str, with_values: bool) -> usize {
        let columns = if with_values { "k, v" } else { "k, ''" };
        let sql = self.sql(&format!("SELECT {columns} FROM {{}} WHERE k >= ? AND k < ? ORDER BY k"));
        let end = format!("{prefix}\u{10FFFF}");
        let rows: Vec<(Vec<u8>, Vec<u8>)> = self.runtime.block_on(self.connection.lock().exec(sql, (prefix, end))).unwrap();
        rows.iter().map(|(key, value)| key.len() + value.len()).sum()
    }

    fn writer(&mut self, runtime: &Runtime) -> Writer {
        let connections = runtime.block_on(futures::future::join_all((0..WRITERS).map(|_| mysql_connection(&self.url))));
        let put: Arc<str> = self.sql(MYSQL_PUT).into();
        lent(connections, move |mut connection: mysql_async::Conn, (key, value)| {
            let put = put.clone();
            async move {
                connection.exec_drop(&*put, (key, value)).await.unwrap();
                connection
            }
        })
    }
}

/// A row is a value, with its key in a sorted set as listings need it.
struct RawRedis {
    runtime: Arc<Runtime>,
    connection: redis::aio::MultiplexedConnection,
    name: String,
}

async fn redis_connection(url: &str) -> redis::aio::MultiplexedConnection {
    redis::Client::open(url).unwrap().get_multiplexed_async_connection().await.unwrap()
}

async fn drop_keys(url: &str, name: &str) {
    let mut connection = redis_connection(url).await;
    for pattern in [format!("{name}*"), format!("{{{name}}}*")] {
        let keys: Vec<String> = connection.keys(pattern).await.unwrap();
        for chunk in keys.chunks(1_000) {
            let _: () = connection.del(chunk).await.unwrap();
        }
    }
}

impl RawRedis {
    fn open(runtime: &Arc<Runtime>, url: &str, name: &str) -> Self {
        Self { runtime: runtime.clone(), connection: runtime.block_on(redis_connection(url)), name: name.to_owned() }
    }

    fn key(&self, key: &str) -> String {
        format!("{}:{key}", self.name)
    }
}

async fn redis_put(connection: &mut redis::aio::MultiplexedConnection, name: &str, rows: &[Row]) {
    let mut pipe = redis::pipe();
    pipe.atomic();
    for (key, value) in rows {
        pipe.set(format!("{name}:{key}"), value).ignore().zadd(name, key, 0).ignore();
    }
    let _: () = pipe.query_async(connection).await.unwrap();
}

impl Raw for RawRedis {
    fn get(&self, key: &str) -> Option<Vec<u8>> {
        let (mut connection, key) = (self.connection.clone(), self.key(key));
        self.runtime.block_on(async move { connection.get(key).await.unwrap() })
    }

    fn put(&mut self, rows: &[Row]) {
        self.runtime.block_on(redis_put(&mut self.connection, &self.name, rows));
    }

    fn compare_and_swap(&mut self, key: &str, number: u64, value: Vec<u8>) {
        let script = redis::Script::new(
            "local n = redis.call('GET', KEYS[2]) or '0'
             if n ~= ARGV[1] then return 0 end
             redis.call('SET', KEYS[1], ARGV[2])
             redis.call('INCR', KEYS[2])
             return 1",
        );
        let mut invocation = script.prepare_invoke();
        invocation.key(self.key(key)).key(self.key(&format!("{key}:number"))).arg(number).arg(value);
        let swapped: i64 = self.runtime.block_on(invocation.invoke_async(&mut self.connection)).unwrap();
        assert_eq!(swapped, 1);
    }

    fn scan(&self, prefix: &str, with_values: bool) -> usize {
        let mut connection = self.connection.clone();
        self.runtime.block_on(async {
            let keys: Vec<String> = connection.zrangebylex(&self.name, format!("[{prefix}"), format!("({prefix}\u{10FFFF}")).await.unwrap();
            let mut bytes = keys.iter().map(String::len).sum();
            if with_values {
                for chunk in keys.chunks(1_000) {
                    let names: Vec<String> = chunk.iter().map(|key| self.key(key)).collect();
                    let values: Vec<Vec<u8>> = connection.mget(names).await.unwrap();
                    bytes += values.iter().map(Vec::len).sum::<usize>();
                }
            }
            bytes
        })
    }

    fn writer(&mut self, _runtime: &Runtime) -> Writer {
        // One connection carries the commands of all writers.
        let (connection, name): (_, Arc<str>) = (self.connection.clone(), self.name.as_str().into());
        Arc::new(move |row| {
            let (mut connection, name) = (connection.clone(), name.clone());
            Box::pin(async move { redis_put(&mut connection, &name, &[row]).await })
        })
    }
}
