//! Who calls, as a structured value, and the templates that make namespaces and roots of it.
//!
//! A [`Scope`] is never joined into a string to tell callers apart: a [`NamespaceTemplate`] makes a [`Namespace`] of
//! components, so a user named `a/b` can never meet the rows of a user `a`.

use crate::error::{Error, Result};
use crate::store::Namespace;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The longest id of a scope in bytes.
pub const SCOPE_ID_BYTES_MAX: usize = 255;

/// The caller of an operation.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct Scope {
    /// The organisation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The person.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
}

impl Scope {
    /// Makes a scope with no field set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the tenant.
    #[must_use]
    pub fn with_tenant(mut self, tenant: impl Into<String>) -> Self {
        self.tenant = Some(tenant.into());
        self
    }

    /// Sets the user.
    #[must_use]
    pub fn with_user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// Sets the agent.
    #[must_use]
    pub fn with_agent(mut self, agent: impl Into<String>) -> Self {
        self.agent = Some(agent.into());
        self
    }

    /// Sets the thread.
    #[must_use]
    pub fn with_thread(mut self, thread: impl Into<String>) -> Self {
        self.thread = Some(thread.into());
        self
    }

    /// Returns a field by the name that templates use.
    pub fn field(&self, field: ScopeField) -> Option<&str> {
        match field {
            ScopeField::Tenant => self.tenant.as_deref(),
            ScopeField::User => self.user.as_deref(),
            ScopeField::Agent => self.agent.as_deref(),
            ScopeField::Thread => self.thread.as_deref(),
        }
    }

    /// Checks every id that is set: not empty, at most [`SCOPE_ID_BYTES_MAX`] bytes, no control character.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) that names the field.
    pub fn validate(&self) -> Result<()> {
        for field in ScopeField::ALL {
            if let Some(id) = self.field(field) {
                if id.is_empty() {
                    return Err(Error::invalid_argument(format!("the {field} id is empty; leave it out or name one")));
                }
                if id.len() > SCOPE_ID_BYTES_MAX {
                    return Err(Error::invalid_argument(format!("the {field} id is over {SCOPE_ID_BYTES_MAX} bytes; shorten it")));
                }
                if id.chars().any(char::is_control) {
                    return Err(Error::invalid_argument(format!("the {field} id holds a control character; remove it")));
                }
            }
        }
        Ok(())
    }
}

/// A field of a [`Scope`], as templates name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ScopeField {
    /// `{tenant}`
    Tenant,
    /// `{user}`
    User,
    /// `{agent}`
    Agent,
    /// `{thread}`
    Thread,
}

impl ScopeField {
    /// Every field, outermost first.
    pub const ALL: [Self; 4] = [Self::Tenant, Self::User, Self::Agent, Self::Thread];

    /// Returns the name that stands in a template.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tenant => "tenant",
            Self::User => "user",
            Self::Agent => "agent",
            Self::Thread => "thread",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|field| field.name() == name)
    }
}

impl fmt::Display for ScopeField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A text with scope fields in braces, such as `/srv/{tenant}/{user}`. `{{` and `}}` stand for the braces themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Field(ScopeField),
}

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for an unknown field or an open brace.
    pub fn parse(text: &str) -> Result<Self> {
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            plain.push_str(&rest[..at]);
            let tail = &rest[at..];
            if let Some(after) = tail.strip_prefix("{{") {
                plain.push('{');
                rest = after;
            } else if let Some(after) = tail.strip_prefix("}}") {
                plain.push('}');
                rest = after;
            } else {
                let (name, after) = tail.strip_prefix('{').and_then(|inner| inner.split_once('}')).ok_or_else(|| {
                    Error::invalid_argument(format!("the template `{text}` has a brace without its partner; write `{{{{` for a brace"))
                })?;
                let field = ScopeField::from_name(name).ok_or_else(|| {
                    Error::invalid_argument(format!(
                        "the template `{text}` names `{{{name}}}`; the fields are {{tenant}}, {{user}}, {{agent}} and {{thread}}"
                    ))
                })?;
                if !plain.is_empty() {
                    parts.push(Part::Text(std::mem::take(&mut plain)));
                }
                parts.push(Part::Field(field));
                rest = after;
            }
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            parts.push(Part::Text(plain));
        }
        Ok(Self { parts })
    }

    /// Returns the fields the template names.
    pub fn fields(&self) -> impl Iterator<Item = ScopeField> {
        self.parts.iter().filter_map(|part| match part {
            Part::Field(field) => Some(*field),
            Part::Text(_) => None,
        })
    }

    /// Fills the fields in.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) when the scope lacks a field: it is never replaced by a default.
    pub fn fill(&self, scope: &Scope) -> Result<String> {
        let mut text = String::new();
        for part in &self.parts {
            match part {
                Part::Text(plain) => text.push_str(plain),
                Part::Field(field) => {
                    text.push_str(scope.field(*field).ok_or_else(|| {
                        Error::invalid_argument(format!("the template `{self}` needs a {field} and the caller names none"))
                    })?)
                }
            }
        }
        Ok(text)
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in &self.parts {
            match part {
                Part::Text(plain) => f.write_str(&plain.replace('{', "{{").replace('}', "}}"))?,
                Part::Field(field) => write!(f, "{{{field}}}")?,
            }
        }
        Ok(())
    }
}

