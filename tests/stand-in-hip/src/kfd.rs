//! A stand-in for the ioctls of Atoll's patch of the kernel driver
//! (`driver-patch/abi/atoll_kfd.h`), as a function that `runtime/hip` calls instead of ioctl(2) on
//! `/dev/kfd`. Layouts, the order of the checks and the answers are those of the patch.

use crate::options::Patch;
use crate::runtime::Runtime;
use rustix::io::Errno;
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// `ATOLL_KFD_ABI`.
const ABI: u32 = 1;

/// `ATOLL_KFD_IOC_ABI` and `ATOLL_KFD_IOC_RESET_WAVES`.
const ASK_ABI: u32 = 0xc010_41e0;
const RESET_WAVES: u32 = 0xc020_41e1;

/// Outcomes of a reset.
const NOTHING_RUNS: u32 = 0;
const KILLED: u32 = 1;

/// `struct atoll_kfd_abi_args`.
#[repr(C)]
#[derive(Clone, Copy)]
struct AbiArgs {
    abi: u32,
    flags: u32,
    reserved: [u32; 2],
}

/// `struct atoll_kfd_reset_waves_args`.
#[repr(C)]
#[derive(Clone, Copy)]
struct ResetArgs {
    abi: u32,
    gpu_id: u32,
    flags: u32,
    outcome: u32,
    reserved: [u64; 2],
}

/// Returns 0, or a negative error number. The number of a GPU is that of its PCI bus.
///
/// # Safety
/// `arguments` must be null or the address of the command's arguments.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "it stands beside the library's symbols")]
pub(crate) unsafe extern "C" fn atollStandInKfdIoctl(command: u32, arguments: *mut c_void) -> c_int {
    // SAFETY: as the caller guarantees.
    let body = || unsafe { ioctl(command, arguments) };
    let answer = catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(Errno::IO));
    answer.err().map_or(0, |error| -error.raw_os_error())
}

/// # Safety
/// As for [`atollStandInKfdIoctl`].
unsafe fn ioctl(command: u32, arguments: *mut c_void) -> Result<(), Errno> {
    let runtime = Runtime::get().map_err(|_| Errno::NODEV)?;
    let abi = match runtime.options.patch {
        Patch::Absent => return Err(Errno::NOTTY),
        Patch::OtherAbi => ABI + 1,
        Patch::Present | Patch::Busy | Patch::Loses => ABI,
    };
    if ![ASK_ABI, RESET_WAVES].contains(&command) {
        return Err(Errno::NOTTY);
    }
    if arguments.is_null() {
        return Err(Errno::FAULT);
    }
    if command == ASK_ABI {
        let to = arguments.cast::<AbiArgs>();
        // SAFETY: as the caller guarantees.
        let args = unsafe { to.read_unaligned() };
        if args.abi != 0 || args.flags != 0 || args.reserved != [0; 2] {
            return Err(Errno::INVAL);
        }
        // SAFETY: as above.
        unsafe { to.write_unaligned(AbiArgs { abi, ..args }) };
        return Ok(());
    }
    let to = arguments.cast::<ResetArgs>();
    // SAFETY: as the caller guarantees.
    let args = unsafe { to.read_unaligned() };
    let outcome = reset(runtime, abi, args)?;
    // SAFETY: as above.
    unsafe { to.write_unaligned(ResetArgs { outcome, ..args }) };
    Ok(())
}

/// Ends the running waves of this process on a GPU. Returns the outcome.
fn reset(runtime: &Runtime, abi: u32, args: ResetArgs) -> Result<u32, Errno> {
    if args.abi != abi {
        return Err(Errno::PROTO);
    }
    if args.flags != 0 || args.outcome != 0 || args.reserved != [0; 2] || args.gpu_id == 0 {
        return Err(Errno::INVAL);
    }
    let ordinal = i32::try_from(args.gpu_id - 1).map_err(|_| Errno::INVAL)?;
    let device = runtime.device(ordinal).map_err(|_| Errno::INVAL)?;
    device.check().map_err(|_| Errno::IO)?;
    if runtime.options.patch == Patch::Busy {
        return Err(Errno::BUSY);
    }
    let loses = runtime.options.patch == Patch::Loses;
    let any = device.reset_waves(loses).map_err(|_| Errno::IO)?;
    Ok(if any { KILLED } else { NOTHING_RUNS })
}
