//! Rust files: their width and length, and what the compiler does not hold.

use super::{Offence, hold};
use anyhow::{Context, Result, ensure};
use atoll_tests::source::{TextFile, is_test_path, remove_tests, test_modules, text_files};
use quote::ToTokens;
use std::collections::BTreeSet;
use std::path::Path;

const COLUMNS_MAX: usize = 120;
const LINES_MAX: usize = 500;

/// Files that are longer, with the reason.
const LONG: &[(&str, &str)] = &[];

/// The words at least that the text of an `expect` has: it says why the value is there.
const INVARIANT_WORDS_MIN: usize = 2;

#[test]
fn lines_are_at_most_120_columns_wide() -> Result<()> {
    let mut offences = Vec::new();
    for file in text_files(&[".rs"])? {
        for (index, line) in file.text.lines().enumerate() {
            let columns = line.chars().count();
            if columns > COLUMNS_MAX {
                offences.push(Offence::new(&file.path, index + 1, format!("{columns} columns")));
            }
        }
    }
    hold("Rust lines over 120 columns", "Wrap the comment, split the string with `\\` or `concat!`.", &offences)
}

#[test]
fn files_have_at_most_500_lines() -> Result<()> {
    let mut offences = Vec::new();
    for file in text_files(&[".rs"])? {
        let lines = file.text.lines().count();
        let is_listed = LONG.iter().any(|(path, _)| *path == file.path);
        ensure!(lines > LINES_MAX || !is_listed, "{} has {lines} lines: remove it from LONG", file.path);
        if lines > LINES_MAX && !is_listed {
            offences.push(Offence::new(&file.path, 0, format!("{lines} lines")));
        }
    }
    hold("files over 500 lines", "Split the file at a natural seam, or list it in LONG with the reason.", &offences)
}

#[test]
fn code_outside_tests_says_why_a_value_is_there() -> Result<()> {
    let files = text_files(&[".rs"])?;
    let mut of_tests = BTreeSet::new();
    let mut parsed = Vec::new();
    for file in files.iter().filter(|file| !is_test_path(&file.path)) {
        let tree = syn::parse_file(&file.text).with_context(|| file.path.clone())?;
        of_tests.extend(test_modules(&tree.items).into_iter().flat_map(|name| paths_of(&file.path, &name)));
        parsed.push((file, tree));
    }
    let mut offences = Vec::new();
    for (file, mut tree) in parsed {
        let is_for_tests = of_tests.iter().any(|path| match path.strip_suffix(".rs") {
            Some(folder) => file.path == *path || file.path.starts_with(&format!("{folder}/")),
            None => false,
        });
        if !is_for_tests {
            remove_tests(&mut tree.items);
            offences.extend(unexplained(file, &tree));
        }
    }
    hold(
        "unwrap or expect without a stated invariant",
        "Return an error, or use `expect` with a text that says why the value is there.",
        &offences,
    )
}

/// The file that `mod name;` in a file reads, if it is not in a folder of its own.
fn paths_of(path: &str, name: &str) -> [String; 2] {
    let path = Path::new(path);
    let folder = path.parent().unwrap_or(Path::new(""));
    let stem = path.file_stem().unwrap_or_default();
    let folder =
        if ["mod", "lib", "main"].iter().any(|own| stem == *own) { folder.to_owned() } else { folder.join(stem) };
    let file = folder.join(format!("{name}.rs")).display().to_string();
    [file, folder.join(name).join("mod.rs").display().to_string()]
}

fn unexplained(file: &TextFile, tree: &syn::File) -> Vec<Offence> {
    let code = tree.to_token_stream().to_string();
    let unwraps = code.matches(". unwrap ()").count();
    let expects = code.split(". expect (\"").skip(1).filter(|rest| {
        let text = rest.split('"').next().unwrap_or_default();
        text.split_whitespace().count() < INVARIANT_WORDS_MIN
    });
    let place = |what: &str, count: usize| (count > 0).then(|| Offence::new(&file.path, 0, format!("{what}: {count}")));
    [place("unwrap()", unwraps), place("expect without a reason", expects.count())].into_iter().flatten().collect()
}

#[test]
fn every_crate_has_the_lints_of_the_workspace() -> Result<()> {
    let manifests = text_files(&["Cargo.toml"])?;
    let workspace = manifests.iter().find(|file| file.path == "Cargo.toml").context("the workspace")?;
    ensure!(workspace.text.contains("\nmissing_docs = \"warn\""), "Cargo.toml: the lint `missing_docs` is off");
    for file in manifests.iter().filter(|file| file.text.contains("[package]")) {
        ensure!(
            file.text.contains("[lints]\nworkspace = true"),
            "{}: `[lints] workspace = true` is missing",
            file.path
        );
    }
    for file in text_files(&[".rs"])? {
        for (index, line) in file.text.lines().enumerate() {
            let is_off = line.contains("allow(missing_docs") || line.contains("expect(missing_docs");
            let line = index + 1;
            ensure!(
                !is_off
                    || file.path.starts_with("tests/integration/tidy")
                    || file.text.lines().nth(index).is_some_and(|line| line.contains("reason = ")),
                "{}:{line}: `missing_docs` is off without a reason",
                file.path
            );
        }
    }
    Ok(())
}
