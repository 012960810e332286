//! What many files gave, collected in path order up to the limits.

use super::grep::FileOutcome;
use crate::error::ErrorRecord;
use crate::ops::{Failure, GrepCursor, GrepFile, GrepLine, GrepOptions, GrepOutput, GrepResult, Truncation, TruncationReason};
use crate::path::{VfsPath, VfsPathBuf};
use memchr::memchr_iter;
use std::ops::ControlFlow;

/// What files yielded, in path order: of those that were searched in vain, as most are, their number alone.
pub(crate) enum Yield<P> {
    Nothing { files: usize },
    Outcome(P, FileOutcome),
}

impl<P> Yield<P> {
    /// Adds what the next file yielded.
    pub(crate) fn add(yields: &mut Vec<Self>, path: P, outcome: FileOutcome) {
        match (outcome, yields.last_mut()) {
            (FileOutcome::Searched { count: 0, cut: false, .. }, Some(Self::Nothing { files })) => *files += 1,
            (FileOutcome::Searched { count: 0, cut: false, .. }, _) => yields.push(Self::Nothing { files: 1 }),
            (outcome, _) => yields.push(Self::Outcome(path, outcome)),
        }
    }
}

/// Collects outcomes in path order up to the limits.
///
/// Collecting goes on after the limit is reached until one more match proves that there is more: a result that says it was cut
/// was cut. The cursor of a cut result gives exactly the rest.
#[derive(Debug)]
pub struct GrepCollector {
    output: GrepOutput,
    after: usize,
    /// How many lines or files may still be added.
    left: usize,
    start_after: Option<GrepCursor>,
    result: GrepResult,
}

impl GrepCollector {
    /// Starts a collection under the limits of the options.
    pub fn new(options: &GrepOptions) -> Self {
        Self {
            output: options.output,
            after: options.after,
            left: options.matches_max,
            start_after: options.start_after.clone(),
            result: GrepResult::default(),
        }
    }

    /// Adds the outcome of the next file in path order; `Break` when the limit is reached and the walk can stop. A path that is lent
    /// is copied only where the result tells of it.
    pub fn push(&mut self, path: impl AsRef<VfsPath> + Into<VfsPathBuf>, outcome: FileOutcome) -> ControlFlow<()> {
        self.push_with(|| path, outcome)
    }

    /// Adds what the next files yielded, the path of one made where it is looked at; `Break` as [`push`](Self::push) does.
    pub(crate) fn push_yield<K, P: AsRef<VfsPath> + Into<VfsPathBuf>>(
        &mut self,
        yielded: Yield<K>,
        path: impl FnOnce(K) -> P,
    ) -> ControlFlow<()> {
        match yielded {
            Yield::Outcome(key, outcome) => self.push_with(|| path(key), outcome),
            Yield::Nothing { .. } if self.result.truncated.is_some() => ControlFlow::Break(()),
            Yield::Nothing { files } => {
                self.result.files_searched += files;
                ControlFlow::Continue(())
            }
        }
    }

    /// Adds an outcome as [`push`](Self::push) does, of a file whose path is made only where it is looked at.
    pub(crate) fn push_with<P: AsRef<VfsPath> + Into<VfsPathBuf>>(
        &mut self,
        path: impl FnOnce() -> P,
        outcome: FileOutcome,
    ) -> ControlFlow<()> {
        if self.result.truncated.is_some() {
            return ControlFlow::Break(());
        }
        match outcome {
            FileOutcome::Gone => {}
            FileOutcome::Binary => self.result.files_binary += 1,
            FileOutcome::TooLarge => self.result.files_too_large += 1,
            FileOutcome::Failed(error) => self.result.push_failure(Failure { path: path().into(), error: ErrorRecord::from(&error) }),
            FileOutcome::Searched { count: 0, cut: false, .. } => self.result.files_searched += 1,
            // There is more and no place for it: the rest starts with this file.
            FileOutcome::Searched { .. } if self.left == 0 => {
                let path = path();
                let line = self.start_after.as_ref().filter(|cursor| *cursor.path == *path.as_ref()).map_or(0, |cursor| cursor.line);
                return self.truncate(path.into(), line);
            }
            FileOutcome::Searched { count, lines, cut } => {
                self.result.files_searched += 1;
                return match self.output {
                    GrepOutput::Content => self.push_lines(path().into(), count, lines, cut),
                    GrepOutput::Files | GrepOutput::Counts => {
                        self.left -= 1;
                        self.result.files.push(GrepFile::new(path().into(), count, Vec::new()));
                        ControlFlow::Continue(())
                    }
                };
            }
        }
        ControlFlow::Continue(())
    }

    fn push_lines(&mut self, path: VfsPathBuf, count: usize, mut lines: Vec<GrepLine>, cut: bool) -> ControlFlow<()> {
        let kept = count.min(self.left);
        let cut = cut || kept < count;
        let mut last = 0;
        if kept < count {
            let mut matches = 0;
            let end = lines.iter().position(|line| {
                if line.is_match {
                    matches += 1;
                    if matches <= kept {
                        last = last_line(line);
                    }
                }
                // Context near enough to the last match kept is its own; the other leads up to the next.
                matches > kept || (matches == kept && !line.is_match && line.line - last > self.after)
            });
            lines.truncate(end.unwrap_or(lines.len()));
        } else if let Some(line) = lines.iter().rfind(|line| line.is_match) {
            last = last_line(line);
        }
        self.left -= kept;
        self.result.files.push(GrepFile::new(path.clone(), kept, lines));
        if cut { self.truncate(path, last) } else { ControlFlow::Continue(()) }
    }

    fn truncate(&mut self, path: VfsPathBuf, line: usize) -> ControlFlow<()> {
        let cursor = GrepCursor { path, line }.to_string();
        self.result.truncated = Some(Truncation { reason: TruncationReason::Limit, cursor });
        ControlFlow::Break(())
    }

    /// Returns the result.
    pub fn finish(self) -> GrepResult {
        self.result
    }
}

/// Returns the number of the last line that a match covers.
fn last_line(line: &GrepLine) -> usize {
    line.line + memchr_iter(b'\n', &line.text).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn drawn(lines: &[GrepLine]) -> Vec<(usize, bool)> {
        lines.iter().map(|line| (line.line, line.is_match)).collect()
    }

    #[test]
    fn a_page_ends_with_the_context_of_its_last_match() {
        let options = GrepOptions::new("x").with_context(1, 2).with_matches_max(2);
        let mut collector = GrepCollector::new(&options);
        let line = |(number, is_match): (usize, bool)| GrepLine::new(number, 0, Bytes::new(), Vec::new(), is_match);
        let one = FileOutcome::Searched { count: 1, lines: vec![line((1, true))], cut: false };
        // Lines 4 and 5 follow the match on line 3; line 7 leads up to the one on line 8.
        let all = [(2, false), (3, true), (4, false), (5, false), (7, false), (8, true)];
        let other = FileOutcome::Searched { count: 2, lines: all.map(line).into(), cut: false };
        let path = |text: &str| VfsPathBuf::parse(text).expect("a legal path");
        assert!(collector.push(path("/a"), one).is_continue());
        assert!(collector.push(path("/b"), other).is_break());
        let result = collector.finish();
        assert_eq!(drawn(&result.files[1].lines), [(2, false), (3, true), (4, false), (5, false)]);
        assert_eq!((result.files[1].count, result.truncated.expect("there is more").cursor.as_str()), (1, "/b:3"));
    }
}
