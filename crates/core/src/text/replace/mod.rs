//! Replaces text within some content, treating line endings as units. Pure, on bytes.
//!
//! A line ending is `\r\n`, or a `\n` without a `\r` before it. Any other `\r` is an ordinary character. A line ending in the
//! text to replace matches a whole line ending of the content, of either kind. Line endings in the new text take the kind that
//! the content has there (see [`edit`]). So an edit never splits a `\r\n`, and bytes outside the match do not change.
//!
//! Matching works on *folded* text, in which every line ending is `\n`. A position in it is mapped back to the content by
//! counting the `\r\n` before it, in one pass.

use super::{line_at, scan};
use crate::error::{Error, ErrorKind, Result};
use crate::ops::Edit;
use crate::work;
use bytes::Bytes;
use memchr::{memchr, memchr_iter, memmem, memrchr};
use std::borrow::Cow;
use std::ops::Range;

/// The most line numbers that an `ambiguous` error lists.
const LINES_NAMED_MAX: usize = 20;

/// The largest file, in bytes, that replacements may produce.
pub const EDITED_BYTES_MAX: usize = 256 << 20;

/// The most work of one call, as the number of edits times the size of the content in bytes. This takes a few seconds.
pub const EDIT_WORK_BYTES_MAX: u64 = 4 << 30;

/// The fixed cost of one edit, in addition to the content that it scans, in bytes.
const EDIT_ALONE_BYTES: usize = 1 << 10;

/// The longest text in bytes, and the longest result, that is edited without looking at its line endings: some microseconds of work.
const SHORT_BYTES: usize = 64 << 10;
const SHORT_RESULT_BYTES: usize = 1 << 20;

/// Applies replacements to some content in order. Returns the new content and the number of replaced occurrences.
///
/// `old` matches byte for byte except for line endings: each `\n` or `\r\n` in it matches one whole line ending of either kind.
/// Bytes that are not replaced do not change. The kind of each line ending in `new` follows from where it is inserted:
///
/// 1. If `old` spans line endings: lines that `old` and `new` both begin with, and lines that both end with, keep their endings.
///    The lines between them take the endings of the replaced lines in order; further ones take that of the line before.
/// 2. If `old` is within one line: the ending of that line, or of the line before if it is a last line without one.
/// 3. If the content has no line ending: as written in `new`.
///
/// If `old` and `new` differ only in their line endings, the edit converts line endings: both are taken exactly as written.
///
/// # Errors
/// [`InvalidArgument`](ErrorKind::InvalidArgument) for no edits or an empty `old`, [`NoMatch`](ErrorKind::NoMatch) if `old` does
/// not occur, [`Ambiguous`](ErrorKind::Ambiguous) (with the lines) if it occurs more than once without `replace_all`,
/// [`TooLarge`](ErrorKind::TooLarge) if a replacement would grow the content over [`EDITED_BYTES_MAX`], or if the edits exceed
/// [`EDIT_WORK_BYTES_MAX`].
pub fn edit(content: &[u8], edits: &[Edit]) -> Result<(Vec<u8>, usize)> {
    edit_up_to(content, edits, EDITED_BYTES_MAX)
}

