//! The fields of Triton's configuration, and what becomes of each here.

use super::ensemble::is_ensemble;
use super::is_delayed;
use super::tree::{Message, Value, decimal, short};
use crate::limits::CONFIG_NOTES_MAX;
use atoll_protocol::{ConfigNote, ConfigTreatment};

/// A field of Triton's schema. Fields of a message belong to it unless the table has some of them.
struct Known {
    path: &'static str,
    treatment: ConfigTreatment,
    /// What becomes of it.
    note: &'static str,
    /// Values that change nothing, so that they are not worth a note.
    silent: &'static [&'static str],
}

const fn honoured(path: &'static str, note: &'static str) -> Known {
    Known { path, treatment: ConfigTreatment::Honoured, note, silent: &[] }
}

const fn not_needed(path: &'static str, note: &'static str) -> Known {
    Known { path, treatment: ConfigTreatment::NotNeeded, note, silent: &[] }
}

const fn not_honoured(path: &'static str, note: &'static str) -> Known {
    Known { path, treatment: ConfigTreatment::NotHonoured, note, silent: &[] }
}

impl Known {
    const fn unless(self, silent: &'static [&'static str]) -> Known {
        Known { silent, ..self }
    }
}

/// All fields that Triton documents.
const FIELDS: &[Known] = &[
    honoured("name", "has to be the name of the folder"),
    not_needed("platform", "the form of the model's file says how it runs"),
    not_needed("backend", "the form of the model's file says how it runs"),
    not_honoured("runtime", "no library of the model is loaded").unless(&[""]),
    honoured("version_policy.latest", "the highest versions are served"),
    honoured("version_policy.latest.num_versions", "how many; 1 if absent"),
    honoured("version_policy.all", "all versions are served"),
    honoured("version_policy.specific", "certain versions are served"),
    honoured("version_policy.specific.versions", "their numbers; each has to be there"),
    honoured("max_batch_size", "most rows of a batch; 0 for none"),
    honoured("input.name", "has to be an input of the model"),
    honoured("input.data_type", "has to be that of the model"),
    not_needed("input.format", "the model's own layout holds"),
    honoured("input.dims", "have to fit those of the model, without the rows if `max_batch_size` is above 0"),
    honoured("input.reshape", "clients send `dims`, and the model gets `shape`"),
    not_honoured("input.is_shape_tensor", "tensors are data of the model").unless(&["false"]),
    not_honoured("input.allow_ragged_batch", "requests of one batch have the same sizes").unless(&["false"]),
    not_honoured("input.optional", "one with a default in the ONNX file always has it; others have to be sent")
        .unless(&["false"]),
    not_honoured("input.is_non_linear_format_io", "tensors are dense and row-major").unless(&["false"]),
    honoured("output.name", "has to be an output of the model"),
    honoured("output.data_type", "has to be that of the model"),
    honoured("output.dims", "have to fit those of the model, as with inputs"),
    honoured("output.reshape", "the model gives `shape`, and clients get `dims`"),
    honoured("output.label_filename", "names of classes, a line each, in the model's folder"),
    not_honoured("output.is_shape_tensor", "tensors are data of the model").unless(&["false"]),
    not_honoured("output.is_non_linear_format_io", "tensors are dense and row-major").unless(&["false"]),
    not_honoured("batch_input", "the model gets its own inputs only"),
    not_honoured("batch_output", "each request gets its own rows"),
    not_honoured(
        "optimization",
        "the compiler and the scheduler decide; `class` in `atoll.toml` says what comes first",
    ),
    honoured("dynamic_batching", "requests are gathered if `max_batch_size` is above 0"),
    honoured("dynamic_batching.preferred_batch_size", "sizes of batches to prefer"),
    honoured("dynamic_batching.max_queue_delay_microseconds", "how long a request waits for others"),
    not_honoured("dynamic_batching.preserve_ordering", "requests are answered as they end").unless(&["false"]),
    honoured("dynamic_batching.priority_levels", "level 1 is real-time, the others are best-effort in their order"),
    honoured(
        "dynamic_batching.default_priority_level",
        "the level of requests that state none; 1 makes the model real-time, and such requests wait for others only as \
         their deadlines allow",
    ),
    honoured("dynamic_batching.default_queue_policy.timeout_action", "REJECT: a request whose time has passed fails"),
    honoured(
        "dynamic_batching.default_queue_policy.default_timeout_microseconds",
        "the deadline of requests that state none or a later one; it covers the run, too",
    ),
    not_honoured(
        "dynamic_batching.default_queue_policy.allow_timeout_override",
        "a request may always ask for less time",
    )
    .unless(&["true"]),
    honoured(
        "dynamic_batching.default_queue_policy.max_queue_size",
        "most requests of each class that may wait; if absent or 0, the daemon's `--queue-capacity`",
    ),
    not_honoured("dynamic_batching.priority_queue_policy", "all levels have the default queue policy"),
    honoured(
        "sequence_batching",
        "requests of a sequence run in order, and the `state` pairs are kept between them; without state and \
         `control_input`, requests are independent",
    ),
    honoured("sequence_batching.direct", "steps of different sequences may share a launch; they have no fixed slots"),
    honoured("sequence_batching.direct.max_queue_delay_microseconds", "how long a step waits for others"),
    not_honoured("sequence_batching.direct.minimum_slot_utilization", "there are no slots").unless(&["0", "0.0"]),
    honoured("sequence_batching.oldest", "steps of different sequences may share a launch"),
    not_honoured("sequence_batching.oldest.max_candidate_sequences", "steps of all open sequences are candidates"),
    honoured("sequence_batching.oldest.preferred_batch_size", "sizes of batches to prefer"),
    honoured("sequence_batching.oldest.max_queue_delay_microseconds", "how long a step waits for others"),
    not_needed("sequence_batching.oldest.preserve_ordering", "requests of a sequence are answered in order"),
    honoured("sequence_batching.max_sequence_idle_microseconds", "how long an idle sequence is kept"),
    honoured("sequence_batching.control_input.name", "an input of the model that the daemon fills in"),
    honoured("sequence_batching.control_input.control.kind", "START, END, READY (always true) or CORRID"),
    honoured("sequence_batching.control_input.control.int32_false_true", "the two values of a flag"),
    honoured("sequence_batching.control_input.control.fp32_false_true", "the two values of a flag"),
    honoured("sequence_batching.control_input.control.bool_false_true", "the two values of a flag"),
    honoured("sequence_batching.control_input.control.data_type", "the type of the sequence's id"),
    honoured("sequence_batching.state.input_name", "the input that keeps a state"),
    honoured("sequence_batching.state.output_name", "the output that becomes the input"),
    not_needed("sequence_batching.state.data_type", "that of the model holds"),
    not_needed("sequence_batching.state.dims", "those of the model hold"),
    not_needed("sequence_batching.state.initial_state", "states begin with zeros; a `data_file` is refused"),
    not_needed("sequence_batching.state.use_same_buffer_for_input_output", "it is always one buffer"),
    not_honoured("sequence_batching.state.use_growable_memory", "the memory of a state has its largest size")
        .unless(&["false"]),
    not_honoured("sequence_batching.iterative_sequence", "a request is one step").unless(&["false"]),
    honoured("ensemble_scheduling.step.model_name", "a model or ensemble of the repository, or a deployed function"),
    honoured("ensemble_scheduling.step.model_version", "that version; the newest if it is below 1"),
    honoured("ensemble_scheduling.step.input_map", "the tensor of each input"),
    honoured("ensemble_scheduling.step.output_map", "the tensor of each output"),
    not_honoured("ensemble_scheduling.step.model_namespace", "there is one repository").unless(&[""]),
    not_honoured("ensemble_scheduling.max_inflight_requests", "memory limits the requests that run").unless(&["0"]),
    not_needed("instance_group.name", "runs of a model have no names"),
    not_needed("instance_group.kind", "the model runs on the devices that the daemon was started with"),
    not_honoured(
        "instance_group.count",
        "the scheduler runs as many requests as the device takes; with the parameter `latency_ms`, that many instances",
    )
    .unless(&["0", "1"]),
    honoured("instance_group.gpus", "one GPU: the model is loaded on it; several: the placement policy decides"),
    not_honoured("instance_group.rate_limiter", "shares limit who gets which part of a device"),
    not_honoured("instance_group.secondary_devices", "a model runs on one device at a time"),
    not_honoured("instance_group.profile", "one bundle serves all sizes"),
    not_honoured("instance_group.passive", "instances take requests").unless(&["false"]),
    not_honoured("instance_group.host_policy", "the daemon places its threads by itself"),
    honoured("default_model_filename", "the file of each version; model.kg or model.onnx if absent"),
    not_honoured("cc_model_filenames", "one file serves all devices"),
    not_honoured("metric_tags", "metrics have the labels of the daemon"),
    honoured("parameters.device", "the device to load the model on, as in `host:1`"),
    honoured("parameters.symbols", "ranges of sizes, as in `seq=1..512,batch=8`"),
    honoured("parameters.batch_real_time", "`true`: real-time requests wait for others like best-effort ones"),
    honoured("parameters.latency_ms", "makes as many instances as `instance_group` counts, as `[scaling]` does"),
    honoured("parameters.generate", "`true`: a decoder with state generates tokens, as with `[generation]`"),
    honoured("parameters.max_tokens", "most tokens that a request may ask for, of a model that generates"),
    honoured("parameters.end_token", "the token that ends an answer, of a model that generates"),
    not_honoured("parameters", "only the parameters above are known"),
    honoured("model_warmup.name", "the name of a sample in the log"),
    honoured("model_warmup.batch_size", "rows of the sample; 0 skips it"),
    honoured("model_warmup.count", "how often it runs; once if absent"),
    honoured("model_warmup.inputs", "zeros, random bytes, or a file in the folder `warmup` of the model"),
    not_honoured("model_operations", "no library of the model is loaded"),
    honoured(
        "model_transaction_policy.decoupled",
        "requests are answered on streams only; each has one answer, unless the model generates tokens",
    ),
    not_honoured("model_repository_agents", "files are used as they are"),
    honoured("response_cache.enable", "whether responses are kept and sent again"),
    not_honoured("model_metrics", "metrics have the buckets of the daemon"),
];

