//! Kernels for copies and fills.
//!
//! The host can copy only after everything before the copy has completed. A kernel copies in the
//! device queue instead. It goes through the same passes as other kernels, so it is preemptible and
//! resumes after an eviction.

use crate::error::CompileError;
use crate::kernels::{Kernels, LaunchedKernel};
use atoll_kgraph::{Argument, DType, Expr, KernelGraph, KernelId, LaunchSpec, NodeKind};
use atoll_ptx::{FunctionKind, Item, ItemKind};
use std::fmt::Write;

/// Threads per block.
const THREADS: u32 = 256;
/// Elements per thread. A block moves 16 KiB of 4-byte words, so its start-up cost is small in
/// comparison.
const PER_THREAD: u32 = 16;

/// The operation of a kernel, and the element size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transfer {
    /// Parameters: source, destination, bytes.
    Copy { width: u32 },
    /// Parameters: destination, the pattern repeated to eight bytes, bytes.
    Fill { width: u32 },
}

/// Adds a kernel and a launch for every copy and fill of the graph.
pub(crate) fn add(graph: &KernelGraph, kernels: &mut Kernels) -> Result<(), CompileError> {
    let mut made: Vec<(Transfer, KernelId)> = Vec::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        let Some((transfer, bytes, args)) = transfer(&node.kind) else { continue };
        let kernel = match made.iter().find(|(known, _)| *known == transfer) {
            Some((_, kernel)) => *kernel,
            None => {
                let kernel = append(kernels, transfer)?;
                made.push((transfer, kernel));
                kernel
            }
        };
        let grid = [bytes.ceil_div(i64::from(transfer.block_bytes())), Expr::Const(1), Expr::Const(1)];
        kernels.launches[index] = Some(LaunchSpec::new(kernel, grid, args));
    }
    Ok(())
}

/// The operation of a node, its size in bytes, and the kernel's arguments.
fn transfer(kind: &NodeKind) -> Option<(Transfer, Expr, Vec<Argument>)> {
    let count = |bytes: &Expr| Argument::Int { dtype: DType::U64, value: bytes.clone() };
    match kind {
        NodeKind::Kernel => None,
        NodeKind::Copy { from, from_offset, to, to_offset, bytes } => {
            let width = if [from_offset, to_offset].iter().all(|offset| is_multiple(offset, 4)) { 4 } else { 1 };
            let [from, to] = [(from, from_offset), (to, to_offset)]
                .map(|(buffer, offset)| Argument::Buffer { buffer: *buffer, offset: offset.clone() });
            Some((Transfer::Copy { width }, bytes.clone(), vec![from, to, count(bytes)]))
        }
        NodeKind::Fill { to, offset, bytes, pattern } => {
            let width = if is_multiple(offset, 8) { 8 } else { 1 };
            let repeated: Vec<u8> = pattern.iter().copied().cycle().take(8).collect();
            let pattern = Argument::F64 { bits: u64::from_le_bytes(repeated.try_into().ok()?) };
            let to = Argument::Buffer { buffer: *to, offset: offset.clone() };
            Some((Transfer::Fill { width }, bytes.clone(), vec![to, pattern, count(bytes)]))
        }
    }
}

/// Whether an offset is known to be a multiple of `width`. Buffers begin at multiples of 256.
fn is_multiple(offset: &Expr, width: i64) -> bool {
    offset.as_const().is_some_and(|offset| offset % width == 0)
}

/// Appends the kernel of a transfer under an unused name.
fn append(kernels: &mut Kernels, transfer: Transfer) -> Result<KernelId, CompileError> {
    let taken = |name: &str| kernels.module.function(name).is_some();
    let stem = transfer.stem();
    let name = (0..)
        .map(|n| if n == 0 { stem.clone() } else { format!("{stem}_{n}") })
        .find(|name| !taken(name))
        .unwrap_or(stem);
    let module = atoll_ptx::parse(&transfer.text(&name))?;
    kernels.module.items.extend(module.items.into_iter().filter(is_kernel));
    kernels.kernels.push(LaunchedKernel { name, block: [THREADS, 1, 1], dynamic_shared_bytes: 0 });
    Ok(KernelId(kernels.kernels.len() as u32 - 1))
}

fn is_kernel(item: &Item) -> bool {
    matches!(&item.kind, ItemKind::Function(function) if function.kind == FunctionKind::Entry)
}

impl Transfer {
    fn width(self) -> u32 {
        match self {
            Transfer::Copy { width } | Transfer::Fill { width } => width,
        }
    }

    fn block_bytes(self) -> u32 {
        THREADS * PER_THREAD * self.width()
    }

