//! Reads the parts of Triton's `config.pbtxt` that affect serving, so that a Triton repository can
//! be copied as it is.
//!
//! Supported fields:
//!
//! - `max_batch_size`: most rows of a batch; with 0 each request runs alone;
//! - `dynamic_batching`: its presence means that requests are gathered, if `max_batch_size` is not 0;
//! - `dynamic_batching.preferred_batch_size` and `dynamic_batching.max_queue_delay_microseconds`;
//! - `dynamic_batching.default_priority_level`: 1 means real-time;
//! - `dynamic_batching.default_queue_policy.max_queue_size`;
//! - `response_cache.enable`: responses are kept and sent again for the same inputs;
//! - `sequence_batching`: the `state` pairs and `max_sequence_idle_microseconds`;
//! - `parameters`: `device`, the device to load the model on, as in
//!   `parameters { key: "device" value { string_value: "host:1" } }`, `symbols`, the ranges of
//!   symbolic sizes, as in `seq=1..512,batch=8`, and `batch_real_time`: `true` to gather real-time
//!   requests as well.
//!
//! - `output.label_filename`: names of classes.
//!
//! Tensor names, types and shapes come from the model itself. All other fields are skipped, as long
//! as the text is well-formed; those that change how Triton serves a model are listed in
//! [`Settings::ignored`].

use super::settings::{DynamicBatching, Settings};
use crate::limits::{IGNORED_FIELDS_MAX, SETTINGS_DEPTH_MAX};
use atoll_engine::Class;
use atoll_kgraph::{StatePair, States, size_ranges};
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};

/// Reads the settings from a configuration in protobuf's text format.
pub(super) fn settings(text: &str) -> Result<Settings, String> {
    let mut settings = Settings::default();
    let mut symbols = String::new();
    // Triton gathers requests only if the configuration has the message `dynamic_batching`.
    let mut batching = DynamicBatching { enabled: false, ..DynamicBatching::default() };
    let mut wrong: Option<String> = None;
    let (mut pairs, mut input, mut output): (Vec<StatePair>, _, _) = (Vec::new(), None, None);
    let (mut name, mut labels) = (None, None);
    // A parameter has a key and a value, in any order.
    let (mut key, mut text_value) = (None, None);
    let mut reader = Reader { rest: text, path: Vec::new() };
    reader.fields(&mut |path, value| match path {
        ["max_batch_size"] => match value.parse() {
            Ok(rows) => settings.max_batch_size = NonZeroU32::new(rows),
            Err(_) => wrong = Some(format!("max_batch_size is `{value}`, which is not a number of rows")),
        },
        ["dynamic_batching"] => batching.enabled = true,
        ["dynamic_batching", "preferred_batch_size"] => match value.parse() {
            Ok(rows) => batching.preferred_batch_size.push(rows),
            Err(_) => wrong = Some(format!("preferred_batch_size has `{value}`, which is not a number of rows")),
        },
        ["dynamic_batching", "max_queue_delay_microseconds"] => match value.parse() {
            Ok(us) => batching.max_queue_delay_microseconds = Some(us),
            Err(_) => wrong = Some(format!("max_queue_delay_microseconds is `{value}`, which is not a number")),
        },
        ["dynamic_batching", "default_priority_level"] if value == "1" => settings.class = Class::RealTime,
        ["dynamic_batching", "default_queue_policy", "max_queue_size"] => {
            settings.queue_capacity = value.parse().ok().and_then(NonZeroUsize::new)
        }
        ["response_cache", "enable"] => settings.response_cache = value == "true",
        ["sequence_batching", "max_sequence_idle_microseconds"] => {
            let ms = |us: u64| us.div_ceil(1000);
            settings.session_idle_ms = value.parse().ok().map(ms).and_then(NonZeroU64::new);
        }
        ["sequence_batching", "state", "input_name"] => input = Some(value.to_owned()),
        ["sequence_batching", "state", "output_name"] => output = Some(value.to_owned()),
        ["sequence_batching", "state"] => {
            pairs.extend(input.take().zip(output.take()).map(|(input, output)| StatePair { input, output }));
        }
        ["parameters", "key"] => key = Some(value.to_owned()),
        ["parameters", "value", "string_value"] => text_value = Some(value.to_owned()),
        // The end of a `parameters` message.
        ["parameters"] => match (key.take().as_deref(), text_value.take()) {
            (Some("device"), device @ Some(_)) => settings.device = device,
            (Some("symbols"), Some(ranges)) => symbols = ranges,
            (Some("batch_real_time"), Some(value)) => batching.real_time = value == "true",
            _ => {}
        },
        ["output", "name"] => name = Some(value.to_owned()),
        ["output", "label_filename"] => labels = Some(value.to_owned()),
        ["output"] => settings.labels.extend(name.take().zip(labels.take())),
        _ => {
            let field = path.join(".");
            let is_new = !is_harmless(&field) && !settings.ignored.iter().any(|known| covers(known, &field));
            if is_new && settings.ignored.len() < IGNORED_FIELDS_MAX {
                settings.ignored.push(reported(&field));
            }
        }
    })?;
    if let Some(wrong) = wrong {
        return Err(wrong);
    }
    settings.dynamic_batching = settings.max_batch_size.map(|_| batching);
    if !pairs.is_empty() {
        settings.state = States::Pairs(pairs);
    }
    settings.symbols = size_ranges(&symbols).map_err(|error| error.to_string())?;
    Ok(settings)
}

