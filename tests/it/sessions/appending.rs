//! Appends by several processes, and by processes that are killed.

use super::{Process, SESSION, Subject, TENANT, append, check_batches, check_turns, kills, on_shared_stores, paused, report};
use treehold::sessions::Sessions;

on_shared_stores! {
    two_processes_that_append_500_batches_each_lose_none: (super::append_in_two_processes, super::append_500),
    killed_writer_loses_tears_and_repeats_no_batch: (super::kill_while_appending, super::append_until_killed),
}

const BATCHES: u64 = 500;

async fn append_500(sessions: Sessions, writer: u64) {
    report("ready");
    paused().await;
    for number in 0..BATCHES {
        append(&sessions, writer, number).await;
    }
}

async fn append_in_two_processes(subject: Subject) {
    let mut writers = [subject.start(0), subject.start(1)];
    for writer in &mut writers {
        assert_eq!(writer.next().as_deref(), Some("ready"));
    }
    writers.iter_mut().for_each(Process::resume);
    writers.into_iter().for_each(|writer| drop(writer.finish()));
    let sessions = subject.sessions().await;
    let all = sessions.load_all(TENANT, SESSION).await.unwrap();
    assert_eq!(check_batches(&all), [BATCHES, BATCHES]);
    check_turns(&sessions, 2 * BATCHES).await;
}

/// Appends batches, starting with a number, and reports each. The first may be one whose answer was lost.
async fn append_until_killed(sessions: Sessions, first: u64) {
    for number in first.. {
        append(&sessions, 0, number).await;
        report(number);
    }
}

async fn kill_while_appending(subject: Subject) {
    let mut acknowledged = 0;
    for round in 0..kills() {
        let mut writer = subject.start(acknowledged);
        for _ in 0..1 + round * 7 % 31 {
            acknowledged = writer.next().unwrap().parse::<u64>().unwrap() + 1;
        }
        // What it reported before its end counts too.
        if let Some(last) = writer.kill().last() {
            acknowledged = last.parse::<u64>().unwrap() + 1;
        }
        let sessions = subject.sessions().await;
        let [stored, _] = check_batches(&sessions.load_all(TENANT, SESSION).await.unwrap());
        assert!(stored == acknowledged || stored == acknowledged + 1, "{stored} batches of {acknowledged} in round {round}");
        check_turns(&sessions, stored).await;
    }
}
