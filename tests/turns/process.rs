//! A process that runs calls of one agent. It reads commands from its standard input and writes what happens to its standard output.

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};
use tokio::io::{AsyncBufReadExt, BufReader};
use treehold::Store;
use treehold::agent_state::call::{AgentOptions, Call, CallOutcome, Interrupt, StatelessAgent, TurnGate, TurnOptions, TurnRefusal};
use treehold::agent_state::{AgentStates, Block, ConflictPolicy, Entries, Message, Role, RuntimeContext, StateSlot, ToolResultState};
use treehold::store::{SqliteOptions, SqliteStore};

/// How long a turn outlives its process here.
pub(crate) const LEASE: Duration = Duration::from_secs(3);

/// What the lines of a process start with.
pub(crate) const MARK: &str = "@@ ";

const ENGINE: &str = "TREEHOLD_TURNS_ENGINE";
const URL: &str = "TREEHOLD_TURNS_URL";
const NAME: &str = "TREEHOLD_TURNS_NAME";

/// A store that several processes open.
pub(crate) struct Place {
    pub(crate) engine: &'static str,
    pub(crate) url: String,
    /// The schema, the prefix or the path.
    pub(crate) name: String,
}

impl Place {
    /// Starts a process over the store.
    pub(crate) fn start(&self) -> std::process::Command {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["process_that_runs_calls", "--exact", "--ignored", "--nocapture"]);
        command.env(ENGINE, self.engine).env(URL, &self.url).env(NAME, &self.name);
        command
    }

    /// Opens the store in this process.
    pub(crate) async fn open(&self) -> Arc<dyn Store> {
        open(self.engine, &self.url, &self.name).await
    }
}

async fn open(engine: &str, url: &str, name: &str) -> Arc<dyn Store> {
    match engine {
        // A stalled process may hold the lock, and other writers may wait for the disk.
        "sqlite" => Arc::new(SqliteStore::open_with(SqliteOptions::new(name).with_busy_timeout(Duration::from_secs(60))).unwrap()),
        #[cfg(feature = "postgres")]
        "postgres" => {
            let options = treehold::store::PostgresOptions::new(url).with_schema(name);
            Arc::new(treehold::store::PostgresStore::open_with(options).await.unwrap())
        }
        #[cfg(feature = "redis")]
        "redis" => {
            let options = treehold::store::RedisOptions::new(url).with_prefix(name);
            Arc::new(treehold::store::RedisStore::open_with(options).await.unwrap())
        }
        #[cfg(feature = "mysql")]
        "mysql" => Arc::new(treehold::store::MysqlStore::open(url).await.unwrap()),
        other => panic!("no engine {other} {url}"),
    }
}

/// Makes the agent that every process has.
pub(crate) fn agent(store: &Arc<dyn Store>) -> StatelessAgent {
    let gate = TurnGate::with_options(store.clone(), TurnOptions::new().with_lease(LEASE));
    let states = AgentStates::new(store.clone()).for_agent("acme", "helper").unwrap();
    let agent = StatelessAgent::new(Arc::new(states), gate, "acme", "helper").unwrap();
    agent.with_options(AgentOptions::new().with_conflict_policy(ConflictPolicy::Fail))
}

pub(crate) fn slot(session: usize) -> StateSlot {
    StateSlot::new(Some("ada"), format!("s-{session}")).unwrap()
}

/// Returns the time in microseconds. All processes are on one machine.
pub(crate) fn now() -> u128 {
    UNIX_EPOCH.elapsed().unwrap().as_micros()
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{MARK}{line}").unwrap();
    out.flush().unwrap();
}

/// Runs calls until the input ends: `call NUMBER SESSION MILLISECONDS` and `interrupt SESSION`.
pub(crate) async fn serve() {
    if std::env::var_os(ENGINE).is_none() {
        return;
    }
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let store = open(&variable(ENGINE), &variable(URL), &variable(NAME)).await;
    let agent = agent(&store);
    say("ready");
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let mut calls = tokio::task::JoinSet::new();
    while let Some(line) = lines.next_line().await.unwrap() {
        let words: Vec<&str> = line.split(' ').collect();
        let agent = agent.clone();
        match words[..] {
            ["call", number, session, lasts] => {
                let number = [number, session, lasts].map(|text| text.parse().unwrap());
                // The first poll is at once, so that calls enter the queue in the order of the commands.
                let mut call = Box::pin(run(agent, number));
                if futures::poll!(&mut call).is_pending() {
                    calls.spawn(call);
                }
            }
            ["interrupt", session] => {
                let slot = slot(session.parse().unwrap());
                calls.spawn(
                    async move { say(&format!("interrupt {}", agent.interrupt(&slot, Interrupt::user()).await.is_ok_and(|hit| hit))) },
                );
            }
            _ => panic!("unknown command: {line}"),
        }
    }
    calls.join_all().await;
}

/// Runs one call, and says when it begins, when its loop ends, and what came of it.
async fn run(agent: StatelessAgent, [number, session, lasts]: [usize; 3]) {
    let text = number.to_string();
    let time = jiff::Timestamp::now();
    let work = async |call: &mut Call| {
        let (token, arrival) = (call.token(), call.arrival());
        say(&format!("begin {number} {session} {token} {arrival} {}", now()));
        let pause = Duration::from_millis(lasts as u64);
        let result: treehold::Result<()> = async {
            call.safe_point().await?;
            let tool = Block::tool_use(&text, "wait", Entries::new());
            call.state().lock().push(Message::new(Role::Assistant, vec![tool], time)?)?;
            call.unless_stopped(tokio::time::sleep(pause)).await?;
            call.state().lock().push(Message::tool_result(&text, "wait", "waited", ToolResultState::Success, time))?;
            call.safe_point().await?;
            call.state().lock().push(Message::assistant(&format!("re: {text} {token}"), time))
        }
        .await;
        say(&format!("end {number} {}", now()));
        result
    };
    let input = vec![Message::user(&text, time)];
    let outcome = agent.call(RuntimeContext::new(slot(session)), input, work).await;
    say(&match outcome {
        Ok(CallOutcome::Done(())) => format!("done {number}"),
        Ok(CallOutcome::Interrupted(_)) => format!("interrupted {number}"),
        Err(error) => match TurnRefusal::of(&error.error) {
            Some(TurnRefusal::Lost) => format!("lost {number}"),
            _ => format!("failed {number} {error:?}").replace('\n', " "),
        },
    });
}
