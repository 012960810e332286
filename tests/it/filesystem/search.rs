//! Searches on a host: their results, order and honest counts.

use super::{Host, path};
use std::fs;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use treehold::ops::{EntryKind, GlobOptions, GrepOptions, GrepOutput, PathGuard, ReadOptions, SearchOptions};
use treehold::{Backend, BackendExt, ErrorKind, FilesystemOptions, VfsPath};

fn found(result: &treehold::ops::GrepResult) -> Vec<&str> {
    result.files.iter().map(|file| file.path.as_str()).collect()
}

/// deepagents' fallback also searches the siblings of the named file.
#[tokio::test]
async fn grep_of_one_file_searches_that_file() {
    for host in Host::both() {
        host.tree.write("/d/one", "needle").await.unwrap();
        host.tree.write("/d/two", "needle").await.unwrap();
        let result = host.tree.grep(&path("/d/one"), &GrepOptions::new("needle")).await.unwrap();
        assert_eq!((found(&result), result.files_searched), (vec!["/d/one"], 1));
    }
}

#[tokio::test]
async fn search_and_grep_treat_a_link_alike() {
    for host in Host::both() {
        host.tree.write("/d/one", "needle").await.unwrap();
        symlink("d", host.at("directory")).unwrap();
        symlink("d/one", host.at("file")).unwrap();
        for link in ["/directory", "/file"] {
            let lines = host.tree.grep(&path(link), &GrepOptions::new("needle")).await.unwrap();
            let files = host.tree.search(&path(link), &SearchOptions::new("needle")).await.unwrap();
            assert_eq!(files.hits.iter().map(|hit| hit.path.as_str()).collect::<Vec<_>>(), found(&lines), "{link}");
            assert_eq!((found(&lines).len(), files.failures_count), (1, 0), "{link}");
        }
    }
}

/// deepagents has two engines that disagree about hidden, ignored and large files.
#[tokio::test]
async fn only_options_exclude_hidden_ignored_and_large_files() {
    for host in Host::both() {
        let tree = &host.tree;
        for file in ["/seen", "/.hidden", "/ignored.log", "/target/built", "/d/.git/config"] {
            tree.write(file, "needle").await.unwrap();
        }
        tree.write("/large", "needle\n".repeat(300_000)).await.unwrap();
        tree.write("/.gitignore", "*.log\ntarget/\n").await.unwrap();
        let options = || GrepOptions::new("needle").with_output(GrepOutput::Files);
        assert_eq!(found(&tree.grep(VfsPath::ROOT, &options()).await.unwrap()), ["/large", "/seen"]);
        let limited = tree.grep(VfsPath::ROOT, &options().with_size_max_bytes(1000)).await.unwrap();
        assert_eq!((found(&limited), limited.files_too_large), (vec!["/seen"], 1));
        let all = tree.grep(VfsPath::ROOT, &options().with_hidden(true).with_ignored(true)).await.unwrap();
        assert_eq!(found(&all), ["/.hidden", "/d/.git/config", "/ignored.log", "/large", "/seen", "/target/built"]);
    }
}

#[tokio::test]
async fn ignore_files_apply_from_the_root_down() {
    for host in Host::both() {
        let tree = &host.tree;
        fs::write(host.directory.path().join(".gitignore"), "*\n").unwrap();
        for file in ["/a/b/c/keep", "/a/b/c/drop.log", "/a/b/skip/file"] {
            tree.write(file, "needle").await.unwrap();
        }
        tree.write("/.gitignore", "*.log\n").await.unwrap();
        tree.write("/a/.ignore", "/b/skip\n").await.unwrap();
        let grep = async |at: &str| found(&tree.grep(&path(at), &GrepOptions::new("needle")).await.unwrap()).join(" ");
        assert_eq!(grep("/").await, "/a/b/c/keep");
        assert_eq!(grep("/a/b/c").await, "/a/b/c/keep");
        // An explicitly named file is searched.
        assert_eq!(grep("/a/b/skip").await, "/a/b/skip/file");
        // A path spelled out by a pattern is still excluded by a rule.
        let glob = async |pattern: &str| tree.glob(VfsPath::ROOT, &GlobOptions::new(pattern)).await.unwrap().entries.len();
        assert_eq!((glob("a/b/skip/*").await, glob("a/b/c/*").await, glob("a/missing/*").await), (0, 1, 0));
    }
}

