//! Store URLs: a scheme, which names the engine, and a location.

use std::fmt;
use std::path::PathBuf;
use treehold_core::error::Error;

/// A store URL, split for the engine of its scheme.
#[derive(Clone, Copy)]
pub struct StoreUrl<'u> {
    text: &'u str,
    scheme: &'u str,
    location: &'u str,
    resolve: &'u (dyn Fn(&str) -> PathBuf + Sync),
}

impl<'u> StoreUrl<'u> {
    /// Splits a URL at its first colon. `resolve` makes the path of an embedded store absolute. Returns `None` for a
    /// text without a colon.
    pub fn new(text: &'u str, resolve: &'u (dyn Fn(&str) -> PathBuf + Sync)) -> Option<Self> {
        let (scheme, location) = text.split_once(':')?;
        Some(Self { text, scheme, location, resolve })
    }

    /// Returns the whole URL, which may hold a password.
    pub fn as_str(&self) -> &'u str {
        self.text
    }

    /// Returns the part before the first colon.
    pub fn scheme(&self) -> &'u str {
        self.scheme
    }

    /// Returns the part after the first colon.
    pub fn location(&self) -> &'u str {
        self.location
    }

    /// Returns the location as an absolute path, for embedded stores. `{data}` at its beginning is the data directory, and
    /// a relative path lies beneath the directory of the configuration file.
    ///
    /// # Errors
    /// If the URL names no location.
    pub fn path(&self) -> Result<PathBuf, InvalidStoreUrl> {
        if self.location.is_empty() {
            return Err(InvalidStoreUrl::new(format!("`{}` names no location", self.text)));
        }
        Ok((self.resolve)(self.location))
    }

    /// Returns the whole URL of a store on a server: `scheme://…`.
    ///
    /// # Errors
    /// If it names no server.
    pub fn server(&self) -> Result<&'u str, InvalidStoreUrl> {
        if self.location.strip_prefix("//").is_none_or(str::is_empty) {
            let error = InvalidStoreUrl::new(format!("`{}` names no server", without_password(self.text)));
            return Err(error.with_hint(format!("write `{}://USER@HOST/…`", self.scheme)));
        }
        Ok(self.text)
    }

    /// Requires that nothing follows the colon.
    ///
    /// # Errors
    /// If something follows it.
    pub fn require_no_location(&self) -> Result<(), InvalidStoreUrl> {
        if self.location.is_empty() {
            return Ok(());
        }
        let error = InvalidStoreUrl::new(format!("`{}` has a location and a {} store has none", without_password(self.text), self.scheme));
        Err(error.with_hint(format!("write `{}:`", self.scheme)))
    }
}

impl fmt::Debug for StoreUrl<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StoreUrl").field(&without_password(self.text)).finish()
    }
}

/// A fault in a store URL. The message shows no secret.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct InvalidStoreUrl {
    /// The fault.
    pub message: String,
    /// How to write it. A configuration shows the engine's [`url_form`](super::StoreEngine::url_form) without one.
    pub hint: Option<String>,
}

impl InvalidStoreUrl {
    /// Creates a fault.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None }
    }

    /// Adds how to write the URL.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for InvalidStoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.hint.as_ref().map_or(Ok(()), |hint| write!(f, "; {hint}"))
    }
}

impl std::error::Error for InvalidStoreUrl {}

impl From<InvalidStoreUrl> for Error {
    fn from(invalid: InvalidStoreUrl) -> Self {
        Self::invalid_argument(invalid.to_string())
    }
}

/// URL parameters that are not secret.
const SHOWN: &[&str] =
    &["application_name", "connections_max", "dbname", "host", "port", "prefix", "require_ssl", "schema", "sslmode", "user"];

