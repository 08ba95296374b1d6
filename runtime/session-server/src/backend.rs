//! The backend of a session on the CUDA driver.

use crate::recording::{RecordingFile, Recordings};
use atoll_cuda::{
    Context, CudaError, DeviceMemory, DeviceRange, Driver, Element, Event, Gpu, Kernel, LaunchShape, Module, OpenError,
    Stream, Variable,
};
use atoll_session::{Backend, Code, DeviceFacts, KernelFacts, Launch, LoadFailure, Record, Span, limits};
use std::path::Path;
use std::sync::Arc;

/// The size of a session's memory is a multiple of this: the driver's page size of device memory,
/// in bytes.
const MEMORY_STEP: u64 = 2 << 20;

/// Opens a device of the installed driver, or of the driver in a file.
pub fn open(driver: Option<&Path>, ordinal: u32) -> Result<Gpu, OpenError> {
    let driver = driver.map_or_else(Driver::load, Driver::load_from)?;
    driver.gpu(ordinal)
}

/// A context for one session on a device, and the session's memory.
#[derive(Debug)]
pub struct CudaBackend {
    /// Variables of modules that the session has looked up.
    variables: Vec<Variable>,
    default: Stream,
    memory: DeviceMemory,
    context: Arc<Context>,
    recording: Option<RecordingFile>,
}

impl CudaBackend {
    /// Creates the context, and memory of the wanted size in bytes, or half of the free memory
    /// without one. The memory is zeroed, so that it does not reveal data of earlier sessions.
    pub fn new(gpu: &Gpu, memory_bytes: Option<u64>) -> Result<CudaBackend, CudaError> {
        let context = gpu.create_context()?;
        let (free, _) = context.memory_bytes()?;
        let bytes = memory_bytes.unwrap_or(free / 2) / MEMORY_STEP * MEMORY_STEP;
        let memory = DeviceMemory::new(&context, bytes.max(MEMORY_STEP))?;
        let default = Stream::default_of(&context);
        let whole = DeviceRange::of_memory(&memory, 0, memory.bytes()).expect("all of the memory is inside it");
        default.fill_range(whole, Element::Byte(0))?;
        context.synchronize()?;
        Ok(CudaBackend { variables: Vec::new(), default, memory, context, recording: None })
    }

    /// Records the session's calls from now on.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub fn record_into(&mut self, recordings: &Arc<Recordings>) -> std::io::Result<()> {
        self.recording = Some(recordings.begin(self.memory())?);
        Ok(())
    }

    /// The session's memory.
    pub fn memory(&self) -> Span {
        Span { at: self.memory.address(), bytes: self.memory.bytes() }
    }

    /// Queries the facts about the device.
    pub fn facts(&self) -> Result<DeviceFacts, CudaError> {
        let gpu = self.context.gpu();
        Ok(DeviceFacts {
            name: gpu.name()?,
            uuid: gpu.uuid()?,
            pci_bus_id: gpu.pci_bus_id()?,
            driver: gpu.driver().version()?,
            priority: self.context.highest_priority()?,
            attributes: DeviceFacts::attribute_numbers().map(|number| gpu.attribute_number(number)).collect(),
        })
    }

    fn on<'a>(&'a self, stream: Option<&'a Stream>) -> &'a Stream {
        stream.unwrap_or(&self.default)
    }

    /// The range at an address: in the session's memory, or in a variable.
    fn range(&self, at: u64, bytes: u64) -> Result<DeviceRange<'_>, Code> {
        let wanted = Span { at, bytes };
        if self.memory().contains(wanted) {
            let offset = at - self.memory.address();
            return DeviceRange::of_memory(&self.memory, offset, bytes).map_err(|_| Code::INVALID_VALUE);
        }
        let holds = |variable: &&Variable| Span { at: variable.address(), bytes: variable.bytes() }.contains(wanted);
        let variable = self.variables.iter().find(holds).ok_or(Code::INVALID_VALUE)?;
        DeviceRange::of_variable(variable, at - variable.address(), bytes).map_err(|_| Code::INVALID_VALUE)
    }
}

fn code(error: CudaError) -> Code {
    Code(error.code)
}

fn ready(is_ready: bool) -> Result<(), Code> {
    if is_ready { Ok(()) } else { Err(Code::NOT_READY) }
}

impl Backend for CudaBackend {
    type Stream = Stream;
    type Event = Event;
    type Module = Module;
    type Kernel = Kernel;

    fn stream(&mut self, flags: u32, priority: i32) -> Result<Stream, Code> {
        Stream::with_flags(&self.context, flags, priority).map_err(code)
    }

    fn event(&mut self, flags: u32) -> Result<Event, Code> {
        Event::with_flags(&self.context, flags).map_err(code)
    }

    fn load(&mut self, image: &[u8]) -> Result<Module, LoadFailure> {
        Module::load(&self.context, image).map_err(|error| LoadFailure { code: code(error.error), log: error.log })
    }

