//! `[serve.dial]`: the servers to dial, so that they can send requests here.

use super::fault::Broken;
use super::remote::{TokenPlace, check_url};
use super::serve::DialConfig;
use treehold_core::error::{Error, Result};
use treehold_core::path::VfsPathBuf;
use treehold_core::scope::check_peer_name;

/// The choices of `access`.
const ACCESS: [&str; 3] = ["read", "write", "admin"];

/// Checks a configured server to dial.
pub(super) fn check_dial(name: &str, server: &DialConfig) -> Result<(), Broken> {
    let broken = |key: &str, error: Error| Broken::new(&["serve", "dial", name, key], error.message());
    check_url(&server.url, server.plain_http).map_err(|error| broken("url", error))?;
    server.token.as_deref().map(TokenPlace::parse).transpose().map_err(|error| broken("token", error))?;
    server.name.as_deref().map(check_peer_name).transpose().map_err(|error| broken("name", error))?;
    if let Some(access) = &server.access
        && !ACCESS.contains(&access.as_str())
    {
        return Err(broken(
            "access",
            Error::invalid_argument(format!("`{access}` is not an access level; write one of {}", ACCESS.join(", "))),
        ));
    }
    for path in &server.paths {
        VfsPathBuf::parse(path).map_err(|invalid| broken("paths", Error::invalid_argument(format!("`{path}`: {invalid}"))))?;
    }
    if !server.paths.is_empty() && server.access.is_none() {
        let message = "`paths` limits requests without a token, and there are none without `access`";
        return Err(broken("paths", Error::invalid_argument(message)).with_hint(Some("set `access`, or leave `paths` out".to_owned())));
    }
    Ok(())
}

#[cfg(feature = "serve")]
mod opened {
    use super::DialConfig;
    use crate::config::Config;
    use treehold_core::error::{Error, Result};
    use treehold_core::path::VfsPathBuf;
    use treehold_remote::RemoteOptions;
    use treehold_serve::{Access, Dial, Rights};

    impl Config {
        /// Returns the servers to dial, with their tokens.
        ///
        /// # Errors
        /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for a token that is missing or empty,
        /// [`Unavailable`](treehold_core::error::ErrorKind::Unavailable) for one whose file cannot be read.
        pub fn dials(&self) -> Result<Vec<Dial>> {
            self.serve.dial.values().map(|server| self.dial(server)).collect()
        }

        fn dial(&self, server: &DialConfig) -> Result<Dial> {
            let mut options = RemoteOptions::new().with_plain_http(server.plain_http);
            if let Some(token) = &server.token {
                options = options.with_token(self.token(token)?);
            }
            let rights = server.access.as_deref().map(|access| rights(access, &server.paths)).transpose()?;
            Ok(Dial::new(server.url.clone(), options).with_name(server.name.clone()).with_rights(rights))
        }
    }

    fn rights(access: &str, paths: &[String]) -> Result<Rights> {
        let found = Access::ALL.into_iter().find(|known| known.name() == access);
        let access = found.ok_or_else(|| Error::invalid_argument(format!("`{access}` is not an access level")))?;
        let paths = paths.iter().map(VfsPathBuf::parse).collect::<Result<Vec<_>, _>>()?;
        Ok(Rights::new(access).with_paths(paths))
    }
}
