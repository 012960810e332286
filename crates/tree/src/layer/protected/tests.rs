//! Tests every kind of change against every entry of the list.

use super::*;
use crate::backend::{BackendExt, StateBackend};
use crate::forward_backend;
use std::collections::BTreeMap;
use treehold_core::ops::{Edit, EntryKind, OpKind};

fn path(text: &str) -> VfsPathBuf {
    VfsPathBuf::parse(text).expect("a legal path")
}

/// Returns the changes by which each operation could modify a path; all must be refused if the path is protected. `source` is a file, and
/// `holder` a directory elsewhere that holds `rest`, the part of the path after its first name.
fn changes(kind: OpKind, target: &VfsPath, prefix: &VfsPath, first: &str) -> Vec<Vec<Change>> {
    let (to, holder) = (target.to_owned(), path("/holder"));
    let top = prefix.concat(&path(&format!("/{first}")));
    let write = |path: VfsPathBuf| Change::Write { path, content: "x".into(), mode: WriteMode::Overwrite };
    match kind {
        // The reads change nothing, and a batch consists of the other kinds.
        OpKind::Stat | OpKind::Read | OpKind::Ls | OpKind::Glob | OpKind::Grep | OpKind::Search | OpKind::Apply => Vec::new(),
        OpKind::Write => vec![
            vec![write(to.clone())],
            vec![write(path("/free")), write(to.clone())],
            vec![Change::CreateDir { path: prefix.to_owned() }, write(to)],
        ],
        OpKind::Append => vec![vec![Change::Append { path: to, content: "x".into() }]],
        OpKind::Edit => vec![vec![Change::Edit { path: to, edits: vec![Edit::new("old", "new")], expect: None }]],
        OpKind::CreateDir => {
            vec![vec![Change::CreateDir { path: to.clone() }], vec![Change::CreateDir { path: to.concat(&path("/deeper")) }]]
        }
        OpKind::Delete => vec![
            vec![Change::Delete { path: to.clone(), recursive: false, expect: None }],
            vec![Change::Delete { path: to, recursive: true, expect: None }],
        ],
        OpKind::Rename => vec![
            vec![Change::Rename { from: path("/source"), to: to.clone(), overwrite: true }],
            vec![Change::Rename { from: to.clone(), to: path("/taken"), overwrite: false }],
            // A directory whose content becomes protected by its new path.
            vec![Change::Rename { from: holder.clone(), to: top.clone(), overwrite: false }],
            vec![
                Change::Rename { from: path("/source"), to: path("/between"), overwrite: false },
                Change::Rename { from: path("/between"), to, overwrite: true },
            ],
            vec![
                Change::Rename { from: holder, to: path("/between"), overwrite: false },
                Change::Rename { from: path("/between"), to: top, overwrite: false },
            ],
        ],
        OpKind::Copy => vec![
            vec![Change::Copy { from: path("/source"), to, overwrite: true }],
            vec![Change::Copy { from: holder, to: top.clone(), overwrite: false }],
            // A directory whose content is protected anywhere.
            vec![Change::Copy { from: top.parent().unwrap_or(VfsPath::ROOT).to_owned(), to: path("/elsewhere"), overwrite: false }],
        ],
        kind => panic!("{kind:?} is new: decide how it could change a protected path"),
    }
}

/// Returns everything that a tree holds.
async fn held(tree: &dyn Backend) -> BTreeMap<String, String> {
    let all = tree.tree("/", usize::MAX, usize::MAX).await.expect("listed");
    let mut held = BTreeMap::new();
    for entry in all.entries {
        let content = match entry.kind {
            EntryKind::File => tree.read_text(entry.path.as_str()).await.expect("read"),
            _ => String::new(),
        };
        held.insert(entry.path.to_string(), content);
    }
    held
}

