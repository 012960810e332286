//! The move of sessions, traces and states of agents into the partitions of their users.
//!
//! Until then, all sessions of a store were in one partition, `_treehold/sessions`, all traces in another, and all states of agents in a
//! third. A distributed engine kept each on one node, and ordered the commits of all users. Now the rows of a user are in the user's partition, and
//! the directories of a tenant, and what its users share, in that of the tenant.
//!
//! The move uses the methods of [`Store`], so it is the same for every engine. An interrupted move goes on where it was.

use super::migrate::{TellMigrate, copy_is_unfinished, in_use};
use super::user_place::user_place;
use super::versions::lift;
use super::{
    Batch, Condition, Item, MigrateOptions, MigrateProgress, MigrateReport, Namespace, NamespacesOptions, OldLayout, Partition, ScanEntry,
    ScanOptions, Store, StoreExt,
};
use std::collections::{BTreeMap, HashMap};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Version;
use treehold_core::reserved::{AGENT_STATE, COPY, INDEXES, RESERVED_ROOT, SESSIONS, TRACES};
use treehold_core::retry::Attempts;

/// How many rows are moved by one commit.
const ROWS: usize = 200;

/// A namespace of the former place.
struct Move {
    from: Namespace,
    /// `None` for an index. It is removed, and searches read all files until there is another one.
    to: Option<Namespace>,
    /// The kind of the rows, for a report.
    rows: &'static str,
}

/// Returns the moves of a page of namespaces.
fn moves_of(namespaces: Vec<Namespace>) -> Result<Vec<Move>> {
    let mut moves = Vec::new();
    for from in namespaces {
        let components: Vec<String> = from.components().map(Into::into).collect();
        let parts: Vec<&str> = components.iter().map(String::as_str).collect();
        let rows = KINDS.into_iter().find(|kind| parts.starts_with(kind)).map_or(RESERVED_ROOT, |kind| kind[1]);
        match user_place(&parts) {
            None => {}
            Some(_) if parts[2] == RESERVED_ROOT && parts[3] == INDEXES[1] => moves.push(Move { from, to: None, rows }),
            Some(Ok(to)) => moves.push(Move { from, to: Some(to), rows }),
            Some(Err(error)) => {
                let message = format!(
                    "the store holds rows in `{from}`, which would become too long; remove them with the version that wrote them, then migrate"
                );
                return Err(Error::new(ErrorKind::TooLarge, message).with_source(error).without_effect());
            }
        }
    }
    Ok(moves)
}

/// The partitions of former versions.
const KINDS: [[&str; 2]; 3] = [SESSIONS, TRACES, AGENT_STATE];

/// Finds namespaces of a former partition that move, page by page, until `visit` returns false.
async fn find(store: &dyn Store, kind: [&str; 2], mut visit: impl FnMut(Move) -> bool + Send) -> Result<()> {
    let mut options = NamespacesOptions::new().with_beneath(Namespace::new(kind)?);
    loop {
        let page = store.namespaces(options.clone()).await?;
        options.start_after = page.namespaces.last().cloned();
        for found in moves_of(page.namespaces)? {
            if !visit(found) {
                return Ok(());
            }
        }
        if !page.more || options.start_after.is_none() {
            return Ok(());
        }
    }
}

/// Refuses a store with sessions, traces or states of agents in their former place. Whoever opens a store for them calls this first.
///
/// Cost: three round trips; one more for each 1,000 tenants with [copies](TRACES) of traces.
///
/// # Errors
/// [`Unsupported`](ErrorKind::Unsupported) with the source [`OldLayout`], and errors of the store.
pub async fn check_user_rows(store: &dyn Store) -> Result<()> {
    let mut failed = None;
    for kind in KINDS {
        let mut is_former = false;
        let found = find(store, kind, |_| {
            is_former = true;
            false
        });
        // One partition that cannot be read does not hide the others.
        failed = found.await.err().or(failed);
        if is_former {
            return Err(OldLayout::error(Some("sessions, traces or states of agents are in their former place".into())));
        }
    }
    failed.map_or(Ok(()), Err)
}

