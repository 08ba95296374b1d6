//! Loads, stores and fences.
//!
//! Lanes that share one address make one scalar access; lanes with consecutive addresses make
//! vector accesses; all other lanes make a gather or scatter.

use super::access::{Address, Guarded};
use super::*;
use atoll_emit::writer::intrinsics;
use atoll_kgraph::host_abi::AccessKind;
use atoll_lower::program::{is_signed, storage};
use atoll_ptx::{ScalarType, StateSpace};

/// The memory order of an access.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    /// No order.
    Weak,
    /// The memory does not change while the kernel runs.
    Invariant,
    Volatile,
    Relaxed,
    /// `acquire` for a load, `release` for a store.
    Synchronising,
}

/// Where an address points.
pub(super) struct Place<'a> {
    space: Option<StateSpace>,
    base: &'a Opnd,
    offset: i64,
    /// Base and offset, as in [`Guarded`].
    sum: Val,
}

impl Emitter<'_> {
    /// The address of an access of `bytes` bytes per lane; emits the checks before it.
    pub(super) fn address(
        &mut self,
        inst: &Inst,
        operand: &Opnd,
        kind: AccessKind,
        bytes: u32,
    ) -> Result<Address, HostError> {
        self.address_in(inst, operand, inst.form.space(), kind, bytes)
    }

    /// Like [`Emitter::address`], with an explicit state space.
    pub(super) fn address_in(
        &mut self,
        inst: &Inst,
        operand: &Opnd,
        space: Option<StateSpace>,
        kind: AccessKind,
        bytes: u32,
    ) -> Result<Address, HostError> {
        let (address, place) = self.unguarded_address(inst, operand, space)?;
        let Place { space, base, offset, sum } = place;
        self.guard_access(&Guarded { kind, bytes, space, base, offset, sum }, &address);
        Ok(address)
    }

    /// The addresses of an operand, without the checks of an access.
    pub(super) fn unguarded_address<'o>(
        &mut self,
        inst: &Inst,
        operand: &'o Opnd,
        space: Option<StateSpace>,
    ) -> Result<(Address, Place<'o>), HostError> {
        let Opnd::Addr(base, offset) = operand else {
            return Err(self.malformed(inst, "needs an address in brackets"));
        };
        let space = match **base {
            Opnd::Symbol(atoll_lower::program::Symbol::Param(_)) => Some(StateSpace::Param),
            _ => space,
        };
        let local_step = if space == Some(StateSpace::Local) { i64::from(self.program.local_bytes) } else { 0 };
        let stride = self.stride(base).map(|s| s + local_step);
        let lanes = if stride.is_some() { 1 } else { LANES };
        let sum = self.base_address(base, space, lanes);
        let sum = if *offset == 0 { sum } else { self.w.bin_const("add", &sum, (*offset).into()) };
        // A plain base pointer with offsets lets LLVM use its indexed gathers.
        let pointer = match self.space_base(space.filter(|s| *s != StateSpace::Local), 1) {
            Some(origin) => {
                let origin = self.w.cast("inttoptr", &origin, Elem::Ptr);
                let ty = Ty { elem: Elem::Ptr, lanes };
                self.w.value(ty, format_args!("getelementptr i8, {origin}, {sum}"))
            }
            None => {
                let address = match self.space_base(space, lanes) {
                    Some(origin) => self.w.bin("add", &sum, &origin),
                    None => sum.clone(),
                };
                self.w.cast("inttoptr", &address, Elem::Ptr)
            }
        };
        let address = match stride {
            Some(0) => Address::Uniform(pointer),
            Some(stride) => Address::Strided(pointer, stride),
            None => Address::Each(pointer),
        };
        Ok((address, Place { space, base, offset: *offset, sum }))
    }

    /// The base of an address, extended to 64 bits. Offsets in shared, local and parameter memory
    /// are signed: an address that is computed but not accessed may be negative.
    fn base_address(&mut self, base: &Opnd, space: Option<StateSpace>, lanes: u32) -> Val {
        let elem = match base {
            Opnd::Reg(reg) => self.program.regs[*reg].elem,
            _ => Elem::I64,
        };
        let value = self.get(base, elem, lanes);
        let is_small = matches!(space, Some(StateSpace::Shared | StateSpace::Local | StateSpace::Param));
        self.w.reinterpret(&value, Elem::I64, is_small)
    }

    fn order(&self, inst: &Inst) -> Order {
        if inst.has("volatile") || inst.has("mmio") {
            Order::Volatile
        } else if inst.has("relaxed") {
            Order::Relaxed
        } else if inst.has("acquire") || inst.has("release") {
            Order::Synchronising
        } else if inst.has("nc") || matches!(inst.form.space(), Some(StateSpace::Const | StateSpace::Param)) {
            Order::Invariant
        } else {
            Order::Weak
        }
    }

    /// Number of elements per lane, and their type in memory.
    fn access(&self, inst: &Inst) -> Result<(u32, ScalarType), HostError> {
        let ty = self.ty_of(inst)?;
        let count = [("v2", 2), ("v4", 4), ("v8", 8)]
            .into_iter()
            .find(|(word, _)| inst.has(word))
            .map_or(1, |(_, count)| count);
        if storage(ty) == Elem::I1 {
            return Err(self.malformed(inst, "cannot access predicates in memory"));
        }
        Ok((count, ty))
    }

    pub(super) fn load(&mut self, inst: &Inst) -> Result<(), HostError> {
        let (count, ty) = self.access(inst)?;
        let targets = match self.op(inst, 0)? {
            Opnd::Vec(parts) => parts.clone(),
            single => vec![single.clone()],
        };
        if targets.len() != count as usize {
            return Err(self.malformed(inst, "has a vector whose length differs from its type"));
        }
        let order = self.order(inst);
        let elem = storage(ty);
        let values = match self.address(inst, self.op(inst, 1)?, AccessKind::Read, elem.bytes() * count)? {
            Address::Uniform(pointer) => {
                (0..count).map(|i| self.load_scalar(elem, &pointer, i * elem.bytes(), order)).collect()
            }
            Address::Strided(pointer, stride) if stride == i64::from(elem.bytes() * count) => {
                self.compiler_barrier(order);
                self.load_contiguous(elem, count, &pointer, order)
            }
            Address::Strided(pointer, stride) => {
                self.compiler_barrier(order);
                let is_plain = matches!(order, Order::Weak | Order::Invariant);
                if is_plain && count == 1 && stride == i64::from(2 * elem.bytes()) {
                    vec![self.load_every_second(elem, &pointer)]
                } else {
                    let pointers = self.spread_pointer(&pointer, stride);
                    self.gather(elem, count, &pointers)
                }
            }
            Address::Each(pointers) => {
                self.compiler_barrier(order);
                self.load_each(elem, count, &pointers, order)
            }
        };
        for (target, value) in targets.iter().zip(values) {
            self.set_operand(target, &value, is_signed(ty));
        }
        Ok(())
    }

    fn load_scalar(&mut self, elem: Elem, pointer: &Val, offset: u32, order: Order) -> Val {
        let at = self.w.offset_const(pointer, offset.into());
        let ty = Ty::scalar(elem);
        let align = elem.bytes();
        match order {
            Order::Weak => self.w.value(ty, format_args!("load {ty}, {at}, align {align}")),
            Order::Invariant => self.w.value(ty, format_args!("load {ty}, {at}, align {align}, !invariant.load !0")),
            Order::Volatile => self.w.value(ty, format_args!("load volatile {ty}, {at}, align {align}")),
            Order::Relaxed => {
                self.w.value(ty, format_args!("load atomic volatile {ty}, {at} monotonic, align {align}"))
            }
            Order::Synchronising => {
                self.w.value(ty, format_args!("load atomic volatile {ty}, {at} acquire, align {align}"))
            }
        }
    }

    /// Lane after lane, `count` elements each: one wide load, split afterwards.
    fn load_contiguous(&mut self, elem: Elem, count: u32, pointer: &Val, order: Order) -> Vec<Val> {
        let ty = Ty { elem, lanes: LANES * count };
        let align = elem.bytes();
        let whole = match self.mask.clone() {
            None if order == Order::Invariant => {
                self.w.value(ty, format_args!("load {ty}, {pointer}, align {align}, !invariant.load !0"))
            }
            None => self.w.value(ty, format_args!("load {ty}, {pointer}, align {align}")),
            Some(mask) => {
                let mask = self.repeat_lanes(&mask, count);
                intrinsics::masked_load(&mut self.w, ty, pointer, align, &mask, self.level.vector_bits())
            }
        };
        if count == 1 {
            return vec![whole];
        }
        let part = |i: u32| (0..LANES).map(|lane| lane * count + i).collect::<Vec<_>>();
        (0..count).map(|i| self.w.shuffle(&whole, &part(i))).collect()
    }

    /// Repeats every lane of a mask `count` times.
    fn repeat_lanes(&mut self, mask: &Val, count: u32) -> Val {
        if count == 1 {
            return mask.clone();
        }
        let pattern: Vec<u32> = (0..LANES * count).map(|i| i / count).collect();
        self.w.shuffle(mask, &pattern)
    }

    /// Loads through pointers that may turn out to be consecutive. An index that is split by
    /// divisions and recombined, as in a convolution, is consecutive along most of a row. A test at
    /// run time decides, because a gather costs ten times as much as the test.
    fn load_each(&mut self, elem: Elem, count: u32, pointers: &Val, order: Order) -> Vec<Val> {
        let results: Vec<Val> = (0..count).map(|_| self.w.alloca(Ty { elem, lanes: LANES })).collect();
        let (each, contiguous, done) = (self.w.label("gather"), self.w.label("contiguous"), self.w.label("loaded"));
        let first = self.branch_on_contiguity(pointers, elem.bytes() * count, &contiguous, &each);
        self.w.place(&contiguous);
        let values = self.load_contiguous(elem, count, &first, order);
        values.iter().zip(&results).for_each(|(v, r)| self.w.store(v, r));
        self.w.br(&done);
        self.w.place(&each);
        let values = self.gather(elem, count, pointers);
        values.iter().zip(&results).for_each(|(v, r)| self.w.store(v, r));
        self.w.place(&done);
        results.iter().map(|r| self.w.load(Ty { elem, lanes: LANES }, r)).collect()
    }

    /// Branches on whether the active lanes' pointers advance by `stride` from lane 0's pointer,
    /// which is returned.
    fn branch_on_contiguity(&mut self, pointers: &Val, stride: u32, contiguous: &Label, otherwise: &Label) -> Val {
        let addresses = self.w.cast("ptrtoint", pointers, Elem::I64);
        let first = self.w.extract(&addresses, &constant(I32, 0));
        let expected = self.spread(&first, stride.into());
        let mut differs = self.w.compare("icmp ne", &addresses, &expected);
        if let Some(mask) = self.mask.clone() {
            differs = self.w.bin("and", &mask, &differs);
        }
        let any = self.any(&differs);
        let first = self.w.cast("inttoptr", &first, Elem::Ptr);
        self.w.br_if(&any, otherwise, contiguous);
        first
    }

    fn gather(&mut self, elem: Elem, count: u32, pointers: &Val) -> Vec<Val> {
        let mask = self.mask_value();
        (0..count)
            .map(|i| {
                let at = self.offset_each(pointers, i * elem.bytes());
                intrinsics::gather(&mut self.w, elem, &at, elem.bytes(), &mask)
            })
            .collect()
    }

    pub(super) fn offset_each(&mut self, pointers: &Val, bytes: u32) -> Val {
        if bytes == 0 {
            pointers.clone()
        } else {
            self.w.value(pointers.ty, format_args!("getelementptr i8, {pointers}, i64 {bytes}"))
        }
    }

    /// Keeps LLVM from moving a vector access that is volatile or ordered; x86 itself provides the
    /// order that PTX requires here.
    fn compiler_barrier(&mut self, order: Order) {
        if matches!(order, Order::Volatile | Order::Relaxed | Order::Synchronising) {
            self.w.effect(format_args!("fence syncscope(\"singlethread\") seq_cst"));
        }
    }

    pub(super) fn store(&mut self, inst: &Inst) -> Result<(), HostError> {
        let (count, ty) = self.access(inst)?;
        let order = self.order(inst);
        let elem = storage(ty);
        let sources = match self.op(inst, 1)? {
            Opnd::Vec(parts) => parts.clone(),
            single => vec![single.clone()],
        };
        if sources.len() != count as usize {
            return Err(self.malformed(inst, "has a vector whose length differs from its type"));
        }
        match self.address(inst, self.op(inst, 0)?, AccessKind::Write, elem.bytes() * count)? {
            Address::Uniform(pointer) => {
                for (index, source) in sources.iter().enumerate() {
                    let value = self.last_lane(source, elem);
                    self.store_scalar(&value, &pointer, index as u32 * elem.bytes(), order);
                }
            }
            Address::Strided(pointer, stride) if stride == i64::from(elem.bytes() * count) => {
                self.store_contiguous(&sources, elem, &pointer);
                self.compiler_barrier(order);
            }
            Address::Strided(pointer, stride) => {
                let pointers = self.spread_pointer(&pointer, stride);
                self.scatter(&sources, elem, &pointers);
                self.compiler_barrier(order);
            }
            Address::Each(pointers) => {
                self.store_each(&sources, elem, &pointers);
                self.compiler_barrier(order);
            }
        }
        Ok(())
    }

    /// Stores through pointers that may turn out to be consecutive, as `load_each` does.
    fn store_each(&mut self, sources: &[Opnd], elem: Elem, pointers: &Val) {
        let (each, contiguous, done) = (self.w.label("scatter"), self.w.label("contiguous"), self.w.label("stored"));
        let first = self.branch_on_contiguity(pointers, elem.bytes() * sources.len() as u32, &contiguous, &each);
        self.w.place(&contiguous);
        self.store_contiguous(sources, elem, &first);
        self.w.br(&done);
        self.w.place(&each);
        self.scatter(sources, elem, pointers);
        self.w.place(&done);
    }

    /// Lane after lane, one wide store.
    fn store_contiguous(&mut self, sources: &[Opnd], elem: Elem, pointer: &Val) {
        let values: Vec<Val> = sources.iter().map(|s| self.get(s, elem, LANES)).collect();
        let whole = self.interleave(&values);
        let align = elem.bytes();
        match self.mask.clone() {
            None => self.w.effect(format_args!("store {whole}, {pointer}, align {align}")),
            Some(mask) => {
                let mask = self.repeat_lanes(&mask, sources.len() as u32);
                intrinsics::masked_store(&mut self.w, &whole, pointer, align, &mask);
            }
        }
    }

    /// The value to store if all lanes store to one address. PTX allows the value of any lane; this
    /// target takes that of the last active lane.
    fn last_lane(&mut self, source: &Opnd, elem: Elem) -> Val {
        if self.is_uniform(source) {
            return self.get(source, elem, 1);
        }
        let value = self.get(source, elem, LANES);
        let index = match self.mask.clone() {
            None => constant(I32, i128::from(LANES) - 1),
            Some(mask) => {
                let bits = self.mask_bits(&mask);
                let zeros = self.w.call("llvm.ctlz", I32, &[&bits, &constant(I1, 0)]);
                self.w.bin("sub", &constant(I32, i128::from(LANES) - 1), &zeros)
            }
        };
        self.w.extract(&value, &index)
    }

    fn store_scalar(&mut self, value: &Val, pointer: &Val, offset: u32, order: Order) {
        let at = self.w.offset_const(pointer, offset.into());
        let align = value.ty.elem.bytes();
        match order {
            Order::Weak | Order::Invariant => self.w.effect(format_args!("store {value}, {at}, align {align}")),
            Order::Volatile => self.w.effect(format_args!("store volatile {value}, {at}, align {align}")),
            Order::Relaxed => {
                self.w.effect(format_args!("store atomic volatile {value}, {at} monotonic, align {align}"))
            }
            Order::Synchronising => {
                self.w.effect(format_args!("store atomic volatile {value}, {at} release, align {align}"))
            }
        }
    }

    /// Interleaves 1, 2, 4 or 8 vectors, lane after lane.
    fn interleave(&mut self, values: &[Val]) -> Val {
        let mut parts = values.to_vec();
        // The vectors are first concatenated in pairs; one shuffle then puts the lanes in order.
        while parts.len() > 1 {
            parts = parts
                .chunks(2)
                .map(|pair| {
                    let pattern: Vec<u32> = (0..2 * pair[0].ty.lanes).collect();
                    self.w.shuffle2(&pair[0], &pair[1], &pattern)
                })
                .collect();
        }
        let count = values.len() as u32;
        if count == 1 {
            return parts[0].clone();
        }
        let pattern: Vec<u32> = (0..LANES * count).map(|i| i % count * LANES + i / count).collect();
        self.w.shuffle(&parts[0], &pattern)
    }

    fn scatter(&mut self, sources: &[Opnd], elem: Elem, pointers: &Val) {
        let mask = self.mask_value();
        for (index, source) in sources.iter().enumerate() {
            let value = self.get(source, elem, LANES);
            let at = self.offset_each(pointers, index as u32 * elem.bytes());
            intrinsics::scatter(&mut self.w, &value, &at, elem.bytes(), &mask);
        }
    }

    /// A stack array of one element per lane; `purpose` distinguishes arrays in use at the same
    /// time.
    pub(super) fn lane_array(&mut self, elem: Elem, purpose: u8) -> Val {
        if let Some(array) = self.lane_arrays.get(&(elem, purpose)) {
            return array.clone();
        }
        let array = self.w.alloca(Ty { elem, lanes: LANES });
        self.lane_arrays.insert((elem, purpose), array.clone());
        array
    }

    /// Stores vectors to arrays from which single lanes can be read; keeps scalars unchanged.
    pub(super) fn lane_arrays_of(&mut self, values: &[Val]) -> Vec<Val> {
        let mut out = Vec::new();
        for (purpose, value) in values.iter().enumerate() {
            if value.ty.lanes == 1 {
                out.push(value.clone());
                continue;
            }
            let array = self.lane_array(value.ty.elem, purpose as u8);
            self.w.store(value, &array);
            // The pointer's type records the element type of the array.
            out.push(Val { ty: Ty { elem: value.ty.elem, lanes: LANES }, text: array.text });
        }
        out
    }

    /// One lane of a value prepared by `lane_arrays_of`.
    pub(super) fn lane_value(&mut self, value: &Val, lane: &Val) -> Val {
        if value.ty.lanes == 1 {
            return value.clone();
        }
        let array = Val { ty: PTR, text: value.text.clone() };
        let at = self.lane_slot(&array, value.ty.elem, lane);
        self.w.load(Ty::scalar(value.ty.elem), &at)
    }

    pub(super) fn lane_slot(&mut self, array: &Val, elem: Elem, lane: &Val) -> Val {
        self.w.value(PTR, format_args!("getelementptr {elem}, {array}, {lane}"))
    }

    /// Runs `body` for every active lane, lowest first.
    pub(super) fn for_each_lane<R>(&mut self, body: impl FnOnce(&mut Self, &Val) -> R) -> R {
        let bits = match self.mask.clone() {
            None => constant(I32, -1),
            Some(mask) => self.mask_bits(&mask),
        };
        let left = self.w.alloca(I32);
        self.w.store(&bits, &left);
        let (again, out) = (self.w.label("lane"), self.w.label("lanes_done"));
        self.w.place(&again);
        let now = self.w.load(I32, &left);
        let lane = self.w.call("llvm.cttz", I32, &[&now, &constant(I1, 0)]);
        let result = body(self, &lane);
        let below = self.w.bin_const("sub", &now, 1);
        let rest = self.w.bin("and", &now, &below);
        self.w.store(&rest, &left);
        let more = self.w.compare("icmp ne", &rest, &constant(I32, 0));
        self.w.br_if(&more, &again, &out);
        self.w.place(&out);
        result
    }

    /// `membar` and `fence`.
    pub(super) fn fence(&mut self, inst: &Inst) -> Result<(), HostError> {
        // Within a block there is one thread of execution; x86 orders all accesses except a store
        // before a load.
        if inst.has("cta") {
            self.w.effect(format_args!("fence syncscope(\"singlethread\") seq_cst"));
        } else if inst.has("acq_rel") || inst.has("proxy") {
            self.w.effect(format_args!("fence acq_rel"));
        } else {
            self.w.effect(format_args!("fence seq_cst"));
        }
        Ok(())
    }
}
