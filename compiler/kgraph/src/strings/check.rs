//! Validates the strings of a graph.

use super::format::{StringOp, StringOperand, Strings};
use crate::graph::{BufferKind, DType, KernelGraph};
use crate::limits::{STRING_STEPS_MAX, STRING_TABLE_BYTES_MAX, STRING_TABLE_MAX};
use std::collections::HashSet;

impl StringOp {
    /// Element types of the results.
    pub fn results(&self) -> &[DType] {
        match self {
            StringOp::Concat | StringOp::Tokenize { .. } | StringOp::Normalize { .. } | StringOp::Write { .. } => {
                &[DType::Strings]
            }
            StringOp::Parse { to } => std::slice::from_ref(to),
            StringOp::FullMatch { .. } => &[DType::Bool],
            StringOp::Split { .. } => &[DType::Strings, DType::I64],
        }
    }
}

/// Checks the table and the steps.
///
/// # Errors
/// A place, and what is wrong there.
pub(crate) fn check(graph: &KernelGraph) -> Result<(), (String, String)> {
    let Strings { table, steps } = &graph.strings;
    let of_table = |reason: &str| Err(("strings".to_owned(), reason.to_owned()));
    let bytes: usize = table.iter().map(String::len).sum();
    if table.len() > STRING_TABLE_MAX || bytes > STRING_TABLE_BYTES_MAX || steps.len() > STRING_STEPS_MAX {
        return of_table("too many strings or steps");
    }
    let uses_strings = !steps.is_empty() || graph.buffers.iter().any(|buffer| buffer.dtype == DType::Strings);
    if uses_strings && table.first().is_none_or(|text| !text.is_empty()) {
        return of_table("the first string of the table is the empty one");
    }
    let distinct: HashSet<&String> = table.iter().collect();
    if distinct.len() != table.len() {
        return of_table("a string is in the table twice");
    }
    steps_fit(graph)
}

/// Operands refer to earlier inputs of the right type, and results have the types of their inputs.
fn steps_fit(graph: &KernelGraph) -> Result<(), (String, String)> {
    let inputs: Vec<DType> = graph.buffers_of(BufferKind::Input).map(|(_, input)| input.dtype).collect();
    let Some(mut next) = inputs.len().checked_sub(graph.strings.computed_inputs()) else {
        return Err(("strings".into(), "the graph has fewer inputs than its steps compute".into()));
    };
    for step in &graph.strings.steps {
        let refuse = |reason: &str| Err((step.name.clone(), reason.to_owned()));
        if step.operands.len() != step.op.operands() {
            return refuse("the step has another number of operands");
        }
        for operand in &step.operands {
            match operand {
                StringOperand::Input(input) | StringOperand::Flat(input) => {
                    let input = *input as usize;
                    if input >= next || inputs[input] != step.op.operand_type() {
                        return refuse("an operand has another type, or comes later");
                    }
                }
                StringOperand::Constant { shape, codes } => {
                    if step.op.operand_type() != DType::Strings {
                        return refuse("a constant has strings, and the step reads numbers");
                    }
                    if !names_strings(graph, shape, codes) {
                        return refuse(
                            "a constant has no strings: its shape has another size, or the table ends before",
                        );
                    }
                }
            }
        }
        let results = step.op.results();
        if inputs.get(next..next + results.len()) != Some(results) {
            return refuse("the element types of its results differ from those of the inputs that it computes");
        }
        if let Err(reason) = step.op.check() {
            return Err((step.name.clone(), reason));
        }
        next += results.len();
    }
    Ok(())
}

/// Whether each code of a constant is one of the table, and its shape has as many elements as codes.
fn names_strings(graph: &KernelGraph, shape: &[i64], codes: &[u32]) -> bool {
    let count = shape.iter().try_fold(1_i64, |count, size| count.checked_mul(*size));
    let is_code = |code: &u32| (*code as usize) < graph.strings.table.len();
    shape.iter().all(|size| *size >= 0) && count == i64::try_from(codes.len()).ok() && codes.iter().all(is_code)
}