/// A template of a [`Namespace`], such as `{tenant}/{user}/memories`: each component between `/` is filled by itself, so what
/// a caller is named never adds a component.
///
/// ```
/// use stratafs::{NamespaceTemplate, Scope};
///
/// let template = NamespaceTemplate::parse("{tenant}/{user}/memories")?;
/// let scope = Scope::new().with_tenant("acme").with_user("ada/x");
/// assert_eq!(template.fill(&scope)?.components().collect::<Vec<_>>(), ["acme", "ada/x", "memories"]);
/// assert!(template.fill(&Scope::new().with_user("ada")).is_err());
/// # Ok::<(), stratafs::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceTemplate {
    components: Vec<Template>,
}

impl NamespaceTemplate {
    /// Parses a template.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for an empty component, an unknown field or an open brace.
    pub fn parse(text: &str) -> Result<Self> {
        let components = text
            .split('/')
            .map(|component| match component {
                "" => Err(Error::invalid_argument(format!(
                    "the namespace template `{text}` has an empty component; write it as `a/{{user}}/b`"
                ))),
                component => Template::parse(component),
            })
            .collect::<Result<_>>()?;
        Ok(Self { components })
    }

    /// Returns the fields the template names.
    pub fn fields(&self) -> impl Iterator<Item = ScopeField> {
        self.components.iter().flat_map(Template::fields)
    }

    /// Fills the fields in.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) when the scope lacks a field or one of its ids is not valid.
    pub fn fill(&self, scope: &Scope) -> Result<Namespace> {
        scope.validate()?;
        Namespace::new(self.components.iter().map(|component| component.fill(scope)).collect::<Result<Vec<_>>>()?)
    }
}

impl fmt::Display for NamespaceTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, component) in self.components.iter().enumerate() {
            if index > 0 {
                f.write_str("/")?;
            }
            write!(f, "{component}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fills_and_refuses() {
        let scope = Scope::new().with_tenant("acme").with_user("ada");
        let fill = |text: &str| Template::parse(text).and_then(|template| template.fill(&scope));
        assert_eq!(fill("/srv/{tenant}/{user}").expect("both are set"), "/srv/acme/ada");
        assert_eq!(fill("{{x}}-{user}").expect("braces are escaped"), "{x}-ada");
        assert!(fill("{thread}").expect_err("no thread").message().contains("thread"));
        assert!(fill("{user").is_err());
        assert!(fill("}").is_err());
        assert!(fill("{name}").is_err());
    }

    #[test]
    fn an_id_never_adds_a_component() {
        let template = NamespaceTemplate::parse("{user}/memories").expect("a legal template");
        let one = template.fill(&Scope::new().with_user("a/b")).expect("the user is set");
        let other = template.fill(&Scope::new().with_user("a")).expect("the user is set");
        assert_eq!(one.components().count(), 2);
        assert_ne!(one, other);
        assert!(!one.starts_with(&Namespace::new(["a"]).expect("a legal namespace")));
    }
}
