//! The CUDA driver, loaded when the program runs: nothing of CUDA is needed to build.
//!
//! This is the only file with `unsafe` in it. Above [`Driver`] there are owning handles that keep it alive, so a caller cannot use what was destroyed.

use libloading::{Library, Symbol};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::rc::Rc;
use std::sync::atomic::AtomicU32;

/// What the driver calls a pointer to device memory.
pub(crate) type DevicePtr = u64;
type Handle = *mut c_void;
type Status = c_int;

/// Names under which the driver is installed.
const LIBRARY_NAMES: [&str; 2] = if cfg!(windows) { ["nvcuda.dll", "nvcuda64.dll"] } else { ["libcuda.so.1", "libcuda.so"] };

/// A driver call that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {name} ({code})")]
pub(crate) struct CudaError {
    /// The call.
    pub(crate) call: &'static str,
    /// The driver's number.
    pub(crate) code: i32,
    /// The driver's name of it.
    pub(crate) name: String,
}

/// Why there is no GPU to work with.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    /// No driver.
    #[error("no NVIDIA driver here: {0} cannot be loaded")]
    NoLibrary(&'static str),
    /// A driver too old for us.
    #[error("the NVIDIA driver lacks `{0}`; update it")]
    NoSymbol(&'static str),
    /// The driver found no device, or refused it.
    #[error("the NVIDIA driver is there but gives no device: {0}")]
    Refused(#[from] CudaError),
}

/// Declares the driver's functions: field, exported names in order of preference, type. One table, from which both the struct and the loading follow.
macro_rules! driver_functions {
    ($($field:ident = $($symbol:literal)|+ : fn($($argument:ty),*);)+) => {
        /// The functions of the driver that the probes use.
        struct Functions {
            $($field: unsafe extern "C" fn($($argument),*) -> Status,)+
        }

        impl Functions {
            fn load(library: &Library) -> Result<Functions, OpenError> {
                $(
                    let mut $field = None;
                    for name in [$($symbol),+] {
                        // SAFETY: the type is that of the function in the driver's header `cuda.h` under this name; the pointer is kept no longer
                        // than the library, which `Driver` holds beside it.
                        let symbol: Result<Symbol<'_, unsafe extern "C" fn($($argument),*) -> Status>, _> = unsafe { library.get(name) };
                        $field = $field.or(symbol.ok().map(|s| *s));
                    }
                )+
                Ok(Functions { $($field: $field.ok_or(OpenError::NoSymbol([$($symbol),+][0]))?,)+ })
            }
        }
    };
}

driver_functions! {
    init = "cuInit": fn(c_uint);
    error_name = "cuGetErrorName": fn(Status, *mut *const c_char);
    driver_version = "cuDriverGetVersion": fn(*mut c_int);
    device_get = "cuDeviceGet": fn(*mut c_int, c_int);
    device_name = "cuDeviceGetName": fn(*mut c_char, c_int, c_int);
    device_attribute = "cuDeviceGetAttribute": fn(*mut c_int, c_int, c_int);
    context_retain = "cuDevicePrimaryCtxRetain": fn(*mut Handle, c_int);
    context_release = "cuDevicePrimaryCtxRelease_v2" | "cuDevicePrimaryCtxRelease": fn(c_int);
    context_reset = "cuDevicePrimaryCtxReset_v2" | "cuDevicePrimaryCtxReset": fn(c_int);
    context_set = "cuCtxSetCurrent": fn(Handle);
    context_sync = "cuCtxSynchronize": fn();
    priority_range = "cuCtxGetStreamPriorityRange": fn(*mut c_int, *mut c_int);
    module_load = "cuModuleLoadData": fn(*mut Handle, *const c_void);
    module_unload = "cuModuleUnload": fn(Handle);
    module_function = "cuModuleGetFunction": fn(*mut Handle, Handle, *const c_char);
    memory_alloc = "cuMemAlloc_v2": fn(*mut DevicePtr, usize);
    memory_free = "cuMemFree_v2": fn(DevicePtr);
    host_alloc = "cuMemHostAlloc": fn(*mut *mut c_void, usize, c_uint);
    host_free = "cuMemFreeHost": fn(*mut c_void);
    host_device_pointer = "cuMemHostGetDevicePointer_v2": fn(*mut DevicePtr, *mut c_void, c_uint);
    fill_words = "cuMemsetD32_v2": fn(DevicePtr, c_uint, usize);
    fill_words_async = "cuMemsetD32Async": fn(DevicePtr, c_uint, usize, Handle);
    copy_to_host = "cuMemcpyDtoH_v2": fn(*mut c_void, DevicePtr, usize);
    copy_to_device_async = "cuMemcpyHtoDAsync_v2": fn(DevicePtr, *const c_void, usize, Handle);
    write_value = "cuStreamWriteValue32_v2" | "cuStreamWriteValue32": fn(Handle, DevicePtr, c_uint, c_uint);
    stream_create = "cuStreamCreateWithPriority": fn(*mut Handle, c_uint, c_int);
    stream_destroy = "cuStreamDestroy_v2": fn(Handle);
    stream_sync = "cuStreamSynchronize": fn(Handle);
    event_create = "cuEventCreate": fn(*mut Handle, c_uint);
    event_destroy = "cuEventDestroy_v2": fn(Handle);
    event_record = "cuEventRecord": fn(Handle, Handle);
    event_elapsed = "cuEventElapsedTime": fn(*mut f32, Handle, Handle);
    launch = "cuLaunchKernel": fn(Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void);
}

/// `CU_STREAM_NON_BLOCKING`: no implicit order with the default stream.
const STREAM_NON_BLOCKING: c_uint = 1;
/// `CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP`.
const HOST_ALLOC_MAPPED: c_uint = 3;

/// Device attributes by their numbers in `cuda.h`.
#[derive(Clone, Copy, Debug)]
#[repr(i32)]
pub(crate) enum Attribute {
    /// `CU_DEVICE_ATTRIBUTE_CLOCK_RATE`, kHz.
    ClockKilohertz = 13,
    /// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`.
    ComputeUnits = 16,
    /// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR`.
    ComputeMajor = 75,
    /// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR`.
    ComputeMinor = 76,
}

/// The loaded driver with one device's primary context current on this thread.
pub(crate) struct Driver {
    functions: Functions,
    device: c_int,
    _library: Library,
}

impl Driver {
    /// Loads the driver and makes the primary context of a device current. To be called before the program starts any thread.
    pub(crate) fn open(device_index: u32) -> Result<Rc<Driver>, OpenError> {
        // A kernel that is loaded when it is first launched waits for the kernels that run, and the probes have kernels that wait for later ones.
        // SAFETY: no other thread is there to read the environment meanwhile: `main` calls this before it starts any.
        unsafe { std::env::set_var("CUDA_MODULE_LOADING", "EAGER") };
        let library = load_library()?;
        let functions = Functions::load(&library)?;
        let mut driver = Driver { functions, device: 0, _library: library };
        let index = c_int::try_from(device_index).unwrap_or(c_int::MAX);
        // SAFETY: initialises the library; takes no pointers.
        driver.check("cuInit", unsafe { (driver.functions.init)(0) })?;
        let mut device = 0;
        // SAFETY: writes one int to the address given.
        driver.check("cuDeviceGet", unsafe { (driver.functions.device_get)(&mut device, index) })?;
        driver.device = device;
        driver.enter_context()?;
        Ok(Rc::new(driver))
    }

    /// Retains the primary context and makes it current. It stays retained until the process ends: the probes end with it.
    pub(crate) fn enter_context(&self) -> Result<(), CudaError> {
        let mut context = ptr::null_mut();
        // SAFETY: writes one handle to the address given.
        self.check("cuDevicePrimaryCtxRetain", unsafe { (self.functions.context_retain)(&mut context, self.device) })?;
        // SAFETY: the handle is the one just returned.
        self.check("cuCtxSetCurrent", unsafe { (self.functions.context_set)(context) })
    }

    /// Gives the primary context back once.
    pub(crate) fn leave_context(&self) -> Result<(), CudaError> {
        // SAFETY: takes a device number.
        self.check("cuDevicePrimaryCtxRelease", unsafe { (self.functions.context_release)(self.device) })
    }

    /// Destroys everything in the primary context; handles made before are dead, and their release then fails, which is not looked at.
    pub(crate) fn reset_context(&self) -> Result<(), CudaError> {
        // SAFETY: takes a device number; handles into the context are only passed back to the driver, which checks them.
        self.check("cuDevicePrimaryCtxReset", unsafe { (self.functions.context_reset)(self.device) })
    }

    /// Waits for everything.
    pub(crate) fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: takes no arguments.
        self.check("cuCtxSynchronize", unsafe { (self.functions.context_sync)() })
    }

    /// The version of CUDA the driver speaks: 12040 is 12.4.
    pub(crate) fn version(&self) -> Result<i32, CudaError> {
        let mut version = 0;
        // SAFETY: writes one int to the address given.
        self.check("cuDriverGetVersion", unsafe { (self.functions.driver_version)(&mut version) })?;
        Ok(version)
    }

    /// The device's name.
    pub(crate) fn device_name(&self) -> Result<String, CudaError> {
        let mut name = [0 as c_char; 256];
        // SAFETY: writes at most 255 bytes and a zero into an array of 256.
        self.check("cuDeviceGetName", unsafe { (self.functions.device_name)(name.as_mut_ptr(), 255, self.device) })?;
        // SAFETY: the array is zero-terminated: its last byte was zero and is not written.
        Ok(unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned())
    }

    /// A number about the device.
    pub(crate) fn attribute(&self, attribute: Attribute) -> Result<i32, CudaError> {
        let mut value = 0;
        // SAFETY: writes one int to the address given.
        self.check("cuDeviceGetAttribute", unsafe { (self.functions.device_attribute)(&mut value, attribute as c_int, self.device) })?;
        Ok(value)
    }

    /// The number of the highest stream priority; 0 is the lowest.
    pub(crate) fn highest_priority(&self) -> Result<i32, CudaError> {
        let (mut lowest, mut highest) = (0, 0);
        // SAFETY: writes two ints to the addresses given.
        self.check("cuCtxGetStreamPriorityRange", unsafe { (self.functions.priority_range)(&mut lowest, &mut highest) })?;
        Ok(highest)
    }

    fn check(&self, call: &'static str, code: Status) -> Result<(), CudaError> {
        if code == 0 {
            return Ok(());
        }
        let mut name: *const c_char = ptr::null();
        // SAFETY: writes the address of a static string, or null for an unknown code.
        let status = unsafe { (self.functions.error_name)(code, &mut name) };
        let name = match (status, name.is_null()) {
            // SAFETY: the driver gave the address of a static zero-terminated string.
            (0, false) => unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned(),
            _ => "unknown error".to_owned(),
        };
        Err(CudaError { call, code, name })
    }
}

fn load_library() -> Result<Library, OpenError> {
    for name in LIBRARY_NAMES {
        // SAFETY: the driver's library is meant to be loaded like this; its initialisers have no preconditions.
        if let Ok(library) = unsafe { Library::new(name) } {
            return Ok(library);
        }
    }
    Err(OpenError::NoLibrary(LIBRARY_NAMES[0]))
}

/// A loaded module.
pub(crate) struct Module {
    driver: Rc<Driver>,
    handle: Handle,
}

impl Module {
    /// Has the driver assemble PTX text.
    pub(crate) fn load(driver: &Rc<Driver>, ptx: &str) -> Result<Module, CudaError> {
        let text = format!("{ptx}\0");
        let mut handle = ptr::null_mut();
        // SAFETY: the text is zero-terminated and read during the call only.
        driver.check("cuModuleLoadData", unsafe { (driver.functions.module_load)(&mut handle, text.as_ptr().cast()) })?;
        Ok(Module { driver: driver.clone(), handle })
    }

    /// A kernel of it.
    pub(crate) fn kernel(&self, name: &str) -> Result<Kernel<'_>, CudaError> {
        let text = format!("{name}\0");
        let mut handle = ptr::null_mut();
        let function = self.driver.functions.module_function;
        // SAFETY: the name is zero-terminated and read during the call only; the module is loaded.
        self.driver.check("cuModuleGetFunction", unsafe { function(&mut handle, self.handle, text.as_ptr().cast()) })?;
        Ok(Kernel { module: self, handle })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: the handle is ours and not used again. In a broken context the call fails, and there is nothing to be done about it.
        unsafe { (self.driver.functions.module_unload)(self.handle) };
    }
}