/// [`edit`] with a limit of the caller instead of [`EDITED_BYTES_MAX`].
fn edit_up_to(content: &[u8], edits: &[Edit], edited_bytes_max: usize) -> Result<(Vec<u8>, usize)> {
    if edits.is_empty() {
        return Err(Error::invalid_argument("no edit was given; name at least one text to replace"));
    }
    let mut current = Cow::Borrowed(content);
    let mut replaced = 0;
    let mut worked_bytes = 0_u64;
    for (index, edit) in edits.iter().enumerate() {
        work::advance(EDIT_ALONE_BYTES);
        // Each replacement scans the whole content, so the minimum cost of the later ones is known before the first.
        let rest = (edits.len() - index) as u64;
        if edits.len() > 1 && worked_bytes.saturating_add(rest.saturating_mul(current.len() as u64)) > EDIT_WORK_BYTES_MAX {
            let count = (EDIT_WORK_BYTES_MAX / (current.len() as u64).max(1)).max(1);
            let message = format!(
                "{} edits of a file of {} bytes are too much work for one call; send at most {count} at once, or write the whole file",
                edits.len(),
                current.len()
            );
            return Err(Error::new(ErrorKind::TooLarge, message));
        }
        worked_bytes += current.len() as u64;
        // Say which of several edits failed, so that the caller can correct just that one.
        let label = if edits.len() == 1 { String::new() } else { format!("edit {} of {}: ", index + 1, edits.len()) };
        let (next, count) = edit_once(&current, edit, edited_bytes_max).map_err(|error| {
            let message = format!("{label}{}", error.message());
            error.with_message(message)
        })?;
        current = Cow::Owned(next);
        replaced += count;
    }
    Ok((current.into_owned(), replaced))
}

/// Like [`edit`], but runs in the background if it is a lot of work, and stops if the caller goes away.
///
/// # Errors
/// Those of [`edit`] and of [`work::run`].
pub async fn edit_apart(content: &Bytes, edits: &[Edit]) -> Result<(Vec<u8>, usize)> {
    let read_bytes = (content.len() as u64).saturating_mul(edits.len() as u64);
    // An edit that is rejected immediately needs no background thread.
    if edits.len() > 1 && read_bytes > EDIT_WORK_BYTES_MAX {
        return edit(content, edits);
    }
    let cost_bytes = cost_bytes(content.len(), edits);
    if cost_bytes <= work::IN_PLACE_BYTES {
        return edit(content, edits);
    }
    let (content, edits) = (content.clone(), edits.to_vec());
    work::run(cost_bytes, move |_| edit(&content, &edits)).await?
}

/// Returns an upper bound of the bytes that the edits read and write. A few short edits may turn small content into large.
fn cost_bytes(size_bytes: usize, edits: &[Edit]) -> u64 {
    let (mut size, mut cost) = (size_bytes as u64, 0_u64);
    for edit in edits {
        // A `\r\n` in `old` may match one byte, and each `\n` in `new` may become two.
        let places = if edit.replace_all { size / (edit.old.len() as u64).div_ceil(2).max(1) } else { 1 };
        let put = places.saturating_mul(2 * edit.new.len() as u64);
        let next = size.saturating_add(put).min(size.max(EDITED_BYTES_MAX as u64));
        cost = cost.saturating_add(size).saturating_add(next);
        size = next;
    }
    cost
}

fn edit_once(content: &[u8], edit: &Edit, edited_bytes_max: usize) -> Result<(Vec<u8>, usize)> {
    if edit.old.is_empty() {
        return Err(Error::invalid_argument("the text to replace is empty; name the text, or write the whole file"));
    }
    edit_short(content, edit, edited_bytes_max).map_or_else(|| edit_any(content, edit, edited_bytes_max), Ok)
}

/// Applies an edit to a short text whose line endings are all `\n`: bytes are replaced as they are. Returns `None` for any other text, and
/// for an edit that is refused.
fn edit_short(content: &[u8], edit: &Edit, edited_bytes_max: usize) -> Option<(Vec<u8>, usize)> {
    let (old, new) = (edit.old.as_bytes(), edit.new.as_bytes());
    let is_short = [content, old, new].iter().all(|text| text.len() <= SHORT_BYTES && memchr(b'\r', text).is_none());
    if !is_short {
        return None;
    }
    work::advance(content.len());
    let mut result = Vec::with_capacity(content.len());
    let (mut end, mut count) = (0, 0);
    for start in memmem::find_iter(content, old) {
        count += 1;
        result.extend_from_slice(&content[end..start]);
        result.extend_from_slice(new);
        end = start + old.len();
        if (count > 1 && !edit.replace_all) || result.len() > SHORT_RESULT_BYTES {
            return None;
        }
    }
    result.extend_from_slice(&content[end..]);
    (count > 0 && result.len() <= edited_bytes_max.max(content.len())).then_some((result, count))
}

