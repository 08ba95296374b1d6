//! Address spaces: the place of each access, with checks.

use crate::fault::FaultKind;
use crate::op::Machine;
use crate::operand::FLAT_SCRATCH;
use crate::wave::{PRIVATE_APERTURE, SHARED_APERTURE, unsupported};

/// The place of one lane's access, checked.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    Global(u64),
    Lds(u64),
    /// An offset in the private segment of a lane.
    Private {
        lane: u32,
        offset: u64,
    },
    /// Outside the range of a buffer descriptor: reads return zero, writes have no effect.
    Dropped,
}

/// The place of a flat address.
pub(crate) fn flat(machine: &Machine, lane: u32, address: u64) -> Result<Place, FaultKind> {
    match (address >> 32) as u32 {
        SHARED_APERTURE => Ok(Place::Lds(address & 0xffff_ffff)),
        PRIVATE_APERTURE => private(machine, lane, address & 0xffff_ffff),
        _ => Ok(Place::Global(address)),
    }
}

/// A place in scratch. On hardware that does not set FLAT_SCRATCH, the kernel must have set it.
pub(crate) fn private(machine: &Machine, lane: u32, offset: u64) -> Result<Place, FaultKind> {
    let [low, high] = [0, 1].map(|part| u64::from(machine.wave.scalar[FLAT_SCRATCH as usize + part]));
    if !machine.target.architected_flat_scratch && low | high << 32 != machine.wave.scratch_base {
        return unsupported("scratch through FLAT_SCRATCH, which does not have the wave's scratch address");
    }
    Ok(Place::Private { lane, offset })
}

/// The index in a wave's scratch of a byte in a lane's private segment. Scratch has one dword of
/// each lane in turn.
fn swizzled(offset: u64, lane: u32, lanes: u32) -> usize {
    ((offset & !3) * u64::from(lanes) + u64::from(lane) * 4 + (offset & 3)) as usize
}

impl Machine<'_> {
    fn check_private(&self, access: &'static str, offset: u64, bytes: usize) -> Result<(), FaultKind> {
        let size = self.wave.private_bytes as usize;
        let end = offset.checked_add(bytes as u64).filter(|&e| e <= self.wave.private_bytes);
        end.map(|_| ()).ok_or(FaultKind::OutsideScratch { access, offset, bytes, size })
    }

    fn check_lds(&self, access: &'static str, offset: u64, bytes: usize) -> Result<usize, FaultKind> {
        let size = self.lds.len();
        let end = offset.checked_add(bytes as u64).filter(|&e| e <= size as u64);
        end.map(|_| offset as usize).ok_or(FaultKind::OutsideLds { access, offset, bytes, size })
    }

    /// Reads bytes at a place.
    pub(crate) fn read(&self, place: Place, out: &mut [u8]) -> Result<(), FaultKind> {
        match place {
            Place::Global(address) => self.memory.read(address, out),
            Place::Lds(offset) => {
                let start = self.check_lds("read", offset, out.len())?;
                out.copy_from_slice(&self.lds[start..start + out.len()]);
                Ok(())
            }
            Place::Private { lane, offset } => {
                self.check_private("read", offset, out.len())?;
                for (at, byte) in out.iter_mut().enumerate() {
                    *byte = self.wave.scratch[swizzled(offset + at as u64, lane, self.wave.size)];
                }
                Ok(())
            }
            Place::Dropped => {
                out.fill(0);
                Ok(())
            }
        }
    }

    /// Writes bytes at a place.
    pub(crate) fn write(&mut self, place: Place, bytes: &[u8]) -> Result<(), FaultKind> {
        match place {
            Place::Global(address) => self.memory.write(address, bytes),
            Place::Lds(offset) => {
                let start = self.check_lds("write", offset, bytes.len())?;
                self.lds[start..start + bytes.len()].copy_from_slice(bytes);
                Ok(())
            }
            Place::Private { lane, offset } => {
                self.check_private("write", offset, bytes.len())?;
                for (at, &byte) in bytes.iter().enumerate() {
                    self.wave.scratch[swizzled(offset + at as u64, lane, self.wave.size)] = byte;
                }
                Ok(())
            }
            Place::Dropped => Ok(()),
        }
    }

    /// Reads up to 8 bytes as a number.
    pub(crate) fn read_number(&self, place: Place, bytes: usize) -> Result<u64, FaultKind> {
        let mut out = [0; 8];
        self.read(place, &mut out[..bytes])?;
        Ok(u64::from_le_bytes(out))
    }
}
