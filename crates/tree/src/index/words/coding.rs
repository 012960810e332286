//! Encoding of integers, as varints, and of sorted words, prefix-compressed.

use super::super::files::shared_bytes;

/// Appends an integer as a little-endian base-128 varint (LEB128).
pub(super) fn put_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Reads an integer from the front, or returns `None` if the bytes do not start with one that fits 64 bits.
pub(super) fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let part = u64::from(byte & 0x7F);
        if part << shift >> shift != part {
            return None;
        }
        number |= part << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// Reads an integer that fits 32 bits.
pub(super) fn take_small(bytes: &mut &[u8]) -> Option<u32> {
    take_number(bytes).and_then(|number| u32::try_from(number).ok())
}

/// Takes `count` bytes from the front.
pub(super) fn take_bytes<'b>(bytes: &mut &'b [u8], count: usize) -> Option<&'b [u8]> {
    let (taken, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(taken)
}

/// Appends a word, given the word before it.
pub(super) fn put_word(bytes: &mut Vec<u8>, before: &str, word: &str) {
    let shared = shared_bytes(before, word);
    put_number(bytes, shared as u64);
    put_number(bytes, (word.len() - shared) as u64);
    bytes.extend_from_slice(&word.as_bytes()[shared..]);
}

/// Reads a word into `word`, which holds the word before it. Unless it is the first, it must sort after that one.
pub(super) fn take_word(bytes: &mut &[u8], word: &mut String, is_first: bool) -> Option<()> {
    let shared = usize::try_from(take_number(bytes)?).ok()?;
    let count = usize::try_from(take_number(bytes)?).ok()?;
    let rest = std::str::from_utf8(take_bytes(bytes, count)?).ok()?;
    if !is_first && word.get(shared..)? >= rest {
        return None;
    }
    word.get(..shared)?;
    word.truncate(shared);
    word.push_str(rest);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn integers_round_trip(numbers in proptest::collection::vec(any::<u64>().prop_map(|number| number >> (number % 64)), 0..20)) {
            let mut bytes = Vec::new();
            numbers.iter().for_each(|number| put_number(&mut bytes, *number));
            let mut rest = &bytes[..];
            for number in numbers {
                prop_assert_eq!(take_number(&mut rest), Some(number));
            }
            prop_assert_eq!((take_number(&mut rest), rest.len()), (None, 0));
        }

        #[test]
        fn words_round_trip(words in proptest::collection::btree_set("[abé日]{0,5}", 0..20)) {
            let (mut bytes, mut before) = (Vec::new(), "");
            for word in &words {
                put_word(&mut bytes, before, word);
                before = word;
            }
            let (mut rest, mut word) = (&bytes[..], String::new());
            for (number, expected) in words.iter().enumerate() {
                take_word(&mut rest, &mut word, number == 0).expect("a word");
                prop_assert_eq!(&word, expected);
            }
            prop_assert!(rest.is_empty());
        }

        #[test]
        fn each_decoding_of_arbitrary_bytes_consumes_some(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let (mut rest, mut word) = (&bytes[..], "é".to_owned());
            loop {
                let (left, before) = (rest.len(), word.clone());
                if take_word(&mut rest, &mut word, false).is_none() {
                    break;
                }
                prop_assert!(rest.len() < left && word > before, "{:?} behind {:?}", word, before);
            }
            let mut rest = &bytes[..];
            loop {
                let left = rest.len();
                if take_number(&mut rest).is_none() {
                    break;
                }
                prop_assert!(rest.len() < left);
            }
        }
    }

    #[test]
    fn integer_over_64_bits_is_rejected() {
        assert_eq!(take_number(&mut &[0xFF; 9][..]), None);
        assert_eq!(take_number(&mut &[0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x02][..]), None);
        assert_eq!(take_number(&mut &[0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01][..]), Some(u64::MAX));
        assert_eq!(take_small(&mut &[0xFF, 0xFF, 0xFF, 0xFF, 0x1F][..]), None);
    }
}
