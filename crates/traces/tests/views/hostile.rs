//! Directories that somebody prepared.

use super::layout::{export, import};
use super::made::{ada, address, files, store, write, write_traces};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use treehold_core::error::ErrorKind;
use treehold_traces::layout::{DAMAGES_MAX, ExportOptions, ImportOptions, export_directory, import_directory};
use treehold_traces::{NewTrace, PathQuery, TraceId, TraceStore, Traces, TracesQuery};

const META: &str = r#"{"trace_id": "t", "uid": "ada"}"#;

#[tokio::test]
async fn links_and_special_files_are_not_read() {
    let (directory, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (root, secret) = (directory.path(), outside.path());
    write(secret, "meta.json", r#"{"trace_id": "linked"}"#);
    write(secret, "m.json", r#"{"role": "user", "sequence": 1, "content": "secret"}"#);
    symlink(secret, root.join("linked")).unwrap();
    write(root, "t/meta.json", META);
    symlink(secret.join("m.json"), root.join("t/secret.json")).unwrap();
    symlink(secret, root.join("t/messages")).unwrap();
    symlink(secret, root.join("t/more")).unwrap();
    symlink(secret.join("meta.json"), root.join("t/goal.json")).unwrap();
    let _socket = UnixListener::bind(root.join("t/events.jsonl")).unwrap();
    fs::create_dir(root.join("u")).unwrap();
    symlink(root.join("t/meta.json"), root.join("u/meta.json")).unwrap();
    fs::create_dir(root.join("v")).unwrap();
    write(root, "v/meta.json", META.replace("\"t\"", "\"v\""));
    fs::create_dir(root.join("v/messages")).unwrap();
    symlink(secret.join("m.json"), root.join("v/messages/v-0001.json")).unwrap();

    let traces = ada(&store());
    let report = import(&traces, root).await;
    let kinds: Vec<(&str, ErrorKind)> =
        report.failures.iter().map(|(path, error)| (path.rsplit('/').next().unwrap(), error.kind())).collect();
    assert_eq!(kinds, [("linked", ErrorKind::Unsupported), ("t", ErrorKind::PermissionDenied), ("u", ErrorKind::PermissionDenied)]);
    assert_eq!(report.traces.len(), 1);
    assert_eq!((report.traces[0].id.as_str(), report.traces[0].messages, report.traces[0].damages_count), ("v", 0, 1));

    fs::remove_file(root.join("t/goal.json")).unwrap();
    let report = import(&traces, root).await;
    let trace = report.traces.iter().find(|trace| trace.id.as_str() == "t").unwrap();
    assert_eq!((trace.messages, trace.events, trace.other_files), (0, 0, 0));
    let refused: Vec<&str> = trace.damages.iter().map(|damage| damage.path.as_str()).collect();
    assert_eq!(refused, ["events.jsonl", "messages", "more", "secret.json"]);
}

#[tokio::test]
async fn export_writes_nothing_through_links() {
    let (original, exported, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_traces(original.path());
    let traces = ada(&store());
    import(&traces, original.path()).await;
    write(outside.path(), "victim", "untouched");
    symlink(outside.path(), exported.path().join("abc-123")).unwrap();
    write(exported.path(), "only-meta/x", "kept");
    symlink(outside.path().join("victim"), exported.path().join("only-meta/meta.json")).unwrap();
    let report = export_directory(&traces, exported.path(), &ExportOptions::new().with_sync(false)).await.unwrap();
    let failed: Vec<(&str, ErrorKind)> = report.failures.iter().map(|(id, error)| (id.as_str(), error.kind())).collect();
    assert_eq!(failed, [("abc-123", ErrorKind::PermissionDenied)]);
    assert_eq!(files(outside.path()), [("victim".to_owned(), b"untouched".to_vec())].into());
    let meta = exported.path().join("only-meta/meta.json");
    assert!(!fs::symlink_metadata(&meta).unwrap().is_symlink(), "the link was replaced");
    assert_eq!(fs::read(meta).unwrap(), fs::read(original.path().join("only-meta/meta.json")).unwrap());
}

#[tokio::test]
async fn traces_that_tell_another_id_or_none_are_failures() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    write(root, "none/goal.json", "{}");
    write(root, "other/meta.json", META);
    write(root, "array/meta.json", "[]");
    write(root, "deep/meta.json", format!("{{\"trace_id\": \"deep\", \"x\": {}{}}}", "[".repeat(5_000), "]".repeat(5_000)));
    write(root, "_treehold/meta.json", r#"{"trace_id": "_treehold"}"#);
    write(root, "number/meta.json", r#"{"trace_id": "number", "uid": 7}"#);
    write(root, "huge/meta.json", format!("{{\"trace_id\": \"huge\", \"task\": \"{}\"}}", "x".repeat(300 << 10)));
    fs::create_dir(root.join(OsStr::from_bytes(b"\xff"))).unwrap();
    write(root, "file", "");
    write(root, "t/meta.json", META);
    let store = store();
    let traces = ada(&store);
    let report = import(&traces, root).await;
    let failed: Vec<(String, ErrorKind)> =
        report.failures.iter().map(|(path, error)| (path.rsplit('/').next().unwrap().to_owned(), error.kind())).collect();
    let expected = [
        ("file", ErrorKind::Unsupported),
        ("\u{fffd}", ErrorKind::Unsupported),
        ("_treehold", ErrorKind::InvalidArgument),
        ("array", ErrorKind::Corrupt),
        ("deep", ErrorKind::Corrupt),
        ("huge", ErrorKind::TooLarge),
        ("none", ErrorKind::Corrupt),
        ("number", ErrorKind::Corrupt),
        ("other", ErrorKind::Corrupt),
    ];
    assert_eq!(failed, expected.map(|(name, kind)| (name.to_owned(), kind)));
    assert_eq!(traces.list_traces(&TracesQuery::default()).await.unwrap().total, 1);
}

#[tokio::test]
async fn sequences_and_event_ids_cannot_make_the_import_large() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    write(
        root,
        "t/meta.json",
        r#"{"trace_id": "t", "head_sequence": 7, "last_sequence": 9007199254740992, "last_event_id": 9007199254740992}"#,
    );
    for (name, text) in [
        ("a", r#"{"role": "user", "sequence": 1}"#),
        ("b", r#"{"role": "user", "sequence": 2, "parent_sequence": 9}"#),
        ("c", r#"{"role": "user", "sequence": 3, "parent_sequence": 3}"#),
        ("d", r#"{"role": "user", "sequence": 9007199254740992}"#),
        ("e", r#"{"role": "user", "sequence": 18446744073709551615}"#),
        ("f", r#"{"role": "user", "sequence": -1}"#),
        ("g", r#"{"role": "", "sequence": 4}"#),
        ("t-0005", r#"{"role": "user", "sequence": 6}"#),
        ("h", r#"{"role": "user", "sequence": 5, "parent_sequence": 4, "tokens": 9007199254740993}"#),
    ] {
        write(root, &format!("t/messages/{name}.json"), text);
    }
    write(
        root,
        "t/events.jsonl",
        "{\"event\": \"x\", \"event_id\": 9007199254740992}\n{\"event\": \"x\", \"event_id\": 18446744073709551615}\n{\"event\": \"\", \"event_id\": 1}\n",
    );
    let traces = ada(&store());
    let report = import(&traces, root).await;
    assert!(report.failures.is_empty(), "{report:?}");
    let trace = traces.get_trace(&address("t")).await.unwrap().unwrap();
    // The file `t-0005.json` shows that there was a fifth message.
    assert_eq!((trace.last_sequence, trace.head_sequence, trace.last_event_id), (5, 1, 1));
    let imported = &report.traces[0];
    assert_eq!((imported.messages, imported.events, imported.other_files), (1, 0, 8));
    let exported = tempfile::tempdir().unwrap();
    export(&traces, exported.path()).await;
    super::made::assert_same(root, exported.path());
    let path = traces.get_main_path(&address("t"), &PathQuery::default()).await.unwrap();
    assert_eq!(path.messages.len(), 1);
}

#[tokio::test]
async fn report_of_many_damages_is_bounded() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), "t/meta.json", META);
    write(directory.path(), "t/events.jsonl", "x\n".repeat(5_000));
    let report = import(&ada(&store()), directory.path()).await;
    assert_eq!((report.traces[0].damages.len(), report.traces[0].damages_count), (DAMAGES_MAX, 5_000));
    assert_eq!(report.traces[0].damages[999].line, Some(1_000));
}

#[tokio::test]
async fn traces_of_other_users_are_left_out_unless_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    write_traces(directory.path());
    let store = store();
    let bob = Traces::new(store.clone()).for_user("acme", "bob").unwrap();
    let report = import(&bob, directory.path()).await;
    assert_eq!((report.traces.len(), report.left_out), (3, 1));
    assert!(bob.get_trace(&address("abc-123")).await.unwrap().is_none());
    let report = import_directory(&bob, directory.path(), &ImportOptions::new().with_any_user(true)).await.unwrap();
    assert_eq!((report.traces.len(), report.left_out), (4, 0));
    assert_eq!(bob.get_trace(&address("abc-123")).await.unwrap().unwrap().uid.as_deref(), Some("bob"));

    // Ids are unique within a tenant, and nothing of another user's trace is told or changed.
    let ada = ada(&store);
    let report = import(&ada, directory.path()).await;
    assert_eq!((report.traces.len(), report.failures.len()), (0, 4));
    assert!(report.failures.iter().all(|(_, error)| error.kind() == ErrorKind::PermissionDenied), "{:?}", report.failures);
    let exported = tempfile::tempdir().unwrap();
    let options = ExportOptions::new().with_among([TraceId::new("abc-123").unwrap()]);
    let report = export_directory(&ada, exported.path(), &options).await.unwrap();
    assert_eq!(report.failures[0].1.kind(), ErrorKind::PermissionDenied);
    assert!(files(exported.path()).is_empty());
    let other = Traces::new(store).for_user("other", "ada").unwrap();
    assert_eq!(import(&other, directory.path()).await.traces.len(), 4, "another tenant has ids of its own");
}

#[tokio::test]
async fn trace_that_was_created_with_the_same_id_is_not_changed() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), "t/meta.json", META);
    let traces = ada(&store());
    let made = traces.create_trace(NewTrace::new("mine").with_id(address("t"))).await.unwrap();
    let report = import(&traces, directory.path()).await;
    assert_eq!(report.failures[0].1.kind(), ErrorKind::AlreadyExists);
    assert_eq!(traces.get_trace(&address("t")).await.unwrap(), Some(made));
}
