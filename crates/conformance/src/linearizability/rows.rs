//! The sequential model of rows that histories are compared with.

use super::{Action, Condition, Operation, Outcome, Part, Write};
use std::collections::HashMap;
use std::ops::Range;

/// A call within one part of a history, with keys and contents as numbers.
#[derive(Debug)]
pub(super) enum Step {
    Read(Vec<(usize, Option<Met>)>),
    CurrentVersion(u64),
    Commit { conditions: Vec<(Range<usize>, Condition)>, writes: Vec<Effect>, outcome: Outcome },
}

/// The version that was read, and the content if it was requested.
type Met = (u64, Option<u32>);

/// A write of a batch.
#[derive(Debug)]
pub(super) enum Effect {
    Put(usize, u32),
    /// Removes a range of rows.
    Remove(Range<usize>),
}

/// The contents in a history, numbered.
pub(super) type Values<'h> = HashMap<&'h str, u32>;

impl Step {
    /// Converts a call that touches the keys of `part`.
    pub(super) fn new<'h>(operation: &'h Operation, part: &Part<'h>, values: &mut Values<'h>) -> Self {
        let one = |key: &str| part.keys.binary_search(&key).expect("each key of the call is in its part");
        let run = |prefix: &str, from: usize| {
            let count = part.keys[from..].iter().take_while(|key| key.starts_with(prefix)).count();
            from..from + count
        };
        let mut number = |value: &'h str| {
            let next = u32::try_from(values.len()).expect("fewer contents than numbers");
            *values.entry(value).or_insert(next)
        };
        match &operation.action {
            Action::Read(rows) => {
                let seen = |sight: &'h super::Sight| {
                    let row = sight.row.as_ref().map(|row| (row.version, row.value.as_deref().map(&mut number)));
                    (one(&sight.key), row)
                };
                Self::Read(rows.iter().map(seen).collect())
            }
            Action::CurrentVersion { version, .. } => Self::CurrentVersion(*version),
            Action::Commit { conditions, writes, outcome } => {
                let places = |requirement: &super::Requirement| match requirement.condition {
                    Condition::Absent | Condition::Exists | Condition::Version(_) => {
                        let at = one(&requirement.key);
                        at..at + 1
                    }
                    Condition::NoneBeneath | Condition::NoneBeneathSince(_) => {
                        let prefix = requirement.key.as_str();
                        run(prefix, part.keys.partition_point(|key| *key <= prefix))
                    }
                };
                let conditions = conditions.iter().map(|requirement| (places(requirement), requirement.condition)).collect();
                let effect = |write: &'h Write| match write {
                    Write::Put { key, value } => Effect::Put(one(key), number(value)),
                    Write::Delete { key } => Effect::Remove(one(key)..one(key) + 1),
                    Write::DeletePrefix { prefix } => Effect::Remove(run(prefix, part.keys.partition_point(|key| *key < prefix.as_str()))),
                };
                Self::Commit { conditions, writes: writes.iter().map(effect).collect(), outcome: outcome.clone() }
            }
        }
    }

    /// Returns whether the outcome is unknown.
    pub(super) fn is_open(&self) -> bool {
        matches!(self, Self::Commit { outcome: Outcome::Unknown, .. })
    }

    /// Returns whether it changes no row, wherever it is in an order.
    pub(super) fn is_read(&self) -> bool {
        match self {
            Self::Read(_) | Self::CurrentVersion(_) => true,
            Self::Commit { writes, outcome, .. } => match outcome {
                Outcome::Done(_) | Outcome::Unknown => writes.is_empty(),
                Outcome::Refused { .. } | Outcome::Failed => true,
            },
        }
    }

    /// Returns the rows that it depends on.
    pub(super) fn reads(&self) -> Vec<usize> {
        match self {
            Self::Read(rows) => rows.iter().map(|(at, _)| *at).collect(),
            Self::CurrentVersion(_) => Vec::new(),
            Self::Commit { conditions, .. } => conditions.iter().flat_map(|(places, _)| places.clone()).collect(),
        }
    }

    /// Returns the rows that it changes.
    pub(super) fn writes(&self) -> Vec<usize> {
        let Self::Commit { writes, .. } = self else { return Vec::new() };
        if self.is_read() {
            return Vec::new();
        }
        let rows = |write: &Effect| match write {
            Effect::Put(at, _) => *at..at + 1,
            Effect::Remove(places) => places.clone(),
        };
        writes.iter().flat_map(rows).collect()
    }

    /// Returns the row of each put, in order.
    pub(super) fn puts(&self) -> Vec<usize> {
        let Self::Commit { writes, .. } = self else { return Vec::new() };
        writes.iter().filter_map(|write| if let Effect::Put(at, _) = write { Some(*at) } else { None }).collect()
    }

    /// Returns the rows and versions that the answer proves to have existed.
    pub(super) fn seen(&self) -> Vec<(usize, u64)> {
        match self {
            Self::Read(rows) => rows.iter().filter_map(|(at, seen)| Some((*at, (*seen)?.0))).collect(),
            Self::CurrentVersion(_) | Self::Commit { outcome: Outcome::Failed | Outcome::Unknown, .. } => Vec::new(),
            Self::Commit { conditions, outcome, .. } => {
                let (held, met) = match outcome {
                    Outcome::Refused { index, met } => (*index, met.and_then(|met| Some((conditions.get(*index)?, met)))),
                    _ => (conditions.len(), None),
                };
                let of = |(places, condition): &(Range<usize>, Condition)| match condition {
                    Condition::Version(version) => Some((places.start, *version)),
                    _ => None,
                };
                // The row reported for a prefix may be any beneath it.
                let met = met.filter(|((places, _), _)| places.len() == 1).map(|((places, _), met)| (places.start, met));
                conditions.iter().take(held).filter_map(of).chain(met).collect()
            }
        }
    }

    /// Returns whether it compares versions that [`Step::seen`] does not report. `is_known` tells which versions are known
    /// otherwise.
    pub(super) fn compares_unseen_versions(&self, is_known: impl Fn(u64) -> bool) -> bool {
        let Self::Commit { conditions, outcome, .. } = self else { return false };
        let compares = |(places, condition): &(Range<usize>, Condition)| match condition {
            Condition::NoneBeneathSince(_) => true,
            Condition::NoneBeneath => places.len() > 1 && matches!(outcome, Outcome::Refused { .. }),
            Condition::Version(version) => *outcome == Outcome::Unknown && !is_known(*version),
            Condition::Absent | Condition::Exists => false,
        };
        conditions.iter().any(compares)
    }

    /// Returns the versions that it was given.
    pub(super) fn versions(&self) -> &[u64] {
        match self {
            Self::Commit { outcome: Outcome::Done(versions), .. } => versions,
            Self::Read(_) | Self::CurrentVersion(_) | Self::Commit { .. } => &[],
        }
    }
}

