//! A fault inside native code ends the kernel, not the process.
//!
//! [`call`] notes where its frame is and calls the kernel. A signal that the kernel's own instruction raised (SIGSEGV, SIGBUS, SIGFPE, SIGILL) resumes the thread at that frame instead
//! of where it faulted. Kernels are leaf code without destructors, so their frames can be dropped. Every other signal goes to whoever handled it before us.

use atoll_kgraph::host_abi::{HostContext, HostKernel};
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

/// What a kernel did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// The signal.
    pub(crate) signal: i32,
    /// The address it is about: of the access, or of the instruction.
    pub(crate) address: u64,
}

const SIGNALS: [c_int; 4] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL];

/// Who handled each of [`SIGNALS`] before us.
static PREVIOUS: [OnceLock<libc::sigaction>; SIGNALS.len()] = [const { OnceLock::new() }; SIGNALS.len()];

thread_local! {
    /// Stack pointer of the `guarded_call` this thread is in, 0 outside. Without a destructor, so a signal handler may touch it.
    static FRAME: Cell<u64> = const { Cell::new(0) };
    static LAST: Cell<Fault> = const { Cell::new(Fault { signal: 0, address: 0 }) };
}

/// Installs the handlers, once in a process.
pub(crate) fn install() -> std::io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let outcome = INSTALLED.get_or_init(|| SIGNALS.iter().zip(&PREVIOUS).try_for_each(|(signal, previous)| install_one(*signal, previous)));
    outcome.map_err(std::io::Error::from_raw_os_error)
}

fn install_one(signal: c_int, previous: &OnceLock<libc::sigaction>) -> Result<(), i32> {
    let error = || std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL);
    // SAFETY: all-zero is a valid `sigaction`; both pointers are to locals, and the handler has the signature that SA_SIGINFO asks for.
    unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(signal, std::ptr::null(), &raw mut old) != 0 {
            return Err(error());
        }
        let _ = previous.set(old);
        let mut new: libc::sigaction = std::mem::zeroed();
        new.sa_sigaction = on_fault as *const () as usize;
        new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&raw mut new.sa_mask);
        if libc::sigaction(signal, &raw const new, std::ptr::null_mut()) == 0 { Ok(()) } else { Err(error()) }
    }
}

/// Calls a kernel.
///
/// # Safety
/// As for [`HostKernel`].
pub(crate) unsafe fn call(kernel: HostKernel, context: *const HostContext) -> Result<(), Fault> {
    // SAFETY: `guarded_call` calls `kernel(context)` and leaves 0 in the thread's own cell, which lives as long as the thread.
    let faulted = FRAME.with(|frame| unsafe { guarded_call(kernel, context, frame.as_ptr()) });
    if faulted == 0 { Ok(()) } else { Err(LAST.get()) }
}

/// Runs on the faulting thread; touches its own cells and nothing that allocates or locks.
unsafe extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let frame = FRAME.get();
    // SAFETY: the kernel hands valid pointers to an SA_SIGINFO handler. A positive code means that an instruction raised it, not another process.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as u64) };
    if frame == 0 || code <= 0 {
        // SAFETY: the arguments are those of this call.
        return unsafe { pass_on(signal, info, context) };
    }
    LAST.set(Fault { signal, address });
    // SAFETY: as above; `frame` is the stack of a `guarded_call` that has not returned, which is what `landing` expects.
    unsafe { resume_at_landing(context.cast::<libc::ucontext_t>(), frame) };
}

/// Does what would have happened without us.
unsafe fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let previous = SIGNALS.iter().position(|s| *s == signal).and_then(|i| PREVIOUS[i].get());
    match previous {
        Some(old) if old.sa_sigaction != libc::SIG_DFL && old.sa_sigaction != libc::SIG_IGN => {
            type Handler = unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
            // SAFETY: it was registered as a handler for this signal; one without SA_SIGINFO ignores the other two arguments.
            unsafe { std::mem::transmute::<usize, Handler>(old.sa_sigaction)(signal, info, context) }
        }
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
unsafe fn resume_at_landing(context: *mut libc::ucontext_t, frame: u64) {
    // SAFETY: the caller's: a valid context of this signal.
    let registers = unsafe { &mut (*context).uc_mcontext.gregs };
    registers[libc::REG_RSP as usize] = frame as i64;
    registers[libc::REG_RIP as usize] = landing as *const () as i64;
}

/// Calls `kernel(context)` with the stack pointer noted in `frame`; 0 if it returned, 1 if it came back through [`landing`].
///
/// Frame, from the stack pointer up: MXCSR, x87 control word, `frame`, padding, then the registers that a function must preserve.
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

/// Where a thread goes on whose kernel faulted, its stack pointer that of the frame of [`guarded_call`].
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
