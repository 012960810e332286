//! Ranked search.

use super::{Subject, Tree};
use jiff::{SignedDuration, Timestamp};
use treehold_core::error::ErrorKind;
use treehold_core::ops::{SearchOptions, SearchResult, Spelling};

async fn plant(tree: &Tree, files: &[(&str, &str)]) {
    for (path, content) in files {
        tree.put(path, (*content).to_owned()).await;
    }
}

async fn recalled(tree: &Tree, path: &str, options: &SearchOptions) -> SearchResult {
    let result = tree.search(path, options).await.unwrap_or_else(|error| panic!("search {options:?}: {error:?}"));
    assert_eq!((&result.failures[..], result.failures_count), (&[][..], 0));
    assert!(result.hits.windows(2).all(|pair| (pair[1].score, &pair[0].path) <= (pair[0].score, &pair[1].path)), "{result:?}");
    assert!(result.hits.iter().all(|hit| hit.score > 0.0 && hit.frequencies.len() == result.words.len()), "{result:?}");
    result
}

/// Returns the files that a search of the whole tree finds, best first.
async fn found(tree: &Tree, query: &str) -> Vec<String> {
    found_by(tree, &SearchOptions::new(query)).await
}

async fn found_by(tree: &Tree, options: &SearchOptions) -> Vec<String> {
    recalled(tree, "/", options).await.hits.iter().map(|hit| tree.seen(&hit.path)).collect()
}

/// Any matching word is enough, and more rank higher. Case, accents and English endings do not matter.
pub(super) async fn search_finds_files_by_any_word(tree: Subject) {
    let files = [
        ("/x1/one.txt", "Deploying on a Friday is forbidden.\n"),
        ("/x2.txt", "the café opens on fridays\n"),
        ("/x3.txt", "nothing of it\n"),
    ];
    plant(&tree, &files).await;
    assert_eq!(found(&tree, "friday DEPLOYS").await, ["/x1/one.txt", "/x2.txt"]);
    assert_eq!(found(&tree, "CAFE").await, ["/x2.txt"]);
    assert_eq!(found(&tree, "absent").await, [""; 0]);
}

/// A word that no file contains finds those that are spelled nearly like it, in text and in paths, and the result says which.
pub(super) async fn search_finds_words_spelled_nearly_like_unknown_ones(tree: Subject) {
    let files = [
        ("/x1/api.md", "Lists have pagination by cursor.\nPaginations end.\n"),
        ("/x2/Kubernetes.md", "the cluster of 2026\n"),
        ("/x3.txt", "a cat and its hat\n"),
        ("/x4.txt", "other words, page after page\n"),
    ];
    plant(&tree, &files).await;
    let result = recalled(&tree, "/", &SearchOptions::new("pagnation")).await;
    assert_eq!(result.hits.iter().map(|hit| tree.seen(&hit.path)).collect::<Vec<_>>(), ["/x1/api.md"]);
    assert_eq!((&result.hits[0].frequencies[..], result.corpus.files_with[0]), (&[2][..], 1));
    assert_eq!(result.hits[0].snippets[0].ranges, vec![11..21; 1]);
    let near: Vec<(&str, &[String])> = result.near.iter().map(|near| (&*near.spelled, &near.found[..])).collect();
    assert_eq!(near, [("pagnation", &["pagination".to_owned(), "paginations".to_owned()][..])]);
    assert_eq!(found(&tree, "kuberntes").await, ["/x2/Kubernetes.md"]);
    // Words that are found stay exact beside one that is not.
    assert_eq!(found(&tree, "cat pagnation").await.len(), 2);
    // Short words and numbers are found as they are written, and so are all if the caller says so.
    for query in ["cot", "2025"] {
        let result = recalled(&tree, "/", &SearchOptions::new(query)).await;
        assert!(result.hits.is_empty() && result.near.is_empty(), "{query}: {result:?}");
    }
    let exact = recalled(&tree, "/", &SearchOptions::new("pagnation").with_spelling(Spelling::Exact)).await;
    assert!(exact.hits.is_empty() && exact.near.is_empty(), "{exact:?}");
    // A word that some file contains finds nothing else.
    tree.put("/x5.txt", "pagnation\n").await;
    assert_eq!(found(&tree, "pagnation").await, ["/x5.txt"]);
}

