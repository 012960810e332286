//! Runs of agents: without a runner, with one, in the background and awaited.

use super::{BASES, Caller, admin, user};
use crate::serve::{Served, within};
use serde_json::{Value, json};
use std::sync::Arc;
use treehold::serve::{Access, Rights};
use treehold::traces::{Gate, ScriptedRunner, Step};

fn with_runner(runner: ScriptedRunner) -> Served {
    Served::with(|options| options.with_tokens(true).with_trace_runner(Arc::new(runner)))
}

#[test]
fn server_without_a_runner_says_so() {
    let served = Served::closed();
    let ada = admin(&served);
    ada.fill("t");
    let before = ada.whole("t");
    for base in BASES {
        let run = json!({"messages": [user("go on")], "wait_ms": 10});
        for (action, body) in [("run", run), ("reflect", json!({"focus": "why"})), ("stop", Value::Null)] {
            let answer = ada.send("POST", &format!("{base}/t/{action}"), &body);
            assert_eq!(answer.status, 501);
            let problem = answer.json();
            assert_eq!((&problem["code"], &problem["may_have_effect"]), (&json!("unsupported"), &json!(false)));
            assert!(problem["detail"].as_str().unwrap().contains("runner"), "{problem}");
            assert_eq!(ada.send("POST", &format!("{base}/unknown/{action}"), &body).code(), "not_found");
        }
    }
    assert_eq!(ada.whole("t"), before, "nothing was written");
}

#[test]
fn run_continues_a_trace_and_is_awaited() {
    let served = with_runner(ScriptedRunner::new([Step::say("tea is ready")]).with_script("fail", [Step::Fail("no water".into())]));
    let ada = admin(&served);
    for (number, base) in BASES.into_iter().enumerate() {
        let trace = format!("t{number}");
        ada.create(&trace);
        let run = |body: Value| {
            let answer = ada.send("POST", &format!("{base}/{trace}/run"), &body);
            (answer.status, answer.json())
        };
        let (status, ended) = run(json!({"messages": [user("make tea")], "config": {"model": "m"}, "wait_ms": 30_000}));
        assert_eq!((status, ended), (200, json!({"trace_id": trace, "status": "completed", "summary": "tea is ready"})));
        let found = ada.get(&format!("{base}/{trace}"));
        assert_eq!(
            (&found["status"], &found["head_sequence"], &found["run_config"]["model"]),
            (&json!("completed"), &json!(2), &json!("m"))
        );
        // A rewind: another run after the first message.
        let (status, _) = run(json!({"messages": [user("again")], "after_sequence": 1, "wait_ms": 30_000}));
        assert_eq!(status, 200);
        let path = ada.get(&format!("{base}/{trace}/messages?mode=main_path"));
        assert_eq!(super::sequences(&path), [1, 3, 4]);
        let (status, failed) = run(json!({"messages": [user("fail")], "insert_after": 4, "wait_ms": 30_000}));
        assert_eq!((status, &failed["status"], &failed["error"]), (200, &json!("failed"), &json!("no water")));
        // Without a wait, the answer comes at once.
        let (status, started) = run(json!({"after_sequence": 4}));
        assert_eq!((status, &started["trace_id"], &started["status"]), (202, &json!(trace), &json!("running")));
        within(|| ada.get(&format!("{base}/{trace}"))["status"] == "completed");
        // A refused run leaves the trace as it was.
        let before = ada.whole(&trace);
        let mut refused = (409, Value::Null);
        // The run frees the trace a moment after it has written the status.
        within(|| {
            refused = run(json!({"messages": [user("x")], "after_sequence": 99}));
            refused.0 != 409
        });
        assert_eq!((refused.0, &refused.1["code"]), (400, &json!("invalid_argument")));
        assert_eq!(ada.whole(&trace), before);
    }
}

#[test]
fn reflection_is_a_run_beside_the_main_path() {
    let runner = ScriptedRunner::new([Step::say("tea is ready")]).with_script("what was wrong?", [Step::SayPath, Step::say("too hot")]);
    let served = with_runner(runner);
    let ada = admin(&served);
    for (number, base) in BASES.into_iter().enumerate() {
        let trace = format!("t{number}");
        ada.create(&trace);
        let post = |action: &str, body: Value| {
            let answer = ada.send("POST", &format!("{base}/{trace}/{action}"), &body);
            (answer.status, answer.json())
        };
        post("run", json!({"messages": [user("make tea")], "wait_ms": 30_000}));
        let before = ada.get(&format!("{base}/{trace}"));
        let (status, ended) = post("reflect", json!({"focus": "what was wrong?", "wait_ms": 30_000}));
        assert_eq!((status, ended), (200, json!({"trace_id": trace, "status": "completed", "summary": "too hot"})));
        // The same as a run of that branch, and another kind of branch.
        let (status, _) = post("run", json!({"branch_type": "evaluation", "messages": [user("good?")], "wait_ms": 30_000}));
        assert_eq!(status, 200);
        let after = ada.get(&format!("{base}/{trace}"));
        for kept in ["status", "head_sequence", "completed_at"] {
            assert_eq!(after[kept], before[kept], "{kept}");
        }
        assert_eq!(super::sequences(&ada.get(&format!("{base}/{trace}/messages?mode=main_path"))), [1, 2]);
        let all = ada.get(&format!("{base}/{trace}/messages"));
        let kinds: Vec<&Value> = all["messages"].as_array().unwrap()[2..].iter().map(|message| &message["branch_type"]).collect();
        assert_eq!(kinds, ["reflection", "reflection", "reflection", "evaluation", "evaluation"]);
        let before = ada.whole(&trace);
        for (action, refused) in
            [("reflect", json!({"after_sequence": 99})), ("run", json!({"branch_type": ""})), ("run", json!({"branch_type": 1}))]
        {
            let (status, refused) = post(action, refused);
            assert_eq!((status, &refused["code"]), (400, &json!("invalid_argument")));
        }
        assert_eq!(ada.whole(&trace), before);
    }
}

