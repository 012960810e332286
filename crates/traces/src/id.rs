//! The ids of traces, local and qualified.
//!
//! A local id names a trace of the store at hand: `abc-123`. A qualified id also names where the trace lives, by host
//! (`agent://host:port/abc-123`) or by the name of a registered agent (`@laptop/abc-123`). [`TraceAddress`] is either.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use treehold_core::error::{Error, Result};
use treehold_core::scope::check_id;

/// The beginning of an id that names a host.
const SCHEME: &str = "agent://";

/// The longest name of a host or agent, in bytes.
const LOCATION_BYTES_MAX: usize = 255;

/// The source of errors about text that is not the id of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct BadTraceId;

impl fmt::Display for BadTraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bad trace id")
    }
}

impl std::error::Error for BadTraceId {}

fn bad(why: impl fmt::Display) -> Error {
    Error::invalid_argument(format!("bad trace id: {why}")).with_source(BadTraceId)
}

/// The id of a trace within one store: 1 to 255 bytes without `/` and control characters.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TraceId(String);

impl TraceId {
    /// Parses a local id. It may contain `@`, also at its beginning.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument), with the source [`BadTraceId`], for text that is empty, `.`, `..` or
    /// `_treehold`, has over 255 bytes, or contains `/` or a control character.
    pub fn new(id: impl Into<String>) -> Result<Self> {
        let id = id.into();
        if id.contains('/') {
            return Err(bad("a local id contains no `/`; qualified ids are `agent://HOST/ID` and `@AGENT/ID`"));
        }
        check_id("trace", &id).map_err(|error| bad(error.message()))?;
        Ok(Self(id))
    }

    /// Makes a new random id.
    pub fn random() -> Self {
        Self(uuid::Uuid::new_v4().to_string())
    }

    /// Makes the id of a sub-trace: `{parent}@{mode}-{yyyymmddHHMMSS}-{number}`, in UTC, with a number of at least three digits.
    ///
    /// # Errors
    /// As [`TraceId::new`], for a mode that cannot be part of an id, or a parent whose id leaves no space.
    pub fn of_sub_trace(parent: &Self, mode: &str, at: Timestamp, number: u32) -> Result<Self> {
        let time = at.to_zoned(TimeZone::UTC).strftime("%Y%m%d%H%M%S").to_string();
        Self::new(format!("{parent}@{mode}-{time}-{number:03}"))
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Where a trace lives, if not in the store at hand.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Location {
    /// A host, with its port if that is not the default one: `host`, `host:8080`, `[::1]:8080`. In lower case.
    Host(String),
    /// A registered agent, by its name.
    Agent(String),
}

impl Location {
    /// Parses a host with an optional port.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument), with the source [`BadTraceId`].
    pub fn host(text: &str) -> Result<Self> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, after) = rest.split_once(']').ok_or_else(|| bad("an address in brackets needs its `]`"))?;
                if host.parse::<std::net::Ipv6Addr>().is_err() {
                    return Err(bad("the brackets of a host hold an IPv6 address"));
                }
                (host, if after.is_empty() { None } else { Some(after.strip_prefix(':').ok_or_else(|| bad("a port follows `]:`"))?) })
            }
            None => match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        if host.is_empty() || text.len() > LOCATION_BYTES_MAX {
            return Err(bad("the host has 1 to 255 bytes; write `agent://HOST/ID`"));
        }
        // Without brackets: a registered name or an IPv4 address, and nothing that a URL would read as something else.
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        if !text.starts_with('[') && !host.bytes().all(is_plain) {
            return Err(bad("a host consists of letters, digits, `.`, `-` and `_`"));
        }
        let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0);
        if port.is_some_and(|port| !is_port(port)) {
            return Err(bad("a port is a number from 1 to 65535"));
        }
        Ok(Self::Host(text.to_ascii_lowercase()))
    }

    /// Parses the name of an agent: 1 to 255 bytes without `/` and control characters.
    ///
    /// # Errors
    /// As [`Location::host`].
    pub fn agent(name: &str) -> Result<Self> {
        if name.contains('/') {
            return Err(bad("the name of an agent contains no `/`"));
        }
        check_id("agent", name).map_err(|error| bad(error.message()))?;
        Ok(Self::Agent(name.to_owned()))
    }

    /// Returns whether both name one place however they are written: the same agent, or the same host and port. A host without a port has
    /// that of `https`.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Host(one), Self::Host(other)) => one == other || host_and_port(one) == host_and_port(other),
            _ => self == other,
        }
    }
}

/// The port of `https`.
const DEFAULT_PORT: u16 = 443;

