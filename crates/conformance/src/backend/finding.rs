//! Glob and grep.

use super::{Subject, Tree};
use treehold_core::error::ErrorKind;
use treehold_core::ops::{CaseMode, Encoding, EntryKind, GlobOptions, GrepOptions, GrepOutput, SearchOptions};

async fn plant(tree: &Tree, files: &[(&str, &str)]) {
    for (path, content) in files {
        tree.put(path, (*content).to_owned()).await;
    }
}

async fn plant_empty(tree: &Tree, paths: &[&str]) {
    for path in paths {
        tree.put(path, "").await;
    }
}

/// `*` and `?` do not match `/`.
pub(super) async fn glob_star_stays_within_a_segment(tree: Subject) {
    plant_empty(&tree, &["/a.md", "/d/b.md", "/d/e/c.md", "/d/b.txt"]).await;
    assert_eq!(tree.found("/*.md").await, ["/a.md"]);
    assert_eq!(tree.found("d/*.md").await, ["/d/b.md"]);
    assert_eq!(tree.found("*/*/*.md").await, ["/d/e/c.md"]);
    assert_eq!(tree.found("d/?.*").await, ["/d/b.md", "/d/b.txt"]);
    assert_eq!(tree.found("d?b.md").await, [""; 0]);
}

/// `**` matches any number of segments, including none. After a directory it matches everything beneath.
pub(super) async fn glob_double_star_crosses_segments(tree: Subject) {
    plant_empty(&tree, &["/a.md", "/d/b.md", "/d/e/c.md", "/d/e/c.txt", "/dd/x.md"]).await;
    assert_eq!(tree.found("**/*.md").await, ["/a.md", "/d/b.md", "/d/e/c.md", "/dd/x.md"]);
    assert_eq!(tree.found("d/**").await, ["/d/b.md", "/d/e/c.md", "/d/e/c.txt"]);
    assert_eq!(tree.found("d/**/c.md").await, ["/d/e/c.md"]);
    assert_eq!(tree.found("d/**/b.md").await, ["/d/b.md"]);
    assert_eq!(tree.found("**/e/**").await, ["/d/e/c.md", "/d/e/c.txt"]);
    assert_eq!(tree.found("**").await.len(), 5);
}

/// A pattern without `/` matches names; a leading `/` anchors it.
pub(super) async fn glob_without_slash_matches_names_at_any_depth(tree: Subject) {
    plant_empty(&tree, &["/a.md", "/d/a.md", "/d/e/a.md", "/d/e/b.md"]).await;
    assert_eq!(tree.found("a.md").await, ["/a.md", "/d/a.md", "/d/e/a.md"]);
    assert_eq!(tree.found("/a.md").await, ["/a.md"]);
    assert_eq!(tree.found("e/a.md").await, [""; 0]);
    assert_eq!(tree.found("?.md").await.len(), 4);
}

/// Braces are alternatives that may be empty, nested and contain `/`; classes are sets of characters.
pub(super) async fn glob_supports_braces_and_classes(tree: Subject) {
    plant_empty(&tree, &["/a.md", "/b.md", "/c.txt", "/d/x.md", "/e/y.md", "/xa", "/a"]).await;
    assert_eq!(tree.found("/*.{md,txt}").await, ["/a.md", "/b.md", "/c.txt"]);
    assert_eq!(tree.found("{d,e}/*.md").await, ["/d/x.md", "/e/y.md"]);
    assert_eq!(tree.found("{d/x,e/y}.md").await, ["/d/x.md", "/e/y.md"]);
    assert_eq!(tree.found("/{,x}a").await, ["/a", "/xa"]);
    assert_eq!(tree.found("/{a,{b,c}}.*").await, ["/a.md", "/b.md", "/c.txt"]);
    assert_eq!(tree.found("/[ab].md").await, ["/a.md", "/b.md"]);
    assert_eq!(tree.found("/[a-b].md").await, ["/a.md", "/b.md"]);
    assert_eq!(tree.found("/[!a].md").await, ["/b.md"]);
    assert_eq!(tree.found("/[^a].md").await, ["/b.md"]);
}

/// Whether a character belongs to a class.
type Holds = fn(&char) -> bool;

