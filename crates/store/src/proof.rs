//! Proofs: rows that say that an entry in another partition exists.
//!
//! Many rows of a partition, the *things*, may need the same entry elsewhere. All sessions of a user, for example, need the user's entry in
//! the directory of the tenant. The first thing puts the entry under an [`intent`], and its commit puts a proof beside the
//! thing. Later things only expect the proof, which costs no round trip if the proof is read along with other rows. Two rules hold at every
//! moment: where there is a thing, there is the proof, and where there is the proof, there is the entry.
//!
//! | who | steps |
//! | --- | --- |
//! | makes a thing and finds the proof | expects the proof and puts it again, in the commit that makes the thing ([`Proof::expect`]) |
//! | makes a thing and finds none | puts an intent, puts the entry ([`Proof::announce`]), then commits the thing and the proof and removes the intent ([`Proof::establish`]) |
//! | removes the entry | reads the entry, ends old intents, reads the proof, looks for things; removes the proof and then the entry, each at the version that it read ([`Proof::remove`]) |
//!
//! A thing that is made after the remover looked has changed the version of the proof or of the entry, so the removal fails. A process that
//! dies leaves at most an intent, which expires, or an entry without a proof, which counts for nothing.
//!
//! A proof counts for a day. Then the next thing puts the entry again, so that a store heals whose partitions were restored from different
//! backups, or moved one by one. Things that were made before there were proofs have an entry and no proof, and the next one puts it.

use super::intent::{self, Intent};
use super::{Batch, Condition, Item, Namespace, Store};
use bytes::Bytes;
use jiff::Timestamp;
use std::time::Duration;
use treehold_core::error::{ErrorKind, Result};

/// How long a proof counts. After that, the entry is put again.
pub const PROOF_TIME: Duration = Duration::from_secs(24 * 60 * 60);

/// A proof, and the entry that it stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof {
    namespace: Namespace,
    key: String,
    entries: Namespace,
    entry: String,
    value: Bytes,
}

impl Proof {
    /// Names the proof of the entry with the key `entry` and this `value`.
    ///
    /// `namespace` is in the partition of the things, and holds the intents, too, under keys that start with `i`. `key` must not be that of
    /// another proof followed by `\u{1}` and more.
    pub fn new(
        namespace: Namespace,
        key: impl Into<String>,
        entries: Namespace,
        entry: impl Into<String>,
        value: impl Into<Bytes>,
    ) -> Self {
        Self { namespace, key: key.into(), entries, entry: entry.into(), value: value.into() }
    }

    /// Returns the key of the proof. Whoever makes a thing reads it in the namespace of the proof, with its value.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the value of a proof that was read, if it still counts.
    pub fn valid_value(found: &Item, now: Timestamp) -> Option<Bytes> {
        (!intent::is_older(&found.value, now, PROOF_TIME)).then(|| found.value.clone())
    }

    /// Adds to the commit that makes a thing. The commit fails with [`Conflict`](ErrorKind::Conflict) if the proof is gone. `found` is its
    /// value.
    #[must_use]
    pub fn expect(&self, batch: Batch, found: &Bytes) -> Batch {
        batch.expect(&self.namespace, &self.key, Condition::Exists).put(&self.namespace, &self.key, found.clone())
    }

    /// Puts an intent and then the entry, for a thing that is about to be made. The commit of [`Proof::establish`] must follow within
    /// [`INTENT_TIME`](intent::INTENT_TIME). No other intent has the `id`.
    ///
    /// The entry is put even if it is there, so that nobody removes it at its former version.
    ///
    /// Cost: two commits, one after the other.
    ///
    /// # Errors
    /// As [`Store::commit`].
    pub async fn announce(&self, store: &dyn Store, id: &str, now: Timestamp) -> Result<Intent> {
        let intent = Intent::put(store, &self.namespace, format!("{}{id}", self.intents()), now).await?;
        match store.commit(self.put_entry(Batch::new())).await {
            Ok(_) => Ok(intent),
            Err(error) => {
                intent.withdraw(store).await;
                Err(error)
            }
        }
    }

    /// Adds to the commit that makes a thing after [`Proof::announce`]. The commit fails with [`Conflict`](ErrorKind::Conflict) if the intent
    /// has ended.
    #[must_use]
    pub fn establish(&self, intent: &Intent, batch: Batch, now: Timestamp) -> Batch {
        intent.fulfil(batch).put(&self.namespace, &self.key, intent::time_row(now))
    }

    /// Returns the key of the entry.
    pub fn entry(&self) -> &str {
        &self.entry
    }

    /// Adds the entry to a commit, for things whose entry was lost.
    #[must_use]
    pub fn put_entry(&self, batch: Batch) -> Batch {
        batch.put(&self.entries, &self.entry, self.value.clone())
    }

