//! Checks the inputs of an invocation against a graph, and finds the values of the graph's symbols.
//!
//! This is the one place where inputs are checked: every way to a function, in this process or over the network, leads through [`bind_symbols`].

use crate::expr::Expr;
use crate::graph::{BufferKind, BufferSpec, DType, KernelGraph};
use std::fmt;

/// An input as it is given: all that is checked of it.
#[derive(Clone, Copy, Debug)]
pub struct InputForm<'a> {
    /// Type of its elements; `None` for strings, which no input takes.
    pub dtype: Option<DType>,
    /// Dimensions, outermost first.
    pub shape: &'a [i64],
    /// How many bytes it has.
    pub bytes: u64,
}

/// Why inputs do not fit a graph. The text is for whoever made the inputs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InputError {
    /// There are too few or too many.
    #[error("{given} inputs are given; the model takes {}: {}", .takes.len(), .takes.join(", "))]
    Count {
        /// How many are given.
        given: usize,
        /// Names of those that the graph takes.
        takes: Vec<String>,
    },
    /// One has another type or shape than the graph takes.
    #[error("input `{name}` is {found}; the model takes {takes}{why}")]
    Form {
        /// The input.
        name: String,
        /// Its type and shape.
        found: String,
        /// Type and shape that the graph takes.
        takes: String,
        /// More about the difference, if there is more to say; begins with `; `.
        why: String,
    },
    /// One has another number of bytes than its type and shape take.
    #[error("input `{name}` has {bytes} bytes; {form} takes {expected}")]
    Bytes {
        /// The input.
        name: String,
        /// How many bytes it has.
        bytes: u64,
        /// Its type and shape.
        form: String,
        /// How many bytes these take.
        expected: String,
    },
    /// No dimension of an input is this symbol.
    #[error("no input's shape determines `{0}`")]
    Undetermined(String),
}

/// `f32 [4, 3]`.
impl fmt::Display for InputForm<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.dtype {
            Some(dtype) => write!(f, "{dtype} {:?}", self.shape),
            None => write!(f, "strings {:?}", self.shape),
        }
    }
}

/// A symbol that no input's shape determines; such a graph cannot be invoked.
pub fn undetermined_symbol(graph: &KernelGraph) -> Option<&str> {
    let is_dimension = |id: usize| {
        let symbol = |dimension: &Expr| matches!(dimension, Expr::Symbol(s) if s.0 as usize == id);
        graph.buffers_of(BufferKind::Input).any(|(_, buffer)| buffer.shape.iter().any(symbol))
    };
    let free = graph.symbols.iter().enumerate().find(|(id, symbol)| symbol.min != symbol.max && !is_dimension(*id));
    free.map(|(_, symbol)| symbol.name.as_str())
}

