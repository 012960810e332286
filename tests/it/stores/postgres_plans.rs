//! The plans of every statement that the engine prepares, under missing and wrong statistics.
//!
//! A recorder on the way to the server collects the statements while the store runs every case of its contract. Each is then planned
//! over a table of some thousand rows. Statements keep the plan they got first, so a bad one would stay. Nor may a statement about rows
//! use what PostgreSQL-compatible clusters refuse.

use crate::servers::postgres::{connect, schema, server};
use serde_json::Value;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_postgres::{Client, SimpleQueryMessage};
use treehold::conformance::store::CASES;
use treehold::store::{PostgresOptions, PostgresStore, Store, StoreExt};

/// What clients sent, one stream of bytes for each connection.
type Recorded = Arc<Mutex<Vec<Vec<u8>>>>;

/// Passes connections on to a server and keeps what clients send; returns the port.
async fn record(server: SocketAddr, recorded: Recorded) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let number = {
                let mut all = recorded.lock().unwrap();
                all.push(Vec::new());
                all.len() - 1
            };
            let recorded = recorded.clone();
            tokio::spawn(async move {
                let server = TcpStream::connect(server).await.unwrap();
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_server, mut to_server) = server.into_split();
                let back = tokio::spawn(async move { tokio::io::copy(&mut from_server, &mut to_client).await });
                let mut buffer = vec![0; 1 << 16];
                while let Ok(count @ 1..) = from_client.read(&mut buffer).await {
                    recorded.lock().unwrap()[number].extend_from_slice(&buffer[..count]);
                    if to_server.write_all(&buffer[..count]).await.is_err() {
                        break;
                    }
                }
                back.abort();
            });
        }
    });
    port
}

/// Returns the texts of the messages of a kind in what a client sent: `P` prepares a statement, `Q` runs one.
fn messages(sent: &[u8], kind: u8) -> Vec<String> {
    let length = |at: usize| sent.get(at..at + 4).map(|bytes| u32::from_be_bytes(bytes.try_into().unwrap()) as usize);
    let text = |bytes: &[u8]| bytes.split(|byte| *byte == 0).map(|part| String::from_utf8_lossy(part).into_owned()).collect::<Vec<_>>();
    let mut found = Vec::new();
    // The first message has no kind.
    let mut at = length(0).unwrap_or(sent.len());
    while let Some(size) = length(at + 1) {
        if sent[at] == kind
            && let Some(body) = sent.get(at + 5..at + 1 + size)
        {
            found.push(text(body)[usize::from(kind == b'P')].clone());
        }
        at += 1 + size;
    }
    found
}

/// Returns every statement about the rows that the cases of the contract make the store prepare, with `{s}` in place of the schema, and
/// the statement that sets its sessions up.
async fn prepared() -> (BTreeSet<String>, String) {
    let recorded = Recorded::default();
    let url = server();
    let (user, rest) = url.strip_prefix("postgres://").and_then(|rest| rest.split_once('@')).unwrap();
    let (place, database) = rest.split_once('/').unwrap();
    let address = if place.contains(':') { place.to_owned() } else { format!("{place}:5432") };
    let address = tokio::net::lookup_host(address).await.unwrap().next().unwrap();
    let port = record(address, recorded.clone()).await;
    let through = format!("postgres://{user}@127.0.0.1:{port}/{}?sslmode=disable", database.split('?').next().unwrap());
    let (mut statements, mut settings) = (BTreeSet::new(), None);
    for case in CASES {
        let schema = schema().await;
        let store = PostgresStore::open_with(PostgresOptions::new(&through).with_schema(&schema.name)).await.unwrap();
        let store: Arc<dyn Store> = Arc::new(store);
        case.run(store.clone()).await;
        store.sweep(100).await.unwrap();
        let sent = std::mem::take(&mut *recorded.lock().unwrap());
        // Later connections append to a list of their own.
        recorded.lock().unwrap().resize(sent.len(), Vec::new());
        for sent in &sent {
            let all = messages(sent, b'P').into_iter().map(|sql| sql.replace(&format!("\"{}\"", schema.name), "{s}"));
            statements.extend(all.filter(|sql| sql.contains("{s}.rows")));
            settings = settings.or_else(|| messages(sent, b'Q').into_iter().find(|sql| sql.contains("set_config")));
        }
    }
    (statements, settings.expect("a session is set up"))
}

