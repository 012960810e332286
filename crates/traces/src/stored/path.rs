//! The recent part of the path to a message.
//!
//! Each message row names the messages before it on its path, as runs of consecutive sequences. Most paths are a few runs, so one row
//! tells thousands of ancestors. A path with many jumps names its last [`RUNS_MAX`] runs, and the row of the last message among them names
//! those before. So a page of a path costs a number of reads that depends on the page and not on the trace.

use serde::{Deserialize, Serialize};

/// The most runs of one row.
pub(super) const RUNS_MAX: usize = 128;

/// The end of a path: runs of consecutive sequences, each as its greatest sequence and its length, the last run first. A run of a stored
/// path is never empty.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Path(Vec<(u64, u64)>);

impl Path {
    /// Returns this path with one more message, which has a greater sequence.
    pub(super) fn with(&self, sequence: u64) -> Self {
        let mut runs = self.0.clone();
        match runs.first_mut() {
            Some((last, count)) if last.checked_add(1) == Some(sequence) => (*last, *count) = (sequence, count.saturating_add(1)),
            _ => {
                runs.insert(0, (sequence, 1));
                runs.truncate(RUNS_MAX);
            }
        }
        Self(runs)
    }

    /// Returns this path without its last message.
    pub(super) fn before(&self) -> Self {
        let mut runs = self.0.clone();
        match runs.first_mut() {
            Some((last, count)) if *count > 1 => (*last, *count) = (last.saturating_sub(1), *count - 1),
            Some(_) => drop(runs.remove(0)),
            None => {}
        }
        Self(runs)
    }

    /// Returns the sequences, the last message first.
    pub(super) fn sequences(&self) -> impl Iterator<Item = u64> {
        self.0.iter().flat_map(|(last, count)| (last.saturating_sub(count.saturating_sub(1))..=*last).rev())
    }

    /// Returns the sequence of the last message.
    pub(super) fn end(&self) -> Option<u64> {
        self.0.first().map(|(last, _)| *last)
    }

    /// Returns the sequence of the message before the last one.
    pub(super) fn parent(&self) -> Option<u64> {
        self.sequences().nth(1)
    }

    /// Returns the least sequence that the row names.
    pub(super) fn first_named(&self) -> Option<u64> {
        self.0.last().map(|(last, count)| last.saturating_sub(count.saturating_sub(1)))
    }

    /// Returns whether the runs are as [`with`](Self::with) makes them. A damaged row is not, and would be walked forever.
    pub(super) fn is_descending(&self) -> bool {
        let is_run = |(last, count): &(u64, u64)| (1..=*last).contains(count);
        self.0.iter().all(is_run) && self.0.windows(2).all(|pair| pair[1].0 <= pair[0].0 - pair[0].1)
    }

    /// Returns whether a sequence is among those that the row names.
    pub(super) fn names(&self, sequence: u64) -> bool {
        self.0.iter().any(|(last, count)| (last.saturating_sub(count.saturating_sub(1))..=*last).contains(&sequence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(sequences: &[u64]) -> Path {
        sequences.iter().fold(Path::default(), |path, sequence| path.with(*sequence))
    }

    #[test]
    fn path_names_its_messages_from_the_end() {
        let path = path(&[1, 2, 3, 7, 8, 20]);
        assert_eq!(path.sequences().collect::<Vec<_>>(), [20, 8, 7, 3, 2, 1]);
        assert_eq!((path.end(), path.parent(), path.first_named()), (Some(20), Some(8), Some(1)));
        assert!(path.names(7) && !path.names(6) && !path.names(21));
        assert_eq!(serde_json::to_string(&path).expect("plain"), "[[20,1],[8,2],[3,3]]");
    }

    #[test]
    fn path_with_many_jumps_names_the_last_runs() {
        let path = path(&(1..=1_000).map(|number| number * 2).collect::<Vec<_>>());
        assert_eq!(path.sequences().count(), RUNS_MAX);
        assert_eq!((path.end(), path.first_named()), (Some(2_000), Some(2_000 - 2 * (RUNS_MAX as u64 - 1))));
    }

    #[test]
    fn damaged_path_is_not_descending() {
        assert!(path(&[1, 2, 3, 7, 8, 20]).is_descending());
        for damaged in ["[[3,4]]", "[[3,0]]", "[[3,1],[3,1]]", "[[3,2],[2,1]]", "[[3,1],[9,1]]"] {
            assert!(!serde_json::from_str::<Path>(damaged).expect("a path").is_descending(), "{damaged}");
        }
    }

    #[test]
    fn path_before_a_message_lacks_only_that_message() {
        for sequences in [&[1_u64, 2, 3][..], &[1, 4], &[5]] {
            assert_eq!(path(sequences).before(), path(&sequences[..sequences.len() - 1]), "{sequences:?}");
        }
    }

    #[test]
    fn empty_path_has_no_end() {
        assert_eq!((Path::default().end(), Path::default().parent(), Path::default().first_named()), (None, None, None));
    }
}
