//! Three-way merge of texts, line by line. Pure, on bytes.
//!
//! Lines that only one side changed are taken from that side. A change that both sides made is taken once. Changes that overlap
//! or touch, without an unchanged line between them, conflict. This is the rule of
//! [`git merge-file`](https://git-scm.com/docs/git-merge-file), which a test compares this with.
//!
//! Lines end at `\n` and are compared byte for byte. So text with `\r\n` keeps it, and a last line without a line break differs
//! from the same line with one.

use super::{count_lines, scan};
use crate::file::is_binary;
use crate::work;
use similar::{Algorithm, DiffOp, capture_diff_slices_deadline};
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::time::{Duration, Instant};

/// The largest text that is merged by lines, in bytes.
pub const MERGE_BYTES_MAX: u64 = 8 << 20;

/// The most lines in a text that is merged by lines.
pub const MERGE_LINES_MAX: usize = 200_000;

/// How long a comparison searches for a minimal difference. The rest is then compared coarsely, which makes conflicts larger but
/// never wrong.
const COMPARED_FOR: Duration = Duration::from_secs(2);

/// Returns whether some content can be merged by lines: it is text and not too large.
pub fn is_mergeable(content: &[u8]) -> bool {
    content.len() as u64 <= MERGE_BYTES_MAX && !is_binary(content) && count_lines(content) <= MERGE_LINES_MAX
}

/// The result of merging two texts.
#[derive(Debug)]
pub struct LineMerge<'t> {
    base: Vec<&'t [u8]>,
    ours: Vec<&'t [u8]>,
    theirs: Vec<&'t [u8]>,
    regions: Vec<Region>,
}

/// The corresponding lines of three texts, counted from 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hunk {
    /// The lines of the common ancestor.
    pub base: Range<usize>,
    /// The lines of our side.
    pub ours: Range<usize>,
    /// The lines of their side.
    pub theirs: Range<usize>,
}

/// Corresponding lines of three texts, and how to merge them.
#[derive(Debug)]
struct Region {
    origin: Origin,
    hunk: Hunk,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// Take ours: nobody changed it, only we did, or both made the same change.
    Ours,
    /// Take theirs: only they changed it.
    Theirs,
    /// Both changed it.
    Conflict,
}

/// Which lines to take in a conflict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Take {
    /// Ours.
    Ours,
    /// Theirs.
    Theirs,
    /// Ours, then theirs. Lines that both begin or end with are taken once.
    Union,
}

/// How to write a conflict into the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MarkerStyle {
    /// Both sides. Lines that both begin or end with are outside of the markers, once.
    #[default]
    Sides,
    /// Both sides in full, with the common ancestor between them: git's `diff3`.
    Diff3,
}

/// The names that markers give to the sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MarkerNames<'n> {
    /// Our side.
    pub ours: &'n str,
    /// The common ancestor.
    pub base: &'n str,
    /// Their side.
    pub theirs: &'n str,
}

/// Merges two texts that descend from `base`, by lines.
///
/// Check [`is_mergeable`] first. Cost: two line comparisons, each of which searches for a minimal difference for at most two
/// seconds.
pub fn merge<'t>(base: &'t [u8], ours: &'t [u8], theirs: &'t [u8]) -> LineMerge<'t> {
    let (base, ours, theirs) = (lines(base), lines(ours), lines(theirs));
    let mut numbers = LineNumbers::default();
    let mut numbered = |lines: &[&'t [u8]]| numbers.of(lines);
    let (base_numbers, our_numbers, their_numbers) = (numbered(&base), numbered(&ours), numbered(&theirs));
    let edits = [edits(&base_numbers, &our_numbers), edits(&base_numbers, &their_numbers)];
    let is_same = |hunk: &Hunk| our_numbers[hunk.ours.clone()] == their_numbers[hunk.theirs.clone()];
    let regions = regions(base.len(), &edits, is_same);
    LineMerge { base, ours, theirs, regions }
}

/// Splits content into lines, each with its line break.
fn lines(content: &[u8]) -> Vec<&[u8]> {
    content.split_inclusive(|byte| *byte == b'\n').inspect(|line| work::advance(line.len())).collect()
}

/// A line as a number. Each comparison counts as work, so that a merge ends when nobody waits for it any more.
#[derive(Debug, Clone, Copy, Eq)]
pub struct Line(usize);

/// Numbers lines, so that each is hashed and compared byte for byte once.
#[derive(Debug, Default)]
pub struct LineNumbers<'t>(HashMap<&'t [u8], usize>);

