//! Which directories a search enters, and which files it selects.

use super::glob::{Glob, GlobRules, Hidden};
use crate::error::{Error, Result};
use crate::ops::{GlobOptions, GrepCursor, GrepOptions, PathGuard, SearchScope};
use crate::path::{VfsPath, VfsPathBuf};
use ::ignore::types::{Types, TypesBuilder};
use std::borrow::Cow;
use std::collections::HashSet;

/// The most types suggested in place of an unknown one.
const TYPES_SUGGESTED: usize = 3;

/// The compiled selection of one search: root, base, pruned subtrees, hidden names, globs, types, guard and cursor.
///
/// Patterns match the base of the scope followed by the path beneath the search root, so a mount selects what a search from above
/// the mount would. Whether names are hidden is judged from the caller's search root down, including the base. Nothing before the
/// cursor of the options is entered or selected, so a walk continues where the last one ended.
///
/// The walker keeps the ignore files ([`IgnoreFiles`](super::IgnoreFiles)), as only it can read them.
#[derive(Debug)]
pub struct PathFilter {
    root: VfsPathBuf,
    base: VfsPathBuf,
    prune: HashSet<VfsPathBuf>,
    guard: Option<PathGuard>,
    include: Include,
    exclude: Vec<Glob>,
    types: Option<Types>,
    kinds: Kinds,
    cursor: Option<Cursor>,
    ignored: bool,
    /// The directory or file that everything selected is at or beneath; `None` if nothing can be selected.
    bound: Option<VfsPathBuf>,
}

/// What is selected, before exclusions.
#[derive(Debug)]
enum Include {
    /// Everything, or everything except names that start with a dot.
    All(Hidden),
    /// Whatever one of these globs matches.
    Globs(Vec<Glob>),
}

/// Which kinds of nodes are selected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kinds {
    Files,
    FilesAndDirectories,
    Directories,
}

#[derive(Debug)]
struct Cursor {
    path: VfsPathBuf,
    /// Whether the path itself is still to be returned.
    inclusive: bool,
}

impl PathFilter {
    /// Compiles the selection of a glob. `root` is the searched path, within this tree.
    ///
    /// A pattern that ends with `/` selects only directories, whether or not the options ask for directories.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) for a malformed pattern.
    pub fn for_glob(root: &VfsPath, options: &GlobOptions) -> Result<Self> {
        let rules = GlobRules { case_insensitive: options.case_insensitive, hidden: Hidden::of(&options.scope), takes_beneath: false };
        let pattern = Glob::compile(&options.pattern, rules)?;
        let kinds = match (pattern.directories_only(), options.directories) {
            (true, _) => Kinds::Directories,
            (false, true) => Kinds::FilesAndDirectories,
            (false, false) => Kinds::Files,
        };
        let cursor = options.start_after.clone().map(|path| Cursor { path, inclusive: false });
        Ok(Self::new(root, &options.scope, Include::Globs(vec![pattern]), Vec::new(), None, kinds, cursor))
    }

    /// Compiles the selection of a grep: includes, excludes and types.
    ///
    /// An include that ends with `/` selects all files beneath that directory; an exclude that ends with `/` applies only to
    /// directories. An include that starts with `!` is an exclude, as in ripgrep, except that excludes always win here while in
    /// ripgrep the last matching glob does. `\!` matches the character itself. A hidden name is searched if a segment of an
    /// include that itself starts with a dot matches it.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) for a malformed glob or an unknown type.
    pub fn for_grep(root: &VfsPath, options: &GrepOptions) -> Result<Self> {
        let hidden = Hidden::of(&options.scope);
        let include = GlobRules { case_insensitive: false, hidden, takes_beneath: true };
        let (negated, positive): (Vec<&str>, Vec<&str>) =
            options.include.iter().map(|glob| &**glob).partition(|glob| glob.starts_with('!'));
        let exclude = negated.iter().map(|glob| &glob[1..]).chain(options.exclude.iter().map(|glob| &**glob));
        let exclude = exclude.map(|glob| Glob::parse(glob, false)).collect::<Result<Vec<_>>>()?;
        let include = positive.into_iter().map(|glob| Glob::compile(glob, include)).collect::<Result<Vec<_>>>()?;
        let include = if include.is_empty() { Include::All(hidden) } else { Include::Globs(include) };
        let types = (!options.types.is_empty()).then(|| select_types(&options.types)).transpose()?;
        let cursor =
            options.start_after.as_ref().map(|cursor| Cursor { path: cursor.path.clone(), inclusive: cursor.line != GrepCursor::END });
        Ok(Self::new(root, &options.scope, include, exclude, types, Kinds::Files, cursor))
    }

