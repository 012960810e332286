//! Translates the host's error numbers.
//!
//! Messages use the paths of this tree. The host path and the system's message are kept as the source, for the operator.

use rustix::io::Errno;
use std::fmt;
use std::path::{Path, PathBuf};
use treehold_core::error::{Error, ErrorKind};
use treehold_core::path::VfsPath;

/// Converts an error number at a path to an [`Error`].
pub(super) fn fault(host: &Path, path: &VfsPath, errno: Errno) -> Error {
    let error = match errno {
        Errno::NOENT => Error::not_found(path),
        Errno::EXIST => Error::already_exists(path),
        Errno::ISDIR => Error::is_directory(path),
        Errno::ROFS => Error::read_only(path),
        _ => {
            let (kind, message) = words(path, errno);
            Error::new(kind, message)
        }
    };
    let host = if path.is_root() { host.to_owned() } else { host.join(path.relative()) };
    error.at(path).with_source(HostError { host, errno })
}

/// Returns the message for a path that leads out of the root.
pub(super) fn outside(path: &VfsPath) -> String {
    format!("`{path}` leads out of the root of this tree; name a path that stays within it")
}

fn words(path: &VfsPath, errno: Errno) -> (ErrorKind, String) {
    match errno {
        Errno::NOTDIR => (ErrorKind::NotADirectory, format!("`{path}` lies beneath a file; name a path in a directory")),
        Errno::XDEV => (ErrorKind::PermissionDenied, outside(path)),
        Errno::LOOP => (
            ErrorKind::PermissionDenied,
            format!("`{path}` leads through a link that may not be followed, or through too many links; use the path of its target"),
        ),
        Errno::ACCESS | Errno::PERM => {
            (ErrorKind::PermissionDenied, format!("the host does not permit this at `{path}`; choose another path, or change its mode"))
        }
        Errno::BUSY => {
            (ErrorKind::PermissionDenied, format!("`{path}` is in use by the host, for example as a mount point, and cannot be changed"))
        }
        Errno::NAMETOOLONG | Errno::ILSEQ => {
            (ErrorKind::InvalidPath, format!("the host does not accept the name of `{path}`; choose a shorter or simpler one"))
        }
        Errno::NOSPC | Errno::DQUOT => {
            (ErrorKind::QuotaExceeded, format!("there is no space left for `{path}`; delete files, then try again"))
        }
        Errno::FBIG | Errno::OVERFLOW => (ErrorKind::TooLarge, format!("`{path}` is larger than the host's filesystem allows")),
        Errno::NOSYS | Errno::OPNOTSUPP | Errno::NXIO | Errno::NODEV => {
            (ErrorKind::Unsupported, format!("the host's filesystem does not offer this at `{path}`"))
        }
        Errno::INVAL | Errno::BADF | Errno::FAULT => (ErrorKind::Internal, format!("the host refused a call at `{path}` as malformed")),
        _ => (ErrorKind::Unavailable, format!("the host failed at `{path}`; try again")),
    }
}

/// The host's side of an error: the host path and the system's message.
#[derive(Debug)]
struct HostError {
    host: PathBuf,
    errno: Errno,
}

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.host.display(), std::io::Error::from(self.errno))
    }
}

impl std::error::Error for HostError {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error as _;
    use treehold_core::path::VfsPathBuf;

    #[test]
    fn error_numbers_map_to_kinds() {
        let path = VfsPathBuf::parse("/a/b").expect("a legal path");
        for (errno, kind) in [
            (Errno::NOENT, ErrorKind::NotFound),
            (Errno::NOTDIR, ErrorKind::NotADirectory),
            (Errno::ISDIR, ErrorKind::IsDirectory),
            (Errno::EXIST, ErrorKind::AlreadyExists),
            (Errno::XDEV, ErrorKind::PermissionDenied),
            (Errno::LOOP, ErrorKind::PermissionDenied),
            (Errno::ACCESS, ErrorKind::PermissionDenied),
            (Errno::PERM, ErrorKind::PermissionDenied),
            (Errno::ROFS, ErrorKind::ReadOnly),
            (Errno::NOSPC, ErrorKind::QuotaExceeded),
            (Errno::DQUOT, ErrorKind::QuotaExceeded),
            (Errno::NAMETOOLONG, ErrorKind::InvalidPath),
            (Errno::MFILE, ErrorKind::Unavailable),
            (Errno::IO, ErrorKind::Unavailable),
        ] {
            let error = fault(Path::new("/srv/secret"), &path, errno);
            assert_eq!(error.kind(), kind, "{errno:?}");
            assert_eq!(error.path(), Some(&*path), "{errno:?}");
            assert!(error.message().contains("`/a/b`") && !error.message().contains("secret"), "{error}");
            assert!(error.source().expect("the host's side").to_string().starts_with("/srv/secret/a/b: "));
        }
    }
}
