//! The tool `agent` on local traces. Agents elsewhere are in the tests of servers.

use crate::staged::Staged;
use crate::support::{SOON, asking, created, events, found, on, runs, traces};
use async_trait::async_trait;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use treehold_agent::tools::{Tool, ToolContext, ToolRegistry};
use treehold_agent::workspace::Workspace;
use treehold_core::error::{Error, Result};
use treehold_core::scope::Scope;
use treehold_store::{MemoryStore, Store};
use treehold_traces::{
    AgentCall, AgentCaller, AgentPlace, AgentPlaces, AgentTool, AgentToolOptions, ClaimRuns, Gate, HeldRun, Location, NewGoal,
    OrganizationAgents, OrganizationTraces, Peer, PeerRuns, Peers, PeersOptions, RunResult, Runs, ScriptedRunner, Step, StoredTraces,
    TraceAddress, TraceId, TraceStatus, TraceStore, Traces,
};
use treehold_tree::backend::StateBackend;

/// A tool whose agents play a script.
fn tool(runner: ScriptedRunner, traces: &StoredTraces) -> (AgentTool, AgentPlace) {
    let place = AgentPlace::of_runs(runs(runner, traces));
    (AgentTool::new(Arc::new(place.clone())), place)
}

fn sub_trace(answer: &Value) -> TraceAddress {
    answer["sub_trace_id"].as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn agent_gets_a_trace_and_its_answer_names_it() {
    let traces = traces();
    let (tool, place) = tool(ScriptedRunner::new([Step::SayPath]), &traces);
    let answer = tool.call(&place, &AgentCaller::new(), AgentCall::new("count")).await;
    assert_eq!(answer["status"], "completed");
    assert_eq!(answer["summary"], r#"1 messages, asked: "count""#);
    assert!(answer.get("remote").is_none() && answer.get("error").is_none(), "{answer}");
    let id = sub_trace(&answer);
    assert_eq!(found(&traces, &id).await.task.as_deref(), Some("count"));
    // The same agent goes on.
    let again = AgentCall::new("again").with_continue_from(id.to_string());
    let answer = tool.call(&place, &AgentCaller::new(), again).await;
    assert_eq!((answer["summary"].as_str(), sub_trace(&answer)), (Some(r#"3 messages, asked: "again""#), id));
}

#[tokio::test]
async fn unknown_trace_is_a_value_in_the_words_of_the_contract() {
    let (tool, place) = tool(ScriptedRunner::new([]), &traces());
    let call = AgentCall::new("x").with_continue_from("unknown");
    assert_eq!(tool.call(&place, &AgentCaller::new(), call).await, json!({"status": "failed", "error": "Trace not found"}));
}

#[tokio::test]
async fn wrong_arguments_are_values_and_start_nothing() {
    let traces = traces();
    let (tool, place) = tool(ScriptedRunner::new([]), &traces);
    let peers = Peers::new([Peer::dialling_in("laptop").unwrap()], PeersOptions::new()).unwrap();
    let place = place.with_peers(PeerRuns::new(peers, Arc::new(traces.clone())));
    let own = place.with_own_location(Location::agent("cloud").unwrap());
    created(&traces, "t").await;
    for (call, says) in [
        (AgentCall::new("x").with_continue_from("agent://h"), "bad trace id"),
        (AgentCall::new("x").with_continue_from("@nobody/t"), "`nobody`"),
        (AgentCall::new("x").with_agent_url("@nobody"), "`nobody`"),
        (AgentCall::new("x").with_agent_url("https://nobody.example"), "nobody.example"),
        (AgentCall::new("x").with_agent_url("nobody"), "agent_url"),
        (AgentCall::new("x").with_agent_url("https://h/path"), "host"),
        (AgentCall::new("x").with_agent_url("@cloud").with_continue_from("@nobody/t"), "does not live at this place"),
        (AgentCall::new("x").with_agent_url("@laptop").with_continue_from("@cloud/t"), "lives at this place and not at `@laptop`"),
        (AgentCall::new("x").with_task("y").with_continue_from("t"), "one task"),
        (AgentCall::default(), "1 to 16 tasks"),
    ] {
        let answer = tool.call(&own, &AgentCaller::new(), call.clone()).await;
        let error = answer["error"].as_str().unwrap_or_default();
        assert!(answer["status"] == "failed" && error.contains(says), "{call:?}: {answer}");
    }
    assert_eq!(traces.list_traces(&Default::default()).await.unwrap().total, 1);
    // This place under its own name.
    let call = AgentCall::new("x").with_agent_url("@cloud").with_continue_from("@cloud/t");
    assert_eq!(tool.call(&own, &AgentCaller::new(), call).await, json!({"status": "completed", "summary": "", "sub_trace_id": "t"}));
}

#[tokio::test]
async fn goal_of_the_caller_names_the_sub_traces() {
    let traces = traces();
    let parent = created(&traces, "parent").await;
    let (tool, place) = tool(ScriptedRunner::new([]), &traces);
    let goal = traces.add_goal(&parent, NewGoal::new("research")).await.unwrap();
    let caller = AgentCaller::new().with_trace(parent.clone(), Some(goal.id.clone()));
    let answer = tool.call(&place, &caller, AgentCall::new("a").with_task("b")).await;
    assert_eq!(answer["status"], "completed");
    let ids: Vec<TraceAddress> = answer["results"].as_array().unwrap().iter().map(sub_trace).collect();
    assert_eq!(ids.len(), 2);
    for id in &ids {
        let found = found(&traces, id).await;
        assert!(id.to_string().starts_with("parent@agent-"), "{id}");
        assert_eq!((found.parent_trace_id.as_ref(), found.parent_goal_id.as_ref()), (Some(&parent), Some(&goal.id)));
    }
    let mut named = traces.get_goal_tree(&parent).await.unwrap().get(&goal.id).unwrap().sub_trace_ids.clone();
    named.sort();
    let mut sorted = ids.clone();
    sorted.sort();
    assert_eq!(named, sorted);
    // Without a goal, the call itself becomes one.
    let caller = AgentCaller::new().with_trace(parent.clone(), None);
    let answer = tool.call(&place, &caller, AgentCall::new("alone")).await;
    let tree = traces.get_goal_tree(&parent).await.unwrap();
    let own = tree.goals.iter().find(|goal| goal.description == "alone").unwrap();
    assert_eq!((own.kind.as_deref(), &own.sub_trace_ids), (Some("agent_call"), &vec![sub_trace(&answer)]));
    let kinds: Vec<String> = events(&traces, &parent).await.into_iter().map(|event| event.event).collect();
    assert!(kinds.iter().filter(|kind| *kind == "sub_trace_started").count() == 3, "{kinds:?}");
    assert!(kinds.iter().filter(|kind| *kind == "sub_trace_completed").count() == 3, "{kinds:?}");
}

#[tokio::test]
async fn failed_agent_is_a_value_with_its_trace() {
    let traces = traces();
    let (tool, place) = tool(ScriptedRunner::new([Step::Fail("no network".to_owned())]), &traces);
    let answer = tool.call(&place, &AgentCaller::new(), AgentCall::new("x")).await;
    assert_eq!((answer["status"].as_str(), answer["error"].as_str()), (Some("failed"), Some("no network")));
    assert_eq!(found(&traces, &sub_trace(&answer)).await.status, TraceStatus::Failed);
    // One failed task of several.
    let runner = ScriptedRunner::new([Step::say("ok")]).with_script("bad", [Step::Fail("bad".to_owned())]);
    let place = AgentPlace::of_runs(runs(runner, &traces));
    let answer = tool.call(&place, &AgentCaller::new(), AgentCall::new("good").with_task("bad")).await;
    let statuses: Vec<&str> = answer["results"].as_array().unwrap().iter().map(|result| result["status"].as_str().unwrap()).collect();
    assert_eq!((answer["status"].as_str(), statuses), (Some("failed"), vec!["completed", "failed"]));
    // A place without a runner.
    let answer = tool.call(&AgentPlace::new(Arc::new(traces.clone())), &AgentCaller::new(), AgentCall::new("x")).await;
    assert!(answer["error"].as_str().is_some_and(|error| error.contains("no runner")), "{answer}");
    assert!(answer.get("sub_trace_id").is_some(), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn late_agent_is_stopped_at_the_deadline_and_its_trace_returned() {
    let (traces, gate) = (traces(), Gate::new());
    let (tool, place) = tool(ScriptedRunner::new([Step::Pause(gate)]), &traces);
    let tool = tool.with_options(AgentToolOptions::new().with_deadline(Duration::from_secs(5)));
    let answer = tool.call(&place, &AgentCaller::new(), AgentCall::new("x")).await;
    assert_eq!(answer["error"], "the agent did not end within 5s and was stopped; continue its trace to go on");
    assert_eq!(found(&traces, &sub_trace(&answer)).await.status, TraceStatus::Stopped);
}

/// The store does not answer, at each of the commits of a call in turn.
#[tokio::test(start_paused = true)]
async fn agent_whose_store_does_not_answer_is_a_value_at_the_deadline() {
    let mut reached = 0;
    loop {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let open = |store: &Arc<dyn Store>| Traces::new(store.clone()).for_user("acme", "ada").unwrap();
        let parent = created(&open(&store), "parent").await;
        let staged = Staged::before(&store, reached, std::future::pending);
        let silent: Arc<dyn Store> = staged.clone();
        let (tool, place) = tool(ScriptedRunner::new([Step::say("done")]), &open(&silent));
        let tool = tool.with_options(AgentToolOptions::new().with_deadline(Duration::from_secs(5)));
        let caller = AgentCaller::new().with_trace(parent, None);
        let answered = tokio::time::timeout(Duration::from_secs(120), tool.call(&place, &caller, AgentCall::new("x"))).await;
        let answer = answered.unwrap_or_else(|_| panic!("no answer when commit {reached} hangs"));
        assert!(["completed", "failed"].contains(&answer["status"].as_str().unwrap()), "{answer}");
        assert!(sub_trace(&answer).to_string().starts_with("parent@agent-"), "{answer}");
        if !staged.was_reached() {
            assert_eq!(answer["status"], "completed");
            break;
        }
        reached += 1;
    }
    assert!(reached >= 8, "{reached}");
}

#[tokio::test]
async fn agent_of_a_caller_that_is_stopped_is_stopped_too() {
    let (traces, gate) = (traces(), Gate::new());
    let parent = created(&traces, "parent").await;
    let waiting = AgentCall::new("inner");
    let runner = ScriptedRunner::new([Step::CallAgent(waiting)]).with_script("inner", [Step::Pause(gate.clone())]);
    let (tool, _) = tool(runner.clone(), &traces);
    let runs = on(&Runs::new(Arc::new(runner.with_agent_tool(Arc::new(tool)))), &traces);
    runs.start(&parent, asking("outer")).await.unwrap();
    gate.arrived(1).await;
    assert!(runs.stop(&parent).await.unwrap());
    let inner = traces.get_goal_tree(&parent).await.unwrap().goals[0].sub_trace_ids[0].clone();
    assert_eq!(runs.wait(&inner, SOON).await.unwrap(), Some(RunResult::stopped("the run was stopped")));
    assert_eq!(found(&traces, &inner).await.status, TraceStatus::Stopped);
}

/// Holds each claim back until a gate opens.
#[derive(Debug)]
struct Slow {
    traces: StoredTraces,
    arrivals: watch::Sender<usize>,
    is_open: watch::Sender<bool>,
}

#[async_trait]
impl ClaimRuns for Slow {
    async fn claim(&self, trace: &TraceId, lease: Duration) -> Result<Box<dyn HeldRun>> {
        self.arrivals.send_modify(|arrivals| *arrivals += 1);
        self.is_open.subscribe().wait_for(|is_open| *is_open).await.map_err(|_| Error::unsupported("no gate"))?;
        ClaimRuns::claim(&self.traces, trace, lease).await
    }
}

/// The run begins after its caller has left, when nobody has a handle of it.
#[tokio::test(start_paused = true)]
async fn agent_whose_caller_leaves_while_it_starts_is_stopped() {
    let (traces, gate) = (traces(), Gate::new());
    let slow = Arc::new(Slow { traces: traces.clone(), arrivals: watch::Sender::new(0), is_open: watch::Sender::new(false) });
    let runs = runs(ScriptedRunner::new([Step::Pause(gate)]), &traces).with_claims(slow.clone());
    let (tool, place) = (AgentTool::new(Arc::new(AgentPlace::new(Arc::new(traces.clone())))), AgentPlace::of_runs(runs.clone()));
    let call = tokio::spawn(async move { tool.call(&place, &AgentCaller::new(), AgentCall::new("x")).await });
    slow.arrivals.subscribe().wait_for(|arrivals| *arrivals == 1).await.unwrap();
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    slow.is_open.send_replace(true);
    let trace = traces.list_traces(&Default::default()).await.unwrap().traces[0].trace_id.clone();
    assert_eq!(runs.wait(&trace, SOON).await.unwrap(), Some(RunResult::stopped("the run was stopped")));
    assert_eq!(found(&traces, &trace).await.status, TraceStatus::Stopped);
}

/// The tool and the runs of a server know the location of the server from its traces.
#[tokio::test]
async fn agents_at_the_own_location_of_an_organization_are_local() {
    for (own, url) in [
        (Location::agent("cloud").unwrap(), "@cloud"),
        (Location::host("cloud.example:8000").unwrap(), "https://Cloud.example:8000/"),
        (Location::host("cloud.example").unwrap(), "agent://cloud.example:443"),
    ] {
        let organization = OrganizationTraces::new(Traces::new(Arc::new(MemoryStore::new())), "acme").with_own_location(own);
        let script = [Step::CallAgent(AgentCall::new("inner").with_agent_url(url))];
        let runner = ScriptedRunner::new([Step::say("done")]).with_script("outer", script);
        let places = OrganizationAgents::new(organization.clone(), None);
        let runner = runner.with_agent_tool(Arc::new(AgentTool::new(Arc::new(places))));
        let agents = OrganizationAgents::new(organization.clone(), Some(Runs::new(Arc::new(runner))));
        let scope = Scope::new().with_tenant("acme").with_user("ada");
        let (place, tool) = (agents.of(Some(&scope)).await.unwrap(), AgentTool::new(Arc::new(agents)));
        let outer = tool.call(&place, &AgentCaller::new(), AgentCall::new("outer").with_agent_url(url)).await;
        assert_eq!((outer["status"].as_str(), outer.get("remote")), (Some("completed"), None), "{outer}");
        // The run itself starts an agent at the same location.
        let traces = organization.for_user("acme", "ada").unwrap();
        let said = crate::support::messages(&*traces, &sub_trace(&outer)).await;
        let (role, answer, _) = said.last().unwrap();
        assert!(role == "tool" && answer.contains("completed") && !answer.contains("remote"), "{answer}");
        assert_eq!(traces.list_traces(&Default::default()).await.unwrap().total, 2);
    }
}

#[tokio::test]
async fn tasks_of_a_call_run_at_the_same_time_up_to_the_bound() {
    let (traces, gate) = (traces(), Gate::new());
    let (tool, place) = tool(ScriptedRunner::new([Step::Pause(gate.clone())]), &traces);
    let tool = tool.with_options(AgentToolOptions::new().with_tasks_max(3, 2));
    let call = AgentCall::new("a").with_task("b").with_task("c");
    let answered = tokio::spawn(async move { tool.call(&place, &AgentCaller::new(), call).await });
    gate.arrived(2).await;
    assert_eq!(traces.list_traces(&Default::default()).await.unwrap().total, 2);
    gate.open();
    let answer = answered.await.unwrap();
    assert_eq!((answer["status"].as_str(), answer["results"].as_array().unwrap().len()), (Some("completed"), 3));
}

#[tokio::test]
async fn registered_tool_takes_one_task_or_several_and_finds_the_trace_of_its_caller() {
    let traces = traces();
    created(&traces, "t").await;
    let (tool, _) = tool(ScriptedRunner::new([Step::say("done")]), &traces);
    assert_eq!(tool.info().name, "agent");
    let (tools, tree) = (ToolRegistry::new().with_tool(tool).unwrap(), StateBackend::new());
    let scope = Scope::new().with_tenant("acme").with_user("ada").with_thread("t");
    let context = ToolContext::new(&tree).with_scope(&scope);
    for (task, results) in [(json!("one"), 1), (json!(["one", "two"]), 2)] {
        let call = tools.from_json("agent", json!({"task": task, "context": "note"})).unwrap();
        let output = call.run_in(&context).await;
        let data = output.data.unwrap();
        assert!(!output.is_error && data["status"] == "completed", "{data}");
        let first = if results == 1 { &data } else { &data["results"][0] };
        let found = found(&traces, &sub_trace(first)).await;
        assert_eq!(found.parent_trace_id, Some("t".parse().unwrap()));
        assert_eq!(found.run_config.unwrap().as_str(), r#"{"context":"note"}"#);
    }
}

#[tokio::test]
async fn agents_that_start_each_other_without_end_come_to_one() {
    let traces = traces();
    let parent = created(&traces, &"p".repeat(200)).await;
    let runner = ScriptedRunner::new([Step::CallAgent(AgentCall::new("deeper"))]);
    let (tool, _) = tool(runner.clone(), &traces);
    let runs = on(&Runs::new(Arc::new(runner.with_agent_tool(Arc::new(tool)))), &traces);
    let ended = runs.start(&parent, asking("deeper")).await.unwrap().wait(SOON).await.unwrap().unwrap();
    assert_eq!(ended.status, TraceStatus::Completed);
    assert!(traces.list_traces(&Default::default()).await.unwrap().total <= 3);
}

#[tokio::test]
async fn workspace_offers_the_tool_to_each_user_with_their_own_traces() {
    let local = Traces::new(Arc::new(MemoryStore::new()));
    let runs = Runs::new(Arc::new(ScriptedRunner::new([Step::SayPath])));
    let agents = OrganizationAgents::new(OrganizationTraces::new(local.clone(), "acme"), Some(runs));
    let workspace = Workspace::builder().tool(AgentTool::new(Arc::new(agents))).unwrap().build();
    let mut ids = Vec::new();
    for user in ["ada", "bob"] {
        let traces = local.for_user("acme", user).unwrap();
        created(&traces, &format!("of-{user}")).await;
        let scope = Scope::new().with_tenant("acme").with_user(user).with_thread(format!("of-{user}"));
        let session = workspace.session(scope).await.unwrap();
        let call = workspace.tools().from_json("agent", json!({"task": "count"})).unwrap();
        let data = session.call(call).await.data.unwrap();
        assert_eq!(data["summary"], r#"1 messages, asked: "count""#);
        let id = sub_trace(&data);
        assert!(id.to_string().starts_with(&format!("of-{user}@agent-")), "{id}");
        assert_eq!(traces.list_traces(&Default::default()).await.unwrap().total, 2);
        ids.push(id);
    }
    // The agent of another user is no agent that can be continued.
    let scope = Scope::new().with_tenant("acme").with_user("bob").with_thread("of-bob");
    let session = workspace.session(scope).await.unwrap();
    let call = workspace.tools().from_json("agent", json!({"task": "x", "continue_from": ids[0].to_string()})).unwrap();
    let data = session.call(call).await.data.unwrap();
    assert_eq!(data["error"], "Cannot access other user's trace", "{data}");
    // A caller without a user has no agents.
    let session = workspace.session(Scope::new().with_thread("t")).await.unwrap();
    let call = workspace.tools().from_json("agent", json!({"task": "x"})).unwrap();
    assert_eq!(session.call(call).await.error.unwrap().code, "permission_denied");
}
