//! The threads of calls: opened for each call, and saved before its answer.
//!
//! A call works on the thread as last saved by any process, just as a command does. Nothing stays in memory between calls, and concurrent
//! calls share no memory: no call sees or builds on another's unsaved changes. A save has the version of the opened head as its condition,
//! so the head acts as a fencing token: a late save from a stalled process is refused, and its call is repeated on the current head.
//!
//! The session stays open until it is saved if the thread is not saved by each call (it lives in memory only, or is saved at the end) or if
//! its save failed. After a failed save, the thread is saved before its next call does anything else.

use super::{CallNotes, Done, Session, Target, ThreadDurability, unsaved_until};
use crate::tools::{ToolCall, ToolOutput};
use crate::workspace::Workspace;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{OwnedMutexGuard, watch};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::scope::Scope;
use treehold_core::shared::Shared;
use treehold_tree::checkpoint::Checkpointer;
use uuid::Uuid;

/// How often a call is repeated because others saved the thread meanwhile. Each conflict means that another call made progress.
const REPLAYS_MAX: u32 = 200;

/// The longest pause before a call is repeated, in milliseconds. The bound starts at one and grows by one each time.
const PAUSE_MS_MAX: u32 = 50;

/// A workspace's threads, as calls access them.
#[derive(Debug)]
pub struct Threads {
    workspace: Workspace,
    /// The sessions whose state is not saved.
    kept: Mutex<HashMap<Scope, Session>>,
    /// The turns of writers to a thread: a save that lost its race is repeated, and must not undo what another call did.
    turns: Mutex<Shared<Scope, tokio::sync::Mutex<()>>>,
    writes: Writes,
}

impl Threads {
    /// Keeps the threads of a workspace.
    pub fn new(workspace: Workspace) -> Self {
        Self { workspace, kept: Mutex::default(), turns: Mutex::default(), writes: Writes::default() }
    }

    /// Returns the write notifier.
    pub fn writes(&self) -> &Writes {
        &self.writes
    }

    /// Returns the workspace.
    pub fn workspace(&self) -> &Workspace {
        &self.workspace
    }

    /// Returns the checkpointer.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) in a workspace that saves no threads.
    pub fn checkpointer(&self) -> Result<Arc<dyn Checkpointer>> {
        self.workspace.checkpointer().cloned().ok_or_else(|| Error::unsupported("this workspace keeps no threads"))
    }

    /// Opens a session of a thread, as it was last saved.
    pub async fn session(&self, scope: &Scope) -> Result<Session> {
        if self.is_kept(scope) {
            let _turn = self.turn(scope).await;
            self.settle(scope).await;
        }
        self.current(scope).await
    }

    /// Opens a session of a thread: the kept one, or a new one that no other call shares. A shared session would show an outdated state to
    /// every call until the last of them ends, whatever other processes save.
    async fn current(&self, scope: &Scope) -> Result<Session> {
        let kept = self.kept.lock().get(scope).cloned();
        match kept {
            Some(session) => Ok(session),
            None if self.is_saved_at_the_end() => self.workspace.session(scope.clone()).await,
            None => self.workspace.session_apart(scope.clone()).await,
        }
    }

    /// Saves what an earlier call could not save, whose caller was told so. If others have saved the thread since, sets the state aside as
    /// another thread. A state that still cannot be saved stays in memory.
    async fn settle(&self, scope: &Scope) {
        let Some(session) = self.kept.lock().get(scope).cloned() else { return };
        match session.save().await {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Conflict => {
                let error = set_aside(&session, error).await;
                tracing::warn!(%error, "a thread that could not be saved");
                if error.kind() != ErrorKind::Conflict {
                    return;
                }
            }
            Err(error) => {
                tracing::warn!(%error, "a thread is not saved yet, and stays in memory");
                return;
            }
        }
        self.kept.lock().remove(scope);
    }