/// Splits the text of a [`Location::Host`] into the host as it is compared, and the port.
fn host_and_port(text: &str) -> (Cow<'_, str>, u16) {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().unwrap_or(DEFAULT_PORT)),
        _ => (text, DEFAULT_PORT),
    };
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).and_then(|host| host.parse::<std::net::Ipv6Addr>().ok());
    let host = match address {
        Some(address) => address.to_string().into(),
        // A name with a final dot is the same name.
        None => host.strip_suffix('.').unwrap_or(host).into(),
    };
    (host, port)
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(host) => write!(f, "{SCHEME}{host}"),
            Self::Agent(agent) => write!(f, "@{agent}"),
        }
    }
}

/// Parses a location as `Display` writes it: `agent://HOST[:PORT]` or `@AGENT`.
impl FromStr for Location {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match (text.strip_prefix(SCHEME), text.strip_prefix('@')) {
            (Some(host), _) => Self::host(host),
            (None, Some(agent)) => Self::agent(agent),
            (None, None) => Err(Error::invalid_argument(format!("`{}` names no place; write `@AGENT` or `agent://HOST`", shortened(text)))),
        }
    }
}

/// The id of a trace, local or qualified. `Display` and JSON are its text.
///
/// # Examples
/// ```
/// use treehold_traces::{Location, TraceAddress};
///
/// let address: TraceAddress = "@laptop/abc-123".parse()?;
/// assert_eq!(address.location(), Some(&Location::agent("laptop")?));
/// assert_eq!(address.id().as_str(), "abc-123");
/// assert!("agent://host".parse::<TraceAddress>().is_err());
/// # Ok::<(), treehold_core::error::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TraceAddress {
    location: Option<Location>,
    id: TraceId,
}

impl TraceAddress {
    /// Addresses a trace of the store at hand.
    pub fn local(id: TraceId) -> Self {
        Self { location: None, id }
    }

    /// Addresses a trace elsewhere.
    pub fn at(location: Location, id: TraceId) -> Self {
        Self { location: Some(location), id }
    }

    /// Parses an id. Only a leading `agent://`, or a leading `@` with a `/` after it, qualifies an id.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument), with the source [`BadTraceId`], for a qualified id without a
    /// location or local id, and for everything that [`TraceId::new`] refuses.
    pub fn parse(text: &str) -> Result<Self> {
        let split = |rest: &str| match rest.split_once('/') {
            Some((location, id)) if !location.is_empty() && !id.is_empty() => Ok((location.to_owned(), id.to_owned())),
            _ => Err(bad(format!("`{}` lacks a part; write `agent://HOST/ID` or `@AGENT/ID`", shortened(text)))),
        };
        if let Some(rest) = text.strip_prefix(SCHEME) {
            let (host, id) = split(rest)?;
            return Ok(Self::at(Location::host(&host)?, TraceId::new(id)?));
        }
        match text.strip_prefix('@') {
            Some(rest) if rest.contains('/') => {
                let (agent, id) = split(rest)?;
                Ok(Self::at(Location::agent(&agent)?, TraceId::new(id)?))
            }
            _ => Ok(Self::local(TraceId::new(text)?)),
        }
    }

    /// Returns where the trace lives, or `None` for the store at hand.
    pub fn location(&self) -> Option<&Location> {
        self.location.as_ref()
    }

    /// Returns the id within the store of its owner.
    pub fn id(&self) -> &TraceId {
        &self.id
    }

    /// Returns whether the trace lives in the store at hand.
    pub fn is_local(&self) -> bool {
        self.location.is_none()
    }

    /// Returns the address for the owner of the trace: without the location.
    #[must_use]
    pub fn stripped(&self) -> Self {
        Self::local(self.id.clone())
    }

    /// Returns the address for others than the owner. An id that is already qualified stays as it is.
    #[must_use]
    pub fn qualified(&self, location: &Location) -> Self {
        match self.location {
            Some(_) => self.clone(),
            None => Self::at(location.clone(), self.id.clone()),
        }
    }
}

/// Shortens text for a message.
fn shortened(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}…", &text[..end]).into(),
        None => text.into(),
    }
}

impl fmt::Display for TraceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.location {
            Some(location) => write!(f, "{location}/{}", self.id),
            None => self.id.fmt(f),
        }
    }
}

impl FromStr for TraceAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text)
    }
}

impl From<TraceId> for TraceAddress {
    fn from(id: TraceId) -> Self {
        Self::local(id)
    }
}

impl Serialize for TraceAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TraceAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        Self::parse(&text).map_err(|error| serde::de::Error::custom(error.message()))
    }
}

impl JsonSchema for TraceAddress {
    fn schema_name() -> Cow<'static, str> {
        "TraceAddress".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "The id of a trace: local (`abc-123`), or qualified by a host (`agent://host:port/abc-123`) or an agent (`@laptop/abc-123`)."
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::error::Error as _;

