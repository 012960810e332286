//! A link cannot bypass a rule: every operation, with a link at every possible position, within a mount and between mounts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;
use treehold::backend::FilesystemOptions;
use treehold::layer::{Effect, Operations, Permissions, Rule};
use treehold::ops::{
    ApplyOptions, Change, Edit, GlobOptions, GrepOptions, LsOptions, OpKind, ReadOptions, SearchOptions, StatOptions, WriteMode,
};
use treehold::{Backend, BackendExt, CompositeBackend, ErrorKind, FilesystemBackend, StateBackend, VfsPath, VfsPathBuf};

/// Text that only the protected files contain.
const SECRET: &str = "xyzzysecret";

/// The size of a protected file, which no other file has.
const SECRET_BYTES: usize = 7_919;

fn path(text: &str) -> VfsPathBuf {
    VfsPathBuf::parse(text).unwrap()
}

/// A host directory with protected files and links to them, mounted at `/workspace` beside two other mounts.
struct Host {
    directory: TempDir,
    other: TempDir,
    notes: Arc<StateBackend>,
}

impl Host {
    async fn new() -> Self {
        let (directory, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let at = |name: &str| directory.path().join(name);
        std::fs::create_dir_all(at("secret/d")).unwrap();
        std::fs::create_dir_all(at("ok/plain")).unwrap();
        for file in ["secret/s", "secret/d/s"] {
            std::fs::write(at(file), format!("{:SECRET_BYTES$}", format!("{SECRET} of {file}\n"))).unwrap();
        }
        for file in ["ok/file", "ok/plain/file"] {
            std::fs::write(at(file), "mine\n").unwrap();
        }
        for (link, target) in LINKS {
            std::os::unix::fs::symlink(target, at(link)).unwrap();
        }
        std::fs::write(other.path().join("source"), "from another directory\n").unwrap();
        let notes = Arc::new(StateBackend::new());
        notes.write("/source", "from another mount\n").await.unwrap();
        Self { directory, other, notes }
    }

    fn tree(&self) -> CompositeBackend {
        let open = |directory: &TempDir| Arc::new(FilesystemBackend::open(directory.path(), FilesystemOptions::new()).unwrap());
        let builder = CompositeBackend::builder(Arc::new(StateBackend::new())).route("/workspace", open(&self.directory)).unwrap();
        builder.route("/other", open(&self.other)).unwrap().route("/notes", self.notes.clone()).unwrap().build().unwrap()
    }

    /// Returns everything in the mounts: files with their content, links with their targets.
    async fn dump(&self) -> BTreeMap<PathBuf, String> {
        let mut all = BTreeMap::new();
        for root in [self.directory.path(), self.other.path()] {
            dump(root, &mut all);
        }
        for entry in self.notes.glob(VfsPath::ROOT, &GlobOptions::new("**")).await.unwrap().entries {
            all.insert(entry.path.as_str().into(), self.notes.read_text(entry.path.as_str()).await.unwrap());
        }
        all
    }

    /// Returns the content of the protected directory.
    fn protected(&self) -> BTreeMap<PathBuf, String> {
        let mut all = BTreeMap::new();
        dump(&self.directory.path().join("secret"), &mut all);
        all
    }
}

fn dump(directory: &Path, all: &mut BTreeMap<PathBuf, String>) {
    for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let kind = entry.file_type().unwrap();
        let shown = match (kind.is_symlink(), kind.is_dir()) {
            (true, _) => format!("-> {}", std::fs::read_link(entry.path()).unwrap().display()),
            (_, true) => "/".to_owned(),
            _ => String::from_utf8(std::fs::read(entry.path()).unwrap()).unwrap(),
        };
        all.insert(entry.path(), shown);
        if kind.is_dir() {
            dump(&entry.path(), all);
        }
    }
}