#[tokio::test]
async fn every_change_of_every_entry_is_refused_at_any_path_and_spelling() {
    for (pattern, _) in RUNS_CODE {
        let name = pattern.replace('*', "x");
        let spellings = [name.clone(), name.to_uppercase(), format!("{name}."), format!("{}\u{200d}", name)];
        for prefix in ["/", "/nested/deep"] {
            for (index, spelling) in spellings.iter().enumerate() {
                let prefix = path(prefix);
                let target = prefix.concat(&path(&format!("/{spelling}")));
                let first = spelling.split('/').next().expect("a name");
                let rest = spelling.split_once('/').map_or_else(|| "inner".to_owned(), |(_, rest)| rest.to_owned());
                let state = Arc::new(StateBackend::new());
                state.write("/source", "x").await.expect("written");
                state.write(&format!("/holder/{rest}"), "x").await.expect("written");
                state.write("/nested/deep/free", "x").await.expect("written");
                // Try half of the spellings with an existing file.
                if index % 2 == 0 {
                    state.write(target.as_str(), "old").await.expect("written");
                }
                let is_there = index % 2 == 0;
                let before = held(&state).await;
                let tree = Protected::new(Protections::new(VfsPath::ROOT), state.clone());
                for kind in OpKind::ALL {
                    for batch in changes(kind, &target, &prefix, first) {
                        let is_copy_above =
                            matches!(&batch[..], [Change::Copy { from, .. }] if target.starts_with(from) && (!is_there || from.is_root()));
                        let makes_way = batch.iter().any(|change| matches!(change, Change::Rename { from, to, .. } if target.starts_with(to) && **from == *path("/holder") && is_there && spelling.contains('/')));
                        if is_copy_above || makes_way {
                            continue;
                        }
                        let error = tree.apply(&batch, &ApplyOptions::new()).await.err();
                        let error = error.unwrap_or_else(|| panic!("{batch:?} changed {target}"));
                        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{batch:?}: {error}");
                        assert_eq!(held(&state).await, before, "{batch:?}");
                    }
                }
                if is_there {
                    assert_eq!(tree.read_text(target.as_str()).await.expect("reads stay open"), "old");
                }
            }
        }
    }
}

#[tokio::test]
async fn entry_is_refused_when_its_directory_is_created_and_moved_in_one_batch() {
    let write = |path: VfsPathBuf| Change::Write { path, content: "x".into(), mode: WriteMode::Overwrite };
    for (pattern, _) in RUNS_CODE {
        let name = pattern.replace('*', "x");
        let (first, rest) = name.split_once('/').map_or((&*name, "inner"), |(first, rest)| (first, rest));
        let made = write(path(&format!("/new/{rest}")));
        let (new, between, top) = (path("/new"), path("/between"), path(&format!("/{first}")));
        let moved = Change::Rename { from: new, to: between.clone(), overwrite: false };
        for last in [
            Change::Rename { from: between.clone(), to: top.clone(), overwrite: false },
            Change::Copy { from: between.clone(), to: top.clone(), overwrite: false },
        ] {
            let state = Arc::new(StateBackend::new());
            let tree = Protected::new(Protections::new(VfsPath::ROOT), state.clone());
            let batch = [made.clone(), moved.clone(), last];
            let error = tree.apply(&batch, &ApplyOptions::new()).await.expect_err("refused");
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{batch:?}: {error}");
            assert!(held(&state).await.is_empty(), "{batch:?}");
        }
    }
}

#[tokio::test]
async fn batch_with_repeated_or_recursive_moves_is_checked_in_bounded_time() {
    let write = |at: &str| Change::Write { path: path(at), content: "x".into(), mode: WriteMode::Overwrite };
    let onto = |from: String, to: &str| Change::Rename { from: path(&from), to: path(to), overwrite: true };
    let tree = Protected::new(Protections::new(VfsPath::ROOT), StateBackend::new());
    let onto_parent = [onto("/a/b".to_owned(), "/a"), write("/a/x")];
    let error = tree.apply(&onto_parent, &ApplyOptions::new()).await.expect_err("there is no such path");
    assert_ne!(error.kind(), ErrorKind::Internal, "{error}");
    let mut again: Vec<Change> = (0..100).map(|number| onto(format!("/a/b{number}"), "/a")).collect();
    again.push(write("/a/x"));
    let error = tree.apply(&again, &ApplyOptions::new()).await.expect_err("too many paths to check");
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
}

