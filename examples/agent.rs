//! An agent: a loop of a model and tools over one tree, with memory in the system prompt and checkpoints of the thread.
//!
//! ```text
//! export ANTHROPIC_API_KEY=... AGENT_MODEL=...       # or OPENAI_API_KEY; *_BASE_URL names another endpoint that speaks the same
//! cargo run --example agent -- "Remember that the colour of the house is green."
//! cargo run --example agent -- --thread friday "Which colour does the house have?"
//! ```
//!
//! The first thread writes to `/memories`, which all threads share; the second finds that memory in its system prompt.
//! The messages of a thread are in its own tree, at `/conversation.json`, so the thread continues where it stopped.
//! Each tool call leaves a checkpoint: `treehold --thread friday checkpoint ls` lists them, because both programs use
//! the same configuration.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example shows what it does")]

use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;
use treehold::config::{Config, ConfigBase};
use treehold::ops::{ApplyOptions, Change, WriteMode};
use treehold::session::CallNotes;
use treehold::tools::{ToolFormat, ToolSet};
use treehold::{BackendExt, Error, ErrorKind, Result, Session, ToolCall, ToolOutput, VfsPathBuf};

/// Where a thread stores its messages, in the format of the API.
const CONVERSATION: &str = "/conversation.json";

/// The most requests per instruction.
const TURNS_MAX: usize = 50;

/// The most tokens in one answer.
const ANSWER_TOKENS_MAX: usize = 8_000;

const SYSTEM: &str = "You are a helpful agent. Your tools work on one tree of files: `/` is this conversation's own, `/memories` is \
    shared with all others and lasts, `/workspace` is the user's directory.";

#[tokio::main]
async fn main() -> std::process::ExitCode {
    match start(std::env::args().skip(1).collect()).await {
        Ok(answer) => {
            println!("{answer}");
            std::process::ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("agent: {}", error.message());
            std::process::ExitCode::FAILURE
        }
    }
}

/// Parses the command line and the environment, and lets the agent answer.
async fn start(mut arguments: Vec<String>) -> Result<String> {
    let thread = match arguments.iter().position(|argument| argument == "--thread") {
        Some(at) if at + 1 < arguments.len() => arguments.drain(at..at + 2).nth(1),
        _ => None,
    };
    let [instruction] = &arguments[..] else {
        return Err(Error::invalid_argument("usage: agent [--thread ID] INSTRUCTION"));
    };
    let endpoint = Endpoint::from_environment(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))?;
    // A file that happens to be in this directory is not trusted; one that is named explicitly is.
    let mut config = match std::env::var_os("TREEHOLD_CONFIG") {
        Some(file) => Config::load(Path::new(&file), &data())?,
        None => Config::builtin(&ConfigBase::new(std::env::current_dir().unwrap_or_default(), data())),
    };
    config.scope.thread = thread.unwrap_or(config.scope.thread);
    let session = config.workspace()?.session(config.scope()).await?;
    let answer = run(&session, &endpoint, instruction).await;
    // Keep everything done so far, however the loop ended.
    session.close().await?;
    answer
}

/// Returns the directory of durable data, the same as the command line's if the usual variables are set.
fn data() -> std::path::PathBuf {
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".local/share"));
    match std::env::var_os("TREEHOLD_DATA") {
        Some(data) => data.into(),
        None => std::env::var_os("XDG_DATA_HOME").map(Into::into).or_else(home).unwrap_or_default().join("treehold"),
    }
}

/// Queries the model and runs its tool calls, until it answers without one.
async fn run(session: &Session, endpoint: &Endpoint, instruction: &str) -> Result<String> {
    let mut messages = conversation(session).await?;
    messages.push(json!({"role": "user", "content": instruction}));
    for _ in 0..TURNS_MAX {
        // Read the memory in every turn: another thread may have changed it. Unchanged files cost one lookup.
        let system = format!("{SYSTEM}\n\n{}", session.memory_prompt().await.text);
        let turn = endpoint.ask(system, &messages).await?;
        messages.push(turn.message);
        let mut results = Vec::with_capacity(turn.calls.len());
        for (id, name, arguments) in turn.calls {
            let output = match ToolCall::from_json(&name, arguments) {
                Ok(call) => {
                    eprintln!("> {call}");
                    session.call_with(call, CallNotes::new().with_tool_call_id(&id)).await
                }
                Err(error) => ToolOutput::from_error(&error),
            };
            results.push((id, output));
        }
        let is_done = results.is_empty();
        messages.extend(endpoint.api.results(results));
        keep(session, &messages).await?;
        if is_done {
            return Ok(turn.text);
        }
    }
    Err(Error::new(ErrorKind::Deadline, format!("the model asked for tools {TURNS_MAX} times and gave no answer")))
}

