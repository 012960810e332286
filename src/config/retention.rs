//! `[retention]`: what is kept of threads, and how fast the rest is removed.

use super::check::{positive_time, time_from};
use super::fault::Broken;
use super::stores::Stores;
use super::{Config, RouteType};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use treehold_agent::retention::{KeepRule, Retention, RetentionPolicy, ThreadClass, ThreadRules};
use treehold_core::error::{Error, Result};

/// What is kept of threads. `treehold serve` removes the rest by itself, and `treehold sweep` on request. Without rules everything is kept.
/// The newest checkpoint of a thread and the one before it always stay, and so does what a fork, merge or history route needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct RetentionConfig {
    /// The pause between two rounds of `treehold serve`, such as `1h`. Of several servers on one store, one does the work. Default `1h`.
    pub every: String,
    /// How long the state before the newest one stays, because a call may still read it. `treehold serve` keeps it
    /// at least as long as a request may take. Default `1h`; `0s` for not at all.
    pub grace: String,
    /// The most rows that are read and removed per second. Default 1,000.
    pub rows_per_second: u32,
    /// The rule for the checkpoints of threads. Default none: all are kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoints: Option<KeepCheckpoints>,
    /// The rule for the record of tool calls. Default none: all are kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls: Option<KeepCalls>,
    /// Threads with rules of their own; the first class that a thread belongs to decides.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<RetentionClassConfig>,
}

/// How many checkpoints of a thread are kept, and for how long. A checkpoint is removed only if every rule that is set allows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct KeepCheckpoints {
    /// Keeps this many of the newest checkpoints.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_last: Option<u64>,
    /// Keeps those that are at most this old, such as `30d`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub older_than: Option<String>,
    /// Keeps checkpoints with a label. Default true.
    pub keep_labelled: bool,
}

impl Default for KeepCheckpoints {
    fn default() -> Self {
        Self { keep_last: None, older_than: None, keep_labelled: true }
    }
}

/// How many recorded tool calls of a thread are kept, and for how long. A call is removed only if every rule that is set allows it. The
/// newest call of a thread always stays, however old it is, so that its record says who worked in the thread last.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct KeepCalls {
    /// Keeps this many of the newest calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_last: Option<u64>,
    /// Keeps calls that are at most this old, such as `90d`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub older_than: Option<String>,
}

/// Threads with rules of their own, which replace the general ones: what has no rule here is kept.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct RetentionClassConfig {
    /// The ids of the threads, as globs of whole ids: `*` does not match `/`, `**` does. Default all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub threads: Vec<String>,
    /// The users of the threads, in every tenant, as such globs. Default all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<String>,
    /// The rule for their checkpoints. Default none: all are kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoints: Option<KeepCheckpoints>,
    /// The rule for the record of their tool calls. Default none: all are kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls: Option<KeepCalls>,
}

impl Default for RetentionConfig {
    fn default() -> Self {
        Self {
            every: "1h".to_owned(),
            grace: "1h".to_owned(),
            rows_per_second: RetentionPolicy::new().rows_per_second,
            checkpoints: None,
            calls: None,
            classes: Vec::new(),
        }
    }
}