#[tokio::test]
async fn refusal_names_the_reason_and_how_to_allow_it() {
    let tree = Protected::new(Protections::new(&path("/workspace")), StateBackend::new());
    let error = tree.write("/.envrc", "x").await.expect_err("refused");
    assert_eq!(
        error.message(),
        "`/.envrc` may not be written: direnv runs it when a shell enters the directory; skip it, or ask the user to change it or to allow \
         it with `except` under `[protected]` of the configuration"
    );
}

#[tokio::test]
async fn protection_is_extended_by_name_and_lifted_by_name_or_path() {
    let protections = Protections::new(&path("/workspace")).with_names(["Justfile", ".tool/*.lua"]).expect("names");
    let protections = protections.without([".vscode/settings.json", "/workspace/fixtures", "/elsewhere"]).expect("names");
    let tree = Protected::new(protections, StateBackend::new());
    for refused in ["/justfile", "/a/.tool/x.lua", "/.vscode/tasks.json", "/sub/.git/config"] {
        tree.write(refused, "x").await.expect_err(refused);
    }
    for allowed in ["/.vscode/settings.json", "/fixtures/.git/config", "/fixtures/Justfile", "/.tool/x.py", "/Justfile2"] {
        tree.write(allowed, "x").await.expect(allowed);
    }
    for wrong in ["", "/", "*", "a//b", "../x", "**/x"] {
        Protections::new(VfsPath::ROOT).with_names([wrong]).expect_err(wrong);
    }
}

#[tokio::test]
async fn governing_paths_and_their_ancestors_cannot_be_changed() {
    let state = Arc::new(StateBackend::new());
    state.write("/a/b/own.toml", "x").await.expect("written");
    state.write("/free", "x").await.expect("written");
    let protections = Protections::new(VfsPath::ROOT).with_governing(&path("/a/b/own.toml"), "it is the configuration");
    // No exemption removes this protection.
    let protections = protections.without(["own.toml", "/a"]).expect("names");
    let tree = Protected::new(protections, state.clone());
    let before = held(&state).await;
    for at in ["/a/b/own.toml", "/A/B/OWN.TOML"] {
        for kind in OpKind::ALL {
            for batch in changes(kind, &path(at), &path("/a/b"), "own.toml") {
                if matches!(&batch[..], [Change::Copy { from, .. }] if **from == *path("/a/b")) {
                    continue;
                }
                if batch.iter().any(|change| change.paths().any(|at| at.starts_with(&path("/holder")))) {
                    continue;
                }
                let error = Allowance::new(vec![path(at)]).during(tree.apply(&batch, &ApplyOptions::new())).await.expect_err("refused");
                assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{batch:?}");
            }
        }
    }
    for above in ["/a", "/a/b"] {
        tree.rename(above, "/moved").await.expect_err(above);
        tree.delete_all(above).await.expect_err(above);
    }
    assert_eq!(held(&state).await, before);
}

#[tokio::test]
async fn allowance_covers_only_the_named_paths_and_its_duration() {
    let tree = Protected::new(Protections::new(&path("/w")), StateBackend::new());
    let write = async |at: &str| tree.write(at, "x").await.map(drop);
    let named = |text: &str| Allowance::new(vec![path(text)]);
    named("/w/.git/hooks").during(write("/.git/hooks/pre-commit")).await.expect("named");
    named("/w/.git/hooks").during(write("/.git/config")).await.expect_err("another");
    named("/w").during(write("/.git/hooks/pre-commit")).await.expect_err("a directory above does not name it");
    named("/.git").during(write("/.git/hooks/pre-commit")).await.expect_err("of another mount");
    write("/.git/hooks/pre-commit").await.expect_err("the exclusive turn has ended");
}

