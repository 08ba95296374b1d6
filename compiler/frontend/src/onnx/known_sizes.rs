//! Sizes that are known before an import begins: from options, and from facts that earlier rounds
//! found.
//!
//! Lowering a node may show that two symbols are equal, that a symbol has a smaller range, or that
//! the elements of an input are sizes ([`SizeFact`]). The import then restarts with that fact.
//! Facts only narrow the possible values, so the import ends.

use super::error::{ImportError, SizeFact};
use super::options::{DIMENSION_MAX, ImportOptions};
use super::read::too_large;
use crate::tensor_graph::{TensorGraph, ValueId};
use atoll_kgraph::{Expr, InputElement, SizeRange, SymbolId, SymbolSpec};
use std::collections::{BTreeMap, BTreeSet};

/// Largest number of rounds; a typical model needs a handful.
const ROUNDS_MAX: usize = 256;
/// Range of an element of an input, unless a fact narrows it.
const ELEMENT_RANGE: (i64, i64) = (-(1 << 31), 1 << 31);

/// The known facts.
pub(super) struct KnownSizes<'o> {
    options: &'o ImportOptions,
    rounds: usize,
    /// The symbol that a symbol is equal to.
    same: BTreeMap<String, String>,
    /// Ranges from facts.
    ranges: BTreeMap<String, SymbolSpec>,
    /// Inputs whose elements are sizes.
    elements: BTreeSet<String>,
    /// Names of dimensions of the model's inputs.
    names: BTreeSet<String>,
}

impl<'o> KnownSizes<'o> {
    pub(super) fn new(options: &'o ImportOptions) -> KnownSizes<'o> {
        let (same, ranges, elements, names) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        KnownSizes { options, rounds: 0, same, ranges, elements, names }
    }

    pub(super) fn options(&self) -> &'o ImportOptions {
        self.options
    }

    /// The size of the dimension `name`. `least` is the smallest value that the model itself
    /// allows.
    pub(super) fn dimension(&mut self, graph: &mut TensorGraph, name: &str, least: i64) -> Result<Expr, ImportError> {
        self.names.insert(name.into());
        let mut name = name;
        while let Some(other) = self.same.get(name) {
            name = other;
        }
        let spec = self.spec(name, least)?;
        if spec.min == spec.max {
            return Ok(Expr::Const(spec.min));
        }
        Ok(symbol(graph, spec))
    }

    /// The number of tensors of the list `name`, from the options; `None` if they do not fix it.
    pub(super) fn length(&mut self, name: &str) -> Result<Option<i64>, ImportError> {
        let name = format!("{name}.length");
        let spec = self.spec(&name, 0)?;
        let is_set = [&self.options.symbols, &self.options.common].iter().any(|sizes| sizes.contains_key(&name));
        self.names.insert(name);
        Ok((is_set && spec.min == spec.max).then_some(spec.min))
    }

    fn spec(&self, name: &str, least: i64) -> Result<SymbolSpec, ImportError> {
        if let Some(spec) = self.ranges.get(name) {
            return Ok(spec.clone());
        }
        let options = self.options;
        let Some(SizeRange { min, max }) = options.symbols.get(name).or_else(|| options.common.get(name)).copied()
        else {
            return Ok(SymbolSpec::new(name, least, self.options.symbol_max));
        };
        if min < 0 || max < min || max > DIMENSION_MAX {
            let reason = format!("its range is {min}..={max}; it must be within 0..={DIMENSION_MAX}");
            return Err(ImportError::Invalid { place: format!("size {name}"), reason });
        }
        Ok(SymbolSpec { reason: "set by an option".into(), ..SymbolSpec::new(name, min, max) })
    }

    /// The elements of an input as sizes; `None` if they are not sizes.
    pub(super) fn elements(&self, graph: &mut TensorGraph, input: u32, name: &str, count: usize) -> Option<Vec<Expr>> {
        if !self.elements.contains(name) {
            return None;
        }
        let element = |index: u32| {
            let name = format!("{name}[{index}]");
            let known = self.ranges.get(&name).cloned();
            let spec = known.unwrap_or_else(|| SymbolSpec::new(name, ELEMENT_RANGE.0, ELEMENT_RANGE.1));
            let size = symbol(graph, spec.clone());
            if let Expr::Symbol(symbol) = size {
                graph.elements.push(InputElement { symbol, input, index });
            }
            // The symbol stays in the graph even if its value is fixed, so each invocation checks
            // it.
            if spec.min == spec.max { Expr::Const(spec.min) } else { size }
        };
        Some((0..count as u32).map(element).collect())
    }

