//! The shell of the tree: a loop around the commands, with one workspace for all of them.
//!
//! Lines come from a terminal, from `-c` or from standard input. [`words`](super::words) splits them. A command is parsed by the definition
//! of the command line, in which paths are resolved against the current directory, so that commands need not know of it.

use crate::cli::args::{Cli, Command as CliCommand, Global};
use crate::cli::commands::shell::Shell as Options;
use crate::cli::complete::{self, Look, Place, Subject, WAIT, each_argument, look_up, with_completers};
use crate::cli::context::{self, Context};
use crate::cli::exit::{self, Failure, Outcome};
use crate::cli::output;
use crate::cli::pager::outlive_interrupts;
use crate::cli::shell_path::resolved;
use crate::cli::signal::{self, StopSignal};
use crate::cli::terminal::shown;
use crate::cli::words::{Fault, Quote, commands, partial, quoted};
use crate::cli::{advice, habits, unused, waiting};
use crate::config::Registry;
use crate::ops::StatOptions;
use crate::{Backend, Error, ErrorKind, VfsPath, VfsPathBuf};
use clap::builder::ValueParser;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, CommandFactory, FromArgMatches};
use parking_lot::Mutex;
use rustyline::completion::{Completer, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{CompletionType, Config, Editor, Helper};
use std::ffi::OsString;
use std::io::{self, BufRead};
use std::sync::Arc;
use tokio::runtime::Runtime;

/// The lines of the history that are kept.
const HISTORY_LINES: usize = 1_000;

/// The file of the history, in the data directory.
const HISTORY_FILE: &str = "shell_history";

/// Runs the shell and returns its exit code.
pub(crate) fn run(options: Options, global: Global, registry: Registry) -> u8 {
    // Background work of the stores continues while a line is edited.
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return exit::report(&Failure::from(error), &global),
    };
    let context = Context::new(global.clone(), registry);
    if let Err(error) = context.config() {
        return exit::report(&error.into(), &global);
    }
    let context = Arc::new(Mutex::new(context));
    #[cfg(unix)]
    exit_when_stopped(&runtime, &context);
    let shell = Shell {
        runtime: Arc::new(runtime),
        context,
        global,
        directory: Arc::new(Mutex::new(VfsPathBuf::root())),
        previous: VfsPathBuf::root(),
        stops: options.stop,
        last: 0,
    };
    match options.commands {
        Some(commands) => shell.run_commands(&commands),
        None if output::stdin_is_terminal() && output::stdout_is_terminal() => shell.run_terminal(),
        None => shell.run_script(io::stdin().lock()),
    }
}

/// Ends the shell when it is asked to stop, except by an interrupt, even while it reads a line. A running command ends first: the signal
/// stops it too, and it removes what it has not finished.
#[cfg(unix)]
fn exit_when_stopped(runtime: &Runtime, context: &Arc<Mutex<Context>>) {
    let _entered = runtime.enter();
    let (stop, context) = (signal::final_stop(), Arc::downgrade(context));
    runtime.spawn(async move {
        let signal = stop.await;
        tokio::task::spawn_blocking(move || {
            // A shell that is ending completes its writes.
            let Some(context) = context.upgrade() else { return };
            // A running command holds the context.
            let _idle = context.lock();
            std::process::exit(signal.exit_code().into());
        });
    });
}

struct Shell {
    runtime: Arc<Runtime>,
    context: Arc<Mutex<Context>>,
    /// The options of the shell, which hold for each command that does not have its own.
    global: Global,
    directory: Arc<Mutex<VfsPathBuf>>,
    /// The directory of `cd -`.
    previous: VfsPathBuf,
    stops: bool,
    /// The exit code of the last command.
    last: u8,
}

/// How the shell goes on after a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    Continue,
    Exit(u8),
}

impl Shell {
    fn run_commands(mut self, text: &str) -> u8 {
        match self.line(text, false) {
            Ok(Then::Continue) => self.last,
            Ok(Then::Exit(code)) => code,
            Err(fault) => self.refuse(&fault),
        }
    }