    fn observe(&mut self, record: &Record<'_>, result: Result<&[u8], Code>) {
        if let Some(recording) = &mut self.recording {
            recording.call(record, result);
        }
    }

    fn observe_part(&mut self, part: &[u8]) {
        if let Some(recording) = &mut self.recording {
            recording.part(part);
        }
    }

    fn unload(&mut self, module: &Module) {
        self.variables.retain(|variable| !variable.is_of(module));
    }

    fn kernel(&mut self, module: &Module, name: &str) -> Result<(Kernel, KernelFacts), Code> {
        let kernel = module.kernel(name).map_err(code)?;
        let mut facts = KernelFacts::default();
        for (number, value) in facts.attributes.iter_mut().enumerate() {
            // An attribute that an older driver does not know stays 0.
            *value = kernel.attribute(number as i32).unwrap_or(0);
        }
        while let Some((at, bytes)) = kernel.param(facts.params.len()).map_err(code)? {
            let number = |value: u64| u32::try_from(value).map_err(|_| Code::NOT_SUPPORTED);
            facts.params.push((number(at)?, number(bytes)?));
            if facts.params.len() > limits::PARAMS_MAX {
                return Err(Code::NOT_SUPPORTED);
            }
        }
        Ok((kernel, facts))
    }

    fn variable(&mut self, module: &Module, name: &str) -> Result<Span, Code> {
        let variable = module.variable(name).map_err(code)?;
        let span = Span { at: variable.address(), bytes: variable.bytes() };
        if !self.variables.iter().any(|known| known.address() == span.at) {
            self.variables.push(variable);
        }
        Ok(span)
    }

    fn set_attribute(&mut self, kernel: &Kernel, attribute: i32, value: i32) -> Result<(), Code> {
        kernel.set_attribute(attribute, value).map_err(code)
    }

    fn copy_in(&mut self, stream: Option<&Stream>, to: u64, bytes: &[u8]) -> Result<(), Code> {
        let to = self.range(to, bytes.len() as u64)?;
        self.on(stream).put(to, bytes).map_err(code)
    }

    fn copy_out(&mut self, stream: Option<&Stream>, from: u64, bytes: &mut [u8]) -> Result<(), Code> {
        let from = self.range(from, bytes.len() as u64)?;
        self.on(stream).get(from, bytes).map_err(code)
    }

    fn copy_within(&mut self, stream: Option<&Stream>, to: u64, from: u64, bytes: u64) -> Result<(), Code> {
        let (to, from) = (self.range(to, bytes)?, self.range(from, bytes)?);
        self.on(stream).move_range(to, from).map_err(code)
    }

    fn fill(&mut self, stream: Option<&Stream>, to: u64, value: u32, size: u32, count: u64) -> Result<(), Code> {
        let to = self.range(to, count.checked_mul(size.into()).ok_or(Code::INVALID_VALUE)?)?;
        let element = match size {
            1 => Element::Byte(value as u8),
            2 => Element::Half(value as u16),
            4 => Element::Word(value),
            _ => return Err(Code::INVALID_VALUE),
        };
        self.on(stream).fill_range(to, element).map_err(code)
    }

    fn launch(&mut self, stream: Option<&Stream>, kernel: &Kernel, launch: Launch<'_>) -> Result<(), Code> {
        let Launch { grid, block, shared_bytes, is_cooperative, params } = launch;
        let (stream, shape) = (self.on(stream), LaunchShape { grid, block, shared_bytes });
        let launched = if is_cooperative {
            kernel.launch_cooperative(stream, shape, params)
        } else {
            kernel.launch_with(stream, shape, params)
        };
        launched.map_err(code)
    }

    fn record(&mut self, event: &Event, stream: Option<&Stream>) -> Result<(), Code> {
        event.record(self.on(stream)).map_err(code)
    }

    fn wait(&mut self, stream: Option<&Stream>, event: &Event) -> Result<(), Code> {
        self.on(stream).wait_for(event).map_err(code)
    }

    fn synchronize(&mut self) -> Result<(), Code> {
        self.context.synchronize().map_err(code)
    }

    fn synchronize_stream(&mut self, stream: Option<&Stream>) -> Result<(), Code> {
        self.on(stream).synchronize().map_err(code)
    }

    fn synchronize_event(&mut self, event: &Event) -> Result<(), Code> {
        event.synchronize().map_err(code)
    }

    fn query_stream(&mut self, stream: Option<&Stream>) -> Result<(), Code> {
        ready(self.on(stream).is_idle().map_err(code)?)
    }

    fn query_event(&mut self, event: &Event) -> Result<(), Code> {
        ready(event.is_passed().map_err(code)?)
    }

    fn elapsed(&mut self, start: &Event, end: &Event) -> Result<f32, Code> {
        Ok(end.nanos_since(start).map_err(code)? as f32 / 1e6)
    }
}
