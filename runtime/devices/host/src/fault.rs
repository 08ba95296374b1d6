//! Faults inside native code end the kernel, not the process. The same mechanism stops a kernel
//! that exceeds its time limit or whose compute unit is needed for more urgent work.
//!
//! [`call`] saves its frame and calls the kernel. If an instruction of the kernel raises a signal
//! (SIGSEGV, SIGBUS, SIGFPE, SIGILL), the handler resumes the thread at that frame instead of at
//! the fault. Kernels are leaf code without destructors, so their frames can be dropped.
//! [`HALT_SIGNAL`] does the same, but only while the program counter is in the kernel's own object,
//! never inside a helper, and only while one of the words that the caller passed to [`call`] is
//! set. Every other signal is passed to the previous handler.

use atoll_device::link::{HALT_SIGNAL, UnitWords};
use atoll_device::now_ns;
use atoll_kgraph::host_abi::{HostContext, HostKernel};
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Acquire};

/// Why a kernel did not return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interruption {
    /// The signal.
    pub(crate) signal: i32,
    /// Address of the instruction.
    pub(crate) instruction: u64,
    /// The address of the access, if the processor reported it.
    pub(crate) address: Option<u64>,
    /// Whether the access was a store.
    pub(crate) is_write: bool,
}

const SIGNALS: [c_int; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, HALT_SIGNAL];

/// The previous handlers of [`SIGNALS`].
static PREVIOUS: [OnceLock<libc::sigaction>; SIGNALS.len()] = [const { OnceLock::new() }; SIGNALS.len()];

/// `si_code` of a fault without an address: the address is not canonical.
const SI_KERNEL: c_int = 0x80;

/// Bit of a page fault's error code that is set for stores.
const PAGE_FAULT_WRITE: i64 = 2;

/// The kernel call of a thread. Cells without destructors, so that a signal handler may use them.
struct CallState {
    /// Stack pointer of the active `guarded_call` of this thread; 0 outside a call.
    frame: Cell<u64>,
    /// Begin and end addresses of the kernel's code.
    code: Cell<(u64, u64)>,
    /// The words that end the call; null outside a call.
    stops: Cell<*const Stops<'static>>,
    last: Cell<Interruption>,
}

thread_local! {
    static CALL: CallState = const {
        CallState {
            frame: Cell::new(0),
            code: Cell::new((0, 0)),
            stops: Cell::new(std::ptr::null()),
            last: Cell::new(Interruption { signal: 0, instruction: 0, address: None, is_write: false }),
        }
    };
}

/// Key of the pointer to a thread's [`CALL`]; unset on threads that have never called a kernel.
///
/// Signal handlers use this pointer, never [`CALL`] itself. In a shared library the first access to
/// a thread-local allocates, which deadlocks if the signal interrupted `malloc`. And the handler of
/// one copy of this crate runs on the threads of every other copy in the process.
static CALL_KEY: OnceLock<libc::pthread_key_t> = OnceLock::new();

/// The state of the current thread, if it has ever called a kernel. Async-signal-safe.
///
/// # Safety
/// The reference must not outlive the thread.
unsafe fn call_state<'a>() -> Option<&'a CallState> {
    let key = CALL_KEY.get()?;
    // SAFETY: `pthread_getspecific` with a valid key only reads memory, also in a signal handler;
    // the pointer is null or was set by `call` to a thread-local of this thread.
    unsafe { libc::pthread_getspecific(*key).cast::<CallState>().as_ref() }
}

/// Installs the handlers, once per process.
pub(crate) fn install() -> std::io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let outcome = INSTALLED.get_or_init(|| {
        let mut key = 0;
        // SAFETY: the pointer is to a local; the key has no destructor.
        match unsafe { libc::pthread_key_create(&raw mut key, None) } {
            0 => CALL_KEY.get_or_init(|| key),
            error => return Err(error),
        };
        SIGNALS.iter().zip(&PREVIOUS).try_for_each(|(signal, previous)| install_one(*signal, previous))
    });
    outcome.map_err(std::io::Error::from_raw_os_error)
}