/// Fields that are not reported as ignored: those that repeat the model's own metadata, those
/// without effect here, and messages of which fields are read.
const HARMLESS: &[&str] = &[
    "name",
    "platform",
    "backend",
    "runtime",
    "default_model_filename",
    "input",
    "input.name",
    "input.data_type",
    "input.format",
    "input.dims",
    "output.data_type",
    "output.dims",
    "dynamic_batching.priority_levels",
    "dynamic_batching.default_priority_level",
    "dynamic_batching.default_queue_policy",
    "dynamic_batching.preserve_ordering",
    "sequence_batching",
    "sequence_batching.state.data_type",
    "sequence_batching.state.dims",
    "response_cache",
    "parameters.value",
];

/// Fields that are read inside messages without fields in [`HARMLESS`].
const READ: &[&str] =
    &["dynamic_batching.default_queue_policy.max_queue_size", "parameters.key", "response_cache.enable"];

fn is_harmless(field: &str) -> bool {
    HARMLESS.contains(&field)
}

/// The name under which an ignored field is reported: the outermost enclosing message of which no
/// field is read, or the field itself.
fn reported(field: &str) -> String {
    let is_read = |message: &str| {
        let message = format!("{message}.");
        HARMLESS.iter().chain(READ).any(|known| known.starts_with(&message))
    };
    let ends = field.match_indices('.').map(|(at, _)| at).chain([field.len()]);
    let messages = ends.map(|end| &field[..end]);
    messages.into_iter().find(|message| !is_read(message)).unwrap_or(field).to_owned()
}

/// Whether `reported` is this field or a message that encloses it.
fn covers(reported: &str, field: &str) -> bool {
    field.strip_prefix(reported).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

struct Reader<'a> {
    rest: &'a str,
    /// Names of the enclosing messages and of the current field.
    path: Vec<&'a str>,
}

/// Called for every scalar with its path, and with an empty text at the end of every message.
type Visit<'v> = &'v mut dyn FnMut(&[&str], &str);

impl<'a> Reader<'a> {
    /// Reads fields up to the end of the message, without consuming the end.
    fn fields(&mut self, visit: Visit<'_>) -> Result<(), String> {
        loop {
            match self.peek() {
                None | Some('}' | '>') if self.path.is_empty() => return self.end(),
                None => return Err(format!("`{}` is not closed", self.path.join("."))),
                Some('}' | '>') => return Ok(()),
                Some(',' | ';') => self.advance(1),
                Some(_) => self.field(visit)?,
            }
        }
    }

