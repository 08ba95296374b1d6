//! The state of the process.

use crate::contexts::Contexts;
use crate::graph_memory::GraphMemory;
use crate::host::HostMemory;
use crate::link::Link;
use crate::log::log;
use crate::managed::Managed;
use crate::pools::Pools;
use crate::reserved::reserve;
use crate::storage::Storage;
use crate::virtual_memory::VirtualMemory;
use crate::work::Work;
use atoll_session::{Address, Client, Code, Graphs};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The environment variable with the server's address.
const VARIABLE: &str = "ATOLL_SESSION";

/// The environment variable with the terms of the session.
const TERMS_VARIABLE: &str = "ATOLL_SESSION_TERMS";

/// The session of this process; set by `cuInit`. Never dropped: the system closes the socket when
/// the process ends, and functions that run at exit may still call the driver.
static SHIM: OnceLock<Result<Mutex<Shim>, Code>> = OnceLock::new();

/// Whether this process is a child of the one that began the session.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// The socket, which the child of a fork closes.
static SOCKET: AtomicI32 = AtomicI32::new(-1);

/// The session, and the state that exists only in this library.
#[derive(Debug)]
pub(crate) struct Shim {
    pub(crate) client: Client<Link>,
    pub(crate) contexts: Contexts,
    pub(crate) host: HostMemory,
    pub(crate) pools: Pools,
    pub(crate) managed: Managed,
    pub(crate) storage: Storage,
    pub(crate) virtual_memory: VirtualMemory,
    pub(crate) graphs: Graphs<Arc<Work>>,
    pub(crate) graph_memory: GraphMemory,
    /// The streams in which executable graphs were last launched.
    pub(crate) launched: BTreeMap<u32, u32>,
    /// The event by which launches of an executable graph in different streams are ordered.
    pub(crate) order: Option<u32>,
}

impl Shim {
    /// Begins the session, once per process.
    pub(crate) fn init() -> Result<(), Code> {
        refuse_in_child()?;
        SHIM.get_or_init(Shim::start).as_ref().map(drop).map_err(|code| *code)
    }

    /// The session. An error before `cuInit`.
    pub(crate) fn get() -> Result<MutexGuard<'static, Shim>, Code> {
        refuse_in_child()?;
        let shim = SHIM.get().ok_or(Code::NOT_INITIALIZED)?.as_ref().map_err(|code| *code)?;
        Ok(shim.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The session, and the current context of this thread.
    pub(crate) fn current() -> Result<(MutexGuard<'static, Shim>, u32), Code> {
        let shim = Shim::get()?;
        let context = shim.contexts.current()?;
        shim.client.check()?;
        Ok((shim, context))
    }

    /// Frees an allocation of any kind.
    pub(crate) fn free(&mut self, at: u64) -> Result<(), Code> {
        if self.graph_memory.holds(at) {
            let is_live = self.graph_memory.is_live(at);
            self.graph_memory.set_live(at, false);
            return if is_live { Ok(()) } else { Err(Code::INVALID_VALUE) };
        }
        if self.virtual_memory.is_reservation(at) {
            return Err(Code::INVALID_VALUE);
        }
        self.client.free(at)?;
        self.pools.freed(at);
        self.managed_freed(at);
        Ok(())
    }

    /// Destroys everything that belongs to a context.
    pub(crate) fn destroy_context(&mut self, context: u32) -> Result<(), Code> {
        let destroyed = self.client.destroy_context(context);
        let Shim { client, pools, graphs, graph_memory, .. } = self;
        pools.retain(|at| client.find(at).is_some());
        graph_memory.retain(|at| client.find(at).is_some());
        for stream in graphs.captured_streams() {
            if client.check_stream(stream).is_err() {
                graphs.forget_stream(stream);
            }
        }
        self.forget_managed();
        destroyed
    }

    /// Returns an error before `cuInit`.
    pub(crate) fn check() -> Result<(), Code> {
        Shim::get().map(drop)
    }

    /// Returns an error before `cuInit`, without a current context, and after a fault.
    pub(crate) fn check_current() -> Result<(), Code> {
        Shim::current().map(drop)
    }

    fn start() -> Result<Mutex<Shim>, Code> {
        let refuse = |code: Code, why: &dyn std::fmt::Display| {
            log(why);
            code
        };
        let text = std::env::var(VARIABLE).map_err(|_| {
            refuse(Code::NO_DEVICE, &format_args!("{VARIABLE} is not set: start the program by `atoll run`"))
        })?;
        let address: Address =
            text.parse().map_err(|error| refuse(Code::NO_DEVICE, &format_args!("{VARIABLE}: {error}")))?;
        let link = Link::connect(&address).map_err(|error| {
            refuse(Code::NO_DEVICE, &format_args!("no server of sessions answers at {address}: {error}"))
        })?;
        let raw = link.raw();
        // Without terms, the server chooses.
        let terms = std::env::var(TERMS_VARIABLE).unwrap_or_default();
        let client = Client::open_with(link, 0, &terms).map_err(|(code, why)| refuse(code, &why))?;
        let reserved = reserve(client.memory());
        if let Err(error) = &reserved {
            log(&format_args!(
                "the program already uses addresses of the session's device memory ({error}): calls that find the \
                 kind of memory by its address, such as cuMemcpy, may take the program's memory for the device's; \
                 there is no managed memory"
            ));
        }
        SOCKET.store(raw, Ordering::SeqCst);
        // SAFETY: the handler only stores to statics and closes a descriptor, which is allowed in
        // the child of a fork.
        if unsafe { libc::pthread_atfork(None, None, Some(leave_in_child)) } != 0 {
            return Err(Code::OUT_OF_MEMORY);
        }
        Ok(Mutex::new(Shim {
            client,
            contexts: Contexts::default(),
            host: HostMemory::default(),
            pools: Pools::default(),
            managed: Managed::new(reserved.is_ok()),
            storage: Storage::default(),
            virtual_memory: VirtualMemory::default(),
            graphs: Graphs::default(),
            graph_memory: GraphMemory::default(),
            launched: BTreeMap::new(),
            order: None,
        }))
    }
}

fn refuse_in_child() -> Result<(), Code> {
    if IS_CHILD.load(Ordering::SeqCst) { Err(Code::NOT_INITIALIZED) } else { Ok(()) }
}

/// Runs in the child of a fork. The session belongs to the parent. It would outlive the parent if
/// the child kept its copy of the socket open.
extern "C" fn leave_in_child() {
    IS_CHILD.store(true, Ordering::SeqCst);
    let socket = SOCKET.swap(-1, Ordering::SeqCst);
    if socket >= 0 {
        // SAFETY: the descriptor is this process's copy, and nothing in the child uses it.
        unsafe { libc::close(socket) };
    }
}