fn install_one(signal: c_int, previous: &OnceLock<libc::sigaction>) -> Result<(), i32> {
    let error = || std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL);
    let handler = if signal == HALT_SIGNAL { on_halt as *const () } else { on_fault as *const () };
    // SAFETY: an all-zero `sigaction` is valid; both pointers are to locals, and the handler has
    // the signature that SA_SIGINFO requires.
    unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(signal, std::ptr::null(), &raw mut old) != 0 {
            return Err(error());
        }
        let _ = previous.set(old);
        let mut new: libc::sigaction = std::mem::zeroed();
        new.sa_sigaction = handler as usize;
        new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        libc::sigemptyset(&raw mut new.sa_mask);
        if libc::sigaction(signal, &raw const new, std::ptr::null_mut()) == 0 { Ok(()) } else { Err(error()) }
    }
}

/// The conditions under which [`HALT_SIGNAL`] ends a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stops<'a> {
    /// Nonzero if the launch has to end.
    pub(crate) halt_word: &'a AtomicU32,
    /// Nonzero if more urgent work waits.
    pub(crate) stop_word: &'a AtomicU32,
    /// When the stop word may first end the call in the middle of a block; monotonic nanoseconds.
    pub(crate) interruptible_from_ns: u64,
    /// The words that record that a signal was sent.
    pub(crate) words: UnitWords<'a>,
}

impl Stops<'_> {
    /// The call may never be interrupted.
    pub(crate) const NEVER: u64 = u64::MAX;

    /// Async-signal-safe: only reads memory and the clock.
    fn are_set(&self) -> bool {
        let interrupts = || {
            self.stop_word.load(Acquire) != 0
                && (self.interruptible_from_ns == 0 || self.interruptible_from_ns <= now_ns())
        };
        self.halt_word.load(Acquire) != 0 || interrupts()
    }
}

/// Calls a kernel whose instructions are in `code`; [`HALT_SIGNAL`] ends the call if one of `stops`
/// is set.
///
/// # Safety
/// As for [`HostKernel`].
pub(crate) unsafe fn call(
    kernel: HostKernel,
    code: &Range<u64>,
    stops: &Stops<'_>,
    context: *const HostContext,
) -> Result<(), Interruption> {
    CALL.with(|call| {
        // SAFETY: the reference does not leave this function.
        if unsafe { call_state() }.is_none() {
            let key = CALL_KEY.get().expect("`install` ran before any compute unit started");
            // SAFETY: a valid key. If there is no memory for the value, handlers find no state for
            // this thread and pass a fault of the kernel on, which ends the process, like any other
            // lack of memory.
            unsafe { libc::pthread_setspecific(*key, std::ptr::from_ref(call).cast()) };
        }
        call.code.set((code.start, code.end));
        call.stops.set(std::ptr::from_ref(stops).cast());
        // SAFETY: `guarded_call` calls `kernel(context)` and leaves 0 in the thread's own cell,
        // which lives as long as the thread.
        let faulted = unsafe { guarded_call(kernel, context, call.frame.as_ptr()) };
        call.stops.set(std::ptr::null());
        if faulted == 0 { Ok(()) } else { Err(call.last.get()) }
    })
}

/// Runs on the faulting thread; uses only that thread's cells and neither allocates nor locks.
unsafe extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes valid pointers to an SA_SIGINFO handler. A positive code means that
    // an instruction raised the signal, not another process. The state does not outlive this call.
    let (code, address, call) = unsafe { ((*info).si_code, (*info).si_addr() as u64, call_state()) };
    let Some(call) = call.filter(|call| call.frame.get() != 0 && code > 0) else {
        // SAFETY: the arguments are those of this call.
        return unsafe { pass_on(signal, info, context) };
    };
    let is_access = matches!(signal, libc::SIGSEGV | libc::SIGBUS);
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: as above.
    let (instruction, error) = unsafe { (program_counter(context), page_fault(context)) };
    call.last.set(Interruption {
        signal,
        instruction,
        address: (is_access && code != SI_KERNEL).then_some(address),
        is_write: is_access && error & PAGE_FAULT_WRITE != 0,
    });
    // SAFETY: as above; the frame is the stack of a `guarded_call` that has not returned, as
    // `landing` requires.
    unsafe { resume_at_landing(context, call.frame.get()) };
}

