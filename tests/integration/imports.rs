//! Output of other compilers through the program: `atoll import`, then `atoll infer`.

use crate::serve::atoll;
use anyhow::{Context, Result, ensure};
use atoll_tests::{built, full, python, root, skip};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The folders of `tests/imports`.
fn folders() -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(root().join("tests/imports"))?.map(|entry| Ok(entry?.path()));
    let mut folders: Vec<PathBuf> = entries.collect::<Result<_>>()?;
    folders.retain(|folder| folder.is_dir());
    folders.sort();
    Ok(folders)
}

fn import(folder: &Path, output: &Path) -> Result<Output> {
    Ok(Command::new(atoll()).args(["import", "--json", "--target", "host", "-o"]).args([output, folder]).output()?)
}

fn succeeded(output: Output, what: &str) -> Result<Output> {
    ensure!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(output)
}

/// Imports a folder, runs it, and compares with ONNX Runtime or NumPy.
fn check(folder: &Path) -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let bundle = scratch.path().join("imported.kg");
    let report = succeeded(import(folder, &bundle)?, "atoll import")?;
    let report: serde_json::Value = serde_json::from_slice(&report.stdout)?;
    ensure!(
        report["not_preemptible"] == serde_json::json!([]),
        "kernels without the preemption flag: {}",
        report["not_preemptible"]
    );

    let script = root().join("tests/python/imports.py");
    succeeded(
        Command::new(python()).args(["-B".as_ref(), script.as_path(), folder, scratch.path()]).output()?,
        "the reference",
    )?;
    let mut infer = Command::new(atoll());
    infer.args(["infer", "--json", "--model"]).arg(&bundle).arg("--expect").arg(scratch.path().join("expected"));
    for input in std::fs::read_dir(scratch.path().join("inputs"))? {
        let input = input?.path();
        let name = input.file_stem().context("a name")?.to_string_lossy().into_owned();
        infer.arg("--input").arg(format!("{name}={}", input.display()));
    }
    succeeded(infer.output()?, "atoll infer").map(drop)
}

#[test]
fn what_other_compilers_made_computes_what_its_model_does() -> Result<()> {
    let folders = folders()?;
    ensure!(!folders.is_empty(), "tests/imports is empty");
    folders.iter().try_for_each(|folder| check(folder).with_context(|| folder.display().to_string()))
}

/// In a full run: models exported by the real compilers.
#[test]
fn models_that_real_compilers_export_compute_what_onnx_runtime_does() -> Result<()> {
    let compilers = std::env::var_os("ATOLL_EXPORT_PYTHON").filter(|_| full());
    let Some(compilers) = compilers else {
        skip(
            "no model is exported by TVM and IREE; set ATOLL_TEST_FULL=1, and ATOLL_EXPORT_PYTHON to a Python that has \
            what docs/guide/import.md lists",
        );
        return Ok(());
    };
    // ResNet-50 by IREE is left out, because IREE compiles one of its kernels wrongly
    // (docs/guide/import.md).
    for (name, exporter) in [("squeezenet", "from_tvm.py"), ("squeezenet", "from_iree.py"), ("resnet50", "from_tvm.py")]
    {
        let scratch = tempfile::tempdir()?;
        let (model, folder) = (built(name, scratch.path())?.path, scratch.path().join("exported"));
        let mut export = Command::new(&compilers);
        export.arg("-B").arg(root().join("tools/export").join(exporter)).arg(&model).arg("-o").arg(&folder);
        succeeded(export.output()?, exporter)?;
        std::fs::copy(&model, folder.join("model.onnx"))?;
        check(&folder).with_context(|| format!("{name} by {exporter}"))?;
    }
    Ok(())
}

