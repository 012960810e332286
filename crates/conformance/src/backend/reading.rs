//! Stat and read.

use super::Subject;
use crate::noise::noise;
use bytes::Bytes;
use treehold_core::error::ErrorKind;
use treehold_core::ops::{Edit, EntryKind, GrepOptions, LsOptions, ReadOptions, WriteMode};
use treehold_tree::backend::BackendExt;

/// A fresh tree is empty.
pub(super) async fn empty_tree_lists_nothing(tree: Subject) {
    assert_eq!(tree.names("/").await, [""; 0]);
    assert_eq!(tree.found("**").await, [""; 0]);
}

/// The root always exists.
pub(super) async fn root_is_a_directory(tree: Subject) {
    let entry = tree.stat("/").await.expect("the root is there");
    assert_eq!((entry.kind, entry.size_bytes), (EntryKind::Directory, 0));
    tree.refused(tree.try_put("/", "x", WriteMode::Overwrite).await, ErrorKind::IsDirectory);
    tree.refused(tree.append("/", "x").await, ErrorKind::IsDirectory);
    assert!(!tree.create_dir("/").await.expect("it exists already").created);
}

/// CRLF, BOM, NUL, a missing final line break, empty content and invalid UTF-8 are content like any other.
pub(super) async fn content_is_preserved_byte_for_byte(tree: Subject) {
    let contents: [&[u8]; 9] =
        [b"", b"\n", b"a", b"a\r\nb\r\n", b"\xef\xbb\xbfbom", b"\0\0", b"\xff\xfe\x80", b"no end", "é\u{2028}\u{85}\r日本".as_bytes()];
    for (index, content) in contents.into_iter().enumerate() {
        let path = format!("/f{index}.txt");
        let changed = tree.put(&path, content).await;
        assert_eq!(changed.size_bytes, content.len() as u64);
        assert_eq!(tree.content(&path).await, content, "{content:?}");
        assert_eq!(tree.stat(&path).await.expect("it was written").size_bytes, content.len() as u64);
    }
}

/// A CRLF file that is shown with `\n` can be edited by the text shown, and keeps its endings.
pub(super) async fn text_shown_with_unix_lines_is_found_by_edits(tree: Subject) {
    tree.put("/dos.txt", "one\r\ntwo\r\nthree\r\n").await;
    for options in [ReadOptions::new(), ReadOptions::lines(0, 3)] {
        let read = tree.read("/dos.txt", &options).await.expect("it was written");
        let size_bytes = read.size_bytes;
        let shown = treehold_core::text::with_unix_lines(read);
        assert_eq!((&*shown.content, shown.size_bytes), (&b"one\ntwo\nthree\n"[..], size_bytes));
    }
    let changed = tree.edit("/dos.txt", &[Edit::new("two\nthree\n", "2\n3\n4\n")]).await.expect("it occurs as shown");
    assert_eq!(changed.replacements, 1);
    assert_eq!(tree.content("/dos.txt").await, "one\r\n2\r\n3\r\n4\r\n");
}

/// A batch of reads answers in the order of its paths; a failure concerns its own path only.
pub(super) async fn read_many_returns_contents_and_errors_in_order(tree: Subject) {
    let paths: Vec<String> = (0..40).rev().map(|number| format!("/many/f{number}")).collect();
    for path in &paths {
        tree.put(path, path.clone()).await;
    }
    let named = paths.iter().map(String::as_str).chain(["/many", "/many/none", "/many/f0"]);
    let mut asked: Vec<String> = named.map(|path| tree.path(path).to_string()).collect();
    asked.push("relative".to_owned());
    let mut read = tree.backend().read_many(&asked, &ReadOptions::new()).await;
    assert_eq!(read.len(), asked.len());
    for kind in [Some(ErrorKind::InvalidPath), None, Some(ErrorKind::NotFound), Some(ErrorKind::IsDirectory)] {
        assert_eq!(read.pop().and_then(Result::err).map(|error| error.kind()), kind);
    }
    let read: Vec<_> = read.into_iter().map(|read| read.expect("it was written").content).collect();
    assert_eq!(read, paths.iter().map(String::as_bytes).collect::<Vec<_>>());
}

