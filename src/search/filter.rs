//! Which directories a search enters and which files count.

use super::glob::{self, Glob, GlobRules};
use crate::error::{Error, Result};
use crate::ops::{GlobOptions, GrepCursor, GrepOptions, PathGuard, SearchScope};
use crate::path::{VfsPath, VfsPathBuf};
use ::ignore::types::{Types, TypesBuilder};
use std::borrow::Cow;
use std::collections::HashSet;

/// How many known types an unknown one is answered with at most.
const TYPES_SUGGESTED: usize = 3;

/// The compiled selection of one search: search root, base, pruned subtrees, hidden names, globs, types, guard and cursor.
///
/// Patterns are matched against the base of the scope followed by the path beneath the search root, so a mount selects as its
/// ancestor would. Hidden names count from the caller's search root down, the base included. What lies before the cursor of the
/// options is neither entered nor selected, so a walk that asks goes on where the last one was cut.
///
/// Ignore files are the walker's to keep ([`IgnoreFiles`](super::IgnoreFiles)), as only it can read them.
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
    /// Everything selected lies at or beneath it; none when nothing can be selected.
    bound: Option<VfsPathBuf>,
}

/// What is selected before exclusions.
#[derive(Debug)]
enum Include {
    /// All names, or all but those that start with a dot.
    All { hidden: bool },
    /// What one of them matches.
    Globs(Vec<Glob>),
}

/// Which kinds a selection holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kinds {
    Files,
    FilesAndDirectories,
    Directories,
}

#[derive(Debug)]
struct Cursor {
    path: VfsPathBuf,
    /// Whether the path itself is still to come.
    inclusive: bool,
}

impl PathFilter {
    /// Compiles the selection of a glob. `root` is the path searched, within this tree.
    ///
    /// A pattern that ends with a `/` selects directories only, whether or not the options ask for directories.
    ///
    /// # Errors
    /// `invalid_argument` for a malformed pattern.
    pub fn for_glob(root: &VfsPath, options: &GlobOptions) -> Result<Self> {
        let rules = GlobRules { case_insensitive: options.case_insensitive, sees_hidden: options.scope.hidden, takes_beneath: false };
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
    /// An include that ends with a `/` takes all files beneath that directory; an exclude that ends with one concerns
    /// directories only. An include that starts with `!` is an exclude, as with ripgrep, where the last glob that meets a file
    /// decides: here an exclude does; `\!` is the character. A hidden name is
    /// searched when an include names it by a segment that starts with a dot itself.
    ///
    /// # Errors
    /// `invalid_argument` for a malformed glob or an unknown type.
    pub fn for_grep(root: &VfsPath, options: &GrepOptions) -> Result<Self> {
        let hidden = options.scope.hidden;
        let include = GlobRules { case_insensitive: false, sees_hidden: hidden, takes_beneath: true };
        let (negated, positive): (Vec<&str>, Vec<&str>) =
            options.include.iter().map(|glob| &**glob).partition(|glob| glob.starts_with('!'));
        let exclude = negated.iter().map(|glob| &glob[1..]).chain(options.exclude.iter().map(|glob| &**glob));
        let exclude = exclude.map(|glob| Glob::parse(glob, false)).collect::<Result<Vec<_>>>()?;
        let include = positive.into_iter().map(|glob| Glob::compile(glob, include)).collect::<Result<Vec<_>>>()?;
        let include = if include.is_empty() { Include::All { hidden } } else { Include::Globs(include) };
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

    /// Returns the deepest path of this tree (at or beneath the search root) that everything selected lies at or beneath; none when
    /// nothing in this tree can be selected (the literal part of the pattern leads elsewhere).
    ///
    /// Whether something is there is for the tree to see. A walk may start at it and need not ask the filter for the directories
    /// above, but the ignore files there still count.
    pub fn bound(&self) -> Option<VfsPathBuf> {
        self.bound.clone()
    }

    /// Tells whether a directory strictly beneath the search root is entered, given that its parent was. Nothing is when there is no
    /// [bound](PathFilter::bound).
    pub fn enters(&self, directory: &VfsPath) -> bool {
        let Some(relative) = self.relative(directory) else { return false };
        self.bound.is_some()
            && !self.prune.contains(directory)
            && self.may_hold(&relative)
            && !self.exclude.iter().any(|glob| glob.is_match(&relative))
            && self.cursor.as_ref().is_none_or(|cursor| *directory > *cursor.path || cursor.path.starts_with(directory))
            && self.guard.as_ref().is_none_or(|guard| guard.admits(directory, true))
    }

    /// Tells whether a file, link or directory strictly beneath the search root is selected, given that its parent was entered.
    /// `is_directory` matters for `GlobOptions::directories`.
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

    /// Tells whether every file in a directory that was entered, or that is the search root, is selected but for those whose names
    /// start with a dot, which may be. So a walk that meets many in one directory need not ask for each.
    pub(crate) fn takes_children(&self, directory: &VfsPath) -> bool {
        let is_hidden = || self.relative(directory).is_some_and(|relative| glob::has_hidden(&relative));
        let takes_all = match self.include {
            Include::All { hidden } => hidden || !is_hidden(),
            Include::Globs(_) => false,
        };
        let has_rules = !self.prune.is_empty() || self.guard.is_some() || !self.exclude.is_empty() || self.types.is_some();
        takes_all && !has_rules && self.cursor.is_none() && self.kinds != Kinds::Directories && self.bound.is_some()
    }

    /// Tells whether ignore files count.
    pub fn respects_ignore_files(&self) -> bool {
        !self.ignored
    }

    /// Returns what patterns are matched against: the base followed by the path beneath the search root. None for what does not
    /// lie strictly beneath it.
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
            Include::All { hidden } => *hidden || !glob::has_hidden(relative),
            Include::Globs(globs) => globs.iter().any(|glob| glob.is_match(relative)),
        }
    }

