//! The story of two machines, of which one accepts no connections, with real servers.

#[path = "../../../examples/two_machines.rs"]
pub(super) mod two_machines;

use std::sync::Arc;
use std::time::Duration;
use treehold::MemoryStore;
use treehold::store::Store;
use treehold::traces::{AgentCall, Gate, NewMessage, RunRequest, ScriptedRunner, Step, TraceAddress, TraceStatus};
use two_machines::{Machine, runner, story, sub_trace};

/// Longer than anything in a story takes.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn anywhere() -> std::net::SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

async fn machines(of_cloud: ScriptedRunner, of_laptop: ScriptedRunner) -> (Machine, Machine) {
    let cloud = Machine::cloud(Arc::new(of_cloud), Arc::new(MemoryStore::new()), anywhere()).await.unwrap();
    let laptop = Machine::laptop(Arc::new(of_laptop), &cloud).await.unwrap();
    (cloud, laptop)
}

#[tokio::test(flavor = "multi_thread")]
async fn story_of_the_example_comes_to_its_end() {
    let told = story().await.unwrap();
    assert!(told.iter().any(|line| line.contains("Summary: the offers were compared.")), "{told:#?}");
    assert!(!told.iter().any(|line| line.contains("\"failed\"")), "{told:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_continue_each_other_in_both_directions_and_no_copy_is_kept() {
    let (cloud, laptop) = machines(runner(), runner()).await;
    assert!(laptop.address.is_none(), "the laptop accepts no connection");
    for (here, there, name) in [(&laptop, &cloud, "@cloud"), (&cloud, &laptop, "@laptop")] {
        let first = here.agent(AgentCall::new("one").with_agent_url(name)).await;
        assert_eq!((first["status"].as_str(), &first["remote"]), (Some("completed"), &true.into()), "{first}");
        let id = sub_trace(&first).unwrap();
        assert!(id.to_string().starts_with(&format!("{name}/")), "{id}");
        // With the location twice, and with the id alone.
        let again = AgentCall::new("two").with_continue_from(id.to_string()).with_agent_url(name);
        assert_eq!(here.agent(again).await["summary"], r#"3 messages, asked: "two""#);
        let local_id = AgentCall::new("three").with_continue_from(id.id().to_string()).with_agent_url(name);
        assert_eq!(here.agent(local_id).await["summary"], r#"5 messages, asked: "three""#);
        // The owner goes on with its own trace, under both of its names.
        for (number, own) in [(7, id.id().to_string()), (9, id.to_string())] {
            let answer = there.agent(AgentCall::new("own").with_continue_from(own)).await;
            assert_eq!(answer["summary"], format!(r#"{number} messages, asked: "own""#), "{answer}");
            assert!(answer.get("remote").is_none(), "{answer}");
        }
        assert_eq!(here.path(&id).await.unwrap(), there.path(&id.stripped()).await.unwrap());
        assert_eq!(there.own_traces().await.unwrap(), [id.id().to_string()]);
    }
    // Each side has its own trace, and no row of the other's.
    let (of_cloud, of_laptop) = (cloud.own_traces().await.unwrap(), laptop.own_traces().await.unwrap());
    assert_eq!((of_cloud.len(), of_laptop.len()), (1, 1));
    assert_ne!(of_cloud, of_laptop);
}

#[tokio::test(flavor = "multi_thread")]
async fn trace_elsewhere_is_rewound_and_compacted() {
    let (cloud, laptop) = machines(runner(), runner()).await;
    for (here, name) in [(&laptop, "@cloud"), (&cloud, "@laptop")] {
        let id = sub_trace(&here.agent(AgentCall::new("first").with_agent_url(name)).await).unwrap();
        here.agent(AgentCall::new("second").with_continue_from(id.to_string())).await;
        let mut rewind = RunRequest::default();
        rewind.messages.push(NewMessage::text("user", "other"));
        rewind.after_sequence = Some(2);
        here.elsewhere.start(&id, &rewind).await.unwrap();
        let ended = here.elsewhere.wait(&id, PATIENCE).await.unwrap().unwrap();
        assert_eq!(ended.summary.as_deref(), Some(r#"3 messages, asked: "other""#));
        here.agent(AgentCall::new("compact").with_continue_from(id.to_string())).await;
        let path = here.path(&id).await.unwrap();
        assert_eq!(path[0], r#"user: "first""#);
        assert_eq!(path[1], r#"user: "Summary: the offers were compared.""#);
        // Nothing is destroyed: the second question and all that was summarised are still there.
        let all = here.traces.get_messages(&id, &Default::default()).await.unwrap();
        assert!(all.messages.iter().any(|message| message.content.as_ref().is_some_and(|content| content.as_str() == r#""second""#)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_traces_and_places_are_values_and_reach_nobody() {
    let (_cloud, laptop) = machines(runner(), runner()).await;
    let unknown = laptop.agent(AgentCall::new("x").with_continue_from("@cloud/unknown")).await;
    assert_eq!(unknown, serde_json::json!({"status": "failed", "error": "Trace not found"}));
    let elsewhere = laptop.agent(AgentCall::new("x").with_continue_from("@cloud/t").with_agent_url("@laptop")).await;
    assert!(elsewhere["error"].as_str().unwrap().contains("does not live at"), "{elsewhere}");
    let nobody = laptop.agent(AgentCall::new("x").with_agent_url("agent://nobody.example")).await;
    assert!(nobody["status"] == "failed" && nobody.get("sub_trace_id").is_none(), "{nobody}");
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_whose_machine_is_killed_is_a_failure_with_its_trace_and_goes_on_after_the_restart() {
    let (gate, store): (Gate, Arc<dyn Store>) = (Gate::new(), Arc::new(MemoryStore::new()));
    let waits = ScriptedRunner::new([Step::say("begun"), Step::Pause(gate.clone())]);
    let cloud = Machine::cloud(Arc::new(waits), store.clone(), anywhere()).await.unwrap();
    let address = cloud.address.unwrap();
    let mut laptop = Machine::laptop(Arc::new(runner()), &cloud).await.unwrap();
    laptop.elsewhere = laptop.elsewhere.clone().with_away_max(Duration::from_secs(1));
    laptop.place = laptop.place.clone().with_peers(laptop.elsewhere.clone());
    let asked = AgentCall::new("long").with_agent_url("@cloud");
    let (answer, ()) = tokio::join!(laptop.agent(asked), async {
        gate.arrived(1).await;
        cloud.kill();
    });
    assert_eq!(answer["status"], "failed", "{answer}");
    let id: TraceAddress = sub_trace(&answer).unwrap();
    assert_eq!(id.location().unwrap().to_string(), "@cloud");

    let cloud = Machine::cloud(Arc::new(runner()), store, address).await.unwrap();
    cloud.connected("laptop").await.unwrap();
    let found = laptop.traces.get_trace(&id).await.unwrap().unwrap();
    assert_eq!((found.status, found.total_messages), (TraceStatus::Running, 2));
    // The lease of the process that died ends.
    let answer = tokio::time::timeout(PATIENCE, async {
        loop {
            let answer = laptop.agent(AgentCall::new("go on").with_continue_from(id.to_string())).await;
            if answer["status"] == "completed" {
                return answer;
            }
        }
    });
    assert_eq!(answer.await.unwrap()["summary"], r#"3 messages, asked: "go on""#);
    assert_eq!(laptop.traces.get_trace(&id).await.unwrap().unwrap().status, TraceStatus::Completed);
}
