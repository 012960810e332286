//! Intents: rows of two partitions that hold together, although no commit changes both.
//!
//! A *thing* is made in one partition, and an *entry* about it is in another, such as the entry of a session in the directory of its tenant.
//! No thing is ever without its entry:
//!
//! 1. whoever makes the thing puts an intent into the thing's partition ([`Intent::put`]),
//! 2. puts the entry ([`register`]),
//! 3. and makes the thing with a commit that expects the intent and removes it ([`Intent::fulfil`]).
//!
//! Whoever finds an entry without a thing removes it with [`unregister`], at the version that was read first. Before that, [`end`] removes
//! intents that are too old, so that their commits are refused, and says whether there are others. The thing is looked for last.
//!
//! So an entry is removed only if no commit can make its thing: an intent that was put later is followed by an entry of another version.
//! A process that dies leaves an entry without a thing, or an intent, and never the reverse.

use super::{Batch, Condition, Namespace, ScanEntry, ScanOptions, Store};
use bytes::Bytes;
use jiff::Timestamp;
use std::time::Duration;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Version;

/// How long an intent holds, at the least. Then it is ended by whoever wants to remove the entry, and its commit is refused.
pub const INTENT_TIME: Duration = Duration::from_secs(60);

/// When an intent that nobody ended expires, so that none stays that a process left behind.
pub const INTENT_LIFE: Duration = Duration::from_secs(60 * 60);

/// What somebody is about to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Intent {
    namespace: Namespace,
    key: String,
    version: Version,
}

impl Intent {
    /// Puts an intent. `namespace` is in the partition of the thing, and no other intent has the `key`. Cost: one commit.
    ///
    /// # Errors
    /// As [`Store::commit`].
    pub async fn put(store: &dyn Store, namespace: &Namespace, key: impl Into<String> + Send, now: Timestamp) -> Result<Self> {
        let key = key.into();
        let versions = store.commit(Batch::new().put_for(namespace, &key, time_row(now), INTENT_LIFE)).await?;
        let version = *versions.last().expect("a put has a version");
        Ok(Self { namespace: namespace.clone(), key, version })
    }

    /// Adds to the commit that makes the thing: it has no effect if the intent has ended, and the intent is removed with it.
    #[must_use]
    pub fn fulfil(&self, batch: Batch) -> Batch {
        batch.expect(&self.namespace, &self.key, Condition::Version(self.version)).delete(&self.namespace, &self.key)
    }

    /// Removes the intent of something that is not made. If that fails, it ends after [`INTENT_TIME`]. Cost: one commit.
    pub async fn withdraw(self, store: &dyn Store) {
        if let Err(error) = store.commit(Batch::new().delete(&self.namespace, &self.key)).await {
            tracing::debug!(%error, namespace = %self.namespace, "an intent stays until it ends");
        }
    }
}

/// The value of an intent, or of another row that says when it was put.
pub fn time_row(now: Timestamp) -> String {
    now.as_microsecond().to_string()
}

/// Returns whether a row of [`time_row`] has reached an age. One that cannot be read has, and so has one that is as far in the future, from
/// a clock that was wrong.
pub fn is_older(value: &Bytes, now: Timestamp, age: Duration) -> bool {
    let put_at: Option<i64> = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
    let age = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
    put_at.is_none_or(|put_at| now.as_microsecond().saturating_sub(put_at).saturating_abs() >= age)
}

/// Ends the intents whose keys start with a prefix and whose [`INTENT_TIME`] is over. Returns whether any is left.
///
/// Cost: one scan, and one commit if there are old ones.
///
/// # Errors
/// As [`Store::scan`] and [`Store::commit`].
pub async fn end(store: &dyn Store, namespace: &Namespace, prefix: &str, now: Timestamp) -> Result<bool> {
    let (mut is_left, mut options) = (false, ScanOptions::new().with_prefix(prefix).with_values(true));
    loop {
        let page = store.scan(namespace, options.clone()).await?;
        let mut ended = Batch::new();
        for entry in page.entries {
            let ScanEntry::Item(item) = entry else { continue };
            if is_older(&item.value, now, INTENT_TIME) {
                ended = ended.delete(namespace, item.key);
            } else {
                is_left = true;
            }
        }
        if !ended.is_empty() {
            store.commit(ended).await?;
        }
        match page.next {
            Some(next) => options.start_after = Some(next),
            None => return Ok(is_left),
        }
    }
}

