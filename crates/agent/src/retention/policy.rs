//! What a policy keeps, by class of thread.

use std::time::Duration;
use treehold_core::error::{Error, Result};
use treehold_core::scope::Scope;
use treehold_core::search::Glob;
use treehold_tree::checkpoint::PruneOptions;

/// How many checkpoints or calls of a thread are kept, and for how long. One is removed only if every rule that is set allows it.
///
/// ```
/// use std::time::Duration;
/// use treehold_agent::retention::KeepRule;
///
/// let month = Duration::from_secs(30 * 24 * 60 * 60);
/// KeepRule::new(Some(50), Some(month))?.with_keep_labelled(true);
/// assert!(KeepRule::new(None, None).is_err(), "it would keep nothing but the newest");
/// # Ok::<(), treehold_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeepRule {
    keep_last: Option<u64>,
    older_than: Option<Duration>,
    keep_labelled: bool,
}

impl KeepRule {
    /// Keeps so many of the newest, and those that are at most so old.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for a rule that keeps nothing: without either, or with one that
    /// is 0.
    pub fn new(keep_last: Option<u64>, older_than: Option<Duration>) -> Result<Self> {
        if keep_last == Some(0) {
            return Err(Error::invalid_argument("`keep_last` is 0, but the newest always stays; write at least 1"));
        }
        if older_than.is_some_and(|age| age.is_zero()) {
            return Err(Error::invalid_argument("`older_than` is 0, which keeps nothing; write it as `30d` or `12h`"));
        }
        if keep_last.is_none() && older_than.is_none() {
            return Err(Error::invalid_argument("a rule without `keep_last` and `older_than` keeps nothing; write at least one of them"));
        }
        Ok(Self { keep_last, older_than, keep_labelled: false })
    }

    /// Keeps checkpoints with a label. Calls have none.
    #[must_use]
    pub fn with_keep_labelled(mut self, keep: bool) -> Self {
        self.keep_labelled = keep;
        self
    }

    /// Returns how many of the newest are kept.
    pub fn keep_last(&self) -> Option<u64> {
        self.keep_last
    }

    /// Returns how old what is kept may be.
    pub fn older_than(&self) -> Option<Duration> {
        self.older_than
    }

    /// Returns the rule as the options of a prune.
    pub(super) fn prune(&self) -> PruneOptions {
        let mut options = PruneOptions::new().with_keep_labelled(self.keep_labelled);
        (options.keep_last, options.older_than) = (self.keep_last, self.older_than);
        options
    }
}

/// What is kept of a thread. What has no rule is kept for ever.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ThreadRules {
    /// The rule for its checkpoints.
    pub checkpoints: Option<KeepRule>,
    /// The rule for the record of its calls.
    pub calls: Option<KeepRule>,
}

impl ThreadRules {
    /// Keeps everything.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the rule for checkpoints.
    #[must_use]
    pub fn with_checkpoints(mut self, rule: Option<KeepRule>) -> Self {
        self.checkpoints = rule;
        self
    }

    /// Sets the rule for the record of calls.
    #[must_use]
    pub fn with_calls(mut self, rule: Option<KeepRule>) -> Self {
        self.calls = rule;
        self
    }
}

/// Threads with rules of their own.
#[derive(Debug, Clone)]
pub struct ThreadClass {
    threads: Vec<Glob>,
    users: Vec<Glob>,
    rules: ThreadRules,
}

impl ThreadClass {
    /// Creates a class of the threads whose id matches one of the globs, and whose user matches one of the others, in every tenant. An empty
    /// list matches every one, but not both may be empty.
    ///
    /// A glob matches a whole id. `*` does not match a `/` in it, `**` does.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for a malformed glob, and for a class of all threads.
    pub fn new(threads: &[String], users: &[String], rules: ThreadRules) -> Result<Self> {
        if threads.is_empty() && users.is_empty() {
            return Err(Error::invalid_argument(
                "a class without `threads` and `users` is every thread; name some, or set the rules for all",
            ));
        }
        let globs = |texts: &[String]| texts.iter().map(|text| Glob::parse(&format!("/{text}"), false)).collect::<Result<Vec<_>>>();
        Ok(Self { threads: globs(threads)?, users: globs(users)?, rules })
    }

    fn is_of(&self, user: Option<&str>, thread: &str) -> bool {
        let matches = |globs: &[Glob], id: &str| globs.is_empty() || globs.iter().any(|glob| glob.is_match(id));
        matches(&self.threads, thread) && matches(&self.users, user.unwrap_or_default())
    }
}

/// What is kept of threads, and how fast the rest is removed.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RetentionPolicy {
    /// The rules of threads without a class.
    pub rules: ThreadRules,
    /// The classes. The first that a thread belongs to decides; its rules replace the general ones.
    pub classes: Vec<ThreadClass>,
    /// Keeps checkpoints that these names may mean, in every thread.
    pub names: Vec<String>,
    /// Keeps a checkpoint for this long after another one followed it, because a call may still read it. Default one hour.
    pub grace: Duration,
    /// How many rows are read and removed per second. Default 1,000.
    pub rows_per_second: u32,
}

