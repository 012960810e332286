//! Examining the server and opening or creating the store.

use super::error::{damaged, unexpected};
use super::link::{Lane, Link, Request};
use super::reply::Reply;
use super::schema::{CLUSTER_SCHEMA, is_former, is_of_first_layout, is_of_one_slot, schema_of};
use super::script::{self, Keys};
use ::redis::{Cmd, Value, cmd};
use std::collections::HashMap;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Durability;
use treehold_store::migrate::{FORMER_NAME, OldLayout};

/// The oldest supported version of Redis.
const VERSION_MIN: (u32, u32) = (6, 2);

/// The largest body in bytes. A script briefly holds three copies of it, and blocks other clients meanwhile.
pub(super) const VALUE_BYTES_MAX: u64 = 128 << 20;

/// The settings that are read from the server.
const SETTINGS: [&str; 6] = ["appendonly", "appendfsync", "no-appendfsync-on-rewrite", "save", "maxmemory-policy", "proto-max-bulk-len"];

/// The server's version and settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Setup {
    /// The name and version of the server.
    pub(super) engine: String,
    pub(super) durability: Durability,
    pub(super) value_bytes_max: u64,
    /// Notices for the operator, one sentence each.
    pub(super) notices: Vec<String>,
    version: Option<(u32, u32)>,
    /// Whether the server belongs to a cluster although the URL does not say so.
    is_of_cluster: bool,
    /// Whether the server evicts rows when its memory is full.
    evicts: bool,
}

impl Setup {
    /// Reads the settings of the server, or of every master of a cluster that can be reached: what the weakest of them offers.
    pub(super) async fn ask(link: &Link) -> Result<Self> {
        let (mut all, mut failed): (Option<Self>, _) = (None, None);
        for link in link.of_each_master().await? {
            match Self::ask_one(&link).await {
                Ok(setup) => all = Some(all.map_or(setup.clone(), |all| all.weakest(setup))),
                // The partitions on the other nodes can be used.
                Err(error) if error.kind() == ErrorKind::Unavailable => failed = Some(error),
                Err(error) => return Err(error),
            }
        }
        all.ok_or_else(|| failed.unwrap_or_else(unexpected))
    }

    fn weakest(mut self, other: Self) -> Self {
        for notice in other.notices {
            if !self.notices.contains(&notice) {
                self.notices.push(notice);
            }
        }
        let is_older = other.version.is_some_and(|version| self.version.is_none_or(|own| version < own));
        Self {
            engine: if is_older { other.engine } else { self.engine },
            durability: self.durability.min(other.durability),
            value_bytes_max: self.value_bytes_max.min(other.value_bytes_max),
            notices: self.notices,
            version: if is_older { other.version } else { self.version },
            is_of_cluster: self.is_of_cluster || other.is_of_cluster,
            evicts: self.evicts || other.evicts,
        }
    }

    /// Reads the settings of one server, in one round trip.
    async fn ask_one(link: &Link) -> Result<Self> {
        let settings = SETTINGS.map(|name| cmd("CONFIG").arg("GET").arg(name).to_owned());
        let info = ["server", "memory", "persistence", "replication"].map(|section| cmd("INFO").arg(section).to_owned());
        let mut answers = link.ask_each(info.into_iter().chain(settings)).await.into_iter();
        let mut info = HashMap::new();
        for answer in answers.by_ref().take(4) {
            match answer {
                Ok(value) => info.extend(lines(&value)),
                // A user without permission to read the settings may still use the store; a failed connection is an
                // error.
                Err(fault @ super::error::Fault::Refused(_)) if is_denied(&fault) => {}
                Err(fault) => return Err(fault.of_read()),
            }
        }
        let mut set = HashMap::new();
        for value in answers.flatten() {
            set.extend(pairs(value));
        }
        Ok(Self::of(&info, &set, link.address().is_cluster))
    }

    /// Derives the setup from the answers to `INFO` and `CONFIG GET`.
    fn of(info: &HashMap<String, String>, set: &HashMap<String, String>, is_cluster: bool) -> Self {
        let info = |name: &str| info.get(name).map(String::as_str);
        let set = |name: &str| set.get(name).map(String::as_str);
        let engine = match (info("server_name"), info("valkey_version"), info("redis_version")) {
            (Some("valkey"), Some(version), _) => format!("Valkey {version}"),
            (_, _, Some(version)) => format!("Redis {version}"),
            _ => "Redis".to_owned(),
        };
        let version = info("redis_version").and_then(|text| {
            let mut parts = text.split('.');
            Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
        });
        let (durability, notice) = durability(
            set("appendonly").map(|value| value == "yes").or_else(|| info("aof_enabled").map(|value| value == "1")),
            set("appendfsync"),
            set("no-appendfsync-on-rewrite"),
            set("save"),
        );
        let mut notices: Vec<String> = notice.map(str::to_owned).into_iter().collect();
        if info("aof_last_write_status").is_some_and(|status| status != "ok") {
            notices.push("the last write to the append-only file failed: check the server's log".to_owned());
        }
        if is_cluster || info("connected_slaves").is_some_and(|count| count != "0") {
            let notice = "replicas lag a moment behind: when one takes over, acknowledged writes of that moment may be lost, and \
                          their versions assigned to other writes";
            notices.push(notice.to_owned());
        }
        let bulk_bytes_max = set("proto-max-bulk-len").and_then(|value| value.parse().ok()).unwrap_or(VALUE_BYTES_MAX);
        Self {
            engine,
            durability,
            value_bytes_max: VALUE_BYTES_MAX.min(bulk_bytes_max),
            notices,
            version,
            is_of_cluster: !is_cluster && info("redis_mode") == Some("cluster"),
            evicts: set("maxmemory-policy").or(info("maxmemory_policy")).is_some_and(|policy| policy.starts_with("allkeys")),
        }
    }

