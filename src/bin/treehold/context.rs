//! What a command runs in: the flags, the output, and the workspace, each opened when a command asks for it.

use crate::args::{Command, Global, When};
use crate::commands;
use crate::commands::config::forgetful_stores;
use crate::commands::thread::kept;
use crate::exit::{Failure, Outcome};
use crate::output::{Output, Progress, counted};
use crate::terminal::shown;
use etcetera::BaseStrategy;
use futures::future::BoxFuture;
use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use treehold::checkpoint::{At, Checkpoint, with_checkpoint};
use treehold::config::{Config, Place, RouteType, Stores, Trust, TrustBook, without_password};
use treehold::scope::ScopeField;
use treehold::{Backend, Error, ErrorKind, Scope, Session, Workspace};
use uuid::Uuid;

/// The configuration that is read when none is named, once it is trusted.
pub(crate) const CONFIG_FILE: &str = "treehold.toml";

/// What a command runs in.
pub(crate) struct Context {
    /// The flags that every command understands.
    pub(crate) global: Global,
    /// Where it prints.
    pub(crate) out: Output,
    stores: OnceLock<Stores>,
    workspace: Option<Workspace>,
    session: Option<Session>,
    /// Set while a thread is being saved, which an interrupt waits for.
    saving: Arc<AtomicBool>,
    /// Files of the host that govern the trees of this command beside those of the configuration, and why.
    governing: Vec<(PathBuf, &'static str)>,
    /// Whether the user was told of a configuration file that is not used.
    told_untrusted: Cell<bool>,
}

/// How often a command is done again because others saved the thread meanwhile.
pub(crate) const REPLAYS_MAX: u32 = 200;

/// Waits a little before a command is done again: longer and longer, and never as long as the others that lost.
pub(crate) async fn pause(attempt: u32) {
    let ceiling = Duration::from_millis(2).saturating_mul(1 << attempt.min(5));
    let random = RandomState::new().hash_one(attempt) % 1_000;
    tokio::time::sleep(ceiling.mul_f64(random as f64 / 1_000.0)).await;
}

/// Runs a command to its end, or until the user interrupts it: a save that has begun is finished then, and none begins.
pub(crate) async fn until_interrupted(context: &mut Context, command: Command) -> Result<Outcome, Failure> {
    // A server ends by a signal, and in order.
    match command {
        #[cfg(feature = "mcp")]
        Command::Mcp(_) => return finished(context, command).await,
        #[cfg(feature = "serve")]
        Command::Serve(_) => return finished(context, command).await,
        _ => {}
    }
    let saving = context.saving.clone();
    let run = std::pin::pin!(finished(context, command));
    let mut run = run;
    tokio::select! {
        biased;
        ended = &mut run => ended,
        Ok(()) = tokio::signal::ctrl_c() => {
            if saving.load(Ordering::Acquire) {
                run.await?;
            }
            Ok(Outcome::Interrupted)
        }
    }
}

async fn finished(context: &mut Context, command: Command) -> Result<Outcome, Failure> {
    let outcome = commands::run(context, command).await?;
    context.out.flush()?;
    Ok(outcome)
}

impl Context {
    /// Makes the context of the flags; opens nothing.
    pub(crate) fn new(global: Global) -> Self {
        Self {
            out: Output::new(&global),
            global,
            stores: OnceLock::new(),
            workspace: None,
            session: None,
            saving: Arc::default(),
            governing: Vec::new(),
            told_untrusted: Cell::new(false),
        }
    }

    /// Keeps a file of the host from being changed through the trees of this command.
    #[cfg(feature = "serve")]
    pub(crate) fn govern(&mut self, file: impl Into<PathBuf>, reason: &'static str) {
        self.governing.push((file.into(), reason));
    }

    /// Returns the directory of durable data of a configuration that names none.
    fn data(&self) -> Result<PathBuf, Error> {
        match &self.global.data {
            Some(data) => absolute(data),
            None => user_data(),
        }
    }

