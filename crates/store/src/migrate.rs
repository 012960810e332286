//! Migration of stores from former layouts to the present one: what the engines share.
//!
//! 1. Until the product was renamed from `stratafs`, the program kept its own rows beside those of tenants, in `threads/…`, `tokens/…`
//!    and so on. In the second layout they lie below [`RESERVED_ROOT`].
//! 2. Until namespaces had [partitions](super::Partition), rows about a user's rows were apart from them, in
//!    `_treehold/threads/heads/acme/ada` and so on. In the third layout they are in the user's partition: [`partition_moves`].
//! 3. Sessions, traces and states of agents followed later, without another layout of an engine: [`move_user_rows`](super::move_user_rows).
//!
//! Each engine marks the layout by its format number: an older program refuses a migrated store, and this one refuses a store of a former
//! layout with an error whose source is [`OldLayout`]. Each engine's migration is its own `migrate.rs`, and takes one step after the other.

use super::faults::FAULTS_MAX;
use super::user_place::user_place;
use super::{Namespace, Partition, event_log};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use treehold_core::error::{Error, ErrorKind, ErrorRecord};
use treehold_core::escape::unescape;
use treehold_core::reserved::{
    COPY, EVENTS, HISTORY, INDEXES, ITEMS, OVERLAYS, RESERVED_NAMESPACES, RESERVED_ROOT, Reserved, VECTORS, beside,
};

/// The first components that move below the reserved root, in this order.
#[allow(dead_code, reason = "unused without engines and archives")]
pub const MOVED: [&str; 7] = ["threads", "overlays", "items", "events", "indexes", "tokens", "answers"];

/// The former name of the product, from which the default schema, prefixes and file names were derived.
pub const FORMER_NAME: &str = "stratafs";

/// The encoded namespace of the notes of an unfinished copy. A copy could not resume after its rows moved.
pub const FORMER_COPY: &str = "stratafs/copy/";

/// The prefix that encoded namespaces get.
pub const MOVED_TO: &str = "_treehold/";

/// The longest encoded namespace that can get the prefix.
pub const MOVABLE_BYTES_MAX: usize = 1024 - MOVED_TO.len();

/// Returns the namespace in the second layout for a namespace of the first, as archives of that layout contain it.
///
/// # Errors
/// The reason, if the present layout cannot contain the namespace.
#[cfg(feature = "archive")]
pub(crate) fn moved(namespace: Namespace) -> Result<Namespace, String> {
    let first = namespace.components().next().unwrap_or_default().into_owned();
    if first == RESERVED_ROOT {
        return Err(format!("the namespace lies below `{RESERVED_ROOT}`, which is reserved now"));
    }
    if !MOVED.contains(&first.as_str()) {
        return Ok(namespace);
    }
    let components = std::iter::once(RESERVED_ROOT.into()).chain(namespace.components());
    Namespace::new(components).map_err(|_| "the namespace is too long to move below the reserved root".to_owned())
}

/// Returns the present namespace for a namespace of the third layout, as archives contain it that were written before sessions, traces and
/// states of agents had moved.
///
/// # Errors
/// The reason, if the present layout cannot contain the namespace.
#[cfg(feature = "archive")]
pub(crate) fn moved_to_users(namespace: Namespace) -> Result<Namespace, String> {
    let components: Vec<String> = namespace.components().map(Into::into).collect();
    let parts: Vec<&str> = components.iter().map(String::as_str).collect();
    let place = user_place(&parts).unwrap_or(Ok(namespace));
    place.map_err(|_| "the namespace is too long to move to the partition of a user".to_owned())
}

/// Returns the present namespace for a namespace of the second layout, as archives of that layout contain it.
///
/// # Errors
/// The reason, if the present layout cannot contain the namespace.
#[cfg(feature = "archive")]
pub(crate) fn moved_to_partition(namespace: &Namespace) -> Result<Namespace, String> {
    let components: Vec<String> = namespace.components().map(Into::into).collect();
    let parts: Vec<&str> = components.iter().map(String::as_str).collect();
    if parts[0] != RESERVED_ROOT && parts.get(2) == Some(&RESERVED_ROOT) {
        return Err(format!("the namespace lies below `{RESERVED_ROOT}`, which is reserved now"));
    }
    partitioned(&parts, &LongLogs(HashMap::new())).map_err(|_| "the namespace is too long to move to a partition".to_owned())
}

