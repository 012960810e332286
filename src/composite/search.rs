//! stub

use super::CompositeBackend;
use crate::error::Result;
use crate::ops::{GlobOptions, GlobResult, GrepOptions, GrepResult};
use crate::path::VfsPath;

impl CompositeBackend {
    pub(super) async fn find_paths(&self, path: &VfsPath, options: &GlobOptions) -> Result<GlobResult> {
        let target = self.target(self.router.find(path), path)?;
        target.backend.glob(target.rest, options).await
    }

    pub(super) async fn find_lines(&self, path: &VfsPath, options: &GrepOptions) -> Result<GrepResult> {
        let target = self.target(self.router.find(path), path)?;
        target.backend.grep(target.rest, options).await
    }
}
