//! How many tokens a text takes, about.

/// How many characters of ASCII count as one token.
const ASCII_PER_TOKEN: usize = 4;

/// Estimates how many tokens a text takes, without a tokenizer: four characters of ASCII are one, any other character is one by itself.
///
/// English and code come out within some tenths of what usual tokenizers count; other scripts are counted rather too high than too low.
///
/// ```
/// use stratafs::memory::estimate_tokens;
///
/// assert_eq!(estimate_tokens("The colour is green."), 5);
/// assert_eq!(estimate_tokens("色は緑"), 3);
/// ```
pub fn estimate_tokens(text: &str) -> usize {
    let ascii = text.bytes().filter(u8::is_ascii).count();
    let others = if ascii == text.len() { 0 } else { text.chars().filter(|letter| !letter.is_ascii()).count() };
    ascii.div_ceil(ASCII_PER_TOKEN) + others
}

/// Returns the start of a text that takes at most so many tokens, whole lines where there is one.
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
    fn estimates() {
        for (text, tokens) in [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("é", 1), ("aé", 2), ("abcdé", 2)] {
            assert_eq!(estimate_tokens(text), tokens, "{text}");
        }
    }

    #[test]
    fn starts_are_cut_at_lines() {
        assert_eq!(start("abcd\nefgh\n", 2), "abcd\n");
        assert_eq!(start("abcd\nefgh\n", 3), "abcd\nefgh\n");
        assert_eq!(start("abcdefgh", 1), "abcd");
        assert_eq!(start("éé", 1), "é");
        assert_eq!(start("abc", 0), "");
    }

    proptest! {
        #[test]
        fn a_start_takes_no_more_than_it_may(text in "[aé\n]{0,60}", tokens_max in 0..30_usize) {
            let start = start(&text, tokens_max);
            prop_assert!(text.starts_with(start));
            prop_assert!(estimate_tokens(start) <= tokens_max);
            prop_assert!(start == text || estimate_tokens(&text) > tokens_max);
        }
    }
}