    /// Runs the lines of a script.
    fn run_script(mut self, mut lines: impl BufRead) -> u8 {
        output::reserve_stdin();
        let mut text = String::new();
        loop {
            let before = text.len();
            match lines.read_line(&mut text) {
                Ok(_) if text.len() == before && text.trim().is_empty() => return self.last,
                Ok(read) => match self.line(&text, false) {
                    // The next line continues the quotation.
                    Err(Fault::Unfinished) if read > 0 => continue,
                    Ok(Then::Continue) => {}
                    Ok(Then::Exit(code)) => return code,
                    Err(fault) => {
                        let code = self.refuse(&fault);
                        if self.stops || read == 0 {
                            return code;
                        }
                    }
                },
                Err(error) => {
                    let error = Error::new(ErrorKind::Unavailable, format!("standard input cannot be read: {error}")).with_source(error);
                    return exit::report(&error.into(), &self.global);
                }
            }
            text.clear();
        }
    }

    /// Runs the lines that a user types.
    fn run_terminal(mut self) -> u8 {
        // From here on, an interrupt ends a command and not the process. The line editor replaces the handler while it reads, and puts back
        // the one that was there before.
        {
            let _entered = self.runtime.enter();
            outlive_interrupts();
        }
        self.context.lock().survive_interrupts();
        let mut editor = match self.editor() {
            Ok(editor) => editor,
            Err(error) => return exit::report(&unusable(error).into(), &self.global),
        };
        let history = self.context.lock().data().ok().map(|data| data.join(HISTORY_FILE));
        if let Some(history) = &history {
            // Without a history, the shell works all the same.
            let _ = editor.load_history(history);
        }
        let code = loop {
            match editor.readline(&self.prompt()) {
                Ok(line) => match self.line(&line, true) {
                    Ok(Then::Continue) => {}
                    Ok(Then::Exit(code)) => break code,
                    Err(fault) => {
                        self.refuse(&fault);
                    }
                },
                Err(ReadlineError::Interrupted) => self.last = StopSignal::Interrupt.exit_code(),
                Err(ReadlineError::Eof) => break self.last,
                Err(error) => break exit::report(&unusable(error).into(), &self.global),
            }
        };
        if let Some(history) = history.filter(|history| history.parent().is_some_and(std::path::Path::exists)) {
            let _ = editor.append_history(&history);
        }
        code
    }

    fn editor(&self) -> rustyline::Result<Editor<Editing, FileHistory>> {
        let config = Config::builder()
            .auto_add_history(true)
            .history_ignore_space(true)
            .max_history_size(HISTORY_LINES)?
            .completion_type(CompletionType::List)
            .build();
        let mut editor = Editor::with_config(config)?;
        let (runtime, context) = (self.runtime.clone(), self.context.clone());
        editor.set_helper(Some(Editing { runtime, context, global: self.global.clone(), directory: self.directory.clone() }));
        Ok(editor)
    }

    /// Returns the prompt: thread and directory.
    fn prompt(&self) -> String {
        let mut context = self.context.lock();
        context.set_global(self.global.clone());
        let thread = context.scope().ok().and_then(|scope| scope.thread).unwrap_or_default();
        let prompt = format!("{thread}:{}> ", self.directory.lock());
        shown(&prompt, true).into_owned()
    }

    /// Runs the commands of a line, or returns why it is none.
    fn line(&mut self, line: &str, is_interactive: bool) -> Result<Then, Fault> {
        for words in commands(line)? {
            let then = self.command(words);
            let was_interrupted = self.last == StopSignal::Interrupt.exit_code();
            let was_stopped = StopSignal::FINAL.iter().any(|signal| self.last == signal.exit_code());
            match then {
                Then::Exit(code) => return Ok(Then::Exit(code)),
                Then::Continue if was_stopped => return Ok(Then::Exit(self.last)),
                Then::Continue if is_interactive && was_interrupted => return Ok(Then::Continue),
                Then::Continue if was_interrupted || (self.stops && self.last != 0) => return Ok(Then::Exit(self.last)),
                Then::Continue => {}
            }
        }
        Ok(Then::Continue)
    }

    /// Reports a line that cannot be run.
    fn refuse(&mut self, fault: &Fault) -> u8 {
        self.last = exit::report(&Error::invalid_argument(fault.to_string()).into(), &self.global);
        self.last
    }

