//! Traces: a request's trace context is continued, also on other servers.

use super::{Served, workspace};
use crate::far::{FarSide, Fate, small_tree};
use std::sync::Arc;
use tokio::runtime::Runtime;
use treehold::store::Store;
use treehold::{MemoryStore, RemoteBackend, RemoteOptions, Workspace};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

#[test]
fn trace_continues_across_two_servers() {
    let runtime = Runtime::new().unwrap();
    let far = runtime.block_on(async { FarSide::serve(small_tree().await, |_| Fate::Served).await });
    let remote = RemoteBackend::new(&far.url(), RemoteOptions::new()).unwrap();
    let tree = Workspace::builder().backend("/far", Arc::new(remote)).unwrap().build();
    let served = Served::of(runtime, tree, Arc::new(MemoryStore::new()), |options| options);
    let headers = [("traceparent", PARENT), ("tracestate", "rojo=1,congo=2"), ("content-type", "application/json")];
    assert_eq!(served.send("GET", "/v1/fs/far/w/a.md", &headers, b"").text(), "one\ntwo needle\n");
    let keyed: Vec<_> = headers.into_iter().chain([("idempotency-key", "k")]).collect();
    assert_eq!(served.send("POST", "/v1/fs/far/log", &keyed, b"x").status, 201, "in a task of its own");
    let read = br#"{"path": "/far/w/a.md"}"#;
    assert_eq!(served.send("POST", "/v1/tools/read_file", &headers, read).status, 200);
    let requests: Vec<_> = far.requests.lock().iter().filter(|request| !request.path.ends_with("/capabilities")).cloned().collect();
    assert!(requests.len() >= 3);
    for request in &requests {
        let parts: Vec<&str> = request.headers["traceparent"].split('-').collect();
        assert_eq!((parts[0], parts[1], parts[3]), ("00", TRACE, "01"));
        assert_ne!(parts[2], "00f067aa0ba902b7", "another parent");
        assert_eq!(request.headers["tracestate"], "rojo=1,congo=2");
    }
}

#[test]
fn problem_contains_its_trace_id() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let served = Served::of(Runtime::new().unwrap(), workspace(&store), store, |options| options);
    let of = |headers: &[(&str, &str)]| served.send("GET", "/v1/fs/none", headers, b"").json()["trace_id"].as_str().unwrap().to_owned();
    assert_eq!(of(&[("traceparent", PARENT)]), TRACE);
    for odd in [&[("traceparent", "00-x-y-01")][..], &[("traceparent", PARENT), ("traceparent", PARENT)], &[]] {
        let trace = of(odd);
        assert!(trace != TRACE && trace.len() == 32, "{trace}");
    }
}

#[test]
#[cfg(feature = "cli")]
fn log_of_serve_contains_the_trace_id() {
    use std::io::{BufRead as _, BufReader, Read as _};
    use std::process::{Command, Stdio};
    let home = crate::cli::Home::new();
    let mut command = Command::new(crate::cli::binary());
    command.args(["serve", "--verbose", "--jsonl", "--listen", "127.0.0.1:0"]).current_dir(home.work());
    command.env("TREEHOLD_DATA", home.data()).env("HOME", home.data()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let url = format!("{}/v1/fs/none?secret=x", line.trim().strip_suffix("/mcp").unwrap());
    let agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
    assert_eq!(agent.get(url).header("traceparent", PARENT).call().unwrap().status(), 400, "no such query");
    child.kill().unwrap();
    let mut log = String::new();
    child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    child.wait().unwrap();
    let answered: serde_json::Value = serde_json::from_str(log.lines().find(|line| line.contains("answered")).unwrap()).unwrap();
    assert_eq!((&answered["trace_id"], &answered["level"]), (&serde_json::json!(TRACE), &serde_json::json!("INFO")), "{log}");
    assert_eq!((answered["url.path"].as_str(), answered["http.response.status_code"].as_u64()), (Some("/v1/fs/none"), Some(400)));
    assert!(!log.contains("secret"), "{log}");
}
