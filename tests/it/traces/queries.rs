//! What clients of the original protocol ask, and what they get.

use super::{BASES, admin, sequences, user};
use crate::serve::Served;
use serde_json::{Value, json};

#[test]
fn messages_are_appended_and_queried_as_in_the_original_protocol() {
    let served = Served::closed();
    let ada = admin(&served);
    for (number, base) in BASES.into_iter().enumerate() {
        let trace = format!("t{number}");
        ada.create(&trace);
        let at = format!("{base}/{trace}");
        let added = ada.ok("POST", &format!("{at}/messages"), user("one"));
        assert_eq!((&added["message_id"], &added["head_sequence"]), (&json!(format!("{trace}-0001")), &json!(1)));
        assert_eq!((&added["repeated"], &added["messages"][0]["content"]), (&json!(false), &json!("one")));
        let mut messages: Vec<Value> = (2..=60).map(|number| user(&number.to_string())).collect();
        messages[0]["message_id"] = json!("own id");
        let added = ada.ok("POST", &format!("{at}/messages"), json!({"messages": messages, "expected_head": 1}));
        assert_eq!((&added["message_id"], &added["messages"][0]["message_id"]), (&json!(format!("{trace}-0060")), &json!("own id")));
        let list = |query: &str| ada.get(&format!("{at}/messages{query}"));
        // A page ends at 100 messages, `since_sequence` is strictly greater, and `offset` counts from 0.
        assert_eq!(sequences(&list("")), (1..=60).collect::<Vec<_>>());
        assert_eq!(sequences(&list("?since_sequence=50")), (51..=60).collect::<Vec<_>>());
        assert_eq!(sequences(&list("?limit=10&offset=0")), (1..=10).collect::<Vec<_>>());
        assert_eq!(sequences(&list("?limit=10&offset=55")), (56..=60).collect::<Vec<_>>());
        assert_eq!(sequences(&list("?since_sequence=60")), [0_u64; 0]);
        assert_eq!((&list("?limit=10")["more"], &list("?limit=60")["more"]), (&json!(true), &json!(false)));
        // A rewind leaves a dead branch.
        let again = json!({"role": "assistant", "content": {"text": "again"}, "parent_sequence": 2});
        assert_eq!(ada.ok("POST", &format!("{at}/messages"), again)["head_sequence"], 61);
        assert_eq!(sequences(&list("?mode=main_path")), [1, 2, 61]);
        assert_eq!(sequences(&list("?mode=main_path&head_sequence=4")), [1, 2, 3, 4]);
        let end = list("?mode=main_path&limit=2");
        assert_eq!((sequences(&end), &end["earlier"]), (vec![2, 61], &json!(1)));
        assert_eq!(sequences(&list(&format!("?mode=main_path&limit=2&head_sequence={}", end["earlier"]))), [1]);
        assert_eq!(ada.get(&format!("{at}/messages/own%20id"))["sequence"], 2);
        assert_eq!(ada.get(&format!("{at}/messages/61?by=sequence"))["parent_sequence"], 2);
        let changed = ada.ok("PATCH", &format!("{at}/messages/61?by=sequence"), json!({"content": {"text": "changed"}, "tokens": 7}));
        assert_eq!((&changed["content"]["text"], &changed["sequence"]), (&json!("changed"), &json!(61)));
        // A summary stands for a span of the main path; its messages stay.
        let summary = json!({"role": "user", "content": "in short", "summarizes": {"from": 2, "to": 61}});
        assert_eq!(ada.ok("POST", &format!("{at}/messages"), summary)["head_sequence"], 62);
        assert_eq!(sequences(&list("?mode=main_path")), [1, 62]);
        assert_eq!(list("?limit=1000")["messages"].as_array().unwrap().len(), 62);
        let stale = json!({"messages": [user("late")], "expected_head": 61});
        let refused = ada.send("POST", &format!("{at}/messages"), &stale);
        assert_eq!((refused.status, refused.code().as_str()), (409, "conflict"));
        let found = ada.get(&at);
        assert_eq!((&found["total_messages"], &found["total_tokens"], &found["last_sequence"]), (&json!(62), &json!(7), &json!(62)));
    }
}

