//! `[serve]`: the limits on connections, requests and streams of a server.

use super::check::{positive_time, time_from};
use super::fault::Broken;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use treehold_core::error::Result;
#[cfg(feature = "serve")]
use treehold_serve::{ConnectionLimits, ServeOptions};

/// The limits of a server. `docs/http.md` describes what happens beyond each limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct ServeConfig {
    /// The most connections at once. Default 4,096, or fewer if the process may open fewer files.
    pub connections_max: usize,
    /// The most connections at once from one address. Default 1,024.
    pub connections_per_address_max: usize,
    /// How long a connection may take to send its first request, and any request to send its head. Default `15s`.
    pub head_timeout: String,
    /// How long a connection may be idle between two requests. Default `75s`.
    pub idle_timeout: String,
    /// How long a client may read nothing of a response that waits for it. Default `30s`.
    pub write_timeout: String,
    /// How long a request body may pause. Default `15s`.
    pub body_timeout: String,
    /// The minimum rate of a request body, in bytes per second, after the first `body_timeout`. Default 1,024.
    pub body_bytes_per_second_min: u64,
    /// The minimum rate at which a client reads a response, in bytes per second, after the first `write_timeout`. Default 1,024.
    pub answer_bytes_per_second_min: u64,
    /// The most concurrent requests. Default 1,024.
    pub requests_max: usize,
    /// The most concurrent requests of one user. Default 256.
    pub requests_per_user_max: usize,
    /// The most event streams open at once. Default 1,024.
    pub streams_max: usize,
    /// How long a request may take. Default `60s`.
    pub deadline: String,
    /// How long the response to a request with an `Idempotency-Key` is kept for repetitions, at least `1m`. Default `24h`.
    pub idempotency_time: String,
    /// The servers to dial, so that they can send requests here, by any name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub dial: BTreeMap<String, DialConfig>,
}

/// A server to dial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct DialConfig {
    /// The URL: `https://HOST:PORT`.
    pub url: String,
    /// Where its token is: `env:VARIABLE` or `file:PATH`. By default no token is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// The name to connect as. Default that of the token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What its requests may do without a token of this server: `read`, `write` or `admin`. By default they need a token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<String>,
    /// With `access`: the subtrees that such requests may see. Default the whole tree.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
    /// Whether to allow `http` to another host, which sends content and token unencrypted. Default false.
    #[serde(default)]
    pub plain_http: bool,
}

impl Default for ServeConfig {
    fn default() -> Self {
        Self {
            connections_max: 4_096,
            connections_per_address_max: 1_024,
            head_timeout: "15s".to_owned(),
            idle_timeout: "75s".to_owned(),
            write_timeout: "30s".to_owned(),
            body_timeout: "15s".to_owned(),
            body_bytes_per_second_min: 1_024,
            answer_bytes_per_second_min: 1_024,
            requests_max: 1_024,
            requests_per_user_max: 256,
            streams_max: 1_024,
            deadline: "60s".to_owned(),
            idempotency_time: "24h".to_owned(),
            dial: BTreeMap::new(),
        }
    }
}

impl ServeConfig {
    /// Returns how long a connection may take to send a request head.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for a malformed duration.
    pub fn head_timeout(&self) -> Result<Duration> {
        waited_for(&self.head_timeout)
    }

    /// Returns how long a connection may be idle between two requests.
    ///
    /// # Errors
    /// As [`ServeConfig::head_timeout`].
    pub fn idle_timeout(&self) -> Result<Duration> {
        waited_for(&self.idle_timeout)
    }

    /// Returns how long a client may read nothing of a response.
    ///
    /// # Errors
    /// As [`ServeConfig::head_timeout`].
    pub fn write_timeout(&self) -> Result<Duration> {
        waited_for(&self.write_timeout)
    }

    /// Returns how long a request body may pause.
    ///
    /// # Errors
    /// As [`ServeConfig::head_timeout`].
    pub fn body_timeout(&self) -> Result<Duration> {
        waited_for(&self.body_timeout)
    }

    /// Returns how long a request may take.
    ///
    /// # Errors
    /// As [`ServeConfig::head_timeout`].
    pub fn deadline(&self) -> Result<Duration> {
        waited_for(&self.deadline)
    }

    /// Returns how long the response to a request with a key is kept.
    ///
    /// # Errors
    /// As [`ServeConfig::head_timeout`], and for less than a minute.
    pub fn idempotency_time(&self) -> Result<Duration> {
        let (min, what) = (Duration::from_secs(60), "how long to keep a response");
        time_from(min, "1m", &self.idempotency_time, what, "write at least `1m`, such as `24h`")
    }

    /// Returns the options of a server with these bounds.
    ///
    /// # Errors
    /// As [`ServeConfig::head_timeout`].
    #[cfg(feature = "serve")]
    pub fn applied_to(&self, options: ServeOptions) -> Result<ServeOptions> {
        let connections = ConnectionLimits::new()
            .with_connections_max(self.connections_max, self.connections_per_address_max)
            .with_head_timeout(self.head_timeout()?)
            .with_idle_timeout(self.idle_timeout()?)
            .with_write_timeout(self.write_timeout()?)
            .with_body_pace(self.body_timeout()?, self.body_bytes_per_second_min)
            .with_answer_bytes_per_second_min(self.answer_bytes_per_second_min);
        let options = options.with_connections(connections).with_requests_max(self.requests_max);
        let options = options.with_requests_per_user_max(self.requests_per_user_max).with_streams_max(self.streams_max);
        Ok(options.with_deadline(self.deadline()?).with_idempotency_time(self.idempotency_time()?))
    }

    /// Checks each value.
    pub(super) fn check(&self) -> Result<(), Broken> {
        let counts = [
            ("connections_max", self.connections_max),
            ("connections_per_address_max", self.connections_per_address_max),
            ("requests_max", self.requests_max),
            ("requests_per_user_max", self.requests_per_user_max),
            ("streams_max", self.streams_max),
        ];
        for (key, count) in counts {
            if count == 0 {
                let message = format!("`{key}` is 0, which would refuse every client");
                return Err(Broken::new(&["serve", key], message).with_hint(Some("set at least 1".to_owned())));
            }
        }
        let times = [
            ("head_timeout", self.head_timeout()),
            ("idle_timeout", self.idle_timeout()),
            ("write_timeout", self.write_timeout()),
            ("body_timeout", self.body_timeout()),
            ("deadline", self.deadline()),
            ("idempotency_time", self.idempotency_time()),
        ];
        for (key, time) in times {
            time.map_err(|error| Broken::new(&["serve", key], error.message()))?;
        }
        self.dial.iter().try_for_each(|(name, server)| super::dial::check_dial(name, server))
    }
}

fn waited_for(text: &str) -> Result<Duration> {
    positive_time(text, "a duration to wait for a client", "write it as `30s` or `2m`")
}
