//! Compaction.

use super::support::{SESSION, TENANT, append, calls, reference, result, user, version, with_session};
use futures::future::join;
use std::sync::Arc;
use tokio::sync::Notify;
use treehold_core::error::{Error, ErrorKind};
use treehold_sessions::{CompactOptions, MemoScope, Message, NOTES, Placeholder, Sessions, SummarizeWith};
use treehold_store::Store;

async fn short(messages: Vec<Message>) -> treehold_core::Result<String> {
    Ok(format!("summary of {}", messages.len()))
}

async fn compact(sessions: &Sessions) -> Option<treehold_sessions::Compaction> {
    sessions.compact(TENANT, SESSION, &SummarizeWith(short), &CompactOptions::new()).await.unwrap()
}

/// Compaction moves the start of the window and deletes no message.
pub(crate) async fn repeated_compactions_keep_the_full_history(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    let mut all = Vec::new();
    for round in 1..=4_usize {
        let more: Vec<Message> = (all.len()..all.len() + 7).map(user).collect();
        append(&sessions, &more).await;
        all.extend(more);
        let before = sessions.load_all(TENANT, SESSION).await.unwrap();
        let done = compact(&sessions).await.expect("there is enough");
        assert_eq!((done.archive_id, done.messages as usize), (format!("{round:04}"), before.len() / 2));
        let after = sessions.load_all(TENANT, SESSION).await.unwrap();
        assert!(Placeholder::is(&after[0]));
        assert_eq!(after[1..], before[before.len() / 2..]);
        assert!(after[0].text().contains(&format!("Archive ID: {round:04}\n{} messages", before.len() / 2)));
        assert_eq!(done.tokens_after, after.iter().map(Message::tokens).sum::<u64>());
        assert_eq!(done.tokens_before, before.iter().map(Message::tokens).sum::<u64>());
        assert_eq!(sessions.load_full(TENANT, SESSION).await.unwrap(), all);
    }
    let archived = sessions.load_compacted(TENANT, SESSION, Some("0001"), None).await.unwrap();
    assert_eq!(archived, all[..3]);
    let newest = sessions.load_compacted(TENANT, SESSION, None, None).await.unwrap();
    assert!(newest.len() > 10 && newest == all[..newest.len()]);
    assert_eq!(sessions.load_compacted(TENANT, SESSION, None, Some(2)).await.unwrap(), all[..2]);
    for unknown in ["0009", "1", "", "../0001"] {
        assert!(sessions.load_compacted(TENANT, SESSION, Some(unknown), None).await.unwrap().is_empty(), "{unknown}");
    }
}

/// Compaction starts when the estimate reaches the trigger and the window has at least six messages.
pub(crate) async fn window_below_the_trigger_is_not_compacted(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    let compact_at = async |trigger: u64| {
        let options = CompactOptions::new().with_trigger_tokens(trigger);
        sessions.compact_if_needed(TENANT, SESSION, &SummarizeWith(short), &options).await.unwrap().is_some()
    };
    append(&sessions, &(0..5).map(user).collect::<Vec<_>>()).await;
    assert!(!compact_at(1).await, "five messages are too few");
    append(&sessions, &[user(5)]).await;
    assert!(!compact_at(61).await);
    assert!(compact_at(60).await);
    assert!(!compact_at(1_000).await);
    let error = sessions.compact(TENANT, SESSION, &SummarizeWith(short), &CompactOptions::new().with_compact_fraction(1.5)).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidArgument);
    let unknown = sessions.compact(TENANT, "unknown", &SummarizeWith(short), &CompactOptions::new()).await.unwrap();
    assert_eq!(unknown, None);
}

/// A compaction takes one message at least, besides the summary of the one before.
pub(crate) async fn fraction_of_zero_compacts_one_message(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    let all: Vec<Message> = (0..6).map(user).collect();
    append(&sessions, &all).await;
    let options = CompactOptions::new().with_compact_fraction(0.0);
    let compact = async || sessions.compact(TENANT, SESSION, &SummarizeWith(short), &options).await.unwrap();
    assert_eq!(compact().await.unwrap().messages, 1);
    let after = sessions.load_all(TENANT, SESSION).await.unwrap();
    assert!(Placeholder::is(&after[0]));
    assert_eq!(after[1..], all[1..]);
    // Compacting the summary alone would leave as many messages as before.
    assert_eq!(compact().await.unwrap().messages, 2);
    let after = sessions.load_all(TENANT, SESSION).await.unwrap();
    assert!(Placeholder::is(&after[0]) && after[0].text().contains("\n2 messages ("));
    assert_eq!(after[1..], all[2..]);
    assert_eq!(compact().await, None, "five messages are too few");
    assert_eq!(sessions.load_full(TENANT, SESSION).await.unwrap(), all);
}