/// The POSIX classes, each with a test for the characters that occur in names.
const POSIX_CLASSES: [(&str, Holds); 12] = [
    ("alnum", char::is_ascii_alphanumeric),
    ("alpha", char::is_ascii_alphabetic),
    ("blank", |character| *character == ' '),
    ("cntrl", char::is_ascii_control),
    ("digit", char::is_ascii_digit),
    ("graph", char::is_ascii_graphic),
    ("lower", char::is_ascii_lowercase),
    ("print", |character| matches!(character, ' '..='~')),
    ("punct", char::is_ascii_punctuation),
    ("space", |character| *character == ' '),
    ("upper", char::is_ascii_uppercase),
    ("xdigit", char::is_ascii_hexdigit),
];

/// POSIX classes such as `[[:alpha:]]` mean the same in globs, grep filters and ignore files. An unknown class is rejected.
pub(super) async fn posix_classes_work_in_globs_filters_and_ignore_files(tree: Subject) {
    let characters = ['a', 'F', 'g', 'Z', '0', '_', '-', ']', '~', ' ', 'é'];
    for character in characters {
        tree.put(&format!("/d/x{character}"), "needle\n").await;
    }
    let paths = |kept: &dyn Fn(&char) -> bool| -> Vec<String> {
        let mut paths: Vec<String> =
            characters.iter().filter(|character| kept(character)).map(|character| format!("/d/x{character}")).collect();
        paths.sort();
        paths
    };
    for (class, holds) in POSIX_CLASSES {
        let (held, left) = (paths(&|character| holds(character)), paths(&|character| !holds(character)));
        let pattern = format!("d/x[[:{class}:]]");
        assert_eq!(tree.found(&pattern).await, held, "{pattern}");
        assert_eq!(tree.found(&format!("d/x[![:{class}:]]")).await, left, "not {class}");
        let files = |options: GrepOptions| options.with_output(GrepOutput::Files);
        let shown = |paths: &[String]| paths.iter().map(|path| format!("{path}:1")).collect::<Vec<_>>();
        assert_eq!(tree.lines(&files(GrepOptions::new("needle").with_include(&*pattern))).await, shown(&held), "included {class}");
        assert_eq!(tree.lines(&files(GrepOptions::new("needle").with_exclude(&*pattern))).await, shown(&left), "excluded {class}");
        tree.put("/d/.ignore", format!("x[[:{class}:]]\n")).await;
        assert_eq!(tree.found("d/x*").await, left, "ignored {class}");
        tree.delete("/d/.ignore", false, None).await.expect("it exists");
    }
    let both = paths(&|character| character.is_ascii_digit() || matches!(character, '_' | ']'));
    assert_eq!(tree.found("d/x[][:digit:]_]").await, both);
    for malformed in ["[[:nonsense:]]", "[a-[:digit:]]", "[[:alpha:]"] {
        tree.refused(tree.glob("/", &GlobOptions::new(malformed)).await, ErrorKind::InvalidArgument);
        tree.refused(tree.grep("/", &GrepOptions::new("x").with_include(malformed)).await, ErrorKind::InvalidArgument);
    }
}

/// `?` and classes match characters, not bytes; a backslash escapes.
pub(super) async fn glob_matches_characters_not_bytes(tree: Subject) {
    plant_empty(&tree, &["/é.md", "/日.md", "/*.md", "/[x].md", "/a{b}.md"]).await;
    assert_eq!(tree.found("/[éa].md").await, ["/é.md"]);
    assert_eq!(tree.found("/[à-ü].md").await, ["/é.md"]);
    assert_eq!(tree.found("/?.md").await, ["/*.md", "/é.md", "/日.md"]);
    assert_eq!(tree.found(r"/\*.md").await, ["/*.md"]);
    assert_eq!(tree.found(r"/\[x\].md").await, ["/[x].md"]);
    assert_eq!(tree.found("/[[]x[]].md").await, ["/[x].md"]);
    assert_eq!(tree.found(r"/a\{b\}.md").await, ["/a{b}.md"]);
}

