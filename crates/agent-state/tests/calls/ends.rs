//! How calls end that do not succeed.

use super::support::{answer, call_tool, context, processes, said, saved, slot, texts};
use crate::turns::support::{LEASE, settle};
use futures::FutureExt;
use std::panic::AssertUnwindSafe;
use std::time::Duration;
use treehold_agent_state::call::{AgentOptions, Call, CallOutcome};
use treehold_core::error::{Error, ErrorKind};

/// 003-39.
#[tokio::test(start_paused = true)]
async fn failed_call_saves_what_it_has_and_keeps_its_error() {
    let (_, [process]) = processes::<1>(&AgentOptions::new());
    let run = async |call: &mut Call| -> treehold_core::Result<()> {
        answer(call, "let me see")?;
        call_tool(call, "t-1")?;
        Err(Error::new(ErrorKind::Deadline, "the model did not answer"))
    };
    let error = process.agent.call(context(), said("hello"), run).await.unwrap_err();
    assert_eq!((error.error.kind(), error.save_error.is_none()), (ErrorKind::Deadline, true));
    let state = saved(&process).await;
    assert_eq!(texts(&state), ["hello", "let me see", "tool_use", "tool_result"]);
    assert!(state.open_calls().is_empty() && !state.is_shutdown_interrupted());
}

#[tokio::test(start_paused = true)]
async fn error_of_a_call_is_kept_when_its_save_fails_too_and_both_are_reported() {
    let (_, [process]) = processes::<1>(&AgentOptions::new());
    let run = async |call: &mut Call| -> treehold_core::Result<()> {
        answer(call, "let me see")?;
        process.link.cut(true);
        Err(Error::new(ErrorKind::Deadline, "the model did not answer"))
    };
    let error = process.agent.call(context(), said("hello"), run).await.unwrap_err();
    let shown = error.to_string();
    assert!(shown.contains("the model did not answer") && shown.contains("the store cannot be reached"), "{shown}");
    assert_eq!(error.save_error.as_ref().map(Error::kind), Some(ErrorKind::Unavailable));
    assert_eq!(error.into_error().kind(), ErrorKind::Deadline);
}

#[tokio::test(start_paused = true)]
async fn call_that_panics_saves_what_it_has_and_frees_the_session() {
    let (_, all) = processes::<2>(&AgentOptions::new());
    let run = async |call: &mut Call| -> treehold_core::Result<()> {
        call_tool(call, "t-1")?;
        panic!("a bug of the loop");
    };
    let caught = AssertUnwindSafe(all[0].agent.call(context(), said("hello"), run)).catch_unwind().await;
    assert_eq!(caught.unwrap_err().downcast_ref::<&str>(), Some(&"a bug of the loop"));
    let outcome = tokio::time::timeout(Duration::from_secs(1), all[1].agent.call(context(), said("again"), async |_| Ok(()))).await;
    assert_eq!(outcome.unwrap().unwrap(), CallOutcome::Done(()));
    assert_eq!(texts(&saved(&all[0]).await), ["hello", "tool_use", "tool_result", "again"]);
}

/// At each moment of a call: while it waits, loads, runs, and saves.
#[tokio::test(start_paused = true)]
async fn call_that_is_dropped_at_any_moment_frees_the_session_and_stores_no_open_call() {
    let mut texts_seen = std::collections::BTreeSet::new();
    for polls in 0..60 {
        let (_, all) = processes::<2>(&AgentOptions::new());
        let run = async |call: &mut Call| {
            call_tool(call, "t-1")?;
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            super::support::tool_answers(call, "t-1")
        };
        let mut call = Box::pin(all[0].agent.call(context(), said("hello"), run));
        for _ in 0..polls {
            if futures::poll!(&mut call).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(call);
        let next = all[1].agent.call(context(), said("next"), async |_| Ok(()));
        tokio::time::timeout(LEASE / 2, next).await.expect("the session is free").unwrap();
        settle().await;
        let state = saved(&all[1]).await;
        assert!(state.open_calls().is_empty(), "{polls}");
        texts_seen.insert(texts(&state));
        assert_eq!(all[0].agent.shutdown().calls(), 0);
    }
    let seen: Vec<usize> = texts_seen.iter().map(Vec::len).collect();
    assert!(seen.contains(&1) && seen.contains(&4), "{texts_seen:?}");
}

#[tokio::test(start_paused = true)]
async fn call_waits_for_its_turn_as_long_as_the_options_say() {
    let (_, [process]) = processes::<1>(&AgentOptions::new().with_wait_max(Some(Duration::from_secs(5))));
    let long = tokio::spawn({
        let agent = process.agent.clone();
        async move {
            agent
                .call(context(), said("first"), async |_| {
                    tokio::time::sleep(Duration::from_secs(60)).await;
                    Ok(())
                })
                .await
                .unwrap();
        }
    });
    settle().await;
    let error = process.agent.call(context(), said("second"), async |_| Ok(())).await.unwrap_err();
    assert_eq!(treehold_agent_state::call::TurnRefusal::of(&error.error), Some(treehold_agent_state::call::TurnRefusal::Busy));
    long.await.unwrap();
    assert_eq!(texts(&saved(&process).await), ["first"]);
    assert!(!process.agent.is_running(&slot()).await.unwrap());
}