/// Applies an edit to any text.
fn edit_any(content: &[u8], edit: &Edit, edited_bytes_max: usize) -> Result<(Vec<u8>, usize)> {
    let sought = Sought::new(content, edit);
    let count = sought.places().count();
    match count {
        0 => return Err(no_match(content, edit, sought.is_exact)),
        count if count > 1 && !edit.replace_all => return Err(ambiguous(&sought, count)),
        _ => {}
    }
    let mut replacement = Replacement::new(content, edit.old.as_bytes(), edit.new.as_bytes(), sought.is_exact);
    let too_large = || {
        Error::new(
            ErrorKind::TooLarge,
            format!(
                "{count} replacements would make the file larger than {edited_bytes_max} bytes; replace fewer \
                occurrences or use a shorter text"
            ),
        )
    };
    // A few bytes can request huge results, so compute the minimum size before building anything.
    let size_max = edited_bytes_max.max(content.len());
    let kept_min = content.len().saturating_sub(count.saturating_mul(edit.old.len() + replacement.replaced_endings));
    let size_min = count.checked_mul(replacement.size_min()).and_then(|added| added.checked_add(kept_min));
    let size_min = size_min.filter(|size| *size <= size_max).ok_or_else(too_large)?;
    let mut result = Vec::with_capacity(size_min.max(content.len()));
    let mut end = 0;
    for place in sought.places() {
        scan::push(&mut result, &content[end..place.start]);
        end = place.end;
        replacement.push_to(&mut result, place);
        if result.len().saturating_add(content.len() - end) > size_max {
            return Err(too_large());
        }
    }
    scan::push(&mut result, &content[end..]);
    Ok((result, count))
}

/// Replaces only the first occurrence of an edit's text. Returns `None` if it does not occur.
pub fn replace_first(content: &[u8], edit: &Edit) -> Option<Vec<u8>> {
    let sought = Sought::new(content, edit);
    let place = sought.places().next()?;
    let mut result = content[..place.start].to_vec();
    Replacement::new(content, edit.old.as_bytes(), edit.new.as_bytes(), sought.is_exact).push_to(&mut result, place.clone());
    result.extend_from_slice(&content[place.end..]);
    Some(result)
}

/// Replaces one range of some content, choosing line endings as [`edit`] does.
///
/// The range must not start or end within a `\r\n`.
pub fn splice(content: &[u8], place: Range<usize>, new: &[u8]) -> Vec<u8> {
    let mut result = content[..place.start].to_vec();
    Replacement::new(content, &content[place.clone()], new, false).push_to(&mut result, place.clone());
    result.extend_from_slice(&content[place.end..]);
    result
}

/// Counts the occurrences of an edit's text, as [`edit`] does.
pub fn occurrences(content: &[u8], edit: &Edit) -> usize {
    if edit.old.is_empty() { 0 } else { Sought::new(content, edit).places().count() }
}

/// Finds the first occurrence of an edit's text.
pub fn position(content: &[u8], edit: &Edit) -> Option<Range<usize>> {
    Sought::new(content, edit).places().next()
}

/// Returns a text with every line ending as `\n`. Borrows it if there are no others.
pub fn folded(text: &[u8]) -> Cow<'_, [u8]> {
    let finder = memmem::Finder::new(b"\r\n");
    let Some(first) = scan::find(&finder, text) else { return Cow::Borrowed(text) };
    let mut folded = Vec::with_capacity(text.len());
    let (mut at, mut next) = (0, Some(first));
    while let Some(end) = next {
        scan::push(&mut folded, &text[at..end]);
        at = end + 1;
        next = scan::find(&finder, &text[at..]).map(|found| at + found);
    }
    scan::push(&mut folded, &text[at..]);
    Cow::Owned(folded)
}

