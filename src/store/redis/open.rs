//! Meeting a store: what the server is, how it is set up, and whether it may hold one.

use super::error::unexpected;
use super::link::{Lane, Link, Request};
use super::reply::{Reply, SCHEMA};
use super::script::{self, Keys};
use crate::error::{Error, Result};
use crate::ops::Durability;
use ::redis::{Cmd, Value, cmd};
use std::collections::HashMap;

/// The oldest version of Redis that is served.
const VERSION_MIN: (u32, u32) = (6, 2);

/// The largest body in bytes: what a script copies is in memory three times for a moment, and others wait meanwhile.
pub(super) const VALUE_BYTES_MAX: u64 = 128 << 20;

/// What is asked of the server's configuration.
const SETTINGS: [&str; 6] = ["appendonly", "appendfsync", "no-appendfsync-on-rewrite", "save", "maxmemory-policy", "proto-max-bulk-len"];

/// How a server is set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Setup {
    /// Name and version.
    pub(super) engine: String,
    pub(super) durability: Durability,
    pub(super) value_bytes_max: u64,
    /// What an operator should know, a sentence each.
    pub(super) notices: Vec<String>,
    version: Option<(u32, u32)>,
    /// Whether it is part of a cluster and was not named as one.
    is_of_cluster: bool,
    /// Whether it gives up rows of its own accord when its memory is full.
    evicts: bool,
}

impl Setup {
    /// Asks the server, in one round trip.
    pub(super) async fn ask(link: &Link) -> Result<Self> {
        let settings = SETTINGS.map(|name| cmd("CONFIG").arg("GET").arg(name).to_owned());
        let info = ["server", "memory", "persistence", "replication"].map(|section| cmd("INFO").arg(section).to_owned());
        let mut answers = link.ask_each(info.into_iter().chain(settings)).await.into_iter();
        let mut told = HashMap::new();
        for answer in answers.by_ref().take(4) {
            match answer {
                Ok(value) => told.extend(lines(&value)),
                // A user who may not ask is served all the same; one who does not get through is not.
                Err(fault @ super::error::Fault::Refused(_)) if is_denied(&fault) => {}
                Err(fault) => return Err(fault.of_read()),
            }
        }
        let mut set = HashMap::new();
        for value in answers.flatten() {
            set.extend(pairs(value));
        }
        Ok(Self::of(&told, &set, link.address().is_cluster))
    }

    /// Reads how it is set up out of what `INFO` and `CONFIG GET` say.
    fn of(told: &HashMap<String, String>, set: &HashMap<String, String>, is_cluster: bool) -> Self {
        let told = |name: &str| told.get(name).map(String::as_str);
        let set = |name: &str| set.get(name).map(String::as_str);
        let engine = match (told("server_name"), told("valkey_version"), told("redis_version")) {
            (Some("valkey"), Some(version), _) => format!("Valkey {version}"),
            (_, _, Some(version)) => format!("Redis {version}"),
            _ => "Redis".to_owned(),
        };
        let version = told("redis_version").and_then(|text| {
            let mut parts = text.split('.');
            Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
        });
        let (durability, notice) = durability(
            set("appendonly").map(|value| value == "yes").or_else(|| told("aof_enabled").map(|value| value == "1")),
            set("appendfsync"),
            set("no-appendfsync-on-rewrite"),
            set("save"),
        );
        let mut notices: Vec<String> = notice.map(str::to_owned).into_iter().collect();
        if told("aof_last_write_status").is_some_and(|status| status != "ok") {
            notices.push("the last write of the append-only file failed: look at the server's log".to_owned());
        }
        if is_cluster || told("connected_slaves").is_some_and(|count| count != "0") {
            let notice = "replicas follow a moment behind: when one takes over, acknowledged writes of that moment may be lost, and \
                          their versions be given again to others";
            notices.push(notice.to_owned());
        }
        let bulk_bytes_max = set("proto-max-bulk-len").and_then(|value| value.parse().ok()).unwrap_or(VALUE_BYTES_MAX);
        Self {
            engine,
            durability,
            value_bytes_max: VALUE_BYTES_MAX.min(bulk_bytes_max),
            notices,
            version,
            is_of_cluster: !is_cluster && told("redis_mode") == Some("cluster"),
            evicts: set("maxmemory-policy").or(told("maxmemory_policy")).is_some_and(|policy| policy.starts_with("allkeys")),
        }
    }

