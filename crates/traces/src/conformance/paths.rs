//! Paths: the main path, rewinds, side branches and summaries.

use super::*;

pub(super) async fn main_path_follows_the_parents_from_the_head(traces: Subject) {
    let trace = begin(&traces).await;
    fill(&traces, &trace, 3).await;
    assert_eq!(path(&traces, &trace, None).await, [1, 2, 3]);
    let page = traces.get_main_path(&trace, &PathQuery::default()).await.expect("readable");
    assert_eq!(page.messages, all(&traces, &trace).await);
    assert_eq!((page.earlier, page.more), (None, false));
}

pub(super) async fn rewind_leaves_the_old_end_as_a_branch(traces: Subject) {
    let trace = begin(&traces).await;
    fill(&traces, &trace, 4).await;
    let added = add(&traces, &trace, vec![NewMessage::text("user", "again").with_parent(2), NewMessage::text("user", "and on")]).await;
    assert_eq!((sequences(&added.messages), added.head_sequence), (vec![5, 6], 6));
    assert_eq!(added.messages[0].parent_sequence, Some(2));
    assert_eq!(path(&traces, &trace, None).await, [1, 2, 5, 6]);
    assert_eq!(path(&traces, &trace, Some(4)).await, [1, 2, 3, 4], "the old end is still a path");
    assert_eq!(path(&traces, &trace, Some(5)).await, [1, 2, 5]);
    // Back to the dead branch.
    add(&traces, &trace, vec![NewMessage::text("user", "back").with_parent(4)]).await;
    assert_eq!(path(&traces, &trace, None).await, [1, 2, 3, 4, 7]);
    assert_eq!(sequences(&all(&traces, &trace).await), [1, 2, 3, 4, 5, 6, 7]);
}

pub(super) async fn side_branch_does_not_move_the_head(traces: Subject) {
    let trace = begin(&traces).await;
    fill(&traces, &trace, 2).await;
    let side = |text: &str| NewMessage::text("assistant", text).with_branch_type("reflection");
    let added = add(&traces, &trace, vec![side("think"), side("more")]).await;
    assert_eq!((added.head_sequence, sequences(&added.messages)), (2, vec![3, 4]));
    assert_eq!((added.messages[0].parent_sequence, added.messages[1].parent_sequence), (Some(2), Some(3)));
    assert_eq!(path(&traces, &trace, None).await, [1, 2]);
    assert_eq!(path(&traces, &trace, Some(4)).await, [1, 2, 3, 4]);
    assert_eq!(say(&traces, &trace, "on").await, 5);
    assert_eq!(path(&traces, &trace, None).await, [1, 2, 5], "the next message continues the head");
    let now = get(&traces, &trace).await;
    assert_eq!((now.head_sequence, now.last_sequence, now.total_messages), (5, 5, 5));
}

pub(super) async fn summary_takes_the_place_of_its_span(traces: Subject) {
    let trace = begin(&traces).await;
    fill(&traces, &trace, 5).await;
    let summary = |from, to| NewMessage::text("user", "summary").with_summarizes(SequenceRange { from, to });
    let added = add(&traces, &trace, vec![summary(3, 5)]).await;
    assert_eq!((added.messages[0].parent_sequence, added.head_sequence), (Some(2), 6));
    assert_eq!(path(&traces, &trace, None).await, [1, 2, 6]);
    assert_eq!(path(&traces, &trace, Some(5)).await, [1, 2, 3, 4, 5], "the originals stay");
    fill(&traces, &trace, 2).await;
    assert_eq!(path(&traces, &trace, None).await, [1, 2, 6, 7, 8]);
    // A summary of the whole path, the earlier summary included, and messages behind it in the same call.
    let added = add(&traces, &trace, vec![summary(1, 8), NewMessage::text("user", "on")]).await;
    assert_eq!(added.messages[0].parent_sequence, None);
    assert_eq!(path(&traces, &trace, None).await, [9, 10]);
    assert_eq!(all(&traces, &trace).await.len(), 10);
    // A rewind behind the summary undoes it.
    add(&traces, &trace, vec![NewMessage::text("user", "undo").with_parent(5)]).await;
    assert_eq!(path(&traces, &trace, None).await, [1, 2, 3, 4, 5, 11]);
}

pub(super) async fn summary_of_anything_but_the_end_of_the_path_is_refused(traces: Subject) {
    let trace = begin(&traces).await;
    fill(&traces, &trace, 4).await;
    add(&traces, &trace, vec![NewMessage::text("user", "again").with_parent(2)]).await;
    assert_eq!(path(&traces, &trace, None).await, [1, 2, 5]);
    let summary = |from, to| NewMessage::text("user", "summary").with_summarizes(SequenceRange { from, to });
    for (from, to) in [(3, 5), (4, 5), (1, 4), (1, 2), (0, 5), (5, 2), (1, 6), (6, 6), (u64::MAX, u64::MAX)] {
        refuse(&traces, &trace, vec![summary(from, to)], &AddOptions::new(), ErrorKind::InvalidArgument).await;
    }
    refuse(&traces, &trace, vec![summary(2, 5).with_parent(4)], &AddOptions::new(), ErrorKind::InvalidArgument).await;
    let added = add(&traces, &trace, vec![summary(2, 5).with_parent(1)]).await;
    assert_eq!(added.messages[0].parent_sequence, Some(1), "the parent may be given");
    assert_eq!(path(&traces, &trace, None).await, [1, 6]);
}

