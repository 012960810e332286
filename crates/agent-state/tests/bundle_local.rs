//! The parts of the bundle where time passes, where a process dies between two steps, and where parts are chosen: on a store in memory
//! whose clock the test moves.

#![allow(missing_docs, clippy::unwrap_used)]

mod bundle_cases {
    #![allow(dead_code, reason = "the cases use more of it")]

    pub(crate) mod support;
}

use bundle_cases::support::{json, kind, numbered, owner, partition};
use jiff::Timestamp;
use parking_lot::Mutex;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use treehold_agent_state::bundle::{AgentBundleBuilder, AsyncToolRegistry, DistributedStore, FilesystemSpec, Snapshots, TaskRepository};
use treehold_agent_state::bus::{BusOptions, MessageBus};
use treehold_agent_state::kv::{KeyValues, KvSearch};
use treehold_agent_state::locks::{LockOptions, Locks};
use treehold_agent_state::scopes::{AgentWorkspace, AnonymousCalls, CallIdentity, IsolationScope, WorkspaceRoute};
use treehold_agent_state::transcript::Transcripts;
use treehold_agent_state::{AgentStateStore, AgentStates, BundleOwner};
use treehold_core::ErrorKind;
use treehold_core::clock::Clock;
use treehold_core::path::VfsPathBuf;
use treehold_store::{Batch, MemoryStore, Namespace, Store};
use treehold_tree::backend::{Backend, BackendExt, StateBackend};

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A clock that the test moves.
#[derive(Clone)]
struct Hands(Arc<Mutex<Timestamp>>);

impl Hands {
    fn new() -> Self {
        Self(Arc::new(Mutex::new("2026-11-23T09:00:00Z".parse().unwrap())))
    }

    fn pass(&self, time: Duration) {
        let mut now = self.0.lock();
        *now = now.checked_add(time).unwrap();
    }

    fn clock(&self) -> Clock {
        let hands = self.0.clone();
        Clock::from_fn(move || *hands.lock())
    }

    fn store(&self) -> Arc<dyn Store> {
        Arc::new(MemoryStore::with_clock(self.clock()))
    }
}

/// A clock that moves with tokio's, which a test pauses.
fn tokio_clock() -> Clock {
    let (epoch, begun): (Timestamp, _) = ("2026-11-23T09:00:00Z".parse().unwrap(), tokio::time::Instant::now());
    Clock::from_fn(move || epoch.checked_add(begun.elapsed()).unwrap())
}

