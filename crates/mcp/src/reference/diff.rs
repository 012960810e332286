//! Diffs of two texts as the reference server shows them: unified, with four lines of context.
//!
//! Several edit scripts can be shortest. This walks the edit graph in the same order as the reference server
//! ([Myers, 1986](https://doi.org/10.1007/BF01840446)), so that it finds the same one.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use treehold_core::work;

/// The number of context lines around a change.
const CONTEXT: usize = 4;

/// The most steps of the search for a shortest edit script, enough for about 2,000 differing lines. For larger differences, all lines
/// between the first and the last difference are shown as removed and added.
const STEPS_MAX: usize = 2_000_000;

/// The cost of a step in bytes: it allocates a run and inserts it into a tree.
const STEP_BYTES: usize = 256;

/// What happens to a run of lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Same,
    Removed,
    Added,
}

/// A run of lines, linked to the previous run of its path.
#[derive(Debug)]
struct Run {
    kind: Kind,
    count: usize,
    before: Option<Rc<Run>>,
}

/// A path in the edit graph: the number of old lines consumed, and its runs.
#[derive(Debug, Clone)]
struct Path {
    /// The number of old lines consumed.
    old: usize,
    last: Option<Rc<Run>>,
}

impl Path {
    fn with(&self, kind: Kind, count: usize) -> Self {
        let old = if kind == Kind::Added { self.old } else { self.old + count };
        let last = match &self.last {
            Some(last) if last.kind == kind => Run { kind, count: last.count + count, before: last.before.clone() },
            _ => Run { kind, count, before: self.last.clone() },
        };
        Self { old, last: Some(Rc::new(last)) }
    }
}

/// Returns the diff of two texts as a patch of one file.
pub(super) fn unified(path: &str, before: &str, after: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (lines(before), lines(after));
    let mut text = format!("Index: {path}\n{}\n--- {path}\toriginal\n+++ {path}\tmodified\n", "=".repeat(67));
    for hunk in hunks(&runs(&old, &new, STEPS_MAX), &old, &new) {
        text.push_str(&hunk);
    }
    text
}

fn lines(text: &str) -> Vec<&str> {
    text.split_inclusive('\n').inspect(|line| work::advance(line.len())).collect()
}

/// Returns the runs of lines that convert one text to the other.
fn runs<'t>(old: &[&'t str], new: &[&'t str], steps_max: usize) -> Vec<(Kind, usize)> {
    // Map lines to numbers, so that each is hashed only once.
    let mut numbers = HashMap::new();
    let mut numbered = |lines: &[&'t str]| -> Vec<usize> {
        let number = |line: &'t str| {
            work::advance(line.len() + 1);
            let next = numbers.len();
            *numbers.entry(line).or_insert(next)
        };
        lines.iter().copied().map(number).collect()
    };
    let (old_lines, new_lines) = (numbered(old), numbered(new));
    let (old, new) = (&old_lines[..], &new_lines[..]);
    let mut steps = 0;
    // The best path of each diagonal: old lines consumed minus new lines consumed.
    let mut best: BTreeMap<isize, Path> = BTreeMap::new();
    let start = follow(Path { old: 0, last: None }, 0, old, new);
    if start.old >= old.len() && start.old >= new.len() {
        return listed(start);
    }
    let (mut lowest, mut highest) = (isize::MIN, isize::MAX);
    best.insert(0, start);
    for length in 1..=(old.len() + new.len()) as isize {
        let mut diagonal = lowest.max(-length);
        while diagonal <= highest.min(length) {
            let removing = best.remove(&(diagonal - 1)).filter(|path| path.old < old.len());
            let adding = best.get(&(diagonal + 1)).filter(|path| {
                let passed = path.old as isize - diagonal - 1;
                passed >= 0 && (passed as usize) < new.len()
            });
            let path = match (removing, adding) {
                (None, None) => {
                    best.remove(&diagonal);
                    diagonal += 2;
                    continue;
                }
                (Some(removing), Some(adding)) if removing.old < adding.old => adding.with(Kind::Added, 1),
                (None, Some(adding)) => adding.with(Kind::Added, 1),
                (Some(removing), _) => removing.with(Kind::Removed, 1),
            };
            let passed = path.old;
            let path = follow(path, diagonal, old, new);
            steps += 1 + (path.old - passed) / 16;
            work::advance(STEP_BYTES);
            if steps > steps_max {
                return apart(old, new);
            }
            let new_passed = (path.old as isize - diagonal) as usize;
            if path.old >= old.len() && new_passed >= new.len() {
                return listed(path);
            }
            // Past the end of either text, no path continues.
            if path.old >= old.len() {
                highest = highest.min(diagonal - 1);
            }
            if new_passed >= new.len() {
                lowest = lowest.max(diagonal + 1);
            }
            best.insert(diagonal, path);
            diagonal += 2;
        }
    }
    apart(old, new)
}

