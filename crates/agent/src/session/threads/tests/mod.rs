//! Calls on threads: conflicts, replays, threads set aside, and saves that fail.

mod conflicts;
mod outbox;

use super::*;
use crate::live::Lossy;
use crate::tools::ToolCall;
use serde_json::json;
use std::sync::atomic::Ordering;
use std::time::Duration;
use treehold_store::MemoryStore;
use treehold_tree::backend::BackendExt;
use treehold_tree::checkpoint::StoreCheckpointer;

fn scope(thread: &str) -> Scope {
    Scope::new().with_thread(thread)
}

/// Returns the threads of one process on a store.
fn process(store: &Arc<MemoryStore>) -> Threads {
    let shared = store.clone();
    let workspace = Workspace::builder()
        .mount("/memories", move |_| Ok(Arc::new(treehold_tree::backend::StoreBackend::new(shared.clone(), namespace()))))
        .expect("one mount")
        .checkpointer(StoreCheckpointer::new(store.clone()))
        .build();
    Threads::new(workspace)
}

fn namespace() -> treehold_store::Namespace {
    treehold_core::scope::NamespaceTemplate::parse("memories").and_then(|template| template.fill(&Scope::new())).expect("a namespace")
}

fn call(tool: &str, arguments: serde_json::Value) -> ToolCall {
    ToolCall::from_json(tool, arguments).expect("a legal call")
}

fn write(path: &str, content: &str) -> ToolCall {
    call("write_file", json!({"path": path, "content": content}))
}

async fn text(threads: &Threads, path: &str) -> String {
    threads.call(&scope("t"), call("read_file", json!({"path": path}))).await.text
}

/// Makes another process save the thread before each of the next `conflicts` commits.
fn conflict(store: &Arc<Lossy>, other: &Arc<Threads>, conflicts: usize) {
    let (on, again) = (store.clone(), other.clone());
    if conflicts > 0 {
        store.before_commit(async move {
            assert!(!again.call(&scope("t"), write("/other", &conflicts.to_string())).await.is_error);
            conflict(&on, &again, conflicts - 1);
        });
    }
}

#[tokio::test]
async fn call_sees_saves_of_other_processes_and_leaves_nothing_open() {
    let store = Arc::default();
    let (one, two) = (process(&store), process(&store));
    assert!(!one.call(&scope("t"), write("/a", "one")).await.is_error);
    assert_eq!(text(&two, "/a").await, "one");
    assert!(!two.call(&scope("t"), write("/a", "two")).await.is_error);
    assert_eq!(text(&one, "/a").await, "two");
    assert_eq!((one.workspace.open_threads(), two.workspace.open_threads()), (0, 0));
}

/// A file name for work that also changes another mount.
const ACROSS: &str = "/across";

/// Returns work that writes a file and, on its first run, waits for something else to happen before the thread is saved.
fn meanwhile<F: Future<Output = ()> + Send + 'static>(
    path: &'static str,
    happens: impl FnOnce() -> F + Send + 'static,
) -> impl Fn(Session) -> BoxFuture<'static, Result<()>> {
    let happens = Arc::new(Mutex::new(Some(happens)));
    move |session| {
        let happens = happens.clone();
        Box::pin(async move {
            session.backend().write(path, "one").await?;
            if path == ACROSS {
                session.backend().write("/memories/across", "one").await?;
            }
            let first = happens.lock().take();
            if let Some(happens) = first {
                happens().await;
            }
            Ok(())
        })
    }
}

#[tokio::test]
async fn call_whose_save_conflicts_is_repeated() {
    let store = Arc::default();
    let (one, two) = (process(&store), Arc::new(process(&store)));
    let other = two.clone();
    let work = meanwhile("/a", || async move { assert!(!other.call(&scope("t"), write("/b", "two")).await.is_error) });
    one.lasting(&scope("t"), &Target::Thread, work).await.expect("written and saved");
    assert_eq!((text(&two, "/a").await, text(&two, "/b").await), ("one".to_owned(), "two".to_owned()));
}

