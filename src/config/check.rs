//! Checks beyond the types: references resolve, templates parse, and each key applies to its route.

use super::fault::{Broken, did_you_mean};
use super::overlap::{ADVICE, overlap};
use super::protected::check_protected;
use super::registry::Located;
use super::remote::{check_peer, check_remote};
use super::traces::INTERNAL_STORE;
use super::{Config, DEFAULT_STORE, OverlayConfig, RouteConfig, RouteType, ScopeConfig};
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::time::Duration;
use treehold_core::clock::{InvalidAge, parse_age, parse_time};
use treehold_core::error::Error;
use treehold_core::path::VfsPathBuf;
use treehold_core::scope::{NamespaceTemplate, Scope, Template};
use treehold_tree::checkpoint::check_checkpoint_name;
use treehold_tree::layer::{Operations, Rule};

/// Checks a configuration as written, before defaults are filled in.
pub(super) fn check(config: &Config) -> Result<(), Broken> {
    check_scope(config)?;
    for (name, store) in &config.stores {
        let checked = config.registry.check_url(&store.url, &|path| config.store_path(path));
        checked.map_err(|invalid| Broken::new(&["stores", name, "url"], invalid.message).with_hint(invalid.hint))?;
        sweep_every(&store.sweep_every).map_err(|error| Broken::new(&["stores", name, "sweep_every"], error.message()))?;
    }
    for (name, peer) in &config.peers {
        check_peer(name, peer)?;
    }
    check_store_name(config, &["threads", "store"], &config.threads.store)?;
    check_store_name(config, &["events", "store"], &config.events.store)?;
    config.retention.check()?;
    kept_for(&config.events.keep).map_err(|error| Broken::new(&["events", "keep"], error.message()))?;
    for source in &config.memory.sources {
        VfsPathBuf::parse(source).map_err(|invalid| Broken::new(&["memory", "sources"], format!("`{source}`: {invalid}")))?;
    }
    for directory in &config.memory.index {
        VfsPathBuf::parse(directory).map_err(|invalid| Broken::new(&["memory", "index"], format!("`{directory}`: {invalid}")))?;
    }
    if let Some(embeddings) = &config.embeddings {
        check_store_name(config, &["embeddings", "store"], &embeddings.store)?;
        embeddings.check()?;
    }
    check_routes(config)?;
    check_protected(&config.protected).map_err(|(key, error)| Broken::new(&["protected", key], error.message()))?;
    check_layers(config)?;
    check_store_name(config, &["sessions", "store"], &config.sessions.store)?;
    config.sessions.check()?;
    check_store_name(config, &["agent_state", "store"], &config.agent_state.store)?;
    config.agent_state.check()?;
    check_store_name(config, &["traces", "store"], &config.traces.store)?;
    config.check_traces()?;
    config.check_memo_mounts()?;
    config.serve.check()
}

/// Checks that no two stores overlap, once the defaults are filled in. `located` finds the store of a URL; those that it does not find
/// are left out.
pub(super) fn check_places(config: &Config, located: impl Fn(&str) -> Option<Located>) -> Result<(), Broken> {
    let internal = config.traces.internal.as_ref().map(|internal| (INTERNAL_STORE, &internal.url));
    let urls = config.stores.iter().map(|(name, store)| (name.as_str(), &store.url)).chain(internal);
    let stores = urls.filter_map(|(name, url)| Some((name.to_owned(), located(url)?)));
    let Some(found) = overlap(stores) else { return Ok(()) };
    let is_internal = config.traces.internal.is_some() && found.name == INTERNAL_STORE;
    let keys = if is_internal { ["traces", "internal", "url"] } else { ["stores", found.name.as_str(), "url"] };
    Err(Broken::new(&keys, found.message.as_str()).with_hint(Some(ADVICE.to_owned())))
}

