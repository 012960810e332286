//! The composite: what its backends show as one tree, and the faults of its peers that it does not have.

mod property;

use async_trait::async_trait;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use stratafs::composite::CompositeBuilder;
use stratafs::error::Result;
use stratafs::layer::{Fault, Layer, LayerName, Layered, Next, ReadOnly, Reply};
use stratafs::ops::{ApplyOptions, Change, EntryKind, GlobOptions, GrepOptions, GrepOutput, LsOptions, OnFailure, Op, WriteMode};
use stratafs::{Backend, BackendExt, CompositeBackend, Error, ErrorKind, StateBackend, Subtree, VfsPath, VfsPathBuf};
use tokio::sync::Barrier;

fn state() -> Arc<dyn Backend> {
    Arc::new(StateBackend::new())
}

fn path(text: &str) -> VfsPathBuf {
    VfsPathBuf::parse(text).unwrap()
}

/// Mounts a state tier at each prefix over another.
fn mounted(prefixes: &[&str]) -> CompositeBackend {
    built(CompositeBackend::builder(state()), prefixes)
}

fn built(builder: CompositeBuilder, prefixes: &[&str]) -> CompositeBackend {
    builder.routes(prefixes.iter().map(|prefix| (prefix, state()))).unwrap().build().unwrap()
}

async fn filled(prefixes: &[&str], files: &[&str]) -> CompositeBackend {
    let tree = mounted(prefixes);
    fill(&tree, files).await;
    tree
}

async fn fill(tree: &dyn Backend, files: &[&str]) {
    for file in files {
        tree.write(file, "needle\n").await.unwrap();
    }
}

/// The names in a directory; directories end with `/`.
async fn names(tree: &dyn Backend, of: &str) -> Vec<String> {
    let listing = tree.ls(&path(of), &LsOptions::new()).await.unwrap();
    assert_eq!((&listing.truncated, &listing.failures[..]), (&None, &[][..]));
    listing.entries.iter().map(|entry| format!("{}{}", entry.name(), if entry.is_directory() { "/" } else { "" })).collect()
}

async fn found(tree: &dyn Backend, of: &str, options: GlobOptions) -> Vec<String> {
    let result = tree.glob(&path(of), &options).await.unwrap();
    assert_eq!((&result.truncated, &result.failures[..]), (&None, &[][..]));
    result.entries.iter().map(|entry| entry.path.to_string()).collect()
}

async fn globbed(tree: &dyn Backend, pattern: &str) -> Vec<String> {
    found(tree, "/", GlobOptions::new(pattern)).await
}

async fn grepped(tree: &dyn Backend, of: &str, options: GrepOptions) -> Vec<String> {
    let result = tree.grep(&path(of), &options).await.unwrap();
    assert_eq!((&result.truncated, result.failures_count), (&None, 0));
    result.files.iter().map(|file| file.path.to_string()).collect()
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T>, kind: ErrorKind, message: &str) -> Error {
    let error = result.expect_err("the call is refused");
    assert_eq!((error.kind(), error.message()), (kind, message));
    error
}

/// Every call waits until as many wait.
#[derive(Debug)]
struct Together(Arc<Barrier>);

#[async_trait]
impl Layer for Together {
    fn name(&self) -> LayerName {
        LayerName::new("Together")
    }

    async fn around<T: Reply>(&self, _: Op<'_>, next: Next<'_, T>) -> Result<T> {
        self.0.wait().await;
        next.run().await
    }
}

/// Counts calls, and how many there were at once.
#[derive(Debug, Default)]
struct Meter {
    calls: AtomicUsize,
    now: AtomicUsize,
    most: AtomicUsize,
}

#[derive(Debug)]
struct Metered(Arc<Meter>);

#[async_trait]
impl Layer for Metered {
    fn name(&self) -> LayerName {
        LayerName::new("Metered")
    }

    async fn around<T: Reply>(&self, _: Op<'_>, next: Next<'_, T>) -> Result<T> {
        self.0.calls.fetch_add(1, Ordering::Relaxed);
        let now = self.0.now.fetch_add(1, Ordering::Relaxed) + 1;
        self.0.most.fetch_max(now, Ordering::Relaxed);
        tokio::task::yield_now().await;
        let result = next.run().await;
        self.0.now.fetch_sub(1, Ordering::Relaxed);
        result
    }
}

mod building {
    use super::*;

    #[test]
    fn prefixes_that_are_none_are_refused() {
        for (prefix, kind, message) in [
            ("memories", ErrorKind::InvalidPath, "`memories` cannot be mounted at: the path is not absolute; start it with `/`"),
            ("", ErrorKind::InvalidPath, "`` cannot be mounted at: the path is empty; name an absolute path such as `/notes.md`"),
            (
                "/a/../b",
                ErrorKind::InvalidPath,
                "`/a/../b` cannot be mounted at: the path holds a `..` segment; name the target by its absolute path",
            ),
            ("/", ErrorKind::InvalidArgument, "`/` is the place of the default backend; mount beneath it"),
            ("/taken/", ErrorKind::InvalidArgument, "`/taken` is mounted already; name each prefix once"),
        ] {
            let builder = CompositeBackend::builder(state()).route("/taken", state()).unwrap();
            refused(builder.route(prefix, state()), kind, message);
        }
        let builder = CompositeBackend::builder(state()).file_route("/a.md", state()).unwrap().route("/a.md/b", state()).unwrap();
        refused(builder.build(), ErrorKind::InvalidArgument, "`/a.md/b` lies beneath `/a.md`, which is mounted as a file");
    }

    #[test]
    fn is_drawn_with_its_mounts() {
        let tree = CompositeBackend::builder(state()).route("/m", Arc::new(mounted(&["/x"]))).unwrap().route("/a/b/", state()).unwrap();
        let tree = tree.build().unwrap();
        assert_eq!(tree.to_string(), "Composite(State, /a/b => State, /m => Composite(State, /x => State))");
        assert_eq!(tree.mounts().map(|(prefix, _)| prefix.as_str()).collect::<Vec<_>>(), ["/", "/a/b", "/m"]);
        assert_eq!(tree.locate(&path("/m/x/y")), (&*path("/m"), &*path("/x/y")));
    }

    #[test]
    fn declares_what_holds_in_every_mount() {
        let read_only: Arc<dyn Backend> = Arc::new(Layered::new(ReadOnly::new(), StateBackend::new()));
        let tree = CompositeBackend::builder(state()).route("/docs", read_only.clone()).unwrap().build().unwrap();
        assert!(tree.capabilities().writable && tree.capabilities().atomic_batch);
        assert!(!CompositeBackend::builder(read_only).build().unwrap().capabilities().writable);
    }
}

mod routing {
    use super::*;

    #[tokio::test]
    async fn a_prefix_ends_at_a_segment() {
        let tree = filled(&["/mem", "/memories", "/a"], &["/mem/x", "/memories/y", "/memo/z", "/abc/w", "/a/v"]).await;
        let all: Vec<(&VfsPath, &Arc<dyn Backend>)> = tree.mounts().collect();
        assert_eq!(names(all[0].1, "/").await, ["abc/", "memo/"]);
        assert_eq!((names(all[2].1, "/").await, names(all[3].1, "/").await), (vec!["x".to_owned()], vec!["y".to_owned()]));
        assert_eq!(tree.read_text("/abc/w").await.unwrap(), "needle\n");
    }

