//! Dialling another server, to be reached over that connection.

use super::RemoteOptions;
use super::address::{Address, encoded};
use super::client::PeerClient;
use super::network;
use super::transport::{Failure, TransportError, TransportResponse};
use futures::StreamExt;
use http::StatusCode;
use http::header::{CONNECTION, HeaderMap, HeaderValue, UPGRADE};
use reqwest::{Client, redirect};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::wire::PREFIX;

/// The name of the protocol after the upgrade: HTTP/2 in reverse.
pub const TUNNEL_PROTOCOL: &str = "treehold-tunnel";

/// The resource at which a server accepts tunnels, below `/v1`.
pub const CONNECT: &str = "connect";

/// Connects to a server and upgrades the connection. The server is the client of what this program then serves over the stream, as HTTP/2.
///
/// `name` is the name to connect as; without one it is that of the token. `options` gives the token, the time limits, and whether `http`
/// to another host is allowed.
///
/// # Errors
/// [`InvalidArgument`](ErrorKind::InvalidArgument) for a URL or a token that cannot be used, [`Unavailable`](ErrorKind::Unavailable) if the
/// server cannot be reached, [`Deadline`](ErrorKind::Deadline) if it does not answer in time, and its own error if it refuses:
/// [`PermissionDenied`](ErrorKind::PermissionDenied) for a token without the right to connect, [`Conflict`](ErrorKind::Conflict) if the name
/// is connected already.
pub async fn dial(
    url: &str,
    name: Option<&str>,
    options: RemoteOptions,
) -> Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static + use<>> {
    let address = Address::parse(url, options.plain_http)?;
    let is_encrypted = address.origin.scheme() == "https";
    let mut tls = network::tls(is_encrypted)?;
    // Only HTTP/1.1 can be upgraded.
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    let builder = Client::builder()
        .user_agent(concat!("treehold/", env!("CARGO_PKG_VERSION")))
        .http1_only()
        .tls_backend_preconfigured(tls)
        .connect_timeout(options.connect_timeout)
        .tcp_keepalive(Duration::from_secs(30))
        .redirect(redirect::Policy::none())
        .retry(reqwest::retry::never())
        .referer(false);
    let builder = if is_encrypted { builder } else { builder.no_proxy() };
    let client = builder
        .build()
        .map_err(|error| Error::new(ErrorKind::Internal, "the client of other servers cannot be set up").with_source(error))?;
    let timeout = options.timeout;
    // It knows the headers of a request, and reads refusals.
    let peer = PeerClient::at(&address, options)?;
    let mut target = address.origin.clone();
    target.set_path(&format!("{PREFIX}/{CONNECT}"));
    target.set_query(name.map(|name| format!("name={}", encoded(name))).as_deref());
    let mut headers: HeaderMap = peer.headers().clone();
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static(TUNNEL_PROTOCOL));
    let dialled = async {
        let response = client.get(target).headers(headers).send().await.map_err(|error| peer.unanswered(network::unreached(error)))?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            let (status, headers) = (response.status(), response.headers().clone());
            let body = response.bytes_stream().map(|chunk| chunk.map_err(network::unreached)).boxed();
            return Err(peer.refusal_of(TransportResponse::new(status, headers, body)).await);
        }
        let upgraded = response.upgrade().await;
        upgraded.map_err(|error| peer.unanswered(TransportError::new(Failure::Broken).with_source(error.without_url())))
    };
    let late = || peer.unanswered(TransportError::new(Failure::TimedOut));
    tokio::time::timeout(timeout, dialled).await.unwrap_or_else(|_| Err(late()))
}