/// What [`register`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Registered {
    /// The entry is there.
    Done,
    /// Another writer was faster; try again.
    Lost,
    /// The key has an entry of another, of this version.
    Taken(Bytes, Version),
}

/// Puts an entry. One for which `is_own` is true is replaced, so that nobody removes it at its former version. Cost: one read and one commit.
///
/// # Errors
/// As [`Store::get`] and [`Store::commit`], and those of `is_own`.
pub async fn register(
    store: &dyn Store,
    directory: &Namespace,
    key: &str,
    value: impl Into<Bytes> + Send,
    is_own: impl Fn(&Bytes) -> Result<bool> + Send,
) -> Result<Registered> {
    let value = value.into();
    let expected = match store.get(directory, key).await? {
        None => Condition::Absent,
        Some(item) if is_own(&item.value)? => Condition::Version(item.version),
        Some(item) => return Ok(Registered::Taken(item.value, item.version)),
    };
    let done = held(store.commit(Batch::new().expect(directory, key, expected).put(directory, key, value)).await)?;
    Ok(if done { Registered::Done } else { Registered::Lost })
}

/// Removes an entry if it has a version. Returns whether it had. Cost: one commit.
///
/// # Errors
/// As [`Store::commit`].
pub async fn unregister(store: &dyn Store, directory: &Namespace, key: &str, version: Version) -> Result<bool> {
    held(store.commit(Batch::new().expect(directory, key, Condition::Version(version)).delete(directory, key)).await)
}