    #[tokio::test]
    async fn errors_are_in_the_callers_paths() {
        let tree = filled(&["/memories", "/memories/deep"], &["/memories/f", "/memories/d/x"]).await;
        let gone = "`/memories/n.txt` does not exist";
        let at = |error: Error| error.path().map(ToString::to_string);
        assert_eq!(at(refused(tree.read_bytes("/memories/n.txt").await, ErrorKind::NotFound, gone)).as_deref(), Some("/memories/n.txt"));
        let deep = "`/memories/deep/n.txt` does not exist";
        let error = refused(tree.delete("/memories/deep/n.txt").await, ErrorKind::NotFound, deep);
        assert_eq!((at(error).as_deref(), deep.len()), (Some("/memories/deep/n.txt"), 37));
        refused(tree.edit("/memories/n.txt", "a", "b").await, ErrorKind::NotFound, gone);
        refused(tree.rename("/memories/n.txt", "/memories/x").await, ErrorKind::NotFound, gone);
        refused(tree.rename("/memories/n.txt", "/x").await, ErrorKind::NotFound, gone);
        refused(
            tree.stat(&path("/memories/f/x")).await,
            ErrorKind::NotADirectory,
            "`/memories/f/x` lies beneath a file; name a path in a directory",
        );
        refused(tree.glob(&path("/memories/n.txt"), &GlobOptions::new("*")).await, ErrorKind::NotFound, gone);
        refused(tree.grep(&path("/memories/n.txt"), &GrepOptions::new("x")).await, ErrorKind::NotFound, gone);
        refused(tree.ls(&path("/memories/n.txt"), &LsOptions::new()).await, ErrorKind::NotFound, gone);
        for refusal in [tree.delete("/memories/d").await, tree.copy("/memories/d", "/memories/d/e").await] {
            let error = refusal.unwrap_err();
            assert!(error.message().contains("`/memories/d`") && !error.message().contains("`/d"), "{error}");
        }
        let stale = tree.stat(&path("/memories/f")).await.unwrap().version.unwrap();
        let current = tree.write("/memories/f", "new").await.unwrap().version;
        let error = tree.write_if("/memories/f", "mine", stale).await.unwrap_err();
        assert_eq!((error.current_version(), at(error).as_deref()), (current, Some("/memories/f")));
    }

    #[tokio::test]
    async fn a_directory_that_leads_to_mounts_is_there() {
        let tree = mounted(&["/a/b/c"]);
        for of in ["/a", "/a/b"] {
            assert_eq!(tree.stat(&path(of)).await.unwrap().kind, EntryKind::Directory);
            refused(tree.read_bytes(of).await, ErrorKind::IsDirectory, &format!("`{of}` is a directory; name a file"));
            refused(tree.write(of, "x").await, ErrorKind::IsDirectory, &format!("`{of}` is a directory; name a file"));
            let made = tree.create_dir(of).await.unwrap();
            assert_eq!((made.created, made.entries, made.path), (false, 0, path(of)));
        }
        let default = tree.mounts().next().unwrap().1.clone();
        assert_eq!(names(&default, "/").await, [""; 0], "nothing had to be made");
        tree.write("/a/b/x", "x").await.unwrap();
        assert_eq!(default.read_text("/a/b/x").await.unwrap(), "x");
        assert_eq!(names(&tree, "/a/b").await, ["c/", "x"]);
    }

    /// A default file where a mount's ancestor is can be seen nowhere.
    #[tokio::test]
    async fn a_file_in_the_place_of_a_mounts_ancestor_is_hidden() {
        let default = state();
        default.write("/a", "needle\n").await.unwrap();
        let tree = built(CompositeBackend::builder(default.clone()), &["/a/b"]);
        fill(&tree, &["/a/b/f"]).await;
        assert_eq!(tree.stat(&path("/a")).await.unwrap().kind, EntryKind::Directory);
        assert_eq!(names(&tree, "/").await, ["a/"]);
        assert_eq!(names(&tree, "/a").await, ["b/"]);
        assert_eq!(globbed(&tree, "**").await, ["/a/b/f"]);
        assert_eq!(found(&tree, "/a", GlobOptions::new("**")).await, ["/a/b/f"]);
        for of in ["/", "/a"] {
            let result = tree.grep(&path(of), &GrepOptions::new("needle").with_output(GrepOutput::Files)).await.unwrap();
            assert_eq!((result.files.len(), result.files_searched), (1, 1), "grep from {of}");
        }
        refused(tree.stat(&path("/a/x")).await, ErrorKind::NotFound, "`/a/x` does not exist");
        refused(tree.read_bytes("/a/x").await, ErrorKind::NotFound, "`/a/x` does not exist");
        refused(
            tree.write("/a/x", "x").await,
            ErrorKind::NotADirectory,
            "`/a/x` lies in a directory of mounts whose place a file takes in the tree beneath; nothing can be put there",
        );
        assert_eq!(default.read_text("/a").await.unwrap(), "needle\n");
    }

    /// Found by the flat tree: the file was taken for one that the directory above its mount hides.
    #[tokio::test]
    async fn beneath_a_file_of_a_mount_is_no_directory() {
        let tree = filled(&["/v/w"], &["/v/w/f"]).await;
        let message = "`/v/w/f/x` lies beneath a file; name a path in a directory";
        refused(tree.stat(&path("/v/w/f/x")).await, ErrorKind::NotADirectory, message);
        refused(tree.delete("/v/w/f/x").await, ErrorKind::NotADirectory, message);
    }

    #[tokio::test]
    async fn two_mounts_of_one_backend_show_it_twice() {
        let shared = state();
        let builder = CompositeBackend::builder(state()).route("/one", shared.clone()).unwrap();
        let tree = builder.route("/two", Arc::new(Subtree::new(shared, path("/d")))).unwrap().build().unwrap();
        fill(&tree, &["/one/d/n.md"]).await;
        assert_eq!(tree.read_text("/two/n.md").await.unwrap(), "needle\n");
        assert_eq!(globbed(&tree, "n.md").await, ["/one/d/n.md", "/two/n.md"]);
        tree.edit("/two/n.md", "needle", "pin").await.unwrap();
        assert_eq!(tree.read_text("/one/d/n.md").await.unwrap(), "pin\n");
        refused(
            tree.copy("/one/d", "/two").await,
            ErrorKind::InvalidArgument,
            "`/two` is a mount and cannot be replaced; name a path in it",
        );
        tree.copy("/one/d", "/two/again").await.unwrap();
        assert_eq!(globbed(&tree, "/one/**").await, ["/one/d/again/n.md", "/one/d/n.md"], "a copy into itself ends");
        let error = tree.rename("/one/d/n.md", "/two/n.md").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        assert_eq!(tree.read_text("/one/d/n.md").await.unwrap(), "pin\n");
    }
}

mod listing {
    use super::*;

    #[tokio::test]
    async fn the_root_shows_mounts_at_every_depth_by_their_first_name() {
        let tree = filled(&["/memories", "/memories/deep", "/a/b", "/z"], &["/f", "/a-file", "/memories/m"]).await;
        assert_eq!(names(&tree, "/").await, ["a/", "a-file", "f", "memories/", "z/"]);
        assert_eq!(names(&tree, "/memories").await, ["deep/", "m"]);
    }

    #[tokio::test]
    async fn a_directory_that_only_leads_to_mounts_is_listed() {
        let tree = mounted(&["/a/b", "/a/c/d"]);
        assert_eq!(names(&tree, "/a").await, ["b/", "c/"]);
        assert_eq!(names(&tree, "/a/c").await, ["d/"]);
        let listing = tree.ls(&path("/a"), &LsOptions::new()).await.unwrap();
        assert_eq!(listing.entries[0].path, "/a/b");
        refused(tree.ls(&path("/b"), &LsOptions::new()).await, ErrorKind::NotFound, "`/b` does not exist");
    }

    #[tokio::test]
    async fn what_a_mount_hides_is_not_listed_beside_it() {
        let default = state();
        fill(&default, &["/memories/old.md", "/x/y/old.md", "/x/z", "/f"]).await;
        let tree = built(CompositeBackend::builder(default), &["/memories", "/x/y"]);
        assert_eq!(names(&tree, "/").await, ["f", "memories/", "x/"]);
        assert_eq!(names(&tree, "/x").await, ["y/", "z"]);
        assert_eq!(names(&tree, "/memories").await, [""; 0]);
    }

