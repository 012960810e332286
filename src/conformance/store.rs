//! The contract of [`Store`], case by case.

use super::cases;
use crate::error::ErrorKind;
use crate::store::{Batch, Condition, Namespace, Store};
use std::sync::Arc;

cases! { $
    /// Makes a module of tests, one for each case of the store contract: `store_conformance!(name, fresh)`, where `fresh` is an
    /// async function that returns a [`Fresh<dyn Store>`](crate::conformance::Fresh).
    store_conformance, store, dyn Store:
    get_of_absent_is_none,
    commit_is_all_or_nothing,
}

type Subject = Arc<dyn Store>;

fn namespace(text: &str) -> Namespace {
    Namespace::parse(text).expect("a legal namespace")
}

async fn get_of_absent_is_none(store: Subject) {
    assert_eq!(store.get(&namespace("a"), "k").await.expect("a read"), None);
}

async fn commit_is_all_or_nothing(store: Subject) {
    let a = namespace("a");
    let batch = Batch::new().expect(&a, "missing", Condition::Exists).put(&a, "k", "v");
    let error = store.commit(batch).await.expect_err("the precondition does not hold");
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert_eq!(store.get(&a, "k").await.expect("a read"), None);
}
