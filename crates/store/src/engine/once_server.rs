//! Stores on servers, each opened once per process for all equivalent URLs.
//!
//! A second opening would have its own connections, caches and commit batching. URLs share an opening if their normal forms
//! ([`ServerUrl`]) are equal: the same engine, host, database, user, password and parameters. Embedded stores are in `once.rs`.

use super::without_password;
use crate::Store;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, LazyLock, Weak};
use tokio::runtime;
use treehold_core::error::Result;
use treehold_core::escape::is_unreserved;

/// Locked while the store is opened.
type ServerSlot = Arc<tokio::sync::Mutex<Option<Weak<dyn Store>>>>;

/// The hash of the normalized URL, which may contain a password, and the runtime, since connections end with their runtime.
type ServerKey = (blake3::Hash, runtime::Id);

static SERVERS: LazyLock<Mutex<HashMap<ServerKey, ServerSlot>>> = LazyLock::new(Mutex::default);

/// The URL of a store on a server, and the rules by which other URLs are equivalent.
#[derive(Clone)]
pub struct ServerUrl {
    url: String,
    port: u16,
    schemes: &'static [&'static str],
    path: &'static str,
    is_literal: bool,
}

impl ServerUrl {
    /// Makes the URL of a server that listens on `port` unless the URL names another.
    pub fn new(url: impl Into<String>, port: u16) -> Self {
        Self { url: url.into(), port, schemes: &[], path: "", is_literal: false }
    }

    /// Sets equivalent schemes.
    #[must_use]
    pub fn with_equal_schemes(mut self, schemes: &'static [&'static str]) -> Self {
        self.schemes = schemes;
        self
    }

    /// Sets the default path.
    #[must_use]
    pub fn with_default_path(mut self, path: &'static str) -> Self {
        self.path = path;
        self
    }

    /// Declares that the engine does not decode escapes after the host.
    #[must_use]
    pub fn with_literal_path(mut self) -> Self {
        self.is_literal = true;
        self
    }

    /// Returns the URL, which may hold a password.
    pub fn as_str(&self) -> &str {
        &self.url
    }

    /// Normalizes the URL: one name for equivalent schemes, hosts in lower case with their ports, no needless escapes,
    /// and parameters in order. A URL that cannot be parsed unambiguously stays unchanged: two openings of one store are
    /// safe, but one opening for two stores is not.
    fn key(&self) -> String {
        self.normal().unwrap_or_else(|| self.url.clone())
    }

    fn normal(&self) -> Option<String> {
        let (scheme, rest) = self.url.split_once("://")?;
        let scheme = if self.schemes.contains(&scheme) { self.schemes[0] } else { scheme };
        let unescaped = |text: &str| if self.is_literal { text.to_owned() } else { without_needless_escapes(text) };
        // A password may contain unescaped characters, and engines differ in where it then ends.
        if rest.contains('#') || rest.matches('@').count() > 1 || rest.matches('?').count() > 1 {
            return None;
        }
        let (server, query) = rest.split_once('?').unwrap_or((rest, ""));
        if query.contains('@') {
            return None;
        }
        let (user, place) = match server.split_once('@') {
            Some((user, _)) if user.contains('/') => return None,
            Some((user, place)) => (format!("{}@", without_needless_escapes(user)), place),
            None => (String::new(), server),
        };
        let (hosts, path) = place.split_once('/').unwrap_or((place, ""));
        let hosts: Vec<String> = hosts.split(',').map(|host| host_and_port(host, self.port)).collect();
        let path = if path.is_empty() { self.path.to_owned() } else { unescaped(path) };
        let mut parameters: Vec<(&str, &str)> =
            query.split('&').filter(|pair| !pair.is_empty()).map(|pair| pair.split_once('=').unwrap_or((pair, ""))).collect();
        // The sort is stable: if a name occurs twice, the order determines which value counts.
        parameters.sort_by_key(|(name, _)| *name);
        let parameters: Vec<String> = parameters.iter().map(|(name, value)| format!("{name}={}", unescaped(value))).collect();
        Some(format!("{scheme}://{user}{}/{path}?{}", hosts.join(","), parameters.join("&")))
    }
}

impl fmt::Debug for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ServerUrl").field(&without_password(&self.url)).finish()
    }
}

/// Returns the store on a server. Runs `open` unless this runtime already has the store open under an equivalent URL.
///
/// # Errors
/// Those of `open`.
pub async fn open_server_once(url: &ServerUrl, open: impl Future<Output = Result<Arc<dyn Store>>>) -> Result<Arc<dyn Store>> {
    let key = (blake3::hash(url.key().as_bytes()), runtime::Handle::current().id());
    let slot = {
        let mut all = SERVERS.lock();
        // A slot that only the table references cannot be locked.
        let is_open = |slot: &ServerSlot| slot.try_lock().is_ok_and(|opened| opened.as_ref().is_some_and(|store| store.strong_count() > 0));
        all.retain(|_, slot| Arc::strong_count(slot) > 1 || is_open(slot));
        all.entry(key).or_default().clone()
    };
    let mut opened = slot.lock().await;
    if let Some(store) = opened.as_ref().and_then(Weak::upgrade) {
        return Ok(store);
    }
    let store = open.await?;
    *opened = Some(Arc::downgrade(&store));
    Ok(store)
}

