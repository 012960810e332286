//! Routes to other servers. Tokens are sent only to configured peers, and requests only to URLs in the configuration: an unknown peer name
//! is refused before any host is contacted.

use super::check::missing;
use super::fault::{Broken, did_you_mean};
#[cfg(not(feature = "remote"))]
use super::open::OpenFiles;
use super::{Config, PeerConfig, RouteConfig};
use treehold_core::error::{Error, Result};
use treehold_core::path::VfsPathBuf;
use treehold_core::scope::{Template, check_peer_name};

/// The URL scheme for configured peers.
const AGENT: &str = "agent://";

/// The target of a remote route's URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RemoteUrl<'a> {
    /// `agent://PEER/PATH`
    Peer {
        /// The name in `peers`.
        name: &'a str,
        /// The directory beneath that of the peer's own URL.
        path: VfsPathBuf,
    },
    /// The URL of a server.
    Server(&'a str),
}

impl<'a> RemoteUrl<'a> {
    /// Parses the URL of a route. The name of a peer cannot contain characters with a meaning in URLs. The path is a tree path, not
    /// percent-encoded.
    pub(super) fn parse(url: &'a str) -> Result<Self> {
        let Some(rest) = url.strip_prefix(AGENT) else { return Ok(Self::Server(url)) };
        let (name, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        check_peer_name(name)?;
        let path = if path.is_empty() { VfsPathBuf::root() } else { VfsPathBuf::parse(path)? };
        Ok(Self::Peer { name, path })
    }
}

/// Checks a configured peer.
pub(super) fn check_peer(name: &str, peer: &PeerConfig) -> Result<(), Broken> {
    check_peer_name(name).map_err(|error| Broken::new(&["peers", name], error.message()))?;
    match (peer.reverse, peer.url.is_empty()) {
        (false, false) => {
            check_url(&peer.url, peer.plain_http).map_err(|error| Broken::new(&["peers", name, "url"], error.message()))?;
        }
        (false, true) => {
            let hint = format!("write `url = \"https://HOST:PORT\"`, or `reverse = true` if `{name}` dials this server");
            return Err(Broken::new(&["peers", name], format!("the peer `{name}` has no `url`")).with_hint(Some(hint)));
        }
        (true, false) => {
            let message = "a peer that dials this server is not called by a `url`";
            return Err(Broken::new(&["peers", name, "url"], message).with_hint(Some("leave `url` or `reverse` out".to_owned())));
        }
        (true, true) if peer.plain_http => {
            let message = "`plain_http` concerns a `url`, and a peer that dials this server has none";
            return Err(Broken::new(&["peers", name, "plain_http"], message).with_hint(Some("leave it out".to_owned())));
        }
        (true, true) => {}
    }
    match &peer.token {
        Some(token) => TokenPlace::parse(token).map(drop).map_err(|error| Broken::new(&["peers", name, "token"], error.message())),
        None => Ok(()),
    }
}

/// Checks a remote route, without contacting it.
pub(super) fn check_remote(config: &Config, path: &str, route: &RouteConfig) -> Result<(), Broken> {
    let broken = |key: &str, message: &str| Broken::new(&["routes", path, key], message);
    let url = route.url.as_deref().ok_or_else(|| missing(path, "url", "agent://PEER/PATH"))?;
    match RemoteUrl::parse(url).map_err(|error| broken("url", error.message()))? {
        RemoteUrl::Peer { name, .. } if !config.peers.contains_key(name) => {
            let known = config.peers.keys().map(String::as_str);
            let hint = did_you_mean(name, known).or_else(|| Some(format!("add `[peers.{name}]` with its `url`")));
            return Err(broken("url", &format!("no peer is named `{name}`")).with_hint(hint));
        }
        RemoteUrl::Peer { .. } => {}
        RemoteUrl::Server(url) => check_url(url, false).map_err(|error| broken("url", error.message()))?,
    }
    if let Some(thread) = &route.thread {
        Template::parse(thread).map_err(|error| broken("thread", error.message()))?;
    }
    if route.serve_stale.is_some() && route.cache_bytes_max.is_none() {
        return Err(broken("serve_stale", "`serve_stale` serves cached content, and nothing is cached")
            .with_hint(Some("set `cache_bytes_max` too".to_owned())));
    }
    if route.cache_bytes_max == Some(0) {
        return Err(broken("cache_bytes_max", "a cache of 0 bytes keeps nothing").with_hint(Some("leave it out".to_owned())));
    }
    Ok(())
}

/// Where a token is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenPlace<'a> {
    Variable(&'a str),
    File(&'a str),
}

impl<'a> TokenPlace<'a> {
    /// Parses where a token is stored. Anything malformed may be the token itself, so the error does not repeat it.
    pub(super) fn parse(text: &'a str) -> Result<Self> {
        match text.split_once(':') {
            Some(("env", variable)) if !variable.is_empty() => Ok(Self::Variable(variable)),
            Some(("file", file)) if !file.is_empty() => Ok(Self::File(file)),
            _ => Err(Error::invalid_argument("a token must not be written into the configuration; write `env:VARIABLE` or `file:PATH`")),
        }
    }
}

/// Checks where a token or key is stored.
pub(super) fn check_token_place(place: &str) -> Result<()> {
    TokenPlace::parse(place).map(drop)
}

#[cfg(feature = "remote")]
pub(super) fn check_url(url: &str, plain_http: bool) -> Result<()> {
    treehold_remote::RemoteBackend::check_url(url, plain_http)
}

/// Without the feature `remote`, nothing is ever sent.
#[cfg(not(feature = "remote"))]
pub(super) fn check_url(_url: &str, _plain_http: bool) -> Result<()> {
    Ok(())
}

#[cfg(not(feature = "remote"))]
impl Config {
    /// Returns the opener of a remote route.
    pub(super) fn remote(&self, _path: &str, _route: &RouteConfig) -> Result<OpenFiles> {
        Err(Error::unsupported("this program was built without `remote`; build it with that feature or leave its routes out"))
    }
}

#[cfg(feature = "remote")]
mod opened {
    use super::{RemoteUrl, TokenPlace};
    use crate::config::deferred::Deferred;
    use crate::config::open::{OpenFiles, TreeId, check_fields};
    use crate::config::{Config, PeerConfig, RouteConfig};
    use parking_lot::Mutex;
    use std::sync::Arc;
    use treehold_core::error::{AtHost, Error, ErrorKind, Result};
    use treehold_core::escape::{escape_bytes, is_unreserved};
    use treehold_core::path::VfsPathBuf;
    use treehold_core::scope::{Scope, Template};
    use treehold_core::shared::Shared;
    use treehold_remote::{PeerClient, RemoteBackend, RemoteOptions};
    use treehold_tree::backend::{Backend, CacheOptions, CachedBackend};

    impl Config {
        /// Returns the opener of a remote route. Sessions with the same thread there and the same actor share one client and its cache.
        pub(in crate::config) fn remote(&self, path: &str, route: &RouteConfig) -> Result<OpenFiles> {
            let url = route.url.clone().unwrap_or_default();
            let (named, target, peer) = match RemoteUrl::parse(&url)? {
                RemoteUrl::Server(url) => (None, Target::Url(url.to_owned()), PeerConfig::new(url)),
                RemoteUrl::Peer { name, path } => {
                    let known = self.peers.get(name).cloned();
                    let peer = known.ok_or_else(|| Error::invalid_argument(format!("no peer is named `{name}`; add `[peers.{name}]`")))?;
                    let target = match peer.reverse {
                        true => Target::Tunnel { name: name.to_owned(), path },
                        false => Target::Url(beneath(&peer.url, path.segments())),
                    };
                    (Some(name.to_owned()), target, peer)
                }
            };
            if let Target::Url(url) = &target {
                RemoteBackend::check_url(url, peer.plain_http)?;
            }
            let template = route.thread.as_deref().map(Template::parse).transpose()?;
            let cache = route.cache_bytes_max.map(|bytes_max| {
                let options = CacheOptions::new().with_bytes_max(bytes_max).with_serve_stale(route.serve_stale.unwrap_or_default());
                let file_bytes_max = options.file_bytes_max.min(bytes_max as u64 / 4);
                options.with_file_bytes_max(file_bytes_max)
            });
            let (config, path) = (self.clone(), path.to_owned());
            let opened: Arc<Mutex<Shared<TreeId, dyn Backend>>> = Arc::default();
            Ok(Arc::new(move |scope| {
                let thread = match &template {
                    Some(template) => {
                        check_fields(&path, template, template.fields(), scope)?;
                        Some(template.fill(scope)?)
                    }
                    None => None,
                };
                let actor = scope.agent.clone();
                // The actor is sent to the server, so clients are not shared between actors.
                let target = target.of(scope);
                let place = TreeId::Remote(format!("{}\n{target:?}", named.as_deref().unwrap_or_default()), thread.clone(), actor.clone());
                let open = {
                    let (config, peer, path, cache) = (config.clone(), peer.clone(), path.clone(), cache.clone());
                    move || {
                        config.client(&peer, &target, thread.clone(), actor.clone(), cache.clone()).map_err(|error| unopened(&path, error))
                    }
                };
                let (opened, key) = (opened.clone(), place.clone());
                Ok((place, Box::new(move || opened.lock().get_or_insert(key, || Deferred::open(open)))))
            }))
        }

        /// Creates the client of a server, without contacting it.
        fn client(
            &self,
            peer: &PeerConfig,
            target: &TargetOf,
            thread: Option<String>,
            actor: Option<String>,
            cache: Option<CacheOptions>,
        ) -> Result<Arc<dyn Backend>> {
            let mut options = RemoteOptions::new().with_plain_http(peer.plain_http);
            (options.thread, options.actor) = (thread, actor);
            if let Some(token) = &peer.token {
                options = options.with_token(self.token(token)?);
            }
            let remote = match target {
                TargetOf::Url(url) => RemoteBackend::new(url, options)?,
                TargetOf::Tunnel { tenant, name, path } => {
                    let transport = self.tunnels().transport(tenant.as_deref(), name);
                    RemoteBackend::over(PeerClient::over(transport, format!("agent://{name}"), options)?, path.clone())
                }
            };
            Ok(match cache {
                Some(cache) => {
                    let feed = remote.changes();
                    Arc::new(CachedBackend::new(remote, cache).with_feed(feed))
                }
                None => Arc::new(remote),
            })
        }

        /// Reads the token of a peer. Errors reveal neither the token nor the path of its file.
        pub(in crate::config) fn token(&self, place: &str) -> Result<String> {
            self.secret(place, "the token of the peer", "`token` of the peer")
        }

        /// Reads a secret. Errors reveal neither the secret nor the path of its file; they call it `what`, and its key in the configuration
        /// `setting`.
        pub(in crate::config) fn secret(&self, place: &str, what: &str, setting: &str) -> Result<String> {
            let secret = match TokenPlace::parse(place)? {
                TokenPlace::Variable(variable) => std::env::var(variable)
                    .map_err(|_| Error::invalid_argument(format!("the variable `{variable}` is not set; put {what} into it")))?,
                TokenPlace::File(file) => {
                    let file = self.resolve(file);
                    std::fs::read_to_string(&file).map_err(|error| {
                        let message = format!("the file of {what} cannot be read; check {setting}");
                        Error::new(ErrorKind::Unavailable, message).with_source(AtHost::new(&file).with_cause(error))
                    })?
                }
            };
            match secret.trim() {
                "" => Err(Error::invalid_argument(format!("{what} is empty; leave {setting} out if none is required"))),
                secret => Ok(secret.to_owned()),
            }
        }
    }

    /// Where the tree of a route is.
    #[derive(Debug, Clone)]
    enum Target {
        Url(String),
        /// A directory of a machine that dials this server.
        Tunnel {
            name: String,
            path: VfsPathBuf,
        },
    }

    /// Where the tree of a route is for one caller. Each tenant has machines of its own.
    #[derive(Debug, Clone)]
    enum TargetOf {
        Url(String),
        Tunnel { tenant: Option<String>, name: String, path: VfsPathBuf },
    }

    impl Target {
        fn of(&self, scope: &Scope) -> TargetOf {
            match self.clone() {
                Self::Url(url) => TargetOf::Url(url),
                Self::Tunnel { name, path } => TargetOf::Tunnel { tenant: scope.tenant.clone(), name, path },
            }
        }
    }

    /// Returns the error for a route whose client cannot be created. The configuration is at fault, not the call.
    fn unopened(path: &str, error: Error) -> Error {
        let message = format!("the route `{path}` cannot be opened: {}", error.message());
        let kind = match error.kind() {
            ErrorKind::InvalidArgument => ErrorKind::Unavailable,
            kind => kind,
        };
        error.with_message(message).with_kind(kind).without_effect()
    }

    /// Appends path segments to a URL.
    fn beneath<'s>(url: &str, segments: impl Iterator<Item = &'s str>) -> String {
        let mut whole = url.trim_end_matches('/').to_owned();
        for segment in segments {
            whole.push('/');
            whole.push_str(&escape_bytes(segment.as_bytes(), is_unreserved));
        }
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(feature = "remote")]
    use crate::config::ConfigBase;
    #[cfg(feature = "remote")]
    use treehold_tree::backend::BackendExt;

    #[cfg(feature = "remote")]
    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, &ConfigBase::new("/etc/agent", "/var/lib/treehold")).map_err(|fault| fault.to_string())
    }

    #[test]
    fn agent_url_names_only_a_peer_and_a_path() {
        let peer = |name, path: &str| Ok(RemoteUrl::Peer { name, path: VfsPathBuf::parse(path).expect("a legal path") });
        assert_eq!(RemoteUrl::parse("agent://ada").map_err(drop), peer("ada", "/"));
        assert_eq!(RemoteUrl::parse("agent://ada-2/w x/%2e%2e@h:1?#").map_err(drop), peer("ada-2", "/w x/%2e%2e@h:1?#"));
        assert_eq!(RemoteUrl::parse("https://h/x").map_err(drop), Ok(RemoteUrl::Server("https://h/x")));
        for url in [
            "agent://",
            "agent:///w",
            "agent://a@b/w",
            "agent://a:b@c/w",
            "agent://host:80/w",
            "agent://a.b/w",
            "agent://A/w",
            "agent://a%2Fb/w",
            "agent://a?b",
            "agent://a#b",
            "agent://a\\b",
            "agent://[::1]/w",
            "agent://-a/w",
            "agent://ä/w",
            "agent://a/../b",
            "agent://a/b\n",
        ] {
            assert!(RemoteUrl::parse(url).is_err(), "{url}");
        }
    }

    #[test]
    #[cfg(feature = "remote")]
    fn unknown_and_invalid_peers_are_refused() {
        let route = |url: &str| format!("[routes.\"/p\"]\ntype = \"remote\"\nurl = \"{url}\"\n");
        let peer = "[peers.ada]\nurl = \"https://ada.example.org\"\n";
        assert!(parse(&format!("{peer}{}", route("agent://ada/w"))).is_ok());
        for (text, fault) in [
            (format!("{peer}{}", route("agent://adda/w")), "configuration:5:7: no peer is named `adda`; did you mean `ada`?"),
            (route("agent://zed/w"), "configuration:3:7: no peer is named `zed`; add `[peers.zed]` with its `url`"),
            (
                "[routes.\"/p\"]\ntype = \"remote\"\n".to_owned(),
                "configuration:1:9: the route `/p` has no `url`; write `url = \"agent://PEER/PATH\"`",
            ),
            (
                "[peers.ada]\nurl = \"https://h\"\ntoken = \"s3cret-s3cret-s3cret\"\n".to_owned(),
                "configuration:3:9: a token must not be written into the configuration; write `env:VARIABLE` or `file:PATH`",
            ),
            (
                "[peers.ada]\n".to_owned(),
                "configuration:1:8: the peer `ada` has no `url`; write `url = \"https://HOST:PORT\"`, or `reverse = true` if `ada` dials this server",
            ),
            (
                "[peers.ada]\nreverse = true\nurl = \"https://h\"\n".to_owned(),
                "configuration:3:7: a peer that dials this server is not called by a `url`; leave `url` or `reverse` out",
            ),
            (
                "[serve.dial.cloud]\nurl = \"https://h\"\ntoken = \"s3cret-s3cret-s3cret\"\n".to_owned(),
                "configuration:3:9: a token must not be written into the configuration; write `env:VARIABLE` or `file:PATH`",
            ),
            (
                "[serve.dial.cloud]\nurl = \"https://h\"\naccess = \"all\"\n".to_owned(),
                "configuration:3:10: `all` is not an access level; write one of read, write, admin",
            ),
            (
                "[serve.dial.cloud]\nurl = \"https://h\"\npaths = [\"/a\"]\n".to_owned(),
                "configuration:3:1: `paths` limits requests without a token, and there are none without `access`; set `access`, or leave `paths` out",
            ),
            (
                route("http://example.org"),
                "configuration:3:7: `http://example.org` would receive content and token unencrypted; use `https`, or allow this with `plain_http = true`",
            ),
            (
                format!("{}serve_stale = true\n", route("http://127.0.0.1")),
                "configuration:4:15: `serve_stale` serves cached content, and nothing is cached; set `cache_bytes_max` too",
            ),
        ] {
            assert_eq!(parse(&text).expect_err(fault), fault);
        }
        for text in [
            "[peers.\"a.b\"]\nurl = \"https://h\"\n".to_owned(),
            "[peers.ada]\nurl = \"https://ada:s3cret@h\"\n".to_owned(),
            route("https://ada:s3cret@h"),
            "[routes.\"/p\"]\ntype = \"state\"\nurl = \"https://h\"\n".to_owned(),
        ] {
            let fault = parse(&text).expect_err(&text);
            assert!(!fault.contains("s3cret"), "{fault}");
        }
        let open = "[peers.ada]\nurl = \"http://ada.example.org\"\nplain_http = true\n";
        assert!(parse(open).is_ok());
    }

    /// A machine of one tenant is not reached by the sessions of another, and a machine that is not connected by nobody.
    #[tokio::test]
    #[cfg(feature = "remote")]
    async fn reverse_peer_is_the_machine_of_the_callers_tenant() {
        let directory = tempfile::tempdir().expect("a directory");
        let text = "[stores.default]\nurl = \"memory:\"\n[peers.laptop]\nreverse = true\n\
                    [routes.\"/p\"]\ntype = \"remote\"\nurl = \"agent://laptop/x y\"\n";
        let config = Config::parse(text, &ConfigBase::new(directory.path(), directory.path())).expect("a sound configuration");
        let workspace = config.workspace().expect("a workspace");
        let session = workspace.session(config.scope().with_tenant("acme")).await.expect("opened");
        let shown = session.backend().to_string();
        assert!(shown.contains("/p => Remote(agent://laptop/x y)"), "{shown}");
        let error = session.backend().read_text("/p/a").await.expect_err("not connected");
        assert_eq!(error.kind(), treehold_core::error::ErrorKind::Unavailable);
        assert!(error.message().contains("`laptop` is not connected to this server; run `treehold serve --dial URL`"), "{error}");
        assert_eq!(config.tunnels().counts().requests, 0);
    }

    /// Opening requires the token, but contacts nobody.
    #[tokio::test]
    #[cfg(feature = "remote")]
    async fn remote_route_opens_without_a_request_and_hides_its_token() {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("token"), "s3cret-s3cret-s3cret\n").expect("written");
        let text = "[stores.default]\nurl = \"memory:\"\n[peers.ada]\nurl = \"https://ada.invalid/w\"\ntoken = \"file:token\"\n\
                    [routes.\"/p\"]\ntype = \"remote\"\nurl = \"agent://ada/x y\"\nthread = \"{user}\"\ncache_bytes_max = 1000\n\
                    [routes.\"/q\"]\ntype = \"remote\"\nurl = \"agent://ada\"\n";
        let config = Config::parse(text, &ConfigBase::new(directory.path(), directory.path())).expect("a sound configuration");
        let session = config.workspace().expect("a workspace").session(config.scope()).await.expect("opened");
        let shown = session.backend().to_string();
        assert!(shown.contains("/p => Cached(Remote(https://ada.invalid/w/x y))"), "{shown}");
        assert!(shown.contains("/q => Remote(https://ada.invalid/w)"), "{shown}");
        assert!(!format!("{:?}", session.backend()).contains("s3cret"), "{:?}", session.backend());
        std::fs::remove_file(directory.path().join("token")).expect("removed");
        let workspace = config.workspace().expect("a workspace");
        let session = workspace.session(config.scope()).await.expect("the other routes work");
        let error = session.backend().exists("/q/a").await.expect_err("without a token").to_string();
        assert_eq!(error, "the route `/q` cannot be opened: the file of the token of the peer cannot be read; check `token` of the peer");
        assert!(!error.contains(&directory.path().display().to_string()), "{error}");
    }
}
