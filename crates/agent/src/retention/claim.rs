//! Which of several processes looks at a store.

use std::time::Duration;
use treehold_core::error::{ErrorKind, Result};
use treehold_core::ops::Version;
use treehold_store::{Batch, Condition, Namespace, Store};
use treehold_tree::checkpoint::RESERVED_NAMESPACE;

/// The key of the claim, in a namespace of its own beneath that of threads.
const KEY: &str = "claim";

/// How long a claim holds without being renewed, and how often it is renewed.
pub(super) const HELD_FOR: Duration = Duration::from_secs(120);
const RENEWED_EVERY: Duration = Duration::from_secs(30);

/// The right to look at a store, so that several processes do not read the same rows at once. It saves work only: nothing goes wrong if two
/// processes hold one, so a clock that is wrong does no harm. It ends by itself if its process dies.
pub(super) struct Claim<'s> {
    store: &'s dyn Store,
    namespace: Namespace,
    version: Version,
}

impl<'s> Claim<'s> {
    /// Takes the claim. Returns `None` if another process has it, or had it a short time ago.
    pub(super) async fn take(store: &'s dyn Store) -> Result<Option<Self>> {
        let [root, threads] = RESERVED_NAMESPACE;
        let namespace = Namespace::new([root, threads, "retention"])?;
        let version = put(store, &namespace, Condition::Absent, HELD_FOR).await?;
        Ok(version.map(|version| Self { store, namespace, version }))
    }

    /// Renews the claim until another process has it.
    pub(super) async fn keep(&mut self) -> Result<()> {
        loop {
            tokio::time::sleep(RENEWED_EVERY).await;
            match put(self.store, &self.namespace, Condition::Version(self.version), HELD_FOR).await? {
                Some(version) => self.version = version,
                None => return Ok(()),
            }
        }
    }

    /// Gives the claim of an unfinished round back, so that another process can take it at once.
    pub(super) async fn release(self) -> Result<()> {
        let batch = Batch::new().expect(&self.namespace, KEY, Condition::Version(self.version)).delete(&self.namespace, KEY);
        match self.store.commit(batch).await {
            // Another process has it.
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(()),
            done => done.map(drop),
        }
    }

    /// Ends the claim. Nobody takes it for a time, because everything has just been looked at.
    pub(super) async fn rest(self, time: Duration) -> Result<()> {
        put(self.store, &self.namespace, Condition::Version(self.version), time).await.map(drop)
    }
}

/// Puts the claim, unless another process was faster.
async fn put(store: &dyn Store, namespace: &Namespace, condition: Condition, time: Duration) -> Result<Option<Version>> {
    match store.commit(Batch::new().expect(namespace, KEY, condition).put_for(namespace, KEY, "", time)).await {
        Ok(versions) => Ok(versions.last().copied()),
        Err(error) if error.kind() == ErrorKind::Conflict => Ok(None),
        Err(error) => Err(error),
    }
}
