//! Memory documents and tool results: files of a tree.
//!
//! Each user and each session has a tree. A workspace mounts them at `/memo/user` and `/memo/session`, so that the file
//! tools of agents, searches and checkpoints work on the same files as the methods here:
//!
//! | file | content |
//! | --- | --- |
//! | `/memo/session/NOTES.md`, `/memo/session/TODO.md` | notes and tasks of one session |
//! | `/memo/session/tool-results/{id}.txt` | the full text of a tool's result |
//! | `/memo/user/USER.md` | facts about a user, for all sessions |

mod mount;
mod provider;
mod tree;

pub use mount::{MemoMount, SESSION_MOUNT, USER_MOUNT};
pub use provider::{MemoryIndexEntry, SandboxMemoProvider, TodoStorage};
pub use tree::SessionMemo;
pub(crate) use tree::{memo_of, memo_of_import};

use crate::info::SessionRef;
use crate::message::tool_call_id;
use crate::rows::{self, Head, UserRows};
use crate::sessions::Sessions;
use crate::tokens;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::escape::{escape, unescape};
use treehold_core::ops::{Change, LsOptions, ReadOptions, Version, WriteMode};
use treehold_core::path::{SEGMENT_BYTES_MAX, VfsPath, VfsPathBuf};
use treehold_core::scope::check_id;
use treehold_store::Store;
use treehold_tree::backend::{Backend, BackendExt, StoreBackend};

/// The largest document or tool result in bytes.
pub const MEMO_FILE_BYTES_MAX: usize = 64 << 20;

/// The name of a session's notes.
pub const NOTES: &str = "NOTES.md";

/// The name of a session's tasks.
pub const TODO: &str = "TODO.md";

/// The name of the document about a user.
pub const USER: &str = "USER.md";

/// The directory of tool results in the tree of a session.
pub const TOOL_RESULTS: &str = "/tool-results";

/// How many entries of a directory are listed at once.
const LS_LIMIT: usize = 1_000;

/// Within how many characters of a document its summary is looked for.
const SUMMARY_WITHIN: usize = 512;

/// The most bytes of those characters.
const SUMMARY_WITHIN_BYTES: u64 = 4 * SUMMARY_WITHIN as u64;

/// The owner of a memory document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemoScope {
    /// A session: `NOTES.md` and `TODO.md`.
    Session,
    /// A user: `USER.md`.
    User,
}

impl MemoScope {
    /// Reads the scope as hosts write it.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for anything but `session` and `user`.
    pub fn parse(text: &str) -> Result<Self> {
        match text {
            "session" => Ok(Self::Session),
            "user" => Ok(Self::User),
            other => Err(Error::invalid_argument(format!("the scope `{}` is unknown; use `session` or `user`", other.escape_debug()))),
        }
    }

    /// Returns the documents of the scope.
    pub fn documents(self) -> &'static [&'static str] {
        match self {
            Self::Session => &[NOTES, TODO],
            Self::User => &[USER],
        }
    }

    /// Returns the path of a document in the tree of its owner.
    pub(crate) fn path(self, name: &str) -> Result<VfsPathBuf> {
        if !self.documents().contains(&name) {
            let names = self.documents().join("`, `");
            return Err(Error::invalid_argument(format!("there is no document `{}` here, only `{names}`", name.escape_debug())));
        }
        VfsPathBuf::parse(format!("/{name}")).map_err(Error::from)
    }
}

/// A memory document or tool result.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoFile {
    /// Its text.
    pub text: String,
    /// Its version.
    pub version: Version,
}

/// A page of the tool calls whose results are kept.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ToolResultPage {
    /// The ids of the calls.
    pub ids: Vec<String>,
    /// Where the next page starts; `None` at the end.
    pub next: Option<String>,
}

/// Opens the tree of a user's memory documents, to be mounted at `/memo/user`.
///
/// # Errors
/// [`InvalidArgument`](ErrorKind::InvalidArgument) for an id that cannot name a tenant or user.
pub fn user_memo(store: Arc<dyn Store>, tenant: &str, user: &str) -> Result<StoreBackend> {
    check_id("tenant", tenant)?;
    check_id("user", user)?;
    Ok(StoreBackend::new(store, UserRows::new(tenant, user).memo()?).with_file_bytes_max(MEMO_FILE_BYTES_MAX as u64))
}

/// Opens the tree of a session's memory documents and tool results, to be mounted at `/memo/session`.
///
/// # Errors
/// [`InvalidArgument`](ErrorKind::InvalidArgument) for an id that cannot name a tenant, user or session.
pub fn session_memo(store: Arc<dyn Store>, tenant: &str, user: &str, session: &str) -> Result<SessionMemo> {
    SessionMemo::new(store, tenant, user, session)
}

