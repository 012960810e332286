//! Expiry of sessions and retention of messages, with a clock that the test moves.

use crate::cases::support::{KEY, bundled, directory, due, fill_bundle, json, messages, rows, state, visits};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use treehold_agent_state::{
    AgentStateStore, AgentStates, AgentStatesOptions, AgentStatesSweeper, BundleOwner, Expected, Expiry, SaveOptions, StateKey, StateSlot,
    StateVersion, StoreStates,
};
use treehold_core::clock::Clock;
use treehold_core::error::ErrorKind;
use treehold_sqlite::{SqliteOptions, SqliteStore};
use treehold_store::{MemoryStore, Store, StoreExt, SweepCount};

const HOUR: i64 = 3_600;
const DAY: i64 = 24 * HOUR;

/// A sweep comes to a session of an hour at most this many seconds after it expired.
const SLACK: i64 = 512;

/// A clock that stands still until it is moved.
#[derive(Clone)]
struct Stopped(Arc<AtomicI64>);

impl Stopped {
    fn new() -> Self {
        Self(Arc::new(AtomicI64::new(1_800_000_000)))
    }

    fn clock(&self) -> Clock {
        let seconds = self.0.clone();
        Clock::from_fn(move || jiff::Timestamp::from_second(seconds.load(Ordering::SeqCst)).unwrap())
    }

    fn advance(&self, seconds: i64) {
        self.0.fetch_add(seconds, Ordering::SeqCst);
    }
}

fn hours(hours: u64) -> Duration {
    Duration::from_secs(hours * 3_600)
}

/// Sessions whose ids start with `guest-` live for an hour without a save.
fn options() -> AgentStatesOptions {
    AgentStatesOptions::new().with_expiry(Expiry::never().with_prefix("guest-", Some(hours(1))))
}

struct Fixture {
    time: Stopped,
    store: Arc<dyn Store>,
    states: AgentStates,
    _keep: Box<dyn Any>,
}

impl Fixture {
    fn agent(&self) -> StoreStates {
        self.states.for_agent("acme", "helper").unwrap()
    }

    fn with_options(&self, options: AgentStatesOptions) -> StoreStates {
        self.states.clone().with_options(options).for_agent("acme", "helper").unwrap()
    }

    async fn sweep(&self) -> usize {
        self.states.sweep(1_000).await.unwrap()
    }
}

fn fixtures() -> Vec<Fixture> {
    let make = |store: Arc<dyn Store>, time: Stopped, keep: Box<dyn Any>| {
        let states = AgentStates::new(store.clone()).with_clock(time.clock()).with_options(options());
        Fixture { time, store, states, _keep: keep }
    };
    let (memory, sqlite) = (Stopped::new(), Stopped::new());
    let directory = tempfile::tempdir().unwrap();
    let options = SqliteOptions::new(directory.path().join("store.db")).with_clock(sqlite.clock());
    let file = SqliteStore::open_with(options).unwrap();
    vec![make(Arc::new(MemoryStore::with_clock(memory.clock())), memory, Box::new(())), make(Arc::new(file), sqlite, Box::new(directory))]
}

fn guest(name: &str) -> StateSlot {
    StateSlot::new(Some("ada"), format!("guest-{name}")).unwrap()
}

async fn save(states: &StoreStates, slot: &StateSlot, key: &str, messages: std::ops::Range<u64>) -> u64 {
    states.save(slot, key, &state(messages), SaveOptions::new()).await.unwrap().unwrap().number()
}

/// Checks that a session is absent in every operation.
async fn assert_absent(states: &StoreStates, slot: &StateSlot) {
    assert!(!states.exists(slot).await.unwrap());
    assert_eq!(states.keys(slot).await.unwrap(), []);
    for key in [KEY, "other", "l"] {
        assert_eq!(states.get(slot, key).await.unwrap(), None);
        assert_eq!(states.version(slot, key).await.unwrap(), None);
        assert_eq!(states.get_list(slot, key).await.unwrap(), []);
        let page = states.history(slot, &StateKey::Single(key.to_owned()), 0, 10).await.unwrap();
        assert_eq!((page.entries, page.next), (Vec::new(), None));
    }
    let listed = states.session_ids(slot.user(), None, 100).await.unwrap().sessions;
    assert!(!listed.contains(&slot.session().to_owned()));
}