/// The links and their targets: a file, a directory, another link, a missing file.
const LINKS: [(&str, &str); 6] = [
    ("ok/file_link", "../secret/s"),
    ("ok/directory_link", "../secret"),
    ("ok/chain", "chain_2"),
    ("ok/chain_2", "../secret/s"),
    ("ok/dangling", "../secret/new"),
    ("ok/dangling_directory", "../secret/new_directory"),
];

/// The paths that lead to protected files, or would.
const THROUGH: [&str; 8] = [
    "/workspace/ok/file_link",
    "/workspace/ok/directory_link",
    "/workspace/ok/directory_link/s",
    "/workspace/ok/directory_link/d/s",
    "/workspace/ok/directory_link/new",
    "/workspace/ok/chain",
    "/workspace/ok/dangling",
    "/workspace/ok/dangling_directory/new",
];

/// The rules that protect `/workspace/secret`, in each way to express it.
fn protections() -> Vec<(&'static str, Vec<Rule>, Effect)> {
    let own = [path("/workspace/ok"), path("/other"), path("/notes")];
    vec![
        ("a rule that denies all", vec![Rule::deny(Operations::ALL, ["/workspace/secret"]).unwrap()], Effect::Allow),
        ("a token's paths", vec![Rule::within(Operations::ALL, &own).unwrap()], Effect::Deny),
    ]
}

fn write(at: &VfsPath, mode: WriteMode) -> Change {
    Change::Write { path: at.to_owned(), content: "overwritten".into(), mode }
}

/// Returns the batches that apply an operation to a path, in every possible way. A new operation must be added here.
fn batches(kind: OpKind, at: &VfsPath) -> Vec<Vec<Change>> {
    let sources = ["/workspace/ok/file", "/workspace/ok/plain", "/other/source", "/notes/source"].map(path);
    let targets = ["/workspace/ok/taken", "/other/taken", "/notes/taken"].map(path);
    let both = |pairs: Vec<(VfsPathBuf, VfsPathBuf)>| {
        pairs.into_iter().flat_map(|(from, to)| [true, false].map(|over| (from.clone(), to.clone(), over)))
    };
    let pairs = || {
        let into = sources.iter().map(|source| (source.clone(), at.to_owned()));
        both(into.chain(targets.iter().map(|target| (at.to_owned(), target.clone()))).collect())
    };
    match kind {
        OpKind::Stat | OpKind::Read | OpKind::Ls | OpKind::Glob | OpKind::Grep | OpKind::Search => Vec::new(),
        OpKind::Write => [WriteMode::Overwrite, WriteMode::CreateNew].map(|mode| vec![write(at, mode)]).into(),
        OpKind::Append => vec![vec![Change::Append { path: at.to_owned(), content: "appended".into() }]],
        OpKind::Edit => vec![vec![Change::Edit { path: at.to_owned(), edits: vec![Edit::new(SECRET, "edited")], expect: None }]],
        OpKind::CreateDir => vec![vec![Change::CreateDir { path: at.to_owned() }]],
        OpKind::Delete => [true, false].map(|recursive| vec![Change::Delete { path: at.to_owned(), recursive, expect: None }]).into(),
        OpKind::Rename => pairs().map(|(from, to, overwrite)| vec![Change::Rename { from, to, overwrite }]).collect(),
        OpKind::Copy => pairs().map(|(from, to, overwrite)| vec![Change::Copy { from, to, overwrite }]).collect(),
        // A batch that first moves the link to another path, and then follows it there.
        OpKind::Apply => {
            let moved = path("/workspace/ok/moved");
            let there = |from: &VfsPath| moved.concat(at.strip_prefix(from).unwrap_or(VfsPath::ROOT));
            let above = path("/workspace/ok/directory_link");
            let from = if at.starts_with(&above) { &*above } else { at };
            let takes = |overwrite| {
                [
                    Change::Rename { from: from.to_owned(), to: moved.clone(), overwrite },
                    Change::Copy { from: from.to_owned(), to: moved.clone(), overwrite },
                ]
            };
            let uses = [
                write(&there(from), WriteMode::Overwrite),
                Change::Append { path: there(from), content: "appended".into() },
                Change::Copy { from: there(from), to: path("/notes/taken"), overwrite: true },
                Change::Rename { from: path("/notes/source"), to: there(from), overwrite: true },
            ];
            let mut all = Vec::new();
            for take in takes(true) {
                all.extend(uses.iter().map(|using| vec![take.clone(), using.clone()]));
                let twice = Change::Rename { from: moved.clone(), to: path("/workspace/ok/twice"), overwrite: true };
                let again = there(from);
                let again = path("/workspace/ok/twice").concat(again.strip_prefix(&moved).unwrap());
                all.push(vec![take.clone(), twice, write(&again, WriteMode::Overwrite)]);
            }
            all
        }
        other => panic!("add changes of kind `{other}` for a path here"),
    }
}

