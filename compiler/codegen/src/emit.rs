//! Emits the kernels and launches of a schedule for one target.

use crate::error::CodegenError;
use crate::kernels;
use crate::schedule::{Schedule, Tensor, Work, WorkKind};
use crate::target::TargetDescription;
use crate::variants::variants;
use crate::writer::Written;
use atoll_frontend::tensor_graph::{Op, PadMode};
use atoll_kgraph::{Argument, Expr, KernelId, LaunchSpec, LaunchVariant};
use atoll_ptx::{
    Address, AddressBase, Directive, Function, Instruction, Item, ItemKind, Module, Name, Operand, StatementKind, build,
};
use std::collections::HashMap;

/// Kernels and launches of one target.
#[derive(Clone, Debug)]
pub struct Emitted {
    /// All kernels, each once.
    pub module: Module,
    /// The kernels in the module's order, indexed by [`KernelId`].
    pub kernels: Vec<EmittedKernel>,
    /// One entry per graph node; `None` for a copy node.
    pub launches: Vec<Option<LaunchSpec>>,
}

/// A kernel of an emitted module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmittedKernel {
    /// Name of its entry point.
    pub name: String,
    /// The block shape it was written for; a multiple of 32 threads.
    pub block: [u32; 3],
}

/// Largest number of elements of a tensor: kernels index elements in 31 bits.
const ELEMENTS_MAX: i64 = i32::MAX as i64;

/// Writes the kernels of a schedule for a target.
pub fn emit(schedule: &Schedule, target: &TargetDescription) -> Result<Emitted, CodegenError> {
    let mut emitter = Emitter {
        module: build::module(&target.ptx_version, &target.ptx_target),
        kernels: Vec::new(),
        by_stem: HashMap::new(),
    };
    let mut launches = Vec::with_capacity(schedule.work.len());
    for (node, work) in schedule.graph.nodes.iter().zip(&schedule.work) {
        let written = check_sizes(work).and_then(|()| write(target, work)).map_err(|e| e.at(&node.name))?;
        let written =
            written.map(|written| numbered(written, &work.checks).map_err(|e| e.at(&node.name))).transpose()?;
        let mut launch = written.map(|written| emitter.add(limit_registers(target, written)));
        if let Some(launch) = &mut launch {
            for (ranges, written) in variants(target, &schedule.graph.symbols, work).map_err(|e| e.at(&node.name))? {
                let variant = emitter.add(limit_registers(target, written));
                // If the target's tile has few rows, the variant may be the same kernel.
                if variant.kernel != launch.kernel {
                    launch.variants.push(LaunchVariant { ranges, launch: variant });
                }
            }
        }
        launches.push(launch);
    }
    Ok(Emitted { module: emitter.module, kernels: emitter.kernels, launches })
}

/// The kernel of one node; `None` for a copy.
fn write(target: &TargetDescription, work: &Work) -> Result<Option<Written>, CodegenError> {
    let carried = carried(work);
    let work = carried.as_ref().unwrap_or(work);
    let inputs = &work.inputs[..];
    let output = work.outputs.first().ok_or_else(|| CodegenError::inconsistent("an operator has no results"))?;
    let input = |i: usize| inputs.get(i).ok_or_else(|| CodegenError::inconsistent(format!("operand {i} is missing")));
    let written = match &work.kind {
        WorkKind::Copy => return Ok(None),
        WorkKind::ConcatPart { axis, first } => kernels::concat::concat(target, *axis, first, inputs, output),
        WorkKind::Recurrence(layer) => kernels::recurrence::recurrence(target, *layer, inputs, &work.outputs),
        WorkKind::Op(op) => match op {
            Op::Pointwise(program) => kernels::pointwise::pointwise(target, program, inputs, output),
            Op::Conv(conv) => kernels::conv::conv(target, conv, inputs, output),
            Op::MatMul(matmul) => kernels::matmul::matmul(target, matmul, inputs, output, None),
            Op::Pool(pool) => kernels::pool::pool(target, pool, input(0)?, output),
            Op::Reduce(reduce) => kernels::reduce::reduce(target, reduce, input(0)?, output),
            Op::Softmax { axis, log } => kernels::softmax::softmax(target, *axis, *log, input(0)?, output),
            Op::LayerNorm { axis, epsilon } => kernels::layer_norm::layer_norm(target, *axis, *epsilon, inputs, output),
            Op::Gather { axis } => kernels::gather::gather(target, *axis, input(0)?, input(1)?, output),
            Op::Transpose { permutation } => kernels::pointwise::transpose(target, permutation, input(0)?, output),
            Op::Slice { starts, steps } => kernels::pointwise::slice(target, starts, steps, input(0)?, output),
            Op::Pad { before, mode } => kernels::pad::pad(target, before, *mode, input(0)?, output),
            Op::Resize(resize) => kernels::resize::resize(target, resize, input(0)?, output),
            Op::Nest(nest) => kernels::nest::nest(target, nest, inputs, &work.outputs),
            // Scheduling replaces these operators.
            Op::Reshape | Op::Concat { .. } | Op::Recurrent { .. } | Op::If { .. } | Op::Loop { .. } => {
                Err(CodegenError::inconsistent("scheduling should have replaced this operator"))
            }
        },
    };
    written.map(Some)
}