/// A line ending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineEnding {
    /// `\n`.
    Lf,
    /// `\r\n`.
    CrLf,
}

impl LineEnding {
    /// Returns the line ending whose `\n` is at `at`.
    fn at(content: &[u8], at: usize) -> Self {
        if at > 0 && content[at - 1] == b'\r' { Self::CrLf } else { Self::Lf }
    }

    /// Returns the ending of a line, or `None` for a last line without one.
    pub fn of_line(line: &[u8]) -> Option<Self> {
        line.ends_with(b"\n").then(|| Self::at(line, line.len() - 1))
    }

    /// Returns its bytes.
    pub fn bytes(self) -> &'static [u8] {
        match self {
            Self::Lf => b"\n",
            Self::CrLf => b"\r\n",
        }
    }
}

/// Returns the ending for a line inserted before the line `index`, given the endings of all lines: that of the nearest line
/// before it, else of the first line after it, else `\n`.
pub fn ending_before(endings: &[Option<LineEnding>], index: usize) -> LineEnding {
    let (before, behind) = endings.split_at(index.min(endings.len()));
    before.iter().rev().chain(behind).find_map(|ending| *ending).unwrap_or(LineEnding::Lf)
}

/// Searches some content for the text of an edit.
struct Sought<'c> {
    content: &'c [u8],
    /// The text that is searched: the content itself if line endings must match exactly, else its folded form.
    searched: Cow<'c, [u8]>,
    old: Cow<'c, [u8]>,
    /// Whether the edit converts line endings, so that they must match exactly.
    is_exact: bool,
}

impl<'c> Sought<'c> {
    fn new(content: &'c [u8], edit: &'c Edit) -> Self {
        let (old, new) = (edit.old.as_bytes(), edit.new.as_bytes());
        let is_exact = old != new && folded(old) == folded(new);
        let (searched, old) = if is_exact { (content.into(), old.into()) } else { (folded(content), folded(old)) };
        Self { content, searched, old, is_exact }
    }

    /// Returns the occurrences in order, from left to right and without overlaps.
    fn places(&self) -> Box<dyn Iterator<Item = Range<usize>> + '_> {
        if self.is_exact && (self.old.starts_with(b"\n") || self.old.ends_with(b"\r")) {
            // An occurrence that would split a line ending does not count, but one that overlaps it may.
            let length = self.old.len();
            let ends = scan::ends(&self.searched, &self.old, move |end| !self.splits_ending(end - length) && !self.splits_ending(end));
            return Box::new(ends.map(move |end| end - length..end));
        }
        let finder = memmem::Finder::new(&*self.old);
        let mut from = 0;
        let mut origin = Origin::new(self.content, &self.searched);
        Box::new(std::iter::from_fn(move || {
            let start = from + scan::find(&finder, self.searched.get(from..)?)?;
            from = start + self.old.len();
            Some(origin.of(start)..origin.of(from))
        }))
    }

    /// Returns whether a position is between the `\r` and the `\n` of one line ending.
    fn splits_ending(&self, at: usize) -> bool {
        at > 0 && self.content[at - 1] == b'\r' && self.content.get(at) == Some(&b'\n')
    }
}

/// Maps increasing positions in folded content to positions in the content.
struct Origin<'c> {
    content: &'c [u8],
    at: usize,
    folded_at: usize,
    /// The next `\r\n` at or after `at`.
    next: Option<usize>,
    finder: memmem::Finder<'static>,
}

impl<'c> Origin<'c> {
    fn new(content: &'c [u8], searched: &[u8]) -> Self {
        let finder = memmem::Finder::new(b"\r\n");
        let next = if searched.len() == content.len() { None } else { scan::find(&finder, content) };
        Self { content, at: 0, folded_at: 0, next, finder }
    }

