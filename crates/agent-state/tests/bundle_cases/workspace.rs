//! Workspaces: shared routes over templates, by scope.

use super::support::{kind, rows};
use std::sync::Arc;
use treehold_agent_state::scopes::{AgentWorkspace, AnonymousCalls, CallIdentity, IsolationScope};
use treehold_core::ErrorKind;
use treehold_core::path::VfsPathBuf;
use treehold_store::Store;
use treehold_tree::backend::{Backend, BackendExt, StateBackend};

const ROUTED: [&str; 11] = [
    "/AGENTS.md",
    "/MEMORY.md",
    "/tools.json",
    "/memory/a/b.md",
    "/skills/x/SKILL.md",
    "/subagents/x.md",
    "/knowledge/k.txt",
    "/plans/p.md",
    "/agents/helper/sessions/s.jsonl",
    "/agents/helper/tasks/t.json",
    "/reports/2026/q.md",
];

fn workspace(store: &Arc<dyn Store>) -> AgentWorkspace {
    AgentWorkspace::new(store.clone()).with_shared_prefix("/reports".parse::<VfsPathBuf>().unwrap())
}

fn call(agent: &str, user: Option<&str>, session: Option<&str>) -> CallIdentity {
    CallIdentity::new("acme", agent, user, session).unwrap()
}

async fn templates() -> Arc<dyn Backend> {
    let templates = StateBackend::new();
    for path in ROUTED {
        templates.write(path, format!("template of {path}")).await.unwrap();
    }
    Arc::new(templates)
}

/// Every route by every scope: who sees what another caller wrote.
pub(crate) async fn every_route_is_kept_where_its_scope_says(store: Arc<dyn Store>) {
    let templates = templates().await;
    let callers = [("helper", "ada", "s1"), ("helper", "ada", "s2"), ("helper", "bob", "s1"), ("scribe", "ada", "s1")];
    for scope in IsolationScope::ALL {
        let workspace = workspace(&store).with_scope(scope).with_templates(templates.clone());
        let writer = callers[0];
        let open = |(agent, user, session)| workspace.open(&call(agent, Some(user), Some(session)), Arc::new(StateBackend::new())).unwrap();
        let tree = open(writer);
        for path in ROUTED {
            assert_eq!(tree.read_text(path).await.unwrap(), format!("template of {path}"));
            tree.write(path, format!("{scope}: {path}")).await.unwrap();
        }
        for reader in callers {
            let shares = match scope {
                IsolationScope::Session => reader == writer,
                IsolationScope::User => (reader.0, reader.1) == (writer.0, writer.1),
                IsolationScope::Agent => reader.0 == writer.0,
                IsolationScope::Global => true,
            };
            let tree = open(reader);
            for path in ROUTED {
                // The directories of one agent are no routes of another.
                let is_of_agent = path.starts_with("/agents/helper") && reader.0 != "helper";
                let found = if is_of_agent { None } else { Some(tree.read_text(path).await.unwrap()) };
                let expected = if shares { format!("{scope}: {path}") } else { format!("template of {path}") };
                assert!(found.is_none_or(|found| found == expected), "{scope}: {reader:?} reads {path}");
            }
        }
    }
    for path in ROUTED {
        assert_eq!(templates.read_text(path).await.unwrap(), format!("template of {path}"), "templates never change");
    }
}

pub(crate) async fn deleted_and_moved_templates_are_hidden_for_their_scope_only(store: Arc<dyn Store>) {
    let workspace = workspace(&store).with_templates(templates().await);
    let open = |user| workspace.open(&call("helper", Some(user), None), Arc::new(StateBackend::new())).unwrap();
    let ada = open("ada");
    ada.delete("/skills/x/SKILL.md").await.unwrap();
    ada.rename("/memory/a/b.md", "/memory/c.md").await.unwrap();
    let again = open("ada");
    assert!(!again.exists("/skills/x/SKILL.md").await.unwrap());
    assert!(!again.exists("/memory/a/b.md").await.unwrap(), "a moved template does not stay visible");
    assert_eq!(again.read_text("/memory/c.md").await.unwrap(), "template of /memory/a/b.md");
    let bob = open("bob");
    assert_eq!(bob.read_text("/skills/x/SKILL.md").await.unwrap(), "template of /skills/x/SKILL.md");
    assert_eq!(bob.read_text("/memory/a/b.md").await.unwrap(), "template of /memory/a/b.md");
    assert!(!bob.exists("/memory/c.md").await.unwrap());
}

