//! Deletion, versions after it, fences, and who may use what.

use crate::cases::support::{KEY, Staged, Step, due, json, load, messages, rows, save, slot, state, states};
use std::sync::Arc;
use treehold_agent_state::{
    AgentStateStore, AgentStates, Expected, Fence, FenceFallen, SaveOptions, StateConflict, StateKey, StateSlot, StateVersion,
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
    states.delete(&slot(), KEY).await.unwrap();
    assert_eq!(states.version(&slot(), KEY).await.unwrap(), None);
    // The key is absent, and its next version is new.
    assert_eq!(states.save(&slot(), KEY, &state([4]), expecting(0)).await.unwrap().unwrap().number(), 4);
    for stale in 1..=3 {
        let error = states.save(&slot(), KEY, &state([9]), expecting(stale)).await.unwrap_err();
        assert_eq!(StateConflict::of(&error).unwrap().current, StateVersion::new(4));
    }
    states.delete_session(&slot()).await.unwrap();
    assert_eq!(save(&states, &state([5])).await, 5);
    states.save(&slot(), "other", &json("1"), SaveOptions::new()).await.unwrap();
    // A session that loses its last key is deleted, too.
    for key in [KEY, "other"] {
        states.delete(&slot(), key).await.unwrap();
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
    states.delete_session(&slot()).await.unwrap();
    assert_eq!((messages(&store).await, due(&store).await), (0, 0));
    let left = rows(&store).await;
    assert!(left.len() <= 2, "the user in the directory and the last version: {left:?}");
    assert!(left.iter().filter(|(_, item)| item.expires_at.is_none()).count() <= 1, "{left:?}");
    assert_eq!(states.users(None, 10).await.unwrap().users, []);
}

/// A deletion that fails at any of its commits leaves the whole session or none of it, and a sweep removes the rest.
pub(crate) async fn interrupted_deletion_is_finished_by_a_sweep(store: Arc<dyn Store>) {
    let writer = states(&store);
    for whole_session in [true, false] {
        for commit in 0.. {
            save(&writer, &state(0..5)).await;
            writer.save(&slot(), "other", &state(7..9), SaveOptions::new()).await.unwrap();
            let staged = Staged::failing_from(&store, commit, false);
            let failing = states(&(staged.clone() as Arc<dyn Store>));
            let deleted = if whole_session { failing.delete_session(&slot()).await } else { failing.delete(&slot(), KEY).await };
            assert_eq!(deleted.is_ok(), commit > 0, "the first commit decides");
            let found = load(&writer).await;
            assert_eq!(found.is_some(), commit == 0);
            AgentStates::new(store.clone()).sweep(100).await.unwrap();
            assert_eq!(load(&writer).await, found);
            let expected = if commit == 0 {
                7
            } else if whole_session {
                0
            } else {
                2
            };
            assert_eq!((messages(&store).await, due(&store).await), (expected, 0), "{whole_session} {commit}");
            if !staged.has_run() {
                assert!(commit >= 2);
                break;
            }
        }
        writer.delete_session(&slot()).await.unwrap();
    }
}

/// A save that a deletion overtakes starts a new session with all of its state: nothing of the deleted one comes back.
pub(crate) async fn save_overtaken_by_a_deletion_keeps_nothing_of_it(store: Arc<dyn Store>) {
    let writer = states(&store);
    for whole_session in [true, false] {
        for (options, succeeds) in [(SaveOptions::new(), true), (expecting(0), false)] {
            writer.delete_session(&slot()).await.unwrap();
            let version = save(&writer, &state(0..5)).await;
            writer.save(&slot(), "other", &json("1"), SaveOptions::new()).await.unwrap();
            let options = if succeeds { options } else { expecting(version) };
            let other = writer.clone();
            let staged = Staged::before(&store, Step::Commit, 0, move || async move {
                match whole_session {
                    true => other.delete_session(&slot()).await.unwrap(),
                    false => other.delete(&slot(), KEY).await.unwrap(),
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
            true => late.delete_session(&slot()).await.unwrap(),
            false => late.delete(&slot(), KEY).await.unwrap(),
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
    late.delete(&slot(), KEY).await.unwrap();
    assert!(staged.has_run());
    assert_eq!(writer.keys(&slot()).await.unwrap(), [StateKey::Single("new".to_owned())]);
    assert!(writer.get(&slot(), "new").await.unwrap().is_some());
}

/// A save with a fence is refused as soon as its row has another version, and writes nothing.
pub(crate) async fn save_is_refused_once_its_fence_has_fallen(store: Arc<dyn Store>) {
    let states = states(&store);
    let namespace = Namespace::parse("turns/s1").unwrap();
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
    store.commit(Batch::new().delete(&namespace, "holder")).await.unwrap();
    assert!(FenceFallen::caused(&states.save(&slot(), KEY, &state([1]), fenced(lost)).await.unwrap_err()));
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
                states.delete(&slot, "nothing").await.err(),
                states.delete_session(&StateSlot::new(user, "nothing").unwrap()).await.err(),
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
