//! Compares the table with NVIDIA's headers, if they are installed. `ATOLL_VENV` names a Python
//! environment with the package `nvidia-cuda-runtime-cu12` (`tests/requirements.txt`), or
//! `ATOLL_CUDA_INCLUDE` a folder with `cuda.h` and `cudaTypedefs.h`.

use atoll_cuda_api::constants::CONSTANTS;
use atoll_cuda_api::error::ERRORS;
use atoll_cuda_api::types::{ENUMS, LAYOUTS};
use atoll_cuda_api::{ENTRY_POINTS, EntryPoint};
use regex::Regex;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder with the headers; reports that the test is skipped if there is none.
fn include_folder() -> Option<PathBuf> {
    let named = std::env::var_os("ATOLL_CUDA_INCLUDE").map(PathBuf::from);
    let environment = std::env::var_os("ATOLL_VENV").map(|venv| PathBuf::from(venv).join("lib"));
    let installed = environment.and_then(|lib| {
        let pythons = std::fs::read_dir(lib).ok()?;
        pythons
            .flatten()
            .map(|python| python.path().join("site-packages/nvidia/cuda_runtime/include"))
            .find(|folder| folder.join("cuda.h").exists())
    });
    let folder = named.or(installed);
    if folder.is_none() {
        skip("NVIDIA's headers are not installed (tests/requirements.txt), or set ATOLL_CUDA_INCLUDE");
    }
    folder
}

#[allow(clippy::print_stderr, reason = "the runner collects these lines")]
fn skip(reason: &str) {
    eprintln!("SKIPPED: {reason}");
}

fn read(folder: &Path, name: &str) -> String {
    std::fs::read_to_string(folder.join(name))
        .unwrap_or_else(|error| panic!("{}: {error}", folder.join(name).display()))
}

/// The prototypes of `cudaTypedefs.h`, by the name of the entry point and the CUDA version that
/// introduced them.
fn prototypes(typedefs: &str) -> BTreeMap<(&str, u32), &str> {
    let typedef =
        Regex::new(r"typedef CUresult ?\(CUDAAPI \*PFN_(\w+?)_v(\d+)\)\(([^;]*)\);").expect("a valid expression");
    let found = typedef.captures_iter(typedefs).map(|prototype| {
        let (_, [name, since, parameters]) = prototype.extract();
        ((name, since.parse().expect("digits")), parameters)
    });
    found.collect()
}

/// Translates a C type to the notation of the table.
fn rust_type(c_type: &str) -> String {
    let words = Regex::new(r"\w+|\*").expect("a valid expression");
    let words: Vec<&str> = words.find_iter(c_type).map(|word| word.as_str()).collect();
    let is_const = words.first() == Some(&"const");
    let base: Vec<&str> = words.iter().copied().filter(|word| !["const", "*"].contains(word)).collect();
    let base = match base.join(" ").as_str() {
        "void" => "c_void",
        "char" => "c_char",
        "int" => "c_int",
        "unsigned int" => "c_uint",
        "unsigned char" => "c_uchar",
        "unsigned short" => "c_ushort",
        "unsigned long long" => "c_ulonglong",
        "size_t" => "usize",
        "float" => "f32",
        "cuuint32_t" => "u32",
        "cuuint64_t" => "u64",
        "CUdevice_v1" => "CUdevice",
        "CUdeviceptr_v2" => "CUdeviceptr",
        "CUipcMemHandle_v1" => "CUipcMemHandle",
        other => other,
    }
    .to_owned();
    let stars = words.iter().filter(|word| **word == "*").count();
    (0..stars).fold(base, |inner, depth| format!("{} {inner}", if depth == 0 && is_const { "*const" } else { "*mut" }))
}

/// The types of a C parameter list.
fn rust_types(parameters: &str) -> Vec<String> {
    let name = Regex::new(r"\w+$").expect("a valid expression");
    let parameters = parameters.split(',').map(str::trim).filter(|parameter| *parameter != "void");
    parameters.map(|parameter| rust_type(&name.replace(parameter, ""))).collect()
}

