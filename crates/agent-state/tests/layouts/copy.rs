//! Copies between stores.

use super::support::{json, slot};
use async_trait::async_trait;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;
use treehold_agent_state::layouts::{CopyOptions, CopyPosition, CopyReport, Existing, JsonFileStates, copy_states, open};
use treehold_agent_state::{
    AgentStateStore, AgentStates, DeleteOptions, DeleteSessionOptions, Json, SaveOptions, SessionIdPage, StateCapabilities, StateKey,
    StateSlot, StateVersion, UserPage, VersionedState,
};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_store::MemoryStore;

type States = Arc<dyn AgentStateStore>;

fn memory() -> States {
    Arc::new(AgentStates::new(Arc::new(MemoryStore::new())).for_agent("acme", "helper").unwrap())
}

async fn files() -> (States, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    (Arc::new(JsonFileStates::open(directory.path()).await.unwrap()), directory)
}

async fn copy(from: &States, to: &States, options: CopyOptions) -> CopyReport {
    copy_states(&**from, &**to, &options, |_| {}).await.unwrap()
}

async fn save(states: &States, slot: &StateSlot, key: &str, text: &str) {
    states.save(slot, key, &json(text), SaveOptions::new()).await.unwrap();
}

async fn text(states: &States, slot: &StateSlot, key: &str) -> Option<String> {
    let value: Option<serde_json::Value> = states.get(slot, key).await.unwrap().map(|found| found.value.view().unwrap());
    value.map(|value| value.to_string())
}

fn counts(report: &CopyReport) -> [u64; 6] {
    [report.sessions, report.copied, report.replaced, report.unchanged, report.conflicts, report.skipped]
}

async fn filled() -> States {
    let states = memory();
    for user in [None, Some("ada"), Some("bob:x")] {
        for session in ["s1", "s2"] {
            let slot = StateSlot::new(user, session).unwrap();
            save(&states, &slot, "agent_state", "{ \"context\": [ {\"id\": 1} ], \"summary\": \"\" }").await;
            states.save_list(&slot, "memory_messages", &[json("1"), json("{ }")], SaveOptions::new()).await.unwrap();
        }
    }
    states
}

#[tokio::test]
async fn copy_takes_everything_there_and_back_and_can_be_repeated() {
    let (from, (to, _directory), back) = (filled().await, files().await, memory());
    let dry = copy(&from, &to, CopyOptions::new().with_dry_run(true)).await;
    assert_eq!(counts(&dry), [6, 12, 0, 0, 0, 0]);
    assert!(to.users(None, 10).await.unwrap().users.is_empty());
    let first = copy(&from, &to, CopyOptions::new()).await;
    assert_eq!((counts(&first), first.bytes), (counts(&dry), dry.bytes));
    assert!(first.bytes > 0 && first.problems.is_empty());
    assert_eq!(counts(&copy(&from, &to, CopyOptions::new()).await), [6, 0, 0, 12, 0, 0]);
    assert_eq!(counts(&copy(&to, &back, CopyOptions::new()).await), [6, 12, 0, 0, 0, 0]);
    assert_eq!(counts(&copy(&from, &back, CopyOptions::new()).await), [6, 0, 0, 12, 0, 0]);
    let sorted = [None, Some("ada".to_owned()), Some("bob:x".to_owned())];
    assert_eq!(back.users(None, 10).await.unwrap().users, sorted);
}