#[tokio::test]
async fn unrepeatable_work_is_set_aside_as_another_thread() {
    let store = Arc::default();
    let (one, two) = (process(&store), Arc::new(process(&store)));
    let other = two.clone();
    let work = meanwhile(ACROSS, || async move { assert!(!other.call(&scope("t"), write("/b", "two")).await.is_error) });
    let error = one.lasting(&scope("t"), &Target::Thread, work).await.expect_err("another writer saved the thread");
    assert!(error.kind() == ErrorKind::Conflict && error.may_have_effect(), "{error:?}");
    let aside = error.message().split('`').nth(5).expect("its name").to_owned();
    let aside = process(&store).session(&scope(&aside)).await.expect("saved").backend();
    assert!(
        aside.exists(ACROSS).await.expect("read") && !aside.exists("/b").await.expect("read"),
        "the separate thread has the state that the call left"
    );
    // The thread is as the other process left it, and the next call continues from there.
    assert_eq!((text(&one, "/b").await, text(&one, ACROSS).await.contains("not_found")), ("two".to_owned(), true));
    assert!(!one.call(&scope("t"), write("/c", "three")).await.is_error);
}

/// Regression: a long read kept the thread open for all other calls, outdated, whatever other processes saved.
#[tokio::test]
async fn held_session_does_not_show_outdated_state_to_other_calls() {
    let store = Arc::default();
    let (one, two) = (process(&store), process(&store));
    assert!(!one.call(&scope("t"), write("/a", "one")).await.is_error);
    let held = one.session(&scope("t")).await.expect("opened");
    assert!(held.backend().exists("/a").await.expect("read"));
    assert!(!two.call(&scope("t"), write("/a", "two")).await.is_error);
    assert_eq!(text(&one, "/a").await, "two");
    assert_eq!(held.backend().read_text("/a").await.expect("the session keeps its state"), "one");
}

/// Regression: a version that was read and never saved could name other content later.
#[tokio::test]
async fn unsaved_changes_are_invisible_to_other_calls() {
    let store = Arc::default();
    let one = Arc::new(process(&store));
    let reader = one.clone();
    let work = meanwhile("/a", || async move { assert!(text(&reader, "/a").await.contains("not_found")) });
    one.lasting(&scope("t"), &Target::Thread, work).await.expect("written and saved");
    assert_eq!(text(&one, "/a").await, "one");
}

/// Regression: they shared the open thread but not their turns, and a refused save rolled back what the other caller's call had
/// acknowledged.
#[tokio::test]
async fn callers_with_different_rights_lose_no_changes_to_each_other() {
    let store = Arc::default();
    let (one, elsewhere) = (Arc::new(process(&store)), Arc::new(process(&store)));
    let less = Arc::new(Threads::new(one.workspace.with_layer(|tree, _| tree)));
    let (both, thread) = (Arc::new(tokio::sync::Barrier::new(2)), scope("t"));
    let waits = both.clone();
    let first = meanwhile("/a", move || async move {
        assert!(!elsewhere.call(&scope("t"), write("/c", "one")).await.is_error);
        waits.wait().await;
    });
    let second = meanwhile("/b", move || async move {
        both.wait().await;
    });
    let (first, second) = tokio::join!(one.lasting(&thread, &Target::Thread, first), less.lasting(&thread, &Target::Thread, second));
    first.expect("written and saved");
    second.expect("written and saved");
    for path in ["/a", "/b", "/c"] {
        assert_eq!(text(&one, path).await, "one", "{path}");
    }
}