/// The version of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Mark {
    Known(u64),
    /// The version of an open put: greater than `above` and less than `below`. Of two open puts, the one with the higher `turn`
    /// came later and has the higher version.
    Open {
        above: u64,
        below: u64,
        turn: usize,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Row {
    mark: Mark,
    value: u32,
}

/// The state of a part's rows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Rows {
    rows: Vec<Option<Row>>,
    /// The newest known version.
    newest: u64,
}

impl Rows {
    /// Creates absent rows.
    pub(super) fn new(count: usize) -> Self {
        Self { rows: vec![None; count], newest: 0 }
    }

    /// Returns the possible states after a call if its answer fits this one, and nothing otherwise.
    pub(super) fn after(&self, step: &Step) -> Vec<Self> {
        let mut next = self.clone();
        let fits = match step {
            Step::Read(rows) => rows.iter().all(|(at, seen)| next.sees(*at, *seen)),
            Step::CurrentVersion(version) => next.counts(*version),
            Step::Commit { outcome: Outcome::Failed, .. } => true,
            Step::Commit { conditions, outcome: Outcome::Refused { index, met }, .. } => {
                let Some((places, condition)) = conditions.get(*index) else { return Vec::new() };
                let held = conditions[..*index].iter().all(|(places, condition)| next.holds(places.clone(), *condition));
                return if held { next.refusing(places.clone(), *condition, *met) } else { Vec::new() };
            }
            Step::Commit { conditions, writes, outcome } => {
                let versions: &[u64] = if let Outcome::Done(versions) = outcome { versions } else { &[] };
                let versions = versions.iter().map(|version| Some(*version));
                conditions.iter().all(|(places, condition)| next.holds(places.clone(), *condition)) && next.write(writes, versions)
            }
        };
        if fits { vec![next] } else { Vec::new() }
    }

