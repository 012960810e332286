//! Every backend and wrapper, each a row of the backend cases.

use stratafs::StateBackend;
use stratafs::backend_conformance;
use stratafs::conformance::Fresh;
use stratafs::conformance::backend::Tree;
use stratafs::conformance::model::ModelBackend;

async fn fresh_model() -> Fresh<Tree> {
    Tree::new(ModelBackend::new()).fresh()
}

backend_conformance!(model, fresh_model);

async fn fresh_state() -> Fresh<Tree> {
    Tree::new(StateBackend::new()).fresh()
}

backend_conformance!(state, fresh_state);

#[cfg(all(feature = "filesystem", unix))]
mod filesystem_rows {
    use super::*;
    use stratafs::{FilesystemBackend, FilesystemOptions};

    async fn fresh() -> Fresh<Tree> {
        rooted(FilesystemOptions::new())
    }

    async fn fresh_by_component() -> Fresh<Tree> {
        rooted(FilesystemOptions::new().with_openat2(false))
    }

    fn rooted(options: FilesystemOptions) -> Fresh<Tree> {
        let directory = tempfile::tempdir().unwrap();
        let backend = FilesystemBackend::open(directory.path(), options).unwrap();
        Tree::new(backend).fresh().keeping(directory)
    }

    backend_conformance!(filesystem, fresh);
    backend_conformance!(filesystem_by_component, fresh_by_component);
}