fn check_layers(config: &Config) -> Result<(), Broken> {
    let layers = &config.layers;
    if let Some(text) = &layers.timeout {
        duration(text).map_err(|error| Broken::new(&["layers", "timeout"], error.message()))?;
    }
    let one_at_least = [("attempts_max", layers.attempts_max), ("running_max", layers.running_max)];
    for (key, count) in one_at_least {
        if count == Some(0) {
            return Err(Broken::new(&["layers", key], format!("`{key}` is 0, which would refuse every call"))
                .with_hint(Some("name at least 1, or leave it out".to_owned())));
        }
    }
    if layers.waiting_max.is_some() && layers.running_max.is_none() {
        return Err(Broken::new(
            &["layers", "waiting_max"],
            "`waiting_max` bounds how many calls wait for `running_max`, which is not set",
        ));
    }
    for (index, rule) in layers.permissions.iter().enumerate() {
        let keys = |key| ["layers", "permissions", &index.to_string(), key].map(str::to_owned);
        for operation in &rule.operations {
            Operations::named(operation).map_err(|error| Broken::under(keys("operations"), error.message()))?;
        }
        Rule::deny(Operations::ALL, &rule.paths).map_err(|error| Broken::under(keys("paths"), error.message()))?;
        for (key, is_empty) in [("operations", rule.operations.is_empty()), ("paths", rule.paths.is_empty())] {
            if is_empty {
                return Err(Broken::under(keys(key), format!("a rule without `{key}` applies to nothing")));
            }
        }
    }
    for (index, layer) in layers.custom.iter().enumerate() {
        let keys = ["layers", "custom", &index.to_string()].map(str::to_owned);
        if !config.registry.layers().any(|known| known == layer.name) {
            let hint = did_you_mean(&layer.name, config.registry.layers());
            let hint = hint.or_else(|| config.registry.layers().next().is_none().then(|| "this program has none of its own".to_owned()));
            let keys = keys.into_iter().chain(["name".to_owned()]);
            return Err(Broken::under(keys, format!("no layer is named `{}`", layer.name)).with_hint(hint));
        }
        config.registry.layer(&layer.name, &layer.settings).map_err(|error| Broken::under(keys, error.message()))?;
    }
    Ok(())
}

/// Parses a duration such as `30s` or `1m 30s`.
pub(super) fn duration(text: &str) -> Result<Duration, Error> {
    positive_time(text, "a duration for a call", "write it as `30s` or `500ms`")
}

/// Parses the interval between sweeps; `None` for `never`.
pub(super) fn sweep_every(text: &str) -> Result<Option<Duration>, Error> {
    if text == "never" {
        return Ok(None);
    }
    positive_time(text, "a duration between sweeps", "write it as `1m` or `30s`, or write `never`").map(Some)
}

/// Parses how long events are kept, such as `7d`. A day has 24 hours.
pub(super) fn kept_for(text: &str) -> Result<Duration, Error> {
    positive_time(text, "a duration to keep events for", "write it as `7d` or `12h`")
}

/// Parses a duration longer than zero. `what` says what a malformed text is not, and `advice` how to write it.
pub(super) fn positive_time(text: &str, what: &str, advice: &str) -> Result<Duration, Error> {
    bounded_time(text, what, advice, |time| !time.is_zero(), "it must be longer than `0s`")
}

/// Parses a duration of at least `min`, which `min_text` shows, as [`positive_time`] does.
pub(super) fn time_from(min: Duration, min_text: &str, text: &str, what: &str, advice: &str) -> Result<Duration, Error> {
    bounded_time(text, what, advice, |time| time >= min, &format!("the shortest is `{min_text}`"))
}

fn bounded_time(text: &str, what: &str, advice: &str, is_enough: impl Fn(Duration) -> bool, least: &str) -> Result<Duration, Error> {
    let fault = match parse_age(text) {
        Ok(time) if is_enough(time) => return Ok(time),
        Ok(_) | Err(InvalidAge::Negative) => format!("too short: {least}"),
        Err(invalid) if invalid.is_out_of_bounds() => invalid.to_string(),
        Err(_) => format!("not {what}"),
    };
    Err(Error::invalid_argument(format!("`{text}` is {fault}; {advice}")))
}

fn check_scope(config: &Config) -> Result<(), Broken> {
    let ScopeConfig { tenant, user, agent, thread } = &config.scope;
    let fields = [
        ("tenant", Scope::new().with_tenant(tenant)),
        ("user", Scope::new().with_user(user)),
        ("agent", agent.iter().fold(Scope::new(), |scope, agent| scope.with_agent(agent))),
        ("thread", Scope::new().with_thread(thread)),
    ];
    for (key, scope) in fields {
        scope.validate().map_err(|error| Broken::new(&["scope", key], error.message()))?;
    }
    Ok(())
}

fn check_store_name(config: &Config, keys: &[&str], name: &str) -> Result<(), Broken> {
    if name == DEFAULT_STORE || config.stores.contains_key(name) {
        return Ok(());
    }
    let known = config.stores.keys().map(String::as_str).chain([DEFAULT_STORE]);
    Err(Broken::new(keys, format!("no store is named `{name}`"))
        .with_hint(did_you_mean(name, known).or_else(|| Some(format!("add `[stores.{name}]` with its `url`")))))
}

