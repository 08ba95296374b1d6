//! Builds the kernel graph of a manifest.

use super::constants::Constants;
use super::expression::{self, Symbols};
use super::kernels::{self, KernelSet};
use super::manifest::{Address, Arg, Buffer, Copy, Fill, Kind, Manifest, Raw, Step, Value};
use super::{PackError, arguments};
use atoll_frontend::tensor::{Tensor, is_float, wrap_int};
use atoll_kgraph::{
    Argument, BUFFER_ALIGN, BufferId, BufferKind, BufferSpec, DType, Expr, FORMAT_VERSION, KernelGraph, LaunchSpec,
    Node, NodeId, NodeKind, Relocation, SymbolId, SymbolSpec,
};
use atoll_ptx::{Function, Name};
use std::collections::BTreeMap;

/// Maximum number of nodes after repeated steps are expanded: the limit of a graph.
const NODES_MAX: usize = atoll_kgraph::validate::NODES_MAX;
/// Deepest nesting of repeated steps.
const REPEAT_NESTING_MAX: u32 = 8;

/// A graph and the launches of its nodes.
pub(super) struct Planned {
    pub(super) graph: KernelGraph,
    pub(super) launches: Vec<Option<LaunchSpec>>,
}

/// Builds the graph. `constants` holds the contents of constants, by name.
pub(super) fn build(manifest: &Manifest, kernels: &mut KernelSet, constants: &Constants) -> Result<Planned, PackError> {
    let symbols: Symbols =
        manifest.symbols.keys().enumerate().map(|(id, name)| (name.clone(), SymbolId(id as u32))).collect();
    let mut builder = Builder {
        kernels,
        buffers: manifest.buffers.keys().enumerate().map(|(id, name)| (name.as_str(), BufferId(id as u32))).collect(),
        specs: buffers(manifest, &symbols, constants)?,
        symbols,
        writers: vec![None; manifest.buffers.len()],
        readers: vec![Vec::new(); manifest.buffers.len()],
        nodes: Vec::new(),
        launches: Vec::new(),
    };
    builder.steps(&manifest.steps, "step", 0)?;
    builder.check_outputs()?;
    let Builder { specs, nodes, launches, .. } = builder;
    let symbols = manifest.symbols.iter().map(|(name, range)| SymbolSpec::new(name.clone(), range.min, range.max));
    let mut graph = KernelGraph {
        format: FORMAT_VERSION,
        name: manifest.name.clone(),
        symbols: symbols.collect(),
        buffers: specs,
        nodes,
        ..KernelGraph::default()
    };
    atoll_frontend::memory_plan::plan(&mut graph);
    Ok(Planned { graph, launches })
}

fn buffers(manifest: &Manifest, symbols: &Symbols, constants: &Constants) -> Result<Vec<BufferSpec>, PackError> {
    let mut weights_end = 0;
    let spec = |(name, buffer): (&String, &Buffer)| {
        let place = || format!("buffer `{name}`");
        let shape: Result<Vec<Expr>, String> = buffer.shape.iter().map(|dimension| expr(dimension, symbols)).collect();
        let kind = match buffer.kind {
            Kind::Input => BufferKind::Input,
            Kind::Output => BufferKind::Output,
            Kind::Const => BufferKind::Const,
            Kind::Temp => BufferKind::Temp,
        };
        if buffer.dtype == DType::Strings {
            return Err(PackError::at(place(), "only compiled models have strings; their table is not in a manifest"));
        }
        let mut spec = BufferSpec {
            name: name.clone(),
            kind,
            dtype: buffer.dtype,
            shape: shape.map_err(|e| PackError::at(place(), e))?,
            weights_offset: None,
        };
        match constants.get(name) {
            Some(bytes) => {
                let declared = spec
                    .bytes()
                    .eval(&[])
                    .map_err(|e| PackError::at(place(), format!("the size of a constant must be fixed: {e}")))?;
                if u64::try_from(declared) != Ok(bytes.len() as u64) {
                    let found = bytes.len();
                    return Err(PackError::at(
                        place(),
                        format!("its file holds {found} bytes, its shape and dtype take {declared}"),
                    ));
                }
                spec.weights_offset = Some(weights_end);
                weights_end = (weights_end + bytes.len() as u64).next_multiple_of(BUFFER_ALIGN);
            }
            None if kind == BufferKind::Const => return Err(PackError::at(place(), "a constant needs a `file`")),
            None if buffer.file.is_some() => return Err(PackError::at(place(), "only constants have a `file`")),
            None => {}
        }
        Ok(spec)
    };
    manifest.buffers.iter().map(spec).collect()
}

