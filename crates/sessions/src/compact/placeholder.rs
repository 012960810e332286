//! The message that replaces the compacted messages of a window.

use crate::message::{Message, Role};
use jiff::Timestamp;

/// The text before the summary in the short form that hosts may write.
const SHORT_FORM: &str = "[Conversation summary]:";

const HEADER: &str = "[Conversation compacted at ";
const ARCHIVE_LINE: &str = "Archive ID: ";

/// The message that replaces the compacted messages, in the words that hosts recognise.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Placeholder<'a> {
    /// When it was compacted.
    pub compacted_at: Timestamp,
    /// The number of the archive.
    pub archive: u64,
    /// How many messages the archive has.
    pub messages: u64,
    /// The estimate of their tokens.
    pub tokens: u64,
    /// The summary.
    pub summary: &'a str,
    /// A listing of the sandbox's files.
    pub workspace_snapshot: Option<&'a str>,
}

impl Placeholder<'_> {
    /// Returns the time as hosts write it: UTC with milliseconds.
    pub(crate) fn time(&self) -> String {
        iso(self.compacted_at)
    }

    /// Returns the message.
    pub fn message(&self) -> Message {
        let id = archive_id(self.archive);
        let mut lines = vec![
            format!("{HEADER}{}. Full history preserved in messages.compactions/{id}.jsonl.", self.time()),
            format!("{ARCHIVE_LINE}{id}"),
            format!("{} messages ({} tokens estimated) were compressed.", self.messages, self.tokens),
            String::new(),
            "Summary of compressed conversation:".to_owned(),
            self.summary.to_owned(),
        ];
        if let Some(listing) = self.workspace_snapshot.map(str::trim).filter(|listing| !listing.is_empty()) {
            lines.extend([String::new(), "Sandbox workspace at time of compaction:".to_owned(), listing.to_owned()]);
        }
        lines.push("]".to_owned());
        Message::user(&lines.join("\n"), self.compacted_at.as_millisecond())
    }

    /// Returns whether a message is a placeholder, in the long form or the short one.
    pub fn is(message: &Message) -> bool {
        if message.role() != Role::User {
            return false;
        }
        let text = message.text();
        text.starts_with(SHORT_FORM) || text.starts_with(HEADER)
    }
}

/// Formats a time as hosts do: UTC with milliseconds.
pub(crate) fn iso(time: Timestamp) -> String {
    format!("{time:.3}")
}

/// Formats a number of milliseconds since 1970 as hosts do.
pub(crate) fn iso_of_millisecond(millisecond: i64) -> String {
    Timestamp::from_millisecond(millisecond).map_or_else(|_| millisecond.to_string(), iso)
}

/// Returns the id of an archive: its number with at least four digits.
pub(crate) fn archive_id(number: u64) -> String {
    format!("{number:04}")
}

/// Reads the id of an archive.
pub(crate) fn archive_number(id: &str) -> Option<u64> {
    let number: u64 = (id.len() >= 4 && id.bytes().all(|byte| byte.is_ascii_digit())).then(|| id.parse().ok()).flatten()?;
    (number > 0 && archive_id(number) == id).then_some(number)
}

/// Returns the archive that a placeholder names.
pub(crate) fn archive_of_placeholder(message: &Message) -> Option<u64> {
    if message.role() != Role::User {
        return None;
    }
    let text = message.text();
    let rest = text.strip_prefix(HEADER)?;
    archive_number(rest.lines().nth(1)?.strip_prefix(ARCHIVE_LINE)?)
}

/// Returns the section that a compaction adds to the notes of its session.
pub fn notes_entry(archive_id: &str, messages: u64, compacted_at: &str, summary: &str) -> String {
    format!(
        "\n## Compaction Summary [{compacted_at}]\n\n*({messages} messages compressed, full history in \
         `messages.compactions/{archive_id}.jsonl`)*\n\n{summary}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hosts recognise a placeholder by its exact text.
    #[test]
    fn placeholder_text_is_what_hosts_recognise() {
        let placeholder = Placeholder {
            compacted_at: "2026-11-23T04:05:06.007Z".parse().expect("a time"),
            archive: 1,
            messages: 12,
            tokens: 345,
            summary: "They spoke.",
            workspace_snapshot: Some("\na.txt\n"),
        };
        let message = placeholder.message();
        assert_eq!(
            message.text(),
            "[Conversation compacted at 2026-11-23T04:05:06.007Z. Full history preserved in messages.compactions/0001.jsonl.\n\
             Archive ID: 0001\n12 messages (345 tokens estimated) were compressed.\n\nSummary of compressed conversation:\n\
             They spoke.\n\nSandbox workspace at time of compaction:\na.txt\n]"
        );
        assert_eq!((message.role(), message.timestamp()), (Role::User, Some(1_795_406_706_007.0)));
        assert!(Placeholder::is(&message));
        assert_eq!(archive_of_placeholder(&message), Some(1));
        let short = Message::user("[Conversation summary]: They spoke.", 1);
        assert!(Placeholder::is(&short) && archive_of_placeholder(&short).is_none());
        let without = Placeholder { workspace_snapshot: Some("  "), ..placeholder };
        assert!(without.message().text().ends_with("They spoke.\n]"));
    }

    #[test]
    fn archive_id_with_extra_zeros_or_signs_is_refused() {
        for (id, number) in [("0001", Some(1)), ("9999", Some(9_999)), ("10000", Some(10_000))] {
            assert_eq!(archive_number(id), number, "{id}");
            assert_eq!(number.map(archive_id).as_deref(), Some(id));
        }
        for bad in ["", "1", "001", "00001", "0000", "00 1", "+001", "9f3c2b1a-0000", "99999999999999999999"] {
            assert_eq!(archive_number(bad), None, "{bad}");
        }
        assert_eq!(archive_of_placeholder(&Message::user("[Conversation compacted at x\nArchive ID: ../../1\n", 1)), None);
        assert_eq!(archive_of_placeholder(&Message::assistant("[Conversation compacted at x\nArchive ID: 0001\n]", 1)), None);
    }
}
