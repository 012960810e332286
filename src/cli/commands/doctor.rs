//! `doctor`: checks whether everything is in order.

use crate::checkpoint::At;
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::cli::output::{Style, counted};
use crate::config::{Config, RouteType, Stores, without_password};
use crate::ops::{Durability, LsOptions};
use crate::store::StoreExt;
use crate::{Backend, Error, ErrorKind, FilesystemBackend, FilesystemOptions, VfsPath, Workspace};
use clap::Args;
use serde::Serialize;
use std::path::Path;
use std::time::Duration;

/// The minimum age at which an unfinished write counts as abandoned.
const LEFTOVER_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// The most expired rows to remove at a time.
const SWEEP_ROWS: usize = 10_000;

/// Check the configuration, stores, routes and host for problems
///
/// Prints one line per check. Exits with the code of the first failed check; warnings do not affect it.
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Remove expired rows, and unfinished writes of killed processes that are over a day old
    #[arg(long)]
    repair: bool,
}

/// One check.
#[derive(Debug, Serialize)]
struct Check {
    check: String,
    status: Status,
    detail: String,
    #[serde(skip)]
    kind: Option<ErrorKind>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Ok,
    Warning,
    Failed,
}

impl Check {
    fn new(check: impl Into<String>, status: Status, detail: impl Into<String>) -> Self {
        Self { check: check.into(), status, detail: detail.into(), kind: None }
    }

    fn failed(check: impl Into<String>, error: &Error) -> Self {
        let causes: Vec<String> = crate::cli::exit::causes(error).map(ToString::to_string).collect();
        let detail = match causes.is_empty() {
            true => crate::cli::exit::message(error),
            false => format!("{} ({})", crate::cli::exit::message(error), causes.join(": ")),
        };
        Self { kind: Some(error.kind()), ..Self::new(check, Status::Failed, detail) }
    }
}

impl Doctor {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let mut checks = Vec::new();
        if let Some(config) = check_config(context, &mut checks) {
            checks.push(check_data(&config));
            let stores = context.stores()?;
            check_stores(&stores, self.repair, &mut checks).await;
            let workspace = config.workspace_on(&stores)?;
            let threads = check_threads(&config, &workspace, &checks).await;
            checks.push(threads);
            check_routes(&config, &workspace, &mut checks).await;
            check_rows(context, &config, &stores, &mut checks).await;
            if self.repair {
                sweep_routes(&config, &mut checks).await;
            }
        }
        checks.push(check_openat2());
        print(context, &checks)?;
        Ok(match checks.iter().find_map(|check| check.kind) {
            Some(kind) => Outcome::Failed(kind),
            None => Outcome::Done,
        })
    }
}

fn print(context: &mut Context, checks: &[Check]) -> Result<(), Failure> {
    let out = &mut context.out;
    if !out.is_text() {
        return out.json_list(checks);
    }
    for Check { check, status, detail, .. } in checks {
        let mark = match status {
            Status::Ok => out.paint(Style::Added, "ok  "),
            Status::Warning => out.paint(Style::Line, "warn"),
            Status::Failed => out.paint(Style::Match, "FAIL"),
        }
        .to_string();
        out.line(format_args!("{mark}  {check}: {detail}"))?;
    }
    Ok(())
}

fn check_config(context: &Context, checks: &mut Vec<Check>) -> Option<Config> {
    match context.config() {
        Ok(config) => {
            let origin = match &config.base().file {
                Some(file) => format!("{} is valid", file.display()),
                None => "no file; using built-in defaults".to_owned(),
            };
            checks.push(Check::new("configuration", Status::Ok, origin));
            Some(config)
        }
        Err(error) => {
            checks.push(Check::failed("configuration", &error));
            None
        }
    }
}

