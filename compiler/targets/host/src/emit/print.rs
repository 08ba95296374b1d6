//! Output of kernels: `vprintf` and failed assertions.

use super::*;
use atoll_kgraph::host_abi::TrapCode;

/// The message of a failed assertion, in NVIDIA's format.
const ASSERTION: &str = "%s:%u: %s: block: [%u,%u,%u], thread: [%u,%u,%u] Assertion `%s` failed.\n";
/// Offsets of the arguments of [`ASSERTION`] as `vprintf` packs them, and their end.
const ASSERTION_OFFSETS: [u64; 10] = [0, 8, 16, 24, 28, 32, 36, 40, 44, 48];
const ASSERTION_BYTES: u32 = 56;

impl Emitter<'_> {
    /// `vprintf d, format, arguments`, lane by lane, lowest first.
    pub(super) fn vprintf(&mut self, inst: &Inst) -> Result<(), HostError> {
        let mut operands = Vec::new();
        for index in [1, 2] {
            let operand = self.op(inst, index)?;
            let lanes = if self.is_uniform(operand) { 1 } else { LANES };
            operands.push(self.get(operand, Elem::I64, lanes));
        }
        let printed = self.lane_array(Elem::I32, 7);
        let lanes = self.lane_arrays_of(&operands);
        self.for_each_lane(|e, lane| {
            let values: Vec<Val> = lanes.iter().map(|l| e.lane_value(l, lane)).collect();
            let thread = e.thread_of_lane(lane);
            let bytes = e.local_bytes_behind(&values[1], &thread);
            let result = e.call_print(&values[0], &values[1], &bytes, &thread);
            let at = e.lane_slot(&printed, Elem::I32, lane);
            e.w.store(&result, &at);
            Ok(())
        })
        .map_err(|()| self.malformed(inst, "has too few operands"))?;
        let value = self.w.load(Ty { elem: Elem::I32, lanes: LANES }, &printed);
        self.set_operand(self.op(inst, 0)?, &value, false);
        Ok(())
    }

    fn call_print(&mut self, format: &Val, arguments: &Val, bytes: &Val, thread: &Val) -> Val {
        let function = self.helper(offsets::HELPER_PRINT);
        let line = self.line;
        self.w.value(
            I32,
            format_args!(
                "call i32 {}(ptr %context, {format}, {arguments}, {bytes}, i32 {line}, {thread}) cold",
                function.text
            ),
        )
    }

    /// Bytes of a thread's local memory from an address on; 0 for an address outside of it.
    fn local_bytes_behind(&mut self, address: &Val, thread: &Val) -> Val {
        let size = constant(I64, self.program.local_bytes.into());
        let thread = self.w.resize(thread, Elem::I64, false);
        let offset = self.w.bin("mul", &thread, &size);
        let scratch = self.fixed.scratch.clone();
        let scratch = self.w.cast("ptrtoint", &scratch, Elem::I64);
        let begin = self.w.bin("add", &scratch, &offset);
        let into = self.w.bin("sub", address, &begin);
        let is_inside = self.w.compare("icmp ult", &into, &size);
        let rest = self.w.bin("sub", &size, &into);
        let rest = self.w.select(&is_inside, &rest, &constant(I64, 0));
        self.w.resize(&rest, Elem::I32, false)
    }

    /// `__assertfail message, file, line, function`: prints for every lane, and ends the launch.
    pub(super) fn assert_fail(&mut self, inst: &Inst) -> Result<(), HostError> {
        let mut operands = Vec::new();
        for (index, elem) in (0..).zip([Elem::I64, Elem::I64, Elem::I32, Elem::I64]) {
            let operand = self.op(inst, index)?;
            let lanes = if self.is_uniform(operand) { 1 } else { LANES };
            operands.push(self.get(operand, elem, lanes));
        }
        let format = self.string(ASSERTION);
        let format = self.w.cast("ptrtoint", &format, Elem::I64);
        let arguments = self.w.alloca(Ty { elem: Elem::I64, lanes: ASSERTION_BYTES / 8 });
        let lanes = self.lane_arrays_of(&operands);
        self.for_each_lane(|e, lane| {
            let [message, file, line, function] = [0, 1, 2, 3].map(|i| e.lane_value(&lanes[i], lane));
            let thread = e.thread_of_lane(lane);
            let [x, y, z] = e.ctaid.clone().map(|slot| e.w.load(I32, &slot));
            let [tx, ty, tz] = e.thread_index(&thread);
            let packed = [file, line, function, x, y, z, tx, ty, tz, message];
            for (value, offset) in packed.iter().zip(ASSERTION_OFFSETS) {
                let at = e.w.offset_const(&arguments, offset);
                e.w.store(value, &at);
            }
            let address = e.w.cast("ptrtoint", &arguments, Elem::I64);
            e.call_print(&format, &address, &constant(I32, ASSERTION_BYTES.into()), &thread);
            Ok(())
        })
        .map_err(|()| self.malformed(inst, "has too few operands"))?;
        let thread = self.first_thread();
        self.trap(TrapCode::Assert, self.line, &thread, None);
        let unreachable = self.w.label("after_assert");
        self.w.place(&unreachable);
        Ok(())
    }

    /// `%tid` of a thread, from its linear index.
    fn thread_index(&mut self, thread: &Val) -> [Val; 3] {
        let [dx, dy, _] = self.analysis.block.dims.map(i128::from);
        let x = self.w.bin_const("urem", thread, dx);
        let row = self.w.bin_const("udiv", thread, dx);
        let y = self.w.bin_const("urem", &row, dy);
        let z = self.w.bin_const("udiv", &row, dy);
        [x, y, z]
    }

    /// The address of a string constant of the kernel.
    fn string(&mut self, text: &str) -> Val {
        let name = format!("@text.{}", self.texts.len());
        let bytes: String = text.bytes().map(|b| format!("\\{b:02X}")).collect();
        self.texts.push(format!("{name} = private constant [{} x i8] c\"{bytes}\\00\"\n", text.len() + 1));
        Val { ty: PTR, text: name.into() }
    }
}
