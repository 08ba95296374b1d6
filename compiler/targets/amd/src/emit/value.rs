//! Reads operands and writes registers.

use super::*;
use atoll_emit::writer::bits_of;
use atoll_lower::program::{Special, Symbol};

const AXES: [&str; 3] = ["x", "y", "z"];

impl Emitter<'_> {
    /// The value of a register.
    pub(super) fn read(&mut self, reg: Reg) -> Val {
        let slot = self.slots[reg].clone();
        self.w.load(Ty::scalar(self.program.regs[reg].elem), &slot)
    }

    /// The value of an operand as an element type.
    pub(super) fn operand(&mut self, operand: &Opnd, elem: Elem) -> Val {
        let value = match operand {
            Opnd::Reg(reg) => self.read(*reg),
            Opnd::Not(reg) => {
                let value = self.read(*reg);
                self.w.bin_const("xor", &value, 1)
            }
            Opnd::Imm(immediate) => return constant(Ty::scalar(elem), bits_of(*immediate, elem)),
            Opnd::Special(special) => self.special(*special),
            Opnd::Symbol(symbol) => self.symbol(symbol),
            Opnd::Addr(base, _) => return self.operand(base, elem),
            Opnd::Part(whole, _) | Opnd::Negated(whole) => return self.operand(whole, elem),
            Opnd::Vec(_) | Opnd::Pair(..) | Opnd::Sink => return constant(Ty::scalar(elem), 0),
        };
        self.w.reinterpret(&value, elem, false)
    }

    /// Writes a register. `signed` says how a narrower value is extended.
    pub(super) fn set(&mut self, reg: Reg, value: &Val, signed: bool) {
        let mut value = self.w.reinterpret(value, self.program.regs[reg].elem, signed);
        let slot = self.slots[reg].clone();
        if let Some(guard) = self.kept_unless.clone() {
            let old = self.w.load(value.ty, &slot);
            value = self.w.select(&guard, &value, &old);
        }
        self.w.store(&value, &slot);
    }

    /// Writes a destination operand: a 32- or 64-bit result and, if it is a pair, a predicate.
    pub(super) fn set_pair(&mut self, operand: &Opnd, value: &Val, holds: &Val) {
        match operand {
            Opnd::Pair(to, pred) => {
                self.set_operand(to, value, false);
                self.set_operand(pred, holds, false);
            }
            single => self.set_operand(single, value, false),
        }
    }

    fn special(&mut self, special: Special) -> Val {
        let block = self.analysis.block;
        match special {
            Special::Tid(axis) => self.tid(axis),
            Special::Ntid(axis) => constant(I32, block.dims[axis].into()),
            Special::Ctaid(axis) => {
                self.w.value(I32, format_args!("call i32 @llvm.amdgcn.workgroup.id.{}()", AXES[axis]))
            }
            Special::Nctaid(axis) => self.hidden(I32, abi::GRID + 4 * axis as u32),
            Special::LaneId => self.lane(),
            Special::WarpId => {
                let thread = self.linear_thread();
                self.w.bin_const("lshr", &thread, 5)
            }
            Special::NWarpId => constant(I32, block.warps().into()),
            // PTX guarantees only that these are below the number of processors.
            Special::SmId | Special::GridId => constant(I32, 0),
            Special::NSmId => constant(I32, 1),
            Special::LaneMaskEq => self.lane_mask(1, 0),
            Special::LaneMaskGe => self.lane_mask(-1, 0),
            Special::LaneMaskLt => self.lane_mask(-1, -1),
            Special::LaneMaskLe => {
                let below = self.lane_mask(-2, 0);
                self.w.bin_const("xor", &below, -1)
            }
            Special::LaneMaskGt => self.lane_mask(-2, 0),
            Special::Clock => self.clock(),
            Special::GlobalTimer => self.global_timer(),
            Special::DynamicShared => self.hidden(I32, abi::DYNAMIC_SHARED),
            Special::TotalShared => {
                let dynamic = self.hidden(I32, abi::DYNAMIC_SHARED);
                self.w.bin_const("add", &dynamic, self.barriers.dynamic_start().into())
            }
        }
    }

    /// `from << lane`, XOR `flip`.
    fn lane_mask(&mut self, from: i128, flip: i128) -> Val {
        let lane = self.lane();
        let mask = self.w.bin("shl", &constant(I32, from), &lane);
        if flip == 0 { mask } else { self.w.bin_const("xor", &mask, flip) }
    }

    /// `%tid`
    pub(super) fn tid(&mut self, axis: usize) -> Val {
        if self.analysis.block.dims[axis] == 1 {
            return constant(I32, 0);
        }
        self.w.value(I32, format_args!("call i32 @llvm.amdgcn.workitem.id.{}()", AXES[axis]))
    }

    /// The linear index of the thread in its block.
    pub(super) fn linear_thread(&mut self) -> Val {
        let [dx, dy, _] = self.analysis.block.dims;
        let (x, y, z) = (self.tid(0), self.tid(1), self.tid(2));
        let planes = self.w.bin_const("mul", &z, dy.into());
        let rows = self.w.bin("add", &planes, &y);
        let rows = self.w.bin_const("mul", &rows, dx.into());
        self.w.bin("add", &rows, &x)
    }

    /// The index of the lane in its wave.
    pub(super) fn wave_lane(&mut self) -> Val {
        let all = constant(I32, -1);
        let low = self.w.call_named("llvm.amdgcn.mbcnt.lo", I32, &[&all, &constant(I32, 0)]);
        if self.architecture.wave_lanes() == 32 {
            return low;
        }
        self.w.call_named("llvm.amdgcn.mbcnt.hi", I32, &[&all, &low])
    }

    /// `%laneid`: the index of the lane in its warp.
    pub(super) fn lane(&mut self) -> Val {
        let lane = self.wave_lane();
        if self.architecture.wave_lanes() == 32 { lane } else { self.w.bin_const("and", &lane, 31) }
    }

    /// A hidden argument.
    pub(super) fn hidden(&mut self, ty: Ty, offset: u32) -> Val {
        let at = self.kernarg(abi::hidden_offset(self.program.params_bytes) + offset);
        self.w.value(ty, format_args!("load {ty}, {at}, align {}, !invariant.load !0", ty.elem.bytes()))
    }

    /// The address of a byte of the kernarg segment.
    pub(super) fn kernarg(&mut self, offset: u32) -> Val {
        let base = Val { ty: Ty::scalar(Elem::Space(CONSTANT)), text: "%kernarg".into() };
        self.w.offset_const(&base, offset.into())
    }

    /// The address of a variable in its state space.
    pub(super) fn symbol(&mut self, symbol: &Symbol) -> Val {
        let offset = match symbol {
            Symbol::Param(at) | Symbol::Shared(at) | Symbol::Local(at) => *at,
            Symbol::Dynamic(at) => self.barriers.dynamic_start() + at,
            Symbol::Global(name, at) => {
                let address = self.w.value(I64, format_args!("ptrtoint ptr addrspace(1) @{} to i64", quoted(name)));
                return self.w.bin_const("add", &address, (*at).into());
            }
        };
        constant(I64, offset.into())
    }

    /// A value with this spelling.
    pub(super) fn spelled(ty: Ty, text: impl Into<Spelling>) -> Val {
        Val { ty, text: text.into() }
    }
}