    /// Returns the list of the configuration files that the user trusts.
    pub(crate) fn trust_book(&self) -> Result<TrustBook, Error> {
        Ok(TrustBook::new(&self.data()?))
    }

    /// Reads the configuration: the file that is named, else the one in the current directory if it is trusted, else what is built in.
    /// Flags are stronger than it.
    pub(crate) fn config(&self) -> Result<Config, Error> {
        let data = self.data()?;
        let mut config = match &self.global.config {
            Some(file) => Config::load(file, &data)?,
            None => match self.trusted(&data)? {
                Some(config) => config,
                None => Config::builtin(&Place::new(absolute(Path::new("."))?, &data)),
            },
        };
        config.add_governing(self.trust_book()?.directory(), "it says which configuration files are trusted");
        config.add_governing(absolute(Path::new(CONFIG_FILE))?, "it is what a command reads as its configuration");
        for (file, reason) in &self.governing {
            config.add_governing(absolute(file)?, *reason);
        }
        if let Some(data) = &self.global.data {
            config.set_data(absolute(data)?, "--data or TREEHOLD_DATA");
        }
        let fields = [
            (ScopeField::Tenant, &self.global.tenant, "--tenant or TREEHOLD_TENANT"),
            (ScopeField::User, &self.global.user, "--user or TREEHOLD_USER"),
            (ScopeField::Agent, &self.global.agent, "--agent or TREEHOLD_AGENT"),
            (ScopeField::Thread, &self.global.thread, "--thread or TREEHOLD_THREAD"),
        ];
        for (field, id, by) in fields {
            if let Some(id) = id {
                config.set_scope(field, id, by)?;
            }
        }
        Ok(config)
    }

    /// Reads the configuration file of the current directory, if there is one that the user trusts. Of one that was never trusted the
    /// user is told, and the command goes on without it. One that changed since ends the command: what it said before may have been
    /// stricter than what is built in.
    fn trusted(&self, data: &Path) -> Result<Option<Config>, Error> {
        let file = Path::new(CONFIG_FILE);
        let text = match std::fs::read(file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            // A directory of that name is no configuration.
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => return Ok(None),
            text => text.map_err(|error| unread(CONFIG_FILE, error))?,
        };
        let trust = self.trust_book()?.of(file, &text)?;
        let text = String::from_utf8(text).map_err(|error| {
            Error::invalid_argument(format!("`{CONFIG_FILE}` is not UTF-8; a configuration is TOML")).with_source(error)
        })?;
        match trust {
            Trust::Given => Config::load_text(file, &text, data).map(Some),
            Trust::Changed => {
                // A fault is told as one: nothing of the file is done anyway.
                Config::load_text(file, &text, data)?;
                let message = format!(
                    "`{CONFIG_FILE}` changed since it was trusted, and nothing was done; it {}. Look at it, then run `treehold config trust`, \
                     or name it by --config; `treehold config trust --revoke` goes on without it",
                    meant(file, &text, data)
                );
                Err(Error::new(ErrorKind::PermissionDenied, message))
            }
            _ => {
                if !self.told_untrusted.replace(true) && !self.global.quiet {
                    let notice = format!(
                        "treehold: `{CONFIG_FILE}` is not trusted and not used; it {}. Look at it, then run `treehold config trust`, or name \
                         it by --config\n",
                        meant(file, &text, data)
                    );
                    let _ = io::stderr().write_all(shown(&notice, true).as_bytes());
                }
                Ok(None)
            }
        }
    }

    /// Returns who calls.
    pub(crate) fn scope(&self) -> Result<Scope, Error> {
        Ok(self.config()?.scope())
    }

    /// Returns the stores of the configuration, each opened by its first use. Whatever a command does it does through these: an
    /// embedded store may be open once in a process, and a second opening of a server doubles its connections.
    pub(crate) fn stores(&self) -> Result<Stores, Error> {
        match self.stores.get() {
            Some(stores) => Ok(stores.clone()),
            None => {
                let stores = self.config()?.stores()?;
                Ok(self.stores.get_or_init(|| stores).clone())
            }
        }
    }