/// Runs a reading operation on a path, and returns its whole answer.
async fn look(tree: &dyn Backend, kind: OpKind, at: &VfsPath) -> Option<String> {
    Some(match kind {
        OpKind::Stat => format!("{:?}", tree.stat(at, &StatOptions::new()).await),
        OpKind::Read => {
            let ranges = [ReadOptions::new(), ReadOptions::lines(0, 1), ReadOptions::bytes(0, 8), ReadOptions::bytes(2, 0)];
            let mut answers = String::new();
            for range in ranges {
                answers.push_str(&format!("{:?}", tree.read(at, &range).await));
            }
            answers
        }
        OpKind::Ls => format!("{:?}", tree.ls(at, &LsOptions::new()).await),
        OpKind::Glob => format!("{:?}", tree.glob(at, &GlobOptions::new("**").with_hidden(true)).await),
        OpKind::Grep => format!("{:?}", tree.grep(at, &GrepOptions::new(SECRET)).await),
        OpKind::Search => format!("{:?}", tree.search(at, &SearchOptions::new(SECRET)).await),
        _ => return None,
    })
}

#[tokio::test]
async fn link_cannot_bypass_a_rule_in_any_operation() {
    let mut asked = 0;
    for (protection, rules, default) in protections() {
        for kind in OpKind::ALL {
            for through in THROUGH.map(path) {
                let host = Host::new().await;
                let tree = Permissions::new(rules.clone(), host.tree()).with_default(default);
                if let Some(answers) = look(&tree, kind, &through).await {
                    assert!(!answers.contains(&format!("{SECRET} of")), "{protection}: `{kind}` of `{through}`: {answers}");
                    assert!(!answers.contains("secret/") || !answers.contains("Ok"), "{protection}: `{kind}` of `{through}`: {answers}");
                    asked += 1;
                }
                for batch in batches(kind, &through) {
                    for options in [ApplyOptions::new(), ApplyOptions::new().with_allow_partial(true)] {
                        let host = Host::new().await;
                        let tree = Permissions::new(rules.clone(), host.tree()).with_default(default);
                        let (before, protected) = (host.dump().await, host.protected());
                        let result = tree.apply(&batch, &options).await;
                        assert_eq!(host.protected(), protected, "{protection}: {batch:?}: {result:?}");
                        let after = host.dump().await;
                        let copies = after.iter().filter(|(at, content)| content.contains(SECRET) && !protected.contains_key(*at));
                        assert_eq!(copies.count(), 0, "{protection}: {batch:?} copied protected content: {result:?}");
                        if let Err(error) = &result
                            && error.applied() == 0
                        {
                            assert_eq!(after, before, "{protection}: {batch:?} failed and had an effect: {error}");
                        }
                        asked += 1;
                    }
                }
            }
        }
    }
    assert!(asked > 1_000, "{asked}");
}

