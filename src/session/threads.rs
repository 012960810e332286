//! The threads that calls are about: opened for each call, saved before its answer.
//!
//! A call works on the thread as it was saved last, by whatever process, just as a command does; nothing stays in memory between
//! calls, and calls that run at once share nothing of it: what one has changed and not saved yet, no other sees or goes on from. A save
//! has the version of the head that was opened as its condition, so the head is the token of a fence: one that comes late, from
//! a process that was held up meanwhile, is refused, and the call is done again on what is there now.
//!
//! Where a thread is not saved by each call (it is kept in memory alone, or saved at the end), and where a save failed, its
//! session is kept until it is saved; one whose save failed is saved before the next call of the thread does anything else.

use super::{Session, ThreadDurability};
use crate::checkpoint::Checkpointer;
use crate::error::{Error, ErrorKind, Result};
use crate::scope::Scope;
use crate::shared::Shared;
use crate::tools::{ToolCall, ToolOutput};
use crate::workspace::Workspace;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use uuid::Uuid;

/// How often a call is done again because others saved the thread meanwhile: each time one of them got on.
const REPLAYS_MAX: u32 = 200;

/// The longest pause before a call is done again, in milliseconds; it grows by one each time.
const PAUSE_MS_MAX: u32 = 50;

/// The threads of a workspace, as calls find them.
#[derive(Debug)]
pub(crate) struct Threads {
    workspace: Workspace,
    /// Sessions whose state is not saved.
    kept: Mutex<HashMap<Scope, Session>>,
    /// What writes to a thread waits for its turn: a lost save is done again, and must not take back what another call did.
    turns: Mutex<Shared<Scope, tokio::sync::Mutex<()>>>,
    writes: Writes,
}

/// What becomes of work whose save met that of another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnConflict {
    /// It is done again on what the other left: it changed nothing but the thread.
    Again,
    /// What it left is saved as a thread of its own, and the caller is told.
    Aside,
}

impl Threads {
    pub(crate) fn new(workspace: Workspace) -> Self {
        Self { workspace, kept: Mutex::default(), turns: Mutex::default(), writes: Writes::default() }
    }

    /// Returns what tells when calls write.
    pub(crate) fn writes(&self) -> &Writes {
        &self.writes
    }

    /// Returns the plan of the tree.
    pub(crate) fn workspace(&self) -> &Workspace {
        &self.workspace
    }

    /// Returns what keeps the history of threads.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) in a workspace that keeps no threads.
    pub(crate) fn checkpointer(&self) -> Result<Arc<dyn Checkpointer>> {
        self.workspace.checkpointer().cloned().ok_or_else(|| Error::unsupported("this workspace keeps no threads"))
    }

    /// Opens a session of a thread, as it was saved last.
    pub(crate) async fn session(&self, scope: &Scope) -> Result<Session> {
        if !self.is_saved_at_the_end() && self.kept.lock().contains_key(scope) {
            let turn = self.turns.lock().get_or_insert(scope.clone(), Arc::default);
            let _turn = turn.lock().await;
            self.settle(scope).await;
        }
        self.current(scope).await
    }

    /// Opens a session of a thread: the one that is kept, else one of its own, which no other call finds. A shared one would stay as
    /// it is as long as one call or another holds it, whatever other processes save.
    async fn current(&self, scope: &Scope) -> Result<Session> {
        let kept = self.kept.lock().get(scope).cloned();
        match kept {
            Some(session) => Ok(session),
            None if self.is_saved_at_the_end() => self.workspace.session(scope.clone()).await,
            None => self.workspace.session_apart(scope.clone()).await,
        }
    }