/// Regression: a write was acknowledged although it was only in memory.
#[tokio::test]
async fn unsaved_work_is_reported_and_saved_by_the_next_call() {
    let store = Arc::new(Lossy::default());
    let process = || Threads::new(Workspace::builder().checkpointer(StoreCheckpointer::new(store.clone())).build());
    let (one, two) = (process(), process());
    let failing = store.clone();
    let work = meanwhile("/a", || async move { failing.lose(100) });
    let error = one.lasting(&scope("t"), &Target::Thread, work).await.expect_err("the store answers nothing");
    assert!(error.kind() == ErrorKind::Unavailable && error.may_have_effect(), "{error}");
    let output = one.call(&scope("t"), write("/b", "one")).await;
    assert!(output.is_error && output.text.contains("not saved yet"), "{}", output.text);
    store.lose(0);
    assert_eq!((text(&one, "/a").await, text(&two, "/a").await), ("one".to_owned(), "one".to_owned()));
    assert_eq!(text(&two, "/b").await, "one");
    assert!(one.kept.lock().is_empty());
}

#[tokio::test]
async fn concurrent_calls_of_one_process_lose_no_changes() {
    let store = Arc::default();
    let (one, two) = (Arc::new(process(&store)), Arc::new(process(&store)));
    let calls = (0..40).map(|number| {
        let threads = if number % 2 == 0 { one.clone() } else { two.clone() };
        tokio::spawn(async move { threads.call(&scope("t"), write(&format!("/{number}"), "x")).await })
    });
    for output in futures::future::join_all(calls).await {
        let output = output.expect("run to its end");
        assert!(!output.is_error, "{}", output.text);
    }
    let listed = one.session(&scope("t")).await.expect("opened").backend().tree("/", 1, 100).await.expect("listed");
    assert_eq!(listed.entries.iter().filter(|entry| entry.path.as_str() != "/memories").count(), 40);
}

#[tokio::test]
async fn threads_stay_in_memory_without_a_checkpointer() {
    let threads = Threads::new(Workspace::builder().build());
    assert!(!threads.call(&scope("t"), write("/a", "one")).await.is_error);
    assert_eq!(text(&threads, "/a").await, "one");
    threads.close().await.expect("nothing to save");
}

#[tokio::test]
async fn threads_with_exit_durability_are_saved_on_close() {
    let store: Arc<MemoryStore> = Arc::default();
    let open = || {
        let builder = Workspace::builder().checkpointer(StoreCheckpointer::new(store.clone()));
        Threads::new(builder.durability(ThreadDurability::Exit).build())
    };
    let threads = open();
    assert!(!threads.call(&scope("t"), write("/a", "one")).await.is_error);
    assert_eq!(text(&threads, "/a").await, "one");
    assert!(text(&open(), "/a").await.contains("not_found"));
    threads.close().await.expect("saved");
    assert_eq!(text(&open(), "/a").await, "one");
}

/// Returns a process on a store that loses answers, with rows of that store at `/memories`.
fn lossy(store: &Arc<Lossy>, durability: ThreadDurability) -> Arc<Threads> {
    let shared = store.clone();
    let workspace = Workspace::builder()
        .mount("/memories", move |_| Ok(Arc::new(treehold_tree::backend::StoreBackend::new(shared.clone(), namespace()))))
        .expect("one mount")
        .checkpointer(StoreCheckpointer::new(store.clone()))
        .durability(durability)
        .build();
    Arc::new(Threads::new(workspace))
}

fn append(path: &str) -> ToolCall {
    call("write_file", json!({"path": path, "content": "x\n", "mode": "append"}))
}

async fn threads_of(threads: &Threads) -> Vec<String> {
    let page = threads.checkpointer().expect("kept").threads(&Scope::new(), None, 100).await.expect("listed");
    page.threads.into_iter().map(|thread| thread.thread).collect()
}

