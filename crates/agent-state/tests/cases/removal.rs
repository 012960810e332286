//! Deletion, versions after it, fences, and who may use what.

use crate::cases::changes::{Change, shown};
use crate::cases::support::{
    KEY, Staged, Step, bundled, directory, due, fill_bundle, json, load, messages, rows, runs, save, slot, state, states, sweep_later,
    visits,
};
use std::sync::Arc;
use treehold_agent_state::bundle::{AsyncToolRecord, AsyncToolRegistry};
use treehold_agent_state::undo::{REDO_KEY, remember};
use treehold_agent_state::{
    AgentStateStore, AgentStates, BundleOwner, DeleteOptions, DeleteSessionOptions, Expected, Fence, FenceFallen, SaveOptions,
    StateConflict, StateKey, StateSlot, StateVersion, StoreStates,
};
use treehold_core::error::ErrorKind;
use treehold_core::ops::Version;
use treehold_store::{Batch, Namespace, Store};

fn expecting(number: u64) -> SaveOptions {
    SaveOptions::new().with_expected(StateVersion::new(number).map_or(Expected::Absent, Expected::Version))
}

/// After a deletion the versions go on, so a writer that loaded the deleted value never replaces a later one.
pub(crate) async fn versions_continue_after_a_deletion(store: Arc<dyn Store>) {
    let states = states(&store);
    for number in 1..=3 {
        assert_eq!(save(&states, &state([number])).await, number);
    }
    states.delete(&slot(), KEY, DeleteOptions::new()).await.unwrap();
    assert_eq!(states.version(&slot(), KEY).await.unwrap(), None);
    // The key is absent, and its next version is new.
    assert_eq!(states.save(&slot(), KEY, &state([4]), expecting(0)).await.unwrap().unwrap().number(), 4);
    for stale in 1..=3 {
        let error = states.save(&slot(), KEY, &state([9]), expecting(stale)).await.unwrap_err();
        assert_eq!(StateConflict::of(&error).unwrap().current, StateVersion::new(4));
    }
    states.delete_session(&slot(), DeleteSessionOptions::new()).await.unwrap();
    assert_eq!(save(&states, &state([5])).await, 5);
    states.save(&slot(), "other", &json("1"), SaveOptions::new()).await.unwrap();
    // A session that loses its last key is deleted, too.
    for key in [KEY, "other"] {
        states.delete(&slot(), key, DeleteOptions::new()).await.unwrap();
    }
    assert!(!states.exists(&slot()).await.unwrap());
    assert_eq!(save(&states, &state([6])).await, 6);
    // Other sessions start at 1.
    let fresh = StateSlot::new(Some("ada"), "fresh").unwrap();
    assert_eq!(states.save(&fresh, KEY, &json("1"), expecting(0)).await.unwrap().unwrap().number(), 1);
}

/// A deleted session leaves only its last version, for a day.
pub(crate) async fn deleted_session_leaves_no_rows(store: Arc<dyn Store>) {
    let states = states(&store);
    save(&states, &state(0..5)).await;
    states.save_list(&slot(), "l", &[json("1")], SaveOptions::new()).await.unwrap();
    save(&states, &state(3..2_600)).await;
    states.delete_session(&slot(), DeleteSessionOptions::new()).await.unwrap();
    assert_eq!((messages(&store).await, due(&store).await), (0, 0));
    let visits = visits(&store).await;
    assert!((1..=2).contains(&visits), "of the large save and of the deletion, which may be at one time: {visits}");
    sweep_later(&store).await;
    let left = rows(&store).await;
    assert_eq!(left.len(), 1, "the last version: {left:?}");
    assert!(left[0].1.expires_at.is_some(), "{left:?}");
    assert_eq!(states.users(None, 10).await.unwrap().users, []);
}