    /// Tells whether something beneath a directory may be included.
    fn may_hold(&self, relative: &str) -> bool {
        match &self.include {
            Include::All { hidden } => *hidden || !glob::has_hidden(relative),
            Include::Globs(globs) => globs.iter().any(|glob| glob.can_match_beneath(relative)),
        }
    }

    fn find_bound(&self) -> Option<VfsPathBuf> {
        if !self.reaches_base() {
            return None;
        }
        let literal = match &self.include {
            Include::All { .. } => Cow::Borrowed(""),
            Include::Globs(globs) => Cow::Owned(shared_directories(globs.iter().map(Glob::literal_prefix))),
        };
        // A segment that is no legal name is met by nothing.
        let literal = VfsPathBuf::parse(format!("/{literal}")).ok()?;
        let bound = match literal.strip_prefix(&self.base) {
            Some(rest) => self.root.concat(rest),
            // The base is deeper than what the patterns say; that they reach it was seen.
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

    /// Tells whether a walk from the caller's search root would enter every directory of the base.
    fn reaches_base(&self) -> bool {
        if self.base.is_root() {
            return true;
        }
        let excludes = |above: &VfsPath| !above.is_root() && self.exclude.iter().any(|glob| glob.is_match(above.relative()));
        self.may_hold(self.base.relative()) && !self.base.ancestors().chain([&*self.base]).any(excludes)
    }
}

/// Returns the directories that all of some relative paths start with, joined.
fn shared_directories<'a>(mut prefixes: impl Iterator<Item = &'a str>) -> String {
    let mut shared: Vec<&str> = prefixes.next().unwrap_or_default().split('/').collect();
    for prefix in prefixes {
        let count = shared.iter().zip(prefix.split('/')).take_while(|(one, other)| **one == *other).count();
        shared.truncate(count);
    }
    shared.join("/")
}

/// Compiles the file types of those names.
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

/// Names the types that were likely meant: those of that extension first, then those of a like name.
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
        format!("near ones are {}", near.join(", "))
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
    fn bounds_the_walk() {
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
    fn a_mount_is_matched_as_its_ancestor_sees_it() {
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
    fn directories_are_selected_when_asked() {
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
    fn includes_excludes_and_types_meet() {
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
    fn hidden_names_are_searched_when_named() {
        let plain = of_grep(&GrepOptions::new("x"));
        assert!(!plain.selects(&path("/.env"), false) && !plain.enters(&path("/.git")) && plain.selects(&path("/a"), false));
        let named = of_grep(&GrepOptions::new("x").with_include(".github/**"));
        assert!(named.selects(&path("/.github/a"), false) && !named.enters(&path("/.git")) && !named.selects(&path("/.github/.a"), false));
        let all = of_grep(&GrepOptions::new("x").with_hidden(true));
        assert!(all.selects(&path("/.env"), false) && all.enters(&path("/.git")));
    }

    #[test]
    fn an_exclude_reaches_over_the_base() {
        let mut options = GrepOptions::new("x").with_exclude("mem*/");
        options.scope.base = path("/memories");
        assert_eq!(of_grep(&options).bound(), None);
        options.exclude = vec!["/notes/".to_owned()];
        assert_eq!(of_grep(&options).bound(), Some(path("/")));
    }

    #[test]
    fn what_a_mount_or_a_guard_hides_is_not_met() {
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
    fn what_lies_before_the_cursor_is_passed() {
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
    fn unknown_types_are_answered_with_near_ones() {
        let message =
            |name: &str| PathFilter::for_grep(VfsPath::ROOT, &GrepOptions::new("x").with_type(name)).expect_err(name).message().to_owned();
        assert!(message("rs").contains("`rust`"), "{}", message("rs"));
        assert!(message("pyhton").contains("`python`"), "{}", message("pyhton"));
        assert!(message("qqqqqq").contains("glob"), "{}", message("qqqqqq"));
    }
}
