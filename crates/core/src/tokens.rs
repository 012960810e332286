//! The estimate of tokens.
//!
//! An ASCII character counts a quarter of a token, any other character one token. The sum of a message is rounded up, and the
//! frame of a message adds [`MESSAGE_TOKENS`]. An image counts [`IMAGE_TOKENS`]. The arguments of tool calls count as text.

/// The tokens of a message's frame.
pub const MESSAGE_TOKENS: u64 = 4;

/// The tokens of an image.
pub const IMAGE_TOKENS: u64 = 1_500;

/// Estimates the tokens of a text.
pub fn estimate(text: &str) -> u64 {
    of_quarters(quarters(text))
}

/// Estimates the tokens of a file by its size: a third of its bytes, rounded up.
pub const fn estimate_bytes(size_bytes: u64) -> u64 {
    size_bytes.div_ceil(3)
}

/// Estimates a text in quarters of a token.
pub fn quarters(text: &str) -> u64 {
    text.chars().map(|character| if character.is_ascii() { 1 } else { 4 }).sum()
}

/// Rounds quarters of a token up to tokens.
pub const fn of_quarters(quarters: u64) -> u64 {
    quarters.div_ceil(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ascii_characters_count_a_quarter_and_others_a_whole_token() {
        for (text, tokens) in [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("日本", 2), ("日a", 2), ("é", 1)] {
            assert_eq!(estimate(text), tokens, "{text}");
        }
        assert_eq!([0, 1, 3, 4].map(estimate_bytes), [0, 1, 1, 2]);
    }
}