/// Like [`on_fault`], on a thread whose kernel may have to stop.
unsafe extern "C" fn on_halt(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the state does not outlive this call.
    let call = unsafe { call_state() };
    let Some(call) = call.filter(|call| call.frame.get() != 0 && !call.stops.get().is_null()) else {
        // SAFETY: the arguments are those of this call.
        return unsafe { pass_on(signal, info, context) };
    };
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: the kernel passes valid pointers to an SA_SIGINFO handler, and the words outlive the
    // call whose frame this is.
    let (instruction, stops) = unsafe { (program_counter(context), &*call.stops.get()) };
    let (begin, end) = call.code.get();
    // Outside its own code the kernel is in a helper: it finds the word set later, or gets another
    // signal.
    if !(begin..end).contains(&instruction) || !stops.are_set() {
        stops.words.signal_again();
    } else {
        call.last.set(Interruption { signal, instruction, address: None, is_write: false });
        // SAFETY: as in `on_fault`.
        unsafe { resume_at_landing(context, call.frame.get()) };
    }
}

/// Does what would have happened without this handler.
unsafe fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let previous = SIGNALS.iter().position(|s| *s == signal).and_then(|i| PREVIOUS[i].get());
    match previous {
        Some(old) if old.sa_sigaction != libc::SIG_DFL && old.sa_sigaction != libc::SIG_IGN => {
            type Handler = unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
            // SAFETY: it was registered as a handler for this signal; a handler without SA_SIGINFO
            // ignores the other two arguments.
            unsafe { std::mem::transmute::<usize, Handler>(old.sa_sigaction)(signal, info, context) }
        }
        _ if signal == HALT_SIGNAL => {}
        // Restore the default action: a faulting instruction runs again and ends the process; a
        // signal from outside is sent again.
        _ => {
            // SAFETY: async-signal-safe calls.
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
                libc::raise(signal);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
unsafe fn program_counter(context: *const libc::ucontext_t) -> u64 {
    // SAFETY: the caller passes a valid context of this signal.
    unsafe { (*context).uc_mcontext.gregs[libc::REG_RIP as usize] as u64 }
}

#[cfg(target_arch = "x86_64")]
unsafe fn page_fault(context: *const libc::ucontext_t) -> i64 {
    // SAFETY: the caller passes a valid context of this signal.
    unsafe { (*context).uc_mcontext.gregs[libc::REG_ERR as usize] }
}

#[cfg(target_arch = "x86_64")]
unsafe fn resume_at_landing(context: *mut libc::ucontext_t, frame: u64) {
    // SAFETY: the caller passes a valid context of this signal.
    let registers = unsafe { &mut (*context).uc_mcontext.gregs };
    registers[libc::REG_RSP as usize] = frame as i64;
    registers[libc::REG_RIP as usize] = landing as *const () as i64;
}

/// Calls `kernel(context)` with the stack pointer saved in `frame`. Returns 0 if the kernel
/// returned, 1 if control came back through [`landing`].
///
/// Frame, from the stack pointer up: MXCSR, x87 control word, `frame`, padding, then the
/// callee-saved registers.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn guarded_call(kernel: HostKernel, context: *const HostContext, frame: *mut u64) -> u64 {
    core::arch::naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "sub rsp, 24",
        "stmxcsr [rsp]",
        "fnstcw [rsp + 4]",
        "mov [rsp + 8], rdx",
        "mov [rdx], rsp",
        "mov rax, rdi",
        "mov rdi, rsi",
        "call rax",
        "xor eax, eax",
        "jmp {leave}",
        leave = sym leave,
    )
}

/// Where a thread continues after its kernel faulted; its stack pointer is the frame of
/// [`guarded_call`].
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn landing() {
    core::arch::naked_asm!("cld", "vzeroupper", "mov eax, 1", "jmp {leave}", leave = sym leave)
}

/// The epilogue of [`guarded_call`]; preserves `eax`.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn leave() {
    core::arch::naked_asm!(
        "mov rdx, [rsp + 8]",
        "mov qword ptr [rdx], 0",
        "ldmxcsr [rsp]",
        "fldcw [rsp + 4]",
        "add rsp, 24",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
    )
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn resume_at_landing(_context: *mut libc::ucontext_t, _frame: u64) {}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn guarded_call(kernel: HostKernel, context: *const HostContext, _frame: *mut u64) -> u64 {
    // SAFETY: as the caller guarantees.
    unsafe { kernel(context) };
    0
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn program_counter(_context: *const libc::ucontext_t) -> u64 {
    0
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn page_fault(_context: *const libc::ucontext_t) -> i64 {
    0
}