    fn of(&mut self, folded: usize) -> usize {
        while let Some(next) = self.next {
            let folded_next = self.folded_at + (next - self.at);
            if folded_next >= folded {
                break;
            }
            self.at = next + 2;
            self.folded_at = folded_next + 1;
            self.next = scan::find(&self.finder, &self.content[self.at..]).map(|found| self.at + found);
        }
        self.at += folded - self.folded_at;
        self.folded_at = folded;
        self.at
    }
}

/// The replacement text, split at its line endings.
struct Replacement<'c> {
    content: &'c [u8],
    /// One more than there are line endings.
    lines: Vec<&'c [u8]>,
    written: Vec<LineEnding>,
    endings: Endings,
    /// The number of line endings in the replaced text.
    replaced_endings: usize,
    /// The line endings of the current occurrence.
    replaced: Vec<LineEnding>,
}

/// Where the line endings of a replacement come from.
enum Endings {
    AsWritten,
    /// For each, the index of the replaced line ending it takes.
    Replaced(Vec<usize>),
    /// The ending in force at each occurrence. `next` caches the next ending in the content and the position of its `\n`; `last`
    /// is the last ending, for occurrences after all others.
    InForce {
        next: Option<(usize, LineEnding)>,
        last: (usize, LineEnding),
    },
}

impl<'c> Replacement<'c> {
    fn new(content: &'c [u8], old: &[u8], new: &'c [u8], is_exact: bool) -> Self {
        let (lines, written) = cut(new);
        let (old_lines, old_endings) = cut(old);
        let last = memrchr(b'\n', content).map(|at| (at, LineEnding::at(content, at)));
        let endings = match last {
            _ if is_exact => Endings::AsWritten,
            None => Endings::AsWritten,
            Some(last) if old_endings.is_empty() => Endings::InForce { next: None, last },
            Some(_) => Endings::Replaced(sources(&old_lines[..old_endings.len()], &lines[..written.len()])),
        };
        Self { content, lines, written, endings, replaced_endings: old_endings.len(), replaced: Vec::new() }
    }

    /// Returns the minimum size in bytes of one replacement.
    fn size_min(&self) -> usize {
        self.lines.iter().map(|line| line.len()).sum::<usize>() + self.written.len()
    }

    /// Appends the replacement of one occurrence. Occurrences must come in order.
    fn push_to(&mut self, result: &mut Vec<u8>, place: Range<usize>) {
        if let [line] = self.lines[..] {
            scan::push(result, line);
            return;
        }
        let in_force = match &mut self.endings {
            Endings::AsWritten => None,
            Endings::Replaced(_) => {
                let region = &self.content[place];
                self.replaced.clear();
                self.replaced.extend(memchr_iter(b'\n', region).map(|at| LineEnding::at(region, at)));
                None
            }
            Endings::InForce { next, last } => {
                if place.end > last.0 {
                    Some(last.1)
                } else {
                    // Searched once for each ending, not for each occurrence, since one line may have many occurrences.
                    let found = next.filter(|(at, _)| *at >= place.end).or_else(|| {
                        let at = place.end + memchr(b'\n', &self.content[place.end..])?;
                        Some((at, LineEnding::at(self.content, at)))
                    });
                    *next = found;
                    found.map(|(_, ending)| ending)
                }
            }
        };
        for (index, line) in self.lines.iter().enumerate() {
            work::advance(line.len() + 2);
            result.extend_from_slice(line);
            let Some(written) = self.written.get(index) else { break };
            let ending = match &self.endings {
                Endings::Replaced(sources) => self.replaced[sources[index]],
                Endings::AsWritten | Endings::InForce { .. } => in_force.unwrap_or(*written),
            };
            result.extend_from_slice(ending.bytes());
        }
    }
}

