//! AgentScope's keys in Redis.

use super::support::{assert_refused, each_operation, each_operation_on_slot, json, slot};
use redis::{Commands, Connection};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use treehold_agent_state::layouts::{RedisStates, RedisStatesOptions, UNCOUNTED_VERSION};
use treehold_agent_state::{
    AgentStateStore, DeleteOptions, DeleteSessionOptions, Expected, Json, SaveOptions, StateKey, StateSlot, StateVersion,
};
use treehold_core::error::ErrorKind;

/// The script of AgentScope's saves in what it does: `expected` −1 is unconditional, 0 creates, n compares.
const AGENTSCOPE_SAVE: &str = "
    local has = redis.call('EXISTS', KEYS[2]) == 1
    local now = has and tonumber(redis.call('GET', KEYS[2])) or 0
    local expected = tonumber(ARGV[2])
    if expected ~= -1 and now ~= expected then return -1 end
    redis.call('SET', KEYS[1], ARGV[1])
    redis.call('SET', KEYS[2], now + 1)
    redis.call('SADD', KEYS[3], ARGV[3])
    return now + 1";

fn server() -> String {
    std::env::var("TREEHOLD_TEST_REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned())
}

fn cluster() -> String {
    std::env::var("TREEHOLD_TEST_REDIS_CLUSTER_URL").expect("scripts/servers.sh starts a cluster and sets TREEHOLD_TEST_REDIS_CLUSTER_URL")
}

/// A prefix of its own, whose keys are removed at the end.
struct Prefix {
    name: String,
    url: String,
}

impl Prefix {
    fn new(url: String, tail: &str) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let started = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos();
        Self { name: format!("{{test-{started}-{}}}{tail}", NUMBER.fetch_add(1, Ordering::Relaxed)), url }
    }

    /// Connects to every node.
    fn connect(&self) -> Vec<Connection> {
        let hosts = self.url.split_once("://").unwrap().1;
        let nodes = hosts.split(',').map(|host| redis::Client::open(format!("redis://{host}")).unwrap());
        nodes.map(|node| node.get_connection().unwrap()).collect()
    }

    fn connection(&self) -> Connection {
        self.connect().remove(0)
    }

    /// Returns the keys with the prefix, without it, each with its value.
    fn dump(&self) -> BTreeMap<String, String> {
        let mut connection = self.connection();
        let keys: Vec<String> = connection.keys(format!("{}*", self.name)).unwrap();
        let dumped = keys.into_iter().map(|key| {
            let value = match redis::cmd("TYPE").arg(&key).query::<String>(&mut connection).unwrap().as_str() {
                "string" => connection.get(&key).unwrap(),
                "list" => connection.lrange::<_, Vec<String>>(&key, 0, -1).unwrap().join("|"),
                _ => {
                    let mut members: Vec<String> = connection.smembers(&key).unwrap();
                    members.sort();
                    members.join("|")
                }
            };
            (key[self.name.len()..].to_owned(), value)
        });
        dumped.collect()
    }
}

impl Drop for Prefix {
    fn drop(&mut self) {
        for mut connection in self.connect() {
            let keys: Vec<Vec<u8>> = connection.keys(format!("{}*", self.name)).unwrap();
            for key in keys {
                let _: redis::RedisResult<()> = connection.del(key);
            }
        }
    }
}

async fn fresh() -> (RedisStates, Prefix) {
    let prefix = Prefix::new(server(), ":session:");
    (RedisStates::open_with(RedisStatesOptions::new(&prefix.url).with_prefix(&prefix.name)).await.unwrap(), prefix)
}

async fn fresh_states() -> (Arc<dyn AgentStateStore>, Prefix) {
    let (states, prefix) = fresh().await;
    (Arc::new(states), prefix)
}

async fn fresh_in_cluster() -> (Arc<dyn AgentStateStore>, Prefix) {
    let prefix = Prefix::new(cluster(), ":session:");
    let states = RedisStates::open_with(RedisStatesOptions::new(&prefix.url).with_prefix(&prefix.name)).await.unwrap();
    (Arc::new(states), prefix)
}