/// Converts a value to an expression.
fn expr(value: &Value, symbols: &Symbols) -> Result<Expr, String> {
    match value {
        Value::Integer(value) => Ok(Expr::Const(*value)),
        Value::Float(value) => Err(format!("{value} is not an integer")),
        Value::Text(text) => expression::parse(text, symbols),
    }
}

struct Builder<'a> {
    kernels: &'a mut KernelSet,
    symbols: Symbols,
    buffers: BTreeMap<&'a str, BufferId>,
    specs: Vec<BufferSpec>,
    /// The last node that wrote each buffer.
    writers: Vec<Option<NodeId>>,
    /// The nodes that have read each buffer since its last write.
    readers: Vec<Vec<NodeId>>,
    nodes: Vec<Node>,
    launches: Vec<Option<LaunchSpec>>,
}

impl Builder<'_> {
    fn steps(&mut self, steps: &[Step], place: &str, depth: u32) -> Result<(), PackError> {
        for (index, step) in steps.iter().enumerate() {
            let place = format!("{place} {}", index + 1);
            self.step(step, &place, depth)?;
        }
        Ok(())
    }

    fn step(&mut self, step: &Step, place: &str, depth: u32) -> Result<(), PackError> {
        let at = |reason: String| PackError::at(place, reason);
        match (&step.kernel, &step.copy, &step.fill, step.repeat) {
            (Some(kernel), None, None, None) => {
                self.launch(step, kernel).map_err(|e| PackError::at(format!("{place} (`{kernel}`)"), e))
            }
            (None, Some(copy), None, None) => self.copy(copy).map_err(at),
            (None, None, Some(fill), None) => self.fill(fill).map_err(at),
            (None, None, None, Some(_)) if depth == REPEAT_NESTING_MAX => {
                Err(at(format!("more than {depth} nested repeats")))
            }
            (None, None, None, Some(0)) => Err(at("`repeat` is 0".into())),
            (None, None, None, Some(_)) if step.steps.is_empty() => Err(at("`repeat` needs `steps`".into())),
            (None, None, None, Some(times)) => (0..times).try_for_each(|_| self.steps(&step.steps, place, depth + 1)),
            _ => Err(at("exactly one of `kernel`, `copy`, `fill` and `repeat` is expected".into())),
        }
    }

    fn buffer(&self, name: &str) -> Result<BufferId, String> {
        self.buffers.get(name).copied().ok_or_else(|| format!("there is no buffer `{name}`"))
    }

    fn copy(&mut self, copy: &Copy) -> Result<(), String> {
        let (from, to) = (self.buffer(&copy.from)?, self.buffer(&copy.to)?);
        let (from_offset, to_offset) = (self.offset(&copy.from_offset)?, self.offset(&copy.to_offset)?);
        let bytes = match &copy.bytes {
            Some(bytes) => expr(bytes, &self.symbols)?,
            None => self.specs[from.0 as usize].bytes(),
        };
        if copy.bytes.is_none() && bytes != self.specs[to.0 as usize].bytes() {
            return Err("the two buffers differ in size; give the number of bytes to copy as `bytes`".into());
        }
        self.check_offset(from, &(from_offset.clone() + bytes.clone()))?;
        self.check_offset(to, &(to_offset.clone() + bytes.clone()))?;
        self.check_written(&[from], &[to])?;
        let (reads, writes) = (vec![from], vec![to]);
        self.add("copy", NodeKind::Copy { from, from_offset, to, to_offset, bytes }, reads, writes, None)
    }

    fn fill(&mut self, fill: &Fill) -> Result<(), String> {
        let to = self.buffer(&fill.to)?;
        let spec = &self.specs[to.0 as usize];
        let pattern = element(spec.dtype, &fill.value)?;
        let offset = self.offset(&fill.offset)?;
        let bytes = match &fill.bytes {
            Some(bytes) => expr(bytes, &self.symbols)?,
            None => spec.bytes(),
        };
        self.check_offset(to, &(offset.clone() + bytes.clone()))?;
        self.add("fill", NodeKind::Fill { to, offset, bytes, pattern }, vec![], vec![to], None)
    }

    /// An optional number of bytes; 0 if absent.
    fn offset(&self, value: &Option<Value>) -> Result<Expr, String> {
        let offset = value.as_ref().map_or(Ok(Expr::Const(0)), |value| expr(value, &self.symbols))?;
        match offset.as_const() {
            Some(bytes) if bytes < 0 => Err(format!("{bytes} is not a valid offset")),
            _ => Ok(offset),
        }
    }

    fn launch(&mut self, step: &Step, name: &str) -> Result<(), String> {
        let block = dimensions(&step.block)?;
        let function = self.kernels.function(name)?;
        check_block(function, block)?;
        let (entry, parameters) = (function.name.clone(), function.params.clone());
        if parameters.len() != step.args.len() {
            return Err(format!("it takes {} arguments, {} are given", parameters.len(), step.args.len()));
        }
        let args: Vec<Argument> = parameters
            .iter()
            .zip(&step.args)
            .map(|(parameter, arg)| {
                self.argument(parameter, arg).map_err(|e| format!("parameter `{}`: {e}", parameter.name))
            })
            .collect::<Result<_, _>>()?;
        let (reads, writes) = self.effects(step, &entry, &args)?;
        let mut grid = [Expr::Const(1), Expr::Const(1), Expr::Const(1)];
        if step.grid.is_empty() || step.grid.len() > grid.len() {
            return Err("`grid` needs one to three sizes".into());
        }
        for (dimension, value) in grid.iter_mut().zip(&step.grid) {
            *dimension = expr(value, &self.symbols)?;
            if dimension.as_const().is_some_and(|blocks| u32::try_from(blocks).is_err()) {
                return Err(format!("{dimension} is not a number of blocks"));
            }
        }
        let kernel = self.kernels.launched_with(&entry, block, step.shared);
        self.add(name, NodeKind::Kernel, reads, writes, Some(LaunchSpec::new(kernel, grid, args)))
    }

    fn argument(&self, parameter: &atoll_ptx::Variable, arg: &Arg) -> Result<Argument, String> {
        let (buffer, offset) = match arg {
            Arg::Part(part) => (self.buffer(&part.buffer)?, expr(&part.offset, &self.symbols)?),
            Arg::Value(Value::Text(name)) if self.buffers.contains_key(name.as_str()) => {
                (self.buffer(name)?, Expr::Const(0))
            }
            Arg::Value(Value::Text(name)) if expression::is_word(name) && !self.symbols.contains_key(name) => {
                return Err(format!("there is neither a buffer nor a symbol `{name}`"));
            }
            Arg::Raw(raw) => return self.raw(parameter, raw),
            Arg::Value(value) => return arguments::literal(parameter, value, |value| expr(value, &self.symbols)),
        };
        if !is_address(parameter) {
            return Err(format!("a buffer needs a 64-bit parameter, and this one has type .{}", parameter.ty));
        }
        self.check_offset(buffer, &offset)?;
        Ok(Argument::Buffer { buffer, offset })
    }

    /// The bytes of a parameter, with addresses of buffers in it.
    fn raw(&self, parameter: &atoll_ptx::Variable, raw: &Raw) -> Result<Argument, String> {
        let relocation = |address: &Address| {
            let (buffer, offset) = (self.buffer(&address.buffer)?, expr(&address.offset, &self.symbols)?);
            self.check_offset(buffer, &offset)?;
            Ok(Relocation { at: address.at, buffer, offset })
        };
        let mut found = raw.addresses.iter().map(relocation).collect::<Result<Vec<Relocation>, String>>()?;
        found.sort_unstable_by_key(|relocation| relocation.at);
        match arguments::raw(parameter, &raw.bytes)? {
            // A pointer, and no structure.
            Argument::Bytes { .. } if found.len() == 1 && found[0].at == 0 && is_address(parameter) => {
                let Relocation { buffer, offset, .. } = found.remove(0);
                Ok(Argument::Buffer { buffer, offset })
            }
            Argument::Bytes { align, bytes, .. } => Ok(Argument::Bytes { align, bytes, relocations: found }),
            other => Ok(other),
        }
    }

    /// Checks that an offset lies in its buffer, if both sizes are constant. Other offsets are
    /// checked when the function is invoked.
    fn check_offset(&self, buffer: BufferId, offset: &Expr) -> Result<(), String> {
        let spec = &self.specs[buffer.0 as usize];
        match (offset.as_const(), spec.bytes().eval(&[])) {
            (Some(offset), _) if offset < 0 => Err(format!("{offset} is not a valid offset in `{}`", spec.name)),
            (Some(offset), Ok(bytes)) if offset > bytes => {
                Err(format!("byte {offset} is past the end of `{}`, which has {bytes} bytes", spec.name))
            }
            _ => Ok(()),
        }
    }

    /// The buffers that a launch reads and writes: from the analysis of the kernel or, if it cannot
    /// follow an address, from the manifest.
    fn effects(&self, step: &Step, entry: &Name, args: &[Argument]) -> Result<(Vec<BufferId>, Vec<BufferId>), String> {
        let effects = self.kernels.effects(entry);
        let by_name = |names: &Option<Vec<String>>| -> Result<Option<Vec<BufferId>>, String> {
            names.as_ref().map(|names| names.iter().map(|n| self.buffer(n)).collect()).transpose()
        };
        let found = |roots, unsupported: Option<u32>, what: &str| -> Result<Vec<BufferId>, String> {
            if let Some(line) = effects.unsupported.or(unsupported) {
                return Err(format!(
                    "the analysis cannot tell what it {what} (line {line} of the PTX); list the buffers in `{what}`"
                ));
            }
            let positions = kernels::parameters(roots)?;
            let no_buffer = || "a number is used as an address; give a buffer".to_owned();
            let buffers = positions.iter().map(|&(index, at)| match &args[index] {
                Argument::Buffer { buffer, .. } if at == 0 => Ok(*buffer),
                Argument::Bytes { relocations, .. } => {
                    let found = relocations.iter().find(|relocation| relocation.at == at);
                    found.map(|relocation| relocation.buffer).ok_or_else(no_buffer)
                }
                _ => Err(no_buffer()),
            });
            let mut buffers: Vec<BufferId> = buffers.collect::<Result<_, _>>()?;
            buffers.sort_unstable();
            buffers.dedup();
            Ok(buffers)
        };
        let listed = |names: &Option<Vec<String>>, roots, unsupported, what: &str| {
            let found = found(roots, unsupported, what);
            let Some(listed) = by_name(names)? else { return found };
            // The manifest must list at least the buffers that the analysis found.
            match found.unwrap_or_default().iter().find(|buffer| !listed.contains(buffer)) {
                Some(buffer) => Err(format!(
                    "it also {what} `{}`, which `{what}` does not list",
                    self.specs[buffer.0 as usize].name
                )),
                None => Ok(listed),
            }
        };
        let mut reads = listed(&step.reads, &effects.reads, effects.reads_anything, "reads")?;
        let writes = listed(&step.writes, &effects.writes, effects.writes_anything, "writes")?;
        self.check_written(&reads, &writes)?;
        // A buffer that is passed but not used must still exist during the launch.
        for buffer in args.iter().flat_map(buffers_of) {
            if !reads.contains(&buffer) && !writes.contains(&buffer) {
                reads.push(buffer);
            }
        }
        Ok((reads, writes))
    }

    /// Checks that every buffer that is read was written before, or is written by the same launch.
    fn check_written(&self, reads: &[BufferId], writes: &[BufferId]) -> Result<(), String> {
        let unwritten = |buffer: &&BufferId| {
            let is_ours = matches!(self.specs[buffer.0 as usize].kind, BufferKind::Output | BufferKind::Temp);
            is_ours && self.writers[buffer.0 as usize].is_none() && !writes.contains(buffer)
        };
        match reads.iter().find(unwritten) {
            Some(buffer) => {
                Err(format!("it reads `{}`, which no step has written", self.specs[buffer.0 as usize].name))
            }
            None => Ok(()),
        }
    }

    fn add(
        &mut self,
        name: &str,
        kind: NodeKind,
        reads: Vec<BufferId>,
        writes: Vec<BufferId>,
        launch: Option<LaunchSpec>,
    ) -> Result<(), String> {
        let id = NodeId(self.nodes.len() as u32);
        if self.nodes.len() == NODES_MAX {
            return Err(format!("more than {NODES_MAX} nodes"));
        }
        let mut after = Vec::new();
        for buffer in &writes {
            let spec = &self.specs[buffer.0 as usize];
            if matches!(spec.kind, BufferKind::Input | BufferKind::Const) {
                return Err(format!("it writes `{}`, which is an input or a constant", spec.name));
            }
            after.append(&mut self.readers[buffer.0 as usize]);
            after.extend(self.writers[buffer.0 as usize]);
        }
        for buffer in &reads {
            after.extend(self.writers[buffer.0 as usize]);
            self.readers[buffer.0 as usize].push(id);
        }
        for buffer in &writes {
            self.writers[buffer.0 as usize] = Some(id);
        }
        after.sort_unstable();
        after.dedup();
        self.nodes.push(Node { name: format!("{name}_{}", id.0), kind, reads, writes, after });
        self.launches.push(launch);
        Ok(())
    }

    fn check_outputs(&self) -> Result<(), PackError> {
        let unwritten = self
            .specs
            .iter()
            .zip(&self.writers)
            .find(|(spec, writer)| spec.kind == BufferKind::Output && writer.is_none());
        match unwritten {
            Some((spec, _)) => Err(PackError::at(format!("buffer `{}`", spec.name), "no step writes this output")),
            None => Ok(()),
        }
    }
}

