//! Reading operands and writing registers.

use super::*;
use atoll_emit::writer::bits_of;
use atoll_lower::program::{Special, Symbol};
use atoll_lower::shape::TidRun;

impl Emitter<'_> {
    /// Lane numbers 0..32 as integers of an element type.
    pub(super) fn iota(&mut self, elem: Elem) -> Val {
        self.progression(elem, 1)
    }

    /// The constant `lane · stride`.
    pub(super) fn progression(&mut self, elem: Elem, stride: i64) -> Val {
        let ty = Ty { elem, lanes: LANES };
        let lanes: Vec<String> = (0..i64::from(LANES))
            .map(|lane| constant(Ty::scalar(elem), i128::from(lane) * i128::from(stride)).to_string())
            .collect();
        Val { ty, text: format!("<{}>", lanes.join(", ")).into() }
    }

    /// `base + lane · stride` from lane 0's value.
    pub(super) fn spread(&mut self, base: &Val, stride: i64) -> Val {
        let splat = self.w.splat(base, LANES);
        if stride == 0 {
            return splat;
        }
        let steps = self.progression(base.ty.elem, stride);
        self.w.bin("add", &splat, &steps)
    }

    /// A register as one scalar (lane 0, for a progression) or as 32 lanes.
    pub(super) fn read(&mut self, reg: Reg, lanes: u32) -> Val {
        let (shape, elem) = (self.analysis.shapes[reg], self.program.regs[reg].elem);
        let slot = self.slots[reg].clone();
        match shape.stride {
            Some(stride) => {
                let base = self.w.load(Ty::scalar(elem), &slot);
                if lanes == 1 { base } else { self.spread(&base, stride) }
            }
            None => {
                let value = self.w.load(Ty { elem, lanes: LANES }, &slot);
                if lanes == 1 { self.w.extract(&value, &constant(I32, 0)) } else { value }
            }
        }
    }

    /// An operand read as an element type.
    pub(super) fn read_operand(&mut self, operand: &Opnd, elem: Elem, lanes: u32) -> Val {
        let value = match operand {
            Opnd::Reg(reg) => self.read(*reg, lanes),
            Opnd::Not(reg) => {
                let value = self.read(*reg, lanes);
                self.w.bin_const("xor", &value, 1)
            }
            Opnd::Imm(immediate) => return constant(Ty { elem, lanes }, bits_of(*immediate, elem)),
            Opnd::Special(special) => self.special(*special, lanes),
            Opnd::Symbol(symbol) => self.symbol(symbol, lanes),
            Opnd::Addr(base, _) => return self.get(base, elem, lanes),
            Opnd::Part(whole, _) | Opnd::Negated(whole) => return self.get(whole, elem, lanes),
            Opnd::Vec(_) | Opnd::Pair(..) | Opnd::Sink => return constant(Ty { elem, lanes }, 0),
        };
        self.w.reinterpret(&value, elem, false)
    }

    /// Writes a register under the current mask; `signed` tells how a narrower value is extended.
    pub(super) fn set(&mut self, reg: Reg, value: &Val, signed: bool) {
        let (shape, elem) = (self.analysis.shapes[reg], self.program.regs[reg].elem);
        let lanes = if shape.is_scalar() { 1 } else { LANES };
        let mut value = self.w.reinterpret(value, elem, signed);
        if value.ty.lanes == 1 {
            value = self.w.splat(&value, lanes);
        }
        let slot = self.slots[reg].clone();
        debug_assert_eq!(value.ty.lanes, lanes, "{} of {}", self.program.regs[reg].name, self.program.name);
        if let Some(guard) = self.scalar_guard.clone() {
            let old = self.w.load(value.ty, &slot);
            value = self.w.select(&guard, &value, &old);
        }
        let blends = lanes == LANES && (self.keep_old || self.analysis.blend[reg]);
        if blends && let Some(mask) = self.mask.clone() {
            let old = self.w.load(value.ty, &slot);
            value = self.w.select(&mask, &value, &old);
        }
        self.w.store(&value, &slot);
    }

    /// The distance between an operand's lanes.
    pub(super) fn stride(&self, operand: &Opnd) -> Option<i64> {
        match operand {
            Opnd::Reg(reg) | Opnd::Not(reg) => self.analysis.shapes[*reg].stride,
            Opnd::Part(whole, _) | Opnd::Negated(whole) => self.is_uniform(whole).then_some(0),
            Opnd::Special(s) => atoll_lower::shape::special(*s, self.analysis.block).stride,
            Opnd::Addr(base, _) => self.stride(base),
            Opnd::Vec(parts) => parts.iter().all(|p| self.is_uniform(p)).then_some(0),
            Opnd::Pair(a, b) => (self.is_uniform(a) && self.is_uniform(b)).then_some(0),
            Opnd::Imm(_) | Opnd::Symbol(_) | Opnd::Sink => Some(0),
        }
    }

    /// The number of lanes to compute: 1 if the result is a scalar or all sources are uniform.
    pub(super) fn lanes_to_compute(&self, inst: &Inst) -> u32 {
        let scalar_result = inst.defs().iter().all(|&d| self.analysis.shapes[d].is_scalar());
        let uniform_sources = inst.sources().iter().all(|o| self.is_uniform(o));
        if scalar_result || uniform_sources { 1 } else { LANES }
    }

    /// An integer operand extended from `ty`. If lane 0 of a progression may leave the range of
    /// `ty`, it is extended so that the lanes after a wrap-around are correct. The addresses of the
    /// lanes before the wrap-around would be some 2³² elements away (see
    /// [`atoll_lower::shape::Shape::assumed`]).
    pub(super) fn extended_operand(&mut self, operand: &Opnd, ty: ScalarType, to: Elem, lanes: u32) -> Val {
        let signed = atoll_lower::program::is_signed(ty);
        let value = self.get(operand, Elem::int(ty.bits()), lanes);
        let stride = self.stride(operand).unwrap_or(0);
        let shape = match operand {
            Opnd::Reg(reg) => Some(self.analysis.shapes[*reg]),
            _ => None,
        };
        let may_wrap = lanes == 1 && stride != 0 && !signed && shape.is_some_and(|s| !s.is_exact_in(ty.bits(), false));
        if !may_wrap {
            return self.w.resize(&value, to, signed);
        }
        let last = self.w.bin_const("add", &value, i128::from(stride) * i128::from(LANES - 1));
        let wraps = self.w.compare(if stride > 0 { "icmp ult" } else { "icmp ugt" }, &last, &value);
        let (below, above) = (self.w.resize(&value, to, true), self.w.resize(&value, to, false));
        self.w.select(&wraps, &below, &above)
    }

    /// A special register.
    fn special(&mut self, special: Special, lanes: u32) -> Val {
        let block = self.analysis.block;
        let scalar = match special {
            Special::Tid(axis) => return self.tid(axis, lanes),
            Special::LaneId if lanes == 1 => constant(I32, 0),
            Special::LaneId => return self.iota(Elem::I32),
            Special::Ntid(axis) => constant(I32, block.dims[axis].into()),
            Special::Ctaid(axis) => {
                let slot = self.ctaid[axis].clone();
                self.w.load(I32, &slot)
            }
            Special::Nctaid(axis) => self.fixed.grid[axis].clone(),
            Special::WarpId => {
                let slot = self.warp.clone();
                self.w.load(I32, &slot)
            }
            Special::NWarpId => constant(I32, block.warps().into()),
            Special::SmId => self.context_u32(offsets::COMPUTE_UNIT),
            Special::NSmId => constant(I32, 1),
            Special::GridId => constant(I32, 0),
            Special::TotalShared => self.context_u32(offsets::SHARED_BYTES),
            Special::DynamicShared => {
                let total = self.context_u32(offsets::SHARED_BYTES);
                self.w.bin_const("sub", &total, i128::from(self.dynamic_shared_offset()))
            }
            Special::Clock | Special::GlobalTimer => {
                self.w.value(I64, format_args!("call i64 @llvm.readcyclecounter()"))
            }
            Special::LaneMaskEq => return self.lane_masks(|lane| 1 << lane),
            Special::LaneMaskLe => return self.lane_masks(|lane| u32::MAX >> (31 - lane)),
            Special::LaneMaskLt => return self.lane_masks(|lane| (1u32 << lane) - 1),
            Special::LaneMaskGe => return self.lane_masks(|lane| u32::MAX << lane),
            Special::LaneMaskGt => return self.lane_masks(|lane| !(u32::MAX >> (31 - lane))),
        };
        self.w.splat(&scalar, lanes)
    }

    fn lane_masks(&mut self, of: impl Fn(u32) -> u32) -> Val {
        let lanes: Vec<String> = (0..LANES).map(|lane| format!("i32 {}", of(lane) as i32)).collect();
        Val { ty: Ty { elem: Elem::I32, lanes: LANES }, text: format!("<{}>", lanes.join(", ")).into() }
    }

    pub(super) fn context_u32(&mut self, offset: usize) -> Val {
        let context = self.context();
        let at = self.w.offset_const(&context, offset as u64);
        self.w.value(I32, format_args!("load i32, {at}, !invariant.load !0"))
    }

    /// `%tid`: lane 0's value, or all lanes.
    fn tid(&mut self, axis: usize, lanes: u32) -> Val {
        let block = self.analysis.block;
        let [x, y, z] = block.dims;
        let run = block.tid(axis);
        if run == TidRun::Zero {
            return constant(Ty { elem: Elem::I32, lanes }, 0);
        }
        let warp_slot = self.warp.clone();
        let warp = if block.warps() == 1 { constant(I32, 0) } else { self.w.load(I32, &warp_slot) };
        let warps_per_row = i128::from(x / LANES);
        let base = match run {
            TidRun::Linear => self.w.bin_const("mul", &warp, LANES.into()),
            TidRun::Row => {
                let column = self.w.bin_const("urem", &warp, warps_per_row);
                self.w.bin_const("mul", &column, LANES.into())
            }
            TidRun::PerWarp => {
                let row = self.w.bin_const("udiv", &warp, warps_per_row);
                match axis {
                    1 if z == 1 => row,
                    1 => self.w.bin_const("urem", &row, y.into()),
                    _ => self.w.bin_const("udiv", &row, y.into()),
                }
            }
            TidRun::Zero | TidRun::Irregular => {
                let first = self.w.bin_const("mul", &warp, LANES.into());
                let linear = self.spread(&first, 1);
                let value = match axis {
                    0 => self.w.bin_const("urem", &linear, x.into()),
                    1 => {
                        let row = self.w.bin_const("udiv", &linear, x.into());
                        self.w.bin_const("urem", &row, y.into())
                    }
                    _ => self.w.bin_const("udiv", &linear, i128::from(x) * i128::from(y)),
                };
                return if lanes == 1 { self.w.extract(&value, &constant(I32, 0)) } else { value };
            }
        };
        let stride = i64::from(run != TidRun::PerWarp);
        if lanes == 1 { base } else { self.spread(&base, stride) }
    }

    /// Offset of dynamic shared memory.
    pub(super) fn dynamic_shared_offset(&self) -> u32 {
        self.program.shared_bytes.next_multiple_of(16)
    }

    /// The address of a variable in its state space.
    fn symbol(&mut self, symbol: &Symbol, lanes: u32) -> Val {
        let offset = match symbol {
            Symbol::Param(at) | Symbol::Shared(at) | Symbol::Local(at) => *at,
            Symbol::Dynamic(at) => self.dynamic_shared_offset() + at,
            Symbol::Global(name, at) => {
                self.globals.insert(name.clone());
                let address = self.w.value(I64, format_args!("ptrtoint ptr @{} to i64", global_symbol(name)));
                let address = self.w.bin_const("add", &address, (*at).into());
                return self.w.splat(&address, lanes);
            }
        };
        constant(Ty { elem: Elem::I64, lanes }, offset.into())
    }
}

/// The LLVM symbol of a module variable.
pub(crate) fn global_symbol(name: &str) -> String {
    quoted(&format!("atoll_var_{name}"))
}