    /// Returns the workspace, which opens its stores when they are needed.
    pub(crate) fn workspace(&mut self) -> Result<&Workspace, Error> {
        match self.workspace {
            Some(ref workspace) => Ok(workspace),
            None => {
                let workspace = self.config()?.workspace_on(&self.stores()?)?;
                Ok(self.workspace.insert(workspace))
            }
        }
    }

    /// Returns the session of the thread.
    pub(crate) async fn session(&mut self) -> Result<Session, Error> {
        if let Some(session) = &self.session {
            return Ok(session.clone());
        }
        let scope = self.scope()?;
        let session = self.workspace()?.session(scope).await?;
        self.session = Some(session.clone());
        Ok(session)
    }

    /// Returns the tree of the thread.
    pub(crate) async fn tree(&mut self) -> Result<Arc<dyn Backend>, Error> {
        Ok(self.session().await?.backend())
    }

    /// Returns the tree of the thread, with its state as it was at a checkpoint where one is named.
    pub(crate) async fn tree_at(&mut self, when: &When) -> Result<Arc<dyn Backend>, Error> {
        let Some(name) = &when.at else { return self.tree().await };
        if !self.config()?.routes.values().any(|route| route.tier == RouteType::State) {
            let message = "no route leads to the state of the thread, so nothing is as it was at a checkpoint; leave `--at` out";
            return Err(Error::invalid_argument(message));
        }
        let (checkpointer, scope) = (kept(self)?, self.scope()?);
        let (workspace, scope) = (&self.workspace()?, &scope);
        let open = |found: Checkpoint| -> BoxFuture<'_, _> { Box::pin(workspace.tree_at(scope, At::Id(found.id))) };
        with_checkpoint(&*checkpointer, scope, name, open).await
    }

    /// Shows that work goes on, on a terminal, once it takes long.
    pub(crate) fn progress(&self, doing: &'static str) -> Progress {
        Progress::new(doing, !self.global.quiet && !self.global.is_json())
    }

    /// Does a command's work and saves the thread, so that what it did is told only once it lasts; what took effect before it failed is
    /// saved too. When others saved the thread meanwhile the work is done again on what they left, unless it has also changed what is not
    /// the thread's.
    pub(crate) async fn lasting<T>(&mut self, mut work: impl AsyncFnMut(&mut Self) -> Result<T, Failure>) -> Result<T, Failure> {
        for name in forgetful_stores(&self.config()?) {
            self.out.notice(format_args!("the store `{name}` is in memory: what is written to it is gone when this command ends"));
        }
        for attempt in 0..REPLAYS_MAX {
            let before = self.session.as_ref().map_or(0, Session::changes_elsewhere);
            let result = work(self).await;
            let Some(session) = self.session.clone() else { return result };
            let is_elsewhere = session.changes_elsewhere() != before;
            match self.save_session(&session).await {
                Ok(()) => return result,
                Err(error) if error.kind() == ErrorKind::Conflict && !is_elsewhere => {
                    pause(attempt).await;
                    session.reload().await?;
                }
                Err(error) if error.kind() == ErrorKind::Conflict => {
                    let error = self.set_aside(&session, error).await;
                    return result.and(Err(error.into()));
                }
                Err(error) => {
                    let message = format!("what was changed in the thread is not saved: {}", error.message());
                    return result.and(Err(error.with_message(message).with_unknown_effect().into()));
                }
            }
        }
        let message = format!("others saved the thread {REPLAYS_MAX} times meanwhile, and nothing was changed; try again");
        Err(Error::new(ErrorKind::Conflict, message).into())
    }