#[cfg(all(feature = "filesystem", unix))]
#[tokio::test]
async fn protected_path_cannot_be_reached_through_links() {
    use crate::backend::FilesystemBackend;
    use std::os::unix::fs::symlink;
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name);
    std::fs::create_dir_all(at("repo/.git/hooks")).expect("made");
    std::fs::create_dir_all(at("plain")).expect("made");
    std::fs::write(at("repo/.git/config"), "old").expect("written");
    std::fs::write(at("plain/file"), "x").expect("written");
    symlink("repo/.git", at("direct")).expect("linked");
    symlink("../direct", at("plain/twice")).expect("linked");
    symlink("repo/.git/config", at("config")).expect("linked");
    symlink("repo/.git/hooks/pre-commit", at("dangling")).expect("linked");
    let tree =
        Protected::new(Protections::new(VfsPath::ROOT), FilesystemBackend::open(directory.path(), Default::default()).expect("opened"));
    for through in ["/direct/config", "/plain/twice/config", "/config", "/dangling", "/direct/new", "/direct/hooks/post-checkout"] {
        tree.write(through, "new").await.expect_err(through);
        tree.append(through, "new").await.expect_err(through);
        tree.edit(through, "old", "new").await.expect_err(through);
        tree.copy("/plain/file", through).await.expect_err(through);
    }
    for through in ["/direct/new", "/plain/twice/hooks/x"] {
        tree.create_dir(through).await.expect_err(through);
        tree.rename("/plain/file", through).await.expect_err(through);
    }
    tree.delete("/direct/config").await.expect_err("through a link");
    tree.rename("/plain/twice/config", "/taken").await.expect_err("through a link");
    // Within one batch, a link is moved elsewhere first.
    let batch = [
        Change::Rename { from: path("/direct"), to: path("/moved"), overwrite: false },
        Change::Write { path: path("/moved/config"), content: "new".into(), mode: WriteMode::Overwrite },
    ];
    tree.apply(&batch, &ApplyOptions::new().with_allow_partial(true)).await.expect_err("through a link that was moved");
    assert_eq!(std::fs::read_to_string(at("repo/.git/config")).expect("read"), "old");
    assert!(std::fs::read_dir(at("repo/.git/hooks")).expect("listed").next().is_none());
    // The link itself runs no code.
    tree.delete("/config").await.expect("removing a link leaves its target");
    tree.write("/plain/file", "y").await.expect("other paths are not affected");
}

/// A tree in which a rename or copy waits at a gate once its turn has come.
#[derive(Debug, Default)]
struct Gated {
    inner: StateBackend,
    reached: tokio::sync::Notify,
    opened: tokio::sync::Notify,
    /// Whether it keeps what a change must hold until it ends, even when nobody waits for it.
    keeps: bool,
    kept: Mutex<Option<Arc<dyn std::any::Any + Send + Sync>>>,
}

impl fmt::Display for Gated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gated")
    }
}

#[async_trait]
impl Backend for Gated {
    forward_backend! { self => self.inner; capabilities, stat, read, ls, glob, grep, search, review }

    async fn apply(&self, changes: &[Change], options: &ApplyOptions) -> Result<Vec<Changed>> {
        if changes.iter().any(|change| change.target().is_some()) {
            if self.keeps {
                *self.kept.lock() = work::held();
            }
            self.reached.notify_one();
            self.opened.notified().await;
        }
        self.inner.apply(changes, options).await
    }
}

/// Lets work proceed until it blocks.
async fn settle<T>(work: &tokio::task::JoinHandle<T>) {
    for _ in 0..1_000 {
        if work.is_finished() {
            return;
        }
        tokio::task::yield_now().await;
    }
}

/// Regression: the directory was checked before the file existed, and moved after.
#[tokio::test]
async fn write_into_directory_being_moved_waits_for_the_move() {
    let moved = Change::Rename { from: path("/h"), to: path("/.vscode"), overwrite: false };
    let copied = Change::Copy { from: path("/h"), to: path("/.vscode"), overwrite: false };
    for (number, change) in [moved, copied].into_iter().enumerate() {
        // The two trees show the same directory, or one beneath the other, or are the same tree.
        for (roots, at) in [(["/rules/a", "/rules/a"], "/h/tasks.json"), (["/rules/b", "/rules/b/h"], "/h/tasks.json")] {
            let gated = Arc::new(Gated::default());
            gated.inner.create_dir("/h").await.expect("made");
            let tree = |root: &str| {
                let protections = Protections::new(VfsPath::ROOT).with_root(format!("{root}{number}"));
                Arc::new(Protected::new(protections, gated.clone()))
            };
            let (mover, writer) = (tree(roots[0]), tree(&roots[1].replace("/b/", &format!("/b{number}/"))));
            let change = change.clone();
            let moving = tokio::spawn(async move { mover.apply(&[change], &ApplyOptions::new()).await.map(drop) });
            gated.reached.notified().await;
            let writing = tokio::spawn(async move { writer.write(at, "runs").await.map(drop) });
            settle(&writing).await;
            gated.opened.notify_one();
            moving.await.expect("joined").expect("the directory was empty");
            writing.await.expect("joined").expect("it is a file like any other");
            assert!(!gated.inner.exists("/.vscode/tasks.json").await.expect("asked"), "{roots:?}");
        }
    }
}

