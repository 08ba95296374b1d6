//! Output of kernels: `vprintf` records a call in the print buffer of the launch.

use super::*;

/// The function that records a call, with names in place of the numbers of the ABI.
const RECORD: &str = include_str!("print.ll");

/// The numbers of the ABI in [`RECORD`].
const NUMBERS: [(&str, u32); 10] = [
    ("capacity", abi::PRINT_CAPACITY),
    ("dropped", abi::PRINT_DROPPED),
    ("records", abi::PRINT_RECORDS),
    ("head", abi::PRINT_HEAD_BYTES),
    ("line", abi::PRINT_LINE),
    ("thread", abi::PRINT_THREAD),
    ("format", abi::PRINT_FORMAT_BYTES),
    ("arguments", abi::PRINT_ARGUMENTS_BYTES),
    ("string_head", abi::PRINT_STRING_HEAD_BYTES),
    ("string_max", abi::PRINT_STRING_BYTES),
];

/// What a module in which a kernel prints has in addition: the function that records a call, and
/// the variable by which a loader knows that launches need a print buffer.
pub(crate) fn print_definitions() -> String {
    let mark = format!("@{} = protected addrspace(1) constant i8 1\n", quoted(abi::PRINTS_SYMBOL));
    let name_in_braces =
        |text: String, (name, number): (&str, u32)| text.replace(&format!("{{{name}}}"), &number.to_string());
    mark + &NUMBERS.into_iter().fold(RECORD.to_owned(), name_in_braces)
}

impl Emitter<'_> {
    /// `vprintf d, format, arguments`
    pub(super) fn vprintf(&mut self, inst: &Inst) -> Result<(), LowerError> {
        self.prints = true;
        let buffer = self.hidden(I64, abi::PRINT_BUFFER);
        let buffer = self.w.cast("inttoptr", &buffer, pointer(GLOBAL));
        let format = self.absolute(self.op(inst, 1)?, 0);
        let (arguments, limit) = self.local_range(self.op(inst, 2)?);
        let (line, thread) = (constant(I32, self.line.into()), self.linear_thread());
        let taken = self.w.call_named("atoll.print", I32, &[&buffer, &format, &arguments, &limit, &line, &thread]);
        self.set_operand(self.op(inst, 0)?, &taken, false);
        Ok(())
    }

    /// The pointer to a place in the thread's local memory, of which the operand is the generic
    /// address, and the number of bytes from there on: 0 for an address outside of it.
    fn local_range(&mut self, address: &Opnd) -> (Val, Val) {
        let Some(local) = self.local.clone() else {
            return (constant(Ty::scalar(pointer(PRIVATE)), 0), constant(I32, 0));
        };
        let flat = self.absolute(address, 0);
        let is_private = self.w.call_named("llvm.amdgcn.is.private", I1, &[&flat]);
        let within = self.address_within(address, PRIVATE);
        let start = self.w.cast("ptrtoint", &local, Elem::I32);
        let offset = self.w.bin("sub", &within, &start);
        let size = constant(I32, self.program.local_bytes.into());
        let is_below_end = self.w.compare("icmp ult", &offset, &size);
        let is_inside = self.w.bin("and", &is_private, &is_below_end);
        let rest = self.w.bin("sub", &size, &offset);
        let limit = self.w.select(&is_inside, &rest, &constant(I32, 0));
        (self.w.offset(&local, &offset), limit)
    }
}
