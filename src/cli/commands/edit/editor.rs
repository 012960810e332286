//! The user's editor, and the private copy that it edits.

use crate::cli::pager::{outlive_interrupts, shell};
use crate::{Error, ErrorKind, VfsPath};
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// The longest name of a file that every common filesystem takes.
const NAME_BYTES_MAX: usize = 255;

/// A copy of a file in a directory of its own, which only its owner can enter. Dropping it removes both.
#[derive(Debug)]
pub(super) struct Draft {
    directory: PathBuf,
    file: PathBuf,
    is_kept: bool,
}

impl Draft {
    /// Creates a copy with the name of `path`, so that the editor knows the kind of file. Without content, the file does not exist yet.
    pub(super) fn create(path: &VfsPath, content: Option<&[u8]>) -> Result<Self, Error> {
        let directory = std::env::temp_dir().join(format!("treehold-edit-{}", uuid::Uuid::new_v4().simple()));
        let mut builder = DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(&directory).map_err(|cause| failed("created", &directory, cause))?;
        let name = if path.name().len() <= NAME_BYTES_MAX { path.name() } else { "edited" };
        let draft = Self { file: directory.join(name), directory, is_kept: false };
        if let Some(content) = content {
            draft.fill(content).map_err(|cause| failed("written", &draft.file, cause))?;
        }
        Ok(draft)
    }

    fn fill(&self, content: &[u8]) -> io::Result<()> {
        let mut options = File::options();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        options.open(&self.file)?.write_all(content)
    }

    /// Runs the editor until it ends.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) if it cannot be started or fails, as editors do whose user wants nothing to be written.
    pub(super) fn edit(&self) -> Result<(), Error> {
        let line = editor_line();
        // The terminal sends an interrupt to the editor and to this process, and only the editor has a use for it.
        outlive_interrupts();
        let status = editor_command(&line, &self.file).status().map_err(|cause| {
            let message = format!("the editor `{line}` cannot be started: {cause}; set TREEHOLD_EDITOR");
            Error::new(ErrorKind::Unavailable, message).with_source(cause)
        })?;
        if !status.success() {
            let message = format!("the editor `{line}` failed with {status}; nothing was written");
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        Ok(())
    }

    /// Reads what was edited; `None` if there is no file. Content of more than `bytes_max` bytes stays in the file.
    pub(super) fn content(&mut self, bytes_max: u64) -> Result<Option<Vec<u8>>, Error> {
        let mut content = Vec::new();
        let read = File::open(&self.file).and_then(|file| file.take(bytes_max + 1).read_to_end(&mut content));
        match read {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(cause) => {
                self.is_kept = true;
                Err(failed("read", &self.file, cause))
            }
            Ok(_) if content.len() as u64 > bytes_max => {
                self.is_kept = true;
                let file = self.file.display();
                let message = format!("the edited text has more than {bytes_max} bytes and was not written; it is kept in `{file}`");
                Err(Error::new(ErrorKind::TooLarge, message))
            }
            Ok(_) => Ok(Some(content)),
        }
    }

    /// Keeps the file, and returns where it is.
    pub(super) fn keep(mut self) -> PathBuf {
        self.is_kept = true;
        self.file.clone()
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.is_kept {
            // Editors leave backups beside the file. What cannot be removed is in a directory for temporary files.
            let _ = std::fs::remove_dir_all(&self.directory);
        }
    }
}

/// Returns the editor that the environment names, as a line for the shell: `TREEHOLD_EDITOR`, else `VISUAL`, else `EDITOR`, else `vi`.
fn editor_line() -> String {
    let named = ["TREEHOLD_EDITOR", "VISUAL", "EDITOR"].into_iter().filter_map(|name| std::env::var(name).ok());
    named.into_iter().find(|line| !line.trim().is_empty()).unwrap_or_else(|| "vi".to_owned())
}

/// Returns the command that runs a line of the user's shell with a file as its last argument.
#[cfg(unix)]
fn editor_command(line: &str, file: &Path) -> std::process::Command {
    let mut command = shell(&format!("{line} \"$@\""));
    command.arg("treehold").arg(file);
    command
}

/// Returns the command that runs a line of the user's shell with a file as its last argument.
#[cfg(not(unix))]
fn editor_command(line: &str, file: &Path) -> std::process::Command {
    shell(&format!("{line} \"{}\"", file.display()))
}

fn failed(verb: &str, path: &Path, cause: io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("`{}` cannot be {verb}: {cause}", path.display())).with_source(cause)
}
