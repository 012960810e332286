//! Two servers and a terminal behind a proxy that refuses inbound connections: start there, continue here, rewind and compact, in both
//! directions, while connections are cut and machines are killed. No machine keeps a copy of what lives elsewhere.

use super::story::two_machines::{Machine, TENANT, runner, scope, sub_trace};
use super::story::{PATIENCE, anywhere};
use crate::elsewhere::proxy::Proxy;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use treehold::remote::{TunnelOptions, Tunnels};
use treehold::serve::{Access, Dial, Rights, ServeOptions};
use treehold::store::{NamespacesOptions, ScanEntry, ScanOptions, Store};
use treehold::traces::{
    AgentCall, ApiKey, Gate, NewMessage, Peer, Peers, PeersOptions, RunRequest, ScriptedRunner, Step, TraceAddress, TraceStatus,
};
use treehold::{MemoryStore, RemoteOptions};

/// Where the connections of the terminal pass: one proxy for each server that it dials, and one for those that want to call it.
struct Nat {
    to_cloud: Proxy,
    to_office: Proxy,
    inbound: Proxy,
}

impl Nat {
    async fn around(cloud: &Machine, office: &Machine) -> Self {
        let proxy = async |of: &Machine| Proxy::start(&url(of)).await;
        let inbound = proxy(cloud).await;
        inbound.close(true);
        Self { to_cloud: proxy(cloud).await, to_office: proxy(office).await, inbound }
    }

    /// Cuts all connections. New ones pass.
    fn cut(&self) {
        self.to_cloud.close(false);
        self.to_office.close(false);
    }
}

fn url(of: &Machine) -> String {
    format!("http://{}", of.address.unwrap())
}

fn memory() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new())
}

/// A runner whose agents say that they have begun, and wait at a gate, when they are asked to.
fn waiting(gate: &Gate) -> ScriptedRunner {
    runner().with_script("wait", [Step::say("begun"), Step::Pause(gate.clone()), Step::say("done")])
}

/// Starts a server that accepts the connection of the terminal. It knows `peers` by their URLs, and the terminal as `laptop`.
async fn server(name: &str, runner: ScriptedRunner, store: Arc<dyn Store>, address: std::net::SocketAddr, peers: Vec<Peer>) -> Machine {
    let tunnels = Tunnels::new(TunnelOptions::new());
    let of_tenant = tunnels.clone();
    let options = PeersOptions::new().with_tunnels(Arc::new(move |name| of_tenant.transport(Some(TENANT), name)));
    let peers = Peers::new(peers.into_iter().chain([Peer::dialling_in("laptop").unwrap()]), options).unwrap();
    let options = ServeOptions::new(address, scope()).with_tokens(true).with_tunnels(tunnels);
    Machine::start(name, Arc::new(runner), store, peers, options).await.unwrap()
}

async fn peer(name: &str, url: &str, of: &Machine) -> Peer {
    Peer::new(name, url, false).unwrap().with_key(ApiKey::text(of.token(Rights::new(Access::Write)).await.unwrap()))
}

/// Starts the terminal, which listens nowhere, dials both servers, and knows them by what the proxies pass on.
async fn terminal(runner: ScriptedRunner, store: Arc<dyn Store>, nat: &Nat, cloud: &Machine, office: &Machine) -> Machine {
    let mut peers = Vec::new();
    let mut dials = Vec::new();
    for (name, proxy, server) in [("cloud", &nat.to_cloud, cloud), ("office", &nat.to_office, office)] {
        peers.push(peer(name, &proxy.url(), server).await);
        let connect = server.token(Rights::new(Access::Read).with_connect_as(Some("laptop".to_owned()))).await.unwrap();
        let dial = Dial::new(proxy.url(), RemoteOptions::new().with_token(connect));
        dials.push(dial.with_rights(Some(Rights::new(Access::Write))));
    }
    let options = ServeOptions::new(anywhere(), scope()).with_dials(dials).with_listens(false);
    let peers = Peers::new(peers, PeersOptions::new()).unwrap();
    let terminal = Machine::start("laptop", Arc::new(runner), store, peers, options).await.unwrap();
    cloud.connected("laptop").await.unwrap();
    office.connected("laptop").await.unwrap();
    terminal
}

