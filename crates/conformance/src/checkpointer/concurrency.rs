//! Concurrency: one winner for each head, and nothing acknowledged is lost.

use super::*;
use futures::future::join_all;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::task::JoinHandle;

const TASKS: usize = 16;

async fn join<T>(tasks: impl IntoIterator<Item = JoinHandle<T>>) -> Vec<T> {
    join_all(tasks).await.into_iter().map(|task| task.expect("the task ended well")).collect()
}

/// Opens the head, changes one file and puts, until the put succeeds. Returns the checkpoint.
async fn change_until_on_top(subject: &Subject, thread: &str, file: &str, content: &str) -> CheckpointId {
    loop {
        let opened = subject.open(&scope(thread), At::Latest).await.unwrap_or_else(|error| panic!("open: {error:?}"));
        let (snapshot, head) = opened.map_or_else(Default::default, |opened| (opened.state, opened.head));
        let tree = StateBackend::from_snapshot(&snapshot);
        // What was opened may be pruned and swept meanwhile, in which case the head has changed.
        match tree.write(file, content.to_owned()).await {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Corrupt && self::head(subject, thread).await != head => continue,
            Err(error) => panic!("write: {error:?}"),
        }
        match subject.put(&scope(thread), &tree.snapshot(), &PutOptions::new().with_head(head)).await {
            Ok(saved) => return saved.checkpoint.id,
            Err(error) if error.kind() == ErrorKind::Conflict => {}
            Err(error) => panic!("put: {error:?}"),
        }
    }
}

/// Prunes and sweeps repeatedly while a test runs.
fn sweeper(subject: &Subject, prunes: &'static [&'static str], done: &Arc<AtomicBool>) -> JoinHandle<u64> {
    let (subject, done) = (subject.clone(), done.clone());
    tokio::spawn(async move {
        let mut removed = 0;
        while !done.load(Ordering::Relaxed) {
            for thread in prunes {
                match subject.prune(&scope(thread), &PruneOptions::new().with_keep_last(2)).await {
                    Ok(pruned) => removed += pruned.removed,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}"),
                }
            }
            match subject.sweep(&scope("-"), false).await {
                Ok(swept) => removed += swept.bodies,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}"),
            }
            tokio::task::yield_now().await;
        }
        removed
    })
}

pub(super) async fn one_of_many_concurrent_writers_wins_each_head(subject: Subject) {
    let mut head = None;
    for round in 0..5 {
        let tasks = (0..TASKS).map(|task| {
            let subject = subject.clone();
            tokio::spawn(async move {
                let state = state(&[("/winner", &format!("{round} {task}")), (&format!("/of{task}"), "x")]).await;
                subject.put(&scope("t"), &state, &PutOptions::new().with_head(head)).await
            })
        });
        let (mut winners, mut refusals) = (Vec::new(), Vec::new());
        for (task, answer) in join(tasks).await.into_iter().enumerate() {
            match answer {
                Ok(saved) => winners.push((task, saved)),
                Err(error) => refusals.push(error),
            }
        }
        assert_eq!(winners.len(), 1, "round {round}");
        let (task, saved) = winners.remove(0);
        for error in refusals {
            let current = saved.head.map(|head| head.version);
            assert_eq!((error.kind(), error.current_version()), (ErrorKind::Conflict, current), "{error:?}");
        }
        let (winner, own) = (format!("{round} {task}"), format!("/of{task}"));
        assert_holds(&subject, "t", At::Latest, &[("/winner", &winner), (&own, "x")]).await;
        head = saved.head;
    }
    assert_eq!(list_all(&subject, "t", ListOptions::new()).await.len(), 5);
}

pub(super) async fn one_of_many_concurrent_forks_to_one_thread_wins(subject: Subject) {
    for source in ["s0", "s1"] {
        put_files(&subject, source, &[("/a", source)]).await;
    }
    let tasks = (0..TASKS).map(|task| {
        let subject = subject.clone();
        tokio::spawn(async move {
            let source = scope(["s0", "s1"][task % 2]);
            match task % 3 {
                0 => subject.copy(&source, "u").await.map(drop),
                _ => subject.fork(&source, At::Latest, "u", &PutOptions::new()).await.map(drop),
            }
        })
    });
    let answers = join(tasks).await;
    let winner = answers.iter().position(Result::is_ok).expect("one wins");
    for (task, answer) in answers.into_iter().enumerate() {
        assert_eq!(answer.map_err(|error| error.kind()), if task == winner { Ok(()) } else { Err(ErrorKind::AlreadyExists) });
    }
    assert_holds(&subject, "u", At::Latest, &[("/a", ["s0", "s1"][winner % 2])]).await;
}