fn check_routes(config: &Config) -> Result<(), Broken> {
    let mut seen: BTreeMap<VfsPathBuf, &str> = BTreeMap::new();
    let mut state: Option<&str> = None;
    for (path, route) in &config.routes {
        let parsed = VfsPathBuf::parse(path).map_err(|invalid| Broken::new(&["routes", path], invalid.to_string()))?;
        if let Some(other) = seen.insert(parsed, path) {
            return Err(Broken::new(&["routes", path], format!("`{path}` and `{other}` are the same path"))
                .with_hint(Some("keep one of them".to_owned())));
        }
        check_route(config, path, route)?;
        if route.tier == RouteType::State
            && let Some(other) = state.replace(path)
        {
            return Err(Broken::new(&["routes", path, "type"], format!("the thread's state is mounted at `{other}` already"))
                .with_hint(Some("a thread has one state; write beneath it".to_owned())));
        }
    }
    if let Some(path) = state
        && !config.routes.is_empty()
        && !seen.contains_key(treehold_core::path::VfsPath::ROOT)
    {
        let message = format!("the thread's state is mounted at `{path}`, so nothing is mounted at `/`");
        return Err(Broken::new(&["routes", path, "type"], message).with_hint(Some("add `[routes.\"/\"]`".to_owned())));
    }
    Ok(())
}

fn check_route(config: &Config, path: &str, route: &RouteConfig) -> Result<(), Broken> {
    let keys = [
        ("store", route.store.is_some(), RouteType::Store),
        ("namespace", route.namespace.is_some(), RouteType::Store),
        ("index", route.index.is_some(), RouteType::Store),
        ("history", route.history.is_some(), RouteType::Store),
        ("root", route.root.is_some(), RouteType::Filesystem),
        ("sync", route.sync.is_some(), RouteType::Filesystem),
        ("cross_mounts", route.cross_mounts.is_some(), RouteType::Filesystem),
        ("create_root", route.create_root.is_some(), RouteType::Filesystem),
        ("thread", route.thread.is_some(), RouteType::History),
        ("at", route.at.is_some(), RouteType::History),
        ("of", route.of.is_some(), RouteType::Past),
        ("url", route.url.is_some(), RouteType::Remote),
        ("cache_bytes_max", route.cache_bytes_max.is_some(), RouteType::Remote),
        ("serve_stale", route.serve_stale.is_some(), RouteType::Remote),
    ];
    for (key, is_set, owner) in keys {
        let is_shared = matches!((key, route.tier), ("thread", RouteType::Remote) | ("at", RouteType::Past));
        if is_set && route.tier != owner && !is_shared {
            return Err(Broken::new(
                &["routes", path, key],
                format!("`{key}` belongs to a route of type `{}` and this one is `{}`", owner.name(), route.tier.name()),
            ));
        }
    }
    if let Some(history) = &route.history {
        history.check(path)?;
        if route.overlay.is_some() && history.policy().is_some() {
            let message = "an overlay keeps changes until they are applied, and has no history";
            let hint = Some("leave `history` out, or the overlay".to_owned());
            return Err(Broken::new(&["routes", path, "history"], message).with_hint(hint));
        }
    }
    if let Some(overlay) = &route.overlay {
        check_overlay(config, path, route.tier, overlay)?;
    }
    let template = |key: &str, error: Error| Broken::new(&["routes", path, key], error.message());
    match route.tier {
        RouteType::State => Ok(()),
        RouteType::Store => {
            check_store_name(config, &["routes", path, "store"], route.store.as_deref().unwrap_or(DEFAULT_STORE))?;
            let namespace = route.namespace.as_deref().ok_or_else(|| missing(path, "namespace", "{tenant}/{user}/memories"))?;
            NamespaceTemplate::parse(namespace).map(drop).map_err(|error| template("namespace", error))
        }
        RouteType::History => check_history(config, path, route),
        RouteType::Past => check_past(config, path, route),
        RouteType::Traces => check_read_only(path, route),
        RouteType::Remote => check_remote(config, path, route),
        RouteType::Filesystem => {
            let root = route.root.as_deref().ok_or_else(|| missing(path, "root", "."))?;
            if root.is_empty() {
                return Err(
                    Broken::new(&["routes", path, "root"], "the root is empty").with_hint(Some("write `.` for this directory".to_owned()))
                );
            }
            Template::parse(root).map(drop).map_err(|error| template("root", error))
        }
    }
}