/// Whether a parameter is an address, and no structure or number of another size.
fn is_address(parameter: &atoll_ptx::Variable) -> bool {
    parameter.ty.bytes() == 8 && parameter.dimensions.is_empty() && parameter.vector.is_none()
}

/// The buffers whose addresses are in an argument.
fn buffers_of(argument: &Argument) -> Vec<BufferId> {
    match argument {
        Argument::Buffer { buffer, .. } => vec![*buffer],
        Argument::Bytes { relocations, .. } => relocations.iter().map(|relocation| relocation.buffer).collect(),
        _ => Vec::new(),
    }
}

/// The little-endian bytes of one element.
fn element(dtype: DType, value: &Value) -> Result<Vec<u8>, String> {
    let tensor = match value {
        Value::Integer(value) if is_float(dtype) => Tensor::floats(dtype, vec![], [*value as f64]),
        Value::Float(value) if is_float(dtype) => Tensor::floats(dtype, vec![], [*value]),
        Value::Integer(value) if wrap_int(dtype, *value) == *value && (dtype != DType::U64 || *value >= 0) => {
            Tensor::ints(dtype, vec![], [*value])
        }
        _ => return Err(format!("its value is not of type {dtype}")),
    };
    Ok(tensor.to_bytes().to_vec())
}

