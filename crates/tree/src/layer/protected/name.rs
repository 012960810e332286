//! Names as file systems compare them: pure.
//!
//! A path can be found under more spellings than the one it was written with. Hosts that ignore case treat `.GIT` as `.git`. HFS+ ignores
//! zero-width characters. NTFS ignores trailing dots and spaces, cuts off the name of a stream, and finds a long name by its short one,
//! `GIT~1`. The file system of a directory is unknown, so all of these always apply.

use unicode_normalization::UnicodeNormalization;

/// A name folded as the most lenient file system compares it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Folded(String);

impl Folded {
    pub(super) fn new(name: &str) -> Self {
        // A colon separates the name of a stream of the file, or its type.
        let name = name.split_once(':').map_or(name, |(file, _)| if file.is_empty() { name } else { file });
        let folded: String = name
            .nfkd()
            .filter(|character| !is_left_out(*character))
            .flat_map(char::to_uppercase)
            .flat_map(char::to_lowercase)
            .collect::<String>()
            .nfc()
            .collect();
        let trimmed = folded.trim_end_matches(['.', ' ']);
        Self(if trimmed.is_empty() { folded } else { trimmed.to_owned() })
    }

    /// Returns a name that no path contains.
    pub(super) fn unnamable() -> Self {
        Self(String::new())
    }

    /// Returns whether the name may match a pattern, by itself or by its short name.
    pub(super) fn is_of(&self, pattern: &Pattern) -> bool {
        matches(&pattern.name.0, &self.0) || pattern.short.as_ref().is_some_and(|short| is_short(&self.0, short))
    }
}

/// One name of an entry, in which `*` stands for any part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pattern {
    name: Folded,
    /// The start and the extension of its short names; `None` if the name itself is short enough.
    short: Option<(String, String)>,
}

impl Pattern {
    pub(super) fn new(name: &str) -> Self {
        let folded = Folded::new(name);
        let short = short(&folded.0);
        Self { name: folded, short }
    }
}

/// Returns whether HFS+ ignores a character in comparisons: it has no width, or controls directionality.
fn is_left_out(character: char) -> bool {
    matches!(character,
        '\u{00ad}' | '\u{034f}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2064}'
        | '\u{2066}'..='\u{206f}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}')
}

/// Returns the parts of the short names that NTFS generates for a long one: up to six characters of its start, and three of its extension.
/// It does so for names that start with a dot, contain several, or are long.
fn short(name: &str) -> Option<(String, String)> {
    if name.contains('*') {
        return None;
    }
    let (base, extension) = name.trim_start_matches('.').rsplit_once('.').unwrap_or((name.trim_start_matches('.'), ""));
    let kept = |text: &str, most: usize| {
        text.chars().filter(|letter| letter.is_ascii_alphanumeric() || *letter == '_' || *letter == '-').take(most).collect::<String>()
    };
    let is_long = name.starts_with('.') || base.len() > 8 || extension.len() > 3 || base.contains('.');
    is_long.then(|| (kept(base, 6), kept(extension, 3)))
}

/// Returns whether a name is a short one: the start of the long one, `~` and a number, and the extension.
fn is_short(name: &str, (start, extension): &(String, String)) -> bool {
    let (base, own) = name.rsplit_once('.').unwrap_or((name, ""));
    let Some((before, number)) = base.rsplit_once('~') else { return false };
    let is_number = !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit());
    // If many names are alike, a hash replaces all but the first two characters.
    let is_start = !before.is_empty()
        && (start.starts_with(before)
            || (before.len() == 6 && before.get(..2) == start.get(..2) && before[2..].bytes().all(|digit| digit.is_ascii_hexdigit())));
    is_number && is_start && own == extension
}

/// Returns whether a name matches a pattern in which `*` stands for any part.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        let Some(at) = name.find(part) else { return false };
        name = &name[at + part.len()..];
    }
    name.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protected_name_is_found_in_every_file_system_spelling() {
        let of = |name: &str, pattern: &str| Folded::new(name).is_of(&Pattern::new(pattern));
        for name in [
            ".git",
            ".GIT",
            ".Git",
            ".git.",
            ".git ",
            ".git. .",
            ".git::$INDEX_ALLOCATION",
            ".g\u{200c}it",
            "\u{feff}.git",
            "GIT~1",
            "git~2",
            "GI7EBA~1",
            "\u{ff0e}git",
            ".g\u{131}t",
        ] {
            assert!(of(name, ".git"), "{name:?}");
        }
        for name in [".gitignore", "git", ".github", ".gitx", "x.git", "gitx~1", ".git~", "git~1x", "git~"] {
            assert!(!of(name, ".git"), "{name:?}");
        }
        for (name, pattern, is_one) in [
            ("settings.local.json", "settings*.json", true),
            ("settings.json", "settings*.json", true),
            ("SETTINGS.JSON", "settings*.json", true),
            ("settings.json5", "settings*.json", false),
            ("SETTIN~1.JSO", "settings.json", true),
            ("\u{17f}ettings.j\u{17f}on", "settings.json", true),
            (".hu\u{17f}\u{212a}y", ".husky", true),
            ("ENVRC~1", ".envrc", true),
            ("CARGO~1", ".cargo", true),
            ("a.code-workspace", "*.code-workspace", true),
            (".code-workspace.bak", "*.code-workspace", false),
            (":x", "x", false),
        ] {
            assert_eq!(of(name, pattern), is_one, "{name:?} as {pattern}");
        }
    }
}
