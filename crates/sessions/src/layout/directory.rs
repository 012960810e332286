//! Reads and writes sessions in a host's directory.

use super::export::{Sink, content_of};
use super::import::{ImportReport, owner_of};
use super::{MEMORY_STATE, SessionFiles, id_of, name_of};
use crate::consolidation::{export_state, import_state};
use crate::info::SessionRef;
use crate::memo::{MemoScope, USER, user_memo};
use crate::rows::no_session;
use crate::sessions::Sessions;
use async_trait::async_trait;
use bytes::Bytes;
use std::fs;
use std::io;
use std::io::Write;
use std::path::{Path, PathBuf};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::scope::check_id;

/// The largest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 4 << 30;

/// The result of reading a directory.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct DirectoryReport {
    /// The sessions that were read.
    pub sessions: Vec<(SessionRef, ImportReport)>,
    /// The directories and files that were not read, each with its error.
    pub failures: Vec<(String, Error)>,
    /// How many sessions and users were left out because the call names another user.
    pub left_out: usize,
}

/// The result of writing a directory.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct ExportReport {
    /// The sessions that were written.
    pub sessions: Vec<SessionRef>,
    /// The directories that were not written, or only in part, each with its error.
    pub failures: Vec<(String, Error)>,
}

impl ExportReport {
    /// Adds another report.
    pub fn extend(&mut self, other: Self) {
        self.sessions.extend(other.sessions);
        self.failures.extend(other.failures);
    }

    /// Notes the result of writing a directory. Returns what was written.
    ///
    /// # Errors
    /// Transient errors, which other sessions would have as well.
    fn note<T>(&mut self, directory: &Path, written: Result<T>) -> Result<Option<T>> {
        match written {
            Ok(written) => Ok(Some(written)),
            Err(error) if error.kind().is_transient() => Err(error),
            Err(error) => {
                self.failures.push((directory.display().to_string(), error));
                Ok(None)
            }
        }
    }
}

/// Writes all sessions of a user, the user's `USER.md`, and the state of its consolidation into a directory of the host.
/// Existing files with the same names are replaced; others stay. Reports sessions that cannot be written and continues.
///
/// Cost: holds a part of one session in memory: a page of rows, or one document or tool result.
///
/// # Errors
/// Those of [`Sessions::list`], and transient errors of the store.
pub async fn write_directory(sessions: &Sessions, root: &Path, tenant: &str, user: &str) -> Result<ExportReport> {
    let mut report = ExportReport::default();
    for session in sessions.list_all(tenant, user).await? {
        write_reported(sessions, root, &SessionRef::new(tenant, session.session_id)?, &mut report).await?;
    }
    let directory = root.join("tenants").join(name_of(tenant)).join("users").join(name_of(user));
    let written = write_user(sessions, directory.clone(), tenant, user).await;
    report.note(&directory, written)?;
    Ok(report)
}

/// Writes some sessions into a directory of the host, as [`write_directory`] does. Sessions that do not exist are failures.
///
/// # Errors
/// As [`write_directory`].
pub async fn write_sessions(sessions: &Sessions, root: &Path, among: &[SessionRef]) -> Result<ExportReport> {
    let mut report = ExportReport::default();
    for session in among {
        if write_reported(sessions, root, session, &mut report).await? == Some(false) {
            report.failures.push((directory_of(root, session).display().to_string(), no_session(session.session())));
        }
    }
    Ok(report)
}

/// Writes one session into a directory of the host, part by part. Returns whether the session exists.
///
/// # Errors
/// Those of [`Sessions::load`], and those of the host as it reports them. The directory may then have a part of the session.
pub async fn write_session(sessions: &Sessions, root: &Path, session: &SessionRef) -> Result<bool> {
    let mut directory = Directory { path: directory_of(root, session), open: None };
    sessions.export_to(session, &mut directory).await
}

/// Writes a session and notes the result. Returns whether it exists; `None` after a failure.
async fn write_reported(sessions: &Sessions, root: &Path, session: &SessionRef, report: &mut ExportReport) -> Result<Option<bool>> {
    let written = write_session(sessions, root, session).await;
    let written = report.note(&directory_of(root, session), written)?;
    if written == Some(true) {
        report.sessions.push(session.clone());
    }
    Ok(written)
}

