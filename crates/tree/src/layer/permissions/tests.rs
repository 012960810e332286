use super::*;
use crate::backend::{BackendExt, StateBackend};
use crate::forward_backend;
use crate::layer::{Fault, Layered};
use parking_lot::Mutex;
use proptest::prelude::*;
use treehold_core::ops::{Difference, Edit, GrepOutput, ReviewPurpose, Standing, StatOptions, WriteMode};

type Stack = Permissions<Arc<StateBackend>>;

fn path(text: &str) -> VfsPathBuf {
    VfsPathBuf::parse(text).expect("a legal path")
}

fn kind<T>(result: Result<T>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

async fn state(files: &[&str]) -> Arc<StateBackend> {
    let state = Arc::new(StateBackend::new());
    for file in files {
        state.write(file, format!("needle in {file}\n")).await.expect("written");
    }
    state
}

async fn tree(rules: &[(Effect, Operations, &str)], files: &[&str]) -> Stack {
    let rules = rules.iter().map(|(effect, operations, pattern)| Rule::new(*effect, *operations, [pattern]).expect("a legal rule"));
    Permissions::new(rules, state(files).await)
}

fn names(entries: &[Entry]) -> Vec<&str> {
    entries.iter().map(|entry| entry.path.as_str()).collect()
}

async fn globbed(tree: &Stack, pattern: &str) -> Vec<String> {
    let found = tree.glob(VfsPath::ROOT, &GlobOptions::new(pattern).with_hidden(true).with_directories(true)).await.expect("globbed");
    names(&found.entries).into_iter().map(ToOwned::to_owned).collect()
}

/// An approver that gives a fixed answer and records the requests.
#[derive(Debug)]
struct Told {
    answer: Approval,
    asked: Mutex<Vec<(OpKind, Vec<String>)>>,
}

impl Told {
    fn new(answer: Approval) -> Arc<Self> {
        Arc::new(Self { answer, asked: Mutex::default() })
    }
}

#[async_trait]
impl Approver for Told {
    async fn approve(&self, request: &ApprovalRequest<'_>) -> Result<Approval> {
        self.asked.lock().push((request.operation, request.paths.iter().map(ToString::to_string).collect()));
        Ok(self.answer.clone())
    }
}

#[tokio::test]
async fn hidden_path_looks_absent() {
    let files = ["/a.md", "/secrets/key", "/d/.env", "/d/b.md", "/secretsX"];
    let tree = tree(&[(Effect::Deny, Operations::READ, "/secrets"), (Effect::Deny, Operations::READ, "/**/.env")], &files).await;
    assert_eq!(names(&tree.ls(VfsPath::ROOT, &LsOptions::new()).await.expect("listed").entries), ["/a.md", "/d", "/secretsX"]);
    assert_eq!(names(&tree.ls(&path("/d"), &LsOptions::new()).await.expect("listed").entries), ["/d/b.md"]);
    assert_eq!(globbed(&tree, "**").await, ["/a.md", "/d", "/d/b.md", "/secretsX"]);
    let found = tree.grep(VfsPath::ROOT, &GrepOptions::new("needle").with_hidden(true)).await.expect("searched");
    assert_eq!(found.files.iter().map(|file| file.path.as_str()).collect::<Vec<_>>(), ["/a.md", "/d/b.md", "/secretsX"]);
    assert_eq!(found.files_searched, 3, "hidden content is not searched");
    for hidden in ["/secrets", "/secrets/key", "/secrets/none", "/d/.env"] {
        let at = path(hidden);
        assert_eq!(kind(tree.stat(&at, &StatOptions::new()).await), Some(ErrorKind::NotFound), "{hidden}");
        assert_eq!(kind(tree.read(&at, &ReadOptions::new()).await), Some(ErrorKind::NotFound), "{hidden}");
        assert_eq!(kind(tree.ls(&at, &LsOptions::new()).await), Some(ErrorKind::NotFound), "{hidden}");
        assert_eq!(kind(tree.glob(&at, &GlobOptions::new("*")).await), Some(ErrorKind::NotFound), "{hidden}");
        assert_eq!(kind(tree.grep(&at, &GrepOptions::new("x")).await), Some(ErrorKind::NotFound), "{hidden}");
        assert_eq!(kind(tree.edit(hidden, "needle", "x").await), Some(ErrorKind::NotFound), "{hidden}");
        assert_eq!(kind(tree.delete_all(hidden).await), Some(ErrorKind::NotFound), "{hidden}");
        assert_eq!(kind(tree.rename(hidden, "/x").await), Some(ErrorKind::NotFound), "{hidden}");
        assert_eq!(kind(tree.copy(hidden, "/x").await), Some(ErrorKind::NotFound), "{hidden}");
        // Creating something must not reveal whether something is there.
        assert_eq!(kind(tree.write(hidden, "x").await), Some(ErrorKind::PermissionDenied), "{hidden}");
        assert_eq!(kind(tree.append(hidden, "x").await), Some(ErrorKind::PermissionDenied), "{hidden}");
        assert_eq!(kind(tree.create_dir(hidden).await), Some(ErrorKind::PermissionDenied), "{hidden}");
        assert_eq!(kind(tree.rename("/a.md", hidden).await), Some(ErrorKind::PermissionDenied), "{hidden}");
        assert_eq!(kind(tree.copy("/a.md", hidden).await), Some(ErrorKind::PermissionDenied), "{hidden}");
    }
}

#[tokio::test]
async fn read_only_path_can_be_read_but_not_changed() {
    let tree = tree(&[(Effect::Deny, Operations::WRITE, "/docs")], &["/docs/a.md", "/b.md"]).await;
    assert!(tree.read_text("/docs/a.md").await.expect("readable").contains("needle"));
    let error = tree.write("/docs/a.md", "x").await.expect_err("denied");
    assert_eq!(error.message(), "rule 1 (`/docs`) forbids `write` of `/docs/a.md`; choose another path, or tell the user");
    assert_eq!((error.kind(), error.change(), error.operation()), (ErrorKind::PermissionDenied, Some(0), Some(OpKind::Write)));
    assert_eq!(kind(tree.write("/docs/new/a.md", "x").await), Some(ErrorKind::PermissionDenied));
    assert_eq!(kind(tree.rename("/docs/a.md", "/a.md").await), Some(ErrorKind::PermissionDenied));
    assert_eq!(kind(tree.rename("/b.md", "/docs/b.md").await), Some(ErrorKind::PermissionDenied));
    tree.copy("/docs/a.md", "/a.md").await.expect("a copy leaves its source");
    tree.copy("/docs", "/mine").await.expect("of a directory too");
    assert_eq!(tree.to_string(), "Permissions(1 rule, State)");
}

#[tokio::test]
async fn single_operation_can_be_denied() {
    let rules = [
        (Effect::Allow, OpKind::Append.into(), "/log"),
        (Effect::Deny, Operations::WRITE, "/log"),
        (Effect::Deny, OpKind::Read.into(), "/sealed"),
        (Effect::Deny, OpKind::Delete.into(), "/keep"),
    ];
    let tree = tree(&rules, &["/log", "/sealed/a", "/keep/a", "/b"]).await;
    tree.append("/log", "more").await.expect("allowed");
    assert_eq!(kind(tree.write("/log", "").await), Some(ErrorKind::PermissionDenied));
    // It can be seen but not read, by any operation.
    tree.stat(&path("/sealed/a"), &StatOptions::new()).await.expect("seen");
    assert_eq!(kind(tree.read_text("/sealed/a").await), Some(ErrorKind::PermissionDenied));
    assert_eq!(kind(tree.grep(&path("/sealed/a"), &GrepOptions::new("needle")).await), Some(ErrorKind::PermissionDenied));
    assert_eq!(kind(tree.edit("/sealed/a", "needle", "x").await), Some(ErrorKind::PermissionDenied));
    assert_eq!(kind(tree.copy("/sealed/a", "/mine").await), Some(ErrorKind::PermissionDenied));
    assert_eq!(kind(tree.copy("/sealed", "/mine").await), Some(ErrorKind::PermissionDenied));
    let found = tree.grep(VfsPath::ROOT, &GrepOptions::new("needle").with_output(GrepOutput::Files)).await.expect("searched");
    assert_eq!(found.files.iter().map(|file| file.path.as_str()).collect::<Vec<_>>(), ["/b", "/keep/a", "/log"]);
    // Moving a file away counts as removing it.
    assert_eq!(kind(tree.rename("/keep/a", "/b2").await), Some(ErrorKind::PermissionDenied));
    assert_eq!(kind(tree.rename("/keep", "/b2").await), Some(ErrorKind::PermissionDenied));
    tree.write("/keep/a", "x").await.expect("allowed");
}

#[tokio::test]
async fn directory_operation_is_refused_if_a_rule_protects_its_content() {
    let rules = [(Effect::Deny, Operations::ALL, "/**/.env"), (Effect::Deny, Operations::WRITE, "/**/*.lock")];
    let tree = tree(&rules, &["/app/.env", "/app/a", "/lib/x.lock", "/lib/a", "/free/a", "/free/b/c"]).await;
    for directory in ["/app", "/lib"] {
        let error = tree.delete_all(directory).await.expect_err("protected");
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        assert!(!error.message().contains(".env"), "{error}");
        assert_eq!(kind(tree.rename(directory, "/x").await), Some(ErrorKind::PermissionDenied), "{directory}");
    }
    assert_eq!(kind(tree.copy("/app", "/x").await), Some(ErrorKind::PermissionDenied));
    // The copy would be where a rule forbids writing.
    assert_eq!(kind(tree.copy("/lib", "/x").await), Some(ErrorKind::PermissionDenied));
    tree.rename("/free", "/app/free").await.expect("nothing is protected in it");
    tree.delete_all("/app/free").await.expect("nothing is protected in it");
    assert!(tree.inner().exists("/app/.env").await.expect("the tree answers"));
}

#[tokio::test]
async fn move_into_protected_directory_checks_every_moved_path() {
    let tree = tree(&[(Effect::Deny, Operations::WRITE, "/out/**/sealed")], &["/in/sealed", "/in/a"]).await;
    assert_eq!(kind(tree.rename("/in", "/out/x").await), Some(ErrorKind::PermissionDenied));
    assert_eq!(kind(tree.copy("/in", "/out/x").await), Some(ErrorKind::PermissionDenied));
    tree.rename("/in/sealed", "/in/open").await.expect("allowed");
    tree.rename("/in", "/out/x").await.expect("nothing is sealed now");
}

#[tokio::test]
async fn move_or_copy_over_hidden_file_is_refused() {
    let rules = [(Effect::Allow, Operations::READ, "/**/*.md"), (Effect::Deny, Operations::READ, "/private")];
    let tree = tree(&rules, &["/x.md", "/private/key"]).await;
    for (from, overwrite) in [("/x.md", true), ("/x.md", false)] {
        let (from, to) = (path(from), path("/private/key"));
        let moved = tree.apply_one(Change::Rename { from: from.clone(), to: to.clone(), overwrite }).await;
        assert_eq!(kind(moved), Some(ErrorKind::PermissionDenied));
        let copied = tree.apply_one(Change::Copy { from, to, overwrite }).await;
        assert_eq!(kind(copied), Some(ErrorKind::PermissionDenied));
    }
    assert_eq!(tree.inner().read_text("/private/key").await.expect("the file is unchanged"), "needle in /private/key\n");
}

#[tokio::test]
async fn batch_cannot_bypass_rules() {
    let tree = tree(&[(Effect::Deny, Operations::WRITE, "/out/**/sealed")], &["/in/a", "/in/sealed"]).await;
    let rename = |from: &str, to: &str| Change::Rename { from: path(from), to: path(to), overwrite: true };
    let write = |at: &str| Change::Write { path: path(at), content: "x".into(), mode: WriteMode::Overwrite };
    for batch in [
        vec![write("/new/sealed"), rename("/new", "/out/new")],
        vec![rename("/in", "/between"), rename("/between", "/out/new")],
        vec![Change::Copy { from: path("/in"), to: path("/between"), overwrite: false }, rename("/between", "/out/new")],
        vec![write("/x"), write("/out/a/sealed")],
    ] {
        let error = tree.apply(&batch, &ApplyOptions::new()).await.expect_err("refused");
        assert_eq!((error.kind(), error.change(), error.applied()), (ErrorKind::PermissionDenied, Some(1), 0), "{batch:?}");
    }
    assert!(!tree.exists("/x").await.expect("the tree answers"));
    // The usual way to replace a file atomically.
    tree.apply(&[write("/out/a.new"), rename("/out/a.new", "/out/a")], &ApplyOptions::new()).await.expect("allowed");
    tree.apply(&[write("/stage/a"), rename("/stage", "/out/stage")], &ApplyOptions::new()).await.expect("allowed");
}

#[tokio::test]
async fn directories_above_allowed_paths_can_be_walked() {
    let rules = [(Effect::Allow, Operations::ALL, "/team/ada/**"), (Effect::Deny, Operations::ALL, "/**")];
    let tree = tree(&rules, &["/team/ada/a", "/team/bob/a", "/team/b", "/c"]).await;
    assert_eq!(names(&tree.ls(VfsPath::ROOT, &LsOptions::new()).await.expect("listed").entries), ["/team"]);
    assert_eq!(names(&tree.ls(&path("/team"), &LsOptions::new()).await.expect("listed").entries), ["/team/ada"]);
    assert_eq!(globbed(&tree, "**").await, ["/team", "/team/ada", "/team/ada/a"]);
    let found = tree.grep(&path("/team"), &GrepOptions::new("needle")).await.expect("searched");
    assert_eq!((found.files.len(), found.files_searched), (1, 1));
    tree.write("/team/ada/new", "x").await.expect("allowed");
    assert_eq!(kind(tree.stat(&path("/team/b"), &StatOptions::new()).await), Some(ErrorKind::NotFound));
    assert_eq!(kind(tree.write("/team/x", "x").await), Some(ErrorKind::PermissionDenied));
    assert_eq!(kind(tree.delete_all("/team/ada").await), Some(ErrorKind::PermissionDenied));
    let shut = Permissions::new([], state(&["/a"]).await).with_default(Effect::Deny);
    assert!(shut.ls(VfsPath::ROOT, &LsOptions::new()).await.expect("the root is listed").entries.is_empty());
}

#[tokio::test]
async fn batch_asks_once_before_any_change() {
    let told = Told::new(Approval::Granted);
    let rules = [(Effect::Ask, Operations::WRITE, "/prod")];
    let tree = tree(&rules, &["/prod/a", "/prod/b", "/free"]).await.with_approver(Arc::clone(&told));
    let batch = [
        Change::Write { path: path("/prod/a"), content: "x".into(), mode: WriteMode::Overwrite },
        Change::Append { path: path("/free"), content: "x".into() },
        Change::Edit { path: path("/prod/b"), edits: vec![Edit::new("needle", "x")], expect: None },
    ];
    tree.apply(&batch, &ApplyOptions::new()).await.expect("approved");
    assert_eq!(*told.asked.lock(), [(OpKind::Apply, vec!["/prod/a".to_owned(), "/prod/b".to_owned()])]);
    tree.delete_all("/prod").await.expect("approved");
    assert_eq!(told.asked.lock().len(), 2);
    tree.write("/free", "x").await.expect("the path needs no approval");
    assert_eq!(told.asked.lock().len(), 2);
}

#[tokio::test]
async fn refused_approval_changes_nothing() {
    let told = Told::new(Approval::Refused { reason: Some("not on a friday".into()) });
    let rules = [(Effect::Ask, Operations::ALL, "/prod")];
    let tree = tree(&rules, &["/prod/a", "/free"]).await.with_approver(Arc::clone(&told));
    let batch = [
        Change::Write { path: path("/free"), content: "x".into(), mode: WriteMode::Overwrite },
        Change::Delete { path: path("/prod/a"), recursive: false, expect: None },
    ];
    let error = tree.apply(&batch, &ApplyOptions::new()).await.expect_err("refused");
    assert_eq!(error.message(), "approval of `apply` of `/prod/a` was refused: not on a friday");
    assert_eq!(kind(tree.read_text("/prod/a").await), Some(ErrorKind::PermissionDenied));
    assert!(tree.read_text("/free").await.expect("readable").contains("needle"));
    // Listing names needs no approval, and a search from above skips files that need it.
    let asked = told.asked.lock().len();
    assert_eq!(globbed(&tree, "**").await, ["/free", "/prod", "/prod/a"]);
    assert_eq!(tree.grep(VfsPath::ROOT, &GrepOptions::new("needle")).await.expect("searched").files.len(), 1);
    assert_eq!(told.asked.lock().len(), asked);
    assert_eq!(kind(tree.grep(&path("/prod"), &GrepOptions::new("needle")).await), Some(ErrorKind::PermissionDenied));
}

#[tokio::test]
async fn ask_rule_without_approver_denies() {
    let asking = tree(&[(Effect::Ask, Operations::WRITE, "/prod")], &["/prod/a"]).await;
    let error = asking.write("/prod/a", "x").await.expect_err("no approver");
    assert_eq!(error.message(), "`write` of `/prod/a` needs approval and nobody is here to give it; skip it, or tell the user");
    let told = Told::new(Approval::Granted);
    let granting = tree(&[(Effect::Ask, Operations::READ, "/prod")], &["/prod/a", "/b"]).await.with_approver(Arc::clone(&told));
    let found = granting.grep(&path("/prod"), &GrepOptions::new("needle")).await.expect("approved");
    assert_eq!((found.files.len(), told.asked.lock().len()), (1, 1));
}

#[tokio::test]
async fn failing_inner_tree_never_opens_a_protected_path() {
    // The walk that looks for protected paths fails: the change must be refused, not made.
    let inner = Layered::new(Fault::from_nth(0), state(&["/d/.env"]).await);
    let tree = Permissions::new([Rule::deny(Operations::ALL, ["/**/.env"]).expect("a legal rule")], inner);
    assert_eq!(kind(tree.delete_all("/d").await), Some(ErrorKind::Unavailable));
    assert!(tree.inner().inner().exists("/d/.env").await.expect("the tree answers"));
}

/// A tree that ignores guards, such as one behind a wire.
#[derive(Debug)]
struct Unguarded(Arc<StateBackend>);

impl fmt::Display for Unguarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Unguarded")
    }
}

