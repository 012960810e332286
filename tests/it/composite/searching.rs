//! Globs and greps that cross mounts.

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
async fn grep_file_filters_select_the_same_files_from_an_ancestor() {
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
async fn search_from_an_ancestor_includes_the_mount() {
    let tree = filled(&["/a/b", "/a/b/c/d"], &["/a/b/x", "/a/b/c/d/y", "/z"]).await;
    assert_eq!(found(&tree, "/a", GlobOptions::new("**")).await, ["/a/b/c/d/y", "/a/b/x"]);
    assert_eq!(found(&tree, "/a/b/c", GlobOptions::new("*/y")).await, ["/a/b/c/d/y"]);
    assert_eq!(grepped(&tree, "/a", GrepOptions::new("needle")).await, ["/a/b/c/d/y", "/a/b/x"]);
    assert_eq!(grepped(&tree, "/a/b/c", GrepOptions::new("needle")).await, ["/a/b/c/d/y"]);
    refused(tree.glob(&path("/q"), &GlobOptions::new("*")).await, ErrorKind::NotFound, "`/q` does not exist");
}

#[tokio::test]
async fn entries_hidden_by_a_mount_are_never_found() {
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
        refused(tree.stat(&path(hidden), &StatOptions::new()).await, ErrorKind::NotFound, &format!("`{hidden}` does not exist"));
    }
}

#[tokio::test]
async fn directories_at_or_above_mounts_are_found() {
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
    assert!(listing.entries[0].created_at.is_some(), "the listing shows the backend's own entry");
}

#[tokio::test]
async fn mount_with_a_hidden_name_is_found_only_if_named() {
    let tree = filled(&["/.cfg", "/a/.x/m"], &["/.cfg/n.md", "/a/.x/m/n.md", "/n.md"]).await;
    assert_eq!(globbed(&tree, "n.md").await, ["/n.md"]);
    assert_eq!(globbed(&tree, ".cfg/*").await, ["/.cfg/n.md"]);
    assert_eq!(found(&tree, "/", GlobOptions::new("n.md").with_hidden(true)).await, ["/.cfg/n.md", "/a/.x/m/n.md", "/n.md"]);
    assert_eq!(found(&tree, "/.cfg", GlobOptions::new("n.md")).await, ["/.cfg/n.md"], "beneath the root of the search nothing is hidden");
    assert_eq!(grepped(&tree, "/", GrepOptions::new("needle")).await, ["/n.md"]);
    assert_eq!(grepped(&tree, "/a/.x", GrepOptions::new("needle")).await, ["/a/.x/m/n.md"]);
}

#[tokio::test]
async fn ignore_files_do_not_apply_across_mounts() {
    let tree = filled(&["/m"], &["/a.log", "/m/a.log", "/m/b.tmp", "/b.tmp"]).await;
    tree.write("/.gitignore", "*.log\n/m/\n").await.unwrap();
    tree.write("/m/.ignore", "*.tmp\n").await.unwrap();
    assert_eq!(globbed(&tree, "**").await, ["/b.tmp", "/m/a.log"]);
}

