//! The native code that this CPU can run.

/// The bundle targets that this CPU runs, best first. Empty on CPUs below x86-64-v3 and on other
/// architectures.
pub(crate) fn targets() -> Vec<String> {
    let mut levels = Vec::new();
    if has_v3() && has_v4() {
        levels.push("host-x86-64-v4".to_owned());
    }
    if has_v3() {
        levels.push("host-x86-64-v3".to_owned());
    }
    levels
}

#[cfg(target_arch = "x86_64")]
fn has_v3() -> bool {
    use std::arch::is_x86_feature_detected as has;
    has!("sse4.2")
        && has!("popcnt")
        && has!("cmpxchg16b")
        && has!("avx2")
        && has!("bmi1")
        && has!("bmi2")
        && has!("f16c")
        && has!("fma")
        && has!("lzcnt")
        && has!("movbe")
        && has!("xsave")
}

#[cfg(target_arch = "x86_64")]
fn has_v4() -> bool {
    use std::arch::is_x86_feature_detected as has;
    has!("avx512f") && has!("avx512bw") && has!("avx512cd") && has!("avx512dq") && has!("avx512vl")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_v3() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn has_v4() -> bool {
    false
}
