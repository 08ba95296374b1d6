//! Validates the structure of a batch axis. Whether the rows are independent is not checked: the
//! analysis named as `proof` has shown it.

use super::{Invalid, invalid};
use crate::batch::BatchAxis;
use crate::expr::Expr;
use crate::graph::{BufferKind, BufferSpec, KernelGraph};
use crate::limits::NAME_BYTES_MAX;

pub(super) fn check(graph: &KernelGraph) -> Result<(), Invalid> {
    let place = "batch axis";
    let Some(BatchAxis { symbol, axes, proof }) = &graph.batch else { return Ok(()) };
    if symbol.0 as usize >= graph.symbols.len() {
        return Err(invalid(place, format!("symbol {} does not exist", symbol.0)));
    }
    if axes.len() != graph.buffers.len() {
        return Err(invalid(place, format!("{} axes for {} buffers", axes.len(), graph.buffers.len())));
    }
    if proof.is_empty() || proof.len() > NAME_BYTES_MAX {
        return Err(invalid(
            place,
            format!("a proof with a name of {} bytes, 1 to {NAME_BYTES_MAX} are allowed", proof.len()),
        ));
    }
    if graph.read_backs.iter().any(|read_back| read_back.symbol == *symbol) {
        return Err(invalid(place, "its symbol is read back from the device"));
    }
    graph.buffers.iter().zip(axes).try_for_each(|(buffer, axis)| check_buffer(buffer, *axis, *symbol))
}

fn check_buffer(buffer: &BufferSpec, axis: Option<u32>, symbol: crate::SymbolId) -> Result<(), Invalid> {
    let BufferSpec { name, kind, shape, .. } = buffer;
    let place = format!("batch axis of {name}");
    let Some(axis) = axis else {
        return match kind {
            BufferKind::Input | BufferKind::Output => Err(invalid(place, "inputs and outputs need an axis")),
            _ => Ok(()),
        };
    };
    if *kind == BufferKind::Const {
        return Err(invalid(place, "a constant must not have an axis"));
    }
    let axis = axis as usize;
    match shape.get(axis) {
        None => return Err(invalid(place, format!("axis {axis} of {} dimensions", shape.len()))),
        Some(dimension) if *dimension != Expr::Symbol(symbol) => {
            return Err(invalid(place, format!("axis {axis} is {dimension}, not the symbol")));
        }
        Some(_) => {}
    }
    if shape.iter().enumerate().any(|(other, dimension)| other != axis && dimension.depends_on(symbol)) {
        return Err(invalid(place, "another dimension depends on the symbol"));
    }
    Ok(())
}
