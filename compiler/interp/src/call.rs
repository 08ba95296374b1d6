//! Calls and returns, and memory operations of one thread.

use crate::atomic::{Atomic, AtomicElement};
use crate::block::{BlockRun, Frame};
use crate::fault::FaultKind;
use crate::memory::{CODE_WINDOW, Memory, SHARED_WINDOW, window};
use crate::op::{Addr, Callee, Formal, Op, Passed, Space};
use crate::print;

/// Maximum local memory of one thread in bytes, over all frames.
const LOCAL_BYTES_MAX: usize = 1 << 22;

impl BlockRun<'_> {
    pub(crate) fn memory_operation(&mut self, memory: &mut Memory, thread: usize, op: &Op) -> Result<(), FaultKind> {
        match op {
            Op::Load { addr, bits, signed, dst } => {
                let element = bits / 8;
                let total = element * dst.len() as u32;
                let mut data = [0u8; 64];
                let place = (addr.space, self.address(thread, addr));
                data[..total as usize].copy_from_slice(self.bytes(memory, thread, place, (total, total), false)?);
                for (register, chunk) in dst.iter().zip(data.chunks(element as usize)) {
                    let raw = word(chunk);
                    let unused = 64 - bits;
                    self.set(thread, *register, if *signed { ((raw << unused) as i64 >> unused) as u64 } else { raw });
                }
                Ok(())
            }
            Op::Store { addr, bits, src } => {
                let element = (bits / 8) as usize;
                let mut data = [0u8; 64];
                for (source, chunk) in src.iter().zip(data.chunks_mut(element)) {
                    chunk.copy_from_slice(&self.value(thread, *source).to_le_bytes()[..element]);
                }
                let total = (element * src.len()) as u32;
                let place = (addr.space, self.address(thread, addr));
                self.bytes(memory, thread, place, (total, total), true)?.copy_from_slice(&data[..total as usize]);
                Ok(())
            }
            Op::Atomic(atomic) => self.atomic(memory, thread, atomic),
            Op::Copy { to, from, bytes, source_bytes, ignore } => {
                let zero = ignore.is_some_and(|p| self.value(thread, p) != 0);
                let wanted =
                    if zero { 0 } else { source_bytes.map_or(*bytes, |s| (self.value(thread, s) as u32).min(*bytes)) };
                self.copy(memory, thread, (to, from), *bytes, wanted)
            }
            _ => Ok(()),
        }
    }

    fn atomic(&mut self, memory: &mut Memory, thread: usize, atomic: &Atomic) -> Result<(), FaultKind> {
        let Atomic { addr, bits, function, elements } = atomic;
        let (address, bytes) = (self.address(thread, addr), bits / 8);
        let all_bytes = bytes * elements.len() as u32;
        if !address.is_multiple_of(all_bytes.into()) {
            return Err(FaultKind::Misaligned { address, bytes: all_bytes });
        }
        let in_shared = match addr.space {
            Space::Generic => window(address) == SHARED_WINDOW,
            space => space == Space::Shared,
        };
        for (at, AtomicElement { src, dst }) in elements.iter().enumerate() {
            let mut values = [0u128; 2];
            for (value, [low, high]) in values.iter_mut().zip(src) {
                let all = u128::from(self.value(thread, *low)) | u128::from(self.value(thread, *high)) << 64;
                *value = if *bits == 128 { all } else { all & ((1 << bits) - 1) };
            }
            let place = (addr.space, address + at as u64 * u64::from(bytes));
            let cell = self.bytes(memory, thread, place, (bytes, bytes), true)?;
            let mut old = [0u8; 16];
            old[..bytes as usize].copy_from_slice(cell);
            let old = u128::from_le_bytes(old);
            cell.copy_from_slice(&function.apply(old, &values, in_shared).to_le_bytes()[..bytes as usize]);
            self.set(thread, *dst, old as u64);
            if let Some(wide) = dst.filter(|d| d.bits > 64) {
                let high = crate::op::Dst { slot: wide.slot + 1, bits: 64 };
                self.set(thread, Some(high), (old >> 64) as u64);
            }
        }
        Ok(())
    }

    fn copy(
        &mut self,
        memory: &mut Memory,
        thread: usize,
        (to, from): (&Addr, &Addr),
        bytes: u32,
        wanted: u32,
    ) -> Result<(), FaultKind> {
        let mut data = [0u8; 16];
        if wanted > 0 {
            let place = (from.space, self.address(thread, from));
            data[..wanted as usize].copy_from_slice(self.bytes(memory, thread, place, (wanted, bytes), false)?);
        }
        let place = (to.space, self.address(thread, to));
        self.bytes(memory, thread, place, (bytes, bytes), true)?.copy_from_slice(&data[..bytes as usize]);
        Ok(())
    }

    pub(crate) fn call(
        &mut self,
        memory: &mut Memory,
        thread: usize,
        callee: Callee,
        returns: &[Passed],
        arguments: &[Passed],
    ) -> Result<(), FaultKind> {
        let values: Vec<Vec<u8>> =
            arguments.iter().map(|a| self.argument(thread, *a)).collect::<Option<_>>().ok_or_else(missing_argument)?;
        let index = match callee {
            Callee::Function(index) => index,
            Callee::Indirect(source) => {
                let target = self.value(thread, source);
                let index =
                    target.checked_sub(CODE_WINDOW).filter(|i| *i < self.program.functions.len() as u64 && *i > 0);
                let function = index.map(|i| &self.program.functions[i as usize]);
                let fits =
                    function.is_some_and(|f| f.params.len() == arguments.len() && f.returns.len() == returns.len());
                if !fits {
                    return Err(FaultKind::CallTarget(target));
                }
                index.unwrap_or(0) as u32
            }
            Callee::Vprintf => {
                let [format, buffer] = values.as_slice() else {
                    return Err(FaultKind::Print("it takes two arguments".into()));
                };
                let mut text = Vec::new();
                let count = print::format(word(format), word(buffer), &mut text, &mut |address, bytes| {
                    let place = (crate::op::Space::Generic, address);
                    self.bytes(memory, thread, place, (bytes, 1), false).map(|b| b.to_vec())
                })?;
                self.printed.extend_from_slice(&text);
                self.finish_builtin(thread, returns, count);
                return Ok(());
            }
            Callee::AssertFail => {
                let message = self.assertion(memory, thread, &values)?;
                return Err(FaultKind::Assert(message));
            }
        };
        self.enter(thread, index, &values)
    }

    /// The message of `__assertfail(message, file, line, function, char size)`.
    fn assertion(&mut self, memory: &mut Memory, thread: usize, values: &[Vec<u8>]) -> Result<String, FaultKind> {
        let mut read = |address: u64| {
            print::text(address, &mut |address, bytes| {
                let place = (crate::op::Space::Generic, address);
                self.bytes(memory, thread, place, (bytes, 1), false).map(|b| b.to_vec())
            })
            .map(|b| String::from_utf8_lossy(&b).into_owned())
        };
        let [message, file, line, function, ..] = values else { return Ok(String::new()) };
        Ok(format!("{}:{}: {}: {}", read(word(file))?, word(line), read(word(function))?, read(word(message))?))
    }

    fn finish_builtin(&mut self, thread: usize, returns: &[Passed], value: u32) {
        for place in returns {
            match place {
                Passed::Register(register) => self.set(thread, Some(*register), value.into()),
                Passed::Param(at, _) => self.write_param(thread, *at, &value.to_le_bytes()),
                Passed::Value(_) => {}
            }
        }
        self.threads[thread].at += 1;
    }

    fn write_param(&mut self, thread: usize, at: u32, bytes: &[u8]) {
        let area = self.threads[thread].frames.last_mut().map(|f| &mut f.params);
        if let Some(place) = area.and_then(|a| a.get_mut(at as usize..at as usize + bytes.len())) {
            place.copy_from_slice(bytes);
        }
    }

    fn argument(&self, thread: usize, passed: Passed) -> Option<Vec<u8>> {
        match passed {
            Passed::Param(at, bytes) => {
                let frame = self.threads[thread].frames.last()?;
                frame.params.get(at as usize..(at + bytes) as usize).map(<[u8]>::to_vec)
            }
            Passed::Value(source) => Some(self.value(thread, source).to_le_bytes().to_vec()),
            Passed::Register(_) => None,
        }
    }

    fn enter(&mut self, thread: usize, index: u32, values: &[Vec<u8>]) -> Result<(), FaultKind> {
        let function = &self.program.functions[index as usize];
        let t = &mut self.threads[thread];
        if t.frames.len() > self.call_depth {
            return Err(FaultKind::CallDepth(self.call_depth));
        }
        let local = t.local.len();
        if local + function.local_bytes as usize > LOCAL_BYTES_MAX {
            return Err(FaultKind::Operand(format!("more than {LOCAL_BYTES_MAX} bytes of local memory")));
        }
        t.local.resize(local + function.local_bytes as usize, 0xA5);
        let mut params = vec![0u8; function.params_bytes as usize];
        let caller_registers = t.base;
        t.base = t.registers.len();
        t.registers.resize(t.base + function.registers, 0);
        for (formal, value) in function.params.iter().zip(values) {
            match *formal {
                Formal::Register(register) => {
                    t.registers[t.base + register.slot as usize] = crate::alu::low(register.bits, word(value))
                }
                Formal::Memory(at, bytes) => {
                    let count = value.len().min(bytes as usize);
                    params[at as usize..at as usize + count].copy_from_slice(&value[..count]);
                }
            }
        }
        t.frames.push(Frame { params, caller: (t.function, t.at), caller_registers, local });
        (t.function, t.at) = (index, 0);
        self.clear_carry(thread);
        Ok(())
    }

    /// Returns to the caller; a return from the kernel ends the thread.
    pub(crate) fn return_from(&mut self, memory: &mut Memory, thread: usize) -> Result<(), FaultKind> {
        if self.threads[thread].frames.len() == 1 {
            return self.exit(memory, thread);
        }
        let function = &self.program.functions[self.threads[thread].function as usize];
        let t = &mut self.threads[thread];
        let Some(frame) = t.frames.pop() else { return Ok(()) };
        let values: Vec<Vec<u8>> = function
            .returns
            .iter()
            .map(|formal| match *formal {
                Formal::Register(register) => t.registers[t.base + register.slot as usize].to_le_bytes().to_vec(),
                Formal::Memory(at, bytes) => frame.params[at as usize..(at + bytes) as usize].to_vec(),
            })
            .collect();
        t.local.truncate(frame.local);
        t.registers.truncate(t.base);
        t.base = frame.caller_registers;
        (t.function, t.at) = frame.caller;
        let call = &self.program.functions[t.function as usize].code[t.at as usize];
        if let Op::Call { returns, .. } = &call.op {
            for (place, value) in returns.iter().zip(&values) {
                match place {
                    Passed::Register(register) => self.set(thread, Some(*register), word(value)),
                    Passed::Param(at, bytes) => {
                        self.write_param(thread, *at, &value[..value.len().min(*bytes as usize)])
                    }
                    Passed::Value(_) => {}
                }
            }
        }
        self.threads[thread].at += 1;
        Ok(())
    }
}

fn missing_argument() -> FaultKind {
    FaultKind::Operand("an argument of the call has no value".into())
}

/// Up to eight little-endian bytes as a number.
fn word(bytes: &[u8]) -> u64 {
    let mut all = [0; 8];
    let count = bytes.len().min(8);
    all[..count].copy_from_slice(&bytes[..count]);
    u64::from_le_bytes(all)
}
