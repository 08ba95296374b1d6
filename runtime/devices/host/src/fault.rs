//! A fault inside native code ends the kernel, not the process; and so does a signal that stops a
//! kernel which runs for too long, or whose compute unit is needed for something more urgent.
//!
//! [`call`] notes where its frame is and calls the kernel. A signal that the kernel's own
//! instruction raised (SIGSEGV, SIGBUS, SIGFPE, SIGILL) resumes the thread at that frame instead of
//! where it faulted. Kernels are leaf code without destructors, so their frames can be dropped.
//! [`HALT_SIGNAL`] does the same, but only while the program counter lies in the kernel's own
//! object, never inside a helper, and only while a word says so that the caller of [`call`] named.
//! Every other signal goes to whoever handled it before us.

use atoll_device::link::{HALT_SIGNAL, UnitWords};
use atoll_device::now_ns;
use atoll_kgraph::host_abi::{HostContext, HostKernel};
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Acquire};

/// How a kernel ended that did not return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interruption {
    /// The signal.
    pub(crate) signal: i32,
    /// Address of the instruction.
    pub(crate) instruction: u64,
    /// The address of the access, where the processor said it.
    pub(crate) address: Option<u64>,
    /// The access was a store.
    pub(crate) is_write: bool,
}

const SIGNALS: [c_int; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, HALT_SIGNAL];

/// Who handled each of [`SIGNALS`] before us.
static PREVIOUS: [OnceLock<libc::sigaction>; SIGNALS.len()] = [const { OnceLock::new() }; SIGNALS.len()];

/// `si_code` of a fault that the kernel has no address for, because none like it can be mapped.
const SI_KERNEL: c_int = 0x80;

/// Bit of the page fault's error code that says that it was a store.
const PAGE_FAULT_WRITE: i64 = 2;

/// The kernel call of a thread. Cells without destructors, so a signal handler may touch them.
struct CallState {
    /// Stack pointer of the `guarded_call` this thread is in, 0 outside.
    frame: Cell<u64>,
    /// First and past-the-end address of the kernel's code.
    code: Cell<(u64, u64)>,
    /// The words that end the call, null outside of a call.
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
/// Signal handlers use this pointer, never [`CALL`] itself. In a shared library the first access to a thread-local
/// allocates, which deadlocks if the signal interrupted `malloc`; and the handler of one copy of this crate runs on the
/// threads of every other copy in the process.
static CALL_KEY: OnceLock<libc::pthread_key_t> = OnceLock::new();

/// The state of the current thread, if it has ever called a kernel. Async-signal-safe.
///
/// # Safety
/// The reference must not outlive the thread.
unsafe fn call_state<'a>() -> Option<&'a CallState> {
    let key = CALL_KEY.get()?;
    // SAFETY: `pthread_getspecific` of a valid key only reads memory, also in a signal handler; the pointer is null or was
    // set by `call` to a thread-local of this thread.
    unsafe { libc::pthread_getspecific(*key).cast::<CallState>().as_ref() }
}

/// Installs the handlers, once in a process.
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
    // SAFETY: all-zero is a valid `sigaction`; both pointers are to locals, and the handler has the
    // signature that SA_SIGINFO asks for.
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

/// What makes [`HALT_SIGNAL`] end a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stops<'a> {
    /// The launch has to end: not 0.
    pub(crate) halt_word: &'a AtomicU32,
    /// Something more urgent waits: not 0.
    pub(crate) stop_word: &'a AtomicU32,
    /// From when on the stop word ends the call in the middle of a block; monotonic nanoseconds.
    pub(crate) interruptible_from_ns: u64,
    /// Where it stands that a signal is on its way.
    pub(crate) words: UnitWords<'a>,
}

impl Stops<'_> {
    /// The call may be interrupted at no time.
    pub(crate) const NEVER: u64 = u64::MAX;

    /// Calls nothing but the clock, which does no more than read memory.
    fn are_set(&self) -> bool {
        let interrupts = || {
            self.stop_word.load(Acquire) != 0
                && (self.interruptible_from_ns == 0 || self.interruptible_from_ns <= now_ns())
        };
        self.halt_word.load(Acquire) != 0 || interrupts()
    }
}