/// A hidden name matches only a segment that itself starts with a dot, unless requested otherwise.
pub(super) async fn glob_hides_dot_names_unless_named(tree: Subject) {
    plant_empty(&tree, &["/.env", "/.github/ci.yml", "/.git/config", "/a.yml", "/d/.x/y.yml", "/d/.z"]).await;
    assert_eq!(tree.found("**").await, ["/a.yml"]);
    assert_eq!(tree.found("*.yml").await, ["/a.yml"]);
    assert_eq!(tree.found(".*").await, ["/.env", "/d/.z"]);
    assert_eq!(tree.found(".github/*.yml").await, ["/.github/ci.yml"]);
    assert_eq!(tree.found("**/.github/**").await, ["/.github/ci.yml"]);
    assert_eq!(tree.found("**/.x/*").await, ["/d/.x/y.yml"]);
    let all = tree.found_by(&GlobOptions::new("**").with_hidden(true)).await;
    assert_eq!(all, ["/.env", "/.git/config", "/.github/ci.yml", "/a.yml", "/d/.x/y.yml", "/d/.z"]);
    let beneath = tree.glob("/.github", &GlobOptions::new("*")).await.expect("it is a directory");
    assert_eq!(beneath.entries.len(), 1, "a hidden directory is searched if the caller names it");
}

/// With hidden directories, a pattern without a slash and a grep without includes enter them, and names that start with a dot stay
/// hidden.
pub(super) async fn hidden_directories_are_entered_for_names_if_asked(tree: Subject) {
    let files = ["/.env.yml", "/.github/.x.yml", "/.github/ci.yml", "/a.yml", "/d/.x/.y/z.yml", "/d/.x/z.txt"];
    plant(&tree, &files.map(|file| (file, "needle\n"))).await;
    let found = async |pattern: &str| tree.found_by(&GlobOptions::new(pattern).with_hidden_directories(true)).await;
    assert_eq!(found("*.yml").await, ["/.github/ci.yml", "/a.yml", "/d/.x/.y/z.yml"]);
    assert_eq!(found("**").await, ["/.github/ci.yml", "/a.yml", "/d/.x/.y/z.yml", "/d/.x/z.txt"]);
    assert_eq!(found("**/*.yml").await, ["/a.yml"], "a pattern with a slash enters none");
    assert_eq!(found("d/**").await, [""; 0]);
    assert_eq!(found(".*").await, ["/.env.yml", "/.github/.x.yml"]);
    let needle = || GrepOptions::new("needle").with_hidden_directories(true);
    assert_eq!(
        tree.lines(&needle()).await,
        ["/.github/ci.yml:1:needle", "/a.yml:1:needle", "/d/.x/.y/z.yml:1:needle", "/d/.x/z.txt:1:needle"]
    );
    assert_eq!(tree.lines(&needle().with_include("*.txt")).await, ["/d/.x/z.txt:1:needle"]);
    assert_eq!(tree.lines(&needle().with_include("**/*.yml")).await, ["/a.yml:1:needle"]);
    let words = SearchOptions::new("needle").with_hidden_directories(true);
    let hits = tree.search("/", &words).await.expect("it is a directory").hits;
    let mut hits: Vec<_> = hits.iter().map(|hit| tree.seen(&hit.path)).collect();
    hits.sort();
    assert_eq!(hits, ["/.github/ci.yml", "/a.yml", "/d/.x/.y/z.yml", "/d/.x/z.txt"]);
}

/// `.gitignore` and `.ignore` apply on every tier: deeper files override outer ones, later lines earlier ones. They can be
/// disabled.
pub(super) async fn glob_respects_ignore_files(tree: Subject) {
    plant(
        &tree,
        &[
            ("/.gitignore", "*.log\n/build/\n!keep.log\n# comment\nd/secret\n"),
            ("/a.log", ""),
            ("/keep.log", ""),
            ("/build/x", ""),
            ("/d/build/x", ""),
            ("/d/secret", ""),
            ("/d/.gitignore", "!b.log\n*.tmp\n"),
            ("/d/b.log", ""),
            ("/d/c.tmp", ""),
            ("/e/.ignore", "x\n"),
            ("/e/x", ""),
            ("/e/y", ""),
            ("/e/f/x", ""),
        ],
    )
    .await;
    assert_eq!(tree.found("**").await, ["/d/b.log", "/d/build/x", "/e/y", "/keep.log"]);
    let all = tree.found_by(&GlobOptions::new("**").with_ignored(true)).await;
    assert_eq!(all.len(), 10);
    let beneath = tree.glob("/d", &GlobOptions::new("**")).await.expect("it is a directory");
    assert_eq!(
        beneath.entries.iter().map(|entry| tree.seen(&entry.path)).collect::<Vec<_>>(),
        ["/d/b.log", "/d/build/x"],
        "rules of the directories above count too"
    );
}

