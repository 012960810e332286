//! Idempotency keys: a request whose answer was lost is repeated, and takes effect once.

use super::{BASES, Caller, admin, sequences, user};
use crate::serve::Served;
use serde_json::{Value, json};
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use treehold::serve::{Access, Rights};

#[test]
fn repeated_append_with_a_key_takes_effect_once() {
    let served = Served::closed();
    let ada = admin(&served);
    ada.create("t");
    let writer = Caller::new(&served, "acme", "ada", Rights::new(Access::Write));
    let append = |caller: &Caller<'_>, base: &str, key: &str, body: &Value| {
        caller.with("POST", &format!("{base}/t/messages"), &[("idempotency-key", key)], body.to_string().as_bytes())
    };
    let two = json!({"messages": [user("one"), user("two")]});
    let first = append(&ada, BASES[0], "k", &two);
    assert_eq!((first.status, first.header("idempotency-replayed")), (200, None));
    let first = first.json();
    ada.say("t", &["three"]);
    // The trace keeps its keys, so any path, token and server of the store knows them.
    for caller in [&ada, &writer] {
        for base in BASES {
            let again = append(caller, base, "k", &two);
            assert_eq!((again.status, again.header("idempotency-replayed").as_deref()), (200, Some("true")));
            let again = again.json();
            assert_eq!(
                (&again["messages"], &again["message_id"], &again["head_sequence"]),
                (&first["messages"], &json!("t-0002"), &json!(2))
            );
            assert_eq!((&first["repeated"], &again["repeated"]), (&json!(false), &json!(true)));
        }
    }
    let reused = append(&ada, BASES[1], "k", &user("another"));
    assert_eq!((reused.status, reused.code().as_str()), (422, "key_reused"));
    for wrong in ["", &"x".repeat(256)] {
        assert_eq!(append(&ada, BASES[1], wrong, &two).code(), "invalid_argument", "{wrong}");
    }
    // A refused request leaves no key behind.
    let unknown_parent = json!({"role": "user", "content": "x", "parent_sequence": 99});
    assert_eq!(append(&ada, BASES[1], "other", &unknown_parent).code(), "invalid_argument");
    assert_eq!(append(&ada, BASES[1], "other", &user("four")).json()["head_sequence"], 4);
    assert_eq!(sequences(&ada.get("/api/traces/t/messages")), [1, 2, 3, 4]);
    // Another server of the store, as after a restart.
    let next = Served::on(served.store.clone(), |options| options.with_tokens(true));
    let ada = Caller { served: &next, token: ada.token.clone() };
    assert_eq!(append(&ada, BASES[0], "k", &two).json()["messages"], first["messages"]);
}

#[test]
fn repeated_changes_with_a_key_take_effect_once() {
    let served = Served::closed();
    let ada = admin(&served);
    ada.create("t");
    for base in BASES {
        for (method, path, body) in [
            ("POST", base.to_owned(), json!({"task": "once"})),
            ("POST", format!("{base}/t/goals"), json!({"description": "once"})),
            ("POST", format!("{base}/t/events"), json!({"event": "once"})),
            ("PATCH", format!("{base}/t"), json!({"add_duration_ms": 5})),
        ] {
            let key = format!("{method} {path}");
            let send = || ada.with(method, &path, &[("idempotency-key", &key)], body.to_string().as_bytes());
            let (first, again) = (send(), send());
            assert_eq!((again.status, again.header("idempotency-replayed").as_deref()), (first.status, Some("true")), "{key}");
            assert_eq!(first.json(), again.json(), "{key}");
        }
    }
    let found = ada.get("/api/traces/t");
    assert_eq!((&found["total_duration_ms"], ada.get("/api/traces")["total"].clone()), (&json!(10), json!(3)));
    assert_eq!(found["goal_tree"]["goals"].as_array().unwrap().len(), 2);
}

/// The client is gone before the answer comes, at any moment of the request.
#[test]
fn append_whose_answer_was_lost_is_repeated_by_its_key() {
    let served = Served::closed();
    let ada = admin(&served);
    ada.create("t");
    let body = user(&"long ".repeat(20_000)).to_string();
    let address = served.base.trim_start_matches("http://").to_owned();
    for number in 0..20 {
        let key = format!("k{number}");
        let head = format!(
            "POST /api/traces/t/messages HTTP/1.1\r\nhost: {address}\r\nauthorization: {}\r\ncontent-type: application/json\r\n\
             idempotency-key: {key}\r\ncontent-length: {}\r\n\r\n",
            ada.bearer(),
            body.len()
        );
        let mut lost = TcpStream::connect(&address).unwrap();
        lost.write_all(head.as_bytes()).unwrap();
        lost.write_all(&body.as_bytes()[..body.len() - number % 2 * 7]).unwrap();
        lost.shutdown(Shutdown::Both).unwrap();
        let again = ada.with("POST", "/api/traces/t/messages", &[("idempotency-key", &key)], body.as_bytes());
        assert_eq!(again.status, 200);
        assert_eq!(sequences(&again.json()), [number as u64 + 1], "{key}");
    }
    assert_eq!(ada.get("/api/traces/t")["total_messages"], 20);
}
