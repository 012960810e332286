//! The names of the files: one for each partition, readable, and the same on file systems that ignore case.
//!
//! A partition of one component, such as `acme`, is the file `acme.db`; that of a tenant and a user is `acme/ada.db`. Lowercase letters,
//! digits, `-` and `_` stand for themselves, every other byte is `%xx`. Only the name of the mark has a `%2d`. A component whose name would
//! be too long for SQLite is named by its hash, and a file beside it, `=HASH.name`, has the component.

use super::MARK;
use crate::open::sync_directory_of;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use treehold_core::error::{AtHost, Error, ErrorKind, Result};
use treehold_store::{Namespace, Partition};

/// The end of the name of each file.
const SUFFIX: &str = ".db";

/// The end of the name of a file that has the component of a hash.
const NAME_SUFFIX: &str = ".name";

/// The longest name of a component that is not replaced by its hash. SQLite opens paths of up to some 500 bytes.
const NAME_BYTES_MAX: usize = 90;

/// The longest path of a directory in which every partition has a file that SQLite opens.
pub(super) const ROOT_BYTES_MAX: usize = 300;
const _: () = assert!(ROOT_BYTES_MAX + 2 * (NAME_BYTES_MAX + 1) + SUFFIX.len() + "-journal".len() < 500);

/// What the name of a hash begins with.
const HASHED: char = '=';

/// Returns the path of a partition's file beneath the directory.
pub(super) fn file_of(root: &Path, partition: &Partition) -> PathBuf {
    let mut path = root.to_owned();
    path.extend(partition.components().map(|component| name_of(&component)));
    path.as_mut_os_string().push(SUFFIX);
    path
}

fn name_of(component: &str) -> String {
    if component == MARK {
        // The directory of this tenant would be in the place of the mark.
        return MARK.replacen('-', "%2d", 1);
    }
    let mut name = String::with_capacity(component.len());
    for byte in component.bytes() {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' => name.push(char::from(byte)),
            _ => name.push_str(&format!("%{byte:02x}")),
        }
    }
    if name.len() <= NAME_BYTES_MAX { name } else { format!("{HASHED}{}", blake3::hash(component.as_bytes()).to_hex()) }
}

/// A name in the directory.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Name {
    Component(String),
    Hashed,
}

impl Name {
    /// Returns the component that a name in a directory stands for.
    fn component(self, directory: &Path, name: &str) -> Result<String> {
        let path = match self {
            Self::Component(component) => return Ok(component),
            Self::Hashed => directory.join(format!("{name}{NAME_SUFFIX}")),
        };
        let damaged = |cause: io::Error| {
            let message = format!(
                "`{name}` in the directory of the store has lost the file beside it that says which partition it is; restore \
                 `{name}{NAME_SUFFIX}` from a backup"
            );
            Error::new(ErrorKind::Corrupt, message).with_source(AtHost::new(&path).with_cause(cause))
        };
        let component = std::fs::read_to_string(&path).map_err(damaged)?;
        if name_of(&component) == name { Ok(component) } else { Err(damaged(io::Error::other("it names another partition"))) }
    }
}

/// Makes the directory of a partition's file, and the files with the components of hashes, durably. Blocks.
pub(super) fn prepare(root: &Path, partition: &Partition) -> io::Result<()> {
    let mut directory = root.to_owned();
    let mut components = partition.components().peekable();
    while let Some(component) = components.next() {
        let name = name_of(&component);
        if name.starts_with(HASHED) {
            let path = directory.join(format!("{name}{NAME_SUFFIX}"));
            write_durably(&path, component.as_bytes())?;
        }
        if components.peek().is_some() {
            directory.push(name);
            create_directory(&directory)?;
        }
    }
    Ok(())
}

/// Creates a directory for its owner only, unless it exists. Its entry is durable afterwards, whoever made it.
pub(super) fn create_directory(directory: &Path) -> io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    match builder.create(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        created => created?,
    }
    sync_directory_of(directory)
}

