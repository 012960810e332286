//! What a command runs with: flags, output, stores and workspace, each opened on first use.

use crate::agent_state::AgentStates;
use crate::cli::args::{Command, Global, When};
use crate::cli::commands;
use crate::cli::commands::config::forgetful_stores;
use crate::cli::exit::{Failure, Outcome};
use crate::cli::output::{Output, Progress, counted};
use crate::cli::signal;
use crate::cli::terminal::shown;
use crate::config::{Config, ConfigBase, Registry, RouteType, Stores, Trust, TrustBook, without_password};
use crate::ops::{ApplyOptions, Author};
use crate::scope::ScopeField;
use crate::session::{CALL, Done, TOOL, Target, Threads};
use crate::sessions::Sessions;
use crate::traces::OrganizationTraces;
use crate::{Backend, CheckpointId, Error, ErrorKind, Scope, Session, Workspace};
use etcetera::BaseStrategy;
use futures::future::BoxFuture;
use jiff::Timestamp;
use std::cell::Cell;
use std::io::{self, Read, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;

/// The configuration file used by default, once it is trusted.
pub(crate) const CONFIG_FILE: &str = "treehold.toml";

/// Returns the configuration file that commands use by default, once it is trusted: that of the current directory, or else of the nearest
/// directory above that has one. One that cannot be read does not count above: anybody may put it into a shared directory.
pub(crate) fn default_config() -> PathBuf {
    let here = PathBuf::from(CONFIG_FILE);
    if here.is_file() {
        return here;
    }
    let above = std::env::current_dir().unwrap_or_default();
    let mut files = above.ancestors().skip(1).map(|directory| directory.join(CONFIG_FILE));
    files.find(|file| file.is_file() && std::fs::File::open(file).is_ok()).unwrap_or(here)
}

/// What a command runs with.
pub(crate) struct Context {
    /// The global options.
    pub(crate) global: Global,
    /// What configurations and store URLs can name.
    pub(crate) registry: Registry,
    /// Where the command prints.
    pub(crate) out: Output,
    stores: OnceLock<Stores>,
    workspace: Option<Workspace>,
    threads: Option<Arc<Threads>>,
    session: Option<Session>,
    /// The tree that the command read last.
    tree_read: Option<Arc<dyn Backend>>,
    /// Set while a thread is being saved. A signal waits for it.
    saving: Arc<AtomicBool>,
    /// Host files that govern the trees of this command, beyond those of the configuration, with the reason for each.
    governing: Vec<(PathBuf, &'static str)>,
    /// Whether the command has already said which stores forget.
    told_forgetful: bool,
    /// Whether the command has already reported an untrusted configuration file.
    told_untrusted: Cell<bool>,
    /// Whether stores and directories that do not exist are left out rather than created.
    creates_nothing: bool,
    /// Whether the process continues after an interrupt.
    survives_interrupts: bool,
    /// The name and the id of the command.
    command: (String, CheckpointId),
}

/// Runs a command until it ends or a signal stops it. A signal lets a save in progress finish, and prevents a new one.
pub(crate) async fn until_interrupted(context: &mut Context, command: Command) -> Result<Outcome, Failure> {
    // Servers, mirrors, imports and exports handle signals themselves and shut down in order.
    match command {
        #[cfg(feature = "mcp")]
        Command::Mcp(_) => return finished(context, command).await,
        #[cfg(feature = "serve")]
        Command::Serve(_) => return finished(context, command).await,
        #[cfg(unix)]
        Command::Mirror(_) | Command::Sync(_) | Command::Import(_) | Command::Export(_) => return finished(context, command).await,
        // An interrupt is for the editor.
        Command::Edit(ref edit) if edit.opens_editor() => return finished(context, command).await,
        _ => {}
    }
    let saving = context.saving.clone();
    // The handlers are installed by the first poll. Until then a signal ends the process.
    let mut stopped = std::pin::pin!(async { signal::stop().await });
    // A shell survives interrupts, so one that arrives before the first poll would be lost.
    if context.survives_interrupts
        && let Poll::Ready(signal) = futures::poll!(stopped.as_mut())
    {
        return Ok(Outcome::Interrupted(signal));
    }
    let mut run = std::pin::pin!(finished(context, command));
    tokio::select! {
        biased;
        ended = &mut run => ended,
        signal = &mut stopped => {
            if saving.load(Ordering::Acquire) {
                // What is being saved is finished, unless the process is asked again: the store may not answer.
                tokio::select! {
                    biased;
                    ended = run => drop(ended?),
                    _ = signal::stop() => {}
                }
            }
            Ok(Outcome::Interrupted(signal))
        }
    }
}

async fn finished(context: &mut Context, command: Command) -> Result<Outcome, Failure> {
    let outcome = commands::run(context, command).await?;
    context.out.flush()?;
    Ok(outcome)
}

impl Context {
    /// Creates the context for some flags and what configurations can name. Opens nothing.
    pub(crate) fn new(global: Global, registry: Registry) -> Self {
        Self {
            out: Output::new(&global),
            global,
            registry,
            stores: OnceLock::new(),
            workspace: None,
            threads: None,
            session: None,
            tree_read: None,
            saving: Arc::default(),
            governing: Vec::new(),
            told_forgetful: false,
            told_untrusted: Cell::new(false),
            creates_nothing: false,
            survives_interrupts: false,
            command: (String::new(), CheckpointId::new(Timestamp::now(), None)),
        }
    }

    /// Begins a command. All its changes are one call, which is undone as one.
    pub(crate) fn begin(&mut self, name: &str) {
        self.command = (name.to_owned(), CheckpointId::new(Timestamp::now(), None));
    }

    /// Returns the options of a batch of the command's changes.
    pub(crate) fn change_options(&self) -> ApplyOptions {
        let (name, id) = &self.command;
        let mut author = Author::new();
        (author.tool, author.call) = (Some(name.clone()), Some(id.to_string()));
        ApplyOptions::new().with_extension(author)
    }

    /// Leaves out stores and directories that do not exist, rather than creating them. Call it before anything is opened.
    pub(crate) fn create_nothing(&mut self) {
        self.creates_nothing = true;
    }

    /// Prepares for a process that continues after an interrupt.
    pub(crate) fn survive_interrupts(&mut self) {
        self.survives_interrupts = true;
    }

    /// Sets the flags of the next command. The stores stay open, and the thread is read anew.
    pub(crate) fn set_global(&mut self, global: Global) {
        // The mounts of a session are part of the workspace.
        if global.session != self.global.session {
            (self.workspace, self.threads) = (None, None);
        }
        self.out = Output::new(&global);
        (self.session, self.tree_read) = (None, None);
        self.global = global;
    }

    /// Prevents a host file from being changed through the trees of this command.
    #[cfg(feature = "serve")]
    pub(crate) fn govern(&mut self, file: impl Into<PathBuf>, reason: &'static str) {
        self.governing.push((file.into(), reason));
    }

    /// Returns the default directory of durable data.
    pub(crate) fn data(&self) -> Result<PathBuf, Error> {
        match &self.global.data {
            Some(data) => absolute(data),
            None => user_data(),
        }
    }

    /// Returns the records of trusted configuration files.
    pub(crate) fn trust_book(&self) -> Result<TrustBook, Error> {
        Ok(TrustBook::new(&self.data()?))
    }

    /// Reads the configuration: the named file, otherwise the [default one](default_config) if it is trusted, otherwise the built-in one.
    /// Flags take precedence.
    pub(crate) fn config(&self) -> Result<Config, Error> {
        let data = self.data()?;
        let mut config = match &self.global.config {
            Some(file) => self.registry.load_config(file, &data)?,
            None => match self.trusted(&data)? {
                Some(config) => config,
                None => self.registry.config(&ConfigBase::new(absolute(Path::new("."))?, &data)),
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
        if let Some(session) = &self.global.session {
            config.set_session(session, "--session or TREEHOLD_SESSION")?;
        }
        if self.creates_nothing {
            config.create_nothing();
        }
        Ok(config)
    }

    /// Reads the configuration file of the current directory if the user trusts it. If it was never trusted, the command tells the user and
    /// continues without it. If it changed since, the command fails, because the trusted version may have been stricter than the built-in
    /// configuration.
    fn trusted(&self, data: &Path) -> Result<Option<Config>, Error> {
        let file = &*default_config();
        let shown_file = file.display().to_string();
        let text = match std::fs::read(file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            // A directory of that name is not a configuration.
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => return Ok(None),
            text => text.map_err(|error| unread(&shown_file, error))?,
        };
        let trust = self.trust_book()?.of(file, &text)?;
        let text = String::from_utf8(text)
            .map_err(|error| Error::invalid_argument(format!("`{shown_file}` is not UTF-8; a configuration is TOML")).with_source(error))?;
        match trust {
            Trust::Given => self.registry.load_config_text(file, &text, data).map(Some),
            Trust::Changed => {
                // Report a fault rather than the change, since the file is not applied either way.
                self.registry.load_config_text(file, &text, data)?;
                let message = format!(
                    "`{shown_file}` changed since it was trusted, and nothing was done; it {}; review it, then run `treehold config \
                        trust`, or name it with `--config`; `treehold config trust --revoke` continues without it",
                    meant(&self.registry, file, &text, data)
                );
                Err(Error::new(ErrorKind::PermissionDenied, message))
            }
            _ => {
                if !self.told_untrusted.replace(true) && !self.global.quiet {
                    let notice = format!(
                        "treehold: `{shown_file}` is not trusted and not used; it {}; review it, then run `treehold config trust`, or \
                            name it with `--config`\n",
                        meant(&self.registry, file, &text, data)
                    );
                    let _ = io::stderr().write_all(shown(&notice, true).as_bytes());
                }
                Ok(None)
            }
        }
    }

    /// Returns the scope of the command.
    pub(crate) fn scope(&self) -> Result<Scope, Error> {
        Ok(self.config()?.scope())
    }

    /// Returns the stores of the configuration, each opened on first use. Everything in a command uses these: an embedded store can be open
    /// only once per process, and opening a server store twice doubles its connections.
    pub(crate) fn stores(&self) -> Result<Stores, Error> {
        match self.stores.get() {
            Some(stores) => Ok(stores.clone()),
            None => {
                let stores = self.config()?.stores()?;
                Ok(self.stores.get_or_init(|| stores).clone())
            }
        }
    }

    /// Returns the sessions of agent hosts.
    pub(crate) fn sessions(&self) -> Result<Sessions, Error> {
        self.config()?.sessions(&self.stores()?)
    }

    /// Returns the states of agents.
    pub(crate) fn agent_states(&self) -> Result<AgentStates, Error> {
        self.config()?.agent_states(&self.stores()?)
    }

    /// Returns the traces of agents, here and elsewhere.
    pub(crate) fn traces(&self) -> Result<OrganizationTraces, Error> {
        self.config()?.trace_stores(&self.stores()?)
    }

    /// Checks that the session whose memory documents are mounted, if any, exists and belongs to the user.
    pub(crate) async fn check_mounted_session(&self) -> Result<(), Error> {
        let config = self.config()?;
        let Some(session) = &config.sessions.mounted else { return Ok(()) };
        match self.sessions()?.info(&config.scope.tenant, session).await? {
            Some(info) if info.user_id == config.scope.user => Ok(()),
            _ => Err(Error::new(ErrorKind::NotFound, format!("the user `{}` has no session `{session}`", config.scope.user))),
        }
    }

    /// Returns the workspace. It opens its stores on first use.
    pub(crate) fn workspace(&mut self) -> Result<&Workspace, Error> {
        match self.workspace {
            Some(ref workspace) => Ok(workspace),
            None => {
                let workspace = self.config()?.workspace_on(&self.stores()?)?;
                Ok(self.workspace.insert(workspace))
            }
        }
    }

    /// Returns the threads of the workspace. Each piece of a command's work is saved.
    pub(crate) fn threads(&mut self) -> Result<Arc<Threads>, Error> {
        if let Some(threads) = &self.threads {
            return Ok(threads.clone());
        }
        let threads = Arc::new(Threads::of_command(self.workspace()?.clone()));
        Ok(self.threads.insert(threads).clone())
    }

    /// Returns the session of the thread.
    pub(crate) async fn session(&mut self) -> Result<Session, Error> {
        if let Some(session) = &self.session {
            return Ok(session.clone());
        }
        self.check_mounted_session().await?;
        let scope = self.scope()?;
        let session = self.workspace()?.session(scope).await?;
        self.session = Some(session.clone());
        Ok(session)
    }

    /// Returns the session of the thread, if the command has opened it.
    pub(crate) fn session_open(&self) -> Option<&Session> {
        self.session.as_ref()
    }

    /// Returns the tree of the thread.
    pub(crate) async fn tree(&mut self) -> Result<Arc<dyn Backend>, Error> {
        let tree = self.session().await?.backend();
        self.tree_read = Some(tree.clone());
        Ok(tree)
    }

    /// Returns the tree that the command read last.
    pub(crate) fn tree_read(&self) -> Option<Arc<dyn Backend>> {
        self.tree_read.clone()
    }

    /// Returns the tree of the thread, as it was if a moment is named.
    pub(crate) async fn tree_at(&mut self, when: &When) -> Result<Arc<dyn Backend>, Error> {
        match &when.at {
            Some(name) => self.tree_as_of(name).await,
            None => self.tree().await,
        }
    }

    /// Returns the tree of the thread as it was at a moment.
    pub(crate) async fn tree_as_of(&mut self, name: &str) -> Result<Arc<dyn Backend>, Error> {
        self.check_mounted_session().await?;
        let scope = self.scope()?;
        let tree = self.workspace()?.tree_as_of(&scope, name).await?;
        self.tree_read = Some(tree.clone());
        Ok(tree)
    }

    /// Shows progress on a terminal once work takes long.
    pub(crate) fn progress(&self, doing: &'static str) -> Progress {
        Progress::new(doing, !self.global.quiet && !self.global.is_json())
    }

    /// Runs a command's work and saves the thread, so that success is reported only for durable changes. Changes before a failure are saved
    /// too. If another writer saved the thread meanwhile, the work is repeated on the new state, unless it also changed something outside
    /// the thread.
    pub(crate) async fn lasting<T>(&mut self, mut work: impl AsyncFnMut(&mut Self) -> Result<T, Failure>) -> Result<T, Failure> {
        if !std::mem::replace(&mut self.told_forgetful, true) {
            for name in forgetful_stores(&self.config()?) {
                self.out.notice(format_args!("the store `{name}` is in memory; its content is lost when this command ends"));
            }
        }
        self.check_mounted_session().await?;
        let (threads, scope) = (self.threads()?, self.scope()?);
        let mut turn = threads.begin(&scope, &Target::Thread).await?;
        let (name, id) = &self.command;
        turn.note([(TOOL.to_owned(), name.clone()), (CALL.to_owned(), id.to_string())]);
        loop {
            self.session = Some(turn.session().clone());
            let result = work(self).await;
            match self.until_saved(turn.save(Done::saved(()))).await {
                Ok(Some(Done { unsaved: None, .. })) => return result,
                Ok(Some(Done { unsaved: Some(error), .. })) | Err(error) => return result.and(Err(error.into())),
                // Another writer saved the thread meanwhile.
                Ok(None) => {}
            }
        }
    }

    /// Works on the history of the thread, which saves the thread itself. The work is repeated on the new state if another writer saved the
    /// thread meanwhile.
    pub(crate) async fn lasting_history<'w, T>(&mut self, work: impl Fn(Session) -> BoxFuture<'w, Result<T, Error>>) -> Result<T, Error> {
        let (threads, scope) = (self.threads()?, self.scope()?);
        self.until_saved(threads.lasting_history(&scope, work)).await
    }

    /// Awaits a save. A signal waits for it.
    pub(crate) async fn until_saved<T>(&self, save: impl Future<Output = T>) -> T {
        self.saving.store(true, Ordering::Release);
        let saved = save.await;
        self.saving.store(false, Ordering::Release);
        saved
    }
}

/// Describes what a configuration file would do: the host directories and servers that it mounts, and the stores that it opens.
pub(crate) fn meant(registry: &Registry, file: &Path, text: &str, data: &Path) -> String {
    let config = match registry.load_config_text(file, text, data) {
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
    let internal = config.traces.internal.iter().map(|internal| &internal.url);
    let urls = config.stores.values().map(|store| &store.url).chain(internal);
    let stores: Vec<String> = urls.map(|url| format!("`{}`", registry.shown_url(url))).collect();
    let rules = config.layers.permissions.len();
    let rules = if rules == 0 { "no rule".to_owned() } else { counted(rules, "rule", "rules") };
    format!("{mounts}; opens {}; and has {rules} about paths", stores.join(", "))
}

/// Returns the content for an argument: the text itself, or standard input for `-` or no argument.
pub(crate) async fn content(text: Option<String>) -> Result<Vec<u8>, Error> {
    match text {
        Some(text) if text != "-" => Ok(text.into_bytes()),
        None if crate::cli::output::stdin_is_terminal() => {
            Err(Error::invalid_argument("no content is given; name it as an argument, or pipe it in"))
        }
        _ => {
            check_stdin()?;
            stdin().await
        }
    }
}

/// Refuses to read standard input as content if it has the commands of a shell.
pub(crate) fn check_stdin() -> Result<(), Error> {
    if crate::cli::output::stdin_has_commands() {
        let message = "standard input has the commands of the shell; give the content as an argument or a file";
        return Err(Error::invalid_argument(message));
    }
    Ok(())
}

/// Reads standard input to its end on a separate thread, so that a silent pipe does not delay signals.
async fn stdin() -> Result<Vec<u8>, Error> {
    let unreadable =
        |error: io::Error| Error::new(ErrorKind::Unavailable, format!("standard input cannot be read: {error}")).with_source(error);
    let read = tokio::task::spawn_blocking(|| {
        let mut content = Vec::new();
        io::stdin().lock().read_to_end(&mut content).map(|_| content)
    });
    read.await.map_err(io::Error::from).and_then(|content| content).map_err(unreadable)
}

/// Returns the error for an unreadable host file.
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
        Error::invalid_argument("there is no home directory to keep data in; name a directory with `--data`").with_source(error)
    })?;
    Ok(strategy.data_dir().join("treehold"))
}

fn absolute(path: &Path) -> Result<PathBuf, Error> {
    std::path::absolute(path)
        .map(|path| path.components().collect())
        .map_err(|error| Error::new(ErrorKind::Unavailable, format!("`{}` cannot be resolved: {error}", path.display())).with_source(error))
}
