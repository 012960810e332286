//! Traces as files of a tree.

use super::gate::Gate;
use super::made::{ada, address, store, write_traces};
use std::sync::Arc;
use treehold_core::error::ErrorKind;
use treehold_core::ops::{GlobOptions, GrepCursor, GrepOptions, GrepOutput, LsOptions, ReadOptions, ReadRange, SearchOptions, StatOptions};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::text;
use treehold_store::Store;
use treehold_traces::files::{PATH_MESSAGES_MAX, TraceFiles};
use treehold_traces::{AddOptions, MessageRef, MessageUpdate, NewGoal, NewMessage, NewTrace, StoredTraces, TraceStore, Traces};
use treehold_tree::backend::{Backend, BackendExt, StateBackend};
use treehold_tree::layer::{Operations, Permissions, Rule};

fn path(text: &str) -> VfsPathBuf {
    VfsPathBuf::parse(text).unwrap()
}

fn shown(traces: &StoredTraces) -> TraceFiles {
    TraceFiles::new(Arc::new(traces.clone()))
}

async fn make(traces: &StoredTraces, id: &str, messages: usize) {
    let id = address(id);
    traces.create_trace(NewTrace::new("make tea").with_id(id.clone())).await.unwrap();
    for first in (0..messages).step_by(500) {
        let added = (first..messages.min(first + 500)).map(|number| {
            let role = if number % 2 == 0 { "user" } else { "assistant" };
            NewMessage::text(role, &format!("message {number}: {}\n", if number % 700 == 0 { "needle" } else { "hay" }))
        });
        traces.add_messages(&id, added.collect(), &AddOptions::new()).await.unwrap();
    }
}

/// Some traces: an empty one, some with branches and goals, and imported ones.
async fn some_traces() -> (StoredTraces, TraceFiles) {
    let traces = ada(&store());
    make(&traces, "b", 12).await;
    make(&traces, "a%", 3).await;
    make(&traces, ".hidden", 1).await;
    make(&traces, "empty", 0).await;
    traces.add_goal(&address("b"), NewGoal::new("boil the needle")).await.unwrap();
    let rewind = NewMessage::text("user", "another needle").with_parent(3);
    traces.add_messages(&address("b"), vec![rewind], &AddOptions::new()).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    write_traces(directory.path());
    super::layout::import(&traces, directory.path()).await;
    let files = shown(&traces);
    (traces, files)
}

/// Copies a tree into one in memory, which the conformance kit covers.
async fn copied(files: &TraceFiles) -> StateBackend {
    let copy = StateBackend::new();
    for entry in files.glob(VfsPath::ROOT, &GlobOptions::new("**").with_hidden(true).with_directories(true)).await.unwrap().entries {
        if entry.is_directory() {
            copy.create_dir(entry.path.as_str()).await.unwrap();
        } else {
            copy.write(entry.path.as_str(), files.read_bytes(entry.path.as_str()).await.unwrap()).await.unwrap();
        }
    }
    copy
}

#[tokio::test]
async fn trace_is_shown_as_its_files() {
    let (traces, files) = some_traces().await;
    let names = |directory: &'static str| {
        let files = files.clone();
        async move {
            files
                .ls(&path(directory), &LsOptions::new())
                .await
                .unwrap()
                .entries
                .iter()
                .map(|entry| entry.name().to_owned())
                .collect::<Vec<_>>()
        }
    };
    let sub_trace = super::made::SUB_TRACE;
    assert_eq!(names("/").await, [".hidden", "a%25", "abc-123", sub_trace, "b", "empty", "odd-goals", "only-meta"]);
    assert_eq!(names("/b").await, ["events.jsonl", "goal.json", "messages", "meta.json", "path.md"]);
    assert_eq!(names("/a%25/messages").await, ["00000001-user.json", "00000002-assistant.json", "00000003-user.json"]);
    assert!(names("/empty/messages").await.is_empty());
    let meta: serde_json::Value = serde_json::from_str(&files.read_text("/b/meta.json").await.unwrap()).unwrap();
    assert_eq!((&meta["trace_id"], &meta["head_sequence"]), (&"b".into(), &13.into()));
    let goals: serde_json::Value = serde_json::from_str(&files.read_text("/b/goal.json").await.unwrap()).unwrap();
    assert_eq!(goals["goals"][0]["description"], "boil the needle");
    let events = files.read_text("/b/events.jsonl").await.unwrap();
    assert_eq!(events.lines().count() as u64, traces.get_trace(&address("b")).await.unwrap().unwrap().last_event_id);
    let transcript = files.read_text("/b/path.md").await.unwrap();
    assert!(transcript.contains("## 3 user\n\nmessage 2: hay\n\n## 13 user\n\nanother needle\n"), "{transcript}");
    assert!(!transcript.contains("## 4 "), "the other branch is not part of the path: {transcript}");
}