/// Directories are found only if asked for.
pub(super) async fn glob_finds_directories_only_if_asked(tree: Subject) {
    plant_empty(&tree, &["/d/e/f", "/d/g"]).await;
    tree.create_dir("/d/empty").await.expect("nothing exists there");
    assert_eq!(tree.found("d/*").await, ["/d/g"]);
    let found = tree.glob("/", &GlobOptions::new("d/*").with_directories(true)).await.expect("it is a directory");
    let kinds: Vec<_> = found.entries.iter().map(|entry| (tree.seen(&entry.path), entry.kind)).collect();
    let expected = [("/d/e", EntryKind::Directory), ("/d/empty", EntryKind::Directory), ("/d/g", EntryKind::File)];
    assert_eq!(kinds, expected.map(|(path, kind)| (path.to_owned(), kind)));
    assert_eq!(tree.found_by(&GlobOptions::new("**").with_directories(true)).await, ["/d", "/d/e", "/d/e/f", "/d/empty", "/d/g"]);
}

/// Case matters unless disabled.
pub(super) async fn glob_ignores_case_only_if_asked(tree: Subject) {
    plant_empty(&tree, &["/README.md", "/readme.txt", "/D/Readme.MD"]).await;
    assert_eq!(tree.found("readme*").await, ["/readme.txt"]);
    let found = tree.found_by(&GlobOptions::new("readme*").with_case_insensitive(true)).await;
    assert_eq!(found, ["/D/Readme.MD", "/README.md", "/readme.txt"]);
    assert_eq!(tree.found_by(&GlobOptions::new("d/*").with_case_insensitive(true)).await, ["/D/Readme.MD"]);
}

/// Results are in path order, and pages of any size return each of them once.
pub(super) async fn glob_pages_are_complete_and_in_path_order(tree: Subject) {
    let sorted = ["/a/b/c", "/a/b-", "/a-/x", "/a.x", "/b"];
    plant_empty(&tree, &["/b", "/a.x", "/a-/x", "/a/b-", "/a/b/c"]).await;
    assert_eq!(tree.found("**").await, sorted);
    for limit in 1..=6 {
        let mut seen = Vec::new();
        let mut options = GlobOptions::new("**").with_limit(limit);
        loop {
            let page = tree.glob("/", &options).await.expect("it is a directory");
            assert!(page.entries.len() <= limit);
            seen.extend(page.entries.iter().map(|entry| tree.seen(&entry.path)));
            let Some(truncation) = page.truncated else { break };
            options = options.with_start_after(truncation.cursor.parse::<treehold_core::path::VfsPathBuf>().expect("the cursor is a path"));
        }
        assert_eq!(seen, sorted, "limit {limit}");
    }
    let entry = tree.glob("/", &GlobOptions::new("b")).await.expect("it is a directory").entries.remove(0);
    assert_eq!(entry, tree.stat("/b").await.expect("it was written"), "an entry equals the result of `stat`");
}

/// Patterns are relative to the searched path, which must be a directory.
pub(super) async fn glob_searches_beneath_its_path(tree: Subject) {
    plant_empty(&tree, &["/d/e/a.md", "/d/a.md", "/dd/a.md", "/a.md"]).await;
    let found = tree.glob("/d", &GlobOptions::new("/*.md")).await.expect("it is a directory");
    assert_eq!(found.entries.iter().map(|entry| entry.path.clone()).collect::<Vec<_>>(), [tree.path("/d/a.md")]);
    let found = tree.glob("/d", &GlobOptions::new("a.md")).await.expect("it is a directory");
    assert_eq!(found.entries.len(), 2);
    tree.refused(tree.glob("/missing", &GlobOptions::new("*")).await, ErrorKind::NotFound);
    tree.refused(tree.glob("/a.md", &GlobOptions::new("*")).await, ErrorKind::NotADirectory);
}

