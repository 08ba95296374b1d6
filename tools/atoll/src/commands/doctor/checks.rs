//! Checks that need no trial run.

use super::Finding;
use crate::cache;
use crate::output::bytes;
use atoll_device::priority::{self, WakePriority};
use std::path::{Path, PathBuf};

/// With less memory than this, larger models and their buffers do not fit.
const MEMORY_BYTES_MIN: u64 = 1 << 30;

pub(super) fn all() -> Vec<Finding> {
    vec![cpu(), cores(), wake_up(), memory(), compiler(), padding(), ptxas(), cuda()]
}

#[cfg(target_arch = "x86_64")]
fn cpu() -> Finding {
    use std::arch::is_x86_feature_detected as has;
    let v3 =
        has!("avx2") && has!("bmi1") && has!("bmi2") && has!("f16c") && has!("fma") && has!("lzcnt") && has!("movbe");
    let v4 = v3 && has!("avx512f") && has!("avx512bw") && has!("avx512cd") && has!("avx512dq") && has!("avx512vl");
    let model = cpu_model().unwrap_or_else(|| "unknown model".into());
    match (v3, v4) {
        (_, true) => Finding::good("CPU", format!("x86-64-v4, {model}")),
        (true, _) => Finding::good("CPU", format!("x86-64-v3, {model}")),
        _ => Finding::bad(
            "CPU",
            format!("below x86-64-v3, {model}"),
            "the host device needs AVX2 and FMA (x86 CPUs since 2015); in a virtual machine, enable CPU passthrough",
        ),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn cpu() -> Finding {
    Finding::bad("CPU", std::env::consts::ARCH, "the host device supports x86-64 only")
}

fn cpu_model() -> Option<String> {
    let info = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = info.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().into())
}

fn cores() -> Finding {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    if cores == 1 {
        return Finding::absent(
            "cores",
            "1",
            "a single CPU both computes and serves; use two or more for steady latencies",
        );
    }
    Finding::good("cores", cores.to_string())
}

/// How quickly the engine's thread gets a CPU that compute units keep busy.
fn wake_up() -> Finding {
    let granted = std::thread::spawn(priority::wake_first).join();
    let remedy = "for steady latencies on a busy machine, grant CAP_SYS_NICE or a real-time priority limit (`ulimit -r \
        1`, or `LimitRTPRIO=1` in systemd)";
    match granted {
        Ok(WakePriority::RealTime) => {
            Finding::good("wake-up", "immediate: the engine's thread gets real-time priority (SCHED_FIFO)")
        }
        Ok(WakePriority::ShortSlice) => Finding::absent(
            "wake-up",
            "fast: the engine's thread has a short time slice, but no real-time priority",
            remedy,
        ),
        _ => Finding::absent(
            "wake-up",
            "default: on busy CPUs the engine's thread waits for the next scheduler tick",
            remedy,
        ),
    }
}

fn memory() -> Finding {
    let Some(available) = meminfo("MemAvailable") else {
        return Finding::absent("memory", "unknown: cannot read /proc/meminfo", "mount /proc");
    };
    let detail = format!("{} available of {}", bytes(available), bytes(meminfo("MemTotal").unwrap_or(available)));
    if available < MEMORY_BYTES_MIN {
        return Finding::absent("memory", detail, "larger models will not fit; close other programs or add memory");
    }
    Finding::good("memory", detail)
}

fn meminfo(key: &str) -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

fn compiler() -> Finding {
    if cfg!(feature = "native") {
        return Finding::good("compiler", "built in, with LLVM");
    }
    if cfg!(feature = "compiler") {
        return Finding::good("compiler", "built in, without LLVM: compiles for NVIDIA GPUs, but not for CPUs");
    }
    Finding::absent(
        "compiler",
        "not built in; bundles with native code can still be served",
        "to compile models on this machine, build with the cargo feature `compiler`",
    )
}

/// Whether best-effort blocks can be padded into real-time launches.
fn padding() -> Finding {
    if cfg!(not(feature = "compiler")) {
        return Finding::absent(
            "padding",
            "not possible: padding modules are compiled at run time, and there is no compiler; `--policy reef` acts \
            like `reset`",
            "build with the cargo feature `compiler`",
        );
    }
    let folder = cache::folder("profiles").and_then(|folder| std::fs::read_dir(folder).ok());
    match folder.map_or(0, |bundles| bundles.flatten().count()) {
        0 => Finding::absent(
            "padding",
            "no bundle is profiled on this machine, so `--policy reef` acts like `reset`",
            "run `atoll profile MODEL.kg` for each model that should take part in padding",
        ),
        bundles => Finding::good(
            "padding",
            format!(
                "possible with `--policy reef`, between functions of one tenant; bundles profiled on this machine: \
                {bundles}"
            ),
        ),
    }
}

fn ptxas() -> Finding {
    match find_ptxas() {
        Some(path) => Finding::good("ptxas", path.display().to_string()),
        None => Finding::absent(
            "ptxas",
            "not found",
            "only needed to count registers and spills of NVIDIA kernels; install it with `pip install \
            nvidia-cuda-nvcc-cu12` and set ATOLL_PTXAS to its path",
        ),
    }
}

#[cfg(feature = "compiler")]
fn find_ptxas() -> Option<PathBuf> {
    atoll_target_nvidia::find_ptxas().map(|ptxas| ptxas.path().to_path_buf())
}

#[cfg(not(feature = "compiler"))]
fn find_ptxas() -> Option<PathBuf> {
    on_path("ptxas")
}

#[cfg(not(feature = "compiler"))]
fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Folders in which distributions and containers install the driver's library, searched after those
/// of the environment.
const LIBRARY_FOLDERS: [&str; 6] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
];

/// Finds the library without loading it, since loading runs its code.
fn cuda() -> Finding {
    let environment = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let folders = std::env::split_paths(&environment).chain(LIBRARY_FOLDERS.map(PathBuf::from));
    let library = folders.map(|folder| folder.join("libcuda.so.1")).find(|file| file.is_file());
    let devices = (0..16).filter(|index| Path::new(&format!("/dev/nvidia{index}")).exists()).count();
    match (library, devices) {
        (Some(path), 1..) => {
            Finding::good("NVIDIA", format!("{devices} device files, {}, driver {}", path.display(), driver_version()))
        }
        (Some(path), 0) => Finding::absent(
            "NVIDIA",
            format!("{}, but no device", path.display()),
            "pass the device to the container, or load the driver",
        ),
        (None, 1..) => Finding::absent(
            "NVIDIA",
            format!("{devices} device files, but no libcuda.so.1"),
            "install the driver's libraries (libcuda1)",
        ),
        (None, _) => {
            Finding::absent("NVIDIA", "no driver and no device", "no action needed: models run on the host device")
        }
    }
}

fn driver_version() -> String {
    let version = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let words = version.split_whitespace().skip_while(|word| *word != "Module");
    words.skip(1).find(|word| word.starts_with(|c: char| c.is_ascii_digit())).unwrap_or("unknown").into()
}
