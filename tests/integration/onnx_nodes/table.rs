//! Results of the cases by operator.

use super::case::{Case, Outcome};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// Counts by operator, and reasons of refusals.
#[derive(Default)]
pub(super) struct Table {
    rows: BTreeMap<String, Row>,
}

#[derive(Default)]
struct Row {
    right: usize,
    with_constants: usize,
    /// Refused cases by reason.
    refused: BTreeMap<String, Vec<String>>,
}

impl Table {
    pub(super) fn add(&mut self, case: &Case, outcome: &Outcome) {
        let row = self.rows.entry(operator(case)).or_default();
        match outcome {
            Outcome::Right => row.right += 1,
            Outcome::RightWithConstants => row.with_constants += 1,
            Outcome::Refused(reason) => row.refused.entry(reason.clone()).or_default().push(case.name.clone()),
            Outcome::Wrong(_) => {}
        }
    }

    /// Number of correct cases.
    pub(super) fn run(&self) -> usize {
        self.rows.values().map(|row| row.right + row.with_constants).sum()
    }

    /// Number of refused cases.
    pub(super) fn refused(&self) -> usize {
        self.rows.values().flat_map(|row| row.refused.values()).map(Vec::len).sum()
    }

    /// Each reason with its cases.
    pub(super) fn reasons(&self) -> Vec<String> {
        let all = self
            .rows
            .iter()
            .flat_map(|(operator, row)| row.refused.iter().map(move |(reason, cases)| (operator, reason, cases)));
        all.map(|(operator, reason, cases)| format!("{operator}: {reason}: {}", cases.join(" "))).collect()
    }

    /// Compares the table with the committed one, or writes it.
    pub(super) fn compare(&self, path: &Path) -> Result<()> {
        let text = self.text();
        if std::env::var_os("ATOLL_BLESS").is_some_and(|v| v == "1") {
            std::fs::write(path, text)?;
            return Ok(());
        }
        let committed =
            std::fs::read_to_string(path).with_context(|| format!("{}: run with ATOLL_BLESS=1", path.display()))?;
        ensure!(committed == text, "{} is not what the run found; ATOLL_BLESS=1 writes it", path.display());
        Ok(())
    }

    fn text(&self) -> String {
        let mut text = String::from(HEAD);
        let (run, refused) = (self.run(), self.refused());
        let _ = writeln!(text, "{run} of {} cases run.\n", run + refused);
        text.push_str(
            "| operator | run | of them with constants | refused | reasons |\n| --- | ---: | ---: | ---: | --- |\n",
        );
        for (operator, row) in &self.rows {
            let refused: usize = row.refused.values().map(Vec::len).sum();
            let reasons: Vec<String> =
                row.refused.iter().map(|(reason, cases)| format!("{reason} ({})", cases.len())).collect();
            let reasons = reasons.join("; ").replace('|', "\\|");
            let _ = writeln!(
                text,
                "| {operator} | {} | {} | {refused} | {reasons} |",
                row.right + row.with_constants,
                row.with_constants
            );
        }
        text
    }
}

const HEAD: &str = "# ONNX operators\n
The node cases of the `onnx` package (version in `tests/requirements.txt`), compiled and run on the
host device. A case is right within ONNX's own tolerance. \"With constants\" counts cases that run
once their inputs but the first are constants, as exporters write axes and sizes.
`ATOLL_BLESS=1 make test-full` writes this page.\n\n";

/// The operator that a case tests: that of its only node, or a group of cases.
fn operator(case: &Case) -> String {
    if case.name.contains("_expanded") {
        return "functions, expanded".into();
    }
    let nodes = case.model.graph.iter().flat_map(|graph| &graph.node);
    let mut operators = nodes.filter(|node| node.op_type != "Constant").map(|node| match node.domain.as_str() {
        "" | "ai.onnx" => node.op_type.clone(),
        domain => format!("{domain} {}", node.op_type),
    });
    operators.next_back().unwrap_or_else(|| "Constant".into())
}