/// Words that few files contain weigh more than common ones, and many occurrences more than few.
pub(super) async fn search_ranks_rare_and_frequent_words_higher(tree: Subject) {
    let files = [
        ("/a.txt", "common common common common\n"),
        ("/b.txt", "common filler filler rare\n"),
        ("/c.txt", "common filler filler filler\n"),
        ("/d.txt", "common rare rare filler\n"),
    ];
    plant(&tree, &files).await;
    assert_eq!(found(&tree, "common rare").await, ["/d.txt", "/b.txt", "/a.txt", "/c.txt"]);
    assert_eq!(found(&tree, "filler").await, ["/c.txt", "/b.txt", "/d.txt"]);
    // Ties are in path order.
    assert_eq!(found(&tree, "txt").await, ["/a.txt", "/b.txt", "/c.txt", "/d.txt"]);
}

/// The words of a path count, and more than one occurrence in the content.
pub(super) async fn search_finds_files_by_their_paths(tree: Subject) {
    plant(&tree, &[("/garden/tomatoes.md", "red\n"), ("/list.md", "tomato and basil for one garden\n"), ("/other.md", "basil\n")]).await;
    assert_eq!(found(&tree, "tomato").await, ["/garden/tomatoes.md", "/list.md"]);
    let result = recalled(&tree, "/", &SearchOptions::new("tomatoes")).await;
    assert_eq!(result.hits[0].snippets, []);
}

/// Snippets are lines with the same numbers as in `read`, in file order, with the words marked.
pub(super) async fn search_snippets_show_matching_lines(tree: Subject) {
    plant(&tree, &[("/f.txt", "one\r\nalpha beta\r\nalpha\r\ntwo\r\nBeta's alpha\r\n")]).await;
    let result = recalled(&tree, "/", &SearchOptions::new("alpha beta").with_snippets_max(2)).await;
    let snippets: Vec<(usize, &str)> = result.hits[0].snippets.iter().map(|snippet| (snippet.line, &*snippet.text)).collect();
    assert_eq!(snippets, [(2, "alpha beta"), (5, "Beta's alpha")]);
    assert_eq!(result.hits[0].snippets[1].ranges, [0..6, 7..12]);
    let result = recalled(&tree, "/", &SearchOptions::new("alpha").with_snippets_max(0)).await;
    assert_eq!((result.hits.len(), &result.hits[0].snippets[..]), (1, &[][..]));
}

/// Of a binary file, only the words of its path count, since grep skips its content.
pub(super) async fn search_ignores_binary_content(tree: Subject) {
    tree.put("/word.bin", &b"needle\0needle"[..]).await;
    tree.put("/text.txt", &b"needle \xFF\xFE needle"[..]).await;
    assert_eq!(found(&tree, "needle").await, ["/text.txt"]);
    assert_eq!(found(&tree, "bin").await, ["/word.bin"]);
}

/// Limits and offsets divide one ranking into pages, and a result is truncated only if there is more.
pub(super) async fn search_pages_add_up_to_whole_ranking(tree: Subject) {
    for number in 0..7 {
        tree.put(&format!("/f{number}.txt"), "needle ".repeat(number + 1)).await;
    }
    let all = found(&tree, "needle").await;
    assert_eq!((all.len(), &*all[0]), (7, "/f6.txt"));
    let mut pages = Vec::new();
    let mut options = SearchOptions::new("needle").with_limit(3);
    loop {
        let page = recalled(&tree, "/", &options).await;
        pages.extend(page.hits.iter().map(|hit| tree.seen(&hit.path)));
        match page.truncated {
            Some(truncation) => options.offset = truncation.cursor.parse().expect("the cursor is an offset"),
            None => break,
        }
    }
    assert_eq!(pages, all);
    assert_eq!(options.offset, 6);
    assert_eq!(recalled(&tree, "/", &SearchOptions::new("needle").with_limit(7)).await.truncated, None);
    assert_eq!(found_by(&tree, &SearchOptions::new("needle").with_offset(7)).await, [""; 0]);
}

