//! The registry of other places: which server a location means, and the one client for it.
//!
//! A location is the name of an agent, or a host that is compared with the URLs of the registered agents, so that the key of a host is
//! always the one that was registered for it. All other locations are refused before anything is sent or looked up. A configuration may
//! allow hosts that are not registered: then by `https` only, without a key, and never to an address of a private network, also not by the
//! answer of a name server ([`RemoteOptions::with_public_only`]). Redirects are never followed.

mod agents;
mod host;
mod key;

pub use key::ApiKey;

use self::host::{Authority, has_port};
use crate::contract::UnknownAgent;
use crate::id::Location;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use tokio::sync::OnceCell;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_remote::{PeerClient, RemoteBackend, RemoteOptions, Transport};

/// The most clients that are kept. Beyond it, the one unused for the longest time is dropped, and made again when it is needed.
const CLIENTS_MAX: usize = 256;

/// The least similarity of a name that an error suggests; 1 means equal.
const LIKENESS_MIN: f64 = 0.75;

/// Returns the transport to a machine that dials in, by its name.
pub type TunnelOf = Arc<dyn Fn(&str) -> Arc<dyn Transport> + Send + Sync>;

/// A registered agent: a name for a server and how to reach it.
#[derive(Debug, Clone)]
pub struct Peer {
    name: String,
    route: Route,
    key: Option<ApiKey>,
    kind: Option<String>,
}

#[derive(Debug, Clone)]
enum Route {
    /// By its URL.
    Url { url: String, authority: Authority, plain_http: bool },
    /// By a connection that it opened to this server.
    Tunnel,
}

impl Peer {
    /// Registers a server at a URL, `https://HOST[:PORT]`. A path, which names a directory for file operations, is ignored. `plain_http`
    /// allows `http` to other hosts.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a name that no id can contain, and for a URL with a user, or with `http` without
    /// permission. No message repeats the URL.
    pub fn new(name: impl Into<String>, url: impl Into<String>, plain_http: bool) -> Result<Self> {
        let (name, url) = (named(name.into())?, url.into());
        let refused = |why: &str| Error::invalid_argument(format!("the agent `{name}` cannot be registered: {why}"));
        RemoteBackend::check_url(&url, plain_http).map_err(|error| refused(error.message()))?;
        let authority = Authority::of_url(&url).ok_or_else(|| refused("its URL has no host"))?;
        Ok(Self { name, route: Route::Url { url, authority, plain_http }, key: None, kind: None })
    }

    /// Registers a server at a URL by its host, for ids `agent://HOST[:PORT]/ID`.
    ///
    /// # Errors
    /// As [`Peer::new`].
    pub fn of_host(url: impl Into<String>) -> Result<Self> {
        let url = url.into();
        match host::location_of(&url) {
            Some(Location::Host(host)) => Self::new(host, url, false),
            _ => Err(Error::invalid_argument("the URL of an agent is `https://HOST:PORT`")),
        }
    }

    /// Registers a machine that dials in, as [`PeersOptions::with_tunnels`] reaches it.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a name that no id can contain.
    pub fn dialling_in(name: impl Into<String>) -> Result<Self> {
        Ok(Self { name: named(name.into())?, route: Route::Tunnel, key: None, kind: None })
    }

    /// Sets the API key.
    #[must_use]
    pub fn with_key(mut self, key: ApiKey) -> Self {
        self.key = Some(key);
        self
    }

    /// Sets the kind of agent, such as `terminal`.
    #[must_use]
    pub fn with_kind(mut self, kind: Option<String>) -> Self {
        self.kind = kind;
        self
    }

