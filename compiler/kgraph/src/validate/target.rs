//! Validates targets.

use super::{Invalid, expression, invalid};
use crate::expr::Expr;
use crate::graph::{BUFFER_ALIGN, BufferId, BufferKind, KernelGraph, Node, NodeKind, ReadBack};
use crate::limits::{BLOCK_THREADS_MAX, KERNEL_NAME_BYTES_MAX, NAME_BYTES_MAX, PARAMS_BYTES_MAX, VARIANTS_MAX};
use crate::target::{
    AmdFacts, Argument, KernelFacts, LaunchSpec, LaunchVariant, PackedConstant, Relocation, SymbolRange, TargetImage,
    preempt_params,
};
use std::collections::HashSet;

/// Validates a target against a valid graph whose weights have `weights_bytes` bytes.
pub fn target(graph: &KernelGraph, target: &TargetImage, weights_bytes: u64) -> Result<(), Invalid> {
    if target.launches.len() != graph.nodes.len() {
        return Err(invalid(
            &target.name,
            format!("{} launches for {} nodes", target.launches.len(), graph.nodes.len()),
        ));
    }
    target.kernels.iter().try_for_each(kernel)?;
    for (index, (node, spec)) in graph.nodes.iter().zip(&target.launches).enumerate() {
        match (&node.kind, spec) {
            (_, Some(spec)) => {
                let owner = Owner { node, index, buffers: node.reads.iter().chain(&node.writes).copied().collect() };
                spec.all().try_for_each(|launch| check_launch(graph, target, &owner, launch))?;
                variants(graph, node, spec)?;
            }
            (NodeKind::Copy { .. } | NodeKind::Fill { .. }, None) => {}
            (NodeKind::Kernel, None) => return Err(invalid(&node.name, "a kernel node needs a launch")),
        }
    }
    sizes_are_known(graph, target)?;
    packed(graph, target, weights_bytes)
}

/// Checks that no launch depends on a size that is read back only after it.
fn sizes_are_known(graph: &KernelGraph, target: &TargetImage) -> Result<(), Invalid> {
    for ReadBack { symbol, after, .. } in &graph.read_backs {
        let uses = |launch: &LaunchSpec| {
            let in_argument = |argument: &Argument| match argument {
                Argument::Buffer { offset: expr, .. } | Argument::Int { value: expr, .. } => expr.depends_on(*symbol),
                Argument::Bytes { relocations, .. } => {
                    relocations.iter().any(|relocation| relocation.offset.depends_on(*symbol))
                }
                Argument::F32 { .. } | Argument::F64 { .. } | Argument::Check { .. } => false,
            };
            launch.grid.iter().any(|blocks| blocks.depends_on(*symbol)) || launch.args.iter().any(in_argument)
        };
        let chosen = |spec: &LaunchSpec| {
            spec.variants.iter().flat_map(|variant| &variant.ranges).any(|range| range.symbol == *symbol)
        };
        let early = graph.nodes.iter().zip(&target.launches).take(after.0 as usize + 1);
        let mut early = early.filter_map(|(node, spec)| Some((node, spec.as_ref()?)));
        if let Some((node, _)) = early.find(|(_, spec)| spec.all().any(uses) || chosen(spec)) {
            let size = &graph.symbols[symbol.0 as usize].name;
            return Err(invalid(
                format!("the size `{size}`"),
                format!("{} uses it in its launch, but comes before it is read", node.name),
            ));
        }
    }
    Ok(())
}

fn kernel(kernel: &KernelFacts) -> Result<(), Invalid> {
    if kernel.name.len() > KERNEL_NAME_BYTES_MAX {
        return Err(invalid(
            "a kernel",
            format!("its name has {} bytes, at most {KERNEL_NAME_BYTES_MAX} are allowed", kernel.name.len()),
        ));
    }
    let threads = kernel.block.iter().fold(1, |threads: u64, &d| threads.saturating_mul(d.into()));
    if threads == 0 || threads > BLOCK_THREADS_MAX {
        return Err(invalid(
            &kernel.name,
            format!("a block of {threads} threads, 1 to {BLOCK_THREADS_MAX} are allowed"),
        ));
    }
    if kernel.params_bytes > PARAMS_BYTES_MAX {
        return Err(invalid(
            &kernel.name,
            format!("{} bytes of parameters, at most {PARAMS_BYTES_MAX} are allowed", kernel.params_bytes),
        ));
    }
    if kernel
        .preempt_offset
        .is_some_and(|at| !at.is_multiple_of(8) || at.checked_add(preempt_params::BYTES) != Some(kernel.params_bytes))
    {
        return Err(invalid(&kernel.name, "the preemption parameters must be the last parameters"));
    }
    if kernel.fence.is_some_and(|fence| fence.dynamic_shared_bytes > kernel.shared_bytes) {
        return Err(invalid(&kernel.name, "its own dynamic shared memory is more than all its shared memory"));
    }
    if kernel.exits_unreported && kernel.preempt_offset.is_none() {
        return Err(invalid(&kernel.name, "`leaves_silently` is set, but it has no preemption parameters"));
    }
    if let Some(AmdFacts { vgprs, sgprs, agprs, wave_lanes, .. }) = kernel.amd
        && (!matches!(wave_lanes, 32 | 64) || vgprs > 512 || agprs > 512 || sgprs > 128)
    {
        return Err(invalid(
            &kernel.name,
            format!(
                "no AMD device has waves of {wave_lanes} lanes with {vgprs} + {agprs} vector and \
                 {sgprs} scalar registers"
            ),
        ));
    }
    Ok(())
}