pub(super) async fn concurrent_restores_and_puts_lose_nothing(subject: Subject) {
    let base = put_files(&subject, "t", &[("/a", "base")]).await;
    let tasks = (0..8).map(|task| {
        let subject = subject.clone();
        tokio::spawn(async move {
            let mut made = Vec::new();
            for round in 0..5 {
                if task % 4 == 0 {
                    let id = loop {
                        // Others may win repeatedly; that is an error, and nothing is lost.
                        match subject.restore(&scope("t"), base.id, &PutOptions::new()).await {
                            Ok(saved) => break saved.checkpoint.id,
                            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}"),
                        }
                    };
                    made.push((id, None));
                } else {
                    let (file, content) = (format!("/of{task}"), format!("{task} {round}"));
                    let id = change_until_on_top(&subject, "t", &file, &content).await;
                    made.push((id, Some((file, content))));
                }
            }
            made
        })
    });
    let made: Vec<_> = join(tasks).await.into_iter().flatten().collect();
    let listed = list_all(&subject, "t", ListOptions::new()).await;
    assert_eq!(listed.len(), made.len() + 1, "every acknowledged checkpoint is there");
    for pair in listed.windows(2) {
        assert_eq!(pair[0].parent.as_ref().map(|parent| parent.id), Some(pair[1].id), "the checkpoints form one chain");
    }
    for (id, written) in made {
        let files = read(&open(&subject, "t", id).await.state).await;
        match written {
            Some((file, content)) => assert_eq!(files[&file].as_deref(), Some(content.as_bytes())),
            None => assert_files(&files, &[("/a", "base")]),
        }
    }
}

pub(super) async fn concurrent_sweeps_and_puts_lose_nothing(subject: Subject) {
    let done = Arc::new(AtomicBool::new(false));
    let sweepers: Vec<_> = (0..2).map(|_| sweeper(&subject, &["t0", "t1", "t2", "t3"], &done)).collect();
    let writers = ["t0", "t1", "t2", "t3"].map(|thread| {
        let subject = subject.clone();
        tokio::spawn(async move {
            let tree = StateBackend::new();
            let (mut files, mut head) = (Files::new(), None);
            for round in 0..40_u64 {
                // Contents disappear and reappear, and other threads share them.
                for (file, seed) in [(round % 7, round % 3), (round % 5 + 10, round % 4), (round % 2 + 20, round)] {
                    let (file, content) = (format!("/d{}/f{file}", file % 3), noise(seed, 200));
                    tree.write(&file, content.clone()).await.expect("written");
                    files.insert(file, Some(content));
                }
                if round % 6 == 5 {
                    tree.delete_all("/d1").await.expect("deleted");
                    files.retain(|file, _| !file.starts_with("/d1/"));
                }
                head = put(&subject, &scope(thread), &tree.snapshot(), head).await.head;
                let mut found = read(&open(&subject, thread, At::Latest).await.state).await;
                found.retain(|_, content| content.is_some());
                assert_eq!(found, files, "{thread}, round {round}");
            }
            files
        })
    });
    let written = join(writers).await;
    done.store(true, Ordering::Relaxed);
    join(sweepers).await;
    sweep(&subject, false).await;
    for (thread, files) in ["t0", "t1", "t2", "t3"].into_iter().zip(written) {
        let mut found = read(&open(&subject, thread, At::Latest).await.state).await;
        found.retain(|_, content| content.is_some());
        assert_eq!(found, files);
    }
}

pub(super) async fn concurrent_sweeps_prunes_forks_and_restores_lose_nothing(subject: Subject) {
    put_files(&subject, "t", &[("/a", "base"), ("/d/b", "base too")]).await;
    let done = Arc::new(AtomicBool::new(false));
    let sweepers: Vec<_> = (0..2).map(|_| sweeper(&subject, &["t"], &done)).collect();
    let tasks = (0..6).map(|task| {
        let subject = subject.clone();
        tokio::spawn(async move {
            let mut forked = Vec::new();
            for round in 0..12 {
                let checkpoints = list_all(&subject, "t", ListOptions::new()).await;
                let chosen = &checkpoints[round % checkpoints.len()];
                match task % 3 {
                    0 => {
                        let thread = format!("fork {task} {round}");
                        match subject.fork(&scope("t"), chosen.id.into(), &thread, &PutOptions::new()).await {
                            Ok(saved) => {
                                assert_eq!((saved.checkpoint.entries, saved.checkpoint.size_bytes), (chosen.entries, chosen.size_bytes));
                                forked.push((thread, chosen.metadata.get("content").cloned()));
                            }
                            Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}"),
                        }
                    }
                    1 => match subject.restore(&scope("t"), chosen.id, &PutOptions::new()).await {
                        Ok(_) => {}
                        Err(error) => assert!(matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Unavailable), "{error:?}"),
                    },
                    _ => {
                        change_until_on_top(&subject, "t", &format!("/of{task}"), &format!("{task} {round}")).await;
                    }
                }
            }
            forked
        })
    });
    let forked: Vec<_> = join(tasks).await.into_iter().flatten().collect();
    done.store(true, Ordering::Relaxed);
    join(sweepers).await;
    sweep(&subject, false).await;
    let mut listed: Vec<String> = threads(&subject, &scope("-"), 100).await.into_iter().map(|info| info.thread).collect();
    listed.retain(|thread| thread != "t");
    let mut names: Vec<String> = forked.iter().map(|(thread, _)| thread.clone()).collect();
    names.sort_unstable();
    assert_eq!(listed, names, "every acknowledged fork is there, and no other");
    for thread in names.iter().map(String::as_str).chain(["t"]) {
        for checkpoint in list_all(&subject, thread, ListOptions::new()).await {
            let files = read(&open(&subject, thread, checkpoint.id).await.state).await;
            assert_eq!(files.len() as u64, checkpoint.entries);
            assert_eq!((files["/a"].as_deref(), files["/d/b"].as_deref()), (Some(&b"base"[..]), Some(&b"base too"[..])));
        }
    }
}

