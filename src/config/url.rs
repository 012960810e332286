//! Store URLs: the engine and its location. Passwords are never shown.

use super::fault::did_you_mean;
use treehold_core::error::Error;

/// The engines that a URL may name, for messages.
const KINDS: &str = "use `sqlite:FILE`, `sled:DIRECTORY`, `postgres://…`, `mysql://…`, `redis://…`, `env:VARIABLE` or `memory:`";

/// The engine and location in a store URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StoreUrl<'a> {
    /// `memory:`
    Memory,
    /// `sled:DIRECTORY`
    Sled(&'a str),
    /// `sqlite:FILE`
    Sqlite(&'a str),
    /// `postgres://…` or `postgresql://…`: the whole URL.
    Postgres(&'a str),
    /// `mysql://…` or `mariadb://…`: the whole URL.
    Mysql(&'a str),
    /// `redis://…`, `rediss://…`, `redis+cluster://…` or `rediss+cluster://…`: the whole URL.
    Redis(&'a str),
    /// `env:VARIABLE`: the URL is in that environment variable, so that no secret is in the file.
    Variable(&'a str),
}

impl<'a> StoreUrl<'a> {
    /// Parses a URL. The error is a message and a hint.
    pub(super) fn parse(url: &'a str) -> Result<Self, (String, Option<String>)> {
        let Some((scheme, place)) = url.split_once(':') else {
            return Err((format!("`{url}` names no engine"), Some(KINDS.to_owned())));
        };
        let shown = without_password(url);
        match (scheme, place) {
            ("memory", "") => Ok(Self::Memory),
            ("memory", _) => Err((format!("`{shown}` has a place and memory has none"), Some("write `memory:`".to_owned()))),
            ("sled" | "sqlite" | "env", "") => Err((format!("`{shown}` names no place"), Some(KINDS.to_owned()))),
            ("sled", directory) => Ok(Self::Sled(directory)),
            ("sqlite", file) => Ok(Self::Sqlite(file)),
            ("env", variable) => Ok(Self::Variable(variable)),
            ("postgres" | "postgresql" | "mysql" | "mariadb" | "redis" | "rediss" | "redis+cluster" | "rediss+cluster", server) => {
                if server.strip_prefix("//").is_none_or(str::is_empty) {
                    let hint = format!("write `{scheme}://USER@HOST/…`");
                    return Err((format!("`{shown}` names no server"), Some(hint)));
                }
                Ok(match scheme {
                    "postgres" | "postgresql" => Self::Postgres(url),
                    "mysql" | "mariadb" => Self::Mysql(url),
                    _ => Self::Redis(url),
                })
            }
            (other, _) => {
                let engines = ["memory", "sled", "sqlite", "postgres", "mysql", "mariadb", "redis", "rediss", "env"];
                Err((format!("no store engine is named `{other}`"), did_you_mean(other, engines).or(Some(KINDS.to_owned()))))
            }
        }
    }
}

/// Returns the URL in an environment variable.
pub(super) fn from_variable(variable: &str) -> Result<String, Error> {
    std::env::var(variable)
        .ok()
        .filter(|url| !url.is_empty())
        .ok_or_else(|| Error::invalid_argument(format!("the variable `{variable}` is not set; put the URL of the store into it")))
}

/// URL parameters that are not secret.
const SHOWN: &[&str] =
    &["application_name", "connections_max", "dbname", "host", "port", "prefix", "require_ssl", "schema", "sslmode", "user"];

/// Returns a URL that is safe to show: without the password, and without parameter values unless the parameter is known to be harmless.
pub fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once(':') else { return url.to_owned() };
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
    fn server_urls_are_kept_whole() {
        for url in ["postgres://h/d", "postgresql://h/d"] {
            assert_eq!(StoreUrl::parse(url), Ok(StoreUrl::Postgres(url)));
        }
        assert_eq!(StoreUrl::parse("mariadb://h/d"), Ok(StoreUrl::Mysql("mariadb://h/d")));
        assert_eq!(StoreUrl::parse("rediss+cluster://h"), Ok(StoreUrl::Redis("rediss+cluster://h")));
        assert_eq!(StoreUrl::parse("env:DATABASE_URL"), Ok(StoreUrl::Variable("DATABASE_URL")));
        for url in ["postgres:", "postgres:db", "mysql://", "env:"] {
            assert!(StoreUrl::parse(url).is_err(), "{url}");
        }
        let (message, _) = StoreUrl::parse("postgre://ada:s3cret@db").expect_err("no such engine");
        assert!(!message.contains("s3cret"));
    }
}