/// A copy of a folder with a text replaced in one file.
fn changed(folder: &Path, file: &str, from: &str, to: &str) -> Result<tempfile::TempDir> {
    let copy = tempfile::tempdir()?;
    std::fs::create_dir(copy.path().join("kernels"))?;
    for part in [".", "kernels"] {
        for entry in std::fs::read_dir(folder.join(part))? {
            let path = entry?.path();
            if path.is_file() {
                std::fs::copy(&path, copy.path().join(part).join(path.file_name().context("a name")?))?;
            }
        }
    }
    let path = copy.path().join(file);
    let text = std::fs::read_to_string(&path)?;
    let wrong = text.replacen(from, to, 1);
    ensure!(wrong != text, "nothing was replaced: {from}");
    std::fs::write(path, wrong)?;
    Ok(copy)
}

#[test]
fn wrong_folders_are_refused_with_the_place() -> Result<()> {
    let mlp = root().join("tests/imports/triton_mlp");
    let manifest = "manifest.json";
    for (file, from, to, says) in [
        (manifest, "\"format\": 1", "\"format\": 7", "manifest.json: it has format 7"),
        (
            manifest,
            "\"entry\": \"linear\"",
            "\"entry\": \"line\"",
            "kernel `linear_1`: kernels/linear_1.ptx has no kernel `line`",
        ),
        (
            manifest,
            "{\"kernel\": \"linear_1\"",
            "{\"kernel\": \"linear\"",
            "another file define `linear`; give each a unique name",
        ),
        (
            manifest,
            "{\"kernel\": \"linear_1\"",
            "{\"kernel\": \"linear_9\"",
            "there is no kernel `linear_9`; there are",
        ),
        (
            manifest,
            "\"dtype\": \"f32\", \"shape\": [24], \"file\"",
            "\"dtype\": \"i32\", \"shape\": [24], \"file\"",
            "constants.safetensors: `gain0`: it has elements of type F32",
        ),
        (
            manifest,
            "\"shape\": [24], \"file\"",
            "\"shape\": [25], \"file\"",
            "buffer `gain0`: its file holds 96 bytes, its shape and dtype take 100",
        ),
        (manifest, "\"block\": [128]", "\"block\": [64]", "its PTX requires blocks of [128, 1, 1] threads"),
        (manifest, "{\"bytes\": \"", "{\"bytes\": \"00", "it takes 4 bytes, 5 are given"),
        (manifest, "[\"x\", ", "[", "arguments"),
        (manifest, "\"n0\", {", "\"x\", {", "it writes `x`, which is an input or a constant"),
        (
            manifest,
            "\"args\": [\"x\"",
            "\"writes\": [], \"args\": [\"x\"",
            "it also writes `n0`, which `writes` does not list",
        ),
        (manifest, "\"steps\": [", "\"steps\": [\n  {\"kernel\": 5},", "manifest.json: invalid type"),
        ("kernels/softmax_3.ptx", ".reg ", ".rag ", "softmax_3.ptx: "),
        ("kernels/softmax_3.ptx", ".entry softmax(", ".entry softmin(", "has no kernel `softmax`"),
    ] {
        let copy = changed(&mlp, file, from, to)?;
        let output = import(copy.path(), &copy.path().join("wrong.kg"))?;
        let message = String::from_utf8_lossy(&output.stderr);
        ensure!(!output.status.success() && message.contains(says), "{to}: no '{says}' in: {message}");
    }
    for (name, content, says) in [
        ("schedule.json", "{\"storage\": []", "a REEF schedule"),
        ("graph.json", "{\"nodes\": [], \"arg_nodes\"", "TVM's graph executor"),
        ("module.vmfb", "", "an IREE module"),
        ("kernels.hsaco", "", "a code object for AMD GPUs"),
        ("model.onnx", "", "`atoll compile`"),
        ("function.toml", "", "`atoll pack`"),
        ("notes.txt", "", "the folder has no manifest.json"),
    ] {
        let folder = tempfile::tempdir()?;
        std::fs::write(folder.path().join(name), content)?;
        let output = import(folder.path(), &folder.path().join("wrong.kg"))?;
        let message = String::from_utf8_lossy(&output.stderr);
        ensure!(!output.status.success() && message.contains(says), "{name}: no '{says}' in: {message}");
    }
    Ok(())
}
