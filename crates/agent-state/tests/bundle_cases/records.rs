//! Tool runs, tasks and snapshots.

use super::support::{damage, kind, look_alike_owners, owner, rows};
use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use std::sync::Arc;
use std::time::Duration;
use treehold_agent_state::bundle::{
    AsyncToolRecord, AsyncToolRegistry, AsyncToolStatus, SNAPSHOT_BYTES_MAX, Snapshots, TaskRecord, TaskReference, TaskRepository,
    TaskStatus, TaskUpdate,
};
use treehold_core::ErrorKind;
use treehold_core::clock::Clock;
use treehold_store::Store;

const MINUTE: Duration = Duration::from_secs(60);

fn registry(store: &Arc<dyn Store>) -> AsyncToolRegistry {
    AsyncToolRegistry::new(store.clone(), owner())
}

fn tasks(store: &Arc<dyn Store>) -> TaskRepository {
    TaskRepository::new(store.clone(), owner())
}

/// Returns the tasks as a process sees them that looks later.
fn tasks_in(store: &Arc<dyn Store>, later: Duration) -> TaskRepository {
    tasks(store).with_clock(Clock::from_fn(move || Timestamp::now().checked_add(later).unwrap()))
}

fn update(status: TaskStatus) -> TaskUpdate {
    TaskUpdate { status, ..TaskUpdate::default() }
}

/// Every sequence of two ends, and what the second one does.
pub(crate) async fn tool_run_ends_once(store: Arc<dyn Store>) {
    use AsyncToolStatus::{Completed, Failed, Timeout};
    let registry = registry(&store);
    let end = async |id: &str, status| match status {
        Completed => registry.complete(id, "result").await,
        Failed => registry.fail(id, "error").await,
        _ => registry.mark_timeout(id).await,
    };
    for first in [Completed, Failed, Timeout] {
        for second in [Completed, Failed, Timeout] {
            let id = format!("{first:?}-{second:?}");
            registry.register(&AsyncToolRecord::new(&*id, "s1", "grep", "call-1")).await.unwrap();
            assert!(end(&id, first).await.unwrap(), "{id}");
            let takes_effect = first == Timeout && second != Timeout;
            assert_eq!(end(&id, second).await.unwrap(), takes_effect, "{id}");
            let record = registry.get(&id).await.unwrap().unwrap();
            let last = if takes_effect { second } else { first };
            assert_eq!(record.status, last, "{id}");
            assert_eq!((record.result.is_empty(), record.error.is_empty()), (last != Completed, last != Failed), "{id}");
            assert_eq!((&*record.tool_name, &*record.tool_call_id), ("grep", "call-1"));
        }
    }
    assert_eq!(kind(registry.complete("unknown", "r").await), ErrorKind::NotFound);
    assert_eq!(registry.get("unknown").await.unwrap(), None);
    assert_eq!(kind(registry.register(&AsyncToolRecord::new("", "s", "t", "c")).await), ErrorKind::InvalidArgument);
    assert_eq!(kind(registry.register(&AsyncToolRecord::new("i", "", "t", "c")).await), ErrorKind::InvalidArgument);
    assert_eq!(kind(registry.complete("i", &"r".repeat((1 << 20) + 1)).await), ErrorKind::TooLarge);
}