/// Moves sessions, traces and states of agents from their former place into the partitions of their users. `tell` receives the progress.
/// Nobody else may use the store meanwhile. Memory: the names of all namespaces that move, and some rows.
///
/// The counter of each partition continues above that of the former one, so that every position that a reader kept comes before what is
/// written later.
///
/// Where partitions can fail alone, one that is damaged or may not be read stops no other: it is a [fault](MigrateReport::faults) of the
/// report.
///
/// # Errors
/// [`Conflict`](ErrorKind::Conflict) for a store with an unfinished copy and [`TooLarge`](ErrorKind::TooLarge) for a namespace that becomes too
/// long, before anything is moved. [`AlreadyExists`](ErrorKind::AlreadyExists) for a row that was written in the new place,
/// [`Unavailable`](ErrorKind::Unavailable) if others write in the former place, and errors of the store.
pub async fn move_user_rows(store: &dyn Store, how: &MigrateOptions, tell: TellMigrate<'_>) -> Result<MigrateReport> {
    let is_apart = store.partitions(None, 1).await?.is_some();
    let (mut moves, mut failed) = (Vec::new(), MigrateReport::up_to_date());
    for kind in KINDS {
        let found = find(store, kind, |found| {
            moves.push(found);
            true
        });
        match found.await {
            Err(error) if is_apart && is_damage(&error) => failed.add_fault(&error),
            found => found?,
        }
    }
    if moves.is_empty() {
        return Ok(failed);
    }
    if !store.scan(&Namespace::new(COPY)?, ScanOptions::new().with_limit(1)).await?.entries.is_empty() {
        return Err(copy_is_unfinished());
    }
    let mut counts = BTreeMap::new();
    for part in moves.iter().filter(|part| part.to.is_some()) {
        match rows_of(store, &part.from).await {
            Err(error) if is_apart && is_damage(&error) => failed.add_fault(&error),
            rows => *counts.entry(part.rows).or_default() += rows?,
        }
    }
    if how.dry_run {
        return Ok(MigrateReport::of(how, counts).and(failed));
    }
    let mut progress = MigrateProgress::new(counts.values().sum());
    tell(progress);
    let mut lifted = None;
    for part in &moves {
        match move_part(store, part, &mut lifted, &mut progress, tell).await {
            Err(error) if is_apart && is_damage(&error) => failed.add_fault(&error),
            moved => moved?,
        }
    }
    let report = MigrateReport::of(how, counts);
    // What failed is in its former place still.
    if failed.faults_count > 0 {
        return Ok(report.and(failed));
    }
    // A server that still runs may have written to a place that was moved.
    match check_user_rows(store).await {
        Err(error) if OldLayout::is_source_of(&error) => Err(in_use()),
        checked => checked.map(|()| report),
    }
}

/// Returns whether an error says that a partition cannot be read or written, and not that others use the store or that rows are in the way.
fn is_damage(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::PermissionDenied | ErrorKind::ReadOnly)
}

/// Moves the rows of a namespace, or removes those of an index. `lifted` has the partitions of the move before: the counter of the new one
/// is above that of the former one.
async fn move_part(
    store: &dyn Store,
    part: &Move,
    lifted: &mut Option<(Partition, Partition)>,
    progress: &mut MigrateProgress,
    tell: TellMigrate<'_>,
) -> Result<()> {
    let from = &part.from;
    let Some(to) = &part.to else { return store.commit(Batch::new().delete_prefix(from, "")).await.map(drop) };
    let partitions = (from.partition(), to.partition());
    if lifted.as_ref() != Some(&partitions) {
        let version = store.current_version(&partitions.0).await?;
        if store.current_version(&partitions.1).await? < version {
            store.commit(lift(&partitions.1, version)?).await?;
        }
        *lifted = Some(partitions);
    }
    move_rows(store, from, to, progress, tell).await
}

async fn rows_of(store: &dyn Store, namespace: &Namespace) -> Result<u64> {
    let (mut rows, mut options) = (0, ScanOptions::new());
    loop {
        let page = store.scan(namespace, options.clone()).await?;
        rows += page.entries.len() as u64;
        match page.next {
            Some(next) => options.start_after = Some(next),
            None => return Ok(rows),
        }
    }
}