    /// Fails for a server that cannot hold a store.
    pub(super) fn check(&self) -> Result<()> {
        if self.version.is_some_and(|version| version < VERSION_MIN) {
            let (major, minor) = VERSION_MIN;
            return Err(Error::unsupported(format!("{} is too old for a store; use version {major}.{minor} or newer", self.engine)));
        }
        if self.is_of_cluster {
            return Err(Error::unsupported(
                "the Redis server is part of a cluster; write `redis+cluster://` instead of `redis://`, with one or more of its nodes",
            ));
        }
        if self.evicts {
            return Err(Error::unsupported(
                "the Redis server evicts rows when its memory is full; set its `maxmemory-policy` to `noeviction`, or use another server",
            ));
        }
        Ok(())
    }
}

/// Derives what an acknowledged commit survives, and the notice about it.
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
                "no-appendfsync-on-rewrite is yes: acknowledged writes may be lost if the machine crashes while the server rewrites its file",
            ),
        ),
        (Some(true), Some("everysec")) => (
            Durability::Process,
            Some("appendfsync is everysec: up to a second of acknowledged writes may be lost if the server or its machine crashes"),
        ),
        (Some(true), Some(_)) => (
            Durability::Process,
            Some("appendfsync is no: about 30 seconds of acknowledged writes may be lost if the server's machine crashes"),
        ),
        (Some(true), None) => (
            Durability::Process,
            Some(
                "appendfsync is unknown because the server does not report it: acknowledged writes may be lost if the server's machine crashes",
            ),
        ),
        (Some(false), _) if save.is_some_and(|save| !save.is_empty()) => {
            (Durability::None, Some("appendonly is no: writes since the last snapshot are lost when the server ends"))
        }
        (Some(false), _) => (Durability::None, Some("appendonly is no: writes may be lost when the server ends")),
        (None, _) => (
            Durability::None,
            Some("the server's durability is unknown because it does not report its settings: grant `INFO` and `CONFIG GET` to the user"),
        ),
    }
}

fn is_denied(fault: &super::error::Fault) -> bool {
    use ::redis::{ErrorKind, ServerErrorKind};
    matches!(fault, super::error::Fault::Refused(error)
        if matches!(error.kind(), ErrorKind::Server(ServerErrorKind::NoPerm | ServerErrorKind::ResponseError)))
}

/// Returns whether a store of any layout is there, also under the `former` default prefix.
pub(super) async fn exists(link: &Link, keys: &Keys, former: Option<(&Keys, &Link)>) -> Result<bool> {
    if !schema_of(link, keys).await?.is_empty() {
        return Ok(true);
    }
    match former {
        Some((keys, link)) => Ok(is_of_first_layout(&schema_of(link, keys).await?)),
        None => Ok(false),
    }
}

/// Checks the existing store on one server, or creates it unless a store of the first layout is under the `former` default prefix. Each
/// is one script, so any number of processes may run it at once. Returns the version of the store.
pub(super) async fn open(link: &Link, keys: &Keys, former: Option<(&Keys, &Link)>) -> Result<u64> {
    load(link).await;
    if let Some((former_keys, former_link)) = former {
        if let Some(version) = open_or_create(link, keys, false, 0).await? {
            return Ok(version);
        }
        if is_of_first_layout(&schema_of(former_link, former_keys).await?) {
            return Err(former_error());
        }
    }
    make(link, keys, 0).await
}

