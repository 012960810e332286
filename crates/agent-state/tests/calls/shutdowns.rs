//! Shutdown in the middle of calls, and what the next process makes of it.

use super::support::{Process, answer, call_tool, context, processes, said, saved, slot, texts, tool_answers};
use crate::turns::support::settle;
use std::time::Duration;
use treehold_agent_state::call::{
    AgentOptions, Call, CallError, CallOutcome, Durability, Interrupt, PartialReasoning, Shutdown, ShutdownState, TurnRefusal,
};
use treehold_agent_state::{AGENT_STATE_KEY, AgentStateStore, Json, Message, SaveOptions};
use treehold_core::error::{Error, ErrorKind, Result};

type Outcome = Result<CallOutcome<()>, CallError>;

/// Starts a call that reasons for ten seconds, then acts for ten seconds, with a safe point after each.
async fn start(process: &Process, text: &'static str) -> tokio::task::JoinHandle<Outcome> {
    let agent = process.agent.clone();
    let call = tokio::spawn(async move {
        let run = async |call: &mut Call| {
            call.set_partial(Some(Message::assistant("hm", jiff::Timestamp::UNIX_EPOCH)));
            call.unless_stopped(tokio::time::sleep(Duration::from_secs(10))).await?;
            call.set_partial(None);
            call_tool(call, "t-1")?;
            call.safe_point().await?;
            tokio::time::sleep(Duration::from_secs(10)).await;
            tool_answers(call, "t-1")?;
            call.safe_point().await?;
            answer(call, "done")
        };
        agent.call(context(), said(text), run).await
    });
    settle().await;
    call
}

fn assert_stopped(outcome: Outcome) {
    let error = outcome.unwrap_err();
    assert_eq!(error.error.kind(), ErrorKind::Unavailable);
    assert_eq!(TurnRefusal::of(&error.error), Some(TurnRefusal::ShuttingDown), "{error:?}");
    assert!(error.save_error.is_none(), "{error:?}");
}