    /// Runs one command.
    fn command(&mut self, words: Vec<String>) -> Then {
        let words = std::iter::once("treehold".to_owned()).chain(words).map(OsString::from);
        let arguments = habits::rewritten(words);
        let directory = self.directory.lock().clone();
        let parsed = in_directory(definition(), &directory).try_get_matches_from(&arguments).and_then(|matches| {
            unused::refuse(&matches)?;
            Ok(matches)
        });
        let matches = match parsed {
            Ok(matches) => matches,
            Err(error) => {
                self.last = exit::usage(&habits::with_tip(error, &arguments));
                return Then::Continue;
            }
        };
        let ran = match matches.subcommand() {
            Some(("exit", matches)) => return Then::Exit(matches.get_one("code").copied().unwrap_or(self.last)),
            Some(("pwd", _)) => self.work_at(&matches, |context| context.out.line(&directory)),
            Some(("cd", of_cd)) => {
                let to = of_cd.get_one::<String>("path").cloned();
                self.change_directory(&matches, to)
            }
            _ => self.program(&matches),
        };
        self.last = ran;
        Then::Continue
    }

    /// Runs a command of the program.
    fn program(&mut self, matches: &ArgMatches) -> u8 {
        let cli = match Cli::from_arg_matches(matches) {
            Ok(cli) => cli,
            Err(error) => return exit::usage(&error),
        };
        let name = matches.subcommand_name().unwrap_or_default().to_owned();
        if let Err(error) = check_runnable(&cli.command, &name) {
            return exit::report(&error.into(), &self.global);
        }
        let global = match self.global_of(matches, &cli.global) {
            Ok(global) => global,
            Err(error) => return exit::report(&error.into(), &self.global),
        };
        let mut context = self.context.lock();
        context.set_global(global.clone());
        context.begin(&name);
        let ended = self.runtime.block_on(async {
            waiting::begin(&global, &cli.command);
            match context::until_interrupted(&mut context, cli.command).await {
                Err(failure) => Err(advice::advised(&context, &name, failure).await),
                ended => ended,
            }
        });
        let closed = context.out.close();
        match ended.and_then(|outcome| closed.map(|()| outcome)) {
            Ok(outcome) => outcome.into(),
            Err(failure) => exit::report(&failure, &global),
        }
    }

    /// Does some work of the shell itself, and returns its exit code.
    fn work_at(&self, matches: &ArgMatches, work: impl FnOnce(&mut Context) -> Result<(), Failure>) -> u8 {
        let global = Global::from_arg_matches(matches).map_err(|error| Error::invalid_argument(error.to_string()));
        let global = match global.and_then(|global| self.global_of(matches, &global)) {
            Ok(global) => global,
            Err(error) => return exit::report(&error.into(), &self.global),
        };
        let mut context = self.context.lock();
        context.set_global(global.clone());
        let done = work(&mut context);
        let closed = context.out.close();
        match done.and(closed) {
            Ok(()) => Outcome::Done.into(),
            Err(failure) => exit::report(&failure, &global),
        }
    }

    fn change_directory(&mut self, matches: &ArgMatches, to: Option<String>) -> u8 {
        let directory = self.directory.lock().clone();
        let to = match to.as_deref() {
            None => VfsPathBuf::root(),
            Some("-") => self.previous.clone(),
            Some(to) => match resolved(&directory, to) {
                Ok(to) => to,
                Err(error) => return exit::report(&Error::from(error).into(), &self.global),
            },
        };
        let runtime = self.runtime.clone();
        let mut stopped_by = None;
        let code = self.work_at(matches, |context| {
            Ok(runtime.block_on(async {
                tokio::select! {
                    checked = check_directory(context, &to) => checked,
                    signal = signal::stop() => {
                        stopped_by = Some(signal);
                        Ok(())
                    }
                }
            })?)
        });
        if let Some(signal) = stopped_by {
            return Outcome::Interrupted(signal).into();
        }
        if code == 0 {
            self.previous = directory;
            *self.directory.lock() = to;
        }
        code
    }

