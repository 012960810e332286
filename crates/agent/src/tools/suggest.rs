//! Suggestions for misspelled or misplaced names.

use treehold_core::error::{Error, ErrorKind};
use treehold_core::ops::{LsOptions, StatOptions};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_tree::backend::Backend;

/// The most names that are suggested.
const NAMES_MAX: usize = 3;

/// The most children of one directory that are compared.
const CHILDREN_MAX: usize = 1000;

/// The most root directories tried as a prefix that the caller may have forgotten.
const MOUNTS_MAX: usize = 6;

/// The most leading segments of a path that are left out to find a similar one.
const STRIPPED_MAX: usize = 4;

/// The most ancestors of a path that are listed, nearest first. With the listing of the root, 16 lookups in all.
const ABOVE_MAX: usize = 5;

/// The least similarity of a suggestion; 1 means equal.
const LIKENESS_MIN: f64 = 0.6;

/// Returns the names most similar to `wanted`, best first, at most three.
pub(super) fn nearest<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let wanted = wanted.to_lowercase();
    let mut scored: Vec<(f64, &str)> =
        names.map(|name| (likeness(&wanted, &name.to_lowercase()), name)).filter(|(likeness, _)| *likeness >= LIKENESS_MIN).collect();
    scored.sort_by(|left, right| right.0.total_cmp(&left.0).then_with(|| left.1.cmp(right.1)));
    scored.into_iter().take(NAMES_MAX).map(|(_, name)| name).collect()
}

/// Returns the end of a message that suggests some names; empty without names.
pub(super) fn did_you_mean<T: std::fmt::Display>(names: &[T]) -> String {
    match names {
        [] => String::new(),
        names => format!("; did you mean {}?", names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" or ")),
    }
}

/// Adds similar paths to a `not_found` error; other errors are returned unchanged.
///
/// Cost: at most 16 lookups, however deep the path and however many directories there are: up to six listings, of the
/// root and of ancestors up to the first that exists, and one `stat` for each of up to ten other candidates. If a
/// lookup fails, the error is returned without suggestions.
pub async fn with_near_paths(backend: &dyn Backend, error: Error) -> Error {
    if error.kind() != ErrorKind::NotFound {
        return error;
    }
    let Some(wanted) = error.path().map(ToOwned::to_owned) else { return error };
    let mut found = elsewhere(backend, &wanted).await;
    for near in near_siblings(backend, &wanted).await {
        if !found.contains(&near) {
            found.push(near);
        }
    }
    found.truncate(NAMES_MAX);
    if found.is_empty() {
        return error;
    }
    let message = format!("{}{}", error.message(), did_you_mean(&found));
    error.with_message(message)
}

/// Finds similar names in the nearest existing ancestor: for `/srv/docs/a.md` perhaps `/src`, if `/srv` does not exist.
async fn near_siblings(backend: &dyn Backend, wanted: &VfsPath) -> Vec<VfsPathBuf> {
    let mut missing = wanted;
    for _ in 0..ABOVE_MAX {
        let Some(directory) = missing.parent() else { break };
        match backend.ls(directory, &LsOptions::new().with_limit(CHILDREN_MAX)).await {
            Ok(listing) => {
                let names = listing.entries.iter().map(|entry| entry.name());
                return nearest(missing.name(), names).into_iter().filter_map(|name| directory.child(name).ok()).collect();
            }
            Err(error) if error.kind() == ErrorKind::NotFound => missing = directory,
            Err(_) => break,
        }
    }
    Vec::new()
}

/// Tries the path below each root directory (`/src/a.rs` as `/workspace/src/a.rs`), and without its first segments.
async fn elsewhere(backend: &dyn Backend, wanted: &VfsPath) -> Vec<VfsPathBuf> {
    let mut places: Vec<VfsPathBuf> = Vec::new();
    if let Ok(root) = backend.ls(VfsPath::ROOT, &LsOptions::new().with_limit(CHILDREN_MAX)).await {
        let directories = root.entries.iter().filter(|entry| entry.is_directory()).take(MOUNTS_MAX);
        places.extend(directories.map(|entry| entry.path.concat(wanted)));
    }
    let first = wanted.ancestors().skip(1).take(STRIPPED_MAX);
    places.extend(first.filter_map(|above| wanted.strip_prefix(above)).map(ToOwned::to_owned));
    let mut found = Vec::new();
    for place in places {
        if found.len() == NAMES_MAX {
            break;
        }
        if backend.stat(&place, &StatOptions::new()).await.is_ok() {
            found.push(place);
        }
    }
    found
}