/// The fields of Triton's configuration and what becomes of them, for documentation: path,
/// treatment and note.
pub fn config_fields() -> impl Iterator<Item = (&'static str, ConfigTreatment, &'static str)> {
    FIELDS.iter().map(|known| (known.path, known.treatment, known.note))
}

/// What becomes of each field of a configuration, in the order of the file.
pub(super) fn notes(config: &Message) -> Vec<ConfigNote> {
    let mut notes = Vec::new();
    collect(config, &mut notes);
    if is_ensemble(config) {
        notes.iter_mut().for_each(of_ensemble);
    }
    if config.message("sequence_batching").is_some_and(|sequences| sequences.count("state") > 0) {
        notes.iter_mut().for_each(of_state);
    }
    notes
}

/// Corrects what becomes of a field of a model with states, whose steps are not gathered.
fn of_state(note: &mut ConfigNote) {
    if note.field == "max_batch_size" {
        note.note = "tensors have rows in front; each step runs alone, as a batch of one".into();
    }
    let strategies = ["sequence_batching.direct", "sequence_batching.oldest"];
    if strategies.into_iter().any(|strategy| note.field == strategy || is_within(&note.field, strategy)) {
        let text = "each step runs alone, as a batch of one, because the model keeps state";
        (note.treatment, note.note) = (ConfigTreatment::NotHonoured, text.into());
    }
}