pub(super) async fn concurrent_sweeps_of_many_threads_lose_nothing(subject: Subject) {
    for number in 0..6 {
        for round in 0..5 {
            change(&subject, &format!("t{number}"), &[("/a", &format!("{number} {round}")), ("/same", &round.to_string())]).await;
        }
    }
    for number in 0..3 {
        subject.delete(&scope(&format!("t{number}"))).await.expect("it exists");
    }
    let sweeps = (0..6).map(|_| {
        let subject = subject.clone();
        tokio::spawn(async move { sweep(&subject, false).await })
    });
    let swept = join(sweeps).await;
    assert_eq!(swept.iter().map(|swept| swept.bodies).sum::<u64>(), 15, "each is removed and counted once: {swept:?}");
    assert_eq!(sweep(&subject, false).await.bodies, 0);
    for number in 3..6 {
        assert_holds(&subject, &format!("t{number}"), At::Latest, &[("/a", &format!("{number} 4")), ("/same", "4")]).await;
    }
}

pub(super) async fn dropped_put_leaves_old_or_new_head(subject: Subject) {
    let mut last = put(&subject, &scope("t"), &state(&[("/a", "0")]).await, None).await;
    for round in 1..20 {
        let next = state(&[("/a", &round.to_string())]).await;
        let id = CheckpointId::new(Timestamp::now(), Some(last.checkpoint.id));
        let options = PutOptions::new().with_head(last.head).with_id(id);
        {
            let of_t = scope("t");
            let mut dropped = subject.put(&of_t, &next, &options);
            for _ in 0..round % 5 {
                if futures::poll!(&mut dropped).is_ready() {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
        // The put may still be running. Then either it or the put of the same state becomes the head, but never both.
        match subject.put(&scope("t"), &next, &options).await {
            Ok(saved) => last = saved,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Conflict, "{error:?}");
                last = subject.get(&scope("t"), At::Latest).await.expect("it exists").expect("it exists");
                assert_eq!(last.checkpoint.id, id);
            }
        }
        assert_holds(&subject, "t", At::Latest, &[("/a", &round.to_string())]).await;
    }
    assert_eq!(list_all(&subject, "t", ListOptions::new()).await.len(), 20);
}

/// The latest checkpoint of a thread can always be found, however fast checkpoints come and go. The id of a pruned one is not
/// found.
pub(super) async fn fork_of_latest_succeeds_during_prunes(subject: Subject) {
    put_files(&subject, "t", &[("/a", "base")]).await;
    let done = Arc::new(AtomicBool::new(false));
    let pruner = {
        let (subject, done) = (subject.clone(), done.clone());
        tokio::spawn(async move {
            let mut round = 0;
            while !done.load(Ordering::Relaxed) {
                change_until_on_top(&subject, "t", "/b", &round.to_string()).await;
                subject.prune(&scope("t"), &PruneOptions::new().with_keep_last(1)).await.expect("pruned");
                round += 1;
            }
        })
    };
    for round in 0..40 {
        let forked = subject.fork(&scope("t"), At::Latest, &format!("fork {round}"), &PutOptions::new()).await;
        // In a slow store every attempt may be overtaken, but that must not be reported as a missing checkpoint.
        match forked {
            Ok(forked) => assert!(forked.checkpoint.entries >= 1, "round {round}"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "round {round}: {error:?}"),
        }
        let gone = list_all(&subject, "t", ListOptions::new()).await.pop().expect("a checkpoint exists");
        match subject.fork(&scope("t"), gone.id.into(), &format!("old {round}"), &PutOptions::new()).await {
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}");
                assert!(error.message().contains(&gone.id.to_string()), "{error}");
            }
        }
    }
    done.store(true, Ordering::Relaxed);
    pruner.await.expect("it ends");
}
