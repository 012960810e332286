//! The estimate of tokens.
//!
//! An ASCII character counts a quarter of a token, any other character one token. The sum of a message is rounded up, and the
//! frame of a message adds [`MESSAGE_TOKENS`]. An image counts [`IMAGE_TOKENS`]. The arguments of tool calls count as text.

pub use treehold_core::tokens::{IMAGE_TOKENS, MESSAGE_TOKENS, estimate, estimate_bytes};
pub(crate) use treehold_core::tokens::{of_quarters, quarters};

#[cfg(test)]
mod tests {
    use crate::message::Message;

    #[test]
    fn messages_count_their_texts_images_and_arguments() {
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
