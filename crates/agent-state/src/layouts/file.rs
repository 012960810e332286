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

use super::VALUE_BYTES_MAX;
use super::list_hash::list_hash;
use super::shared::{
    KEYS_MAX, Smallest, check_bytes, check_fence, check_key, check_slot, check_user, is_blank, mixed_up, name_of, parse_stored, user_of,
    user_page,
};
use super::text::{compact, pretty};
use crate::contract::{
    AgentStateStore, DeleteOptions, DeleteSessionOptions, SaveOptions, SessionIdPage, StateCapabilities, StateForm, StateKey, StateVersion,
    UserPage, VersionedState,
};
use crate::slot::StateSlot;
use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, fstat, fsync, mkdirat, openat, renameat, unlinkat};
use rustix::io::{Errno, read, write};
use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use treehold_core::error::{AtHost, Error, ErrorKind, Result};
use treehold_core::json::Json;
use treehold_core::scope::check_id;
use uuid::Uuid;

/// The longest name of a file or directory, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// The start of the names of directories that are being removed, in the root. No id has such a name: `~` would be encoded.
const REMOVED: &str = "~removed-";

/// The suffixes of a key's files: the single value, the list and its hash.
const SINGLE: &str = ".json";
const LIST: &str = ".jsonl";
const HASH: &str = ".hash";

/// Options for [`JsonFileStates`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct JsonFileStatesOptions {
    /// Whether other machines use the same directory, as on a network volume. Default `false`.
    pub shared: bool,
    /// The largest value, and the largest list, in bytes. Default [`VALUE_BYTES_MAX`].
    pub value_bytes_max: usize,
}

impl Default for JsonFileStatesOptions {
    fn default() -> Self {
        Self { shared: false, value_bytes_max: VALUE_BYTES_MAX }
    }
}

impl JsonFileStatesOptions {
    /// Uses the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether other machines use the same directory.
    #[must_use]
    pub fn with_shared(mut self, shared: bool) -> Self {
        self.shared = shared;
        self
    }

    /// Sets the largest value and list, in bytes.
    #[must_use]
    pub fn with_value_bytes_max(mut self, value_bytes_max: usize) -> Self {
        self.value_bytes_max = value_bytes_max;
        self
    }
}

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
        let root = blocking(move || {
            let opened = std::fs::create_dir_all(&path).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO));
            let fd = opened.and_then(|()| openat(CWD, &path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()));
            match fd {
                Ok(fd) => Ok(Root { fd, path }),
                Err(errno) => Err(failed(&path, errno)),
            }
        })
        .await?;
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

/// Returns the name of an id.
///
/// # Errors
/// [`InvalidArgument`](ErrorKind::InvalidArgument) for an id that would name another directory, or one that is the name of another id.
fn segment<'a>(what: &str, id: &'a str) -> Result<Cow<'a, str>> {
    check_id(what, id)?;
    if is_blank(id) {
        return Err(Error::invalid_argument(format!("the {what} id is white space; choose another one")));
    }
    let name = match is_plain(id) {
        true if decoded(what, id).is_some() => return Err(mixed_up(what, id, "is the name of another id's directory")),
        true => Cow::Borrowed(id),
        false => Cow::Owned(URL_SAFE_NO_PAD.encode(id)),
    };
    if name.len() > NAME_BYTES_MAX {
        return Err(Error::invalid_argument(format!("the {what} id is too long for the name of a directory; shorten it to 191 bytes")));
    }
    Ok(name)
}

/// Returns the id of a directory; `None` if no id has this name.
fn id_of(what: &str, name: &str) -> Option<String> {
    match decoded(what, name) {
        Some(id) => Some(id),
        None => (is_plain(name) && check_id(what, name).is_ok()).then(|| name.to_owned()),
    }
}

/// Returns whether AgentScope uses an id as a name without encoding it.
fn is_plain(id: &str) -> bool {
    id.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'))
}

/// Decodes a name that AgentScope encoded. `None` for other names.
fn decoded(what: &str, name: &str) -> Option<String> {
    let id = String::from_utf8(URL_SAFE_NO_PAD.decode(name).ok()?).ok()?;
    (!is_plain(&id) && !is_blank(&id) && check_id(what, &id).is_ok()).then_some(id)
}

/// Returns the name of one of a key's files.
fn file_name(key: &str, suffix: &str) -> Result<String> {
    check_key(key)?;
    if key.contains('/') {
        return Err(Error::invalid_argument(format!("the key `{key}` holds a `/`, which would lead to another directory; rename it")));
    }
    if key.len() + LIST.len() > NAME_BYTES_MAX {
        return Err(Error::invalid_argument("the key is too long for the name of a file; shorten it to 249 bytes"));
    }
    Ok(format!("{key}{suffix}"))
}

/// Returns whether a session's directory with these entries has any value.
fn has_state(entries: &[String]) -> bool {
    entries.iter().any(|entry| state_key(entry).is_some())
}