    #[tokio::test]
    async fn pages_meet_without_gap_or_overlap() {
        let default = state();
        fill(&default, &["/a", "/b/hidden", "/c", "/d", "/e/x", "/g"]).await;
        let tree = built(CompositeBackend::builder(default), &["/b", "/bb", "/e/m", "/f/m", "/h"]);
        let whole = names(&tree, "/").await;
        assert_eq!(whole, ["a", "b/", "bb/", "c", "d", "e/", "f/", "g", "h/"]);
        for limit in 1..=whole.len() + 1 {
            let mut options = LsOptions::new().with_limit(limit);
            let mut seen = Vec::new();
            loop {
                let page = tree.ls(VfsPath::ROOT, &options).await.unwrap();
                seen.extend(page.entries.iter().map(|entry| entry.name().to_owned()));
                let Some(cut) = page.truncated else { break };
                assert_eq!(page.entries.len(), limit, "a page that is cut is full");
                options.start_after = Some(cut.cursor);
            }
            assert_eq!(seen, whole.iter().map(|name| name.trim_end_matches('/')).collect::<Vec<_>>(), "pages of {limit}");
        }
        let none = tree.ls(VfsPath::ROOT, &LsOptions::new().with_limit(0).with_start_after("c")).await.unwrap();
        assert_eq!((none.entries.len(), none.truncated.unwrap().cursor), (0, "c".to_owned()));
    }

    #[tokio::test]
    async fn a_mount_that_fails_does_not_fail_the_listing_of_its_parent() {
        let broken: Arc<dyn Backend> = Arc::new(Layered::new(Fault::from_nth(0), StateBackend::new()));
        let tree = CompositeBackend::builder(state()).route("/broken", broken.clone()).unwrap().build().unwrap();
        assert_eq!(names(&tree, "/").await, ["broken/"]);
        // A default that fails does, unless a part will do.
        let tree = built(CompositeBackend::builder(broken), &["/m"]);
        let error = tree.ls(VfsPath::ROOT, &LsOptions::new()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.message().starts_with("mount `/`: "), "{error}");
        let listing = tree.ls(VfsPath::ROOT, &LsOptions::new().with_on_failure(OnFailure::Partial)).await.unwrap();
        assert_eq!((listing.entries.len(), listing.failures.len(), listing.failures[0].error.code.as_str()), (1, 1, "unavailable"));
    }
}

mod searching {
    use super::*;

    async fn notes() -> CompositeBackend {
        let files = ["/n.md", "/x/n.md", "/memories/n.md", "/memories/sub/n.md", "/notes/n.md", "/notes/deep/n.md", "/memories/a.rs"];
        filled(&["/memories", "/notes", "/notes/deep"], &files).await
    }

    #[tokio::test]
    async fn globs_cross_mounts() {
        let tree = notes().await;
        for (pattern, paths) in [
            ("*/n.md", &["/memories/n.md", "/notes/n.md", "/x/n.md"][..]),
            ("m*/n.md", &["/memories/n.md"]),
            ("{memories,x}/*.md", &["/memories/n.md", "/x/n.md"]),
            ("/*.md", &["/n.md"]),
            ("memories/*.md", &["/memories/n.md"]),
            ("/memories/**/*.md", &["/memories/n.md", "/memories/sub/n.md"]),
            ("*/*/n.md", &["/memories/sub/n.md", "/notes/deep/n.md"]),
            ("notes/**", &["/notes/deep/n.md", "/notes/n.md"]),
            ("n.md", &["/memories/n.md", "/memories/sub/n.md", "/n.md", "/notes/deep/n.md", "/notes/n.md", "/x/n.md"]),
            ("**/deep/*", &["/notes/deep/n.md"]),
            ("*.txt", &[]),
        ] {
            assert_eq!(globbed(&tree, pattern).await, paths, "{pattern}");
        }
        assert_eq!(found(&tree, "/notes", GlobOptions::new("*/n.md")).await, ["/notes/deep/n.md"]);
        assert_eq!(found(&tree, "/notes", GlobOptions::new("/n.md")).await, ["/notes/n.md"]);
        assert_eq!(found(&tree, "/memories", GlobOptions::new("/n.md")).await, ["/memories/n.md"]);
    }

    #[tokio::test]
    async fn file_filters_of_grep_mean_the_same_from_outside() {
        let tree = notes().await;
        let filtered = async |of: &str, glob: &str| grepped(&tree, of, GrepOptions::new("needle").with_include(glob)).await;
        assert_eq!(filtered("/", "memories/*.md").await, ["/memories/n.md"]);
        assert_eq!(filtered("/", "/*.md").await, ["/n.md"]);
        assert_eq!(filtered("/notes", "/*.md").await, ["/notes/n.md"]);
        assert_eq!(filtered("/", "*.rs").await, ["/memories/a.rs"]);
        assert_eq!(grepped(&tree, "/", GrepOptions::new("needle").with_type("rust")).await, ["/memories/a.rs"]);
        let excluded = GrepOptions::new("needle").with_exclude("memories").with_exclude("notes/deep/**");
        assert_eq!(grepped(&tree, "/", excluded).await, ["/n.md", "/notes/n.md", "/x/n.md"]);
        assert_eq!(grepped(&tree, "/memories/n.md", GrepOptions::new("needle").with_include("*.rs")).await, ["/memories/n.md"]);
    }

    #[tokio::test]
    async fn a_search_from_a_mounts_ancestor_finds_it() {
        let tree = filled(&["/a/b", "/a/b/c/d"], &["/a/b/x", "/a/b/c/d/y", "/z"]).await;
        assert_eq!(found(&tree, "/a", GlobOptions::new("**")).await, ["/a/b/c/d/y", "/a/b/x"]);
        assert_eq!(found(&tree, "/a/b/c", GlobOptions::new("*/y")).await, ["/a/b/c/d/y"]);
        assert_eq!(grepped(&tree, "/a", GrepOptions::new("needle")).await, ["/a/b/c/d/y", "/a/b/x"]);
        assert_eq!(grepped(&tree, "/a/b/c", GrepOptions::new("needle")).await, ["/a/b/c/d/y"]);
        refused(tree.glob(&path("/q"), &GlobOptions::new("*")).await, ErrorKind::NotFound, "`/q` does not exist");
    }

    #[tokio::test]
    async fn what_a_mount_hides_is_found_nowhere() {
        let (default, outer) = (state(), state());
        fill(&default, &["/memories/old.md", "/memories/sub/old.md", "/a/b/old.md", "/a/old.md", "/keep.md"]).await;
        fill(&outer, &["/b/older.md", "/keep.md"]).await;
        let builder = CompositeBackend::builder(default).route("/memories", state()).unwrap().route("/a", outer).unwrap();
        let tree = built(builder, &["/a/b"]);
        let seen = ["/a/keep.md", "/keep.md"];
        assert_eq!(globbed(&tree, "**").await, seen);
        assert_eq!(globbed(&tree, "*old*").await, [""; 0]);
        assert_eq!(grepped(&tree, "/", GrepOptions::new("needle")).await, seen);
        assert_eq!(
            found(&tree, "/", GlobOptions::new("**").with_directories(true)).await,
            ["/a", "/a/b", "/a/keep.md", "/keep.md", "/memories"]
        );
        for hidden in ["/memories/old.md", "/a/old.md", "/a/b/older.md"] {
            refused(tree.stat(&path(hidden)).await, ErrorKind::NotFound, &format!("`{hidden}` does not exist"));
        }
    }

    #[tokio::test]
    async fn directories_that_are_mounts_or_lead_to_them_are_found() {
        let default = state();
        fill(&default, &["/a/x"]).await;
        let tree = built(CompositeBackend::builder(default), &["/a/b", "/v/m", "/.cfg/m"]);
        let directories = async |pattern: &str| found(&tree, "/", GlobOptions::new(pattern).with_directories(true)).await;
        assert_eq!(directories("**").await, ["/a", "/a/b", "/a/x", "/v", "/v/m"]);
        assert_eq!(directories("*").await, ["/a", "/a/b", "/a/x", "/v", "/v/m"]);
        assert_eq!(directories("/*").await, ["/a", "/v"]);
        assert_eq!(directories("m").await, ["/v/m"]);
        assert_eq!(globbed(&tree, "**/").await, ["/a", "/a/b", "/v", "/v/m"], "a pattern that ends with a slash is of directories");
        assert_eq!(globbed(&tree, "**").await, ["/a/x"]);
        let listing = tree.glob(VfsPath::ROOT, &GlobOptions::new("/a").with_directories(true)).await.unwrap();
        assert!(listing.entries[0].created_at.is_some(), "the backend's own entry stands for it");
    }

