//! Native code of a hostile tenant, for tests of the daemon.
//!
//! An executor runs the native code of a trusted tenant as it was sent. The code in
//! `code/hostile.c` therefore controls the executor's process: it makes system calls, writes into
//! the rings and control words that the process shares with the daemon, and sends messages in the
//! executor's place. [`Attack`] lists its attacks.
//!
//! ```text
//! manifest()  the interface, with harmless PTX ─┐
//! code()      hostile.c, compiled ──────────────┴▶ a bundle, which a test writes and deploys
//! Attack      inputs of a call ──────────────────▶ the attack that the call runs
//! Layout      places in the shared memory, found out from a link of the same shape
//! ```
//!
//! Not here: bundles, daemons and the checks during an attack; see `tests/integration/hostile`.

mod attack;
mod layout;

pub use attack::{Attack, CHANNEL_BELL, HOW_WORDS};
pub use layout::Layout;

use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Flags of the C compiler: one object without undefined symbols.
const FLAGS: [&str; 9] =
    ["-g1", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-nostdlib", "-fno-stack-protector", "-fcf-protection=none"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("code")
}

/// The manifest of the function `hostile`. Its own PTX is harmless.
pub fn manifest() -> PathBuf {
    folder().join("hostile.toml")
}

/// The native code that takes the place of what the PTX compiles to.
///
/// # Errors
/// If there is no C compiler, or it fails.
pub fn code() -> Result<Vec<u8>> {
    let output = tempfile::tempdir()?;
    let object = output.path().join("hostile.so");
    let status = Command::new("cc").args(FLAGS).arg("-o").arg(&object).arg(folder().join("hostile.c")).status();
    ensure!(status.context("a C compiler, cc")?.success(), "hostile.c does not compile");
    Ok(std::fs::read(&object)?)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_code_is_an_object() {
        assert!(super::code().unwrap().starts_with(b"\x7fELF"));
        assert!(super::manifest().exists());
    }
}
