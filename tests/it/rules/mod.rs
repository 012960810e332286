//! Rules, limited tokens and quotas, tested with every operation and through every entry point.

#[cfg(feature = "cli")]
pub(crate) mod commands;
#[cfg(feature = "serve")]
mod differential;
#[cfg(feature = "serve")]
pub(crate) mod doors;
mod history;
#[cfg(all(feature = "cli", feature = "serve"))]
mod limits;
#[cfg(all(feature = "filesystem", unix))]
mod links;