impl<'t> LineNumbers<'t> {
    /// Returns the numbers of lines; equal lines have equal numbers.
    pub fn of(&mut self, lines: &[&'t [u8]]) -> Vec<Line> {
        let number = |line: &'t [u8]| {
            work::advance(line.len());
            let next = self.0.len();
            Line(*self.0.entry(line).or_insert(next))
        };
        lines.iter().copied().map(number).collect()
    }
}

/// The cost of comparing two lines, including the work around it.
const COMPARED_BYTES: usize = 16;

impl PartialEq for Line {
    fn eq(&self, other: &Self) -> bool {
        work::advance(COMPARED_BYTES);
        self.0 == other.0
    }
}

impl Hash for Line {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

/// Lines of the base that one side replaced.
#[derive(Debug)]
struct LineEdit {
    base: Range<usize>,
    side_len: usize,
}

fn edits(base: &[Line], side: &[Line]) -> Vec<LineEdit> {
    let deadline = Instant::now().checked_add(COMPARED_FOR);
    let mut edits: Vec<LineEdit> = Vec::new();
    for op in capture_diff_slices_deadline(Algorithm::Myers, base, side, deadline) {
        if matches!(op, DiffOp::Equal { .. }) {
            continue;
        }
        match edits.last_mut() {
            Some(last) if last.base.end == op.old_range().start => {
                last.base.end = op.old_range().end;
                last.side_len += op.new_range().len();
            }
            _ => edits.push(LineEdit { base: op.old_range(), side_len: op.new_range().len() }),
        }
    }
    edits
}

/// Walks the edits of both sides in order, and joins those that overlap or touch.
fn regions(base_len: usize, edits: &[Vec<LineEdit>; 2], is_same: impl Fn(&Hunk) -> bool) -> Vec<Region> {
    let mut regions = Vec::new();
    let mut ahead = [edits[0].iter().peekable(), edits[1].iter().peekable()];
    // The position reached in each text.
    let mut at = Hunk { base: 0..0, ours: 0..0, theirs: 0..0 };
    let mut push = |origin, base: Range<usize>, lens: [usize; 2], at: &mut Hunk| {
        let next = |range: &Range<usize>, len: usize| range.end..range.end + len;
        *at = Hunk { base, ours: next(&at.ours, lens[0]), theirs: next(&at.theirs, lens[1]) };
        let origin = if origin == Origin::Conflict && is_same(at) { Origin::Ours } else { origin };
        regions.push(Region { origin, hunk: at.clone() });
    };
    loop {
        let next = |side: &mut std::iter::Peekable<std::slice::Iter<'_, LineEdit>>| side.peek().map(|edit| edit.base.start);
        let [ours, theirs] = &mut ahead;
        let Some(start) = [next(ours), next(theirs)].into_iter().flatten().min() else { break };
        if start > at.base.end {
            let unchanged = at.base.end..start;
            let len = unchanged.len();
            push(Origin::Ours, unchanged, [len, len], &mut at);
        }
        let mut end = start;
        // For each side, how many base lines it replaced in this region, and by how many lines.
        let mut changed: [Option<(usize, usize)>; 2] = [None, None];
        while let Some((side, edit)) = [0, 1].into_iter().find_map(|side| Some((side, ahead[side].next_if(|edit| edit.base.start <= end)?)))
        {
            end = end.max(edit.base.end);
            let (of_base, of_side) = changed[side].unwrap_or_default();
            changed[side] = Some((of_base + edit.base.len(), of_side + edit.side_len));
        }
        let origin = match changed {
            [_, None] => Origin::Ours,
            [None, _] => Origin::Theirs,
            _ => Origin::Conflict,
        };
        let lens = changed.map(|changed| {
            let (of_base, of_side) = changed.unwrap_or_default();
            end - start - of_base + of_side
        });
        push(origin, start..end, lens, &mut at);
    }
    if at.base.end < base_len {
        let len = base_len - at.base.end;
        push(Origin::Ours, at.base.end..base_len, [len, len], &mut at);
    }
    regions
}

impl<'t> LineMerge<'t> {
    /// Returns the conflicts.
    pub fn conflicts(&self) -> impl Iterator<Item = &Hunk> {
        self.regions.iter().filter(|region| region.origin == Origin::Conflict).map(|region| &region.hunk)
    }

    /// Returns the lines of the three texts in a hunk.
    pub fn texts(&self, hunk: &Hunk) -> [Vec<u8>; 3] {
        [self.base[hunk.base.clone()].concat(), self.ours[hunk.ours.clone()].concat(), self.theirs[hunk.theirs.clone()].concat()]
    }

    /// Returns the merged text, or `None` if there are conflicts.
    pub fn merged(&self) -> Option<Vec<u8>> {
        self.conflicts().next().is_none().then(|| self.taking(Take::Ours))
    }

