//! What a store's URL says: which engine, and where. Passwords are shown to nobody.

use super::fault::did_you_mean;
use crate::error::Error;

/// The engines that a URL can name, for messages.
const KINDS: &str = "use `sqlite:FILE`, `sled:DIRECTORY`, `postgres://…`, `mysql://…`, `redis://…`, `env:VARIABLE` or `memory:`";

/// An engine and its place, as a store's URL names them.
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
    /// `env:VARIABLE`: what that variable of the environment says, so that no secret stands in a file.
    Variable(&'a str),
}

impl<'a> StoreUrl<'a> {
    /// Parses a URL; the fault is a message and a hint.
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

/// Reads the URL that a variable of the environment holds.
pub(super) fn from_variable(variable: &str) -> Result<String, Error> {
    std::env::var(variable)
        .ok()
        .filter(|url| !url.is_empty())
        .ok_or_else(|| Error::invalid_argument(format!("the variable `{variable}` is not set; put the URL of the store into it")))
}

/// Parameters of a URL that hold no secret.
const SHOWN: &[&str] =
    &["application_name", "connections_max", "dbname", "host", "port", "prefix", "require_ssl", "schema", "sslmode", "user"];

/// Returns a URL as it may be shown: without the password, and without what a parameter says that is not known to be harmless.
pub fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once(':') else { return url.to_owned() };
    if matches!(scheme, "memory" | "sled" | "sqlite" | "env" | "agent") {
        return url.to_owned();
    }
    // A password may hold any character where somebody did not escape it: the last `@` of all ends it.
    let (user, place) = match rest.trim_start_matches('/').rsplit_once('@') {
        Some((user, place)) => (Some(user), place),
        None => (None, rest.trim_start_matches('/')),
    };
    let user = match user.map(|user| (user.split([':', '/', '?', '#']).next().unwrap_or_default(), user)) {
        Some((name, user)) if name.len() < user.len() => format!("{name}:***@"),
        Some((name, _)) => format!("{name}@"),
        // Without `//` and `@` it is no URL of a server, and whatever it is may be secret.
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
    fn passwords_are_not_shown() {
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
    fn servers_are_named_by_their_whole_url() {
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
