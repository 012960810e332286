//! The namespaces that parts of this crate keep their own rows in: one list, of what each holds and of what goes along when a store
//! is exported, imported or copied.
//!
//! No route has its files in one of them. What decides who gets in, or what a server answers, moves between stores only when it is
//! asked for by name ([`Withheld`]): an archive or another store is somebody else's word.

use super::Namespace;
use std::collections::BTreeSet;
use std::fmt;

/// The first component of the namespaces of threads: their checkpoints, bodies, calls and locks.
pub(crate) const THREADS: &str = "threads";

/// The first component of the namespaces of overlays.
pub(crate) const OVERLAYS: &str = "overlays";

/// The first component of the namespaces of an application's items.
pub(crate) const ITEMS: &str = "items";

/// The first component of the namespaces of events.
pub(crate) const EVENTS: &str = "events";

/// The first component of the namespaces of indexes.
pub(crate) const INDEXES: &str = "indexes";

/// The namespace of the note that a copy keeps in its target.
pub(crate) const COPY: [&str; 2] = ["stratafs", "copy"];

/// The first component of the namespaces of tokens.
pub(crate) const TOKENS: &str = "tokens";

/// The first component of the namespaces of answers to requests with an `Idempotency-Key`.
pub(crate) const ANSWERS: &str = "answers";

/// A namespace that no route has, with all that lies beneath it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reserved {
    /// Its components.
    pub components: &'static [&'static str],
    /// What is done there, for messages.
    pub purpose: &'static str,
    /// What its rows are.
    pub rows: ReservedRows,
}

/// What the rows of a reserved namespace are, which decides what goes along when a store is moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReservedRows {
    /// Data of users: exported, imported and copied as files are.
    Data,
    /// Made of other rows, and right only beside those: never exported or imported.
    Derived,
    /// A note about a copy under way, in its target: never exported, imported or copied.
    Note,
    /// Left out of exports, imports and copies unless it is asked for by name.
    Withheld(Withheld),
}

/// Every reserved namespace.
pub const RESERVED_NAMESPACES: &[Reserved] = &[
    // What was said and done, and what is restored from: without it a backup is none.
    Reserved { components: &[THREADS], purpose: "threads are saved", rows: ReservedRows::Data },
    // Changes of users that nobody has decided on yet.
    Reserved { components: &[OVERLAYS], purpose: "overlays are kept", rows: ReservedRows::Data },
    Reserved { components: &[ITEMS], purpose: "items are kept", rows: ReservedRows::Data },
    // Readers go on where they were, by numbers that have to stay.
    Reserved { components: &[EVENTS], purpose: "events are kept", rows: ReservedRows::Data },
    Reserved { components: &[INDEXES], purpose: "indexes are kept", rows: ReservedRows::Derived },
    Reserved { components: &COPY, purpose: "a copy of the store notes how far it is", rows: ReservedRows::Note },
    Reserved { components: &[TOKENS], purpose: "tokens are kept", rows: ReservedRows::Withheld(Withheld::Tokens) },
    Reserved { components: &[ANSWERS], purpose: "answers are kept", rows: ReservedRows::Withheld(Withheld::Answers) },
];

/// Rows that move between stores only when they are asked for by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Withheld {
    /// Answers to requests with an `Idempotency-Key`. A server sends them again to whoever repeats the key, they may hold files of any
    /// user, and they live for a day: of another server they are wrong.
    Answers,
    /// Access tokens, with the rights of each, and the key that signs questions of consent. Whoever's rows these are decides who gets in.
    Tokens,
}

impl Withheld {
    /// All of them.
    pub const ALL: &'static [Self] = &[Self::Answers, Self::Tokens];

    /// Returns its name: the first component of its namespaces.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Answers => ANSWERS,
            Self::Tokens => TOKENS,
        }
    }

    /// Returns the one that a name is of.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|withheld| withheld.as_str() == name)
    }

    /// Returns what its rows lie beneath.
    pub(crate) fn namespace(self) -> Namespace {
        Namespace::new([self.as_str()]).expect("a plain component")
    }

    /// Returns what the rows of a namespace are, if they are withheld.
    pub fn of(namespace: &Namespace) -> Option<Self> {
        Self::ALL.iter().copied().find(|withheld| namespace.starts_with(&withheld.namespace()))
    }
}

impl fmt::Display for Withheld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Returns the namespaces that are withheld unless they are included.
pub(super) fn withheld(included: &BTreeSet<Withheld>) -> impl Iterator<Item = Namespace> {
    Withheld::ALL.iter().filter(|withheld| !included.contains(withheld)).map(|withheld| withheld.namespace())
}

impl Reserved {
    /// Returns the reserved namespace that another is, or lies beneath.
    pub fn of(namespace: &Namespace) -> Option<&'static Self> {
        RESERVED_NAMESPACES.iter().find(|reserved| {
            let components = Namespace::new(reserved.components).expect("plain components");
            namespace.starts_with(&components)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_withheld_name_is_a_reserved_namespace() {
        for withheld in Withheld::ALL {
            let reserved = Reserved::of(&withheld.namespace()).expect("it is reserved");
            assert_eq!(reserved.rows, ReservedRows::Withheld(*withheld));
            assert_eq!(Withheld::parse(withheld.as_str()), Some(*withheld));
            let beneath = Namespace::new([withheld.as_str(), "x", "y"]).expect("legal");
            assert_eq!((Withheld::of(&beneath), Reserved::of(&beneath)), (Some(*withheld), Some(reserved)));
        }
        assert_eq!(Withheld::of(&Namespace::new(["tokens2"]).expect("legal")), None);
        assert_eq!(Withheld::of(&Namespace::new(["x", "tokens"]).expect("legal")), None);
        assert_eq!(Withheld::parse("threads"), None);
    }
}
