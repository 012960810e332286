//! Metrics: what is counted, and that clients cannot create labels.

use super::Served;
use super::hostile::raw;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Returns the values of a label.
fn values<'t>(text: &'t str, label: &str) -> BTreeSet<&'t str> {
    let start = format!("{label}=\"");
    text.split(&start).skip(1).filter_map(|rest| rest.split('"').next()).collect()
}

fn count(text: &str, series: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok())
}

#[test]
fn operations_and_bytes_are_counted() {
    let served = Served::start();
    served.put("/v1/fs/memories/a", b"0123456789");
    assert_eq!(served.get("/v1/fs/memories/a").text(), "0123456789");
    served.get("/v1/fs/memories/none");
    served.post("/v1/tools/grep", &json!({"pattern": "x"}));
    let text = served.get("/metrics").text();
    for (series, at_least) in [
        ("vfs_operation_duration_seconds_count{operation=\"write\",outcome=\"ok\"}", 1.0),
        ("vfs_operation_duration_seconds_count{operation=\"read\",outcome=\"not_found\"}", 1.0),
        ("vfs_operation_duration_seconds_count{operation=\"grep\",outcome=\"ok\"}", 1.0),
        ("vfs_content_bytes_total{direction=\"write\"}", 10.0),
        ("vfs_content_bytes_total{direction=\"read\"}", 10.0),
        ("http_server_request_body_bytes_total", 10.0),
        ("http_server_response_body_bytes_total", 10.0),
        ("http_server_active_requests", 1.0),
        ("vfs_audit_rows_lost", 0.0),
    ] {
        assert!(count(&text, series).is_some_and(|value| value >= at_least), "{series}: {text}");
    }
    let put = "http_server_request_duration_seconds_count{http_request_method=\"PUT\",http_route=\"/v1/fs/{*path}\",\
               http_response_status_code=\"201\"}";
    assert_eq!(count(&text, put), Some(1.0), "{text}");
}

#[test]
fn labels_contain_nothing_that_clients_send() {
    let served = Served::start();
    let hostile = |round: usize| {
        for number in 0..40 {
            let name = format!("evil-{round}-{number}");
            served.get(&format!("/v1/fs/{name}"));
            served.get(&format!("/{name}/{{*path}}"));
            served.get(&format!("/v1/threads/{name}/fs/{name}"));
            served.get(&format!("/mcp/t/{name}"));
            served.send("POST", &format!("/v1/tools/{name}"), &[("content-type", "application/json")], b"{}");
            let host = served.base.trim_start_matches("http://");
            let odd = format!("X{} /v1/ls HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n", name.to_uppercase());
            assert!(raw(&served, odd.as_bytes()).contains("405"));
            served.send("GET", "/v1/ls", &[("treehold-thread", &name), ("treehold-actor", &name), ("authorization", &name)], b"");
        }
        served.get("/metrics");
        served.get("/metrics").text()
    };
    let (first, second) = (hostile(1), hostile(2));
    assert!(!second.to_lowercase().contains("evil"), "{second}");
    assert_eq!(first.lines().count(), second.lines().count(), "requests of the same kind add no series");
    let document: Value = served.get("/openapi.json").json();
    let known: BTreeSet<String> = document["paths"].as_object().unwrap().keys().cloned().collect();
    for route in values(&second, "http_route") {
        let route = route.replace("{*", "{");
        let is_beside = ["none", "/metrics", "/mcp/t/{thread}", "/openapi.json"].contains(&route.as_str());
        assert!(is_beside || known.contains(&route), "{route}");
    }
    let methods = values(&second, "http_request_method");
    assert!(methods.iter().all(|method| ["GET", "POST", "PUT", "_OTHER"].contains(method)), "{methods:?}");
}
