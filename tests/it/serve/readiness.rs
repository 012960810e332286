//! `/readyz` returns 200 exactly as long as changes can be stored.

use super::Served;
#[cfg(all(feature = "cli", unix))]
use super::process::{Process, agent, ask};
use std::collections::BTreeSet;
use std::time::Instant;
use treehold::store::Namespace;

#[test]
fn probes_in_one_second_share_one_commit() {
    let served = Served::start();
    let row = Namespace::new(["_treehold", "answers"]).unwrap();
    let (begun, mut versions) = (Instant::now(), BTreeSet::new());
    for _ in 0..50 {
        assert_eq!(served.get("/readyz").status, 200);
        versions.extend(served.block_on(served.store.get(&row, "ready")).unwrap().map(|item| item.version));
    }
    let (commits, seconds) = (versions.len() as u64, begun.elapsed().as_secs());
    assert!((1..=seconds + 1).contains(&commits), "{commits} commits in {seconds} s");
}

/// Polls until the response has a status, since the result of a probe is cached for a second.
#[cfg(all(feature = "cli", unix))]
fn becomes(base: &str, status: u16) {
    let (agent, begun) = (agent(), Instant::now());
    loop {
        let (found, body) = ask(&agent, "GET", &format!("{base}/readyz"), &[], b"").unwrap();
        if found == status {
            return;
        }
        assert!(begun.elapsed() < super::PATIENCE, "{found} and not {status}: {}", String::from_utf8_lossy(&body));
        std::thread::yield_now();
    }
}

#[cfg(all(feature = "cli", unix))]
#[test]
fn server_is_not_ready_and_acknowledges_nothing_after_its_store_is_moved() {
    let rows: &[(&str, &str)] = &[
        #[cfg(feature = "sqlite")]
        ("sqlite:store.db", "store.db"),
        #[cfg(feature = "sqlite")]
        ("sqlite:store.db", "store.db-wal"),
        #[cfg(feature = "sled")]
        ("sled:store.sled", "store.sled/db"),
        #[cfg(feature = "sled")]
        ("sled:store.sled", "store.sled"),
    ];
    for (url, file) in rows {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("treehold.toml"), format!("[stores.default]\nurl = \"{url}\"\n")).unwrap();
        let server = Process::start_with(home.path(), &["--host-routes", "/agentrail"]);
        let (base, agent) = (server.base(), agent());
        let put = |name: &str| ask(&agent, "PUT", &format!("{base}/v1/fs/{name}"), &[], b"x").unwrap().0;
        assert_eq!(put("first"), 201);
        becomes(&base, 200);
        let (file, aside) = (home.path().join(file), home.path().join("aside"));
        std::fs::rename(&file, &aside).unwrap();
        becomes(&base, 503);
        let (status, body) = ask(&agent, "GET", &format!("{base}/agentrail/ready"), &[], b"").unwrap();
        let said = String::from_utf8(body).unwrap();
        assert!(status == 503 && said.starts_with(r#"{"status":"not_ready","checks":[{"name":"session_store","status":"fail","#), "{said}");
        assert_eq!(put("second"), 503, "{url}: {} is gone", file.display());
        if aside.is_file() {
            std::fs::copy(&aside, &file).unwrap();
            assert_eq!(put("third"), 503, "{url}: another is at {}", file.display());
            std::fs::remove_file(&file).unwrap();
        }
        std::fs::rename(&aside, &file).unwrap();
        becomes(&base, 200);
        assert_eq!(put("fourth"), 201, "{url}: {} is back", file.display());
    }
}
