//! Which calls of tools have no result, and what else a model would not accept.

use super::message::{CallName, Message, Role};
use std::collections::HashMap;

/// A call of a tool without a result.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpenCall {
    /// The place of the message with the call in the context, from 0.
    pub message: usize,
    /// The call.
    pub call: CallName,
}

/// What a model would not accept in a context.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Flaw {
    /// A call of a tool has no result.
    OpenCall(OpenCall),
    /// A result answers no call before it.
    OrphanResult {
        /// The place of its message in the context, from 0.
        message: usize,
        /// The call that it names.
        call: CallName,
    },
    /// A message has no author.
    NoRole {
        /// The place of the message in the context, from 0.
        message: usize,
    },
    /// A message holds a block that its role does not allow.
    MisplacedBlock {
        /// The place of the message in the context, from 0.
        message: usize,
        /// The kind of the block.
        kind: String,
    },
}

/// The calls of a context and their results.
#[derive(Debug, Default)]
pub(crate) struct Pairs {
    /// The places of the messages with the call and with the result.
    pub(crate) answered: Vec<(usize, usize)>,
    pub(crate) open: Vec<OpenCall>,
    pub(crate) orphans: Vec<(usize, CallName)>,
}

impl Pairs {
    /// Pairs each result with the newest open call of its id before it: some models number their calls anew in each turn.
    pub(crate) fn of(messages: &[Message]) -> Self {
        let mut pairs = Self::default();
        // The calls, numbered in order.
        let mut waiting: HashMap<Option<&str>, Vec<(usize, usize, &CallName)>> = HashMap::new();
        let mut number = 0;
        for (at, message) in messages.iter().enumerate() {
            for call in message.calls() {
                waiting.entry(call.id.as_deref()).or_default().push((number, at, call));
                number += 1;
            }
            for result in message.answers() {
                match waiting.get_mut(&result.id.as_deref()).and_then(Vec::pop) {
                    Some((_, call, _)) => pairs.answered.push((call, at)),
                    None => pairs.orphans.push((at, result.clone())),
                }
            }
        }
        let mut open: Vec<_> = waiting.into_values().flatten().collect();
        open.sort_unstable_by_key(|(number, ..)| *number);
        pairs.open = open.into_iter().map(|(_, message, call)| OpenCall { message, call: call.clone() }).collect();
        pairs
    }

    /// Returns the open calls that can still be answered: those of the last message of the model.
    pub(crate) fn pending(&self, messages: &[Message]) -> Option<usize> {
        let last = messages.iter().rposition(|message| message.role() == Some(Role::Assistant))?;
        self.open.iter().any(|open| open.message == last).then_some(last)
    }
}

/// Returns what a model would not accept, by the places of the messages.
pub(crate) fn flaws(messages: &[Message]) -> Vec<Flaw> {
    let pairs = Pairs::of(messages);
    let open = pairs.open.into_iter().map(|open| (open.message, Flaw::OpenCall(open)));
    let orphans = pairs.orphans.into_iter().map(|(message, call)| (message, Flaw::OrphanResult { message, call }));
    let mut flaws: Vec<(usize, Flaw)> = open.chain(orphans).collect();
    for (at, message) in messages.iter().enumerate() {
        if message.role().is_none() {
            flaws.push((at, Flaw::NoRole { message: at }));
        }
        flaws.extend(message.misplaced_kinds().iter().map(|kind| (at, Flaw::MisplacedBlock { message: at, kind: kind.clone() })));
    }
    flaws.sort_by_key(|(at, _)| *at);
    flaws.into_iter().map(|(_, flaw)| flaw).collect()
}
