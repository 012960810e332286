//! Options for opening the table.

use crate::layouts::VALUE_BYTES_MAX;
#[cfg(doc)]
use crate::layouts::{MysqlStates, open};
use std::fmt;
use std::time::Duration;

/// Options for [`MysqlStates`].
#[derive(Clone)]
#[non_exhaustive]
pub struct MysqlStatesOptions {
    /// The server's URL, as in [`open`]. The default database is `agentscope`.
    pub url: String,
    /// The name of the table; overrides the one in the URL. Default `agentscope_sessions`.
    pub table: Option<String>,
    /// Whether to create the database, the table and the column of versions if they are missing. Default `false`, or as the URL says.
    pub create: bool,
    /// The largest value, and the largest list, in bytes. Default [`VALUE_BYTES_MAX`].
    pub value_bytes_max: usize,
    /// The most connections at once. Default 10.
    pub connections_max: usize,
    /// The time limit of one operation. Default 30 s.
    pub timeout: Duration,
}

impl MysqlStatesOptions {
    /// Uses the defaults for the server at `url`.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            table: None,
            create: false,
            value_bytes_max: VALUE_BYTES_MAX,
            connections_max: 10,
            timeout: Duration::from_secs(30),
        }
    }

    /// Sets the name of the table.
    #[must_use]
    pub fn with_table(mut self, table: impl Into<String>) -> Self {
        self.table = Some(table.into());
        self
    }

    /// Sets whether to create what is missing.
    #[must_use]
    pub fn with_create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Sets the largest value and list, in bytes.
    #[must_use]
    pub fn with_value_bytes_max(mut self, value_bytes_max: usize) -> Self {
        self.value_bytes_max = value_bytes_max;
        self
    }

    /// Sets the most connections at once.
    #[must_use]
    pub fn with_connections_max(mut self, connections_max: usize) -> Self {
        self.connections_max = connections_max;
        self
    }

    /// Sets the time limit of one operation.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

impl fmt::Debug for MysqlStatesOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MysqlStatesOptions").field("table", &self.table).field("create", &self.create).finish_non_exhaustive()
    }
}