/// Content larger than any page or chunk is preserved, also when read in parts.
pub(super) async fn large_content_is_preserved_byte_for_byte(tree: Subject) {
    let content = noise(0, 1_000_003);
    tree.put("/large.bin", content.clone()).await;
    assert!(tree.content("/large.bin").await == content, "the content differs");
    let part = tree.read("/large.bin", &ReadOptions::bytes(777_777, 5_000)).await.expect("within the file");
    assert!(part.content == content.slice(777_777..782_777), "the part differs");
    assert_eq!(part.size_bytes, content.len() as u64);
}

/// Byte ranges and line windows of a file too large to be read at once are the same as those of a small one.
pub(super) async fn parts_of_large_file_equal_parts_of_its_content(tree: Subject) {
    const SIZE: usize = (4 << 20) + 300_000;
    let mut content = Vec::with_capacity(SIZE);
    while content.len() < SIZE {
        let number = content.len();
        // Lines of many lengths, one of which crosses 4 MiB, and a last line without a line break.
        content.extend_from_slice(format!("{number} ").repeat(1 + number % 700).as_bytes());
        content.push(b'\n');
    }
    content.extend_from_slice(b"no end");
    let content = Bytes::from(content);
    tree.put("/large.txt", content.clone()).await;
    let (border, end) = (4 << 20, content.len() as u64);
    for (offset, limit) in [(0, 10), (border - 5, 10), (border, 1), (border - 1, 1), (end - 3, 10), (end, 5), (100, 300_000)] {
        let part = tree.read("/large.txt", &ReadOptions::bytes(offset, limit)).await.expect("within the file");
        let wanted = content.slice(offset as usize..(offset + limit).min(end) as usize);
        assert!(part.content == wanted && part.size_bytes == end, "{limit} bytes from {offset}");
    }
    tree.refused(tree.read("/large.txt", &ReadOptions::bytes(end + 1, 1)).await, ErrorKind::InvalidArgument);
    let total = treehold_core::text::count_lines(&content);
    let at_border = treehold_core::text::line_at(&content, border as usize) - 1;
    for (offset, limit, bytes_max) in [
        (0, 3, u64::MAX),
        (at_border - 1, 3, u64::MAX),
        (at_border, 1, 1),
        (total - 1, 5, u64::MAX),
        (total, 1, u64::MAX),
        (at_border - 20, 50, 20_000),
        (5, 0, u64::MAX),
    ] {
        let options = ReadOptions::lines(offset, limit).with_bytes_max(bytes_max.min(64 << 20));
        let (wanted, window) = treehold_core::text::cut(&content, &options).expect("within the file");
        let part = tree.read("/large.txt", &options).await.expect("within the file");
        assert!(part.content == wanted, "{limit} lines from {offset}");
        assert_eq!((part.window, part.size_bytes), (window, end), "{limit} lines from {offset}");
    }
    tree.refused(tree.read("/large.txt", &ReadOptions::lines(total + 1, 1)).await, ErrorKind::InvalidArgument);
    tree.refused(tree.read("/large.txt", &ReadOptions::new().with_bytes_max(end - 1)).await, ErrorKind::TooLarge);
    assert!(tree.content("/large.txt").await == content, "the content differs");
}

/// Parts of one version belong together. A write on the condition of a part's version is refused once the file has changed.
pub(super) async fn version_of_part_is_refused_after_change(tree: Subject) {
    let content = noise(0, (4 << 20) + 5);
    tree.put("/large.bin", content.clone()).await;
    let first = tree.read("/large.bin", &ReadOptions::bytes(0, 10)).await.expect("within the file");
    let same = tree.read("/large.bin", &ReadOptions::bytes(4 << 20, 10)).await.expect("within the file");
    assert_eq!((first.version, first.content), (same.version, content.slice(0..10)));
    assert_eq!(same.content, content.slice(4 << 20..));
    let changed = tree.put("/large.bin", content.slice(5..)).await;
    let second = tree.read("/large.bin", &ReadOptions::bytes(10, 10)).await.expect("within the file");
    assert_eq!((Some(second.version), second.content), (changed.version, content.slice(15..25)));
    assert_ne!(first.version, second.version);
    let error =
        tree.refused(tree.try_put("/large.bin", "of what was read", WriteMode::IfVersion(first.version)).await, ErrorKind::Conflict);
    assert_eq!(error.path(), Some(&*tree.path("/large.bin")));
    tree.delete("/large.bin", false, None).await.expect("deleted");
    tree.refused(tree.read("/large.bin", &ReadOptions::bytes(20, 10)).await, ErrorKind::NotFound);
}

