//! The URL of another server, parsed and checked before anything is sent.

use reqwest::Url;
use std::fmt::Write as _;
use std::net::IpAddr;
use treehold_core::error::{Error, Result};
use treehold_core::path::VfsPathBuf;

/// A server, and the directory of its tree that this backend shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Address {
    /// Scheme, host and port, with the path `/`.
    pub(super) origin: Url,
    /// The directory within the remote tree.
    pub(super) base: VfsPathBuf,
}

impl Address {
    /// Parses a URL, without any lookup.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for an invalid server URL, and for one that would send a
    /// token unencrypted. The message never repeats a URL that contains a secret.
    pub(super) fn parse(text: &str, allows_plain_http: bool) -> Result<Self> {
        let refused = |why: &str| Err(Error::invalid_argument(format!("{why}; write the server as `https://HOST:PORT/DIRECTORY`")));
        let Ok(mut url) = Url::parse(text) else { return refused("the URL of the remote server is invalid") };
        if !matches!(url.scheme(), "http" | "https") {
            return refused("the URL of the remote server must use `https` or `http`");
        }
        if !url.username().is_empty() || url.password().is_some() {
            return refused("the URL of the remote server must not contain a user; configure its token separately");
        }
        if url.query().is_some() || url.fragment().is_some() {
            return refused("the URL of the remote server must not have a query or a fragment");
        }
        let Some(host) = url.host_str() else { return refused("the URL of the remote server has no host") };
        if url.scheme() == "http" && !allows_plain_http && !is_loopback(host) {
            return Err(Error::invalid_argument(format!(
                "`http://{host}` would receive content and token unencrypted; use `https`, or allow this with `plain_http = true`"
            )));
        }
        let Some(path) = decoded(url.path()) else { return refused("the path in the URL of the remote server is not UTF-8") };
        let base = VfsPathBuf::parse(&path)?;
        url.set_path("/");
        Ok(Self { origin: url, base })
    }

    /// Returns the server's name in messages: scheme, host and port.
    pub(super) fn peer(&self) -> String {
        self.origin.as_str().trim_end_matches('/').to_owned()
    }
}

fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Decodes percent-encoding; `None` if the result is not UTF-8.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escaped = match (first, after) {
            (b'%', [high, low, ..]) => std::str::from_utf8(&[*high, *low]).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok()),
            _ => None,
        };
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &after[2..] } else { after };
    }
    String::from_utf8(bytes).ok()
}

/// Percent-encodes all but the unreserved characters of RFC 3986 (letters, digits and `-._~`), so that any text fits
/// into a header.
pub(super) fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'-' | b'.' | b'_' | b'~' => encoded.push(byte.into()),
            _ if byte.is_ascii_alphanumeric() => encoded.push(byte.into()),
            _ => write!(encoded, "%{byte:02X}").expect("a string takes everything"),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_parses_into_server_and_directory() {
        for (url, peer, base) in [
            ("https://host:7777", "https://host:7777", "/"),
            ("https://host/workspace/", "https://host", "/workspace"),
            ("https://host/a%20b/%E2%82%AC", "https://host", "/a b/€"),
            ("http://127.0.0.1:80/x", "http://127.0.0.1", "/x"),
            ("http://[::1]:8080", "http://[::1]:8080", "/"),
            ("http://localhost:1/a", "http://localhost:1", "/a"),
        ] {
            let address = Address::parse(url, false).expect(url);
            assert_eq!((address.peer().as_str(), address.base.as_str()), (peer, base));
        }
    }

    #[test]
    fn invalid_or_insecure_url_is_refused_without_revealing_secrets() {
        for url in [
            "host:7777",
            "ftp://host",
            "file:///etc/passwd",
            "https://",
            "https://ada:s3cret@host",
            "https://s3cret@host",
            "https://host?token=s3cret",
            "https://host#s3cret",
            "http://host",
            "http://10.0.0.1",
            "http://127.0.0.1.example.org",
            "http://localhost.example.org",
            "https://host/%FF",
            "https://host/a%2F..%2Fb",
        ] {
            let error = Address::parse(url, false).expect_err(url);
            assert!(!error.message().contains("s3cret"), "{error}");
        }
        Address::parse("http://host", true).expect("it was allowed");
    }

    #[test]
    fn encoded_text_fits_into_a_header() {
        assert_eq!(encoded("ada-1._~"), "ada-1._~");
        assert_eq!(encoded("a b/%\r\n€"), "a%20b%2F%25%0D%0A%E2%82%AC");
        assert_eq!(decoded(&encoded("a b/%\r\n€")).as_deref(), Some("a b/%\r\n€"));
        assert_eq!(decoded("%zz%4").as_deref(), Some("%zz%4"));
    }
}
