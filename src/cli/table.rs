//! Lists for people: columns with headings that fit the width of the terminal.

use crate::cli::exit::Failure;
use crate::cli::output::{Output, Style};
use crate::cli::terminal;
use std::fmt::Write as _;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The columns between two columns.
const GAP: usize = 2;

/// The least width of a column that is cut to fit.
const CUT_WIDTH_MIN: usize = 8;

/// A column.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    heading: &'static str,
    is_right: bool,
    /// Columns of a higher rank are left out first; a column of rank 0 always stays.
    rank: u8,
    is_cut: bool,
    /// The width below which optional columns are left out before its cells are cut further.
    cut_width_min: usize,
}

impl Column {
    /// Creates a column that is always shown in full.
    pub(crate) const fn new(heading: &'static str) -> Self {
        Self { heading, is_right: false, rank: 0, is_cut: false, cut_width_min: CUT_WIDTH_MIN }
    }

    /// Aligns its cells to the right.
    pub(crate) const fn right(self) -> Self {
        Self { is_right: true, ..self }
    }

    /// Leaves the column out of narrow terminals, those of a higher rank first.
    pub(crate) const fn optional(self, rank: u8) -> Self {
        Self { rank, ..self }
    }

    /// Cuts its cells to the space that is left.
    pub(crate) const fn cut(self) -> Self {
        Self { is_cut: true, ..self }
    }

    /// Cuts its cells to the space that is left, and below a width only once no optional column is left.
    pub(crate) const fn cut_to(self, width: usize) -> Self {
        Self { is_cut: true, cut_width_min: width, ..self }
    }
}

/// The text of a cell in one or several styles.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cell(Vec<(Option<Style>, String)>);

impl Cell {
    /// Creates a cell of plain text.
    pub(crate) fn new(text: impl ToString) -> Self {
        Self::default().with(None, text)
    }

    /// Creates a cell in one style.
    pub(crate) fn styled(style: Style, text: impl ToString) -> Self {
        Self::default().with(Some(style), text)
    }

    /// Adds text.
    #[must_use]
    pub(crate) fn with(mut self, style: Option<Style>, text: impl ToString) -> Self {
        // Escaped here, because what a terminal would interpret has no width of its own.
        let text = terminal::shown(&terminal::one_line(&text.to_string()), true).into_owned();
        self.0.push((style, text));
        self
    }

    /// Returns the whole text, in colours if they are displayed.
    pub(crate) fn text(&self, out: &Output) -> String {
        self.shown(out, usize::MAX)
    }

    fn width(&self) -> usize {
        self.0.iter().map(|(_, text)| text.width()).sum()
    }

    /// Returns the text, cut to a width, in colours if they are displayed.
    fn shown(&self, out: &Output, width: usize) -> String {
        let mut shown = String::new();
        let mut left = if self.width() > width { width.saturating_sub(1) } else { width };
        for (style, text) in &self.0 {
            let end = fitting(text, left);
            let part = &text[..end];
            left -= part.width();
            let _ = match style {
                Some(style) if !part.is_empty() => write!(shown, "{}", out.paint(*style, part)),
                _ => write!(shown, "{part}"),
            };
            if end < text.len() {
                shown.push('…');
                break;
            }
        }
        shown
    }
}

/// Returns the length in bytes of the longest start of a text that fits a width.
fn fitting(text: &str, width: usize) -> usize {
    let mut used = 0;
    for (at, character) in text.char_indices() {
        used += character.width().unwrap_or(0);
        if used > width {
            return at;
        }
    }
    text.len()
}

/// A list that is printed with a heading, for a terminal.
///
/// Rows are printed by [`Table::flush`], so that a long list need not be held as a whole. Columns never become narrower.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<Column>,
    widths: Vec<usize>,
    rows: Vec<Vec<Cell>>,
    is_headed: bool,
    /// The width of the terminal.
    width: usize,
}

impl Table {
    /// Creates an empty table, if the output is for a terminal.
    pub(crate) fn on_terminal(out: &Output, columns: &[Column]) -> Option<Self> {
        let widths = columns.iter().map(|column| column.heading.width()).collect();
        out.width().map(|width| Self { columns: columns.to_vec(), widths, rows: Vec::new(), is_headed: false, width })
    }

    /// Adds a row with a cell for each column.
    pub(crate) fn row(&mut self, cells: impl Into<Vec<Cell>>) {
        let cells = cells.into();
        assert_eq!(cells.len(), self.columns.len(), "a row has a cell for each column");
        for (width, cell) in self.widths.iter_mut().zip(&cells) {
            *width = (*width).max(cell.width());
        }
        self.rows.push(cells);
    }

