//! The memory tool on every tier, behind a mount as in a usual configuration.

use super::{Tier, tiers};
use std::sync::Arc;
use treehold::tools::{Memory, ToolCall, ToolOutput};
use treehold::{Backend, BackendExt, CompositeBackend, StateBackend, Subtree, VfsPathBuf};

/// A tree with a separate tier at `/memories`.
fn mounted(tier: Arc<dyn Backend>) -> Arc<dyn Backend> {
    let builder = CompositeBackend::builder(Arc::new(StateBackend::new()));
    Arc::new(builder.route("/memories", tier).unwrap().build().unwrap())
}

async fn run(tree: &dyn Backend, memory: Memory) -> ToolOutput {
    ToolCall::from(memory).run(tree).await
}

/// Runs one call of each command, and returns the transcript as text.
async fn story(tree: &dyn Backend) -> String {
    let mut shown = String::new();
    for memory in [
        Memory::view("/memories"),
        Memory::create("/memories/team/style.md", "use spaces\nuse tabs\n"),
        Memory::create("/memories/team/style.md", "again"),
        Memory::str_replace("/memories/team/style.md", "use tabs", "never tabs"),
        Memory::str_replace("/memories/team/style.md", "a", "A"),
        Memory::str_replace("/memories/team/style.md", "nowhere", ""),
        Memory::insert("/memories/team/style.md", 2, "and no more"),
        Memory::insert("/memories/team/style.md", 9, "and no more"),
        Memory::view("/memories/team/style.md"),
        Memory::rename("/memories/team/style.md", "/memories/code/style.md"),
        Memory::rename("/memories/team/style.md", "/memories/code/other.md"),
        Memory::view("/memories"),
        Memory::delete("/memories/team"),
        Memory::delete("/memories/team"),
        Memory::delete("/memories"),
        Memory::view("/memories/"),
    ] {
        let output = run(tree, memory.clone()).await;
        let data = output.data.as_ref().map(|data| data["path"].clone()).unwrap_or_default();
        shown.push_str(&format!("> {}\n{}\n= {} {data}\n", ToolCall::from(memory), output.text, output.is_error));
    }
    shown
}

fn all_tiers() -> Vec<(String, Arc<dyn Backend>, Vec<tempfile::TempDir>)> {
    let mut all: Vec<_> =
        tiers().into_iter().map(|Tier { tree, _directory }| (tree.to_string(), mounted(tree), _directory.into_iter().collect())).collect();
    let state: Arc<dyn Backend> = Arc::new(StateBackend::new());
    all.push(("state at the root".to_owned(), state.clone(), Vec::new()));
    let part: Arc<dyn Backend> = Arc::new(Subtree::new(state, VfsPathBuf::parse("/part").unwrap()));
    all.push(("a part of a tree".to_owned(), mounted(part), Vec::new()));
    #[cfg(all(feature = "filesystem", unix))]
    {
        let directory = tempfile::tempdir().unwrap();
        let disk = treehold::FilesystemBackend::open(directory.path(), treehold::FilesystemOptions::new()).unwrap();
        all.push(("disk".to_owned(), mounted(Arc::new(disk)), vec![directory]));
    }
    all
}

