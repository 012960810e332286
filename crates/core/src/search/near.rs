//! Words that are spelled nearly alike.

use crate::work;

/// The fewest letters of a word that may be spelled differently in one place, and in two.
const LETTERS_MIN: [usize; 2] = [4, 8];

/// A word as it is spelled, to be compared with others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Spelled {
    text: String,
    letters: usize,
    distance_max: usize,
}

impl Spelled {
    /// Takes a word in lower case. Returns `None` if no other word is spelled nearly like it: it is short, or has a digit or a sign.
    pub(super) fn new(text: &str) -> Option<Self> {
        let letters = text.chars().count();
        let distance_max = LETTERS_MIN.iter().filter(|fewest| letters >= **fewest).count();
        (distance_max > 0 && text.chars().all(char::is_alphabetic)).then(|| Self { text: text.to_owned(), letters, distance_max })
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Returns in how many places another word in lower case is spelled differently, if they are few enough: letters that are missing,
    /// added or different, and neighbours that are exchanged.
    pub(super) fn distance(&self, other: &str) -> Option<usize> {
        let letters = other.chars().count();
        if letters.abs_diff(self.letters) > self.distance_max || !other.chars().all(char::is_alphabetic) {
            return None;
        }
        work::advance(self.text.len() * other.len());
        Some(strsim::osa_distance(&self.text, other)).filter(|distance| *distance <= self.distance_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_few_differences_are_near() {
        let table: [(&str, &str, Option<usize>); 12] = [
            ("pagnation", "pagination", Some(1)),
            ("pagniation", "pagination", Some(1)),
            ("kuberntes", "kubernetes", Some(1)),
            ("kubrntes", "kubernetes", Some(2)),
            ("kbrntes", "kubernetes", None),
            ("pyhton", "python", Some(1)),
            ("pyhtno", "python", None),
            ("deploy", "depoly", Some(1)),
            ("code", "mode", Some(1)),
            ("café", "cafe", Some(1)),
            ("postgres", "postgres2", None),
            ("deploy", "de-ploy", None),
        ];
        for (word, other, distance) in table {
            assert_eq!(Spelled::new(word).expect("long enough").distance(other), distance, "{word} {other}");
        }
    }

    #[test]
    fn short_words_and_numbers_are_exact() {
        for word in ["car", "v2", "2026", "abc1", "東京", "user_id", ""] {
            assert_eq!(Spelled::new(word), None, "{word}");
        }
    }
}
