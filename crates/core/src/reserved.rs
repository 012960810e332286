//! The reserved root and the namespaces below it.
//!
//! All rows that this crate keeps for itself are below the namespace component [`RESERVED_ROOT`]. No route, scope or request reaches it:
//! [`refuse_reserved`] and [`Scope::validate`](crate::scope::Scope::validate) refuse it in every build, whichever features are compiled in.
//! [`RESERVED_NAMESPACES`] lists these namespaces, and how an export, import or copy treats each.
//!
//! Rows that decide who has access, or what a server answers, move between stores only on explicit request ([`Withheld`]): an archive or
//! another store is not trusted with them.

use crate::error::{Error, Result};
use crate::namespace::Namespace;
use std::borrow::Cow;
use std::fmt;

pub use crate::namespace::RESERVED_ROOT;

/// Threads: their checkpoints, bodies, calls and locks.
pub const THREADS: [&str; 2] = [RESERVED_ROOT, "threads"];

/// Sessions of agent hosts: their messages, events, traces, orchestration and memory documents.
pub const SESSIONS: [&str; 2] = [RESERVED_ROOT, "sessions"];

/// The states of agents, and what their runtimes share: locks, queues, logs and items.
pub const AGENT_STATE: [&str; 2] = [RESERVED_ROOT, "agent-state"];

/// Traces of agents: their messages, goals and events.
pub const TRACES: [&str; 2] = [RESERVED_ROOT, "traces"];

/// Overlays.
pub const OVERLAYS: [&str; 2] = [RESERVED_ROOT, "overlays"];

/// JSON items of applications.
pub const ITEMS: [&str; 2] = [RESERVED_ROOT, "items"];

/// Events.
pub const EVENTS: [&str; 2] = [RESERVED_ROOT, "events"];

/// The past of files.
pub const HISTORY: [&str; 2] = [RESERVED_ROOT, "history"];

/// Vectors of passages, for search by meaning.
pub const VECTORS: [&str; 2] = [RESERVED_ROOT, "vectors"];

/// Vectors of the items of LangGraph's store, for search by meaning. Each lies beside its item.
pub const ITEM_VECTORS: [&str; 2] = [RESERVED_ROOT, "item-vectors"];

/// Indexes.
pub const INDEXES: [&str; 2] = [RESERVED_ROOT, "indexes"];

/// The note of a copy in its target.
pub const COPY: [&str; 2] = [RESERVED_ROOT, "copy"];

/// Access tokens.
pub const TOKENS: [&str; 2] = [RESERVED_ROOT, "tokens"];

/// Answers to requests with an `Idempotency-Key`.
pub const ANSWERS: [&str; 2] = [RESERVED_ROOT, "answers"];

/// A namespace below [`RESERVED_ROOT`], with everything beneath it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reserved {
    /// Its components.
    pub components: &'static [&'static str],
    /// Its purpose, for messages.
    pub purpose: &'static str,
    /// The kind of its rows.
    pub rows: ReservedRows,
}

/// The kind of rows in a reserved namespace, which decides whether they move with a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReservedRows {
    /// User data: exported, imported and copied like files.
    Data,
    /// Derived from other rows, and valid only beside those: never exported or imported.
    Derived,
    /// A note about an unfinished copy, in its target: never exported, imported or copied.
    Note,
    /// Left out of exports, imports and copies unless explicitly included.
    Withheld(Withheld),
}