    /// Refuses a server that may not hold a store.
    pub(super) fn check(&self) -> Result<()> {
        if self.version.is_some_and(|version| version < VERSION_MIN) {
            let (major, minor) = VERSION_MIN;
            return Err(Error::unsupported(format!("{} is too old for a store; use version {major}.{minor} or newer", self.engine)));
        }
        if self.is_of_cluster {
            return Err(Error::unsupported(
                "the redis server is part of a cluster; write `redis+cluster://` instead of `redis://`, with one or more of its nodes",
            ));
        }
        if self.evicts {
            return Err(Error::unsupported(
                "the redis server gives up rows when its memory is full; set its `maxmemory-policy` to `noeviction`, or use another server",
            ));
        }
        Ok(())
    }
}

/// Decides what an acknowledged commit survives, and what there is to say of it.
fn durability(
    appends: Option<bool>,
    fsync: Option<&str>,
    skips_on_rewrite: Option<&str>,
    save: Option<&str>,
) -> (Durability, Option<&'static str>) {
    match (appends, fsync) {
        (Some(true), Some("always")) if skips_on_rewrite == Some("no") => (Durability::Power, None),
        (Some(true), Some("always")) => (
            Durability::Process,
            Some(
                "no-appendfsync-on-rewrite is yes: while the server rewrites its file, acknowledged writes may be lost when its machine dies",
            ),
        ),
        (Some(true), Some("everysec")) => (
            Durability::Process,
            Some("appendfsync is everysec: up to a second of acknowledged writes may be lost when the server or its machine dies"),
        ),
        (Some(true), Some(_)) => (
            Durability::Process,
            Some("appendfsync is no: acknowledged writes of some 30 seconds may be lost when the server's machine dies"),
        ),
        (Some(true), None) => (
            Durability::Process,
            Some("appendfsync is not known, as the server does not tell: acknowledged writes may be lost when the server's machine dies"),
        ),
        (Some(false), _) if save.is_some_and(|save| !save.is_empty()) => {
            (Durability::None, Some("appendonly is no: what was written since the last snapshot is lost when the server ends"))
        }
        (Some(false), _) => (Durability::None, Some("appendonly is no: what was written may be lost when the server ends")),
        (None, _) => (
            Durability::None,
            Some("how the server keeps its data is not known, as it does not tell: grant `INFO` and `CONFIG GET` to the user"),
        ),
    }
}

fn is_denied(fault: &super::error::Fault) -> bool {
    use ::redis::{ErrorKind, ServerErrorKind};
    matches!(fault, super::error::Fault::Refused(error)
        if matches!(error.kind(), ErrorKind::Server(ServerErrorKind::NoPerm | ServerErrorKind::ResponseError)))
}

/// Makes the store where there is none, and meets the one that is there. Any number of processes may do so at once: it is one
/// script.
pub(super) async fn open(link: &Link, keys: &Keys) -> Result<u64> {
    load(link).await;
    let invocation = script::OPEN.on(keys).arg(SCHEMA);
    let answer = link.call(Lane::Small, &Request::Script(invocation)).await.map_err(|fault| fault.of_write().without_effect())?;
    let mut reply = Reply::of(answer)?;
    let schema = reply.text()?;
    if schema != SCHEMA {
        return Err(match schema.parse::<u32>() {
            Ok(_) => Error::unsupported("a newer version of this program wrote the store; use that version"),
            Err(_) => unexpected(),
        });
    }
    reply.number()
}

/// Teaches the server the scripts, so that the first request of each does not carry it. One that does not take them so gets
/// them with the requests.
async fn load(link: &Link) {
    let scripts = [&script::COMMIT, &script::SCAN, &script::NAMESPACES, &script::SWEEP];
    link.ask_each(scripts.map(script::Script::load)).await;
}

