//! The parameter block of a launch: each parameter at its natural alignment.

use crate::error::BenchError;
use crate::launch::{Arg, Buffer};
use atoll_ptx::{Function, Variable};

/// Number of the kernel's own parameters, without those that passes appended at byte `appended_at`.
pub fn parameter_count(kernel: &Function, appended_at: Option<u32>) -> usize {
    let offsets = Offsets::of(kernel);
    match appended_at {
        Some(at) => offsets.0.iter().take_while(|offset| **offset < u64::from(at)).count(),
        None => offsets.0.len(),
    }
}

/// Size of a kernel's parameter block in bytes.
#[cfg(feature = "cuda")]
pub(crate) fn parameter_bytes(kernel: &Function) -> u64 {
    let last = kernel.params.last().and_then(|param| param.bytes()).unwrap_or(0);
    Offsets::of(kernel).0.last().map_or(0, |at| at + last)
}

/// Byte offsets of a kernel's parameters.
struct Offsets(Vec<u64>);

impl Offsets {
    fn of(kernel: &Function) -> Offsets {
        let mut end = 0u64;
        let place = |param: &Variable| {
            let at = end.next_multiple_of(u64::from(param.alignment().max(1)));
            end = at.saturating_add(param.bytes().unwrap_or(0));
            at
        };
        Offsets(kernel.params.iter().map(place).collect())
    }
}

/// Arguments laid out as the kernel reads them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterBlock {
    /// The bytes; addresses are zero.
    pub bytes: Vec<u8>,
    /// Addresses to fill in: byte offset in the block, index of the buffer, offset in the buffer.
    pub addresses: Vec<(usize, usize, u64)>,
}

impl ParameterBlock {
    /// Lays out the arguments of the first `own` parameters, after checking their number and sizes.
    pub fn new(kernel: &Function, own: usize, args: &[Arg], buffers: &[Buffer]) -> Result<ParameterBlock, BenchError> {
        let params = &kernel.params[..own];
        if args.len() != own {
            let signature: Vec<String> = params.iter().map(describe).collect();
            return Err(BenchError::ArgumentCount {
                entry: kernel.name.to_string(),
                wanted: own,
                given: args.len(),
                signature: signature.join(", "),
            });
        }
        let mut block = ParameterBlock { bytes: Vec::new(), addresses: Vec::new() };
        for (index, ((param, at), arg)) in params.iter().zip(Offsets::of(kernel).0).zip(args).enumerate() {
            block.bytes.resize(at as usize, 0);
            block.push(index, param, arg, buffers)?;
        }
        Ok(block)
    }

    fn push(&mut self, index: usize, param: &Variable, arg: &Arg, buffers: &[Buffer]) -> Result<(), BenchError> {
        let wanted = param.bytes().unwrap_or(0);
        let given = match arg {
            Arg::Value(bytes) | Arg::Struct { bytes, .. } => bytes.len() as u64,
            Arg::Buffer { .. } => 8,
        };
        if given != wanted {
            return Err(BenchError::ArgumentSize { index, parameter: describe(param), wanted, given });
        }
        match arg {
            Arg::Value(bytes) => self.bytes.extend_from_slice(bytes),
            &Arg::Buffer { index: buffer, offset } => {
                self.point(index, self.bytes.len(), buffer, offset, buffers)?;
                self.bytes.extend([0; 8]);
            }
            Arg::Struct { bytes, addresses } => {
                for &(at, buffer, offset) in addresses {
                    self.point(index, self.bytes.len() + at, buffer, offset, buffers)?;
                }
                self.bytes.extend_from_slice(bytes);
            }
        }
        Ok(())
    }

    /// Records an address in the block. The end of a buffer is a valid address, too.
    fn point(
        &mut self,
        index: usize,
        at: usize,
        buffer: usize,
        offset: u64,
        buffers: &[Buffer],
    ) -> Result<(), BenchError> {
        if buffers.get(buffer).is_none_or(|b| offset > b.bytes.len() as u64) {
            return Err(BenchError::NoSuchBuffer { index, buffer, offset });
        }
        self.addresses.push((at, buffer, offset));
        Ok(())
    }
}

/// Formats a declaration, as in `.u64 a`, `.b8 tile[24]`.
fn describe(param: &Variable) -> String {
    let dimensions: String = param.dimensions.iter().map(|d| d.map_or("[]".into(), |n| format!("[{n}]"))).collect();
    format!(".{} {}{dimensions}", param.ty, param.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = ".version 7.0\n.target sm_80\n.address_size 64\n\
        .visible .entry k(.param .u64 a, .param .u8 flag, .param .align 8 .b8 pair[16], .param .f32 x) { ret; }\n";

    fn lay_out(args: &[Arg], buffers: &[Buffer]) -> Result<ParameterBlock, BenchError> {
        let module = atoll_ptx::parse(TEXT).unwrap();
        let kernel = module.function("k").unwrap();
        ParameterBlock::new(kernel, parameter_count(kernel, None), args, buffers)
    }

    #[test]
    fn arguments_lie_where_the_kernel_reads_them() {
        let buffer = Buffer { name: "a".into(), bytes: vec![0; 4], writable: true };
        let args = [
            Arg::buffer(0),
            Arg::Value(vec![7]),
            Arg::Value((0..16).collect()),
            Arg::Value(1f32.to_le_bytes().to_vec()),
        ];
        let block = lay_out(&args, &[buffer]).unwrap();
        assert_eq!((block.bytes.len(), block.addresses.as_slice()), (36, &[(0, 0, 0)][..]));
        assert_eq!(
            (block.bytes[8], block.bytes[16], block.bytes[31], &block.bytes[32..]),
            (7, 0, 15, &1f32.to_le_bytes()[..])
        );
    }

    #[test]
    fn arguments_that_do_not_fit_are_named() {
        let message = |args: &[Arg]| lay_out(args, &[]).unwrap_err().to_string();
        let value = |n: usize| Arg::Value(vec![0; n]);
        assert!(
            message(&[value(8)])
                .contains("takes 4 arguments (.u64 a, .u8 flag, .b8 pair[16], .f32 x), but 1 are given")
        );
        assert!(
            message(&[value(8), value(4), value(16), value(4)])
                .contains("argument 1 has 4 bytes, but parameter `.u8 flag` takes 1")
        );
        assert!(message(&[Arg::buffer(3), value(1), value(16), value(4)]).contains("byte 0 of buffer 3"));
    }

    #[test]
    fn parameters_behind_the_appended_ones_do_not_count() {
        let module = atoll_ptx::parse(TEXT).unwrap();
        assert_eq!(parameter_count(module.function("k").unwrap(), Some(16)), 2);
    }
}
