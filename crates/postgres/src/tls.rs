//! Encryption of connections, with libpq's meanings of `sslmode`.
//!
//! `disable` does not encrypt; `prefer` and `require` encrypt and check no certificate (unless a root is named, as in libpq); `verify-ca`
//! also requires a certificate from a trusted root, and `verify-full` one that matches the host name too.
//! <https://www.postgresql.org/docs/current/libpq-ssl.html>

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use std::path::Path;
use std::sync::Arc;
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;
use treehold_core::error::{AtHost, Error, ErrorKind, Result};

/// Whether connections are encrypted, and which servers are trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encryption {
    Disable,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

impl Encryption {
    /// Parses `sslmode`.
    pub(super) fn parse(text: &str) -> Result<Self> {
        Ok(match text {
            "disable" => Self::Disable,
            "allow" | "prefer" => Self::Prefer,
            "require" => Self::Require,
            "verify-ca" => Self::VerifyCa,
            "verify-full" => Self::VerifyFull,
            _ => {
                let message = "`sslmode` is unknown; write `disable`, `prefer`, `require`, `verify-ca` or `verify-full`";
                return Err(Error::invalid_argument(message));
            }
        })
    }

    /// Returns the client's mode: whether to request encryption, and whether to continue without.
    pub(super) fn mode(self) -> SslMode {
        match self {
            Self::Disable => SslMode::Disable,
            Self::Prefer => SslMode::Prefer,
            Self::Require | Self::VerifyCa | Self::VerifyFull => SslMode::Require,
        }
    }

    /// Creates the TLS connector. Reads the system's roots if needed, which blocks for a few milliseconds.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for an unreadable root, [`Unavailable`](ErrorKind::Unavailable) if the system has
    /// none.
    pub(super) fn connector(self, root: Option<&Path>) -> Result<MakeRustlsConnect> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|source| Error::new(ErrorKind::Internal, "TLS cannot be set up; this is a bug in the program").with_source(source))?;
        let verifies = match self {
            Self::Disable | Self::Prefer => false,
            Self::Require => root.is_some(),
            Self::VerifyCa | Self::VerifyFull => true,
        };
        if !verifies {
            let verifier = Arc::new(Verifier { provider, roots: None });
            return Ok(MakeRustlsConnect::new(builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth()));
        }
        let roots = Arc::new(roots(root)?);
        if self == Self::VerifyFull {
            return Ok(MakeRustlsConnect::new(builder.with_root_certificates(roots).with_no_client_auth()));
        }
        let inner = WebPkiServerVerifier::builder_with_provider(roots, provider.clone())
            .build()
            .map_err(|source| Error::invalid_argument("none of the root certificates can be used").with_source(source))?;
        let verifier = Arc::new(Verifier { provider, roots: Some(inner) });
        Ok(MakeRustlsConnect::new(builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth()))
    }
}

fn roots(root: Option<&Path>) -> Result<RootCertStore> {
    let mut store = RootCertStore::empty();
    match root {
        Some(path) => {
            let unreadable = || {
                let message = "`sslrootcert` does not name a PEM file of certificates; correct the path";
                Error::invalid_argument(message).with_source(AtHost::new(path))
            };
            let certificates = CertificateDer::pem_file_iter(path).map_err(|_| unreadable())?;
            for certificate in certificates {
                store.add(certificate.map_err(|_| unreadable())?).map_err(|_| unreadable())?;
            }
            if store.is_empty() {
                return Err(unreadable());
            }
        }
        None => {
            store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if store.is_empty() {
                let message = "this system has no root certificates; name that of the database with `sslrootcert`";
                return Err(Error::new(ErrorKind::Unavailable, message));
            }
        }
    }
    Ok(store)
}

/// Accepts a certificate of a known root with any name or, without roots, any certificate. It always verifies that the server holds the
/// certificate's key.
#[derive(Debug)]
struct Verifier {
    provider: Arc<CryptoProvider>,
    roots: Option<Arc<WebPkiServerVerifier>>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(roots) = &self.roots else { return Ok(ServerCertVerified::assertion()) };
        match roots.verify_server_cert(certificate, intermediates, name, ocsp, now) {
            Err(rustls::Error::InvalidCertificate(CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. })) => {
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
