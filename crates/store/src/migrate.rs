//! Migration of stores from the former layout to the present one: what the engines share.
//!
//! Until the product was renamed from `stratafs`, the program kept its own rows beside those of tenants, in `threads/…`, `tokens/…`
//! and so on. Now they lie below [`RESERVED_ROOT`]. Each engine marks the layout by its format number: an older
//! program refuses a migrated store, and this one refuses a store of the former layout with an error whose source is [`OldLayout`].
//! Each engine's migration is its own `migrate.rs`.

#[cfg(feature = "archive")]
use super::Namespace;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use treehold_core::error::{Error, ErrorKind};
use treehold_core::reserved::RESERVED_ROOT;

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

/// Returns the present namespace for a namespace of the former layout, as archives of that layout contain it.
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
}

impl MigrateReport {
    /// Makes the report for a store of the present layout.
    pub fn up_to_date() -> Self {
        Self { outcome: MigrateOutcome::UpToDate, rows: BTreeMap::new(), taken_from: None }
    }

    /// Makes the report for rows that moved or would move.
    pub fn of(options: &MigrateOptions, rows: BTreeMap<&'static str, u64>) -> Self {
        let outcome = if options.dry_run { MigrateOutcome::Planned } else { MigrateOutcome::Migrated };
        Self { outcome, rows, taken_from: None }
    }

    /// Sets where the store was found, if not at its present location.
    #[must_use]
    pub fn with_taken_from(mut self, taken_from: Option<String>) -> Self {
        self.taken_from = taken_from;
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
        // The notes of a copy are refused instead, and sessions, the states of agents, traces, the past of files and vectors were never
        // kept elsewhere.
        assert_eq!(MOVED.len() + 6, RESERVED_NAMESPACES.len());
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