fn collect(message: &Message, notes: &mut Vec<ConfigNote>) {
    for (name, value) in &message.fields {
        let path = message.path_of(name);
        let known = FIELDS.iter().find(|known| known.path == path);
        match value {
            Value::Message(entry) if path == "parameters" && entry.text("key").is_some() => {
                let path = format!("{path}.{}", short(entry.text("key").unwrap_or_default()));
                note(notes, &path, FIELDS.iter().find(|known| known.path == path).or(known), "");
            }
            Value::Message(inner) if FIELDS.iter().any(|known| is_within(known.path, &path)) => {
                if known.is_some() {
                    note(notes, &path, known, "");
                }
                collect(inner, notes);
            }
            Value::Message(_) => note(notes, &path, known, ""),
            Value::Scalar(text) => note(notes, &path, special(message, &path, text).or(known), text),
        }
    }
}

const UNKNOWN: Known = not_honoured("", "the daemon does not know the field");

/// The timeout action that is not honoured.
const DELAY: Known = not_honoured(
    "dynamic_batching.default_queue_policy.timeout_action",
    "DELAY: requests are not put off, so the model has no default timeout",
);

/// The timeout of a queue with that action.
const TIMEOUT_OF_DELAY: Known = not_honoured(
    "dynamic_batching.default_queue_policy.default_timeout_microseconds",
    "with the timeout action DELAY there is none",
);