state_store_cases!(
    #[ignore = "needs a Redis server"]
    contract,
    super::fresh_states
);
state_store_cases!(
    #[ignore = "needs a Redis Cluster"]
    contract_in_cluster,
    super::fresh_in_cluster
);

fn version(number: u64) -> StateVersion {
    StateVersion::new(number).unwrap()
}

/// Saves as AgentScope does; returns the new version, or −1.
fn agentscope_save(prefix: &Prefix, slot: &str, key: &str, text: &str, expected: i64) -> i64 {
    let value = format!("{}{slot}:{key}", prefix.name);
    let keys = [value.clone(), format!("{value}:ver"), format!("{}{slot}:_keys", prefix.name)];
    let mut script = redis::cmd("EVAL");
    script.arg(AGENTSCOPE_SAVE).arg(3).arg(&keys).arg(text).arg(expected).arg(key);
    script.query(&mut prefix.connection()).unwrap()
}

#[tokio::test]
#[ignore = "needs a Redis server"]
async fn keys_have_the_names_and_values_of_agentscope() {
    let (states, prefix) = fresh().await;
    let ada = slot("ada", "s1");
    for text in ["{ \"a\": [1, 2.0] }", "{\"b\": \"\\u00e9\"}"] {
        states.save(&ada, "agent_state", &json(text), SaveOptions::new()).await.unwrap();
    }
    states.save(&slot(None, "sandbox/agent/x"), "_sandbox_state", &json("{}"), SaveOptions::new()).await.unwrap();
    states.save_list(&ada, "memory_messages", &[json("{ }"), json("2")], SaveOptions::new()).await.unwrap();
    let mut dump = prefix.dump();
    assert!(dump.remove("ada/s1:memory_messages:list:_hash").unwrap().starts_with("text:"));
    let expected = [
        ("__anon__/sandbox/agent/x:_keys", "_sandbox_state"),
        ("__anon__/sandbox/agent/x:_sandbox_state", "{}"),
        ("__anon__/sandbox/agent/x:_sandbox_state:ver", "1"),
        ("ada/s1:_keys", "agent_state|memory_messages:list"),
        ("ada/s1:agent_state", "{\"b\":\"é\"}"),
        ("ada/s1:agent_state:ver", "2"),
        ("ada/s1:memory_messages:list", "{}|2"),
    ];
    assert_eq!(dump, expected.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    states.delete_session(&ada, DeleteSessionOptions::new()).await.unwrap();
    states.delete(&slot(None, "sandbox/agent/x"), "_sandbox_state", DeleteOptions::new()).await.unwrap();
    assert_eq!(prefix.dump(), BTreeMap::new());
}

#[tokio::test]
#[ignore = "needs a Redis server"]
async fn versions_go_on_across_our_saves_and_those_of_agentscope() {
    let (states, prefix) = fresh().await;
    let here = slot("ada", "s1");
    let save =
        async |text: &str, expected: Expected| states.save(&here, "k", &json(text), SaveOptions::new().with_expected(expected)).await;
    assert_eq!(agentscope_save(&prefix, "ada/s1", "k", "1", 0), 1);
    assert_eq!(save("2", Expected::Absent).await.unwrap_err().current_version().unwrap().number(), 1);
    assert_eq!(save("2", Expected::Version(version(1))).await.unwrap(), Some(version(2)));
    assert_eq!(agentscope_save(&prefix, "ada/s1", "k", "3", 1), -1);
    assert_eq!(agentscope_save(&prefix, "ada/s1", "k", "3", 2), 3);
    assert_eq!(save("4", Expected::Version(version(2))).await.unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(agentscope_save(&prefix, "ada/s1", "k", "4", -1), 4);
    assert_eq!(save("5", Expected::Any).await.unwrap(), Some(version(5)));
    assert_eq!(states.get(&here, "k").await.unwrap().unwrap().version, Some(version(5)));
}

/// Half of the writers are AgentScope's: of all that expect one version, one wins.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs a Redis server"]
async fn one_of_our_and_agentscopes_writers_wins_each_round() {
    let (states, prefix) = fresh().await;
    let prefix = Arc::new(prefix);
    for round in 0..20_u64 {
        let writers = (0..8_u64).map(|writer| {
            let (states, prefix) = (states.clone(), prefix.clone());
            tokio::spawn(async move {
                let text = format!("[{round},{writer}]");
                if writer % 2 == 0 {
                    let expected = StateVersion::new(round).map_or(Expected::Absent, Expected::Version);
                    let saved = states.save(&slot("ada", "s1"), "k", &json(&text), SaveOptions::new().with_expected(expected)).await;
                    saved.ok().flatten().map(|saved| (saved.number(), text))
                } else {
                    let expected = i64::try_from(round).unwrap();
                    let saved = tokio::task::spawn_blocking(move || (agentscope_save(&prefix, "ada/s1", "k", &text, expected), text));
                    let (saved, text) = saved.await.unwrap();
                    u64::try_from(saved).ok().map(|saved| (saved, text))
                }
            })
        });
        let mut won = Vec::new();
        for writer in writers.collect::<Vec<_>>() {
            won.extend(writer.await.unwrap());
        }
        let found = states.get(&slot("ada", "s1"), "k").await.unwrap().unwrap();
        assert_eq!(won, [(round + 1, found.value.as_str().to_owned())]);
        assert_eq!(found.version, Some(version(round + 1)));
    }
}

/// An older AgentScope stored no counters. Such a value is updated by compare-and-set without a phantom conflict, and is not absent.
#[tokio::test]
#[ignore = "needs a Redis server"]
async fn value_without_a_counter_is_neither_absent_nor_in_conflict() {
    let (states, prefix) = fresh().await;
    let here = slot("ada", "s1");
    for counter in [None, Some(""), Some("0")] {
        let _: () = prefix.connection().set(format!("{}ada/s1:k", prefix.name), "1").unwrap();
        let _: () = prefix.connection().sadd(format!("{}ada/s1:_keys", prefix.name), "k").unwrap();
        match counter {
            None => prefix.connection().del::<_, ()>(format!("{}ada/s1:k:ver", prefix.name)).unwrap(),
            Some(counter) => prefix.connection().set::<_, _, ()>(format!("{}ada/s1:k:ver", prefix.name), counter).unwrap(),
        }
        if counter == Some("") {
            continue; // AgentScope's script fails on it, and so does ours.
        }
        let found = states.get(&here, "k").await.unwrap().unwrap();
        assert_eq!(found.version, Some(version(UNCOUNTED_VERSION)));
        assert_eq!(states.version(&here, "k").await.unwrap(), Some(version(UNCOUNTED_VERSION)));
        for wrong in [Expected::Absent, Expected::Version(version(1))] {
            let error = states.save(&here, "k", &json("2"), SaveOptions::new().with_expected(wrong)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Conflict, "{wrong:?}");
            assert_eq!(error.current_version().unwrap().number(), UNCOUNTED_VERSION);
        }
        let expected = SaveOptions::new().with_expected(Expected::Version(found.version.unwrap()));
        assert_eq!(states.save(&here, "k", &json("2"), expected.clone()).await.unwrap(), Some(version(1)));
        assert_eq!(states.save(&here, "k", &json("3"), expected).await.unwrap_err().kind(), ErrorKind::Conflict);
    }
}

/// A counter whose value is gone does not keep a session from being created again.
#[tokio::test]
#[ignore = "needs a Redis server"]
async fn counter_without_a_value_is_no_conflict() {
    let (states, prefix) = fresh().await;
    let _: () = prefix.connection().set(format!("{}ada/s1:k:ver", prefix.name), "7").unwrap();
    assert_eq!(states.get(&slot("ada", "s1"), "k").await.unwrap(), None);
    let create = SaveOptions::new().with_expected(Expected::Absent);
    assert_eq!(states.save(&slot("ada", "s1"), "k", &json("1"), create).await.unwrap(), Some(version(8)));
}

#[tokio::test]
#[ignore = "needs a Redis server"]
async fn damaged_data_is_corrupt_and_stays_as_it_is() {
    let (states, prefix) = fresh().await;
    let here = slot("ada", "s1");
    let name = |tail: &str| format!("{}ada/s1:{tail}", prefix.name);
    let mut connection = prefix.connection();
    for damaged in ["", "{", "{} {}"] {
        let _: () = connection.set(name("text"), damaged).unwrap();
        let _: () = connection.del(name("l:list")).unwrap();
        let _: () = connection.rpush(name("l:list"), damaged).unwrap();
        assert_eq!(states.get(&here, "text").await.unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(states.get_list(&here, "l").await.unwrap_err().kind(), ErrorKind::Corrupt);
    }
    for counter in ["x", "1.5", "-1", "9007199254740993"] {
        let _: () = connection.set(name("k"), "1").unwrap();
        let _: () = connection.set(name("k:ver"), counter).unwrap();
        let error = states.save(&here, "k", &json("2"), SaveOptions::new()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{counter}");
        assert!(error.message().contains("k:ver"), "{error}");
    }
    let _: () = connection.lpush(name("wrong"), "1").unwrap();
    let _: () = connection.set(name("wrong:list"), "1").unwrap();
    let before = prefix.dump();
    assert_eq!(states.save(&here, "wrong", &json("2"), SaveOptions::new()).await.unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(states.get(&here, "wrong").await.unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(states.get_list(&here, "wrong").await.unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(states.save_list(&here, "wrong", &[json("2")], SaveOptions::new()).await.unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(prefix.dump(), before);
}

#[tokio::test]
#[ignore = "needs a Redis server"]
async fn ids_and_keys_that_share_a_name_are_refused_and_stored_data_stays() {
    let (states, prefix) = fresh().await;
    for (slot, key) in [("a/b/c", "k"), ("__anon__/s1", "k"), ("ada/s:list", "k"), ("ada/s", "k")] {
        agentscope_save(&prefix, slot, key, "\"kept\"", -1);
    }
    let before = prefix.dump();
    for (user, session) in [("__anon__", "s1"), (" ", "s1"), ("a/b", "c"), ("ada", "\u{3000}")] {
        let slot = StateSlot::new(Some(user), session).unwrap();
        assert_refused(&format!("{slot}"), each_operation_on_slot(&states, &slot).await);
    }
    for user in ["__anon__", " ", "a/b", "/"] {
        assert_eq!(states.session_ids(Some(user), None, 10).await.unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    for key in ["", " ", "a:b", ":", "list", "ver", "_keys", "_hash", "k:list", "a\0b"] {
        assert_refused(key, each_operation(&states, &slot("ada", "s"), key).await);
    }
    assert_eq!(prefix.dump(), before);
}

/// Patterns of Redis in ids and in the prefix stand for themselves.
#[tokio::test]
#[ignore = "needs a Redis server"]
async fn wildcards_in_ids_and_prefixes_match_only_themselves() {
    let ids = ["*", "a*", "ab", "a?", "[a]", "a", "\\", "\\*", "^", "a-b", "[^a]", ":_keys", "x:_keys", "é", "😀"];
    let prefix = Prefix::new(server(), "[*]?:");
    let states = RedisStates::open_with(RedisStatesOptions::new(&prefix.url).with_prefix(&prefix.name)).await.unwrap();
    let other = RedisStatesOptions::new(&prefix.url).with_prefix(prefix.name.replace("[*]?", "*xx"));
    let other = RedisStates::open_with(other).await.unwrap();
    for user in ids {
        for session in ids {
            states.save(&StateSlot::new(Some(user), session).unwrap(), "k", &json("1"), SaveOptions::new()).await.unwrap();
        }
    }
    other.save(&slot("foreign", "s"), "k", &json("1"), SaveOptions::new()).await.unwrap();
    let mut sorted = ids.map(str::to_owned).to_vec();
    sorted.sort();
    for user in ids {
        assert_eq!(states.session_ids(Some(user), None, 100).await.unwrap().sessions, sorted, "{user}");
    }
    assert_eq!(states.users(None, 100).await.unwrap().users, sorted.into_iter().map(Some).collect::<Vec<_>>());
    other.delete_session(&slot("foreign", "s"), DeleteSessionOptions::new()).await.unwrap();
}

/// AgentScope extends a list if the stored hash is that of the first elements in its memory.
#[tokio::test]
#[ignore = "needs a Redis server"]
async fn changed_list_loses_the_hash_of_agentscope_and_unchanged_list_keeps_it() {
    let (states, prefix) = fresh().await;
    let (list, hash) = (format!("{}ada/s1:l:list", prefix.name), format!("{}ada/s1:l:list:_hash", prefix.name));
    let mut connection = prefix.connection();
    for (texts, is_kept) in
        [(&["1", "2"][..], true), (&["1", "2", "3"], false), (&["1"], false), (&["2", "1"], false), (&[], false), (&["1", "3"], false)]
    {
        let _: () = connection.del(&list).unwrap();
        let _: () = connection.rpush(&list, &["1", "2"]).unwrap();
        let _: () = connection.set(&hash, "7c3f1a2b").unwrap();
        let values: Vec<Json> = texts.iter().map(|text| json(text)).collect();
        states.save_list(&slot("ada", "s1"), "l", &values, SaveOptions::new()).await.unwrap();
        assert_eq!(connection.get::<_, String>(&hash).unwrap() == "7c3f1a2b", is_kept, "{texts:?}");
        assert_eq!(connection.lrange::<_, Vec<String>>(&list, 0, -1).unwrap(), texts);
        assert_eq!(states.keys(&slot("ada", "s1")).await.unwrap(), [StateKey::List("l".to_owned())]);
    }
    let long: Vec<Json> = (0..2_500).map(|number| json(&number.to_string())).collect();
    states.save_list(&slot("ada", "s1"), "l", &long, SaveOptions::new()).await.unwrap();
    assert_eq!(states.get_list(&slot("ada", "s1"), "l").await.unwrap(), long);
}

#[tokio::test]
#[ignore = "needs a Redis server"]
async fn values_over_the_limit_and_conditions_on_lists_are_refused() {
    let prefix = Prefix::new(server(), ":");
    let options = RedisStatesOptions::new(&prefix.url).with_prefix(&prefix.name).with_value_bytes_max(10);
    let states = RedisStates::open_with(options).await.unwrap();
    let here = slot("ada", "s1");
    assert_eq!(states.save(&here, "k", &json("\"123456789\""), SaveOptions::new()).await.unwrap_err().kind(), ErrorKind::TooLarge);
    let values = [json("123456"), json("78901")];
    assert_eq!(states.save_list(&here, "k", &values, SaveOptions::new()).await.unwrap_err().kind(), ErrorKind::TooLarge);
    let conditional = SaveOptions::new().with_expected(Expected::Absent);
    assert_eq!(states.save_list(&here, "k", &[], conditional).await.unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(prefix.dump(), BTreeMap::new());
    agentscope_save(&prefix, "ada/s1", "k", "12345678901", -1);
    assert_eq!(states.get(&here, "k").await.unwrap_err().kind(), ErrorKind::TooLarge);
}

#[tokio::test]
async fn urls_that_cannot_be_used_are_refused_without_revealing_secrets() {
    for url in [
        "redis:host",
        "http://ada:s3cret@host",
        "redis://:s3cret@one,two",
        "redis://:s3cret@host?prefix=%20",
        "redis://:s3cret@host?timeout=3",
        "redis+cluster://:s3cret@host/3?prefix={a}",
        "redis+cluster://:s3cret@host",
        "redis+cluster://:s3cret@host?prefix={}:",
        "redis://:s3cret@host:port",
    ] {
        let error = RedisStates::open(url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{url}");
        assert!(!error.message().contains("s3cret"), "{error}");
    }
}