    fn end(&self) -> Result<(), String> {
        if self.rest.is_empty() { Ok(()) } else { Err("unexpected end of a message that was not opened".into()) }
    }

    fn field(&mut self, visit: Visit<'_>) -> Result<(), String> {
        if self.path.len() == SETTINGS_DEPTH_MAX {
            return Err(format!("nested deeper than {SETTINGS_DEPTH_MAX} messages"));
        }
        let name = self.word();
        if name.is_empty() {
            return Err(format!("expected a field name at `{}`", self.rest.chars().take(20).collect::<String>()));
        }
        self.path.push(name);
        if self.peek() == Some(':') {
            self.advance(1);
        }
        self.value(visit)?;
        self.path.pop();
        Ok(())
    }

    fn value(&mut self, visit: Visit<'_>) -> Result<(), String> {
        match self.peek() {
            Some('{' | '<') => {
                self.advance(1);
                self.fields(visit)?;
                self.advance(1);
                visit(&self.path, "");
                Ok(())
            }
            Some('[') => self.list(visit),
            Some(quote @ ('"' | '\'')) => {
                let text = self.string(quote)?;
                visit(&self.path, text);
                Ok(())
            }
            _ => {
                let word = self.word();
                if word.is_empty() {
                    return Err(format!("`{}` has no value", self.path.join(".")));
                }
                visit(&self.path, word);
                Ok(())
            }
        }
    }

    fn list(&mut self, visit: Visit<'_>) -> Result<(), String> {
        self.advance(1);
        loop {
            match self.peek() {
                Some(']') => {
                    self.advance(1);
                    return Ok(());
                }
                Some(',') => self.advance(1),
                // A list inside a list is not valid protobuf; refusing it also bounds the
                // recursion.
                Some('[') | None => return Err(format!("the list `{}` is not closed", self.path.join("."))),
                Some(_) => self.value(visit)?,
            }
        }
    }

