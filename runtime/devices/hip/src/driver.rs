//! The HIP runtime as a driver of a device on streams.

use crate::print;
use atoll_device::{DeviceError, DeviceInfo, Fault, FaultKind, LaunchReport, ModuleImage};
use atoll_device_streams::{Driver, DriverError, LaunchShape, RecordAddresses, TrapRecord, device_error};
use atoll_hip::{
    CodeObject, Context, DeviceMemory, Event, HipError, HostMemory, HostWords, Module, Stream, UnitMask, status,
};
use atoll_kgraph::{KernelFacts, amd_abi};
use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// Number of the kernel attribute that is the static LDS in bytes.
const STATIC_LDS: i32 = 1;

/// AMD's HIP runtime.
#[derive(Debug)]
pub struct Hip;

/// An error of the HIP runtime.
#[derive(Clone, Debug)]
pub struct Failure(pub(crate) HipError);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl DriverError for Failure {
    fn is_device_lost(&self) -> bool {
        self.0.is_device_lost()
    }

    fn is_not_supported(&self) -> bool {
        self.0.code == status::NOT_SUPPORTED
    }

    fn fault(&self) -> String {
        let HipError { name, code, .. } = &self.0;
        let what = match *code {
            status::ILLEGAL_ADDRESS => "a kernel accessed memory that is not mapped for it",
            status::ASSERT => "an assertion of a kernel failed",
            status::CONTEXT_IS_DESTROYED => "the GPU was reset",
            status::LAUNCH_TIME_OUT => "a kernel ran longer than the runtime's limit",
            _ => "a kernel faulted",
        };
        format!("{what} ({name}, {code}); this process's use of the GPU ended with it")
    }
}

/// A kernel that is loaded.
#[derive(Clone, Debug)]
pub struct Kernel {
    handle: atoll_hip::Kernel,
    /// Bytes between its static LDS and the dynamic one, which begins at an aligned offset.
    gap_bytes: u32,
    /// Whether it may print: a kernel of its code object does.
    prints: bool,
}

impl Driver for Hip {
    type Error = Failure;
    type Context = Context;
    type Units = UnitMask;
    type Stream = Stream;
    type Event = Event;
    type Memory = DeviceMemory;
    type Words = HostWords;
    type Registered = HostMemory;
    type Kernel = Kernel;

    fn load(context: &Arc<Context>, _info: &DeviceInfo, image: ModuleImage<'_>) -> Result<Vec<Kernel>, DeviceError> {
        let code = suitable(context, image)?;
        let module = Module::load(context, image.code).map_err(|error| refused(context, image, code, error))?;
        let prints = module.variable(amd_abi::PRINTS_SYMBOL).is_ok();
        let kernel = |facts: &KernelFacts| {
            let found = module.kernel(&facts.name).and_then(|handle| {
                let fixed = u32::try_from(handle.attribute(STATIC_LDS)?).unwrap_or(0);
                let gap_bytes = fixed.next_multiple_of(amd_abi::DYNAMIC_SHARED_ALIGN) - fixed;
                Ok(Kernel { handle, gap_bytes, prints })
            });
            found.map_err(|error| DeviceError::BadModule(format!("kernel `{}`: {error}", facts.name)))
        };
        image.kernels.iter().map(kernel).collect()
    }

    fn occupancy(kernel: &Kernel, threads: u32, shared_bytes: u32) -> Option<u32> {
        kernel.handle.occupancy(threads, kernel.dynamic_lds(shared_bytes)).ok()
    }

    fn launch(
        kernel: &Kernel,
        stream: &Stream,
        shape: LaunchShape,
        params: &[u8],
        records: RecordAddresses,
    ) -> Result<(), Failure> {
        let LaunchShape { grid, block, shared_bytes } = shape;
        let with = atoll_hip::LaunchShape { grid, block, shared_bytes: kernel.dynamic_lds(shared_bytes) };
        let RecordAddresses { trap, print } = records;
        let kernarg = amd_abi::kernarg(params, grid, block, shared_bytes, amd_abi::Records { trap, print });
        // SAFETY: Atoll's compiler writes the size of the parameters and the code object together,
        // and the segment has the size that the code declares for them. A forged bundle can break
        // this, as it can by its machine code; it harms this process, which serves its device only.
        unsafe { kernel.handle.launch_with(stream, with, &kernarg) }.map_err(Failure)
    }

    fn trap(record: TrapRecord, facts: &KernelFacts) -> Option<Fault> {
        fault(record, facts)
    }

