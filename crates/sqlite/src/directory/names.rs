//! The names of the files: one for each partition, readable, and the same on file systems that ignore case.
//!
//! A partition of one component, such as `acme`, is the file `acme.db`; that of a tenant and a user is `acme/ada.db`. Lowercase letters,
//! digits, `-` and `_` stand for themselves, every other byte is `%xx`. A component whose name would be too long is named by its hash; what
//! it is called is then read from the rows, which costs an opening of the file whenever it is listed.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use treehold_core::error::{AtHost, Error, ErrorKind, Result};
use treehold_store::{Namespace, Partition};

/// The end of the name of each file.
const SUFFIX: &str = ".db";

/// The longest name of a component that is not replaced by its hash. File systems allow 255 bytes with every suffix.
const NAME_BYTES_MAX: usize = 200;

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
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) path: PathBuf,
    pub(super) partition: Partition,
}

/// Reads the partition of the rows in a file; `None` if there are none.
pub(super) type ReadPartition<'r> = &'r dyn Fn(&Path) -> Result<Option<Partition>>;

/// The files of one tenant.
#[derive(Debug)]
pub(super) struct Tenant {
    root: PathBuf,
    name: String,
    component: String,
    /// What the texts of the tenant's partitions begin with.
    text: String,
    has_file: bool,
    has_directory: bool,
}

/// Lists the tenants in the order of their partitions. Blocks.
pub(super) fn tenants(root: &Path, read: ReadPartition<'_>) -> Result<Vec<Tenant>> {
    let mut found: BTreeMap<String, Tenant> = BTreeMap::new();
    for (name, is_directory) in entries(root)? {
        let plain = if is_directory { Some(name.as_str()) } else { name.strip_suffix(SUFFIX) };
        let Some((plain, named)) = plain.and_then(|plain| Some((plain, read_name(plain)?))) else { continue };
        let component = match named {
            Name::Component(component) => Some(component),
            Name::Hashed if is_directory => tenant_in(&root.join(&name), read)?,
            Name::Hashed => read(&root.join(&name))?.as_ref().and_then(first_component),
        };
        let Some((component, tenant)) = component.and_then(|component| Some((Partition::new([&component]).ok()?, component))) else {
            continue;
        };
        let text = tenant_of(component.encoded()).to_owned();
        let listed = found.entry(text.clone()).or_insert_with(|| Tenant {
            root: root.to_owned(),
            name: plain.to_owned(),
            component: tenant,
            text,
            has_file: false,
            has_directory: false,
        });
        listed.has_directory |= is_directory;
        listed.has_file |= !is_directory;
    }
    Ok(found.into_values().collect())
}

/// Lists all files, in no order. Blocks.
pub(super) fn all(root: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for (name, is_directory) in entries(root)? {
        let path = root.join(&name);
        let is_file = |name: &str| name.strip_suffix(SUFFIX).is_some_and(|name| read_name(name).is_some());
        match is_directory {
            true if read_name(&name).is_some() => {
                let beneath = entries(&path)?.into_iter().filter(|(name, is_directory)| !is_directory && is_file(name));
                files.extend(beneath.map(|(name, _)| path.join(name)));
            }
            false if is_file(&name) => files.push(path),
            _ => {}
        }
    }
    Ok(files)
}

/// Reads which tenant the files of a directory belong to.
fn tenant_in(directory: &Path, read: ReadPartition<'_>) -> Result<Option<String>> {
    for (name, is_directory) in entries(directory)? {
        if !is_directory
            && name.ends_with(SUFFIX)
            && let Some(partition) = read(&directory.join(name))?
        {
            return Ok(first_component(&partition));
        }
    }
    Ok(None)
}

fn first_component(partition: &Partition) -> Option<String> {
    partition.components().next().map(Into::into)
}

/// Returns what the texts of all partitions of a partition's tenant begin with.
pub(super) fn tenant_of(text: &str) -> &str {
    text.find('/').map_or(text, |end| &text[..=end])
}