/// Returns the key that a file belongs to.
fn state_key(entry: &str) -> Option<StateKey> {
    let (single, list) = (entry.strip_suffix(SINGLE), entry.strip_suffix(LIST));
    let key = single.map(str::to_owned).map(StateKey::Single).or(list.map(str::to_owned).map(StateKey::List))?;
    let (StateKey::Single(name) | StateKey::List(name)) = &key;
    check_key(name).is_ok().then_some(key)
}

/// The root directory.
struct Root {
    fd: OwnedFd,
    /// For the operator.
    path: PathBuf,
}

impl Root {
    /// Opens a directory; `None` if it is missing.
    ///
    /// # Errors
    /// [`PermissionDenied`](ErrorKind::PermissionDenied) for a link.
    fn directory(&self, parent: impl AsFd, name: &str) -> Result<Option<OwnedFd>> {
        match openat(parent, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
            Ok(fd) => Ok(Some(fd)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.failed(errno)),
        }
    }

    /// As [`Root::directory`], and `None` for what is no directory.
    fn subdirectory(&self, parent: impl AsFd, name: &str) -> Result<Option<OwnedFd>> {
        match openat(parent, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
            Ok(fd) => Ok(Some(fd)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(errno) => Err(self.failed(errno)),
        }
    }

    /// Opens a directory, and creates it if it is missing.
    fn directory_or_new(&self, parent: impl AsFd, name: &str) -> Result<OwnedFd> {
        loop {
            if let Some(fd) = self.directory(&parent, name)? {
                return Ok(fd);
            }
            match mkdirat(&parent, name, Mode::from_raw_mode(0o777)) {
                Ok(()) => fsync(&parent).map_err(|errno| self.failed(errno))?,
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(self.failed(errno)),
            }
        }
    }

    /// Returns the names in a directory that are UTF-8.
    fn entries(&self, directory: impl AsFd) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(directory).map_err(|errno| self.failed(errno))? {
            let entry = entry.map_err(|errno| self.failed(errno))?;
            if let Ok(name) = entry.file_name().to_str()
                && !matches!(name, "." | "..")
            {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    /// Returns whether a user's directory has a session with a value.
    fn has_session(&self, directory: &OwnedFd) -> Result<bool> {
        for entry in self.entries(directory)? {
            if id_of("session", &entry).is_some()
                && let Some(session) = self.subdirectory(directory, &entry)?
                && has_state(&self.entries(&session)?)
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Removes a directory and what is in it. Links are removed, not followed.
    fn remove_tree(&self, parent: impl AsFd, name: &str) -> Result<()> {
        loop {
            let Some(directory) = self.directory(&parent, name)? else { return Ok(()) };
            for entry in self.entries(&directory)? {
                match unlinkat(&directory, entry.as_str(), AtFlags::empty()) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(Errno::ISDIR | Errno::PERM) => self.remove_tree(&directory, &entry)?,
                    Err(errno) => return Err(self.failed(errno)),
                }
            }
            match unlinkat(&parent, name, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => return Ok(()),
                // A save that began before the removal added a file.
                Err(Errno::NOTEMPTY) => {}
                Err(errno) => return Err(self.failed(errno)),
            }
        }
    }

    fn failed(&self, errno: Errno) -> Error {
        failed(&self.path, errno)
    }
}

/// The directory of one session.
struct Session {
    root: Arc<Root>,
    user: String,
    session: String,
    bytes_max: usize,
}

impl Session {
    fn open(&self) -> Result<Option<OwnedFd>> {
        match self.root.directory(&self.root.fd, &self.user)? {
            Some(user) => self.root.directory(user, &self.session),
            None => Ok(None),
        }
    }

    fn open_or_new(&self) -> Result<OwnedFd> {
        let user = self.root.directory_or_new(&self.root.fd, &self.user)?;
        self.root.directory_or_new(user, &self.session)
    }

    /// Reads a file; `None` if it is missing.
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let Some(directory) = self.open()? else { return Ok(None) };
        // Without `NONBLOCK`, opening a pipe would wait for its writer.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(&directory, name, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(self.root.failed(errno)),
        };
        let failed = |errno| self.root.failed(errno);
        let stat = fstat(&file).map_err(failed)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(self.root.failed(Errno::LOOP));
        }
        check_bytes(usize::try_from(stat.st_size).unwrap_or(usize::MAX), self.bytes_max.saturating_mul(2))?;
        let mut content = Vec::with_capacity(usize::try_from(stat.st_size).unwrap_or_default() + 1);
        let mut part = vec![0; 64 << 10];
        loop {
            match read(&file, &mut part[..]) {
                Ok(0) => return Ok(Some(content)),
                Ok(count) => content.extend_from_slice(&part[..count]),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(failed(errno)),
            }
            check_bytes(content.len(), self.bytes_max.saturating_mul(2))?;
        }
    }

    /// Replaces files, one after the other.
    fn write(&self, files: Vec<(String, String)>) -> Result<()> {
        for (name, content) in files {
            loop {
                let directory = self.open_or_new()?;
                match replace(&directory, &name, content.as_bytes()) {
                    Ok(()) => break,
                    // The session was deleted after its directory was opened; this save comes after the deletion.
                    Err(Errno::NOENT) => {}
                    Err(errno) => return Err(self.root.failed(errno)),
                }
            }
        }
        Ok(())
    }

    fn has_state(&self) -> Result<bool> {
        self.open()?.map_or(Ok(false), |directory| Ok(has_state(&self.root.entries(&directory)?)))
    }

    fn keys(&self) -> Result<Vec<StateKey>> {
        let Some(directory) = self.open()? else { return Ok(Vec::new()) };
        let mut keys: Vec<StateKey> = self.root.entries(&directory)?.iter().filter_map(|entry| state_key(entry)).collect();
        if keys.len() > KEYS_MAX {
            return Err(Error::new(ErrorKind::TooLarge, format!("the session has over {KEYS_MAX} keys, the most that are listed")));
        }
        keys.sort();
        Ok(keys)
    }

    fn unlink(&self, names: &[String]) -> Result<()> {
        let Some(directory) = self.open()? else { return Ok(()) };
        for name in names {
            match unlinkat(&directory, name.as_str(), AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(self.root.failed(errno)),
            }
        }
        fsync(&directory).map_err(|errno| self.root.failed(errno))
    }

    /// Removes the session: takes its directory out of the user's by one rename, so that nobody sees half of it, and empties it then.
    fn remove(&self) -> Result<()> {
        let Some(user) = self.root.directory(&self.root.fd, &self.user)? else { return Ok(()) };
        // Only a directory is removed. A link or a file in its place is an error.
        if self.root.directory(&user, &self.session)?.is_none() {
            return Ok(());
        }
        let removed = format!("{REMOVED}{}", Uuid::new_v4());
        match renameat(&user, self.session.as_str(), &self.root.fd, removed.as_str()) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(()),
            // The user's directory is on another filesystem.
            Err(Errno::XDEV) => return self.root.remove_tree(&user, &self.session),
            Err(errno) => return Err(self.root.failed(errno)),
        }
        fsync(&user).map_err(|errno| self.root.failed(errno))?;
        self.root.remove_tree(&self.root.fd, &removed)?;
        self.sweep()
    }