/// Returns runs that keep only the common first and last lines.
fn apart(old: &[usize], new: &[usize]) -> Vec<(Kind, usize)> {
    let before = old.iter().zip(new).take_while(|(old, new)| old == new).count();
    let (old, new) = (&old[before..], &new[before..]);
    let after = old.iter().rev().zip(new.iter().rev()).take_while(|(old, new)| old == new).count();
    let runs = [(Kind::Same, before), (Kind::Removed, old.len() - after), (Kind::Added, new.len() - after), (Kind::Same, after)];
    runs.into_iter().filter(|(_, count)| *count > 0).collect()
}

/// Consumes equal lines.
fn follow(path: Path, diagonal: isize, old: &[usize], new: &[usize]) -> Path {
    let at = (path.old as isize - diagonal) as usize;
    let same = old[path.old..].iter().zip(&new[at..]).take_while(|(old, new)| old == new).count();
    if same == 0 { path } else { path.with(Kind::Same, same) }
}

fn listed(path: Path) -> Vec<(Kind, usize)> {
    let mut runs = Vec::new();
    let mut run = path.last;
    while let Some(last) = run {
        runs.push((last.kind, last.count));
        run = last.before.clone();
    }
    runs.reverse();
    runs
}

/// A hunk under construction.
#[derive(Debug, Default)]
struct Hunk {
    old_start: usize,
    new_start: usize,
    old_count: usize,
    new_count: usize,
    lines: String,
}

impl Hunk {
    fn push(&mut self, kind: Kind, line: &str) {
        let sign = match kind {
            Kind::Same => ' ',
            Kind::Removed => '-',
            Kind::Added => '+',
        };
        work::advance(line.len() + 1);
        self.old_count += usize::from(kind != Kind::Added);
        self.new_count += usize::from(kind != Kind::Removed);
        self.lines.push(sign);
        match line.strip_suffix('\n') {
            Some(body) => self.lines.push_str(&format!("{body}\n")),
            None => self.lines.push_str(&format!("{line}\n\\ No newline at end of file\n")),
        }
    }

    fn shown(&self) -> String {
        // An empty side is numbered by the line before it.
        let start = |start: usize, count: usize| if count == 0 { start - 1 } else { start };
        let (old, new) = (start(self.old_start, self.old_count), start(self.new_start, self.new_count));
        format!("@@ -{old},{} +{new},{} @@\n{}", self.old_count, self.new_count, self.lines)
    }
}

