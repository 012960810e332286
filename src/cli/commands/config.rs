//! `config`: shows, checks and creates configuration files, and records trust in them.

use crate::cli::context::{CONFIG_FILE, Context, default_config, meant, unread};
use crate::cli::exit::{Failure, Outcome};
use crate::cli::output::{Style, counted};
use crate::config::{ConfigFault, EffectiveRoute, EffectiveStore, Origin, RouteType, Setting, TEMPLATE, Trust};
use crate::ops::Durability;
use crate::{Error, ErrorKind};
use clap::{Args, Subcommand};
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Show, check, create and trust the configuration
#[derive(Debug, Subcommand)]
pub(crate) enum Config {
    /// Print every effective setting and its origin
    ///
    /// The output is itself a valid configuration file. With `--effective`, prints what the settings mean for each route: where its
    /// files live, who shares them, what they survive, whether one can go back, and which rules may apply.
    Show {
        /// Print the tree of routes and what applies to each
        #[arg(long)]
        effective: bool,
    },
    /// Check the configuration file
    ///
    /// Reports a mistake with file, line and column, and suggests the key that was probably meant.
    Check {
        /// File to check [default: the file that commands would use]
        file: Option<PathBuf>,
    },
    /// Write a commented configuration file with the default settings
    Init {
        /// Configuration file
        #[arg(default_value = CONFIG_FILE)]
        file: PathBuf,
    },
    Trust(ConfigTrust),
}

/// Trust the current content of a directory's configuration file
///
/// Commands ignore the `treehold.toml` of the current directory, or of the nearest one above, until you trust it, because the file
/// may have come with the directory. This command first prints what the file mounts. After a change, the file must be trusted again. A file named by
/// --config or TREEHOLD_CONFIG needs no trust.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold config trust
  treehold config trust --show
  treehold config trust --revoke ../other/treehold.toml")]
pub(crate) struct ConfigTrust {
    /// Configuration file [default: the file that commands would use]
    file: Option<PathBuf>,
    /// Only show what the file mounts and whether it is trusted
    #[arg(long, conflicts_with_all = ["list", "revoke"])]
    show: bool,
    /// List the trusted files
    #[arg(long, conflicts_with = "revoke")]
    list: bool,
    /// Stop trusting the file
    #[arg(long)]
    revoke: bool,
}

impl Config {
    pub(crate) fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        match self {
            Self::Show { effective: true } => show_effective(context),
            Self::Show { effective: false } => show(context),
            Self::Check { file } => check(context, file),
            Self::Init { file } => init(context, &file),
            Self::Trust(trust) => trust.run(context),
        }
    }
}

fn show(context: &mut Context) -> Result<Outcome, Failure> {
    let mut settings = context.config()?.settings();
    for Setting { keys, value, .. } in settings.iter_mut().filter(|setting| setting.key() == "url") {
        let is_of_store =
            keys.first().is_some_and(|table| table == "stores") || keys.starts_with(&["traces", "internal"].map(str::to_owned));
        let shown = |url| if is_of_store { context.registry.shown_url(url) } else { crate::config::without_password(url) };
        if let Some(url) = value.as_str().map(shown) {
            *value = url.into();
        }
    }
    let out = &mut context.out;
    if !out.is_text() {
        let settings: Vec<_> =
            settings.iter().map(|Setting { keys, value, origin, .. }| json!({"keys": keys, "value": value, "origin": origin})).collect();
        out.json_list(&settings)?;
        return Ok(Outcome::Done);
    }
    let mut table = None;
    for setting in &settings {
        if setting.table() != table {
            table = setting.table();
            out.empty_line()?;
            out.line(format_args!("[{}]", table.as_deref().unwrap_or_default()))?;
        }
        let origin = match &setting.origin {
            Origin::Default => String::new(),
            origin => format!("  {}", out.paint(Style::Faint, format_args!("# {origin}"))),
        };
        // `text` keeps the line breaks of multi-line TOML strings, which `line` would escape.
        out.text(format_args!("{} = {}{origin}\n", setting.key(), setting.value))?;
    }
    Ok(Outcome::Done)
}