#[tokio::test]
async fn memory_tool_answers_are_the_same_on_every_tier() {
    for (name, tree, _directories) in all_tiers() {
        insta::assert_snapshot!("memory_story", story(&*tree).await);
        assert_eq!(tree.read_text("/memories/code/style.md").await.unwrap(), "use spaces\nnever tabs\nand no more\n", "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_concurrent_writers_lose_nothing_on_any_tier() {
    for (name, tree, _directories) in all_tiers() {
        run(&*tree, Memory::create("/memories/log", "start\n")).await;
        let writers = (0..2).map(|writer| {
            let tree = tree.clone();
            tokio::spawn(async move {
                for round in 0..15 {
                    let output = run(&*tree, Memory::insert("/memories/log", 1, format!("{writer}.{round} written"))).await;
                    assert!(!output.is_error, "{}", output.text);
                    let (old, new) = (format!("{writer}.{round} written"), format!("{writer}.{round} kept"));
                    let output = run(&*tree, Memory::str_replace("/memories/log", old, new)).await;
                    assert!(!output.is_error, "{}", output.text);
                }
            })
        });
        for writer in futures::future::join_all(writers).await {
            writer.unwrap();
        }
        let mut lines: Vec<String> = tree.read_text("/memories/log").await.unwrap().lines().map(str::to_owned).collect();
        lines.sort();
        let mut expected: Vec<String> = (0..2).flat_map(|writer| (0..15).map(move |round| format!("{writer}.{round} kept"))).collect();
        expected.push("start".to_owned());
        expected.sort();
        assert_eq!(lines, expected, "{name}");
    }
}

#[cfg(all(feature = "filesystem", unix))]
#[tokio::test]
async fn link_out_of_the_root_is_refused_in_the_tools_wording_and_not_listed() {
    let (directory, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::write(outside.path().join("secret"), "secret").unwrap();
    std::fs::write(directory.path().join("inside"), "hello").unwrap();
    std::os::unix::fs::symlink(outside.path(), directory.path().join("away")).unwrap();
    std::os::unix::fs::symlink("inside", directory.path().join("link")).unwrap();
    let tree = mounted(Arc::new(treehold::FilesystemBackend::open(directory.path(), treehold::FilesystemOptions::new()).unwrap()));
    for memory in [
        Memory::view("/memories/away/secret"),
        Memory::create("/memories/away/new", ""),
        Memory::str_replace("/memories/away/secret", "secret", ""),
        Memory::insert("/memories/away/secret", 0, ""),
        Memory::delete("/memories/away/secret"),
    ] {
        let output = run(&*tree, memory.clone()).await;
        let path = memory.path.unwrap();
        assert_eq!((output.text, output.is_error), (format!("Path {path} would escape /memories directory"), true));
    }
    assert_eq!(std::fs::read_to_string(outside.path().join("secret")).unwrap(), "secret");
    let listed = run(&*tree, Memory::view("/memories")).await.text;
    assert_eq!(listed.lines().skip(2).collect::<Vec<_>>(), ["5B\t/memories/inside", "5B\t/memories/link"]);
    assert!(run(&*tree, Memory::view("/memories/link")).await.text.ends_with("     1\thello"));
}

/// If the host directory holds more than memories, a link can lead out of them without leaving the mount.
#[cfg(all(feature = "filesystem", unix))]
#[tokio::test]
async fn link_out_of_memories_within_one_mount_is_refused() {
    let host = tempfile::tempdir().unwrap();
    let at = |path: &str| host.path().join(path);
    for directory in ["memories/real", "project/deep"] {
        std::fs::create_dir_all(at(directory)).unwrap();
    }
    std::fs::write(at("project/secret"), "secret").unwrap();
    std::fs::write(at("memories/real/note"), "hello").unwrap();
    for (target, link) in [
        ("../project", "memories/away"),
        ("../project/secret", "memories/file"),
        ("/memories/away/secret", "memories/absolute"),
        ("away", "memories/chained"),
        ("../project/none", "memories/dangling"),
        ("real", "memories/inside"),
        ("../memories/real/note", "memories/back"),
    ] {
        std::os::unix::fs::symlink(target, at(link)).unwrap();
    }
    let tree = treehold::FilesystemBackend::open(host.path(), treehold::FilesystemOptions::new()).unwrap();
    for memory in [
        Memory::view("/memories/away"),
        Memory::view("/memories/away/secret"),
        Memory::view("/memories/file"),
        Memory::view("/memories/absolute"),
        Memory::view("/memories/chained/secret"),
        Memory::create("/memories/away/new", ""),
        Memory::create("/memories/dangling", ""),
        Memory::str_replace("/memories/file", "secret", ""),
        Memory::insert("/memories/away/secret", 0, ""),
        Memory::delete("/memories/away/deep"),
        Memory::delete("/memories/inside/../away/secret"),
        Memory::rename("/memories/away/secret", "/memories/mine"),
        Memory::rename("/memories/real/note", "/memories/away/note"),
    ] {
        let output = run(&tree, memory.clone()).await;
        assert!(output.is_error && output.text.contains("would escape /memories directory"), "{memory:?}: {}", output.text);
    }
    assert_eq!(std::fs::read_to_string(at("project/secret")).unwrap(), "secret");
    assert_eq!(std::fs::read_dir(at("project")).unwrap().count(), 2);
    let listed = run(&tree, Memory::view("/memories")).await.text;
    assert!(!listed.contains("away") && !listed.contains("secret") && listed.contains("/memories/inside"), "{listed}");
    for path in ["/memories/inside/note", "/memories/back", "/memories/real/note"] {
        assert!(run(&tree, Memory::view(path)).await.text.ends_with("     1\thello"), "{path}");
    }
    // The link itself may be deleted.
    assert_eq!(run(&tree, Memory::delete("/memories/away")).await.text, "Successfully deleted /memories/away");
    assert!(at("project/secret").exists());
}