impl Default for RetentionPolicy {
    fn default() -> Self {
        let (rules, classes, names) = (ThreadRules::new(), Vec::new(), Vec::new());
        Self { rules, classes, names, grace: Duration::from_secs(60 * 60), rows_per_second: 1_000 }
    }
}

impl RetentionPolicy {
    /// Keeps everything.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the rules of threads without a class.
    #[must_use]
    pub fn with_rules(mut self, rules: ThreadRules) -> Self {
        self.rules = rules;
        self
    }

    /// Sets the classes.
    #[must_use]
    pub fn with_classes(mut self, classes: Vec<ThreadClass>) -> Self {
        self.classes = classes;
        self
    }

    /// Keeps checkpoints that these names may mean.
    #[must_use]
    pub fn with_names(mut self, names: Vec<String>) -> Self {
        self.names = names;
        self
    }

    /// Sets how long a checkpoint stays after another one followed it.
    #[must_use]
    pub fn with_grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Sets how many rows are read and removed per second.
    #[must_use]
    pub fn with_rows_per_second(mut self, rows: u32) -> Self {
        self.rows_per_second = rows;
        self
    }

    /// Returns whether it has no rule at all, so that nothing is ever removed.
    pub fn keeps_everything(&self) -> bool {
        !self.all().any(|rules| rules.checkpoints.is_some() || rules.calls.is_some())
    }

    /// Returns whether a rule for checkpoints exists.
    pub(super) fn has_checkpoints(&self) -> bool {
        self.all().any(|rules| rules.checkpoints.is_some())
    }

    /// Returns whether a rule for calls exists.
    pub(super) fn has_calls(&self) -> bool {
        self.all().any(|rules| rules.calls.is_some())
    }

    fn all(&self) -> impl Iterator<Item = &ThreadRules> {
        self.classes.iter().map(|class| &class.rules).chain([&self.rules])
    }

    /// Returns the rules of a thread of a scope's user.
    pub fn of(&self, scope: &Scope, thread: &str) -> &ThreadRules {
        let class = self.classes.iter().find(|class| class.is_of(scope.user.as_deref(), thread));
        class.map_or(&self.rules, |class| &class.rules)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_that_keeps_nothing_is_refused() {
        for (keep_last, seconds, named) in
            [(Some(0), None, "keep_last"), (Some(0), Some(1), "keep_last"), (None, Some(0), "older_than"), (None, None, "keep_last")]
        {
            let error = KeepRule::new(keep_last, seconds.map(Duration::from_secs)).expect_err("it keeps nothing");
            assert!(error.message().contains(named), "{error}");
        }
        KeepRule::new(Some(1), None).expect("the newest is kept");
    }

    #[test]
    fn first_class_that_a_thread_belongs_to_decides() {
        let rules = |count| ThreadRules::new().with_checkpoints(KeepRule::new(Some(count), None).ok());
        let class = |threads: &[&str], users: &[&str], count| {
            let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
            ThreadClass::new(&texts(threads), &texts(users), rules(count)).expect("a class")
        };
        let classes = vec![class(&["scratch-*"], &["ci"], 1), class(&["scratch-*", "tmp"], &[], 2), class(&[], &["ci"], 3)];
        let policy = RetentionPolicy::new().with_rules(rules(4)).with_classes(classes);
        for (user, thread, count) in
            [("ci", "scratch-1", 1), ("ada", "scratch-1", 2), ("ada", "tmp", 2), ("ci", "tmp", 2), ("ci", "main", 3), ("ada", "main", 4)]
        {
            let found = policy.of(&Scope::new().with_user(user), thread);
            assert_eq!(found.checkpoints.as_ref().and_then(KeepRule::keep_last), Some(count), "{user} {thread}");
        }
        assert_eq!(policy.of(&Scope::new(), "main"), &policy.rules, "a thread of no user");
        for (user, thread) in [("ada", "customer-7/scratch-plan"), ("ada", "scratch-1/a"), ("team/ci", "main"), ("ada", "a/tmp")] {
            assert_eq!(policy.of(&Scope::new().with_user(user), thread), &policy.rules, "a glob matches whole ids: {user} {thread}");
        }
        assert!(ThreadClass::new(&[], &[], rules(1)).is_err());
    }

    #[test]
    fn policy_without_rules_keeps_everything() {
        assert!(RetentionPolicy::new().keeps_everything());
        let class = ThreadClass::new(&["a".to_owned()], &[], ThreadRules::new().with_calls(KeepRule::new(Some(1), None).ok()));
        let policy = RetentionPolicy::new().with_classes(vec![class.expect("a class")]);
        assert!(!policy.keeps_everything() && policy.has_calls() && !policy.has_checkpoints());
    }
}