/// A kernel of a loaded module.
pub(crate) struct Kernel<'m> {
    module: &'m Module,
    handle: Handle,
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arg {
    /// A `.u32` parameter.
    U32(u32),
    /// A `.u64` parameter.
    U64(u64),
}

impl Kernel<'_> {
    /// Launches a one-dimensional grid. The arguments must be those of the kernel, which is one of the files of `kernels/`: these touch no memory but
    /// what their arguments name.
    pub(crate) fn launch(&self, stream: &Stream, blocks: u32, threads: u32, args: &[Arg]) -> Result<(), CudaError> {
        let mut values: Vec<u64> = args
            .iter()
            .map(|arg| match *arg {
                // The driver reads as many bytes as the parameter has; the low ones come first on every host CUDA runs on.
                Arg::U32(value) => u64::from(value).to_le(),
                Arg::U64(value) => value.to_le(),
            })
            .collect();
        let mut params: Vec<*mut c_void> = values.iter_mut().map(|value| ptr::from_mut(value).cast()).collect();
        let driver = &self.module.driver;
        // SAFETY: kernel and stream are alive; each parameter points to eight bytes, no parameter of ours is larger, and the driver copies
        // them before it returns.
        let status = unsafe {
            (driver.functions.launch)(self.handle, blocks, 1, 1, threads, 1, 1, 0, stream.handle, params.as_mut_ptr(), ptr::null_mut())
        };
        driver.check("cuLaunchKernel", status)
    }
}