/// Returns whether any row of a store holds a text, in its key or value.
async fn holds(store: &Arc<dyn Store>, text: &str) -> bool {
    let mut all = NamespacesOptions::new();
    loop {
        let page = store.namespaces(all.clone()).await.unwrap();
        for namespace in &page.namespaces {
            let mut options = ScanOptions::new().with_values(true);
            loop {
                let rows = store.scan(namespace, options.clone()).await.unwrap();
                let has = |entry: &ScanEntry| match entry {
                    ScanEntry::Item(item) => item.key.contains(text) || String::from_utf8_lossy(&item.value).contains(text),
                    _ => false,
                };
                if rows.entries.iter().any(has) {
                    return true;
                }
                match rows.next {
                    Some(next) => options.start_after = Some(next),
                    None => break,
                }
            }
        }
        if !page.more {
            return false;
        }
        all.start_after = page.namespaces.last().cloned();
    }
}

/// Asks an agent until it completes: until the lease of a process that died ends.
async fn until_completed(machine: &Machine, call: AgentCall) -> Value {
    let asked = async {
        loop {
            let answer = machine.agent(call.clone()).await;
            if answer["status"] == "completed" {
                return answer;
            }
        }
    };
    tokio::time::timeout(PATIENCE, asked).await.unwrap()
}