    /// Returns the state after an open call takes effect, given the versions of its puts (`None` for a version that nobody saw).
    pub(super) fn after_open(&self, step: &Step, versions: &[Option<u64>]) -> Option<Self> {
        let Step::Commit { conditions, writes, .. } = step else { return None };
        let mut next = self.clone();
        let holds = conditions.iter().all(|(places, condition)| next.holds(places.clone(), *condition));
        (holds && next.write(writes, versions.iter().copied())).then_some(next)
    }

    /// Describes some of the rows for an error message.
    pub(super) fn describe(&self, keys: &[&str], named: &[&str]) -> String {
        let describe = |(key, row): (&&str, &Option<Row>)| {
            let key = key.replace('\0', " ");
            match row.map(|row| row.mark) {
                None => format!("`{key}` is absent"),
                Some(Mark::Known(version)) => format!("`{key}` has version {version}"),
                Some(Mark::Open { above, .. }) => format!("`{key}` has an unknown version above {above}"),
            }
        };
        let rows: Vec<String> = keys.iter().zip(&self.rows).filter(|(key, _)| named.contains(*key)).map(describe).collect();
        rows.join(" and ")
    }

    fn sees(&mut self, at: usize, seen: Option<Met>) -> bool {
        match (self.rows[at], seen) {
            (None, None) => true,
            (Some(row), Some((version, value))) => value.is_none_or(|value| value == row.value) && self.settle(at, version),
            (None, Some(_)) | (Some(_), None) => false,
        }
    }

    /// Requires that the version counter has reached a version. Deletes may have advanced it, and commits in other partitions.
    fn counts(&mut self, version: u64) -> bool {
        let is_possible = self.newest <= version && self.rows.iter().flatten().all(|row| row.mark.least() <= version);
        self.newest = version;
        self.lower_before(usize::MAX, version.saturating_add(1));
        is_possible
    }

    /// Requires that a condition holds.
    fn holds(&mut self, places: Range<usize>, condition: Condition) -> bool {
        match condition {
            Condition::Absent | Condition::NoneBeneath => self.rows[places].iter().all(Option::is_none),
            Condition::Exists => self.rows[places].iter().all(Option::is_some),
            Condition::Version(version) => self.settle(places.start, version),
            Condition::NoneBeneathSince(version) => places.into_iter().all(|at| self.is_at_most(at, version)),
        }
    }

    /// Returns the possible states if a condition is violated by the reported version.
    fn refusing(mut self, places: Range<usize>, condition: Condition, met: Option<u64>) -> Vec<Self> {
        let fits = match (condition, met) {
            (Condition::Exists | Condition::Version(_), None) => self.rows[places].iter().all(Option::is_none),
            (Condition::Absent, Some(met)) => self.settle(places.start, met),
            (Condition::Version(version), Some(met)) => met != version && self.settle(places.start, met),
            (Condition::NoneBeneath, Some(met)) => return self.with_one_of(places, met),
            (Condition::NoneBeneathSince(version), Some(met)) if met > version => return self.with_one_of(places, met),
            (Condition::Absent | Condition::Exists | Condition::NoneBeneath | Condition::NoneBeneathSince(_), _) => false,
        };
        if fits { vec![self] } else { Vec::new() }
    }

