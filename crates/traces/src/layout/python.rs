//! JSON text as Python's `json.dump` writes it with `ensure_ascii=False`.
//!
//! The order of fields and repeated fields stay. Numbers and strings become what Python prints after reading them.

use treehold_core::json::Json;

/// Returns a value over several lines, as `json.dump(value, file, indent=2, ensure_ascii=False)` writes it.
pub(crate) fn indented(value: &Json) -> String {
    Writer::new(value.as_str(), true).finish()
}

/// Returns a value on one line, as `json.dumps(value, ensure_ascii=False)` returns it.
pub(crate) fn on_one_line(value: &Json) -> String {
    Writer::new(value.as_str(), false).finish()
}

/// Walks through valid JSON token by token.
struct Writer<'a> {
    text: &'a str,
    position: usize,
    out: String,
    is_indented: bool,
    /// How many objects and arrays are open around the position.
    depth: usize,
}

impl<'a> Writer<'a> {
    fn new(text: &'a str, is_indented: bool) -> Self {
        Self { text, position: 0, out: String::with_capacity(text.len()), is_indented, depth: 0 }
    }

    fn finish(mut self) -> String {
        while let Some(byte) = self.next() {
            match byte {
                b'{' | b'[' => self.start(char::from(byte)),
                b'}' | b']' => self.end(char::from(byte)),
                b',' => {
                    self.position += 1;
                    self.out.push(',');
                    self.separate(" ");
                }
                b':' => {
                    self.position += 1;
                    self.out.push_str(": ");
                }
                b'"' => self.string(),
                _ => self.word(),
            }
        }
        self.out
    }

    /// Returns the first byte of the next token, without passing it.
    fn next(&mut self) -> Option<u8> {
        let rest = &self.text.as_bytes()[self.position..];
        let skipped = rest.iter().position(|byte| !byte.is_ascii_whitespace())?;
        self.position += skipped;
        Some(rest[skipped])
    }

    fn start(&mut self, bracket: char) {
        self.position += 1;
        self.out.push(bracket);
        if let Some(end @ (b'}' | b']')) = self.next() {
            self.position += 1;
            self.out.push(char::from(end));
            return;
        }
        self.depth += 1;
        self.separate("");
    }

    fn end(&mut self, bracket: char) {
        self.position += 1;
        self.depth -= 1;
        self.separate("");
        self.out.push(bracket);
    }

    /// Starts the line of the next value or end; writes `otherwise` if everything is on one line.
    fn separate(&mut self, otherwise: &str) {
        if !self.is_indented {
            self.out.push_str(otherwise);
            return;
        }
        self.out.push('\n');
        for _ in 0..self.depth {
            self.out.push_str("  ");
        }
    }

    fn string(&mut self) {
        let bytes = self.text.as_bytes();
        let (mut end, mut is_escaped, mut has_escapes) = (self.position + 1, false, false);
        while bytes.get(end).is_some_and(|&byte| is_escaped || byte != b'"') {
            is_escaped = !is_escaped && bytes[end] == b'\\';
            has_escapes |= is_escaped;
            end += 1;
        }
        let token = &self.text[self.position..=end];
        self.position = end + 1;
        match has_escapes.then(|| serde_json::from_str::<String>(token)) {
            Some(Ok(text)) => self.out.push_str(&serde_json::to_string(&text).expect("a text is JSON")),
            // Text without escapes, and text with half of a surrogate pair, which UTF-8 cannot express.
            _ => self.out.push_str(token),
        }
    }

    /// Passes a number, `true`, `false` or `null`.
    fn word(&mut self) {
        let rest = &self.text[self.position..];
        let end =
            rest.find(|character: char| matches!(character, ',' | '}' | ']') || character.is_ascii_whitespace()).unwrap_or(rest.len());
        self.position += end;
        let word = &rest[..end];
        match word.parse::<f64>() {
            Ok(number) if number.is_finite() && word.contains(['.', 'e', 'E']) => self.out.push_str(&float(number)),
            _ => self.out.push_str(word),
        }
    }
}

/// Returns a finite number as Python's `repr` does: with an exponent below 0.0001 and from 1e16 on.
fn float(number: f64) -> String {
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').expect("the format has an exponent");
    let exponent: i32 = exponent.parse().expect("the exponent is a number");
    if number != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let fixed = number.to_string();
    if fixed.contains('.') { fixed } else { format!("{fixed}.0") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn json(text: &str) -> Json {
        Json::parse(text).expect("valid JSON")
    }

    #[test]
    fn values_are_indented_as_python_does() {
        // The output of Python 3 for `json.dumps(json.loads(text), indent=2, ensure_ascii=False)`.
        let text = r#"{"a":[],"b":{},"c":[1,{"d":"é\n\u00e9\/","e":null}],"f":[[ ]],"g":1.50,"h":true,"\u0007":"\u007f\ud83d\ude00"}"#;
        let expected = concat!(
            "{\n  \"a\": [],\n  \"b\": {},\n  \"c\": [\n    1,\n    {\n      \"d\": \"é\\né/\",\n      \"e\": null\n    }\n  ],\n",
            "  \"f\": [\n    []\n  ],\n  \"g\": 1.5,\n  \"h\": true,\n  \"\\u0007\": \"\u{7f}😀\"\n}"
        );
        assert_eq!(indented(&json(text)), expected);
        assert_eq!(on_one_line(&json("{\"a\":[1,2,{}],\n\"b\":\"x,y\"}")), r#"{"a": [1, 2, {}], "b": "x,y"}"#);
    }

    #[test]
    fn numbers_are_those_of_python() {
        for (text, expected) in [
            ("0.0001", "0.0001"),
            ("0.00001", "1e-05"),
            ("1.5e-7", "1.5e-07"),
            ("1e15", "1000000000000000.0"),
            ("1e16", "1e+16"),
            ("1.25E+300", "1.25e+300"),
            ("-0.0", "-0.0"),
            ("2.50", "2.5"),
            ("1e400", "1e400"),
            ("12345678901234567890123", "12345678901234567890123"),
            ("0.30000000000000004", "0.30000000000000004"),
        ] {
            assert_eq!(on_one_line(&json(text)), expected, "{text}");
        }
    }

    #[test]
    fn half_of_a_surrogate_pair_stays() {
        assert_eq!(on_one_line(&json(r#"["\ud83d x"]"#)), r#"["\ud83d x"]"#);
    }

    proptest! {
        #[test]
        fn printed_values_are_equal_and_print_the_same_again(value in any_value()) {
            let json = Json::of(&value).expect("plain JSON");
            for printed in [indented(&json), on_one_line(&json)] {
                let again = Json::parse(&printed).expect("still JSON");
                prop_assert_eq!(&again.view::<serde_json::Value>().expect("JSON"), &value);
            }
            let printed = indented(&json);
            prop_assert_eq!(&indented(&Json::parse(&printed).expect("JSON")), &printed);
        }
    }

    fn any_value() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            "\\PC*|[\\x00-\\x1f\"\\\\/]*".prop_map(Into::into),
        ];
        leaf.prop_recursive(4, 32, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Into::into),
                prop::collection::btree_map("[a-z\\n]{0,4}", inner, 0..5)
                    .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
            ]
        })
    }
}
