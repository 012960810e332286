//! A cache of values by the fields of a scope that determine them.

use parking_lot::Mutex;
use std::fmt;
use treehold_core::error::Result;
use treehold_core::recent::Recent;
use treehold_core::scope::{Scope, ScopeField};

/// The most values of a cache. They are small: a path, or a tree without content.
const VALUES_MAX: usize = 2_048;

/// Values that follow from some fields of a scope and from nothing else, such as the tree of a route.
pub(super) struct PerScope<T> {
    /// The fields of the scope that determine the value.
    fields: Vec<ScopeField>,
    kept: Mutex<Recent<Vec<Option<String>>, T>>,
}

impl<T: Clone> PerScope<T> {
    /// Caches values that differ only by these fields of the scope.
    pub(super) fn by(fields: impl Iterator<Item = ScopeField>) -> Self {
        Self { fields: fields.collect(), kept: Mutex::new(Recent::new(VALUES_MAX)) }
    }

    /// Returns the value of a scope, and makes it if it is not cached.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for an invalid scope, and those of `make`, which are not kept.
    pub(super) fn get_or_make(&self, scope: &Scope, make: impl FnOnce() -> Result<T>) -> Result<T> {
        scope.validate()?;
        let key: Vec<_> = self.fields.iter().map(|field| scope.field(*field).map(str::to_owned)).collect();
        if let Some(value) = self.kept.lock().get(&key) {
            return Ok(value);
        }
        let value = make()?;
        self.kept.lock().insert(key, value.clone(), 1);
        Ok(value)
    }
}

impl<T> fmt::Debug for PerScope<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerScope").field("fields", &self.fields).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use treehold_core::error::{Error, ErrorKind};
    use treehold_core::scope::NamespaceTemplate;

    fn values(template: &str) -> PerScope<u32> {
        PerScope::by(NamespaceTemplate::parse(template).expect("a template").fields())
    }

    fn scope(user: &str, thread: &str) -> Scope {
        Scope::new().with_tenant("acme").with_user(user).with_thread(thread)
    }

    #[test]
    fn value_is_that_of_the_fields_in_their_order() {
        let all = values("{tenant}/{user}/notes");
        let get = |scope: &Scope, made: u32| all.get_or_make(scope, || Ok(made)).expect("made");
        assert_eq!(get(&scope("ada", "monday"), 1), 1);
        assert_eq!(get(&scope("ada", "tuesday").with_agent("critic"), 2), 1, "the same fields");
        assert_eq!(get(&scope("bob", "monday"), 3), 3, "another user");
        assert_eq!(get(&Scope::new().with_user("acme").with_tenant("ada"), 4), 4, "exchanged");
        assert_eq!(get(&Scope::new().with_tenant("acme"), 5), 5, "no user");
        assert_eq!(get(&scope("-", "monday"), 6), 6, "a user who is not missing");
    }

    #[test]
    fn neither_failures_nor_invalid_scopes_are_answered_from_the_cache() {
        let all = values("{tenant}/{user}");
        all.get_or_make(&scope("ada", "monday"), || Err(Error::invalid_argument("refused"))).expect_err("refused");
        all.get_or_make(&scope("ada", "monday"), || Ok(1)).expect("made");
        let refused = all.get_or_make(&scope("ada", "a\nb"), || Ok(2)).expect_err("an invalid thread");
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    }
}
