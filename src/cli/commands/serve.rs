//! `serve`: serves the tree over HTTP.

use super::mcp::Offered;
use crate::cli::context::{Context, unread};
use crate::cli::exit::{Failure, Outcome};
use crate::cli::{args, log, open_files, signal};
use crate::mcp::{HttpLimits, McpOptions, McpServer};
use crate::serve::{Access, ConnectionLimits, Dial, HttpServer, Rights, ServeOptions, TlsFiles, Token};
use crate::{Error, ErrorKind, RemoteOptions, Workspace};
use clap::Args;
use futures::FutureExt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Serve the tree over HTTP: API at /v1, MCP at /mcp
///
/// Anyone who can reach the address can read and write, so require a token on any address that others can reach. A request uses
/// the thread in its URL (/mcp/t/THREAD), else the one in its Treehold-Thread header, else its `thread_id` argument, else that of
/// --thread. Removes what `[retention]` of the configuration does not keep. Logs warnings, and with --verbose each request, to standard error, one line each with a trace id.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold serve
  claude mcp add --transport http files http://127.0.0.1:7777/mcp
  treehold serve --listen localhost:8080
  curl http://127.0.0.1:7777/v1/fs/memories/notes.md
  treehold serve --tokens --listen 0.0.0.0:7777 --allow-host files.example.com
  treehold serve --listen 0.0.0.0:7777 --token-file token --allow-host files.example.com
  treehold serve --dial https://files.example.com --dial-token-file token --dial-access write")]
pub(crate) struct Serve {
    /// Address or host name and port to listen on; port 0 picks a free one, and `none` with --dial listens nowhere
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7777")]
    listen: String,
    /// File with the token that requests must send as `Authorization: Bearer`
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Accept the tokens in the store, each with its own caller and rights (see `treehold token`)
    #[arg(long)]
    tokens: bool,
    /// PEM file with the TLS certificate, followed by its intermediate certificates
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// PEM file with the private key of the certificate
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Host name to accept in requests, besides loopback names (repeatable)
    #[arg(long = "allow-host", value_name = "HOST")]
    hosts: Vec<String>,
    /// Web origin to accept requests from, such as https://app.example.com (repeatable)
    #[arg(long = "allow-origin", value_name = "ORIGIN")]
    origins: Vec<String>,
    /// Also serve the routes that the inspector of agent hosts expects, beneath this path prefix ("" for none)
    #[arg(long, value_name = "PREFIX")]
    host_routes: Option<String>,
    #[command(flatten)]
    offered: Offered,
    #[command(flatten)]
    dials: Dials,
    #[command(flatten)]
    connections: Connections,
}

/// Servers to dial, besides those of `[serve.dial]`.
#[derive(Debug, Args)]
#[command(next_help_heading = "Reverse connections (also: `[serve.dial]` of the configuration)")]
struct Dials {
    /// Server to connect to, which then sends requests here, for a machine that cannot be called (repeatable)
    #[arg(id = "dial", long = "dial", value_name = "URL")]
    urls: Vec<String>,
    /// File with the token for those servers, made by `treehold token create --connect-as`
    #[arg(long, value_name = "FILE", requires = "dial")]
    dial_token_file: Option<PathBuf>,
    /// Name to connect as [default: that of the token]
    #[arg(long, value_name = "NAME", requires = "dial")]
    dial_as: Option<String>,
    /// What those servers may do here without a token of this server: read, write or admin [default: nothing]
    #[arg(long, value_name = "ACCESS", requires = "dial", value_parser = super::token::access)]
    dial_access: Option<Access>,
}

impl Dials {
    /// Returns the servers that the flags name.
    fn servers(&self) -> Result<Vec<Dial>, Error> {
        let mut options = RemoteOptions::new();
        if let Some(file) = &self.dial_token_file {
            let text = std::fs::read_to_string(file).map_err(|error| unread(&file.display().to_string(), error))?;
            options = options.with_token(text.trim());
        }
        let server = |url: &String| {
            let rights = self.dial_access.map(Rights::new);
            Dial::new(url, options.clone()).with_name(self.dial_as.clone()).with_rights(rights)
        };
        Ok(self.urls.iter().map(server).collect())
    }
}