/// A stream.
pub(crate) struct Stream {
    driver: Rc<Driver>,
    handle: Handle,
}

impl Stream {
    /// A stream without order towards others; a lower number is a higher priority.
    pub(crate) fn new(driver: &Rc<Driver>, priority: i32) -> Result<Stream, CudaError> {
        let mut handle = ptr::null_mut();
        // SAFETY: writes one handle to the address given.
        let status = unsafe { (driver.functions.stream_create)(&mut handle, STREAM_NON_BLOCKING, priority) };
        driver.check("cuStreamCreateWithPriority", status)?;
        Ok(Stream { driver: driver.clone(), handle })
    }

    /// Waits for everything in it.
    pub(crate) fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the stream is alive.
        self.driver.check("cuStreamSynchronize", unsafe { (self.driver.functions.stream_sync)(self.handle) })
    }

    /// Writes a word by a stream memory operation.
    pub(crate) fn write_value(&self, word: &DeviceWords, value: u32) -> Result<(), CudaError> {
        // SAFETY: stream and memory are alive; flags 0 orders the write behind what is in the stream.
        self.driver.check("cuStreamWriteValue32", unsafe { (self.driver.functions.write_value)(self.handle, word.address, value, 0) })
    }

    /// Sets the first word by an asynchronous fill.
    pub(crate) fn fill_word(&self, word: &DeviceWords, value: u32) -> Result<(), CudaError> {
        // SAFETY: stream and memory are alive; the memory has a word at least.
        self.driver.check("cuMemsetD32Async", unsafe { (self.driver.functions.fill_words_async)(word.address, value, 1, self.handle) })
    }

    /// Copies the first word of pinned host memory to the first word on the device.
    pub(crate) fn copy_word(&self, to: &DeviceWords, from: &HostWords) -> Result<(), CudaError> {
        // SAFETY: both have a word at least, and every caller keeps both until the stream was synchronised: they live as long as the probe,
        // and freeing pinned or device memory waits for the copies that use it.
        let status = unsafe { (self.driver.functions.copy_to_device_async)(to.address, from.memory.cast(), 4, self.handle) };
        self.driver.check("cuMemcpyHtoDAsync", status)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the handle is ours and not used again; work in the stream still completes.
        unsafe { (self.driver.functions.stream_destroy)(self.handle) };
    }
}