#[tokio::test]
async fn what_does_not_exist_is_not_found_and_nothing_can_be_written() {
    let (_, files) = some_traces().await;
    for (missing, kind) in [
        ("/none", ErrorKind::NotFound),
        ("/none/meta.json", ErrorKind::NotFound),
        ("/b/other", ErrorKind::NotFound),
        ("/a%", ErrorKind::NotFound),
        ("/b/messages/00000099-user.json", ErrorKind::NotFound),
        ("/b/messages/00000001-assistant.json", ErrorKind::NotFound),
        ("/b/messages/1-user.json", ErrorKind::NotFound),
        ("/b/messages/x/y", ErrorKind::NotFound),
        ("/b/meta.json/x", ErrorKind::NotADirectory),
        ("/b/messages/00000001-user.json/x/y", ErrorKind::NotADirectory),
        ("/none/meta.json/x", ErrorKind::NotFound),
        ("/@laptop%2Fx", ErrorKind::InvalidArgument),
    ] {
        let error = files.stat(&path(missing), &StatOptions::new()).await.unwrap_err();
        assert_eq!((error.kind(), error.path().map(VfsPath::as_str)), (kind, Some(missing)), "{error:?}");
        assert_eq!(files.read(&path(missing), &ReadOptions::new()).await.unwrap_err().kind(), kind, "{missing}");
        assert_eq!(files.ls(&path(missing), &LsOptions::new()).await.unwrap_err().kind(), kind, "{missing}");
        assert_eq!(files.glob(&path(missing), &GlobOptions::new("*")).await.unwrap_err().kind(), kind, "{missing}");
        assert_eq!(files.grep(&path(missing), &GrepOptions::new("x")).await.unwrap_err().kind(), kind, "{missing}");
        assert_eq!(files.search(&path(missing), &SearchOptions::new("x")).await.unwrap_err().kind(), kind, "{missing}");
    }
    assert_eq!(files.read_bytes("/b/messages").await.unwrap_err().kind(), ErrorKind::IsDirectory);
    assert_eq!(files.ls(&path("/b/meta.json"), &LsOptions::new()).await.unwrap_err().kind(), ErrorKind::NotADirectory);
    assert_eq!(files.write("/b/meta.json", "x").await.unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(files.delete_all("/b").await.unwrap_err().kind(), ErrorKind::ReadOnly);
    assert!(!files.capabilities().writable);
}

#[tokio::test]
async fn every_entry_of_a_listing_equals_its_stat_and_its_content() {
    let (_, files) = some_traces().await;
    let all = files.glob(VfsPath::ROOT, &GlobOptions::new("**").with_hidden(true).with_directories(true)).await.unwrap();
    assert!(all.entries.len() > 60 && all.truncated.is_none());
    for entry in all.entries {
        assert_eq!(files.stat(&entry.path, &StatOptions::new()).await.unwrap(), entry);
        let parent = entry.path.parent().unwrap();
        let listed = files.ls(parent, &LsOptions::new()).await.unwrap().entries;
        assert!(listed.contains(&entry), "{entry:?}");
        if !entry.is_directory() {
            let read = files.read(&entry.path, &ReadOptions::new()).await.unwrap();
            assert_eq!(
                (read.content.len() as u64, Some(read.version), read.modified_at),
                (entry.size_bytes, entry.version, entry.modified_at)
            );
        }
    }
}

#[tokio::test]
async fn parts_of_every_file_equal_parts_of_its_content() {
    let (traces, files) = some_traces().await;
    make(&traces, "long", 1_300).await;
    for file in
        ["/b/meta.json", "/b/messages/00000001-user.json", "/b/path.md", "/b/events.jsonl", "/long/events.jsonl", "/odd-goals/events.jsonl"]
    {
        let whole = files.read_bytes(file).await.unwrap();
        let (bytes, lines) = (whole.len() as u64, text::count_lines(&whole));
        let mut ranges = vec![ReadOptions::new().with_bytes_max(10)];
        for offset in [0, 1, bytes / 3, bytes / 2 + 1, bytes, bytes + 1] {
            ranges.extend([0, 1, 1_000, u64::MAX].map(|limit| ReadOptions::bytes(offset, limit)));
        }
        for offset in [0, 1, lines / 2, 1_000, lines, lines + 1] {
            ranges.extend([0, 1, 700, usize::MAX].map(|limit| ReadOptions::lines(offset, limit)));
            ranges.push(ReadOptions::lines(offset, usize::MAX).with_bytes_max(2_000));
        }
        for options in ranges {
            match (files.read(&path(file), &options).await, text::cut(&whole, &options)) {
                (Ok(read), Ok((content, window))) => {
                    assert!(read.content == content, "{file} {options:?}");
                    assert_eq!((read.window, read.size_bytes), (window, bytes), "{file} {options:?}");
                }
                (Err(one), Err(other)) => assert_eq!((one.kind(), one.message()), (other.kind(), other.message()), "{file} {options:?}"),
                (one, other) => panic!("{file} {options:?}: {one:?} {other:?}"),
            }
            if options.range == ReadRange::Whole {
                assert!(bytes <= 10 || files.read(&path(file), &options).await.is_err());
            }
        }
    }
}

/// Searches mean the same as in a tree of stored files with the same contents.
#[tokio::test]
async fn searches_equal_those_in_a_tree_of_stored_files() {
    let (_, files) = some_traces().await;
    let copy = copied(&files).await;
    let root = ["/", "/b", "/b/messages"];
    for pattern in [
        "**",
        "*.json",
        "*/meta.json",
        "b/**",
        "/b/messages/*user*",
        "**/path.md",
        "abc-*/messages/0000000[1-3]*",
        "{b,empty}/*",
        "none/*",
        ".*/**",
        "*/messages/",
    ] {
        for hidden in [false, true] {
            for directories in [false, true] {
                for root in root {
                    let options = GlobOptions::new(pattern).with_hidden(hidden).with_directories(directories);
                    let paths = |result: treehold_core::ops::GlobResult| -> Vec<(String, u64)> {
                        result.entries.iter().map(|entry| (entry.path.to_string(), entry.size_bytes)).collect()
                    };
                    let expected = paths(copy.glob(&path(root), &options).await.unwrap());
                    assert_eq!(paths(files.glob(&path(root), &options).await.unwrap()), expected, "{pattern} in {root}");
                    // Pages add up to the whole.
                    for limit in [1, 3] {
                        let (mut found, mut page) = (Vec::new(), options.clone().with_limit(limit));
                        loop {
                            let result = files.glob(&path(root), &page).await.unwrap();
                            let cut = result.truncated.clone();
                            found.extend(paths(result));
                            match cut {
                                Some(cut) => page.start_after = Some(cut.next_after(page.start_after.as_ref()).unwrap()),
                                None => break,
                            }
                        }
                        assert_eq!(found, expected, "{pattern} in {root}, {limit} at a time");
                    }
                }
            }
        }
    }
    for options in [
        GrepOptions::new("needle"),
        GrepOptions::new("needle").with_output(GrepOutput::Files),
        GrepOptions::new("message").with_output(GrepOutput::Counts),
        GrepOptions::new("\"role\": \"user\"").with_context(1, 1),
        GrepOptions::regex("message [0-9]+: hay").with_matches_max(4),
        GrepOptions::new("message_added").with_include("events.jsonl"),
        GrepOptions::new("needle").with_exclude("messages/"),
        GrepOptions::new("needle").with_type("md"),
        GrepOptions::new("no such text"),
    ] {
        for root in ["/", "/b", "/b/messages", "/b/path.md", "/b/events.jsonl"] {
            let (mut one, mut other) = (options.clone(), options.clone());
            loop {
                let found = files.grep(&path(root), &one).await.unwrap();
                let expected = copy.grep(&path(root), &other).await.unwrap();
                assert_eq!(found, expected, "{options:?} in {root}");
                let Some(cut) = found.truncated else { break };
                let cursor: GrepCursor = cut.next_after(one.start_after.as_ref()).unwrap();
                (one.start_after, other.start_after) = (Some(cursor.clone()), Some(cursor));
            }
        }
    }
    for query in ["needle", "boil tea", "summary pour"] {
        for root in root {
            let ranked =
                |result: treehold_core::ops::SearchResult| -> Vec<String> { result.hits.iter().map(|hit| hit.path.to_string()).collect() };
            let options = SearchOptions::new(query);
            let expected = ranked(copy.search(&path(root), &options).await.unwrap());
            assert_eq!(ranked(files.search(&path(root), &options).await.unwrap()), expected, "{query} in {root}");
        }
    }
}

#[tokio::test]
async fn listings_page_by_name() {
    let (_, files) = some_traces().await;
    for directory in ["/", "/b", "/b/messages"] {
        let whole = files.ls(&path(directory), &LsOptions::new()).await.unwrap().entries;
        for limit in [0, 1, 3, whole.len()] {
            let mut options = LsOptions::new().with_limit(limit);
            let mut found = Vec::new();
            loop {
                let page = files.ls(&path(directory), &options).await.unwrap();
                found.extend(page.entries);
                match page.truncated {
                    Some(cut) if limit > 0 => options.start_after = Some(cut.next_after(options.start_after.as_ref()).unwrap()),
                    cut => break assert_eq!(cut.is_some(), limit == 0),
                }
            }
            assert_eq!(found.len(), if limit == 0 { 0 } else { whole.len() });
            assert!(limit == 0 || found == whole);
        }
        let after = |name: &str| LsOptions::new().with_start_after(name);
        assert_eq!(files.ls(&path(directory), &after("")).await.unwrap().entries, whole);
        assert!(files.ls(&path(directory), &after("~")).await.unwrap().entries.is_empty());
    }
}

#[tokio::test]
async fn version_changes_with_the_content_and_only_then() {
    let (traces, files) = some_traces().await;
    let version = |file: &'static str| {
        let files = files.clone();
        async move { files.stat(&path(file), &StatOptions::new()).await.unwrap().version.unwrap() }
    };
    let watched = [
        "/b/meta.json",
        "/b/goal.json",
        "/b/events.jsonl",
        "/b/path.md",
        "/b/messages/00000001-user.json",
        "/b/messages/00000002-assistant.json",
    ];
    let mut before = Vec::new();
    for file in watched {
        before.push(version(file).await);
        assert_eq!(version(file).await, before[before.len() - 1]);
    }
    let mut update = MessageUpdate::default();
    update.content = Some(treehold_core::json::Json::of("changed").unwrap());
    traces.update_message(&address("b"), &MessageRef::Sequence(1), update).await.unwrap();
    let mut changed = Vec::new();
    for (file, before) in watched.into_iter().zip(before) {
        if version(file).await != before {
            changed.push(file);
        }
    }
    assert_eq!(changed, ["/b/meta.json", "/b/events.jsonl", "/b/path.md", "/b/messages/00000001-user.json"]);
}

