//! Namespaces and the partitions that they lie in: ordered components, escaped, compared as whole components.

use super::escape::{escape, unescape};
use crate::error::{Error, ErrorKind, Result};
use serde::Serialize;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// The first component of every namespace that holds this crate's own rows.
pub const RESERVED_ROOT: &str = "_treehold";

/// The most components in a namespace, not counting the reserved root.
pub const NAMESPACE_COMPONENTS_MAX: usize = 16;

/// How many of a namespace's first components name its partition, unless it is built with another one.
const PARTITION_COMPONENTS: usize = 2;

/// A part of a store whose rows can change together. Every namespace lies in exactly one partition.
///
/// A partition is named by a tenant and a user, so that all rows of a user form one range of keys. A partition with one component belongs to
/// a tenant, or to everybody. A batch checks and changes rows of one partition, and versions are ordered within one. Stores list namespaces by
/// partition and name.
///
/// ```
/// use treehold_core::{Namespace, Partition};
///
/// let ada = Partition::new(["acme", "ada"])?;
/// assert_eq!(Namespace::new(["acme", "ada", "memories"])?.partition(), ada);
/// assert_eq!(ada.namespace(["memories"])?, Namespace::new(["acme", "ada", "memories"])?);
/// // The same components in the partition of the tenant are another namespace, which `//` shows.
/// let shared = Partition::new(["acme"])?.namespace(["ada", "memories"])?;
/// assert_eq!(shared.to_string(), "acme//ada/memories");
/// # Ok::<(), treehold_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Partition {
    /// Two escaped components, each followed by `/`, of which the second may be empty. So no partition's text starts with another's.
    encoded: Arc<str>,
}

impl Partition {
    /// Names a partition by one or two components.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for no components, an empty one, more than two, or a text that is too long.
    pub fn new(components: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self> {
        let components: Vec<_> = components.into_iter().collect();
        if components.len() > PARTITION_COMPONENTS {
            return Err(Error::invalid_argument("a partition has one or two components, such as a tenant and a user"));
        }
        Namespace::new(components).map(|namespace| namespace.partition())
    }

    /// Makes a namespace in the partition. Without a name it is the one that has only the components of the partition.
    ///
    /// # Errors
    /// As [`Namespace::new`].
    pub fn namespace(&self, name: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Namespace> {
        let mut builder = Builder { encoded: self.encoded.to_string(), count: self.components().count(), reserved: 0 };
        if self.components().next().is_some_and(|first| first == RESERVED_ROOT) {
            builder.reserved = 1;
        }
        for (index, component) in name.into_iter().enumerate() {
            builder.push(component.as_ref(), index == 0)?;
        }
        builder.finish()
    }

    /// Returns whether a namespace lies in the partition.
    pub fn contains(&self, namespace: &Namespace) -> bool {
        *self.encoded == *namespace.partition_text()
    }

    /// Returns the components, unescaped: one or two.
    pub fn components(&self) -> impl DoubleEndedIterator<Item = Cow<'_, str>> {
        components(&self.encoded)
    }

    /// Returns the text that engines store, with which the texts of all its namespaces and of no others start.
    pub fn encoded(&self) -> &str {
        &self.encoded
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.encoded.trim_end_matches('/'))
    }
}

impl fmt::Debug for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Partition({self})")
    }
}

impl Serialize for Partition {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// An ordered list of components that groups rows: a [`Partition`] and a name in it. Namespaces match exactly, never by text prefix.
///
/// In display form the components are joined by `/`; `%`, `/` and control characters within a component are escaped as
/// `%XX`. The partition is the first two components, or the only component there is. In a longer namespace, `//` after the first component
/// says that it alone is the partition.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Namespace {
    /// The partition's text, and then the escaped components of the name, each followed by `/`. So a namespace of the same partition is
    /// below another exactly if its text starts with the other's, and text order keeps partitions and a namespace's descendants together.
    /// Clones share it, since every row of a batch names its namespace.
    encoded: Arc<str>,
    /// The length of the partition's text. It follows from `encoded`.
    partition_bytes: u16,
}

