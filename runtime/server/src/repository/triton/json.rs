//! A configuration in JSON, as clients send it with a load: protobuf's mapping to JSON.

use super::tree::{Message, Value};
use crate::limits::{CONFIG_FIELDS_MAX, SETTINGS_DEPTH_MAX};
use serde_json::Value as Json;

/// Fields that are maps: a JSON object of theirs has an entry for each key.
const MAPS: &[&str] = &[
    "cc_model_filenames",
    "ensemble_scheduling.step.input_map",
    "ensemble_scheduling.step.output_map",
    "dynamic_batching.priority_queue_policy",
    "metric_tags",
    "model_warmup.inputs",
    "parameters",
];

/// Parses a message.
///
/// # Errors
/// If the text is not an object of JSON, is nested too deep, or has too many values.
pub(in crate::repository) fn parse(text: &str) -> Result<Message, String> {
    let json = serde_json::from_str(text).map_err(|error| format!("it is not valid JSON: {error}"))?;
    let Json::Object(fields) = json else { return Err("it is not an object of JSON".into()) };
    let mut values = 0;
    message(String::new(), fields, 0, &mut values)
}

fn message(
    path: String,
    fields: serde_json::Map<String, Json>,
    depth: usize,
    values: &mut usize,
) -> Result<Message, String> {
    if depth > SETTINGS_DEPTH_MAX {
        return Err(format!("nested deeper than {SETTINGS_DEPTH_MAX} messages"));
    }
    let mut message_of = Message::new(path);
    for (name, json) in fields {
        let name = snake(&name);
        let path = message_of.path_of_new(&name)?;
        let all = match json {
            Json::Array(all) => all,
            Json::Null => continue,
            one => vec![one],
        };
        for json in all {
            *values += 1;
            if *values > CONFIG_FIELDS_MAX {
                return Err(format!("more than {CONFIG_FIELDS_MAX} values"));
            }
            match json {
                Json::Object(entries) if MAPS.contains(&path.as_str()) => {
                    for (key, json) in entries {
                        let entry = [("key".to_owned(), Json::String(key)), ("value".to_owned(), json)];
                        let entry = message(path.clone(), entry.into_iter().collect(), depth + 1, values)?;
                        message_of.fields.push((name.clone(), Value::Message(entry)));
                    }
                }
                Json::Object(fields) => {
                    let inner = message(path.clone(), fields, depth + 1, values)?;
                    message_of.fields.push((name.clone(), Value::Message(inner)));
                }
                Json::Array(_) => return Err(format!("`{path}` has a list inside a list")),
                Json::Null => {}
                Json::String(text) => message_of.fields.push((name.clone(), Value::Scalar(text))),
                other => message_of.fields.push((name.clone(), Value::Scalar(other.to_string()))),
            }
        }
    }
    Ok(message_of)
}

/// A name as in the text format: JSON also has `maxBatchSize`.
fn snake(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for letter in name.chars() {
        if letter.is_ascii_uppercase() {
            text.push('_');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::text;
    use super::*;

    #[test]
    fn json_and_text_have_the_same_trees() {
        for (json, expected) in [
            ("{}", ""),
            (
                r#"{"name": "a", "maxBatchSize": 4, "max_batch_size": 8}"#,
                "max_batch_size: 4 max_batch_size: 8 name: 'a'",
            ),
            (
                r#"{"versionPolicy": {"specific": {"versions": ["1", 3]}}}"#,
                "version_policy { specific { versions: [1, 3] } }",
            ),
            (r#"{"response_cache": {"enable": true}, "runtime": null}"#, "response_cache { enable: true }"),
            (
                r#"{"parameters": {"device": {"string_value": "host:1"}}}"#,
                "parameters { key: 'device' value { string_value: 'host:1' } }",
            ),
        ] {
            let sorted = |mut message: Message| {
                message.fields.sort_by(|a, b| a.0.cmp(&b.0));
                message
            };
            assert_eq!(parse(json).map(sorted), text::parse(expected).map(sorted), "{json}");
        }
    }

    #[test]
    fn damaged_ones_are_refused() {
        let deep = format!("{}1{}", r#"{"a":"#.repeat(20), "}".repeat(20));
        for (json, expected) in [
            ("", "not valid JSON"),
            ("[]", "not an object"),
            (r#"{"a": [[1]]}"#, "a list inside a list"),
            (&deep, "nested deeper"),
        ] {
            let message = parse(json).unwrap_err();
            assert!(message.contains(expected), "{message}");
        }
        let long = format!(r#"{{"{}": 1}}"#, "N".repeat(40));
        assert!(parse(&long).unwrap_err().contains("has 80 bytes"), "as it is in the text format");
        let many = format!(r#"{{"a": [{}1]}}"#, "1,".repeat(CONFIG_FIELDS_MAX));
        assert!(parse(&many).unwrap_err().contains("values"));
    }
}
