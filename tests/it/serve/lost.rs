//! Answers of the database that are lost while another server goes on with the same thread: tool calls and plain changes, on each server
//! engine. Every change that was acknowledged is there once, one that was refused is not there, and one whose end nobody knows is there
//! once or not.
//!
//! `STRATAFS_LOST_ANSWERS` sets how many answers are lost on each engine.

#![allow(clippy::print_stdout, reason = "figures, and what is skipped, are said")]

use super::{Served, workspace};
use crate::servers::proxy::{Break, Proxy};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use stratafs::store::Store;
use tokio::runtime::Runtime;
use ureq::Agent;
use ureq::http::Request;

/// How many answers are lost when nobody says.
const LOST: usize = 60;

/// The most exchanges of one request with the database that one of is broken.
const EXCHANGES: usize = 8;

const JSON: &str = "application/json";

/// What became of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Fate {
    Acknowledged,
    /// Nobody knows.
    Open,
    Refused,
}

/// A change, and where it is found: a text that has to be in each of some files once.
struct Change {
    method: &'static str,
    path: String,
    media: &'static str,
    body: Vec<u8>,
    text: String,
    files: &'static [&'static str],
}

impl Change {
    /// Makes a change of each kind in turn.
    fn new(number: usize) -> Self {
        let text = format!("<{number}>");
        let line = format!("{text}\n");
        let edit = json!({"path": "/marks", "old_string": "end", "new_string": format!("{line}end")});
        let edits = json!({"edits": [{"old": "end", "new": format!("{line}end")}]});
        let append = |path: &str| json!({"operation": "append", "path": path, "content": line});
        let batch = json!({"changes": [append("/log"), append("/other")]});
        let tool = json!({"path": "/log", "content": line, "mode": "append"});
        let patch = format!("*** Begin Patch\n*** Update File: /patched\n@@\n-end\n+{text}\n+end\n*** End Patch");
        let moved = json!({"from": format!("/seeds/{number}"), "to": format!("/grown/{number}")});
        let (method, path, media, body, files): (_, &str, _, String, &[&str]) = match number % 7 {
            0 => ("POST", "/v1/fs/log", "text/plain", line, &["/log"]),
            1 => ("POST", "/v1/tools/write_file", JSON, tool.to_string(), &["/log"]),
            2 => ("POST", "/v1/apply", JSON, batch.to_string(), &["/log", "/other"]),
            3 => ("POST", "/v1/tools/edit_file", JSON, edit.to_string(), &["/marks"]),
            4 => ("PATCH", "/v1/fs/marks", JSON, edits.to_string(), &["/marks"]),
            5 => ("POST", "/v1/tools/apply_patch", JSON, json!({"patch": patch}).to_string(), &["/patched"]),
            _ => ("POST", "/v1/move", JSON, moved.to_string(), &["/grown"]),
        };
        Self { method, path: path.to_owned(), media, body: body.into_bytes(), text, files }
    }

    /// Makes it over HTTP.
    fn send(&self, agent: &Agent, base: &str) -> Fate {
        let request = Request::builder().method(self.method).uri(format!("{base}{}", self.path)).header("content-type", self.media);
        let mut response = agent.run(request.body(&*self.body).unwrap()).unwrap();
        let status = response.status().as_u16();
        let answer: Value = serde_json::from_str(&response.body_mut().read_to_string().unwrap()).unwrap();
        let error = match status {
            200..300 if answer["is_error"] == true => &answer["error"],
            200..300 => return Fate::Acknowledged,
            _ => &answer,
        };
        // No change is refused for what the other server does: both change other lines.
        let code = error["code"].as_str().unwrap();
        assert!(["unavailable", "deadline", "internal"].contains(&code) || error["may_have_effect"] == true, "{}: {answer}", self.path);
        if error["may_have_effect"] == true { Fate::Open } else { Fate::Refused }
    }
}

fn agent() -> Agent {
    Agent::config_builder().http_status_as_error(false).build().new_agent()
}

/// Reads a file of the thread; the names in it where it is a directory.
fn read(served: &Served, file: &str) -> String {
    match file {
        "/grown" => {
            let listing = served.post("/v1/tree", &json!({"path": file, "limit": 100_000})).json();
            let entries = listing["entries"].as_array().unwrap().clone();
            entries.iter().map(|entry| format!("<{}>", entry["path"].as_str().unwrap().rsplit('/').next().unwrap())).collect()
        }
        file => served.get(&format!("/v1/fs{file}")).text(),
    }
}

