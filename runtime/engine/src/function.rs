//! A function as all threads see it: its bundle and target, the queue slots left, and the shapes it
//! was bound to.

use crate::batching::Batching;
use crate::binding::{BindError, Binding, FenceRanges};
use crate::branches::Capacity;
use crate::config::{FunctionKey, FunctionOptions};
use crate::error::{EngineError, InvokeError};
use crate::limits::{BINDINGS_OF_BATCHES_MAX, BINDINGS_PER_FUNCTION_MAX};
pub(crate) use atoll_core::memory::FunctionId;
use atoll_core::{Class, Fork, LaneId};
use atoll_device::DeviceInfo;
use atoll_kgraph::strings::Vocabulary;
use atoll_kgraph::{Bundle, Feature, InputForm, KernelGraph, TargetImage, bind_step, features, undetermined_symbol};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) id: FunctionId,
    pub(crate) key: FunctionKey,
    pub(crate) bundle: Arc<Bundle>,
    pub(crate) target: String,
    pub(crate) class: Class,
    pub(crate) lane: LaneId,
    pub(crate) queue_capacity: usize,
    /// How its requests are batched; `None` if each runs alone.
    pub(crate) batching: Option<Batching>,
    /// Its strings; `None` if neither its inputs nor its outputs have strings.
    pub(crate) vocabulary: Option<Arc<Vocabulary>>,
    /// The address ranges that its fenced kernels may access.
    ranges: FenceRanges,
    /// The device's capacity for it; set once it is loaded.
    capacity: OnceLock<Capacity>,
    /// Waiting invocations, by class. Each class has its own slots, so that best-effort work never
    /// takes the last slot of real-time work.
    waiting: [AtomicUsize; 2],
    /// Invocations that were refused before they were queued.
    rejected: AtomicU64,
    /// Whether its constants are on the device or being loaded.
    is_resident: AtomicBool,
    /// Least recently used first. No other lock is taken while a lock of a function is held.
    bindings: Mutex<Vec<Arc<Binding>>>,
    /// Like `bindings`, for bindings with sizes that were read back.
    sized: Mutex<Vec<Arc<Binding>>>,
}

impl Function {
    /// Chooses the best target for the device and checks that the function can be invoked on it.
    pub(crate) fn new(
        id: FunctionId,
        bundle: Arc<Bundle>,
        options: FunctionOptions,
        queue_capacity: usize,
        device: &DeviceInfo,
    ) -> Result<Function, EngineError> {
        let target = device.targets.iter().find(|name| bundle.target(name).is_some()).cloned();
        let target = target.ok_or_else(|| EngineError::NoTarget {
            device: device.name.clone(),
            wants: device.targets.join(", "),
            has: bundle.target_names().collect::<Vec<_>>().join(", "),
        })?;
        let unservable = |reason: String| EngineError::Unservable { name: options.key.clone(), reason };
        if let Some(reason) = bundle.target(&target).and_then(|image| unsupported(bundle.graph(), image)) {
            return Err(unservable(reason));
        }
        if let Some(symbol) = undetermined_symbol(bundle.graph()) {
            return Err(unservable(format!("no input's shape determines its symbol `{symbol}`")));
        }
        let shared_bytes_max = device.shared_bytes_max;
        let kernels = bundle.target(&target).map_or(&[][..], |image| &image.kernels);
        if let Some(kernel) = kernels.iter().find(|kernel| kernel.shared_bytes > shared_bytes_max) {
            let (name, bytes) = (&kernel.name, kernel.shared_bytes);
            return Err(unservable(format!(
                "kernel {name} needs {bytes} bytes of shared memory, {} has {shared_bytes_max}",
                device.name
            )));
        }
        let batching = options.batching.map(|options| Batching::new(bundle.graph(), options));
        let batching = batching.transpose().map_err(unservable)?;
        // Two full batches can hold queue slots at the same time: one that is about to run, and
        // the next one.
        let least = batching.as_ref().map_or(1, |batching| 2 * batching.max_rows());
        Ok(Function {
            id,
            key: options.key,
            class: options.class,
            lane: options.lane,
            queue_capacity: options.queue_capacity.unwrap_or(queue_capacity.max(least)).max(1),
            batching,
            vocabulary: Vocabulary::of(bundle.graph()).map(Arc::new),
            target,
            bundle,
            ranges: FenceRanges::of(device),
            capacity: OnceLock::new(),
            waiting: Default::default(),
            rejected: AtomicU64::new(0),
            is_resident: AtomicBool::new(false),
            bindings: Mutex::new(Vec::new()),
            sized: Mutex::new(Vec::new()),
        })
    }

    /// Whether its constants are on the device or being loaded.
    pub(crate) fn is_resident(&self) -> bool {
        self.is_resident.load(Ordering::Relaxed)
    }

    /// Sets whether its constants are on the device, and returns what was known before. Called by
    /// the engine's thread only.
    pub(crate) fn set_resident(&self, is_resident: bool) -> bool {
        self.is_resident.swap(is_resident, Ordering::Relaxed)
    }

    pub(crate) fn graph(&self) -> &KernelGraph {
        self.bundle.graph()
    }

    pub(crate) fn image(&self) -> &TargetImage {
        self.bundle.target(&self.target).expect("the target was chosen among the bundle's")
    }

