//! The caller as a structured value, and the templates that turn it into namespaces and roots.
//!
//! A [`Scope`] is never joined into a string to distinguish callers. A [`NamespaceTemplate`] yields a [`Namespace`] of
//! components, so a user named `a/b` can never reach the rows of a user `a`.

use crate::error::{Error, Result};
use crate::namespace::{Namespace, Partition};
use crate::reserved::{RESERVED_ROOT, refuse_reserved};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The longest id in a scope, in bytes.
pub const SCOPE_ID_BYTES_MAX: usize = 255;

/// The longest name of a peer, in bytes.
const PEER_NAME_BYTES_MAX: usize = 63;

/// The caller of an operation.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct Scope {
    /// The tenant: a customer or organization.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The user: a person or program within the tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The thread: one conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
}

impl Scope {
    /// Creates a scope without any field.
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

    /// Returns a field.
    pub fn field(&self, field: ScopeField) -> Option<&str> {
        match field {
            ScopeField::Tenant => self.tenant.as_deref(),
            ScopeField::User => self.user.as_deref(),
            ScopeField::Agent => self.agent.as_deref(),
            ScopeField::Thread => self.thread.as_deref(),
        }
    }

    /// Checks every id that is set: not empty, at most [`SCOPE_ID_BYTES_MAX`] bytes, no control character, not [`RESERVED_ROOT`].
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument), naming the field.
    pub fn validate(&self) -> Result<()> {
        for field in ScopeField::ALL {
            if let Some(id) = self.field(field) {
                if id.is_empty() {
                    return Err(Error::invalid_argument(format!("the {field} id is empty; leave it out or name one")));
                }
                if id.len() > SCOPE_ID_BYTES_MAX {
                    return Err(Error::invalid_argument(format!("the {field} id is over {SCOPE_ID_BYTES_MAX} bytes; shorten it")));
                }
                if id == RESERVED_ROOT {
                    return Err(Error::invalid_argument(format!("the {field} id `{RESERVED_ROOT}` is reserved; choose another one")));
                }
                if id.chars().any(char::is_control) {
                    return Err(Error::invalid_argument(format!("the {field} id holds a control character; remove it")));
                }
            }
        }
        Ok(())
    }
}

/// A field of a [`Scope`], as templates refer to it.
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

    /// Returns the name used in templates.
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

/// Text with scope fields in braces, such as `/srv/{tenant}/{user}`. `{{` and `}}` stand for literal braces.
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
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) for an unknown field or an unmatched brace.
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
                    Error::invalid_argument(format!("the template `{text}` has an unmatched brace; write `{{{{` for a literal brace"))
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

    /// Returns the fields that the template uses.
    pub fn fields(&self) -> impl Iterator<Item = ScopeField> {
        self.parts.iter().filter_map(|part| match part {
            Part::Field(field) => Some(*field),
            Part::Text(_) => None,
        })
    }

    /// Fills in the fields.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) if the scope lacks a field. A missing field is never replaced by a
    /// default.
    pub fn fill(&self, scope: &Scope) -> Result<String> {
        let mut text = String::new();
        for part in &self.parts {
            match part {
                Part::Text(plain) => text.push_str(plain),
                Part::Field(field) => text.push_str(scope.field(*field).ok_or_else(|| {
                    Error::invalid_argument(format!("the template `{self}` needs a {field}, but the caller has none; set one"))
                })?),
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

/// A template of a [`Namespace`], such as `{tenant}/{user}/memories`. Each component between `/` is filled separately, so an id
/// never adds a component. The first two components are the [`Partition`]; `{user}//memories` makes it the first alone.
///
/// ```
/// use treehold_core::{NamespaceTemplate, Scope};
///
/// let template = NamespaceTemplate::parse("{tenant}/{user}/memories")?;
/// let scope = Scope::new().with_tenant("acme").with_user("ada/x");
/// assert_eq!(template.fill(&scope)?.components().collect::<Vec<_>>(), ["acme", "ada/x", "memories"]);
/// assert!(template.fill(&Scope::new().with_user("ada")).is_err());
/// # Ok::<(), treehold_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceTemplate {
    components: Vec<Template>,
    /// Whether the partition is the first component alone.
    is_short: bool,
}

impl NamespaceTemplate {
    /// Parses a template.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) for an empty component, an unknown field, an unmatched brace, or
    /// a template that starts with [`RESERVED_ROOT`].
    pub fn parse(text: &str) -> Result<Self> {
        // The partition may be the first component alone, which `//` shows.
        let is_short = text.split_once("//").is_some_and(|(partition, _)| !partition.is_empty() && !partition.contains('/'));
        let plain = if is_short { text.replacen("//", "/", 1) } else { text.to_owned() };
        let components: Vec<Template> = plain
            .split('/')
            .map(|component| match component {
                "" => Err(Error::invalid_argument(format!(
                    "the namespace template `{text}` has an empty component; write it as `a/{{user}}/b`"
                ))),
                component => Template::parse(component),
            })
            .collect::<Result<_>>()?;
        let is_root = |component: &Template| component.parts == [Part::Text(RESERVED_ROOT.to_owned())];
        let name_at = if is_short { 1 } else { 2 };
        if [0, name_at].iter().any(|at| components.get(*at).is_some_and(is_root)) {
            return Err(Error::invalid_argument(format!(
                "the namespace template `{text}` names `{RESERVED_ROOT}`, which is reserved; name another component there"
            )));
        }
        Ok(Self { components, is_short })
    }

    /// Returns the fields that the template uses.
    pub fn fields(&self) -> impl Iterator<Item = ScopeField> {
        self.components.iter().flat_map(Template::fields)
    }

    /// Fills in the fields.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) if the scope lacks a field or has an invalid id, or if the namespace
    /// would lie below [`RESERVED_ROOT`].
    pub fn fill(&self, scope: &Scope) -> Result<Namespace> {
        scope.validate()?;
        let components = self.components.iter().map(|component| component.fill(scope)).collect::<Result<Vec<_>>>()?;
        let namespace = match components.split_first() {
            Some((first, name)) if self.is_short => Partition::new([first])?.namespace(name)?,
            _ => Namespace::new(components)?,
        };
        refuse_reserved(&namespace)?;
        Ok(namespace)
    }
}

impl fmt::Display for NamespaceTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, component) in self.components.iter().enumerate() {
            if index > 0 {
                f.write_str(if index == 1 && self.is_short { "//" } else { "/" })?;
            }
            write!(f, "{component}")?;
        }
        Ok(())
    }
}