fn check_history(config: &Config, path: &str, route: &RouteConfig) -> Result<(), Broken> {
    let broken = |key: &str, message: &str| Broken::new(&["routes", path, key], message);
    if !config.threads.save {
        return Err(broken("type", "threads are not saved, so they have no history")
            .with_hint(Some("set `save = true` under `[threads]`".to_owned())));
    }
    check_read_only(path, route)?;
    let thread = route.thread.as_deref().map_or(Ok(()), |thread| Template::parse(thread).map(drop));
    thread.map_err(|error| broken("thread", error.message()))?;
    let at = route.at.as_deref().map_or(Ok(()), check_checkpoint_name);
    at.map_err(|error| broken("at", error.message()))
}

fn check_past(config: &Config, path: &str, route: &RouteConfig) -> Result<(), Broken> {
    check_read_only(path, route)?;
    let of = route.of.as_deref().ok_or_else(|| missing(path, "of", "/memories"))?;
    let at = route.at.as_deref().ok_or_else(|| missing(path, "at", "1d"))?;
    let broken = |key: &str, message: String| Broken::new(&["routes", path, key], message);
    parse_time(at, Timestamp::now()).map_err(|error| broken("at", format!("`{at}`: {}", error.message())))?;
    // The defaults of routes are not filled in yet.
    let is_memory = of == "/memories" && config.routes.is_empty();
    let shown = config.routes.get(of);
    let stores = config.routes.iter().filter(|(_, route)| route.tier == RouteType::Store).map(|(path, _)| path.as_str());
    match shown {
        Some(shown) if shown.tier != RouteType::Store => {
            Err(broken("of", format!("`{of}` is a {} route, and only a store route keeps the past of its files", shown.tier.name())))
        }
        Some(shown) if !shown.keeps_history(of) => Err(broken("of", format!("the route `{of}` keeps no history"))
            .with_hint(Some(format!("set `history = {{ keep_last = 20, older_than = \"30d\" }}` under `[routes.\"{of}\"]`")))),
        Some(_) => Ok(()),
        None if is_memory => Ok(()),
        None => Err(broken("of", format!("there is no route `{of}`")).with_hint(did_you_mean(of, stores))),
    }
}

/// Checks a route that takes no changes.
fn check_read_only(path: &str, route: &RouteConfig) -> Result<(), Broken> {
    if route.quota.is_some() {
        let message = format!("`quota` bounds what is written, and a {} route is read-only", route.tier.name());
        return Err(Broken::new(&["routes", path, "quota"], message).with_hint(Some("leave it out".to_owned())));
    }
    Ok(())
}

fn check_overlay(config: &Config, path: &str, tier: RouteType, overlay: &OverlayConfig) -> Result<(), Broken> {
    if tier == RouteType::History {
        let hint = Some("fork the thread instead: `treehold thread fork`".to_owned());
        return Err(Broken::new(&["routes", path, "overlay"], "a history route is read-only and takes no overlay").with_hint(hint));
    }
    if tier == RouteType::Past {
        let hint = Some("restore files from it instead: `treehold restore`".to_owned());
        return Err(Broken::new(&["routes", path, "overlay"], "a past route is read-only and takes no overlay").with_hint(hint));
    }
    if tier == RouteType::Traces {
        let hint = Some("lay it over a filesystem or store route".to_owned());
        return Err(Broken::new(&["routes", path, "overlay"], "a traces route is read-only and takes no overlay").with_hint(hint));
    }
    if tier == RouteType::State {
        let message = "a thread's state is its own and needs no overlay";
        return Err(
            Broken::new(&["routes", path, "overlay"], message).with_hint(Some("lay it over a filesystem or store route".to_owned()))
        );
    }
    let store = overlay.store.as_deref().unwrap_or(DEFAULT_STORE);
    check_store_name(config, &["routes", path, "overlay", "store"], store)?;
    let namespace = overlay.namespace.as_deref().map_or(Ok(()), |namespace| NamespaceTemplate::parse(namespace).map(drop));
    namespace.map_err(|error| Broken::new(&["routes", path, "overlay", "namespace"], error.message()))
}

pub(super) fn missing(path: &str, key: &str, example: &str) -> Broken {
    Broken::new(&["routes", path], format!("the route `{path}` has no `{key}`")).with_hint(Some(format!("write `{key} = \"{example}\"`")))
}
