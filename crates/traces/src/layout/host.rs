//! Directories of the host, opened component by component. Links are never followed, so nothing outside of the root is read or written.

use bytes::Bytes;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, fstat, fsync, mkdirat, openat, renameat, statat, unlinkat};
use rustix::io::{Errno, read, write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use treehold_core::error::{AtHost, Error, ErrorKind, Result};
use uuid::Uuid;

/// The start and end of the names of unfinished files.
const UNFINISHED: (&str, &str) = (".treehold-", ".tmp");

/// How many bytes are read at once.
const PART_BYTES: usize = 256 << 10;

/// A directory of the host.
#[derive(Debug, Clone)]
pub(super) struct HostDirectory {
    fd: Arc<OwnedFd>,
    /// For the operator.
    path: Arc<PathBuf>,
}

/// What is in a directory, each kind in order of the names.
#[derive(Debug, Default)]
pub(super) struct Names {
    pub(super) directories: Vec<String>,
    pub(super) files: Vec<String>,
    /// Entries that are not read, each with the reason.
    pub(super) refused: Vec<(String, String)>,
}

impl HostDirectory {
    /// Opens the root, which the caller names and which may therefore be a link.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound), [`NotADirectory`](ErrorKind::NotADirectory), and those of the host.
    pub(super) fn open(path: &Path) -> Result<Self> {
        match openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(fd) => Ok(Self { fd: Arc::new(fd), path: Arc::new(path.to_owned()) }),
            Err(Errno::NOENT) => Err(at(path, ErrorKind::NotFound, "the directory does not exist", Errno::NOENT)),
            Err(Errno::NOTDIR) => Err(at(path, ErrorKind::NotADirectory, "this is not a directory", Errno::NOTDIR)),
            Err(errno) => Err(failed(path, errno)),
        }
    }

    /// Opens the root, and creates it if it is missing.
    pub(super) fn open_or_new(path: &Path) -> Result<Self> {
        std::fs::create_dir_all(path).map_err(|error| failed(path, Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
        Self::open(path)
    }

    /// Returns the path of an entry, for reports.
    pub(super) fn shown(&self, name: &str) -> String {
        self.path.join(name).display().to_string()
    }

    /// Opens a directory in this one; `None` if it is missing.
    pub(super) fn subdirectory(&self, name: &str) -> Result<Option<Self>> {
        match openat(&*self.fd, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
            Ok(fd) => Ok(Some(Self { fd: Arc::new(fd), path: Arc::new(self.path.join(name)) })),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.failed(name, errno)),
        }
    }

    /// Opens a directory in this one, and creates it if it is missing.
    pub(super) fn subdirectory_or_new(&self, name: &str) -> Result<Self> {
        loop {
            if let Some(found) = self.subdirectory(name)? {
                return Ok(found);
            }
            match mkdirat(&*self.fd, name, Mode::from_raw_mode(0o777)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(self.failed(name, errno)),
            }
        }
    }

    /// Lists the entries, unfinished files excepted.
    ///
    /// # Errors
    /// [`TooLarge`](ErrorKind::TooLarge) for more than `max` entries.
    pub(super) fn names(&self, max: usize) -> Result<Names> {
        let mut names = Names::default();
        let failed = |errno| self.failed("", errno);
        for (count, entry) in Dir::read_from(&*self.fd).map_err(failed)?.enumerate() {
            let entry = entry.map_err(failed)?;
            if count > max {
                let message = format!("the directory has over {max} entries, the most that are read; split it");
                return Err(Error::new(ErrorKind::TooLarge, message).with_source(AtHost::new(&self.path)));
            }
            let Ok(name) = entry.file_name().to_str() else {
                let shown = entry.file_name().to_string_lossy().into_owned();
                names.refused.push((shown, "its name is not UTF-8; rename it".to_owned()));
                continue;
            };
            if matches!(name, "." | "..") || is_unfinished(name) {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => FileType::from_raw_mode(statat(&*self.fd, name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?.st_mode),
                kind => kind,
            };
            match kind {
                _ if name.chars().any(char::is_control) => {
                    names.refused.push((name.escape_debug().to_string(), "its name has a control character; rename it".to_owned()));
                }
                FileType::Directory => names.directories.push(name.to_owned()),
                FileType::RegularFile => names.files.push(name.to_owned()),
                _ => names
                    .refused
                    .push((name.to_owned(), "links and special files are not read; replace it with what it points to".to_owned())),
            }
        }
        names.directories.sort_unstable();
        names.files.sort_unstable();
        names.refused.sort_unstable();
        Ok(names)
    }

    /// Opens a file; `None` if it is missing.
    ///
    /// # Errors
    /// [`PermissionDenied`](ErrorKind::PermissionDenied) for a link or special file.
    pub(super) fn file(&self, name: &str) -> Result<Option<HostFile>> {
        // Without `NONBLOCK`, opening a pipe would wait for its writer.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = match openat(&*self.fd, name, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(self.failed(name, errno)),
        };
        let stat = fstat(&fd).map_err(|errno| self.failed(name, errno))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(self.failed(name, Errno::LOOP));
        }
        Ok(Some(HostFile { fd, path: self.path.join(name), size_bytes: u64::try_from(stat.st_size).unwrap_or(0) }))
    }

    /// Reads a whole file; `None` if it is missing.
    ///
    /// # Errors
    /// [`TooLarge`](ErrorKind::TooLarge) for more than `bytes_max` bytes.
    pub(super) fn read(&self, name: &str, bytes_max: u64) -> Result<Option<Bytes>> {
        let Some(file) = self.file(name)? else { return Ok(None) };
        let mut content = Vec::with_capacity(usize::try_from(file.size_bytes.min(bytes_max)).unwrap_or(0));
        while content.len() as u64 <= bytes_max {
            let part = file.part()?;
            if part.is_empty() {
                return Ok(Some(content.into()));
            }
            content.extend_from_slice(&part);
        }
        let message = format!("`{name}` has over {bytes_max} bytes, the most that are read of it");
        Err(Error::new(ErrorKind::TooLarge, message).with_source(AtHost::new(&file.path)))
    }

    /// Replaces a file unless it has this content already. Its readers see the old content or the new one. Returns whether it was replaced.
    pub(super) fn replace(&self, name: &str, content: &[u8]) -> Result<bool> {
        if self.holds(name, content)? {
            return Ok(false);
        }
        let mut new = self.new_file()?;
        new.push(content)?;
        new.rename(name)?;
        Ok(true)
    }

    /// Returns whether a file has a content. A link does not count as one: it is replaced.
    fn holds(&self, name: &str, content: &[u8]) -> Result<bool> {
        let file = match self.file(name) {
            Ok(Some(file)) if file.size_bytes == content.len() as u64 => file,
            Ok(_) => return Ok(false),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => return Ok(false),
            Err(error) => return Err(error),
        };
        let mut rest = content;
        loop {
            let part = file.part()?;
            if part.is_empty() {
                return Ok(rest.is_empty());
            }
            match rest.strip_prefix(&part[..]) {
                Some(after) => rest = after,
                None => return Ok(false),
            }
        }
    }

    /// Starts a file beside the others, which gets its name at the end.
    pub(super) fn new_file(&self) -> Result<NewFile> {
        let unfinished = format!("{}{}{}", UNFINISHED.0, Uuid::new_v4(), UNFINISHED.1);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd =
            openat(&*self.fd, unfinished.as_str(), flags, Mode::from_raw_mode(0o666)).map_err(|errno| self.failed(&unfinished, errno))?;
        Ok(NewFile { directory: self.clone(), fd, unfinished: Some(unfinished) })
    }

    /// Removes the unfinished files that an interrupted call left.
    pub(super) fn sweep(&self) -> Result<()> {
        let failed = |errno| self.failed("", errno);
        for entry in Dir::read_from(&*self.fd).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if let Ok(name) = entry.file_name().to_str()
                && is_unfinished(name)
            {
                match unlinkat(&*self.fd, name, AtFlags::empty()) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(errno) => return Err(self.failed(name, errno)),
                }
            }
        }
        Ok(())
    }

    /// Flushes to the device what was written beneath this directory.
    pub(super) fn flush(&self) -> Result<()> {
        #[cfg(target_os = "linux")]
        rustix::fs::syncfs(&*self.fd).map_err(|errno| self.failed("", errno))?;
        fsync(&*self.fd).map_err(|errno| self.failed("", errno))
    }

    fn failed(&self, name: &str, errno: Errno) -> Error {
        failed(&self.path.join(name), errno)
    }
}

