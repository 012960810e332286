//! One rule of the gate for each test. Time is tokio's paused clock, which is also that of the store.

use super::support::{LEASE, Process, key, processes, settle};
use std::sync::Arc;
use std::time::Duration;
use treehold_agent_state::call::{Interrupt, InterruptSource, Turn, TurnGate, TurnKey, TurnRefusal};
use treehold_agent_state::{Json, StateSlot};
use treehold_core::error::{ErrorKind, Result};
use treehold_store::{Batch, Condition, MemoryStore, NamespacesOptions, Store};

/// Starts to wait, and returns once the waiter has its place.
async fn waiter(process: &Process, key: &TurnKey) -> tokio::task::JoinHandle<Result<Turn>> {
    let (gate, key) = (process.gate.clone(), key.clone());
    let task = tokio::spawn(async move { gate.acquire(&key).await });
    settle().await;
    task
}

/// Cuts a process off for nearly as long as its waiters put up with, which is longer than their tickets live.
async fn stall(process: &Process) {
    process.link.cut(true);
    tokio::time::sleep(LEASE - Duration::from_secs(1)).await;
    process.link.cut(false);
}

/// Returns whether a save with the fence of a turn would be made.
async fn can_write(store: &MemoryStore, turn: &Turn) -> bool {
    let fence = turn.fence();
    let rows = treehold_store::Namespace::parse("acme/ada/_treehold/agent-state/rows").unwrap();
    let batch = Batch::new().expect(&fence.namespace, fence.key, Condition::Version(fence.version)).put(&rows, "k", "v");
    store.commit(batch).await.is_ok()
}

#[tokio::test(start_paused = true)]
async fn turns_of_a_session_come_in_order_of_arrival_within_and_across_processes() {
    let (_, all) = processes::<3>();
    let key = key("s");
    let mut turn = all[0].gate.acquire(&key).await.unwrap();
    let mut waiters = Vec::new();
    for number in 0..12 {
        waiters.push(waiter(&all[[1, 1, 0, 2, 0, 0, 2, 1, 2, 2, 0, 1][number]], &key).await);
    }
    for (number, next) in waiters.into_iter().enumerate() {
        settle().await;
        assert!(!next.is_finished(), "{number} came before its turn");
        let token = turn.token();
        turn.release().await.unwrap();
        turn = tokio::time::timeout(Duration::from_secs(1), next).await.unwrap().unwrap().unwrap();
        assert!(turn.token() > token);
    }
}

#[tokio::test(start_paused = true)]
async fn turns_of_different_sessions_agents_users_and_tenants_are_independent() {
    let (_, [process]) = processes::<1>();
    let slot = |user: Option<&str>, session: &str| StateSlot::new(user, session).unwrap();
    let keys = [
        TurnKey::new("acme", "helper", &slot(Some("ada"), "s")),
        TurnKey::new("acme", "helper", &slot(Some("ada"), "t")),
        TurnKey::new("acme", "helper", &slot(Some("bob"), "s")),
        TurnKey::new("acme", "helper", &slot(Some("anonymous"), "s")),
        TurnKey::new("acme", "helper", &slot(None, "s")),
        TurnKey::new("acme", "other", &slot(Some("ada"), "s")),
        TurnKey::new("umbrella", "helper", &slot(Some("ada"), "s")),
        // The same ids joined by a separator.
        TurnKey::new("acme", "helper", &slot(Some("ada/agents"), "s")),
        TurnKey::new("acme", "helper", &slot(Some("ada"), "agents/s")),
    ];
    let mut turns = Vec::new();
    for key in keys {
        turns.push(process.gate.try_acquire(&key.unwrap()).await.unwrap().expect("nobody has it"));
    }
}

