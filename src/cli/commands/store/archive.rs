//! `store export` and `store import`: a whole store as one archive, and back.

use super::{Included, StoreName};
use crate::cli::context::{Context, check_stdin, unread};
use crate::cli::exit::{Failure, Outcome};
use crate::cli::output::{counted, stdin_is_terminal, stdout_is_terminal};
use crate::cli::signal;
use crate::store::unfinished::{UnfinishedFile, give_name};
use crate::store::{ExportOptions, ImportOptions, export, import};
use crate::{Error, ErrorKind};
use clap::Args;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// Export a whole store to an archive
///
/// The archive is a tar file of JSON lines and contents that other programs can read. Tokens, and answers kept for repeated requests, are
/// left out unless `--include` names them. For a consistent archive while others write, export a snapshot (see `treehold store snapshot`).
#[derive(Debug, Args)]
pub(crate) struct Export {
    /// File to create, or `-` for standard output [default: -]
    file: Option<String>,
    #[command(flatten)]
    included: Included,
    #[command(flatten)]
    store: StoreName,
}

/// Import an archive into a store
///
/// Keeps versions, times and expiry. The store must be empty unless `--onto` is given. Checks the whole archive before it writes anything.
/// Tokens, and answers kept for repeated requests, are left out unless `--include` names them, because the author of the archive would
/// otherwise decide who gets access.
#[derive(Debug, Args)]
pub(crate) struct Import {
    /// Archive to import, or `-` for standard input [default: -]
    file: Option<String>,
    /// Import over existing rows: replace rows that both have, keep the others
    #[arg(long)]
    onto: bool,
    #[command(flatten)]
    included: Included,
    #[command(flatten)]
    store: StoreName,
}

impl Export {
    pub(super) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let store = self.store.open(context).await?;
        let file = self.file.as_deref().filter(|file| *file != "-");
        signal::watched().await;
        let (unfinished, output) = file.map(create).transpose()?.unzip();
        let output: Box<dyn Write + Send> = match output {
            Some(output) => Box::new(Synced(output)),
            None if stdout_is_terminal() => {
                return Err(Error::invalid_argument(
                    "an archive cannot be written to a terminal; name a file, or redirect the \
                    output",
                )
                .into());
            }
            None => Box::new(io::stdout()),
        };
        let progress = context.progress("exporting");
        let options = self.included.all().fold(ExportOptions::new(), ExportOptions::with_include);
        let exported = export(&*store, io::BufWriter::with_capacity(1 << 20, output), &options, |at| {
            progress.share(at.rows, at.rows_total.unwrap_or(at.rows), format_args!("exporting: {} rows, {} bytes", at.rows, at.bytes));
        });
        // If this fails or is interrupted, dropping the unfinished file removes it.
        let report = exported.await?;
        if let Some((unfinished, file)) = unfinished.zip(file) {
            give_name(unfinished.path(), Path::new(file), false).map_err(|error| not_written(file, error))?;
        }
        drop(progress);
        let exported = format!("{} exported, digest {}", counted(report.rows as usize, "row", "rows"), report.digest);
        match file {
            None => context.out.detail(exported),
            Some(_) if context.out.is_text() => context.out.line(exported)?,
            Some(_) => context.out.json(&report)?,
        }
        Ok(Outcome::Done)
    }
}

impl Import {
    pub(super) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let input = match self.file.as_deref().filter(|file| *file != "-") {
            // A named pipe is also a stream.
            Some(file) => rewindable(File::open(file).map_err(|error| unread(file, error))?)?,
            None if stdin_is_terminal() => {
                return Err(Error::invalid_argument("no archive is given; name a file, or pipe it in").into());
            }
            None => {
                check_stdin()?;
                spooled(io::stdin().lock())?
            }
        };
        let store = self.store.open_or_create(context).await?;
        let progress = context.progress("importing");
        let options = self.included.all().fold(ImportOptions::new().with_onto(self.onto), ImportOptions::with_include);
        let report = import(&*store, input, &options, |at| progress.tell(at.rows, "rows")).await?;
        drop(progress);
        for (name, rows) in &report.left_out {
            let rows = counted(*rows as usize, "row", "rows");
            context.out.notice(format_args!("{rows} of `{name}` left out; if you trust the origin of the archive, add `--include {name}`"));
        }
        match context.out.is_text() {
            true => {
                let imported = counted(report.rows as usize, "row", "rows");
                context.out.line(format_args!("{imported} imported, digest {}", report.digest))?;
            }
            false => context.out.json(&report)?,
        }
        Ok(Outcome::Done)
    }
}

/// Returns a regular file as is, and a copy of anything else, so that it can be read twice.
fn rewindable(file: File) -> Result<File, Error> {
    match file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        true => Ok(file),
        false => spooled(file),
    }
}

/// Copies a stream to an unnamed file, since an archive is read twice: to check it and to import it.
fn spooled(mut input: impl io::Read) -> Result<File, Error> {
    let path = std::env::temp_dir().join(format!("treehold-import-{}", uuid::Uuid::now_v7().simple()));
    let mut options = File::options();
    options.read(true).write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let unkept = |error: io::Error| {
        let message = "the archive cannot be stored in the directory for temporary files, to check it; make room there, or name it as a \
            file";
        Error::new(ErrorKind::Unavailable, message).with_source(error)
    };
    let mut file = options.open(&path).map_err(unkept)?;
    // If an open file cannot be unlinked, the name stays until the directory is cleaned.
    let _ = std::fs::remove_file(&path);
    io::copy(&mut input, &mut file).map_err(unkept)?;
    io::Seek::rewind(&mut file).map_err(unkept)?;
    Ok(file)
}

/// Creates an unfinished file for its owner only, since a store contains data that not everybody may read.
fn create(file: &str) -> Result<(UnfinishedFile, File), Error> {
    // Otherwise this would show when the archive is complete.
    if Path::new(file).symlink_metadata().is_ok() {
        return Err(not_written(file, io::ErrorKind::AlreadyExists.into()));
    }
    UnfinishedFile::create(Path::new(file)).map_err(|error| not_written(file, error))
}

fn not_written(file: &str, error: io::Error) -> Error {
    let (kind, message) = match error.kind() {
        io::ErrorKind::AlreadyExists => (ErrorKind::AlreadyExists, format!("`{file}` exists already; name another file, or remove it")),
        io::ErrorKind::NotFound => (ErrorKind::NotFound, format!("the directory of `{file}` does not exist; create it")),
        io::ErrorKind::PermissionDenied => {
            (ErrorKind::PermissionDenied, format!("permission to write `{file}` is denied; name another file"))
        }
        _ => (ErrorKind::Unavailable, format!("`{file}` cannot be written: {error}")),
    };
    Error::new(kind, message).with_source(error)
}

/// A file whose flush writes it to disk.
struct Synced(File);

impl Write for Synced {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.sync_all()
    }
}
