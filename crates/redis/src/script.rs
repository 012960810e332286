//! The Lua scripts. Each runs atomically; the server serves nobody else meanwhile.

use ::redis::{Cmd, Script as Source, cmd};
use std::borrow::Cow;
use std::sync::LazyLock;
use treehold_store::Partition;

/// A script: its source and the hash under which the server caches it.
pub(super) struct Script {
    text: &'static str,
    hash: LazyLock<String>,
    /// How many of the store's keys it takes, in the order rows, keys, expiries, changes.
    keys: usize,
    /// Whether it writes.
    pub(super) writes: bool,
}

macro_rules! script {
    ($name:ident, $file:literal, $keys:literal, $writes:literal, $what:literal) => {
        #[doc = $what]
        pub(super) static $name: Script = Script {
            text: include_str!($file),
            hash: LazyLock::new(|| Source::new(include_str!($file)).get_hash().to_owned()),
            keys: $keys,
            writes: $writes,
        };
    };
}

script!(OPEN, "open.lua", 4, true, "Creates the store, or checks the existing one.");
script!(COMMIT, "commit.lua", 4, true, "Applies a batch.");
script!(PART, "part.lua", 1, false, "Reads a row with a part of its body.");
script!(SCAN, "scan.lua", 2, false, "Reads a page of rows.");
script!(NAMESPACES, "namespaces.lua", 2, false, "Reads a page of namespaces.");
script!(SWEEP, "sweep.lua", 3, true, "Removes expired rows.");
script!(STATS, "stats.lua", 2, false, "Counts some rows.");
script!(MOVE, "move.lua", 4, true, "Moves some rows of a former layout.");
script!(MOVED, "moved.lua", 4, true, "Ends a step from a former layout to the next.");
script!(TEXTS, "texts.lua", 2, false, "Lists the texts of namespaces of any layout.");
script!(CHECK, "check.lua", 3, false, "Checks some rows for damage.");

/// The keys of a store, or of a partition of a store in a cluster, all in one slot.
#[derive(Debug, Clone)]
pub(super) struct Keys {
    names: [String; 4],
    slot: u16,
    schema: &'static str,
}

/// The version of the data format.
pub(super) const SCHEMA: &str = "5";

/// How many slots a cluster has.
const SLOTS: u16 = 16_384;

impl Keys {
    /// Makes the keys of a store on one server.
    pub(super) fn new(prefix: &str) -> Self {
        Self::tagged(prefix)
    }

    /// Makes the keys of a partition of a store in a cluster; none for the list of the partitions.
    pub(super) fn of_partition(prefix: &str, partition: Option<&Partition>) -> Self {
        // No prefix has a percent sign, so the first one ends it.
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~' | b'/');
        let mut tag = format!("{prefix}%");
        for byte in partition.map(ToString::to_string).unwrap_or_default().bytes() {
            match is_plain(byte) {
                true => tag.push(char::from(byte)),
                false => tag.push_str(&format!("%{byte:02X}")),
            }
        }
        Self::tagged(&tag)
    }

    fn tagged(tag: &str) -> Self {
        let names = ["rows", "keys", "expiries", "changes"].map(|part| format!("{{{tag}}}:{part}"));
        Self { names, slot: crc16(tag.as_bytes()) % SLOTS, schema: SCHEMA }
    }

    /// Returns the same keys for a store of another schema.
    pub(super) fn with_schema(mut self, schema: &'static str) -> Self {
        self.schema = schema;
        self
    }

    /// The schema that the scripts expect.
    pub(super) fn schema(&self) -> &'static str {
        self.schema
    }

    /// The slot of a cluster that the keys are in.
    pub(super) fn slot(&self) -> u16 {
        self.slot
    }

    /// The hash of records and bodies, and of the store's own fields.
    pub(super) fn rows(&self) -> &str {
        &self.names[0]
    }

    /// The namespaces, ordered by the version of their last change.
    pub(super) fn changes(&self) -> &str {
        &self.names[3]
    }

    /// Returns all keys.
    pub(super) fn all(&self) -> &[String] {
        &self.names
    }
}

/// Computes CRC-16/XMODEM, by which a cluster assigns keys to slots.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc: u16, _| if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 })
    })
}

/// A script with its arguments.
pub(super) struct Invocation<'a> {
    pub(super) script: &'static Script,
    arguments: Vec<Cow<'a, [u8]>>,
    keys: &'a Keys,
}

impl Script {
    /// Starts an invocation.
    pub(super) fn on<'a>(&'static self, keys: &'a Keys) -> Invocation<'a> {
        Invocation { script: self, arguments: Vec::new(), keys }
    }

    /// Returns the command that uploads the script.
    pub(super) fn load(&self) -> Cmd {
        let mut load = cmd("SCRIPT");
        load.arg("LOAD").arg(self.text);
        load
    }
}

impl<'a> Invocation<'a> {
    /// Adds an argument.
    pub(super) fn arg(mut self, argument: impl Into<Vec<u8>>) -> Self {
        self.push(Cow::Owned(argument.into()));
        self
    }

    /// Adds a number as text.
    pub(super) fn number(self, number: impl ToString) -> Self {
        self.arg(number.to_string())
    }

    /// Adds an argument.
    pub(super) fn push(&mut self, argument: impl Into<Cow<'a, [u8]>>) {
        self.arguments.push(argument.into());
    }

    /// Returns how many arguments there are.
    pub(super) fn len(&self) -> usize {
        self.arguments.len()
    }

    /// Returns the command that names the script by its hash. A server that does not have the script cached rejects it.
    pub(super) fn by_hash(&self) -> Cmd {
        self.command("EVALSHA", &self.script.hash)
    }

    /// Returns the command that contains the script's source.
    pub(super) fn by_text(&self) -> Cmd {
        self.command("EVAL", self.script.text)
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        let keys = &self.keys.all()[..self.script.keys];
        let size = self.arguments.iter().map(|argument| argument.len()).sum::<usize>()
            + script.len()
            + keys.iter().map(String::len).sum::<usize>();
        let mut command = Cmd::with_capacity(self.arguments.len() + keys.len() + 3, size + 16);
        command.arg(name).arg(script).arg(keys.len()).arg(keys);
        for argument in &self.arguments {
            command.arg(&argument[..]);
        }
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn slot_is_the_one_that_clusters_compute() {
        // From the specification of Redis Cluster.
        assert_eq!(crc16(b"123456789"), 0x31C3);
        for (tag, slot) in [("foo", 12_182), ("bar", 5_061), ("hello", 866)] {
            assert_eq!(Keys::new(tag).slot(), slot, "{tag}");
        }
    }

    #[test]
    fn partitions_of_all_stores_have_keys_of_their_own() {
        let mut names = BTreeSet::new();
        let mut count = 0;
        for prefix in ["a", "a:", "a:b", "a/b", "a:b/c", "b/c"] {
            for owner in [&["b"][..], &["b", "c"], &["b/c"], &["b:", "c"], &["}", "x"], &["{x}"], &["é"], &["%"], &[" "], &[":"]] {
                let partition = Partition::new(owner).expect("a legal partition");
                let keys = Keys::of_partition(prefix, Some(&partition));
                assert_eq!(keys.rows().matches('}').count(), 1, "one tag: {}", keys.rows());
                names.insert(keys.rows().to_owned());
                count += 1;
            }
            names.insert(Keys::of_partition(prefix, None).rows().to_owned());
            names.insert(Keys::new(prefix).rows().to_owned());
            count += 2;
        }
        assert_eq!(names.len(), count);
    }
}
