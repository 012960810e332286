//! Finds a run of lines within others, in one pass.

/// Finds the first occurrence of `pattern` in `lines` with the Knuth-Morris-Pratt algorithm: one pass, whatever repeats.
///
/// An empty pattern does not occur.
pub fn find_run<T: PartialEq>(lines: impl IntoIterator<Item = T>, pattern: &[T]) -> Option<usize> {
    let borders = borders(pattern);
    let mut matched = 0;
    for (index, line) in lines.into_iter().enumerate() {
        while matched > 0 && pattern[matched] != line {
            matched = borders[matched - 1];
        }
        matched += usize::from(*pattern.get(matched)? == line);
        if matched == pattern.len() {
            return Some(index + 1 - matched);
        }
    }
    None
}

/// Returns for each prefix of the pattern the length of its longest proper prefix that is also a suffix.
fn borders<T: PartialEq>(pattern: &[T]) -> Vec<usize> {
    let mut borders = vec![0; pattern.len()];
    let mut length = 0;
    for index in 1..pattern.len() {
        while length > 0 && pattern[length] != pattern[index] {
            length = borders[length - 1];
        }
        length += usize::from(pattern[length] == pattern[index]);
        borders[index] = length;
    }
    borders
}