/// How a row differs from the header.
fn objection(entry: &EntryPoint, prototypes: &BTreeMap<(&str, u32), &str>) -> Option<String> {
    let versions: Vec<u32> =
        prototypes.keys().filter(|(name, _)| *name == entry.name()).map(|(_, since)| *since).collect();
    let Some(&since) = versions.get(entry.version() as usize - 1) else {
        return Some(format!("{}: the header has the versions {versions:?}", entry.symbol));
    };
    if since != entry.since {
        return Some(format!("{}: since {since} in the header, {} in the table", entry.symbol, entry.since));
    }
    // The compiler prints `*mut T` with a space.
    let ours: Vec<String> = entry.parameters.iter().map(|(_, of)| of.replace("* ", "*")).collect();
    let theirs = rust_types(prototypes[&(entry.name(), since)]);
    (theirs != ours).then(|| format!("{}:\n  header {theirs:?}\n  table  {ours:?}", entry.symbol))
}

#[test]
fn rows_match_the_header() {
    let Some(folder) = include_folder() else { return };
    // One prototype in the header lacks its version.
    let typedefs = read(&folder, "cudaTypedefs.h")
        .replace("*PFN_cuModuleGetFunctionCount)", "*PFN_cuModuleGetFunctionCount_v12040)");
    let prototypes = prototypes(&typedefs);
    let objections: Vec<String> = ENTRY_POINTS.iter().filter_map(|entry| objection(entry, &prototypes)).collect();
    assert!(objections.is_empty(), "{} of {} rows:\n{}", objections.len(), ENTRY_POINTS.len(), objections.join("\n"));
}

#[test]
fn numbers_match_the_header() {
    let Some(folder) = include_folder() else { return };
    let header = read(&folder, "cuda.h");
    // The number follows `=` in an enum, and a space in a definition.
    let number = r"(?m)^[ ,]*(?:#define +)?(\w+)(?: *= *| +)\(*(?:\(void ?\*\) *)?(0x[0-9a-fA-F]+|\d+)(?:<<(\d+))?";
    let number = Regex::new(number).expect("a valid expression");
    let value = |text: &str| {
        text.strip_prefix("0x").map_or_else(|| text.parse(), |digits| u64::from_str_radix(digits, 16)).expect("digits")
    };
    let shift = |found: &regex::Captures<'_>| found.get(3).map_or(0, |bits| value(bits.as_str()));
    let numbers = number
        .captures_iter(&header)
        .map(|found| (found.get(1).expect("a name").as_str(), value(&found[2]) << shift(&found)));
    let numbers: BTreeMap<&str, u64> = numbers.collect();
    let errors = ERRORS.iter().map(|(name, number)| (*name, *number as u64));
    let wrong: Vec<String> = (CONSTANTS.iter().copied().chain(errors))
        .filter(|(name, ours)| numbers.get(name) != Some(ours))
        .map(|(name, ours)| format!("{name}: {:?} in the header, {ours} here", numbers.get(name)))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A C program that only compiles if sizes, offsets and the sizes of enums match the table.
fn assertions() -> String {
    let mut program = "#include <stddef.h>\n#include <cuda.h>\n".to_owned();
    for layout in LAYOUTS {
        writeln!(program, "_Static_assert(sizeof({0}) == {1}, \"size of {0}\");", layout.name, layout.bytes)
            .expect("a string grows");
        for (field, offset) in layout.fields {
            writeln!(program, "_Static_assert(offsetof({0}, {field}) == {offset}, \"{0}.{field}\");", layout.name)
                .expect("a string grows");
        }
    }
    for name in ENUMS {
        writeln!(program, "_Static_assert(sizeof({name}) == sizeof(int), \"{name}\");").expect("a string grows");
    }
    program
}

#[test]
fn layouts_match_a_c_compiler() {
    let Some(folder) = include_folder() else { return };
    let scratch = tempfile::tempdir().expect("a folder for temporary files");
    let source = scratch.path().join("layouts.c");
    std::fs::write(&source, assertions()).expect("the folder can be written");
    let Ok(output) = Command::new("cc").arg("-fsyntax-only").arg("-I").arg(&folder).arg(&source).output() else {
        return skip("no C compiler: cc cannot be run");
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