#[tokio::test]
async fn users_see_only_their_own_traces() {
    let store = store();
    let (ada, bob) = (ada(&store), Traces::new(store.clone()).for_user("acme", "bob").unwrap());
    make(&ada, "a", 3).await;
    make(&bob, "b", 3).await;
    let other = Traces::new(store).for_user("other", "ada").unwrap();
    for (traces, own, foreign) in [(&ada, "/a", "/b"), (&bob, "/b", "/a")] {
        let files = shown(traces);
        let listed = files.glob(VfsPath::ROOT, &GlobOptions::new("**").with_directories(true)).await.unwrap().entries;
        assert!(listed.len() == 9 && listed.iter().all(|entry| entry.path.starts_with(&path(own))), "{listed:?}");
        for file in ["", "/meta.json", "/events.jsonl", "/messages", "/messages/00000001-user.json", "/path.md"] {
            let file = format!("{foreign}{file}");
            assert_eq!(files.stat(&path(&file), &StatOptions::new()).await.unwrap_err().kind(), ErrorKind::NotFound, "{file}");
            assert_eq!(files.grep(&path(&file), &GrepOptions::new("message")).await.unwrap_err().kind(), ErrorKind::NotFound, "{file}");
        }
        let found = files.grep(VfsPath::ROOT, &GrepOptions::new("message")).await.unwrap().files;
        assert!(!found.is_empty() && found.iter().all(|file| file.path.starts_with(&path(own))));
    }
    assert!(shown(&other).ls(VfsPath::ROOT, &LsOptions::new()).await.unwrap().entries.is_empty());
}