    fn print_buffer(context: &Arc<Context>, kernel: &Kernel) -> Result<Option<HostWords>, Failure> {
        kernel.prints.then(|| print::buffer(context)).transpose().map_err(Failure)
    }

    fn take_printed(buffer: &HostWords, facts: &KernelFacts, report: &mut LaunchReport) {
        print::take(buffer, &facts.name, report);
    }

    fn units(_context: &Arc<Context>, units: &[u32]) -> Result<UnitMask, DeviceError> {
        let none = || DeviceError::Lanes("a lane needs at least one compute unit".to_owned());
        UnitMask::new(units.iter().copied()).ok_or_else(none)
    }

    fn stream(context: &Arc<Context>, units: Option<&UnitMask>, priority: i32) -> Result<Stream, Failure> {
        match units {
            Some(mask) => Stream::on_units(context, mask),
            None => Stream::new(context, priority),
        }
        .map_err(Failure)
    }

    fn synchronize(stream: &Stream) -> Result<(), Failure> {
        stream.synchronize().map_err(Failure)
    }

    fn write(stream: &Stream, to: &DeviceMemory, at: u64, bytes: &[u8]) -> Result<(), Failure> {
        stream.write(to, at, bytes).map_err(Failure)
    }

    fn read(stream: &Stream, from: &DeviceMemory, at: u64, bytes: &mut [u8]) -> Result<(), Failure> {
        stream.read(from, at, bytes).map_err(Failure)
    }

    fn write_from(
        stream: &Stream,
        to: &DeviceMemory,
        at: u64,
        from: &HostMemory,
        from_at: u64,
        bytes: u64,
    ) -> Result<(), Failure> {
        stream.write_from(to, at, from, from_at, bytes).map_err(Failure)
    }

    fn read_into(
        stream: &Stream,
        from: &DeviceMemory,
        at: u64,
        to: &HostMemory,
        to_at: u64,
        bytes: u64,
    ) -> Result<(), Failure> {
        stream.read_into(from, at, to, to_at, bytes).map_err(Failure)
    }

    fn copy(stream: &Stream, memory: &DeviceMemory, from: u64, to: u64, bytes: u64) -> Result<(), Failure> {
        stream.copy(memory, from, to, bytes).map_err(Failure)
    }

    fn fill(stream: &Stream, memory: &DeviceMemory, at: u64, value: u8, bytes: u64) -> Result<(), Failure> {
        stream.fill(memory, at, value, bytes).map_err(Failure)
    }

    fn write_word(stream: &Stream, memory: &DeviceMemory, at: u64, value: u32) -> Result<(), Failure> {
        stream.write_word(memory, at, value).map_err(Failure)
    }

    fn fill_word(stream: &Stream, memory: &DeviceMemory, at: u64, value: u32) -> Result<(), Failure> {
        stream.fill_word(memory, at, value).map_err(Failure)
    }

    fn event(context: &Arc<Context>) -> Result<Event, Failure> {
        Event::new(context).map_err(Failure)
    }

    fn record(event: &Event, stream: &Stream) -> Result<(), Failure> {
        event.record(stream).map_err(Failure)
    }

    fn is_passed(event: &Event) -> Result<bool, Failure> {
        event.is_passed().map_err(Failure)
    }

    fn nanos_since(event: &Event, earlier: &Event) -> Result<u64, Failure> {
        event.nanos_since(earlier).map_err(Failure)
    }

    fn address(memory: &DeviceMemory) -> u64 {
        memory.address()
    }

    fn bytes(memory: &DeviceMemory) -> u64 {
        memory.bytes()
    }

    fn share(memory: &DeviceMemory) -> Option<Vec<u8>> {
        memory.share().ok().map(|handle| handle.bytes.to_vec())
    }

    fn words(context: &Arc<Context>, count: usize) -> Result<HostWords, Failure> {
        HostWords::new(context, count).map_err(Failure)
    }

    fn word(words: &HostWords, index: usize) -> &AtomicU32 {
        words.word(index)
    }

    fn words_address(words: &HostWords) -> u64 {
        words.address()
    }

    unsafe fn register(context: &Arc<Context>, memory: *mut c_void, bytes: u64) -> Result<HostMemory, Failure> {
        // SAFETY: the caller guarantees the same.
        unsafe { HostMemory::register(context, memory, bytes) }.map_err(Failure)
    }

    fn registered_address(memory: &HostMemory) -> u64 {
        memory.address()
    }

    fn reset_blocks(context: &Context) -> Result<(), Failure> {
        context.reset_waves().map_err(Failure)
    }
}

