//! Globs as linear-time matchers.

use crate::error::Result;

/// A compiled glob.
#[derive(Debug, Clone)]
pub struct Glob {
    _private: (),
}

impl Glob {
    /// Compiles a pattern: `*` and `?` stay within a segment (of characters, not bytes), `**` crosses as a whole segment, `{a,b}`
    /// (nested, empty alternatives, `/` inside), `[abc]`, `[!a-z]`, `\` escapes. Without `/` it matches names at any depth;
    /// with one (leading or inside) it is anchored at the search root.
    ///
    /// # Errors
    /// `invalid_argument` that says what is wrong where.
    pub fn parse(pattern: &str, case_insensitive: bool) -> Result<Self> {
        let _ = (pattern, case_insensitive);
        unimplemented!()
    }

    /// Tells whether a path matches, given relative to the search root, without a leading slash.
    pub fn is_match(&self, relative: &str) -> bool {
        let _ = relative;
        unimplemented!()
    }

    /// Returns the directory, relative to the search root, that everything the pattern can match lies beneath (or is): `""` for
    /// the search root itself. No leading or trailing slash.
    pub fn literal_prefix(&self) -> &str {
        unimplemented!()
    }

    /// Tells whether something beneath the directory `relative` can match: what a walk asks before it enters.
    pub fn can_match_beneath(&self, relative: &str) -> bool {
        let _ = relative;
        unimplemented!()
    }

    /// Tells whether a segment that starts with a dot is met by a segment of the pattern that starts with a dot itself.
    pub fn names_hidden(&self, segment: &str) -> bool {
        let _ = segment;
        unimplemented!()
    }
}