    #[tokio::test]
    async fn a_mount_of_a_hidden_name_is_found_by_name_only() {
        let tree = filled(&["/.cfg", "/a/.x/m"], &["/.cfg/n.md", "/a/.x/m/n.md", "/n.md"]).await;
        assert_eq!(globbed(&tree, "n.md").await, ["/n.md"]);
        assert_eq!(globbed(&tree, ".cfg/*").await, ["/.cfg/n.md"]);
        assert_eq!(found(&tree, "/", GlobOptions::new("n.md").with_hidden(true)).await, ["/.cfg/n.md", "/a/.x/m/n.md", "/n.md"]);
        assert_eq!(
            found(&tree, "/.cfg", GlobOptions::new("n.md")).await,
            ["/.cfg/n.md"],
            "beneath the root of the search nothing is hidden"
        );
        assert_eq!(grepped(&tree, "/", GrepOptions::new("needle")).await, ["/n.md"]);
        assert_eq!(grepped(&tree, "/a/.x", GrepOptions::new("needle")).await, ["/a/.x/m/n.md"]);
    }

    #[tokio::test]
    async fn ignore_files_end_at_a_mount() {
        let tree = filled(&["/m"], &["/a.log", "/m/a.log", "/m/b.tmp", "/b.tmp"]).await;
        tree.write("/.gitignore", "*.log\n/m/\n").await.unwrap();
        tree.write("/m/.ignore", "*.tmp\n").await.unwrap();
        assert_eq!(globbed(&tree, "**").await, ["/b.tmp", "/m/a.log"]);
    }

    #[tokio::test]
    async fn pages_go_through_all_mounts_in_path_order() {
        let files = ["/a", "/b/1", "/b/2", "/b/n/3", "/b/z", "/b-c", "/c/4", "/c/m/5", "/d"];
        let tree = filled(&["/b", "/b/n", "/c", "/c/m"], &[]).await;
        for file in files {
            tree.write(file, "needle\nhay\nneedle\n").await.unwrap();
        }
        for limit in 1..=files.len() + 1 {
            let mut options = GlobOptions::new("**").with_limit(limit);
            let mut seen = Vec::new();
            loop {
                let page = tree.glob(VfsPath::ROOT, &options).await.unwrap();
                seen.extend(page.entries.iter().map(|entry| entry.path.to_string()));
                let Some(cut) = page.truncated else { break };
                assert_eq!(page.entries.len(), limit, "a page that is cut is full");
                options.start_after = Some(cut.cursor.parse().unwrap());
            }
            assert_eq!(seen, files, "pages of {limit}");
        }
        let expected: Vec<String> = files.iter().flat_map(|file| [format!("{file}:1"), format!("{file}:3")]).collect();
        for limit in 1..=expected.len() + 1 {
            let mut options = GrepOptions::new("needle").with_matches_max(limit);
            let mut seen = Vec::new();
            loop {
                let page = tree.grep(VfsPath::ROOT, &options).await.unwrap();
                seen.extend(page.files.iter().flat_map(|file| file.lines.iter().map(|line| format!("{}:{}", file.path, line.line))));
                let Some(cut) = page.truncated.clone() else { break };
                assert_eq!(page.matches(), limit, "a page that is cut is full");
                options.start_after = Some(cut.cursor.parse().unwrap());
            }
            assert_eq!(seen, expected, "pages of {limit}");
        }
        for (output, limit) in [(GrepOutput::Files, 4), (GrepOutput::Counts, 4), (GrepOutput::Files, 0)] {
            let page = tree.grep(VfsPath::ROOT, &GrepOptions::new("needle").with_output(output).with_matches_max(limit)).await.unwrap();
            assert_eq!((page.files.len(), page.truncated.is_some()), (limit, true), "{output:?}");
        }
        let all = tree.grep(VfsPath::ROOT, &GrepOptions::new("needle").with_output(GrepOutput::Counts)).await.unwrap();
        assert_eq!((all.files.len(), all.files[3].count, all.files_searched), (9, 2, 9));
    }

    #[tokio::test(start_paused = true)]
    async fn mounts_are_asked_at_the_same_time() {
        let together =
            |barrier: &Arc<Barrier>| -> Arc<dyn Backend> { Arc::new(Layered::new(Together(barrier.clone()), StateBackend::new())) };
        let barrier = Arc::new(Barrier::new(3));
        let builder = CompositeBackend::builder(together(&barrier)).route("/a", together(&barrier)).unwrap();
        let tree = builder.route("/a/b", together(&barrier)).unwrap().build().unwrap();
        let deadline = std::time::Duration::from_secs(1);
        // One after the other they would wait for each other for ever; with time standing still that ends at once.
        tokio::time::timeout(deadline, tree.glob(VfsPath::ROOT, &GlobOptions::new("**"))).await.expect("all are asked").unwrap();
        tokio::time::timeout(deadline, tree.grep(VfsPath::ROOT, &GrepOptions::new("x"))).await.expect("all are asked").unwrap();
    }

    #[tokio::test]
    async fn no_more_mounts_are_asked_at_once_than_allowed() {
        let meter = Arc::new(Meter::default());
        let metered = || -> Arc<dyn Backend> { Arc::new(Layered::new(Metered(meter.clone()), StateBackend::new())) };
        let routes = (0..20).map(|number| (format!("/m{number}"), metered()));
        let tree = CompositeBackend::builder(metered()).routes(routes).unwrap().with_concurrency(3).build().unwrap();
        globbed(&tree, "**").await;
        assert_eq!((meter.calls.load(Ordering::Relaxed), meter.most.load(Ordering::Relaxed)), (21, 3));
    }

    #[tokio::test]
    async fn what_the_pattern_cannot_reach_is_not_asked() {
        let (meters, mut builder): (Vec<Arc<Meter>>, _) = ((0..4).map(|_| Arc::default()).collect(), None);
        for (meter, prefix) in meters.iter().zip(["/", "/memories", "/memories/deep", "/notes"]) {
            let backend: Arc<dyn Backend> = Arc::new(Layered::new(Metered(meter.clone()), StateBackend::new()));
            builder = Some(match builder {
                None => CompositeBackend::builder(backend),
                Some(builder) => CompositeBuilder::route(builder, prefix, backend).unwrap(),
            });
        }
        let tree = builder.unwrap().build().unwrap();
        let asked = || meters.iter().map(|meter| meter.calls.swap(0, Ordering::Relaxed)).collect::<Vec<_>>();
        for (pattern, calls) in [
            ("**/*.md", [1, 1, 1, 1]),
            ("/memories/*.md", [0, 1, 0, 0]),
            ("memories/deep/**", [0, 0, 1, 0]),
            ("/*.md", [1, 0, 0, 0]),
            ("{notes,src}/*.md", [1, 0, 0, 1]),
            ("m*/*/x", [1, 1, 1, 0]),
        ] {
            globbed(&tree, pattern).await;
            assert_eq!(asked(), calls, "glob {pattern}");
            grepped(&tree, "/", GrepOptions::new("needle").with_include(pattern)).await;
            assert_eq!(asked(), calls, "grep {pattern}");
        }
        // A page that begins in the last mount asks none before it but the one around them all.
        found(&tree, "/", GlobOptions::new("**").with_start_after(path("/notes/a"))).await;
        assert_eq!(asked(), [1, 0, 0, 1]);
        // A page that is full ends the search.
        fill(&tree, &["/memories/a", "/memories/b", "/a"]).await;
        asked();
        let tree = CompositeBackend::builder(Arc::new(tree)).with_concurrency(1).build().unwrap();
        assert_eq!(tree.glob(VfsPath::ROOT, &GlobOptions::new("**").with_limit(2)).await.unwrap().entries.len(), 2);
    }

