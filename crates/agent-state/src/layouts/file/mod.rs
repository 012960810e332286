//! AgentScope's directory of JSON files.
//!
//! ```text
//! {root}/{user or __anon__}/{session}/{key}.json    a single value, indented
//! {root}/{user or __anon__}/{session}/{key}.jsonl   a list, one value per line
//! {root}/{user or __anon__}/{session}/{key}.hash    the hash of the list
//! ```
//!
//! Users and sessions of letters, digits, `_`, `-` and `.` are names as they are, others are base64url without padding. AgentScope
//! never decodes such names; here lists show the ids. An id that is the encoded form of another id is refused.
//!
//! # Writes
//!
//! A file is written under a private name, flushed, and renamed. Readers see the old content or the new, also AgentScope's, and a
//! power failure loses nothing that a call confirmed. The hash of a changed list is replaced before the list: between the two, and
//! after a crash between them, AgentScope rewrites the list instead of extending it.
//!
//! Every path component is opened relative to the one above it, and links are not followed. Nothing outside the root is read or written.

mod names;
mod options;
mod root;
mod session;

pub use options::JsonFileStatesOptions;

use self::names::{HASH, LIST, SINGLE, file_name, has_state, id_of, segment};
use self::root::Root;
use self::session::Session;
use super::list_hash::list_hash;
use super::shared::{Smallest, check_bytes, check_fence, check_slot, check_user, name_of, parse_stored, user_of, user_page};
use super::text::{compact, pretty};
use crate::contract::{
    AgentStateStore, DeleteOptions, DeleteSessionOptions, SaveOptions, SessionIdPage, StateCapabilities, StateForm, StateKey, StateVersion,
    UserPage, VersionedState,
};
use crate::slot::StateSlot;
use async_trait::async_trait;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::Json;

/// The states in AgentScope's directory of JSON files. Clones share the directory.
///
/// There are no versions: the last writer wins, as in AgentScope. Values are stored in the text that Jackson writes, so that white
/// space between tokens and escapes in texts may differ from what was saved; numbers and the order of fields stay.
///
/// Cost: a save writes the whole value, with two flushes to the device. A page of sessions reads the names of all sessions of the user,
/// a page of users those of all users.
///
/// # Examples
/// ```
/// use treehold_agent_state::layouts::JsonFileStates;
/// use treehold_agent_state::{AgentStateStore, Json, SaveOptions, StateSlot};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold_core::Result<()> {
/// # let directory = tempfile::tempdir().expect("a directory");
/// # let root = directory.path().join("assistant");
/// let states = JsonFileStates::open(&root).await?;
/// let slot = StateSlot::new(None, "telegram:17")?;
/// states.save(&slot, "agent_state", &Json::parse(r#"{"summary":""}"#)?, SaveOptions::new()).await?;
/// let file = root.join("__anon__/dGVsZWdyYW06MTc/agent_state.json");
/// assert_eq!(std::fs::read_to_string(file).expect("it was written"), "{\n  \"summary\" : \"\"\n}");
/// assert_eq!(states.session_ids(None, None, 10).await?.sessions, ["telegram:17"]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct JsonFileStates {
    root: Arc<Root>,
    options: JsonFileStatesOptions,
}

impl JsonFileStates {
    /// Opens a directory, and creates it if it is missing.
    ///
    /// # Errors
    /// Those of the host, with the path in the source.
    pub async fn open(root: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(root, JsonFileStatesOptions::new()).await
    }

    /// Opens a directory with options.
    ///
    /// # Errors
    /// As [`JsonFileStates::open`].
    pub async fn open_with(root: impl AsRef<Path>, options: JsonFileStatesOptions) -> Result<Self> {
        let path = root.as_ref().to_owned();
        if path.as_os_str().is_empty() {
            return Err(Error::invalid_argument("the directory of the states is empty; name one"));
        }
        let root = blocking(move || Root::open(path)).await?;
        Ok(Self { root: Arc::new(root), options })
    }

    /// Runs work on the files of a slot.
    async fn on_session<T: Send + 'static>(
        &self,
        slot: &StateSlot,
        work: impl FnOnce(&Session) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let session = self.session(slot)?;
        blocking(move || work(&session)).await
    }

    fn session(&self, slot: &StateSlot) -> Result<Session> {
        check_slot(slot)?;
        let user = match slot.user() {
            Some(user) => segment("user", user)?,
            None => name_of(None).into(),
        };
        let session = segment("session", slot.session())?;
        Ok(Session {
            root: self.root.clone(),
            user: user.into_owned(),
            session: session.into_owned(),
            bytes_max: self.options.value_bytes_max,
        })
    }
}

impl fmt::Debug for JsonFileStates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JsonFileStates").field("root", &self.root.path).field("options", &self.options).finish()
    }
}

impl fmt::Display for JsonFileStates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JsonFileStates")
    }
}

#[async_trait]
impl AgentStateStore for JsonFileStates {
    fn capabilities(&self) -> StateCapabilities {
        StateCapabilities::new().with_shared(self.options.shared).with_exact_text(false)
    }

    async fn save(&self, slot: &StateSlot, key: &str, value: &Json, options: SaveOptions) -> Result<Option<StateVersion>> {
        check_fence(options.fence.as_ref())?;
        let name = file_name(key, SINGLE)?;
        check_bytes(value.as_str().len(), self.options.value_bytes_max)?;
        let text = pretty(value);
        self.on_session(slot, move |session| session.write(vec![(name, text)])).await?;
        Ok(None)
    }

