//! Variables of kernels, named by the address of the host variable of the same name.

use super::copy::{Kind, Returns, copy};
use super::entry_points;
use crate::arguments::Out;
use crate::code::variable;
use crate::error::Code;
use atoll_cuda_api::types::*;

entry_points! {
    fn cudaGetSymbolAddress(at: Out<CUdeviceptr>, symbol: u64) {
        at.is_wanted()?;
        at.set(variable(symbol)?.1.at)
    }

    fn cudaGetSymbolSize(bytes: Out<usize>, symbol: u64) {
        bytes.is_wanted()?;
        bytes.set(variable(symbol)?.1.bytes as usize)
    }

    fn cudaMemcpyToSymbol(
        symbol: u64, from: u64, bytes: usize, offset: usize, kind: Kind
    ) also cudaMemcpyToSymbol_ptds {
        let to = part(symbol, bytes, offset)?;
        copy(to, from, bytes, kind.on_device()?, CUstream::NULL, Returns::WhenDone)
    }

    fn cudaMemcpyFromSymbol(
        to: u64, symbol: u64, bytes: usize, offset: usize, kind: Kind
    ) also cudaMemcpyFromSymbol_ptds {
        let from = part(symbol, bytes, offset)?;
        copy(to, from, bytes, kind.of_device()?, CUstream::NULL, Returns::WhenDone)
    }

    fn cudaMemcpyToSymbolAsync(
        symbol: u64, from: u64, bytes: usize, offset: usize, kind: Kind, stream: CUstream
    ) also cudaMemcpyToSymbolAsync_ptsz {
        let to = part(symbol, bytes, offset)?;
        copy(to, from, bytes, kind.on_device()?, stream, Returns::AtOnce)
    }

    fn cudaMemcpyFromSymbolAsync(
        to: u64, symbol: u64, bytes: usize, offset: usize, kind: Kind, stream: CUstream
    ) also cudaMemcpyFromSymbolAsync_ptsz {
        let from = part(symbol, bytes, offset)?;
        copy(to, from, bytes, kind.of_device()?, stream, Returns::AtOnce)
    }
}

/// The address of a part of a variable. An error if the part is not inside the variable.
pub(super) fn part(symbol: u64, bytes: usize, offset: usize) -> Result<u64, Code> {
    let (_, variable) = variable(symbol)?;
    let end = (bytes as u64).checked_add(offset as u64).ok_or(Code::INVALID_VALUE)?;
    if end > variable.bytes {
        return Err(Code::INVALID_VALUE);
    }
    Ok(variable.at + offset as u64)
}