/// How the statistics mislead, by what is done to a table of 5,000 rows.
const STATISTICS: [(&str, &str); 6] = [
    ("never analysed", ""),
    ("analysed", "ANALYZE {s}.rows"),
    ("analysed, then without statistics", "ANALYZE {s}.rows; DELETE FROM pg_catalog.pg_statistic WHERE starelid = '{s}.rows'::regclass"),
    (
        "analysed while it was empty",
        "CREATE TEMPORARY TABLE kept AS SELECT * FROM {s}.rows; TRUNCATE {s}.rows; ANALYZE {s}.rows; INSERT INTO {s}.rows SELECT * FROM kept; \
         DROP TABLE kept",
    ),
    ("believed to hold one row", "UPDATE pg_catalog.pg_class SET reltuples = 1, relpages = 1 WHERE oid = '{s}.rows'::regclass"),
    (
        "believed to be huge and alike",
        "CREATE TEMPORARY TABLE kept AS SELECT * FROM {s}.rows; UPDATE {s}.rows SET expires_at = 1; ANALYZE {s}.rows; TRUNCATE {s}.rows; \
         INSERT INTO {s}.rows SELECT * FROM kept; DROP TABLE kept; \
         UPDATE pg_catalog.pg_class SET reltuples = 1e9, relpages = 1 WHERE oid = '{s}.rows'::regclass",
    ),
];

/// Plans a statement without values, as the store's sessions do.
async fn plan(client: &Client, sql: &str) -> Value {
    client.batch_execute(&format!("PREPARE planned AS {sql}")).await.unwrap_or_else(|error| panic!("{error:?}: {sql}"));
    let parameters = (1..).take_while(|number| sql.contains(&format!("${number}"))).map(|_| "NULL").collect::<Vec<_>>().join(", ");
    let parameters = if parameters.is_empty() { String::new() } else { format!("({parameters})") };
    let rows = client.simple_query(&format!("EXPLAIN (FORMAT JSON) EXECUTE planned{parameters}")).await.unwrap();
    client.batch_execute("DEALLOCATE planned").await.unwrap();
    let lines = rows.iter().filter_map(|row| if let SimpleQueryMessage::Row(row) = row { row.get(0) } else { None });
    let mut plan: Value = serde_json::from_str(&lines.collect::<Vec<_>>().join("\n")).unwrap();
    plan[0]["Plan"].take()
}

/// Returns whether a scan of the rows looks up a key that comes from elsewhere in the plan.
fn is_lookup(scan: &Value) -> bool {
    let condition = scan["Index Cond"].as_str().unwrap_or_default().as_bytes();
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'"');
    condition.windows(3).any(|window| is_name(window[0]) && window[1] == b'.' && (window[2].is_ascii_alphabetic() || window[2] == b'"'))
}

fn is_of_rows(node: &Value) -> bool {
    node["Relation Name"] == "rows" && node["Node Type"].as_str().is_some_and(|kind| kind.contains("Scan"))
}

/// Returns the scans of the rows at and beneath a node, except for those in subplans.
fn scans(node: &Value) -> Vec<&Value> {
    let beneath = node["Plans"].as_array().into_iter().flatten().filter(|child| child["Subplan Name"].is_null());
    let mut found: Vec<&Value> = beneath.flat_map(scans).collect();
    if is_of_rows(node) {
        found.push(node);
    }
    found
}

/// Collects what is wrong at and beneath a node.
fn faults(node: &Value, found: &mut Vec<String>) {
    if is_of_rows(node) && node["Index Cond"].is_null() {
        found.push(format!("a {} reads all rows", node["Node Type"]));
    }
    let children = node["Plans"].as_array().map(Vec::as_slice).unwrap_or_default();
    if node["Node Type"] == "Nested Loop" {
        for child in children {
            match child["Parent Relationship"].as_str() {
                Some("Outer") if is_of_rows(child) && !is_lookup(child) => found.push("each row is compared with each key".to_owned()),
                Some("Inner") if scans(child).into_iter().any(|scan| !is_lookup(scan)) => {
                    found.push("rows are read again for each key".to_owned());
                }
                _ => {}
            }
        }
    }
    children.iter().for_each(|child| faults(child, found));
}