#[tokio::test]
async fn session_expires_as_a_whole_and_a_sweep_removes_every_row() {
    for fixture in fixtures() {
        let (states, slot) = (fixture.agent(), guest("a"));
        save(&states, &slot, KEY, 0..5).await;
        fixture.time.advance(HOUR - 1);
        // Only one of the keys is saved; the others are renewed with it.
        save(&states, &slot, "other", 0..3).await;
        states.save_list(&slot, "l", &[json("1")], SaveOptions::new()).await.unwrap();
        fixture.time.advance(HOUR - 1);
        assert_eq!(states.keys(&slot).await.unwrap().len(), 3);
        assert_eq!(states.get(&slot, KEY).await.unwrap().unwrap().value, state(0..5));
        assert_eq!(fixture.sweep().await, 0, "it was renewed");
        assert_eq!(due(&fixture.store).await, 1);
        fixture.time.advance(1);
        assert_absent(&states, &slot).await;
        assert_eq!(states.users(None, 10).await.unwrap().users, []);
        assert_eq!(messages(&fixture.store).await, 9, "rows wait for the sweep");
        fixture.time.advance(SLACK);
        assert_eq!(fixture.sweep().await, 1);
        assert_eq!((messages(&fixture.store).await, due(&fixture.store).await, visits(&fixture.store).await), (0, 0, 0));
        assert_eq!(directory(&fixture.store).await, 0, "the user has no other session");
        // The last version stays for a day.
        assert_eq!(rows(&fixture.store).await.iter().filter(|(_, item)| item.expires_at.is_some()).count(), 1);
        assert_eq!(save(&states, &slot, KEY, 0..1).await, 2);
        fixture.time.advance(2 * DAY);
        fixture.sweep().await;
        fixture.time.advance(2 * DAY);
        assert_eq!(save(&states, &slot, KEY, 0..1).await, 1, "after a day the versions start again");
    }
}

#[tokio::test]
async fn expired_session_takes_the_rows_of_its_bundle_along_unless_it_exists_again() {
    for fixture in fixtures() {
        let (states, slot) = (fixture.agent(), guest("a"));
        let owner = BundleOwner::of_user("acme", slot.user().unwrap(), "helper").unwrap();
        for is_created_again in [true, false] {
            save(&states, &slot, KEY, 0..5).await;
            fill_bundle(&fixture.store, &owner, slot.session()).await;
            let filled = bundled(&fixture.store, slot.session()).await;
            assert!(filled >= 5, "{filled}");
            fixture.time.advance(HOUR + SLACK);
            if is_created_again {
                save(&states, &slot, KEY, 0..1).await;
            }
            assert_eq!(fixture.sweep().await, 1);
            assert_eq!(bundled(&fixture.store, slot.session()).await, if is_created_again { filled } else { 0 });
        }
    }
}

#[tokio::test]
async fn sessions_of_other_classes_never_expire() {
    for fixture in fixtures() {
        let (states, slot) = (fixture.agent(), StateSlot::new(Some("ada"), "kept").unwrap());
        save(&states, &slot, KEY, 0..2).await;
        fixture.time.advance(1_000 * DAY);
        assert_eq!(fixture.sweep().await, 0);
        assert_eq!(states.get(&slot, KEY).await.unwrap().unwrap().value, state(0..2));
    }
}

