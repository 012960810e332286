//! `store export` and `store import`: everything into one archive, and out of one.

use super::StoreName;
use crate::context::{Context, unread};
use crate::exit::{Failure, Outcome};
use crate::output::{counted, stdin_is_terminal, stdout_is_terminal};
use clap::Args;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use stratafs::store::{ImportOptions, export, import};
use stratafs::{Error, ErrorKind};

/// Write a whole store to an archive
///
/// A tar of JSON lines and contents, which other programs can read too. To have it of one moment while others write, export a
/// snapshot: `stratafs store snapshot`.
#[derive(Debug, Args)]
pub(crate) struct Export {
    /// File to make; `-` or none writes to standard output
    file: Option<String>,
    #[command(flatten)]
    store: StoreName,
}

/// Make a store of an archive
///
/// Versions, times and ends of life are as they were. The store is empty before.
#[derive(Debug, Args)]
pub(crate) struct Import {
    /// Archive that `export` wrote; `-` or none reads standard input
    file: Option<String>,
    /// Import over what the store holds: rows that both have are replaced, the others are left
    #[arg(long)]
    onto: bool,
    #[command(flatten)]
    store: StoreName,
}

impl Export {
    pub(super) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let store = self.store.open(context).await?;
        let file = self.file.as_deref().filter(|file| *file != "-");
        let output: Box<dyn Write + Send> = match file {
            Some(file) => Box::new(Synced(create(file)?)),
            None if stdout_is_terminal() => {
                return Err(Error::invalid_argument("an archive is not for a terminal; name a file, or pipe it on").into());
            }
            None => Box::new(io::stdout()),
        };
        let progress = context.progress("exporting");
        let exported = export(&*store, io::BufWriter::with_capacity(1 << 20, output), |at| {
            progress.share(at.rows, at.rows_total.unwrap_or(at.rows), format_args!("exporting: {} rows, {} bytes", at.rows, at.bytes));
        });
        let report = match (exported.await, file) {
            (Ok(report), _) => report,
            (Err(error), file) => {
                if let Some(file) = file {
                    // What is there is no archive, and the next export would be refused by it.
                    let _ = std::fs::remove_file(file);
                }
                return Err(error.into());
            }
        };
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
        let input: Box<dyn io::Read + Send> = match self.file.as_deref().filter(|file| *file != "-") {
            Some(file) => Box::new(File::open(file).map_err(|error| unread(file, error))?),
            None if stdin_is_terminal() => {
                return Err(Error::invalid_argument("no archive is given; name a file, or pipe it in").into());
            }
            None => Box::new(io::stdin()),
        };
        let store = self.store.open_or_create(context).await?;
        let progress = context.progress("importing");
        let options = ImportOptions::new().with_onto(self.onto);
        let report = import(&*store, input, &options, |at| progress.tell(at.rows, "rows")).await?;
        drop(progress);
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

/// Makes a file that is not there, for its owner alone: a store holds what not everybody may read.
fn create(file: &str) -> Result<File, Error> {
    let mut options = File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(Path::new(file)).map_err(|error| {
        let (kind, message) = match error.kind() {
            io::ErrorKind::AlreadyExists => (ErrorKind::AlreadyExists, format!("`{file}` exists already; name another file, or remove it")),
            io::ErrorKind::NotFound => (ErrorKind::NotFound, format!("the directory of `{file}` does not exist; create it")),
            io::ErrorKind::PermissionDenied => (ErrorKind::PermissionDenied, format!("`{file}` may not be written; name another file")),
            _ => (ErrorKind::Unavailable, format!("`{file}` cannot be written: {error}")),
        };
        Error::new(kind, message).with_source(error)
    })
}

/// A file that is on the disk once it is flushed.
struct Synced(File);

impl Write for Synced {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.sync_all()
    }
}