/// 003-5: the link of a cancelled waiter must not wake the one behind it while the first call runs.
#[tokio::test(start_paused = true)]
async fn cancelled_waiter_leaves_the_queue_and_wakes_nobody_early() {
    for places in [[0, 0, 0], [0, 1, 0], [0, 0, 1], [0, 1, 2]] {
        let (_, all) = processes::<3>();
        let key = key("s");
        let first = all[places[0]].gate.acquire(&key).await.unwrap();
        let cancelled = waiter(&all[places[1]], &key).await;
        let third = waiter(&all[places[2]], &key).await;
        cancelled.abort();
        settle().await;
        tokio::time::sleep(LEASE * 3).await;
        assert!(!third.is_finished(), "{places:?}");
        first.release().await.unwrap();
        // The cancelled one costs the third no time.
        tokio::time::timeout(Duration::from_millis(100), third).await.unwrap().unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn turn_ends_with_a_drop_a_panic_and_a_time_out() {
    let (_, all) = processes::<2>();
    let key = key("s");
    for other in &all {
        drop(all[0].gate.acquire(&key).await.unwrap());
        drop(tokio::time::timeout(Duration::from_secs(1), other.gate.acquire(&key)).await.unwrap().unwrap());

        let gate = all[0].gate.clone();
        let panics = tokio::spawn({
            let key = key.clone();
            async move {
                let _turn = gate.acquire(&key).await.unwrap();
                panic!("the call fails");
            }
        });
        assert!(panics.await.unwrap_err().is_panic());
        drop(tokio::time::timeout(Duration::from_secs(1), other.gate.acquire(&key)).await.unwrap().unwrap());

        let held = tokio::time::timeout(Duration::from_secs(1), async {
            let _turn = all[0].gate.acquire(&key).await.unwrap();
            std::future::pending::<()>().await;
        });
        assert!(held.await.is_err());
        drop(tokio::time::timeout(Duration::from_secs(1), other.gate.acquire(&key)).await.unwrap().unwrap());
        settle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn session_that_is_taken_is_busy_for_a_limit_and_for_a_try() {
    let (_, all) = processes::<2>();
    let key = key("s");
    let turn = all[0].gate.acquire(&key).await.unwrap();
    for process in &all {
        assert!(process.gate.try_acquire(&key).await.unwrap().is_none());
        let error = process.gate.acquire_within(&key, Duration::from_secs(2)).await.unwrap_err();
        assert_eq!((error.kind(), TurnRefusal::of(&error)), (ErrorKind::Unavailable, Some(TurnRefusal::Busy)));
        assert!(error.is_without_effect());
    }
    settle().await;
    turn.release().await.unwrap();
    // Those who gave up are out of the way.
    assert!(all[1].gate.try_acquire(&key).await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn try_never_overtakes_waiters() {
    let (_, all) = processes::<3>();
    let key = key("s");
    let turn = all[0].gate.acquire(&key).await.unwrap();
    let next = waiter(&all[1], &key).await;
    drop(turn);
    for process in &all {
        assert!(process.gate.try_acquire(&key).await.unwrap().is_none());
    }
    next.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn too_many_waiters_of_one_process_are_refused() {
    let (store, _) = processes::<0>();
    let options = treehold_agent_state::call::TurnOptions::new().with_waiters_max(3).with_clock(super::support::clock());
    let gate = TurnGate::with_options(Arc::new(store), options);
    let key = key("s");
    let turn = gate.acquire(&key).await.unwrap();
    let waiting: Vec<_> = (0..3)
        .map(|_| {
            tokio::spawn({
                let (gate, key) = (gate.clone(), key.clone());
                async move { gate.acquire(&key).await }
            })
        })
        .collect();
    settle().await;
    let error = gate.acquire(&key).await.unwrap_err();
    assert_eq!(TurnRefusal::of(&error), Some(TurnRefusal::Busy));
    waiting[0].abort();
    settle().await;
    let fourth = tokio::spawn({
        let (gate, key) = (gate.clone(), key.clone());
        async move { gate.acquire(&key).await }
    });
    settle().await;
    drop(turn);
    for next in waiting.into_iter().skip(1).chain([fourth]) {
        drop(next.await.unwrap().unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn turn_of_a_dead_process_is_taken_over_after_its_lease_and_its_writes_are_refused() {
    let (store, all) = processes::<2>();
    let key = key("s");
    let first = all[0].gate.acquire(&key).await.unwrap();
    let next = waiter(&all[1], &key).await;
    all[0].link.cut(true);
    tokio::time::sleep(LEASE / 2).await;
    assert!(!next.is_finished() && can_write(&store, &first).await);
    tokio::time::sleep(LEASE / 2).await;
    let second = next.await.unwrap().unwrap();
    assert!(second.token() > first.token());
    assert!(!can_write(&store, &first).await && can_write(&store, &second).await);
    // Once it reaches the store again, it learns that it lost the turn.
    all[0].link.cut(false);
    tokio::time::sleep(LEASE).await;
    assert!(first.is_lost());
    let error = first.check().unwrap_err();
    assert_eq!((error.kind(), TurnRefusal::of(&error)), (ErrorKind::Conflict, Some(TurnRefusal::Lost)));
    first.release().await.unwrap();
    assert!(can_write(&store, &second).await, "a late release ends the turn of the next one");
}

#[tokio::test(start_paused = true)]
async fn turn_whose_lease_ended_goes_on_while_nobody_takes_over() {
    let (store, all) = processes::<2>();
    let key = key("s");
    let turn = all[0].gate.acquire(&key).await.unwrap();
    all[0].link.cut(true);
    tokio::time::sleep(LEASE * 5).await;
    assert!(!all[1].gate.is_running(&key).await.unwrap());
    assert!(can_write(&store, &turn).await);
    all[0].link.cut(false);
    tokio::time::sleep(LEASE).await;
    // It has its lease again.
    assert!(!turn.is_lost() && all[1].gate.is_running(&key).await.unwrap());
    assert!(all[1].gate.try_acquire(&key).await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn lease_of_a_living_turn_and_places_of_living_waiters_never_end() {
    let (_, all) = processes::<3>();
    let key = key("s");
    let turn = all[0].gate.acquire(&key).await.unwrap();
    let (second, third) = (waiter(&all[1], &key).await, waiter(&all[2], &key).await);
    for _ in 0..20 {
        tokio::time::sleep(LEASE / 2).await;
        assert!(all[2].gate.is_running(&key).await.unwrap() && !second.is_finished() && !third.is_finished());
    }
    turn.release().await.unwrap();
    let second = second.await.unwrap().unwrap();
    settle().await;
    assert!(!third.is_finished());
    second.release().await.unwrap();
    third.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn ticket_of_a_dead_waiter_delays_the_next_one_by_a_lease_at_most() {
    let (_, all) = processes::<3>();
    let key = key("s");
    let turn = all[0].gate.acquire(&key).await.unwrap();
    let (_dead, third) = (waiter(&all[1], &key).await, waiter(&all[2], &key).await);
    all[1].link.cut(true);
    turn.release().await.unwrap();
    tokio::time::timeout(LEASE + Duration::from_secs(1), third).await.unwrap().unwrap().unwrap();
}

/// A process that was stalled for longer than its tickets live gets its place back if nobody behind it had a turn.
#[tokio::test(start_paused = true)]
async fn waiter_that_was_away_for_longer_than_its_ticket_lives_keeps_its_place() {
    let (_, all) = processes::<3>();
    let key = key("s");
    let turn = all[0].gate.acquire(&key).await.unwrap();
    let (second, third) = (waiter(&all[1], &key).await, waiter(&all[2], &key).await);
    stall(&all[1]).await;
    tokio::time::sleep(LEASE).await;
    turn.release().await.unwrap();
    let second = second.await.unwrap().unwrap();
    settle().await;
    assert!(!third.is_finished());
    drop(second);
    third.await.unwrap().unwrap();
}

/// Whoever went ahead meanwhile, and however many waiters of the process lost their tickets: turns come in the order of their arrival numbers,
/// and the waiters of one process in their own order.
#[tokio::test(start_paused = true)]
async fn waiters_that_were_overtaken_while_away_arrive_anew_in_their_own_order() {
    // Whether the tickets of the later waiters live on while the first one's expires, and whether the one that overtook still runs.
    for (later, still_runs) in [(false, false), (false, true), (true, false), (true, true)] {
        let (_, all) = processes::<4>();
        let key = key("s");
        let first = all[0].gate.acquire(&key).await.unwrap();
        let mut away = vec![waiter(&all[1], &key).await];
        if later {
            // They enter between two renewals, so their tickets expire later.
            tokio::time::sleep(LEASE / 6).await;
        }
        away.push(waiter(&all[1], &key).await);
        away.push(waiter(&all[1], &key).await);
        let (overtaking, last) = (waiter(&all[2], &key).await, waiter(&all[3], &key).await);
        let mut arrivals = vec![first.arrival()];
        all[1].link.cut(true);
        tokio::time::sleep(LEASE - Duration::from_secs(2)).await;
        first.release().await.unwrap();
        // The tickets of the process that is away expire, and then come the others.
        let overtaking = tokio::time::timeout(LEASE, overtaking).await.unwrap().unwrap();
        let overtaking = overtaking.unwrap();
        arrivals.push(overtaking.arrival());
        if still_runs {
            all[1].link.cut(false);
            tokio::time::sleep(LEASE / 2).await;
        }
        overtaking.release().await.unwrap();
        let mut last = Some(last);
        if !still_runs {
            let turn = last.take().unwrap().await.unwrap().unwrap();
            arrivals.push(turn.arrival());
            all[1].link.cut(false);
            tokio::time::sleep(LEASE / 2).await;
            turn.release().await.unwrap();
        }
        if let Some(last) = last {
            let turn = last.await.unwrap().unwrap();
            arrivals.push(turn.arrival());
            turn.release().await.unwrap();
        }
        for waiter in away {
            // Waiters of a process that could not reach its store for a whole lease fail.
            let Ok(turn) = tokio::time::timeout(LEASE * 2, waiter).await.unwrap().unwrap() else { continue };
            arrivals.push(turn.arrival());
            turn.release().await.unwrap();
        }
        assert!(arrivals.is_sorted_by(|a, b| a < b), "{later} {still_runs}: {arrivals:?}");
        assert!(arrivals.len() > 3, "{later} {still_runs}: all waiters that were away failed: {arrivals:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn waiter_fails_once_the_store_was_unreachable_for_a_whole_lease() {
    let (_, all) = processes::<2>();
    let key = key("s");
    let _turn = all[0].gate.acquire(&key).await.unwrap();
    let next = waiter(&all[1], &key).await;
    all[1].link.cut(true);
    let error = tokio::time::timeout(LEASE * 3, next).await.unwrap().unwrap().unwrap_err();
    assert_eq!((error.kind(), TurnRefusal::of(&error)), (ErrorKind::Unavailable, None));
    assert_eq!(all[1].gate.try_acquire(&key).await.unwrap_err().kind(), ErrorKind::Unavailable);
}

/// The answer to each commit of the queue is lost once: to an append, a take and a release.
#[tokio::test(start_paused = true)]
async fn lost_answers_neither_block_the_queue_nor_give_a_turn_twice() {
    for deaf_at in 0..6 {
        let (_, all) = processes::<2>();
        let key = key("s");
        let mut step = 0;
        let mut deafen = |process: &Process| {
            process.link.deafen(step == deaf_at);
            step += 1;
        };
        for _ in 0..2 {
            let first = all[0].gate.acquire(&key).await.unwrap();
            deafen(&all[1]);
            let next = waiter(&all[1], &key).await;
            all[1].link.deafen(false);
            deafen(&all[0]);
            let _ = first.release().await;
            all[0].link.deafen(false);
            deafen(&all[1]);
            settle().await;
            all[1].link.deafen(false);
            // The append may be refused, the rest may not.
            if let Ok(turn) = tokio::time::timeout(LEASE * 2, next).await.unwrap_or_else(|_| panic!("{deaf_at}: blocked")).unwrap() {
                settle().await;
                assert!(all[0].gate.try_acquire(&key).await.unwrap().is_none(), "{deaf_at}: two turns at once");
                turn.release().await.unwrap();
            }
            // Nothing that nobody knows of holds the queue up.
            tokio::time::sleep(Duration::from_secs(10)).await;
            let free = all[0].gate.acquire_within(&key, Duration::from_secs(1)).await;
            free.unwrap_or_else(|error| panic!("{deaf_at}: {error:?}")).release().await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_costs_the_same_for_one_waiter_and_for_a_hundred() {
    let mut costs = Vec::new();
    for waiters in [1, 100] {
        let (_, all) = processes::<2>();
        let key = key("s");
        let _turn = all[0].gate.acquire(&key).await.unwrap();
        let _waiting: Vec<_> = (0..waiters)
            .map(|_| {
                tokio::spawn({
                    let (gate, key) = (all[1].gate.clone(), key.clone());
                    async move { gate.acquire(&key).await }
                })
            })
            .collect();
        settle().await;
        let before = all[1].link.calls();
        tokio::time::sleep(LEASE).await;
        costs.push(all[1].link.calls() - before);
    }
    assert_eq!(costs[0], costs[1]);
    assert!(costs[0] < 40, "{costs:?}");
}

#[tokio::test(start_paused = true)]
async fn turn_that_nobody_waits_for_takes_two_commits() {
    let (_, [process]) = processes::<1>();
    let key = key("s");
    for _ in 0..3 {
        let before = process.link.calls();
        process.gate.acquire(&key).await.unwrap().release().await.unwrap();
        // The line may begin a watch in between.
        assert!((2..=3).contains(&(process.link.calls() - before)), "{}", process.link.calls() - before);
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_remains_in_the_store_or_in_memory_when_all_turns_are_over() {
    let (store, all) = processes::<2>();
    for session in ["a", "b"] {
        let key = key(session);
        let turn = all[0].gate.acquire(&key).await.unwrap();
        let (next, cancelled) = (waiter(&all[1], &key).await, waiter(&all[1], &key).await);
        assert!(all[1].gate.interrupt(&key, Interrupt::user()).await.unwrap());
        cancelled.abort();
        drop(turn);
        drop(next.await.unwrap().unwrap());
        settle().await;
    }
    assert!(store.namespaces(NamespacesOptions::new()).await.unwrap().namespaces.is_empty());
    assert_eq!(all.map(|process| process.gate.lines()), [0, 0]);
}

/// 003-34: neither a later call, nor one that still waits, nor another session.
#[tokio::test(start_paused = true)]
async fn interrupt_hits_the_running_call_of_its_session_only() {
    let (_, all) = processes::<3>();
    let (this, other) = (key("s"), key("t"));
    for from in [0, 2] {
        assert!(!all[from].gate.interrupt(&this, Interrupt::user()).await.unwrap(), "nothing runs");
        let (first, other) = (all[0].gate.acquire(&this).await.unwrap(), all[0].gate.acquire(&other).await.unwrap());
        let next = waiter(&all[1], &this).await;
        let message = Json::parse(r#""stop""#).unwrap();
        assert!(all[from].gate.interrupt(&this, Interrupt::user().with_message(Some(message.clone()))).await.unwrap());
        tokio::time::timeout(Duration::from_secs(2), first.stopped()).await.unwrap();
        let seen = first.interrupt().unwrap();
        assert_eq!((seen.source, seen.message), (InterruptSource::User, Some(message)));
        // The first one wins.
        assert!(all[from].gate.interrupt(&this, Interrupt::system()).await.unwrap());
        settle().await;
        assert_eq!(first.interrupt().unwrap().source, InterruptSource::User);
        assert_eq!(other.interrupt(), None);
        first.release().await.unwrap();
        let next = next.await.unwrap().unwrap();
        settle().await;
        assert_eq!(next.interrupt(), None);
        next.release().await.unwrap();
        assert!(!all[from].gate.interrupt(&this, Interrupt::user()).await.unwrap(), "nothing runs any more");
    }
}

/// Its release has not reached the store yet.
#[tokio::test(start_paused = true)]
async fn interrupt_of_a_turn_that_is_over_in_its_own_process_hits_nothing() {
    let (_, [process]) = processes::<1>();
    let key = key("s");
    let turn = process.gate.acquire(&key).await.unwrap();
    process.link.cut(true);
    drop(turn);
    // The line finds that the store cannot be reached.
    tokio::task::yield_now().await;
    tokio::task::yield_now().await;
    process.link.cut(false);
    assert!(!process.gate.interrupt(&key, Interrupt::user()).await.unwrap());
    assert!(process.gate.is_running(&key).await.unwrap(), "nobody else can begin");
    settle().await;
}

#[tokio::test(start_paused = true)]
async fn interrupt_of_a_call_whose_process_died_hits_nothing() {
    let (_, all) = processes::<2>();
    let key = key("s");
    let dead = all[0].gate.acquire(&key).await.unwrap();
    all[0].link.cut(true);
    tokio::time::sleep(LEASE + Duration::from_secs(1)).await;
    assert!(!all[1].gate.interrupt(&key, Interrupt::user()).await.unwrap());
    // Nor does an interrupt that it got in time hit the one who takes over.
    all[0].link.cut(false);
    tokio::time::sleep(LEASE).await;
    assert!(all[1].gate.interrupt(&key, Interrupt::user()).await.unwrap());
    all[0].link.cut(true);
    let next = all[1].gate.acquire_within(&key, LEASE * 2).await.unwrap();
    settle().await;
    assert_eq!(next.interrupt(), None);
    drop(dead);
}

#[tokio::test(start_paused = true)]
async fn damaged_row_of_a_queue_is_corrupt_for_everyone_who_asks() {
    for row in ["#holder", "#interrupt", "00000000000000000001"] {
        let (store, [process]) = processes::<1>();
        let key = key("s");
        store.commit(Batch::new().put(key.namespace(), row, "damaged").put(key.namespace(), "#lease", "")).await.unwrap();
        assert_eq!(process.gate.acquire(&key).await.unwrap_err().kind(), ErrorKind::Corrupt, "{row}");
    }
}