impl Kernel {
    /// The dynamic LDS to request so that `shared_bytes` bytes lie behind the gap.
    fn dynamic_lds(&self, shared_bytes: u32) -> u32 {
        if shared_bytes == 0 { 0 } else { shared_bytes.saturating_add(self.gap_bytes) }
    }
}

/// The fault that a trap record describes.
fn fault(record: TrapRecord, facts: &KernelFacts) -> Option<Fault> {
    let word = |offset: u32| record[offset as usize / 4];
    let kind = match (word(amd_abi::TRAP_STATE), word(amd_abi::TRAP_CODE)) {
        (0, _) => return None,
        // The wave was killed while it wrote the record.
        (state, _) if state != amd_abi::TRAP_COMPLETE => {
            return Some(Fault::of_kernel(FaultKind::Trap, &facts.name));
        }
        (_, code) if code == amd_abi::TrapCode::Assert as u32 => FaultKind::Assert,
        (_, code) if code == amd_abi::TrapCode::OutOfBounds as u32 => FaultKind::OutOfBounds,
        _ => FaultKind::Trap,
    };
    let thread = word(amd_abi::TRAP_THREAD);
    let [width, height, _] = facts.block.map(|count| count.max(1));
    Some(Fault {
        block: Some([0, 4, 8].map(|axis| word(amd_abi::TRAP_BLOCK + axis))),
        thread: Some([thread % width, thread / width % height, thread / width / height]),
        line: Some(word(amd_abi::TRAP_LINE)).filter(|line| *line > 0),
        ..Fault::of_kernel(kind, &facts.name)
    })
}

/// Checks that an image is whole and has the features of the GPU: some releases of the library load
/// code with other ones.
fn suitable(context: &Context, image: ModuleImage<'_>) -> Result<CodeObject, DeviceError> {
    let damaged = |damage| {
        let remedy = "compile the model again, or copy its bundle again";
        DeviceError::BadModule(format!("the code for {} is damaged: {damage}; {remedy}", image.target))
    };
    let code = CodeObject::read(image.code).map_err(damaged)?;
    let architecture = context.gpu().architecture().map_err(|error| device_error(&Failure(error)))?;
    code.check_features(&architecture).map_err(|mismatch| {
        DeviceError::BadModule(format!("{mismatch}; compile it with Atoll, whose code runs with either setting"))
    })?;
    Ok(code)
}

/// Explains why the library refused code, and what to do.
fn refused(context: &Context, image: ModuleImage<'_>, code: CodeObject, error: HipError) -> DeviceError {
    if error.is_device_lost() {
        return DeviceError::Lost(Failure(error).fault());
    }
    DeviceError::BadModule(match error.code {
        // Up to ROCm 6.0 the last of these stands for every reason.
        status::INVALID_IMAGE
        | status::INVALID_VALUE
        | status::NO_BINARY_FOR_GPU
        | status::SHARED_OBJECT_INIT_FAILED => match too_new(context, code) {
            Some(why) => format!("{why} ({error})"),
            None => format!("the library cannot run code for {} on this GPU ({error})", image.target),
        },
        status::OUT_OF_MEMORY => format!("the GPU has no memory left for code ({error}); set a lower memory limit"),
        _ => error.to_string(),
    })
}

/// Explains that the library is older than the version of the code.
fn too_new(context: &Context, code: CodeObject) -> Option<String> {
    let version = context.gpu().driver().version().ok()?;
    let installed = (version / 10_000_000, version / 100_000 % 100);
    let since = code.rocm_since().filter(|since| installed < *since)?;
    Some(format!(
        "ROCm {}.{} is older than the code, a code object of version {}: install ROCm {}.{} or later, or compile the \
         model again: Atoll compiles for the oldest release that knows the GPU",
        installed.0, installed.1, code.version, since.0, since.1
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trap_is_told_with_its_place() {
        let facts = KernelFacts { name: "k".to_owned(), block: [16, 4, 2], ..KernelFacts::default() };
        assert_eq!(fault([0; 8], &facts), None);
        let found = fault([amd_abi::TRAP_COMPLETE, 3, 77, 16 * 4 + 16 + 5, 1, 2, 3, 0], &facts).expect("a fault");
        assert_eq!(
            (found.kind, found.block, found.thread, found.line),
            (FaultKind::OutOfBounds, Some([1, 2, 3]), Some([5, 1, 1]), Some(77))
        );
        let cut = fault([amd_abi::TRAP_WRITING, 0, 0, 0, 0, 0, 0, 0], &facts).expect("a fault");
        assert_eq!((cut.kind, cut.block), (FaultKind::Trap, None));
    }
}