/// Limits on connections, which override `[serve]` of the configuration.
#[derive(Debug, Args)]
#[command(next_help_heading = "Connections (default: `[serve]` of the configuration)")]
struct Connections {
    /// Maximum number of connections; the limit on open files may lower it [default: 4096]
    #[arg(long, hide_short_help = true, value_name = "COUNT", value_parser = args::at_least_one)]
    connections_max: Option<usize>,
    /// Maximum connections per client address; raise it behind a proxy [default: 1024]
    #[arg(long, hide_short_help = true, value_name = "COUNT", value_parser = args::at_least_one)]
    connections_per_address_max: Option<usize>,
    /// Maximum time to receive the first request, and any request head [default: 15s]
    #[arg(long, hide_short_help = true, value_name = "TIME", value_parser = args::some_duration)]
    head_timeout: Option<Duration>,
    /// Maximum time between two requests on a connection [default: 75s]
    #[arg(long, hide_short_help = true, value_name = "TIME", value_parser = args::some_duration)]
    idle_timeout: Option<Duration>,
    /// Maximum time in which a client reads nothing of a response [default: 30s]
    #[arg(long, hide_short_help = true, value_name = "TIME", value_parser = args::some_duration)]
    write_timeout: Option<Duration>,
    /// Maximum pause within a request body [default: 15s]
    #[arg(long, hide_short_help = true, value_name = "TIME", value_parser = args::some_duration)]
    body_timeout: Option<Duration>,
    /// Minimum rate of a request body after its first pause [default: 1024]
    #[arg(long, hide_short_help = true, value_name = "BYTES")]
    body_bytes_per_second_min: Option<u64>,
    /// Minimum rate at which a client reads a response after its first pause [default: 1024]
    #[arg(long, hide_short_help = true, value_name = "BYTES")]
    answer_bytes_per_second_min: Option<u64>,
}

impl Connections {
    /// Overrides the configured limits with those of the flags.
    fn over(&self, limits: &mut ConnectionLimits) {
        fn put<T: Copy>(flag: Option<T>, limit: &mut T) {
            *limit = flag.unwrap_or(*limit);
        }
        put(self.connections_max, &mut limits.connections_max);
        put(self.connections_per_address_max, &mut limits.per_address_max);
        put(self.head_timeout, &mut limits.head_timeout);
        put(self.idle_timeout, &mut limits.idle_timeout);
        put(self.write_timeout, &mut limits.write_timeout);
        put(self.body_timeout, &mut limits.body_timeout);
        put(self.body_bytes_per_second_min, &mut limits.body_bytes_per_second_min);
        put(self.answer_bytes_per_second_min, &mut limits.answer_bytes_per_second_min);
    }
}

/// What `--listen` says for a server that only dials.
const NOWHERE: &str = "none";

/// Resolves the address to listen on. IPv4 comes first; if a name has both, clients try both.
async fn resolved(listen: &str) -> Result<Vec<SocketAddr>, Error> {
    let found = tokio::net::lookup_host(listen).await.map_err(|error| {
        let message = format!(
            "`{listen}` is not an address to listen on; give an address or a name, and a port, such as `127.0.0.1:7777` or \
                `localhost:7777`"
        );
        Error::new(ErrorKind::InvalidArgument, message).with_source(error)
    })?;
    let mut addresses: Vec<SocketAddr> = found.collect();
    addresses.sort_by_key(SocketAddr::is_ipv6);
    if addresses.is_empty() {
        return Err(Error::new(ErrorKind::InvalidArgument, format!("`{listen}` has no address; give one, such as `127.0.0.1:7777`")));
    }
    Ok(addresses)
}

fn unguarded(listen: &str, address: SocketAddr) -> Error {
    let which = if listen == address.to_string() { listen.to_owned() } else { format!("{listen} ({address})") };
    let message = format!(
        "{which} is reachable from other machines, and no token is set; set one with `--token-file`, require those of the store with \
         `--tokens`, or listen on 127.0.0.1"
    );
    Error::new(ErrorKind::InvalidArgument, message)
}

