//! Pairs inputs and outputs that are one state: as the options name them, or by the naming
//! conventions of exporters.

use super::error::ImportError;
use super::options::ImportOptions;
use crate::size::{canonical, same, same_shape};
use crate::tensor_graph::{Growth, State, TensorGraph, Value, ValueId};
use atoll_kgraph::{Condition, Expr, Relation, StatePair, States};
use std::collections::HashSet;

/// Naming conventions: if the input's name contains the left part, the output's name has the right
/// part in its place.
const PARTS: [(&str, &str); 5] = [
    ("past_key_values", "present"),
    ("past_key_values", "present_key_values"),
    ("past", "present"),
    ("_in", "_out"),
    ("0", "n"),
];

/// Naming conventions: a prefix and a suffix that are added to the input's name.
const AFFIXES: [(&str, &str); 7] =
    [("", "N"), ("", "n"), ("", "_n"), ("", "_out"), ("", "_new"), ("new_", ""), ("next_", "")];

/// Finds the states of a graph, and adds a condition for the capacity of those that grow.
pub(super) fn find(graph: &mut TensorGraph, options: &ImportOptions) -> Result<(), ImportError> {
    let states = match &options.states {
        States::None => return Ok(()),
        States::Auto => by_names(graph, options)?,
        States::Pairs(pairs) => pairs.iter().map(|pair| named(graph, pair, options)).collect::<Result<Vec<_>, _>>()?,
    };
    let (inputs, outputs): (HashSet<usize>, HashSet<usize>) =
        states.iter().map(|state| (state.input, state.output)).unzip();
    if inputs.len() < states.len() || outputs.len() < states.len() {
        return Err(invalid("states", "an input or an output is named twice".into()));
    }
    if let Some(step) = graph.strings.steps.first() {
        return Err(invalid(&format!("node {}", step.name), "a model with states cannot compute new strings".into()));
    }
    if let Some(element) = graph.elements.iter().find(|element| inputs.contains(&(element.input as usize))) {
        let name = &graph.value(graph.inputs[element.input as usize]).name;
        return Err(invalid(
            &format!("state {name}"),
            "its elements are sizes, which every request must send; a session cannot keep them".into(),
        ));
    }
    for State { input, output, growth } in &states {
        let Some(growth) = growth else { continue };
        let (name, total) = (
            graph.value(graph.inputs[*input]).name.clone(),
            graph.value(graph.outputs[*output]).shape[growth.axis].clone(),
        );
        let condition = Condition {
            place: format!("state {name}"),
            relation: Relation::AtLeast,
            left: Expr::Const(growth.capacity),
            right: total,
        };
        let is_known = |known: &Condition| {
            (known.relation, &known.left, &known.right) == (Relation::AtLeast, &condition.left, &condition.right)
        };
        if !graph.conditions.iter().any(is_known) {
            graph.conditions.push(condition);
        }
    }
    graph.states = states;
    Ok(())
}

/// Pairs whose names follow a convention and whose shapes are those of a state.
fn by_names(graph: &TensorGraph, options: &ImportOptions) -> Result<Vec<State>, ImportError> {
    let mut states: Vec<State> = Vec::new();
    for input in 0..graph.inputs.len() {
        let name = &graph.value(graph.inputs[input]).name;
        let output_of = |candidate: String| position(graph, &graph.outputs, &candidate);
        let outputs: Vec<usize> = candidates(name).into_iter().filter_map(output_of).collect();
        let free = outputs.into_iter().filter(|output| states.iter().all(|state| state.output != *output));
        for output in free {
            // A name alone is weak evidence; the shapes must be those of a state as well.
            if let Ok(form) = form(graph, input, output) {
                states.push(State {
                    input,
                    output,
                    growth: form.map(|form| checked(graph, form, name, options)).transpose()?,
                });
                break;
            }
        }
    }
    if states.is_empty() {
        let reason = format!(
            "no input and output form a state: by their names, and with the same shape or one that is longer on one \
             axis; inputs are {}, outputs are {}; name the states, for example `--state INPUT=OUTPUT`",
            names(graph, &graph.inputs),
            names(graph, &graph.outputs)
        );
        return Err(invalid("states", reason));
    }
    Ok(states)
}

fn candidates(input: &str) -> Vec<String> {
    let parts = PARTS.iter().filter(|(from, _)| input.contains(from)).map(|(from, to)| input.replacen(from, to, 1));
    parts.chain(AFFIXES.iter().map(|(before, behind)| format!("{before}{input}{behind}"))).collect()
}

