//! The transport over the network: pooled connections by HTTP/1.1 or HTTP/2, with TLS.

use super::RemoteOptions;
use super::address::Address;
use super::public_only::{self, PublicOnly};
use super::transport::{Failure, Transport, TransportError, TransportRequest, TransportResponse};
use async_trait::async_trait;
use futures::StreamExt;
use reqwest::{Client, Url, redirect};
use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use treehold_core::error::{Error, ErrorKind, Result};

/// The connections to one server.
pub(super) struct Network {
    client: Client,
    origin: Url,
}

impl Network {
    pub(super) fn new(address: &Address, options: &RemoteOptions) -> Result<Self> {
        let is_encrypted = address.origin.scheme() == "https";
        let builder = Client::builder()
            .user_agent(concat!("treehold/", env!("CARGO_PKG_VERSION")))
            .tls_backend_preconfigured(tls(is_encrypted)?)
            .connect_timeout(options.connect_timeout)
            .pool_idle_timeout(Duration::from_secs(60))
            .tcp_keepalive(Duration::from_secs(30))
            // Never follow redirects: the other server would choose where requests go.
            .redirect(redirect::Policy::none())
            .retry(reqwest::retry::never())
            .referer(false);
        // Unencrypted requests must not go through a proxy that an environment variable names.
        let builder = if is_encrypted { builder } else { builder.no_proxy() };
        let builder = if options.public_only {
            public_only::check_url(&address.origin)?;
            // A proxy would resolve the name itself.
            builder.no_proxy().dns_resolver(PublicOnly)
        } else {
            builder
        };
        let client = builder
            .build()
            .map_err(|error| Error::new(ErrorKind::Internal, "the client of other servers cannot be set up").with_source(error))?;
        Ok(Self { client, origin: address.origin.clone() })
    }

    /// Makes the URL of a request, or `None` if URL rules would change its path.
    fn url(&self, path_and_query: &str) -> Option<Url> {
        let (path, query) = path_and_query.split_once('?').map_or((path_and_query, None), |(path, query)| (path, Some(query)));
        let mut url = self.origin.clone();
        url.set_path(path);
        url.set_query(query);
        (url.path() == path).then_some(url)
    }
}

#[async_trait]
impl Transport for Network {
    async fn send(&self, request: TransportRequest) -> Result<TransportResponse, TransportError> {
        let url = self.url(&request.path_and_query).ok_or_else(|| {
            TransportError::new(Failure::Absent).with_message("the request was not sent, because its path is no plain URL path")
        })?;
        let mut builder = self.client.request(request.method, url).headers(request.headers);
        if let Some(body) = request.body {
            builder = builder.body(body);
        }
        let response = builder.send().await.map_err(unreached)?;
        let (status, headers) = (response.status(), response.headers().clone());
        Ok(TransportResponse::new(status, headers, response.bytes_stream().map(|chunk| chunk.map_err(unreached)).boxed()))
    }
}

/// Makes the error of a request whose response is missing or incomplete.
pub(super) fn unreached(error: reqwest::Error) -> TransportError {
    let failure = match (error.is_connect(), error.is_timeout()) {
        (true, _) => Failure::Unsent,
        (false, true) => Failure::TimedOut,
        (false, false) => Failure::Broken,
    };
    TransportError::new(failure).with_source(error.without_url())
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").field("origin", &self.origin.as_str()).finish_non_exhaustive()
    }
}

/// Makes the TLS configuration of a client. The system's root certificates are read once per process, and only if encryption is used.
pub(super) fn tls(is_encrypted: bool) -> Result<ClientConfig> {
    static ROOTS: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    let roots = match is_encrypted {
        false => Arc::new(RootCertStore::empty()),
        true => ROOTS
            .get_or_init(|| {
                let mut roots = RootCertStore::empty();
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
                Arc::new(roots)
            })
            .clone(),
    };
    if is_encrypted && roots.is_empty() {
        let message = "this system has no root certificates; set the variable `SSL_CERT_FILE` to a file of them";
        return Err(Error::new(ErrorKind::Unavailable, message));
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|source| Error::new(ErrorKind::Internal, "TLS cannot be set up; this is a bug in the program").with_source(source))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}
