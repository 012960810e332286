//! Capabilities, the cache's bounds, and the slots of sandboxes.

use std::collections::BTreeSet;
use std::sync::Arc;
use treehold_agent_state::{
    AgentStateStore, AgentStates, CachedStates, Json, SANDBOX_STATE_KEY, SandboxOwner, SaveOptions, StateSlot, StatesNotShared,
    require_shared, sandbox_slot,
};
use treehold_core::error::ErrorKind;

fn memory() -> Arc<dyn AgentStateStore> {
    Arc::new(AgentStates::in_memory().for_agent("acme", "helper").unwrap())
}

#[test]
fn local_states_are_refused_for_shared_files_through_every_wrapper() {
    let wrapped: [Arc<dyn AgentStateStore>; 4] = [
        memory(),
        Arc::new(memory()),
        Arc::new(CachedStates::new(memory())),
        Arc::new(CachedStates::new(Arc::new(CachedStates::new(memory())))),
    ];
    for states in wrapped {
        let error = require_shared(&*states, true).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(std::error::Error::source(&error).unwrap().is::<StatesNotShared>());
        assert!(error.message().contains("memory"), "{error}");
        require_shared(&*states, false).unwrap();
    }
    let declared = |shared| AgentStates::in_memory().with_shared(shared).for_agent("acme", "helper").unwrap();
    require_shared(&CachedStates::new(declared(true)), true).unwrap();
    assert!(require_shared(&CachedStates::new(declared(false)), true).is_err());
}

#[tokio::test]
async fn cache_stays_within_its_bounds() {
    let slot = StateSlot::new(None, "s").unwrap();
    let value = |bytes: usize| Json::parse(&format!("\"{}\"", "x".repeat(bytes))).unwrap();
    let cached = CachedStates::new(memory()).with_entries_max(3).with_bytes_max(400);
    for number in 0..10 {
        cached.save(&slot, &number.to_string(), &value(50), SaveOptions::new()).await.unwrap();
        assert!(cached.usage().0 <= 3);
    }
    assert_eq!(cached.usage().0, 3);
    // The least recently used one leaves.
    cached.get(&slot, "7").await.unwrap();
    cached.save(&slot, "large", &value(200), SaveOptions::new()).await.unwrap();
    let (entries, bytes) = cached.usage();
    assert!(entries == 3 && bytes <= 400, "{entries} {bytes}");
    cached.save(&slot, "too large", &value(500), SaveOptions::new()).await.unwrap();
    assert!(cached.usage().1 <= 400);
    assert_eq!(cached.get(&slot, "too large").await.unwrap().unwrap().value, value(500));
    cached.clear();
    assert_eq!(cached.usage(), (0, 0));
    assert_eq!(cached.get(&slot, "7").await.unwrap().unwrap().value, value(50));
}

#[tokio::test]
async fn sandboxes_of_different_owners_never_share_a_slot() {
    let owners = [
        SandboxOwner::Session("a"),
        SandboxOwner::Session("a/b"),
        SandboxOwner::User { agent: "a", user: "b" },
        SandboxOwner::User { agent: "b", user: "a" },
        SandboxOwner::Agent("a"),
        SandboxOwner::Agent("b"),
        SandboxOwner::Global,
    ];
    let slots: BTreeSet<StateSlot> = owners.iter().map(|owner| sandbox_slot(*owner).unwrap()).collect();
    assert_eq!(slots.len(), owners.len());
    assert!(slots.iter().all(|slot| slot.user().is_none()));
    let texts: Vec<&str> = slots.iter().map(StateSlot::session).collect();
    assert!(texts.contains(&"sandbox/user/a/b") && texts.contains(&"sandbox/session/a") && texts.contains(&"sandbox/global"));
    for bad in [
        SandboxOwner::User { agent: "a/b", user: "c" },
        SandboxOwner::User { agent: "a", user: "b/c" },
        SandboxOwner::User { agent: "", user: "b" },
        SandboxOwner::Agent("a/b"),
        SandboxOwner::Session(""),
    ] {
        assert_eq!(sandbox_slot(bad).unwrap_err().kind(), ErrorKind::InvalidArgument, "{bad:?}");
    }
    let states = memory();
    let value = Json::parse(r#"{"json":"{}","deleted":false}"#).unwrap();
    let slot = sandbox_slot(SandboxOwner::Session("a/b")).unwrap();
    states.save(&slot, SANDBOX_STATE_KEY, &value, SaveOptions::new()).await.unwrap();
    assert_eq!(states.get(&slot, SANDBOX_STATE_KEY).await.unwrap().unwrap().value, value);
}