/// The node that a launch belongs to.
struct Owner<'a> {
    node: &'a Node,
    index: usize,
    /// The buffers that it lists, as a set: there may be millions, and as many arguments.
    buffers: HashSet<BufferId>,
}

fn check_launch(
    graph: &KernelGraph,
    target: &TargetImage,
    owner: &Owner<'_>,
    spec: &LaunchSpec,
) -> Result<(), Invalid> {
    let node = owner.node;
    let Some(kernel) = target.kernels.get(spec.kernel.0 as usize) else {
        return Err(invalid(&node.name, "names a kernel that does not exist"));
    };
    for dimension in &spec.grid {
        expression(graph, &node.name, dimension)?;
    }
    for argument in &spec.args {
        check_argument(graph, owner, argument)?;
    }
    let (offsets, own_bytes) = params_layout(&spec.args);
    for (argument, at) in spec.args.iter().zip(offsets) {
        if let Argument::Bytes { relocations, .. } = argument
            && relocations.iter().any(|relocation| !(at + relocation.at).is_multiple_of(8))
        {
            return Err(invalid(&node.name, "a relocation must be aligned to 8 bytes in the parameter block"));
        }
    }
    if !fits(kernel, own_bytes) {
        return Err(invalid(&node.name, format!("{own_bytes} bytes of arguments do not fit kernel {}", kernel.name)));
    }
    Ok(())
}

fn check_argument(graph: &KernelGraph, owner: &Owner<'_>, argument: &Argument) -> Result<(), Invalid> {
    let node = owner.node;
    match argument {
        Argument::Buffer { buffer, offset } => address(graph, owner, *buffer, offset),
        Argument::Int { value, dtype } => {
            if !matches!(dtype.bytes(), 4 | 8) {
                return Err(invalid(&node.name, "an integer literal must have 32 or 64 bits"));
            }
            expression(graph, &node.name, value)
        }
        Argument::F32 { .. } | Argument::F64 { .. } => Ok(()),
        Argument::Check { check } => match graph.checks.get(*check as usize) {
            Some(known) if known.node.0 as usize == owner.index => Ok(()),
            _ => {
                Err(invalid(&node.name, format!("uses check {check}, which does not exist or belongs to another node")))
            }
        },
        Argument::Bytes { align, bytes, relocations } => {
            if !matches!(align, 1 | 2 | 4 | 8 | 16) || bytes.is_empty() || bytes.len() > PARAMS_BYTES_MAX as usize {
                let reason = format!(
                    "a structure of {} bytes aligned to {align}; 1 to {PARAMS_BYTES_MAX} bytes and powers of two \
                     up to 16 are allowed",
                    bytes.len()
                );
                return Err(invalid(&node.name, reason));
            }
            let mut end = 0;
            for Relocation { at, buffer, offset } in relocations {
                let end_of_address = at.checked_add(8).filter(|end_at| *at >= end && *end_at as usize <= bytes.len());
                end = end_of_address.ok_or_else(|| {
                    invalid(
                        &node.name,
                        format!(
                            "the relocation at byte {at} overlaps another or lies outside of its {} bytes",
                            bytes.len()
                        ),
                    )
                })?;
                address(graph, owner, *buffer, offset)?;
            }
            Ok(())
        }
    }
}

fn address(graph: &KernelGraph, owner: &Owner<'_>, buffer: BufferId, offset: &Expr) -> Result<(), Invalid> {
    let node = owner.node;
    if !owner.buffers.contains(&buffer) {
        return Err(invalid(&node.name, format!("uses buffer {}, which it does not list", buffer.0)));
    }
    expression(graph, &node.name, offset)
}

