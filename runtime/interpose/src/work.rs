//! What a node of a graph does, and what a captured call becomes.

use crate::arguments::Place;
use crate::boxes::{BoxCopy, End};
use crate::graph_memory::Share;
use crate::shim::Shim;
use atoll_cuda_api::constants::*;
use atoll_cuda_api::types::*;
use atoll_session::{Code, KernelFacts, MismatchKind};
use std::sync::Arc;

/// One call.
#[derive(Debug)]
pub(crate) enum Work {
    Kernel(Kernel),
    Copy(BoxCopy),
    Fill(Fill),
    Host(HostCall),
    /// Records an event.
    Record(u32),
    /// Waits for an event.
    Wait(u32),
    /// Allocates memory of a graph.
    Alloc(Arc<Share>),
    /// Frees memory of a graph, by its address.
    Free(u64),
}

/// A launch.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) kernel: u32,
    pub(crate) shape: Shape,
    /// The parameter block.
    params: Box<[u8]>,
    /// The same block for the program to read, and the address of each parameter in it.
    shown: Box<[u64]>,
    addresses: Box<[u64]>,
}

/// Grid, block, dynamic shared memory in bytes, and whether all blocks run at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
    pub(crate) is_cooperative: bool,
}

/// A fill of rows with an element.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fill {
    pub(crate) at: u64,
    /// Bytes from one row to the next.
    pub(crate) pitch: u64,
    /// Elements of a row.
    pub(crate) width: u64,
    /// Number of rows.
    pub(crate) height: u64,
    pub(crate) value: u32,
    /// Size of the element in bytes.
    pub(crate) size: u32,
}

/// A call of a function of the program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostCall {
    pub(crate) function: unsafe extern "C" fn(*mut c_void),
    pub(crate) data: u64,
}

impl HostCall {
    /// Calls the function. The caller holds no lock, since the function may call this library.
    pub(crate) fn call(self) {
        // SAFETY: the program passed the function to be called with this value.
        unsafe { (self.function)(std::ptr::with_exposed_provenance_mut(self.data as usize)) };
    }
}

impl Kernel {
    pub(crate) fn new(kernel: u32, shape: Shape, facts: &KernelFacts, params: Vec<u8>) -> Kernel {
        let word = |bytes: &[u8]| {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(word)
        };
        let shown: Box<[u64]> = params.chunks(8).map(word).collect();
        let start = shown.as_ptr().expose_provenance() as u64;
        let addresses = facts.params.iter().map(|(offset, _)| start + u64::from(*offset)).collect();
        Kernel { kernel, shape, params: params.into(), shown, addresses }
    }

    /// The address of the addresses of the parameters; null if there are none. They are valid as
    /// long as the node does not change.
    pub(crate) fn addresses(&self) -> *mut *mut c_void {
        if self.shown.is_empty() {
            return std::ptr::null_mut();
        }
        std::ptr::with_exposed_provenance_mut(self.addresses.as_ptr().expose_provenance())
    }
}

impl Fill {
    /// Whether it fills pinned memory of the program.
    fn is_pinned(&self, shim: &Shim) -> bool {
        let row = self.width.checked_mul(self.size.into());
        let before = self.height.checked_sub(1).and_then(|rows| rows.checked_mul(self.pitch));
        let bytes = row.zip(before).and_then(|(row, before)| row.checked_add(before));
        let is_whole = |bytes: u64| bytes > 0 && shim.host.holds(self.at, bytes);
        bytes.is_some_and(is_whole) && shim.client.find(self.at).is_none()
    }

    /// Returns the error of the call that can be found without making it.
    fn check(&self, shim: &Shim) -> Result<(), Code> {
        if !self.is_pinned(shim) {
            return shim.client.check_fill(self.at, (self.pitch, self.width, self.height), self.size);
        }
        let is_aligned = |number: u64| number.is_multiple_of(self.size.into());
        let is_apart = self.pitch / u64::from(self.size) >= self.width && is_aligned(self.pitch);
        if is_aligned(self.at) && (self.height == 1 || is_apart) { Ok(()) } else { Err(Code::INVALID_VALUE) }
    }

    pub(crate) fn perform(&self, shim: &mut Shim, stream: u32) -> Result<(), Code> {
        self.check(shim)?;
        if self.is_pinned(shim) {
            return shim.fill_pinned(self, stream);
        }
        shim.use_managed(self.at)?;
        let rows = (self.pitch, self.width, self.height);
        shim.client.fill(stream, self.at, rows, (self.value, self.size))
    }
}

impl Work {
    /// The kind of node.
    pub(crate) fn kind(&self) -> CUgraphNodeType {
        match self {
            Work::Kernel(_) => CU_GRAPH_NODE_TYPE_KERNEL,
            Work::Copy(_) => CU_GRAPH_NODE_TYPE_MEMCPY,
            Work::Fill(_) => CU_GRAPH_NODE_TYPE_MEMSET,
            Work::Host(_) => CU_GRAPH_NODE_TYPE_HOST,
            Work::Record(_) => CU_GRAPH_NODE_TYPE_EVENT_RECORD,
            Work::Wait(_) => CU_GRAPH_NODE_TYPE_WAIT_EVENT,
            Work::Alloc(_) => CU_GRAPH_NODE_TYPE_MEM_ALLOC,
            Work::Free(_) => CU_GRAPH_NODE_TYPE_MEM_FREE,
        }
    }