/// Writes a short file in place: processes that write it together write the same.
pub(super) fn write_durably(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path)?;
    file.write_all(content)?;
    file.sync_all()?;
    sync_directory_of(path)
}

/// Reads the name of a component; `None` if none has it.
fn read_name(name: &str) -> Option<Name> {
    if name.starts_with(HASHED) {
        return Some(Name::Hashed);
    }
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let [first, after @ ..] = rest {
        rest = match (first, after) {
            (b'%', [high, low, after @ ..]) => {
                bytes.push(u8::from_str_radix(std::str::from_utf8(&[*high, *low]).ok()?, 16).ok()?);
                after
            }
            _ => {
                bytes.push(*first);
                after
            }
        };
    }
    let component = String::from_utf8(bytes).ok()?;
    (name_of(&component) == name && !component.is_empty()).then_some(Name::Component(component))
}

/// A file of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) path: PathBuf,
    pub(super) partition: Partition,
}

/// The files of one tenant.
#[derive(Debug)]
pub(super) struct Tenant {
    root: PathBuf,
    name: String,
    component: String,
    /// What the texts of the tenant's partitions begin with. Empty for what belongs to a tenant that is unknown.
    text: String,
    has_file: bool,
    has_directory: bool,
    /// Why files of the tenant are not listed.
    faults: Vec<Error>,
}

/// Lists the tenants in the order of their partitions. What cannot be listed of one is a fault of it; what belongs to an unknown tenant
/// comes first. Blocks.
///
/// # Errors
/// [`Unavailable`](ErrorKind::Unavailable) without the directory, and errors of listing it.
pub(super) fn tenants(root: &Path) -> Result<Vec<Tenant>> {
    let mut found: BTreeMap<String, Tenant> = BTreeMap::new();
    let entries = entries(root).map_err(|cause| unlisted("the directory of the store", root, cause))?;
    if !entries.iter().any(|(name, _)| name == MARK) {
        let message = "the directory of the store is not there; put it back, or mount its disk";
        return Err(Error::new(ErrorKind::Unavailable, message).with_source(AtHost::new(root)));
    }
    for (name, is_directory) in entries {
        let (is_directory, unknown) = match is_directory {
            // It is in the place of a file.
            Ok(true) if name.ends_with(SUFFIX) => (false, Some(io::ErrorKind::IsADirectory.into())),
            Ok(is_directory) => (is_directory, None),
            Err(cause) => (!name.ends_with(SUFFIX), Some(cause)),
        };
        let plain = if is_directory { Some(name.as_str()) } else { name.strip_suffix(SUFFIX) };
        let Some((plain, named)) = plain.and_then(|plain| Some((plain, read_name(plain)?))) else { continue };
        let (tenant, nameless) = match named.component(root, plain) {
            Ok(tenant) => (tenant, None),
            Err(error) => (String::new(), Some(error)),
        };
        let text = match Partition::new([&tenant]) {
            Ok(partition) => tenant_of(partition.encoded()).to_owned(),
            Err(_) if nameless.is_some() => String::new(),
            Err(_) => continue,
        };
        let listed = found.entry(text.clone()).or_insert_with(|| Tenant {
            root: root.to_owned(),
            name: plain.to_owned(),
            component: tenant.clone(),
            text,
            has_file: false,
            has_directory: false,
            faults: Vec::new(),
        });
        match (nameless, unknown) {
            (Some(error), _) => listed.faults.push(error),
            (None, Some(cause)) => listed.faults.push(unlisted(&of_tenant(&tenant, is_directory), &root.join(&name), cause)),
            (None, None) => {
                listed.has_directory |= is_directory;
                listed.has_file |= !is_directory;
            }
        }
    }
    Ok(found.into_values().collect())
}

/// Returns what the texts of all partitions of a partition's tenant begin with.
pub(super) fn tenant_of(text: &str) -> &str {
    text.find('/').map_or(text, |end| &text[..=end])
}