/// Every reserved namespace.
pub const RESERVED_NAMESPACES: &[Reserved] = &[
    // A backup without the history of threads would be incomplete.
    Reserved { components: &THREADS, purpose: "threads are saved", rows: ReservedRows::Data },
    // A backup without conversations would be incomplete.
    Reserved { components: &SESSIONS, purpose: "sessions are kept", rows: ReservedRows::Data },
    // An agent without its state has forgotten the conversation.
    Reserved { components: &AGENT_STATE, purpose: "agent states are kept", rows: ReservedRows::Data },
    // A device that keeps the id of a trace expects to find it later.
    Reserved { components: &TRACES, purpose: "traces are kept", rows: ReservedRows::Data },
    // Changes that users have neither applied nor discarded.
    Reserved { components: &OVERLAYS, purpose: "overlays are kept", rows: ReservedRows::Data },
    Reserved { components: &ITEMS, purpose: "items are kept", rows: ReservedRows::Data },
    // Readers resume by event numbers, which must not change.
    Reserved { components: &EVENTS, purpose: "events are kept", rows: ReservedRows::Data },
    // What undo restores.
    Reserved { components: &HISTORY, purpose: "the past of files is kept", rows: ReservedRows::Data },
    // Another store would have to ask the model for each of them again.
    Reserved { components: &VECTORS, purpose: "vectors for search by meaning are kept", rows: ReservedRows::Data },
    Reserved { components: &ITEM_VECTORS, purpose: "vectors of items are kept", rows: ReservedRows::Data },
    Reserved { components: &INDEXES, purpose: "indexes are kept", rows: ReservedRows::Derived },
    Reserved { components: &COPY, purpose: "a copy of the store records its progress", rows: ReservedRows::Note },
    Reserved { components: &TOKENS, purpose: "tokens are kept", rows: ReservedRows::Withheld(Withheld::Tokens) },
    Reserved { components: &ANSWERS, purpose: "answers are kept", rows: ReservedRows::Withheld(Withheld::Answers) },
];

/// Rows that move between stores only on explicit request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Withheld {
    /// Answers to requests with an `Idempotency-Key`. A server sends them again to anyone who repeats the key, they may hold files of any
    /// user, and they expire after a day. Another server's answers would be wrong.
    Answers,
    /// Access tokens with their rights, and the key that signs consent questions. Whoever writes these rows decides who has access.
    Tokens,
}

impl Withheld {
    /// All of them.
    pub const ALL: &'static [Self] = &[Self::Answers, Self::Tokens];

    /// Returns its name: the component beneath [`RESERVED_ROOT`].
    pub const fn as_str(self) -> &'static str {
        self.components()[1]
    }

    const fn components(self) -> [&'static str; 2] {
        match self {
            Self::Answers => ANSWERS,
            Self::Tokens => TOKENS,
        }
    }

    /// Returns the kind with a name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|withheld| withheld.as_str() == name)
    }

    /// Returns the kind of a namespace's rows, if they are withheld.
    pub fn of(namespace: &Namespace) -> Option<Self> {
        let is_at = |withheld: &Self| {
            namespace.components().take(2).eq(withheld.components()) || namespace.name().take(2).eq(withheld.components())
        };
        Self::ALL.iter().copied().find(is_at)
    }
}

impl fmt::Display for Withheld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Reserved {
    /// Returns the reserved namespace that equals another or contains it.
    pub fn of(namespace: &Namespace) -> Option<&'static Self> {
        RESERVED_NAMESPACES.iter().find(|reserved| reserved_path(namespace).take(2).eq(reserved.components.iter().copied()))
    }

    /// Returns its name: the component beneath [`RESERVED_ROOT`].
    pub fn name(&self) -> &'static str {
        self.components[1]
    }
}

/// Returns whether a namespace is the reserved root or below it, in a partition of this crate or in that of a user.
pub fn is_reserved(namespace: &Namespace) -> bool {
    reserved_path(namespace).next().is_some()
}

/// Returns the components of a namespace from the reserved root on; none for one that is not reserved. In a partition of this crate, rows
/// [beside] others have the root twice, and the second counts.
pub fn reserved_path(namespace: &Namespace) -> impl Iterator<Item = Cow<'_, str>> {
    let name: Vec<_> = namespace.name().take(2).collect();
    let is_own = namespace.components().next().is_some_and(|first| first == RESERVED_ROOT);
    let is_listed = |kind: &Reserved| name.iter().eq(kind.components.iter());
    let all = namespace.components().count();
    let before = match name.first() {
        Some(root) if root == RESERVED_ROOT && (!is_own || RESERVED_NAMESPACES.iter().any(is_listed)) => all - namespace.name().count(),
        _ if is_own => 0,
        _ => all,
    };
    namespace.components().skip(before)
}

/// Returns a namespace that no rows have, after all reserved ones of its partition, or after all partitions of this crate if it is in one of
/// those. A listing continues from it to pass over them; a user has several for each session.
pub fn after_reserved(namespace: &Namespace) -> Option<Namespace> {
    let last = char::MAX.to_string();
    match namespace.components().next() {
        _ if !is_reserved(namespace) => None,
        Some(first) if first == RESERVED_ROOT => Namespace::new([RESERVED_ROOT, &last]).ok(),
        _ => namespace.partition().namespace([RESERVED_ROOT, &last]).ok(),
    }
}