/// Where the rows of a namespace of the second layout go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionMove {
    /// The text of the namespace in the second layout.
    pub from: String,
    /// Its [encoded](Namespace::encoded) form in the third; `None` for an index that has no room there. It is removed, and searches read
    /// all files until there is another one.
    pub to: Option<String>,
    /// What the rows are, for a report.
    pub rows: &'static str,
}

/// What [`PartitionMove::rows`] calls rows that are not those of this crate.
pub const OTHER_ROWS: &str = "others";

/// Returns the namespaces of the second layout that move to the third, of these texts of all namespaces in a store. A text that has moved
/// stays where it is, so an interrupted migration continues with what is left. `is_resumed` says that it is one.
///
/// # Errors
/// [`AlreadyExists`](ErrorKind::AlreadyExists) for rows in a place that is reserved now, [`Conflict`](ErrorKind::Conflict) for an
/// unfinished copy, [`TooLarge`](ErrorKind::TooLarge) for a namespace that becomes too long, and [`Corrupt`](ErrorKind::Corrupt) for a text
/// that is no namespace.
pub fn partition_moves(namespaces: &[String], is_resumed: bool) -> Result<Vec<PartitionMove>, Error> {
    let mut moves = Vec::new();
    let logs = LongLogs::of(namespaces);
    for from in namespaces {
        if from.contains("//") {
            if is_resumed {
                continue;
            }
            return Err(Error::new(ErrorKind::Corrupt, format!("the store holds rows in `{from}`, which is no namespace of its layout")));
        }
        let components = components_of(from).ok_or_else(|| {
            Error::new(ErrorKind::Corrupt, format!("the store holds rows in `{from}`, which is no namespace of its layout"))
        })?;
        let parts: Vec<&str> = components.iter().map(String::as_str).collect();
        if parts.starts_with(&COPY) {
            return Err(copy_is_unfinished());
        }
        if parts[0] != RESERVED_ROOT && parts.get(2) == Some(&RESERVED_ROOT) && !is_resumed {
            return Err(root_is_taken());
        }
        let kind = RESERVED_NAMESPACES.iter().find(|reserved| parts.starts_with(reserved.components));
        let rows = kind.map_or(OTHER_ROWS, Reserved::name);
        let to = match partitioned(&parts, &logs) {
            Ok(to) => Some(to.encoded().to_owned()),
            Err(_) if parts.starts_with(&INDEXES) => None,
            Err(error) => {
                let message = format!(
                    "the store holds rows in `{from}`, which would become too long; remove them with the version that wrote them, then migrate"
                );
                return Err(Error::new(ErrorKind::TooLarge, message).with_source(error).without_effect());
            }
        };
        if to.as_ref() != Some(from) {
            moves.push(PartitionMove { from: from.clone(), to, rows });
        }
    }
    // A log that is named by a hash moves while the rows that it is about still have the text that was hashed.
    moves.sort_by_key(|part| part.rows != EVENTS[1]);
    Ok(moves)
}

/// Returns the moves of [`partition_moves`], and those of namespaces that an engine lists without rows, such as that of a copy that has
/// finished. The latter never refuse a migration: an entry that cannot move is removed.
///
/// # Errors
/// As [`partition_moves`], for namespaces with rows.
#[allow(dead_code, reason = "unused without engines")]
pub fn partition_moves_with_listed(namespaces: &[String], listed: &[String], is_resumed: bool) -> Result<Vec<PartitionMove>, Error> {
    let mut moves = partition_moves(namespaces, is_resumed)?;
    let namespaces: HashSet<&String> = namespaces.iter().collect();
    for from in listed.iter().filter(|from| !namespaces.contains(from)) {
        match partition_moves(std::slice::from_ref(from), true) {
            Ok(part) => moves.extend(part),
            Err(_) => moves.push(PartitionMove { from: from.clone(), to: None, rows: OTHER_ROWS }),
        }
    }
    Ok(moves)
}

