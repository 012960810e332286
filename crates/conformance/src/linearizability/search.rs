//! Searches for an order of the calls of one part of a history.
//!
//! Open calls make the search expensive, since each may come anywhere after its start, or nowhere. So they are taken only when
//! needed. A version that was seen but given to nobody belongs to an open put; all versions, given or seen, are put in order.
//! Otherwise an open call is taken directly before a call that does not fit without it, or that overwrites only part of what it
//! changes. If it may come earlier, it may also come there.

use super::rows::{Rows, Step, Values};
use super::{Operation, Part, Verdict, Violation};
use std::collections::{BTreeSet, HashSet};

/// A call.
struct Call {
    /// Its position in the history.
    at: usize,
    start: u64,
    /// The end of time if it has no answer.
    end: u64,
    step: Step,
    /// The rows that it depends on.
    reads: BTreeSet<usize>,
    /// The rows that it changes.
    writes: BTreeSet<usize>,
}

/// The call that put a known version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    /// An answered call.
    Answered(usize),
    /// An open call that put this row.
    Open(usize),
}

/// The calls that are already in the order.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Taken {
    /// The first answered call that is not in the order.
    first: usize,
    /// The answered calls after it that are in the order, sorted.
    ahead: Vec<usize>,
    /// The open calls that are in the order, sorted.
    open: Vec<usize>,
    /// The number of known versions that have been put.
    versions: usize,
}

impl Taken {
    fn with(&self, call: usize) -> Self {
        let mut taken = self.clone();
        taken.take(call);
        taken
    }

    fn take(&mut self, call: usize) {
        if call != self.first {
            let place = self.ahead.partition_point(|other| *other < call);
            return self.ahead.insert(place, call);
        }
        self.first += 1;
        let run = self.ahead.iter().enumerate().take_while(|(index, other)| **other == self.first + index).count();
        self.ahead.drain(..run);
        self.first += run;
    }

    fn with_open(&self, call: usize, versions: usize) -> Self {
        let mut taken = self.clone();
        let place = taken.open.partition_point(|other| *other < call);
        taken.open.insert(place, call);
        taken.versions = versions;
        taken
    }

    fn count(&self) -> usize {
        self.first + self.ahead.len()
    }
}

/// A partial order: the calls in it, the resulting rows, and the possible continuations, best last.
struct Node {
    taken: Taken,
    rows: Rows,
    next: Vec<(Taken, Rows)>,
}

struct Search {
    /// Answered calls, by start.
    answered: Vec<Call>,
    /// Open calls, by start.
    open: Vec<Call>,
    /// Every known version, sorted.
    versions: Vec<(u64, Source)>,
    /// Whether some call compares versions that are not among them.
    compares_unseen_versions: bool,
    steps: u64,
}

/// Searches for an order of the calls of a part, trying at most `steps_max` calls.
pub(super) fn search(history: &[Operation], part: &Part<'_>, steps_max: u64) -> Verdict {
    let mut search = Search::new(history, part);
    let root = search.node(Taken::default(), Rows::new(part.keys.len()));
    let mut longest = (root.taken.clone(), root.rows.clone());
    let mut met = HashSet::new();
    let mut path = vec![root];
    while let Some(node) = path.last_mut() {
        if node.taken.first == search.answered.len() {
            return Verdict::Linearizable;
        }
        if node.taken.count() > longest.0.count() {
            longest = (node.taken.clone(), node.rows.clone());
        }
        let Some((taken, rows)) = node.next.pop() else {
            path.pop();
            continue;
        };
        if search.steps > steps_max {
            return Verdict::Undecided { keys: part.keys.iter().map(|key| (*key).to_owned()).collect() };
        }
        if met.insert((taken.clone(), rows.clone())) {
            path.push(search.node(taken, rows));
        }
    }
    Verdict::Violated(search.violation(history, part, &longest.0, &longest.1))
}