/// Returns a host in lower case with its port. An escaped host, such as the path of a socket, stays unchanged.
fn host_and_port(host: &str, default: u16) -> String {
    if host.is_empty() || host.contains('%') {
        return host.to_owned();
    }
    let host = host.to_ascii_lowercase();
    let has_port = host.rsplit_once(':').is_some_and(|(name, _)| !host.starts_with('[') || name.ends_with(']'));
    if has_port { host } else { format!("{host}:{default}") }
}

/// Decodes escapes of characters that need none
/// ([RFC 3986, section 6.2.2.2](https://www.rfc-editor.org/rfc/rfc3986#section-6.2.2.2)).
fn without_needless_escapes(text: &str) -> String {
    let mut normal = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('%') {
        normal.push_str(before);
        let code = behind.get(..2).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let Some(code) = code.and_then(|digits| u8::from_str_radix(digits, 16).ok()) else {
            normal.push('%');
            rest = behind;
            continue;
        };
        match char::from(code) {
            plain if is_unreserved(plain) => normal.push(plain),
            _ => normal.push_str(&format!("%{code:02X}")),
        }
        rest = &behind[2..];
    }
    normal + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryStore;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn of(url: &str) -> ServerUrl {
        match url.split(':').next().expect("a scheme") {
            "postgres" | "postgresql" => ServerUrl::new(url, 5432).with_equal_schemes(&["postgres", "postgresql"]),
            "mysql" | "mariadb" => ServerUrl::new(url, 3306).with_equal_schemes(&["mysql", "mariadb"]),
            _ => ServerUrl::new(url, 6379).with_default_path("0").with_literal_path(),
        }
    }

    fn server_key(url: &str) -> String {
        of(url).key()
    }

    #[test]
    fn urls_of_one_store_have_one_normal_form() {
        for same in [
            &[
                "postgres://ada:pw@DB/x?schema=s&connections_max=4",
                "postgresql://ada:pw@db:5432/x?connections_max=4&schema=s",
                "postgres://%61da:p%77@db/x?&schema=%73&connections_max=4",
            ][..],
            &["mysql://h/d", "mariadb://h:3306/d", "mysql://H/d?"],
            &["redis://h", "redis://h/", "redis://h:6379/0", "redis://H:6379?"],
            &["redis+cluster://a,b:1", "redis+cluster://A:6379,b:1/0"],
            &["redis://[::1]", "redis://[::1]:6379/0"],
            &["postgres://%2Fvar%2Frun/x?a=1&b=2", "postgres://%2Fvar%2Frun/x?b=2&a=1"],
        ] {
            for url in same {
                assert_eq!(server_key(url), server_key(same[0]), "{url}");
            }
        }
    }

    #[test]
    fn urls_of_possibly_different_stores_have_different_normal_forms() {
        let all = [
            "postgres://h/d",
            "postgres://h/D",
            "postgres://h:5433/d",
            "postgres://h/d?schema=a",
            "postgres://h/d?schema=b",
            "postgres://h/d?schema=a&schema=b",
            "postgres://h/d?schema=b&schema=a",
            "postgres://h/d?connections_max=4",
            "postgres://ada@h/d",
            "postgres://ada:a%2Fb@h/d",
            "postgres://ada:a/b@h/d",
            "postgres://%2Fvar/d",
            "postgres://%2FVAR/d",
            "mysql://h/d",
            "redis://h",
            "rediss://h",
            "redis+cluster://h",
            "redis://h/1",
            "redis://h?prefix=a",
            "redis://h?prefix=%61",
            "redis://:p@ss@h",
            "redis://:p#@h",
        ];
        let keys: std::collections::HashSet<String> = all.iter().map(|url| server_key(url)).collect();
        assert_eq!(keys.len(), all.len(), "{keys:?}");
    }

    #[tokio::test]
    async fn server_store_is_opened_once_and_reopened_after_close_or_failure() {
        let opened = AtomicUsize::new(0);
        let open = async |url: &str| {
            let open = async {
                opened.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
                Ok(Arc::new(MemoryStore::new()) as Arc<dyn Store>)
            };
            open_server_once(&of(url), open).await.expect("opened")
        };
        let (one, two) = tokio::join!(open("postgres://once/x?a=1&b=2"), open("postgresql://ONCE:5432/x?b=2&a=1"));
        assert!(Arc::ptr_eq(&one, &two));
        assert_eq!(opened.load(Ordering::Relaxed), 1);
        let other = open("postgres://once/y").await;
        assert!(!Arc::ptr_eq(&one, &other));
        drop((one, two));
        let anew = open("postgres://once/x?a=1&b=2").await;
        assert_eq!(opened.load(Ordering::Relaxed), 3);
        let failed = async { Err(treehold_core::error::Error::unsupported("not today")) };
        assert!(open_server_once(&of("postgres://once/z"), failed).await.is_err());
        open("postgres://once/z").await;
        // Runtimes do not share an open store, since its connections end with the first runtime.
        let elsewhere = std::thread::spawn(|| {
            let runtime = runtime::Builder::new_current_thread().build().expect("a runtime");
            let open = async { Ok(Arc::new(MemoryStore::new()) as Arc<dyn Store>) };
            runtime.block_on(open_server_once(&of("postgres://once/x?a=1&b=2"), open)).expect("opened")
        });
        assert!(!Arc::ptr_eq(&anew, &elsewhere.join().expect("opened")));
    }
}
