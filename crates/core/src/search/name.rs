//! Matches one segment of a glob against one name.

use super::pattern::{Token, literal};

/// The compiled alternatives of one segment.
#[derive(Debug, Clone)]
pub(super) struct NameMatcher {
    alternatives: Vec<Alternative>,
}

#[derive(Debug, Clone)]
struct Alternative {
    shape: Shape,
    /// Whether it starts with a literal dot.
    is_dotted: bool,
}

/// The shapes of nearly all patterns are compared as text; the rest are matched token by token.
#[derive(Debug, Clone)]
enum Shape {
    /// No wildcard.
    Exact(String),
    /// One `*`, with text before and after it.
    Around(String, String),
    Tokens {
        tokens: Vec<Token>,
        case_insensitive: bool,
    },
}

impl NameMatcher {
    /// Compiles the alternatives of a segment.
    pub(super) fn new(alternatives: Vec<Vec<Token>>, case_insensitive: bool) -> Self {
        let compile = |tokens: Vec<Token>| Alternative {
            is_dotted: tokens.first() == Some(&Token::Char('.')),
            shape: Shape::new(tokens, case_insensitive),
        };
        Self { alternatives: alternatives.into_iter().map(compile).collect() }
    }

    /// Returns whether a name matches. If it `is_hidden`, only alternatives that start with a literal dot can match.
    pub(super) fn is_match(&self, name: &str, is_hidden: bool) -> bool {
        self.alternatives.iter().any(|alternative| (alternative.is_dotted || !is_hidden) && alternative.shape.is_match(name))
    }

    /// Returns the only name that can match, if there is just one.
    pub(super) fn literal(&self) -> Option<&str> {
        match self.alternatives.as_slice() {
            [Alternative { shape: Shape::Exact(text), .. }] => Some(text),
            _ => None,
        }
    }
}

impl Shape {
    fn new(tokens: Vec<Token>, case_insensitive: bool) -> Self {
        let is_cased = |token: &Token| matches!(token, Token::Char(character) if !is_caseless(*character));
        if !case_insensitive || !tokens.iter().any(is_cased) {
            if let Some(text) = literal(&tokens) {
                return Self::Exact(text);
            }
            let mut parts = tokens.split(|token| *token == Token::Star);
            if let (Some(Some(before)), Some(Some(after)), None) = (parts.next().map(literal), parts.next().map(literal), parts.next()) {
                return Self::Around(before, after);
            }
        }
        Self::Tokens { tokens, case_insensitive }
    }

    fn is_match(&self, name: &str) -> bool {
        match self {
            Self::Exact(text) => name == text,
            Self::Around(before, after) => {
                name.len() >= before.len() + after.len() && name.starts_with(&**before) && name.ends_with(&**after)
            }
            Self::Tokens { tokens, case_insensitive } => tokens_match(tokens, name, *case_insensitive),
        }
    }
}

/// Matches from left to right. A `*` first matches nothing, then one more character whenever the rest fails. Only the last `*` is
/// ever revisited, so the number of steps is at most characters times tokens.
fn tokens_match(tokens: &[Token], name: &str, case_insensitive: bool) -> bool {
    let (mut token, mut at) = (0, 0);
    // The token after the last `*`, and the position in the name to try it from.
    let mut star: Option<(usize, usize)> = None;
    loop {
        let next = name[at..].chars().next();
        match (tokens.get(token), next) {
            (Some(Token::Star), _) => {
                token += 1;
                star = Some((token, at));
                continue;
            }
            (Some(wanted), Some(character)) if meets(wanted, character, case_insensitive) => {
                token += 1;
                at += character.len_utf8();
                continue;
            }
            (None, None) => return true,
            _ => {}
        }
        let Some((after, from)) = star else { return false };
        let Some(taken) = name[from..].chars().next() else { return false };
        (token, at) = (after, from + taken.len_utf8());
        star = Some((token, at));
    }
}

fn meets(token: &Token, character: char, case_insensitive: bool) -> bool {
    match token {
        Token::Char(literal) => *literal == character || (case_insensitive && folded(*literal) == folded(character)),
        Token::One => true,
        Token::Class { negated, ranges } => {
            let lists = |wanted: char| ranges.iter().any(|(from, to)| (*from..=*to).contains(&wanted));
            let listed = lists(character) || (case_insensitive && (lists(lower(character)) || lists(upper(character))));
            listed != *negated
        }
        // Runs of stars were handled above; the others do not occur within a name.
        Token::Star | Token::Deep | Token::Slash | Token::Braces(_) => false,
    }
}

/// Maps characters that differ only in case to one of them: simple folding, character by character. The dotless `ı` stays
/// distinct from `i`, as outside of Turkish.
fn folded(character: char) -> char {
    match character {
        'ı' => character,
        ascii if ascii.is_ascii() => ascii.to_ascii_lowercase(),
        other => lower(upper(other)),
    }
}

fn lower(character: char) -> char {
    single(character.to_lowercase()).unwrap_or(character)
}

fn upper(character: char) -> char {
    single(character.to_uppercase()).unwrap_or(character)
}

fn single(mut mapped: impl Iterator<Item = char>) -> Option<char> {
    mapped.next().filter(|_| mapped.next().is_none())
}

/// Returns true if a character certainly has only one case.
fn is_caseless(character: char) -> bool {
    character.is_ascii() && !character.is_ascii_alphabetic()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folded_unites_characters_that_differ_only_in_case() {
        for (one, other) in
            [('a', 'A'), ('é', 'É'), ('σ', 'ς'), ('Σ', 'ς'), ('s', 'ſ'), ('k', '\u{212a}'), ('ß', 'ẞ'), ('µ', 'μ'), ('ж', 'Ж')]
        {
            assert_eq!(folded(one), folded(other), "{one} {other}");
        }
        for (one, other) in [('ı', 'i'), ('a', 'b'), ('é', 'e'), ('İ', 'i')] {
            assert_ne!(folded(one), folded(other), "{one} {other}");
        }
    }
}
