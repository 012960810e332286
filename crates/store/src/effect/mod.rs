//! Folds the writes of a batch into their net effect, for engines that apply a batch in one statement.
//!
//! Writes apply in order, but a single statement may touch each key only once. Folding keeps the last write of each key
//! and works out whether that write keeps the creation time of an earlier row.

use super::{BatchWrite, Namespace, expiry, whole_microseconds};
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};

/// The net effect of a batch. No key is in two of its lists.
#[derive(Debug, Default)]
pub struct Effect<'b> {
    /// The rows to put, ordered by namespace and key.
    pub puts: Vec<PutEffect<'b>>,
    /// The rows to append to logs; their keys follow from the versions they get.
    pub appends: Vec<PutEffect<'b>>,
    /// The keys to delete.
    pub deletes: Vec<(&'b Namespace, &'b str)>,
    /// The prefixes to delete, except for rows in `puts`.
    pub prefixes: Vec<(&'b Namespace, &'b str)>,
    /// The keys whose live row gets a new expiry, in microseconds, or none.
    pub touches: Vec<(&'b Namespace, &'b str, Option<i64>)>,
    /// How many numbers the batch takes from the store's counter: one per put, append and restore, in order.
    pub numbers: u64,
    /// Which of those numbers, counted from 0, the commit returns as versions.
    pub versions: Vec<u64>,
    /// The least value of the counter after the batch.
    pub floor: u64,
}

/// A row to put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PutEffect<'b> {
    /// Where the row lies.
    pub namespace: &'b Namespace,
    /// Its key.
    pub key: &'b str,
    /// Its meta.
    pub meta: &'b [u8],
    /// Its body.
    pub value: &'b [u8],
    /// The row's index, from 0, among the numbers that the batch takes. It determines the version unless `version` is
    /// set.
    pub number: u64,
    /// The version of a restored item.
    pub version: Option<u64>,
    /// In microseconds. `None` keeps that of the live row at the key, or else uses `modified_at`.
    pub created_at: Option<i64>,
    /// In microseconds.
    pub modified_at: i64,
    /// In microseconds.
    pub expires_at: Option<i64>,
}

/// The net effect on one key.
#[derive(Debug)]
enum Fate<'b> {
    Put(PutEffect<'b>),
    Deleted,
    Touched(Option<i64>),
}

impl<'b> Effect<'b> {
    /// Folds writes applied at `now`, a time in whole microseconds.
    pub fn of(writes: impl IntoIterator<Item = &'b BatchWrite>, now: Timestamp) -> Self {
        let mut effect = Self::default();
        let mut fates: BTreeMap<(&'b Namespace, &'b str), Fate<'b>> = BTreeMap::new();
        let mut removed = Prefixes::default();
        for write in writes {
            match write {
                BatchWrite::Put { namespace, key, meta, value, time_to_live, created_at } => {
                    let created_at = match created_at {
                        Some(at) => Some(microseconds(*at)),
                        None => created_before(&fates, &removed, namespace, key, now),
                    };
                    let put = PutEffect {
                        namespace,
                        key,
                        meta,
                        value,
                        number: effect.numbers,
                        version: None,
                        created_at,
                        modified_at: now.as_microsecond(),
                        expires_at: time_to_live.map(|duration| expiry(now, duration).as_microsecond()),
                    };
                    effect.versions.push(effect.numbers);
                    effect.numbers += 1;
                    fates.insert((namespace, key), Fate::Put(put));
                }
                BatchWrite::Append { namespace, meta, value, time_to_live } => {
                    effect.appends.push(PutEffect {
                        namespace,
                        key: "",
                        meta,
                        value,
                        number: effect.numbers,
                        version: None,
                        created_at: Some(now.as_microsecond()),
                        modified_at: now.as_microsecond(),
                        expires_at: time_to_live.map(|duration| expiry(now, duration).as_microsecond()),
                    });
                    effect.versions.push(effect.numbers);
                    effect.numbers += 1;
                }
                BatchWrite::Restore { namespace, item } => {
                    let put = PutEffect {
                        namespace,
                        key: &item.key,
                        meta: &item.meta,
                        value: &item.value,
                        number: effect.numbers,
                        version: Some(item.version.number()),
                        created_at: Some(microseconds(item.created_at)),
                        modified_at: microseconds(item.modified_at),
                        expires_at: item.expires_at.map(microseconds),
                    };
                    effect.numbers += 1;
                    effect.floor = effect.floor.max(item.version.number());
                    fates.insert((namespace, &item.key), Fate::Put(put));
                }
                BatchWrite::Touch { namespace, key, time_to_live } => {
                    let expires_at = time_to_live.map(|duration| expiry(now, duration).as_microsecond());
                    touch(&mut fates, &removed, namespace, key, expires_at, now);
                }
                BatchWrite::Delete { namespace, key } => drop(fates.insert((namespace, key), Fate::Deleted)),
                BatchWrite::DeletePrefix { namespace, prefix } => {
                    let following = fates.range((namespace, prefix.as_str())..).map(|(at, _)| *at);
                    let beneath: Vec<_> = following.take_while(|at| at.0 == namespace && at.1.starts_with(prefix.as_str())).collect();
                    for at in beneath {
                        fates.remove(&at);
                    }
                    removed.insert(namespace, prefix);
                }
            }
        }
        effect.prefixes = removed.iter().collect();
        for ((namespace, key), fate) in fates {
            match fate {
                Fate::Put(put) => effect.puts.push(put),
                Fate::Deleted => effect.deletes.push((namespace, key)),
                Fate::Touched(expires_at) => effect.touches.push((namespace, key, expires_at)),
            }
        }
        effect
    }
}