#[tokio::test]
async fn session_created_again_before_the_sweep_has_nothing_of_the_expired_one() {
    for fixture in fixtures() {
        let (states, slot) = (fixture.agent(), guest("a"));
        save(&states, &slot, KEY, 0..5).await;
        let stale = save(&states, &slot, KEY, 0..6).await;
        save(&states, &slot, "other", 0..3).await;
        fixture.time.advance(HOUR);
        let expecting = |number| SaveOptions::new().with_expected(Expected::Version(StateVersion::new(number).unwrap()));
        let error = states.save(&slot, KEY, &state(0..9), expecting(stale)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
        assert_eq!(save(&states, &slot, KEY, 7..9).await, stale + 1, "a stale writer never meets its version again");
        let keys = states.keys(&slot).await.unwrap();
        assert_eq!(keys, [StateKey::Single(KEY.to_owned())]);
        assert_eq!(states.get(&slot, "other").await.unwrap(), None);
        fixture.time.advance(SLACK);
        assert_eq!(fixture.sweep().await, 1);
        assert_eq!(states.get(&slot, KEY).await.unwrap().unwrap().value, state(7..9));
        assert_eq!(messages(&fixture.store).await, 2);
        assert!(save(&states, &slot, "other", 0..1).await > 1);
        fixture.time.advance(HOUR + SLACK);
        assert_absent(&states, &slot).await;
        assert_eq!(fixture.sweep().await, 1);
        assert_eq!((messages(&fixture.store).await, due(&fixture.store).await), (0, 0));
    }
}

#[tokio::test]
async fn session_follows_a_changed_class_from_its_next_save_on() {
    for fixture in fixtures() {
        let (states, slot) = (fixture.agent(), guest("a"));
        let never = fixture.with_options(AgentStatesOptions::new());
        // From an hour to never.
        save(&states, &slot, KEY, 0..2).await;
        save(&never, &slot, KEY, 0..3).await;
        fixture.time.advance(DAY);
        assert_eq!(fixture.sweep().await, 0);
        assert_eq!((due(&fixture.store).await, never.get(&slot, KEY).await.unwrap().unwrap().value), (0, state(0..3)));
        // And back.
        save(&states, &slot, KEY, 0..4).await;
        assert_eq!(due(&fixture.store).await, 1);
        fixture.time.advance(HOUR);
        assert_absent(&states, &slot).await;
        fixture.time.advance(SLACK);
        assert_eq!(fixture.sweep().await, 1);
        assert_eq!((messages(&fixture.store).await, due(&fixture.store).await), (0, 0));
    }
}

#[tokio::test]
async fn sweep_removes_a_bounded_number_of_accessible_sessions() {
    for fixture in fixtures() {
        let states = fixture.agent();
        for number in 0..5 {
            save(&states, &guest(&number.to_string()), KEY, 0..2).await;
        }
        let bob = StateSlot::new(Some("bob"), "guest-b").unwrap();
        save(&states, &bob, KEY, 0..2).await;
        assert_eq!(fixture.sweep().await, 0, "nothing has expired");
        fixture.time.advance(2 * HOUR);
        assert_eq!(fixture.states.sweep(2).await.unwrap(), 2);
        assert_eq!(fixture.states.for_user("other", Some("ada")).unwrap().sweep(9).await.unwrap(), 0);
        // Whose visit is first depends on the name.
        let of_ada = fixture.states.for_user("acme", Some("ada")).unwrap().sweep(9).await.unwrap();
        assert!((3..=4).contains(&of_ada), "{of_ada}");
        assert_eq!(messages(&fixture.store).await, 2 * (4 - of_ada));
        assert_eq!(fixture.states.for_tenant("acme").unwrap().sweep(9).await.unwrap(), 4 - of_ada);
        assert_eq!((messages(&fixture.store).await, due(&fixture.store).await), (0, 0));
    }
}

#[tokio::test]
async fn messages_that_left_a_state_are_readable_for_the_retention() {
    for fixture in fixtures() {
        let states = fixture.with_options(AgentStatesOptions::new().with_retention(Some(hours(2))));
        let (slot, key) = (StateSlot::new(None, "s").unwrap(), StateKey::Single(KEY.to_owned()));
        let history = async || {
            let page = states.history(&slot, &key, 0, 100).await.unwrap();
            page.entries.iter().filter(|entry| entry.is_current).count() * 100 + page.entries.len()
        };
        save(&states, &slot, KEY, 0..10).await;
        save(&states, &slot, KEY, 8..12).await;
        assert_eq!(history().await, 412);
        fixture.time.advance(HOUR);
        save(&states, &slot, KEY, 11..12).await;
        assert_eq!(history().await, 112);
        fixture.time.advance(HOUR);
        assert_eq!(history().await, 104, "the first eight are gone");
        fixture.time.advance(HOUR);
        assert_eq!(history().await, 101);
        while fixture.store.sweep(100).await.unwrap() > 0 {}
        assert_eq!(messages(&fixture.store).await, 1);
        assert_eq!(states.get(&slot, KEY).await.unwrap().unwrap().value, state(11..12));
    }
}

#[tokio::test]
async fn messages_stay_as_long_as_the_session_without_retention() {
    for fixture in fixtures() {
        let states = fixture.with_options(AgentStatesOptions::new().with_retention(None));
        let slot = StateSlot::new(None, "s").unwrap();
        save(&states, &slot, KEY, 0..10).await;
        save(&states, &slot, KEY, 100..101).await;
        fixture.time.advance(1_000 * DAY);
        let page = states.history(&slot, &StateKey::Single(KEY.to_owned()), 0, 100).await.unwrap();
        assert_eq!(page.entries.len(), 11);
    }
}

#[tokio::test(start_paused = true)]
async fn sweeper_removes_expired_sessions() {
    let fixture = fixtures().remove(0);
    save(&fixture.agent(), &guest("a"), KEY, 0..3).await;
    fixture.time.advance(2 * HOUR);
    let count = SweepCount::new();
    let sweeper = AgentStatesSweeper::start_counting(fixture.states.clone(), Duration::from_secs(60), count.clone());
    // The clock of the runtime advances by itself while every task waits.
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert_eq!((messages(&fixture.store).await, due(&fixture.store).await, count.get()), (0, 0, 1));
    drop(sweeper);
}
