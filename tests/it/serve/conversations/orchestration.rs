//! The orchestration of a session: its claim, and writes that are refused.

use super::{Caller, Route, admin, body, fill, routes};
use crate::serve::{Answer, Served};
use serde_json::{Value, json};
use treehold::serve::{Access, Rights};

/// Another holder waits until the lease is released or ends. The same holder can claim again, as after a restart.
#[test]
fn orchestration_is_claimed_by_one_holder_at_a_time() {
    let served = Served::closed();
    let ada = admin(&served);
    ada.open("s");
    let at = "/v1/sessions/s/orchestration/claim";
    let claim = |holder: &str| ada.send("POST", at, &json!({"holder": holder}));
    let named = |method: &str, claim: &str, body: &str| ada.with(method, at, &[("treehold-claim", claim)], body.as_bytes());
    let of = |answer: Answer| {
        assert_eq!(answer.status, 200);
        answer.json()["claim"].as_str().unwrap().to_owned()
    };
    let first = of(claim("one"));
    let refused = claim("other");
    assert_eq!((refused.status, refused.header("retry-after").as_deref()), (503, Some("1")));
    let refused = refused.json();
    assert!(refused["code"] == "unavailable" && refused["may_have_effect"] != true, "{refused}");
    assert_eq!(named("PUT", &first, r#"{"holder": "one", "lease_seconds": 3600}"#).status, 204);
    let second = of(claim("one"));
    assert_ne!(first, second);
    assert_eq!(named("PUT", &first, r#"{"holder": "one"}"#).code(), "conflict");
    assert_eq!(named("DELETE", &first, "").status, 204, "it holds nothing any more");
    assert_eq!(claim("other").code(), "unavailable", "the release of an earlier claim releases nothing");
    assert_eq!(named("DELETE", &second, "").status, 204);
    let third = of(claim("other"));
    assert_eq!(claim("one").code(), "unavailable");
    for bad in ["", "x y", "g", "-1"] {
        assert_eq!(named("PUT", bad, r#"{"holder": "other"}"#).code(), "invalid_argument", "{bad}");
        assert_eq!(named("DELETE", bad, "").code(), "invalid_argument", "{bad}");
    }
    for (method, body) in [("PUT", json!({"holder": "other"})), ("DELETE", Value::Null)] {
        assert_eq!(ada.send(method, at, &body).code(), "invalid_argument", "{method} names no claim");
    }
    for wrong in [json!({}), json!({"holder": ""}), json!({"holder": "a\n"}), json!({"holder": "x".repeat(256)})] {
        assert_eq!(ada.send("POST", at, &wrong).code(), "invalid_argument", "{wrong}");
    }
    for seconds in [json!(0), json!(3_601), json!(-1), json!("30"), json!(1.5)] {
        let wrong = json!({"holder": "other", "lease_seconds": seconds});
        assert_eq!(ada.send("POST", at, &wrong).code(), "invalid_argument", "{wrong}");
        assert_eq!(named("PUT", &third, &wrong.to_string()).code(), "invalid_argument", "{wrong}");
    }
    // The claim of a deleted session is not one of the next session with its id.
    ada.ok("DELETE", "/v1/sessions/s", Value::Null);
    assert_eq!(claim("other").code(), "not_found");
    ada.open("s");
    assert_eq!(named("PUT", &third, r#"{"holder": "other"}"#).code(), "conflict");
    of(claim("one"));
}

/// Every write of an orchestration depends on the claim that it names, with and without a key.
#[test]
fn writes_under_a_replaced_claim_change_nothing() {
    let served = Served::closed();
    let ada = admin(&served);
    fill(&ada, "s");
    let claim =
        || ada.ok("POST", "/v1/sessions/s/orchestration/claim", json!({"holder": "h"})).json()["claim"].as_str().unwrap().to_owned();
    let (replaced, present) = (claim(), claim());
    let is_claim = |id: &str| id.ends_with("OrchestrationClaim") || id == "claimOrchestration";
    let routes = routes(&served);
    let writes: Vec<&Route> =
        routes.iter().filter(|route| route.changes() && route.pattern.contains("/orchestration/") && !is_claim(&route.id)).collect();
    assert!(writes.len() >= 6, "{}", writes.len());
    let before = ada.get("/v1/sessions/s/export");
    let send = |route: &Route, headers: &[(&str, &str)]| {
        ada.with(&route.method, &route.url("s", "a", "c"), headers, body(&route.id).to_string().as_bytes())
    };
    for route in &writes {
        assert_eq!(send(route, &[("treehold-claim", &replaced)]).code(), "conflict", "{}", route.id);
        let keyed = send(route, &[("treehold-claim", &replaced), ("idempotency-key", &route.id)]);
        assert_eq!((keyed.status, keyed.code().as_str()), (409, "conflict"), "{}", route.id);
        for bad in ["", "x y", "claim"] {
            assert_eq!(send(route, &[("treehold-claim", bad)]).code(), "invalid_argument", "{}: {bad}", route.id);
        }
        assert_eq!(ada.get("/v1/sessions/s/export"), before, "{}", route.id);
    }
    for route in &writes {
        assert_eq!(send(route, &[("treehold-claim", &present)]).status, 204, "{}", route.id);
        assert_eq!(send(route, &[]).status, 204, "{} depends on no claim", route.id);
    }
    let is_replayed = |route: &Route, claim: &str| {
        let answer = send(route, &[("treehold-claim", claim), ("idempotency-key", "once")]);
        (answer.status, answer.header("idempotency-replayed").is_some())
    };
    // A claim that is lost after a write does not hide that the write took effect.
    let event = writes.iter().find(|route| route.id == "appendOrchestrationEvent").unwrap();
    assert_eq!(is_replayed(event, &present), (204, false));
    claim();
    assert_eq!(is_replayed(event, &present), (204, true));
}

/// Regression: an agent whose id names no mailbox was accepted in an event, and the inspector failed from then on.
#[test]
fn agent_ids_that_name_no_mailbox_are_refused_in_every_write() {
    let served = Served::with(|options| options.with_tokens(true).with_host_routes(Some("/host".to_owned())));
    let host = Caller::new(&served, "default", "host", Rights::new(Access::Admin));
    host.open("o");
    let event = |agent: &str| json!({"eventId": "e", "occurredAt": "t", "runId": "r", "type": "agent_spawned", "agent": {"id": agent, "role": "scout"}});
    let agent =
        |id: &str| json!({"id": id, "runId": "r", "taskId": "k", "role": "scout", "status": "idle", "createdAt": "t", "updatedAt": "t"});
    let at = |rest: &str| format!("/v1/sessions/o/orchestration/{rest}");
    for bad in ["a/b\u{0}", "", "..", "_treehold"] {
        let writes = [
            ("POST", "events", json!({"event": event(bad)})),
            ("POST", "commit", json!({"events": [event(bad)]})),
            ("POST", "commit", json!({"checkpoint": {"agents": {"a": agent(bad)}}})),
            ("PUT", "checkpoint", json!({"snapshot": {"agents": {"a": agent(bad)}}})),
            (
                "POST",
                "mailboxes/a/events",
                json!({"event": {"eventId": "m", "agentId": bad, "occurredAt": "t", "type": "agent_close_requested"}}),
            ),
        ];
        for (method, rest, body) in writes {
            assert_eq!(host.send(method, &at(rest), &body).code(), "invalid_argument", "{rest} {body}");
        }
    }
    // The files of a host may have such an agent.
    let files = host.get("/v1/sessions/o/export");
    let mut files = files["files"].as_object().unwrap().clone();
    files.insert("orchestration/events.jsonl".to_owned(), json!(format!("{}\n{}\n", event("a/b\u{0}"), event("good"))));
    host.ok("DELETE", "/v1/sessions/o", Value::Null);
    host.ok("POST", "/v1/sessions/o/import", json!({"files": files}));
    let shown = host.get("/host/__inspector/sessions/o/orchestration");
    assert_eq!((shown["agents"].as_array().unwrap().len(), &shown["agents"][0]["id"]), (1, &json!("good")), "{shown}");
    assert_eq!(shown["events"].as_array().unwrap().len(), 2);
    assert_eq!(host.get(&at("state"))["snapshot"]["agents"].as_object().unwrap().len(), 1);
}