    /// Removes the proof and the entry, unless a thing needs them or somebody may be about to make one. Returns whether they are gone.
    ///
    /// `is_needed` says whether there is a thing, and must not read before it is polled.
    ///
    /// Cost: at most three reads, that of `is_needed`, and two commits; one commit more for old intents.
    ///
    /// # Errors
    /// As [`Store::get`], [`Store::scan`] and [`Store::commit`], and those of `is_needed`.
    pub async fn remove(&self, store: &dyn Store, now: Timestamp, is_needed: impl Future<Output = Result<bool>> + Send) -> Result<bool> {
        let entry = store.get(&self.entries, &self.entry).await?;
        if intent::end(store, &self.namespace, &self.intents(), now).await? {
            return Ok(false);
        }
        let proof = store.get(&self.namespace, &self.key).await?;
        if is_needed.await? {
            return Ok(false);
        }
        if let Some(proof) = proof {
            let removed = Batch::new().expect(&self.namespace, &self.key, Condition::Version(proof.version));
            match store.commit(removed.delete(&self.namespace, &self.key)).await {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Conflict => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        match entry {
            Some(entry) => intent::unregister(store, &self.entries, &self.entry, entry.version).await,
            None => Ok(true),
        }
    }

    /// The prefix of the keys of intents.
    fn intents(&self) -> String {
        format!("i\u{1}{}\u{1}", self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ItemPart, MemoryStore, NamespacePage, NamespacesOptions, Partition, Scan, ScanOptions};
    use crate::{StoreCapabilities, StoreExtensions, Watch};
    use async_trait::async_trait;
    use futures::future::BoxFuture;
    use proptest::prelude::*;
    use std::fmt;
    use std::ops::Range;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
    use treehold_core::ops::Version;

    /// A store that yields before every call, so that a test chooses what comes next.
    #[derive(Debug)]
    struct Stepped(Arc<MemoryStore>);

    impl fmt::Display for Stepped {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("stepped")
        }
    }

    #[async_trait]
    impl Store for Stepped {
        fn capabilities(&self) -> StoreCapabilities {
            self.0.capabilities()
        }

        fn extensions(&self) -> StoreExtensions<'_> {
            StoreExtensions::new()
        }

        async fn get(&self, namespace: &Namespace, key: &str) -> Result<Option<Item>> {
            tokio::task::yield_now().await;
            self.0.get(namespace, key).await
        }

        async fn get_part(&self, namespace: &Namespace, key: &str, range: Range<u64>) -> Result<Option<ItemPart>> {
            tokio::task::yield_now().await;
            self.0.get_part(namespace, key, range).await
        }

        async fn get_many(&self, namespace: &Namespace, keys: &[&str], with_values: bool) -> Result<Vec<Option<Item>>> {
            tokio::task::yield_now().await;
            self.0.get_many(namespace, keys, with_values).await
        }

        async fn scan(&self, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
            tokio::task::yield_now().await;
            self.0.scan(namespace, options).await
        }

        async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage> {
            tokio::task::yield_now().await;
            self.0.namespaces(options).await
        }

        async fn commit(&self, batch: Batch) -> Result<Vec<Version>> {
            tokio::task::yield_now().await;
            self.0.commit(batch).await
        }

        async fn current_version(&self, partition: &Partition) -> Result<Version> {
            self.0.current_version(partition).await
        }

        async fn watch(&self, namespace: &Namespace) -> Result<Watch> {
            self.0.watch(namespace).await
        }
    }

    fn namespace(text: &str) -> Namespace {
        Namespace::parse(text).expect("legal")
    }

    fn proof() -> Proof {
        Proof::new(namespace("acme/ada/things"), "p", namespace("acme//directory"), "ada", "")
    }

    /// What a process does, with a thing of this number.
    #[derive(Debug, Clone, Copy)]
    enum Process {
        Make(usize),
        Unmake(usize),
        Remove,
    }

    fn process() -> impl Strategy<Value = Process> {
        prop_oneof![3 => (0_usize..3).prop_map(Process::Make), 2 => (0_usize..3).prop_map(Process::Unmake), 2 => Just(Process::Remove)]
    }

    async fn run(process: Process, store: Stepped, clock: Arc<AtomicI64>, ids: Arc<AtomicUsize>) {
        let (proof, things) = (proof(), namespace("acme/ada/things"));
        let now = || Timestamp::from_second(clock.load(Ordering::Relaxed)).expect("in range");
        match process {
            Process::Make(number) => loop {
                let made = Batch::new().put(&things, format!("thing/{number}"), "");
                let found = store.get(&things, proof.key()).await.expect("read");
                let made = match found.and_then(|found| Proof::valid_value(&found, now())) {
                    Some(found) => proof.expect(made, &found),
                    None => {
                        let id = ids.fetch_add(1, Ordering::Relaxed).to_string();
                        let intent = proof.announce(&store, &id, now()).await.expect("announced");
                        proof.establish(&intent, made, now())
                    }
                };
                match store.commit(made).await {
                    Err(error) if error.kind() == ErrorKind::Conflict => {}
                    done => break drop(done.expect("made")),
                }
            },
            Process::Unmake(number) => {
                store.commit(Batch::new().delete(&things, format!("thing/{number}"))).await.expect("deleted");
            }
            Process::Remove => {
                let is_needed = async { has_things(&store).await };
                proof.remove(&store, now(), is_needed).await.expect("an answer");
            }
        }
    }

    async fn has_things(store: &dyn Store) -> Result<bool> {
        Ok(!store.scan(&namespace("acme/ada/things"), ScanOptions::new().with_prefix("thing/")).await?.entries.is_empty())
    }

    async fn there(store: &MemoryStore) -> (bool, bool, bool) {
        let proof = proof();
        let things = has_things(store).await.expect("read");
        let is_proven = store.get(&proof.namespace, &proof.key).await.expect("read").is_some();
        (things, is_proven, store.get(&proof.entries, &proof.entry).await.expect("read").is_some())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// Whatever the order of the steps, whoever dies, and whenever an intent ends: no thing is without the proof, and no proof without the
        /// entry. In the end, one more removal leaves nothing behind unless there are things.
        #[test]
        fn things_keep_proof_and_entry_under_every_interleaving(
            is_proven_before in any::<bool>(),
            processes in prop::collection::vec(process(), 2..5),
            // Which process takes its next step, or dies, and how many seconds pass before it.
            steps in prop::collection::vec(
                (0_usize..4, prop_oneof![12 => Just(false), 1 => Just(true)], prop_oneof![8 => Just(0_i64), 2 => Just(61), 1 => Just(100_000)]),
                0..60,
            ),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            runtime.block_on(async {
                let (store, clock) = (Arc::new(MemoryStore::new()), Arc::new(AtomicI64::new(1_800_000_000)));
                let ids = Arc::new(AtomicUsize::new(0));
                if is_proven_before {
                    for process in [Process::Make(0), Process::Unmake(0)] {
                        run(process, Stepped(store.clone()), clock.clone(), ids.clone()).await;
                    }
                }
                let start = |process: &Process| -> Option<BoxFuture<'static, ()>> {
                    Some(Box::pin(run(*process, Stepped(store.clone()), clock.clone(), ids.clone())))
                };
                let mut running: Vec<_> = processes.iter().map(start).collect();
                for (index, dies, pause) in steps {
                    clock.fetch_add(pause, Ordering::Relaxed);
                    let index = index % running.len();
                    if let Some(process) = &mut running[index]
                        && (dies || futures::poll!(process).is_ready())
                    {
                        running[index] = None;
                    }
                    let (things, is_proven, is_entered) = there(&store).await;
                    prop_assert!((is_proven || !things) && (is_entered || !is_proven), "{things} {is_proven} {is_entered} {processes:?}");
                }
                drop(running);
                clock.fetch_add(61, Ordering::Relaxed);
                run(Process::Remove, Stepped(store.clone()), clock.clone(), ids.clone()).await;
                let (things, is_proven, is_entered) = there(&store).await;
                prop_assert!(things || !(is_proven || is_entered), "{processes:?}");
                Ok(())
            })?;
        }
    }