/// A queue without a limit.
const UNLIMITED: Known = not_honoured(
    "dynamic_batching.default_queue_policy.max_queue_size",
    "0: each queue is bounded; the daemon's `--queue-capacity` holds, 64 if absent",
);

/// What becomes of a field with this value in this message, if it is not what the table says.
fn special(message: &Message, path: &str, value: &str) -> Option<&'static Known> {
    let delayed = [&DELAY, &TIMEOUT_OF_DELAY].into_iter().find(|known| known.path == path);
    let unlimited = Some(&UNLIMITED).filter(|known| known.path == path && decimal(value) == "0");
    delayed.filter(|_| is_delayed(message)).or(unlimited)
}

/// Fields that an ensemble honours. The others are those of the models that it calls.
const OF_ENSEMBLES: &[&str] = &[
    "name",
    "max_batch_size",
    "input.name",
    "input.data_type",
    "input.dims",
    "output.name",
    "output.data_type",
    "output.dims",
    "output.label_filename",
];

/// Corrects what becomes of a field of an ensemble.
fn of_ensemble(note: &mut ConfigNote) {
    let field = note.field.as_str();
    let holds = OF_ENSEMBLES.contains(&field) || is_within(field, "ensemble_scheduling");
    if holds || note.treatment != ConfigTreatment::Honoured {
        return;
    }
    let text = match field {
        "response_cache.enable" => "responses of ensembles are not kept; those of the models that it calls can be",
        _ if is_within(field, "version_policy") => "an ensemble has the version 1",
        _ if is_within(field, "model_warmup") => "ensembles run no samples; the models that it calls run theirs",
        _ => "an ensemble has none of its own; the configurations of the models that it calls hold",
    };
    (note.treatment, note.note) = (ConfigTreatment::NotHonoured, text.into());
}

/// Whether a field lies in a message.
fn is_within(field: &str, message: &str) -> bool {
    field.strip_prefix(message).is_some_and(|rest| rest.starts_with('.'))
}

fn note(notes: &mut Vec<ConfigNote>, path: &str, known: Option<&Known>, value: &str) {
    let known = known.unwrap_or(&UNKNOWN);
    let is_silent = known.silent.contains(&value) && known.treatment == ConfigTreatment::NotHonoured;
    // Repeated fields are named once.
    if is_silent || notes.len() == CONFIG_NOTES_MAX || notes.iter().any(|note| note.field == path) {
        return;
    }
    notes.push(ConfigNote { field: path.into(), treatment: known.treatment, note: known.note.into() });
}

#[cfg(test)]
mod tests {
    use super::super::text::parse;
    use super::*;

    fn named(text: &str, treatment: ConfigTreatment) -> Vec<String> {
        let notes = notes(&parse(text).unwrap()).into_iter();
        notes.filter(|note| note.treatment == treatment).map(|note| note.field).collect()
    }