/// Prefixes of keys, none of which covers another. So if one covers a key, it is the last that does not sort after the key.
#[derive(Debug, Default)]
pub struct Prefixes<'b>(BTreeSet<(&'b Namespace, &'b str)>);

impl<'b> Prefixes<'b> {
    /// Adds a prefix and removes those that it covers. Cost: proportional to their number.
    pub fn insert(&mut self, namespace: &'b Namespace, prefix: &'b str) {
        if self.cover(namespace, prefix) {
            return;
        }
        let following = self.0.range((namespace, prefix)..).copied();
        let beneath: Vec<_> = following.take_while(|(space, other)| *space == namespace && other.starts_with(prefix)).collect();
        for at in beneath {
            self.0.remove(&at);
        }
        self.0.insert((namespace, prefix));
    }

    /// Returns whether one of the prefixes covers a key.
    pub fn cover(&self, namespace: &Namespace, key: &str) -> bool {
        let last = self.0.range(..=(namespace, key)).next_back();
        last.is_some_and(|(space, prefix)| *space == namespace && key.starts_with(prefix))
    }

    /// Returns whether another prefix covers one of these.
    pub fn lie_beneath(&self, namespace: &Namespace, prefix: &str) -> bool {
        let first = self.0.range((namespace, prefix)..).next();
        first.is_some_and(|(space, other)| *space == namespace && other.starts_with(prefix))
    }

    /// Returns the prefixes in order.
    fn iter(&self) -> impl Iterator<Item = (&'b Namespace, &'b str)> + '_ {
        self.0.iter().copied()
    }
}

/// Returns the creation time that a put at this key inherits from the writes so far; `None` leaves it to the store.
fn created_before(
    fates: &BTreeMap<(&Namespace, &str), Fate<'_>>,
    removed: &Prefixes<'_>,
    namespace: &Namespace,
    key: &str,
    now: Timestamp,
) -> Option<i64> {
    let now = now.as_microsecond();
    match fates.get(&(namespace, key)) {
        Some(Fate::Put(put)) if put.expires_at.is_none_or(|at| now < at) => put.created_at,
        Some(Fate::Put(_) | Fate::Deleted) => Some(now),
        Some(Fate::Touched(Some(at))) if *at <= now => Some(now),
        Some(Fate::Touched(_)) => None,
        None => removed.cover(namespace, key).then_some(now),
    }
}

fn touch<'b>(
    fates: &mut BTreeMap<(&'b Namespace, &'b str), Fate<'b>>,
    removed: &Prefixes<'b>,
    namespace: &'b Namespace,
    key: &'b str,
    expires_at: Option<i64>,
    now: Timestamp,
) {
    let now = now.as_microsecond();
    match fates.get_mut(&(namespace, key)) {
        Some(Fate::Put(put)) if put.expires_at.is_none_or(|at| now < at) => put.expires_at = expires_at,
        Some(Fate::Touched(at)) if at.is_none_or(|at| now < at) => *at = expires_at,
        None if !removed.cover(namespace, key) => drop(fates.insert((namespace, key), Fate::Touched(expires_at))),
        _ => {}
    }
}

fn microseconds(at: Timestamp) -> i64 {
    whole_microseconds(at).as_microsecond()
}