    /// Returns the merged text, resolving conflicts by `take`.
    pub fn taking(&self, take: Take) -> Vec<u8> {
        self.written(|text, hunk| {
            let (ours, theirs) = self.sides(hunk);
            match take {
                Take::Ours => text.extend(ours.concat()),
                Take::Theirs => text.extend(theirs.concat()),
                Take::Union => {
                    let (before, after) = in_common(ours, theirs);
                    text.extend(ours[..ours.len() - after].concat());
                    if before < theirs.len() {
                        end_line(text, self.line_end(hunk));
                    }
                    text.extend(theirs[before..].concat());
                }
            }
        })
    }

    /// Returns the merged text, with conflicts between markers.
    pub fn marked(&self, names: MarkerNames<'_>, style: MarkerStyle) -> Vec<u8> {
        self.written(|text, hunk| {
            let (ours, theirs) = self.sides(hunk);
            let (before, after) = match style {
                MarkerStyle::Sides => in_common(ours, theirs),
                MarkerStyle::Diff3 => (0, 0),
            };
            let end = self.line_end(hunk);
            text.extend(ours[..before].concat());
            push_marker(text, "<<<<<<<", names.ours, end);
            text.extend(ours[before..ours.len() - after].concat());
            end_line(text, end);
            if style == MarkerStyle::Diff3 {
                push_marker(text, "|||||||", names.base, end);
                text.extend(self.base[hunk.base.clone()].concat());
                end_line(text, end);
            }
            push_marker(text, "=======", "", end);
            text.extend(theirs[before..theirs.len() - after].concat());
            end_line(text, end);
            push_marker(text, ">>>>>>>", names.theirs, end);
            text.extend(ours[ours.len() - after..].concat());
        })
    }

    fn written(&self, mut conflict: impl FnMut(&mut Vec<u8>, &Hunk)) -> Vec<u8> {
        let mut text = Vec::new();
        for Region { origin, hunk } in &self.regions {
            match origin {
                Origin::Ours => scan::push(&mut text, &self.ours[hunk.ours.clone()].concat()),
                Origin::Theirs => scan::push(&mut text, &self.theirs[hunk.theirs.clone()].concat()),
                Origin::Conflict => conflict(&mut text, hunk),
            }
        }
        text
    }

    fn sides(&self, hunk: &Hunk) -> (&[&'t [u8]], &[&'t [u8]]) {
        (&self.ours[hunk.ours.clone()], &self.theirs[hunk.theirs.clone()])
    }

    /// Returns the line ending of the markers of a conflict. It is `\r\n` if, as in git, the line before the conflict on both
    /// sides and the first line of the base end so. Texts without any line break do not count.
    fn line_end(&self, hunk: &Hunk) -> &'static str {
        let texts = [(&self.ours, hunk.ours.start), (&self.theirs, hunk.theirs.start), (&self.base, 0)];
        let said: Vec<bool> = texts.into_iter().filter_map(|(lines, start)| is_crlf(lines, start.saturating_sub(1))).collect();
        if !said.is_empty() && said.into_iter().all(|is_crlf| is_crlf) { "\r\n" } else { "\n" }
    }
}

/// Returns whether a line ends with `\r\n`. For a last line without a line break, the one before decides. Returns `None` if
/// neither has a line break.
fn is_crlf(lines: &[&[u8]], at: usize) -> Option<bool> {
    let line = lines.get(at)?;
    if line.ends_with(b"\n") {
        return Some(line.ends_with(b"\r\n"));
    }
    lines.get(at.checked_sub(1)?).map(|line| line.ends_with(b"\r\n"))
}

fn push_marker(text: &mut Vec<u8>, marker: &str, name: &str, end: &str) {
    let space = if name.is_empty() { "" } else { " " };
    text.extend_from_slice(format!("{marker}{space}{name}{end}").as_bytes());
}

/// Ends the last line of a text, since another line follows.
fn end_line(text: &mut Vec<u8>, end: &str) {
    if text.last().is_some_and(|last| *last != b'\n') {
        text.extend_from_slice(end.as_bytes());
    }
}

/// Returns how many lines both begin with, and how many of the remaining lines both end with.
fn in_common(ours: &[&[u8]], theirs: &[&[u8]]) -> (usize, usize) {
    let before = ours.iter().zip(theirs).take_while(|(one, other)| one == other).count();
    let after = ours[before..].iter().rev().zip(theirs[before..].iter().rev()).take_while(|(one, other)| one == other).count();
    (before, after)
}

#[cfg(test)]
mod laws;