    /// Removes what interrupted removals left.
    fn sweep(&self) -> Result<()> {
        for entry in self.root.entries(&self.root.fd)? {
            if entry.starts_with(REMOVED) {
                self.root.remove_tree(&self.root.fd, &entry)?;
            }
        }
        Ok(())
    }
}

/// Replaces a file: its readers see the old content or the new one.
fn replace(directory: &OwnedFd, name: &str, content: &[u8]) -> rustix::io::Result<()> {
    let unfinished = format!(".{}.tmp", Uuid::new_v4());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(directory, unfinished.as_str(), flags, Mode::from_raw_mode(0o666))?;
    let replaced = write_all(&file, content)
        .and_then(|()| fsync(&file))
        .and_then(|()| renameat(directory, unfinished.as_str(), directory, name))
        .and_then(|()| fsync(directory));
    if replaced.is_err() {
        // After the rename there is nothing left to remove.
        let _ = unlinkat(directory, unfinished.as_str(), AtFlags::empty());
    }
    replaced
}

fn write_all(file: &OwnedFd, mut content: &[u8]) -> rustix::io::Result<()> {
    while !content.is_empty() {
        match write(file, content) {
            Ok(0) => return Err(Errno::IO),
            Ok(count) => content = &content[count..],
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Runs blocking work on a thread for such work. It ends even if the caller goes away.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(Error::new(ErrorKind::Internal, "work on the files of the states was interrupted").with_source(error)),
    }
}

/// Converts an error of the host. The path is for the operator.
fn failed(path: &Path, errno: Errno) -> Error {
    let (kind, message) = match errno {
        Errno::ACCESS | Errno::PERM => {
            (ErrorKind::PermissionDenied, "the host does not permit this in the directory of the states; change its mode")
        }
        Errno::LOOP | Errno::NOTDIR => (
            ErrorKind::PermissionDenied,
            "a link or special file is in the way in the directory of the states; replace it with what it points to",
        ),
        Errno::ROFS => (ErrorKind::ReadOnly, "the directory of the states is on a read-only filesystem"),
        Errno::NOSPC | Errno::DQUOT => (ErrorKind::QuotaExceeded, "there is no space left for the states; delete files, then try again"),
        Errno::NAMETOOLONG | Errno::ILSEQ => {
            (ErrorKind::InvalidArgument, "the host does not accept the name of the file; shorten the id or key")
        }
        Errno::ISDIR => (ErrorKind::Corrupt, "a directory is in the place of a value; remove it"),
        _ => (ErrorKind::Unavailable, "the host failed in the directory of the states; try again"),
    };
    Error::new(kind, message).with_source(AtHost::new(path).with_cause(std::io::Error::from(errno)))
}