    /// Returns the options of a command: its own, and those of the shell for the others.
    fn global_of(&self, matches: &ArgMatches, own: &Global) -> Result<Global, Error> {
        for option in ["config", "data"] {
            if is_given(matches, option) {
                let message = format!("`--{option}` holds for all commands of a shell; give it to `treehold shell`");
                return Err(Error::invalid_argument(message));
            }
        }
        Ok(merged(&self.global, own, matches))
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // A thread that reads standard input is not waited for.
        if let Some(runtime) = Arc::get_mut(&mut self.runtime)
            && let Ok(empty) = tokio::runtime::Builder::new_current_thread().build()
        {
            std::mem::replace(runtime, empty).shutdown_background();
        }
    }
}

async fn check_directory(context: &mut Context, path: &VfsPath) -> Result<(), Error> {
    let tree = context.tree().await?;
    if tree.stat(path, &StatOptions::new()).await?.is_directory() {
        return Ok(());
    }
    let linked = tree.stat(path, &StatOptions::new()).await?.leads_to;
    if let Some(linked) = linked
        && tree.stat(&linked, &StatOptions::new()).await?.is_directory()
    {
        return Ok(());
    }
    Err(Error::new(ErrorKind::NotADirectory, format!("`{path}` is not a directory")).at(path))
}

/// Refuses the commands that need a process of their own.
fn check_runnable(command: &CliCommand, name: &str) -> Result<(), Error> {
    match command {
        CliCommand::Shell(_) => Err(Error::invalid_argument("this is a shell already")),
        #[cfg(feature = "mcp")]
        CliCommand::Mcp(_) => Err(outside(name)),
        #[cfg(feature = "serve")]
        CliCommand::Serve(_) => Err(outside(name)),
        _ => {
            let _ = name;
            Ok(())
        }
    }
}

#[cfg(any(feature = "mcp", feature = "serve"))]
fn outside(name: &str) -> Error {
    Error::invalid_argument(format!("`{name}` is a server; run `treehold {name}` outside of this shell"))
}

fn unusable(error: ReadlineError) -> Error {
    Error::new(ErrorKind::Unavailable, format!("the terminal cannot be used: {error}")).with_source(error)
}

/// Returns the commands of the shell: those of the program, and its own.
fn definition() -> Command {
    Cli::command()
        .subcommand(
            Command::new("cd")
                .about("Change the current directory of the tree; `-` is the one before")
                .arg(Arg::new("path").value_name("PATH").allow_hyphen_values(true).help("Directory [default: /]")),
        )
        .subcommand(Command::new("pwd").about("Print the current directory of the tree"))
        .subcommand(Command::new("exit").about("End the shell").arg(
            Arg::new("code").value_name("CODE").value_parser(clap::value_parser!(u8)).help("Exit code [default: that of the last command]"),
        ))
}

/// Resolves the paths of a command against a directory, which is also the default where that is the whole tree.
fn in_directory(command: Command, directory: &VfsPath) -> Command {
    each_argument(command, &mut Vec::new(), &|subject, argument| {
        // `cd` resolves its argument itself.
        if !subject.is_path() || subject == Subject::Directory {
            return argument;
        }
        let argument = match argument.get_default_values() {
            [default] if default == "/" => argument.default_value(directory.as_str().to_owned()),
            _ => argument,
        };
        let from = directory.to_owned();
        if argument.get_value_parser().type_id() == ValueParser::string().type_id() {
            argument.value_parser(move |text: &str| in_tree(&from, text))
        } else {
            argument.value_parser(move |text: &str| {
                in_tree(&from, text).and_then(|path| VfsPathBuf::parse(path).map_err(|error| error.to_string()))
            })
        }
    })
}

/// Returns the path that a text names. A `/` at its end stays, as it names the directory to move into.
fn in_tree(from: &VfsPath, text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Ok(String::new());
    }
    let path = resolved(from, text).map_err(|error| error.to_string())?;
    Ok(if text.ends_with('/') && !path.is_root() { format!("{path}/") } else { path.to_string() })
}

fn is_given(matches: &ArgMatches, option: &str) -> bool {
    matches.value_source(option) == Some(ValueSource::CommandLine)
}