pub(crate) async fn stale_tool_runs_are_those_of_the_session_that_still_run(store: Arc<dyn Store>) {
    let registry = registry(&store);
    let old = Timestamp::now() - SignedDuration::from_mins(10);
    let run = |id: &str, session: &str| AsyncToolRecord::new(id, session, "grep", id);
    for (id, session) in [("a", "s1"), ("b", "s1"), ("c", "s1"), ("d", "s2")] {
        registry.register(&run(id, session).with_created_at(old)).await.unwrap();
        registry.register(&run(id, session)).await.unwrap();
    }
    registry.register(&run("young", "s1")).await.unwrap();
    assert_eq!(kind(registry.register(&AsyncToolRecord::new("a", "s1", "grep", "another call")).await), ErrorKind::AlreadyExists);
    registry.complete("b", "done").await.unwrap();
    let stale = async |limit| {
        let found = registry.find_stale("s1", 5 * MINUTE, limit).await.unwrap();
        found.into_iter().map(|record| record.id).collect::<String>()
    };
    assert_eq!((&*stale(9).await, &*stale(1).await), ("ac", "a"));
    registry.mark_timeout("a").await.unwrap();
    assert_eq!(stale(9).await, "c");
    assert_eq!(registry.find_stale("s1", 20 * MINUTE, 9).await.unwrap(), []);
    for owner in look_alike_owners().into_iter().filter(|other| *other != owner()) {
        let registry = AsyncToolRegistry::new(store.clone(), owner.clone());
        assert_eq!(registry.get("a").await.unwrap(), None, "{owner}");
        assert_eq!(registry.find_stale("s1", Duration::ZERO, 9).await.unwrap(), [], "{owner}");
    }
}

pub(crate) async fn task_keeps_creation_cancel_request_and_delivery(store: Arc<dyn Store>) {
    let tasks = tasks(&store);
    let created = tasks.upsert("s1", "t1", &update(TaskStatus::Pending)).await.unwrap();
    assert_eq!((created.version, created.terminal, &*created.parent_agent_id), (1, false, "helper"));
    tasks.request_cancel("s1", "t1").await.unwrap();
    // The runner read the task before the request. Its report must not withdraw it.
    let running = tasks.upsert("s1", "t1", &update(TaskStatus::Running)).await.unwrap();
    assert!(running.update.cancel_requested);
    assert_eq!((running.version, running.created_at), (3, created.created_at));
    let ended = TaskUpdate { result: "r".into(), ..update(TaskStatus::Completed) };
    let ended = tasks.upsert("s1", "t1", &ended).await.unwrap();
    assert!(ended.terminal && ended.delivered_at.is_none() && ended.last_updated_at >= running.last_updated_at);
    assert_eq!(tasks.get("s1", "t1").await.unwrap().unwrap(), ended);
    let text = serde_json::to_string(&ended).unwrap();
    for field in
        ["parentAgentId", "parentSessionId", "taskId", "status", "terminal", "cancelRequested", "createdAt", "lastUpdatedAt", "version"]
    {
        assert!(text.contains(&format!("\"{field}\":")), "{field} in {text}");
    }
    assert_eq!(serde_json::from_str::<TaskRecord>(&text).unwrap(), ended);
    assert!(tasks.delete("s1", "t1").await.unwrap() && !tasks.delete("s1", "t1").await.unwrap());
    for (call, result) in
        [("get", tasks.get("s1", "").await.map(drop)), ("upsert", tasks.upsert("", "t", &update(TaskStatus::Pending)).await.map(drop))]
    {
        assert_eq!(kind(result), ErrorKind::InvalidArgument, "{call}");
    }
    assert_eq!(kind(tasks.request_cancel("s1", "none").await), ErrorKind::NotFound);
}

/// Every change of the state of a task, and whether it is accepted.
pub(crate) async fn task_that_ended_does_not_run_again(store: Arc<dyn Store>) {
    use TaskStatus::{Cancelled, Completed, Failed, Pending, Running};
    let tasks = tasks(&store);
    for from in [Pending, Running, Completed, Failed, Cancelled] {
        for to in [Pending, Running, Completed, Failed, Cancelled] {
            let id = format!("{from:?}-{to:?}");
            tasks.upsert("s1", &id, &update(from)).await.unwrap();
            let moved = tasks.upsert("s1", &id, &update(to)).await;
            assert_eq!(moved.is_ok(), !from.is_terminal() || to.is_terminal(), "{id}");
            if let Err(error) = moved {
                assert_eq!(error.kind(), ErrorKind::Conflict, "{id}");
            }
            if from.is_terminal() && to.is_terminal() {
                tasks.mark_delivered("s1", &id).await.unwrap();
                assert!(tasks.upsert("s1", &id, &update(to)).await.is_ok(), "{id}: a repeated report is no change");
                let other = if to == Failed { Completed } else { Failed };
                assert_eq!(kind(tasks.upsert("s1", &id, &update(other)).await), ErrorKind::Conflict, "{id}: the result was delivered");
            }
        }
    }
    let all = tasks.list("s1", None, None, 100).await.unwrap();
    assert_eq!((all.tasks.len(), all.next), (25, None));
    let cancelled = tasks.list("s1", Some(Cancelled), None, 100).await.unwrap().tasks;
    assert!(cancelled.len() >= 5 && cancelled.iter().all(|task| task.update.status == Cancelled));
    let (mut ids, mut after) = (Vec::new(), None);
    loop {
        let page = tasks.list("s1", None, after.as_deref(), 7).await.unwrap();
        ids.extend(page.tasks.into_iter().map(|task| task.task_id));
        let Some(next) = page.next else { break };
        after = Some(next);
    }
    assert_eq!(ids, all.tasks.into_iter().map(|task| task.task_id).collect::<Vec<_>>());
    assert_eq!(tasks.list("s2", None, None, 100).await.unwrap().tasks, []);
}