/// Names may contain dots, spaces, brackets and any script, up to 255 bytes, and each names a different file.
pub(super) async fn legal_names_are_preserved(tree: Subject) {
    let long = "x".repeat(255);
    let names = [
        "foo..bar",
        "[...slug]",
        " a b ",
        ".hidden",
        "...",
        "~",
        "a:b",
        "a\\b",
        "é",
        "e\u{301}",
        "日本",
        "🙂",
        "{x}",
        "*",
        "?",
        "%41",
        "A",
        "a",
        &long,
    ];
    for name in names {
        tree.put(&format!("/d/{name}"), name.to_owned()).await;
    }
    for name in names {
        assert_eq!(tree.content(&format!("/d/{name}")).await, name.as_bytes(), "{name:?}");
    }
    let mut sorted = names.map(str::to_owned);
    sorted.sort();
    assert_eq!(tree.names("/d").await, sorted);
}

/// `stat` reports kind, size, version and times, with the caller's path.
pub(super) async fn stat_reports_kind_size_and_version(tree: Subject) {
    let changed = tree.put("/d/a.md", "four").await;
    let file = tree.stat("/d/a.md").await.expect("it was written");
    assert_eq!((file.kind, file.size_bytes, file.version), (EntryKind::File, 4, changed.version));
    assert_eq!((&file.path, &changed.path), (&tree.path("/d/a.md"), &tree.path("/d/a.md")));
    assert!(file.modified_at.is_some());
    let directory = tree.stat("/d").await.expect("the directory was created");
    assert_eq!((directory.kind, directory.size_bytes, directory.version), (EntryKind::Directory, 0, None));
    let read = tree.read("/d/a.md", &ReadOptions::new()).await.expect("it was written");
    assert_eq!((Some(read.version), read.size_bytes, read.modified_at), (file.version, 4, file.modified_at));
}

/// Every operation reports a missing path as `not_found`, with the caller's path in the error and in its message.
pub(super) async fn missing_path_is_not_found(tree: Subject) {
    tree.put("/d/a.md", "x").await;
    for path in ["/missing", "/d/missing", "/missing/deep/er"] {
        let error = tree.refused(tree.stat(path).await, ErrorKind::NotFound);
        assert_eq!(error.path(), Some(&*tree.path(path)));
        assert!(error.message().contains(tree.path(path).as_str()), "{error}");
        tree.refused(tree.read(path, &ReadOptions::new()).await, ErrorKind::NotFound);
        tree.refused(tree.ls(path, &LsOptions::new()).await, ErrorKind::NotFound);
        tree.refused(tree.grep(path, &GrepOptions::new("x")).await, ErrorKind::NotFound);
        tree.refused(tree.delete(path, true, None).await, ErrorKind::NotFound);
    }
}

/// Nothing is beneath a file, and nothing can be created there.
pub(super) async fn paths_beneath_file_are_rejected(tree: Subject) {
    tree.put("/a", "x").await;
    for path in ["/a/b", "/a/b/c"] {
        tree.refused(tree.stat(path).await, ErrorKind::NotADirectory);
        tree.refused(tree.read(path, &ReadOptions::new()).await, ErrorKind::NotADirectory);
        tree.refused(tree.ls(path, &LsOptions::new()).await, ErrorKind::NotADirectory);
        tree.refused(tree.try_put(path, "y", WriteMode::Overwrite).await, ErrorKind::NotADirectory);
        tree.refused(tree.append(path, "y").await, ErrorKind::NotADirectory);
        tree.refused(tree.create_dir(path).await, ErrorKind::NotADirectory);
        tree.refused(tree.delete(path, true, None).await, ErrorKind::NotADirectory);
        tree.refused(tree.copy("/a", path, false).await, ErrorKind::NotADirectory);
    }
    assert_eq!(tree.content("/a").await, "x");
}

/// A directory has no content to read.
pub(super) async fn read_of_directory_is_rejected(tree: Subject) {
    tree.put("/d/a.md", "x").await;
    for path in ["/", "/d"] {
        tree.refused(tree.read(path, &ReadOptions::new()).await, ErrorKind::IsDirectory);
        tree.refused(tree.read(path, &ReadOptions::lines(0, 1)).await, ErrorKind::IsDirectory);
    }
}