/// A later session of the same name finds nothing that a bundle of the deleted one kept. Other sessions and owners keep theirs.
pub(crate) async fn deleted_session_takes_the_rows_of_its_bundle_along(store: Arc<dyn Store>) {
    let states = states(&store);
    let of_user = |user, agent| BundleOwner::of_user("acme", user, agent).unwrap();
    let ada = of_user("ada", "helper");
    let others = [of_user("bob", "helper"), of_user("ada", "other"), BundleOwner::anonymous("acme", "helper").unwrap()];
    save(&states, &state(0..2)).await;
    fill_bundle(&store, &ada, slot().session()).await;
    let own = bundled(&store, slot().session()).await;
    assert!(own >= 5, "{own}");
    for other in &others {
        fill_bundle(&store, other, slot().session()).await;
    }
    fill_bundle(&store, &ada, "another").await;
    states.delete_session(&slot(), DeleteSessionOptions::new()).await.unwrap();
    assert_eq!(bundled(&store, slot().session()).await, own * others.len());
    assert_eq!(bundled(&store, "another").await, own);
    let tools = AsyncToolRegistry::new(store.clone(), ada);
    for (session, is_there) in [(slot().session(), false), ("another", true)] {
        for run in runs(session) {
            assert_eq!(tools.get(&run).await.unwrap().is_some(), is_there, "{run}");
        }
    }
    // The ids are free, also for another session.
    let [first, second] = runs(slot().session());
    assert_eq!(tools.complete(&first, "late").await.unwrap_err().kind(), ErrorKind::NotFound);
    for (run, session) in [(&first, slot().session()), (&second, "another")] {
        let again = AsyncToolRecord::new(run, session, "other", "call-2");
        tools.register(&again).await.unwrap();
        tools.register(&again).await.unwrap();
        assert_eq!(tools.get(run).await.unwrap().unwrap().session_id, session);
        let taken = AsyncToolRecord::new(run, "third", "other", "call-2");
        assert_eq!(tools.register(&taken).await.unwrap_err().kind(), ErrorKind::AlreadyExists);
    }
}

/// A session whose last value was deleted, or that never had one, leaves nothing of its bundle either.
pub(crate) async fn session_without_states_takes_the_rows_of_its_bundle_along(store: Arc<dyn Store>) {
    let states = states(&store);
    let ada = BundleOwner::of_user("acme", "ada", "helper").unwrap();
    for had_states in [true, false] {
        fill_bundle(&store, &ada, slot().session()).await;
        if had_states {
            save(&states, &state(0..2)).await;
            states.delete(&slot(), KEY, DeleteOptions::new()).await.unwrap();
        }
        assert!(bundled(&store, slot().session()).await >= 5, "{had_states}");
        states.delete_session(&slot(), DeleteSessionOptions::new()).await.unwrap();
        assert_eq!(bundled(&store, slot().session()).await, 0, "{had_states}");
    }
}

/// The commit of a deletion that takes effect. Those before it register a sweep.
const DECIDES: usize = 2;

/// A deletion that fails at any of its commits leaves the whole session or none of it, and a sweep removes the rest.
pub(crate) async fn interrupted_deletion_is_finished_by_a_sweep(store: Arc<dyn Store>) {
    let writer = states(&store);
    for whole_session in [true, false] {
        for commit in 0.. {
            save(&writer, &state(0..5)).await;
            writer.save(&slot(), "other", &state(7..9), SaveOptions::new()).await.unwrap();
            let staged = Staged::failing_from(&store, commit, false);
            let failing = states(&(staged.clone() as Arc<dyn Store>));
            let deleted = if whole_session {
                failing.delete_session(&slot(), DeleteSessionOptions::new()).await
            } else {
                failing.delete(&slot(), KEY, DeleteOptions::new()).await
            };
            let found = load(&writer).await;
            assert_eq!(found.is_some(), commit <= DECIDES);
            assert_eq!(deleted.is_ok(), commit > DECIDES);
            sweep_later(&store).await;
            assert_eq!(load(&writer).await, found);
            let expected = if commit <= DECIDES {
                7
            } else if whole_session {
                0
            } else {
                2
            };
            assert_eq!((messages(&store).await, due(&store).await), (expected, 0), "{whole_session} {commit}");
            assert_eq!(directory(&store).await, usize::from(expected > 0), "{whole_session} {commit}");
            if !staged.has_run() {
                assert!(commit >= DECIDES + 2);
                break;
            }
        }
        writer.delete_session(&slot(), DeleteSessionOptions::new()).await.unwrap();
    }
}