/// Globs, hidden names and ignore files select files as in grep.
pub(super) async fn search_selects_files_as_grep_does(tree: Subject) {
    let files = [
        ("/a.md", "needle\n"),
        ("/d/b.txt", "needle\n"),
        ("/d/.hidden", "needle\n"),
        ("/d/.gitignore", "built\n"),
        ("/d/built/c.txt", "needle\n"),
        ("/e/d.txt", "needle\n"),
    ];
    plant(&tree, &files).await;
    let sorted = async |options: SearchOptions| {
        let mut found = found_by(&tree, &options).await;
        found.sort_unstable();
        found
    };
    let needle = || SearchOptions::new("needle");
    assert_eq!(sorted(needle()).await, ["/a.md", "/d/b.txt", "/e/d.txt"]);
    assert_eq!(sorted(needle().with_include("*.txt")).await, ["/d/b.txt", "/e/d.txt"]);
    assert_eq!(sorted(needle().with_exclude("/d")).await, ["/a.md", "/e/d.txt"]);
    assert_eq!(sorted(needle().with_include("d/**")).await, ["/d/b.txt"]);
    assert_eq!(sorted(needle().with_include("**/.hidden")).await, ["/d/.hidden"]);
    assert_eq!(sorted(needle().with_hidden(true)).await, ["/a.md", "/d/.hidden", "/d/b.txt", "/e/d.txt"]);
    assert_eq!(sorted(needle().with_ignored(true)).await, ["/a.md", "/d/b.txt", "/d/built/c.txt", "/e/d.txt"]);
    let beneath = recalled(&tree, "/d", &needle()).await;
    assert_eq!(beneath.hits.iter().map(|hit| tree.seen(&hit.path)).collect::<Vec<_>>(), ["/d/b.txt"]);
}

/// Files are selected by modification time. The start of a span is inclusive, its end exclusive.
pub(super) async fn search_selects_files_by_modification_time(tree: Subject) {
    plant(&tree, &[("/f.txt", "needle\n")]).await;
    let Some(modified_at) = tree.stat("/f.txt").await.expect("it was put").modified_at else { return };
    let needle = || SearchOptions::new("needle");
    assert_eq!(found_by(&tree, &needle().with_modified_since(modified_at)).await, ["/f.txt"]);
    assert_eq!(found_by(&tree, &needle().with_modified_before(modified_at)).await, [""; 0]);
    let later = modified_at + SignedDuration::from_secs(1);
    assert_eq!(found_by(&tree, &needle().with_modified_since(later)).await, [""; 0]);
    assert_eq!(found_by(&tree, &needle().with_modified_before(later).with_modified_since(Timestamp::UNIX_EPOCH)).await, ["/f.txt"]);
    let hit = recalled(&tree, "/", &needle()).await.hits.remove(0);
    assert_eq!(
        (hit.size_bytes, Some(hit.version), hit.modified_at),
        (7, tree.stat("/f.txt").await.expect("it exists").version, Some(modified_at))
    );
}

/// Changed files are found by their current content, and removed files not at all.
pub(super) async fn search_reflects_changes(tree: Subject) {
    plant(&tree, &[("/a.txt", "early\n"), ("/d/b.txt", "early\n"), ("/d/c.txt", "early\n")]).await;
    assert_eq!(found(&tree, "early").await.len(), 3);
    tree.put("/a.txt", "late\n").await;
    tree.rename("/d/b.txt", "/moved.txt", false).await.expect("a move");
    let mut early = found(&tree, "early").await;
    early.sort_unstable();
    assert_eq!(early, ["/d/c.txt", "/moved.txt"]);
    assert_eq!(found(&tree, "late").await, ["/a.txt"]);
    tree.append("/a.txt", "early again\n").await.expect("an append");
    tree.delete("/d", true, None).await.expect("a delete");
    let mut rest = found(&tree, "early").await;
    rest.sort_unstable();
    assert_eq!(rest, ["/a.txt", "/moved.txt"]);
}

/// A directly named file is searched whatever its name.
pub(super) async fn search_of_file_searches_only_that_file(tree: Subject) {
    plant(&tree, &[("/.hidden", "needle\n"), ("/b.txt", "needle\n")]).await;
    let result = recalled(&tree, "/.hidden", &SearchOptions::new("needle").with_include("*.md")).await;
    assert_eq!(result.hits.iter().map(|hit| tree.seen(&hit.path)).collect::<Vec<_>>(), ["/.hidden"]);
}

/// An invalid search fails with the right kind of error.
pub(super) async fn search_rejects_invalid_arguments(tree: Subject) {
    plant(&tree, &[("/f.txt", "needle\n")]).await;
    tree.refused(tree.search("/absent", &SearchOptions::new("needle")).await, ErrorKind::NotFound);
    tree.refused(tree.search("/f.txt/below", &SearchOptions::new("needle")).await, ErrorKind::NotADirectory);
    for query in ["", "  ", "?!"] {
        let error = tree.search("/", &SearchOptions::new(query)).await.expect_err("there is no word");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
    let far = SearchOptions::new("needle").with_offset(SearchOptions::RANK_MAX);
    assert_eq!(tree.search("/", &far).await.expect_err("too far").kind(), ErrorKind::InvalidArgument);
    let malformed = SearchOptions::new("needle").with_include("[");
    assert_eq!(tree.search("/", &malformed).await.expect_err("no glob").kind(), ErrorKind::InvalidArgument);
}
