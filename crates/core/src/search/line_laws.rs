//! Property tests of grep, compared with matching each line on its own and with ripgrep's searcher.

use super::grep::{FileOutcome, GrepMatcher};
use super::window::Windows;
use super::{GrepCollector, PathFilter};
use crate::ops::{CaseMode, GrepCursor, GrepFile, GrepLine, GrepOptions, GrepOutput, GrepResult, ReadOptions};
use crate::path::{VfsPath, VfsPathBuf};
use crate::text::{self, trim_terminator};
use bytes::Bytes;
use grep_regex::RegexMatcherBuilder;
use grep_searcher::{SearcherBuilder, sinks};
use proptest::collection::vec;
use proptest::prelude::*;
use std::ops::{ControlFlow, Range};

fn path(text: &str) -> VfsPathBuf {
    VfsPathBuf::parse(text).expect("a legal path")
}

/// The lines of some content by definition: each tested on its own.
fn naive_lines(content: &Bytes, options: &GrepOptions) -> Vec<GrepLine> {
    let mut pattern = if options.regex { options.pattern.clone() } else { regex::escape(&options.pattern) };
    if options.whole_line {
        pattern = format!("^(?:{pattern})$");
    } else if options.word {
        pattern = format!(r"\b{{start-half}}(?:{pattern})\b{{end-half}}");
    }
    let expression = regex::bytes::RegexBuilder::new(&pattern)
        .case_insensitive(options.case == CaseMode::Insensitive)
        .multi_line(true)
        .crlf(true)
        .dot_matches_new_line(true)
        .build()
        .expect("legal");
    let mut all = Vec::new();
    let mut at = 0;
    for (index, line) in content.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let text = trim_terminator(line);
        let ranges = kept(expression.find_iter(text).map(|found| found.range()).collect());
        let is_match = ranges.is_empty() == options.invert;
        let ranges = if options.invert { Vec::new() } else { ranges };
        all.push(GrepLine::new(index + 1, at as u64, content.slice(at..at + text.len()), ranges, is_match));
        at += line.len();
    }
    with_context(all, options)
}

/// Drops empty ranges if there are others.
fn kept(ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    let solid: Vec<_> = ranges.iter().filter(|range| !range.is_empty()).cloned().collect();
    if solid.is_empty() { ranges.into_iter().take(1).collect() } else { solid }
}

/// Keeps matches up to the limit of the file, and the lines around them. Context ends before the first match over the limit.
fn with_context(all: Vec<GrepLine>, options: &GrepOptions) -> Vec<GrepLine> {
    let limit = options.file_matches_max.unwrap_or(usize::MAX);
    let matches: Vec<usize> = all.iter().enumerate().filter(|(_, line)| line.is_match).map(|(index, _)| index).collect();
    let (within, over) = matches.split_at(limit.min(matches.len()));
    let end = over.first().copied().unwrap_or(all.len());
    let near = |index: usize| within.iter().any(|found| index + options.before >= *found && index <= *found + options.after);
    all.into_iter().enumerate().filter(|(index, _)| *index < end && near(*index)).map(|(_, line)| line).collect()
}

fn search(options: &GrepOptions, path: &VfsPath, content: &Bytes) -> (usize, Vec<GrepLine>, bool) {
    match GrepMatcher::compile(options).expect("legal").search(path, content) {
        FileOutcome::Searched { count, lines, cut } => (count, lines, cut),
        other => panic!("not searched: {other:?}"),
    }
}

fn expressions() -> impl Strategy<Value = String> {
    let atom = prop::sample::select(vec![
        "a", "b", "ab", "é", ".", ".*", "a+", "[^a]", r"\s", r"\w", r"\b", "^", "$", "a?", "(?:a|ab)", r"\r", "", r"\B", r"\S+", "(?i:A)",
        r"\A", r"\z", r"\x{e9}",
    ]);
    vec(atom, 1..4).prop_map(|atoms| atoms.concat())
}

fn contents() -> impl Strategy<Value = Bytes> {
    let piece = prop::sample::select(vec![
        &b"a"[..],
        b"b",
        b"ab",
        b" ",
        b"\n",
        b"\n",
        b"\r\n",
        b"\r",
        "é".as_bytes(),
        b"\xff",
        b"\xc3",
        b"A",
        b"aa b\n",
        b"\n\n",
    ]);
    vec(piece, 0..30).prop_map(|pieces| Bytes::from(pieces.concat()))
}