    #[test]
    fn what_is_not_honoured_is_named_once() {
        let text = r#"
            name: "m" backend: "onnxruntime" optimization { cuda { graphs: true } priority: PRIORITY_MAX }
            input [ { name: "a" optional: true format: FORMAT_NCHW }, { name: "b" optional: true } ]
            instance_group [ { count: 2 kind: KIND_GPU rate_limiter { priority: 2 } }, { count: 4 } ]
            dynamic_batching { preserve_ordering: false priority_queue_policy { key: 1 value { max_queue_size: 2 } } }
            parameters { key: "device" value { string_value: "host:1" } }
            parameters { value { string_value: "x" } key: "EXECUTION_MODE" }
            new_field { a: 1 }
        "#;
        let not_honoured = [
            "optimization",
            "input.optional",
            "instance_group.count",
            "instance_group.rate_limiter",
            "dynamic_batching.priority_queue_policy",
            "parameters.EXECUTION_MODE",
            "new_field",
        ];
        assert_eq!(named(text, ConfigTreatment::NotHonoured), not_honoured);
        let honoured = ["name", "input.name", "dynamic_batching", "parameters.device"];
        assert_eq!(named(text, ConfigTreatment::Honoured), honoured);
        assert_eq!(named(text, ConfigTreatment::NotNeeded), ["backend", "input.format", "instance_group.kind"]);
    }

    #[test]
    fn values_that_change_nothing_are_not_named() {
        let text = "dynamic_batching { default_queue_policy { timeout_action: DELAY } }";
        assert_eq!(named(text, ConfigTreatment::NotHonoured), ["dynamic_batching.default_queue_policy.timeout_action"]);
        let text =
            "instance_group { count: 1 } input { optional: false } model_transaction_policy { decoupled: false }";
        assert_eq!(named(text, ConfigTreatment::NotHonoured), Vec::<String>::new());
    }

    #[test]
    fn values_that_contradict_each_other_are_not_honoured_together() {
        let policy = |text: &str| format!("dynamic_batching {{ default_queue_policy {{ {text} }} }}");
        let path = |field: &str| format!("dynamic_batching.default_queue_policy.{field}");
        for action in ["DELAY", "1"] {
            let text = policy(&format!("default_timeout_microseconds: 9 timeout_action: {action} max_queue_size: 0x0"));
            let not_honoured = ["default_timeout_microseconds", "timeout_action", "max_queue_size"].map(path);
            assert_eq!(named(&text, ConfigTreatment::NotHonoured), not_honoured);
        }
        let text = policy("default_timeout_microseconds: 9 max_queue_size: 1 timeout_action: REJECT");
        assert_eq!(named(&text, ConfigTreatment::NotHonoured), Vec::<String>::new());
        assert_eq!(named("sequence_batching { }", ConfigTreatment::Honoured), ["sequence_batching"]);
    }

    #[test]
    fn ensembles_honour_less() {
        let text = "platform: 'ensemble' max_batch_size: 4 input { name: 'x' dims: 4 reshape { shape: 4 } }
            output { name: 'y' label_filename: 'l' } response_cache { enable: true }
            ensemble_scheduling { step { model_name: 'm' } } model_warmup { name: 's' } version_policy { all {} }";
        let honoured = [
            "max_batch_size",
            "input.name",
            "input.dims",
            "output.name",
            "output.label_filename",
            "ensemble_scheduling.step.model_name",
        ];
        assert_eq!(named(text, ConfigTreatment::Honoured), honoured);
        let not_honoured = ["input.reshape", "response_cache.enable", "model_warmup.name", "version_policy.all"];
        assert_eq!(named(text, ConfigTreatment::NotHonoured), not_honoured);
    }

    #[test]
    fn the_list_is_bounded() {
        let many = (0..CONFIG_NOTES_MAX + 9).map(|n| format!("field_{n}: 1 ")).collect::<String>();
        assert_eq!(notes(&parse(&many).unwrap()).len(), CONFIG_NOTES_MAX);
    }

    #[test]
    fn the_table_has_each_field_once() {
        for (at, known) in FIELDS.iter().enumerate() {
            assert!(!FIELDS[..at].iter().any(|before| before.path == known.path), "{}", known.path);
        }
    }
}