#[tokio::test]
async fn links_are_found_as_links_and_not_searched() {
    for host in Host::both() {
        let tree = &host.tree;
        tree.write("/file", "needle").await.unwrap();
        symlink("file", host.at("link")).unwrap();
        let kinds = async |options: GlobOptions| {
            let entries = tree.glob(VfsPath::ROOT, &options).await.unwrap().entries;
            entries.iter().map(|entry| entry.kind).collect::<Vec<_>>()
        };
        assert_eq!(kinds(GlobOptions::new("*")).await, [EntryKind::File]);
        assert_eq!(kinds(GlobOptions::new("*").with_directories(true)).await, [EntryKind::File, EntryKind::Symlink]);
        assert_eq!(found(&tree.grep(VfsPath::ROOT, &GrepOptions::new("needle")).await.unwrap()), ["/file"]);
        assert_eq!(found(&tree.grep(&path("/link"), &GrepOptions::new("needle")).await.unwrap()), ["/link"]);
    }
}

#[tokio::test]
async fn results_are_in_path_order_and_pages_join_to_the_whole() {
    for host in Host::both() {
        let tree = &host.tree;
        for directory in ["a", "a-b", "a.b", "a/x", "b"] {
            fs::create_dir_all(host.at(directory)).unwrap();
            for file in 0..60 {
                fs::write(host.at(directory).join(format!("{file}.txt")), "one needle\ntwo\nthree needle\n").unwrap();
            }
        }
        let whole = tree.grep(VfsPath::ROOT, &GrepOptions::new("needle")).await.unwrap();
        assert_eq!((whole.files.len(), whole.matches(), whole.files_searched), (300, 600, 300));
        assert!(whole.files.is_sorted_by(|one, other| one.path < other.path));
        let mut pages = Vec::new();
        let mut options = GrepOptions::new("needle").with_matches_max(77);
        loop {
            let page = tree.grep(VfsPath::ROOT, &options).await.unwrap();
            pages.extend(page.files.iter().flat_map(|file| file.lines.iter().map(|line| (file.path.clone(), line.line))));
            match page.truncated {
                Some(truncation) => options = options.with_start_after(truncation.cursor.parse().unwrap()),
                None => break,
            }
        }
        let lines: Vec<_> = whole.files.iter().flat_map(|file| file.lines.iter().map(|line| (file.path.clone(), line.line))).collect();
        assert_eq!(pages, lines);
        let globbed = tree.glob(VfsPath::ROOT, &GlobOptions::new("**").with_directories(true)).await.unwrap().entries;
        assert!(globbed.is_sorted_by(|one, other| one.path < other.path));
        let mut paged = Vec::new();
        let mut options = GlobOptions::new("**").with_directories(true).with_limit(19);
        loop {
            let page = tree.glob(VfsPath::ROOT, &options).await.unwrap();
            paged.extend(page.entries);
            match page.truncated {
                Some(truncation) => options = options.with_start_after(path(&truncation.cursor)),
                None => break,
            }
        }
        assert_eq!(paged, globbed);
    }
}

#[tokio::test]
async fn matched_lines_do_not_keep_files_in_memory() {
    let host = Host::new(FilesystemOptions::new());
    let mut content = "filler\n".repeat(100_000);
    content.push_str("a needle at the end\n");
    host.tree.write("/file", content).await.unwrap();
    let mut result = host.tree.grep(VfsPath::ROOT, &GrepOptions::new("needle").with_context(1, 0)).await.unwrap();
    let lines = result.files.pop().unwrap().lines;
    assert_eq!(lines.iter().map(|line| line.text_lossy().into_owned()).collect::<Vec<_>>(), ["filler", "a needle at the end"]);
    assert_eq!(
        (lines[1].line, lines[1].byte_offset, &lines[1].ranges[..]),
        (100_001, 700_000, &[std::ops::Range { start: 2, end: 8 }][..])
    );
    let texts = lines.into_iter().map(|line| line.text).collect::<Vec<_>>();
    let bytes: Vec<usize> = texts.into_iter().map(|text| text.try_into_mut().map_or(0, |text| text.capacity())).collect();
    assert!(bytes.iter().all(|bytes| *bytes < 1000), "{bytes:?}");
}

