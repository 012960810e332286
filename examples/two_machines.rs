//! Two machines and one story: agents on a server in the cloud and on a laptop behind NAT start work on each other, and go on with it.
//!
//! ```sh
//! cargo run --example two_machines
//! ```
//!
//! The cloud listens on a loopback address. The laptop listens nowhere: it dials the cloud, which sends its requests back over that
//! connection. A trace lives where it was created, and the other side holds no copy of it.

#![allow(clippy::print_stdout, reason = "a separate program, which tells what it does")]

use serde_json::Value;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use treehold::mcp::McpOptions;
use treehold::remote::{TunnelOptions, Tunnels};
use treehold::serve::{Access, Dial, HttpServer, Rights, ServeOptions, TokenBook};
use treehold::store::Store;
use treehold::traces::{
    AgentCall, AgentCaller, AgentPlace, AgentTool, ApiKey, Location, Message, NewMessage, OrganizationTraces, PathQuery, Peer, PeerRuns,
    Peers, PeersOptions, RunRequest, Runs, RunsOptions, ScriptedRunner, Step, TraceAddress, TraceRunner, TraceStore, Traces, TracesQuery,
};
use treehold::{Error, ErrorKind, MemoryStore, RemoteOptions, Result, Scope, Workspace};

pub(crate) const TENANT: &str = "acme";
const USER: &str = "ada";

/// How long each side may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server with a runner of agents, in a runtime of its own, so that it can be killed.
pub(crate) struct Machine {
    /// The traces that its agents reach.
    pub(crate) traces: Arc<dyn TraceStore>,
    /// Where its agents start others.
    pub(crate) place: AgentPlace,
    /// Its runs of traces that live elsewhere.
    pub(crate) elsewhere: PeerRuns,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) address: Option<SocketAddr>,
    pub(crate) tunnels: Tunnels,
    runtime: Option<Runtime>,
    stop: Option<oneshot::Sender<()>>,
}

impl Machine {
    /// Starts the cloud, which listens on an address and accepts the laptop's connection.
    pub(crate) async fn cloud(runner: Arc<dyn TraceRunner>, store: Arc<dyn Store>, address: SocketAddr) -> Result<Self> {
        let tunnels = Tunnels::new(TunnelOptions::new());
        let of_tenant = tunnels.clone();
        let options = PeersOptions::new().with_tunnels(Arc::new(move |name| of_tenant.transport(Some(TENANT), name)));
        let peers = Peers::new([Peer::dialling_in("laptop")?], options)?;
        Self::start("cloud", runner, store, peers, ServeOptions::new(address, scope()).with_tokens(true).with_tunnels(tunnels)).await
    }

    /// Starts the laptop, which listens nowhere and dials the cloud.
    pub(crate) async fn laptop(runner: Arc<dyn TraceRunner>, cloud: &Self) -> Result<Self> {
        let address = cloud.address.ok_or_else(|| Error::unsupported("the cloud listens nowhere"))?;
        let url = format!("http://{address}");
        let peer = Peer::new("cloud", &url, false)?.with_key(ApiKey::text(cloud.token(Rights::new(Access::Write)).await?));
        let peers = Peers::new([peer], PeersOptions::new())?;
        let connect = cloud.token(Rights::new(Access::Read).with_connect_as(Some("laptop".to_owned()))).await?;
        let dial = Dial::new(&url, RemoteOptions::new().with_token(connect)).with_rights(Some(Rights::new(Access::Write)));
        let options = ServeOptions::new(([127, 0, 0, 1], 0).into(), scope()).with_dials(vec![dial]).with_listens(false);
        let laptop = Self::start("laptop", runner, Arc::new(MemoryStore::new()), peers, options).await?;
        cloud.connected("laptop").await?;
        Ok(laptop)
    }

    pub(crate) async fn start(
        name: &str,
        runner: Arc<dyn TraceRunner>,
        store: Arc<dyn Store>,
        peers: Peers,
        options: ServeOptions,
    ) -> Result<Self> {
        let local = Traces::new(store.clone());
        let own = Location::agent(name)?;
        let organization =
            OrganizationTraces::new(local.clone(), TENANT).with_own_location(own.clone()).with_peers(peers.clone(), None, None);
        let traces = organization.for_user(TENANT, USER)?;
        let elsewhere = PeerRuns::new(peers, traces.clone());
        let runs = Runs::with_options(runner, RunsOptions::new().with_lease(Duration::from_secs(1)));
        let here = runs.on((Some(TENANT.to_owned()), Some(USER.to_owned())), traces.clone());
        let here = here.with_claims(Arc::new(local.for_user(TENANT, USER)?)).with_own_location(own).with_peers(elsewhere.clone());
        let tunnels = options.tunnels.clone().unwrap_or_else(|| Tunnels::new(TunnelOptions::new()));
        let options = options.with_store(store.clone()).with_organization_traces(organization).with_trace_runs(runs);
        let server = HttpServer::bind(Workspace::builder().build(), McpOptions::new(scope()), options).await?;
        let address = server.address().ok();
        let runtime = Runtime::new().map_err(|error| Error::new(ErrorKind::Internal, "no runtime").with_source(error))?;
        let (stop, stopped) = oneshot::channel::<()>();
        runtime.spawn(async move {
            let _ = server.run(async { drop(stopped.await) }).await;
        });
        let place = AgentPlace::of_runs(here);
        Ok(Self { traces, place, elsewhere, store, address, tunnels, runtime: Some(runtime), stop: Some(stop) })
    }