pub(crate) async fn delivery_is_recorded_once(store: Arc<dyn Store>) {
    let tasks = tasks(&store);
    tasks.upsert("s1", "t1", &update(TaskStatus::Completed)).await.unwrap();
    tasks.upsert("s1", "t2", &update(TaskStatus::Running)).await.unwrap();
    let pending = tasks.pending_deliveries("s1", None, 9).await.unwrap().tasks;
    assert_eq!(pending.iter().map(|task| &*task.task_id).collect::<Vec<_>>(), ["t1"]);
    let deliveries = (0..8).map(|_| {
        let tasks = tasks.clone();
        tokio::spawn(async move { tasks.mark_delivered("s1", "t1").await.unwrap() })
    });
    let first = futures::future::join_all(deliveries).await.into_iter().filter(|delivery| *delivery.as_ref().unwrap()).count();
    assert_eq!(first, 1);
    assert_eq!(tasks.pending_deliveries("s1", None, 9).await.unwrap().tasks, []);
    assert!(tasks.get("s1", "t1").await.unwrap().unwrap().delivered_at.is_some());
    assert_eq!(kind(tasks.mark_delivered("s1", "none").await), ErrorKind::NotFound);
}

pub(crate) async fn heartbeat_keeps_running_tasks_and_orphans_fail(store: Arc<dyn Store>) {
    let tasks = tasks(&store);
    for (session, task, status, transport) in [
        ("s1", "alive", TaskStatus::Running, ""),
        ("s1", "dead", TaskStatus::Running, ""),
        ("s1", "ended", TaskStatus::Completed, ""),
        ("s1", "remote", TaskStatus::Running, "Agent-Protocol"),
        ("s2", "dead", TaskStatus::Pending, ""),
    ] {
        tasks.upsert(session, task, &TaskUpdate { transport_type: transport.into(), ..update(status) }).await.unwrap();
    }
    let later = tasks_in(&store, 10 * MINUTE);
    let reference = |task: &str| TaskReference { parent_session_id: "s1".into(), task_id: task.into() };
    later.heartbeat(&[reference("alive"), reference("ended"), reference("unknown")]).await.unwrap();
    let marked = later.sweep_orphaned(5 * MINUTE, "its runner is gone", 1).await.unwrap();
    assert_eq!(marked.len(), 1);
    let mut failed = marked;
    failed.extend(later.sweep_orphaned(5 * MINUTE, "its runner is gone", 9).await.unwrap());
    let mut names: Vec<_> = failed.iter().map(|task| (&*task.parent_session_id, &*task.task_id)).collect();
    names.sort_unstable();
    assert_eq!(names, [("s1", "dead"), ("s2", "dead")]);
    assert!(failed.iter().all(|task| task.terminal && task.update.error_message == "its runner is gone"));
    assert_eq!(later.sweep_orphaned(5 * MINUTE, "", 9).await.unwrap(), []);
    let many = vec![reference("alive"); 1_001];
    assert_eq!(kind(tasks.heartbeat(&many).await), ErrorKind::InvalidArgument);
    tasks.heartbeat(&[]).await.unwrap();
}

