//! The memory settings of a workspace.

use super::PromptOptions;
use treehold_core::path::VfsPathBuf;

/// Which files are memory, and how they are rendered.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemorySettings {
    /// The files, in prompt order. Default [`MemorySettings::SOURCES`].
    pub sources: Vec<VfsPathBuf>,
    /// The directories whose other files the prompt lists, newest first. Default [`MemorySettings::INDEX`]. Without sources nothing is
    /// listed.
    pub index: Vec<VfsPathBuf>,
    /// How they are rendered.
    pub prompt: PromptOptions,
}

impl Default for MemorySettings {
    fn default() -> Self {
        let path = |text: &&str| VfsPathBuf::parse(text).expect("the defaults are legal paths");
        Self {
            sources: Self::SOURCES.iter().map(path).collect(),
            index: Self::INDEX.iter().map(path).collect(),
            prompt: PromptOptions::new(),
        }
    }
}

impl MemorySettings {
    /// The default memory files.
    pub const SOURCES: [&str; 2] = ["/memories/AGENTS.md", "/workspace/AGENTS.md"];

    /// The directories that are listed by default.
    pub const INDEX: [&str; 1] = ["/memories"];

    /// Returns the default settings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the files.
    #[must_use]
    pub fn with_sources(mut self, sources: impl IntoIterator<Item = VfsPathBuf>) -> Self {
        self.sources = sources.into_iter().collect();
        self
    }

    /// Sets the directories whose other files are listed.
    #[must_use]
    pub fn with_index(mut self, directories: impl IntoIterator<Item = VfsPathBuf>) -> Self {
        self.index = directories.into_iter().collect();
        self
    }

    /// Sets how they are rendered.
    #[must_use]
    pub fn with_prompt(mut self, prompt: PromptOptions) -> Self {
        self.prompt = prompt;
        self
    }
}
