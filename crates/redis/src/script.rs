//! The Lua scripts. Each runs atomically; the server serves nobody else meanwhile.

use ::redis::{Cmd, Script as Source, cmd};
use std::borrow::Cow;
use std::sync::LazyLock;

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

/// The keys of a store, all in one slot of a cluster.
#[derive(Debug, Clone)]
pub(super) struct Keys([String; 4]);

impl Keys {
    /// Makes the keys of a store.
    pub(super) fn new(prefix: &str) -> Self {
        Self(["rows", "keys", "expiries", "changes"].map(|part| format!("{{{prefix}}}:{part}")))
    }

    /// The hash of records and bodies, and of the store's own fields.
    pub(super) fn rows(&self) -> &str {
        &self.0[0]
    }

    /// The namespaces, ordered by the version of their last change.
    pub(super) fn changes(&self) -> &str {
        &self.0[3]
    }

    /// Returns all keys.
    pub(super) fn all(&self) -> &[String] {
        &self.0
    }
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
