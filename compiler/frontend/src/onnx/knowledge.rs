//! What an import knows of the symbols before it begins: options, and what earlier rounds learned.
//!
//! Lowering a node may teach that two symbols are one, that a symbol has fewer values, or that the
//! elements of an input are sizes ([`Lesson`]). The import then begins again with that. Every round
//! leaves fewer possibilities.

use super::error::{ImportError, Lesson};
use super::options::{DIMENSION_MAX, ImportOptions};
use super::read::too_large;
use crate::tensor_graph::TensorGraph;
use atoll_kgraph::{Expr, InputElement, SizeRange, SymbolId, SymbolSpec};
use std::collections::{BTreeMap, BTreeSet};

/// Most rounds: a model teaches a handful of facts.
const ROUNDS_MAX: usize = 256;
/// Values that an element of an input may have, if nothing narrows them.
const ELEMENT_RANGE: (i64, i64) = (-(1 << 31), 1 << 31);

/// What is known.
pub(super) struct Knowledge<'o> {
    options: &'o ImportOptions,
    rounds: usize,
    /// The symbol that another one is.
    same: BTreeMap<String, String>,
    /// Ranges that were learned.
    ranges: BTreeMap<String, SymbolSpec>,
    /// Inputs whose elements are sizes.
    elements: BTreeSet<String>,
    /// Names that the model's inputs were asked for.
    names: BTreeSet<String>,
}

impl<'o> Knowledge<'o> {
    pub(super) fn new(options: &'o ImportOptions) -> Knowledge<'o> {
        let (same, ranges, elements, names) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        Knowledge { options, rounds: 0, same, ranges, elements, names }
    }

    pub(super) fn options(&self) -> &'o ImportOptions {
        self.options
    }

    /// The size that a dimension with a name has. `least` is the smallest value that the file
    /// itself leaves open.
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
            let reason = format!("its range {min}..={max} is not within 0..={DIMENSION_MAX}");
            return Err(ImportError::Invalid { place: format!("size {name}"), reason });
        }
        Ok(SymbolSpec { reason: "an option says so".into(), ..SymbolSpec::new(name, min, max) })
    }

    /// The sizes that the elements of an input are, if they were asked for.
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
            // Whatever it is, the invocation is checked for it.
            if spec.min == spec.max { Expr::Const(spec.min) } else { size }
        };
        Some((0..count as u32).map(element).collect())
    }

    /// Every option is about a size of the model.
    pub(super) fn check_options(&self, graph: &TensorGraph) -> Result<(), ImportError> {
        let Some(symbol) = self.options.symbols.keys().find(|name| !self.names.contains(*name)) else { return Ok(()) };
        let known: Vec<&str> = self.names.iter().map(String::as_str).collect();
        let known = match known[..] {
            [] if graph.inputs.is_empty() => "it has no inputs".into(),
            [] => "all its sizes are numbers".into(),
            _ => format!("there are {}", known.join(", ")),
        };
        Err(ImportError::UnknownSymbol { symbol: symbol.clone(), known })
    }

    /// Takes in what a node taught; `place` names the node.
    pub(super) fn learn(&mut self, graph: &TensorGraph, place: &str, lesson: Lesson) -> Result<(), ImportError> {
        let about = match &lesson {
            Lesson::Elements(_) => Vec::new(),
            Lesson::Range { symbol, .. } => vec![*symbol],
            Lesson::Same(a, b) => vec![*a, *b],
        };
        if graph.run_time_sizes.iter().any(|size| about.contains(&size.symbol)) {
            return Err(run_time_size(place));
        }
        self.rounds += 1;
        if self.rounds > ROUNDS_MAX {
            return Err(too_large("the number of facts about sizes", self.rounds.to_string(), ROUNDS_MAX.to_string()));
        }
        match lesson {
            Lesson::Elements(id) => {
                self.elements.insert(graph.value(id).name.clone());
                Ok(())
            }
            Lesson::Range { symbol, min, max } => {
                let spec = &graph.symbols[symbol.0 as usize];
                let needs = match min == max {
                    true => format!("{place} needs {} = {min}", spec.name),
                    false => format!("{place} needs {} to be {min} to {max}", spec.name),
                };
                self.narrow(spec, min, max, needs)
            }
            Lesson::Same(kept, other) => {
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

    /// A symbol has only values of another range too.
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

/// Sizes that are computed while the model runs are neither learned nor checked when inputs are
/// bound.
pub(super) fn run_time_size(place: &str) -> ImportError {
    let reason =
        "it needs to know something of a size that is computed while the model runs, and that cannot be shown".into();
    ImportError::Unsupported { node: place.into(), operator: "a size".into(), reason }
}

/// The symbol of a name.
fn symbol(graph: &mut TensorGraph, spec: SymbolSpec) -> Expr {
    let known = graph.symbols.iter().position(|symbol| symbol.name == spec.name);
    let index = known.unwrap_or_else(|| {
        graph.symbols.push(spec);
        graph.symbols.len() - 1
    });
    Expr::Symbol(SymbolId(index as u32))
}