impl Search {
    fn new<'h>(history: &'h [Operation], part: &Part<'h>) -> Self {
        let mut values = Values::new();
        let call = |at: &usize| {
            let operation = &history[*at];
            let step = Step::new(operation, part, &mut values);
            let (reads, writes) = (step.reads().into_iter().collect(), step.writes().into_iter().collect());
            Call { at: *at, start: operation.start, end: operation.end.unwrap_or(u64::MAX), step, reads, writes }
        };
        let mut calls: Vec<Call> = part.operations.iter().map(call).collect();
        calls.sort_by_key(|call| call.start);
        let (open, answered): (Vec<Call>, Vec<Call>) = calls.into_iter().partition(|call| call.step.is_open());
        let given: HashSet<u64> = answered.iter().flat_map(|call| call.step.versions().iter().copied()).collect();
        let seen: BTreeSet<(u64, usize)> = answered
            .iter()
            .flat_map(|call| call.step.seen())
            .filter(|(_, version)| !given.contains(version))
            .map(|(row, version)| (version, row))
            .collect();
        let is_known = |version| given.contains(&version) || seen.range((version, 0)..=(version, usize::MAX)).next().is_some();
        let compares_unseen_versions = answered.iter().chain(&open).any(|call| call.step.compares_unseen_versions(is_known));
        let first = |(at, call): (usize, &Call)| Some((*call.step.versions().first()?, Source::Answered(at)));
        let mut versions: Vec<(u64, Source)> = answered.iter().enumerate().filter_map(first).collect();
        versions.extend(seen.into_iter().map(|(version, row)| (version, Source::Open(row))));
        versions.sort_unstable();
        Self { answered, open, versions, compares_unseen_versions, steps: 0 }
    }

    /// Returns the remaining answered calls that started before any other of them ended, and the first of their ends.
    fn window(&self, taken: &Taken) -> (Vec<usize>, u64) {
        let mut calls = Vec::new();
        let mut first_end = u64::MAX;
        for call in taken.first..self.answered.len() {
            if self.answered[call].start > first_end {
                break;
            }
            if taken.ahead.binary_search(&call).is_err() {
                first_end = first_end.min(self.answered[call].end);
                calls.push(call);
            }
        }
        (calls, first_end)
    }

    /// Takes the reads that fit, and finds the possible continuations.
    fn node(&mut self, mut taken: Taken, rows: Rows) -> Node {
        loop {
            let (window, first_end) = self.window(&taken);
            let before = taken.count();
            let mut next = Vec::new();
            // The calls whose turn in version order has come, and whether they fit.
            let mut fits = Vec::new();
            for call in window {
                let step = &self.answered[call].step;
                let is_put = !step.versions().is_empty();
                if is_put && self.versions.get(taken.versions).map(|(_, source)| *source) != Some(Source::Answered(call)) {
                    continue;
                }
                self.steps += 1;
                let after = rows.after(step);
                if step.is_read() && after.contains(&rows) {
                    taken.take(call);
                    continue;
                }
                fits.push((call, !after.is_empty()));
                for after in after {
                    let mut taken = taken.with(call);
                    taken.versions += usize::from(is_put);
                    next.push((taken, after));
                }
            }
            if taken.count() == before {
                next.reverse();
                let mut choices = self.open_choices(&taken, &rows, &fits, first_end);
                choices.extend(next);
                return Node { taken, rows, next: choices };
            }
            // Taking a call may allow others to be next, so try again.
        }
    }

    /// Returns the continuations by open calls.
    fn open_choices(&mut self, taken: &Taken, rows: &Rows, fits: &[(usize, bool)], first_end: u64) -> Vec<(Taken, Rows)> {
        let started = self.open.partition_point(|call| call.start <= first_end);
        let left: Vec<usize> = (0..started).filter(|call| taken.open.binary_search(call).is_err()).collect();
        if left.is_empty() {
            return Vec::new();
        }
        let wanted = match self.versions.get(taken.versions) {
            Some((_, Source::Open(row))) => Some(*row),
            Some((_, Source::Answered(_))) | None => None,
        };
        let needed = self.needed(rows, &left, fits, wanted);
        let mut choices = Vec::new();
        for call in left {
            let step = &self.open[call].step;
            for (versions, count) in self.version_choices(&step.puts(), taken.versions) {
                if count == taken.versions && !needed.contains(&call) {
                    continue;
                }
                self.steps += 1;
                if let Some(after) = rows.after_open(step, &versions).filter(|after| after != rows) {
                    choices.push((taken.with_open(call, count), after));
                }
            }
        }
        choices
    }

    /// Returns the possible versions for puts of some rows, given how many known versions have been put before, and how many afterwards.
    fn version_choices(&self, puts: &[usize], count: usize) -> Vec<(Vec<Option<u64>>, usize)> {
        let mut choices = vec![(Vec::new(), count)];
        for put in puts {
            let mut seen = choices.clone();
            seen.retain_mut(|(versions, count)| match self.versions.get(*count) {
                Some((version, Source::Open(row))) if row == put => {
                    versions.push(Some(*version));
                    *count += 1;
                    true
                }
                _ => false,
            });
            choices.iter_mut().for_each(|(versions, _)| versions.push(None));
            choices.extend(seen);
        }
        choices
    }

    /// Returns the open calls of `left` that are needed now although nobody saw a version of theirs: by answered calls that may
    /// come next, or by other needed open calls, or by those that put the `wanted` row.
    fn needed(&self, rows: &Rows, left: &[usize], fits: &[(usize, bool)], wanted: Option<usize>) -> BTreeSet<usize> {
        if self.compares_unseen_versions {
            return left.iter().copied().collect();
        }
        let is_of_use = |call: &Call, behind: &Call, fits: bool| {
            if !fits {
                return !call.writes.is_disjoint(&behind.reads);
            }
            let meets = !behind.writes.is_disjoint(&call.writes) || !behind.writes.is_disjoint(&call.reads);
            meets && !call.writes.is_subset(&behind.writes)
        };
        let mut behind: Vec<(&Call, bool)> = fits.iter().map(|(call, fits)| (&self.answered[*call], *fits)).collect();
        let open = |call: usize| {
            let step = &self.open[call].step;
            (&self.open[call], rows.after_open(step, &vec![None; step.puts().len()]).is_some())
        };
        behind.extend(left.iter().filter(|call| wanted.is_some_and(|row| self.open[**call].writes.contains(&row))).map(|call| open(*call)));
        let mut needed = BTreeSet::new();
        while let Some((behind_it, fits)) = behind.pop() {
            for call in left {
                if !needed.contains(call) && is_of_use(&self.open[*call], behind_it, fits) {
                    needed.insert(*call);
                    behind.push(open(*call));
                }
            }
        }
        needed
    }

    fn violation(&self, history: &[Operation], part: &Part<'_>, taken: &Taken, rows: &Rows) -> Violation {
        let (mut window, _) = self.window(taken);
        window.sort_by_key(|call| self.answered[*call].end);
        let operations: Vec<usize> = window.iter().map(|call| self.answered[*call].at).collect();
        let named = operations.first().map(|at| history[*at].places().0).unwrap_or_default();
        let unmade = match self.versions.get(taken.versions) {
            Some((version, Source::Open(row))) => {
                format!(", and version {version} of `{}` was seen but given to nobody", part.keys[*row].replace('\0', " "))
            }
            Some((_, Source::Answered(_))) | None => String::new(),
        };
        let message = format!(
            "no order explains the answers: after {} of {} calls, when {}, operation {} fits nowhere{unmade}",
            taken.count(),
            self.answered.len(),
            rows.describe(&part.keys, &named),
            operations.first().copied().unwrap_or_default(),
        );
        Violation::new(message, operations)
    }
}
