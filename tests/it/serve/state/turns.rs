//! The turns of a session: their order, the changes that they fence, and callers that wait.

use super::{Caller, admin, body, fill, routes};
use crate::serve::{Answer, Served, within};
use serde_json::{Value, json};
use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;
use treehold::serve::{Access, ActsFor, Rights};

/// Waits for the turn of the session `s`.
fn acquire(caller: &Caller<'_>, wait_ms: u64, ticket: Option<&str>) -> Answer {
    caller.send("POST", "/v1/turns:acquire", &json!({"user": "ada", "session": "s", "wait_ms": wait_ms, "owner": "test", "ticket": ticket}))
}

#[test]
fn turns_are_granted_in_the_order_of_tickets_and_fence_saves() {
    let served = Served::closed();
    let ada = admin(&served);
    let first = ada.turn("s");
    let busy = acquire(&ada, 0, None);
    assert_eq!((busy.status, busy.header("retry-after").as_deref()), (409, Some("1")));
    assert_eq!(busy.code(), "unavailable");
    // A client that asks to wait gets a ticket, which keeps its place.
    let tickets: Vec<String> = (0..2)
        .map(|_| {
            let waiting = acquire(&ada, 1, None);
            assert_eq!(waiting.status, 202);
            waiting.json()["ticket"].as_str().unwrap().to_owned()
        })
        .collect();
    let release = |turn: &Value| ada.ok("POST", "/v1/turns:release", json!({"user": "ada", "session": "s", "token": turn["token"]})).status;
    assert_eq!(release(&first), 204);
    assert_eq!(acquire(&ada, 0, None).status, 409, "others wait");
    assert_eq!(acquire(&ada, 1, Some(&tickets[1])).status, 202, "it is second");
    let second = acquire(&ada, 20_000, Some(&tickets[0])).json();
    assert!(second["fence"].as_u64() > first["fence"].as_u64(), "{first} {second}");
    // A lost answer is repeated with the ticket.
    assert_eq!(acquire(&ada, 1, Some(&tickets[0])).json()["token"], second["token"]);
    let save = |turn: &Value, body: Value| ada.send("PUT", &format!("/v1/state/ada/s/k?fence={}", turn["fence"]), &body);
    assert_eq!(save(&second, json!("second")).status, 200);
    let late = save(&first, json!("late"));
    assert_eq!((late.status, late.code().as_str()), (409, "conflict"));
    assert_eq!(ada.get("/v1/state/ada/s/k"), json!("second"));
    let renew = |turn: &Value| ada.send("POST", "/v1/turns:renew", &json!({"user": "ada", "session": "s", "token": turn["token"]}));
    let renewed = renew(&second).json();
    assert!(renewed["expires_at"].as_i64() >= second["expires_at"].as_i64() && renewed["interrupt"].is_null(), "{renewed}");
    assert_eq!(renew(&first).code(), "conflict");
    // An interrupt hits the turn that runs, and no later one.
    let interrupt = |body: Value| ada.ok("POST", "/v1/state/ada/s:interrupt", body);
    let hit = interrupt(json!({"message": {"role": "USER", "content": "stop"}}));
    assert_eq!((hit.status, hit.json()), (202, json!({"hit": true})));
    assert_eq!(renew(&second).json()["interrupt"], json!({"message": {"role": "USER", "content": "stop"}, "source": "user"}));
    assert_eq!([release(&second), release(&second)], [204, 204], "it is idempotent");
    let third = acquire(&ada, 20_000, Some(&tickets[1])).json();
    assert!(renew(&third).json()["interrupt"].is_null());
    assert_eq!(interrupt(json!({"source": "system"})).json(), json!({"hit": true}));
    assert_eq!(renew(&third).json()["interrupt"], json!({"message": null, "source": "system"}));
    release(&third);
    assert_eq!(interrupt(Value::Null).json(), json!({"hit": false}));
    // Other sessions and users have turns of their own.
    let host = Caller::new(&served, "acme", "host", Rights::new(Access::Write).with_acts_for(ActsFor::Tenant));
    for (user, session) in [(Some("ada"), "s"), (Some("ada"), "t"), (Some("bob"), "s"), (None, "s")] {
        assert_eq!(host.send("POST", "/v1/turns:acquire", &json!({"user": user, "session": session})).status, 200, "{user:?} {session}");
        let of_agent = json!({"user": user, "session": session, "agent": "other"});
        assert_eq!(host.send("POST", "/v1/turns:acquire", &of_agent).status, 200, "{user:?} {session}");
    }
    let long = "x".repeat(256);
    for (name, wrong) in [("wait_ms", json!(30_001)), ("wait_ms", json!(-1)), ("owner", json!(long)), ("ticket", json!("x"))] {
        let mut body = json!({"user": "ada", "session": "u"});
        body[name] = wrong;
        assert_eq!(ada.send("POST", "/v1/turns:acquire", &body).code(), "invalid_argument", "{body}");
    }
    let message = json!({"message": "x".repeat(300 << 10)});
    assert_eq!(ada.send("POST", "/v1/state/ada/s:interrupt", &message).code(), "too_large");
}

