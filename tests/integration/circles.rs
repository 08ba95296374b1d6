//! Limits of imports within a crate: no large import cycles, and short files in the engine.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Maximum number of lines of a file of the engine.
const LINES_MAX: usize = 400;

/// Maximum number of files in an import cycle: a group that can be read together.
const CIRCLE_MAX: usize = 5;

#[test]
fn files_of_the_engine_are_short() {
    for (path, text) in sources(&root().join("runtime/engine/src")) {
        let lines = text.lines().count();
        assert!(
            lines <= LINES_MAX,
            "{} has {lines} lines, {LINES_MAX} are allowed: split it by concern",
            path.display()
        );
    }
}

#[test]
fn files_of_the_engine_import_each_other_in_no_circle() {
    assert_eq!(circles(&root().join("runtime/engine/src")), Vec::<Vec<String>>::new());
}

#[test]
fn no_crate_has_a_circle_of_more_than_five_files() {
    let crates = crates(&root());
    assert!(crates.len() > 30, "there are more crates: {crates:?}");
    let large = crates.iter().flat_map(|folder| circles(folder).into_iter().map(move |circle| (folder, circle)));
    let large: Vec<_> = large.filter(|(_, circle)| circle.len() > CIRCLE_MAX).collect();
    assert!(large.is_empty(), "put what they share into a file that imports none of them: {large:#?}");
}

#[test]
fn use_trees_are_read() {
    let text = "use super::{a::{self, B}, c::D as E};\nuse crate::f::g;";
    assert_eq!(imports(text), ["super::a::self", "super::a::B", "super::c::D", "crate::f::g"]);
    assert_eq!(imports("mod inside {\n    use super::A;\n    use crate::b::B;\n}"), ["crate::b::B"]);
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests lie in the repository").to_owned()
}

/// The source folders of all crates.
fn crates(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let is_ours = |path: &PathBuf| {
        path.is_dir()
            && path.file_name().is_some_and(|name| name != "target" && !name.as_encoded_bytes().starts_with(b"."))
    };
    let (sources, others): (Vec<_>, Vec<_>) = entries.filter(is_ours).partition(|path| path.ends_with("src"));
    sources.into_iter().chain(others.iter().flat_map(|path| crates(path))).collect()
}

/// All Rust files below a folder, except those of tests.
fn sources(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|end| end == "rs")
            && path.file_stem().is_some_and(|name| name != "tests")
        {
            let text = std::fs::read_to_string(&path).expect("a text");
            found.push((path, text));
        }
    }
    found
}

/// Name of a file's module, relative to the folder; empty for the folder's own module.
fn module(folder: &Path, path: &Path) -> String {
    let inside = path.strip_prefix(folder).expect("below the folder").with_extension("");
    let mut parts: Vec<String> = inside.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if parts.last().is_some_and(|last| ["mod", "lib"].contains(&last.as_str())) {
        parts.pop();
    }
    parts.join("::")
}

/// The imports of a file, one path each.
fn imports(text: &str) -> Vec<String> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let code: String = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    let statements = code.split(';').filter_map(|statement| {
        let begin = statement.rfind("use ")?;
        let is_word = statement[..begin].chars().next_back().is_none_or(char::is_whitespace);
        let tree = statement[begin + "use ".len()..].trim();
        // Imports of an inner module from its own file do not count.
        let is_inside = statement[..begin].ends_with("    ") && tree.starts_with("super::");
        (is_word && !is_inside).then_some(tree)
    });
    statements.flat_map(expand).collect()
}

/// Expands a use tree into single paths.
fn expand(tree: &str) -> Vec<String> {
    let Some((before, inside)) = tree.split_once('{') else {
        return vec![tree.split(" as ").next().unwrap_or_default().trim().to_owned()];
    };
    let Some(inside) = inside.trim_end().strip_suffix('}') else { return Vec::new() };
    let (mut depth, mut begin, mut parts) = (0, 0, Vec::new());
    for (at, letter) in inside.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&inside[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&inside[begin..]);
    let parts = parts.into_iter().map(str::trim).filter(|part| !part.is_empty());
    parts.flat_map(|part| expand(&format!("{before}{part}"))).collect()
}

/// The groups of files that import each other, directly or indirectly. The folder's own module,
/// which declares and re-exports the others, counts only if others import it.
fn circles(folder: &Path) -> Vec<Vec<String>> {
    let sources = sources(folder);
    let modules: BTreeSet<String> = sources.iter().map(|(path, _)| module(folder, path)).collect();
    let mut edges: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (path, text) in &sources {
        let own = module(folder, path);
        let targets = imports(text)
            .into_iter()
            .filter_map(|import| target(&own, &import, &modules))
            .filter(|target| *target != own);
        edges.insert(own.clone(), targets.collect());
    }
    let reach: BTreeMap<&String, BTreeSet<String>> = edges.keys().map(|from| (from, reachable(from, &edges))).collect();
    let mut circles: BTreeSet<Vec<String>> = BTreeSet::new();
    for from in edges.keys() {
        let circle: Vec<String> = reach[from].iter().filter(|to| reach[to].contains(from)).cloned().collect();
        if circle.len() > 1 {
            circles.insert(circle);
        }
    }
    circles.into_iter().collect()
}

/// The module that an import belongs to: the longest known prefix of its path.
fn target(own: &str, import: &str, modules: &BTreeSet<String>) -> Option<String> {
    let mut base: Vec<&str> = own.split("::").filter(|part| !part.is_empty()).collect();
    // A path of another crate has no known prefix, and so maps to the file itself.
    for part in import.split("::") {
        match part {
            "crate" => base.clear(),
            "super" => drop(base.pop()),
            "self" => {}
            name => base.push(name),
        }
    }
    (0..=base.len()).rev().map(|count| base[..count].join("::")).find(|name| modules.contains(name))
}

fn reachable(from: &str, edges: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<String> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from.to_owned()]);
    while let Some(module) = next.pop() {
        for to in edges.get(&module).into_iter().flatten() {
            if seen.insert(to.clone()) {
                next.push(to.clone());
            }
        }
    }
    seen
}