/// Reads `name:value` lines.
fn lines(value: &Value) -> HashMap<String, String> {
    let text = match value {
        Value::BulkString(text) => String::from_utf8_lossy(text).into_owned(),
        Value::VerbatimString { text, .. } | Value::SimpleString(text) => text.clone(),
        _ => String::new(),
    };
    text.lines().filter_map(|line| line.split_once(':')).map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Reads what `CONFIG GET` says, a map or a flat list.
fn pairs(value: Value) -> Vec<(String, String)> {
    let text = |value: Value| match value {
        Value::BulkString(text) => String::from_utf8(text).unwrap_or_default(),
        Value::SimpleString(text) => text,
        _ => String::new(),
    };
    match value {
        Value::Map(pairs) => pairs.into_iter().map(|(name, value)| (text(name), text(value))).collect(),
        Value::Array(flat) => {
            let mut flat = flat.into_iter().map(text);
            std::iter::from_fn(|| Some((flat.next()?, flat.next()?))).collect()
        }
        _ => Vec::new(),
    }
}

/// Returns the command that reads how many bytes a key takes, by a sample.
pub(super) fn memory_usage(key: &str) -> Cmd {
    cmd("MEMORY").arg("USAGE").arg(key).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn setup(told: &[(&str, &str)], set: &[(&str, &str)]) -> Setup {
        let map = |pairs: &[(&str, &str)]| pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Setup::of(&map(told), &map(set), false)
    }

    #[test]
    fn what_survives_is_told_as_the_server_is_set_up() {
        let always = [("appendonly", "yes"), ("appendfsync", "always"), ("no-appendfsync-on-rewrite", "no")];
        let skipping = [("appendonly", "yes"), ("appendfsync", "always"), ("no-appendfsync-on-rewrite", "yes")];
        for (told, set, durability, notices) in [
            (&[][..], &always[..], Durability::Power, 0),
            (&[], &skipping, Durability::Process, 1),
            (&[], &[("appendonly", "yes"), ("appendfsync", "everysec")], Durability::Process, 1),
            (&[], &[("appendonly", "yes"), ("appendfsync", "no")], Durability::Process, 1),
            (&[("aof_enabled", "1")], &[], Durability::Process, 1),
            (&[("aof_enabled", "0")], &[], Durability::None, 1),
            (&[], &[("appendonly", "no"), ("save", "3600 1")], Durability::None, 1),
            (&[], &[], Durability::None, 1),
            (&[("connected_slaves", "1")], &always, Durability::Power, 1),
        ] {
            let setup = setup(told, set);
            assert_eq!((setup.durability, setup.notices.len()), (durability, notices), "{setup:?}");
        }
    }

    #[test]
    fn a_server_that_gives_rows_up_or_is_too_old_is_refused() {
        for (policy, is_refused) in [("noeviction", false), ("volatile-lru", false), ("allkeys-lru", true), ("allkeys-random", true)] {
            let setup = setup(&[("redis_version", "7.0.15")], &[("maxmemory-policy", policy)]);
            assert_eq!(setup.check().is_err_and(|error| error.kind() == ErrorKind::Unsupported), is_refused, "{policy}");
        }
        assert!(setup(&[("maxmemory_policy", "allkeys-lfu")], &[]).check().is_err());
        assert!(setup(&[("redis_version", "6.0.16")], &[]).check().is_err());
        assert!(setup(&[("redis_version", "6.2.0")], &[]).check().is_ok());
        assert!(setup(&[("redis_mode", "cluster")], &[]).check().is_err());
        let valkey = setup(&[("redis_version", "7.2.4"), ("server_name", "valkey"), ("valkey_version", "8.0.1")], &[]);
        assert_eq!(valkey.engine, "Valkey 8.0.1");
    }

    #[test]
    fn the_largest_body_is_what_the_server_takes() {
        assert_eq!(setup(&[], &[("proto-max-bulk-len", "1048576")]).value_bytes_max, 1 << 20);
        assert_eq!(setup(&[], &[("proto-max-bulk-len", "536870912")]).value_bytes_max, VALUE_BYTES_MAX);
        assert_eq!(setup(&[], &[]).value_bytes_max, VALUE_BYTES_MAX);
    }
}