pub(super) async fn path_pages_continue_at_the_earlier_message(traces: Subject) {
    let trace = begin(&traces).await;
    fill(&traces, &trace, 6).await;
    add(&traces, &trace, vec![NewMessage::text("user", "again").with_parent(3)]).await;
    fill(&traces, &trace, 2).await;
    let whole = path(&traces, &trace, None).await;
    assert_eq!(whole, [1, 2, 3, 7, 8, 9]);
    for limit in 1..=7 {
        let (mut read, mut end) = (Vec::new(), None);
        loop {
            let query = PathQuery { head_sequence: end, limit: Some(limit) };
            let page = traces.get_main_path(&trace, &query).await.expect("readable");
            assert!(page.messages.len() <= limit);
            read.splice(0..0, sequences(&page.messages));
            match page.earlier {
                Some(earlier) => end = Some(earlier),
                None => break,
            }
        }
        assert_eq!(read, whole, "pages of {limit}");
    }
}

/// Each message of the path is followed by one of a side branch, so no two of the path are neighbours.
pub(super) async fn path_with_many_jumps_is_complete(traces: Subject) {
    let trace = begin(&traces).await;
    for _ in 0..4 {
        let pair = |number: u64| {
            let main = NewMessage::text("user", &number.to_string());
            [main, NewMessage::text("assistant", "aside").with_branch_type("evaluation")]
        };
        // The message after an aside would continue it, so its parent is named.
        let first = get(&traces, &trace).await.last_sequence;
        let mut messages: Vec<NewMessage> = (0..100).flat_map(pair).collect();
        for (index, message) in messages.iter_mut().enumerate().step_by(2) {
            let parent = first + index as u64;
            message.parent_sequence = Some(parent.saturating_sub(1));
        }
        add(&traces, &trace, messages).await;
    }
    let expected: Vec<u64> = (0..400).map(|number| 2 * number + 1).collect();
    assert_eq!(path(&traces, &trace, None).await, expected);
    let (mut read, mut end) = (Vec::new(), None);
    loop {
        let page = traces.get_main_path(&trace, &PathQuery { head_sequence: end, limit: Some(150) }).await.expect("readable");
        read.splice(0..0, sequences(&page.messages));
        match page.earlier {
            Some(earlier) => end = Some(earlier),
            None => break,
        }
    }
    assert_eq!(read, expected);
    // A summary of nearly all of it.
    let summary = NewMessage::text("user", "summary").with_summarizes(SequenceRange { from: 3, to: 799 });
    add(&traces, &trace, vec![summary]).await;
    assert_eq!(path(&traces, &trace, None).await, [1, 801]);
    // An aside is not on the path.
    let beside = vec![NewMessage::text("user", "summary").with_summarizes(SequenceRange { from: 2, to: 801 })];
    refuse(&traces, &trace, beside, &AddOptions::new(), ErrorKind::InvalidArgument).await;
}

pub(super) async fn path_to_an_unknown_end_is_refused(traces: Subject) {
    let trace = begin(&traces).await;
    fill(&traces, &trace, 2).await;
    for end in [3, u64::MAX] {
        let query = PathQuery { head_sequence: Some(end), limit: None };
        assert_eq!(traces.get_main_path(&trace, &query).await.map(drop).expect_err("unknown").kind(), ErrorKind::InvalidArgument, "{end}");
    }
    let query = PathQuery { head_sequence: None, limit: Some(0) };
    assert_eq!(traces.get_main_path(&trace, &query).await.map(drop).expect_err("no limit").kind(), ErrorKind::InvalidArgument);
}

pub(super) async fn new_path_begins_without_a_parent(traces: Subject) {
    let trace = begin(&traces).await;
    fill(&traces, &trace, 2).await;
    let added = add(&traces, &trace, vec![NewMessage::text("user", "afresh").with_parent(0)]).await;
    assert_eq!((added.messages[0].parent_sequence, added.messages[0].sequence), (None, 3));
    assert_eq!(path(&traces, &trace, None).await, [3]);
    assert_eq!(path(&traces, &trace, Some(2)).await, [1, 2]);
}

pub(super) async fn head_can_move_without_a_message(traces: Subject) {
    let trace = begin(&traces).await;
    fill(&traces, &trace, 4).await;
    let moved = traces.update_trace(&trace, TraceUpdate::new().with_head(2)).await.expect("moved");
    assert_eq!((moved.head_sequence, moved.last_sequence), (2, 4));
    assert_eq!(path(&traces, &trace, None).await, [1, 2]);
    assert_eq!(event_kinds(&traces, &trace).await.last().map(String::as_str), Some(kinds::HEAD_MOVED));
    say(&traces, &trace, "on").await;
    assert_eq!(path(&traces, &trace, None).await, [1, 2, 5]);
    let before = get(&traces, &trace).await;
    for head in [6, u64::MAX] {
        let update = TraceUpdate { task: Some("never".to_owned()), ..TraceUpdate::new() }.with_head(head);
        assert_eq!(traces.update_trace(&trace, update).await.map(drop).expect_err("unknown").kind(), ErrorKind::InvalidArgument);
    }
    assert_eq!(get(&traces, &trace).await, before);
    assert_eq!(traces.update_trace(&trace, TraceUpdate::new().with_head(0)).await.expect("moved").head_sequence, 0);
    assert_eq!(path(&traces, &trace, None).await, Vec::<u64>::new());
    assert_eq!(say(&traces, &trace, "afresh").await, 6);
    assert_eq!(path(&traces, &trace, None).await, [6]);
}

pub(super) async fn empty_trace_has_an_empty_path(traces: Subject) {
    let trace = begin(&traces).await;
    for end in [None, Some(0)] {
        assert_eq!(path(&traces, &trace, end).await, Vec::<u64>::new());
    }
    assert!(all(&traces, &trace).await.is_empty());
}