impl Namespace {
    /// Makes a namespace from its components, of which the first two name its partition. [`Partition::namespace`] makes one in a partition
    /// of one component.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for no components, an empty one, more than
    /// [`NAMESPACE_COMPONENTS_MAX`], or an escaped text over 1,024 bytes.
    pub fn new(components: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self> {
        let mut builder = Builder::default();
        for (index, component) in components.into_iter().enumerate() {
            builder.push(component.as_ref(), index == 0 || index == PARTITION_COMPONENTS)?;
        }
        if builder.count == 1 {
            builder.encoded.push('/');
        }
        builder.finish()
    }

    /// Parses the display form.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for an empty component or a bad escape.
    pub fn parse(text: &str) -> Result<Self> {
        let plain = |text: &str| -> Result<Vec<String>> {
            let bad = || Error::invalid_argument(format!("the namespace `{text}` has a bad escape; write `%25` for a percent sign"));
            text.split('/').map(|component| unescape(component).map(Cow::into_owned).ok_or_else(bad)).collect()
        };
        let text = text.strip_suffix('/').unwrap_or(text);
        match text.split_once("//") {
            Some((partition, name)) if !partition.contains('/') => Partition::new(plain(partition)?)?.namespace(plain(name)?),
            _ => match text.strip_suffix('/').filter(|first| !first.contains('/')) {
                Some(first) => Self::new(plain(first)?),
                None => Self::new(plain(text)?),
            },
        }
    }

    /// Returns the partition that the namespace lies in.
    pub fn partition(&self) -> Partition {
        Partition { encoded: self.partition_text().into() }
    }

    /// Returns whether the namespace lies in the partition of another.
    pub fn shares_partition(&self, other: &Self) -> bool {
        self.partition_text() == other.partition_text()
    }

    fn partition_text(&self) -> &str {
        &self.encoded[..usize::from(self.partition_bytes)]
    }

    /// Returns the components after those of the partition, unescaped.
    pub fn name(&self) -> impl DoubleEndedIterator<Item = Cow<'_, str>> {
        components(&self.encoded[usize::from(self.partition_bytes)..])
    }

    /// Returns the components, unescaped: those of the partition, then those of the name.
    pub fn components(&self) -> impl DoubleEndedIterator<Item = Cow<'_, str>> {
        components(&self.encoded)
    }

    /// Makes the namespace with more components in the same partition.
    ///
    /// # Errors
    /// As [`Namespace::new`].
    pub fn beneath(&self, name: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self> {
        let name: Vec<String> = self.name().map(Cow::into_owned).chain(name.into_iter().map(|part| part.as_ref().to_owned())).collect();
        self.partition().namespace(name)
    }

    /// Returns whether `prefix` is this namespace or one of its ancestors. Those are in the same partition.
    pub fn starts_with(&self, prefix: &Self) -> bool {
        self.encoded.starts_with(&*prefix.encoded)
    }

    /// Returns the text that engines store: the escaped components, each followed by `/`, without control characters. A partition of one
    /// component has another `/` after it.
    pub fn encoded(&self) -> &str {
        &self.encoded
    }

    /// Returns the text that engines store in two parts: that of the partition, and that of the name in it. Together they sort like the whole.
    pub fn encoded_parts(&self) -> (&str, &str) {
        self.encoded.split_at(usize::from(self.partition_bytes))
    }

    /// Parses the text that [`Namespace::encoded`] returned.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) when the text is not a valid encoding.
    pub fn from_encoded(encoded: &str) -> Result<Self> {
        Self::parse(encoded)
            .ok()
            .filter(|namespace| *namespace.encoded == *encoded)
            .ok_or_else(|| Error::new(ErrorKind::Corrupt, "a stored namespace cannot be read back; run `treehold doctor`"))
    }
}

/// Returns the unescaped components of an encoded text.
fn components(encoded: &str) -> impl DoubleEndedIterator<Item = Cow<'_, str>> {
    let parts = encoded.split('/').filter(|component| !component.is_empty());
    parts.map(|component| unescape(component).expect("components are escaped by construction"))
}

/// A namespace under construction.
#[derive(Default)]
struct Builder {
    encoded: String,
    count: usize,
    /// How many reserved roots do not count.
    reserved: usize,
}

impl Builder {
    /// Adds a component. `may_be_root` says whether the reserved root is one here.
    fn push(&mut self, component: &str, may_be_root: bool) -> Result<()> {
        if component.is_empty() {
            return Err(Error::invalid_argument("a namespace component is empty; leave it out or name it"));
        }
        if may_be_root && component == RESERVED_ROOT {
            self.reserved += 1;
        }
        self.encoded.push_str(&escape(component, |character| character == '/' || character.is_control()));
        self.encoded.push('/');
        self.count += 1;
        Ok(())
    }

    fn finish(self) -> Result<Namespace> {
        if self.count == 0 {
            return Err(Error::invalid_argument("a namespace needs at least one component"));
        }
        if self.count > NAMESPACE_COMPONENTS_MAX + self.reserved || self.encoded.len() > 1024 {
            return Err(Error::invalid_argument(format!(
                "the namespace is too long; use at most {NAMESPACE_COMPONENTS_MAX} components and 1024 bytes in all"
            )));
        }
        let first = self.encoded.find('/').map_or(0, |at| at + 1);
        let second = self.encoded[first..].find('/').map_or(0, |at| first + at + 1);
        let partition_bytes = u16::try_from(second).expect("a namespace has at most 1,024 bytes");
        Ok(Namespace { encoded: self.encoded.into(), partition_bytes })
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.encoded.trim_end_matches('/'))
    }
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Namespace({self})")
    }
}