/// Returns the moves of [`partition_moves`] for a store of the first layout, as if its rows lay below the reserved root already. Each
/// `from` is the text that the store has now. An engine calls it before the first step, so that the second one is not refused after it.
///
/// # Errors
/// As [`partition_moves`].
#[allow(dead_code, reason = "unused without engines")]
pub fn partition_moves_of_first_layout(namespaces: &[String]) -> Result<Vec<PartitionMove>, Error> {
    let in_second = |text: &String| {
        let first = text.split('/').next().unwrap_or_default();
        match MOVED.contains(&first) {
            // A part of an index is removed.
            true if text.len() > MOVABLE_BYTES_MAX => None,
            true => Some((format!("{MOVED_TO}{text}"), text.clone())),
            false => Some((text.clone(), text.clone())),
        }
    };
    let now: HashMap<String, String> = namespaces.iter().filter_map(in_second).collect();
    let mut texts: Vec<String> = now.keys().cloned().collect();
    texts.sort_unstable();
    let moves = partition_moves(&texts, false)?;
    Ok(moves.into_iter().map(|part| PartitionMove { from: now[&part.from].clone(), ..part }).collect())
}

/// The numbers of rows that the steps of a migration move, by what the rows are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StepCounts {
    /// Those that move below the reserved root.
    pub first: BTreeMap<&'static str, u64>,
    /// Those that move to another partition.
    pub second: BTreeMap<&'static str, u64>,
}

#[allow(dead_code, reason = "unused without engines")]
impl StepCounts {
    /// Adds the rows of a namespace to the second step, unless they are removed.
    pub fn add(&mut self, part: &PartitionMove, rows: u64) {
        if part.to.is_some() && rows > 0 {
            *self.second.entry(part.rows).or_default() += rows;
        }
    }

    /// Returns the progress before the first step. A row that both steps move counts in each.
    pub fn progress(&self) -> MigrateProgress {
        MigrateProgress::new(self.first.values().chain(self.second.values()).sum())
    }

    /// Returns the numbers for a report. A row that both steps move counts once: each kind that the first step moves, it moves whole.
    pub fn into_rows(self) -> BTreeMap<&'static str, u64> {
        let mut rows = self.first;
        for (name, count) in self.second {
            let both = rows.entry(name).or_default();
            *both = count.max(*both);
        }
        rows
    }
}

/// Returns the components of a namespace's text in the second layout. The longest text of one component is no namespace any more.
fn components_of(text: &str) -> Option<Vec<String>> {
    let parts = text.strip_suffix('/')?.split('/');
    parts.map(|part| unescape(part).filter(|part| !part.is_empty()).map(Into::into)).collect()
}

/// Returns the namespace in the third layout of one in the second.
fn partitioned(parts: &[&str], logs: &LongLogs) -> Result<Namespace, Error> {
    let owned = |tenant: &str, user: &str, kind: &[&str]| Partition::new([tenant, user])?.namespace(kind);
    if let Some(place) = user_place(parts) {
        return place;
    }
    match parts {
        [RESERVED_ROOT, "threads", kind, tenant, user] => owned(tenant, user, &[RESERVED_ROOT, "threads", kind]),
        [RESERVED_ROOT, "vectors", tenant, user] => owned(tenant, user, &VECTORS),
        [RESERVED_ROOT, "items", tenant, user, name @ ..] => owned(tenant, user, &[&ITEMS[..], name].concat()),
        [RESERVED_ROOT, "history", of @ ..] if !of.is_empty() => beside(&partitioned(of, logs)?, HISTORY),
        [RESERVED_ROOT, "indexes", of @ ..] if !of.is_empty() => beside(&partitioned(of, logs)?, INDEXES),
        [RESERVED_ROOT, "overlays", of @ .., route] if !of.is_empty() => beside(&partitioned(of, logs)?, OVERLAYS)?.beneath([route]),
        [RESERVED_ROOT, "events", "rows", of] => match Namespace::parse(of) {
            Ok(of) => {
                let components: Vec<String> = of.components().map(Into::into).collect();
                let parts: Vec<&str> = components.iter().map(String::as_str).collect();
                Ok(event_log(&partitioned(&parts, logs)?))
            }
            Err(_) => Namespace::new(parts),
        },
        [RESERVED_ROOT, "events", "rows", "#", hash] => match logs.0.get(*hash) {
            Some(of) => Ok(event_log(&partitioned(&of.iter().map(String::as_str).collect::<Vec<_>>(), logs)?)),
            // Nothing is left of the rows, and the events expire.
            None => Namespace::new(parts),
        },
        _ => Namespace::new(parts),
    }
}

