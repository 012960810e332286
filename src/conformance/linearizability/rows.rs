//! What rows do when one call after the other takes effect: the object that a history is compared with.

use super::{Action, Condition, Operation, Outcome, Part, Write};
use std::collections::HashMap;
use std::ops::Range;

/// A call whose keys and contents are numbers, within one part of a history.
#[derive(Debug)]
pub(super) enum Step {
    Read(Vec<(usize, Option<Met>)>),
    CurrentVersion(u64),
    Commit { conditions: Vec<(Range<usize>, Condition)>, writes: Vec<Effect>, outcome: Outcome },
}

/// The version that was met, and the content if it was read.
type Met = (u64, Option<u32>);

/// One write of a batch.
#[derive(Debug)]
pub(super) enum Effect {
    Put(usize, u32),
    /// Removes a run of rows.
    Remove(Range<usize>),
}

/// The contents of a history, a number for each.
pub(super) type Values<'h> = HashMap<&'h str, u32>;

impl Step {
    /// Makes the step of a call that touches the keys of `part`.
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
            Action::CurrentVersion(version) => Self::CurrentVersion(*version),
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

    /// Tells whether nobody knows what became of it.
    pub(super) fn is_open(&self) -> bool {
        matches!(self, Self::Commit { outcome: Outcome::Unknown, .. })
    }

    /// Tells whether it changes no row, wherever it stands in an order.
    pub(super) fn is_read(&self) -> bool {
        match self {
            Self::Read(_) | Self::CurrentVersion(_) => true,
            Self::Commit { writes, outcome, .. } => match outcome {
                Outcome::Done(_) | Outcome::Unknown => writes.is_empty(),
                Outcome::Refused { .. } | Outcome::Failed => true,
            },
        }
    }

    /// Returns the rows that it depends on, one after the other.
    pub(super) fn reads(&self) -> Vec<usize> {
        match self {
            Self::Read(rows) => rows.iter().map(|(at, _)| *at).collect(),
            Self::CurrentVersion(_) => Vec::new(),
            Self::Commit { conditions, .. } => conditions.iter().flat_map(|(places, _)| places.clone()).collect(),
        }
    }

    /// Returns the rows that it changes, one after the other.
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

    /// Returns the rows and versions that the answer says were there.
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
                // What stands beneath a prefix may be any row of it.
                let met = met.filter(|((places, _), _)| places.len() == 1).map(|((places, _), met)| (places.start, met));
                conditions.iter().take(held).filter_map(of).chain(met).collect()
            }
        }
    }

    /// Tells whether it compares versions in a way that [`Step::seen`] does not tell of; `is_known` tells of the others.
    pub(super) fn compares_others(&self, is_known: impl Fn(u64) -> bool) -> bool {
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
    /// That of a put whose answer nobody has: above one number and below another. Of two, the one whose turn is the
    /// higher was put later, and has the higher version.
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

/// The rows of a part at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Rows {
    rows: Vec<Option<Row>>,
    /// The newest version that is known of.
    newest: u64,
}

impl Rows {
    /// Makes absent rows.
    pub(super) fn new(count: usize) -> Self {
        Self { rows: vec![None; count], newest: 0 }
    }

    /// Returns what the rows may be after a call, if its answer is the one that it gets here; nothing otherwise.
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

    /// Returns what the rows are if a call that nobody has the answer of takes effect here, and its puts have these versions: one
    /// for each, or none for one that nobody saw.
    pub(super) fn after_open(&self, step: &Step, versions: &[Option<u64>]) -> Option<Self> {
        let Step::Commit { conditions, writes, .. } = step else { return None };
        let mut next = self.clone();
        let holds = conditions.iter().all(|(places, condition)| next.holds(places.clone(), *condition));
        (holds && next.write(writes, versions.iter().copied())).then_some(next)
    }

    /// Tells what some of the rows are, for people.
    pub(super) fn describe(&self, keys: &[&str], named: &[&str]) -> String {
        let describe = |(key, row): (&&str, &Option<Row>)| {
            let key = key.replace('\0', " ");
            match row.map(|row| row.mark) {
                None => format!("`{key}` is absent"),
                Some(Mark::Known(version)) => format!("`{key}` has version {version}"),
                Some(Mark::Open { above, .. }) => format!("`{key}` has a version above {above} that nobody was told"),
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

    /// Asks that the store's counter has come to a version; a delete may have moved it.
    fn counts(&mut self, version: u64) -> bool {
        let is_possible = self.newest <= version && self.rows.iter().flatten().all(|row| row.mark.least() <= version);
        self.newest = version;
        self.lower_before(usize::MAX, version.saturating_add(1));
        is_possible
    }

    /// Asks that a condition holds.
    fn holds(&mut self, places: Range<usize>, condition: Condition) -> bool {
        match condition {
            Condition::Absent | Condition::NoneBeneath => self.rows[places].iter().all(Option::is_none),
            Condition::Exists => self.rows[places].iter().all(Option::is_some),
            Condition::Version(version) => self.settle(places.start, version),
            Condition::NoneBeneathSince(version) => places.into_iter().all(|at| self.is_at_most(at, version)),
        }
    }

    /// Returns what the rows may be if a condition does not hold because of what it met.
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

    /// Returns what the rows may be if one of them has a version: a store may name any that stands against a condition.
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

    /// Asks that a row is there and has a version, which is what one nobody knew is from now on.
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

    /// Asks that a row is not there or not newer than a version.
    fn is_at_most(&mut self, at: usize, version: u64) -> bool {
        match self.rows[at].map(|row| row.mark) {
            None => true,
            Some(Mark::Known(known)) => known <= version,
            Some(Mark::Open { above, turn, .. }) => {
                // What was put before it is older still.
                self.lower_before(turn + 1, version.saturating_add(1));
                above < version
            }
        }
    }

    /// Notes that the versions of open puts of lower turns are below one.
    fn lower_before(&mut self, before: usize, version: u64) {
        for row in self.rows.iter_mut().flatten() {
            if let Mark::Open { below, turn, .. } = &mut row.mark
                && *turn < before
            {
                *below = version.min(*below);
            }
        }
    }

    /// Numbers turns from 0, so that two ways to the same rows are seen to be the same.
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