/// Compares two names in lowercase; 1 means equal.
fn likeness(wanted: &str, name: &str) -> f64 {
    let stem = |name: &str| name.rsplit_once('.').map_or(name, |(stem, _)| stem).to_owned();
    let whole = strsim::normalized_damerau_levenshtein(wanted, name);
    // Related names: `readme` and `readme.md`, `read` and `read_file`, `a.ts` and `a.tsx`.
    let related = (wanted.len() >= 3 && name.starts_with(wanted)) || (stem(wanted).len() >= 3 && stem(wanted) == stem(name));
    if related { whole.max(0.8) } else { whole }
}

#[cfg(test)]
mod tests {
    use super::super::stage::tree;
    use super::*;
    use treehold_tree::layer::{Fault, Layered};

    #[test]
    fn nearest_names_are_ordered_by_similarity() {
        let near = |wanted: &str, names: &[&str]| nearest(wanted, names.iter().copied()).join(" ");
        assert_eq!(near("reedme.md", &["README.md", "src", "readme.txt"]), "README.md readme.txt");
        assert_eq!(near("readme", &["README.md", "main.rs"]), "README.md");
        assert_eq!(near("ofset", &["path", "offset", "limit"]), "offset");
        assert_eq!(near("x", &["y", "zebra"]), "");
        assert_eq!(near("abcd", &["abce", "abcf", "abcg", "abch"]), "abce abcf abcg");
    }

    /// Regression: each ancestor of the path, and the path without it, was looked up.
    #[tokio::test]
    async fn lookups_for_a_deep_missing_path_are_bounded() {
        let files: Vec<(String, &str)> = (0..40).map(|mount| (format!("/mount{mount}/file"), "")).collect();
        let files: Vec<(&str, &str)> = files.iter().map(|(path, content)| (path.as_str(), *content)).collect();
        let backend = Layered::new(Fault::never(), tree(&files).await);
        for depth in [1, 5, 1000] {
            let before = backend.layer().calls();
            let path = VfsPathBuf::parse("/a".repeat(depth)).expect("a legal path");
            with_near_paths(&backend, Error::not_found(&path)).await;
            let lookups = backend.layer().calls() - before;
            assert!(lookups <= 16, "{lookups} at depth {depth}");
        }
        let near = VfsPathBuf::parse("/mount7/fil/a/b").expect("a legal path");
        let message = with_near_paths(&backend, Error::not_found(&near)).await.message().to_owned();
        assert_eq!(message, "`/mount7/fil/a/b` does not exist; did you mean `/mount7/file`?");
    }

    #[tokio::test]
    async fn suggestions_come_from_siblings_ancestors_and_other_mounts() {
        let backend = tree(&[
            ("/workspace/src/main.rs", ""),
            ("/workspace/docs/guide.md", ""),
            ("/memories/AGENTS.md", ""),
            ("/peers/a/notes.md", ""),
            ("/peers/b/notes.md", ""),
        ])
        .await;
        let near = async |path: &str| {
            let path = VfsPathBuf::parse(path).expect("a legal path");
            with_near_paths(&backend, Error::not_found(&path)).await.message().to_owned()
        };
        assert_eq!(near("/src/main.rs").await, "`/src/main.rs` does not exist; did you mean `/workspace/src/main.rs`?");
        assert_eq!(
            near("/workspace/memories/AGENTS.md").await,
            "`/workspace/memories/AGENTS.md` does not exist; did you mean `/memories/AGENTS.md`?"
        );
        assert_eq!(near("/memories/agents.md").await, "`/memories/agents.md` does not exist; did you mean `/memories/AGENTS.md`?");
        assert_eq!(near("/workspaces/docs/guide.md").await, "`/workspaces/docs/guide.md` does not exist; did you mean `/workspace`?");
        assert_eq!(near("/peers/c/notes.md").await, "`/peers/c/notes.md` does not exist");
        assert_eq!(near("/nothing/like/it").await, "`/nothing/like/it` does not exist");
        let other = Error::invalid_argument("x").at(VfsPath::ROOT);
        assert_eq!(with_near_paths(&backend, other).await.message(), "x");
    }
}