impl Sessions {
    /// Returns a memory document; `None` if there is none, if a directory has its name, or for an unknown session.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for an id or name that cannot exist,
    /// [`Unsupported`](ErrorKind::Unsupported) for a document that is not UTF-8, and errors of the store.
    pub async fn read_memory_document(&self, tenant: &str, owner: &str, scope: MemoScope, name: &str) -> Result<Option<String>> {
        let path = scope.path(name)?;
        match self.memo_tree(tenant, owner, scope).await? {
            Some(tree) => read(&tree, &path).await,
            None => Ok(None),
        }
    }

    /// Returns a memory document with its version; `None` if there is none, or no such session.
    ///
    /// # Errors
    /// As [`Sessions::read_memory_document`].
    pub async fn read_memory_file(&self, tenant: &str, owner: &str, scope: MemoScope, name: &str) -> Result<Option<MemoFile>> {
        let path = scope.path(name)?;
        match self.memo_tree(tenant, owner, scope).await? {
            Some(tree) => read_file(&tree, &path).await,
            None => Ok(None),
        }
    }

    /// Replaces or creates a memory document on a condition. Returns its new version.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict), [`AlreadyExists`](ErrorKind::AlreadyExists) or [`NotFound`](ErrorKind::NotFound) if
    /// the condition does not hold, otherwise as [`Sessions::write_memory_document`].
    pub async fn write_memory_file(
        &self,
        tenant: &str,
        owner: &str,
        scope: MemoScope,
        name: &str,
        content: String,
        mode: WriteMode,
    ) -> Result<Option<Version>> {
        let path = scope.path(name)?;
        check_file_size(&content)?;
        let tree = self.memo_tree(tenant, owner, scope).await?.ok_or_else(|| rows::no_session(owner))?;
        Ok(tree.apply_one(Change::Write { path, content: content.into(), mode }).await?.version)
    }

    /// Replaces or creates a memory document.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) for an unknown session, [`TooLarge`](ErrorKind::TooLarge) for a document over
    /// [`MEMO_FILE_BYTES_MAX`], otherwise as [`Sessions::read_memory_document`].
    pub async fn write_memory_document(&self, tenant: &str, owner: &str, scope: MemoScope, name: &str, content: &str) -> Result<()> {
        let path = scope.path(name)?;
        check_file_size(content)?;
        let tree = self.memo_tree(tenant, owner, scope).await?.ok_or_else(|| rows::no_session(owner))?;
        tree.write(path.as_str(), content.to_owned()).await.map(drop)
    }

    /// Appends to a memory document, creating it if missing. Concurrent appends are all kept.
    ///
    /// # Errors
    /// As [`Sessions::write_memory_document`].
    pub async fn append_memory_document(&self, tenant: &str, owner: &str, scope: MemoScope, name: &str, content: &str) -> Result<()> {
        let path = scope.path(name)?;
        check_file_size(content)?;
        let tree = self.memo_tree(tenant, owner, scope).await?.ok_or_else(|| rows::no_session(owner))?;
        tree.append(path.as_str(), content.to_owned()).await.map(drop)
    }

    /// Returns the full text of a tool's result; `None` if there is none.
    ///
    /// # Errors
    /// As [`Sessions::read_memory_document`].
    pub async fn read_tool_result(&self, session: &SessionRef, tool_call_id: &str) -> Result<Option<String>> {
        let path = tool_result_path(tool_call_id)?;
        match self.memo_tree(session.tenant(), session.session(), MemoScope::Session).await? {
            Some(tree) => read(&tree, &path).await,
            None => Ok(None),
        }
    }

    /// Returns the full text of a tool's result with its version; `None` if there is none.
    ///
    /// # Errors
    /// As [`Sessions::read_memory_document`].
    pub async fn read_tool_result_file(&self, session: &SessionRef, tool_call_id: &str) -> Result<Option<MemoFile>> {
        let path = tool_result_path(tool_call_id)?;
        match self.memo_tree(session.tenant(), session.session(), MemoScope::Session).await? {
            Some(tree) => read_file(&tree, &path).await,
            None => Ok(None),
        }
    }

    /// Stores the full text of a tool's result, replacing an earlier one.
    ///
    /// # Errors
    /// As [`Sessions::write_memory_document`].
    pub async fn write_tool_result(&self, session: &SessionRef, tool_call_id: &str, content: &str) -> Result<()> {
        self.write_tool_result_file(session, tool_call_id, content.to_owned(), WriteMode::Overwrite).await.map(drop)
    }