    /// Saves the state of a session whose save met another's as a thread of its own, so that it is not lost, and says so.
    pub(crate) async fn set_aside(&self, session: &Session, error: Error) -> Error {
        if error.kind() != ErrorKind::Conflict {
            return error;
        }
        let thread = session.scope().thread.as_deref().unwrap_or_default();
        let aside = format!("{thread}.{}", Uuid::now_v7());
        if let Err(error) = session.save_as(&aside).await {
            return error;
        }
        let message = format!(
            "thread `{thread}` was saved by another session meanwhile and stays as that left it; what this run left at `/` is saved as thread `{aside}`"
        );
        error.with_message(message).with_unknown_effect()
    }

    /// Saves the thread of a session; an interrupt waits for it.
    pub(crate) async fn save_session(&self, session: &Session) -> Result<(), Error> {
        self.saving.store(true, Ordering::Release);
        let saved = session.save().await;
        self.saving.store(false, Ordering::Release);
        saved.map(drop)
    }
}

/// Says what a configuration file would do: what of the host and of other servers it mounts, and which stores it opens.
pub(crate) fn meant(file: &Path, text: &str, data: &Path) -> String {
    let config = match Config::load_text(file, text, data) {
        Ok(config) => config,
        Err(error) => return format!("has a fault: {}", error.message()),
    };
    let mut parts = Vec::new();
    for (path, route) in &config.routes {
        let of = match route.tier {
            RouteType::Filesystem => route.root.as_deref().map(|root| format!("the directory `{root}`")),
            RouteType::Remote => route.url.as_deref().map(|url| format!("the server `{}`", without_password(url))),
            _ => None,
        };
        parts.extend(of.map(|of| format!("{of} at `{path}`{}", if route.read_only { ", read-only" } else { "" })));
    }
    let mounts = if parts.is_empty() { "mounts no directory of the host".to_owned() } else { format!("mounts {}", parts.join(", ")) };
    let stores: Vec<String> = config.stores.values().map(|store| format!("`{}`", without_password(&store.url))).collect();
    let rules = config.layers.permissions.len();
    let rules = if rules == 0 { "no rule".to_owned() } else { counted(rules, "rule", "rules") };
    format!("{mounts}; opens {}; and has {rules} about paths", stores.join(", "))
}

/// Returns the content that an argument names: the text itself, or standard input for `-` or no argument.
pub(crate) async fn content(text: Option<String>) -> Result<Vec<u8>, Error> {
    match text {
        Some(text) if text != "-" => Ok(text.into_bytes()),
        None if crate::output::stdin_is_terminal() => {
            Err(Error::invalid_argument("no content is given; name it as an argument, or pipe it in"))
        }
        _ => stdin().await,
    }
}

/// Reads standard input to its end, on a thread of its own: a pipe that stays silent keeps no signal waiting.
async fn stdin() -> Result<Vec<u8>, Error> {
    let unreadable =
        |error: io::Error| Error::new(ErrorKind::Unavailable, format!("standard input cannot be read: {error}")).with_source(error);
    let read = tokio::task::spawn_blocking(|| {
        let mut content = Vec::new();
        io::stdin().lock().read_to_end(&mut content).map(|_| content)
    });
    read.await.map_err(io::Error::from).and_then(|content| content).map_err(unreadable)
}

/// Makes the error of a file of the host that cannot be read.
pub(crate) fn unread(file: &str, error: io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
        io::ErrorKind::IsADirectory => ErrorKind::IsDirectory,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, format!("`{file}` cannot be read: {error}")).with_source(error)
}

fn user_data() -> Result<PathBuf, Error> {
    let strategy = etcetera::choose_base_strategy().map_err(|error| {
        Error::invalid_argument("there is no home directory to keep data in; name a directory by `--data`").with_source(error)
    })?;
    Ok(strategy.data_dir().join("treehold"))
}

fn absolute(path: &Path) -> Result<PathBuf, Error> {
    std::path::absolute(path)
        .map(|path| path.components().collect())
        .map_err(|error| Error::new(ErrorKind::Unavailable, format!("`{}` cannot be resolved: {error}", path.display())).with_source(error))
}
