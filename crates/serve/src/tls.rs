//! The server's TLS certificate.

use axum_server::tls_rustls::RustlsConfig;
use rustls::ServerConfig;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::path::PathBuf;
use std::sync::Arc;
use treehold_core::error::{Error, Result};

/// The PEM files of a certificate and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate chain.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

impl TlsFiles {
    /// Reads the files.
    pub(super) fn config(&self) -> Result<RustlsConfig> {
        let unread = |what: &str, file: &PathBuf, error: &dyn std::fmt::Display| {
            Error::invalid_argument(format!("the {what} `{}` cannot be used: {error}", file.display()))
        };
        let certificates = CertificateDer::pem_file_iter(&self.certificate)
            .and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>)
            .map_err(|error| unread("certificate", &self.certificate, &error))?;
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(|error| unread("key", &self.key, &error))?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| unread("certificate", &self.certificate, &error))?
            .with_no_client_auth()
            .with_single_cert(certificates, key)
            .map_err(|error| unread("certificate", &self.certificate, &error))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(RustlsConfig::from_config(Arc::new(config)))
    }
}
