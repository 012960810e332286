//! Rules, limited tokens and quotas, asked about every operation and through every entry point.

#[cfg(all(feature = "filesystem", unix))]
mod links;