impl Tenant {
    /// Returns what the texts of the tenant's partitions begin with: empty for what belongs to an unknown tenant.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Lists the tenant's files in the order of their partitions, and why others are not listed. Blocks.
    pub(super) fn files(self) -> (Vec<Found>, Vec<Error>) {
        let Self { root, name, component, has_file, has_directory, mut faults, .. } = self;
        let mut files = Vec::new();
        if has_file && let Ok(partition) = Partition::new([&component]) {
            files.push(Found { path: root.join(format!("{name}{SUFFIX}")), partition });
        }
        let directory = root.join(&name);
        let entries = if has_directory { entries(&directory) } else { Ok(Vec::new()) };
        let entries = entries.unwrap_or_else(|cause| {
            faults.push(unlisted(&of_tenant(&component, true), &directory, cause));
            Vec::new()
        });
        for (name, is_directory) in entries {
            let Some(plain) = name.strip_suffix(SUFFIX) else { continue };
            let Some(named) = read_name(plain) else { continue };
            let unlisted = |cause| unlisted(&format!("the file `{name}` of the tenant `{component}`"), &directory.join(&name), cause);
            let user = match is_directory {
                Ok(false) => named.component(&directory, plain),
                Ok(true) => Err(unlisted(io::ErrorKind::IsADirectory.into())),
                Err(cause) => Err(unlisted(cause)),
            };
            match user {
                Ok(user) => {
                    let partition = Partition::new([&component, &user]).ok();
                    files.extend(partition.map(|partition| Found { path: directory.join(&name), partition }));
                }
                Err(error) => faults.push(error),
            }
        }
        files.sort_by(|one, other| one.partition.cmp(&other.partition));
        (files, faults)
    }
}

/// Returns what to call the file or the directory of a tenant in a message.
fn of_tenant(tenant: &str, is_directory: bool) -> String {
    format!("the {} of the tenant `{tenant}`", if is_directory { "directory" } else { "file" })
}

/// Makes the error for a part of the store that cannot be listed.
fn unlisted(what: &str, path: &Path, cause: io::Error) -> Error {
    let kind = if cause.kind() == io::ErrorKind::PermissionDenied { ErrorKind::PermissionDenied } else { ErrorKind::Unavailable };
    Error::new(kind, format!("{what} cannot be listed; check its permissions and its disk"))
        .with_source(AtHost::new(path).with_cause(cause))
}

/// Lists the entries of a directory that have UTF-8 names, with whether they are directories. A missing directory has none.
fn entries(directory: &Path) -> io::Result<Vec<(String, io::Result<bool>)>> {
    let listed = match std::fs::read_dir(directory) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        listed => listed?,
    };
    let mut entries = Vec::new();
    for entry in listed {
        let entry = entry?;
        if let Some(name) = entry.file_name().to_str() {
            // The directory of a tenant may be a link to another disk.
            let is_directory = entry.file_type().and_then(|kind| {
                let is_link = kind.is_symlink();
                if is_link { Ok(std::fs::metadata(entry.path())?.is_dir()) } else { Ok(kind.is_dir()) }
            });
            entries.push((name.to_owned(), is_directory));
        }
    }
    Ok(entries)
}

/// Finds files that end as those of partitions do and are named like none: one error for each, up to `max`. Skips what cannot be listed.
/// Blocks.
pub(super) fn strays(root: &Path, max: usize) -> Vec<Error> {
    let mut found = Vec::new();
    let mut directories = vec![(root.to_owned(), true)];
    while let Some((directory, is_named)) = directories.pop() {
        for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
            let (name, path) = (entry.file_name(), entry.path());
            let name = name.to_string_lossy();
            if std::fs::metadata(&path).is_ok_and(|entry| entry.is_dir()) {
                if directory == root {
                    directories.push((path, is_component(&name)));
                }
            } else if name.strip_suffix(SUFFIX).is_some_and(|plain| !is_named || !is_component(plain)) {
                if found.len() == max {
                    return found;
                }
                found.push(stray(root, &path));
            }
        }
    }
    found
}

