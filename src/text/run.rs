//! Runs of lines within others, found in one pass.

/// Finds the first place where `pattern` stands in `lines` (Knuth, Morris, Pratt): one pass, whatever repeats.
///
/// An empty pattern stands nowhere.
pub(crate) fn find_run<T: PartialEq>(lines: impl IntoIterator<Item = T>, pattern: &[T]) -> Option<usize> {
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

/// Returns for each start of the pattern the length of the longest proper one that it also ends with.
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
