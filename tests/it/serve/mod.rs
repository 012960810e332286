//! The HTTP API over real connections on the loopback interface.

mod attacks;
mod bodies;
mod conditions;
mod connections;
mod consent;
mod conversations;
mod costs;
mod dataplane;
#[cfg(all(feature = "cli", unix))]
mod engines;
mod events;
mod files;
mod fuzzed;
mod hostile;
mod keys;
#[cfg(all(feature = "cli", feature = "remote", any(feature = "mysql", feature = "postgres", feature = "redis")))]
mod lost;
#[cfg(all(feature = "cli", feature = "sqlite", target_os = "linux"))]
mod memory;
mod metrics;
mod objects;
mod past;
mod paths;
#[cfg(all(feature = "cli", unix))]
pub(crate) mod process;
mod readiness;
mod refusals;
#[cfg(all(feature = "cli", unix, any(feature = "postgres", feature = "redis")))]
mod replicas;
#[cfg(all(feature = "cli", feature = "sqlite", unix))]
mod retention;
mod sessions;
mod silent;
mod state;
mod threads;
mod tokens;
#[cfg(feature = "remote")]
mod trace;

use serde_json::Value;
use std::sync::Arc;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use treehold::checkpoint::StoreCheckpointer;
use treehold::layer::{Permissions, Rule};
use treehold::mcp::McpOptions;
use treehold::serve::{HttpServer, Rights, ServeOptions, TokenBook};
use treehold::store::Store;
use treehold::{AuditLog, Feed, MemoryStore, NamespaceTemplate, Scope, StoreBackend, Workspace, WorkspaceBuilder};
use ureq::http::Response;
use ureq::{Agent, Body};

/// How long a test waits for something that takes moments; a busy machine may need longer.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(120);

/// Polls until a condition holds.
pub(crate) fn within(mut is_so: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "the condition did not hold within {PATIENCE:?}");
    }
}

/// A server in this process. Dropping it ends the server.
pub(crate) struct Served {
    runtime: Runtime,
    stop: Option<oneshot::Sender<()>>,
    served: Option<tokio::task::JoinHandle<treehold::Result<()>>>,
    pub(crate) base: String,
    pub(crate) store: Arc<dyn Store>,
    agent: Agent,
}

/// A response.
pub(crate) struct Answer {
    pub(crate) status: u16,
    response: Response<Body>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        self.response.headers().get(name).map(|value| value.to_str().unwrap().to_owned())
    }

    pub(crate) fn bytes(mut self) -> Vec<u8> {
        self.response.body_mut().with_config().limit(1 << 30).read_to_vec().unwrap()
    }

    /// Returns a reader of a body that need not end.
    pub(crate) fn reader(self) -> impl std::io::Read + Send {
        self.response.into_body().into_with_config().limit(u64::MAX).reader()
    }

    pub(crate) fn text(self) -> String {
        String::from_utf8(self.bytes()).unwrap()
    }

    pub(crate) fn json(self) -> Value {
        let text = self.text();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// Returns the code of a problem.
    pub(crate) fn code(self) -> String {
        assert_eq!(self.header("content-type").as_deref(), Some("application/problem+json"));
        let (status, problem) = (self.status, self.json());
        assert_eq!(problem["status"], status, "{problem}");
        problem["code"].as_str().unwrap().to_owned()
    }
}

/// The workspace to serve: the thread's state at `/`, rows of the user at `/memories`.
pub(crate) fn workspace(store: &Arc<dyn Store>) -> Workspace {
    built(|builder, store| builder.feed(Feed::new(store.clone())), store)
}

/// The same workspace with permission rules.
pub(crate) fn ruled(store: &Arc<dyn Store>, rules: Vec<Rule>) -> Workspace {
    let change = move |builder: WorkspaceBuilder, store: &Arc<dyn Store>| {
        let builder = builder.feed(Feed::new(store.clone()));
        builder.layer(move |tree, _| Arc::new(Permissions::new(rules.clone(), tree)))
    };
    built(change, store)
}