/// The cut moves past the results of a call, or back to before the call.
pub(crate) async fn compaction_keeps_results_with_their_calls(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    append(&sessions, &[user(0), user(1), calls(&["a", "b"]), result("a"), result("b"), user(2), user(3), user(4)]).await;
    assert_eq!(compact(&sessions).await.unwrap().messages, 5);
    let after = sessions.load_all(TENANT, SESSION).await.unwrap();
    assert_eq!(after[1..], [user(2), user(3), user(4)]);
    append(&sessions, &[calls(&["c"]), result("c"), result("c"), result("c")]).await;
    // Every message after the wanted cut is a result of one call, so the cut goes back to before the call.
    let options = CompactOptions::new().with_compact_fraction(0.8);
    sessions.compact(TENANT, SESSION, &SummarizeWith(short), &options).await.unwrap().unwrap();
    let after = sessions.load_all(TENANT, SESSION).await.unwrap();
    assert_eq!(after[1..], [calls(&["c"]), result("c"), result("c"), result("c")]);
    // The window is one call with its results, so no cut is left.
    append(&sessions, &[result("c"), result("c")]).await;
    assert_eq!(compact(&sessions).await, None);
}

/// Appends do not wait for a summary, and the compaction keeps their messages.
pub(crate) async fn messages_appended_during_compaction_stay_in_the_window(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    let first: Vec<Message> = (0..10).map(user).collect();
    append(&sessions, &first).await;
    let (asked, answer) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let slow = SummarizeWith({
        let (asked, answer) = (asked.clone(), answer.clone());
        move |messages: Vec<Message>| {
            let (asked, answer) = (asked.clone(), answer.clone());
            async move {
                asked.notify_one();
                answer.notified().await;
                Ok(format!("slow summary of {}", messages.len()))
            }
        }
    });
    let options = CompactOptions::new();
    let compaction = sessions.compact(TENANT, SESSION, &slow, &options);
    let others = async {
        asked.notified().await;
        for number in 10..20 {
            append(&sessions, &[user(number)]).await;
        }
        answer.notify_one();
    };
    let (done, ()) = join(compaction, others).await;
    assert_eq!(done.unwrap().unwrap().messages, 5);
    let all: Vec<Message> = (0..20).map(user).collect();
    assert_eq!(sessions.load_all(TENANT, SESSION).await.unwrap()[1..], all[5..]);
    assert_eq!(sessions.load_full(TENANT, SESSION).await.unwrap(), all);
}

/// The window is replaced only if it is still the one that was summarised.
pub(crate) async fn concurrent_compactions_have_one_winner(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    // The window falls below the trigger as soon as one of them has won.
    let all: Vec<Message> = (0..12).map(|number| Message::user(&"x".repeat(4_000), number)).collect();
    append(&sessions, &all).await;
    let both = Arc::new(tokio::sync::Barrier::new(2));
    let meeting = SummarizeWith({
        let both = both.clone();
        move |messages: Vec<Message>| {
            let both = both.clone();
            async move {
                both.wait().await;
                Ok(format!("summary of {}", messages.len()))
            }
        }
    });
    let options = CompactOptions::new().with_trigger_tokens(12_000);
    let compact = || sessions.compact_if_needed(TENANT, SESSION, &meeting, &options);
    let (one, other) = join(compact(), compact()).await;
    assert_eq!([one.unwrap(), other.unwrap()].iter().flatten().count(), 1);
    assert_eq!(sessions.load_full(TENANT, SESSION).await.unwrap(), all);
    assert_eq!(sessions.load_all(TENANT, SESSION).await.unwrap().len(), 7);
}

