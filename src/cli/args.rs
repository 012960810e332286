//! The command line as types: global options and commands.

use crate::cli::commands;
use crate::clock::parse_age;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

/// One file tree for AI agents, whose parts live in different tiers.
///
/// `/` holds the state of the current thread (one conversation), `/memories` holds files that all threads of a user share, and
/// `/workspace` is the current directory. A `treehold.toml` changes this layout; see `treehold config init` and `treehold config
/// trust`.
#[derive(Debug, Parser)]
#[command(name = "treehold", version, max_term_width = 100, after_long_help = EXIT_CODES, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  nothing found, or the compared files differ
  2  wrong usage or invalid input
  3  not found
  4  conflict: it changed meanwhile, it already exists, or the text to replace is not unique
  5  denied by a rule, a quota or a read-only tree
  6  a store, disk or server failed";

/// What every command understands.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// Configuration file [default: `treehold.toml` here or above, if trusted by `config trust`]
    #[arg(long, value_name = "FILE", env = "TREEHOLD_CONFIG", hide_env_values = true, hide_short_help = true, global = true)]
    pub(crate) config: Option<PathBuf>,
    /// Directory for durable data [default: the user's data directory]
    #[arg(long, value_name = "DIR", env = "TREEHOLD_DATA", hide_env_values = true, hide_short_help = true, global = true)]
    pub(crate) data: Option<PathBuf>,
    /// Thread whose state is mounted at `/` [default: default]
    #[arg(long, value_name = "ID", env = "TREEHOLD_THREAD", hide_env_values = true, hide_short_help = true, global = true)]
    pub(crate) thread: Option<String>,
    /// User on whose behalf to run [default: default]
    #[arg(long, value_name = "ID", env = "TREEHOLD_USER", hide_env_values = true, hide_short_help = true, global = true)]
    pub(crate) user: Option<String>,
    /// Tenant that the user belongs to [default: default]
    #[arg(long, value_name = "ID", env = "TREEHOLD_TENANT", hide_env_values = true, hide_short_help = true, global = true)]
    pub(crate) tenant: Option<String>,
    /// Name of the agent, for `state` and for routes whose namespace contains one
    #[arg(long, value_name = "ID", env = "TREEHOLD_AGENT", hide_env_values = true, hide_short_help = true, global = true)]
    pub(crate) agent: Option<String>,
    /// Session of an agent host whose notes and tool results are mounted at `/memo`
    #[arg(long, value_name = "ID", env = "TREEHOLD_SESSION", hide_env_values = true, hide_short_help = true, global = true)]
    pub(crate) session: Option<String>,
    /// Print results and errors as one JSON value each
    #[arg(long, global = true, hide_short_help = true, conflicts_with = "jsonl")]
    pub(crate) json: bool,
    /// Print one JSON value per line, for errors too
    #[arg(long, global = true, hide_short_help = true)]
    pub(crate) jsonl: bool,
    /// Do not show long output in a pager
    #[arg(long, global = true, hide_short_help = true)]
    pub(crate) no_pager: bool,
    /// Suppress notices; with `grep`, all output
    #[arg(short, long, global = true, hide_short_help = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Report on standard error what was done
    #[arg(short, long, global = true, hide_short_help = true)]
    pub(crate) verbose: bool,
    /// When to use colour: auto, always or never
    #[arg(
        long,
        value_enum,
        value_name = "WHEN",
        default_value = "auto",
        hide_possible_values = true,
        hide_short_help = true,
        global = true
    )]
    pub(crate) color: Color,
}

impl Global {
    /// Returns whether data and errors are printed as JSON.
    pub(crate) fn is_json(&self) -> bool {
        self.json || self.jsonl
    }
}

/// When to use colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Color {
    #[default]
    Auto,
    Always,
    Never,
}

impl Color {
    /// Applies the choice to all output of the process.
    pub(crate) fn write_global(self) {
        match self {
            Self::Auto => anstream::ColorChoice::Auto,
            Self::Always => anstream::ColorChoice::Always,
            Self::Never => anstream::ColorChoice::Never,
        }
        .write_global();
    }
}

