//! What rows live under: ordered components, escaped, matched whole.

use super::escape::{escape, unescape};
use crate::error::{Error, ErrorKind, Result};
use serde::Serialize;
use std::borrow::Cow;
use std::fmt;

/// The most components of a namespace.
pub const NAMESPACE_COMPONENTS_MAX: usize = 16;

/// An ordered list of components that rows live under; matched whole, never as a text prefix.
///
/// As text the components are joined by `/`, with `%`, `/` and control characters inside a component written as `%XX`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Namespace {
    /// The escaped components, each followed by `/`: so that one namespace is beneath another exactly if its text starts
    /// with the other's, and the order of texts keeps what lies beneath a namespace together.
    encoded: String,
}

impl Namespace {
    /// Makes a namespace of components.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for no component, an empty one, too many, or a text over 1,024 bytes.
    pub fn new(components: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self> {
        let mut encoded = String::new();
        let mut count = 0;
        for component in components {
            let component = component.as_ref();
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
        if count > NAMESPACE_COMPONENTS_MAX || encoded.len() > 1024 {
            return Err(Error::invalid_argument(format!(
                "the namespace is too long; use at most {NAMESPACE_COMPONENTS_MAX} components and 1024 bytes in all"
            )));
        }
        Ok(Self { encoded })
    }

    /// Parses the text that `Display` prints.
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

    /// Tells whether `prefix` is this namespace or one above it, by whole components.
    pub fn starts_with(&self, prefix: &Self) -> bool {
        self.encoded.starts_with(&prefix.encoded)
    }

    /// Returns the text that engines store: escaped components, each followed by `/`. It never holds a control character.
    pub fn encoded(&self) -> &str {
        &self.encoded
    }

    /// Reads back what [`Namespace::encoded`] gave.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) when it is not such a text.
    pub fn from_encoded(encoded: &str) -> Result<Self> {
        Self::parse(encoded)
            .ok()
            .filter(|namespace| namespace.encoded == encoded)
            .ok_or_else(|| Error::new(ErrorKind::Corrupt, "a stored namespace cannot be read back; run `stratafs doctor`"))
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
    fn namespaces_escape_and_read_back() {
        for components in [&["a"][..], &["a", "b"], &["a/b"], &["a%2Fb"], &["tenant", "ada\u{1}", "é ü"], &["%"]] {
            let namespace = Namespace::new(components).expect("a legal namespace");
            assert_eq!(namespace.components().collect::<Vec<_>>(), components);
            assert_eq!(Namespace::parse(&namespace.to_string()).expect("its own text"), namespace);
            assert_eq!(Namespace::from_encoded(namespace.encoded()).expect("its own text"), namespace);
        }
        assert!(Namespace::new(Vec::<String>::new()).is_err());
        assert!(Namespace::new([""]).is_err());
        assert!(Namespace::parse("a//b").is_err());
        assert!(Namespace::parse("a%zz").is_err());
    }

    #[test]
    fn a_namespace_holds_only_whole_components() {
        let namespace = |text: &str| Namespace::parse(text).expect("a legal namespace");
        assert!(namespace("a/b").starts_with(&namespace("a")));
        assert!(namespace("a").starts_with(&namespace("a")));
        assert!(!namespace("ab").starts_with(&namespace("a")));
    }
}