#[tokio::test]
async fn turn_of_abandoned_move_lasts_until_its_work_ends() {
    let gated = Arc::new(Gated { keeps: true, ..Gated::default() });
    gated.inner.create_dir("/h").await.expect("made");
    let tree = Arc::new(Protected::new(Protections::new(VfsPath::ROOT).with_root("/rules/given-up"), gated.clone()));
    let mover = tree.clone();
    let moving = tokio::spawn(async move { mover.rename("/h", "/.vscode").await.map(drop) });
    gated.reached.notified().await;
    moving.abort();
    moving.await.expect_err("the move was abandoned");
    let writing = tokio::spawn(async move { tree.write("/h/tasks.json", "x").await.map(drop) });
    settle(&writing).await;
    assert!(!writing.is_finished(), "a thread may be moving the directory still");
    *gated.kept.lock() = None;
    writing.await.expect("joined").expect("written");
}

/// Regression: the target of a link at `.vscode` was changed by another name.
#[cfg(all(feature = "filesystem", unix))]
#[tokio::test]
async fn link_cannot_be_placed_above_protected_names() {
    use crate::backend::FilesystemBackend;
    use std::os::unix::fs::symlink;
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name);
    for made in ["free", "holds/deep", "app", "inner"] {
        std::fs::create_dir_all(at(made)).expect("made");
    }
    std::fs::write(at("free/file"), "x").expect("written");
    symlink("free", at("link")).expect("linked");
    symlink("nowhere", at("dangling")).expect("linked");
    symlink("../../free", at("holds/deep/.vscode")).expect("linked");
    symlink("../free", at("inner/tools")).expect("linked");
    let protections = Protections::new(VfsPath::ROOT).with_names(["tools/run/start"]).expect("names");
    let protections = protections.with_governing(&path("/app/data/own"), "it governs").without(["/fixtures"]).expect("a path");
    let tree = Protected::new(protections, FilesystemBackend::open(directory.path(), Default::default()).expect("opened"));
    for (from, to) in [
        ("/link", "/.vscode"),
        ("/link", "/sub/.VSCODE"),
        ("/link", "/.config"),
        ("/link", "/Library"),
        ("/link", "/tools"),
        ("/link", "/app/tools/run"),
        ("/link", "/app/data"),
        ("/dangling", "/.claude"),
        ("/inner/tools", "/app/tools"),
        ("/holds", "/elsewhere"),
        ("/holds/deep", "/elsewhere"),
    ] {
        let error = tree.rename(from, to).await.expect_err(to);
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{from} to {to}: {error}");
        assert!(std::fs::symlink_metadata(at(&to[1..])).is_err(), "{to}");
    }
    tree.copy("/holds", "/elsewhere").await.expect_err("links within are copied as links");
    let two = [
        Change::Rename { from: path("/link"), to: path("/between"), overwrite: false },
        Change::Rename { from: path("/between"), to: path("/.vscode"), overwrite: false },
    ];
    tree.apply(&two, &ApplyOptions::new().with_allow_partial(true)).await.expect_err("in two steps");
    tree.rename("/link", "/other").await.expect("nothing is protected beneath it");
    tree.rename("/other", "/fixtures/.vscode").await.expect("left out by the configuration");
    tree.rename("/free", "/.vscode").await.expect("a directory is not a link");
}

