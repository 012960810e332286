//! Parsing of store URLs: the nodes, how to connect, and the name of the store.

use ::redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion};
use std::fmt;
use treehold_core::error::{Error, ErrorKind, Result};

/// The default name of a store.
const PREFIX: &str = "treehold";

/// The longest name of a store in bytes.
const PREFIX_BYTES_MAX: usize = 128;

/// The location of a store.
#[derive(Clone)]
pub(super) struct Address {
    /// The nodes in the URL; exactly one for a standalone server.
    pub(super) nodes: Vec<ConnectionInfo>,
    pub(super) is_cluster: bool,
    /// The name of the store. Its keys start with it, see [`Keys`](super::script::Keys).
    pub(super) prefix: String,
    /// Whether neither the URL nor the options name the store.
    pub(super) is_default: bool,
    /// The URL without password and query.
    shown: String,
}

impl Address {
    /// Parses a URL.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) with the reason. The message never contains the URL, which may
    /// hold a password.
    pub(super) fn parse(url: &str) -> Result<Self> {
        let invalid = |message: &str| Error::invalid_argument(format!("the URL of a Redis store {message}"));
        let (scheme, rest) = url.split_once("://").ok_or_else(|| invalid("must start with `redis://` or `rediss://`"))?;
        let (scheme, is_cluster) = scheme.strip_suffix("+cluster").map_or((scheme, false), |scheme| (scheme, true));
        if !matches!(scheme, "redis" | "rediss") {
            return Err(invalid("must start with `redis://`, `rediss://`, `redis+cluster://` or `rediss+cluster://`"));
        }
        if rest.contains('#') {
            return Err(invalid("cannot have a part after `#`; write `%23` for that character in a password"));
        }
        let (rest, query) = rest.split_once('?').map_or((rest, ""), |(rest, query)| (rest, query));
        let (mut prefix, mut is_default) = (PREFIX, true);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("prefix", name)) => (prefix, is_default) = (name, false),
                _ => return Err(invalid("may have only the parameter `?prefix=NAME`")),
            }
        }
        let (user, server) = rest.rsplit_once('@').map_or(("", rest), |(user, server)| (user, server));
        let (hosts, database) = server.split_once('/').map_or((server, ""), |(hosts, database)| (hosts, database));
        if !database.is_empty() && !database.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(invalid("must name its database by number, such as `redis://HOST/0`"));
        }
        if is_cluster && !matches!(database, "" | "0") {
            return Err(invalid("cannot name a database of a cluster, which has only one"));
        }
        if !is_cluster && hosts.contains(',') {
            return Err(invalid("names several hosts; write `redis+cluster://` for a cluster"));
        }
        let at = if user.is_empty() { "" } else { "@" };
        let slash = if database.is_empty() { "" } else { "/" };
        let nodes = hosts.split(',').map(|host| node(&format!("{scheme}://{user}{at}{host}{slash}{database}"))).collect::<Option<_>>();
        let nodes: Vec<ConnectionInfo> =
            nodes.ok_or_else(|| invalid("is not of the form `redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]`"))?;
        let cluster = if is_cluster { "+cluster" } else { "" };
        let shown = format!("{scheme}{cluster}://{hosts}{slash}{database}");
        let address = Self { nodes, is_cluster, prefix: PREFIX.to_owned(), is_default, shown };
        Ok(Self { is_default, ..address.with_prefix(prefix)? })
    }

    /// Sets the name of the store.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a name that is empty, too long, or contains characters that
    /// would end the hash tag.
    pub(super) fn with_prefix(mut self, prefix: &str) -> Result<Self> {
        let is_legal = |character: char| character.is_ascii_graphic() && !matches!(character, '{' | '}' | '%');
        if prefix.is_empty() || prefix.len() > PREFIX_BYTES_MAX || !prefix.chars().all(is_legal) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "the prefix of a Redis store must have 1 to {PREFIX_BYTES_MAX} ASCII characters, without braces, percent signs and spaces"
                ),
            ));
        }
        prefix.clone_into(&mut self.prefix);
        self.is_default = false;
        Ok(self)
    }

    /// Returns the connection info of a node that the cluster reported, with the credentials and TLS settings of the
    /// URL.
    pub(super) fn node(&self, host: &str, port: u16) -> ConnectionInfo {
        let first = &self.nodes[0];
        let addr = match first.addr() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls { host: host.to_owned(), port, insecure: *insecure, tls_params: tls_params.clone() }
            }
            _ => ConnectionAddr::Tcp(host.to_owned(), port),
        };
        first.clone().set_addr(addr)
    }

    /// Returns whether the connections are encrypted.
    pub(super) fn is_encrypted(&self) -> bool {
        matches!(self.nodes[0].addr(), ConnectionAddr::TcpTls { .. })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

/// Parses one node. Uses RESP3, which reports a closed connection before the next request fails on it.
fn node(url: &str) -> Option<ConnectionInfo> {
    let node = url.into_connection_info().ok()?;
    let settings = node.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    Some(node.set_redis_settings(settings))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_nodes_and_a_prefix() {
        let address = Address::parse("redis://ada:s%3Acret@host:7000/3?prefix=notes").expect("a url");
        let node = &address.nodes[0];
        assert_eq!((node.addr().to_string().as_str(), node.redis_settings().db()), ("host:7000", 3));
        assert_eq!((node.redis_settings().username(), node.redis_settings().password()), (Some("ada"), Some("s:cret")));
        assert_eq!((address.prefix.as_str(), address.to_string().as_str()), ("notes", "redis://host:7000/3"));
        assert!(!address.is_cluster && !address.is_encrypted());

        let address = Address::parse("rediss+cluster://:secret@one,two:7001,[::1]:7002").expect("a url");
        let nodes: Vec<_> = address.nodes.iter().map(|node| node.addr().to_string()).collect();
        assert_eq!(nodes, ["one:6379", "two:7001", "::1:7002"]);
        assert!(address.is_cluster && address.is_encrypted());
        assert_eq!((address.prefix.as_str(), address.to_string().as_str()), ("treehold", "rediss+cluster://one,two:7001,[::1]:7002"));
        assert_eq!(address.node("three", 9).addr().to_string(), "three:9");
    }

    #[test]
    fn invalid_url_is_refused_without_revealing_its_password() {
        for url in [
            "redis:host",
            "http://host",
            "redis://",
            "redis://:s3cret@one,two",
            "redis://:s3cret@host/name",
            "redis+cluster://:s3cret@host/3",
            "redis://:s3cret@host?prefix={a}",
            "redis://:s3cret@host?prefix=",
            "redis://:s3cret@host?timeout=3",
            "redis://:s3cret@host#insecure",
            "redis://:s3cret@host:port",
        ] {
            let Err(error) = Address::parse(url) else { panic!("{url} is accepted") };
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{url}");
            assert!(!error.message().contains("s3cret"), "{error}");
        }
    }
}