/// Returns the namespace of rows that this crate keeps about those of another, such as their [`HISTORY`]. It is in the same partition, so
/// that both change together. [`subject_of`] is the reverse.
///
/// # Errors
/// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) for a namespace that has no room for the components.
pub fn beside(namespace: &Namespace, kind: [&str; 2]) -> Result<Namespace> {
    let name: Vec<String> = namespace.name().map(Cow::into_owned).collect();
    namespace.partition().namespace(kind.into_iter().map(str::to_owned).chain(name))
}

/// Refuses the reserved root and everything below it. For namespaces that a caller names.
///
/// # Errors
/// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument).
///
/// # Examples
/// ```
/// use treehold_core::Namespace;
/// use treehold_core::reserved::refuse_reserved;
///
/// assert!(refuse_reserved(&Namespace::parse("acme/ada/memories")?).is_ok());
/// assert!(refuse_reserved(&Namespace::parse("_treehold/tokens")?).is_err());
/// # Ok::<(), treehold_core::Error>(())
/// ```
pub fn refuse_reserved(namespace: &Namespace) -> Result<()> {
    if !is_reserved(namespace) {
        return Ok(());
    }
    let purpose = Reserved::of(namespace).map_or("treehold keeps its own rows", |reserved| reserved.purpose);
    Err(Error::invalid_argument(format!(
        "the namespace `{namespace}` is where {purpose}; `{RESERVED_ROOT}` is reserved, start with another component"
    )))
}