    /// Stores the full text of a tool's result on a condition. Returns its new version.
    ///
    /// # Errors
    /// As [`Sessions::write_memory_file`].
    pub async fn write_tool_result_file(
        &self,
        session: &SessionRef,
        tool_call_id: &str,
        content: String,
        mode: WriteMode,
    ) -> Result<Option<Version>> {
        let path = tool_result_path(tool_call_id)?;
        check_file_size(&content)?;
        let tree = self.memo_tree(session.tenant(), session.session(), MemoScope::Session).await?;
        let tree = tree.ok_or_else(|| rows::no_session(session.session()))?;
        Ok(tree.apply_one(Change::Write { path, content: content.into(), mode }).await?.version)
    }

    /// Lists the tool calls whose results are kept, in the order of their file names.
    ///
    /// # Errors
    /// As [`Sessions::read_memory_document`].
    pub async fn list_tool_result_ids(&self, session: &SessionRef) -> Result<Vec<String>> {
        let (mut ids, mut after) = (Vec::new(), None);
        loop {
            let page = self.tool_results(session, after.as_deref(), LS_LIMIT).await?;
            ids.extend(page.ids);
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(ids),
            }
        }
    }

    /// Lists a page of the tool calls whose results are kept, in the order of their file names. `after` is the `next` of the
    /// page before.
    ///
    /// # Errors
    /// As [`Sessions::read_memory_document`].
    pub async fn tool_results(&self, session: &SessionRef, after: Option<&str>, limit: usize) -> Result<ToolResultPage> {
        let Some(tree) = self.memo_tree(session.tenant(), session.session(), MemoScope::Session).await? else {
            return Ok(ToolResultPage::default());
        };
        let mut options = LsOptions::new().with_limit(limit.min(self.options.page_max));
        if let Some(after) = after {
            options = options.with_start_after(after);
        }
        let listing = match tree.ls(&VfsPathBuf::parse(TOOL_RESULTS)?, &options).await {
            Err(error) if is_no_such(&error) => return Ok(ToolResultPage::default()),
            listing => listing?,
        };
        let files = listing.entries.iter().filter(|entry| !entry.is_directory());
        let ids = files.filter_map(|entry| tool_call_of(entry.name())).collect();
        Ok(ToolResultPage { ids, next: listing.truncated.map(|truncation| truncation.cursor.to_string()) })
    }

    /// Describes the memory documents of a session and its user, for a prompt. Documents whose name a directory has do not exist.
    ///
    /// Cost: a round trip for each document, which reads its beginning.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) for an unknown session, otherwise as [`Sessions::read_memory_document`].
    pub async fn memory_index(&self, tenant: &str, session: &str) -> Result<Vec<MemoryIndexEntry>> {
        let head = self.open_existing(tenant, session).await?.head;
        let own = memo_of(self.store.clone(), &head)?;
        let users = user_memo(self.store.clone(), tenant, &head.user_id)?;
        let mut index = Vec::new();
        for (tree, scope, mount) in [(&users, MemoScope::User, "user"), (&own, MemoScope::Session, "session")] {
            for name in scope.documents() {
                index.push(entry_of(tree, scope, mount, name).await?);
            }
        }
        Ok(index)
    }

    /// Opens the tree of a scope's owner; `None` for an unknown session.
    async fn memo_tree(&self, tenant: &str, owner: &str, scope: MemoScope) -> Result<Option<StoreBackend>> {
        check_id("tenant", tenant)?;
        match scope {
            MemoScope::User if !self.admits(tenant, owner) => Ok(None),
            MemoScope::User => user_memo(self.store.clone(), tenant, owner).map(Some),
            MemoScope::Session => {
                let opened = self.open(tenant, owner).await?;
                opened.map(|opened| memo_of(self.store.clone(), &opened.head)).transpose()
            }
        }
    }

    /// Appends a section to the notes of a session unless they contain it already.
    pub(crate) async fn append_notes_once(&self, head: &Head, section: &str) -> Result<()> {
        let tree = memo_of(self.store.clone(), head)?;
        let path = MemoScope::Session.path(NOTES)?;
        loop {
            let (mode, mut content) = match tree.read(&path, &ReadOptions::new().with_bytes_max(u64::MAX)).await {
                Ok(file) => (WriteMode::IfVersion(file.version), file.content.to_vec()),
                Err(error) if error.kind() == ErrorKind::NotFound => (WriteMode::CreateNew, Vec::new()),
                Err(error) => return Err(error),
            };
            if content.windows(section.len()).any(|window| window == section.as_bytes()) {
                return Ok(());
            }
            content.extend_from_slice(section.as_bytes());
            match tree.apply_one(Change::Write { path: path.clone(), content: content.into(), mode }).await {
                Err(error) if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::AlreadyExists) => {}
                written => return written.map(drop),
            }
        }
    }
}