/// A save that a deletion overtakes starts a new session with all of its state: nothing of the deleted one comes back.
pub(crate) async fn save_overtaken_by_a_deletion_keeps_nothing_of_it(store: Arc<dyn Store>) {
    let writer = states(&store);
    for whole_session in [true, false] {
        for (options, succeeds) in [(SaveOptions::new(), true), (expecting(0), false)] {
            writer.delete_session(&slot(), DeleteSessionOptions::new()).await.unwrap();
            let version = save(&writer, &state(0..5)).await;
            writer.save(&slot(), "other", &json("1"), SaveOptions::new()).await.unwrap();
            let options = if succeeds { options } else { expecting(version) };
            let other = writer.clone();
            let staged = Staged::before(&store, Step::Commit, 0, move || async move {
                match whole_session {
                    true => other.delete_session(&slot(), DeleteSessionOptions::new()).await.unwrap(),
                    false => other.delete(&slot(), KEY, DeleteOptions::new()).await.unwrap(),
                }
            });
            let late = states(&(staged.clone() as Arc<dyn Store>));
            let saved = late.save(&slot(), KEY, &state(0..6), options).await;
            assert!(staged.has_run());
            assert_eq!(saved.is_ok(), succeeds, "{saved:?}");
            assert_eq!(load(&writer).await, succeeds.then(|| state(0..6)));
            assert_eq!(messages(&store).await, if succeeds { 6 } else { 0 });
            let others = if whole_session { 0 } else { 1 };
            assert_eq!(writer.keys(&slot()).await.unwrap().len(), others + usize::from(succeeds));
            if let Ok(Some(after)) = saved {
                assert!(after.number() > version, "versions continue");
            }
        }
    }
}

/// A deletion that a save overtakes deletes what the save made, and the versions continue after it.
pub(crate) async fn versions_continue_after_a_deletion_that_a_save_overtook(store: Arc<dyn Store>) {
    let writer = states(&store);
    for whole_session in [true, false] {
        let version = save(&writer, &state(0..5)).await;
        let other = writer.clone();
        let staged = Staged::before(&store, Step::Commit, 0, move || async move {
            assert_eq!(save(&other, &state(0..6)).await, version + 1);
        });
        let late = states(&(staged.clone() as Arc<dyn Store>));
        match whole_session {
            true => late.delete_session(&slot(), DeleteSessionOptions::new()).await.unwrap(),
            false => late.delete(&slot(), KEY, DeleteOptions::new()).await.unwrap(),
        }
        assert!(staged.has_run());
        assert_eq!((load(&writer).await, messages(&store).await), (None, 0));
        assert_eq!(save(&writer, &state([1])).await, version + 2);
    }
}

/// A key that is created while another one of the session is deleted survives.
pub(crate) async fn key_created_during_the_deletion_of_the_last_one_survives(store: Arc<dyn Store>) {
    let writer = states(&store);
    save(&writer, &state([1])).await;
    let other = writer.clone();
    let staged = Staged::before(&store, Step::Commit, 0, move || async move {
        other.save(&slot(), "new", &json("1"), SaveOptions::new()).await.unwrap();
    });
    let late = states(&(staged.clone() as Arc<dyn Store>));
    late.delete(&slot(), KEY, DeleteOptions::new()).await.unwrap();
    assert!(staged.has_run());
    assert_eq!(writer.keys(&slot()).await.unwrap(), [StateKey::Single("new".to_owned())]);
    assert!(writer.get(&slot(), "new").await.unwrap().is_some());
}