/// Returns a URL that is safe to show: without the password, and without parameter values unless the parameter is known to be harmless.
pub fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once(':') else { return url.to_owned() };
    // Someone may have written the URL itself in place of its variable.
    if scheme == "env" && rest.contains(':') {
        return format!("env:{}", without_password(rest));
    }
    if matches!(scheme, "memory" | "sled" | "sqlite" | "env" | "agent") {
        return url.to_owned();
    }
    // The password may contain unescaped characters, so it ends at the last `@`.
    let (user, place) = match rest.trim_start_matches('/').rsplit_once('@') {
        Some((user, place)) => (Some(user), place),
        None => (None, rest.trim_start_matches('/')),
    };
    let user = match user.map(|user| (user.split([':', '/', '?', '#']).next().unwrap_or_default(), user)) {
        Some((name, user)) if name.len() < user.len() => format!("{name}:***@"),
        Some((name, _)) => format!("{name}@"),
        // Without `//` and `@` it is not a server URL, and any part may be secret.
        None if !rest.starts_with("//") => return format!("{scheme}:***"),
        None => String::new(),
    };
    let (place, query) = place.split_once(['?', '#']).map_or((place, None), |(place, query)| (place, Some(query)));
    let Some(query) = query else { return format!("{scheme}://{user}{place}") };
    let shown = |pair: &str| match pair.split_once('=') {
        Some((name, _)) if !SHOWN.contains(&name) => format!("{name}=***"),
        _ => pair.to_owned(),
    };
    let query: Vec<String> = query.split('&').map(shown).collect();
    format!("{scheme}://{user}{place}?{}", query.join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_url_has_no_password() {
        for (url, shown) in [
            ("sqlite:a:b@c", "sqlite:a:b@c"),
            ("agent://ada/x@y?z", "agent://ada/x@y?z"),
            ("https://ada:s3cret@h/w", "https://ada:***@h/w"),
            ("postgres://ada@db/x", "postgres://ada@db/x"),
            ("postgres://ada:s3cret@db:5432/x?sslmode=require", "postgres://ada:***@db:5432/x?sslmode=require"),
            ("mysql://ada:p@ss/w:rd@db/x", "mysql://ada:***@db/x"),
            ("redis://:s3cret@host", "redis://:***@host"),
            ("postgres://db/x?user=ada&password=s3cret", "postgres://db/x?user=ada&password=***"),
            ("postgres://db/x?pwd=s3cret&schema=s", "postgres://db/x?pwd=***&schema=s"),
            ("postgres://ada:p?ss#x@db/x", "postgres://ada:***@db/x"),
            ("postgres:ada:s3cret@db/x", "postgres://ada:***@db/x"),
            ("postgre:s3cret", "postgre:***"),
        ] {
            assert_eq!(without_password(url), shown);
        }
    }

    #[test]
    fn url_is_checked_by_the_rules_of_its_engine() {
        let resolve = |text: &str| PathBuf::from("/srv").join(text);
        let url = |text: &'static str| StoreUrl::new(text, &resolve).expect("it has a scheme");
        assert_eq!(url("sqlite:a:b.db").path(), Ok(PathBuf::from("/srv/a:b.db")));
        assert_eq!(url("sqlite:").path().expect_err("no location").to_string(), "`sqlite:` names no location");
        assert_eq!(url("mariadb://h/d").server(), Ok("mariadb://h/d"));
        for text in ["postgres:", "postgres:db", "mysql://"] {
            assert!(url(text).server().is_err(), "{text}");
        }
        let error = url("postgres:ada:s3cret@db").server().expect_err("no server");
        assert!(!error.to_string().contains("s3cret"), "{error}");
        assert_eq!(url("memory:").require_no_location(), Ok(()));
        let error = url("memory:x").require_no_location().expect_err("a location");
        assert_eq!(error.to_string(), "`memory:x` has a location and a memory store has none; write `memory:`");
        assert!(StoreUrl::new("a.db", &resolve).is_none());
        assert!(!format!("{:?}", url("redis://:s3cret@h")).contains("s3cret"));
    }
}
