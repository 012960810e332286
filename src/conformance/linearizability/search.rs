//! The search for an order of the calls of one part of a history.
//!
//! The calls without an answer are what makes it long, as each may stand anywhere behind its start, or nowhere. So they are
//! taken only where they are needed. A version that was seen and given to nobody is that of a put nobody has the answer of:
//! all versions, given or seen, are put in their order. Else a call without an answer is taken right before one that would not
//! fit without it, or that would overwrite only some of what it changes; one that may stand further back may stand there.

use super::rows::{Rows, Step, Values};
use super::{Operation, Part, Verdict, Violation};
use std::collections::{BTreeSet, HashSet};

/// A call.
struct Call {
    /// Where it stands in the history.
    at: usize,
    start: u64,
    /// At the end of time for one without an answer.
    end: u64,
    step: Step,
    /// The rows that it depends on.
    reads: BTreeSet<usize>,
    /// The rows that it changes.
    writes: BTreeSet<usize>,
}

/// Who put a version that is known of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    /// The call with an answer.
    Answered(usize),
    /// A call without one, that put this row.
    Open(usize),
}

/// Which calls are in the order already.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Taken {
    /// All answered calls before this one, and it is not.
    first: usize,
    /// The answered calls behind it that are, in order.
    ahead: Vec<usize>,
    /// The open calls that are, in order.
    open: Vec<usize>,
    /// How many of the versions that are known of were put.
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

/// How far an order came: what is in it, what the rows are then, and what may come next, the best last.
struct Node {
    taken: Taken,
    rows: Rows,
    next: Vec<(Taken, Rows)>,
}

struct Search {
    /// By their start.
    answered: Vec<Call>,
    /// By their start.
    open: Vec<Call>,
    /// Every version that is known of, in order.
    versions: Vec<(u64, Source)>,
    /// Some call compares versions that are not among them.
    compares_others: bool,
    steps: u64,
}

/// Looks for an order of the calls of a part, in at most `steps_max` tries of one call.
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
        let compares_others = answered.iter().chain(&open).any(|call| call.step.compares_others(is_known));
        let first = |(at, call): (usize, &Call)| Some((*call.step.versions().first()?, Source::Answered(at)));
        let mut versions: Vec<(u64, Source)> = answered.iter().enumerate().filter_map(first).collect();
        versions.extend(seen.into_iter().map(|(version, row)| (version, Source::Open(row))));
        versions.sort_unstable();
        Self { answered, open, versions, compares_others, steps: 0 }
    }

    /// Returns the answered calls of which none ended before another one started, and the first of their ends.
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

    /// Takes what reads and fits, and finds what may come next.
    fn node(&mut self, mut taken: Taken, rows: Rows) -> Node {
        loop {
            let (window, first_end) = self.window(&taken);
            let before = taken.count();
            let mut next = Vec::new();
            // Those that come when their turn among the versions has come, and whether they fit.
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
            // What was taken may have been all that kept others from being next.
        }
    }

    /// Returns what may come of the open calls that may come next.
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

    /// Returns the versions that puts of some rows may have when so many of those that are known of were put, and how many
    /// were put then.
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

    /// Returns which of the open calls that are `left` are of use now, though nobody saw a version of theirs: by the answered
    /// calls that may come next, and by the open ones that are of use or put the row whose version is `wanted` next.
    fn needed(&self, rows: &Rows, left: &[usize], fits: &[(usize, bool)], wanted: Option<usize>) -> BTreeSet<usize> {
        if self.compares_others {
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
                format!(", and version {version} of `{}` was seen and given to nobody", part.keys[*row].replace('\0', " "))
            }
            Some((_, Source::Answered(_))) | None => String::new(),
        };
        let message = format!(
            "no order explains the answers: behind {} of {} calls, when {}, operation {} fits nowhere{unmade}",
            taken.count(),
            self.answered.len(),
            rows.describe(&part.keys, &named),
            operations.first().copied().unwrap_or_default(),
        );
        Violation::new(message, operations)
    }
}