/// Work that only moves elements of a narrow type, as work on the carrier type, so the kernel
/// copies bytes without converting them. `None` for all other work.
fn carried(work: &Work) -> Option<Work> {
    let moves = match &work.kind {
        WorkKind::ConcatPart { .. } => true,
        WorkKind::Op(Op::Pointwise(program)) => program.is_identity(),
        WorkKind::Op(Op::Pad { mode, .. }) => !matches!(mode, PadMode::Constant(_)),
        WorkKind::Op(op) => matches!(op, Op::Gather { .. } | Op::Transpose { .. } | Op::Slice { .. }),
        WorkKind::Copy | WorkKind::Recurrence(_) => false,
    };
    if !moves || !work.outputs.iter().any(|tensor| tensor.dtype.is_narrow()) {
        return None;
    }
    let mut work = work.clone();
    work.inputs.iter_mut().chain(&mut work.outputs).for_each(|tensor| tensor.dtype = tensor.dtype.carrier());
    Some(work)
}

/// Replaces the kernel's own check numbers in the arguments by those of the graph.
fn numbered(mut written: Written, checks: &[(u32, u32)]) -> Result<Written, CodegenError> {
    for argument in &mut written.args {
        if let Argument::Check { check } = argument {
            let known = checks.iter().find(|(number, _)| number == check);
            *check = known
                .ok_or_else(|| {
                    CodegenError::inconsistent(format!("check {check} of its kernel is not in the check table"))
                })?
                .1;
        }
    }
    Ok(written)
}

/// Adds a `.maxnreg` limit, which tells the assembler how many registers a thread may use.
fn limit_registers(target: &TargetDescription, mut written: Written) -> Written {
    if let Some(limits) = target.registers {
        let threads: u32 = written.block.iter().product();
        // Registers are allocated in units of eight.
        let count = (limits.per_block / threads / 8 * 8).min(limits.per_thread_max);
        written
            .function
            .attributes
            .push(Directive { name: Name::new("maxnreg"), arguments: vec![Name::from(count.to_string())] });
    }
    written
}

fn check_sizes(work: &Work) -> Result<(), CodegenError> {
    let is_large = |t: &Tensor| {
        Expr::product(t.within.as_deref().unwrap_or(&t.shape)).as_const().is_some_and(|count| count > ELEMENTS_MAX)
    };
    match work.inputs.iter().chain(&work.outputs).find(|t| is_large(t)) {
        Some(tensor) => Err(CodegenError::unsupported(format!(
            "a tensor has {} elements; at most {ELEMENTS_MAX} are supported",
            tensor.count()
        ))),
        None => Ok(()),
    }
}

struct Emitter {
    module: Module,
    kernels: Vec<EmittedKernel>,
    /// Kernels before they are named, by stem, with their block shape and id.
    by_stem: HashMap<String, Vec<(Function, [u32; 3], KernelId)>>,
}

impl Emitter {
    /// Adds a kernel unless an equal one exists; returns the launch.
    fn add(&mut self, written: Written) -> LaunchSpec {
        let Written { stem, function, block, grid, args } = written;
        let known = self.by_stem.entry(stem.clone()).or_default();
        let kernel = match known.iter().find(|(have, shape, _)| *shape == block && *have == function) {
            Some((_, _, kernel)) => *kernel,
            None => {
                let kernel = KernelId(self.kernels.len() as u32);
                let name = if known.is_empty() { stem.clone() } else { format!("{stem}_{}", known.len() + 1) };
                known.push((function.clone(), block, kernel));
                self.module.items.push(Item::built(ItemKind::Function(renamed(function, &stem, &name))));
                self.kernels.push(EmittedKernel { name, block });
                kernel
            }
        };
        LaunchSpec::new(kernel, grid.map(|e| e.max(Expr::Const(0))), args)
    }
}

/// Renames the kernel and its parameters, whose names begin with the kernel's.
fn renamed(mut function: Function, from: &str, to: &str) -> Function {
    let prefix = format!("{from}_param_");
    let rename = |name: &mut Name| {
        if let Some(number) = name.strip_prefix(&prefix) {
            *name = Name::from(format!("{to}_param_{number}"));
        }
    };
    function.name = Name::new(to);
    function.params.iter_mut().for_each(|p| rename(&mut p.name));
    for statement in function.body.iter_mut().flat_map(|b| &mut b.statements) {
        if let StatementKind::Instruction(Instruction { operands, .. }) = &mut statement.kind {
            for operand in operands {
                if let Operand::Address(Address { base: AddressBase::Name(name), .. }) = operand {
                    rename(name);
                }
            }
        }
    }
    function
}
