//! The text output of `atoll inspect`.

use super::{Inspection, Kernel, Memory, NodeRow};
use crate::output::{Align, Table, bytes};
use std::fmt::Write;

/// Buffers are shown in JSON only: there are hundreds.
pub(super) fn text(inspection: &Inspection) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{}  {}, by {}", inspection.name, bytes(inspection.file_bytes), inspection.producer);
    let features = if inspection.features.is_empty() {
        String::new()
    } else {
        format!(", with {}", inspection.features.join(", "))
    };
    let _ = writeln!(
        text,
        "digest   {}\nformat   {}{features}\ntargets  {}",
        inspection.digest,
        inspection.format,
        inspection.targets.join(", ")
    );
    let sources = match inspection.sources.as_slice() {
        [] => "none: a daemon compiles it for no tenant, so it runs only where its native code is trusted".into(),
        all if all.len() == inspection.targets.len() => "PTX before the passes, for all targets".into(),
        some => format!("PTX before the passes, for {}", some.join(", ")),
    };
    let _ = writeln!(text, "source   {sources}");
    for symbol in &inspection.symbols {
        let _ = writeln!(text, "symbol   {} = {} ({} to {})", symbol.name, symbol.value, symbol.min, symbol.max);
    }
    if let Some(batch) = &inspection.batch {
        let _ = writeln!(text, "batch    {} counts independent rows, proven by {}", batch.symbol, batch.proof);
    }
    for (what, tensors) in [("input ", &inspection.inputs), ("output", &inspection.outputs)] {
        for tensor in tensors {
            let _ = writeln!(text, "{what}   {}: {}{:?}", tensor.name, tensor.datatype, tensor.shape);
        }
    }
    let _ = write!(
        text,
        "\nDevice memory\n{}\nKernels\n{}\nNodes\n{}",
        memory_table(&inspection.memory),
        kernel_table(&inspection.kernels),
        node_table(&inspection.nodes)
    );
    if !inspection.segments.is_empty() {
        let _ = write!(text, "\nControl flow\n{}", super::flow::text(&inspection.segments));
    }
    text
}

fn memory_table(memory: &Memory) -> Table {
    let mut table = Table::new([("what", Align::Left), ("size", Align::Right)]);
    let mut row = |what: &str, size: u64| table.row([what.into(), bytes(size)]);
    row("weights, shared by all invocations", memory.weights_bytes);
    row("one invocation", memory.invocation_bytes);
    row("  including temporary buffers", memory.arena_bytes);
    if let Some(unshared) = memory.unshared_bytes {
        row("    (without reuse)", unshared);
    }
    row("  including flags and progress", memory.control_bytes);
    if memory.state_bytes > 0 {
        row("state of a session", memory.state_bytes);
    }
    row("peak: weights and one invocation", memory.peak_bytes);
    table
}

fn kernel_table(kernels: &[Kernel]) -> Table {
    let mut table = Table::new([
        ("kernel", Align::Left),
        ("launches", Align::Right),
        ("block", Align::Right),
        ("shared", Align::Right),
        ("scratch", Align::Right),
        ("registers", Align::Right),
        ("occupancy", Align::Right),
        ("preemptible", Align::Left),
        ("padding", Align::Left),
        ("may run again", Align::Left),
    ]);
    for kernel in kernels {
        let [shared, scratch] = [kernel.shared_bytes, kernel.scratch_bytes].map(|n| bytes(n.into()));
        let estimated = if kernel.registers_estimated { "~" } else { "" };
        let registers = kernel.registers.map_or("-".into(), |n| format!("{estimated}{n}"));
        let occupancy = match (kernel.occupancy.blocks, &kernel.occupancy.limited_by) {
            (Some(blocks), Some(limit)) => format!("{blocks} ({limit})"),
            _ => "-".into(),
        };
        let preemptible = match (kernel.preemptible, kernel.loop_checks) {
            (false, _) => "no".into(),
            (true, 0) => "at entry".into(),
            (true, loops) => format!("at entry, {loops} loops"),
        };
        let padding = match (&kernel.padding.reason, kernel.padding.class) {
            (Some(reason), _) => format!("no: {reason}"),
            (None, Some(class)) => format!("class {class}"),
            (None, None) => "yes".into(),
        };
        table.row([
            kernel.name.clone(),
            kernel.launches.to_string(),
            dimensions(kernel.block),
            shared,
            scratch,
            registers,
            occupancy,
            preemptible,
            padding,
            may_run_again(kernel),
        ]);
    }
    table
}

/// `yes`, or the reason; the launches of a kernel may differ.
fn may_run_again(kernel: &Kernel) -> String {
    match &kernel.rerun.reason {
        None => "yes".into(),
        Some(reason) if kernel.rerun.launches > 0 => {
            format!("{} of {} launches: {reason}", kernel.rerun.launches, kernel.launches)
        }
        Some(reason) => format!("no: {reason}"),
    }
}

fn node_table(nodes: &[NodeRow]) -> Table {
    let mut table =
        Table::new([("", Align::Right), ("node", Align::Left), ("does", Align::Left), ("blocks", Align::Right)]);
    for (index, node) in nodes.iter().enumerate() {
        table.row([index.to_string(), node.name.clone(), node.what.clone(), node.grid.map_or("-".into(), dimensions)]);
    }
    table
}

/// Formats sizes, as in `128`, `16×16`, `8×8×2`.
fn dimensions(sizes: [u32; 3]) -> String {
    let used = 3 - sizes.iter().rev().take_while(|size| **size == 1).count().min(2);
    sizes[..used].iter().map(u32::to_string).collect::<Vec<_>>().join("×")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trailing_ones_are_left_out() {
        assert_eq!([[128, 1, 1], [1, 1, 1], [16, 16, 1], [1, 1, 4]].map(dimensions), ["128", "1", "16×16", "1×1×4"]);
    }
}