/// The components of the namespaces whose logs of events are named by a hash in the second layout.
struct LongLogs(HashMap<String, Vec<String>>);

impl LongLogs {
    /// The longest text that names a log in the second layout.
    const TEXT_BYTES_MAX: usize = 200;

    fn of(namespaces: &[String]) -> Self {
        let texts = namespaces.iter().map(|text| text.strip_suffix('/').unwrap_or(text));
        let long = texts.filter(|text| text.len() > Self::TEXT_BYTES_MAX);
        Self(
            long.filter_map(|text| {
                let components = Namespace::parse(text).ok()?.components().map(Into::into).collect();
                Some((blake3::hash(text.as_bytes()).to_hex().to_string(), components))
            })
            .collect(),
        )
    }
}

/// The command in messages, before the name of the store is known.
#[allow(dead_code, reason = "a build without engines has no such stores")]
pub const COMMAND: &str = "`treehold store migrate` with its name or URL";

/// The source of the error for a store of the former layout; see [`OldLayout::is_source_of`].
#[derive(Debug)]
pub struct OldLayout {
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl OldLayout {
    /// Returns whether a store was refused because of its layout.
    pub fn is_source_of(error: &Error) -> bool {
        let mut causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
        causes.any(|cause| cause.is::<Self>())
    }

    /// Makes the error for a store that needs a migration. `source` says where it is.
    pub fn error(source: Option<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        let message = format!("it has the layout of an earlier version; run {COMMAND}");
        Error::new(ErrorKind::Unsupported, message).with_source(Self { source }).without_effect()
    }
}

impl fmt::Display for OldLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the store has the layout of an earlier version")
    }
}

impl std::error::Error for OldLayout {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn std::error::Error + 'static))
    }
}

/// Options for migrating a store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct MigrateOptions {
    /// Whether to count the rows only, and change nothing. Default false.
    pub dry_run: bool,
}

impl MigrateOptions {
    /// Makes the default options.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether to count the rows only.
    #[must_use]
    pub fn with_dry_run(mut self, dry_run: bool) -> Self {
        self.dry_run = dry_run;
        self
    }
}

/// The progress of a migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct MigrateProgress {
    /// Rows moved so far.
    pub rows: u64,
    /// Rows to move in all.
    pub rows_total: u64,
}

impl MigrateProgress {
    /// Starts a migration of so many rows.
    pub fn new(rows_total: u64) -> Self {
        Self { rows: 0, rows_total }
    }
}

/// The outcome of a migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MigrateOutcome {
    /// The store has the present layout already.
    UpToDate,
    /// A dry run: the store needs a migration.
    Planned,
    /// The store was migrated.
    Migrated,
}

/// The report of a migration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MigrateReport {
    /// The outcome.
    pub outcome: MigrateOutcome,
    /// The rows that moved or would move, by their name below the reserved root. A resumed migration counts the remaining rows.
    pub rows: BTreeMap<&'static str, u64>,
    /// The former default location that the store was taken over from, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub taken_from: Option<String>,
    /// Why parts of the store, such as damaged partitions, were not migrated: the first 1,000. A later migration takes them up.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<ErrorRecord>,
    /// How many such parts there are.
    #[serde(skip_serializing_if = "crate::faults::is_zero")]
    pub faults_count: u64,
}

impl MigrateReport {
    /// Makes the report for a store of the present layout.
    pub fn up_to_date() -> Self {
        Self { outcome: MigrateOutcome::UpToDate, rows: BTreeMap::new(), taken_from: None, faults: Vec::new(), faults_count: 0 }
    }

