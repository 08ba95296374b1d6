//! The state of one wave, and access to its registers.

use crate::fault::FaultKind;
use crate::mode::Mode;
use crate::operand::{EXEC, Kind, Operand, Ty, VCC};

/// One value per lane.
pub(crate) type Lanes = [u64; 64];

/// Upper halves of the addresses by which flat instructions reach LDS and scratch.
pub(crate) const SHARED_APERTURE: u32 = 0x0001_0000;
pub(crate) const PRIVATE_APERTURE: u32 = 0x0002_0000;

/// Whether a wave can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Ready,
    /// Waits at a barrier for the other waves of the workgroup.
    Barrier,
    Ended,
}

/// Registers and scratch of a wave.
pub(crate) struct Wave {
    pub(crate) workgroup: [u32; 3],
    pub(crate) index: u32,
    /// Number of lanes: 32 or 64.
    pub(crate) size: u32,
    pub(crate) state: State,
    pub(crate) pc: u64,
    pub(crate) scalar: [u32; 128],
    pub(crate) sgprs: usize,
    pub(crate) vgprs: Vec<[u32; 64]>,
    pub(crate) agprs: Vec<[u32; 64]>,
    pub(crate) scc: bool,
    pub(crate) mode: Mode,
    /// Private memory of all lanes: one dword of each lane in turn.
    pub(crate) scratch: Vec<u8>,
    /// Address of the scratch.
    pub(crate) scratch_base: u64,
    /// Private bytes per lane.
    pub(crate) private_bytes: u64,
    /// The lane of the present access, for faults.
    pub(crate) lane: Option<u32>,
}

