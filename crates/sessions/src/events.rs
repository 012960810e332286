//! The events of a session: the lines of its file in the host's own directory layout.

use crate::numbers::{check_number, check_time};
use crate::usage::UsageTotals;
use serde::{Deserialize, Deserializer, Serialize};
use std::borrow::Cow;
use treehold_core::error::Result;
use treehold_core::json::Json;

/// The first event: the owner of the session.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "type", rename = "init")]
pub(crate) struct InitEvent {
    pub(crate) session_id: String,
    pub(crate) tenant_id: String,
    pub(crate) user_id: String,
    pub(crate) agent_id: String,
    #[serde(default)]
    pub(crate) title: Option<String>,
    pub(crate) created_at: i64,
}

/// A turn. The usage is kept as the host gave it, beside the four counts that hosts read.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "type", rename = "turn")]
pub(crate) struct TurnEvent {
    pub(crate) turn_index: u64,
    #[serde(default)]
    pub(crate) input_tokens: u64,
    #[serde(default)]
    pub(crate) output_tokens: u64,
    #[serde(default)]
    pub(crate) cache_read_tokens: u64,
    #[serde(default)]
    pub(crate) cache_write_tokens: u64,
    pub(crate) updated_at: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<Json>,
}

/// A change of the title.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "type", rename = "update")]
pub(crate) struct UpdateEvent {
    #[serde(default)]
    pub(crate) title: Option<String>,
    pub(crate) updated_at: i64,
}

/// A line of a session's file, by its kind.
#[derive(Debug)]
pub(crate) enum SessionEvent {
    Turn(TurnEvent),
    /// A change of the title, or only of the time.
    Update {
        title: Option<Option<String>>,
        updated_at: i64,
    },
    /// The event `init`, or a kind that this version does not know. It may have any shape.
    Other,
}

#[derive(Deserialize)]
struct Kind<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct UpdateFields {
    #[serde(default, deserialize_with = "present")]
    title: Option<Option<String>>,
    updated_at: i64,
}

/// Reads a field that is present, perhaps as `null`.
fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

fn kind_of(json: &Json) -> Option<Cow<'_, str>> {
    json.view::<Kind<'_>>().ok().map(|event| event.kind)
}

impl SessionEvent {
    /// Reads an event. The kind decides which other fields are read.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::ErrorKind::InvalidArgument) for a turn or update with fields of another shape, an
    /// index or a time out of range.
    pub(crate) fn of(json: &Json) -> Result<Self> {
        match kind_of(json).as_deref() {
            Some("turn") => {
                let turn: TurnEvent = json.view()?;
                check_number("turnIndex", turn.turn_index)?;
                check_time("updatedAt", turn.updated_at)?;
                Ok(Self::Turn(turn))
            }
            Some("update") => {
                let UpdateFields { title, updated_at } = json.view()?;
                check_time("updatedAt", updated_at)?;
                Ok(Self::Update { title, updated_at })
            }
            _ => Ok(Self::Other),
        }
    }
}

impl InitEvent {
    /// Reads the event; `None` for one of another kind or shape.
    pub(crate) fn of(json: &Json) -> Option<Self> {
        json.view().ok().filter(|_| kind_of(json).as_deref() == Some("init"))
    }
}

impl TurnEvent {
    /// Returns whether an event is a turn.
    pub(crate) fn is(json: &Json) -> bool {
        matches!(SessionEvent::of(json), Ok(SessionEvent::Turn(_)))
    }

    pub(crate) fn totals(&self) -> UsageTotals {
        let Self { input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, .. } = *self;
        UsageTotals { input_tokens, output_tokens, cache_read_tokens, cache_write_tokens }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<SessionEvent> {
        SessionEvent::of(&Json::parse(text).expect("valid"))
    }

    /// The type decides. An event of another type with the same fields is another event.
    #[test]
    fn events_of_unknown_types_may_have_any_fields() {
        for text in [
            r#"{"type":"later","turnIndex":1,"updatedAt":2}"#,
            r#"{"type":"later","turnIndex":{},"title":7,"x":"\ud800","y":1e999}"#,
            r#"{"type":7,"turnIndex":1,"updatedAt":2}"#,
            r#"{"turnIndex":1,"updatedAt":2}"#,
            "[1]",
            "null",
        ] {
            assert!(matches!(read(text), Ok(SessionEvent::Other)), "{text}");
            assert!(InitEvent::of(&Json::parse(text).expect("valid")).is_none());
        }
        let init = r#"{"type":"later","sessionId":"s","tenantId":"t","userId":"u","agentId":"a","createdAt":1}"#;
        assert!(InitEvent::of(&Json::parse(init).expect("valid")).is_none());
    }

    #[test]
    fn turns_and_updates_are_read_beside_unknown_fields() {
        let turn = r#"{"type":"turn","turnIndex":3,"inputTokens":7,"updatedAt":2,"cost":"much","x":"\ud800","usage":{"y":1e999}}"#;
        assert!(matches!(read(turn), Ok(SessionEvent::Turn(turn)) if turn.totals().input_tokens == 7));
        for (text, expected) in [
            (r#"{"type":"update","title":null,"updatedAt":2,"x":"\ud800"}"#, Some(None)),
            (r#"{"type":"update","title":"Tea","updatedAt":2}"#, Some(Some("Tea".to_owned()))),
            (r#"{"type":"update","updatedAt":2}"#, None),
        ] {
            assert!(matches!(read(text), Ok(SessionEvent::Update { title, .. }) if title == expected), "{text}");
        }
    }

    #[test]
    fn turns_and_updates_out_of_range_are_refused() {
        for text in [
            r#"{"type":"turn","turnIndex":18446744073709551615,"updatedAt":2}"#,
            r#"{"type":"turn","turnIndex":1000000001,"updatedAt":2}"#,
            r#"{"type":"turn","turnIndex":-1,"updatedAt":2}"#,
            r#"{"type":"turn","turnIndex":1,"updatedAt":9223372036854775807}"#,
            r#"{"type":"turn","turnIndex":1,"inputTokens":1e999,"updatedAt":2}"#,
            r#"{"type":"update","updatedAt":-9223372036854775808}"#,
            r#"{"type":"update","title":7,"updatedAt":2}"#,
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