/// When a command looks at the tree.
#[derive(Debug, Clone, Args)]
pub(crate) struct When {
    /// Read the tree as of a time or age, a checkpoint (id or label), or `~N` or `vN` of a file; fails where no past is kept
    #[arg(long, value_name = "MOMENT")]
    pub(crate) at: Option<String>,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    #[command(alias = "st")]
    Status(commands::status::Status),
    Ls(commands::ls::Ls),
    Tree(commands::tree::Tree),
    Cat(commands::cat::Cat),
    Head(commands::cat::Head),
    Stat(commands::stat::Stat),
    Find(commands::find::Find),
    Glob(commands::glob::Glob),
    Grep(commands::grep::Grep),
    Search(commands::search::Search),
    Diff(commands::diff::Diff),
    Log(commands::log::Log),
    Show(commands::show::Show),
    Write(commands::write::Write),
    Append(commands::write::Append),
    Edit(commands::edit::Edit),
    Patch(commands::patch::Patch),
    Rm(commands::rm::Rm),
    Mv(commands::mv::Mv),
    Cp(commands::mv::Cp),
    Mkdir(commands::mkdir::Mkdir),
    Restore(commands::restore::Restore),
    Undo(commands::undo::Undo),
    Timeline(commands::timeline::Timeline),
    Watch(commands::timeline::Watch),
    #[cfg(unix)]
    Import(commands::import::Import),
    #[cfg(unix)]
    Export(commands::import::Export),
    #[cfg(unix)]
    Mirror(commands::mirror::MirrorCommand),
    #[cfg(unix)]
    Sync(commands::sync::Sync),
    Run(commands::run::Run),
    Shell(commands::shell::Shell),
    Tools(commands::tools::Tools),
    #[cfg(feature = "mcp")]
    Mcp(commands::mcp::Mcp),
    #[cfg(feature = "serve")]
    Serve(commands::serve::Serve),
    #[cfg(feature = "serve")]
    Token(commands::token::Token),
    #[command(subcommand)]
    Checkpoint(commands::checkpoint::Checkpoint),
    #[command(subcommand)]
    Thread(commands::thread::Thread),
    #[command(subcommand)]
    Session(commands::session::Session),
    #[command(subcommand)]
    State(commands::state::State),
    #[command(subcommand)]
    Trace(commands::trace::Trace),
    #[command(subcommand)]
    Overlay(commands::overlay::Overlay),
    #[command(subcommand)]
    Memory(commands::memory::Memory),
    #[command(subcommand)]
    Store(commands::store::Store),
    Sweep(commands::sweep::Sweep),
    #[command(subcommand)]
    Config(commands::config::Config),
    Doctor(commands::doctor::Doctor),
    Completions(commands::completions::Completions),
    Man(commands::completions::Man),
}

/// Parses a limit, which must be at least 1.
pub(crate) fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".to_owned()),
        Ok(limit) => Ok(limit),
        Err(error) => Err(error.to_string()),
    }
}

/// Parses an age such as `12h`, `30d` or `2w`. A day has 24 hours.
pub(crate) fn age(text: &str) -> Result<Duration, String> {
    parse_age(text).map_err(|invalid| invalid.to_string())
}

/// Parses a time: RFC 3339, a date or time in UTC, or an age.
pub(crate) fn time(text: &str) -> Result<jiff::Timestamp, String> {
    crate::clock::parse_time(text, jiff::Timestamp::now()).map_err(|error| error.message().to_owned())
}

/// Parses a duration such as `90s`, `1h 30m` or `30d`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    parse_age(text).map_err(|invalid| match invalid.is_out_of_bounds() {
        true => invalid.to_string(),
        false => format!("`{text}` is not a duration; write it as `90s`, `1h 30m` or `30d`"),
    })
}

/// Parses a positive duration.
#[cfg(feature = "serve")]
pub(crate) fn some_duration(text: &str) -> Result<Duration, String> {
    match duration(text) {
        Ok(Duration::ZERO) => Err("must be longer than 0s".to_owned()),
        read => read,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use clap::error::ErrorKind;

    /// Collects the command lines of the options with a time or duration: the commands and the option.
    fn collect_times(command: &clap::Command, path: &[String], found: &mut Vec<Vec<String>>) {
        for argument in command.get_arguments() {
            let is_time = argument.get_value_names().unwrap_or_default().iter().any(|name| ["TIME", "DURATION"].contains(&name.as_str()));
            if let Some(long) = argument.get_long().filter(|_| is_time) {
                found.push(path.iter().cloned().chain([format!("--{long}")]).collect());
            }
        }
        for inner in command.get_subcommands() {
            let path: Vec<String> = path.iter().cloned().chain([inner.get_name().to_owned()]).collect();
            collect_times(inner, &path, found);
        }
    }

    /// Regression: `--ttl 30000000d` was not a duration, and neither was `--ttl 30d`.
    #[test]
    fn option_with_a_time_out_of_bounds_is_refused_with_its_bound() {
        let mut found = Vec::new();
        collect_times(&Cli::command(), &["treehold".to_owned()], &mut found);
        assert!(found.len() >= 8, "{found:?}");
        for mut line in found {
            let option = line.pop().expect("an option");
            for (value, bound) in [
                ("30000000d", Some("too long: the longest is `1000000d`")),
                ("99999999999999999999999h", Some("too long: the longest is `1000000d`")),
                ("-1h", Some("too short: the shortest is `0s`")),
                ("30d", None),
            ] {
                let line = line.iter().cloned().chain([format!("{option}={value}")]);
                let told = Cli::command().try_get_matches_from(line).err();
                // What else is wrong with the line, such as an argument that is missing, is found later.
                let told = told.filter(|error| error.kind() == ErrorKind::ValueValidation).map(|error| error.to_string());
                match bound {
                    Some(bound) => assert!(told.as_ref().is_some_and(|told| told.contains(bound)), "{option} {value}: {told:?}"),
                    None => assert_eq!(told, None, "{option} {value}"),
                }
            }
        }
    }
}