    /// Makes the report for rows that moved or would move.
    pub fn of(options: &MigrateOptions, rows: BTreeMap<&'static str, u64>) -> Self {
        let outcome = if options.dry_run { MigrateOutcome::Planned } else { MigrateOutcome::Migrated };
        Self { outcome, rows, ..Self::up_to_date() }
    }

    /// Sets where the store was found, if not at its present location.
    #[must_use]
    pub fn with_taken_from(mut self, taken_from: Option<String>) -> Self {
        self.taken_from = taken_from;
        self
    }

    /// Adds the reason why a part of the store was not migrated, unless one with the same message is there.
    pub fn add_fault(&mut self, fault: &Error) {
        if self.faults.iter().any(|known| known.message == fault.message()) {
            return;
        }
        self.faults_count += 1;
        if self.faults.len() < FAULTS_MAX {
            self.faults.push(ErrorRecord::from(fault));
        }
    }

    /// Returns the report of two steps. A row that both moved counts in each, and so does a part that both could not migrate.
    #[must_use]
    pub fn and(mut self, mut next: Self) -> Self {
        self.faults.append(&mut next.faults);
        self.faults.truncate(FAULTS_MAX);
        self.faults_count += next.faults_count;
        if self.outcome == MigrateOutcome::UpToDate {
            return Self { faults: self.faults, faults_count: self.faults_count, ..next };
        }
        for (name, rows) in next.rows {
            *self.rows.entry(name).or_default() += rows;
        }
        self
    }

    /// Returns the number of all rows.
    pub fn rows_total(&self) -> u64 {
        self.rows.values().sum()
    }
}

/// Receives the progress of a migration.
pub type TellMigrate<'t> = &'t mut (dyn FnMut(MigrateProgress) + Send);

/// Makes the error for a store with an unfinished copy.
pub fn copy_is_unfinished() -> Error {
    let message =
        "the store holds an unfinished copy, which could not resume; finish the copy with the version that began it, then migrate";
    Error::new(ErrorKind::Conflict, message).without_effect()
}

/// Makes the error for a store of the former layout that has rows below the reserved root.
pub fn root_is_taken() -> Error {
    let message = format!(
        "the store holds rows below `{RESERVED_ROOT}`, which is reserved; move them elsewhere with the version that wrote them, then migrate"
    );
    Error::new(ErrorKind::AlreadyExists, message).without_effect()
}

/// Makes the error for rows whose namespace would become too long.
pub fn too_long() -> Error {
    let message = format!(
        "the store holds reserved rows whose namespace is over {MOVABLE_BYTES_MAX} bytes, too long to move below `{RESERVED_ROOT}`; \
         remove them with the version that wrote them, then migrate"
    );
    Error::new(ErrorKind::TooLarge, message).without_effect()
}

/// Makes the error for a store that other processes have open.
pub fn in_use() -> Error {
    let message = "other processes use the store; stop every server and command that has it open, then migrate";
    Error::new(ErrorKind::Unavailable, message).without_effect()
}

/// Returns the bounds of the encoded namespaces below a first component: the first included, the second excluded.
pub fn range_of(name: &str) -> (String, String) {
    // `0` follows `/`.
    (format!("{name}/"), format!("{name}0"))
}

#[cfg(test)]
mod tests {
    use super::super::RESERVED_NAMESPACES;
    use super::*;

    #[test]
    fn every_name_that_moved_is_reserved() {
        for name in MOVED {
            assert!(RESERVED_NAMESPACES.iter().any(|reserved| reserved.name() == name), "{name}");
        }
        // The notes of a copy are refused instead, and sessions, the states of agents, traces, the past of files and vectors, also those of
        // items, were never kept elsewhere.
        assert_eq!(MOVED.len() + 7, RESERVED_NAMESPACES.len());
    }