    /// The text between the quotes; escape sequences are left as they are.
    fn string(&mut self, quote: char) -> Result<&'a str, String> {
        let mut escaped = false;
        let end = self.rest.char_indices().skip(1).find(|&(_, c)| {
            let ends = c == quote && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        let (at, _) = end.ok_or_else(|| format!("the string of `{}` is not closed", self.path.join(".")))?;
        let text = &self.rest[1..at];
        self.advance(at + 1);
        Ok(text)
    }

    /// A name, number or enum value.
    fn word(&mut self) -> &'a str {
        self.peek();
        let end = self.rest.find(|c: char| !(c.is_alphanumeric() || "_.+-".contains(c))).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    /// The next character that is neither whitespace nor part of a comment.
    fn peek(&mut self) -> Option<char> {
        loop {
            self.rest = self.rest.trim_start();
            match self.rest.strip_prefix('#') {
                Some(comment) => self.rest = comment.split_once('\n').map_or("", |(_, rest)| rest),
                None => return self.rest.chars().next(),
            }
        }
    }

    /// Skips `bytes` bytes that [`Reader::peek`] has already seen.
    fn advance(&mut self, bytes: usize) {
        self.rest = self.rest.get(bytes..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    #[test]
    fn a_real_configuration_is_read() {
        let text = r#"
            name: "densenet_onnx"   # a comment { with a brace
            platform: "onnxruntime_onnx"
            max_batch_size : 0
            input [ {
              name: "data_0" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] reshape { shape: [ 1, 3, 224, 224 ] }
            } ]
            instance_group [ { count: 1 kind: KIND_GPU }, { count: 2 } ]
            dynamic_batching {
              default_priority_level: 1
              priority_levels: 2;
              default_queue_policy { timeout_action: DELAY, max_queue_size: 12 }
            }
            parameters: { key: "a \" quote" value: { string_value: "x }" } }
            parameters: { key: "device" value: { string_value: "host:1" } }
            parameters { value { string_value: "other" } key: "elsewhere" }
            parameters { key: "device" }
            parameters { key: "symbols" value { string_value: "seq=1..9" } }
            sequence_batching {
              max_sequence_idle_microseconds: 5000000
              state [ { input_name: "h" output_name: "hn" data_type: TYPE_FP32 dims: [ 1, -1 ] },
                      { output_name: "cn" input_name: "c" } ]
            }
        "#;
        assert_eq!(
            settings(text),
            Ok(Settings {
                class: Class::RealTime,
                queue_capacity: NonZeroUsize::new(12),
                device: Some("host:1".into()),
                symbols: size_ranges("seq=1..9").unwrap(),
                state: "h=hn,c=cn".parse().unwrap(),
                session_idle_ms: NonZeroU64::new(5000),
                ignored: ["input.reshape", "instance_group", "dynamic_batching.default_queue_policy.timeout_action"]
                    .map(str::to_owned)
                    .into(),
                ..Settings::default()
            })
        );
        assert_eq!(settings(""), Ok(Settings::default()));
    }

    #[test]
    fn batching_is_read() {
        let options = |text: &str| settings(text).unwrap().batching();
        let gathered = options(
            "max_batch_size: 16 dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100 }",
        );
        let gathered = gathered.unwrap();
        assert_eq!((gathered.max_batch_size.get(), gathered.gathers), (16, true));
        assert_eq!((gathered.preferred, gathered.max_queue_delay), (vec![4, 8], Some(Duration::from_micros(100))));
        assert!(options("dynamic_batching {} max_batch_size: 2").unwrap().gathers);
        assert!(!options("max_batch_size: 2").unwrap().gathers, "as with Triton");
        let real_time = "max_batch_size: 2 parameters { key: 'batch_real_time' value { string_value: 'true' } }";
        assert!(options(real_time).unwrap().real_time);
        assert_eq!(options("max_batch_size: 0 dynamic_batching { }"), None);
        for text in ["max_batch_size: -1", "max_batch_size: 8 dynamic_batching { preferred_batch_size: x }"] {
            assert!(settings(text).is_err(), "{text}");
        }
    }

    #[test]
    fn labels_are_read_and_what_is_not_honoured_is_named() {
        let text = "output [ { name: 'fc6_1' data_type: TYPE_FP32 dims: [ 1000 ] label_filename: 'labels.txt' }, \
                    { name: 'other' } ] ensemble_scheduling { step [ { model_name: 'a' } ] } model_warmup [ {} ] \
                    version_policy: { latest { num_versions: 2 } } optimization { cuda { graphs: true } } \
                    max_batch_size: 0";
        let settings = settings(text).unwrap();
        assert_eq!(settings.labels, [("fc6_1".to_owned(), "labels.txt".to_owned())].into());
        assert_eq!(settings.ignored, ["ensemble_scheduling", "model_warmup", "version_policy", "optimization"]);
        let many = (0..100).map(|n| format!("field_{n}: 1 ")).collect::<String>();
        assert_eq!(super::settings(&many).unwrap().ignored.len(), IGNORED_FIELDS_MAX);
    }

    #[test]
    fn the_response_cache_is_read() {
        assert!(settings("response_cache { enable: true }").unwrap().response_cache);
        assert!(!settings("response_cache { enable: false }").unwrap().response_cache);
    }

    #[test]
    fn damaged_ones_are_refused() {
        for text in ["a {", "a }", "a: ", "a: [1", "a: \"x", ": 1", "a: [[1]]", &"a {".repeat(40)] {
            assert!(settings(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_text_ends(text in "[a-c{}<>\\[\\]:,;\"'\\\\# \n0-9é]{0,60}") {
            let _ = settings(&text);
        }
    }
}