pub(crate) async fn snapshot_is_read_back_whole_or_refused(store: Arc<dyn Store>) {
    let snapshots = Snapshots::new(store.clone(), owner());
    assert_eq!((snapshots.get("a").await.unwrap(), snapshots.info("a").await.unwrap()), (None, None));
    for size in [0, 1, 4 << 20, (4 << 20) + 1, (9 << 20) + 7] {
        let bytes: Bytes = (0..size).map(|at| (at % 251) as u8).collect();
        let put = snapshots.put("a", bytes.clone()).await.unwrap();
        assert_eq!(put.size_bytes, size as u64);
        assert!(snapshots.get("a").await.unwrap().unwrap() == bytes, "{size} bytes");
        assert_eq!(snapshots.info("a").await.unwrap().unwrap().size_bytes, size as u64);
    }
    let large = Bytes::from(vec![0; SNAPSHOT_BYTES_MAX + 1]);
    assert_eq!(kind(snapshots.put("a", large).await), ErrorKind::TooLarge);
    assert_eq!(kind(snapshots.put(" ", Bytes::new()).await), ErrorKind::InvalidArgument);
    for owner in look_alike_owners().into_iter().filter(|other| *other != owner()) {
        assert_eq!(Snapshots::new(store.clone(), owner).get("a").await.unwrap(), None);
    }
}

pub(crate) async fn replaced_snapshot_leaves_no_parts(store: Arc<dyn Store>) {
    let snapshots = Snapshots::new(store.clone(), owner());
    snapshots.put("a", Bytes::from(vec![1; 9 << 20])).await.unwrap();
    assert_eq!(rows(&store).await.len(), 4);
    snapshots.put("a", Bytes::from(vec![2; 10])).await.unwrap();
    assert_eq!(rows(&store).await.len(), 2);
    let writers = (0..4).map(|number| {
        let snapshots = snapshots.clone();
        tokio::spawn(async move { snapshots.put("a", Bytes::from(vec![number; 5 << 20])).await.unwrap() })
    });
    futures::future::join_all(writers).await;
    let left = snapshots.get("a").await.unwrap().unwrap();
    assert!(left.iter().all(|byte| *byte == left[0]), "the bytes are those of one writer");
    assert_eq!(rows(&store).await.len(), 3);
    snapshots.delete("a").await.unwrap();
    snapshots.delete("a").await.unwrap();
    assert_eq!(rows(&store).await, []);
}

pub(crate) async fn damaged_records_are_corrupt(store: Arc<dyn Store>) {
    let (registry, tasks, snapshots) = (registry(&store), tasks(&store), Snapshots::new(store.clone(), owner()));
    registry.register(&AsyncToolRecord::new("i", "s1", "t", "c").with_created_at(Timestamp::UNIX_EPOCH)).await.unwrap();
    tasks.upsert("s1", "t1", &update(TaskStatus::Running)).await.unwrap();
    snapshots.put("head", Bytes::from_static(b"abc")).await.unwrap();
    assert_eq!(damage(&store, "snapshot-parts").await, 1);
    assert_eq!(kind(snapshots.get("head").await), ErrorKind::Corrupt);
    for part in ["tools", "tasks", "snapshots"] {
        assert_eq!(damage(&store, part).await, 1, "{part}");
    }
    assert_eq!(kind(registry.get("i").await), ErrorKind::Corrupt);
    assert_eq!(kind(registry.complete("i", "r").await), ErrorKind::Corrupt);
    assert_eq!(kind(registry.find_stale("s1", MINUTE, 9).await), ErrorKind::Corrupt);
    assert_eq!(kind(tasks.get("s1", "t1").await), ErrorKind::Corrupt);
    assert_eq!(kind(tasks.upsert("s1", "t1", &update(TaskStatus::Failed)).await), ErrorKind::Corrupt);
    assert_eq!(kind(tasks.list("s1", None, None, 9).await), ErrorKind::Corrupt);
    assert_eq!(kind(snapshots.get("head").await), ErrorKind::Corrupt);
    assert_eq!(kind(snapshots.info("head").await), ErrorKind::Corrupt);
}