/// A timed event.
pub(crate) struct Event {
    driver: Rc<Driver>,
    handle: Handle,
}

impl Event {
    /// An event.
    pub(crate) fn new(driver: &Rc<Driver>) -> Result<Event, CudaError> {
        let mut handle = ptr::null_mut();
        // SAFETY: writes one handle to the address given.
        driver.check("cuEventCreate", unsafe { (driver.functions.event_create)(&mut handle, 0) })?;
        Ok(Event { driver: driver.clone(), handle })
    }

    /// Marks the place in a stream.
    pub(crate) fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both are alive.
        self.driver.check("cuEventRecord", unsafe { (self.driver.functions.event_record)(self.handle, stream.handle) })
    }

    /// Microseconds from an earlier event to this one; both must have been passed.
    pub(crate) fn micros_since(&self, earlier: &Event) -> Result<f64, CudaError> {
        let mut milliseconds = 0.0_f32;
        // SAFETY: writes one float to the address given; both events are alive.
        let status = unsafe { (self.driver.functions.event_elapsed)(&mut milliseconds, earlier.handle, self.handle) };
        self.driver.check("cuEventElapsedTime", status)?;
        Ok(f64::from(milliseconds) * 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the handle is ours and not used again.
        unsafe { (self.driver.functions.event_destroy)(self.handle) };
    }
}

