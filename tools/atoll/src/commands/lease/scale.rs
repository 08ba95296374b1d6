//! `atoll lease scale`: decisions on the number of replicas, as a filter.

use super::rule::Rule;
use crate::failure::user_error;
use crate::output::print;
use anyhow::Result;
use std::io::BufRead;

pub(super) const EXAMPLES: &str = "\
Examples:
  atoll lease scale < measurements.jsonl

The first line of standard input has settings, as the table [scaling] of a model. Each further line has the \
measurements of an interval, and is answered by a line: the shares of replicas to add, replicas to resize and \
to remove, and why; or an error. `points` in a line are those of the answer to GET /v2/models/NAME/profile; \
without them, `service_ns` is the mean device time of a request. The program that runs the command starts and \
ends the replicas; it ends the command by closing its standard input.";

/// Answers each line of standard input, until it ends.
pub(super) fn run() -> Result<()> {
    let mut lines = std::io::stdin().lock().lines();
    let Some(settings) = lines.next().transpose()? else {
        return Err(user_error("standard input is empty; its first line has the settings"));
    };
    let mut rule = Rule::new(&settings).map_err(user_error)?;
    for line in lines {
        print(&format!("{}\n", rule.answer(&line?)))?;
    }
    Ok(())
}