/// Splits a text at its line endings: the lines without them, the last of which may be empty, and the endings.
fn cut(text: &[u8]) -> (Vec<&[u8]>, Vec<LineEnding>) {
    let (mut lines, mut endings, mut start) = (Vec::new(), Vec::new(), 0);
    for at in memchr_iter(b'\n', text) {
        work::advance(at + 1 - start);
        let ending = LineEnding::at(&text[start..], at - start);
        lines.push(&text[start..at + 1 - ending.bytes().len()]);
        endings.push(ending);
        start = at + 1;
    }
    lines.push(&text[start..]);
    (lines, endings)
}

/// Returns for each ended line of the new text the index of the old line whose ending it takes. `old` must not be empty.
fn sources(old: &[&[u8]], new: &[&[u8]]) -> Vec<usize> {
    let before = old.iter().zip(new).take_while(|(old, new)| old == new).count();
    let after = old[before..].iter().rev().zip(new[before..].iter().rev()).take_while(|(old, new)| old == new).count();
    let last_replaced = (old.len() - after).max(1) - 1;
    let behind = new.len() - after;
    (0..new.len()).map(|index| if index < behind { index.min(last_replaced) } else { old.len() - (new.len() - index) }).collect()
}

fn ambiguous(sought: &Sought<'_>, count: usize) -> Error {
    let (mut line, mut counted) = (1, 0);
    let line_of = |place: Range<usize>| {
        line += scan::count_ends(&sought.content[counted..place.start]);
        counted = place.start;
        line
    };
    let lines: Vec<usize> = sought.places().take(LINES_NAMED_MAX).map(line_of).collect();
    let mut distinct = lines.clone();
    distinct.dedup();
    let named = distinct.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let more = if count > lines.len() { ", ..." } else { "" };
    let word = if distinct.len() == 1 && more.is_empty() { "line" } else { "lines" };
    Error::new(
        ErrorKind::Ambiguous,
        format!("the text to replace occurs {count} times ({word} {named}{more}); add surrounding lines to make it unique, or replace all"),
    )
    .with_lines(lines)
}

/// Explains why a text does not occur, pointing out the closest match.
fn no_match(content: &[u8], edit: &Edit, is_exact: bool) -> Error {
    let (searched, old) = (folded(content), folded(edit.old.as_bytes()));
    let found = |text: &[u8]| Some(text).filter(|text| !text.is_empty()).and_then(|text| scan::find(&memmem::Finder::new(text), &searched));
    let hint = if content.is_empty() {
        "the file is empty".to_owned()
    } else if let Some(place) = Some(&old).filter(|_| is_exact).and_then(|old| found(old)) {
        let line = line_at(&searched, place);
        format!("it occurs on line {line} with another line ending; use the one that the file has there, `\\n` or `\\r\\n`")
    } else if let Some(place) = old.strip_suffix(b"\n").and_then(found) {
        format!("without its final line break it occurs on line {}; leave that out", line_at(&searched, place))
    } else if let Some(place) = old.strip_suffix(b"\r").and_then(found) {
        let line = line_at(&searched, place);
        format!("without its final `\\r` it occurs on line {line}; a `\\r` before `\\n` is part of the line ending, so leave it out")
    } else if let Some(line) = first_line_near(content, &edit.old) {
        format!(
            "its first line occurs on line {line} with other white space or other lines after it; read the file again and copy the text exactly"
        )
    } else {
        "read the file again and copy the text exactly".to_owned()
    };
    Error::new(ErrorKind::NoMatch, format!("the text to replace does not occur; {hint}"))
}

/// Finds the line that equals the first line of `old` except for surrounding white space.
fn first_line_near(content: &[u8], old: &str) -> Option<usize> {
    let wanted = old.lines().map(str::trim).find(|line| !line.is_empty())?.as_bytes();
    let is_near = |line: &[u8]| {
        work::advance(line.len() + 1);
        line.trim_ascii() == wanted
    };
    content.split(|byte| *byte == b'\n').position(is_near).map(|index| index + 1)
}

#[cfg(test)]
mod tests;