fn check_data(config: &Config) -> Check {
    let name = "data directory";
    let shown = config.data.display();
    match std::fs::metadata(&config.data) {
        Ok(found) if !found.is_dir() => {
            let error = Error::new(ErrorKind::NotADirectory, format!("{shown} is not a directory; name another with `--data`"));
            Check::failed(name, &error)
        }
        Ok(found) => match others_may(&found) {
            Some(mode) => {
                Check::new(name, Status::Warning, format!("other users can access {shown} (mode {mode:o}); run `chmod 700` on it"))
            }
            None => Check::new(name, Status::Ok, format!("{shown}")),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Check::new(name, Status::Ok, format!("{shown}, not created yet")),
        Err(error) => Check::failed(name, &Error::new(ErrorKind::PermissionDenied, format!("{shown} cannot be examined: {error}"))),
    }
}

/// Returns the mode if it gives other users any access.
fn others_may(found: &std::fs::Metadata) -> Option<u32> {
    use std::os::unix::fs::PermissionsExt;
    let mode = found.permissions().mode() & 0o777;
    (mode & 0o077 != 0).then_some(mode)
}

async fn check_stores(stores: &Stores, repair: bool, checks: &mut Vec<Check>) {
    for (name, store) in stores.iter() {
        let check = format!("store {name}");
        if let Err(error) = store.ping().await {
            checks.push(Check::failed(check, &error));
            continue;
        }
        let described = match store.describe().await {
            Ok(described) => described,
            Err(error) => {
                checks.push(Check::failed(check, &error));
                continue;
            }
        };
        let capabilities = store.capabilities();
        let shared = if capabilities.shared { "several processes" } else { "one process" };
        let detail = match described.durability {
            Durability::None => "content is lost when the process ends".to_owned(),
            Durability::Process => format!("writes survive a crash of the process but not a power loss; usable by {shared}"),
            Durability::Power => format!("writes survive a power loss; usable by {shared}"),
        };
        let status = if described.durability == Durability::None { Status::Warning } else { Status::Ok };
        // Opening a store upgrades an older schema and refuses a newer one.
        let schema = described.schema.map(|schema| format!(", schema {schema}, up to date")).unwrap_or_default();
        checks.push(Check::new(&check, status, format!("{store}: {}{schema}; {detail}", described.engine)));
        checks.extend(described.notices.iter().map(|notice| Check::new(&check, Status::Warning, notice)));
        if repair {
            checks.push(match store.sweep(SWEEP_ROWS).await {
                Ok(removed) => Check::new(check, Status::Ok, format!("{removed} expired rows removed")),
                Err(error) => Check::failed(check, &error),
            });
        }
    }
}

async fn check_threads(config: &Config, workspace: &Workspace, checks: &[Check]) -> Check {
    let name = "thread saves";
    let Some(checkpointer) = workspace.checkpointer() else {
        return Check::new(name, Status::Warning, "threads are not saved (`threads.save` is false)");
    };
    match checkpointer.open(&config.scope(), At::Latest).await {
        Ok(Some(saved)) => match saved.state.count().await {
            Ok(entries) => Check::new(name, Status::Ok, format!("thread `{}` has {entries} entries", config.scope.thread)),
            Err(error) => Check::failed(name, &error),
        },
        Ok(None) => Check::new(name, Status::Ok, format!("thread `{}` is new", config.scope.thread)),
        Err(error) => behind(checks, name, &config.threads.store).unwrap_or_else(|| Check::failed(name, &error)),
    }
}

async fn check_routes(config: &Config, workspace: &Workspace, checks: &mut Vec<Check>) {
    let session = match workspace.session(config.scope()).await {
        Ok(session) => session,
        Err(error) => return checks.push(Check::failed("routes", &error)),
    };
    let tree = session.backend();
    for (path, route) in &config.routes {
        let check = format!("route {path}");
        checks.push(match look_at(&*tree, path).await {
            Ok(()) if route.read_only => Check::new(check, Status::Ok, format!("{}, read-only", route.tier.name())),
            Ok(()) if route.overlay.is_some() => Check::new(check, Status::Ok, format!("{}, an overlay", route.tier.name())),
            Ok(()) => match &route.url {
                Some(url) => Check::new(check, Status::Ok, format!("{}, {}", route.tier.name(), without_password(url))),
                None => Check::new(check, Status::Ok, route.tier.name()),
            },
            Err(error) => match store_of(config, path).and_then(|store| behind(checks, &check, store)) {
                Some(told) => told,
                None => Check::failed(check, &error),
            },
        });
    }
}

/// Returns the store that a route depends on.
fn store_of<'c>(config: &'c Config, path: &str) -> Option<&'c str> {
    let route = config.routes.get(path)?;
    match route.tier {
        RouteType::State | RouteType::History if config.threads.save => Some(&config.threads.store),
        RouteType::Store => route.store.as_deref(),
        RouteType::Past => config.routes.get(route.of.as_deref()?)?.store.as_deref(),
        RouteType::Traces if config.traces.internal.is_none() => Some(&config.traces.store),
        _ => None,
    }
}

