//! Checks before an access: whether its address is aligned and, with
//! [`Options::check`](crate::Options::check), whether the device allows the access.

use super::*;
use atoll_emit::writer::Check;
use atoll_kgraph::host_abi::{Access, AccessKind, AccessSpace, TrapCode, offsets};
use atoll_ptx::StateSpace;

/// The addresses of an access.
pub(super) enum Address {
    /// One address for all lanes.
    Uniform(Val),
    /// Lane 0's pointer, and the distance between lanes.
    Strided(Val, i64),
    /// One pointer per lane.
    Each(Val),
}

/// Description of an access for [`Emitter::guard_access`].
pub(super) struct Guarded<'a> {
    pub(super) kind: AccessKind,
    /// Bytes per lane.
    pub(super) bytes: u32,
    pub(super) space: Option<StateSpace>,
    /// The address as in PTX: base and offset.
    pub(super) base: &'a Opnd,
    pub(super) offset: i64,
    /// Their sum, for lane 0 or for each lane; in shared, local and parameter memory without the
    /// base address.
    pub(super) sum: Val,
}

/// The value to test for alignment.
enum AlignmentTest {
    /// One value for all lanes.
    One(Val),
    /// A value for each lane.
    Each(Val),
}

impl Guarded<'_> {
    /// The encoding that helper functions expect.
    fn bits(&self) -> u32 {
        let space = match self.space {
            Some(StateSpace::Global) => AccessSpace::Global,
            Some(StateSpace::Shared) => AccessSpace::Shared,
            Some(StateSpace::Local) => AccessSpace::Local,
            Some(StateSpace::Const) => AccessSpace::Const,
            Some(StateSpace::Param) => AccessSpace::Param,
            _ => AccessSpace::Generic,
        };
        Access { kind: self.kind, space, bytes: u16::try_from(self.bytes).unwrap_or(u16::MAX) }.to_bits()
    }
}