#[tokio::test]
async fn rules_hide_files_of_traces_as_those_of_any_mount() {
    let (_, files) = some_traces().await;
    let rules = vec![Rule::deny(Operations::ALL, ["/b/messages/**", "/abc-123"]).unwrap()];
    let guarded = Permissions::new(rules, files);
    assert_eq!(guarded.read_bytes("/b/messages/00000001-user.json").await.unwrap_err().kind(), ErrorKind::NotFound);
    let found = guarded.grep(VfsPath::ROOT, &GrepOptions::new("\"role\"").with_output(GrepOutput::Files)).await.unwrap().files;
    assert!(!found.is_empty());
    assert!(
        found.iter().all(|file| !file.path.as_str().starts_with("/b/messages/") && !file.path.as_str().starts_with("/abc-123/")),
        "{found:?}"
    );
    let globbed = guarded.glob(VfsPath::ROOT, &GlobOptions::new("abc-123/**")).await.unwrap().entries;
    assert!(globbed.is_empty(), "{globbed:?}");
}

/// A trace of 2,000 messages. The figures are those that the documentation states.
#[tokio::test]
async fn round_trips_do_not_grow_with_each_message() {
    let inner = store();
    let gate = Gate::open(inner);
    let traces = ada(&(gate.clone() as Arc<dyn Store>));
    make(&traces, "t", 2_000).await;
    let files = shown(&traces);
    files.stat(&path("/t/events.jsonl"), &StatOptions::new()).await.unwrap();
    gate.take();

    files.read_bytes("/t/messages/00001000-assistant.json").await.unwrap();
    let one = gate.take();
    assert!(one <= 3, "reading a message takes {one}");

    let listed = files.ls(&path("/t/messages"), &LsOptions::new()).await.unwrap().entries;
    let ls = gate.take();
    assert_eq!(listed.len(), 2_000);
    assert!(ls <= 14, "listing the messages takes {ls}");

    let found = files.glob(VfsPath::ROOT, &GlobOptions::new("**/*assistant.json")).await.unwrap().entries;
    let glob = gate.take();
    assert_eq!(found.len(), 1_000);
    assert!(glob <= 20, "a glob takes {glob}");

    let found = files.grep(VfsPath::ROOT, &GrepOptions::new("needle").with_output(GrepOutput::Files)).await.unwrap().files;
    let grep = gate.take();
    assert_eq!(found.len(), 3 + 1, "three messages, and the path");
    assert!(grep <= 40, "a grep takes {grep}");

    let found = files.search(VfsPath::ROOT, &SearchOptions::new("needle")).await.unwrap();
    let search = gate.take();
    assert_eq!(found.hits.len(), 4);
    assert!(search <= 80, "a search takes {search}");

    let only = files.glob(VfsPath::ROOT, &GlobOptions::new("*/meta.json")).await.unwrap().entries;
    let metas = gate.take();
    assert_eq!(only.len(), 1);
    assert!(metas <= 5, "a glob of descriptions takes {metas}");
    let transcript = files.read_text("/t/path.md").await.unwrap();
    assert!(transcript.contains("Message 1001 is the first one here"));
    assert_eq!(transcript.matches("\n## ").count(), PATH_MESSAGES_MAX);
}

#[tokio::test]
async fn many_traces_are_listed_in_order() {
    let traces = ada(&store());
    for number in (0..250).rev() {
        traces.create_trace(NewTrace::new("one of many").with_id(address(&format!("t{number:03}")))).await.unwrap();
    }
    let files = shown(&traces);
    let found = files.glob(VfsPath::ROOT, &GlobOptions::new("*/meta.json")).await.unwrap().entries;
    let names: Vec<String> = found.iter().map(|entry| entry.path.to_string()).collect();
    assert_eq!(names, (0..250).map(|number| format!("/t{number:03}/meta.json")).collect::<Vec<_>>());
    let page = files.ls(VfsPath::ROOT, &LsOptions::new().with_limit(2).with_start_after("t100")).await.unwrap();
    assert_eq!(page.entries.iter().map(|entry| entry.name().to_owned()).collect::<Vec<_>>(), ["t101", "t102"]);
}