fn line_options() -> impl Strategy<Value = GrepOptions> {
    let pattern = prop_oneof![expressions().prop_map(GrepOptions::regex), "[abé. ]{0,3}|\r?a".prop_map(GrepOptions::new)];
    (pattern, any::<bool>(), any::<[bool; 3]>(), 0..4_usize, 0..4_usize, prop::option::of(0..4_usize)).prop_map(
        |(options, invert, [insensitive, word, whole_line], before, after, file_matches_max)| {
            let mut options = options.with_invert(invert).with_context(before, after).with_word(word).with_whole_line(whole_line);
            options.case = if insensitive { CaseMode::Insensitive } else { CaseMode::Sensitive };
            options.file_matches_max = file_matches_max;
            options
        },
    )
}

/// Searches content in windows, either one after another or each on its own.
fn search_in_windows(options: &GrepOptions, content: &Bytes, window_bytes: usize, by_itself: bool) -> (usize, Vec<GrepLine>, bool) {
    let matcher = GrepMatcher::compile(options).expect("legal");
    let mut left = content.clone();
    let read = |buffer: &mut Vec<u8>| {
        let part = left.split_to(left.len().min(buffer.capacity() - buffer.len()));
        buffer.extend_from_slice(&part);
        Ok::<_, std::convert::Infallible>(part.len())
    };
    let mut windows = Windows::new(read, window_bytes, matcher.window_context());
    let mut seeker = matcher.seek(|| path("/f")).expect("it is not before the cursor");
    assert!(!by_itself || seeker.supports_parts());
    while let Some(window) = windows.next(Vec::with_capacity(window_bytes)).expect("all is read") {
        let flow = if by_itself { seeker.push_found(matcher.find(&window)) } else { seeker.push(&window) };
        // The buffer is reused, so overwrite it to show that no line depends on it.
        let mut buffer = window.into_buffer().expect("no line holds the window");
        buffer.resize(buffer.capacity(), b'#');
        if flow.is_break() {
            break;
        }
    }
    match seeker.finish() {
        FileOutcome::Searched { count, lines, cut } => (count, lines, cut),
        other => panic!("not searched: {other:?}"),
    }
}

