//! From the shapes of the inputs to the values of the symbols.

use crate::request::InputTensor;
use atoll_kgraph::{BufferKind, BufferSpec, Expr, KernelGraph};

/// What binding looks at of an input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InputShape<'a> {
    /// Dimensions, outermost first.
    pub(crate) shape: &'a [i64],
    /// How many bytes it has.
    pub(crate) bytes: u64,
}

/// A symbol that no input's shape determines; such a graph cannot be invoked.
pub(crate) fn undetermined_symbol(graph: &KernelGraph) -> Option<&str> {
    let is_dimension = |id: usize| {
        let symbol = |dimension: &Expr| matches!(dimension, Expr::Symbol(s) if s.0 as usize == id);
        graph.buffers_of(BufferKind::Input).any(|(_, buffer)| buffer.shape.iter().any(symbol))
    };
    let free = graph.symbols.iter().enumerate().find(|(id, symbol)| symbol.min != symbol.max && !is_dimension(*id));
    free.map(|(_, symbol)| symbol.name.as_str())
}

/// The values of a graph's symbols that these inputs mean, in the order of the symbols.
///
/// # Errors
/// What is wrong with the inputs, for whoever made them.
pub fn symbol_values(graph: &KernelGraph, inputs: &[InputTensor]) -> Result<Vec<i64>, String> {
    let shapes: Vec<InputShape<'_>> =
        inputs.iter().map(|input| InputShape { shape: &input.shape, bytes: input.bytes.len() as u64 }).collect();
    bind_symbols(graph, &shapes)
}

/// Checks the inputs against the graph and finds the symbols' values. The error is for the client and names the input.
pub(crate) fn bind_symbols(graph: &KernelGraph, inputs: &[InputShape<'_>]) -> Result<Vec<i64>, String> {
    let specs: Vec<&BufferSpec> = graph.buffers_of(BufferKind::Input).map(|(_, buffer)| buffer).collect();
    if specs.len() != inputs.len() {
        let names: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
        return Err(format!("{} inputs are given, the function takes {}: {}", inputs.len(), specs.len(), names.join(", ")));
    }
    let mut values: Vec<Option<i64>> = graph.symbols.iter().map(|symbol| (symbol.min == symbol.max).then_some(symbol.min)).collect();
    for (spec, input) in specs.iter().zip(inputs) {
        bind_dimensions(graph, spec, input, &mut values)?;
    }
    let unbound = values.iter().position(Option::is_none).map(|id| &graph.symbols[id].name);
    if let Some(name) = unbound {
        return Err(format!("no input's shape determines `{name}`"));
    }
    let symbols: Vec<i64> = values.into_iter().flatten().collect();
    for (spec, input) in specs.iter().zip(inputs) {
        check_derived(graph, spec, input, &symbols)?;
        check_bytes(spec, input)?;
    }
    Ok(symbols)
}

fn mismatch(graph: &KernelGraph, spec: &BufferSpec, input: &InputShape<'_>, why: &str) -> String {
    format!("input `{}` has shape {:?}, the function takes {}{why}", spec.name, input.shape, shape_text(graph, &spec.shape))
}

/// Binds dimensions that are symbols, and checks those that are numbers.
fn bind_dimensions(graph: &KernelGraph, spec: &BufferSpec, input: &InputShape<'_>, values: &mut [Option<i64>]) -> Result<(), String> {
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
fn check_derived(graph: &KernelGraph, spec: &BufferSpec, input: &InputShape<'_>, symbols: &[i64]) -> Result<(), String> {
    for (expected, &actual) in spec.shape.iter().zip(input.shape) {
        let value = expected.eval(symbols).map_err(|e| mismatch(graph, spec, input, &format!("; {e}")))?;
        if value != actual || value < 0 {
            return Err(mismatch(graph, spec, input, &format!("; {} would be expected in place of {actual}", value)));
        }
    }
    Ok(())
}

fn check_bytes(spec: &BufferSpec, input: &InputShape<'_>) -> Result<(), String> {
    let elements = input.shape.iter().try_fold(1_u64, |product, &d| product.checked_mul(u64::try_from(d).ok()?));
    let expected = elements.and_then(|n| n.checked_mul(spec.dtype.bytes()));
    if expected != Some(input.bytes) {
        let expected = expected.map_or("more bytes than there are".into(), |n| format!("{n} bytes"));
        return Err(format!(
            "input `{}` has {} bytes, shape {:?} of {:?} takes {expected}",
            spec.name, input.bytes, input.shape, spec.dtype
        ));
    }
    Ok(())
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
    use atoll_kgraph::{DType, FORMAT_VERSION, MemoryPlan, SymbolId, SymbolSpec};

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
            nodes: vec![],
            plan: MemoryPlan::default(),
        }
    }

    fn bind(shapes: [&[i64]; 2]) -> Result<Vec<i64>, String> {
        let inputs = shapes.map(|shape| InputShape { shape, bytes: shape.iter().product::<i64>() as u64 * 4 });
        bind_symbols(&graph(), &inputs)
    }

    #[test]
    fn symbols_are_unified_over_all_inputs() {
        assert_eq!(bind([&[4, 3], &[2, 5]]), Ok(vec![2, 5]));
        assert_eq!(undetermined_symbol(&graph()), None);
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let refusals = [
            (bind([&[4, 3, 1], &[2, 5]]), "input `a` has shape [4, 3, 1], the function takes [(s0 * 2), 3]"),
            (bind([&[4, 2], &[2, 5]]), "input `a` has shape [4, 2], the function takes [(s0 * 2), 3]"),
            (bind([&[5, 3], &[2, 5]]), "input `a` has shape [5, 3], the function takes [(s0 * 2), 3]; 4 would be expected in place of 5"),
            (bind([&[4, 3], &[2, 9]]), "input `b` has shape [2, 9], the function takes [n, m]; `m` is 1 to 8"),
            (bind_symbols(&graph(), &[]), "0 inputs are given, the function takes 2: a, b"),
        ];
        for (found, expected) in refusals {
            assert_eq!(found.expect_err("a refusal"), expected);
        }
        let short = [(&[4, 3], 48), (&[2, 5], 39)].map(|(shape, bytes)| InputShape { shape, bytes });
        assert_eq!(bind_symbols(&graph(), &short).expect_err("a refusal"), "input `b` has 39 bytes, shape [2, 5] of F32 takes 40 bytes");
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