    #[tokio::test]
    async fn a_full_page_ends_the_search() {
        let meters: Vec<Arc<Meter>> = (0..4).map(|_| Arc::default()).collect();
        let metered = |of: usize| -> Arc<dyn Backend> { Arc::new(Layered::new(Metered(meters[of].clone()), StateBackend::new())) };
        let routes = [("/a", metered(1)), ("/b", metered(2)), ("/c", metered(3))];
        let tree = CompositeBackend::builder(metered(0)).with_concurrency(1).routes(routes).unwrap().build().unwrap();
        fill(&tree, &["/a/1", "/a/2", "/z"]).await;
        let asked = || meters.iter().map(|meter| meter.calls.swap(0, Ordering::Relaxed)).collect::<Vec<_>>();
        asked();
        let page = tree.glob(VfsPath::ROOT, &GlobOptions::new("**").with_limit(1)).await.unwrap();
        assert_eq!((page.entries[0].path.as_str(), asked()), ("/a/1", vec![1, 1, 0, 0]));
        let page = tree.grep(VfsPath::ROOT, &GrepOptions::new("needle").with_matches_max(1)).await.unwrap();
        assert_eq!((page.files[0].path.as_str(), asked()), ("/a/1", vec![1, 1, 0, 0]));
    }

    #[tokio::test]
    async fn a_failing_mount_is_named_or_listed() {
        let broken = || -> Arc<dyn Backend> { Arc::new(Layered::new(Fault::from_nth(0), StateBackend::new())) };
        let builder = CompositeBackend::builder(state()).route("/z", broken()).unwrap().route("/broken", broken()).unwrap();
        let tree = built(builder, &["/m"]);
        fill(&tree, &["/m/a", "/n"]).await;
        for error in [
            tree.glob(VfsPath::ROOT, &GlobOptions::new("**")).await.unwrap_err(),
            tree.grep(VfsPath::ROOT, &GrepOptions::new("needle")).await.unwrap_err(),
        ] {
            assert_eq!((error.kind(), error.path()), (ErrorKind::Unavailable, Some(&*path("/broken"))));
            assert!(error.message().starts_with("mount `/broken`: "), "{error}");
        }
        let result = tree.glob(VfsPath::ROOT, &GlobOptions::new("**").with_on_failure(OnFailure::Partial)).await.unwrap();
        assert_eq!(result.entries.iter().map(|entry| entry.path.as_str()).collect::<Vec<_>>(), ["/m/a", "/n"]);
        assert_eq!(result.failures.iter().map(|failure| failure.path.as_str()).collect::<Vec<_>>(), ["/broken", "/z"]);
        let result = tree.grep(VfsPath::ROOT, &GrepOptions::new("needle").with_on_failure(OnFailure::Partial)).await.unwrap();
        assert_eq!((result.files.len(), result.failures_count, result.failures[0].error.path.as_deref()), (2, 2, Some(&*path("/broken"))));
        // A page that is full before the broken mount is a page.
        let page = tree.glob(VfsPath::ROOT, &GlobOptions::new("**").with_limit(1).with_start_after(path("/c"))).await;
        assert_eq!(page.unwrap().entries[0].path, "/m/a");
    }

    #[tokio::test]
    async fn malformed_patterns_are_the_callers_fault_not_a_mounts() {
        let tree = mounted(&["/m"]);
        for error in [
            tree.glob(VfsPath::ROOT, &GlobOptions::new("[a")).await.unwrap_err(),
            tree.grep(VfsPath::ROOT, &GrepOptions::regex("(a")).await.unwrap_err(),
            tree.grep(VfsPath::ROOT, &GrepOptions::new("a").with_include("{a")).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(!error.message().contains("mount"), "{error}");
        }
    }
}

mod file_routes {
    use super::*;

    async fn with_agents_file() -> (Arc<dyn Backend>, CompositeBackend) {
        let (default, kept) = (state(), state());
        fill(&default, &["/AGENTS.md", "/a.md"]).await;
        let file = Arc::new(Subtree::file(kept.clone(), path("/shared/AGENTS.md")));
        (kept, CompositeBackend::builder(default).file_route("/AGENTS.md", file).unwrap().build().unwrap())
    }

    #[tokio::test]
    async fn a_file_that_is_a_mount_is_absent_until_it_is_written() {
        let (kept, tree) = with_agents_file().await;
        refused(tree.read_bytes("/AGENTS.md").await, ErrorKind::NotFound, "`/AGENTS.md` does not exist");
        refused(tree.stat(&path("/AGENTS.md")).await, ErrorKind::NotFound, "`/AGENTS.md` does not exist");
        assert_eq!(names(&tree, "/").await, ["a.md"], "the default's file is hidden all the same");
        assert_eq!(globbed(&tree, "*.md").await, ["/a.md"]);
        assert_eq!(grepped(&tree, "/", GrepOptions::new("needle")).await, ["/a.md"]);
        let made = tree.write("/AGENTS.md", "needle one\n").await.unwrap();
        assert_eq!((made.path.as_str(), made.created), ("/AGENTS.md", true));
        assert_eq!(kept.read_text("/shared/AGENTS.md").await.unwrap(), "needle one\n");
        tree.edit("/AGENTS.md", "one", "two").await.unwrap();
        assert_eq!(tree.stat(&path("/AGENTS.md")).await.unwrap().path, "/AGENTS.md");
        assert_eq!(names(&tree, "/").await, ["AGENTS.md", "a.md"]);
        assert_eq!(globbed(&tree, "*.md").await, ["/AGENTS.md", "/a.md"]);
        assert_eq!(found(&tree, "/", GlobOptions::new("*.md").with_start_after(path("/AGENTS.md"))).await, ["/a.md"]);
        assert_eq!(grepped(&tree, "/", GrepOptions::new("needle")).await, ["/AGENTS.md", "/a.md"]);
        assert_eq!(grepped(&tree, "/", GrepOptions::new("needle").with_include("a*")).await, ["/a.md"], "a filter is for it too");
        assert_eq!(grepped(&tree, "/AGENTS.md", GrepOptions::new("two")).await, ["/AGENTS.md"]);
    }

    #[tokio::test]
    async fn a_file_that_is_a_mount_is_no_directory() {
        let (_, tree) = with_agents_file().await;
        let no_directory = "`/AGENTS.md` is a file, not a directory";
        for result in
            [tree.write("/AGENTS.md/x", "x").await, tree.create_dir("/AGENTS.md/x").await, tree.rename("/a.md", "/AGENTS.md/x").await]
        {
            refused(result, ErrorKind::NotADirectory, no_directory);
        }
        refused(tree.stat(&path("/AGENTS.md/x")).await, ErrorKind::NotADirectory, no_directory);
        refused(tree.ls(&path("/AGENTS.md/x"), &LsOptions::new()).await, ErrorKind::NotADirectory, no_directory);
        refused(
            tree.create_dir("/AGENTS.md").await,
            ErrorKind::AlreadyExists,
            "`/AGENTS.md` is the place of a file, not of a directory; write the file",
        );
        refused(
            tree.delete("/AGENTS.md").await,
            ErrorKind::InvalidArgument,
            "`/AGENTS.md` is a mount and cannot be deleted; name what lies in it",
        );
        tree.rename("/a.md", "/AGENTS.md").await.unwrap();
        assert_eq!(
            (tree.read_text("/AGENTS.md").await.unwrap().as_str(), names(&tree, "/").await),
            ("needle\n", vec!["AGENTS.md".to_owned()])
        );
        tree.copy("/AGENTS.md", "/b.md").await.unwrap();
        assert_eq!(tree.read_text("/b.md").await.unwrap(), "needle\n");
        assert_eq!(tree.rename("/b.md", "/AGENTS.md").await.unwrap_err().kind(), ErrorKind::AlreadyExists);
    }
}

mod changing {
    use super::*;

    fn write(at: &str, content: &'static str) -> Change {
        Change::Write { path: path(at), content: content.into(), mode: WriteMode::Overwrite }
    }