    async fn save_list(&self, slot: &StateSlot, key: &str, values: &[Json], options: SaveOptions) -> Result<Option<StateVersion>> {
        check_fence(options.fence.as_ref())?;
        let (list, hash) = (file_name(key, LIST)?, file_name(key, HASH)?);
        check_bytes(values.iter().map(|value| value.as_str().len() + 1).sum(), self.options.value_bytes_max)?;
        let lines: Vec<String> = values.iter().map(compact).collect();
        let hash_text = list_hash(&lines);
        let text = lines.into_iter().flat_map(|line| [line, "\n".to_owned()]).collect::<String>();
        self.on_session(slot, move |session| {
            // The hash of an unchanged list stays: it may be that of a running AgentScope.
            match session.read(&list)? {
                Some(stored) if stored == text.as_bytes() => Ok(()),
                _ => session.write(vec![(hash, hash_text), (list, text)]),
            }
        })
        .await?;
        Ok(None)
    }

    async fn get(&self, slot: &StateSlot, key: &str) -> Result<Option<VersionedState>> {
        let name = file_name(key, SINGLE)?;
        let found = self.on_session(slot, move |session| session.read(&name)).await?;
        found.map(|bytes| Ok(VersionedState::new(parse_stored(slot, key, &bytes)?, None))).transpose()
    }

    async fn get_list(&self, slot: &StateSlot, key: &str) -> Result<Vec<Json>> {
        let name = file_name(key, LIST)?;
        let found = self.on_session(slot, move |session| session.read(&name)).await?.unwrap_or_default();
        let lines = found.split(|&byte| byte == b'\n').filter(|line| !line.trim_ascii().is_empty());
        lines.map(|line| parse_stored(slot, key, line)).collect()
    }

    async fn version(&self, slot: &StateSlot, key: &str) -> Result<Option<StateVersion>> {
        self.session(slot)?;
        file_name(key, SINGLE)?;
        Ok(None)
    }

    async fn list_version(&self, slot: &StateSlot, key: &str) -> Result<Option<StateVersion>> {
        self.version(slot, key).await
    }

    async fn exists(&self, slot: &StateSlot) -> Result<bool> {
        self.on_session(slot, |session| session.has_state()).await
    }

    async fn keys(&self, slot: &StateSlot) -> Result<Vec<StateKey>> {
        self.on_session(slot, Session::keys).await
    }

    async fn delete_session(&self, slot: &StateSlot, options: DeleteSessionOptions) -> Result<()> {
        check_fence(options.fence.as_ref())?;
        self.on_session(slot, Session::remove).await
    }

    async fn delete(&self, slot: &StateSlot, key: &str, options: DeleteOptions) -> Result<()> {
        check_fence(options.fence.as_ref())?;
        let suffixes: &[&str] = match options.only_form() {
            None => &[SINGLE, LIST, HASH],
            Some(StateForm::Single) => &[SINGLE],
            Some(StateForm::List) => &[LIST, HASH],
        };
        let names = suffixes.iter().map(|suffix| file_name(key, suffix)).collect::<Result<Vec<_>>>()?;
        self.on_session(slot, move |session| session.unlink(&names)).await
    }

    async fn session_ids(&self, user: Option<&str>, after: Option<&str>, limit: usize) -> Result<SessionIdPage> {
        check_user(user)?;
        let name = match user {
            Some(user) => segment("user", user)?.into_owned(),
            None => name_of(None).to_owned(),
        };
        let (root, after) = (self.root.clone(), after.map(str::to_owned));
        let (sessions, next) = blocking(move || {
            let mut page = Smallest::new(limit);
            let Some(directory) = root.directory(&root.fd, &name)? else { return Ok(page.into_page()) };
            for entry in root.entries(&directory)? {
                let Some(id) = id_of("session", &entry) else { continue };
                if after.as_deref().is_none_or(|after| id.as_str() > after)
                    && page.wants(&id)
                    && let Some(session) = root.subdirectory(&directory, &entry)?
                    && has_state(&root.entries(&session)?)
                {
                    page.insert(id);
                }
            }
            Ok(page.into_page())
        })
        .await?;
        Ok(SessionIdPage { sessions, next })
    }

    async fn users(&self, after: Option<&str>, limit: usize) -> Result<UserPage> {
        let (root, after) = (self.root.clone(), after.map(str::to_owned));
        blocking(move || {
            let (mut named, mut has_anonymous) = (Smallest::new(limit), false);
            for entry in root.entries(&root.fd)? {
                let user = match user_of(&entry) {
                    None if after.is_none() => None,
                    None => continue,
                    Some(name) => match id_of("user", &name) {
                        Some(id) if named.wants(&id) && after.as_deref().is_none_or(|after| id.as_str() > after) => Some(id),
                        _ => continue,
                    },
                };
                if let Some(directory) = root.subdirectory(&root.fd, &entry)?
                    && root.has_session(&directory)?
                {
                    match user {
                        None => has_anonymous = true,
                        Some(id) => named.insert(id),
                    }
                }
            }
            Ok(user_page(named, has_anonymous, after.as_deref()))
        })
        .await
    }
}

/// Runs blocking work on a thread for such work. It ends even if the caller goes away.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(Error::new(ErrorKind::Internal, "work on the files of the states was interrupted").with_source(error)),
    }
}