async fn rewind(machine: &Machine, id: &TraceAddress, text: &str, after: u64) -> Option<String> {
    let mut request = RunRequest::default();
    request.messages.push(NewMessage::text("user", text));
    request.after_sequence = Some(after);
    machine.elsewhere.start(id, &request).await.unwrap();
    machine.elsewhere.wait(id, PATIENCE).await.unwrap().unwrap().summary
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_of_three_machines_continue_each_other_though_one_cannot_be_called() {
    let stores = [memory(), memory(), memory()];
    let [of_cloud, of_office, of_laptop] = &stores;
    let cloud = server("cloud", runner(), of_cloud.clone(), anywhere(), Vec::new()).await;
    let to_cloud = peer("cloud", &url(&cloud), &cloud).await;
    let office = server("office", runner(), of_office.clone(), anywhere(), vec![to_cloud]).await;
    let nat = Nat::around(&cloud, &office).await;
    let laptop = terminal(runner(), of_laptop.clone(), &nat, &cloud, &office).await;

    // Nobody can call the terminal: its only address refuses.
    let direct = Peers::new([Peer::new("direct", nat.inbound.url(), false).unwrap()], PeersOptions::new()).unwrap();
    let traces = treehold::traces::RemoteTraces::new(direct);
    let refused = treehold::traces::TraceStore::get_trace(&traces, &"@direct/x".parse().unwrap()).await.unwrap_err();
    assert_eq!(refused.kind(), treehold::ErrorKind::Unavailable, "{refused}");
    assert!(laptop.address.is_none());

    for (starts, owner, continues, id) in [
        (&laptop, &cloud, &office, "@cloud/lives-in-cloud"),
        (&cloud, &laptop, &office, "@laptop/lives-on-laptop"),
        (&office, &laptop, &cloud, "@laptop/lives-on-laptop-too"),
    ] {
        // Start there, under an id that its text is found by.
        let id: TraceAddress = id.parse().unwrap();
        let new = treehold::traces::NewTrace::new(format!("task {}", id.id())).with_id(id.clone());
        assert!(starts.traces.create_trace(new).await.unwrap().remote);
        let say = |text: &str| AgentCall::new(format!("{text} {}", id.id())).with_continue_from(id.to_string());
        let answer = starts.agent(say("one")).await;
        assert_eq!((answer["status"].as_str(), answer["sub_trace_id"].as_str()), (Some("completed"), Some(&*id.to_string())), "{answer}");
        // Continue from a third machine, whose registry knows the same name, and at home.
        assert_eq!(continues.agent(say("two")).await["summary"], format!(r#"3 messages, asked: "two {}""#, id.id()));
        let own = AgentCall::new("three").with_continue_from(id.id().to_string());
        assert_eq!(owner.agent(own).await["summary"], r#"5 messages, asked: "three""#);
        // Rewind and compact from either side.
        assert_eq!(rewind(starts, &id, "other", 2).await.as_deref(), Some(r#"3 messages, asked: "other""#));
        assert_eq!(rewind(continues, &id, "another", 4).await.as_deref(), Some(r#"5 messages, asked: "another""#));
        starts.agent(AgentCall::new("compact").with_continue_from(id.to_string())).await;
        let path = starts.path(&id).await.unwrap();
        assert_eq!(path[1], r#"user: "Summary: the offers were compared.""#);
        for machine in [owner, continues] {
            let id = if std::ptr::eq(machine, owner) { id.stripped() } else { id.clone() };
            assert_eq!(machine.path(&id).await.unwrap(), path);
        }
        // Only its owner has it.
        for (store, machine) in stores.iter().zip([&cloud, &office, &laptop]) {
            assert_eq!(holds(store, id.id().as_str()).await, std::ptr::eq(machine, owner), "{id}");
        }
    }
    assert_eq!((cloud.own_traces().await.unwrap().len(), office.own_traces().await.unwrap().len()), (1, 0));
    assert_eq!(laptop.own_traces().await.unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_survive_cut_connections_and_their_traces_survive_killed_machines() {
    let (in_cloud, on_laptop) = (Gate::new(), Gate::new());
    let [of_cloud, of_laptop] = [memory(), memory()];
    let mut cloud = server("cloud", waiting(&in_cloud), of_cloud.clone(), anywhere(), Vec::new()).await;
    let office = server("office", runner(), memory(), anywhere(), Vec::new()).await;
    let nat = Nat::around(&cloud, &office).await;
    let laptop = terminal(waiting(&on_laptop), of_laptop.clone(), &nat, &cloud, &office).await;

    // The connections are cut while agents run on both sides. The answers come all the same.
    let cut = async {
        in_cloud.arrived(1).await;
        on_laptop.arrived(1).await;
        nat.cut();
        cloud.connected("laptop").await.unwrap();
        in_cloud.open();
        on_laptop.open();
    };
    let (there, here, ()) = tokio::join!(
        laptop.agent(AgentCall::new("wait in the cloud").with_agent_url("@cloud")),
        cloud.agent(AgentCall::new("wait on the laptop").with_agent_url("@laptop")),
        cut
    );
    for (answer, place) in [(&there, "@cloud/"), (&here, "@laptop/")] {
        assert_eq!((answer["status"].as_str(), answer["summary"].as_str()), (Some("completed"), Some("done")), "{answer}");
        assert!(answer["sub_trace_id"].as_str().unwrap().starts_with(place), "{answer}");
    }

    // The terminal is killed in the middle of a run for the cloud, and comes back with its store.
    let gate = Gate::new();
    drop(laptop);
    let laptop = terminal(waiting(&gate), of_laptop.clone(), &nat, &cloud, &office).await;
    cloud.elsewhere = cloud.elsewhere.clone().with_away_max(Duration::from_secs(1));
    cloud.place = cloud.place.clone().with_peers(cloud.elsewhere.clone());
    let id = sub_trace(&here).unwrap();
    let call = AgentCall::new("wait again").with_continue_from(id.to_string());
    let (answer, ()) = tokio::join!(cloud.agent(call), async {
        gate.arrived(1).await;
        laptop.kill();
    });
    assert_eq!((answer["status"].as_str(), answer["sub_trace_id"].as_str()), (Some("failed"), Some(&*id.to_string())), "{answer}");
    let laptop = terminal(runner(), of_laptop, &nat, &cloud, &office).await;
    let found = cloud.traces.get_trace(&id).await.unwrap().unwrap();
    assert_eq!((found.status, found.total_messages), (TraceStatus::Running, 5));
    let call = AgentCall::new("go on").with_continue_from(id.to_string());
    assert_eq!(until_completed(&cloud, call).await["summary"], r#"6 messages, asked: "go on""#);

    // The same with the cloud, which the terminal calls.
    let mut laptop = laptop;
    laptop.elsewhere = laptop.elsewhere.clone().with_away_max(Duration::from_secs(1));
    laptop.place = laptop.place.clone().with_peers(laptop.elsewhere.clone());
    let (id, address) = (sub_trace(&there).unwrap(), cloud.address.unwrap());
    let gate = Gate::new();
    cloud.kill();
    let cloud = server("cloud", waiting(&gate), of_cloud.clone(), address, Vec::new()).await;
    cloud.connected("laptop").await.unwrap();
    let call = AgentCall::new("wait again").with_continue_from(id.to_string());
    let (answer, ()) = tokio::join!(laptop.agent(call), async {
        gate.arrived(1).await;
        cloud.kill();
    });
    assert_eq!((answer["status"].as_str(), answer["sub_trace_id"].as_str()), (Some("failed"), Some(&*id.to_string())), "{answer}");
    let cloud = server("cloud", runner(), of_cloud, address, Vec::new()).await;
    cloud.connected("laptop").await.unwrap();
    let call = AgentCall::new("go on").with_continue_from(id.to_string());
    assert_eq!(until_completed(&laptop, call).await["summary"], r#"6 messages, asked: "go on""#);
}
