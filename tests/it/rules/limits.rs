//! A limit of 0 at every entry point that takes a limit, as the program itself lists them: each refuses it and names it.

use super::commands::commands;
use super::doors::{World, send};
use crate::cli::Home;
use serde_json::{Value, json};

/// Follows a reference within the description of the API.
fn resolved<'d>(document: &'d Value, schema: &'d Value) -> &'d Value {
    match schema["$ref"].as_str() {
        Some(reference) => document.pointer(reference.trim_start_matches('#')).unwrap(),
        None => schema,
    }
}

/// Returns a value for a required input.
fn value(name: &str) -> Value {
    match name {
        "path" => json!("/"),
        "namespace" => json!(["notes"]),
        "source" => json!("other"),
        _ => json!("now"),
    }
}

#[test]
fn every_route_with_a_limit_refuses_zero() {
    let world = World::new();
    let document = world.open.get("/openapi.json").json();
    let mut asked = Vec::new();
    // The limit of a read counts the lines of one file, which has no pages.
    for (pattern, methods) in document["paths"].as_object().unwrap().iter().filter(|(pattern, _)| !pattern.contains("{path}")) {
        let base = pattern.replace("{thread}", "default").replace("{checkpoint}", "latest").replace("{name}", "ls");
        let base = base.replace("{session}", "s").replace("{agent}", "a").replace("{tool_call}", "c").replace("{user}", "-");
        let base = base.replace("{trace}", "t").replace("{message}", "m");
        // Every route of the data plane names its agent.
        let agent = if base.starts_with("/api/v1/dp/") { "&agentName=a" } else { "" };
        for (method, operation) in methods.as_object().unwrap().iter().filter(|(_, operation)| operation["operationId"].is_string()) {
            let parameters = operation["parameters"].as_array().map(Vec::as_slice).unwrap_or_default();
            let parameters = parameters.iter().filter(|parameter| parameter["in"] == "query");
            let schema = resolved(&document, &operation["requestBody"]["content"]["application/json"]["schema"]);
            let mut query = agent.to_owned();
            for parameter in parameters {
                let name = parameter["name"].as_str().unwrap();
                if name == "limit" {
                    query.push_str("&limit=0");
                } else if parameter["required"] == true {
                    query.push_str(&format!("&{name}={}", value(name).as_str().unwrap_or("notes")));
                }
            }
            let mut body = Value::Null;
            if schema["properties"].get("limit").is_some() {
                body = json!({"limit": 0});
                for name in schema["required"].as_array().into_iter().flatten().map(|name| name.as_str().unwrap()) {
                    body[name] = value(name);
                }
            }
            if !query.contains("limit") && body.is_null() {
                continue;
            }
            let at = format!("{base}?{}", query.trim_start_matches('&'));
            let answer = send(
                &world.open,
                &world.admin,
                &method.to_uppercase(),
                &at,
                &if body.is_null() { String::new() } else { body.to_string() },
            );
            let (status, said) = (answer.status, answer.text());
            assert!(status == 400 && said.contains("invalid_argument") && said.contains("limit"), "{method} {at} {body}: {status} {said}");
            asked.push(operation["operationId"].as_str().unwrap().to_owned());
        }
    }
    for known in [
        "ls",
        "lsBy",
        "treeBy",
        "globBy",
        "grep",
        "search",
        "timeline",
        "listThreads",
        "listCheckpoints",
        "diffCheckpoints",
        "audit",
        "listSessions",
        "listMessages",
        "listTurns",
        "listToolResults",
        "readTrace",
        "listMailboxEvents",
        "listTraces",
        "listTraceMessages",
        "listTraceEvents",
    ] {
        assert!(asked.iter().any(|id| id == known), "{known} is not among {asked:?}");
    }
}

#[test]
fn every_tool_with_a_limit_refuses_zero() {
    let world = World::new();
    let mut asked = 0;
    for set in treehold::tools::ToolSet::ALL {
        let tools = send(&world.open, &world.admin, "GET", &format!("/v1/tools?set={set}"), "").json();
        for tool in tools.as_array().unwrap() {
            let name = tool["name"].as_str().unwrap();
            let schema = if tool["input_schema"].is_object() { &tool["input_schema"] } else { &tool["inputSchema"] };
            if schema["properties"].get("limit").is_none() {
                continue;
            }
            let mut arguments = json!({"limit": 0});
            for required in schema["required"].as_array().into_iter().flatten().map(|required| required.as_str().unwrap()) {
                arguments[required] = value(required);
            }
            let at = format!("/v1/tools/{name}?set={set}");
            let said = send(&world.open, &world.admin, "POST", &at, &arguments.to_string()).text();
            assert!(said.contains("invalid_argument") && said.contains("`limit`"), "{set} {name}: {said}");
            asked += 1;
        }
    }
    assert!(asked > 4, "{asked}");
}

#[test]
fn every_command_with_a_limit_refuses_zero() {
    let home = Home::new();
    let mut asked = 0;
    for command in commands(&home, &[]) {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let help = home.ok(&[&words[..], &["--help"]].concat());
        if !help.contains("--limit ") {
            continue;
        }
        let output = home.command(&[&words[..], &["--limit", "0"]].concat()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.contains("--limit") && said.contains("at least 1"), "{command:?}: {said}");
        asked += 1;
    }
    assert!(asked > 8, "{asked}");
}