#[tokio::test]
async fn window_of_a_large_file_has_the_right_lines() {
    let host = Host::new(FilesystemOptions::new());
    let line = |number: usize| format!("{number:07}\n");
    let content: String = (0..1_500_000).map(line).collect();
    fs::write(host.at("large"), &content).unwrap();
    let part = host.tree.read(&path("/large"), &ReadOptions::lines(1_400_000, 2)).await.unwrap();
    assert_eq!(part.text_lossy(), "1400000\n1400001\n");
    let window = part.window.unwrap();
    assert_eq!((window.total_lines, window.next_offset(), part.size_bytes), (1_500_000, Some(1_400_002), content.len() as u64));
    let tail = host.tree.read(&path("/large"), &ReadOptions::bytes(11_999_992, 99)).await.unwrap();
    assert_eq!((tail.text_lossy(), tail.size_bytes), ("1499999\n".into(), 12_000_000));
    let past = host.tree.read(&path("/large"), &ReadOptions::lines(1_500_001, 2)).await.unwrap_err();
    assert_eq!((past.kind(), past.path()), (ErrorKind::InvalidArgument, Some(&*path("/large"))));
    let whole = host.tree.read(&path("/large"), &ReadOptions::new().with_bytes_max(1000)).await.unwrap_err();
    assert_eq!(whole.kind(), ErrorKind::TooLarge);
}

/// A thousand directories with one file each.
async fn wide(host: &Host) {
    for directory in 0..1000 {
        fs::create_dir(host.at(&directory.to_string())).unwrap();
        fs::write(host.at(&format!("{directory}/file")), "needle").unwrap();
    }
}

#[tokio::test]
async fn limit_ends_the_walk() {
    let host = Host::new(FilesystemOptions::new());
    wide(&host).await;
    let met = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&met);
    let guard = PathGuard::new(move |_, _| {
        counted.fetch_add(1, Ordering::Relaxed);
        true
    });
    let mut glob = GlobOptions::new("file").with_limit(3);
    glob.scope.guard = Some(guard.clone());
    assert_eq!(host.tree.glob(VfsPath::ROOT, &glob).await.unwrap().entries.len(), 3);
    assert!(met.swap(0, Ordering::Relaxed) < 30);
    let mut grep = GrepOptions::new("needle").with_matches_max(3);
    grep.scope.guard = Some(guard);
    assert_eq!(host.tree.grep(VfsPath::ROOT, &grep).await.unwrap().files.len(), 3);
    // On a busy machine threads start early, and each runs a little ahead.
    assert!(met.load(Ordering::Relaxed) < 100);
}

/// Counts opened files with the host's help.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn limit_bounds_the_number_of_opened_files() {
    use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};
    let host = Host::new(FilesystemOptions::new().with_search_threads(2));
    let opened = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
    for directory in 0..20 {
        let directory = host.at(&directory.to_string());
        fs::create_dir(&directory).unwrap();
        for file in 0..500 {
            fs::write(directory.join(file.to_string()), "needle\n").unwrap();
        }
        inotify::add_watch(&opened, &directory, WatchFlags::OPEN).unwrap();
    }
    let count = || {
        let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(&opened, &mut buffer);
        let mut count = 0;
        while let Ok(event) = reader.next() {
            count += usize::from(event.file_name().is_some());
        }
        count
    };
    let options = GrepOptions::new("needle").with_output(GrepOutput::Files);
    assert_eq!(host.tree.grep(VfsPath::ROOT, &options).await.unwrap().files.len(), 10_000);
    assert_eq!(count(), 10_000, "each is opened once");
    for output in [GrepOutput::Files, GrepOutput::Counts, GrepOutput::Content] {
        for limit in [1, 3, 100] {
            let options = GrepOptions::new("needle").with_output(output).with_matches_max(limit);
            assert_eq!(host.tree.grep(VfsPath::ROOT, &options).await.unwrap().files.len(), limit);
            // Each thread runs at most two batches of 512 ahead, and the calling thread takes another.
            let count = count();
            assert!(count > limit && count <= limit + 16 + 5 * 512, "{count} for {limit}");
        }
    }
}

#[tokio::test]
async fn search_ends_when_its_caller_is_dropped() {
    let host = Host::new(FilesystemOptions::new());
    wide(&host).await;
    let met = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&met);
    let (go_on, waits) = mpsc::channel::<()>();
    let waits = std::sync::Mutex::new(waits);
    let mut options = GrepOptions::new("needle");
    options.scope.guard = Some(PathGuard::new(move |_, _| {
        if counted.fetch_add(1, Ordering::Relaxed) == 0 {
            let _ = waits.lock().unwrap().recv();
        }
        true
    }));
    let tree = host.tree.clone();
    let search = tokio::spawn(async move { tree.grep(VfsPath::ROOT, &options).await });
    while met.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    search.abort();
    assert!(search.await.unwrap_err().is_cancelled());
    go_on.send(()).unwrap();
    // The search has ended when none of its parts holds the guard any more.
    while Arc::strong_count(&met) > 1 {
        tokio::task::yield_now().await;
    }
    assert!(met.load(Ordering::Relaxed) < 30, "{met:?}");
}