impl Emitter<'_> {
    /// Emits the checks before an access.
    pub(super) fn guard_access(&mut self, access: &Guarded<'_>, address: &Address) {
        if self.check {
            self.check_access(access, address);
        } else if let Some(test) = self.alignment_test(access, address) {
            self.trap_if_misaligned(access, address, test);
        }
    }

    /// The value that decides whether the access is aligned; `None` if it always is.
    fn alignment_test(&mut self, access: &Guarded<'_>, address: &Address) -> Option<AlignmentTest> {
        let align = i64::from(access.bytes);
        if align <= 1 || access.space == Some(StateSpace::Param) {
            return None;
        }
        let known = self.alignments.of_operand(access.base);
        if known.zeros >= access.bytes.trailing_zeros() {
            let root = match known.root {
                None if access.offset % align == 0 => return None,
                None => constant(I64, 0),
                Some(parameter) => {
                    let mask = self.mask.as_ref().map(|mask| mask.text.clone());
                    let check = Check { parameter, offset: access.offset.rem_euclid(align), align, mask };
                    if self.w.was_checked(check) {
                        return None;
                    }
                    self.parameter(parameter)
                }
            };
            return Some(AlignmentTest::One(self.w.bin_const("add", &root, access.offset.into())));
        }
        match address {
            Address::Each(_) => Some(AlignmentTest::Each(access.sum.clone())),
            Address::Strided(_, stride) if stride % align != 0 => {
                let steps = self.spread(&access.sum, *stride);
                Some(AlignmentTest::Each(steps))
            }
            Address::Uniform(_) | Address::Strided(..) => Some(AlignmentTest::One(access.sum.clone())),
        }
    }

    /// The low bits of a parameter.
    fn parameter(&mut self, at: u32) -> Val {
        let params = self.fixed.params.clone();
        let at = self.w.offset_const(&params, at.into());
        let bits = self.w.value(Ty::scalar(Elem::I8), format_args!("load i8, {at}, !invariant.load !0"));
        self.w.resize(&bits, Elem::I64, false)
    }

    fn trap_if_misaligned(&mut self, access: &Guarded<'_>, address: &Address, test: AlignmentTest) {
        let (cold, aligned) = (self.w.label("misaligned"), self.w.label("aligned"));
        let rest = i128::from(access.bytes) - 1;
        let known;
        let lane = match test {
            AlignmentTest::One(value) => {
                let low = self.w.bin_const("and", &value, rest);
                let is_aligned = self.w.compare("icmp eq", &low, &constant(I64, 0));
                known = self.w.known();
                self.w.br_if(&is_aligned, &aligned, &cold);
                self.w.place(&cold);
                self.some_lane(&aligned)
            }
            AlignmentTest::Each(values) => {
                let low = self.w.bin_const("and", &values, rest);
                let mut wrong = self.w.compare("icmp ne", &low, &constant(low.ty, 0));
                if let Some(mask) = self.mask.clone() {
                    wrong = self.w.bin("and", &mask, &wrong);
                }
                let bits = self.mask_bits(&wrong);
                let is_aligned = self.w.compare("icmp eq", &bits, &constant(I32, 0));
                known = self.w.known();
                self.w.br_if(&is_aligned, &aligned, &cold);
                self.w.place(&cold);
                self.w.call("llvm.cttz", I32, &[&bits, &constant(I1, 1)])
            }
        };
        let thread = self.thread_of_lane(&lane);
        let at = self.address_of_lane(address, &lane);
        self.trap(TrapCode::Misaligned, self.line, &thread, Some((access.bits(), &at)));
        self.w.place_behind(&aligned, known);
    }

    /// The first active lane. Branches to `none` if no lane is active: inactive lanes make no
    /// access.
    fn some_lane(&mut self, none: &Label) -> Val {
        let Some(mask) = self.mask.clone() else { return constant(I32, 0) };
        let bits = self.mask_bits(&mask);
        let any = self.w.compare("icmp ne", &bits, &constant(I32, 0));
        let some = self.w.label("some_lane");
        self.w.br_if(&any, &some, none);
        self.w.place(&some);
        self.w.call("llvm.cttz", I32, &[&bits, &constant(I1, 1)])
    }

    /// A lane's address as an integer.
    fn address_of_lane(&mut self, address: &Address, lane: &Val) -> Val {
        match address {
            Address::Uniform(pointer) => self.w.cast("ptrtoint", pointer, Elem::I64),
            Address::Strided(pointer, stride) => {
                let first = self.w.cast("ptrtoint", pointer, Elem::I64);
                let lane = self.w.resize(lane, Elem::I64, false);
                let distance = self.w.bin_const("mul", &lane, (*stride).into());
                self.w.bin("add", &first, &distance)
            }
            Address::Each(pointers) => {
                let pointer = self.w.extract(pointers, lane);
                self.w.cast("ptrtoint", &pointer, Elem::I64)
            }
        }
    }

    /// Asks the device for every active lane whether the access is allowed, and returns from the
    /// kernel if it is not.
    fn check_access(&mut self, access: &Guarded<'_>, address: &Address) {
        let done = self.w.label("checked");
        let first = self.some_lane(&done);
        if let Address::Uniform(_) = address {
            self.check_access_of_lane(access, address, &first);
            return self.w.place(&done);
        }
        let bits = self.mask.clone().map_or(constant(I32, -1), |mask| self.mask_bits(&mask));
        let left = self.w.alloca(I32);
        self.w.store(&bits, &left);
        let again = self.w.label("check");
        self.w.place(&again);
        let now = self.w.load(I32, &left);
        let lane = self.w.call("llvm.cttz", I32, &[&now, &constant(I1, 1)]);
        self.check_access_of_lane(access, address, &lane);
        let below = self.w.bin_const("sub", &now, 1);
        let rest = self.w.bin("and", &now, &below);
        self.w.store(&rest, &left);
        let more = self.w.compare("icmp ne", &rest, &constant(I32, 0));
        self.w.br_if(&more, &again, &done);
        self.w.place(&done);
    }

    fn check_access_of_lane(&mut self, access: &Guarded<'_>, address: &Address, lane: &Val) {
        let (thread, at) = (self.thread_of_lane(lane), self.address_of_lane(address, lane));
        let function = self.helper(offsets::HELPER_CHECK);
        let (bits, line, local_bytes) = (access.bits(), self.line, self.program.local_bytes);
        let answer = self.w.value(
            I32,
            format_args!(
                "call i32 {}(ptr %context, i32 {bits}, i32 {line}, {thread}, {at}, i32 {local_bytes})",
                function.text
            ),
        );
        let may = self.w.compare("icmp ne", &answer, &constant(I32, 0));
        let (yes, no) = (self.w.label("may"), self.w.label("may_not"));
        self.w.br_if(&may, &yes, &no);
        self.w.place(&no);
        self.return_trapped();
        self.w.place(&yes);
    }
}
