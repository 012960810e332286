//! What shells ask and what they receive.
//!
//! The scripts of `clap_complete` hand over words with their quoting, and insert names of files as they are: a name such as `a;rm b` would
//! become a command. These unquote and quote.

use crate::cli::words::{Quote, partial, quoted, unquoted};
use clap_complete::Shell;
use clap_complete::engine::CompletionCandidate;
use std::ffi::OsString;
use std::fmt::Write as _;

/// The environment variable by which a script asks for candidates. Its value names the shell.
pub(crate) const VARIABLE: &str = "TREEHOLD_COMPLETE";

const BASH: &str = r#"_treehold() {
    local candidate
    COMPREPLY=()
    while IFS= read -r candidate; do
        COMPREPLY+=("$candidate")
    done < <(TREEHOLD_COMPLETE=bash treehold -- "${COMP_LINE:0:COMP_POINT}" "$2" 2>/dev/null)
}
complete -o nospace -o nosort -F _treehold treehold 2>/dev/null || complete -o nospace -F _treehold treehold
"#;

const ZSH: &str = r#"#compdef treehold
_treehold() {
    local line value shown
    local -a lines finished finished_shown directories directories_shown
    lines=("${(@f)$(TREEHOLD_COMPLETE=zsh treehold -- "${(@Q)words[1,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}")
    for line in "${lines[@]}"; do
        [[ -n $line ]] || continue
        value=${line%%$'\t'*}
        shown=$value
        [[ $line == *$'\t'* ]] && shown="$value  -- ${line#*$'\t'}"
        if [[ $value == */ ]]; then
            directories+=("$value")
            directories_shown+=("$shown")
        else
            finished+=("$value")
            finished_shown+=("$shown")
        fi
    done
    (( $#directories )) && compadd -V directories -S '' -d directories_shown -a directories
    (( $#finished )) && compadd -V values -d finished_shown -a finished
}
if [[ $funcstack[1] == _treehold ]]; then
    _treehold "$@"
else
    compdef _treehold treehold
fi
"#;

const FISH: &str = r"complete --command treehold --keep-order --no-files --arguments '(TREEHOLD_COMPLETE=fish treehold -- (commandline --current-process --tokenize --cut-at-cursor) (commandline --current-token --cut-at-cursor) 2>/dev/null)'
";

const POWERSHELL: &str = r#"Register-ArgumentCompleter -Native -CommandName treehold -ScriptBlock {
    param($wordToComplete, $commandAst, $cursorPosition)
    $words = @($commandAst.CommandElements | Where-Object { $_.Extent.EndOffset -lt $cursorPosition } | ForEach-Object {
        if ($_ -is [System.Management.Automation.Language.StringConstantExpressionAst]) { $_.Value } else { $_.Extent.Text }
    }) + "$wordToComplete"
    $before = $env:TREEHOLD_COMPLETE
    $env:TREEHOLD_COMPLETE = 'powershell'
    try {
        # Each word has a mark before it, because empty words are dropped.
        $lines = & treehold @($words | ForEach-Object { "=$_" }) 2>$null
    } finally {
        $env:TREEHOLD_COMPLETE = $before
    }
    $lines | ForEach-Object {
        $inserted, $shown, $help = $_.Split("`t")
        [System.Management.Automation.CompletionResult]::new($inserted, $shown, 'ParameterValue', $help)
    }
}
"#;

const ELVISH: &str = r"set edit:completion:arg-completer[treehold] = {|@words|
    env TREEHOLD_COMPLETE=elvish treehold -- $@words 2>/dev/null | from-lines
}
";

/// Returns the script that registers completion, or `None` for a shell that this program does not know.
pub(crate) fn script(shell: Shell) -> Option<&'static str> {
    Some(match shell {
        Shell::Bash => BASH,
        Shell::Zsh => ZSH,
        Shell::Fish => FISH,
        Shell::PowerShell => POWERSHELL,
        Shell::Elvish => ELVISH,
        _ => return None,
    })
}

/// What a shell asks: the words up to the cursor, the last of which is to be completed.
#[derive(Debug)]
pub(crate) struct Asked {
    shell: Shell,
    pub(crate) words: Vec<OsString>,
    /// The text before what the shell replaces of the last word, unquoted.
    kept: String,
    /// The quotation that the cursor is in, for bash.
    quote: Option<Quote>,
}

impl Asked {
    /// Reads the arguments of a script.
    pub(crate) fn read(shell: Shell, arguments: impl IntoIterator<Item = OsString>) -> Self {
        let mut words: Vec<OsString> = arguments.into_iter().skip(1).collect();
        if words.first().is_some_and(|word| word == "--") {
            words.remove(0);
        }
        match shell {
            Shell::Bash => Self::of_line(&words),
            Shell::PowerShell => {
                let unmarked = |word: OsString| match word.to_str().and_then(|word| word.strip_prefix('=')) {
                    Some(word) => word.into(),
                    None => word,
                };
                let mut words: Vec<OsString> = words.into_iter().map(unmarked).collect();
                if let Some(last) = words.last_mut()
                    && let Some(open) = last.to_str().and_then(|word| word.strip_prefix(['\'', '"']))
                {
                    *last = open.trim_end_matches(['\'', '"']).into();
                }
                Self { shell, words, kept: String::new(), quote: None }
            }
            Shell::Fish => {
                if let Some(last) = words.last_mut()
                    && let Some(word) = last.to_str()
                {
                    *last = unquoted(word).into();
                }
                Self { shell, words, kept: String::new(), quote: None }
            }
            _ => Self { shell, words, kept: String::new(), quote: None },
        }
    }

    /// Reads a line and the part of its last word that bash replaces, which starts after a `=` or `:`.
    fn of_line(arguments: &[OsString]) -> Self {
        let text = |index: usize| arguments.get(index).map(|text| text.to_string_lossy()).unwrap_or_default();
        let (line, replaced) = (text(0), text(1));
        let partial = partial(&line, false);
        let raw = &line[partial.start..];
        let kept = raw.strip_suffix(&*replaced).map(unquoted).unwrap_or_default();
        Self { shell: Shell::Bash, words: partial.words.into_iter().map(OsString::from).collect(), kept, quote: partial.quote }
    }

    /// Returns the candidates in the form that the shell's script reads.
    pub(crate) fn answer(&self, candidates: &[CompletionCandidate]) -> String {
        let mut answer = String::new();
        for candidate in candidates {
            let Some(value) = candidate.get_value().to_str() else { continue };
            let help = candidate.get_help().map(ToString::to_string).unwrap_or_default();
            let help = help.lines().next().unwrap_or_default().replace('\t', " ");
            // Writing to a string cannot fail.
            let _ = match self.shell {
                Shell::Bash => {
                    let space = if self.quote.is_some() || value.ends_with('/') { "" } else { " " };
                    let Some(value) = value.strip_prefix(&self.kept) else { continue };
                    writeln!(answer, "{}{space}", quoted(value, self.quote))
                }
                Shell::PowerShell => {
                    writeln!(answer, "{}\t{value}\t{}", for_powershell(value), if help.is_empty() { value } else { &help })
                }
                Shell::Elvish => writeln!(answer, "{value}"),
                _ if help.is_empty() => writeln!(answer, "{value}"),
                _ => writeln!(answer, "{value}\t{help}"),
            };
        }
        answer
    }
}

/// Quotes a word for PowerShell if it has characters that mean something there.
fn for_powershell(word: &str) -> String {
    let is_plain = |character: char| character.is_alphanumeric() || matches!(character, '/' | '_' | '-' | '.' | '=' | ':' | '~');
    match word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace(['\'', '\u{2018}', '\u{2019}'], "''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(shell: Shell, arguments: &[&str]) -> Asked {
        Asked::read(shell, std::iter::once("treehold").chain(arguments.iter().copied()).map(OsString::from))
    }

    fn answered(shell: Shell, arguments: &[&str], values: &[&str]) -> String {
        let candidates: Vec<_> = values.iter().map(|value| CompletionCandidate::new(*value).help(Some("about it".into()))).collect();
        asked(shell, arguments).answer(&candidates)
    }

    #[test]
    fn words_reach_the_engine_without_quoting() {
        for (shell, arguments, words) in [
            (Shell::Bash, &["--", r"treehold cat /a\ b/c", r"/a\ b/c"][..], &["treehold", "cat", "/a b/c"][..]),
            (Shell::Bash, &["--", "treehold cat --thread=mo", "mo"], &["treehold", "cat", "--thread=mo"]),
            (Shell::Bash, &["--", "treehold cat ", ""], &["treehold", "cat", ""]),
            (Shell::Zsh, &["--", "treehold", "cat", "/a b"], &["treehold", "cat", "/a b"]),
            (Shell::Fish, &["--", "treehold", "cat", r"/a\ b"], &["treehold", "cat", "/a b"]),
            (Shell::PowerShell, &["=treehold", "=cat", "="], &["treehold", "cat", ""]),
            (Shell::PowerShell, &["=treehold", "=cat", "='/a b"], &["treehold", "cat", "/a b"]),
        ] {
            assert_eq!(asked(shell, arguments).words, words, "{shell} {arguments:?}");
        }
    }

    #[test]
    fn bash_receives_what_it_puts_in_place_of_its_own_word() {
        let bash = |line: &str, word: &str, value: &str| answered(Shell::Bash, &["--", line, word], &[value]);
        assert_eq!(bash("treehold cat /n", "/n", "/notes.md"), "/notes.md \n");
        assert_eq!(bash("treehold cat /n", "/n", "/notes/"), "/notes/\n");
        assert_eq!(bash("treehold cat /a", "/a", "/a b;c"), "/a\\ b\\;c \n");
        assert_eq!(bash("treehold cat \"/a", "/a", "/a b$c"), "/a b\\$c\n");
        assert_eq!(bash("treehold cat '/a", "/a", "/a'b"), "/a'\\''b\n");
        assert_eq!(bash("treehold cat --thread=m", "m", "--thread=monday"), "monday \n");
        assert_eq!(bash("treehold cat /a:", "", "/a:b"), "b \n");
        assert_eq!(bash("treehold diff /a@", "", "/a@before"), "before \n");
    }

    #[test]
    fn other_shells_receive_values_with_help() {
        assert_eq!(answered(Shell::Zsh, &["--", "treehold", ""], &["/a b"]), "/a b\tabout it\n");
        assert_eq!(answered(Shell::Fish, &["--", "treehold", ""], &["/a b"]), "/a b\tabout it\n");
        assert_eq!(answered(Shell::Elvish, &["--", "treehold", ""], &["/a b"]), "/a b\n");
        assert_eq!(
            answered(Shell::PowerShell, &["=treehold", "="], &["/a b", "/it's", "/c"]).lines().collect::<Vec<_>>(),
            ["'/a b'\t/a b\tabout it", "'/it''s'\t/it's\tabout it", "/c\t/c\tabout it",]
        );
    }

    #[test]
    fn every_shell_has_a_script_that_asks_for_its_own_answer() {
        use clap::ValueEnum;
        for shell in Shell::value_variants() {
            let script = script(*shell).expect("a script");
            let asks = [format!("{VARIABLE}={shell} treehold"), format!("{VARIABLE} = '{shell}'")];
            assert!(asks.iter().any(|asks| script.contains(asks)), "{script}");
        }
    }
}
