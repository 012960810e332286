//! Load, run, save.

use super::support::{Process, answer, call_tool, context, processes, said, saved, slot, texts, tool_answers, without_fences};
use crate::turns::support::{LEASE, settle};
use std::time::Duration;
use treehold_agent_state::call::{AgentOptions, CallOutcome, Durability, TurnRefusal};
use treehold_agent_state::{
    AGENT_STATE_KEY, AgentStateStore, ConflictPolicy, Json, LEGACY_MESSAGES_KEY, Message, RuntimeContext, SaveOptions, StateConflict,
    StateSlot, ToolResultState,
};
use treehold_core::error::{Error, ErrorKind};
use treehold_store::{Batch, NamespacesOptions, Store};

async fn talk(process: &Process, text: &str) {
    let outcome = process.agent.call(context(), said(text), async |call| answer(call, &format!("re: {text}"))).await;
    assert_eq!(outcome.unwrap(), CallOutcome::Done(()));
}

/// 003-1, 003-2, 003-33: one object serves all, and any process sees what another saved.
#[tokio::test(start_paused = true)]
async fn any_process_goes_on_with_what_another_one_saved() {
    let (_, all) = processes::<3>(&AgentOptions::new());
    for turn in 0..6 {
        talk(&all[turn % 3], &turn.to_string()).await;
    }
    let expected: Vec<String> = (0..6).flat_map(|turn| [turn.to_string(), format!("re: {turn}")]).collect();
    for process in &all {
        assert_eq!(texts(&saved(process).await), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn one_agent_serves_many_users_and_sessions_at_once_and_keeps_them_apart() {
    let (_, [process]) = processes::<1>(&AgentOptions::new());
    let barrier = std::sync::Arc::new(tokio::sync::Barrier::new(6));
    let slots = [(Some("ada"), "s"), (Some("ada"), "t"), (Some("bob"), "s"), (None, "s"), (Some("anonymous"), "s"), (Some("users"), "s")];
    let slots = slots.map(|(user, session)| StateSlot::new(user, session).unwrap());
    let calls = slots.clone().map(|slot| {
        let (agent, barrier) = (process.agent.clone(), barrier.clone());
        // The future of a call can be sent to another thread.
        tokio::spawn(async move {
            let own = format!("{slot}");
            agent
                .call(RuntimeContext::new(slot), said(&own), async |call| {
                    // All run at the same time.
                    barrier.wait().await;
                    let resolved = call.context().resolve()?.snapshot();
                    assert_eq!(texts(&resolved), [call.context().slot().to_string()]);
                    answer(call, "done")
                })
                .await
                .unwrap();
        })
    });
    for call in calls {
        call.await.unwrap();
    }
    for slot in slots {
        let state = process.agent.state(&slot).await.unwrap().unwrap();
        assert_eq!(texts(&state), [slot.to_string(), "done".to_owned()]);
        assert_eq!((state.user_id(), state.session_id()), (slot.user(), slot.session()));
    }
}

/// 003-4: whatever the process.
#[tokio::test(start_paused = true)]
async fn calls_of_a_session_run_one_after_another_in_order_of_arrival() {
    let (_, all) = processes::<3>(&AgentOptions::new());
    let mut calls = Vec::new();
    for number in 0..9 {
        let agent = all[number % 3].agent.clone();
        calls.push(tokio::spawn(async move {
            let run = async |call: &mut treehold_agent_state::call::Call| {
                tokio::time::sleep(Duration::from_secs(3)).await;
                answer(call, "done")
            };
            agent.call(context(), said(&number.to_string()), run).await.unwrap();
        }));
        settle().await;
    }
    for call in calls {
        call.await.unwrap();
    }
    let expected: Vec<String> = (0..9).flat_map(|number| [number.to_string(), "done".to_owned()]).collect();
    assert_eq!(texts(&saved(&all[0]).await), expected);
}

/// 003-8: the original goes on with a fresh state, and then replaces the good one.
#[tokio::test(start_paused = true)]
async fn state_that_cannot_be_loaded_fails_the_call_and_stays_as_it_is() {
    let (_, [process]) = processes::<1>(&AgentOptions::new());
    let damaged = Json::parse(r#"{"context": "not a list"}"#).unwrap();
    let version = process.agent.states().save(&slot(), AGENT_STATE_KEY, &damaged, SaveOptions::new()).await.unwrap();
    let error = process.agent.call(context(), said("hello"), async |_| -> treehold_core::Result<()> { panic!("it must not run") }).await;
    assert_eq!(error.unwrap_err().error.kind(), ErrorKind::Corrupt);
    let found = process.agent.states().get(&slot(), AGENT_STATE_KEY).await.unwrap().unwrap();
    assert_eq!((found.value, found.version), (damaged, version));
    // The turn is free again.
    settle().await;
    assert!(!process.agent.is_running(&slot()).await.unwrap());
    process.link.cut(true);
    let error = process.agent.call(context(), said("hello"), async |_| Ok(())).await.unwrap_err();
    assert_eq!(error.error.kind(), ErrorKind::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn input_that_a_state_cannot_hold_fails_the_call_and_saves_nothing() {
    let (store, [process]) = processes::<1>(&AgentOptions::new());
    let message = Message::parse(r#"{"content": [{"type": "text", "text": "who?"}]}"#).unwrap();
    let error = process.agent.call(context(), vec![message], async |_| Ok(())).await.unwrap_err();
    assert_eq!(error.error.kind(), ErrorKind::InvalidArgument);
    settle().await;
    assert!(store.namespaces(NamespacesOptions::new()).await.unwrap().namespaces.is_empty());
}

/// 003-30.
#[tokio::test(start_paused = true)]
async fn state_of_an_earlier_version_is_taken_over_at_the_first_save() {
    let (_, [process]) = processes::<1>(&AgentOptions::new());
    let old = said("from long ago").pop().unwrap();
    process.agent.states().save_list(&slot(), LEGACY_MESSAGES_KEY, &[old.json().clone()], SaveOptions::new()).await.unwrap();
    talk(&process, "hello").await;
    assert_eq!(texts(&saved(&process).await), ["from long ago", "hello", "re: hello"]);
    assert!(process.agent.states().get(&slot(), AGENT_STATE_KEY).await.unwrap().is_some());
}

/// 003-3: by default at the end only; with steps at each safe point, and never with an open call of a tool.
#[tokio::test(start_paused = true)]
async fn durability_decides_what_a_call_has_saved_while_it_runs() {
    for (durability, expected) in [(Durability::Exit, [0, 0, 0]), (Durability::Step, [1, 1, 3])] {
        let (_, all) = processes::<2>(&AgentOptions::new().with_durability(durability));
        let count = async || all[1].agent.state(&slot()).await.unwrap().map_or(0, |state| state.context().len());
        let run = async |call: &mut treehold_agent_state::call::Call| {
            let mut found = Vec::new();
            call.safe_point().await?;
            found.push(count().await);
            call_tool(call, "t-1")?;
            call.safe_point().await?;
            found.push(count().await);
            tool_answers(call, "t-1")?;
            call.safe_point().await?;
            found.push(count().await);
            answer(call, "done")?;
            Ok(found)
        };
        let found = all[0].agent.call(context(), said("find it"), run).await.unwrap().done().unwrap();
        assert_eq!(found, expected, "{durability:?}");
        assert_eq!(texts(&saved(&all[1]).await).len(), 4);
    }
}

#[tokio::test(start_paused = true)]
async fn version_moves_once_for_each_call() {
    let (_, [process]) = processes::<1>(&AgentOptions::new());
    for number in 1..4 {
        talk(&process, "hello").await;
        let version = process.agent.states().version(&slot(), AGENT_STATE_KEY).await.unwrap().unwrap();
        assert_eq!(version.number(), number);
    }
}

/// 003-23: a writer that takes no turn.
#[tokio::test(start_paused = true)]
async fn conflict_policy_decides_about_a_writer_that_takes_no_turn() {
    for policy in [ConflictPolicy::Overwrite, ConflictPolicy::Fail, ConflictPolicy::AppendMerge] {
        for durability in [Durability::Exit, Durability::Step] {
            let options = AgentOptions::new().with_conflict_policy(policy).with_durability(durability);
            let (_, [process]) = processes::<1>(&options);
            talk(&process, "hello").await;
            let run = async |call: &mut treehold_agent_state::call::Call| {
                let mut other = process.agent.state(&slot()).await?.unwrap();
                other.push(Message::user("theirs", jiff::Timestamp::UNIX_EPOCH))?;
                process.agent.states().save(&slot(), AGENT_STATE_KEY, &other.to_json()?, SaveOptions::new()).await?;
                answer(call, "mine")?;
                call.safe_point().await?;
                answer(call, "more")
            };
            let outcome = process.agent.call(context(), said("again"), run).await;
            let found = texts(&saved(&process).await).split_off(2);
            match policy {
                ConflictPolicy::Overwrite => assert_eq!(found, ["again", "mine", "more"]),
                ConflictPolicy::Fail => assert_eq!(found, ["theirs"]),
                ConflictPolicy::AppendMerge => assert_eq!(found, ["theirs", "again", "mine", "more"]),
            }
            assert_eq!(outcome.is_err(), policy == ConflictPolicy::Fail);
            if let Err(error) = outcome {
                assert!(StateConflict::of(&error.error).is_some(), "{error:?}");
            }
            assert!(process.agent.conflicts() >= 1);
        }
    }
}

/// The late save of a process that was stalled for longer than its lease.
#[tokio::test(start_paused = true)]
async fn call_that_lost_its_turn_saves_nothing_and_fails_as_lost() {
    for policy in [ConflictPolicy::Overwrite, ConflictPolicy::Fail, ConflictPolicy::AppendMerge] {
        let (_, all) = processes::<2>(&AgentOptions::new().with_conflict_policy(policy));
        let stalled = tokio::spawn({
            let (agent, link) = (all[0].agent.clone(), all[0].link.clone());
            async move {
                let run = async |call: &mut treehold_agent_state::call::Call| {
                    link.cut(true);
                    tokio::time::sleep(LEASE * 2).await;
                    link.cut(false);
                    answer(call, "late")
                };
                agent.call(context(), said("first"), run).await
            }
        });
        settle().await;
        talk(&all[1], "second").await;
        let error = stalled.await.unwrap().unwrap_err();
        assert_eq!(TurnRefusal::of(&error.error), Some(TurnRefusal::Lost), "{error:?}");
        assert_eq!(texts(&saved(&all[0]).await), ["second", "re: second"]);
    }
}

/// The layouts of AgentScope cannot check a fence in the commit of a save, so the turn is checked before it.
#[tokio::test(start_paused = true)]
async fn lost_turn_is_noticed_before_a_save_without_a_fence() {
    let (_, all) = processes::<2>(&AgentOptions::new());
    let run = async |call: &mut treehold_agent_state::call::Call| {
        all[0].link.cut(true);
        tokio::time::sleep(LEASE * 2).await;
        talk(&all[1], "second").await;
        all[0].link.cut(false);
        answer(call, "late")
    };
    let error = without_fences(&all[0]).call(context(), said("first"), run).await.unwrap_err();
    assert_eq!(TurnRefusal::of(&error.error), Some(TurnRefusal::Lost), "{error:?}");
    assert_eq!(texts(&saved(&all[1]).await), ["second", "re: second"]);
}

/// A commit is made and its answer lost: the repeated save must not meet its own state as a conflict.
#[tokio::test(start_paused = true)]
async fn save_whose_answer_was_lost_is_repeated_without_a_conflict() {
    let (_, [process]) = processes::<1>(&AgentOptions::new().with_conflict_policy(ConflictPolicy::Fail));
    talk(&process, "hello").await;
    let run = async |call: &mut treehold_agent_state::call::Call| {
        process.link.deafen(true);
        let link = process.link.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(20)).await;
            link.deafen(false);
        });
        answer(call, "re: again")
    };
    process.agent.call(context(), said("again"), run).await.unwrap();
    assert_eq!(texts(&saved(&process).await), ["hello", "re: hello", "again", "re: again"]);
    assert_eq!(process.agent.conflicts(), 0);
}

/// As above, with a merge: the repeated save must not add the messages of the call once more.
#[tokio::test(start_paused = true)]
async fn merge_whose_answer_was_lost_adds_its_messages_once() {
    let (_, [process]) = processes::<1>(&AgentOptions::new().with_conflict_policy(ConflictPolicy::AppendMerge));
    talk(&process, "hello").await;
    let run = async |call: &mut treehold_agent_state::call::Call| {
        let mut other = process.agent.state(&slot()).await?.unwrap();
        other.push(Message::user("theirs", jiff::Timestamp::UNIX_EPOCH))?;
        process.agent.states().save(&slot(), AGENT_STATE_KEY, &other.to_json()?, SaveOptions::new()).await?;
        process.link.deafen(true);
        let link = process.link.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(20)).await;
            link.deafen(false);
        });
        answer(call, "mine")
    };
    process.agent.call(context(), said("again"), run).await.unwrap();
    assert_eq!(texts(&saved(&process).await), ["hello", "re: hello", "theirs", "again", "mine"]);
}

/// 003-18.
#[tokio::test(start_paused = true)]
async fn edit_outside_of_a_call_takes_a_turn() {
    let (_, all) = processes::<2>(&AgentOptions::new());
    talk(&all[0], "hello").await;
    let call = tokio::spawn({
        let agent = all[0].agent.clone();
        async move {
            let run = async |call: &mut treehold_agent_state::call::Call| {
                tokio::time::sleep(Duration::from_secs(5)).await;
                answer(call, "late")
            };
            agent.call(context(), said("more"), run).await.unwrap();
        }
    });
    settle().await;
    let removed = all[1].agent.edit(&slot(), |state| Ok(state.context_mut().drain(..).count())).await.unwrap();
    assert_eq!(removed, 4);
    call.await.unwrap();
    assert!(saved(&all[0]).await.context().is_empty());
    let refused: treehold_core::Result<()> = all[1].agent.edit(&slot(), |_| Err(Error::invalid_argument("no"))).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
    settle().await;
    assert!(!all[0].agent.is_running(&slot()).await.unwrap());
    assert_eq!(all[1].agent.states().version(&slot(), AGENT_STATE_KEY).await.unwrap().unwrap().number(), 3);
}

/// Open calls of tools of an earlier process, killed between a call and its result.
#[tokio::test(start_paused = true)]
async fn open_calls_of_an_earlier_call_are_answered_unless_they_wait_for_the_user() {
    let asking = r#"{"role":"ASSISTANT","content":[{"type":"tool_use","id":"t-1","name":"rm","input":{},"state":"asking"}]}"#;
    let pending = asking.replace("asking", "pending");
    for (message, input, is_answered) in [
        (pending.as_str(), said("go on"), true),
        (asking, said("go on"), false),
        (&pending, vec![Message::tool_result("t-1", "rm", "done", ToolResultState::Success, jiff::Timestamp::UNIX_EPOCH)], false),
    ] {
        let (_, [process]) = processes::<1>(&AgentOptions::new());
        let state = Json::parse(&format!(r#"{{"context":[{message}]}}"#)).unwrap();
        process.agent.states().save(&slot(), AGENT_STATE_KEY, &state, SaveOptions::new()).await.unwrap();
        let before = process.agent.call(context(), input, async |call| Ok(call.state().lock().context().len())).await.unwrap().done();
        assert_eq!(before, Some(if is_answered { 3 } else { 2 }), "{message}");
    }
}

#[tokio::test(start_paused = true)]
async fn damaged_turn_rows_fail_the_call_and_leave_the_state_alone() {
    let (store, [process]) = processes::<1>(&AgentOptions::new());
    talk(&process, "hello").await;
    let key = treehold_agent_state::call::TurnKey::new("acme", "helper", &slot()).unwrap();
    store.commit(Batch::new().put(key.namespace(), "#holder", "damaged").put(key.namespace(), "#lease", "")).await.unwrap();
    let error = process.agent.call(context(), said("more"), async |_| Ok(())).await.unwrap_err();
    assert_eq!(error.error.kind(), ErrorKind::Corrupt);
    assert_eq!(texts(&saved(&process).await), ["hello", "re: hello"]);
}