#[cfg(test)]
mod laws;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Batch, Item};
    use bytes::Bytes;
    use std::time::Duration;
    use treehold_core::ops::Version;

    fn space() -> Namespace {
        Namespace::parse("a").expect("a legal namespace")
    }

    fn now() -> Timestamp {
        Timestamp::from_microsecond(1_000).expect("a time")
    }

    #[test]
    fn last_write_of_a_key_wins() {
        let a = space();
        let batch = Batch::new().put(&a, "k", "1").put(&a, "l", "2").put(&a, "k", "3").put(&a, "m", "4").delete(&a, "m").delete(&a, "n");
        let effect = Effect::of(&batch.writes, now());
        let puts: Vec<_> = effect.puts.iter().map(|put| (put.key, put.value, put.number, put.created_at)).collect();
        assert_eq!(puts, [("k", &b"3"[..], 2, None), ("l", &b"2"[..], 1, None)]);
        assert_eq!(effect.deletes, [(&a, "m"), (&a, "n")]);
        assert_eq!((effect.numbers, effect.versions), (4, vec![0, 1, 2, 3]));
    }

    #[test]
    fn put_after_delete_starts_a_new_creation_time() {
        let a = space();
        let batch = Batch::new()
            .put(&a, "d/x", "1")
            .delete_prefix(&a, "d/")
            .put(&a, "d/y", "2")
            .delete(&a, "e")
            .put(&a, "e", "3")
            .put(&a, "e", "4");
        let effect = Effect::of(&batch.writes, now());
        let puts: Vec<_> = effect.puts.iter().map(|put| (put.key, put.value, put.created_at)).collect();
        assert_eq!(puts, [("d/y", &b"2"[..], Some(1_000)), ("e", &b"4"[..], Some(1_000))]);
        assert_eq!((effect.deletes.len(), effect.prefixes), (0, vec![(&a, "d/")]));
    }

    /// Regression: each put was compared with every prefix removed before it, and each prefix with every write before it, which took hours
    /// for such a batch.
    #[test]
    fn many_prefixes_and_puts_are_folded_without_comparing_all_with_all() {
        const COUNT: usize = 100_000;
        let a = space();
        let keys: Vec<String> = (0..COUNT).map(|number| format!("{number:06}")).collect();
        let batch = keys.iter().fold(Batch::new(), |batch, key| batch.delete_prefix(&a, format!("{key}/")).put(&a, key.clone(), ""));
        let effect = Effect::of(&batch.writes, now());
        assert_eq!((effect.prefixes.len(), effect.puts.len()), (COUNT, COUNT));
        // A put beneath a removed prefix is new, and a prefix that covers others replaces them.
        let batch = keys.iter().fold(batch, |batch, key| batch.put(&a, format!("{key}/x"), "")).delete_prefix(&a, "0");
        let effect = Effect::of(&batch.writes, now());
        assert_eq!((effect.prefixes, effect.puts.len()), (vec![(&a, "0")], 0));
    }

    #[test]
    fn prefix_that_covers_a_key_is_found_among_many() {
        let [a, b] = ["a", "b"].map(|name| Namespace::parse(name).expect("a legal namespace"));
        let mut prefixes = Prefixes::default();
        for prefix in ["d/", "d/e/", "c", "e!", "d/"] {
            prefixes.insert(&a, prefix);
        }
        prefixes.insert(&b, "x/y");
        prefixes.insert(&b, "x");
        assert_eq!(prefixes.iter().collect::<Vec<_>>(), [(&a, "c"), (&a, "d/"), (&a, "e!"), (&b, "x")]);
        for key in ["c", "cx", "d/", "d/e/f", "d/z", "e!"] {
            assert!(prefixes.cover(&a, key) && !prefixes.cover(&b, key), "{key}");
        }
        for key in ["", "b", "d", "d.", "d0", "e", "e\"", "x"] {
            assert!(!prefixes.cover(&a, key), "{key}");
        }
        prefixes.insert(&a, "");
        assert_eq!(prefixes.iter().collect::<Vec<_>>(), [(&a, ""), (&b, "x")]);
        assert!(prefixes.cover(&a, "") && prefixes.cover(&a, "z"));
    }

    #[test]
    fn touch_changes_only_the_row_live_at_that_point() {
        let a = space();
        let hour = Some(Duration::from_secs(3_600));
        let batch = Batch::new()
            .put(&a, "put", "1")
            .touch(&a, "put", hour)
            .put_for(&a, "over", "2", Duration::ZERO)
            .touch(&a, "over", hour)
            .delete(&a, "gone")
            .touch(&a, "gone", hour)
            .delete_prefix(&a, "d/")
            .touch(&a, "d/x", hour)
            .touch(&a, "kept", hour)
            .touch(&a, "kept", None);
        let effect = Effect::of(&batch.writes, now());
        let puts: Vec<_> = effect.puts.iter().map(|put| (put.key, put.expires_at)).collect();
        assert_eq!(puts, [("over", Some(1_000)), ("put", Some(3_600_001_000))]);
        assert_eq!(effect.touches, [(&a, "kept", None)]);
        assert_eq!(effect.versions, [0, 1]);
    }

    #[test]
    fn restore_takes_a_number_and_keeps_its_version() {
        let a = space();
        let item = Item::new("k", Bytes::new(), Bytes::new(), Version::new(70), now(), now());
        let batch = Batch::new().restore(&a, item).put(&a, "l", "");
        let effect = Effect::of(&batch.writes, now());
        assert_eq!(effect.puts.iter().map(|put| (put.number, put.version)).collect::<Vec<_>>(), [(0, Some(70)), (1, None)]);
        assert_eq!((effect.numbers, effect.versions, effect.floor), (2, vec![1], 70));
    }
}