fn built(change: impl FnOnce(WorkspaceBuilder, &Arc<dyn Store>) -> WorkspaceBuilder, store: &Arc<dyn Store>) -> Workspace {
    let (rows, of_watch) = (store.clone(), store.clone());
    let memories = NamespaceTemplate::parse("{tenant}/{user}/memories").unwrap();
    let same = memories.clone();
    let builder = Workspace::builder()
        .mount("/memories", move |opening| Ok(Arc::new(StoreBackend::new(rows.clone(), memories.fill(opening.scope())?))))
        .unwrap()
        .with_change_source("/memories", move |scope| Ok((of_watch.clone(), same.fill(scope)?)))
        .unwrap()
        .checkpointer(StoreCheckpointer::new(store.clone()))
        .audit_log(AuditLog::new(store.clone()));
    change(builder, store).build()
}

impl Served {
    pub(crate) fn start() -> Self {
        Self::with(|options| options)
    }

    /// Starts a server that requires tokens.
    pub(crate) fn closed() -> Self {
        Self::with(|options| options.with_tokens(true))
    }

    pub(crate) fn with(options: impl FnOnce(ServeOptions) -> ServeOptions) -> Self {
        Self::on(Arc::new(MemoryStore::new()), options)
    }

    pub(crate) fn on(store: Arc<dyn Store>, options: impl FnOnce(ServeOptions) -> ServeOptions) -> Self {
        let workspace = workspace(&store);
        Self::of(Runtime::new().unwrap(), workspace, store, options)
    }

    /// Starts a server of a modified workspace, without a feed.
    pub(crate) fn made(change: impl FnOnce(WorkspaceBuilder, &Arc<dyn Store>) -> WorkspaceBuilder) -> Self {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        Self::of(Runtime::new().unwrap(), built(change, &store), store, |options| options)
    }

    /// Starts a server of a workspace.
    pub(crate) fn of(
        runtime: Runtime,
        workspace: Workspace,
        store: Arc<dyn Store>,
        options: impl FnOnce(ServeOptions) -> ServeOptions,
    ) -> Self {
        let scope = Scope::new().with_tenant("acme").with_user("ada").with_thread("default");
        let options = options(ServeOptions::new(([127, 0, 0, 1], 0).into(), scope.clone()).with_store(store.clone()));
        let server = runtime.block_on(HttpServer::bind(workspace, McpOptions::new(scope), options)).unwrap();
        let base = format!("http://{}", server.address().unwrap());
        let (stop, stopped) = oneshot::channel();
        let served = runtime.spawn(server.run(async {
            let _ = stopped.await;
        }));
        let agent = Agent::config_builder().http_status_as_error(false).build().new_agent();
        Self { runtime, stop: Some(stop), served: Some(served), base, store, agent }
    }

    /// Creates a token for a user.
    pub(crate) fn token(&self, tenant: &str, user: &str, rights: Rights) -> String {
        let scope = Scope::new().with_tenant(tenant).with_user(user);
        let book = TokenBook::new(self.store.clone());
        self.runtime.block_on(book.create(scope, rights, None, None)).unwrap().1
    }

    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// Runs a future beside the server, on its runtime.
    pub(crate) fn spawn<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> tokio::task::JoinHandle<T> {
        self.runtime.spawn(future)
    }

    pub(crate) fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut request = ureq::http::Request::builder().method(method).uri(format!("{}{path}", self.base));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = match (method, body.is_empty()) {
            ("GET" | "HEAD" | "DELETE", true) => self.agent.run(request.body(()).unwrap()),
            _ => self.agent.run(request.body(body).unwrap()),
        };
        let response = response.unwrap();
        Answer { status: response.status().as_u16(), response }
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], b"")
    }

    pub(crate) fn put(&self, path: &str, content: &[u8]) -> Answer {
        self.send("PUT", path, &[], content)
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, &[("content-type", "application/json")], body.to_string().as_bytes())
    }

    /// Stops the server and returns its result.
    pub(crate) fn stop(mut self) -> treehold::Result<()> {
        drop(self.stop.take());
        self.runtime.block_on(self.served.take().unwrap()).unwrap()
    }
}
