//! Lowering of [`atoll_lower::bounds`]: checks that an address lies in one of several ranges.

use super::*;
use atoll_kgraph::host_abi::TrapCode;

/// Larger steps could wrap more than once between the first and the last lane.
const STRIDE_MAX: u64 = 1 << 58;

impl Emitter<'_> {
    /// Traps if a lane's address lies in none of the ranges. Each range is first tested for the
    /// whole warp; lanes are tested one by one only if all these tests fail.
    pub(super) fn bound(&mut self, inst: &Inst) -> Result<(), HostError> {
        let Opnd::Addr(base, _) = self.op(inst, 0)? else { return Err(self.malformed(inst, "needs an address")) };
        let ranges: Vec<(&Opnd, &Opnd)> = inst.ops[1..].chunks_exact(2).map(|range| (&range[0], &range[1])).collect();
        let inside = self.w.label("inside");
        for &(start, limit) in &ranges {
            let is_inside = match self.stride(base) {
                Some(stride)
                    if stride.unsigned_abs() <= STRIDE_MAX && self.is_uniform(start) && self.is_uniform(limit) =>
                {
                    self.progression_is_inside(base, stride, start, limit)
                }
                _ => {
                    let outside = self.lanes_outside(base, &[(start, limit)]);
                    let any = self.any(&outside);
                    self.w.bin_const("xor", &any, 1)
                }
            };
            let next = self.w.label("next_range");
            self.w.br_if(&is_inside, &inside, &next);
            self.w.place(&next);
        }
        let outside = self.lanes_outside(base, &ranges);
        let bits = self.mask_bits(&outside);
        let none = self.w.compare("icmp eq", &bits, &constant(I32, 0));
        let trap = self.w.label("outside");
        self.w.br_if(&none, &inside, &trap);
        self.w.place(&trap);
        let lane = self.w.call("llvm.cttz", I32, &[&bits, &constant(I1, 1)]);
        let thread = self.thread_of_lane(&lane);
        self.trap(TrapCode::Trap, self.line, &thread, None);
        self.w.place(&inside);
        Ok(())
    }

    /// Whether a whole progression lies in a range: its lowest and highest lanes do, and it does
    /// not wrap in between. Masked-out lanes are tested too.
    fn progression_is_inside(&mut self, base: &Opnd, stride: i64, start: &Opnd, limit: &Opnd) -> Val {
        let first = self.get(base, Elem::I64, 1);
        let (start, limit) = (self.get(start, Elem::I64, 1), self.get(limit, Elem::I64, 1));
        let first = self.w.bin("sub", &first, &start);
        if stride == 0 {
            return self.w.compare("icmp ule", &first, &limit);
        }
        let last = self.w.bin_const("add", &first, i128::from(stride) * i128::from(LANES - 1));
        let (low, high) = if stride > 0 { (first, last) } else { (last, first) };
        let ascends = self.w.compare("icmp ule", &low, &high);
        let fits = self.w.compare("icmp ule", &high, &limit);
        self.w.bin("and", &ascends, &fits)
    }

    /// The active lanes whose address lies in none of the ranges.
    fn lanes_outside(&mut self, base: &Opnd, ranges: &[(&Opnd, &Opnd)]) -> Val {
        let addresses = self.get(base, Elem::I64, LANES);
        let mut outside = self.mask_value();
        for (start, limit) in ranges {
            let (start, limit) = (self.get(start, Elem::I64, LANES), self.get(limit, Elem::I64, LANES));
            let distances = self.w.bin("sub", &addresses, &start);
            let beyond = self.w.compare("icmp ugt", &distances, &limit);
            outside = self.w.bin("and", &outside, &beyond);
        }
        outside
    }
}
