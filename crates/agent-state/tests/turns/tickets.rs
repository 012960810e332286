//! Turns for callers elsewhere.

use super::support::{LEASE, key, processes, settle};
use std::time::Duration;
use treehold_agent_state::call::{Interrupt, LeaseGrant, TurnAnswer, TurnGate, TurnKey, TurnRefusal, TurnRequest};
use treehold_core::error::ErrorKind;
use treehold_store::{NamespacesOptions, Store};

async fn ask(gate: &TurnGate, key: &TurnKey, request: TurnRequest) -> TurnAnswer {
    gate.request(key, request).await.unwrap()
}

fn granted(answer: TurnAnswer) -> LeaseGrant {
    let TurnAnswer::Granted(grant) = answer else { panic!("not granted") };
    grant
}

fn waiting(answer: TurnAnswer) -> String {
    let TurnAnswer::Waiting { ticket } = answer else { panic!("granted") };
    ticket
}

#[tokio::test(start_paused = true)]
async fn remote_callers_and_calls_of_processes_stand_in_one_queue() {
    let (_, all) = processes::<2>();
    let key = key("s");
    let turn = all[0].gate.acquire(&key).await.unwrap();
    let ticket = waiting(ask(&all[1].gate, &key, TurnRequest::new("java")).await);
    let third = tokio::spawn({
        let (gate, key) = (all[1].gate.clone(), key.clone());
        async move { gate.acquire(&key).await }
    });
    settle().await;
    // It keeps its place while it asks again, by way of any process.
    for process in &all {
        tokio::time::sleep(LEASE / 2).await;
        assert_eq!(waiting(ask(&process.gate, &key, TurnRequest::new("java").with_ticket(Some(ticket.clone()))).await), ticket);
    }
    turn.release().await.unwrap();
    settle().await;
    assert!(!third.is_finished());
    let again = || TurnRequest::new("java").with_ticket(Some(ticket.clone()));
    let grant = granted(ask(&all[0].gate, &key, again()).await);
    // The answer may be lost, and the request repeated.
    assert_eq!(granted(ask(&all[1].gate, &key, again()).await).token, grant.token);
    for _ in 0..5 {
        tokio::time::sleep(LEASE / 2).await;
        assert_eq!(all[1].gate.renew(&key, &grant.token).await.unwrap().interrupt, None);
    }
    assert!(all[0].gate.interrupt(&key, Interrupt::user()).await.unwrap());
    assert_eq!(all[0].gate.renew(&key, &grant.token).await.unwrap().interrupt, Some(Interrupt::user()));
    assert!(!third.is_finished());
    all[0].gate.end(&key, &grant.token).await.unwrap();
    let third = third.await.unwrap().unwrap();
    assert!(third.token() > grant.fence);
    // What comes late has no effect.
    all[0].gate.end(&key, &grant.token).await.unwrap();
    let error = all[0].gate.renew(&key, &grant.token).await.unwrap_err();
    assert_eq!((error.kind(), TurnRefusal::of(&error)), (ErrorKind::Conflict, Some(TurnRefusal::Lost)));
    assert!(!third.is_lost() && all[0].gate.is_running(&key).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn remote_caller_waits_as_long_as_it_asked_to() {
    let (_, all) = processes::<2>();
    let key = key("s");
    let turn = all[0].gate.acquire(&key).await.unwrap();
    let began = tokio::time::Instant::now();
    let request = TurnRequest::new("java").with_wait(Duration::from_secs(30));
    waiting(ask(&all[1].gate, &key, request.clone()).await);
    assert_eq!(began.elapsed().as_secs(), 30);
    settle().await;
    let asked = tokio::spawn({
        let (gate, key) = (all[1].gate.clone(), key.clone());
        async move { gate.request(&key, request.with_wait(LEASE * 2)).await }
    });
    settle().await;
    turn.release().await.unwrap();
    // The first ticket is nobody's any more, and ends with its lease.
    let grant = granted(tokio::time::timeout(LEASE * 2, asked).await.unwrap().unwrap().unwrap());
    assert!(grant.fence > 0);
}

/// Regression: adding the wait to the present time panicked.
#[tokio::test(start_paused = true)]
async fn remote_caller_may_wait_for_any_time() {
    let (_, [process]) = processes::<1>();
    let key = key("s");
    let turn = process.gate.acquire(&key).await.unwrap();
    let asked = tokio::spawn({
        let (gate, key) = (process.gate.clone(), key.clone());
        async move { gate.request(&key, TurnRequest::new("java").with_wait(Duration::MAX)).await }
    });
    tokio::time::sleep(LEASE * 3).await;
    assert!(!asked.is_finished());
    turn.release().await.unwrap();
    granted(asked.await.unwrap().unwrap());
}

#[tokio::test(start_paused = true)]
async fn remote_caller_that_goes_away_gives_its_place_and_its_turn_up() {
    let (store, all) = processes::<2>();
    let key = key("s");
    let turn = all[0].gate.acquire(&key).await.unwrap();
    let request = TurnRequest::new("java").with_wait(LEASE * 3);
    let gone = tokio::time::timeout(LEASE, all[1].gate.request(&key, request)).await;
    assert!(gone.is_err());
    settle().await;
    turn.release().await.unwrap();
    settle().await;
    assert!(store.namespaces(NamespacesOptions::new()).await.unwrap().namespaces.is_empty());
}

#[tokio::test(start_paused = true)]
async fn ticket_that_is_ended_gives_its_place_and_its_turn_up() {
    let (store, all) = processes::<2>();
    let key = key("s");
    let turn = all[0].gate.acquire(&key).await.unwrap();
    let first = waiting(ask(&all[1].gate, &key, TurnRequest::new("java")).await);
    let second = waiting(ask(&all[1].gate, &key, TurnRequest::new("java")).await);
    let (place, _) = first.split_once('.').unwrap();
    all[0].gate.end(&key, &format!("{place}.{}", "a".repeat(32))).await.unwrap();
    let again = |ticket: &String| TurnRequest::new("java").with_ticket(Some(ticket.clone()));
    assert_eq!(waiting(ask(&all[1].gate, &key, again(&first)).await), first, "a forged ticket ended another's place");
    all[0].gate.end(&key, &first).await.unwrap();
    assert!(!turn.is_lost() && all[1].gate.is_running(&key).await.unwrap());
    turn.release().await.unwrap();
    // No time passes: the place of the first ticket does not have to end with its lease.
    let grant = granted(ask(&all[1].gate, &key, again(&second)).await);
    assert_eq!(all[1].gate.renew(&key, &grant.token).await.unwrap().interrupt, None);
    // As if the answer with the token was lost.
    all[0].gate.end(&key, &second).await.unwrap();
    all[0].gate.end(&key, &second).await.unwrap();
    let error = all[1].gate.renew(&key, &grant.token).await.unwrap_err();
    assert_eq!(TurnRefusal::of(&error), Some(TurnRefusal::Lost));
    assert!(store.namespaces(NamespacesOptions::new()).await.unwrap().namespaces.is_empty());
}

#[tokio::test(start_paused = true)]
async fn malformed_tickets_and_tokens_are_refused() {
    let (_, [process]) = processes::<1>();
    let key = key("s");
    let long = "x".repeat(256);
    for ticket in ["", "x", "00000000000000000001", "0000000000000000001.x", &format!("00000000000000000001.{long}")] {
        let error = process.gate.request(&key, TurnRequest::new("").with_ticket(Some(ticket.to_owned()))).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{ticket}");
    }
    assert_eq!(process.gate.request(&key, TurnRequest::new(long)).await.unwrap_err().kind(), ErrorKind::InvalidArgument);
    for token in ["", "x", "12", "x.y"] {
        assert_eq!(process.gate.renew(&key, token).await.unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(process.gate.end(&key, token).await.unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    // A ticket that was made up has no place, and neither takes nor renews somebody else's.
    let turn = process.gate.acquire(&key).await.unwrap();
    let theirs = waiting(ask(&process.gate, &key, TurnRequest::new("")).await);
    let (place, _) = theirs.split_once('.').unwrap();
    let forged = format!("{place}.{}", "a".repeat(32));
    assert_ne!(waiting(ask(&process.gate, &key, TurnRequest::new("").with_ticket(Some(forged))).await).split_once('.').unwrap().0, place);
    turn.release().await.unwrap();
    granted(ask(&process.gate, &key, TurnRequest::new("").with_ticket(Some(theirs))).await);
}
