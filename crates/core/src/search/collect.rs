//! Collects the outcomes of many files in path order, up to the limits.

use super::grep::FileOutcome;
use crate::error::ErrorRecord;
use crate::ops::{Failure, GrepCursor, GrepFile, GrepLine, GrepOptions, GrepOutput, GrepResult, Truncation, TruncationReason};
use crate::path::{VfsPath, VfsPathBuf};
use memchr::memchr_iter;
use std::ops::ControlFlow;

/// The outcomes of consecutive files. Runs of files without a match, as most are, are merged into a count.
pub enum Yield<P> {
    /// Files without a match.
    Nothing {
        /// How many.
        files: usize,
    },
    /// One file that matched, or could not be searched.
    Outcome(P, FileOutcome),
}

impl<P> Yield<P> {
    /// Adds the outcome of the next file.
    pub fn add(yields: &mut Vec<Self>, path: P, outcome: FileOutcome) {
        match (outcome, yields.last_mut()) {
            (FileOutcome::Searched { count: 0, cut: false, .. }, Some(Self::Nothing { files })) => *files += 1,
            (FileOutcome::Searched { count: 0, cut: false, .. }, _) => yields.push(Self::Nothing { files: 1 }),
            (outcome, _) => yields.push(Self::Outcome(path, outcome)),
        }
    }
}

/// About how many bytes of lines a result may hold. The lines of one file may exceed it by the last one.
pub(super) const TEXT_BYTES_MAX: usize = 4 << 20;

/// Collects outcomes in path order up to the limits, and up to about 4 MiB of lines.
///
/// Once the limit is reached, collecting continues until one more match proves that there is more, so a result is marked as
/// truncated only if it is. The cursor of a truncated result yields exactly the rest.
#[derive(Debug)]
pub struct GrepCollector {
    output: GrepOutput,
    after: usize,
    /// How many more lines or files may be added, and the reason for this limit.
    left: usize,
    bound: TruncationReason,
    /// The total size of the lines in bytes.
    text_bytes: usize,
    start_after: Option<GrepCursor>,
    result: GrepResult,
}

impl GrepCollector {
    /// Starts a collection with the limits of the options.
    pub fn new(options: &GrepOptions) -> Self {
        Self {
            output: options.output,
            after: options.after,
            left: options.matches_max,
            bound: TruncationReason::Limit,
            text_bytes: 0,
            start_after: options.start_after.clone(),
            result: GrepResult::default(),
        }
    }

    /// Adds the outcome of the next file in path order. Returns `Break` when the limit is reached and the walk can stop. A
    /// borrowed path is copied only if the result needs it.
    pub fn push(&mut self, path: impl AsRef<VfsPath> + Into<VfsPathBuf>, outcome: FileOutcome) -> ControlFlow<()> {
        self.push_with(|| path, outcome)
    }

    /// Adds the next [`Yield`], building the path of a file only if the result needs it. Returns `Break` as [`push`](Self::push)
    /// does.
    pub fn push_yield<K, P: AsRef<VfsPath> + Into<VfsPathBuf>>(&mut self, yielded: Yield<K>, path: impl FnOnce(K) -> P) -> ControlFlow<()> {
        match yielded {
            Yield::Outcome(key, outcome) => self.push_with(|| path(key), outcome),
            Yield::Nothing { .. } if self.result.truncated.is_some() => ControlFlow::Break(()),
            Yield::Nothing { files } => {
                self.result.files_searched += files;
                ControlFlow::Continue(())
            }
        }
    }