/// Returns whether a name is that of a component.
fn is_component(name: &str) -> bool {
    match read_name(name) {
        Some(Name::Component(component)) => Partition::new([component]).is_ok(),
        Some(Name::Hashed) => true,
        None => false,
    }
}

fn stray(root: &Path, path: &Path) -> Error {
    let name = path.strip_prefix(root).unwrap_or(path).to_string_lossy();
    let message = format!(
        "the file `{}` in the directory of the store is named like no partition, so its rows are not found; give it the name of its \
         partition, or move it elsewhere",
        name.escape_debug()
    );
    Error::new(ErrorKind::Corrupt, message).with_source(AtHost::new(path))
}

/// Returns whether a namespace found in a file belongs there.
pub(super) fn belongs(root: &Path, path: &Path, namespace: &Namespace) -> bool {
    file_of(root, &namespace.partition()) == path
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_partition_has_a_file_name_of_its_own_that_is_safe_and_tells_it() {
        let long = "x".repeat(900);
        let parts = ["acme", "Acme", "a/b", "..", ".", "a%2f", "é", "con", "a.db", "-", " ", "=a", "a\u{1}", &long, "日本", MARK];
        let mut files = BTreeSet::new();
        let root = Path::new("/r");
        for tenant in parts {
            for owner in [vec![tenant], vec![tenant, "ada"], vec!["acme", tenant]] {
                let Ok(partition) = Partition::new(&owner) else { continue };
                let file = file_of(root, &partition);
                let text = file.to_str().expect("UTF-8").to_owned();
                assert!(file.starts_with(root) && file.strip_prefix(root).expect("beneath").components().count() == owner.len(), "{text}");
                assert!(file.iter().all(|part| part.len() < 100 && part != ".."), "{text}");
                assert_eq!(text, text.to_lowercase(), "the same where case does not count");
                assert!(!file.starts_with(root.join(MARK)), "the mark is in its place");
                files.insert((text, partition));
            }
        }
        let names: BTreeSet<_> = files.iter().map(|(file, _)| file).collect();
        let partitions: BTreeSet<_> = files.iter().map(|(_, partition)| partition).collect();
        assert_eq!((names.len(), partitions.len()), (files.len(), files.len()));
        for name in ["acme", "%41cme", "a%2fb", "%2e%2e", "treehold%2dpartitions"] {
            let Some(Name::Component(component)) = read_name(name) else { panic!("{name}") };
            assert_eq!(name_of(&component), name);
        }
        for none in ["", "Acme", "%41%", "%4", "%4A", "%61", "a.b", "%ff", "a b", MARK] {
            assert_eq!(read_name(none), None, "{none}");
        }
    }

    #[test]
    fn files_are_listed_in_the_order_of_their_partitions() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut expected = Vec::new();
        let long = "long".repeat(60);
        let owners = [
            &["a"][..],
            &["a", "!"],
            &["a", "b"],
            &["a-"],
            &["a-", "c"],
            &["A", "b"],
            &["b", "é"],
            &["a", "B"],
            &[&long, &long],
            &["b", &long],
        ];
        for owner in owners {
            let partition = Partition::new(owner).expect("a legal partition");
            let file = file_of(directory.path(), &partition);
            prepare(directory.path(), &partition).expect("made");
            for name in [file.clone(), file.with_extension("db-wal")] {
                std::fs::write(name, "").expect("written");
            }
            expected.push(partition);
        }
        assert!(tenants(directory.path()).is_err(), "without its mark, it is not the store");
        for name in ["notes.txt", MARK] {
            std::fs::write(directory.path().join(name), "").expect("written");
        }
        expected.sort();
        let mut listed = Vec::new();
        for tenant in tenants(directory.path()).expect("listed") {
            let (files, faults) = tenant.files();
            assert!(faults.is_empty(), "{faults:?}");
            listed.extend(files.into_iter().map(|found| found.partition));
        }
        assert_eq!(listed, expected);
    }
}
