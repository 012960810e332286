//! The file `agents.yaml`, in which the original names its agents.

use super::host::has_path;
use super::{ApiKey, Peer};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;
use treehold_core::error::{AtHost, Error, ErrorKind, Result};

/// The largest file in bytes.
const FILE_BYTES_MAX: usize = 1 << 20;

/// The file. Other fields are ignored, here and in each agent.
#[derive(Deserialize)]
struct AgentsFile {
    #[serde(default)]
    agents: Option<BTreeMap<String, Agent>>,
}

#[derive(Deserialize)]
struct Agent {
    url: String,
    #[serde(default)]
    api_key: Option<String>,
    #[serde(default, rename = "type")]
    kind: Option<String>,
    /// Not a field of the original.
    #[serde(default)]
    plain_http: bool,
}

/// Reads the agents of a file.
///
/// # Errors
/// [`InvalidArgument`](ErrorKind::InvalidArgument) for a file that is no list of agents, [`TooLarge`](ErrorKind::TooLarge) for one over
/// 1 MiB, and [`NotFound`](ErrorKind::NotFound) or [`Unavailable`](ErrorKind::Unavailable) for one that cannot be read. No message contains
/// text of the file besides the names of agents, because it holds keys.
pub(super) fn read(file: &Path) -> Result<Vec<Peer>> {
    let unread = |error: std::io::Error| {
        let kind = if error.kind() == std::io::ErrorKind::NotFound { ErrorKind::NotFound } else { ErrorKind::Unavailable };
        Error::new(kind, "the file of agents cannot be read; check `agents_file`").with_source(AtHost::new(file).with_cause(error))
    };
    let mut bytes = Vec::new();
    let opened = std::fs::File::open(file).map_err(unread)?;
    opened.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(unread)?;
    if bytes.len() > FILE_BYTES_MAX {
        return Err(too_large());
    }
    let text = std::str::from_utf8(&bytes).map_err(|_| Error::invalid_argument("the file of agents is not UTF-8"))?;
    parse(text, file.parent().unwrap_or(Path::new("")))
}

/// Parses the text of a file. `file:` keys are relative to `directory`.
///
/// # Errors
/// As [`read`].
pub(super) fn parse(text: &str, directory: &Path) -> Result<Vec<Peer>> {
    if text.len() > FILE_BYTES_MAX {
        return Err(too_large());
    }
    let parsed: Option<AgentsFile> = serde_saphyr::from_str_with_options(text, yaml_limits()).map_err(|error| {
        // The message of the parser quotes the text around the fault.
        let place = error.location().map(|at| format!(" at line {}, column {}", at.line(), at.column())).unwrap_or_default();
        Error::invalid_argument(format!("the file of agents is invalid{place}; write `agents: {{NAME: {{url: ..., api_key: ...}}}}`"))
    })?;
    let agents = parsed.and_then(|file| file.agents).unwrap_or_default();
    agents.into_iter().map(|(name, agent)| peer(name, agent, directory)).collect()
}

fn peer(name: String, agent: Agent, directory: &Path) -> Result<Peer> {
    if has_path(&agent.url) {
        return Err(Error::invalid_argument(format!(
            "the URL of the agent `{}` has a path; write `https://HOST:PORT`",
            name.escape_debug()
        )));
    }
    let mut peer = Peer::new(name, agent.url, agent.plain_http)?.with_kind(agent.kind);
    if let Some(key) = agent.api_key.filter(|key| !key.is_empty()) {
        peer = peer.with_key(ApiKey::parse(&key, directory));
    }
    Ok(peer)
}

fn too_large() -> Error {
    Error::new(ErrorKind::TooLarge, format!("the file of agents has over {} MiB; shorten it", FILE_BYTES_MAX >> 20))
}

/// Returns the limits of parsing. An alias repeats what its anchor names, so some kilobytes of them could stand for gigabytes.
fn yaml_limits() -> serde_saphyr::Options {
    let alias_limits = serde_saphyr::alias_limits! { max_total_replayed_events: 256, max_replay_stack_depth: 8 };
    let budget = serde_saphyr::budget! {
        max_aliases: 64, max_anchors: 64, max_depth: 32, max_events: 50_000, max_nodes: 50_000, max_merge_keys: 64,
        max_total_scalar_bytes: FILE_BYTES_MAX,
    };
    serde_saphyr::options! { budget: budget, alias_limits: alias_limits }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_of_the_original_is_read_as_it_is() {
        let text = "# comment\nagents:\n  terminal-1:\n    url: https://terminal.example:8000\n    api_key: s3cret-one\n    type: terminal\n    \
                    tags: [a, {b: c}]\n  cloud:\n    url: \"http://127.0.0.1:9/\"\n    api_key: env:CLOUD_KEY\nversion: 2\n";
        let peers = parse(text, Path::new("/etc")).expect("valid");
        let told: Vec<_> = peers.iter().map(|peer| (peer.name(), peer.url(), peer.kind())).collect();
        let terminal = ("terminal-1", Some("https://terminal.example:8000"), Some("terminal"));
        assert_eq!(told, [("cloud", Some("http://127.0.0.1:9/"), None), terminal]);
        assert!(!format!("{peers:?}").contains("s3cret"), "{peers:?}");
        for empty in ["", "agents:\n", "agents: {}\n", "other: 1\n"] {
            assert!(parse(empty, Path::new("/etc")).expect(empty).is_empty(), "{empty:?}");
        }
    }

    #[test]
    fn invalid_file_is_refused_without_showing_a_key() {
        for text in [
            "agents: [1]",
            "agents: {a: {api_key: s3cret}}",
            "agents: {a: s3cret}",
            "agents: {a: {url: [s3cret]}}",
            "agents: {a: {url: 'https://h', api_key: {s3cret: 1}}}",
            "agents: {a/b: {url: 'https://h', api_key: s3cret}}",
            "agents: {'': {url: 'https://h', api_key: s3cret}}",
            "agents: {a: {url: 'https://u:s3cret@h'}}",
            "agents: {a: {url: 'https://h/prefix', api_key: s3cret}}",
            "agents: {a: {url: 'http://h', api_key: s3cret}}",
            "agents: {a: {url: 'ftp://h', api_key: s3cret}}",
            "agents: {a: {url: 'https://h', api_key: s3cret}\n  b: \"",
            "a: &a [s3cret]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a]\nc: &c [*b, *b, *b, *b, *b, *b, *b, *b]\nd: [*c, *c, *c, *c, *c, *c, *c, *c]\n",
        ] {
            let error = parse(text, Path::new("/etc")).expect_err(text);
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{text}");
            assert!(!format!("{error:?} {error}").contains("s3cret"), "{text}: {error:?}");
        }
        let deep = format!("agents: {}{}", "[".repeat(10_000), "]".repeat(10_000));
        assert!(parse(&deep, Path::new("/etc")).is_err());
        let long = format!("# {}\n", "x".repeat(FILE_BYTES_MAX));
        assert_eq!(parse(&long, Path::new("/etc")).expect_err("too large").kind(), ErrorKind::TooLarge);
    }

    #[test]
    fn unreadable_file_is_an_error_that_hides_its_path() {
        let directory = tempfile::tempdir().expect("a directory");
        let error = read(&directory.path().join("agents.yaml")).expect_err("it does not exist");
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(!error.message().contains(&directory.path().display().to_string()), "{error}");
        std::fs::write(directory.path().join("agents.yaml"), "agents: {a: {url: 'https://h', api_key: 'file:key'}}").expect("written");
        assert_eq!(read(&directory.path().join("agents.yaml")).expect("valid").len(), 1);
    }
}