/// A malformed pattern is an error that an agent can act on, not an empty result.
pub(super) async fn glob_rejects_malformed_patterns(tree: Subject) {
    plant_empty(&tree, &["/a"]).await;
    for pattern in ["{a", "[a", "a\\", "../a", "a/../b", ""] {
        tree.refused(tree.glob("/", &GlobOptions::new(pattern)).await, ErrorKind::InvalidArgument);
        tree.refused(tree.grep("/", &GrepOptions::new("x").with_include(pattern)).await, ErrorKind::InvalidArgument);
    }
}

/// A tree beneath the caller's search root is matched by the paths that the caller sees, and pruned subtrees are skipped.
pub(super) async fn glob_applies_base_and_prune(tree: Subject) {
    plant_empty(&tree, &["/n.md", "/d/n.md", "/d/e/n.md", "/.h/n.md"]).await;
    let found = async |base: &str, pattern: &str, prune: &[&str]| {
        let mut options = GlobOptions::new(pattern);
        options.scope.base = base.parse().expect("a legal base");
        options.scope.prune = prune.iter().map(|path| tree.path(path)).collect();
        tree.found_by(&options).await
    };
    assert_eq!(found("/mem", "*/n.md", &[]).await, ["/n.md"]);
    assert_eq!(found("/mem", "m*/n.md", &[]).await, ["/n.md"]);
    assert_eq!(found("/mem", "{mem,x}/d/*.md", &[]).await, ["/d/n.md"]);
    assert_eq!(found("/mem", "/*.md", &[]).await, [""; 0]);
    assert_eq!(found("/mem", "x/*.md", &[]).await, [""; 0]);
    assert_eq!(found("/mem/deep", "mem/**", &["/d/e"]).await, ["/d/n.md", "/n.md"]);
    assert_eq!(found("/mem", "n.md", &["/d"]).await, ["/n.md"]);
    assert_eq!(found("/.mem", "**", &[]).await, [""; 0]);
    assert_eq!(found("/.mem", ".mem/**", &[]).await, ["/d/e/n.md", "/d/n.md", "/n.md"]);
}

/// Without `regex`, every character is literal.
pub(super) async fn grep_is_literal_by_default(tree: Subject) {
    plant(&tree, &[("/a", "f(x) = [1]\nfx\n"), ("/b", "a.c\nabc\n")]).await;
    assert_eq!(tree.lines(&GrepOptions::new("f(x)")).await, ["/a:1:f(x) = [1]"]);
    assert_eq!(tree.lines(&GrepOptions::new("a.c")).await, ["/b:1:a.c"]);
    assert_eq!(tree.lines(&GrepOptions::new("nowhere")).await, [""; 0]);
}

/// Regular expressions match line by line; `$` also matches before `\r\n`.
pub(super) async fn grep_finds_regular_expressions(tree: Subject) {
    plant(&tree, &[("/a", "fn main() {\r\nfn  other\r\n}\r\n"), ("/b", "émile\nline ünder\n")]).await;
    assert_eq!(tree.lines(&GrepOptions::regex(r"^fn\s+\w+")).await, ["/a:1:fn main() {", "/a:2:fn  other"]);
    assert_eq!(tree.lines(&GrepOptions::regex(r"(main|other)$")).await, ["/a:2:fn  other"]);
    assert_eq!(tree.lines(&GrepOptions::regex(r"^\w+$")).await, ["/b:1:émile"]);
    assert_eq!(tree.lines(&GrepOptions::regex(r"^$")).await, [""; 0]);
}

/// Case, word and whole-line matching.
pub(super) async fn grep_supports_case_word_and_whole_line(tree: Subject) {
    plant(&tree, &[("/a", "Foo\nfoo\nfoobar\nÉtude\n")]).await;
    assert_eq!(tree.lines(&GrepOptions::new("foo")).await, ["/a:2:foo", "/a:3:foobar"]);
    assert_eq!(tree.lines(&GrepOptions::new("foo").with_case(CaseMode::Insensitive)).await.len(), 3);
    assert_eq!(tree.lines(&GrepOptions::new("étude").with_case(CaseMode::Insensitive)).await, ["/a:4:Étude"]);
    assert_eq!(tree.lines(&GrepOptions::new("foo").with_case(CaseMode::Smart)).await.len(), 3);
    assert_eq!(tree.lines(&GrepOptions::new("Foo").with_case(CaseMode::Smart)).await, ["/a:1:Foo"]);
    assert_eq!(tree.lines(&GrepOptions::new("foo").with_word(true)).await, ["/a:2:foo"]);
    assert_eq!(tree.lines(&GrepOptions::new("foo").with_whole_line(true)).await, ["/a:2:foo"]);
}