/// Regression: it reported a conflict but had overwritten the target of the link.
#[tokio::test]
async fn move_from_another_mount_onto_a_link_is_refused_even_without_rules() {
    let host = Host::new().await;
    let (tree, before) = (host.tree(), host.dump().await);
    for target in ["/workspace/ok/file_link", "/workspace/ok/dangling", "/workspace/ok/directory_link"].map(path) {
        for source in ["/notes/source", "/other/source"].map(path) {
            for (overwrite, kind) in [(true, ErrorKind::Unsupported), (false, ErrorKind::AlreadyExists)] {
                let (from, to) = (source.clone(), target.clone());
                for change in [Change::Rename { from: from.clone(), to: to.clone(), overwrite }, Change::Copy { from, to, overwrite }] {
                    let error = tree.apply_one(change.clone()).await.unwrap_err();
                    assert_eq!((error.kind(), error.may_have_effect()), (kind, false), "{change:?}: {error}");
                    assert_eq!(host.dump().await, before, "{change:?}");
                }
            }
        }
    }
    let over = Change::Rename { from: path("/notes/source"), to: path("/workspace/ok/file"), overwrite: true };
    assert!(!tree.apply_one(over).await.unwrap().created, "a file is replaced");
}

/// Keeps swapping a file or directory for a link to protected content and back, as fast as possible.
fn swapping(host: &Host, name: &'static str, target: &'static str, stop: Arc<AtomicBool>) -> std::thread::JoinHandle<()> {
    let at = |name: &str| host.directory.path().join("ok").join(name);
    let (place, aside, link) = (at(name), at(&format!("{name}.aside")), at(&format!("{name}.link")));
    std::os::unix::fs::symlink(target, &link).unwrap();
    std::thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            // A call that replaces the file may interfere with either.
            let _ = std::fs::rename(&place, &aside).and_then(|()| std::fs::rename(&link, &place));
            let _ = std::fs::rename(&place, &link).and_then(|()| std::fs::rename(&aside, &place));
        }
    })
}

/// Returns whether a text has a number that is not part of another one, such as the fraction of a time or a version.
fn has_number(text: &str, number: &str) -> bool {
    let is_apart = |beside: Option<char>| beside.is_none_or(|beside| !beside.is_alphanumeric());
    text.match_indices(number).any(|(at, _)| is_apart(text[..at].chars().next_back()) && is_apart(text[at + number.len()..].chars().next()))
}

/// Regression: the rule was checked against what had been there before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn link_swapped_in_between_check_and_use_is_not_followed() {
    for (protection, rules, default) in protections() {
        let host = Host::new().await;
        let tree = Permissions::new(rules, host.tree()).with_default(default);
        let (protected, stop) = (host.protected(), Arc::new(AtomicBool::new(false)));
        let swaps = [swapping(&host, "file", "../secret/s", stop.clone()), swapping(&host, "plain", "../secret", stop.clone())];
        for round in 0..150 {
            for at in ["/workspace/ok/file", "/workspace/ok/plain/s", "/workspace/ok/plain/file"].map(path) {
                for kind in OpKind::ALL {
                    if let Some(answers) = look(&tree, kind, &at).await {
                        let is_shown = answers.contains(&format!("{SECRET} of")) || has_number(&answers, &SECRET_BYTES.to_string());
                        assert!(!is_shown, "{protection}: `{kind}` of `{at}`: {answers}");
                    }
                }
                let changes = [
                    write(&at, WriteMode::Overwrite),
                    Change::Append { path: at.clone(), content: "appended".into() },
                    Change::Edit { path: at.clone(), edits: vec![Edit::new(SECRET, "edited")], expect: None },
                    Change::Copy { from: at.clone(), to: path(&format!("/notes/copy-{round}")), overwrite: true },
                    Change::Copy { from: path("/notes/source"), to: at.clone(), overwrite: true },
                    Change::Delete { path: path("/workspace/ok/plain/s"), recursive: true, expect: None },
                ];
                for change in changes {
                    let result = tree.apply_one(change.clone()).await;
                    assert_eq!(host.protected(), protected, "{protection}: {change:?}: {result:?}");
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
        swaps.into_iter().for_each(|swap| swap.join().unwrap());
        for (at, content) in host.dump().await {
            assert!(!content.contains(SECRET) || protected.contains_key(&at), "{protection}: {} holds it", at.display());
        }
    }
}
