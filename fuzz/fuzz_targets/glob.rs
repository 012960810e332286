//! Random patterns and paths: a walk bounded by the pattern must reach every matching path.
//!
//! Input: the pattern on one line, then the path.

#![no_main]

use libfuzzer_sys::fuzz_target;
use treehold_core::search::Glob;
use treehold_core::{VfsPath, VfsPathBuf};

fuzz_target!(|input: &str| {
    let Some((pattern, path)) = input.split_once('\n') else { return };
    let Ok(path) = VfsPath::parse(path) else { return };
    for case_insensitive in [false, true] {
        let Ok(glob) = Glob::parse(pattern, case_insensitive) else { return };
        let visible = Glob::parse_visible(pattern, case_insensitive).expect("a legal pattern is legal for searches too");
        assert!(!visible.is_match(path.relative()) || glob.is_match(path.relative()), "a search finds no more than the pattern matches");
        check_walk(&glob, &path);
        check_walk(&visible, &path);
    }
    let (Ok(exact), Ok(any_case)) = (Glob::parse(pattern, false), Glob::parse(pattern, true)) else { return };
    assert!(!exact.is_match(path.relative()) || any_case.is_match(path.relative()), "`{path}` matches only when case counts");
});

/// Checks that a walk from the literal prefix, guided by the pattern, reaches a matching path.
fn check_walk(glob: &Glob, path: &VfsPath) {
    if path.is_root() || !glob.is_match(path.relative()) {
        return;
    }
    for above in path.ancestors() {
        assert!(glob.can_match_beneath(above.relative()), "`{path}` matches, but `{above}` is said to contain no match");
    }
    let prefix = VfsPathBuf::parse(format!("/{}", glob.literal_prefix())).expect("a literal prefix is a path");
    assert!(path.starts_with(&prefix) && *path != *prefix, "`{path}` matches beside `{prefix}`");
}
