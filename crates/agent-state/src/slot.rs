//! Whose state, and of which session.

use std::fmt;
use treehold_core::error::Result;
use treehold_core::scope::check_id;

/// The user and the session that a state belongs to. A slot without a user is anonymous; no user's id can name it.
///
/// ```
/// use treehold_agent_state::StateSlot;
///
/// let ada = StateSlot::new(Some("ada"), "s1")?;
/// assert_ne!(ada, StateSlot::new(None, "s1")?);
/// assert!(StateSlot::new(Some("ada"), "").is_err());
/// # Ok::<(), treehold_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateSlot {
    user: Option<String>,
    session: String,
}

impl StateSlot {
    /// Names a slot.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::ErrorKind::InvalidArgument) for an id that [`check_id`] refuses.
    pub fn new(user: Option<&str>, session: impl Into<String>) -> Result<Self> {
        let session = session.into();
        if let Some(user) = user {
            check_id("user", user)?;
        }
        check_id("session", &session)?;
        Ok(Self { user: user.map(str::to_owned), session })
    }

    /// Returns the user; `None` if the slot is anonymous.
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// Returns the session.
    pub fn session(&self) -> &str {
        &self.session
    }
}

/// The slot for messages. Use it for nothing else: different slots may have the same text.
impl fmt::Display for StateSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.user {
            Some(user) => write!(f, "session `{}` of the user `{user}`", self.session),
            None => write!(f, "anonymous session `{}`", self.session),
        }
    }
}