/// Moves the rows of a namespace with their versions and times. Removes exactly the rows that it copied, so none is lost that somebody
/// changes meanwhile.
async fn move_rows(
    store: &dyn Store,
    from: &Namespace,
    to: &Namespace,
    progress: &mut MigrateProgress,
    tell: TellMigrate<'_>,
) -> Result<()> {
    let options = ScanOptions::new().with_values(true).with_limit(ROWS);
    let mut attempts = Attempts::new();
    // What this call has copied and not removed yet.
    let mut own: HashMap<String, Version> = HashMap::new();
    loop {
        let page = store.scan(from, options.clone()).await?;
        let items: Vec<Item> =
            page.entries.into_iter().filter_map(|entry| if let ScanEntry::Item(item) = entry { Some(item) } else { None }).collect();
        if items.is_empty() {
            return Ok(());
        }
        let keys: Vec<&str> = items.iter().map(|item| item.key.as_str()).collect();
        let there = store.get_many(to, &keys, true).await?;
        let (mut copied, mut removed) = (Batch::new(), Batch::new());
        let count = items.len() as u64;
        for (item, there) in items.into_iter().zip(there) {
            removed = removed.expect(from, &item.key, Condition::Version(item.version)).delete(from, &item.key);
            match there {
                // An interrupted move has brought it.
                Some(there) if there.version == item.version && there.value == item.value => {}
                Some(there) if own.get(&there.key) != Some(&there.version) => {
                    let message = format!(
                        "`{to}` has a row `{}` already, which was written after the update; remove one of the two, then migrate again",
                        there.key.escape_debug()
                    );
                    return Err(Error::new(ErrorKind::AlreadyExists, message));
                }
                _ => {
                    own.insert(item.key.clone(), item.version);
                    copied = copied.restore(to, item);
                }
            }
        }
        if !copied.is_empty() {
            store.commit(copied).await?;
        }
        match store.commit(removed).await {
            Ok(_) => {
                own.clear();
                progress.rows += count;
                tell(*progress);
            }
            Err(error) if error.kind() == ErrorKind::Conflict => attempts.lost().await?,
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ItemPart, MemoryStore, NamespacePage, Partition, Scan, StoreCapabilities, StoreExtensions, Watch};
    use async_trait::async_trait;
    use std::fmt;
    use std::ops::Range;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// The former places, and where the rows are now. The second is `None` for what stays.
    const PLACES: [(&str, Option<&str>); 23] = [
        ("_treehold/sessions", None),
        ("_treehold/sessions/_treehold/removals", None),
        ("_treehold/traces/_treehold/insertions", None),
        ("_treehold/traces/_treehold/copies/acme", None),
        ("_treehold/agent-state/_treehold/due", None),
        ("acme/ada/_treehold/agent-state/agents/helper/states", None),
        ("_treehold/agent-state/acme/users/ada/agents/helper/states", Some("acme/ada/_treehold/agent-state/agents/helper/states")),
        ("_treehold/agent-state/acme/anonymous/agents/helper/turns/s", Some("acme//_treehold/agent-state/anonymous/agents/helper/turns/s")),
        ("_treehold/agent-state/acme/shared/agents/helper/files/all", Some("acme//_treehold/agent-state/shared/agents/helper/files/all")),
        ("_treehold/agent-state/acme/global/files/all", Some("acme//_treehold/agent-state/global/files/all")),
        ("_treehold/agent-state/acme/directory/helper", Some("acme//_treehold/agent-state/directory/helper")),
        (
            "_treehold/agent-state/_treehold/history/acme/users/ada/agents/helper/files/all",
            Some("acme/ada/_treehold/history/_treehold/agent-state/agents/helper/files/all"),
        ),
        (
            "_treehold/agent-state/_treehold/events/rows/acme/global/files/all",
            Some("acme//_treehold/events/rows/_treehold/agent-state/global/files/all"),
        ),
        ("acme/ada/_treehold/sessions/recent", None),
        ("acme//_treehold/sessions", None),
        ("_treehold/sessions/acme", Some("acme//_treehold/sessions")),
        ("_treehold/sessions/acme/ada/recent", Some("acme/ada/_treehold/sessions/recent")),
        ("_treehold/sessions/acme/ada/data/x/messages", Some("acme/ada/_treehold/sessions/data/x/messages")),
        ("_treehold/sessions/_treehold/history/acme/ada/memo", Some("acme/ada/_treehold/history/_treehold/sessions/memo")),
        ("_treehold/sessions/_treehold/events/rows/acme/ada/memo", Some("acme/ada/_treehold/events/rows/_treehold/sessions/memo")),
        ("_treehold/traces/acme", Some("acme//_treehold/traces")),
        ("_treehold/traces/a%2Fb/-/traces", Some("a%2Fb/-/_treehold/traces/traces")),
        ("_treehold/traces/acme/ada/data/x/run", Some("acme/ada/_treehold/traces/data/x/run")),
    ];

    fn namespace(text: &str) -> Namespace {
        Namespace::parse(text).expect("legal")
    }

    /// An index, which is derived from other rows.
    const INDEX: &str = "_treehold/sessions/_treehold/indexes/acme/ada/memo";

    /// A store whose commits fail from one on, without an effect, or where somebody else changes a row before that one.
    #[derive(Debug)]
    struct Failing {
        store: Arc<dyn Store>,
        commits_left: AtomicUsize,
        late: Option<Namespace>,
    }

    impl fmt::Display for Failing {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("failing")
        }
    }

    #[async_trait]
    impl Store for Failing {
        fn capabilities(&self) -> StoreCapabilities {
            self.store.capabilities()
        }

        fn extensions(&self) -> StoreExtensions<'_> {
            StoreExtensions::new()
        }

        async fn get(&self, namespace: &Namespace, key: &str) -> Result<Option<Item>> {
            self.store.get(namespace, key).await
        }

        async fn get_part(&self, namespace: &Namespace, key: &str, range: Range<u64>) -> Result<Option<ItemPart>> {
            self.store.get_part(namespace, key, range).await
        }

        async fn get_many(&self, namespace: &Namespace, keys: &[&str], with_values: bool) -> Result<Vec<Option<Item>>> {
            self.store.get_many(namespace, keys, with_values).await
        }

        async fn scan(&self, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
            self.store.scan(namespace, options).await
        }

        async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage> {
            self.store.namespaces(options).await
        }

        async fn commit(&self, batch: Batch) -> Result<Vec<Version>> {
            let left = self.commits_left.fetch_sub(1, Ordering::Relaxed);
            match &self.late {
                Some(late) if left == 1 => drop(self.store.commit(Batch::new().put(late, "0100", "late")).await?),
                Some(_) if left == 0 => self.commits_left.store(0, Ordering::Relaxed),
                None if left == 0 => {
                    self.commits_left.store(0, Ordering::Relaxed);
                    return Err(Error::new(ErrorKind::Unavailable, "the store is away").without_effect());
                }
                _ => {}
            }
            self.store.commit(batch).await
        }

        async fn current_version(&self, partition: &Partition) -> Result<Version> {
            self.store.current_version(partition).await
        }

        async fn watch(&self, namespace: &Namespace) -> Result<Watch> {
            self.store.watch(namespace).await
        }
    }

    /// Fills a store as the former version did, with more rows than one commit moves.
    async fn former() -> MemoryStore {
        let store = MemoryStore::new();
        store.commit(Batch::new().put(&namespace(INDEX), "root", "")).await.expect("put");
        for (text, _) in PLACES.iter().filter(|(text, _)| text.starts_with("_treehold")) {
            for number in 0..ROWS + 5 {
                store.commit(Batch::new().put_with_meta(&namespace(text), format!("{number:04}"), "meta", *text)).await.expect("put");
            }
        }
        store
    }

    async fn rows_in(store: &dyn Store, space: &Namespace) -> Vec<Item> {
        let (mut rows, mut options) = (Vec::new(), ScanOptions::new().with_values(true));
        loop {
            let page = store.scan(space, options.clone()).await.expect("scanned");
            rows.extend(page.entries.into_iter().filter_map(|entry| if let ScanEntry::Item(item) = entry { Some(item) } else { None }));
            match page.next {
                Some(next) => options.start_after = Some(next),
                None => return rows,
            }
        }
    }

    #[test]
    fn every_place_moves_once() {
        for (from, to) in PLACES {
            let place = |space: &Namespace| {
                let components: Vec<String> = space.components().map(Into::into).collect();
                user_place(&components.iter().map(String::as_str).collect::<Vec<_>>()).transpose().expect("legal")
            };
            assert_eq!(place(&namespace(from)), to.map(namespace), "{from}");
            if let Some(to) = to {
                assert_eq!(place(&namespace(to)), None, "{to} stays");
                assert!(crate::is_reserved(&namespace(to)));
            }
        }
    }

    #[tokio::test]
    async fn rows_move_with_their_versions_and_times() {
        let (store, untouched) = (former().await, former().await);
        let refused = check_user_rows(&store).await.expect_err("it has the former layout");
        assert!(OldLayout::is_source_of(&refused));
        let planned = move_user_rows(&store, &MigrateOptions::new().with_dry_run(true), &mut |_| {}).await.expect("planned");
        check_user_rows(&store).await.expect_err("nothing has moved");
        let mut told = Vec::new();
        let report = move_user_rows(&store, &MigrateOptions::new(), &mut |progress| told.push(progress)).await.expect("moved");
        assert_eq!(report.rows, planned.rows);
        let moved = PLACES.iter().filter(|(_, to)| to.is_some()).count() * (ROWS + 5);
        assert_eq!(report.rows_total() as usize, moved);
        assert_eq!(told.last().map(|at| (at.rows, at.rows_total)), Some((moved as u64, moved as u64)));
        for (from, to) in PLACES {
            let before = rows_in(&untouched, &namespace(from)).await;
            let now = rows_in(&store, &namespace(to.unwrap_or(from))).await;
            let facts = |rows: &[Item]| rows.iter().map(|row| (row.key.clone(), row.version, row.value.clone())).collect::<Vec<_>>();
            if to.is_some() || from.starts_with("_treehold") {
                assert_eq!(facts(&now), facts(&before), "{from}");
            }
            if to.is_some() {
                assert!(rows_in(&store, &namespace(from)).await.is_empty(), "{from}");
            }
        }
        assert!(rows_in(&store, &namespace(INDEX)).await.is_empty());
        check_user_rows(&store).await.expect("all has moved");
        assert_eq!(move_user_rows(&store, &MigrateOptions::new(), &mut |_| {}).await.expect("checked"), MigrateReport::up_to_date());
    }

    /// A move that is interrupted after any commit goes on.
    #[tokio::test]
    async fn interrupted_move_goes_on() {
        let whole = former().await;
        move_user_rows(&whole, &MigrateOptions::new(), &mut |_| {}).await.expect("moved");
        for commits in 0.. {
            let store: Arc<dyn Store> = Arc::new(former().await);
            let failing = Failing { store: store.clone(), commits_left: AtomicUsize::new(commits), late: None };
            let interrupted = move_user_rows(&failing, &MigrateOptions::new(), &mut |_| {}).await;
            let is_last = interrupted.is_ok();
            if !is_last {
                check_user_rows(&*store).await.expect_err("it is not complete");
                move_user_rows(&*store, &MigrateOptions::new(), &mut |_| {}).await.expect("it goes on");
            }
            for (from, to) in PLACES {
                let place = namespace(to.unwrap_or(from));
                assert_eq!(rows_in(&*store, &place).await.len(), rows_in(&whole, &place).await.len(), "{from} {commits}");
            }
            if is_last {
                assert!(commits > 20);
                return;
            }
        }
    }

    /// A server of the former version writes between any two steps of the move. Nothing that it wrote is lost.
    #[tokio::test]
    async fn row_that_is_written_meanwhile_is_not_lost() {
        let place = namespace("_treehold/sessions/acme/ada/recent");
        for commits in 1.. {
            let store: Arc<dyn Store> = Arc::new(former().await);
            let late = Failing { store: store.clone(), commits_left: AtomicUsize::new(commits), late: Some(place.clone()) };
            let moved = move_user_rows(&late, &MigrateOptions::new(), &mut |_| {}).await;
            if late.commits_left.load(Ordering::Relaxed) > 0 {
                assert!(commits > 20);
                return;
            }
            let new = namespace("acme/ada/_treehold/sessions/recent");
            let [before, after] = [store.get(&place, "0100").await, store.get(&new, "0100").await].map(|item| item.expect("read"));
            match moved {
                Ok(_) => assert_eq!((before, after.expect("moved").value), (None, "late".into()), "{commits}"),
                Err(error) => {
                    assert!([ErrorKind::Unavailable, ErrorKind::AlreadyExists].contains(&error.kind()), "{commits}: {error}");
                    assert_eq!(before.expect("it stays").value, "late", "{commits}");
                    let error = move_user_rows(&*store, &MigrateOptions::new(), &mut |_| {}).await.expect_err("there are two");
                    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
                }
            }
        }
    }

    #[tokio::test]
    async fn store_with_an_unfinished_copy_is_refused() {
        let store = former().await;
        store.commit(Batch::new().put(&Namespace::new(COPY).expect("legal"), "note", "")).await.expect("put");
        let error = move_user_rows(&store, &MigrateOptions::new(), &mut |_| {}).await.expect_err("the copy could not go on");
        assert_eq!(error.kind(), ErrorKind::Conflict);
    }

    #[tokio::test]
    async fn rows_that_were_written_after_the_update_are_not_replaced() {
        let store = former().await;
        let place = namespace("acme/ada/_treehold/sessions/recent");
        store.commit(Batch::new().put(&place, "0203", "new")).await.expect("put");
        let error = move_user_rows(&store, &MigrateOptions::new(), &mut |_| {}).await.expect_err("it would be lost");
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        assert_eq!(store.get(&place, "0203").await.expect("read").expect("there").value, "new");
        let former = store.get(&namespace("_treehold/sessions/acme/ada/recent"), "0203").await.expect("read");
        assert!(former.is_some(), "neither of the two is removed");
    }
}
