//! The memory of sessions: every other thread sees in its next turn what one thread wrote.

use super::{scope, write};
use std::sync::Arc;
use treehold::memory::{MemorySettings, PromptOptions};
use treehold::tools::{Memory, ToolCall};
use treehold::{Backend, BackendExt, MemoryStore, Namespace, Session, StoreBackend, VfsPathBuf, Workspace};

fn workspace() -> Workspace {
    let memories: Arc<dyn Backend> = Arc::new(StoreBackend::new(Arc::new(MemoryStore::new()), Namespace::new(["ada"]).unwrap()));
    Workspace::builder().backend("/memories", memories).unwrap().build()
}

async fn told(session: &Session) -> String {
    session.memory_prompt().await.text
}

#[tokio::test]
async fn open_thread_reads_what_another_thread_just_wrote() {
    let workspace = workspace();
    let old = workspace.session(scope("old")).await.unwrap();
    assert!(told(&old).await.contains("There is no memory yet. What is worth keeping goes into /memories/AGENTS.md"));
    let new = workspace.session(scope("new")).await.unwrap();
    assert!(!new.call(write("/memories/AGENTS.md", "The colour is green.\n")).await.is_error);
    for session in [&old, &new, &old.clone()] {
        assert!(told(session).await.contains("<memory path=\"/memories/AGENTS.md\">\nThe colour is green.\n</memory>"));
    }
    let replaced = new.call(Memory::str_replace("/memories/AGENTS.md", "green", "blue").into()).await;
    assert!(!replaced.is_error, "{}", replaced.text);
    assert!(told(&old).await.contains("The colour is blue."));
    // Remove it and create it again with its first content: a version is not reused.
    assert!(!new.call(Memory::delete("/memories/AGENTS.md").into()).await.is_error);
    assert!(!told(&old).await.contains("The colour"));
    assert!(!new.call(Memory::create("/memories/AGENTS.md", "The colour is green.\n").into()).await.is_error);
    assert!(told(&old).await.contains("The colour is green."));
}

#[tokio::test]
async fn memory_in_the_state_follows_a_restore() {
    let store = super::watched::Watched::default();
    let workspace = super::workspace(&store, treehold::ThreadDurability::Step);
    let session = workspace.session(scope("t")).await.unwrap();
    let told = async || session.memory(&["/notes.md"]).await.unwrap().files.first().map(|file| file.text.to_string());
    session.call(write("/notes.md", "one")).await;
    let first = session.checkpoint(Default::default()).await.unwrap();
    assert_eq!(told().await.as_deref(), Some("one"));
    session.call(write("/notes.md", "two")).await;
    assert_eq!(told().await.as_deref(), Some("two"));
    session.restore(first.id, Default::default()).await.unwrap();
    assert_eq!(told().await.as_deref(), Some("one"));
    let other = workspace.session(scope("u")).await.unwrap();
    assert_eq!(other.memory(&["/notes.md"]).await.unwrap().absent, [VfsPathBuf::parse("/notes.md").unwrap()]);
}

#[tokio::test]
async fn workspace_sets_the_memory_files_and_budget() {
    let settings = MemorySettings::new()
        .with_sources([VfsPathBuf::parse("/style.md").unwrap()])
        .with_prompt(PromptOptions::new().with_guidance("Guide.").with_tokens_max(100));
    let session = Workspace::builder().memory(settings).build().session(scope("t")).await.unwrap();
    session.backend().write("/style.md", "spaces\n".repeat(200)).await.unwrap();
    let prompt = session.memory_prompt().await;
    assert!(prompt.text.starts_with("# Memory\n\nGuide.\n\n<memory path=\"/style.md\">\nspaces\n"), "{}", prompt.text);
    assert!(prompt.tokens <= 100 && prompt.files[0].tokens_shown < prompt.files[0].tokens);
    assert!(session.memory(&["relative.md"]).await.is_err());
    let none = Workspace::builder().memory(MemorySettings::new().with_sources([])).build().session(scope("t")).await.unwrap();
    assert_eq!(told(&none).await, "");
}

#[tokio::test]
async fn unreadable_memory_is_not_shown() {
    use treehold::layer::{Operations, Permissions, Rule};
    let rules = vec![Rule::deny(Operations::READ, &["/private.md".to_owned()]).unwrap()];
    let workspace = Workspace::builder().layer(move |tree, _| Arc::new(Permissions::new(rules.clone(), tree))).build();
    let session = workspace.session(scope("t")).await.unwrap();
    session.call(ToolCall::from_json("write_file", serde_json::json!({"path": "/private.md", "content": "hush"})).unwrap()).await;
    let memory = session.memory(&["/private.md"]).await.unwrap();
    assert!(memory.files.is_empty(), "{memory:?}");
    assert!(!memory.prompt(&PromptOptions::new()).text.contains("hush"));
}
