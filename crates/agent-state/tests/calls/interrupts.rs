//! Interrupts by the user.

use super::support::{Process, answer, call_tool, context, processes, said, saved, slot, texts, tool_answers};
use crate::turns::support::settle;
use proptest::prelude::*;
use std::time::Duration;
use treehold_agent_state::call::{
    AgentOptions, Call, CallOutcome, Durability, Interrupt, InterruptSource, InterruptedCall, PartialReasoning,
};
use treehold_agent_state::{GenerateReason, Json, Message};
use treehold_core::Result;

/// Reasons, calls a tool, and takes its time with both.
async fn think(call: &mut Call, rounds: usize, pause: Duration) -> Result<()> {
    for round in 0..rounds {
        for chunk in ["a", "b", "c"] {
            call.set_partial(Some(Message::assistant(chunk, jiff::Timestamp::UNIX_EPOCH)));
            call.unless_stopped(tokio::time::sleep(pause)).await?;
        }
        call.set_partial(None);
        let id = format!("t-{round}");
        call_tool(call, &id)?;
        call.safe_point().await?;
        call.unless_stopped(tokio::time::sleep(pause)).await?;
        tool_answers(call, &id)?;
        call.safe_point().await?;
    }
    answer(call, "done")
}

async fn interrupted(by: &Process, of: &Process, after: Duration) -> (bool, CallOutcome<()>) {
    let call = tokio::spawn({
        let agent = of.agent.clone();
        async move { agent.call(context(), said("hello"), async |call| think(call, 2, Duration::from_secs(1)).await).await }
    });
    tokio::time::sleep(after).await;
    let message = Json::parse(r#""wait""#).unwrap();
    let hit = by.agent.interrupt(&slot(), Interrupt::user().with_message(Some(message))).await.unwrap();
    (hit, call.await.unwrap().unwrap())
}

/// 003-34, 003-36.
#[tokio::test(start_paused = true)]
async fn interrupted_call_is_saved_with_results_for_open_calls_and_a_last_word() {
    for from in [0, 1] {
        let (_, all) = processes::<2>(&AgentOptions::new());
        let (hit, outcome) = interrupted(&all[from], &all[0], Duration::from_millis(3_500)).await;
        let CallOutcome::Interrupted(InterruptedCall { interrupt, message, closed_calls, .. }) = outcome else { panic!("not interrupted") };
        assert!(hit);
        assert_eq!((interrupt.source, interrupt.message.unwrap().as_str(), closed_calls), (InterruptSource::User, "\"wait\"", 1));
        assert_eq!((message.generate_reason(), message.name()), (GenerateReason::Interrupted, Some("helper")));
        let state = saved(&all[1]).await;
        assert_eq!(texts(&state), ["hello", "tool_use", "tool_result", "You interrupted me. What should I do next?"]);
        assert!(state.open_calls().is_empty() && !state.is_shutdown_interrupted());
        // 003-37: nothing of it is stored, so the next call is not interrupted.
        assert!(!state.to_json().unwrap().as_str().contains("wait"));
        let next = all[1].agent.call(context(), said("go on"), async |call| call.safe_point().await).await.unwrap();
        assert_eq!(next, CallOutcome::Done(()));
    }
}

/// 003-36.
#[tokio::test(start_paused = true)]
async fn partial_answer_is_kept_or_dropped_by_policy() {
    for (policy, expected) in [(PartialReasoning::Save, &["hello", "b"][..]), (PartialReasoning::Discard, &["hello"])] {
        let (_, [process]) = processes::<1>(&AgentOptions::new().with_partial_reasoning(policy));
        let (_, outcome) = interrupted(&process, &process, Duration::from_millis(1_500)).await;
        assert!(matches!(outcome, CallOutcome::Interrupted(_)));
        let found = texts(&saved(&process).await);
        assert_eq!(&found[..found.len() - 1], expected);
    }
}

/// 003-34: idle, still waiting, another session, another user, and too late.
#[tokio::test(start_paused = true)]
async fn interrupt_without_a_running_call_returns_no_hit_and_has_no_effect() {
    let (_, all) = processes::<2>(&AgentOptions::new());
    for process in &all {
        assert!(!process.agent.interrupt(&slot(), Interrupt::user()).await.unwrap());
    }
    let calls: Vec<_> = [0, 1]
        .into_iter()
        .map(|at| {
            let agent = all[at].agent.clone();
            tokio::spawn(async move { agent.call(context(), said("x"), async |call| think(call, 1, Duration::from_secs(1)).await).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(500)).await;
    for (user, session) in [(Some("ada"), "s-2"), (Some("bob"), "s-1"), (None, "s-1")] {
        let other = treehold_agent_state::StateSlot::new(user, session).unwrap();
        assert!(!all[0].agent.interrupt(&other, Interrupt::user()).await.unwrap());
    }
    assert!(all[1].agent.interrupt(&slot(), Interrupt::user()).await.unwrap());
    let mut outcomes = Vec::new();
    for call in calls {
        outcomes.push(call.await.unwrap().unwrap());
    }
    // The one that ran, and not the one that waited.
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == CallOutcome::Done(())).count(), 1);
    assert!(!all[0].agent.interrupt(&slot(), Interrupt::user()).await.unwrap());
}

/// 003-34: the loop is done and the state is being saved. The task runs as soon as the save waits for the store.
#[tokio::test(start_paused = true)]
async fn interrupt_during_the_last_save_hits_nothing() {
    let (_, [process]) = processes::<1>(&AgentOptions::new());
    let interrupt = || {
        let agent = process.agent.clone();
        tokio::spawn(async move { agent.interrupt(&slot(), Interrupt::user()).await.unwrap() })
    };
    let outcome = process.agent.call(context(), said("hello"), async |_| Ok(interrupt())).await.unwrap();
    assert!(!outcome.done().expect("nothing interrupted it").await.unwrap());
    let outside = process.agent.edit(&slot(), |_| Ok(interrupt())).await.unwrap();
    assert!(!outside.await.unwrap(), "a change outside of a call cannot be interrupted");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    /// Interrupts at 1,000 random moments, of one process and of another, with and without steps: no call of a tool without a result is
    /// ever stored, and whoever was told that the interrupt hit finds the call interrupted, or past its last safe point.
    #[test]
    fn interrupt_at_any_moment_stores_no_open_call(after in 0..12_000_u64, by in 0..2_usize, steps in any::<bool>(), keep in any::<bool>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let durability = if steps { Durability::Step } else { Durability::Exit };
            let partial = if keep { PartialReasoning::Save } else { PartialReasoning::Discard };
            let (_, all) = processes::<2>(&AgentOptions::new().with_durability(durability).with_partial_reasoning(partial));
            let watching = tokio::spawn({
                let agent = all[1].agent.clone();
                async move {
                    loop {
                        if let Some(state) = agent.state(&slot()).await.unwrap() {
                            assert!(state.open_calls().is_empty(), "an open call is stored");
                        }
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                }
            });
            let (hit, outcome) = interrupted(&all[by], &all[0], Duration::from_millis(after)).await;
            let state = saved(&all[1]).await;
            assert!(state.open_calls().is_empty());
            match outcome {
                CallOutcome::Interrupted(_) => assert!(hit, "{after}"),
                // It takes 8 seconds, and the last safe point is at the end.
                CallOutcome::Done(()) => assert!(!hit || (8_000..8_010).contains(&after), "{after}"),
            }
            settle().await;
            assert!(!watching.is_finished());
            watching.abort();
            assert!(!all[0].agent.is_running(&slot()).await.unwrap());
        });
    }
}
