//! The past of files: who changed what, and names of past versions.

use super::{OpKind, Version};
use crate::checkpoint_id::CheckpointId;
use crate::clock::{parse_age, parse_time};
use crate::error::{Error, Result};
use crate::path::VfsPathBuf;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The most bytes of each id that is stored with a revision.
const ID_BYTES_MAX: usize = 256;

/// The source of an error about a moment of which nothing is known, unlike one at which nothing existed. Whoever restores must not remove
/// what is there now because of it.
#[derive(Debug, Clone, Copy)]
pub struct Forgotten;

impl Forgotten {
    /// Returns whether an error has this source.
    pub fn is_source_of(error: &Error) -> bool {
        std::error::Error::source(error).is_some_and(|source| source.is::<Self>())
    }
}

impl fmt::Display for Forgotten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("what there was is not known")
    }
}

impl std::error::Error for Forgotten {}

/// Who makes a change, and by which call. As an [extension](super::Extensions) of a batch, tiers with a history store it with each
/// revision.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Author {
    /// The tenant of the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The user for whom the change was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The thread that made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// The agent or other actor that made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor: Option<String>,
    /// The tool whose call made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// The id that the model's API gave to the tool call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// The id of the call, the same for all changes that it makes. An undo reverts the changes of one call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<String>,
    /// The id of the call that this one undoes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undoes: Option<String>,
}

impl Author {
    /// Creates an author of whom nothing is known.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the author with every id cut to 256 bytes, as it is stored.
    #[must_use]
    pub fn clipped(mut self) -> Self {
        let Self { tenant, user, thread, actor, tool, tool_call_id, call, undoes } = &mut self;
        let ids = [tenant, user, thread, actor, tool, tool_call_id, call, undoes];
        for id in ids.into_iter().flatten() {
            id.truncate(id.floor_char_boundary(ID_BYTES_MAX));
        }
        self
    }
}

/// One version of a file: what a change made of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Revision {
    /// The number of the revision: 1 for the first that was recorded of the path. `v3` names the third. 0 for a file of a thread's state,
    /// whose versions are named by their checkpoints.
    pub number: u64,
    /// The first checkpoint with this version, for a file of a thread's state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointId>,
    /// When the change was made.
    pub at: Timestamp,
    /// The operation that made it.
    pub operation: OpKind,
    /// The version of the file; `None` if the change removed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<Version>,
    /// The size of the file in bytes; 0 if the change removed it.
    pub size_bytes: u64,
    /// The other path of a move or copy: the source if the change made the file, the target if it removed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other: Option<VfsPathBuf>,
    /// Who made the change.
    #[serde(default)]
    pub author: Author,
    /// Whether the change was recorded when it was made. Otherwise only its result was found by a later change, and its time is that of
    /// the file.
    pub is_recorded: bool,
    /// Whether the content can be read.
    pub is_kept: bool,
}

impl Revision {
    /// Creates a revision whose content can be read, by an unknown author.
    pub fn new(number: u64, at: Timestamp, operation: OpKind, version: Option<Version>, size_bytes: u64) -> Self {
        Self {
            number,
            checkpoint: None,
            at,
            operation,
            version,
            size_bytes,
            other: None,
            author: Author::new(),
            is_recorded: true,
            is_kept: true,
        }
    }

    /// Returns whether the file exists in this revision.
    pub fn exists(&self) -> bool {
        self.version.is_some()
    }
}

/// The name of a past version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Moment {
    /// The revision this many changes before the newest of a file: `~1`. `latest` is `~0`.
    Back(u64),
    /// The revision with this number of a file: `v3`.
    Number(u64),
    /// What there was at a time.
    Time(Timestamp),
}

impl Moment {
    /// Parses `latest`, `~2`, `v3`, or a time as [`parse_time`] does: `2026-11-21T09:00:00Z`, `2026-11-21`, or an age such as `2h`.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) for any other text.
    ///
    /// # Examples
    /// ```
    /// use jiff::Timestamp;
    /// use treehold_core::ops::Moment;
    ///
    /// let now: Timestamp = "2026-11-21T12:00:00Z".parse().unwrap();
    /// assert_eq!(Moment::parse("~1", now)?, Moment::Back(1));
    /// assert_eq!(Moment::parse("v3", now)?, Moment::Number(3));
    /// assert_eq!(Moment::parse("2h", now)?, Moment::Time("2026-11-21T10:00:00Z".parse().unwrap()));
    /// assert!(Moment::parse("soon", now).is_err());
    /// # Ok::<(), treehold_core::Error>(())
    /// ```
    pub fn parse(text: &str, now: Timestamp) -> Result<Self> {
        let unread = |_| {
            let message = format!(
                "`{text}` names no version; write `~1` for the one before the newest, `v3` for the third, or a time such as `2026-11-21` \
                    or `2h`"
            );
            Error::invalid_argument(message)
        };
        if text == "latest" {
            return Ok(Self::Back(0));
        }
        if let Some(back) = text.strip_prefix("latest").unwrap_or(text).strip_prefix('~') {
            return back.parse().map(Self::Back).map_err(|_| unread(()));
        }
        if let Some(number) = text.strip_prefix('v') {
            return number.parse().map(Self::Number).map_err(|_| unread(()));
        }
        parse_time(text, now).map(Self::Time).map_err(|error| match parse_age(text) {
            Err(invalid) if invalid.is_out_of_bounds() => Error::invalid_argument(format!("`{text}` is {invalid}")),
            // The age is before the earliest possible time.
            Ok(_) => error,
            Err(_) => unread(()),
        })
    }

    /// Returns the time, if the moment is one.
    pub fn time(self) -> Option<Timestamp> {
        match self {
            Self::Time(time) => Some(time),
            Self::Back(_) | Self::Number(_) => None,
        }
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Back(0) => f.write_str("latest"),
            Self::Back(back) => write!(f, "~{back}"),
            Self::Number(number) => write!(f, "v{number}"),
            Self::Time(time) => write!(f, "{time}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_round_trip_through_their_text() {
        let now: Timestamp = "2026-11-21T12:00:00Z".parse().expect("a time");
        for moment in [Moment::Back(0), Moment::Back(7), Moment::Number(1), Moment::Time(now)] {
            assert_eq!(Moment::parse(&moment.to_string(), Timestamp::UNIX_EPOCH).expect("its own text"), moment);
        }
        assert_eq!(Moment::parse("latest~2", now).expect("a name"), Moment::Back(2));
        for text in ["", "~", "~x", "v", "vx", "v-1", "before", "latest~"] {
            let told = Moment::parse(text, now).expect_err("no moment");
            assert!(told.message().starts_with(&format!("`{text}` names no version; ")), "{told}");
        }
        for (text, bound) in [("2000000d", "too long: the longest is `1000000d`"), ("-2h", "too short: the shortest is `0s`")] {
            assert_eq!(Moment::parse(text, now).expect_err("out of bounds").message(), format!("`{text}` is {bound}"));
        }
    }

    #[test]
    fn long_ids_are_cut_at_a_character() {
        let mut author = Author::new();
        author.tool_call_id = Some("é".repeat(200));
        author.actor = Some("coder".to_owned());
        let clipped = author.clipped();
        assert_eq!(clipped.tool_call_id.map(|id| id.len()), Some(256));
        assert_eq!(clipped.actor.as_deref(), Some("coder"));
    }
}
