//! Loads, stores and atomics of vector registers, for all address spaces.

use crate::access::Transfer;
use crate::fault::FaultKind;
use crate::op::Machine;
use crate::operand::{Kind, Operand, Ty};
use crate::space::Place;
use crate::wave::Bits;

/// The places of all active lanes.
pub(crate) type Places = [Option<Place>; 64];

fn extend(value: u64, bytes: u32, signed: bool) -> u64 {
    let shift = 64 - 8 * bytes;
    if signed { ((value << shift) as i64 >> shift) as u64 } else { value }
}

/// Loads into the registers of an operand, from its `part`-th register on.
pub(crate) fn load(
    machine: &mut Machine,
    dst: &Operand,
    part: u32,
    transfer: Transfer,
    places: &Places,
) -> Result<(), FaultKind> {
    let mut small = [0u64; 64];
    for (lane, place) in places.iter().enumerate() {
        let Some(place) = place else { continue };
        machine.wave.lane = Some(lane as u32);
        if transfer.bytes < 4 {
            let value = machine.read_number(*place, transfer.bytes as usize)?;
            small[lane] = extend(value, transfer.bytes, transfer.signed);
            continue;
        }
        let mut bytes = [0; 16];
        machine.read(*place, &mut bytes[..transfer.bytes as usize])?;
        for (word, chunk) in bytes[..transfer.bytes as usize].chunks_exact(4).enumerate() {
            let value = u32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]);
            machine.wave.vector_mut(dst, part + word as u32)?[lane] = value;
        }
    }
    if transfer.bytes < 4 {
        let mask = active(places);
        return match transfer.half {
            Some(half) => machine.wave.write_half(dst, (half == 1, false), mask, &small),
            None if matches!(dst.kind, Kind::Half { .. }) => machine.wave.write_half(dst, (false, false), mask, &small),
            None => machine.wave.write(dst, Ty::B32, mask, &small),
        };
    }
    Ok(())
}

fn active(places: &Places) -> u64 {
    places.iter().enumerate().fold(0, |mask, (lane, place)| mask | u64::from(place.is_some()) << lane)
}

/// Stores the registers of an operand, from its `part`-th register on.
pub(crate) fn store(
    machine: &mut Machine,
    data: &Operand,
    part: u32,
    transfer: Transfer,
    places: &Places,
) -> Result<(), FaultKind> {
    let halves = matches!(data.kind, Kind::Half { .. });
    let small = if halves { machine.wave.source(data, Ty::B16, false)? } else { [0; 64] };
    for lane in Bits(active(places)) {
        let at = lane as usize;
        let Some(place) = places[at] else { continue };
        machine.wave.lane = Some(lane);
        let mut bytes = [0; 16];
        if halves {
            bytes[..8].copy_from_slice(&small[at].to_le_bytes());
        } else {
            for word in 0..transfer.bytes.div_ceil(4) {
                let value = machine.wave.vector(data, part + word)?[at];
                bytes[4 * word as usize..4 * word as usize + 4].copy_from_slice(&value.to_le_bytes());
            }
            if transfer.half == Some(1) {
                bytes.copy_within(2..4, 0);
            }
        }
        machine.write(place, &bytes[..transfer.bytes as usize])?;
    }
    Ok(())
}

/// One or two registers of an operand, as one number per lane.
pub(crate) fn data(machine: &Machine, operand: &Operand, part: u32, bytes: u32) -> Result<[u64; 64], FaultKind> {
    let low = machine.wave.vector(operand, part)?;
    let mut values = low.map(u64::from);
    if bytes == 8 {
        let high = machine.wave.vector(operand, part + 1)?;
        values.iter_mut().zip(high).for_each(|(v, &h)| *v |= u64::from(h) << 32);
    }
    Ok(values)
}

/// Reads, updates and writes one value per lane, in the order of the lanes.
pub(crate) fn atomic(
    machine: &mut Machine,
    bytes: u32,
    places: &Places,
    mut f: impl FnMut(usize, u64) -> u64,
) -> Result<[u64; 64], FaultKind> {
    let mut old = [0; 64];
    for (lane, place) in places.iter().enumerate() {
        let Some(place) = *place else { continue };
        machine.wave.lane = Some(lane as u32);
        let address = match place {
            Place::Global(address) | Place::Lds(address) => address,
            Place::Private { offset, .. } => offset,
            Place::Dropped => 0,
        };
        if address % u64::from(bytes) != 0 {
            return Err(FaultKind::Misaligned { address, alignment: bytes.into() });
        }
        old[lane] = machine.read_number(place, bytes as usize)?;
        let new = f(lane, old[lane]);
        machine.write(place, &new.to_le_bytes()[..bytes as usize])?;
    }
    Ok(old)
}
