//! Changed node cases: each is refused or imported, and never ends the program.
//!
//! A change gives an operand another shape or type, removes an operand, or changes a number in an
//! attribute: what an exporter with a defect, or an attacker, would send. All panics of a run are
//! collected and reported once for each place in the code, with the numbers that replay them.

use super::{hash, name, node_folder};
use anyhow::{Context, Result, ensure};
use atoll_core::rng::Rng;
use atoll_frontend::onnx::proto::{Dimension, DimensionValue, ModelProto, NodeProto, TensorShapeProto};
use atoll_frontend::onnx::{ImportOptions, import_model};
use atoll_tests::{full, seed, skip};
use prost::Message;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// Changed models for each case.
const ROUNDS: u64 = 4;
/// The same in a full run.
const ROUNDS_FULL: u64 = 20;
/// Extents, small because shapes are changed often; large ones are in the fuzz targets.
const EXTENTS: [i64; 8] = [0, 1, 1, 2, 3, 4, 7, 16];
/// Numbers of attributes.
const NUMBERS: [i64; 14] = [0, 1, -1, 2, -2, 3, 4, -4, 5, 100, 1 << 31, 1 << 62, i64::MAX, i64::MIN];
/// Types of operands, as ONNX numbers them; 0 and 99 do not exist.
const TYPES: [i32; 12] = [0, 1, 2, 3, 6, 7, 8, 9, 10, 11, 22, 99];

/// Longest time of an import. The models are small, so an import that takes longer probably never
/// ends.
const TIME_MAX: Duration = Duration::from_secs(30);

thread_local! {
    /// Place of the last panic of this thread.
    static PLACE: RefCell<String> = const { RefCell::new(String::new()) };
}

#[test]
fn changed_node_cases_are_refused_or_imported() -> Result<()> {
    let Some(folder) = node_folder() else {
        skip("the Python environment has no onnx package with node cases");
        return Ok(());
    };
    let mut cases: Vec<_> = std::fs::read_dir(&folder)?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    cases.sort();
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        if place.starts_with("compiler/frontend") {
            PLACE.set(format!("{place}: {}", panic.payload_as_str().unwrap_or("a panic")));
        } else {
            before(panic);
        }
    }));
    let mut tally = Tally::default();
    for path in cases.iter().filter(|path| path.join("model.onnx").exists()) {
        tally.try_case(path)?;
    }
    ensure!(tally.imported > 0, "no changed model was imported");
    ensure!(tally.slow.is_empty(), "imports took too long:\n{}", tally.slow.join("\n"));
    ensure!(tally.panics.is_empty(), "{} places panicked:\n{}", tally.panics.len(), tally.report());
    Ok(())
}

#[derive(Default)]
struct Tally {
    imported: usize,
    /// Imports that took too long.
    slow: Vec<String>,
    /// Number of panics and the first one's case and seed, by place.
    panics: BTreeMap<String, (usize, String)>,
}

impl Tally {
    fn try_case(&mut self, folder: &Path) -> Result<()> {
        let model = std::fs::read(folder.join("model.onnx"))?;
        let model = ModelProto::decode(&model[..]).with_context(|| format!("reading {}", name(folder)))?;
        let rounds = if full() { ROUNDS_FULL } else { ROUNDS };
        for seed in seed()..seed() + rounds {
            let mut changed = model.clone();
            let mut random = Rng::new(seed ^ hash(&name(folder)));
            for _ in 0..1 + random.below(3) {
                change(&mut changed, &mut random);
            }
            let import = || import_model(&changed, "changed", None, &ImportOptions::default());
            let start = Instant::now();
            let imported = std::panic::catch_unwind(std::panic::AssertUnwindSafe(import));
            if start.elapsed() > TIME_MAX {
                self.slow.push(format!("{:?}: {}, ATOLL_SEED={seed}", start.elapsed(), name(folder)));
            }
            match imported {
                Ok(imported) => self.imported += usize::from(imported.is_ok()),
                Err(_) => {
                    let entry = self.panics.entry(PLACE.take()).or_default();
                    entry.0 += 1;
                    if entry.1.is_empty() {
                        entry.1 = format!("{}, ATOLL_SEED={seed}", name(folder));
                    }
                }
            }
        }
        Ok(())
    }

    fn report(&self) -> String {
        let lines = self.panics.iter().map(|(place, (count, first))| format!("{place} ({count} times, {first})\n"));
        lines.collect()
    }
}

/// Applies one change. Some change nothing, because the model has no such part.
fn change(model: &mut ModelProto, random: &mut Rng) {
    let Some(graph) = model.graph.as_mut() else { return };
    let kind = random.below(8);
    if kind < 4 {
        let Some(input) = pick(&mut graph.input, random) else { return };
        let Some(ty) = input.r#type.as_mut().and_then(|ty| ty.tensor_type.as_mut()) else { return };
        match kind {
            0 => ty.shape = Some(shape(random)),
            1 => ty.elem_type = TYPES[random.below(TYPES.len() as u64) as usize],
            2 => {
                let dim = ty.shape.as_mut().and_then(|shape| pick(&mut shape.dim, random));
                set(dim, |dim| *dim = extent(random));
            }
            _ => set(ty.shape.as_mut(), |shape| drop(shape.dim.pop())),
        }
    } else if let Some(node) = pick(&mut graph.node, random) {
        change_node(node, random);
    }
}

fn change_node(node: &mut NodeProto, random: &mut Rng) {
    let number = NUMBERS[random.below(NUMBERS.len() as u64) as usize];
    match random.below(7) {
        0 => drop(node.input.pop()),
        1 => set(pick(&mut node.input, random), String::clear),
        2 => {
            let first = node.input.first().cloned();
            node.input.extend(first);
        }
        3 => drop(node.attribute.pop()),
        _ => {
            let Some(attribute) = pick(&mut node.attribute, random) else { return };
            (attribute.i, attribute.f) = (number, number as f32);
            match random.below(3) {
                0 => set(pick(&mut attribute.ints, random), |own| *own = number),
                1 => drop((attribute.ints.pop(), attribute.floats.pop(), attribute.strings.pop())),
                _ => set(pick(&mut attribute.floats, random), |own| *own = number as f32),
            }
        }
    }
}

fn shape(random: &mut Rng) -> TensorShapeProto {
    TensorShapeProto { dim: (0..random.below(6)).map(|_| extent(random)).collect() }
}

/// An extent; one in eight is a symbol.
fn extent(random: &mut Rng) -> Dimension {
    let value = match random.below(8) {
        0 => DimensionValue::DimParam("n".into()),
        _ => DimensionValue::DimValue(EXTENTS[random.below(EXTENTS.len() as u64) as usize]),
    };
    Dimension { value: Some(value) }
}

fn pick<'a, T>(items: &'a mut [T], random: &mut Rng) -> Option<&'a mut T> {
    if items.is_empty() {
        return None;
    }
    let at = random.below(items.len() as u64) as usize;
    Some(&mut items[at])
}

fn set<T>(place: Option<&mut T>, change: impl FnOnce(&mut T)) {
    if let Some(place) = place {
        change(place);
    }
}
