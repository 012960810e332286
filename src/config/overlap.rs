//! Stores at overlapping places. Two engines at one place, or a store within the directory of another, would damage each other's files.
//!
//! Names that lead to one store share it, so they do not overlap.

use super::protected::canonical;
use super::registry::Located;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// What to do about stores that overlap.
pub(super) const ADVICE: &str = "give each store a place of its own, or remove one and name the other in its place";

/// What SQLite appends to the name of a database for the files beside it.
const SUFFIXES: [&str; 3] = ["-journal", "-shm", "-wal"];

/// A store that overlaps another.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Overlap {
    /// The name of the store.
    pub(super) name: String,
    /// What is wrong.
    pub(super) message: String,
}

/// Returns the first store whose place overlaps that of an earlier one. Links are resolved. Stores on servers and in memory have no place.
pub(super) fn overlap(stores: impl IntoIterator<Item = (String, Located)>) -> Option<Overlap> {
    let mut places: Vec<(String, Place)> = Vec::new();
    for (name, located) in stores {
        let Some(place) = Place::of(&located) else { continue };
        let found = places.iter().find_map(|(other, taken)| Some((other, place.relation(taken)?)));
        if let Some((other, relation)) = found {
            let message = format!("the store `{name}` {relation} the store `{other}`");
            return Some(Overlap { name, message });
        }
        places.push((name, place));
    }
    None
}

/// Where an embedded store lies.
struct Place {
    path: PathBuf,
    engine: String,
    /// Whether it is a single file of SQLite.
    is_file: bool,
}

impl Place {
    fn of(located: &Located) -> Option<Self> {
        let path = canonical(located.path()?);
        Some(Self { path, engine: located.engine().to_owned(), is_file: located.sqlite_file().is_some() })
    }

    /// Returns how the place overlaps another one, which is not the same store.
    fn relation(&self, other: &Self) -> Option<&'static str> {
        if self.path == other.path {
            let is_same = self.engine == other.engine && self.is_file == other.is_file;
            return (!is_same).then_some("has the place of");
        }
        let relations = [
            (self.path.starts_with(&other.path), "lies within"),
            (other.path.starts_with(&self.path), "contains"),
            (other.keeps_beside(&self.path), "has the place of a file of"),
            (self.keeps_beside(&other.path), "keeps a file at the place of"),
        ];
        relations.into_iter().find_map(|(holds, relation)| holds.then_some(relation))
    }

    /// Returns whether a path is that of a file beside the database.
    fn keeps_beside(&self, path: &Path) -> bool {
        let beside = |suffix: &str| {
            let mut name = OsString::from(&self.path);
            name.push(suffix);
            PathBuf::from(name)
        };
        self.is_file && SUFFIXES.iter().any(|suffix| beside(suffix) == path)
    }
}