#[async_trait]
impl Backend for Unguarded {
    forward_backend! { self => self.0; capabilities, stat, read, ls, apply, review }

    async fn glob(&self, path: &VfsPath, options: &GlobOptions) -> Result<GlobResult> {
        let mut options = options.clone();
        options.scope.guard = None;
        self.0.glob(path, &options).await
    }

    async fn grep(&self, path: &VfsPath, options: &GrepOptions) -> Result<GrepResult> {
        let mut options = options.clone();
        options.scope.guard = None;
        self.0.grep(path, &options).await
    }

    async fn search(&self, path: &VfsPath, options: &SearchOptions) -> Result<SearchResult> {
        let mut options = options.clone();
        options.scope.guard = None;
        self.0.search(path, &options).await
    }
}

/// Follows the cursors of a listing, a glob and a grep to their ends, and returns everything found.
async fn all_pages(tree: &dyn Backend, limit: usize) -> [Vec<String>; 3] {
    let mut found = [Vec::new(), Vec::new(), Vec::new()];
    let mut ls = LsOptions::new().with_limit(limit);
    loop {
        let page = tree.ls(VfsPath::ROOT, &ls).await.expect("listed");
        assert!(page.entries.len() <= limit);
        assert!(page.truncated.is_none() || page.entries.len() == limit, "a page is filled up");
        found[0].extend(page.entries.iter().map(|entry| entry.path.to_string()));
        let Some(truncated) = page.truncated else { break };
        ls.start_after = Some(truncated.cursor);
    }
    let mut glob = GlobOptions::new("**").with_directories(true).with_limit(limit);
    loop {
        let page = tree.glob(VfsPath::ROOT, &glob).await.expect("globbed");
        assert!(page.truncated.is_none() || page.entries.len() == limit, "a page is filled up");
        found[1].extend(page.entries.iter().map(|entry| entry.path.to_string()));
        let Some(truncated) = page.truncated else { break };
        glob.start_after = Some(path(&truncated.cursor));
    }
    let mut grep = GrepOptions::new("needle").with_matches_max(limit);
    loop {
        let page = tree.grep(VfsPath::ROOT, &grep).await.expect("searched");
        assert!(page.matches() <= limit);
        found[2].extend(page.files.iter().flat_map(|file| file.lines.iter().map(|line| format!("{}:{}", file.path, line.line))));
        let Some(truncated) = page.truncated else { break };
        grep.start_after = Some(truncated.cursor.parse().expect("a cursor"));
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// A tree with rules behaves, page by page, like a tree without what they hide, whether or not it asks the guard itself.
    #[test]
    fn tree_with_hidden_paths_behaves_like_tree_without_them(
        files in prop::collection::btree_set("/[abc](/[abc]){0,2}(/[xyz])?", 1..12),
        denied in prop::collection::vec("/([abc]|\\*|\\*\\*)(/([abcxyz]|\\*)){0,2}", 1..3),
        allowed in prop::collection::vec("/[abc]/[abcxyz]", 0..2),
        limit in 1..5_usize,
    ) {
        let rules: Vec<Rule> = allowed.iter().map(|pattern| Rule::allow(Operations::READ, [pattern]).expect("a legal rule"))
            .chain(denied.iter().map(|pattern| Rule::deny(Operations::READ, [pattern]).expect("a legal rule")))
            .collect();
        let policy = Policy { rules: rules.clone(), default: Effect::Allow, past: Vec::new() };
        tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(async {
            let (whole, part) = (Arc::new(StateBackend::new()), StateBackend::new());
            for file in &files {
                // Paths beneath a file are skipped.
                if whole.write(file, "needle\nhay\nneedle\n").await.is_err() {
                    continue;
                }
                if policy.shows(&path(file), false) {
                    part.write(file, "needle\nhay\nneedle\n").await.expect("written");
                }
            }
            // Directories that are visible although nothing in them is.
            let every = whole.glob(VfsPath::ROOT, &GlobOptions::new("**").with_directories(true)).await.expect("globbed");
            for directory in every.entries.iter().filter(|entry| entry.is_directory() && policy.shows(&entry.path, true)) {
                part.create_dir(directory.path.as_str()).await.expect("made");
            }
            let expected = all_pages(&part, limit).await;
            prop_assert_eq!(&all_pages(&Permissions::new(rules.clone(), Arc::clone(&whole)), limit).await, &expected);
            prop_assert_eq!(&all_pages(&Permissions::new(rules, Unguarded(whole)), limit).await, &expected);
            Ok(())
        })?;
    }
}

#[cfg(all(feature = "filesystem", unix))]
mod links {
    use super::*;
    use crate::backend::{FilesystemBackend, FilesystemOptions};

    /// Regression: other users could bypass rules through a link. A call that would follow one must be refused.
    #[tokio::test]
    async fn link_cannot_bypass_a_rule() {
        let directory = tempfile::tempdir().expect("a directory");
        let host = |name: &str| directory.path().join(name);
        std::fs::create_dir_all(host("secrets")).expect("made");
        std::fs::create_dir_all(host("docs")).expect("made");
        std::fs::write(host("secrets/key"), "needle").expect("written");
        std::os::unix::fs::symlink("secrets", host("dir_link")).expect("linked");
        std::os::unix::fs::symlink("../secrets/key", host("docs/file_link")).expect("linked");
        let inner = Arc::new(FilesystemBackend::open(directory.path(), FilesystemOptions::new()).expect("opened"));
        let rules = [Rule::deny(Operations::ALL, ["/secrets"]).expect("a legal rule")];
        let tree = Permissions::new(rules.clone(), Arc::clone(&inner));
        for through in ["/dir_link/key", "/docs/file_link"] {
            assert!(inner.read_text(through).await.is_ok(), "{through} is followed by the tree itself");
            assert_eq!(kind(tree.read_text(through).await), Some(ErrorKind::PermissionDenied), "{through}");
            assert_eq!(kind(tree.write(through, "x").await), Some(ErrorKind::PermissionDenied), "{through}");
            assert_eq!(kind(tree.edit(through, "needle", "x").await), Some(ErrorKind::PermissionDenied), "{through}");
            assert_eq!(kind(tree.copy(through, "/copy").await), Some(ErrorKind::PermissionDenied), "{through}");
            assert_eq!(kind(tree.grep(&path(through), &GrepOptions::new("needle")).await), Some(ErrorKind::PermissionDenied), "{through}");
        }
        assert_eq!(kind(tree.ls(&path("/dir_link"), &LsOptions::new()).await), Some(ErrorKind::PermissionDenied));
        assert_eq!(kind(tree.glob(&path("/dir_link"), &GlobOptions::new("*")).await), Some(ErrorKind::PermissionDenied));
        tree.copy("/docs", "/mine").await.expect("a link is copied as a link");
        assert_eq!(kind(tree.read_text("/mine/file_link").await), Some(ErrorKind::PermissionDenied));
        assert_eq!(kind(tree.delete("/dir_link/key").await), Some(ErrorKind::PermissionDenied));
        assert_eq!(
            tree.stat(&path("/docs/file_link"), &StatOptions::new()).await.expect("the link itself is seen").kind,
            EntryKind::Symlink
        );
        tree.delete("/docs/file_link").await.expect("the link can be removed");
        assert_eq!(std::fs::read_to_string(host("secrets/key")).expect("kept"), "needle");
        let trusting = Permissions::new(rules, inner).with_links_followed();
        assert_eq!(trusting.read_text("/dir_link/key").await.expect("trusted"), "needle");
    }
}

#[tokio::test]
async fn review_of_unknown_paths_is_refused_exactly_where_a_path_beneath_would_be() {
    let (all, write, delete) = (Operations::ALL, Operations::from(OpKind::Write), Operations::from(OpKind::Delete));
    let cases = [
        vec![],
        vec![(Effect::Allow, all, "/open")],
        vec![(Effect::Deny, write, "/a")],
        vec![(Effect::Allow, all, "/"), (Effect::Deny, all, "/a")],
        vec![(Effect::Deny, Operations::WRITE, "/a")],
        vec![(Effect::Deny, Operations::READ, "/a")],
        vec![(Effect::Deny, delete, "/d")],
        vec![(Effect::Ask, delete, "/**/a")],
    ];
    let places = [("/", &["/a", "/open", "/x/a", "/d/a"][..]), ("/d", &["/d/a", "/d/open", "/d/x/a"])];
    for rules in cases {
        for default in [Effect::Allow, Effect::Deny] {
            let tree = tree(&rules, &[]).await.with_default(default);
            for (at, files) in places {
                let mut refused = Vec::new();
                for file in files {
                    let gone = Difference::new(path(file), Some(Standing::File(1)), None);
                    if tree.review(&Review::new(ReviewPurpose::Change, path(at), vec![gone])).await.is_err() {
                        refused.push(*file);
                    }
                }
                let whole = Difference::new(path(at), Some(Standing::Directory), None);
                let review = Review::new(ReviewPurpose::Change, path(at), vec![whole]).with_covers_beneath(true);
                let expected = (!refused.is_empty()).then_some(ErrorKind::PermissionDenied);
                assert_eq!(kind(tree.review(&review).await), expected, "{rules:?} {default:?} {at} {refused:?}");
            }
        }
    }
}

#[tokio::test]
async fn permit_refuses_as_a_change_does_and_asks_nobody() {
    let told = Told::new(Approval::Granted);
    let rules = || [(Effect::Ask, Operations::WRITE, "/asked"), (Effect::Deny, Operations::WRITE, "/denied")];
    for has_approver in [true, false] {
        let tree = tree(&rules(), &[]).await;
        let tree = if has_approver { tree.with_approver(told.clone()) } else { tree };
        for (file, is_refused) in [("/free", false), ("/asked", !has_approver), ("/denied", true)] {
            for (purpose, asks) in [(ReviewPurpose::Permit, false), (ReviewPurpose::Change, has_approver && file == "/asked")] {
                let made = Difference::new(path(file), None, Some(Standing::File(1)));
                let reviewed = tree.review(&Review::new(purpose, VfsPathBuf::root(), vec![made])).await;
                assert_eq!(kind(reviewed), is_refused.then_some(ErrorKind::PermissionDenied), "{file} {purpose:?} {has_approver}");
                assert_eq!(!std::mem::take(&mut *told.asked.lock()).is_empty(), asks, "{file} {purpose:?} {has_approver}");
            }
        }
    }
}
