//! Connections to public addresses only, for servers whose name somebody else chose.
//!
//! A name is resolved once for each connection, and the connection goes to an address that was checked, so a name server that changes its
//! answer gains nothing.

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use treehold_core::error::{Error, ErrorKind, Result};

/// Resolves names to their public addresses.
#[derive(Debug)]
pub(super) struct PublicOnly;

impl Resolve for PublicOnly {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            // One private address among public ones is as suspicious as private ones alone.
            if found.is_empty() || !found.iter().all(|address| is_public(address.ip())) {
                return Err(NotPublic.into());
            }
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

/// Refuses a URL whose host is an address that is not public. Such a host is never resolved.
///
/// # Errors
/// [`PermissionDenied`](ErrorKind::PermissionDenied).
pub(super) fn check_url(url: &Url) -> Result<()> {
    let address = match url.host_str() {
        Some(host) => host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().ok(),
        None => None,
    };
    match address {
        Some(address) if !is_public(address) => {
            Err(Error::new(ErrorKind::PermissionDenied, format!("`{}` cannot be asked: {NotPublic}", url.authority())).without_effect())
        }
        _ => Ok(()),
    }
}

/// The cause of a refused connection.
#[derive(Debug)]
struct NotPublic;

impl fmt::Display for NotPublic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("its address is not public, and no private address is allowed for a server that is not registered")
    }
}

impl std::error::Error for NotPublic {}

/// Returns whether an address can be reached from anywhere, by the registries of [special
/// IPv4](https://www.iana.org/assignments/iana-ipv4-special-registry) and
/// [IPv6](https://www.iana.org/assignments/iana-ipv6-special-registry) addresses.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let is_special = match (a, b, c) {
        // This network, private networks, loopback, link-local, carrier-grade NAT.
        (0 | 10 | 127, ..) | (172, 16..=31, _) | (192, 168, _) | (169, 254, _) | (100, 64..=127, _) => true,
        // Protocol assignments, documentation, 6to4 relays, benchmarks.
        (192, 0, 0 | 2) | (198, 51, 100) | (203, 0, 113) | (192, 88, 99) | (198, 18 | 19, _) => true,
        // Multicast, reserved, broadcast.
        (224.., ..) => true,
        _ => false,
    };
    !is_special
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let segments = address.segments();
    let embedded = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        Ipv4Addr::new(a, b, c, d)
    };
    match segments {
        // Mapped and translated IPv4 addresses, and 6to4: what they contain decides.
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => {
            is_public_v4(embedded(high, low))
        }
        // Teredo, benchmarks, and other protocol assignments; documentation.
        [0x2001, 0..=0x1ff, ..] | [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => false,
        // Global unicast.
        [first, ..] => (0x2000..=0x3fff).contains(&first),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::str::FromStr as _;

    #[test]
    fn only_addresses_that_anyone_can_reach_are_public() {
        for public in ["1.1.1.1", "8.8.8.8", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "64:ff9b::8.8.8.8", "2002:808:808::1"] {
            assert!(is_public(public.parse().expect(public)), "{public}");
        }
        for private in [
            "0.0.0.0",
            "10.0.0.1",
            "100.64.0.1",
            "127.0.0.1",
            "127.255.0.1",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "192.0.0.1",
            "192.0.2.1",
            "198.18.0.1",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::127.0.0.1",
            "64:ff9b::10.0.0.1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "ff02::1",
            "2001:db8::1",
            "2001::1",
            "2002:7f00:1::1",
            "64:ff9b:1::1",
        ] {
            assert!(!is_public(private.parse().expect(private)), "{private}");
        }
    }

    #[test]
    fn url_with_a_private_address_is_refused_however_it_is_written() {
        for url in [
            "https://127.0.0.1",
            "https://2130706433",
            "https://0x7f.1",
            "https://017700000001",
            "https://[::1]",
            "https://[::ffff:7f00:1]",
        ] {
            let error = check_url(&Url::parse(url).expect(url)).expect_err(url);
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{url}");
        }
        for url in ["https://1.1.1.1", "https://example.org", "https://[2606:4700::1111]"] {
            assert!(check_url(&Url::parse(url).expect(url)).is_ok(), "{url}");
        }
    }

    #[tokio::test]
    async fn name_with_a_private_address_is_not_resolved() {
        let error = PublicOnly.resolve(Name::from_str("localhost").expect("a name")).await.err().expect("it is this machine");
        assert!(error.to_string().contains("not public"), "{error}");
    }
}