/// Returns whether the conditions of a commit held.
fn held<T>(committed: Result<T, Error>) -> Result<bool> {
    match committed {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::Conflict => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryStore, Partition};
    use proptest::prelude::*;

    const KEY: &str = "thing";

    fn near() -> (Namespace, Namespace) {
        let partition = Partition::new(["acme", "ada"]).expect("legal");
        let of = |name: &str| partition.namespace([name]).expect("legal");
        (of("intents"), of("things"))
    }

    fn far() -> Namespace {
        Namespace::parse("acme//directory").expect("legal")
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    /// A process that makes or unmakes the thing, one round trip at a time, and may stop for good after any of them.
    #[derive(Debug, Clone)]
    enum Process {
        Make(MakeStep),
        /// Deletes the thing, and then the entry.
        Unmake(UnmakeStep),
    }

    #[derive(Debug, Clone)]
    enum MakeStep {
        Intend,
        Register(Intent),
        Make(Intent),
        Done,
    }

    #[derive(Debug, Clone)]
    enum UnmakeStep {
        Delete,
        ReadEntry,
        EndIntents(Version),
        Look(Version),
        Unregister(Version),
        Done,
    }

    impl Process {
        async fn step(self, store: &MemoryStore, number: usize, now: Timestamp) -> Self {
            let ((intents, things), directory) = (near(), far());
            match self {
                Self::Make(MakeStep::Intend) => {
                    let intent = Intent::put(store, &intents, format!("{KEY}/{number}"), now).await.expect("put");
                    Self::Make(MakeStep::Register(intent))
                }
                Self::Make(MakeStep::Register(intent)) => {
                    let done = register(store, &directory, KEY, "ada", |_| Ok(true)).await.expect("registered");
                    assert_eq!(done, Registered::Done, "one value, one step");
                    Self::Make(MakeStep::Make(intent))
                }
                Self::Make(MakeStep::Make(intent)) => {
                    let made = intent.fulfil(Batch::new().expect(&things, KEY, Condition::Absent).put(&things, KEY, ""));
                    held(store.commit(made).await).expect("committed");
                    Self::Make(MakeStep::Done)
                }
                Self::Unmake(UnmakeStep::Delete) => {
                    store.commit(Batch::new().delete(&things, KEY)).await.expect("deleted");
                    Self::Unmake(UnmakeStep::ReadEntry)
                }
                Self::Unmake(UnmakeStep::ReadEntry) => match store.get(&directory, KEY).await.expect("read") {
                    Some(item) => Self::Unmake(UnmakeStep::EndIntents(item.version)),
                    None => Self::Unmake(UnmakeStep::Done),
                },
                Self::Unmake(UnmakeStep::EndIntents(version)) => match end(store, &intents, KEY, now).await.expect("ended") {
                    true => Self::Unmake(UnmakeStep::Done),
                    false => Self::Unmake(UnmakeStep::Look(version)),
                },
                Self::Unmake(UnmakeStep::Look(version)) => match store.get(&things, KEY).await.expect("read") {
                    Some(_) => Self::Unmake(UnmakeStep::Done),
                    None => Self::Unmake(UnmakeStep::Unregister(version)),
                },
                Self::Unmake(UnmakeStep::Unregister(version)) => {
                    unregister(store, &directory, KEY, version).await.expect("unregistered");
                    Self::Unmake(UnmakeStep::Done)
                }
                done => done,
            }
        }
    }

    fn process() -> impl Strategy<Value = Process> {
        prop_oneof![Just(Process::Make(MakeStep::Intend)), Just(Process::Unmake(UnmakeStep::Delete))]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// Whatever the order of the steps, whoever dies, and whenever an intent ends: a thing always has its entry.
        #[test]
        fn thing_is_never_without_its_entry(
            mut processes in prop::collection::vec(process(), 1..5),
            // Which process takes its next step, and how many seconds pass before it.
            steps in prop::collection::vec((0_usize..5, prop_oneof![4 => Just(0_i64), 1 => Just(61)]), 0..40),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            runtime.block_on(async {
                let (store, mut second) = (MemoryStore::new(), 1_800_000_000);
                for (index, pause) in steps {
                    second += pause;
                    let index = index % processes.len();
                    processes[index] = processes[index].clone().step(&store, index, at(second)).await;
                    let thing = store.get(&near().1, KEY).await.expect("read");
                    let entry = store.get(&far(), KEY).await.expect("read");
                    prop_assert!(thing.is_none() || entry.is_some(), "{processes:?}");
                }
                Ok(())
            })?;
        }
    }

    #[tokio::test]
    async fn entries_of_two_owners_exclude_each_other() {
        let (store, directory) = (MemoryStore::new(), far());
        let register = async |user: &'static str| register(&store, &directory, KEY, user, |entry| Ok(entry == user)).await;
        assert_eq!(register("ada").await.expect("registered"), Registered::Done);
        let Registered::Taken(value, version) = register("bob").await.expect("an answer") else {
            panic!("the entry of ada was replaced");
        };
        assert_eq!(value, "ada");
        assert_eq!(register("ada").await.expect("registered"), Registered::Done);
        assert!(!unregister(&store, &directory, KEY, version).await.expect("an answer"), "it was registered again");
        let again = store.get(&directory, KEY).await.expect("read").expect("registered");
        assert!(unregister(&store, &directory, KEY, again.version).await.expect("an answer"));
        assert_eq!(register("bob").await.expect("registered"), Registered::Done);
    }

    #[tokio::test]
    async fn old_intents_end_and_their_commits_are_refused() {
        let (store, (intents, things)) = (MemoryStore::new(), near());
        let old = Intent::put(&store, &intents, "thing/1", at(0)).await.expect("put");
        let other = Intent::put(&store, &intents, "other/1", at(0)).await.expect("put");
        assert!(end(&store, &intents, "thing/", at(59)).await.expect("an answer"));
        let young = Intent::put(&store, &intents, "thing/2", at(60)).await.expect("put");
        assert!(end(&store, &intents, "thing/", at(61)).await.expect("an answer"), "the young one is left");
        let made = |intent: &Intent| intent.fulfil(Batch::new().put(&things, KEY, ""));
        assert!(!held(store.commit(made(&old)).await).expect("an answer"));
        assert!(held(store.commit(made(&other)).await).expect("an answer"));
        young.withdraw(&store).await;
        assert!(!end(&store, &intents, "thing/", at(61)).await.expect("an answer"));
        for wrong in ["not a time", "60000000"] {
            assert!(is_older(&Bytes::from(wrong), at(0), INTENT_TIME), "{wrong}");
        }
    }
}
