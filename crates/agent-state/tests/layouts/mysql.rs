//! AgentScope's table in MySQL or MariaDB.

use super::support::{assert_refused, each_operation, each_operation_on_slot, json, slot};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder, Row};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use treehold_agent_state::layouts::{MysqlStates, MysqlStatesOptions, UNCOUNTED_VERSION};
use treehold_agent_state::{
    AgentStateStore, DeleteOptions, DeleteSessionOptions, Expected, Json, SaveOptions, StateKey, StateSlot, StateVersion,
};
use treehold_core::error::ErrorKind;

fn server() -> String {
    std::env::var("TREEHOLD_TEST_MYSQL_URL").unwrap_or_else(|_| "mysql://root@127.0.0.1:3306/test".to_owned())
}

async fn connect() -> Conn {
    let url = server().replacen("mariadb://", "mysql://", 1);
    Conn::new(OptsBuilder::from_opts(Opts::from_url(&url).unwrap()).prefer_socket(false)).await.unwrap()
}

/// A database that is dropped at the end.
struct Database {
    name: String,
    url: String,
}

impl Database {
    fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let name = format!("agentscope-test-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let url = server();
        let (server, query) = url.split_once('?').map_or((url.as_str(), ""), |(server, query)| (server, query));
        let (server, _) = server.rsplit_once('/').unwrap();
        let and = if query.is_empty() { "" } else { "&" };
        Self { url: format!("{server}/{name}?{query}{and}create=true"), name }
    }

    fn table(&self) -> String {
        format!("`{}`.`agentscope_sessions`", self.name)
    }

    /// Runs a statement on the table `{t}` as another program would.
    async fn run(&self, statement: &str) -> Vec<Row> {
        let mut conn = connect().await;
        let rows = conn.query(statement.replace("{t}", &self.table())).await.unwrap();
        conn.disconnect().await.unwrap();
        rows
    }

    /// Returns the rows as text.
    async fn dump(&self) -> Vec<String> {
        let select = "SELECT CONCAT_WS(' ', session_id, state_key, item_index, state_data, version) FROM {t} \
                      ORDER BY CAST(session_id AS BINARY), CAST(state_key AS BINARY), item_index";
        self.run(select).await.into_iter().map(mysql_async::from_row).collect()
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let drop = format!("DROP DATABASE IF EXISTS `{}`", self.name);
        // The runtime of the test may be ending.
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async { connect().await.query_drop(drop).await })
        });
        let _ = dropped.join();
    }
}

async fn fresh() -> (MysqlStates, Database) {
    let database = Database::new();
    (MysqlStates::open(&database.url).await.unwrap(), database)
}

async fn fresh_states() -> (Arc<dyn AgentStateStore>, Database) {
    let (states, database) = fresh().await;
    (Arc::new(states), database)
}

state_store_cases!(
    #[ignore = "needs a MySQL or MariaDB server"]
    contract,
    super::fresh_states
);

fn version(number: u64) -> StateVersion {
    StateVersion::new(number).unwrap()
}

#[tokio::test]
#[ignore = "needs a MySQL or MariaDB server"]
async fn rows_are_those_of_agentscope() {
    let (states, database) = fresh().await;
    let ada = slot("ada", "s1");
    for text in ["{ \"a\": [1, 2.0] }", "{\"b\": \"\\u00e9\"}"] {
        states.save(&ada, "agent_state", &json(text), SaveOptions::new()).await.unwrap();
    }
    states.save(&slot(None, "telegram:17"), "agent_state", &json("{}"), SaveOptions::new()).await.unwrap();
    states.save_list(&ada, "memory_messages", &[json("{ }"), json("2")], SaveOptions::new()).await.unwrap();
    let mut dump = database.dump().await;
    assert!(dump.remove(4).starts_with("ada:s1 memory_messages:_hash 0 text:"));
    let expected = [
        "__anon__:telegram:17 agent_state 0 {} 1",
        "ada:s1 agent_state 0 {\"b\":\"é\"} 2",
        "ada:s1 memory_messages 0 {} 0",
        "ada:s1 memory_messages 1 2 0",
    ];
    assert_eq!(dump, expected);
    states.delete_session(&ada, DeleteSessionOptions::new()).await.unwrap();
    assert_eq!(database.dump().await, expected[..1]);
}