/// Regression: the error of the first save was swallowed, the second conflicted with the first one's head, and the call was applied two
/// or three times.
#[tokio::test]
async fn call_with_lost_save_answer_is_applied_once_while_others_save() {
    for durability in [ThreadDurability::Step, ThreadDurability::Sync] {
        for reads in 0..8 {
            let store = Arc::new(Lossy::default());
            let (one, two) = (lossy(&store, durability), lossy(&store, durability));
            assert!(!two.call(&scope("t"), write("/b", "two")).await.is_error);
            let (other, failing) = (two.clone(), store.clone());
            store.lose_commit(async move {
                for _ in 0..3 {
                    assert!(!other.call(&scope("t"), append("/b")).await.is_error);
                }
                failing.reads.store(reads, Ordering::Relaxed);
            });
            let output = one.call(&scope("t"), append("/log")).await;
            if output.is_error {
                let error = output.error.expect("why");
                assert!(error.may_have_effect && error.code == "unavailable", "{durability} {reads}: {error:?}");
            } else {
                assert_eq!(output.unsaved, None);
            }
            store.lose(0);
            assert_eq!(text(&one, "/log").await, "x\n", "{durability} {reads}");
            assert_eq!((text(&two, "/log").await, text(&two, "/b").await), ("x\n".to_owned(), "twox\nx\nx\n".to_owned()));
            assert_eq!(threads_of(&one).await, ["t"], "{durability} {reads}");
            assert!(one.kept.lock().is_empty());
        }
    }
}

/// Returns a call of each writing tool, on files beneath a directory that contains `/a`, `/d/one` and `/gone`.
fn writing_calls(at: &str) -> Vec<ToolCall> {
    let path = |name: &str| format!("{at}/{name}");
    let patch = format!(
        "*** Begin Patch\n*** Add File: {}\n+new\n*** Update File: {}\n@@\n-one\n+two\n*** Delete File: {}\n*** End Patch",
        path("added"),
        path("a"),
        path("gone")
    );
    let agent = |name: &str, arguments| crate::tools::ToolSet::Agent.decode(name, arguments).expect("a legal call");
    vec![
        call("write_file", json!({"path": path("a"), "content": "x", "mode": "append"})),
        call("edit_file", json!({"path": path("a"), "old_string": "one", "new_string": "two"})),
        call("apply_patch", json!({"patch": patch})),
        call("delete", json!({"path": path("d"), "recursive": true})),
        call("move", json!({"from": path("d"), "to": path("e")})),
        call("memory", json!({"command": "create", "path": format!("/memories{}", path("made")), "file_text": "x"})),
        call("str_replace_based_edit_tool", json!({"command": "str_replace", "path": path("a"), "old_str": "one", "new_str": "two"})),
        agent("write", json!({"file_path": path("made"), "content": "x"})),
        agent("edit", json!({"file_path": path("a"), "old_string": "one", "new_string": "two"})),
    ]
}

#[test]
fn every_writing_tool_is_covered_and_names_its_paths() {
    let calls = writing_calls("/at");
    for set in crate::tools::ToolSet::ALL {
        for tool in set.tools().iter().filter(|tool| !tool.read_only) {
            assert!(calls.iter().any(|call| call.set() == set && call.name() == tool.name), "{} of {set:?}", tool.name);
        }
    }
    for call in calls {
        assert!(call.named_paths().is_some_and(|paths| paths.iter().all(|path| path.as_str().contains("/at/"))), "{call}");
    }
}

async fn prepare(threads: &Threads, at: &str) {
    for (name, content) in [("a", "one\n"), ("d/one", "1"), ("gone", "x")] {
        assert!(!threads.call(&scope("t"), write(&format!("{at}/{name}"), content)).await.is_error);
    }
}

/// Regression: moves and patches were refused, and left an unwanted thread.
#[tokio::test]
async fn call_within_the_state_is_repeated_after_a_lost_race_for_every_tool() {
    for number in 0..writing_calls("/at").len() {
        let (store, call) = (Arc::new(Lossy::default()), writing_calls("/at").swap_remove(number));
        let (one, two) = (lossy(&store, ThreadDurability::Step), lossy(&store, ThreadDurability::Step));
        prepare(&two, "/at").await;
        store.before_commit(async move { assert!(!two.call(&scope("t"), append("/b")).await.is_error) });
        let shown = call.to_string();
        let output = one.call(&scope("t"), call).await;
        assert!(!output.is_error, "{shown}: {}", output.text);
        assert_eq!((threads_of(&one).await, text(&one, "/b").await), (vec!["t".to_owned()], "x\n".to_owned()), "{shown}");
    }
}