    /// Runs a tool call on a thread, and saves the thread.
    pub async fn call(&self, scope: &Scope, call: ToolCall) -> ToolOutput {
        if call.info().read_only {
            return match self.session(scope).await {
                Ok(session) => {
                    let output = session.call(call).await;
                    self.keep_unless_saved(scope, session);
                    output
                }
                Err(error) => ToolOutput::from_error(&error),
            };
        }
        let target = Target::of_paths(call.named_paths());
        let work = move |session: Session| -> BoxFuture<'static, Done<ToolOutput>> {
            let call = call.clone();
            Box::pin(async move { session.call_done(call, CallNotes::new()).await })
        };
        match self.done(scope, &target, work).await {
            Ok(Done { answer, unsaved: None }) => answer,
            Ok(Done { answer, unsaved: Some(error) }) => answer.with_unsaved(&error),
            Err(error) => ToolOutput::from_error(&error),
        }
    }

    /// Works on a thread and saves it before returning.
    ///
    /// # Errors
    /// The errors of the work. [`Conflict`](ErrorKind::Conflict) when others saved the thread meanwhile and the work cannot be repeated.
    /// Otherwise the errors of the store: the work is done but not saved, which the error says. It stays in memory, and is saved before the
    /// next call or set aside.
    pub async fn lasting<T: Send + 'static>(
        &self,
        scope: &Scope,
        target: &Target,
        work: impl Fn(Session) -> BoxFuture<'static, Result<T>>,
    ) -> Result<T> {
        let work = move |session: Session| -> BoxFuture<'static, Done<Result<T>>> {
            let work = work(session);
            Box::pin(async move { Done { answer: work.await, unsaved: None } })
        };
        match self.done(scope, target, work).await? {
            Done { answer, unsaved: None } => answer,
            Done { unsaved: Some(error), .. } => Err(error),
        }
    }

    /// Works on the history of a thread, which saves the thread itself. A conflict of the work is one with another writer's save.
    ///
    /// # Errors
    /// The errors of [`Threads::lasting`].
    pub async fn lasting_history<T: Send + 'static>(
        &self,
        scope: &Scope,
        work: impl Fn(Session) -> BoxFuture<'static, Result<T>>,
    ) -> Result<T> {
        let work = move |session: Session| -> BoxFuture<'static, Done<Option<Result<T>>>> {
            let work = work(session);
            Box::pin(async move {
                match work.await {
                    Err(error) if error.kind() == ErrorKind::Conflict => Done { answer: None, unsaved: Some(error) },
                    answer => Done { answer: Some(answer), unsaved: None },
                }
            })
        };
        match self.done(scope, &Target::Thread, work).await? {
            Done { answer: Some(answer), unsaved: None } => answer,
            Done { unsaved: Some(error), .. } => Err(error),
            Done { answer: None, unsaved: None } => Err(Error::new(ErrorKind::Internal, "work on a history came to no answer")),
        }
    }

    /// Works on a thread and saves it. Returns the work's answer, and the reason why its changes are not saved yet if the save failed.
    ///
    /// Only work that can change the thread waits for its turn. If other work changes it after all, the condition of its save protects the
    /// changes of others, as it does between processes.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) when others saved the thread meanwhile and the work cannot be repeated, and the errors of opening
    /// a session.
    pub async fn done<T>(&self, scope: &Scope, target: &Target, work: impl Fn(Session) -> BoxFuture<'static, Done<T>>) -> Result<Done<T>> {
        // This reads nothing of the thread until a call needs it.
        let mut opened = Some(self.current(scope).await?);
        let is_thread = opened.as_ref().is_some_and(|session| target.is_thread(&session.reach));
        let mut turn = match is_thread || self.is_kept(scope) {
            true => Some(self.turn(scope).await),
            false => None,
        };
        let _writing = self.writes.begin();
        if self.is_saved_at_the_end() {
            let session = self.current(scope).await?;
            let done = work(session.clone()).await;
            self.kept.lock().insert(scope.clone(), session);
            return Ok(done);
        }
        if turn.is_some() {
            self.settle(scope).await;
        }
        let mut replays = 0;
        loop {
            // A state that was not saved before holds more than this call's work.
            let is_fresh = turn.is_none() || !self.is_kept(scope);
            let session = match opened.take().filter(|_| is_fresh) {
                Some(session) => session,
                None => self.current(scope).await?,
            };
            let elsewhere = session.changes_elsewhere();
            let Done { answer, unsaved } = work(session.clone()).await;
            let saved = match unsaved {
                Some(error) => Err(error),
                None => session.save().await.map(drop),
            };
            let Err(error) = saved else {
                if turn.is_some() {
                    self.kept.lock().remove(scope);
                }
                return Ok(Done { answer, unsaved: None });
            };
            // The work changed the thread although its target said otherwise.
            if turn.is_none() {
                turn = Some(self.turn(scope).await);
                self.settle(scope).await;
            }
            if error.kind() != ErrorKind::Conflict {
                tracing::warn!(%error, "a thread is not saved yet, and stays in memory");
                if is_fresh && self.is_kept(scope) {
                    let message = format!("the change is made, and is not saved: {}; look at the files and repeat it", error.message());
                    return Ok(Done { answer, unsaved: Some(error.with_message(message).with_unknown_effect()) });
                }
                self.kept.lock().insert(scope.clone(), session);
                return Ok(Done { answer, unsaved: Some(unsaved_until(error, "it is saved before the next call on this thread")) });
            }
            let is_alone = is_fresh && session.changes_elsewhere() == elsewhere && !session.has_saved();
            if !is_alone {
                let told = set_aside(&session, error).await;
                self.kept.lock().remove(scope);
                return Err(told);
            }
            if replays == REPLAYS_MAX {
                let message = format!("others saved the thread {replays} times meanwhile, and nothing was changed; try again");
                return Err(error.with_message(message).without_effect());
            }
            // A random pause: two calls that save at the same pace would collide again and again, and the faster one would always win.
            let pause_us = Uuid::now_v7().as_u128() as u64 % (1_000 * u64::from((replays + 1).min(PAUSE_MS_MAX)));
            tokio::time::sleep(Duration::from_micros(pause_us)).await;
            replays += 1;
        }
    }

    /// Waits for this call's turn to change a thread.
    async fn turn(&self, scope: &Scope) -> OwnedMutexGuard<()> {
        let turn = self.turns.lock().get_or_insert(scope.clone(), Arc::default);
        turn.lock_owned().await
    }

    /// Returns whether an unsaved session of a thread is kept.
    fn is_kept(&self, scope: &Scope) -> bool {
        !self.is_saved_at_the_end() && self.kept.lock().contains_key(scope)
    }

    /// Keeps a session after a read-only call if its state exists nowhere else.
    pub fn keep_unless_saved(&self, scope: &Scope, session: Session) {
        if self.is_saved_at_the_end() {
            self.kept.lock().entry(scope.clone()).or_insert(session);
        }
    }

    fn is_saved_at_the_end(&self) -> bool {
        self.workspace.checkpointer().is_none() || self.workspace.durability() == ThreadDurability::Exit
    }

    /// Saves the kept threads.
    pub async fn close(&self) -> Result<()> {
        let kept = std::mem::take(&mut *self.kept.lock());
        let mut first = Ok(());
        for session in kept.into_values() {
            if let Err(error) = session.save().await {
                let error = set_aside(&session, error).await;
                first = first.and(Err(error));
            }
        }
        first
    }
}

