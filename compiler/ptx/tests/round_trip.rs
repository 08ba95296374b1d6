//! Text to tree to text: exact for what nothing touched, equal trees for what is printed in canonical form.

use atoll_ptx::{ItemKind, Module, parse, print};
use std::path::PathBuf;

/// Every file of the corpus with its text.
fn corpus() -> Vec<(PathBuf, String)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|e| e == "ptx"));
    files.sort();
    assert!(files.len() >= 9);
    files.into_iter().map(|path| (path.clone(), std::fs::read_to_string(path).unwrap())).collect()
}

fn parsed(path: &std::path::Path, text: &str) -> Module {
    parse(text).unwrap_or_else(|errors| panic!("{}:\n{errors}", path.display()))
}

#[test]
fn untouched_text_comes_out_as_it_went_in() {
    for (path, text) in corpus() {
        assert_eq!(print(&parsed(&path, &text)), text, "{}", path.display());
    }
}

#[test]
fn canonical_text_reads_back_as_the_same_tree() {
    for (path, text) in corpus() {
        let mut module = parsed(&path, &text);
        module.strip_origins();
        let canonical = print(&module);
        let mut again = parsed(&path, &canonical);
        again.strip_origins();
        assert_eq!(again, module, "{}:\n{canonical}", path.display());
        assert_eq!(print(&again), canonical);
    }
}

#[test]
fn every_node_is_at_its_place() {
    for (path, text) in corpus() {
        let lines: Vec<&str> = text.split('\n').collect();
        for item in &parsed(&path, &text).items {
            let mut origins = vec![&item.origin];
            if let ItemKind::Function(function) = &item.kind {
                origins.extend(function.body.iter().flat_map(|body| &body.statements).map(|s| &s.origin));
            }
            for origin in origins {
                let first_line = origin.text.as_deref().unwrap_or("{").split('\n').next().unwrap();
                let here = &lines[origin.line as usize - 1][origin.column as usize - 1..];
                assert!(here.starts_with(first_line), "{}:{}: `{first_line}`", path.display(), origin.line);
            }
        }
    }
}