/// `invert` finds the lines that do not match.
pub(super) async fn grep_with_invert_finds_other_lines(tree: Subject) {
    plant(&tree, &[("/a", "one\ntwo\nthree"), ("/b", "two\n")]).await;
    assert_eq!(tree.lines(&GrepOptions::new("two").with_invert(true)).await, ["/a:1:one", "/a:3:three"]);
}

/// Context lines surround each match, each once, within the file.
pub(super) async fn grep_returns_context_lines(tree: Subject) {
    plant(&tree, &[("/a", "1\n2\nx3\n4\nx5\n6\n7\n8\nx9")]).await;
    let lines = tree.lines(&GrepOptions::new("x").with_context(1, 1)).await;
    assert_eq!(lines, ["/a-2-2", "/a:3:x3", "/a-4-4", "/a:5:x5", "/a-6-6", "/a-8-8", "/a:9:x9"]);
    assert_eq!(tree.lines(&GrepOptions::new("x3").with_context(9, 0)).await, ["/a-1-1", "/a-2-2", "/a:3:x3"]);
    assert_eq!(tree.lines(&GrepOptions::new("x9").with_context(0, 9)).await, ["/a:9:x9"]);
}

/// Globs include and exclude files as `glob` would find them; types are named sets of globs.
pub(super) async fn grep_filters_by_glob_and_type(tree: Subject) {
    plant(&tree, &[("/a.rs", "x"), ("/b.py", "x"), ("/src/c.rs", "x"), ("/src/gen/d.rs", "x"), ("/.h/e.rs", "x")]).await;
    assert_eq!(tree.lines(&GrepOptions::new("x").with_include("*.rs")).await, ["/a.rs:1:x", "/src/c.rs:1:x", "/src/gen/d.rs:1:x"]);
    assert_eq!(tree.lines(&GrepOptions::new("x").with_include("/*.rs")).await, ["/a.rs:1:x"]);
    assert_eq!(tree.lines(&GrepOptions::new("x").with_include("src/*.rs").with_include("*.py")).await, ["/b.py:1:x", "/src/c.rs:1:x"]);
    assert_eq!(tree.lines(&GrepOptions::new("x").with_include("*.rs").with_exclude("gen")).await, ["/a.rs:1:x", "/src/c.rs:1:x"]);
    assert_eq!(tree.lines(&GrepOptions::new("x").with_exclude("src/**")).await, ["/a.rs:1:x", "/b.py:1:x"]);
    assert_eq!(tree.lines(&GrepOptions::new("x").with_include(".h/*")).await, ["/.h/e.rs:1:x"]);
    assert_eq!(tree.lines(&GrepOptions::new("x").with_type("py")).await, ["/b.py:1:x"]);
    assert_eq!(tree.lines(&GrepOptions::new("x").with_type("py").with_type("rust")).await.len(), 4);
    tree.refused(tree.grep("/", &GrepOptions::new("x").with_type("no-such-type")).await, ErrorKind::InvalidArgument);
}

/// The other outputs list each file once, or count its matching lines.
pub(super) async fn grep_lists_files_and_counts(tree: Subject) {
    plant(&tree, &[("/a", "x\nx x\ny\n"), ("/b", "y"), ("/c", "x")]).await;
    assert_eq!(tree.lines(&GrepOptions::new("x").with_output(GrepOutput::Files)).await, ["/a:1", "/c:1"]);
    assert_eq!(tree.lines(&GrepOptions::new("x").with_output(GrepOutput::Counts)).await, ["/a:2", "/c:1"]);
    let result = tree.grep("/", &GrepOptions::new("x")).await.expect("it can be searched");
    assert_eq!((result.files_searched, result.matches(), result.files[0].count), (3, 3, 2));
}