async fn write_user(sessions: &Sessions, directory: PathBuf, tenant: &str, user: &str) -> Result<()> {
    let document = content_of(&user_memo(sessions.store().clone(), tenant, user)?, USER).await?;
    let state = export_state(sessions, tenant, user).await?;
    let mut directory = Directory { path: directory, open: None };
    for (name, content) in [(USER, document), (MEMORY_STATE, state)] {
        if let Some(content) = content {
            directory.put(name, content).await?;
        }
    }
    Ok(())
}

/// Returns the directory of a session.
fn directory_of(root: &Path, session: &SessionRef) -> PathBuf {
    root.join("tenants").join(name_of(session.tenant())).join("sessions").join(name_of(session.session()))
}

/// A directory of the host, with the file that was written last.
struct Directory {
    path: PathBuf,
    open: Option<(String, fs::File)>,
}

#[async_trait]
impl Sink for Directory {
    async fn put(&mut self, path: &str, part: Bytes) -> Result<()> {
        let open = self.open.take().filter(|(open, _)| open == path);
        let target = self.path.join(path);
        let file = on_host(move || {
            let mut file = match open {
                Some((_, file)) => file,
                None => {
                    target.parent().map_or(Ok(()), fs::create_dir_all)?;
                    fs::File::create(target)?
                }
            };
            file.write_all(&part)?;
            Ok(file)
        })
        .await?;
        self.open = Some((path.to_owned(), file));
        Ok(())
    }
}

/// Reads all sessions and users of a host's directory. Skips and reports those that cannot be read.
///
/// # Errors
/// Those of the host when the directory itself cannot be listed, and transient errors of the store.
pub async fn read_directory(sessions: &Sessions, root: &Path) -> Result<DirectoryReport> {
    read(sessions, root, None).await
}

/// Reads the sessions of one user of a host's directory, and the user's documents. Leaves out and counts those of others.
///
/// # Errors
/// [`InvalidArgument`](ErrorKind::InvalidArgument) for an id that cannot name a tenant or user, otherwise as
/// [`read_directory`].
pub async fn read_directory_of(sessions: &Sessions, root: &Path, tenant: &str, user: &str) -> Result<DirectoryReport> {
    check_id("tenant", tenant)?;
    check_id("user", user)?;
    read(sessions, root, Some((tenant, user))).await
}

async fn read(sessions: &Sessions, root: &Path, owner: Option<(&str, &str)>) -> Result<DirectoryReport> {
    let mut report = DirectoryReport::default();
    let tenants = root.join("tenants");
    for (tenant, of_tenant) in subdirectories(tenants, &mut report).await? {
        for (session, directory) in subdirectories(of_tenant.join("sessions"), &mut report).await? {
            let shown = directory.display().to_string();
            match read_session(sessions, &tenant, &session, directory, owner, &mut report.failures).await {
                Ok(Some(read)) => report.sessions.push(read),
                Ok(None) => report.left_out += 1,
                Err(error) if error.kind().is_transient() => return Err(error),
                Err(error) => report.failures.push((shown, error)),
            }
        }
        for (user, directory) in subdirectories(of_tenant.join("users"), &mut report).await? {
            if owner.is_some_and(|owner| owner != (tenant.as_str(), user.as_str())) {
                report.left_out += 1;
                continue;
            }
            read_user(sessions, &tenant, &user, directory, &mut report).await?;
        }
    }
    Ok(report)
}

/// Reads a session; `None` if it belongs to another user than `owner`. Adds files that are left out to `failures`.
async fn read_session(
    sessions: &Sessions,
    tenant: &str,
    session: &str,
    directory: PathBuf,
    owner: Option<(&str, &str)>,
    failures: &mut Vec<(String, Error)>,
) -> Result<Option<(SessionRef, ImportReport)>> {
    if owner.is_some_and(|(owner, _)| owner != tenant) {
        return Ok(None);
    }
    let session = SessionRef::new(tenant, session)?;
    let HostFiles { files, left_out } = on_host(move || read_files(&directory)).await?;
    if let Some((_, user)) = owner
        && owner_of(&files)?.1 != user
    {
        return Ok(None);
    }
    failures.extend(left_out);
    let report = sessions.import_session(&session, &files).await?;
    Ok(Some((session, report)))
}