/// Requests page after page and joins them into one result.
fn paged(options: &GrepOptions, files: &[(VfsPathBuf, Bytes)]) -> Result<GrepResult, TestCaseError> {
    let (mut options, mut whole) = (options.clone(), GrepResult::default());
    for _ in 0..1000 {
        let matcher = GrepMatcher::compile(&options).expect("legal");
        let filter = PathFilter::for_grep(VfsPath::ROOT, &options).expect("legal");
        let mut collector = GrepCollector::new(&options);
        for (path, content) in files.iter().filter(|(path, _)| filter.selects(path, false)) {
            if collector.push(path.clone(), matcher.search(path, content)).is_break() {
                break;
            }
        }
        let page = collector.finish();
        prop_assert!(page.matches() <= options.matches_max);
        prop_assert!(
            page.truncated.is_none() || page.matches() == options.matches_max,
            "a truncated page has as many matches as the limit"
        );
        for file in page.files {
            match whole.files.last_mut().filter(|last| last.path == file.path) {
                Some(last) => {
                    last.count += file.count;
                    last.lines.extend(file.lines);
                }
                None => whole.files.push(file),
            }
        }
        match page.truncated {
            None => return Ok(whole),
            Some(truncation) => options.start_after = Some(truncation.cursor.parse::<GrepCursor>().expect("a cursor")),
        }
    }
    Err(TestCaseError::fail("paging does not end"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn matching_lines_equal_lines_tested_alone(options in line_options(), content in contents()) {
        let (count, lines, cut) = search(&options, &path("/f"), &content);
        let expected = naive_lines(&content, &options);
        prop_assert_eq!(&lines, &expected);
        prop_assert!(!cut);
        prop_assert_eq!(count, lines.iter().filter(|line| line.is_match).count());
        let counted = search(&options.clone().with_output(GrepOutput::Counts), &path("/f"), &content);
        prop_assert_eq!((counted.0, counted.1.len()), (count, 0));
        let any = search(&options.with_output(GrepOutput::Files), &path("/f"), &content);
        prop_assert_eq!((any.0, any.1.len()), (count.min(1), 0));
    }

    #[test]
    fn line_numbers_agree_with_read(options in line_options(), content in contents()) {
        for line in search(&options, &path("/f"), &content).1 {
            let (read, _) = text::cut(&content, &ReadOptions::lines(line.line - 1, 1)).expect("the line exists");
            prop_assert_eq!(trim_terminator(&read), &line.text[..]);
            prop_assert_eq!(&content[line.byte_offset as usize..][..line.text.len()], &line.text[..]);
        }
    }

    #[test]
    fn detached_lines_are_equal_and_share_no_memory(options in line_options(), content in contents()) {
        let matcher = GrepMatcher::compile(&options).expect("legal");
        let FileOutcome::Searched { lines, .. } = matcher.search(&path("/f"), &content).detached() else { panic!("not searched") };
        prop_assert_eq!(&lines, &search(&options, &path("/f"), &content).1);
        let within = content.as_ptr_range();
        prop_assert!(lines.iter().all(|line| line.text.is_empty() || !within.contains(&line.text.as_ptr())));
    }

    #[test]
    fn joined_pages_equal_whole_result(
        options in line_options(),
        multiline in any::<bool>(),
        output in prop::sample::select(vec![GrepOutput::Content, GrepOutput::Content, GrepOutput::Files, GrepOutput::Counts]),
        page_size in 1..6_usize,
        contents in vec(contents(), 1..5),
    ) {
        let files: Vec<_> = contents.into_iter().enumerate().map(|(index, content)| (path(&format!("/f{index}")), content)).collect();
        let options = options.with_multiline(multiline).with_output(output);
        let whole = paged(&options, &files)?;
        let mut expected: Vec<GrepFile> = Vec::new();
        for (path, content) in &files {
            let (count, lines, _) = search(&options, path, content);
            if count > 0 {
                expected.push(GrepFile::new(path.clone(), count, lines));
            }
        }
        prop_assert_eq!(&whole.files, &expected);
        let pages = paged(&options.with_matches_max(page_size), &files)?;
        prop_assert_eq!(pages.files, expected);
    }

    #[test]
    fn multiline_match_covers_touched_lines(
        pattern in prop::sample::select(vec![
            r"a\s+b", "a\nb", r"(?s)a.*?b", r"\n", r"^$", "b$", r"\s+", "[^a]+", r"a\r?\n", "", r"\z", r"\Aa", r"b\n*a",
        ]),
        content in contents(),
        invert in any::<bool>(),
    ) {
        let options = GrepOptions::regex(pattern).with_multiline(true).with_invert(invert);
        let expression = regex::bytes::RegexBuilder::new(pattern).multi_line(true).crlf(true).build().expect("legal");
        let mut starts: Vec<usize> = memchr::memchr_iter(b'\n', &content).map(|at| at + 1).collect();
        starts.insert(0, 0);
        starts.retain(|start| *start < content.len());
        let line_of = |at: usize| starts.partition_point(|start| *start <= at) - 1;
        let mut covered = vec![false; starts.len()];
        for found in expression.find_iter(&content) {
            if !starts.is_empty() && (found.start() < content.len() || content.last() != Some(&b'\n')) {
                covered[line_of(found.start())..=line_of(found.end().max(found.start() + 1) - 1)].fill(true);
            }
        }
        let mut returned = vec![false; starts.len()];
        let (_, lines, _) = search(&options, &path("/f"), &content);
        for line in &lines {
            prop_assert_eq!(line.byte_offset as usize, starts[line.line - 1]);
            let count = memchr::memchr_iter(b'\n', &line.text).count() + 1;
            prop_assert!(!returned[line.line - 1..line.line - 1 + count].contains(&true), "no line is returned twice");
            returned[line.line - 1..line.line - 1 + count].fill(true);
            for range in &line.ranges {
                prop_assert!(range.start <= range.end && range.end <= line.text.len());
            }
        }
        prop_assert_eq!(returned, covered.iter().map(|covered| covered != &invert).collect::<Vec<_>>());
    }

    #[test]
    fn search_in_windows_equals_search_of_whole_content(
        options in line_options(),
        content in vec(contents(), 1..5),
        output in prop::sample::select(vec![GrepOutput::Content, GrepOutput::Content, GrepOutput::Content, GrepOutput::Counts, GrepOutput::Files]),
        matches_max in prop_oneof![0..6_usize, Just(usize::MAX)],
        after_line in prop::option::of(0..20_usize),
        window_bytes in 1..60_usize,
        by_itself in any::<bool>(),
    ) {
        let content = Bytes::from(content.concat());
        let mut options = options.with_output(output).with_matches_max(matches_max);
        options.start_after = after_line.map(|line| GrepCursor { path: path("/f"), line });
        if by_itself {
            // Parts are searched on their own only if no line is returned as the context of another.
            options = options.with_context(0, 0);
            options.start_after = None;
        }
        let whole = search(&options, &path("/f"), &content);
        prop_assert_eq!(search_in_windows(&options, &content, window_bytes, by_itself), whole);
    }

    #[test]
    fn matching_lines_agree_with_ripgrep(pattern in expressions(), content in contents(), invert in any::<bool>()) {
        // The two differ in `\r` on purpose: ripgrep counts that of a line terminator as text.
        let content = Bytes::from(content.iter().copied().filter(|byte| *byte != b'\r').collect::<Vec<_>>());
        let theirs = RegexMatcherBuilder::new().multi_line(true).line_terminator(Some(b'\n')).build(&pattern).expect("legal");
        let mut expected = Vec::new();
        SearcherBuilder::new()
            .invert_match(invert)
            .build()
            .search_slice(theirs, &content, sinks::Bytes(|line, _| {
                expected.push(line as usize);
                Ok(true)
            }))
            .expect("a content is searched");
        let (_, lines, _) = search(&GrepOptions::regex(pattern).with_invert(invert), &path("/f"), &content);
        prop_assert_eq!(lines.iter().map(|line| line.line).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn multiline_literal_matches_both_line_endings(before in "[ab]{0,2}", after in "[ab]{1,2}", tail in "(\r?\n[ab]{0,2}){0,3}") {
        let options = GrepOptions::new(format!("{before}\n{after}"));
        for ending in ["\n", "\r\n"] {
            let content = Bytes::from(format!("x\n{before}{ending}{after}{tail}"));
            let (count, lines, _) = search(&options, &path("/f"), &content);
            prop_assert!(count >= 1 && lines[0].line == 2, "{:?}", lines);
        }
    }

    #[test]
    fn compiling_any_text_as_expression_never_panics(
        pattern in "\\PC{0,20}|[(){}\\[\\]*+?|^$.\\\\abdswAz,0-9\n]{0,30}",
        content in contents(),
        flags in any::<[bool; 6]>(),
    ) {
        let mut options = if flags[0] { GrepOptions::regex(pattern) } else { GrepOptions::new(pattern) };
        options = options.with_word(flags[1]).with_whole_line(flags[2]).with_multiline(flags[3]).with_invert(flags[4]).with_context(1, 1);
        options.case = if flags[5] { CaseMode::Smart } else { CaseMode::Insensitive };
        match GrepMatcher::compile(&options) {
            Ok(matcher) => {
                let first = matcher.search(&path("/f"), &content);
                let FileOutcome::Searched { lines, .. } = first else { panic!("searched") };
                for line in lines {
                    prop_assert!(line.ranges.iter().all(|range| range.end <= line.text.len()));
                }
            }
            Err(error) => {
                prop_assert!(options.regex, "literal text always compiles: {}", error);
                prop_assert!(error.message().len() < 400 && !error.message().contains('\n') || options.pattern.contains('\n'), "{}", error);
            }
        }
    }
}

#[test]
fn zero_limit_reports_whether_matches_exist() {
    let files = [(path("/a"), Bytes::from_static(b"x\nx\nx\n")), (path("/b"), Bytes::from_static(b"x\n"))];
    let run = |options: &GrepOptions, files: &[(VfsPathBuf, Bytes)]| {
        let matcher = GrepMatcher::compile(options).expect("legal");
        let mut collector = GrepCollector::new(options);
        let _ = files.iter().try_for_each(|(path, content)| match collector.push(path.clone(), matcher.search(path, content)) {
            ControlFlow::Break(()) => Err(()),
            ControlFlow::Continue(()) => Ok(()),
        });
        collector.finish()
    };
    for output in [GrepOutput::Content, GrepOutput::Files, GrepOutput::Counts] {
        let nothing = GrepOptions::new("x").with_matches_max(0).with_output(output);
        let result = run(&nothing, &files);
        assert!(result.files.is_empty());
        assert_eq!(result.truncated.expect("there is more").cursor, "/a:0");
        assert!(run(&nothing.clone().with_file_matches_max(0), &files).truncated.is_none());
        let resumed = run(&nothing.with_start_after(GrepCursor { path: path("/a"), line: 2 }), &files);
        assert_eq!(resumed.truncated.expect("there is more").cursor, "/a:2");
    }
    // A result that is exactly full is not truncated.
    let full = run(&GrepOptions::new("x").with_matches_max(4), &files);
    assert!(full.truncated.is_none() && full.matches() == 4 && full.files_searched == 2);
    let cut = run(&GrepOptions::new("x").with_matches_max(3), &files);
    assert_eq!((cut.matches(), cut.files_searched, cut.truncated.expect("there is more").cursor.as_str()), (3, 1, "/b:0"));
    let within = run(&GrepOptions::new("x").with_matches_max(2), &files);
    assert_eq!(within.truncated.expect("there is more").cursor, "/a:2");
}