/// Checks that a kernel can be launched with a block shape.
fn check_block(function: &Function, block: [u32; 3]) -> Result<(), String> {
    let declared = |name: &str| -> Option<Vec<u32>> {
        let directive = function.attributes.iter().find(|a| a.name == name)?;
        Some(directive.arguments.iter().filter_map(|a| a.parse().ok()).chain([1, 1]).take(3).collect())
    };
    let threads: u64 = block.iter().map(|&n| u64::from(n)).product();
    match (declared("reqntid"), declared("maxntid")) {
        _ if threads == 0 => Err("a block needs at least one thread".into()),
        (Some(wanted), _) if wanted != block => {
            Err(format!("its PTX requires blocks of {wanted:?} threads, {block:?} are given"))
        }
        (_, Some(most)) if threads > most.iter().map(|&n| u64::from(n)).product() => {
            Err(format!("its PTX allows blocks of {most:?} threads, {block:?} are given"))
        }
        _ => Ok(()),
    }
}

/// `[32, 8]` as a shape of three sizes.
fn dimensions(sizes: &[u32]) -> Result<[u32; 3], String> {
    let mut dimensions = [1; 3];
    if sizes.is_empty() || sizes.len() > dimensions.len() {
        return Err("`block` needs one to three sizes".into());
    }
    dimensions[..sizes.len()].copy_from_slice(sizes);
    Ok(dimensions)
}