/// Reads the files of a user. One that cannot be read is reported, and the other is read.
async fn read_user(sessions: &Sessions, tenant: &str, user: &str, directory: PathBuf, report: &mut DirectoryReport) -> Result<()> {
    let shown = directory.display().to_string();
    let files = match on_host(move || read_files(&directory)).await {
        Ok(HostFiles { files, left_out }) => {
            report.failures.extend(left_out);
            files
        }
        Err(error) => {
            report.failures.push((shown, error));
            return Ok(());
        }
    };
    for (name, content) in &files {
        let read = match name.as_str() {
            USER => match std::str::from_utf8(content) {
                Ok(text) => sessions.write_memory_document(tenant, user, MemoScope::User, USER, text).await,
                Err(error) => Err(Error::invalid_argument("the document is not UTF-8").with_source(error)),
            },
            MEMORY_STATE => import_state(sessions, tenant, user, content).await,
            _ => Err(Error::new(ErrorKind::Unsupported, format!("only `{USER}` and `{MEMORY_STATE}` of a user are imported"))),
        };
        match read {
            Err(error) if error.kind().is_transient() => return Err(error),
            Err(error) => report.failures.push((format!("{shown}/{name}"), error)),
            Ok(()) => {}
        }
    }
    Ok(())
}

/// Lists the directories within a directory, each with the id in its name. A missing directory has none. Links to directories
/// are reported, as they are not followed.
async fn subdirectories(directory: PathBuf, report: &mut DirectoryReport) -> Result<Vec<(String, PathBuf)>> {
    let found = on_host(move || {
        let mut found = Vec::new();
        let entries = match fs::read_dir(&directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            let (path, kind) = (entry.path(), entry.file_type()?);
            if kind.is_dir() || (kind.is_symlink() && path.is_dir()) {
                found.push((path, kind.is_symlink()));
            }
        }
        found.sort();
        Ok(found)
    })
    .await?;
    let mut named = Vec::new();
    for (path, is_link) in found {
        match path.file_name().and_then(|name| name.to_str()).and_then(|name| id_of("directory", name)) {
            _ if is_link => report.failures.push((path.display().to_string(), not_followed())),
            Some(id) => named.push((id, path)),
            None => report.failures.push((path.display().to_string(), Error::invalid_argument("its name is not an escaped id"))),
        }
    }
    Ok(named)
}

/// Runs blocking work on the host's files on a thread for such work.
async fn on_host<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> Result<T> {
    let failed = |error: io::Error| {
        let kind = if error.kind() == io::ErrorKind::PermissionDenied { ErrorKind::PermissionDenied } else { ErrorKind::Internal };
        Error::new(kind, "a file of the host's directory cannot be read or written").with_source(error)
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(failed),
        Err(error) => Err(Error::new(ErrorKind::Internal, "work on the host's files was interrupted").with_source(error)),
    }
}

/// The files beneath a directory.
#[derive(Debug, Default)]
struct HostFiles {
    files: SessionFiles,
    /// The files that were left out, each with its error.
    left_out: Vec<(String, Error)>,
}

fn not_followed() -> Error {
    Error::new(ErrorKind::Unsupported, "links and special files are not read; replace it with what it points to")
}

/// Reads every file beneath a directory. Links are not followed.
fn read_files(directory: &Path) -> io::Result<HostFiles> {
    let (mut found, mut open) = (HostFiles::default(), vec![(directory.to_owned(), String::new())]);
    while let Some((directory, prefix)) = open.pop() {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let (path, name, kind) = (entry.path(), entry.file_name(), entry.file_type()?);
            let problem = match name.to_str() {
                None => Error::invalid_argument("its name is not UTF-8; rename it"),
                Some(name) if kind.is_dir() => {
                    open.push((path, format!("{prefix}{name}/")));
                    continue;
                }
                Some(_) if !kind.is_file() => not_followed(),
                Some(_) if entry.metadata()?.len() > FILE_BYTES_MAX => {
                    Error::new(ErrorKind::TooLarge, format!("it has over {FILE_BYTES_MAX} bytes, the most of one file"))
                }
                Some(name) => {
                    found.files.insert(format!("{prefix}{name}"), Bytes::from(fs::read(path)?));
                    continue;
                }
            };
            found.left_out.push((path.display().to_string(), problem));
        }
    }
    found.left_out.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(found)
}
