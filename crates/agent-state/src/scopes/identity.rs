//! Scopes of isolation, and the namespaces of callers.

use crate::owner::{of_tenant, of_user};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use treehold_core::error::{Error, Result};
use treehold_core::scope::check_id;
use treehold_store::Namespace;

/// Who shares the files of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum IsolationScope {
    /// Nobody: each session of each user has its own.
    Session,
    /// All sessions of a user.
    #[default]
    User,
    /// All users of the agent.
    Agent,
    /// All agents of the tenant.
    Global,
}

impl IsolationScope {
    /// All scopes, from the narrowest.
    pub const ALL: [Self; 4] = [Self::Session, Self::User, Self::Agent, Self::Global];

    /// Returns the name as configurations write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::User => "user",
            Self::Agent => "agent",
            Self::Global => "global",
        }
    }
}

impl fmt::Display for IsolationScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether a call without the identity that its scope needs is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum AnonymousCalls {
    /// It is refused.
    #[default]
    Refused,
    /// It shares the files of all anonymous calls.
    Allowed,
}

/// Who calls an agent.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallIdentity {
    tenant: String,
    agent: String,
    user: Option<String>,
    session: Option<String>,
}

impl CallIdentity {
    /// Names the caller of an agent.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::ErrorKind::InvalidArgument) for an id that [`check_id`] refuses.
    pub fn new(tenant: &str, agent: &str, user: Option<&str>, session: Option<&str>) -> Result<Self> {
        check_id("tenant", tenant)?;
        check_id("agent", agent)?;
        for (what, id) in [("user", user), ("session", session)] {
            if let Some(id) = id {
                check_id(what, id)?;
            }
        }
        let [user, session] = [user, session].map(|id| id.map(str::to_owned));
        Ok(Self { tenant: tenant.to_owned(), agent: agent.to_owned(), user, session })
    }

    /// Returns the agent.
    pub fn agent(&self) -> &str {
        &self.agent
    }

    /// Returns the components of the namespace of a scope, as the key-value items of agents use them: `agents/{agent}/sessions/{session}`,
    /// `agents/{agent}/users/{user}`, `agents/{agent}/shared` or `global`. Anonymous calls have `agents/{agent}/anonymous/{scope}`.
    ///
    /// ```
    /// use treehold_agent_state::scopes::{AnonymousCalls, CallIdentity, IsolationScope};
    ///
    /// let call = CallIdentity::new("acme", "helper", Some("ada"), None)?;
    /// assert_eq!(call.components(IsolationScope::User, AnonymousCalls::Refused)?, ["agents", "helper", "users", "ada"]);
    /// assert!(call.components(IsolationScope::Session, AnonymousCalls::Refused).is_err());
    /// # Ok::<(), treehold_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::ErrorKind::InvalidArgument) for a missing identity, unless anonymous calls are allowed.
    pub fn components(&self, scope: IsolationScope, anonymous: AnonymousCalls) -> Result<Vec<String>> {
        let components: Vec<&str> = match (scope, self.named(scope, anonymous)?) {
            (IsolationScope::Global, _) => vec!["global"],
            (IsolationScope::Agent, _) => vec!["agents", &self.agent, "shared"],
            (IsolationScope::User, Some(user)) => vec!["agents", &self.agent, "users", user],
            (IsolationScope::Session, Some(session)) => vec!["agents", &self.agent, "sessions", session],
            (scope, None) => vec!["agents", &self.agent, "anonymous", scope.name()],
        };
        Ok(components.into_iter().map(str::to_owned).collect())
    }

    /// Returns where the files of a scope are kept. Those of a session and a user are in the partition of the user, so that two users with a
    /// session of the same name share nothing.
    pub(super) fn files(&self, scope: IsolationScope, anonymous: AnonymousCalls, beneath: &[&str]) -> Result<Namespace> {
        let named = self.named(scope, anonymous)?;
        let part: &[&str] = match (scope, named) {
            (IsolationScope::Session, Some(session)) => &["sessions", session],
            (IsolationScope::Session, None) => &["no-session"],
            (IsolationScope::User | IsolationScope::Agent | IsolationScope::Global, _) => &["all"],
        };
        let components = ["agents", &*self.agent, "files"].into_iter().chain(part.iter().copied()).chain(beneath.iter().copied());
        match scope {
            IsolationScope::Global => of_tenant(&self.tenant, ["global"].into_iter().chain(components.skip(2))),
            IsolationScope::Agent => of_tenant(&self.tenant, ["shared"].into_iter().chain(components)),
            IsolationScope::User | IsolationScope::Session => of_user(&self.tenant, self.user.as_deref(), components),
        }
    }

    /// Returns the identity that a scope needs; `None` for an anonymous call and where none is needed.
    fn named(&self, scope: IsolationScope, anonymous: AnonymousCalls) -> Result<Option<&str>> {
        let named = match scope {
            IsolationScope::Session => self.session.as_deref(),
            IsolationScope::User => self.user.as_deref(),
            IsolationScope::Agent | IsolationScope::Global => return Ok(None),
        };
        if named.is_none() && anonymous == AnonymousCalls::Refused {
            let message =
                format!("the files of this agent are kept by {scope} and the call names no {scope}; name one, or allow anonymous calls");
            return Err(Error::invalid_argument(message));
        }
        Ok(named)
    }
}