/// Listens on the first possible address.
async fn bound(workspace: &Workspace, mcp: &McpOptions, places: impl Iterator<Item = ServeOptions>) -> Result<HttpServer, Error> {
    let mut failed = None;
    for options in places {
        match HttpServer::bind(workspace.clone(), mcp.clone(), options).await {
            Ok(server) => return Ok(server),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    Err(failed.expect("a resolved name has an address"))
}

/// Describes the connection limit and its cause.
fn told(connections_max: usize, wanted: usize, open_files_max: Option<u64>) -> String {
    match open_files_max {
        Some(files) if connections_max < wanted => format!(
            "up to {connections_max} connections at once, not {wanted}: this process may open {files} files; raise the hard limit \
             (`ulimit -Hn`) for more"
        ),
        Some(files) => format!("up to {connections_max} connections at once; this process may open {files} files"),
        None => format!("up to {connections_max} connections at once"),
    }
}

impl Serve {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        for (file, reason) in [
            (&self.token_file, "it is the token of this server"),
            (&self.tls_cert, "it is the certificate of this server"),
            (&self.tls_key, "it is the key of this server"),
            (&self.dials.dial_token_file, "it is the token for other servers"),
        ] {
            file.iter().for_each(|file| context.govern(file, reason));
        }
        let config = context.config()?;
        let mut limits = HttpLimits::default();
        self.hosts.iter().try_for_each(|host| limits.add_host(host))?;
        self.origins.iter().try_for_each(|origin| limits.add_origin(origin))?;
        let token = match &self.token_file {
            Some(file) => {
                let text = std::fs::read_to_string(file).map_err(|error| unread(&file.display().to_string(), error))?;
                Some(Token::new(&text)?)
            }
            None => None,
        };
        let listens = self.listen != NOWHERE;
        let addresses = if listens { resolved(&self.listen).await? } else { vec![SocketAddr::from(([127, 0, 0, 1], 0))] };
        let is_open = token.is_none() && !self.tokens;
        if let Some(address) = addresses.iter().find(|address| is_open && !address.ip().is_loopback()) {
            return Err(unguarded(&self.listen, *address).into());
        }
        let workspace = context.workspace()?.clone();
        let offered = self.offered.options(&config)?;
        // Tokens name other users, whose trees may differ from that of the configured user.
        if !self.tokens {
            McpServer::new(workspace.clone(), offered.clone()).check_shared().await?;
        }
        let tls = self.tls_cert.zip(self.tls_key).map(|(certificate, key)| TlsFiles { certificate, key });
        let scheme = if tls.is_some() { "https" } else { "http" };
        let store = context.stores()?.get(&config.threads.store)?;
        let sessions = config.sessions(&context.stores()?)?;
        let states = config.agent_states(&context.stores()?)?;
        let traces = config.trace_stores(&context.stores()?)?;
        let (retention, every) = (config.retention(&context.stores()?)?, config.retention.every()?);
        let mut dials = config.dials()?;
        dials.extend(self.dials.servers()?);
        let mut general = config.serve.applied_to(ServeOptions::new(addresses[0], config.scope()))?;
        self.connections.over(&mut general.connections);
        let wanted = general.connections.connections_max;
        let open_files_max = open_files::raise();
        if let Some(max) = open_files_max {
            general.connections = general.connections.within_open_files(max);
        }
        let connections_max = general.connections.connections_max;
        let general = general
            .with_token(token)
            .with_tokens(self.tokens)
            .with_tls(tls)
            .with_limits(limits)
            .with_store(store)
            .with_sessions(sessions)
            .with_states(states)
            .with_organization_traces(traces)
            .with_tunnels(config.tunnels().clone())
            .with_dials(dials)
            .with_retention(retention, every)
            .with_swept(context.stores()?.swept().clone())
            .with_listens(listens)
            .with_host_routes(self.host_routes);
        let options = addresses.into_iter().map(|address| {
            let mut options = general.clone();
            options.address = address;
            options
        });
        let server = bound(&workspace, &offered, options).await?;
        if listens {
            context.out.notice(told(connections_max, wanted, open_files_max));
            context.out.line(format_args!("{scheme}://{}/mcp", server.address()?))?;
        } else {
            context.out.line(format_args!("listening nowhere"))?;
        }
        context.out.flush()?;
        log::begin(&context.global);
        server.run(signal::stop().map(drop)).await?;
        Ok(Outcome::Done)
    }
}
