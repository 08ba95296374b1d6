//! Checks the inputs of an invocation against a graph, and computes the values of the graph's
//! symbols.
//!
//! All inputs are checked here: [`bind_symbols`] is on every path to a function, local or over the
//! network. Symbols that are read back from the device have no value before the invocation runs;
//! they get their largest value, for which memory is laid out.

use crate::condition::{Condition, InputElement};
use crate::expr::{Expr, SymbolId};
use crate::graph::{BufferKind, DType, KernelGraph, SymbolSpec};
use std::fmt;

/// An input of an invocation: its type, shape and size, which are checked, and its elements, from
/// which symbols may get their values.
#[derive(Clone, Copy, Debug)]
pub struct InputForm<'a> {
    /// Element type; `None` for strings that are not encoded as codes, which no input accepts.
    pub dtype: Option<DType>,
    /// Dimensions, outermost first.
    pub shape: &'a [i64],
    /// Size in bytes.
    pub bytes: u64,
    /// The elements, little-endian; `None` if they are not in host memory.
    pub data: Option<&'a [u8]>,
}

/// Why inputs do not match a graph. The messages address the author of the request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InputError {
    /// The number of inputs is wrong.
    #[error("{given} inputs are given; the model takes {}: {}", .takes.len(), .takes.join(", "))]
    Count {
        /// How many are given.
        given: usize,
        /// Names of the graph's inputs.
        takes: Vec<String>,
    },
    /// The type or shape of an input differs from what the graph expects.
    #[error("input `{name}` is {found}; the model takes {takes}{why}")]
    Form {
        /// The input.
        name: String,
        /// Its type and shape.
        found: String,
        /// Type and shape that the graph expects.
        takes: String,
        /// An explanation that begins with `; `, or an empty text.
        why: String,
    },
    /// An input has another size than its type and shape require.
    #[error("input `{name}` has {bytes} bytes; {form} takes {expected}")]
    Bytes {
        /// The input.
        name: String,
        /// Its size in bytes.
        bytes: u64,
        /// Its type and shape.
        form: String,
        /// The required size.
        expected: String,
    },
    /// No input determines the value of a symbol.
    #[error("no input's shape determines `{0}`")]
    Undetermined(String),
    /// An element that gives a size is outside of its range.
    #[error("element {index} of input `{name}` is {found}; {range}")]
    Element {
        /// The input.
        name: String,
        /// Index of the element.
        index: u32,
        /// Its value.
        found: i64,
        /// The allowed range and its reason.
        range: String,
    },
    /// Elements of an input give sizes, but the input is in device memory.
    #[error("elements of input `{0}` are sizes; give it from the client, not from another function")]
    OnDevice(String),
    /// A condition on sizes does not hold.
    #[error("the inputs' shapes do not fit the model: {place} needs {needs}; {found}")]
    Condition {
        /// The part of the model that requires it.
        place: String,
        /// The condition.
        needs: String,
        /// The actual sizes.
        found: String,
    },
}

/// The inputs of a graph: everything needed to compute the values of its symbols.
#[derive(Clone, Debug)]
pub struct Signature<'a> {
    /// The symbols.
    pub symbols: &'a [SymbolSpec],
    /// The inputs in order.
    pub inputs: Vec<InputSpec<'a>>,
    /// Symbols that are elements of inputs.
    pub elements: &'a [InputElement],
    /// Conditions on sizes.
    pub conditions: &'a [Condition],
    /// Symbols that a session sets, with their values.
    pub session: Vec<(SymbolId, i64)>,
    /// Symbols that get their values at run time, in that order, each with its upper bound if that
    /// is tighter than the symbol's range.
    pub run_time: Vec<(SymbolId, Option<&'a Expr>)>,
}

/// An input of a graph.
#[derive(Clone, Copy, Debug)]
pub struct InputSpec<'a> {
    /// The name in the model.
    pub name: &'a str,
    /// Element type.
    pub dtype: DType,
    /// Dimensions, outermost first.
    pub shape: &'a [Expr],
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