    fn new(
        root: &VfsPath,
        scope: &SearchScope,
        include: Include,
        exclude: Vec<Glob>,
        types: Option<Types>,
        kinds: Kinds,
        cursor: Option<Cursor>,
    ) -> Self {
        let mut filter = Self {
            root: root.to_owned(),
            base: scope.base.clone(),
            prune: scope.prune.iter().cloned().collect(),
            guard: scope.guard.clone(),
            include,
            exclude,
            types,
            kinds,
            cursor,
            ignored: scope.ignored,
            bound: None,
        };
        filter.bound = filter.find_bound();
        filter
    }

    /// Returns the deepest path at or beneath the search root that contains everything selected, or `None` if nothing in this
    /// tree can be selected because the literal part of the pattern leads elsewhere.
    ///
    /// The path may not exist. A walk may start there without asking the filter about the directories above, but must still apply
    /// the ignore files in them.
    pub fn bound(&self) -> Option<VfsPathBuf> {
        self.bound.clone()
    }

    /// Returns whether to enter a directory strictly beneath the search root, given that its parent was entered. Always false if
    /// there is no [bound](PathFilter::bound).
    pub fn enters(&self, directory: &VfsPath) -> bool {
        let Some(relative) = self.relative(directory) else { return false };
        self.bound.is_some()
            && !self.prune.contains(directory)
            && self.may_hold(&relative)
            && !self.exclude.iter().any(|glob| glob.is_match(&relative))
            && self.cursor.as_ref().is_none_or(|cursor| *directory > *cursor.path || cursor.path.starts_with(directory))
            && self.guard.as_ref().is_none_or(|guard| guard.admits(directory, true))
    }

    /// Returns whether a file, link or directory strictly beneath the search root is selected, given that its parent was entered.
    /// `is_directory` matters because a selection may be of files only, or of directories only.
    pub fn selects(&self, path: &VfsPath, is_directory: bool) -> bool {
        match self.kinds {
            Kinds::Files if is_directory => return false,
            Kinds::Directories if !is_directory => return false,
            _ => {}
        }
        let Some(relative) = self.relative(path) else { return false };
        self.bound.is_some()
            && self.matches(&relative)
            && !self.prune.contains(path)
            && !self.exclude.iter().any(|glob| (is_directory || !glob.directories_only()) && glob.is_match(&relative))
            && self.types.as_ref().is_none_or(|types| types.matched(path.name(), false).is_whitelist())
            && self.cursor.as_ref().is_none_or(|cursor| *path > *cursor.path || (cursor.inclusive && *path == *cursor.path))
            && self.guard.as_ref().is_none_or(|guard| guard.admits(path, is_directory))
    }

    /// Returns whether every file in `directory` is selected, except possibly those whose names start with a dot. `directory`
    /// must be the search root or have been entered. If true, a walk need not ask for each file.
    pub fn takes_children(&self, directory: &VfsPath) -> bool {
        let takes_all = match self.include {
            Include::All(hidden) => self.relative(directory).is_none_or(|relative| hidden.enters(&relative)),
            Include::Globs(_) => false,
        };
        let has_rules = !self.prune.is_empty() || self.guard.is_some() || !self.exclude.is_empty() || self.types.is_some();
        takes_all && !has_rules && self.cursor.is_none() && self.kinds != Kinds::Directories && self.bound.is_some()
    }

    /// Returns whether to apply ignore files.
    pub fn respects_ignore_files(&self) -> bool {
        !self.ignored
    }