/// A file with a NUL byte is skipped and counted, or searched if requested.
pub(super) async fn grep_skips_and_counts_binary_files(tree: Subject) {
    tree.put("/bin", &b"needle\n\0\n"[..]).await;
    tree.put("/latin", &b"needle \xe9\n"[..]).await;
    let result = tree.grep("/", &GrepOptions::new("needle")).await.expect("it can be searched");
    assert_eq!((tree.shown(&result), result.files_binary, result.files_searched), (vec!["/latin:1:needle \u{fffd}".to_owned()], 1, 1));
    let result = tree.grep("/", &GrepOptions::new("needle").with_binary(true)).await.expect("it can be searched");
    assert_eq!((result.files.len(), result.files_binary), (2, 0));
}

/// A UTF-16 file is decoded by its byte order mark if requested. Offsets refer to the decoded text.
pub(super) async fn grep_decodes_utf_16_if_asked(tree: Subject) {
    let utf_16 = |text: &str| text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
    tree.put("/little", utf_16("\u{feff}an é\na needle")).await;
    tree.put("/marked", "\u{feff}needle").await;
    tree.put("/plain", "a needle").await;
    let options = || GrepOptions::regex("^(a )?needle");
    let result = tree.grep("/", &options()).await.expect("it can be searched");
    // As bytes, one file is binary. An index may rule it out before that is noticed.
    let skipped = usize::from(!tree.backend().capabilities().indexed);
    assert_eq!((tree.shown(&result), result.files_binary), (vec!["/plain:1:a needle".to_owned()], skipped));
    let result = tree.grep("/", &options().with_encoding(Encoding::Auto)).await.expect("it can be searched");
    let expected = ["/little:2:a needle", "/marked:1:needle", "/plain:1:a needle"].map(str::to_owned);
    assert_eq!((tree.shown(&result), result.files_binary), (expected.to_vec(), 0));
    let line = &result.files[0].lines[0];
    assert_eq!((line.byte_offset, &line.ranges[0], line.ranges.len()), (6, &(0..8), 1));
}

/// A file over the size limit is skipped and counted.
pub(super) async fn grep_skips_and_counts_large_files(tree: Subject) {
    plant(&tree, &[("/large", "needle and more"), ("/small", "needle")]).await;
    let result = tree.grep("/", &GrepOptions::new("needle").with_size_max_bytes(6)).await.expect("it can be searched");
    assert_eq!((tree.shown(&result), result.files_too_large), (vec!["/small:1:needle".to_owned()], 1));
}

/// A match reports its line, columns, byte ranges and offset in the file.
pub(super) async fn grep_reports_ranges_and_offsets(tree: Subject) {
    plant(&tree, &[("/a", "one\r\né foo foo\r\n")]).await;
    let result = tree.grep("/", &GrepOptions::new("foo")).await.expect("it can be searched");
    let line = &result.files[0].lines[0];
    assert_eq!((line.line, line.byte_offset, line.column(), &line.ranges[..]), (2, 5, Some(4), &[3..6, 7..10][..]));
    assert_eq!(line.text, "é foo foo");
}

/// Hidden and ignored files are searched only if requested.
pub(super) async fn grep_skips_hidden_and_ignored_files(tree: Subject) {
    plant(&tree, &[("/.gitignore", "x.log\n"), ("/x.log", "needle"), ("/.env", "needle"), ("/a", "needle")]).await;
    assert_eq!(tree.lines(&GrepOptions::new("needle")).await, ["/a:1:needle"]);
    assert_eq!(tree.lines(&GrepOptions::new("needle").with_hidden(true)).await, ["/.env:1:needle", "/a:1:needle"]);
    assert_eq!(tree.lines(&GrepOptions::new("needle").with_ignored(true)).await, ["/a:1:needle", "/x.log:1:needle"]);
}