#[tokio::test]
async fn earlier_states_are_replaced_and_later_or_different_ones_stay() {
    let cases = [
        (r#"{"context":[1,2],"a":1}"#, r#"{"context":[1],"a":0}"#, true),
        (r#"{"context":[{"x":1}],"a":1}"#, r#"{"context":[],"a":0}"#, true),
        (r#"{"context":[1]}"#, r#"{"context":[1,2]}"#, false),
        (r#"{"context":[1,2]}"#, r#"{"context":[3]}"#, false),
        (r#"{"context":[1],"a":1}"#, r#"{"context":[1],"a":2}"#, false),
        (r#"{"a":1}"#, r#"{"a":2}"#, false),
        ("[[1,2]]", "[[1]]", false),
        (r#"{"context":1}"#, r#"{"context":[]}"#, false),
    ];
    for existing in [Existing::ReplaceEarlier, Existing::Keep, Existing::Replace] {
        for (source, target, is_earlier) in cases {
            let (from, to, here) = (memory(), memory(), slot("ada", "s1"));
            save(&from, &here, "agent_state", source).await;
            save(&to, &here, "agent_state", target).await;
            let report = copy(&from, &to, CopyOptions::new().with_existing(existing)).await;
            let is_replaced = existing == Existing::Replace || (existing == Existing::ReplaceEarlier && is_earlier);
            let expected = if is_replaced { source } else { target };
            assert_eq!(text(&to, &here, "agent_state").await.unwrap(), json(expected).view::<serde_json::Value>().unwrap().to_string());
            assert_eq!(counts(&report), if is_replaced { [1, 1, 1, 0, 0, 0] } else { [1, 0, 0, 0, 1, 0] }, "{source} {target}");
            for problem in &report.problems {
                assert_eq!(problem.error.kind(), ErrorKind::Conflict);
                assert_eq!(problem.key, Some(StateKey::Single("agent_state".to_owned())));
            }
        }
    }
}

#[tokio::test]
async fn what_one_store_refuses_or_cannot_read_is_reported_and_the_rest_is_copied() {
    let from = memory();
    for (user, session, key) in [("YTpi", "s1", "k"), ("ada", "s1", "a/b"), ("ada", "s1", "k"), ("ada", "YTpi", "k"), ("bob", "s1", "k")] {
        save(&from, &StateSlot::new(Some(user), session).unwrap(), key, "1").await;
    }
    let (to, directory) = files().await;
    let report = copy(&from, &to, CopyOptions::new()).await;
    assert_eq!(counts(&report), [4, 2, 0, 0, 0, 3]);
    assert!(report.problems.iter().all(|problem| problem.error.kind() == ErrorKind::InvalidArgument));
    // Damage in the source, and in the target.
    let root = directory.path();
    std::fs::write(root.join("ada/s1/k.json"), "{").unwrap();
    let back = copy(&to, &memory(), CopyOptions::new()).await;
    assert_eq!(counts(&back), [2, 1, 0, 0, 0, 1]);
    assert_eq!(back.problems[0].error.kind(), ErrorKind::Corrupt);
    let again = copy(&from, &to, CopyOptions::new()).await;
    assert_eq!(counts(&again), [4, 0, 0, 1, 0, 4]);
    assert_eq!(std::fs::read_to_string(root.join("ada/s1/k.json")).unwrap(), "{");
}

#[tokio::test]
async fn copy_goes_on_after_any_position() {
    let from = filled().await;
    let mut positions: Vec<CopyPosition> = Vec::new();
    copy_states(&*from, &*memory(), &CopyOptions::new(), |progress| positions.push(progress.position.clone())).await.unwrap();
    assert_eq!(positions.len(), 6);
    for (done, position) in positions.iter().enumerate() {
        let (to, mut rest) = (memory(), Vec::new());
        let options = CopyOptions::new().with_after(Some(position.clone()));
        copy_states(&*from, &*to, &options, |progress| rest.push(progress.position.clone())).await.unwrap();
        assert_eq!(rest, positions[done + 1..], "after {position:?}");
    }
    let one = copy(&from, &memory(), CopyOptions::new().with_user(None).with_session("s2")).await;
    assert_eq!(counts(&one), [1, 2, 0, 0, 0, 0]);
    let user = copy(&from, &memory(), CopyOptions::new().with_user(Some("ada".to_owned()))).await;
    assert_eq!(counts(&user), [2, 4, 0, 0, 0, 0]);
    let error = copy_states(&*from, &*memory(), &CopyOptions::new().with_session("s2"), |_| {}).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

/// What a wrapped store does beside its work.
#[derive(Debug)]
enum Trouble {
    /// Another writer saves a value before the first save.
    Writer(AtomicBool),
    /// Saves change nothing.
    Forgets,
    /// Saves fail for now.
    Unavailable,
}

#[derive(Debug)]
struct Troubled {
    inner: States,
    trouble: Trouble,
}

impl fmt::Display for Troubled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Troubled({})", self.inner)
    }
}

#[async_trait]
impl AgentStateStore for Troubled {
    fn capabilities(&self) -> StateCapabilities {
        self.inner.capabilities()
    }

    async fn save(&self, slot: &StateSlot, key: &str, value: &Json, options: SaveOptions) -> Result<Option<StateVersion>> {
        match &self.trouble {
            Trouble::Writer(done) if !done.swap(true, Ordering::SeqCst) => {
                self.inner.save(slot, key, &json(r#"{"context":[1,2,3]}"#), SaveOptions::new()).await?;
            }
            Trouble::Writer(_) => {}
            Trouble::Forgets => return Ok(None),
            Trouble::Unavailable => return Err(Error::new(ErrorKind::Unavailable, "try again")),
        }
        self.inner.save(slot, key, value, options).await
    }

    async fn save_list(&self, slot: &StateSlot, key: &str, values: &[Json], options: SaveOptions) -> Result<Option<StateVersion>> {
        if let Trouble::Writer(done) = &self.trouble
            && !done.swap(true, Ordering::SeqCst)
        {
            self.inner.save_list(slot, key, &numbers(1..4), SaveOptions::new()).await?;
        }
        self.inner.save_list(slot, key, values, options).await
    }

    async fn get(&self, slot: &StateSlot, key: &str) -> Result<Option<VersionedState>> {
        self.inner.get(slot, key).await
    }

    async fn get_list(&self, slot: &StateSlot, key: &str) -> Result<Vec<Json>> {
        self.inner.get_list(slot, key).await
    }

    async fn version(&self, slot: &StateSlot, key: &str) -> Result<Option<StateVersion>> {
        self.inner.version(slot, key).await
    }

    async fn list_version(&self, slot: &StateSlot, key: &str) -> Result<Option<StateVersion>> {
        self.inner.list_version(slot, key).await
    }

    async fn exists(&self, slot: &StateSlot) -> Result<bool> {
        self.inner.exists(slot).await
    }

    async fn keys(&self, slot: &StateSlot) -> Result<Vec<StateKey>> {
        self.inner.keys(slot).await
    }

    async fn delete_session(&self, slot: &StateSlot, options: DeleteSessionOptions) -> Result<()> {
        self.inner.delete_session(slot, options).await
    }

    async fn delete(&self, slot: &StateSlot, key: &str, options: DeleteOptions) -> Result<()> {
        self.inner.delete(slot, key, options).await
    }

    async fn session_ids(&self, user: Option<&str>, after: Option<&str>, limit: usize) -> Result<SessionIdPage> {
        self.inner.session_ids(user, after, limit).await
    }

    async fn users(&self, after: Option<&str>, limit: usize) -> Result<UserPage> {
        self.inner.users(after, limit).await
    }
}

fn numbers(numbers: std::ops::Range<u64>) -> Vec<Json> {
    numbers.map(|number| json(&number.to_string())).collect()
}

/// The target's list moves on between the copy's look and its save: the later one stays, whatever was there before.
#[tokio::test]
async fn list_that_is_saved_between_is_not_lost() {
    for start in [None, Some(numbers(1..2)), Some(Vec::new())] {
        let (from, inner, here) = (memory(), memory(), slot("ada", "s1"));
        from.save_list(&here, "l", &numbers(1..3), SaveOptions::new()).await.unwrap();
        if let Some(start) = &start {
            inner.save_list(&here, "l", start, SaveOptions::new()).await.unwrap();
        }
        let to: States = Arc::new(Troubled { inner: inner.clone(), trouble: Trouble::Writer(AtomicBool::new(false)) });
        let report = copy(&from, &to, CopyOptions::new()).await;
        assert_eq!(counts(&report), [1, 0, 0, 0, 1, 0], "{start:?}");
        assert!(report.problems[0].error.message().contains("later"), "{start:?}");
        assert_eq!(inner.get_list(&here, "l").await.unwrap(), numbers(1..4), "{start:?}");
        // A copy that may replace it does so.
        let report = copy(&from, &to, CopyOptions::new().with_existing(Existing::Replace)).await;
        assert_eq!(counts(&report), [1, 1, 1, 0, 0, 0], "{start:?}");
        assert_eq!(inner.get_list(&here, "l").await.unwrap(), numbers(1..3), "{start:?}");
    }
}

/// The target moves on between the copy's look and its save: the later state stays.
#[tokio::test]
async fn write_that_comes_between_is_not_lost() {
    for start in [None, Some(r#"{"context":[1]}"#)] {
        let (from, inner, here) = (memory(), memory(), slot("ada", "s1"));
        save(&from, &here, "agent_state", r#"{"context":[1,2]}"#).await;
        if let Some(start) = start {
            save(&inner, &here, "agent_state", start).await;
        }
        let to: States = Arc::new(Troubled { inner: inner.clone(), trouble: Trouble::Writer(AtomicBool::new(false)) });
        let report = copy(&from, &to, CopyOptions::new()).await;
        assert_eq!(counts(&report), [1, 0, 0, 0, 1, 0], "{start:?}");
        assert!(report.problems[0].error.message().contains("later"));
        assert_eq!(text(&inner, &here, "agent_state").await.unwrap(), r#"{"context":[1,2,3]}"#);
    }
}

#[tokio::test]
async fn value_that_the_target_does_not_keep_is_reported_and_transient_errors_end_the_copy() {
    let from = filled().await;
    let to: States = Arc::new(Troubled { inner: memory(), trouble: Trouble::Forgets });
    let report = copy(&from, &to, CopyOptions::new()).await;
    assert_eq!(counts(&report), [6, 6, 0, 0, 0, 6]);
    assert!(report.problems.iter().all(|problem| problem.error.kind() == ErrorKind::Corrupt));
    assert_eq!(counts(&copy(&from, &to, CopyOptions::new().with_unverified(true)).await), [6, 6, 0, 6, 0, 0]);
    let to: States = Arc::new(Troubled { inner: memory(), trouble: Trouble::Unavailable });
    let error = copy_states(&*from, &*to, &CopyOptions::new(), |_| {}).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

#[tokio::test]
async fn layouts_open_by_url_and_other_urls_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let states = open(&format!("files:{}", directory.path().join("a/b").display())).await.unwrap();
    save(&states, &slot("ada", "s1"), "k", "1").await;
    assert!(directory.path().join("a/b/ada/s1/k.json").exists());
    for url in ["", "store", "files:", "http://ada:s3cret@host", "s3cret"] {
        let error = open(url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{url}");
        assert!(!error.message().contains("s3cret"));
    }
}
