//! Memory documents and tool results.

use super::support::{SESSION, TENANT, USER, reference, with_session};
use async_trait::async_trait;
use futures::future::join_all;
use std::sync::Arc;
use treehold_core::ErrorKind;
use treehold_core::error::Result;
use treehold_core::ops::{GrepOptions, StatOptions};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_sessions::{
    CompactOptions, MEMO_FILE_BYTES_MAX, MemoMount, MemoScope, Message, NOTES, ReadyStatus, SandboxMemoProvider, SessionHandle,
    SessionStore, Sessions, SideWrites, SummarizeWith, Summarizer, TODO, USER as USER_DOCUMENT, Usage, session_memo, user_memo, view,
};
use treehold_store::Store;
use treehold_tree::backend::{Backend, BackendExt};

/// Documents of the contract and files of the trees are the same bytes.
pub(crate) async fn documents_are_files_that_tools_can_edit(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    let read = async |owner: &str, scope, name: &str| sessions.read_memory_document(TENANT, owner, scope, name).await.unwrap();
    assert_eq!(read(SESSION, MemoScope::Session, NOTES).await, None);
    sessions.write_memory_document(TENANT, SESSION, MemoScope::Session, NOTES, "plan: tea\n").await.unwrap();
    sessions.write_memory_document(TENANT, USER, MemoScope::User, USER_DOCUMENT, "likes tea\n").await.unwrap();
    sessions.todo_storage(reference()).write("- [ ] tea\n").await.unwrap();
    let own = session_memo(store.clone(), TENANT, USER, SESSION).unwrap();
    let users = user_memo(store.clone(), TENANT, USER).unwrap();
    assert_eq!(own.read_text("/NOTES.md").await.unwrap(), "plan: tea\n");
    assert_eq!(users.read_text("/USER.md").await.unwrap(), "likes tea\n");
    let found = own.grep(VfsPath::ROOT, &GrepOptions::new("tea")).await.unwrap();
    assert_eq!(found.matches(), 2);
    // The methods of the contract read what a tool wrote.
    own.edit("/NOTES.md", "tea", "coffee").await.unwrap();
    assert_eq!(read(SESSION, MemoScope::Session, NOTES).await.as_deref(), Some("plan: coffee\n"));
    assert_eq!(read(SESSION, MemoScope::Session, TODO).await, sessions.todo_storage(reference()).read().await.unwrap());
}

/// Appends to a document are atomic.
pub(crate) async fn concurrent_document_appends_are_all_kept(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    let lines: Vec<String> = (0..16).map(|number| format!("line {number}\n")).collect();
    let append = |line: &String| {
        let (sessions, line) = (sessions.clone(), line.clone());
        async move { sessions.append_memory_document(TENANT, SESSION, MemoScope::Session, NOTES, &line).await.unwrap() }
    };
    join_all(lines.iter().map(append)).await;
    let notes = sessions.read_memory_document(TENANT, SESSION, MemoScope::Session, NOTES).await.unwrap().unwrap();
    assert_eq!(notes.lines().count(), 16);
    assert!(lines.iter().all(|line| notes.contains(line.as_str())));
}

/// Results are stored under the exact id of their call; a second write replaces the first.
pub(crate) async fn tool_results_of_similar_ids_stay_distinct(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    let session = reference();
    assert!(sessions.list_tool_result_ids(&session).await.unwrap().is_empty());
    let ids = ["call_1", "a/b", "a%2Fb", "..", "é"];
    for id in ids {
        sessions.write_tool_result(&session, id, "first").await.unwrap();
        sessions.write_tool_result(&session, id, &format!("of {id}")).await.unwrap();
    }
    for id in ids {
        assert_eq!(sessions.read_tool_result(&session, id).await.unwrap().as_deref(), Some(format!("of {id}").as_str()));
    }
    assert_eq!(sessions.read_tool_result(&session, "call_2").await.unwrap(), None);
    let mut listed = sessions.list_tool_result_ids(&session).await.unwrap();
    listed.sort();
    let mut expected = ids.map(str::to_owned);
    expected.sort();
    assert_eq!(listed, expected);
    let tree = session_memo(store.clone(), TENANT, USER, SESSION).unwrap();
    assert_eq!(tree.read_text("/tool-results/call_1.txt").await.unwrap(), "of call_1");
}

/// The index lists every document with its path, estimated size, time and summary.
pub(crate) async fn memory_index_describes_existing_and_missing_documents(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    sessions.write_memory_document(TENANT, USER, MemoScope::User, USER_DOCUMENT, "<!-- summary: likes tea -->\nx").await.unwrap();
    let index = sessions.memory_index(TENANT, SESSION).await.unwrap();
    let lines: Vec<_> = index.iter().map(|entry| (entry.path.as_str(), entry.exists, entry.size_tokens_approx)).collect();
    let expected = [
        ("/workspace/memo/user/USER.md", true, 10),
        ("/workspace/memo/session/NOTES.md", false, 0),
        ("/workspace/memo/session/TODO.md", false, 0),
    ];
    assert_eq!(lines, expected);
    assert_eq!(index[0].summary.as_deref(), Some("likes tea"));
    assert!(index[0].updated_at.is_some() && index[1].updated_at.is_none());
}