    #[test]
    fn ids_parse_into_location_and_local_id() {
        let host = |host: &str| Some(Location::Host(host.to_owned()));
        let agent = |agent: &str| Some(Location::Agent(agent.to_owned()));
        for (text, location, id) in [
            ("abc-123", None, "abc-123"),
            ("2f1e@explore-20260204123456-001", None, "2f1e@explore-20260204123456-001"),
            ("@abc", None, "@abc"),
            ("a:b%2F c", None, "a:b%2F c"),
            ("agent://host/abc", host("host"), "abc"),
            ("agent://Terminal.example:8000/abc", host("terminal.example:8000"), "abc"),
            ("agent://[::1]:80/abc", host("[::1]:80"), "abc"),
            ("agent://h/@x", host("h"), "@x"),
            ("@laptop/abc", agent("laptop"), "abc"),
            ("@a b/x@y", agent("a b"), "x@y"),
        ] {
            let address = TraceAddress::parse(text).expect(text);
            assert_eq!((address.location().cloned(), address.id().as_str()), (location, id), "{text}");
        }
    }

    #[test]
    fn malformed_ids_are_refused_with_a_typed_error() {
        let long = "x".repeat(256);
        for text in [
            "",
            ".",
            "..",
            "_treehold",
            "agent://",
            "agent://h",
            "agent://h/",
            "agent:///x",
            "@/x",
            "@a/",
            "@a/b/c",
            "agent://h/a/b",
            "a/b",
            "/a",
            "a\nb",
            "agent://h:/x",
            "agent://h:0/x",
            "agent://h:65536/x",
            "agent://h:+1/x",
            "agent://u@h/x",
            "agent://h?q/x",
            "agent://h#f/x",
            "agent://h%2e/x",
            "agent://[::1/x",
            "agent://[::1]x/x",
            "agent://[evil]/x",
            "agent://a b/x",
            "agent://h\\/x",
            "agent://../x/",
            &long,
        ] {
            let error = TraceAddress::parse(text).expect_err(text);
            assert!(error.source().is_some_and(|source| source.is::<BadTraceId>()), "{text}: {error}");
        }
    }

    #[test]
    fn locations_parse_as_they_are_written() {
        for location in [Location::agent("laptop").expect("valid"), Location::host("cloud.example:8000").expect("valid")] {
            assert_eq!(location.to_string().parse::<Location>().expect("valid"), location);
        }
        for text in ["", "laptop", "https://cloud.example", "agent://", "@", "@a/b", "agent://h/x"] {
            assert!(text.parse::<Location>().is_err(), "{text}");
        }
    }

    #[test]
    fn locations_are_the_same_however_a_host_is_written() {
        let location = |text: &str| TraceAddress::parse(&format!("{text}/x")).expect(text).location().expect("qualified").clone();
        for (one, other, is_same) in [
            ("agent://Cloud.example", "agent://cloud.example", true),
            ("agent://cloud.example", "agent://cloud.example:443", true),
            ("agent://cloud.example.", "agent://cloud.example", true),
            ("agent://cloud.example.:8000", "agent://cloud.example:8000", true),
            ("agent://[::1]", "agent://[0:0::1]:443", true),
            ("@cloud", "@cloud", true),
            ("agent://cloud.example", "agent://cloud.example:8000", false),
            ("agent://[::1]:1", "agent://[::1]:2", false),
            ("agent://cloud.example", "agent://cloud.example.org", false),
            ("@cloud", "@Cloud", false),
            ("@cloud", "agent://cloud", false),
        ] {
            let (one_location, other_location) = (location(one), location(other));
            assert_eq!((one_location.is_same(&other_location), other_location.is_same(&one_location)), (is_same, is_same), "{one} {other}");
        }
    }

    #[test]
    fn sub_traces_are_named_after_their_parent() {
        let at: Timestamp = "2026-02-04T12:34:56Z".parse().expect("valid");
        let id = TraceId::of_sub_trace(&TraceId::new("abc").expect("valid"), "explore", at, 1).expect("valid");
        assert_eq!(id.as_str(), "abc@explore-20260204123456-001");
        assert!(TraceId::of_sub_trace(&TraceId::new("x".repeat(250)).expect("valid"), "explore", at, 1).is_err());
    }

    proptest! {
        #[test]
        fn any_text_parses_into_an_address_that_reads_back_or_is_refused(text in "(agent://|@)?[a-zA-Z0-9@:/._\\[\\]% -]{0,24}") {
            if let Ok(address) = TraceAddress::parse(&text) {
                prop_assert_eq!(&TraceAddress::parse(&address.to_string()).expect("its own text"), &address);
                let qualified = address.stripped().qualified(&Location::Agent("a".into()));
                prop_assert_eq!(qualified.id(), address.id());
            }
        }
    }
}