fn hunks(runs: &[(Kind, usize)], old: &[&str], new: &[&str]) -> Vec<String> {
    let mut hunks = Vec::new();
    let mut open: Option<Hunk> = None;
    let (mut old_at, mut new_at) = (0, 0);
    for (index, (kind, count)) in runs.iter().enumerate() {
        match kind {
            Kind::Same => {
                let is_last = index + 1 == runs.len();
                if let Some(mut hunk) = open.take() {
                    if *count <= 2 * CONTEXT && !is_last {
                        old[old_at..old_at + count].iter().for_each(|line| hunk.push(Kind::Same, line));
                        open = Some(hunk);
                    } else {
                        old[old_at..old_at + (*count).min(CONTEXT)].iter().for_each(|line| hunk.push(Kind::Same, line));
                        hunks.push(hunk.shown());
                    }
                }
                old_at += count;
                new_at += count;
            }
            kind => {
                let hunk = open.get_or_insert_with(|| {
                    let context = if index > 0 { old_at.min(CONTEXT) } else { 0 };
                    let mut hunk = Hunk { old_start: old_at - context + 1, new_start: new_at - context + 1, ..Hunk::default() };
                    old[old_at - context..old_at].iter().for_each(|line| hunk.push(Kind::Same, line));
                    hunk
                });
                if *kind == Kind::Removed {
                    old[old_at..old_at + count].iter().for_each(|line| hunk.push(Kind::Removed, line));
                    old_at += count;
                } else {
                    new[new_at..new_at + count].iter().for_each(|line| hunk.push(Kind::Added, line));
                    new_at += count;
                }
            }
        }
    }
    hunks.extend(open.map(|hunk| hunk.shown()));
    hunks
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hunks_of(before: &str, after: &str) -> String {
        unified("p", before, after).split_once("modified\n").expect("a head").1.to_owned()
    }

    #[test]
    fn hunks_have_four_lines_of_context() {
        assert_eq!(hunks_of("a\nb\n", "a\nb\n"), "");
        assert_eq!(hunks_of("a\nb\nc\n", "a\nB\nc\n"), "@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n");
        assert_eq!(hunks_of("a", "a\n"), "@@ -1,1 +1,1 @@\n-a\n\\ No newline at end of file\n+a\n");
        assert_eq!(hunks_of("a\n", ""), "@@ -1,1 +0,0 @@\n-a\n");
        let numbered = |skip: usize| (0..30).filter(|n| *n != skip).map(|n| format!("{n}\n")).collect::<String>();
        assert_eq!(hunks_of(&numbered(99), &numbered(15)), "@@ -12,9 +12,8 @@\n 11\n 12\n 13\n 14\n-15\n 16\n 17\n 18\n 19\n");
    }

    /// Regression: this took more than a minute, and the time grew with the square of the number of lines.
    #[test]
    fn unrelated_texts_are_shown_as_removed_and_added() {
        let text = |name: &str| (0..60_000).map(|number| format!("{name} {number}\n")).collect::<String>();
        let (old, new) = (format!("same\n{}same\n", text("old")), format!("same\n{}same\n", text("new")));
        let shown = hunks_of(&old, &new);
        assert!(shown.starts_with("@@ -1,60002 +1,60002 @@\n same\n-old 0\n") && shown.ends_with("+new 59999\n same\n"));
    }

    proptest! {
        #[test]
        fn runs_convert_one_text_to_the_other(old in "[abc\n]{0,40}", new in "[abc\n]{0,40}", steps_max in 0..60_usize) {
            let (old, new): (Vec<&str>, Vec<&str>) = (old.split_inclusive('\n').collect(), new.split_inclusive('\n').collect());
            let (mut made, mut old_at, mut new_at) = (Vec::<&str>::new(), 0, 0);
            for (kind, count) in runs(&old, &new, steps_max) {
                match kind {
                    Kind::Same => made.extend(&old[old_at..old_at + count]),
                    Kind::Added => made.extend(&new[new_at..new_at + count]),
                    Kind::Removed => {}
                }
                old_at += if kind == Kind::Added { 0 } else { count };
                new_at += if kind == Kind::Removed { 0 } else { count };
            }
            prop_assert_eq!((old_at, new_at), (old.len(), new.len()));
            prop_assert_eq!(made, new);
        }
    }
}
