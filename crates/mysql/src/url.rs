//! Parsing of store URLs: our parameters are extracted, the client parses the rest.

use super::error::failed;
use mysql_async::{Opts, OptsBuilder};
use std::time::Duration;
use treehold_core::error::{Error, Result};
use treehold_store::server_url::take_parameters;

/// The longest table prefix in bytes. It keeps table names well below the server's limit of 64.
const PREFIX_BYTES_MAX: usize = 32;

/// How long a connection may be silent before TCP probes it, unless the URL sets it. Probing detects a server that
/// vanished.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// A parsed URL.
#[derive(Debug)]
pub(super) struct ParsedUrl {
    pub(super) opts: Opts,
    pub(super) prefix: Option<String>,
    pub(super) connections_max: Option<usize>,
    pub(super) timeout: Option<Duration>,
}

/// Parses `mysql://` and `mariadb://` URLs.
pub(super) fn parse(url: &str) -> Result<ParsedUrl> {
    let (url, [prefix, connections_max, timeout, prefer_socket]) =
        take_parameters(url, ["prefix", "connections_max", "timeout", "prefer_socket"])?;
    let url = match url.split_once("://") {
        Some(("mysql" | "mariadb", rest)) => format!("mysql://{rest}"),
        _ => return Err(Error::invalid_argument("the URL of the store names another engine; write `mysql://USER@HOST/DATABASE`")),
    };
    let opts = Opts::from_url(&url).map_err(|error| failed(error.into()))?;
    if opts.db_name().is_none_or(str::is_empty) {
        return Err(Error::invalid_argument("the URL of the store names no database; write `mysql://USER@HOST/DATABASE`"));
    }
    // Connect to the named host instead of a socket that the server advertises. Count changed rows instead of matched
    // ones: sweeps rely on the number of deleted rows.
    let is_socket_preferred = prefer_socket.as_deref() == Some("true");
    let keepalive = opts.tcp_keepalive().or(Some(KEEPALIVE));
    let opts = OptsBuilder::from_opts(opts).prefer_socket(is_socket_preferred).client_found_rows(false).tcp_keepalive(keepalive).into();
    Ok(ParsedUrl {
        opts,
        prefix: prefix.as_deref().map(checked_prefix).transpose()?,
        connections_max: connections_max.as_deref().map(checked_connections).transpose()?,
        timeout: timeout.as_deref().map(checked_timeout).transpose()?,
    })
}

/// Checks a table prefix, which goes into statements unquoted.
pub(super) fn checked_prefix(prefix: &str) -> Result<String> {
    let is_plain = prefix.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if prefix.len() > PREFIX_BYTES_MAX || !is_plain {
        let message = format!("the prefix of the store's tables is invalid; use up to {PREFIX_BYTES_MAX} letters, digits and `_`");
        return Err(Error::invalid_argument(message));
    }
    Ok(prefix.to_owned())
}

fn checked_connections(value: &str) -> Result<usize> {
    value
        .parse()
        .ok()
        .filter(|&connections| connections > 0)
        .ok_or_else(|| Error::invalid_argument("`connections_max` in the URL of the store is not a number of connections; use at least 1"))
}

fn checked_timeout(value: &str) -> Result<Duration> {
    value
        .parse()
        .ok()
        .filter(|&seconds| seconds > 0)
        .map(Duration::from_secs)
        .ok_or_else(|| Error::invalid_argument("`timeout` in the URL of the store is not a number of seconds; use at least 1"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use treehold_core::error::ErrorKind;

    #[test]
    fn url_parameters_are_split_between_us_and_the_client() {
        let parsed = parse("mariadb://ada:secret@db:3307/files?prefix=a_&connections_max=3&timeout=7&require_ssl=true").expect("a URL");
        assert_eq!((parsed.prefix.as_deref(), parsed.connections_max), (Some("a_"), Some(3)));
        assert_eq!(parsed.timeout, Some(Duration::from_secs(7)));
        assert_eq!((parsed.opts.ip_or_hostname(), parsed.opts.tcp_port(), parsed.opts.db_name()), ("db", 3307, Some("files")));
        assert!(parsed.opts.ssl_opts().is_some() && !parsed.opts.prefer_socket());
        assert!(parse("mysql://db/x?prefer_socket=true").expect("a URL").opts.prefer_socket());
    }

    #[test]
    fn invalid_url_is_refused_without_revealing_secrets() {
        for url in [
            "mysql://ada:secret@db",
            "mysql://ada:secret@db/x?prefix=a;b",
            "mysql://ada:secret@db/x?connections_max=0",
            "mysql://ada:secret@db/x?timeout=0",
            "mysql://ada:secret@db/x?nonsense=1",
            "postgres://ada:secret@db/x",
        ] {
            let error = parse(url).expect_err(url);
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{url}");
            assert!(!error.message().contains("secret"), "{error}");
        }
    }
}
