//! Reads Triton's `config.pbtxt`, so that a Triton repository can be copied as it is.
//!
//! `text.rs` and `json.rs` read the two forms of a configuration into a tree (`tree.rs`),
//! `fields.rs` has the table of all fields and of what becomes of each, and this file makes the
//! settings of a model from those that are honoured.

pub(super) mod ensemble;
mod fields;
pub(super) mod json;
mod sequences;
pub(super) mod text;
pub(super) mod tree;

pub use fields::config_fields;

use super::scaling::ScalingSettings;
use super::settings::{Declared, DynamicBatching, Settings, Warmup, WarmupData, WarmupInput};
use super::versions::VersionPolicy;
use crate::generation::GenerationSettings;
use crate::grpc::proto::inference::DataType;
use crate::limits::{WARMUP_RUNS_MAX, WARMUP_SAMPLES_MAX};
use atoll_engine::Class;
use atoll_kgraph::size_ranges;
use atoll_protocol::ConfigTreatment;
use atoll_protocol::limits::RANK_MAX;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use tree::{Message, decimal, short};

/// The parameter with the target latency of instances, in milliseconds.
const LATENCY: &str = "latency_ms";

/// Reads the settings of the model `name` from a configuration in protobuf's text format.
///
/// # Errors
/// If the text is not well-formed, or a field that is honoured has no possible value.
pub(super) fn settings(text: &str, name: &str) -> Result<Settings, String> {
    read(&text::parse(text)?, name)
}

/// The same from a configuration in JSON.
pub(super) fn settings_of_json(text: &str, name: &str) -> Result<Settings, String> {
    read(&json::parse(text)?, name)
}

/// Fields that a configuration may have once. Triton refuses a second one, too.
const SINGLE: &[&str] = &[
    "name",
    "platform",
    "backend",
    "version_policy",
    "max_batch_size",
    "optimization",
    "dynamic_batching",
    "sequence_batching",
    "ensemble_scheduling",
    "default_model_filename",
    "model_transaction_policy",
    "response_cache",
];

fn read(config: &Message, name: &str) -> Result<Settings, String> {
    if let Some(twice) = SINGLE.iter().find(|field| config.count(field) > 1) {
        return Err(format!("{twice} is set {} times; keep one", config.count(twice)));
    }
    one_of(config, &["dynamic_batching", "sequence_batching", "ensemble_scheduling"])?;
    if let Some(other) = config.text("name").filter(|other| !other.is_empty() && *other != name) {
        return Err(format!(
            "unexpected directory name '{name}' for model '{}': the two have to be equal, so rename one of them",
            short(other)
        ));
    }
    let mut settings = Settings {
        version_policy: version_policy(config)?,
        max_batch_size: config.number("max_batch_size")?.and_then(NonZeroU32::new),
        labels: labels(config),
        inputs: declared(config, "input")?,
        outputs: declared(config, "output")?,
        warmup: warmup(config)?,
        gpu: gpu(config)?,
        parameters: all_parameters(config).map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        notes: fields::notes(config),
        ..Settings::default()
    };
    sequences::read(config, &mut settings)?;
    batching(config, &mut settings)?;
    if let Some(cache) = config.message("response_cache") {
        settings.response_cache = cache.flag("enable")?;
    }
    if let Some(policy) = config.message("model_transaction_policy") {
        settings.decoupled = policy.flag("decoupled")?;
    }
    parameters(config, &mut settings)?;
    generation(config, &mut settings)?;
    instances(config, &mut settings)?;
    Ok(settings)
}

/// Refuses several fields of which a message has one.
fn one_of(message: &Message, fields: &[&str]) -> Result<(), String> {
    let set = fields.iter().filter(|field| message.count(field) > 0).map(|field| message.path_of(field));
    let set: Vec<String> = set.collect();
    match set.len() > 1 {
        true => Err(format!("{} contradict each other; keep one", set.join(" and "))),
        false => Ok(()),
    }
}

/// The name of a data type, which the text format also takes by its number.
fn data_type(text: &str) -> String {
    let number = decimal(text).parse::<i32>().ok();
    let known = number.and_then(|number| DataType::try_from(number).ok());
    known.map_or(text, |known| known.as_str_name()).to_owned()
}

/// Whether requests whose time has passed are to be put off. Protobuf also takes the number.
fn is_delayed(policy: &Message) -> bool {
    matches!(policy.text("timeout_action"), Some("DELAY" | "1"))
}

