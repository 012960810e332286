//! Looking at one path.

/// Options of a stat.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct StatOptions {
    /// Refuses with `permission_denied` to follow host links on the way to the path. A link at the path itself is shown, as without the
    /// option, but not where it leads. Default false.
    pub refuse_links: bool,
}

impl StatOptions {
    /// Follows links on the way to the path.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether following host links is refused.
    #[must_use]
    pub fn with_refuse_links(mut self, refuse_links: bool) -> Self {
        self.refuse_links = refuse_links;
        self
    }
}
