//! One agent object that serves three users at once, is interrupted, shuts down in the middle of a call, and has the call resumed by
//! another process.
//!
//! ```text
//! cargo run --example stateless_agent
//! ```
//!
//! The model is a script: it searches twice and then answers. All that a call knows is in the state of its session, so the program that
//! resumes the last call is this program, started again with the path of the store.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::Arc;
use std::time::Duration;
use treehold::agent_state::call::{Call, CallOutcome, Interrupt, StatelessAgent, TurnRefusal};
use treehold::agent_state::{AgentState, Block, Entries, Json, Message, Role, RuntimeContext, StateSlot, ToolResultState};
use treehold::store::SqliteStore;
use treehold::{Result, Store};

/// How long the model reasons.
const REASONING: Duration = Duration::from_millis(200);

/// What bob asks before and after the shutdown.
const QUESTION: &str = "when does the last train leave?";

#[tokio::main]
async fn main() -> Result<()> {
    if let Some(path) = std::env::args().nth(1) {
        return resume(&path).await;
    }
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let path = directory.path().join("agents.db");
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&path)?);
    println!("store: shared between processes: {}", store.capabilities().shared);
    let agent = StatelessAgent::over(store, "acme", "helper")?;

    println!("\n== one agent, three users at once");
    let users = ["ada", "bob", "carol"];
    let calls = users.map(|user| ask(&agent, user, "hello"));
    for (user, outcome) in users.into_iter().zip(futures::future::join_all(calls).await) {
        println!("{user}: {outcome}");
    }

    println!("\n== ada interrupts her call");
    let call = tokio::spawn({
        let agent = agent.clone();
        async move { ask(&agent, "ada", "read the whole library").await }
    });
    tokio::time::sleep(REASONING * 3 / 2).await;
    let stop = Interrupt::user().with_message(Some(Json::of("that is enough")?));
    println!("it hit a running call of bob: {}", agent.interrupt(&slot("bob")?, stop.clone()).await?);
    println!("it hit a running call of ada: {}", agent.interrupt(&slot("ada")?, stop).await?);
    println!("ada: {}", call.await.expect("the call does not panic"));
    print_state(&agent, "ada").await?;

    println!("\n== the process shuts down in the middle of bob's call");
    let call = tokio::spawn({
        let agent = agent.clone();
        async move { ask(&agent, "bob", QUESTION).await }
    });
    tokio::time::sleep(REASONING / 2).await;
    agent.shutdown().begin(Some(Duration::from_secs(10)))?;
    println!("carol: {}", ask(&agent, "carol", "one more thing").await);
    println!("bob: {}", call.await.expect("the call does not panic"));
    agent.shutdown().terminated(None).await;
    println!("the shutdown is {}", agent.shutdown().state());
    print_state(&agent, "bob").await?;

    println!("\n== another process resumes it");
    let program = std::env::current_exe().expect("this program has a path");
    let status = std::process::Command::new(program).arg(&path).status().expect("this program can be run");
    assert!(status.success(), "the other process failed");
    Ok(())
}

/// Repeats bob's question in another process.
async fn resume(path: &str) -> Result<()> {
    let agent = StatelessAgent::over(Arc::new(SqliteStore::open(path)?), "acme", "helper")?;
    println!("bob: {}", ask(&agent, "bob", QUESTION).await);
    print_state(&agent, "bob").await
}

fn slot(user: &str) -> Result<StateSlot> {
    StateSlot::new(Some(user), "chat")
}

/// Runs one call, and tells how it ended.
async fn ask(agent: &StatelessAgent, user: &str, text: &str) -> String {
    let run = async {
        let input = vec![Message::user(text, jiff::Timestamp::now())];
        agent.call(RuntimeContext::new(slot(user)?), input, think).await
    };
    match run.await {
        Ok(CallOutcome::Done(answer)) => answer,
        Ok(CallOutcome::Interrupted(end)) => format!("interrupted; the agent says: {}", end.message.text()),
        Err(error) if TurnRefusal::of(&error.error) == Some(TurnRefusal::ShuttingDown) => format!("refused: {error}"),
        Err(error) => format!("failed: {error}"),
    }
}

/// The loop of the agent: it reasons and acts until it has an answer. Each `?` after a safe point may end the call.
async fn think(call: &mut Call) -> Result<String> {
    loop {
        let found = found(&call.state().lock());
        call.unless_stopped(tokio::time::sleep(REASONING)).await?;
        let now = jiff::Timestamp::now();
        if found >= 2 {
            let answer = format!("answered after {found} searches");
            call.state().lock().push(Message::assistant(&answer, now))?;
            return Ok(answer);
        }
        let id = format!("search-{}", call.state().lock().context().len());
        let search = Message::new(Role::Assistant, vec![Block::tool_use(&id, "search", Entries::new())], now)?;
        call.state().lock().push(search)?;
        call.safe_point().await?;
        let result = Message::tool_result(&id, "search", "a page", ToolResultState::Success, now);
        call.state().lock().push(result)?;
        call.safe_point().await?;
    }
}

/// Counts the searches since the user's last message that found something.
fn found(state: &AgentState) -> usize {
    let since_question = state.context().iter().rev().take_while(|message| message.role() != Some(Role::User));
    let blocks = since_question.flat_map(Message::content);
    blocks.filter(|block| matches!(block, Block::ToolResult(result) if result.state == ToolResultState::Success)).count()
}

async fn print_state(agent: &StatelessAgent, user: &str) -> Result<()> {
    let Some(state) = agent.state(&slot(user)?).await? else { return Ok(()) };
    println!("the state of {user}, stopped by a shutdown: {}", state.is_shutdown_interrupted());
    for message in state.context() {
        let text = message.text();
        let blocks = message.content().iter().map(|block| format!("({})", block.kind())).collect::<String>();
        println!("  {}: {}", message.role().map_or("?".into(), |role| role.to_string()), if text.is_empty() { blocks } else { text });
    }
    Ok(())
}