fn is_unfinished(name: &str) -> bool {
    let id = name.strip_prefix(UNFINISHED.0).and_then(|rest| rest.strip_suffix(UNFINISHED.1));
    id.is_some_and(|id| Uuid::try_parse(id).is_ok())
}

/// A file that is read part by part.
#[derive(Debug)]
pub(super) struct HostFile {
    fd: OwnedFd,
    path: PathBuf,
    /// Its size when it was opened.
    pub(super) size_bytes: u64,
}

impl HostFile {
    /// Returns the next part; an empty one at the end.
    pub(super) fn part(&self) -> Result<Bytes> {
        let mut part = vec![0; PART_BYTES];
        loop {
            match read(&self.fd, &mut part[..]) {
                Ok(count) => {
                    part.truncate(count);
                    return Ok(part.into());
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(failed(&self.path, errno)),
            }
        }
    }
}

/// A file that has no name yet. It is removed if it does not get one.
#[derive(Debug)]
pub(super) struct NewFile {
    directory: HostDirectory,
    fd: OwnedFd,
    /// The name until then.
    unfinished: Option<String>,
}

impl NewFile {
    pub(super) fn push(&mut self, mut content: &[u8]) -> Result<()> {
        while !content.is_empty() {
            match write(&self.fd, content) {
                Ok(0) => return Err(failed(&self.directory.path, Errno::IO)),
                Ok(count) => content = &content[count..],
                Err(Errno::INTR) => {}
                Err(errno) => return Err(failed(&self.directory.path, errno)),
            }
        }
        Ok(())
    }

