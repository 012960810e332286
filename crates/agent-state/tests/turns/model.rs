//! Random schedules of arrivals, cancellations, ends and lost links against a model of one first-in, first-out queue.

use super::support::{LEASE, key, processes, settle};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use treehold_agent_state::call::Turn;
use treehold_core::error::ErrorKind;

const PROCESSES: usize = 3;

#[derive(Debug, Clone)]
enum Step {
    /// A call arrives at a process.
    Arrive(usize),
    /// A waiter gives up; the number counts from the front of the queue.
    Cancel(usize),
    /// The running call ends: by a release, or by a drop.
    End { by_drop: bool },
    /// Time passes, in thirds of a lease.
    Pass(u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..PROCESSES).prop_map(Step::Arrive),
        3 => (0..6_usize).prop_map(Step::Cancel),
        4 => any::<bool>().prop_map(|by_drop| Step::End { by_drop }),
        1 => (1..9_u32).prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 1..60)
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(test);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// With time to settle after each step, the gate is the model.
    #[test]
    fn gate_is_a_queue(steps in steps()) {
        run(async {
            let (_, all) = processes::<PROCESSES>();
            let key = key("s");
            let mut running: Option<Turn> = None;
            let mut queue: VecDeque<tokio::task::JoinHandle<treehold_core::Result<Turn>>> = VecDeque::new();
            for step in steps {
                match step {
                    Step::Arrive(process) => {
                        let (gate, key) = (all[process].gate.clone(), key.clone());
                        queue.push_back(tokio::spawn(async move { gate.acquire(&key).await }));
                    }
                    Step::Cancel(place) => {
                        if place < queue.len() {
                            queue.remove(place).unwrap().abort();
                        }
                    }
                    Step::End { by_drop } => match running.take() {
                        Some(turn) if by_drop => drop(turn),
                        Some(turn) => turn.release().await.unwrap(),
                        None => {}
                    },
                    Step::Pass(thirds) => tokio::time::sleep(LEASE / 3 * thirds).await,
                }
                settle().await;
                if running.is_none() && let Some(first) = queue.pop_front() {
                    let turn = tokio::time::timeout(Duration::from_millis(1), first).await.expect("the first one has its turn");
                    running = Some(turn.unwrap().unwrap());
                }
                settle().await;
                assert!(queue.iter().all(|waiter| !waiter.is_finished()), "a turn came early");
                assert!(running.as_ref().is_none_or(|turn| turn.check().is_ok()));
            }
        });
    }

    /// Without time to settle, calls never overlap and each gets its turn unless it gives up or cannot enter the
    /// queue.
    #[test]
    fn calls_never_overlap_whatever_the_schedule(
        calls in prop::collection::vec((0..PROCESSES, 0..40_u64, 0..30_u64, prop::option::weighted(0.3, 0..60_u64)), 1..40),
        cuts in prop::collection::vec((0..PROCESSES, 0..200_u64, 1..40_u64), 0..4),
    ) {
        run(async {
            let (_, all) = processes::<PROCESSES>();
            let (key, inside, order) = (key("s"), Arc::new(AtomicI64::new(0)), Arc::new(parking_lot::Mutex::new(Vec::new())));
            let mut tasks = Vec::new();
            let mut at = 0;
            for (number, (process, after, lasts, gives_up)) in calls.into_iter().enumerate() {
                at += after / 4;
                let (gate, key, inside, order) = (all[process].gate.clone(), key.clone(), inside.clone(), order.clone());
                tasks.push(tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(at)).await;
                    let acquired = match gives_up {
                        Some(limit) => gate.acquire_within(&key, Duration::from_millis(limit)).await,
                        None => gate.acquire(&key).await,
                    };
                    let turn = match acquired {
                        Ok(turn) => turn,
                        // It gave up, or could not enter the queue.
                        Err(error) => return assert_eq!(error.kind(), ErrorKind::Unavailable),
                    };
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two calls at once");
                    order.lock().push((process, number, turn.token(), turn.arrival()));
                    tokio::time::sleep(Duration::from_millis(lasts)).await;
                    assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                    turn.check().unwrap();
                }));
            }
            for (process, from, lasts) in cuts {
                let link = all[process].link.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(from)).await;
                    link.cut(true);
                    tokio::time::sleep(Duration::from_millis(lasts)).await;
                    link.cut(false);
                });
            }
            for task in tasks {
                tokio::time::timeout(LEASE * 60, task).await.expect("each gets its turn or an error").unwrap();
            }
            let order = order.lock().clone();
            assert!(order.is_sorted_by_key(|(_, _, token, _)| *token));
            assert!(order.is_sorted_by_key(|(_, _, _, arrival)| *arrival), "not in order of arrival: {order:?}");
        });
    }
}