/// Draws the tree of routes.
fn show_effective(context: &mut Context) -> Result<Outcome, Failure> {
    let routes = context.config()?.effective_routes()?;
    let out = &mut context.out;
    if !out.is_text() {
        out.json_list(&routes)?;
        return Ok(Outcome::Done);
    }
    for (index, route) in routes.iter().enumerate() {
        // Routes are in path order, so those beneath one follow it.
        let above = routes[..index].iter().filter(|other| route.path.starts_with(&other.path)).count();
        let is_followed = routes.get(index + 1).is_some_and(|next| next.path.starts_with(&route.path));
        let is_last = |level: usize| {
            let depth =
                |one: &EffectiveRoute| routes.iter().filter(|other| one.path != other.path && one.path.starts_with(&other.path)).count();
            !routes[index + 1..].iter().take_while(|next| depth(next) >= level).any(|next| depth(next) == level)
        };
        let guides: String = (1..above).map(|level| if is_last(level) { "    " } else { "│   " }).collect();
        let (branch, rest) = match above {
            0 => ("", ""),
            _ if is_last(above) => ("└── ", "    "),
            _ => ("├── ", "│   "),
        };
        let (path, read_only) = (out.paint(Style::Directory, &route.path), if route.read_only { ", read-only" } else { "" });
        let head = format!("{guides}{branch}{path}  {}{read_only}", route.tier.name());
        out.line(head)?;
        let inner = if is_followed { "│ " } else { "  " };
        for (name, value) in facts(route) {
            let name = out.paint(Style::Faint, format!("{name:<11}"));
            let line = format!("{guides}{rest}{inner} {name} {value}");
            out.line(line)?;
        }
    }
    Ok(Outcome::Done)
}

/// Describes what is kept of the past of a route's files; `None` if nothing is.
pub(crate) fn kept_history(route: &EffectiveRoute) -> Option<String> {
    let versions = route.history.as_ref().map(|kept| format!("{} for {}", counted(kept.keep_last, "version", "versions"), kept.older_than));
    if route.checkpoints { Some("checkpoints".to_owned()) } else { versions }
}

/// Returns what applies to a route, by name.
fn facts(route: &EffectiveRoute) -> Vec<(&'static str, String)> {
    let store = |store: &EffectiveStore| format!("{} ({})", store.name, store.location);
    let survives = |durability: Durability| {
        match durability {
            Durability::Power => "a power loss",
            Durability::Process => "the end of the process",
            _ => "nothing: lost with the process",
        }
        .to_owned()
    };
    let mut history: Vec<String> = kept_history(route).into_iter().collect();
    history.extend(route.events_kept.as_ref().map(|keep| format!("events for {keep}")));
    let namespace = route.namespace.as_ref().map(|namespace| match &route.filled_namespace {
        Some(filled) if filled != namespace => format!("{namespace} = {filled}"),
        _ => namespace.clone(),
    });
    let location = match route.tier {
        RouteType::Filesystem => "directory",
        RouteType::Past => "shows",
        RouteType::Remote => "server",
        _ => "thread",
    };
    let overlay = route
        .overlay
        .as_ref()
        .map(|overlay| format!("changes of {} stay apart in {} until they are applied", overlay.sharing, store(&overlay.store)));
    let facts = [
        (location, route.location.clone()),
        ("store", route.store.as_ref().map(store)),
        ("namespace", namespace),
        ("shared by", Some(route.sharing.to_string())),
        ("survives", route.durability.map(survives)),
        ("history", (!route.read_only).then(|| if history.is_empty() { "none".to_owned() } else { history.join(", ") })),
        ("overlay", overlay),
        ("quota", (!route.quota.is_empty()).then(|| route.quota.join(", "))),
    ];
    let kept = route.retention.iter().map(|kept| ("kept", kept.clone()));
    let rules = route.rules.iter().map(|rule| ("rule", rule.clone()));
    facts.into_iter().filter_map(|(name, value)| Some((name, value?))).chain(kept).chain(rules).collect()
}

fn check(context: &mut Context, file: Option<PathBuf>) -> Result<Outcome, Failure> {
    if file.is_some() {
        context.global.config = file;
    } else if context.global.config.is_none() && default_config().is_file() {
        // Checking a file does not use it, so it need not be trusted.
        context.global.config = Some(default_config());
    }
    let checked = context.config().and_then(|config| {
        config.check_engines()?;
        Ok(config)
    });
    if let Err(error) = &checked
        && let Some(fault) = std::error::Error::source(error).and_then(|source| source.downcast_ref::<ConfigFault>())
        && !context.out.is_text()
    {
        let ConfigFault { file, line, column, message, hint, .. } = fault;
        context.out.json(&json!({"ok": false, "file": file, "line": line, "column": column, "message": message, "hint": hint}))?;
        context.out.flush()?;
    }
    let config = checked?;
    let file = config.base().file.clone();
    let warnings = warnings(&config);
    for warning in &warnings {
        context.out.notice(format_args!("warning: {warning}"));
    }
    match (context.out.is_text(), file) {
        (false, file) => context.out.json(&json!({"ok": true, "file": file, "warnings": warnings}))?,
        (true, Some(file)) => context.out.line(format_args!("{} is valid", file.display()))?,
        (true, None) => context.out.line("no configuration file; using built-in defaults")?,
    }
    Ok(Outcome::Done)
}