    /// Keeps what new parameters of a node do not change: whether all blocks of a launch run at once.
    pub(crate) fn keep(&mut self, old: &Work) {
        if let (Work::Kernel(new), Work::Kernel(old)) = (self, old) {
            new.shape.is_cooperative = old.shape.is_cooperative;
        }
    }

    /// Why other work cannot take the place of this in an executable graph.
    pub(crate) fn differs(&self, other: &Work) -> Option<MismatchKind> {
        match (self, other) {
            (Work::Copy(one), Work::Copy(two)) => (!one.is_like(two)).then_some(MismatchKind::Parameters),
            (Work::Fill(one), Work::Fill(two)) => {
                ((one.height > 1) != (two.height > 1)).then_some(MismatchKind::Parameters)
            }
            (Work::Alloc(one), Work::Alloc(two)) => (one.at != two.at).then_some(MismatchKind::Parameters),
            (Work::Free(one), Work::Free(two)) => (one != two).then_some(MismatchKind::Parameters),
            (one, two) => (one.kind() != two.kind()).then_some(MismatchKind::Kind),
        }
    }

    /// Returns the error of the call that can be found without making it.
    pub(crate) fn check(&self, shim: &Shim) -> Result<(), Code> {
        match self {
            Work::Kernel(Kernel { kernel, shape, params, .. }) => {
                shim.client.check_launch(*kernel, [shape.grid, shape.block], shape.shared_bytes, params)
            }
            Work::Copy(copy) => copy.check(shim),
            Work::Fill(fill) => fill.check(shim),
            Work::Host(_) => Ok(()),
            Work::Record(event) | Work::Wait(event) => shim.client.is_recorded(*event).map(drop),
            Work::Alloc(share) => shim.graph_memory.check(share.at),
            Work::Free(at) => {
                // Memory that has outlived the graphs that allocate it is an allocation of the program.
                let found = shim.client.find(*at).filter(|found| found.is_allocation && found.span.at == *at);
                found.map(drop).ok_or(Code::INVALID_VALUE)
            }
        }
    }

    /// Makes the call in a stream. A call of a host function needs the lock of `shim` to be free and
    /// is not made here.
    pub(crate) fn perform(&self, shim: &mut Shim, stream: u32) -> Result<(), Code> {
        match self {
            Work::Kernel(Kernel { kernel, shape, params, .. }) => shim.launch(stream, *kernel, shape, params),
            Work::Copy(copy) => copy.perform(shim, stream).map(drop),
            Work::Fill(fill) => fill.perform(shim, stream),
            Work::Host(_) => Ok(()),
            Work::Record(event) => {
                // It no longer stands for the work of a capture.
                shim.graphs.forget_event(*event);
                shim.client.record_event(*event, stream)
            }
            Work::Wait(event) => shim.client.wait_event(stream, *event),
            Work::Alloc(share) => {
                shim.graph_memory.set_live(share.at, true);
                Ok(())
            }
            Work::Free(at) if shim.graph_memory.holds(*at) => {
                shim.graph_memory.set_live(*at, false);
                Ok(())
            }
            Work::Free(at) => shim.free(*at),
        }
    }
}

impl Shim {
    /// The memory at an address that may be of either kind.
    pub(crate) fn end(&self, at: u64) -> End {
        if self.client.find(at).is_some() { End::Device(at) } else { End::Host(Place::at(at)) }
    }

    /// The memory at an address in the program. Managed memory is copied on the device.
    pub(crate) fn end_of_host(&self, at: u64) -> End {
        if self.managed.holds(at) { End::Device(at) } else { End::Host(Place::at(at)) }
    }

    /// Records a copy of contiguous bytes. Returns whether an asynchronous copy may return without
    /// waiting.
    pub(crate) fn copy_row(&mut self, stream: u32, from: End, to: End, bytes: u64) -> Result<bool, Code> {
        for end in [from, to] {
            if let End::Device(at) = end {
                self.use_managed(at)?;
            }
        }
        match (from, to) {
            (End::Device(from), End::Device(to)) => self.client.copy_within(stream, to, from, bytes).map(|()| true),
            (End::Host(from), End::Device(to)) => {
                // An earlier copy to the host may not have written the contents yet.
                if self.client.is_awaited(from.address(), bytes) {
                    self.client.complete_copies()?;
                }
                self.client.copy_in(stream, to, from.bytes(bytes)?).map(|()| true)
            }
            (End::Device(from), End::Host(to)) => {
                self.client.copy_out(stream, to.copy(bytes)?, from)?;
                Ok(self.host.holds(to.address(), bytes))
            }
            (End::Host(from), End::Host(to)) => {
                self.client.synchronize_stream(stream)?;
                from.move_to(to, bytes).map(|()| true)
            }
        }
    }
}
