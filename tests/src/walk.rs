//! Runs the kernels of a compiled model one by one, each on what the preceding nodes computed.

use crate::stopping::Trial;
use crate::{Model, kernel_cache};
use anyhow::{Context, Result};
use atoll_core::rng::Rng;
use atoll_kgraph::{Argument, BufferKind, Bundle, DType, NodeKind};
use atoll_pipeline::{CompileOptions, Form, Silent, Target};
use atoll_ptx::Module;
use atoll_workbench::{Arg, Buffer, HostBench, HostOptions, Kernel, KernelDevice, Launch};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Buffer memory limit of one kernel.
const MEMORY_BYTES: u64 = 1 << 30;

/// Time limit of a kernel, generous enough for a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// A model whose kernels run one by one, each on its own buffers.
#[derive(Debug)]
pub struct Walk {
    bundle: Arc<Bundle>,
    /// Its kernels before any pass.
    pub module: Module,
    symbols: Vec<i64>,
    /// The contents of all buffers, followed by the words of the checks.
    contents: Vec<Vec<u8>>,
}

impl Walk {
    /// Compiles a model and fills its inputs.
    pub fn new(model: &Model, target: Target, folder: &Path, random: &mut Rng) -> Result<Walk> {
        let file = folder.join(format!("{}-walk.kg", model.name));
        let options = CompileOptions { targets: vec![target], kernel_cache: kernel_cache(), ..Default::default() };
        atoll_pipeline::compile(&model.path, &file, &options, &Silent)?;
        let text = atoll_pipeline::show(&model.path, Form::Ptx, target, &options)?;
        let bundle = Bundle::open(&file)?;
        let graph = bundle.graph();
        let symbols: Vec<i64> = graph.symbols.iter().map(|s| s.min.max(3).min(s.max)).collect();
        let mut contents = Vec::new();
        for buffer in &graph.buffers {
            let bytes = usize::try_from(buffer.bytes().eval(&symbols)?)?;
            contents.push(match (buffer.kind, buffer.weights_offset) {
                (BufferKind::Const, Some(at)) => bundle.weights()[at as usize..at as usize + bytes].to_vec(),
                (BufferKind::Input, _) => input(buffer.dtype, bytes, random),
                _ => vec![0; bytes],
            });
        }
        contents.push(vec![0; 4 * graph.checks.len()]);
        Ok(Walk { module: atoll_ptx::parse(&text)?, symbols, contents, bundle })
    }

    /// Visits the first launch of each kernel, in the order of the graph, on the buffers as the
    /// preceding nodes left them.
    pub fn each_kernel(&mut self, visit: &mut dyn FnMut(&Trial<'_>) -> Result<()>) -> Result<()> {
        let mut host = HostBench::start(HostOptions {
            memory_bytes: MEMORY_BYTES,
            time_limit: TIME_LIMIT,
            ..HostOptions::default()
        })?
        .with_cache(kernel_cache());
        let mut loaded: HashMap<String, _> = HashMap::new();
        for node in 0..self.bundle.graph().nodes.len() {
            let Some((mut trial, ids)) = self.trial(node)? else { continue };
            if !loaded.contains_key(trial.entry) {
                visit(&trial)?;
                let kernel = Kernel { module: trial.module, entry: trial.entry, report: None, block: trial.block };
                loaded.insert(trial.entry.to_owned(), host.load(&kernel)?);
            }
            host.launch(&loaded[trial.entry], &trial.launch, &mut trial.buffers, 1)?;
            let after = trial.buffers;
            ids.iter().zip(after).for_each(|(&id, buffer)| self.contents[id] = buffer.bytes);
        }
        Ok(())
    }

    /// The launch of a node. `None` for a copy, which is executed, and for nodes without work.
    fn trial(&mut self, node: usize) -> Result<Option<(Trial<'_>, Vec<usize>)>> {
        let (graph, target) = (
            self.bundle.graph(),
            self.bundle.target_names().next().and_then(|name| self.bundle.target(name)).context("a target")?,
        );
        if let NodeKind::Copy { from, to, bytes, .. } = &graph.nodes[node].kind {
            let bytes = usize::try_from(bytes.eval(&self.symbols)?)?;
            let copied = self.contents[from.0 as usize][..bytes].to_vec();
            self.contents[to.0 as usize][..bytes].copy_from_slice(&copied);
            return Ok(None);
        }
        let Some(spec) = &target.launches[node] else { return Ok(None) };
        let facts = &target.kernels[spec.kernel.0 as usize];
        let grid = [0, 1, 2]
            .map(|axis| spec.grid[axis].eval(&self.symbols).ok().and_then(|n| u32::try_from(n).ok()).unwrap_or(0));
        if grid.contains(&0) {
            return Ok(None);
        }
        let mut ids: Vec<usize> = Vec::new();
        let mut args = Vec::new();
        let mut place = |id: usize| {
            let index = ids.iter().position(|known| *known == id).unwrap_or(ids.len());
            ids.extend((index == ids.len()).then_some(id));
            index
        };
        for argument in &spec.args {
            args.push(match argument {
                Argument::Buffer { buffer, offset } => {
                    Arg::Buffer { index: place(buffer.0 as usize), offset: u64::try_from(offset.eval(&self.symbols)?)? }
                }
                Argument::Check { check } => {
                    Arg::Buffer { index: place(graph.buffers.len()), offset: 4 * u64::from(*check) }
                }
                Argument::Int { dtype, value } => {
                    Arg::Value(value.eval(&self.symbols)?.to_le_bytes()[..dtype.bytes() as usize].to_vec())
                }
                Argument::F32 { bits } => Arg::Value(bits.to_le_bytes().to_vec()),
                Argument::F64 { bits } => Arg::Value(bits.to_le_bytes().to_vec()),
                Argument::Bytes { .. } => anyhow::bail!("no kernel of ours takes a structure"),
            });
        }
        let name = |id: usize| graph.buffers.get(id).map_or_else(|| "checks".into(), |buffer| buffer.name.clone());
        let buffers = ids.iter().map(|&id| Buffer { name: name(id), bytes: self.contents[id].clone(), writable: true });
        let launch = Launch { grid, shared_bytes: 0, args };
        let entry = facts.name.as_str();
        Ok(Some((Trial { module: &self.module, entry, block: facts.block, launch, buffers: buffers.collect() }, ids)))
    }
}

/// Values that are sensible for every type: floats between -1 and 1, small integers.
fn input(dtype: DType, bytes: usize, random: &mut Rng) -> Vec<u8> {
    let width = dtype.bytes() as usize;
    let element = |random: &mut Rng| match dtype {
        DType::F32 => (random.below(2001) as f32 / 1000.0 - 1.0).to_le_bytes().to_vec(),
        _ => random.below(2).to_le_bytes()[..width].to_vec(),
    };
    (0..bytes / width).flat_map(|_| element(random)).collect()
}