/// A save with a fence is refused as soon as its row has another version, and writes nothing.
pub(crate) async fn save_is_refused_once_its_fence_has_fallen(store: Arc<dyn Store>) {
    let states = states(&store);
    let namespace = Namespace::parse("acme/ada/_treehold/agent-state/turns/s1").unwrap();
    let held = store.commit(Batch::new().put(&namespace, "holder", "a")).await.unwrap()[0];
    let fenced = |version: Version| {
        let fence = Fence { namespace: namespace.clone(), key: "holder".to_owned(), version };
        SaveOptions::new().with_fence(Some(fence))
    };
    states.save(&slot(), KEY, &state([1]), fenced(held)).await.unwrap();
    let lost = store.commit(Batch::new().put(&namespace, "holder", "b")).await.unwrap()[0];
    for options in [fenced(held), fenced(held).with_expected(Expected::Version(StateVersion::new(1).unwrap()))] {
        for value in [state([1, 2]), state(0..2_100)] {
            let error = states.save(&slot(), KEY, &value, options.clone()).await.unwrap_err();
            assert_eq!((error.kind(), FenceFallen::caused(&error)), (ErrorKind::Conflict, true));
            assert!(error.is_without_effect());
        }
    }
    let error = states.save_list(&slot(), "l", &[json("1")], fenced(held)).await.unwrap_err();
    assert!(FenceFallen::caused(&error));
    let new = StateSlot::new(Some("ada"), "new").unwrap();
    assert!(FenceFallen::caused(&states.save(&new, KEY, &state([1]), fenced(held)).await.unwrap_err()));
    assert!(!states.exists(&new).await.unwrap());
    assert_eq!((load(&states).await, messages(&store).await, due(&store).await), (Some(state([1])), 1, 0));
    states.save(&slot(), KEY, &state([2]), fenced(lost)).await.unwrap();
    // A user whose first session is refused does not stay in the directory.
    let namespace_of_bob = Namespace::parse("acme/bob/_treehold/agent-state/turns/s1").unwrap();
    let fence = Fence { namespace: namespace_of_bob, key: "holder".to_owned(), version: lost };
    let first = StateSlot::new(Some("bob"), "s1").unwrap();
    let refused = states.save(&first, KEY, &state([1]), SaveOptions::new().with_fence(Some(fence))).await;
    assert!(FenceFallen::caused(&refused.unwrap_err()));
    assert_eq!(directory(&store).await, 1, "only ada");
    store.commit(Batch::new().delete(&namespace, "holder")).await.unwrap();
    assert!(FenceFallen::caused(&states.save(&slot(), KEY, &state([1]), fenced(lost)).await.unwrap_err()));
}

/// A row that a turn holds.
struct Held {
    store: Arc<dyn Store>,
    namespace: Namespace,
}

impl Held {
    fn new(store: &Arc<dyn Store>) -> Self {
        Self { store: store.clone(), namespace: Namespace::parse("acme/ada/_treehold/agent-state/turns/s1").unwrap() }
    }

    /// Takes the turn, so that all earlier fences fall.
    async fn take(&self) -> Fence {
        let version = self.store.commit(Batch::new().put(&self.namespace, "holder", "a")).await.unwrap()[0];
        Fence { namespace: self.namespace.clone(), key: "holder".to_owned(), version }
    }

    async fn release(&self) {
        self.store.commit(Batch::new().delete(&self.namespace, "holder")).await.unwrap();
    }
}

/// Fills a session for a change: two values and two lists, with versions 1 and 2.
async fn fill(states: &StoreStates, slot: &StateSlot) {
    for number in 1..=2 {
        for key in [KEY, "other"] {
            states.save(slot, key, &state(0..number), SaveOptions::new()).await.unwrap();
            states.save_list(slot, key, &[json("1")], SaveOptions::new()).await.unwrap();
        }
    }
}