/// The name of a symbol that no input's shape and no element determines. Such a graph cannot be
/// invoked.
pub fn undetermined_symbol(graph: &KernelGraph) -> Option<&str> {
    let is_dimension = |id: usize| {
        let symbol = |dimension: &Expr| matches!(dimension, Expr::Symbol(s) if s.0 as usize == id);
        let is_read_back = graph.read_backs.iter().any(|read_back| read_back.symbol.0 as usize == id);
        is_read_back || graph.buffers_of(BufferKind::Input).any(|(_, buffer)| buffer.shape.iter().any(symbol))
    };
    let is_session = |id: usize| graph.session.has(SymbolId(id as u32));
    let is_element = |id: usize| graph.elements.iter().any(|element| element.symbol.0 as usize == id);
    let is_free = |id: usize, symbol: &SymbolSpec| {
        symbol.min != symbol.max && !is_dimension(id) && !is_element(id) && !is_session(id)
    };
    let free = graph.symbols.iter().enumerate().find(|(id, symbol)| is_free(*id, symbol));
    free.map(|(_, symbol)| symbol.name.as_str())
}

/// Checks inputs, in the order of the graph's input buffers: number, types, shapes, sizes, and
/// conditions on sizes. Returns the values of the symbols in order. Symbols that are read back get
/// their largest value; symbols of a session get the values of its first step.
///
/// # Errors
/// The first mismatch found.
pub fn bind_symbols(graph: &KernelGraph, inputs: &[InputForm<'_>]) -> Result<Vec<i64>, InputError> {
    Signature::of(graph).bind(inputs)
}

/// Like [`bind_symbols`], for a step of a session: `values` are those of
/// [`crate::Session::symbols`], in order.
///
/// # Errors
/// The first mismatch found.
pub fn bind_step(graph: &KernelGraph, inputs: &[InputForm<'_>], values: &[i64]) -> Result<Vec<i64>, InputError> {
    let mut signature = Signature::of(graph);
    signature.session.iter_mut().zip(values).for_each(|((_, value), now)| *value = *now);
    signature.bind(inputs)
}

impl<'a> Signature<'a> {
    /// The inputs that a kernel graph expects.
    pub fn of(graph: &'a KernelGraph) -> Signature<'a> {
        let spec = |(_, buffer): (_, &'a crate::graph::BufferSpec)| InputSpec {
            name: &buffer.name,
            dtype: buffer.dtype,
            shape: &buffer.shape,
        };
        Signature {
            symbols: &graph.symbols,
            inputs: graph.buffers_of(BufferKind::Input).map(spec).collect(),
            elements: &graph.elements,
            conditions: &graph.conditions,
            session: graph.session.symbols.iter().map(|own| (own.symbol, own.first)).collect(),
            run_time: graph.read_backs.iter().map(|read_back| (read_back.symbol, read_back.most.as_ref())).collect(),
        }
    }

    /// Like [`bind_symbols`].
    ///
    /// # Errors
    /// The first mismatch found.
    pub fn bind(&self, inputs: &[InputForm<'_>]) -> Result<Vec<i64>, InputError> {
        if self.inputs.len() != inputs.len() {
            let takes = self.inputs.iter().map(|spec| spec.name.to_owned()).collect();
            return Err(InputError::Count { given: inputs.len(), takes });
        }
        let mut values: Vec<Option<i64>> =
            self.symbols.iter().map(|symbol| (symbol.min == symbol.max).then_some(symbol.min)).collect();
        self.session.iter().for_each(|(symbol, value)| values[symbol.0 as usize] = Some(*value));
        for (spec, input) in self.inputs.iter().zip(inputs) {
            // Clients may send a narrow type as its carrier type.
            if input.dtype.is_none_or(|dtype| dtype != spec.dtype && dtype != spec.dtype.carrier()) {
                return Err(self.mismatch(spec, input, ""));
            }
            self.bind_dimensions(spec, input, &mut values)?;
            check_bytes(spec, input)?;
        }
        for element in self.elements {
            self.bind_element(element, inputs, &mut values)?;
        }
        self.bind_largest(&mut values)?;
        if let Some(unbound) = values.iter().position(Option::is_none) {
            return Err(InputError::Undetermined(self.symbols[unbound].name.clone()));
        }
        let symbols: Vec<i64> = values.into_iter().flatten().collect();
        for (spec, input) in self.inputs.iter().zip(inputs) {
            self.check_derived(spec, input, &symbols)?;
        }
        self.conditions.iter().try_for_each(|condition| self.check(condition, &symbols))?;
        Ok(symbols)
    }

    /// Sets symbols that get their values at run time to their largest value.
    fn bind_largest(&self, values: &mut [Option<i64>]) -> Result<(), InputError> {
        for (symbol, most) in &self.run_time {
            let spec = &self.symbols[symbol.0 as usize];
            let known: Vec<i64> =
                values.iter().zip(self.symbols).map(|(value, spec)| value.unwrap_or(spec.min)).collect();
            let most = most.map(|most| most.eval(&known)).transpose();
            let most = most.map_err(|_| InputError::Undetermined(spec.name.clone()))?.unwrap_or(spec.max);
            values[symbol.0 as usize] = Some(most.clamp(spec.min, spec.max));
        }
        Ok(())
    }

    fn mismatch(&self, spec: &InputSpec<'_>, input: &InputForm<'_>, why: &str) -> InputError {
        let shape: Vec<String> = spec.shape.iter().map(|dimension| dimension.named(self.symbols).to_string()).collect();
        let takes = format!("{} [{}]", spec.dtype, shape.join(", "));
        InputError::Form { name: spec.name.into(), found: input.to_string(), takes, why: why.into() }
    }

    /// Binds dimensions that are symbols, and checks constant dimensions.
    fn bind_dimensions(
        &self,
        spec: &InputSpec<'_>,
        input: &InputForm<'_>,
        values: &mut [Option<i64>],
    ) -> Result<(), InputError> {
        if spec.shape.len() != input.shape.len() {
            return Err(self.mismatch(spec, input, ""));
        }
        for (expected, &actual) in spec.shape.iter().zip(input.shape) {
            match expected {
                Expr::Const(size) if *size != actual => return Err(self.mismatch(spec, input, "")),
                Expr::Symbol(id) => {
                    let symbol = &self.symbols[id.0 as usize];
                    if !(symbol.min..=symbol.max).contains(&actual) {
                        return Err(self.mismatch(spec, input, &format!("; {}", symbol.range_text())));
                    }
                    let value = values[id.0 as usize].get_or_insert(actual);
                    if *value != actual {
                        let why = format!("; `{}` is {value} in earlier inputs", symbol.name);
                        return Err(self.mismatch(spec, input, &why));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Binds a symbol to an element of an input whose size has been checked.
    fn bind_element(
        &self,
        element: &InputElement,
        inputs: &[InputForm<'_>],
        values: &mut [Option<i64>],
    ) -> Result<(), InputError> {
        let (spec, input) = (&self.inputs[element.input as usize], &inputs[element.input as usize]);
        let symbol = &self.symbols[element.symbol.0 as usize];
        let data = input.data.ok_or_else(|| InputError::OnDevice(spec.name.into()))?;
        let outside = |found: i64| InputError::Element {
            name: spec.name.into(),
            index: element.index,
            found,
            range: symbol.range_text(),
        };
        let value = integer(spec.dtype, data, element.index as usize).ok_or_else(|| outside(i64::MAX))?;
        if !(symbol.min..=symbol.max).contains(&value) {
            return Err(outside(value));
        }
        values[element.symbol.0 as usize] = Some(value);
        Ok(())
    }

    /// Checks dimensions that are expressions.
    fn check_derived(&self, spec: &InputSpec<'_>, input: &InputForm<'_>, symbols: &[i64]) -> Result<(), InputError> {
        for (expected, &actual) in spec.shape.iter().zip(input.shape) {
            let value = expected.eval(symbols).map_err(|e| self.mismatch(spec, input, &format!("; {e}")))?;
            if value != actual || value < 0 {
                return Err(self.mismatch(spec, input, &format!("; expected {value} instead of {actual}")));
            }
        }
        Ok(())
    }

    fn check(&self, condition: &Condition, symbols: &[i64]) -> Result<(), InputError> {
        if condition.holds(symbols) == Ok(true) {
            return Ok(());
        }
        let size = |side: &Expr| {
            let value = side.eval(symbols).map_or_else(|error| error.to_string(), |value| value.to_string());
            if side.as_const().is_some() { None } else { Some(format!("{} is {value}", side.named(self.symbols))) }
        };
        let found: Vec<String> = [&condition.left, &condition.right].into_iter().filter_map(size).collect();
        let needs = condition.text(self.symbols);
        Err(InputError::Condition { place: condition.place.clone(), needs, found: found.join(", ") })
    }
}

fn check_bytes(spec: &InputSpec<'_>, input: &InputForm<'_>) -> Result<(), InputError> {
    let elements = input.shape.iter().try_fold(1_u64, |product, &d| product.checked_mul(u64::try_from(d).ok()?));
    let expected = elements.and_then(|n| n.checked_mul(spec.dtype.bytes()));
    if expected == Some(input.bytes) {
        return Ok(());
    }
    let expected = expected.map_or("more than 2^64 bytes".into(), |n| format!("{n} bytes"));
    Err(InputError::Bytes { name: spec.name.into(), bytes: input.bytes, form: input.to_string(), expected })
}

/// An element of an integer tensor; `None` if it does not exist, is no integer, or exceeds 64 bits.
fn integer(dtype: DType, data: &[u8], index: usize) -> Option<i64> {
    let bytes = dtype.bytes() as usize;
    let element = data.get(index.checked_mul(bytes)?..)?.get(..bytes)?;
    let mut wide = [0_u8; 8];
    wide[..bytes].copy_from_slice(element);
    let unused = 64 - dtype.bits();
    let shifted = u64::from_le_bytes(wide) << unused;
    match dtype {
        DType::Bool | DType::U8 | DType::U16 | DType::U32 | DType::U64 => i64::try_from(shifted >> unused).ok(),
        DType::U2 | DType::U4 => i64::try_from(shifted >> unused).ok(),
        DType::I8 | DType::I16 | DType::I32 | DType::I64 | DType::I2 | DType::I4 => Some((shifted as i64) >> unused),
        DType::F16 | DType::Bf16 | DType::F32 | DType::F64 | DType::Strings => None,
        DType::F4e2m1 | DType::F8e4m3fn | DType::F8e4m3fnuz | DType::F8e5m2 | DType::F8e5m2fnuz | DType::F8e8m0 => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::condition::Relation;
    use crate::expr::SymbolId;
    use crate::graph::{BufferSpec, FORMAT_VERSION};

    fn graph() -> KernelGraph {
        let [n, m] = [0, 1].map(|id| Expr::from(SymbolId(id)));
        let input = |name: &str, shape: Vec<Expr>| BufferSpec {
            name: name.into(),
            kind: BufferKind::Input,
            dtype: DType::F32,
            shape,
            weights_offset: None,
        };
        let symbol = |name: &str| SymbolSpec::new(name, 1, 8);
        KernelGraph {
            format: FORMAT_VERSION,
            name: "toy".into(),
            symbols: vec![symbol("n"), symbol("m")],
            buffers: vec![input("a", vec![n.clone() * 2, Expr::Const(3)]), input("b", vec![n, m])],
            ..KernelGraph::default()
        }
    }

    fn form<'a>(shape: &'a [i64], dtype: DType) -> InputForm<'a> {
        InputForm { dtype: Some(dtype), shape, bytes: shape.iter().product::<i64>() as u64 * dtype.bytes(), data: None }
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
    fn mismatches_are_reported() {
        let of_type = |dtype| {
            bind_symbols(&graph(), &[InputForm { dtype, ..form(&[4, 3], DType::F32) }, form(&[2, 5], DType::F32)])
        };
        let bytes = InputForm { bytes: 39, ..form(&[2, 5], DType::F32) };
        let refusals = [
            (bind([&[4, 3, 1], &[2, 5]]), "input `a` is f32 [4, 3, 1]; the model takes f32 [(n * 2), 3]"),
            (bind([&[4, 2], &[2, 5]]), "input `a` is f32 [4, 2]; the model takes f32 [(n * 2), 3]"),
            (
                bind([&[5, 3], &[2, 5]]),
                "input `a` is f32 [5, 3]; the model takes f32 [(n * 2), 3]; expected 4 instead of 5",
            ),
            (bind([&[4, 3], &[2, 9]]), "input `b` is f32 [2, 9]; the model takes f32 [n, m]; `m` is 1 to 8"),
            (of_type(Some(DType::I32)), "input `a` is i32 [4, 3]; the model takes f32 [(n * 2), 3]"),
            (of_type(Some(DType::F16)), "input `a` is f16 [4, 3]; the model takes f32 [(n * 2), 3]"),
            (of_type(None), "input `a` is strings [4, 3]; the model takes f32 [(n * 2), 3]"),
            (bind_symbols(&graph(), &[]), "0 inputs are given; the model takes 2: a, b"),
            (
                bind_symbols(&graph(), &[form(&[4, 3], DType::F32), bytes]),
                "input `b` has 39 bytes; f32 [2, 5] takes 40 bytes",
            ),
        ];
        for (found, expected) in refusals {
            assert_eq!(found.expect_err("a mismatch").to_string(), expected);
        }
    }

    #[test]
    fn a_narrow_input_is_given_as_itself_or_as_the_type_that_carries_it() {
        for narrow in DType::NARROW {
            let mut graph = graph();
            graph.buffers[1].dtype = narrow;
            let bind = |dtype| bind_symbols(&graph, &[form(&[4, 3], DType::F32), form(&[2, 5], dtype)]);
            assert_eq!((bind(narrow), bind(narrow.carrier())), (Ok(vec![2, 5]), Ok(vec![2, 5])), "{narrow}");
            let other = if narrow.carrier() == DType::I8 { DType::U8 } else { DType::I8 };
            let text = bind(other).expect_err("another type").to_string();
            assert_eq!(text, format!("input `b` is {other} [2, 5]; the model takes {narrow} [n, m]"));
        }
        assert_eq!(integer(DType::I4, &[0x0c, 0xf7], 0), Some(-4));
        assert_eq!(integer(DType::U2, &[0x0c, 0xf7], 1), Some(3));
        assert_eq!(integer(DType::F8e5m2, &[1], 0), None);
    }

    #[test]
    fn an_undetermined_symbol_is_found() {
        let mut graph = graph();
        graph.buffers.pop();
        assert_eq!(undetermined_symbol(&graph), Some("n"), "n occurs only in a product");
        graph.symbols[0].max = 1;
        assert_eq!(undetermined_symbol(&graph), Some("m"));
    }

    #[test]
    fn elements_of_an_input_are_sizes_within_a_range() {
        let mut graph = graph();
        let spec = BufferSpec {
            name: "shape".into(),
            dtype: DType::I32,
            shape: vec![Expr::Const(2)],
            ..graph.buffers[1].clone()
        };
        graph.buffers.push(spec);
        graph.symbols.push(SymbolSpec { reason: "node cut needs it".into(), ..SymbolSpec::new("shape[1]", -1, 9) });
        graph.elements.push(InputElement { symbol: SymbolId(2), input: 2, index: 1 });
        assert_eq!(undetermined_symbol(&graph), None);
        let bind = |data: Option<&[u8]>| {
            let last = InputForm { data, ..form(&[2], DType::I32) };
            bind_symbols(&graph, &[form(&[4, 3], DType::F32), form(&[2, 5], DType::F32), last])
        };
        let bytes = |value: i32| [7_i32, value].map(i32::to_le_bytes).concat();
        assert_eq!(bind(Some(&bytes(-1))), Ok(vec![2, 5, -1]));
        let text = bind(Some(&bytes(10))).expect_err("out of range").to_string();
        assert_eq!(text, "element 1 of input `shape` is 10; `shape[1]` is -1 to 9 (node cut needs it)");
        assert_eq!(bind(None), Err(InputError::OnDevice("shape".into())));
    }

    #[test]
    fn conditions_are_checked_with_the_sizes_in_the_message() {
        let mut graph = graph();
        let [n, m] = [0, 1].map(|id| Expr::from(SymbolId(id)));
        let condition = |relation, left: &Expr, right: Expr| Condition {
            place: "node add".into(),
            relation,
            left: left.clone(),
            right,
        };
        let bind = |graph: &KernelGraph| bind_symbols(graph, &[form(&[4, 3], DType::F32), form(&[2, 5], DType::F32)]);
        for (relation, right, holds) in [
            (Relation::Equal, m.clone() - 3, true),
            (Relation::Equal, m.clone(), false),
            (Relation::Broadcasts, Expr::Const(2), true),
            (Relation::Broadcasts, m.clone(), false),
            (Relation::AtLeast, Expr::Const(2), true),
            (Relation::AtLeast, Expr::Const(3), false),
        ] {
            graph.conditions = vec![condition(relation, &n, right)];
            assert_eq!(bind(&graph).is_ok(), holds, "{:?}", graph.conditions);
        }
        graph.conditions = vec![condition(Relation::Broadcasts, &n, m.clone())];
        let text = bind(&graph).expect_err("a mismatch").to_string();
        assert_eq!(text, "the inputs' shapes do not fit the model: node add needs n to be 1 or m; n is 2, m is 5");
    }
}