    /// Returns the possible states if one of the rows has a version. A store may report any row that violates a condition.
    fn with_one_of(&self, places: Range<usize>, version: u64) -> Vec<Self> {
        let with = |at| {
            let mut next = self.clone();
            next.settle(at, version).then_some(next)
        };
        places.filter_map(with).collect()
    }

    fn write(&mut self, writes: &[Effect], mut versions: impl Iterator<Item = Option<u64>>) -> bool {
        let mut turn = self.rows.len();
        for write in writes {
            match write {
                Effect::Remove(places) => self.rows[places.clone()].fill(None),
                Effect::Put(at, value) => {
                    let mark = match versions.next() {
                        Some(Some(version)) if version > self.newest => {
                            self.newest = version;
                            self.lower_before(usize::MAX, version);
                            Mark::Known(version)
                        }
                        Some(None) => {
                            turn += 1;
                            Mark::Open { above: self.newest, below: u64::MAX, turn }
                        }
                        Some(Some(_)) | None => return false,
                    };
                    self.rows[*at] = Some(Row { mark, value: *value });
                }
            }
        }
        self.number_turns();
        true
    }

    /// Requires that a row exists with a version, and fixes the version of an open put.
    fn settle(&mut self, at: usize, version: u64) -> bool {
        match self.rows[at].map(|row| row.mark) {
            Some(Mark::Known(known)) => known == version,
            Some(Mark::Open { above, below, turn }) if above < version && version < below => {
                if let Some(row) = &mut self.rows[at] {
                    row.mark = Mark::Known(version);
                }
                self.newest = self.newest.max(version);
                self.lower_before(turn, version);
                for row in self.rows.iter_mut().flatten() {
                    if let Mark::Open { above, turn: other, .. } = &mut row.mark
                        && *other > turn
                    {
                        *above = version.max(*above);
                    }
                }
                self.number_turns();
                true
            }
            Some(Mark::Open { .. }) | None => false,
        }
    }

    /// Requires that a row is absent or not newer than a version.
    fn is_at_most(&mut self, at: usize, version: u64) -> bool {
        match self.rows[at].map(|row| row.mark) {
            None => true,
            Some(Mark::Known(known)) => known <= version,
            Some(Mark::Open { above, turn, .. }) => {
                // Puts before it are older still.
                self.lower_before(turn + 1, version.saturating_add(1));
                above < version
            }
        }
    }

    /// Lowers the upper bound of open puts with lower turns.
    fn lower_before(&mut self, before: usize, version: u64) {
        for row in self.rows.iter_mut().flatten() {
            if let Mark::Open { below, turn, .. } = &mut row.mark
                && *turn < before
            {
                *below = version.min(*below);
            }
        }
    }

    /// Renumbers turns from 0, so that equal states reached in different ways compare equal.
    fn number_turns(&mut self) {
        let mut turns: Vec<usize> = self.rows.iter().flatten().filter_map(|row| row.mark.turn()).collect();
        turns.sort_unstable();
        for row in self.rows.iter_mut().flatten() {
            if let Mark::Open { turn, .. } = &mut row.mark {
                *turn = turns.partition_point(|other| other < turn);
            }
        }
    }
}

impl Mark {
    fn least(self) -> u64 {
        match self {
            Self::Known(version) => version,
            Self::Open { above, .. } => above + 1,
        }
    }

    fn turn(self) -> Option<usize> {
        match self {
            Self::Open { turn, .. } => Some(turn),
            Self::Known(_) => None,
        }
    }
}