/// A notifier for the writes of this process's calls.
#[derive(Debug)]
pub struct Writes {
    count: watch::Sender<u64>,
    running: AtomicUsize,
}

/// A writing call, which ends when this is dropped.
#[derive(Debug)]
struct Writing<'a>(&'a Writes);

impl Default for Writes {
    fn default() -> Self {
        Self { count: watch::Sender::new(0), running: AtomicUsize::new(0) }
    }
}

impl Writes {
    fn begin(&self) -> Writing<'_> {
        self.running.fetch_add(1, Ordering::AcqRel);
        self.count.send_modify(|count| *count += 1);
        Writing(self)
    }

    /// Returns a receiver that wakes when a call begins to write and when it has ended.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.count.subscribe()
    }

    /// Returns a mark of the current moment for [`Writes::since`].
    pub fn now(&self) -> u64 {
        *self.count.borrow()
    }

    /// Returns whether a call may have written since a mark.
    pub fn since(&self, mark: u64) -> bool {
        self.now() != mark || self.running.load(Ordering::Acquire) > 0
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.count.send_modify(|count| *count += 1);
        self.0.running.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Saves the state of a session whose save conflicted as a separate thread, so that it is not lost, and says so in the error.
async fn set_aside(session: &Session, error: Error) -> Error {
    if error.kind() != ErrorKind::Conflict {
        return error;
    }
    let thread = session.scope().thread.as_deref().unwrap_or_default();
    let aside = format!("{thread}.{}", Uuid::now_v7());
    if let Err(error) = session.save_as(&aside).await {
        return error;
    }
    let message = format!(
        "thread `{thread}` was saved by another process meanwhile and stays as that left it; what this call left at `/` is saved as thread \
         `{aside}`; look at the files again and repeat what is missing"
    );
    error.with_message(message).with_unknown_effect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Lossy;
    use serde_json::json;
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
        let error = one.lasting(&scope("t"), &Target::Thread, work).await.expect_err("another saved");
        assert!(error.kind() == ErrorKind::Conflict && error.may_have_effect(), "{error:?}");
        let aside = error.message().split('`').nth(5).expect("its name").to_owned();
        let aside = process(&store).session(&scope(&aside)).await.expect("saved").backend();
        assert!(aside.exists(ACROSS).await.expect("read") && !aside.exists("/b").await.expect("read"), "as the call left it");
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
        assert_eq!(held.backend().read_text("/a").await.expect("as of its moment"), "one");
    }

    /// Regression: a version that was read and never saved could stand for another content later.
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
                    assert!(!output.unsaved);
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
            assert!(
                error.code == "conflict" && error.may_have_effect && error.message.contains("is saved as thread"),
                "{shown}: {error:?}"
            );
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
        assert!(futures::poll!(waiting.as_mut()).is_pending(), "the thread is not its own yet");
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
}
