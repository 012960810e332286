//! Stores whose sessions, traces and states of agents are in their former place, in one partition for all users: each engine refuses them and
//! moves them.

use crate::servers;
use std::collections::BTreeMap;
use std::sync::Arc;
use treehold::agent_state::{
    AgentStateStore, AgentStates, BundleOwner, DeleteSessionOptions, Json, SaveOptions, StateSlot, bus::MessageBus,
};
use treehold::config::{OpenStoreOptions, migrate_store, open_store};
use treehold::sessions::{AppendOptions, MemoScope, Message, NOTES, Sessions};
use treehold::store::{
    Batch, Item, MemoryStore, MigrateOptions, MigrateOutcome, Namespace, NamespacesOptions, OldLayout, ScanEntry, ScanOptions, Store,
};
use treehold::traces::{AddOptions, NewMessage, NewTrace, PathQuery, TraceId, TraceStore, Traces, TracesQuery};

const USERS: [(&str, &str); 3] = [("acme", "ada"), ("acme", "b/ob"), ("-", "ada")];

fn trace_id(tenant: &str, user: &str) -> TraceId {
    TraceId::new(format!("{}-{}", tenant.len(), user.len())).unwrap()
}

/// Each user, and the anonymous user of each tenant.
fn state_users() -> impl Iterator<Item = (&'static str, Option<&'static str>)> {
    let named = USERS.into_iter().map(|(tenant, user)| (tenant, Some(user)));
    named.chain(["acme", "-"].map(|tenant| (tenant, None)))
}