    #[test]
    fn rows_about_a_user_move_to_the_partition_of_the_user() {
        let long = format!("acme/ada/{}", "x".repeat(300));
        let hash = blake3::hash(long.as_bytes()).to_hex();
        let deep = vec!["d"; 15].join("/");
        for (from, to, rows) in [
            ("notes/", "notes//", "others"),
            ("acme/ada/notes/", "acme/ada/notes/", "others"),
            ("_treehold/threads/heads/acme/ada/", "acme/ada/_treehold/threads/heads/", "threads"),
            ("_treehold/threads/heads/-/-/", "-/-/_treehold/threads/heads/", "threads"),
            ("_treehold/threads/retention/", "_treehold/threads/retention/", "threads"),
            ("_treehold/vectors/-/ada/", "-/ada/_treehold/vectors/", "vectors"),
            ("_treehold/items/acme/ada/tasks/done/", "acme/ada/_treehold/items/tasks/done/", "items"),
            ("_treehold/history/acme/ada/notes/", "acme/ada/_treehold/history/notes/", "history"),
            ("_treehold/history/notes/", "notes//_treehold/history/", "history"),
            ("_treehold/indexes/_treehold/sessions/t/u/memo/", "t/u/_treehold/indexes/_treehold/sessions/memo/", "indexes"),
            ("_treehold/indexes/_treehold/overlays/t/u/%2Fw/", "t/u/_treehold/indexes/_treehold/overlays/%2Fw/", "indexes"),
            ("_treehold/overlays/acme/ada/%2Fworkspace/", "acme/ada/_treehold/overlays/%2Fworkspace/", "overlays"),
            ("_treehold/events/rows/acme%2Fada%2Fnotes/", "acme/ada/_treehold/events/rows/notes/", "events"),
            ("_treehold/events/rows/notes/", "notes//_treehold/events/rows/", "events"),
            (&format!("_treehold/events/rows/#/{hash}/"), &format!("acme/ada/_treehold/events/rows/{}/", "x".repeat(300)), "events"),
            ("_treehold/events/rows/#/00/", "_treehold/events/rows/#/00/", "events"),
            ("_treehold/events/directory/%2Fsrv/", "_treehold/events/directory/%2Fsrv/", "events"),
            ("_treehold/sessions/acme/ada/recent/", "acme/ada/_treehold/sessions/recent/", "sessions"),
            ("_treehold/sessions/acme/", "acme//_treehold/sessions/", "sessions"),
            ("_treehold/sessions/_treehold/removals/", "_treehold/sessions/_treehold/removals/", "sessions"),
            ("_treehold/history/_treehold/sessions/t/u/memo/", "t/u/_treehold/history/_treehold/sessions/memo/", "history"),
            ("_treehold/traces/acme/ada/traces/", "acme/ada/_treehold/traces/traces/", "traces"),
            ("_treehold/tokens/used/", "_treehold/tokens/used/", "tokens"),
            (&format!("_treehold/indexes/{deep}/"), &format!("d/d/_treehold/indexes/{}/", vec!["d"; 13].join("/")), "indexes"),
        ] {
            let all = [from.to_owned(), format!("{long}/")];
            let moves = partition_moves(&all, false).expect("they move");
            let expected = PartitionMove { from: from.to_owned(), to: Some(to.to_owned()), rows };
            assert_eq!(moves, if from == to { Vec::new() } else { vec![expected] });
            assert_eq!(partition_moves(&[to.to_owned()], true).expect("it has moved"), [], "{to} stays");
            assert_eq!(Namespace::from_encoded(to).expect("a namespace").encoded(), to);
        }
        let too_long = format!("_treehold/indexes/{}/", "y".repeat(1_005));
        assert_eq!(partition_moves(std::slice::from_ref(&too_long), false).expect("it is dropped")[0].to, None);
        for (name, kind) in [
            ("acme/ada/_treehold/", ErrorKind::AlreadyExists),
            ("_treehold/copy/", ErrorKind::Conflict),
            (&format!("{}/", "n".repeat(1_023)), ErrorKind::TooLarge),
            ("a//b/", ErrorKind::Corrupt),
            ("", ErrorKind::Corrupt),
        ] {
            assert_eq!(partition_moves(&[name.to_owned()], false).expect_err(name).kind(), kind, "{name}");
        }
    }

