//! The threads that calls are about: opened for each call, saved before its answer.
//!
//! A call works on the thread as it was saved last, by whatever process, just as a command does; nothing stays in memory between
//! calls. Where a thread is not saved by each call (it is kept in memory alone, or saved at the end), and where a save failed, its
//! session is kept until it is saved.

use super::watches::Changes;
use crate::checkpoint::Checkpointer;
use crate::error::{Error, ErrorKind};
use crate::path::VfsPath;
use crate::scope::Scope;
use crate::session::{Session, ThreadDurability};
use crate::shared::Shared;
use crate::store::Watch;
use crate::tools::ToolOutput;
use crate::workspace::Workspace;
use crate::{Result, ToolCall};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// How often a call is done again because others saved the thread meanwhile.
const REPLAYS_MAX: u32 = 20;

/// The threads of a workspace, as calls find them.
#[derive(Debug)]
pub(crate) struct Threads {
    workspace: Workspace,
    /// Sessions whose state is not saved.
    kept: Mutex<HashMap<Scope, Session>>,
    /// What writes to a thread waits for its turn: a lost save is done again, and must not take back what another call did.
    turns: Mutex<Shared<Scope, tokio::sync::Mutex<()>>>,
    changes: Changes,
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
        Self { workspace, kept: Mutex::default(), turns: Mutex::default(), changes: Changes::default() }
    }

    /// Returns what tells when calls write.
    pub(super) fn changes(&self) -> &Changes {
        &self.changes
    }

    /// Returns the mount that a path lies in.
    pub(super) fn mount_of<'a>(&'a self, path: &'a VfsPath) -> &'a VfsPath {
        self.workspace.mount_of(path)
    }

    /// Returns what tells of changes at a path; none where it has to be looked at.
    pub(super) async fn watch(&self, scope: &Scope, path: &VfsPath) -> Option<Watch> {
        match self.workspace.watch(scope, path).await {
            Ok(watch) => watch,
            Err(error) => {
                tracing::debug!(%error, %path, "changes are not told of, and are looked for");
                None
            }
        }
    }

    /// Returns what keeps the history of threads.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) in a workspace that keeps no threads.
    pub(crate) fn checkpointer(&self) -> Result<Arc<dyn Checkpointer>> {
        self.workspace.checkpointer().cloned().ok_or_else(|| Error::unsupported("this workspace keeps no threads"))
    }

    /// Opens a session of a thread.
    pub(crate) async fn session(&self, scope: &Scope) -> Result<Session> {
        let kept = self.kept.lock().get(scope).cloned();
        match kept {
            Some(session) => Ok(session),
            None => self.workspace.session(scope.clone()).await,
        }
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
        self.lasting(scope, on_conflict, work).await.unwrap_or_else(|error| ToolOutput::from_error(&error))
    }

    /// Does work on a thread and saves it. A state that cannot be saved for another reason than a conflict is kept, and saved by the
    /// next call; the work's own answer says that much.
    pub(crate) async fn lasting<T>(
        &self,
        scope: &Scope,
        on_conflict: OnConflict,
        work: impl Fn(Session) -> BoxFuture<'static, T>,
    ) -> Result<T> {
        let turn = self.turns.lock().get_or_insert(scope.clone(), Arc::default);
        let _turn = turn.lock().await;
        let _writing = self.changes.begin();
        let mut replays = 0;
        loop {
            // A state that was not saved before holds more than this call's work.
            let is_fresh = !self.kept.lock().contains_key(scope);
            let session = self.session(scope).await?;
            let answer = work(session.clone()).await;
            if self.is_saved_at_the_end() {
                self.kept.lock().insert(scope.clone(), session);
                return Ok(answer);
            }
            match session.save().await {
                Ok(_) => {
                    self.kept.lock().remove(scope);
                    return Ok(answer);
                }
                Err(error) if error.kind() != ErrorKind::Conflict => {
                    tracing::warn!(%error, "a thread is not saved yet, and stays in memory");
                    self.kept.lock().insert(scope.clone(), session);
                    return Ok(answer);
                }
                Err(_) if is_fresh && on_conflict == OnConflict::Again && replays < REPLAYS_MAX => {
                    // Two that save at the same pace would meet again and again, and the quicker one would always win.
                    let pause_us = Uuid::now_v7().as_u128() as u64 % (1_000 * u64::from(replays + 1));
                    tokio::time::sleep(Duration::from_micros(pause_us)).await;
                    session.reload().await?;
                    replays += 1;
                }
                Err(error) => {
                    let told = set_aside(&session, error).await;
                    session.reload().await?;
                    self.kept.lock().remove(scope);
                    return Err(told);
                }
            }
        }
    }

    /// Keeps a session that a call only read by, where its state is nowhere else.
    pub(super) fn keep_unless_saved(&self, scope: &Scope, session: Session) {
        if self.is_saved_at_the_end() {
            self.kept.lock().entry(scope.clone()).or_insert(session);
        }
    }

    fn is_saved_at_the_end(&self) -> bool {
        self.workspace.checkpointer().is_none() || self.workspace.durability() == ThreadDurability::Exit
    }

    /// Saves the threads that are kept.
    pub(super) async fn close(&self) -> Result<()> {
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

    #[tokio::test]
    async fn a_call_whose_save_met_anothers_is_done_again() {
        let store = Arc::default();
        let (one, two) = (process(&store), process(&store));
        // Held open, the thread is not read again: the next save meets the one of the other process.
        let held = one.session(&scope("t")).await.expect("opened");
        assert!(!held.backend().exists("/b").await.expect("read"));
        assert!(!two.call(&scope("t"), write("/b", "two")).await.is_error);
        let output = one.call(&scope("t"), write("/a", "one")).await;
        assert_eq!(output.text, "Created /a (1 line, 3 bytes)");
        assert_eq!((text(&two, "/a").await, text(&two, "/b").await), ("one".to_owned(), "two".to_owned()));
    }

    #[tokio::test]
    async fn what_cannot_be_done_twice_is_kept_as_a_thread_of_its_own() {
        let store = Arc::default();
        let (one, two) = (process(&store), process(&store));
        assert!(!one.call(&scope("t"), write("/a", "one")).await.is_error);
        let held = one.session(&scope("t")).await.expect("opened");
        assert!(held.backend().exists("/a").await.expect("read"));
        assert!(!two.call(&scope("t"), write("/b", "two")).await.is_error);
        let output = one.call(&scope("t"), call("move", json!({"from": "/a", "to": "/memories/a"}))).await;
        assert_eq!(output.error.as_ref().map(|error| error.code.as_str()), Some("conflict"), "{}", output.text);
        let aside = output.text.split('`').nth(3).expect("its name").to_owned();
        let aside = process(&store).session(&scope(&aside)).await.expect("saved");
        assert!(!aside.backend().exists("/a").await.expect("read"), "as the call left it");
        // The thread is as the other left it, and the next call goes on from there.
        assert_eq!((text(&one, "/a").await, text(&one, "/b").await), ("one".to_owned(), "two".to_owned()));
        assert!(!one.call(&scope("t"), write("/c", "three")).await.is_error);
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
