//! The scope, threads, events, prompt memory, stores and peers of a configuration.

use super::DEFAULT_STORE;
use serde::{Deserialize, Serialize};
use treehold_agent::memory::{MemorySettings, PromptOptions};
use treehold_agent::session::ThreadDurability;

/// The default scope: the values of its fields.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct ScopeConfig {
    /// The tenant. Default `default`.
    pub tenant: String,
    /// The user. Default `default`.
    pub user: String,
    /// The agent. None by default; then a template with `{agent}` fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The thread. Default `default`.
    pub thread: String,
}

impl Default for ScopeConfig {
    fn default() -> Self {
        Self { tenant: "default".to_owned(), user: "default".to_owned(), agent: None, thread: "default".to_owned() }
    }
}

/// Where and when the state of threads is saved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct ThreadsConfig {
    /// Whether a thread's state is saved at all. Default true.
    pub save: bool,
    /// The store for checkpoints. Default: the only one configured, or `default`.
    pub store: String,
    /// When the state is saved automatically: `sync` after each change, `step` after each tool call (the default), `exit` at the end.
    pub durability: ThreadDurability,
    /// Whether tool calls are recorded in the audit log, without content, in the same store. Default true.
    pub audit: bool,
    /// About how many bytes of state a process keeps in memory. Beyond it, idle threads are saved and unloaded. Default 256 MiB.
    pub memory_bytes_max: u64,
}

impl Default for ThreadsConfig {
    fn default() -> Self {
        Self {
            save: true,
            store: DEFAULT_STORE.to_owned(),
            durability: ThreadDurability::default(),
            audit: true,
            memory_bytes_max: treehold_agent::workspace::THREADS_BYTES_MAX,
        }
    }
}

/// Where events are kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct EventsConfig {
    /// Whether to record each change as an event. Default true.
    pub save: bool,
    /// The store for events. Files and threads in the same store commit their events atomically with the change. Default: the only one
    /// configured, or `default`.
    pub store: String,
    /// How long events are kept. Default `7d`.
    pub keep: String,
}

impl Default for EventsConfig {
    fn default() -> Self {
        Self { save: true, store: DEFAULT_STORE.to_owned(), keep: "7d".to_owned() }
    }
}

/// Which files form the prompt memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct MemoryConfig {
    /// The files in prompt order. Default `/memories/AGENTS.md` and `/workspace/AGENTS.md`.
    pub sources: Vec<String>,
    /// The directories whose other files the prompt lists, newest first, with their first lines. Default `/memories`.
    pub index: Vec<String>,
    /// The most tokens of the prompt memory, by estimate. Default 8,000.
    pub tokens_max: usize,
    /// The most tokens of the lists of other files, within the whole. Default 1,000.
    pub index_tokens_max: usize,
}

impl Default for MemoryConfig {
    fn default() -> Self {
        Self {
            sources: MemorySettings::SOURCES.map(str::to_owned).to_vec(),
            index: MemorySettings::INDEX.map(str::to_owned).to_vec(),
            tokens_max: PromptOptions::TOKENS_MAX,
            index_tokens_max: PromptOptions::INDEX_TOKENS_MAX,
        }
    }
}

/// A store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct StoreConfig {
    /// The engine and its location: `sqlite:FILE`, `sqlite:DIRECTORY/`, `sled:DIRECTORY`, `postgres://…`, `mysql://…`, `redis://…`, `memory:`,
    /// or `env:VARIABLE` for a URL in an environment variable.
    pub url: String,
    /// How often a process that has the store open removes expired rows and gives unused space back: a duration such as `30s`, or `never`.
    /// Default `1m`.
    #[serde(default = "sweep_every")]
    pub sweep_every: String,
}

impl StoreConfig {
    /// Configures the store at a URL.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), sweep_every: sweep_every() }
    }
}

/// The default interval between sweeps.
fn sweep_every() -> String {
    "1m".to_owned()
}

/// Another treehold server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct PeerConfig {
    /// The URL: `https://HOST:PORT`, optionally with the path of a directory in its tree. Empty for a machine that dials this server.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub url: String,
    /// Whether the peer cannot be called, and connects to this server under its name instead (`treehold serve --dial`). Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reverse: bool,
    /// Where the token is: `env:VARIABLE` or `file:PATH`. By default no token is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// Whether to allow `http` to another host, which sends content and token unencrypted. Default false.
    #[serde(default)]
    pub plain_http: bool,
}

impl PeerConfig {
    /// Configures the server at a URL.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), reverse: false, token: None, plain_http: false }
    }

    /// Configures a machine that dials this server.
    pub fn reverse() -> Self {
        Self { url: String::new(), reverse: true, token: None, plain_http: false }
    }
}
