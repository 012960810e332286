//! What a workspace takes for memory.

use super::PromptOptions;
use crate::path::VfsPathBuf;

/// Which files are memory, and how many tokens they may take in a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemorySettings {
    /// The files, in the order they are told. Default [`MemorySettings::SOURCES`].
    pub sources: Vec<VfsPathBuf>,
    /// How they are put into words.
    pub prompt: PromptOptions,
}

impl Default for MemorySettings {
    fn default() -> Self {
        let path = |text: &&str| VfsPathBuf::parse(text).expect("the default sources are legal paths");
        Self { sources: Self::SOURCES.iter().map(path).collect(), prompt: PromptOptions::new() }
    }
}

impl MemorySettings {
    /// The files that are memory unless something else is set.
    pub const SOURCES: [&str; 2] = ["/memories/AGENTS.md", "/workspace/AGENTS.md"];

    /// Takes the default files and the default words.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the files.
    #[must_use]
    pub fn with_sources(mut self, sources: impl IntoIterator<Item = VfsPathBuf>) -> Self {
        self.sources = sources.into_iter().collect();
        self
    }

    /// Sets how they are put into words.
    #[must_use]
    pub fn with_prompt(mut self, prompt: PromptOptions) -> Self {
        self.prompt = prompt;
        self
    }
}