    /// Saves what a call before could not save; its caller was told. Others may have saved the thread since: then it is set aside. As
    /// long as it cannot be saved it stays.
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
    pub(crate) async fn call(&self, scope: &Scope, call: ToolCall) -> ToolOutput {
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
        let on_conflict = match &call {
            // These may have changed another mount too, and would do so twice.
            ToolCall::Move(_) | ToolCall::ApplyPatch(_) => OnConflict::Aside,
            _ => OnConflict::Again,
        };
        let work = move |session: Session| -> BoxFuture<'static, ToolOutput> {
            let call = call.clone();
            Box::pin(async move { session.call(call).await })
        };
        match self.done(scope, on_conflict, work).await {
            Ok((output, None)) => output,
            // Its text says what it did, and that it is not saved.
            Ok((output, Some(unsaved))) => ToolOutput { is_error: true, error: ToolOutput::from_error(&unsaved).error, ..output },
            Err(error) => ToolOutput::from_error(&error),
        }
    }

    /// Does work on a thread and saves it before it returns.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) when others saved the thread meanwhile and the work cannot be done again. Otherwise those of the
    /// store: what was done is not saved then, and says so; it stays in memory, and is saved before the next call or set aside.
    pub(crate) async fn lasting<T>(
        &self,
        scope: &Scope,
        on_conflict: OnConflict,
        work: impl Fn(Session) -> BoxFuture<'static, T>,
    ) -> Result<T> {
        match self.done(scope, on_conflict, work).await? {
            (answer, None) => Ok(answer),
            (_, Some(unsaved)) => Err(unsaved),
        }
    }

    /// Does work on a thread and saves it; returns its answer, and why it is not saved yet where that failed.
    async fn done<T>(
        &self,
        scope: &Scope,
        on_conflict: OnConflict,
        work: impl Fn(Session) -> BoxFuture<'static, T>,
    ) -> Result<(T, Option<Error>)> {
        let turn = self.turns.lock().get_or_insert(scope.clone(), Arc::default);
        let _turn = turn.lock().await;
        let _writing = self.writes.begin();
        if self.is_saved_at_the_end() {
            let session = self.current(scope).await?;
            let answer = work(session.clone()).await;
            self.kept.lock().insert(scope.clone(), session);
            return Ok((answer, None));
        }
        self.settle(scope).await;
        let mut replays = 0;
        loop {
            // A state that was not saved before holds more than this call's work.
            let is_fresh = !self.kept.lock().contains_key(scope);
            let session = self.current(scope).await?;
            let answer = work(session.clone()).await;
            match session.save().await {
                Ok(_) => {
                    self.kept.lock().remove(scope);
                    return Ok((answer, None));
                }
                Err(error) if error.kind() != ErrorKind::Conflict => {
                    tracing::warn!(%error, "a thread is not saved yet, and stays in memory");
                    self.kept.lock().insert(scope.clone(), session);
                    return Ok((answer, Some(unsaved(error))));
                }
                Err(_) if is_fresh && on_conflict == OnConflict::Again && replays < REPLAYS_MAX => {
                    // Two that save at the same pace would meet again and again, and the quicker one would always win.
                    let pause_us = Uuid::now_v7().as_u128() as u64 % (1_000 * u64::from((replays + 1).min(PAUSE_MS_MAX)));
                    tokio::time::sleep(Duration::from_micros(pause_us)).await;
                    replays += 1;
                }
                Err(error) => {
                    let told = set_aside(&session, error).await;
                    self.kept.lock().remove(scope);
                    return Err(told);
                }
            }
        }
    }

    /// Keeps a session that a call only read by, where its state is nowhere else.
    pub(crate) fn keep_unless_saved(&self, scope: &Scope, session: Session) {
        if self.is_saved_at_the_end() {
            self.kept.lock().entry(scope.clone()).or_insert(session);
        }
    }

    fn is_saved_at_the_end(&self) -> bool {
        self.workspace.checkpointer().is_none() || self.workspace.durability() == ThreadDurability::Exit
    }

    /// Saves the threads that are kept.
    pub(crate) async fn close(&self) -> Result<()> {
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

/// Tells when calls of this process write.
#[derive(Debug)]
pub(crate) struct Writes {
    count: watch::Sender<u64>,
    running: AtomicUsize,
}

/// A call that writes; it has ended when this is dropped.
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

    /// Returns what wakes when a call begins to write, and when it has written.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.count.subscribe()
    }

    /// Returns a mark of now, to ask later whether a call wrote since.
    pub(crate) fn now(&self) -> u64 {
        *self.count.borrow()
    }

    /// Tells whether a call may have written since a mark.
    pub(crate) fn since(&self, mark: u64) -> bool {
        self.now() != mark || self.running.load(Ordering::Acquire) > 0
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.count.send_modify(|count| *count += 1);
        self.0.running.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Makes the error of work that is done and not saved.
fn unsaved(error: Error) -> Error {
    let message = format!("the change is made, and is not saved yet: {}; it is saved before the next call on this thread", error.message());
    error.with_message(message).with_unknown_effect()
}

/// Saves the state of a session whose save met another's as a thread of its own, so that it is not lost, and says so.
async fn set_aside(session: &Session, error: Error) -> Error {
    if error.kind() != ErrorKind::Conflict {
        return error;
    }
    let thread = session.scope().thread.as_deref().unwrap_or_default();
    let aside = format!("{thread}.{}", Uuid::now_v7());
    if let Err(error) = session.save_as(&aside).await {
        return error;
    }
    error.with_message(format!(
        "thread `{thread}` was saved by another process meanwhile and stays as that left it; what this call left at `/` is saved as thread \
         `{aside}`; look at the files again and repeat what is missing"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::BackendExt;
    use crate::checkpoint::StoreCheckpointer;
    use crate::store::MemoryStore;
    use serde_json::json;

    fn scope(thread: &str) -> Scope {
        Scope::new().with_thread(thread)
    }

    /// The threads of one process on a store.
    fn process(store: &Arc<MemoryStore>) -> Threads {
        let shared = store.clone();
        let workspace = Workspace::builder()
            .mount("/memories", move |_| Ok(Arc::new(crate::backend::StoreBackend::new(shared.clone(), namespace()))))
            .expect("one mount")
            .checkpointer(StoreCheckpointer::new(store.clone()))
            .build();
        Threads::new(workspace)
    }

    fn namespace() -> crate::store::Namespace {
        crate::scope::NamespaceTemplate::parse("memories").and_then(|template| template.fill(&Scope::new())).expect("a namespace")
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
    async fn a_call_sees_what_other_processes_saved_and_nothing_stays_open() {
        let store = Arc::default();
        let (one, two) = (process(&store), process(&store));
        assert!(!one.call(&scope("t"), write("/a", "one")).await.is_error);
        assert_eq!(text(&two, "/a").await, "one");
        assert!(!two.call(&scope("t"), write("/a", "two")).await.is_error);
        assert_eq!(text(&one, "/a").await, "two");
        assert_eq!((one.workspace.open_threads(), two.workspace.open_threads()), (0, 0));
    }

    /// Work that writes a file, and before its thread is saved has something else happen, the first time.
    fn meanwhile<F: Future<Output = ()> + Send + 'static>(
        path: &'static str,
        happens: impl FnOnce() -> F + Send + 'static,
    ) -> impl Fn(Session) -> BoxFuture<'static, Result<()>> {
        let happens = Arc::new(Mutex::new(Some(happens)));
        move |session| {
            let happens = happens.clone();
            Box::pin(async move {
                session.backend().write(path, "one").await?;
                let first = happens.lock().take();
                if let Some(happens) = first {
                    happens().await;
                }
                Ok(())
            })
        }
    }

    #[tokio::test]
    async fn a_call_whose_save_met_anothers_is_done_again() {
        let store = Arc::default();
        let (one, two) = (process(&store), Arc::new(process(&store)));
        let other = two.clone();
        let work = meanwhile("/a", || async move { assert!(!other.call(&scope("t"), write("/b", "two")).await.is_error) });
        one.lasting(&scope("t"), OnConflict::Again, work).await.expect("saved").expect("written");
        assert_eq!((text(&two, "/a").await, text(&two, "/b").await), ("one".to_owned(), "two".to_owned()));
    }

    #[tokio::test]
    async fn what_cannot_be_done_twice_is_kept_as_a_thread_of_its_own() {
        let store = Arc::default();
        let (one, two) = (process(&store), Arc::new(process(&store)));
        let other = two.clone();
        let work = meanwhile("/a", || async move { assert!(!other.call(&scope("t"), write("/b", "two")).await.is_error) });
        let error = one.lasting(&scope("t"), OnConflict::Aside, work).await.expect_err("another saved");
        assert_eq!(error.kind(), ErrorKind::Conflict);
        let aside = error.message().split('`').nth(5).expect("its name").to_owned();
        let aside = process(&store).session(&scope(&aside)).await.expect("saved").backend();
        assert!(aside.exists("/a").await.expect("read") && !aside.exists("/b").await.expect("read"), "as the call left it");
        // The thread is as the other left it, and the next call goes on from there.
        assert_eq!((text(&one, "/b").await, text(&one, "/a").await.contains("not_found")), ("two".to_owned(), true));
        assert!(!one.call(&scope("t"), write("/c", "three")).await.is_error);
    }

    /// A call that read long kept the thread open for all others, as it was, whatever other processes saved.
    #[tokio::test]
    async fn a_session_that_is_held_shows_no_other_call_what_was() {
        let store = Arc::default();
        let (one, two) = (process(&store), process(&store));
        assert!(!one.call(&scope("t"), write("/a", "one")).await.is_error);
        let held = one.session(&scope("t")).await.expect("opened");
        assert!(held.backend().exists("/a").await.expect("read"));
        assert!(!two.call(&scope("t"), write("/a", "two")).await.is_error);
        assert_eq!(text(&one, "/a").await, "two");
        assert_eq!(held.backend().read_text("/a").await.expect("as of its moment"), "one");
    }

    /// A version that was read and never saved could stand for another content later.
    #[tokio::test]
    async fn what_is_not_saved_yet_is_seen_by_no_other_call() {
        let store = Arc::default();
        let one = Arc::new(process(&store));
        let reader = one.clone();
        let work = meanwhile("/a", || async move { assert!(text(&reader, "/a").await.contains("not_found")) });
        one.lasting(&scope("t"), OnConflict::Again, work).await.expect("saved").expect("written");
        assert_eq!(text(&one, "/a").await, "one");
    }

    /// They shared the open thread and not their turns: the one whose save was refused took back what the other had acknowledged.
    #[tokio::test]
    async fn callers_of_different_rights_lose_nothing_to_each_other() {
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
        let (first, second) =
            tokio::join!(one.lasting(&thread, OnConflict::Again, first), less.lasting(&thread, OnConflict::Again, second));
        first.expect("saved").expect("written");
        second.expect("saved").expect("written");
        for path in ["/a", "/b", "/c"] {
            assert_eq!(text(&one, path).await, "one", "{path}");
        }
    }

    /// A write was answered although it was nowhere but in memory.
    #[tokio::test]
    async fn work_that_is_not_saved_is_told_to_be_and_is_saved_by_the_next_call() {
        let store = Arc::new(crate::session::Lossy::default());
        let process = || Threads::new(Workspace::builder().checkpointer(StoreCheckpointer::new(store.clone())).build());
        let (one, two) = (process(), process());
        let failing = store.clone();
        let work = meanwhile("/a", || async move { failing.lose(100) });
        let error = one.lasting(&scope("t"), OnConflict::Again, work).await.expect_err("the store answers nothing");
        assert!(error.kind() == ErrorKind::Unavailable && error.may_have_effect(), "{error}");
        let output = one.call(&scope("t"), write("/b", "one")).await;
        assert!(output.is_error && output.text.contains("not saved yet"), "{}", output.text);
        store.lose(0);
        assert_eq!((text(&one, "/a").await, text(&two, "/a").await), ("one".to_owned(), "one".to_owned()));
        assert_eq!(text(&two, "/b").await, "one");
        assert!(one.kept.lock().is_empty());
    }

    #[tokio::test]
    async fn calls_of_one_process_lose_nothing_to_each_other() {
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
    async fn without_a_place_to_save_them_threads_stay_in_memory() {
        let threads = Threads::new(Workspace::builder().build());
        assert!(!threads.call(&scope("t"), write("/a", "one")).await.is_error);
        assert_eq!(text(&threads, "/a").await, "one");
        threads.close().await.expect("nothing to save");
    }

    #[tokio::test]
    async fn threads_that_are_saved_at_the_end_are_saved_at_the_end() {
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
}
