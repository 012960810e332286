//! Namespaces: ordered components, escaped, compared as whole components.

use super::escape::{escape, unescape};
use crate::error::{Error, ErrorKind, Result};
use serde::Serialize;
use std::borrow::Cow;
use std::fmt;

/// The first component of every namespace that holds this crate's own rows.
pub const RESERVED_ROOT: &str = "_treehold";

/// The most components in a namespace, not counting the reserved root.
pub const NAMESPACE_COMPONENTS_MAX: usize = 16;

/// An ordered list of components that groups rows. Namespaces match exactly, never by text prefix.
///
/// In display form the components are joined by `/`; `%`, `/` and control characters within a component are escaped as
/// `%XX`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Namespace {
    /// The escaped components, each followed by `/`. So one namespace is below another exactly if its text starts with
    /// the other's, and text order keeps a namespace's descendants together.
    encoded: String,
}

impl Namespace {
    /// Makes a namespace from its components.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for no components, an empty one, more than
    /// [`NAMESPACE_COMPONENTS_MAX`], or an escaped text over 1,024 bytes.
    pub fn new(components: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self> {
        let mut encoded = String::new();
        let mut count = 0;
        let mut components_max = NAMESPACE_COMPONENTS_MAX;
        for component in components {
            let component = component.as_ref();
            if count == 0 && component == RESERVED_ROOT {
                components_max += 1;
            }
            if component.is_empty() {
                return Err(Error::invalid_argument("a namespace component is empty; leave it out or name it"));
            }
            encoded.push_str(&escape(component, |character| character == '/' || character.is_control()));
            encoded.push('/');
            count += 1;
        }
        if count == 0 {
            return Err(Error::invalid_argument("a namespace needs at least one component"));
        }
        if count > components_max || encoded.len() > 1024 {
            return Err(Error::invalid_argument(format!(
                "the namespace is too long; use at most {NAMESPACE_COMPONENTS_MAX} components and 1024 bytes in all"
            )));
        }
        Ok(Self { encoded })
    }

    /// Parses the display form.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for an empty component or a bad escape.
    pub fn parse(text: &str) -> Result<Self> {
        let components = text
            .strip_suffix('/')
            .unwrap_or(text)
            .split('/')
            .map(|component| {
                unescape(component).ok_or_else(|| {
                    Error::invalid_argument(format!("the namespace `{text}` has a bad escape; write `%25` for a percent sign"))
                })
            })
            .collect::<Result<Vec<_>>>()?;
        Self::new(components)
    }

    /// Returns the components, unescaped.
    pub fn components(&self) -> impl DoubleEndedIterator<Item = Cow<'_, str>> {
        self.encoded[..self.encoded.len() - 1]
            .split('/')
            .map(|component| unescape(component).expect("components are escaped by construction"))
    }

    /// Returns whether `prefix` is this namespace or one of its ancestors.
    pub fn starts_with(&self, prefix: &Self) -> bool {
        self.encoded.starts_with(&prefix.encoded)
    }

    /// Returns the text that engines store: escaped components, each followed by `/`, without control characters.
    pub fn encoded(&self) -> &str {
        &self.encoded
    }

    /// Parses the text that [`Namespace::encoded`] returned.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) when the text is not a valid encoding.
    pub fn from_encoded(encoded: &str) -> Result<Self> {
        Self::parse(encoded)
            .ok()
            .filter(|namespace| namespace.encoded == encoded)
            .ok_or_else(|| Error::new(ErrorKind::Corrupt, "a stored namespace cannot be read back; run `treehold doctor`"))
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.encoded[..self.encoded.len() - 1])
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
        assert!(Namespace::parse("a//b").is_err());
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
    fn namespace_prefix_matches_whole_components_only() {
        let namespace = |text: &str| Namespace::parse(text).expect("a legal namespace");
        assert!(namespace("a/b").starts_with(&namespace("a")));
        assert!(namespace("a").starts_with(&namespace("a")));
        assert!(!namespace("ab").starts_with(&namespace("a")));
    }
}