/// Checks inputs, in the order of the graph's input buffers: their number, types, shapes and bytes. Returns the values of the symbols, in their order.
///
/// # Errors
/// What is wrong with the inputs.
pub fn bind_symbols(graph: &KernelGraph, inputs: &[InputForm<'_>]) -> Result<Vec<i64>, InputError> {
    let specs: Vec<&BufferSpec> = graph.buffers_of(BufferKind::Input).map(|(_, buffer)| buffer).collect();
    if specs.len() != inputs.len() {
        return Err(InputError::Count { given: inputs.len(), takes: specs.iter().map(|spec| spec.name.clone()).collect() });
    }
    let mut values: Vec<Option<i64>> = graph.symbols.iter().map(|symbol| (symbol.min == symbol.max).then_some(symbol.min)).collect();
    for (spec, input) in specs.iter().zip(inputs) {
        if input.dtype != Some(spec.dtype) {
            return Err(mismatch(graph, spec, input, ""));
        }
        bind_dimensions(graph, spec, input, &mut values)?;
    }
    if let Some(unbound) = values.iter().position(Option::is_none) {
        return Err(InputError::Undetermined(graph.symbols[unbound].name.clone()));
    }
    let symbols: Vec<i64> = values.into_iter().flatten().collect();
    for (spec, input) in specs.iter().zip(inputs) {
        check_derived(graph, spec, input, &symbols)?;
        check_bytes(spec, input)?;
    }
    Ok(symbols)
}

fn mismatch(graph: &KernelGraph, spec: &BufferSpec, input: &InputForm<'_>, why: &str) -> InputError {
    let takes = format!("{} {}", spec.dtype, shape_text(graph, &spec.shape));
    InputError::Form { name: spec.name.clone(), found: input.to_string(), takes, why: why.into() }
}

/// Binds dimensions that are symbols, and checks those that are numbers.
fn bind_dimensions(graph: &KernelGraph, spec: &BufferSpec, input: &InputForm<'_>, values: &mut [Option<i64>]) -> Result<(), InputError> {
    if spec.shape.len() != input.shape.len() {
        return Err(mismatch(graph, spec, input, ""));
    }
    for (expected, &actual) in spec.shape.iter().zip(input.shape) {
        match expected {
            Expr::Const(size) if *size != actual => return Err(mismatch(graph, spec, input, "")),
            Expr::Symbol(id) => {
                let symbol = &graph.symbols[id.0 as usize];
                if !(symbol.min..=symbol.max).contains(&actual) {
                    let why = format!("; `{}` is {} to {}", symbol.name, symbol.min, symbol.max);
                    return Err(mismatch(graph, spec, input, &why));
                }
                let value = values[id.0 as usize].get_or_insert(actual);
                if *value != actual {
                    let why = format!("; `{}` is {value} by the inputs before it", symbol.name);
                    return Err(mismatch(graph, spec, input, &why));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Checks dimensions that are computed from symbols.
fn check_derived(graph: &KernelGraph, spec: &BufferSpec, input: &InputForm<'_>, symbols: &[i64]) -> Result<(), InputError> {
    for (expected, &actual) in spec.shape.iter().zip(input.shape) {
        let value = expected.eval(symbols).map_err(|e| mismatch(graph, spec, input, &format!("; {e}")))?;
        if value != actual || value < 0 {
            return Err(mismatch(graph, spec, input, &format!("; {} would be expected in place of {actual}", value)));
        }
    }
    Ok(())
}

fn check_bytes(spec: &BufferSpec, input: &InputForm<'_>) -> Result<(), InputError> {
    let elements = input.shape.iter().try_fold(1_u64, |product, &d| product.checked_mul(u64::try_from(d).ok()?));
    let expected = elements.and_then(|n| n.checked_mul(spec.dtype.bytes()));
    if expected == Some(input.bytes) {
        return Ok(());
    }
    let expected = expected.map_or("more bytes than can be counted".into(), |n| format!("{n} bytes"));
    Err(InputError::Bytes { name: spec.name.clone(), bytes: input.bytes, form: input.to_string(), expected })
}

/// `[batch, 3, (s0 * 2)]`.
fn shape_text(graph: &KernelGraph, shape: &[Expr]) -> String {
    let dimensions: Vec<String> = shape
        .iter()
        .map(|dimension| match dimension {
            Expr::Symbol(id) => graph.symbols[id.0 as usize].name.clone(),
            other => other.to_string(),
        })
        .collect();
    format!("[{}]", dimensions.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expr::SymbolId;
    use crate::graph::{FORMAT_VERSION, SymbolSpec};

    fn graph() -> KernelGraph {
        let [n, m] = [0, 1].map(|id| Expr::from(SymbolId(id)));
        let input = |name: &str, shape: Vec<Expr>| BufferSpec {
            name: name.into(),
            kind: BufferKind::Input,
            dtype: DType::F32,
            shape,
            weights_offset: None,
        };
        let symbol = |name: &str| SymbolSpec { name: name.into(), min: 1, max: 8 };
        KernelGraph {
            format: FORMAT_VERSION,
            name: "toy".into(),
            symbols: vec![symbol("n"), symbol("m")],
            buffers: vec![input("a", vec![n.clone() * 2, Expr::Const(3)]), input("b", vec![n, m])],
            ..KernelGraph::default()
        }
    }

    fn form<'a>(shape: &'a [i64], dtype: DType) -> InputForm<'a> {
        InputForm { dtype: Some(dtype), shape, bytes: shape.iter().product::<i64>() as u64 * dtype.bytes() }
    }

    fn bind(shapes: [&[i64]; 2]) -> Result<Vec<i64>, InputError> {
        bind_symbols(&graph(), &shapes.map(|shape| form(shape, DType::F32)))
    }

    #[test]
    fn symbols_are_unified_over_all_inputs() {
        assert_eq!(bind([&[4, 3], &[2, 5]]), Ok(vec![2, 5]));
        assert_eq!(undetermined_symbol(&graph()), None);
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let of_type = |dtype| bind_symbols(&graph(), &[InputForm { dtype, ..form(&[4, 3], DType::F32) }, form(&[2, 5], DType::F32)]);
        let bytes = InputForm { bytes: 39, ..form(&[2, 5], DType::F32) };
        let refusals = [
            (bind([&[4, 3, 1], &[2, 5]]), "input `a` is f32 [4, 3, 1]; the model takes f32 [(s0 * 2), 3]"),
            (bind([&[4, 2], &[2, 5]]), "input `a` is f32 [4, 2]; the model takes f32 [(s0 * 2), 3]"),
            (bind([&[5, 3], &[2, 5]]), "input `a` is f32 [5, 3]; the model takes f32 [(s0 * 2), 3]; 4 would be expected in place of 5"),
            (bind([&[4, 3], &[2, 9]]), "input `b` is f32 [2, 9]; the model takes f32 [n, m]; `m` is 1 to 8"),
            (of_type(Some(DType::I32)), "input `a` is i32 [4, 3]; the model takes f32 [(s0 * 2), 3]"),
            (of_type(Some(DType::F16)), "input `a` is f16 [4, 3]; the model takes f32 [(s0 * 2), 3]"),
            (of_type(None), "input `a` is strings [4, 3]; the model takes f32 [(s0 * 2), 3]"),
            (bind_symbols(&graph(), &[]), "0 inputs are given; the model takes 2: a, b"),
            (bind_symbols(&graph(), &[form(&[4, 3], DType::F32), bytes]), "input `b` has 39 bytes; f32 [2, 5] takes 40 bytes"),
        ];
        for (found, expected) in refusals {
            assert_eq!(found.expect_err("a refusal").to_string(), expected);
        }
    }

    #[test]
    fn a_symbol_that_nothing_determines_is_found() {
        let mut graph = graph();
        graph.buffers.pop();
        assert_eq!(undetermined_symbol(&graph), Some("n"), "n stands in a product only");
        graph.symbols[0].max = 1;
        assert_eq!(undetermined_symbol(&graph), Some("m"));
    }
}
