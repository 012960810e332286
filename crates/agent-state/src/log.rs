//! Plans what a save writes to the log of a value: the messages that the log does not have in the value's window.

use crate::rows::{corrupt, new_id};
use crate::value::{Body, Content, Digest, Digests, Frame, Log, Run, Segment, Window, hex};
use std::collections::HashMap;
use std::ops::Range;
use treehold_core::error::Result;

/// The most runs of a window. A save that would need more writes its messages again, one after another.
const RUNS_MAX: usize = 64;

/// The most segments of a log.
const SEGMENTS_MAX: usize = 32;

/// The most messages that one commit writes. A save with more writes them in several commits first, and then the head.
pub(crate) const COMMIT_ROWS_MAX: usize = 2_000;

/// The most bytes of messages that one commit writes.
pub(crate) const COMMIT_BYTES_MAX: usize = 8 << 20;

/// How many earlier messages with the same digest are tried as the beginning of a run.
const CANDIDATES_MAX: usize = 8;

/// A message's place in the log: its segment and position.
pub(crate) type Place = (usize, u64);

/// What a save writes.
pub(crate) struct Plan<'a> {
    pub(crate) body: Body,
    /// The new messages, with their positions and digests.
    pub(crate) rows: Vec<(u64, Digest, &'a str)>,
    /// The segment that the new messages go to, if it is a new one. Then they are written before the head.
    pub(crate) staged: Option<String>,
    /// The places of messages that leave the window.
    pub(crate) leaving: Vec<Place>,
    /// The segments that the log no longer lists.
    pub(crate) dropped: Vec<String>,
    /// The segments to which `leaving` refers.
    pub(crate) segments: Vec<Segment>,
}

/// The places of a window's messages, in order.
pub(crate) fn places(window: &Window) -> impl Iterator<Item = Place> + '_ {
    window.runs.iter().flat_map(|run| (run.from..run.to).map(|position| (run.segment, position)))
}

/// A run of the new messages: kept from the window before, or written.
enum Piece {
    Kept(Range<usize>),
    Written(Range<usize>),
}

/// Plans a save. `kept` are the digests of the messages of the window before; without them, only its beginning can be kept, as in a save
/// that adds messages.
pub(crate) fn plan<'a>(
    before: Option<&Body>,
    content: &Content<'a>,
    digests: Option<&Digests>,
    kept: Option<&[Digest]>,
) -> Result<Plan<'a>> {
    let window = before.and_then(|before| before.window.as_ref());
    let log = before.and_then(|before| before.log.clone());
    let (Some(frame), Some(digests)) = (content.frame(), digests) else {
        // The messages, if there were any, leave the window.
        let segments = log.as_ref().map_or_else(Vec::new, |log| log.segments.clone());
        let body = Body { log, window: None, text: content.whole() };
        let leaving = window.map_or_else(Vec::new, |window| places(window).collect());
        return Ok(Plan { body, rows: Vec::new(), staged: None, leaving, dropped: Vec::new(), segments });
    };
    let count = frame.messages.len();
    let old: Vec<Place> = window.map_or_else(Vec::new, |window| places(window).collect());
    let is_extended = window.is_some_and(|window| digests.start_with(window));
    let everything = || vec![Piece::Written(0..count)];
    let pieces = match kept {
        _ if is_extended => vec![Piece::Kept(0..old.len()), Piece::Written(old.len()..count)],
        Some(kept) => align(kept, &digests.each),
        None => everything(),
    };
    let log = log.unwrap_or_else(|| Log::new(new_id()));
    let (planned, runs) = match place(&log, &old, pieces, frame, digests)? {
        (planned, runs) if runs.len() <= RUNS_MAX => (planned, runs),
        _ => place(&log, &old, everything(), frame, digests)?,
    };
    let leaving = if is_extended && planned.rows.len() < count || old.is_empty() {
        Vec::new()
    } else {
        let mut stays: Vec<Place> = runs.iter().flat_map(|run| (run.from..run.to).map(|position| (run.segment, position))).collect();
        stays.sort_unstable();
        old.into_iter().filter(|place| stays.binary_search(place).is_err()).collect()
    };
    let mut plan = Plan { leaving, ..planned };
    plan.body.text = format!("{}{}", frame.before, frame.after);
    plan.body.window = Some(Window {
        at: frame.before.len(),
        lead: frame.lead.to_owned(),
        separator: frame.separator.to_owned(),
        trail: frame.trail.to_owned(),
        count: count as u64,
        digest: hex(&digests.chained[count]),
        runs,
    });
    drop_segments(&mut plan);
    Ok(plan)
}

