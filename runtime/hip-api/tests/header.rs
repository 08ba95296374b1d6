//! Compares the table with AMD's header, if it is installed (`libamdhip64-dev`, or a ROCm folder).
//! `ATOLL_HIP_INCLUDE` names a folder that holds `hip/hip_runtime_api.h`. Each release checks the
//! layouts that it has.

use atoll_hip_api::constants::CONSTANTS;
use atoll_hip_api::error::ERRORS;
use atoll_hip_api::types::{LAYOUTS, Layout};
use atoll_hip_api::{ENTRY_POINTS, EntryPoint};
use regex::Regex;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Names of the structs here that a release declares as `hipDeviceProp_t`.
const OLD_PROPERTIES: &str = "hipDeviceProp_tR0000";
const NEW_PROPERTIES: &str = "hipDeviceProp_tR0600";

/// The folder with the headers; reports that the test is skipped if there is none.
fn include_folder() -> Option<PathBuf> {
    let named = std::env::var_os("ATOLL_HIP_INCLUDE").map(PathBuf::from);
    let usual = ["/usr/include", "/opt/rocm/include"].map(PathBuf::from);
    let found = named.into_iter().chain(usual).find(|folder| folder.join("hip/hip_runtime_api.h").exists());
    if found.is_none() {
        skip("AMD's headers are not installed (libamdhip64-dev), or set ATOLL_HIP_INCLUDE");
    }
    found
}

#[allow(clippy::print_stderr, reason = "the runner collects these lines")]
fn skip(reason: &str) {
    eprintln!("SKIPPED: {reason}");
}

/// The header without comments.
fn header(folder: &Path) -> String {
    let path = folder.join("hip/hip_runtime_api.h");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let comments = Regex::new(r"(?s)/\*.*?\*/|//[^\n]*").expect("a valid expression");
    comments.replace_all(&text, " ").into_owned()
}

/// The parameter lists of all functions, by name.
fn prototypes(header: &str) -> BTreeMap<&str, &str> {
    let prototype = Regex::new(r"hipError_t\s+(hip\w+)\s*\(([^;{]*?)\)\s*;").expect("a valid expression");
    let found = prototype.captures_iter(header).map(|found| {
        let (_, [name, parameters]) = found.extract();
        (name, parameters)
    });
    // A later declaration of the same name is a C++ overload.
    found.fold(BTreeMap::new(), |mut all, (name, parameters)| {
        all.entry(name).or_insert(parameters);
        all
    })
}

/// Translates a C parameter to a type in the notation of the table.
fn rust_type(parameter: &str) -> String {
    let default = Regex::new(r"\s*(__dparm\(.*|=.*)$").expect("a valid expression");
    let parameter = default.replace(parameter.trim(), "");
    let words = Regex::new(r"\w+|\*").expect("a valid expression");
    let mut words: Vec<&str> = words.find_iter(&parameter).map(|word| word.as_str()).collect();
    // The last word is the parameter's name.
    if words.len() > 1 && words.last() != Some(&"*") {
        words.pop();
    }
    let is_const = words.first() == Some(&"const");
    let base: Vec<&str> = words.iter().copied().filter(|word| !["const", "*"].contains(word)).collect();
    let base = match base.join(" ").as_str() {
        "void" => "c_void",
        "char" => "c_char",
        "int" => "c_int",
        "unsigned int" | "unsigned" => "c_uint",
        "unsigned char" => "c_uchar",
        "uint32_t" => "u32",
        "size_t" => "usize",
        "float" => "f32",
        other => other,
    }
    .to_owned();
    let stars = words.iter().filter(|word| **word == "*").count();
    (0..stars).fold(base, |inner, depth| format!("{} {inner}", if depth == 0 && is_const { "*const" } else { "*mut" }))
}

fn rust_types(parameters: &str) -> Vec<String> {
    parameters.split(',').filter(|one| !["", "void"].contains(&one.trim())).map(rust_type).collect()
}

