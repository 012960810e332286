//! Searches the content of one file, window by window.

use super::grep::{FileOutcome, GrepMatcher};
use super::hits::{Hit, Hits};
use super::page::Page;
use super::window::Window;
use crate::ops::{GrepLine, GrepOutput};
use bytes::Bytes;
use std::ops::ControlFlow;

/// The search of one file, and its results so far.
///
/// A line matches by its text alone, so matches in one part of the content do not depend on the others. If no context is
/// requested, [`GrepMatcher::find`] searches each part on its own, on any thread, and only the results are combined here in
/// order.
pub struct Seeker<'a> {
    of: &'a GrepMatcher,
    page: Page<'a>,
    /// The line after which the search continues.
    after_line: usize,
    /// The most matches to return.
    matches_max: usize,
    /// Whether to search again for matches that earlier calls returned: they count towards the limit of the file, and matches
    /// across lines depend on those before them.
    counts_all: bool,
    before_cursor: bool,
    /// The number of matches so far, including those that earlier calls returned.
    seen: usize,
    count: usize,
    cut: bool,
}

/// The result of one part that was searched on its own.
pub struct Found {
    /// The number of matching lines, as far as they are counted.
    count: usize,
    /// The matching lines, numbered from the start of the part.
    lines: Vec<GrepLine>,
    /// The number of lines in the part. Counted only if lines are returned.
    lines_passed: usize,
}

impl GrepMatcher {
    /// Finds the matches in one part. Pass the results to [`Seeker::push_found`] in order.
    pub fn find(&self, window: &Window) -> Found {
        let mut seeker = Seeker::new(self, 0);
        // One more than can be returned, to tell whether there are more.
        seeker.matches_max = self.matches_max.saturating_add(1);
        let _ = seeker.push(window);
        Found { count: seeker.count, lines_passed: seeker.page.lines_passed(), lines: seeker.page.lines }
    }

    /// Returns how many matches are counted at most in one file, or `None` if lines are returned.
    fn count_max(&self) -> Option<usize> {
        match self.output {
            GrepOutput::Content => None,
            GrepOutput::Files => Some(self.file_matches_max.min(1)),
            GrepOutput::Counts => Some(self.file_matches_max),
        }
    }
}

fn count(hits: &mut Hits<'_>, max: usize) -> usize {
    (0..max).take_while(|_| hits.next().is_some()).count()
}

impl<'a> Seeker<'a> {
    pub(super) fn new(of: &'a GrepMatcher, after_line: usize) -> Self {
        let counts_all = of.multiline || of.file_matches_max != usize::MAX;
        let page = Page::new(of, after_line);
        Self { of, page, after_line, matches_max: of.matches_max, counts_all, before_cursor: after_line > 0, seen: 0, count: 0, cut: false }
    }

    /// Searches the next window. Returns `Break` if no further one matters.
    pub fn push(&mut self, window: &Window) -> ControlFlow<()> {
        match self.of.count_max() {
            Some(max) => {
                let found = count(&mut Hits::new(self.of, &window.content, window.fresh), max - self.count);
                self.add(found, max)
            }
            None => {
                let at = self.page.enter(window, self.counts_all);
                let mut hits = Hits::new(self.of, &window.content, at);
                self.turn(window, || hits.next())
            }
        }
    }

    /// Searches content as a whole. Most content has no match, and then its reference count is not touched: that would be an
    /// otherwise needless write to shared memory.
    pub(super) fn push_whole(&mut self, content: &Bytes) {
        let mut hits = Hits::new(self.of, content, 0);
        if let Some(max) = self.of.count_max() {
            let found = count(&mut hits, max);
            let _ = self.add(found, max);
        } else if self.after_line > 0 {
            let _ = self.push(&Window::whole(content.clone()));
        } else if let Some(first) = hits.next() {
            let window = Window::whole(content.clone());
            self.page.enter(&window, self.counts_all);
            let mut first = Some(first);
            let _ = self.turn(&window, || first.take().or_else(|| hits.next()));
        }
    }

    /// Returns whether parts can be searched on their own: no context crosses their borders, and no line was returned by an
    /// earlier call.
    pub fn supports_parts(&self) -> bool {
        self.after_line == 0 && (self.of.count_max().is_some() || (self.of.before == 0 && self.of.after == 0))
    }

    /// Adds the result of the next part. Returns `Break` if no further one matters.
    pub fn push_found(&mut self, found: Found) -> ControlFlow<()> {
        if let Some(max) = self.of.count_max() {
            return self.add(found.count, max);
        }
        for line in found.lines {
            if self.count == self.of.file_matches_max {
                return ControlFlow::Break(());
            }
            if self.count == self.matches_max || self.page.is_full() {
                self.cut = true;
                return ControlFlow::Break(());
            }
            self.page.add(line);
            self.count += 1;
        }
        self.page.skip_lines(found.lines_passed);
        if self.count < self.of.file_matches_max { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    fn add(&mut self, count: usize, max: usize) -> ControlFlow<()> {
        self.count = (self.count + count).min(max);
        if self.count < max { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    fn turn(&mut self, window: &Window, hits: impl FnMut() -> Option<Hit>) -> ControlFlow<()> {
        let flow = self.take(window.content.len(), hits);
        self.page.leave(window);
        flow
    }

    fn take(&mut self, end: usize, mut hits: impl FnMut() -> Option<Hit>) -> ControlFlow<()> {
        while self.seen < self.of.file_matches_max {
            let Some(hit) = hits() else {
                self.page.give_context(end);
                return ControlFlow::Continue(());
            };
            self.page.give_context(hit.start);
            self.before_cursor = self.before_cursor && self.page.ends_at_or_before(&hit, self.after_line);
            if self.before_cursor {
                self.page.pass(&hit);
            } else if self.count == self.matches_max || self.page.is_full() {
                self.cut = true;
                return ControlFlow::Break(());
            } else {
                self.page.push(&hit);
                self.count += 1;
            }
            self.seen += 1;
        }
        if !self.page.owes_context() {
            return ControlFlow::Break(());
        }
        // Context ends before the next matching line, even if that one is over the limit.
        let next = hits();
        self.page.give_context(next.as_ref().map_or(end, |hit| hit.start));
        if next.is_none() && self.page.owes_context() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    /// Returns the outcome.
    pub fn finish(self) -> FileOutcome {
        FileOutcome::Searched { count: self.count, lines: self.page.lines, cut: self.cut }
    }
}