    #[test]
    fn logs_named_by_hashes_move_before_the_rows_that_they_are_about() {
        let long = "n".repeat(300);
        let log = format!("_treehold/events/rows/#/{}/", blake3::hash(long.as_bytes()).to_hex());
        let moves = partition_moves(&[format!("A{long}/"), format!("{long}/"), log.clone()], false).expect("they move");
        assert_eq!((moves[0].from.as_str(), moves.len()), (log.as_str(), 3));
        assert_eq!(moves[0].to.as_deref(), Some(event_log(&Namespace::new([&long]).expect("legal")).encoded()));
    }

    #[test]
    fn listed_namespace_without_rows_never_refuses_a_migration() {
        let listed = ["a/b/", "done/", "_treehold/copy/", "a/b/_treehold/x/", "x//"].map(str::to_owned);
        let listed = [&listed[..], &[format!("{}/", "n".repeat(1_023))]].concat();
        let found = partition_moves_with_listed(&["done/".to_owned()], &listed, false).expect("nothing refuses it");
        let found: Vec<_> = found.iter().map(|part| (part.from.as_str(), part.to.as_deref())).collect();
        assert_eq!(found, [("done/", Some("done//")), ("_treehold/copy/", None), (listed[5].as_str(), None)]);
    }

    #[test]
    fn plan_for_the_first_layout_has_its_texts() {
        let texts = ["notes/", "acme/ada/notes/", "threads/heads/acme/ada/", "tokens/used/"].map(str::to_owned);
        let found = partition_moves_of_first_layout(&texts).expect("they move");
        let expected = [("threads/heads/acme/ada/", "acme/ada/_treehold/threads/heads/", "threads"), ("notes/", "notes//", "others")];
        let expected = expected.map(|(from, to, rows)| PartitionMove { from: from.to_owned(), to: Some(to.to_owned()), rows });
        assert_eq!(found, expected);
        let long = format!("indexes/{}/", "y".repeat(1_010));
        assert_eq!(partition_moves_of_first_layout(&[long]).expect("the first step removes it"), []);
    }

    #[test]
    fn row_that_both_steps_move_counts_once_in_the_report() {
        let part = |rows, to: Option<&str>| PartitionMove { from: "x/".to_owned(), to: to.map(str::to_owned), rows };
        let mut counts = StepCounts { first: BTreeMap::from([("threads", 5), ("tokens", 1)]), ..StepCounts::default() };
        for (rows, to, count) in [("threads", Some("a/b/"), 3), ("threads", Some("a/c/"), 1), ("others", Some("x//"), 2)] {
            counts.add(&part(rows, to), count);
        }
        counts.add(&part("indexes", None), 9);
        counts.add(&part("items", Some("a/b/")), 0);
        assert_eq!(counts.progress().rows_total, 12);
        assert_eq!(counts.into_rows(), BTreeMap::from([("others", 2), ("threads", 5), ("tokens", 1)]));
    }

    #[test]
    fn old_layout_is_found_among_sources() {
        let error = OldLayout::error(None);
        assert!(OldLayout::is_source_of(&error) && error.message().contains("treehold store migrate"));
        let wrapped = Error::new(ErrorKind::Unavailable, "the route cannot be opened").with_source(error);
        assert!(OldLayout::is_source_of(&wrapped));
        assert!(!OldLayout::is_source_of(&Error::unsupported("something else")));
    }

    #[cfg(feature = "archive")]
    #[test]
    fn reserved_names_of_the_earlier_layout_move_beneath_the_root() {
        let moved = |text: &str| moved(Namespace::parse(text).expect("legal")).map(|namespace| namespace.to_string());
        assert_eq!(moved("threads/heads/a/b").as_deref(), Ok("_treehold/threads/heads/a/b"));
        assert_eq!(moved("tokens").as_deref(), Ok("_treehold/tokens"));
        assert_eq!(moved("threads2/x").as_deref(), Ok("threads2/x"));
        assert_eq!(moved("acme/threads").as_deref(), Ok("acme/threads"));
        assert!(moved("_treehold/x").is_err());
        assert!(moved(&format!("tokens/{}", "x".repeat(1_015))).is_err());
    }
}