/// Checks that the ranges of every variant are valid, and that no earlier variant covers all of its
/// values. Values without a variant use the launch itself.
fn variants(graph: &KernelGraph, node: &Node, spec: &LaunchSpec) -> Result<(), Invalid> {
    if spec.variants.len() > VARIANTS_MAX {
        return Err(invalid(
            &node.name,
            format!("{} variants, at most {VARIANTS_MAX} are allowed", spec.variants.len()),
        ));
    }
    for (index, LaunchVariant { ranges, launch }) in spec.variants.iter().enumerate() {
        let place = format!("{}, variant {index}", node.name);
        if !launch.variants.is_empty() {
            return Err(invalid(place, "a variant must not have variants"));
        }
        let mut seen = HashSet::new();
        for SymbolRange { symbol, min, max } in ranges {
            let Some(known) = graph.symbols.get(symbol.0 as usize) else {
                return Err(invalid(place, format!("symbol {} does not exist", symbol.0)));
            };
            if !seen.insert(symbol) || min > max || *max < known.min || *min > known.max {
                let (name, least, most) = (&known.name, known.min, known.max);
                return Err(invalid(
                    place,
                    format!(
                        "the range {min} to {max} of `{name}` is empty, given twice, or outside of {least} to {most}"
                    ),
                ));
            }
        }
        if ranges.is_empty() {
            return Err(invalid(place, "it has no range, so later variants could never be selected"));
        }
        if let Some(earlier) =
            spec.variants[..index].iter().position(|earlier| contains(graph, &earlier.ranges, ranges))
        {
            return Err(invalid(place, format!("variant {earlier} precedes it and covers all of its values")));
        }
    }
    Ok(())
}

/// Whether all values that match `inner` also match `outer`.
fn contains(graph: &KernelGraph, outer: &[SymbolRange], inner: &[SymbolRange]) -> bool {
    outer.iter().all(|outer| {
        let known = &graph.symbols[outer.symbol.0 as usize];
        let inner = inner.iter().find(|inner| inner.symbol == outer.symbol);
        let (min, max) =
            inner.map_or((known.min, known.max), |inner| (inner.min.max(known.min), inner.max.min(known.max)));
        outer.min <= min && max <= outer.max
    })
}

/// Checks that packed constants are constants, packed once, within the weights.
fn packed(graph: &KernelGraph, target: &TargetImage, weights_bytes: u64) -> Result<(), Invalid> {
    let mut seen = HashSet::new();
    for PackedConstant { buffer, layout, weights_offset, bytes } in &target.packed {
        let is_const = graph.buffers.get(buffer.0 as usize).is_some_and(|spec| spec.kind == BufferKind::Const);
        if !is_const || !seen.insert(buffer) {
            return Err(invalid(
                &target.name,
                format!("packs buffer {}, which is not a constant or is packed twice", buffer.0),
            ));
        }
        let end = weights_offset.checked_add(*bytes);
        if !weights_offset.is_multiple_of(BUFFER_ALIGN) || end.is_none_or(|end| end > weights_bytes) {
            return Err(invalid(
                &target.name,
                format!("the packed form of buffer {} lies outside the weights or is not aligned", buffer.0),
            ));
        }
        if layout.is_empty() || layout.len() > NAME_BYTES_MAX {
            return Err(invalid(
                &target.name,
                format!(
                    "the layout of packed buffer {} has a name of {} bytes, 1 to {NAME_BYTES_MAX} are allowed",
                    buffer.0,
                    layout.len()
                ),
            ));
        }
    }
    Ok(())
}

/// Whether the kernel's own parameters have `own_bytes`, and the appended ones follow them.
fn fits(kernel: &KernelFacts, own_bytes: u32) -> bool {
    let follows = |at: u32, end: u32| at == end.next_multiple_of(8);
    let end = match kernel.fence {
        Some(fence) if !follows(fence.offset, own_bytes) => return false,
        Some(fence) => fence.end(),
        None => own_bytes,
    };
    kernel.preempt_offset.map_or(kernel.params_bytes == end, |at| follows(at, end))
}

/// Byte offset of every argument in the naturally aligned parameter block, and the end of the last
/// argument.
pub fn params_layout(args: &[Argument]) -> (Vec<u32>, u32) {
    let mut end = 0_u32;
    let offsets = args
        .iter()
        .map(|argument| {
            let at = end.next_multiple_of(argument.align());
            end = at + argument.bytes();
            at
        })
        .collect();
    (offsets, end)
}
