//! Agents in several processes over one store, and loops for them.

use crate::turns::support::{LEASE, Link, clock};
use async_trait::async_trait;
use std::sync::Arc;
use treehold_agent_state::call::{AgentOptions, Call, Shutdown, StatelessAgent, TurnGate, TurnOptions};
use treehold_agent_state::{
    AgentState, AgentStateStore, AgentStates, Block, DeleteOptions, DeleteSessionOptions, Entries, Json, Message, Role, RuntimeContext,
    SaveOptions, SessionIdPage, StateCapabilities, StateKey, StateSlot, StateVersion, ToolResultState, UserPage, VersionedState,
};
use treehold_core::Result;
use treehold_store::MemoryStore;

/// A process: an agent behind a link of its own.
#[derive(Debug, Clone)]
pub(super) struct Process {
    pub(super) agent: StatelessAgent,
    pub(super) link: Link,
    gate: TurnGate,
}

/// Makes processes that share a store.
pub(super) fn processes<const N: usize>(options: &AgentOptions) -> (MemoryStore, [Process; N]) {
    let clock = clock();
    let store = MemoryStore::with_clock(clock.clone());
    let processes = std::array::from_fn(|_| {
        let link = Link::new(&store);
        let shared = Arc::new(link.clone());
        let gate = TurnGate::with_options(shared.clone(), TurnOptions::new().with_lease(LEASE).with_clock(clock.clone()));
        let states = AgentStates::new(shared).for_agent("acme", "helper").unwrap();
        let agent = StatelessAgent::new(Arc::new(states), gate.clone(), "acme", "helper").unwrap();
        let agent = agent.with_options(options.clone().with_clock(clock.clone())).with_shutdown(Shutdown::new());
        Process { agent, link, gate }
    });
    (store, processes)
}

/// Returns the agent of a process over states that cannot be fenced, as those in the layouts of AgentScope.
pub(super) fn without_fences(process: &Process) -> StatelessAgent {
    let states = Unfenced(process.agent.states().clone());
    StatelessAgent::new(Arc::new(states), process.gate.clone(), "acme", "helper").unwrap()
}

#[derive(Debug)]
struct Unfenced(Arc<dyn AgentStateStore>);

impl std::fmt::Display for Unfenced {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("states without fences")
    }
}

#[async_trait]
impl AgentStateStore for Unfenced {
    fn capabilities(&self) -> StateCapabilities {
        self.0.capabilities().with_fences(false)
    }

    async fn save(&self, slot: &StateSlot, key: &str, value: &Json, options: SaveOptions) -> Result<Option<StateVersion>> {
        assert_eq!(options.fence, None);
        self.0.save(slot, key, value, options).await
    }

    async fn save_list(&self, slot: &StateSlot, key: &str, values: &[Json], options: SaveOptions) -> Result<Option<StateVersion>> {
        self.0.save_list(slot, key, values, options).await
    }

    async fn get(&self, slot: &StateSlot, key: &str) -> Result<Option<VersionedState>> {
        self.0.get(slot, key).await
    }

    async fn get_list(&self, slot: &StateSlot, key: &str) -> Result<Vec<Json>> {
        self.0.get_list(slot, key).await
    }

    async fn version(&self, slot: &StateSlot, key: &str) -> Result<Option<StateVersion>> {
        self.0.version(slot, key).await
    }

    async fn list_version(&self, slot: &StateSlot, key: &str) -> Result<Option<StateVersion>> {
        self.0.list_version(slot, key).await
    }

    async fn exists(&self, slot: &StateSlot) -> Result<bool> {
        self.0.exists(slot).await
    }

    async fn keys(&self, slot: &StateSlot) -> Result<Vec<StateKey>> {
        self.0.keys(slot).await
    }

    async fn delete_session(&self, slot: &StateSlot, options: DeleteSessionOptions) -> Result<()> {
        self.0.delete_session(slot, options).await
    }

    async fn delete(&self, slot: &StateSlot, key: &str, options: DeleteOptions) -> Result<()> {
        self.0.delete(slot, key, options).await
    }

    async fn session_ids(&self, user: Option<&str>, after: Option<&str>, limit: usize) -> Result<SessionIdPage> {
        self.0.session_ids(user, after, limit).await
    }

    async fn users(&self, after: Option<&str>, limit: usize) -> Result<UserPage> {
        self.0.users(after, limit).await
    }
}

pub(super) fn slot() -> StateSlot {
    StateSlot::new(Some("ada"), "s-1").unwrap()
}

pub(super) fn context() -> RuntimeContext {
    RuntimeContext::new(slot())
}

pub(super) fn said(text: &str) -> Vec<Message> {
    vec![Message::user(text, jiff::Timestamp::UNIX_EPOCH)]
}

pub(super) fn answer(call: &Call, text: &str) -> Result<()> {
    call.state().lock().push(Message::assistant(text, jiff::Timestamp::UNIX_EPOCH))
}

/// Adds a call of a tool, without its result.
pub(super) fn call_tool(call: &Call, id: &str) -> Result<()> {
    let block = Block::tool_use(id, "search", Entries::<Json>::new());
    call.state().lock().push(Message::new(Role::Assistant, vec![block], jiff::Timestamp::UNIX_EPOCH)?)
}

/// Adds the result of a call of a tool.
pub(super) fn tool_answers(call: &Call, id: &str) -> Result<()> {
    let message = Message::tool_result(id, "search", "found", ToolResultState::Success, jiff::Timestamp::UNIX_EPOCH);
    call.state().lock().push(message)
}

/// Returns the texts of a state's messages; a call or a result shows as the names of its blocks.
pub(super) fn texts(state: &AgentState) -> Vec<String> {
    let text = |message: &Message| {
        let text = message.text();
        if text.is_empty() { message.content().iter().map(|block| block.kind().into_owned()).collect() } else { text }
    };
    state.context().iter().map(text).collect()
}

pub(super) async fn saved(process: &Process) -> AgentState {
    process.agent.state(&slot()).await.unwrap().expect("it was saved")
}