/// A directly named file is searched whatever the rules, and nothing else is.
pub(super) async fn grep_searches_directly_named_file(tree: Subject) {
    plant(&tree, &[("/.gitignore", "*\n"), ("/d/.a", "needle\nx"), ("/d/b", "needle"), ("/d/.a2", "needle")]).await;
    assert_eq!(tree.lines_in("/d/.a", &GrepOptions::new("needle")).await, ["/d/.a:1:needle"]);
    assert_eq!(tree.lines_in("/d/.a", &GrepOptions::new("needle").with_include("*.rs")).await, ["/d/.a:1:needle"]);
    assert_eq!(tree.lines_in("/d/.a", &GrepOptions::new("nowhere")).await, [""; 0]);
    tree.refused(tree.grep("/d/.a/x", &GrepOptions::new("needle")).await, ErrorKind::NotADirectory);
}

/// With any limit, following the cursor returns everything, once, in order.
pub(super) async fn grep_pages_are_complete_and_in_order(tree: Subject) {
    plant(&tree, &[("/a", "x1\ny\nx2\nx3\n"), ("/b", "y\n"), ("/c/d", "x4"), ("/c-", "x5\nx6\n")]).await;
    for output in [GrepOutput::Content, GrepOutput::Files, GrepOutput::Counts] {
        let whole = tree.lines(&GrepOptions::new("x").with_output(output)).await;
        for limit in 1..=7 {
            let mut seen = Vec::new();
            let mut options = GrepOptions::new("x").with_output(output).with_matches_max(limit);
            loop {
                let page = tree.grep("/", &options).await.expect("it can be searched");
                assert!(page.matches() <= limit, "{page:?}");
                seen.extend(tree.shown(&page));
                let Some(truncation) = page.truncated else { break };
                options = options.with_start_after(truncation.cursor.parse().expect("the cursor is one"));
            }
            assert_eq!(seen, whole, "{output:?}, limit {limit}");
        }
    }
    let first = tree.grep("/", &GrepOptions::new("x").with_file_matches_max(1)).await.expect("it can be searched");
    assert_eq!((tree.shown(&first), first.truncated), (["/a:1:x1", "/c/d:1:x4", "/c-:1:x5"].map(str::to_owned).to_vec(), None));
}

/// A match spans lines only with `multiline`.
pub(super) async fn grep_matches_across_lines_only_if_asked(tree: Subject) {
    plant(&tree, &[("/a", "one\nfn a(\n  b,\n)\nend\n")]).await;
    let result = tree.grep("/", &GrepOptions::regex(r"fn a\([^)]*\)").with_multiline(true)).await.expect("it can be searched");
    let line = &result.files[0].lines[0];
    assert_eq!((line.line, &line.text[..]), (2, &b"fn a(\n  b,\n)"[..]));
    assert_eq!(tree.lines(&GrepOptions::regex(r"fn a\([^)]*\)")).await, [""; 0]);
}

/// Include and exclude globs match the paths that the caller sees, even for a tree beneath the caller's search root.
pub(super) async fn grep_applies_base_and_prune(tree: Subject) {
    plant(&tree, &[("/n.md", "x"), ("/d/n.md", "x"), ("/d/e/n.md", "x")]).await;
    let found = async |base: &str, include: &str, exclude: &str, prune: &[&str]| {
        let mut options = GrepOptions::new("x").with_include(include).with_exclude(exclude);
        options.scope.base = base.parse().expect("a legal base");
        options.scope.prune = prune.iter().map(|path| tree.path(path)).collect();
        tree.lines(&options).await
    };
    assert_eq!(found("/mem", "mem/*.md", "none", &[]).await, ["/n.md:1:x"]);
    assert_eq!(found("/mem", "/*.md", "none", &[]).await, [""; 0]);
    assert_eq!(found("/mem", "*.md", "mem/d/e", &[]).await, ["/d/n.md:1:x", "/n.md:1:x"]);
    assert_eq!(found("/mem", "*.md", "none", &["/d"]).await, ["/n.md:1:x"]);
    assert_eq!(found("/mem", "*.md", "/mem", &[]).await, [""; 0]);
}

/// A malformed expression is an error.
pub(super) async fn grep_rejects_malformed_patterns(tree: Subject) {
    plant(&tree, &[("/a", "x")]).await;
    for pattern in ["(", "[a", "a{2,1}", "\\"] {
        let error = tree.refused(tree.grep("/", &GrepOptions::regex(pattern)).await, ErrorKind::InvalidArgument);
        assert!(!error.message().is_empty());
    }
}