/// Checks the existing store in a cluster, or creates it, as [`open`]. The mark of the store is the schema under the keys that stores of
/// earlier layouts have. Returns the version that all partitions had before they had keys of their own.
pub(super) async fn open_in_cluster(link: &Link, keys: &Keys, list: (&Link, &Keys), former: Option<(&Keys, &Link)>) -> Result<u64> {
    load(link).await;
    let mut schema = schema_of(link, keys).await?;
    if schema.is_empty() {
        if let Some((former_keys, former_link)) = former
            && is_of_first_layout(&schema_of(former_link, former_keys).await?)
        {
            return Err(former_error());
        }
        let mark = cmd("HSETNX").arg(keys.rows()).arg(".schema").arg(CLUSTER_SCHEMA).to_owned();
        link.call(Lane::Small, &Request::Write(mark)).await.map_err(|fault| fault.of_write().without_effect())?;
        schema = schema_of(link, keys).await?;
    }
    if is_former(&schema) || is_of_one_slot(&schema) {
        return Err(OldLayout::error(None));
    }
    if schema != CLUSTER_SCHEMA {
        return Err(foreign(&schema));
    }
    let state = cmd("HMGET").arg(keys.rows()).arg(".listed").arg(".version").to_owned();
    let mut state = Reply::of(link.call(Lane::Small, &Request::Read(state)).await.map_err(super::error::Fault::of_read)?)?;
    let (is_listed, version) = (state.bytes_or_none()?.is_some(), state.bytes_or_none()?);
    match open_or_create(list.0, list.1, !is_listed, 0).await? {
        Some(_) if is_listed => {}
        Some(_) => {
            let note = cmd("HSET").arg(keys.rows()).arg(".listed").arg("1").to_owned();
            link.call(Lane::Small, &Request::Write(note)).await.map_err(|fault| fault.of_write().without_effect())?;
        }
        // Without it, lost partitions would look as if they had never been there.
        None => return Err(damaged("the list of the partitions of the store is gone, as a node of the cluster has lost its data")),
    }
    let version = version.and_then(|version| std::str::from_utf8(&version).ok()?.parse().ok());
    Ok(version.unwrap_or(0))
}

fn former_error() -> Error {
    OldLayout::error(Some(format!("the prefix `{FORMER_NAME}` holds it").into()))
}

/// Makes the keys of a store or of a partition unless they exist; new ones count on from `version`. Returns their version.
pub(super) async fn make(link: &Link, keys: &Keys, version: u64) -> Result<u64> {
    open_or_create(link, keys, true, version).await?.ok_or_else(unexpected)
}

/// Returns the version of the store; none if it is missing and not to be created.
async fn open_or_create(link: &Link, keys: &Keys, create: bool, version: u64) -> Result<Option<u64>> {
    let invocation = script::OPEN.on(keys).arg(keys.schema()).number(u8::from(create)).number(version);
    let answer = link.call(Lane::Small, &Request::Script(invocation)).await.map_err(|fault| fault.of_write().without_effect())?;
    let mut reply = Reply::of(answer)?;
    let schema = reply.text()?;
    if !create && schema == "none" {
        return Ok(None);
    }
    if is_former(&schema) {
        return Err(OldLayout::error(None));
    }
    if schema != keys.schema() {
        return Err(foreign(&schema));
    }
    reply.number().map(Some)
}

fn foreign(schema: &str) -> Error {
    match schema.parse::<u32>() {
        Ok(_) => Error::unsupported("a newer version of this program wrote the store; use that version"),
        Err(_) => unexpected(),
    }
}

/// Uploads the scripts, so that their first requests need not contain them. If the upload fails, the scripts are sent
/// with the requests instead.
async fn load(link: &Link) {
    let scripts = [&script::COMMIT, &script::SCAN, &script::NAMESPACES, &script::SWEEP];
    link.ask_each(scripts.map(script::Script::load)).await;
}

/// Parses `name:value` lines.
fn lines(value: &Value) -> HashMap<String, String> {
    let text = match value {
        Value::BulkString(text) => String::from_utf8_lossy(text).into_owned(),
        Value::VerbatimString { text, .. } | Value::SimpleString(text) => text.clone(),
        _ => String::new(),
    };
    text.lines().filter_map(|line| line.split_once(':')).map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Parses the answer to `CONFIG GET`, a map or a flat list.
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

/// Returns the command that estimates the memory of a key by sampling.
pub(super) fn memory_usage(key: &str) -> Cmd {
    cmd("MEMORY").arg("USAGE").arg(key).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup(info: &[(&str, &str)], set: &[(&str, &str)]) -> Setup {
        let map = |pairs: &[(&str, &str)]| pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Setup::of(&map(info), &map(set), false)
    }

    #[test]
    fn durability_and_notice_follow_the_servers_settings() {
        let always = [("appendonly", "yes"), ("appendfsync", "always"), ("no-appendfsync-on-rewrite", "no")];
        let skipping = [("appendonly", "yes"), ("appendfsync", "always"), ("no-appendfsync-on-rewrite", "yes")];
        for (info, set, durability, notices) in [
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
            let setup = setup(info, set);
            assert_eq!((setup.durability, setup.notices.len()), (durability, notices), "{setup:?}");
        }
    }

    #[test]
    fn evicting_or_outdated_server_is_refused() {
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
    fn body_limit_follows_the_servers_limit() {
        assert_eq!(setup(&[], &[("proto-max-bulk-len", "1048576")]).value_bytes_max, 1 << 20);
        assert_eq!(setup(&[], &[("proto-max-bulk-len", "536870912")]).value_bytes_max, VALUE_BYTES_MAX);
        assert_eq!(setup(&[], &[]).value_bytes_max, VALUE_BYTES_MAX);
    }
}
