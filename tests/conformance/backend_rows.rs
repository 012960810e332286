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