/// AgentScope's statements of a save, for each expectation.
#[tokio::test]
#[ignore = "needs a MySQL or MariaDB server"]
async fn versions_go_on_across_our_saves_and_those_of_agentscope() {
    let (states, database) = fresh().await;
    let here = slot("ada", "s1");
    let save =
        async |text: &str, expected: Expected| states.save(&here, "k", &json(text), SaveOptions::new().with_expected(expected)).await;
    let compare = async |text: &str, expected: u64| {
        let mut conn = connect().await;
        let update = format!(
            "UPDATE {} SET state_data = ?, version = ? WHERE session_id = ? AND state_key = ? AND item_index = ? AND version = ?",
            database.table()
        );
        conn.exec_drop(update, (text, expected + 1, "ada:s1", "k", 0, expected)).await.unwrap();
        conn.affected_rows() == 1
    };
    let upsert = "INSERT INTO {t} (session_id, state_key, item_index, state_data, version) VALUES ('ada:s1', 'k', 0, '7', 1) \
                  ON DUPLICATE KEY UPDATE state_data = VALUES(state_data), version = version + 1";
    assert_eq!(save("1", Expected::Absent).await.unwrap(), Some(version(1)));
    assert!(compare("2", 1).await && !compare("2", 1).await);
    assert_eq!(save("3", Expected::Version(version(1))).await.unwrap_err().current_version().unwrap().number(), 2);
    assert_eq!(save("3", Expected::Version(version(2))).await.unwrap(), Some(version(3)));
    assert!(!compare("4", 2).await && compare("4", 3).await);
    database.run(upsert).await;
    assert_eq!(save("6", Expected::Any).await.unwrap(), Some(version(6)));
    assert_eq!(save("7", Expected::Absent).await.unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(database.dump().await, ["ada:s1 k 0 6 6"]);
}

/// AgentScope's issue 3165: rows from before there were versions have the version 0, and every compare-and-set of them was refused.
#[tokio::test]
#[ignore = "needs a MySQL or MariaDB server"]
async fn row_without_a_version_is_neither_absent_nor_in_conflict() {
    let (states, database) = fresh().await;
    let here = slot("ada", "s1");
    database.run("INSERT INTO {t} (session_id, state_key, item_index, state_data) VALUES ('ada:s1', 'k', 0, '1')").await;
    let found = states.get(&here, "k").await.unwrap().unwrap();
    assert_eq!(found.version, Some(version(UNCOUNTED_VERSION)));
    assert_eq!(states.version(&here, "k").await.unwrap(), found.version);
    for wrong in [Expected::Absent, Expected::Version(version(1))] {
        let error = states.save(&here, "k", &json("2"), SaveOptions::new().with_expected(wrong)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{wrong:?}");
    }
    let expected = SaveOptions::new().with_expected(Expected::Version(found.version.unwrap()));
    assert_eq!(states.save(&here, "k", &json("2"), expected.clone()).await.unwrap(), Some(version(1)));
    assert_eq!(states.save(&here, "k", &json("3"), expected).await.unwrap_err().kind(), ErrorKind::Conflict);
}

/// AgentScope leaves the old elements in place when an empty list is saved.
#[tokio::test]
#[ignore = "needs a MySQL or MariaDB server"]
async fn changed_list_loses_the_hash_of_agentscope_and_unchanged_list_keeps_it() {
    let (states, database) = fresh().await;
    let here = slot("ada", "s1");
    for (texts, is_kept) in
        [(&["1", "2"][..], true), (&["1", "2", "3"], false), (&["1"], false), (&["2", "1"], false), (&[], false), (&["1", "3"], false)]
    {
        database.run("DELETE FROM {t}").await;
        let insert = "INSERT INTO {t} (session_id, state_key, item_index, state_data) VALUES ('ada:s1', 'l', 0, '1'), ('ada:s1', 'l', 1, '2'), \
                      ('ada:s1', 'l:_hash', 0, '7c3f1a2b')";
        database.run(insert).await;
        let values: Vec<Json> = texts.iter().map(|text| json(text)).collect();
        states.save_list(&here, "l", &values, SaveOptions::new()).await.unwrap();
        assert_eq!(states.get_list(&here, "l").await.unwrap(), values);
        assert_eq!(states.keys(&here).await.unwrap(), [StateKey::List("l".to_owned())]);
        let dump = database.dump().await;
        assert_eq!(dump.len(), texts.len() + 1);
        assert_eq!(dump.last().unwrap() == "ada:s1 l:_hash 0 7c3f1a2b 0", is_kept, "{texts:?}: {dump:?}");
    }
    let long: Vec<Json> = (0..1_203).map(|number| json(&number.to_string())).collect();
    states.save_list(&here, "l", &long, SaveOptions::new()).await.unwrap();
    assert_eq!(states.get_list(&here, "l").await.unwrap(), long);
}

/// The table compares without case, accents and trailing spaces: the row of another id is neither read nor written.
#[tokio::test]
#[ignore = "needs a MySQL or MariaDB server"]
async fn ids_that_the_table_takes_for_a_stored_one_are_refused_and_stored_data_stays() {
    let (states, database) = fresh().await;
    states.save(&slot("ada", "s1"), "key", &json("\"kept\""), SaveOptions::new()).await.unwrap();
    states.save_list(&slot("ada", "s1"), "list", &[json("\"kept\"")], SaveOptions::new()).await.unwrap();
    let before = database.dump().await;
    for (user, session, key) in [
        ("Ada", "s1", "key"),
        ("ada", "S1", "key"),
        ("ádà", "s1", "key"),
        ("ada", "s1 ", "key"),
        ("ada", "s1", "KEY"),
        ("ada", "s1", "kéy"),
        ("ada", "s1", "key "),
        ("ADA", "s1", "list"),
        ("ada", "s1", "List"),
    ] {
        let other = StateSlot::new(Some(user), session).unwrap();
        assert_eq!(states.get(&other, key).await.unwrap(), None, "{user}:{session} {key}");
        assert_eq!(states.get_list(&other, key).await.unwrap(), []);
        assert_eq!(states.version(&other, key).await.unwrap(), None);
        assert_eq!(states.exists(&other).await.unwrap(), (user, session) == ("ada", "s1"));
        for expected in [Expected::Any, Expected::Absent, Expected::Version(version(1))] {
            let error = states.save(&other, key, &json("2"), SaveOptions::new().with_expected(expected)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{user}:{session} {key}");
        }
        for values in [&[json("1")][..], &[]] {
            let error = states.save_list(&other, key, values, SaveOptions::new()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{user}:{session} {key}");
        }
        states.delete(&other, key, DeleteOptions::new()).await.unwrap();
        if (user, session) != ("ada", "s1") {
            states.delete_session(&other, DeleteSessionOptions::new()).await.unwrap();
            assert_eq!(states.keys(&other).await.unwrap(), []);
            if user != "ada" {
                assert!(states.session_ids(Some(user), None, 10).await.unwrap().sessions.is_empty());
            }
        }
        assert_eq!(database.dump().await, before);
    }
    assert_eq!(states.users(None, 10).await.unwrap().users, [Some("ada".to_owned())]);
}

#[tokio::test]
#[ignore = "needs a MySQL or MariaDB server"]
async fn ids_and_keys_that_share_a_name_are_refused_and_stored_data_stays() {
    let (states, database) = fresh().await;
    for (slot, key) in [("a:b:c", "k"), ("__anon__:s1", "k"), ("ada:s", "l:_hash")] {
        let insert = format!("INSERT INTO {{t}} (session_id, state_key, item_index, state_data) VALUES ('{slot}', '{key}', 0, '1')");
        database.run(&insert).await;
    }
    let before = database.dump().await;
    let long = "x".repeat(252);
    for (user, session) in [("__anon__", "s1"), (" ", "s1"), ("a:b", "c"), ("ada", "\u{3000}"), ("ada", &long)] {
        let slot = StateSlot::new(Some(user), session).unwrap();
        assert_refused(&format!("{slot}"), each_operation_on_slot(&states, &slot).await);
    }
    for user in ["__anon__", " ", "a:b", ":"] {
        assert_eq!(states.session_ids(Some(user), None, 10).await.unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    for key in ["", " ", "l:_hash", "l:_HASH", ":_hash", "a\0b", &long] {
        assert_refused(key, each_operation(&states, &slot("ada", "s"), key).await);
    }
    assert_eq!(database.dump().await, before);
}

/// Patterns of `LIKE` in ids stand for themselves.
#[tokio::test]
#[ignore = "needs a MySQL or MariaDB server"]
async fn wildcards_in_ids_match_only_themselves() {
    let (states, _database) = fresh().await;
    let ids = ["%", "_", "a_", "ab", "a%", "|", "|%", "\\", "\\%", "'", "`", "😀"];
    for user in ids {
        for session in ids.into_iter().chain(["a:b"]) {
            states.save(&StateSlot::new(Some(user), session).unwrap(), "k", &json("1"), SaveOptions::new()).await.unwrap();
        }
    }
    let mut sorted = ids.map(str::to_owned).to_vec();
    sorted.sort();
    assert_eq!(states.users(None, 100).await.unwrap().users, sorted.iter().cloned().map(Some).collect::<Vec<_>>());
    sorted.push("a:b".to_owned());
    sorted.sort();
    for user in ids {
        assert_eq!(states.session_ids(Some(user), None, 100).await.unwrap().sessions, sorted, "{user}");
    }
}

#[tokio::test]
#[ignore = "needs a MySQL or MariaDB server"]
async fn missing_tables_and_bad_names_are_refused_and_created_only_on_request() {
    let database = Database::new();
    let url = database.url.replace("create=true", "create=false");
    let open = async |url: &str, table: &str| MysqlStates::open_with(MysqlStatesOptions::new(url).with_table(table)).await.map(drop);
    assert_eq!(open(&url, "agentscope_sessions").await.unwrap_err().kind(), ErrorKind::NotFound);
    open(&database.url, "agentscope_sessions").await.unwrap();
    open(&url, "agentscope_sessions").await.unwrap();
    assert_eq!(open(&url, "other").await.unwrap_err().kind(), ErrorKind::NotFound);
    let (long, longest) = ("x".repeat(65), "x".repeat(64));
    for table in ["", "1a", "a`b", "a;b", "a b", "é", "-a", &long] {
        assert_eq!(open(&database.url, table).await.unwrap_err().kind(), ErrorKind::InvalidArgument, "{table}");
    }
    for table in ["_a", "a-1", &longest] {
        open(&database.url, table).await.unwrap();
    }
    // A table from before there were versions.
    database.run("ALTER TABLE {t} DROP COLUMN version").await;
    assert_eq!(open(&url, "agentscope_sessions").await.unwrap_err().kind(), ErrorKind::Unsupported);
    open(&database.url, "agentscope_sessions").await.unwrap();
    database.run("ALTER TABLE {t} DROP COLUMN state_data").await;
    assert_eq!(open(&url, "agentscope_sessions").await.unwrap_err().kind(), ErrorKind::Unsupported);
}

#[tokio::test]
async fn urls_that_cannot_be_used_are_refused_without_revealing_secrets() {
    for url in [
        "postgres://ada:s3cret@db/x",
        "mysql://ada:s3cret@db/x?nonsense=1",
        "mysql://ada:s3cret@db/x?create=maybe",
        "mysql://ada:s3cret@db/a`b",
    ] {
        let error = MysqlStates::open(url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{url}");
        assert!(!error.message().contains("s3cret"), "{error}");
    }
}

#[tokio::test]
#[ignore = "needs a MySQL or MariaDB server"]
async fn damaged_rows_are_corrupt_and_stay_as_they_are() {
    let (states, database) = fresh().await;
    let insert = "INSERT INTO {t} (session_id, state_key, item_index, state_data, version) VALUES ('ada:s1', 'k', 0, '{', 1), \
                  ('ada:s1', 'l', 0, '{', 0), ('ada:s1', 'l', 1, '1', 0), ('ada:s1', 'negative', 0, '1', -3)";
    database.run(insert).await;
    let before = database.dump().await;
    let here = slot("ada", "s1");
    assert_eq!(states.get(&here, "k").await.unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(states.get_list(&here, "l").await.unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(states.get(&here, "negative").await.unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(states.save(&here, "negative", &json("2"), SaveOptions::new()).await.unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(database.dump().await, before);
}