    /// Creates a token.
    pub(crate) async fn token(&self, rights: Rights) -> Result<String> {
        let scope = Scope::new().with_tenant(TENANT).with_user(USER);
        Ok(TokenBook::new(self.store.clone()).create(scope, rights, None, None).await?.1)
    }

    /// Waits until a machine is connected.
    pub(crate) async fn connected(&self, name: &str) -> Result<()> {
        let connected = async {
            while !self.tunnels.is_connected(Some(TENANT), name) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let late = |_| Error::new(ErrorKind::Deadline, format!("`{name}` did not connect"));
        tokio::time::timeout(PATIENCE, connected).await.map_err(late)
    }

    /// Gives a task to an agent by the tool `agent`.
    pub(crate) async fn agent(&self, call: AgentCall) -> Value {
        AgentTool::new(Arc::new(self.place.clone())).call(&self.place, &AgentCaller::new(), call).await
    }

    /// Returns the ids of the traces that live here.
    pub(crate) async fn own_traces(&self) -> Result<Vec<String>> {
        let page = self.traces.list_traces(&TracesQuery::default()).await?;
        Ok(page.traces.iter().map(|trace| trace.trace_id.to_string()).collect())
    }

    /// Returns the roles and contents on the main path of a trace.
    pub(crate) async fn path(&self, trace: &TraceAddress) -> Result<Vec<String>> {
        let page = self.traces.get_main_path(trace, &PathQuery::default()).await?;
        let content = |message: &Message| message.content.as_ref().map_or_else(String::new, |content| content.as_str().to_owned());
        Ok(page.messages.iter().map(|message| format!("{}: {}", message.role, content(message))).collect())
    }

    /// Ends the machine as a power cut does: nothing more is written.
    #[allow(dead_code, reason = "only the test that plays this story kills a machine")]
    pub(crate) fn kill(mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Its port is free once its threads have ended. Only a thread without a runtime may wait for that.
            let ended = std::thread::spawn(move || runtime.shutdown_timeout(Duration::from_secs(5)));
            ended.join().expect("the end of a runtime does not panic");
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

pub(crate) fn scope() -> Scope {
    Scope::new().with_tenant(TENANT).with_user(USER).with_thread("default")
}

/// The agent of both machines. It says what it was asked, and compacts its path when it is asked to.
pub(crate) fn runner() -> ScriptedRunner {
    let compact = Step::Compact { keep_first: 1, summary: "Summary: the offers were compared.".to_owned() };
    ScriptedRunner::new([Step::SayPath]).with_script("compact", [compact, Step::SayPath])
}

/// Returns the trace that an answer of the tool names.
pub(crate) fn sub_trace(answer: &Value) -> Result<TraceAddress> {
    answer["sub_trace_id"].as_str().unwrap_or_default().parse()
}

/// Plays the story, and returns what happened, line by line.
pub(crate) async fn story() -> Result<Vec<String>> {
    let mut told = Vec::new();
    let cloud = Machine::cloud(Arc::new(runner()), Arc::new(MemoryStore::new()), ([127, 0, 0, 1], 0).into()).await?;
    let laptop = Machine::laptop(Arc::new(runner()), &cloud).await?;

    let answer = laptop.agent(AgentCall::new("compare the offers").with_agent_url("@cloud")).await;
    let in_cloud = sub_trace(&answer)?;
    told.push(format!("laptop starts an agent in the cloud: {answer}"));
    let answer = laptop.agent(AgentCall::new("which is cheapest?").with_continue_from(in_cloud.to_string())).await;
    told.push(format!("laptop goes on with it: {answer}"));

    let answer = cloud.agent(AgentCall::new("read the logs").with_agent_url("@laptop")).await;
    let on_laptop = sub_trace(&answer)?;
    told.push(format!("cloud starts an agent on the laptop, which listens nowhere: {answer}"));
    let answer = cloud.agent(AgentCall::new("only the errors").with_continue_from(on_laptop.to_string())).await;
    told.push(format!("cloud goes on with it: {answer}"));
    let answer = laptop.agent(AgentCall::new("and the warnings").with_continue_from(on_laptop.id().to_string())).await;
    told.push(format!("back on the laptop, the same trace is a local one: {answer}"));

    let mut rewind = RunRequest::default();
    rewind.messages.push(NewMessage::text("user", "which is best?"));
    rewind.after_sequence = Some(2);
    laptop.elsewhere.start(&in_cloud, &rewind).await?;
    let ended = laptop.elsewhere.wait(&in_cloud, PATIENCE).await?;
    told.push(format!("laptop rewinds the trace in the cloud to its second message: {:?}", ended.and_then(|ended| ended.summary)));
    laptop.agent(AgentCall::new("compact").with_continue_from(in_cloud.to_string())).await;
    told.push("the agent in the cloud compacts its path:".to_owned());
    told.extend(laptop.path(&in_cloud).await?.into_iter().map(|line| format!("  {line}")));

    told.push(format!("in the cloud live {:?}", cloud.own_traces().await?));
    told.push(format!("on the laptop live {:?}", laptop.own_traces().await?));
    Ok(told)
}

#[allow(dead_code, reason = "a test plays the story too")]
#[tokio::main]
async fn main() -> Result<()> {
    for line in story().await? {
        println!("{line}");
    }
    Ok(())
}
