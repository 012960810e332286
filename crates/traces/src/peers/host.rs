//! Hosts: when two names mean the same server.

use crate::id::Location;
use treehold_core::error::{Error, Result};
use url::{Host, Url};

/// A host with its port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Authority {
    host: Host,
    port: u16,
    /// The port that a location without one means.
    default_port: u16,
}

impl Authority {
    /// Returns the authority of a URL of `http` or `https`.
    pub(super) fn of_url(text: &str) -> Option<Self> {
        let url = Url::parse(text).ok()?;
        let default_port = match url.scheme() {
            "https" => 443,
            "http" => 80,
            _ => return None,
        };
        let host = without_dot(url.host()?.to_owned());
        Some(Self { host, port: url.port_or_known_default()?, default_port })
    }

    /// Parses the host of an address `agent://HOST/ID`. A number such as `2130706433` is an address, as in every URL.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for a text that is no host.
    pub(super) fn of_location(text: &str) -> Result<Self> {
        // `Location::host` allows only characters that cannot end the authority.
        Self::of_url(&format!("https://{text}/")).ok_or_else(|| Error::invalid_argument(format!("`{text}` is no host")))
    }

    /// Returns whether a location means this authority. A location without a port means the port of the scheme.
    pub(super) fn is_meant_by(&self, location: &Self, has_port: bool) -> bool {
        let port = if has_port { location.port } else { self.default_port };
        self.host == location.host && self.port == port
    }
}

/// Returns whether the text of a [`Location::Host`] names a port.
pub(super) fn has_port(location: &str) -> bool {
    location.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'))
}

/// Returns the location that names the server of a URL by its host.
pub(super) fn location_of(url: &str) -> Option<Location> {
    let url = Url::parse(url).ok()?;
    let host = url.host_str()?;
    let text = url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
    Location::host(&text).ok()
}

/// Returns whether a URL has more than a host.
pub(super) fn has_path(url: &str) -> bool {
    Url::parse(url).is_ok_and(|url| url.path() != "/")
}

/// Drops the final dot of an absolute name.
fn without_dot(host: Host<String>) -> Host<String> {
    match host {
        Host::Domain(name) => Host::Domain(name.strip_suffix('.').map(str::to_owned).unwrap_or(name)),
        host => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_mean_the_servers_of_their_host_and_port() {
        for (location, url, is_meant) in [
            ("h.example", "https://h.example", true),
            ("h.example", "https://H.Example:443/w", true),
            ("h.example.", "https://h.example", true),
            ("h.example:443", "https://h.example", true),
            ("h.example:8000", "https://h.example:8000", true),
            ("h.example", "http://h.example", true),
            ("h.example:80", "http://h.example", true),
            ("127.0.0.1:9", "http://127.0.0.1:9", true),
            ("2130706433:9", "http://127.0.0.1:9", true),
            ("[::1]:9", "http://[0:0::1]:9", true),
            ("h.example", "https://h.example:8000", false),
            ("h.example:8000", "https://h.example", false),
            ("h.example:443", "http://h.example", false),
            ("h.example.org", "https://h.example", false),
            ("example", "https://h.example", false),
            ("localhost:9", "http://127.0.0.1:9", false),
        ] {
            let registered = Authority::of_url(url).expect(url);
            let meant = Authority::of_location(location).expect(location);
            assert_eq!(registered.is_meant_by(&meant, has_port(location)), is_meant, "{location} {url}");
        }
    }
}