    /// Adds the key to options. It is read now.
    fn keyed(&self, options: RemoteOptions) -> Result<RemoteOptions> {
        let Some(key) = &self.key else { return Ok(options) };
        let key = key.read().map_err(|error| {
            let message = format!("the agent `{}` cannot be asked: {}", self.name, error.message());
            error.with_message(message).without_effect()
        })?;
        Ok(options.with_token(key))
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the location by which this registry names the place.
    fn location(&self) -> Location {
        match self.url().and_then(host::location_of) {
            Some(Location::Host(host)) if host == self.name => Location::Host(host),
            _ => Location::Agent(self.name.clone()),
        }
    }

    /// Returns the URL; `None` for a machine that dials in.
    pub fn url(&self) -> Option<&str> {
        match &self.route {
            Route::Url { url, .. } => Some(url),
            Route::Tunnel => None,
        }
    }

    /// Returns the kind of agent.
    pub fn kind(&self) -> Option<&str> {
        self.kind.as_deref()
    }
}

fn named(name: String) -> Result<String> {
    Location::agent(&name)?;
    Ok(name)
}

/// Options of the registry.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct PeersOptions {
    /// Whether ids may name hosts that are not registered. Default false.
    pub unregistered_hosts: bool,
    /// Whether such a host may have an address of a private network or of this machine. Default false.
    pub private_hosts: bool,
    /// The options of all clients. A token in them is not sent. Default: those of [`RemoteOptions`].
    pub remote: RemoteOptions,
    /// How machines that dialled in are reached. Default: not at all.
    tunnels: Option<TunnelOf>,
}

impl PeersOptions {
    /// Refuses every host that is not registered.
    pub fn new() -> Self {
        Self::default()
    }

    /// Allows hosts that are not registered: by `https`, without a key, and only with public addresses.
    #[must_use]
    pub fn with_unregistered_hosts(mut self, allowed: bool) -> Self {
        self.unregistered_hosts = allowed;
        self
    }

    /// Also allows private addresses for hosts that are not registered. Then whoever chooses an id chooses a machine of the own network.
    #[must_use]
    pub fn with_private_hosts(mut self, allowed: bool) -> Self {
        self.private_hosts = allowed;
        self
    }

    /// Sets the time limits and bounds of all clients.
    #[must_use]
    pub fn with_remote(mut self, options: RemoteOptions) -> Self {
        self.remote = options;
        self
    }

    /// Sets how machines that dialled in are reached.
    #[must_use]
    pub fn with_tunnels(mut self, tunnel_of: TunnelOf) -> Self {
        self.tunnels = Some(tunnel_of);
        self
    }
}

impl fmt::Debug for PeersOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeersOptions")
            .field("unregistered_hosts", &self.unregistered_hosts)
            .field("private_hosts", &self.private_hosts)
            .field("remote", &self.remote)
            .field("tunnels", &self.tunnels.is_some())
            .finish()
    }
}

/// The registered agents and the clients of their servers. Clones share both.
///
/// # Examples
/// ```
/// use treehold_traces::{ApiKey, Location, Peer, Peers, PeersOptions};
///
/// let laptop = Peer::new("laptop", "https://laptop.example:8000", false)?.with_key(ApiKey::parse("env:LAPTOP_KEY", "/".as_ref()));
/// let peers = Peers::new([laptop], PeersOptions::new())?;
/// assert!(peers.check(&Location::agent("laptop")?).is_ok());
/// assert!(peers.check(&Location::host("laptop.example:8000")?).is_ok());
/// let error = peers.check(&Location::agent("lapto")?).unwrap_err();
/// assert_eq!(error.message(), "no agent is named `lapto`; did you mean `laptop`?");
/// # Ok::<(), treehold_core::error::Error>(())
/// ```
#[derive(Clone)]
pub struct Peers(Arc<Inner>);

struct Inner {
    peers: BTreeMap<String, Peer>,
    options: PeersOptions,
    clients: Mutex<Clients>,
}

/// The client of one place, once it is made.
type Slot = Arc<OnceCell<PeerClient>>;

#[derive(Default)]
struct Clients {
    /// By the name of the agent, or the unregistered host; with the time of the last use.
    slots: HashMap<Location, (Slot, u64)>,
    uses: u64,
}