    /// Checks that every option names a size of the model.
    pub(super) fn check_options(&self, graph: &TensorGraph) -> Result<(), ImportError> {
        let Some(symbol) = self.options.symbols.keys().find(|name| !self.names.contains(*name)) else { return Ok(()) };
        let known: Vec<&str> = self.names.iter().map(String::as_str).collect();
        let known = match known[..] {
            [] if graph.inputs.is_empty() => "the model has no inputs".into(),
            [] => "all dimensions of the inputs are fixed".into(),
            _ => format!("the named dimensions are {}", known.join(", ")),
        };
        Err(ImportError::UnknownSymbol { symbol: symbol.clone(), known })
    }

    /// Adds a fact that a node needs; `place` names the node.
    pub(super) fn add(&mut self, graph: &TensorGraph, place: &str, fact: SizeFact) -> Result<(), ImportError> {
        let about = match &fact {
            SizeFact::Elements(_) => Vec::new(),
            SizeFact::Range { symbol, .. } => vec![*symbol],
            SizeFact::Same(a, b) => vec![*a, *b],
        };
        if graph.run_time_sizes.iter().any(|size| about.contains(&size.symbol)) {
            return Err(run_time_size(place));
        }
        if about.iter().any(|symbol| self.is_of_strings(graph, *symbol)) {
            return Err(run_time_size(place));
        }
        self.rounds += 1;
        if self.rounds > ROUNDS_MAX {
            return Err(too_large("the number of facts about sizes", self.rounds.to_string(), ROUNDS_MAX.to_string()));
        }
        match fact {
            SizeFact::Elements(id) => {
                self.elements.insert(graph.value(id).name.clone());
                Ok(())
            }
            SizeFact::Range { symbol, min, max } => {
                let spec = &graph.symbols[symbol.0 as usize];
                let needs = match min == max {
                    true => format!("{place} needs {} = {min}", spec.name),
                    false => format!("{place} needs {} to be {min} to {max}", spec.name),
                };
                self.narrow(spec, min, max, needs)
            }
            SizeFact::Same(kept, other) => {
                let [kept, other] = [kept, other].map(|SymbolId(id)| &graph.symbols[id as usize]);
                self.same.insert(other.name.clone(), kept.name.clone());
                if (kept.min, kept.max) == (other.min, other.max) {
                    return Ok(());
                }
                self.narrow(
                    kept,
                    other.min,
                    other.max,
                    format!("{place} needs {} = {}, and {}", kept.name, other.name, other.range_text()),
                )
            }
        }
    }

    /// Whether the strings of a request determine a symbol: it is a dimension of an input that the
    /// host computes from strings, and of none of the model's.
    fn is_of_strings(&self, graph: &TensorGraph, symbol: SymbolId) -> bool {
        let is_dimension = |id: &ValueId| graph.value(*id).shape.contains(&Expr::Symbol(symbol));
        let computed = graph.inputs.iter().rev().take(graph.strings.computed_inputs());
        let is_of_model = self.names.contains(&graph.symbols[symbol.0 as usize].name);
        !is_of_model && computed.into_iter().any(is_dimension)
    }

    /// Narrows the range of a symbol.
    fn narrow(&mut self, spec: &SymbolSpec, min: i64, max: i64, needs: String) -> Result<(), ImportError> {
        let (min, max) = (spec.min.max(min), spec.max.min(max));
        if min > max {
            return Err(ImportError::Range { symbol: spec.name.clone(), needs, range: spec.range_text() });
        }
        self.ranges
            .insert(spec.name.clone(), SymbolSpec { reason: needs, ..SymbolSpec::new(spec.name.clone(), min, max) });
        Ok(())
    }
}

/// The error for a fact about a size that is computed while the model runs: such a size is neither
/// narrowed at import nor checked when inputs are bound.
pub(super) fn run_time_size(place: &str) -> ImportError {
    let (node, operator) = place
        .strip_prefix("node ")
        .and_then(|place| place.strip_suffix(')'))
        .and_then(|place| place.rsplit_once(" ("))
        .unwrap_or((place, "size"));
    let reason = "it depends on a size that is computed while the model runs, in a way that cannot be proven valid \
                  when the model is compiled"
        .into();
    ImportError::Unsupported { node: node.into(), operator: operator.into(), reason }
}

/// The symbol with this name, added if it is new.
fn symbol(graph: &mut TensorGraph, spec: SymbolSpec) -> Expr {
    let known = graph.symbols.iter().position(|symbol| symbol.name == spec.name);
    let index = known.unwrap_or_else(|| {
        graph.symbols.push(spec);
        graph.symbols.len() - 1
    });
    Expr::Symbol(SymbolId(index as u32))
}