#[tokio::test]
async fn call_across_mounts_is_set_aside_after_a_lost_race() {
    let store = Arc::new(Lossy::default());
    let (one, two) = (lossy(&store, ThreadDurability::Step), lossy(&store, ThreadDurability::Step));
    prepare(&two, "/at").await;
    let patch = "*** Begin Patch\n*** Add File: /memories/b\n+new\n*** Delete File: /at/gone\n*** End Patch";
    for call in [call("move", json!({"from": "/at/a", "to": "/memories/a"})), call("apply_patch", json!({"patch": patch}))] {
        let shown = call.to_string();
        let (other, again) = (two.clone(), store.clone());
        // The first commit holds the rows, the second the thread.
        store.before_commit(async move {
            again.before_commit(async move { assert!(!other.call(&scope("t"), append("/b")).await.is_error) });
        });
        let before = threads_of(&one).await.len();
        let output = one.call(&scope("t"), call).await;
        let error = output.error.unwrap_or_else(|| panic!("{shown}: {}", output.text));
        assert!(error.code == "conflict" && error.may_have_effect && error.message.contains("is saved as thread"), "{shown}: {error:?}");
        assert_eq!(threads_of(&one).await.len(), before + 1, "{shown}");
    }
}

/// Regression: writes to memories waited until all earlier calls had saved the thread.
#[tokio::test]
async fn call_that_does_not_change_the_thread_takes_no_turn() {
    let store = Arc::new(Lossy::default());
    let one = lossy(&store, ThreadDurability::Step);
    prepare(&one, "/memories/at").await;
    let thread = scope("t");
    let (begun, release) = (Arc::new(tokio::sync::Barrier::new(2)), Arc::new(tokio::sync::Barrier::new(2)));
    let (begins, waits, threads) = (begun.clone(), release.clone(), one.clone());
    let holds = tokio::spawn(async move {
        let work = meanwhile("/held", move || async move {
            begins.wait().await;
            waits.wait().await;
        });
        threads.lasting(&scope("t"), &Target::Thread, work).await
    });
    begun.wait().await;
    for call in writing_calls("/memories/at") {
        let shown = call.to_string();
        // Restores what the next call may need.
        let answered = async {
            let output = one.call(&scope("t"), call).await;
            prepare(&one, "/memories/at").await;
            output
        };
        let output = tokio::time::timeout(Duration::from_secs(60), answered).await.unwrap_or_else(|_| panic!("{shown} waits"));
        // The target directory of the move already exists.
        assert!(!output.is_error || shown.starts_with("move"), "{shown}: {}", output.text);
    }
    let mut waiting = std::pin::pin!(one.call(&thread, append("/waits")));
    assert!(futures::poll!(waiting.as_mut()).is_pending(), "another call still uses the thread");
    release.wait().await;
    holds.await.expect("run").expect("written and saved");
    assert!(!waiting.await.is_error);
    assert_eq!((text(&one, "/held").await, text(&one, "/waits").await), ("one".to_owned(), "x\n".to_owned()));
}

#[tokio::test]
async fn call_whose_thread_cannot_be_saved_fails_with_the_store_error() {
    for durability in [ThreadDurability::Step, ThreadDurability::Sync] {
        let store = Arc::new(Lossy::default());
        let one = lossy(&store, durability);
        prepare(&one, "/at").await;
        for call in writing_calls("/at") {
            let shown = call.to_string();
            if shown.contains("/memories/at") {
                continue;
            }
            store.lose(100);
            let output = one.call(&scope("t"), call).await;
            store.lose(0);
            let error = output.error.unwrap_or_else(|| panic!("{shown}: {}", output.text));
            assert!(output.is_error && error.may_have_effect, "{durability} {shown}: {error:?}");
            assert_eq!(error.code, "unavailable", "{durability} {shown}");
            prepare(&one, "/at").await;
        }
    }
}
