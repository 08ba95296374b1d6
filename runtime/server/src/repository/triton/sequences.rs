//! The part of the configuration about sequences.

use super::tree::Message;
use crate::repository::settings::Settings;
use atoll_kgraph::{StatePair, States};
use std::num::NonZeroU64;

/// Reads the states of a model and how long an idle sequence is kept.
pub(super) fn read(config: &Message, settings: &mut Settings) -> Result<(), String> {
    let Some(sequences) = config.message("sequence_batching") else { return Ok(()) };
    let idle: Option<u64> = sequences.number("max_sequence_idle_microseconds")?;
    settings.session_idle_ms = idle.map(|us| us.div_ceil(1000)).and_then(NonZeroU64::new);
    let pair = |state: &Message| {
        let (input, output) = (state.text("input_name")?, state.text("output_name")?);
        Some(StatePair { input: input.to_owned(), output: output.to_owned() })
    };
    let pairs: Vec<StatePair> = sequences.messages("state").filter_map(pair).collect();
    if !pairs.is_empty() {
        settings.state = States::Pairs(pairs);
    }
    Ok(())
}