#[tokio::test]
async fn search_pages_cover_all_mounts_in_path_order() {
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
            assert_eq!(page.entries.len(), limit, "a truncated page is as long as the limit");
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
            assert_eq!(page.matches(), limit, "a truncated page is as long as the limit");
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
async fn mounts_are_searched_concurrently() {
    let together = |barrier: &Arc<Barrier>| -> Arc<dyn Backend> { Arc::new(Layered::new(Together(barrier.clone()), StateBackend::new())) };
    let barrier = Arc::new(Barrier::new(3));
    let builder = CompositeBackend::builder(together(&barrier)).route("/a", together(&barrier)).unwrap();
    let tree = builder.route("/a/b", together(&barrier)).unwrap().build().unwrap();
    let deadline = std::time::Duration::from_secs(1);
    // Sequential calls would wait for each other forever; with paused time the test then fails at once.
    tokio::time::timeout(deadline, tree.glob(VfsPath::ROOT, &GlobOptions::new("**"))).await.expect("every mount is searched").unwrap();
    tokio::time::timeout(deadline, tree.grep(VfsPath::ROOT, &GrepOptions::new("x"))).await.expect("every mount is searched").unwrap();
}

#[tokio::test]
async fn concurrent_mount_searches_are_limited() {
    let meter = Arc::new(Meter::default());
    let metered = || -> Arc<dyn Backend> { Arc::new(Layered::new(Metered(meter.clone()), StateBackend::new())) };
    let routes = (0..20).map(|number| (format!("/m{number}"), metered()));
    let tree = CompositeBackend::builder(metered()).routes(routes).unwrap().with_concurrency(3).build().unwrap();
    globbed(&tree, "**").await;
    assert_eq!((meter.calls.load(Ordering::Relaxed), meter.most.load(Ordering::Relaxed)), (21, 3));
}

#[tokio::test]
async fn mounts_outside_the_pattern_are_not_searched() {
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
    // A page that begins in the last mount searches only that mount and the default backend.
    found(&tree, "/", GlobOptions::new("**").with_start_after(path("/notes/a"))).await;
    assert_eq!(asked(), [1, 0, 0, 1]);
    // A full page ends the search.
    fill(&tree, &["/memories/a", "/memories/b", "/a"]).await;
    asked();
    let tree = CompositeBackend::builder(Arc::new(tree)).with_concurrency(1).build().unwrap();
    assert_eq!(tree.glob(VfsPath::ROOT, &GlobOptions::new("**").with_limit(2)).await.unwrap().entries.len(), 2);
}

#[tokio::test]
async fn full_page_ends_the_search() {
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
async fn failing_mount_is_named_in_the_error_or_listed_as_failure() {
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
    // A page that is full before the broken mount succeeds.
    let page = tree.glob(VfsPath::ROOT, &GlobOptions::new("**").with_limit(1).with_start_after(path("/c"))).await;
    assert_eq!(page.unwrap().entries[0].path, "/m/a");
}

#[tokio::test]
async fn malformed_pattern_is_the_callers_error_and_not_a_mounts_failure() {
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

/// Files that rank first within their mount would outrank better ones elsewhere if words were not weighted over all mounts.
#[tokio::test]
async fn files_of_several_mounts_are_ranked_as_one_tree() {
    let indexed = || -> Arc<dyn Backend> {
        let rows = StoreBackend::new(Arc::new(MemoryStore::new()), Namespace::new(["rows"]).unwrap());
        Arc::new(rows.with_index(IndexKind::Words))
    };
    let mounts = CompositeBackend::builder(state()).route("/a", indexed()).unwrap().route("/b", indexed()).unwrap();
    let tree = mounts.route("/c", state()).unwrap().build().unwrap();
    for number in 0..60 {
        tree.write(&format!("/a/x{number:02}"), "apple apple apple apple").await.unwrap();
        tree.write(&format!("/b/y{number:02}"), "pear pear").await.unwrap();
        tree.write(&format!("/c/z{number:02}"), "nothing of either").await.unwrap();
    }
    for number in 0..3 {
        tree.write(&format!("/a/pear{number}"), "pear apple").await.unwrap();
        tree.write(&format!("/c/apple{number}"), "an apple").await.unwrap();
    }
    tree.write("/a/best", "apple pear apple pear").await.unwrap();
    let options = SearchOptions::new("apple pear");
    let all = tree.search(VfsPath::ROOT, &options.clone().with_limit(1_000)).await.unwrap();
    assert_eq!((all.hits.len(), &all.corpus.files_with[..]), (127, &[67, 64][..]));
    assert!(all.hits.iter().all(|hit| !hit.snippets.is_empty()));
    for limit in [1, 3, 10] {
        let mut paged = Vec::new();
        while let Ok(page) = tree.search(VfsPath::ROOT, &options.clone().with_limit(limit).with_offset(paged.len())).await {
            assert_eq!(page.hits.len(), limit.min(127 - paged.len()));
            paged.extend(page.hits);
            if page.truncated.is_none() {
                break;
            }
        }
        let differing = paged.iter().zip(&all.hits).position(|(one, other)| one != other);
        assert_eq!((paged.len(), differing), (127, None), "{limit}");
    }
}
