//! A scripted host: turns, a sub-agent for each of them, and compactions, in a process that is killed again and again.

use super::managing::{mailbox, note, open};
use super::{SESSION, Subject, TENANT, kills, on_shared_stores, report};
use serde_json::json;
use std::collections::HashMap;
use treehold::sessions::orchestration::{AgentSpawn, ManagerOptions, WaitKind, WaitRegistration};
use treehold::sessions::{AppendOptions, CompactOptions, Message, Placeholder, Sessions, SummarizeWith, Usage};

on_shared_stores! {
    killed_host_answers_every_turn_once: (super::kill_while_playing, super::play),
}

const AGENT: &str = "researcher";

/// The estimate at which the host compacts: every few turns.
const TRIGGER: u64 = 150;

fn question(turn: u64) -> Message {
    Message::user(&format!("question {turn}"), turn as i64)
}

fn answer(turn: u64) -> Message {
    Message::assistant(&format!("answer {turn}"), turn as i64)
}

/// Runs turns, starting with the first one without an answer. Each question goes to a sub-agent before it is answered.
async fn play(sessions: Sessions, _: u64) {
    let manager = open(&sessions, ManagerOptions::new().with_holder("host")).await.unwrap();
    let run = manager.start_run(None, None).await.unwrap();
    let spawn = AgentSpawn { id: AGENT.to_owned(), run_id: None, task_id: None, display_name: None, role: "scout".to_owned() };
    manager.spawn_agent(&run.id, spawn).await.unwrap();
    let summarize = SummarizeWith(|messages: Vec<Message>| async move {
        report("compacting");
        Ok(format!("summary of {}", messages.len()))
    });
    let options = CompactOptions::new().with_trigger_tokens(TRIGGER);
    let full = sessions.load_full(TENANT, SESSION).await.unwrap();
    let answered = full.iter().filter(|message| message.text().starts_with("answer")).count() as u64;
    for turn in answered.. {
        sessions.compact_if_needed(TENANT, SESSION, &summarize, &options).await.unwrap();
        let once = AppendOptions::new().with_idempotency_key(format!("question {turn}"));
        sessions.append(TENANT, SESSION, &[question(turn)], &once).await.unwrap();
        if !mailbox(&sessions, AGENT).await.contains(&turn) {
            manager.send_input(AGENT, json!({"n": turn})).await.unwrap();
        }
        let wait = WaitRegistration {
            id: format!("turn {turn}"),
            agent_id: AGENT.to_owned(),
            agent_ids: None,
            kind: WaitKind::AgentIdle,
            description: String::new(),
            matching: None,
            timeout_at: None,
        };
        assert_eq!(manager.wait(wait).await.unwrap()["status"], "resolved");
        let once = AppendOptions::new().with_idempotency_key(format!("answer {turn}")).with_usage(Usage::of_tokens(turn, 1).unwrap());
        sessions.append(TENANT, SESSION, &[answer(turn)], &once).await.unwrap();
        report(format!("answered {turn}"));
    }
}

/// What the host has reported so far.
#[derive(Default)]
struct Seen {
    answered: u64,
    compactions: u64,
    delivered: HashMap<String, Vec<u64>>,
}

impl Seen {
    fn note(&mut self, line: &str) {
        match line.split_once(' ') {
            None => self.compactions += 1,
            Some(("answered", turn)) => self.answered = turn.parse::<u64>().unwrap() + 1,
            Some(_) => note(&mut self.delivered, line),
        }
    }
}

async fn kill_while_playing(subject: Subject) {
    let mut seen = Seen::default();
    for round in 0..kills() {
        let mut process = subject.start(round);
        for _ in 0..1 + round * 7 % 11 {
            seen.note(&process.next().unwrap());
        }
        process.kill().iter().for_each(|line| seen.note(line));
        let sessions = subject.sessions().await;
        let full = sessions.load_full(TENANT, SESSION).await.unwrap();
        let turns: Vec<Message> = (0..).flat_map(|turn| [question(turn), answer(turn)]).take(full.len()).collect();
        assert!(full == turns, "round {round}: {:?}", full.iter().map(Message::text).collect::<Vec<_>>());
        let answered = full.len() as u64 / 2;
        assert!(answered == seen.answered || answered == seen.answered + 1, "{answered} answers after {}", seen.answered);
        super::check_turns(&sessions, answered).await;
        // The sub-agent got each question before it was answered, and at most the next one.
        let sent = mailbox(&sessions, AGENT).await;
        assert!(sent.iter().copied().eq(0..sent.len() as u64), "{sent:?}");
        let delivered = seen.delivered.get(AGENT).and_then(|turns| turns.last()).map_or(0, |last| last + 1);
        assert!(answered <= delivered && delivered <= sent.len() as u64 && sent.len() as u64 <= answered + 1, "{delivered} of {sent:?}");
        let window = sessions.load_all(TENANT, SESSION).await.unwrap();
        let tail = if window.first().is_some_and(Placeholder::is) { &window[1..] } else { &window[..] };
        assert_eq!(*tail, full[full.len() - tail.len()..]);
    }
    assert!(seen.compactions > 0, "no turn was compacted");
}