#[tokio::test]
async fn lock_of_a_dead_holder_ends_and_its_fence_falls() {
    let hands = Hands::new();
    let store = hands.store();
    let locks = Locks::new(store.clone(), owner()).with_clock(hands.clock());
    let dead = locks.acquire("l", &LockOptions::new().with_time_to_live(60 * SECOND)).await.unwrap();
    let fence = locks.fence(&dead).unwrap();
    let late = |fence: treehold_agent_state::Fence| {
        let namespace = Namespace::parse("acme/ada/_treehold/agent-state/states").unwrap();
        let condition = treehold_store::Condition::Version(fence.version);
        store.commit(Batch::new().expect(&fence.namespace, fence.key, condition).put(&namespace, "k", "v"))
    };
    hands.pass(59 * SECOND);
    assert_eq!(kind(locks.acquire("l", &LockOptions::new()).await), ErrorKind::Conflict);
    late(fence.clone()).await.unwrap();
    hands.pass(2 * SECOND);
    assert_eq!(locks.peek("l").await.unwrap(), None);
    let next = locks.acquire("l", &LockOptions::new()).await.unwrap();
    assert!(next.fencing_token > dead.fencing_token);
    assert_eq!(kind(locks.renew("l", &dead.owner_token, 60 * SECOND).await), ErrorKind::Conflict);
    assert_eq!(kind(late(fence).await), ErrorKind::Conflict, "a late write of the dead holder is refused");
    late(locks.fence(&next).unwrap()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn guard_renews_its_lock_and_reports_its_loss() {
    let clock = tokio_clock();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::with_clock(clock.clone()));
    let locks = Locks::new(store.clone(), owner()).with_clock(clock);
    let guard = locks.hold("l", &LockOptions::new().with_time_to_live(60 * SECOND)).await.unwrap();
    tokio::time::sleep(600 * SECOND).await;
    assert!(!guard.is_lost(), "ten times as long as it lives without a renewal");
    assert_eq!(locks.peek("l").await.unwrap().unwrap().fencing_token, guard.lock().fencing_token);
    // Another process removed the row.
    store.commit(Batch::new().delete(&guard.fence().namespace, &*guard.fence().key)).await.unwrap();
    guard.lost().await;
    assert!(guard.is_lost());
}

/// Regression: adding the wait to the present time panicked.
#[tokio::test(start_paused = true)]
async fn waiter_of_a_lock_may_wait_for_any_time() {
    let clock = tokio_clock();
    let locks = Locks::new(Arc::new(MemoryStore::with_clock(clock.clone())), owner()).with_clock(clock);
    locks.acquire("l", &LockOptions::new()).await.unwrap();
    locks.acquire("l", &LockOptions::new().with_wait(Duration::MAX)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn waiter_acquires_the_lock_of_a_dead_holder_when_it_ends() {
    let clock = tokio_clock();
    let locks = Locks::new(Arc::new(MemoryStore::with_clock(clock.clone())), owner()).with_clock(clock);
    let begun = tokio::time::Instant::now();
    locks.acquire("l", &LockOptions::new().with_time_to_live(60 * SECOND)).await.unwrap();
    let early = locks.acquire("l", &LockOptions::new().with_wait(30 * SECOND)).await;
    assert_eq!((kind(early), begun.elapsed().as_secs()), (ErrorKind::Conflict, 30));
    locks.acquire("l", &LockOptions::new().with_wait(600 * SECOND)).await.unwrap();
    assert!((60..=62).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn entries_of_the_bus_leave_after_their_retention() {
    let hands = Hands::new();
    let options = BusOptions::new().with_queue_retention(Some(7 * DAY)).with_log_retention(None).with_broadcast_retention(60 * SECOND);
    let bus = MessageBus::new(hands.store(), owner()).with_options(options);
    bus.queue_push("q", &numbered(1)).await.unwrap();
    bus.log_append("l", &numbered(2), None).await.unwrap();
    let mut lagging = bus.subscribe("c").await.unwrap();
    bus.publish("c", &numbered(3)).await.unwrap();
    hands.pass(61 * SECOND);
    bus.publish("c", &numbered(4)).await.unwrap();
    assert_eq!(lagging.next().await.unwrap().payload, numbered(4), "a subscriber that lags loses what is gone");
    hands.pass(8 * DAY);
    assert_eq!(bus.queue_drain("q", 9).await.unwrap(), []);
    assert_eq!(bus.log_read("l", None, 9).await.unwrap().len(), 1);
    assert_eq!(bus.log_read("c", None, 9).await.unwrap(), []);
}

#[tokio::test]
async fn version_of_a_deleted_item_is_forgotten_after_a_day() {
    let hands = Hands::new();
    let items = KeyValues::new(hands.store(), owner());
    for expected in [1, 2] {
        assert_eq!(items.put(&["x"], "k", &json("{}")).await.unwrap(), expected);
        items.delete(&["x"], "k").await.unwrap();
    }
    hands.pass(DAY + SECOND);
    assert_eq!(items.put(&["x"], "k", &json("{}")).await.unwrap(), 1);
}

#[tokio::test]
async fn reading_keeps_a_snapshot_alive() {
    let hands = Hands::new();
    let store = hands.store();
    let snapshots = Snapshots::new(store.clone(), owner()).with_clock(hands.clock());
    for id in ["read", "unread"] {
        snapshots.put(id, vec![7; 5 << 20].into()).await.unwrap();
    }
    for _ in 0..4 {
        hands.pass(5 * DAY);
        assert_eq!(snapshots.get("read").await.unwrap().unwrap().len(), 5 << 20);
    }
    assert_eq!((snapshots.get("unread").await.unwrap(), snapshots.info("unread").await.unwrap()), (None, None));
}

/// Every part: set explicitly, by the bundle, or by neither.
#[test]
fn explicit_parts_come_before_the_bundle_and_the_bundle_before_local_parts() {
    let made = |name: &str| {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let states: Arc<dyn AgentStateStore> = Arc::new(AgentStates::new(store.clone()).for_agent("acme", name).unwrap());
        DistributedStore::over(&store, &BundleOwner::shared("acme", name).unwrap(), states)
    };
    let (local, bundle, explicit) = (made("local"), made("bundle"), made("explicit"));
    let name = |items: &KeyValues| items.owner().agent().to_owned();
    let transcript = |transcripts: &Option<Transcripts>| transcripts.as_ref().unwrap().owner().agent().to_owned();

    let built = AgentBundleBuilder::new(local.clone()).build().unwrap();
    assert_eq!((name(&built.items), transcript(&built.transcripts)), ("local".into(), "local".into()));
    let built = AgentBundleBuilder::new(local.clone()).bundle(bundle.clone()).build().unwrap();
    assert_eq!((name(&built.items), transcript(&built.transcripts)), ("bundle".into(), "bundle".into()));
    let builder = || AgentBundleBuilder::new(local.clone()).bundle(bundle.clone());
    let built = builder().items(explicit.items.clone()).build().unwrap();
    assert_eq!((name(&built.items), transcript(&built.transcripts)), ("explicit".into(), "bundle".into()), "each part on its own");
    let built = builder().transcripts(explicit.transcripts.clone().unwrap()).build().unwrap();
    assert_eq!((name(&built.items), transcript(&built.transcripts)), ("bundle".into(), "explicit".into()));
    // A bundle of the required parts leaves the others to the local defaults.
    let thin = DistributedStore::new(bundle.states.clone(), bundle.items.clone());
    let built = AgentBundleBuilder::new(local.clone()).bundle(thin).build().unwrap();
    assert_eq!((name(&built.items), transcript(&built.transcripts)), ("bundle".into(), "local".into()));
    let all = builder()
        .states(explicit.states.clone())
        .bus(explicit.bus.clone().unwrap())
        .locks(explicit.locks.clone().unwrap())
        .snapshots(explicit.snapshots.clone().unwrap())
        .tools(explicit.tools.clone().unwrap())
        .tasks(explicit.tasks.clone().unwrap())
        .build()
        .unwrap();
    assert!(Arc::ptr_eq(&all.states, &explicit.states));
    assert!([all.bus.is_some(), all.locks.is_some(), all.snapshots.is_some(), all.tools.is_some(), all.tasks.is_some()] == [true; 5]);
}

#[tokio::test]
async fn explicit_shared_parts_are_used_for_writes() {
    let (local, explicit): (Arc<dyn Store>, Arc<dyn Store>) = (Arc::new(MemoryStore::new()), Arc::new(MemoryStore::new()));
    let states: Arc<dyn AgentStateStore> = Arc::new(AgentStates::new(local.clone()).for_agent("acme", "a").unwrap());
    let of = |store: &Arc<dyn Store>| (store.clone(), owner());
    let ((a, b), (c, d), (e, f)) = (of(&explicit), of(&explicit), of(&explicit));
    let built = AgentBundleBuilder::new(DistributedStore::over(&local, &owner(), states))
        .bus(MessageBus::new(a, b))
        .tools(AsyncToolRegistry::new(c, d))
        .tasks(TaskRepository::new(e, f))
        .build()
        .unwrap();
    let before = local.current_version(&partition()).await.unwrap();
    built.bus.unwrap().queue_push("q", &json("{}")).await.unwrap();
    built.tasks.unwrap().upsert("s", "t", &treehold_agent_state::bundle::TaskUpdate::default()).await.unwrap();
    assert_eq!(local.current_version(&partition()).await.unwrap(), before);
    built.items.put(&["x"], "k", &json("{}")).await.unwrap();
    assert!(local.current_version(&partition()).await.unwrap() > before);
}

#[test]
fn two_file_systems_and_shared_files_with_local_states_are_refused() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let states: Arc<dyn AgentStateStore> = Arc::new(AgentStates::new(store.clone()).for_agent("acme", "a").unwrap());
    assert!(!states.capabilities().shared, "a store in memory is not shared");
    let parts = DistributedStore::over(&store, &owner(), states);
    let tree: Arc<dyn Backend> = Arc::new(StateBackend::new());
    let specs = [
        FilesystemSpec::Local(tree.clone()),
        FilesystemSpec::Shared(AgentWorkspace::new(store.clone())),
        FilesystemSpec::Sandbox(tree.clone()),
    ];
    let builder = || AgentBundleBuilder::new(parts.clone());
    for one in &specs {
        for other in &specs {
            let both = builder().filesystem(one.clone()).filesystem(other.clone()).allow_local_states();
            assert_eq!(kind(both.build()), ErrorKind::InvalidArgument, "{one:?} {other:?}");
        }
        let built = builder().filesystem(one.clone()).build();
        match one.is_shared() {
            true => assert_eq!(kind(built), ErrorKind::Unsupported, "{one:?}"),
            false => assert!(built.unwrap().filesystem.is_some(), "{one:?}"),
        }
        assert!(builder().filesystem(one.clone()).allow_local_states().build().is_ok(), "{one:?}");
    }
    assert!(builder().build().unwrap().filesystem.is_none());
}

const IDS: [&str; 12] = ["a", "b", "ab", "a/b", "users", "sessions", "shared", "anonymous", "_default", "default", "agents", "%2F"];

/// The ids that a namespace depends on: agent, user, session.
type Sharing<'a> = (&'a str, Option<&'a str>, Option<&'a str>);

/// Of all combinations of ids, no two share a namespace unless the scope says so.
#[test]
fn namespaces_of_scopes_never_collide() {
    for scope in IsolationScope::ALL {
        let mut found: BTreeMap<Vec<String>, BTreeSet<Sharing<'_>>> = BTreeMap::new();
        for agent in IDS {
            for user in IDS.map(Some).into_iter().chain([None]) {
                for session in IDS.map(Some).into_iter().chain([None]) {
                    let call = CallIdentity::new("acme", agent, user, session).unwrap();
                    let components = call.components(scope, AnonymousCalls::Allowed).unwrap();
                    let sharing = match scope {
                        IsolationScope::Session => (agent, None, session),
                        IsolationScope::User => (agent, user, None),
                        IsolationScope::Agent => (agent, None, None),
                        IsolationScope::Global => ("", None, None),
                    };
                    found.entry(components).or_default().insert(sharing);
                }
            }
        }
        assert!(found.values().all(|sharing| sharing.len() == 1), "{scope}");
    }
    let call = CallIdentity::new("acme", "helper", Some("ada"), Some("s1")).unwrap();
    for (scope, expected) in [
        (IsolationScope::Session, &["agents", "helper", "sessions", "s1"][..]),
        (IsolationScope::User, &["agents", "helper", "users", "ada"]),
        (IsolationScope::Agent, &["agents", "helper", "shared"]),
        (IsolationScope::Global, &["global"]),
    ] {
        assert_eq!(call.components(scope, AnonymousCalls::Refused).unwrap(), expected);
    }
    assert_eq!(IsolationScope::default(), IsolationScope::User);
}

#[test]
fn routes_map_to_their_segments() {
    let mut routes = WorkspaceRoute::of_agent("helper").unwrap();
    let shown: Vec<(&str, bool, &str)> =
        routes.iter().map(|route| (route.path.as_str(), route.is_file, route.segments[0].as_str())).collect();
    assert_eq!(
        shown,
        [
            ("/AGENTS.md", true, "root"),
            ("/MEMORY.md", true, "root"),
            ("/tools.json", true, "root"),
            ("/memory", false, "memory"),
            ("/skills", false, "skills"),
            ("/subagents", false, "subagents"),
            ("/knowledge", false, "knowledge"),
            ("/plans", false, "plans"),
            ("/agents/helper/sessions", false, "sessions"),
            ("/agents/helper/tasks", false, "tasks"),
        ]
    );
    let path = |text: &str| text.parse::<VfsPathBuf>().unwrap();
    for extra in ["/root", "/sessions", "/memory/deep", "/reports"] {
        routes.push(WorkspaceRoute::extra(&path(extra)).unwrap());
    }
    let distinct: BTreeSet<&Vec<String>> = routes.iter().filter(|route| !route.is_file).map(|route| &route.segments).collect();
    assert_eq!(distinct.len(), routes.len() - 3, "no two directories share a segment");
    for (text, owner) in [
        ("/AGENTS.md", Some("/AGENTS.md")),
        ("/AGENTS.md/x", None),
        ("/memory", Some("/memory")),
        ("/memory/deep/x", Some("/memory/deep")),
        ("/memory/deeper", Some("/memory")),
        ("/memories", None),
        ("/agents/helper/sessions/s", Some("/agents/helper/sessions")),
        ("/agents/other/sessions/s", None),
        ("/", None),
    ] {
        assert_eq!(WorkspaceRoute::of_path(&routes, &path(text)).map(|route| route.path.as_str()), owner, "{text}");
    }
    assert_eq!(kind(WorkspaceRoute::extra(&path("/"))), ErrorKind::InvalidArgument);
    assert_eq!(kind(WorkspaceRoute::of_agent("a/b")), ErrorKind::InvalidArgument);
}

/// A call on items.
#[derive(Debug, Clone)]
enum Call {
    Put(usize, usize),
    PutIf(usize, usize, u64),
    Delete(usize, usize),
    Get(usize, usize),
    Search(usize, bool, usize, usize),
}

const NAMESPACES: [&[&str]; 5] = [&[], &["a"], &["a", "b"], &["ab"], &["b"]];
const KEYS: [&str; 3] = ["k", "k2", "\u{1}"];

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let (namespace, key) = (0..NAMESPACES.len(), 0..KEYS.len());
    let call = prop_oneof![
        (namespace.clone(), key.clone()).prop_map(|(namespace, key)| Call::Put(namespace, key)),
        (namespace.clone(), key.clone(), 0..4_u64).prop_map(|(namespace, key, version)| Call::PutIf(namespace, key, version)),
        (namespace.clone(), key.clone()).prop_map(|(namespace, key)| Call::Delete(namespace, key)),
        (namespace.clone(), key).prop_map(|(namespace, key)| Call::Get(namespace, key)),
        (namespace, any::<bool>(), 1..5_usize, 0..4_usize)
            .prop_map(|(namespace, exact, limit, offset)| Call::Search(namespace, exact, limit, offset)),
    ];
    prop::collection::vec(call, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Items behave as a map from namespace and key to the last value, whose versions never repeat within a day.
    #[test]
    fn items_agree_with_a_map(calls in calls()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let items = KeyValues::new(Arc::new(MemoryStore::new()), owner());
            // The version and value of each item, and the last version of those that were deleted.
            let mut model: BTreeMap<(usize, &str), (u64, usize)> = BTreeMap::new();
            let mut last: BTreeMap<(usize, &str), u64> = BTreeMap::new();
            for (number, call) in calls.iter().enumerate() {
                match *call {
                    Call::Put(namespace, key) => {
                        let at = (namespace, KEYS[key]);
                        let next = last.get(&at).copied().unwrap_or(0) + 1;
                        assert_eq!(items.put(NAMESPACES[namespace], KEYS[key], &numbered(number)).await.unwrap(), next);
                        model.insert(at, (next, number));
                        last.insert(at, next);
                    }
                    Call::PutIf(namespace, key, expected) => {
                        let at = (namespace, KEYS[key]);
                        let current = model.get(&at).map_or(0, |(version, _)| *version);
                        let put = items.put_if_version(NAMESPACES[namespace], KEYS[key], &numbered(number), expected).await;
                        if expected == current {
                            let next = last.get(&at).copied().unwrap_or(0) + 1;
                            assert_eq!(put.unwrap(), next);
                            model.insert(at, (next, number));
                            last.insert(at, next);
                        } else {
                            assert_eq!(kind(put), ErrorKind::Conflict);
                        }
                    }
                    Call::Delete(namespace, key) => {
                        items.delete(NAMESPACES[namespace], KEYS[key]).await.unwrap();
                        model.remove(&(namespace, KEYS[key]));
                    }
                    Call::Get(namespace, key) => {
                        let found = items.get(NAMESPACES[namespace], KEYS[key]).await.unwrap();
                        let expected = model.get(&(namespace, KEYS[key])).map(|(version, value)| (*version, numbered(*value)));
                        assert_eq!(found.map(|item| (item.version, item.value)), expected);
                    }
                    Call::Search(namespace, exact, limit, offset) => {
                        let search = KvSearch::new(NAMESPACES[namespace].iter().copied()).with_exact(exact);
                        let page = items.search(&search.with_limit(limit).with_offset(offset)).await.unwrap();
                        let is_found = |space: usize| match exact {
                            true => space == namespace,
                            false => NAMESPACES[space].starts_with(NAMESPACES[namespace]),
                        };
                        let mut expected: Vec<(Vec<String>, &str, u64)> = model
                            .iter()
                            .filter(|((space, _), _)| is_found(*space))
                            .map(|((space, key), (version, _))| (NAMESPACES[*space].iter().map(|name| (*name).to_owned()).collect(), *key, *version))
                            .collect();
                        expected.sort();
                        let all = expected.len();
                        let expected: Vec<_> = expected.into_iter().skip(offset).take(limit).collect();
                        let found: Vec<_> = page.items.iter().map(|item| (item.namespace.clone(), &*item.key, item.version)).collect();
                        assert_eq!(found, expected);
                        assert_eq!(page.next.is_some(), offset + limit < all);
                    }
                }
            }
        });
    }
}

/// The root shows the routes that are directories, and the files that exist.
#[tokio::test]
async fn shared_workspace_lists_its_routes_at_the_root() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let call = CallIdentity::new("acme", "helper", Some("ada"), None).unwrap();
    let tree = AgentWorkspace::new(store).open(&call, Arc::new(StateBackend::new())).unwrap();
    tree.write("/AGENTS.md", "a").await.unwrap();
    tree.write("/src/main.rs", "b").await.unwrap();
    let names: Vec<String> = tree.tree("/", 1, 100).await.unwrap().entries.iter().map(|entry| entry.path.to_string()).collect();
    assert_eq!(names, ["/AGENTS.md", "/agents", "/knowledge", "/memory", "/plans", "/skills", "/src", "/subagents"]);
}