/// Returns the options of the shell with those that a command has itself.
fn merged(shell: &Global, own: &Global, matches: &ArgMatches) -> Global {
    let given = |option| is_given(matches, option);
    let pick = |option, own: &Option<String>, shell: &Option<String>| if given(option) { own.clone() } else { shell.clone() };
    let has_format = own.json || own.jsonl;
    let has_volume = own.quiet || own.verbose;
    Global {
        config: shell.config.clone(),
        data: shell.data.clone(),
        thread: pick("thread", &own.thread, &shell.thread),
        user: pick("user", &own.user, &shell.user),
        tenant: pick("tenant", &own.tenant, &shell.tenant),
        agent: pick("agent", &own.agent, &shell.agent),
        session: pick("session", &own.session, &shell.session),
        json: if has_format { own.json } else { shell.json },
        jsonl: if has_format { own.jsonl } else { shell.jsonl },
        no_pager: own.no_pager || shell.no_pager,
        quiet: if has_volume { own.quiet } else { shell.quiet },
        verbose: if has_volume { own.verbose } else { shell.verbose },
        color: if given("color") { own.color } else { shell.color },
    }
}

/// What the line editor asks while a line is edited.
struct Editing {
    runtime: Arc<Runtime>,
    context: Arc<Mutex<Context>>,
    global: Global,
    directory: Arc<Mutex<VfsPathBuf>>,
}

impl Editing {
    fn candidates(&self, words: Vec<OsString>) -> Vec<(String, String)> {
        let before = &words[..words.len().saturating_sub(1)];
        let matches = definition().ignore_errors(true).try_get_matches_from(before).ok();
        let own = matches.as_ref().and_then(|matches| Some((matches, Global::from_arg_matches(matches).ok()?)));
        let global = own.map_or_else(|| self.global.clone(), |(matches, own)| merged(&self.global, &own, matches));
        self.context.lock().set_global(Global { quiet: true, verbose: false, ..global });
        let when = crate::cli::args::When { at: matches.as_ref().and_then(complete::moment) };
        let path = matches.as_ref().and_then(complete::path);
        let place = Place { directory: Some(self.directory.lock().clone()), when, path };
        let (runtime, context) = (self.runtime.clone(), self.context.clone());
        let look: Look = Arc::new(move |subject, current| {
            let mut context = context.lock();
            let found = async { tokio::time::timeout(WAIT, look_up(&mut context, &place, subject, current)).await };
            runtime.block_on(found).ok().and_then(Result::ok).unwrap_or_default()
        });
        complete::candidates(with_completers(definition(), &look), words)
            .into_iter()
            .filter_map(|candidate| {
                let help = candidate.get_help().map(ToString::to_string).unwrap_or_default();
                Some((candidate.get_value().to_str()?.to_owned(), help.lines().next().unwrap_or_default().to_owned()))
            })
            .collect()
    }
}

impl Completer for Editing {
    type Candidate = Pair;

    fn complete(&self, line: &str, pos: usize, _: &rustyline::Context<'_>) -> rustyline::Result<(usize, Vec<Pair>)> {
        let partial = partial(&line[..pos], true);
        let words = std::iter::once("treehold".to_owned()).chain(partial.words).map(OsString::from).collect();
        let pairs = self.candidates(words).into_iter().map(|(value, help)| {
            let (open, close) = match partial.quote {
                Some(Quote::Single) => ("'", "'"),
                Some(Quote::Double) => ("\"", "\""),
                None => ("", ""),
            };
            let end = if value.ends_with('/') { String::new() } else { format!("{close} ") };
            let replacement = format!("{open}{}{end}", quoted(&value, partial.quote));
            let display = if help.is_empty() { value } else { format!("{value}  {help}") };
            Pair { display: shown(&display, true).into_owned(), replacement }
        });
        Ok((partial.start, pairs.collect()))
    }
}

impl Validator for Editing {
    /// A line with an open quotation goes on.
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(match commands(context.input()) {
            Err(Fault::Unfinished) => ValidationResult::Incomplete,
            _ => ValidationResult::Valid(None),
        })
    }
}

impl Hinter for Editing {
    type Hint = String;
}

impl Highlighter for Editing {}

impl Helper for Editing {}