/// Returns warnings about valid settings that will not have the intended effect.
fn warnings(config: &crate::config::Config) -> Vec<String> {
    let mut warnings = Vec::new();
    for (path, route) in &config.routes {
        match config.filesystem_root(path, &config.scope()) {
            Ok(Some(root)) if !root.is_dir() && route.create_root != Some(true) => {
                warnings.push(format!(
                    "the root of `{path}`, {}, is not a directory; create it, or set `create_root` on the route",
                    root.display()
                ));
            }
            _ => {}
        }
    }
    if config.leaves_default_store_open() {
        let used = config.registry().shown_url(&config.stores[crate::config::DEFAULT_STORE].url);
        warnings.push(format!(
            "several stores are named and none is `default`, so what names no store is in `{used}`; call one of them `default`, or set \
                `store` in its section or route"
        ));
    }
    for (name, store) in &config.stores {
        let Ok(Some(directory)) = config.store_directory(&store.url) else { continue };
        if !directory.is_dir() && directory != config.data {
            warnings.push(format!(
                "the directory of the store `{name}`, {}, does not exist; the first command creates it",
                directory.display()
            ));
        }
    }
    warnings
        .extend(forgetful_stores(config).map(|name| format!("the store `{name}` is in memory; its content is lost when a command ends")));
    warnings
}

/// Returns the used stores whose content is lost when the process ends.
pub(crate) fn forgetful_stores(config: &crate::config::Config) -> impl Iterator<Item = &str> {
    let is_used = |name: &str| {
        let by_route = config.routes.values().any(|route| route.store.as_deref() == Some(name));
        let by_overlay =
            config.overlays().any(|(_, route)| route.overlay.as_ref().and_then(|overlay| overlay.store.as_deref()) == Some(name));
        by_route || by_overlay || (config.threads.save && config.threads.store == name)
    };
    config.stores.iter().filter(move |(name, store)| store.url == "memory:" && is_used(name)).map(|(name, _)| name.as_str())
}

fn init(context: &mut Context, file: &Path) -> Result<Outcome, Failure> {
    let mut created = std::fs::File::create_new(file).map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => {
            Error::new(ErrorKind::AlreadyExists, format!("`{}` exists already; name another file", file.display()))
        }
        _ => Error::new(ErrorKind::Unavailable, format!("`{}` cannot be created: {error}", file.display())),
    })?;
    created
        .write_all(TEMPLATE.as_bytes())
        .map_err(|error| Error::new(ErrorKind::Unavailable, format!("`{}` cannot be written: {error}", file.display())))?;
    // The user asked for this file, so trust it as it was just written.
    context.trust_book()?.trust(file, TEMPLATE.as_bytes())?;
    context.out.notice(format_args!("wrote {}; after you change it, run `treehold config trust`", file.display()));
    Ok(Outcome::Done)
}

impl ConfigTrust {
    fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let book = context.trust_book()?;
        let file = self.file.unwrap_or_else(default_config);
        if self.list {
            let files = book.list()?;
            match context.out.is_text() {
                true => files.iter().try_for_each(|file| context.out.line(file.display()))?,
                false => context.out.json_list(&files)?,
            }
            return Ok(Outcome::found(!files.is_empty()));
        }
        if self.revoke {
            let revoked = book.revoke(&file)?;
            let told = if revoked { "is no longer trusted" } else { "was not trusted" };
            context.out.notice(format_args!("{} {told}", file.display()));
            return Ok(Outcome::found(revoked));
        }
        let text = std::fs::read(&file).map_err(|error| unread(&file.display().to_string(), error))?;
        let text = String::from_utf8(text)
            .map_err(|error| Error::invalid_argument("the file is not UTF-8; a configuration is TOML").with_source(error))?;
        let meaning = meant(&context.registry, &file, &text, book.directory());
        if !self.show {
            // An invalid configuration cannot be trusted, since its meaning is unknown.
            context.registry.load_config_text(&file, &text, book.directory())?;
            book.trust(&file, text.as_bytes())?;
        }
        let trust = book.of(&file, text.as_bytes())?;
        let state = match trust {
            Trust::Given => "trusted",
            Trust::Changed => "changed",
            _ => "unknown",
        };
        if !context.out.is_text() {
            context.out.json(&json!({"file": file, "state": state, "meaning": meaning}))?;
            return Ok(Outcome::found(trust == Trust::Given));
        }
        let file = file.display();
        let told = match trust {
            Trust::Given => "is trusted",
            Trust::Changed => "changed since it was trusted",
            _ => "is not trusted",
        };
        context.out.line(format_args!("{file} {told}; it {meaning}"))?;
        Ok(Outcome::found(trust == Trust::Given))
    }
}
