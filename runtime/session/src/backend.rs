//! The device of a session.

use crate::code::Code;
use crate::facts::KernelFacts;
use crate::ranges::Span;
use crate::record::Record;
use crate::report::StoredCounts;
use crate::stored::{KnownShape, Offer};
use std::sync::Arc;

/// A launch whose arguments have been checked.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block in bytes.
    pub shared_bytes: u32,
    /// Whether all blocks must run at once.
    pub is_cooperative: bool,
    /// The parameter block, of the size that the kernel declares.
    pub params: &'a [u8],
}

/// Why a module was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadFailure {
    /// The driver's error.
    pub code: Code,
    /// The compiler's log.
    pub log: String,
}

/// The device on which a session runs. A stream of `None` is the default stream. Addresses passed
/// to it lie in memory that exists in the session. An object is destroyed when it is dropped.
pub trait Backend {
    /// A stream.
    type Stream;
    /// An event.
    type Event;
    /// A module.
    type Module;
    /// A kernel, which keeps its module loaded.
    type Kernel;

    /// Creates a stream with the driver's flags.
    fn stream(&mut self, flags: u32, priority: i32) -> Result<Self::Stream, Code>;

    /// Creates an event with the driver's flags.
    fn event(&mut self, flags: u32) -> Result<Self::Event, Code>;

    /// Loads PTX or machine code.
    fn load(&mut self, image: &[u8]) -> Result<Self::Module, LoadFailure>;

    /// An image that earlier sessions of the same owner have loaded, by its SHA-256.
    fn kept_image(&mut self, _digest: &[u8; 32]) -> Option<Arc<[u8]>> {
        None
    }

    /// Keeps an image that was loaded, for later sessions of the same owner.
    fn keep_image(&mut self, _digest: [u8; 32], _image: &Arc<[u8]>) {}

    /// The stored functions that the session may have, with the shapes of functions that earlier
    /// sessions of the same owner have stored. Asked once, if the client wants any.
    fn offer(&mut self) -> Offer {
        Offer::default()
    }

    /// Keeps the shape of a function that was stored, for later sessions of the same owner.
    fn keep_shape(&mut self, _shape: KnownShape) {}

    /// Whether the client has left for good. Asked before each call of a stored function: such a call is
    /// short, so a client can leave many of them behind.
    fn is_client_gone(&mut self) -> bool {
        false
    }

    /// Observes the counts of stored functions, after a message that changed them.
    fn observe_stored(&mut self, _counts: StoredCounts) {}

    /// Observes a call after it was carried out, with its answer or its error; for recordings
    /// ([`crate::Item`]).
    fn observe(&mut self, _record: &Record<'_>, _result: Result<&[u8], Code>) {}

    /// Observes a part of a copy to the host. The copy's call is observed after its parts.
    fn observe_part(&mut self, _part: &[u8]) {}

    /// Removes the variables of a module from the memory that exists. The caller then drops the
    /// module.
    fn unload(&mut self, module: &Self::Module);

    /// Returns a kernel and its facts.
    fn kernel(&mut self, module: &Self::Module, name: &str) -> Result<(Self::Kernel, KernelFacts), Code>;

    /// Returns the address and size of a module's variable.
    fn variable(&mut self, module: &Self::Module, name: &str) -> Result<Span, Code>;

    /// Sets an attribute of a kernel.
    fn set_attribute(&mut self, kernel: &Self::Kernel, attribute: i32, value: i32) -> Result<(), Code>;

    /// Copies to the device. The bytes are read before the call returns.
    fn copy_in(&mut self, stream: Option<&Self::Stream>, to: u64, bytes: &[u8]) -> Result<(), Code>;

    /// Copies from the device, and waits for the copy.
    fn copy_out(&mut self, stream: Option<&Self::Stream>, from: u64, bytes: &mut [u8]) -> Result<(), Code>;

    /// Copies on the device.
    fn copy_within(&mut self, stream: Option<&Self::Stream>, to: u64, from: u64, bytes: u64) -> Result<(), Code>;

    /// Fills memory with elements of 1, 2 or 4 bytes.
    fn fill(&mut self, stream: Option<&Self::Stream>, to: u64, value: u32, size: u32, count: u64) -> Result<(), Code>;

    /// Launches a kernel.
    fn launch(&mut self, stream: Option<&Self::Stream>, kernel: &Self::Kernel, launch: Launch<'_>) -> Result<(), Code>;

    /// Records an event.
    fn record(&mut self, event: &Self::Event, stream: Option<&Self::Stream>) -> Result<(), Code>;

    /// Makes a stream wait for an event.
    fn wait(&mut self, stream: Option<&Self::Stream>, event: &Self::Event) -> Result<(), Code>;

    /// Called at the end of each message: carries out the work that was only collected.
    fn flush(&mut self) -> Result<(), Code> {
        Ok(())
    }

    /// Waits for all work of the session.
    fn synchronize(&mut self) -> Result<(), Code>;

    /// Waits for a stream.
    fn synchronize_stream(&mut self, stream: Option<&Self::Stream>) -> Result<(), Code>;

    /// Waits for an event.
    fn synchronize_event(&mut self, event: &Self::Event) -> Result<(), Code>;

    /// Returns [`Code::NOT_READY`] if the stream has work left.
    fn query_stream(&mut self, stream: Option<&Self::Stream>) -> Result<(), Code>;

    /// Returns [`Code::NOT_READY`] if the event is not complete.
    fn query_event(&mut self, event: &Self::Event) -> Result<(), Code>;

    /// Milliseconds between two events.
    fn elapsed(&mut self, start: &Self::Event, end: &Self::Event) -> Result<f32, Code>;
}