fn conversation() -> Json {
    Json::parse(r#"{"context": [{"role": "USER", "content": "tea?"}, {"role": "ASSISTANT", "content": "now"}]}"#).unwrap()
}

fn shared() -> BundleOwner {
    BundleOwner::shared("acme", "helper").unwrap()
}

/// Fills a store with what the users have, and with a record of data to remove.
async fn fill(store: &Arc<dyn Store>) {
    let (sessions, traces) = (Sessions::new(store.clone()), Traces::new(store.clone()));
    for (tenant, user) in USERS {
        let session = sessions.get_or_create(tenant, user, "helper", None).await.unwrap().session_id;
        let messages = [Message::user("tea?", 1), Message::user("now", 2)];
        sessions.append(tenant, &session, &messages, &AppendOptions::new()).await.unwrap();
        sessions.write_memory_document(tenant, &session, MemoScope::Session, NOTES, "oolong").await.unwrap();
        let own = traces.for_user(tenant, user).unwrap();
        let trace = own.create_trace(NewTrace::new("make tea").with_id(trace_id(tenant, user))).await.unwrap();
        own.add_messages(&trace.trace_id, vec![NewMessage::text("user", "hello")], &AddOptions::new()).await.unwrap();
    }
    let states = AgentStates::new(store.clone());
    for (tenant, user) in state_users() {
        let (agent, slot) = (states.for_agent(tenant, "helper").unwrap(), StateSlot::new(user, "s").unwrap());
        agent.save(&slot, "k", &conversation(), SaveOptions::new()).await.unwrap();
    }
    MessageBus::new(store.clone(), shared()).queue_push("q", &conversation()).await.unwrap();
    let removals = Namespace::parse("_treehold/sessions/_treehold/removals").unwrap();
    store.commit(Batch::new().put(&removals, "acme\u{1}ada\u{1}removal\u{1}gone", "{}")).await.unwrap();
}

/// Checks that everybody has what was filled in, and can go on.
async fn read_and_go_on(store: &Arc<dyn Store>) {
    let (sessions, traces) = (Sessions::new(store.clone()), Traces::new(store.clone()));
    for (tenant, user) in USERS {
        let listed = sessions.list_all(tenant, user).await.unwrap();
        let [session] = &listed[..] else { panic!("{user}: {listed:?}") };
        let id = session.session_id.as_str();
        assert_eq!(sessions.load_all(tenant, id).await.unwrap().len(), 2);
        let notes = sessions.read_memory_document(tenant, id, MemoScope::Session, NOTES).await.unwrap();
        assert_eq!(notes.as_deref(), Some("oolong"));
        let appended = sessions.append(tenant, id, &[Message::user("again", 3)], &AppendOptions::new()).await.unwrap();
        assert_eq!(appended.positions, 2..3);
        assert!(!sessions.get_or_create(tenant, user, "helper", Some(id)).await.unwrap().created);
        assert!(sessions.get_or_create(tenant, "mallory", "helper", Some(id)).await.is_err(), "it is taken");
        let own = traces.for_user(tenant, user).unwrap();
        assert_eq!(own.list_traces(&TracesQuery::new()).await.unwrap().total, 1);
        let address = trace_id(tenant, user).into();
        own.add_messages(&address, vec![NewMessage::text("assistant", "hello!")], &AddOptions::new()).await.unwrap();
        assert_eq!(own.get_main_path(&address, &PathQuery::new()).await.unwrap().messages.len(), 2);
        assert!(sessions.delete(tenant, id).await.unwrap() && own.delete_trace(&address).await.unwrap());
    }
    let states = AgentStates::new(store.clone());
    for (tenant, user) in state_users() {
        let agent = states.for_agent(tenant, "helper").unwrap();
        let [first, second] = ["s", "t"].map(|session| StateSlot::new(user, session).unwrap());
        let found = agent.get(&first, "k").await.unwrap().unwrap();
        assert_eq!((found.value, found.version.unwrap().number()), (conversation(), 1));
        assert!(agent.users(None, 9).await.unwrap().users.contains(&user.map(str::to_owned)));
        for (slot, is_left) in [(&first, true), (&second, false)] {
            agent.save(&second, "k", &conversation(), SaveOptions::new()).await.unwrap();
            agent.delete_session(slot, DeleteSessionOptions::new()).await.unwrap();
            assert_eq!(agent.users(None, 9).await.unwrap().users.contains(&user.map(str::to_owned)), is_left);
        }
    }
    assert_eq!(MessageBus::new(store.clone(), shared()).queue_drain("q", 9).await.unwrap().len(), 1);
}

async fn rows_of(store: &dyn Store) -> Vec<(Namespace, Item)> {
    let mut rows = Vec::new();
    for namespace in store.namespaces(NamespacesOptions::new()).await.unwrap().namespaces {
        let page = store.scan(&namespace, ScanOptions::new().with_values(true)).await.unwrap();
        assert_eq!(page.next, None);
        rows.extend(
            page.entries
                .into_iter()
                .filter_map(|entry| if let ScanEntry::Item(item) = entry { Some((namespace.clone(), item)) } else { None }),
        );
    }
    rows
}

/// Returns where the last version before the move had a row.
fn former(namespace: &Namespace) -> Namespace {
    let components: Vec<String> = namespace.components().map(Into::into).collect();
    let parts: Vec<&str> = components.iter().map(String::as_str).collect();
    match (&parts[..], namespace.name().next().as_deref()) {
        (["_treehold", ..], _) => namespace.clone(),
        ([tenant, "_treehold", "agent-state", name @ ..], _) => {
            Namespace::new(["_treehold", "agent-state", tenant].into_iter().chain(name.iter().copied())).unwrap()
        }
        ([tenant, user, "_treehold", "agent-state", name @ ..], _) => {
            Namespace::new(["_treehold", "agent-state", tenant, "users", user].into_iter().chain(name.iter().copied())).unwrap()
        }
        ([tenant, "_treehold", kind], _) => Namespace::new(["_treehold", kind, tenant]).unwrap(),
        ([tenant, user, "_treehold", kind, name @ ..], _) => {
            Namespace::new(["_treehold", kind, tenant, user].into_iter().chain(name.iter().copied())).unwrap()
        }
        _ => panic!("{namespace} is of neither"),
    }
}

/// Moves the rows of a store at a URL from the former place to the present one.
async fn moves(url: &str) {
    let filled: Arc<dyn Store> = Arc::new(MemoryStore::new());
    fill(&filled).await;
    let mut rows = rows_of(&*filled).await;
    // Earlier versions wrote no proofs.
    rows.retain(|(_, item)| !item.key.starts_with("p\u{1}"));
    let options = OpenStoreOptions::new();
    let store = open_store(url, &options).await.unwrap();
    let batch = rows.iter().fold(Batch::new(), |batch, (namespace, item)| batch.restore(&former(namespace), item.clone()));
    for (_, batch) in Batch::by_partition(batch.writes) {
        store.commit(batch).await.unwrap();
    }
    drop(store);
    let refused = open_store(url, &options).await.unwrap_err();
    assert!(OldLayout::is_source_of(&refused) && refused.message().contains("treehold store migrate"), "{refused}");
    let planned = migrate_store(url, &options, &MigrateOptions::new().with_dry_run(true), |_| {}).await.unwrap();
    assert_eq!(planned.outcome, MigrateOutcome::Planned);
    assert!(open_store(url, &options).await.is_err(), "a dry run changes nothing");
    let mut told = Vec::new();
    let report = migrate_store(url, &options, &MigrateOptions::new(), |progress| told.push(progress)).await.unwrap();
    assert_eq!((report.outcome, &report.rows), (MigrateOutcome::Migrated, &planned.rows));
    let moved = rows.iter().filter(|(namespace, _)| former(namespace) != *namespace).count() as u64;
    assert_eq!((report.rows_total(), told.last().map(|at| at.rows)), (moved, Some(moved)));
    assert_eq!(migrate_store(url, &options, &MigrateOptions::new(), |_| {}).await.unwrap().outcome, MigrateOutcome::UpToDate);
    let store = open_store(url, &options).await.unwrap();
    let facts = |rows: Vec<(Namespace, Item)>| {
        let fact =
            |(namespace, item): (Namespace, Item)| ((namespace, item.key), (item.version, item.value, item.created_at, item.modified_at));
        rows.into_iter().map(fact).collect::<BTreeMap<_, _>>()
    };
    assert_eq!(facts(rows_of(&*store).await), facts(rows));
    read_and_go_on(&store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn embedded_store_moves_rows_to_the_partitions_of_their_users() {
    let directory = tempfile::tempdir().unwrap();
    for place in ["sqlite:{}/one.db", "sqlite:{}/many/", "sled:{}/sled"] {
        moves(&place.replace("{}", &directory.path().display().to_string())).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: run scripts/servers.sh"]
async fn postgres_store_moves_rows_to_the_partitions_of_their_users() {
    let schema = servers::postgres::schema().await;
    moves(&format!("{}?schema={}", schema.url, schema.name.replace(' ', "%20"))).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
async fn mysql_store_moves_rows_to_the_partitions_of_their_users() {
    moves(&servers::mysql::database().await.url).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: run scripts/servers.sh"]
async fn redis_store_moves_rows_to_the_partitions_of_their_users() {
    let prefix = servers::redis::prefix().await;
    moves(&format!("{}?prefix={}", prefix.url, prefix.name)).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a Redis Cluster: run scripts/servers.sh"]
async fn redis_cluster_store_moves_rows_to_the_partitions_of_their_users() {
    let prefix = servers::redis::prefix_in_cluster().await;
    moves(&format!("{}?prefix={}", prefix.url, prefix.name)).await;
}