    /// A partition may come from another store, whose directory stays there.
    #[tokio::test]
    async fn entry_that_was_lost_is_put_again_a_day_later() {
        let (store, clock, ids) = (Arc::new(MemoryStore::new()), Arc::new(AtomicI64::new(1_800_000_000)), Arc::default());
        let make = async |number| run(Process::Make(number), Stepped(store.clone()), clock.clone(), Arc::clone(&ids)).await;
        make(0).await;
        store.commit(Batch::new().delete(&proof().entries, "ada")).await.expect("deleted");
        clock.fetch_add(24 * 60 * 60 - 1, Ordering::Relaxed);
        make(1).await;
        assert_eq!(there(&store).await, (true, true, false), "a thing does not renew the proof");
        clock.fetch_add(1, Ordering::Relaxed);
        make(2).await;
        assert_eq!(there(&store).await, (true, true, true));
        // A removal does not take the absent entry for that of an absent proof.
        store.commit(Batch::new().delete(&proof().entries, "ada").delete(&proof().entries, "nobody")).await.expect("deleted");
        for number in 0..3 {
            run(Process::Unmake(number), Stepped(store.clone()), clock.clone(), Arc::clone(&ids)).await;
        }
        run(Process::Remove, Stepped(store.clone()), clock.clone(), Arc::clone(&ids)).await;
        assert_eq!(there(&store).await, (false, false, false));
    }
}
