//! The archives of `packaging/release.sh`: their bill of materials, and, in full runs, the archives
//! themselves, built and run in a bare Debian.

use super::bill;
use crate::serve::atoll;
use anyhow::{Context, Result, ensure};
use atoll_models::{BuildOptions, build_onnx};
use atoll_tests::{full, root, skip};
use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn the_bill_of_an_archive_has_the_libraries_inside_and_no_crate_that_is_left_out() -> Result<()> {
    let options = ["--packages", "atoll atoll-ring-c", "--features", "atoll/cuda", "--library", "zlib=1.2.13=Zlib"];
    let bill = bill(&options)?;
    let has = |name: &str| bill.keys().any(|(known, _)| known == name);
    for inside in ["atoll", "atoll-ring-c", "atoll-server", "atoll-device-cuda", "tokio"] {
        ensure!(has(inside), "the bill lacks {inside}");
    }
    // The compiler and LLVM are features, and the library for CUDA programs is a package.
    for left_out in ["atoll-pipeline", "atoll-target-host", "inkwell", "atoll-device-hip", "atoll-cudart"] {
        ensure!(!has(left_out), "the bill has {left_out}");
    }
    let zlib = bill.get(&("zlib".into(), "1.2.13".into())).context("zlib")?;
    ensure!(zlib["licenseDeclared"] == "Zlib", "{zlib}");
    Ok(())
}

/// Why this machine cannot build and run the archives; `None` if it can.
fn missing() -> Option<&'static str> {
    let is_there = |program: &str| Command::new(program).arg("--version").output().is_ok();
    let llvm = std::env::var("LLVM_SYS_221_PREFIX").unwrap_or_else(|_| "/usr/lib/llvm-22".into());
    let needed = [
        (full(), "make test-full"),
        (cfg!(target_arch = "x86_64"), "they are for x86-64"),
        (Path::new(&llvm).join("lib/libLLVMCore.a").exists(), "there are no static libraries of LLVM 22"),
        (rustix::process::geteuid().is_root(), "debootstrap needs root"),
        (is_there("debootstrap"), "debootstrap is missing, which tools/setup.sh installs"),
    ];
    needed.into_iter().find(|(is_there, _)| !is_there).map(|(_, reason)| reason)
}

fn printed(command: &mut Command) -> Result<String> {
    let output = command.current_dir(root()).output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {}{errors}", String::from_utf8_lossy(&output.stdout));
    Ok(String::from_utf8(output.stdout)?)
}

/// The libraries that the program in an archive needs.
fn libraries(archive: &Path) -> Result<Vec<String>> {
    let folder = tempfile::tempdir()?;
    printed(
        Command::new("tar").args(["--extract", "--strip-components=1", "-C"]).arg(folder.path()).arg("-f").arg(archive),
    )?;
    for file in ["share/man/man1/atoll-serve.1.gz", "share/doc/atoll/atoll.spdx.json", "lib/libatoll_ring_c.so"] {
        ensure!(folder.path().join(file).exists(), "{} lacks {file}", archive.display());
    }
    let text = printed(Command::new("readelf").args(["--dynamic", "--wide"]).arg(folder.path().join("bin/atoll")))?;
    let needed = text.lines().filter(|line| line.contains("(NEEDED)"));
    let name = |line: &str| Some(line.split_once('[')?.1.split_once(".so.")?.0.to_owned());
    needed.map(|line| name(line).with_context(|| line.to_owned())).collect()
}

#[test]
fn archives_need_the_libraries_of_the_language_alone_and_serve_in_a_bare_system() -> Result<()> {
    if let Some(missing) = missing() {
        skip(&format!("the archives of make release: {missing}"));
        return Ok(());
    }
    let text = printed(&mut Command::new(root().join("packaging/release.sh")))?;
    let archives: Vec<PathBuf> = text.lines().map(|line| root().join(line)).collect();
    let [with_llvm, runtime] = &archives[..] else { anyhow::bail!("{text}") };
    for archive in [with_llvm, runtime] {
        for library in libraries(archive)? {
            let is_known = ["libc", "libm", "libgcc_s", "libstdc++", "ld-linux-x86-64"].contains(&library.as_str());
            ensure!(is_known, "{} needs {library}", archive.display());
        }
    }
    // With LLVM it serves a model, and without LLVM a bundle.
    let folder = tempfile::tempdir()?;
    let (model, bundle) = (folder.path().join("null.onnx"), folder.path().join("null.kg"));
    std::fs::write(&model, build_onnx("null", &BuildOptions::default())?)?;
    printed(Command::new(atoll()).arg("compile").arg(&model).args(["--target", "host", "-o"]).arg(&bundle))?;
    for (archive, model) in [(with_llvm, &model), (runtime, &bundle)] {
        let text = printed(Command::new(root().join("packaging/check-archive.sh")).arg(archive).arg(model))?;
        ensure!(text.contains("the model is served"), "{text}");
    }
    Ok(())
}