/// Returns a failed check for something that depends on a store that already failed, so that the cause is reported once.
fn behind(checks: &[Check], check: &str, store: &str) -> Option<Check> {
    let failed = checks.iter().find(|told| told.check == format!("store {store}") && told.status == Status::Failed)?;
    let detail = format!("it depends on the store `{store}`, which failed");
    Some(Check { kind: failed.kind, ..Check::new(check, Status::Failed, detail) })
}

async fn look_at(tree: &dyn Backend, path: &str) -> Result<(), Error> {
    tree.ls(&VfsPath::parse(path)?, &LsOptions::new().with_limit(1)).await.map(drop)
}

/// Reads every row of the caller's trees in stores.
async fn check_rows(context: &Context, config: &Config, stores: &Stores, checks: &mut Vec<Check>) {
    let progress = context.progress("checking");
    let scope = config.scope();
    let files = config.routes.keys().map(|path| (path, format!("files {path}"), config.store_tree(path, stores, &scope)));
    let changes = config.routes.keys().map(|path| (path, format!("changes {path}"), config.overlay_rows(path, stores, &scope)));
    for (path, check, tree) in files.chain(changes) {
        // Skip routes that have already failed.
        if checks.iter().any(|told| told.check == format!("route {path}") && told.status == Status::Failed) {
            continue;
        }
        let verified = match tree {
            Ok(Some(tree)) => tree.verify(|rows| progress.tell(rows, "rows")).await,
            Ok(None) => continue,
            Err(error) => Err(error),
        };
        let found = match verified {
            Ok(found) => found,
            Err(error) => {
                checks.push(Check::failed(check, &error));
                continue;
            }
        };
        if found.failures_count == 0 {
            checks.push(Check::new(&check, Status::Ok, format!("{} can be read", counted(found.rows as usize, "row", "rows"))));
        }
        for failure in &found.failures {
            let Ok(route) = VfsPath::parse(path) else { continue };
            let error = failure.error.clone().rebased(&route);
            checks.push(Check::failed(&check, &Error::from(&error).at(&route.concat(&failure.path))));
        }
        if found.failures_count > found.failures.len() {
            let detail = format!("{} more faults", found.failures_count - found.failures.len());
            checks.push(Check { kind: Some(ErrorKind::Corrupt), ..Check::new(&check, Status::Failed, detail) });
        }
    }
}

async fn sweep_routes(config: &Config, checks: &mut Vec<Check>) {
    for path in config.routes.keys() {
        let root = match config.filesystem_root(path, &config.scope()) {
            Ok(Some(root)) => root,
            Ok(None) => continue,
            Err(error) => {
                checks.push(Check::failed(format!("route {path}"), &error));
                continue;
            }
        };
        checks.push(match sweep(&root).await {
            Ok(removed) => Check::new(format!("route {path}"), Status::Ok, format!("{removed} unfinished writes removed")),
            Err(error) => Check::failed(format!("route {path}"), &error),
        });
    }
}

async fn sweep(root: &Path) -> Result<usize, Error> {
    FilesystemBackend::open(root, FilesystemOptions::new())?.sweep(LEFTOVER_AGE).await
}

fn check_openat2() -> Check {
    let name = "openat2";
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
        match openat2(CWD, ".", OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::BENEATH) {
            Ok(_) => Check::new(name, Status::Ok, "the kernel confines paths to the roots of filesystem routes"),
            Err(error) => Check::new(
                name,
                Status::Warning,
                format!("the kernel does not support it ({error}); paths are resolved step by step, with the same result"),
            ),
        }
    }
    #[cfg(not(target_os = "linux"))]
    Check::new(name, Status::Ok, "not available on this system; paths are resolved step by step, with the same result")
}
