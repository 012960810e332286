//! Where a window may be cut.

use crate::append::MessageMeta;

/// Finds where to cut a window of `metas` in two without separating a tool result from its call. `first` is the position
/// of the window's first message. Returns how many messages are before the cut: the next possible number from `wanted` on,
/// otherwise the closest one below it. Returns `None` if no cut leaves messages on both sides.
pub(super) fn safe_cut(metas: &[MessageMeta], first: u64, wanted: usize) -> Option<usize> {
    // For each cut, the earliest call that a result after it answers.
    let mut earliest = vec![u64::MAX; metas.len() + 1];
    for (index, meta) in metas.iter().enumerate().rev() {
        let call = meta.call.filter(|call| *call >= first).unwrap_or(u64::MAX);
        earliest[index] = earliest[index + 1].min(call);
    }
    let is_safe = |cut: &usize| !metas[*cut].is_result && earliest[*cut] >= first + *cut as u64;
    (wanted.max(1)..metas.len()).find(is_safe).or_else(|| (1..wanted.min(metas.len())).rev().find(is_safe))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain() -> MessageMeta {
        MessageMeta { tokens: 1, is_result: false, call: None }
    }

    fn result(call: u64) -> MessageMeta {
        MessageMeta { tokens: 1, is_result: true, call: Some(call) }
    }

    #[test]
    fn cut_moves_past_results_and_back_from_the_end() {
        let orphan = MessageMeta { tokens: 1, is_result: true, call: None };
        for (metas, wanted, cut) in [
            (vec![plain(), plain(), plain()], 1, Some(1)),
            (vec![plain(), plain(), result(1), plain()], 2, Some(3)),
            // Results of one call with another message between them.
            (vec![plain(), plain(), result(1), plain(), result(1), plain()], 2, Some(5)),
            // The whole tail belongs to one call: go back before it.
            (vec![plain(), plain(), plain(), result(2), result(2)], 3, Some(2)),
            (vec![plain(), result(0), result(0)], 1, None),
            (vec![plain(), orphan.clone(), orphan], 1, None),
            (vec![plain()], 1, None),
            (vec![], 1, None),
        ] {
            assert_eq!(safe_cut(&metas, 0, wanted), cut, "{metas:?}");
        }
        // A call before the window does not count.
        assert_eq!(safe_cut(&[plain(), result(3), plain()], 10, 1), Some(2));
    }
}
