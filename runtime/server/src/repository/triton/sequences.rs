//! The part of the configuration about sequences.

use super::tree::{Message, decimal, short};
use crate::repository::settings::{DynamicBatching, Settings};
use crate::sequences::control::{Content, Control, Flag};
use atoll_kgraph::{StatePair, States};
use atoll_protocol::DataType;
use std::num::NonZeroU64;

/// Reads the control inputs and the states of a model, how long an idle sequence is kept, and how
/// steps of different sequences are gathered.
///
/// # Errors
/// If a control input is incomplete, or a state begins with the contents of a file.
pub(super) fn read(config: &Message, settings: &mut Settings) -> Result<(), String> {
    let Some(sequences) = config.message("sequence_batching") else { return Ok(()) };
    let idle: Option<u64> = sequences.number("max_sequence_idle_microseconds")?;
    settings.session_idle_ms = idle.map(|us| us.div_ceil(1000)).and_then(NonZeroU64::new);
    super::one_of(sequences, &["direct", "oldest"])?;
    settings.controls = controls(sequences)?;
    settings.state = states(sequences)?;
    settings.runs_sequences = !settings.controls.is_empty() || settings.state != States::None;
    if settings.runs_sequences {
        settings.dynamic_batching = settings.max_batch_size.map(|_| gathering(sequences)).transpose()?;
    }
    Ok(())
}

/// How steps of different sequences are gathered. A model with states runs each step alone.
fn gathering(sequences: &Message) -> Result<DynamicBatching, String> {
    let strategy = sequences.message("direct").or(sequences.message("oldest"));
    let Some(strategy) = strategy else { return Ok(DynamicBatching::default()) };
    Ok(DynamicBatching {
        preferred_batch_size: strategy.numbers("preferred_batch_size")?,
        max_queue_delay_microseconds: strategy.number("max_queue_delay_microseconds")?,
        ..DynamicBatching::default()
    })
}

/// The kinds of control inputs by name and number, in the order of their numbers. The first is the
/// default, as in protobuf. The last one is the id of the sequence.
const KINDS: [(&str, &str, Option<Flag>); 4] = [
    ("CONTROL_SEQUENCE_START", "0", Some(Flag::Starts)),
    ("CONTROL_SEQUENCE_READY", "1", Some(Flag::IsReady)),
    ("CONTROL_SEQUENCE_END", "2", Some(Flag::Ends)),
    ("CONTROL_SEQUENCE_CORRID", "3", None),
];

/// Data types of the id of a sequence.
const ID_TYPES: [DataType; 5] = [DataType::Uint64, DataType::Int64, DataType::Uint32, DataType::Int32, DataType::Bytes];

fn controls(sequences: &Message) -> Result<Vec<Control>, String> {
    let mut controls: Vec<Control> = Vec::new();
    for input in sequences.messages("control_input") {
        let name = input.text("name").filter(|name| !name.is_empty());
        let name = name.ok_or("one of sequence_batching.control_input has no name")?;
        let about = format!("the control input `{}` of sequence_batching", short(name));
        if controls.iter().any(|other| other.name == name) {
            return Err(format!("{about} is declared twice; keep one"));
        }
        let mut all = input.messages("control");
        let (Some(control), None) = (all.next(), all.next()) else {
            return Err(format!("{about} has {} entries in `control`, and needs one", input.count("control")));
        };
        let (datatype, content) = content(control).map_err(|reason| format!("{about} {reason}"))?;
        controls.push(Control { name: name.into(), datatype, content });
    }
    Ok(controls)
}

/// The data type of a control input, and what it gets.
fn content(control: &Message) -> Result<(DataType, Content), String> {
    let kind = control.text("kind").map_or("0".into(), decimal);
    let known = KINDS.iter().find(|(name, number, _)| [*name, *number].contains(&kind.as_ref()));
    let (.., flag) = known.ok_or_else(|| format!("has the unknown kind `{}`", short(&kind)))?;
    let Some(flag) = *flag else {
        let declared = super::data_type(control.text("data_type").unwrap_or_default());
        let datatype = ID_TYPES.into_iter().find(|datatype| datatype.config_name() == declared);
        return Ok((
            datatype.ok_or_else(|| {
                let known = ID_TYPES.map(DataType::config_name).join(", ");
                format!("has the data_type `{}`; the id of a sequence has one of {known}", short(&declared))
            })?,
            Content::Id,
        ));
    };
    let (datatype, values) = values(control)?;
    Ok((datatype, Content::Flag { flag, values }))
}

/// The values of a flag that is not set and of one that is, as bytes.
fn values(control: &Message) -> Result<(DataType, [Vec<u8>; 2]), String> {
    const FIELDS: [(&str, DataType); 3] = [
        ("int32_false_true", DataType::Int32),
        ("fp32_false_true", DataType::Fp32),
        ("bool_false_true", DataType::Bool),
    ];
    let mut set = FIELDS.iter().filter(|(field, _)| control.count(field) > 0);
    let (Some((field, datatype)), None) = (set.next(), set.next()) else {
        return Err("needs one of int32_false_true, fp32_false_true and bool_false_true".into());
    };
    let bad = |text: &str| format!("has the value `{}` in {field}, which is not of that type", short(text));
    let bytes = |text: &str| match datatype {
        DataType::Int32 => {
            decimal(text).parse::<i32>().map(|value| value.to_le_bytes().to_vec()).map_err(|_| bad(text))
        }
        DataType::Fp32 => text.parse::<f32>().map(|value| value.to_le_bytes().to_vec()).map_err(|_| bad(text)),
        _ => match text {
            "false" | "False" | "f" | "0" => Ok(vec![0]),
            "true" | "True" | "t" | "1" => Ok(vec![1]),
            other => Err(bad(other)),
        },
    };
    let values = control.texts(field).map(bytes).collect::<Result<Vec<_>, String>>()?;
    let count = values.len();
    let values = values.try_into().map_err(|_| format!("has {count} values in {field}, and needs two"))?;
    Ok((*datatype, values))
}