    /// Takes a slot in the queue of a class.
    pub(crate) fn enqueue(self: &Arc<Function>, class: Class) -> Result<QueueSlot, InvokeError> {
        let take = |waiting: usize| (waiting < self.queue_capacity).then_some(waiting + 1);
        match self.waiting[class as usize].fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(_) => Ok(QueueSlot { function: Arc::clone(self), class }),
            Err(_) => Err(InvokeError::QueueFull { capacity: self.queue_capacity }),
        }
    }

    /// Checks the inputs and returns the binding for their shapes, cached or new. `values` are
    /// those of a session's symbols, for one of its steps.
    pub(crate) fn bind(&self, inputs: &[InputForm<'_>], values: &[i64]) -> Result<Arc<Binding>, InvokeError> {
        let symbols =
            bind_step(self.graph(), inputs, values).map_err(|error| InvokeError::BadInput(error.to_string()))?;
        self.batching.as_ref().map_or(Ok(()), |batching| batching.check(&symbols))?;
        self.bind_to(symbols)
    }

    /// The binding for a batch of `rows` rows whose requests have the same other sizes as
    /// `binding`.
    pub(crate) fn with_rows(&self, binding: &Arc<Binding>, rows: u64) -> Result<Arc<Binding>, InvokeError> {
        match &self.batching {
            Some(batching) => self.bind_to(batching.with_rows(binding, rows)),
            None => Ok(Arc::clone(binding)),
        }
    }

    /// The binding for these sizes, cached or new.
    fn bind_to(&self, symbols: Vec<i64>) -> Result<Arc<Binding>, InvokeError> {
        if let Some(binding) = find(&self.bindings, |binding| binding.symbols == symbols) {
            return Ok(binding);
        }
        let binding = Binding::new(self.graph(), self.image(), self.ranges, symbols);
        let binding =
            binding.map_err(|e| InvokeError::BadInput(format!("inputs of these shapes cannot be run: {e}")))?;
        Ok(self.keep(&self.bindings, binding))
    }

    /// The binding after the next size was read back as `value`, cached or new.
    pub(crate) fn with_size(&self, binding: &Binding, value: i64) -> Result<Arc<Binding>, BindError> {
        let mut symbols = binding.symbols.clone();
        if let Some(read_back) = self.graph().read_backs.get(binding.sizes_known) {
            symbols[read_back.symbol.0 as usize] = value;
        }
        let is_it = |known: &Binding| {
            known.sizes_known == binding.sizes_known + 1 && known.symbols == symbols && known.largest == binding.largest
        };
        match find(&self.sized, is_it) {
            Some(known) => Ok(known),
            None => Ok(self.keep(&self.sized, binding.with_size(self.graph(), self.image(), value)?)),
        }
    }

    /// Sets the device's capacity for it, once it is loaded.
    pub(crate) fn set_capacity(&self, capacity: Capacity) {
        // A function is loaded once.
        let _ = self.capacity.set(capacity);
    }

    /// The forks of an invocation, once they are decided.
    pub(crate) fn forks(&self, binding: &Binding) -> Option<Arc<[Fork]>> {
        let capacity = self.capacity.get()?;
        if capacity.compute_units < 2 {
            binding.branches.disable();
        }
        binding.forks(self.graph(), capacity)
    }

    /// Caches a binding; evicts the least recently used one if the cache is full.
    fn keep(&self, bindings: &Mutex<Vec<Arc<Binding>>>, binding: Binding) -> Arc<Binding> {
        let binding = Arc::new(binding);
        let most = BINDINGS_PER_FUNCTION_MAX + self.batching.as_ref().map_or(0, |batching| batching.max_rows());
        let mut bindings = bindings.lock().unwrap_or_else(PoisonError::into_inner);
        if bindings.len() >= most.min(BINDINGS_OF_BATCHES_MAX) {
            bindings.remove(0);
        }
        bindings.push(Arc::clone(&binding));
        binding
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.iter().map(|waiting| waiting.load(Ordering::Relaxed)).sum()
    }

    pub(crate) fn note_rejected(&self) {
        self.rejected.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn rejected(&self) -> u64 {
        self.rejected.load(Ordering::Relaxed)
    }
}

/// Finds a cached binding and makes it the most recently used.
fn find(bindings: &Mutex<Vec<Arc<Binding>>>, is_it: impl Fn(&Binding) -> bool) -> Option<Arc<Binding>> {
    let mut bindings = bindings.lock().unwrap_or_else(PoisonError::into_inner);
    let at = bindings.iter().rposition(|binding| is_it(binding))?;
    let binding = bindings.remove(at);
    bindings.push(Arc::clone(&binding));
    Some(binding)
}

/// A feature of the bundle that the engine does not support, as a reason to refuse the function.
fn unsupported(graph: &KernelGraph, image: &TargetImage) -> Option<String> {
    let why = |feature: Feature| match feature {
        Feature::State if graph.session.states.is_empty() => {
            Some("it has state buffers, but none of them is declared as state of a session")
        }
        Feature::State if !graph.read_backs.is_empty() => {
            Some("it has both state and sizes that are computed at run time, which is not supported")
        }
        Feature::PackedConstants => Some("it has constants packed for its target, which is not supported"),
        Feature::BatchAxis
        | Feature::Fill
        | Feature::CopyOffset
        | Feature::QueuedTransfer
        | Feature::Variants
        | Feature::BytesArgument
        | Feature::InputElements
        | Feature::Conditions
        | Feature::Checks
        | Feature::Strings
        | Feature::If
        | Feature::Loop
        | Feature::State
        | Feature::ReadBack => None,
    };
    let mut used = features::of_graph(graph).into_iter().chain(features::of_target(graph, image));
    used.find_map(why).map(Into::into)
}

/// A slot in the queue of a class; dropping it releases the slot.
#[derive(Debug)]
pub(crate) struct QueueSlot {
    function: Arc<Function>,
    class: Class,
}

impl Drop for QueueSlot {
    fn drop(&mut self) {
        self.function.waiting[self.class as usize].fetch_sub(1, Ordering::Relaxed);
    }
}
