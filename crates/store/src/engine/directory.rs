//! The parent directory of an embedded store.

use std::path::Path;
use treehold_core::error::{AtHost, Error, ErrorKind, Result};

/// Creates the parent directory of a store for its owner only. An existing directory is left as it is. Blocks.
///
/// # Errors
/// [`PermissionDenied`](ErrorKind::PermissionDenied) or [`Unavailable`](ErrorKind::Unavailable) if it cannot be created.
pub fn create_parent(path: &Path) -> Result<()> {
    let Some(parent) = path.parent().filter(|parent| !parent.exists()) else { return Ok(()) };
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(parent).map_err(|error| {
        let kind = match error.kind() {
            std::io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
            _ => ErrorKind::Unavailable,
        };
        let message = "its parent directory cannot be created; change the permissions above it or name another location";
        Error::new(kind, message).with_source(AtHost::new(parent).with_cause(error))
    })
}