/// Every change of a session's states takes the fencing token of a turn, and is refused once the turn is lost.
#[test]
fn every_change_of_states_is_refused_once_its_turn_is_lost() {
    let served = Served::closed();
    let ada = admin(&served);
    let document = served.get("/openapi.json").json();
    let mut checked = 0;
    for route in routes(&served) {
        // An interrupt changes no state, whoever holds the turn.
        if !route.changes() || !route.pattern.starts_with("/v1/state/") || route.id == "interruptState" {
            continue;
        }
        let parameters = document["paths"][&route.pattern][route.method.to_lowercase()]["parameters"].as_array().unwrap().clone();
        assert!(parameters.iter().any(|parameter| parameter["name"] == "fence"), "{}", route.id);
        fill(&ada, "ada", "s");
        let before = ada.get("/v1/state/ada/s:export");
        let body = body(&route.id, Some("ada"), "s");
        let send = |fence: &Value| ada.send(&route.method, &format!("{}?fence={fence}", route.url("ada", "s", "k")), &body);
        let lost = ada.turn("s");
        ada.ok("POST", "/v1/turns:release", json!({"user": "ada", "session": "s", "token": lost["token"]}));
        for _ in 0..2 {
            let late = send(&lost["fence"]);
            assert_eq!(late.status, 409, "{}", route.id);
            let problem = late.json();
            assert_eq!((&problem["code"], &problem["may_have_effect"]), (&json!("conflict"), &json!(false)), "{}", route.id);
            assert_eq!(ada.get("/v1/state/ada/s:export"), before, "{}", route.id);
        }
        let turn = ada.turn("s");
        assert_eq!(send(&lost["fence"]).status, 409, "{}: another turn holds the session", route.id);
        assert!(send(&turn["fence"]).status < 300, "{}", route.id);
        assert_ne!(ada.send("GET", "/v1/state/ada/s:export", &Value::Null).json(), before, "{}", route.id);
        ada.ok("POST", "/v1/turns:release", json!({"user": "ada", "session": "s", "token": turn["token"]}));
        checked += 1;
    }
    assert_eq!(checked, 3);
}

/// A repeated request with one key gets the first turn, unless the first one was refused.
#[test]
fn key_of_a_refused_turn_can_be_sent_again() {
    let served = Served::closed();
    let ada = admin(&served);
    let first = ada.turn("s");
    let body = json!({"user": "ada", "session": "s"}).to_string();
    let ask = || ada.with("POST", "/v1/turns:acquire", &[("idempotency-key", "k")], body.as_bytes());
    assert_eq!(ask().status, 409);
    ada.ok("POST", "/v1/turns:release", json!({"user": "ada", "session": "s", "token": first["token"]}));
    let granted = ask();
    assert_eq!((granted.status, granted.header("idempotency-replayed")), (200, None));
    let (token, again) = (granted.json()["token"].clone(), ask());
    assert_eq!(again.header("idempotency-replayed").as_deref(), Some("true"));
    assert_eq!(again.json()["token"], token);
}

/// Sends a request for the turn of `s` on a connection of its own, without waiting for the answer.
fn waiting(caller: &Caller<'_>) -> TcpStream {
    let body = json!({"user": "ada", "session": "s", "wait_ms": 30_000}).to_string();
    let mut stream = TcpStream::connect(caller.served.base.trim_start_matches("http://")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let token = &caller.token;
    let head =
        format!("POST /v1/turns:acquire HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\ncontent-type: application/json");
    write!(stream, "{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
    stream
}

/// How many rows the queue of `s` has: one for each waiter, and those of the turn.
fn queued(served: &Served) -> usize {
    let namespace = treehold::Namespace::parse("acme/ada/_treehold/agent-state/agents/default/turns/s").unwrap();
    served.block_on(served.store.scan(&namespace, treehold::store::ScanOptions::new())).unwrap().entries.len()
}

/// A waiting request uses nothing of the server, so that it must not keep others from being answered.
#[test]
fn waiting_for_a_turn_takes_no_request_slot_and_ends_with_its_caller() {
    let served = Served::with(|options| options.with_tokens(true).with_requests_per_user_max(2).with_streams_max(16));
    let ada = admin(&served);
    let turn = ada.turn("s");
    let alone = queued(&served);
    // A user has a quarter of the slots.
    let mut streams: Vec<TcpStream> = Vec::new();
    for count in 1..=4 {
        streams.push(waiting(&ada));
        within(|| queued(&served) == alone + count);
    }
    assert_eq!(acquire(&ada, 1, None).code(), "unavailable");
    let bob = Caller::new(&served, "acme", "bob", Rights::new(Access::Write));
    assert_eq!(bob.send("POST", "/v1/turns:acquire", &json!({"user": "bob", "session": "s", "wait_ms": 1})).status, 200);
    assert_eq!(ada.get("/v1/state/ada")["sessions"], json!([]), "the slots for requests are free");
    // Callers that go away leave the queue, wherever they stand.
    drop(streams.remove(1));
    within(|| queued(&served) == alone + 3);
    drop(streams);
    within(|| queued(&served) == alone);
    ada.ok("POST", "/v1/turns:release", json!({"user": "ada", "session": "s", "token": turn["token"]}));
    within(|| acquire(&ada, 1, None).status == 200);
}

#[test]
fn stopping_server_answers_clients_that_wait_for_a_turn() {
    let served = Served::closed();
    let ada = admin(&served);
    ada.turn("s");
    let alone = queued(&served);
    let mut stream = waiting(&ada);
    within(|| queued(&served) == alone + 1);
    served.stop().unwrap();
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut stream, &mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("the server is stopping"), "{answer}");
}