fn version_policy(config: &Message) -> Result<VersionPolicy, String> {
    let mut policies = Vec::new();
    for policy in config.messages("version_policy") {
        if let Some(latest) = policy.message("latest") {
            policies.push(VersionPolicy::Latest(latest.number("num_versions")?.unwrap_or(NonZeroU32::MIN)));
        }
        if policy.message("all").is_some() {
            policies.push(VersionPolicy::All);
        }
        if let Some(specific) = policy.message("specific") {
            let versions: BTreeSet<u64> = specific.numbers("versions")?.into_iter().collect();
            if versions.is_empty() {
                return Err("version_policy.specific names no version".into());
            }
            policies.push(VersionPolicy::Specific(versions));
        }
    }
    match policies.len() {
        0 | 1 => Ok(policies.pop().unwrap_or_default()),
        _ => {
            Err("version_policy has several of latest, all and specific, which contradict each other; keep one".into())
        }
    }
}

/// How requests are gathered, and what of their class and their queue.
fn batching(config: &Message, settings: &mut Settings) -> Result<(), String> {
    let Some(dynamic) = config.message("dynamic_batching") else {
        // Triton gathers other requests than those of sequences only if the configuration has the message.
        let none = DynamicBatching { enabled: false, ..DynamicBatching::default() };
        settings.dynamic_batching = settings.dynamic_batching.take().or(settings.max_batch_size.map(|_| none));
        return Ok(());
    };
    let batching = DynamicBatching {
        enabled: true,
        preferred_batch_size: dynamic.numbers("preferred_batch_size")?,
        max_queue_delay_microseconds: dynamic.number("max_queue_delay_microseconds")?,
        real_time: false,
    };
    settings.dynamic_batching = settings.max_batch_size.map(|_| batching);
    let levels = dynamic.number::<u64>("priority_levels")?.unwrap_or(0);
    let level = dynamic.number::<u64>("default_priority_level")?.unwrap_or(0);
    if levels > 0 && level > levels {
        return Err(format!("dynamic_batching.default_priority_level is {level}, and there are {levels} levels"));
    }
    if level == 1 {
        settings.class = Class::RealTime;
    }
    // Level 2 is the first of the best-effort levels.
    settings.default_priority = u32::try_from(level.saturating_sub(2)).unwrap_or(u32::MAX);
    let Some(policy) = dynamic.message("default_queue_policy") else { return Ok(()) };
    settings.queue_capacity = policy.number("max_queue_size")?.and_then(NonZeroUsize::new);
    let timeout = policy.number("default_timeout_microseconds")?.and_then(NonZeroU64::new);
    settings.timeout_us = timeout.filter(|_| !is_delayed(policy));
    Ok(())
}

fn labels(config: &Message) -> BTreeMap<String, String> {
    let of = |output: &Message| Some((output.text("name")?.to_owned(), output.text("label_filename")?.to_owned()));
    config.messages("output").filter_map(of).filter(|(_, file)| !file.is_empty()).collect()
}

/// The tensors as the configuration declares them.
fn declared(config: &Message, field: &str) -> Result<Vec<Declared>, String> {
    let one = |tensor: &Message| -> Result<Declared, String> {
        let name = tensor.text("name").filter(|name| !name.is_empty());
        Ok(Declared {
            name: name.ok_or_else(|| format!("one of `{field}` has no name"))?.to_owned(),
            data_type: tensor.text("data_type").map(data_type),
            dims: Some(sizes(tensor, "dims")?).filter(|dims| !dims.is_empty()),
            reshape: tensor.message("reshape").map(|reshape| sizes(reshape, "shape")).transpose()?,
            optional: tensor.flag("optional")?,
        })
    };
    config.messages(field).map(one).collect()
}

/// The sizes of a shape.
fn sizes(message: &Message, field: &str) -> Result<Vec<i64>, String> {
    let sizes = message.numbers(field)?;
    match sizes.len() > RANK_MAX {
        true => Err(format!("{} has {} sizes; the limit is {RANK_MAX}", message.path_of(field), sizes.len())),
        false => Ok(sizes),
    }
}

fn warmup(config: &Message) -> Result<Vec<Warmup>, String> {
    if config.messages("model_warmup").count() > WARMUP_SAMPLES_MAX {
        return Err(format!("model_warmup has more than {WARMUP_SAMPLES_MAX} samples"));
    }
    let sample = |sample: &Message| -> Result<Warmup, String> {
        let name = sample.text("name").unwrap_or_default().to_owned();
        let runs = sample.number::<u32>("count")?.unwrap_or(0).max(1);
        if runs > WARMUP_RUNS_MAX {
            return Err(format!(
                "the sample `{}` of model_warmup runs {runs} times; at most {WARMUP_RUNS_MAX} are possible",
                short(&name)
            ));
        }
        let rows = sample.number("batch_size")?.unwrap_or(0);
        let inputs = sample.messages("inputs").map(warmup_input).collect::<Result<_, _>>()?;
        Ok(Warmup { name, rows, runs, inputs })
    };
    // As with Triton, a sample with 0 rows is skipped.
    let samples = config.messages("model_warmup").map(sample).collect::<Result<Vec<Warmup>, String>>()?;
    Ok(samples.into_iter().filter(|sample| sample.rows > 0).collect())
}