/// Bytes that are no text, and texts that other readers decorate or normalise.
pub(crate) async fn moves_between_routes_copy_every_byte(store: Arc<dyn Store>) {
    let workspace = workspace(&store).with_templates(templates().await);
    let tree = workspace.open(&call("helper", Some("ada"), None), Arc::new(StateBackend::new())).unwrap();
    let all: Vec<u8> = (0..=255).collect();
    for (number, content) in [&b""[..], b"\r\n a \r\n", b"\0\xff\xfe", &all, "\u{feff}é\n".as_bytes()].into_iter().enumerate() {
        let (from, local, to) = (format!("/memory/{number}"), format!("/local/{number}"), format!("/knowledge/{number}"));
        tree.write(&from, content.to_vec()).await.unwrap();
        for (from, to) in [(&from, &local), (&local, &to)] {
            tree.rename(from, to).await.unwrap();
            assert!(!tree.exists(from).await.unwrap(), "{from}");
            assert_eq!(tree.read_bytes(to).await.unwrap(), content, "{to}");
        }
    }
    tree.rename("/skills/x/SKILL.md", "/plans/moved.md").await.unwrap();
    assert!(!tree.exists("/skills/x/SKILL.md").await.unwrap());
    assert_eq!(tree.read_text("/plans/moved.md").await.unwrap(), "template of /skills/x/SKILL.md");
}

/// One rule for every scope and every route.
pub(crate) async fn missing_identity_is_refused_unless_anonymous_calls_are_allowed(store: Arc<dyn Store>) {
    for scope in IsolationScope::ALL {
        let workspace = workspace(&store).with_scope(scope);
        let (by_user, by_session) = (scope == IsolationScope::User, scope == IsolationScope::Session);
        for (user, session) in [(None, None), (Some("ada"), None), (None, Some("s1")), (Some("ada"), Some("s1"))] {
            let is_missing = by_user && user.is_none() || by_session && session.is_none();
            let open = |workspace: AgentWorkspace| workspace.open(&call("helper", user, session), Arc::new(StateBackend::new()));
            let opened = open(workspace.clone());
            assert_eq!(opened.is_err(), is_missing, "{scope} {user:?} {session:?}");
            if let Err(error) = opened {
                assert_eq!(error.kind(), ErrorKind::InvalidArgument);
                assert!(error.message().contains(scope.name()), "{error}");
            }
            open(workspace.clone().with_anonymous_calls(AnonymousCalls::Allowed)).unwrap();
        }
    }
    assert_eq!(rows(&store).await, [], "opening writes nothing");
    // Anonymous files are apart from those of every user whose id looks like a placeholder.
    let workspace = workspace(&store).with_anonymous_calls(AnonymousCalls::Allowed);
    let open = |user| workspace.open(&call("helper", user, None), Arc::new(StateBackend::new())).unwrap();
    open(None).write("/memory/m.md", "anonymous").await.unwrap();
    for user in ["_default", "__anon__", "anonymous", "default", "null", "-"] {
        assert!(!open(Some(user)).exists("/memory/m.md").await.unwrap(), "{user}");
    }
    let slash = workspace.open(&call("a/b", Some("ada"), None), Arc::new(StateBackend::new()));
    assert_eq!(kind(slash), ErrorKind::InvalidArgument);
    let twice = workspace.clone().with_shared_prefix("/memory".parse::<VfsPathBuf>().unwrap());
    assert_eq!(kind(twice.open(&call("helper", None, None), Arc::new(StateBackend::new()))), ErrorKind::InvalidArgument);
}

pub(crate) async fn paths_without_a_route_stay_local(store: Arc<dyn Store>) {
    let workspace = workspace(&store);
    let local = Arc::new(StateBackend::new());
    let tree = workspace.open(&call("helper", Some("ada"), None), local.clone()).unwrap();
    for path in ["/AGENTS.md.bak", "/memories/x", "/agents/helper/other", "/agents/scribe/sessions/x", "/src/AGENTS.md", "/reports2"] {
        tree.write(path, "local").await.unwrap();
        assert_eq!(local.read_text(path).await.unwrap(), "local", "{path}");
    }
    assert_eq!(rows(&store).await, []);
    tree.write("/memory/x", "shared").await.unwrap();
    assert!(!local.exists("/memory/x").await.unwrap());
}

/// Two processes edit one file: an edit that was planned on an old version is planned again, so both are there.
pub(crate) async fn concurrent_edits_of_a_shared_file_are_all_kept(store: Arc<dyn Store>) {
    let open = || workspace(&store).open(&call("helper", Some("ada"), None), Arc::new(StateBackend::new())).unwrap();
    let words: Vec<String> = (0..8).map(|number| format!("word{number}")).collect();
    open().write("/MEMORY.md", words.join("\n")).await.unwrap();
    let edits = words.iter().map(|word| {
        let (tree, word) = (open(), word.clone());
        tokio::spawn(async move { tree.edit("/MEMORY.md", &word, &word.to_uppercase()).await.unwrap() })
    });
    for edit in futures::future::join_all(edits).await {
        edit.unwrap();
    }
    assert_eq!(open().read_text("/MEMORY.md").await.unwrap(), words.join("\n").to_uppercase());
}
