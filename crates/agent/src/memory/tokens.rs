//! Estimates token counts.

/// The number of ASCII characters that count as one token.
const ASCII_PER_TOKEN: usize = 4;

/// Estimates the number of tokens in a text without a tokenizer: four ASCII characters, or one other character, count as one
/// token.
///
/// For English and code the estimate differs from the count of common tokenizers by up to a few tenths. Other scripts are overestimated
/// rather than underestimated.
///
/// ```
/// use treehold_agent::memory::estimate_tokens;
///
/// assert_eq!(estimate_tokens("The colour is green."), 5);
/// assert_eq!(estimate_tokens("色は緑"), 3);
/// ```
pub fn estimate_tokens(text: &str) -> usize {
    let ascii = text.bytes().filter(u8::is_ascii).count();
    let others = if ascii == text.len() { 0 } else { text.chars().filter(|letter| !letter.is_ascii()).count() };
    ascii.div_ceil(ASCII_PER_TOKEN) + others
}

/// Returns the longest prefix of a text with at most `tokens_max` tokens, cut at a line end if there is one.
pub(super) fn start(text: &str, tokens_max: usize) -> &str {
    let (mut ascii, mut others) = (0_usize, 0);
    let over = text.char_indices().find(|(_, letter)| {
        if letter.is_ascii() {
            ascii += 1;
        } else {
            others += 1;
        }
        ascii.div_ceil(ASCII_PER_TOKEN) + others > tokens_max
    });
    let Some((end, _)) = over else { return text };
    match text[..end].rfind('\n') {
        Some(line) => &text[..=line],
        None => &text[..end],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn estimate_counts_ascii_by_four_and_others_singly() {
        for (text, tokens) in [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("é", 1), ("aé", 2), ("abcdé", 2)] {
            assert_eq!(estimate_tokens(text), tokens, "{text}");
        }
    }

    #[test]
    fn start_cuts_at_line_end() {
        assert_eq!(start("abcd\nefgh\n", 2), "abcd\n");
        assert_eq!(start("abcd\nefgh\n", 3), "abcd\nefgh\n");
        assert_eq!(start("abcdefgh", 1), "abcd");
        assert_eq!(start("éé", 1), "é");
        assert_eq!(start("abc", 0), "");
    }

    proptest! {
        #[test]
        fn start_stays_within_limit(text in "[aé\n]{0,60}", tokens_max in 0..30_usize) {
            let start = start(&text, tokens_max);
            prop_assert!(text.starts_with(start));
            prop_assert!(estimate_tokens(start) <= tokens_max);
            prop_assert!(start == text || estimate_tokens(&text) > tokens_max);
        }
    }
}