/// Every change with a fence is made while the fence stands. Once it has fallen, the change is refused and changes nothing, whether or not
/// there is something to change and whatever version it expects.
pub(crate) async fn every_change_is_refused_once_its_fence_has_fallen(store: Arc<dyn Store>) {
    let (states, held) = (states(&store), Held::new(&store));
    let mut sessions = (0..).map(|number| StateSlot::new(Some("ada"), format!("s{number}")).unwrap());
    for change in Change::ALL {
        let expectations = match change.form() {
            Some(_) => vec![Expected::Any, Expected::Version(StateVersion::new(2).unwrap())],
            None => vec![Expected::Any],
        };
        for expected in expectations {
            let (here, missing) = (sessions.next().unwrap(), sessions.next().unwrap());
            fill(&states, &here).await;
            let before = shown(&states, &here).await;
            let fallen = held.take().await;
            let standing = held.take().await;
            let never = Fence { key: "nobody".to_owned(), ..fallen.clone() };
            let what = format!("{change:?} {expected:?}");
            for fence in [&fallen, &never] {
                let mut places = vec![(&here, KEY)];
                if expected == Expected::Any {
                    places.extend([(&here, "missing"), (&missing, KEY)]);
                }
                for (slot, key) in places {
                    let error = change.make(&states, slot, key, expected, Some(fence)).await.expect_err(&what);
                    assert_eq!((error.kind(), FenceFallen::caused(&error)), (ErrorKind::Conflict, true), "{what} {slot} {key}");
                    assert!(error.is_without_effect(), "{what}");
                }
                assert_eq!(shown(&states, &here).await, before, "{what}");
                assert!(!states.exists(&missing).await.unwrap(), "{what}");
            }
            // A stale version is refused under a fence that stands.
            if change.form().is_some() {
                let stale = Expected::Version(StateVersion::new(1).unwrap());
                let error = change.make(&states, &here, KEY, stale, Some(&standing)).await.expect_err(&what);
                assert_eq!(StateConflict::of(&error).map(|conflict| conflict.current), Some(StateVersion::new(2)), "{what}");
                assert_eq!(shown(&states, &here).await, before, "{what}");
            }
            if expected == Expected::Any {
                change.make(&states, &missing, KEY, expected, Some(&standing)).await.unwrap();
                assert_eq!(states.exists(&missing).await.unwrap(), !change.is_deletion(), "{what}");
            }
            change.make(&states, &here, KEY, expected, Some(&standing)).await.unwrap();
            assert_ne!(shown(&states, &here).await, before, "{what}");
            held.release().await;
            let error = change.make(&states, &here, "other", Expected::Any, Some(&standing)).await.expect_err(&what);
            assert!(FenceFallen::caused(&error), "{what}");
        }
    }
}

