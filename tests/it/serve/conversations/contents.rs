//! What a session holds: messages and turns, compaction, documents, tool results, recorded runs, and the stream of its changes.

use super::{admin, body, encoded, fill, user};
use crate::serve::Served;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};

#[test]
fn conversation_is_appended_read_and_listed() {
    let served = Served::closed();
    let ada = admin(&served);
    let created = ada.ok("POST", "/v1/sessions", json!({"agent_id": "helper", "session_id": "tea"}));
    assert_eq!(created.status, 201);
    assert_eq!(created.json(), json!({"sessionId": "tea", "sessionRef": "acme:tea"}));
    assert_eq!(ada.ok("POST", "/v1/sessions", json!({"agent_id": "other", "session_id": "tea"})).status, 200);
    let minted = ada.ok("POST", "/v1/sessions", json!({"agent_id": "helper"})).json();
    assert!(minted["sessionId"].as_str().is_some_and(|id| id.len() == 36), "{minted}");

    // The text of a message is kept, with its spaces and unknown fields.
    let text = r#"{"messages": [{"role":"user", "content":"Where is the tea?","timestamp":1.0,"mood":[ ]},
        {"role":"assistant","content":[{"type":"toolCall","id":"c","name":"find","arguments":{}}]},
        {"role":"toolResult","toolCallId":"c","content":[{"type":"text","text":"here"}]}], "usage": {"inputTokens": 10, "cost": {"total": 0.5}}}"#;
    let appended = ada.with("POST", "/v1/sessions/tea/messages", &[], text.as_bytes()).json();
    assert_eq!(appended, json!({"positions": {"start": 0, "end": 3}, "turn_index": 0}));
    let answer = ada.send("GET", "/v1/sessions/tea/messages", &Value::Null).text();
    assert!(answer.contains(r#"{"role":"user", "content":"Where is the tea?","timestamp":1.0,"mood":[ ]}"#), "{answer}");
    let messages = |query: &str| ada.get(&format!("/v1/sessions/tea/messages{query}"));
    assert_eq!(messages("?limit=1")["messages"][0]["role"], "toolResult");
    assert_eq!(messages("?budget_tokens=1")["messages"].as_array().unwrap().len(), 2, "a result keeps its call");
    assert_eq!(messages("?limit=all")["window"]["end"], 3);
    let page = messages("?from=1&limit=1");
    assert_eq!((&page["messages"][0]["role"], &page["next"]), (&json!("assistant"), &json!(2)));
    assert_eq!(messages("?from=2&limit=5").get("next"), None);
    for wrong in ["?limit=0", "?limit=1001", "?limit=x", "?full=true&limit=2", "?from=0&budget_tokens=1", "?from=-1", "?unknown=1"] {
        assert_eq!(ada.send("GET", &format!("/v1/sessions/tea/messages{wrong}"), &Value::Null).code(), "invalid_argument", "{wrong}");
    }

    assert_eq!(
        ada.ok("POST", "/v1/sessions/tea/turns", json!({"usage": {"inputTokens": 2, "outputTokens": 1}})).json(),
        json!({"turn_index": 1})
    );
    let turns = ada.get("/v1/sessions/tea/turns");
    assert_eq!((&turns["turns"][0]["turnIndex"], &turns["turns"][1]["inputTokens"]), (&json!(0), &json!(2)), "{turns}");
    let first = ada.get("/v1/sessions/tea/turns?limit=1");
    let rest = ada.get(&format!("/v1/sessions/tea/turns?limit=1&cursor={}", first["cursor"]));
    assert_eq!(rest["turns"][0]["turnIndex"], 1, "{first} {rest}");

    let described = ada.send("GET", "/v1/sessions/tea", &Value::Null);
    let tag = described.header("etag").unwrap();
    let described = described.json();
    assert_eq!(described["lastContextUsage"], json!({"inputTokens": 2, "outputTokens": 1, "budgetUsedPct": 0}));
    assert_eq!((&described["agentId"], &described["title"]), (&json!("helper"), &Value::Null));
    assert_eq!(ada.with("GET", "/v1/sessions/tea", &[("if-none-match", &tag)], b"").status, 304);
    ada.ok("PATCH", "/v1/sessions/tea", json!({"title": "tea time"}));
    let changed = ada.with("GET", "/v1/sessions/tea", &[("if-none-match", &tag)], b"");
    assert_eq!((changed.status, &changed.json()["title"]), (200, &json!("tea time")));
    ada.ok("PATCH", "/v1/sessions/tea", json!({"title": null}));
    assert_eq!(ada.send("PATCH", "/v1/sessions/tea", &json!({})).code(), "invalid_argument", "an absent title is not `null`");

    let page = ada.get("/v1/sessions?limit=1");
    assert_eq!(page["sessions"][0]["sessionId"], "tea");
    let rest = ada.get(&format!("/v1/sessions?limit=1&cursor={}", encoded(page["cursor"].as_str().unwrap())));
    assert_eq!((&rest["sessions"][0]["sessionId"], rest.get("cursor")), (&minted["sessionId"], None));
    for _ in 0..2 {
        assert_eq!(ada.ok("DELETE", "/v1/sessions/tea", Value::Null).status, 204);
    }
    assert_eq!(ada.send("GET", "/v1/sessions/tea", &Value::Null).code(), "not_found");
}

/// Without a limit, the newest 50 messages are read, oldest first.
#[test]
fn messages_without_a_limit_are_the_newest_fifty() {
    let served = Served::closed();
    let ada = admin(&served);
    ada.open("s");
    let messages: Vec<Value> = (0..60).map(|number| user(&format!("message {number}"))).collect();
    ada.ok("POST", "/v1/sessions/s/messages", json!({"messages": messages}));
    assert_eq!(ada.get("/v1/sessions/s/messages")["messages"], json!(messages[10..]));
    assert_eq!(ada.get("/v1/sessions/s/messages?limit=all")["messages"], json!(messages));
}

#[test]
fn compaction_in_two_requests_replaces_the_planned_window_only() {
    let served = Served::closed();
    let ada = admin(&served);
    fill(&ada, "s");
    let plan = |query: &str| ada.get(&format!("/v1/sessions/s/compaction{query}"))["plan"].clone();
    assert_eq!(plan(""), Value::Null, "the window is below the trigger");
    let planned = plan("?force=true&compact_fraction=0.5");
    assert_eq!((&planned["count"], planned["messages"].as_array().unwrap().len()), (&json!(4), 4));
    assert_eq!(plan("?trigger_tokens=1")["count"], 4);
    ada.ok("POST", "/v1/sessions/s/messages", json!({"messages": [user("meanwhile")]}));
    let apply = |window: &Value, count: u64| {
        ada.send("POST", "/v1/sessions/s/compaction", &json!({"window": window, "count": count, "summary": "They spoke."}))
    };
    for count in [0, 9, 10] {
        assert_eq!(apply(&planned["window"], count).code(), "invalid_argument", "{count}");
    }
    let done = apply(&planned["window"], 4).json();
    assert_eq!((&done["archive_id"], &done["messages"]), (&json!("0001"), &json!(4)));
    assert_eq!(apply(&planned["window"], 4).code(), "conflict", "the window starts elsewhere now");
    let window = ada.get("/v1/sessions/s/messages?limit=all");
    assert_eq!(window["messages"].as_array().unwrap().len(), 6);
    assert_eq!(window["messages"][5]["content"], "meanwhile");
    assert_eq!(window["window"]["tokens"], done["tokens_after"]);
    assert_eq!(ada.get("/v1/sessions/s/messages?full=true")["messages"].as_array().unwrap().len(), 9);
    assert_eq!(ada.get("/v1/sessions/s/messages?archive=latest")["messages"].as_array().unwrap().len(), 4);
    assert_eq!(ada.get("/v1/sessions/s/messages?archive=0001&limit=1")["messages"][0]["content"], "secret 0");
    assert!(ada.send("GET", "/v1/sessions/s/memo/NOTES.md", &Value::Null).text().contains("They spoke."));
    // A plan for a session that was deleted and created again is not applied to the new one.
    let planned = plan("?force=true");
    ada.ok("DELETE", "/v1/sessions/s", Value::Null);
    fill(&ada, "s");
    assert_eq!(apply(&planned["window"], 4).code(), "conflict");
    for wrong in ["?compact_fraction=2", "?trigger_tokens=-1", "?force=maybe"] {
        assert_eq!(ada.send("GET", &format!("/v1/sessions/s/compaction{wrong}"), &Value::Null).code(), "invalid_argument", "{wrong}");
    }
}

#[test]
fn documents_and_tool_results_are_texts_with_tags() {
    let served = Served::closed();
    let ada = admin(&served);
    ada.open("s");
    for at in ["/v1/sessions/s/memo/TODO.md", "/v1/user-memo/USER.md"] {
        assert_eq!(ada.send("GET", at, &Value::Null).code(), "not_found");
        assert_eq!(ada.with("PUT", at, &[("if-none-match", "*")], b"one").status, 204);
        assert_eq!(ada.with("PUT", at, &[("if-none-match", "*")], b"one").status, 412);
        ada.ok("POST", at, json!(" two"));
        let read = ada.send("GET", at, &Value::Null);
        let tag = read.header("etag").unwrap();
        assert_eq!(read.text(), "one two");
        assert_eq!(ada.with("GET", at, &[("if-none-match", &tag)], b"").status, 304);
        assert_eq!(ada.with("PUT", at, &[("if-match", &tag)], b"three").status, 204);
        assert_eq!(ada.with("PUT", at, &[("if-match", &tag)], b"late").status, 412);
        assert_eq!(ada.with("PUT", at, &[], b"\xff").code(), "invalid_argument");
    }
    assert_eq!(ada.send("GET", "/v1/sessions/s/memo/USER.md", &Value::Null).code(), "invalid_argument");
    let index = ada.get("/v1/sessions/s/memory-index");
    let exists: Vec<bool> = index["documents"].as_array().unwrap().iter().map(|document| document["exists"].as_bool().unwrap()).collect();
    assert_eq!(exists, [true, false, true], "{index}");
    for id in ["a/b", "a%b", "é", "plain"] {
        let at = format!("/v1/sessions/s/tool-results/{}", encoded(id));
        ada.ok("PUT", &at, json!(id));
        assert_eq!(ada.send("GET", &at, &Value::Null).text(), id);
    }
    let (mut ids, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = ada.get(&format!("/v1/sessions/s/tool-results?limit=3{cursor}"));
        ids.extend(page["ids"].as_array().unwrap().iter().map(|id| id.as_str().unwrap().to_owned()));
        let Some(next) = page.get("cursor") else { break };
        cursor = format!("&cursor={}", encoded(next.as_str().unwrap()));
    }
    ids.sort();
    assert_eq!(ids, ["a%b", "a/b", "plain", "é"]);
}

#[test]
fn runs_are_recorded_and_a_session_moves_as_files() {
    let served = Served::closed();
    let ada = admin(&served);
    fill(&ada, "s");
    let trace = ada.get("/v1/sessions/s/trace");
    assert_eq!(trace["entries"][0]["envelope"]["event"]["type"], "error");
    let position = trace["entries"][0]["position"].as_str().unwrap();
    assert_eq!(ada.get(&format!("/v1/sessions/s/trace?after={position}"))["entries"], json!([]));
    let delta = json!({"envelope": {"id": "1", "timestamp": "t", "sequence": 1, "source": "runtime", "event": {"type": "text_delta"}}});
    assert_eq!(ada.ok("POST", "/v1/sessions/s/trace", delta).json(), json!({"position": null}));
    assert_eq!(ada.get("/v1/sessions/s/orchestration/events?limit=1")["entries"][0]["event"]["eventId"], "e1");
    assert_eq!(ada.get("/v1/sessions/s/orchestration/mailboxes/a/events")["entries"][0]["event"]["eventId"], "m1");
    assert_eq!(ada.get("/v1/sessions/s/orchestration/mailboxes/a/state")["state"]["processedEventCount"], 1);
    assert_eq!(ada.get("/v1/sessions/s/orchestration/mailboxes/new/state")["state"]["processedEventCount"], 0);
    assert_eq!(ada.get("/v1/sessions/s/orchestration/histories/a")["messages"], json!([user("x")]));
    assert_eq!(ada.get("/v1/sessions/s/orchestration/checkpoint")["snapshot"]["queuedInputs"], json!([]));
    assert_eq!(ada.get("/v1/sessions/s/orchestration/state")["activeAgents"], json!([]));

    let files = ada.get("/v1/sessions/s/export");
    assert!(files["files"]["messages.jsonl"].as_str().unwrap().contains("secret 7"), "{files}");
    assert_eq!(ada.send("POST", "/v1/sessions/s/import", &files).code(), "already_exists");
    ada.ok("DELETE", "/v1/sessions/s", Value::Null);
    let report = ada.ok("POST", "/v1/sessions/s/import", files.clone());
    assert_eq!((report.status, &report.json()["messages"]), (201, &json!(8)));
    assert_eq!(ada.get("/v1/sessions/s/export"), files);
    assert_eq!(ada.send("POST", "/v1/sessions/other/import", &files).code(), "invalid_argument", "the files are those of another session");
    assert_eq!(ada.send("POST", "/v1/sessions/other/import", &json!({"files": {}})).code(), "invalid_argument", "it was status 500");
}

/// Reads server-sent events until one matches. Returns the last id before it or with it, and the matching data.
fn event(lines: &mut impl Iterator<Item = std::io::Result<String>>, kind: &str) -> (String, String) {
    let (mut id, mut data) = (String::new(), String::new());
    for line in lines {
        let line = line.unwrap();
        if let Some(text) = line.strip_prefix("id: ") {
            id = text.to_owned();
        } else if let Some(text) = line.strip_prefix("data: ") {
            data = text.to_owned();
        } else if line.is_empty() && data.contains(kind) {
            return (id, data);
        }
    }
    panic!("the stream ended before `{kind}`");
}

#[test]
fn stream_of_a_session_reports_changes_and_resumes() {
    let served = Served::closed();
    let ada = admin(&served);
    ada.open("s");
    let lines = |query: &str| {
        let answer = ada.with("GET", &format!("/v1/sessions/s/events{query}"), &[], b"");
        assert_eq!((answer.status, answer.header("content-type").as_deref()), (200, Some("text/event-stream")));
        let reader = answer.response.into_body().into_with_config().limit(u64::MAX).reader();
        BufReader::new(reader).lines()
    };
    let mut live = lines("");
    let (start, _) = event(&mut live, "{}");
    ada.ok("POST", "/v1/sessions/s/messages", json!({"messages": [user("one"), user("two")], "usage": {"inputTokens": 1}}));
    assert_eq!(event(&mut live, "messages").1, r#"{"kind":"messages","from":0,"end":2}"#);
    assert_eq!(event(&mut live, "turns").1, r#"{"kind":"turns","from":0,"end":1}"#);
    ada.ok("PUT", "/v1/sessions/s/memo/TODO.md", json!("tea"));
    assert!(event(&mut live, "memo").1.contains("TODO.md"));
    ada.ok("POST", "/v1/sessions/s/trace", body("appendTrace"));
    event(&mut live, "trace");
    ada.ok("POST", "/v1/sessions/s/orchestration/commit", body("commitOrchestration"));
    event(&mut live, "orchestration");
    ada.ok("PATCH", "/v1/sessions/s", json!({"title": "t"}));
    event(&mut live, "description");

    // A reader that was away is told of everything since, whatever it was.
    let mut resumed = lines(&format!("?after={start}"));
    for kind in ["{}", "messages", "turns", "trace", "orchestration", "memo"] {
        event(&mut resumed, kind);
    }
    ada.ok("DELETE", "/v1/sessions/s", Value::Null);
    event(&mut live, "deleted");
    assert!(live.all(|line| line.is_ok()), "the stream ends");
    assert_eq!(ada.send("GET", "/v1/sessions/s/events", &Value::Null).code(), "not_found");
    // The position is that of a session which no longer exists.
    ada.open("s");
    let mut other = lines(&format!("?after={start}"));
    let first: Vec<String> = other.by_ref().take(1).map(Result::unwrap).collect();
    assert_eq!(first, ["event: reset"]);
    for wrong in ["", "x", "a.b.c.d.e.f", "1.2.3"] {
        assert_eq!(ada.send("GET", &format!("/v1/sessions/s/events?after={wrong}"), &Value::Null).code(), "invalid_argument", "{wrong}");
    }
}