/// Returns the namespace that another one is [beside], for this kind.
pub fn subject_of(namespace: &Namespace, kind: [&str; 2]) -> Option<Namespace> {
    let name: Vec<_> = namespace.name().collect();
    let about = name.get(kind.len()..).filter(|_| name.iter().take(kind.len()).eq(kind.iter()))?;
    namespace.partition().namespace(about).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scope::{NamespaceTemplate, Scope, ScopeField};

    #[test]
    fn every_withheld_name_is_a_reserved_namespace() {
        for withheld in Withheld::ALL {
            let namespace = Namespace::new(withheld.components()).expect("legal");
            let reserved = Reserved::of(&namespace).expect("it is reserved");
            assert_eq!(reserved.rows, ReservedRows::Withheld(*withheld));
            assert_eq!((Withheld::parse(withheld.as_str()), reserved.name()), (Some(*withheld), withheld.as_str()));
            let beneath = Namespace::new([RESERVED_ROOT, withheld.as_str(), "x", "y"]).expect("legal");
            assert_eq!((Withheld::of(&beneath), Reserved::of(&beneath)), (Some(*withheld), Some(reserved)));
            for place in ["t/u", "t/"] {
                let beside = Namespace::parse(&format!("{place}/{RESERVED_ROOT}/{withheld}/x")).expect("legal");
                assert_eq!((Withheld::of(&beside), Reserved::of(&beside)), (Some(*withheld), Some(reserved)), "{beside}");
            }
        }
        assert_eq!(Withheld::of(&Namespace::new([RESERVED_ROOT, "tokens2"]).expect("legal")), None);
        assert_eq!(Withheld::of(&Namespace::new(["tokens"]).expect("legal")), None);
        assert_eq!(Withheld::parse("threads"), None);
    }

    #[test]
    fn every_reserved_namespace_lies_beneath_the_root() {
        for reserved in RESERVED_NAMESPACES {
            assert_eq!((reserved.components.len(), reserved.components[0]), (2, RESERVED_ROOT), "{reserved:?}");
            let namespace = Namespace::new(reserved.components).expect("legal");
            let message = refuse_reserved(&namespace).expect_err("it is reserved").message().to_owned();
            assert!(message.contains(reserved.purpose), "{message}");
        }
        for beside in ["_treehold", "acme/ada/_treehold/history", "acme//_treehold/tokens", "acme/ada/_treehold"] {
            assert!(refuse_reserved(&Namespace::parse(beside).expect("legal")).is_err(), "{beside}");
        }
        for free in ["threads/heads", "tokens", "x/_treehold", "x/y/z/_treehold", "_treehold2", "_Treehold"] {
            assert!(refuse_reserved(&Namespace::parse(free).expect("legal")).is_ok(), "{free}");
        }
    }

    #[test]
    fn listing_passes_over_reserved_namespaces() {
        for (reserved, before, after) in [
            ("acme/ada/_treehold/sessions/data/x", "acme/ada/_treehold/zzz/zzz", "acme/ada/a"),
            ("acme//_treehold/sessions", "acme//_treehold/traces", "acme//a"),
            ("_treehold/sessions", "_treehold/traces/_treehold/removals", "a"),
        ] {
            let [reserved, before, after] = [reserved, before, after].map(|text| Namespace::parse(text).expect("legal"));
            let end = after_reserved(&reserved).expect("it is reserved");
            assert!(reserved < end && before < end && end < after, "{end}");
        }
        assert_eq!(after_reserved(&Namespace::parse("acme/ada/memories").expect("legal")), None);
    }

    #[test]
    fn rows_about_others_lie_beside_them() {
        for text in ["notes", "acme/ada", "acme/ada/notes", "acme//shared", "_treehold/sessions/acme/ada/memo", "_treehold/sessions"] {
            let namespace = Namespace::parse(text).expect("legal");
            for kind in [HISTORY, INDEXES, OVERLAYS] {
                let beside = beside(&namespace, kind).expect("legal");
                assert!(beside.shares_partition(&namespace) && is_reserved(&beside), "{beside}");
                assert_eq!(Reserved::of(&beside).expect("reserved").components, kind, "{beside}");
                assert_eq!(subject_of(&beside, kind).as_ref(), Some(&namespace));
                assert_eq!(subject_of(&namespace, kind), None);
            }
        }
        let removals = Namespace::parse("_treehold/sessions/_treehold/removals").expect("legal");
        assert_eq!(Reserved::of(&removals).expect("reserved").components, SESSIONS);
    }

    /// Returns every reserved namespace, and one below each.
    fn reserved_texts() -> impl Iterator<Item = String> {
        let listed = RESERVED_NAMESPACES.iter().map(|reserved| reserved.components.join("/"));
        let roots = [RESERVED_ROOT.to_owned(), format!("{RESERVED_ROOT}/of-a-later-version")];
        roots.into_iter().chain(listed).flat_map(|text| [format!("{text}/x"), text])
    }

    #[test]
    fn templates_that_name_the_reserved_root_are_refused_when_parsed() {
        for text in reserved_texts() {
            assert!(NamespaceTemplate::parse(&text).is_err(), "{text}");
            assert!(NamespaceTemplate::parse(&format!("{text}/{{user}}")).is_err(), "{text}");
            assert!(NamespaceTemplate::parse(&format!("x/{text}")).is_ok(), "{text}");
        }
    }

    #[test]
    fn templates_that_scopes_fill_to_the_reserved_root_are_refused() {
        for field in ScopeField::ALL {
            let named = |id: &str| match field {
                ScopeField::Tenant => Scope::new().with_tenant(id),
                ScopeField::User => Scope::new().with_user(id),
                ScopeField::Agent => Scope::new().with_agent(id),
                ScopeField::Thread => Scope::new().with_thread(id),
            };
            let error = named(RESERVED_ROOT).validate().expect_err("no id is the reserved root");
            assert!(error.message().contains(&format!("the {field} id")), "{error}");
            let fill = |text: String, id: &str| NamespaceTemplate::parse(&text).expect("legal").fill(&named(id));
            assert!(fill(format!("{{{field}}}/tokens"), RESERVED_ROOT).is_err());
            // The component is assembled from several parts.
            assert!(fill(format!("_tree{{{field}}}/tokens"), "hold").is_err());
            assert!(fill(format!("{{{field}}}hold/tokens"), "_tree").is_err());
            assert!(fill(format!("{{{field}}}/tokens"), "_treehold/tokens").is_ok(), "one component, escaped");
        }
    }

    /// Regression: a build without `serve` mapped the rows of tokens as files, because the guard was compiled only with the server.
    #[test]
    fn guard_depends_on_no_feature() {
        let manifest = include_str!("../Cargo.toml");
        let features = manifest
            .split("[features]")
            .nth(1)
            .and_then(|rest| {
                rest.split(
                    "
[",
                )
                .next()
            })
            .expect("a section");
        let names: Vec<_> = features.lines().filter_map(|line| line.split_once(" = ")).map(|(name, _)| name).collect();
        assert_eq!(names, ["testing"], "no feature may remove the guard");
        assert!(!include_str!("reserved.rs").split("#[cfg(test)]").next().expect("code").contains("cfg("));
    }
}