    /// Prints the rows since the last call, the first of them below the headings.
    pub(crate) fn flush(&mut self, out: &mut Output) -> Result<(), Failure> {
        if self.rows.is_empty() {
            return Ok(());
        }
        // A column whose cells are all empty says nothing.
        let is_empty = |index: usize| self.rows.iter().all(|row| row[index].width() == 0);
        let shown: Vec<usize> = (0..self.columns.len()).filter(|index| !is_empty(*index)).collect();
        let fitted = fit(&self.columns, &self.widths, shown, self.width);
        if !std::mem::replace(&mut self.is_headed, true) {
            let headings: Vec<Cell> = self.columns.iter().map(|column| Cell::styled(Style::Heading, column.heading)).collect();
            self.line(out, &headings, &fitted)?;
        }
        for row in std::mem::take(&mut self.rows) {
            self.line(out, &row, &fitted)?;
        }
        Ok(())
    }

    fn line(&self, out: &mut Output, row: &[Cell], fitted: &[(usize, usize)]) -> Result<(), Failure> {
        let mut line = String::new();
        for (place, (index, width)) in fitted.iter().enumerate() {
            let (cell, column) = (&row[*index], &self.columns[*index]);
            let is_last = place + 1 == fitted.len();
            let shown = if column.is_cut { cell.shown(out, *width) } else { cell.text(out) };
            let padding = " ".repeat(width.saturating_sub(cell.width()));
            match (column.is_right, is_last) {
                (true, _) => line.extend([&*padding, &*shown]),
                (false, true) => line.push_str(&shown),
                (false, false) => line.extend([&*shown, &*padding]),
            }
            if !is_last {
                line.push_str(&" ".repeat(GAP));
            }
        }
        out.line(line.trim_end())
    }
}

/// Returns which columns fit a width, each with its own. Optional columns are left out, and columns that may be cut share what is left.
fn fit(columns: &[Column], widths: &[usize], mut shown: Vec<usize>, width: usize) -> Vec<(usize, usize)> {
    let cut = |index: usize, least: usize| if columns[index].is_cut { widths[index].min(least) } else { widths[index] };
    let gaps = |shown: &[usize]| GAP * shown.len().saturating_sub(1);
    let wanted = |shown: &[usize]| shown.iter().map(|index| cut(*index, columns[*index].cut_width_min)).sum::<usize>() + gaps(shown);
    while wanted(&shown) > width {
        let Some(out) = shown.iter().copied().filter(|index| columns[*index].rank > 0).max_by_key(|index| columns[*index].rank) else {
            break;
        };
        shown.retain(|index| *index != out);
    }
    let least = |index: usize| cut(index, CUT_WIDTH_MIN);
    let needed = shown.iter().map(|index| least(*index)).sum::<usize>() + gaps(&shown);
    let mut spare = width.saturating_sub(needed);
    let fitted = shown.into_iter().map(|index| {
        let more = (widths[index] - least(index)).min(spare);
        spare -= more;
        (index, least(index) + more)
    });
    fitted.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 4] =
        [Column::new("id"), Column::new("time").optional(1), Column::new("size").right().optional(2), Column::new("notes").cut()];

    #[test]
    fn columns_are_cut_and_then_left_out_until_the_rest_fits() {
        let widths = [8, 12, 6, 30];
        let fitted = |width| fit(&COLUMNS, &widths, vec![0, 1, 2, 3], width);
        assert_eq!(fitted(80), [(0, 8), (1, 12), (2, 6), (3, 30)]);
        assert_eq!(fitted(46), [(0, 8), (1, 12), (2, 6), (3, 14)]);
        assert_eq!(fitted(40), [(0, 8), (1, 12), (2, 6), (3, 8)]);
        assert_eq!(fitted(39), [(0, 8), (1, 12), (3, 15)]);
        assert_eq!(fitted(20), [(0, 8), (3, 10)]);
        assert_eq!(fitted(5), [(0, 8), (3, 8)], "what always stays is wider than the terminal");
        let wide = [COLUMNS[0], COLUMNS[1], COLUMNS[2], Column::new("place").cut_to(24)];
        let fitted = |width| fit(&wide, &widths, vec![0, 1, 2, 3], width);
        assert_eq!(fitted(56), [(0, 8), (1, 12), (2, 6), (3, 24)]);
        assert_eq!(fitted(55), [(0, 8), (1, 12), (3, 30)]);
        assert_eq!(fitted(30), [(0, 8), (3, 20)]);
    }

    #[test]
    fn text_is_cut_between_characters_by_their_width() {
        for (text, width, expected) in [("abc", 2, "ab"), ("日本", 3, "日"), ("é日", 3, "é日"), ("abc", 0, ""), ("", 4, "")] {
            assert_eq!(&text[..fitting(text, width)], expected, "{text} {width}");
        }
    }
}