    /// Gives it its name, in the place of a file that has this name.
    pub(super) fn rename(mut self, name: &str) -> Result<()> {
        if let Some(unfinished) = &self.unfinished {
            let fd = &*self.directory.fd;
            renameat(fd, unfinished.as_str(), fd, name).map_err(|errno| self.directory.failed(name, errno))?;
        }
        self.unfinished = None;
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(unfinished) = &self.unfinished {
            // A file that stays is removed by the next sweep.
            let _ = unlinkat(&*self.directory.fd, unfinished.as_str(), AtFlags::empty());
        }
    }
}

/// Runs blocking work on a thread for such work.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(Error::new(ErrorKind::Internal, "work on the files of the traces was interrupted").with_source(error)),
    }
}

fn at(path: &Path, kind: ErrorKind, message: &str, errno: Errno) -> Error {
    Error::new(kind, message).with_source(AtHost::new(path).with_cause(std::io::Error::from(errno)))
}

/// Converts an error of the host. The path is for the operator.
fn failed(path: &Path, errno: Errno) -> Error {
    let (kind, message) = match errno {
        Errno::ACCESS | Errno::PERM => (ErrorKind::PermissionDenied, "the host does not permit this in the directory; change its mode"),
        Errno::LOOP | Errno::NOTDIR => {
            (ErrorKind::PermissionDenied, "a link or special file is in the way in the directory; replace it with what it points to")
        }
        Errno::ROFS => (ErrorKind::ReadOnly, "the directory is on a read-only filesystem"),
        Errno::NOSPC | Errno::DQUOT => (ErrorKind::QuotaExceeded, "there is no space left in the directory; delete files, then try again"),
        Errno::NAMETOOLONG | Errno::ILSEQ => (ErrorKind::InvalidArgument, "the host does not accept the name of a file; shorten the id"),
        Errno::ISDIR => (ErrorKind::IsDirectory, "a directory is in the place of a file; remove it"),
        // Not transient: the directory may be gone, and the caller decides.
        _ => (ErrorKind::Internal, "the host failed in the directory; try again"),
    };
    at(path, kind, message, errno)
}
