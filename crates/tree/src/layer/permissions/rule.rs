//! Rules and their evaluation for a path: pure.

use std::borrow::Cow;
use std::fmt;
use std::ops::BitOr;
use treehold_core::error::{Error, Result};
use treehold_core::ops::OpKind;
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::search::Glob;

/// The decision of a rule about the operations and paths that it covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Effect {
    /// They are allowed.
    #[default]
    Allow,
    /// They are refused. A path whose `stat` is denied is hidden.
    Deny,
    /// They are allowed if an [`Approver`](super::Approver) grants them.
    Ask,
}

/// A set of operations.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Operations(u32);

impl Operations {
    /// All reading operations: `stat`, `read`, `ls`, `glob`, `grep` and `search`.
    pub const READ: Self = Self::of(&[OpKind::Stat, OpKind::Read, OpKind::Ls, OpKind::Glob, OpKind::Grep, OpKind::Search]);

    /// All changing operations.
    pub const WRITE: Self = Self::of(&[
        OpKind::Write,
        OpKind::Append,
        OpKind::Edit,
        OpKind::CreateDir,
        OpKind::Delete,
        OpKind::Rename,
        OpKind::Copy,
        OpKind::Apply,
    ]);

    /// All operations.
    pub const ALL: Self = Self(Self::READ.0 | Self::WRITE.0);

    /// Creates a set of single operations.
    pub const fn of(kinds: &[OpKind]) -> Self {
        let mut bits = 0;
        let mut index = 0;
        while index < kinds.len() {
            bits |= 1 << kinds[index] as u32;
            index += 1;
        }
        Self(bits)
    }

    /// Returns the set with a configuration name: `read`, `write`, `all`, or the name of a single operation other than these two groups.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for any other name.
    pub fn named(name: &str) -> Result<Self> {
        match name {
            "read" => return Ok(Self::READ),
            "write" => return Ok(Self::WRITE),
            "all" => return Ok(Self::ALL),
            _ => {}
        }
        let single = Self::ALL.kinds().find(|kind| kind.name() == name && *kind != OpKind::Apply);
        single.map(|kind| Self::of(&[kind])).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.kinds().filter(|kind| *kind != OpKind::Apply).map(OpKind::name).collect();
            Error::invalid_argument(format!(
                "`{name}` is not an operation of a rule; name `read`, `write`, `all` or one of {}",
                names.join(", ")
            ))
        })
    }

    /// Returns whether an operation is in the set.
    pub const fn contains(self, kind: OpKind) -> bool {
        self.0 & (1 << kind as u32) != 0
    }

    fn kinds(self) -> impl Iterator<Item = OpKind> {
        OpKind::ALL.into_iter().filter(move |kind| self.contains(*kind))
    }
}

impl BitOr for Operations {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl From<OpKind> for Operations {
    fn from(kind: OpKind) -> Self {
        Self::of(&[kind])
    }
}

impl fmt::Debug for Operations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.kinds()).finish()
    }
}

/// Allows, denies or asks about some operations on some paths and everything beneath them.
#[derive(Debug, Clone)]
pub struct Rule {
    effect: Effect,
    operations: Operations,
    patterns: Vec<String>,
    paths: Vec<Paths>,
}

/// The paths of one pattern.
#[derive(Debug, Clone)]
enum Paths {
    All,
    Matching {
        glob: Glob,
        /// The same pattern followed by `/**`, so that one match covers all directories above a path.
        beneath: Glob,
    },
}