/// Gives positions to the messages to write. Returns the runs of the window, too.
fn place<'a>(log: &Log, old: &[Place], pieces: Vec<Piece>, frame: &Frame<'a>, digests: &Digests) -> Result<(Plan<'a>, Vec<Run>)> {
    let mut log = log.clone();
    let written = || pieces.iter().filter_map(|piece| if let Piece::Written(range) = piece { Some(range.clone()) } else { None }).flatten();
    let bytes: usize = written().map(|index| frame.messages[index].len()).sum();
    let staged = (bytes > COMMIT_BYTES_MAX || written().count() > COMMIT_ROWS_MAX).then(|| {
        let id = new_id();
        log.segments.push(Segment { id: Some(id.clone()), start: log.end });
        id
    });
    let segment = log.segments.len().checked_sub(1).ok_or_else(|| corrupt("log of a state"))?;
    let (mut runs, mut rows) = (Vec::<Run>::new(), Vec::new());
    let mut push = |(segment, position): Place| match runs.last_mut() {
        Some(run) if run.segment == segment && run.to == position => run.to += 1,
        _ => runs.push(Run { segment, from: position, to: position + 1 }),
    };
    for piece in pieces {
        match piece {
            Piece::Kept(range) => old[range].iter().for_each(|place| push(*place)),
            Piece::Written(range) => {
                for index in range {
                    let position = log.end;
                    // A damaged head could have the last position.
                    log.end = position.checked_add(1).ok_or_else(|| corrupt("log of a state"))?;
                    rows.push((position, digests.each[index], frame.messages[index]));
                    push((segment, position));
                }
            }
        }
    }
    let segments = log.segments.clone();
    let body = Body { log: Some(log), window: None, text: String::new() };
    Ok((Plan { body, rows, staged, leaving: Vec::new(), dropped: Vec::new(), segments }, runs))
}

/// Finds the messages of the window before that the new one has too, in the same order: those at both ends, and runs between them.
fn align(old: &[Digest], new: &[Digest]) -> Vec<Piece> {
    let prefix = old.iter().zip(new).take_while(|(old, new)| old == new).count();
    let (old_rest, new_rest) = (&old[prefix..], &new[prefix..]);
    let suffix = old_rest.iter().rev().zip(new_rest.iter().rev()).take_while(|(old, new)| old == new).count();
    let (old_end, new_end) = (old.len() - suffix, new.len() - suffix);
    let mut places: HashMap<&Digest, Vec<usize>> = HashMap::new();
    for (index, digest) in old.iter().enumerate().take(old_end).skip(prefix) {
        places.entry(digest).or_default().push(index);
    }
    let mut pieces = vec![Piece::Kept(0..prefix)];
    let (mut next_old, mut index, mut written_from) = (prefix, prefix, prefix);
    while index < new_end {
        let candidates = places.get(&new[index]).map_or(&[][..], Vec::as_slice);
        let from = candidates.partition_point(|candidate| *candidate < next_old);
        let length_at = |start: usize| old[start..old_end].iter().zip(&new[index..new_end]).take_while(|(old, new)| old == new).count();
        let best = candidates[from..].iter().take(CANDIDATES_MAX).map(|start| (length_at(*start), *start));
        // Of equal runs the first one, so that most of the window stays available.
        match best.max_by_key(|(length, start)| (*length, std::cmp::Reverse(*start))) {
            Some((length, start)) => {
                pieces.extend([Piece::Written(written_from..index), Piece::Kept(start..start + length)]);
                (next_old, index) = (start + length, index + length);
                written_from = index;
            }
            None => index += 1,
        }
    }
    pieces.extend([Piece::Written(written_from..new_end), Piece::Kept(old_end..old.len())]);
    pieces
}

