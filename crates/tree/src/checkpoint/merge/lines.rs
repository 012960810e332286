//! Line merges of files that both sides changed, if they are text.

use super::{MergeConflictKind, MergeHunk, MergeLines, MergeOptions, MergeResolution, MergeStrategy};
use crate::backend::{StateNode, StateSnapshot};
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use treehold_core::error::Result;
use treehold_core::path::VfsPathBuf;
use treehold_core::text::merge::{self, Hunk, LineMerge, MERGE_BYTES_MAX, MarkerNames, MarkerStyle, Take};
use treehold_core::work;

/// The most files that are merged at once, and the bytes of contents after which no more are added.
const FILES: usize = 64;
const FILES_BYTES: u64 = 16 << 20;

/// The most hunks that are listed of one conflict, and the most bytes of text of one side.
const HUNKS_MAX: usize = 16;
const TEXT_BYTES_MAX: usize = 2 << 10;

/// The most bytes of text in all conflicts together.
pub(super) const TEXTS_BYTES_MAX: usize = 1 << 20;

/// A file that both sides changed or added.
#[derive(Debug, Clone)]
pub(super) struct Texts {
    pub(super) path: VfsPathBuf,
    /// `None` where there was no file.
    pub(super) base: Option<Arc<StateNode>>,
    pub(super) ours: Arc<StateNode>,
    pub(super) theirs: Arc<StateNode>,
}

/// The result for a file.
#[derive(Debug)]
pub(super) enum Merged {
    /// The merged lines of both sides, without conflict.
    Clean(Bytes),
    Conflict {
        kind: MergeConflictKind,
        hunks: Vec<MergeHunk>,
        hunks_total: u64,
        /// The merged lines of both sides, if the strategy uses them.
        decided: Option<Bytes>,
    },
}

/// A file with its contents.
struct Loaded {
    contents: [Bytes; 3],
    has_base: bool,
    strategy: Option<MergeStrategy>,
}

/// Merges files of the base, ours and theirs. The texts of conflicts take `budget` bytes at most.
///
/// Cost: three round trips for some dozens of files.
pub(super) async fn merge_all(
    [base, ours, theirs]: [&StateSnapshot; 3],
    files: &[Texts],
    options: &MergeOptions,
    names: MarkerNames<'_>,
) -> Result<Vec<Merged>> {
    let mut budget = TEXTS_BYTES_MAX;
    let mut all = Vec::with_capacity(files.len());
    let mut rest = files;
    while !rest.is_empty() {
        let (some, behind) = rest.split_at(batch(rest));
        rest = behind;
        let small: Vec<&Texts> = some.iter().filter(|file| is_small(file)).collect();
        let bases: Vec<Arc<StateNode>> = small.iter().filter_map(|file| file.base.clone()).collect();
        let our_nodes: Vec<Arc<StateNode>> = small.iter().map(|file| file.ours.clone()).collect();
        let their_nodes: Vec<Arc<StateNode>> = small.iter().map(|file| file.theirs.clone()).collect();
        let mut bases = base.contents(&bases).await?.into_iter();
        let ours = ours.contents(&our_nodes).await?;
        let theirs = theirs.contents(&their_nodes).await?;
        let loaded: Vec<Loaded> = small
            .iter()
            .zip(ours.into_iter().zip(theirs))
            .map(|(file, (ours, theirs))| {
                let base = file.base.as_ref().and_then(|_| bases.next());
                let strategy = match options.resolution(&file.path) {
                    Some((_, MergeResolution::Strategy(strategy))) => Some(strategy),
                    Some(_) => None,
                    None => options.strategy,
                };
                Loaded { has_base: base.is_some(), contents: [base.unwrap_or_default(), ours, theirs], strategy }
            })
            .collect();
        let (style, names) = (options.marker_style, [names.ours, names.base, names.theirs].map(str::to_owned));
        let mut left = budget;
        let cost_bytes = small.iter().flat_map(|file| sizes(file)).sum();
        let merged = work::run(cost_bytes, move |_| {
            let [ours, base, theirs] = &names;
            let names = MarkerNames { ours, base, theirs };
            let merged: Vec<Merged> = loaded.iter().map(|file| merge_one(file, names, style, &mut left)).collect();
            (merged, left)
        });
        let (merged, left) = merged.await?;
        budget = left;
        let mut merged = merged.into_iter();
        all.extend(some.iter().map(|file| match is_small(file) {
            true => merged.next().expect("the work merged every small file"),
            false => no_text(),
        }));
    }
    Ok(all)
}

/// Returns the number of files to load together, at least one.
fn batch(files: &[Texts]) -> usize {
    let mut size_bytes = 0;
    let fits = files.iter().take(FILES).take_while(|file| {
        let is_first = size_bytes == 0;
        size_bytes += sizes(file).into_iter().sum::<u64>().max(1);
        is_first || size_bytes <= FILES_BYTES
    });
    fits.count()
}

fn sizes(file: &Texts) -> [u64; 3] {
    [file.base.as_ref().map_or(0, |base| base.size_bytes()), file.ours.size_bytes(), file.theirs.size_bytes()]
}

fn is_small(file: &Texts) -> bool {
    sizes(file).into_iter().all(|size_bytes| size_bytes <= MERGE_BYTES_MAX)
}

fn no_text() -> Merged {
    Merged::Conflict { kind: MergeConflictKind::Binary, hunks: Vec::new(), hunks_total: 0, decided: None }
}

fn merge_one(file: &Loaded, names: MarkerNames<'_>, style: MarkerStyle, budget: &mut usize) -> Merged {
    let [base, ours, theirs] = &file.contents;
    if ours == theirs {
        return Merged::Clean(ours.clone());
    }
    if !file.contents.iter().all(|content| merge::is_mergeable(content)) {
        return no_text();
    }
    let lines = merge::merge(base, ours, theirs);
    if let Some(merged) = lines.merged() {
        return Merged::Clean(merged.into());
    }
    let decided = match file.strategy {
        Some(MergeStrategy::Union) => Some(lines.taking(Take::Union).into()),
        Some(MergeStrategy::Markers) => Some(lines.marked(names, style).into()),
        Some(MergeStrategy::Ours | MergeStrategy::Theirs) | None => None,
    };
    let kind = if file.has_base { MergeConflictKind::BothChanged } else { MergeConflictKind::BothAdded };
    let hunks = lines.conflicts().take(HUNKS_MAX).map(|hunk| shown(&lines, hunk, budget)).collect();
    Merged::Conflict { kind, hunks, hunks_total: lines.conflicts().count() as u64, decided }
}

fn shown(lines: &LineMerge<'_>, hunk: &Hunk, budget: &mut usize) -> MergeHunk {
    let [base, ours, theirs] = lines.texts(hunk);
    let mut run = |range: &Range<usize>, text: Vec<u8>| {
        let kept = text.len().min(TEXT_BYTES_MAX).min(*budget);
        *budget -= kept;
        let truncated = kept < text.len();
        let mut shown = String::from_utf8_lossy(&text[..kept]).into_owned();
        // Drops a character that was cut in the middle.
        if truncated && shown.ends_with('\u{fffd}') {
            shown.pop();
        }
        MergeLines { line: range.start + 1, lines: range.len(), text: shown, truncated }
    };
    MergeHunk { base: run(&hunk.base, base), ours: run(&hunk.ours, ours), theirs: run(&hunk.theirs, theirs) }
}
