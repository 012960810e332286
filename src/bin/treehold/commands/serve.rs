//! `serve`: serves the tree over HTTP.

use super::mcp::Offered;
use crate::context::{Context, unread};
use crate::exit::{Failure, Outcome};
use crate::{args, log, open_files, signal};
use clap::Args;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use treehold::mcp::{HttpLimits, McpOptions, McpServer};
use treehold::serve::{ConnectionLimits, HttpServer, ServeOptions, TlsFiles, Token};
use treehold::{Error, ErrorKind, Workspace};

/// Serve the tree over HTTP: the API at /v1, MCP at /mcp
///
/// A call is about the thread that its URL names (/mcp/t/THREAD), else its header Treehold-Thread, else its argument `thread_id`, else
/// the one of --thread. Warnings go to standard error, a line each with the id of the trace; with --verbose each request too. Whoever reaches the address may read and write, so an address that others reach needs a token.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold serve
  claude mcp add --transport http files http://127.0.0.1:7777/mcp
  treehold serve --listen localhost:8080
  curl http://127.0.0.1:7777/v1/fs/memories/notes.md
  treehold serve --tokens --listen 0.0.0.0:7777 --allow-host files.example.com
  treehold serve --listen 0.0.0.0:7777 --token-file token --allow-host files.example.com")]
pub(crate) struct Serve {
    /// Address or name, and port, to listen at; port 0 takes any that is free
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7777")]
    listen: String,
    /// File with the token that requests bring as `Authorization: Bearer`
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Look up tokens in the store: each names its caller and what it may do (see `treehold token`)
    #[arg(long)]
    tokens: bool,
    /// File with the certificate to serve TLS with, as PEM, those up to its root behind it
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// File with the key of the certificate, as PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Host that requests may name, beside those of the loopback device; may be repeated
    #[arg(long = "allow-host", value_name = "HOST")]
    hosts: Vec<String>,
    /// Origin of web pages that may send requests, such as https://app.example.com; may be repeated
    #[arg(long = "allow-origin", value_name = "ORIGIN")]
    origins: Vec<String>,
    #[command(flatten)]
    offered: Offered,
    #[command(flatten)]
    connections: Connections,
}

/// What bounds connections, over what `[serve]` of the configuration says.
#[derive(Debug, Args)]
#[command(next_help_heading = "Connections (default: `[serve]` of the configuration)")]
struct Connections {
    /// Most connections at once; fewer where the system does not let the process open as many files [default: 4096]
    #[arg(long, value_name = "COUNT", value_parser = args::at_least_one)]
    connections_max: Option<usize>,
    /// Most connections at once from one address; behind a proxy as many as in all [default: 1024]
    #[arg(long, value_name = "COUNT", value_parser = args::at_least_one)]
    connections_per_address_max: Option<usize>,
    /// Time for the first request of a connection, and for any head [default: 15s]
    #[arg(long, value_name = "TIME", value_parser = args::some_duration)]
    head_timeout: Option<Duration>,
    /// Time between two requests of a connection [default: 75s]
    #[arg(long, value_name = "TIME", value_parser = args::some_duration)]
    idle_timeout: Option<Duration>,
    /// Time in which a client takes no bytes of an answer [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = args::some_duration)]
    write_timeout: Option<Duration>,
    /// Pause within the body of a request [default: 15s]
    #[arg(long, value_name = "TIME", value_parser = args::some_duration)]
    body_timeout: Option<Duration>,
    /// Fewest bytes of a body each second, after its first pause [default: 1024]
    #[arg(long, value_name = "BYTES")]
    body_bytes_per_second_min: Option<u64>,
    /// Fewest bytes that a client takes of an answer each second, after its first pause [default: 1024]
    #[arg(long, value_name = "BYTES")]
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

/// Resolves the address to listen on. IPv4 comes first; if a name has both, clients try both.
async fn resolved(listen: &str) -> Result<Vec<SocketAddr>, Error> {
    let found = tokio::net::lookup_host(listen).await.map_err(|error| {
        let message =
            format!("`{listen}` is nothing to listen at; give an address or a name, and a port, such as 127.0.0.1:7777 or localhost:7777");
        Error::new(ErrorKind::InvalidArgument, message).with_source(error)
    })?;
    let mut addresses: Vec<SocketAddr> = found.collect();
    addresses.sort_by_key(SocketAddr::is_ipv6);
    if addresses.is_empty() {
        return Err(Error::new(ErrorKind::InvalidArgument, format!("`{listen}` has no address; give one, such as 127.0.0.1:7777")));
    }
    Ok(addresses)
}

fn unguarded(listen: &str, address: SocketAddr) -> Error {
    let which = if listen == address.to_string() { listen.to_owned() } else { format!("{listen} ({address})") };
    let message = format!(
        "{which} is reached by others, and there is no token; set one by --token-file, ask for those of the store by --tokens, or listen at 127.0.0.1"
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
    Err(failed.expect("a name that was resolved has an address"))
}

/// Describes the connection limit and its cause.
fn told(connections_max: usize, wanted: usize, open_files_max: Option<u64>) -> String {
    match open_files_max {
        Some(files) if connections_max < wanted => format!(
            "up to {connections_max} connections at once, not {wanted}: the system lets this process open {files} files; raise the hard limit \
             (`ulimit -Hn`) for more"
        ),
        Some(files) => format!("up to {connections_max} connections at once; the system lets this process open {files} files"),
        None => format!("up to {connections_max} connections at once"),
    }
}

impl Serve {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        for (file, reason) in [
            (&self.token_file, "it is the token of this server"),
            (&self.tls_cert, "it is the certificate of this server"),
            (&self.tls_key, "it is the key of this server"),
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
        let addresses = resolved(&self.listen).await?;
        let is_open = token.is_none() && !self.tokens;
        if let Some(address) = addresses.iter().find(|address| is_open && !address.ip().is_loopback()) {
            return Err(unguarded(&self.listen, *address).into());
        }
        let workspace = context.workspace()?.clone();
        let offered = self.offered.options(&config)?;
        McpServer::new(workspace.clone(), offered.clone()).check().await?;
        let tls = self.tls_cert.zip(self.tls_key).map(|(certificate, key)| TlsFiles { certificate, key });
        let scheme = if tls.is_some() { "https" } else { "http" };
        let store = context.stores()?.get(&config.threads.store)?;
        let mut general = config.serve.applied_to(ServeOptions::new(addresses[0], config.scope()))?;
        self.connections.over(&mut general.connections);
        let wanted = general.connections.connections_max;
        let open_files_max = open_files::raise();
        if let Some(max) = open_files_max {
            general.connections = general.connections.within_open_files(max);
        }
        let connections_max = general.connections.connections_max;
        let general = general.with_token(token).with_tokens(self.tokens).with_tls(tls).with_limits(limits).with_store(store);
        let options = addresses.into_iter().map(|address| {
            let mut options = general.clone();
            options.address = address;
            options
        });
        let server = bound(&workspace, &offered, options).await?;
        context.out.notice(told(connections_max, wanted, open_files_max));
        context.out.line(format_args!("{scheme}://{}/mcp", server.address()?))?;
        context.out.flush()?;
        log::begin(&context.global);
        server.run(signal::stop()).await?;
        Ok(Outcome::Done)
    }
}