/// No commit spans two partitions, so a fence that is not in that of the user is refused, and nothing is changed.
pub(crate) async fn fence_in_another_partition_is_refused(store: Arc<dyn Store>) {
    let states = states(&store);
    fill(&states, &slot()).await;
    let before = shown(&states, &slot()).await;
    for partition in ["acme/bob", "acme/", "other/ada", "_treehold/agent-state"] {
        let namespace = Namespace::parse(&format!("{partition}/_treehold/agent-state/turns/s1")).unwrap();
        let version = store.commit(Batch::new().put(&namespace, "holder", "a")).await.unwrap()[0];
        let fence = Fence { namespace, key: "holder".to_owned(), version };
        for change in Change::ALL {
            let error = change.make(&states, &slot(), KEY, Expected::Any, Some(&fence)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{partition} {change:?}");
            assert!(error.is_without_effect() && error.message().contains("lock of the same partition"), "{error}");
        }
    }
    assert_eq!(shown(&states, &slot()).await, before);
}

/// A fence that falls between the reads of a change and its commit stops the change: it is checked in the commit.
pub(crate) async fn change_that_loses_its_fence_on_the_way_changes_nothing(store: Arc<dyn Store>) {
    let (states, held) = (states(&store), Arc::new(Held::new(&store)));
    fill(&states, &slot()).await;
    let before = shown(&states, &slot()).await;
    for change in Change::ALL {
        for missing in [false, true] {
            let (fence, other) = (held.take().await, held.clone());
            let staged = Staged::before(&store, Step::Commit, 0, move || async move { drop(other.take().await) });
            let late = self::states(&(staged.clone() as Arc<dyn Store>));
            let at = if missing { StateSlot::new(Some("ada"), "missing").unwrap() } else { slot() };
            let error = change.make(&late, &at, KEY, Expected::Any, Some(&fence)).await.unwrap_err();
            assert!(staged.has_run() && FenceFallen::caused(&error) && error.is_without_effect(), "{change:?} {missing}: {error:?}");
            assert_eq!(shown(&states, &slot()).await, before, "{change:?} {missing}");
        }
    }
}

/// An operator who lost the turn between two commits of a step does not remove what can be redone.
pub(crate) async fn remembered_change_keeps_what_can_be_redone_once_its_fence_has_fallen(store: Arc<dyn Store>) {
    let (states, held) = (states(&store), Arc::new(Held::new(&store)));
    save(&states, &state([1])).await;
    states.save_list(&slot(), REDO_KEY, &[json("1")], SaveOptions::new()).await.unwrap();
    let (fence, other) = (held.take().await, held.clone());
    let staged = Staged::before(&store, Step::Commit, 1, move || async move { drop(other.take().await) });
    let late = self::states(&(staged.clone() as Arc<dyn Store>));
    let error = remember(&late, &slot(), Some(&fence)).await.unwrap_err();
    assert!(staged.has_run() && FenceFallen::caused(&error), "{error:?}");
    assert_eq!(states.get_list(&slot(), REDO_KEY).await.unwrap(), [json("1")]);
}

/// How a session ends.
#[derive(Debug, Clone, Copy)]
enum End {
    Session,
    LastValue,
}

impl End {
    const ALL: [Self; 2] = [Self::Session, Self::LastValue];

    async fn make(self, states: &StoreStates, slot: &StateSlot) {
        match self {
            Self::Session => states.delete_session(slot, DeleteSessionOptions::new()).await.unwrap(),
            Self::LastValue => states.delete(slot, KEY, DeleteOptions::new()).await.unwrap(),
        }
    }
}

async fn save_in(states: &StoreStates, slot: &StateSlot) {
    states.save(slot, KEY, &state(0..2), SaveOptions::new()).await.unwrap();
}

/// A user is in the directory as long as there is a session.
pub(crate) async fn user_leaves_the_directory_with_the_last_session(store: Arc<dyn Store>) {
    let states = states(&store);
    for user in [Some("ada"), None] {
        for end in End::ALL {
            let slots = ["s1", "s2"].map(|session| StateSlot::new(user, session).unwrap());
            for slot in &slots {
                save_in(&states, slot).await;
            }
            end.make(&states, &slots[0]).await;
            assert_eq!(directory(&store).await, 1, "{end:?}");
            end.make(&states, &slots[1]).await;
            assert_eq!(directory(&store).await, 0, "{end:?}");
            save_in(&states, &slots[0]).await;
            assert_eq!(states.users(None, 10).await.unwrap().users, [user.map(str::to_owned)], "{end:?}");
            end.make(&states, &slots[0]).await;
        }
    }
    // A session of which nothing can be read, too.
    save_in(&states, &slot()).await;
    let is_state = |namespace: &Namespace| namespace.components().last().is_some_and(|component| component == "states");
    for (namespace, item) in rows(&store).await.into_iter().filter(|(namespace, _)| is_state(namespace)) {
        store.commit(Batch::new().put_with_meta(&namespace, &item.key, "damaged", "damaged")).await.unwrap();
    }
    End::Session.make(&states, &slot()).await;
    assert_eq!(directory(&store).await, 0);
}

/// A save that comes before any step of a removal keeps its user in the directory, and so does one that a removal overtakes.
pub(crate) async fn user_who_is_saved_during_a_removal_stays_in_the_directory(store: Arc<dyn Store>) {
    let (writer, other) = (states(&store), StateSlot::new(Some("ada"), "s2").unwrap());
    for end in End::ALL {
        for step in Step::ALL {
            for removal_is_overtaken in [true, false] {
                for number in 0.. {
                    save_in(&writer, &slot()).await;
                    let (meanwhile, there) = (writer.clone(), other.clone());
                    let staged = Staged::before(&store, step, number, move || async move {
                        match removal_is_overtaken {
                            true => save_in(&meanwhile, &there).await,
                            false => end.make(&meanwhile, &slot()).await,
                        }
                    });
                    let late = states(&(staged.clone() as Arc<dyn Store>));
                    match removal_is_overtaken {
                        true => end.make(&late, &slot()).await,
                        false => save_in(&late, &other).await,
                    }
                    let has_run = staged.has_run();
                    let has_sessions = !writer.session_ids(Some("ada"), None, 9).await.unwrap().sessions.is_empty();
                    assert_eq!(directory(&store).await, usize::from(has_sessions), "{end:?} {step:?} {number} {removal_is_overtaken}");
                    assert_eq!(has_sessions, has_run || !removal_is_overtaken);
                    End::Session.make(&writer, &slot()).await;
                    End::Session.make(&writer, &other).await;
                    assert_eq!(directory(&store).await, 0, "{end:?} {step:?} {number} {removal_is_overtaken}");
                    if !has_run {
                        break;
                    }
                }
            }
        }
    }
}

/// Sessions of one user that come and go at the same time leave the directory as the sessions are.
pub(crate) async fn directory_has_the_users_with_sessions_after_concurrent_changes(store: Arc<dyn Store>) {
    let writer = states(&store);
    for round in 0..8_usize {
        let tasks = (0..4_usize).map(|task| {
            let writer = writer.clone();
            tokio::spawn(async move {
                for turn in 0..6_usize {
                    // Fixed, and different in each round.
                    let number = (round * 31 + task * 17 + turn * 13) % 7;
                    let slot = StateSlot::new(Some("ada"), format!("s{}", number % 2)).unwrap();
                    match number % 3 {
                        0 => save_in(&writer, &slot).await,
                        1 => End::Session.make(&writer, &slot).await,
                        _ => End::LastValue.make(&writer, &slot).await,
                    }
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        let has_sessions = !writer.session_ids(Some("ada"), None, 9).await.unwrap().sessions.is_empty();
        assert_eq!(directory(&store).await, usize::from(has_sessions), "{round}");
        assert_eq!(writer.users(None, 9).await.unwrap().users.len(), usize::from(has_sessions), "{round}");
    }
}

/// Restricted states refuse every operation on those of others, and list only accessible users.
pub(crate) async fn restricted_states_refuse_those_of_others(store: Arc<dyn Store>) {
    let all = AgentStates::new(store.clone());
    let users = [Some("ada"), Some("bob"), None];
    let open = all.for_agent("acme", "helper").unwrap();
    for user in users {
        open.save(&StateSlot::new(user, "s").unwrap(), KEY, &json("1"), SaveOptions::new()).await.unwrap();
    }
    assert_eq!(open.users(None, 9).await.unwrap().users.len(), 3);
    for own in users {
        let restricted = all.for_user("acme", own).unwrap();
        assert_eq!(restricted.for_agent("other", "helper").unwrap_err().kind(), ErrorKind::PermissionDenied);
        let states = restricted.for_agent("acme", "helper").unwrap();
        assert_eq!(states.users(None, 9).await.unwrap().users, [own.map(str::to_owned)]);
        for user in users {
            let (slot, value) = (StateSlot::new(user, "s").unwrap(), json("1"));
            let key = StateKey::Single(KEY.to_owned());
            let kinds = [
                states.save(&slot, KEY, &value, SaveOptions::new()).await.err(),
                states.save_list(&slot, KEY, &[value], SaveOptions::new()).await.err(),
                states.get(&slot, KEY).await.err(),
                states.get_list(&slot, KEY).await.err(),
                states.version(&slot, KEY).await.err(),
                states.exists(&slot).await.err(),
                states.keys(&slot).await.err(),
                states.session_ids(user, None, 1).await.err(),
                states.history(&slot, &key, 0, 1).await.err(),
                states.delete(&slot, "nothing", DeleteOptions::new()).await.err(),
                states.delete_session(&StateSlot::new(user, "nothing").unwrap(), DeleteSessionOptions::new()).await.err(),
            ];
            let expected = (user != own).then_some(ErrorKind::PermissionDenied);
            assert!(kinds.iter().all(|error| error.as_ref().map(|error| error.kind()) == expected), "{own:?} {user:?} {kinds:?}");
        }
    }
    let tenant = all.for_tenant("acme").unwrap();
    assert_eq!(tenant.for_agent("acme", "helper").unwrap().users(None, 9).await.unwrap().users.len(), 3);
    assert_eq!(tenant.for_agent("other", "helper").unwrap_err().kind(), ErrorKind::PermissionDenied);
    // Tenants and agents are apart.
    for (tenant, agent) in [("acme", "other"), ("other", "helper")] {
        let states = all.for_agent(tenant, agent).unwrap();
        assert_eq!(states.users(None, 9).await.unwrap().users, []);
        assert!(!states.exists(&StateSlot::new(Some("ada"), "s").unwrap()).await.unwrap());
    }
}

/// Ids with separators, escapes and reserved words of the rows never share a slot.
pub(crate) async fn similar_ids_never_share_a_slot(store: Arc<dyn Store>) {
    let ids = ["a", "a/b", "b", "a%2Fb", "users", "anonymous", "agents", "states", "data", "__anon__", "_default", "-", "~", "a:b", "é"];
    let all = AgentStates::new(store.clone());
    let mut saved = Vec::new();
    for agent in ["a", "a/b", "agents"] {
        let states = all.for_agent("acme", agent).unwrap();
        for user in ids.iter().map(|id| Some(*id)).chain([None]) {
            for session in ["a", "b/c", "c", "anonymous", "s\u{2028}"] {
                let slot = StateSlot::new(user, session).unwrap();
                let value = json(&format!("{:?}", format!("{agent} {user:?} {session}").replace('\u{2028}', "-")));
                let version = states.save(&slot, KEY, &value, SaveOptions::new()).await.unwrap();
                assert_eq!(version, StateVersion::new(1), "{agent} {slot}");
                saved.push((states.clone(), slot, value));
            }
        }
    }
    for (states, slot, value) in &saved {
        assert_eq!(&states.get(slot, KEY).await.unwrap().unwrap().value, value);
    }
    // Keys of any text are kept apart as well.
    let states = states(&store);
    let keys = ["a", "a\u{1}b", "a%01b", "\u{0}", "\n", "é", "sa", "la", " ", "."];
    for key in keys {
        assert_eq!(states.save(&slot(), key, &json("1"), SaveOptions::new()).await.unwrap(), StateVersion::new(1), "{key:?}");
    }
    let mut listed: Vec<StateKey> = keys.iter().map(|key| StateKey::Single((*key).to_owned())).collect();
    listed.sort();
    assert_eq!(states.keys(&slot()).await.unwrap(), listed);
}
