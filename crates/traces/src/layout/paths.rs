//! The path to each imported message, in memory that does not grow with the lengths of the paths.

use crate::stored::MessagePath;
use std::collections::HashMap;

/// The number of recent paths that are kept.
const RECENT: usize = 4_096;

/// The path of every message at a multiple of this depth is kept, so no walk is longer.
const STRIDE: u32 = 512;

/// The paths to messages, which are added in the order of their sequences.
#[derive(Default)]
pub(super) struct Paths {
    /// The parent and the depth of each message, by sequence from 1.
    nodes: Vec<(u64, u32)>,
    recent: HashMap<u64, MessagePath>,
    kept: HashMap<u64, MessagePath>,
}

impl Paths {
    /// Adds the message with the next sequence. Its parent, if any, was added before. Returns the path to it.
    pub(super) fn add(&mut self, parent: Option<u64>) -> MessagePath {
        let parent = parent.filter(|parent| *parent > 0);
        let sequence = self.nodes.len() as u64 + 1;
        let path = parent.map_or_else(MessagePath::default, |parent| self.to(parent)).with(sequence);
        let depth = parent.map_or(0, |parent| self.node(parent).1.saturating_add(1));
        self.nodes.push((parent.unwrap_or(0), depth));
        if self.recent.len() >= RECENT {
            self.recent.clear();
        }
        self.recent.insert(sequence, path.clone());
        if depth.is_multiple_of(STRIDE) {
            self.kept.insert(sequence, path.clone());
        }
        path
    }

    /// Returns the path to a message that was added; the empty path for 0.
    pub(super) fn to(&self, sequence: u64) -> MessagePath {
        let (mut at, mut passed) = (sequence, Vec::new());
        let mut path = loop {
            if at == 0 {
                break MessagePath::default();
            }
            if let Some(known) = self.recent.get(&at).or_else(|| self.kept.get(&at)) {
                break known.clone();
            }
            passed.push(at);
            at = self.node(at).0;
        };
        while let Some(next) = passed.pop() {
            path = path.with(next);
        }
        path
    }

    /// Returns how many messages were added.
    pub(super) fn len(&self) -> u64 {
        self.nodes.len() as u64
    }

    fn node(&self, sequence: u64) -> (u64, u32) {
        usize::try_from(sequence - 1).ok().and_then(|index| self.nodes.get(index)).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_follow_parents_whether_or_not_they_are_kept() {
        let mut paths = Paths::default();
        // Two interleaved branches, each longer than what is kept of it.
        for sequence in 1..=20_000_u64 {
            paths.add(sequence.checked_sub(2));
        }
        paths.recent.clear();
        for end in [19_999, 20_000] {
            let sequences: Vec<u64> = paths.to(end).sequences().collect();
            assert!(sequences.iter().zip(sequences.iter().skip(1)).all(|(one, before)| one - before == 2));
            assert_eq!((sequences[0], sequences.len()), (end, 128));
        }
        assert_eq!(paths.to(3).sequences().collect::<Vec<_>>(), [3, 1]);
        assert!(paths.kept.len() <= 20_000 / STRIDE as usize + 2);
    }
}
