//! Compactions by several processes, and by processes that are killed.

use super::{Process, SESSION, Subject, TENANT, append, check_batches, kills, on_shared_stores, paused, report};
use treehold::sessions::{CompactOptions, MemoScope, Message, NOTES, Placeholder, Sessions, SummarizeWith};

on_shared_stores! {
    messages_appended_during_a_slow_summary_of_another_process_are_kept: (super::append_during_a_summary, super::compact_slowly),
    two_processes_that_compact_at_once_have_one_winner: (super::compact_in_two_processes, super::compact_slowly),
    killed_compaction_loses_no_message_and_no_summary: (super::kill_while_compacting, super::compact_until_killed),
}

/// The window falls below this as soon as one compaction has won.
const TRIGGER: u64 = 500;

/// Compacts the window with a summary that waits for the parent, and reports the archive.
async fn compact_slowly(sessions: Sessions, _: u64) {
    let slow = SummarizeWith(|messages: Vec<Message>| async move {
        report("asked");
        paused().await;
        Ok(format!("summary of {}", messages.len()))
    });
    let options = CompactOptions::new().with_trigger_tokens(TRIGGER).with_compact_fraction(0.8);
    let done = sessions.compact_if_needed(TENANT, SESSION, &slow, &options).await.unwrap();
    report(done.map_or("lost".to_owned(), |done| done.archive_id));
}

/// Appends batches until the window is over the trigger. Returns their number.
async fn fill(sessions: &Sessions) -> u64 {
    for number in 0.. {
        let tokens: u64 = sessions.load_all(TENANT, SESSION).await.unwrap().iter().map(Message::tokens).sum();
        if tokens >= TRIGGER + 100 {
            return number;
        }
        append(sessions, 0, number).await;
    }
    unreachable!("numbers do not end")
}

async fn notes(sessions: &Sessions) -> String {
    sessions.read_memory_document(TENANT, SESSION, MemoScope::Session, NOTES).await.unwrap().unwrap_or_default()
}

/// Asserts that the notes have each summary once.
async fn check_notes(sessions: &Sessions, archives: u64) {
    let notes = notes(sessions).await;
    for archive in 1..=archives {
        assert_eq!(notes.matches(&format!("messages.compactions/{archive:04}.jsonl")).count(), 1, "archive {archive}");
    }
    assert_eq!(notes.matches("## Compaction Summary").count() as u64, archives);
}

async fn append_during_a_summary(subject: Subject) {
    let sessions = subject.sessions().await;
    let first = fill(&sessions).await;
    let before = sessions.load_all(TENANT, SESSION).await.unwrap();
    let mut compaction = subject.start(0);
    assert_eq!(compaction.next().as_deref(), Some("asked"));
    // Appends of two writers do not wait for the summary.
    let one = async {
        for number in first..first + 50 {
            append(&sessions, 0, number).await;
        }
    };
    let other = async {
        for number in 0..50 {
            append(&sessions, 1, number).await;
        }
    };
    futures::join!(one, other);
    let all = sessions.load_all(TENANT, SESSION).await.unwrap();
    assert_eq!(check_batches(&all), [first + 50, 50]);
    compaction.resume();
    assert_eq!(compaction.next().as_deref(), Some("0001"));
    compaction.finish();
    assert_eq!(sessions.load_full(TENANT, SESSION).await.unwrap(), all);
    let window = sessions.load_all(TENANT, SESSION).await.unwrap();
    assert!(Placeholder::is(&window[0]));
    let compacted = before.len() * 4 / 5;
    assert_eq!(window[1..], all[compacted..], "only what was summarised left the window");
    check_notes(&sessions, 1).await;
}

async fn compact_in_two_processes(subject: Subject) {
    let sessions = subject.sessions().await;
    fill(&sessions).await;
    let all = sessions.load_all(TENANT, SESSION).await.unwrap();
    let mut both = [subject.start(0), subject.start(1)];
    for compaction in &mut both {
        assert_eq!(compaction.next().as_deref(), Some("asked"));
    }
    both.iter_mut().for_each(Process::resume);
    let mut outcomes = both.map(|compaction| compaction.finish().join(","));
    outcomes.sort();
    assert_eq!(outcomes, ["0001", "lost"]);
    assert_eq!(sessions.load_full(TENANT, SESSION).await.unwrap(), all);
    assert_eq!(sessions.load_all(TENANT, SESSION).await.unwrap().len(), 1 + all.len() - all.len() * 4 / 5);
    check_notes(&sessions, 1).await;
}

/// Appends batches, starting with a number. Compacts after each third, and reports each step.
async fn compact_until_killed(sessions: Sessions, first: u64) {
    let summarize = SummarizeWith(|messages: Vec<Message>| async move {
        report("asked");
        Ok(format!("summary of {}", messages.len()))
    });
    for number in first.. {
        append(&sessions, 0, number).await;
        report(number);
        if number % 3 == 0 {
            sessions.compact(TENANT, SESSION, &summarize, &CompactOptions::new()).await.unwrap();
            report("compacted");
        }
    }
}

async fn kill_while_compacting(subject: Subject) {
    let mut acknowledged = 0;
    let mut interrupted = 0;
    for round in 0..kills() {
        let mut writer = subject.start(acknowledged);
        let mut left = 1 + round * 5 % 17;
        // Most kills are right after the summary was made, so they meet the commit, or the notes that follow it.
        while left > 0 {
            let step = writer.next().unwrap();
            if let Ok(number) = step.parse::<u64>() {
                acknowledged = number + 1;
            }
            left = if step == "asked" || round % 4 == 0 { left.saturating_sub(1) } else { left };
        }
        let rest = writer.kill();
        interrupted += u64::from(!rest.iter().any(|step| step == "compacted"));
        if let Some(number) = rest.iter().rev().find_map(|step| step.parse::<u64>().ok()) {
            acknowledged = number + 1;
        }
        let sessions = subject.sessions().await;
        let full = sessions.load_full(TENANT, SESSION).await.unwrap();
        let [stored, _] = check_batches(&full);
        assert!(stored == acknowledged || stored == acknowledged + 1, "{stored} batches of {acknowledged} in round {round}");
        let window = sessions.load_all(TENANT, SESSION).await.unwrap();
        let tail = if window.first().is_some_and(Placeholder::is) { &window[1..] } else { &window[..] };
        assert_eq!(*tail, full[full.len() - tail.len()..]);
    }
    assert!(interrupted > 0, "no kill interrupted a compaction");
    // The next compaction completes the notes.
    let sessions = subject.sessions().await;
    let summarize = SummarizeWith(|_| async { Ok("last".to_owned()) });
    for number in acknowledged..acknowledged + 6 {
        append(&sessions, 1, number - acknowledged).await;
    }
    let last = sessions.compact(TENANT, SESSION, &summarize, &CompactOptions::new()).await.unwrap().unwrap();
    check_notes(&sessions, last.archive_id.parse().unwrap()).await;
}