    #[tokio::test]
    async fn what_mounts_stand_on_is_not_taken_away() {
        let tree = filled(&["/memories", "/a/b"], &["/memories/x", "/a/b/x", "/a/y"]).await;
        for (at, verb, message) in [
            ("/", "deleted", "`/` is the root and cannot be deleted; name what lies in it"),
            ("/memories", "deleted", "`/memories` is a mount and cannot be deleted; name what lies in it"),
            ("/a", "deleted", "`/a` cannot be deleted, as `/a/b` is mounted in it; name what lies beside the mount"),
            ("/", "moved", "`/` is the root and cannot be moved; name what lies in it"),
            ("/memories", "moved", "`/memories` is a mount and cannot be moved; name what lies in it"),
            ("/a", "moved", "`/a` cannot be moved, as `/a/b` is mounted in it; name what lies beside the mount"),
        ] {
            let result = if verb == "deleted" { tree.delete_all(at).await } else { tree.rename(at, "/elsewhere").await };
            let error = refused(result, ErrorKind::InvalidArgument, message);
            assert_eq!((error.path(), error.change(), error.applied()), (Some(&*path(at)), Some(0), 0));
        }
        assert_eq!(globbed(&tree, "**").await, ["/a/b/x", "/a/y", "/memories/x"]);
        refused(tree.write("/memories", "x").await, ErrorKind::IsDirectory, "`/memories` is a directory; name a file");
        assert!(!tree.create_dir("/memories").await.unwrap().created);
        assert_eq!(tree.rename("/a/y", "/a").await.unwrap_err().kind(), ErrorKind::AlreadyExists);
        refused(tree.copy("/", "/c").await, ErrorKind::InvalidArgument, "`/` is the root and cannot be copied; copy what lies in it");
        refused(tree.copy("/a", "/a/z").await, ErrorKind::InvalidArgument, "`/a` cannot be copied to `/a/z`, which lies in it");
    }

    #[tokio::test]
    async fn a_batch_within_one_mount_is_one() {
        let tree = filled(&["/m", "/v/w"], &["/m/x"]).await;
        let edit = |old: &str| Change::Edit { path: path("/m/x"), edits: vec![stratafs::ops::Edit::new(old, "pin")], expect: None };
        let error = tree.apply(&[write("/m/y", "1"), edit("absent"), write("/m/z", "2")], &ApplyOptions::new()).await.unwrap_err();
        assert_eq!((error.kind(), error.path(), error.change(), error.applied()), (ErrorKind::NoMatch, Some(&*path("/m/x")), Some(1), 0));
        assert_eq!(names(&tree, "/m").await, ["x"]);
        let results = tree.apply(&[write("/m/y", "1"), edit("needle"), write("/m/z", "22")], &ApplyOptions::new()).await.unwrap();
        let seen: Vec<(&str, u64)> = results.iter().map(|changed| (changed.path.as_str(), changed.size_bytes)).collect();
        assert_eq!(seen, [("/m/y", 1), ("/m/x", 4), ("/m/z", 2)]);
        // A directory that is there by the mounts alone is nobody's to make.
        let make = |at: &str| Change::CreateDir { path: path(at) };
        let results = tree.apply(&[make("/v"), write("/v/x", "1"), make("/v"), write("/v/y", "2")], &ApplyOptions::new()).await.unwrap();
        let seen: Vec<(&str, usize)> = results.iter().map(|changed| (changed.path.as_str(), changed.entries)).collect();
        assert_eq!(seen, [("/v", 0), ("/v/x", 1), ("/v", 0), ("/v/y", 1)]);
        let error = tree.apply(&[make("/v"), write("/v/z", "1"), write("/v/x/no", "2")], &ApplyOptions::new()).await.unwrap_err();
        assert_eq!((error.change(), error.applied(), names(&tree, "/v").await.len()), (Some(2), 0, 3));
        assert_eq!(tree.apply(&[], &ApplyOptions::new()).await.unwrap(), []);
    }

    /// Notes where the changes of a call lie.
    #[derive(Debug)]
    struct Noted(Arc<AtomicUsize>);

    #[async_trait]
    impl Layer for Noted {
        fn name(&self) -> LayerName {
            LayerName::new("Noted")
        }

        async fn around<T: Reply>(&self, op: Op<'_>, next: Next<'_, T>) -> Result<T> {
            self.0.store(op.changes.as_ptr() as usize, Ordering::Relaxed);
            next.run().await
        }
    }

    #[tokio::test]
    async fn a_batch_of_the_default_is_handed_on_as_it_is() {
        let noted = Arc::new(AtomicUsize::new(0));
        let tree = built(CompositeBackend::builder(Arc::new(Layered::new(Noted(noted.clone()), StateBackend::new()))), &["/m"]);
        let batch = [write("/a", "1"), write("/b", "2")];
        tree.apply(&batch, &ApplyOptions::new()).await.unwrap();
        assert_eq!(noted.load(Ordering::Relaxed), batch.as_ptr() as usize);
    }

    #[tokio::test]
    async fn a_batch_over_several_mounts_is_refused_unless_a_part_will_do() {
        let tree = filled(&["/m", "/n"], &["/m/x"]).await;
        let batch = [write("/m/a", "1"), write("/m/b", "2"), write("/c", "3"), write("/n/d", "4"), write("/m/x/no", "5"), write("/e", "6")];
        let error = refused(
            tree.apply(&batch, &ApplyOptions::new()).await,
            ErrorKind::Unsupported,
            "the batch changes `/`, `/m`, `/n`, which are mounted apart and cannot change as one; apply it mount by mount, or allow a partial result",
        );
        assert_eq!((error.change(), error.applied(), error.path()), (Some(2), 0, Some(&*path("/c"))));
        assert_eq!(globbed(&tree, "**").await, ["/m/x"]);
        let error = tree.apply(&batch, &ApplyOptions::new().with_allow_partial(true)).await.unwrap_err();
        assert_eq!((error.kind(), error.change(), error.applied()), (ErrorKind::NotADirectory, Some(4), 4));
        assert_eq!(globbed(&tree, "**").await, ["/c", "/m/a", "/m/b", "/m/x", "/n/d"]);
        let moving = [write("/m/y", "1"), Change::Rename { from: path("/m/y"), to: path("/n/y"), overwrite: false }];
        assert_eq!(tree.apply(&moving, &ApplyOptions::new()).await.unwrap_err().kind(), ErrorKind::Unsupported);
        let results = tree.apply(&moving, &ApplyOptions::new().with_allow_partial(true)).await.unwrap();
        assert_eq!((results.len(), results[1].path.as_str()), (2, "/n/y"));
        // What no mount allows is refused before anything is done.
        let error = tree
            .apply(&[write("/m/q", "1"), Change::Delete { path: path("/n"), recursive: true, expect: None }], &ApplyOptions::new())
            .await;
        assert_eq!((error.unwrap_err().change(), tree.exists("/m/q").await.unwrap()), (Some(1), false));
    }

    #[tokio::test]
    async fn a_write_goes_where_its_path_leads() {
        let tree = filled(&["/a", "/a/b"], &["/a/b/x", "/a/x", "/x"]).await;
        tree.rename("/a/x", "/a/y").await.unwrap();
        tree.rename("/a/y", "/a/b/y").await.unwrap();
        tree.copy("/x", "/a/b/c/z").await.unwrap();
        assert_eq!(globbed(&tree, "**").await, ["/a/b/c/z", "/a/b/x", "/a/b/y", "/x"]);
        let outer = tree.mounts().nth(1).unwrap().1;
        assert_eq!(names(outer, "/").await, [""; 0]);
    }
}

mod between_mounts {
    use super::*;

