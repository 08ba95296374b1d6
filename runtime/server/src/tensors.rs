//! The tensors of a kernel graph as the protocol describes them.

use atoll_kgraph::{BufferKind, BufferSpec, DType, Expr, KernelGraph, StateSpec};
use atoll_protocol::{ConfigState, DataType, TensorMetadata};

/// Metadata of a graph's inputs or outputs, as clients give and get them; symbolic sizes are -1.
pub fn tensor_metadata(graph: &KernelGraph, kind: BufferKind) -> Vec<TensorMetadata> {
    let dimension = |size: &Expr| size.as_const().unwrap_or(-1);
    let metadata = |buffer: &BufferSpec| TensorMetadata {
        name: buffer.name.clone(),
        datatype: datatype(buffer.dtype),
        shape: buffer.shape.iter().map(dimension).collect(),
        symbols: symbol_names(graph, &buffer.shape),
    };
    match kind {
        BufferKind::Input => graph.client_inputs().map(|(_, buffer)| metadata(buffer)).collect(),
        _ => graph.buffers_of(kind).map(|(_, buffer)| metadata(buffer)).collect(),
    }
}

/// Whether the rows of a batch are the first dimension of every input and output.
pub(crate) fn rows_first(graph: &KernelGraph) -> bool {
    let Some(batch) = &graph.batch else { return false };
    let mut tensors = graph.buffers_of(BufferKind::Input).chain(graph.buffers_of(BufferKind::Output));
    tensors.all(|(id, _)| batch.axes[id.0 as usize] == Some(0))
}

/// Whether every input and output may have one row in front.
pub(crate) fn row_fits_in_front(graph: &KernelGraph) -> bool {
    let all = [BufferKind::Input, BufferKind::Output].map(|kind| tensor_metadata(graph, kind)).concat();
    all.iter().all(|tensor| matches!(tensor.shape.first(), Some(-1 | 1)))
}

/// Metadata of a graph's state buffers.
pub(crate) fn states(graph: &KernelGraph) -> Vec<ConfigState> {
    let state = |state: &StateSpec| ConfigState {
        input_name: state.input.clone(),
        output_name: state.output.clone(),
        data_type: datatype(graph.buffers[state.buffer.0 as usize].dtype).config_name(),
        dims: state.shape.iter().map(|size| size.as_const().unwrap_or(-1)).collect(),
    };
    graph.session.states.iter().map(state).collect()
}

/// The name of the symbol in each dimension (empty for a constant size). An empty list if no
/// dimension is a symbol.
fn symbol_names(graph: &KernelGraph, shape: &[Expr]) -> Vec<String> {
    let name = |size: &Expr| match size {
        Expr::Symbol(id) => graph.symbols[id.0 as usize].name.clone(),
        _ => String::new(),
    };
    let names: Vec<String> = shape.iter().map(name).collect();
    if names.iter().all(String::is_empty) { Vec::new() } else { names }
}

/// The protocol's data type of a kernel graph's type. The protocol has no narrow types, so clients
/// see the types that carry them.
pub(crate) fn datatype(dtype: DType) -> DataType {
    match dtype {
        DType::Bool => DataType::Bool,
        DType::U8 | DType::U2 | DType::U4 | DType::F4e2m1 => DataType::Uint8,
        DType::F8e4m3fn | DType::F8e4m3fnuz | DType::F8e5m2 | DType::F8e5m2fnuz | DType::F8e8m0 => DataType::Uint8,
        DType::I8 | DType::I2 | DType::I4 => DataType::Int8,
        DType::U16 => DataType::Uint16,
        DType::I16 => DataType::Int16,
        DType::U32 => DataType::Uint32,
        DType::I32 => DataType::Int32,
        DType::U64 => DataType::Uint64,
        DType::I64 => DataType::Int64,
        DType::F16 => DataType::Fp16,
        DType::Bf16 => DataType::Bf16,
        DType::F32 => DataType::Fp32,
        DType::F64 => DataType::Fp64,
        DType::Strings => DataType::Bytes,
    }
}

/// The kernel graph's type of a protocol data type; `None` for strings.
pub fn dtype_of(datatype: DataType) -> Option<DType> {
    Some(match datatype {
        DataType::Bool => DType::Bool,
        DataType::Uint8 => DType::U8,
        DataType::Int8 => DType::I8,
        DataType::Uint16 => DType::U16,
        DataType::Int16 => DType::I16,
        DataType::Uint32 => DType::U32,
        DataType::Int32 => DType::I32,
        DataType::Uint64 => DType::U64,
        DataType::Int64 => DType::I64,
        DataType::Fp16 => DType::F16,
        DataType::Bf16 => DType::Bf16,
        DataType::Fp32 => DType::F32,
        DataType::Fp64 => DType::F64,
        DataType::Bytes => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_see_the_type_that_carries_a_narrow_one() {
        for narrow in DType::NARROW {
            assert_eq!(dtype_of(datatype(narrow)), Some(narrow.carrier()), "{narrow}");
        }
    }
}