/// Whether two notations are the same type in the ABI. The table has its own names for device
/// addresses and for the layouts of properties.
fn are_same(ours: &str, theirs: &str) -> bool {
    let plain = |of: &str| {
        of.replace("* ", "*").replace(OLD_PROPERTIES, "hipDeviceProp_t").replace(NEW_PROPERTIES, "hipDeviceProp_t")
    };
    let (ours, theirs) = (plain(ours), plain(theirs));
    ours == theirs || ours.replace("hipDeviceptr_t", "*mut c_void") == theirs.replace("hipDeviceptr_t", "*mut c_void")
}

/// How a row differs from the header; `None` if they agree or this release does not declare it.
fn objection(entry: &EntryPoint, prototypes: &BTreeMap<&str, &str>) -> Option<String> {
    let parameters = prototypes.get(entry.symbol)?;
    let ours: Vec<&str> = entry.parameters.iter().map(|(_, of)| *of).collect();
    let theirs = rust_types(parameters);
    let same = ours.len() == theirs.len() && ours.iter().zip(&theirs).all(|(ours, theirs)| are_same(ours, theirs));
    (!same).then(|| format!("{}:\n  header {theirs:?}\n  table  {ours:?}", entry.symbol))
}

#[test]
fn rows_match_the_header() {
    let Some(folder) = include_folder() else { return };
    let header = header(&folder);
    let prototypes = prototypes(&header);
    let missing: Vec<&str> = ENTRY_POINTS
        .iter()
        .filter(|entry| entry.since > 0 && entry.since < 503 && !prototypes.contains_key(entry.symbol))
        .map(|entry| entry.symbol)
        .collect();
    assert!(missing.is_empty(), "the header does not declare {missing:?}");
    let objections: Vec<String> = ENTRY_POINTS.iter().filter_map(|entry| objection(entry, &prototypes)).collect();
    assert!(objections.is_empty(), "{} of {} rows:\n{}", objections.len(), ENTRY_POINTS.len(), objections.join("\n"));
}

/// The structs of this release, with their names in its header.
fn layouts(header: &str) -> impl Iterator<Item = (&'static Layout, &'static str)> {
    let (known, absent) = if header.contains(NEW_PROPERTIES) {
        (NEW_PROPERTIES, OLD_PROPERTIES)
    } else {
        (OLD_PROPERTIES, NEW_PROPERTIES)
    };
    let name = move |name: &'static str| if name == known { "hipDeviceProp_t" } else { name };
    LAYOUTS.iter().filter(move |layout| layout.name != absent).map(move |layout| (layout, name(layout.name)))
}

/// A C program that only compiles if sizes, offsets and numbers match the table.
fn assertions(header: &str) -> String {
    let mut program = "#define __HIP_PLATFORM_AMD__ 1\n#define __HIP_PLATFORM_HCC__ 1\n#include <stdbool.h>\n\
                       #include <stddef.h>\n#include <stdint.h>\n#include <hip/hip_runtime_api.h>\n"
        .to_owned();
    let mut assert = |condition: String, what: &str| {
        writeln!(program, "_Static_assert({condition}, \"{what}\");").expect("a string grows");
    };
    for (layout, name) in layouts(header) {
        assert(format!("sizeof({name}) == {}", layout.bytes), layout.name);
        for (field, offset) in layout.fields {
            // Fields of the old header that were joined keep the name of the first one.
            assert(format!("offsetof({name}, {field}) == {offset}"), &format!("{}.{field}", layout.name));
        }
    }
    for (name, number) in CONSTANTS.iter().filter(|(name, _)| *name != "hipIpcMemLazyEnablePeerAccess") {
        assert(format!("(uint64_t)({name}) == {number}"), name);
    }
    for (name, number) in ERRORS {
        assert(format!("{name} == {number}"), name);
    }
    program
}

#[test]
fn layouts_and_numbers_match_a_c_compiler() {
    let Some(folder) = include_folder() else { return };
    let scratch = tempfile::tempdir().expect("a folder for temporary files");
    let source = scratch.path().join("layouts.c");
    std::fs::write(&source, assertions(&header(&folder))).expect("the folder can be written");
    let Ok(output) = Command::new("cc").arg("-fsyntax-only").arg("-w").arg("-I").arg(&folder).arg(&source).output()
    else {
        return skip("no C compiler: cc cannot be run");
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