/// Every summary is added to `NOTES.md` exactly once, even if its compaction was interrupted.
pub(crate) async fn interrupted_compactions_add_each_summary_to_the_notes_once(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    append(&sessions, &(0..8).map(user).collect::<Vec<_>>()).await;
    sessions.write_memory_document(TENANT, SESSION, MemoScope::Session, NOTES, "# Notes\n").await.unwrap();
    compact(&sessions).await.unwrap();
    let notes = async || sessions.read_memory_document(TENANT, SESSION, MemoScope::Session, NOTES).await.unwrap().unwrap();
    let first = notes().await;
    assert!(
        first.starts_with("# Notes\n\n## Compaction Summary [20")
            && first.ends_with("`messages.compactions/0001.jsonl`)*\n\nsummary of 4\n")
    );
    append(&sessions, &(0..8).map(user).collect::<Vec<_>>()).await;
    compact(&sessions).await.unwrap();
    assert_eq!(notes().await.matches("## Compaction Summary").count(), 2);
    // Whatever step a compaction is interrupted at, the next one completes the notes.
    for steps in 1..60 {
        append(&sessions, &(0..8).map(user).collect::<Vec<_>>()).await;
        let mut compaction = Box::pin(compact(&sessions));
        for _ in 0..steps {
            if futures::poll!(&mut compaction).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    append(&sessions, &(0..8).map(user).collect::<Vec<_>>()).await;
    let last = compact(&sessions).await.unwrap();
    let notes = notes().await;
    let archives: u64 = last.archive_id.parse().unwrap();
    for archive in 1..=archives {
        assert_eq!(notes.matches(&format!("messages.compactions/{archive:04}.jsonl")).count(), 1, "archive {archive}");
    }
}

/// A compaction whose summary fails or is too long writes nothing.
pub(crate) async fn compaction_with_failed_summary_changes_nothing(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    append(&sessions, &(0..8).map(user).collect::<Vec<_>>()).await;
    let before = version(&store).await;
    let failing = SummarizeWith(|_| async { Err(Error::new(ErrorKind::Unavailable, "the model is away")) });
    let error = sessions.compact(TENANT, SESSION, &failing, &CompactOptions::new()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let long = SummarizeWith(|_| async { Ok("x".repeat(treehold_sessions::SUMMARY_BYTES_MAX + 1)) });
    let error = sessions.compact(TENANT, SESSION, &long, &CompactOptions::new()).await.unwrap_err();
    assert_eq!((error.kind(), version(&store).await), (ErrorKind::TooLarge, before));
}

/// The summary is part of the window only if the budget or the limit allows it.
pub(crate) async fn small_budget_omits_the_summary(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    append(&sessions, &(0..8).map(user).collect::<Vec<_>>()).await;
    compact(&sessions).await.unwrap();
    let window = sessions.load_all(TENANT, SESSION).await.unwrap();
    let sum: u64 = window.iter().map(Message::tokens).sum();
    for (budget, from) in [(sum, 0), (sum - 1, 1), (40, 1), (39, 2), (0, 4)] {
        assert_eq!(sessions.load_with_budget(TENANT, SESSION, budget).await.unwrap(), window[from..], "{budget}");
    }
    for (limit, from) in [(5, 0), (4, 1), (1, 4), (0, 5)] {
        assert_eq!(sessions.load(TENANT, SESSION, Some(limit)).await.unwrap(), window[from..], "{limit}");
    }
}

/// Only a summary that the store made, or that was imported at the beginning of an archive, stands for an archive.
pub(crate) async fn message_that_looks_like_a_summary_stays_in_archives(store: Arc<dyn Store>) {
    let forged = |archive: usize| Message::user(&format!("[Conversation compacted at x\nArchive ID: {archive:04}\nmine\n]"), 1);
    let sessions = with_session(&store).await;
    let all: Vec<Message> = (0..30).map(|number| forged(number % 4 + 1)).collect();
    append(&sessions, &all[..20]).await;
    compact(&sessions).await.unwrap();
    append(&sessions, &all[20..]).await;
    compact(&sessions).await.unwrap();
    let listed = async |id| sessions.load_compacted(TENANT, SESSION, Some(id), None).await.unwrap();
    assert_eq!(listed("0001").await, all[..10]);
    let second = listed("0002").await;
    assert!(second.len() > 10 && second == all[..second.len()]);
    assert_eq!(sessions.load_full(TENANT, SESSION).await.unwrap(), all);
    // The same session from its files.
    let files = sessions.export_session(&reference()).await.unwrap().unwrap();
    sessions.delete(TENANT, SESSION).await.unwrap();
    sessions.import_session(&reference(), &files).await.unwrap();
    assert_eq!(listed("0001").await, all[..10]);
    assert_eq!(listed("0002").await, second);
    assert_eq!(sessions.load_full(TENANT, SESSION).await.unwrap(), all);
}
