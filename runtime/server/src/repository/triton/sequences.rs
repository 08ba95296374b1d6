//! The part of the configuration about sequences.

use super::tree::{Message, short};
use crate::repository::settings::{Declared, Settings};
use atoll_kgraph::{StatePair, States};
use std::num::NonZeroU64;

/// Reads the states of a model and how long an idle sequence is kept.
///
/// # Errors
/// If a state begins with the contents of a file.
pub(super) fn read(config: &Message, settings: &mut Settings) -> Result<(), String> {
    let Some(sequences) = config.message("sequence_batching") else { return Ok(()) };
    let idle: Option<u64> = sequences.number("max_sequence_idle_microseconds")?;
    settings.session_idle_ms = idle.map(|us| us.div_ceil(1000)).and_then(NonZeroU64::new);
    super::one_of(sequences, &["direct", "oldest"])?;
    // Clients send the inputs that Triton fills in.
    if !settings.inputs.is_empty() {
        let names = sequences.messages("control_input").filter_map(|control| control.text("name"));
        for name in names {
            if !settings.inputs.iter().any(|input| input.name == name) {
                let control = Declared { name: name.into(), data_type: None, dims: None, reshape: None };
                settings.inputs.push(control);
            }
        }
    }
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
    if !pairs.is_empty() {
        settings.state = States::Pairs(pairs);
    }
    Ok(())
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
}