/// Returns the messages of the thread so far.
async fn conversation(session: &Session) -> Result<Vec<Value>> {
    match session.backend().read_bytes(CONVERSATION).await {
        Ok(content) => serde_json::from_slice(&content)
            .map_err(|error| Error::new(ErrorKind::Corrupt, format!("`{CONVERSATION}` holds no messages")).with_source(error)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Stores the messages of the thread, which makes a checkpoint.
async fn keep(session: &Session, messages: &[Value]) -> Result<()> {
    let content = Value::from(messages).to_string().into();
    let change = Change::Write { path: VfsPathBuf::parse(CONVERSATION)?, content, mode: WriteMode::Overwrite };
    session.apply(&[change], &ApplyOptions::new()).await?.into_saved().map(drop)
}

/// The API of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Api {
    /// Anthropic's Messages API.
    Anthropic,
    /// OpenAI's Chat Completions API, which many others offer too.
    OpenAi,
}

/// A model endpoint.
#[derive(Debug, Clone)]
struct Endpoint {
    api: Api,
    base_url: String,
    key: String,
    model: String,
}

/// An answer of the model.
struct Turn {
    /// The whole message, to send back to the API.
    message: Value,
    text: String,
    /// The tool calls: id, name and arguments.
    calls: Vec<(String, String, Value)>,
}

impl Endpoint {
    fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let (api, key, base_url) = match (variable("ANTHROPIC_API_KEY"), variable("OPENAI_API_KEY")) {
            (Some(key), _) => (Api::Anthropic, key, variable("ANTHROPIC_BASE_URL").unwrap_or("https://api.anthropic.com".to_owned())),
            (None, Some(key)) => (Api::OpenAi, key, variable("OPENAI_BASE_URL").unwrap_or("https://api.openai.com/v1".to_owned())),
            (None, None) => return Err(Error::invalid_argument("set ANTHROPIC_API_KEY or OPENAI_API_KEY")),
        };
        let model = variable("AGENT_MODEL").ok_or_else(|| Error::invalid_argument("set AGENT_MODEL to the name of the model"))?;
        Ok(Self { api, base_url: base_url.trim_end_matches('/').to_owned(), key, model })
    }

    /// Queries the model, with its tools and all messages so far.
    async fn ask(&self, system: String, messages: &[Value]) -> Result<Turn> {
        let format = match self.api {
            Api::Anthropic => ToolFormat::Anthropic,
            Api::OpenAi => ToolFormat::OpenAi,
        };
        let tools: Vec<Value> =
            [ToolSet::Default, ToolSet::Memory].iter().flat_map(|set| set.export(format).as_array().cloned().unwrap_or_default()).collect();
        let (url, headers, body) = match self.api {
            Api::Anthropic => (
                format!("{}/v1/messages", self.base_url),
                vec![("x-api-key", self.key.clone()), ("anthropic-version", "2023-06-01".to_owned())],
                json!({"model": self.model, "max_tokens": ANSWER_TOKENS_MAX, "system": system, "messages": messages, "tools": tools}),
            ),
            Api::OpenAi => {
                let all: Vec<Value> = [json!({"role": "system", "content": system})].into_iter().chain(messages.iter().cloned()).collect();
                (
                    format!("{}/chat/completions", self.base_url),
                    vec![("authorization", format!("Bearer {}", self.key))],
                    json!({"model": self.model, "messages": all, "tools": tools}),
                )
            }
        };
        let asked = tokio::task::spawn_blocking(move || post(&url, headers, &body));
        let answer = asked.await.map_err(|error| Error::new(ErrorKind::Internal, "the request was interrupted").with_source(error))??;
        self.api.turn(answer).ok_or_else(|| Error::new(ErrorKind::Unavailable, "the endpoint's answer holds no message"))
    }
}

/// Sends one request and reads its answer.
fn post(url: &str, headers: Vec<(&str, String)>, body: &Value) -> Result<Value> {
    let unreachable = |error: ureq::Error| Error::new(ErrorKind::Unavailable, format!("`{url}` cannot be reached: {error}"));
    let config = ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(Duration::from_secs(600))).build();
    let request =
        headers.into_iter().fold(ureq::Agent::new_with_config(config).post(url), |request, (name, value)| request.header(name, value));
    let mut response = request.send_json(body).map_err(unreachable)?;
    let answer: Value = response.body_mut().read_json().map_err(unreachable)?;
    if !response.status().is_success() {
        let said = answer["error"]["message"].as_str().unwrap_or("no reason given");
        return Err(Error::new(ErrorKind::Unavailable, format!("the endpoint refused ({}): {said}", response.status().as_u16())));
    }
    Ok(answer)
}

impl Api {
    /// Parses an answer; `None` if it is malformed.
    fn turn(self, answer: Value) -> Option<Turn> {
        match self {
            Self::Anthropic => {
                let blocks = answer["content"].as_array()?;
                let of = |kind: &'static str| blocks.iter().filter(move |block| block["type"] == kind);
                let text = of("text").filter_map(|block| block["text"].as_str()).collect();
                let calls = of("tool_use").map(|block| Some((text_of(&block["id"])?, text_of(&block["name"])?, block["input"].clone())));
                let calls = calls.collect::<Option<_>>()?;
                Some(Turn { text, calls, message: json!({"role": "assistant", "content": blocks}) })
            }
            Self::OpenAi => {
                let message = answer["choices"].get(0)?.get("message")?.clone();
                let calls = message["tool_calls"].as_array().into_iter().flatten();
                // The arguments are JSON in a string, which the tools accept as well.
                let calls = calls.map(|call| {
                    let function = &call["function"];
                    Some((text_of(&call["id"])?, text_of(&function["name"])?, function["arguments"].clone()))
                });
                let calls = calls.collect::<Option<_>>()?;
                Some(Turn { text: text_of(&message["content"]).unwrap_or_default(), calls, message })
            }
        }
    }

    /// Wraps the results of tool calls in messages.
    fn results(self, results: Vec<(String, ToolOutput)>) -> Vec<Value> {
        if results.is_empty() {
            return Vec::new();
        }
        match self {
            Self::Anthropic => {
                let blocks: Vec<Value> = results
                    .into_iter()
                    .map(|(id, output)| json!({"type": "tool_result", "tool_use_id": id, "content": output.text, "is_error": output.is_error}))
                    .collect();
                vec![json!({"role": "user", "content": blocks})]
            }
            Self::OpenAi => {
                results.into_iter().map(|(id, output)| json!({"role": "tool", "tool_call_id": id, "content": output.text})).collect()
            }
        }
    }
}

fn text_of(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

#[cfg(test)]
#[path = "agent/tests.rs"]
mod tests;
