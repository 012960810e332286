//! An agent host that keeps a session in SQLite, is killed while a sub-agent works, and resumes.
//!
//! ```text
//! cargo run --example agent_host
//! ```
//!
//! The program starts itself as the host, kills it in the middle, and then continues as the host. The host runs the same script both times:
//! everything that it stores is idempotent, so what is stored already is not stored again.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use async_trait::async_trait;
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use treehold::sessions::orchestration::{
    Agent, AgentRuntime, AgentSpawn, Delivery, InputEnvelope, ManagerOptions, OrchestrationManager, WaitKind, WaitRegistration,
};
use treehold::sessions::{AppendOptions, CompactOptions, Message, SessionRef, Sessions, SummarizeWith, Usage, session_memo};
use treehold::store::{NamespacesOptions, ScanOptions, SqliteStore};
use treehold::{BackendExt, Result, Store};

const TENANT: &str = "acme";
const USER: &str = "ada";
const SESSION: &str = "garden";

/// What the host prints when it is killed.
const KILL_ME: &str = "researcher: works on `frost`";

#[tokio::main]
async fn main() -> Result<()> {
    if let Some(directory) = std::env::args().nth(1) {
        return Host::open(Path::new(&directory), true)?.play().await;
    }
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    println!("== the host starts");
    run_and_kill(directory.path());
    println!("\n== it was killed; another host resumes");
    let host = Host::open(directory.path(), false)?;
    host.play().await?;
    println!("\n== what is stored where");
    host.print_rows().await
}

/// Runs this program as the host, and kills it in the middle.
fn run_and_kill(directory: &Path) {
    let program = std::env::current_exe().expect("this program has a path");
    let mut host = Command::new(program).arg(directory).stdout(Stdio::piped()).spawn().expect("this program can be run");
    let output = BufReader::new(host.stdout.take().expect("its output is piped"));
    for line in output.lines().map(|line| line.expect("a line")) {
        println!("{line}");
        if line == KILL_ME {
            break;
        }
    }
    host.kill().expect("the host runs");
    host.wait().expect("the host ended");
}

struct Host {
    store: Arc<dyn Store>,
    sessions: Sessions,
    session: SessionRef,
    /// Whether its sub-agent hangs, so that it can be killed in the middle.
    hangs: bool,
}