impl Rule {
    /// Creates a rule. The patterns are globs anchored at the root of the tree, such as `/secrets`, `/notes/*.md` or `/**/.env`; they match
    /// names that start with a dot like any other. A rule that matches a directory covers everything beneath it.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for an empty list, a malformed pattern, or one that does not start with `/`.
    pub fn new(effect: Effect, operations: impl Into<Operations>, patterns: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self> {
        let patterns: Vec<String> = patterns.into_iter().map(|pattern| pattern.as_ref().to_owned()).collect();
        if patterns.is_empty() {
            return Err(Error::invalid_argument("a rule names no path; name at least one, such as `/**`"));
        }
        let paths = Paths::parse_all(&patterns, false)?;
        Ok(Self { effect, operations: operations.into(), patterns, paths })
    }

    /// Ignores case, for hosts with case-insensitive file names, where `/SECRETS` is `/secrets`.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for a pattern that becomes too large.
    pub fn ignoring_case(self) -> Result<Self> {
        Ok(Self { paths: Paths::parse_all(&self.patterns, true)?, ..self })
    }

    /// Creates a rule that allows.
    ///
    /// # Errors
    /// Those of [`Rule::new`].
    pub fn allow(operations: impl Into<Operations>, patterns: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self> {
        Self::new(Effect::Allow, operations, patterns)
    }

    /// Creates a rule that allows operations at some paths, taken literally and not as patterns, and everything beneath them; without
    /// paths, everywhere. With [`Effect::Deny`] as the default it restricts a tree to these paths.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for paths whose pattern is too large.
    pub fn within(operations: impl Into<Operations>, paths: &[VfsPathBuf]) -> Result<Self> {
        let patterns: Vec<String> = paths.iter().map(|path| literal(path)).collect();
        let everywhere = ["/".to_owned()];
        Self::allow(operations, if patterns.is_empty() { &everywhere[..] } else { &patterns })
    }

    /// Creates a rule that denies.
    ///
    /// # Errors
    /// Those of [`Rule::new`].
    pub fn deny(operations: impl Into<Operations>, patterns: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self> {
        Self::new(Effect::Deny, operations, patterns)
    }

    /// Creates a rule that asks.
    ///
    /// # Errors
    /// Those of [`Rule::new`].
    pub fn ask(operations: impl Into<Operations>, patterns: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self> {
        Self::new(Effect::Ask, operations, patterns)
    }

    fn covers(&self, path: &VfsPath) -> bool {
        self.paths.iter().any(|paths| paths.cover(path))
    }

    fn can_cover_beneath(&self, path: &VfsPath) -> bool {
        self.paths.iter().any(|paths| paths.can_cover_beneath(path))
    }
}

impl Paths {
    fn parse_all(patterns: &[String], case_insensitive: bool) -> Result<Vec<Self>> {
        patterns.iter().map(|pattern| Self::parse(pattern, case_insensitive)).collect()
    }

    fn parse(pattern: &str, case_insensitive: bool) -> Result<Self> {
        if !pattern.starts_with('/') {
            return Err(Error::invalid_argument(format!(
                "the pattern `{pattern}` of a rule does not start with `/`; write `/{pattern}`, or `/**/{pattern}` for any depth"
            )));
        }
        match pattern.trim_end_matches('/') {
            "" => Ok(Self::All),
            pattern => Ok(Self::Matching {
                glob: Glob::parse(pattern, case_insensitive)?,
                beneath: Glob::parse(&format!("{pattern}/**"), case_insensitive)?,
            }),
        }
    }

    /// Returns whether the pattern matches a path or a directory above it.
    fn cover(&self, path: &VfsPath) -> bool {
        match self {
            Self::All => true,
            Self::Matching { .. } if path.is_root() => false,
            Self::Matching { glob, beneath } => glob.is_match(path.relative()) || beneath.is_match(path.relative()),
        }
    }

    fn can_cover_beneath(&self, path: &VfsPath) -> bool {
        match self {
            Self::All => true,
            Self::Matching { glob, .. } => glob.can_match_beneath(path.relative()),
        }
    }
}

/// Returns a pattern that matches exactly one literal path and everything beneath it.
fn literal(path: &VfsPath) -> String {
    let mut pattern = String::with_capacity(path.as_str().len());
    for character in path.as_str().chars() {
        if matches!(character, '*' | '?' | '[' | ']' | '{' | '}' | '\\' | '!') {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern
}

/// Rules in order: the first that covers an operation on a path decides.
#[derive(Debug)]
pub(super) struct Policy {
    pub(super) rules: Vec<Rule>,
    /// The effect if no rule decides.
    pub(super) default: Effect,
    /// Pairs of a directory that shows historical content and the directory of the live content: both must allow an operation.
    pub(super) past: Vec<(VfsPathBuf, VfsPathBuf)>,
}

impl Policy {
    fn about(&self, kind: OpKind) -> impl Iterator<Item = &Rule> {
        self.rules.iter().filter(move |rule| rule.operations.contains(kind))
    }

    /// Returns a path, and the live paths whose history it shows.
    fn ways<'p>(&'p self, path: &'p VfsPath) -> impl Iterator<Item = Cow<'p, VfsPath>> {
        let were = self.past.iter().filter_map(|(past, now)| Some(Cow::Owned(now.concat(path.strip_prefix(past)?))));
        std::iter::once(Cow::Borrowed(path)).chain(were)
    }

    /// Returns the effect for an operation on a path.
    pub(super) fn decide(&self, kind: OpKind, path: &VfsPath) -> Effect {
        let strict = |effect: &Effect| match effect {
            Effect::Allow => 0,
            Effect::Ask => 1,
            Effect::Deny => 2,
        };
        self.ways(path).map(|path| self.decide_here(kind, &path)).max_by_key(strict).unwrap_or(self.default)
    }

    fn decide_here(&self, kind: OpKind, path: &VfsPath) -> Effect {
        self.about(kind).find(|rule| rule.covers(path)).map_or(self.default, |rule| rule.effect)
    }

    /// Returns the number, from 1, of the rule that decides an operation on a path, and its matching pattern; `None` if the default
    /// decides.
    pub(super) fn decided_by(&self, kind: OpKind, path: &VfsPath) -> Option<(usize, &str)> {
        let effect = self.decide(kind, path);
        let path = self.ways(path).find(|path| self.decide_here(kind, path) == effect)?;
        let path = &*path;
        let (index, rule) = self.rules.iter().enumerate().find(|(_, rule)| rule.operations.contains(kind) && rule.covers(path))?;
        let pattern = rule.paths.iter().zip(&rule.patterns).find(|(paths, _)| paths.cover(path)).map(|(_, pattern)| pattern.as_str())?;
        Some((index + 1, pattern))
    }

    /// Returns whether an operation is allowed at a path or, for a directory, at something beneath it: a directory above an allowed path is
    /// visible. `asks` tells whether paths that need approval count as allowed.
    ///
    /// The root always counts as such a directory. Invariant: if this is false for a directory, it is false for everything beneath it.
    pub(super) fn admits(&self, kind: OpKind, path: &VfsPath, is_directory: bool, asks: bool) -> bool {
        self.ways(path).all(|path| self.admits_here(kind, &path, is_directory, asks))
    }

    fn admits_here(&self, kind: OpKind, path: &VfsPath, is_directory: bool, asks: bool) -> bool {
        if path.is_root() && is_directory {
            return true;
        }
        let is_good = |effect| effect == Effect::Allow || (effect == Effect::Ask && asks);
        let mut leads_on = false;
        for rule in self.about(kind) {
            if rule.covers(path) {
                return is_good(rule.effect) || leads_on;
            }
            leads_on |= is_directory && is_good(rule.effect) && rule.can_cover_beneath(path);
        }
        is_good(self.default) || leads_on
    }

    /// Returns whether a path is visible.
    pub(super) fn shows(&self, path: &VfsPath, is_directory: bool) -> bool {
        self.admits(OpKind::Stat, path, is_directory, true)
    }

    /// Returns whether an operation may be refused, or need approval, at a path or anywhere beneath it.
    pub(super) fn may_refuse_beneath(&self, kind: OpKind, path: &VfsPath) -> bool {
        let mut shown = self.past.iter().filter(|(past, _)| past.starts_with(path));
        self.ways(path).any(|path| self.may_refuse_here(kind, &path)) || shown.any(|(_, now)| self.may_refuse_here(kind, now))
    }

    fn may_refuse_here(&self, kind: OpKind, path: &VfsPath) -> bool {
        for rule in self.about(kind) {
            match (rule.effect, rule.covers(path)) {
                (Effect::Allow, true) => return false,
                (Effect::Allow, false) => {}
                (Effect::Deny | Effect::Ask, covers) if covers || rule.can_cover_beneath(path) => return true,
                (Effect::Deny | Effect::Ask, _) => {}
            }
        }
        self.default != Effect::Allow
    }

    /// Returns the operations that must be checked for each path. Omits those that always get the same answer as another one, and those
    /// that are never refused beneath `at`.
    pub(super) fn distinct(&self, kinds: &[(OpKind, bool)], at: &VfsPath) -> Vec<(OpKind, bool)> {
        let mut distinct: Vec<(OpKind, bool)> = Vec::new();
        for (kind, asks) in kinds.iter().copied().filter(|(kind, _)| self.may_refuse_beneath(*kind, at)) {
            let is_known = distinct.iter().any(|(other, other_asks)| {
                let same_rules = self.rules.iter().all(|rule| rule.operations.contains(kind) == rule.operations.contains(*other));
                same_rules && (asks == *other_asks || !self.may_ask(kind))
            });
            if !is_known {
                distinct.push((kind, asks));
            }
        }
        distinct
    }

    fn may_ask(&self, kind: OpKind) -> bool {
        self.default == Effect::Ask || self.about(kind).any(|rule| rule.effect == Effect::Ask)
    }

    /// Returns whether everything is allowed without approval.
    pub(super) fn is_open(&self) -> bool {
        self.default == Effect::Allow && self.rules.iter().all(|rule| rule.effect == Effect::Allow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> VfsPathBuf {
        VfsPathBuf::parse(text).expect("a legal path")
    }

    fn policy(default: Effect, rules: &[(Effect, Operations, &str)]) -> Policy {
        let rules = rules.iter().map(|(effect, operations, pattern)| Rule::new(*effect, *operations, [pattern]).expect("a legal rule"));
        Policy { rules: rules.collect(), default, past: Vec::new() }
    }

    #[test]
    fn first_matching_rule_decides() {
        let policy = policy(
            Effect::Allow,
            &[
                (Effect::Allow, Operations::READ, "/secrets/public"),
                (Effect::Deny, Operations::ALL, "/secrets"),
                (Effect::Ask, OpKind::Delete.into(), "/**"),
                (Effect::Deny, Operations::WRITE, "/**/*.lock"),
            ],
        );
        for (kind, at, effect) in [
            (OpKind::Read, "/secrets", Effect::Deny),
            (OpKind::Read, "/secrets/a/b", Effect::Deny),
            (OpKind::Read, "/secrets/public", Effect::Allow),
            (OpKind::Read, "/secrets/public/a", Effect::Allow),
            (OpKind::Write, "/secrets/public/a", Effect::Deny),
            (OpKind::Read, "/secretsX", Effect::Allow),
            (OpKind::Delete, "/a", Effect::Ask),
            (OpKind::Delete, "/.hidden/a", Effect::Ask),
            (OpKind::Write, "/a.lock", Effect::Deny),
            (OpKind::Write, "/a.lock/b", Effect::Deny),
            (OpKind::Write, "/d/.lock", Effect::Deny),
            (OpKind::Write, "/a", Effect::Allow),
            (OpKind::Ls, "/", Effect::Allow),
        ] {
            assert_eq!(policy.decide(kind, &path(at)), effect, "{kind} {at}");
        }
    }

    #[test]
    fn directories_above_allowed_paths_are_visible() {
        let policy = policy(
            Effect::Deny,
            &[
                (Effect::Allow, Operations::READ, "/a/b/*.md"),
                (Effect::Deny, Operations::READ, "/shut"),
                (Effect::Allow, Operations::READ, "/shut/open"),
            ],
        );
        for (at, as_directory, as_file) in [
            ("/", true, false),
            ("/a", true, false),
            ("/a/b", true, false),
            ("/a/b/x.md", true, true),
            ("/a/b/x.txt", false, false),
            ("/a/c", false, false),
            ("/c", false, false),
            ("/shut", false, false),
            ("/shut/open", false, false),
        ] {
            assert_eq!((policy.shows(&path(at), true), policy.shows(&path(at), false)), (as_directory, as_file), "{at}");
        }
    }

    #[test]
    fn may_refuse_beneath_is_false_where_everything_is_allowed() {
        let policy = policy(
            Effect::Allow,
            &[
                (Effect::Allow, Operations::WRITE, "/free"),
                (Effect::Deny, Operations::WRITE, "/**/*.lock"),
                (Effect::Ask, Operations::READ, "/a/b"),
            ],
        );
        let write = |at: &str| policy.may_refuse_beneath(OpKind::Write, &path(at));
        let read = |at: &str| policy.may_refuse_beneath(OpKind::Read, &path(at));
        assert_eq!((write("/free"), write("/free/a"), write("/"), write("/a")), (false, false, true, true));
        assert_eq!(
            (read("/"), read("/a"), read("/a/b"), read("/a/b/c"), read("/a/c"), read("/free")),
            (true, true, true, true, false, false)
        );
    }

    #[test]
    fn distinct_drops_operations_with_the_same_answer() {
        let kinds = [(OpKind::Stat, true), (OpKind::Grep, false), (OpKind::Read, false)];
        let distinct = |rules: &[(Effect, Operations, &str)], at: &str| policy(Effect::Allow, rules).distinct(&kinds, &path(at)).len();
        assert_eq!(distinct(&[(Effect::Deny, Operations::WRITE, "/**")], "/"), 0);
        assert_eq!(distinct(&[(Effect::Deny, Operations::READ, "/a")], "/"), 1);
        assert_eq!(distinct(&[(Effect::Deny, Operations::READ, "/a")], "/b"), 0);
        assert_eq!(distinct(&[(Effect::Ask, Operations::READ, "/a")], "/"), 2);
        assert_eq!(distinct(&[(Effect::Deny, Operations::READ, "/a"), (Effect::Deny, OpKind::Read.into(), "/b")], "/"), 2);
    }

    #[test]
    fn unanchored_pattern_is_refused() {
        for pattern in ["secrets", "**/x", "", "/[", "/../x"] {
            assert!(Rule::deny(Operations::ALL, [pattern]).is_err(), "{pattern}");
        }
        assert!(Rule::deny(Operations::ALL, [] as [&str; 0]).is_err());
        assert!(policy(Effect::Allow, &[(Effect::Deny, Operations::ALL, "/")]).decide(OpKind::Read, &path("/a")) == Effect::Deny);
        assert!(policy(Effect::Allow, &[(Effect::Deny, Operations::ALL, "/a/")]).decide(OpKind::Read, &path("/a/b")) == Effect::Deny);
    }

    #[test]
    fn rules_apply_to_history_of_a_path() {
        let mut policy = policy(Effect::Allow, &[(Effect::Deny, Operations::READ, "/secret"), (Effect::Deny, OpKind::Ls.into(), "/old/a")]);
        policy.past.push((path("/old"), VfsPathBuf::root()));
        for (at, shown) in [("/old", true), ("/old/b", true), ("/old/secret", false), ("/old/secret/s", false), ("/secret", false)] {
            assert_eq!(policy.shows(&path(at), false), shown, "{at}");
        }
        assert_eq!(
            (policy.decide(OpKind::Read, &path("/old/secret")), policy.decide(OpKind::Ls, &path("/old/a"))),
            (Effect::Deny, Effect::Deny)
        );
        assert_eq!(policy.decided_by(OpKind::Read, &path("/old/secret/s")), Some((1, "/secret")));
        assert!(policy.may_refuse_beneath(OpKind::Read, &path("/old")) && !policy.may_refuse_beneath(OpKind::Read, &path("/old/b")));
    }

    #[test]
    fn rule_can_ignore_case() {
        let rule = Rule::deny(Operations::ALL, ["/Secrets", "/**/*.ENV"]).expect("a legal rule");
        assert!(!rule.covers(&path("/SECRETS/a")));
        let rule = rule.ignoring_case().expect("small");
        assert!(rule.covers(&path("/SECRETS/a")) && rule.covers(&path("/x/.env")));
    }

    #[test]
    fn operations_have_names() {
        assert_eq!(Operations::named("read").expect("a group"), Operations::READ);
        assert_eq!(Operations::named("create_dir").expect("a kind"), Operations::from(OpKind::CreateDir));
        assert_eq!(Operations::READ | Operations::WRITE, Operations::ALL);
        assert!(Operations::named("apply").is_err());
        assert!(Operations::named("exec").expect_err("no operation").message().contains("`exec`"));
    }
}