#[test]
fn trace_has_one_run_at_a_time_which_its_user_stops() {
    let gate = Gate::new();
    let served = with_runner(ScriptedRunner::new([Step::Pause(gate.clone()), Step::say("done")]));
    let ada = admin(&served);
    let bob = Caller::new(&served, "acme", "bob", Rights::new(Access::Admin));
    let reader = Caller::new(&served, "acme", "ada", Rights::new(Access::Read));
    ada.create("t");
    assert_eq!(ada.ok("POST", "/api/traces/t/stop", Value::Null), json!({"stopped": false}));
    let body = json!({"messages": [user("make tea")], "wait_ms": 1});
    let started = ada.send("POST", "/api/traces/t/run", &body);
    assert_eq!((started.status, started.json()["status"].clone()), (202, json!("running")));
    served.block_on(gate.arrived(1));
    let again = ada.send("POST", "/v1/traces/t/run", &body);
    assert_eq!((again.status, again.header("retry-after").as_deref()), (409, Some("1")));
    assert_eq!(again.code(), "conflict");
    for action in ["run", "stop"] {
        let path = format!("/api/traces/t/{action}");
        let refused = bob.send("POST", &path, &Value::Null);
        assert_eq!((refused.status, refused.json()["detail"].clone()), (403, json!("Cannot access other user's trace")));
        assert_eq!(reader.send("POST", &path, &Value::Null).status, 403);
    }
    assert_eq!(ada.get("/api/traces/t")["total_messages"], 1, "refused runs append nothing");
    assert_eq!(ada.ok("POST", "/v1/traces/t/stop", Value::Null), json!({"stopped": true}));
    assert_eq!(ada.get("/api/traces/t")["status"], "stopped");
    gate.open();
    let ended = ada.ok("POST", "/api/traces/t/run", json!({"messages": [user("again")], "wait_ms": 30_000}));
    assert_eq!(ended["status"], "completed");
}

#[test]
fn run_with_a_key_starts_once() {
    let gate = Gate::new();
    let served = with_runner(ScriptedRunner::new([Step::Pause(gate.clone()), Step::say("done")]));
    let ada = admin(&served);
    ada.create("t");
    ada.create("busy");
    let run = |trace: &str, key: &str| {
        let body = json!({"messages": [user("make tea")]}).to_string();
        ada.with("POST", &format!("/api/traces/{trace}/run"), &[("idempotency-key", key)], body.as_bytes())
    };
    let (first, again) = (run("t", "k"), run("t", "k"));
    assert_eq!((first.status, again.status, again.header("idempotency-replayed").as_deref()), (202, 202, Some("true")));
    assert_eq!(ada.get("/api/traces/t")["total_messages"], 1);
    // That the trace was busy is no outcome of a key: the same request succeeds later.
    assert_eq!(run("busy", "other").status, 202);
    assert_eq!(run("busy", "k2").status, 409);
    gate.open();
    within(|| ada.get("/api/traces/busy")["status"] == "completed");
    // The run frees the trace a moment after it has written the status.
    within(|| run("busy", "k2").status == 202);
}

#[test]
fn stopping_the_server_stops_its_runs() {
    let gate = Gate::new();
    let served = with_runner(ScriptedRunner::new([Step::Pause(gate.clone())]));
    let store = served.store.clone();
    let (ada, next) = (admin(&served), Served::on(store, |options| options.with_tokens(true)));
    ada.create("t");
    let (base, bearer) = (served.base.clone(), ada.bearer());
    let waiting = std::thread::spawn(move || {
        let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
        let request = agent.post(format!("{base}/api/traces/t/run")).header("authorization", bearer);
        request.send_json(json!({"messages": [user("make tea")], "wait_ms": 30_000})).unwrap().status().as_u16()
    });
    served.block_on(gate.arrived(1));
    let ada = Caller { served: &next, token: ada.token };
    served.stop().expect("in order");
    assert_eq!(waiting.join().unwrap(), 202, "the client learns that the run has not ended");
    assert_eq!(ada.get("/api/traces/t")["status"], "stopped");
}