    fn stem(self) -> String {
        match self {
            Transfer::Copy { width } => format!("copy_by_{width}"),
            Transfer::Fill { width } => format!("fill_by_{width}"),
        }
    }

    /// The PTX of the kernel. Each thread moves every 256th element of its block. The first block
    /// also moves the bytes after the last whole element, one per thread.
    fn text(self, name: &str) -> String {
        let (width, block, step) = (self.width(), self.block_bytes(), self.width() * THREADS);
        let bits = width * 8;
        let parameters = match self {
            Transfer::Copy { .. } => ".param .u64 from, .param .u64 to, .param .u64 bytes",
            Transfer::Fill { .. } => ".param .u64 to, .param .f64 pattern, .param .u64 bytes",
        };
        let mut text = format!(
            ".version 7.0\n.target sm_75\n.address_size 64\n\n.visible .entry {name}({parameters})\n{{\n\
             \t.reg .pred %p<3>;\n\t.reg .b16 %h<2>;\n\t.reg .b32 %r<4>;\n\t.reg .b64 %d<16>;\n\n\
             \tmov.u32 %r0, %ctaid.x;\n\tmov.u32 %r1, %tid.x;\n\
              \tld.param.u64 %d2, [to];\n\tld.param.u64 %d3, [bytes];\n"
        );
        // Writing to a string cannot fail. %d4: bytes in whole elements; %d5: offset of the
        // thread's first byte; %d6, %d7: destination and source addresses of that byte; %d8: the
        // pattern.
        let _ = write!(
            text,
            "\tand.b64 %d4, %d3, -{width};\n\tmul.wide.u32 %d5, %r0, {block};\n\tmul.wide.u32 %d9, %r1, {width};\n\
             \tadd.u64 %d5, %d5, %d9;\n\tadd.u64 %d6, %d2, %d5;\n"
        );
        text += match self {
            Transfer::Copy { .. } => "\tld.param.u64 %d1, [from];\n\tadd.u64 %d7, %d1, %d5;\n",
            Transfer::Fill { .. } => "\tld.param.b64 %d8, [pattern];\n",
        };
        for element in 0..PER_THREAD {
            let at = element * step;
            let _ = write!(text, "\tadd.u64 %d10, %d5, {at};\n\tsetp.lt.u64 %p1, %d10, %d4;\n");
            let _ = match self {
                Transfer::Copy { width: 1 } => {
                    write!(text, "\t@%p1 ld.global.u8 %h1, [%d7+{at}];\n\t@%p1 st.global.u8 [%d6+{at}], %h1;\n")
                }
                Transfer::Copy { .. } => {
                    write!(
                        text,
                        "\t@%p1 ld.global.b{bits} %r2, [%d7+{at}];\n\t@%p1 st.global.b{bits} [%d6+{at}], %r2;\n"
                    )
                }
                Transfer::Fill { width: 1 } => {
                    writeln!(text, "{}\t@%p1 st.global.u8 [%d6+{at}], %h1;", pattern_byte("%d10"))
                }
                Transfer::Fill { .. } => writeln!(text, "\t@%p1 st.global.b{bits} [%d6+{at}], %d8;"),
            };
        }
        if width > 1 {
            // %d11: remaining bytes; %d12: index of the thread, which moves the byte of that index.
            text += "\tsub.u64 %d11, %d3, %d4;\n\tcvt.u64.u32 %d12, %r1;\n\
                     \tsetp.ge.u64 %p1, %d12, %d11;\n\t@%p1 ret;\n\
                     \tsetp.ne.u32 %p2, %r0, 0;\n\t@%p2 ret;\n\
                     \tadd.u64 %d13, %d4, %d12;\n\tadd.u64 %d14, %d2, %d13;\n";
            text += &match self {
                Transfer::Copy { .. } => "\tadd.u64 %d15, %d1, %d13;\n\tld.global.u8 %h1, [%d15];\n".into(),
                Transfer::Fill { .. } => pattern_byte("%d13"),
            };
            text += "\tst.global.u8 [%d14], %h1;\n";
        }
        text + "\tret;\n}\n"
    }
}

/// Loads the byte of the pattern in %d8 for an offset into %h1.
fn pattern_byte(offset: &str) -> String {
    format!(
        "\tcvt.u32.u64 %r2, {offset};\n\tand.b32 %r2, %r2, 7;\n\tshl.b32 %r2, %r2, 3;\n\
         \tshr.u64 %d15, %d8, %r2;\n\tcvt.u16.u64 %h1, %d15;\n"
    )
}
