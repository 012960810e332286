//! JSON text as AgentScope's codec (Jackson) writes it.
//!
//! White space and the escapes in texts are Jackson's. Numbers, the order of fields and repeated fields stay as they are.

use serde_json::Value;
use treehold_core::json::Json;

/// Returns a value on one line without white space, as in lists, in Redis and in MySQL.
pub(super) fn compact(value: &Json) -> String {
    Writer::new(value.as_str(), false).finish()
}

/// Returns a value over several lines, as in files: objects are indented by two spaces, arrays stay on their line.
#[cfg(any(all(feature = "filesystem", unix), test))]
pub(super) fn pretty(value: &Json) -> String {
    Writer::new(value.as_str(), true).finish()
}

/// Walks through valid JSON token by token.
struct Writer<'a> {
    text: &'a str,
    position: usize,
    out: String,
    is_pretty: bool,
    /// What is open around the position: `true` for objects. The depth is bounded by [`Json`].
    open: Vec<bool>,
    indent: usize,
}

impl<'a> Writer<'a> {
    fn new(text: &'a str, is_pretty: bool) -> Self {
        Self { text, position: 0, out: String::with_capacity(text.len()), is_pretty, open: Vec::new(), indent: 0 }
    }

    fn finish(mut self) -> String {
        while let Some(byte) = self.next() {
            match byte {
                b'{' | b'[' => self.start(byte == b'{'),
                b'}' | b']' => self.end(byte == b'}'),
                b',' => {
                    self.out.push(',');
                    self.separate();
                }
                b':' => {
                    self.position += 1;
                    self.out.push_str(if self.is_pretty { " : " } else { ":" });
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

    fn start(&mut self, is_object: bool) {
        self.position += 1;
        self.out.push(if is_object { '{' } else { '[' });
        let is_empty = matches!(self.next(), Some(b'}' | b']'));
        self.open.push(is_object);
        self.indent += usize::from(is_object);
        if !is_empty {
            self.separate_inside(is_object);
        } else if self.is_pretty {
            // The end adds no line break to an empty object.
            self.out.push(' ');
        }
    }

    fn end(&mut self, is_object: bool) {
        self.position += 1;
        self.open.pop();
        self.indent -= usize::from(is_object);
        let is_empty = self.out.ends_with("{ ") || self.out.ends_with("[ ");
        if self.is_pretty && !is_empty {
            self.separate_inside(is_object);
        }
        self.out.push(if is_object { '}' } else { ']' });
    }

    /// Passes a comma.
    fn separate(&mut self) {
        self.position += 1;
        self.separate_inside(self.open.last() == Some(&true));
    }

    fn separate_inside(&mut self, is_object: bool) {
        match (self.is_pretty, is_object) {
            (false, _) => {}
            (true, false) => self.out.push(' '),
            (true, true) => {
                self.out.push('\n');
                for _ in 0..self.indent {
                    self.out.push_str("  ");
                }
            }
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
        match has_escapes.then(|| serde_json::from_str::<Value>(token)) {
            Some(Ok(Value::String(text))) => self.escaped(&text),
            // Text without escapes, and text with half of a surrogate pair, which UTF-8 cannot express.
            _ => self.out.push_str(token),
        }
    }

    fn escaped(&mut self, text: &str) {
        self.out.push('"');
        for character in text.chars() {
            match character {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\u{8}' => self.out.push_str("\\b"),
                '\t' => self.out.push_str("\\t"),
                '\n' => self.out.push_str("\\n"),
                '\u{c}' => self.out.push_str("\\f"),
                '\r' => self.out.push_str("\\r"),
                control if control < ' ' => self.out.push_str(&format!("\\u{:04X}", u32::from(control))),
                other => self.out.push(other),
            }
        }
        self.out.push('"');
    }

    /// Copies a number or a literal.
    fn word(&mut self) {
        let rest = &self.text[self.position..];
        let length = rest.find([',', ']', '}', ' ', '\n', '\r', '\t', ':']).unwrap_or(rest.len()).max(1);
        self.out.push_str(&rest[..length]);
        self.position += length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn json(text: &str) -> Json {
        Json::parse(text).expect("valid")
    }

    #[test]
    fn pretty_text_has_the_spaces_of_jackson() {
        let value = json(r#"{"a":{},"b":[],"c":[1,2.50,-1e2,true,null],"d":[{"x":"y"},{"z":[[],[{}]]}],"e":{"f":{"g":1}}}"#);
        let expected = "{\n  \"a\" : { },\n  \"b\" : [ ],\n  \"c\" : [ 1, 2.50, -1e2, true, null ],\n  \"d\" : [ {\n    \"x\" : \"y\"\n  }, {\n    \
                        \"z\" : [ [ ], [ { } ] ]\n  } ],\n  \"e\" : {\n    \"f\" : {\n      \"g\" : 1\n    }\n  }\n}";
        assert_eq!(pretty(&value), expected);
        assert_eq!(pretty(&json(expected)), expected);
        assert_eq!(compact(&json(expected)), value.as_str());
    }

    #[test]
    fn texts_are_escaped_as_jackson_does() {
        let value = json(r#"["\u00e9\/ \u0000\u001f\u007f\b\f\n\r\t\"\\","\ud83d\ude00","\ud800","{ \"a\" : [ "," : , ] }"]"#);
        let expected = concat!(r#"["é/ \u0000\u001F"#, "\u{7f}", r#"\b\f\n\r\t\"\\","😀","\ud800","{ \"a\" : [ "," : , ] }"]"#);
        assert_eq!(compact(&value), expected);
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            "\\PC{0,6}|[\\x00-\\x7f]{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(5, 40, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::vec(("[\\x00-\\x7f]{0,4}", inner), 0..5).prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn rendered_text_is_the_same_value(value in any_value()) {
            let text = Json::of(&value).expect("valid");
            let value: Value = serde_json::from_str(text.as_str()).expect("valid");
            for rendered in [compact(&text), pretty(&text)] {
                let again: Value = serde_json::from_str(&rendered).expect("still valid");
                prop_assert_eq!(&again, &value, "{}", rendered);
                prop_assert_eq!(compact(&json(&rendered)), compact(&text));
                prop_assert_eq!(pretty(&json(&rendered)), pretty(&text));
            }
            prop_assert_eq!(compact(&text).contains('\n'), false);
        }
    }
}
