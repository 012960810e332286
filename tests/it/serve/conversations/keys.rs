//! Changes of a session with an idempotency key.

use super::{Caller, Route, admin, body, fill, routes, user};
use crate::serve::Served;
use serde_json::{Value, json};
use std::sync::Arc;
use treehold::MemoryStore;
use treehold::serve::{Access, ActsFor, Rights};
use treehold::store::Store;

/// The session stores the key, so the answer is known even if the server that made the append died.
#[test]
fn repeated_append_with_a_key_takes_effect_once() {
    let served = Served::closed();
    let ada = admin(&served);
    ada.open("s");
    let append = |key: &str, text: &str| {
        let body = json!({"messages": [user(text)], "usage": {"inputTokens": 1}}).to_string();
        ada.with("POST", "/v1/sessions/s/messages", &[("idempotency-key", key)], body.as_bytes())
    };
    let first = append("k", "one");
    assert_eq!((first.header("idempotency-replayed"), first.header("idempotency-state").as_deref()), (None, Some("done")));
    let first = first.json();
    let again = append("k", "one");
    assert_eq!(again.header("idempotency-replayed").as_deref(), Some("true"));
    let left: u64 = again.header("idempotency-expires-in").unwrap().parse().unwrap();
    assert!((86_000..=86_400).contains(&left), "{left}");
    assert_eq!(again.json(), first);
    assert_eq!(append("k", "two").code(), "key_reused");
    assert_eq!(append("", "two").code(), "invalid_argument");
    assert_eq!(append("l", "two").json()["positions"], json!({"start": 1, "end": 2}));
    assert_eq!(ada.get("/v1/sessions/s/messages")["messages"].as_array().unwrap().len(), 2);
}

/// The routes whose key is kept with the session.
const KEYED: [&str; 6] =
    ["appendMessages", "recordTurn", "appendTrace", "appendOrchestrationEvent", "commitOrchestration", "appendMailboxEvent"];

/// The keys are rows of the session, so a server that is started on the same store knows them. They are known to every token of the user.
#[test]
fn keys_of_a_session_are_known_after_a_restart() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let start = || Served::on(store.clone(), |options| options.with_tokens(true));
    let send = |served: &Served, route: &Route, key: &str, body: &Value| {
        admin(served).with(&route.method, &route.url("s", "a", "c"), &[("idempotency-key", key)], body.to_string().as_bytes())
    };
    let served = start();
    fill(&admin(&served), "s");
    let routes: Vec<Route> = routes(&served).into_iter().filter(|route| KEYED.contains(&route.id.as_str())).collect();
    assert_eq!(routes.len(), KEYED.len());
    let mut first = Vec::new();
    for route in &routes {
        let answer = send(&served, route, &route.id, &body(&route.id));
        assert!(answer.status < 300 && answer.header("idempotency-replayed").is_none(), "{}: {}", route.id, answer.status);
        assert_eq!(answer.header("idempotency-state").as_deref(), Some("done"), "{}", route.id);
        first.push((answer.status, answer.text()));
    }
    served.stop().unwrap();
    let served = start();
    let before = admin(&served).get("/v1/sessions/s/export");
    for (route, first) in routes.iter().zip(&first) {
        let again = send(&served, route, &route.id, &body(&route.id));
        assert_eq!(again.header("idempotency-replayed").as_deref(), Some("true"), "{}", route.id);
        let left: u64 = again.header("idempotency-expires-in").unwrap().parse().unwrap();
        assert!((86_000..=86_400).contains(&left), "{}: {left}", route.id);
        assert_eq!((again.status, again.text()), *first, "{}", route.id);
        for other in &routes {
            if other.id != route.id {
                assert_eq!(send(&served, other, &route.id, &body(&other.id)).code(), "key_reused", "{} as {}", route.id, other.id);
            }
        }
        let refused = [&"k".repeat(256), ""].map(|key| send(&served, route, key, &body(&route.id)).code());
        assert_eq!(refused, ["invalid_argument", "invalid_argument"], "{}", route.id);
    }
    assert_eq!(admin(&served).get("/v1/sessions/s/export"), before, "nothing was written again");
    // The key belongs to the session, so that of another one is free.
    admin(&served).open("other");
    let turn = routes.iter().find(|route| route.id == "recordTurn").unwrap();
    let body = body("recordTurn").to_string();
    let answer = admin(&served).with("POST", &turn.url("other", "a", "c"), &[("idempotency-key", "recordTurn")], body.as_bytes());
    assert_eq!((answer.header("idempotency-replayed"), answer.json()), (None, json!({"turn_index": 0})));
}

/// Other routes keep keys as the rest of the API does. A key for one user's session is not one for another's.
#[test]
fn key_of_a_change_for_one_user_is_refused_for_another() {
    let served = Served::closed();
    let host = Caller::new(&served, "acme", "host", Rights::new(Access::Write).with_acts_for(ActsFor::Tenant));
    let open = |user: &str| {
        let body = json!({"agent_id": "helper", "session_id": format!("of {user}")}).to_string();
        host.with("POST", "/v1/sessions", &[("treehold-user", user), ("idempotency-key", "k")], body.as_bytes())
    };
    assert_eq!(open("ada").status, 201);
    assert_eq!(open("ada").header("idempotency-replayed").as_deref(), Some("true"));
    assert_eq!(open("bob").code(), "key_reused");
}