/// Calls a kernel whose code lies in `code`; [`HALT_SIGNAL`] ends it if one of `stops` is set.
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
            // SAFETY: a valid key. Without memory for the value the thread has no state in a handler, which then does not
            // take a fault of the kernel for ours: the process ends, as it does without memory anywhere else.
            unsafe { libc::pthread_setspecific(*key, std::ptr::from_ref(call).cast()) };
        }
        call.code.set((code.start, code.end));
        call.stops.set(std::ptr::from_ref(stops).cast());
        // SAFETY: `guarded_call` calls `kernel(context)` and leaves 0 in the thread's own cell, which lives
        // as long as the thread.
        let faulted = unsafe { guarded_call(kernel, context, call.frame.as_ptr()) };
        call.stops.set(std::ptr::null());
        if faulted == 0 { Ok(()) } else { Err(call.last.get()) }
    })
}

/// Runs on the faulting thread; touches its own cells and nothing that allocates or locks.
unsafe extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel hands valid pointers to an SA_SIGINFO handler. A positive code means that an
    // instruction raised it, not another process. The state does not outlive this call.
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
    // SAFETY: as above; the frame is the stack of a `guarded_call` that has not returned, which is what
    // `landing` expects.
    unsafe { resume_at_landing(context, call.frame.get()) };
}

/// As [`on_fault`], on a thread whose kernel may have to end.
unsafe extern "C" fn on_halt(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the state does not outlive this call.
    let call = unsafe { call_state() };
    let Some(call) = call.filter(|call| call.frame.get() != 0 && !call.stops.get().is_null()) else {
        // SAFETY: the arguments are those of this call.
        return unsafe { pass_on(signal, info, context) };
    };
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: the kernel hands valid pointers to an SA_SIGINFO handler, and the words outlive the call
    // whose frame this is.
    let (instruction, stops) = unsafe { (program_counter(context), &*call.stops.get()) };
    let (begin, end) = call.code.get();
    // Elsewhere the kernel is in a helper; it finds the word set, or hears from us again.
    if !(begin..end).contains(&instruction) || !stops.are_set() {
        stops.words.signal_again();
    } else {
        call.last.set(Interruption { signal, instruction, address: None, is_write: false });
        // SAFETY: as in `on_fault`.
        unsafe { resume_at_landing(context, call.frame.get()) };
    }
}

/// Does what would have happened without us.
unsafe fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let previous = SIGNALS.iter().position(|s| *s == signal).and_then(|i| PREVIOUS[i].get());
    match previous {
        Some(old) if old.sa_sigaction != libc::SIG_DFL && old.sa_sigaction != libc::SIG_IGN => {
            type Handler = unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
            // SAFETY: it was registered as a handler for this signal; one without SA_SIGINFO ignores the other
            // two arguments.
            unsafe { std::mem::transmute::<usize, Handler>(old.sa_sigaction)(signal, info, context) }
        }
        _ if signal == HALT_SIGNAL => {}
        // Back to the default: the instruction runs again and ends the process, a signal from outside is sent again.
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
    // SAFETY: the caller's: a valid context of this signal.
    unsafe { (*context).uc_mcontext.gregs[libc::REG_RIP as usize] as u64 }
}

#[cfg(target_arch = "x86_64")]
unsafe fn page_fault(context: *const libc::ucontext_t) -> i64 {
    // SAFETY: the caller's: a valid context of this signal.
    unsafe { (*context).uc_mcontext.gregs[libc::REG_ERR as usize] }
}

#[cfg(target_arch = "x86_64")]
unsafe fn resume_at_landing(context: *mut libc::ucontext_t, frame: u64) {
    // SAFETY: the caller's: a valid context of this signal.
    let registers = unsafe { &mut (*context).uc_mcontext.gregs };
    registers[libc::REG_RSP as usize] = frame as i64;
    registers[libc::REG_RIP as usize] = landing as *const () as i64;
}

/// Calls `kernel(context)` with the stack pointer noted in `frame`; 0 if it returned, 1 if it came
/// back through [`landing`].
///
/// Frame, from the stack pointer up: MXCSR, x87 control word, `frame`, padding, then the registers
/// that a function must preserve.
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

/// Where a thread goes on whose kernel faulted, its stack pointer that of the frame of
/// [`guarded_call`].
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn landing() {
    core::arch::naked_asm!("cld", "vzeroupper", "mov eax, 1", "jmp {leave}", leave = sym leave)
}

/// The end of [`guarded_call`]; keeps what is in `eax`.
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
    // SAFETY: the caller's.
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