/// Words in device memory.
pub(crate) struct DeviceWords {
    driver: Rc<Driver>,
    address: DevicePtr,
    count: usize,
}

impl DeviceWords {
    /// At least one word, all zero.
    pub(crate) fn new(driver: &Rc<Driver>, count: usize) -> Result<DeviceWords, CudaError> {
        let count = count.max(1);
        let mut address = 0;
        // SAFETY: writes one address to the address given.
        driver.check("cuMemAlloc", unsafe { (driver.functions.memory_alloc)(&mut address, count * 4) })?;
        let words = DeviceWords { driver: driver.clone(), address, count };
        words.fill(0)?;
        Ok(words)
    }

    /// The address as kernels see it.
    pub(crate) fn address(&self) -> DevicePtr {
        self.address
    }

    /// Sets all words.
    pub(crate) fn fill(&self, value: u32) -> Result<(), CudaError> {
        // SAFETY: the memory is ours and has that many words.
        self.driver.check("cuMemsetD32", unsafe { (self.driver.functions.fill_words)(self.address, value, self.count) })?;
        // The fill runs on the default stream, which our streams do not wait for.
        self.driver.synchronize()
    }

    /// Reads all words.
    pub(crate) fn read(&self) -> Result<Vec<u32>, CudaError> {
        let mut words = vec![0_u32; self.count];
        // SAFETY: both sides have that many words; the call returns when the copy is done.
        let status = unsafe { (self.driver.functions.copy_to_host)(words.as_mut_ptr().cast(), self.address, self.count * 4) };
        self.driver.check("cuMemcpyDtoH", status)?;
        Ok(words)
    }
}

impl Drop for DeviceWords {
    fn drop(&mut self) {
        // SAFETY: the memory is ours and not used again; the call waits for kernels that use it.
        unsafe { (self.driver.functions.memory_free)(self.address) };
    }
}

/// Words in pinned host memory that the device can read and write.
pub(crate) struct HostWords {
    driver: Rc<Driver>,
    memory: *mut AtomicU32,
    address: DevicePtr,
    count: usize,
}

impl HostWords {
    /// At least one word, all zero.
    pub(crate) fn new(driver: &Rc<Driver>, count: usize) -> Result<HostWords, CudaError> {
        let count = count.max(1);
        let mut memory: *mut c_void = ptr::null_mut();
        // SAFETY: writes one address to the address given.
        driver.check("cuMemHostAlloc", unsafe { (driver.functions.host_alloc)(&mut memory, count * 4, HOST_ALLOC_MAPPED) })?;
        // SAFETY: the driver gave us that many bytes, page-aligned; nobody else has them yet.
        unsafe { ptr::write_bytes(memory.cast::<u8>(), 0, count * 4) };
        let mut words = HostWords { driver: driver.clone(), memory: memory.cast(), address: 0, count };
        // SAFETY: the memory was allocated as mapped; writes one address to the address given.
        let status = unsafe { (driver.functions.host_device_pointer)(&mut words.address, memory, 0) };
        driver.check("cuMemHostGetDevicePointer", status)?;
        Ok(words)
    }

    /// The address as kernels see it.
    pub(crate) fn address(&self) -> DevicePtr {
        self.address
    }

    /// A word as the host sees it.
    pub(crate) fn word(&self, index: usize) -> &AtomicU32 {
        assert!(index < self.count, "word {index} of {}", self.count);
        // SAFETY: the index is within memory that lives as long as `self` and is only touched by atomics here and by strong accesses of kernels.
        unsafe { &*self.memory.add(index) }
    }
}

impl Drop for HostWords {
    fn drop(&mut self) {
        // SAFETY: the memory is ours and not used again; the call waits for kernels that use it.
        unsafe { (self.driver.functions.host_free)(self.memory.cast()) };
    }
}