impl Clients {
    fn slot(&mut self, location: Location) -> Slot {
        self.uses += 1;
        if let Some((slot, used)) = self.slots.get_mut(&location) {
            *used = self.uses;
            return slot.clone();
        }
        if self.slots.len() >= CLIENTS_MAX
            && let Some(oldest) = self.slots.iter().min_by_key(|(_, (_, used))| *used).map(|(location, _)| location.clone())
        {
            self.slots.remove(&oldest);
        }
        let slot = Slot::default();
        self.slots.insert(location, (slot.clone(), self.uses));
        slot
    }
}

/// A place that may be reached.
enum Reachable<'a> {
    Registered(&'a Peer),
    Host(&'a str),
}

impl Peers {
    /// Makes a registry.
    ///
    /// # Errors
    /// [`AlreadyExists`](ErrorKind::AlreadyExists) for two agents with one name.
    pub fn new(peers: impl IntoIterator<Item = Peer>, options: PeersOptions) -> Result<Self> {
        let mut registered = BTreeMap::new();
        for peer in peers {
            if let Some(peer) = registered.insert(peer.name.clone(), peer) {
                let message = format!("the agent `{}` is registered twice; rename one of them", peer.name);
                return Err(Error::new(ErrorKind::AlreadyExists, message));
            }
        }
        Ok(Self(Arc::new(Inner { peers: registered, options, clients: Mutex::default() })))
    }

    /// Reads agents from a file `agents.yaml` of the form `agents: {NAME: {url, api_key, type}}`. Other fields are ignored. An `api_key` is
    /// the key itself, `env:VARIABLE`, or `file:PATH` with a path relative to the file. The file has at most 1 MiB.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) or [`TooLarge`](ErrorKind::TooLarge) for a file that is not of this form,
    /// [`NotFound`](ErrorKind::NotFound) or [`Unavailable`](ErrorKind::Unavailable) for one that cannot be read. Messages contain no text of
    /// the file besides names of agents.
    pub fn agents_of_file(file: &Path) -> Result<Vec<Peer>> {
        agents::read(file)
    }

    /// Returns the agents in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.0.peers.values()
    }

    /// Checks that a location may be reached, without any look-up or connection.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) with the source [`UnknownAgent`] for a location that is not registered, and for a host
    /// that several agents have.
    pub fn check(&self, location: &Location) -> Result<()> {
        self.resolve(location).map(drop)
    }

    /// Returns the client of a location. It is made by the first call and kept.
    ///
    /// # Errors
    /// As [`Peers::check`]; [`InvalidArgument`](ErrorKind::InvalidArgument) or [`Unavailable`](ErrorKind::Unavailable) if its key cannot be
    /// read, or if its machine has not dialled in.
    pub async fn client(&self, location: &Location) -> Result<PeerClient> {
        let reachable = self.resolve(location)?;
        let place = match reachable {
            Reachable::Registered(peer) => Location::Agent(peer.name.clone()),
            Reachable::Host(_) => location.clone(),
        };
        let slot = self.0.clients.lock().slot(place);
        slot.get_or_try_init(|| self.connect(&reachable)).await.cloned()
    }

    /// Returns the location of an agent by its host, which means the same server everywhere; others as they are.
    pub(crate) fn by_host(&self, location: &Location) -> Location {
        let url = match location {
            Location::Agent(name) => self.0.peers.get(name).and_then(Peer::url),
            Location::Host(_) => None,
        };
        url.and_then(host::location_of).unwrap_or_else(|| location.clone())
    }

    /// Returns the one location of a registered place that several locations mean; others as they are.
    pub(crate) fn canonical(&self, location: &Location) -> Location {
        match self.resolve(location) {
            Ok(Reachable::Registered(peer)) => peer.location(),
            Ok(Reachable::Host(_)) | Err(_) => location.clone(),
        }
    }

    /// Returns whether two locations mean one place.
    pub(crate) fn is_same(&self, one: &Location, other: &Location) -> bool {
        one.is_same(other)
            || match (self.resolve(one), self.resolve(other)) {
                (Ok(Reachable::Registered(one)), Ok(Reachable::Registered(other))) => one.name == other.name,
                _ => false,
            }
    }

    fn resolve<'a>(&'a self, location: &'a Location) -> Result<Reachable<'a>> {
        match location {
            Location::Agent(name) => match self.0.peers.get(name) {
                Some(peer) => Ok(Reachable::Registered(peer)),
                None => Err(self.unknown(&format!("no agent is named `{name}`"), name, self.0.peers.keys().cloned())),
            },
            Location::Host(host) => self.resolve_host(host),
        }
    }

    fn resolve_host<'a>(&'a self, host: &'a str) -> Result<Reachable<'a>> {
        let meant = Authority::of_location(host).map_err(|error| error.with_source(UnknownAgent))?;
        let means = |peer: &&Peer| match &peer.route {
            Route::Url { authority, .. } => authority.is_meant_by(&meant, has_port(host)),
            Route::Tunnel => false,
        };
        let mut registered = self.0.peers.values().filter(means);
        match (registered.next(), registered.next()) {
            (Some(peer), None) => Ok(Reachable::Registered(peer)),
            (Some(one), Some(other)) => Err(Error::invalid_argument(format!(
                "the agents `{}` and `{}` both have the host `{host}`; write `@AGENT/ID`",
                one.name, other.name
            ))),
            (None, _) if self.0.options.unregistered_hosts => Ok(Reachable::Host(host)),
            (None, _) => {
                let hosts = self.0.peers.values().filter_map(|peer| match host::location_of(peer.url()?)? {
                    Location::Host(host) => Some(host),
                    Location::Agent(_) => None,
                });
                Err(self.unknown(&format!("no agent has the host `{host}`"), host, hosts))
            }
        }
    }

    fn unknown(&self, what: &str, name: &str, known: impl Iterator<Item = String>) -> Error {
        let near = known
            .map(|known| (strsim::jaro_winkler(name, &known), known))
            .filter(|(likeness, _)| *likeness >= LIKENESS_MIN)
            .max_by(|one, other| one.0.total_cmp(&other.0));
        let hint = match near {
            Some((_, near)) => format!("did you mean `{near}`?"),
            None => "register it in `[peers]` or in the file of agents".to_owned(),
        };
        Error::invalid_argument(format!("{what}; {hint}")).with_source(UnknownAgent)
    }

    /// Makes the client of a place. Sends nothing.
    async fn connect(&self, reachable: &Reachable<'_>) -> Result<PeerClient> {
        let options = self.0.options.remote.clone();
        let (url, options) = match reachable {
            Reachable::Host(host) => {
                (format!("https://{host}"), options.with_plain_http(false).with_public_only(!self.0.options.private_hosts))
            }
            Reachable::Registered(peer) => {
                let options = peer.keyed(options)?;
                match &peer.route {
                    Route::Tunnel => return self.through_tunnel(&peer.name, options),
                    Route::Url { url, plain_http, .. } => (url.clone(), options.with_plain_http(*plain_http)),
                }
            }
        };
        // Reading the root certificates blocks.
        let made = tokio::task::spawn_blocking(move || PeerClient::new(&url, options)).await;
        made.map_err(|error| Error::new(ErrorKind::Internal, "the client of another server cannot be made").with_source(error))?
    }

    fn through_tunnel(&self, name: &str, options: RemoteOptions) -> Result<PeerClient> {
        match &self.0.options.tunnels {
            Some(tunnel_of) => PeerClient::over(tunnel_of(name), format!("@{name}"), options),
            None => Err(Error::new(ErrorKind::Unavailable, format!("`{name}` dials in, and this program accepts no such connections"))
                .without_effect()),
        }
    }
}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peers").field("peers", &self.0.peers.values()).field("options", &self.0.options).finish()
    }
}
