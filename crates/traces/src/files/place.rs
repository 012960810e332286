//! The names of the files.

use crate::id::TraceAddress;
use crate::model::Message;
use treehold_core::escape::{escape, unescape};
use treehold_core::path::{SEGMENT_BYTES_MAX, VfsPath, VfsPathBuf};

const EVENTS: &str = "events.jsonl";
const GOAL: &str = "goal.json";
const MESSAGES: &str = "messages";
const META: &str = "meta.json";
const PATH: &str = "path.md";

/// The names in the directory of a trace, in order.
pub(super) const NAMES: [&str; 5] = [EVENTS, GOAL, MESSAGES, META, PATH];

/// How many digits the sequence in a name has.
const DIGITS: usize = 8;

/// The greatest sequence that is shown. The names of greater ones would not be in order.
const SEQUENCE_MAX: u64 = 99_999_999;

/// The longest role in a name, in bytes.
const ROLE_BYTES_MAX: usize = 64;

/// A file of a trace, other than its events and messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum File {
    Goal,
    Meta,
    Path,
}

/// What a path names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    Root,
    Trace(TraceAddress),
    Events(TraceAddress),
    Messages(TraceAddress),
    /// A message, by its sequence and the whole name.
    Message(TraceAddress, u64, String),
    File(TraceAddress, File),
    /// A path beneath what can only be a file.
    Beneath(VfsPathBuf, TraceAddress),
}

impl Place {
    /// Returns what a path names; `None` if nothing has this path.
    pub(super) fn of(path: &VfsPath) -> Option<Self> {
        let mut segments = path.segments();
        let Some(first) = segments.next() else { return Some(Self::Root) };
        let trace = trace_of(first)?;
        let Some(name) = segments.next() else { return Some(Self::Trace(trace)) };
        let message = segments.next();
        let place = match (name, message) {
            (MESSAGES, None) => Self::Messages(trace),
            (MESSAGES, Some(message)) => Self::Message(trace, sequence_of(message)?, message.to_owned()),
            (EVENTS, _) => Self::Events(trace),
            (GOAL, _) => Self::File(trace, File::Goal),
            (META, _) => Self::File(trace, File::Meta),
            (PATH, _) => Self::File(trace, File::Path),
            _ => return None,
        };
        let depth = if name == MESSAGES { 3 } else { 2 };
        if path.depth() <= depth {
            return Some(place);
        }
        let above = path.ancestors().find(|above| above.depth() == depth)?;
        Some(Self::Beneath(above.to_owned(), place.trace()?.clone()))
    }

    /// Returns the trace; `None` for the root.
    pub(super) fn trace(&self) -> Option<&TraceAddress> {
        match self {
            Self::Root => None,
            Self::Trace(trace)
            | Self::Events(trace)
            | Self::Messages(trace)
            | Self::Message(trace, ..)
            | Self::File(trace, _)
            | Self::Beneath(_, trace) => Some(trace),
        }
    }
}

/// Returns the name of a trace's directory; `None` if the id is too long for a name.
pub(super) fn trace_name(address: &TraceAddress) -> Option<String> {
    let name = escape(&address.to_string(), |character| character == '/');
    (name.len() <= SEGMENT_BYTES_MAX).then_some(name)
}

/// Returns the trace of a directory: the one with this name, and no other.
fn trace_of(name: &str) -> Option<TraceAddress> {
    let address = TraceAddress::parse(&unescape(name)?).ok()?;
    (trace_name(&address).as_deref() == Some(name)).then_some(address)
}

/// Returns the name of a message's file.
pub(super) fn message_name(message: &Message) -> String {
    let plain = |character: char| if character.is_ascii_alphanumeric() || character == '-' { character } else { '_' };
    let role: String = message.role.chars().take(ROLE_BYTES_MAX).map(plain).collect();
    format!("{:0DIGITS$}-{role}.json", message.sequence)
}

/// Returns whether a message with this sequence has a file.
pub(super) fn is_shown(sequence: u64) -> bool {
    (1..=SEQUENCE_MAX).contains(&sequence)
}

/// Returns the sequence in the name of a message's file.
pub(super) fn sequence_of(name: &str) -> Option<u64> {
    let digits = name.get(..DIGITS).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
    name[DIGITS..].starts_with('-').then(|| digits.parse().ok()).flatten().filter(|sequence| is_shown(*sequence))
}

/// Returns a sequence up to which no message has a name after the given text.
pub(super) fn sequence_before(name: &str) -> u64 {
    sequence_of(name).map_or(0, |sequence| sequence - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> VfsPathBuf {
        VfsPathBuf::parse(text).expect("a path")
    }

    #[test]
    fn paths_name_files_of_traces_under_one_name_only() {
        let trace = |id: &str| TraceAddress::parse(id).expect("an id");
        for (text, place) in [
            ("/", Some(Place::Root)),
            ("/t", Some(Place::Trace(trace("t")))),
            ("/@laptop%2Ft", Some(Place::Trace(trace("@laptop/t")))),
            ("/agent:%2F%2Fhost:80%2Ft", Some(Place::Trace(trace("agent://host:80/t")))),
            ("/a%25b/meta.json", Some(Place::File(trace("a%b"), File::Meta))),
            ("/t/events.jsonl", Some(Place::Events(trace("t")))),
            ("/t/messages/00000012-user.json", Some(Place::Message(trace("t"), 12, "00000012-user.json".into()))),
            ("/t/meta.json/x/y", Some(Place::Beneath(path("/t/meta.json"), trace("t")))),
            ("/t/messages/00000012-user.json/x", Some(Place::Beneath(path("/t/messages/00000012-user.json"), trace("t")))),
            ("/@laptop%2ft", None),
            ("/a%b", None),
            ("/t/other", None),
            ("/t/messages/12-user.json", None),
            ("/t/messages/00000000-user.json", None),
            ("/t/messages/0000000é-user.json", None),
            ("/_treehold", None),
        ] {
            assert_eq!(Place::of(&path(text)), place, "{text}");
        }
    }

    #[test]
    fn names_of_messages_sort_by_sequence_and_contain_no_separator() {
        let message = |sequence: u64, role: &str| -> Message {
            serde_json::from_value(serde_json::json!({"message_id": "m", "trace_id": "t", "role": role, "sequence": sequence}))
                .expect("valid")
        };
        assert_eq!(message_name(&message(7, "user")), "00000007-user.json");
        assert_eq!(message_name(&message(10, "../a é")), "00000010-___a__.json");
        assert_eq!(sequence_of(&message_name(&message(SEQUENCE_MAX, &"x".repeat(500)))), Some(SEQUENCE_MAX));
        assert_eq!((sequence_before("00000012"), sequence_before("00000012-a"), sequence_before("zz")), (0, 11, 0));
    }
}