    /// Like [`push`](Self::push), but builds the path only if the result needs it.
    pub fn push_with<P: AsRef<VfsPath> + Into<VfsPathBuf>>(&mut self, path: impl FnOnce() -> P, outcome: FileOutcome) -> ControlFlow<()> {
        if self.result.truncated.is_some() {
            return ControlFlow::Break(());
        }
        match outcome {
            FileOutcome::Gone => {}
            FileOutcome::Binary => self.result.files_binary += 1,
            FileOutcome::TooLarge => self.result.files_too_large += 1,
            FileOutcome::Failed(error) => self.result.push_failure(Failure { path: path().into(), error: ErrorRecord::from(&error) }),
            FileOutcome::Searched { count: 0, cut: false, .. } => self.result.files_searched += 1,
            // There is more but no room for it, so the next page starts with this file.
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
                // Context lines close to the last match that is kept belong to it; later ones lead up to the next match.
                matches > kept || (matches == kept && !line.is_match && line.line - last > self.after)
            });
            lines.truncate(end.unwrap_or(lines.len()));
        } else if let Some(line) = lines.iter().rfind(|line| line.is_match) {
            last = last_line(line);
        }
        self.left -= kept;
        self.text_bytes += lines.iter().map(|line| line.text.len()).sum::<usize>();
        self.result.files.push(GrepFile::new(path.clone(), kept, lines));
        if self.text_bytes >= TEXT_BYTES_MAX && self.left > 0 {
            (self.left, self.bound) = (0, TruncationReason::Size);
        }
        if cut { self.truncate(path, last) } else { ControlFlow::Continue(()) }
    }

    fn truncate(&mut self, path: VfsPathBuf, line: usize) -> ControlFlow<()> {
        let cursor = GrepCursor { path, line }.to_string();
        self.result.truncated = Some(Truncation { reason: self.bound, cursor });
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
    use super::super::grep::GrepMatcher;
    use super::*;
    use bytes::Bytes;

    fn drawn(lines: &[GrepLine]) -> Vec<(usize, bool)> {
        lines.iter().map(|line| (line.line, line.is_match)).collect()
    }

    #[test]
    fn page_ends_with_context_of_its_last_match() {
        let options = GrepOptions::new("x").with_context(1, 2).with_matches_max(2);
        let mut collector = GrepCollector::new(&options);
        let line = |(number, is_match): (usize, bool)| GrepLine::new(number, 0, Bytes::new(), Vec::new(), is_match);
        let one = FileOutcome::Searched { count: 1, lines: vec![line((1, true))], cut: false };
        // Lines 4 and 5 follow the match on line 3; line 7 leads up to the match on line 8.
        let all = [(2, false), (3, true), (4, false), (5, false), (7, false), (8, true)];
        let other = FileOutcome::Searched { count: 2, lines: all.map(line).into(), cut: false };
        let path = |text: &str| VfsPathBuf::parse(text).expect("a legal path");
        assert!(collector.push(path("/a"), one).is_continue());
        assert!(collector.push(path("/b"), other).is_break());
        let result = collector.finish();
        assert_eq!(drawn(&result.files[1].lines), [(2, false), (3, true), (4, false), (5, false)]);
        assert_eq!((result.files[1].count, result.truncated.expect("there is more").cursor.as_str()), (1, "/b:3"));
    }

    #[test]
    fn pages_cut_by_size_add_up_to_whole_result() {
        let long = format!("{}\n", "x".repeat(TEXT_BYTES_MAX / 3 + 1));
        let contents = [2, 0, 4, 1, 2, 2, 1].map(|lines| if lines == 0 { "none\n".to_owned() } else { long.repeat(lines) });
        let all = [
            ("/0", 1),
            ("/0", 2),
            ("/2", 1),
            ("/2", 2),
            ("/2", 3),
            ("/2", 4),
            ("/3", 1),
            ("/4", 1),
            ("/4", 2),
            ("/5", 1),
            ("/5", 2),
            ("/6", 1),
        ];
        let mut options = GrepOptions::new("x");
        let (mut seen, mut pages) = (Vec::new(), 0);
        loop {
            let matcher = GrepMatcher::compile(&options).expect("a legal pattern");
            let mut collector = GrepCollector::new(&options);
            for (number, content) in contents.iter().enumerate() {
                let path = VfsPathBuf::parse(format!("/{number}")).expect("a legal path");
                let outcome = matcher.search(&path, &Bytes::copy_from_slice(content.as_bytes()));
                if collector.push(path, outcome).is_break() {
                    break;
                }
            }
            let result = collector.finish();
            let lines = || result.files.iter().flat_map(|file| &file.lines);
            assert!(lines().map(|line| line.text.len()).sum::<usize>() < 2 * TEXT_BYTES_MAX);
            seen.extend(result.files.iter().flat_map(|file| file.lines.iter().map(|line| (file.path.to_string(), line.line))));
            pages += 1;
            let Some(cut) = result.truncated else { break };
            assert_eq!(cut.reason, TruncationReason::Size);
            options.start_after = Some(cut.cursor.parse().expect("a cursor"));
        }
        assert_eq!(pages, 3);
        assert!(seen.iter().map(|(path, line)| (path.as_str(), *line)).eq(all), "{seen:?}");
    }

    #[test]
    fn merged_outcomes_count_like_single_ones() {
        let path = |number: usize| VfsPathBuf::parse(format!("/{number}")).expect("a legal path");
        let outcome = |number: usize| match number % 5 {
            0 | 1 | 3 => FileOutcome::Searched { count: 0, lines: Vec::new(), cut: false },
            2 => FileOutcome::Searched { count: 1, lines: Vec::new(), cut: false },
            _ => FileOutcome::Binary,
        };
        for limit in [0, 1, 2, 100] {
            let options = GrepOptions::new("x").with_output(GrepOutput::Files).with_matches_max(limit);
            let (mut one, mut other) = (GrepCollector::new(&options), GrepCollector::new(&options));
            let _ = (0..20).try_for_each(|number| one.push(path(number), outcome(number)));
            let mut yields = Vec::new();
            (0..20).for_each(|number| Yield::add(&mut yields, number, outcome(number)));
            assert!(yields.len() < 20);
            let _ = yields.into_iter().try_for_each(|yielded| other.push_yield(yielded, path));
            let (one, other) = (one.finish(), other.finish());
            assert_eq!(one.files, other.files);
            assert_eq!(one.truncated, other.truncated);
            assert_eq!((one.files_searched, one.files_binary), (other.files_searched, other.files_binary), "{limit}");
        }
    }
}
