//! What happened to each call, and the rules that the whole must keep.

use std::collections::BTreeMap;
use treehold::agent_state::AgentState;

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Done,
    Interrupted,
    /// Its turn was lost: its process was stalled for longer than a lease.
    Lost,
    /// Its process was killed.
    Killed,
}

/// One call.
#[derive(Debug, Clone, Default)]
pub(crate) struct Record {
    pub(crate) session: usize,
    pub(crate) process: usize,
    pub(crate) token: Option<u64>,
    pub(crate) arrival: Option<u64>,
    pub(crate) began: u128,
    pub(crate) ended: Option<u128>,
    pub(crate) end: Option<End>,
    /// Whether its process was stalled while it waited or ran.
    pub(crate) was_stalled: bool,
}

/// All calls, by number. Numbers grow in the order in which they were sent.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) calls: BTreeMap<usize, Record>,
}

impl History {
    /// Notes a line of a process.
    pub(crate) fn note(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let call = |calls: &mut BTreeMap<usize, Record>, number: &str, change: &dyn Fn(&mut Record)| {
            change(calls.get_mut(&number.parse().unwrap()).expect("it was sent"));
        };
        match words[..] {
            ["begin", number, _, token, arrival, at] => call(&mut self.calls, number, &|record| {
                assert!(record.token.is_none(), "call {number} ran twice");
                (record.token, record.arrival) = (Some(token.parse().unwrap()), Some(arrival.parse().unwrap()));
                record.began = at.parse().unwrap();
            }),
            ["end", number, at] => call(&mut self.calls, number, &|record| record.ended = Some(at.parse().unwrap())),
            ["done", number] => call(&mut self.calls, number, &|record| record.end = Some(End::Done)),
            ["interrupted", number] => call(&mut self.calls, number, &|record| record.end = Some(End::Interrupted)),
            ["lost", number] => call(&mut self.calls, number, &|record| record.end = Some(End::Lost)),
            _ => panic!("{line}"),
        }
    }

    /// Notes that a process was stalled.
    pub(crate) fn stall(&mut self, process: usize) {
        for record in self.calls.values_mut().filter(|record| record.process == process && record.end.is_none()) {
            record.was_stalled = true;
        }
    }

    /// Notes that a process was killed.
    pub(crate) fn kill(&mut self, process: usize, at: u128) {
        for record in self.calls.values_mut().filter(|record| record.process == process && record.end.is_none()) {
            record.end = Some(End::Killed);
            record.ended = record.ended.or(Some(at));
        }
    }

    /// Returns how many calls have not ended.
    pub(crate) fn open(&self) -> usize {
        self.calls.values().filter(|record| record.end.is_none()).count()
    }

    pub(crate) fn count(&self, end: End) -> usize {
        self.calls.values().filter(|record| record.end == Some(end)).count()
    }

    /// Checks a session: its calls never overlap, they come in order of arrival, and its state holds exactly the calls that were
    /// acknowledged, in that order, each complete. A call whose process was killed is there complete or not at all.
    pub(crate) fn check(&self, session: usize, state: Option<&AgentState>) {
        let mut calls: Vec<(&usize, &Record)> =
            self.calls.iter().filter(|(_, record)| record.session == session && record.token.is_some()).collect();
        calls.sort_by_key(|(_, record)| record.token);
        for pair in calls.windows(2) {
            let ((first, a), (second, b)) = (pair[0], pair[1]);
            assert!(a.token < b.token && a.arrival < b.arrival, "{first} and {second} are not in order of arrival: {a:?} {b:?}");
            assert!(a.process != b.process || first < second, "{first} and {second} of one process changed places");
            // The loop of one that lost its turn goes on until it notices, and may be killed before; nothing of it is saved.
            let was_lost = a.end == Some(End::Lost) || a.end == Some(End::Killed) && a.was_stalled;
            let is_over = was_lost || a.ended.expect("it ended") <= b.began;
            assert!(is_over, "{first} and {second} overlap: {a:?} {b:?}");
        }
        let mut expected = calls.iter().filter(|(_, record)| record.end != Some(End::Lost)).peekable();
        let context = state.map_or(&[][..], AgentState::context);
        assert!(state.is_none_or(|state| state.open_calls().is_empty()), "session {session} holds a call of a tool without a result");
        let mut at = 0;
        while at < context.len() {
            let number: usize = context[at].text().parse().unwrap_or_else(|_| panic!("session {session} is torn at {at}"));
            let record = loop {
                let (next, record) = expected.next().unwrap_or_else(|| panic!("{number} is stored and should not be, or not there"));
                if **next == number {
                    break record;
                }
                assert_eq!(record.end, Some(End::Killed), "call {next} was acknowledged and is lost: {record:?}");
            };
            let length = context[at + 1..]
                .iter()
                .position(|message| message.text().parse::<usize>().is_ok())
                .map_or(context.len() - at, |next| next + 1);
            let last = context[at + length - 1].text();
            let is_complete = last == format!("re: {number} {}", record.token.unwrap()) && length == 4;
            let is_interrupted = last.starts_with("You interrupted me");
            match record.end {
                Some(End::Done) => assert!(is_complete, "call {number}: {last}"),
                Some(End::Interrupted) => assert!(is_interrupted, "call {number}: {last}"),
                _ => assert!(is_complete || is_interrupted, "call {number} is stored in part: {last}"),
            }
            at += length;
        }
        for (number, record) in expected {
            assert_eq!(record.end, Some(End::Killed), "call {number} was acknowledged and is lost: {record:?}");
        }
    }
}