/// A window reports its lines, the total number of lines, and where to continue. Its bytes are as stored.
pub(super) async fn read_returns_window_of_lines(tree: Subject) {
    tree.put("/a", "one\ntwo\r\nthree\n\nfive").await;
    for (offset, limit, content, first, last, next) in [
        (0, 2, "one\ntwo\r\n", Some(1), Some(2), Some(2)),
        (1, 1, "two\r\n", Some(2), Some(2), Some(2)),
        (2, 2, "three\n\n", Some(3), Some(4), Some(4)),
        (4, 10, "five", Some(5), Some(5), None),
        (0, 5, "one\ntwo\r\nthree\n\nfive", Some(1), Some(5), None),
        (5, 1, "", None, None, None),
        (1, 0, "", None, None, Some(1)),
    ] {
        let read = tree.read("/a", &ReadOptions::lines(offset, limit)).await.expect("within the file");
        let window = read.window.expect("lines were asked for");
        assert_eq!(read.content, content, "offset {offset}, limit {limit}");
        assert_eq!((window.first_line(), window.last_line(), window.next_offset()), (first, last, next), "offset {offset}, limit {limit}");
        assert_eq!((window.total_lines, read.size_bytes), (5, 20));
    }
    tree.put("/empty", "").await;
    let read = tree.read("/empty", &ReadOptions::lines(0, 10)).await.expect("an empty file has an empty window");
    assert_eq!((read.content.len(), read.window.map(|window| window.total_lines)), (0, Some(0)));
}

/// A byte range ends at the end of the file.
pub(super) async fn read_returns_range_of_bytes(tree: Subject) {
    tree.put("/a", "abcdef").await;
    for (offset, limit, content) in [(0, 2, "ab"), (2, 2, "cd"), (4, 10, "ef"), (6, 1, ""), (0, 0, ""), (1, u64::MAX, "bcdef")] {
        let read = tree.read("/a", &ReadOptions::bytes(offset, limit)).await.expect("within the file");
        assert_eq!((&read.content[..], read.size_bytes, read.window), (content.as_bytes(), 6, None), "offset {offset}, limit {limit}");
    }
}

/// Reading a whole file over the limit fails. A window is truncated and reports where to continue.
pub(super) async fn read_respects_size_limit(tree: Subject) {
    tree.put("/a", "1234\n5678\n").await;
    tree.refused(tree.read("/a", &ReadOptions::new().with_bytes_max(9)).await, ErrorKind::TooLarge);
    tree.read("/a", &ReadOptions::new().with_bytes_max(10)).await.expect("just the limit");
    let read = tree.read("/a", &ReadOptions::lines(0, 10).with_bytes_max(9)).await.expect("a window is truncated");
    assert_eq!((&read.content[..], read.window.and_then(|window| window.next_offset())), (&b"1234\n"[..], Some(1)));
    let read = tree.read("/a", &ReadOptions::bytes(0, 100).with_bytes_max(3)).await.expect("a range is truncated");
    assert_eq!(read.content, "123");
}

/// A window or range that starts past the end is an error, not an empty result.
pub(super) async fn offset_past_end_is_rejected(tree: Subject) {
    tree.put("/a", "one\ntwo\n").await;
    let error = tree.refused(tree.read("/a", &ReadOptions::lines(3, 1)).await, ErrorKind::InvalidArgument);
    assert!(error.message().contains('2'), "the message says how many lines the file has: {error}");
    assert_eq!(error.path(), Some(&*tree.path("/a")));
    tree.refused(tree.read("/a", &ReadOptions::bytes(9, 1)).await, ErrorKind::InvalidArgument);
}

/// Only `\n` ends a line, whatever else other systems treat as a line break.
pub(super) async fn line_numbers_of_read_and_grep_agree(tree: Subject) {
    tree.put("/a", "x\u{2028}y\u{b}z\u{85}\rw\nneedle\r\n\nneedle").await;
    let lines = tree.lines(&GrepOptions::new("needle")).await;
    assert_eq!(lines, ["/a:2:needle", "/a:4:needle"]);
    let read = tree.read("/a", &ReadOptions::lines(1, 1)).await.expect("within the file");
    assert_eq!(read.content, "needle\r\n");
}