    #[tokio::test]
    async fn a_file_is_moved_and_copied() {
        let tree = filled(&["/m"], &["/f", "/m/taken"]).await;
        let moved = tree.rename("/f", "/m/d/f").await.unwrap();
        assert_eq!((moved.path.as_str(), moved.created, moved.size_bytes, moved.entries), ("/m/d/f", true, 7, 1));
        assert_eq!(moved.version, tree.stat(&path("/m/d/f")).await.unwrap().version);
        assert_eq!(globbed(&tree, "**").await, ["/m/d/f", "/m/taken"]);
        let copied = tree.copy("/m/d/f", "/f").await.unwrap();
        assert_eq!((copied.operation, copied.path.as_str()), (stratafs::ops::OpKind::Copy, "/f"));
        refused(
            tree.rename("/f", "/m/taken").await,
            ErrorKind::AlreadyExists,
            "`/m/taken` exists already; choose another name or overwrite it",
        );
        refused(tree.rename("/f", "/m/d").await, ErrorKind::AlreadyExists, "`/m/d` exists already; choose another name or overwrite it");
        refused(
            tree.rename("/f", "/m/taken/x").await,
            ErrorKind::NotADirectory,
            "`/m/taken/x` lies beneath a file; name a path in a directory",
        );
        refused(tree.rename("/gone", "/m/x").await, ErrorKind::NotFound, "`/gone` does not exist");
        tree.write("/f", "new").await.unwrap();
        let over = Change::Rename { from: path("/f"), to: path("/m/taken"), overwrite: true };
        assert!(!tree.apply_one(over).await.unwrap().created);
        assert_eq!((tree.read_text("/m/taken").await.unwrap().as_str(), tree.exists("/f").await.unwrap()), ("new", false));
        let over = Change::Rename { from: path("/m/taken"), to: path("/"), overwrite: true };
        assert_eq!(tree.apply_one(over).await.unwrap_err().kind(), ErrorKind::InvalidArgument);
    }

    #[tokio::test]
    async fn a_directory_is_moved_with_all_it_holds() {
        let tree = filled(&["/m"], &["/d/a", "/d/e/b", "/d/.hidden"]).await;
        tree.create_dir("/d/empty").await.unwrap();
        let moved = tree.rename("/d", "/m/x/d").await.unwrap();
        assert_eq!((moved.entries, moved.created, moved.version), (6, true, None));
        assert!(!tree.exists("/d").await.unwrap());
        assert_eq!(names(&tree, "/m/x/d").await, [".hidden", "a", "e/", "empty/"]);
        let copied = tree.copy("/m/x", "/y").await.unwrap();
        assert_eq!(copied.entries, 7);
        assert_eq!(tree.copy("/m/x/d", "/y").await.unwrap_err().kind(), ErrorKind::AlreadyExists);
        let over = Change::Copy { from: path("/m/x/d/a"), to: path("/y"), overwrite: true };
        assert_eq!(tree.apply_one(over).await.unwrap_err().kind(), ErrorKind::AlreadyExists);
    }

    /// A copy of a directory with mounts in it is of what the caller sees.
    #[tokio::test]
    async fn a_copy_crosses_the_mounts_in_its_source() {
        let default = state();
        fill(&default, &["/a/b/hidden", "/a/x"]).await;
        let tree = built(CompositeBackend::builder(default), &["/a/b", "/a/v/w"]);
        fill(&tree, &["/a/b/y", "/a/v/w/z"]).await;
        assert_eq!(tree.copy("/a", "/copy").await.unwrap().entries, 7);
        assert_eq!(found(&tree, "/copy", GlobOptions::new("**")).await, ["/copy/b/y", "/copy/v/w/z", "/copy/x"]);
        assert_eq!(tree.copy("/a/b", "/a/c").await.unwrap().entries, 2, "a mount is copied as the directory it shows");
        assert_eq!(names(&tree, "/a").await, ["b/", "c/", "v/", "x"]);
    }

    #[tokio::test]
    async fn what_a_mount_cannot_take_or_give_is_left_as_it_is() {
        let read_only: Arc<dyn Backend> = Arc::new(Layered::new(ReadOnly::new(), StateBackend::new()));
        let tree = CompositeBackend::builder(state()).route("/ro", read_only).unwrap().with_transfer_bytes_max(4);
        let tree = built(tree, &["/m"]);
        tree.write("/big", "12345").await.unwrap();
        tree.write("/small", "1234").await.unwrap();
        assert_eq!(tree.rename("/big", "/m/big").await.unwrap_err().kind(), ErrorKind::TooLarge);
        assert_eq!(tree.rename("/small", "/ro/small").await.unwrap_err().path(), Some(&*path("/ro/small")));
        assert_eq!(tree.rename("/ro/x", "/x").await.unwrap_err().kind(), ErrorKind::ReadOnly);
        assert_eq!(globbed(&tree, "**").await, ["/big", "/small"]);
        tree.write("/d/a", "1").await.unwrap();
        tree.write("/d/z", "12345").await.unwrap();
        let error = tree.rename("/d", "/m/d").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLarge);
        assert!(error.message().ends_with("; `/d` is whole, and what was copied of it stays at `/m/d`"), "{error}");
        assert_eq!(globbed(&tree, "**").await, ["/big", "/d/a", "/d/z", "/m/d/a", "/small"]);
    }

    #[tokio::test]
    async fn a_path_that_would_be_too_long_is_refused_before_anything_is_made() {
        let tree = filled(&["/m"], &["/d/a"]).await;
        let fits = format!("/m{}/abcde", "/abcdefgh".repeat(454));
        assert_eq!(tree.copy("/d", &fits).await.unwrap().entries, 2);
        let error = tree.copy("/d", &format!("{fits}fg")).await.unwrap_err();
        assert_eq!((error.kind(), error.path()), (ErrorKind::InvalidPath, Some(&*path("/d/a"))));
        assert!(!tree.exists(&format!("{fits}fg")).await.unwrap());
    }

    /// Moves a directory of two files between mounts whose calls all meet the fault. Returns how it ended, the files that are
    /// there afterwards, and whether the fault struck.
    async fn moved_under(fault: Fault) -> (Result<()>, Vec<String>, bool) {
        let both = Arc::new(filled(&["/a", "/b"], &["/a/d/f", "/a/d/g"]).await);
        let faulty = Arc::new(Layered::new(fault, both.clone()));
        let routes = ["/a", "/b"].map(|prefix| (prefix, Arc::new(Subtree::new(faulty.clone(), path(prefix))) as Arc<dyn Backend>));
        let tree = CompositeBackend::builder(state()).routes(routes).unwrap().build().unwrap();
        let moved = tree.rename("/a/d", "/b/d").await.map(drop);
        (moved, globbed(&both, "**").await, faulty.layer().faults() > 0)
    }

    #[tokio::test]
    async fn a_fault_leaves_both_never_neither() {
        for after_effect in [false, true] {
            let mut errors = 0;
            for n in 0.. {
                let fault = if after_effect { Fault::nth(n).after_effect() } else { Fault::nth(n) };
                let (moved, files, struck) = moved_under(fault).await;
                if !struck {
                    assert_eq!((moved.is_ok(), files), (true, vec!["/b/d/f".to_owned(), "/b/d/g".to_owned()]));
                    break;
                }
                let source_is_whole = files.starts_with(&["/a/d/f".to_owned(), "/a/d/g".to_owned()]);
                let target_is_whole = files.ends_with(&["/b/d/f".to_owned(), "/b/d/g".to_owned()]);
                assert!(source_is_whole || target_is_whole, "call {n}: {files:?}");
                match moved {
                    // The answer that was lost said that nothing is at the target.
                    Ok(()) => assert!(after_effect && !source_is_whole && target_is_whole, "call {n}: {files:?}"),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Unavailable, "call {n}");
                        assert!(source_is_whole || after_effect, "call {n}: {files:?}: {error}");
                        errors += 1;
                    }
                }
            }
            assert!(errors >= 9, "the sweep met only {errors} calls");
        }
    }

    /// The error of a step was handed on as it was, and said of the whole move what held for the step.
    #[tokio::test]
    async fn an_error_after_the_first_write_does_not_claim_to_be_without_effect() {
        let mut after = 0;
        for n in 0.. {
            let (moved, files, struck) = moved_under(Fault::nth(n).stated()).await;
            if !struck {
                break;
            }
            let error = moved.unwrap_err();
            let copied = files.iter().any(|file| file.starts_with("/b/"));
            assert!(error.may_have_effect() || !copied, "call {n}: {files:?}: {error}");
            after += usize::from(copied);
        }
        assert!(after >= 4, "the sweep met only {after} calls after a write");
        let (moved, ..) = moved_under(Fault::nth(1)).await;
        assert!(moved.unwrap_err().is_without_effect(), "looking at both ends changes nothing");
        // A refusal late on the way, of a kind that comes before any effect elsewhere.
        let source = state();
        fill(&source, &["/d/f"]).await;
        source.write("/d/g", "longer than that").await.unwrap();
        let tree = CompositeBackend::builder(source).route("/m", state()).unwrap().with_transfer_bytes_max(8).build().unwrap();
        let error = tree.rename("/d", "/m/d").await.unwrap_err();
        assert_eq!((error.kind(), error.may_have_effect()), (ErrorKind::TooLarge, true), "{error}");
        assert_eq!(tree.rename("/d/g", "/m/g").await.map(drop).map_err(|error| error.may_have_effect()), Err(false));
    }

    /// Changes the source after it was read, by the first write anywhere else.
    #[derive(Debug)]
    struct Meddler {
        source: Arc<dyn Backend>,
        meddle: Change,
        done: std::sync::atomic::AtomicBool,
    }

    #[async_trait]
    impl Layer for Meddler {
        fn name(&self) -> LayerName {
            LayerName::new("Meddler")
        }

        async fn around<T: Reply>(&self, op: Op<'_>, next: Next<'_, T>) -> Result<T> {
            let result = next.run().await;
            if op.kind == stratafs::ops::OpKind::Write && !self.done.swap(true, Ordering::Relaxed) {
                self.source.apply_one(self.meddle.clone()).await?;
            }
            result
        }
    }

    #[tokio::test]
    async fn a_change_meanwhile_is_not_lost() {
        let changes = [
            (Change::Append { path: path("/d/f"), content: "more".into() }, "needle\nmore"),
            (Change::Append { path: path("/d/new"), content: "new".into() }, "needle\n"),
            (Change::CreateDir { path: path("/d/newdir") }, "needle\n"),
        ];
        for (meddle, content) in changes {
            let source = state();
            fill(&source, &["/d/f"]).await;
            let meddler = Meddler { source: source.clone(), meddle, done: false.into() };
            let target: Arc<dyn Backend> = Arc::new(Layered::new(meddler, StateBackend::new()));
            let tree = CompositeBackend::builder(source.clone()).route("/m", target).unwrap().build().unwrap();
            let error = tree.rename("/d", "/m/d").await.unwrap_err();
            assert_eq!((error.kind(), error.path()), (ErrorKind::Conflict, Some(&*path("/d"))));
            assert!(
                error.message().starts_with("`/m/d` is a copy of `/d`, which could not be deleted: ")
                    && error.message().ends_with("; both stay"),
                "{error}"
            );
            assert_eq!(source.read_text("/d/f").await.unwrap(), content);
            assert_eq!(tree.read_text("/m/d/f").await.unwrap(), "needle\n");
        }
    }
}