impl Tenant {
    /// Returns what the texts of the tenant's partitions begin with.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Lists the tenant's files in the order of their partitions. Blocks.
    pub(super) fn files(&self, read: ReadPartition<'_>) -> Result<Vec<Found>> {
        let mut files = Vec::new();
        if self.has_file
            && let Ok(partition) = Partition::new([&self.component])
        {
            files.push(Found { path: self.root.join(format!("{}{SUFFIX}", self.name)), partition });
        }
        if self.has_directory {
            let directory = self.root.join(&self.name);
            for (name, is_directory) in entries(&directory)? {
                let Some(named) = name.strip_suffix(SUFFIX).filter(|_| !is_directory).and_then(read_name) else { continue };
                let path = directory.join(&name);
                let partition = match named {
                    Name::Component(user) => Partition::new([&self.component, &user]).ok(),
                    Name::Hashed => read(&path)?,
                };
                files.extend(partition.map(|partition| Found { path, partition }));
            }
        }
        files.sort_by(|one, other| one.partition.cmp(&other.partition));
        Ok(files)
    }
}

/// Lists the entries of a directory that have UTF-8 names, with whether they are directories. A missing directory has none.
fn entries(directory: &Path) -> Result<Vec<(String, bool)>> {
    let failed = |cause: io::Error| {
        let kind = if cause.kind() == io::ErrorKind::PermissionDenied { ErrorKind::PermissionDenied } else { ErrorKind::Unavailable };
        Error::new(kind, "the directory of the store cannot be listed; check its permissions and its disk")
            .with_source(AtHost::new(directory).with_cause(cause))
    };
    let listed = match std::fs::read_dir(directory) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        listed => listed.map_err(failed)?,
    };
    let mut entries = Vec::new();
    for entry in listed {
        let entry = entry.map_err(failed)?;
        if let Some(name) = entry.file_name().to_str() {
            entries.push((name.to_owned(), entry.file_type().map_err(failed)?.is_dir()));
        }
    }
    Ok(entries)
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
        let parts = ["acme", "Acme", "a/b", "..", ".", "a%2f", "é", "con", "a.db", "-", " ", "=a", "a\u{1}", &long, "日本"];
        let mut files = BTreeSet::new();
        let root = Path::new("/r");
        for tenant in parts {
            for owner in [vec![tenant], vec![tenant, "ada"], vec!["acme", tenant]] {
                let Ok(partition) = Partition::new(&owner) else { continue };
                let file = file_of(root, &partition);
                let text = file.to_str().expect("UTF-8").to_owned();
                assert!(file.starts_with(root) && file.strip_prefix(root).expect("beneath").components().count() == owner.len(), "{text}");
                assert!(file.iter().all(|part| part.len() < 250 && part != ".."), "{text}");
                assert_eq!(text, text.to_lowercase(), "the same where case does not count");
                files.insert((text, partition));
            }
        }
        let names: BTreeSet<_> = files.iter().map(|(file, _)| file).collect();
        let partitions: BTreeSet<_> = files.iter().map(|(_, partition)| partition).collect();
        assert_eq!((names.len(), partitions.len()), (files.len(), files.len()));
        for name in ["acme", "%41cme", "a%2fb", "%2e%2e"] {
            let Some(Name::Component(component)) = read_name(name) else { panic!("{name}") };
            assert_eq!(name_of(&component), name);
        }
        for none in ["", "Acme", "%41%", "%4", "%4A", "%61", "a.b", "%ff", "a b"] {
            assert_eq!(read_name(none), None, "{none}");
        }
    }

    #[test]
    fn files_are_listed_in_the_order_of_their_partitions() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut expected = Vec::new();
        for owner in [&["a"][..], &["a", "!"], &["a", "b"], &["a-"], &["a-", "c"], &["A", "b"], &["b", "é"], &["a", "B"]] {
            let partition = Partition::new(owner).expect("a legal partition");
            let file = file_of(directory.path(), &partition);
            std::fs::create_dir_all(file.parent().expect("a parent")).expect("made");
            for name in [file.clone(), file.with_extension("db-wal")] {
                std::fs::write(name, "").expect("written");
            }
            expected.push(partition);
        }
        std::fs::write(directory.path().join("notes.txt"), "").expect("written");
        expected.sort();
        let unread = |path: &Path| panic!("{} tells its partition", path.display());
        let tenants = tenants(directory.path(), &unread).expect("listed");
        let listed = tenants.iter().flat_map(|tenant| tenant.files(&unread).expect("listed"));
        assert_eq!(listed.map(|found| found.partition).collect::<Vec<_>>(), expected);
    }
}
