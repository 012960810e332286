//! Whose rows a part of the bundle keeps.

use std::fmt;
use treehold_core::error::{Error, Result};
use treehold_core::json::Json;
use treehold_core::reserved::AGENT_STATE;
use treehold_core::scope::check_id;
use treehold_store::{Namespace, Partition};

/// The longest name of a lock, a queue, a log, a snapshot, a task or an entry of a transcript, in bytes.
pub const NAME_BYTES_MAX: usize = 512;

/// The tenant, the users and the agent that share what a bundle keeps. Two owners never share a row.
///
/// ```
/// use treehold_agent_state::BundleOwner;
///
/// let ada = BundleOwner::of_user("acme", "ada", "helper")?;
/// assert_ne!(ada, BundleOwner::anonymous("acme", "helper")?);
/// assert!(BundleOwner::shared("acme", "").is_err());
/// # Ok::<(), treehold_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BundleOwner {
    tenant: String,
    users: Users,
    agent: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Users {
    One(String),
    Anonymous,
    All,
}

impl BundleOwner {
    /// Names the owner of the rows of one user.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::ErrorKind::InvalidArgument) for an id that [`check_id`] refuses.
    pub fn of_user(tenant: &str, user: &str, agent: &str) -> Result<Self> {
        check_id("user", user)?;
        Self::new(tenant, Users::One(user.to_owned()), agent)
    }

    /// Names the owner of the rows of callers without a user.
    ///
    /// # Errors
    /// As [`BundleOwner::of_user`].
    pub fn anonymous(tenant: &str, agent: &str) -> Result<Self> {
        Self::new(tenant, Users::Anonymous, agent)
    }

    /// Names the owner of rows that all users of an agent share.
    ///
    /// # Errors
    /// As [`BundleOwner::of_user`].
    pub fn shared(tenant: &str, agent: &str) -> Result<Self> {
        Self::new(tenant, Users::All, agent)
    }

    fn new(tenant: &str, users: Users, agent: &str) -> Result<Self> {
        check_id("tenant", tenant)?;
        check_id("agent", agent)?;
        Ok(Self { tenant: tenant.to_owned(), users, agent: agent.to_owned() })
    }

    /// Returns the tenant.
    pub fn tenant(&self) -> &str {
        &self.tenant
    }

    /// Returns the user, if the rows are those of one.
    pub fn user(&self) -> Option<&str> {
        match &self.users {
            Users::One(user) => Some(user),
            Users::Anonymous | Users::All => None,
        }
    }

    /// Returns the agent.
    pub fn agent(&self) -> &str {
        &self.agent
    }

    /// Returns the namespace of one part of the bundle. All rows of a user are beneath the user.
    pub(crate) fn rows<'a>(&'a self, part: &'a str, beneath: impl IntoIterator<Item = &'a str>) -> Result<Namespace> {
        let beneath = ["agents", &*self.agent, "bundle", part].into_iter().chain(beneath);
        match &self.users {
            Users::One(user) => of_user(&self.tenant, Some(user), beneath),
            Users::Anonymous => of_user(&self.tenant, None, beneath),
            Users::All => of_tenant(&self.tenant, ["shared"].into_iter().chain(beneath)),
        }
    }
}

/// Returns a namespace of a user, in the user's partition. That of the anonymous user is in the partition of the tenant.
pub(crate) fn of_user<'a>(tenant: &str, user: Option<&str>, beneath: impl IntoIterator<Item = &'a str>) -> Result<Namespace> {
    match user {
        Some(user) => Partition::new([tenant, user])?.namespace(AGENT_STATE.into_iter().chain(beneath)),
        None => of_tenant(tenant, ["anonymous"].into_iter().chain(beneath)),
    }
}

/// Returns a namespace of what the users of a tenant share, in the partition of the tenant.
pub(crate) fn of_tenant<'a>(tenant: &str, beneath: impl IntoIterator<Item = &'a str>) -> Result<Namespace> {
    Partition::new([tenant])?.namespace(AGENT_STATE.into_iter().chain(beneath))
}

impl fmt::Display for BundleOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.users {
            Users::One(user) => write!(f, "agent `{}` of the user `{user}`", self.agent),
            Users::Anonymous => write!(f, "agent `{}` of anonymous users", self.agent),
            Users::All => write!(f, "agent `{}` of all users", self.agent),
        }
    }
}

/// Checks a name that is a key or a component of a namespace. `what` names it in the message.
pub(crate) fn check_name(what: &str, name: &str) -> Result<()> {
    let problem = match name {
        blank if blank.trim().is_empty() => "is blank; name one".to_owned(),
        long if long.len() > NAME_BYTES_MAX => format!("is over {NAME_BYTES_MAX} bytes; shorten it"),
        bad if bad.chars().any(char::is_control) => "holds a control character; remove it".to_owned(),
        _ => return Ok(()),
    };
    Err(Error::invalid_argument(format!("the {what} {problem}")))
}

/// Checks that a value is a JSON object of at most `bytes_max` bytes.
pub(crate) fn check_object(what: &str, value: &Json, bytes_max: usize) -> Result<()> {
    let text = value.as_str();
    if !text.starts_with('{') {
        return Err(Error::invalid_argument(format!("the {what} must be a JSON object, such as `{{\"text\": \"hello\"}}`")));
    }
    if text.len() > bytes_max {
        let message = format!("the {what} has {} bytes and at most {bytes_max} are allowed; store large contents as a file", text.len());
        return Err(Error::new(treehold_core::ErrorKind::TooLarge, message).without_effect());
    }
    Ok(())
}

/// Checks the length of a page. `max` is the longest.
pub(crate) fn check_limit(limit: usize, max: usize) -> Result<()> {
    if (1..=max).contains(&limit) {
        return Ok(());
    }
    Err(Error::invalid_argument(format!("the limit is {limit}; use 1 to {max}")))
}