mod subtrees {
    use super::*;

    #[tokio::test]
    async fn the_root_of_a_directory_is_always_there() {
        let whole = state();
        let part = Subtree::new(whole.clone(), path("/p/q"));
        assert_eq!(part.stat(VfsPath::ROOT).await.unwrap().kind, EntryKind::Directory);
        assert_eq!((names(&part, "/").await, globbed(&part, "**").await), (vec![], vec![]));
        assert_eq!(grepped(&part, "/", GrepOptions::new("x")).await, [""; 0]);
        refused(part.read_bytes("/").await, ErrorKind::IsDirectory, "`/` is a directory; name a file");
        refused(part.stat(&path("/x")).await, ErrorKind::NotFound, "`/x` does not exist");
        assert!(!part.create_dir("/").await.unwrap().created);
        fill(&part, &["/x", "/d/y"]).await;
        assert_eq!(globbed(&whole, "**").await, ["/p/q/d/y", "/p/q/x"]);
        assert_eq!(part.to_string(), "Subtree(/p/q, State)");
    }

    #[tokio::test]
    async fn nothing_outside_is_reached_or_named() {
        let whole = state();
        fill(&whole, &["/p", "/secret/x", "/q/a"]).await;
        let part = Subtree::new(whole.clone(), path("/p"));
        refused(part.stat(VfsPath::ROOT).await, ErrorKind::NotADirectory, "`/` is a file, not a directory");
        refused(part.ls(VfsPath::ROOT, &LsOptions::new()).await, ErrorKind::NotADirectory, "`/` is a file, not a directory");
        let beneath_file = Subtree::new(whole.clone(), path("/p/deep"));
        refused(beneath_file.read_bytes("/x").await, ErrorKind::NotADirectory, "`/x` lies beneath a file; name a path in a directory");
        let part = Subtree::new(whole.clone(), path("/q"));
        for result in [part.delete_all("/").await, part.rename("/", "/x").await, part.copy("/a", "/").await] {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidArgument);
        }
        let moved = part.rename("/a", "/b").await.unwrap();
        assert_eq!(moved.path, "/b");
        refused(part.rename("/a", "/c").await, ErrorKind::NotFound, "`/a` does not exist");
        let long = format!("/{}", "abcdefg/".repeat(511));
        assert_eq!(Subtree::new(whole, path("/base/of/it")).write(&long, "x").await.unwrap_err().kind(), ErrorKind::InvalidPath);
    }

    #[tokio::test]
    async fn searches_and_cursors_are_the_subtrees() {
        let whole = state();
        fill(&whole, &["/p/a", "/p/b/c", "/p/b/d", "/x"]).await;
        let part = Subtree::new(whole, path("/p"));
        let mut options = GlobOptions::new("**").with_limit(1);
        let mut seen = Vec::new();
        while let Some(cut) = part
            .glob(VfsPath::ROOT, &options)
            .await
            .map(|page| (page.entries, page.truncated))
            .map(|(entries, cut)| {
                seen.extend(entries.iter().map(|entry| entry.path.to_string()));
                cut
            })
            .unwrap()
        {
            options.start_after = Some(cut.cursor.parse().unwrap());
        }
        assert_eq!(seen, ["/a", "/b/c", "/b/d"]);
        let page = part.grep(&path("/b"), &GrepOptions::new("needle").with_matches_max(1)).await.unwrap();
        assert_eq!((page.files[0].path.as_str(), page.truncated.unwrap().cursor), ("/b/c", "/b/d:0".to_owned()));
    }

    #[tokio::test]
    async fn one_file_is_a_tree() {
        let whole = state();
        let file = Subtree::file(whole.clone(), path("/d/f"));
        refused(file.stat(VfsPath::ROOT).await, ErrorKind::NotFound, "`/` does not exist");
        file.write("/", "needle\n").await.unwrap();
        file.append("/", "more\n").await.unwrap();
        assert_eq!(
            (file.read_text("/").await.unwrap().as_str(), file.stat(VfsPath::ROOT).await.unwrap().kind),
            ("needle\nmore\n", EntryKind::File)
        );
        assert_eq!(grepped(&file, "/", GrepOptions::new("needle")).await, ["/"]);
        for error in [
            file.ls(VfsPath::ROOT, &LsOptions::new()).await.unwrap_err(),
            file.glob(VfsPath::ROOT, &GlobOptions::new("*")).await.unwrap_err(),
            file.write("/x", "x").await.unwrap_err(),
        ] {
            assert_eq!((error.kind(), error.message()), (ErrorKind::NotADirectory, "`/` is a file, not a directory"));
        }
        let directory = Subtree::file(whole, path("/d"));
        refused(directory.stat(VfsPath::ROOT).await, ErrorKind::IsDirectory, "`/` is a directory; name a file");
        refused(
            directory.grep(VfsPath::ROOT, &GrepOptions::new("needle")).await,
            ErrorKind::IsDirectory,
            "`/` is a directory; name a file",
        );
    }
}