/// Only the listed documents exist. An unknown session has none and takes no writes.
pub(crate) async fn writes_to_unknown_sessions_and_names_are_refused(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    for (scope, name) in
        [(MemoScope::Session, USER_DOCUMENT), (MemoScope::User, NOTES), (MemoScope::Session, "../x"), (MemoScope::Session, "")]
    {
        let error = sessions.write_memory_document(TENANT, SESSION, scope, name, "x").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{name}");
    }
    assert!(MemoScope::parse("agent").is_err());
    assert_eq!(sessions.read_memory_document(TENANT, "unknown", MemoScope::Session, NOTES).await.unwrap(), None);
    let error = sessions.append_memory_document(TENANT, "unknown", MemoScope::Session, NOTES, "x").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let unknown = treehold_sessions::SessionRef::new(TENANT, "unknown").unwrap();
    assert_eq!(sessions.read_tool_result(&unknown, "c").await.unwrap(), None);
    assert_eq!(sessions.write_tool_result(&unknown, "c", "x").await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(sessions.write_tool_result(&reference(), "", "x").await.unwrap_err().kind(), ErrorKind::InvalidArgument);
}

/// The full text of a shortened result is the file that the view names, whatever the id of its call.
pub(crate) async fn shortened_results_are_read_at_the_path_that_the_view_shows(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    let ids = ["call_1", "a/b", "a%2Fb", "..", "é", " "];
    let result = |id: &str| {
        let content = [serde_json::json!({"type": "text", "text": format!("full text of {id} {}", "x".repeat(30_000))})];
        let message = serde_json::json!({"role": "toolResult", "toolCallId": id, "toolName": "t", "content": content});
        Message::parse(&message.to_string()).unwrap()
    };
    let messages: Vec<Message> = ids.iter().flat_map(|id| [super::support::calls(&[id]), result(id)]).collect();
    let shown = view::shorten(&messages, &view::ViewOptions::default()).unwrap();
    assert_eq!(shown.tool_results.len(), ids.len());
    for (call, text) in &shown.tool_results {
        sessions.write_tool_result(&reference(), call, text).await.unwrap();
    }
    let tree = session_memo(store.clone(), TENANT, USER, SESSION).unwrap();
    for (message, given) in shown.messages.iter().zip(&messages).skip(1).step_by(2) {
        let preview = message.text();
        let path = preview.split_once("/workspace/memo/session").unwrap().1.strip_suffix(']').unwrap();
        assert_eq!(tree.read_text(path).await.unwrap(), given.text(), "{path}");
    }
}

/// A store that keeps conversations alone.
struct WithoutMemo(Sessions);

#[async_trait]
impl SessionStore for WithoutMemo {
    async fn get_or_create(&self, tenant: &str, user: &str, agent: &str, session: Option<&str>) -> Result<SessionHandle> {
        self.0.get_or_create(tenant, user, agent, session).await
    }

    async fn load_messages(&self, tenant: &str, session: &str, limit: Option<usize>) -> Result<Vec<Message>> {
        self.0.load(tenant, session, limit).await
    }

    async fn load_messages_with_budget(&self, tenant: &str, session: &str, budget_tokens: u64) -> Result<Vec<Message>> {
        self.0.load_with_budget(tenant, session, budget_tokens).await
    }

    async fn load_all_messages(&self, tenant: &str, session: &str) -> Result<Vec<Message>> {
        self.0.load_all(tenant, session).await
    }

    async fn append_messages(&self, tenant: &str, session: &str, messages: &[Message]) -> Result<()> {
        self.0.append_messages(tenant, session, messages).await
    }

    async fn record_turn(&self, tenant: &str, session: &str, usage: &Usage) -> Result<()> {
        SessionStore::record_turn(&self.0, tenant, session, usage).await
    }

    async fn compact_if_needed(&self, tenant: &str, session: &str, summarizer: &dyn Summarizer, options: &CompactOptions) -> Result<bool> {
        SessionStore::compact_if_needed(&self.0, tenant, session, summarizer, options).await
    }

    async fn ping(&self) -> Result<()> {
        self.0.ping().await
    }

    fn memo(&self) -> Option<&dyn SandboxMemoProvider> {
        None
    }
}

/// A host finds out that a store keeps no memory documents, and uses the rest.
pub(crate) async fn store_without_memory_documents_stays_usable(store: Arc<dyn Store>) {
    let store: &dyn SessionStore = &WithoutMemo(with_session(&store).await);
    assert!(store.memo().is_none());
    store.append_messages(TENANT, SESSION, &[super::support::user(1)]).await.unwrap();
    assert_eq!(store.load_all_messages(TENANT, SESSION).await.unwrap().len(), 1);
    assert_eq!(SideWrites::new().readiness(store).await.status, ReadyStatus::Ready);
}

/// Appends make no document larger than one write may.
pub(crate) async fn document_never_grows_beyond_the_largest_write(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    let append = async |text: &str| sessions.append_memory_document(TENANT, SESSION, MemoScope::Session, NOTES, text).await;
    let write = async |text: &str| sessions.write_memory_document(TENANT, SESSION, MemoScope::Session, NOTES, text).await;
    let mount = MemoMount::of_session(store.clone(), TENANT, USER, SESSION).unwrap().tree;
    let bytes_max = (MEMO_FILE_BYTES_MAX as u64).min(mount.capabilities().file_bytes_max.unwrap_or(u64::MAX));
    write(&"x".repeat(bytes_max as usize - 1)).await.unwrap();
    append("y").await.unwrap();
    for error in [append("z").await.unwrap_err(), mount.append("/NOTES.md", "z").await.map(drop).unwrap_err()] {
        assert_eq!((error.kind(), error.may_have_effect()), (ErrorKind::TooLarge, false), "{error}");
    }
    let size_bytes = mount.stat(&VfsPathBuf::parse("/NOTES.md").unwrap(), &StatOptions::new()).await.unwrap().size_bytes;
    assert_eq!(size_bytes, bytes_max);
}

/// A document that is not text is refused as text, and the rest of the session stays usable.
pub(crate) async fn document_that_is_not_text_is_unsupported(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    let mount = MemoMount::of_session(store.clone(), TENANT, USER, SESSION).unwrap().tree;
    mount.write("/NOTES.md", b"\xff".as_slice()).await.unwrap();
    mount.write("/tool-results/c.txt", b"\xff".as_slice()).await.unwrap();
    for error in [
        sessions.read_memory_document(TENANT, SESSION, MemoScope::Session, NOTES).await.unwrap_err(),
        sessions.read_tool_result(&reference(), "c").await.unwrap_err(),
    ] {
        assert_eq!((error.kind(), error.may_have_effect()), (ErrorKind::Unsupported, false), "{error}");
    }
    assert!(sessions.memory_index(TENANT, SESSION).await.unwrap()[1].exists);
    assert_eq!(sessions.export_session(&reference()).await.unwrap().unwrap()["NOTES.md"], b"\xff".as_slice());
}

/// A directory with the name of a document blocks nothing. Once it is gone, the notes get every summary that they lack.
pub(crate) async fn directory_with_the_name_of_a_document_blocks_nothing(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    let mount = MemoMount::of_session(store.clone(), TENANT, USER, SESSION).unwrap().tree;
    for path in ["/NOTES.md/x", "/TODO.md/x", "/tool-results/c.txt/x"] {
        mount.write(path, "x").await.unwrap();
    }
    let summarizer = SummarizeWith(|_| async { Ok("short".to_owned()) });
    let compact = async || {
        super::support::append(&sessions, &(0..8).map(super::support::user).collect::<Vec<_>>()).await;
        sessions.compact(TENANT, SESSION, &summarizer, &CompactOptions::new()).await.unwrap().unwrap().archive_id
    };
    assert_eq!((compact().await, compact().await), ("0001".to_owned(), "0002".to_owned()));
    assert!(sessions.memory_index(TENANT, SESSION).await.unwrap().iter().all(|entry| !entry.exists));
    assert_eq!(sessions.read_memory_document(TENANT, SESSION, MemoScope::Session, NOTES).await.unwrap(), None);
    assert!(sessions.list_tool_result_ids(&reference()).await.unwrap().is_empty());
    let exported = sessions.export_session(&reference()).await.unwrap().unwrap();
    assert!(!exported.contains_key("NOTES.md"));
    let refused = sessions.write_memory_document(TENANT, SESSION, MemoScope::Session, NOTES, "x").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::IsDirectory);
    mount.delete_all("/NOTES.md").await.unwrap();
    assert_eq!(compact().await, "0003");
    let notes = sessions.read_memory_document(TENANT, SESSION, MemoScope::Session, NOTES).await.unwrap().unwrap();
    for archive in ["0001", "0002", "0003"] {
        assert_eq!(notes.matches(&format!("messages.compactions/{archive}.jsonl")).count(), 1, "{notes}");
    }
    // A file in place of the directory of results has none.
    mount.delete_all("/tool-results").await.unwrap();
    mount.write("/tool-results", "x").await.unwrap();
    assert!(sessions.list_tool_result_ids(&reference()).await.unwrap().is_empty());
    assert!(sessions.export_session(&reference()).await.unwrap().is_some());
}
