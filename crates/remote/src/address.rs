//! The URL of another server, parsed and checked before anything is sent.

use percent_encoding::percent_decode_str;
use reqwest::Url;
use std::net::IpAddr;
use treehold_core::error::{Error, Result};
use treehold_core::escape::{escape_bytes, is_unreserved};
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
        let Ok(path) = percent_decode_str(url.path()).decode_utf8() else {
            return refused("the path in the URL of the remote server is not UTF-8");
        };
        let base = VfsPathBuf::parse(&path)?;
        url.set_path("/");
        Ok(Self { origin: url, base })
    }

    /// Returns the server's name in messages: scheme, host and port.
    pub(super) fn peer(&self) -> String {
        self.origin.as_str().trim_end_matches('/').to_owned()
    }
}

pub(super) fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Percent-encodes all but unreserved characters, so that any text fits into a header.
pub(super) fn encoded(text: &str) -> String {
    escape_bytes(text.as_bytes(), is_unreserved)
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
            ("https://host/%zz%4", "https://host", "/%zz%4"),
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
        assert_eq!(percent_decode_str(&encoded("a b/%\r\n€")).decode_utf8().as_deref(), Ok("a b/%\r\n€"));
    }
}