/// Regression: git executed the configuration of such a directory, because all its names are ordinary.
#[tokio::test]
async fn bare_repository_cannot_be_completed_or_changed() {
    let write = |at: &str| Change::Write { path: path(at), content: "x".into(), mode: WriteMode::Overwrite };
    let dir = |at: &str| Change::CreateDir { path: path(at) };
    let rename = |from: &str, to: &str| Change::Rename { from: path(from), to: path(to), overwrite: false };
    let copy = |from: &str, to: &str| Change::Copy { from: path(from), to: path(to), overwrite: false };
    // Changes that complete a repository: `/n` has everything but `HEAD`, `/o` all but `objects`, `/r` all but `refs`, `/w` only a `HEAD`.
    let completing = [
        vec![write("/n/HEAD")],
        vec![write("/n/head")],
        vec![write("/o/objects/info/x")],
        vec![dir("/o/objects")],
        vec![dir("/r/refs/heads")],
        vec![write("/w/commondir")],
        vec![rename("/r/HEAD", "/n/HEAD")],
        vec![copy("/r/HEAD", "/n/HEAD")],
        vec![rename("/n/refs", "/r/refs")],
        vec![copy("/n", "/m"), write("/m/HEAD")],
        vec![rename("/n", "/m"), write("/m/HEAD")],
        vec![write("/new/HEAD"), dir("/new/objects"), dir("/new/refs")],
        vec![write("/new/HEAD"), dir("/new/objects"), rename("/n/refs", "/new/refs")],
        vec![write("/new/HEAD"), dir("/new/objects"), rename("/new", "/newer"), dir("/newer/refs")],
        vec![write("/new/HEAD"), write("/new/commondir")],
    ];
    // Changes to existing repositories, or moves of them: `/bare.git` and the repository `/svn`.
    let changing = [
        vec![write("/bare.git/config")],
        vec![write("/bare.git/hooks/post-update")],
        vec![write("/bare.git/HEAD")],
        vec![Change::Delete { path: path("/bare.git/config"), recursive: false, expect: None }],
        vec![rename("/free", "/bare.git/hooks/post-update")],
        vec![rename("/bare.git", "/moved")],
        vec![copy("/holder", "/copied")],
        vec![write("/svn/hooks/post-commit")],
        vec![write("/svn/conf/authz")],
    ];
    for batch in completing.into_iter().chain(changing) {
        let state = Arc::new(StateBackend::new());
        for at in ["/n/objects/x", "/n/refs/x", "/o/HEAD", "/o/refs/x", "/r/HEAD", "/r/objects/x", "/w/HEAD", "/free"] {
            state.write(at, "x").await.expect("written");
        }
        for repository in ["/bare.git", "/holder/inner"] {
            for mark in ["HEAD", "objects/x", "refs/x", "config"] {
                state.write(&format!("{repository}/{mark}"), "x").await.expect("written");
            }
        }
        for mark in ["format", "db/uuid", "hooks/x", "locks/x", "conf/authz"] {
            state.write(&format!("/svn/{mark}"), "x").await.expect("written");
        }
        let before = held(&state).await;
        let tree = Protected::new(Protections::new(VfsPath::ROOT), state.clone());
        let error = tree.apply(&batch, &ApplyOptions::new()).await.err().unwrap_or_else(|| panic!("{batch:?} was made"));
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{batch:?}: {error}");
        assert!(error.message().contains("repository"), "{batch:?}: {error}");
        assert_eq!(held(&state).await, before, "{batch:?}");
        // A directory with only some of the names is an ordinary one. A repository may be removed, and changed if somebody names it.
        for at in ["/n/config", "/o/hooks/x", "/r/x", "/db/format", "/objects/x", "/HEAD"] {
            tree.write(at, "x").await.expect(at);
        }
        Allowance::new(vec![path("/bare.git")]).during(tree.write("/bare.git/config", "x")).await.expect("named");
        let exempt = Protections::new(VfsPath::ROOT).without(["/bare.git"]).expect("a path");
        Protected::new(exempt, state.clone()).write("/bare.git/config", "x").await.expect("left out");
        tree.delete_all("/bare.git").await.expect("the removed repository cannot run code");
    }
}
