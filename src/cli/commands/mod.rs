//! The commands: one file each, or one directory per family.

use crate::Error;
use crate::cli::args::Command;
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};

pub(crate) mod cat;
pub(crate) mod checkpoint;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod diff;
pub(crate) mod doctor;
pub(crate) mod edit;
pub(crate) mod find;
pub(crate) mod glob;
pub(crate) mod grep;
#[cfg(unix)]
pub(crate) mod import;
pub(crate) mod log;
pub(crate) mod ls;
#[cfg(feature = "mcp")]
pub(crate) mod mcp;
pub(crate) mod memory;
#[cfg(unix)]
pub(crate) mod mirror;
pub(crate) mod mkdir;
pub(crate) mod mv;
pub(crate) mod overlay;
mod overlay_patch;
pub(crate) mod patch;
pub(crate) mod restore;
pub(crate) mod rm;
pub(crate) mod run;
pub(crate) mod search;
#[cfg(feature = "serve")]
pub(crate) mod serve;
pub(crate) mod session;
pub(crate) mod shell;
pub(crate) mod show;
pub(crate) mod stat;
pub(crate) mod state;
pub(crate) mod status;
pub(crate) mod store;
pub(crate) mod sweep;
#[cfg(unix)]
pub(crate) mod sync;
pub(crate) mod thread;
pub(crate) mod timeline;
#[cfg(feature = "serve")]
pub(crate) mod token;
pub(crate) mod tools;
pub(crate) mod trace;
pub(crate) mod tree;
pub(crate) mod undo;
pub(crate) mod write;

/// Returns whether a command prints what may be longer than a screen, for reading. Others print what is copied or only a few lines.
fn is_paged(command: &Command) -> bool {
    match command {
        Command::Ls(_) | Command::Tree(_) | Command::Find(_) | Command::Glob(_) | Command::Grep(_) | Command::Search(_) => true,
        Command::Diff(_) | Command::Log(_) | Command::Show(_) | Command::Timeline(_) => true,
        Command::Checkpoint(command) => {
            matches!(command, checkpoint::Checkpoint::Ls(_) | checkpoint::Checkpoint::Show(_) | checkpoint::Checkpoint::Diff(_))
        }
        Command::Thread(command) => matches!(command, thread::Thread::Ls),
        Command::Session(command) => {
            matches!(command, session::Session::Ls(_) | session::Session::Messages(_) | session::Session::Turns(_))
        }
        Command::Trace(command) => matches!(command, trace::Trace::Ls(_) | trace::Trace::Show(_) | trace::Trace::Messages(_)),
        Command::Overlay(command) => matches!(command, overlay::Overlay::Diff(_)),
        Command::Memory(_) => true,
        Command::Store(command) => matches!(command, store::Store::Ls(_) | store::Store::Search(_)),
        Command::Config(command) => matches!(command, config::Config::Show { .. }),
        _ => false,
    }
}

/// Runs a command.
pub(crate) async fn run(context: &mut Context, command: Command) -> Result<Outcome, Failure> {
    if is_paged(&command) {
        context.out.page();
    }
    match command {
        Command::Status(status) => status.run(context).await,
        Command::Ls(ls) => ls.run(context).await,
        Command::Tree(tree) => tree.run(context).await,
        Command::Cat(cat) => cat.run(context).await,
        Command::Head(head) => head.run(context).await,
        Command::Stat(stat) => stat.run(context).await,
        Command::Find(find) => find.run(context).await,
        Command::Glob(glob) => glob.run(context).await,
        Command::Grep(grep) => grep.run(context).await,
        Command::Search(search) => search.run(context).await,
        Command::Diff(diff) => diff.run(context).await,
        Command::Log(log) => log.run(context).await,
        Command::Show(show) => show.run(context).await,
        Command::Write(write) => write.run(context).await,
        Command::Append(append) => append.run(context).await,
        Command::Edit(edit) => edit.run(context).await,
        Command::Patch(patch) => patch.run(context).await,
        Command::Rm(rm) => rm.run(context).await,
        Command::Mv(mv) => mv.run(context).await,
        Command::Cp(cp) => cp.run(context).await,
        Command::Mkdir(mkdir) => mkdir.run(context).await,
        Command::Restore(restore) => restore.run(context).await,
        Command::Undo(undo) => undo.run(context).await,
        Command::Timeline(timeline) => timeline.run(context).await,
        Command::Watch(watch) => watch.run(context).await,
        #[cfg(unix)]
        Command::Import(import) => import.run(context).await,
        #[cfg(unix)]
        Command::Export(export) => export.run(context).await,
        #[cfg(unix)]
        Command::Mirror(mirror) => mirror.run(context).await,
        #[cfg(unix)]
        Command::Sync(sync) => sync.run(context).await,
        Command::Run(run) => run.run(context).await,
        // The shell runs commands, and not the other way around.
        Command::Shell(_) => Err(Error::invalid_argument("this is a shell already").into()),
        Command::Tools(tools) => tools.run(context),
        #[cfg(feature = "mcp")]
        Command::Mcp(mcp) => mcp.run(context).await,
        #[cfg(feature = "serve")]
        Command::Serve(serve) => serve.run(context).await,
        #[cfg(feature = "serve")]
        Command::Token(token) => token.run(context).await,
        Command::Checkpoint(checkpoint) => checkpoint.run(context).await,
        Command::Thread(thread) => thread.run(context).await,
        Command::Session(session) => session.run(context).await,
        Command::State(state) => state.run(context).await,
        Command::Trace(trace) => trace.run(context).await,
        Command::Overlay(overlay) => overlay.run(context).await,
        Command::Memory(memory) => memory.run(context).await,
        Command::Store(store) => store.run(context).await,
        Command::Sweep(sweep) => sweep.run(context).await,
        Command::Config(config) => config.run(context),
        Command::Doctor(doctor) => doctor.run(context).await,
        Command::Completions(completions) => completions.run(context),
        Command::Man(man) => man.run(context),
    }
}