    /// Returns the path that patterns match: the base followed by the path beneath the search root. Returns `None` for paths not
    /// strictly beneath the root.
    fn relative<'a>(&self, path: &'a VfsPath) -> Option<Cow<'a, str>> {
        let beneath = path.strip_prefix(&self.root)?;
        if beneath.is_root() {
            None
        } else if self.base.is_root() {
            Some(Cow::Borrowed(beneath.relative()))
        } else {
            Some(Cow::Owned([self.base.relative(), beneath.as_str()].concat()))
        }
    }

    fn matches(&self, relative: &str) -> bool {
        match &self.include {
            Include::All(hidden) => hidden.selects(relative),
            Include::Globs(globs) => globs.iter().any(|glob| glob.is_match(relative)),
        }
    }

    /// Returns whether something beneath a directory may be included.
    fn may_hold(&self, relative: &str) -> bool {
        match &self.include {
            Include::All(hidden) => hidden.enters(relative),
            Include::Globs(globs) => globs.iter().any(|glob| glob.can_match_beneath(relative)),
        }
    }

    fn find_bound(&self) -> Option<VfsPathBuf> {
        if !self.reaches_base() {
            return None;
        }
        let literal = match &self.include {
            Include::All(_) => Cow::Borrowed(""),
            Include::Globs(globs) => Cow::Owned(shared_directories(globs.iter().map(Glob::literal_prefix))),
        };
        // A segment that is not a legal name cannot match anything.
        let literal = VfsPathBuf::parse(format!("/{literal}")).ok()?;
        let bound = match literal.strip_prefix(&self.base) {
            Some(rest) => self.root.concat(rest),
            // The base is deeper than the literal part of the patterns, and `reaches_base` showed that they reach it.
            None => self.root.clone(),
        };
        let refused = |above: &VfsPath| {
            let excluded = |relative: Cow<'_, str>| self.exclude.iter().any(|glob| glob.is_match(&relative));
            self.prune.contains(above)
                || self
                    .relative(above)
                    .is_some_and(|relative| excluded(relative) || self.guard.as_ref().is_some_and(|guard| !guard.admits(above, true)))
        };
        let reached = !bound.ancestors().chain([&*bound]).any(refused);
        reached.then_some(bound)
    }

    /// Returns whether a walk from the caller's search root would enter every directory of the base.
    fn reaches_base(&self) -> bool {
        if self.base.is_root() {
            return true;
        }
        let excludes = |above: &VfsPath| !above.is_root() && self.exclude.iter().any(|glob| glob.is_match(above.relative()));
        self.may_hold(self.base.relative()) && !self.base.ancestors().chain([&*self.base]).any(excludes)
    }
}

/// Returns the longest common prefix of relative paths, in whole segments.
fn shared_directories<'a>(mut prefixes: impl Iterator<Item = &'a str>) -> String {
    let mut shared: Vec<&str> = prefixes.next().unwrap_or_default().split('/').collect();
    for prefix in prefixes {
        let count = shared.iter().zip(prefix.split('/')).take_while(|(one, other)| **one == *other).count();
        shared.truncate(count);
    }
    shared.join("/")
}

/// Compiles the named file types.
fn select_types(names: &[String]) -> Result<Types> {
    let mut builder = TypesBuilder::new();
    builder.add_defaults();
    let known = builder.definitions();
    for name in names {
        if name != "all" && known.iter().all(|definition| definition.name() != name) {
            return Err(unknown_type(name, &known));
        }
        builder.select(name);
    }
    builder.build().map_err(|error| Error::invalid_argument("the file types cannot be combined; name fewer").with_source(error))
}