/// Returns what a statement uses that a distributed engine refuses (docs/scale.md): two changes of one table, or a limit that depends on a
/// row.
fn unusable_in_clusters(sql: &str) -> Vec<String> {
    fn table(word: &str) -> Option<&str> {
        word.strip_prefix("{s}.").and_then(|word| word.split(|part: char| !part.is_ascii_lowercase()).next())
    }
    let words: Vec<&str> = sql.split_whitespace().collect();
    let mut changed = BTreeSet::new();
    let changes = words.windows(3).filter_map(|three| match three[0].trim_start_matches('(') {
        "INSERT" | "DELETE" => table(three[2]),
        "UPDATE" => table(three[1]),
        _ => None,
    });
    let twice = changes.filter(|table| !changed.insert(*table)).map(|table| format!("`{table}` is changed twice"));
    let limits =
        words.windows(2).filter(|two| two[0] == "LIMIT" && !two[1].starts_with(|first: char| first.is_ascii_digit() || first == '$'));
    twice.chain(limits.map(|two| format!("the limit is `{}`", two[1]))).collect()
}

#[test]
fn statement_that_clusters_refuse_is_recognised() {
    let found = |sql| unusable_in_clusters(sql);
    assert_eq!(found("WITH a AS (DELETE FROM {s}.rows i) UPDATE {s}.rows SET version = 1"), ["`rows` is changed twice"]);
    assert_eq!(found("INSERT INTO {s}.rows VALUES (1) RETURNING (SELECT 1 LIMIT 1)"), [""; 0]);
    assert_eq!(
        found("WITH a AS (UPDATE {s}.partitions SET a = 1), b AS (INSERT INTO {s}.rows VALUES (1)) SELECT 1 LIMIT $2::int8"),
        [""; 0]
    );
    assert_eq!(found("SELECT 1 FROM w CROSS JOIN LATERAL (SELECT 1 FROM {s}.rows LIMIT w.count) r"), ["the limit is `w.count)`"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL: run scripts/servers.sh"]
async fn every_prepared_statement_finds_rows_by_an_index_whatever_the_statistics_say() {
    let (statements, settings) = prepared().await;
    assert!(statements.len() > 40, "{} statements", statements.len());
    for part in ["expires_at <= ", "DELETE FROM {s}.rows i", "INSERT INTO {s}.rows", "UPDATE {s}.rows i", "WITH RECURSIVE", "LATERAL"] {
        assert!(statements.iter().any(|sql| sql.contains(part)), "no statement has `{part}`");
    }
    for sql in &statements {
        assert_eq!(unusable_in_clusters(sql), [""; 0], "{sql}");
    }
    let mut wrong = BTreeSet::new();
    for (what, statistics) in STATISTICS {
        let schema = schema().await;
        drop(PostgresStore::open_with(schema.options()).await.unwrap());
        schema
            .run(
                "ALTER TABLE {s}.rows SET (autovacuum_enabled = off);
                 INSERT INTO {s}.rows SELECT 'p' || n % 7, 'n' || n % 50, 'key' || n, '', '', n, n, n, CASE WHEN n % 2 = 0 THEN n END, 1, '', 'x'
                 FROM generate_series(1, 5000) AS n",
            )
            .await;
        schema.run(statistics).await;
        let client = connect(&schema.url).await.unwrap();
        client.simple_query(&settings).await.unwrap();
        for sql in &statements {
            // Statistics and checks read the whole store.
            if sql.trim_start().starts_with("SELECT count(") || sql.trim_start().starts_with("SELECT 1 - count(") {
                continue;
            }
            let plan = plan(&client, &sql.replace("{s}", &format!("\"{}\"", schema.name))).await;
            let mut found = Vec::new();
            faults(&plan, &mut found);
            wrong.extend(found.into_iter().map(|fault| format!("{what}: {fault}: {sql}\n{plan:#}")));
        }
    }
    assert!(wrong.is_empty(), "{} plans: {}", wrong.len(), wrong.iter().take(3).cloned().collect::<Vec<_>>().join("\n"));
}