fn check_file_size(content: &str) -> Result<()> {
    if content.len() <= MEMO_FILE_BYTES_MAX {
        return Ok(());
    }
    let message = format!("the text has {} bytes and at most {MEMO_FILE_BYTES_MAX} are allowed", content.len());
    Err(Error::new(ErrorKind::TooLarge, message))
}

async fn read(tree: &StoreBackend, path: &VfsPath) -> Result<Option<String>> {
    Ok(read_file(tree, path).await?.map(|file| file.text))
}

async fn read_file(tree: &StoreBackend, path: &VfsPath) -> Result<Option<MemoFile>> {
    match tree.read(path, &ReadOptions::new().with_bytes_max(u64::MAX)).await {
        Ok(file) => {
            let text = String::from_utf8(file.content.to_vec()).map_err(|error| {
                let message = format!("`{path}` is not UTF-8 text; read it as a file, or replace it");
                Error::new(ErrorKind::Unsupported, message).at(path).without_effect().with_source(error)
            })?;
            Ok(Some(MemoFile { text, version: file.version }))
        }
        Err(error) if is_no_such(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns whether there is no file at a path, or no directory to list.
pub(crate) fn is_no_such(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::IsDirectory | ErrorKind::NotADirectory)
}

/// Returns the path of a tool's result. Characters that a file name cannot hold are escaped as `%XX`.
pub(crate) fn tool_result_path(id: &str) -> Result<VfsPathBuf> {
    tool_call_id(id)?;
    let name = format!("{}.txt", escape(id, |character| character == '/' || character.is_control()));
    if name.len() > SEGMENT_BYTES_MAX {
        let message = format!("the tool call id `{}` is too long for the name of a file", id.escape_debug());
        return Err(Error::invalid_argument(message));
    }
    VfsPathBuf::parse(format!("{TOOL_RESULTS}/{name}")).map_err(Error::from)
}

/// Returns the tool call whose result is in a file; `None` for a name that no result has.
pub(crate) fn tool_call_of(name: &str) -> Option<String> {
    let id = unescape(name.strip_suffix(".txt")?)?.into_owned();
    tool_result_path(&id).is_ok_and(|path| path.name() == name).then_some(id)
}

async fn entry_of(tree: &StoreBackend, scope: MemoScope, mount: &str, name: &str) -> Result<MemoryIndexEntry> {
    let path = scope.path(name)?;
    let (name, shown) = (name.to_owned(), format!("/workspace/memo/{mount}/{name}"));
    match tree.read(&path, &ReadOptions::bytes(0, SUMMARY_WITHIN_BYTES)).await {
        Ok(file) => Ok(MemoryIndexEntry {
            name,
            path: shown,
            exists: true,
            size_tokens_approx: tokens::estimate_bytes(file.size_bytes),
            updated_at: file.modified_at.map(|time| time.as_millisecond()),
            summary: summary_of(&file.text_lossy()),
        }),
        Err(error) if is_no_such(&error) => {
            Ok(MemoryIndexEntry { name, path: shown, exists: false, size_tokens_approx: 0, updated_at: None, summary: None })
        }
        Err(error) => Err(error),
    }
}

/// Returns the summary of a document, from a comment `<!-- summary: … -->` within its first 512 characters.
fn summary_of(text: &str) -> Option<String> {
    let end = text.char_indices().nth(SUMMARY_WITHIN).map_or(text.len(), |(index, _)| index);
    let (_, after) = text[..end].split_once("<!-- summary:")?;
    let (summary, _) = after.split_once("-->")?;
    Some(summary.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tool_call_ids_become_file_names_and_back() {
        let mut paths = std::collections::BTreeSet::new();
        for id in ["call_1", "a/b", "a%2Fb", "a\nb", "..", ".", "é", "toolu:1"] {
            let path = tool_result_path(id).expect("legal");
            assert_eq!(tool_call_of(path.name()).as_deref(), Some(id));
            assert!(paths.insert(path), "{id}");
        }
        assert_eq!(tool_result_path("call_1").expect("legal").as_str(), "/tool-results/call_1.txt");
        for bad in ["", "\u{0}", &"x".repeat(252)] {
            assert!(tool_result_path(bad).is_err());
        }
        for other in ["notes.md", ".txt", "call%41.txt", "a%2fb.txt", "%61.txt", "a/b.txt", "%00.txt", "%.txt"] {
            assert_eq!(tool_call_of(other), None, "{other}");
        }
    }

    #[test]
    fn summary_is_read_from_the_first_512_characters() {
        assert_eq!(summary_of("# T\n<!-- summary: likes tea -->\n").as_deref(), Some("likes tea"));
        assert_eq!(summary_of(&format!("{}<!-- summary: late -->", "é".repeat(512))), None);
        assert_eq!(summary_of("<!-- summary: never closed"), None);
        assert_eq!(summary_of(""), None);
    }
}