fn states(sequences: &Message) -> Result<States, String> {
    let pair = |state: &Message| {
        let (input, output) = (state.text("input_name")?, state.text("output_name")?);
        Some(StatePair { input: input.to_owned(), output: output.to_owned() })
    };
    for state in sequences.messages("state") {
        let mut initial = state.messages("initial_state");
        if initial.any(|initial| initial.text("data_file").is_some_and(|file| !file.is_empty())) {
            return Err(format!(
                "sequence_batching.state of `{}` has an initial_state with a data_file, and states begin with zeros; \
                 set zero_data, or serve a model that adds these values itself",
                short(state.text("input_name").unwrap_or_default())
            ));
        }
    }
    let pairs: Vec<StatePair> = sequences.messages("state").filter_map(pair).collect();
    Ok(if pairs.is_empty() { States::None } else { States::Pairs(pairs) })
}

#[cfg(test)]
mod tests {
    use super::super::text::parse;
    use super::*;

    #[test]
    fn a_state_that_begins_with_other_values_than_zeros_is_refused() {
        let of = |initial: &str| {
            let state = "input_name: 'h' output_name: 'hn'";
            let text = format!("sequence_batching {{ state {{ {state} initial_state {{ name: 'i' {initial} }} }} }}");
            let mut settings = Settings::default();
            read(&parse(&text).unwrap(), &mut settings).map(|()| settings.state)
        };
        let pair = StatePair { input: "h".into(), output: "hn".into() };
        assert_eq!(of("zero_data: true"), Ok(States::Pairs(vec![pair])));
        let refused = of("data_file: 'init.bin'").unwrap_err();
        assert!(refused.contains("state of `h`") && refused.contains("begin with zeros"), "{refused}");
    }
    fn controls_of(text: &str) -> Result<Vec<Control>, String> {
        let mut settings = Settings::default();
        read(&parse(&format!("sequence_batching {{ {text} }}")).unwrap(), &mut settings)?;
        Ok(settings.controls)
    }

    #[test]
    fn control_inputs_have_a_kind_and_values_of_a_type() {
        let flag = |flag, values: [&[u8]; 2]| Content::Flag { flag, values: values.map(<[u8]>::to_vec) };
        let one = 1.5_f32.to_le_bytes();
        for (text, datatype, content) in [
            ("int32_false_true: [ 0, 1 ]", DataType::Int32, flag(Flag::Starts, [&[0; 4], &[1, 0, 0, 0]])),
            (
                "kind: CONTROL_SEQUENCE_END fp32_false_true: [ 0, 1.5 ]",
                DataType::Fp32,
                flag(Flag::Ends, [&[0; 4], &one]),
            ),
            ("kind: 1 bool_false_true: [ false, true ]", DataType::Bool, flag(Flag::IsReady, [&[0], &[1]])),
            ("kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64", DataType::Uint64, Content::Id),
            ("kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING", DataType::Bytes, Content::Id),
        ] {
            let expected = Control { name: "c".into(), datatype, content };
            let read = controls_of(&format!("control_input {{ name: 'c' control {{ {text} }} }}"));
            assert_eq!(read, Ok(vec![expected]), "{text}");
        }
    }

    #[test]
    fn incomplete_control_inputs_are_refused() {
        let start = "control { int32_false_true: [ 0, 1 ] }";
        for (text, expected) in [
            (format!("control_input {{ {start} }}"), "has no name"),
            ("control_input { name: 'c' }".into(), "has 0 entries in `control`, and needs one"),
            (format!("control_input {{ name: 'c' {start} {start} }}"), "has 2 entries in `control`"),
            (format!("control_input {{ name: 'c' {start} }}").repeat(2), "`c` of sequence_batching is declared twice"),
        ] {
            let refused = controls_of(&text).unwrap_err();
            assert!(refused.contains(expected), "{text}: {refused}");
        }
        for (text, expected) in [
            ("kind: CONTROL_SEQUENCE_STOP", "has the unknown kind `CONTROL_SEQUENCE_STOP`"),
            ("kind: CONTROL_SEQUENCE_END", "needs one of int32_false_true, fp32_false_true and bool_false_true"),
            ("int32_false_true: [ 0, 1 ] bool_false_true: [ false, true ]", "needs one of"),
            ("int32_false_true: [ 0 ]", "has 1 values in int32_false_true, and needs two"),
            ("int32_false_true: [ 0, 1.5 ]", "has the value `1.5` in int32_false_true"),
            ("bool_false_true: [ 2, 3 ]", "has the value `2` in bool_false_true"),
            ("kind: CONTROL_SEQUENCE_CORRID", "has the data_type ``"),
            ("kind: 3 data_type: TYPE_FP32", "has the data_type `TYPE_FP32`; the id of a sequence has one of"),
        ] {
            let refused = controls_of(&format!("control_input {{ name: 'c' control {{ {text} }} }}")).unwrap_err();
            assert!(refused.contains(expected), "{text}: {refused}");
        }
    }
}
