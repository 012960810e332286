//! A batch of changes as JSON data.

use crate::error::{Error, Result};
use crate::ops::{ApplyOptions, Change, Changed, Edit, Version, WriteMode};
use crate::path::VfsPathBuf;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A batch of changes. It is atomic if the tree supports that, and otherwise applied up to the first failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ApplyRequest {
    /// The changes, in order.
    pub changes: Vec<ChangeRecord>,
    /// Accepts a partial result if the batch spans several mounts. Default false.
    #[serde(default)]
    pub allow_partial: bool,
    /// Refuses with `permission_denied` to follow host links in the paths. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub refuse_links: bool,
}

impl ApplyRequest {
    /// Creates a request for changes.
    pub fn new(changes: &[Change], options: &ApplyOptions) -> Self {
        let changes = changes.iter().map(ChangeRecord::from).collect();
        Self { changes, allow_partial: options.allow_partial, refuse_links: options.refuse_links }
    }
}

/// What each change of a batch did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct ApplyReply {
    /// What each change did, in order.
    pub changed: Vec<Changed>,
}

impl ApplyReply {
    /// Creates the reply.
    pub fn new(changed: Vec<Changed>) -> Self {
        Self { changed }
    }
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "operation", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum ChangeRecord {
    /// Creates a file or replaces its content.
    #[schemars(title = "WriteChange")]
    Write {
        /// The file.
        path: VfsPathBuf,
        /// The content, as text.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        content: Option<String>,
        /// The content, as Base64. Give either this or `content`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        content_base64: Option<String>,
        /// Fails if something exists at the path. Default false.
        #[serde(default, skip_serializing_if = "is_false")]
        create_new: bool,
        /// Fails unless the file has this version.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        if_version: Option<Version>,
    },
    /// Adds to the end of a file, creating it if it does not exist.
    #[schemars(title = "AppendChange")]
    Append {
        /// The file.
        path: VfsPathBuf,
        /// What to add, as text.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        content: Option<String>,
        /// What to add, as Base64. Give either this or `content`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        content_base64: Option<String>,
    },
    /// Replaces text in a file: all replacements in order, or none.
    #[schemars(title = "EditChange")]
    Edit {
        /// The file.
        path: VfsPathBuf,
        /// The replacements.
        edits: Vec<Edit>,
        /// Fails unless the file has this version.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        if_version: Option<Version>,
    },
    /// Creates a directory and its parents.
    #[schemars(title = "CreateDirectoryChange")]
    CreateDir {
        /// The directory.
        path: VfsPathBuf,
    },
    /// Removes a file or directory.
    #[schemars(title = "DeleteChange")]
    Delete {
        /// The path.
        path: VfsPathBuf,
        /// Removes a directory with its contents. Default false.
        #[serde(default, skip_serializing_if = "is_false")]
        recursive: bool,
        /// Fails unless the file has this version.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        if_version: Option<Version>,
    },
    /// Moves a file or directory.
    #[schemars(title = "RenameChange")]
    Rename {
        /// The path to move.
        from: VfsPathBuf,
        /// The target path.
        to: VfsPathBuf,
        /// Replaces an existing file. Default false.
        #[serde(default, skip_serializing_if = "is_false")]
        overwrite: bool,
    },
    /// Copies a file or directory.
    #[schemars(title = "CopyChange")]
    Copy {
        /// The path to copy.
        from: VfsPathBuf,
        /// The target path.
        to: VfsPathBuf,
        /// Replaces an existing file. Default false.
        #[serde(default, skip_serializing_if = "is_false")]
        overwrite: bool,
    },
}

impl ChangeRecord {
    /// Converts the record to a change.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) if the content is missing, given twice or not Base64, or if there
    /// are two conditions.
    pub fn into_change(self) -> Result<Change> {
        Ok(match self {
            Self::Write { path, content, content_base64, create_new, if_version } => {
                let mode = match (create_new, if_version) {
                    (true, Some(_)) => {
                        return Err(Error::invalid_argument("`create_new` and `if_version` exclude each other; leave one out").at(&path));
                    }
                    (true, None) => WriteMode::CreateNew,
                    (false, Some(version)) => WriteMode::IfVersion(version),
                    (false, None) => WriteMode::Overwrite,
                };
                Change::Write { content: bytes(content, content_base64).map_err(|error| error.at(&path))?, path, mode }
            }
            Self::Append { path, content, content_base64 } => {
                Change::Append { content: bytes(content, content_base64).map_err(|error| error.at(&path))?, path }
            }
            Self::Edit { path, edits, if_version } => Change::Edit { path, edits, expect: if_version },
            Self::CreateDir { path } => Change::CreateDir { path },
            Self::Delete { path, recursive, if_version } => Change::Delete { path, recursive, expect: if_version },
            Self::Rename { from, to, overwrite } => Change::Rename { from, to, overwrite },
            Self::Copy { from, to, overwrite } => Change::Copy { from, to, overwrite },
        })
    }
}

impl From<&Change> for ChangeRecord {
    fn from(change: &Change) -> Self {
        match change {
            Change::Write { path, content, mode } => {
                let (content, content_base64) = text(content);
                let (create_new, if_version) = match mode {
                    WriteMode::Overwrite => (false, None),
                    WriteMode::CreateNew => (true, None),
                    WriteMode::IfVersion(version) => (false, Some(*version)),
                };
                Self::Write { path: path.clone(), content, content_base64, create_new, if_version }
            }
            Change::Append { path, content } => {
                let (content, content_base64) = text(content);
                Self::Append { path: path.clone(), content, content_base64 }
            }
            Change::Edit { path, edits, expect } => Self::Edit { path: path.clone(), edits: edits.clone(), if_version: *expect },
            Change::CreateDir { path } => Self::CreateDir { path: path.clone() },
            Change::Delete { path, recursive, expect } => Self::Delete { path: path.clone(), recursive: *recursive, if_version: *expect },
            Change::Rename { from, to, overwrite } => Self::Rename { from: from.clone(), to: to.clone(), overwrite: *overwrite },
            Change::Copy { from, to, overwrite } => Self::Copy { from: from.clone(), to: to.clone(), overwrite: *overwrite },
        }
    }
}

fn is_false(value: &bool) -> bool {
    !value
}

fn bytes(content: Option<String>, content_base64: Option<String>) -> Result<Bytes> {
    match (content, content_base64) {
        (Some(text), None) => Ok(text.into()),
        (None, Some(encoded)) => BASE64
            .decode(encoded)
            .map(Bytes::from)
            .map_err(|error| Error::invalid_argument(format!("`content_base64` is not Base64: {error}")).with_source(error)),
        (None, None) => Err(Error::invalid_argument("the content is missing; give `content` or `content_base64`")),
        (Some(_), Some(_)) => Err(Error::invalid_argument("`content` and `content_base64` exclude each other; leave one out")),
    }
}

fn text(content: &Bytes) -> (Option<String>, Option<String>) {
    match std::str::from_utf8(content) {
        Ok(text) => (Some(text.to_owned()), None),
        Err(_) => (None, Some(BASE64.encode(content))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn path(text: &str) -> VfsPathBuf {
        VfsPathBuf::parse(text).expect("a legal path")
    }

    #[test]
    fn changes_round_trip_through_json() {
        let changes = [
            Change::Write { path: path("/a"), content: "text".into(), mode: WriteMode::Overwrite },
            Change::Write { path: path("/a"), content: Bytes::from_static(b"\xff\0"), mode: WriteMode::CreateNew },
            Change::Write { path: path("/a"), content: Bytes::new(), mode: WriteMode::IfVersion(Version::new(u64::MAX)) },
            Change::Append { path: path("/a"), content: Bytes::from_static(b"\xfe") },
            Change::Edit { path: path("/a"), edits: vec![Edit::new("o", "n"), Edit::all("p", "q")], expect: Some(Version::new(3)) },
            Change::CreateDir { path: path("/d") },
            Change::Delete { path: path("/d"), recursive: true, expect: None },
            Change::Rename { from: path("/a"), to: path("/b"), overwrite: true },
            Change::Copy { from: path("/a"), to: path("/b"), overwrite: false },
        ];
        let bytes = serde_json::to_vec(&ApplyRequest::new(&changes, &ApplyOptions::new().with_allow_partial(true).with_refuse_links(true)))
            .expect("plain data");
        let request: ApplyRequest = serde_json::from_slice(&bytes).expect("its own words");
        let back = request.changes.into_iter().map(ChangeRecord::into_change).collect::<Result<Vec<_>>>().expect("legal");
        assert_eq!((back.as_slice(), request.allow_partial, request.refuse_links), (&changes[..], true, true));
    }

    #[test]
    fn content_must_be_given_exactly_once() {
        for json in [
            r#"{"operation": "write", "path": "/a"}"#,
            r#"{"operation": "write", "path": "/a", "content": "x", "content_base64": "eA=="}"#,
            r#"{"operation": "append", "path": "/a", "content_base64": "*"}"#,
            r#"{"operation": "write", "path": "/a", "content": "x", "create_new": true, "if_version": "1"}"#,
        ] {
            let record: ChangeRecord = serde_json::from_str(json).expect("the right shape");
            assert_eq!(record.into_change().expect_err(json).kind(), ErrorKind::InvalidArgument);
        }
        for json in [r#"{"operation": "write", "path": "a/../b", "content": "x"}"#, r#"{"operation": "shred", "path": "/a"}"#] {
            serde_json::from_str::<ChangeRecord>(json).expect_err(json);
        }
    }
}
