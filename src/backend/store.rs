//! stub
#![allow(missing_docs)]
use super::*;
#[derive(Debug, Clone, Default)]
pub struct StoreBackend {}
impl StoreBackend {
    pub fn new() -> Self {
        Self {}
    }
}
impl fmt::Display for StoreBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Store")
    }
}
#[async_trait]
impl Backend for StoreBackend {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new()
    }
    async fn stat(&self, _path: &VfsPath) -> Result<Entry> {
        unimplemented!()
    }
    async fn read(&self, _path: &VfsPath, _options: &ReadOptions) -> Result<FileRead> {
        unimplemented!()
    }
    async fn ls(&self, _path: &VfsPath, _options: &LsOptions) -> Result<Listing> {
        unimplemented!()
    }
    async fn glob(&self, _path: &VfsPath, _options: &GlobOptions) -> Result<GlobResult> {
        unimplemented!()
    }
    async fn grep(&self, _path: &VfsPath, _options: &GrepOptions) -> Result<GrepResult> {
        unimplemented!()
    }
    async fn apply(&self, _changes: &[Change], _options: &ApplyOptions) -> Result<Vec<Changed>> {
        unimplemented!()
    }
}