fn named(graph: &TensorGraph, pair: &StatePair, options: &ImportOptions) -> Result<State, ImportError> {
    let place = format!("state {}", pair.input);
    let at = |list: &[ValueId], name: &str, what: &str| {
        position(graph, list, name)
            .ok_or_else(|| invalid(&place, format!("the model has no {what} {name}; it has {}", names(graph, list))))
    };
    let (input, output) = (at(&graph.inputs, &pair.input, "input")?, at(&graph.outputs, &pair.output, "output")?);
    let form = form(graph, input, output).map_err(|reason| invalid(&place, reason))?;
    Ok(State { input, output, growth: form.map(|form| checked(graph, form, &pair.input, options)).transpose()? })
}

/// How an input and an output are a state, by their shapes: `None` if they have the same shape, a
/// growth if the output is longer on one axis.
fn form(graph: &TensorGraph, input: usize, output: usize) -> Result<Option<Growth>, String> {
    let (before, after): (&Value, &Value) = (graph.value(graph.inputs[input]), graph.value(graph.outputs[output]));
    let differ = || {
        format!(
            "input {} and output {} are not a state: their types differ, or their shapes differ in more than one axis",
            before.name, after.name
        )
    };
    if before.dtype != after.dtype || before.shape.len() != after.shape.len() {
        return Err(differ());
    }
    if same_shape(&before.shape, &after.shape) {
        return Ok(None);
    }
    let axes: Vec<usize> =
        (0..before.shape.len()).filter(|axis| !same(&before.shape[*axis], &after.shape[*axis])).collect();
    let [axis] = axes[..] else { return Err(differ()) };
    let Expr::Symbol(past) = before.shape[axis] else {
        return Err(format!(
            "its axis {axis} grows from {} to {}, but only a symbolic size can grow; export the axis as dynamic",
            before.shape[axis], after.shape[axis]
        ));
    };
    let added = canonical(&(after.shape[axis].clone() - before.shape[axis].clone()));
    if added.depends_on(past) {
        return Err(format!(
            "a step adds {} to its axis {axis}, which depends on the length of that axis",
            added.named(&graph.symbols)
        ));
    }
    Ok(Some(Growth { axis, past, capacity: graph.symbols[past.0 as usize].max }))
}

/// Checks that the user chose the range of a growth, because a session allocates memory for the
/// largest size, and that it begins at 0.
fn checked(graph: &TensorGraph, growth: Growth, name: &str, options: &ImportOptions) -> Result<Growth, ImportError> {
    let spec = &graph.symbols[growth.past.0 as usize];
    let place = format!("state {name}");
    if spec.max >= options.symbol_max
        && !options.symbols.contains_key(&spec.name)
        && !options.common.contains_key(&spec.name)
    {
        let reason = format!(
            "it grows along `{0}`; set its largest size, for example `--symbol {0}=0..1024`: each session allocates \
             memory for that size",
            spec.name
        );
        return Err(invalid(&place, reason));
    }
    if spec.min > 0 {
        let reason = format!(
            "it grows along `{0}`, which is 0 when a session begins, but {1}; begin its range at 0, for example \
             `--symbol {0}=0..{2}`",
            spec.name,
            spec.range_text(),
            spec.max
        );
        return Err(invalid(&place, reason));
    }
    Ok(growth)
}

/// The two dimension names of which `name` is the sum. Exporters call the length of a mask
/// `past_sequence_length + sequence_length`.
pub(super) fn sum<'n>(name: &'n str, params: &HashSet<&str>) -> Option<(&'n str, &'n str)> {
    let (a, b) = name.split_once('+').map(|(a, b)| (a.trim(), b.trim()))?;
    (params.contains(a) && params.contains(b)).then_some((a, b))
}

fn position(graph: &TensorGraph, list: &[ValueId], name: &str) -> Option<usize> {
    list.iter().position(|id| graph.value(*id).name == name)
}

fn names(graph: &TensorGraph, list: &[ValueId]) -> String {
    let names: Vec<&str> = list.iter().map(|id| graph.value(*id).name.as_str()).collect();
    names.join(", ")
}

fn invalid(place: &str, reason: String) -> ImportError {
    ImportError::Invalid { place: place.into(), reason }
}
