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
pub(crate) fn quarters(text: &str) -> u64 {
    text.chars().map(|character| if character.is_ascii() { 1 } else { 4 }).sum()
}

pub(crate) const fn of_quarters(quarters: u64) -> u64 {
    quarters.div_ceil(4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Message;

    #[test]
    fn estimate_counts_quarters_images_and_arguments() {
        for (text, tokens) in [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("日本", 2), ("日a", 2), ("é", 1)] {
            assert_eq!(estimate(text), tokens, "{text}");
        }
        for (message, tokens) in [
            (r#"{"role":"user","content":"abcd"}"#, 5),
            (r#"{"role":"user","content":[{"type":"text","text":"ab"},{"type":"text","text":"cd"}]}"#, 5),
            (r#"{"role":"user","content":[{"type":"image","data":"AAAA"},{"type":"text","text":"a"}]}"#, 1_505),
            (r#"{"role":"assistant","content":[{"type":"thinking","thinking":"abcdefgh"}]}"#, 6),
            (r#"{"role":"assistant","content":[{"type":"toolCall","id":"1","name":"n","arguments":{"a":123}}]}"#, 7),
            (r#"{"role":"assistant","content":[{"type":"toolCall","id":"1","name":"n"}]}"#, 4),
        ] {
            assert_eq!(Message::parse(message).expect("valid").tokens(), tokens, "{message}");
        }
    }
}