/// Loses answers between one server and its database, while another goes on with the same thread.
fn lose(engine: &str, near: Arc<dyn Store>, cut: Arc<dyn Store>, proxy: &Proxy, runtime: Runtime) {
    let lost: usize = std::env::var("STRATAFS_LOST_ANSWERS").ok().and_then(|count| count.parse().ok()).unwrap_or(LOST);
    let other = Served::of(Runtime::new().unwrap(), workspace(&near), near, |options| options);
    let seeds: Vec<Value> = (0..lost * 4)
        .filter(|number| number % 7 == 6)
        .map(|number| json!({"operation": "write", "path": format!("/seeds/{number}"), "content": "x"}))
        .chain(["/marks", "/patched"].map(|path| json!({"operation": "write", "path": path, "content": "end\n"})))
        .chain(["/log", "/other", "/theirs", "/grown/0"].map(|path| json!({"operation": "write", "path": path, "content": ""})))
        .collect();
    assert_eq!(other.post("/v1/apply", &json!({"changes": seeds})).status, 200);
    let served = Served::of(runtime, workspace(&cut), cut, |options| options);
    let ended = Arc::new(AtomicBool::new(false));
    let writer = {
        let (ended, base) = (ended.clone(), other.base.clone());
        std::thread::spawn(move || {
            let (agent, mut count) = (agent(), 0);
            while !ended.load(Ordering::Relaxed) {
                let sent = agent.post(format!("{base}/v1/fs/theirs")).send(format!("<{count}>\n")).unwrap();
                assert!(sent.status().as_u16() < 300, "{}", sent.status());
                count += 1;
            }
            count
        })
    };
    let (agent, mut changes, mut fates) = (agent(), Vec::new(), HashMap::new());
    let mut broken = 0;
    while broken < lost {
        let number = changes.len();
        let change = Change::new(number);
        // At each exchange of a request in turn, before it arrives or after.
        let at = if number % 3 == 0 { Break::Request } else { Break::Answer };
        proxy.break_after((number / 7) % EXCHANGES, at);
        let fate = change.send(&agent, &served.base);
        broken += usize::from(!proxy.mend());
        *fates.entry(fate).or_insert(0) += 1;
        changes.push((change, fate));
        assert!(changes.len() < lost * 4, "{broken} of {} requests met a break", changes.len());
    }
    // What could not be saved is saved, or set aside, before the next change of the thread.
    assert_eq!(Change::new(lost * 28).send(&agent, &served.base), Fate::Acknowledged);
    ended.store(true, Ordering::Relaxed);
    let theirs: usize = writer.join().unwrap();
    let files: HashMap<&str, String> =
        ["/log", "/other", "/marks", "/patched", "/grown", "/theirs"].into_iter().map(|file| (file, read(&other, file))).collect();
    for (change, fate) in &changes {
        let counts: Vec<usize> = change.files.iter().map(|file| files[file].matches(&change.text).count()).collect();
        let is_right = match fate {
            Fate::Acknowledged => counts.iter().all(|count| *count == 1),
            Fate::Refused => counts.iter().all(|count| *count == 0),
            // All of a change or nothing of it.
            Fate::Open => counts.iter().all(|count| *count <= 1 && *count == counts[0]),
        };
        assert!(is_right, "{engine}: {} {} `{}` was {fate:?} and is there {counts:?} times", change.method, change.path, change.text);
    }
    for count in 0..theirs {
        assert_eq!(files["/theirs"].matches(&format!("<{count}>\n")).count(), 1, "{engine}: the other server's own {count}");
    }
    println!("{engine}: {broken} answers lost in {} changes beside {theirs} of another server: {fates:?}", changes.len());
    served.stop().unwrap();
    other.stop().unwrap();
}

#[cfg(feature = "postgres")]
#[test]
fn postgres_change_whose_answer_is_lost_is_made_once_beside_another_writer() {
    use crate::servers::postgres;
    use stratafs::store::{PostgresOptions, PostgresStore};

    let runtime = Runtime::new().unwrap();
    let opened = runtime.block_on(async {
        let schema = postgres::schema().await?;
        let (proxy, url) = postgres::proxied(&schema).await;
        let near = PostgresStore::open_with(schema.options()).await.unwrap();
        let cut = PostgresStore::open_with(PostgresOptions::new(url).with_schema(&schema.name)).await.unwrap();
        Ok::<_, String>((schema, proxy, near, cut))
    });
    match opened {
        Ok((_schema, proxy, near, cut)) => lose("PostgreSQL", Arc::new(near), Arc::new(cut), &proxy, runtime),
        Err(reason) => println!("skipped: {reason}"),
    }
}

#[cfg(feature = "mysql")]
#[test]
fn mysql_change_whose_answer_is_lost_is_made_once_beside_another_writer() {
    use crate::servers::mysql;
    use stratafs::store::{MysqlOptions, MysqlStore};

    let runtime = Runtime::new().unwrap();
    let opened = runtime.block_on(async {
        let database = mysql::database().await?;
        let (proxy, url) = mysql::proxied(&database).await;
        let near = MysqlStore::open_with(MysqlOptions::new(database.url.clone())).await.unwrap();
        let cut = MysqlStore::open_with(MysqlOptions::new(url)).await.unwrap();
        Ok::<_, String>((database, proxy, near, cut))
    });
    match opened {
        Ok((_database, proxy, near, cut)) => lose("MariaDB", Arc::new(near), Arc::new(cut), &proxy, runtime),
        Err(reason) => println!("skipped: {reason}"),
    }
}

#[cfg(feature = "redis")]
#[test]
fn redis_change_whose_answer_is_lost_is_made_once_beside_another_writer() {
    use crate::servers::redis;
    use stratafs::store::{RedisOptions, RedisStore};

    let runtime = Runtime::new().unwrap();
    let opened = runtime.block_on(async {
        let prefix = redis::prefix().await?;
        let (proxy, url) = redis::proxy().await;
        let near = RedisStore::open_with(RedisOptions::new(redis::server()).with_prefix(&prefix.name)).await.unwrap();
        let cut = RedisStore::open_with(RedisOptions::new(url).with_prefix(&prefix.name)).await.unwrap();
        Some((prefix, proxy, near, cut))
    });
    if let Some((_prefix, proxy, near, cut)) = opened {
        lose("Redis", Arc::new(near), Arc::new(cut), &proxy, runtime);
    }
}