impl Serialize for Namespace {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_round_trip_through_text_and_encoding() {
        for components in [&["a"][..], &["a", "b"], &["a/b"], &["a%2Fb"], &["tenant", "ada\u{1}", "é ü"], &["%"]] {
            let namespace = Namespace::new(components).expect("a legal namespace");
            assert_eq!(namespace.components().collect::<Vec<_>>(), components);
            assert_eq!(Namespace::parse(&namespace.to_string()).expect("it parses its own text"), namespace);
            assert_eq!(Namespace::from_encoded(namespace.encoded()).expect("it parses its own text"), namespace);
        }
        assert!(Namespace::new(Vec::<String>::new()).is_err());
        assert!(Namespace::new([""]).is_err());
        for bad in ["", "/", "//a", "a/b//c", "a//b//c", "a/b//", "a///b", "a//b/c//"] {
            assert!(Namespace::parse(bad).is_err(), "{bad:?}");
        }
        assert!(Namespace::parse("a%zz").is_err());
    }

    #[test]
    fn reserved_root_does_not_count_towards_the_components() {
        let components = |count: usize| vec!["a"; count];
        assert!(Namespace::new(components(NAMESPACE_COMPONENTS_MAX)).is_ok());
        assert!(Namespace::new(components(NAMESPACE_COMPONENTS_MAX + 1)).is_err());
        let beneath = |count| Namespace::new([RESERVED_ROOT].into_iter().chain(components(count)));
        assert!(beneath(NAMESPACE_COMPONENTS_MAX).is_ok());
        assert!(beneath(NAMESPACE_COMPONENTS_MAX + 1).is_err());
        let namespace = beneath(NAMESPACE_COMPONENTS_MAX).expect("legal");
        assert_eq!(Namespace::from_encoded(namespace.encoded()).expect("it parses its own text"), namespace);
    }

    #[test]
    fn partition_is_kept_with_the_namespace() {
        let partition = |components: &[&str]| Partition::new(components).expect("a legal partition");
        for (text, owner, name) in [
            ("a", &["a"][..], &[][..]),
            ("a//b", &["a"], &["b"]),
            ("a//b/c", &["a"], &["b", "c"]),
            ("a/b", &["a", "b"], &[]),
            ("a/b/c/d", &["a", "b"], &["c", "d"]),
            ("a%2Fb/c", &["a/b", "c"], &[]),
        ] {
            let namespace = Namespace::parse(text).expect("a legal namespace");
            assert_eq!((namespace.partition(), namespace.to_string()), (partition(owner), text.to_owned()));
            assert_eq!(namespace.name().collect::<Vec<_>>(), name);
            assert_eq!(partition(owner).namespace(name).expect("a legal namespace"), namespace);
            assert_eq!(Namespace::from_encoded(namespace.encoded()).expect("it parses its own text"), namespace);
            assert!(namespace.encoded().starts_with(namespace.partition().encoded()));
            assert_eq!(namespace.components().collect::<Vec<_>>(), [owner, name].concat());
        }
        assert_ne!(Namespace::parse("a//b").expect("legal"), Namespace::parse("a/b").expect("legal"));
        assert!(Partition::new(["a", "b", "c"]).is_err());
        assert!(Namespace::from_encoded("a/").is_err(), "a text of an earlier layout");
    }

    #[test]
    fn partitions_are_apart_in_the_order_of_texts() {
        let mut all = Vec::new();
        for owner in [&["a"][..], &["a", "!"], &["a", "b"], &["a", "-"], &["a!"], &["a-"], &["ab"], &["b", "a"]] {
            let partition = Partition::new(owner).expect("a legal partition");
            for name in [&[][..], &["!"], &["b"], &["b", "c"], &["é"]] {
                all.push(partition.namespace(name).expect("a legal namespace"));
            }
        }
        all.sort();
        all.dedup();
        let mut runs: Vec<Partition> = all.iter().map(Namespace::partition).collect();
        assert_eq!(all.len(), 40);
        runs.dedup();
        assert_eq!(runs.len(), 8, "each partition is one run");
    }

    #[test]
    fn namespace_prefix_matches_whole_components_only() {
        let namespace = |text: &str| Namespace::parse(text).expect("a legal namespace");
        assert!(namespace("a/b/c").starts_with(&namespace("a/b")));
        assert!(namespace("a//b").starts_with(&namespace("a")));
        assert!(!namespace("a/b").starts_with(&namespace("a")), "they lie in two partitions");
        assert!(namespace("a").starts_with(&namespace("a")));
        assert!(!namespace("ab").starts_with(&namespace("a")));
    }
}