/// Keeps the number of segments bounded: drops the oldest without a message of the window.
fn drop_segments(plan: &mut Plan<'_>) {
    let (Some(log), Some(window)) = (&mut plan.body.log, &mut plan.body.window) else { return };
    while log.segments.len() > SEGMENTS_MAX {
        // The first segment stays, and the last one is in use.
        let is_free = |index: &usize| window.runs.iter().all(|run| run.segment != *index);
        let Some(free) = (1..log.segments.len() - 1).find(is_free) else { return };
        plan.dropped.extend(log.segments.remove(free).id);
        for run in &mut window.runs {
            run.segment -= usize::from(run.segment > free);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::{Layout, digest_of};
    use proptest::prelude::*;
    use treehold_core::json::Json;

    /// The window that a plan makes, as the digests of its messages by a model of the log.
    fn apply(log: &mut HashMap<Place, Digest>, plan: &Plan<'_>) -> Vec<Digest> {
        let segment = plan.segments.len() - 1;
        for (position, digest, text) in &plan.rows {
            assert_eq!(*digest, digest_of(text));
            assert!(log.insert((segment, *position), *digest).is_none(), "no position is written twice");
        }
        plan.body.window.as_ref().map_or_else(Vec::new, |window| places(window).map(|place| log[&place]).collect())
    }

    fn state(messages: &[u8]) -> Json {
        Json::of(&serde_json::json!({ "context": messages })).expect("plain")
    }

    fn save(
        log: &mut HashMap<Place, Digest>,
        before: Option<&Body>,
        kept: Option<&[Digest]>,
        messages: &[u8],
    ) -> (Body, Vec<Digest>, usize) {
        let json = state(messages);
        let layout = Layout::of(json.as_str());
        let content = Content::single(&json, layout.as_ref());
        let digests = Digests::of(content.frame().expect("it has messages"));
        let plan = plan(before, &content, Some(&digests), kept).expect("planned");
        let now = apply(log, &plan);
        assert_eq!(now, digests.each);
        for place in &plan.leaving {
            assert!(!places(plan.body.window.as_ref().expect("a window")).any(|kept| kept == *place));
        }
        (plan.body.clone(), now, plan.rows.len())
    }

    #[test]
    fn save_writes_only_messages_that_the_window_does_not_have() {
        for (before, after, written) in [
            (&[][..], &[1, 2][..], 2),
            (&[1, 2], &[1, 2], 0),
            (&[1, 2], &[1, 2, 3], 1),
            // A compaction: a summary replaces the beginning, and a turn is added.
            (&[1, 2, 3, 4, 5, 6], &[9, 5, 6, 7], 2),
            // An edited message.
            (&[1, 2, 3, 4], &[1, 9, 3, 4], 1),
            (&[1, 2, 3, 4], &[1, 4], 0),
            (&[1, 2, 3], &[], 0),
            (&[1, 2, 3], &[3, 2, 1], 2),
        ] {
            let mut log = HashMap::new();
            let (body, kept, _) = save(&mut log, None, None, before);
            let (_, _, rows) = save(&mut log, Some(&body), Some(&kept), after);
            assert_eq!(rows, written, "{before:?} {after:?}");
        }
    }

    #[test]
    fn window_of_too_many_runs_is_written_again() {
        let mut log = HashMap::new();
        let many: Vec<u8> = (0..250).collect();
        let (body, kept, _) = save(&mut log, None, None, &many);
        let half: Vec<u8> = (0..250).filter(|number| number % 2 == 0).collect();
        let (body, _, rows) = save(&mut log, Some(&body), Some(&kept), &half);
        assert_eq!((rows, body.window.expect("a window").runs.len()), (125, 1));
    }

    proptest! {
        #[test]
        fn any_sequence_of_saves_keeps_the_window(saves in prop::collection::vec(prop::collection::vec(0_u8..6, 0..12), 1..12)) {
            let (mut log, mut before) = (HashMap::new(), None::<(Body, Vec<Digest>)>);
            for messages in &saves {
                let (body, kept) = before.as_ref().map_or((None, None), |(body, kept)| (Some(body), Some(kept.as_slice())));
                let (body, kept, _) = save(&mut log, body, kept, messages);
                before = Some((body, kept));
            }
        }
    }
}