/// The error of a key within a rule or class.
type Fault = (&'static str, Error);

/// Parses the rule of a table.
fn rule(keep_last: Option<u64>, older_than: Option<&str>) -> Result<KeepRule, Fault> {
    let age = |text: &str| positive_time(text, "how long to keep something", "write it as `30d` or `12h`");
    let older_than = older_than.map(age).transpose().map_err(|error| ("older_than", error))?;
    KeepRule::new(keep_last, older_than).map_err(|error| ("keep_last", error))
}

impl KeepCheckpoints {
    fn rule(&self) -> Result<KeepRule, Fault> {
        Ok(rule(self.keep_last, self.older_than.as_deref())?.with_keep_labelled(self.keep_labelled))
    }
}

impl KeepCalls {
    fn rule(&self) -> Result<KeepRule, Fault> {
        rule(self.keep_last, self.older_than.as_deref())
    }
}

/// Parses the rules of a table. An error names the keys within it.
fn rules(checkpoints: Option<&KeepCheckpoints>, calls: Option<&KeepCalls>) -> Result<ThreadRules, ([&'static str; 2], Error)> {
    let checkpoints = checkpoints.map(KeepCheckpoints::rule).transpose().map_err(|(key, error)| (["checkpoints", key], error))?;
    let calls = calls.map(KeepCalls::rule).transpose().map_err(|(key, error)| (["calls", key], error))?;
    Ok(ThreadRules::new().with_checkpoints(checkpoints).with_calls(calls))
}

/// Describes a rule, as ``the last 50``.
fn described(keep_last: Option<u64>, older_than: Option<&String>, keep_labelled: bool) -> String {
    let last = keep_last.map(|count| format!("the last {count}"));
    let age = older_than.map(|age| format!("those of the last {age}"));
    let labelled = keep_labelled.then(|| "those with a label".to_owned());
    last.into_iter().chain(age).chain(labelled).collect::<Vec<_>>().join(", ")
}

/// Describes the rules of a table.
fn all_described(checkpoints: Option<&KeepCheckpoints>, calls: Option<&KeepCalls>) -> Vec<String> {
    let checkpoints = checkpoints.map(|rule| described(rule.keep_last, rule.older_than.as_ref(), rule.keep_labelled));
    let calls = calls.map(|rule| described(rule.keep_last, rule.older_than.as_ref(), false));
    let checkpoints = checkpoints.map(|kept| format!("checkpoints: {kept}"));
    checkpoints.into_iter().chain(calls.map(|kept| format!("calls: {kept}"))).collect()
}

impl RetentionConfig {
    /// Describes what is kept, in the order in which rules are looked for: one text for each rule. Empty if everything is.
    pub(super) fn described(&self) -> Vec<String> {
        let mut all = Vec::new();
        for class in &self.classes {
            let threads = (!class.threads.is_empty()).then(|| format!("threads {}", class.threads.join(", ")));
            let users = (!class.users.is_empty()).then(|| format!("users {}", class.users.join(", ")));
            let who = threads.into_iter().chain(users).collect::<Vec<_>>().join(" of ");
            let rules = all_described(class.checkpoints.as_ref(), class.calls.as_ref());
            let rules = if rules.is_empty() { vec!["everything".to_owned()] } else { rules };
            all.extend(rules.into_iter().map(|rule| format!("{who}: {rule}")));
        }
        all.extend(all_described(self.checkpoints.as_ref(), self.calls.as_ref()));
        all
    }

    /// Returns the pause between two rounds.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for a malformed duration.
    pub fn every(&self) -> Result<Duration> {
        positive_time(&self.every, "a duration between rounds", "write it as `1h` or `10m`")
    }

    /// Returns the policy of the library.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for a rule that keeps nothing, and for a malformed duration or
    /// glob.
    pub fn policy(&self) -> Result<RetentionPolicy> {
        self.parse().map_err(Broken::into_error)
    }

    /// Checks each value.
    pub(super) fn check(&self) -> Result<(), Broken> {
        self.parse().map(drop)
    }

    fn parse(&self) -> Result<RetentionPolicy, Broken> {
        self.every().map_err(|error| Broken::new(&["retention", "every"], error.message()))?;
        let grace = time_from(Duration::ZERO, "0s", &self.grace, "a duration", "write it as `1m`, or as `0s` for none")
            .map_err(|error| Broken::new(&["retention", "grace"], error.message()))?;
        if self.rows_per_second == 0 {
            let message = "`rows_per_second` is 0, at which nothing would ever be removed";
            return Err(Broken::new(&["retention", "rows_per_second"], message).with_hint(Some("set at least 1".to_owned())));
        }
        let general = rules(self.checkpoints.as_ref(), self.calls.as_ref())
            .map_err(|([table, key], error)| Broken::new(&["retention", table, key], error.message()))?;
        let mut classes = Vec::new();
        for (index, class) in self.classes.iter().enumerate() {
            let keys = |rest: &[&str]| {
                [&["retention", "classes", &index.to_string()], rest].concat().into_iter().map(str::to_owned).collect::<Vec<_>>()
            };
            let rules = rules(class.checkpoints.as_ref(), class.calls.as_ref())
                .map_err(|(inner, error)| Broken::under(keys(&inner), error.message()))?;
            let key = if class.threads.is_empty() { "users" } else { "threads" };
            let class = ThreadClass::new(&class.threads, &class.users, rules);
            classes.push(class.map_err(|error| Broken::under(keys(&[key]), error.message()))?);
        }
        Ok(RetentionPolicy::new().with_rules(general).with_classes(classes).with_grace(grace).with_rows_per_second(self.rows_per_second))
    }
}

impl Config {
    /// Returns what removes what the policy does not keep. With a policy that keeps everything, it does nothing.
    ///
    /// # Errors
    /// Those of [`RetentionConfig::policy`], and [`NotFound`](treehold_core::error::ErrorKind::NotFound) for a store that is not in `stores`.
    pub fn retention(&self, stores: &Stores) -> Result<Retention> {
        // A history route without a checkpoint shows the newest.
        let names = self.routes.values().filter(|route| route.tier == RouteType::History).filter_map(|route| route.at.clone()).collect();
        Ok(Retention::new(stores.get(&self.threads.store)?, self.retention.policy()?.with_names(names)))
    }
}