#[test]
fn append_changes_its_trace_in_the_same_commit() {
    let served = Served::closed();
    let ada = admin(&served);
    for (number, base) in BASES.into_iter().enumerate() {
        let trace = format!("t{number}");
        ada.create(&trace);
        let at = format!("{base}/{trace}");
        let append = |update: Value| ada.send("POST", &format!("{at}/messages"), &json!({"messages": [user("done")], "update": update}));
        assert_eq!(append(json!({"status": "completed", "run_config": {"model": "m"}})).json()["head_sequence"], 1);
        let found = ada.get(&at);
        assert_eq!(
            (&found["status"], &found["run_config"], &found["last_event_id"]),
            (&json!("completed"), &json!({"model": "m"}), &json!(4))
        );
        let before = ada.whole(&trace);
        for refused in [json!({"status": "done"}), json!({"head_sequence": 1}), json!({"unknown": 1}), json!([]), json!("completed")] {
            assert_eq!(append(refused).code(), "invalid_argument");
        }
        assert_eq!(append(json!({"task": "x".repeat(1 << 20)})).code(), "too_large");
        assert_eq!(ada.whole(&trace), before, "nothing was written");
    }
}

#[test]
fn contents_of_messages_keep_their_text() {
    let served = Served::closed();
    let ada = admin(&served);
    ada.create("t");
    let content = r#"{"text" : "é\u00e9",  "n":1.0, "big":12345678901234567890123, "a":[ ]}"#;
    let one = format!(r#"{{"role":"assistant","content":{content},"mood":"calm"}}"#);
    let several = format!(r#"{{"messages":[{one},{one}]}}"#);
    for body in [&one, &several] {
        let added = ada.with("POST", "/api/traces/t/messages", &[], body.as_bytes()).text();
        assert!(added.contains(content), "{added}");
    }
    let listed = ada.send("GET", "/api/traces/t/messages", &Value::Null).text();
    assert_eq!(listed.matches(content).count(), 3, "{listed}");
    assert!(listed.contains(r#""mood":"calm""#), "fields that the server does not know are kept: {listed}");
}

#[test]
fn traces_are_listed_in_pages_with_their_total() {
    let served = Served::closed();
    let ada = admin(&served);
    assert_eq!(ada.get("/api/traces"), json!({"traces": [], "total": 0}));
    for number in 0..53 {
        let mode = if number % 10 == 0 { "call" } else { "agent" };
        ada.ok("POST", "/api/traces", json!({"trace_id": format!("t{number:02}"), "mode": mode, "task": "x"}));
    }
    for trace in ["t05", "t10"] {
        assert_eq!(ada.ok("PATCH", &format!("/api/traces/{trace}"), json!({"status": "completed"}))["status"], "completed");
    }
    let ids = |page: &Value| -> Vec<String> {
        page["traces"].as_array().unwrap().iter().map(|trace| trace["trace_id"].as_str().unwrap().to_owned()).collect()
    };
    let newest: Vec<String> = (0..53).rev().map(|number| format!("t{number:02}")).collect();
    for base in BASES {
        let page = ada.get(base);
        assert_eq!((ids(&page), &page["total"]), (newest[..50].to_vec(), &json!(53)));
        let rest = ada.get(&format!("{base}?cursor={}", page["next"].as_str().unwrap()));
        assert_eq!((ids(&rest), rest.get("next")), (newest[50..].to_vec(), None));
        assert_eq!(ids(&ada.get(&format!("{base}?limit=100"))), newest);
        let calls = ada.get(&format!("{base}?mode=call&limit=2"));
        assert_eq!((ids(&calls), &calls["total"]), (vec!["t50".to_owned(), "t40".to_owned()], &json!(6)));
        assert_eq!(ids(&ada.get(&format!("{base}?status=completed"))), ["t10", "t05"]);
        assert_eq!(ids(&ada.get(&format!("{base}?status=completed&mode=call"))), ["t10"]);
        assert_eq!(ids(&ada.get(&format!("{base}?status=failed"))), [""; 0]);
    }
}

#[test]
fn trace_comes_with_its_goals() {
    let served = Served::closed();
    let ada = admin(&served);
    ada.create("t");
    assert_eq!(ada.get("/api/traces/t")["goal_tree"]["goals"], json!([]));
    let goal = ada.send("POST", "/api/traces/t/goals", &json!({"description": "brew", "type": "normal"}));
    assert_eq!((goal.status, goal.json()["id"].clone()), (201, json!("1")));
    ada.ok("POST", "/api/traces/t/goals", json!({"description": "boil", "parent_id": "1", "colour": "red"}));
    let changed = ada.ok("PATCH", "/api/traces/t/goals/2", json!({"status": "in_progress", "add_sub_trace": "@laptop/sub"}));
    assert_eq!((&changed["status"], &changed["sub_trace_ids"]), (&json!("in_progress"), &json!(["@laptop/sub"])));
    let found = ada.get("/v1/traces/t");
    let tree = &found["goal_tree"];
    assert_eq!((&found["task"], &found["uid"], &tree["goals"][1]["colour"]), (&json!("secret task"), &json!("ada"), &json!("red")));
    assert_eq!(*tree, ada.get("/api/traces/t/goals"));
    let replaced = ada.ok("PUT", "/api/traces/t/goals", json!({"mission": "tea", "goals": [{"id": "9", "description": "pour"}]}));
    assert_eq!((&replaced["mission"], &replaced["goals"][0]["id"]), (&json!("tea"), &json!("9")));
    assert_eq!(ada.send("POST", "/api/traces/t/goals", &json!({"id": "9", "description": "again"})).code(), "already_exists");
    assert_eq!(ada.send("PATCH", "/api/traces/t/goals/unknown", &json!({})).code(), "not_found");
    let circle = json!({"goals": [{"id": "1", "parent_id": "1", "description": "x"}]});
    assert_eq!(ada.send("PUT", "/api/traces/t/goals", &circle).code(), "invalid_argument");
    assert_eq!(ada.get("/api/traces/t")["goal_tree"]["mission"], "tea");
}

#[test]
fn events_are_listed_by_their_ids() {
    let served = Served::closed();
    let ada = admin(&served);
    ada.create("t");
    ada.say("t", &["one", "two"]);
    let added = ada.send("POST", "/api/traces/t/events", &json!({"event": "thinking", "about": {"tea": true}}));
    assert_eq!((added.status, added.json()), (201, json!({"event_id": 4})));
    let ids = |query: &str| -> Vec<u64> {
        let page = ada.get(&format!("/api/traces/t/events{query}"));
        page["events"].as_array().unwrap().iter().map(|event| event["event_id"].as_u64().unwrap()).collect()
    };
    assert_eq!((ids(""), ids("?since_event_id=2"), ids("?limit=1&since_event_id=1")), (vec![1, 2, 3, 4], vec![3, 4], vec![2]));
    assert_eq!(ids("?since_event_id=4"), [0_u64; 0]);
    let page = ada.get("/v1/traces/t/events?limit=3");
    assert_eq!(
        (&page["more"], &page["events"][0]["event"], &page["events"][1]["sequence"]),
        (&json!(true), &json!("trace_created"), &json!(1))
    );
    let own = &ada.get("/v1/traces/t/events?since_event_id=3")["events"][0];
    assert_eq!((&own["event"], &own["about"]["tea"]), (&json!("thinking"), &json!(true)));
    assert!(own["ts"].as_str().unwrap().ends_with('Z'));
}

#[test]
fn long_answers_are_compressed_where_the_client_accepts_it() {
    let served = Served::closed();
    let ada = admin(&served);
    ada.create("t");
    ada.say("t", &["a long text ".repeat(1_000).as_str()]);
    for base in BASES {
        let at = format!("{base}/t/messages");
        let plain = ada.with("GET", &at, &[("accept-encoding", "identity")], b"");
        assert_eq!(plain.header("content-encoding"), None);
        let coded = ada.with("GET", &at, &[("accept-encoding", "gzip")], b"");
        assert_eq!(coded.header("content-encoding").as_deref(), Some("gzip"));
        let (plain, coded) = (plain.bytes(), coded.bytes());
        assert!(coded.starts_with(&[0x1f, 0x8b]) && coded.len() * 10 < plain.len(), "{} {}", coded.len(), plain.len());
    }
}

#[test]
fn ten_thousand_messages_are_read_in_pages() {
    const MESSAGES: u64 = 10_000;
    let served = Served::closed();
    let ada = admin(&served);
    ada.create("t");
    for batch in 0..10 {
        let texts: Vec<String> = (1..=1_000).map(|number| (batch * 1_000 + number).to_string()).collect();
        ada.say("t", &texts.iter().map(String::as_str).collect::<Vec<_>>());
    }
    let all: Vec<u64> = (1..=MESSAGES).collect();
    let (mut by_sequence, mut by_offset, mut path) = (Vec::new(), Vec::new(), Vec::new());
    loop {
        let page = ada.get(&format!("/api/traces/t/messages?limit=1000&since_sequence={}", by_sequence.last().unwrap_or(&0)));
        by_sequence.extend(sequences(&page));
        if page["more"] == false {
            break;
        }
    }
    for offset in (0..MESSAGES).step_by(1_000) {
        by_offset.extend(sequences(&ada.get(&format!("/api/traces/t/messages?limit=1000&offset={offset}"))));
    }
    let mut end = Some(MESSAGES);
    while let Some(head) = end {
        let page = ada.get(&format!("/api/traces/t/messages?mode=main_path&head_sequence={head}"));
        path.splice(0..0, sequences(&page));
        end = page["earlier"].as_u64();
    }
    assert!(by_sequence == all && by_offset == all && path == all);
    assert_eq!(ada.get("/api/traces/t")["total_messages"], MESSAGES);
}