/// Checks an id of a tenant, user, agent or session. `what` names it in the message.
///
/// # Errors
/// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) for an id that is empty, `.`, `..` or reserved, is over
/// [`SCOPE_ID_BYTES_MAX`] bytes, or holds a control character. Any other id is kept exactly.
pub fn check_id(what: &str, id: &str) -> Result<()> {
    let problem = match id {
        "" => "is empty; name one".to_owned(),
        "." | ".." => format!("`{id}` cannot be the name of a directory; choose another one"),
        RESERVED_ROOT => format!("`{id}` is reserved; choose another one"),
        long if long.len() > SCOPE_ID_BYTES_MAX => format!("is over {SCOPE_ID_BYTES_MAX} bytes; shorten it"),
        bad if bad.chars().any(char::is_control) => "holds a control character; remove it".to_owned(),
        _ => return Ok(()),
    };
    Err(Error::invalid_argument(format!("the {what} id {problem}")))
}

/// Checks the name of a peer, which is another server or a machine that dials this one: up to 63 lower-case letters, digits, `-` and `_`, a
/// letter or digit first. So no name has a meaning in URLs.
///
/// # Errors
/// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) for any other name.
pub fn check_peer_name(name: &str) -> Result<()> {
    let is_legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_';
    let starts_well = name.starts_with(|first: char| first.is_ascii_lowercase() || first.is_ascii_digit());
    if starts_well && name.len() <= PEER_NAME_BYTES_MAX && name.bytes().all(is_legal) {
        return Ok(());
    }
    let message =
        format!("the name of a peer has up to {PEER_NAME_BYTES_MAX} lower-case letters, digits, `-` and `_`, a letter or digit first");
    Err(Error::invalid_argument(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_a_peer_has_no_meaning_in_urls() {
        let longest = "x".repeat(PEER_NAME_BYTES_MAX);
        for name in ["a", "7", "laptop-1", "a_b-", &longest] {
            assert!(check_peer_name(name).is_ok(), "{name}");
        }
        for name in ["", "-a", "_a", "Laptop", "a.b", "a/b", "a@b", "a b", "a:1", "é", "a\n", &format!("{longest}x")] {
            assert!(check_peer_name(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn template_fills_known_fields_and_rejects_others() {
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
    fn id_with_slash_adds_no_namespace_component() {
        let template = NamespaceTemplate::parse("{user}/memories").expect("a legal template");
        let one = template.fill(&Scope::new().with_user("a/b")).expect("the user is set");
        let other = template.fill(&Scope::new().with_user("a")).expect("the user is set");
        assert_eq!(one.components().count(), 2);
        assert_ne!(one, other);
        assert!(!one.starts_with(&Namespace::new(["a"]).expect("a legal namespace")));
    }

    #[test]
    fn ids_that_cannot_be_kept_exactly_are_refused() {
        let long = "x".repeat(256);
        for bad in ["", ".", "..", "a\nb", "\u{0}", "\u{7f}", "_treehold", long.as_str()] {
            assert!(check_id("user", bad).is_err(), "{bad:?}");
        }
        for good in ["a/b", "a:b", "%", "...", " ", "é", &long[..255]] {
            assert!(check_id("user", good).is_ok(), "{good:?}");
        }
    }
}
