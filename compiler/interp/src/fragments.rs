//! Loads and stores of matrix fragments.

use crate::block::BlockRun;
use crate::fault::FaultKind;
use crate::lanes::{Lanes, WARP};
use crate::memory::Memory;
use crate::op::Space;
use crate::warp_op::{WarpKind, WarpOp};

impl BlockRun<'_> {
    /// `ldmatrix`, `stmatrix`, `wmma.load` and `wmma.store`.
    pub(crate) fn move_fragments(
        &mut self,
        memory: &mut Memory,
        op: &WarpOp,
        lanes: &Lanes,
        members: &[usize],
    ) -> Result<Lanes, FaultKind> {
        let mut results: Lanes = std::array::from_fn(|lane| lanes[lane].as_ref().map(|_| vec![0; op.dst.len()]));
        let space = op.addr.map_or(Space::Generic, |a| a.space);
        for &member in members {
            let lane = member % WARP;
            let Some(values) = &lanes[lane] else { continue };
            match op.kind {
                WarpKind::LoadMatrices { transposed } => {
                    for matrix in 0..op.dst.len() {
                        for element in 0..2 {
                            let address = matrix_element(lanes, matrix, lane, element, transposed)?;
                            let data = self.bytes(memory, member, (space, address), (2, 2), false)?;
                            let bits = u64::from(u16::from_le_bytes([data[0], data[1]])) << (16 * element);
                            results[lane].iter_mut().for_each(|r| r[matrix] |= bits);
                        }
                    }
                }
                WarpKind::StoreMatrices { transposed } => {
                    for (matrix, register) in values[1..].iter().enumerate() {
                        for element in 0..2 {
                            let address = matrix_element(lanes, matrix, lane, element, transposed)?;
                            let data = ((register >> (16 * element)) as u16).to_le_bytes();
                            self.bytes(memory, member, (space, address), (2, 2), true)?.copy_from_slice(&data);
                        }
                    }
                }
                WarpKind::LoadFragment(fragment) => {
                    let (packed, bits) = (fragment.element.packed(), fragment.element.bits());
                    for index in 0..fragment.rows * fragment.columns / WARP {
                        let address = fragment.address(values[0], values.get(1).copied(), lane, index);
                        let data = self.bytes(memory, member, (space, address), (bits / 8, bits / 8), false)?;
                        let value = data.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte));
                        let registers =
                            results[lane].iter_mut().flatten().skip(index / packed).step_by(fragment.registers());
                        registers.for_each(|r| *r |= value << (bits as usize * (index % packed)));
                    }
                }
                WarpKind::StoreFragment(fragment) => {
                    let (packed, bits) = (fragment.element.packed(), fragment.element.bits());
                    let stride = values.get(1 + fragment.registers()).copied();
                    for index in 0..fragment.rows * fragment.columns / WARP {
                        let address = fragment.address(values[0], stride, lane, index);
                        let value = values[1 + index / packed] >> (bits as usize * (index % packed));
                        let bytes = (bits / 8) as usize;
                        let data = self.bytes(memory, member, (space, address), (bits / 8, bits / 8), true)?;
                        data.copy_from_slice(&value.to_le_bytes()[..bytes]);
                    }
                }
                _ => {}
            }
        }
        Ok(results)
    }
}

/// The address of one of a lane's two elements of an 8×8 matrix of halves. Lanes `8·matrix` and
/// following hold the addresses of its rows.
fn matrix_element(
    lanes: &Lanes,
    matrix: usize,
    lane: usize,
    element: usize,
    transposed: bool,
) -> Result<u64, FaultKind> {
    let (row, column) = (lane / 4, 2 * (lane % 4) + element);
    let (row, column) = if transposed { (column, row) } else { (row, column) };
    let begin = lanes.get(8 * matrix + row).and_then(Option::as_ref).map(|values| values[0]);
    let begin =
        begin.ok_or_else(|| FaultKind::Operand("the lane with the address of a row does not take part".into()))?;
    if !begin.is_multiple_of(16) {
        return Err(FaultKind::Misaligned { address: begin, bytes: 16 });
    }
    Ok(begin + 2 * column as u64)
}