impl Host {
    fn open(directory: &Path, hangs: bool) -> Result<Self> {
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(directory.join("host.db"))?);
        Ok(Self { sessions: Sessions::new(store.clone()), session: SessionRef::new(TENANT, SESSION)?, store, hangs })
    }

    /// Runs the script.
    async fn play(&self) -> Result<()> {
        let session = self.sessions.get_or_create(TENANT, USER, "gardener", Some(SESSION)).await?;
        println!("session {SESSION}: {}", if session.created { "created" } else { "found" });
        for turn in 0..6 {
            self.turn(turn).await?;
        }
        self.compact().await?;
        let answer = self.ask_sub_agent(&["rain", "frost", "wind"]).await?;
        self.append("answer", &[Message::assistant(&answer, 7_000)]).await?;
        let window = self.sessions.load_with_budget(TENANT, SESSION, 100_000).await?;
        println!("the model now receives {} messages, the last of them: {}", window.len(), window[window.len() - 1].text());
        Ok(())
    }

    /// A question, a tool call with its result, and an answer: one commit.
    async fn turn(&self, number: i64) -> Result<()> {
        let (time, call) = (number * 1_000, format!("call_{number}"));
        let result = format!("Bed {number}: ") + &"well watered, ".repeat(40);
        self.sessions.write_tool_result(&self.session, &call, &result).await?;
        let messages = [
            Message::user(&format!("How is bed {number}?"), time),
            message(json!({"role": "assistant", "timestamp": time, "content": [
                {"type": "toolCall", "id": call, "name": "look", "arguments": {"bed": number}},
            ]}))?,
            message(
                json!({"role": "toolResult", "timestamp": time, "toolCallId": call, "toolName": "look", "isError": false, "content": [
                    {"type": "text", "text": result},
                ]}),
            )?,
            Message::assistant("It is well watered.", time),
        ];
        self.append(&format!("turn-{number}"), &messages).await
    }

    /// Appends the messages of a turn under a key. After a crash, the same key stores nothing again.
    async fn append(&self, key: &str, messages: &[Message]) -> Result<()> {
        let options = AppendOptions::new().with_idempotency_key(key).with_usage(Usage::of_tokens(400, 20)?);
        let appended = self.sessions.append(TENANT, SESSION, messages, &options).await?;
        let found = if appended.repeated { " (was stored)" } else { "" };
        println!("{key}: messages {:?}{found}", appended.positions);
        Ok(())
    }

    /// Replaces the oldest half of the window with a summary, if the window is long. The messages stay in an archive.
    async fn compact(&self) -> Result<()> {
        let model = SummarizeWith(|messages: Vec<Message>| async move { Ok(format!("{} messages about watered beds.", messages.len())) });
        let options = CompactOptions::new().with_trigger_tokens(800);
        match self.sessions.compact_if_needed(TENANT, SESSION, &model, &options).await? {
            Some(done) => println!("compacted {} messages: {} tokens became {}", done.messages, done.tokens_before, done.tokens_after),
            None => println!("nothing to compact"),
        }
        Ok(())
    }

    /// Gives a sub-agent its inputs and waits until it is done. Its mailbox keeps the inputs that it has not processed.
    async fn ask_sub_agent(&self, inputs: &[&str]) -> Result<String> {
        let persistence = Arc::new(self.sessions.orchestration(self.session.clone()));
        // A host that gives the same name after a restart need not wait for the lease of the killed one.
        let options = ManagerOptions::new().with_holder("host-1");
        let manager = OrchestrationManager::open(SESSION, persistence, Arc::new(Researcher { hangs: self.hangs }), options).await?;
        let run = manager.start_run(None, None).await?;
        if !manager.snapshot().await.agents.contains_key("researcher") {
            let (id, role) = ("researcher".to_owned(), "subagent".to_owned());
            let agent = AgentSpawn { id, run_id: None, task_id: None, display_name: None, role };
            manager.spawn_agent(&run.id, agent).await?;
            for input in inputs {
                manager.send_input("researcher", json!(input)).await?;
            }
        }
        let wait = WaitRegistration {
            id: "research".to_owned(),
            agent_id: "researcher".to_owned(),
            agent_ids: None,
            kind: WaitKind::AgentIdle,
            description: "the research is done".to_owned(),
            matching: None,
            timeout_at: None,
        };
        let outcome = manager.wait(wait).await?;
        manager.close().await?;
        Ok(format!("The garden is safe: {}", outcome["job"]["outputText"].as_str().unwrap_or_default()))
    }

    /// Prints the rows of the session by namespace, and its files.
    async fn print_rows(&self) -> Result<()> {
        let mut rows: BTreeMap<String, usize> = BTreeMap::new();
        for namespace in self.store.namespaces(NamespacesOptions::new()).await?.namespaces {
            let count = self.store.scan(&namespace, ScanOptions::new()).await?.entries.len();
            // The data of a session is beneath a random id.
            let shown: Vec<String> = namespace.components().map(|part| if part.len() == 36 { "ID".into() } else { part.into() }).collect();
            *rows.entry(shown.join("/")).or_default() += count;
        }
        rows.iter().for_each(|(namespace, count)| println!("{count:>4} rows in {namespace}"));
        let memo = session_memo(self.store.clone(), TENANT, USER, SESSION)?;
        println!("NOTES.md, which an agent reads at /memo/session/NOTES.md:\n{}", memo.read_text("/NOTES.md").await?);
        Ok(())
    }
}

fn message(json: serde_json::Value) -> Result<Message> {
    Message::parse(&json.to_string())
}

/// A sub-agent with a model that knows one answer.
struct Researcher {
    hangs: bool,
}

#[async_trait]
impl AgentRuntime for Researcher {
    async fn attach(&self, agent: &Agent) -> Result<()> {
        println!("{}: ready", agent.id);
        Ok(())
    }

    async fn deliver(&self, agent: &Agent, input: &InputEnvelope) -> Result<Delivery> {
        let input = input.payload.as_str().unwrap_or_default();
        println!("{}: works on `{input}`", agent.id);
        if self.hangs && input == "frost" {
            std::future::pending::<()>().await;
        }
        Ok(Delivery::completed(format!("no {input} is expected.")))
    }

    async fn detach(&self, _: &Agent) {}
}