/// 003-38.
#[tokio::test(start_paused = true)]
async fn shutdown_refuses_new_calls_and_ends_when_the_last_one_has_stopped() {
    let (_, [process]) = processes::<1>(&AgentOptions::new());
    let shutdown = process.agent.shutdown().clone();
    assert_eq!(shutdown.begin(Some(Duration::ZERO)).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(shutdown.state(), ShutdownState::Running);
    let (running, waiting) = (start(&process, "first").await, start(&process, "second").await);
    assert_eq!(shutdown.calls(), 2);
    shutdown.begin(None).unwrap();
    shutdown.begin(Some(Duration::from_secs(1))).unwrap();
    // The one that waits is refused at once, and so is a new one. Neither has an effect, so both may be repeated.
    let new = process.agent.call(context(), said("third"), async |_| Ok(())).await;
    for refused in [waiting.await.unwrap(), new] {
        assert!(refused.as_ref().is_err_and(|refusal| refusal.error.is_without_effect()));
        assert_stopped(refused);
    }
    assert_eq!(
        process.agent.edit(&slot(), |_| Ok(())).await.map_err(|error| TurnRefusal::of(&error)),
        Err(Some(TurnRefusal::ShuttingDown))
    );
    assert_eq!((shutdown.state(), shutdown.calls()), (ShutdownState::ShuttingDown, 1));
    assert!(!shutdown.terminated(Some(Duration::from_secs(5))).await);
    let began = tokio::time::Instant::now();
    assert!(shutdown.terminated(None).await);
    assert_eq!(began.elapsed().as_secs(), 4, "it stopped at its first safe point");
    assert_eq!((shutdown.state(), shutdown.calls()), (ShutdownState::Terminated, 0));
    assert_stopped(running.await.unwrap());
    let state = saved(&process).await;
    assert_eq!(texts(&state), ["first", "tool_use", "tool_result"]);
    assert!(state.is_shutdown_interrupted() && state.open_calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn shutdown_without_calls_has_ended_at_once() {
    let shutdown = Shutdown::new();
    shutdown.begin(None).unwrap();
    assert_eq!(shutdown.state(), ShutdownState::Terminated);
    assert!(shutdown.terminated(Some(Duration::from_secs(1))).await);
}

/// 003-38: the limit, in the middle of the model's answer and of a tool.
#[tokio::test(start_paused = true)]
async fn calls_are_stopped_anywhere_at_the_limit_of_the_shutdown() {
    for (policy, before, expected) in [
        (PartialReasoning::Save, 1, &["first", "hm"][..]),
        (PartialReasoning::Discard, 1, &["first"]),
        (PartialReasoning::Save, 12, &["first", "tool_use", "tool_result"]),
    ] {
        let (_, [process]) = processes::<1>(&AgentOptions::new().with_partial_reasoning(policy));
        let running = start(&process, "first").await;
        tokio::time::sleep(Duration::from_secs(before)).await;
        process.agent.shutdown().begin(Some(Duration::from_secs(3))).unwrap();
        assert!(!process.agent.shutdown().terminated(Some(Duration::from_millis(2_900))).await);
        assert!(process.agent.shutdown().terminated(Some(Duration::from_secs(1))).await);
        assert_stopped(running.await.unwrap());
        let state = saved(&process).await;
        assert_eq!(texts(&state), expected);
        assert!(state.is_shutdown_interrupted() && state.open_calls().is_empty());
    }
}

/// 003-37: in another process, with the input of the first call, with other input, and with none.
#[tokio::test(start_paused = true)]
async fn stopped_call_is_resumed_elsewhere_without_doubling_its_input() {
    let head = ["first", "tool_use", "tool_result"];
    for (input, expected) in [
        (said("first"), &[][..]),
        (said("something else"), &["something else"]),
        (Vec::new(), &[]),
        ([said("first"), said("second")].concat(), &["first", "second"]),
    ] {
        let (_, all) = processes::<2>(&AgentOptions::new());
        let running = start(&all[0], "first").await;
        all[0].agent.shutdown().begin(None).unwrap();
        assert_stopped(running.await.unwrap());
        let run = async |call: &mut Call| {
            assert!(!call.state().lock().is_shutdown_interrupted());
            // 003-37: an interrupt does not survive either.
            call.check()?;
            answer(call, "resumed")
        };
        all[1].agent.call(context(), input.clone(), run).await.unwrap();
        let all_texts: Vec<&str> = head.iter().chain(expected).copied().chain(["resumed"]).collect();
        let state = saved(&all[1]).await;
        assert_eq!(texts(&state), all_texts);
        assert!(!state.is_shutdown_interrupted());
        // Only the first call after the shutdown is a repetition.
        all[1].agent.call(context(), said("first"), async |_| Ok(())).await.unwrap();
        assert_eq!(texts(&saved(&all[1]).await).last().map(String::as_str), Some("first"));
    }
}

#[tokio::test(start_paused = true)]
async fn input_is_compared_with_the_last_call_only() {
    let (_, all) = processes::<2>(&AgentOptions::new());
    all[0].agent.call(context(), said("first"), async |call| answer(call, "answer")).await.unwrap();
    let running = start(&all[0], "second").await;
    all[0].agent.shutdown().begin(None).unwrap();
    assert_stopped(running.await.unwrap());
    all[1].agent.call(context(), said("first"), async |_| Ok(())).await.unwrap();
    assert_eq!(texts(&saved(&all[1]).await), ["first", "answer", "second", "tool_use", "tool_result", "first"]);
}

/// 003-38: the saver of the shutdown never replaces what another writer saved.
#[tokio::test(start_paused = true)]
async fn state_that_another_writer_saved_survives_a_shutdown() {
    let (_, all) = processes::<2>(&AgentOptions::new());
    let running = start(&all[0], "first").await;
    let theirs = Json::parse(r#"{"context":[]}"#).unwrap();
    all[1].agent.states().save(&slot(), AGENT_STATE_KEY, &theirs, SaveOptions::new()).await.unwrap();
    all[0].agent.shutdown().begin(None).unwrap();
    assert_stopped(running.await.unwrap());
    assert_eq!(all[1].agent.states().get(&slot(), AGENT_STATE_KEY).await.unwrap().unwrap().value, theirs);
}

/// 003-36: an interrupt by the runtime, which is no shutdown of this process.
#[tokio::test(start_paused = true)]
async fn interrupt_by_the_runtime_marks_the_state_and_fails_the_call() {
    let (_, all) = processes::<2>(&AgentOptions::new().with_durability(Durability::Step));
    let running = start(&all[0], "first").await;
    assert!(all[1].agent.interrupt(&slot(), Interrupt::system()).await.unwrap());
    assert_stopped(running.await.unwrap());
    assert!(saved(&all[0]).await.is_shutdown_interrupted());
    assert_eq!(all[0].agent.shutdown().state(), ShutdownState::Running);
}

#[tokio::test(start_paused = true)]
async fn loop_that_fails_while_it_shuts_down_keeps_its_error() {
    let (_, [process]) = processes::<1>(&AgentOptions::new());
    let shutdown = process.agent.shutdown().clone();
    let run = async |call: &mut Call| -> Result<()> {
        answer(call, "so far")?;
        shutdown.begin(None)?;
        Err(Error::new(ErrorKind::Deadline, "the model did not answer"))
    };
    let error = process.agent.call(context(), said("first"), run).await.unwrap_err();
    assert_eq!(error.error.kind(), ErrorKind::Deadline);
    assert_eq!(texts(&saved(&process).await), ["first", "so far"]);
}