/// Suggests types that were probably meant: first those with that extension, then those with a similar name.
fn unknown_type(name: &str, known: &[::ignore::types::FileTypeDef]) -> Error {
    let extension = format!("*.{name}");
    let mut near: Vec<(f64, &str)> = known
        .iter()
        .map(|definition| {
            let owns = definition.globs().contains(&extension);
            (if owns { 2.0 } else { strsim::jaro_winkler(name, definition.name()) }, definition.name())
        })
        .filter(|(likeness, _)| *likeness >= 0.8)
        .collect();
    near.sort_by(|one, other| other.0.total_cmp(&one.0).then(one.1.cmp(other.1)));
    let near: Vec<String> = near.iter().take(TYPES_SUGGESTED).map(|(_, name)| format!("`{name}`")).collect();
    let next = if near.is_empty() {
        "include files by a glob such as `*.rs` instead".to_owned()
    } else {
        format!("similar types are {}", near.join(", "))
    };
    Error::invalid_argument(format!("`{name}` is not a known file type; {next}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> VfsPathBuf {
        VfsPathBuf::parse(text).expect("a legal path")
    }

    fn of_glob(root: &str, base: &str, pattern: &str) -> PathFilter {
        let mut options = GlobOptions::new(pattern);
        options.scope.base = path(base);
        PathFilter::for_glob(&path(root), &options).expect("a legal pattern")
    }

    #[test]
    fn bound_is_deepest_directory_of_literal_prefix() {
        for (root, base, pattern, bound) in [
            ("/", "/", "*.md", Some("/")),
            ("/", "/", "src/lib/*.rs", Some("/src/lib")),
            ("/src", "/", "lib/*.rs", Some("/src/lib")),
            ("/", "/memories", "memories/notes/*.md", Some("/notes")),
            ("/x", "/memories", "/memories/notes/*.md", Some("/x/notes")),
            ("/", "/memories", "memories/*.md", Some("/")),
            ("/", "/memories", "memories", Some("/")),
            ("/", "/memories", "/memories", None),
            ("/", "/memories", "src/*.rs", None),
            ("/", "/memories", "*.rs", Some("/")),
            ("/", "/memories", "/*.rs", None),
            ("/", "/memories", "*/n.md", Some("/")),
            ("/", "/memories", "m*/x", Some("/")),
            ("/", "/memories", "n*/x", None),
            ("/", "/memories", "{memories,notes}/*.md", Some("/")),
            ("/", "/memories", "**/n.md", Some("/")),
            ("/", "/a/b", "a/b/c/d", Some("/c")),
            ("/", "/a/b", "a/**", Some("/")),
            ("/", "/a/b", "a/*.md", None),
            ("/", "/.agents", "**/*.md", None),
            ("/", "/.agents", ".agents/*.md", Some("/")),
        ] {
            assert_eq!(of_glob(root, base, pattern).bound(), bound.map(path), "{root} {base} {pattern}");
        }
    }

    #[test]
    fn patterns_match_base_and_path_beneath_root() {
        let filter = of_glob("/", "/memories", "memories/*.md");
        assert!(filter.selects(&path("/a.md"), false));
        assert!(!filter.selects(&path("/x/a.md"), false));
        assert!(!filter.enters(&path("/x")));
        let filter = of_glob("/sub", "/", "/*.md");
        assert!(filter.selects(&path("/sub/a.md"), false));
        assert!(!filter.selects(&path("/a.md"), false));
        assert!(!filter.selects(&path("/sub"), true));
    }

    #[test]
    fn directories_are_selected_only_on_request() {
        let select = |pattern: &str, directories| {
            let filter =
                PathFilter::for_glob(VfsPath::ROOT, &GlobOptions::new(pattern).with_directories(directories)).expect("a legal pattern");
            (filter.selects(&path("/a"), false), filter.selects(&path("/a"), true))
        };
        assert_eq!(select("a", false), (true, false));
        assert_eq!(select("a", true), (true, true));
        assert_eq!(select("a/", false), (false, true));
    }

    fn of_grep(options: &GrepOptions) -> PathFilter {
        PathFilter::for_grep(VfsPath::ROOT, options).expect("legal options")
    }

    #[test]
    fn includes_excludes_and_types_combine() {
        let options = GrepOptions::new("x").with_include("src/").with_include("*.md").with_exclude("target/").with_exclude("/src/gen*");
        let filter = of_grep(&options);
        for (file, selected) in [
            ("/src/a/b.rs", true),
            ("/a.md", true),
            ("/x/src/a", true),
            ("/a.rs", false),
            ("/src/gen.rs", false),
            ("/x/src/gen.rs", true),
            ("/src/target", true),
        ] {
            assert_eq!(filter.selects(&path(file), false), selected, "{file}");
        }
        assert!(!filter.enters(&path("/src/target")));
        assert!(!filter.enters(&path("/src/generated")));
        assert!(filter.enters(&path("/x")));
        let filter = of_grep(&GrepOptions::new("x").with_include("!*.md").with_include(r"\!a"));
        assert!(filter.selects(&path("/!a"), false) && !filter.selects(&path("/a"), false));
        let filter = of_grep(&GrepOptions::new("x").with_include("!*.md"));
        assert!(filter.selects(&path("/a"), false) && !filter.selects(&path("/x/a.md"), false));
        let filter = of_grep(&GrepOptions::new("x").with_type("rust").with_type("md"));
        assert!(filter.selects(&path("/a.rs"), false) && filter.selects(&path("/x/b.md"), false) && !filter.selects(&path("/c.py"), false));
    }

    #[test]
    fn hidden_names_are_searched_only_if_named() {
        let plain = of_grep(&GrepOptions::new("x"));
        assert!(!plain.selects(&path("/.env"), false) && !plain.enters(&path("/.git")) && plain.selects(&path("/a"), false));
        let named = of_grep(&GrepOptions::new("x").with_include(".github/**"));
        assert!(named.selects(&path("/.github/a"), false) && !named.enters(&path("/.git")) && !named.selects(&path("/.github/.a"), false));
        let all = of_grep(&GrepOptions::new("x").with_hidden(true));
        assert!(all.selects(&path("/.env"), false) && all.enters(&path("/.git")));
        let entered = of_grep(&GrepOptions::new("x").with_hidden_directories(true));
        assert!(!entered.selects(&path("/.env"), false) && entered.enters(&path("/.git")) && entered.selects(&path("/.git/a"), false));
        assert!(!entered.selects(&path("/.git/.a"), false) && entered.takes_children(&path("/.git")));
    }

    #[test]
    fn exclude_of_base_directory_excludes_mount() {
        let mut options = GrepOptions::new("x").with_exclude("mem*/");
        options.scope.base = path("/memories");
        assert_eq!(of_grep(&options).bound(), None);
        options.exclude = vec!["/notes/".to_owned()];
        assert_eq!(of_grep(&options).bound(), Some(path("/")));
    }

    #[test]
    fn pruned_and_guarded_paths_are_not_selected() {
        let mut options = GlobOptions::new("**").with_directories(true);
        options.scope.prune = vec![path("/m"), path("/a/one.md")];
        options.scope.guard = Some(PathGuard::new(|path, _| path.name() != "secret"));
        let filter = PathFilter::for_glob(VfsPath::ROOT, &options).expect("a legal pattern");
        assert!(!filter.enters(&path("/m")) && !filter.selects(&path("/m"), true) && !filter.selects(&path("/a/one.md"), false));
        assert!(!filter.enters(&path("/secret")) && !filter.selects(&path("/a/secret"), false));
        assert!(filter.enters(&path("/mm")) && filter.selects(&path("/mm"), true));
        for pattern in ["m/sub/*.md", "m/*", "x/secret/**"] {
            options.pattern = pattern.to_owned();
            assert_eq!(PathFilter::for_glob(VfsPath::ROOT, &options).expect("a legal pattern").bound(), None, "{pattern}");
        }
    }

    #[test]
    fn paths_before_cursor_are_skipped() {
        let filter = PathFilter::for_glob(VfsPath::ROOT, &GlobOptions::new("**").with_directories(true).with_start_after(path("/b/c")))
            .expect("a legal pattern");
        assert!(!filter.enters(&path("/a")) && filter.enters(&path("/b")) && filter.enters(&path("/b/c")) && filter.enters(&path("/b-")));
        assert!(!filter.selects(&path("/b/c"), true) && filter.selects(&path("/b/c/d"), false) && !filter.selects(&path("/b"), true));
        let at = |line| of_grep(&GrepOptions::new("x").with_start_after(GrepCursor { path: path("/b"), line }));
        assert!(
            at(3).selects(&path("/b"), false) && !at(GrepCursor::END).selects(&path("/b"), false) && !at(3).selects(&path("/a"), false)
        );
    }

    #[test]
    fn unknown_type_error_suggests_similar_types() {
        let message =
            |name: &str| PathFilter::for_grep(VfsPath::ROOT, &GrepOptions::new("x").with_type(name)).expect_err(name).message().to_owned();
        assert!(message("rs").contains("`rust`"), "{}", message("rs"));
        assert!(message("pyhton").contains("`python`"), "{}", message("pyhton"));
        assert!(message("qqqqqq").contains("glob"), "{}", message("qqqqqq"));
    }
}