fn warmup_input(entry: &Message) -> Result<WarmupInput, String> {
    let name = entry.text("key").unwrap_or_default().to_owned();
    let value =
        entry.message("value").ok_or_else(|| format!("the input `{}` of model_warmup has no value", short(&name)))?;
    let data = match (value.flag("zero_data")?, value.flag("random_data")?, value.text("input_data_file")) {
        (true, false, None) => WarmupData::Zeros,
        (false, true, None) => WarmupData::Random,
        (false, false, Some(file)) => WarmupData::File(file.to_owned()),
        _ => {
            return Err(format!(
                "the input `{}` of model_warmup needs one of zero_data, random_data and input_data_file",
                short(&name)
            ));
        }
    };
    let data_type = data_type(value.text("data_type").unwrap_or_default());
    Ok(WarmupInput { name, data_type, dims: sizes(value, "dims")?, data })
}

/// The GPU of all instances, if it is one.
fn gpu(config: &Message) -> Result<Option<u32>, String> {
    let groups = config.messages("instance_group").map(|group| group.numbers::<u32>("gpus"));
    let mut gpus = groups.collect::<Result<Vec<_>, _>>()?.concat();
    gpus.sort_unstable();
    gpus.dedup();
    Ok(if gpus.len() == 1 { gpus.pop() } else { None })
}

/// The parameters that have a value.
fn all_parameters(config: &Message) -> impl Iterator<Item = (&str, &str)> {
    config.messages("parameters").filter_map(|parameter| {
        let value = parameter.message("value")?;
        Some((parameter.text("key")?, value.text("string_value")?))
    })
}

fn parameters(config: &Message, settings: &mut Settings) -> Result<(), String> {
    for (key, value) in all_parameters(config) {
        match key {
            "device" => settings.device = Some(value.to_owned()),
            "symbols" => settings.symbols = size_ranges(value).map_err(|error| error.to_string())?,
            "batch_real_time" => {
                settings.dynamic_batching.iter_mut().for_each(|batching| batching.real_time = value == "true");
            }
            _ => {}
        }
    }
    Ok(())
}

/// How a decoder generates tokens, if the parameter `generate` is true.
fn generation(config: &Message, settings: &mut Settings) -> Result<(), String> {
    let value_of = |name| all_parameters(config).find(|(key, _)| *key == name).map(|(_, value)| value);
    if value_of("generate") != Some("true") {
        return Ok(());
    }
    let mut generation = serde_json::Map::new();
    for name in ["max_tokens", "end_token"] {
        let Some(text) = value_of(name) else { continue };
        let value: u32 = text.parse().map_err(|error| format!("parameters.{name} is `{}`: {error}", short(text)))?;
        generation.insert(name.into(), value.into());
    }
    let generation: GenerationSettings =
        serde_json::from_value(generation.into()).map_err(|error| format!("parameters.max_tokens: {error}"))?;
    settings.generation = Some(generation);
    Ok(())
}

/// Makes as many instances as the groups count, if there is a target latency, without which the
/// daemon cannot say how large they have to be.
fn instances(config: &Message, settings: &mut Settings) -> Result<(), String> {
    let Some((_, latency)) = all_parameters(config).find(|(key, _)| *key == LATENCY) else { return Ok(()) };
    let latency_ms: u64 =
        latency.parse().map_err(|error| format!("parameters.{LATENCY} is `{}`: {error}", short(latency)))?;
    let mut count = 0u32;
    for group in config.messages("instance_group") {
        count = count.saturating_add(group.number::<u32>("count")?.unwrap_or(0).max(1));
    }
    let count = count.max(1);
    let scaling = json!({ "latency_ms": latency_ms, "min_instances": count, "max_instances": count });
    let scaling: ScalingSettings = serde_json::from_value(scaling).map_err(|error| error.to_string())?;
    scaling.check().map_err(|reason| format!("instance_group.count and parameters.{LATENCY}: {reason}"))?;
    settings.scaling = Some(scaling);
    for note in settings.notes.iter_mut().filter(|note| note.field == "instance_group.count") {
        note.treatment = ConfigTreatment::Honoured;
        note.note = format!("that many instances, with the target latency of parameters.{LATENCY}");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