fn join(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// The error that an operand is not supported.
pub(crate) fn unsupported<T>(what: impl Into<String>) -> Result<T, FaultKind> {
    Err(FaultKind::Unsupported(what.into()))
}

/// The bits of an inline constant or a literal as a value of type `ty`.
pub(crate) fn constant(kind: &Kind, ty: Ty) -> Result<u64, FaultKind> {
    Ok(match (kind, ty) {
        (Kind::Int(value), Ty::B64 | Ty::I64 | Ty::F64) => *value as u64,
        (Kind::Int(value), Ty::B16 | Ty::F16) => *value as u64 & 0xffff,
        (Kind::Int(value), _) => *value as u64 & 0xffff_ffff,
        (Kind::Float(value), Ty::F64 | Ty::B64 | Ty::I64) => value.to_bits(),
        (Kind::Float(value), Ty::F32 | Ty::B32) => (*value as f32).to_bits().into(),
        (Kind::Float(value), Ty::F16 | Ty::PF16) => {
            Mode(0xf0).convert(crate::soft::F64, crate::soft::F16, value.to_bits())
        }
        (Kind::Literal(value), Ty::F64) if *value <= u64::from(u32::MAX) => value << 32,
        (Kind::Literal(value), Ty::I64) if *value <= u64::from(u32::MAX) => *value as u32 as i32 as i64 as u64,
        (Kind::Literal(value), Ty::B64 | Ty::I64 | Ty::F64) => *value,
        (Kind::Literal(value), Ty::B16 | Ty::F16) => value & 0xffff,
        (Kind::Literal(value), _) => value & 0xffff_ffff,
        _ => return unsupported(format!("constant {kind:?} as {ty:?}")),
    })
}

impl Wave {
    /// The mask of lanes that exist and are active.
    pub(crate) fn exec(&self) -> u64 {
        self.mask(EXEC)
    }

    /// The lane mask in scalar registers from `first` on.
    pub(crate) fn mask(&self, first: u8) -> u64 {
        let low = self.scalar[first as usize];
        if self.size == 32 { low.into() } else { join(low, self.scalar[first as usize + 1]) }
    }

    /// Sets EXEC.
    pub(crate) fn set_exec(&mut self, mask: u64) {
        self.scalar[EXEC as usize] = mask as u32;
        self.scalar[EXEC as usize + 1] = if self.size == 32 { 0 } else { (mask >> 32) as u32 };
    }

    /// VCC as a lane mask.
    pub(crate) fn vcc(&self) -> u64 {
        self.mask(VCC)
    }

    /// The mask of all lanes of the wave.
    pub(crate) fn all(&self) -> u64 {
        if self.size == 32 { 0xffff_ffff } else { u64::MAX }
    }

    /// The type of a lane mask.
    pub(crate) fn mask_type(&self) -> Ty {
        if self.size == 32 { Ty::B32 } else { Ty::B64 }
    }

    fn not_allocated(&self, letter: char, register: usize, allocated: usize) -> FaultKind {
        FaultKind::RegisterNotAllocated { register: format!("{letter}{register}"), allocated }
    }

    /// The values of a VGPR in all lanes.
    pub(crate) fn vgpr(&self, register: usize) -> Result<&[u32; 64], FaultKind> {
        let fault = || self.not_allocated('v', register, self.vgprs.len());
        self.vgprs.get(register).ok_or_else(fault)
    }

    /// The vector register `part` registers after the first one of an operand.
    pub(crate) fn vector(&self, operand: &Operand, part: u32) -> Result<&[u32; 64], FaultKind> {
        match operand.kind {
            Kind::Vector { first, .. } => self.vgpr(first as usize + part as usize),
            Kind::Accumulator { first, .. } => {
                let register = first as usize + part as usize;
                let fault = || self.not_allocated('a', register, self.agprs.len());
                self.agprs.get(register).ok_or_else(fault)
            }
            _ => unsupported(format!("{:?} in place of a vector register", operand.kind)),
        }
    }

    /// The same register, for writing.
    pub(crate) fn vector_mut(&mut self, operand: &Operand, part: u32) -> Result<&mut [u32; 64], FaultKind> {
        self.vector(operand, part)?;
        match operand.kind {
            Kind::Accumulator { first, .. } => Ok(&mut self.agprs[first as usize + part as usize]),
            Kind::Vector { first, .. } => Ok(&mut self.vgprs[first as usize + part as usize]),
            _ => unsupported("not a vector register"),
        }
    }

    /// The value of a 32-bit scalar register.
    pub(crate) fn scalar_word(&self, register: u8) -> Result<u32, FaultKind> {
        if (register as usize) < crate::operand::FLAT_SCRATCH as usize && register as usize >= self.sgprs {
            return Err(self.not_allocated('s', register.into(), self.sgprs));
        }
        Ok(self.scalar[register as usize])
    }

    fn set_scalar_word(&mut self, register: u8, value: u32) -> Result<(), FaultKind> {
        self.scalar_word(register)?;
        let exec_high = self.size == 32 && register == EXEC + 1;
        self.scalar[register as usize] = if exec_high { 0 } else { value };
        Ok(())
    }

    /// A value that is the same for all lanes, without source modifiers.
    pub(crate) fn uniform(&self, operand: &Operand, ty: Ty) -> Result<u64, FaultKind> {
        let wide = ty.bits() == 64;
        Ok(match operand.kind {
            Kind::Scalar { first, .. } if wide => {
                join(self.scalar_word(first)?, self.scalar_word(first.saturating_add(1).min(127))?)
            }
            Kind::Scalar { first, .. } => self.scalar_word(first)?.into(),
            Kind::Null => 0,
            Kind::Scc => self.scc.into(),
            Kind::Vccz => (self.vcc() == 0).into(),
            Kind::Execz => (self.exec() == 0).into(),
            Kind::SharedBase if wide => u64::from(SHARED_APERTURE) << 32,
            Kind::PrivateBase if wide => u64::from(PRIVATE_APERTURE) << 32,
            Kind::SharedBase | Kind::PrivateBase => return unsupported("a 32-bit read of an aperture's base"),
            _ => constant(&operand.kind, ty)?,
        })
    }

    /// Writes scalar registers.
    pub(crate) fn set_uniform(&mut self, operand: &Operand, value: u64, ty: Ty) -> Result<(), FaultKind> {
        match operand.kind {
            Kind::Scalar { first, .. } => {
                self.set_scalar_word(first, value as u32)?;
                if ty.bits() == 64 { self.set_scalar_word(first + 1, (value >> 32) as u32) } else { Ok(()) }
            }
            Kind::Null => Ok(()),
            _ => unsupported(format!("{:?} as a scalar destination", operand.kind)),
        }
    }

    /// A source in all lanes, with its modifiers. `high` selects the upper half of a 16-bit source.
    pub(crate) fn source(&self, operand: &Operand, ty: Ty, high: bool) -> Result<Lanes, FaultKind> {
        let mut lanes = [0u64; 64];
        let shift = if high && ty.bits() == 16 { 16 } else { 0 };
        let mask = if ty.bits() == 16 { 0xffff } else { u64::MAX };
        match operand.kind {
            Kind::Vector { .. } | Kind::Accumulator { .. } => {
                let low = self.vector(operand, 0)?;
                if ty.bits() == 64 {
                    let high = self.vector(operand, 1)?;
                    lanes.iter_mut().zip(low.iter().zip(high)).for_each(|(l, (&a, &b))| *l = join(a, b));
                } else {
                    lanes.iter_mut().zip(low).for_each(|(l, &a)| *l = u64::from(a) >> shift & mask);
                }
            }
            Kind::Half { register, high } => {
                let shift = if high { 16 } else { 0 };
                let register = self.vgpr(register as usize)?;
                lanes.iter_mut().zip(register).for_each(|(l, &a)| *l = u64::from(a >> shift & 0xffff));
            }
            Kind::Scalar { .. } => lanes = [self.uniform(operand, ty)? >> shift & mask; 64],
            _ => lanes = [self.uniform(operand, ty)?; 64],
        }
        if operand.abs || operand.neg {
            let sign = 1u64 << (ty.bits() - 1);
            let (keep, flip) = (if operand.abs { !sign } else { u64::MAX }, if operand.neg { sign } else { 0 });
            lanes.iter_mut().for_each(|l| *l = *l & keep ^ flip);
        }
        Ok(lanes)
    }

    /// Writes a 32- or 64-bit result in the lanes of `mask`.
    pub(crate) fn write(&mut self, operand: &Operand, ty: Ty, mask: u64, lanes: &Lanes) -> Result<(), FaultKind> {
        let parts = if ty.bits() == 64 { 2 } else { 1 };
        for part in 0..parts {
            let register = self.vector_mut(operand, part)?;
            for lane in Bits(mask) {
                register[lane as usize] = (lanes[lane as usize] >> (32 * part)) as u32;
            }
        }
        Ok(())
    }

    /// Writes a 16-bit result into one half of a register. The other half is kept or set to zero.
    pub(crate) fn write_half(
        &mut self,
        operand: &Operand,
        (high, zero): (bool, bool),
        mask: u64,
        lanes: &Lanes,
    ) -> Result<(), FaultKind> {
        let (operand, high, zero) = match operand.kind {
            Kind::Half { register, high } => (&Operand::plain(Kind::Vector { first: register, count: 1 }), high, false),
            _ => (operand, high, zero),
        };
        let register = self.vector_mut(operand, 0)?;
        for lane in Bits(mask) {
            let (old, new) = (register[lane as usize], lanes[lane as usize] as u32 & 0xffff);
            register[lane as usize] = match (high, zero) {
                (true, _) => old & 0xffff | new << 16,
                (false, false) => old & 0xffff_0000 | new,
                (false, true) => new,
            };
        }
        Ok(())
    }
}

/// Iterates over the numbers of the set bits, lowest first.
pub(crate) struct Bits(pub(crate) u64);

impl Iterator for Bits {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let lane = self.0.trailing_zeros();
        self.0 &= self.0.wrapping_sub(1);
        (lane < 64).then_some(lane)
    }
}
